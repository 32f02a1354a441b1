//! Volumes offered to NBD clients, of whom three lie, and an honest client beside them.
//!
//! Checked: see the module above; the honest client's bytes are right unless one of the others
//! wrote there, its requests end in time and well, and all memory comes back.
use super::clients::Ended;
use super::common::{BLOCK, HOST, MS, SECOND, fill};
use super::rig::{Plain, Rig, Setup, VOLUME, config, offer};
use super::tape::Tape;
use engine::export::ExportControl;
use engine::limits::DRAIN_ANSWER_NS;
use engine::machine::Closed;
use engine::{DeviceOp, DeviceRequest};
use nbd::wire::{INIT_MAGIC, OPTION_MAGIC, OptionHeader, RequestHeader, handshake};
use nbd::{Kind, Request};

/// Operations that play well, for seeds. It connects and says hello.
pub const HELLO: u8 = 1;
/// An option: its number, a choice, a length and as many bytes.
pub const OPTION: u8 = 2;
/// A request: command, flags, place, size, and bytes behind it.
pub const REQUEST: u8 = 4;
/// Time passes; ms follow.
pub const PASS: u8 = 5;
/// An operation of liar `n`.
pub const fn of(liar: u8, operation: u8) -> u8 {
    liar << 4 | operation
}

/// Clients that lie.
const LIARS: usize = 3;
/// The clients' node.
const CLIENTS: usize = super::rig::CLIENTS;
/// The honest client's part of the volume, and one request of it.
const HONEST_AT: u64 = VOLUME - (1 << 20);
const HONEST_BYTES: u32 = 16 << 10;
const DEPTH: u16 = 4;
/// Versions that may still be under way.
const RECENT: u64 = 64;
/// Between two operations.
const STEP_NS: u64 = MS / 5;
/// An honest client waits no longer, whatever others do.
const SERVED_NS: u64 = 5 * SECOND;
/// Clients are given up and gone: 60 s of stalling, then what is queued may go out.
const GIVEN_UP_NS: u64 = 80 * SECOND;
const DRAIN_NS: u64 = SECOND;
const RESET: Closed = Closed::Error(104);

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    play(data);
}

/// The same; bytes that those that lie were told.
pub fn play(data: &[u8]) -> usize {
    let mut tape = Tape::new(data);
    let choice = tape.byte();
    let mut scene = Scene::new(choice);
    while let Some(operation) = tape.operation() {
        scene.step(operation, &mut tape);
    }
    scene.finish(choice >> 6)
}

struct Scene {
    rig: Rig,
    honest: usize,
    liars: [Option<usize>; LIARS],
    /// By token: what it reads or writes, and since when.
    under_way: Vec<Option<(Request, u64, u64)>>,
    /// By place: the version that is there.
    known: Vec<u64>,
    version: u64,
    verified: u64,
    /// Somebody else wrote to the honest client's part.
    blind: bool,
    /// Requests of the liars on connections that are over.
    heard: usize,
}

impl Scene {
    fn new(choice: u8) -> Self {
        let mut setup = Setup {
            slot_bytes: HONEST_BYTES.into(),
            ..Setup::default()
        };
        setup.export.clients_max = [4, 5, 8, 16][usize::from(choice & 3)];
        setup.export.requests_max = [2, 4, 16, 64][usize::from(choice >> 2 & 3)];
        setup.host.io_max = if choice & 16 != 0 { 2 } else { 64 };
        setup.target.subsystem.volatile_write_cache = choice & 32 != 0;
        let requests = DEPTH.min(setup.export.requests_max);
        let mut rig = Rig::ready(setup);
        *rig.disk.log.borrow_mut() = Some(Vec::new());
        let honest = rig.connect(config(requests));
        let places = (1 << 20) / HONEST_BYTES as usize;
        Self {
            rig,
            honest,
            liars: [None; LIARS],
            under_way: vec![None; requests.into()],
            known: vec![0; places],
            version: 0,
            verified: 0,
            blind: false,
            heard: 0,
        }
    }

    fn step(&mut self, operation: u8, tape: &mut Tape) {
        let liar = usize::from(operation >> 4) % LIARS;
        match operation & 15 {
            0 => self.open(liar),
            HELLO => {
                self.open(liar);
                self.say(liar, &Plain::hello());
            }
            OPTION => self.option(liar, tape),
            3 => {
                self.open(liar);
                let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
                self.say(liar, &u32::from(flags).to_be_bytes());
            }
            REQUEST | 6 => self.request(liar, tape),
            PASS => self.pass(u64::from(tape.word()) * MS),
            7 => {
                let len = usize::from(tape.byte());
                self.say(liar, tape.take(len));
            }
            8 => self.say(liar, &vec![0; usize::from(tape.word())]),
            9 => self.stuff(liar, tape.byte() & 1 != 0),
            10 => self.end(liar, RESET),
            11 => self.end(liar, Closed::ByPeer),
            12 => self.pass(u64::from(tape.byte()) * 10_000),
            _ => self.submit(tape.byte()),
        }
        self.submit(operation);
        self.pass(STEP_NS);
    }

