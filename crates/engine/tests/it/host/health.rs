//! Paths that do badly get probes instead of I/O, and come back.

use crate::common::*;
use engine::host::{Change, Hints, HostControl, HostEvent, IoOp, PathHealth, PathState};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use engine::{Machine, Span};
use multipath::Outcome;
use multipath::health::{Limits, Why};
use nvme::host::AnaState;
use nvme::wire::Status;
use policy::{PathIndex, Policy};

const SCRATCH: Span = Span {
    at: 7 << 20,
    len: 64 << 10,
};
const POLICIES: [Policy; 4] = [
    Policy::RoundRobin { bytes: 0 },
    Policy::QueueDepth,
    Policy::WEIGHTED_LATENCY,
    Policy::Soonest,
];

/// Paths that are judged; a millisecond away, so that a second has a bearable number of I/Os.
fn rig(paths: u32, policy: Policy) -> Rig {
    rig_with_kato(paths, policy, 1_000)
}

fn rig_with_kato(paths: u32, policy: Policy, kato_ms: u32) -> Rig {
    rig_of(paths, |host, target| {
        host.kato_ms = kato_ms;
        for shape in &mut target.shapes {
            shape.delay_ns = MS;
        }
        host.scratch = SCRATCH;
        host.volumes[0].policy = policy;
        host.volumes[0].recovery.health = Limits::default();
    })
}

fn health(rig: &Rig, path: PathIndex) -> PathHealth {
    rig.host.borrow().path_report(0, path, 0).health
}

fn why(rig: &Rig, path: PathIndex) -> Option<Why> {
    health(rig, path).probation.map(|it| it.why)
}

/// I/Os fail at port 0 for the path's sake, so many of 10⁹.
fn fail(rig: &mut Rig, parts_per_billion: u32) {
    fail_at(rig, 0, parts_per_billion);
}

fn fail_at(rig: &mut Rig, port: u16, parts_per_billion: u32) {
    rig.target_control(TargetControl::Faults(port, errors(parts_per_billion)));
}

fn errors(parts_per_billion: u32) -> Faults {
    Faults {
        errors: vec![ErrorRule {
            status: Status::HOST_PATH,
            ops: Ops::ALL,
            blocks: None,
            rate: Probability::new(parts_per_billion).unwrap(),
        }],
        ..Faults::default()
    }
}

fn shape(rig: &mut Rig, port: u16, change: impl FnOnce(&mut shape::Config)) {
    let mut config = shape::Config {
        delay_ns: MS,
        ..Default::default()
    };
    change(&mut config);
    rig.target_control(TargetControl::Shape(port, config));
}

/// Port 0 does nothing for so long.
fn stall(rig: &mut Rig, for_ns: u64) {
    let until_ns = rig.world.now_ns + for_ns;
    shape(rig, 0, |it| it.stall_until_ns = until_ns);
}

/// Reads, `depth` at a time, for so long: how many ended at each of two paths.
fn load(rig: &mut Rig, depth: u64, bytes: u32, for_ns: u64) -> [u64; 2] {
    let mut load = Load::new(u64::MAX / 2, depth, bytes);
    load.writes = |_| false; // the disk stays empty, whatever other loads do
    let before = rig.shares(2);
    let until_ns = rig.world.now_ns + for_ns;
    let Rig {
        world,
        host,
        events,
        ..
    } = rig;
    world.run(for_ns, |world| {
        load.step(world, host, events);
        world.now_ns >= until_ns
    });
    assert_eq!(load.errors(), 0, "{:?}", load.outcomes);
    // All I/O under way ends.
    load.total = load.started;
    rig.load(&mut load, 30 * SECOND);
    assert_eq!(load.errors(), 0, "{:?}", load.outcomes);
    let after = rig.shares(2);
    [after[0] - before[0], after[1] - before[1]]
}

