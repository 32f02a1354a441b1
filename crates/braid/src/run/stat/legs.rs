//! A mirror's legs, for people.
use super::figures::{self, Figures, time};
use super::{painted, paragraph};
use crate::output::Style;
use crate::run::client::{all_policies, values_of};
use crate::run::latency;
use crate::units::{format_bytes, format_count};
use policy::Policy;
use serde_json::Value;
use std::fmt::{Result, Write};
use terminal::answer::{items, number, word};

/// Text behind the line of its name.
///
/// # Errors
/// Those of `text`.
pub(super) fn show(
    text: &mut String,
    mirror: &Value,
    elapsed_ns: Option<u64>,
    style: Style,
) -> Result {
    if let Some(why) = mirror["why"].as_str() {
        paragraph(text, "", why)?;
    }
    if let Some(note) = mirror["note"].as_str() {
        paragraph(text, "", note)?;
    }
    if let Some(held) = held(mirror) {
        paragraph(text, "", &held)?;
    }
    if let Ok(policy) = Policy::parse(word(&mirror["policy"])) {
        paragraph(text, "policy: ", &all_policies(&values_of(mirror), policy))?;
    }
    for leg in items(&mirror["legs"]) {
        show_leg(text, leg, style)?;
    }
    let per = if elapsed_ns.is_some() { "/s" } else { "" };
    let [reads, writes, bytes] = ["reads", "writes", "bytes"].map(|it| format!("{it}{per}"));
    let headings = [
        "leg", &reads, &bytes, "p99", &writes, &bytes, "p99", "failed", "repaired",
    ];
    let mut table = Figures::new(&headings);
    for leg in items(&mirror["legs"]) {
        let count = |key: &str, elapsed_ns| figures::count(&leg[key], elapsed_ns);
        let bytes = |key: &str| figures::bytes(&leg[key], elapsed_ns);
        let p99 = |group: &str| time(latency::of_json(&leg["latency"][group]).quantile_ns(990));
        let cells = vec![
            count("reads", elapsed_ns),
            bytes("bytes_read"),
            p99("read"),
            count("writes", elapsed_ns),
            bytes("bytes_written"),
            p99("write"),
            count("errors", None),
            count("repaired", None),
        ];
        table.row(format!("   {}", slot(leg)), cells);
    }
    text.push_str(&table.render(style));
    for leg in items(&mirror["legs"]) {
        let rescued = number(&leg["rescued"]);
        if rescued > 0 {
            let line = format!(
                "leg {} was read {} times while it was rebuilt: no leg in sync could be read there",
                slot(leg),
                format_count(rescued)
            );
            paragraph(text, "", &line)?;
        }
    }
    let unalike = number(&mirror["unalike"]);
    if unalike > 0 {
        let regions = format_count(unalike);
        paragraph(text, "", &format!("{regions} regions are being made alike"))?;
    }
    if let Some(found) = last_check(mirror) {
        paragraph(text, "last check: ", &found)?;
    }
    Ok(())
}

/// For how long changes wait for what an owner before has left, if they do.
pub fn held(mirror: &Value) -> Option<String> {
    let until = match mirror["held_ns"].as_u64()? {
        u64::MAX => "without a bound".into(),
        held_ns => format!("{} s more", held_ns.div_ceil(1_000_000_000)),
    };
    Some(format!(
        "changes wait {until}: who had it before did not release it, or its last leg in sync was \
         lost, and writes may come as late as that"
    ))
}

/// Findings of the last check, and where first, by leg; `None`: there was none.
pub fn last_check(mirror: &Value) -> Option<String> {
    let checked = &mirror["checked"]; // a value, which has all keys: an older engine lacks some
    if !checked.is_object() {
        return None;
    }
    let count = |key: &str| format_count(number(&checked[key]));
    let mut text = format!(
        "{} differences, {} unreadable, {} rewritten, in {}",
        count("differences"),
        count("unreadable"),
        count("repaired"),
        format_bytes(number(&checked["bytes"]))
    );
    if number(&checked["skipped"]) > 0 {
        text += &format!(", {} not compared (bad blocks of a leg)", count("skipped"));
    }
    if checked["alone"] == true {
        text += ", then only one leg was in sync, and there was nothing to compare";
    } else if checked["complete"] == false {
        text += ", then it was ended";
    } else if checked["changed"] == true {
        text += ", while legs came or went, so not all that they have";
    }
    if let Some(leg) = checked["from"].as_u64() {
        text += &format!("; by what leg {leg} has");
    }
    for it in items(&checked["first"]) {
        let (leg, start, end) = (&it["leg"], &it["start"], &it["end"]);
        text += &format!("; leg {leg}, bytes {start} to {end}");
    }
    Some(text)
}

fn slot(leg: &Value) -> String {
    leg["slot"]
        .as_u64()
        .map_or("-".into(), |slot| slot.to_string())
}

fn show_leg(text: &mut String, leg: &Value, style: Style) -> Result {
    let name = leg["name"].as_str();
    let name = name.map_or(String::new(), |name| format!("{name}  "));
    writeln!(text, "  {}  {name}{}", slot(leg), word(&leg["uri"]))?;
    let mut facts = vec![painted(style, word(&leg["state"]))];
    if let Some(rebuilt) = leg["rebuilt"].as_f64() {
        let left = format_bytes(number(&leg["lacks_bytes"]));
        facts.push(format!("{:.1} % done, {left} to go", rebuilt * 100.0));
    }
    facts.extend(leg["volume"].as_str().map(|name| format!("paths: {name}")));
    facts.extend(leg["why"].as_str().map(str::to_owned));
    paragraph(text, "", &facts.join(", "))
}
