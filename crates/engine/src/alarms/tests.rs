//! Conditions in virtual time: what begins and ends, how soon, and that an hour of healthy load on
//! a busy machine has none.
use super::*;
use alloc::vec::Vec;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
/// A condition is reported within so long, at its beginning and its end.
const SOON: u64 = 5 * S;

/// A generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Exponential, by the sum of the leading zeros: coarse, and without floating point.
    fn exponential(&mut self, mean: u64) -> u64 {
        let halves = u64::from(self.next().leading_zeros());
        let part = self.below(1024);
        (mean * (halves * 1024 + part) * 7) / (10 * 1024)
    }
}

fn path(volume: u16, path: u8) -> Subject {
    Subject {
        volume,
        path: PathIndex(path),
    }
}

/// A window with so many reads of about this latency.
fn reads(count: u32, ns: u64) -> PathWindow {
    let mut it = PathWindow {
        span_ns: ROUND_NS,
        bytes: [u64::from(count) * 4096, 0],
        ..PathWindow::default()
    };
    (0..count).for_each(|at| it.latencies[0].record(ns + ns * u64::from(at) / 50));
    it
}

/// Alarms, and the virtual time.
struct World {
    alarms: Alarms,
    now_ns: u64,
    changes: Vec<Change>,
}

impl World {
    fn new() -> Self {
        Self {
            alarms: Alarms::default(),
            now_ns: 1_000 * S,
            changes: Vec::new(),
        }
    }

    /// For `ns`, every half second: what each path shows, and how late the core is.
    fn run(&mut self, ns: u64, mut shows: impl FnMut(Subject) -> PathWindow) {
        self.run_late(ns, 0, &mut shows);
    }

    fn run_late(&mut self, ns: u64, late_ns: u64, shows: &mut dyn FnMut(Subject) -> PathWindow) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += COLLECT_NS;
            self.judge();
            self.now_ns += ROUND_NS - COLLECT_NS;
            for at in 0..3 {
                let window = shows(path(0, at));
                if !window.is_empty() {
                    let it = &mut self.alarms;
                    it.observe(path(0, at), 0, &window, late_ns, self.now_ns);
                }
            }
        }
    }

    fn judge(&mut self) {
        self.alarms.handle_timeout(self.now_ns);
        while let Some(change) = self.alarms.poll_change() {
            self.changes.push(change);
        }
    }

    /// Well for long enough to know what is usual.
    fn learnt() -> Self {
        let mut it = Self::new();
        it.run(60 * S, |_| reads(40, MS));
        assert_eq!(it.changes, []);
        it
    }

    /// The only change since the last call, and how long ago `from_ns` was then.
    fn only_change(&mut self, from_ns: u64) -> (Change, u64) {
        let changes = core::mem::take(&mut self.changes);
        let [change] = changes[..] else {
            panic!("{changes:?}");
        };
        let at_ns = change.ended_ns.unwrap_or(change.since_ns);
        (change, at_ns - from_ns)
    }
}

/// One of three paths does something for 20 s, the others are well; it is reported soon.
fn begins_and_ends(mut odd: impl FnMut(u64) -> PathWindow) -> (Why, World) {
    let mut it = World::learnt();
    let from_ns = it.now_ns;
    let mut round = 0;
    it.run(20 * S, |at| match at.path.0 {
        1 => {
            round += 1;
            odd(round)
        }
        _ => reads(40, MS),
    });
    it.now_ns += COLLECT_NS;
    it.judge();
    let (change, took_ns) = it.only_change(from_ns);
    assert_eq!((change.subject, change.ended_ns), (path(0, 1), None));
    assert!(took_ns <= SOON, "{took_ns}");
    let why = it.alarms.of(path(0, 1)).next().unwrap().why;
    (why, it)
}

fn ends_soon(it: &mut World) {
    let from_ns = it.now_ns;
    it.run(20 * S, |_| reads(40, MS));
    let (change, took_ns) = it.only_change(from_ns);
    assert!(change.ended_ns.is_some());
    assert!(took_ns <= SOON, "{took_ns}");
    assert_eq!(it.alarms.of(path(0, 1)).count(), 0);
    assert_eq!(it.alarms.ended().last(), Some(&change));
}

