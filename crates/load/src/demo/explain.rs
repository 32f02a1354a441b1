//! Why each policy lands where it does, in the figures that were measured.
//!
//! # Contract
//! What a policy does is said from its definition; what came of it, from the cell. Nothing here
//! holds a figure of its own.
use super::cells::{Cell, Op, Outcome};
use policy::Policy;
use terminal::units::format_ns;

/// One sentence or two for each policy that read, then what the optimum would take.
pub fn explanations(outcome: &Outcome) -> Vec<String> {
    let policies = outcome.policies().into_iter();
    let cells = policies.filter_map(|policy| outcome.cell(policy, Op::Read));
    let mut lines: Vec<String> = cells.map(|cell| explain(outcome, cell)).collect();
    if !lines.is_empty() {
        lines.push(optimum(outcome));
    }
    lines
}

fn explain(outcome: &Outcome, cell: &Cell) -> String {
    let [fast, slow] = &cell.paths;
    let cap = outcome.setup.cap_mib_s();
    let used = format!("fast runs at {:.0} of its {cap:.0} MiB/s", fast.mib_s);
    let on = format!(
        "{:.0} I/Os are on fast and {:.0} on slow",
        fast.in_flight, slow.in_flight
    );
    match cell.policy {
        Policy::Numa if fast.share < 0.01 => format!(
            "numa takes the nearest path, here slow, for every I/O: {} outstanding at {} each; \
             fast is idle. It is told so on purpose: nearness says nothing of speed, and this is \
             what a fixed choice costs when it is the wrong one.",
            outcome.setup.outstanding,
            format_ns(slow.mean_ns),
        ),
        Policy::Numa => format!("numa takes the nearest path as long as it is there; {used}."),
        Policy::RoundRobin { .. } => format!(
            "round-robin sends equally many to both ({:.0} : {:.0} %), so they pile up where they \
             take longest: on average {on}; {used}.",
            fast.share * 100.0,
            slow.share * 100.0,
        ),
        Policy::QueueDepth => format!(
            "queue-depth keeps equally many on both: on average {on}; {used}. {}",
            surplus(outcome, cell),
        ),
        Policy::WeightedLatency(_) => format!(
            "{} gives each path I/Os in proportion to 1 ÷ its latency (fast {}, slow \
             {}: {:.1} : {:.1} %). Rate × latency is what is in flight (Little's law): on average \
             {on}; {used}. {}",
            cell.policy,
            format_ns(fast.mean_ns),
            format_ns(slow.mean_ns),
            fast.share * 100.0,
            slow.share * 100.0,
            balance(cell),
        ),
        Policy::Soonest => format!(
            "soonest fills fast first and gives slow what would wait too long there, since who \
             waits makes all behind him wait: {:.1} : {:.1} %, on average {on}; {used}. {}",
            fast.share * 100.0,
            slow.share * 100.0,
            surplus(outcome, cell),
        ),
        _ => format!(
            "{} {}: {:.1} : {:.1} %, on average {on}; {used}.",
            cell.policy,
            rule(cell.policy),
            fast.share * 100.0,
            slow.share * 100.0,
        ),
    }
}

/// The rule of a policy other than braid's own.
fn rule(policy: Policy) -> &'static str {
    match policy {
        Policy::Pid => "gives each job the path of its number, whatever that can do",
        Policy::Latency => {
            "sends all to the path that was faster lately, until it is the slower one"
        }
        Policy::Devid(_) => "takes the path it names",
        Policy::RoundRobinLatency { .. } => {
            "sends equally many to the paths within a fifth of the least latency"
        }
        Policy::ServiceTime => {
            "keeps equally many bytes in flight on both, as long as no throughput is given"
        }
        Policy::HistoricalServiceTime => {
            "takes the path that, as fast as it served lately, will have served this one first"
        }
        _ => "chooses",
    }
}

/// I/Os that wait on the fast path beyond those that it needs.
fn surplus(outcome: &Outcome, cell: &Cell) -> String {
    let fast = &cell.paths[0];
    let needed = outcome.setup.needed_on_fast(outcome.alone(cell.op).fast_ns);
    let extra = fast.in_flight - needed;
    let at_cap = fast.mib_s > 0.95 * outcome.setup.cap_mib_s();
    if at_cap && extra > 0.01 * f64::from(outcome.setup.outstanding) {
        format!(
            "{needed:.0} would keep fast at its cap: {extra:.0} wait there and are missing on slow."
        )
    } else {
        String::new()
    }
}

/// Whether rates in proportion to 1 ÷ latency came to equal numbers in flight, as they do when
/// latencies hold still.
fn balance(cell: &Cell) -> &'static str {
    let [fast, slow] = &cell.paths;
    match fast.in_flight / slow.in_flight.max(f64::MIN_POSITIVE) {
        ratio if ratio > 1.25 => {
            "That is more on fast than equal numbers: its latency grows with its queue, and \
             weights follow a window late."
        }
        ratio if ratio < 0.8 => {
            "That is more on slow than equal numbers: weights follow the latencies a window late."
        }
        _ => {
            "Rate in proportion to 1 ÷ latency, times latency, is the same for both: equal numbers \
             in flight (Little's law), level with queue-depth."
        }
    }
}

fn optimum(outcome: &Outcome) -> String {
    let alone = outcome.alone(Op::Read);
    let needed = outcome.setup.needed_on_fast(alone.fast_ns);
    format!(
        "The optimum keeps {needed:.0} I/Os on fast, which hold it at its cap, and the other \
         {:.0} on slow. What reaches it gives a path more only as long as that raises the path's \
         throughput; latency and numbers in flight alone do not show where that ends.",
        f64::from(outcome.setup.outstanding) - needed,
    )
}
