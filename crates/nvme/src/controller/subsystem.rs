//! The subsystem machine: all connections, controllers and their shared state.
//!
//! Makes all decisions of a target, from the bytes of hosts, the completions of the driver's
//! storage and the time. The same ports serve the I/O subsystem and discovery.
//!
//! # Contract
//! * Every call may make events, `poll_transmit` and `handle_sent` too: the driver polls
//!   `poll_event` until `None` before it sleeps.
//! * The driver polls `poll_transmit` of every connection named in a `Transmit` until `None`, at
//!   its own pace: it may stop while enough is queued with the kernel. A command that waits holds a
//!   slot, no data.
//! * Tokens name commands per connection and are below the queue's entries.
//! * A buffer belongs to the machine's command from `buffer_ready` (or the read's execution) until
//!   `Release`. While a connection lives, `Release` follows the last `handle_sent`; the other
//!   buffers are released in `handle_closed`.
//! * Calls for a connection that isn't open are ignored where a late event may cause them
//!   (`buffer_ready`, `poll_transmit`) and panic elsewhere.
//!
//! # Limits
//! Connections as configured, one controller for each at most, `entries` commands per queue; 64 KiB
//! of ranges of the Dataset Managements under way on a connection, allocated when they arrive, kept
//! by the driver until the command's end; 10 s from TCP connection to the end of Connect; two
//! minutes without use (see [`crate::limits`]).
use super::allocation::Questions;
use super::association::{Controller, Notice};
use super::commands::Work;
use super::config::{ConfigError, GroupAna, Shared, check_blocks, check_namespace};
use super::connection::{Connection, Events, Phase, Purpose, Sent, State, Step, Terms};
use super::io::ranges_of;
use super::{
    CloseReason, ConnId, ConnectionStatus, ControllerEvent, ControllerStatus, DiscoveryChange,
    NamespaceConfig, PortConfig, PortOffer, SubsystemConfig,
};
use crate::host::AnaState;
use crate::limits::{DEPARTED_MAX, NAMESPACES_MAX, PORTS_MAX};
use crate::wire::Status;
use crate::{Deadlines, Placement, Transmit};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// No room for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no room for another connection")
    }
}

impl core::error::Error for Full {}

/// A subsystem and all its connections.
pub struct Subsystem {
    pub(super) shared: Shared,
    /// By connection id.
    pub(super) connections: Vec<Option<Box<Connection>>>,
    pub(super) controllers: Vec<Option<Box<Controller>>>,
    pub(super) events: Events,
    /// Of controllers, then of connections.
    pub(super) deadlines: Deadlines,
    /// No controller is idle for long enough to make room before this time, ns.
    pub(super) room_from_ns: u64,
    /// Entries of all queues.
    pub(super) entries: usize,
    pub(super) cntlid_next: u16,
    /// Buffer for admin data to be sent.
    pub(super) scratch: Vec<u8>,
    pub(super) questions: Questions,
    /// Hosts that had used a namespace, by its NSID, and whose association ended without a
    /// shutdown: they may come back with writes that they believe to be there.
    departed: BTreeSet<(u32, [u8; 16])>,
}

impl Subsystem {
    /// A subsystem without connections.
    ///
    /// # Errors
    /// Names the invalid field, and its valid values.
    pub fn new(config: SubsystemConfig) -> Result<Self, ConfigError> {
        let shared = Shared::new(config)?;
        let connections = shared.config.connections_max as usize;
        Ok(Self {
            connections: core::iter::repeat_with(|| None).take(connections).collect(),
            controllers: Vec::new(),
            events: Events::default(),
            deadlines: Deadlines::new(2 * connections),
            room_from_ns: 0,
            entries: 0,
            cntlid_next: shared.config.cntlid_min,
            scratch: Vec::new(),
            questions: Questions::default(),
            departed: BTreeSet::new(),
            shared,
        })
    }

    /// Asks hosts to align data in their PDUs to `bytes`: (CPDA + 1) · 4. For connections opened
    /// later.
    ///
    /// # Errors
    /// Unless a multiple of 4, 4 to 128.
    pub fn set_data_alignment(&mut self, bytes: u32) -> Result<(), ConfigError> {
        if !(4..=128).contains(&bytes) || !bytes.is_multiple_of(4) {
            return Err(ConfigError {
                field: "cpda",
                why: "must be a multiple of 4, 4 to 128",
            });
        }
        self.shared.alignment = bytes;
        Ok(())
    }

