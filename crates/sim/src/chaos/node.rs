//! The process at one place of the world: a machine, its memory, its connections, its disks.
use super::late::Late;
use super::prelude::*;
use super::stranger::Stranger;
use super::wire_recorder::Tap;
use engine::DeviceOp;
use engine::discovery::DiscoveryEngine;
use engine::machine::{Place, Send};
use engine::target::TargetEngine;

/// A machine of any kind.
#[derive(Default)]
pub enum Body {
    /// One core of a host.
    Core(Box<Core>),
    /// A process of the target's subsystem.
    Target(Box<TargetEngine>),
    /// Applications.
    Client(Box<Client>),
    /// A host's reactor of discovery.
    Seeker(Box<DiscoveryEngine>),
    /// A client that only takes resources that others need.
    Stranger(Box<Stranger>),
    /// A process that has died.
    #[default]
    Dead,
}

/// Calls the machine, whatever it is; a dead one answers `$dead`.
macro_rules! call {
    ($body:expr, $it:ident => $call:expr, $dead:expr) => {
        match $body {
            Body::Core($it) => $call,
            Body::Target($it) => $call,
            Body::Client($it) => $call,
            Body::Stranger($it) => $call,
            Body::Seeker($it) => $call,
            Body::Dead => $dead,
        }
    };
}

impl Body {
    pub fn connections_max(&self) -> u32 {
        call!(self, it => it.connections_max(), u32::MAX)
    }
    pub fn accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        call!(self, it => it.handle_accepted(listener, now_ns), None)
    }
    pub fn connected(&mut self, conn: ConnId, now_ns: u64) {
        call!(self, it => it.handle_connected(conn, now_ns), ());
    }
    pub fn bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        call!(self, it => it.handle_bytes(conn, bytes, now_ns), bytes.len())
    }
    pub fn placement(&mut self, conn: ConnId) -> Option<Place> {
        call!(self, it => it.placement(conn), None)
    }
    pub fn payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        call!(self, it => it.handle_payload(conn, len, crc, now_ns), ());
    }
    pub fn transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        call!(self, it => it.poll_transmit(conn, out, now_ns), None)
    }
    pub fn sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        call!(self, it => it.handle_sent(conn, cookie, now_ns), ());
    }
    pub fn closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        call!(self, it => it.handle_closed(conn, why, now_ns), ());
    }
    pub fn end_check(&mut self, conn: ConnId, has_ended: bool, now_ns: u64) {
        call!(self, it => it.handle_end_check(conn, has_ended, now_ns), ());
    }
    pub fn device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        call!(self, it => it.handle_device(id, result, now_ns), ());
    }
    /// Before when a change has to start, ns.
    pub fn start_before(&self, id: u32) -> u64 {
        call!(self, it => it.start_before_ns(id), u64::MAX)
    }
    pub fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        call!(self, it => it.turn(memory, now_ns), ());
    }
    pub fn output(&mut self) -> Option<Output> {
        call!(self, it => it.poll_output(), None)
    }
    pub fn timeout(&self) -> Option<u64> {
        call!(self, it => it.poll_timeout(), None)
    }
    pub fn timed_out(&mut self, now_ns: u64) {
        call!(self, it => it.handle_timeout(now_ns), ());
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Node.
    pub node: usize,
    /// Number of the connection there.
    pub conn: u32,
    /// Which use of that number.
    pub life: u64,
}

/// A process at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub node: usize,
    /// Which of those that were there.
    pub life: u64,
}

