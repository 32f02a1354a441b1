//! docs/results/nightly.md: results of the nightly check, task by task.
//!
//! # Contract
//! The document is the record: each task's row is written when the task ends, with the commit that
//! it ran on, and replaces the row before it. [`rows`] reads what [`render`] wrote, so that a check
//! that was cut goes on where it was.
use anyhow::{Context, Result};
use std::fmt::Write as _;

/// Where it stands.
pub const PLACE: &str = "docs/results/nightly.md";
/// Digits of a commit's hash in a row.
const DIGITS: usize = 12;
/// Follows a commit to which changes were made that are not committed.
const CHANGED: &str = " changed";
/// Follows a commit that is not the document's.
const ANOTHER: &str = " **(another)**";

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Well.
    Passed,
    /// It did not run, which `.ci/allowed-skips` allows.
    Skipped,
    /// It failed, or a test of it was skipped that may not be.
    Failed,
}

impl Verdict {
    const ALL: [Self; 3] = [Self::Passed, Self::Skipped, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped => "skipped",
            Self::Failed => "FAILED",
        }
    }
}

/// The tree of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The commit's hash; `None`: there is no repository.
    pub commit: Option<String>,
    /// There were changes that were not committed.
    pub is_changed: bool,
}

impl Tree {
    /// As rows name it.
    pub fn name(&self) -> String {
        let commit = self.commit.as_deref().unwrap_or("unknown");
        let short = commit.get(..DIGITS).unwrap_or(commit);
        let changed = if self.is_changed { CHANGED } else { "" };
        format!("{short}{changed}")
    }
}

/// The last result of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Step and task.
    pub task: String,
    /// How it ended.
    pub verdict: Verdict,
    /// [`Tree::name`] of what it ran on.
    pub tree: String,
    /// When it ended, UTC, `YYYY-MM-DD HH:MM`.
    pub ended: String,
    /// How long it took.
    pub seconds: u64,
    /// Tests of it that did not run.
    pub skips: usize,
}

impl Row {
    /// Whether it need not run again on `tree`.
    pub fn holds_for(&self, tree: &Tree) -> bool {
        let is_known = tree.commit.is_some() && !tree.is_changed;
        is_known && self.tree == tree.name() && self.verdict != Verdict::Failed
    }
}

/// The document about `tree`: a row for each of `tasks`, in their order.
pub fn render(tree: &Tree, tasks: &[String], rows: &[Row]) -> String {
    let name = tree.name();
    let row_of = |task: &String| rows.iter().find(|row| row.task == *task);
    let of_tree = |row: &&Row| row.tree == name;
    let found = || tasks.iter().filter_map(row_of);
    let missing = tasks.len() - found().count();
    let another = found().filter(|row| !of_tree(row)).count();
    let failed = found().filter(of_tree);
    let failed = failed.filter(|row| row.verdict == Verdict::Failed).count();
    let seconds: u64 = found().filter(of_tree).map(|row| row.seconds).sum();
    let result = match (failed, another, missing) {
        (0, 0, 0) => format!("all {} tasks passed on this commit", tasks.len()),
        _ => format!(
            "NOT COMPLETE: of {} tasks {failed} failed, {another} are of another commit, {missing} \
             did not run",
            tasks.len()
        ),
    };
    let mut text = format!(
        "# Results: the nightly check\n\n\
         Written by `cargo xtask ci --nightly`; [CONTRIBUTING.md](../../CONTRIBUTING.md) says what \
         each\nstep checks. Times are UTC.\n\n\
         - commit: {name}\n\
         - result: {result}\n\
         - sum of the durations on this commit: {seconds} s\n\n\
         | task | result | ended | seconds | tests skipped | commit |\n|---|---|---|---|---|---|\n"
    );
    for task in tasks {
        let Some(row) = row_of(task) else {
            let _ = writeln!(text, "| `{task}` | **missing** | – | – | – | – |");
            continue;
        };
        let another = if of_tree(&row) { "" } else { ANOTHER };
        let _ = writeln!(
            text,
            "| `{task}` | {} | {} | {} | {} | {}{another} |",
            row.verdict.word(),
            row.ended,
            row.seconds,
            row.skips,
            row.tree
        );
    }
    text
}

