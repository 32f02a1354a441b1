//! The loop of one core.
//!
//! # Contract
//! A turn: the clock is read once; completions, messages and timers become events of the machine;
//! then rounds of `turn`, outputs and transmissions until the machine is quiet; then everything
//! goes to the kernel with one system call, which also sleeps until the next event or timeout.
//! Polling watches memory instead, for ever or as long as that pays (`waits`): the kernel is
//! entered only when there is something to submit or to collect.
//!
//! Results that come without the kernel (memory devices, payload that was copied) are handed back
//! between rounds, never from inside a call of the machine.
use crate::admission::Admission;
use crate::connection::Connection;
use crate::device::{Devices, Opened, device_number};
use crate::limits::*;
use crate::listen::Listener;
use crate::mailbox::{Mail, Mailbox};
use crate::messages::Messages;
use crate::waits::Waits;
use crate::watchdog::{Pulse, watch};
use crate::workers::{Bytes, Finished};
use crate::{ReactorConfig, ReactorStats, RuntimeError};
use engine::Machine;
use engine::machine::{ConnId, Memory, Output, Span};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use sys::freeze::{self, Point};
use sys::{Arena, Completion, Extent, Fd, Ring, RingConfig, os};

/// One core's loop around a machine.
pub(crate) struct Reactor<M: Machine> {
    pub(crate) machine: M,
    pub(crate) ring: Ring,
    pub(crate) now_ns: u64,
    /// The machine was told something since its last `turn`: it isn't time to sleep.
    pub(crate) again: bool,
    pub(crate) connections: Box<[Connection]>,
    /// Connections that have something to transmit.
    pub(crate) dirty: Vec<ConnId>,
    /// In this turn a connection had more to transmit behind a message that is being sent.
    pub(crate) wants_send_end: bool,
    /// Connections that may have no receive in flight.
    pub(crate) unarmed: Vec<ConnId>,
    /// Connections with a deadline, in the course of an orderly close; the earliest first.
    pub(crate) closing: Vec<ConnId>,
    pub(crate) messages: Messages,
    pub(crate) admission: Admission,
    /// Next look at peers that take nothing; `u64::MAX`: nothing is sent.
    pub(crate) look_ns: u64,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) devices: Devices,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) stats: ReactorStats,
    pub(crate) arena_bytes: u64,
    mailbox: Mailbox<M::Control>,
    watched: Fd,
    /// Of the machine's peers ([`Sender::watch`](crate::Sender::watch)).
    peers: Option<Fd>,
    /// Empty; kept for its memory.
    finished: Vec<Finished>,
    pub(crate) mail: bool,
    pulse: Arc<Pulse>,
    pub(crate) stopping: bool,
    /// After a stop: until then devices are waited for.
    devices_until_ns: u64,
    pub(crate) waits: Waits,
    name: String,
}

/// Owner of an operation; travels through the kernel as 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Connect(ConnId),
    Receive(ConnId),
    Send(ConnId),
    Accept(u32),
    File(u32),
    /// Descriptor watched for a queue: the queue's number, and which one in the two low bits.
    Queue(u32),
    Mail,
    Command(u32),
    /// A peer of the machine that shares memory with it.
    Peer,
}

impl Tag {
    pub(crate) fn bits(self) -> u64 {
        let (kind, index) = match self {
            Self::Connect(conn) => (0, conn.0),
            Self::Receive(conn) => (1, conn.0),
            Self::Send(conn) => (2, conn.0),
            Self::Accept(listener) => (3, listener),
            Self::File(slot) => (4, slot),
            Self::Mail => (5, 0),
            Self::Command(slot) => (6, slot),
            Self::Queue(what) => (7, what),
            Self::Peer => (8, 0),
        };
        kind << 32 | u64::from(index)
    }

