//! An engine that was killed, and the one after it (T9).

use crate::common::*;
use engine::host::{
    Bar, Change, Hints, HoldReason, HostConfig, HostControl, HostEngine, HostEvent, Io, IoDone,
    IoOp, Mark, PathConfig, PathKind, PathState, Recovery, WriteFailover,
};
use engine::{DeviceId, Machine};
use policy::PathIndex;
use std::cell::RefCell;
use std::rc::Rc;
use volume::{Namespace, Outcome};

/// Under which the volume asks for marks.
const SERIAL: u64 = 7;

/// Keep-alive 1 s, 500 ms stand in for CQT: the bound is 2.5 s.
const BOUND_NS: u64 = 2_500 * MS;

fn config(change: impl FnOnce(&mut Recovery)) -> HostConfig {
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

/// What the engine has asked for last.
fn asked(rig: &Rig) -> Option<Mark> {
    rig.events.iter().rev().find_map(|event| match event {
        HostEvent::Mark(mark) => Some(mark.clone()),
        _ => None,
    })
}

/// What the engine says that the volume is.
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

/// What is kept for a path that asks ends with it, and a volume is nothing that was only asked for.
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

#[test]
fn t09_after_an_unclean_stop_changes_wait_in_order_and_reads_do_not() {
    let mut rig = Rig::new(
        config(|it| it.unclean_stop_ns = Some(3 * SECOND)),
        target_config(2),
    );
    let start_ns = rig.world.now_ns;
    rig.ready();
    for (slot, version) in [(0, 1), (1, 2)] {
        let at = slot as usize * (128 << 10);
        fill(&mut rig.world.nodes[HOST].arena.0[at..][..4096], 0, version);
        rig.submit(&write(0, slot)).unwrap();
    }
    rig.submit(&write(5, 2)).unwrap();
    assert_eq!(rig.one(&read(0, 3), 10 * MS).outcome, Outcome::Done);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.behind), (2, 1));
    let until_ns = start_ns + 3 * SECOND;
    assert_eq!(stats.reason, Some(HoldReason::UncleanStop(until_ns)));
    let gated = (stats.gated, stats.gated_since_ns, stats.gate_until_ns);
    assert_eq!(gated, (2, stats.held_since_ns, Some(until_ns)));
    assert!(rig.run(4 * SECOND, |_, done| done.len() == 3));
    assert!((until_ns..until_ns + 10 * MS).contains(&rig.world.now_ns));
    let mut want = vec![0; 4096];
    fill(&mut want, 0, 2);
    assert_eq!(rig.disk.bytes.borrow()[..4096], want[..]);
    assert_eq!(rig.one(&write(0, 1), 10 * MS).outcome, Outcome::Done);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.gated, stats.gated_total), (0, 0, 2));
    assert_eq!((stats.gated_since_ns, stats.gate_until_ns), (None, None));
}

#[test]
fn t09_a_change_that_is_safe_by_its_order_does_not_wait_for_the_engine_before() {
    let mut rig = Rig::new(
        config(|it| it.unclean_stop_ns = Some(3 * SECOND)),
        target_config(2),
    );
    rig.ready();
    let hints = Hints {
        past_gate: true,
        ..Hints::default()
    };
    let submit = |rig: &mut Rig, it: &Io| {
        let now_ns = rig.world.now_ns;
        rig.host
            .borrow_mut()
            .submit_with(it, hints, now_ns)
            .unwrap();
    };
    submit(&mut rig, &write(0, 0));
    assert!(rig.run(10 * MS, |_, done| done.len() == 1));
    // Another one of the same bytes waits, and so do all behind that one.
    rig.submit(&write(5, 1)).unwrap();
    submit(&mut rig, &write(5, 2));
    assert!(!rig.run(SECOND, |_, done| done.len() > 1));
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!(
        (stats.gated, stats.behind, stats.past_gate_total),
        (1, 1, 1)
    );
    assert!(rig.run(3 * SECOND, |_, done| done.len() == 3));
}

