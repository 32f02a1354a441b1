//! The NVMe/TCP server, a front end of [`Core`](crate::Core): one subsystem whose namespaces are
//! block devices.
//!
//! Decides which I/O of the [`Devices`] a command becomes, when it may begin, and with which status
//! it ends. Everything of NVMe is [`TargetEngine`]'s: this module serves its device requests.
//!
//! # Contract
//! A namespace has the number of its device for good. Its NSID is inactive until the device is
//! ready, then active with the size that the device has; when the device is removed it is inactive
//! for ever. One that is removed takes no commands any more; those that a device has of it end as
//! they do. A mirror that is stopped is no namespace until it begins anew: hosts must not keep
//! what they have of it, for its legs may have other contents then.
//!
//! Each namespace has an ANA group of its own, numbered as its NSID, which is inaccessible while
//! the device has no usable path or leg. A command that the device has then waits there, as long
//! as the device lets it; its connection is served meanwhile.
//!
//! Changes of one device are executed in the order in which they came, over all connections and
//! front ends ([`ChangeOrder`](block::order::ChangeOrder)). A request that only waits, for these or
//! for a slot of the device, ends with its connection, by a reset or by an Abort (T12). One of
//! which the device has something keeps its place until that has ended, so it undoes nothing that
//! comes later over any front end (T9). A command that came before its namespace was made inactive
//! does not reach what has the NSID afterwards.
//!
//! * `change`: namespaces, ports and the server itself come and go
//! * `compare`: Compare; `extents`: Get LBA Status
//!
//! # Limits
//! Those of the target. No fused commands.
mod change;
mod compare;
mod extents;
mod losses;

pub use change::NvmeControl;
pub(crate) use extents::server_of;

use crate::client::ClientReport;
use crate::client_errors::{ClientError, ClientErrors};
use crate::export::ExportEvent;
use crate::host::{IoDone, IoOp, VolumeInfo};
use crate::limits::{CLIENT_LINES_MAX, ZEROES_BYTES};
use crate::machine::{ConnId, DeviceOp, DeviceRequest, LocalDevice, Machine, Memory, Output, Span};
use crate::mirror::Devices;
use crate::pipeline::{Pipeline, Stage, ZeroBuffer};
use crate::seldom::Seldom;
use crate::slot_queues::SlotQueues;
use crate::target::{self, TargetConfig, TargetControl, TargetEngine};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use block::Range;
use canary::Bug;
use compare::Compares;
use extents::Questions;
use losses::Losses;
use multipath::Outcome;
use nvme::controller::{Action, ConfigError, NamespaceConfig, SubsystemConfig};
use nvme::host::AnaState;
use nvme::limits::NAMESPACES_MAX;
use nvme::wire::Status;

/// Configuration of an NVMe/TCP server.
#[derive(Clone, Debug)]
pub struct NvmeConfig {
    /// The subsystem. The size of a namespace is that of its device, once this is ready, and its
    /// ANA group is its own.
    pub subsystem: SubsystemConfig,
    /// Volume or mirror of each namespace, in the order of the subsystem's namespaces.
    pub volumes: Vec<u16>,
}

/// Memory of a core for one NVMe/TCP server, whether it is there or not, bytes.
#[derive(Clone, Copy, Debug)]
pub struct NvmePlace {
    /// Most connections of its subsystem.
    pub connections: u32,
    /// First byte of its memory in the arena, a multiple of 4 KiB.
    pub arena_at: u64,
    /// Bytes of it: buffers, [`ZEROES_BYTES`](crate::limits::ZEROES_BYTES), and
    /// [`COMPARE_BYTES`](crate::limits::COMPARE_BYTES) of each namespace that it begins with.
    pub arena_bytes: u64,
}

/// A namespace as it is until its device is ready, whose size and block it has then.
fn awaited(config: NamespaceConfig) -> NamespaceConfig {
    NamespaceConfig {
        ana_group: config.nsid,
        blocks: 1,
        block_shift: 12,
        // A leg or path that comes later need not promise it.
        deallocate_zeroes: false,
        ..config
    }
}

