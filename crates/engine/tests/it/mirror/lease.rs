//! Legs that other hosts reach too: what waits while they are out of reach, and what an owner says
//! that it leaves behind.
use super::common::{Address, Disk, HOST, MS, SECOND, WIRE_NS, namespace, target_config};
use super::rig::{LEG_BYTES, Rig, WITHOUT, add, configured, io, made, said_of, shared, superblock};
use engine::host::{HostConfig, HostControl, IoOp, PathKind, Recovery, WriteFailover};
use engine::mirror::{LegStatus, MirrorConfig, MirrorState};
use engine::target::TargetEngine;
use mirror::superblock::Owner;
use mirror::{Id, Label};
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;

const WRITE: IoOp = IoOp::Write { fua: false };
const BEAT: u64 = 5 * SECOND;
/// Twice the keep-alive time of these hosts, and the time to quiesce.
const BOUND_MS: u32 = 10_000 + QUIESCE_MS;
const QUIESCE_MS: u32 = 2_000;

fn nqn(leg: usize) -> String {
    format!("nqn.2026-01.org.example:m{leg}")
}

/// Each leg is a namespace of a target of its own. I/O waits for paths as long as it takes.
fn remote(disks: &[Disk]) -> (HostConfig, MirrorConfig) {
    let (mut host, mut mirror) = configured(disks);
    for (leg, volume) in host.volumes.iter_mut().enumerate() {
        volume.paths[0].kind = PathKind::NvmeTcp {
            address: leg as u32,
            subsystem: nqn(leg),
            nsid: None,
        };
        volume.recovery = Recovery {
            fast_io_fail_ns: u64::MAX,
            quiesce_ns: u64::from(QUIESCE_MS) * MS,
            ..Recovery::default()
        };
    }
    mirror.shared = true;
    (host, mirror)
}

/// Where a leg's target is.
fn target_of(leg: usize) -> Address {
    Address::To {
        node: HOST + 1 + leg,
        listener: 0,
        delay_ns: WIRE_NS,
    }
}

fn rig(disks: &[Disk], (host, mirror): (HostConfig, MirrorConfig)) -> Rig {
    let mut rig = Rig::with(&[], host, mirror);
    for (leg, disk) in disks.iter().enumerate() {
        let mut config = target_config(1);
        config.subsystem.nqn = nqn(leg);
        let mut space = namespace(1);
        (space.uuid, space.nguid) = ([leg as u8 + 1; 16], [0xb0 + leg as u8; 16]);
        space.blocks = LEG_BYTES >> 12;
        config.subsystem.namespaces = vec![space];
        let arena = config.arena_bytes as usize;
        let target = Rc::new(RefCell::new(TargetEngine::new(config).unwrap()));
        let node = rig.world.add(target, arena);
        rig.world.nodes[node].disks = vec![disk.clone()];
        rig.world.nodes[HOST].addresses.push(target_of(leg));
    }
    rig
}

/// Nothing passes between the host and a leg's target, and nobody is told.
fn part(rig: &mut Rig, leg: usize) {
    rig.world.nodes[HOST].addresses[leg] = Address::Silence;
    rig.world.mute(HOST, leg as u32);
}

/// One that is no leg yet besides.
fn and_another(mut disks: Vec<Disk>) -> Vec<Disk> {
    disks.push(Disk::new(LEG_BYTES as usize).with_cache());
    disks
}

fn owner_of(disk: &Disk) -> Owner {
    superblock(disk).superblock.owner.unwrap()
}

/// Somebody else had these legs, and does not beat any more.
fn left(disks: &[Disk], bound_ms: u32) {
    let owner = Owner {
        run: Id([0x33; 16]),
        host: Id([0x99; 16]),
        label: Label::cut("somebody else"),
        since_s: 1,
        heartbeat_s: 1,
        bound_ms,
    };
    said_of(disks, Some(owner));
}

#[test]
fn t48_what_waits_for_a_lease_goes_on_when_the_legs_can_be_reached_again() {
    // Long enough that paths are lost before the lease ends, and so short that they are not.
    for pause_ns in [3 * BEAT, 11 * SECOND] {
        let disks = made(2, true);
        let mut rig = rig(&disks, remote(&disks));
        rig.until(60 * SECOND, Rig::is_ready);
        assert_eq!(rig.write(0, 1), Outcome::Done);
        (0..2).for_each(|leg| part(&mut rig, leg));
        let lapsed = |rig: &Rig| {
            let lines = rig.lines();
            let lapsed = |line: &&String| line.contains("no heartbeat has ended");
            lines.iter().filter(lapsed).count() == 2
        };
        let began_ns = rig.world.now_ns;
        rig.until(2 * BEAT + SECOND, lapsed);
        rig.submit(&io(WRITE, 1));
        let left_ns = (began_ns + pause_ns).saturating_sub(rig.world.now_ns);
        assert!(
            !rig.run(left_ns, |rig| !rig.done.is_empty()),
            "{:?}",
            rig.done
        );
        for leg in 0..2 {
            rig.world.nodes[HOST].addresses[leg] = target_of(leg);
        }
        rig.until(120 * SECOND, |rig| !rig.done.is_empty());
        assert_eq!(rig.done[0].outcome, Outcome::Done, "{:?}", rig.lines());
        assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
        rig.done.clear();
        assert_eq!(rig.read(0), Ok(1));
    }
}

