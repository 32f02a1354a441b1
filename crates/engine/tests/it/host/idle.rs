//! Paths that look alive: I/O connections that were forgotten on the way while they rested, and
//! paths that lose only what is large.

use crate::common::*;
use engine::host::{HostControl, HostEvent, PathEvent, PathNews, PathState};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use engine::{Machine, Span};
use multipath::Outcome;
use multipath::health::Limits;
use nvme::wire::Status;
use policy::{PathIndex, Policy};

const SCRATCH: Span = Span {
    at: 7 << 20,
    len: 64 << 10,
};

fn rig(paths: u32, policy: Policy, idle_ns: u64) -> Rig {
    rig_of(paths, |host, target| {
        for shape in &mut target.shapes {
            shape.delay_ns = MS;
        }
        host.scratch = SCRATCH;
        host.volumes[0].policy = policy;
        host.volumes[0].recovery.health = Limits {
            idle_ns,
            ..Limits::default()
        };
    })
}

/// The same with an `io_timeout` of 30 s, and probes of idle paths after 10 s.
fn patient(paths: u32, policy: Policy) -> Rig {
    rig_of(paths, |host, _| {
        host.scratch = SCRATCH;
        (host.io_timeout_ns, host.kato_ms) = (30 * SECOND, 5_000);
        host.volumes[0].policy = policy;
        host.volumes[0].recovery.health = Limits::default();
    })
}

/// Whether a path of the first volume has failed for this reason.
fn has_failed(event: &HostEvent, why: &str) -> bool {
    matches!(event, HostEvent::Failed(0, line) if line.contains(why))
}

/// Whether the first volume has warned of this.
fn has_warned(event: &HostEvent, what: &str) -> bool {
    match event {
        HostEvent::Warning(0, line) | HostEvent::Trouble(0, line) => line.contains(what),
        _ => false,
    }
}

/// All ports do no I/O for so long; their admin connections answer.
fn stall(rig: &mut Rig, ports: u16, for_ns: u64) {
    let config = shape::Config {
        delay_ns: MS,
        stall_until_ns: rig.world.now_ns + for_ns,
        ..Default::default()
    };
    for port in 0..ports {
        rig.target_control(TargetControl::Shape(port, config));
    }
}

const POLICIES: [Policy; 5] = [
    Policy::RoundRobin { bytes: 0 },
    Policy::QueueDepth,
    Policy::WEIGHTED_LATENCY,
    Policy::Soonest,
    Policy::Numa,
];

/// Without a probe the first read would wait for `io_timeout` on each path in turn.
#[test]
fn t12_idle_queues_that_were_forgotten_are_renewed() {
    for policy in POLICIES {
        let mut rig = rig(4, policy, 10 * SECOND);
        for n in 0..8 {
            rig.one(&read(n, n), SECOND);
        }
        for path in 0..4 {
            rig.world.mute_queue(HOST, path);
        }
        rig.world.pass(20 * SECOND);
        rig.poll();
        assert_eq!(returned(&rig.events), 4, "{policy}: {:?}", rig.events);
        for n in 0..4 {
            let start_ns = rig.world.now_ns;
            assert_eq!(rig.one(&read(n, n), SECOND).outcome, Outcome::Done);
            assert!(rig.world.now_ns - start_ns < 100 * MS, "{policy}");
        }
        at_rest(&rig, 4);
    }
}

/// One path of two answers nothing: it is found out though no I/O goes there, and while its probe
/// is late the other one is chosen.
#[test]
fn t12_standby_whose_queue_was_forgotten_is_no_standby() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 }, 10 * SECOND);
    rig.world.mute_queue(HOST, 0);
    rig.world.pass(10 * SECOND + 600 * MS);
    rig.poll();
    assert_eq!(state(&rig, P0), PathState::Probation);
    for n in 0..4 {
        let done = rig.one(&read(n, n), 100 * MS);
        assert_eq!((done.outcome, done.path), (Outcome::Done, P1));
    }
    let lost = |event: &HostEvent| has_failed(event, "not even a probe");
    assert!(rig.run(5 * SECOND, |events, _| events.iter().any(lost)));
    until_returned(&mut rig, 5 * SECOND);
    // A probe that was aborted is no I/O.
    let said = |event: &HostEvent| has_warned(event, "tried elsewhere");
    assert!(!rig.events.iter().any(said), "{:?}", rig.events);
    let counters = rig.host.borrow().counters(0, P0);
    assert_eq!((counters.aborted, counters.timed_out), (0, 0));
}

