//! Sentences about what was measured.
//!
//! # Contract
//! A policy's rule is said from its definition; all else follows from figures of this run. Nothing
//! here holds a figure, or a result, of its own.
use super::cells::{Cell, Op, Outcome, PathFigures};
use super::text;
use policy::Policy;
use terminal::units::format_ns;

/// Which policies carried most, then one sentence or two for each policy that read, then how the
/// optimum divides the I/Os.
pub fn explanations(outcome: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = Op::ALL
        .iter()
        .filter_map(|&op| first(outcome, op))
        .collect();
    let policies = outcome.policies().into_iter();
    let cells = policies.filter_map(|policy| outcome.cell(policy, Op::Read));
    lines.extend(cells.map(|cell| explain(outcome, cell)));
    if outcome.cells.iter().any(|cell| cell.op == Op::Read) {
        lines.push(optimum(outcome));
    }
    lines
}

/// The policy that carried most under an operation, and in how many rounds it did.
fn first(outcome: &Outcome, op: Op) -> Option<String> {
    let mut cells: Vec<&Cell> = outcome.cells.iter().filter(|cell| cell.op == op).collect();
    cells.sort_by(|a, b| b.mib_s.total_cmp(&a.mib_s));
    let [first, second, ..] = cells[..] else {
        return None;
    };
    let rounds = first.rounds_mib_s.iter().zip(&second.rounds_mib_s);
    let ahead = rounds.clone().filter(|(first, second)| first > second);
    Some(format!(
        "{}: {} carried most, {:.0} MiB/s; {} {:.0} ({:.2} of it). {} was ahead in {} of {}.",
        op.name(),
        first.policy,
        first.mib_s,
        second.policy,
        second.mib_s,
        second.mib_s / first.mib_s,
        first.policy,
        ahead.count(),
        text::rounds(rounds.count()),
    ))
}

fn explain(outcome: &Outcome, cell: &Cell) -> String {
    let [fast, slow] = &cell.paths;
    let path = |name: &str, path: &PathFigures| match path.mean_ns {
        0.0 => format!("nothing on {name}"),
        mean_ns => format!(
            "{:.0} in flight on {name}, {} each, {:.0} MiB/s",
            path.in_flight,
            format_ns(mean_ns),
            path.mib_s
        ),
    };
    format!(
        "{} ({}): {}; {}. {}",
        cell.policy,
        rule(cell.policy),
        path("fast", fast),
        path("slow", slow),
        rest(outcome, cell),
    )
}

/// The rule of a policy.
fn rule(policy: Policy) -> &'static str {
    match policy {
        Policy::Numa => "the nearest path, here slow",
        Policy::RoundRobin { bytes: 0 } => "both in turn",
        Policy::RoundRobin { .. } => "both in turn, after some bytes",
        Policy::RoundRobinLatency { .. } => "in turn those within 20 % of the least latency",
        Policy::QueueDepth => "the path with fewer I/Os in flight",
        Policy::WeightedLatency(_) => "shares in proportion to 1 ÷ latency",
        Policy::Soonest => "where it ends first, plus a price for the delay of others",
        Policy::ServiceTime => "the path with fewer bytes in flight",
        Policy::HistoricalServiceTime => "where it ends first at the path's recent speed",
        Policy::Latency => "the path with the least latency lately",
        Policy::Pid => "each job has a path",
        Policy::Devid(_) => "always the same path",
        Policy::Program(_) => "as a loaded program chooses",
    }
}

/// The capacity of fast that was left, or the I/Os there that would have carried more on slow.
fn rest(outcome: &Outcome, cell: &Cell) -> String {
    let fast = &cell.paths[0];
    let (setup, alone) = (&outcome.setup, outcome.alone(cell.op));
    let needed = setup.needed_on_fast(alone.fast_ns);
    let (missing, extra) = (setup.cap_mib_s() - fast.mib_s, fast.in_flight - needed);
    if fast.mib_s > 0.95 * setup.cap_mib_s() {
        let on_slow = setup.throughput_mib_s(extra, alone.slow_ns);
        return match extra > 0.01 * f64::from(setup.outstanding) {
            true => format!(
                "{needed:.0} hold fast at its cap; the other {extra:.0} would carry {on_slow:.0} \
                 MiB/s on slow."
            ),
            false => "Fast is at its cap.".to_owned(),
        };
    }
    let of_cap = format!("Of the cap of fast {missing:.0} MiB/s are unused");
    match extra > 0.0 {
        true => format!("{of_cap}, though {needed:.0} in flight would hold it there."),
        false => format!("{of_cap}: {needed:.0} in flight would hold it there."),
    }
}

fn optimum(outcome: &Outcome) -> String {
    let needed = outcome
        .setup
        .needed_on_fast(outcome.alone(Op::Read).fast_ns);
    format!(
        "The optimum has {needed:.0} in flight on fast, which hold it at its cap, and the other \
         {:.0} on slow.",
        f64::from(outcome.setup.outstanding) - needed,
    )
}