impl NvmeConfig {
    /// Whether a server of this can be in a place.
    ///
    /// # Errors
    /// The field that can't be.
    pub fn check(&self, place: NvmePlace) -> Result<(), ConfigError> {
        NvmeServer::new(self.clone(), place, 1, 0).map(drop)
    }
}

/// Alignment of buffers that files can take, bytes.
const PAGE: u64 = 4096;

/// Whether hosts see a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Its device has not been ready yet, or is a mirror that was stopped.
    Awaited,
    /// They do; whether its device is usable, as its ANA state says.
    Active { is_usable: bool },
    /// It was removed, and its device may have commands of it yet, which came in this incarnation.
    Leaving { incarnation: u32 },
    /// It or its device was removed, or can't be a namespace.
    Gone,
}

/// How far the end of a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Serving,
    /// Its namespaces are removed; at that time its connections are closed at the latest.
    Leaving {
        until_ns: u64,
    },
    /// Connections are being closed. `leaves`: nothing of it is needed afterwards.
    Closing {
        leaves: bool,
    },
    /// The target has ended.
    Over {
        leaves: bool,
    },
}

struct Namespace {
    nsid: u32,
    volume: u16,
    presence: Presence,
    losses: Losses,
}

/// One request of the target.
struct Request {
    of: DeviceRequest,
    /// When it began, ns.
    begun_ns: u64,
    pipeline: Pipeline,
    /// Bytes that a Compare has compared.
    compared: u32,
    /// How it ends whatever its I/Os do: no more of them begin.
    verdict: Option<Result<(), Status>>,
}

/// An NVMe/TCP server of one core. See the module's contract.
pub(crate) struct NvmeServer {
    target: TargetEngine,
    /// Its number among the front ends, which its cookies have above bit 32.
    front_end: u64,
    /// Connection 0 of the target; the others follow.
    first_conn: u32,
    namespaces: Vec<Namespace>,
    /// By the target's request number.
    requests: Vec<Option<Request>>,
    /// How often the device of a request had given up unflushed writes when its zeroes were begun:
    /// a flush may follow, as a request of the same number.
    zeroed_from: Vec<u16>,
    /// Requests that wait for a free slot of their device.
    waiting: SlotQueues,
    zeroes: ZeroBuffer,
    compares: Compares,
    /// `None`: Get LBA Status is not offered.
    questions: Option<Questions>,
    outputs: VecDeque<Output>,
    events: VecDeque<ExportEvent>,
    errors: ClientErrors,
    /// Connections that ended for a reason worth a line.
    ended: Seldom,
    life: Life,
}

impl NvmeServer {
    /// A server without connections, all of whose namespaces wait for their devices.
    ///
    /// # Errors
    /// As of [`TargetEngine::new`].
    pub fn new(
        config: NvmeConfig,
        place: NvmePlace,
        front_end: u64,
        first_conn: u32,
    ) -> Result<Self, ConfigError> {
        let NvmeConfig {
            mut subsystem,
            volumes,
        } = config;
        let NvmePlace {
            connections,
            arena_at,
            arena_bytes,
        } = place;
        let questions = Questions::new(front_end - 1);
        (subsystem.compare, subsystem.lba_status) = (true, questions.is_some());
        subsystem.connections_max = connections;
        let mut namespaces = Vec::with_capacity(volumes.len());
        for (it, &volume) in subsystem.namespaces.iter_mut().zip(&volumes) {
            *it = awaited(it.clone());
            namespaces.push(Namespace {
                nsid: it.nsid,
                volume,
                presence: Presence::Awaited,
                losses: Losses::default(),
            });
        }
        let own_bytes = u64::from(ZEROES_BYTES) + Compares::bytes(namespaces.len());
        let target = TargetConfig {
            shapes: alloc::vec![shape::Config::default(); subsystem.ports.len()],
            devices: volumes.into_iter().map(LocalDevice).collect(),
            subsystem,
            // The arena behind it is written to files past their cache: it begins at a whole page.
            arena_bytes: arena_bytes.saturating_sub(own_bytes) / PAGE * PAGE,
            seed: 0,
        };
        let own_at = arena_at + target.arena_bytes;
        let zeroes = ZeroBuffer::new(Span {
            at: own_at,
            len: ZEROES_BYTES,
        });
        let compares = Compares::new(own_at + u64::from(ZEROES_BYTES), namespaces.len());
        let mut target = TargetEngine::new(target)?;
        target.place_buffers(arena_at);
        target.allow_recalls();
        target.reserve_namespaces(NAMESPACES_MAX as u32);
        for it in &namespaces {
            target.deactivate(it.nsid, 0);
        }
        Ok(Self {
            target,
            front_end,
            first_conn,
            namespaces,
            requests: Vec::new(),
            zeroed_from: Vec::new(),
            waiting: SlotQueues::default(),
            zeroes,
            compares,
            questions,
            outputs: VecDeque::new(),
            events: VecDeque::new(),
            errors: ClientErrors::default(),
            ended: Seldom::new(CLIENT_LINES_MAX),
            life: Life::Serving,
        })
    }