/// Kills an engine whose write the disk executes 2 s later, starts another, which writes version 2;
/// what block 0 holds in the end.
fn killed(second: HostConfig) -> u64 {
    let mut rig = Rig::new(config(|_| ()), target_config(2));
    rig.ready();
    fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
    rig.world.nodes[TARGET].disks[0].delay_ns = 2 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.nodes[HOST].stopped = true;
    rig.world.cut(HOST, 0);
    rig.world.cut(HOST, 1);
    let heir = Rc::new(RefCell::new(HostEngine::new(second)));
    let node = rig.world.add(heir.clone(), 8 << 20);
    rig.world.nodes[node].addresses = rig.world.nodes[HOST].addresses.clone();
    fill(&mut rig.world.nodes[node].arena.0[..4096], 0, 2);
    let mut done: Option<IoDone> = None;
    let mut asked = false;
    rig.world.run(60 * SECOND, |world| {
        while let Some(event) = { heir.borrow_mut().poll_event() } {
            if let HostEvent::Done(end) = event {
                done = Some(end);
            }
        }
        if !asked {
            asked = heir.borrow_mut().submit(&write(0, 0), world.now_ns).is_ok();
        }
        false
    });
    assert_eq!(done.unwrap().outcome, Outcome::Done);
    let _ = heir.borrow_mut().poll_output();
    let mut want = vec![0; 4096];
    let version = (1..=2).find(|&version| {
        fill(&mut want, 0, version);
        rig.disk.bytes.borrow()[..4096] == want[..]
    });
    version.unwrap()
}

#[test]
fn t09_a_write_of_an_engine_that_was_killed_does_not_overwrite_its_successors() {
    let immediate = |it: &mut Recovery| {
        it.unclean_stop_ns = Some(BOUND_NS);
        it.write_failover = WriteFailover::Immediate;
    };
    for change in [|_: &mut Recovery| (), immediate] {
        assert_eq!(killed(config(change)), 1, "canary: the late write is real");
    }
    assert_eq!(killed(config(|it| it.unclean_stop_ns = Some(BOUND_NS))), 2);
}

#[test]
fn t09_a_volume_that_comes_later_waits_for_an_unclean_stop_of_its_own() {
    let mut fleet = Fleet::new(2, 1, target(1));
    for &node in &fleet.nodes {
        fleet.world.nodes[node].disks = vec![Disk::new(1 << 20)];
    }
    let mut more = volume(vec![PathConfig {
        uri: "mem:0".into(),
        kind: PathKind::Device {
            device: DeviceId(0),
            bytes: 1 << 20,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 0,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    }]);
    more.name = "v1".into();
    more.recovery = Recovery {
        unclean_stop_ns: Some(3 * SECOND),
        ..Recovery::default()
    };
    fleet.change(Change::AddVolume(Box::new(more))).unwrap();
    let start_ns = fleet.world.now_ns;
    for core in 0..2 {
        let of = |mut io: Io| {
            io.volume = 1;
            io
        };
        let done = fleet.one(core, &of(read(0, 0)), 10 * MS);
        assert_eq!(done, Some(Outcome::Done));
        let done = fleet.one(core, &of(write(0, 0)), 10 * SECOND);
        assert_eq!(done, Some(Outcome::Done));
        let waited_ns = fleet.world.now_ns - start_ns;
        assert!(waited_ns > 2990 * MS, "core {core}: {waited_ns}");
    }
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
    let mut rig = Rig::new(config(|it| it.untold_loss = true), target);
    rig.ready();
    assert_eq!(losses(&mut rig), [true], "this one may be killed too");
    let flush = io(IoOp::Flush, 9, 0, 0);
    assert_eq!(rig.one(&flush, SECOND).outcome, Outcome::PathError);
    assert_eq!(losses(&mut rig), [false]);
    assert_eq!(rig.one(&flush, SECOND).outcome, Outcome::Done);
    // Whoever asked for it had gone.
    rig.host.borrow_mut().flush_failed_for(0, false);
    assert_eq!(losses(&mut rig), [true]);
}
