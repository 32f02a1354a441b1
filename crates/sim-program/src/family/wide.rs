//! Random worlds with what real machines have: schedulers that stop a target or a host, processes
//! that share its CPU, lost packets, services that vary in other ways, and four paths over two
//! lines.
//!
//! # Contract
//! A world is as long as some ten thousand I/Os take, within bounds, so that a hundred worlds with
//! the search of their bounds can be run. Every CPU has a selector of its own.
use policy::Ana;
use shape::Random;
use sim::{DevicePlan, Flash, HostPlan, JobPlan, MachinePlan, Noise, PathPlan, Plan, bound};

/// About so many I/Os are measured where the paths are full.
const IOS: u64 = 60_000;
/// Shortest and longest time that is measured, ns.
const RUN_NS: [u64; 2] = [250_000_000, 600_000_000];

/// One world.
pub fn plan(random: &mut Random) -> Plan {
    let mut plan = Plan::default();
    if one_of(random, 5) {
        four_paths_over_two_lines(random, &mut plan);
    } else {
        let paths = [2, 2, 2, 3, 4, 6][random.up_to(5) as usize];
        for device in 0..paths {
            plan.paths.push(path(random, device));
            plan.devices.push(DevicePlan::Flash(flash(random)));
        }
    }
    let cpus = [8, 8, 8, 1, 2, 16][random.up_to(5) as usize];
    plan.hosts.push(host(random, cpus));
    if one_of(random, 8) {
        let host = &mut plan.hosts[0];
        (host.cpus, host.busy_run_ns) = (1, 0);
        plan.machine = Some(MachinePlan {
            cpus: 1 + random.up_to(1) as usize,
            loops: 1 + random.up_to(3) as usize,
            own_ns: between(random, 500_000, 3_000_000),
            loop_ns: 3_000_000,
        });
    }
    plan.jobs.push(job(random, &plan));
    let all = bound::capacity_of_all(&plan, &plan.jobs[0]).max(1);
    plan.run_ns = (IOS * 1_000_000_000 / all).clamp(RUN_NS[0], RUN_NS[1]);
    plan.warm_ns = plan.run_ns / 2;
    plan
}

/// Two ports of a target, each of which is reached over two adapters of the host.
fn four_paths_over_two_lines(random: &mut Random, plan: &mut Plan) {
    for device in 0..2 {
        let near = path(random, device);
        let line_of = Some(plan.paths.len());
        let delay_ns = between(random, near.delay_ns, near.delay_ns * 4);
        plan.paths.push(near);
        plan.paths.push(PathPlan {
            delay_ns,
            jitter_ns: delay_ns / 20,
            line_of,
            ..near
        });
        plan.devices.push(DevicePlan::Flash(flash(random)));
    }
}

fn path(random: &mut Random, device: usize) -> PathPlan {
    let delay_ns = between(random, 10_000, 20_000_000);
    let (sized, tailed, lossy) = (one_of(random, 6), one_of(random, 8), one_of(random, 6));
    let large_ns = between(random, 200_000, 5_000_000);
    let loss_per_million = between(random, 50, 5_000) as u32;
    PathPlan {
        bytes_per_s: between(random, 100_000_000, 3_200_000_000),
        delay_ns,
        jitter_ns: delay_ns / 20,
        large_from: if sized { 32_768 } else { 0 },
        large_ns: if sized { large_ns } else { 0 },
        small_ns: 0,
        tail_per_million: if tailed { 10_000 } else { 0 },
        tail_ns: if tailed { 2_000_000 } else { 0 },
        cross_percent: if one_of(random, 6) { 50 } else { 0 },
        device,
        ana: Ana::Optimized,
        node: None,
        loss_per_million: if lossy { loss_per_million } else { 0 },
        line_of: None,
    }
}

