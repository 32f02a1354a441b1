//! New clients are greeted once what was asked for by connections that have ended has an order
//! with what they ask for (T9, T46). The engine's cores are driven by hand: one can stand still.
use super::common::{SECOND, host_config, volume};
use super::rig::{Plain, offer};
use engine::export::{ExportConfig, ExportControl, ExportEvent};
use engine::host::{HostControl, HostEvent, Multipath, PathConfig, PathKind};
use engine::limits::{END_READ_NS, EXPORT_ARENA_MIN};
use engine::machine::{Closed, DeviceOp};
use engine::{ConnId, Core, LocalDevice, Machine, Output};
use nbd::wire::{RequestHeader, cmd};
use std::collections::{BTreeSet, VecDeque};

const BYTES: u32 = 4096;

/// One core, and what its reactor has to do.
struct One {
    engine: Core,
    memory: Vec<u8>,
    mail: VecDeque<ExportControl>,
    /// Connections whose peer has closed.
    ended: BTreeSet<ConnId>,
    /// Connections that the engine has closed at once.
    cut: BTreeSet<ConnId>,
    /// Writes that the device has.
    writes: Vec<u32>,
    /// How often its reactor was asked whether a connection has ended.
    checks: u32,
}

struct Hand {
    cores: Vec<One>,
    now_ns: u64,
}

