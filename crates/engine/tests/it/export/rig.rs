//! Clients, an engine with exports, a target and its disk, wired to each other.
use super::clients::{Clients, Ended};
use super::common::{
    Address, BLOCK, BLOCKS, Disk, HOST, SECOND, TARGET, WIRE_NS, World, host_config, target_config,
};
use engine::Core;
use engine::Machine;
use engine::export::{ExportConfig, ExportControl, ExportEvent, Offer};
use engine::host::{HostConfig, HostEvent, Multipath};
use engine::target::{TargetConfig, TargetControl, TargetEngine};
use nbd::client::{CommandError, Config};
use nbd::wire::{Greeting, OptionHeader, RequestHeader, SimpleReply, handshake, opt};
use nbd::{Errno, Kind, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The clients' node.
pub const CLIENTS: usize = 2;
pub const VOLUME: u64 = BLOCKS * BLOCK as u64;

/// Settings that differ from test to test.
pub struct Setup {
    pub host: HostConfig,
    pub target: TargetConfig,
    pub export: ExportConfig,
    pub read_only: bool,
    /// Most bytes of one request of a client.
    pub slot_bytes: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            host: host_config(1),
            target: target_config(1),
            export: ExportConfig {
                clients_max: 8,
                requests_max: 16,
                arena_bytes: 68 << 20,
            },
            read_only: false,
            slot_bytes: 256 << 10,
        }
    }
}

impl Setup {
    /// A volume of so many MiB.
    pub fn with_volume(mut self, mib: u64) -> Self {
        self.target.subsystem.namespaces[0].blocks = (mib << 20) / u64::from(BLOCK);
        self
    }
}

pub struct Rig {
    pub world: World,
    pub engine: Rc<RefCell<Core>>,
    pub target: Rc<RefCell<TargetEngine>>,
    pub clients: Rc<RefCell<Clients>>,
    pub disk: Disk,
    pub events: Vec<ExportEvent>,
}

impl Rig {
    /// Volume 0 is offered as export 0; it isn't ready yet.
    pub fn new(setup: Setup) -> Self {
        let mut world = World::new(7);
        let arena_bytes = setup.export.arena_bytes as usize;
        let ports = setup.target.shapes.len() as u32;
        let target_arena = setup.target.arena_bytes as usize;
        let blocks = setup.target.subsystem.namespaces[0].blocks;
        let host = Multipath::new(setup.host);
        let engine = Rc::new(RefCell::new(Core::new(host, 1, setup.export)));
        let target = Rc::new(RefCell::new(TargetEngine::new(setup.target).unwrap()));
        let clients = Rc::new(RefCell::new(Clients::new(setup.slot_bytes)));
        assert_eq!(world.add(engine.clone(), arena_bytes), HOST);
        assert_eq!(world.add(target.clone(), target_arena), TARGET);
        assert_eq!(world.add(clients.clone(), 0), CLIENTS);
        let to = |node, listener| Address::To {
            node,
            listener,
            delay_ns: WIRE_NS,
        };
        world.nodes[HOST].addresses = (0..ports).map(|port| to(TARGET, port)).collect();
        world.nodes[CLIENTS].addresses = (0..4).map(|export| to(HOST, export)).collect();
        let disk = Disk::new((blocks * u64::from(BLOCK)) as usize);
        world.nodes[TARGET].disks = vec![disk.clone()];
        let mut rig = Self {
            world,
            engine,
            target,
            clients,
            disk,
            events: Vec::new(),
        };
        rig.control(ExportControl::Offer(0, offer(setup.read_only)));
        rig
    }

    /// The same, and the volume is ready.
    pub fn ready(setup: Setup) -> Self {
        let mut rig = Self::new(setup);
        rig.until(20 * SECOND, |rig| rig.is_ready());
        rig
    }

    pub fn is_ready(&self) -> bool {
        let ready = |event: &ExportEvent| matches!(event, ExportEvent::Host(HostEvent::Ready(..)));
        self.events.iter().any(ready)
    }

    pub fn control(&mut self, message: ExportControl) {
        let mut engine = self.engine.borrow_mut();
        engine.handle_control(message, self.world.now_ns);
    }