/// The storage behind all paths answers nothing for a while, just when they are probed.
#[test]
fn stall_of_all_idle_paths_blames_none() {
    for policy in POLICIES {
        let mut rig = rig(4, policy, 10 * SECOND);
        for n in 0..8 {
            rig.one(&read(n, n), SECOND);
        }
        rig.world.pass(9 * SECOND);
        stall(&mut rig, 4, 5 * SECOND);
        rig.world.pass(10 * SECOND);
        rig.poll();
        assert_eq!(returned(&rig.events), 0, "{policy}: {:?}", rig.events);
        for path in 0..4 {
            let tally = rig
                .host
                .borrow()
                .path_report(0, PathIndex(path), 0)
                .health
                .tally;
            assert_eq!(tally.times, 0, "{policy} {path}");
        }
        at_rest(&rig, 4);
    }
}

/// A path alone with an I/O has `io_timeout`, whatever became of its probe.
#[test]
fn only_path_with_io_outlives_its_probes_time() {
    let mut rig = rig(1, Policy::QueueDepth, 10 * SECOND);
    rig.one(&read(0, 0), SECOND);
    rig.world.pass(9 * SECOND);
    stall(&mut rig, 1, 10 * SECOND);
    rig.world.pass(2 * SECOND);
    let done = rig.one(&read(1, 1), 9 * SECOND);
    assert_eq!(done.outcome, Outcome::Done);
    rig.poll();
    assert_eq!(returned(&rig.events), 0, "{:?}", rig.events);
}

/// The first block takes long and no Abort helps: paths that end other I/O keep their connections.
#[test]
fn t12_paths_that_end_io_outlive_their_probes() {
    let mut rig = patient(4, Policy::RoundRobin { bytes: 0 });
    for n in 0..4 {
        rig.one(&read(n, n), SECOND);
    }
    rig.world.pass(9 * SECOND);
    rig.world.nodes[TARGET].disks[0].delay_ns = 20 * SECOND;
    rig.world.pass(2 * SECOND);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.pass(5 * SECOND); // all probes are aborted
    for n in 0..16 {
        (0..8).for_each(|slot| rig.submit(&read(n, slot)).unwrap());
        rig.world.pass(200 * MS);
        rig.poll();
        let done = rig.done.drain(..).filter(|it| it.outcome == Outcome::Done);
        assert_eq!(done.count(), 8);
    }
    rig.world.pass(20 * SECOND);
    rig.poll();
    assert_eq!(rig.failures(), [""; 0]);
    assert_eq!(returned(&rig.events), 0, "{:?}", rig.events);
    at_rest(&rig, 4);
}

/// The first block always takes longer than probes have: paths are connected anew once, one after
/// the other, and then the probes wait for it.
#[test]
fn t12_slow_first_block_renews_no_path_again_and_again() {
    let mut rig = patient(4, Policy::QueueDepth);
    rig.world.nodes[TARGET].disks[0].delay_ns = 9 * SECOND;
    let until_ns = rig.world.now_ns + 300 * SECOND;
    while rig.world.now_ns < until_ns {
        rig.world.pass(20 * MS);
        let live = (0..4).filter(|&path| state(&rig, PathIndex(path)) == PathState::Live);
        let live = live.count();
        rig.poll();
        assert!(
            live >= 3,
            "{live} at {}: {:?}",
            rig.world.now_ns / MS,
            rig.events
        );
    }
    rig.poll();
    assert!(returned(&rig.events) <= 4, "{:?}", rig.events);
    for path in 0..4 {
        let tally = rig
            .host
            .borrow()
            .path_report(0, PathIndex(path), 0)
            .health
            .tally;
        assert_eq!(tally.times, 0, "{path}");
    }
}

/// One path of three is probed when the others need not be yet.
#[test]
fn path_probed_alone_is_judged_by_others_probes() {
    for all in [true, false] {
        let mut rig = patient(3, Policy::Numa);
        rig.world.pass(5 * SECOND);
        assert_eq!(rig.one(&read(0, 0), SECOND).path, P0);
        rig.world.pass(9 * SECOND);
        if all {
            stall(&mut rig, 3, 5 * SECOND);
        } else {
            rig.world.mute_queue(HOST, 0);
        }
        rig.world.pass(2 * SECOND);
        let times = |path| rig.host.borrow().path_report(0, path, 0).health.tally.times;
        assert_eq!(times(P0), u32::from(!all), "{all}");
        assert_eq!(times(P1), 0, "{all}");
        rig.world.pass(8 * SECOND);
        rig.poll();
        assert_eq!(returned(&rig.events), usize::from(!all), "{:?}", rig.events);
    }
}

/// With nothing but the probe under way it is connected anew, and is not to blame.
#[test]
fn only_path_that_rests_is_renewed_without_blame() {
    let mut rig = rig(1, Policy::QueueDepth, 10 * SECOND);
    rig.one(&read(0, 0), SECOND);
    for times in 1..4 {
        rig.world.mute_queue(HOST, 0);
        rig.world.pass(19 * SECOND);
        rig.poll();
        assert_eq!(returned(&rig.events), times, "{:?}", rig.events);
        rig.world.pass(11 * SECOND); // a probe is answered
    }
    let tally = rig.host.borrow().path_report(0, P0, 0).health.tally;
    assert_eq!(tally.times, 0);
}

