//! I/O without a usable path: how long it waits; paths that are given up.

use crate::common::*;
use engine::host::{Change, HostControl, HostEvent, Io, IoOp, NO_PATH, PathState, Recovery};
use multipath::Outcome;
use policy::PathIndex;

fn route(listener: u32) -> Address {
    Address::To {
        node: TARGET,
        listener,
        delay_ns: WIRE_NS,
    }
}

/// A path is gone, and so is what it led to.
fn lose(rig: &mut Rig, path: u32) {
    rig.world.nodes[HOST].addresses[path as usize] = Address::Refused;
    rig.world.cut(HOST, path);
    rig.world.pass(MS);
}

fn flush(slot: u64) -> Io {
    Io {
        span: Default::default(),
        ..io(IoOp::Flush, 0, 0, slot)
    }
}

fn warnings(rig: &Rig) -> Vec<&str> {
    let lines = rig.events.iter().filter_map(|event| match event {
        HostEvent::Warning(0, line) => Some(line.as_str()),
        _ => None,
    });
    lines.collect()
}

#[test]
fn io_waits_for_all_paths_to_come_back_for_as_long_as_it_takes() {
    let mut rig = rig_with(2, |_| ());
    (0..2).for_each(|path| lose(&mut rig, path));
    let lost_ns = rig.world.now_ns;
    rig.submit(&read(0, 0)).unwrap();
    rig.submit(&write(1, 1)).unwrap();
    rig.world.pass(30 * SECOND);
    rig.poll();
    assert!(rig.done.is_empty());
    (0..2).for_each(|path| rig.world.nodes[HOST].addresses[path] = route(path as u32));
    assert!(rig.run(11 * SECOND, |_, done| done.len() == 2), "resumed");
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
    assert!(rig.world.now_ns <= lost_ns + 41 * SECOND);
    at_rest(&rig, 2);
}

#[test]
fn from_the_loss_of_the_last_path_on_io_fails_at_the_stated_time_and_then_at_once() {
    let mut rig = rig_with(2, |it| it.fast_io_fail_ns = 3 * SECOND);
    lose(&mut rig, 0);
    rig.world.pass(10 * SECOND);
    assert_eq!(rig.one(&read(0, 0), SECOND).outcome, Outcome::Done);
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.world.cut(HOST, 1);
    let lost_ns = rig.world.now_ns;
    rig.world.pass(MS);
    for n in 0..10 {
        rig.submit(&read(n, n)).unwrap();
        rig.world.pass(200 * MS);
    }
    assert!(rig.run(4 * SECOND, |_, done| done.len() == 10));
    let late_ns = rig.world.now_ns - (lost_ns + 3 * SECOND);
    assert!(late_ns <= MS, "{late_ns}");
    for done in rig.done.drain(..) {
        assert_eq!((done.outcome, done.path), (Outcome::PathError, NO_PATH));
    }
    assert_eq!(rig.done.len(), 0);
    let line = "v0: no usable path for 3 s (fast_io_fail_tmo): its I/O fails until one is back";
    assert_eq!(warnings(&rig), [line]);
    rig.world.pass(20 * SECOND);
    let done = rig.one(&write(0, 0), SECOND);
    assert_eq!((done.outcome, done.latency_ns), (Outcome::PathError, 0));
    let flushed = rig.one(&flush(0), SECOND);
    assert_eq!(
        (flushed.outcome, flushed.latency_ns),
        (Outcome::PathError, 0)
    );
    // One is back, and the next outage has its time again.
    rig.world.nodes[HOST].addresses[0] = route(0);
    until_returned(&mut rig, 11 * SECOND);
    assert_eq!(rig.one(&write(0, 0), SECOND).outcome, Outcome::Done);
    lose(&mut rig, 0);
    rig.world.pass(2 * SECOND);
    let done = rig.one(&read(0, 0), 2 * SECOND);
    assert_eq!(done.outcome, Outcome::PathError);
    assert!(
        (990 * MS..=1000 * MS).contains(&done.latency_ns),
        "{done:?}"
    );
    at_rest(&rig, 2);
}

/// The outage begins whether or not there is I/O that notices.
#[test]
fn an_idle_volume_that_was_without_a_path_for_long_fails_its_first_io() {
    let mut rig = rig_with(1, |it| it.fast_io_fail_ns = 3 * SECOND);
    lose(&mut rig, 0);
    rig.world.pass(5 * SECOND);
    let done = rig.one(&read(0, 0), SECOND);
    assert_eq!((done.outcome, done.latency_ns), (Outcome::PathError, 0));
    at_rest(&rig, 1);
}