#[test]
fn t48_an_engine_whose_leases_are_over_ends_when_its_time_to_drain_is() {
    let disks = made(2, true);
    let mut rig = rig(&disks, remote(&disks));
    rig.until(60 * SECOND, Rig::is_ready);
    (0..2).for_each(|leg| part(&mut rig, leg));
    rig.run(3 * BEAT, |_| false);
    // It waits for a lease, and nothing goes to a leg but beats.
    rig.submit(&io(WRITE, 1));
    rig.control(HostControl::Drain(5 * SECOND));
    rig.control(HostControl::Stop);
    rig.until(30 * SECOND, |rig| rig.world.nodes[HOST].stopped);
    assert_eq!(rig.done[0].outcome, Outcome::Stopped);
}

#[test]
fn t09_changes_that_the_mirror_itself_holds_fail_when_the_time_to_drain_is_over() {
    // Nothing is under way on any leg by whose end it could hear of that.
    for stops in [false, true] {
        let disks = made(2, true);
        left(&disks, 60_000);
        let mut rig = shared(&disks);
        rig.until(60 * SECOND, Rig::is_ready);
        rig.submit(&io(WRITE, 1));
        rig.control(HostControl::Drain(SECOND));
        if stops {
            rig.control(HostControl::Stop);
        }
        assert!(!rig.run(SECOND - MS, |rig| !rig.done.is_empty()));
        rig.until(10 * MS, |rig| !rig.done.is_empty());
        assert_eq!(rig.done[0].outcome, Outcome::Stopped);
        if stops {
            rig.until(MS, |rig| rig.world.nodes[HOST].stopped);
        }
    }
}

#[test]
fn t09_a_leg_that_is_added_with_a_longer_bound_brings_it_into_the_record() {
    let disks = and_another(made(2, true));
    let (mut host, mut mirror) = remote(&disks);
    mirror.legs.truncate(2);
    host.volumes[2].recovery.quiesce_ns = 40 * SECOND;
    let mut rig = rig(&disks, (host, mirror));
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    assert_eq!(owner_of(&disks[0]).bound_ms, BOUND_MS);
    rig.order(add(2));
    rig.until(60 * SECOND, |rig| rig.report().legs.len() == 3);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 3]);
    for disk in &disks {
        assert_eq!(owner_of(disk).bound_ms, 50_000, "{:?}", rig.lines());
    }
}

#[test]
fn t09_a_leg_that_comes_later_with_a_longer_bound_gets_nothing_before_that_is_in_the_record() {
    let disks = made(3, true);
    let (mut host, mirror) = remote(&disks);
    host.volumes[2].recovery.quiesce_ns = 40 * SECOND;
    let mut rig = rig(&disks, (host, mirror));
    rig.world.nodes[HOST].addresses[2] = Address::Silence;
    rig.run(SECOND, |_| false);
    rig.order(WITHOUT);
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    assert_eq!(owner_of(&disks[0]).bound_ms, BOUND_MS);
    rig.world.nodes[HOST].addresses[2] = target_of(2);
    let others = disks.clone();
    let says = move |leg: usize| owner_of(&others[leg]).bound_ms;
    rig.until(120 * SECOND, |rig| {
        let joins =
            rig.statuses()[2] != LegStatus::Missing && rig.statuses()[2] != LegStatus::Stale;
        let said = says(0) == 50_000 && says(1) == 50_000;
        assert!(said || !joins, "{:?}", rig.lines());
        rig.statuses() == [LegStatus::InSync; 3]
    });
    assert_eq!(owner_of(&disks[2]).bound_ms, 50_000);
}

#[test]
fn t48_a_leg_that_takes_nothing_back_is_not_added_to_those_under_a_lease() {
    let disks = and_another(made(2, true));
    let (mut host, mut mirror) = remote(&disks);
    mirror.legs.truncate(2);
    host.volumes[2].recovery.write_failover = WriteFailover::Immediate;
    let mut rig = rig(&disks, (host, mirror));
    rig.until(60 * SECOND, Rig::is_ready);
    rig.order(add(2));
    rig.run(5 * SECOND, |_| false);
    let lines = rig.lines();
    let refused = |it: &String| it.contains("disk:2 was not added: it has write_failover");
    assert!(lines.iter().any(refused), "{lines:?}");
    assert_eq!(rig.report().legs.len(), 2);
}

