//! Plots as SVG, drawn here: lines in a frame with ticks, and over all scenarios how near each
//! policy comes to the bound.
//!
//! # Contract
//! Equal rows give equal bytes; [`profile`] even on every machine, because it only divides. Lines
//! and letters are readable on a light and on a dark ground.
use super::measure::{Cell, Column, Row};
use std::fmt::Write;
use terminal::page::{Frame, tick};

const COLOURS: [&str; 8] = [
    "#868e96", "#d97706", "#1c7ed6", "#ae3ec9", "#2f9e44", "#e03131", "#0c8599", "#7048e8",
];

/// The colour of a policy, by its column.
pub fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

const FRAME: Frame = Frame {
    left: 52.0,
    top: 24.0,
    width: 520.0,
    height: 130.0,
};

/// Share of I/Os that took longer, both axes logarithmic.
pub fn latencies(row: &Row) -> Result<String, std::fmt::Error> {
    const DECADES: [&str; 8] = [
        "1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s",
    ];
    const SHARES: [&str; 5] = ["0.01 %", "0.1 %", "1 %", "10 %", "all"];
    let curves: Vec<Vec<(f64, f64)>> = row.cells.iter().map(distribution).collect();
    let all = || curves.iter().flatten().map(|&(decade, _)| decade);
    let first = all().fold(7.0, f64::min).floor().max(0.0);
    let last = all().fold(first + 1.0, f64::max).ceil().min(7.0);
    let mut svg = String::from("<svg viewBox=\"0 0 600 182\" role=\"img\">");
    FRAME.title(&mut svg, "share of I/Os that took longer than …")?;
    for (number, label) in DECADES.iter().enumerate() {
        if (first..=last).contains(&(number as f64)) {
            FRAME.column(&mut svg, (number as f64 - first) / (last - first), label)?;
        }
    }
    for (number, label) in SHARES.iter().enumerate() {
        FRAME.row(&mut svg, number as f64 / 4.0, label)?;
    }
    for (number, curve) in curves.iter().enumerate() {
        let inside = |&(decade, share): &(f64, f64)| {
            let x = (decade - first) / (last - first);
            (x.clamp(0.0, 1.0), (share / 4.0 + 1.0).clamp(0.0, 1.0))
        };
        let points: Vec<(f64, f64)> = curve.iter().map(inside).collect();
        FRAME.line(&mut svg, &points, colour(number))?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Decades above a microsecond, and the decades of the share that took longer, from 0 downwards.
fn distribution(cell: &Cell) -> Vec<(f64, f64)> {
    let kinds = cell.tally.latencies.iter();
    let mut all: Vec<(u64, u64)> = kinds.flat_map(|it| it.buckets()).collect();
    all.sort_unstable();
    let whole: u64 = all.iter().map(|(_, count)| count).sum();
    let mut left = whole;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (ns, count) in all {
        let decade = (ns.max(1) as f64 / 1e3).log10();
        if points.is_empty() {
            points.push((decade, 0.0));
        }
        left -= count;
        let share = (left as f64 / whole.max(1) as f64).max(1e-5).log10();
        let moved = |&(x, y): &(f64, f64)| (x - decade).abs() > 0.01 || (y - share).abs() > 0.02;
        if points.last().is_none_or(moved) {
            points.push((decade, share));
        }
    }
    points
}

/// Throughput over time, with what happened.
pub fn series(row: &Row) -> Result<String, std::fmt::Error> {
    let plan = &row.scenario.plan;
    let step_s = sim::limits::SERIES_NS as f64 / 1e9;
    let end_s = ((plan.warm_ns + plan.run_ns) as f64 / 1e9).max(step_s);
    let curves: Vec<Vec<f64>> = row.cells.iter().map(rates).collect();
    let most = curves.iter().flatten().copied().fold(1.0, f64::max);
    let mut svg = String::from("<svg viewBox=\"0 0 600 182\" role=\"img\">");
    FRAME.title(&mut svg, "MB/s over time; dashes: something happens")?;
    let tick = tick(most);
    for number in 0..=(most / tick) as usize {
        let rate = number as f64 * tick;
        FRAME.row(&mut svg, rate / most, &format!("{rate}"))?;
    }
    let seconds = (end_s / 12.0).ceil().max(1.0);
    for number in 0..=(end_s / seconds) as usize {
        let at_s = number as f64 * seconds;
        FRAME.column(&mut svg, at_s / end_s, &format!("{at_s} s"))?;
    }
    for event in &plan.events {
        let x = FRAME.x(event.at_ns as f64 / 1e9 / end_s);
        write!(
            svg,
            "<path class=\"e\" d=\"M{x:.1} {:.1}V{:.1}\"/>",
            FRAME.top,
            FRAME.y(0.0)
        )?;
    }
    for (number, curve) in curves.iter().enumerate() {
        let all = curve.len().max(1) as f64;
        let point = |(at, rate): (usize, &f64)| ((at as f64 + 0.5) / all, rate / most);
        let points: Vec<(f64, f64)> = curve.iter().enumerate().map(point).collect();
        FRAME.line(&mut svg, &points, colour(number))?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// MB/s in at most some 430 pieces of time.
fn rates(cell: &Cell) -> Vec<f64> {
    let series = &cell.tally.series;
    let chunk = series.len().div_ceil(430).max(1);
    let rate = |points: &[u64]| {
        let bytes: u64 = points.iter().sum();
        let ns = points.len() as u64 * sim::limits::SERIES_NS;
        bytes as f64 * 1e3 / ns as f64
    };
    series.chunks(chunk).map(rate).collect()
}

const PROFILE: Frame = Frame {
    left: 52.0,
    top: 34.0,
    width: 460.0,
    height: 270.0,
};

/// Over all scenarios: for each policy, from its best to its worst, how near it is to the bound.
pub fn profile(rows: &[Row], columns: &[Column]) -> Result<String, std::fmt::Error> {
    let mut svg = String::from("<svg viewBox=\"0 0 540 350\" role=\"img\">\n");
    axes(&mut svg, rows.len())?;
    for number in 0..columns.len() {
        curve(&mut svg, number, &parts(rows, number))?;
    }
    svg.push_str("\n</svg>\n");
    Ok(svg)
}

/// The same as a file of its own, with figures: the mean, how many are at 95 % and more, and the
/// worst.
pub fn profile_file(rows: &[Row], columns: &[Column]) -> Result<String, std::fmt::Error> {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 350\" role=\"img\">\n\
         <style>text { font: 13px system-ui, sans-serif; fill: #343a40 } \
         .g { stroke: #868e96; stroke-opacity: .35 } \
         @media (prefers-color-scheme: dark) { text { fill: #dee2e6 } }</style>\n",
    );
    axes(&mut svg, rows.len())?;
    heads(&mut svg)?;
    for (number, column) in columns.iter().enumerate() {
        let parts = parts(rows, number);
        curve(&mut svg, number, &parts)?;
        figures(&mut svg, number, &column.name, &parts)?;
    }
    svg.push_str("\n</svg>\n");
    Ok(svg)
}

/// A policy's parts of the bound, best first.
fn parts(rows: &[Row], column: usize) -> Vec<f64> {
    let mut parts: Vec<f64> = rows.iter().map(|row| row.cells[column].of_bound).collect();
    parts.sort_by(|a, b| b.total_cmp(a));
    parts
}

fn axes(svg: &mut String, count: usize) -> std::fmt::Result {
    const ALL: Frame = PROFILE;
    let count = count.max(1);
    ALL.title(svg, "% of the best that rules which know everything can do")?;
    for percent in [0, 25, 50, 75, 100] {
        let part = f64::from(percent) / 100.0;
        ALL.row(svg, part, &percent.to_string())?;
    }
    ALL.column(svg, 0.0, "best")?;
    ALL.column(svg, 1.0, "worst")?;
    let middle = format!("each policy's {count} scenarios, from its best to its worst");
    let (x, y) = (ALL.x(0.5), ALL.y(0.0) + 32.0);
    writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{middle}</text>"
    )?;
    Ok(())
}

fn curve(svg: &mut String, number: usize, parts: &[f64]) -> std::fmt::Result {
    let count = parts.len().max(1) as f64;
    let point = |(at, part): (usize, &f64)| ((at as f64 + 0.5) / count, part.min(1.05));
    let points: Vec<(f64, f64)> = parts.iter().enumerate().map(point).collect();
    PROFILE.line(svg, &points, colour(number))
}

/// Where the figures beside the profile end.
const ENDS: [u32; 3] = [765, 835, 895];

fn heads(svg: &mut String) -> std::fmt::Result {
    for (x, head) in ENDS.into_iter().zip(["mean", "≥ 95 %", "worst"]) {
        write!(
            svg,
            "<text x=\"{x}\" y=\"70\" text-anchor=\"end\">{head}</text>"
        )?;
    }
    Ok(())
}

/// A policy's line of them; `parts` of the bound, best first.
fn figures(svg: &mut String, number: usize, name: &str, parts: &[f64]) -> std::fmt::Result {
    let count = parts.len().max(1);
    let mean = 100.0 * parts.iter().sum::<f64>() / count as f64;
    let good = parts.iter().filter(|&&part| part >= 0.95).count();
    let worst = 100.0 * parts.last().copied().unwrap_or(0.0);
    let (y, colour) = (98 + 26 * number, colour(number));
    write!(
        svg,
        "\n<rect x=\"535\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
         <text x=\"556\" y=\"{y}\">{name}</text>",
        y - 6,
    )?;
    let figures = [
        format!("{mean:.1}"),
        format!("{good} of {count}"),
        format!("{worst:.1}"),
    ];
    for (x, figure) in ENDS.into_iter().zip(figures) {
        write!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{figure}</text>"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::COLOURS;

    /// Luminance as WCAG 2 defines it.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            match part <= 0.04045 {
                true => part / 12.92,
                false => ((part + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    /// Graphics need a contrast of 3 (WCAG 2, 1.4.11).
    #[test]
    fn colours_stand_out_on_light_and_dark_ground() {
        for colour in COLOURS {
            for ground in ["#ffffff", "#121212"] {
                let [a, b] = [colour, ground].map(|it| luminance(it) + 0.05);
                assert!(a.max(b) / a.min(b) >= 3.0, "{colour} on {ground}");
            }
        }
    }
}
