//! One status, or all of them, as text and JSON: the same facts.
use super::code::{Asked, fabrics_name};
use super::meaning::{Meaning, class_words, commands, errno_word, leg_words};
use crate::output::{Ink, Style};
use crate::table::Table;
use mirror::LegDisposition;
use multipath::Disposition;
use nvme::wire::Status;
use nvme::wire::fabrics::connect_status;
use serde_json::{Value, json};

/// Action of a connection attempt for the answers that only Fabrics commands get.
const FABRICS: &str = "the path isn't connected; it is tried again after growing waits, and the \
                       reason is in the log and in braid explain";

/// All statuses that have a name, one per line.
pub fn all(style: Style) -> String {
    let headings = [
        "code",
        "status",
        "class",
        "head",
        "with DNR",
        "health",
        "error",
        "mirror reads",
        "mirror writes",
    ];
    let mut table = Table::new(headings.len(), &headings);
    for row in rows() {
        table.row(row.to_vec());
    }
    let mut text = table.render(style, |_| String::new());
    text += "\nIn answer to Connect and other Fabrics commands:\n";
    for (status, name) in connect_status::ALL {
        text += &format!("{}  {name}\n", code(status));
    }
    text + "\n" + LEGEND
}

const LEGEND: &str = "\
again: the same path after a wait; error: the I/O ends with it. With DNR: what a head does when the
controller sets Do Not Retry (=: the same). Health: whether it counts against the path's, at once
or later, when it goes on. Mirror: what a mirror does with a leg that answers so,
while another one has the data; with no other it is an error. braid status CODE says more.
";

/// The cells of all statuses that have a name.
pub fn rows() -> Vec<[String; 9]> {
    let row = |status: &Status| {
        let it = Meaning::of(*status);
        let strict = Meaning::of(status.with_dnr());
        let dnr = match strict.head_words() == it.head_words() {
            true => "=",
            false => strict.head_words(),
        };
        let leg = |at: usize| leg_words(it.mirror[at], it.outcome).to_owned();
        [
            code(*status),
            status.name().unwrap_or_default().into(),
            class_words(it.class).0.into(),
            it.head_words().into(),
            dnr.into(),
            it.health_word().into(),
            it.errno_words(),
            leg(0),
            leg(1),
        ]
    };
    Status::ALL.iter().map(row).collect()
}

/// One status in full.
pub fn one(asked: &Asked, style: Style) -> String {
    let status = asked.status;
    let mut text = String::new();
    if !asked.fabrics_only {
        let title = format!(
            "{} ({} = {:#05x})",
            name(status),
            code(status),
            status.code().0
        );
        text += &style.paint(Ink::Bold, &title);
        text.push('\n');
        for (key, value) in facts(status) {
            text += &format!("  {key:<9}{value}\n");
        }
    }
    if let Some(name) = fabrics_name(status) {
        let title = format!("{name} ({} = {:#05x})", code(status), status.code().0);
        text += &style.paint(Ink::Bold, &title);
        text += &format!("\n  {:<9}Connect and other Fabrics commands\n", "said of");
        text += &format!("  {:<9}{FABRICS}\n", "path");
    }
    for line in bits(asked) {
        text += &line;
        text.push('\n');
    }
    text
}

/// Facts of a status, line by line.
fn facts(status: Status) -> Vec<(&'static str, String)> {
    let it = Meaning::of(status);
    let (class, says) = class_words(it.class);
    let mut facts = vec![
        ("said of", commands(status).into()),
        ("class", format!("{class}: {says}")),
        ("outcome", it.outcome.to_string()),
        ("head", head(&it)),
    ];
    if let Some(errno) = it.errno[0].map(|_| it.errno_words()) {
        facts.push(("error", format!("{errno}, if it ends so")));
    }
    let health = match it.blames {
        [true, _] => "it counts against the path's",
        [false, true] => "it counts against the path's when repeating has not helped",
        [false, false] => "it doesn't count against the path's",
    };
    facts.push(("health", health.into()));
    facts.push(("mirror", mirror(&it)));
    facts.push(("DNR", dnr(status, &it)));
    facts
}

/// Action of the head, with its waits.
fn head(it: &Meaning) -> String {
    let again = it.reads_again();
    match (it.head, it.then) {
        (Disposition::Complete, _) if it.outcome.is_done() => "it is done".into(),
        (Disposition::Complete, _) => {
            "the I/O ends with an error at once; no other path is tried".into()
        }
        (Disposition::FailOver, _) => match again {
            Some(what) => format!("another path at once; this one when {what} was read again"),
            None => "another path at once".into(),
        },
        (Disposition::Retry { after_ns }, then) => {
            let last = match then {
                Disposition::FailOver => "then another path",
                _ => "then an error",
            };
            format!(
                "the same path again after {} ms, doubled each time, or the wait that CRD names, \
                 at most {} times; {last}",
                after_ns / 1_000_000,
                it.repeats
            )
        }
        (Disposition::Hold, _) => "it is held".into(),
    }
}

fn mirror(it: &Meaning) -> String {
    if it.outcome.is_done() {
        return "it is done".into();
    }
    let [read, change, flush] = it.mirror;
    let read = match read {
        LegDisposition::Another { repair: true } => {
            "reads go to another leg, and this one is repaired from there"
        }
        LegDisposition::Another { repair: false } => "reads go to another leg",
        _ => "reads end with an error, no other leg is tried",
    };
    let rest = match [change, flush] {
        [LegDisposition::Record, _] => {
            "what a leg could not write is recorded, and it stays; one that fails a flush so leaves"
        }
        [LegDisposition::Retire, LegDisposition::Retire] => {
            "a leg that fails a write or flush so leaves; the last one stays, with an error"
        }
        _ => "writes and flushes end with an error, and the leg stays",
    };
    format!("{read}; {rest}")
}