#[test]
fn path_100_ms_slower_is_slow_until_it_is_not() {
    let (why, mut it) = begins_and_ends(|_| reads(5, 101 * MS));
    let Why::Slow {
        writes: false,
        now_ns,
        was_ns,
        peers_ns: Some(peers_ns),
    } = why
    else {
        panic!("{why:?}");
    };
    let is_about = |ns: u64, ms: u64| ns >= ms * MS && ns < 2 * ms * MS;
    assert!(is_about(now_ns, 100) && is_about(was_ns, 1) && is_about(peers_ns, 1));
    assert!(it.alarms.is_any_slow());
    ends_soon(&mut it);
    assert!(!it.alarms.is_any_slow());
}

#[test]
fn slow_path_without_io_is_well_again_by_probes() {
    let (_, mut it) = begins_and_ends(|_| reads(5, 101 * MS));
    let mut round = 0;
    it.run(60 * S, |at| match at.path.0 {
        1 => {
            round += 1;
            match round % 10 {
                0 => reads(1, MS),
                _ => PathWindow::default(),
            }
        }
        _ => reads(40, MS),
    });
    assert!(it.changes[0].ended_ns.is_some());
}

/// Probes are reads: of writes they say nothing.
#[test]
fn slow_writes_without_io_end_when_idle() {
    let (_, mut it) = begins_and_ends(|_| reads(5, 101 * MS));
    let writes = |mut it: PathWindow| {
        it.latencies.swap(0, 1);
        it.bytes.swap(0, 1);
        it
    };
    it.run(60 * S, |_| writes(reads(40, MS)));
    assert!(it.only_change(0).0.ended_ns.is_some());
    it.run(20 * S, |at| match at.path.0 {
        1 => writes(reads(5, 101 * MS)),
        _ => writes(reads(40, MS)),
    });
    it.now_ns += COLLECT_NS;
    it.judge();
    assert!(it.only_change(0).0.ended_ns.is_none());
    let last_ns = it.now_ns - COLLECT_NS;
    assert_eq!(it.alarms.poll_timeout(), Some(last_ns + slow::IDLE_NS));
    it.now_ns = last_ns + slow::IDLE_NS;
    it.judge();
    assert!(it.only_change(0).0.ended_ns.is_some());
    assert_eq!(it.alarms.poll_timeout(), None);
}

#[test]
fn slow_path_without_io_ends_when_switched_off() {
    let (_, mut it) = begins_and_ends(|_| reads(5, 101 * MS));
    let off = Limits {
        slow_ns: 0,
        ..Limits::default()
    };
    it.alarms.set_limits(off, it.now_ns);
    it.judge();
    assert!(it.only_change(0).0.ended_ns.is_some());
}

#[test]
fn one_error_in_five_begins_and_ends() {
    let (why, mut it) = begins_and_ends(|_| PathWindow {
        errors: 4,
        ..reads(16, MS)
    });
    let Why::Errors { errors, ios } = why else {
        panic!("{why:?}");
    };
    assert_eq!(errors * 5, ios);
    let from_ns = it.now_ns;
    it.run(ERRORS_WELL_NS + 2 * SOON, |_| reads(40, MS));
    let (change, took_ns) = it.only_change(from_ns);
    assert!(change.ended_ns.is_some() && it.alarms.of(path(0, 1)).next().is_none());
    let well = ERRORS_WELL_NS..ERRORS_WELL_NS + SOON;
    assert!(well.contains(&took_ns), "{took_ns}");
}

/// A burst every 20 s: the alarm does not begin and end with each.
#[test]
fn bursts_of_errors_are_one_alarm() {
    let mut it = World::learnt();
    let mut round = 0;
    it.run(300 * S, |at| PathWindow {
        errors: match at.path.0 {
            1 => {
                round += 1;
                u32::from(round % 40 == 1) * 10
            }
            _ => 0,
        },
        ..reads(40, MS)
    });
    assert_eq!(it.changes.len(), 1, "{:?}", it.changes);
}