#[test]
fn t13_a_flush_that_fails_fast_leaves_what_it_should_cover_in_doubt() {
    let mut rig = rig_of(2, |host, target| {
        host.volumes[0].recovery.fast_io_fail_ns = 2 * SECOND;
        target.subsystem.volatile_write_cache = true;
    });
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    (0..2).for_each(|path| lose(&mut rig, path));
    let done = rig.one(&flush(1), 3 * SECOND);
    assert_eq!(done.outcome, Outcome::PathError);
    let soon = 1900 * MS..=2000 * MS;
    assert!(soon.contains(&done.latency_ns), "{done:?}");
    rig.world.nodes[HOST].addresses[1] = route(1);
    until_returned(&mut rig, 11 * SECOND);
    rig.submit(&flush(2)).unwrap();
    rig.world.pass(10 * SECOND);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.flushes, stats.flush_failed), (1, None), "{stats:?}");
    rig.world.nodes[HOST].addresses[0] = route(0);
    assert!(rig.run(11 * SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done.remove(0).outcome, Outcome::Done);
}

#[test]
fn a_path_that_stays_lost_is_given_up_and_tried_again_when_restored() {
    let mut rig = rig_with(2, |it| it.ctrl_loss_ns = 60 * SECOND);
    lose(&mut rig, 0);
    rig.world.pass(59 * SECOND);
    rig.poll();
    assert_eq!(state(&rig, P0), PathState::Reconnecting);
    rig.world.pass(SECOND);
    rig.poll();
    assert_eq!(state(&rig, P0), PathState::Failed);
    let want = "v0: path nvme-tcp://p0/nqn.2026-01.org.example:v0: not back within 60 s \
                (ctrl_loss_tmo): given up, and not tried any more; `braid path restore v0 \
                nvme-tcp://p0/nqn.2026-01.org.example:v0` tries it again";
    assert_eq!(rig.failures().last(), Some(&want));
    let why = rig.host.borrow().path_hindrance(0, P0).unwrap();
    let (_, given_up) = want.split_once("v0: not").unwrap();
    let last = why.strip_prefix(&format!("not{given_up}; last: "));
    assert!(last.unwrap().starts_with("can't connect: "), "{why}");
    restore(&mut rig, P0);
    rig.world.pass(2 * SECOND);
    let said = answer(&mut rig);
    let (first, _) = said.split_once(": ").unwrap();
    assert_eq!(
        first,
        "not live yet, it is tried for 60 s (ctrl_loss_tmo), then given up"
    );
    rig.control(restoring(P0, 600 * SECOND));
    rig.world.pass(61 * SECOND);
    assert_eq!(answer(&mut rig), why, "not only when its patience is over");
    rig.world.nodes[HOST].addresses[0] = route(0);
    rig.world.pass(60 * SECOND);
    assert_eq!(state(&rig, P0), PathState::Failed, "nobody tries");
    restore(&mut rig, P0);
    until_returned(&mut rig, SECOND);
    assert_eq!(state(&rig, P0), PathState::Live);
    let off = rig_with(2, |it| it.ctrl_loss_ns = u64::MAX);
    let mut rig = off;
    lose(&mut rig, 0);
    rig.world.pass(3000 * SECOND);
    assert_eq!(state(&rig, P0), PathState::Reconnecting, "for ever");
}

fn restore(rig: &mut Rig, path: PathIndex) {
    rig.control(restoring(path, SECOND));
}

fn restoring(path: PathIndex, wait_ns: u64) -> HostControl {
    HostControl::Change {
        ticket: 1,
        change: Change::RestorePath(0, path),
        wait_ns,
    }
}

/// Message with which the last change was refused.
fn answer(rig: &mut Rig) -> String {
    rig.poll();
    let mut answers = rig.events.iter().filter_map(|event| match event {
        HostEvent::Changed(_, answer) => Some(answer.clone()),
        _ => None,
    });
    answers.next_back().unwrap().unwrap_err()
}

