//! Paths that die and come back: I/O survives, nothing acknowledged is lost, and all of it is
//! visible.

use crate::common::*;
use engine::LocalDevice;
use engine::host::{HostControl, HostEvent, Io, PathKind, PathState, Recovery};
use engine::machine::{DeviceError, Span};
use engine::target::TargetControl;
use multipath::Outcome;
use nvme::host::AnaState;
use policy::{Group, Knobs, Policy};

#[test]
fn t38_a_path_that_was_cut_is_live_again_and_its_statistics_are_new() {
    let mut rig = rig_with(2, |_| ());
    rig.control(HostControl::Policy(
        0,
        Policy::WEIGHTED_LATENCY,
        Knobs::default(),
    ));
    let mut load = Load::new(200, 8, BLOCK);
    rig.load(&mut load, SECOND);
    let samples = |rig: &Rig| {
        let host = rig.host.borrow();
        let of = |group| host.path_report(0, P0, 0).groups[group as usize].samples;
        of(Group::Read) + of(Group::Write)
    };
    assert_ne!(samples(&rig), 0);
    rig.world.cut(HOST, 0);
    let cut_ns = rig.world.now_ns;
    until_returned(&mut rig, SECOND);
    let away_ns = rig.world.now_ns - cut_ns;
    assert!((100 * MS..110 * MS).contains(&away_ns), "{away_ns}");
    assert_eq!(state(&rig, P0), PathState::Live);
    assert_eq!(samples(&rig), 0);
    let mut load = Load::new(200, 8, BLOCK);
    load.writes = |_| true;
    rig.load(&mut load, SECOND);
    assert_eq!(load.errors(), 0);
    assert!(load.outcomes.iter().any(|(_, path)| *path == P0));
    // Its keep-alive works: it stays.
    rig.world.pass(20 * SECOND);
    rig.poll();
    assert_eq!((rig.failures().len(), returned(&rig.events)), (1, 1));
}

#[test]
fn the_waits_between_attempts_double_up_to_their_limit_and_one_line_is_said() {
    let mut rig = rig_with(2, |it| it.reconnect_max_ns = SECOND);
    let route = std::mem::replace(&mut rig.world.nodes[HOST].addresses[0], Address::Refused);
    rig.world.cut(HOST, 0);
    let mut attempts = Vec::new();
    let mut connecting = false;
    let host = rig.host.clone();
    let start_ns = rig.world.now_ns;
    rig.world.run(5 * SECOND, |world| {
        let why = host.borrow().path_hindrance(0, P0);
        let now = why.is_some_and(|why| why.starts_with("it is being connected again"));
        if now && !connecting {
            attempts.push((world.now_ns - start_ns) / MS);
        }
        connecting = now;
        false
    });
    assert_eq!(attempts, [100, 300, 700, 1500, 2500, 3500, 4500]);
    rig.poll();
    // Reset, then refused: two reasons, two lines.
    assert_eq!(rig.failures().len(), 2, "{:?}", rig.failures());
    rig.world.nodes[HOST].addresses[0] = route;
    until_returned(&mut rig, 2 * SECOND);
    rig.world.pass(SECOND);
    rig.world.cut(HOST, 0);
    until_returned(&mut rig, 200 * MS);
}

#[test]
fn reads_move_at_once() {
    let mut rig = rig_with(2, |_| ());
    let mut load = Load::new(2000, 32, 16 << 10);
    load.writes = |_| false;
    assert!(rig.load_until(&mut load, SECOND, 501));
    rig.world.cut(HOST, 0);
    rig.load(&mut load, SECOND);
    assert_eq!(load.errors(), 0);
    assert!(load.latency_ns.iter().all(|&ns| ns < 100 * MS));
    assert_ne!(rig.host.borrow().hold_stats(0).moved_total, 0);
    at_rest(&rig, 2);
}

