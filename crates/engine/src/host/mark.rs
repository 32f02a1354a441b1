//! Our own death is a lost path as well (T9): what a killed engine had sent may be executed after
//! its successor has begun to write.
//!
//! Before a controller's I/O queues are opened, core 0 asks its owner for a durable mark that holds
//! the controller's bound ([`HostEvent::Mark`]), and waits for [`HostControl::Marked`]; so no write
//! of any core goes out unmarked. The owner also compares the namespace with the one that the
//! volume is known to have: its answer names the namespace, and counts only for paths that show it.
//! Paths ask one after the other, in their order. When a path that asked waits no longer, that is
//! told ([`HostEvent::MarkEnded`]), so the owner keeps nothing for a path that is gone. Clients are
//! told why a volume is not opened ([`HostEvent::Refused`]) when none of its paths is left to be
//! tried and a user must do something. An engine whose
//! predecessor left its mark holds changes of data, and what is read for a change of parts of
//! blocks, but no other reads, for the bound that it says, from its own start on. Its first flush
//! goes to every controller: each may have unflushed writes of the one before (T13). Changes with
//! [`Hints::past_gate`] don't wait: the records by which a mirror is taken over, which are safe by
//! their order and not by their time.
//!
//! # Limits
//! The mark is there from the first connection on, whether or not data are changed: an engine
//! that only reads and is killed makes its successor wait as well.
//!
//! [`HostControl::Marked`]: super::HostControl::Marked
//! [`Hints::past_gate`]: super::Hints::past_gate
use super::connections::{Role, SessionState};
use super::io::VolumeIo;
use super::outbox::Outbox;
use super::path::Path;
use super::session::Sessions;
use super::session::namespace;
use super::types::{Bar, HostEvent, Mark, PathFacts};
use super::volumes::{LegRole, PathContext, Volume};
use super::{Multipath, WriteFailover, fence, report};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use canary::Bug;
use multipath::Namespace;
use nvme::host::NamespaceInfo;
use policy::PathIndex;

/// A controller that is known and not used yet.
#[derive(Debug)]
pub(super) struct Unmarked {
    pub facts: Box<PathFacts>,
    /// [`HostEvent::Mark`] was told of it.
    asked: bool,
    /// The last answer, where it was to wait.
    bar: Option<Bar>,
}

impl Unmarked {
    pub(super) fn new(facts: Box<PathFacts>) -> Self {
        Self {
            facts,
            asked: false,
            bar: None,
        }
    }

    /// Takes what it shows now; whether something was asked of another namespace, which holds no
    /// more.
    pub(super) fn show(&mut self, namespace: &NamespaceInfo) -> bool {
        let before = self.namespace();
        self.facts.namespace.clone_from(namespace);
        if before.is_same(&self.namespace()) {
            return false;
        }
        self.bar = None;
        core::mem::take(&mut self.asked)
    }

    fn is_foreign(&self) -> bool {
        matches!(self.bar, Some(Bar::Foreign(_)))
    }

    fn namespace(&self) -> Namespace {
        namespace(&self.facts.controller, &self.facts.namespace)
    }
}

/// Core 0: what the owner of a volume keeps durably of it, and was told of it.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The longest bound that is kept, ns.
    bound_ns: u64,
    /// The namespace that the last answer to a [`HostEvent::Mark`] named.
    namespace: Option<Box<Namespace>>,
    /// [`HostEvent::Opened`] was reported.
    is_opened: bool,
    /// Why clients are refused, as reported last ([`HostEvent::Refused`]).
    refusal: Option<String>,
}

impl Marks {
    /// A mark is durable.
    fn add(&mut self, bound_ns: u64, namespace: Box<Namespace>) {
        self.bound_ns = self.bound_ns.max(bound_ns);
        self.namespace = Some(namespace);
    }