    fn from_bits(bits: u64) -> Self {
        let index = bits as u32;
        match bits >> 32 {
            0 => Self::Connect(ConnId(index)),
            1 => Self::Receive(ConnId(index)),
            2 => Self::Send(ConnId(index)),
            3 => Self::Accept(index),
            4 => Self::File(index),
            6 => Self::Command(index),
            7 => Self::Queue(index),
            8 => Self::Peer,
            5 => Self::Mail,
            _ => unreachable!("{bits:#x} is the tag of no operation"),
        }
    }
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    /// Sets everything up; all memory of the I/O path is allocated here.
    pub(crate) fn new(
        config: ReactorConfig,
        machine: M,
        mailbox: Mailbox<M::Control>,
    ) -> Result<Self, RuntimeError> {
        let count = machine.connections_max();
        if count > CONNECTIONS_MAX {
            return Err(RuntimeError::Limit {
                name: config.name,
                object: "connections",
                value: u64::from(count),
                limit: u64::from(CONNECTIONS_MAX),
            });
        }
        let devices = Devices::new(&config.devices, config.arena_bytes, mailbox.wake())?;
        let pulse = Pulse::new(&config.name, mailbox.wake());
        for (number, device) in config.devices.iter().enumerate() {
            pulse.name_device(number, crate::device::path_of(device));
        }
        let ring = ring(&config, count)?;
        let waits = Waits::new(config.polling, mailbox.tally());
        let listeners = config.listeners.into_iter();
        let listeners = listeners.map(|listener| Listener::new(listener, &config.name));
        let mut reactor = Self {
            ring,
            now_ns: os::now_ns(),
            again: false,
            connections: (0..count).map(|_| Connection::new()).collect(),
            dirty: Vec::with_capacity(count as usize),
            wants_send_end: false,
            // A closed connection may stand in it twice.
            unarmed: Vec::with_capacity(2 * count as usize),
            closing: Vec::with_capacity(count as usize),
            // A few connections send in one turn; should more, more are made.
            messages: Messages::new(count.min(MESSAGES), count),
            admission: Admission::new(config.per_peer_max),
            look_ns: u64::MAX,
            listeners: listeners.collect::<Result<_, _>>()?,
            devices,
            addresses: config.addresses,
            stats: ReactorStats::default(),
            arena_bytes: config.arena_bytes,
            watched: mailbox.watched(&config.name)?,
            peers: None,
            finished: Vec::with_capacity(FILE_OPERATIONS_MAX),
            mailbox,
            mail: false,
            pulse,
            stopping: false,
            devices_until_ns: u64::MAX,
            waits,
            name: config.name,
            machine,
        };
        reactor.watch_mail();
        (0..reactor.listeners.len()).for_each(|listener| reactor.accept(listener as u32));
        Ok(reactor)
    }

    /// Runs until the machine stops.
    pub(crate) fn run(mut self) -> Result<(M, ReactorStats), RuntimeError> {
        self.measure_wakeup()
            .map_err(|source| self.broken(source))?;
        let slept_before = sleeps();
        watch(&self.pulse);
        loop {
            self.turn();
            if self.stopping && self.is_drained() {
                break;
            }
            let waits_ns = os::now_ns();
            let waited = self.wait(waits_ns).map_err(|source| self.broken(source))?;
            self.look(waits_ns);
            self.note_wait(waited);
            self.reap();
            self.timers();
            self.note_arrival();
        }
        self.stats.enters = self.ring.enters();
        self.stats.wakeups = sleeps().saturating_sub(slept_before);
        Ok((self.machine, self.stats))
    }

    /// The kernel refused to go on.
    fn broken(&self, source: sys::Errno) -> RuntimeError {
        RuntimeError::Loop {
            name: self.name.clone(),
            source: source.into(),
        }
    }

    /// A new time, after a wait that began at `waits_ns`.
    fn look(&mut self, waits_ns: u64) {
        let now_ns = os::now_ns();
        let busy_ns = busy_ns(self.now_ns, waits_ns, now_ns);
        self.machine.handle_look(busy_ns, now_ns);
        self.now_ns = now_ns;
        if cfg!(feature = "freeze-points") && self.ring.has_completion() {
            freeze::point(Point::Turn);
        }
    }

    /// An extent of a span.
    ///
    /// # Panics
    /// The machine named memory that isn't its own.
    pub(crate) fn extent(&self, span: Span) -> Extent {
        extent(self.arena_bytes, span)
    }

    /// Everything that was completed becomes events.
    fn reap(&mut self) {
        while let Some(completion) = self.ring.next_completion() {
            self.dispatch(completion);
        }
        self.devices.reap_queues(&mut self.ring);
        self.waits.has_arrival |= self.devices.has_results();
        self.take_mail();
    }

