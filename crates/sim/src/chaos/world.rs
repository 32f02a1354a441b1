//! The places, what is under way between them, and time.
//!
//! [`World`] keeps the reactor's contract strictly and uses all freedom that the contract allows:
//! bytes arrive in pieces of any size, a send is reported late and its memory is compared then
//! (bytes being sent must not change), connections end at the worst moment, a process dies with all
//! that it had, or stands still and goes on later.
//!
//! # Contract
//! Nothing depends on anything but the seed. A machine has its turn when something has happened to
//! it, after everything of that moment, as a reactor's loop has it; its time-outs come after what
//! has arrived.
use super::START_NS;
use super::late::{Late, Overtaken};
use super::late_write_checker::Execution;
use super::node::{Conn, End, Process};
use super::peaks::Peaks;
use super::prelude::*;
use super::story::{Line, Lines};
use super::touch::Mark;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use engine::DeviceOp;
use engine::machine::Send;

/// Verb in the line of a device that executes a request.
const EXECUTES: &str = "executes";
/// Turns of all machines in one moment that mean that they never come to rest.
const ROUNDS_MAX: u32 = 10_000;
/// Moments without time passing that mean the same.
const SPINS_MAX: u32 = 100_000;
/// Moments of one world: a hundred times what they have.
const MOMENTS_MAX: u64 = 20_000_000;

/// Event at a time.
pub enum Event {
    /// A connection attempt reaches its listener.
    Connect(End),
    Bytes(End, Vec<u8>),
    /// A send is over, of these bytes.
    Sent(End, Send, Vec<u8>),
    Closed(End, Closed),
    /// The peer has read, so that there is room for more.
    Room(End),
    /// A device executes and answers.
    Device(Process, DeviceRequest),
    /// A request that could not start when it was submitted starts, if it is not too late: before
    /// when that would be, ns.
    Start(Process, DeviceRequest, u64, Late),
    /// A device answers; the number of the request.
    Answer(Process, u32, Result<(), DeviceError>),
    /// A planned fault; its number.
    Planned(usize),
    /// A message to a node's machine, sent by another: its number.
    Message(Process, usize),
}

/// How a wire is doing.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// Nothing arrives before.
    pub heals_ns: u64,
    /// Added to the way of all bytes, ns.
    pub slow_ns: u64,
    /// One piece in so many is damaged; 0: none.
    pub damages: u64,
    /// Of what goes to the listener, and of what comes from it.
    pub ways: [Way; 2],
}

/// How one direction of a wire is doing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Nothing arrives before.
    pub heals_ns: u64,
    /// Nothing larger than [`SMALL`] arrives before, nor what follows it on its connection.
    pub large_ns: u64,
    /// As `large_ns`, on connections of I/O queues only.
    pub large_io_ns: u64,
    /// The receiver reads nothing before.
    pub deaf_ns: u64,
    /// The receiver reads at most so many bytes in a [sip](SIP_NS); 0: all.
    pub sip: u64,
    /// Bytes that may be under way or unread; 0: as many as usual.
    pub window: u64,
}

/// Bytes of what passes where large packets get lost.
pub const SMALL: usize = 1400;
/// Time between two looks of one who reads little by little, ns.
pub const SIP_NS: u64 = 1_000_000;

