//! The host's engine against the target's, in virtual time.

use crate::common::*;
use engine::host::{HostControl, HostEvent, IoOp, PathState, SubmitError};
use engine::target::TargetControl;
use multipath::Outcome;
use nvme::host::Digests;
use policy::{Group, Knobs, PathIndex, Policy};

const POLICIES: [Policy; 4] = [
    Policy::Numa,
    Policy::RoundRobin { bytes: 0 },
    Policy::QueueDepth,
    Policy::WEIGHTED_LATENCY,
];

#[test]
fn a_volume_over_two_paths_is_ready_and_every_byte_is_right() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    let info = rig.ready();
    assert_eq!(
        (info.bytes, info.block_shift),
        (BLOCKS * u64::from(BLOCK), 12)
    );
    assert_eq!(info.transfer_max, 32 << 20);
    let mut load = Load::new(2000, 32, BLOCK);
    rig.load(&mut load, SECOND);
    assert_eq!(load.errors(), 0);
    assert_eq!(load.verified, 1000);
    assert_eq!(rig.shares(2), [1000, 1000]);
}

#[test]
fn every_size_from_a_block_to_the_largest_transfer_with_and_without_digests() {
    for digests in [0, 1, 2, 3] {
        for bytes in [4 << 10, 8 << 10, 12 << 10, 64 << 10, 128 << 10] {
            let mut host = host_config(2);
            host.digests = Digests {
                header: digests & 1 == 1,
                data: digests & 2 == 2,
            };
            let mut rig = Rig::new(host, target_config(2));
            rig.ready();
            let mut load = Load::new(64, 4, bytes);
            rig.load(&mut load, SECOND);
            assert_eq!(
                (load.errors(), load.verified),
                (0, 32),
                "{bytes} bytes, digests {digests}"
            );
        }
    }
}

#[test]
fn all_operations_do_what_they_say() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    fill(&mut rig.world.nodes[HOST].arena.0[..8192], 0, 1);
    let two = |op| io(op, 0, 8192, 0);
    assert_eq!(
        rig.one(&two(IoOp::Write { fua: true }), SECOND).outcome,
        Outcome::Done
    );
    assert_eq!(
        rig.one(&io(IoOp::Flush, 0, 0, 1), SECOND).outcome,
        Outcome::Done
    );
    assert_eq!(
        rig.disk.bytes.borrow()[..8192],
        rig.world.nodes[HOST].arena.0[..8192]
    );
    let zeroes = io(IoOp::WriteZeroes { deallocate: false }, 0, 4096, 1);
    assert_eq!(rig.one(&zeroes, SECOND).outcome, Outcome::Done);
    assert!(
        rig.disk.bytes.borrow()[..4096]
            .iter()
            .all(|&byte| byte == 0)
    );
    assert!(
        rig.disk.bytes.borrow()[4096..8192]
            .iter()
            .any(|&byte| byte != 0)
    );
    let trim = io(IoOp::Deallocate, 4096, 4096, 1);
    assert_eq!(rig.one(&trim, SECOND).outcome, Outcome::Done);
    assert_eq!(rig.one(&two(IoOp::Read), SECOND).outcome, Outcome::Done);
    assert!(
        rig.world.nodes[HOST].arena.0[..8192]
            .iter()
            .all(|&byte| byte == 0)
    );
}

#[test]
fn what_does_not_fit_is_refused_at_once() {
    let mut rig = Rig::new(host_config(1), target_config(1));
    assert_eq!(rig.submit(&read(0, 0)), Err(SubmitError::NotReady));
    rig.ready();
    let past_end = SubmitError::PastEnd {
        offset: BLOCKS * u64::from(BLOCK),
        length: BLOCK,
        bytes: BLOCKS * u64::from(BLOCK),
    };
    assert_eq!(rig.submit(&read(BLOCKS, 0)), Err(past_end));
    assert_eq!(
        rig.submit(&io(IoOp::Read, 512, BLOCK, 0)),
        Err(SubmitError::Range)
    );
    assert_eq!(
        rig.submit(&io(IoOp::Read, 0, (32 << 20) + BLOCK, 0)),
        Err(SubmitError::Range)
    );
    for slot in 0..64 {
        assert_eq!(rig.submit(&read(slot, slot)), Ok(()));
    }
    assert_eq!(rig.submit(&read(0, 0)), Err(SubmitError::Full));
    assert!(rig.run(SECOND, |_, done| done.len() == 64));
    assert_eq!(rig.submit(&read(0, 0)), Ok(()));
}

