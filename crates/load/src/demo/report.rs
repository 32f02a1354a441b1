//! The demo's result as one page that needs nothing else: text, tables and plots.
//!
//! # Contract
//! Self-contained: plots are inline SVG, nothing is loaded. Readable on a light and on a dark
//! ground: lines and letters take the page's own colour.
use super::cells::{Cell, Op, Outcome};
use super::explain::explanations;
use super::model::Figure;
use super::text::{signed_percent, too_busy};
use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write;
use terminal::units::{format_bytes, format_ns};

const SIZE: (u32, u32) = (900, 400);
/// Stands for the page's own colour until the SVG is done.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_WRITTEN: &str = "#010203";
const GROUP: f64 = 1.0;
const BAR: f64 = 0.26;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The page.
///
/// # Errors
/// A plot can't be drawn.
pub fn page(outcome: &Outcome) -> anyhow::Result<String> {
    let mut body = String::new();
    body.push_str("<h1>Two unequal paths, and what each policy makes of them</h1>\n");
    body.push_str(&introduction(outcome));
    if !outcome.machine_is_quiet() {
        let _ = writeln!(
            body,
            "<p class=\"warning\">{}</p>",
            escaped(&too_busy(outcome))
        );
    }
    body.push_str("<h2>Throughput</h2>\n");
    body.push_str(&legend(
        "the optimum is the line above each bar; figures are MiB/s",
    ));
    body.push_str(&svg(|area| throughput(outcome, area))?);
    body.push_str("<h2>Latency</h2>\n");
    body.push_str(&legend(
        "from below: median (disc), 99 % (square), 99.9 % (triangle)",
    ));
    body.push_str(&svg(|area| latency(outcome, area))?);
    body.push_str("<h2>Why</h2>\n<ul>\n");
    for line in explanations(outcome) {
        let _ = writeln!(body, "<li>{}</li>", escaped(&line));
    }
    body.push_str("</ul>\n<h2>Figures</h2>\n");
    body.push_str(&cells_table(outcome));
    body.push_str("<h2>Each path alone</h2>\n");
    body.push_str(&alone_table(outcome));
    Ok(format!("{HEAD}{body}</body>\n</html>\n"))
}

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
<meta name=\"viewport\" content=\"width=device-width\">\n<title>braid demo</title>\n<style>\n\
:root { color-scheme: light dark; }\n\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; }\n\
body { margin: 2rem auto; padding: 0 1rem; }\n\
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }\n\
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n\
th, td { padding: .15rem .5rem; text-align: right; border-bottom: 1px solid #8884; }\n\
td { white-space: nowrap; }\n\
th { vertical-align: bottom; }\n\
th:first-child, td:first-child, td:nth-child(2), th:nth-child(2) { text-align: left; }\n\
svg { display: block; max-width: 100%; height: auto; }\n\
code { white-space: pre-wrap; }\n\
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }\n\
.warning, .off { color: #d9480f; font-weight: 600; }\n\
</style>\n</head>\n<body>\n";

fn introduction(outcome: &Outcome) -> String {
    let setup = &outcome.setup;
    let mut text = format!(
        "<p>NVMe/TCP over loopback, one namespace behind two ports. <b>fast</b> is capped at \
         {:.0} MiB/s, <b>slow</b> has no cap and {} more delay. Random {} I/O, {} outstanding; for \
         numa, slow is the nearest path; weighted-latency has a window of {}.</p>\n",
        setup.cap_mib_s(),
        format_ns(setup.slow_delay_ns as f64),
        format_bytes(setup.block.into()),
        setup.outstanding,
        format_ns(outcome.window_ns as f64),
    );
    text.push_str("<p>optimum = C + (N − C × t_fast ÷ block) × block ÷ t_slow</p>\n<ul>\n");
    for op in Op::ALL {
        let formula = setup.formula(&outcome.latencies(op));
        let _ = writeln!(
            text,
            "<li>{}: <code>{}</code></li>",
            op.name(),
            escaped(&formula)
        );
    }
    text.push_str("</ul>\n");
    text
}

fn legend(note: &str) -> String {
    let mut text = String::from("<p>");
    for op in Op::ALL {
        let RGBColor(r, g, b) = colour(op);
        let _ = write!(
            text,
            "<span class=\"key\" style=\"background:#{r:02x}{g:02x}{b:02x}\"></span>{}",
            op.name()
        );
    }
    let _ = writeln!(text, " &nbsp; {}</p>", escaped(note));
    text
}

