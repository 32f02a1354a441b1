//! Worlds whose outcome can be worked out by hand.
use crate::*;
use alloc::vec::Vec;
use policy::{Ana, Policy};

mod hedge;

const MS: u64 = 1_000_000;

fn flash() -> Flash {
    Flash {
        servers: 8,
        read_ns: 200_000,
        write_ns: 160_000,
        read_byte_ps: 0,
        write_byte_ps: 0,
        noise: Noise::None,
        busy_run_ns: 0,
        busy_stall_ns: 0,
    }
}

fn path(device: usize) -> PathPlan {
    PathPlan {
        bytes_per_s: 0,
        delay_ns: 50_000,
        jitter_ns: 0,
        large_from: 0,
        large_ns: 0,
        small_ns: 0,
        tail_per_million: 0,
        tail_ns: 0,
        cross_percent: 0,
        device,
        ana: Ana::Optimized,
        node: None,
        loss_per_million: 0,
        line_of: None,
    }
}

fn job(count: usize, depth: usize) -> JobPlan {
    JobPlan {
        host: 0,
        count,
        depth,
        sizes: vec![(4096, 1)],
        write_percent: 0,
        sequential: false,
        span: 1 << 30,
        iops: 0,
        move_ns: 0,
    }
}

fn plan(paths: usize, jobs: Vec<JobPlan>) -> Plan {
    Plan {
        paths: (0..paths).map(path).collect(),
        devices: (0..paths).map(|_| DevicePlan::Flash(flash())).collect(),
        hosts: vec![HostPlan {
            cpus: 2,
            nodes: 1,
            io_ns: 0,
            busy_run_ns: 0,
            busy_stall_ns: 0,
        }],
        jobs,
        warm_ns: 20 * MS,
        run_ns: 100 * MS,
        ..Plan::default()
    }
}

fn turns() -> Way {
    Way::policy(Policy::RoundRobin { bytes: 0 })
}

#[test]
fn one_io_takes_what_its_parts_take() {
    let tally = run(&plan(1, vec![job(1, 1)]), &turns(), 1).unwrap();
    let latency = &tally.latencies[0];
    assert_eq!(
        latency.mean_ns(),
        300_000,
        "50 µs there, 200 µs, 50 µs back"
    );
    assert!(
        (333..=334).contains(&latency.count()),
        "{}",
        latency.count()
    );
}

#[test]
fn servers_limit_the_rate_and_the_rest_waits() {
    let tally = run(&plan(2, vec![job(4, 16)]), &turns(), 1).unwrap();
    // 2 paths · 8 servers / 200 µs = 80 000 a second, 4096 bytes each.
    let rate = tally.bytes_per_s();
    assert!((327_000_000..328_400_000).contains(&rate), "{rate}");
    assert_eq!(tally.share(), [500, 500]);
    // Little: 64 in flight.
    assert!(
        tally.mean_ns().abs_diff(800_000) < 8_000,
        "{}",
        tally.mean_ns()
    );
}

#[test]
fn a_link_limits_the_rate() {
    let mut plan = plan(1, vec![job(1, 32)]);
    plan.paths[0].bytes_per_s = 41_200_000;
    let tally = run(&plan, &turns(), 1).unwrap();
    let (rate, wanted) = (tally.bytes_per_s(), 41_200_000 * 4096 / 4120);
    assert!(rate.abs_diff(wanted) < wanted / 200, "{rate}");
}

#[test]
fn the_same_seed_gives_the_same_world_and_another_does_not() {
    let mut plan = plan(2, vec![job(4, 8)]);
    plan.devices = vec![
        DevicePlan::Flash(Flash {
            noise: Noise::Usual,
            ..flash()
        });
        2
    ];
    plan.paths[1].jitter_ns = 10_000;
    plan.hosts[0].busy_run_ns = MS;
    plan.hosts[0].busy_stall_ns = MS;
    let way = Way::policy(Policy::QueueDepth);
    let (one, same) = (run(&plan, &way, 7).unwrap(), run(&plan, &way, 7).unwrap());
    assert_eq!(one, same);
    assert_ne!(one, run(&plan, &way, 8).unwrap());
}

#[test]
fn poisson_arrivals_come_at_their_rate() {
    let jobs = vec![JobPlan {
        iops: 2_000,
        ..job(8, 64)
    }];
    let tally = run(&plan(2, jobs), &turns(), 1).unwrap();
    let ios = tally.latencies[0].count();
    // 16 000 a second for 0.1 s; four standard deviations are 160.
    assert!((1_440..1_760).contains(&ios), "{ios}");
    assert_eq!(tally.turned_away, 0);
}

