//! Entries of discovery logs, in the words of nvme-cli.
//!
//! # Contract
//! JSON has the keys of `nvme discover -o json`: `genctr` and `records`, each with `trtype`,
//! `adrfam`, `subtype`, `treq`, `portid`, `trsvcid`, `subnqn`, `traddr`, `eflags`, `sectype`; and
//! beside these `from`, `cntlid`, `asqsz`, `usable` and `why_not` of each record, and
//! `controllers`. `genctr` is that of the controller that was asked for.
use super::session::Discovered;
use crate::advice;
use crate::output::Style;
use crate::table::Table;
use crate::uri::discovery::in_words;
use engine::discovery::{Endpoint, offer};
use nvme::host::{DiscoveryEntry, DiscoveryLog};
use nvme::wire::log::{eflags, subtype, treq};
use serde_json::{Value, json};
use std::fmt::Write;

/// Sources that don't stand among the entries: controllers that were not read.
pub fn notes(root: &Endpoint, found: &Discovered) -> Vec<String> {
    let lost = found.lost.iter().filter(|(it, _)| it != root);
    let lost = lost.map(|(it, why)| format!("{}, a referral: {why}", in_words(it)));
    let beyond = found.too_many.iter();
    let beyond = beyond.map(|it| {
        format!(
            "{}: not asked: there are too many referrals, or it is too far",
            in_words(it)
        )
    });
    lost.chain(beyond).collect()
}

/// For people: a table for each controller.
pub fn text(found: &Discovered, style: Style) -> String {
    let mut text = String::new();
    for (number, (from, depth, log)) in found.logs.iter().enumerate() {
        let gap = if number == 0 { "" } else { "\n" };
        let referral = if *depth == 0 { "" } else { ", by referral" };
        let entries = match log.entries.len() {
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        };
        let uri = in_words(from);
        let _ = writeln!(
            text,
            "{gap}{uri}{referral}: {entries}, generation {}",
            log.generation
        );
        text.push_str(&entries_in_words(log, style));
    }
    text
}

fn entries_in_words(log: &DiscoveryLog, style: Style) -> String {
    if log.entries.is_empty() {
        return String::new();
    }
    let headings = [
        "subtype", "trtype", "traddr", "trsvcid", "portid", "subnqn", "treq", "sectype", "eflags",
    ];
    let mut table = Table::new(headings.len(), &headings);
    for entry in &log.entries {
        table.row(vec![
            subtype_words(entry.subtype),
            trtype_words(entry.trtype),
            printable(&entry.traddr),
            printable(&entry.trsvcid),
            entry.port_id.to_string(),
            printable(&entry.subnqn),
            treq_words(entry.treq),
            sectype_words(entry),
            eflags_words(entry.eflags),
        ]);
    }
    let why = |row: usize| -> String {
        let entry = row.checked_sub(1).and_then(|row| log.entries.get(row));
        let why = entry.and_then(|entry| offer(entry).err());
        why.map_or(String::new(), |why| format!("(not used: {why})"))
    };
    table.render(style, why)
}

/// For programs.
pub fn json(root: &Endpoint, found: &Discovered) -> Value {
    let of_root = found.logs.iter().find(|(from, ..)| from == root);
    let records = found.logs.iter().flat_map(|(from, _, log)| {
        let from = in_words(from);
        log.entries.iter().map(move |entry| record(&from, entry))
    });
    let read = found.logs.iter().map(|(from, depth, log)| {
        json!({
            "uri": in_words(from),
            "depth": depth,
            "genctr": log.generation,
            "records": log.entries.len(),
            "error": null,
        })
    });
    let unread = |it: &Endpoint, why: &str| {
        let uri = in_words(it);
        json!({
            "uri": uri,
            "depth": null,
            "genctr": null,
            "records": null,
            "error": advice::of_target(why, &uri),
        })
    };
    let lost = found.lost.iter().map(|(it, why)| unread(it, why));
    let why = "too many referrals, or too far";
    let beyond = found.too_many.iter().map(|it| unread(it, why));
    json!({
        "genctr": of_root.map(|(_, _, log)| log.generation),
        "records": records.collect::<Vec<_>>(),
        "controllers": read.chain(lost).chain(beyond).collect::<Vec<_>>(),
    })
}

fn record(from: &str, entry: &DiscoveryEntry) -> Value {
    let why_not = offer(entry).err();
    json!({
        "trtype": trtype_words(entry.trtype),
        "adrfam": adrfam_words(entry.adrfam),
        "subtype": subtype_words(entry.subtype),
        "treq": treq_words(entry.treq),
        "portid": entry.port_id,
        "trsvcid": entry.trsvcid,
        "subnqn": entry.subnqn,
        "traddr": entry.traddr,
        "eflags": eflags_words(entry.eflags),
        "sectype": sectype_words(entry),
        "cntlid": entry.cntlid,
        "asqsz": entry.admin_entries_max,
        "from": from,
        "usable": why_not.is_none(),
        "why_not": why_not.map(|why| why.to_string()),
    })
}

/// Text of somebody on the network, without effect on a terminal.
pub fn printable(text: &str) -> String {
    // A character that can't be seen, or turns the line around, is escaped; quotes are not.
    let escape = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    text.chars().map(escape).collect()
}