/// A check of a mirror reads all there is, and may wait for what a leg is busy with.
#[test]
fn what_takes_long_and_says_nothing_puts_no_path_on_probation() {
    for untimed in [false, true] {
        let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
        load(&mut rig, 4, BLOCK, SECOND / 2);
        stall(&mut rig, 2 * SECOND);
        let read_by = |rig: &mut Rig, slot: u64, path, untimed| {
            let hints = Hints {
                on: Some(path),
                untimed,
                ..Hints::default()
            };
            let now_ns = rig.world.now_ns;
            let mut host = rig.host.borrow_mut();
            host.submit_with(&read(slot, slot), hints, now_ns).unwrap();
        };
        read_by(&mut rig, 0, P0, untimed);
        for _ in 0..60 {
            read_by(&mut rig, 1, P1, false);
            rig.run(50 * MS, |_, _| false);
        }
        assert_eq!(rig.done.len(), 61);
        let tally = health(&rig, P0).tally;
        assert_eq!(tally == Default::default(), untimed, "{untimed} {tally:?}");
        assert!(!untimed || why(&rig, P0).is_none());
    }
}

/// Nothing is left of any probe.
fn clean(rig: &mut Rig) {
    rig.world.pass(100 * MS);
    at_rest(rig, 2);
    assert_eq!(rig.host.borrow().scratch_free(), u64::from(SCRATCH.len));
}

fn until_live(rig: &mut Rig, limit_ns: u64) {
    let host = rig.host.clone();
    let live = move || host.borrow().path_state(0, P0) == PathState::Live;
    assert!(rig.run(limit_ns, |_, _| live()), "{:?}", health(rig, P0));
}

fn warnings(rig: &Rig, of: &str) -> usize {
    let those = |it: &&HostEvent| matches!(it, HostEvent::Warning(0, line) if line.contains(of));
    rig.events.iter().filter(those).count()
}

#[test]
fn a_path_that_fails_its_io_gets_probes_and_comes_back_when_they_are_good() {
    for policy in POLICIES {
        let mut rig = rig(2, policy);
        fail(&mut rig, 1_000_000_000);
        load(&mut rig, 8, BLOCK, SECOND / 10);
        assert_eq!(why(&rig, P0), Some(Why::Errors), "{policy}");
        assert_eq!(state(&rig, P0), PathState::Probation);
        let said = rig.host.borrow().path_hindrance(0, P0).unwrap();
        assert!(said.starts_with("on probation: "), "{said}");
        // From now on nothing but probes goes there; they are nobody's I/O.
        let errors = rig.host.borrow().counters(0, P0).errors;
        let [sick, _] = load(&mut rig, 1, BLOCK, SECOND);
        assert_eq!(sick, 0, "{policy}");
        let after = rig.host.borrow().counters(0, P0).errors;
        assert_eq!(after, errors, "{policy}");
        let tally = health(&rig, P0).tally;
        assert!(tally.probes_bad >= 3 && tally.probes_good == 0, "{tally:?}");
        fail(&mut rig, 0);
        until_live(&mut rig, 20 * SECOND);
        assert_eq!(health(&rig, P0).tally.probes_good, 8);
        let [well, other] = load(&mut rig, 8, BLOCK, SECOND / 10);
        assert!(well > 0 && other > 0, "{policy}: {well} {other}");
        assert_eq!(warnings(&rig, "on probation: too many"), 1);
        assert_eq!(warnings(&rig, "in use again"), 1);
        clean(&mut rig);
    }
}

#[test]
fn a_few_errors_in_a_hundred_are_enough_and_one_in_a_thousand_is_not() {
    for (parts, sick) in [(50_000_000, true), (1_000_000, false)] {
        let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
        fail(&mut rig, parts);
        load(&mut rig, 8, BLOCK, SECOND / 4);
        assert_eq!(health(&rig, P0).tally.times > 0, sick, "{parts}");
        assert_eq!(health(&rig, P1).tally.times, 0);
    }
}

#[test]
fn t37_a_silent_path_gets_nothing_new_and_what_waits_for_it_moves() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    load(&mut rig, 8, BLOCK, 100 * MS);
    stall(&mut rig, 5 * SECOND);
    let start_ns = rig.world.now_ns;
    // Half of them are stuck there; the others end.
    for n in 0..16 {
        rig.submit(&read(n, n)).unwrap();
    }
    rig.world.pass(400 * MS);
    assert_eq!(why(&rig, P0), None);
    rig.world.pass(250 * MS);
    assert_eq!(why(&rig, P0), Some(Why::Silence));
    rig.poll();
    rig.done.clear();
    for n in 16..32 {
        let done = rig.one(&read(n, n), SECOND);
        assert_eq!((done.outcome, done.path), (Outcome::Done, P1));
    }
    // Its first probe is as stuck as they are.
    let host = rig.host.clone();
    until_live(&mut rig, 20 * SECOND);
    assert!(host.borrow().path_report(0, P0, 0).health.tally.probes_bad >= 1);
    assert!(rig.world.now_ns - start_ns > 5 * SECOND);
    assert_eq!(rig.done.iter().filter(|it| it.path == P0).count(), 8);
    clean(&mut rig);
}

