//! Instructions that whole engines spend on one 4 KiB request, payload and reactor excluded.
//!
//! ```text
//! cargo build --profile dist -p braid-engine --example course_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='course_cost::measured_engine*' \
//!     target/dist/examples/course_cost [nvme] [two] [deep] [write]
//! ```
//! An NBD client has 32 requests in flight, or with `deep` 128, to an engine whose volume is a
//! local device, or with `nvme` one path to a target over a local device, with `two` two paths. The
//! count that callgrind prints, divided by the requests that this program prints, is the result;
//! `measured_target*` counts the target's side, `measured_*` both.
#[path = "../tests/it/common/config.rs"]
mod configured;

use engine::export::{ExportConfig, ExportControl, Offer};
use engine::host::{Multipath, PathConfig, PathKind, Recovery, VolumeConfig};
use engine::limits::EXPORT_ARENA_MIN;
use engine::target::{TargetConfig, TargetEngine};
use engine::{ConnId, Core, LocalDevice, Machine, Output};
use nbd::{Kind, Request, client};
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::AnaState;

const ROUNDS: u64 = 1_000;
const BYTES: u32 = 4096;
const NQN: &str = "nqn.2026-01.org.example:cost";
const SECOND: u64 = 1_000_000_000;
/// Bytes of payload that no place was given for.
const ZEROES: [u8; BYTES as usize] = [0; BYTES as usize];

/// Bytes of one direction of a connection.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Ends of the parts in `bytes`, and bytes of payload behind each, which is left out.
    parts: Vec<(usize, u32)>,
    /// How far it was received: parts, bytes, and bytes of payload.
    taken: (usize, usize, u32),
}

/// Both directions of a connection, of one end.
#[derive(Default)]
struct Link {
    input: Stream,
    output: Stream,
}

/// A machine, and what a reactor keeps for it.
struct Node<M> {
    machine: M,
    arena: Vec<u8>,
    /// By connection.
    links: Vec<Link>,
    /// Requests that the device has.
    asked: Vec<u32>,
    dirty: Vec<ConnId>,
    /// Connections that it wants, and to which address.
    opened: Vec<(ConnId, u32)>,
}

impl Stream {
    /// Hands its bytes to a machine; whether any were taken.
    #[inline(always)]
    fn deliver<M: Machine>(&mut self, machine: &mut M, conn: ConnId, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(&(end, payload)) = self.parts.get(self.taken.0) {
            while self.taken.1 < end || self.taken.2 < payload {
                let left = payload - self.taken.2;
                let place = (self.taken.1 == end).then(|| machine.placement(conn));
                if let Some(Some(place)) = place {
                    let len = place.span.len.min(left);
                    machine.handle_payload(conn, len, 0, now_ns);
                    self.taken.2 += len;
                } else if place.is_some() {
                    let bytes = &ZEROES[..left as usize];
                    let taken = machine.handle_bytes(conn, bytes, now_ns);
                    self.taken.2 += taken as u32;
                    if taken == 0 {
                        return any;
                    }
                } else {
                    let bytes = &self.bytes[self.taken.1..end];
                    let taken = machine.handle_bytes(conn, bytes, now_ns);
                    self.taken.1 += taken;
                    if taken == 0 {
                        return any;
                    }
                }
                any = true;
            }
            (self.taken.0, self.taken.2) = (self.taken.0 + 1, 0);
        }
        self.bytes.clear();
        self.parts.clear();
        self.taken = (0, 0, 0);
        any
    }
}

impl<M: Machine> Node<M> {
    fn new(machine: M, arena_bytes: u64) -> Self {
        let connections = machine.connections_max();
        Self {
            machine,
            arena: vec![0; arena_bytes as usize],
            links: (0..connections).map(|_| Link::default()).collect(),
            asked: Vec::new(),
            dirty: Vec::new(),
            opened: Vec::new(),
        }
    }