#[test]
fn a_stalled_device_holds_everything_and_loses_nothing() {
    let mut plan = plan(1, vec![job(1, 8)]);
    let (at_ns, what) = (40 * MS, Change::Stall(0, 50 * MS));
    plan.events = vec![EventPlan { at_ns, what }];
    let tally = run(&plan, &turns(), 1).unwrap();
    let still = &tally.series[5..8];
    assert!(still.iter().all(|&bytes| bytes == 0), "{:?}", tally.series);
    assert!(
        tally.series[9..].iter().all(|&bytes| bytes > 1_000_000),
        "{:?}",
        tally.series
    );
    assert_eq!(tally.latencies[0].quantile_ns(1000) / MS, 50);
}

#[test]
fn what_is_on_a_dead_path_goes_elsewhere() {
    let mut plan = plan(2, vec![job(2, 8)]);
    let change = |ms, what| EventPlan {
        at_ns: ms * MS,
        what,
    };
    plan.events = vec![
        change(40, Change::Down(0, 20 * MS)),
        change(90, Change::Up(0)),
    ];
    let tally = run(&plan, &Way::policy(Policy::QueueDepth), 1).unwrap();
    assert!((1..=16).contains(&tally.failed), "{}", tally.failed);
    assert!(tally.series[7] > 0 && tally.path_ios[0] > 0 && tally.path_ios[1] > 0);
    plan.paths.truncate(1);
    plan.devices.truncate(1);
    let alone = run(&plan, &Way::policy(Policy::QueueDepth), 1).unwrap();
    assert_eq!(alone.series[7], 0, "nowhere to go");
    assert!(alone.series[10] > 0, "it waited for the path to come back");
}

#[test]
fn hosts_share_what_they_meet_in() {
    let mut plan = plan(
        2,
        vec![
            job(2, 16),
            JobPlan {
                host: 1,
                ..job(2, 16)
            },
        ],
    );
    plan.hosts.push(plan.hosts[0]);
    plan.paths[1].device = 0;
    let tally = run(&plan, &turns(), 1).unwrap();
    let rate = tally.bytes_per_s();
    assert!(
        (163_000_000..164_400_000).contains(&rate),
        "one back end: {rate}"
    );
    assert!(tally.host_bytes[0].abs_diff(tally.host_bytes[1]) < rate / 100);
}

#[test]
fn a_mirrored_write_is_done_when_the_slowest_leg_is() {
    let writes = JobPlan {
        write_percent: 100,
        ..job(1, 1)
    };
    let mut plan = plan(2, vec![writes]);
    plan.mirror = true;
    plan.paths[1].delay_ns = 200_000;
    let tally = run(&plan, &turns(), 1).unwrap();
    assert_eq!(tally.latencies[1].mean_ns(), 560_000);
    assert_eq!(tally.latencies[0].count(), 0);
}

#[test]
fn every_rule_of_the_search_is_at_work() {
    for paths in [2, 4] {
        let mut plan = plan(paths, vec![job(4, 8)]);
        plan.paths[0].delay_ns = 1_000_000;
        plan.mirror = true;
        for rule in bound::rules(&plan) {
            let tally = run(&plan, &Way::Rule(rule.clone()), 1).unwrap();
            assert!(tally.ios > 500, "{rule:?}: {}", tally.ios);
        }
    }
}

#[test]
fn a_world_that_cannot_be_is_refused() {
    let good = plan(2, vec![job(1, 1)]);
    let refused = |break_it: &dyn Fn(&mut Plan), why: &str| {
        let mut plan = good.clone();
        break_it(&mut plan);
        let PlanError(said) = run(&plan, &turns(), 1).unwrap_err();
        assert!(said.starts_with(why), "{said}");
    };
    refused(&|it| it.paths.clear(), "a world has 1 to 16 paths");
    refused(&|it| it.paths[1].device = 2, "a path ends");
    refused(&|it| it.hosts[0].cpus = 0, "a world has 1 to 8 hosts");
    refused(&|it| it.jobs[0].sizes[0].0 = 0, "a job needs");
    refused(&|it| it.jobs[0].host = 1, "a job needs");
    let event = EventPlan {
        at_ns: 0,
        what: Change::Up(2),
    };
    refused(&|it| it.events.push(event), "an event is about");
    refused(&|it| it.run_ns = 0, "the run is 0 long");
}

/// Of two equal devices one is reached 5 ms later: with 12 in flight the near one's 8 servers and a
/// short queue are best, and who goes through what is under way knows.
#[test]
fn replaying_keeps_off_a_far_path_until_waiting_costs_more() {
    let mut plan = plan(2, vec![job(1, 12)]);
    plan.paths[1].delay_ns = 5 * MS;
    let far = |plan: &Plan| {
        let tally = run(plan, &Way::Rule(Rule::Replay(0)), 1).unwrap();
        (tally.path_ios[1], tally.ios)
    };
    assert_eq!(far(&plan).0, 0);
    // 1024 wait 25 ms at the near one.
    plan.jobs = vec![job(1, 1024)];
    let (ios, all) = far(&plan);
    assert!((all / 3..all / 2).contains(&ios), "{ios} of {all}");
}
