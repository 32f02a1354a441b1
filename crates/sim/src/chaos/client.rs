//! Applications on one host: several NBD connections that read, write and flush a few blocks, and
//! write down what they did and saw.
//!
//! # Contract
//! Every block of a write has a tag that nobody else writes. No two writes of a block are under way
//! together, as file systems have it: a write that is repeated on another path may take effect
//! twice, and one between them would be undone. But in a few blocks behind the others everybody,
//! of all hosts, writes at any time. A request whose connection ended, or
//! that failed, may have happened or not. Each connection is made again when it has ended.
use super::disk::{BLOCK, fill, tag};
use super::history::{Deed, History, NEVER, Op, Tag};
use super::orphan::Orphan;
use super::plan::PAUSES;
pub use super::tally::{Done, Tally};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::{ConnId, Machine, Output, Span};
use nbd::client::{CommandError, Completed, Config, Event, Session};
use nbd::{Errno, Kind, Request};
use shape::Random;

/// Longest request, blocks.
const BLOCKS_MAX: u64 = 32;
/// One request in so many is of crowded blocks, where there are any.
const CROWDED: u64 = 8;
/// How long until an ended connection is made again.
const AGAIN_NS: u64 = 50_000_000;

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    /// Connections.
    pub connections: u32,
    /// Requests of each in flight.
    pub depth: u16,
    /// Blocks that are used, from the first.
    pub blocks: u64,
    /// Requests in all.
    pub total: u64,
    /// Of 256: writes; of the others: flushes.
    pub writes: u64,
    /// See there.
    pub flushes: u64,
    /// Which blocks it writes: part … of … parts. It reads all.
    pub share: (u64, u64),
    /// Longest pause after a request, ns.
    pub pause_ns: u64,
    /// Blocks behind those that everybody writes at any time.
    pub crowded: u64,
    /// Bytes of what it calls a block: those of the disk's, or a part of them.
    pub unit: u64,
    /// Cores on which it is: the first ones.
    pub homes: u32,
    /// Where its first block is, bytes.
    pub base: u64,
}

/// All applications of one host.
pub struct Client {
    habit: Habit,
    /// Distinguishes its tags from other clients'.
    number: u64,
    random: Random,
    conns: Vec<Connection>,
    /// Requests begun and ended so far.
    pub begun: u64,
    pub ended: u64,
    /// Requests that failed, by what was said.
    pub failed: Vec<Failed>,
    /// Of connections that have ended.
    past: Vec<Tally>,
    /// What it did and saw.
    pub records: Vec<Record>,
    writes: u64,
    outputs: VecDeque<Output>,
    /// It begins nothing more.
    pub resting: bool,
    /// Writes that were cut off and may be executed yet.
    pub orphans: Vec<Orphan>,
    /// Of those so far, the ones that were over at a known time.
    pub orphans_over: u64,
    /// It only flushes.
    flushing: bool,
    /// The next block that is read at the end of all.
    to_read: Option<u64>,
    /// The request that took longest of those that were done.
    pub slowest: Option<Done>,
}

/// A request that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    pub request: Request,
    pub error: CommandError,
    pub start_ns: u64,
    pub end_ns: u64,
    /// When its connection was made, ns.
    pub since_ns: u64,
    /// To which core.
    pub home: u32,
}

/// What is to be written into the history.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// An operation on a block.
    Block(u64, Op),
    /// A flush from … to ….
    Flush(u64, u64),
}

struct Connection {
    session: Option<Session>,
    /// Its connection has ended, and its session knows.
    over: bool,
    ready: bool,
    /// When to connect again.
    again_ns: u64,
    requests: Vec<Option<Begun>>,
    /// No request before.
    next_ns: u64,
    tally: Tally,
}

#[derive(Clone, Copy)]
struct Begun {
    request: Request,
    start_ns: u64,
    /// Of the first block.
    tag: u64,
}

impl Client {
    /// Applications that begin at once. `number` from 1.
    pub fn new(number: u64, habit: Habit, seed: u64) -> Self {
        let connection = |_| Connection {
            session: None,
            over: false,
            ready: false,
            again_ns: 0,
            requests: alloc::vec![None; usize::from(habit.depth)],
            next_ns: 0,
            tally: Tally::default(),
        };
        Self {
            habit,
            number,
            random: Random::new(seed),
            conns: (0..habit.connections).map(connection).collect(),
            begun: 0,
            ended: 0,
            failed: Vec::new(),
            past: Vec::new(),
            records: Vec::new(),
            writes: 0,
            outputs: VecDeque::new(),
            resting: false,
            orphans: Vec::new(),
            orphans_over: 0,
            flushing: false,
            to_read: None,
            slowest: None,
        }
    }

