//! The life of a path until it is in use: connected, learnt, checked, published, its queue opened.
//!
//! Core 0 opens the admin connection and learns; what it finds is checked against the volume's
//! other paths and published. Every core then opens its own I/O queue, as far as there are
//! (`queues`). The other cores check what they are told as core 0 did, in the same order, so they
//! come to the same result.
use super::abort::CommandId;
use super::connections::{LossReport, Role, SessionState};
use super::io::VolumeIo;
use super::io_table::whole_max;
use super::mark::Unmarked;
use super::outbox::Outbox;
use super::path::{Path, Target};
use super::recovery::WriteFailover;
use super::types::{HostConfig, HostEvent, PathFacts, PathKind, PathNews, VolumeInfo};
use super::volumes::{PathContext, Volume};
use super::{Multipath, Ready, Shared, device, fence, report};
use crate::limits::{BUFFER_MAX, IO_BYTES_MAX};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use block::IoLimits;
use canary::Bug;
use multipath::{Conflict, Identity, Namespace, Shown, Size};
use nvme::host::{
    Admin, AdminConfig, AdminEvent, AnaState, ControllerInfo, IoQueue, IoQueueConfig, NamespaceInfo,
};
use policy::{Ana, PathIndex};

/// Most blocks of one command: NLB has 16 bits, 0's based.
const BLOCKS_MAX: u32 = 1 << 16;
/// Keep-alive granularity (KAS) from which on its user is warned, ms.
const KAS_WARNED_MS: u32 = 60_000;
/// ONCS bits (Base 2.0, 5.17.2.1).
const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
const ONCS_WRITE_ZEROES: u16 = 1 << 3;

impl Path {
    /// Why the namespace that is asked for can't be used; or, where none was and none can be used,
    /// the first one of those with small numbers.
    fn refusal(&self, nsid: Option<u32>, listed: &[NamespaceInfo]) -> Option<String> {
        let admin = self.session.admin.as_ref()?;
        let refused = match nsid {
            Some(nsid) => admin.refused(nsid),
            None if listed.is_empty() => (1..=16).find_map(|nsid| admin.refused(nsid)),
            None => None,
        };
        refused.map(|why| why.to_string())
    }

    /// Core 0: opens its admin connection, to learn what it is.
    pub(super) fn learn(&mut self, settings: &HostConfig, out: &mut Outbox, now_ns: u64) {
        let PathKind::NvmeTcp {
            address,
            subsystem,
            nsid,
            ..
        } = &self.kind
        else {
            unreachable!("a device has no admin connection");
        };
        let machine = Admin::new(AdminConfig {
            host: settings.identity.clone(),
            subsystem: subsystem.clone(),
            digests: settings.digests,
            kato_ms: settings.kato_ms,
            io_queues: settings.cores,
            timeout_ns: settings.connect_timeout_ns,
            nsid: *nsid,
        });
        self.session.identify(machine, *address, out, now_ns);
    }

    /// Opens this core's I/O queue, which has this number; `None`: it has none.
    fn open_queue(
        &mut self,
        qid: Option<u16>,
        settings: &HostConfig,
        out: &mut Outbox,
        now_ns: u64,
    ) {
        let (
            Some(facts),
            PathKind::NvmeTcp {
                address, subsystem, ..
            },
        ) = (&self.known.facts, &self.kind)
        else {
            unreachable!("a queue is opened on a path of which the controller is known");
        };
        let controller = &facts.controller;
        // One entry more than commands; as deep as all that can be outstanding, where allowed.
        let entries = (settings.io_max + 1)
            .min(controller.entries_max.into())
            .max(2);
        self.known.qid = qid.unwrap_or(0);
        self.session.enter(SessionState::Connecting);
        self.aborts.clear();
        self.abort_queue.clear();
        self.paused_ns = 0;
        if let Some(qid) = qid {
            let machine = IoQueue::new(IoQueueConfig {
                host: settings.identity.clone(),
                subsystem: subsystem.clone(),
                cntlid: controller.cntlid,
                qid,
                entries: entries as u16,
                digests: settings.digests,
                disable_sq_flow_control: true,
                in_capsule_max: controller.in_capsule_max,
                timeout_ns: settings.connect_timeout_ns,
            });
            self.session.connect(machine, *address, out, now_ns);
        }
    }

