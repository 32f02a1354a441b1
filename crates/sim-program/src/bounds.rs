//! The bound of each scenario: searched once, then kept beside the scenarios with a hash of what it
//! was searched for.
//!
//! # Contract
//! A kept bound is used only if its hash is that of the scenario, the seed and this search; else it
//! is searched anew, which takes some hundred runs. `SEARCH` changes when the list of rules or the
//! world's models do.
use super::limit::{self, limit};
use super::measure;
use super::scenario::Scenario;
use anyhow::{Context, anyhow};
use sim::{Rule, Way, bound};
use std::collections::BTreeMap;

/// Which search: its number is part of the hash.
const SEARCH: u64 = 3;
/// As [`SEARCH`], for worlds with streams, which have rules of their own.
const SEARCH_STREAMS: u64 = 4;

/// The kept bounds: the file in the tree.
const KEPT: &str = include_str!("../../../scenarios/bounds.tsv");

/// The best that a rule that knows everything could do.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Bytes per second; of an open scenario, the mean latency in ns.
    pub value: u64,
    /// By which rule.
    pub by: String,
    /// The 99 % latency of the best static split.
    pub static_p99_ns: u64,
    /// The most that was reached in a while after the step, bytes per second.
    pub after_step: u64,
    /// Upper limit, bytes per second; 0 where that is not known.
    pub limit: u64,
}

impl Bound {
    /// How near the bound is to what nothing can exceed.
    pub fn of_limit(&self) -> Option<f64> {
        (self.limit > 0).then(|| self.value as f64 / self.limit as f64)
    }
}

/// Bounds by scenario, with their hashes.
#[derive(Clone, Debug, Default)]
pub struct Kept(BTreeMap<String, (u64, Bound)>);

impl Kept {
    /// Those of the tree.
    pub fn of_tree() -> Self {
        Self::of_text(KEPT)
    }

    /// Those of a file; what is no line of one is passed over.
    pub fn of_text(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// Adds those of another file.
    pub fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The bound of a scenario, if it is still the same one.
    pub fn find(&self, scenario: &Scenario, seed: u64) -> Option<Bound> {
        let (hash, bound) = self.0.get(&scenario.name)?;
        (*hash == self::hash(scenario, seed)).then(|| bound.clone())
    }

    /// Keeps one.
    pub fn keep(&mut self, scenario: &Scenario, seed: u64, bound: Bound) {
        let hash = hash(scenario, seed);
        self.0.insert(scenario.name.clone(), (hash, bound));
    }

    /// As a file.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# Written by `braid sim --all --keep-bounds FILE`: scenario, hash, bytes/s (open: \
             mean ns), p99 ns of the best static split, bytes/s after the step, bytes/s that \
             nothing can exceed (0: not known), rule.\n",
        );
        for (name, (hash, bound)) in &self.0 {
            let numbers = [
                bound.value,
                bound.static_p99_ns,
                bound.after_step,
                bound.limit,
            ];
            let numbers = numbers.map(|it| it.to_string()).join("\t");
            text.push_str(&format!("{name}\t{hash:016x}\t{numbers}\t{}\n", bound.by));
        }
        text
    }
}

fn parse_line(line: &str) -> Option<(String, (u64, Bound))> {
    if line.starts_with('#') {
        return None;
    }
    let mut parts = line.split('\t');
    let name = parts.next()?.to_owned();
    let hash = u64::from_str_radix(parts.next()?, 16).ok()?;
    let mut number = || parts.next()?.parse().ok();
    let (value, static_p99_ns) = (number()?, number()?);
    let (after_step, limit) = (number()?, number()?);
    let by = parts.next()?.to_owned();
    let bound = Bound {
        value,
        by,
        static_p99_ns,
        after_step,
        limit,
    };
    Some((name, (hash, bound)))
}