#[test]
fn every_policy_balances_its_counts_and_a_switch_under_load_keeps_them() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    let mut load = Load::new(4000, 32, BLOCK);
    for (turn, policy) in POLICIES.into_iter().cycle().take(16).enumerate() {
        let until = 250 * (turn as u64 + 1);
        assert!(rig.load_until(&mut load, SECOND, until));
        rig.control(HostControl::Policy(0, policy, Knobs::default()));
    }
    assert!(load.is_over());
    assert_eq!((load.errors(), load.verified), (0, 2000));
    let host = rig.host.borrow();
    for path in [0, 1] {
        assert_eq!(host.in_flight(0, PathIndex(path)), 0);
        assert_eq!(host.counters(0, PathIndex(path)).in_flight, 0);
        assert!(host.counters(0, PathIndex(path)).ios.iter().sum::<u64>() > 100);
    }
}

#[test]
fn a02_latency_counts_from_submission_including_the_wait_for_a_full_path() {
    let mut target = target_config(1);
    target.subsystem.entries_max = 5; // four commands
    target.shapes[0] = shape::Config {
        servers: 1,
        service_ns: MS,
        ..Default::default()
    };
    let mut rig = Rig::new(host_config(1), target);
    rig.ready();
    for slot in 0..16 {
        rig.submit(&read(slot, slot)).unwrap();
    }
    assert!(rig.run(SECOND, |_, done| done.len() == 16));
    let host = rig.host.borrow();
    let counters = host.counters(0, PathIndex(0));
    assert_eq!((counters.waited_full, counters.ios[0]), (12, 16));
    // One after the other, in the order of submission; each waited for all before it.
    for (n, done) in (1..).zip(&rig.done) {
        assert_eq!(done.cookie, n - 1);
        assert!(
            done.latency_ns >= n * MS && done.latency_ns < (n + 1) * MS + MS / 2,
            "{done:?}"
        );
    }
}

#[test]
fn a06_the_slower_path_gets_less_under_weighted_latency() {
    let mut host = host_config(2);
    host.volumes[0].policy = Policy::WEIGHTED_LATENCY;
    host.volumes[0].knobs = Knobs {
        weight_timeout_ns: 20 * MS,
        ..Knobs::default()
    };
    let mut target = target_config(2);
    target.shapes[0].delay_ns = MS;
    target.shapes[1].delay_ns = 3 * MS;
    let mut rig = Rig::new(host, target);
    rig.ready();
    let mut load = Load::new(8000, 16, BLOCK);
    rig.load(&mut load, 20 * SECOND);
    let stats =
        |path| rig.host.borrow().path_report(0, PathIndex(path), 0).groups[Group::Read as usize];
    let (fast, slow) = (stats(0), stats(1));
    assert!(fast.samples > 1000 && slow.samples > 300);
    // Weights 3 : 1, up to the wire's part of the latency and rounding.
    assert!((46..=50).contains(&fast.weight) && (14..=18).contains(&slow.weight));
    let shares = rig.shares(2);
    assert!(
        shares[0] > shares[1] * 5 / 2 && shares[0] < shares[1] * 7 / 2,
        "{shares:?}"
    );
}

#[test]
fn t12_an_io_without_an_answer_ends_its_path_and_nothing_else() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    let stall = shape::Config {
        stall_until_ns: u64::MAX / 2,
        ..Default::default()
    };
    rig.target_control(TargetControl::Shape(0, stall));
    let start_ns = rig.world.now_ns;
    for slot in 0..8 {
        rig.submit(&read(slot, slot)).unwrap();
    }
    let line = rig.failure(60 * SECOND);
    assert!(
        line.contains("v0: path nvme-tcp://p0/") && line.contains("10000 ms"),
        "{line}"
    );
    let waited_ns = rig.world.now_ns - start_ns;
    assert!(
        (10 * SECOND..10 * SECOND + 100 * MS).contains(&waited_ns),
        "{waited_ns}"
    );
    let of = |path| {
        rig.done
            .iter()
            .filter(move |done| done.path == PathIndex(path))
    };
    assert_eq!(of(0).count(), 4);
    assert!(of(0).all(|done| done.outcome == Outcome::TimedOut));
    assert_eq!(of(1).count(), 4);
    assert!(of(1).all(|done| done.outcome == Outcome::Done));
    assert_eq!(
        rig.host.borrow().path_state(0, PathIndex(0)),
        PathState::Failed
    );
    // The rest of the life goes on over the other path.
    let mut load = Load::new(200, 8, BLOCK);
    rig.load(&mut load, SECOND);
    assert_eq!(load.errors(), 0);
    assert!(load.outcomes.iter().all(|(_, path)| *path == PathIndex(1)));
    assert_eq!(rig.failures().len(), 1);
}

