//! A lost path whose admin connection is alive: its controller is reset, and that is proof (T9).

use crate::common::*;
use engine::host::{HoldReason, HostConfig, HostControl, IoDone, PathState, Recovery};
use engine::target::{Faults, TargetControl};
use multipath::Outcome;
use policy::PathIndex;

/// Two paths; keep-alive 1 s unless told otherwise, CQT 500 ms, and as much where none is told.
fn rig_with(change: impl FnOnce(&mut HostConfig)) -> Rig {
    let mut host = host_config(2);
    host.kato_ms = 1000;
    host.volumes[0].recovery = Recovery {
        quiesce_ns: 500 * MS,
        ..Recovery::default()
    };
    change(&mut host);
    let mut target = target_config(2);
    target.subsystem.cqt_ms = 500;
    let mut rig = Rig::new(host, target);
    rig.ready();
    rig
}

/// Version 1 of block 0 is with the target; the path that has it.
fn first_write(rig: &mut Rig) -> u32 {
    fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    u32::from(rig.host.borrow().in_flight(0, PathIndex(1)) > 0)
}

/// Waits until version 1 is acknowledged, writes version 2, waits for whatever may come; the first
/// write's end and the version that is left.
fn second_write(rig: &mut Rig) -> (IoDone, u64) {
    let of = |done: &IoDone| done.cookie == 0;
    assert!(rig.run(60 * SECOND, |_, done| done.iter().any(of)));
    let first = rig.done.iter().position(of).unwrap();
    let first = rig.done.remove(first);
    assert_eq!(first.outcome, Outcome::Done);
    let slot_1 = &mut rig.world.nodes[HOST].arena.0[128 << 10..][..4096];
    fill(slot_1, 0, 2);
    assert_eq!(rig.one(&write(0, 1), 60 * SECOND).outcome, Outcome::Done);
    rig.world.pass(60 * SECOND);
    let mut want = vec![0; 4096];
    let version = (1..=2).find(|&version| {
        fill(&mut want, 0, version);
        rig.disk.bytes.borrow()[..4096] == want[..]
    });
    (first, version.unwrap())
}

/// Holds that ended by proof and by the bound.
fn ends(rig: &Rig) -> (u64, u64) {
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.behind, stats.queued), (0, 0, 0));
    (stats.proved_total, stats.bounded_total)
}

#[test]
fn t09_a_reset_that_is_answered_releases_held_writes_and_not_before_they_were_executed() {
    for late_ns in [0, MS, 40 * MS, 700 * MS, 2 * SECOND] {
        let mut rig = rig_with(|_| ());
        rig.world.nodes[TARGET].disks[0].delay_ns = MS + late_ns;
        let path = first_write(&mut rig);
        rig.world.nodes[TARGET].disks[0].delay_ns = 0;
        rig.world.cut_queue(HOST, path);
        let (first, version) = second_write(&mut rig);
        assert_eq!(version, 2, "late by {late_ns}");
        let held_ns = first.latency_ns;
        let soon = late_ns..late_ns + 20 * MS;
        assert!(soon.contains(&held_ns), "late by {late_ns}: {held_ns}");
        assert_eq!(ends(&rig), (1, 0));
    }
}

#[test]
fn t12_many_ios_that_time_out_have_their_controller_reset_and_proof_needs_no_keep_alive() {
    for kato_ms in [0, 1000] {
        let mut rig = rig_with(|host| host.kato_ms = kato_ms);
        let stall = shape::Config {
            stall_until_ns: rig.world.now_ns + 30 * SECOND,
            ..shape::Config::default()
        };
        for port in 0..2 {
            rig.target_control(TargetControl::Shape(port, stall));
        }
        let path = first_write(&mut rig);
        // More than are aborted, on both paths.
        for slot in 2..12 {
            rig.submit(&read(slot, slot)).unwrap();
        }
        rig.world.pass(MS);
        let other = 1 - path as u16;
        let shape = shape::Config::default();
        rig.target_control(TargetControl::Shape(other, shape));
        let (first, version) = second_write(&mut rig);
        assert_eq!(version, 2, "kato {kato_ms}");
        let held_ns = first.latency_ns - 10 * SECOND;
        assert!(held_ns < 20 * MS, "kato {kato_ms}: {held_ns}");
        assert_eq!(ends(&rig), (1, 0));
    }
}