#[test]
fn a_path_that_stalls_every_second_is_used_less_and_less() {
    for policy in [Policy::RoundRobin { bytes: 0 }, Policy::QueueDepth] {
        let mut rig = rig(2, policy);
        let mut shares = Vec::new();
        for _ in 0..24 {
            let until_ns = rig.world.now_ns + 100 * MS;
            shape(&mut rig, 0, |it| it.stall_until_ns = until_ns);
            shares.push(load(&mut rig, 4, BLOCK, SECOND));
        }
        let sum = |part: &[[u64; 2]]| part.iter().map(|it| it[0]).sum::<u64>();
        // Per second, a third at most.
        let (first, last) = (sum(&shares[..4]) / 4, sum(&shares[12..]) / 12);
        assert!(first > 3 * last, "{policy}: {shares:?}");
        let tally = health(&rig, P0).tally;
        assert!(tally.times >= 2, "{policy}: {tally:?}");
        assert_eq!(health(&rig, P1).tally.times, 0, "{policy}");
    }
}

/// Far, narrow, jittery, suddenly far, full of large I/O: that is for the policy.
#[test]
fn a_path_that_is_only_unlike_the_other_is_never_on_probation() {
    let unlike: [fn(&mut shape::Config); 5] = [
        |it| it.delay_ns = 4 * MS,
        |it| it.delay_ns = 100 * MS,
        |it| it.bytes_per_s = 10 << 20,
        |it| {
            it.delay_ns = 2 * MS;
            it.jitter_ns = 60 * MS;
        },
        |it| {
            it.servers = 1;
            it.service_ns = 10 * MS;
        },
    ];
    for policy in [Policy::RoundRobin { bytes: 0 }, Policy::Soonest] {
        for (n, unlike) in unlike.into_iter().enumerate() {
            let mut rig = rig(2, policy);
            for depth in [1, 8, 1, 8] {
                rig.world.pass(60 * SECOND); // each step may look like a stall or two
                shape(&mut rig, 0, |_| ());
                load(&mut rig, depth, BLOCK, SECOND / 20);
                shape(&mut rig, 0, unlike);
                load(&mut rig, depth, BLOCK, SECOND / 8);
                load(&mut rig, depth, 128 << 10, SECOND / 4);
            }
            for path in [P0, P1] {
                let tally = health(&rig, path).tally;
                assert_eq!(tally.times, 0, "{policy}, {n}, {path:?}");
            }
        }
    }
}

#[test]
fn t45_all_paths_fail_some_and_all_are_used() {
    let mut rig = rig(1, Policy::RoundRobin { bytes: 0 });
    fail(&mut rig, 300_000_000);
    let mut all = Load::new(2_000, 8, BLOCK);
    rig.load(&mut all, 60 * SECOND);
    let failed = all.errors();
    assert!(failed < 5, "{failed} of 2000 had eight errors in a row");
    assert!(health(&rig, P0).tally.times > 0);
    let host = rig.host.borrow();
    assert_eq!(host.path_hindrance(0, P0), None);
}

#[test]
fn t38_a_path_that_is_lost_again_and_again_returns_on_probation() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    rig.world.pass(100 * SECOND);
    for times in 0..4 {
        rig.world.cut(HOST, 0);
        until_returned(&mut rig, 20 * SECOND);
        assert_eq!(health(&rig, P0).tally.times, times, "{times}");
        until_live(&mut rig, 100 * SECOND);
        load(&mut rig, 4, BLOCK, 20 * MS);
    }
    clean(&mut rig);
}