    /// Says once that its controller's keep-alive granularity makes writes wait for minutes or
    /// hours after a loss.
    fn warn_of_long_hold(&mut self, controller: &ControllerInfo, on: &mut PathContext<'_>) {
        let wanted_ms = on.settings.kato_ms;
        let granted_ms = u32::from(controller.kas) * 100;
        let Some(bound_ns) = fence::bound_ns(on.recovery, wanted_ms, controller) else {
            return; // no keep-alive: `check` and `stat` show that risk
        };
        let holds = on.recovery.write_failover == WriteFailover::Fenced;
        let is_long = wanted_ms > 0 && granted_ms >= wanted_ms.max(KAS_WARNED_MS);
        if holds && is_long && !self.known.was_long_hold_reported {
            on.warn(
                self,
                &report::long_keep_alive(wanted_ms, granted_ms, bound_ns),
            );
            self.known.was_long_hold_reported = true;
        }
    }
}

impl Volume {
    /// Says that it is ready, once, when nothing more is to come of its paths and one is live.
    ///
    pub(super) fn settle(&mut self, out: &mut Outbox) {
        self.refresh(out);
        let settled = self.paths.iter().all(|path| path.session.comeback.tried);
        let any = self.paths.iter().any(Path::is_live);
        let (Some(size), Some(limits)) = (self.head.size(), self.head.limits()) else {
            return; // no path was admitted yet
        };
        if !settled || !any || self.ready.is_some() || self.is_leaving() {
            return; // paths are still tried, none is live, it was reported, or the volume leaves
        }
        let info = VolumeInfo {
            bytes: size.bytes(),
            block_shift: size.block_shift,
            transfer_max: IO_BYTES_MAX,
            read_only: limits.read_only,
        };
        self.ready = Some(Ready {
            info,
            limits,
            whole_max: whole_max(&limits),
            warned: false,
        });
        out.report(HostEvent::Ready(self.number, info));
    }

    /// The identity that its paths show together may have changed.
    fn refresh(&mut self, out: &mut Outbox) {
        let Some(ready) = &mut self.ready else {
            return; // `settle` takes what they show then
        };
        // Where all are lost what they showed holds until one is back.
        let mut info = ready.info;
        if let Some(limits) = self.head.limits() {
            ready.limits = limits;
            ready.whole_max = whole_max(&limits);
            info.read_only = limits.read_only;
        }
        if let Some(size) = self.head.size() {
            info.bytes = size.bytes();
        }
        if info != ready.info {
            ready.warned &= info.bytes == ready.info.bytes;
            ready.info = info;
            out.report(HostEvent::Resized(self.number, info));
        }
    }

    /// Why what a path shows can't be beside another volume's paths (T31).
    fn foreign(&self, at: PathIndex, others: [&[Volume]; 2], shown: &Shown) -> Option<String> {
        for it in others.into_iter().flatten() {
            for (there, other) in it.head.admitted() {
                // The number of a controller that is gone may be in use again.
                let gone = |why: &Conflict| matches!(why, Conflict::Controller(_));
                let beside = &it.paths[there];
                // A driver has one controller for all its namespaces; an association is one path.
                let can_share = self.paths[at]
                    .kind
                    .device()
                    .and(beside.kind.device())
                    .is_some();
                if let Err(why) = shown.identity.coexists(&other.identity, can_share)
                    && !(it.head.is_lost(there) && gone(&why))
                {
                    return Some(report::refused(&beside.uri, why));
                }
            }
        }
        None
    }
}

/// The paths of one volume on this core: what opens, identifies and closes their connections.
pub(super) struct Sessions<'a> {
    pub(super) volume: &'a mut Volume,
    /// The core's other volumes: no path is of two (T31).
    pub(super) others: [&'a [Volume]; 2],
    pub(super) on: &'a mut Shared,
}

