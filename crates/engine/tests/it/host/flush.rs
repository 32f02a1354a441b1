//! Writes that a flush covers, and reasons for it to wait (T13).

use crate::common::hedge::fail_reads;
use crate::common::*;
use engine::Machine;
use engine::host::{Change, HostEvent, IoOp, PathState, Recovery};
use engine::target::{Faults, TargetControl};
use multipath::Outcome;
use nvme::wire::Status;
use policy::PathIndex;
use std::cell::RefCell;

/// A rig whose target has a volatile write cache.
fn cached(paths: u32, change: impl FnOnce(&mut Recovery)) -> Rig {
    let mut host = host_config(paths);
    host.volumes[0].recovery = Recovery::default();
    change(&mut host.volumes[0].recovery);
    let mut target = target_config(paths as u16);
    target.subsystem.volatile_write_cache = true;
    let mut rig = Rig::new(host, target);
    rig.ready();
    rig
}

fn flush(slot: u64) -> engine::host::Io {
    io(IoOp::Flush, 0, 0, slot)
}

/// Flushes that each path has done.
fn flushes(rig: &Rig) -> [u64; 2] {
    [P0, P1].map(|path| rig.host.borrow().counters(0, path).ios[2])
}

#[test]
fn t13_a_flush_goes_to_every_controller_with_unflushed_writes() {
    let mut rig = cached(2, |_| ());
    assert_eq!(rig.one(&write(0, 0), SECOND).outcome, Outcome::Done);
    assert_eq!(rig.one(&write(1, 1), SECOND).outcome, Outcome::Done);
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig), [1, 1]);
    // Nothing to flush: one path is asked all the same.
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig).iter().sum::<u64>(), 3);
    let mut rig = cached(2, |it| it.shared_write_cache = true);
    for slot in 0..4 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    assert_eq!(rig.one(&flush(5), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig).iter().sum::<u64>(), 1);
}

/// Both paths have acknowledged a write.
fn both_written() -> Rig {
    let mut rig = cached(2, |_| ());
    for n in 0..2 {
        assert_eq!(rig.one(&write(n, n), SECOND).outcome, Outcome::Done);
    }
    rig
}

fn hindrance(host: &RefCell<HostCore>) -> String {
    host.borrow().path_hindrance(0, P0).unwrap_or_default()
}

/// Seed 3876 of the worlds of chaos: the flush passed without the controller whose path was to be
/// read again.
#[test]
fn t33_a_path_that_shows_another_size_flushes_what_it_had() {
    let mut rig = both_written();
    rig.world.mute(HOST, 0);
    rig.target_control(TargetControl::Resize(1, BLOCKS / 2));
    rig.world.pass(10 * MS);
    let why = hindrance(&rig.host);
    assert!(why.contains("another size"), "{why}");
    assert_eq!(rig.one(&flush(2), 20 * SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig), [1, 1]);
}

#[test]
fn t26_a_flush_waits_for_a_path_whose_ana_state_is_read_again() {
    for (mute, limit_ns) in [(false, SECOND), (true, 20 * SECOND)] {
        let mut rig = both_written();
        fail_reads(&mut rig, 0, Status::ANA_TRANSITION);
        for n in 0..2 {
            rig.submit(&read(n, n)).unwrap();
        }
        let host = rig.host.clone();
        assert!(rig.run(SECOND, |_, _| hindrance(&host).contains("ANA")));
        if mute {
            rig.world.mute(HOST, 0);
        }
        assert_eq!(rig.one(&flush(2), limit_ns).outcome, Outcome::Done);
        assert_eq!(flushes(&rig), [1, 1], "{mute}");
    }
}

#[test]
fn t13_after_an_unclean_stop_a_flush_goes_to_every_controller() {
    let mut rig = cached(2, |it| it.unclean_stop_ns = Some(0));
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig), [1, 1]);
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig).iter().sum::<u64>(), 3);
}

/// A mirror that was taken over from another host knows of it; this one has no mark.
#[test]
fn t13_what_another_owner_left_is_flushed_by_every_controller() {
    let mut rig = cached(2, |_| {});
    rig.host.borrow_mut().inherit(0, true);
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig), [1, 1]);
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig).iter().sum::<u64>(), 3);
}

