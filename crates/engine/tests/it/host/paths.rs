//! Paths and volumes that come and go while the engine runs, on one core and on several.

use crate::common::*;
use engine::host::{
    Change, Changed, HostEvent, IoOp, PathConfig, PathKind, PathState, Recovery, SubmitError,
};
use engine::target::{TargetControl, TargetEngine};
use engine::{LocalDevice, Machine};
use multipath::Outcome;
use policy::{Group, PathIndex};
use std::cell::RefCell;
use std::rc::Rc;

const P0: PathIndex = PathIndex(0);
const P1: PathIndex = PathIndex(1);
/// Message of a change of path `path` of volume 0 when it was made.
fn made(path: PathIndex) -> Answer {
    Ok(Changed {
        volume: 0,
        path: Some(path),
    })
}

#[test]
fn a_path_that_is_added_under_load_takes_its_share() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 1, target(2));
        fleet.load(3000);
        fleet.run(MS, |_| false);
        assert_eq!(fleet.add(1), made(P1));
        assert_eq!(fleet.states(P1), vec![PathState::Live; cores.into()]);
        fleet.finish();
        let (old, new) = (fleet.ios(P0), fleet.ios(P1));
        assert!(new > old / 4, "{old} {new}");
    }
}

#[test]
fn t41_a_path_that_is_removed_under_load_drains_and_its_place_is_anothers() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 2, target(3));
        let before = fleet.connections();
        fleet.load(4000);
        fleet.run(MS, |_| false);
        assert_eq!(fleet.remove(P0, false), made(P0));
        fleet.until_freed(P0);
        assert_eq!(fleet.paths(), [1]);
        for (core, connections) in fleet.connections().into_iter().enumerate() {
            assert_eq!(connections, before[core] / 2, "core {core}");
            let stats = fleet.hosts[core].borrow().hold_stats(0);
            assert_eq!((stats.moved_total, stats.held_total), (0, 0), "it drained");
        }
        assert!(
            failures(&fleet.events[0]).is_empty(),
            "{:?}",
            fleet.events[0]
        );
        assert_eq!(fleet.add(2), made(P0));
        let stats = fleet.hosts[0].borrow().path_report(0, P0, 0).groups[Group::Read as usize];
        assert!(stats.selections < 50, "T38: {stats:?}");
        fleet.finish();
        assert_ne!(fleet.ios(P0), 0);
    }
}

#[test]
fn t09_a_path_failed_by_hand_moves_its_io_and_stays_away_until_it_is_restored() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 2, target(2));
        fleet.load(4000);
        fleet.run(MS, |_| false);
        assert_eq!(fleet.change(Change::FailPath(0, P0, true)), made(P0));
        fleet.run(MS, |_| false);
        assert_eq!(fleet.states(P0)[0], PathState::Failed);
        let held: u64 = fleet
            .hosts
            .iter()
            .map(|it| it.borrow().hold_stats(0).held_total)
            .sum();
        assert_ne!(held, 0, "its writes are held");
        fleet.run(60 * SECOND, |_| false);
        assert_eq!(fleet.states(P0), vec![PathState::Failed; cores.into()]);
        assert!(
            fleet
                .states(P1)
                .iter()
                .all(|state| *state == PathState::Live)
        );
        fleet.finish();
        assert_eq!(fleet.change(Change::RestorePath(0, P0)), made(P0));
        fleet.run(SECOND, |_| false);
        assert_eq!(fleet.states(P0), vec![PathState::Live; cores.into()]);
        fleet.load_more(500);
        fleet.finish();
        assert!(fleet.ios(P0) > 100);
    }
}

#[test]
fn a_path_that_drains_stays_connected_and_gets_nothing() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 2, target(2));
        let before = fleet.connections();
        fleet.load(4000);
        fleet.run(MS, |_| false);
        assert_eq!(fleet.change(Change::DrainPath(0, P0, true)), made(P0));
        let ios = fleet.ios(P0);
        assert_eq!(fleet.states(P0), vec![PathState::Draining; cores.into()]);
        fleet.finish();
        assert_eq!((fleet.ios(P0), fleet.connections()), (ios, before));
        assert_eq!(fleet.change(Change::RestorePath(0, P0)), made(P0));
        fleet.load_more(500);
        fleet.finish();
        assert!(fleet.ios(P0) > ios);
    }
}

