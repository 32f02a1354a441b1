//! docs/results/nightly.md: what the last nightly check showed.
use std::fmt::Write as _;

/// Where it stands.
pub const PLACE: &str = "docs/results/nightly.md";

/// How a step ended.
pub struct Outcome {
    /// The step.
    pub name: &'static str,
    /// It passed, or was skipped as `.ci/allowed-skips` allows.
    pub well: bool,
    /// It did not run at all.
    pub skipped: bool,
    /// How long it took.
    pub seconds: f64,
    /// Tests of it that did not run.
    pub skips: usize,
}

/// On what it ran.
pub struct Tree {
    /// The commit's hash.
    pub commit: String,
    /// There were changes that were not committed.
    pub changed: bool,
    /// The day, YYYY-MM-DD.
    pub date: String,
    /// Processors.
    pub cores: usize,
}

/// The document.
pub fn render(tree: &Tree, outcomes: &[Outcome]) -> String {
    let seconds: f64 = outcomes.iter().map(|it| it.seconds).sum();
    let failed = outcomes.iter().filter(|it| !it.well).count();
    let changed = match tree.changed {
        true => " with changes that are not committed",
        false => "",
    };
    let mut text = format!(
        "# Results: the nightly check\n\n\
         Written by `cargo xtask ci --nightly`; [CONTRIBUTING.md](../../CONTRIBUTING.md) says what \
         each\nstep checks.\n\n\
         - commit: {}{changed}\n\
         - date: {}\n\
         - cores: {}\n\
         - duration: {seconds:.0} s\n\
         - result: {}\n\n\
         | step | result | seconds | tests skipped |\n|---|---|---|---|\n",
        tree.commit,
        tree.date,
        tree.cores,
        match failed {
            0 => "all steps passed".to_owned(),
            failed => format!("{failed} steps FAILED"),
        }
    );
    for outcome in outcomes {
        let result = match (outcome.well, outcome.skipped) {
            (true, false) => "passed",
            (true, true) => "skipped",
            (false, _) => "FAILED",
        };
        let (name, seconds, skips) = (outcome.name, outcome.seconds, outcome.skips);
        let _ = writeln!(text, "| `{name}` | {result} | {seconds:.0} | {skips} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Tree, render};

    fn outcome(name: &'static str, well: bool, seconds: f64) -> Outcome {
        Outcome {
            name,
            well,
            skipped: false,
            seconds,
            skips: 2,
        }
    }

    #[test]
    fn commit_duration_and_each_step_are_told() {
        let mut tree = Tree {
            commit: "25d6a9a4".to_owned(),
            changed: false,
            date: "2026-11-29".to_owned(),
            cores: 2,
        };
        let mut outcomes = vec![outcome("fmt", true, 3.2), outcome("chaos", true, 4000.0)];
        let text = render(&tree, &outcomes);
        for line in [
            "- commit: 25d6a9a4",
            "- duration: 4003 s",
            "- result: all steps passed",
            "| `chaos` | passed | 4000 | 2 |",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        tree.changed = true;
        outcomes[0].skipped = true;
        outcomes[1].well = false;
        let text = render(&tree, &outcomes);
        for words in [
            "25d6a9a4 with changes that are not committed",
            "result: 1 steps FAILED",
            "| `fmt` | skipped |",
            "| `chaos` | FAILED |",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
