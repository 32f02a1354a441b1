//! Applications on one host: several connections, of NBD or NVMe/TCP, that read, write and flush a
//! few blocks, and write down what they did and saw.
//!
//! * `ask`: what they ask for, `ends`: what became of it, `machine`: what the world calls
//! * `session`: one connection of either kind; `association`: those of NVMe/TCP hosts; `zeroes`:
//!   blocks that are zeroed
//!
//! # Contract
//! Every block of a write has a tag that no other write has. No two writes of a block are under way
//! together, as file systems have it: a write that is repeated on another path may take effect
//! twice, and one between them would be undone. A few blocks behind the others are an exception:
//! all clients of all hosts write there, at any time. A request whose connection ended, or that
//! failed, may have been executed or not. Each connection is made again when it has ended.
mod ask;
mod association;
mod ends;
mod machine;
mod session;
mod zeroes;

use super::orphan::Orphan;
use super::prelude::*;
pub use super::tally::{Done, Tally};
use super::wire_recorder::Tap;
use alloc::collections::VecDeque;
use association::Association;
pub use association::NQN;
use nbd::client::Config;
use session::Session;
pub use session::{NSID, RequestError};
pub use zeroes::ZEROED;
use zeroes::Zeroes;

/// Longest request, blocks.
pub(super) const BLOCKS_MAX: u64 = 32;
/// One request in so many is of crowded blocks, where there are any.
const CROWDED: u64 = 8;
/// How long until an ended connection is made again.
const AGAIN_NS: u64 = 50_000_000;

/// Behaviour of a client.
#[derive(Clone, Copy, Debug, Default)]
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
    /// How it reaches the engine.
    pub front_end: FrontEnd,
}

/// The front end that applications use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrontEnd {
    #[default]
    Nbd,
    Nvme(Nvme),
}

/// Applications that are NVMe/TCP hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvme {
    /// To each core; each is a host of its own.
    pub associations: u32,
    pub digests: Digests,
    /// The engine has as little memory for them as it can do with.
    pub tight: bool,
    /// Every second connection to a core uses NBD.
    pub beside_nbd: bool,
    /// The first of the blocks that the application also [zeroes](ZEROED), if it does, and whether
    /// caches may be lost.
    pub zeroes: Option<(u64, bool)>,
}

/// All applications of one host.
#[derive(Default)]
pub struct Client {
    habit: Habit,
    /// Distinguishes its tags from other clients'.
    number: u64,
    random: Random,
    conns: Vec<Connection>,
    /// Their admin connections are behind [`Self::conns`].
    associations: Vec<Association>,
    zeroes: Option<Zeroes>,
    /// A read of those was judged.
    pub zeroes_judged: bool,
    /// Since when its export over NVMe/TCP is away, if it is.
    pub unexported_ns: Option<u64>,
    /// The first read that no device explains, or request that was not to be done.
    pub wrong: Option<String>,
    /// Requests begun and ended so far.
    pub begun: u64,
    pub ended: u64,
    /// Requests that failed, by what was said.
    pub failed: Vec<Failed>,
    /// Of connections that have ended.
    past: Vec<Tally>,
    /// Its requests and their results.
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
    /// One request at a time on each core.
    singly: bool,
    /// The next block that is read at the end of all.
    to_read: Option<u64>,
    /// The request that took longest of those that were done.
    pub slowest: Option<Done>,
}

/// A request that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    pub request: Request,
    pub error: RequestError,
    pub start_ns: u64,
    pub end_ns: u64,
    /// When its connection was made, ns.
    pub since_ns: u64,
    /// Its number.
    pub conn: usize,
    /// To which core.
    pub home: u32,
    /// Over an NVMe/TCP association: its engine knows the host by its identifier, also once it has
    /// connected again.
    pub has_identity: bool,
}

/// Record for the history.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// An operation on a block.
    Block(u64, Op),
    /// A flush from … to ….
    Flush(u64, u64),
}

#[derive(Default)]
struct Connection {
    session: Option<Session>,
    /// Its connection has ended, and its session knows.
    over: bool,
    ready: bool,
    /// Of NVMe/TCP: it is connected and not being closed, and may have something to send.
    up: bool,
    stirred: bool,
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
            requests: vec![None; usize::from(habit.depth)],
            ..Connection::default()
        };
        Self {
            habit,
            number,
            random: Random::new(seed),
            conns: (0..habit.connections).map(connection).collect(),
            associations: Association::all(habit.front_end, habit.homes),
            zeroes: match habit.front_end {
                FrontEnd::Nbd => None,
                FrontEnd::Nvme(it) => it.zeroes.map(|(first, caches)| Zeroes::new(first, caches)),
            },
            ..Self::default()
        }
    }

    /// Once all else has ended: reads every block once more.
    pub fn read_all(&mut self) {
        (self.to_read, self.flushing) = (Some(0), false);
        self.habit.total = self.begun + self.habit.blocks + self.habit.crowded;
    }

    /// Once all else has ended: so many requests more, without pauses; `singly`: one at a time on
    /// each core.
    pub fn exercise(&mut self, count: u64, singly: bool) {
        self.singly = singly;
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

    /// Sums over requests, by connection.
    pub fn tallies(&self) -> Vec<Tally> {
        let open = self.conns.iter().map(|it| it.tally);
        self.past.iter().copied().chain(open).collect()
    }

    /// Moves its records so far into the history.
    pub fn tell(&mut self, history: &mut History) {
        for record in self.records.drain(..) {
            match record {
                Record::Block(block, op) => history.record(block, op),
                Record::Flush(start_ns, end_ns) => history.flushed(self.number, start_ns, end_ns),
            }
        }
    }

    /// A recorder of one of its connections.
    pub fn tap(&self, conn: u32) -> Tap {
        let conn = conn as usize;
        match conn < self.conns.len() && self.association_of(conn).is_none() {
            true => Tap::nbd(),
            false => Tap::nvme(),
        }
    }

    fn span(&self, conn: usize, token: u32, offset: u32, len: u32) -> Span {
        let slot = conn * usize::from(self.habit.depth) + token as usize;
        let at = (slot * BLOCKS_MAX as usize * BLOCK) as u64 + u64::from(offset);
        Span { at, len }
    }

    /// Left by a session in trouble: its requests have ended with errors already.
    fn over(&mut self, conn: usize, now_ns: u64) {
        let association = self.association_of(conn);
        let it = &mut self.conns[conn];
        (it.session, it.over, it.ready, it.up) = (None, false, false, false);
        self.past.push(core::mem::take(&mut it.tally));
        it.again_ns = now_ns + AGAIN_NS;
        if let Some(at) = association {
            it.again_ns = 0; // it waits for its association
            self.end_association(at);
        }
    }

    fn connect(&mut self, conn: usize) {
        let session = match self.association_of(conn) {
            Some(at) => self.queue(conn, at),
            None => Session::Nbd(Box::new(nbd::client::Session::new(Config {
                requests_max: self.habit.depth,
                block_sizes: self.habit.unit == BLOCK as u64,
                ..Config::default()
            }))),
        };
        self.conns[conn].session = Some(session);
        let home = conn as u32 % self.habit.homes;
        let address = match self.association_of(conn) {
            Some(_) => home,
            None => self.nbd_address(home),
        };
        self.outputs.push_back(Output::Open {
            conn: ConnId(conn as u32),
            address,
        });
    }
}
