//! The result as one page that needs nothing else: bars against the bound, each path's share,
//! latencies, and how it went over time where something happened.
//!
//! # Contract
//! Self-contained: the plots are inline SVG, nothing is loaded, and the same rows give the same
//! bytes. Lines and letters take the page's own colour.
use super::measure::{Cell, Column, Row};
use super::plot::{self, colour};
use super::show;
use std::fmt::Write;
use terminal::output::Style;
use terminal::page::{self, escaped};

const STYLE: &str = "\
pre { overflow-x: auto; font-size: 12px; line-height: 1.35; }\n\
.e { stroke: #e03131; stroke-opacity: .6; stroke-dasharray: 3 3; }\n\
.t { fill: currentColor; fill-opacity: .08; }\n";

/// The page.
///
/// # Errors
/// None but what writing into a string has.
pub fn page(rows: &[Row], columns: &[Column], seed: u64) -> anyhow::Result<String> {
    let mut page = String::new();
    writeln!(page, "<h1>Policies in simulated worlds, seed {seed}</h1>")?;
    page.push_str(
        "<p>The bound of a scenario is the best that rules which know everything could do; \
         where I/Os come at their own times, the least mean latency. Bars are percent of it. \
         Beside them: the 99 % latency as a multiple of the best static split's, and each path's \
         share of the I/Os.</p>\n",
    );
    page.push_str(&plot::profile(rows, columns)?);
    writeln!(
        page,
        "<pre>{}</pre>",
        escaped(&show::summary(rows, columns, Style::PLAIN))
    )?;
    let link = |row: &Row| {
        let name = escaped(&row.scenario.name);
        format!("<a href=\"#{name}\">{name}</a>")
    };
    let links: Vec<String> = rows.iter().map(link).collect();
    writeln!(page, "<p>{}</p>", links.join(" · "))?;
    for row in rows {
        scenario(&mut page, row)?;
    }
    Ok(page::page("braid sim", STYLE, &page))
}

fn scenario(page: &mut String, row: &Row) -> anyhow::Result<()> {
    let it = &row.scenario;
    let (name, title) = (escaped(&it.name), escaped(&it.title));
    writeln!(page, "<h2 id=\"{name}\">{name}: {title}</h2>")?;
    let bound = show::bound_lines(row);
    writeln!(
        page,
        "<p>{}</p>",
        escaped(bound.trim_end()).replace('\n', "<br>")
    )?;
    bars(page, row)?;
    let any = |cell: &Cell| cell.tally.latencies.iter().any(|it| it.count() > 0);
    if row.cells.iter().any(any) {
        page.push_str(&plot::latencies(row)?);
    }
    if !it.plan.events.is_empty() {
        page.push_str(&plot::series(row)?);
    }
    Ok(())
}

/// Where the bars begin, and how long 100 % is; where the shares begin, and how long they are.
const BARS: [usize; 2] = [290, 280];
const SHARES: [f64; 2] = [710.0, 170.0];

fn bars(page: &mut String, row: &Row) -> anyhow::Result<()> {
    let height = 18 + 20 * row.cells.len();
    let [left, whole] = BARS;
    writeln!(page, "<svg viewBox=\"0 0 900 {height}\" role=\"img\">")?;
    for (x, anchor, head) in [
        (left + whole, "end", "bound"),
        (left + whole + 60, "end", "%"),
        (left + whole + 130, "end", "p99 ×"),
        (SHARES[0] as usize, "start", "share of each path"),
    ] {
        write!(
            page,
            "<text x=\"{x}\" y=\"11\" text-anchor=\"{anchor}\">{head}</text>"
        )?;
    }
    for (number, (column, cell)) in row.columns.iter().zip(&row.cells).enumerate() {
        let (y, colour) = (18 + 20 * number, colour(number));
        let width = (cell.of_bound.clamp(0.0, 1.05) * whole as f64).round();
        writeln!(
            page,
            "<text x=\"0\" y=\"{}\">{}</text><rect class=\"t\" x=\"{left}\" y=\"{}\" \
             width=\"{whole}\" \
             height=\"14\"/><rect x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"14\" \
             fill=\"{colour}\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.1}</text>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.2}</text>",
            y + 12,
            escaped(&column.name),
            y + 2,
            y + 2,
            left + whole + 60,
            y + 12,
            100.0 * cell.of_bound,
            left + whole + 130,
            y + 12,
            cell.p99_of_static.min(9999.0),
        )?;
        shares(page, cell, y + 2, colour)?;
    }
    let end = left + whole;
    writeln!(
        page,
        "<path d=\"M{end} 15V{height}\" stroke=\"currentColor\"/></svg>"
    )?;
    Ok(())
}

/// One bar, a shade for each path.
fn shares(page: &mut String, cell: &Cell, y: usize, colour: &str) -> anyhow::Result<()> {
    const SHADES: [&str; 4] = ["1", ".55", ".8", ".3"];
    let [mut x, whole] = SHARES;
    for (path, &share) in cell.tally.share().iter().enumerate() {
        let width = whole * share as f64 / 1000.0;
        write!(
            page,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\" \
             fill-opacity=\"{}\"/>",
            SHADES[path % SHADES.len()]
        )?;
        x += width;
    }
    Ok(())
}
