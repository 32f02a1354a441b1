//! The tables: one line per scenario over all policies, or one table per scenario.
use super::beside;
use super::measure::{Cell, Column, Row};
use serde_json::{Value, json};
use terminal::output::Style;
use terminal::table::Table;
use terminal::units::format_ns;

/// So far above a bound, which is a run too, others may come by luck.
const LUCK: f64 = 0.005;

/// The summary: per scenario the bound and how near it is to what is proven, and per policy
/// "% of bound / p99 beside the best static split's".
pub fn summary(rows: &[Row], columns: &[Column]) -> Table {
    let mut headings = vec!["scenario", "bound", "by", "of limit"];
    headings.extend(columns.iter().map(|column| column.name.as_str()));
    let mut table = Table::new(4, &headings);
    for row in rows {
        let of_limit = row.bound.of_limit();
        let mut cells = vec![
            row.scenario.name.clone(),
            bound_text(row),
            row.bound.by.clone(),
            of_limit.map_or(String::new(), |part| format!("{:.1} %", 100.0 * part)),
        ];
        cells.extend(row.cells[..columns.len()].iter().map(|cell| {
            format!(
                "{:.1}/{:.2}",
                100.0 * cell.of_bound,
                cell.p99_of_static.min(9999.0)
            )
        }));
        table.row(cells);
    }
    if rows.len() > 1 {
        let mean = |column: usize| {
            let sum: f64 = rows.iter().map(|row| row.cells[column].of_bound).sum();
            100.0 * sum / rows.len() as f64
        };
        let worst = |column: usize| {
            let each = rows.iter().map(|row| 100.0 * row.cells[column].of_bound);
            each.fold(f64::INFINITY, f64::min)
        };
        for (word, of) in [("mean", &mean as &dyn Fn(usize) -> f64), ("worst", &worst)] {
            let mut cells = vec![String::new(); 4];
            cells[0] = word.to_owned();
            cells.extend((0..columns.len()).map(|column| format!("{:.1}", of(column))));
            table.row(cells);
        }
    }
    table
}

/// Policies better than the bound by more than chance: then the search was too narrow. But its
/// rules send no second copies.
pub fn above(row: &Row) -> String {
    let above = |(column, cell): &(&Column, &Cell)| {
        (!column.hedged && cell.of_bound > 1.0 + LUCK).then(|| {
            format!(
                "{}: {} is at {:.1} % of the bound: a defect of the bound\n",
                row.scenario.name,
                column.name,
                100.0 * cell.of_bound
            )
        })
    };
    let cells = row.columns.iter().zip(&row.cells);
    cells.filter_map(|it| above(&it)).collect()
}

fn bound_text(row: &Row) -> String {
    let ([unit, _], scale) = row.unit();
    format!("{:.1} {unit}", row.bound.value as f64 / scale)
}

/// The bound, what another simulator found, and the limit.
pub fn bound_lines(row: &Row) -> String {
    let mut text = format!("bound {} by {}", bound_text(row), row.bound.by);
    if let Some(elsewhere) = row.scenario.bound_elsewhere {
        text.push_str(&format!("; another simulator's {elsewhere}"));
    }
    text.push('\n');
    if let Some(part) = row.bound.of_limit() {
        text.push_str(&format!(
            "limit {:.1} MB/s; the bound is at {:.1} % of it\n",
            row.bound.limit as f64 / 1e6,
            100.0 * part
        ));
    }
    text
}

/// One scenario in full.
pub fn details(row: &Row, style: Style) -> String {
    let scenario = &row.scenario;
    let mut text = format!("{}: {}\n", scenario.name, scenario.title);
    if scenario.plan.merge {
        text.push_str("ana = merge: non-optimized paths are used beside optimized ones\n");
    }
    text.push_str(&bound_lines(row));
    text.push_str(&table(row).render(style, |_| String::new()));
    text.push_str(&above(row));
    text.push_str(&beside::text(row, style));
    text
}

/// Results of each policy in a scenario.
pub fn table(row: &Row) -> Table {
    let scenario = &row.scenario;
    let unit = if row.is_open() { "mean µs" } else { "MB/s" };
    let mut headings = vec![
        "policy",
        unit,
        "of bound",
        "p50",
        "p99",
        "p99/static",
        "share",
    ];
    let step = scenario.step_ns.is_some();
    if step {
        headings.push("adapts");
    }
    let hedged = row.columns.iter().any(|column| column.hedged);
    if hedged {
        headings.extend(["p99.9", "longest", "copies", "won"]);
    }
    let mut table = Table::new(1, &headings);
    for (column, cell) in row.columns.iter().zip(&row.cells) {
        let mut line = vec![column.name.clone()];
        line.extend(figures_of(row, cell));
        if step {
            line.push(
                cell.adapt_ms
                    .map_or("never".to_owned(), |ms| format!("{ms} ms")),
            );
        }
        if hedged {
            line.extend(copies_of(column, cell));
        }
        table.row(line);
    }
    table
}

