//! Volumes offered to NBD clients: the host's engine of one core with sessions on top.
//!
//! Decides, from what the reactor hands in, which client may connect to what, which bytes of the
//! arena its payload lies in, which I/Os its requests become, and how they are answered.
//! `impl Machine for ExportEngine`, whose `turn` includes that of the [`MirrorEngine`] inside.
//!
//! * `clients`: connections and their sessions; `table`: their requests, and their memory
//! * `course`: a request becomes I/Os, these become an answer; `memory`: who gets memory, and when
//! * `extents`: which parts are holes
//! * `places`: what is kept of each request; `stall`: clients that keep others from memory
//!
//! # Contract
//! All clients of a volume are on one core (the program sees to that): a flush on one connection
//! covers all, and byte-granular writes are kept in order by that core alone. An export is a number
//! of the program's; connections are accepted on the listener of that number, or adopted.
//!
//! When a volume is removed its offers are withdrawn and its clients end: its number may be
//! another's next, and none of them reaches that one.
//!
//! A client that connects before its volume is ready waits without a greeting until it is. Where
//! that won't start before a user does something about it ([`HostEvent::Refused`]), the client is
//! greeted, and told why there is no export. One that
//! asked for the block sizes is held to them; for any other, a change that covers blocks partly
//! becomes read, merge and write, in order with the changes it overlaps. A trim shrinks to the
//! blocks that it covers whole.
//!
//! Changes that overlap are executed one after the other, in the order in which all of each was
//! here, from one connection or several ([`ChangeOrder`]). A change of a client that is gone keeps
//! its place until its I/Os have ended, so it undoes nothing that comes later (T9); if none of them
//! was begun it is dropped, unless the client said DISC. From the last answer on all connections
//! read the same (T46).
//!
//! A request that finds no memory, or no free slot in the engine, waits (T6); nothing fails for it.
//!
//! # Limits
//! As configured: clients, requests of one client, arena. Who comes when all places are taken is
//! turned away at once, and those who are there stay. What is kept of requests is made with the
//! first of a client: one that is idle has a session, and little else. A client that stops in
//! the middle of a
//! request or takes no answers keeps that memory until it goes on or is given up, after 30 to 60 s,
//! or after 30 s where others wait for memory, its own wait for memory included (`stall`);
//! what other clients need meanwhile, `memory` sees to. Requests above 1 MiB take the
//! memory of their list of buffers the first time they come. Cache is answered and does
//! nothing.
mod clients;
mod course;
mod debts;
mod extents;
mod memory;
mod places;
mod stall;
mod table;

pub use course::errno;

use crate::host::{HostControl, HostEngine, HostEvent, VolumeInfo};
use crate::limits::{CHANGES_READY, CLIENT_LINES_MAX, EXPORTS_MAX};
use crate::machine::{
    Closed, ConnId, DeviceError, DeviceExtent, DeviceId, Machine, Memory, Output, Place, Send,
};
use crate::mirror::{LegReport, MirrorEngine, MirrorOrder, MirrorReport};
use crate::seldom::Seldom;
use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use clients::{Client, State};
use core::cmp::Reverse;
use course::Course;
use extents::Questions;
use memory::Pool;
use nvme::Deadlines;
use stall::Stalls;
use table::{Table, Work};
use volume::order::ChangeOrder;

/// What an engine with exports is made of, beside the host's engine.
#[derive(Clone, Copy, Debug)]
pub struct ExportConfig {
    /// Most clients, 1…[`CLIENTS_MAX`](crate::limits::CLIENTS_MAX).
    pub clients_max: u16,
    /// Most requests in flight of one client, 1…1024.
    pub requests_max: u16,
    /// Bytes of the arena, at least 64 MiB: a request may have 32 MiB.
    pub arena_bytes: u64,
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
    /// Offer something under a number below [`EXPORTS_MAX`].
    Offer(u32, Offer),
    /// Offer it no more; its clients are told so, finish what is in flight within so many ns, and
    /// are disconnected.
    Withdraw(u32, u64),
    /// Offer what is offered under a number as something else: clients that are there are treated
    /// as by [`Self::Withdraw`], but the number is not free, and nobody says that it is.
    Renew(u32, Offer, u64),
    /// Of a volume that core 0 has said [`HostEvent::Refused`] of, to the core of its clients.
    Refused(u16, Option<String>),
    /// Who the next connection adopted for this export is of.
    Source(u32, Reader),
    /// As [`Self::Withdraw`] of all exports; new clients are refused. I/O that has not ended by
    /// then fails, and clients have [`DRAIN_ANSWER_NS`] more to hear of it.
    ///
    /// [`DRAIN_ANSWER_NS`]: crate::limits::DRAIN_ANSWER_NS
    Drain(u64),
    /// Drain, then stop the host's engine, which says `Output::Stop`.
    Stop(u64),
}

