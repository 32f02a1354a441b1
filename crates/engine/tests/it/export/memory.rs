//! Memory that clients take of an engine beside payload, whatever they say, ask for and leave
//! lying: no more than docs/security.md says.
use super::common::{MS, NoMemory, SECOND, host_config, volume};
use super::rig::{Plain, offer};
use engine::Core;
use engine::export::{ExportConfig, ExportControl, ExportEvent};
use engine::host::{HostEvent, Multipath, PathConfig, PathKind};
use engine::limits::EXPORT_ARENA_MIN;
use engine::machine::{Closed, DeviceExtent};
use engine::{ConnId, LocalDevice, Machine, Output};
use nbd::limits::{BLOCK_MAX, OPTION_DATA_MAX, OPTION_SKIP_MAX, WRITE_SKIP_MAX};
use nbd::wire::{OptionHeader, RequestHeader, cmd, opt};
use std::collections::BTreeMap;

/// C there: the tables of a place, and a session.
const CONNECTION: u64 = 11 << 9;
/// Q: room for one request.
const REQUEST: u64 = 512;
/// More of a request that had more than 1 MiB once; more of who stops in the middle of an option.
const LARGE: u64 = 512;
const OPTION: u64 = 16 << 10;
/// Requests of a client, as `braid run` has it; clients that come; places.
const REQUESTS: u16 = 128;
const CLIENTS: u64 = 5;
const PLACES: u16 = 500;
const VOLUME: u64 = 64 << 20;

/// A client: what it says as soon as it may, and whether it takes its answers.
#[derive(Default)]
struct Peer {
    words: Vec<u8>,
    said: usize,
    deaf: bool,
}

/// An engine that is driven by hand, and what it holds since it was made.
struct Hand {
    engine: Core,
    now_ns: u64,
    held: i64,
    ready: bool,
    peers: BTreeMap<ConnId, Peer>,
    out: Vec<u8>,
}