/// Two paths after an unclean stop, of which only the first is there.
fn half(cache: bool) -> Rig {
    let mut host = host_config(2);
    host.volumes[0].recovery = Recovery {
        unclean_stop_ns: Some(0),
        flush_timeout_ns: 5 * SECOND,
        ..Recovery::default()
    };
    let mut target = target_config(2);
    target.subsystem.volatile_write_cache = cache;
    let mut rig = Rig::new(host, target);
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.ready();
    rig
}

#[test]
fn t13_a_controller_that_is_gone_after_an_unclean_stop_fails_one_flush_if_it_may_have_a_cache() {
    let mut rig = half(true);
    let start_ns = rig.world.now_ns;
    assert_ne!(rig.one(&flush(2), 10 * SECOND).outcome, Outcome::Done);
    assert!(rig.world.now_ns >= start_ns + 5 * SECOND);
    assert_eq!(rig.one(&flush(2), 10 * MS).outcome, Outcome::Done);
    // Its cache meanwhile is unknown.
    rig.world.nodes[HOST].addresses[1] = rig.world.nodes[HOST].addresses[0];
    let host = rig.host.clone();
    let back = || host.borrow().path_state(0, P1) == PathState::Live;
    assert!(rig.world.run(20 * SECOND, |_| back()));
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig)[1], 1);
    let mut rig = half(false);
    assert_eq!(rig.one(&flush(2), 10 * MS).outcome, Outcome::Done);
}

#[test]
fn t13_a_path_that_is_added_after_an_unclean_stop_is_flushed_once_as_well() {
    let inherits = |it: &mut Recovery| it.unclean_stop_ns = Some(0);
    let mut config = target(2);
    config.subsystem.volatile_write_cache = true;
    let mut fleet = Fleet::with(2, 1, config, inherits);
    assert_eq!(fleet.one(0, &flush(0), SECOND), Some(Outcome::Done));
    assert!(fleet.add(1).is_ok());
    assert_eq!(fleet.one(1, &flush(0), SECOND), Some(Outcome::Done));
    let core_1 = fleet.hosts[1].clone();
    let flushes = [P0, P1].map(|path| core_1.borrow().counters(0, path).ios[2]);
    assert_eq!(flushes, [1, 1]);
}

#[test]
fn t13_what_a_core_gave_up_is_not_told_to_it_again_by_those_that_did_not() {
    let limit = |it: &mut Recovery| it.flush_timeout_ns = 2 * SECOND;
    let mut fleet = written_with(2, 1, limit);
    lose_unheard(&mut fleet);
    let failed = Some(Outcome::PathError);
    assert_eq!(fleet.one(0, &flush(0), 5 * SECOND), failed);
    // It is tried again and again meanwhile.
    fleet.run(5 * SECOND, |_| false);
    assert_eq!(fleet.one(0, &flush(0), 5 * SECOND), Some(Outcome::Done));
    assert_eq!(fleet.one(1, &flush(0), 5 * SECOND), failed, "by itself");
    assert_eq!(fleet.one(1, &flush(0), 5 * SECOND), Some(Outcome::Done));
}

#[test]
fn t13_a_lost_controller_with_unflushed_writes_holds_the_flush_up_until_it_has_flushed() {
    let mut rig = cached(2, |_| ());
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    rig.submit(&flush(3)).unwrap();
    rig.world.pass(50 * MS);
    rig.poll();
    assert_eq!(
        (rig.done.len(), rig.host.borrow().hold_stats(0).flushes),
        (0, 1)
    );
    assert!(rig.run(SECOND, |_, done| done.len() == 1));
    assert_eq!(
        (rig.done[0].outcome, flushes(&rig)),
        (Outcome::Done, [1, 1])
    );
    at_rest(&rig, 2);
}