/// All of it.
#[derive(Default)]
pub struct World {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    pub disks: Vec<Disk>,
    /// Of wires that are not as they should be.
    pub wires: BTreeMap<Wire, State>,
    /// Fate of bytes that were on their way over them, where a fault changed it.
    pub marks: BTreeMap<(Wire, Mark), u64>,
    /// One way from place to place, ns.
    pub way_ns: u64,
    /// Largest piece in which bytes arrive.
    pub piece_max: u64,
    /// Longest time until a send is reported, ns.
    pub sent_ns: u64,
    /// Bytes that may be under way or unread in one direction of a connection; 0: any number.
    pub window: u64,
    pub random: Random,
    pub events: BinaryHeap<Reverse<Due>>,
    /// The message being sent.
    pub(super) headers: Vec<u8>,
    sequence: u64,
    spins: u32,
    moments: u64,
    /// Events so far.
    pub count: u64,
    /// A listener that may watch a block.
    pub watched: Option<(Option<u64>, Lines)>,
    /// The blocks that several write at a time.
    pub crowds: Range<u64>,
    /// Writes of those.
    pub executions: Vec<Execution>,
    /// Those of which a write failed that may be done in part.
    pub torn: BTreeSet<u64>,
    /// The first violation by a machine.
    pub wrong: Option<String>,
    /// The most memory that any machine had.
    pub peaks: Peaks,
    /// Turns of cores so far.
    pub(super) core_turns: u64,
    /// Changes that were late and were not made, by [why](Late).
    pub dropped: [u64; 3],
    /// Processes that stand still while others are in their place.
    pub(super) overtaken: Vec<Overtaken>,
    /// Changes that those did not make when they went on.
    pub refused: u64,
}

/// An event and its time; in order of time, then of when it was planned.
pub struct Due {
    pub(super) at_ns: u64,
    sequence: u64,
    /// Elsewhere: a heap moves what it holds again and again.
    pub(super) event: Box<Event>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

impl World {
    /// Nothing, at [`START_NS`].
    pub fn new(seed: u64) -> Self {
        Self {
            now_ns: START_NS,
            way_ns: 10_000,
            piece_max: 5000,
            sent_ns: [20_000, 20_000, 400_000][seed as usize % 3],
            random: Random::new(seed),
            ..Self::default()
        }
    }

    /// Something is said to a process of a target, if there is one.
    pub(super) fn command(&mut self, node: usize, message: TargetControl) {
        let node = &mut self.nodes[node];
        if let Body::Target(engine) = &mut node.body {
            engine.handle_control(message, self.now_ns);
            node.stirred = true;
        }
    }

