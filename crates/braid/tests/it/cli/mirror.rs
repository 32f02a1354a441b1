//! `braid mirror create` and `examine` as they are typed, on files of every kind.
use crate::cli::common::{Place, code, stderr, stdout};
use crc_fast::crc32_iscsi;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

const MIB: u64 = 1 << 20;
const COPIES_AT: [u64; 2] = [4096, 65536];

/// A sparse file, and its URI.
fn leg(place: &Place, name: &str, bytes: u64) -> (PathBuf, String) {
    let path = place.path().join(name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    let uri = format!("file:{}", path.display());
    (path, uri)
}

/// Overwrites a few bytes.
fn put(path: &PathBuf, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Two legs of a new mirror.
fn made(place: &Place) -> [(PathBuf, String); 2] {
    let legs = [leg(place, "a", 16 * MIB), leg(place, "b", 20 * MIB)];
    place.json(&[
        "mirror", "create", "v0", &legs[0].1, &legs[1].1, "-o", "json",
    ]);
    legs
}

/// Error with its exit code.
fn refused(place: &Place, args: &[&str], expected: i32, parts: &[&str]) {
    let output = place.braid(args);
    let text = stderr(&output) + &stdout(&output);
    assert_eq!(code(&output), expected, "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?}: no {part:?} in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// Whether `test` has to be left out because there is no blkid.
fn no_blkid(test: &str) -> bool {
    let there = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];
    let there = there
        .iter()
        .any(|it| Command::new(it).arg("-V").output().is_ok());
    if !there {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: blkid is not installed");
    }
    !there
}

#[test]
fn a_mirror_is_made_and_every_fact_is_shown() {
    if no_blkid("a_mirror_is_made_and_every_fact_is_shown") {
        return;
    }
    let place = Place::new();
    let (_, a) = leg(&place, "a", 16 * MIB);
    let (_, b) = leg(&place, "b", 20 * MIB + 512);
    let policy = ["--policy", "round-robin", "--region", "64k"];
    let create = ["mirror", "create", "v0", &a, &b, "-o", "json"];
    let made = place.json(&[&create[..], &policy[..]].concat());
    // The smallest leg counts; nothing was written to either, so they are alike.
    assert_eq!(
        (&made["name"], &made["bytes"]),
        (&"v0".into(), &(15 * MIB).into())
    );
    assert_eq!(
        (&made["regions"], &made["region_bytes"]),
        (&240.into(), &65536.into())
    );
    assert_eq!(made["properties"]["policy"], "round-robin:262144", "row B2");
    assert_eq!((&made["clean"], &made["event"]), (&true.into(), &1.into()));
    let states = |made: &Value| {
        let legs = made["legs"].as_array().unwrap().iter();
        legs.map(|leg| leg["state"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&made), ["in-sync", "in-sync"]);

    let seen = place.json(&["mirror", "examine", &a, &b, "-o", "json"]);
    assert_eq!(seen["legs"][1]["mirror"], made, "a leg knows all of it");
    for (slot, uri) in [&a, &b].into_iter().enumerate() {
        let leg = &seen["legs"][slot];
        assert_eq!(
            (&leg["uri"], &leg["slot"]),
            (&uri.as_str().into(), &slot.into())
        );
        assert_eq!(
            (&leg["owner"], &leg["other_sequence"]),
            (&Value::Null, &leg["sequence"])
        );
        assert_eq!(leg["bitmap"], serde_json::json!({"set": 0, "bad_pages": 0}));
        assert_eq!(seen["together"]["roles"][slot]["role"], "in-sync");
    }
    let output = place.braid(&["mirror", "examine", &a, &b]);
    let text = stdout(&output);
    for part in [
        made["mirror"].as_str().unwrap(),
        "15 MiB",
        "240 of 64 KiB",
        "round-robin:262144",
        "both the same, sequence 1",
        "0 regions may differ",
        "nobody",
        "in order",
        "together\n",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn a_leg_that_can_not_be_read_keeps_the_others_from_nothing() {
    if no_blkid("a_leg_that_can_not_be_read_keeps_the_others_from_nothing") {
        return;
    }
    let place = Place::new();
    let [a, b] = ["a", "b"].map(|name| leg(&place, name, 16 * MIB));
    place.json(&["mirror", "create", "v0", &a.1, &b.1, "-o", "json"]);
    std::fs::remove_file(&a.0).unwrap();
    let both = ["mirror", "examine", &a.1, &b.1];
    let output = place.braid(&both);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    for part in [
        "it can't be read: ",
        "this leg    1,",
        "may have newer writes",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    let output = place.braid(&[&both[..], &["-o", "json"]].concat());
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["legs"][0]["uri"], a.1, "in their order: {seen}");
    assert_eq!(
        (&seen["legs"][1]["slot"], &seen["together"]["mirror"]),
        (&1.into(), &false.into())
    );
    let alone = place.braid(&["mirror", "examine", &a.1]);
    assert!(
        !alone.status.success() && alone.stdout.is_empty(),
        "{alone:?}"
    );
}

#[test]
fn legs_that_hold_something_are_rebuilt_from_the_first() {
    if no_blkid("legs_that_hold_something_are_rebuilt_from_the_first") {
        return;
    }
    let place = Place::new();
    let [a, b] = ["a", "b"].map(|name| leg(&place, name, 16 * MIB));
    put(&b.0, 9 * MIB, b"something");
    let made = place.json(&["mirror", "create", "v0", &a.1, &b.1, "-o", "json"]);
    assert_eq!(made["legs"][1]["state"], "stale");
    assert_eq!(made["legs"][1]["position_bytes"], 0);
    let seen = place.json(&["mirror", "examine", &b.1, &a.1, "-o", "json"]);
    assert_eq!(seen["together"]["roles"][0]["role"], "behind");
    let text = stdout(&place.braid(&["mirror", "examine", &a.1]));
    assert!(text.contains("stale, lacks everything"), "{text}");
    // Alone it has nothing, whatever is wished.
    let both = stdout(&place.braid(&["mirror", "examine", &b.1]));
    assert!(both.contains("this leg    1,"), "{both}");
}

#[test]
fn what_a_device_holds_is_not_written_over_without_force() {
    if no_blkid("what_a_device_holds_is_not_written_over_without_force") {
        return;
    }
    let place = Place::new();
    let (free, other) = leg(&place, "free", 16 * MIB);
    let (table, uri) = leg(&place, "table", 16 * MIB);
    // A partition table with one Linux partition.
    put(
        &table,
        446,
        &[0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0],
    );
    put(&table, 510, &[0x55, 0xaa]);
    let (swap, swap_uri) = leg(&place, "swap", 16 * MIB);
    put(&swap, 1024, &[1, 0, 0, 0, 0xff, 0x0f, 0, 0]);
    put(&swap, 4086, b"SWAPSPACE2");
    let before = [&free, &table, &swap].map(|path| fs::read(path).unwrap());
    for (legs, parts) in [
        (
            [&other, &uri],
            [uri.as_str(), "a partition table (dos)", "--force"],
        ),
        ([&swap_uri, &other], [swap_uri.as_str(), "swap", "--force"]),
    ] {
        refused(
            &place,
            &["mirror", "create", "v0", legs[0], legs[1]],
            1,
            &parts,
        );
    }
    let after = [&free, &table, &swap].map(|path| fs::read(path).unwrap());
    assert!(before == after, "something was written");
    let create = ["mirror", "create", "v0", &uri, &swap_uri];
    place.json(&[&create[..], &["--force", "-o", "json"]].concat());
    // Nothing of what was there is found any more; but now it is a mirror.
    for path in [&table, &swap] {
        let first = &fs::read(path).unwrap()[..4096];
        assert!(first.iter().all(|&byte| byte == 0));
    }
    let mirror = place.json(&["mirror", "examine", &uri, "-o", "json"]);
    let id = mirror["legs"][0]["mirror"]["mirror"]
        .as_str()
        .unwrap()
        .to_owned();
    let again = ["mirror", "create", "v1", &other, &swap_uri];
    refused(
        &place,
        &again,
        1,
        &[&swap_uri, "leg 1 of the mirror \"v0\"", &id, "--force"],
    );
    put(&swap, COPIES_AT[0] + 99, b"x");
    put(&swap, COPIES_AT[1] + 99, b"x");
    refused(&place, &again, 1, &["was a leg", "checksum", "--force"]);
    place.json(&[&again[..], &["--force", "-o", "json"]].concat());
    let apart = ["mirror", "examine", &uri, &swap_uri];
    refused(
        &place,
        &apart,
        1,
        &["no mirror", "different mirrors", &uri, &swap_uri],
    );
}

#[test]
fn t48_a_leg_that_somebody_has_is_refused() {
    let place = Place::new();
    let [a, b] = ["a", "b"].map(|name| leg(&place, name, 16 * MIB));
    let held = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&b.0)
        .unwrap();
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&held, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    let create = ["mirror", "create", "v0", &a.1, &b.1, "--force"];
    refused(
        &place,
        &create,
        1,
        &[
            b.0.to_str().unwrap(),
            "is in use: another process or volume has it locked for itself",
        ],
    );
    assert!(
        fs::read(&a.0).unwrap().iter().all(|&byte| byte == 0),
        "nothing was written"
    );
    drop(held);
    place.json(&[&create[..], &["-o", "json"]].concat());
    // Looking needs no lock.
    let held = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&b.0)
        .unwrap();
    fcntl(&held, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    place.json(&["mirror", "examine", &a.1, &b.1, "-o", "json"]);
}

#[test]
fn one_leg_alone_is_a_mirror_that_is_whole() {
    let test = "one_leg_alone_is_a_mirror_that_is_whole";
    if no_blkid(test) {
        return;
    }
    let place = Place::new();
    let (_, a) = leg(&place, "a", 16 * MIB);
    place.json(&["mirror", "create", "v0", &a, "-o", "json"]);
    let shown = place.json(&["mirror", "examine", &a, "-o", "json"]);
    let legs = shown["legs"][0]["mirror"]["legs"].as_array().unwrap();
    assert_eq!(legs.len(), 1, "{shown}");
    assert_eq!(legs[0]["state"], "in-sync", "{shown}");
}

#[test]
fn words_that_make_no_mirror_are_a_wrong_usage() {
    let place = Place::new();
    let (path, a) = leg(&place, "a", 16 * MIB);
    let (_, b) = leg(&place, "b", 16 * MIB);
    let link = place.path().join("link");
    std::os::unix::fs::symlink(path, &link).unwrap();
    let link = format!("file:{}", link.display());
    let long = "x".repeat(63);
    for (args, parts) in [
        (&["v0"][..], &["required", "LEG"][..]),
        (&["v0", &a, &a], &["the same as", &a]),
        (&["v0", &a, &link], &["the same as", &link]),
        (&["", &a, &b], &["needs a name"]),
        (&["a\nb", &a, &b], &["the name", "control character"]),
        (&[&long, &a, &b], &["longer than 62 bytes"]),
        (
            &["v0", &a, "mem:16m"],
            &["mem:16m", "memory is forgotten", "braid mirror add"],
        ),
        (
            &["v0", &a, "null:16m"],
            &["null:16m", "file:/path", "nvme-tcp://"],
        ),
        (&["v0", &a, "/srv/b"], &["write file:/srv/b"]),
        (
            &["v0", &a, &b, "--policy", "fastest"],
            &["fastest", "unknown policy"],
        ),
        (
            &["v0", &a, &b, "--policy", "devid:3"],
            &["devid:3", "1 to 2"],
        ),
        (
            &["v0", &a, &b, "--region", "3m"],
            &["--region 3m", "power of two"],
        ),
        (
            &["v0", &a, &b, "--region", "4k"],
            &["--region 4k", "64 KiB to 1 TiB"],
        ),
    ] {
        let args = [&["mirror", "create"][..], args].concat();
        refused(&place, &args, 2, parts);
    }
    let many: Vec<(PathBuf, String)> = (0..17)
        .map(|at| leg(&place, &format!("{at}"), MIB))
        .collect();
    let many: Vec<&str> = many.iter().map(|it| it.1.as_str()).collect();
    refused(
        &place,
        &[&["mirror", "create", "v0"][..], &many].concat(),
        2,
        &["16 at most"],
    );
}

#[test]
fn what_can_be_no_leg_is_refused_by_name() {
    let place = Place::new();
    let (_, good) = leg(&place, "good", 16 * MIB);
    let (short, short_uri) = leg(&place, "short", 6000);
    let (empty, empty_uri) = leg(&place, "empty", 0);
    let read_only = "file:/sys/kernel/uevent_seqnum";
    let directory = format!("file:{}", place.path().display());
    for (uri, parts) in [
        (
            short_uri.as_str(),
            &[short.to_str().unwrap(), "2 MiB at least"][..],
        ),
        (&empty_uri, &[empty.to_str().unwrap(), "empty"]),
        (&directory, &["directory"]),
        ("file:/no/such", &["/no/such", "there is none"]),
        (
            "file:/dev/null",
            &["/dev/null", "neither a file nor a block device"],
        ),
        (read_only, &["/sys/kernel/uevent_seqnum", "cannot open"]),
    ] {
        refused(
            &place,
            &["mirror", "create", "v0", &good, uri, "--force"],
            1,
            parts,
        );
    }
    for (uri, parts) in [
        (
            short_uri.as_str(),
            &[short_uri.as_str(), "not a leg of a mirror"][..],
        ),
        (&good, &["not a leg of a mirror"]),
        (&empty_uri, &["empty"]),
        (&directory, &["directory"]),
        ("file:/no/such", &["/no/such", "there is none"]),
    ] {
        refused(&place, &["mirror", "examine", uri], 1, parts);
        refused(&place, &["mirror", "examine", uri, "-o", "json"], 1, &[]);
    }
    refused(
        &place,
        &["mirror", "examine", "null:1m"],
        2,
        &["null:1m", "file:/path"],
    );
}

#[test]
fn damage_is_said_and_one_good_superblock_is_enough() {
    if no_blkid("damage_is_said_and_one_good_superblock_is_enough") {
        return;
    }
    let place = Place::new();
    let [a, b] = made(&place);
    put(&a.0, COPIES_AT[0] + 700, b"damage");
    put(&a.0, 128 << 10, b"damage");
    let output = place.braid(&["mirror", "examine", &a.1, &b.1]);
    let text = stdout(&output);
    assert_eq!(code(&output), 0, "{text}");
    for part in [
        "copy 1 holds",
        "the other is bad: damaged",
        "15 regions may differ; bad pages: 1",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    put(&a.0, COPIES_AT[1] + 700, b"damage");
    let examine = ["mirror", "examine", &a.1, &b.1];
    let parts = [
        &a.1,
        "both superblocks are bad",
        "checksum",
        "may have newer writes",
    ];
    refused(&place, &examine, 1, &parts);
    // Cut off, in its data and in its superblock.
    let cut = |bytes: u64| {
        OpenOptions::new()
            .write(true)
            .open(&b.0)
            .unwrap()
            .set_len(bytes)
            .unwrap()
    };
    cut(8 * MIB);
    refused(
        &place,
        &["mirror", "examine", &b.1],
        1,
        &["cut off", "16777216 bytes"],
    );
    cut(6000);
    refused(
        &place,
        &["mirror", "examine", &b.1],
        1,
        &["only 1904 of 4096 bytes"],
    );
}

#[test]
fn what_a_newer_braid_wrote_is_refused_and_the_leg_named() {
    if no_blkid("what_a_newer_braid_wrote_is_refused_and_the_leg_named") {
        return;
    }
    let place = Place::new();
    let [a, b] = made(&place);
    // An incompatible feature, in the newer of the two copies only.
    let bytes = fs::read(&b.0).unwrap();
    let mut block = bytes[4096..8192].to_vec();
    block[32] = 0x80;
    block[8..12].fill(0);
    let sum = crc32_iscsi(&block);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
    put(&b.0, COPIES_AT[0], &block);
    let parts = [b.1.as_str(), "newer braid", "0x80", "use that braid"];
    refused(&place, &["mirror", "examine", &b.1], 1, &parts);
    refused(&place, &["mirror", "examine", &a.1, &b.1], 1, &parts);
    refused(
        &place,
        &["mirror", "create", "v1", &a.1, &b.1],
        1,
        &["--force"],
    );
}

#[test]
fn there_is_nothing_to_upgrade_which_is_said_of_all_legs_and_of_no_fewer() {
    let test = "there_is_nothing_to_upgrade_which_is_said_of_all_legs_and_of_no_fewer";
    if no_blkid(test) {
        return;
    }
    let place = Place::new();
    let [a, b] = ["a", "b"].map(|name| leg(&place, name, 16 * MIB));
    // So it is rebuilt from the first one, and that would be used without it.
    put(&b.0, 9 * MIB, b"something");
    place.json(&["mirror", "create", "v0", &a.1, &b.1, "-o", "json"]);
    let before = [&a.0, &b.0].map(|path| fs::read(path).unwrap());
    let told = place.json(&["mirror", "upgrade", &b.1, &a.1, "-o", "json"]);
    assert_eq!(
        (&told["name"], &told["version"], &told["changed"]),
        (&"v0".into(), &1.into(), &false.into())
    );
    let output = place.braid(&["mirror", "upgrade", &a.1, &b.1]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("nothing to upgrade"));
    assert!(before == [&a.0, &b.0].map(|path| fs::read(path).unwrap()));
    let parts = ["leg 1", b.1.as_str(), "left behind", "give all legs"];
    refused(&place, &["mirror", "upgrade", &a.1], 1, &parts);
    let (_, none) = leg(&place, "none", 16 * MIB);
    let with = ["mirror", "upgrade", &a.1, &b.1, &none];
    refused(&place, &with, 1, &[&none, "not a leg"]);
    // Of a newer braid: what may be overlooked by others, and what may not.
    for (at, expected) in [
        (16, "compatible 0x80"),
        (24, "read-only 0x80"),
        (32, "0x80"),
    ] {
        let mut block = before[0][4096..8192].to_vec();
        block[at] = 0x80;
        block[8..12].fill(0);
        let sum = crc32_iscsi(&block);
        block[8..12].copy_from_slice(&sum.to_le_bytes());
        put(&a.0, COPIES_AT[0], &block);
        let both = ["mirror", "upgrade", &a.1, &b.1];
        refused(&place, &both, 1, &["newer braid", expected]);
    }
}