    fn dispatch(&mut self, completion: Completion) {
        let tag = Tag::from_bits(completion.tag);
        self.waits.has_arrival |= !matches!(tag, Tag::Send(_));
        match tag {
            Tag::Connect(conn) => self.handle_connect(conn, completion.result),
            Tag::Receive(conn) => self.handle_receive(conn, completion),
            Tag::Send(conn) => self.handle_send(conn, completion),
            Tag::Accept(listener) => self.handle_accept(listener, completion),
            Tag::File(slot) => self.handle_file(slot, completion.result),
            Tag::Command(slot) => self.handle_command(slot, completion.result),
            Tag::Queue(what) => {
                let result = completion.result;
                self.devices.queue_woken(&mut self.ring, what, result);
            }
            // The machine looks for what there is in its turn.
            Tag::Peer => self.watch_peers(),
            Tag::Mail => {
                self.mailbox.lower();
                self.watch_mail();
                self.mail = true;
                self.take_finished();
            }
        }
    }

    /// Turns results of workers into events.
    fn take_finished(&mut self) {
        let mut finished = mem::take(&mut self.finished);
        self.devices.inbox.take(&mut finished);
        for Finished { tag, result, bytes } in finished.drain(..) {
            if let Bytes::Lease(lease) = bytes {
                self.ring.end_lease(lease);
            }
            if !self.devices.is_answer(tag, result) {
                self.handle_file(tag as u32, result);
            }
        }
        self.finished = finished;
    }

    fn watch_mail(&mut self) {
        self.ring.poll_readable(&self.watched, Tag::Mail.bits());
    }

    fn watch_peers(&mut self) {
        if let Some(peers) = &self.peers {
            self.ring.poll_readable(peers, Tag::Peer.bits());
        }
    }

    fn take_mail(&mut self) {
        if !self.mail {
            return;
        }
        for _ in 0..MAILBOX_MAX {
            match self.mailbox.take() {
                Some(Mail::Control(message)) => self.machine.handle_control(message, self.now_ns),
                Some(Mail::Adopt(listener, socket, kept)) => self.adopt(listener, socket, kept),
                Some(Mail::Address(number, address)) => {
                    let at = number as usize;
                    if at >= self.addresses.len() {
                        // The numbers between are set before they are used.
                        self.addresses.resize(at + 1, address);
                    }
                    self.addresses[at] = address;
                }
                Some(Mail::Device(device, opened)) => {
                    let opened = opened.map(|it| *it);
                    let path = opened.as_ref().and_then(Opened::path);
                    self.pulse.name_device(device_number(device), path);
                    self.devices.set(&mut self.ring, device, opened);
                }
                Some(Mail::Watch(peers)) => {
                    let before = self.peers.replace(Fd::new(peers));
                    assert!(before.is_none(), "another descriptor is watched");
                    self.watch_peers();
                }
                None => {
                    self.mail = false;
                    return;
                }
            }
        }
    }

    fn timers(&mut self) {
        if self
            .machine
            .poll_timeout()
            .is_some_and(|at| at <= self.now_ns)
        {
            self.waits.has_arrival = true;
            self.machine.handle_timeout(self.now_ns);
        }
        self.expire_closing();
        self.expire_sending();
        self.expire_pauses();
        if self.devices.sizes_at_ns <= self.now_ns {
            self.devices.look_at_sizes(self.now_ns);
        }
    }

    /// Rounds of the machine until it is quiet.
    fn turn(&mut self) {
        self.stats.turns += 1;
        self.pulse.beat(self.stats.turns, self.devices.under_way());
        for _ in 0..ROUNDS_MAX {
            self.again = false;
            self.deliver_device_results();
            let mut memory = Lent {
                ring: &mut self.ring,
                bytes: self.arena_bytes,
            };
            self.machine.turn(&mut memory, self.now_ns);
            self.outputs();
            self.transmit_dirty();
            self.devices.turn_queues(&mut self.ring);
            self.again |= self.devices.has_results();
            if !self.again {
                break;
            }
        }
        self.arm_receives();
    }

