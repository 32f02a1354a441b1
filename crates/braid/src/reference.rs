//! Holds docs/configuration.md to the types that read the configuration.
//!
//! A table stands behind `<!-- keys: NAME -->`. Its columns are key, value, default, change (only
//! where keys differ in it) and meaning. A default in backticks is a value of TOML; the others are
//! the words `required`, `none` and `derived`.
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use terminal::text;

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");

/// One key of a table.
pub struct Row {
    /// As it stands in a file.
    pub key: String,
    /// How the key can be changed while the program runs; empty in a table without that column.
    pub change: String,
    /// As it stands in the table.
    pub default: String,
}

/// Returns the rows of the table `name`.
pub fn table(name: &str) -> Vec<Row> {
    let mark = format!("<!-- keys: {name} -->");
    let lines = DOCUMENT.lines().skip_while(|line| *line != mark).skip(1);
    let lines = lines.take_while(|line| line.starts_with('|'));
    let rows: Vec<Row> = lines.skip(2).map(row).collect();
    assert!(!rows.is_empty(), "docs/configuration.md has no {mark}");
    rows
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line
        .split(" | ")
        .map(|it| it.trim_matches([' ', '|']))
        .collect();
    let (key, default, change, meaning) = match cells[..] {
        [key, _, default, change, meaning] => (key, default, change, meaning),
        [key, _, default, meaning] => (key, default, "", meaning),
        _ => panic!("neither five cells nor four: {line}"),
    };
    assert!(!meaning.is_empty(), "{line}");
    let key = key.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
    Row {
        key: key.unwrap_or_else(|| panic!("no key: {line}")).to_owned(),
        change: change.to_owned(),
        default: default.to_owned(),
    }
}

/// Returns the keys that a type reads: its error about an unknown key lists them.
fn known<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = text::toml::<T>("\"\" = 0").err().unwrap_or_default();
    let list = error.split_once("; known here: ").unwrap_or_default().1;
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Compares the table `name` with a type: its keys, and their defaults.
///
/// `least` has the required keys, one per line. `resolve` replaces what a file leaves out by the
/// value that is used instead.
pub fn compare<T: DeserializeOwned + Debug>(name: &str, least: &str, resolve: impl Fn(&mut T)) {
    let rows = table(name);
    let documented: BTreeSet<String> = rows.iter().map(|row| row.key.clone()).collect();
    assert_eq!(documented.len(), rows.len(), "{name}: a key has two rows");
    assert_eq!(
        documented,
        known::<T>(),
        "{name}: keys of the document and of the type"
    );
    let resolved = |text: &str| {
        let read = text::toml(text);
        let mut read: T = read.unwrap_or_else(|error| panic!("{name}: {error}"));
        resolve(&mut read);
        format!("{read:?}")
    };
    let usual = resolved(least);
    for Row { key, default, .. } in rows {
        if let Some(value) = default
            .strip_prefix('`')
            .and_then(|it| it.strip_suffix('`'))
        {
            let text = format!("{key} = {value}\n{least}");
            assert_eq!(
                resolved(&text),
                usual,
                "{name}: {key} is not {value} by default"
            );
            continue;
        }
        match default.as_str() {
            "required" => {
                let others = least.lines().filter(|line| !line.starts_with(&key));
                let others = others.collect::<Vec<_>>().join("\n");
                assert_ne!(
                    others.len(),
                    least.trim_end().len(),
                    "{name}: {key} is not in {least}"
                );
                let read = text::toml::<T>(&others);
                assert!(read.is_err(), "{name}: {key} is not required");
            }
            "none" | "derived" => {
                let unset = ["None", "0,"].map(|value| format!(" {key}: {value}"));
                let is_unset = unset.iter().any(|it| usual.contains(it));
                assert!(is_unset, "{name}: {key} has a default: {usual}");
            }
            other => panic!("{name}: {key}: no such default: {other}"),
        }
    }
}

/// Fails for a name of a table that no test compares.
#[test]
fn every_table_of_the_document_is_compared() {
    let compared = [
        "engine",
        "alarms",
        "discovery",
        "queue",
        "queue namespace",
        "volume",
        "leg",
        "path",
        "export",
        "target",
        "namespace",
        "port",
        "faults",
        "referral",
    ];
    let marks = DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("<!-- keys: "));
    let names: BTreeSet<&str> = marks.map(|it| it.trim_end_matches(" -->")).collect();
    assert_eq!(names, BTreeSet::from(compared));
}