/// The rows of a document; none of tasks that are missing.
///
/// # Errors
/// A row that [`render`] did not write.
pub fn rows(text: &str) -> Result<Vec<Row>> {
    let lines = text.lines().filter(|line| line.starts_with("| `"));
    let lines = lines.filter(|line| !line.contains("| **missing** |"));
    lines
        .map(|line| row(line).with_context(|| format!("{PLACE}: no row of a task: {line}")))
        .collect()
}

fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
    let [task, verdict, ended, seconds, skips, tree] = cells[..] else {
        return None;
    };
    Some(Row {
        task: task.trim_matches('`').to_owned(),
        verdict: Verdict::ALL.into_iter().find(|it| it.word() == verdict)?,
        tree: tree.strip_suffix(ANOTHER).unwrap_or(tree).to_owned(),
        ended: ended.to_owned(),
        seconds: seconds.parse().ok()?,
        skips: skips.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Row, Tree, Verdict, render, rows};

    fn tree(commit: &str) -> Tree {
        Tree {
            commit: Some(commit.to_owned()),
            is_changed: false,
        }
    }

    fn row(task: &str, verdict: Verdict, tree: &Tree) -> Row {
        Row {
            task: task.to_owned(),
            verdict,
            tree: tree.name(),
            ended: "2026-11-29 18:05".to_owned(),
            seconds: 2000,
            skips: 2,
        }
    }

    fn tasks() -> Vec<String> {
        ["fmt", "chaos plain", "loom"].map(str::to_owned).to_vec()
    }

    #[test]
    fn all_passed_only_where_each_task_passed_on_this_commit() {
        let here = tree("25d6a9a4012345678");
        let mut found: Vec<Row> = tasks()
            .iter()
            .map(|task| row(task, Verdict::Passed, &here))
            .collect();
        let text = render(&here, &tasks(), &found);
        for line in [
            "- commit: 25d6a9a40123",
            "- result: all 3 tasks passed on this commit",
            "- sum of the durations on this commit: 6000 s",
            "| `chaos plain` | passed | 2026-11-29 18:05 | 2000 | 2 | 25d6a9a40123 |",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        found[0].verdict = Verdict::Failed;
        found[1].tree = tree("0123456789abcdef").name();
        found.pop();
        let text = render(&here, &tasks(), &found);
        for line in [
            "- result: NOT COMPLETE: of 3 tasks 1 failed, 1 are of another commit, 1 did not run",
            "- sum of the durations on this commit: 2000 s",
            "| `fmt` | FAILED | 2026-11-29 18:05 | 2000 | 2 | 25d6a9a40123 |",
            "| `chaos plain` | passed | 2026-11-29 18:05 | 2000 | 2 | 0123456789ab **(another)** |",
            "| `loom` | **missing** | – | – | – | – |",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let (here, mut dirty) = (tree("25d6a9a4012345678"), tree("25d6a9a4012345678"));
        dirty.is_changed = true;
        let found = [
            row("chaos plain", Verdict::Failed, &tree("0123456789abcdef")),
            row("loom", Verdict::Skipped, &dirty),
        ];
        let text = render(&here, &tasks(), &found);
        assert_eq!(rows(&text).unwrap(), found);
        assert!(rows("| `loom` | well | 1 | 2 | 3 | 4 |\n").is_err());
        assert!(rows("").unwrap().is_empty());
    }

    #[test]
    fn a_row_holds_only_for_its_own_commit_without_changes() {
        let here = tree("25d6a9a4012345678");
        let changed = Tree {
            is_changed: true,
            ..here.clone()
        };
        assert!(row("fmt", Verdict::Passed, &here).holds_for(&here));
        assert!(row("fmt", Verdict::Skipped, &here).holds_for(&here));
        assert!(!row("fmt", Verdict::Failed, &here).holds_for(&here));
        assert!(!row("fmt", Verdict::Passed, &here).holds_for(&tree("0123456789abcdef")));
        assert!(!row("fmt", Verdict::Passed, &changed).holds_for(&changed));
        assert!(!row("fmt", Verdict::Passed, &changed).holds_for(&here));
    }
}