/// A connection, seen from one end.
#[derive(Default)]
pub struct Conn {
    pub life: u64,
    /// The other end; none while it is being opened.
    pub peer: Option<End>,
    /// The address that was opened; of accepted ones, by the other end.
    pub wire: Wire,
    /// Received and not yet taken.
    pub inbox: Inbox,
    pub blocked: bool,
    /// When the end of its peer arrives; it is handled once all before it was read.
    pub ends_ns: Option<u64>,
    /// It has arrived, and is not seen while the connection is blocked.
    pub unseen_end: Option<Closed>,
    pub closing: bool,
    /// When the last send is reported; a close waits for it.
    pub sent_ns: u64,
    /// When the last bytes reach the peer: later ones do not overtake them.
    pub arrive_ns: u64,
    /// Bytes that were sent and that the peer has not read.
    pub unread: u64,
    /// Sends that there was no room for, and that are reported once there is.
    pub untaken: Vec<(Send, Vec<u8>)>,
    /// Sends that are being reported. Its end comes after them, also where a process that stood
    /// still hears of the end first.
    pub sends: usize,
    /// The machine has more to send, once there is room.
    pub wants: bool,
    /// It closes in order once all is sent.
    pub leaving: bool,
    /// When more is read of what came; nothing before.
    pub again_ns: u64,
    /// Bytes under way to it never arrive.
    pub cut_off: bool,
    /// It was forgotten on the way: nothing arrives at either end, and neither was told.
    pub stale: bool,
    /// It ended without a word to the other end. It counts as gone from then on, also while who
    /// has it stands still and has not heard of that.
    pub forgotten: bool,
    /// The handshake of its ends was damaged, which has no digest.
    pub unsound: bool,
    /// Of the end that opened it: who listens to both directions.
    pub tap: Option<Box<Tap>>,
}

/// Bytes in order, put in at the end and taken off at the beginning.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// Bytes that were taken off.
    taken: usize,
}

impl Inbox {
    pub fn put(&mut self, bytes: Vec<u8>) {
        if self.is_empty() {
            (self.bytes, self.taken) = (bytes, 0);
        } else {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            self.bytes.extend_from_slice(&bytes);
        }
    }
    pub fn take(&mut self, len: usize) {
        self.taken += len;
    }
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }
    pub fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}

/// Which way bytes go: a host's or client's node, and where to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    pub from: usize,
    pub to: usize,
    /// Listener there.
    pub listener: u32,
}

impl Wire {
    /// The direction in which bytes go that reach this node.
    pub fn toward(self, node: usize) -> usize {
        usize::from(node == self.from)
    }
}

impl End {
    pub fn new(node: usize, conn: u32, life: u64) -> Self {
        Self { node, conn, life }
    }
}

impl Conn {
    /// Whether the end of its peer has arrived.
    pub fn has_ended(&self, now_ns: u64) -> bool {
        self.ends_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }

    pub fn new(life: u64, wire: Wire, peer: Option<End>) -> Self {
        Self {
            life,
            peer,
            wire,
            ..Self::default()
        }
    }
}

/// One place.
#[derive(Default)]
pub struct Node {
    pub body: Body,
    pub arena: Vec<u8>,
    /// Its machine's addresses: node and listener.
    pub addresses: Vec<(usize, u32)>,
    /// The world's disks that are its devices.
    pub disks: Vec<usize>,
    pub conns: Vec<Option<Conn>>,
    /// Processes so far: what was meant for an earlier one is lost.
    pub life: u64,
    /// Nothing happens to it before.
    pub frozen_ns: u64,
    /// Its device takes requests, and starts none that it is asked for by then.
    pub hung: Option<Hung>,
    /// Requests that it took so.
    pub were_hung: u64,
    /// It stands still from its next turn on that gives a change to a device.
    pub halt: Option<Halt>,
    /// It has stood still since then with that in its hands.
    pub in_hand: bool,
    /// It goes on for a moment when another one is in its place.
    pub outlives: bool,
    /// Later events that it missed because of that.
    pub missed: u64,
    /// It said that it has ended.
    pub stopped: bool,
    /// Something happened to it since its last turn.
    pub stirred: bool,
    /// When it wants to be called, as it said in its last turn.
    pub wake_ns: u64,
    /// Requests that its devices have not answered, and the bytes of memory of each.
    pub at_device: BTreeMap<u32, u64>,
    /// Executed requests of its devices, all processes together.
    pub executed: Executed,
    /// Messages of others that it has not had.
    pub mail: usize,
}

