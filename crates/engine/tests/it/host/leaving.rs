//! Paths and volumes that are to leave: those that can't are what they were before, and an engine
//! that stops meanwhile neither hangs nor loses anything.

use crate::common::*;
use engine::host::{Change, HostControl, HostEvent, IoOp, PathNews, PathState, Recovery, What};
use engine::target::TargetControl;
use engine::{DeviceOp, Machine};
use multipath::Outcome;

fn remove(path: policy::PathIndex) -> Change {
    Change::RemovePath {
        volume: 0,
        path,
        force: false,
    }
}

/// Why a change that may take so long was refused.
fn refusal(fleet: &mut Fleet, change: Change, wait_ns: u64) -> String {
    let ticket = fleet.ask(change, wait_ns);
    let of = |it: &Fleet| it.answers.iter().position(|(of, _)| *of == ticket);
    assert!(fleet.run(10 * SECOND, |it| of(it).is_some()), "no answer");
    let at = of(fleet).unwrap();
    fleet.answers.remove(at).1.unwrap_err()
}

fn shape(fleet: &mut Fleet, delay_ns: u64) {
    let shape = shape::Config {
        delay_ns,
        ..Default::default()
    };
    let now_ns = fleet.world.now_ns;
    let mut target = fleet.target.borrow_mut();
    target.handle_control(TargetControl::Shape(0, shape), now_ns);
}

#[test]
fn a_path_that_was_draining_and_cannot_leave_is_draining_again() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 2, target(2));
        fleet.load(300);
        for load in &mut fleet.loads {
            load.writes = |_| false;
        }
        shape(&mut fleet, 8 * SECOND);
        fleet.run(MS, |_| false);
        let why = refusal(&mut fleet, Change::DrainPath(0, P0, true), MS);
        assert!(why.contains("it stays draining"), "{why}");
        for _ in 0..2 {
            let why = refusal(&mut fleet, remove(P0), 100 * MS);
            assert!(why.contains("it is draining again"), "{why}");
            fleet.run(MS, |_| false);
            let all = vec![PathState::Draining; cores.into()];
            assert_eq!(fleet.states(P0), all);
        }
        shape(&mut fleet, 0);
        fleet.load_more(300);
        fleet.finish();
        let ios = fleet.ios(P0);
        fleet.load_more(300);
        fleet.finish();
        assert_eq!(fleet.ios(P0), ios, "it gets nothing new");
        assert!(fleet.change(Change::RestorePath(0, P0)).is_ok());
        fleet.load_more(300);
        fleet.finish();
        assert!(fleet.ios(P0) > ios);
    }
}

#[test]
fn t13_one_that_is_lost_before_it_has_flushed_comes_back_as_what_it_was() {
    for (drained, state) in [(true, PathState::Draining), (false, PathState::Live)] {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let mut fleet = Fleet::new(1, 2, config);
        fleet.load(100);
        fleet.finish();
        if drained {
            fleet.change(Change::DrainPath(0, P0, true)).unwrap();
        }
        fleet.world.nodes[TARGET].disks[0].delay_ns = SECOND;
        let ticket = fleet.ask(remove(P0), 5 * SECOND);
        fleet.run(100 * MS, |_| false);
        fleet.world.cut(HOST, 0);
        fleet.run(10 * MS, |_| false);
        let (of, answer) = fleet.answers.remove(0);
        let why = answer.unwrap_err();
        assert!(of == ticket && why.contains("never flushed"), "{why}");
        fleet.world.nodes[TARGET].disks[0].delay_ns = 0;
        fleet.run(2 * SECOND, |_| false);
        assert_eq!(fleet.states(P0), [state]);
    }
}

/// The order to close its queue, which core 0 gives once the controller has flushed, finds the path
/// lost on core 1.
#[test]
fn t13_one_that_has_flushed_and_is_then_lost_on_another_core_fails_no_flush() {
    let mut config = target(2);
    config.subsystem.volatile_write_cache = true;
    let mut fleet = Fleet::new(2, 2, config);
    fleet.load(100);
    fleet.finish();
    fleet.loads.clear();
    let ticket = fleet.ask(remove(P0), 5 * SECOND);
    let closes = |event: &HostEvent| match event {
        HostEvent::Publish(PathNews::Order(order)) => matches!(order.what, What::CloseQueue(_)),
        _ => false,
    };
    let host = fleet.hosts[0].clone();
    let order = loop {
        let event = host.borrow_mut().poll_event();
        match event {
            Some(event) if closes(&event) => break event,
            Some(event) => fleet.pass_on(event),
            None => {
                while let Some(event) = { fleet.hosts[1].borrow_mut().poll_event() } {
                    fleet.pass_on(event);
                }
                fleet.world.pass(MS / 10);
            }
        }
    };
    fleet.world.cut(fleet.nodes[1], 0);
    fleet.world.pass(MS);
    assert_eq!(fleet.connections()[1], 1);
    fleet.pass_on(order);
    fleet.until_freed(P0);
    let (of, answer) = fleet.answers.remove(0);
    assert_eq!((of, answer.map(|it| it.path)), (ticket, Ok(Some(P0))));
    for core in 0..2 {
        let end = fleet.one(core, &io(IoOp::Flush, 9, 0, 0), 100 * SECOND);
        assert_eq!(end, Some(Outcome::Done), "core {core}");
    }
}

