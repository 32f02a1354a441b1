//! I/Os that outlive `io_timeout`: aborted, and if that doesn't help the path is lost (T12).

use crate::common::*;
use engine::host::{
    Hints, HostConfig, HostControl, HostEvent, Io, IoOp, PathCounters, PathEvent, PathNews,
    PathState,
};
use engine::target::{Faults, Probability, TargetControl};
use multipath::Outcome;
use policy::PathIndex;

/// Two paths, an `io_timeout` of 10 s.
fn rig_and(change: impl FnOnce(&mut HostConfig)) -> Rig {
    rig_of(2, |host, _| change(host))
}

fn hang() -> Faults {
    Faults {
        hang_rate: Probability::ALWAYS,
        ..Faults::default()
    }
}

fn faults(rig: &mut Rig, port: u16, faults: Faults) {
    rig.target_control(TargetControl::Faults(port, faults));
}

fn counters(rig: &Rig, path: PathIndex) -> PathCounters {
    rig.host.borrow().counters(0, path)
}

fn warnings(events: &[HostEvent]) -> Vec<&str> {
    let lines = events.iter().filter_map(|event| match event {
        HostEvent::Warning(0, line) => Some(line.as_str()),
        _ => None,
    });
    lines.collect()
}

/// A path on which it hangs for now, the other one, and the I/O's end.
fn hung(rig: &mut Rig, io: &Io) -> (PathIndex, PathIndex, engine::host::IoDone) {
    (0..2).for_each(|port| faults(rig, port, hang()));
    rig.submit(io).unwrap();
    rig.world.pass(MS);
    (0..2).for_each(|port| faults(rig, port, Faults::default()));
    let in_flight = rig.host.borrow().in_flight(0, P0);
    let (path, other) = if in_flight > 0 { (P0, P1) } else { (P1, P0) };
    assert!(rig.run(13 * SECOND, |_, done| done.len() == 1));
    (path, other, rig.done.remove(0))
}

#[test]
fn t12_a_command_that_hangs_is_aborted_and_its_path_lives_on() {
    for io in [
        read(0, 0),
        write(0, 0),
        io(IoOp::WriteZeroes { deallocate: false }, 0, BLOCK, 0),
        io(IoOp::Deallocate, 0, BLOCK, 0),
    ] {
        let mut rig = rig_and(|_| ());
        let (path, other, done) = hung(&mut rig, &io);
        assert_eq!((done.outcome, done.path), (Outcome::Done, other), "{io:?}");
        // Once aborted it is not executed: nothing is held (T9).
        let soon = 10 * SECOND..10 * SECOND + 5 * MS;
        assert!(soon.contains(&done.latency_ns), "{io:?}: {done:?}");
        let stats = rig.host.borrow().hold_stats(0);
        assert_eq!((stats.held_total, stats.moved_total), (0, 1), "{io:?}");
        let of = counters(&rig, path);
        assert_eq!((of.timed_out, of.aborted, of.errors), (1, 1, 1));
        assert_eq!([P0, P1].map(|path| state(&rig, path)), [PathState::Live; 2]);
        assert_eq!(rig.failures(), [""; 0]);
        let uri = format!("nvme-tcp://p{}/{NQN}", path.0);
        let line = format!(
            "v0: path {uri}: no answer to an I/O within 10 s: aborted, and tried elsewhere; see \
             the target"
        );
        assert_eq!(warnings(&rig.events), [line]);
        at_rest(&rig, 2);
        // The path takes I/O as before.
        let mut load = Load::new(200, 8, BLOCK);
        rig.load(&mut load, SECOND);
        assert_eq!(load.errors(), 0);
    }
}