    /// Once all else has ended: reads every block once more.
    pub fn read_all(&mut self) {
        (self.to_read, self.flushing) = (Some(0), false);
        self.habit.total = self.begun + self.habit.blocks + self.habit.crowded;
    }

    /// Once all else has ended: so many requests more, without pauses.
    pub fn exercise(&mut self, count: u64) {
        (self.to_read, self.flushing) = (None, false);
        self.habit.total = self.begun + count;
        self.habit.pause_ns = 0;
        self.slowest = None;
    }

    /// Once all else has ended: flushes once.
    pub fn flush(&mut self) {
        self.flushing = true;
        self.habit.total = self.begun + 1;
    }

    /// Bytes of memory that it needs.
    pub fn arena_bytes(&self) -> usize {
        self.habit.connections as usize
            * usize::from(self.habit.depth)
            * BLOCKS_MAX as usize
            * BLOCK
    }

    /// Whether all requests have ended.
    pub fn is_over(&self) -> bool {
        let none = self
            .conns
            .iter()
            .all(|it| it.requests.iter().all(Option::is_none));
        (self.resting || self.begun >= self.habit.total) && none && self.orphans.is_empty()
    }

    /// Requests without an end: at which core, and since when, ns.
    pub fn open(&self) -> Vec<(u32, u64, Request)> {
        let homes = self.habit.homes;
        let of = |(conn, it): (u32, &Connection)| {
            let open = it.requests.iter().flatten();
            let told = open.map(move |it| (conn % homes, it.start_ns, it.request));
            told.collect::<Vec<_>>()
        };
        (0..).zip(&self.conns).flat_map(of).collect()
    }

    /// Those, and the tag of the first block of each.
    pub fn tagged(&self) -> impl Iterator<Item = (Request, u64)> {
        let open = self.conns.iter().flat_map(|it| it.requests.iter());
        open.flatten().map(|it| (it.request, it.tag))
    }

    /// Of those, the one that waits longest.
    pub fn oldest(&self) -> Option<(u32, u64, Request)> {
        self.open().into_iter().min_by_key(|it| it.1)
    }

    /// What became of requests, by connection.
    pub fn tallies(&self) -> Vec<Tally> {
        let open = self.conns.iter().map(|it| it.tally);
        self.past.iter().copied().chain(open).collect()
    }

    /// What it did and saw so far, for the history.
    pub fn tell(&mut self, history: &mut History) {
        for record in self.records.drain(..) {
            match record {
                Record::Block(block, op) => history.record(block, op),
                Record::Flush(start_ns, end_ns) => history.flushed(self.number, start_ns, end_ns),
            }
        }
    }

    fn span(&self, conn: usize, token: u32, offset: u32, len: u32) -> Span {
        let slot = conn * usize::from(self.habit.depth) + token as usize;
        let at = (slot * BLOCKS_MAX as usize * BLOCK) as u64 + u64::from(offset);
        Span { at, len }
    }

    fn begin(&mut self, conn: usize, memory: &mut dyn Memory, now_ns: u64) {
        while !self.resting && self.begun < self.habit.total && self.conns[conn].next_ns <= now_ns {
            let requests = &self.conns[conn].requests;
            let Some(token) = requests.iter().position(Option::is_none) else {
                return;
            };
            let begun = self.draw(token as u32, now_ns);
            let request = begun.request;
            if request.kind == Kind::Write {
                let unit = self.habit.unit;
                let span = self.span(conn, request.token, 0, request.length);
                for (block, bytes) in
                    (begun.tag..).zip(memory.bytes_mut(span).chunks_mut(unit as usize))
                {
                    fill(bytes, block);
                }
            }
            let Some(session) = &mut self.conns[conn].session else {
                return;
            };
            let base = match request.kind {
                Kind::Flush => 0,
                _ => self.habit.base,
            };
            let offset = request.offset + base;
            if session.submit(&Request { offset, ..request }).is_err() {
                self.conns[conn].ready = false; // it is over, and has not said so yet
                return;
            }
            self.begun += 1;
            self.conns[conn].requests[token] = Some(begun);
            if self.to_read.is_none() && self.random.up_to(PAUSES - 1) == 0 {
                let pause_ns = self.random.up_to(self.habit.pause_ns);
                self.conns[conn].next_ns = now_ns + pause_ns;
            }
        }
    }