/// The Abort is answered, and the command's own end never comes: its path is lost, and the write
/// moves all the same.
#[test]
fn t09_t12_an_acknowledged_abort_is_proof_whether_or_not_the_command_ends() {
    for kato_ms in [0, 1000] {
        let mut rig = rig_with(|host| host.kato_ms = kato_ms);
        let hold = Faults {
            hold_writes_until_ns: u64::MAX,
            ..Faults::default()
        };
        for port in 0..2 {
            rig.target_control(TargetControl::Faults(port, hold.clone()));
        }
        let path = first_write(&mut rig);
        rig.world.mute_queue(HOST, path);
        let other = 1 - path as u16;
        rig.target_control(TargetControl::Faults(other, Faults::default()));
        let (first, version) = second_write(&mut rig);
        assert_eq!(version, 2, "kato {kato_ms}");
        let late_ns = first.latency_ns - 12 * SECOND;
        assert!(late_ns < 20 * MS, "kato {kato_ms}: {late_ns}");
        assert_eq!(ends(&rig), (0, 0), "never held");
        assert_eq!(rig.failures().len(), 1);
    }
}

#[test]
fn t09_a_target_that_executes_late_says_ready_until_it_has() {
    let mut rig = rig_with(|_| ());
    let faults = Faults {
        hold_writes_until_ns: u64::MAX,
        late_writes_ns: 900 * MS,
        ..Faults::default()
    };
    for port in 0..2 {
        rig.target_control(TargetControl::Faults(port, faults.clone()));
    }
    let path = first_write(&mut rig);
    let other = 1 - path as u16;
    rig.target_control(TargetControl::Faults(other, Faults::default()));
    rig.world.cut_queue(HOST, path);
    rig.world.pass(500 * MS);
    let reason = rig.host.borrow().hold_stats(0).reason;
    assert!(
        matches!(reason, Some(HoldReason::Resetting(_))),
        "{reason:?}"
    );
    let (first, version) = second_write(&mut rig);
    assert_eq!(version, 2);
    let held = 900 * MS..930 * MS;
    assert!(held.contains(&first.latency_ns), "{}", first.latency_ns);
    assert_eq!(ends(&rig), (1, 0));
}

#[test]
fn t09_a_reset_that_is_not_answered_leaves_it_to_the_bound_from_its_own_end() {
    // 3 s for the reset, then the bound: twice keep-alive, and what the controller reports or the
    // user knows of slower disks.
    for (quiesce_ns, held_ns) in [(500 * MS, 13_500 * MS), (8 * SECOND, 21 * SECOND)] {
        // The target itself gives the association up after 5 s of silence.
        let mut rig = rig_with(|host| {
            host.kato_ms = 5000;
            host.volumes[0].recovery.quiesce_ns = quiesce_ns;
        });
        rig.world.nodes[TARGET].disks[0].delay_ns = 8 * SECOND;
        let path = first_write(&mut rig);
        rig.world.nodes[TARGET].disks[0].delay_ns = 0;
        rig.world.cut_queue(HOST, path);
        rig.world.mute(HOST, path);
        rig.world.pass(SECOND);
        let reason = |rig: &Rig| rig.host.borrow().hold_stats(0).reason;
        assert!(matches!(reason(&rig), Some(HoldReason::Resetting(_))));
        rig.world.pass(3 * SECOND);
        assert!(matches!(reason(&rig), Some(HoldReason::Until(_))));
        let (first, version) = second_write(&mut rig);
        assert_eq!(version, 2);
        let held = held_ns..held_ns + 100 * MS;
        assert!(held.contains(&first.latency_ns), "{}", first.latency_ns);
        assert_eq!(ends(&rig), (0, 1));
    }
}

/// A named limit: what a controller says is believed.
#[test]
fn t09_limit_a_controller_that_says_it_has_stopped_and_has_not_loses_data() {
    let mut rig = rig_with(|_| ());
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    rig.world.nodes[TARGET].disks[0].answers_early = true;
    let path = first_write(&mut rig);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.cut_queue(HOST, path);
    let (first, version) = second_write(&mut rig);
    assert!(first.latency_ns < 20 * MS);
    assert_eq!(version, 1, "the acknowledged second write is gone");
}