#[test]
fn t31_a_foreign_namespace_or_a_second_controller_of_a_number_is_refused() {
    for cores in 1..=2 {
        let mut fleet = Fleet::new(cores, 1, target(2));
        // Another process of the same subsystem that hands out the same controller numbers.
        let twin = Rc::new(RefCell::new(TargetEngine::new(target(1)).unwrap()));
        let twin = fleet.world.add(twin, 16 << 20);
        let mut other = target(1);
        other.subsystem.namespaces[0].uuid = [9; 16];
        other.subsystem.cntlid_min = 50;
        let other = Rc::new(RefCell::new(TargetEngine::new(other).unwrap()));
        let other = fleet.world.add(other, 16 << 20);
        for node in [twin, other] {
            fleet.world.nodes[node].disks = vec![Disk::new(16 << 20)];
            for &host in &fleet.nodes {
                fleet.world.nodes[host].addresses.push(Address::To {
                    node,
                    listener: 0,
                    delay_ns: WIRE_NS,
                });
            }
        }
        fleet.load(4000);
        for (address, part) in [(2, "both claim to be controller 1"), (3, "UUID")] {
            let why = fleet.add(address).unwrap_err();
            assert!(why.contains(part), "{why}");
            for uri in ["nvme-tcp://p0/", &format!("nvme-tcp://p{address}/")] {
                assert!(why.contains(uri), "both are named: {why}");
            }
            fleet.until_freed(P1);
            assert_eq!(fleet.paths(), [0]);
        }
        fleet.world.nodes[HOST].addresses.push(Address::Refused);
        let why = fleet.add(4).unwrap_err();
        assert!(why.contains("connection refused"), "{why}");
        fleet.finish();
        assert!(
            fleet
                .loads
                .iter()
                .all(|load| load.latency_ns.iter().all(|&ns| ns < 10 * MS))
        );
    }
}

#[test]
fn the_last_usable_path_leaves_by_force_only_and_its_io_waits() {
    let mut fleet = Fleet::new(2, 2, target(2));
    fleet.change(Change::FailPath(0, P1, true)).unwrap();
    let whys = [
        fleet.remove(P0, false).unwrap_err(),
        fleet.change(Change::FailPath(0, P0, false)).unwrap_err(),
        fleet.change(Change::DrainPath(0, P0, false)).unwrap_err(),
    ];
    for why in whys {
        let parts = ["last usable path", "p0", "--force"];
        let said = parts.iter().all(|it| why.contains(it));
        assert!(said, "{why}");
    }
    fleet.load(500);
    fleet.run(MS, |_| false);
    assert_eq!(fleet.remove(P0, true), made(P0));
    fleet.run(5 * SECOND, |_| false);
    assert!(fleet.loads.iter().all(|load| !load.is_over()));
    assert_ne!(fleet.hosts[0].borrow().hold_stats(0).queued, 0);
    fleet.change(Change::RestorePath(0, P1)).unwrap();
    fleet.finish();
}

#[test]
fn t13_what_leaves_is_flushed_first_and_what_is_lost_unflushed_fails_one_flush() {
    let flush = |fleet: &mut Fleet| {
        let io = io(IoOp::Flush, 0, 0, 0);
        let now_ns = fleet.world.now_ns;
        let host = fleet.hosts[0].clone();
        host.borrow_mut().submit(&io, now_ns).unwrap();
        let mut end = None;
        fleet.world.run(100 * SECOND, |_| {
            while let Some(event) = { host.borrow_mut().poll_event() } {
                if let HostEvent::Done(done) = event {
                    end = Some(done.outcome);
                }
            }
            end.is_some()
        });
        end.unwrap()
    };
    let fleet = || {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let mut fleet = Fleet::new(1, 2, config);
        fleet.load(100);
        fleet.finish();
        fleet
    };
    let mut orderly = fleet();
    orderly.remove(P0, false).unwrap();
    orderly.until_freed(P0);
    assert_eq!(flush(&mut orderly), Outcome::Done);
    let mut lost = fleet();
    lost.change(Change::FailPath(0, P0, true)).unwrap();
    let why = lost.remove(P0, false).unwrap_err();
    assert!(why.contains("never flushed"), "{why}");
    lost.remove(P0, true).unwrap();
    lost.until_freed(P0);
    assert_eq!(flush(&mut lost), Outcome::PathError);
    assert_eq!(flush(&mut lost), Outcome::Done, "once");
}