/// In the capsule, and by R2T.
#[test]
fn t07_a_write_that_is_repeated_sends_the_same_bytes_again() {
    for length in [4096, 64 << 10] {
        let mut rig = rig_with(2, |_| ());
        let disk = rig.world.nodes[TARGET].disks[0].clone();
        *disk.log.borrow_mut() = Some(Vec::new());
        let source = &mut rig.world.nodes[HOST].arena.0[..length as usize];
        fill(source, 3, 1);
        let source = source.to_vec();
        let io = Io {
            length,
            span: Span { at: 0, len: length },
            ..write(3, 0)
        };
        // The disk executes it, and its path is gone before it can say so.
        rig.world.nodes[TARGET].disks[0].delay_ns = 20 * MS;
        rig.submit(&io).unwrap();
        rig.world.pass(10 * MS);
        rig.world.nodes[TARGET].disks[0].delay_ns = 0;
        let path = u32::from(rig.host.borrow().in_flight(0, P1) > 0);
        rig.world.cut(HOST, path);
        assert!(rig.run(60 * SECOND, |_, done| done.len() == 1));
        assert_eq!(rig.done[0].outcome, Outcome::Done);
        let log = disk.log.borrow();
        let executed = log.as_ref().unwrap();
        let bytes: Vec<_> = executed.iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(bytes.len(), 2, "on either path");
        assert!(bytes.iter().all(|bytes| **bytes == source));
        let at = |n: usize| executed[n].0.offset;
        assert_eq!(at(0), at(1));
    }
}

#[test]
fn t26_a_group_that_a_port_may_not_serve_takes_its_namespaces_alone_off_that_path() {
    let mut target = target_config(2);
    let mut second = namespace(2);
    second.ana_group = 2;
    target.subsystem.namespaces.push(second);
    target.devices.push(LocalDevice(1));
    let mut host = host_config(2);
    for path in &mut host.volumes[0].paths {
        if let PathKind::NvmeTcp { nsid, .. } = &mut path.kind {
            *nsid = Some(2);
        }
    }
    let mut rig = Rig::new(host, target);
    rig.ready();
    let ios = |rig: &mut Rig| {
        let mut load = Load::new(200, 8, 4096);
        load.writes = |_| false;
        rig.load(&mut load, 10 * SECOND);
        assert_eq!((load.errors(), load.ended), (0, 200));
        let over = |path| load.outcomes.iter().filter(|(_, of)| *of == path).count();
        [over(P0), over(P1)]
    };
    rig.target_control(TargetControl::AnaGroup(0, 1, AnaState::Inaccessible));
    rig.world.pass(SECOND);
    assert_eq!(ios(&mut rig), [100, 100], "another group");
    rig.target_control(TargetControl::AnaGroup(0, 2, AnaState::Inaccessible));
    rig.world.pass(SECOND);
    assert_eq!(ios(&mut rig), [0, 200]);
    rig.target_control(TargetControl::AnaGroup(0, 2, AnaState::Optimized));
    rig.world.pass(SECOND);
    assert_eq!(ios(&mut rig), [100, 100]);
}

#[test]
fn without_a_path_io_waits_first_come_first_served_until_one_returns() {
    let mut rig = rig_with(1, |_| ());
    let route = std::mem::replace(&mut rig.world.nodes[HOST].addresses[0], Address::Refused);
    rig.world.cut(HOST, 0);
    rig.world.pass(SECOND);
    for slot in 0..8 {
        rig.submit(&read(slot, slot)).unwrap();
    }
    rig.world.pass(100 * SECOND);
    rig.poll();
    assert_eq!(rig.done.len(), 0);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!(stats.queued, 8);
    assert!(stats.queued_since_ns.unwrap() + 100 * SECOND <= rig.world.now_ns);
    let no_path = |event: &&HostEvent| matches!(event, HostEvent::NoPath(0));
    assert_eq!(rig.events.iter().filter(no_path).count(), 1);
    rig.world.nodes[HOST].addresses[0] = route;
    assert!(rig.run(11 * SECOND, |_, done| done.len() == 8));
    assert!(
        (0..)
            .zip(&rig.done)
            .all(|(n, done)| done.cookie == n && done.outcome.is_done())
    );
    at_rest(&rig, 1);
}