    pub fn target(&self) -> &TargetEngine {
        &self.target
    }

    /// Questions of this server are told from those of the ones before it in its place.
    pub fn begin_questions_at(&mut self, serial: u32) {
        if let Some(questions) = &mut self.questions {
            questions.begin_at(serial);
        }
    }

    /// For what concerns a connection; numbers of connections are [`Self::local`] there.
    pub fn target_mut(&mut self) -> &mut TargetEngine {
        &mut self.target
    }

    /// The target's number of a connection.
    pub fn local(&self, conn: ConnId) -> ConnId {
        ConnId(conn.0 - self.first_conn)
    }

    fn global(&self, conn: ConnId) -> ConnId {
        ConnId(conn.0 + self.first_conn)
    }

    /// Accepts a connection to a port.
    pub fn accept(&mut self, port: u32, now_ns: u64) -> Option<ConnId> {
        let conn = self.target.handle_accepted(port, now_ns)?;
        Some(self.global(conn))
    }

    /// A connection is over.
    pub fn closed(&mut self, conn: ConnId, why: crate::machine::Closed, now_ns: u64) {
        // Messages about it that are still due must not reach the next of its number.
        self.outputs.retain(|output| match output {
            Output::Transmit(of) | Output::Resume(of) | Output::Close { conn: of, .. } => {
                *of != conn
            }
            _ => true,
        });
        let conn = self.local(conn);
        self.target.handle_closed(conn, why, now_ns);
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<ExportEvent> {
        self.events.pop_front()
    }

    /// Whether it has ended, as it was told to.
    pub fn is_over(&self) -> bool {
        matches!(self.life, Life::Over { .. })
    }

    /// Whether it was told to leave, and nothing refers to it any more.
    pub fn has_left(&self) -> bool {
        let is_over = self.life == Life::Over { leaves: true };
        is_over && self.target.places_taken() == 0 && self.requests.iter().all(Option::is_none)
    }

    /// Ends all connections; its hosts may send what was not answered to an engine after this one.
    pub fn stop(&mut self, now_ns: u64) {
        if matches!(self.life, Life::Serving | Life::Leaving { .. }) {
            let leaves = self.life != Life::Serving;
            self.life = Life::Closing { leaves };
            self.target.handle_control(TargetControl::Stop, now_ns);
        }
    }

    /// Whether a request of a device is under way.
    fn is_used(&self, volume: u16) -> bool {
        let mut all = self.requests.iter().flatten();
        all.any(|it| it.of.device.0 == volume)
    }

    /// Devices that are active namespaces, and how many hosts have identified or used each; 1 of a
    /// namespace that was removed, while its device has commands of it.
    pub fn hosts(&self) -> impl Iterator<Item = (u16, u32)> {
        self.namespaces.iter().filter_map(|it| match it.presence {
            Presence::Active { .. } => {
                Some((it.volume, self.target.hosts_of(it.nsid).len() as u32))
            }
            Presence::Leaving { .. } => Some((it.volume, 1)),
            Presence::Awaited | Presence::Gone => None,
        })
    }

    /// Hosts that have identified active namespaces; `listener`: that of a port.
    pub fn client_reports(&self, listener: impl Fn(u16) -> u32) -> Vec<ClientReport> {
        let active = self.namespaces.iter();
        let active = active.filter(|it| matches!(it.presence, Presence::Active { .. }));
        let of = |it: &Namespace| self.target.client_reports((it.nsid, it.volume), &listener);
        active.flat_map(of).collect()
    }

    /// A device is ready, or has another size.
    pub fn sized(&mut self, devices: &Devices, volume: u16, info: VolumeInfo, now_ns: u64) {
        let blocks = info.bytes >> info.block_shift;
        for it in self.namespaces.iter_mut().filter(|it| it.volume == volume) {
            if let Presence::Active { .. } = it.presence {
                let resize = TargetControl::Resize(it.nsid, blocks);
                self.target.handle_control(resize, now_ns);
                continue;
            }
            if it.presence != Presence::Awaited {
                continue;
            }
            let limits = devices.limits(volume);
            let read_only = limits.is_some_and(|limits| limits.read_only);
            let shift = info.block_shift;
            let activated = self
                .target
                .activate(it.nsid, blocks, shift, read_only, now_ns);
            it.presence = match activated {
                Ok(()) => {
                    // The state that was set when it was stopped is over.
                    self.target.set_ana(it.nsid, AnaState::Optimized, now_ns);
                    it.losses = Losses::since(devices.flush_losses(volume));
                    Presence::Active { is_usable: true }
                }
                Err(why) => {
                    let nsid = it.nsid;
                    let unfit = ExportEvent::Unfit { volume, nsid, why };
                    self.events.push_back(unfit);
                    Presence::Gone
                }
            };
        }
    }

    /// A volume is gone: its number may be another's next.
    pub fn forget_volume(&mut self, volume: u16, now_ns: u64) {
        for it in self.namespaces.iter_mut().filter(|it| it.volume == volume) {
            if matches!(it.presence, Presence::Active { .. }) {
                self.target.deactivate(it.nsid, now_ns);
            }
            it.presence = Presence::Gone;
        }
    }

    /// Reports hosts that found no place, and connections that ended for a fault of the host.
    fn report_hosts(&mut self, now_ns: u64) {
        while let Some((_, event)) = self.target.next_event() {
            let count = match event {
                target::Event::TurnedAway { count, .. } => Some(count),
                target::Event::Closed { why, .. } if why.is_fault() => self.ended.one_more(now_ns),
                _ => None,
            };
            let event = count.map(|count| ExportEvent::Port { event, count });
            self.events.extend(event);
        }
    }

    /// Says which devices have become usable, or are so no more, and which were stopped; notes
    /// which hosts have to be told of a loss.
    fn observe(&mut self, devices: &Devices, now_ns: u64) {
        for it in &mut self.namespaces {
            let is_stopped = devices.is_stopped(it.volume);
            if is_stopped && matches!(it.presence, Presence::Leaving { .. }) {
                it.presence = Presence::Gone;
            }
            let Presence::Active { is_usable } = &mut it.presence else {
                continue;
            };
            if is_stopped {
                self.target.deactivate(it.nsid, now_ns);
                it.presence = Presence::Awaited;
                continue;
            }
            let losses = devices.flush_losses(it.volume);
            it.losses.observe(losses, || self.target.users_of(it.nsid));
            let now = devices.is_usable(it.volume)
                && (*is_usable || !canary::has(Bug::StaysInaccessible));
            if core::mem::replace(is_usable, now) != now {
                let state = if now {
                    AnaState::Optimized
                } else {
                    AnaState::Inaccessible
                };
                self.target.set_ana(it.nsid, state, now_ns);
            }
        }
    }

    /// Does what has become possible; whether that was anything.
    pub fn advance(&mut self, devices: &mut Devices, memory: &mut dyn Memory, now_ns: u64) -> bool {
        self.zeroes.fill(memory);
        self.observe(devices, now_ns);
        let mut any = self.recall(devices, now_ns);
        while let Some(output) = self.target.poll_output() {
            any = true;
            let output = match output {
                Output::Device(request) => {
                    self.begin(devices, request, now_ns);
                    continue;
                }
                Output::Extent(request) => {
                    self.ask_extent(devices, request, now_ns);
                    continue;
                }
                Output::Stop => {
                    let leaves = self.life == Life::Closing { leaves: true };
                    self.life = Life::Over { leaves };
                    continue;
                }
                Output::Transmit(conn) => Output::Transmit(self.global(conn)),
                Output::Resume(conn) => Output::Resume(self.global(conn)),
                Output::Close { conn, abort } => {
                    let conn = self.global(conn);
                    Output::Close { conn, abort }
                }
                other => unreachable!("a target asks for no {other:?}"),
            };
            self.outputs.push_back(output);
        }
        self.report_hosts(now_ns);
        self.leave(now_ns);
        any |= self.compare(devices, memory, now_ns);
        any | self.submit_waiting(devices, now_ns)
    }

    /// Takes back requests that their hosts want, and to which no device has been asked anything
    /// yet, and those whose connections are over, of which no device has anything; whether there
    /// were any.
    fn recall(&mut self, devices: &mut Devices, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(id) = self.target.next_recall() {
            let Some(Some(request)) = self.requests.get_mut(id as usize) else {
                continue; // it has not come yet, and does not begin when it does
            };
            any = true;
            let is_untouched = !request.pipeline.has_begun();
            let is_taken = request.pipeline.is_waiting()
                && (is_untouched || !self.target.is_wanted_undone(id));
            if is_taken {
                request.pipeline.withdraw(id, devices, &mut self.waiting);
                let of = request.of;
                self.requests[id as usize] = None;
                self.leave_compares(&of);
            }
            self.target.recall_answered(id, is_taken, now_ns);
        }
        any
    }

    /// An I/O of some front end ended: there is a slot for a request that waits for one.
    pub fn slot_freed(&mut self) {
        if !canary::has(Bug::LostHostWakeUp) {
            self.waiting.slot_freed();
        }
    }

    fn submit_waiting(&mut self, devices: &mut Devices, now_ns: u64) -> bool {
        let Some(mut round) = self.waiting.begin_round() else {
            return false;
        };
        let mut any = false;
        while let Some(id) = self.waiting.pop(&mut round) {
            self.request(id).pipeline.unqueued();
            self.pump(devices, id, now_ns);
            any |= !self.waiting.is_back(&mut round, id);
        }
        any
    }

    /// A request begins when no change that it overlaps is in the way.
    fn begin(&mut self, devices: &mut Devices, of: DeviceRequest, now_ns: u64) {
        if self.target.is_recalled(of.id) {
            return self.target.recall_answered(of.id, true, now_ns);
        }
        let at = of.id as usize;
        if at >= self.requests.len() {
            self.requests.resize_with(at + 1, || None);
        }
        let op = match of.op {
            DeviceOp::Read => IoOp::Read,
            DeviceOp::Write { fua } => IoOp::Write {
                fua: fua && !canary::has(Bug::ForgottenFua),
            },
            DeviceOp::Flush => IoOp::Flush,
            DeviceOp::WriteZeroes { .. } => IoOp::WriteZeroes { deallocate: false },
            DeviceOp::Deallocate => IoOp::Deallocate,
            DeviceOp::Compare => IoOp::Read,
        };
        let range = Range::new(of.offset, of.length);
        let mut pipeline = Pipeline::default();
        pipeline.begin(of.device.0, op, range);
        let owner = self.cookie(of.id);
        let begins = match of.op {
            DeviceOp::Compare => {
                let is_there = self.namespaces.iter().any(|it| it.volume == of.device.0);
                if !is_there {
                    let gone = Status::INVALID_NAMESPACE.with_dnr();
                    return self.target.request_ended(of.id, Err(gone), now_ns);
                }
                pipeline.enter(Stage::Memory);
                self.compares.join(self.namespace_of(of.device.0), of.id);
                false
            }
            op => !op.is_change() || pipeline.admit(devices, owner, range),
        };
        let before = self.requests[at].replace(Request {
            of,
            begun_ns: now_ns,
            pipeline,
            compared: 0,
            verdict: None,
        });
        assert!(before.is_none(), "request {at} is under way");
        if begins {
            self.begun(devices, of.id, now_ns);
        }
    }

    /// No change that a request overlaps is in the way.
    pub fn begun(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        let Request { of, pipeline, .. } = self.request(id);
        let is_flush = of.op == DeviceOp::Flush;
        pipeline.start(devices, false);
        if is_flush && matches!(self.target.action(id), Action::WriteZeroes { .. }) {
            let losses = self.zeroed_from[id as usize];
            self.request(id).pipeline.continue_from(losses);
        }
        self.pump(devices, id, now_ns);
    }

    fn cookie(&self, id: u32) -> u64 {
        self.front_end << 32 | u64::from(id)
    }

    fn request(&mut self, id: u32) -> &mut Request {
        let request = self.requests[id as usize].as_mut();
        let Some(request) = request else {
            unreachable!("request {id} is not under way");
        };
        request
    }

    fn presence(&self, volume: u16) -> Presence {
        let mut all = self.namespaces.iter();
        let of = all.find(|it| it.volume == volume);
        of.map_or(Presence::Gone, |it| it.presence)
    }

    /// How a request ends that must not begin, or go on.
    fn verdict(&self, of: &DeviceRequest, now_ns: u64) -> Option<Result<(), Status>> {
        let is_served = match self.presence(of.device.0) {
            // A mirror that begins anew is not what the command was for.
            Presence::Active { .. } => self.target.is_current(of.id),
            // It came before the removal, and for this device.
            Presence::Leaving { incarnation } => self.target.is_of(of.id, incarnation),
            Presence::Awaited | Presence::Gone => false,
        };
        if !is_served && self.target.is_for_all(of.id) {
            // A Flush of all namespaces is one of those that are active (Base 2.0, 7.1).
            return Some(Ok(()));
        }
        if !is_served {
            return Some(Err(Status::INVALID_NAMESPACE.with_dnr()));
        }
        let is_hint = match of.op {
            DeviceOp::Flush => canary::has(Bug::FlushOfIdleHost) && self.is_idle(of.id),
            DeviceOp::WriteZeroes { .. } => canary::has(Bug::IgnoredZeroes),
            _ => false,
        };
        if is_hint {
            return Some(Ok(()));
        }
        // Its host may have sent it elsewhere by now, and something newer (T9).
        let is_late = of.op.is_change() && self.target.start_before_ns(of.id) <= now_ns;
        is_late.then_some(Err(Status::SQ_DELETION))
    }

    /// Whether the connection of a request has no other under way.
    fn is_idle(&self, id: u32) -> bool {
        let all = self.requests.iter().flatten();
        let mut others = all.filter(|it| it.of.id != id);
        !others.any(|it| self.target.asker(it.of.id).0 == self.target.asker(id).0)
    }

    /// Asks for as many of a request's I/Os as may be, and ends it when all have ended.
    fn pump(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        loop {
            let Request { of, pipeline, .. } = self.request(id);
            let (of, has_left) = (*of, pipeline.has_left());
            // One of which all has ended ends as that did.
            if has_left && let Some(verdict) = self.verdict(&of, now_ns) {
                let request = self.request(id);
                request.verdict.get_or_insert(verdict);
                request.pipeline.fail(Outcome::Stopped);
            }
            let (source, _) = self.target.asker(id);
            let asker = (source.into(), self.cookie(id));
            let is_compare = of.op == DeviceOp::Compare;
            let compared_with = is_compare.then(|| self.namespace_of(of.device.0));
            let Some(Request { pipeline, .. }) = self.requests[id as usize].as_mut() else {
                unreachable!("request {id} is not under way");
            };
            let (zeroes, compares) = (&self.zeroes, &self.compares);
            let next = |pipeline: &Pipeline| match compared_with {
                // Each piece is compared before the next is read into the same buffer.
                Some(_) if !pipeline.is_waiting() => None,
                Some(namespace) => {
                    pipeline.next_io(asker, zeroes, |_, len| compares.buffer(namespace, len))
                }
                None => pipeline.next_io(asker, zeroes, |position, len| Span {
                    at: of.span.at + position,
                    len,
                }),
            };
            let is_over = pipeline.pump(id, devices, &mut self.waiting, now_ns, next);
            if !is_over {
                return;
            }
            if !pipeline.begins_anew(devices) {
                return self.end(devices, id, now_ns);
            }
        }
    }

    /// An I/O ended.
    pub fn io_done(&mut self, devices: &mut Devices, done: &IoDone, now_ns: u64) {
        let id = done.cookie as u32;
        self.slot_freed();
        let request = self.request(id);
        request.pipeline.io_ended(done.outcome);
        if request.of.op == DeviceOp::Compare && !request.pipeline.has_failed() {
            request.pipeline.enter(Stage::Merge);
            return self.compares.read(id);
        }
        self.pump(devices, id, now_ns);
    }

    /// Index of the namespace that a device is.
    fn namespace_of(&self, volume: u16) -> usize {
        let found = self.namespaces.iter().position(|it| it.volume == volume);
        let Some(at) = found else {
            unreachable!("device {volume} is no namespace");
        };
        at
    }

    /// A request is over: if it was a Compare, another one may begin.
    fn leave_compares(&mut self, of: &DeviceRequest) {
        if of.op == DeviceOp::Compare {
            self.compares.leave(self.namespace_of(of.device.0), of.id);
        }
    }

    /// When it must be called, ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        let extents = self.questions.as_ref().and_then(Questions::due_ns);
        let ends = match self.life {
            Life::Leaving { until_ns } => Some(until_ns),
            _ => None,
        };
        let errors = self.errors.poll_timeout();
        let times = [self.target.poll_timeout(), extents, ends, errors];
        times.into_iter().flatten().min()
    }