/// What an engine with exports tells its owner.
#[derive(Clone, Debug)]
pub enum ExportEvent {
    /// Of the host's engine; never the end of an I/O.
    Host(HostEvent),
    /// An export was withdrawn, and none of its clients is left: its number may be another's. Said
    /// once for each [`ExportControl::Withdraw`], so that it means no other.
    Vacated(u32),
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

/// Who a client is.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// Identity (row B1).
    pub source: u64,
    /// Name in lines about it: its address or process.
    pub name: Box<str>,
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

/// The engine of one core, with exports. See the module's contract.
pub struct ExportEngine {
    host: MirrorEngine,
    config: ExportConfig,
    offers: Vec<Option<Offer>>,
    counters: Vec<ExportCounters>,
    /// Volumes that are ready.
    ready: Vec<Option<VolumeInfo>>,
    /// Those that won't be before somebody does something about it, and why.
    refused: Vec<(u16, String)>,
    /// Identities of readers whose connections are to come, by export in order.
    sources: VecDeque<(u32, Reader)>,
    clients: Vec<Client>,
    /// Places that are free, the lowest on top.
    free: BinaryHeap<Reverse<u16>>,
    turned_away: Seldom,
    ended: Seldom,
    /// Clients whose sessions were called since the last turn.
    touched: Vec<u16>,
    table: Table,
    course: Course,
    /// Changes under way, of all clients.
    order: ChangeOrder,
    pool: Pool,
    questions: Questions,
    stalls: Stalls,
    outputs: VecDeque<Output>,
    events: VecDeque<ExportEvent>,
    draining: bool,
    stopping: bool,
    /// Of the clients' sessions.
    deadlines: Deadlines,
    /// Something was left for the next turn.
    again: bool,
}

impl ExportEngine {
    /// An engine without exports around a host's engine of so many volumes, or one with mirrors
    /// over them.
    ///
    /// # Panics
    /// If the configuration is out of its limits; configurations are checked before.
    pub fn new(host: impl Into<MirrorEngine>, volumes: usize, config: ExportConfig) -> Self {
        let clients = 1..=crate::limits::CLIENTS_MAX;
        assert!(
            clients.contains(&config.clients_max)
                && (1..=nbd::limits::REQUESTS_MAX).contains(&config.requests_max)
                && config.arena_bytes >= crate::limits::EXPORT_ARENA_MIN,
            "{config:?}"
        );
        let tickets = usize::from(config.clients_max) * usize::from(config.requests_max);
        Self {
            host: host.into(),
            offers: (0..EXPORTS_MAX).map(|_| None).collect(),
            counters: alloc::vec![ExportCounters::default(); EXPORTS_MAX as usize],
            ready: alloc::vec![None; volumes],
            refused: Vec::new(),
            sources: VecDeque::new(),
            clients: (0..config.clients_max).map(|_| Client::default()).collect(),
            free: (0..config.clients_max).map(Reverse).collect(),
            turned_away: Seldom::new(1),
            ended: Seldom::new(CLIENT_LINES_MAX),
            touched: Vec::with_capacity(config.clients_max.into()),
            table: Table::new(config.clients_max, config.requests_max, Work::new),
            course: Course::new(tickets),
            order: ChangeOrder::new(tickets.min(CHANGES_READY)),
            pool: Pool::new(config.arena_bytes, config.clients_max),
            questions: Questions::new(),
            stalls: Stalls::new(config.clients_max),
            outputs: VecDeque::with_capacity(4 * usize::from(config.clients_max)),
            events: VecDeque::new(),
            draining: false,
            stopping: false,
            deadlines: Deadlines::new(config.clients_max.into()),
            again: false,
            config,
        }
    }