#[test]
fn t09_a_bound_that_nobody_would_wait_for_is_refused() {
    let disks = made(2, true);
    for shared in [true, false] {
        let (host, mut mirror) = configured(&disks);
        (mirror.shared, mirror.leg_quiesce_ns) = (shared, 601 * SECOND);
        // Devices alone: nothing else bounds them.
        let mut rig = Rig::with(&disks, host, mirror);
        rig.run(60 * SECOND, |_| false);
        match rig.report().state {
            MirrorState::Refused(why) if shared => {
                assert!(why.contains("disk:0 may execute"), "{why}");
                assert!(
                    why.contains("for 601 s") && why.contains("leg_quiesce"),
                    "{why}"
                );
                assert_eq!(superblock(&disks[0]).superblock.owner, None, "untouched");
            }
            MirrorState::Running if !shared => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn t09_what_is_held_for_an_owner_before_is_shown() {
    let disks = made(2, true);
    left(&disks, 60_000);
    let mut rig = shared(&disks);
    rig.until(60 * SECOND, Rig::is_ready);
    let held_ns = rig.report().held_until_ns.unwrap();
    assert!(held_ns > rig.world.now_ns + 40 * SECOND);
    let line = |line: &String| line.contains("changes wait for ");
    assert!(rig.lines().iter().any(line), "{:?}", rig.lines());
    rig.submit(&io(WRITE, 0));
    rig.until(60 * SECOND, |rig| !rig.done.is_empty());
    assert!(rig.world.now_ns >= held_ns && rig.done[0].outcome.is_done());
    assert_eq!(rig.report().held_until_ns, None);
}

/// Namespaces whose engine before did not stop in order, and may have sent what comes so late.
fn after_a_kill(disks: &[Disk], gate_ns: u64) -> Rig {
    let (mut host, mirror) = remote(disks);
    for volume in &mut host.volumes {
        volume.recovery.unclean_stop_ns = Some(gate_ns);
    }
    rig(disks, (host, mirror))
}

#[test]
fn t09_after_a_kill_a_mirror_is_read_in_the_time_of_its_claim_and_changed_when_the_gate_opens() {
    const GATE: u64 = 60 * SECOND;
    let disks = made(2, true);
    left(&disks, BOUND_MS);
    let mut rig = after_a_kill(&disks, GATE);
    let begun_ns = rig.world.now_ns;
    rig.run(BEAT, |_| false);
    let report = rig.report();
    let watched = (Label::cut("somebody else"), 11 * BEAT / 2);
    assert_eq!(
        (report.watched, report.gate_until_ns),
        (Some(watched), None)
    );
    rig.until(5 * BEAT, Rig::is_ready);
    assert_eq!(rig.read(0), Ok(0));
    assert!(
        rig.world.now_ns < begun_ns + 6 * BEAT,
        "{}",
        rig.world.now_ns
    );
    rig.submit(&io(WRITE, 1));
    rig.until(GATE, |rig| !rig.done.is_empty());
    assert!(rig.done[0].outcome.is_done() && rig.world.now_ns >= begun_ns + GATE);
    // Nothing that waited at the gate kept beats from the legs.
    let lines = rig.lines();
    assert!(
        !lines.iter().any(|it| it.contains("no heartbeat has ended")),
        "{lines:?}"
    );
    rig.done.clear();
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
}

#[test]
fn t09_after_a_kill_a_record_that_takes_over_from_nobody_waits_at_the_gate() {
    const GATE: u64 = 60 * SECOND;
    let disks = made(2, true);
    let mut rig = after_a_kill(&disks, GATE);
    let until_ns = rig.world.now_ns + GATE;
    let legs = disks.clone();
    let written = |_: &Rig| {
        legs.iter()
            .any(|it| superblock(it).superblock.owner.is_some())
    };
    assert!(!rig.run(GATE - SECOND, written), "{:?}", rig.lines());
    let report = rig.report();
    assert_eq!(
        (report.watched, report.gate_until_ns),
        (None, Some(until_ns))
    );
    rig.until(4 * BEAT, Rig::is_ready);
}

#[test]
fn t09_what_an_owner_left_is_waited_for_after_a_start_that_failed_in_between() {
    let disks = made(2, true);
    left(&disks, 60_000);
    let (host, mut config) = configured(&disks);
    config.shared = true;
    let run = config.owner.run;
    let mut rig = Rig::with(&disks, host, config);
    let ours = disks.clone();
    rig.until(60 * SECOND, |_| {
        ours.iter().all(|it| owner_of(it).run == run)
    });
    let taken_ns = rig.world.now_ns;
    // Leg 1 can't be written, and is needed.
    rig.disk(1).error = Some(engine::machine::DeviceError::Os(5));
    rig.until(60 * SECOND, |rig| {
        matches!(rig.report().state, MirrorState::Refused(_))
    });
    rig.disk(1).error = None;
    rig.until(60 * SECOND, Rig::is_ready);
    let held_ns = rig.report().held_until_ns.unwrap();
    assert!(held_ns >= taken_ns + 40 * SECOND, "{held_ns} {taken_ns}");
    rig.run(10 * SECOND, |_| false);
    assert_eq!(
        owner_of(&disks[0]).bound_ms,
        60_000,
        "who comes next waits too"
    );
    rig.run(60 * SECOND, |_| false);
    assert_eq!(owner_of(&disks[0]).bound_ms, 30_000, "as long as we need");
}
