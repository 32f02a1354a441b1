//! The result as one page that needs nothing else: figures and bars against the bound, each path's
//! share, latencies, and how it went over time where something happened.
//!
//! # Contract
//! Self-contained: the plots are inline SVG, nothing is loaded, and the same rows give the same
//! bytes. Lines and letters take the page's own colour.
use super::measure::{Cell, Column, Row};
use super::plot::{self, colour};
use super::show;
use sim::Plan;
use std::fmt::Write;
use terminal::page::{self, escaped, wide};
use terminal::units::{format_bytes, format_ns};

const STYLE: &str = ".e { stroke: #e03131; stroke-opacity: .6; stroke-dasharray: 3 3; }\n";

/// How the rules are called that found bounds, and the figures.
const WORDS: &str = "\
<p>The bound of a scenario is the best that rules which know everything could do; where I/Os come \
at their own times, the least mean latency. <em>split 1:3</em>: these shares for each path; \
<em>region</em>: each path has a part of the volume; <em>clairvoyant</em>: the path where the I/O \
ends first. The limit is proven, and no run can exceed it by more than 1 %.</p>\n\
<p><em>of bound</em>: in percent of the bound, as the bars. <em>p50</em>, <em>p99</em>: half and \
99 % of the I/Os took no longer. <em>p99/static</em>: p99 as a multiple of that of the best fixed \
shares. <em>share</em>: percent of the I/Os on each path, in the order of the paths.</p>\n";

/// The page.
///
/// # Errors
/// None but what writing into a string has.
pub fn page(rows: &[Row], columns: &[Column], seed: u64) -> anyhow::Result<String> {
    let mut page = String::new();
    writeln!(page, "<h1>Policies in simulated worlds, seed {seed}</h1>")?;
    page.push_str(WORDS);
    // Of one scenario there would be points instead of curves, and one line.
    if rows.len() > 1 {
        let key = |(number, column): (usize, &Column)| {
            format!("{}{}", page::key(colour(number)), escaped(&column.name))
        };
        let keys: Vec<String> = columns.iter().enumerate().map(key).collect();
        writeln!(page, "<p>{}</p>", keys.join(" &nbsp; "))?;
        page.push_str(&wide(&plot::profile(rows, columns)?));
        page.push_str("<p>Of each policy: <em>of bound / p99/static</em>.</p>\n");
        let none = |_: usize| String::new();
        page.push_str(&show::summary(rows, columns).html(none, none));
        let link = |row: &Row| {
            let name = escaped(&row.scenario.name);
            format!("<a href=\"#{name}\">{name}</a>")
        };
        let links: Vec<String> = rows.iter().map(link).collect();
        writeln!(page, "<p>{}</p>", links.join(" · "))?;
    }
    for row in rows {
        scenario(&mut page, row)?;
    }
    Ok(page::page("braid sim", STYLE, &page))
}

fn scenario(page: &mut String, row: &Row) -> anyhow::Result<()> {
    let it = &row.scenario;
    let (name, title) = (escaped(&it.name), escaped(&it.title));
    writeln!(page, "<h2 id=\"{name}\">{name}: {title}</h2>")?;
    let lines = format!("{}{}", show::bound_lines(row), show::above(row));
    let lines = escaped(lines.trim_end()).replace('\n', "<br>");
    writeln!(page, "<p>{lines}<br>{}</p>", paths(&it.plan))?;
    let policy = |number: usize| number.checked_sub(1);
    let key = |number: usize| policy(number).map_or(String::new(), |it| page::key(colour(it)));
    let bars = |number: usize| match policy(number) {
        None => "<th class=\"w\">of bound</th><th class=\"w\">share of each path</th>".into(),
        Some(it) => bars(&row.cells[it], colour(it)),
    };
    page.push_str(&show::table(row).html(key, bars));
    let any = |cell: &Cell| cell.tally.latencies.iter().any(|it| it.count() > 0);
    if row.cells.iter().any(any) {
        page.push_str(&wide(&plot::latencies(row)?));
    }
    if !it.plan.events.is_empty() {
        page.push_str(&wide(&plot::series(row)?));
    }
    Ok(())
}

/// The paths, as far as they differ from a wire without a delay.
fn paths(plan: &Plan) -> String {
    let path = |(number, it): (usize, &sim::PathPlan)| {
        let delay =
            (it.delay_ns > 0).then(|| format!("{} each way", format_ns(it.delay_ns as f64)));
        let rate = it.bytes_per_s;
        let rate = (rate > 0).then(|| format!("{}/s", format_bytes(rate)));
        let device = (plan.devices.len() > 1).then(|| format!("device {}", it.device));
        let facts: Vec<String> = [delay, rate, device].into_iter().flatten().collect();
        match facts.is_empty() {
            true => format!("path {number}"),
            false => format!("path {number}: {}", facts.join(", ")),
        }
    };
    let all: Vec<String> = plan.paths.iter().enumerate().map(path).collect();
    all.join("; ")
}

/// Cells of a policy: how near it is to the bound, and a shade for each path.
fn bars(cell: &Cell, colour: &str) -> String {
    const SHADES: [f64; 4] = [1.0, 0.55, 0.8, 0.3];
    let bound = page::bar(colour, &[(cell.of_bound, 1.0, "of the bound".into())]);
    let part = |(path, share): (usize, u64)| {
        let name = format!("path {path}: {:.1} %", share as f64 / 10.0);
        (share as f64 / 1000.0, SHADES[path % SHADES.len()], name)
    };
    let shares: Vec<_> = cell
        .tally
        .share()
        .into_iter()
        .enumerate()
        .map(part)
        .collect();
    let shares = page::bar(colour, &shares);
    format!("<td>{bound}</td><td>{shares}</td>")
}