#[test]
fn a_path_that_is_cut_in_mid_flight_fails_its_io_and_the_other_goes_on() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    let mut load = Load::new(3000, 32, BLOCK);
    assert!(rig.load_until(&mut load, SECOND, 1001));
    rig.world.cut(HOST, 0);
    rig.load(&mut load, SECOND);
    assert_eq!(rig.failures().len(), 1, "{:?}", rig.failures());
    assert!(rig.failures()[0].contains("p0") && rig.failures()[0].contains("reset"));
    let failed = load
        .outcomes
        .iter()
        .filter(|(outcome, _)| !outcome.is_done());
    assert!(
        failed
            .clone()
            .all(|it| *it == (Outcome::PathError, PathIndex(0)))
    );
    assert!((1..=32).contains(&failed.count()));
    assert_eq!(rig.host.borrow().in_flight(0, PathIndex(0)), 0);
    assert_eq!(rig.host.borrow().counters(0, PathIndex(0)).in_flight, 0);
}

#[test]
fn a_target_that_drops_a_port_mid_flight_is_one_lost_path() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    rig.target_control(TargetControl::Drop(1));
    let line = rig.failure(SECOND);
    assert!(
        line.contains("p1") && line.contains("connection lost"),
        "{line}"
    );
}

#[test]
fn without_a_usable_path_io_fails_at_once() {
    let mut rig = Rig::new(host_config(1), target_config(1));
    rig.ready();
    rig.world.cut(HOST, 0);
    rig.failure(SECOND);
    let done = rig.one(&read(0, 0), 0);
    assert_eq!(
        (done.outcome, done.path),
        (Outcome::PathError, engine::host::NO_PATH)
    );
}

#[test]
fn a_path_that_is_full_and_lost_fails_what_waits_for_it() {
    let mut target = target_config(1);
    target.subsystem.entries_max = 3;
    target.shapes[0].delay_ns = 100 * MS;
    let mut rig = Rig::new(host_config(1), target);
    rig.ready();
    for slot in 0..20 {
        rig.submit(&write(slot, slot)).unwrap();
    }
    rig.world.pass(MS);
    rig.world.cut(HOST, 0);
    assert!(rig.run(SECOND, |_, done| done.len() == 20));
    assert!(
        rig.done
            .iter()
            .all(|done| done.outcome == Outcome::PathError)
    );
    assert_eq!(rig.host.borrow().counters(0, PathIndex(0)).waited_full, 18);
}

#[test]
fn t18_t23_sq_flow_control_success_flags_and_late_sends_make_no_difference() {
    for seed in 0..8 {
        let mut target = target_config(2);
        target.subsystem.c2h_success = seed & 1 == 0;
        target.subsystem.in_capsule_max = if seed & 2 == 0 { 8192 } else { 0 };
        let mut rig = Rig::new(host_config(2), target);
        rig.world.piece_max = [1, 7, 100, 5000, 70_000, 64, 128, 4096][seed];
        rig.world.sent_delay_ns = if seed & 4 == 0 { 5 * MS } else { 0 };
        rig.ready();
        let mut load = Load::new(200, 16, 16 << 10);
        rig.load(&mut load, 20 * SECOND);
        assert_eq!((load.errors(), load.verified), (0, 100), "seed {seed}");
    }
}

#[test]
fn an_idle_host_wakes_only_for_keep_alives() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    rig.world.pass(SECOND);
    let before = rig.world.nodes[HOST].wakeups;
    rig.world.pass(100 * SECOND);
    let wakeups = rig.world.nodes[HOST].wakeups - before;
    // Two controllers, one keep-alive every 2.5 s, each a time-out and a response in a few pieces.
    assert!((80..=2 * 40 * 4).contains(&wakeups), "{wakeups}");
    assert_eq!(rig.failures().len(), 0);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = || {
        let mut host = host_config(2);
        host.volumes[0].policy = Policy::WEIGHTED_LATENCY;
        let mut target = target_config(2);
        target.shapes[1] = shape::Config {
            delay_ns: 100_000,
            jitter_ns: 50_000,
            ..Default::default()
        };
        let mut rig = Rig::new(host, target);
        rig.ready();
        let mut load = Load::new(500, 16, BLOCK);
        rig.load(&mut load, SECOND);
        (rig.world.now_ns, load.outcomes, load.latency_ns)
    };
    assert_eq!(history(), history());
}

#[test]
fn a02_a_stalling_path_is_warned_of_once_in_a_while() {
    let mut host = host_config(2);
    host.volumes[0].policy = Policy::WEIGHTED_LATENCY;
    let mut target = target_config(2);
    for shape in &mut target.shapes {
        shape.delay_ns = 2 * SECOND;
    }
    let mut rig = Rig::new(host, target);
    rig.ready();
    let mut load = Load::new(32, 16, BLOCK);
    rig.load(&mut load, 20 * SECOND);
    assert_eq!(load.errors(), 0);
    let warnings = rig.events.iter().filter_map(|event| match event {
        HostEvent::Trouble(0, line) => Some(line),
        _ => None,
    });
    let warnings: Vec<_> = warnings.collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("v0: path nvme-tcp://p") && warnings[0].contains("2000 ms"));
}