#[test]
fn t09_a_reset_of_a_later_association_proves_nothing_of_an_earlier_one() {
    for kato_ms in [5000, 0] {
        let mut rig = rig_with(|host| host.kato_ms = kato_ms);
        rig.world.nodes[TARGET].disks[0].delay_ns = 4 * SECOND;
        let path = first_write(&mut rig);
        rig.world.nodes[TARGET].disks[0].delay_ns = 0;
        rig.world.cut(HOST, path);
        rig.world.pass(SECOND);
        let state = |rig: &Rig| rig.host.borrow().path_state(0, PathIndex(path as u8));
        assert_eq!(state(&rig), PathState::Live, "connected again");
        // Now the new controller is reset; the old one still has the write.
        rig.world.cut_queue(HOST, path);
        rig.world.pass(10 * MS);
        let held = rig.host.borrow().hold_stats(0);
        assert_eq!((held.held, held.proved_total), (1, 0), "{kato_ms}");
        if kato_ms > 0 {
            let (first, version) = second_write(&mut rig);
            assert!(first.latency_ns > 10 * SECOND, "{}", first.latency_ns);
            assert_eq!(version, 2);
            assert_eq!(ends(&rig), (0, 1));
        } else {
            rig.world.pass(600 * SECOND);
            assert_eq!(rig.host.borrow().hold_stats(0).held, 1, "nothing proves it");
        }
    }
}

#[test]
fn the_end_of_a_drain_ends_each_io_once_also_behind_a_repeated_write() {
    let mut rig = rig_with(|_| ());
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    let path = first_write(&mut rig);
    // Held; then repeated on the other path, which stalls.
    let stall = shape::Config {
        stall_until_ns: u64::MAX / 2,
        ..shape::Config::default()
    };
    rig.target_control(TargetControl::Shape(1 - path as u16, stall));
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.cut(HOST, path);
    rig.world.nodes[HOST].addresses[path as usize] = Address::Refused;
    rig.world.pass(10 * MS);
    rig.submit(&write(0, 1)).unwrap();
    rig.world.pass(4 * SECOND);
    let waits = rig.host.borrow().hold_stats(0);
    assert_eq!((waits.held, waits.behind), (0, 1));
    rig.control(HostControl::Drain(SECOND));
    rig.control(HostControl::Stop);
    assert!(
        rig.world
            .run(20 * SECOND, |world| world.nodes[HOST].stopped)
    );
    rig.poll();
    let ends: Vec<_> = rig.done.iter().map(|done| done.outcome).collect();
    assert_eq!(ends, [Outcome::Stopped; 2]);
}

/// Linux' target takes its queues down after it has said that it was reset.
#[test]
fn t09_a_controller_without_a_quiesce_time_is_believed_when_ours_is_over() {
    for (late_ns, left) in [(400 * MS, 2), (SECOND, 1)] {
        let mut host = host_config(2);
        (host.kato_ms, host.cores) = (0, 1);
        host.volumes[0].recovery = Recovery {
            quiesce_ns: 500 * MS,
            ..Recovery::default()
        };
        let mut rig = Rig::new(host, target_config(2));
        rig.ready();
        rig.world.nodes[TARGET].disks[0].delay_ns = late_ns;
        rig.world.nodes[TARGET].disks[0].answers_early = true;
        let path = first_write(&mut rig);
        rig.world.nodes[TARGET].disks[0].delay_ns = 0;
        rig.world.cut_queue(HOST, path);
        rig.world.pass(300 * MS); // it is connected again by then
        let held = rig.host.borrow().hold_stats(0);
        assert!(
            matches!(held.reason, Some(HoldReason::Quiescing(_))),
            "{held:?}"
        );
        let (first, version) = second_write(&mut rig);
        assert!(
            (500 * MS..520 * MS).contains(&first.latency_ns),
            "{}",
            first.latency_ns
        );
        assert_eq!(version, left, "{late_ns}");
        assert_eq!(ends(&rig), (1, 0));
    }
}