    /// A host connected to `port` (index).
    ///
    /// # Errors
    /// Too many connections, or this one is still in use: its last commands are not released.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn open(&mut self, conn: ConnId, port: u16, now_ns: u64) -> Result<(), Full> {
        assert!(
            usize::from(port) < self.shared.config.ports.len(),
            "no port {port}"
        );
        let terms = Terms {
            in_capsule_max: self.shared.config.in_capsule_max,
            maxh2cdata: self.shared.config.maxh2cdata,
            alignment: self.shared.alignment,
            c2h_success: self.shared.config.c2h_success,
        };
        match self.connections.get_mut(conn.0 as usize) {
            Some(place @ None) => {
                let connection = Box::new(Connection::new(conn, port, terms, now_ns));
                self.entries += usize::from(connection.entries);
                *place = Some(connection);
            }
            _ => return Err(Full),
        }
        self.rearm(conn.0 as usize);
        Ok(())
    }

    /// Takes bytes from the host. Returns how many: fewer than offered where payload begins
    /// ([`Self::placement`]), a buffer is awaited, or all slots are in use (`Resume` follows).
    ///
    /// # Panics
    /// If the connection isn't open.
    pub fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        let at = conn.0 as usize;
        let mut used = 0;
        loop {
            let mut work = self.work(at);
            // Commands of an I/O queue concern nothing but their own connection and controller.
            let step = loop {
                let (taken, step) = work.connection.receive(&bytes[used..]);
                used += taken;
                if step != Step::Capsule || !work.io_capsule() {
                    break step;
                }
            };
            match step {
                Step::Wait => {
                    work.connection.kick_own(work.events);
                    return used;
                }
                Step::Capsule => self.command(at, now_ns),
                Step::Complete(slot) => self.data_complete(at, slot, now_ns),
                Step::Failed => self.fail(at, now_ns),
                Step::Terminated => self.end(at, CloseReason::Terminated, now_ns),
            }
        }
    }

    /// Returns where the next bytes belong, if they are payload.
    pub fn placement(&self, conn: ConnId) -> Option<Placement> {
        self.connections.get(conn.0 as usize)?.as_ref()?.placement()
    }

    /// `len` bytes of payload are in place; `crc` continues `Placement::crc`.
    ///
    /// # Panics
    /// If more is reported than was placed.
    pub fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, _now_ns: u64) {
        let at = conn.0 as usize;
        let mut work = self.work(at);
        if let Some(slot) = work.connection.payload(len, crc) {
            let is_taken = work.data_complete(slot);
            assert!(is_taken, "the data of a Connect is no payload");
        }
    }

    /// The buffer of `NeedBuffer` is ready; data may be received.
    pub fn buffer_ready(&mut self, conn: ConnId, token: u32, _now_ns: u64) {
        if let Some(Some(connection)) = self.connections.get_mut(conn.0 as usize) {
            connection.buffer_ready(token as u16, &mut self.events);
        }
    }

    /// Takes the ranges (block, count) of a command that is [`Action::Deallocate`](super::Action);
    /// once: they are empty afterwards.
    ///
    /// # Panics
    /// If the driver has no such command.
    pub fn take_ranges(&mut self, conn: ConnId, token: u32) -> Box<[(u64, u64)]> {
        let command = &mut self.work(conn.0 as usize).connection.slots[token as u16];
        assert!(
            command.state == State::Backend && command.purpose == Purpose::Deallocate,
            "take_ranges: the driver has no such command"
        );
        let own = core::mem::take(&mut command.own);
        let ranges = ranges_of(command.blocks, &own);
        ranges.map(|of| (of.slba, of.blocks.into())).collect()
    }

    /// Makes a read that is with the driver return only the first half of its data: an injected
    /// fault (T16).
    pub fn shorten(&mut self, conn: ConnId, token: u32) {
        let connection = self.connections.get_mut(conn.0 as usize);
        let connection = connection.and_then(Option::as_deref_mut);
        let command = connection.and_then(|of| of.slots.get_mut(token as u16));
        if let Some(command) = command.filter(|of| of.state == State::Backend) {
            command.len /= 2;
        }
    }

    /// The driver has executed a command; a read's data is in its buffer.
    ///
    /// # Panics
    /// If the command isn't the driver's.
    pub fn complete(&mut self, conn: ConnId, token: u32, status: Status, now_ns: u64) {
        self.executed(conn.0 as usize, token as u16, status, now_ns);
    }

    /// Appends PDUs to `out` until payload follows one, or data of an admin command was appended.
    /// `None`: nothing was appended and nothing is left; the next `Transmit` says when there is.
    pub fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        _now_ns: u64,
    ) -> Option<Transmit> {
        let at = conn.0 as usize;
        let before = out.len();
        let connection = self.connections.get_mut(at)?.as_deref_mut()?;
        match connection.transmit(out, &mut self.events) {
            Sent::Payload(payload) => {
                return Some(Transmit {
                    payload: Some(payload),
                });
            }
            Sent::Page(slot) => {
                self.work(at).send_page(slot, out);
                return Some(Transmit { payload: None });
            }
            Sent::Idle => {}
        }
        (out.len() > before).then_some(Transmit { payload: None })
    }

    /// The payload of one [`TxPayload`](crate::TxPayload) is no longer read.
    ///
    /// # Panics
    /// If none was handed out.
    pub fn handle_sent(&mut self, conn: ConnId, token: u32) {
        let at = conn.0 as usize;
        let Some(Some(connection)) = self.connections.get_mut(at) else {
            panic!("connection {at} isn't open");
        };
        connection.sent(token as u16, &mut self.events);
        if connection.phase == Phase::Gone {
            self.remove_if_over(at);
        }
    }

    /// The connection is gone. Commands still at the backend are completed by the driver as usual;
    /// each gets its Release. `conn` may be opened again once all of them are released.
    pub fn handle_closed(&mut self, conn: ConnId, now_ns: u64) {
        let at = conn.0 as usize;
        self.detach(at, CloseReason::AssociationLost, now_ns);
        self.questions.forget(at);
        let work = self.work(at);
        work.connection.gone(work.events);
        self.rearm(at);
        self.remove_if_over(at);
    }

    /// Whether [`Self::poll_event`] has one.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ControllerEvent> {
        self.events.pop()
    }

    /// Returns when [`Self::handle_timeout`] must be called at the latest, ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        Some(self.deadlines.earliest_ns()).filter(|at_ns| *at_ns != u64::MAX)
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.expire(now_ns);
    }

    /// Changes the ANA state of all groups seen through a port (index); hosts get the event.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn set_ana(&mut self, port: u16, state: AnaState, _now_ns: u64) {
        self.change_ana(port, .., state);
    }

    /// As [`Self::set_ana`], of one group; false: no namespace is in it.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn set_ana_group(&mut self, port: u16, group: u32, state: AnaState, _now_ns: u64) -> bool {
        let found = self.shared.group(group);
        if let Some(at) = found {
            self.change_ana(port, at..=at, state);
        }
        found.is_some()
    }

    fn change_ana<R>(&mut self, port: u16, groups: R, state: AnaState)
    where
        R: core::slice::SliceIndex<[GroupAna], Output = [GroupAna]>,
    {
        let ana = &mut self.shared.ana[usize::from(port)];
        let mut changed = false;
        for group in ana.groups[groups].iter_mut().filter(|of| of.state != state) {
            group.state = state;
            group.changes += 1;
            changed = true;
        }
        if !changed {
            return;
        }
        ana.changes += 1;
        self.notify(|controller| {
            if controller.port == port {
                controller.notify(Notice::Ana);
            }
        });
    }

    /// ANA state of a group seen through a port (index); `None`: no namespace is in it.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn ana(&self, port: u16, group: u32) -> Option<AnaState> {
        let at = self.shared.group(group)?;
        Some(self.shared.ana[usize::from(port)].groups[at].state)
    }

    /// Changes a namespace's size; hosts get the event.
    ///
    /// # Errors
    /// There is no such namespace, or the size is invalid for it.
    pub fn resize(&mut self, nsid: u32, blocks: u64, _now_ns: u64) -> Result<(), ConfigError> {
        let Some(namespace) = self.shared.namespace_mut(nsid) else {
            return Err(ConfigError {
                field: "nsid",
                why: "there is no such namespace",
            });
        };
        check_blocks(namespace.block_shift, blocks)?;
        if namespace.blocks != blocks {
            namespace.blocks = blocks;
            self.notify(|controller| controller.note_changed(nsid));
        }
        Ok(())
    }

    /// Makes an NSID inactive until [`Self::activate`]: no command reaches the namespace, which
    /// keeps its NSID and its ANA group. Commands that the driver has end as usual; those whose
    /// data is still to come, and lists of allocated blocks that are being made, are refused, also
    /// where the NSID is active again by then. Hosts get the event. Does nothing where the NSID is
    /// not active.
    pub fn deactivate(&mut self, nsid: u32) {
        let all = &mut self.shared.config.namespaces;
        if let Some(at) = all.iter().position(|it| it.nsid == nsid) {
            let namespace = all.remove(at);
            self.shared.inactive.push(namespace);
            for connection in self.connections.iter_mut().flatten() {
                connection.slots.outdate(nsid);
            }
            self.refuse_questions(nsid);
            self.departed.retain(|it| it.0 != nsid);
            self.notify(|controller| {
                controller.forget_known(nsid);
                controller.note_changed(nsid);
            });
        }
    }

    /// Tells hosts to make room for so many namespaces and ANA groups, with numbers up to that: a
    /// host sizes its buffers when it connects. Before the first connection.
    pub fn reserve_namespaces(&mut self, room: u32) {
        self.shared.room = room;
    }

    /// Adds a namespace, whose NSID is inactive until [`Self::activate`].
    ///
    /// # Errors
    /// Its NSID is another's, or it is invalid; then nothing has changed.
    pub fn add_namespace(&mut self, namespace: NamespaceConfig) -> Result<(), ConfigError> {
        check_namespace(&namespace)?;
        let shared = &mut self.shared;
        let all = shared.config.namespaces.iter().chain(&shared.inactive);
        let (count, mut all) = (all.clone().count(), all);
        if all.any(|it| it.nsid == namespace.nsid) {
            let (field, why) = ("nsid", "is there twice");
            return Err(ConfigError { field, why });
        }
        if count == NAMESPACES_MAX {
            let (field, why) = ("namespaces", "there may be at most 1024");
            return Err(ConfigError { field, why });
        }
        shared.namespaces_max = shared.namespaces_max.max(count as u32 + 1);
        shared.nsid_max = shared.nsid_max.max(namespace.nsid);
        shared.add_group(namespace.ana_group);
        shared.inactive.push(namespace);
        Ok(())
    }

    /// Removes a namespace, as [`Self::deactivate`] does, for good.
    pub fn remove_namespace(&mut self, nsid: u32) {
        self.deactivate(nsid);
        let mut inactive = self.shared.inactive.iter();
        if let Some(at) = inactive.position(|it| it.nsid == nsid) {
            let gone = self.shared.inactive.swap_remove(at);
            self.shared.leave_group(gone.ana_group);
        }
    }

    /// Makes a namespace write protected, or no longer; hosts get the event.
    pub fn protect(&mut self, nsid: u32, read_only: bool) {
        let shared = &mut self.shared;
        let all = shared.config.namespaces.iter_mut();
        if let Some(it) = all.chain(&mut shared.inactive).find(|it| it.nsid == nsid) {
            it.read_only = read_only;
            self.notify(|controller| controller.note_changed(nsid));
        }
    }

    /// Hosts that have identified or used a namespace since it is active: their host identifiers.
    pub fn hosts_of(&self, nsid: u32) -> BTreeSet<[u8; 16]> {
        let all = self.controllers.iter().flatten();
        let known = all.filter(|controller| controller.knows(nsid));
        known.map(|controller| controller.hostid).collect()
    }

    /// The same, with those whose association ended without a shutdown since.
    pub fn users_of(&self, nsid: u32) -> BTreeSet<[u8; 16]> {
        let departed = self.departed.iter().filter(|it| it.0 == nsid);
        let mut all = self.hosts_of(nsid);
        all.extend(departed.map(|it| it.1));
        all
    }

    /// A controller is over.
    pub(super) fn note_departed(&mut self, controller: &Controller) {
        let was_shut_down = controller.csts().shst() != 0;
        for nsid in controller.known() {
            let it = (nsid, controller.hostid);
            if was_shut_down {
                self.departed.remove(&it);
            } else if self.departed.len() < DEPARTED_MAX {
                self.departed.insert(it);
            }
        }
    }

    /// The host identifier of a connection's controller; `None`: it has none.
    pub fn host_of(&self, conn: ConnId) -> Option<[u8; 16]> {
        let connection = self.connections.get(conn.0 as usize)?.as_deref()?;
        Some(self.controllers[connection.controller?].as_deref()?.hostid)
    }

    /// Makes a port what it is to be, in place of one that was withdrawn or behind the last one;
    /// hosts of discovery get the event.
    ///
    /// # Errors
    /// It is of neither kind, or there are too many.
    pub fn set_port(&mut self, index: u16, port: PortConfig) -> Result<(), ConfigError> {
        let wrong = |why| {
            let field = "ports";
            Err(ConfigError { field, why })
        };
        let shared = &mut self.shared;
        let count = shared.config.ports.len();
        match shared.config.ports.get_mut(usize::from(index)) {
            _ if usize::from(index) >= PORTS_MAX => return wrong("there must be 1 to 64"),
            Some(there) if !shared.discovery.takes_hosts(index) => *there = port,
            None if usize::from(index) == count => {
                let Some(ana) = shared.ana.first().cloned() else {
                    unreachable!("a subsystem has a port");
                };
                shared.ana.push(ana);
                shared.config.ports.push(port);
                shared.discovery.add_port();
            }
            _ => return wrong("is there already, or not the next one"),
        }
        self.change_discovery(DiscoveryChange::Offer(index, PortOffer::Subsystem))
    }

    /// Makes an inactive NSID active, with this size; write protected, if it was configured so or
    /// is now. Hosts get the event.
    ///
    /// # Errors
    /// There is no such inactive NSID, or the size is invalid; then nothing has changed.
    pub fn activate(
        &mut self,
        nsid: u32,
        blocks: u64,
        block_shift: u8,
        read_only: bool,
    ) -> Result<(), ConfigError> {
        let mut inactive = self.shared.inactive.iter();
        let Some(at) = inactive.position(|it| it.nsid == nsid) else {
            return Err(ConfigError {
                field: "nsid",
                why: "there is no such inactive namespace",
            });
        };
        check_blocks(block_shift, blocks)?;
        let inactive = self.shared.inactive.swap_remove(at);
        let namespace = NamespaceConfig {
            blocks,
            block_shift,
            read_only: read_only || inactive.read_only,
            ..inactive
        };
        let all = &mut self.shared.config.namespaces;
        all.insert(all.partition_point(|it| it.nsid < nsid), namespace);
        self.notify(|controller| controller.note_changed(nsid));
        Ok(())
    }

    /// The present configuration: active namespaces in ascending order, with their present sizes.
    /// ANA states: see [`Self::ana`].
    pub fn config(&self) -> &SubsystemConfig {
        &self.shared.config
    }

    /// All connections that are not over.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionStatus> + '_ {
        let open = self
            .connections
            .iter()
            .flatten()
            .filter(|c| c.phase != Phase::Gone);
        open.map(|c| {
            let controller = c
                .controller
                .and_then(|index| self.controllers[index].as_ref());
            let entries = if controller.is_some() { c.entries } else { 0 };
            ConnectionStatus {
                conn: c.id,
                port: c.port,
                cntlid: controller.map(|controller| controller.cntlid),
                qid: c.qid,
                entries,
                outstanding: c.outstanding,
            }
        })
    }

    /// Whether commands of a connection are received and answered: no more once its queue is
    /// deleted, or its association over, though the connection is not closed yet.
    pub fn is_live(&self, conn: ConnId) -> bool {
        let connection = self.connections.get(conn.0 as usize);
        connection.is_some_and(|it| it.as_deref().is_some_and(Connection::is_live))
    }

    /// When keep-alive of a connection's controller expires unless its host sends something, ns;
    /// `None`: no such timer runs.
    pub fn keep_alive_expires_ns(&self, conn: ConnId) -> Option<u64> {
        let connection = self.connections.get(conn.0 as usize)?.as_deref()?;
        let controller = self.controllers[connection.controller?].as_deref()?;
        controller.keeps_alive().then_some(controller.deadline_ns)
    }

    /// All controllers.
    pub fn controllers(&self) -> impl Iterator<Item = ControllerStatus<'_>> + '_ {
        self.controllers.iter().flatten().map(|c| ControllerStatus {
            cntlid: c.cntlid,
            hostnqn: &c.hostnqn,
            hostid: c.hostid,
            port: c.port,
            discovery: c.discovery,
            ready: c.csts().rdy(),
            io_queues: c.io_queues(),
            kato_ms: c.kato_ms,
        })
    }

    /// A connection with everything that its commands need.
    ///
    /// # Panics
    /// If it isn't open.
    #[inline]
    pub(super) fn work(&mut self, at: usize) -> Work<'_> {
        let Some(Some(connection)) = self.connections.get_mut(at) else {
            panic!("connection {at} isn't open");
        };
        let controller = connection.controller.map(|index| {
            let Some(controller) = self.controllers[index].as_deref_mut() else {
                unreachable!("connection {at} names a controller that has ended");
            };
            controller
        });
        Work {
            shared: &self.shared,
            controller,
            connection,
            events: &mut self.events,
            scratch: &mut self.scratch,
        }
    }

    /// A controller by its index.
    ///
    /// # Panics
    /// If it has ended.
    pub(super) fn controller(&self, index: usize) -> &Controller {
        let Some(controller) = self.controllers[index].as_deref() else {
            panic!("controller {index} has ended");
        };
        controller
    }

    /// Applies a change to every I/O controller and posts the events that follow.
    fn notify(&mut self, change: impl Fn(&mut Controller)) {
        for index in 0..self.controllers.len() {
            if let Some(controller) = self.controllers[index].as_deref_mut()
                && !controller.discovery
            {
                change(controller);
                self.post_events(index);
            }
        }
    }
}
