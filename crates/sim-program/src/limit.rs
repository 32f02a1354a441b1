//! Upper limit of any choice of paths: a linear programme over the rates of each kind of I/O on
//! each path.
//!
//! # Contract
//! For a world in which I/Os follow one another (nothing comes at its own times), nothing happens
//! but them, and no disk seeks. There these hold in the long run, for any choice:
//! * each size and direction of a job has its share of the job's I/Os;
//! * a device gives no more than its servers, a link's direction no more than its bandwidth less
//!   others' traffic, a host's CPUs no more than there are;
//! * the rates times the time each I/O takes alone are no more than what a job keeps in flight
//!   (Little; waiting only adds to that time).
//!
//! The greatest throughput under these is the limit. A run is finite: what it draws by chance, and
//! what was under way when its measured time began, can put it above by some percent where few
//! I/Os, or much in flight beside what is carried, make it up.
use anyhow::bail;
use microlp::{
    ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, Solution, SolveOutcome,
    Variable,
};
use policy::Ana;
use sim::{DevicePlan, HostPlan, JobPlan, Needs, Plan, Rule, bound};
use std::collections::BTreeMap;

/// One kind of I/O on one path, and its rate, thousands per second.
struct Flow {
    job: usize,
    path: usize,
    bytes: u32,
    write: bool,
    needs: Needs,
    rate: Variable,
}

/// How much of the world may be used, and what for.
#[derive(Clone, Copy)]
struct Terms {
    /// Of devices, links and CPUs.
    capacity: f64,
    /// Of what is in flight.
    in_flight: f64,
    /// Jobs have their own pace, and it is the time of their I/Os that shall be least; else the
    /// most bytes.
    paced: bool,
    /// Among equals the nearer paths: good for a rule, but it takes a trifle off the limit.
    nearer: bool,
}

/// The limit of a world, bytes per second, where there is one.
///
/// # Errors
/// The programme can't be solved, which no world should make happen.
pub fn limit(plan: &Plan) -> anyhow::Result<Option<u64>> {
    if bound::is_open(plan) || !plan.events.is_empty() || !holds(plan) {
        return Ok(None);
    }
    let terms = Terms {
        capacity: 1.0,
        in_flight: 1.0,
        paced: false,
        nearer: false,
    };
    let solved = solve(plan, terms)?;
    // The solver holds each row to a millionth.
    Ok(solved.map(|(_, solution)| (solution.objective() * 1000.0 * (1.0 + 2e-6)).ceil() as u64))
}