impl Sessions<'_> {
    /// The I/O of the volume.
    pub(super) fn io(&mut self) -> VolumeIo<'_> {
        VolumeIo {
            volume: self.volume,
            on: self.on,
        }
    }

    /// A path, and what it works with.
    pub(super) fn path(&mut self, at: PathIndex) -> (&mut Path, PathContext<'_>) {
        self.volume.path(at, self.on)
    }

    /// Begins with one path.
    pub(super) fn begin(&mut self, at: PathIndex, now_ns: u64) {
        let it = &*self.volume;
        if it.ready.is_none() && it.inherits() {
            self.volume.paths[at].cache.inherit();
        } else {
            self.volume.paths[at].cache.take_inherited();
        }
        match self.volume.paths[at].kind {
            PathKind::Device { block_shift, .. } => {
                let Some(shown) = device::shown(&self.volume.paths[at].kind) else {
                    unreachable!("a device shows what it is");
                };
                self.volume.paths[at].known.target.block_shift = block_shift;
                if self.admit(at, shown, now_ns) {
                    self.live(at, now_ns);
                }
            }
            PathKind::Passthrough { ref facts, .. } => {
                let shown = shown(&facts.controller, &facts.namespace);
                self.volume.paths[at].known.target = target(&facts.controller, &facts.namespace);
                if self.admit(at, shown, now_ns) {
                    self.live(at, now_ns);
                }
            }
            PathKind::NvmeTcp { .. } if self.on.settings.core == 0 => {
                self.volume.paths[at].learn(&self.on.settings, &mut self.on.out, now_ns);
            }
            PathKind::NvmeTcp { .. } => {}
        }
    }

    /// Takes what the admin machine of a path has to tell.
    pub(super) fn drain_admin(&mut self, at: PathIndex, now_ns: u64) {
        let path = &mut self.volume.paths[at];
        let admin = path.session.admin.as_mut();
        if let Some(took_ns) = admin.and_then(|it| it.take_keep_alive()) {
            path.measured.note_keep_alive(took_ns);
        }
        loop {
            let event = self.volume.paths[at]
                .session
                .admin
                .as_mut()
                .and_then(|admin| admin.poll_event());
            match event {
                None => return,
                Some(AdminEvent::Ready(facts)) => {
                    let (controller, namespaces) = *facts;
                    self.learnt(at, controller, &namespaces, now_ns);
                }
                Some(AdminEvent::Changed(namespaces)) => {
                    self.relearnt(at, &namespaces, now_ns);
                }
                // No user asked for discovery here.
                Some(AdminEvent::Discovery(_)) => {}
                Some(AdminEvent::Paused(until_ns)) => {
                    self.volume.paths[at].pause(until_ns, &mut self.on.out);
                }
                Some(AdminEvent::Reset) => self.was_reset(at, now_ns),
                Some(AdminEvent::Aborted { sqid, cid, aborted }) => {
                    let (path, mut on) = self.path(at);
                    let command = CommandId { sqid, cid };
                    if path.abort_answered(command, aborted, &mut on, now_ns) {
                        self.io().refill(at, now_ns);
                    }
                }
                Some(AdminEvent::Allocated { token, found }) => {
                    self.volume.paths[at].allocation_answered(token, found, &mut self.on.out);
                }
                Some(AdminEvent::Failed(error)) => {
                    self.gave_up(at, Role::Admin, error, now_ns);
                }
            }
        }
    }

    /// Takes what the I/O queue of a path has to tell; whether that was anything.
    #[inline]
    pub(super) fn drain_queue(&mut self, at: PathIndex, now_ns: u64) -> bool {
        if self.volume.paths[at].session.queue.is_none() {
            return false; // it is a device's, or its connection is over
        }
        let mut any = false;
        while let Some(event) = self.io().end_commands(at, &mut any, now_ns) {
            match event {
                Ok(()) => self.live(at, now_ns),
                Err(error) => self.gave_up(at, Role::Io, error, now_ns),
            }
        }
        if any {
            self.io().refill(at, now_ns);
        }
        if any && let Some(admin) = &mut self.volume.paths[at].session.admin {
            admin.note_traffic(now_ns);
        }
        any
    }

    /// Core 0: a controller is ready.
    fn learnt(
        &mut self,
        at: PathIndex,
        controller: ControllerInfo,
        namespaces: &[NamespaceInfo],
        now_ns: u64,
    ) {
        let path = &self.volume.paths[at];
        if !path.session.state().is_identifying() {
            return; // it was lost, or leaves, since the controller answered
        }
        let PathKind::NvmeTcp { nsid, .. } = path.kind else {
            unreachable!("a device has no admin connection");
        };
        let volume = path.volume;
        let cores = self.on.settings.cores;
        let unasked = path
            .session
            .admin
            .as_ref()
            .map_or(0, |admin| admin.unasked());
        let picked = match report::pick(nsid, namespaces, unasked) {
            // One that is there but can't be used says why.
            Err(why) => Err(self.volume.paths[at]
                .refusal(nsid, namespaces)
                .unwrap_or(why)),
            Ok(_) if controller.io_queues < cores && !self.volume.recovery.enabled => {
                Err(report::few_queues(controller.io_queues, cores))
            }
            other => other,
        };
        match picked {
            Err(why) => self.lose(at, Some(&why), now_ns),
            Ok(namespace) => {
                let namespace = namespace.clone();
                let (path, mut on) = self.path(at);
                path.warn_of_long_hold(&controller, &mut on);
                path.warn_of_few_queues(controller.io_queues, &mut on);
                if let Some(admin) = &mut path.session.admin {
                    admin.want(namespace.nsid);
                }
                let facts = PathFacts {
                    volume,
                    path: at,
                    controller,
                    namespace,
                };
                let waits = Box::new(Unmarked::new(Box::new(facts)));
                self.find_or_ask(at, waits, now_ns);
            }
        }
    }

    /// Core 0: the namespaces or their ANA states have changed (T30).
    fn relearnt(&mut self, at: PathIndex, namespaces: &[NamespaceInfo], now_ns: u64) {
        if let Some(mut it) = self.volume.paths[at].session.look_again() {
            let nsid = it.facts.namespace.nsid;
            let found = namespaces.iter().find(|it| it.nsid == nsid);
            return match found {
                Some(namespace) => {
                    if it.show(namespace) {
                        let (path, mut on) = self.path(at);
                        path.end_mark(&mut on);
                    }
                    self.find_or_ask(at, it, now_ns);
                }
                None => {
                    // Back into its state, which reports that the mark is asked for no more.
                    self.volume.paths[at]
                        .session
                        .enter(SessionState::CheckingOthers(it));
                    self.lose(at, Some(&report::namespace_gone(nsid)), now_ns);
                }
            };
        }
        let path = &mut self.volume.paths[at];
        let Some(facts) = &path.known.facts else {
            return; // it was lost before anything was known of it
        };
        let nsid = facts.namespace.nsid;
        let doubted = core::mem::take(&mut path.known.is_read_again);
        match namespaces.iter().find(|namespace| namespace.nsid == nsid) {
            None => self.lose(at, Some(&report::namespace_gone(nsid)), now_ns),
            Some(namespace) if *namespace == facts.namespace && !doubted => {}
            Some(namespace) => {
                let facts = PathFacts {
                    namespace: namespace.clone(),
                    ..(**facts).clone()
                };
                self.found(Box::new(facts), now_ns);
            }
        }
    }

    /// A path shows a namespace, now or now something else: from our own admin connection, or core
    /// 0's.
    pub(super) fn found(&mut self, facts: Box<PathFacts>, now_ns: u64) {
        let at = facts.path;
        let Some(path) = self.volume.paths.get(at) else {
            return; // core 0's news crossed with the end of the path on this core
        };
        if path.is_over() && path.session.comeback.report != LossReport::Given {
            return; // it was found before it was lost
        }
        let namespace = &facts.namespace;
        let shown = shown(&facts.controller, namespace);
        let first = !path.session.state().has_association();
        let agrees = if first {
            self.admit(at, shown, now_ns)
        } else {
            self.changed(at, shown, now_ns)
        };
        if !agrees {
            return; // it was refused, and is lost
        }
        let stale = canary::has(Bug::StaleAna) && !first;
        let state = if stale {
            Ana::Optimized
        } else {
            ana(namespace.ana_state)
        };
        self.volume.head.set_ana(at, state);
        let inherits = self.volume.inherits();
        let path = &mut self.volume.paths[at];
        path.known.target = target(&facts.controller, namespace);
        if self.on.settings.core == 0 {
            let news = PathNews::Found(facts.clone());
            self.on.out.publish(news);
        }
        path.known.is_read_again = false;
        if path.known.facts.is_none() && inherits {
            path.cache.inherit();
        }
        path.known.facts = Some(facts);
        self.on.found += 1;
        if first {
            self.connect(at, now_ns);
            self.take_turns(now_ns);
        } else {
            let mut io = self.io();
            io.release(now_ns);
            io.release_flushes(now_ns);
        }
    }

    /// Checks a path against the other ones (T31, T33); false: it was refused.
    fn admit(&mut self, at: PathIndex, shown: Shown, now_ns: u64) -> bool {
        let refused = match self.volume.foreign(at, self.others, &shown) {
            Some(line) => line,
            None => match self.volume.head.admit(at, shown) {
                Ok(()) => {
                    self.volume.refresh(&mut self.on.out);
                    return true;
                }
                Err(refused) if refused.other == at => report::not_the_same(refused.why),
                Err(refused) => {
                    let other = &self.volume.paths[refused.other];
                    report::refused(&other.uri, refused.why)
                }
            },
        };
        self.volume.paths[at].refused = true;
        self.lose(at, Some(&refused), now_ns);
        false
    }

    /// The identity that a path shows has changed; false: it is no longer the same namespace.
    pub(super) fn changed(&mut self, at: PathIndex, shown: Shown, now_ns: u64) -> bool {
        let refused = match self.volume.head.changed(at, shown) {
            Ok(resized) => {
                self.volume.refresh(&mut self.on.out);
                if resized {
                    self.read_again(now_ns);
                }
                return true;
            }
            Err(refused) => refused,
        };
        self.lose(at, Some(&report::not_the_same(refused.why)), now_ns);
        false
    }

    /// Opens this core's I/O queue on a path whose facts are known, if it has one.
    fn connect(&mut self, at: PathIndex, now_ns: u64) {
        let qid = self
            .volume
            .queue_of(at, self.on.settings.core, self.on.settings.cores);
        let path = &mut self.volume.paths[at];
        path.open_queue(qid, &self.on.settings, &mut self.on.out, now_ns);
        self.volume.fence.begin_association(at);
        if qid.is_none() {
            self.live_without_queue(at, now_ns);
        }
    }

    /// A path can take I/O.
    pub(super) fn live(&mut self, at: PathIndex, now_ns: u64) {
        let (path, on) = self.path(at);
        if path.is_over() {
            return; // its queue became ready in the turn in which it was lost
        }
        let was_reported = path.session.begin_use(now_ns);
        path.counters.connects += 1;
        on.out.note_state();
        path.cache.note_live();
        let has_queue = path.has_queue();
        on.head.set_enabled(at, has_queue);
        // A core that does not use it does not judge it.
        let sick = has_queue.then(|| on.head.returned(at, now_ns)).flatten();
        path.probing.stays_out &= sick.is_some();
        self.volume.report_opened(at, &mut self.on.out);
        self.on.ios.forget_failures(self.volume.number, at);
        let mut io = self.io();
        io.volume.compare_anew(now_ns);
        io.volume.settle(&mut io.on.out);
        io.volume.outage.note_live_path();
        let (path, on) = io.path(at);
        if was_reported && !path.probing.stays_out {
            let line = on.line(path, "live again");
            on.out.report(HostEvent::Returned(path.volume, line));
        }
        io.release(now_ns);
        io.release_flushes(now_ns);
        if let Some(why) = sick {
            io.on_probation(at, why, now_ns);
        }
        io.on.out.wake_by(now_ns); // a probe will be due
    }

    /// Paths that may show something else by now (T33) give back what their queues have no room
    /// for, but flushes; core 0 asks what they show.
    pub(super) fn read_again(&mut self, now_ns: u64) {
        for at in self.volume.paths.indexes() {
            if self.volume.paths.get(at).is_none() || !self.volume.head.is_stale(at) {
                continue; // there is no path, or it shows the size that all do
            }
            if self.volume.recovery.enabled {
                self.io().move_waiting(at, now_ns);
            }
            let path = &mut self.volume.paths[at];
            if let Some(admin) = &mut path.session.admin {
                path.known.is_read_again = true;
                admin.request_namespaces(now_ns);
                self.on.out.touch(&mut path.session, Role::Admin);
            }
        }
    }
}