fn made(places: u16) -> Core {
    let path = PathConfig {
        uri: "disk:0".into(),
        kind: PathKind::Device {
            device: LocalDevice(0),
            bytes: VOLUME,
            block_shift: 12,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    };
    let mut host = host_config(0);
    host.volumes = vec![volume(vec![path])];
    let config = ExportConfig {
        clients_max: places,
        requests_max: REQUESTS,
        // Little for so many: most wait for it.
        arena_bytes: 2 * EXPORT_ARENA_MIN,
    };
    Core::new(Multipath::new(host), 1, config)
}

impl Hand {
    fn new() -> Self {
        let mut hand = Self {
            engine: made(PLACES),
            now_ns: SECOND,
            held: 0,
            ready: false,
            peers: BTreeMap::new(),
            out: Vec::with_capacity(1 << 20),
        };
        hand.engine
            .handle_control(ExportControl::Offer(0, offer(false)), SECOND);
        while !hand.ready {
            hand.turn();
            assert!(hand.now_ns < 60 * SECOND, "it never was ready");
        }
        hand.held = 0;
        hand
    }

    fn count<T>(&mut self, call: impl FnOnce(&mut Core, &mut Vec<u8>, u64) -> T) -> T {
        let Self {
            engine,
            out,
            now_ns,
            ..
        } = self;
        let mut result = None;
        let info = allocation_counter::measure(|| result = Some(call(engine, out, *now_ns)));
        self.held += info.bytes_current;
        result.unwrap()
    }

    /// Turns of the loop until there is nothing to do: devices answer at once.
    fn turn(&mut self) {
        self.now_ns += MS;
        self.count(|engine, _, now_ns| {
            if engine.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
                engine.handle_timeout(now_ns);
            }
        });
        let mut busy = true;
        while busy {
            self.ready |= self.count(|engine, _, now_ns| {
                engine.turn(&mut NoMemory, now_ns);
                let mut events = core::iter::from_fn(|| engine.poll_event());
                events.any(|it| matches!(it, ExportEvent::Host(HostEvent::Ready(..))))
            });
            busy = false;
            while let Some(output) = self.count(|engine, _, _| engine.poll_output()) {
                busy = true;
                match output {
                    Output::Device(it) => {
                        self.count(|engine, _, now_ns| engine.handle_device(it.id, Ok(()), now_ns));
                    }
                    Output::Transmit(conn) => self.transmit(conn),
                    Output::Resume(conn) => self.say_more(conn),
                    Output::CheckEnd(conn) => self.count(|engine, _, now_ns| {
                        engine.handle_end_check(conn, false, now_ns);
                    }),
                    Output::Close { conn, .. } => self.close(conn),
                    Output::Extent(it) => self.count(|engine, _, now_ns| {
                        engine.handle_extent(it.id, DeviceExtent::UNKNOWN, now_ns);
                    }),
                    Output::Open { .. } | Output::LetGo { .. } | Output::Stop => {}
                }
            }
        }
    }

    /// A client that takes its answers does so at once.
    fn transmit(&mut self, conn: ConnId) {
        while self.peers.get(&conn).is_some_and(|peer| !peer.deaf) {
            self.out.clear();
            let more = self.count(|engine, out, now_ns| {
                let more = engine.poll_transmit(conn, out, now_ns);
                if let Some(Some(send)) = more {
                    engine.handle_sent(conn, send.cookie, now_ns);
                }
                more.is_some()
            });
            if !more {
                return;
            }
        }
    }

    fn say_more(&mut self, conn: ConnId) {
        let Some(mut peer) = self.peers.remove(&conn) else {
            return;
        };
        while peer.said < peer.words.len() {
            let rest = &peer.words[peer.said..];
            let taken = self.count(|engine, _, now_ns| {
                let Some(place) = engine.placement(conn) else {
                    return engine.handle_bytes(conn, rest, now_ns);
                };
                let len = place.span.len.min(rest.len() as u32);
                engine.handle_payload(conn, len, 0, now_ns);
                len as usize
            });
            if taken == 0 {
                break;
            }
            peer.said += taken;
        }
        self.peers.insert(conn, peer);
    }

    fn say(&mut self, conn: ConnId, words: &[u8]) {
        self.peers.get_mut(&conn).unwrap().words.extend(words);
        self.say_more(conn);
        self.turn();
    }

    fn close(&mut self, conn: ConnId) {
        if self.peers.remove(&conn).is_some() {
            self.count(|engine, _, now_ns| {
                engine.handle_closed(conn, Closed::ByPeer, now_ns);
            });
        }
    }

    /// Somebody connects and does what is told of it.
    fn come(&mut self, what: &Course) {
        let conn = self.count(|engine, _, now_ns| engine.handle_accepted(0, now_ns));
        let conn = conn.unwrap();
        self.peers.insert(conn, Peer::default());
        self.turn();
        self.say(conn, &what.first);
        self.peers.get_mut(&conn).unwrap().deaf = what.deaf;
        self.say(conn, &what.then);
        assert!(self.peers.contains_key(&conn), "{} was cut off", what.name);
    }

    fn all_go(&mut self) {
        let all: Vec<ConnId> = self.peers.keys().copied().collect();
        all.into_iter().for_each(|conn| self.close(conn));
        self.turn();
    }
}

/// Words of a client: it says the first and takes the answers, then the others; and what it
/// may take, bytes.
struct Course {
    name: &'static str,
    first: Vec<u8>,
    then: Vec<u8>,
    deaf: bool,
    most: u64,
}

fn flags() -> Vec<u8> {
    Plain::hello()[..4].to_vec()
}

/// So much of an option's data, of what its header says.
fn option(option: u32, len: u32, said: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    OptionHeader { option, len }.emit(&mut bytes);
    bytes.resize(bytes.len() + said as usize, 0);
    bytes
}

/// Requests and nothing behind them.
fn requests(count: u64, command: u16, length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..count {
        RequestHeader {
            flags: 0,
            command,
            cookie,
            offset: 0,
            length,
        }
        .emit(&mut bytes);
    }
    bytes
}

/// The header of a write, and so many bytes of its data.
fn half_a_write(length: u32, said: u32) -> Vec<u8> {
    let mut bytes = requests(1, cmd::WRITE, length);
    bytes.resize(bytes.len() + said as usize, 0);
    bytes
}

