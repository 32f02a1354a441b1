//! ANA over several cores: which paths are used in which states, and that no I/O hears of it.

use crate::common::*;
use engine::Machine;
use engine::host::{HostControl, HostEvent, PathState};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use multipath::{AnaUse, Outcome};
use nvme::host::AnaState;
use nvme::wire::Status;
use policy::{Knobs, PathIndex, Policy};

const STATES: [AnaState; 5] = [
    AnaState::Optimized,
    AnaState::NonOptimized,
    AnaState::Inaccessible,
    AnaState::PersistentLoss,
    AnaState::Change,
];
const P: [PathIndex; 2] = [PathIndex(0), PathIndex(1)];

fn tell(fleet: &mut Fleet, message: TargetControl) {
    let now_ns = fleet.world.now_ns;
    fleet.target.borrow_mut().handle_control(message, now_ns);
}

fn set(fleet: &mut Fleet, port: u32, state: AnaState) {
    tell(fleet, TargetControl::Ana(port as u16, state));
}

fn fail(fleet: &mut Fleet, port: u16, status: Option<Status>) {
    let rule = |status| ErrorRule {
        status,
        ops: Ops::ALL,
        blocks: None,
        rate: Probability::ALWAYS,
    };
    let faults = Faults {
        errors: status.map(rule).into_iter().collect(),
        ..Faults::default()
    };
    tell(fleet, TargetControl::Faults(port, faults));
}

fn lost(fleet: &Fleet) -> usize {
    let events = fleet.events.iter().flatten();
    events
        .filter(|event| matches!(event, HostEvent::Failed(..)))
        .count()
}

fn usable(state: AnaState) -> bool {
    matches!(state, AnaState::Optimized | AnaState::NonOptimized)
}

/// I/Os that each path ended within 20 ms, once what was said before has arrived.
fn shares(fleet: &mut Fleet) -> [u64; 2] {
    fleet.run(10 * MS, |_| false);
    let before = P.map(|path| fleet.ios(path));
    fleet.run(20 * MS, |_| false);
    [0, 1].map(|at| fleet.ios(P[at]) - before[at])
}

#[test]
fn t26_t44_all_25_pairs_of_states_under_load_and_every_change_between_them() {
    for ana in [AnaUse::Strict, AnaUse::Merge] {
        let mut fleet = Fleet::with(2, 2, target(2), |it| it.ana = Some(ana));
        // One that asks nothing of ANA but whether it may.
        for host in &fleet.hosts {
            let message = HostControl::Policy(0, Policy::WEIGHTED_LATENCY, Knobs::default());
            let now_ns = fleet.world.now_ns;
            host.borrow_mut().handle_control(message, now_ns);
        }
        fleet.load(u64::MAX);
        // From each pair to each: path 1 goes round its states for each state of path 0.
        for round in 0..5 {
            for (a, first) in STATES.into_iter().enumerate() {
                set(&mut fleet, 0, first);
                for b in 0..5 {
                    let second = STATES[(a * round + b) % 5];
                    set(&mut fleet, 1, second);
                    let shares = shares(&mut fleet);
                    let best = [first, second].contains(&AnaState::Optimized);
                    for (share, state) in shares.into_iter().zip([first, second]) {
                        let strict = ana == AnaUse::Strict && best;
                        let used = usable(state) && !(strict && state != AnaState::Optimized);
                        assert_eq!(share > 0, used, "{ana:?}: {first:?} {second:?} {shares:?}");
                    }
                }
            }
        }
        set(&mut fleet, 0, AnaState::Optimized);
        for load in &mut fleet.loads {
            load.total = load.started;
        }
        fleet.finish();
        assert_eq!(lost(&fleet), 0, "{ana:?}: {:?}", fleet.events);
        for host in &fleet.hosts {
            assert_eq!(host.borrow().hold_stats(0).held_total, 0);
        }
    }
}

