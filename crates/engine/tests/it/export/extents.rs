//! Block Status: what devices say becomes extents, and what they do not say is data.
use super::common::{NoMemory, SECOND, host_config, volume};
use super::rig::{Rig, Setup, offer};
use engine::Core;
use engine::export::{ExportConfig, ExportControl, ExportEvent};
use engine::host::{HostEvent, Multipath, PathConfig, PathKind};
use engine::limits::{EXPORT_ARENA_MIN, EXTENT_QUESTIONS_MAX, EXTENT_WAIT_NS};
use engine::machine::{DeviceExtent, ExtentRequest};
use engine::target::TargetControl;
use engine::{ConnId, LocalDevice, Machine, Output};
use nbd::client::{Config, Event, Session};
use nbd::{Kind, Request};

const VOLUME: u64 = 64 << 20;
const HOLE: u32 = 3;

/// A client, and an engine whose device is the test.
struct Pair {
    engine: Core,
    client: Session,
    conn: ConnId,
    now_ns: u64,
    ready: bool,
    /// Questions that were not answered.
    asked: Vec<ExtentRequest>,
    /// Answers by token, in order.
    answers: Vec<(u32, Vec<(u32, u32)>)>,
}

impl Pair {
    fn new() -> Self {
        let path = PathConfig {
            uri: "file:disk".into(),
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
            clients_max: 1,
            requests_max: 128,
            arena_bytes: EXPORT_ARENA_MIN,
        };
        let mut engine = Core::new(Multipath::new(host), 1, config);
        engine.handle_control(ExportControl::Offer(0, offer(false)), SECOND);
        let mut ready = false;
        for round in 0..60 {
            engine.turn(&mut NoMemory, SECOND + round);
            while let Some(output) = engine.poll_output() {
                if let Output::Device(it) = output {
                    engine.handle_device(it.id, Ok(()), SECOND);
                }
            }
            let mut events = core::iter::from_fn(|| engine.poll_event());
            ready |= events.any(|it| matches!(it, ExportEvent::Host(HostEvent::Ready(..))));
        }
        assert!(ready);
        let conn = engine.handle_accepted(0, SECOND).unwrap();
        let mut client = Session::new(Config {
            export: "v0".into(),
            block_status: true,
            ..Config::default()
        });
        client.handle_connected(SECOND);
        let mut pair = Self {
            engine,
            client,
            conn,
            now_ns: SECOND,
            ready: false,
            asked: Vec::new(),
            answers: Vec::new(),
        };
        pair.run();
        assert!(pair.ready, "with Block Status");
        pair
    }

