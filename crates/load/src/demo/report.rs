//! The demo's result as one page that needs nothing else: plots, and the text.
use super::cells::{Cell, Op, Outcome};
use super::explain::explanations;
use super::text::{self, range};
use std::fmt::{self, Write};
use terminal::page::{self, Frame, escaped, tick, wide};
use terminal::units::format_ns;

const FRAME: Frame = Frame {
    left: 52.0,
    top: 24.0,
    width: 640.0,
    height: 340.0,
};
/// Of a policy's part of the width, that of one bar.
const BAR: f64 = 0.26;

/// The page.
///
/// # Errors
/// None but what writing into a string has.
pub fn page(outcome: &Outcome) -> anyhow::Result<String> {
    let mut body = "<h1>Two unequal paths, and what each policy makes of them</h1>\n".to_owned();
    body.push_str("<h2>Throughput</h2>\n");
    body.push_str(&legend(
        "the optimum is the line above each bar, the thin line spans the rounds; figures are MiB/s",
    ));
    body.push_str(&wide(&throughput(outcome)?));
    body.push_str("<h2>Latency</h2>\n");
    body.push_str(&legend(
        "from below: median (disc), 99 % (square), 99.9 % (triangle)",
    ));
    body.push_str(&wide(&latency(outcome)?));
    figures(&mut body, outcome);
    Ok(page::page("braid demo", "", &body))
}

/// All figures, and what they say.
fn figures(body: &mut String, outcome: &Outcome) {
    let none = |_: usize| String::new();
    body.push_str("<h2>Figures</h2>\n");
    body.push_str(&paragraph(&text::heading(outcome)));
    let checks = outcome.checks();
    let too_far = |row: usize| match row.checked_sub(1).and_then(|row| checks.get(row)) {
        Some((_, check)) if !check.holds() => cell(text::TOO_FAR),
        _ => String::new(),
    };
    body.push_str(&text::alone(&checks).html(none, too_far));
    let optimum = escaped(&text::optimum(outcome));
    body.push_str(&wide(&format!("<pre>{optimum}</pre>")));
    let behind = |row: usize| match row.checked_sub(1).and_then(|row| outcome.cells.get(row)) {
        Some(of) if of.errors > 0 => cell(&text::failed(of)),
        Some(of) => {
            let part = outcome.of_optimum(of);
            let bar = page::bar(colour(of.op), &[(part, 1.0, "of the optimum".into())]);
            format!("<td>{bar}</td>")
        }
        None => String::new(),
    };
    body.push_str(&text::cells(outcome).html(none, behind));
    let lines = text::copies(outcome).into_iter();
    let lines = lines.chain(explanations(outcome));
    let lines: String = lines
        .map(|it| format!("<li>{}</li>\n", escaped(&it)))
        .collect();
    body.push_str(&format!("<ul>\n{lines}</ul>\n"));
    if !outcome.machine_is_quiet() {
        body.push_str(&paragraph(&text::busy(outcome)));
    }
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escaped(text))
}

fn cell(text: &str) -> String {
    format!("<td>{}</td>", escaped(text))
}

fn legend(note: &str) -> String {
    let keys = Op::ALL.map(|op| page::key(colour(op)) + op.name());
    format!(
        "<p>{} &nbsp; {}</p>\n",
        keys.join(" &nbsp; "),
        escaped(note)
    )
}

/// Told apart on a light ground and on a dark one.
fn colour(op: Op) -> &'static str {
    match op {
        Op::Read => "#4285c2",
        Op::Write => "#c96f14",
        Op::Mixed => "#54a24b",
    }
}

const SVG: &str = "<svg viewBox=\"0 0 700 400\" role=\"img\">";