    fn draw(&mut self, token: u32, now_ns: u64) -> Begun {
        let unit = self.habit.unit;
        if self.flushing {
            return Begun {
                request: Request::new(token, Kind::Flush, 0, 0),
                start_ns: now_ns,
                tag: 0,
            };
        }
        if let Some(block) = &mut self.to_read {
            let request = Request::new(token, Kind::Read, *block * unit, unit as u32);
            *block += 1;
            return Begun {
                request,
                start_ns: now_ns,
                tag: 0,
            };
        }
        let what = self.random.up_to(255);
        let crowded = self.habit.crowded > 0 && self.random.up_to(CROWDED - 1) == 0;
        let (from, all) = match crowded {
            true => (self.habit.blocks, self.habit.crowded),
            false => (0, self.habit.blocks),
        };
        let blocks = 1 + self.random.up_to(BLOCKS_MAX.min(all) - 1);
        let first = from + self.random.up_to(all - blocks);
        let may = || crowded || self.may_write(first..first + blocks);
        let kind = match what {
            _ if what < self.habit.writes && may() => Kind::Write,
            _ if what < self.habit.writes + self.habit.flushes => Kind::Flush,
            _ => Kind::Read,
        };
        let fua = kind == Kind::Write && self.random.up_to(15) == 0;
        let tag = self.number << 48 | self.writes << 6;
        self.writes += u64::from(kind == Kind::Write);
        let (offset, length) = match kind {
            Kind::Flush => (0, 0),
            _ => (first * unit, (blocks * unit) as u32),
        };
        let request = Request {
            fua,
            ..Request::new(token, kind, offset, length)
        };
        Begun {
            request,
            start_ns: now_ns,
            tag,
        }
    }
}

impl Client {
    /// Whether blocks are this client's to write, and nobody writes them just now.
    fn may_write(&self, blocks: core::ops::Range<u64>) -> bool {
        let (share, shares) = self.habit.share;
        let each = self.habit.blocks / shares;
        let own = share * each <= blocks.start && blocks.end <= (share + 1) * each;
        let requests = self
            .conns
            .iter()
            .flat_map(|it| it.requests.iter().flatten());
        let mut writes = requests.filter(|it| it.request.kind == Kind::Write);
        let unit = self.habit.unit;
        let from = |it: &Begun| it.request.offset / unit;
        let to = |it: &Begun| from(it) + u64::from(it.request.length) / unit;
        let meets = |it: &Orphan| it.blocks.start < blocks.end && blocks.start < it.blocks.end;
        own && !writes.any(|it| from(it) < blocks.end && blocks.start < to(it))
            && !self.orphans.iter().any(meets)
    }

    /// Takes what a session has to say.
    fn poll(&mut self, conn: usize, memory: &mut dyn Memory, now_ns: u64) {
        let id = ConnId(conn as u32);
        while let Some(event) = self.conns[conn]
            .session
            .as_mut()
            .and_then(Session::poll_event)
        {
            match event {
                Event::Ready(_) => self.conns[conn].ready = true,
                Event::Zero { token, offset, len } => {
                    memory
                        .bytes_mut(self.span(conn, token, offset, len))
                        .fill(0);
                }
                Event::Completed(completed) => self.complete(conn, &completed, memory, now_ns),
                Event::Transmit => self.outputs.push_back(Output::Transmit(id)),
                Event::Resume => self.outputs.push_back(Output::Resume(id)),
                Event::Close | Event::Failed(_) => self.outputs.push_back(Output::Close {
                    conn: id,
                    abort: false,
                }),
            }
        }
    }

    fn complete(&mut self, conn: usize, end: &Completed, memory: &dyn Memory, now_ns: u64) {
        let begun = self.conns[conn].requests[end.token as usize].take();
        assert!(
            begun.is_some(),
            "request {} of connection {conn} ended twice",
            end.token
        );
        let Some(begun) = begun else { return };
        self.ended += 1;
        let tally = &mut self.conns[conn].tally;
        tally.count(&begun.request, end.result);
        let since_ns = tally.since_ns;
        self.note(conn, &begun, end.result, (since_ns, now_ns));
        // Whoever hears an error knows that nothing more is done; but not who is cut off.
        let failed = match end.result {
            Ok(()) => false,
            Err(CommandError::Server(errno)) => errno != Errno::Shutdown,
            Err(_) => false,
        };
        let done = end.result.is_ok();
        let end_ns = if done || failed { now_ns } else { NEVER };
        let request = &begun.request;
        let op = |deed| Op {
            deed,
            start_ns: begun.start_ns,
            end_ns,
        };
        let unit = self.habit.unit;
        let first = request.offset / unit;
        match request.kind {
            Kind::Write if end.result == Err(CommandError::Lost) => self.bereave(conn, &begun),
            Kind::Write => {
                let blocks = u64::from(request.length) / unit;
                for (block, tag) in (first..first + blocks).zip(begun.tag..) {
                    let tag = Tag(tag);
                    let deed = match failed {
                        true => Deed::Failed(tag),
                        false => Deed::Write {
                            tag,
                            durable: request.fua,
                        },
                    };
                    self.records.push(Record::Block(block, op(deed)));
                }
            }
            Kind::Read if done => {
                let span = self.span(conn, end.token, 0, request.length);
                for (block, bytes) in (first..).zip(memory.bytes(span).chunks(unit as usize)) {
                    let deed = Deed::Read(tag(bytes));
                    self.records.push(Record::Block(block, op(deed)));
                }
            }
            Kind::Flush if done => {
                self.records.push(Record::Flush(begun.start_ns, end_ns));
            }
            _ => {}
        }
    }