#[test]
fn a_path_whose_io_does_not_end_is_used_again_or_failed_as_was_asked() {
    for force in [false, true] {
        let mut fleet = Fleet::new(2, 2, target(2));
        fleet.load(300);
        fleet
            .loads
            .iter_mut()
            .for_each(|load| load.writes = |_| false);
        let stall = shape::Config {
            delay_ns: 8 * SECOND,
            ..Default::default()
        };
        let now_ns = fleet.world.now_ns;
        let message = TargetControl::Shape(0, stall);
        fleet.target.borrow_mut().handle_control(message, now_ns);
        fleet.run(MS, |_| false);
        let answer = fleet.remove(P0, force);
        match force {
            true => assert_eq!(answer, made(P0)),
            false => assert!(answer.unwrap_err().contains("in use again")),
        }
        let want = if force { vec![1] } else { vec![0, 1] };
        fleet.run(SECOND, |_| false);
        assert_eq!(fleet.paths(), want);
        let message = TargetControl::Shape(0, shape::Config::default());
        let now_ns = fleet.world.now_ns;
        fleet.target.borrow_mut().handle_control(message, now_ns);
        fleet.finish();
    }
}

/// A path gets the lowest of its numbers that is free; numbers that no path has had leave gaps.
#[test]
fn path_gets_a_number_of_its_own_and_others_leave_it_free() {
    let mut fleet = Fleet::new(2, 1, target(5));
    let add = |fleet: &mut Fleet, address, numbers| {
        let path = PathConfig {
            numbers,
            ..tcp_path(address)
        };
        fleet.change(Change::AddPath(0, Box::new(path)))
    };
    assert_eq!(add(&mut fleet, 1, 1 << 3), made(PathIndex(3)));
    assert_eq!(add(&mut fleet, 2, !(1 << 1)), made(PathIndex(2)));
    let why = add(&mut fleet, 3, 1 << 3).unwrap_err();
    assert!(why.contains("none of the numbers"), "{why}");
    assert_eq!(fleet.paths(), [0, 2, 3]);
    assert_eq!(fleet.remove(PathIndex(2), false), made(PathIndex(2)));
    assert_eq!(fleet.add(4), made(PathIndex(1)));
    assert_eq!(fleet.paths(), [0, 1, 3]);
    fleet.at_rest();
}

/// An engine begins without the first two paths of a volume: the third keeps its number.
#[test]
fn volume_that_begins_with_gaps_keeps_numbers() {
    let mut config = host_config(0);
    let third = PathConfig {
        numbers: 1 << 2,
        ..tcp_path(0)
    };
    config.volumes = vec![volume(vec![third.clone()])];
    let host = HostCore::with_room(config.clone(), 4);
    let paths: Vec<_> = host.paths(0).map(|path| path.0).collect();
    assert_eq!(paths, [2]);
    config.volumes = vec![volume(vec![third.clone(), third])];
    assert_eq!(config.check().unwrap_err().field, "numbers");
}