    fn outputs(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Open { conn, address } => self.open(conn, address),
                Output::Transmit(conn) => self.mark_dirty(conn),
                Output::Close { conn, abort } => self.close(conn, abort),
                Output::Resume(conn) => self.resume(conn),
                Output::CheckEnd(conn) => {
                    let has_ended = self.has_ended(conn);
                    self.machine.handle_end_check(conn, has_ended, self.now_ns);
                    self.again = true;
                }
                Output::Device(request) => {
                    let span = extent(self.arena_bytes, request.span);
                    let before_ns = match request.op.is_change() {
                        true => self.machine.start_before_ns(request.id),
                        false => u64::MAX,
                    };
                    let (device, now) = (device_number(request.device), (self.now_ns, before_ns));
                    self.waits.handle_sent();
                    let is_read = !request.op.is_change();
                    let lends = is_read && self.machine.may_lend(request.id);
                    self.devices
                        .begin(&mut self.ring, device, &request, span, now, lends);
                    self.pulse.submits(device, self.devices.under_way());
                }
                Output::Extent(request) => self.devices.ask_extent(&request, self.now_ns),
                Output::LetGo { device, id } => {
                    self.devices
                        .let_go(&mut self.ring, device_number(device), id);
                }
                Output::Stop => self.stop(),
            }
        }
    }

    /// The machine is finished: no more connections, an orderly end of those there are.
    fn stop(&mut self) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.devices_until_ns = self.now_ns.saturating_add(DEVICES_WAIT_NS);
        self.close_listeners();
        for index in 0..self.connections.len() {
            self.close(ConnId(index as u32), false);
        }
    }

    /// After a stop: nothing is left that the machine would have to hear of. Devices have had their
    /// time then: the ring outlives what one of them still does.
    fn is_drained(&self) -> bool {
        let mut connections = self.connections.iter();
        let devices = self.devices.is_idle() || self.devices_until_ns <= self.now_ns;
        !self.again && devices && connections.all(Connection::is_free)
    }

    /// A turn by hand.
    #[cfg(test)]
    pub(crate) fn step(&mut self) {
        self.turn();
        let most = sys::Wait::AtMost(std::time::Duration::from_millis(1));
        let _ = self.ring.enter(most);
        self.reap();
    }

    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let machine = self.machine.poll_timeout();
        let closing = self.closing.first();
        let closing = closing.map(|conn| self.connection(*conn).deadline_ns);
        let look = Some(self.look_ns).filter(|at_ns| *at_ns != u64::MAX);
        let pauses = self
            .listeners
            .iter()
            .filter_map(|listener| listener.resume_ns)
            .min();
        let devices = Some(self.devices_until_ns).filter(|_| self.stopping);
        let sizes = Some(self.devices.sizes_at_ns).filter(|at_ns| *at_ns != u64::MAX);
        let all = [machine, closing, look, pauses, devices, sizes];
        all.into_iter().flatten().min()
    }

    pub(crate) fn connection(&self, conn: ConnId) -> &Connection {
        &self.connections[conn.0 as usize]
    }

    pub(crate) fn connection_mut(&mut self, conn: ConnId) -> &mut Connection {
        &mut self.connections[conn.0 as usize]
    }
}

/// The arena, lent to the machine for its turn.
struct Lent<'a> {
    ring: &'a mut Ring,
    bytes: u64,
}

impl Memory for Lent<'_> {
    fn bytes(&self, span: Span) -> &[u8] {
        self.ring.arena().bytes(extent(self.bytes, span))
    }

    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        self.ring.bytes_mut(extent(self.bytes, span))
    }
}

/// Behind the machine's part of the arena lies scratch memory of the devices.
pub(crate) fn extent(arena_bytes: u64, span: Span) -> Extent {
    let end = span.at.checked_add(u64::from(span.len));
    assert!(
        end.is_some_and(|end| end <= arena_bytes),
        "{span:?} is outside the arena"
    );
    Extent::new(span.at, span.len)
}

fn ring(config: &ReactorConfig, connections: u32) -> Result<Ring, RuntimeError> {
    let lent = (connections.next_power_of_two() as u16)
        .clamp(RECEIVE_BUFFERS_LENT_MIN, RECEIVE_BUFFERS_LENT_MAX);
    let ring = RingConfig {
        // A connection sends and receives; a listener accepts; files; the mailbox; peers.
        operations_max: 2 * connections
            + config.listeners.len() as u32
            + FILE_OPERATIONS_MAX as u32
            + 3 * QUEUE_DEVICES_MAX as u32
            + 2,
        // Each blocked connection may keep one.
        buffers: connections as u16 + lent,
        buffers_lent: lent,
        buffer_bytes: RECEIVE_BUFFER_BYTES,
    };
    let bytes = config
        .arena_bytes
        .saturating_add(crate::device::SCRATCH_BYTES);
    let arena = Arena::new(bytes).map_err(|error| RuntimeError::Memory {
        object: "an arena",
        bytes,
        source: error.source.into(),
    })?;
    Ring::new(&ring, arena).map_err(|error| RuntimeError::ring(&config.name, error))
}