#[test]
fn errors_of_a_path_that_gets_no_io_any_more_end() {
    let (_, mut it) = begins_and_ends(|round| PathWindow {
        errors: u32::from(round < 9) * 4,
        ..PathWindow::default()
    });
    assert!(it.alarms.of(path(0, 1)).next().is_some());
    it.run(ERRORS_WELL_NS, |_| PathWindow::default());
    assert!(it.changes[0].ended_ns.is_some());
}

#[test]
fn a_path_that_flaps_is_flapping_until_the_window_is_over() {
    let (why, mut it) = begins_and_ends(|round| PathWindow {
        losses: u32::from(round <= 3),
        ..PathWindow::default()
    });
    let window_ns = Limits::default().flap_window_ns;
    let want = Why::Flapping {
        losses: 3,
        window_ns,
    };
    assert_eq!(why, want);
    let last_ns = it.alarms.poll_timeout().unwrap() - window_ns;
    it.now_ns = last_ns + window_ns - 1;
    it.judge();
    assert!(it.changes.is_empty());
    it.now_ns += 1;
    it.judge();
    assert_eq!(it.only_change(last_ns).1, window_ns);
    assert_eq!(
        it.alarms.poll_timeout(),
        None,
        "nothing is left to be judged"
    );
}

#[test]
fn two_losses_are_no_flapping_and_two_late_answers_are_late() {
    let mut it = World::learnt();
    let lost = PathWindow {
        losses: 2,
        ..reads(40, MS)
    };
    it.run(ROUND_NS, |_| lost.clone());
    it.run(10 * S, |_| reads(40, MS));
    assert_eq!(it.changes, []);
    let mut took_ns = [900 * MS, 5 * MS, 900 * MS, 900 * MS].into_iter();
    let (why, mut it) = begins_and_ends(|_| PathWindow {
        keep_alive_ns: took_ns.next(),
        ..reads(40, MS)
    });
    let want = Why::LateKeepAlive {
        took_ns: 900 * MS,
        limit_ns: 500 * MS,
    };
    assert_eq!(why, want);
    let from_ns = it.now_ns;
    it.run(10 * S, |_| PathWindow {
        keep_alive_ns: Some(MS),
        ..reads(40, MS)
    });
    assert!(it.only_change(from_ns).0.ended_ns.is_some());
}

#[test]
fn late_answers_are_forgotten_where_a_busy_path_is_asked_no_more() {
    let mut it = World::new();
    it.run(2 * S, |_| PathWindow {
        keep_alive_ns: Some(600 * MS),
        ..reads(40, MS)
    });
    let began = core::mem::take(&mut it.changes);
    assert!(!began.is_empty() && began.iter().all(|it| it.ended_ns.is_none()));
    let asked_ns = it.now_ns;
    it.run(59 * S, |_| reads(40, MS));
    assert_eq!(it.changes, []);
    it.run(3 * S, |_| reads(40, MS));
    assert_eq!(it.changes.len(), began.len());
    let ended = it.changes.iter().map(|it| it.ended_ns.unwrap_or(0));
    assert!(ended.min() >= Some(asked_ns + ANSWERS_OLD_NS));
}

#[test]
fn slow_rounds_with_long_rests_between_them_are_no_alarm() {
    let mut it = World::learnt();
    for _ in 0..6 {
        let mut first = true;
        it.run(60 * S, |subject| {
            if subject.path != PathIndex(0) {
                return reads(40, MS);
            }
            match core::mem::take(&mut first) {
                true => reads(40, 200 * MS),
                false => PathWindow::default(),
            }
        });
    }
    assert_eq!(it.changes, []);
}

#[test]
fn no_alarm_where_all_paths_or_the_core_are_late() {
    for late_ns in [0, 80 * MS] {
        let mut it = World::learnt();
        let slow = |at: Subject| match (late_ns, at.path.0) {
            (0, _) | (_, 1) => reads(20, 150 * MS),
            _ => reads(40, MS),
        };
        it.run_late(30 * S, late_ns, &mut { slow });
        assert_eq!(it.changes, [], "{late_ns}");
        it.run(30 * S, |_| reads(40, MS));
        assert_eq!(it.changes, [], "{late_ns}");
    }
}

