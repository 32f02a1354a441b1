//! The demo's result for people.
use super::cells::{Op, Outcome};
use super::explain::explanations;
use super::model::{Figure, TOLERANCE};
use paths::hedges;
use terminal::output::{Ink, Style};
use terminal::table::Table;
use terminal::text::paragraph;
use terminal::units::{format_bytes, format_ns, significant};

const BAR_CELLS: usize = 24;
const WRAP: usize = 100;

/// Everything, to print.
pub fn text(outcome: &Outcome, style: Style) -> String {
    let mut text = String::new();
    text.push_str(&heading(outcome));
    text.push_str(&alone(outcome, style));
    text.push('\n');
    text.push_str(&optimum(outcome));
    text.push('\n');
    text.push_str(&cells(outcome, style));
    for cell in &outcome.cells {
        let (stats, reads) = &cell.hedges;
        if let Some(words) = hedges::words(&hedges::json(stats, *reads)) {
            let (policy, op) = (cell.policy, cell.op.name());
            let line = format!("{policy}, {op}: second copies: {words}.");
            text.push_str(&paragraph("• ", &line, WRAP));
        }
    }
    text.push('\n');
    for line in explanations(outcome) {
        text.push_str(&paragraph("• ", &line, WRAP));
    }
    if !outcome.machine_is_quiet() {
        text.push('\n');
        text.push_str(&style.paint(Ink::Warning, &too_busy(outcome)));
        text.push('\n');
    }
    text
}

/// The reason why the machine is too busy, in one line.
fn too_busy(outcome: &Outcome) -> String {
    let checks = outcome.checks();
    let off = checks.iter().filter(|(_, check)| !check.holds()).count();
    let worst = checks
        .iter()
        .max_by(|(_, a), (_, b)| a.deviation().abs().total_cmp(&b.deviation().abs()));
    let worst = worst.map_or(String::new(), |(op, check)| {
        format!(
            "{} on {} is {:+.0} % off",
            op.name(),
            check.path,
            check.deviation() * 100.0
        )
    });
    format!(
        "the machine is too busy: {off} of {} figures of one path alone are more than {:.0} % from \
         their model ({worst}); these figures are not to be trusted",
        checks.len(),
        TOLERANCE * 100.0,
    )
}

/// The setup.
fn heading(outcome: &Outcome) -> String {
    let setup = &outcome.setup;
    format!(
        "NVMe/TCP over loopback, one namespace, two paths: fast is capped at {:.0} MiB/s, \
         slow has no\ncap and {} more delay. Random {} I/O, {} outstanding, {} s per cell.\n\
         numa finds slow the nearest path; weighted-latency has a window of {}.\n\n",
        setup.cap_mib_s(),
        format_ns(setup.slow_delay_ns as f64),
        format_bytes(setup.block.into()),
        setup.outstanding,
        significant(outcome.seconds),
        format_ns(outcome.window_ns as f64),
    )
}

fn alone(outcome: &Outcome, style: Style) -> String {
    let mut table = Table::new(2, &["each path alone", "", "measured", "model", "off"]);
    let checks = outcome.checks();
    for (op, check) in &checks {
        let (what, show): (_, fn(f64) -> String) = match check.figure {
            Figure::Latency => ("one at a time", |us| format_ns(us * 1e3)),
            Figure::Throughput => ("all at once", |mib_s| format!("{mib_s:.1} MiB/s")),
        };
        table.row(vec![
            format!("{} {}", check.path, op.name()),
            what.to_owned(),
            show(check.measured),
            show(check.model),
            signed_percent(check.deviation()),
        ]);
    }
    table.render(style, |row| {
        match row.checked_sub(1).and_then(|row| checks.get(row)) {
            Some((_, check)) if !check.holds() => style.paint(Ink::Warning, "too far off"),
            _ => String::new(),
        }
    })
}

/// The optimum's formula, then its figures for each operation.
fn optimum(outcome: &Outcome) -> String {
    let mut text = "optimum = C + (N − C × t_fast ÷ block) × block ÷ t_slow\n".to_owned();
    for op in Op::ALL {
        let formula = outcome.setup.formula(&outcome.alone(op));
        text.push_str(&format!("  {:<6} {formula}\n", op.name()));
    }
    text
}

fn cells(outcome: &Outcome, style: Style) -> String {
    let figures = ["MiB/s", "p50", "p99", "p99.9", "fast", "slow", "of optimum"];
    let mut table = Table::new(2, &[&["policy", "op"][..], &figures].concat());
    for cell in &outcome.cells {
        let us = |us: f64| format_ns(us * 1e3);
        table.row(vec![
            cell.policy.to_string(),
            cell.op.name().to_owned(),
            format!("{:.1}", cell.mib_s),
            us(cell.p50_us),
            us(cell.p99_us),
            us(cell.p999_us),
            percent(cell.paths[0].share),
            percent(cell.paths[1].share),
            percent(outcome.of_optimum(cell)),
        ]);
    }
    table.render(style, |row| {
        match row.checked_sub(1).and_then(|row| outcome.cells.get(row)) {
            Some(cell) if cell.errors > 0 => {
                style.paint(Ink::Warning, &format!("{} I/Os failed", cell.errors))
            }
            Some(cell) => style.bar(outcome.of_optimum(cell), BAR_CELLS),
            None => String::new(),
        }
    })
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// `0.0 %` without a sign.
fn signed_percent(part: f64) -> String {
    let tenths = (part * 1000.0).round();
    if tenths == 0.0 {
        "0.0 %".to_owned()
    } else {
        format!("{:+.1} %", tenths / 10.0)
    }
}

#[cfg(test)]
pub(super) mod tests;