/// Static splits that the programme suggests: for each size and direction its own.
pub fn rules(plan: &Plan) -> Vec<Rule> {
    if !holds(plan) {
        return Vec::new();
    }
    let paced = bound::is_open(plan);
    let parts = match paced {
        true => PACED.map(|capacity| (capacity, 1.0)).to_vec(),
        false => CLOSED.to_vec(),
    };
    let mut rules = Vec::new();
    for (capacity, in_flight) in parts {
        let terms = Terms {
            capacity,
            in_flight,
            paced,
            nearer: true,
        };
        // A pace beyond the capacity is impossible, which the solver does not always find out but
        // fails on. A suggestion less is no harm.
        if let Ok(Some((flows, solution))) = solve(plan, terms) {
            let rule = Rule::Kinds(shares(plan, &flows, &solution));
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

/// Capacity and in-flight parts for which splits are made; with a pace all may be in flight.
const CLOSED: [(f64, f64); 4] = [(1.0, 1.0), (1.0, 0.95), (1.0, 0.9), (0.97, 1.0)];
const PACED: [f64; 8] = [0.5, 0.6, 0.7, 0.78, 0.84, 0.9, 0.94, 0.97];

/// Per mille of each kind on each path.
fn shares(plan: &Plan, flows: &[Flow], solution: &Solution) -> Vec<(u32, bool, Vec<u32>)> {
    let mut kinds: BTreeMap<(u32, bool), Vec<f64>> = BTreeMap::new();
    for flow in flows {
        let none = || vec![0.0; plan.paths.len()];
        let rates = kinds.entry((flow.bytes, flow.write)).or_insert_with(none);
        rates[flow.path] += solution[flow.rate];
    }
    let kind = |((bytes, write), rates): ((u32, bool), Vec<f64>)| {
        let whole = rates.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let part = |rate: &f64| (1000.0 * rate / whole).round() as u32;
        (bytes, write, rates.iter().map(part).collect())
    };
    kinds.into_iter().map(kind).collect()
}

/// Where all is linear: whether it is limits, or only splits to be tried, that are wanted.
fn holds(plan: &Plan) -> bool {
    let writes_to_all = plan.mirror && plan.jobs.iter().any(|job| job.write_percent > 0);
    let disk = |it: &DevicePlan| matches!(it, DevicePlan::Disk(_));
    !writes_to_all && !plan.devices.iter().any(disk)
}

/// The best rates; `None`: there are no such, or nothing limits them.
fn solve(plan: &Plan, terms: Terms) -> anyhow::Result<Option<(Vec<Flow>, Solution)>> {
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let flows = flows(plan, terms, &mut problem);
    shared(plan, terms, &flows, &mut problem);
    for (host, it) in plan.hosts.iter().enumerate() {
        if it.io_ns > 0 {
            let here = flows.iter().filter(|flow| plan.jobs[flow.job].host == host);
            let busy = sum(here, |_| it.io_ns as f64 / 1e6);
            let cpus = it.cpus as f64 * terms.capacity;
            problem.add_constraint(busy, ComparisonOp::Le, cpus);
        }
    }
    for (number, job) in plan.jobs.iter().enumerate() {
        let here = flows.iter().filter(|it| it.job == number);
        let under_way = sum(here, |it| under_way_ms(plan, it));
        let most = (job.count * job.depth) as f64 * terms.in_flight;
        problem.add_constraint(under_way, ComparisonOp::Le, most);
    }
    match problem.solve() {
        Ok(SolveOutcome::Solution(solution)) => Ok(Some((flows, solution))),
        Err(Error::Unbounded | Error::Infeasible) => Ok(None),
        other => bail!("the limit's programme ends with {other:?}"),
    }
}

/// Every kind of I/O on every path that can take it, as a variable; the shares hold.
fn flows(plan: &Plan, terms: Terms, problem: &mut Problem) -> Vec<Flow> {
    let usable = |path: &usize| {
        let ana = plan.paths[*path].ana;
        matches!(ana, Ana::Optimized | Ana::NonOptimized)
    };
    let mut flows = Vec::new();
    for (job, it) in plan.jobs.iter().enumerate() {
        let pace = (it.iops * it.count as u64) as f64 / 1000.0;
        let all = match terms.paced {
            true => problem.add_var(0.0, (pace, pace)),
            false => problem.add_var(0.0, (0.0, f64::INFINITY)),
        };
        for (bytes, write, part) in kinds(it) {
            let mut kind = LinearExpr::empty();
            for path in (0..plan.paths.len()).filter(usable) {
                let needs = sim::needs(plan, path, bytes, write);
                let worth = worth(needs, bytes, terms);
                let rate = problem.add_var(worth, (0.0, f64::INFINITY));
                kind.add(rate, 1.0);
                flows.push(Flow {
                    job,
                    path,
                    bytes,
                    write,
                    needs,
                    rate,
                });
            }
            kind.add(all, -part);
            problem.add_constraint(kind, ComparisonOp::Eq, 0.0);
        }
    }
    flows
}

/// The worth of one I/O.
fn worth(needs: Needs, bytes: u32, terms: Terms) -> f64 {
    let takes_ms = needs.alone_ns as f64 / 1e6;
    match terms {
        Terms { paced: true, .. } => -takes_ms,
        Terms { nearer: true, .. } => f64::from(bytes) - takes_ms / 100.0,
        _ => f64::from(bytes),
    }
}

/// Sizes and directions of a job, each with its share of the I/Os.
fn kinds(job: &JobPlan) -> Vec<(u32, bool, f64)> {
    let whole: u64 = job.sizes.iter().map(|&(_, weight)| u64::from(weight)).sum();
    let mut kinds = Vec::new();
    for &(bytes, weight) in &job.sizes {
        for (write, percent) in [(true, job.write_percent), (false, 100 - job.write_percent)] {
            if weight > 0 && percent > 0 {
                let part = f64::from(weight) / whole as f64 * f64::from(percent) / 100.0;
                kinds.push((bytes, write, part));
            }
        }
    }
    kinds
}

/// Devices and links, which all hosts share.
fn shared(plan: &Plan, terms: Terms, flows: &[Flow], problem: &mut Problem) {
    for (number, device) in plan.devices.iter().enumerate() {
        if let DevicePlan::Flash(flash) = device
            && flash.servers > 0
        {
            let here = flows
                .iter()
                .filter(|it| plan.paths[it.path].device == number);
            let busy = sum(here, |it| it.needs.service_ns as f64 / 1e6);
            let servers = f64::from(flash.servers) * terms.capacity;
            problem.add_constraint(busy, ComparisonOp::Le, servers);
        }
    }
    for (number, path) in plan.paths.iter().enumerate() {
        if path.bytes_per_s == 0 {
            continue;
        }
        let free = (1.0 - f64::from(path.cross_percent) / 100.0) * terms.capacity;
        for direction in 0..2 {
            let here = flows.iter().filter(|it| it.path == number);
            let busy = sum(here, |it| {
                it.needs.link_bytes[direction] as f64 * 1e3 / path.bytes_per_s as f64
            });
            problem.add_constraint(busy, ComparisonOp::Le, free);
        }
    }
}

/// How much of what is in flight an I/O is, per thousand and second.
fn under_way_ms(plan: &Plan, flow: &Flow) -> f64 {
    let host = &plan.hosts[plan.jobs[flow.job].host];
    let alone_ns = (flow.needs.alone_ns + host.io_ns) as f64;
    (alone_ns + stalled_ns(host, flow.needs.least_ns)) / 1e6
}

/// How much later, at least and in the mean, a CPU that stalls now and then notices what comes back
/// `after_ns` after it ran: it is away then with a probability that grows with the time, and for as
/// long as a whole stall, because stalls are exponential. 1 − e^−y is at least y / (1 + y).
fn stalled_ns(host: &HostPlan, after_ns: u64) -> f64 {
    if host.busy_run_ns == 0 || host.busy_stall_ns == 0 || host.io_ns > 0 {
        return 0.0;
    }
    let (run, stall) = (host.busy_run_ns as f64, host.busy_stall_ns as f64);
    let y = after_ns as f64 * (1.0 / run + 1.0 / stall);
    stall / (run + stall) * (y / (1.0 + y)) * stall
}

fn sum<'a>(flows: impl Iterator<Item = &'a Flow>, of: impl Fn(&Flow) -> f64) -> LinearExpr {
    let mut sum = LinearExpr::empty();
    for flow in flows {
        sum.add(flow.rate, of(flow));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        let scenario = super::super::scenario::parse("x", text).unwrap().remove(0);
        scenario.plan
    }

    fn of(text: &str) -> u64 {
        limit(&plan(text)).unwrap().unwrap()
    }

    const TWO: &str = "title = \"t\"\n[path.a]\nread_byte_ps = 0\njitter_percent = 0\n[path.b]\n\
                       read_byte_ps = 0\njitter_percent = 0\n[job.j]\nsizes = \"4k\"\n";

    #[test]
    fn many_in_flight_are_limited_by_the_servers() {
        // 2 · 8 servers / 200 µs
        let limit = of(&format!("{TWO}count = 32\ndepth = 8\n"));
        assert!(limit.abs_diff(80_000 * 4096) < 1000, "{limit}");
    }

    #[test]
    fn one_in_flight_is_limited_by_its_own_time() {
        // 100 µs there and back, 200 µs of service, 4192 bytes at 1200 MB/s
        let limit = of(&format!("{TWO}count = 1\ndepth = 1\n"));
        assert!(
            limit.abs_diff(4096 * 1_000_000_000 / 303_493) < 1000,
            "{limit}"
        );
    }

    #[test]
    fn large_ones_are_limited_by_the_links() {
        let text = TWO.replace("4k", "1M");
        let limit = of(&format!("{text}count = 32\ndepth = 8\n"));
        assert!(limit.abs_diff(2_400_000_000) < 100_000, "{limit}");
    }

    #[test]
    fn there_is_none_where_something_happens_or_comes_at_its_own_times() {
        let none = |text: String| limit(&plan(&text)).unwrap().is_none();
        assert!(none(format!("{TWO}iops = 1000\n")));
        assert!(none(format!(
            "{TWO}[[event]]\nat_ms = 1\npath = \"a\"\nup = true\n"
        )));
        assert!(none(TWO.replace("[path.b]", "[path.b]\ndisk = true")));
    }
}