/// Its address is to stay what it is meanwhile: another controller's flush would not cover it.
#[test]
fn t13_lost_path_is_in_doubt_until_a_flush_failed() {
    let mut rig = both_written();
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(3 * SECOND);
    rig.poll();
    let said = |rig: &Rig| {
        let events = rig.events.iter();
        let of = events.filter_map(|event| match event {
            HostEvent::Disconnected(it) => Some((it.address, it.failures, it.in_doubt)),
            _ => None,
        });
        of.collect::<Vec<_>>()
    };
    assert_eq!(said(&rig)[..2], [(0, 0, true), (0, 1, true)]);
    let waits = |rig: &Rig, path| {
        let host = rig.host.borrow();
        let wait = host.path_report(0, PathIndex(path), 0).wait;
        wait.map(|it| (it.failures > 0, it.in_doubt))
    };
    assert_eq!(waits(&rig, 0), Some((true, true)));
    assert_eq!(waits(&rig, 1), None);
    assert_eq!(rig.one(&flush(3), 61 * SECOND).outcome, Outcome::PathError);
    rig.world.pass(20 * SECOND);
    rig.poll();
    let (address, failures, in_doubt) = said(&rig).pop().unwrap();
    assert!(address == 0 && failures > 5 && !in_doubt, "{failures}");
    assert_eq!(waits(&rig, 0), Some((true, false)));
}

#[test]
fn t13_a_flush_that_a_lost_controller_never_does_fails_once_and_says_why() {
    let mut rig = cached(2, |_| ());
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    let done = rig.one(&flush(3), 61 * SECOND);
    assert_eq!(
        (done.outcome, done.latency_ns),
        (Outcome::PathError, 60 * SECOND)
    );
    assert_eq!(rig.one(&flush(3), SECOND).outcome, Outcome::Done);
    let said = rig.events.iter().filter(
        |event| matches!(event, HostEvent::Trouble(0, line) if line.contains("never flushed")),
    );
    assert_eq!(said.count(), 1);
    at_rest(&rig, 2);
}

/// Writes of which nobody knows whether they are durable are covered by every flush that is under
/// way when they are given up: all must fail, also one that is just being done elsewhere, and one
/// that would have had its own time until later. Those after them have nothing to tell.
#[test]
fn t13_all_flushes_under_way_fail_when_writes_are_given_up_and_later_ones_pass() {
    let mut rig = cached(2, |_| ());
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    let route = std::mem::replace(&mut rig.world.nodes[HOST].addresses[0], Address::Refused);
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    let start_ns = rig.world.now_ns;
    rig.submit(&flush(10)).unwrap();
    rig.world.pass(20 * SECOND);
    rig.submit(&flush(11)).unwrap();
    rig.world.pass(20 * SECOND);
    assert_eq!(rig.one(&write(2, 2), SECOND).outcome, Outcome::Done);
    rig.world.pass(18 * SECOND);
    // Path 1 is at it when the time of the first is over.
    rig.world.nodes[TARGET].disks[0].delay_ns = 5 * SECOND;
    rig.submit(&flush(12)).unwrap();
    assert!(rig.run(3 * SECOND, |_, done| done.len() == 2));
    assert_eq!(rig.world.now_ns - start_ns, 60 * SECOND);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    assert_eq!(rig.one(&flush(13), SECOND).outcome, Outcome::Done);
    rig.world.nodes[HOST].addresses[0] = route;
    assert!(rig.run(20 * SECOND, |_, done| done.len() == 3));
    let ends: Vec<_> = rig.done.iter().map(|it| (it.cookie, it.outcome)).collect();
    let failed = Outcome::PathError;
    assert_eq!(ends, [(10, failed), (11, failed), (12, failed)]);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.flushes_failed, stats.flushes), (3, 0));
    let lines = rig.events.iter().filter(
        |event| matches!(event, HostEvent::Trouble(0, line) if line.contains("never flushed")),
    );
    assert_eq!(lines.count(), 1, "one condition, one line");
    at_rest(&rig, 2);
}

/// Cores over a target with a cache; one of them has had a write acknowledged on each path.
fn written(cores: u16, writer: usize) -> Fleet {
    written_with(cores, writer, |_| ())
}