    fn open(&mut self, liar: usize) {
        self.end(liar, RESET);
        let conn = self.rig.clients.borrow_mut().connect_raw(0);
        self.liars[liar] = Some(conn);
        self.pass(STEP_NS);
    }

    fn end(&mut self, liar: usize, how: Closed) {
        if how == Closed::ByPeer {
            self.stuff(liar, false);
        }
        if let Some(conn) = self.liars[liar].take() {
            self.heard += self.rig.clients.borrow().all[conn].said.len();
            self.rig.world.end(CLIENTS, conn as u32, None, how);
        }
    }

    fn stuff(&mut self, liar: usize, stuffed: bool) {
        let conn = self.liars[liar].unwrap_or(usize::MAX) as u32;
        let conns = &self.rig.world.nodes[CLIENTS].conns;
        if conns.get(&conn).is_some_and(|conn| conn.peer.is_some()) {
            self.rig.world.stuff(CLIENTS, conn, stuffed);
        }
    }

    fn say(&mut self, liar: usize, bytes: &[u8]) {
        let Some(conn) = self.liars[liar] else { return };
        let mut clients = self.rig.clients.borrow_mut();
        if !bytes.is_empty() && clients.all[conn].closed.is_none() {
            clients.say(conn, bytes);
        }
    }

