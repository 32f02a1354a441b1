//! The NBD server, a front end of [`Core`](crate::Core): offers block devices to clients.
//!
//! Decides, from what the reactor hands in, which client may connect to what, which bytes of the
//! arena its payload lies in, which I/Os its requests become, and how they are answered. It submits
//! I/O to the [`Devices`] that its caller hands in, and keeps no reference to them.
//!
//! * `clients`: connections and their sessions; `table`: their requests, and their memory
//! * `arrivals`: what a new client waits for before it is greeted
//! * `course`: a request becomes I/Os, these become an answer; `memory`: who gets memory, and when
//! * `extents`: which parts are holes
//! * `places`: what is kept of each request; `stall`: clients that keep others from memory
//!
//! # Contract
//! An export is a number of the program's; connections are accepted on the listener of that number,
//! or adopted. One of a multipath volume may be offered on every core: a flush on any connection
//! covers what any core has acknowledged, which the volume sees to, and changes that overlap are
//! executed one after the other, on whichever cores they come (`cross_core`). Each core speaks for
//! its own clients.
//!
//! When a volume is removed its offers are withdrawn and its clients end: its number may be
//! another's next, and none of them reaches that one.
//!
//! A client that connects waits without a greeting until the ends of connections that it may have
//! lost were read on all cores (`arrivals`), and until its volume is ready. Where
//! that won't start before a user does something about it ([`HostEvent::Refused`]), the client is
//! greeted, and told why there is no export. One that
//! asked for the block sizes is held to them; for any other, a change that covers blocks partly
//! becomes read, merge and write, in order with the changes it overlaps. A trim shrinks to the
//! blocks that it covers whole.
//!
//! Changes that overlap are executed one after the other, in the order in which all of each was
//! here, from one connection or several, of this front end or another
//! ([`ChangeOrder`](block::order::ChangeOrder), which the devices keep). A change of a client that
//! is gone keeps its place until its I/Os have ended, so it undoes nothing that comes later (T9);
//! if none of them was begun it is dropped, unless the client said DISC. From the last answer on
//! all connections read the same (T46).
//!
//! A request that finds no memory, or no free slot in the engine, waits (T6); nothing fails for it.
//!
//! # Limits
//! As configured: clients, requests of one client, arena. A client that comes when all places are
//! taken is turned away at once, and those that are there stay. Memory of requests is made with the
//! first of a client: one that is idle has a session, and little else. A client that stops in the
//! middle of a
//! request or takes no answers keeps that memory until it goes on or is given up, after 30 to 60 s,
//! or after 30 s where others wait for memory, its own wait for memory included (`stall`);
//! what other clients need meanwhile, `memory` sees to. Requests above 1 MiB take the
//! memory of their list of buffers the first time they come. Cache is answered and does
//! nothing.
mod arrivals;
mod clients;
mod course;
mod debts;
mod extents;
mod memory;
mod places;
mod stall;
mod table;

pub use course::errno;
pub(crate) use extents::both;

use crate::client_errors::{ClientError, ClientErrors};
use crate::core::earlier;
use crate::cross_core::CoreMessage;
use crate::host::{HostControl, HostEvent, VolumeInfo};
use crate::limits::{CLIENT_LINES_MAX, EXPORTS_MAX};
use crate::machine::{ConnId, Memory, Output};
use crate::mirror::{Devices, MirrorOrder};
use crate::nvme_server::NvmeControl;
use crate::seldom::Seldom;
use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use arrivals::Arrivals;
use clients::{Client, State};
use core::cmp::Reverse;
use course::Course;
use extents::Questions;
use memory::Pool;
use nvme::Deadlines;
use stall::Stalls;
use table::{Table, Work};

/// Configuration of an engine with exports, beside the host's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Most clients, 1…[`CLIENTS_MAX`](crate::limits::CLIENTS_MAX).
    pub clients_max: u16,
    /// Most requests in flight of one client, 1…1024.
    pub requests_max: u16,
    /// Bytes of the arena, at least 64 MiB: a request may have 32 MiB.
    pub arena_bytes: u64,
}

impl ExportConfig {
    /// No clients, and no arena for them.
    pub const NONE: Self = Self {
        clients_max: 0,
        requests_max: 0,
        arena_bytes: 0,
    };
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Volume index.
    pub volume: u16,
    /// Name; clients that name none get it too.
    pub name: String,
    /// Changes are refused, whatever the volume could.
    pub read_only: bool,
}