/// Writes that an engine before this one left in a controller's cache any core's flush covers: for
/// all.
#[test]
fn t13_what_one_core_has_flushed_of_an_engine_before_is_in_doubt_on_no_core() {
    for core in 0..3 {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let inherits = |it: &mut Recovery| it.unclean_stop_ns = Some(0);
        let mut fleet = Fleet::with(3, 2, config, inherits);
        let flush = io(IoOp::Flush, 9, 0, 0);
        assert_eq!(fleet.one(core, &flush, SECOND), Some(Outcome::Done));
        fleet.run(MS, |_| false);
        for node in fleet.nodes.clone() {
            fleet.world.nodes[node].addresses[0] = Address::Refused;
            fleet.world.cut(node, 0);
        }
        fleet.run(100 * MS, |_| false);
        assert!(fleet.change(remove(P0)).is_ok(), "core {core}");
        for core in 0..3 {
            let end = fleet.one(core, &flush, 100 * SECOND);
            assert_eq!(end, Some(Outcome::Done), "core {core}");
        }
    }
}

/// By force it leaves all the same, and that is told like any loss.
#[test]
fn t13_one_that_is_just_coming_back_leaves_with_what_it_had_not_flushed() {
    for cores in 1..=3 {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let mut fleet = Fleet::new(cores, 2, config);
        fleet.load(100);
        fleet.finish();
        fleet.loads.clear();
        for node in fleet.nodes.clone() {
            fleet.world.nodes[node].addresses[0] = Address::Silence;
            fleet.world.cut(node, 0);
        }
        // Its connections are being opened, and nobody answers.
        let opening = |it: &Fleet| it.states(P0)[0] == PathState::Reconnecting;
        assert!(fleet.run(SECOND, opening));
        fleet.run(200 * MS, |_| false);
        assert_eq!(fleet.connections()[0], 3);
        let why = fleet.remove(P0, false).unwrap_err();
        assert!(why.contains("never flushed"), "{why}");
        fleet.remove(P0, true).unwrap();
        fleet.until_freed(P0);
        for core in 0..cores.into() {
            let flush = io(IoOp::Flush, 9, 0, 0);
            let end = fleet.one(core, &flush, 100 * SECOND);
            assert_eq!(end, Some(Outcome::PathError), "core {core}");
            let end = fleet.one(core, &flush, 100 * SECOND);
            assert_eq!(end, Some(Outcome::Done), "core {core}: once");
        }
    }
}

#[test]
fn t13_what_left_unflushed_before_a_stop_is_the_next_engines_to_flush() {
    for flushed in [false, true] {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let mut fleet = Fleet::new(1, 2, config);
        fleet.load(100);
        fleet.finish();
        fleet.loads.clear();
        fleet.change(Change::FailPath(0, P0, true)).unwrap();
        fleet.remove(P0, true).unwrap();
        fleet.until_freed(P0);
        if flushed {
            let end = fleet.one(0, &io(IoOp::Flush, 9, 0, 0), 100 * SECOND);
            assert_eq!(end, Some(Outcome::PathError));
        }
        let now_ns = fleet.world.now_ns;
        let host = fleet.hosts[0].clone();
        host.borrow_mut().handle_control(HostControl::Stop, now_ns);
        assert!(fleet.run(10 * SECOND, |it| it.world.nodes[it.nodes[0]].stopped));
        fleet.run(MS, |_| false);
        let left = |event: &HostEvent| matches!(event, HostEvent::Unflushed(0, _));
        assert_eq!(fleet.events[0].iter().any(left), !flushed);
    }
}