    /// Whether this bound is kept, and for this namespace.
    fn covers(&self, bound_ns: u64, namespace: &Namespace) -> bool {
        let kept = self.namespace.as_deref();
        bound_ns <= self.bound_ns && kept.is_some_and(|kept| kept.is_same(namespace))
    }

    /// The volume is open; true once.
    fn open(&mut self) -> bool {
        !core::mem::replace(&mut self.is_opened, true)
    }

    /// Clients are refused for another reason, or no longer (`None`).
    fn set_refusal(&mut self, why: Option<&String>) {
        self.refusal = why.cloned();
    }
}

impl Path {
    /// Core 0: it asked for a mark, and waits for none any more.
    pub(super) fn end_mark(&self, on: &mut PathContext<'_>) {
        if let Some(serial) = on.recovery.marks {
            let ended = HostEvent::MarkEnded(self.volume, serial, self.index);
            on.out.report(ended);
        }
    }

    /// It was in state `before` and ends: it waits for no mark any more.
    pub(super) fn stop_asking(&self, before: &SessionState, on: &mut PathContext<'_>) {
        if let SessionState::CheckingOthers(it) = before
            && it.asked
        {
            self.end_mark(on);
        }
    }
}

impl Volume {
    /// Whether controllers may have in their caches what an engine before this one acknowledged and
    /// did not flush (T13).
    pub(super) fn inherits(&self) -> bool {
        let unclean = self.recovery.unclean_stop_ns.is_some() || self.left_unflushed;
        self.recovery.enabled && unclean && !canary::has(Bug::FlushOfOneLife)
    }

    /// Its serial, and the bound that must be marked before a controller is used, if it isn't yet
    /// for the namespace that it shows.
    fn unmarked_ns(&self, kato_ms: u32, waits: &Unmarked) -> Option<(u64, u64)> {
        let serial = self.recovery.marks.filter(|_| self.recovery.enabled)?;
        let bound_ns = fence::bound_ns(&self.recovery, kato_ms, &waits.facts.controller);
        let bound_ns = bound_ns.unwrap_or(u64::MAX);
        let covered = self.marks.covers(bound_ns, &waits.namespace());
        (!covered).then_some((serial, bound_ns))
    }

    /// Why it is not opened before a user does something: no path of it is left that was not tried,
    /// and one of them waits for a user.
    fn why_refused(&self) -> Option<String> {
        let mut foreign = None;
        for path in self.paths.iter() {
            let bar = path.session.unmarked().and_then(|it| it.bar.as_ref());
            let used = path.session.state().has_association();
            match bar {
                Some(Bar::Unmarked(why)) => return Some(why.clone()),
                Some(Bar::Foreign(why) | Bar::Refused(why)) => {
                    foreign.get_or_insert(why);
                }
                None if path.session.comeback.tried && !used => {}
                None => return None,
            }
        }
        foreign.cloned()
    }

    /// It begins: after an unclean stop its changes of data wait; what the engine before has lost,
    /// and told nobody, the first flush tells.
    pub(super) fn shut_gate(&mut self, out: &mut Outbox, now_ns: u64) {
        let recovery = self.recovery;
        if recovery.unreported_loss && !canary::has(Bug::FlushOfOneLife) {
            let line = format!("{}: {}", self.name, report::LOST_BEFORE);
            self.losses.lose_before(line);
            out.report(HostEvent::Loss(self.number, true));
        }
        let fenced = recovery.write_failover == WriteFailover::Fenced;
        let bound_ns = recovery.unclean_stop_ns.unwrap_or_default();
        let marked = bound_ns > 0 && !canary::has(Bug::IgnoredMark);
        if recovery.enabled && fenced && marked {
            let until_ns = now_ns.saturating_add(bound_ns);
            self.fence.gate_until(until_ns);
            out.wake_by(until_ns);
        }
    }

