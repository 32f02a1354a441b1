//! The tables of planted bugs in crates/sim/examples/canaries.md: read, compared with the findings,
//! and written anew.
//!
//! # Contract
//! A row is known by its first cell. A checker's words are kept without numbers, which change
//! with every course of a world. `--write` changes rows only: one that is there stays where it
//! is, a new one comes to the end of the table of its family, the others' first.
use super::SAID_MAX;
use anyhow::{Result, bail};

/// Where the tables are.
pub const PLACE: &str = "crates/sim/examples/canaries.md";
/// The first line of each table.
const HEAD: &str = "| canary | planted | within seeds | found by seed | the checker said |";

/// One planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub planted: String,
    pub within: u64,
    pub seed: u64,
    /// Without numbers.
    pub said: String,
    /// It is found in worlds with a mirror.
    pub mirrors: bool,
}

impl Row {
    fn line(&self) -> String {
        let escape = |text: &str| text.replace('|', "\\|");
        format!(
            "| {} | {} | {} | {} | {} |",
            self.name,
            escape(&self.planted),
            self.within,
            self.seed,
            escape(&self.said)
        )
    }

    /// How it is told otherwise; `None`: it is not.
    pub fn differs(&self, kept: &[Self]) -> Option<String> {
        let Some(other) = kept.iter().find(|it| it.name == self.name) else {
            return Some(format!("{PLACE} has no row {}", self.name));
        };
        let cells = |it: &Self| {
            let (within, seed) = (it.within.to_string(), it.seed.to_string());
            [it.planted.clone(), within, seed, it.said.clone()]
        };
        let what = ["planted", "within seeds", "found by seed", "said"];
        let pairs = what
            .into_iter()
            .zip(cells(other).into_iter().zip(cells(self)));
        let lines = pairs.filter(|(_, (there, here))| there != here);
        let lines = lines.map(|(what, (there, here))| format!("{what}: {there:?}, now {here:?}"));
        let lines: Vec<String> = lines.collect();
        let told = format!("{PLACE} says of {}: {}", self.name, lines.join("; "));
        (!lines.is_empty()).then_some(told)
    }
}

/// Words of a checker, few and without their numbers.
pub fn words(said: &str) -> String {
    let line = said.lines().next().unwrap_or_default();
    // Of where a panic was, the file.
    let line = match line.rsplit_once(".rs:") {
        Some((before, place)) if place.ends_with(')') => format!("{before}.rs)"),
        _ => line.to_owned(),
    };
    let mut text = String::new();
    let mut letters = line.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        if !letter.is_ascii_digit() || before.is_alphanumeric() {
            text.push(letter);
            before = letter;
            continue;
        }
        let more = |it: &char| it.is_ascii_alphanumeric() || *it == '.';
        while letters.next_if(more).is_some() {}
        text.push('#');
        before = '#';
    }
    match text.char_indices().nth(SAID_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    let mark = "\u{1}";
    let line = line.replace("\\|", mark);
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    let cells = inner.split('|');
    cells.map(|it| it.trim().replace(mark, "|")).collect()
}

/// Number of a line, and the row there.
fn rows(text: &str) -> Result<Vec<(usize, Row)>> {
    let mut rows = Vec::new();
    let mut tables = 0;
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        if line == HEAD {
            (inside, tables) = (true, tables + 1);
            continue;
        }
        inside &= line.starts_with('|');
        if !inside || line.starts_with("|-") {
            continue;
        }
        let cells = cells(line);
        let [name, planted, within, seed, said] = &cells[..] else {
            bail!("{PLACE}:{}: {} cells", number + 1, cells.len());
        };
        let (Ok(within), Ok(seed)) = (within.parse(), seed.parse()) else {
            bail!("{PLACE}:{}: no number of seeds: {line}", number + 1);
        };
        let row = Row {
            name: name.clone(),
            planted: planted.clone(),
            within,
            seed,
            said: said.clone(),
            mirrors: tables > 1,
        };
        rows.push((number, row));
    }
    match tables {
        2 => Ok(rows),
        _ => bail!("{PLACE} has {tables} tables of canaries, not 2"),
    }
}