#[test]
fn limits_are_refused_in_words() {
    let mut fleet = Fleet::new(1, 1, target(1));
    for &node in &fleet.nodes {
        fleet.world.nodes[node].addresses.push(Address::Silence);
    }
    for _ in 1..64 {
        let change = Change::AddPath(0, Box::new(tcp_path(1)));
        fleet.ask(change, 100 * SECOND);
    }
    let why = fleet.add(1).unwrap_err();
    assert!(why.contains("at most 64 paths"), "{why}");
    let volume = |paths| {
        let mut volume = volume((0..paths).map(|_| tcp_path(1)).collect());
        volume.recovery = Recovery::default();
        Change::AddVolume(Box::new(volume))
    };
    let why = fleet.change(volume(7)).unwrap_err();
    assert!(why.contains("room for 70 paths"), "{why}");
    let why = fleet.change(volume(0)).unwrap_err();
    assert!(why.contains("1…64"), "{why}");
    for change in [
        Change::FailPath(0, PathIndex(64), true),
        Change::RestorePath(7, P0),
        Change::RemoveVolume(3),
    ] {
        let why = fleet.change(change).unwrap_err();
        assert!(why.contains("there is no"), "{why}");
    }
}

/// A device of 1 MiB, number `device` of every core.
fn device(device: u16) -> PathConfig {
    PathConfig {
        uri: format!("mem:{device}"),
        kind: PathKind::Device {
            device: LocalDevice(device),
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
    }
}

#[test]
fn a_volume_comes_and_goes_with_all_its_io_ended() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 2, target(2));
        for &node in &fleet.nodes {
            fleet.world.nodes[node].disks = vec![Disk::new(1 << 20)];
            fleet.world.nodes[node].disks[0].delay_ns = 10 * MS;
        }
        for _ in 0..3 {
            let mut more = volume(vec![device(0)]);
            more.name = "v1".into();
            more.recovery = Recovery::default();
            let made = fleet.change(Change::AddVolume(Box::new(more))).unwrap();
            assert_eq!(made.volume, 1, "the number is used again");
            fleet.run(MS, |_| false);
            for host in &fleet.hosts {
                let mut io = write(1, 40);
                io.volume = 1;
                host.borrow_mut().submit(&io, fleet.world.now_ns).unwrap();
            }
            let ticket = fleet.ask(Change::RemoveVolume(1), 5 * SECOND);
            let mut io = read(1, 41);
            io.volume = 1;
            let refused = fleet.hosts[0].borrow_mut().submit(&io, fleet.world.now_ns);
            assert_eq!(refused, Err(SubmitError::NotReady));
            // Its I/O ends as it would.
            let mut ends = 0;
            while !fleet.answers.iter().any(|(of, _)| *of == ticket) {
                fleet.world.pass(MS);
                for core in 0..fleet.hosts.len() {
                    while let Some(event) = { fleet.hosts[core].borrow_mut().poll_event() } {
                        match event {
                            HostEvent::Done(done) if done.cookie == 40 => {
                                assert_eq!(done.outcome, Outcome::Done);
                                ends += 1;
                            }
                            HostEvent::Done(done) => panic!("{done:?}"),
                            event => fleet.pass_on(event),
                        }
                    }
                }
            }
            assert_eq!(ends, usize::from(cores));
        }
        fleet.load(500);
        fleet.finish();
    }
}

/// Lets time pass on one core without a load, and has all ends of I/Os.
fn pass(fleet: &mut Fleet, ns: u64) -> usize {
    let mut ends = 0;
    for _ in 0..ns / MS {
        fleet.world.pass(MS);
        while let Some(event) = { fleet.hosts[0].borrow_mut().poll_event() } {
            match event {
                HostEvent::Done(done) => {
                    assert_eq!(done.outcome, Outcome::Done);
                    ends += 1;
                }
                event => fleet.pass_on(event),
            }
        }
    }
    ends
}

#[test]
fn a_volume_whose_removal_takes_longer_than_asked_is_not_looked_at_for_that() {
    let mut fleet = Fleet::new(1, 1, target(1));
    fleet.world.nodes[HOST].disks = vec![Disk::new(1 << 20)];
    fleet.world.nodes[HOST].disks[0].delay_ns = 2 * SECOND;
    let mut more = volume(vec![device(0)]);
    more.recovery = Recovery::default();
    fleet.change(Change::AddVolume(Box::new(more))).unwrap();
    let mut io = write(1, 40);
    io.volume = 1;
    let now_ns = fleet.world.now_ns;
    fleet.hosts[0].borrow_mut().submit(&io, now_ns).unwrap();
    fleet.ask(Change::RemoveVolume(1), 5 * MS);
    for _ in 0..100 {
        fleet.world.pass(MS);
        let mut host = fleet.hosts[0].borrow_mut();
        let now_ns = fleet.world.now_ns;
        host.handle_timeout(now_ns);
        let due = host.poll_timeout();
        assert!(due.is_none_or(|due| due > now_ns), "{due:?} at {now_ns}");
    }
    pass(&mut fleet, 4 * SECOND);
    assert_eq!(fleet.answers.len(), 1);
}