/// Messages to an engine with exports.
#[derive(Clone, Debug)]
pub enum ExportControl {
    /// For the host's engine.
    Host(HostControl),
    /// For a mirror.
    Mirror(u16, MirrorOrder),
    /// Of another core, in the order in which that has sent its messages.
    OfCore(CoreMessage),
    /// Offer something under a number below [`EXPORTS_MAX`].
    Offer(u32, Offer),
    /// Offer it no more; its clients are told so, finish what is in flight within so many ns, and
    /// are disconnected.
    Withdraw(u32, u64),
    /// Offer what is offered under a number as something else: clients that are there are treated
    /// as by [`Self::Withdraw`], but the number is not free, and nobody says that it is.
    Renew(u32, Offer, u64),
    /// Treat clients of an export with these [numbers](Reader::number), in ascending order, as by
    /// [`Self::Withdraw`].
    Dismiss(u32, Arc<[u64]>, u64),
    /// Of a volume that core 0 has said [`HostEvent::Refused`] of, to the cores of its clients.
    Refused(u16, Option<String>),
    /// Export and client of the next connection that is adopted.
    Source(u32, Reader),
    /// For the NVMe/TCP server in this place.
    Nvme(u16, NvmeControl),
    /// As [`Self::Withdraw`] of all exports; new clients are refused. I/O that has not ended by
    /// then fails, and clients have [`DRAIN_ANSWER_NS`] more to hear of it.
    ///
    /// [`DRAIN_ANSWER_NS`]: crate::limits::DRAIN_ANSWER_NS
    Drain(u64),
    /// Drain, then stop the host's engine, which says `Output::Stop`.
    Stop(u64),
}

/// Events of an engine with exports for its owner.
#[derive(Clone, Debug)]
pub enum ExportEvent {
    /// Of the devices; the end of an I/O only of one that the program has submitted
    /// ([`Core::submit`](crate::Core::submit)).
    Host(HostEvent),
    /// For the core of this number, as [`ExportControl::OfCore`].
    ToCore(u16, CoreMessage),
    /// An export was withdrawn, and none of its clients is left: its number may be another's. Said
    /// once for each [`ExportControl::Withdraw`], so that it means no other.
    Vacated(u32),
    /// The NVMe/TCP server in this place was told to end, and has: its place may be another's.
    Ended(u16),
    /// A volume is no namespace of an NVMe/TCP export that it was to be: why.
    Unfit {
        /// Volume index.
        volume: u16,
        /// The namespace's NSID.
        nsid: u32,
        /// Reason why the volume cannot be served.
        why: nvme::controller::ConfigError,
    },
    /// A host over NVMe/TCP found no place, or a connection of it was ended for a reason worth a
    /// line; of many, few are spoken of.
    Port {
        /// Which; its port counts within its server.
        event: crate::target::Event,
        /// How many since this was said last, with this one.
        count: u32,
    },
    /// A client was answered with an error; of many, few are described.
    Error(Box<ClientError>),
    /// Of this volume so many clients' errors were not described in a period that is over.
    MoreErrors(u16, u32),
    /// A client's session was ended for a reason worth a line; of many, few are spoken of.
    Client {
        /// Of this export.
        export: u32,
        /// Its name, empty if nobody told.
        name: Box<str>,
        /// Why.
        why: nbd::server::CloseReason,
        /// How many ended so since this was said last, with this one.
        count: u32,
    },
    /// Clients came while all places were taken, and were turned away.
    TurnedAway {
        /// To this export the last one.
        export: u32,
        /// How many since this was said last.
        count: u32,
    },
}

/// Identity of a client.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// Identity (row B1).
    pub source: u64,
    /// Name in lines about it: its address or process.
    pub name: Box<str>,
    /// Number that no other client has, for [`ExportControl::Dismiss`].
    pub number: u64,
    /// Its changes are refused, whatever the export's offer says.
    pub read_only: bool,
}

/// Counts of one export on this core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounters {
    /// Connected now.
    pub clients: u32,
    /// Requests answered.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Requests that had to wait for memory.
    pub waited_buffer: u64,
    /// Changes that covered blocks partly.
    pub merged: u64,
}

