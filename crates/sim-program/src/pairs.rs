//! Policies beside one another world by world: with the first one, or with themselves in the
//! results of another build.
use super::measure::{Column, Row};
use anyhow::{Context, anyhow};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use terminal::output::Style;
use terminal::table::Table;
use terminal::text;

/// Results of another build: value by world and policy.
pub struct Before(BTreeMap<(String, String), f64>);

impl Before {
    /// Reads what `-o json` printed.
    ///
    /// # Errors
    /// It cannot be read, or is something else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let results = Self::of_text(&text::read(path)?);
        results.with_context(|| format!("{}: no results of `-o json`", path.display()))
    }

    fn of_text(text: &str) -> anyhow::Result<Self> {
        let results: Value = serde_json::from_str(text).map_err(|why| anyhow!("{why}"))?;
        let list = |of: &Value, key: &str| of[key].as_array().cloned().context("no list");
        let mut values = BTreeMap::new();
        for scenario in list(&results, "scenarios")? {
            let name = scenario["name"].as_str().context("no name")?.to_owned();
            for policy in list(&scenario, "policies")? {
                let word = policy["policy"].as_str().context("no policy")?.to_owned();
                let of_bound = policy["of_bound"]
                    .as_f64()
                    .context("no part of the bound")?;
                values.insert((name.clone(), word), of_bound);
            }
        }
        Ok(Self(values))
    }
}

/// One policy over all worlds, beside another.
struct Pair {
    name: String,
    /// Parts of the bound in each world: of the policy, and of what it is compared with.
    parts: Vec<(f64, f64)>,
}

impl Pair {
    /// The cells of its row: what it reaches itself, then how it compares.
    fn cells(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.1}", 100.0 * part);
        let count = self.parts.len().max(1) as f64;
        let mut own: Vec<f64> = self.parts.iter().map(|it| it.0).collect();
        own.sort_by(f64::total_cmp);
        let mean = own.iter().sum::<f64>() / count;
        let at = |part: f64| own.get((part * count) as usize).copied().unwrap_or(0.0);
        let differences: Vec<f64> = self.parts.iter().map(|it| it.0 - it.1).collect();
        let difference = differences.iter().sum::<f64>() / count;
        let square = differences.iter().map(|it| (it - difference).powi(2));
        let error = (square.sum::<f64>() / (count - 1.0).max(1.0) / count).sqrt();
        let behind = |part: f64| {
            let those = self.parts.iter().filter(|it| it.0 < it.1 * (1.0 - part));
            percent(those.count() as f64 / count)
        };
        vec![
            self.name.clone(),
            percent(mean),
            percent(at(0.1)),
            percent(at(0.0)),
            format!("{:+.2}", 100.0 * difference),
            format!("{:.2}", 100.0 * error),
            behind(0.02),
            behind(0.1),
        ]
    }
}

/// The table of all pairs.
pub fn text(rows: &[Row], columns: &[Column], before: Option<&Before>) -> String {
    let own = |row: &Row, column: usize| row.cells[column].of_bound;
    let mut pairs = Vec::new();
    for (number, column) in columns.iter().enumerate() {
        if let (Some(first), true) = (columns.first(), before.is_none()) {
            pairs.push(Pair {
                name: format!("{} beside {}", column.name, first.name),
                parts: rows
                    .iter()
                    .map(|row| (own(row, number), own(row, 0)))
                    .collect(),
            });
        }
        let Some(Before(before)) = before else {
            continue;
        };
        let old = |row: &Row| {
            let key = (row.scenario.name.clone(), column.name.clone());
            Some((own(row, number), *before.get(&key)?))
        };
        pairs.push(Pair {
            name: format!("{} beside before", column.name),
            parts: rows.iter().filter_map(old).collect(),
        });
    }
    let headings = [
        "% of bound",
        "mean",
        "p10",
        "worst",
        "more",
        "s.e.",
        "> 2 % behind",
        "> 10 % behind",
    ];
    let mut table = Table::new(1, &headings);
    for pair in &pairs {
        table.row(pair.cells());
    }
    table.render(Style::PLAIN, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_counts_where_it_is_behind() {
        let pair = Pair {
            name: "a beside b".to_owned(),
            parts: vec![(0.9, 0.8), (0.5, 0.6), (0.7, 0.71), (0.98, 0.98)],
        };
        let cells = pair.cells();
        let numbers: Vec<&str> = cells.iter().skip(1).map(String::as_str).collect();
        let wanted = ["77.0", "50.0", "50.0", "-0.25", "4.09", "25.0", "25.0"];
        assert_eq!(numbers, wanted);
    }

    #[test]
    fn results_of_another_build_are_read() {
        let text = r#"{"seed": 1, "scenarios": [{"name": "wide@1-0", "policies":
            [{"policy": "soonest", "of_bound": 0.5}]}]}"#;
        let before = Before::of_text(text).unwrap();
        let key = ("wide@1-0".to_owned(), "soonest".to_owned());
        assert_eq!(before.0.get(&key), Some(&0.5));
        assert!(Before::of_text("{}").is_err());
    }
}
