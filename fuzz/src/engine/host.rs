//! A host over two paths, one to an honest target and one to a [`Liar`]; both have one disk.
//!
//! Checked: see the module above; every I/O ends, those of the honest path well, and no read has
//! wrong bytes unless the liar told something that a host can't know better.
use super::common::{
    Address, BLOCK, BLOCKS, Disk, HOST, HostCore, MS, SECOND, TARGET, WIRE_NS, World, host_config,
    ready_of, target_config,
};
use super::liar::{Liar, Lie};
use super::load::{Load, Trust};
use super::tape::Tape;
use engine::host::{HostConfig, HostControl, HostEvent, Recovery};
use engine::limits::SCRATCH_BYTES;
use engine::target::{TargetConfig, TargetControl, TargetEngine};
use engine::{Machine, Span};
use nvme::host::{AnaState, Digests};
use policy::{PathIndex, Policy};
use std::cell::RefCell;
use std::rc::Rc;

/// A lie is armed; it follows.
pub const LIE: u8 = 8;
/// I/O is begun; a count and as many choices follow.
pub const SUBMIT: u8 = 4;
/// Time passes; ms follow.
pub const PASS: u8 = 1;

/// The liar's node.
const LIAR: usize = 2;
const HONEST: PathIndex = PathIndex(0);
const FALSE: PathIndex = PathIndex(1);
/// The host's own memory, behind that of I/Os.
const SCRATCH_AT: u64 = 1 << 20;
/// Room for a transfer that nobody wrote.
const GARBAGE: u32 = 128 << 10;
/// Until a volume is ready while one target lies.
const READY_NS: u64 = 60 * SECOND;
/// Until every I/O has ended: attempts have 120 s in all, a flush may wait for 60 s.
const ENDED_NS: u64 = 240 * SECOND;

/// The tape: two bytes of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    play(data);
}

/// Result of a tape.
pub struct Played {
    /// I/Os that ended.
    pub ended: u64,
    /// Reads whose every byte was checked.
    pub verified: u64,
    /// Reads and writes that failed.
    pub failed: u64,
}

/// The same, with figures.
pub fn play(data: &[u8]) -> Played {
    let mut tape = Tape::new(data);
    let (choice, more) = (tape.byte(), tape.byte());
    let mut scene = Scene::new(choice, more);
    while let Some(operation) = tape.operation() {
        scene.step(operation, &mut tape);
    }
    scene.finish(more & 0x80 != 0);
    Played {
        ended: scene.load.ended,
        verified: scene.load.verified,
        failed: scene.load.failed,
    }
}

struct Scene {
    world: World,
    host: Rc<RefCell<HostCore>>,
    target: Rc<RefCell<TargetEngine>>,
    liar: Rc<RefCell<Liar>>,
    load: Load,
    events: Vec<HostEvent>,
    /// To be begun when the volume is ready.
    waiting: Vec<u8>,
}

/// Policy in bits 2:0, digests in 4:3, keep-alive in 5.
fn host(choice: u8, more: u8) -> HostConfig {
    let mut config = host_config(2);
    // Not 0: then nothing but proof ends a hold (T9), and a liar gives none.
    config.kato_ms = if choice & 32 == 0 { 1000 } else { 500 };
    config.connect_timeout_ns = SECOND;
    config.io_timeout_ns = 3 * SECOND;
    config.digests = Digests {
        header: choice & 8 != 0,
        data: choice & 16 != 0,
    };
    config.scratch = Span {
        at: SCRATCH_AT,
        len: SCRATCH_BYTES,
    };
    let policies = [
        Policy::RoundRobin { bytes: 0 },
        Policy::QueueDepth,
        Policy::Soonest,
        Policy::WeightedLatency(policy::Aggregate::default()),
        Policy::ServiceTime,
        Policy::Pid,
        Policy::Latency,
        Policy::Numa,
    ];
    let volume = &mut config.volumes[0];
    volume.policy = policies[usize::from(choice & 7)];
    volume.recovery = Recovery {
        quiesce_ns: 500 * MS,
        marks: (more & 2 != 0).then_some(0),
        ..Recovery::default()
    };
    config
}