/// All rows that the text has.
///
/// # Errors
/// A line is no such row, or there are not two tables.
pub fn read(text: &str) -> Result<Vec<Row>> {
    Ok(rows(text)?.into_iter().map(|it| it.1).collect())
}

/// The text with these rows.
///
/// # Errors
/// As [`read`].
pub fn rewrite(text: &str, new: &[Row]) -> Result<String> {
    let there = rows(text)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut more = [Vec::new(), Vec::new()];
    for row in new {
        match there.iter().find(|(_, it)| it.name == row.name) {
            Some((at, _)) => lines[*at] = row.line(),
            None => more[usize::from(row.mirrors)].push(row.line()),
        }
    }
    // From behind, so that numbers of lines stay.
    for (mirrors, more) in [true, false].into_iter().zip(more.into_iter().rev()) {
        let last = there.iter().rfind(|(_, it)| it.mirrors == mirrors);
        let end = last.map_or(lines.len(), |(at, _)| at + 1);
        lines.splice(end..end, more);
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, seed: u64, said: &str, mirrors: bool) -> Row {
        Row {
            name: name.to_owned(),
            planted: "what | where".to_owned(),
            within: 100,
            seed,
            said: said.to_owned(),
            mirrors,
        }
    }

    fn text() -> String {
        let line = "|---|---|---|---|---|";
        let (one, two) = (
            row("One", 3, "wrong", false),
            row("Two", 4, "a panic", true),
        );
        let (one, two) = (one.line(), two.line());
        format!("before\n\n{HEAD}\n{line}\n{one}\n\nbetween\n\n{HEAD}\n{line}\n{two}\n\nbehind\n")
    }

    #[test]
    fn rows_are_read_and_the_same_rows_change_nothing() {
        let text = text();
        let rows = read(&text).unwrap();
        assert_eq!(rows[0], row("One", 3, "wrong", false));
        assert_eq!(rows[1], row("Two", 4, "a panic", true));
        assert_eq!(rewrite(&text, &rows).unwrap(), text);
        assert!(rows.iter().all(|it| it.differs(&rows).is_none()));
        assert!(read("no table").is_err());
        assert!(read(&text.replace("| 3 |", "| three |")).is_err());
    }

    #[test]
    fn what_differs_is_told_and_written() {
        let text = text();
        let kept = read(&text).unwrap();
        let now = row("One", 5, "wrong", false);
        let told = now.differs(&kept).unwrap();
        assert!(told.contains("found by seed: \"3\", now \"5\""), "{told}");
        assert!(!told.contains("said"), "{told}");
        let new = row("Three", 1, "lost", false);
        let told = new.differs(&kept).unwrap();
        assert!(told.contains("no row Three"), "{told}");
        let written = rewrite(&text, &[now.clone(), new.clone()]).unwrap();
        let two = row("Two", 4, "a panic", true);
        assert_eq!(read(&written).unwrap(), [now, new, two]);
        let kept = |it: &str| written.lines().any(|line| line == it);
        assert!(kept("before") && kept("between") && kept("behind"));
    }

    #[test]
    fn what_is_said_has_no_numbers() {
        let said = "node 2: 0x1f of PathIndex(0) at 3.25 s, T14\nmore";
        assert_eq!(words(said), "node #: # of PathIndex(#) at # s, T14");
        let said = "panic: 0 + 8192 of 0 (crates/a/b.rs:18:9)";
        assert_eq!(words(said), "panic: # + # of # (crates/a/b.rs)");
        let long = words(&"é".repeat(SAID_MAX + 1));
        assert_eq!(long.chars().count(), SAID_MAX + 1);
    }

    #[test]
    fn the_tables_of_the_docs_are_read() {
        let place = format!("{}/../{PLACE}", env!("CARGO_MANIFEST_DIR"));
        let rows = read(&std::fs::read_to_string(place).unwrap()).unwrap();
        assert!(rows.iter().any(|it| it.mirrors) && rows.iter().any(|it| !it.mirrors));
        let names: std::collections::BTreeSet<_> = rows.iter().map(|it| &it.name).collect();
        assert_eq!(names.len(), rows.len());
    }
}