fn written_with(cores: u16, writer: usize, change: impl FnOnce(&mut Recovery)) -> Fleet {
    let mut config = target(2);
    config.subsystem.volatile_write_cache = true;
    let mut fleet = Fleet::with(cores, 2, config, change);
    for slot in 0..2 {
        assert_eq!(
            fleet.one(writer, &write(slot, slot), SECOND),
            Some(Outcome::Done)
        );
    }
    fleet
}

/// Two cores; core 1 wrote.
fn two_cores() -> Fleet {
    written(2, 1)
}

fn flushes_of_core_0(fleet: &Fleet) -> [u64; 2] {
    [P0, P1].map(|path| fleet.hosts[0].borrow().counters(0, path).ios[2])
}

#[test]
fn t13_a_flush_on_one_core_covers_what_another_core_wrote() {
    let mut fleet = two_cores();
    assert_eq!(fleet.one(0, &flush(0), SECOND), Some(Outcome::Done));
    assert_eq!(flushes_of_core_0(&fleet), [1, 1]);
}

#[test]
fn t13_a_flush_waits_for_a_path_lost_with_writes_of_another_core_also_before_it_is_told() {
    for (core, told) in [(0, false), (0, true), (1, true)] {
        let mut fleet = two_cores();
        fleet.world.cut(fleet.nodes[core], 0);
        let core_0 = fleet.hosts[0].clone();
        let lost = || core_0.borrow().path_state(0, P0) == PathState::Reconnecting;
        match told {
            true => assert!(fleet.run(10 * MS, |_| false) || lost()),
            // Core 0 sees it, and has not heard from the other.
            false => assert!(fleet.world.run(MS, |_| lost())),
        }
        let start_ns = fleet.world.now_ns;
        assert_eq!(fleet.one(0, &flush(0), SECOND), Some(Outcome::Done));
        assert_eq!(flushes_of_core_0(&fleet), [1, 1], "core {core} told {told}");
        let waited_ns = fleet.world.now_ns - start_ns;
        assert!(waited_ns > 80 * MS, "core {core} told {told}: {waited_ns}");
        fleet.at_rest();
    }
}

/// Runs in steps short enough to act within a handshake.
fn until(fleet: &mut Fleet, mut over: impl FnMut(&Fleet) -> bool) {
    let end_ns = fleet.world.now_ns + 5 * SECOND;
    while !over(fleet) {
        assert!(fleet.world.now_ns < end_ns, "it never came");
        fleet.world.pass(MS / 1000);
        fleet.step();
    }
}

#[test]
fn t13_a_core_hears_of_the_writes_of_another_also_where_core_0_was_never_live() {
    let mut config = target(2);
    config.subsystem.volatile_write_cache = true;
    let limit = |it: &mut Recovery| it.flush_timeout_ns = 2 * SECOND;
    let mut fleet = Fleet::with(3, 2, config, limit);
    fleet.world.cut(HOST, 0);
    until(&mut fleet, |it| it.states(P0)[0] == PathState::Reconnecting);
    // The I/O queue of core 0 is connected, and nothing passes on it.
    let io_queue = |it: &Fleet| {
        it.world.nodes[HOST]
            .conns
            .get(&1)
            .map(|it| it.peer.is_some())
    };
    until(&mut fleet, |it| io_queue(it) == Some(true));
    fleet.world.mute_queue(HOST, 0);
    until(&mut fleet, |it| it.states(P0)[1] == PathState::Live);
    assert_ne!(fleet.states(P0)[0], PathState::Live);
    for slot in 0..2 {
        let written = fleet.one(1, &write(slot, slot), SECOND);
        assert_eq!(written, Some(Outcome::Done));
    }
    assert!(fleet.hosts[1].borrow().counters(0, P0).ios[1] > 0);
    for node in fleet.nodes.clone() {
        fleet.world.nodes[node].addresses[0] = Address::Refused;
    }
    let is_lost = |it: &Fleet| !it.states(P0).contains(&PathState::Live);
    assert!(fleet.run(60 * SECOND, is_lost));
    fleet.run(100 * MS, |_| false);
    let flushed = fleet.one(2, &flush(0), 5 * SECOND);
    assert_eq!(flushed, Some(Outcome::PathError));
}

