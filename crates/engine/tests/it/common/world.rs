//! The nodes, the network between them, and time.
use super::Address;
use super::net::Conn;
use super::{Arena, Body, Disk};
use engine::machine::{Closed, DeviceError, Memory, Send};
use engine::{ConnId, DeviceRequest, Output};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How often a send that nobody takes is looked at.
const STUFFED_NS: u64 = 100_000_000;

/// One machine and what is around it.
pub struct Node {
    pub body: Rc<RefCell<dyn Body>>,
    pub arena: Arena,
    pub addresses: Vec<Address>,
    pub disks: Vec<Disk>,
    pub conns: BTreeMap<u32, Conn>,
    /// Said `Output::Stop`.
    pub stopped: bool,
    /// Times it had something to do.
    pub wakeups: u64,
}

pub enum Event {
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
    /// A device answers what it will execute later.
    Lie {
        node: usize,
        request: DeviceRequest,
    },
    /// Such a write, with the bytes that it had.
    Late {
        node: usize,
        request: DeviceRequest,
        bytes: Vec<u8>,
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
    pub sequence: u64,
    /// Sends of a node to one of its addresses that are longer than this get lost, and with the
    /// first of them all that follows on its connection.
    pub hole: Option<(usize, u32, usize)>,
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
            hole: None,
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
    /// after every step, may talk to the machines, and what it asked for is done before time moves
    /// on.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end_ns = self.now_ns + limit_ns;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            self.settle();
            if !self.advance(end_ns) {
                return false;
            }
        }
    }

    /// Moves time to the next events, which happen; the turns of the machines follow. Until
    /// `end_ns` at most: false: nothing happens before.
    pub fn advance(&mut self, end_ns: u64) -> bool {
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
        true
    }

    /// Whether a node's device has a write to this byte under way.
    pub fn writes(&self, of: usize, offset: u64) -> bool {
        let writes = |it: &DeviceRequest| it.op.is_change() && it.offset == offset;
        self.events.values().any(|event| {
            matches!(event, Event::Device { node, request } if *node == of && writes(request))
        })
    }

    /// Lets `ns` pass.
    pub fn pass(&mut self, ns: u64) {
        self.run(ns, |_| false);
    }

    /// Connections of a node that are not over.
    pub fn connections(&self, node: usize) -> usize {
        self.nodes[node].conns.len()
    }

    pub fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    pub fn at(&mut self, at_ns: u64, event: Event) {
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
                if let Some(conn) = self.conn(node, conn, life).filter(|conn| !conn.mute) {
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
            } => self.sent(node, conn, life, send, bytes),
            Event::Closed {
                node,
                conn,
                life,
                why,
            } => {
                let now_ns = self.now_ns;
                let sent_ns = self.conn(node, conn, life).map(|it| it.sent_ns);
                if let Some(at_ns) =
                    sent_ns.filter(|&at_ns| at_ns > now_ns || self.is_sending(node, conn, life))
                {
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
            Event::Lie { node, request } => {
                let body = self.wake(node);
                body.borrow_mut().device(request.id, Ok(()), self.now_ns);
            }
            Event::Late {
                node,
                request,
                bytes,
            } => {
                let disk = &self.nodes[node].disks[usize::from(request.device.0)];
                let at = request.offset as usize;
                disk.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Event::Device { node, request } => {
                let Node {
                    arena, disks, body, ..
                } = &mut self.nodes[node];
                let disk = &disks[usize::from(request.device.0)];
                let asks = disk.by_workers && request.op.is_change();
                let late = asks && body.borrow().start_before(request.id) <= self.now_ns;
                let result = match late {
                    true => Err(DeviceError::Lost),
                    false => disk.execute(&request, arena),
                };
                let body = self.wake(node);
                body.borrow_mut().device(request.id, result, self.now_ns);
            }
        }
    }

    /// A send is reported, if somebody took it.
    fn sent(&mut self, node: usize, conn: u32, life: u64, send: Send, bytes: Vec<u8>) {
        assert!(
            self.conn(node, conn, life).is_some(),
            "a send outlived its connection"
        );
        let now_ns = self.now_ns;
        let it = self.conn(node, conn, life);
        if let Some(it) = it.filter(|it| it.stuffed && !it.closing) {
            // Looked at again later.
            it.sent_ns = it.sent_ns.max(now_ns + STUFFED_NS);
            let event = Event::Sent {
                node,
                conn,
                life,
                send,
                bytes,
            };
            return self.at(now_ns + STUFFED_NS, event);
        }
        let now = self.nodes[node].arena.bytes(send.span);
        assert!(now == bytes, "memory was changed while it was being sent");
        let body = self.wake(node);
        body.borrow_mut()
            .sent(ConnId(conn), send.cookie, self.now_ns);
    }

    fn ask_device(&mut self, node: usize, request: DeviceRequest) {
        let now_ns = self.now_ns;
        let Node { arena, disks, .. } = &mut self.nodes[node];
        let disk = &mut disks[usize::from(request.device.0)];
        let from_ns = disk.busy_until_ns.unwrap_or(0).max(now_ns);
        let at_ns = from_ns + disk.delay_ns;
        disk.busy_until_ns = disk.busy_until_ns.map(|_| at_ns);
        if !disk.answers_early || disk.delay_ns == 0 {
            return self.at(at_ns, Event::Device { node, request });
        }
        let bytes = arena.bytes(request.span).to_vec();
        self.at(self.now_ns + 2_000_000, Event::Lie { node, request });
        let late = Event::Late {
            node,
            request,
            bytes,
        };
        self.at(at_ns, late);
    }

    /// Whether the other end of a connection is gone: here its end is handled as it arrives.
    fn has_ended(&self, node: usize, conn: u32) -> bool {
        !self.nodes[node].conns.contains_key(&conn)
    }

    /// Whether a send of the connection is still to be reported in this very moment.
    fn is_sending(&self, of: usize, number: u32, use_of: u64) -> bool {
        let now = self
            .events
            .range((self.now_ns, 0)..=(self.now_ns, u64::MAX));
        now.into_iter().any(|(_, event)| {
            matches!(event, Event::Sent { node, conn, life, .. }
                if (*node, *conn, *life) == (of, number, use_of))
        })
    }

    pub fn wake(&mut self, node: usize) -> Rc<RefCell<dyn Body>> {
        self.nodes[node].wakeups += 1;
        self.nodes[node].body.clone()
    }

    pub fn conn(&mut self, node: usize, conn: u32, life: u64) -> Option<&mut Conn> {
        self.nodes[node]
            .conns
            .get_mut(&conn)
            .filter(|it| it.life == life)
    }

    /// Turns of all machines until none has anything more to say.
    pub fn settle(&mut self) {
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
                Output::CheckEnd(conn) => {
                    let ended = self.has_ended(number, conn.0);
                    let body = self.wake(number);
                    body.borrow_mut().end_check(conn, ended, self.now_ns);
                }
                Output::Device(request) => self.ask_device(number, request),
                // Nothing can be taken back here.
                Output::LetGo { id, .. } => {
                    let body = self.wake(number);
                    body.borrow_mut().device(id, Ok(()), self.now_ns);
                }
                Output::Stop => self.nodes[number].stopped = true,
                // A question is about holes, and a disk here has none.
                Output::Extent(_) | Output::Transmit(_) | Output::Close { .. } => {}
            }
        }
        for output in &outputs {
            match *output {
                Output::Transmit(conn) => self.transmit(number, conn.0),
                Output::Close { conn, abort } => {
                    let it = self.nodes[number].conns.get_mut(&conn.0);
                    if let Some(it) = it.filter(|it| it.stuffed && !abort) {
                        it.leaving = true;
                        continue;
                    }
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
}