    /// Core 0: a path can take I/O; the first one says what the volume is.
    pub(super) fn report_opened(&mut self, at: PathIndex, out: &mut Outbox) {
        let facts = &self.paths[at].known.facts;
        let (Some(serial), Some(facts)) = (self.recovery.marks, facts) else {
            return; // no marks are kept of it, or a device has none
        };
        if out.core() != 0 || !self.marks.open() {
            return; // core 0 reports it, once
        }
        let namespace = Box::new(namespace(&facts.controller, &facts.namespace));
        out.report(HostEvent::Opened(self.number, serial, namespace));
    }

    /// Core 0: says why clients are refused, where that has changed.
    fn report_refusal(&mut self, out: &mut Outbox) {
        let why = self.why_refused();
        let is_news = self.marks.refusal != why;
        if is_news && self.ready.is_none() && !self.is_leaving() {
            self.marks.set_refusal(why.as_ref());
            let why = why.map(|why| format!("{}: not opened: {why}", self.name));
            out.report(HostEvent::Refused(self.number, why));
        }
    }

    /// Whether a path must wait for those before it: at the start the first of a volume's paths
    /// that can be had says what it is (T31), not the one that was the fastest this time. The
    /// volume isn't ready before all were tried anyway.
    fn awaits_turn(&self, at: PathIndex) -> bool {
        let undecided = |it: &Path| {
            let early = !it.is_over() && !it.session.state().has_association();
            let foreign = it.session.unmarked().is_some_and(Unmarked::is_foreign);
            it.index < at && early && !it.session.comeback.tried && !foreign
        };
        let decides = self.ready.is_none() && !self.paths[at].session.comeback.tried;
        decides && self.paths.iter().any(undecided)
    }
}

impl VolumeIo<'_> {
    /// Places the changes that wait for the gate, once its time has come.
    pub(super) fn open_gate(&mut self, now_ns: u64) {
        if self.volume.fence.open_gate(now_ns) {
            while let Some(index) = self.volume.fence.next_gated(&mut self.on.ios, now_ns) {
                self.resume_change(index, now_ns);
            }
        }
    }
}

impl Sessions<'_> {
    /// Core 0: a controller is known; its queues are opened when it is its turn and once its bound
    /// is marked.
    pub(super) fn find_or_ask(&mut self, at: PathIndex, mut it: Box<Unmarked>, now_ns: u64) {
        if self.volume.awaits_turn(at) {
            self.volume.paths[at]
                .session
                .enter(SessionState::CheckingOthers(it));
            return;
        }
        let Some((serial, bound_ns)) = self.volume.unmarked_ns(self.on.settings.kato_ms, &it)
        else {
            if it.asked {
                let (path, mut on) = self.path(at);
                path.end_mark(&mut on);
            }
            return self.found(it.facts, now_ns);
        };
        if !it.asked {
            it.asked = true;
            let path = &self.volume.paths[at];
            self.on.out.report(HostEvent::Mark(Mark {
                volume: path.volume,
                serial,
                path: path.index,
                bound_ns,
                namespace: Box::new(it.namespace()),
            }));
        }
        self.volume.paths[at]
            .session
            .enter(SessionState::CheckingOthers(it));
    }

    /// Core 0: a path of a volume was found, is lost, or is marked: those behind it may have their
    /// turn.
    pub(super) fn take_turns(&mut self, now_ns: u64) {
        for at in self.volume.paths.indexes() {
            let session = self.volume.paths.get_mut(at).map(|it| &mut it.session);
            // Facts of a path that were put aside are looked at again.
            if let Some(session) = session.filter(|it| it.is_open(Role::Admin))
                && let Some(it) = session.look_again()
            {
                self.find_or_ask(at, it, now_ns);
            }
        }
        self.volume.report_refusal(&mut self.on.out);
    }

    /// Core 0: a mark is durable.
    pub(super) fn marked(&mut self, mark: Mark, now_ns: u64) {
        self.volume.marks.add(mark.bound_ns, mark.namespace);
        self.take_turns(now_ns);
    }

    /// Core 0: the paths that show a mark's namespace are not used: they wait, or are lost.
    pub(super) fn bar_namespace(&mut self, mark: &Mark, bar: &Bar, now_ns: u64) {
        for at in self.volume.paths.indexes() {
            let path = self.volume.paths.get_mut(at);
            let waits = path.and_then(|it| it.session.unmarked_mut());
            let asked = |it: &&mut Unmarked| it.asked && it.namespace().is_same(&mark.namespace);
            let Some(it) = waits.filter(asked) else {
                continue; // there is no path, or it asked for another mark, or none
            };
            match bar {
                Bar::Unmarked(_) | Bar::Foreign(_) => it.bar = Some(bar.clone()),
                Bar::Refused(why) => {
                    self.volume.paths[at].refused = true;
                    self.lose(at, Some(why), now_ns);
                }
            }
        }
        self.take_turns(now_ns);
    }
}