#[test]
fn t26_all_paths_in_change_beyond_anatt_are_connected_again_and_no_io_is_lost() {
    let mut fleet = Fleet::new(2, 2, target(2));
    fleet.load(u64::MAX);
    fleet.run(10 * MS, |_| false);
    for port in 0..2 {
        set(&mut fleet, port, AnaState::Change);
    }
    fleet.run(5 * SECOND, |_| false);
    assert_eq!(lost(&fleet), 0, "within ANATT it is waited for");
    // Our target has an ANATT of 10 s.
    assert!(fleet.run(10 * SECOND, |it| lost(it) >= 2));
    for events in &fleet.events[..1] {
        let said = failures(events);
        assert!(said.iter().all(|line| line.contains("ANA")), "{said:?}");
    }
    fleet.run(20 * SECOND, |_| false);
    for port in 0..2 {
        set(&mut fleet, port, AnaState::Optimized);
    }
    for load in &mut fleet.loads {
        load.total = load.started + 100;
    }
    fleet.finish();
    let live = |it: &Fleet| {
        P.iter()
            .all(|&path| it.states(path) == [PathState::Live; 2])
    };
    assert!(fleet.run(20 * SECOND, live));
}

#[test]
fn t26_persistent_loss_takes_no_io_until_the_state_changes_and_loses_no_path() {
    let mut fleet = Fleet::new(2, 2, target(2));
    fleet.load(u64::MAX);
    for port in 0..2 {
        set(&mut fleet, port, AnaState::PersistentLoss);
    }
    assert_eq!(shares(&mut fleet), [0, 0]);
    fleet.run(60 * SECOND, |_| false);
    assert_eq!(lost(&fleet), 0, "{:?}", fleet.events);
    set(&mut fleet, 1, AnaState::NonOptimized);
    let shares = shares(&mut fleet);
    assert!(shares[0] == 0 && shares[1] > 0, "{shares:?}");
    for load in &mut fleet.loads {
        load.total = load.started;
    }
    fleet.finish();
}

/// A controller is asked about news of one core although core 0's own queue isn't open yet.
#[test]
fn t26_a_doubt_of_a_core_is_heard_while_core_0_is_still_connecting() {
    // Core 0 is live after the answer has come, or before.
    for (slow_ms, later_ms) in [(5, 0), (20, 0), (20, 90)] {
        let mut fleet = Fleet::new(2, 2, target(2));
        fleet.world.nodes[HOST].addresses[0] = Address::To {
            node: TARGET,
            listener: 0,
            delay_ns: slow_ms * MS,
        };
        fleet.world.cut(HOST, 0);
        let gone = |it: &Fleet| !it.states(P[0]).contains(&PathState::Live);
        assert!(fleet.run(SECOND, gone));
        let first = |it: &Fleet| it.states(P[0])[1] == PathState::Live;
        assert!(fleet.run(5 * SECOND, first));
        fleet.run(later_ms * MS, |_| false);
        fail(&mut fleet, 0, Some(Status::ANA_TRANSITION));
        for n in 0..4 {
            let end = fleet.one(1, &read(n, n), SECOND);
            assert_eq!(end, Some(Outcome::Done));
        }
        fail(&mut fleet, 0, None);
        assert_eq!(fleet.hosts[1].borrow().hold_stats(0).moved_total, 1);
        assert_ne!(
            fleet.states(P[0])[0],
            PathState::Live,
            "{slow_ms} {later_ms}"
        );
        let usable = |it: &Fleet| {
            let mut hosts = it.hosts.iter();
            hosts.all(|host| host.borrow().path_hindrance(0, P[0]).is_none())
        };
        assert!(fleet.run(SECOND, usable), "{slow_ms} {later_ms}");
        assert_eq!(fleet.states(P[0]), [PathState::Live; 2]);
    }
}