#[test]
fn t13_a_flush_does_not_wait_for_a_path_that_no_core_had_unflushed() {
    let mut fleet = two_cores();
    assert_eq!(fleet.one(1, &flush(0), SECOND), Some(Outcome::Done));
    for node in fleet.nodes.clone() {
        fleet.world.nodes[node].addresses[0] = Address::Refused;
    }
    fleet.world.cut(HOST, 0);
    assert_eq!(fleet.one(0, &flush(0), 50 * MS), Some(Outcome::Done));
}

/// Path 0 is gone for good: core 0 sees it, and has not heard from the others.
fn lose_unheard(fleet: &mut Fleet) {
    for node in fleet.nodes.clone() {
        fleet.world.nodes[node].addresses[0] = Address::Refused;
    }
    fleet.world.cut(fleet.nodes[0], 0);
    let core_0 = fleet.hosts[0].clone();
    let lost = || core_0.borrow().path_state(0, P0) == PathState::Reconnecting;
    assert!(fleet.world.run(MS, |_| lost()));
}

/// A path that is to leave, asked of core 0 with some patience; the answer.
fn removal(fleet: &mut Fleet, wait_ns: u64) -> Answer {
    let (volume, path, force) = (0, P0, false);
    let change = Change::RemovePath {
        volume,
        path,
        force,
    };
    fleet.ask(change, wait_ns);
    assert!(fleet.run(100 * SECOND, |it| !it.answers.is_empty()));
    fleet.answers.remove(0).1
}

#[test]
fn t13_a_lost_path_is_not_removed_before_all_cores_said_what_they_had_unflushed() {
    let mut fleet = two_cores();
    lose_unheard(&mut fleet);
    // Core 1 alone wrote.
    let why = removal(&mut fleet, 5 * SECOND).unwrap_err();
    assert!(why.contains("never flushed"), "{why}");
    fleet.run(SECOND, |_| false);
    assert_eq!(fleet.paths(), [0, 1]);
    let why = removal(&mut fleet, 5 * SECOND).unwrap_err();
    assert!(why.contains("never flushed"), "{why}");
}

#[test]
fn t13_a_lost_path_that_leaves_by_force_fails_one_flush_of_each_core_whoever_wrote() {
    for writer in 0..3 {
        let mut fleet = written(3, writer);
        lose_unheard(&mut fleet);
        // Before all cores have said what they had unflushed.
        assert!(fleet.remove(P0, true).is_ok());
        assert!(fleet.run(SECOND, |it| it.paths() == [1]));
        for core in 0..3 {
            let failed = Some(Outcome::PathError);
            assert_eq!(
                fleet.one(core, &flush(0), SECOND),
                failed,
                "{writer}: {core}"
            );
            assert_eq!(fleet.one(core, &flush(0), SECOND), Some(Outcome::Done));
        }
    }
}

/// A controller has done one piece of a large write and is given up while another has the second
/// one yet: the flush that fails for that says nothing of a write that has not ended.
#[test]
fn t13_a_large_write_that_ends_after_its_cache_was_given_up_is_done_again() {
    let mut config = target(2);
    config.subsystem.volatile_write_cache = true;
    carry(&mut config, 13);
    let mut fleet = Fleet::with(1, 2, config, |_| ());
    let now_ns = fleet.world.now_ns;
    let faults = Faults {
        hold_writes_until_ns: now_ns + 2 * SECOND,
        ..Faults::default()
    };
    let control = TargetControl::Faults(1, faults);
    fleet.target.borrow_mut().handle_control(control, now_ns);
    let large = io(IoOp::Write { fua: false }, 0, 16384, 0);
    fleet.hosts[0].borrow_mut().submit(&large, now_ns).unwrap();
    fleet.run(10 * MS, |_| false);
    let written = |it: &Fleet| [P0, P1].map(|path| it.hosts[0].borrow().counters(0, path).bytes[1]);
    assert_eq!(written(&fleet), [8192, 0]);
    lose_unheard(&mut fleet);
    assert!(fleet.remove(P0, true).is_ok());
    assert!(fleet.run(SECOND, |it| it.paths() == [1]));
    let failed = Some(Outcome::PathError);
    assert_eq!(fleet.one(0, &flush(3), SECOND), failed);
    assert_eq!(fleet.end(0, 10 * SECOND), Some(Outcome::Done));
    assert_eq!(
        written(&fleet)[1],
        3 * 8192,
        "the second piece, and then both"
    );
    assert_eq!(fleet.one(0, &flush(3), SECOND), Some(Outcome::Done));
    assert_eq!(flushes_of_core_0(&fleet)[1], 1);
}

