//! The demo's result for people.
use super::cells::{Cell, Op, Outcome};
use super::explain::explanations;
use super::model::{Check, Figure, TOLERANCE};
use paths::hedges;
use terminal::output::{Ink, Style};
use terminal::table::Table;
use terminal::text::paragraph;
use terminal::units::{format_bytes, format_ns, significant};

const BAR_CELLS: usize = 16;
const WRAP: usize = 100;

/// Everything, to print.
pub fn text(outcome: &Outcome, style: Style) -> String {
    let mut text = heading(outcome);
    text.push_str("\n\n");
    let checks = outcome.checks();
    text.push_str(&alone(&checks).render(style, |row| {
        match row.checked_sub(1).and_then(|row| checks.get(row)) {
            Some((_, check)) if !check.holds() => style.paint(Ink::Warning, TOO_FAR),
            _ => String::new(),
        }
    }));
    text.push('\n');
    text.push_str(&optimum(outcome));
    text.push('\n');
    text.push_str(&cells(outcome).render(style, |row| {
        match row.checked_sub(1).and_then(|row| outcome.cells.get(row)) {
            Some(cell) if cell.errors > 0 => style.paint(Ink::Warning, &failed(cell)),
            Some(cell) => style.bar(outcome.of_optimum(cell), BAR_CELLS),
            None => String::new(),
        }
    }));
    for line in copies(outcome) {
        text.push_str(&paragraph("• ", &line, WRAP));
    }
    text.push('\n');
    for line in explanations(outcome) {
        text.push_str(&paragraph("• ", &line, WRAP));
    }
    if !outcome.machine_is_quiet() {
        text.push('\n');
        let busy = paragraph("", &busy(outcome), WRAP);
        text.push_str(&style.paint(Ink::Warning, busy.trim_end()));
        text.push('\n');
    }
    text
}

/// Behind a figure that is not as its model says.
pub(super) const TOO_FAR: &str = "too far off";

/// Behind a cell in which I/Os failed.
pub(super) fn failed(cell: &Cell) -> String {
    format!("{} I/Os failed", cell.errors)
}

/// Second copies of reads, of each cell that sent any.
pub(super) fn copies(outcome: &Outcome) -> Vec<String> {
    let line = |cell: &Cell| {
        let (stats, reads) = &cell.hedges;
        let words = hedges::words(&hedges::json(stats, *reads))?;
        let (policy, op) = (cell.policy, cell.op.name());
        Some(format!("{policy}, {op}: second copies: {words}."))
    };
    outcome.cells.iter().filter_map(line).collect()
}

/// Other work on the machine, as far as it was seen.
pub(super) fn busy(outcome: &Outcome) -> String {
    let mut seen = Vec::new();
    if let Some(waited) = outcome.waited {
        seen.push(format!(
            "target and host waited for a CPU for {} of the time",
            percent(waited)
        ));
    }
    let checks = outcome.checks();
    let off = checks.iter().filter(|(_, check)| !check.holds()).count();
    let worst = checks
        .iter()
        .max_by(|(_, a), (_, b)| a.deviation().abs().total_cmp(&b.deviation().abs()));
    let worst = worst.map_or(String::new(), |(op, check)| {
        format!(
            "most {} on {}, {:+.0} %",
            op.name(),
            check.path,
            check.deviation() * 100.0
        )
    });
    seen.push(format!(
        "{off} of {} figures of one path alone are more than {:.0} % from their model ({worst})",
        checks.len(),
        TOLERANCE * 100.0,
    ));
    let widest = outcome.cells.iter().map(|cell| {
        let (least, most) = range(&cell.rounds_mib_s);
        (most / least.max(f64::MIN_POSITIVE), cell)
    });
    let widest = widest.filter(|_| outcome.rounds > 1);
    if let Some((factor, cell)) = widest.max_by(|a, b| a.0.total_cmp(&b.0)) {
        let (policy, op) = (cell.policy, cell.op.name());
        seen.push(format!(
            "rounds of {policy}, {op}, differ by a factor of {factor:.2}"
        ));
    }
    format!(
        "This machine is busy: {}. Each round has all policies, so that they can be compared with \
         one another; the optimum is that of a quiet machine.",
        seen.join("; ")
    )
}

/// The setup.
pub(super) fn heading(outcome: &Outcome) -> String {
    let setup = &outcome.setup;
    format!(
        "NVMe/TCP over loopback, one namespace, two paths: fast is capped at {:.0} MiB/s, \
         slow has no\ncap and {} more delay. Random {} I/O, {} outstanding, {} s per cell in\n{}. \
         numa finds slow the nearest path; weighted-latency has a window of {}.",
        setup.cap_mib_s(),
        format_ns(setup.slow_delay_ns as f64),
        format_bytes(setup.block.into()),
        setup.outstanding,
        significant(outcome.seconds),
        rounds(outcome.rounds),
        format_ns(outcome.window_ns as f64),
    )
}

/// Each path alone, against its model.
pub(super) fn alone(checks: &[(Op, Check)]) -> Table {
    let mut table = Table::new(2, &["each path alone", "", "measured", "model", "off"]);
    for (op, check) in checks {
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
    table
}

/// The optimum's formula, its letters, and its figures for each operation.
pub(super) fn optimum(outcome: &Outcome) -> String {
    let mut text = "\
optimum = C + (N − C × t_fast ÷ block) × block ÷ t_slow
  C: cap of fast, N: outstanding I/Os, t: latency of one I/O alone on its path
"
    .to_owned();
    for op in Op::ALL {
        let formula = outcome.setup.formula(&outcome.alone(op));
        text.push_str(&format!("  {:<6} {formula}\n", op.name()));
    }
    text
}

/// Results of each policy.
pub(super) fn cells(outcome: &Outcome) -> Table {
    let figures = [
        "MiB/s",
        "rounds",
        "p50",
        "p99",
        "p99.9",
        "on fast",
        "of optimum",
    ];
    let mut table = Table::new(2, &[&["policy", "op"][..], &figures].concat());
    for cell in &outcome.cells {
        let us = |us: f64| format_ns(us * 1e3);
        let (least, most) = range(&cell.rounds_mib_s);
        table.row(vec![
            cell.policy.to_string(),
            cell.op.name().to_owned(),
            format!("{:.1}", cell.mib_s),
            format!("{least:.0}–{most:.0}"),
            us(cell.p50_us),
            us(cell.p99_us),
            us(cell.p999_us),
            percent(cell.paths[0].share),
            percent(outcome.of_optimum(cell)),
        ]);
    }
    table
}

/// So many rounds.
pub fn rounds(count: usize) -> String {
    let word = if count == 1 { "round" } else { "rounds" };
    format!("{count} {word}")
}

/// The least and the greatest.
pub fn range(figures: &[f64]) -> (f64, f64) {
    let ends = figures.iter().copied();
    (
        ends.clone().fold(f64::INFINITY, f64::min),
        ends.fold(0.0, f64::max),
    )
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