    /// Turns of the machine until it wants nothing more; requests of devices end at once.
    #[inline(always)]
    fn turn(&mut self, now_ns: u64) {
        let it = &mut self.machine;
        if it.poll_timeout().is_some_and(|due| due <= now_ns) {
            it.handle_timeout(now_ns);
        }
        let mut any = true;
        while any {
            any = false;
            for (conn, link) in (0..).zip(&mut self.links) {
                if !link.input.parts.is_empty() {
                    any |= link.input.deliver(it, ConnId(conn), now_ns);
                }
            }
            for id in self.asked.drain(..) {
                it.handle_device(id, Ok(()), now_ns);
            }
            it.turn(&mut self.arena, now_ns);
            while let Some(output) = it.poll_output() {
                any = true;
                match output {
                    Output::Transmit(conn) => self.dirty.push(conn),
                    Output::Device(request) => self.asked.push(request.id),
                    Output::Open { conn, address } => self.opened.push((conn, address)),
                    Output::Resume(_) => {}
                    Output::CheckEnd(conn) => it.handle_end_check(conn, false, now_ns),
                    other => unreachable!("{other:?}"),
                }
            }
            for conn in self.dirty.drain(..) {
                let out = &mut self.links[conn.0 as usize].output;
                while let Some(send) = it.poll_transmit(conn, &mut out.bytes, now_ns) {
                    let payload = send.map_or(0, |send| send.span.len);
                    out.parts.push((out.bytes.len(), payload));
                    if let Some(send) = send {
                        it.handle_sent(conn, send.cookie, now_ns);
                    }
                }
            }
        }
    }
}

#[inline(never)]
fn measured_engine(engine: &mut Node<Core>, now_ns: u64) {
    engine.turn(now_ns);
}

#[inline(never)]
fn measured_target(target: &mut Node<TargetEngine>, now_ns: u64) {
    target.turn(now_ns);
}