/// Clients without requests.
fn idle() -> Vec<Course> {
    let it = |name, first: Vec<u8>, then: Vec<u8>, deaf| Course {
        name,
        first,
        then,
        deaf,
        most: CONNECTION,
    };
    let lists = (0..60).flat_map(|_| option(opt::LIST, 0, 0)).collect();
    let large = option(opt::INFO, OPTION_SKIP_MAX, OPTION_SKIP_MAX / 2);
    let whole = option(opt::INFO, OPTION_DATA_MAX, OPTION_DATA_MAX - 1);
    vec![
        it("silent", vec![], vec![], true),
        it("half a word", flags()[..2].to_vec(), vec![], true),
        it("asks for lists and takes none", flags(), lists, true),
        it("half an option that is too large", flags(), large, false),
        Course {
            most: CONNECTION + OPTION,
            ..it("half an option", flags(), whole, false)
        },
        it("asks for nothing", Plain::hello(), vec![], false),
    ]
}

/// Clients with as many requests as they may have, or more.
fn greedy() -> Vec<Course> {
    let it = |name, then, deaf| Course {
        name,
        first: Plain::hello(),
        then,
        deaf,
        most: CONNECTION + u64::from(REQUESTS) * REQUEST,
    };
    let many = 2 * u64::from(REQUESTS);
    let reads = |length| requests(many, cmd::READ, length);
    let large = half_a_write(WRITE_SKIP_MAX, WRITE_SKIP_MAX / 64);
    vec![
        it("one request", requests(1, cmd::READ, 4096), false),
        it("takes no answers", reads(4096), true),
        it("asks for what there is not", requests(many, 77, 1), true),
        it("asks for too much", reads(u32::MAX), true),
        Course {
            most: CONNECTION + u64::from(REQUESTS) * (REQUEST + LARGE),
            ..it("asks for all memory, and again", reads(BLOCK_MAX), false)
        },
        it("half a write", half_a_write(BLOCK_MAX, 100), false),
        it("half a write that is too large", large, false),
        Course {
            first: hello_with_context(),
            ..it(
                "asks what is a hole",
                requests(many, cmd::BLOCK_STATUS, 4096),
                false,
            )
        },
    ]
}

/// Handshake of a client that may ask for Block Status.
fn hello_with_context() -> Vec<u8> {
    let (name, query) = (&b"\0\0\0\x02v0"[..], &b"\0\0\0\x0fbase:allocation"[..]);
    let queries = [name, &1_u32.to_be_bytes(), query].concat();
    let mut bytes = flags();
    for (kind, data) in [
        (opt::STRUCTURED_REPLY, &[][..]),
        (opt::SET_META_CONTEXT, &queries),
        (opt::GO, &[name, &[0, 0]].concat()),
    ] {
        bytes.extend(option(kind, data.len() as u32, 0));
        bytes.extend(data);
    }
    bytes
}

/// Bytes of an engine nobody has connected to.
fn empty(places: u16) -> u64 {
    let mut engine = None;
    let info = allocation_counter::measure(|| engine = Some(made(places)));
    u64::try_from(info.bytes_current).unwrap()
}

#[test]
fn clients_and_requests_take_no_more_than_is_said_and_give_it_back() {
    let place = (empty(PLACES) - empty(1)) / u64::from(PLACES - 1);
    println!("a place: {place} bytes");
    for what in idle().into_iter().chain(greedy()) {
        let mut hand = Hand::new();
        for round in 0..2 {
            (0..CLIENTS).for_each(|_| hand.come(&what));
            let each = u64::try_from(hand.held).unwrap() / CLIENTS;
            println!("{}: {each} bytes more", what.name);
            assert!(place + each <= what.most, "{}: {}", what.name, what.most);
            hand.all_go();
            assert_eq!(hand.held, 0, "{}, round {round}", what.name);
            let (free, all) = (hand.engine.buffers_free(), hand.engine.buffers());
            assert_eq!(free, all, "{}, round {round}", what.name);
        }
    }
}

/// Writes that come in one piece are received with their data, without a turn between them; also
/// with the tokens of earlier ones.
#[test]
fn writes_have_their_memory_before_the_turn() {
    let mut hand = Hand::new();
    let conn = hand.engine.handle_accepted(0, hand.now_ns).unwrap();
    hand.peers.insert(conn, Peer::default());
    hand.turn();
    hand.say(conn, &Plain::hello());
    let write = [requests(1, cmd::WRITE, 4096), vec![0; 4096]].concat();
    for round in 0..3 {
        let peer = hand.peers.get_mut(&conn).unwrap();
        (0..20).for_each(|_| peer.words.extend(&write));
        hand.say_more(conn);
        let peer = &hand.peers[&conn];
        assert_eq!(peer.said, peer.words.len(), "round {round}");
        hand.turn();
    }
}