#[test]
fn far_and_new_paths_are_not_slow() {
    let mut it = World::new();
    it.run(60 * S, |at| match at.path.0 {
        1 => reads(20, 40 * MS),
        _ => reads(40, MS),
    });
    assert_eq!(it.changes, []);
}

#[test]
fn a_path_alone_is_slow_only_with_less_io_than_before() {
    for (rate, is_slow) in [(40, false), (4, true)] {
        let mut it = World::new();
        let alone = |count, ns| {
            move |at: Subject| match at.path.0 {
                1 => reads(count, ns),
                _ => PathWindow::default(),
            }
        };
        it.run(60 * S, alone(40, MS));
        it.run(30 * S, alone(rate, 120 * MS));
        assert_eq!(!it.changes.is_empty(), is_slow, "{rate}");
    }
}

/// A report that was asked for early spans less: it does not show less load.
#[test]
fn a_path_alone_with_early_reports_is_not_slow() {
    let mut it = World::new();
    let alone = |count, ns, span_ns| {
        move |at: Subject| match at.path.0 {
            1 => PathWindow {
                span_ns,
                ..reads(count, ns)
            },
            _ => PathWindow::default(),
        }
    };
    it.run(60 * S, alone(400, MS, ROUND_NS));
    it.run(60 * S, alone(150, 150 * MS, ROUND_NS / 2));
    assert_eq!(it.changes, []);
}

/// Small reads, then a backup: fewer I/Os, each longer, and more bytes.
#[test]
fn a_path_alone_with_larger_io_is_not_slow() {
    let mut it = World::new();
    let alone = |count, ns, length: u64| {
        move |at: Subject| match at.path.0 {
            1 => PathWindow {
                bytes: [u64::from(count) * length, 0],
                ..reads(count, ns)
            },
            _ => PathWindow::default(),
        }
    };
    it.run(60 * S, alone(400, MS, 4096));
    it.run(60 * S, alone(50, 300 * MS, 1 << 20));
    assert_eq!(it.changes, []);
    // One that moves less for hours is the usual one by then.
    it.run(60 * S, alone(400, MS, 4096));
    it.run(60 * S, alone(12, 300 * MS, 4096));
    assert_eq!(it.changes.len(), 1);
    it.run(4 * 3600 * S, alone(12, 300 * MS, 4096));
    assert!(it.changes[1].ended_ns.is_some());
    assert_eq!(it.changes.len(), 2);
}

#[test]
fn limits_of_0_end_what_holds() {
    let (_, mut it) = begins_and_ends(|_| PathWindow {
        errors: 4,
        ..reads(16, MS)
    });
    let off = Limits {
        errors_permille: 0,
        ..Limits::default()
    };
    it.alarms.set_limits(off, it.now_ns);
    it.judge();
    assert!(it.changes[0].ended_ns.is_some());
}

/// Its number may be another path's next.
#[test]
fn a_path_that_is_removed_ends_its_alarms() {
    let (_, mut it) = begins_and_ends(|_| reads(5, 101 * MS));
    assert_eq!(it.alarms.remove(path(0, 0), it.now_ns), []);
    let ended = it.alarms.remove(path(0, 1), it.now_ns);
    assert_eq!(ended[..].len(), 1);
    assert_eq!(ended[0].ended_ns, Some(it.now_ns));
    assert_eq!(it.alarms.of(path(0, 1)).count(), 0);
    it.run(20 * S, |at| match at.path.0 {
        1 => reads(5, 101 * MS),
        _ => reads(40, MS),
    });
    assert_eq!(it.changes, [], "it has no past");
    let (_, mut it) = begins_and_ends(|_| reads(5, 101 * MS));
    ends_soon(&mut it);
    it.alarms.remove(path(0, 1), it.now_ns);
    assert_eq!(it.alarms.ended().count(), 0);
}