/// An I/O that can't be placed any more does not use up the time to drain.
#[test]
fn t09_a_stop_while_a_volume_leaves_by_force_waits_for_its_held_writes_and_no_longer() {
    for cores in 1..=2 {
        let mut fleet = Fleet::new(cores, 2, target(2));
        fleet.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
        let now_ns = fleet.world.now_ns;
        for host in &fleet.hosts {
            for io in [write(0, 0), write(1, 1), read(2, 2)] {
                host.borrow_mut().submit(&io, now_ns).unwrap();
            }
        }
        fleet.world.pass(MS);
        for node in fleet.nodes.clone() {
            fleet.world.nodes[node].addresses.fill(Address::Refused);
            (0..2).for_each(|path| fleet.world.cut(node, path));
        }
        fleet.world.pass(MS);
        fleet.ask(Change::RemoveVolume(0), SECOND);
        let (begun_ns, drain_ns) = (fleet.world.now_ns, 20 * SECOND);
        let mut ends = Vec::new();
        let mut told = false;
        while fleet.world.now_ns < begun_ns + 2 * drain_ns {
            fleet.world.pass(MS);
            for core in 0..fleet.hosts.len() {
                while let Some(event) = { fleet.hosts[core].borrow_mut().poll_event() } {
                    match event {
                        HostEvent::Done(done) => ends.push((done.cookie, done.outcome)),
                        HostEvent::Unfinished { .. } => panic!("{event:?}"),
                        event => fleet.pass_on(event),
                    }
                }
            }
            if !told && fleet.world.now_ns > begun_ns + 100 * MS {
                told = true;
                for host in fleet.hosts.iter().rev() {
                    let now_ns = fleet.world.now_ns;
                    let mut host = host.borrow_mut();
                    host.handle_control(HostControl::Drain(drain_ns), now_ns);
                    host.handle_control(HostControl::Stop, now_ns);
                }
            }
            if fleet.nodes.iter().all(|&it| fleet.world.nodes[it].stopped) {
                break;
            }
        }
        let took_ns = fleet.world.now_ns - begun_ns;
        let soon = HELD_NS - 10 * MS..HELD_NS + 500 * MS;
        assert!(soon.contains(&took_ns), "{took_ns}");
        assert_eq!(ends.len(), 3 * usize::from(cores), "{ends:?}");
        assert!(ends.iter().all(|(_, it)| *it == Outcome::Stopped));
        assert_eq!(fleet.answers.len(), 1, "whoever asked is answered");
    }
}

/// A path of a mirror's leg leaves before the mirror knows whether the owner before it stopped in
/// order: its controller flushes as it leaves, or what it may have is in doubt if that one did not.
#[test]
fn t13_what_leaves_a_leg_before_its_mirror_is_claimed_is_flushed_or_in_doubt() {
    for (cores, there, unclean) in [
        (1, false, true),
        (2, false, true),
        (2, false, false),
        (1, true, true),
        (2, true, true),
    ] {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let mut fleet = Fleet::new(cores, 2, config);
        let log = fleet.world.nodes[TARGET].disks[0].log.clone();
        *log.borrow_mut() = Some(Vec::new());
        let core = usize::from(cores) - 1;
        let owner = fleet.hosts[core].clone();
        for host in &fleet.hosts[..core] {
            host.borrow_mut().set_leg(0, false);
        }
        owner.borrow_mut().set_leg(0, true);
        if !there {
            for node in fleet.nodes.clone() {
                fleet.world.nodes[node].addresses[0] = Address::Refused;
                fleet.world.cut(node, 0);
            }
            fleet.run(100 * MS, |_| false);
        }
        let removed = fleet.change(remove(P0));
        assert_eq!(removed.is_ok(), there, "{cores} {removed:?}");
        if let Err(why) = removed {
            assert!(why.contains("owner before"), "{why}");
            let forced = Change::RemovePath {
                volume: 0,
                path: P0,
                force: true,
            };
            assert!(fleet.change(forced).is_ok(), "{cores}");
        }
        fleet.until_freed(P0);
        let executed = log.borrow_mut().take().unwrap_or_default();
        let flushes = executed.iter().filter(|it| it.0.op == DeviceOp::Flush);
        assert_eq!(flushes.count(), usize::from(there), "{cores}");
        owner.borrow_mut().inherit(0, unclean);
        let flush = io(IoOp::Flush, 9, 0, 0);
        let first = match !there && unclean {
            true => Outcome::PathError,
            false => Outcome::Done,
        };
        for outcome in [first, Outcome::Done] {
            let end = fleet.one(core, &flush, 100 * SECOND);
            assert_eq!(end, Some(outcome), "{cores} {there} {unclean}");
        }
    }
}