    pub fn target_control(&mut self, message: TargetControl) {
        let mut target = self.target.borrow_mut();
        target.handle_control(message, self.world.now_ns);
    }

    /// Lets at most `limit_ns` pass until it is so; `false`: it never was.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns + limit_ns;
        loop {
            let mut events = core::mem::take(&mut self.events);
            let before = events.len();
            let engine = self.engine.clone();
            let clients = self.clients.clone();
            let ends = |clients: &Clients| -> usize {
                let all = clients.all.iter();
                all.map(|c| c.ended.len() + c.said.len() + usize::from(c.closed.is_some()))
                    .sum()
            };
            let known = ends(&clients.borrow());
            // Every change is looked at.
            let moved = self.world.run(end_ns - self.world.now_ns, |_| {
                while let Some(event) = engine.borrow_mut().poll_event() {
                    events.push(event);
                }
                events.len() > before || ends(&clients.borrow()) != known
            });
            self.events = events;
            if done(self) {
                return true;
            }
            if !moved {
                return false;
            }
        }
    }

    /// The same; that it never is so is a failure.
    pub fn until(&mut self, limit_ns: u64, done: impl FnMut(&Self) -> bool) {
        assert!(self.run(limit_ns, done), "never came: {:?}", self.events);
    }

    pub fn pass(&mut self, ns: u64) {
        self.run(ns, |_| false);
    }

    /// Connects a session; not yet ready.
    pub fn begin(&mut self, config: Config) -> usize {
        let conn = self.clients.borrow_mut().connect(0, config);
        self.fit_arena();
        conn
    }

    /// Connects a session and waits until it is ready.
    pub fn connect(&mut self, config: Config) -> usize {
        let conn = self.begin(config);
        let is_ready = |rig: &Self| rig.clients.borrow().all[conn].ready.is_some();
        if !is_ready(self) {
            self.world
                .run(SECOND, |_| self.clients.borrow().all[conn].ready.is_some());
        }
        assert!(
            is_ready(self),
            "client {conn} is not ready: {:?}",
            self.events
        );
        conn
    }

    /// Connects a client that never asked for the block sizes: it is in transmission at once.
    pub fn connect_plain(&mut self) -> Plain {
        let conn = self.clients.borrow_mut().connect_raw(0);
        self.clients.borrow_mut().say(conn, &Plain::hello());
        self.until(SECOND, |rig| {
            rig.clients.borrow().all[conn].said.len() == Plain::HELLO
        });
        Plain {
            conn,
            parsed: Plain::HELLO,
            reads: BTreeMap::new(),
        }
    }

    fn fit_arena(&mut self) {
        let bytes = self.clients.borrow().arena_bytes() as usize;
        self.world.nodes[CLIENTS].arena.0.resize(bytes, 0);
    }

    pub fn submit(&mut self, conn: usize, request: Request, data: &[u8]) {
        self.clients.borrow_mut().submit(conn, request, data);
    }

    /// Requests of a client that have ended.
    pub fn ended(&self, conn: usize) -> Vec<Ended> {
        self.clients.borrow_mut().all[conn]
            .ended
            .drain(..)
            .collect()
    }

    /// One request, alone.
    pub fn one(&mut self, conn: usize, request: Request, data: &[u8]) -> Ended {
        self.submit(conn, request, data);
        self.until(100 * SECOND, |rig| {
            !rig.clients.borrow().all[conn].ended.is_empty()
        });
        let mut ended = self.ended(conn);
        assert_eq!(ended.len(), 1);
        ended.remove(0)
    }

    pub fn read(&mut self, conn: usize, offset: u64, length: u32) -> Vec<u8> {
        let ended = self.one(conn, Request::new(0, Kind::Read, offset, length), &[]);
        assert_eq!(ended.result, Ok(()));
        ended.data
    }

    pub fn write(&mut self, conn: usize, offset: u64, data: &[u8]) {
        let request = Request::new(0, Kind::Write, offset, data.len() as u32);
        let ended = self.one(conn, request, data);
        assert_eq!(ended.result, Ok(()));
    }

    /// The error of one request.
    pub fn refused(&mut self, conn: usize, request: Request, data: &[u8]) -> Errno {
        match self.one(conn, request, data).result {
            Err(CommandError::Server(errno)) => errno,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    pub fn is_closed(&self, conn: usize) -> bool {
        self.clients.borrow().all[conn].closed.is_some()
    }

    /// Lines about clients so far.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.events.iter().filter_map(|event| match event {
            ExportEvent::Client { name, why, .. } => Some(format!("{name}: {why}")),
            _ => None,
        });
        lines.collect()
    }

    /// How often it was said that a withdrawn export has no client left.
    pub fn vacated(&self) -> usize {
        let those = self.events.iter();
        those
            .filter(|event| matches!(event, ExportEvent::Vacated(0)))
            .count()
    }

    /// No client is connected and no memory is held.
    pub fn at_rest(&self) {
        let engine = self.engine.borrow();
        assert_eq!(engine.counters(0).clients, 0);
        assert_eq!(engine.buffers_free(), engine.buffers());
    }
}

