//! The cost of a policy, for an instruction counter: `policy_cost POLICY PATHS ITERATIONS`.
//!
//! Each iteration is one loop turn with one I/O: `select`, `complete` of the oldest of 32 I/Os in
//! flight, and `weigh`; another core's count changes too, as where all are busy. Latencies differ
//! per path and vary per I/O; the window is 50 ms of 2 µs turns. Run under callgrind at two numbers
//! of iterations: the difference divided by that of the iterations is the cost of one. POLICY
//! `none` runs the same loop without the selector: what to subtract for the loop itself.
use policy::{
    Ana, Completion, Ended, Group, Knobs, PathIndex, PathView, Policy, Request, Selector, Ticket,
};
use std::hint::black_box;
use std::process::ExitCode;

const IN_FLIGHT: usize = 32;
const TURN_NS: u64 = 2_000;
const GROUPS: [Group; 4] = [Group::Read, Group::Write, Group::Read, Group::Read];

struct Case {
    policy: Option<Policy>,
    paths: usize,
    iterations: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Ok(case) => {
            let selector = case.policy.map(|policy| Selector::new(case.paths, policy));
            let sum = run(selector, case.paths, case.iterations);
            println!("{} iterations, checksum {sum}", case.iterations);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}\nusage: policy_cost POLICY|none PATHS ITERATIONS");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Case, String> {
    let [policy, paths, iterations] = arguments else {
        return Err(format!("3 arguments wanted, {} given", arguments.len()));
    };
    let policy = match policy.as_str() {
        "none" => None,
        name => Some(Policy::parse(name).map_err(|why| format!("{name}: {why}"))?),
    };
    let (paths, iterations) = parse_numbers(paths, iterations)?;
    Ok(Case {
        policy,
        paths,
        iterations,
    })
}

/// The numbers of paths and iterations.
///
/// # Errors
/// One is none.
pub fn parse_numbers(paths: &str, iterations: &str) -> Result<(usize, u64), String> {
    let paths = match paths.parse() {
        Ok(paths @ 1..=policy::limits::PATHS_MAX) => paths,
        _ => return Err(format!("PATHS: {paths} is not a number from 1 to 64")),
    };
    let iterations = iterations
        .parse()
        .map_err(|why| format!("ITERATIONS: {iterations}: {why}"))?;
    Ok((paths, iterations))
}

/// Latencies of 80…180 µs, made before the count begins.
fn latencies() -> [u32; 1024] {
    let mut seed = 0x9e37_79b9_u32;
    std::array::from_fn(|_| {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        80_000 + seed % 100_000
    })
}

/// Returns a sum over all choices.
pub fn run(mut selector: Option<Selector>, paths: usize, iterations: u64) -> u64 {
    let view = |path: usize| PathView {
        enabled: true,
        ana: Ana::Optimized,
        distance: 10 + path as u32 % 3,
        in_flight_elsewhere: 3,
        throughput: 1,
    };
    let mut views: Vec<PathView> = (0..paths).map(view).collect();
    let latencies = latencies();
    if let Some(selector) = &mut selector {
        let knobs = Knobs {
            weight_timeout_ns: 50_000_000,
            ..Knobs::default()
        };
        assert!(selector.set_knobs(knobs).is_ok(), "50 ms is in range");
    }
    let mut in_flight = [None; IN_FLIGHT];
    let mut sum = 0;
    for turn in 0..iterations {
        let now_ns = turn * TURN_NS;
        let (round, path) = (turn / paths as u64, turn % paths as u64);
        views[path as usize].in_flight_elsewhere = 2 + round as u32 % 3;
        let group = GROUPS[turn as usize % GROUPS.len()];
        let request = Request {
            source: 1,
            group,
            length: 4096,
            address: turn << 12,
            now_ns,
        };
        let chosen = match &mut selector {
            Some(selector) => selector.select(black_box(&request), black_box(&views)),
            None => Some(PathIndex(black_box(&request).group as u8)),
        };
        let oldest = &mut in_flight[turn as usize % IN_FLIGHT];
        let ticket = selector
            .as_ref()
            .map_or(Ticket::default(), Selector::ticket);
        let placed = chosen.map(|path| (path, group, ticket));
        let Some((path, group, ticket)) = std::mem::replace(oldest, placed) else {
            continue;
        };
        let latency_ns = u64::from(latencies[turn as usize % 1024]) * (u64::from(path.0) + 1);
        let done = Completion {
            path,
            group,
            latency_ns,
            ended: Ended::Good,
            now_ns,
            ticket,
            gap_ns: 0,
        };
        let noted = match &mut selector {
            Some(selector) => {
                let noted = selector.complete(black_box(&done));
                selector.weigh();
                noted.weigh
            }
            None => black_box(&done).latency_ns == 0,
        };
        sum += u64::from(path.0) + u64::from(noted);
    }
    black_box(&selector);
    sum
}