fn throughput(outcome: &Outcome) -> Result<String, fmt::Error> {
    let best = |cell: &Cell| outcome.optimum_mib_s(cell.op);
    let most = outcome.cells.iter().map(|it| {
        let (_, most) = range(&it.rounds_mib_s);
        most.max(best(it))
    });
    let top = most.fold(1.0, f64::max) * 1.12;
    let mut svg = String::from(SVG);
    FRAME.title(&mut svg, "MiB/s")?;
    let tick = tick(top);
    for number in 0..=(top / tick) as usize {
        let mib_s = number as f64 * tick;
        FRAME.row(&mut svg, mib_s / top, &format!("{mib_s}"))?;
    }
    let width = FRAME.width * (BAR - 0.02) / outcome.policies().len() as f64;
    for (x, cell) in placed(outcome) {
        let (least, most) = range(&cell.rounds_mib_s);
        let [y, best, low, high] =
            [cell.mib_s, best(cell), least, most].map(|mib_s| FRAME.y(mib_s / top));
        let (x, height, colour) = (FRAME.x(x), FRAME.y(0.0) - y, colour(cell.op));
        let left = x - width / 2.0;
        write!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/><path stroke=\"currentColor\" stroke-width=\"2\" \
             d=\"M{left:.1} {best:.1}h{width:.1}\"/><path stroke=\"currentColor\" \
             d=\"M{x:.1} {low:.1}V{high:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{:.0}</text>",
            y.min(high) - 4.0,
            cell.mib_s
        )?;
    }
    name_groups(outcome, svg)
}

/// The latencies' axis is logarithmic.
fn latency(outcome: &Outcome) -> Result<String, fmt::Error> {
    let decade = |us: f64| us.max(1.0).log10();
    let all = || outcome.cells.iter().flat_map(|it| [it.p50_us, it.p999_us]);
    let low = all().map(decade).fold(f64::MAX, f64::min).min(9.0).floor();
    let high = all().map(decade).fold(low + 0.1, f64::max).ceil();
    let mut svg = String::from(SVG);
    for number in low as i32..=high as i32 {
        let part = (f64::from(number) - low) / (high - low);
        FRAME.row(&mut svg, part, &format_ns(10_f64.powi(number) * 1e3))?;
    }
    for (x, cell) in placed(outcome) {
        let part = |us| (decade(us) - low) / (high - low);
        let parts = [cell.p50_us, cell.p99_us, cell.p999_us].map(part);
        let colour = colour(cell.op);
        FRAME.line(&mut svg, &[(x, parts[0]), (x, parts[2])], colour)?;
        let (x, [median, most, nearly_all]) = (FRAME.x(x), parts.map(|part| FRAME.y(part)));
        write!(
            svg,
            "<g fill=\"{colour}\"><circle cx=\"{x:.1}\" cy=\"{median:.1}\" r=\"5\"/>\
             <path d=\"M{:.1} {:.1}h10v10h-10z\"/><path d=\"M{x:.1} {:.1}l6 11h-12z\"/></g>",
            x - 5.0,
            most - 5.0,
            nearly_all - 6.0
        )?;
    }
    name_groups(outcome, svg)
}

/// Cells, with the part of the width where each is.
fn placed(outcome: &Outcome) -> impl Iterator<Item = (f64, &Cell)> {
    let policies = outcome.policies();
    outcome.cells.iter().filter_map(move |cell| {
        let policy = policies.iter().position(|&it| it == cell.policy)?;
        let offset = match cell.op {
            Op::Read => -BAR,
            Op::Write => 0.0,
            Op::Mixed => BAR,
        };
        let at = policy as f64 + 0.5 + offset;
        Some((at / policies.len() as f64, cell))
    })
}

/// Ends a plot, with the policies' names under their groups.
fn name_groups(outcome: &Outcome, mut svg: String) -> Result<String, fmt::Error> {
    let policies = outcome.policies();
    for (number, policy) in policies.iter().enumerate() {
        let x = FRAME.x((number as f64 + 0.5) / policies.len() as f64);
        let y = FRAME.y(0.0) + 22.0;
        write!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{policy}</text>"
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
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
        assert!(page.contains("currentColor") && !page.contains("NaN"));
        for name in ["numa", "round-robin", "queue-depth", "weighted-latency"] {
            assert!(
                page.matches(name).count() >= 4,
                "{name}: two plots, a row, why"
            );
        }
        assert!(page.contains("<td>264.0</td><td>260–268</td><td>100 µs</td>"));
        assert!(page.contains("C: cap of fast, N: outstanding I/Os"));
        assert!(!page.contains("is busy"));
    }

    #[test]
    fn a_busy_machine_is_said_on_the_page() {
        let mut busy = outcome();
        busy.alone[0].slow_mib_s = 90.0;
        let page = page(&busy).unwrap();
        assert!(page.contains("This machine is busy"));
        assert!(page.contains("too far off"));
    }
}