/// Stands still for 3 s whenever it is trusted: probes say nothing of that.
#[test]
fn a_relapse_keeps_a_path_out_by_what_it_cost() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    let mut out = [0; 3];
    for (times, out_ns) in (1..).zip(&mut out) {
        stall(&mut rig, 3 * SECOND);
        load(&mut rig, 8, BLOCK, 4 * SECOND);
        let it = health(&rig, P0);
        assert_eq!(it.tally.times, times, "one for each fault");
        let since_ns = it.probation.unwrap().since_ns;
        until_live(&mut rig, 700 * SECOND);
        *out_ns = rig.world.now_ns - since_ns;
        load(&mut rig, 8, BLOCK, 100 * MS);
    }
    let [first_ns, second_ns, third_ns] = out;
    // Its I/O was taken back after 0.4 s, the silence.
    assert!(first_ns < 5 * SECOND, "{out:?}");
    let range = 10 * SECOND..20 * SECOND;
    assert!(range.contains(&second_ns), "{out:?}");
    assert!(range.contains(&third_ns), "{out:?}");
    clean(&mut rig);
}

/// The same, restored by hand after the second time: probes suffice.
#[test]
fn restored_path_is_trusted_again_after_probes() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    for _ in 0..2 {
        until_live(&mut rig, 20 * SECOND);
        load(&mut rig, 8, BLOCK, 100 * MS);
        stall(&mut rig, 3 * SECOND);
        load(&mut rig, 8, BLOCK, 4 * SECOND);
    }
    assert!(least_ns(&rig) > 10 * SECOND, "it relapsed");
    let now_ns = rig.world.now_ns;
    let restore = HostControl::Change {
        ticket: 1,
        change: Change::RestorePath(0, P0),
        wait_ns: 10 * SECOND,
    };
    rig.host.borrow_mut().handle_control(restore, now_ns);
    until_live(&mut rig, 5 * SECOND);
    clean(&mut rig);
}

/// For how long probation of path 0 lasts at least, from its beginning.
fn least_ns(rig: &Rig) -> u64 {
    let it = health(rig, P0).probation.unwrap();
    it.least_until_ns - it.since_ns
}

/// While I/O is under way on a path that relapses, the core stands still.
#[test]
fn standstill_of_the_core_is_no_cost_of_a_path() {
    // Longer than it stands still, so that no path is lost.
    let mut rig = rig_with_kato(2, Policy::RoundRobin { bytes: 0 }, 9_000);
    stall(&mut rig, 3 * SECOND);
    load(&mut rig, 8, BLOCK, 4 * SECOND);
    until_live(&mut rig, 100 * SECOND);
    load(&mut rig, 8, BLOCK, 100 * MS);
    stall(&mut rig, 60 * SECOND);
    (0..4).for_each(|slot| rig.submit(&read(slot, slot)).unwrap());
    rig.world.pass(10 * MS);
    assert_eq!(why(&rig, P0), None);
    rig.world.now_ns += 3 * SECOND;
    let look = |rig: &Rig, busy_ns| rig.host.borrow_mut().handle_look(busy_ns, rig.world.now_ns);
    look(&rig, 3 * SECOND);
    rig.world.pass(MS);
    look(&rig, 0);
    // Another one by the other path, so that the engine looks in time.
    let hints = Hints {
        on: Some(P1),
        ..Hints::default()
    };
    let now_ns = rig.world.now_ns;
    let taken = rig
        .host
        .borrow_mut()
        .submit_with(&read(4, 4), hints, now_ns);
    assert_eq!(taken, Ok(()));
    assert!(rig.run(15 * SECOND, |_, done| done.len() == 5));
    assert_eq!(why(&rig, P0), Some(Why::Silence));
    // Its reads left it when they timed out: after 10 s, of which the core ran for 7.
    let least_ns = least_ns(&rig);
    let range = 32 * 6 * SECOND..32 * 8 * SECOND;
    assert!(range.contains(&least_ns), "{least_ns}");
}