    /// Choice: a length that lies in bit 7, a magic number that does in 6, data of GO in 0.
    fn option(&mut self, liar: usize, tape: &mut Tape) {
        let (option, choice, len) = (tape.byte(), tape.byte(), tape.byte());
        let mut data = tape.take(len.into()).to_vec();
        if choice & 1 != 0 {
            // Information or GO: a name, and what is asked of it.
            let asked: [&[u8]; 2] = [&[0, 1, 0, 3], &[0, 2, 0, 0, 0, 3]];
            let asked = asked[usize::from(choice >> 1 & 1)];
            data = [&2_u32.to_be_bytes()[..], b"v0", asked, &data[..]].concat();
        } else if choice & 2 != 0 {
            let query = b"base:allocation";
            let (name, count) = (2_u32.to_be_bytes(), 1_u32.to_be_bytes());
            let length = (query.len() as u32).to_be_bytes();
            let parts = [&name[..], b"v0", &count, &length, query, &data[..]];
            data = parts.concat();
        }
        let length = match choice >> 7 {
            0 => data.len() as u32,
            _ => tape.long(),
        };
        let mut bytes = Vec::new();
        OptionHeader {
            option: option.into(),
            len: length,
        }
        .emit(&mut bytes);
        if choice & 0x40 != 0 {
            bytes[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
            assert_ne!(INIT_MAGIC, OPTION_MAGIC);
        }
        bytes.extend(data);
        self.say(liar, &bytes);
    }

    /// Where: in blocks, or at the end; how much: in blocks or bytes, or beyond any limit.
    fn request(&mut self, liar: usize, tape: &mut Tape) {
        let (command, flags, cookie) = (tape.byte() % 9, tape.byte(), tape.byte());
        let (place, size, behind) = (tape.word(), tape.word(), tape.word());
        let offset = match place >> 12 {
            0..=9 => u64::from(place) * u64::from(BLOCK),
            10..=13 => u64::from(place),
            14 => VOLUME - u64::from(place & 0xfff),
            _ => u64::MAX - u64::from(place & 0xfff),
        };
        let length = match size >> 12 {
            0..=7 => (u32::from(size & 31) + 1) * BLOCK,
            8..=11 => u32::from(size & 0xfff),
            12 => u32::from(size & 0xfff) << 12,
            13 => nbd::limits::BLOCK_MAX + u32::from(size & 1),
            _ => u32::MAX - u32::from(size & 0xfff),
        };
        let mut bytes = Vec::new();
        RequestHeader {
            flags: flags.into(),
            command: command.into(),
            cookie: cookie.into(),
            offset,
            length,
        }
        .emit(&mut bytes);
        let all = length.min(1 << 20);
        let data = match behind >> 14 {
            _ if command != nbd::wire::cmd::WRITE as u8 => 0,
            0 | 1 => all,
            2 => u32::from(behind & 0x3fff),
            _ => all / 2,
        };
        bytes.resize(bytes.len() + data as usize, 0x5a);
        self.say(liar, &bytes);
    }

    /// The honest client asks for something.
    fn submit(&mut self, choice: u8) {
        let Some(token) = self.under_way.iter().position(Option::is_none) else {
            return;
        };
        let place = (usize::from(choice) * 7 + token) % self.known.len();
        let busy = |it: &(Request, u64, u64)| it.0.offset == at(place);
        if self.under_way.iter().flatten().any(busy) {
            return;
        }
        let kind = if choice & 1 == 0 {
            Kind::Write
        } else {
            Kind::Read
        };
        let request = Request::new(token as u32, kind, at(place), HONEST_BYTES);
        let mut data = Vec::new();
        if kind == Kind::Write {
            self.version += 1;
            data.resize(HONEST_BYTES as usize, 0);
            fill(&mut data, at(place), self.version);
        }
        self.under_way[token] = Some((request, self.version, self.rig.world.now_ns));
        self.rig.submit(self.honest, request, &data);
    }

    fn pass(&mut self, ns: u64) {
        self.rig.world.pass(ns);
        while let Some(_event) = { self.rig.engine.borrow_mut().poll_event() } {}
        self.look_at_disk();
        for ended in self.rig.ended(self.honest) {
            self.ended(&ended);
        }
        let now_ns = self.rig.world.now_ns;
        let late = |it: &(Request, u64, u64)| it.2 + SERVED_NS < now_ns;
        let late = self.under_way.iter().flatten().find(|it| late(it));
        assert!(late.is_none(), "the honest client waits: {late:?}");
    }

    /// Checks that no other client wrote where the honest client writes.
    fn look_at_disk(&mut self) {
        let log = self.rig.disk.log.borrow_mut().replace(Vec::new());
        for (request, bytes) in log.unwrap_or_default() {
            self.blind |= !self.is_honest(&request, &bytes);
        }
    }

    fn is_honest(&self, request: &DeviceRequest, bytes: &[u8]) -> bool {
        let changes = !matches!(request.op, DeviceOp::Read | DeviceOp::Flush);
        if !changes || request.offset + request.length <= HONEST_AT {
            return true;
        }
        let mut want = vec![0; bytes.len()];
        let recent = self.version.saturating_sub(RECENT)..=self.version;
        matches!(request.op, DeviceOp::Write { .. })
            && recent.rev().any(|version| {
                fill(&mut want[..8], request.offset, version);
                want[..8] == bytes[..8] && {
                    fill(&mut want, request.offset, version);
                    want == bytes
                }
            })
    }

    fn ended(&mut self, ended: &Ended) {
        let taken = self.under_way[ended.token as usize].take();
        let (request, version, _) = taken.expect("ended once");
        assert_eq!(ended.result, Ok(()), "{request:?} of the honest client");
        let place = ((request.offset - HONEST_AT) / u64::from(HONEST_BYTES)) as usize;
        if request.kind == Kind::Write {
            self.known[place] = version;
        } else if !self.blind {
            let mut want = vec![0; HONEST_BYTES as usize];
            if self.known[place] > 0 {
                fill(&mut want, request.offset, self.known[place]);
            }
            assert!(ended.data == want, "wrong bytes at {}", request.offset);
            self.verified += 1;
        }
    }

    /// The honest client is served at last; then the others go or are given up, and all memory is
    /// there; or the export is withdrawn, or the engine stops, while they are connected.
    fn finish(mut self, how: u8) -> usize {
        (0..8).for_each(|choice| {
            self.submit(choice);
            self.pass(20 * MS);
        });
        self.pass(SERVED_NS);
        assert!(self.verified > 0 || self.blind, "nothing was checked");
        self.rig.clients.borrow_mut().leave(self.honest);
        let told = |it: &Self, liar: &Option<usize>| {
            let said = |conn: usize| it.rig.clients.borrow().all[conn].said.len();
            liar.map_or(0, said)
        };
        let heard: usize = self.liars.iter().map(|liar| told(&self, liar)).sum();
        match how {
            0 => {
                (0..LIARS).for_each(|liar| self.end(liar, RESET));
                self.pass(2 * SECOND);
                self.rig.at_rest();
            }
            1 => {
                let control = ExportControl::Withdraw(0, DRAIN_NS);
                self.rig.control(control);
                self.pass(2 * DRAIN_NS + 12 * SECOND);
                self.rig.at_rest();
                self.rig.control(ExportControl::Offer(0, offer(false)));
                let again = self.rig.connect(config(1));
                self.rig.clients.borrow_mut().leave(again);
                self.pass(SECOND);
            }
            2 => {
                (0..LIARS).for_each(|liar| self.stuff(liar, true));
                self.pass(GIVEN_UP_NS);
                let engine = self.rig.engine.borrow();
                assert_eq!(engine.buffers_free(), engine.buffers(), "memory is held");
            }
            _ => {}
        }
        self.rig.control(ExportControl::Stop(DRAIN_NS));
        self.pass(DRAIN_NS + DRAIN_ANSWER_NS + 20 * SECOND);
        assert!(
            self.rig.world.nodes[HOST].stopped,
            "the engine does not stop"
        );
        let engine = self.rig.engine.borrow();
        assert_eq!(engine.buffers_free(), engine.buffers());
        drop(engine);
        self.heard + heard
    }
}

/// A place of the honest client.
fn at(place: usize) -> u64 {
    HONEST_AT + place as u64 * u64::from(HONEST_BYTES)
}