#[test]
fn t13_a_flush_before_leaving_that_comes_late_does_not_count_for_a_later_one() {
    let mut target = target(2);
    target.subsystem.volatile_write_cache = true;
    let mut fleet = Fleet::new(1, 2, target);
    let writes = |fleet: &mut Fleet, first: u64| {
        for block in 0..4 {
            let io = write(first + block, block);
            let now_ns = fleet.world.now_ns;
            fleet.hosts[0].borrow_mut().submit(&io, now_ns).unwrap();
        }
        assert_eq!(pass(fleet, 5 * MS), 4);
    };
    let remove = Change::RemovePath {
        volume: 0,
        path: P0,
        force: false,
    };
    writes(&mut fleet, 0);
    fleet.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    fleet.ask(remove.clone(), 100 * MS);
    pass(&mut fleet, 200 * MS);
    let why = fleet.answers.remove(0).1.unwrap_err();
    assert!(why.contains("didn't flush"), "{why}");
    // A write of now isn't covered by the flush that is still under way.
    fleet.world.nodes[TARGET].disks[0].delay_ns = 0;
    writes(&mut fleet, 8);
    fleet.world.nodes[TARGET].disks[0].delay_ns = 3 * SECOND;
    fleet.ask(remove, 60 * SECOND);
    pass(&mut fleet, 3 * SECOND);
    assert!(fleet.answers.is_empty(), "{:?}", fleet.answers);
    pass(&mut fleet, 3 * SECOND);
    assert_eq!(fleet.answers.remove(0).1, made(P0));
}

/// Where the queue has room for one command, the flush is what the next I/O waits for.
#[test]
fn what_waits_behind_a_late_flush_before_leaving_goes_on_after_it() {
    let mut target = target(2);
    target.subsystem.volatile_write_cache = true;
    target.subsystem.entries_max = 2;
    let mut fleet = Fleet::new(1, 2, target);
    let all = |fleet: &mut Fleet, io: fn(u64, u64) -> engine::host::Io| {
        let now_ns = fleet.world.now_ns;
        for n in 0..8 {
            let mut host = fleet.hosts[0].borrow_mut();
            host.submit(&io(n, n), now_ns).unwrap();
        }
    };
    all(&mut fleet, write);
    assert_eq!(pass(&mut fleet, 5 * MS), 8);
    fleet.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    let remove = Change::RemovePath {
        volume: 0,
        path: P0,
        force: false,
    };
    fleet.ask(remove, 100 * MS);
    pass(&mut fleet, 200 * MS);
    let why = fleet.answers.remove(0).1.unwrap_err();
    assert!(why.contains("didn't flush"), "{why}");
    fleet.world.nodes[TARGET].disks[0].delay_ns = 0;
    let waited = |it: &Fleet| it.hosts[0].borrow().counters(0, P0).waited_full;
    let before = waited(&fleet);
    all(&mut fleet, read);
    assert_eq!(pass(&mut fleet, 2 * SECOND), 8);
    assert!(waited(&fleet) > before);
}