/// Path 0 has lost a write and given it back. It waits for a write before it, which path 1 lost and
/// may still execute: that is no cost of path 0.
#[test]
fn wait_for_a_write_of_another_path_is_no_cost() {
    let mut rig = rig(3, Policy::RoundRobin { bytes: 0 });
    for _ in 0..2 {
        rig.world.cut(HOST, 0);
        until_returned(&mut rig, 20 * SECOND);
        until_live(&mut rig, 100 * SECOND);
    }
    rig.world.nodes[TARGET].disks[0].delay_ns = 200 * MS;
    for (slot, path) in [(0, P1), (1, P0)] {
        let hints = Hints {
            on: Some(path),
            ..Hints::default()
        };
        let now_ns = rig.world.now_ns;
        let mut host = rig.host.borrow_mut();
        host.submit_with(&write(0, slot), hints, now_ns).unwrap();
    }
    rig.world.pass(10 * MS);
    let in_flight = |rig: &Rig| [P0, P1].map(|path| rig.host.borrow().in_flight(0, path));
    assert_eq!(in_flight(&rig), [1, 1]);
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.world.cut(HOST, 1);
    rig.world.pass(MS);
    rig.world.cut_queue(HOST, 0);
    let before_ns = rig.world.now_ns;
    assert!(rig.run(10 * SECOND, |_, done| done.len() == 2));
    assert!(
        rig.world.now_ns - before_ns > 2 * SECOND,
        "path 1's was held"
    );
    let host = rig.host.clone();
    let is_out = move || {
        host.borrow()
            .path_report(0, P0, 0)
            .health
            .probation
            .is_some()
    };
    assert!(rig.run(20 * SECOND, |_, _| is_out()));
    assert_eq!(why(&rig, P0), Some(Why::Flaps));
    let least_ns = least_ns(&rig);
    assert!((3 * SECOND..32 * SECOND).contains(&least_ns), "{least_ns}");
}

/// Silence, then the loss of the same path: one fault.
#[test]
fn silence_and_the_loss_after_it_are_one_relapse() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    stall(&mut rig, 5 * SECOND);
    load(&mut rig, 8, BLOCK, SECOND);
    assert_eq!(why(&rig, P0), Some(Why::Silence));
    rig.world.cut(HOST, 0);
    until_returned(&mut rig, 20 * SECOND);
    assert_eq!(why(&rig, P0), Some(Why::Flaps));
    assert_eq!(health(&rig, P0).tally.times, 1);
    until_live(&mut rig, 100 * SECOND);
    load(&mut rig, 8, BLOCK, 100 * MS);
    assert_eq!(health(&rig, P0).tally.times, 1);
    clean(&mut rig);
}

#[test]
fn a_probe_ends_with_its_path_and_with_the_engine() {
    // Lost, while a probe is out.
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    fail(&mut rig, 1_000_000_000);
    load(&mut rig, 8, BLOCK, 100 * MS);
    assert_eq!(state(&rig, P0), PathState::Probation);
    stall(&mut rig, 100 * SECOND);
    rig.world.pass(5 * SECOND);
    let free = rig.host.borrow().scratch_free();
    assert!(free < u64::from(SCRATCH.len), "it is out");
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    rig.poll();
    assert_eq!(rig.failures().len(), 1);
    let bad = health(&rig, P0).tally.probes_bad;
    assert!(bad > 0);
    // It has the time of an I/O: then it is taken back.
    stall(&mut rig, 100 * SECOND);
    rig.world.pass(15 * SECOND);
    assert!(health(&rig, P0).tally.probes_bad > bad);
    fail(&mut rig, 0);
    shape(&mut rig, 0, |_| ());
    until_live(&mut rig, 100 * SECOND);
    clean(&mut rig);
    // The engine stops, while one is out.
    fail(&mut rig, 1_000_000_000);
    load(&mut rig, 8, BLOCK, 100 * MS);
    stall(&mut rig, 100 * SECOND);
    rig.world.pass(3 * SECOND);
    let free = rig.host.borrow().scratch_free();
    assert!(free < u64::from(SCRATCH.len), "it is out");
    let now_ns = rig.world.now_ns;
    rig.control(engine::host::HostControl::Stop);
    let stopped = |world: &mut World| world.nodes[HOST].stopped;
    assert!(rig.world.run(20 * SECOND, stopped));
    assert!(
        rig.world.now_ns - now_ns < 100 * MS,
        "it waited for a probe"
    );
    rig.poll();
    let free = rig.host.borrow().scratch_free();
    assert_eq!(free, u64::from(SCRATCH.len));
    let unfinished = |it: &&HostEvent| matches!(it, HostEvent::Unfinished { .. });
    assert_eq!(rig.events.iter().filter(unfinished).count(), 0);
}

