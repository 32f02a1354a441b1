//! Second copies where much else is under way, room is short, or what they read from changes.

use crate::common::hedge::*;
use crate::common::*;
use engine::Span;
use engine::host::{HedgeStats, HostControl, PathState};
use engine::target::{Faults, TargetControl};
use multipath::Outcome;
use nvme::host::AnaState;
use policy::{Knobs, Policy};

#[test]
fn reads_behind_many_stuck_writes_get_a_copy() {
    let mut rig = hedging_rig_with(|host, target| {
        host.io_max = 512;
        target.subsystem.entries_max = 512;
    });
    stall(&mut rig, 0, STALL_NS);
    let on_first = |rig: &Rig| rig.host.borrow().in_flight(0, P0);
    // All at once: nobody knows yet that the path has stalled.
    let mut n = 0;
    while on_first(&rig) < 100 {
        rig.submit(&io_of(&write(n % BLOCKS, 1), 1000 + n)).unwrap();
        n += 1;
        assert!(n < 400, "the path gets nothing");
    }
    let before = on_first(&rig);
    let mut reads = 0;
    while on_first(&rig) < before + 3 {
        rig.submit(&read(reads, 2 + reads)).unwrap();
        reads += 1;
        assert!(reads < 20, "the path gets no reads");
    }
    let all = |done: &[engine::host::IoDone]| {
        let cookies = done.iter().filter(|done| done.cookie < 1000);
        cookies.count() as u64 == reads
    };
    assert!(rig.run(100 * MS, |_, done| all(done)), "{:?}", stats(&rig));
    assert_eq!(stats(&rig).won, 3, "{:?}", stats(&rig));
    assert!(on_first(&rig) > 100, "the writes are stuck still");
    rig.world.pass(2 * STALL_NS);
    rig.poll();
    assert_eq!(rig.done.len() as u64, n + reads);
    all_is_back(&rig);
}

fn io_of(io: &engine::host::Io, cookie: u64) -> engine::host::Io {
    engine::host::Io { cookie, ..*io }
}

#[test]
fn a_read_that_moved_to_another_path_can_get_a_copy_there() {
    let mut rig = hedging_rig();
    pair(&mut rig, false);
    // The copy fails; later the first, and the read moves.
    for port in [0, 1] {
        fail_reads(&mut rig, port, PATH_ERROR);
    }
    let host = rig.host.clone();
    assert!(
        rig.world
            .run(SECOND, |_| host.borrow().hedge_stats(0).failed == 1)
    );
    stall(&mut rig, 1, 3 * STALL_NS);
    let on = |rig: &Rig| [P0, P1].map(|path| rig.host.borrow().in_flight(0, path));
    assert_eq!(on(&rig), [1, 0]);
    let moved = rig
        .world
        .run(2 * SECOND, |_| host.borrow().in_flight(0, P0) == 0);
    assert!(moved, "{:?}", stats(&rig));
    assert_eq!(on(&rig), [0, 1]);
    for port in [0, 1] {
        rig.target_control(TargetControl::Faults(port, Faults::default()));
    }
    // The first path shows that it is well again, by and by.
    for slot in 1..20 {
        rig.submit(&read(9, slot)).unwrap();
        rig.world.pass(5 * MS);
    }
    rig.poll();
    let done = rig.done.iter().find(|done| done.cookie == 0);
    let done = *done.unwrap_or_else(|| panic!("not hedged: {:?}", stats(&rig)));
    assert_eq!((done.outcome, done.path), (Outcome::Done, P0));
    assert!(holds(&mut rig, 0, 5, 4096));
    rig.world.pass(4 * STALL_NS);
    all_is_back(&rig);
}

#[test]
fn without_memory_only_reads_that_would_get_a_copy_are_counted() {
    let scratch = Span {
        len: 4096,
        ..SCRATCH
    };
    // A policy that begins has earned no copy yet; later it has.
    for (reads, without) in [(60, 0), (600, 1)] {
        let mut rig = hedging_rig_with(|host, _| host.scratch = scratch);
        for policy in [Policy::QueueDepth, Policy::Soonest] {
            rig.control(HostControl::Policy(0, policy, Knobs::default()));
        }
        for n in 0..reads {
            assert!(rig.one(&read(n % BLOCKS, 0), SECOND).outcome.is_done());
        }
        let before = stats(&rig);
        stall(&mut rig, 0, 50 * MS);
        assert_eq!(rig.one(&read(5, 0), SECOND).path, P0);
        let HedgeStats {
            looked, no_room, ..
        } = stats(&rig);
        assert_eq!((looked, no_room), (before.looked + 1, without), "{reads}");
    }
}

#[test]
fn t26_ana_may_change_on_either_path_of_a_pair() {
    let states = [
        AnaState::NonOptimized,
        AnaState::Inaccessible,
        AnaState::PersistentLoss,
        AnaState::Change,
    ];
    for (state, port) in states.into_iter().flat_map(|it| [(it, 0), (it, 1)]) {
        for over in [true, false] {
            let mut rig = hedging_rig();
            pair(&mut rig, over);
            rig.target_control(TargetControl::Ana(port, state));
            rig.world.pass(2 * STALL_NS);
            rig.poll();
            let name = format!("{state:?} on {port}, over: {over}");
            match over {
                true => untouched(&mut rig),
                false => {
                    assert_eq!(rig.done.len(), 1, "{name}");
                    assert_eq!(rig.done[0].outcome, Outcome::Done, "{name}");
                    assert!(holds(&mut rig, 0, 5, 4096), "{name}");
                }
            }
            assert!(rig.failures().is_empty(), "{name}: {:?}", rig.failures());
            all_is_back(&rig);
        }
    }
}

#[test]
fn t33_a_namespace_may_shrink_under_a_pair() {
    // The block read stays; or it doesn't.
    for (blocks, over) in [
        (BLOCKS / 2, true),
        (BLOCKS / 2, false),
        (4, true),
        (4, false),
    ] {
        let mut rig = hedging_rig();
        pair(&mut rig, over);
        rig.target_control(TargetControl::Resize(1, blocks));
        rig.world.pass(3 * STALL_NS);
        rig.poll();
        let name = format!("{blocks} blocks, over: {over}");
        if over {
            untouched(&mut rig);
        } else {
            assert_eq!(rig.done.len(), 1, "{name}");
            match rig.done[0].outcome {
                Outcome::Done => assert!(holds(&mut rig, 0, 5, 4096), "{name}"),
                outcome => assert_eq!((outcome, blocks), (Outcome::PastEnd, 4), "{name}"),
            }
        }
        for path in [P0, P1] {
            assert_eq!(state(&rig, path), PathState::Live, "{name}");
        }
        all_is_back(&rig);
    }
}