/// The NBD server of one core. See the module's contract.
pub(crate) struct NbdServer {
    config: ExportConfig,
    /// Connection of client 0; those of the others follow.
    first_conn: u32,
    offers: Vec<Option<Offer>>,
    counters: Vec<ExportCounters>,
    /// Volumes that are ready.
    ready: Vec<Option<VolumeInfo>>,
    /// Those that won't be before somebody does something about it, and why.
    refused: Vec<(u16, String)>,
    /// Identities of readers whose connections are to come, by export in order.
    sources: VecDeque<(u32, Reader)>,
    clients: Vec<Client>,
    /// Of each, low bits of the [losses](Devices::flush_losses) that it was told of, or that were
    /// before it.
    losses: Vec<u16>,
    /// Places that are free, the lowest on top.
    free: BinaryHeap<Reverse<u16>>,
    arrivals: Arrivals,
    turned_away: Seldom,
    ended: Seldom,
    errors: ClientErrors,
    /// Clients whose sessions were called since the last turn.
    touched: Vec<u16>,
    table: Table,
    course: Course,
    pool: Pool,
    questions: Questions,
    stalls: Stalls,
    outputs: VecDeque<Output>,
    events: VecDeque<ExportEvent>,
    draining: bool,
    /// Of the clients' sessions.
    deadlines: Deadlines,
}

impl NbdServer {
    /// A server without exports, of so many volumes at first; client 0 has connection `first_conn`.
    ///
    /// # Panics
    /// If the configuration is out of its limits; configurations are checked before.
    pub fn new(first_conn: u32, volumes: usize, config: ExportConfig) -> Self {
        let clients = 1..=crate::limits::CLIENTS_MAX;
        assert!(
            config == ExportConfig::NONE
                || clients.contains(&config.clients_max)
                    && (1..=nbd::limits::REQUESTS_MAX).contains(&config.requests_max)
                    && config.arena_bytes >= crate::limits::EXPORT_ARENA_MIN,
            "{config:?}"
        );
        let tickets = usize::from(config.clients_max) * usize::from(config.requests_max);
        Self {
            first_conn,
            offers: (0..EXPORTS_MAX).map(|_| None).collect(),
            counters: alloc::vec![ExportCounters::default(); EXPORTS_MAX as usize],
            ready: alloc::vec![None; volumes],
            refused: Vec::new(),
            sources: VecDeque::new(),
            clients: (0..config.clients_max).map(|_| Client::default()).collect(),
            losses: vec![0; config.clients_max.into()],
            free: (0..config.clients_max).map(Reverse).collect(),
            arrivals: Arrivals::new(),
            turned_away: Seldom::new(1),
            ended: Seldom::new(CLIENT_LINES_MAX),
            errors: ClientErrors::default(),
            touched: Vec::with_capacity(config.clients_max.into()),
            table: Table::new(config.clients_max, config.requests_max, Work::new),
            course: Course::new(tickets),
            pool: Pool::new(config.arena_bytes, config.clients_max),
            questions: Questions::new(),
            stalls: Stalls::new(config.clients_max),
            outputs: VecDeque::with_capacity(4 * usize::from(config.clients_max)),
            events: VecDeque::new(),
            draining: false,
            deadlines: Deadlines::new(config.clients_max.into()),
            config,
        }
    }

    #[inline]
    pub fn poll_event(&mut self) -> Option<ExportEvent> {
        self.events.pop_front()
    }

    #[inline]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Bytes of the arena.
    pub fn buffers(&self) -> u64 {
        self.config.arena_bytes
    }

    /// Of these, in no request; perhaps not in one piece.
    pub fn buffers_free(&self) -> u64 {
        self.pool.free_bytes()
    }

    /// Most requests in flight.
    pub fn requests_max(&self) -> usize {
        usize::from(self.config.clients_max) * usize::from(self.config.requests_max)
    }

    /// Counters of an export; zero for one that was never there.
    pub fn counters(&self, export: u32) -> ExportCounters {
        self.counters
            .get(export as usize)
            .copied()
            .unwrap_or_default()
    }

    fn conn_of(&self, client: u16) -> ConnId {
        ConnId(self.first_conn + u32::from(client))
    }