fn flash(random: &mut Random) -> Flash {
    let read_ns = between(random, 40_000, 1_200_000);
    let noise = match random.up_to(4) {
        0 => Noise::Flat,
        1 => Noise::Bimodal,
        _ => Noise::Usual,
    };
    let busy = one_of(random, 4);
    let [run_ns, stall_ns] = [500_000, 300_000].map(|least| between(random, least, least * 16));
    Flash {
        servers: 1 << between(random, 1, 4),
        read_ns,
        write_ns: read_ns * (2 + random.up_to(6)) / 4,
        read_byte_ps: 20 + random.up_to(200),
        write_byte_ps: 20 + random.up_to(300),
        noise,
        busy_run_ns: if busy { run_ns } else { 0 },
        busy_stall_ns: if busy { stall_ns } else { 0 },
    }
}

fn host(random: &mut Random, cpus: usize) -> HostPlan {
    let busy = one_of(random, 6);
    let stall_ns = between(random, 500_000, 3_000_000);
    let io_ns = between(random, 1_000, 8_000);
    HostPlan {
        cpus,
        nodes: 1,
        busy_run_ns: if busy { 500_000 } else { 0 },
        busy_stall_ns: if busy { stall_ns } else { 0 },
        io_ns: if one_of(random, 3) { io_ns } else { 0 },
    }
}

fn job(random: &mut Random, plan: &Plan) -> JobPlan {
    const SIZES: [&[(u32, u32)]; 5] = [
        &[(4096, 1)],
        &[(4096, 1)],
        &[
            (4096, 10),
            (32_768, 10),
            (65_536, 10),
            (131_072, 30),
            (262_144, 10),
            (524_288, 30),
        ],
        &[(16_384, 75), (65_536, 25)],
        &[
            (512, 20),
            (4096, 25),
            (32_768, 25),
            (65_536, 20),
            (131_072, 5),
            (262_144, 5),
        ],
    ];
    let mut job = JobPlan {
        host: 0,
        count: 1 << random.up_to(5),
        depth: 1 << random.up_to(5),
        sizes: SIZES[random.up_to(4) as usize].to_vec(),
        write_percent: [0, 0, 30, 50, 100][random.up_to(4) as usize],
        sequential: false,
        span: 1 << 40,
        iops: 0,
        move_ns: 0,
    };
    if one_of(random, 5) {
        // Open: so much of what all paths together can do, each line counted once.
        let percent = [30, 60, 80][random.up_to(2) as usize];
        let lines = Plan {
            paths: own_lines(plan),
            ..plan.clone()
        };
        let all = bound::capacity_of_all(&lines, &job);
        job.count = plan.hosts[0].cpus.max(4);
        job.depth = 4096;
        job.iops = (all * percent / 100 / job.count as u64).max(1);
    }
    job
}

/// The paths that share no other's line.
fn own_lines(plan: &Plan) -> Vec<PathPlan> {
    let own = plan.paths.iter().filter(|it| it.line_of.is_none());
    own.copied().collect()
}

/// True once in `n`.
fn one_of(random: &mut Random, n: u64) -> bool {
    random.up_to(n - 1) == 0
}

/// A number between two, each factor as likely as the others.
fn between(random: &mut Random, least: u64, most: u64) -> u64 {
    let ratio = (most / least.max(1)).max(1);
    let shift = random.up_to(u64::from(ratio.ilog2())) as u32;
    let low = least << shift;
    (low + random.up_to(low)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_world_is_possible_and_each_kind_occurs() {
        let plans: Vec<Plan> = (0..200).map(|seed| plan(&mut Random::new(seed))).collect();
        for plan in &plans {
            assert_eq!(plan.check(), Ok(()));
        }
        let share = |of: &dyn Fn(&Plan) -> bool| plans.iter().filter(|it| of(it)).count();
        let lossy = |it: &Plan| it.paths.iter().any(|it| it.loss_per_million > 0);
        let crossed = |it: &Plan| it.paths.iter().any(|it| it.line_of.is_some());
        let stopped = |it: &Plan| {
            let busy = |it: &DevicePlan| matches!(it, DevicePlan::Flash(it) if it.busy_run_ns > 0);
            it.devices.iter().any(busy)
        };
        for counted in [
            share(&lossy),
            share(&crossed),
            share(&stopped),
            share(&|it| it.machine.is_some()),
        ] {
            assert!((12..150).contains(&counted), "{counted}");
        }
    }
}
