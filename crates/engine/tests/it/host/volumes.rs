//! New volumes that can be had, and those that can't; what leads there is given back.

use crate::common::*;
use engine::host::{Change, HostEvent, PathConfig, PathKind, PathState, Recovery};
use policy::PathIndex;
use std::cell::RefCell;
use std::rc::Rc;

const P0: PathIndex = PathIndex(0);

/// How often what leads there was given back by core 0.
fn released(fleet: &Fleet, kind: &PathKind) -> usize {
    let events = fleet.events[0].iter();
    events
        .filter(|event| matches!(event, HostEvent::Released(of) if of == kind))
        .count()
}

/// A volume over these paths, to be added.
fn more(paths: Vec<PathConfig>) -> Change {
    let mut more = volume(paths);
    more.name = "v1".into();
    more.recovery = Recovery::default();
    Change::AddVolume(Box::new(more))
}

#[test]
fn a_volume_none_of_whose_paths_can_be_used_is_refused_and_leaves_no_trace() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 2, target(2));
        for &node in &fleet.nodes {
            let addresses = &mut fleet.world.nodes[node].addresses;
            addresses.extend([Address::Refused, Address::Silence]);
        }
        for paths in [vec![tcp_path(2)], vec![tcp_path(2), tcp_path(3)]] {
            let why = fleet.change(more(paths)).unwrap_err();
            assert!(
                why.contains("v1") && why.contains("connection refused"),
                "{why}"
            );
        }
        fleet.run(SECOND, |_| false);
        let [refused, silent] = [2, 3].map(|address| tcp_path(address).kind);
        assert_eq!(
            (released(&fleet, &refused), released(&fleet, &silent)),
            (2, 1)
        );
        for host in &fleet.hosts {
            assert_eq!(host.borrow().paths(1).count(), 0);
        }
        // The number is free: it is the next one's, which has one usable path.
        let paths = vec![tcp_path(2), tcp_path(0)];
        assert_eq!(fleet.change(more(paths)).unwrap().volume, 1);
        let usable = |host: &Rc<RefCell<HostCore>>| {
            host.borrow()
                .volume(1)
                .is_some_and(|it| it.limits().is_some())
        };
        assert!(fleet.hosts.iter().all(usable));
    }
}

#[test]
fn a_new_volume_is_answered_for_when_every_core_can_use_it() {
    let mut fleet = Fleet::new(3, 1, target(2));
    for _ in 0..5 {
        assert_eq!(fleet.change(more(vec![tcp_path(1)])).unwrap().volume, 1);
        for host in &fleet.hosts {
            assert_eq!(host.borrow().path_state(1, P0), PathState::Live);
            assert!(
                host.borrow()
                    .volume(1)
                    .is_some_and(|it| it.limits().is_some())
            );
        }
        fleet.change(Change::RemoveVolume(1)).unwrap();
        assert!(
            fleet
                .hosts
                .iter()
                .all(|host| host.borrow().paths(1).count() == 0)
        );
    }
    assert_eq!(released(&fleet, &tcp_path(1).kind), 5);
}

#[test]
fn what_a_refused_change_named_is_given_back_once() {
    let mut fleet = Fleet::new(2, 1, target(1));
    for &node in &fleet.nodes {
        fleet.world.nodes[node].addresses.push(Address::Refused);
    }
    let kind = tcp_path(1).kind;
    // Refused at once: there is no such volume, and too many paths.
    let add = |volume| Change::AddPath(volume, Box::new(tcp_path(1)));
    fleet.change(add(7)).unwrap_err();
    assert_eq!(released(&fleet, &kind), 1);
    fleet
        .change(more((0..70).map(|_| tcp_path(1)).collect()))
        .unwrap_err();
    assert_eq!(released(&fleet, &kind), 71);
    // Refused when it was tried.
    fleet.change(add(0)).unwrap_err();
    fleet.run(SECOND, |_| false);
    assert_eq!(released(&fleet, &kind), 72);
    fleet.load(100);
    fleet.finish();
}