/// A volume of the healthy hour.
struct Healthy {
    /// Latencies of its paths without load, ns.
    base_ns: Vec<u64>,
    /// Share of its capacity that is used, 1 / 1000.
    load: u64,
    /// Half seconds until the first path may stand still again: a device that cleans up, for one
    /// second at a time.
    pause: u64,
}

/// How busy the machine is.
struct Machine {
    rounds_left: u64,
    /// Mean time that an I/O waits for a CPU.
    wait_ns: u64,
    /// As the cores see it: else it is the other end's machine.
    late_ns: u64,
}

impl Machine {
    fn step(&mut self, random: &mut Random) {
        match self.rounds_left {
            0 if random.below(400) == 0 => {
                self.rounds_left = 1 + random.below(60);
                self.wait_ns = (1 + random.below(60)) * MS;
                self.late_ns = self.wait_ns * random.below(2);
            }
            0 => (self.wait_ns, self.late_ns) = (0, 0),
            _ => self.rounds_left -= 1,
        }
    }
}

impl Healthy {
    /// The load moves in small steps, and at times jumps.
    fn step(&mut self, random: &mut Random) {
        self.load = match random.below(120) {
            0 => random.below(950),
            _ => (self.load + random.below(41)).saturating_sub(20).min(950),
        };
        self.pause = match random.below(600) {
            0 if self.pause == 0 => 20,
            _ => self.pause.saturating_sub(1),
        };
    }

    fn window(&self, at: usize, machine: &Machine, random: &mut Random) -> PathWindow {
        let mut it = PathWindow {
            span_ns: ROUND_NS,
            ..PathWindow::default()
        };
        let queued = 1000 * self.base_ns[at] / (1000 - self.load);
        let count = 2 + self.load / 40;
        for n in 0..count {
            let mut ns = self.base_ns[at] + random.exponential(queued);
            // Half of the I/Os find a CPU that is taken.
            if machine.wait_ns > 0 && random.below(2) == 0 {
                ns += random.exponential(machine.wait_ns);
            }
            if self.pause > 18 && at == 0 {
                ns += random.below(500 * MS);
            }
            it.latencies[usize::from(n % 3 == 0)].record(ns);
            it.bytes[usize::from(n % 3 == 0)] += 4096;
        }
        // A medium error now and then, a lost path once in a while.
        it.errors = u32::from(random.below(2000) == 0);
        it.losses = u32::from(random.below(40_000) == 0);
        it.keep_alive_ns = (random.below(5) == 0).then(|| MS + random.exponential(machine.wait_ns));
        it
    }
}

/// The changes of an hour.
fn healthy_hour(seed: u64) -> Vec<Change> {
    let mut random = Random(seed | 1);
    let mut volumes = [
        alloc::vec![MS, MS],
        alloc::vec![MS, 20 * MS, MS, MS],
        alloc::vec![8 * MS],
        alloc::vec![MS / 10, MS / 10],
    ]
    .map(|base_ns| Healthy {
        base_ns,
        load: 300,
        pause: 0,
    });
    let mut machine = Machine {
        rounds_left: 0,
        wait_ns: 0,
        late_ns: 0,
    };
    let mut world = World::new();
    for _ in 0..3600 * S / ROUND_NS {
        world.now_ns += COLLECT_NS;
        world.judge();
        world.now_ns += ROUND_NS - COLLECT_NS;
        machine.step(&mut random);
        for (volume, it) in (0..).zip(&mut volumes) {
            it.step(&mut random);
            for at in 0..it.base_ns.len() {
                let window = it.window(at, &machine, &mut random);
                let of = path(volume, at as u8);
                let (late_ns, now_ns) = (machine.late_ns, world.now_ns);
                let alarms = &mut world.alarms;
                alarms.observe(of, volume, &window, late_ns, now_ns);
            }
        }
    }
    world.changes
}

#[test]
fn twenty_healthy_hours_on_a_busy_machine_have_no_alarm() {
    for seed in 1..=20 {
        let changes = healthy_hour(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        assert!(changes.is_empty(), "seed {seed}: {changes:?}");
    }
}
