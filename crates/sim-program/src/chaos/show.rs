//! Output about worlds of chaos, as text and as JSON.
use super::crew::Ended;
use super::detail::{Detail, LINES};
use super::tell::Teller;
use super::{Course, FINDINGS_MAX};
use engine::host::PathState;
use serde_json::{Value, json};
use sim::chaos::START_NS;
use sim::chaos::aim::{self, STATES};
use sim::chaos::judged::Check;
use sim::chaos::plan::{Kind, Plan};
use sim::chaos::run::BEGIN_NS;
use sim::chaos::shrink::Cut;
use sim::chaos::story::Line;
use terminal::output::{Format, Ink, Style};
use terminal::table::Table;
use terminal::units::{format_count, format_ns, significant};

/// `1 finding`, `2 findings`.
pub fn findings(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} finding{plural}")
}

/// `1 world`, `2,000 worlds`.
fn worlds(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} world{plural}", format_count(count))
}

/// Seconds from the beginning of a world on.
fn seconds(at_ns: u64) -> String {
    let us = at_ns.saturating_sub(START_NS) / 1000;
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

impl Course {
    /// Tells all of it. `whole`: and the whole story of a finding.
    pub fn show(&self, whole: bool, teller: &mut Teller<'_>) {
        let repeat = self.detail.as_ref().map(|it| it.command());
        let repeat = repeat.map(|it| format!("repeat with: {it}"));
        match teller.format {
            Format::Json => {
                // Before what may fail.
                repeat.into_iter().for_each(|it| teller.note(&it));
                teller.print(&format!("{}\n", self.json(whole)));
            }
            Format::Text => {
                if !teller.print(&self.text(whole, Style::of_stdout())) {
                    for (seed, found) in &self.findings {
                        teller.note(&format!("seed {seed}: {}", found.text));
                    }
                    repeat.into_iter().for_each(|it| teller.note(&it));
                }
            }
        }
    }

    pub fn text(&self, whole: bool, style: Style) -> String {
        let mut text = self.summary(style);
        text.push_str(&self.judged(style));
        text.push_str(&self.coverage(style));
        if let Some(detail) = &self.detail {
            text.push('\n');
            text.push_str(&self.finding(detail, whole, style));
        }
        text
    }

    fn summary(&self, style: Style) -> String {
        let sums = &self.sums;
        let seconds = self.elapsed.as_secs_f64();
        let last = sums.last;
        let mut text = format!(
            "{} of {} in {} s ({} per second, {} thread{})",
            worlds(sums.worlds),
            match sums.worlds {
                1 => format!("seed {last}"),
                _ => format!("seeds {} to {last}", self.wish.seed),
            },
            significant(seconds),
            significant(sums.worlds as f64 / seconds.max(1e-9)),
            self.wish.threads,
            if self.wish.threads == 1 { "" } else { "s" },
        );
        text.push_str(&match self.ended {
            Ended::All => String::new(),
            Ended::Time => "; the time was over".to_owned(),
            Ended::Asked => "; interrupted".to_owned(),
            Ended::Enough => format!("; {} are enough", findings(FINDINGS_MAX)),
            Ended::Hangs => "; one does not come back".to_owned(),
        });
        text.push('\n');
        let mut table = Table::new(1, &["", "least", "median", "total"]);
        let rows = [
            ("requests", &sums.requests),
            ("faults", &sums.faults),
            ("that touched", &sums.touched),
        ];
        for (name, counts) in rows {
            let figures = [counts.least(), counts.median(), counts.total()].map(format_count);
            let name = [name.to_owned()];
            table.row(name.into_iter().chain(figures).collect());
        }
        let time = &sums.time_ms;
        let (least, median, total) = (time.least(), time.median(), time.total());
        table.row(vec![
            "virtual time".into(),
            format_ns(least as f64 * 1e6),
            format_ns(median as f64 * 1e6),
            format!("{} s", format_count(total / 1000)),
        ]);
        let each = sums.events / sums.worlds.max(1);
        let [each, all] = [each, sums.events].map(format_count);
        let each = format!("({each} each)");
        table.row(vec!["events".into(), String::new(), each, all]);
        text.push_str(&table.render(style, |_| String::new()));
        let found = findings(self.findings.len());
        let ink = if self.findings.is_empty() {
            Ink::Bold
        } else {
            Ink::Warning
        };
        text.push_str(&style.paint(ink, &found));
        text.push('\n');
        text
    }

    /// A checker without worlds has found nothing, for there was nothing.
    fn judged(&self, style: Style) -> String {
        let mut table = Table::new(1, &["checker", "worlds"]);
        for &check in &self.checks {
            let worlds = format_count(self.sums.judged(check));
            table.row(vec![check.name().to_owned(), worlds]);
        }
        format!(
            "\nworlds in which a checker had something to judge:\n{}",
            table.render(style, |_| String::new())
        )
    }

    fn coverage(&self, style: Style) -> String {
        // In 80 columns.
        let short = |state: &PathState| match state {
            PathState::Reconnecting => "reconnect",
            state => state.name(),
        };
        let mut headings = vec!["fault"];
        headings.extend(STATES.iter().map(short));
        let mut table = Table::new(1, &headings);
        for &kind in &self.kinds {
            let cells = STATES
                .iter()
                .map(|&state| match self.sums.met(kind, state.name()) {
                    0 if aim::is_impossible(kind, state) => "–".to_owned(),
                    0 => "none".to_owned(),
                    count => format_count(count),
                });
            table.row(std::iter::once(kind.name()).chain(cells).collect());
        }
        let (empty, cells) = self.empty();
        let missed = self.kinds.iter().map(|&kind| self.sums.missed(kind)).sum();
        let [missed, all] = [missed, self.sums.faults.total()].map(format_count);
        format!(
            "\nfaults that touched something, by the state that their path was in:\n\
             {}{empty} of {cells} cells are empty; {missed} of {all} faults touched nothing\n\
             {}",
            table.render(style, |_| String::new()),
            self.forms()
        )
    }

    /// How often faults of a kind touched something in a form that has a name of its own.
    fn forms(&self) -> String {
        let forms = self.sums.forms().map(|(name, kind, count)| {
            let count = format_count(count);
            format!("of {}, {count} were {name}\n", kind.name())
        });
        forms.collect()
    }

    /// Cells of faults that never touched anything with a path in that state, and all that can be.
    fn empty(&self) -> (usize, usize) {
        let cells = |&kind: &Kind| STATES.map(|state| (kind, state));
        let all = self.kinds.iter().flat_map(cells);
        let can = |&(kind, state): &(Kind, PathState)| !aim::is_impossible(kind, state);
        let met = all
            .filter(can)
            .map(|(kind, it)| self.sums.met(kind, it.name()));
        let met: Vec<u64> = met.collect();
        (met.iter().filter(|&&it| it == 0).count(), met.len())
    }

    fn finding(&self, detail: &Detail, whole: bool, style: Style) -> String {
        let first = format!("seed {}: {}", detail.seed, self.findings[0].1.text);
        let mut text = format!("{}\n", style.paint(Ink::Warning, &first));
        let (plan, cut) = (&detail.plan, &detail.cut);
        text.push_str(&format!(
            "The same is found with {} of its {} faults and {} of {} requests of each host \
             ({} tried):\n",
            cut.faults.len(),
            plan.faults.len(),
            cut.requests,
            plan.layout.habit.total,
            worlds(u64::from(detail.runs)),
        ));
        text.push_str(&format!("{}\n", detail.found.text));
        text.push_str(&layout(plan));
        text.push_str(&faults(plan, cut).render(style, |_| String::new()));
        text.push_str(&trace(detail, whole, style));
        if let Some(cut) = &detail.hangs {
            text.push_str(&format!(
                "A smaller world did not come back, and ended the search for smaller ones:\n{}\n",
                detail.command_of(cut)
            ));
        }
        text.push_str(&format!("Repeat with:\n{}\n", detail.command()));
        text
    }

    pub fn json(&self, whole: bool) -> Value {
        let sums = &self.sums;
        let counts = |it: &super::sums::Counts| {
            let (least, median, total) = (it.least(), it.median(), it.total());
            json!({"least": least, "median": median, "total": total})
        };
        let cell = |kind, state: PathState| {
            let count = sums.met(kind, state.name());
            let possible = !aim::is_impossible(kind, state);
            let state = state.name();
            json!({"fault": kind.name(), "state": state, "count": count, "possible": possible})
        };
        let missed = |&kind: &Kind| json!({"fault": kind.name(), "count": sums.missed(kind)});
        let missed: Vec<Value> = self.kinds.iter().map(missed).collect();
        let row = |&kind: &Kind| STATES.iter().map(move |&state| cell(kind, state));
        let coverage: Vec<Value> = self.kinds.iter().flat_map(row).collect();
        let judge = |&check: &Check| json!({"checker": check.name(), "worlds": sums.judged(check)});
        let judged: Vec<Value> = self.checks.iter().map(judge).collect();
        let found = |(seed, it): &(u64, super::Found)| {
            let (kind, what) = (&it.kind, &it.text);
            json!({"seed": seed, "kind": kind, "what": what})
        };
        json!({
            "seed": self.wish.seed,
            "worlds": sums.worlds,
            "threads": self.wish.threads,
            "seconds": self.elapsed.as_secs_f64(),
            "ended": match self.ended {
                Ended::All => "all",
                Ended::Time => "time",
                Ended::Asked => "interrupted",
                Ended::Enough => "findings",
                Ended::Hangs => "hangs",
            },
            "requests": counts(&sums.requests),
            "faults": counts(&sums.faults),
            "touched": counts(&sums.touched),
            "virtual_ms": counts(&sums.time_ms),
            "events": sums.events,
            "judged": judged,
            "coverage": coverage,
            "empty": self.empty().0,
            "touched_nothing": missed,
            "forms": sums.forms().map(|(name, kind, count)| {
                json!({"name": name, "fault": kind.name(), "count": count})
            }).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(found).collect::<Vec<_>>(),
            "smallest": self.detail.as_ref().map(|it| it.json(whole)),
        })
    }
}

impl Detail {
    fn json(&self, whole: bool) -> Value {
        let fault = |kept: &sim::chaos::shrink::Kept| {
            let fault = self.plan.faults[kept.number];
            json!({
                "number": kept.number + 1,
                "fault": fault.name(),
                "waits_for": fault.when.map(PathState::name),
                "at_ns": BEGIN_NS + fault.at_ns,
                "lasts_ns": kept.lasts_ns,
            })
        };
        let line = |line: &Line| {
            let at_ns = line.at_ns.saturating_sub(START_NS);
            json!({"at_ns": at_ns, "line": line.text, "key": line.key})
        };
        json!({
            "seed": self.seed,
            "kind": self.found.kind,
            "what": self.found.text,
            "block": self.found.block,
            "layout": layout_json(&self.plan),
            "faults_of_seed": self.plan.faults.len(),
            "requests_of_seed": self.plan.layout.habit.total,
            "faults": self.cut.faults.iter().map(fault).collect::<Vec<_>>(),
            "requests": self.cut.requests,
            "worlds_tried": self.runs,
            "lines": self.lines.len(),
            "trace": self.shown(whole).map(line).collect::<Vec<_>>(),
            "repeat": self.command(),
            "hangs": self.hangs.as_ref().map(|cut| self.command_of(cut)),
        })
    }
}

/// The events; `>` marks the lines that the finding rests on.
fn trace(detail: &Detail, whole: bool, style: Style) -> String {
    let mut text = String::new();
    let all = detail.lines.len();
    let shown: Vec<&Line> = detail.shown(whole).collect();
    if shown.len() < all {
        text.push_str(&format!(
            "Evidence (>) and the last {LINES} of {} lines (--trace shows all), s from \
             the beginning:\n",
            format_count(all as u64)
        ));
    } else if all > 0 {
        text.push_str("Events (> evidence), s from the beginning:\n");
    }
    for line in shown {
        let mark = if line.key { '>' } else { ' ' };
        let at = style.paint(Ink::Dim, &format!("{:>10}", seconds(line.at_ns)));
        text.push_str(&format!("{at} {mark} {}\n", line.text));
    }
    text
}

/// Components of a world.
fn layout(plan: &Plan) -> String {
    let it = &plan.layout;
    let with = |yes: bool, what: &str| {
        if yes {
            format!(", {what}")
        } else {
            String::new()
        }
    };
    format!(
        "hosts {}, cores of each {}, targets {}, ports of each {}, policy {}{}{}\n",
        it.hosts,
        it.cores,
        it.targets,
        it.ports,
        it.policy,
        with(it.digests, "digests"),
        with(it.caches, "volatile caches"),
    )
}

/// As [`layout`], with more detail, in JSON.
fn layout_json(plan: &Plan) -> Value {
    let it = &plan.layout;
    json!({
        "hosts": it.hosts,
        "cores": it.cores,
        "targets": it.targets,
        "ports": it.ports,
        "policy": it.policy.to_string(),
        "digests": it.digests,
        "caches": it.caches,
        "connections": it.habit.connections,
        "depth": it.habit.depth,
        "blocks": it.habit.blocks,
        "block_bytes": it.habit.unit,
    })
}

fn faults(plan: &Plan, cut: &Cut) -> Table {
    let mut table = Table::new(3, &["", "fault", "waits for", "begins s", "lasts"]);
    for kept in &cut.faults {
        let fault = plan.faults[kept.number];
        table.row(vec![
            (kept.number + 1).to_string(),
            fault.name(),
            fault.when.map_or("", PathState::name).to_owned(),
            seconds(START_NS + BEGIN_NS + fault.at_ns),
            format_ns(kept.lasts_ns as f64),
        ]);
    }
    table
}