/// One process of the subsystem.
fn target(number: u16, choice: u8, more: u8) -> TargetConfig {
    let mut config = target_config(1);
    let of = &mut config.subsystem;
    (of.cntlid_min, of.cntlid_max) = (1 + 100 * number, 100 + 100 * number);
    of.c2h_success = choice & 64 != 0;
    of.volatile_write_cache = choice & 128 != 0;
    of.in_capsule_max = if more & 1 != 0 { 0 } else { 8192 };
    config.arena_bytes = 2 << 20;
    config
}

impl Scene {
    fn new(choice: u8, more: u8) -> Self {
        let mut world = World::new(3);
        let engine = |number| TargetEngine::new(target(number, choice, more)).expect("a target");
        let arena = target(0, choice, more).arena_bytes;
        let garbage = Span {
            at: arena,
            len: GARBAGE,
        };
        let host = Rc::new(RefCell::new(HostCore::new(host(choice, more))));
        let honest = Rc::new(RefCell::new(engine(0)));
        let liar = Rc::new(RefCell::new(Liar::new(engine(1), garbage)));
        world.add(
            host.clone(),
            (SCRATCH_AT + u64::from(SCRATCH_BYTES)) as usize,
        );
        world.add(honest.clone(), arena as usize);
        world.add(liar.clone(), arena as usize + GARBAGE as usize);
        world.nodes[LIAR].arena.0[arena as usize..].fill(0xba);
        let to = |node| Address::To {
            node,
            listener: 0,
            delay_ns: WIRE_NS,
        };
        world.nodes[HOST].addresses = vec![to(TARGET), to(LIAR)];
        let disk = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
        for node in [TARGET, LIAR] {
            world.nodes[node].disks = vec![disk.clone()];
        }
        Self {
            world,
            host,
            target: honest,
            liar,
            load: Load::new(),
            events: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn step(&mut self, operation: u8, tape: &mut Tape) {
        match operation & 15 {
            0 => self.pass(u64::from(operation >> 4) * 20_000),
            PASS => self.pass(u64::from(tape.word() % 8192) * MS),
            2 | 3 => self.pass(MS),
            SUBMIT | 5 => {
                let count = usize::from(operation >> 4) + 1;
                self.waiting.extend(tape.take(count));
                self.pass(20_000);
            }
            6 => self.liar.borrow_mut().mute(operation & 16 != 0),
            7 => {
                let io = [Some(false), Some(true), None, None][usize::from(operation >> 4 & 3)];
                self.liar.borrow_mut().leave(io, operation & 0x80 != 0);
                self.pass(0);
            }
            9 => {
                let mut lie = tape.take(8).to_vec();
                lie.resize(8, 0);
                lie[1] = 8 + lie[1] % 4;
                for _ in 0..1 + (operation >> 4) {
                    self.liar.borrow_mut().say(Lie::read(&mut Tape::new(&lie)));
                }
                self.pass(20_000);
            }
            10 => self.liar.borrow_mut().refuses = operation & 16 != 0,
            11 => self.administer(operation >> 4),
            _ => {
                let lie = Lie::read(tape);
                self.liar.borrow_mut().lies.push(lie);
            }
        }
    }

    /// The liar's target has something true to tell.
    fn administer(&mut self, choice: u8) {
        let message = match choice & 7 {
            0 => TargetControl::Ana(0, AnaState::Inaccessible),
            1 => TargetControl::Ana(0, AnaState::NonOptimized),
            2 => TargetControl::Ana(0, AnaState::Change),
            3 => TargetControl::Ana(0, AnaState::PersistentLoss),
            4 => TargetControl::Drop(0),
            _ => TargetControl::Ana(0, AnaState::Optimized),
        };
        let inner = &mut self.liar.borrow_mut().inner;
        inner.handle_control(message, self.world.now_ns);
    }

    fn pass(&mut self, ns: u64) {
        self.run(ns, |_| false);
    }

    /// Lets time pass until `over`; whether it is.
    fn run(&mut self, ns: u64, over: impl Fn(&Load) -> bool) -> bool {
        let Self {
            world,
            host,
            liar,
            load,
            events,
            waiting,
            ..
        } = self;
        world.run(ns, |world| {
            while let Some(event) = { host.borrow_mut().poll_event() } {
                match event {
                    HostEvent::Done(done) => {
                        let told = liar.borrow().told;
                        load.blind |= told.facts;
                        let by_liar = done.path != HONEST;
                        let trust = Trust {
                            writes: !(by_liar && told.writes),
                            reads: !(by_liar && told.reads),
                        };
                        load.end(&done, trust, world, HOST);
                    }
                    HostEvent::Mark(mark) => {
                        let marked = HostControl::Marked(mark);
                        host.borrow_mut().handle_control(marked, world.now_ns);
                    }
                    event => events.push(event),
                }
            }
            if ready_of(events, 0).is_some() {
                for choice in waiting.drain(..) {
                    load.begin(choice, world, HOST, host);
                }
            }
            over(load)
        })
    }

    /// The liar stops lying, or says nothing more: all I/O ends, new I/O is done, and the host
    /// stops.
    fn finish(&mut self, silent: bool) {
        {
            let mut liar = self.liar.borrow_mut();
            liar.lies.clear();
            liar.mute(silent);
            liar.refuses = silent;
            liar.inner.handle_control(
                TargetControl::Ana(0, AnaState::Optimized),
                self.world.now_ns,
            );
        }
        let host = self.host.clone();
        let told = self.liar.borrow().told;
        let begun_ns = self.world.now_ns;
        while ready_of(&self.events, 0).is_none() && self.world.now_ns < begun_ns + READY_NS {
            self.pass(SECOND / 4);
        }
        let ready = ready_of(&self.events, 0).is_some();
        assert!(ready || told.facts, "not ready: {:?}", self.events);
        let all = |load: &Load| load.at_rest();
        assert!(self.run(ENDED_NS, all), "an I/O never ends");
        let before = (self.load.ended, self.load.failed);
        self.waiting = vec![0x11, 0x1f, 0x23, 0x2f];
        self.pass(MS);
        assert!(self.run(ENDED_NS, all), "an I/O never ends at last");
        let wrong = self.load.failed > 0 && !(told.status || told.facts);
        assert!(!wrong, "I/O failed: {:?}", self.events);
        let served = self.load.ended >= before.0 + 4 && self.load.failed == before.1;
        assert!(
            served || told.status || told.facts,
            "not served at last: {:?}",
            self.events
        );
        let stats = host.borrow().hold_stats(0);
        assert_eq!(
            stats.held + stats.behind + stats.queued + stats.delayed,
            0,
            "{stats:?}"
        );
        for path in [HONEST, FALSE] {
            assert_eq!(host.borrow().in_flight(0, path), 0);
        }
        host.borrow_mut()
            .handle_control(HostControl::Stop, self.world.now_ns);
        self.pass(10 * SECOND);
        assert!(self.world.nodes[HOST].stopped, "the host does not stop");
        // Until now a path on probation may have been probed with reads into it.
        assert_eq!(host.borrow().scratch_free(), u64::from(SCRATCH_BYTES));
        self.at_rest();
    }

    /// The targets have no connection any more, and all of their memory.
    fn at_rest(&mut self) {
        self.pass(10 * SECOND);
        let target = self.target.borrow();
        assert_eq!(target.port_stats(0).connections, 0);
        assert_eq!(target.buffers_free(), target.buffers());
        assert_eq!(self.liar.borrow().connections(), 0);
    }
}