impl Multipath {
    /// A mirror is ours. It had another owner, here or on another host, that didn't stop in order
    /// if it is `unclean`: controllers of its legs may have in their caches what that one
    /// acknowledged and did not flush, though no mark of this host says so; also those whose paths
    /// have left since we began.
    pub fn inherit(&mut self, volume: u16, unclean: bool) {
        let Some(it) = self.volumes.get_mut(usize::from(volume)) else {
            return; // this core has not opened the leg's volume yet
        };
        if let LegRole::Here { is_claimed } = &mut it.leg {
            *is_claimed = true;
        }
        it.left_unflushed |= unclean;
        let inherits = unclean && it.inherits();
        it.losses.claim(inherits);
        if inherits {
            it.paths.iter_mut().for_each(|path| path.cache.inherit());
        }
    }

    /// Core 0: the volume that a mark is of; `None`: it was removed, or is another one, since that
    /// was asked for.
    pub(super) fn asking(&mut self, mark: &Mark) -> Option<Sessions<'_>> {
        let it = self.volumes.get(usize::from(mark.volume))?;
        let is_asking = it.recovery.marks == Some(mark.serial) && !it.is_vacant();
        is_asking.then(|| self.sessions(mark.volume))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::host::report::tests::namespace;
    use alloc::boxed::Box;
    use nvme::host::ControllerInfo;
    use policy::PathIndex;

    /// A controller and its namespace.
    pub(in super::super) fn found() -> Box<Unmarked> {
        let controller = ControllerInfo {
            cntlid: 1,
            subnqn: "nqn.2026-01.org.example:q0".into(),
            serial: "s".into(),
            model: "m".into(),
            firmware: "f".into(),
            transfer_max: None,
            write_zeroes_max: None,
            deallocate_blocks_max: None,
            entries_max: 128,
            io_queues: 1,
            in_capsule_max: 0,
            kas: 10,
            traffic_keep_alive: false,
            cqt_ms: 0,
            crdt: [0; 3],
            volatile_write_cache: false,
            oncs: 0,
            lists_allocated: false,
            ana: false,
            anatt_s: 0,
            multi_controller: true,
        };
        let namespace = NamespaceInfo {
            blocks: 2048,
            eui64: [1; 8],
            uuid: [1; 16],
            ana_group: 0,
            ..namespace(1)
        };
        Box::new(Unmarked::new(Box::new(PathFacts {
            volume: 0,
            path: PathIndex(0),
            controller,
            namespace,
        })))
    }

    #[test]
    fn another_namespace_must_be_asked_for_again() {
        let mut it = found();
        it.asked = true;
        it.bar = Some(Bar::Foreign("another".into()));
        let mut larger = it.facts.namespace.clone();
        larger.blocks *= 2;
        assert!(!it.show(&larger), "the same namespace");
        assert!(it.asked && it.is_foreign());
        larger.uuid = [2; 16];
        assert!(it.show(&larger), "what was asked holds no more");
        assert!(!it.asked && !it.is_foreign());
    }
}