fn made(core: u16, cores: u16) -> Core {
    let path = PathConfig {
        uri: "disk:0".into(),
        kind: PathKind::Device {
            device: LocalDevice(0),
            bytes: 64 << 20,
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
    (host.core, host.cores) = (core, cores);
    let config = ExportConfig {
        clients_max: 4,
        requests_max: 4,
        arena_bytes: EXPORT_ARENA_MIN,
    };
    Core::new(Multipath::new(host), 1, config)
}

impl Hand {
    fn new(cores: u16) -> Self {
        let one = |core| One {
            engine: made(core, cores),
            memory: vec![0; EXPORT_ARENA_MIN as usize + (16 << 20)],
            mail: [ExportControl::Offer(0, offer(false))].into(),
            ended: BTreeSet::new(),
            cut: BTreeSet::new(),
            writes: Vec::new(),
            checks: 0,
        };
        let mut hand = Self {
            cores: (0..cores).map(one).collect(),
            now_ns: SECOND,
        };
        (0..20).for_each(|_| hand.all());
        hand
    }

    /// Turns of all cores.
    fn all(&mut self) {
        (0..self.cores.len()).for_each(|core| self.turn(core));
    }

    /// A turn of one core, after its mail.
    fn turn(&mut self, core: usize) {
        let now_ns = self.now_ns;
        while let Some(message) = self.cores[core].mail.pop_front() {
            self.cores[core].engine.handle_control(message, now_ns);
        }
        let engine = &mut self.cores[core].engine;
        if engine.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            engine.handle_timeout(now_ns);
        }
        for _ in 0..8 {
            let One { engine, memory, .. } = &mut self.cores[core];
            engine.turn(memory, now_ns);
            while let Some(output) = self.cores[core].engine.poll_output() {
                self.output(core, output);
            }
            self.post(core);
        }
    }

    fn output(&mut self, core: usize, output: Output) {
        let now_ns = self.now_ns;
        let it = &mut self.cores[core];
        match output {
            Output::CheckEnd(conn) => {
                it.checks += 1;
                let has_ended = it.ended.contains(&conn);
                it.engine.handle_end_check(conn, has_ended, now_ns);
            }
            Output::Device(request) if matches!(request.op, DeviceOp::Write { .. }) => {
                it.writes.push(request.id);
            }
            Output::Device(request) => it.engine.handle_device(request.id, Ok(()), now_ns),
            Output::Close { conn, abort: true } => drop(it.cut.insert(conn)),
            _ => {}
        }
    }

    /// Takes the messages of a core to the others.
    fn post(&mut self, core: usize) {
        while let Some(event) = self.cores[core].engine.poll_event() {
            match event {
                ExportEvent::ToCore(to, message) => {
                    let mail = &mut self.cores[usize::from(to)].mail;
                    mail.push_back(ExportControl::OfCore(message));
                }
                ExportEvent::Host(HostEvent::Publish(news)) => {
                    for (_, it) in self.cores.iter_mut().enumerate().filter(|it| it.0 != core) {
                        let message = HostControl::Path(news.clone());
                        it.mail.push_back(ExportControl::Host(message));
                    }
                }
                ExportEvent::Host(HostEvent::Report(news)) => {
                    let message = ExportControl::Host(HostControl::Path(news));
                    self.cores[0].mail.push_back(message);
                }
                _ => {}
            }
        }
    }

    fn accept(&mut self, core: usize) -> ConnId {
        let now_ns = self.now_ns;
        self.cores[core].engine.handle_accepted(0, now_ns).unwrap()
    }

    fn say(&mut self, core: usize, conn: ConnId, mut words: &[u8]) {
        for _ in 0..8 {
            let (it, now_ns) = (&mut self.cores[core].engine, self.now_ns);
            let taken = match it.placement(conn) {
                None => it.handle_bytes(conn, words, now_ns),
                Some(place) => {
                    let len = place.span.len.min(words.len() as u32);
                    it.handle_payload(conn, len, 0, now_ns);
                    len as usize
                }
            };
            words = &words[taken..];
            while it.poll_transmit(conn, &mut Vec::new(), now_ns).is_some() {}
            self.turn(core);
        }
        assert!(words.is_empty(), "it is blocked");
    }

    /// A client that may write.
    fn come(&mut self, core: usize) -> ConnId {
        let conn = self.accept(core);
        (0..4).for_each(|_| self.all());
        self.say(core, conn, &Plain::hello());
        conn
    }

    /// Sends a write of the first block.
    fn write(&mut self, core: usize, conn: ConnId) {
        let mut words = Vec::new();
        RequestHeader {
            flags: 0,
            command: cmd::WRITE,
            cookie: 0,
            offset: 0,
            length: BYTES,
        }
        .emit(&mut words);
        words.resize(words.len() + BYTES as usize, 1);
        self.say(core, conn, &words);
    }

    /// The device has executed all writes of a core.
    fn execute(&mut self, core: usize) {
        let (it, now_ns) = (&mut self.cores[core], self.now_ns);
        for id in it.writes.drain(..) {
            it.engine.handle_device(id, Ok(()), now_ns);
        }
        (0..4).for_each(|_| self.all());
    }

    fn is_greeted(&mut self, core: usize, conn: ConnId) -> bool {
        let (mut out, now_ns) = (Vec::new(), self.now_ns);
        let it = &mut self.cores[core].engine;
        it.poll_transmit(conn, &mut out, now_ns).is_some()
    }

    fn close(&mut self, core: usize, conn: ConnId) {
        let now_ns = self.now_ns;
        let it = &mut self.cores[core].engine;
        it.handle_closed(conn, Closed::ByPeer, now_ns);
    }
}

/// A client's connection ends and its core stands still. The client comes to another core, and is
/// greeted when the first one has read the end. Its next write waits for the one that it lost.
#[test]
fn t46_client_waits_for_core_with_an_unread_end() {
    let mut hand = Hand::new(2);
    let lost = hand.come(1);
    hand.write(1, lost);
    assert_eq!(hand.cores[1].writes.len(), 1);
    let new = hand.accept(0);
    (0..4).for_each(|_| hand.turn(0));
    assert!(!hand.is_greeted(0, new), "core 1 has not answered");
    hand.cores[1].ended.insert(lost);
    (0..4).for_each(|_| hand.all());
    assert!(!hand.is_greeted(0, new), "core 1 has not read the end");
    hand.close(1, lost);
    (0..4).for_each(|_| hand.all());
    assert!(hand.is_greeted(0, new));
    hand.say(0, new, &Plain::hello());
    hand.write(0, new);
    assert_eq!(hand.cores[0].writes.len(), 0, "the lost write is under way");
    hand.execute(1);
    assert_eq!(hand.cores[0].writes.len(), 1);
}

/// A connection that is there keeps no new client waiting, on any core.
#[test]
fn client_is_greeted_beside_others() {
    let mut hand = Hand::new(2);
    let (one, two) = (hand.come(0), hand.come(1));
    hand.write(0, one);
    hand.write(1, two);
    for core in 0..2 {
        let new = hand.accept(core);
        (0..4).for_each(|_| hand.all());
        assert!(hand.is_greeted(core, new));
    }
}

/// Clients that come within a turn ask once for each connection that is there.
#[test]
fn arrivals_of_one_turn_share_their_checks() {
    let mut hand = Hand::new(2);
    let (_, _) = (hand.come(1), hand.come(1));
    let before = hand.cores[1].checks;
    let new = [hand.accept(0), hand.accept(0), hand.accept(0)];
    (0..4).for_each(|_| hand.all());
    assert_eq!(hand.cores[1].checks, before + 2);
    assert!(new.into_iter().all(|it| hand.is_greeted(0, it)));
}

/// Clients of the other core are served meanwhile, and a new one when it goes on.
#[test]
fn core_that_stands_still_keeps_only_new_clients_waiting() {
    let mut hand = Hand::new(2);
    let (own, other) = (hand.come(0), hand.come(1));
    let new = hand.accept(0);
    for _ in 0..10 {
        hand.now_ns += SECOND;
        hand.write(0, own);
        let (it, now_ns) = (&mut hand.cores[0], hand.now_ns);
        assert_eq!(it.writes.len(), 1);
        it.engine.handle_device(it.writes.remove(0), Ok(()), now_ns);
        hand.turn(0);
        assert!(hand.is_greeted(0, own), "it has its answer");
        assert!(!hand.is_greeted(0, new), "core 1 has not answered");
    }
    (0..4).for_each(|_| hand.all());
    assert!(hand.is_greeted(0, new));
    hand.write(1, other);
    assert_eq!(hand.cores[1].writes.len(), 1);
}

/// A connection that has ended and is not read, as the engine has no room for more of it, is cut.
#[test]
fn t09_end_that_is_not_read_is_cut_in_time() {
    let mut hand = Hand::new(1);
    let lost = hand.come(0);
    hand.write(0, lost);
    hand.cores[0].ended.insert(lost);
    let new = hand.accept(0);
    hand.turn(0);
    hand.now_ns += END_READ_NS - 1;
    hand.turn(0);
    assert!(hand.cores[0].cut.is_empty() && !hand.is_greeted(0, new));
    hand.now_ns += 1;
    hand.turn(0);
    assert_eq!(hand.cores[0].cut, [lost].into());
    hand.close(0, lost);
    hand.turn(0);
    assert!(hand.is_greeted(0, new), "its write is under way yet");
}

/// A client sends two changes of one block and DISC, and closes. Both are executed, however long
/// the first one takes, and a new client's write of that block comes after them.
#[test]
fn t46_client_waits_until_drained_changes_began() {
    let mut hand = Hand::new(2);
    let lost = hand.come(1);
    hand.write(1, lost);
    hand.write(1, lost);
    let mut words = Vec::new();
    RequestHeader {
        flags: 0,
        command: cmd::DISC,
        cookie: 0,
        offset: 0,
        length: 0,
    }
    .emit(&mut words);
    hand.say(1, lost, &words);
    hand.close(1, lost);
    hand.all();
    assert_eq!(hand.cores[1].writes.len(), 1, "the second one waits");
    let new = hand.accept(0);
    (0..4).for_each(|_| hand.all());
    hand.now_ns += 2 * END_READ_NS;
    (0..4).for_each(|_| hand.all());
    assert!(!hand.is_greeted(0, new), "it does not know of the second");
    hand.execute(1);
    assert_eq!(hand.cores[1].writes.len(), 1, "the second one began");
    assert!(hand.is_greeted(0, new));
    hand.say(0, new, &Plain::hello());
    hand.write(0, new);
    assert_eq!(hand.cores[0].writes.len(), 0, "the second is under way");
    hand.execute(1);
    assert_eq!(hand.cores[0].writes.len(), 1);
}