    /// What happened since.
    pub fn poll_event(&mut self) -> Option<ExportEvent> {
        self.events.pop_front()
    }

    /// Bytes of the arena.
    pub fn buffers(&self) -> u64 {
        self.config.arena_bytes
    }

    /// Of these, in no request; perhaps not in one piece.
    pub fn buffers_free(&self) -> u64 {
        self.pool.free_bytes()
    }

    /// The host's engine, for its counters.
    pub fn host(&self) -> &HostEngine {
        self.host.host()
    }

    /// How a mirror is doing; `None`: there is none of this number on this core.
    pub fn mirror(&self, volume: u16) -> Option<MirrorReport> {
        self.host.mirror(volume)
    }

    /// As [`MirrorEngine::mirror_legs`].
    pub fn mirror_legs(&self, volume: u16) -> Option<Vec<LegReport>> {
        self.host.mirror_legs(volume)
    }

    /// As [`MirrorEngine::mirror_memory`].
    pub fn mirror_memory(&self, volume: u16) -> Option<(u64, bool)> {
        self.host.mirror_memory(volume)
    }

    /// The host's engine, for [`HostEngine::set_elsewhere`].
    pub fn host_mut(&mut self) -> &mut HostEngine {
        self.host.host_mut()
    }

    /// Counters of an export; zero for one that was never there.
    pub fn counters(&self, export: u32) -> ExportCounters {
        self.counters
            .get(export as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The client behind a connection.
    #[inline]
    fn client_of(&self, conn: ConnId) -> Option<u16> {
        let first = self.host.connections_max();
        conn.0.checked_sub(first).map(|client| client as u16)
    }

    fn conn_of(&self, client: u16) -> ConnId {
        ConnId(self.host.connections_max() + u32::from(client))
    }

    fn drain_clients(&mut self, drain_ns: u64, now_ns: u64) {
        self.draining = true;
        let host = HostControl::Drain(drain_ns);
        self.host.handle_control(host, now_ns);
        let drain_ns = drain_ns.saturating_add(crate::limits::DRAIN_ANSWER_NS);
        self.shut(None, drain_ns, now_ns);
    }

    fn offer(&mut self, export: u32, offer: Offer) {
        if let Some(place) = self.offers.get_mut(export as usize) {
            *place = Some(offer);
        }
    }

    /// Takes the host's events; whether there were any.
    fn drain_host(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.host.poll_event() {
            any = true;
            match event {
                HostEvent::Done(done) => self.io_done(&done),
                HostEvent::Lent(cookie, loan) => self.lent(cookie as u32, loan),
                HostEvent::Back(loan) => self.came_back(loan),
                HostEvent::Resized(volume, info) => {
                    // For those who connect from now on; the protocol can't tell the others.
                    if let Some(ready) = self.ready.get_mut(usize::from(volume)) {
                        *ready = Some(info);
                    }
                    self.events.push_back(ExportEvent::Host(event));
                }
                HostEvent::Ready(volume, info) => {
                    let at = usize::from(volume);
                    if at >= self.ready.len() {
                        self.ready.resize(at + 1, None);
                    }
                    self.ready[at] = Some(info);
                    self.refused(volume, None);
                    self.greet(volume);
                    self.events.push_back(ExportEvent::Host(event));
                }
                HostEvent::Removed(volume) => {
                    self.forget_volume(volume);
                    self.events.push_back(ExportEvent::Host(event));
                }
                HostEvent::Refused(volume, ref why) => {
                    self.refused(volume, why.clone());
                    self.events.push_back(ExportEvent::Host(event));
                }
                event => self.events.push_back(ExportEvent::Host(event)),
            }
        }
        any
    }

    /// Everything that was made possible by what happened, until nothing more is.
    fn advance(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.course.now_ns = now_ns;
        loop {
            let mut any = self.host.settle(memory, now_ns);
            any |= self.drain_host();
            any |= self.drain_sessions(now_ns);
            any |= self.merge(memory);
            any |= self.serve_waiting();
            any |= self.submit_waiting();
            if !any {
                break;
            }
        }
        let gone = |client: &Client| client.is_free() || client.is_gone();
        if self.stopping && self.clients.iter().all(gone) {
            self.stopping = false;
            self.host.handle_control(HostControl::Stop, now_ns);
            self.again = true;
        }
    }
}

impl Machine for ExportEngine {
    type Control = ExportControl;

    fn connections_max(&self) -> u32 {
        self.host.connections_max() + u32::from(self.config.clients_max)
    }

    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.accept(listener, now_ns)
    }

    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.host.handle_connected(conn, now_ns);
    }