pub fn offer(read_only: bool) -> Offer {
    Offer {
        volume: 0,
        name: "v0".into(),
        read_only,
    }
}

/// Sessions with `requests` in flight.
pub fn config(requests: u16) -> Config {
    Config {
        requests_max: requests,
        ..Config::default()
    }
}

/// A reply without structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

/// A client of the oldest sort: EXPORT_NAME, simple replies, any bytes.
pub struct Plain {
    pub conn: usize,
    parsed: usize,
    /// Lengths of reads in flight.
    reads: BTreeMap<u64, u32>,
}

impl Plain {
    /// Bytes that the server says before the first reply.
    const HELLO: usize = Greeting::LEN + 10;

    /// All that it says before the first request.
    pub fn hello() -> Vec<u8> {
        let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        let mut bytes = flags.to_be_bytes().to_vec();
        OptionHeader {
            option: opt::EXPORT_NAME,
            len: 2,
        }
        .emit(&mut bytes);
        bytes.extend(b"v0");
        bytes
    }

    /// The bytes of a request, without data.
    pub fn request(&mut self, command: u16, flags: u16, cookie: u64, range: (u64, u32)) -> Vec<u8> {
        if command == nbd::wire::cmd::READ {
            self.reads.insert(cookie, range.1);
        }
        let mut bytes = Vec::new();
        RequestHeader {
            flags,
            command,
            cookie,
            offset: range.0,
            length: range.1,
        }
        .emit(&mut bytes);
        bytes
    }

    /// Says one write.
    pub fn write(&mut self, rig: &Rig, cookie: u64, offset: u64, data: &[u8]) {
        let range = (offset, data.len() as u32);
        let mut bytes = self.request(nbd::wire::cmd::WRITE, 0, cookie, range);
        bytes.extend_from_slice(data);
        rig.clients.borrow_mut().say(self.conn, &bytes);
    }

    /// Replies since the last call.
    pub fn replies(&mut self, rig: &Rig) -> Vec<Reply> {
        let clients = rig.clients.borrow();
        let said = &clients.all[self.conn].said;
        let mut replies = Vec::new();
        while let Some(header) = said.get(self.parsed..self.parsed + SimpleReply::LEN) {
            let reply = SimpleReply::parse(header).expect("a simple reply");
            let length = match reply.error {
                0 => self.reads.get(&reply.cookie).copied().unwrap_or(0),
                _ => 0,
            };
            let from = self.parsed + SimpleReply::LEN;
            let Some(data) = said.get(from..from + length as usize) else {
                break;
            };
            self.reads.remove(&reply.cookie);
            self.parsed = from + data.len();
            replies.push(Reply {
                cookie: reply.cookie,
                error: reply.error,
                data: data.to_vec(),
            });
        }
        replies
    }

    /// The next reply.
    pub fn reply(&mut self, rig: &mut Rig) -> Reply {
        let mut replies = self.replies(rig);
        if replies.is_empty() {
            rig.until(100 * SECOND, |rig| {
                replies = self.replies(rig);
                !replies.is_empty()
            });
        }
        assert_eq!(replies.len(), 1, "{replies:?}");
        replies.remove(0)
    }
}