fn or_number(word: &str, number: u8) -> String {
    match word {
        "" => format!("unknown ({number})"),
        word => word.to_owned(),
    }
}

fn trtype_words(trtype: u8) -> String {
    let word = match trtype {
        0 => "unspecified",
        1 => "rdma",
        2 => "fc",
        3 => "tcp",
        254 => "loop",
        _ => "",
    };
    or_number(word, trtype)
}

fn adrfam_words(adrfam: u8) -> String {
    let word = match adrfam {
        0 => "unspecified",
        1 => "ipv4",
        2 => "ipv6",
        3 => "infiniband",
        4 => "fibre-channel",
        254 => "loop",
        _ => "",
    };
    or_number(word, adrfam)
}

fn subtype_words(kind: u8) -> String {
    let word = match kind {
        subtype::REFERRAL => "discovery subsystem referral",
        subtype::NVM => "nvme subsystem",
        subtype::CURRENT => "current discovery subsystem",
        _ => "",
    };
    or_number(word, kind)
}

fn treq_words(bits: u8) -> String {
    let channel = match bits & treq::SECURE_CHANNEL {
        0 => "not specified",
        treq::REQUIRED => "required",
        treq::NOT_REQUIRED => "not required",
        _ => "reserved",
    };
    match bits & treq::NO_SQ_FLOW_CONTROL {
        0 => channel.to_owned(),
        _ => format!("{channel}, sq flow control disable supported"),
    }
}

/// Of TCP; the others have no such field there.
fn sectype_words(entry: &DiscoveryEntry) -> String {
    let word = match (entry.trtype, entry.sectype) {
        (3, 0) => "none",
        (3, 1) => "tls",
        (3, 2) => "tls13",
        (3, _) => "",
        _ => "-",
    };
    or_number(word, entry.sectype)
}

fn eflags_words(bits: u16) -> String {
    let words = [
        (eflags::EPCSD, "explicit discovery connections"),
        (eflags::DUPRETINFO, "duplicate discovery information"),
        (eflags::NCC, "no cdc connectivity"),
    ];
    let set = words.iter().filter(|(bit, _)| bits & bit != 0);
    let set: Vec<_> = set.map(|(_, word)| *word).collect();
    match set.is_empty() {
        true => "none".to_owned(),
        false => set.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> DiscoveryLog {
        let entry = |subtype, trtype, treq, subnqn: &str| DiscoveryEntry {
            trtype,
            adrfam: 1,
            subtype,
            treq,
            sectype: 0,
            port_id: 1,
            cntlid: 0xffff,
            admin_entries_max: 32,
            eflags: u16::from(subtype == 3) * 2,
            traddr: "10.0.0.1".into(),
            trsvcid: "4420".into(),
            subnqn: subnqn.into(),
        };
        DiscoveryLog {
            generation: 7,
            entries: vec![
                entry(2, 3, 4, "nqn.x:\u{1b}[2Ja"),
                entry(2, 1, 0, "nqn.x:b"),
                entry(2, 3, 1, "nqn.x:c"),
                entry(3, 3, 0, "nqn.x:d"),
            ],
        }
    }

    fn found() -> (Endpoint, Discovered) {
        let root = Endpoint {
            address: "10.0.0.1:8009".parse().unwrap(),
            nqn: nvme::wire::fabrics::DISCOVERY_NQN.into(),
        };
        let found = Discovered {
            logs: vec![(root.clone(), 0, log())],
            ..Discovered::default()
        };
        (root, found)
    }

    #[test]
    fn entries_are_shown_whether_or_not_they_can_be_used() {
        let (_, found) = found();
        let text = text(&found, Style::PLAIN);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "nvme-tcp://10.0.0.1:8009: 4 entries, generation 7"
        );
        assert_eq!(lines.len(), 6);
        assert!(lines[2].contains("nqn.x:\\u{1b}[2Ja"), "{text}");
        assert!(
            lines[3].contains("rdma") && lines[3].ends_with("(not used: only TCP is supported)")
        );
        assert!(
            lines[4].ends_with("(not used: it requires TLS, which isn't supported)"),
            "{text}"
        );
        assert!(
            lines[5].ends_with("explicit discovery connections"),
            "{text}"
        );
    }

    #[test]
    fn programs_get_the_keys_of_nvme_cli() {
        let (root, found) = found();
        let value = json(&root, &found);
        assert_eq!(value["genctr"], 7);
        let first = &value["records"][0];
        let words = [
            "trtype", "adrfam", "subtype", "treq", "trsvcid", "traddr", "sectype",
        ];
        let words = words.map(|key| first[key].as_str().unwrap());
        let treq = "not specified, sq flow control disable supported";
        assert_eq!(
            words,
            [
                "tcp",
                "ipv4",
                "nvme subsystem",
                treq,
                "4420",
                "10.0.0.1",
                "none"
            ]
        );
        assert_eq!(first["portid"], 1);
        assert_eq!(first["why_not"], "its NQN can't be one");
        assert_eq!(value["records"][3]["usable"], true);
        assert_eq!(value["records"][2]["usable"], false);
        assert_eq!(value["controllers"][0]["records"], 4);
    }
}
