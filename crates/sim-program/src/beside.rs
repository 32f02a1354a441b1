//! A scenario's results beside the figures of the document that it is from.
//!
//! # Contract
//! Machines differ, so ratios are compared: each figure to the first one, and the order of each
//! pair. Below [`LEVEL`] of difference two policies are level.
use super::measure::{Cell, Column, Row};
use super::scenario::Figures;
use serde_json::{Value, json};
use terminal::output::Style;
use terminal::table::Table;
use terminal::text::paragraph;
use terminal::units::format_ns;

/// A smaller difference is none: document B has figures 5 % apart where nothing differs.
const LEVEL: f64 = 0.06;
const MIB: f64 = 1_048_576.0;
const WRAP: usize = 100;

/// One policy there and here.
struct Line<'a> {
    name: &'a str,
    column: &'a Column,
    cell: &'a Cell,
    /// As in the document, and in the same unit.
    there: f64,
    here: f64,
    /// Speed beside that of the first line.
    ratios: [f64; 2],
    /// Each path's part of the reads, in the document.
    share: Option<Vec<f64>>,
}

/// Figures of all hosts, or of one.
struct Part<'a> {
    /// `None`: all.
    host: Option<usize>,
    lines: Vec<Line<'a>>,
}

impl Part<'_> {
    /// Pairs of lines whose order differs: their names, and the first one's speed beside the
    /// second's, there and here. And how many pairs there are.
    fn differing(&self) -> (Vec<[String; 2]>, usize) {
        let mut pairs = 0;
        let mut differing = Vec::new();
        for (number, second) in self.lines.iter().enumerate() {
            for first in &self.lines[number + 1..] {
                pairs += 1;
                let [there, here] = [0, 1].map(|of| first.ratios[of] / second.ratios[of]);
                if order(there) != order(here) {
                    let names = format!("{} to {}", first.name, second.name);
                    differing.push([names, format!("{there:.2} there, {here:.2} here")]);
                }
            }
        }
        (differing, pairs)
    }
}

/// Less, level, more.
fn order(ratio: f64) -> i8 {
    match ratio {
        it if it > 1.0 + LEVEL => 1,
        it if it * (1.0 + LEVEL) < 1.0 => -1,
        _ => 0,
    }
}

/// The tables, pairs in another order, and the reason that the scenario gives for them.
pub fn text(row: &Row, style: Style) -> String {
    let Some(document) = &row.scenario.document else {
        return String::new();
    };
    let mut text = String::new();
    let mut differs = false;
    for part in parts(row) {
        let unit = document.seconds_for.map_or("MiB/s", |_| "s");
        let base = part.lines.first().map_or("", |line| line.name);
        let whose = match part.host {
            Some(host) => format!("host {}, {unit}", host + 1),
            None => format!("beside the document, {unit}"),
        };
        let ratio = format!("to {base}: there");
        let mut headings = vec![whose.as_str(), "there", "here", "p99 here", &ratio, "here"];
        if !document.reads.is_empty() {
            headings.extend(["reads there", "here"]);
        }
        let mut table = Table::new(1, &headings);
        for line in &part.lines {
            table.row(cells(line, part.host.is_some(), headings.len()));
        }
        text.push_str(&table.render(style, |_| String::new()));
        let (differing, pairs) = part.differing();
        differs |= !differing.is_empty();
        text.push_str(&format!(
            "{} of {pairs} pairs are in the document's order\n",
            pairs - differing.len()
        ));
        for [names, ratios] in differing {
            text.push_str(&format!("  {names}: {ratios}\n"));
        }
    }
    match (differs, &document.differs) {
        (true, Some(why)) => text.push_str(&paragraph("why: ", why, WRAP)),
        (true, None) => text.push_str("why: not explained\n"),
        (false, Some(_)) => text.push_str("why: explained, though nothing differs\n"),
        (false, None) => {}
    }
    text
}