#[test]
fn flushes_go_to_a_path_on_probation_and_take_their_time() {
    let mut rig = rig_of(2, |host, target| {
        host.scratch = SCRATCH;
        host.volumes[0].recovery.health = Limits::default();
        target.subsystem.volatile_write_cache = true;
    });
    load(&mut rig, 4, BLOCK, 20 * MS);
    fail(&mut rig, 1_000_000_000);
    load(&mut rig, 4, BLOCK, 20 * MS);
    fail(&mut rig, 0);
    assert_eq!(state(&rig, P0), PathState::Probation);
    let flush = io(IoOp::Flush, 0, 0, 1);
    let done = rig.one(&flush, SECOND);
    assert_eq!(done.outcome, Outcome::Done);
    until_live(&mut rig, 20 * SECOND);
    // One that takes two seconds is not silence.
    load(&mut rig, 4, BLOCK, 20 * MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 2 * SECOND;
    assert_eq!(rig.one(&flush, 20 * SECOND).outcome, Outcome::Done);
    assert_eq!(health(&rig, P1).tally.times, 0);
    clean(&mut rig);
}

#[test]
fn without_memory_for_probes_nothing_is_on_probation() {
    let mut rig = rig_with(2, |it| it.health = Limits::default());
    fail(&mut rig, 500_000_000);
    load(&mut rig, 8, BLOCK, SECOND / 50);
    assert_eq!(health(&rig, P0), PathHealth::default());
}

#[test]
fn a_probe_takes_no_slot_of_the_callers() {
    let mut rig = rig_of(2, |host, _| {
        host.scratch = SCRATCH;
        host.io_max = 8;
        host.volumes[0].recovery.health = Limits::default();
    });
    fail(&mut rig, 1_000_000_000);
    load(&mut rig, 8, BLOCK, 20 * MS);
    for port in [0, 1] {
        shape(&mut rig, port, |it| it.delay_ns = 20 * SECOND);
    }
    rig.world.pass(SECOND);
    let free = rig.host.borrow().scratch_free();
    assert!(free < u64::from(SCRATCH.len), "a probe is out");
    for n in 0..8 {
        rig.submit(&read(n, n)).unwrap();
    }
    assert!(rig.submit(&read(8, 8)).is_err());
}

/// The better path fails all, the other is well again, and nobody knows that yet.
#[test]
fn t45_what_a_better_path_fails_is_done_by_one_of_a_lower_rank() {
    for judged in [true, false] {
        let mut rig = rig_of(2, |host, _| {
            host.scratch = SCRATCH;
            let recovery = &mut host.volumes[0].recovery;
            recovery.ana = Some(multipath::AnaUse::Strict);
            if judged {
                recovery.health = Limits::default();
            }
        });
        rig.target_control(TargetControl::Ana(1, AnaState::NonOptimized));
        rig.world.pass(100 * MS);
        fail(&mut rig, 1_000_000_000);
        if judged {
            fail_at(&mut rig, 1, 1_000_000_000);
            for n in 0..2 {
                rig.one(&read(n, n), SECOND);
            }
            assert!(why(&rig, P0).is_some() && why(&rig, P1).is_some());
            fail_at(&mut rig, 1, 0);
        }
        let done = rig.one(&read(2, 2), SECOND);
        assert_eq!((done.outcome, done.path), (Outcome::Done, P1), "{judged}");
    }
}

#[test]
fn a_queue_that_fails_by_itself_is_a_lost_path_and_no_series_of_errors() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    rig.world.pass(100 * SECOND);
    for n in 0..32 {
        rig.submit(&read(n, n)).unwrap();
    }
    rig.world.pass(100_000);
    assert!(rig.host.borrow().in_flight(0, P0) >= 8);
    rig.world.inject_queue(HOST, 0, &[0xff; 64]);
    until_returned(&mut rig, 20 * SECOND);
    assert_eq!(rig.failures().len(), 1);
    assert_eq!(health(&rig, P0).tally.times, 0);
    assert_eq!(warnings(&rig, "on probation"), 0);
    clean(&mut rig);
}

#[test]
fn what_waits_for_room_behind_what_may_take_any_time_says_nothing() {
    let mut rig = rig_of(2, |host, target| {
        host.scratch = SCRATCH;
        host.volumes[0].policy = Policy::Numa;
        host.volumes[0].paths[1].distance = 100;
        host.volumes[0].recovery.health = Limits::default();
        target.subsystem.entries_max = 4;
    });
    load(&mut rig, 16, BLOCK, 20 * MS);
    rig.world.pass(SECOND);
    rig.world.nodes[TARGET].disks[0].delay_ns = 2 * SECOND;
    for n in 0..3 {
        let zeroes = io(IoOp::WriteZeroes { deallocate: false }, 0, BLOCK, n);
        rig.submit(&zeroes).unwrap();
    }
    for n in 3..8 {
        rig.submit(&read(n, n)).unwrap();
    }
    rig.world.pass(SECOND);
    assert_eq!(rig.host.borrow().in_flight(0, P0), 8);
    assert_eq!(health(&rig, P0).tally.times, 0);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.pass(5 * SECOND);
    clean(&mut rig);
}

