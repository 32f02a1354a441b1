//! A reactor and a network in virtual time, for tests of any machines wired to each other.
//!
//! [`World`] holds nodes: each a machine behind `Rc<RefCell<_>>` (so that a test can talk to it), its arena,
//! its devices, and what its addresses lead to. It keeps the reactor's contract strictly and is unkind
//! where the contract allows: bytes arrive in pieces of any size, a send is reported late and its memory is
//! compared then (nobody may change what is being sent), and connections end at the worst moment.
//!
//! Nothing depends on anything but the seed.
#![allow(dead_code, reason = "each test file uses a part")]

mod peer;
mod setup;

#[allow(unused_imports, reason = "each test file uses a part")]
pub use peer::Player;
pub use setup::*;

use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::{ConnId, DeviceOp, DeviceRequest, Machine, Output, Span};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// A machine whatever its messages are.
pub trait Body {
    fn accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId>;
    fn connected(&mut self, conn: ConnId, now_ns: u64);
    fn bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize;
    fn place(&mut self, conn: ConnId) -> Option<Place>;
    fn payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64);
    fn transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, now_ns: u64) -> Option<Option<Send>>;
    fn sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64);
    fn closed(&mut self, conn: ConnId, why: Closed, now_ns: u64);
    fn device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64);
    fn turn_once(&mut self, memory: &mut dyn Memory, now_ns: u64);
    fn output(&mut self) -> Option<Output>;
    fn timeout(&self) -> Option<u64>;
    fn timed_out(&mut self, now_ns: u64);
}

impl<M: Machine> Body for M {
    fn accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.handle_accepted(listener, now_ns)
    }
    fn connected(&mut self, conn: ConnId, now_ns: u64) {
        self.handle_connected(conn, now_ns);
    }
    fn bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.handle_bytes(conn, bytes, now_ns)
    }
    fn place(&mut self, conn: ConnId) -> Option<Place> {
        self.placement(conn)
    }
    fn payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.handle_payload(conn, len, crc, now_ns);
    }
    fn transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, now_ns: u64) -> Option<Option<Send>> {
        self.poll_transmit(conn, out, now_ns)
    }
    fn sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.handle_sent(conn, cookie, now_ns);
    }
    fn closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.handle_closed(conn, why, now_ns);
    }
    fn device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.handle_device(id, result, now_ns);
    }
    fn turn_once(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.turn(memory, now_ns);
    }
    fn output(&mut self) -> Option<Output> {
        self.poll_output()
    }
    fn timeout(&self) -> Option<u64> {
        self.poll_timeout()
    }
    fn timed_out(&mut self, now_ns: u64) {
        self.handle_timeout(now_ns);
    }
}

/// Memory of one node.
pub struct Arena(pub Vec<u8>);

impl Memory for Arena {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.0[span.at as usize..span.at as usize + span.len as usize]
    }
    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.0[span.at as usize..span.at as usize + span.len as usize]
    }
}

/// What an address leads to.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// A listener of a node, `delay_ns` one way.
    To {
        node: usize,
        listener: u32,
        delay_ns: u64,
    },
    /// Nobody listens: ECONNREFUSED.
    Refused,
    /// Nothing answers.
    Silence,
}

/// A device that nodes may share.
#[derive(Clone)]
pub struct Disk {
    pub bytes: Rc<RefCell<Vec<u8>>>,
    pub delay_ns: u64,
    /// Every request fails so.
    pub error: Option<DeviceError>,
}

impl Disk {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: Rc::new(RefCell::new(vec![0; bytes])),
            delay_ns: 0,
            error: None,
        }
    }

    /// Executes a request; memory is read or written now.
    fn execute(&self, request: &DeviceRequest, arena: &mut Arena) -> Result<(), DeviceError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut bytes = self.bytes.borrow_mut();
        let from = request.offset as usize;
        let range = from..from + request.length as usize;
        match request.op {
            DeviceOp::Read => arena.bytes_mut(request.span).copy_from_slice(&bytes[range]),
            DeviceOp::Write { .. } => bytes[range].copy_from_slice(arena.bytes(request.span)),
            DeviceOp::Flush => {}
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => bytes[range].fill(0),
            DeviceOp::Compare if bytes[range] == *arena.bytes(request.span) => {}
            DeviceOp::Compare => return Err(DeviceError::Mismatch),
        }
        Ok(())
    }
}