/// How long the loop was busy, ns, at `now_ns`, after a look at `last_ns` and a wait from
/// `waits_ns` on. The cause that ends a sleep is seen at once.
fn busy_ns(last_ns: u64, waits_ns: u64, now_ns: u64) -> u64 {
    if now_ns.saturating_sub(waits_ns) > SLEEP_NS {
        return 0;
    }
    now_ns.saturating_sub(last_ns)
}

/// How often this thread gave its CPU away to wait, as the system counts it. 0 where /proc isn't
/// there.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, FileDevice, Polling};
    use engine::machine::{Closed, DeviceError, DeviceOp, DeviceRequest, LocalDevice, Place, Send};

    /// A machine that does nothing.
    struct Still;

    impl Machine for Still {
        type Control = ();
        fn connections_max(&self) -> u32 {
            1
        }
        fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
            None
        }
        fn handle_connected(&mut self, _: ConnId, _: u64) {}
        fn handle_bytes(&mut self, _: ConnId, bytes: &[u8], _: u64) -> usize {
            bytes.len()
        }
        fn placement(&mut self, _: ConnId) -> Option<Place> {
            None
        }
        fn handle_payload(&mut self, _: ConnId, _: u32, _: u32, _: u64) {}
        fn poll_transmit(&mut self, _: ConnId, _: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
            None
        }
        fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {}
        fn handle_closed(&mut self, _: ConnId, _: Closed, _: u64) {}
        fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
        fn handle_control(&mut self, (): (), _: u64) {}
        fn turn(&mut self, _: &mut dyn Memory, _: u64) {}
        fn poll_output(&mut self) -> Option<Output> {
            None
        }
        fn poll_timeout(&self) -> Option<u64> {
            None
        }
        fn handle_timeout(&mut self, _: u64) {}
    }

    #[test]
    fn a_device_that_never_answers_does_not_keep_a_stopped_reactor() {
        let path = std::env::temp_dir().join(format!("braid-stuck-{}", std::process::id()));
        let file = FileDevice::open(path.clone(), false, Some(4096)).unwrap();
        std::fs::remove_file(path).unwrap();
        let config = ReactorConfig {
            name: "stuck".into(),
            cpu: None,
            polling: Polling::Never,
            arena_bytes: 4096,
            per_peer_max: None,
            addresses: Vec::new(),
            listeners: Vec::new(),
            devices: vec![Device::File(Arc::new(file))],
        };
        let (_sender, mailbox) = Mailbox::new("stuck").unwrap();
        let mut reactor = Reactor::new(config, Still, mailbox).unwrap();
        let request = DeviceRequest {
            id: 0,
            device: LocalDevice(0),
            op: DeviceOp::Read,
            offset: 0,
            length: 4096,
            span: Span { at: 0, len: 4096 },
        };
        // The kernel isn't entered: it doesn't even hear of the request.
        let extent = reactor.extent(request.span);
        reactor
            .devices
            .begin(&mut reactor.ring, 0, &request, extent, (0, u64::MAX), false);
        reactor.stop();
        assert!(!reactor.is_drained(), "a device has its time");
        let end_ns = reactor.now_ns + DEVICES_WAIT_NS;
        assert_eq!(reactor.next_timeout(), Some(end_ns));
        reactor.now_ns = end_ns;
        assert!(reactor.is_drained());
    }

    #[test]
    fn a_busy_loop_says_how_late_it_looks_and_a_sleeper_is_not_late() {
        let look_ns = 1_000_000_000;
        assert_eq!(
            busy_ns(look_ns, look_ns + 700_000, look_ns + 701_000),
            701_000
        );
        assert_eq!(busy_ns(look_ns, look_ns + 700_000, look_ns + 900_000), 0);
        // Clocks of two calls may be the same, and never go back.
        assert_eq!(busy_ns(look_ns, look_ns, look_ns), 0);
    }

    #[test]
    fn tags_survive_the_kernel() {
        for tag in [
            Tag::Connect(ConnId(0)),
            Tag::Receive(ConnId(7)),
            Tag::Send(ConnId(u32::MAX)),
            Tag::Accept(3),
            Tag::File(9),
            Tag::Queue(7),
            Tag::Mail,
            Tag::Peer,
        ] {
            assert_eq!(Tag::from_bits(tag.bits()), tag);
        }
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn scratch_memory_is_not_the_machines() {
        extent(4096, Span { at: 4095, len: 2 });
    }
}