/// A namespace that one controller doesn't have (any more) is behind the other one: no I/O fails,
/// on any core, and what the controller has is asked before its path is used again.
#[test]
fn t02_a_namespace_that_one_controller_lost_is_reached_through_the_other() {
    let mut fleet = Fleet::new(2, 2, target(2));
    for core in [0, 1] {
        fail(&mut fleet, 0, Some(Status::INVALID_NAMESPACE.with_dnr()));
        for n in 0..8 {
            assert_eq!(fleet.one(core, &read(n, n), SECOND), Some(Outcome::Done));
            let io = &write(n, n);
            assert_eq!(fleet.one(core, io, SECOND), Some(Outcome::Done));
        }
        let moved = fleet.hosts[core].borrow().hold_stats(0).moved_total;
        assert_ne!(moved, 0, "core {core}");
        fail(&mut fleet, 0, None);
        fleet.run(100 * MS, |_| false);
    }
    assert_eq!(lost(&fleet), 0, "{:?}", fleet.events);
    fleet.load(200);
    fleet.finish();
    assert!(P.iter().all(|&path| fleet.ios(path) > 0));
}

/// A link that damages every transfer answers each command with an error that calls itself
/// transient.
#[test]
fn t04_a_path_whose_transfers_keep_failing_is_left_for_the_other() {
    let mut fleet = Fleet::new(2, 2, target(2));
    for status in [
        Status::TRANSIENT_TRANSPORT,
        Status::TRANSIENT_TRANSPORT.with_dnr(),
        Status::NAMESPACE_NOT_READY,
    ] {
        fail(&mut fleet, 0, Some(status));
        for n in 0..8 {
            let io = &read(n, n);
            assert_eq!(fleet.one(1, io, SECOND), Some(Outcome::Done), "{status}");
        }
        // Where both say so, it ends, and soon.
        fail(&mut fleet, 1, Some(status));
        let end = fleet.one(1, &read(0, 0), SECOND).unwrap();
        assert!(!end.is_done(), "{status}: {end}");
        fail(&mut fleet, 0, None);
        fail(&mut fleet, 1, None);
    }
    fleet.at_rest();
}

/// Fills a core with I/O until it takes no more; how many that was.
fn fill(fleet: &mut Fleet, core: usize) -> u64 {
    let now_ns = fleet.world.now_ns;
    let mut host = fleet.hosts[core].borrow_mut();
    (0..)
        .find(|&n| host.submit(&read(n % 8, n % 8), now_ns).is_err())
        .unwrap()
}

/// The probe by which a path may be used again needs no slot, no path and no I/O of the volume.
#[test]
fn t28_events_are_heard_while_every_slot_of_a_core_waits_for_a_path() {
    let mut fleet = Fleet::new(2, 2, target(2));
    for port in 0..2 {
        set(&mut fleet, port, AnaState::Inaccessible);
    }
    fleet.run(100 * MS, |_| false);
    for core in [0, 1] {
        let filled = fill(&mut fleet, core);
        assert!(filled > 0);
        // Keep-alives go on meanwhile as well.
        fleet.run(20 * SECOND, |_| false);
        assert_eq!(lost(&fleet), 0, "{:?}", fleet.events);
        set(&mut fleet, 1, AnaState::Optimized);
        for _ in 0..filled {
            assert_eq!(fleet.end(core, SECOND), Some(Outcome::Done));
        }
        fleet.at_rest();
        set(&mut fleet, 1, AnaState::Inaccessible);
        fleet.run(100 * MS, |_| false);
    }
}

/// The same while the controllers execute nothing, so that every slot is with them.
#[test]
fn t28_events_are_heard_while_every_slot_is_with_a_controller_that_stands_still() {
    let mut fleet = Fleet::new(2, 2, target(2));
    fleet.world.nodes[TARGET].disks[0].delay_ns = 3 * SECOND;
    let filled = [0, 1].map(|core| fill(&mut fleet, core));
    set(&mut fleet, 0, AnaState::Inaccessible);
    fleet.run(100 * MS, |_| false);
    for host in &fleet.hosts {
        let why = host.borrow().path_hindrance(0, P[0]).unwrap();
        assert!(why.contains("ANA"), "{why}");
    }
    assert!(filled.iter().all(|&n| n > 0), "{filled:?}");
}