/// One machine and what is around it.
pub struct Node {
    body: Rc<RefCell<dyn Body>>,
    pub arena: Arena,
    pub addresses: Vec<Address>,
    pub disks: Vec<Disk>,
    conns: BTreeMap<u32, Conn>,
    /// Said `Output::Stop`.
    pub stopped: bool,
    /// Times it had something to do.
    pub wakeups: u64,
}

/// One end of a connection.
struct Conn {
    /// Distinguishes uses of one number.
    life: u64,
    /// Node, connection number and life of the other end; `None` while it is being opened.
    peer: Option<(usize, u32, u64)>,
    address: Option<u32>,
    delay_ns: u64,
    /// Received and not yet taken.
    inbox: VecDeque<u8>,
    blocked: bool,
    /// When the last send is reported; a close waits for it.
    sent_ns: u64,
    /// When the last bytes reach the peer; a polite close comes after them.
    arrive_ns: u64,
    closing: bool,
}

enum Event {
    Connect {
        node: usize,
        conn: u32,
        life: u64,
    },
    Bytes {
        node: usize,
        conn: u32,
        life: u64,
        bytes: Vec<u8>,
    },
    Sent {
        node: usize,
        conn: u32,
        life: u64,
        send: Send,
        bytes: Vec<u8>,
    },
    Closed {
        node: usize,
        conn: u32,
        life: u64,
        why: Closed,
    },
    Device {
        node: usize,
        request: DeviceRequest,
    },
}

