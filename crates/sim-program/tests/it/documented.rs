//! Figures of policies in the documents are those of the tables in scenarios/.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Percent of the bound, by scenario and policy.
type Figures = BTreeMap<String, BTreeMap<String, f64>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads every table of scenarios/.
fn figures() -> Figures {
    let mut figures = Figures::new();
    for entry in std::fs::read_dir(root().join("scenarios")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for table in text.split_terminator("\n\n") {
            let (name, rows) = table.split_once(": ").unwrap();
            let of = figures.entry(name.to_owned()).or_default();
            // A policy's first row is that with its usual window.
            for (policy, figure) in rows.lines().filter_map(row) {
                of.entry(policy).or_insert(figure);
            }
        }
    }
    figures
}

/// The policy and its percentage, if the line is a row of a table.
fn row(line: &str) -> Option<(String, f64)> {
    let (left, _) = line.split_once(" % ")?;
    let mut words = left.split_whitespace();
    let policy = words.next()?;
    let policy = match words.clone().next()? {
        "hedged" => format!("{policy} hedged"),
        _ => policy.to_owned(),
    };
    Some((policy, words.next_back()?.parse().ok()?))
}

/// The cells of the table behind `<!-- figures -->`, with its heading.
fn table(document: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let lines = text.lines().skip_while(|line| *line != "<!-- figures -->");
    let lines = lines.skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim_matches(['|', ' ']).split(" | ");
        cells.map(|it| it.trim_matches('`').to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = lines.map(cells).collect();
    assert!(rows.len() > 2, "{document}: no table of figures");
    rows
}

#[test]
fn policies_md_has_figures_of_the_scenarios() {
    let figures = figures();
    let rows = table("docs/policies.md");
    for cells in &rows[2..] {
        let name = cells[6].strip_prefix("braid sim ").unwrap();
        for column in 1..6 {
            let figure = figures[name][&rows[0][column]];
            assert_eq!(cells[column], format!("{figure:.1}"), "{name}, {column}");
        }
    }
}

#[test]
fn readme_has_means_and_worst_of_all_scenarios() {
    let figures = figures();
    for cells in &table("README.md")[2..] {
        let policy = &cells[0];
        let of = figures.values().filter_map(|table| table.get(policy));
        let of: Vec<f64> = of.copied().collect();
        let mean = of.iter().sum::<f64>() / of.len() as f64;
        let worst = of.iter().copied().fold(f64::MAX, f64::min);
        assert_eq!(of.len(), 97, "scenarios with {policy}");
        // The tables are rounded, the mean that the program prints is not made of them.
        let printed: f64 = cells[1].parse().unwrap();
        assert!((printed - mean).abs() < 0.1, "{policy}: {mean}");
        assert_eq!(cells[2], format!("{worst:.1}"), "{policy}");
    }
}
