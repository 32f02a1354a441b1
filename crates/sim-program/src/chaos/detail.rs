//! A finding, in a world that was made as small as may be.
use super::crew;
use super::trial::{self, Found, HANGS, Outcome};
use sim::chaos::plan::Plan;
use sim::chaos::shrink::{Cut, Kept, shrink};
use sim::chaos::story::Line;
use std::time::Duration;
use terminal::signals::Interrupt;

/// Worlds that are run to make one smaller.
const RUNS_MAX: u32 = 200;
/// Lines of a trace that are shown by default, beside those that a finding rests on.
pub const LINES: usize = 40;
const MS: u64 = 1_000_000;

/// All there is to say about one finding.
#[derive(Clone, Debug)]
pub struct Detail {
    pub seed: u64,
    /// The whole world.
    pub plan: Plan,
    /// The smallest that shows the same.
    pub cut: Cut,
    /// Worlds that were run for that.
    pub runs: u32,
    /// The finding of this world.
    pub found: Found,
    /// The events of this world.
    pub lines: Vec<Line>,
    /// A smaller one that does not come back: it ended the search.
    pub hangs: Option<Cut>,
}

impl Detail {
    /// Of a finding in the world of `seed`, or in a part of it, as `world` runs it. A signal ends
    /// the search for a smaller one, and so does one that is not back after so long.
    pub fn of(
        (plan, found): (Plan, &Found),
        part: Option<Cut>,
        (interrupt, patience): (&Interrupt, Duration),
        world: impl Fn(&Plan) -> Outcome + Clone + Send + Sync + 'static,
    ) -> Self {
        let seed = plan.seed;
        let mut found = found.clone();
        let cut = part.unwrap_or_else(|| Cut::whole(&plan));
        // Further runs of a world that hangs would take too long.
        let runs_max = if found.kind == HANGS { 0 } else { RUNS_MAX };
        let mut hangs = None;
        let (cut, runs) = shrink(cut, runs_max, |cut| {
            if interrupt.is_set() || hangs.is_some() {
                return false;
            }
            let (world, part) = (world.clone(), cut.of(&plan));
            let outcome = crew::watched(patience, move || world(&part));
            if outcome.is_none() {
                hangs = Some(cut.clone());
            }
            let again = outcome.and_then(|it| it.found);
            let again = again.filter(|it| it.kind == found.kind);
            let remains = again.is_some();
            found = again.unwrap_or_else(|| found.clone());
            remains
        });
        let lines = match found.kind == HANGS {
            true => Vec::new(),
            false => trial::story(&cut.of(&plan), &found),
        };
        Self {
            seed,
            plan,
            cut,
            runs,
            found,
            lines,
            hangs,
        }
    }

    /// The lines that are shown: all, or those that the finding rests on and the last ones.
    pub fn shown(&self, whole: bool) -> impl Iterator<Item = &Line> {
        let tail = self.lines.len().saturating_sub(LINES);
        let is_shown = move |&(at, line): &(usize, &Line)| whole || line.key || at >= tail;
        let all = self.lines.iter().enumerate();
        all.filter(is_shown).map(|(_, line)| line)
    }

    /// The command that repeats it.
    pub fn command(&self) -> String {
        self.command_of(&self.cut)
    }

    /// The command that runs a part of its world.
    pub fn command_of(&self, cut: &Cut) -> String {
        let family = match self.plan.layout.mirror {
            Some(_) => "--chaos --mirrors",
            None => "--chaos",
        };
        let mut words = format!("braid sim {family} --seed {} --seeds 1", self.seed);
        let whole = Cut::whole(&self.plan);
        if cut.faults != whole.faults {
            let word = |kept: &Kept| {
                let number = kept.number + 1;
                match kept.lasts_ns {
                    ns if ns == whole.faults[kept.number].lasts_ns => number.to_string(),
                    ns if ns % MS == 0 => format!("{number}:{}ms", ns / MS),
                    ns => format!("{number}:{ns}ns"),
                }
            };
            let list: Vec<String> = cut.faults.iter().map(word).collect();
            let list = match list.is_empty() {
                true => "none".to_owned(),
                false => list.join(","),
            };
            words.push_str(&format!(" --faults {list}"));
        }
        if cut.requests != whole.requests {
            words.push_str(&format!(" --requests {}", cut.requests));
        }
        words
    }
}