/// A mirror has another leg to read from; a path of this one that was not tried is tried first.
#[test]
fn t12_a_read_of_what_is_elsewhere_too_is_asked_of_each_path_once() {
    for (ports, elsewhere, ends_s) in [(1, true, 10), (2, true, 20), (1, false, 60)] {
        let mut rig = rig_of(ports, |host, _| {
            host.volumes[0].recovery.attempts_ns = 55 * SECOND;
        });
        for port in 0..ports {
            faults(&mut rig, port as u16, hang());
        }
        let hints = Hints {
            elsewhere,
            ..Hints::default()
        };
        let now_ns = rig.world.now_ns;
        let submitted = rig
            .host
            .borrow_mut()
            .submit_with(&read(0, 0), hints, now_ns);
        assert_eq!(submitted, Ok(()));
        assert!(rig.run(100 * SECOND, |_, done| done.len() == 1));
        let done = rig.done.remove(0);
        assert_eq!(done.outcome, Outcome::TimedOut);
        let soon = ends_s * SECOND..(ends_s + 1) * SECOND;
        assert!(
            soon.contains(&done.latency_ns),
            "{ports} {elsewhere} {done:?}"
        );
    }
}

#[test]
fn t12_a_flush_that_hangs_is_repeated_where_it_must_be() {
    let mut rig = rig_of(2, |_, target| target.subsystem.volatile_write_cache = true);
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    faults(&mut rig, 0, hang());
    rig.submit(&io(IoOp::Flush, 0, 0, 3)).unwrap();
    rig.world.pass(MS);
    faults(&mut rig, 0, Faults::default());
    assert!(rig.run(11 * SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done.remove(0).outcome, Outcome::Done);
    let flushes = [P0, P1].map(|path| counters(&rig, path).ios[2]);
    assert_eq!((flushes, counters(&rig, P0).aborted), ([1, 1], 1));
}

#[test]
fn t09_what_a_device_has_is_never_taken_back_and_may_be_done_after_all() {
    for (late_ns, lives) in [(11 * SECOND, true), (14 * SECOND, false)] {
        for io in [write(0, 0), read(0, 0)] {
            let mut rig = rig_and(|_| ());
            rig.world.nodes[TARGET].disks[0].delay_ns = late_ns;
            rig.submit(&io).unwrap();
            rig.world.pass(MS);
            rig.world.nodes[TARGET].disks[0].delay_ns = 0;
            let path = PathIndex(u8::from(rig.host.borrow().in_flight(0, P1) > 0));
            rig.world.pass(late_ns - SECOND / 2);
            rig.poll();
            assert_eq!(state(&rig, path) == PathState::Live, lives, "{io:?}");
            assert!(rig.run(10 * SECOND, |_, done| done.len() == 1), "{io:?}");
            assert_eq!(rig.done.remove(0).outcome, Outcome::Done);
            let of = counters(&rig, path);
            assert_eq!((of.timed_out, of.aborted), (1, 0), "{io:?}");
            assert_eq!(rig.failures().is_empty(), lives, "{:?}", rig.failures());
            let write = matches!(io.op, IoOp::Write { .. });
            let held = rig.host.borrow().hold_stats(0).held_total;
            assert_eq!(held > 0, write && !lives, "{io:?}");
            at_rest(&rig, 2);
        }
    }
}

#[test]
fn t12_an_abort_that_nobody_answers_costs_the_path_after_a_stated_time() {
    let mut rig = rig_and(|host| host.kato_ms = 0);
    for port in 0..2 {
        rig.world.mute(HOST, port);
    }
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(12 * SECOND - MS);
    rig.poll();
    assert_eq!(rig.failures(), [""; 0]);
    rig.world.pass(2 * MS);
    rig.poll();
    let [line] = rig.failures()[..] else {
        panic!("{:?}", rig.failures())
    };
    assert!(
        line.contains("no answer to an I/O within 10000 ms"),
        "{line}"
    );
}

/// Neither the Abort nor the reset after it is answered, and there is no keep-alive to notice: the
/// core sleeps until the time of the reset is over (a spin would be seen by the world).
#[test]
fn t12_a_core_sleeps_while_neither_abort_nor_reset_are_answered() {
    let mut rig = rig_and(|host| host.kato_ms = 0);
    for port in 0..2 {
        rig.world.mute(HOST, port);
    }
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(17 * SECOND);
    rig.poll();
    let [line] = rig.failures()[..] else {
        panic!("{:?}", rig.failures())
    };
    assert!(line.contains("no answer to an I/O"), "{line}");
}

/// One stuck command is one command; many are the controller.
#[test]
fn t12_several_are_aborted_and_many_are_not() {
    for (count, lives) in [(4, true), (5, false), (40, false)] {
        let mut rig = rig_of(1, |_, _| ());
        faults(&mut rig, 0, hang());
        for n in 0..count {
            rig.submit(&read(n, n)).unwrap();
        }
        rig.world.pass(MS);
        faults(&mut rig, 0, Faults::default());
        let all = count as usize;
        assert!(rig.run(12 * SECOND, |_, done| done.len() == all));
        assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
        assert_eq!(rig.failures().is_empty(), lives, "{count}");
        let of = counters(&rig, P0);
        assert_eq!(of.timed_out, count);
        assert_eq!(of.aborted, if lives { count } else { 0 });
        assert!(warnings(&rig.events).len() <= 1, "said once");
        at_rest(&rig, 1);
    }
}

/// Orders of events: the answer to the Abort first or the command's own end, the answer lost, the
/// path lost between them. Whatever does, no write is lost and nothing is counted twice (T41).
#[test]
fn t09_t11_t12_t41_hanging_commands_of_all_kinds_lose_nothing() {
    for seed in 0..12_u64 {
        let mut rig = rig_of(2, |host, target| {
            host.io_timeout_ns = 200 * MS;
            host.kato_ms = 100;
            host.volumes[0].recovery.quiesce_ns = 100 * MS;
            host.volumes[0].recovery.reconnect_max_ns = SECOND;
            target.seed = seed;
        });
        let rate = Probability::new(10_000_000).unwrap(); // 1 %
        for port in 0..2 {
            let with = Faults {
                hang_rate: rate,
                ..Faults::default()
            };
            faults(&mut rig, port, with);
        }
        let mut load = Load::new(12_000, 16, BLOCK);
        load.writes = |n| n % 3 != 0;
        let mut random = Random::new(seed);
        while !load.is_over() {
            let next = load.ended + 1000;
            assert!(
                rig.load_until(&mut load, 60 * SECOND, next),
                "{}",
                load.ended
            );
            match random.below(6) {
                0 => rig.world.cut(HOST, (next / 1000 % 2) as u32),
                1 => rig.world.cut_queue(HOST, (next / 1000 % 2) as u32),
                _ => {}
            }
        }
        assert_eq!(load.errors(), 0, "{seed}");
        assert!(load.verified > 0);
        let aborted: u64 = [P0, P1]
            .map(|path| counters(&rig, path).aborted)
            .iter()
            .sum();
        assert!(aborted > 10, "{seed}: {aborted}");
        rig.world.pass(5 * SECOND);
        at_rest(&rig, 2);
    }
}

/// More than the controller takes at a time: the next goes out when one was answered.
#[test]
fn t12_each_of_many_cores_may_have_a_command_that_hangs() {
    use engine::Machine;
    let mut target = target(1);
    target.subsystem.io_queues_max = 8;
    let mut fleet = Fleet::new(8, 1, target);
    let set = |fleet: &mut Fleet, of: Faults| {
        let now_ns = fleet.world.now_ns;
        let message = TargetControl::Faults(0, of);
        fleet.target.borrow_mut().handle_control(message, now_ns);
    };
    set(&mut fleet, hang());
    fleet.load(1);
    fleet.run(MS, |_| false);
    set(&mut fleet, Faults::default());
    let over = |it: &Fleet| it.loads.iter().all(Load::is_over);
    assert!(fleet.run(10 * SECOND + 100 * MS, over), "at io_timeout");
    assert!(fleet.loads.iter().all(|load| load.errors() == 0));
    fleet.at_rest();
    for host in &fleet.hosts {
        assert_eq!(host.borrow().counters(0, P0).aborted, 1);
    }
    assert_eq!(fleet.states(P0), [PathState::Live; 8]);
}

#[test]
fn t12_core_0_aborts_for_the_others() {
    let mut fleet = Fleet::new(3, 2, target(2));
    let set = |fleet: &mut Fleet, of: Faults| {
        for port in 0..2 {
            let message = TargetControl::Faults(port, of.clone());
            let now_ns = fleet.world.now_ns;
            use engine::Machine;
            fleet.target.borrow_mut().handle_control(message, now_ns);
        }
    };
    set(&mut fleet, hang());
    fleet.load(1);
    fleet.run(MS, |_| false);
    set(&mut fleet, Faults::default());
    let over = |it: &Fleet| it.loads.iter().all(Load::is_over);
    assert!(!over(&fleet));
    fleet.run(9 * SECOND, |_| false);
    assert!(fleet.run(1100 * MS, over), "at io_timeout");
    assert!(fleet.loads.iter().all(|load| load.errors() == 0));
    fleet.at_rest();
    for (core, host) in fleet.hosts.iter().enumerate() {
        let of = [P0, P1].map(|path| host.borrow().counters(0, path));
        assert_eq!(
            of.iter().map(|of| of.aborted).sum::<u64>(),
            1,
            "core {core}"
        );
    }
    for path in [P0, P1] {
        assert_eq!(fleet.states(path), [PathState::Live; 3]);
    }
}

#[test]
fn a_stop_does_not_wait_for_what_hangs() {
    let mut rig = rig_and(|_| ());
    (0..2).for_each(|port| faults(&mut rig, port, hang()));
    rig.submit(&read(0, 0)).unwrap();
    rig.submit(&write(1, 1)).unwrap();
    rig.world.pass(10 * SECOND + MS / 2);
    rig.control(HostControl::Drain(SECOND));
    rig.control(HostControl::Stop);
    let stopped = rig
        .world
        .run(10 * SECOND, |world| world.nodes[HOST].stopped);
    assert!(stopped);
    rig.poll();
    let ends: Vec<_> = rig.done.iter().map(|done| done.outcome).collect();
    assert_eq!(ends, [Outcome::Stopped; 2]);
}

/// As core 0 hears it from the controllers, which activate firmware for so long.
fn pause(rig: &mut Rig, for_ns: u64) {
    let until_ns = rig.world.now_ns + for_ns;
    for path in [P0, P1] {
        let news = PathNews::Of(0, path, PathEvent::Paused(until_ns));
        rig.control(HostControl::Path(news));
    }
}

#[test]
fn t30_while_firmware_is_activated_no_io_is_late_and_afterwards_it_is_again() {
    let mut rig = rig_and(|_| ());
    let stalled = shape::Config {
        stall_until_ns: rig.world.now_ns + 50 * SECOND,
        ..shape::Config::default()
    };
    for port in 0..2 {
        rig.target_control(TargetControl::Shape(port, stalled));
    }
    pause(&mut rig, 55 * SECOND);
    let end = rig.one(&write(0, 0), 60 * SECOND);
    assert_eq!(end.outcome, Outcome::Done);
    assert!(end.latency_ns > 49 * SECOND, "{}", end.latency_ns);
    assert_eq!([P0, P1].map(|path| state(&rig, path)), [PathState::Live; 2]);
    assert_eq!([P0, P1].map(|path| counters(&rig, path).timed_out), [0; 2]);
    // A command that is never done has its time from the end of the pause on.
    pause(&mut rig, 20 * SECOND);
    (0..2).for_each(|port| faults(&mut rig, port, hang()));
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(MS);
    (0..2).for_each(|port| faults(&mut rig, port, Faults::default()));
    assert!(rig.run(40 * SECOND, |_, done| done.len() == 1));
    let end = rig.done.remove(0);
    assert_eq!(end.outcome, Outcome::Done);
    assert_eq!(end.latency_ns / SECOND, 30, "{}", end.latency_ns);
    at_rest(&rig, 2);
}