#[test]
fn a_volume_whose_paths_are_all_given_up_fails_its_io_until_one_is_restored() {
    let mut rig = rig_with(2, |it| it.ctrl_loss_ns = 60 * SECOND);
    (0..2).for_each(|path| lose(&mut rig, path));
    rig.submit(&read(0, 0)).unwrap();
    rig.submit(&write(1, 1)).unwrap();
    assert!(rig.run(61 * SECOND, |_, done| done.len() == 2));
    for done in rig.done.drain(..) {
        assert_eq!((done.outcome, done.path), (Outcome::PathError, NO_PATH));
    }
    let line = "v0: all its paths are given up: its I/O fails; `braid path restore v0 PATH` tries \
                one again";
    assert_eq!(warnings(&rig), [line]);
    let done = rig.one(&read(0, 0), SECOND);
    assert_eq!((done.outcome, done.latency_ns), (Outcome::PathError, 0));
    restore(&mut rig, P1);
    rig.world.pass(MS);
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(20 * SECOND);
    rig.poll();
    assert!(rig.done.is_empty(), "it waits for the one that is tried");
    rig.world.nodes[HOST].addresses[1] = route(1);
    assert!(rig.run(11 * SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done.remove(0).outcome, Outcome::Done);
    at_rest(&rig, 2);
}

#[test]
fn a_start_waits_for_its_paths_however_long() {
    let mut host = host_config(1);
    host.volumes[0].recovery = Recovery {
        ctrl_loss_ns: 60 * SECOND,
        ..Recovery::default()
    };
    let mut rig = Rig::new(host, target_config(1));
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.pass(600 * SECOND);
    rig.poll();
    rig.world.nodes[HOST].addresses[0] = route(0);
    rig.ready();
}

/// Waits between the loss of a path and the attempts to connect it, ms.
fn waits(rig: &mut Rig, lives_ns: u64) -> u64 {
    rig.world.cut(HOST, 0);
    let cut_ns = rig.world.now_ns;
    until_returned(rig, 20 * SECOND);
    let wait_ms = (rig.world.now_ns - cut_ns) / MS;
    rig.world.pass(lives_ns);
    wait_ms
}

#[test]
fn a_path_that_dies_again_soon_goes_on_with_the_wait_it_had() {
    let mut rig = rig_with(2, |it| it.reconnect_max_ns = 2 * SECOND);
    let short: Vec<_> = (0..7).map(|_| waits(&mut rig, SECOND)).collect();
    assert_eq!(short, [100, 200, 400, 800, 1600, 2000, 2000]);
    waits(&mut rig, 2 * SECOND);
    assert_eq!(
        waits(&mut rig, 0),
        100,
        "it lived as long as the longest wait"
    );
    assert_eq!(waits(&mut rig, 0), 200);
}

#[test]
fn all_cores_give_a_path_up_and_their_io_fails_together() {
    let mut fleet = Fleet::with(3, 2, target(2), |it| it.ctrl_loss_ns = 30 * SECOND);
    for node in fleet.nodes.clone() {
        (0..2).for_each(|path| fleet.world.nodes[node].addresses[path] = Address::Refused);
        (0..2).for_each(|path| fleet.world.cut(node, path));
    }
    fleet.run(SECOND, |_| false);
    fleet.load(4);
    let given_up = |it: &Fleet| {
        let states = [P0, P1].map(|path| it.states(path));
        states.iter().flatten().all(|&it| it == PathState::Failed)
    };
    fleet.run(28 * SECOND, |_| false);
    assert!(!given_up(&fleet));
    assert!(fleet.run(3 * SECOND, given_up));
    let over = |it: &Fleet| it.loads.iter().all(Load::is_over);
    assert!(fleet.run(SECOND, over));
    assert!(fleet.loads.iter().all(|load| load.errors() == 4));
    fleet.at_rest();
}

#[test]
fn nothing_hangs_at_a_stop_while_no_path_is_usable() {
    for fast_ns in [u64::MAX, 3 * SECOND] {
        let mut rig = rig_with(2, |it| it.fast_io_fail_ns = fast_ns);
        rig.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
        rig.submit(&write(0, 0)).unwrap();
        rig.world.pass(MS);
        (0..2).for_each(|path| lose(&mut rig, path));
        rig.submit(&write(0, 1)).unwrap();
        rig.submit(&read(2, 2)).unwrap();
        rig.submit(&flush(3)).unwrap();
        rig.control(HostControl::Drain(SECOND));
        rig.control(HostControl::Stop);
        let stopped_ns = rig.world.now_ns;
        assert!(
            rig.world
                .run(20 * SECOND, |world| world.nodes[HOST].stopped)
        );
        assert!(rig.world.now_ns - stopped_ns < 5 * SECOND);
        rig.poll();
        let ends: Vec<_> = rig.done.iter().map(|done| done.outcome).collect();
        assert_eq!(ends, [Outcome::Stopped; 4]);
    }
}