fn colour(op: Op) -> RGBColor {
    match op {
        Op::Read => RGBColor(66, 133, 194),
        Op::Write => RGBColor(224, 130, 40),
        Op::Mixed => RGBColor(84, 162, 75),
    }
}

/// An SVG element, drawn by `draw`, in the page's colours.
fn svg(draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area)?;
        area.present().map_err(cannot_draw)?;
    }
    let view_box = format!("viewBox=\"0 0 {} {}\"", SIZE.0, SIZE.1);
    assert!(text.contains(&view_box), "an SVG of {SIZE:?}");
    Ok(text.replace(INK_WRITTEN, "currentColor"))
}

fn throughput(outcome: &Outcome, area: &Area<'_>) -> anyhow::Result<()> {
    let most = outcome
        .cells
        .iter()
        .map(|cell| cell.mib_s.max(outcome.optimum_mib_s(cell.op)));
    let top = most.fold(1.0, f64::max) * 1.12;
    let groups = outcome.policies().len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..groups * GROUP, 0.0..top)
        .map_err(cannot_draw)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(8)
        .y_label_formatter(&|mib_s| format!("{mib_s:.0}"))
        .y_desc("MiB/s")
        .bold_line_style(INK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .axis_style(INK.mix(0.6))
        .label_style(letters(14))
        .draw()
        .map_err(cannot_draw)?;
    for (policy, op, cell) in placed(outcome) {
        let centre = centre(policy, op);
        let (left, right) = (centre - BAR / 2.0 + 0.01, centre + BAR / 2.0 - 0.01);
        let bar = Rectangle::new([(left, 0.0), (right, cell.mib_s)], colour(op).filled());
        let best = outcome.optimum_mib_s(op);
        let line = PathElement::new(vec![(left, best), (right, best)], INK.stroke_width(2));
        let style = letters(13).pos(Pos::new(HPos::Center, VPos::Bottom));
        let label = Text::new(
            format!("{:.0}", cell.mib_s),
            (centre, cell.mib_s + top * 0.008),
            style,
        );
        chart.draw_series([bar]).map_err(cannot_draw)?;
        chart.draw_series([line]).map_err(cannot_draw)?;
        chart.draw_series([label]).map_err(cannot_draw)?;
    }
    name_groups(outcome, area, &chart, 0.0)
}

fn latency(outcome: &Outcome, area: &Area<'_>) -> anyhow::Result<()> {
    let all = outcome
        .cells
        .iter()
        .flat_map(|cell| [cell.p50_us, cell.p999_us]);
    let (low, high) = all.fold((f64::MAX, 1.0_f64), |(low, high), us| {
        (low.min(us), high.max(us))
    });
    let (low, high) = (decade(low, f64::floor), decade(high, f64::ceil));
    let groups = outcome.policies().len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..groups * GROUP, (low..high).log_scale())
        .map_err(cannot_draw)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(8)
        .y_max_light_lines(9)
        .y_label_formatter(&|us| format_ns(us * 1e3))
        .bold_line_style(INK.mix(0.15))
        .light_line_style(INK.mix(0.06))
        .axis_style(INK.mix(0.6))
        .label_style(letters(14))
        .draw()
        .map_err(cannot_draw)?;
    for (policy, op, cell) in placed(outcome) {
        let x = centre(policy, op);
        let ends = vec![(x, cell.p50_us.max(low)), (x, cell.p999_us.max(low))];
        let fill = colour(op).filled();
        let line = PathElement::new(ends, colour(op).stroke_width(2));
        chart.draw_series([line]).map_err(cannot_draw)?;
        chart
            .draw_series([Circle::new((x, cell.p50_us.max(low)), 5, fill)])
            .map_err(cannot_draw)?;
        let square =
            EmptyElement::at((x, cell.p99_us.max(low))) + Rectangle::new([(-5, -5), (5, 5)], fill);
        chart.draw_series([square]).map_err(cannot_draw)?;
        chart
            .draw_series([TriangleMarker::new((x, cell.p999_us.max(low)), 6, fill)])
            .map_err(cannot_draw)?;
    }
    name_groups(outcome, area, &chart, low)
}

/// The power of ten at or beyond `us`.
fn decade(us: f64, round: fn(f64) -> f64) -> f64 {
    10_f64.powf(round(us.max(1.0).log10() * 1.001))
}

/// Cells with the number of their policy.
fn placed(outcome: &Outcome) -> impl Iterator<Item = (usize, Op, &Cell)> {
    let policies = outcome.policies();
    outcome.cells.iter().filter_map(move |cell| {
        let policy = policies.iter().position(|&policy| policy == cell.policy)?;
        Some((policy, cell.op, cell))
    })
}

