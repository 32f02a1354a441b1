//! An engine that was killed, and the one after it (T9).

use crate::common::*;
use engine::host::{
    Bar, Change, HostConfig, HostControl, HostEvent, IoOp, Mark, PathState, Recovery,
};
use multipath::{Namespace, Outcome};
use policy::PathIndex;

/// Under which the volume asks for marks.
const SERIAL: u64 = 7;

/// Keep-alive 1 s, 500 ms stand in for CQT: the bound is 2.5 s.
pub(super) const BOUND_NS: u64 = 2_500 * MS;

pub(super) fn config(change: impl FnOnce(&mut Recovery)) -> HostConfig {
    let mut host = host_config(2);
    host.kato_ms = 1000;
    let recovery = &mut host.volumes[0].recovery;
    *recovery = Recovery::default();
    recovery.quiesce_ns = 500 * MS;
    change(recovery);
    host
}

#[test]
fn t09_no_queue_is_opened_before_the_bound_is_marked() {
    let mut rig = Rig::new(config(|it| it.marks = Some(SERIAL)), target_config(2));
    rig.world.pass(SECOND);
    rig.poll();
    let marks = |rig: &Rig| {
        let is_it = |it: &Mark| (it.volume, it.serial, it.bound_ns) == (0, SERIAL, BOUND_NS);
        let events = rig.events.iter();
        let those = events.filter(|event| matches!(event, HostEvent::Mark(it) if is_it(it)));
        those.count()
    };
    // The second path waits for its turn.
    assert_eq!((marks(&rig), rig.world.connections(HOST)), (1, 2));
    let ask = asked(&rig).unwrap();
    type Change = fn(&mut Mark);
    let wrong: [(&str, Change); 3] = [
        ("too short a mark", |it| it.bound_ns -= 1),
        ("of another namespace", |it| it.namespace.uuid[0] ^= 1),
        ("of a volume that had this number", |it| it.serial -= 1),
    ];
    for (which, change) in wrong {
        let mut mark = ask.clone();
        change(&mut mark);
        rig.control(HostControl::Marked(mark));
        rig.world.pass(SECOND);
        assert_eq!(rig.world.connections(HOST), 2, "{which}");
    }
    rig.poll();
    assert!(opened(&rig).is_none() && ended(&rig).is_empty());
    rig.control(HostControl::Marked(ask.clone()));
    rig.ready();
    assert_eq!(rig.world.connections(HOST), 4);
    assert!(opened(&rig).unwrap().is_same(&ask.namespace));
    assert_eq!(ended(&rig), [P0], "the second one never asked");
    // A path that returns needs no other mark.
    let before = marks(&rig);
    rig.world.cut(HOST, 0);
    rig.world.pass(SECOND);
    rig.poll();
    assert_eq!((marks(&rig), rig.world.connections(HOST)), (before, 4));
}

/// The mark that the engine has asked for last.
fn asked(rig: &Rig) -> Option<Mark> {
    rig.events.iter().rev().find_map(|event| match event {
        HostEvent::Mark(mark) => Some(mark.clone()),
        _ => None,
    })
}

/// The namespace that the engine opened as the volume.
fn opened(rig: &Rig) -> Option<Namespace> {
    rig.events.iter().find_map(|event| match event {
        HostEvent::Opened(0, SERIAL, namespace) => Some((**namespace).clone()),
        _ => None,
    })
}

/// The paths that asked and wait no longer.
fn ended(rig: &Rig) -> Vec<PathIndex> {
    let events = rig.events.iter();
    let ended = events.filter_map(|event| match event {
        HostEvent::MarkEnded(0, SERIAL, path) => Some(*path),
        _ => None,
    });
    ended.collect()
}

/// Why clients are refused, as was said last; `None`: nothing was said.
fn refused(rig: &Rig) -> Option<Option<String>> {
    rig.events.iter().rev().find_map(|event| match event {
        HostEvent::Refused(0, why) => Some(why.clone()),
        _ => None,
    })
}

/// State kept for a path that asks ends with it, and a volume is nothing that was only asked for.
#[test]
fn t09_path_lost_while_it_waits_leaves_no_mark() {
    let mut rig = Rig::new(config(|it| it.marks = Some(SERIAL)), target_config(2));
    rig.world.pass(SECOND);
    rig.poll();
    let ask = asked(&rig).unwrap();
    assert_eq!(ask.path, P0);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    rig.poll();
    assert_eq!(ended(&rig), [P0]);
    let behind = asked(&rig).unwrap();
    assert_eq!(behind.path, P1, "it has its turn");
    // The answer comes late, and fixes nothing.
    let mut late = ask;
    late.namespace.uuid[0] ^= 1;
    rig.control(HostControl::Marked(late));
    rig.world.pass(SECOND);
    rig.poll();
    assert!(opened(&rig).is_none());
    rig.control(HostControl::Marked(behind.clone()));
    rig.ready();
    assert!(opened(&rig).unwrap().is_same(&behind.namespace));
}

/// The order arrives between the last answer of the controller and the turn that follows it.
#[test]
fn path_failed_while_its_controller_gets_ready_stays_failed() {
    let end_ns = World::new(1).now_ns + SECOND;
    for steps in 0.. {
        let mut rig = Rig::new(config(|it| it.marks = Some(SERIAL)), target_config(2));
        rig.world.settle();
        let goes_on = (0..steps).all(|_| {
            let goes_on = rig.world.advance(end_ns);
            rig.world.settle();
            goes_on
        });
        if !goes_on || !rig.world.advance(end_ns) {
            assert!(steps > 10, "the start takes some steps");
            return;
        }
        rig.control(HostControl::Change {
            ticket: 1,
            change: Change::FailPath(0, P0, true),
            wait_ns: SECOND,
        });
        rig.world.pass(100 * MS);
        let state = rig.host.borrow().path_state(0, P0);
        assert_eq!(state, PathState::Failed, "{steps} steps");
    }
}