    /// A line of the story.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if let Some((_, lines)) = &self.watched {
            lines.borrow_mut().push(Line::new(self.now_ns, line()));
        }
    }

    /// Whether the listener watches a block of this request.
    fn is_watched(&self, request: &DeviceRequest) -> bool {
        let range = request.offset..request.offset + request.length;
        let block = self.watched.as_ref().and_then(|it| it.0);
        let (unit, data_at) = (self.disks[0].unit as u64, self.disks[0].data_at as u64);
        let is_in = |block| range.contains(&(data_at + block * unit));
        block.is_some_and(is_in) || self.watched.is_some() && request.op == DeviceOp::Flush
    }

    /// The connection of this end of it, if it is still in this use.
    pub(super) fn conn(&mut self, end: End) -> Option<&mut Conn> {
        self.nodes[end.node].conn(end)
    }

    /// The process that is at a place now.
    pub(super) fn process(&self, node: usize) -> Process {
        let life = self.nodes[node].life;
        Process { node, life }
    }

    /// Lets something happen at a time.
    pub fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Due {
            at_ns,
            sequence: self.sequence,
            event: Box::new(event),
        }));
    }

    /// A node did what it may not.
    pub fn blame(&mut self, node: usize, wrong: Option<String>) {
        if let (Some(what), None) = (wrong, &self.wrong) {
            self.wrong = Some(format!("node {node}: {what}"));
        }
    }

    /// A number that no other thing of this world has.
    pub fn name(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Lets the next moment come, unless it is after `end_ns`; what it has for its owner goes to
    /// `heard` ([`Event::Planned`], [`Event::Message`]). False: nothing more happens until then.
    pub fn step(&mut self, end_ns: u64, heard: &mut Vec<Event>) -> bool {
        let event_ns = self.events.peek().map(|Reverse(due)| due.at_ns);
        let wakes = self
            .nodes
            .iter()
            .filter(|node| !node.stopped && !node.is_dead());
        let wake_ns = wakes.map(|node| node.wake_ns.max(node.frozen_ns)).min();
        let next_ns = event_ns.into_iter().chain(wake_ns).min();
        let Some(next_ns) = next_ns.filter(|&at_ns| at_ns <= end_ns) else {
            self.now_ns = self.now_ns.max(end_ns.min(u64::MAX - 1));
            return false;
        };
        self.spins = if next_ns > self.now_ns {
            0
        } else {
            self.spins + 1
        };
        assert!(
            self.spins < SPINS_MAX,
            "the machines spin without time passing"
        );
        self.moments += 1;
        let now_ns = self.now_ns;
        assert!(
            self.moments < MOMENTS_MAX,
            "the world has no end: {} events until {now_ns} ns",
            self.count
        );
        self.now_ns = now_ns.max(next_ns);
        while let Some(Reverse(due)) = self.events.peek() {
            if due.at_ns > self.now_ns {
                break;
            }
            if let Some(Reverse(due)) = self.events.pop() {
                self.count += 1;
                self.happen(*due.event, heard);
            }
        }
        self.time_outs();
        true
    }

    /// Machines whose time has come.
    fn time_outs(&mut self) {
        let now_ns = self.now_ns;
        for node in &mut self.nodes {
            let due = node.wake_ns <= now_ns && node.frozen_ns <= now_ns;
            let late = node.wake_ns < node.frozen_ns && node.wake_ns <= now_ns;
            node.missed += u64::from(late && !node.stopped);
            if due && !node.stopped {
                node.body.timed_out(now_ns);
                node.wake_ns = u64::MAX;
                node.stirred = true;
            }
        }
    }

    /// The node that an event is of.
    fn node_of(event: &Event) -> Option<usize> {
        Some(match event {
            Event::Connect(_) | Event::Planned(_) => return None,
            Event::Bytes(end, _) | Event::Sent(end, ..) => end.node,
            Event::Closed(end, _) | Event::Room(end) => end.node,
            Event::Device(..) => return None, // the kernel's part goes on
            Event::Message(of, _) | Event::Answer(of, ..) | Event::Start(of, ..) => of.node,
        })
    }

    fn happen(&mut self, event: Event, heard: &mut Vec<Event>) {
        let now_ns = self.now_ns;
        if let Some(node) = Self::node_of(&event)
            && self.nodes[node].frozen_ns > now_ns
        {
            self.nodes[node].missed += 1;
            return self.at(self.nodes[node].frozen_ns, event);
        }
        match event {
            Event::Planned(_) | Event::Message(..) => heard.push(event),
            Event::Connect(end) => self.connect(end),
            Event::Bytes(end, bytes) => {
                if let Some(conn) = self.conn(end).filter(|it| !it.cut_off) {
                    let wrong = conn.tap.as_mut().and_then(|tap| tap.heard(&bytes).err());
                    conn.inbox.put(bytes);
                    self.blame(end.node, wrong);
                }
                self.deliver(end);
            }
            Event::Room(end) => self.room(end),
            Event::Sent(end, send, bytes) => self.sent(end, send, &bytes),
            Event::Closed(end, why) => self.closed(end, why),
            Event::Device(of, request) => self.device(of, request),
            Event::Start(of, request, before_ns, why) => {
                self.start_late(of, request, (before_ns, why));
            }
            Event::Answer(of, id, result) => {
                let it = &mut self.nodes[of.node];
                if it.life == of.life && !it.is_dead() {
                    it.at_device.remove(&id);
                    it.body.device(id, result, now_ns);
                    it.stirred = true;
                }
            }
        }
    }

    fn sent(&mut self, end: End, send: Send, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[end.node];
        let Some(conn) = node.conn(end) else {
            return; // its process died
        };
        conn.sends -= 1;
        let same = node.arena.bytes(send.span) == bytes;
        assert!(same, "memory was changed while it was being sent");
        node.body.sent(ConnId(end.conn), send.cookie, now_ns);
        node.stirred = true;
    }

    fn closed(&mut self, end: End, why: Closed) {
        let now_ns = self.now_ns;
        let Some(conn) = self.conn(end) else { return };
        // Messages that had no room are sent as well as it will be.
        let untaken = core::mem::take(&mut conn.untaken);
        self.report(end, now_ns, untaken);
        let node = &mut self.nodes[end.node];
        let of_core = node.core().is_some();
        let Some(conn) = node.conn(end) else { return };
        if conn.sends > 0 {
            let at_ns = conn.sent_ns.max(now_ns); // sends are reported before the end
            return self.at(at_ns, Event::Closed(end, why));
        }
        if conn.again_ns > now_ns && why == Closed::ByPeer && !conn.closing {
            let at_ns = conn.again_ns; // what came before is read first
            return self.at(at_ns, Event::Closed(end, why));
        }
        if conn.blocked && conn.wire.to == end.node && !conn.closing && of_core {
            conn.unseen_end = Some(why); // a reactor reads nothing of a blocked connection
            return;
        }
        node.conns[end.conn as usize] = None;
        node.body.closed(ConnId(end.conn), why, now_ns);
        node.stirred = true;
    }

    /// A request is executed, also when the process that asked has died since.
    fn device(&mut self, of: Process, request: DeviceRequest) {
        let (now_ns, node) = (self.now_ns, of.node);
        let it = &mut self.nodes[node];
        if it.life != of.life {
            return;
        }
        let disk = &mut self.disks[it.disks[usize::from(request.device.0)]];
        let (by, memory) = (node as u8 + 1, &mut it.arena);
        let result = disk.execute(by, &request, memory, &mut self.random, now_ns);
        if result.is_ok() {
            it.executed.count(&request);
        }
        self.note_executed(node, &request, result.is_ok());
        if self.is_watched(&request) {
            self.tell_of(node, EXECUTES, &request);
        }
        self.at(now_ns, Event::Answer(of, request.id, result));
    }

    /// Notes the writers of blocks that have several at a time, and when.
    fn note_executed(&mut self, node: usize, request: &DeviceRequest, well: bool) {
        let disk = &self.disks[0];
        let unit = disk.unit as u64;
        let end = (request.offset + request.length) / unit;
        if !matches!(request.op, DeviceOp::Write { .. }) {
            return;
        }
        let first = request.offset / unit;
        let blocks = self.crowds.start.max(first)..self.crowds.end.min(end);
        if !well {
            self.torn.extend(blocks);
            return;
        }
        self.executions.extend(blocks.map(|block| Execution {
            at_ns: self.now_ns,
            block,
            tag: disk.tag(block),
            node,
        }));
    }

    /// Turns of all machines to which something has happened, until none has more to say; `after`
    /// is called with each that had one.
    pub fn settle(&mut self, mut after: impl FnMut(&mut Self, usize)) {
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "the machines never come to rest");
            let mut any = false;
            for node in 0..self.nodes.len() {
                let it = &self.nodes[node];
                if it.stirred && !it.stopped && it.frozen_ns <= self.now_ns {
                    any = true;
                    self.turn(node);
                    after(self, node);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn turn(&mut self, number: usize) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[number];
        node.stirred = false;
        node.body.turn(&mut node.arena, now_ns);
        let mut outputs = Vec::new();
        while let Some(output) = node.body.output() {
            outputs.push(output);
        }
        let halt = self.halts(number, &outputs);
        for output in &outputs {
            match *output {
                Output::Open { conn, address } => self.open(number, conn.0, address),
                Output::Resume(conn) => self.resume(number, conn.0),
                Output::CheckEnd(conn) => self.check_end(number, conn),
                Output::Device(request) => self.ask_device(number, request, halt),
                Output::Stop => self.nodes[number].stopped = true,
                Output::LetGo { id, .. } => self.let_go(number, id),
                Output::Extent(_) | Output::Transmit(_) | Output::Close { .. } => {}
            }
        }
        for output in &outputs {
            match *output {
                Output::Transmit(conn) => self.transmit(number, conn.0),
                Output::Close { conn, abort } => self.close(number, conn.0, abort),
                _ => {}
            }
        }
        // Sent bytes may have freed something that others waited for.
        let node = &mut self.nodes[number];
        node.wake_ns = node.body.timeout().unwrap_or(u64::MAX);
        self.measure(number);
    }

    /// Targets are the first nodes.
    fn tell_of(&self, node: usize, does: &str, request: &DeviceRequest) {
        let block = self.watched.as_ref().and_then(|it| it.0);
        let disk = self.nodes[node].disks[usize::from(request.device.0)];
        let (op, id) = (request.op, request.id);
        self.tell(|| match block {
            Some(block) if op != DeviceOp::Flush => {
                let tag = self.disks[disk].tag(block);
                let writes = matches!(op, DeviceOp::Write { .. }) && does == EXECUTES;
                let has = if writes { "leaves" } else { "has" };
                format!("target {node} {does} {op:?} ({id}); the disk {has} {tag:#x}")
            }
            _ => format!("target {node} {does} {op:?} ({id})"),
        });
    }

    fn ask_device(&mut self, number: usize, request: DeviceRequest, halt: Option<Halt>) {
        let before_ns = match request.op.is_change() {
            true => self.nodes[number].body.start_before(request.id),
            false => u64::MAX,
        };
        let disk = self.nodes[number].disks[usize::from(request.device.0)];
        let request = self.disks[disk].locate(request);
        if self.is_watched(&request) {
            self.tell_of(number, "is to do", &request);
        }
        let (id, len) = (request.id, u64::from(request.span.len));
        if self.nodes[number].at_device.insert(id, len).is_some() {
            let what = format!("device request {id} is under way already");
            self.blame(number, Some(what));
        }
        let process = self.process(number);
        let late = match halt.filter(|_| before_ns != u64::MAX) {
            Some(halt) => Some((halt.until_ns, halt.why())),
            None => self
                .hangs_until(number, request.device)
                .map(|at_ns| (at_ns, Late::Hung)),
        };
        if let Some((at_ns, why)) = late {
            return self.at(at_ns, Event::Start(process, request, before_ns, why));
        }
        let at_ns = self.disks[disk].due_ns(self.now_ns, &mut self.random);
        self.at(at_ns, Event::Device(process, request));
    }

    /// The process at a place dies. Bytes that its sockets have taken go out; then peers get notice
    /// of it.
    pub fn kill(&mut self, number: usize) {
        let numbers: Vec<u32> = self.nodes[number].open_conns().map(|(it, _)| it).collect();
        for conn in numbers {
            self.end(number, conn, None, Closed::Error(104));
            self.nodes[number].conns[conn as usize] = None;
        }
        let node = &mut self.nodes[number];
        let body = core::mem::replace(&mut node.body, Body::Dead);
        node.stirred = false;
        node.wake_ns = u64::MAX;
        (node.frozen_ns, node.halt, node.in_hand) = (0, None, false);
        if core::mem::take(&mut node.outlives) {
            self.keep_overtaken(number, body);
        }
    }

    /// Requests that a dead process had at its devices are never executed.
    pub(super) fn drop_requests(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.life += 1;
        node.at_device.clear();
    }

    /// Another process begins at a place. Requests that the one before had at its devices were
    /// executed or never are.
    pub fn revive(&mut self, number: usize, body: Body) {
        self.drop_requests(number);
        let node = &mut self.nodes[number];
        node.body = body;
        node.mail = 0;
        (node.stopped, node.stirred) = (false, true);
    }
}
