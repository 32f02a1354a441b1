//! Limits that a controller reports, and the engine heeds. Our target reports none of them: core 1
//! is told that it did.

use crate::common::*;
use engine::Machine;
use engine::host::PathFacts;
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use multipath::Outcome;
use nvme::host::AnaState;
use nvme::wire::Status;
use policy::PathIndex;

/// Two cores over two paths; core 1 hears other facts of both.
fn fleet_with(facts: fn(&mut PathFacts)) -> Fleet {
    let mut fleet = Fleet::new(2, 2, target(2));
    fleet.facts = facts;
    for port in 0..2 {
        tell(&mut fleet, TargetControl::Ana(port, AnaState::NonOptimized));
    }
    fleet.run(100 * MS, |_| false);
    fleet
}

fn tell(fleet: &mut Fleet, message: TargetControl) {
    let now_ns = fleet.world.now_ns;
    fleet.target.borrow_mut().handle_control(message, now_ns);
}

#[test]
fn t01_a_busy_answer_is_repeated_after_the_delay_that_its_crd_names() {
    let mut fleet = fleet_with(|facts| facts.controller.crdt = [2, 5, 9]);
    // Without a delay of the controller's, our own first one counts: 10 ms.
    for (crd, wait_ms) in (0..).zip([10, 200, 500, 900]) {
        let rule = ErrorRule {
            status: Status::NAMESPACE_NOT_READY.with_crd(crd),
            ops: Ops::WRITE,
            blocks: None,
            rate: Probability::ALWAYS,
        };
        let busy = Faults {
            errors: vec![rule],
            ..Faults::default()
        };
        for port in 0..2 {
            tell(&mut fleet, TargetControl::Faults(port, busy.clone()));
        }
        let start_ns = fleet.world.now_ns;
        assert_eq!(fleet.one(1, &write(0, 0), MS), None);
        for port in 0..2 {
            tell(&mut fleet, TargetControl::Faults(port, Faults::default()));
        }
        assert_eq!(fleet.end(1, 2 * SECOND), Some(Outcome::Done));
        let waited_ns = fleet.world.now_ns - start_ns;
        let want = wait_ms * MS..(wait_ms + 2) * MS;
        assert!(want.contains(&waited_ns), "CRD {crd}: {waited_ns}");
    }
    fleet.at_rest();
}

#[test]
fn t09_where_traffic_counts_as_keep_alive_the_bound_has_three_of_it() {
    for (traffic, want_ms) in [(false, 2500), (true, 3500)] {
        let facts: fn(&mut PathFacts) = match traffic {
            true => |facts| facts.controller.traffic_keep_alive = true,
            false => |_| (),
        };
        let mut fleet = fleet_with(facts);
        fleet.world.nodes[TARGET].disks[0].delay_ns = 2 * SECOND;
        assert_eq!(fleet.one(1, &write(0, 0), MS), None);
        fleet.world.nodes[TARGET].disks[0].delay_ns = 0;
        let path = u32::from(fleet.hosts[1].borrow().in_flight(0, PathIndex(1)) > 0);
        fleet.world.cut(HOST, path);
        let start_ns = fleet.world.now_ns;
        assert_eq!(fleet.end(1, 10 * SECOND), Some(Outcome::Done));
        let held_ns = fleet.world.now_ns - start_ns;
        let want = want_ms * MS..(want_ms + 100) * MS;
        assert!(want.contains(&held_ns), "traffic {traffic}: {held_ns}");
        fleet.at_rest();
    }
}