/// All nodes and what is under way between them.
pub struct World {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    /// Largest piece in which bytes arrive; pieces have any size up to this.
    pub piece_max: usize,
    /// Most time until a send is reported.
    pub sent_delay_ns: u64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    random: u64,
    spins: u32,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            now_ns: 1_000_000_000,
            nodes: Vec::new(),
            piece_max: 5000,
            sent_delay_ns: 20_000,
            events: BTreeMap::new(),
            sequence: 0,
            random: seed.wrapping_mul(2).wrapping_add(1),
            spins: 0,
        }
    }

    /// Adds a machine; its number is what [`Address::To`] names.
    pub fn add(&mut self, body: Rc<RefCell<dyn Body>>, arena_bytes: usize) -> usize {
        self.nodes.push(Node {
            body,
            arena: Arena(vec![0; arena_bytes]),
            addresses: Vec::new(),
            disks: Vec::new(),
            conns: BTreeMap::new(),
            stopped: false,
            wakeups: 0,
        });
        self.nodes.len() - 1
    }

    /// Lets time pass until `done` says so (true) or `limit_ns` more have passed. `done` is called
    /// after every step, may talk to the machines, and what it asked for is done before time moves on.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end_ns = self.now_ns + limit_ns;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            self.settle();
            let timeouts = self.nodes.iter().filter(|node| !node.stopped);
            let timeout_ns = timeouts
                .filter_map(|node| node.body.borrow().timeout())
                .min();
            let event_ns = self.events.first_key_value().map(|(&(at_ns, _), _)| at_ns);
            let next_ns = [timeout_ns, event_ns].into_iter().flatten().min();
            let Some(next_ns) = next_ns.filter(|&at_ns| at_ns <= end_ns) else {
                self.now_ns = end_ns;
                return false;
            };
            self.spins = if next_ns > self.now_ns {
                0
            } else {
                self.spins + 1
            };
            assert!(
                self.spins < 100_000,
                "the machines spin without time passing"
            );
            self.now_ns = self.now_ns.max(next_ns);
            self.happen();
        }
    }

    /// Lets `ns` pass.
    pub fn pass(&mut self, ns: u64) {
        self.run(ns, |_| false);
    }

    /// All connections that `node` opened to its address number `address`: both ends get a reset.
    pub fn cut(&mut self, node: usize, address: u32) {
        let conns = &self.nodes[node].conns;
        let those = conns
            .iter()
            .filter(|(_, conn)| conn.address == Some(address));
        let cut: Vec<_> = those.map(|(&number, _)| number).collect();
        for conn in cut {
            self.end(node, conn, Some(Closed::Error(104)), Closed::Error(104));
        }
    }

    /// Connections of a node that are not over.
    pub fn connections(&self, node: usize) -> usize {
        self.nodes[node].conns.len()
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at_ns, self.sequence), event);
    }

    /// Everything that is due now, and the time-outs.
    fn happen(&mut self) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now_ns {
                break;
            }
            let event = entry.remove();
            self.event(event);
        }
        for node in &mut self.nodes {
            let due = node
                .body
                .borrow()
                .timeout()
                .is_some_and(|at_ns| at_ns <= self.now_ns);
            if due && !node.stopped {
                node.wakeups += 1;
                node.body.borrow_mut().timed_out(self.now_ns);
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Connect { node, conn, life } => self.connect(node, conn, life),
            Event::Bytes {
                node,
                conn,
                life,
                bytes,
            } => {
                if let Some(conn) = self.conn(node, conn, life) {
                    conn.inbox.extend(bytes);
                }
                self.deliver(node, conn, life);
            }
            Event::Sent {
                node,
                conn,
                life,
                send,
                bytes,
            } => {
                assert!(
                    self.conn(node, conn, life).is_some(),
                    "a send outlived its connection"
                );
                let now = self.nodes[node].arena.bytes(send.span);
                assert!(now == bytes, "memory was changed while it was being sent");
                let body = self.wake(node);
                body.borrow_mut()
                    .sent(ConnId(conn), send.cookie, self.now_ns);
            }
            Event::Closed {
                node,
                conn,
                life,
                why,
            } => {
                let now_ns = self.now_ns;
                let sent_ns = self.conn(node, conn, life).map(|it| it.sent_ns);
                if let Some(at_ns) = sent_ns.filter(|&at_ns| at_ns > now_ns) {
                    // Sends are reported before the end.
                    self.at(
                        at_ns,
                        Event::Closed {
                            node,
                            conn,
                            life,
                            why,
                        },
                    );
                } else if sent_ns.is_some() {
                    self.nodes[node].conns.remove(&conn);
                    let body = self.wake(node);
                    body.borrow_mut().closed(ConnId(conn), why, self.now_ns);
                }
            }
            Event::Device { node, request } => {
                let Node { arena, disks, .. } = &mut self.nodes[node];
                let result = disks[usize::from(request.device.0)].execute(&request, arena);
                let body = self.wake(node);
                body.borrow_mut().device(request.id, result, self.now_ns);
            }
        }
    }

    fn wake(&mut self, node: usize) -> Rc<RefCell<dyn Body>> {
        self.nodes[node].wakeups += 1;
        self.nodes[node].body.clone()
    }

    fn conn(&mut self, node: usize, conn: u32, life: u64) -> Option<&mut Conn> {
        self.nodes[node]
            .conns
            .get_mut(&conn)
            .filter(|it| it.life == life)
    }

    /// A connection attempt reaches its listener, and the answer comes back.
    fn connect(&mut self, node: usize, conn: u32, life: u64) {
        let Some(it) = self.conn(node, conn, life).filter(|it| !it.closing) else {
            return;
        };
        let address = it.address.expect("opened by address") as usize;
        let Address::To {
            node: far,
            listener,
            delay_ns,
        } = self.nodes[node].addresses[address]
        else {
            let why = Closed::Error(111);
            self.at(
                self.now_ns,
                Event::Closed {
                    node,
                    conn,
                    life,
                    why,
                },
            );
            return;
        };
        let body = self.wake(far);
        let accepted = body.borrow_mut().accepted(listener, self.now_ns);
        let Some(ConnId(peer)) = accepted else {
            let why = Closed::Error(104);
            self.at(
                self.now_ns,
                Event::Closed {
                    node,
                    conn,
                    life,
                    why,
                },
            );
            return;
        };
        self.sequence += 1;
        let peer_life = self.sequence;
        let far_end = Conn::new(peer_life, Some((node, conn, life)), None, delay_ns);
        let taken = self.nodes[far].conns.insert(peer, far_end);
        assert!(taken.is_none(), "a connection number was used twice");
        let it = self.conn(node, conn, life).expect("still there");
        it.peer = Some((far, peer, peer_life));
        let body = self.wake(node);
        body.borrow_mut().connected(ConnId(conn), self.now_ns);
    }

    /// Hands in what has arrived, in pieces, as far as the machine takes it.
    fn deliver(&mut self, node: usize, number: u32, life: u64) {
        loop {
            let now_ns = self.now_ns;
            let piece = 1 + self.next(self.piece_max as u64) as usize;
            let Node {
                body,
                arena,
                conns,
                wakeups,
                ..
            } = &mut self.nodes[node];
            let Some(conn) = conns.get_mut(&number).filter(|conn| conn.life == life) else {
                return;
            };
            if conn.inbox.is_empty() || conn.blocked || conn.closing {
                return;
            }
            *wakeups += 1;
            let mut body = body.borrow_mut();
            let id = ConnId(number);
            let take = piece.min(conn.inbox.len());
            let bytes: Vec<u8> = conn.inbox.iter().take(take).copied().collect();
            let taken = body.bytes(id, &bytes, now_ns);
            assert!(taken <= take, "took more than was offered");
            conn.inbox.drain(..taken);
            if taken == take {
                continue;
            }
            let Some(place) = body.place(id) else {
                conn.blocked = true;
                return;
            };
            assert!(place.span.len > 0, "empty placement");
            let n = (take - taken).min(place.span.len as usize);
            let into = Span {
                len: n as u32,
                ..place.span
            };
            let data: Vec<u8> = conn.inbox.drain(..n).collect();
            arena.bytes_mut(into).copy_from_slice(&data);
            let crc = place
                .crc
                .map_or(0, |crc| nvme::wire::crc::crc32c(crc, &data));
            body.payload(id, n as u32, crc, now_ns);
        }
    }

    /// Turns of all machines until none has anything more to say.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "the machines never come to rest");
            let mut any = false;
            for node in 0..self.nodes.len() {
                if !self.nodes[node].stopped {
                    any |= self.turn(node);
                }
            }
            if !any {
                return;
            }
        }
    }

    /// One turn of one machine; whether it wanted anything.
    fn turn(&mut self, number: usize) -> bool {
        let now_ns = self.now_ns;
        let Node { body, arena, .. } = &mut self.nodes[number];
        let body = body.clone();
        body.borrow_mut().turn_once(arena, now_ns);
        let mut outputs = Vec::new();
        loop {
            let output = body.borrow_mut().output();
            let Some(output) = output else { break };
            outputs.push(output);
        }
        for output in &outputs {
            match *output {
                Output::Open { conn, address } => self.open(number, conn.0, address),
                Output::Resume(conn) => self.resume(number, conn.0),
                Output::Device(request) => {
                    let delay_ns = self.nodes[number].disks[request.device.0 as usize].delay_ns;
                    self.at(
                        now_ns + delay_ns,
                        Event::Device {
                            node: number,
                            request,
                        },
                    );
                }
                Output::Stop => self.nodes[number].stopped = true,
                Output::Transmit(_) | Output::Close { .. } => {}
            }
        }
        for output in &outputs {
            match *output {
                Output::Transmit(conn) => self.transmit(number, conn.0),
                Output::Close { conn, abort } => {
                    if !abort {
                        self.transmit(number, conn.0);
                    }
                    let far = if abort {
                        Closed::Error(104)
                    } else {
                        Closed::ByPeer
                    };
                    self.end(number, conn.0, None, far);
                }
                _ => {}
            }
        }
        !outputs.is_empty()
    }

    fn open(&mut self, node: usize, conn: u32, address: u32) {
        self.sequence += 1;
        let life = self.sequence;
        let route = self.nodes[node].addresses[address as usize];
        let delay_ns = if let Address::To { delay_ns, .. } = route {
            delay_ns
        } else {
            1000
        };
        let it = Conn::new(life, None, Some(address), delay_ns);
        let taken = self.nodes[node].conns.insert(conn, it);
        assert!(taken.is_none(), "a connection was opened twice");
        if !matches!(route, Address::Silence) {
            self.at(
                self.now_ns + 2 * delay_ns,
                Event::Connect { node, conn, life },
            );
        }
    }

    fn resume(&mut self, node: usize, conn: u32) {
        if let Some(it) = self.nodes[node].conns.get_mut(&conn) {
            it.blocked = false;
            let life = it.life;
            let bytes = Vec::new();
            self.at(
                self.now_ns,
                Event::Bytes {
                    node,
                    conn,
                    life,
                    bytes,
                },
            );
        }
    }

    /// Everything a connection has to send is under way.
    fn transmit(&mut self, node: usize, number: u32) {
        let now_ns = self.now_ns;
        loop {
            let body = self.nodes[node].body.clone();
            let mut out = Vec::new();
            let Some(payload) = body.borrow_mut().transmit(ConnId(number), &mut out, now_ns) else {
                assert!(
                    out.is_empty(),
                    "wrote a header and said that it had nothing to send"
                );
                return;
            };
            let Some(conn) = self.nodes[node].conns.get_mut(&number) else {
                panic!("sends on a connection that is not there");
            };
            let (life, peer, delay_ns) = (conn.life, conn.peer, conn.delay_ns);
            if let Some(send) = payload {
                let bytes = self.nodes[node].arena.bytes(send.span).to_vec();
                out.extend_from_slice(&bytes);
                if send.digest {
                    out.extend(nvme::wire::crc::crc32c(0, &bytes).to_le_bytes());
                }
                let sent_ns = now_ns + self.next(self.sent_delay_ns + 1);
                let conn = self.nodes[node].conns.get_mut(&number).expect("checked");
                conn.sent_ns = conn.sent_ns.max(sent_ns);
                let event = Event::Sent {
                    node,
                    conn: number,
                    life,
                    send,
                    bytes,
                };
                self.at(sent_ns, event);
            }
            let Some((far, peer, peer_life)) = peer else {
                panic!("sends on a connection that is not up");
            };
            let conn = self.nodes[node].conns.get_mut(&number).expect("checked");
            conn.arrive_ns = now_ns + delay_ns;
            let event = Event::Bytes {
                node: far,
                conn: peer,
                life: peer_life,
                bytes: out,
            };
            self.at(now_ns + delay_ns, event);
        }
    }

    /// Ends a connection: `near` for this end (`None`: as it asked), `far` for the other one.
    fn end(&mut self, node: usize, number: u32, near: Option<Closed>, far: Closed) {
        let now_ns = self.now_ns;
        let Some(conn) = self.nodes[node].conns.get_mut(&number) else {
            return;
        };
        let polite = far == Closed::ByPeer;
        if conn.closing && polite {
            return;
        }
        conn.closing = true;
        let (life, peer, delay_ns) = (conn.life, conn.peer, conn.delay_ns);
        let (sent_ns, arrive_ns) = (conn.sent_ns.max(now_ns), conn.arrive_ns);
        let why = near.unwrap_or(Closed::ByUs);
        self.at(
            sent_ns,
            Event::Closed {
                node,
                conn: number,
                life,
                why,
            },
        );
        let Some((far_node, far_number, far_life)) = peer else {
            return;
        };
        let Some(far_conn) = self.conn(far_node, far_number, far_life) else {
            return;
        };
        // What was sent before a reset is lost with it.
        far_conn.closing |= !polite;
        let at_ns = (now_ns + delay_ns).max(far_conn.sent_ns).max(arrive_ns);
        let event = Event::Closed {
            node: far_node,
            conn: far_number,
            life: far_life,
            why: far,
        };
        self.at(at_ns, event);
    }
}

impl Conn {
    fn new(
        life: u64,
        peer: Option<(usize, u32, u64)>,
        address: Option<u32>,
        delay_ns: u64,
    ) -> Self {
        Self {
            life,
            peer,
            address,
            delay_ns,
            inbox: VecDeque::new(),
            blocked: false,
            sent_ns: 0,
            arrive_ns: 0,
            closing: false,
        }
    }
}
