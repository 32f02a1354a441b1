//! `braid sim --chaos`: the whole engine in random worlds full of faults, one world per seed.
//!
//! * [`crew`]: threads that run worlds; [`trial`]: one of them, whatever becomes of it
//! * [`sums`]: what came of all; [`detail`]: of one with a finding, made as small as may be
//! * [`mod@show`]: how it is told, [`mod@tell`]: to whom, and what if that fails
//!
//! # Contract
//! The course of a world depends on its seed alone, not on the number of threads, and worlds count
//! in the order of their seeds.
//!
//! # Limits
//! An event that ends a process (a stack that overflows, no memory) ends this one, and its seed is
//! not printed.
mod crew;
mod detail;
mod programs;
mod show;
mod sums;
mod tell;
mod trial;

use crate::args::{ChaosArgs, Faults};
use crew::{Ended, PATIENCE, Work};
use detail::Detail;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use sim::chaos::judged::{Check, Family};
use sim::chaos::plan::{Kind, Plan};
use sim::chaos::shrink::{Cut, Kept};
use std::time::{Duration, Instant};
use std::{fmt, io};
use sums::Sums;
use tell::Teller;
use terminal::exit::Usage;
use terminal::output::{self, Format};
use terminal::signals::Interrupt;
use trial::{Found, Outcome};

/// Default number of worlds.
const SEEDS: u64 = 100;
/// The search ends after so many findings.
const FINDINGS_MAX: usize = 20;

/// Parameters of the search, apart from the worlds themselves.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// First seed.
    pub seed: u64,
    /// At least 1.
    pub threads: usize,
    pub format: Format,
}

/// Everything that is told at the end.
struct Course {
    wish: Wish,
    sums: Sums,
    /// By seed.
    findings: Vec<(u64, Found)>,
    ended: Ended,
    elapsed: Duration,
    detail: Option<Detail>,
    /// Faults in such worlds, each once.
    kinds: Vec<Kind>,
    /// Checkers that judge there.
    checks: Vec<Check>,
}

/// Runs the worlds.
///
/// # Errors
/// Usage; a finding (exit code 1); standard output that can't be written ([`tell::UNTOLD`]); it was
/// interrupted ([`tell::INTERRUPTED`]).
pub fn run(args: &ChaosArgs, wish: Wish) -> anyhow::Result<()> {
    let work = args.work(wish)?;
    let cut = args.cut(wish.seed)?;
    trial::keep_panics();
    let interrupt = Interrupt::install()?;
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut teller = Teller::new(wish.format, (&mut out, &mut err));
    if let Some(why) = output::missing() {
        teller.give_up(why);
    }
    let asked = Asked { args, wish, cut };
    asked.drive(&work, &interrupt, teller, trial::outcome)
}

/// Which worlds.
struct Asked<'a> {
    args: &'a ChaosArgs,
    wish: Wish,
    cut: Option<Cut>,
}

impl Asked<'_> {
    /// Runs them with `world`, and tells of them.
    fn drive(
        self,
        work: &Work,
        interrupt: &Interrupt,
        mut teller: Teller<'_>,
        world: impl Fn(&Plan) -> Outcome + Clone + Send + Sync + 'static,
    ) -> anyhow::Result<()> {
        let Self { args, wish, cut } = self;
        // Printed first, so that the seed is known also if this process dies.
        teller.line(&format!("seed {}", wish.seed));
        let begun = Instant::now();
        let of_seed = {
            let (cut, args, world) = (cut.clone(), args.clone(), world.clone());
            move |seed| world(&args.part(seed, cut.as_ref()))
        };
        let bar = bar(work);
        let (mut sums, mut findings) = (Sums::default(), Vec::new());
        let mut ended = Ended::Enough;
        if teller.is_well() {
            ended = crew::run(work, interrupt, of_seed, |seed, outcome: Outcome| {
                sums.add(seed, &outcome.report);
                bar.set_position(sums.worlds);
                if let Some(found) = outcome.found {
                    let line = format!("seed {seed}: {}", found.text);
                    bar.suspend(|| teller.line(&line));
                    findings.push((seed, found));
                    bar.set_message(show::findings(findings.len()));
                }
                teller.is_well() && findings.len() < FINDINGS_MAX
            })?;
        }
        bar.set_message("making it smaller");
        let first = findings.first();
        let detail = first.map(|(seed, found)| {
            let of_world = (args.plan(*seed), found);
            Detail::of(of_world, cut, (interrupt, PATIENCE), world)
        });
        bar.finish_and_clear();
        let course = Course {
            wish,
            sums,
            findings,
            ended,
            elapsed: begun.elapsed(),
            detail,
            kinds: args.kinds(),
            checks: args.checks(),
        };
        course.show(args.trace, &mut teller);
        let interrupted = course.ended == Ended::Asked;
        teller.end(course.sums.worlds, course.findings.len(), interrupted)
    }
}