    /// Whether all clients are gone.
    pub fn is_empty(&self) -> bool {
        let gone = |client: &Client| client.is_free() || client.is_gone();
        self.clients.iter().all(gone)
    }

    /// Refuses new clients, and ends those that are there.
    pub fn drain(&mut self, drain_ns: u64, now_ns: u64) {
        self.draining = true;
        let drain_ns = drain_ns.saturating_add(crate::limits::DRAIN_ANSWER_NS);
        self.shut(None, drain_ns, now_ns);
    }

    pub fn offer(&mut self, export: u32, offer: Offer) {
        if let Some(place) = self.offers.get_mut(export as usize) {
            *place = Some(offer);
        }
    }

    pub fn withdraw(&mut self, export: u32, drain_ns: u64, now_ns: u64) {
        if let Some(place) = self.offers.get_mut(export as usize) {
            *place = None;
            self.note_vacated(export);
        }
        self.shut(Some(export), drain_ns, now_ns);
    }

    pub fn renew(&mut self, export: u32, offer: Offer, drain_ns: u64, now_ns: u64) {
        self.offer(export, offer);
        self.shut(Some(export), drain_ns, now_ns);
    }

    /// Clients of an export with these numbers are told that it is over.
    pub fn dismiss(&mut self, export: u32, numbers: &[u64], drain_ns: u64, now_ns: u64) {
        for client in 0..self.config.clients_max {
            let it = &self.clients[usize::from(client)];
            let is_meant = numbers.binary_search(&it.reader.number).is_ok();
            if it.export == export && !it.is_free() && is_meant {
                self.shut_one(client, drain_ns, now_ns);
            }
        }
    }

    pub fn expect_source(&mut self, export: u32, source: Reader) {
        // One that is still here is of a connection that the reactor turned away.
        self.sources.retain(|(of, _)| *of != export);
        self.sources.push_back((export, source));
    }

    /// Description of a volume that is ready.
    pub fn info(&self, volume: u16) -> Option<VolumeInfo> {
        *self.ready.get(usize::from(volume))?
    }

    /// A volume has this size from now on, for clients that connect from now on: the protocol can't
    /// tell the others.
    pub fn resized(&mut self, volume: u16, info: VolumeInfo) {
        if let Some(ready) = self.ready.get_mut(usize::from(volume)) {
            *ready = Some(info);
        }
    }

    /// A volume is ready: clients that wait for it are greeted.
    pub fn ready(&mut self, devices: &Devices, volume: u16, info: VolumeInfo) {
        let at = usize::from(volume);
        if at >= self.ready.len() {
            self.ready.resize(at + 1, None);
        }
        self.ready[at] = Some(info);
        self.refused(devices, volume, None);
        self.greet(devices, volume);
    }

    /// The time of the turn that begins.
    pub fn set_now(&mut self, now_ns: u64) {
        self.course.now_ns = now_ns;
    }

    /// Does what has become possible, but for requests that wait for other changes or for slots;
    /// whether that was anything.
    pub fn advance(&mut self, devices: &mut Devices, memory: &mut dyn Memory, now_ns: u64) -> bool {
        self.pool.zeroes.fill(memory);
        let mut any = !self.touched.is_empty() && self.drain_sessions(devices, now_ns);
        any |= self.merge(devices, memory);
        any |= self.serve_waiting(devices);
        any |= self.answer_arrivals(devices);
        any
    }

    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        if !self.touched.is_empty() {
            return Some(0);
        }
        let session = Some(self.deadlines.earliest_ns()).filter(|at_ns| *at_ns != u64::MAX);
        let questions = self.questions.poll_timeout();
        let arrivals = earlier(self.arrivals.poll_timeout(), self.errors.poll_timeout());
        let others = earlier(self.stalls.poll_timeout(), arrivals);
        earlier(session, earlier(others, questions))
    }

    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.errors.take_rest(&mut self.events, now_ns);
        self.look_for_stalls(now_ns);
        self.expire_questions(now_ns);
        self.expire_ends(now_ns);
        while let Some(client) = self.deadlines.due(now_ns) {
            // Set anew when its events are taken, in this turn.
            self.deadlines.set(client, u64::MAX);
            if let State::Session(session) = &mut self.clients[client].state {
                session.handle_timeout(now_ns);
                self.touch(client as u16);
            }
        }
    }
}