fn resting_fleet() -> Fleet {
    let mut fleet = Fleet::of(3, 2, target(2), |host| {
        host.scratch = SCRATCH;
        host.volumes[0].recovery.health = Limits {
            idle_ns: 10 * SECOND,
            ..Limits::default()
        };
    });
    fleet.run(SECOND, |_| false);
    fleet
}

/// One core connects its resting paths anew, and the others hear that it is only that.
#[test]
fn renewal_on_one_core_is_told_as_such() {
    let mut fleet = resting_fleet();
    let node = fleet.nodes[1];
    for path in 0..2 {
        fleet.world.mute_queue(node, path);
    }
    let told = |fleet: &Fleet| {
        let is = |event: &HostEvent| {
            matches!(
                event,
                HostEvent::Publish(PathNews::Of(.., PathEvent::Lost { renewal: true }))
            )
        };
        fleet.events[0].iter().any(is)
    };
    assert!(fleet.run(60 * SECOND, told), "{:?}", fleet.events);
}

/// A path that another core connects anew is held against no path; one that it loses again and
/// again is.
#[test]
fn renewals_on_another_core_are_no_losses() {
    for renewal in [true, false] {
        let mut fleet = resting_fleet();
        for _ in 0..3 {
            let news = PathNews::Of(0, P0, PathEvent::Broken { renewal });
            let now_ns = fleet.world.now_ns;
            fleet.hosts[0]
                .borrow_mut()
                .handle_control(HostControl::Path(news), now_ns);
            fleet.step(); // before the others see the end of their own connections
            fleet.run(8 * SECOND, |_| false);
        }
        for (core, host) in fleet.hosts.iter().enumerate() {
            let times = host.borrow().path_report(0, P0, 0).health.tally.times;
            assert_eq!(times == 0, renewal, "core {core}: {times}");
        }
    }
}

/// The last path is on probation while its storage stalls: it has the time of any I/O.
#[test]
fn only_path_on_probation_outlives_a_stall() {
    let mut rig = rig(1, Policy::QueueDepth, 10 * SECOND);
    let faults = |parts| Faults {
        errors: vec![ErrorRule {
            status: Status::HOST_PATH,
            ops: Ops::ALL,
            blocks: None,
            rate: Probability::new(parts).unwrap(),
        }],
        ..Faults::default()
    };
    rig.target_control(TargetControl::Faults(0, faults(1_000_000_000)));
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(SECOND);
    assert_eq!(state(&rig, P0), PathState::Probation);
    rig.target_control(TargetControl::Faults(0, faults(0)));
    stall(&mut rig, 1, 6 * SECOND);
    rig.world.pass(20 * SECOND);
    rig.poll();
    assert_eq!(returned(&rig.events), 0, "{:?}", rig.events);
}

/// Neither probes nor silence are looked at here: paths that are silent one after the other take
/// longer than the time that attempts have, and the first one is connected again meanwhile.
#[test]
fn read_does_not_fail_while_a_path_was_proven_well() {
    let mut rig = rig_of(4, |host, _| {
        host.volumes[0].recovery.attempts_ns = 20 * SECOND;
    });
    for path in 0..4 {
        rig.world.mute_queue(HOST, path);
    }
    let start_ns = rig.world.now_ns;
    let done = rig.one(&read(0, 0), 60 * SECOND);
    assert_eq!(done.outcome, Outcome::Done);
    let took_ns = rig.world.now_ns - start_ns;
    // One time-out and its Abort; then the path that is back is asked, not the next silent one.
    assert!(took_ns < 30 * SECOND, "{took_ns}");
}

/// The probes of all paths go out together, and cost a few wake-ups in a minute.
#[test]
fn idle_paths_cost_few_wake_ups() {
    let mut wakeups = [0; 2];
    for (idle_ns, count) in [0, 10 * SECOND].into_iter().zip(&mut wakeups) {
        let mut rig = rig(4, Policy::QueueDepth, idle_ns);
        rig.world.pass(5 * SECOND);
        let before = rig.world.nodes[HOST].wakeups;
        rig.world.pass(600 * SECOND);
        *count = rig.world.nodes[HOST].wakeups - before;
    }
    // Per 10 s: the time, an answer in a few pieces of each path, and the look at their silence.
    let more = wakeups[1] - wakeups[0];
    assert!((60 * 4..=60 * 24).contains(&more), "{wakeups:?}");
}