/// Effect of Do Not Retry.
fn dnr(status: Status, it: &Meaning) -> String {
    let set = status.dnr();
    let other = Meaning::of(match set {
        true => Status(status.0 & !Status::default().with_dnr().0),
        false => status.with_dnr(),
    });
    let verb = if set { "clear" } else { "set" };
    match other.head_words() == it.head_words() {
        true => "makes no difference here".into(),
        false => format!("{verb}, it would be: {}", other.head_words()),
    }
}

/// Meaning of the retry bits, where they are set.
fn bits(asked: &Asked) -> Vec<String> {
    let status = asked.status;
    let mut lines = Vec::new();
    if status.dnr() {
        lines.push("Do Not Retry is set: the same command is expected to fail again".into());
    }
    if let Some(index) = status.crd() {
        let n = index + 1;
        lines.push(format!(
            "Command Retry Delay {n}: a repetition waits CRDT{n} of Identify Controller, units of \
             100 ms"
        ));
    }
    if status.more() {
        lines.push("More is set: the controller's error log says more (nvme error-log)".into());
    }
    if let Some(phase) = asked.phase {
        lines.push(format!(
            "Read as the upper half of a completion's dword 3, phase tag {}",
            u8::from(phase)
        ));
    }
    lines
}

/// All statuses, and those of Fabrics.
pub fn all_json() -> Value {
    let fabrics = connect_status::ALL.iter();
    let fabrics = fabrics.map(|(status, name)| fabrics_json(*status, name));
    let usual = Status::ALL.iter().map(|status| meaning_json(*status));
    json!({ "statuses": usual.chain(fabrics).collect::<Vec<_>>() })
}

/// One status: its bits, and what it means.
pub fn one_json(asked: &Asked) -> Value {
    let status = asked.status;
    let usual = (!asked.fabrics_only).then(|| meaning_json(status));
    let fabrics = fabrics_name(status).map(|name| fabrics_json(status, name));
    let statuses: Vec<_> = usual.into_iter().chain(fabrics).collect();
    json!({
        "value": status.0,
        "dnr": status.dnr(),
        "more": status.more(),
        "crd": status.crd().map_or(0, |index| index + 1),
        "phase": asked.phase.map(u8::from),
        "statuses": statuses,
    })
}

fn meaning_json(status: Status) -> Value {
    let it = Meaning::of(status);
    let strict = Meaning::of(status.with_dnr());
    let (class, says) = class_words(it.class);
    let [read, change, flush] = it.mirror.map(leg_json);
    let mut value = base_json(status, &name(status), commands(status));
    value["class"] = json!(class);
    value["meaning"] = json!(says);
    value["outcome"] = json!(it.outcome.to_string());
    value["head"] = head_json(&it);
    value["head_with_dnr"] = head_json(&strict);
    value["dnr_matters"] = json!(strict.head_words() != it.head_words());
    value["health"] = json!(match it.blames {
        [true, _] => "counts",
        [false, true] => "counts-later",
        [false, false] => "doesnt-count",
    });
    value["mirror"] = json!({ "read": read, "write": change, "flush": flush });
    value
}

fn fabrics_json(status: Status, name: &str) -> Value {
    let mut value = base_json(status, name, "Fabrics commands");
    value["meaning"] = json!(FABRICS);
    value
}

fn base_json(status: Status, name: &str, commands: &str) -> Value {
    json!({
        "code": code(status),
        "sct": status.sct(),
        "sc": status.sc(),
        "name": name,
        "commands": commands,
    })
}

fn head_json(it: &Meaning) -> Value {
    let word = |disposition| match disposition {
        Disposition::Complete if it.outcome.is_done() => "done",
        Disposition::Complete => "error",
        Disposition::Retry { .. } => "again",
        Disposition::FailOver => "another-path",
        Disposition::Hold => "hold",
    };
    let after_ms = match it.head {
        Disposition::Retry { after_ns } => Some(after_ns / 1_000_000),
        _ => None,
    };
    json!({
        "does": word(it.head),
        "after_ms": after_ms,
        "repeats": after_ms.map(|_| it.repeats),
        "then": after_ms.map(|_| word(it.then)),
        "reads_again": it.reads_again(),
        "error_read": it.errno[0].map(|errno| errno_word(Some(errno))),
        "error_write": it.errno[1].map(|errno| errno_word(Some(errno))),
    })
}

fn leg_json(leg: LegDisposition) -> Value {
    json!(match leg {
        LegDisposition::Complete => "complete",
        LegDisposition::Another { repair: false } => "another-leg",
        LegDisposition::Another { repair: true } => "another-leg-and-repair",
        LegDisposition::Record => "blocks-recorded",
        LegDisposition::Retire => "leg-leaves",
    })
}

/// Its name; of one without a name, its range.
fn name(status: Status) -> String {
    match status.name() {
        Some(name) => name.into(),
        None => format!("no name: {}", status.range()),
    }
}

/// Type and code as the specifications write them.
fn code(status: Status) -> String {
    format!("{:x}h/{:02X}h", status.sct(), status.sc())
}

#[cfg(test)]
mod tests;