#[test]
fn all_paths_dead_at_the_start_are_tried_on_and_the_owner_is_told() {
    let mut host = host_config(2);
    host.volumes[0].recovery = Recovery::default();
    let mut rig = Rig::new(host, target_config(2));
    let routes = rig.world.nodes[HOST].addresses.clone();
    rig.world.nodes[HOST].addresses = vec![Address::Refused; 2];
    let told = |events: &[HostEvent]| events.iter().any(|it| matches!(it, HostEvent::NoPath(0)));
    assert!(rig.run(SECOND, |events, _| told(events)));
    assert_eq!(rig.failures().len(), 2);
    rig.world.pass(30 * SECOND);
    rig.world.nodes[HOST].addresses = routes;
    rig.ready();
    rig.world.pass(11 * SECOND);
    assert_eq!([state(&rig, P0), state(&rig, P1)], [PathState::Live; 2]);
}

#[test]
fn t32_a_path_that_returns_as_something_else_is_refused_until_it_agrees() {
    let mut rig = rig_with(2, |_| ());
    let mut other = target_config(1);
    other.subsystem.namespaces[0].uuid = [9; 16];
    let (_, route) = rig.lead(0, other, Disk::new(16 << 20));
    rig.world.cut(HOST, 0);
    rig.world.pass(20 * SECOND);
    rig.poll();
    assert_eq!(
        rig.failures().len(),
        2,
        "cut, then refused: {:?}",
        rig.failures()
    );
    let line = rig.failures()[1];
    assert!(line.starts_with("v0: path nvme-tcp://p0/"), "{line}");
    let others = line.matches("nvme-tcp://").count();
    assert!(
        others == 1 && !line.contains("beside"),
        "not beside itself: {line}"
    );
    for part in ["UUID", "0909", "0101", "before", "own volume"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_ne!(state(&rig, P0), PathState::Live);
    rig.world.nodes[HOST].addresses[0] = route;
    until_returned(&mut rig, 11 * SECOND);
}

#[test]
fn t26_an_ana_status_moves_the_io_and_the_log_is_read_before_the_path_is_used_again() {
    let mut rig = rig_with(2, |_| ());
    let mut load = Load::new(3000, 16, BLOCK);
    for (turn, state) in (1..).zip([
        AnaState::Inaccessible,
        AnaState::Change,
        AnaState::Optimized,
    ]) {
        assert!(rig.load_until(&mut load, SECOND, 500 * turn + 1));
        rig.target_control(TargetControl::Ana(0, state));
    }
    rig.load(&mut load, 10 * SECOND);
    assert_eq!(load.errors(), 0);
    assert_eq!(rig.failures().len(), 0);
    assert_ne!(
        rig.host.borrow().hold_stats(0).moved_total,
        0,
        "a status came before the event"
    );
    assert_eq!(
        rig.host.borrow().hold_stats(0).held_total,
        0,
        "answered writes move at once"
    );
    at_rest(&rig, 2);
}

fn devices() -> Rig {
    let mut host = host_config(2);
    host.volumes[0].recovery = Recovery::default();
    for (device, path) in (0..).zip(&mut host.volumes[0].paths) {
        path.kind = PathKind::Device {
            device: LocalDevice(0),
            bytes: 16 << 20,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        };
        path.uri = format!("mem{device}");
    }
    let mut rig = Rig::new(host, target_config(1));
    rig.world.nodes[HOST].disks = vec![Disk::new(16 << 20)];
    rig.ready();
    rig
}

#[test]
fn t01_t06_a_busy_path_is_asked_again_after_a_wait_and_not_for_ever() {
    let mut rig = devices();
    rig.world.nodes[HOST].disks[0].error = Some(DeviceError::Os(11));
    let done = rig.one(&write(0, 0), SECOND);
    assert_eq!(done.outcome, Outcome::Busy { after_ns: 0 });
    assert_eq!(done.latency_ns, (10 + 20 + 40 + 80 + 160) * MS);
    rig.submit(&write(0, 1)).unwrap();
    rig.world.pass(25 * MS);
    assert_eq!(rig.host.borrow().hold_stats(0).delayed, 1);
    rig.world.nodes[HOST].disks[0].error = None;
    assert!(rig.run(SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done[0].outcome, Outcome::Done);
    at_rest(&rig, 2);
}

#[test]
fn t02_t35_data_errors_do_not_move_and_t04_route_errors_not_for_ever() {
    let mut rig = devices();
    for (errno, want, moves) in [
        (5, Outcome::MediaError, 0),
        (52, Outcome::Reservation, 0),
        (22, Outcome::Invalid, 0),
        (19, Outcome::PathError, 8),
    ] {
        let before = rig.host.borrow().hold_stats(0).moved_total;
        rig.world.nodes[HOST].disks[0].error = Some(DeviceError::Os(errno));
        assert_eq!(rig.one(&write(0, 0), SECOND).outcome, want);
        let moved = rig.host.borrow().hold_stats(0).moved_total - before;
        assert_eq!(moved, moves, "errno {errno}");
    }
    at_rest(&rig, 2);
}

#[test]
fn a_device_keeps_an_io_until_it_ends_it_and_is_used_again_then() {
    let mut rig = devices();
    rig.world.nodes[HOST].disks[0].delay_ns = 25 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.failure(11 * SECOND);
    rig.world.nodes[HOST].disks[0].delay_ns = 0;
    assert_eq!(rig.one(&read(9, 9), SECOND).outcome, Outcome::Done);
    assert_eq!(rig.done.len(), 0);
    until_returned(&mut rig, 20 * SECOND);
    assert_eq!(rig.done[0].outcome, Outcome::Done);
    assert_eq!([state(&rig, P0), state(&rig, P1)], [PathState::Live; 2]);
}

/// Whatever happens to paths, with disks that execute late what they have: no error, no wrong byte,
/// no hold that stays.
#[test]
fn t09_t41_whatever_happens_no_acknowledged_write_is_lost() {
    let (mut held, mut moved, mut verified) = (0, 0, 0);
    for seed in 1..=30_u64 {
        let mut random = Random::new(seed);
        let mut below = |n| random.below(n);
        let mut rig = rig_with(3, |it| it.reconnect_max_ns = SECOND);
        rig.world.piece_max = [100, 3000, 20_000][below(3) as usize];
        rig.world.sent_delay_ns = [0, 100_000, 3 * MS][below(3) as usize];
        let mut load = Load::new(600, 24, [4 << 10, 16 << 10, 64 << 10][below(3) as usize]);
        let mut next = 40;
        while !load.is_over() {
            let moved = rig.load_until(&mut load, 100 * SECOND, next);
            assert!(moved, "seed {seed}: {} of {} ended", load.ended, load.total);
            next = load.ended + 40;
            let port = below(3) as u32;
            // Late, but within what the bound covers.
            rig.world.nodes[TARGET].disks[0].delay_ns =
                [0, 0, MS, SECOND, 2 * SECOND][below(5) as usize];
            match below(5) {
                0 => rig.world.cut(HOST, port),
                1 => rig.world.mute(HOST, port),
                2 => rig.world.inject(HOST, port, &[0xa5; 200]),
                3 => rig.target_control(TargetControl::Drop(port as u16)),
                _ => {
                    let state = [
                        AnaState::Inaccessible,
                        AnaState::Optimized,
                        AnaState::NonOptimized,
                    ];
                    rig.target_control(TargetControl::Ana(port as u16, state[below(3) as usize]));
                }
            }
            // Not all paths may stay inaccessible.
            rig.target_control(TargetControl::Ana(0, AnaState::Optimized));
        }
        assert_eq!(load.errors(), 0, "seed {seed}");
        verified += load.verified;
        rig.world.pass(30 * SECOND);
        at_rest(&rig, 3);
        let stats = rig.host.borrow().hold_stats(0);
        held += stats.held_total;
        moved += stats.moved_total;
        rig.control(HostControl::Stop);
        let stopped = rig
            .world
            .run(20 * SECOND, |world| world.nodes[HOST].stopped);
        assert!(stopped, "seed {seed}: never stopped");
        assert_eq!(rig.world.connections(HOST), 0, "seed {seed}");
    }
    assert!(
        held > 100 && moved > 300 && verified > 3000,
        "{held} {moved} {verified}"
    );
}