/// The path passes keep-alives, reads and their probes, and loses each write.
#[test]
fn path_that_loses_large_packets_stays_out() {
    for policy in [Policy::RoundRobin { bytes: 0 }, Policy::Soonest] {
        let mut rig = rig(2, policy, 10 * SECOND);
        for n in 0..16 {
            rig.one(&write(n, n), SECOND);
        }
        rig.world.hole = Some((HOST, 0, 1400));
        let until_ns = rig.world.now_ns + 200 * SECOND;
        let mut slow = Vec::new();
        while rig.world.now_ns < until_ns {
            for n in 0..8 {
                let io = if n % 2 == 0 { write(n, n) } else { read(n, n) };
                let start_ns = rig.world.now_ns;
                assert_eq!(rig.one(&io, 20 * SECOND).outcome, Outcome::Done);
                let took_ns = rig.world.now_ns - start_ns;
                if took_ns > SECOND {
                    slow.push(took_ns / MS);
                }
            }
            rig.world.pass(50 * MS);
        }
        // While it stays out it is lost again and again, which is said twice.
        rig.poll();
        let again = |event: &&HostEvent| has_failed(event, "not even a probe");
        let lines = rig.events.iter().filter(again).count();
        assert!(
            lines <= 2 && returned(&rig.events) <= 2,
            "{policy}: {:?}",
            rig.events
        );
        // Silence, the probe, its abort, which is answered, and the hold.
        let longest_ms = 500 + 200 + 2_000 + 500 + 500 + 200;
        assert!(
            slow.len() == 1 && slow[0] <= longest_ms,
            "{policy}: {slow:?}"
        );
        rig.world.hole = None;
        // Eight good probes, each up to 10 s after the one before.
        let host = rig.host.clone();
        let live = move || host.borrow().path_state(0, P0) == PathState::Live;
        assert!(rig.run(120 * SECOND, |_, _| live()), "{policy}");
        rig.world.pass(SECOND);
        at_rest(&rig, 2);
    }
}

/// A part of the I/O is answered with an error that is not the path's: the owner is told, what is
/// repeated and what fails, and not once for each.
#[test]
fn device_errors_are_counted_and_said() {
    for (status, then) in [
        (Status::INTERNAL_ERROR, "repeated: busy"),
        (Status::UNRECOVERED_READ, "failed: the data can't be read"),
    ] {
        let mut rig = rig(2, Policy::RoundRobin { bytes: 0 }, 10 * SECOND);
        let faults = Faults {
            errors: vec![ErrorRule {
                status,
                ops: Ops::ALL,
                blocks: None,
                rate: Probability::new(200_000_000).unwrap(),
            }],
            ..Faults::default()
        };
        rig.target_control(TargetControl::Faults(0, faults));
        for n in 0..400 {
            rig.one(&read(n % 64, n % 8), 5 * SECOND);
        }
        let errors = rig.host.borrow().counters(0, P0).device_errors;
        assert!(errors > 10, "{status}: {errors}");
        // An error that may pass is compared: the other path has none of it. One about the data is
        // not.
        let times = rig.host.borrow().path_report(0, P0, 0).health.tally.times;
        assert_eq!(times > 0, status == Status::INTERNAL_ERROR, "{status}");
        let now_ns = rig.world.now_ns;
        let host = rig.host.borrow();
        let late = |path, later_ns| host.path_report(0, path, now_ns + later_ns).device_errors;
        let [repeated, failed] = late(P0, 0);
        assert!(u64::from(repeated + failed) == errors && (failed == 0) == (times > 0));
        assert_eq!([late(P1, 0), late(P0, 121 * SECOND)], [[0; 2]; 2]);
        drop(host);
        assert_eq!(rig.host.borrow().counters(0, P1).device_errors, 0);
        let said = |event: &&HostEvent| has_warned(event, then);
        let lines = rig.events.iter().filter(said).count();
        assert!((1..=3).contains(&lines), "{status}: {:?}", rig.events);
    }
}

/// Both paths lead to the same trouble.
#[test]
fn passing_errors_of_all_paths_blame_none() {
    let mut rig = rig(2, Policy::RoundRobin { bytes: 0 }, 10 * SECOND);
    for port in 0..2 {
        let faults = Faults {
            errors: vec![ErrorRule {
                status: Status::INTERNAL_ERROR,
                ops: Ops::ALL,
                blocks: None,
                rate: Probability::new(200_000_000).unwrap(),
            }],
            ..Faults::default()
        };
        rig.target_control(TargetControl::Faults(port, faults));
    }
    for n in 0..2000 {
        rig.one(&read(n % 64, n % 8), 5 * SECOND);
    }
    for path in [P0, P1] {
        let host = rig.host.borrow();
        assert!(host.counters(0, path).device_errors > 100);
        assert_eq!(
            host.path_report(0, path, 0).health.tally.times,
            0,
            "{path:?}"
        );
    }
}