/// The latest of a thousand, and of all; second copies as a part of all I/Os, and of those the ones
/// that were first.
fn copies_of(column: &Column, cell: &Cell) -> [String; 4] {
    let [copies, won] = copies(cell).map(|part| 100.0 * part);
    let [late, longest] = [999, 1000].map(|of| format_ns(cell.tally.quantile_ns(of) as f64));
    let [copies, won] = match column.hedged {
        true => [format!("{copies:.2} %"), format!("{won:.0} %")],
        false => [String::new(), String::new()],
    };
    [late, longest, copies, won]
}

/// Second copies as a part of all I/Os, and of those the ones that were first.
fn copies(cell: &Cell) -> [f64; 2] {
    let tally = &cell.tally;
    let ios: u64 = tally.latencies.iter().map(|it| it.count()).sum();
    [
        tally.hedged as f64 / ios.max(1) as f64,
        tally.hedges_won as f64 / tally.hedged.max(1) as f64,
    ]
}

fn figures_of(row: &Row, cell: &Cell) -> Vec<String> {
    let value = cell.value as f64 / row.unit().1;
    let share = cell.tally.share().into_iter();
    let share: Vec<String> = share.map(|it| format!("{:.1}", it as f64 / 10.0)).collect();
    vec![
        format!("{value:.1}"),
        format!("{:.1} %", 100.0 * cell.of_bound),
        format_ns(cell.tally.quantile_ns(500) as f64),
        format_ns(cell.tally.quantile_ns(990) as f64),
        format!("{:.2}", cell.p99_of_static.min(9999.0)),
        share.join(":"),
    ]
}

/// The rows in JSON.
pub fn json(rows: &[Row], seed: u64) -> Value {
    let scenarios: Vec<Value> = rows.iter().map(scenario).collect();
    json!({ "seed": seed, "scenarios": scenarios })
}

fn scenario(row: &Row) -> Value {
    let ([_, unit], scale) = row.unit();
    let cells = row.columns.iter().zip(&row.cells);
    let policies: Vec<Value> = cells.map(|it| policy(it, scale)).collect();
    json!({
        "name": row.scenario.name,
        "title": row.scenario.title,
        "ana": if row.scenario.plan.merge { "merge" } else { "strict" },
        "unit": unit,
        "bound": {
            "value": row.bound.value as f64 / scale,
            "by": row.bound.by,
            "p99_us_of_static": row.bound.static_p99_ns as f64 / 1e3,
            "elsewhere": row.scenario.bound_elsewhere,
            "limit": (row.bound.limit > 0).then(|| row.bound.limit as f64 / scale),
            "of_limit": row.bound.of_limit(),
        },
        "policies": policies,
        "document": beside::json(row),
    })
}

fn policy((column, cell): (&Column, &Cell), scale: f64) -> Value {
    let tally = &cell.tally;
    let share = tally.share().into_iter();
    let share: Vec<f64> = share.map(|it| it as f64 / 1e3).collect();
    let rate = |bytes: u64| tally.per_s(bytes) as f64 / 1e6;
    json!({
        "policy": column.name,
        "value": cell.value as f64 / scale,
        "of_bound": cell.of_bound,
        "read_mb_s": rate(tally.bytes[0]),
        "write_mb_s": rate(tally.bytes[1]),
        "host_mb_s": tally.host_bytes.iter().map(|&bytes| rate(bytes)).collect::<Vec<_>>(),
        "mean_us": tally.mean_ns() as f64 / 1e3,
        "p50_us": tally.quantile_ns(500) as f64 / 1e3,
        "p99_us": tally.quantile_ns(990) as f64 / 1e3,
        "p999_us": tally.quantile_ns(999) as f64 / 1e3,
        "longest_us": tally.quantile_ns(1000) as f64 / 1e3,
        "p99_of_static": cell.p99_of_static,
        "share": share,
        "copies": column.hedged.then(|| copies(cell)[0]),
        "copies_won": column.hedged.then(|| copies(cell)[1]),
        "adapt_ms": cell.adapt_ms,
        "failed_over": tally.failed,
        "turned_away": tally.turned_away,
    })
}