fn centre(policy: usize, op: Op) -> f64 {
    let offset = match op {
        Op::Read => -BAR,
        Op::Write => 0.0,
        Op::Mixed => BAR,
    };
    (policy as f64 + 0.5) * GROUP + offset
}

/// The policies' names under their groups.
fn name_groups<Y: plotters::coord::ranged1d::Ranged<ValueType = f64>>(
    outcome: &Outcome,
    area: &Area<'_>,
    chart: &ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    bottom: f64,
) -> anyhow::Result<()> {
    for (number, policy) in outcome.policies().iter().enumerate() {
        let at = chart
            .plotting_area()
            .map_coordinate(&((number as f64 + 0.5) * GROUP, bottom));
        let style = letters(15).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(&policy.to_string(), &style, (at.0, at.1 + 10))
            .map_err(cannot_draw)?;
    }
    Ok(())
}

fn letters(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn cannot_draw(error: impl std::error::Error) -> anyhow::Error {
    anyhow!("cannot draw a plot: {error}")
}

fn cells_table(outcome: &Outcome) -> String {
    let us = |us: f64| format_ns(us * 1e3);
    let rows = outcome.cells.iter().map(|cell| {
        let [fast, slow] = &cell.paths;
        vec![
            cell.policy.to_string(),
            cell.op.name().to_owned(),
            format!("{:.1}", cell.mib_s),
            format!("{:.1} %", outcome.of_optimum(cell) * 100.0),
            us(cell.p50_us),
            us(cell.p99_us),
            us(cell.p999_us),
            format!("{:.1} %", fast.share * 100.0),
            format!("{:.1} %", slow.share * 100.0),
            format!("{:.0}", fast.in_flight),
            format!("{:.0}", slow.in_flight),
            cell.errors.to_string(),
        ]
    });
    let headings = [
        "policy",
        "op",
        "MiB/s",
        "of optimum",
        "p50",
        "p99",
        "p99.9",
        "to fast",
        "to slow",
        "in flight on fast",
        "on slow",
        "errors",
    ];
    html_table(&headings, rows, |_| false)
}

fn alone_table(outcome: &Outcome) -> String {
    let checks = outcome.checks();
    let rows = checks.iter().map(|(op, check)| {
        let (what, show): (_, fn(f64) -> String) = match check.figure {
            Figure::Latency => ("one at a time", |us| format_ns(us * 1e3)),
            Figure::Throughput => ("all at once", |mib_s| format!("{mib_s:.1} MiB/s")),
        };
        vec![
            format!("{} {}", check.path, op.name()),
            what.to_owned(),
            show(check.measured),
            show(check.model),
            signed_percent(check.deviation()),
        ]
    });
    html_table(&["path", "", "measured", "model", "off"], rows, |row| {
        !checks[row].1.holds()
    })
}

fn html_table(
    headings: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    marked: impl Fn(usize) -> bool,
) -> String {
    let mut text = String::from("<table>\n<tr>");
    for heading in headings {
        let _ = write!(text, "<th>{}</th>", escaped(heading));
    }
    text.push_str("</tr>\n");
    for (number, row) in rows.enumerate() {
        text.push_str(if marked(number) {
            "<tr class=\"off\">"
        } else {
            "<tr>"
        });
        for cell in row {
            let _ = write!(text, "<td>{}</td>", escaped(&cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::text::tests::outcome;

    #[test]
    fn the_page_needs_nothing_else_and_has_every_cell() {
        let page = page(&outcome()).unwrap();
        assert_eq!(page.matches("<svg").count(), 2);
        for foreign in ["http-equiv", "<script", "<link", "src=", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(!page.contains(INK_WRITTEN) && page.contains("currentColor"));
        for name in ["numa", "round-robin", "queue-depth", "weighted-latency"] {
            assert!(
                page.matches(name).count() >= 4,
                "{name}: two plots, a row, why"
            );
        }
        assert!(page.contains("<td>264.0</td>"));
        assert!(!page.contains("too busy"));
    }

    #[test]
    fn a_busy_machine_is_said_on_the_page() {
        let mut busy = outcome();
        busy.alone[0].full.slow_mib_s = 90.0;
        let page = page(&busy).unwrap();
        assert!(page.contains("class=\"warning\">the machine is too busy"));
        assert!(page.contains("<tr class=\"off\"><td>slow read</td>"));
    }

    #[test]
    fn letters_with_a_meaning_are_escaped() {
        assert_eq!(escaped("a<b & c>d"), "a&lt;b &amp; c&gt;d");
    }
}