    /// That time has come, perhaps.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.target.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        self.expire_extents(now_ns);
        self.errors.take_rest(&mut self.events, now_ns);
    }

    fn end(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        let Some(mut request) = self.requests[id as usize].take() else {
            unreachable!("request {id} is not under way");
        };
        self.leave_compares(&request.of);
        let volume = request.pipeline.device();
        let outcome = request.pipeline.end(id, devices, &mut self.waiting);
        if let DeviceOp::WriteZeroes { .. } = request.of.op {
            let at = id as usize;
            if at >= self.zeroed_from.len() {
                self.zeroed_from.resize(at + 1, 0);
            }
            self.zeroed_from[at] = request.pipeline.losses();
        }
        // That of zeroes tells of nothing but these.
        let is_asked = self.target.action(id) == Action::Flush;
        let is_loss =
            is_asked && (self.is_untold(devices, id, volume) || request.pipeline.has_lost(devices));
        let result = request.verdict.unwrap_or_else(|| match outcome {
            // Repeated, as hosts do after a status of a path, it would find nothing unflushed and
            // hide the loss (T13).
            _ if is_loss => Err(Status::WRITE_FAULT.with_dnr()),
            None => Ok(()),
            Some(outcome) => Err(self.status(id, volume, outcome)),
        });
        if request.of.op == DeviceOp::Flush && result.is_err() {
            let is_heard = is_asked && self.target.asker(id).1;
            devices.flush_failed_for(volume, is_heard);
            if is_heard && let Some(host) = self.target.host_of(id) {
                let at = self.namespace_of(volume);
                self.namespaces[at].losses.told(&host);
            }
        }
        if let Err(status) = result {
            self.tell_error(devices, &request, status, outcome, now_ns);
        }
        self.target.request_ended(id, result, now_ns);
    }

    /// Describes an error that a host is answered with; of many, few.
    #[cold]
    fn tell_error(
        &mut self,
        devices: &Devices,
        request: &Request,
        status: Status,
        outcome: Option<Outcome>,
        now_ns: u64,
    ) {
        let of = &request.of;
        let volume = of.device.0;
        let events = &mut self.events;
        if !self.errors.is_described(events, volume, now_ns) {
            return;
        }
        let cookie = self.cookie(of.id);
        let host = self.target.host_of(of.id);
        let host = host.map(|it| format!("host {:032x}", u128::from_be_bytes(it)));
        self.events
            .push_back(ExportEvent::Error(Box::new(ClientError {
                volume,
                client: host.unwrap_or_else(|| "a host that is gone".into()).into(),
                op: match of.op {
                    DeviceOp::Read => "read",
                    DeviceOp::Write { .. } => "write",
                    DeviceOp::Flush => "flush",
                    DeviceOp::WriteZeroes { .. } => "write zeroes",
                    DeviceOp::Deallocate => "deallocate",
                    DeviceOp::Compare => "compare",
                },
                offset: of.offset,
                length: of.length,
                error: status.to_string().into(),
                outcome,
                path: devices.host().failure_of(volume, cookie, request.begun_ns),
            })));
    }

    /// Whether the host of a flush has yet to be told of a loss.
    fn is_untold(&mut self, devices: &Devices, id: u32, volume: u16) -> bool {
        let at = self.namespace_of(volume);
        let it = &mut self.namespaces[at];
        let losses = devices.flush_losses(volume);
        it.losses.observe(losses, || self.target.users_of(it.nsid));
        let host = self.target.host_of(id);
        host.is_some_and(|host| it.losses.is_untold(&host))
    }

    /// A leg has memory of a request beyond the end of its I/O.
    pub fn lent(&mut self, id: u32) {
        self.target.lend(id);
    }

    /// One loan of a request's memory has ended.
    pub fn came_back(&mut self, id: u32, now_ns: u64) {
        self.target.loan_ended(id, now_ns);
    }

    /// The status of what reached no path (type 3h): another controller's may.
    fn without_path(&self, volume: u16) -> Status {
        match self.presence(volume) {
            Presence::Active { is_usable: false } => Status::ANA_INACCESSIBLE,
            _ => Status::INTERNAL_PATH,
        }
    }

    /// As [`status_of`].
    fn status(&self, id: u32, volume: u16, outcome: Outcome) -> Status {
        let is_read = matches!(self.target.action(id), Action::Read | Action::Compare);
        status_of(outcome, is_read, self.without_path(volume))
    }
}