/// A volume whose first path leads to another namespace than the second one; nothing is answered.
fn asked_for_two_namespaces() -> Rig {
    let mut rig = Rig::new(config(|it| it.marks = Some(SERIAL)), target_config(2));
    let mut other = target_config(1);
    (other.subsystem.cntlid_min, other.subsystem.cntlid_max) = (1001, 1100);
    other.subsystem.namespaces[0].uuid = [9; 16];
    rig.lead(0, other, rig.disk.clone());
    rig.world.pass(SECOND);
    rig.poll();
    rig
}

#[test]
fn t31_clients_are_refused_when_only_a_user_can_help() {
    let mut rig = asked_for_two_namespaces();
    let first = asked(&rig).unwrap();
    let foreign = Bar::Foreign("another one".into());
    rig.control(HostControl::Barred(first, foreign));
    rig.world.pass(SECOND);
    rig.poll();
    let second = asked(&rig).unwrap();
    assert_eq!(second.path, P1);
    assert_eq!(refused(&rig), None, "the second path may be right");
    let full = Bar::Unmarked("no room".into());
    rig.control(HostControl::Barred(second.clone(), full));
    rig.world.pass(MS);
    rig.poll();
    let why = refused(&rig).unwrap().unwrap();
    assert!(why.contains("not opened: no room"), "{why}");
    // It is lost: of those that are there, none is right.
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.world.cut(HOST, 1);
    rig.world.pass(MS);
    rig.poll();
    let why = refused(&rig).unwrap().unwrap();
    assert!(why.contains("not opened: another one"), "{why}");
    // So is that one: it is waited for both.
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    rig.poll();
    assert_eq!(refused(&rig), Some(None));
    // An answer to what is not asked any more bars nothing.
    rig.control(HostControl::Barred(second, Bar::Unmarked("late".into())));
    rig.world.pass(MS);
    rig.poll();
    assert_eq!(refused(&rig), Some(None));
}

#[test]
fn t31_answer_counts_for_paths_with_that_namespace_only() {
    // The first path leads to another namespace than the second one, whose answer comes first.
    let mut rig = asked_for_two_namespaces();
    let wrong = asked(&rig).unwrap();
    assert_eq!(wrong.path, PathIndex(0));
    let foreign = Bar::Foreign("as things stand".into());
    rig.control(HostControl::Barred(wrong.clone(), foreign));
    rig.world.pass(SECOND);
    rig.poll();
    let right = asked(&rig).unwrap();
    assert_eq!(right.path, PathIndex(1), "the one behind it has its turn");
    assert!(!right.namespace.is_same(&wrong.namespace));
    rig.control(HostControl::Marked(right.clone()));
    rig.world.pass(SECOND);
    rig.poll();
    assert_eq!(rig.world.connections(HOST), 3, "one queue is open");
    assert!(opened(&rig).unwrap().is_same(&right.namespace));
    rig.control(HostControl::Barred(
        wrong,
        Bar::Refused("another one".into()),
    ));
    rig.ready();
    assert_eq!(state(&rig, P0), PathState::Reconnecting);
    assert_eq!(state(&rig, P1), PathState::Live);
    let says = |event: &&HostEvent| match event {
        HostEvent::Failed(0, line) => line.contains("another one"),
        _ => false,
    };
    assert_eq!(rig.events.iter().filter(says).count(), 1);
}

/// An engine is killed before a flush has failed for what a path took along that left by force.
#[test]
fn t13_a_loss_that_nobody_was_told_is_told_by_the_engine_after() {
    let losses = |rig: &mut Rig| -> Vec<bool> {
        rig.poll();
        let events = rig.events.drain(..);
        let losses = events.filter_map(|event| match event {
            HostEvent::Loss(0, untold) => Some(untold),
            _ => None,
        });
        losses.collect()
    };
    let mut target = target_config(2);
    target.subsystem.volatile_write_cache = true;
    let mut rig = Rig::new(config(|_| {}), target.clone());
    rig.ready();
    for slot in 0..2 {
        assert_eq!(rig.one(&write(0, slot), 10 * MS).outcome, Outcome::Done);
    }
    rig.world.nodes[HOST].addresses.fill(Address::Refused);
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    assert_eq!(losses(&mut rig), [false; 0]);
    let change = Change::RemovePath {
        volume: 0,
        path: policy::PathIndex(0),
        force: true,
    };
    rig.control(HostControl::Change {
        ticket: 1,
        change,
        wait_ns: SECOND,
    });
    rig.world.pass(SECOND);
    assert_eq!(losses(&mut rig), [true]);
    let mut rig = Rig::new(config(|it| it.unreported_loss = true), target);
    rig.ready();
    assert_eq!(losses(&mut rig), [true], "this one may be killed too");
    let flush = io(IoOp::Flush, 9, 0, 0);
    assert_eq!(rig.one(&flush, SECOND).outcome, Outcome::PathError);
    assert_eq!(losses(&mut rig), [false]);
    assert_eq!(rig.one(&flush, SECOND).outcome, Outcome::Done);
    // The client that asked for it had gone.
    rig.host.borrow_mut().flush_failed_for(0, false);
    assert_eq!(losses(&mut rig), [true]);
}