/// A standstill that comes while a change is on its way to a device.
#[derive(Clone, Copy, Debug)]
pub struct Halt {
    /// Until then it stands still.
    pub until_ns: u64,
    /// The change is in a thread of the process; else the turn has not submitted it yet.
    pub in_worker: bool,
}

impl Halt {
    /// Why the change starts late.
    pub fn why(self) -> Late {
        match self.in_worker {
            true => Late::Worker,
            false => Late::Turn,
        }
    }
}

/// A device that hangs.
#[derive(Clone, Copy, Debug)]
pub struct Hung {
    pub device: LocalDevice,
    pub until_ns: u64,
}

/// Requests that devices executed well: one that failed in part does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executed {
    /// Reads, writes, flushes.
    pub requests: [u64; 3],
    /// Bytes read, written.
    pub bytes: [u64; 2],
}

impl Node {
    pub fn new(body: Body, arena_bytes: usize) -> Self {
        Self {
            body,
            arena: vec![0; arena_bytes],
            stirred: true,
            wake_ns: u64::MAX,
            ..Self::default()
        }
    }

    /// Its machine, if it is a host's core.
    pub fn core(&self) -> Option<&Core> {
        match &self.body {
            Body::Core(engine) => Some(engine),
            _ => None,
        }
    }

    /// Its machine, if it is a process of the target.
    pub fn target(&self) -> Option<&TargetEngine> {
        match &self.body {
            Body::Target(engine) => Some(engine),
            _ => None,
        }
    }

    /// Takes what is wrong with what applications read, if it is such.
    pub fn take_wrong(&mut self) -> Option<String> {
        match &mut self.body {
            Body::Client(client) => client.wrong.take(),
            _ => None,
        }
    }

    /// Its machine, if it is applications.
    pub fn client(&self) -> Option<&Client> {
        match &self.body {
            Body::Client(client) => Some(client),
            _ => None,
        }
    }

    pub fn is_dead(&self) -> bool {
        matches!(self.body, Body::Dead)
    }

    /// The connection of this end of it, if it is still in this use.
    pub fn conn(&mut self, end: End) -> Option<&mut Conn> {
        find(&mut self.conns, end)
    }

    /// The connection of this number.
    pub fn any_conn(&mut self, number: u32) -> Option<&mut Conn> {
        self.conns.get_mut(number as usize)?.as_mut()
    }

    pub fn put(&mut self, number: u32, conn: Conn) {
        let at = number as usize;
        let most = self.body.connections_max();
        assert!(number < most, "connection {number} of {most}");
        if at >= self.conns.len() {
            self.conns.resize_with(at + 1, || None);
        }
        assert!(
            self.conns[at].is_none(),
            "a connection number is used twice"
        );
        self.conns[at] = Some(conn);
    }

    /// Numbers of connections that are there.
    pub fn open_conns(&self) -> impl Iterator<Item = (u32, &Conn)> {
        let all = (0_u32..).zip(&self.conns);
        all.filter_map(|(number, conn)| Some((number, conn.as_ref()?)))
    }
}

/// The connection of this end of it, if it is still in this use.
pub fn find(conns: &mut [Option<Conn>], end: End) -> Option<&mut Conn> {
    let it = conns.get_mut(end.conn as usize)?.as_mut();
    it.filter(|it| it.life == end.life)
}

impl Executed {
    /// With those of another one.
    pub fn join(&mut self, other: &Self) {
        (0..3).for_each(|group| self.requests[group] += other.requests[group]);
        (0..2).for_each(|way| self.bytes[way] += other.bytes[way]);
    }

    /// Another request was done.
    pub fn count(&mut self, request: &DeviceRequest) {
        match request.op {
            DeviceOp::Read => {
                self.requests[0] += 1;
                self.bytes[0] += request.length;
            }
            DeviceOp::Write { .. } => {
                self.requests[1] += 1;
                self.bytes[1] += request.length;
            }
            DeviceOp::Flush => self.requests[2] += 1,
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => self.requests[1] += 1,
            DeviceOp::Compare => {}
        }
    }
}