    #[inline]
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        match self.client_of(conn) {
            Some(client) => self.client_bytes(client, bytes, now_ns),
            None => self.host.handle_bytes(conn, bytes, now_ns),
        }
    }

    #[inline]
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        match self.client_of(conn) {
            Some(client) => self.client_placement(client),
            None => self.host.placement(conn),
        }
    }

    #[inline]
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        match self.client_of(conn) {
            Some(client) => self.client_payload(client, len, now_ns),
            None => self.host.handle_payload(conn, len, crc, now_ns),
        }
    }

    #[inline]
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        match self.client_of(conn) {
            Some(client) => self.client_transmit(client, out),
            None => self.host.poll_transmit(conn, out, now_ns),
        }
    }

    #[inline]
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        match self.client_of(conn) {
            Some(client) => self.client_sent(client, cookie),
            None => self.host.handle_sent(conn, cookie, now_ns),
        }
    }

    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        match self.client_of(conn) {
            Some(client) => self.client_closed(client),
            None => self.host.handle_closed(conn, why, now_ns),
        }
    }

    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.host.handle_device(id, result, now_ns);
    }

    fn start_before_ns(&self, id: u32) -> u64 {
        self.host.start_before_ns(id)
    }

    fn handle_cut(&mut self, device: DeviceId, end: u64, now_ns: u64) {
        self.host.handle_cut(device, end, now_ns);
    }

    fn handle_extent(&mut self, id: u32, extent: DeviceExtent, _now_ns: u64) {
        self.extent_found(id, extent);
    }

    fn handle_control(&mut self, message: ExportControl, now_ns: u64) {
        match message {
            ExportControl::Host(message) => self.host.handle_control(message, now_ns),
            ExportControl::Mirror(volume, order) => self.host.order(volume, order, now_ns),
            ExportControl::Offer(export, offer) => self.offer(export, offer),
            ExportControl::Withdraw(export, drain_ns) => {
                if let Some(place) = self.offers.get_mut(export as usize) {
                    *place = None;
                    self.note_vacated(export);
                }
                self.shut(Some(export), drain_ns, now_ns);
            }
            ExportControl::Renew(export, offer, drain_ns) => {
                self.offer(export, offer);
                self.shut(Some(export), drain_ns, now_ns);
            }
            ExportControl::Refused(volume, why) => {
                // One that is ready here was told of before it was.
                let is_ready = |it: &Option<VolumeInfo>| it.is_some();
                if !self.ready.get(usize::from(volume)).is_some_and(is_ready) {
                    self.refused(volume, why);
                }
            }
            ExportControl::Source(export, source) => self.sources.push_back((export, source)),
            ExportControl::Drain(drain_ns) => {
                self.drain_clients(drain_ns, now_ns);
            }
            ExportControl::Stop(drain_ns) => {
                self.stopping = true;
                self.drain_clients(drain_ns, now_ns);
            }
        }
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.again = false;
        self.host.turn(memory, now_ns);
        self.advance(memory, now_ns);
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        output.or_else(|| self.host.poll_output())
    }

    #[inline]
    fn poll_timeout(&self) -> Option<u64> {
        if self.again || !self.touched.is_empty() {
            return Some(0);
        }
        let session = Some(self.deadlines.earliest_ns()).filter(|at_ns| *at_ns != u64::MAX);
        let times = [
            self.host.poll_timeout(),
            session,
            self.stalls.poll_timeout(),
            self.questions.poll_timeout(),
        ];
        times.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.host.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.host.handle_timeout(now_ns);
        }
        self.look_for_stalls(now_ns);
        self.expire_questions(now_ns);
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