/// Random changes, lost connections and silences under load, and then peace: every I/O ends once
/// and well, every change is answered once, nothing is in flight, and what was not removed is live.
fn history(seed: u64, cores: u16) {
    let mut fleet = Fleet::new(cores, 2, target(6));
    (0..seed).for_each(|_| {
        fleet.world.next(2);
    });
    fleet.load(0);
    let mut asked = 0;
    for _ in 0..40 {
        let wait_ns = fleet.world.next(20) * MS / 4;
        fleet.load_more(60);
        fleet.run(wait_ns, |_| false);
        let path = PathIndex(fleet.world.next(4) as u8);
        let address = fleet.world.next(6) as u32;
        let force = fleet.world.next(2) == 0;
        let change = match fleet.world.next(9) {
            0..=2 => Change::AddPath(0, Box::new(tcp_path(address))),
            3 | 4 => Change::RemovePath {
                volume: 0,
                path,
                force,
            },
            5 => Change::FailPath(0, path, true),
            6 => Change::RestorePath(0, path),
            7 => Change::DrainPath(0, path, true),
            _ => {
                let core = fleet.world.next(u64::from(cores)) as usize;
                let node = fleet.nodes[core];
                match force {
                    true => fleet.world.cut(node, address),
                    false => fleet.world.mute(node, address),
                }
                continue;
            }
        };
        let wait_ns = fleet.world.next(1000) * MS;
        fleet.ask(change, wait_ns);
        asked += 1;
    }
    let answered = |it: &Fleet| it.answers.len() == asked;
    assert!(fleet.run(30 * SECOND, answered), "seed {seed}: unanswered");
    fleet.run(20 * SECOND, |_| false);
    if fleet.paths().is_empty() {
        fleet.add(0).unwrap();
    }
    for path in fleet.paths() {
        let answer = fleet.change(Change::RestorePath(0, PathIndex(path)));
        let stats = |it: &Rc<RefCell<HostCore>>| it.borrow().hold_stats(0);
        let stats: Vec<_> = fleet.hosts.iter().map(stats).collect();
        let states = fleet.states(PathIndex(path));
        assert!(
            answer.is_ok(),
            "seed {seed}, path {path}: {answer:?} {states:?} {stats:?}"
        );
    }
    fleet.load_more(500);
    fleet.finish();
    assert_eq!(fleet.answers.len(), asked, "each change is answered once");
    let live = |fleet: &Fleet| {
        let paths = fleet.paths();
        let mut states = paths.iter().flat_map(|path| fleet.states(PathIndex(*path)));
        states.all(|state| state == PathState::Live)
    };
    assert!(
        fleet.run(20 * SECOND, live),
        "seed {seed}: {:?}",
        fleet.paths()
    );
    let (count, admin) = (fleet.paths().len(), fleet.connections()[0]);
    assert_eq!(admin, count * 2, "seed {seed}: no connection is left over");
}

#[test]
fn t41_random_histories_of_changes_and_faults_end_in_balance() {
    let seeds = std::env::var("SEED").map_or(0..24, |it| {
        let seed = it.parse().unwrap();
        seed..seed + 1
    });
    for seed in seeds {
        history(seed, (seed % 3) as u16 + 1);
    }
}

#[test]
fn a_read_goes_the_path_that_its_caller_chose_while_the_policy_might() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    let by = |rig: &mut Rig, path, slot| {
        let io = read(slot, slot);
        let now_ns = rig.world.now_ns;
        let hints = engine::host::Hints {
            on: Some(path),
            ..Default::default()
        };
        rig.host
            .borrow_mut()
            .submit_with(&io, hints, now_ns)
            .unwrap();
        assert!(rig.run(SECOND, |_, done| !done.is_empty()));
        let done = rig.done.pop().unwrap();
        assert_eq!(done.outcome, Outcome::Done);
        done.path
    };
    let wanted = [P1, P1, P0, P1, P0, P0];
    let taken = [0, 1, 2, 3, 4, 5].map(|at| by(&mut rig, wanted[at as usize], at));
    assert_eq!(taken, wanted);
    // No path of that number: the policy's choice.
    assert!([P0, P1].contains(&by(&mut rig, PathIndex(7), 6)));
    assert!([P0, P1].contains(&by(&mut rig, PathIndex(200), 7)));
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.world.cut(HOST, 1);
    rig.world.pass(MS);
    let state = rig.host.borrow().path_state(0, P1);
    assert_ne!(state, PathState::Live);
    assert_eq!(by(&mut rig, P1, 8), P0);
}