impl Multipath {
    /// Begins with all paths; once.
    #[cold]
    pub(super) fn start(&mut self, now_ns: u64) {
        if self.on.shutdown.is_closing() {
            return; // it was stopped before its first turn
        }
        for volume in &mut self.volumes {
            volume.shut_gate(&mut self.on.out, now_ns);
        }
        self.each_path(|sessions, at| sessions.begin(at, now_ns));
    }
}

/// Returns what identifies a namespace behind a controller.
pub(super) fn namespace(controller: &ControllerInfo, namespace: &NamespaceInfo) -> Namespace {
    Namespace {
        subsystem: String::from(controller.subnqn.as_str()),
        controller: controller.cntlid,
        nsid: namespace.nsid,
        nguid: namespace.nguid,
        eui64: namespace.eui64,
        uuid: namespace.uuid,
        command_set: namespace.csi,
        shared: namespace.shared,
    }
}

/// Identity that a path shows, in the volume's words.
fn shown(controller: &ControllerInfo, namespace: &NamespaceInfo) -> Shown {
    let shift = namespace.block_shift;
    let bytes = |blocks: u32| (u64::from(blocks) << shift.min(31)).min(u32::MAX.into()) as u32;
    // Whole blocks, and at least one: below that, its target can't be asked for anything.
    let most = |bytes: u32| (bytes >> shift.min(31)).max(1) << shift.min(31);
    let largest = bytes(BLOCKS_MAX).min(controller.transfer_max.unwrap_or(u32::MAX));
    // Without a limit of its own, zeroing is as long as moving data: the kernel limits it alike.
    let zeroes = match controller.write_zeroes_max {
        Some(most) => most.min(bytes(BLOCKS_MAX)),
        None => largest,
    };
    Shown {
        identity: Identity::Namespace(self::namespace(controller, namespace)),
        size: Size {
            blocks: namespace.blocks,
            block_shift: shift,
        },
        limits: IoLimits {
            transfer_max: most(largest.min(BUFFER_MAX)),
            write_zeroes_max: most(zeroes),
            deallocate_max: most(bytes(controller.deallocate_blocks_max.unwrap_or(u32::MAX))),
            // Beyond what an I/O can have, it is none.
            boundary: u32::from(namespace.boundary_blocks)
                .checked_mul(1 << shift.min(31))
                .unwrap_or(0),
            optimal_write: namespace
                .optimal_write_blocks
                .checked_mul(1 << shift.min(31))
                .unwrap_or(0),
            atomic_bytes: bytes(namespace.atomic_blocks),
            volatile_cache: controller.volatile_write_cache,
            read_only: namespace.read_only,
            write_zeroes: controller.oncs & ONCS_WRITE_ZEROES != 0,
            deallocate: controller.oncs & ONCS_DATASET_MANAGEMENT != 0,
            deallocate_reads_zero: namespace.deallocate_reads_zero,
            hole_bytes: match controller.oncs & ONCS_WRITE_ZEROES {
                0 => 0,
                _ => bytes(namespace.hole_blocks),
            },
        },
    }
}

/// Facts that its commands need.
fn target(controller: &ControllerInfo, namespace: &NamespaceInfo) -> Target {
    Target {
        nsid: namespace.nsid,
        block_shift: namespace.block_shift,
        crdt: controller.crdt,
    }
}

/// ANA states in the policy's words.
fn ana(state: AnaState) -> Ana {
    match state {
        AnaState::Optimized => Ana::Optimized,
        AnaState::NonOptimized => Ana::NonOptimized,
        AnaState::Inaccessible => Ana::Inaccessible,
        AnaState::PersistentLoss => Ana::PersistentLoss,
        AnaState::Change => Ana::Change,
    }
}