fn cells(line: &Line<'_>, of_host: bool, columns: usize) -> Vec<String> {
    let p99_ns = line.cell.tally.quantile_ns(990) as f64;
    let mut cells = vec![
        line.column.name.clone(),
        format!("{:.1}", line.there),
        format!("{:.1}", line.here),
        // Latencies are not told apart by host.
        if of_host {
            String::new()
        } else {
            format_ns(p99_ns)
        },
        format!("{:.2}", line.ratios[0]),
        format!("{:.2}", line.ratios[1]),
    ];
    if columns > cells.len() {
        let share = |parts: &[f64]| {
            let parts = parts.iter().map(|part| format!("{:.0}", 100.0 * part));
            parts.collect::<Vec<_>>().join(":")
        };
        cells.push(line.share.as_deref().map_or(String::new(), share));
        cells.push(share(&shares(line.cell)));
    }
    cells
}

/// Each path's part of the I/Os.
fn shares(cell: &Cell) -> Vec<f64> {
    let share = cell.tally.share().into_iter();
    share.map(|part| part as f64 / 1000.0).collect()
}

/// The same for programs; null where the scenario is of no document.
pub fn json(row: &Row) -> Value {
    let Some(document) = &row.scenario.document else {
        return Value::Null;
    };
    let unit = document.seconds_for.map_or("MiB/s", |_| "s");
    let part = |part: Part<'_>| {
        let (differing, pairs) = part.differing();
        let line = |line: &Line<'_>| {
            json!({
                "policy": line.column.name,
                "there": line.there, "here": line.here,
                "ratio_there": line.ratios[0], "ratio_here": line.ratios[1],
            })
        };
        json!({
            "host": part.host,
            "policies": part.lines.iter().map(line).collect::<Value>(),
            "pairs": pairs,
            "pairs_in_order": pairs - differing.len(),
        })
    };
    let parts = parts(row).into_iter().map(part).collect::<Value>();
    json!({ "unit": unit, "parts": parts, "differs": document.differs })
}

/// Of all hosts, then of each.
fn parts(row: &Row) -> Vec<Part<'_>> {
    let Some(document) = &row.scenario.document else {
        return Vec::new();
    };
    let all = std::iter::once((None, &document.figures));
    let each = (0..).map(Some).zip(&document.of_host);
    let parts = all.chain(each);
    let parts = parts.map(|(host, figures)| Part {
        host,
        lines: lines(row, host, figures),
    });
    parts.collect()
}