/// How a command ends of which an I/O failed so (Base 2.0, 3.3.3.2.1; NVM command set, 3.2).
/// `without_path`: where it reached no path.
pub(crate) fn status_of(outcome: Outcome, is_read: bool, without_path: Status) -> Status {
    match outcome {
        Outcome::Done => unreachable!("it did not fail"),
        Outcome::PathError | Outcome::TimedOut | Outcome::Stopped => without_path,
        Outcome::MediaError | Outcome::CutShort if is_read => Status::UNRECOVERED_READ,
        Outcome::MediaError | Outcome::CutShort => Status::WRITE_FAULT,
        Outcome::Erased => Status::SANITIZE_FAILED.with_dnr(),
        Outcome::Busy { .. } => Status::INTERNAL_ERROR,
        Outcome::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        Outcome::ReadOnly => Status::WRITE_PROTECTED.with_dnr(),
        Outcome::Denied => Status::ACCESS_DENIED.with_dnr(),
        Outcome::Mismatch => Status::COMPARE_FAILURE.with_dnr(),
        Outcome::Reservation => Status::RESERVATION_CONFLICT.with_dnr(),
        Outcome::Unsupported => Status::INVALID_OPCODE.with_dnr(),
        Outcome::Invalid => Status::INVALID_FIELD.with_dnr(),
        Outcome::PastEnd => Status::LBA_RANGE.with_dnr(),
    }
}
