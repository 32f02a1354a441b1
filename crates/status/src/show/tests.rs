//! Texts for users and programs, and the table by class.
use super::super::code::parse;
use super::*;

fn shown(text: &str) -> String {
    one(&parse(text).unwrap(), Style::PLAIN)
}

#[test]
fn one_status_is_told_in_full() {
    assert_eq!(
        shown("0x281"),
        "unrecovered read error (2h/81h = 0x281)\n\
         \x20 said of  I/O commands\n\
         \x20 class    media: the data can't be read or written, or fail their protection check; \
         every path leads to the same data, another copy may have them\n\
         \x20 outcome  the data can't be read or written\n\
         \x20 head     the I/O ends with an error at once; no other path is tried\n\
         \x20 error    EIO, if it ends so\n\
         \x20 health   it doesn't count against the path's\n\
         \x20 mirror   reads go to another leg, and this one is repaired from there; what a leg \
         could not write is recorded, and it stays; one that fails a flush so leaves\n\
         \x20 DNR      makes no difference here\n"
    );
}

#[test]
fn what_differs_is_said() {
    for (text, parts) in [
        (
            "0x82",
            &[
                "after 10 ms, doubled",
                "at most 5 times; then another path",
                "set, it would be: error",
            ][..],
        ),
        (
            "0x5082",
            &[
                "at once",
                "clear, it would be: again",
                "Do Not Retry is set",
                "CRDT2",
            ],
        ),
        ("0/0x22", &["at most 3 times; then another path"]),
        (
            "3/03",
            &["another path at once; this one when the ANA log was read again"],
        ),
        (
            "invalid namespace or format",
            &["this one when its list of namespaces was read"],
        ),
        (
            "0x181",
            &[
                "invalid protection information",
                "controller busy",
                "growing waits",
            ],
        ),
        ("controller busy", &["Connect and other Fabrics commands"]),
        ("0x8503", &["dword 3, phase tag 1"]),
        ("0x2281", &["More is set"]),
        ("7/0x10", &["no name: vendor specific (7h/10h", "again"]),
        ("0", &["it is done"]),
    ] {
        let text_shown = shown(text);
        for part in parts {
            assert!(text_shown.contains(part), "{text}: {text_shown}");
        }
    }
    assert!(!shown("controller busy").contains("protection"));
    assert!(!shown("0").contains("error"));
}

#[test]
fn json_has_the_facts_of_the_text() {
    let value = one_json(&parse("0x5082").unwrap());
    assert_eq!(value["value"], 0x5082);
    assert_eq!((&value["dnr"], &value["crd"]), (&true.into(), &2.into()));
    let it = &value["statuses"][0];
    assert_eq!(it["name"], "namespace not ready");
    assert_eq!(it["head"]["does"], "error");
    assert_eq!(it["head"]["error_read"], "EIO");
    let all = all_json();
    let all = all["statuses"].as_array().unwrap();
    assert_eq!(all.len(), Status::ALL.len() + connect_status::ALL.len());
    let of = |code: &str| all.iter().find(|it| it["code"] == code).unwrap();
    assert_eq!(of("0h/82h")["head"]["does"], "again");
    assert_eq!(of("0h/82h")["head"]["then"], "another-path");
    assert_eq!(of("0h/82h")["dnr_matters"], true);
    assert_eq!(of("2h/81h")["mirror"]["read"], "another-leg-and-repair");
}

/// Most codes in a row of table.md: more of them are "all others".
const LISTED_MAX: usize = 20;

/// table.md has a row for each effect in the table of the code. `BRAID_WRITE_DOCS=1` writes it.
#[test]
fn the_table_by_class_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/show/table.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = text.find("| class |").unwrap();
    let (before, table) = text.split_at(begin);
    let head = "| class | statuses | head | with DNR | health | error | mirror reads \
                | mirror writes |";
    let mut wanted = format!("{head}\n|---|---|---|---|---|---|---|---|\n");
    let mut effects: Vec<([String; 7], Vec<String>)> = Vec::new();
    for [code, _, effect @ ..] in rows() {
        match effects.iter_mut().find(|(it, _)| *it == effect) {
            Some((_, codes)) => codes.push(code),
            None => effects.push((effect, vec![code])),
        }
    }
    for ([class, rest @ ..], codes) in effects {
        let codes = if codes.len() > LISTED_MAX {
            "all others with a name".to_owned()
        } else {
            codes.join(", ")
        };
        wanted += &format!("| {class} | {codes} | {} |\n", rest.join(" | "));
    }
    if std::env::var_os("BRAID_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{wanted}")).unwrap();
        return;
    }
    let help = "table.md is not the code's table: run this test with BRAID_WRITE_DOCS=1";
    assert_eq!(table, wanted, "{help}");
}
