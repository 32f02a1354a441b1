//! Tables of a path: its I/O, and its policy's figures. Columns and rows without any
//! figure but 0 are left out.
use crate::output::Style;
use crate::run::latency;
use crate::table::Table;
use crate::units::{format_ns, short_bytes, short_count, significant};
use serde_json::Value;
use terminal::answer::{items, number};

/// Rows of figures under their headings; `None`: 0 or unknown.
pub struct Figures<'a> {
    headings: &'a [&'a str],
    rows: Vec<(String, Vec<Option<String>>)>,
}

impl<'a> Figures<'a> {
    /// Without rows; the first heading is that of their names.
    pub fn new(headings: &'a [&'a str]) -> Self {
        Self {
            headings,
            rows: Vec::new(),
        }
    }

    /// Adds a row; one without any figure is left out.
    pub fn row(&mut self, name: String, cells: Vec<Option<String>>) {
        assert_eq!(cells.len() + 1, self.headings.len(), "{name}");
        if cells.iter().any(Option::is_some) {
            self.rows.push((name, cells));
        }
    }

    /// Nothing where no row is left.
    pub fn render(self, style: Style) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let columns = 1..self.headings.len();
        let is_shown = |at: &usize| self.rows.iter().any(|(_, cells)| cells[at - 1].is_some());
        let columns: Vec<usize> = columns.filter(is_shown).collect();
        let headings = columns.iter().map(|at| self.headings[*at]);
        let headings: Vec<&str> = self.headings[..1].iter().copied().chain(headings).collect();
        let mut table = Table::new(1, &headings);
        for (name, cells) in self.rows {
            let shown = columns.iter().map(|at| cells[at - 1].clone());
            let shown = shown.map(|cell| cell.unwrap_or_else(|| "-".into()));
            table.row(std::iter::once(name).chain(shown).collect());
        }
        table.render(style, |_| String::new())
    }
}

/// A count, or how many there are per second.
pub fn count(of: &Value, elapsed_ns: Option<u64>) -> Option<String> {
    let count = number(of);
    (count > 0).then(|| per_second(count, elapsed_ns, short_count))
}

/// Bytes, or how many there are per second.
pub fn bytes(of: &Value, elapsed_ns: Option<u64>) -> Option<String> {
    let bytes = number(of);
    (bytes > 0).then(|| per_second(bytes, elapsed_ns, short_bytes))
}

fn per_second(count: u64, elapsed_ns: Option<u64>, show: fn(u64) -> String) -> String {
    let Some(elapsed_ns) = elapsed_ns else {
        return show(count);
    };
    let rate = count as f64 * 1e9 / elapsed_ns as f64;
    match rate < 9.95 {
        true => significant(rate),
        false => show(rate.round() as u64),
    }
}

/// A time, unless it is unknown.
pub fn time(ns: Option<u64>) -> Option<String> {
    ns.map(|ns| format_ns(ns as f64))
}

/// I/O of a path, since the start or in so many ns, and its policy's figures of it.
pub fn show(text: &mut String, path: &Value, elapsed_ns: Option<u64>, style: Style) {
    let headings = match elapsed_ns {
        None => ["", "I/Os", "bytes", "mean", "p50", "p99"],
        Some(_) => ["", "I/Os/s", "bytes/s", "mean", "p50", "p99"],
    };
    let mut did = Figures::new(&headings);
    let headings = [
        "   policy",
        "chosen",
        "weight",
        "smoothed",
        "score",
        "samples",
        "ignored",
    ];
    let mut policy = Figures::new(&headings);
    let groups = [
        ("read", "reads", "bytes_read"),
        ("write", "writes", "bytes_written"),
        ("other", "others", ""),
    ];
    for (group, ios, moved) in groups {
        let latency = latency::of_json(&path["latency"][group]);
        did.row(
            format!("   {group}"),
            vec![
                count(&path[ios], elapsed_ns),
                bytes(&path[moved], elapsed_ns),
                time(latency.mean_ns()),
                time(latency.quantile_ns(500)),
                time(latency.quantile_ns(990)),
            ],
        );
        let of = &path["groups"][group];
        if ["weight", "smoothed_ns", "score", "samples"]
            .iter()
            .any(|key| number(&of[*key]) > 0)
        {
            policy.row(format!("   {group}"), of_policy(of));
        }
    }
    text.push_str(&did.render(style));
    text.push_str(&policy.render(style));
    // Those of an interval would be of no use: they are as they are now.
    if elapsed_ns.is_none() {
        show_cores(text, path, style);
    }
}

/// Figures of `weighted-latency` of each core, by group and size (row A9); nothing where no core
/// has any.
fn show_cores(text: &mut String, path: &Value, style: Style) {
    let headings = [
        "   core", "chosen", "weight", "credit", "smoothed", "score", "samples", "ignored",
    ];
    let mut all = Figures::new(&headings);
    for group in latency::GROUPS {
        for core in items(&path["groups"][group]["cores"]) {
            let sizes: Vec<&Value> = match core["buckets"].is_array() {
                true => items(&core["buckets"]).collect(),
                false => Some(core).into_iter().collect(),
            };
            for of in sizes.into_iter().filter(|it| has_any(it)) {
                let mut cells = of_policy(of);
                cells.insert(2, count(&of["credit"], None));
                all.row(
                    format!("   {} {group}{}", number(&core["core"]), size(of)),
                    cells,
                );
            }
        }
    }
    text.push_str(&all.render(style));
}

/// Figures of a policy.
fn of_policy(of: &Value) -> Vec<Option<String>> {
    let count = |key: &str| count(&of[key], None);
    vec![
        count("selections"),
        count("weight"),
        time(Some(number(&of["smoothed_ns"])).filter(|ns| *ns > 0)),
        count("score"),
        count("samples"),
        count("ignored"),
    ]
}

fn has_any(of: &Value) -> bool {
    let keys = ["selections", "weight", "samples", "ignored"];
    keys.iter().any(|key| number(&of[key]) > 0)
}

/// Sizes of a bucket; nothing where all are together.
fn size(of: &Value) -> String {
    match (of.get("below"), of["below"].as_u64()) {
        (None, _) => String::new(),
        (_, Some(below)) => format!(" <{}K", below >> 10),
        (_, None) => " 1M+".into(),
    }
}