/// The engine, with so many paths over NVMe/TCP; 0: with a local device.
fn engine(over_nvme: u32) -> Core {
    let kind = |address| match over_nvme {
        1.. => PathKind::NvmeTcp {
            address,
            subsystem: NQN.into(),
            nsid: None,
        },
        0 => PathKind::Device {
            device: LocalDevice(0),
            bytes: 1 << 29,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
    };
    let path = |number| PathConfig {
        uri: format!("p{number}"),
        kind: kind(number),
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    };
    let host = Multipath::new(configured::host(vec![VolumeConfig {
        name: "v0".into(),
        policy: policy::Policy::RoundRobin { bytes: 0 },
        knobs: policy::Knobs::default(),
        paths: (0..over_nvme.max(1)).map(path).collect(),
        recovery: Recovery::default(),
    }]));
    let export = ExportConfig {
        clients_max: 1,
        requests_max: 128,
        arena_bytes: EXPORT_ARENA_MIN,
    };
    let mut engine = Core::new(host, 1, export);
    let offer = Offer {
        volume: 0,
        name: "v0".into(),
        read_only: false,
    };
    engine.handle_control(ExportControl::Offer(0, offer), SECOND);
    engine
}

/// The target, with so many ports.
fn target(ports: u32) -> TargetConfig {
    let port = |number: u16| PortConfig {
        id: number + 1,
        traddr: "127.0.0.1".into(),
        trsvcid: (4420 + number).to_string(),
        ipv6: false,
        ana: AnaState::Optimized,
    };
    TargetConfig {
        subsystem: SubsystemConfig {
            nqn: NQN.into(),
            serial: "1".into(),
            model: "cost".into(),
            cntlid_min: 1,
            cntlid_max: ports as u16,
            namespaces: vec![NamespaceConfig {
                nsid: 1,
                blocks: 1 << 20,
                block_shift: 9,
                uuid: [1; 16],
                nguid: [1; 16],
                ana_group: 1,
                read_only: false,
                deallocate_zeroes: true,
            }],
            ports: (0..ports as u16).map(port).collect(),
            hosts: Vec::new(),
            entries_max: 128,
            io_queues_max: 1,
            transfer_shift: 17,
            in_capsule_max: 8192,
            maxh2cdata: 131_072,
            c2h_success: true,
            cqt_ms: 0,
            volatile_write_cache: false,
            compare: true,
            lba_status: true,
            connections_max: 4,
        },
        shapes: vec![shape::Config::default(); ports as usize],
        devices: vec![LocalDevice(0)],
        arena_bytes: 16 << 20,
        seed: 1,
    }
}

/// The engine, its client, and the target that it may have a path to.
struct Course {
    engine: Node<Core>,
    target: Node<TargetEngine>,
    /// Connections of the engine's path, and of the target's host.
    pairs: Vec<(ConnId, ConnId)>,
    client: client::Session,
    /// The client's connection.
    conn: usize,
    now_ns: u64,
}

impl Course {
    /// Lets both sides do all that was sent until nothing is; returns requests that have ended.
    fn settle(&mut self) -> u32 {
        let mut done = 0;
        self.now_ns += 1_000;
        loop {
            while let Some(sent) = {
                let up = &mut self.engine.links[self.conn].input;
                let sent = self.client.poll_transmit(&mut up.bytes);
                sent.inspect(|it| {
                    let payload = it.payload.map_or(0, |it| it.len);
                    up.parts.push((up.bytes.len(), payload));
                })
            } {
                if let Some(payload) = sent.payload {
                    self.client.handle_sent(payload.token);
                }
            }
            measured_engine(&mut self.engine, self.now_ns);
            let opened: Vec<_> = self.engine.opened.drain(..).collect();
            for (near, port) in opened {
                let Some(far) = self.target.machine.handle_accepted(port, self.now_ns) else {
                    unreachable!("there are as many places");
                };
                self.engine.machine.handle_connected(near, self.now_ns);
                self.pairs.push((near, far));
            }
            let mut any = false;
            for &(near, far) in &self.pairs {
                let near = &mut self.engine.links[near.0 as usize].output;
                let far = &mut self.target.links[far.0 as usize].input;
                any |= !near.parts.is_empty();
                core::mem::swap(near, far);
            }
            if any {
                measured_target(&mut self.target, self.now_ns);
            }
            for &(near, far) in &self.pairs {
                let far = &mut self.target.links[far.0 as usize].output;
                let near = &mut self.engine.links[near.0 as usize].input;
                any |= !far.parts.is_empty();
                core::mem::swap(near, far);
            }
            let down = std::mem::take(&mut self.engine.links[self.conn].output);
            any |= !down.parts.is_empty();
            done += self.receive(down);
            if !any {
                return done;
            }
        }
    }

    /// The client's part; returns the requests that succeeded.
    fn receive(&mut self, down: Stream) -> u32 {
        let (mut from, mut done) = (0, 0);
        for (end, payload) in down.parts {
            while from < end {
                from += self.client.handle_bytes(&down.bytes[from..end], 0);
            }
            if payload > 0 {
                self.client.handle_payload(payload, 0);
            }
            while let Some(event) = self.client.poll_event() {
                if let client::Event::Completed(end) = event {
                    done += u32::from(end.result.is_ok());
                }
            }
        }
        done
    }
}

fn main() {
    let has = |word: &str| std::env::args().any(|it| it == word);
    let kind = if has("write") {
        Kind::Write
    } else {
        Kind::Read
    };
    let paths = match (has("nvme"), has("two")) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    };
    let batch = if has("deep") { 128 } else { 32 };
    let target = target(paths.max(1));
    let target_arena = target.arena_bytes;
    let mut engine = Node::new(engine(paths), EXPORT_ARENA_MIN);
    let Ok(machine) = TargetEngine::new(target) else {
        unreachable!("a target that can be");
    };
    let Some(conn) = engine.machine.handle_accepted(0, SECOND) else {
        unreachable!("there is a place");
    };
    let mut client = client::Session::new(client::Config::default());
    client.handle_connected(0);
    let mut course = Course {
        engine,
        target: Node::new(machine, target_arena),
        pairs: Vec::new(),
        client,
        conn: conn.0 as usize,
        now_ns: SECOND,
    };
    // The path and the handshake take fewer; submitting fails if they were not over.
    for _ in 0..20 {
        course.settle();
    }
    let mut done = 0;
    for _ in 0..ROUNDS {
        for token in 0..batch {
            let request = Request::new(token, kind, u64::from(token * BYTES), BYTES);
            assert!(course.client.submit(&request).is_ok());
        }
        done += course.settle();
    }
    assert_eq!(u64::from(done), ROUNDS * u64::from(batch));
    println!("{done} requests");
}