/// Policies that were run, in the order of the columns.
fn lines<'a>(row: &'a Row, host: Option<usize>, figures: &'a Figures) -> Vec<Line<'a>> {
    let Some(document) = &row.scenario.document else {
        return Vec::new();
    };
    let mut lines: Vec<(usize, Line<'a>)> = Vec::new();
    for (name, policy, there) in figures {
        let columns = row.columns.iter().enumerate();
        let same = columns.filter(|(_, it)| it.policy == *policy && !it.hedged);
        // Long runs are there for the document.
        let Some((number, column)) = same.max_by_key(|(number, it)| (it.long.is_some(), !number))
        else {
            continue;
        };
        let cell = &row.cells[number];
        let bytes_per_s = match host {
            Some(host) => cell.tally.per_s(cell.tally.host_bytes[host]),
            None => cell.tally.bytes_per_s(),
        };
        let bytes_per_s = bytes_per_s.max(1) as f64;
        let here = match document.seconds_for {
            Some(bytes) => bytes as f64 / bytes_per_s,
            None => bytes_per_s / MIB,
        };
        let reads = document.reads.iter().find(|it| it.0 == *policy);
        let share = reads.map(|(_, reads)| {
            let all = reads.iter().sum::<u64>().max(1) as f64;
            reads.iter().map(|&it| it as f64 / all).collect()
        });
        let line = Line {
            name,
            column,
            cell,
            there: *there,
            here,
            ratios: [1.0; 2],
            share,
        };
        lines.push((number, line));
    }
    lines.sort_by_key(|it| it.0);
    let mut lines: Vec<Line<'a>> = lines.into_iter().map(|it| it.1).collect();
    if let Some([there, here]) = lines.first().map(|it| [it.there, it.here]) {
        let ratio = |of: f64, base: f64| match document.seconds_for {
            Some(_) => base / of,
            None => of / base,
        };
        for line in &mut lines {
            line.ratios = [ratio(line.there, there), ratio(line.here, here)];
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::bounds::Bound;
    use super::super::scenario::parse;
    use super::*;
    use policy::{Knobs, Policy};
    use sim::Tally;

    /// Policies with these MiB/s.
    fn row(more: &str, policies: &[(&str, u64)]) -> Row {
        let text = format!("title = \"t\"\n{more}[path.a]\n[path.b]\n[job.j]\n");
        let scenario = parse("x", &text).unwrap().remove(0);
        let column = |&(name, _): &(&str, u64)| Column {
            name: name.to_owned(),
            policy: Policy::parse(name).unwrap(),
            program: None,
            knobs: Knobs::default(),
            hedged: false,
            long: None,
        };
        let cell = |&(_, mib_s): &(&str, u64)| Cell {
            tally: Tally {
                bytes: [mib_s << 20, 0],
                host_bytes: vec![mib_s << 20],
                path_ios: vec![3, 1],
                ..Tally::new(2, 1, 0, 1_000_000_000)
            },
            value: mib_s << 20,
            of_bound: 1.0,
            p99_of_static: 1.0,
            adapt_ms: None,
        };
        Row {
            bound: Bound {
                value: 1,
                by: String::new(),
                static_p99_ns: 1,
                after_step: 0,
                limit: 0,
            },
            columns: policies.iter().map(column).collect(),
            cells: policies.iter().map(cell).collect(),
            scenario,
        }
    }

    const FIGURES: &str = "figures = { numa = 10, round-robin = 20, queue-depth = 30 }\n";

    #[test]
    fn pairs_in_another_order_need_a_reason() {
        let policies = [("numa", 100), ("round-robin", 203), ("queue-depth", 198)];
        let text = text(&row(FIGURES, &policies), Style::PLAIN);
        assert!(
            text.contains("2 of 3 pairs are in the document's order"),
            "{text}"
        );
        let pair = "  queue-depth to round-robin: 1.50 there, 0.98 here\n";
        assert!(text.contains(pair), "{text}");
        assert!(text.ends_with("why: not explained\n"), "{text}");
        let explained = format!("differs = \"because\"\n{FIGURES}");
        let text = super::text(&row(&explained, &policies), Style::PLAIN);
        assert!(text.ends_with("why: because\n"), "{text}");
    }

    #[test]
    fn the_same_order_needs_none() {
        let policies = [("numa", 100), ("round-robin", 150), ("queue-depth", 198)];
        let same = row(FIGURES, &policies);
        assert!(text(&same, Style::PLAIN).ends_with("3 of 3 pairs are in the document's order\n"));
        assert_eq!(json(&same)["parts"][0]["pairs_in_order"], 3);
        let explained = row(&format!("differs = \"because\"\n{FIGURES}"), &policies);
        assert!(text(&explained, Style::PLAIN).ends_with("though nothing differs\n"));
        let none = row("", &policies);
        assert_eq!(
            (text(&none, Style::PLAIN).as_str(), json(&none)),
            ("", Value::Null)
        );
    }

    /// Less time is more speed.
    #[test]
    fn seconds_are_turned_into_speed() {
        let timed = "seconds_for = \"400MiB\"\nfigures = { numa = 8, round-robin = 4 }\n\
                     reads = { numa = [9, 1] }\n";
        let row = row(timed, &[("numa", 100), ("round-robin", 200)]);
        let parts = &json(&row)["parts"][0];
        assert_eq!(parts["policies"][1]["here"], 2.0);
        assert_eq!(parts["policies"][1]["ratio_there"], 2.0);
        assert_eq!(parts["policies"][1]["ratio_here"], 2.0);
        let text = text(&row, Style::PLAIN);
        assert!(text.contains("90:10  75:25"), "{text}");
    }
}