fn bar(work: &Work) -> ProgressBar {
    let (bar, template) = match work.count {
        u64::MAX => (
            ProgressBar::new_spinner(),
            "{spinner} {elapsed}  {pos} {worlds}  {msg}",
        ),
        count => (
            ProgressBar::new(count),
            "{wide_bar:.cyan} {pos}/{len} {worlds}  {msg}",
        ),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        let count = |it: &ProgressState| it.len().unwrap_or(it.pos());
        let word = move |it: &ProgressState, text: &mut dyn fmt::Write| {
            // A bar that lacks a word is one all the same.
            let _: fmt::Result = text.write_str(if count(it) == 1 { "world" } else { "worlds" });
        };
        bar.set_style(style.with_key("worlds", word));
    }
    bar
}

impl ChaosArgs {
    /// The plan of a seed.
    fn plan(&self, seed: u64) -> Plan {
        match self.mirrors {
            true => Plan::draw_mirror(seed),
            false => Plan::draw(seed),
        }
    }

    /// The faults in the family's worlds.
    fn kinds(&self) -> Vec<Kind> {
        match self.mirrors {
            true => Kind::of_mirror_worlds().collect(),
            false => Kind::ALL.to_vec(),
        }
    }

    /// Checkers of the family's worlds.
    fn checks(&self) -> Vec<Check> {
        Check::of(match self.mirrors {
            true => Family::Mirrors,
            false => Family::Plain,
        })
    }

    /// The remaining part of the plan.
    fn part(&self, seed: u64, cut: Option<&Cut>) -> Plan {
        let plan = self.plan(seed);
        match cut {
            Some(cut) => cut.of(&plan),
            None => plan,
        }
    }

    fn work(&self, wish: Wish) -> anyhow::Result<Work> {
        let one = self.faults.is_some() || self.requests.is_some();
        let count = match (self.seeds, self.hours) {
            (Some(0), _) => return Err(Usage::error("--seeds: at least one")),
            (Some(seeds), _) if one && seeds > 1 => {
                let text = "--faults, --requests: of one world (--seeds 1)";
                return Err(Usage::error(text));
            }
            (Some(seeds), _) => seeds,
            (None, _) if one => 1,
            (None, Some(_)) => u64::MAX,
            (None, None) => SEEDS,
        };
        // After the first.
        let more = u64::MAX - wish.seed;
        if self.seeds.is_some() && count - 1 > more {
            let text = "--seeds: seeds end at 2^64 - 1; begin with a smaller --seed";
            return Err(Usage::error(text));
        }
        let count = (count - 1).min(more).saturating_add(1);
        Ok(Work {
            first: wish.seed,
            count,
            until: self.hours.and_then(|it| Instant::now().checked_add(it)),
            threads: wish.threads,
            patience: PATIENCE,
        })
    }

    /// The remaining part of the one world; `None`: all.
    fn cut(&self, seed: u64) -> anyhow::Result<Option<Cut>> {
        if self.faults.is_none() && self.requests.is_none() {
            return Ok(None);
        }
        let mut cut = Cut::whole(&self.plan(seed));
        if let Some(Faults(wanted)) = &self.faults {
            let kept = |&(number, lasts_ns): &(usize, Option<u64>)| {
                let whole = number.checked_sub(1).and_then(|at| cut.faults.get(at));
                let whole = whole.ok_or_else(|| {
                    let count = cut.faults.len();
                    let text = format!("--faults: {number}: seed {seed} has faults 1 to {count}");
                    Usage::error(text)
                })?;
                let lasts_ns = lasts_ns.map_or(whole.lasts_ns, |ns| ns.min(whole.lasts_ns));
                Ok(Kept { lasts_ns, ..*whole })
            };
            cut.faults = wanted.iter().map(kept).collect::<anyhow::Result<_>>()?;
        }
        cut.requests = self.requests.unwrap_or(cut.requests).min(cut.requests);
        Ok(Some(cut))
    }
}

#[cfg(test)]
mod tests;
