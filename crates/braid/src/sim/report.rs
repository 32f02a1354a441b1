//! The result as one page that needs nothing else: bars against the bound, latencies, and how it
//! went over time where something happened.
//!
//! # Contract
//! Self-contained: the plots are inline SVG drawn here in whole units, nothing is loaded, and the
//! same rows give the same bytes. Lines and letters take the page's own colour.
use super::measure::{Cell, Column, Row};
use super::show;
use crate::output::Style;
use std::fmt::Write;

const COLOURS: [&str; 8] = [
    "#868e96", "#f08c00", "#1c7ed6", "#9c36b5", "#2f9e44", "#e03131", "#0c8599", "#5f3dc4",
];

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
<meta name=\"viewport\" content=\"width=device-width\">\n<title>braid sim</title>\n<style>\n\
:root { color-scheme: light dark; }\n\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; }\n\
body { margin: 2rem auto; padding: 0 1rem; }\n\
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 0; }\n\
pre { overflow-x: auto; font-size: 12px; line-height: 1.35; }\n\
svg { display: block; max-width: 100%; height: auto; font: 11px system-ui, sans-serif; }\n\
svg text { fill: currentColor; }\n\
</style>\n</head>\n<body>\n";

/// The page.
///
/// # Errors
/// None but what writing into a string has.
pub fn page(rows: &[Row], columns: &[Column], seed: u64) -> anyhow::Result<String> {
    let mut page = String::from(HEAD);
    writeln!(page, "<h1>Policies in simulated worlds, seed {seed}</h1>")?;
    page.push_str(
        "<p>Bars: percent of the best that rules which know everything could do. Right of them: \
         the 99 % latency beside that of the best static split, and each path's share.</p>\n",
    );
    writeln!(
        page,
        "<pre>{}</pre>",
        escaped(&show::summary(rows, columns, Style::PLAIN))
    )?;
    for row in rows {
        scenario(&mut page, row)?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn scenario(page: &mut String, row: &Row) -> anyhow::Result<()> {
    let it = &row.scenario;
    writeln!(
        page,
        "<h2>{}</h2>\n<p>{}</p>",
        escaped(&it.name),
        escaped(&it.title)
    )?;
    bars(page, row)?;
    if row
        .cells
        .iter()
        .any(|cell| cell.tally.latencies.iter().any(|it| it.count() > 0))
    {
        latencies(page, row)?;
    }
    if !it.plan.events.is_empty() {
        series(page, row)?;
    }
    Ok(())
}

fn bars(page: &mut String, row: &Row) -> anyhow::Result<()> {
    let height = 20 * row.cells.len();
    writeln!(page, "<svg viewBox=\"0 0 900 {height}\" role=\"img\">")?;
    for (number, (column, cell)) in row.columns.iter().zip(&row.cells).enumerate() {
        let (y, colour) = (20 * number, colour(number));
        let width = (cell.of_bound.clamp(0.0, 1.1) * 300.0).round();
        let share: Vec<String> = cell.tally.share().iter().map(u64::to_string).collect();
        writeln!(
            page,
            "<text x=\"0\" y=\"{}\">{}</text><rect x=\"290\" y=\"{}\" width=\"{width}\" \
             height=\"14\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{:.1} %, p99 × {:.2}, \
             share ‰ {}</text>",
            y + 14,
            escaped(&column.name),
            y + 3,
            300.0 + width,
            y + 14,
            100.0 * cell.of_bound,
            cell.p99_of_static.min(9999.0),
            share.join(":"),
        )?;
    }
    writeln!(
        page,
        "<line x1=\"590\" x2=\"590\" y1=\"0\" y2=\"{height}\" stroke=\"currentColor\"/></svg>"
    )?;
    Ok(())
}

/// Share of I/Os that took longer, over a logarithmic axis of 1 µs … 10 s.
fn latencies(page: &mut String, row: &Row) -> anyhow::Result<()> {
    page.push_str("<svg viewBox=\"0 0 900 150\" role=\"img\">");
    for decade in 0..=7 {
        let (x, label) = (
            20 + decade * 125,
            ["1µs", "10µs", "100µs", "1ms", "10ms", "100ms", "1s", "10s"][decade],
        );
        write!(
            page,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"5\" y2=\"130\" stroke=\"#8884\"/>\
             <text x=\"{x}\" y=\"144\">{label}</text>"
        )?;
    }
    for (number, cell) in row.cells.iter().enumerate() {
        let points = distribution(cell);
        polyline(page, &points, colour(number))?;
    }
    page.push_str("<text x=\"25\" y=\"14\">I/Os that took longer</text></svg>\n");
    Ok(())
}

fn distribution(cell: &Cell) -> Vec<(f64, f64)> {
    let mut all: Vec<(u64, u64)> = cell
        .tally
        .latencies
        .iter()
        .flat_map(|it| it.buckets())
        .collect();
    all.sort_unstable();
    let whole: u64 = all.iter().map(|(_, count)| count).sum();
    let mut left = whole;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (ns, count) in all {
        left -= count;
        let x = 20.0 + (ns.max(1) as f64 / 1e3).log10() * 125.0;
        let y = 130.0 - 125.0 * left as f64 / whole.max(1) as f64;
        if points
            .last()
            .is_none_or(|(last, _)| (x - last).abs() >= 2.0)
        {
            points.push((x, y));
        }
    }
    points
}

/// Throughput over time.
fn series(page: &mut String, row: &Row) -> anyhow::Result<()> {
    page.push_str("<svg viewBox=\"0 0 900 160\" role=\"img\">");
    let most = row.cells.iter().flat_map(|cell| &cell.tally.series).max();
    let most = (*most.unwrap_or(&1)).max(1) as f64;
    let end_ns = (row.scenario.plan.warm_ns + row.scenario.plan.run_ns).max(1) as f64;
    for event in &row.scenario.plan.events {
        let x = 20.0 + 860.0 * event.at_ns as f64 / end_ns;
        write!(
            page,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"5\" y2=\"150\" stroke=\"#e0313188\"/>"
        )?;
    }
    for (number, cell) in row.cells.iter().enumerate() {
        let series = &cell.tally.series;
        let step = series.len().div_ceil(430).max(1);
        let points: Vec<(f64, f64)> = series
            .chunks(step)
            .enumerate()
            .map(|(at, chunk)| {
                let mean = chunk.iter().sum::<u64>() as f64 / chunk.len() as f64;
                let x = 20.0 + 860.0 * (at * step) as f64 / series.len().max(1) as f64;
                (x, 150.0 - 145.0 * mean / most)
            })
            .collect();
        polyline(page, &points, colour(number))?;
    }
    page.push_str("<text x=\"25\" y=\"14\">throughput over time, events in red</text></svg>\n");
    Ok(())
}

fn polyline(page: &mut String, points: &[(f64, f64)], colour: &str) -> anyhow::Result<()> {
    let points: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    write!(
        page,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\" points=\"{}\"/>",
        points.join(" ")
    )?;
    Ok(())
}

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