    /// Until neither has anything more to say.
    fn run(&mut self) {
        let mut any = true;
        while core::mem::take(&mut any) {
            let mut out = Vec::new();
            while self.client.poll_transmit(&mut out).is_some() {}
            let mut said = &out[..];
            while !said.is_empty() {
                let taken = self.engine.handle_bytes(self.conn, said, self.now_ns);
                said = &said[taken..];
                self.turn();
                any = true;
            }
            any |= self.turn();
            while let Some(event) = self.client.poll_event() {
                any = true;
                match event {
                    Event::Ready(info) => self.ready = info.features.block_status,
                    Event::Completed(end) => {
                        assert_eq!(end.result, Ok(()));
                        let extents = self.client.extents().iter();
                        let extents = extents.map(|it| (it.length, it.flags)).collect();
                        self.answers.push((end.token, extents));
                    }
                    Event::Transmit | Event::Resume => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn turn(&mut self) -> bool {
        if self
            .engine
            .poll_timeout()
            .is_some_and(|at| at <= self.now_ns)
        {
            self.engine.handle_timeout(self.now_ns);
        }
        self.engine.turn(&mut NoMemory, self.now_ns);
        let mut any = false;
        while let Some(output) = self.engine.poll_output() {
            any = true;
            match output {
                Output::Extent(it) => self.asked.push(it),
                Output::Transmit(conn) => {
                    let mut out = Vec::new();
                    while self
                        .engine
                        .poll_transmit(conn, &mut out, self.now_ns)
                        .is_some()
                    {}
                    assert_eq!(self.client.handle_bytes(&out, self.now_ns), out.len());
                }
                _ => {}
            }
        }
        any
    }

    fn ask(&mut self, token: u32, (offset, length): (u64, u32), one: bool) {
        let request = Request::new(token, Kind::BlockStatus { one }, offset, length);
        self.client.submit(&request).unwrap();
        self.run();
    }

    /// Answers the oldest question, which is of this range.
    fn say(&mut self, range: (u64, u32), length: u32, is_zero: bool) {
        let asked = self.asked.remove(0);
        assert_eq!((asked.offset, asked.length), range);
        let extent = DeviceExtent { length, is_zero };
        self.engine.handle_extent(asked.id, extent, self.now_ns);
        self.run();
    }
}

#[test]
fn answers_of_a_device_become_extents() {
    let mut pair = Pair::new();
    pair.ask(1, (4096, 64 << 10), false);
    pair.say((4096, 64 << 10), 8192, true);
    pair.say((12288, 56 << 10), 4096, false);
    pair.say((16384, 52 << 10), 4096, false);
    assert!(pair.answers.is_empty());
    pair.say((20480, 48 << 10), 1 << 30, true);
    let want = vec![(8192, HOLE), (8192, 0), (48 << 10, HOLE)];
    assert_eq!(pair.answers, [(1, want)]);
    // One extent is enough where one was asked for.
    pair.ask(2, (0, 1 << 20), true);
    pair.say((0, 1 << 20), 4096, true);
    assert_eq!(pair.answers[1], (2, vec![(4096, HOLE)]));
    assert!(pair.asked.is_empty());
    // As many as an answer has; the client asks again.
    pair.ask(3, (0, 1 << 20), false);
    for at in 0..17_u32 {
        let left = (1 << 20) - 4096 * at;
        pair.say((u64::from(at) * 4096, left), 4096, at.is_multiple_of(2));
    }
    let want: Vec<_> = (0..16)
        .map(|at| (4096, if at % 2 == 0 { HOLE } else { 0 }))
        .collect();
    assert_eq!(pair.answers[2], (3, want));
    assert_eq!(pair.engine.counters(0).requests, 3);
}

#[test]
fn device_that_does_not_answer_has_data() {
    let mut pair = Pair::new();
    pair.ask(1, (0, 1 << 20), false);
    pair.say((0, 1 << 20), 4096, true);
    let late = pair.asked.remove(0);
    pair.now_ns += EXTENT_WAIT_NS - 1;
    pair.run();
    assert!(pair.answers.is_empty());
    pair.now_ns += 1;
    pair.run();
    let rest = (1 << 20) - 4096;
    assert_eq!(pair.answers, [(1, vec![(4096, HOLE), (rest, 0)])]);
    // Its answer is of no question that is asked now, though the place is the same.
    pair.ask(2, (0, 8192), false);
    let zero = DeviceExtent {
        length: 8192,
        is_zero: true,
    };
    for id in [late.id, u32::MAX, 0] {
        pair.engine.handle_extent(id, zero, pair.now_ns);
    }
    pair.run();
    assert_eq!(pair.answers.len(), 1);
    pair.say((0, 8192), 8192, false);
    assert_eq!(pair.answers[1], (2, vec![(8192, 0)]));
    assert_eq!(
        pair.engine.poll_timeout().filter(|at| *at <= pair.now_ns),
        None
    );
}

#[test]
fn questions_beyond_the_limit_are_answered_data() {
    let mut pair = Pair::new();
    let most = EXTENT_QUESTIONS_MAX as u32;
    for token in 0..most {
        pair.ask(token, (0, 8192), false);
    }
    assert!(pair.answers.is_empty() && pair.asked.len() == EXTENT_QUESTIONS_MAX);
    pair.ask(most, (4096, 8192), false);
    assert_eq!(pair.answers, [(most, vec![(8192, 0)])]);
    for _ in 0..most {
        pair.say((0, 8192), 8192, true);
    }
    assert_eq!(pair.answers.len(), EXTENT_QUESTIONS_MAX + 1);
    pair.ask(0, (0, 8192), false);
    assert_eq!(pair.asked.len(), 1, "there is room again");
}

/// A volume over a target whose disk never says what is a hole.
fn silent() -> (Rig, usize) {
    let mut rig = Rig::ready(Setup::default());
    let conn = rig.connect(Config {
        export: "v0".into(),
        block_status: true,
        requests_max: 4,
        ..Config::default()
    });
    (rig, conn)
}

fn status(token: u32) -> Request {
    Request::new(token, Kind::BlockStatus { one: false }, 0, 1 << 20)
}

/// Its controller is asked, and nothing waits for that: neither I/O, nor later questions.
#[test]
fn controller_that_never_says_delays_nothing_and_all_is_data() {
    let (mut rig, conn) = silent();
    let begun_ns = rig.world.now_ns;
    rig.submit(conn, status(1), &[]);
    for round in 0..20 {
        rig.write(conn, round << 12, &[7; 4096]);
        assert_eq!(rig.read(conn, round << 12, 4096), [7; 4096]);
    }
    assert!(rig.world.now_ns < begun_ns + SECOND, "I/O waits");
    rig.until(2 * EXTENT_WAIT_NS, |rig| {
        !rig.clients.borrow().all[conn].ended.is_empty()
    });
    assert!(rig.world.now_ns >= begun_ns + EXTENT_WAIT_NS);
    let ended = rig.ended(conn).remove(0);
    assert_eq!((ended.token, ended.extents), (1, vec![(1 << 20, 0)]));
    // The controller is late by now: it is not asked, so this one is answered at once.
    let begun_ns = rig.world.now_ns;
    assert_eq!(rig.one(conn, status(2), &[]).extents, [(1 << 20, 0)]);
    assert!(rig.world.now_ns < begun_ns + SECOND);
}

/// A range asked for over a path that is lost is data at once.
#[test]
fn question_ends_with_its_path() {
    let (mut rig, conn) = silent();
    let begun_ns = rig.world.now_ns;
    rig.submit(conn, status(1), &[]);
    rig.pass(SECOND);
    assert!(rig.ended(conn).is_empty(), "the controller is asked");
    rig.target_control(TargetControl::Drop(0));
    rig.until(SECOND, |rig| {
        !rig.clients.borrow().all[conn].ended.is_empty()
    });
    assert_eq!(rig.ended(conn)[0].extents, [(1 << 20, 0)]);
    assert!(rig.world.now_ns < begun_ns + EXTENT_WAIT_NS);
}