#[test]
fn t13_with_a_shared_cache_a_lost_path_may_leave_and_fails_no_flush() {
    let mut fleet = written_with(2, 1, |it| it.shared_write_cache = true);
    lose_unheard(&mut fleet);
    assert_eq!(
        removal(&mut fleet, 5 * SECOND).map(|it| it.path),
        Ok(Some(P0))
    );
    assert!(fleet.run(SECOND, |it| it.paths() == [1]));
    for core in 0..2 {
        let end = fleet.one(core, &flush(0), SECOND);
        assert_eq!(end, Some(Outcome::Done), "{core}");
    }
}

#[test]
fn t13_a_path_that_is_lost_while_it_leaves_stays_for_its_unflushed_writes() {
    let mut fleet = two_cores();
    fleet.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    fleet.load(64);
    fleet.run(MS, |_| false);
    let (volume, path, force) = (0, P0, false);
    let change = Change::RemovePath {
        volume,
        path,
        force,
    };
    fleet.ask(change, 5 * SECOND);
    fleet.run(100 * MS, |_| false);
    assert_eq!(fleet.states(P0), [PathState::Removed; 2]);
    fleet.world.cut(fleet.nodes[0], 0);
    assert!(fleet.run(10 * SECOND, |it| !it.answers.is_empty()));
    let why = fleet.answers.remove(0).1.unwrap_err();
    assert!(why.contains("never flushed"), "{why}");
    fleet.world.nodes[TARGET].disks[0].delay_ns = 0;
    let live = |it: &Fleet| it.states(P0) == [PathState::Live; 2];
    assert!(fleet.run(60 * SECOND, live), "{:?}", fleet.states(P0));
    fleet.finish();
    assert_eq!(
        removal(&mut fleet, 5 * SECOND).map(|it| it.path),
        Ok(Some(P0))
    );
}

/// A path whose writes are in its cache, and whose disk answers no more.
fn stuck() -> Fleet {
    let mut fleet = written(1, 0);
    fleet.world.nodes[TARGET].disks[0].delay_ns = 1000 * SECOND;
    fleet
}

#[test]
fn t12_a_farewell_flush_has_the_time_of_an_io_and_then_its_path_is_given_up() {
    let mut fleet = stuck();
    let start_ns = fleet.world.now_ns;
    let why = removal(&mut fleet, 60 * SECOND).unwrap_err();
    assert!(why.contains("never flushed"), "{why}");
    let waited_ns = fleet.world.now_ns - start_ns;
    assert!(
        (10 * SECOND..11 * SECOND).contains(&waited_ns),
        "{waited_ns}"
    );
    let lines = failures(&fleet.events[0]);
    assert!(
        lines[0].contains("no answer to an I/O within 10000 ms"),
        "{lines:?}"
    );
    assert_eq!(fleet.paths(), [0, 1]);
}

#[test]
fn t12_a_farewell_flush_that_outlasts_its_removal_gives_its_path_up_all_the_same() {
    let mut fleet = stuck();
    let why = removal(&mut fleet, SECOND).unwrap_err();
    assert!(why.contains("it is in use again"), "{why}");
    assert_eq!(fleet.states(P0), [PathState::Live]);
    let lost = |it: &Fleet| it.states(P0) == [PathState::Reconnecting];
    assert!(
        fleet.run(10 * SECOND, lost),
        "its controller answers nothing"
    );
    fleet.world.nodes[TARGET].disks[0].delay_ns = 0;
    let live = |it: &Fleet| it.states(P0) == [PathState::Live];
    assert!(fleet.run(60 * SECOND, live), "{:?}", fleet.events[0]);
}