#[test]
fn t26_a_path_that_ana_closes_is_not_probed() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 });
    fail(&mut rig, 1_000_000_000);
    load(&mut rig, 8, BLOCK, 100 * MS);
    assert!(why(&rig, P0).is_some());
    rig.target_control(TargetControl::Ana(0, AnaState::Inaccessible));
    rig.world.pass(SECOND);
    let before = health(&rig, P0).tally;
    rig.world.pass(30 * SECOND);
    assert_eq!(health(&rig, P0).tally, before);
    fail(&mut rig, 0);
    rig.target_control(TargetControl::Ana(0, AnaState::Optimized));
    until_live(&mut rig, 20 * SECOND);
    clean(&mut rig);
}

#[test]
fn what_one_core_finds_out_the_idle_ones_hear_once() {
    for finder in [0, 1, 2] {
        let mut fleet = Fleet::of(3, 2, target(2), |host| {
            host.scratch = SCRATCH;
            host.volumes[0].policy = Policy::RoundRobin { bytes: 0 };
        });
        let tell = |fleet: &Fleet, parts| {
            let control = TargetControl::Faults(0, errors(parts));
            let now_ns = fleet.world.now_ns;
            fleet.target.borrow_mut().handle_control(control, now_ns);
        };
        let on_probation = |fleet: &Fleet| {
            let hosts = fleet.hosts.iter();
            let health = hosts.map(|host| host.borrow().path_report(0, P0, 0).health);
            health.filter(|it| it.probation.is_some()).count()
        };
        fleet.run(SECOND, |_| false);
        tell(&fleet, 1_000_000_000);
        for n in 0..8 {
            let end = fleet.one(finder, &read(n, n), SECOND);
            assert_eq!(end, Some(Outcome::Done));
        }
        assert!(fleet.run(50 * MS, |it| on_probation(it) == 3), "{finder}");
        fleet.run(5 * SECOND, |_| false);
        for (core, host) in fleet.hosts.iter().enumerate() {
            let tally = host.borrow().path_report(0, P0, 0).health.tally;
            assert_eq!(tally.times, 1, "{finder}, {core}");
            assert!(tally.probes_bad > 0, "each core has its own queue");
        }
        // Each comes back by its own probes.
        tell(&fleet, 0);
        assert!(fleet.run(60 * SECOND, |it| on_probation(it) == 0));
        for host in &fleet.hosts {
            let health = host.borrow().path_report(0, P1, 0).health;
            assert_eq!(health, PathHealth::default());
        }
    }
}

/// A path that answers each I/O, and always with what calls itself passing, makes each wait for its
/// repeats before another path does it.
#[test]
fn b7_a_path_that_refuses_what_another_does_is_put_on_probation_and_comes_back() {
    for status in [Status::INTERNAL_ERROR, Status::NAMESPACE_NOT_READY] {
        let mut rig = rig(2, POLICIES[0]);
        let mut faults = errors(1_000_000_000);
        faults.errors[0].status = status;
        rig.target_control(TargetControl::Faults(0, faults.clone()));
        load(&mut rig, 4, BLOCK, 2 * SECOND);
        assert_eq!(why(&rig, P0), Some(Why::Errors), "{status}");
        let [near, _] = load(&mut rig, 4, BLOCK, SECOND);
        assert_eq!(near, 0, "{status}: probes are answered like that as well");
        // Where all are busy, no path is to blame.
        rig.target_control(TargetControl::Faults(0, Faults::default()));
        until_live(&mut rig, 30 * SECOND);
        for port in 0..2 {
            rig.target_control(TargetControl::Faults(port, faults.clone()));
        }
        for n in 0..10 {
            assert!(!rig.one(&read(n, n), SECOND).outcome.is_done());
        }
        assert_eq!([P0, P1].map(|path| why(&rig, path)), [None; 2], "{status}");
        clean(&mut rig);
    }
}