    /// Keeps a request that failed, or took longest.
    fn note(
        &mut self,
        conn: usize,
        begun: &Begun,
        result: Result<(), CommandError>,
        (since_ns, end_ns): (u64, u64),
    ) {
        let (request, start_ns) = (begun.request, begun.start_ns);
        let home = conn as u32 % self.habit.homes;
        match result {
            Ok(()) => {
                let done = Done {
                    request,
                    home,
                    start_ns,
                    end_ns,
                };
                self.slowest = Some(done.or_slower(self.slowest));
            }
            Err(error) => self.failed.push(Failed {
                request,
                error,
                start_ns,
                end_ns,
                since_ns,
                home,
            }),
        }
    }

    /// A write was cut off with its connection.
    fn bereave(&mut self, conn: usize, begun: &Begun) {
        let (request, unit) = (&begun.request, self.habit.unit);
        let first = request.offset / unit;
        self.orphans.push(Orphan {
            blocks: first..first + u64::from(request.length) / unit,
            tag: begun.tag,
            durable: request.fua,
            start_ns: begun.start_ns,
            since_ns: self.conns[conn].tally.since_ns,
            home: conn as u32 % self.habit.homes,
        });
    }

    /// What a session in trouble leaves: its requests have said so already.
    fn over(&mut self, conn: usize, now_ns: u64) {
        let it = &mut self.conns[conn];
        (it.session, it.over, it.ready) = (None, false, false);
        self.past.push(core::mem::take(&mut it.tally));
        it.again_ns = now_ns + AGAIN_NS;
    }

    fn connect(&mut self, conn: usize) {
        let config = Config {
            requests_max: self.habit.depth,
            block_sizes: self.habit.unit == BLOCK as u64,
            ..Config::default()
        };
        self.conns[conn].session = Some(Session::new(config));
        self.outputs.push_back(Output::Open {
            conn: ConnId(conn as u32),
            address: conn as u32 % self.habit.homes,
        });
    }
}

impl Machine for Client {
    type Control = ();

    fn connections_max(&self) -> u32 {
        self.conns.len() as u32
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        None
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.conns[conn.0 as usize].tally.since_ns = now_ns;
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_connected(now_ns);
        }
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        let session = &mut self.conns[conn.0 as usize].session;
        let taken = session.as_mut().map(|it| it.handle_bytes(bytes, now_ns));
        taken.unwrap_or(bytes.len())
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let session = self.conns[conn.0 as usize].session.as_ref()?;
        let place = session.placement()?;
        let span = self.span(conn.0 as usize, place.token, place.offset, place.len);
        Some(Place { span, crc: None })
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, _: u32, now_ns: u64) {
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_payload(len, now_ns);
        }
    }
    fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
        let session = self.conns[conn.0 as usize].session.as_mut()?;
        let payload = session.poll_transmit(out)?.payload;
        Some(payload.map(|payload| Send {
            span: self.span(conn.0 as usize, payload.token, payload.offset, payload.len),
            digest: false,
            cookie: payload.token,
        }))
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, _: u64) {
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_sent(cookie);
        }
    }
    fn handle_closed(&mut self, conn: ConnId, _: Closed, _: u64) {
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_closed();
        }
        self.conns[conn.0 as usize].over = true;
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        for conn in 0..self.conns.len() {
            self.poll(conn, memory, now_ns);
            if self.conns[conn].over {
                self.over(conn, now_ns);
            }
            let it = &mut self.conns[conn];
            if it.session.is_none() && it.again_ns <= now_ns {
                it.again_ns = 0;
                self.connect(conn);
            } else if it.ready {
                self.begin(conn, memory, now_ns);
                self.poll(conn, memory, now_ns);
            }
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        let more = !self.resting && self.begun < self.habit.total;
        let times = self.conns.iter().flat_map(|it| {
            let session = it.session.as_ref().and_then(Session::poll_timeout);
            let again = it.session.is_none().then_some(it.again_ns);
            let free = it.requests.iter().any(Option::is_none);
            let next = (it.ready && more && free && it.next_ns > 0).then_some(it.next_ns);
            [session, again, next]
        });
        times.flatten().min()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        for it in &mut self.conns {
            if let Some(session) = &mut it.session {
                session.handle_timeout(now_ns);
            }
        }
    }
}