/// FNV-1a of all that a bound depends on.
fn hash(scenario: &Scenario, seed: u64) -> u64 {
    let search = match bound::has_streams(&scenario.plan) {
        true => SEARCH_STREAMS,
        false => SEARCH,
    };
    let text = format!("{search} {seed} {:?} {:?}", scenario.plan, scenario.step_ns);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Searches: every rule runs once.
///
/// # Errors
/// The plan is no world.
pub fn search(scenario: &Scenario, seed: u64) -> anyhow::Result<Bound> {
    let plan = &scenario.plan;
    let mut best: Option<(u64, u64, Rule)> = None;
    let mut split: Option<(u64, u64)> = None;
    let mut after_step = 0;
    let suggested = limit::rules(plan);
    for rule in bound::rules(plan).into_iter().chain(suggested) {
        let way = Way::Rule(rule.clone());
        let tally = sim::run(plan, &way, seed).map_err(|why| anyhow!("{why}"))?;
        let worth = bound::value(plan, &tally);
        // The latency of a run that left work undone does not count.
        if tally.turned_away > 0 {
            continue;
        }
        if let Some(step_ns) = scenario.step_ns {
            after_step = after_step.max(measure::after_step(plan, &tally, step_ns));
        }
        if matches!(rule, Rule::Split(_)) && split.is_none_or(|(old, _)| worth > old) {
            split = Some((worth, tally.quantile_ns(990)));
        }
        if best.as_ref().is_none_or(|(old, ..)| worth > *old) {
            let shown = match bound::is_open(plan) {
                true => tally.mean_ns(),
                false => tally.bytes_per_s(),
            };
            best = Some((worth, shown, rule));
        }
    }
    let (_, value, rule) = best.context("no rule could do the work")?;
    Ok(Bound {
        value,
        by: words(&rule),
        static_p99_ns: split.map_or(0, |(_, p99_ns)| p99_ns),
        after_step,
        limit: limit(plan)?.unwrap_or(0),
    })
}

/// A rule in words.
fn words(rule: &Rule) -> String {
    let word = |part: &u32| match part {
        &u32::MAX => "rest".to_owned(),
        part => part.to_string(),
    };
    let list = |of: &[u32]| of.iter().map(word).collect::<Vec<_>>().join(":");
    match rule {
        Rule::Split(share) => format!("split {}", list(share)),
        Rule::Window { share, bytes: true } => format!("window {} bytes", list(share)),
        Rule::Window { share, .. } => format!("window {}", list(share)),
        Rule::Fill { caps, .. } => format!("fill {}", list(caps)),
        Rule::Clairvoyant(weight) => format!("clairvoyant {weight}/8"),
        Rule::Replay(weight) => format!("replay {weight}/8"),
        Rule::Kinds(kinds) => format!("split of {} kinds", kinds.len()),
        Rule::Stripe(bytes) => format!("stripe {}", terminal::units::format_bytes(*bytes)),
        Rule::Region => "region".to_owned(),
        Rule::Job => "job".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A searched bound above the limit would say that a world breaks its own rules, or that the
    /// limit is none. Beyond it a run may have what was in flight when its measured time began, and
    /// luck: a percent.
    #[test]
    fn no_bound_is_above_its_limit() {
        let kept = Kept::of_tree();
        let mut limits = 0;
        for scenario in super::super::catalog::all().unwrap() {
            let bound = kept.find(&scenario, 1).unwrap();
            let plan = &scenario.plan;
            let limit = limit(plan).unwrap().unwrap_or(0);
            assert!(
                limit.abs_diff(bound.limit) <= limit / 1_000_000,
                "{}: keep its bound anew",
                scenario.name
            );
            if limit == 0 {
                continue;
            }
            limits += 1;
            let in_flight = |job: &sim::JobPlan| {
                (job.count * job.depth) as u64 * bound::mean_bytes([job].into_iter())
            };
            let begun: u64 = plan.jobs.iter().map(in_flight).sum();
            let carried = limit as f64 * plan.run_ns as f64 / 1e9;
            let most = limit as f64 * (1.01 + begun as f64 / carried);
            assert!(
                (bound.value as f64) <= most,
                "{}: {} by {}, but nothing can exceed {limit}",
                scenario.name,
                bound.value,
                bound.by
            );
        }
        assert!(limits > 60, "{limits}");
    }

    /// scenarios/bounds.md has each bound that is more than 3 % apart from another simulator's, and
    /// why; no other.
    #[test]
    fn bounds_that_differ_from_another_simulators_are_explained() {
        let page = include_str!("../../../scenarios/bounds.md");
        let kept = Kept::of_tree();
        for scenario in super::super::catalog::all().unwrap() {
            let Some(there) = scenario.bound_elsewhere else {
                continue;
            };
            let value = kept.find(&scenario, 1).unwrap().value as f64;
            let (here, better) = match bound::is_open(&scenario.plan) {
                true => (value / 1e3, there / (value / 1e3)),
                false => (value / 1e6, value / 1e6 / there),
            };
            let begin = format!("| {} | ", scenario.name);
            let row = page.lines().find(|line| line.starts_with(&begin));
            let differs = (better - 1.0).abs() > 0.03;
            assert_eq!(row.is_some(), differs, "{}: {better}", scenario.name);
            let Some(row) = row else {
                continue;
            };
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!(cells[3], format!("{here:.1}"), "{row}");
            assert!(!cells[6].is_empty(), "{row}");
        }
    }

    #[test]
    fn what_is_kept_is_found_again_until_the_scenario_changes() {
        let text = "title = \"t\"\n[path.a]\n[path.b]\n[job.j]\n";
        let mut scenario = super::super::scenario::parse("x", text).unwrap().remove(0);
        let bound = Bound {
            value: 7,
            by: "split 8:8".to_owned(),
            static_p99_ns: 5,
            after_step: 0,
            limit: 9,
        };
        let mut kept = Kept::default();
        kept.keep(&scenario, 1, bound.clone());
        let again = Kept::of_text(&kept.text());
        assert_eq!(again.find(&scenario, 1), Some(bound));
        assert_eq!(again.find(&scenario, 2), None);
        scenario.plan.run_ns += 1;
        assert_eq!(again.find(&scenario, 1), None);
    }
}
