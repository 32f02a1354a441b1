//! Legs whose files are cut short, or hold what is wrong: nothing of that is served or copied.
use super::place::{DATA_AT, LEG_BYTES, Place, end, said, verify};
use crate::serve::process;
use crate::serve::process::{Client, Process, wait_until};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// Blocks that are written: behind the cut, too.
const BLOCKS: u64 = 3000;
const CUT_AT: u64 = 8 << 20;

fn open(place: &Place, name: &str) -> File {
    let opened = OpenOptions::new().write(true).open(place.path(name));
    opened.unwrap()
}

fn written(place: &Place) -> (Process, Client) {
    let engine = place.start();
    let mut client = place.client();
    client.write_blocks(BLOCKS);
    (engine, client)
}

#[test]
fn t14_t16_a_leg_that_is_cut_short_is_left_at_once_and_never_read_as_zeroes() {
    // First I/O after the cut: reads, or a write behind the new end.
    for writes in [false, true] {
        let Some(place) = Place::new() else {
            return;
        };
        let (mut engine, mut client) = written(&place);
        open(&place, "b").set_len(CUT_AT).unwrap();
        if writes {
            assert_eq!(client.write(2900 << 12, 2900_u64 as u8), 0);
        }
        for _ in 0..3 {
            verify(&mut client, BLOCKS);
        }
        engine.notes("its file was cut short");
        wait_until(|| (place.legs() == ["in-sync", "stale"]).then_some(()));
        let status = place.told(&["mirror", "status", "v0"]);
        assert_eq!(status["legs"][0]["lacks_bytes"], 0);
        assert!(status["legs"][1]["lacks_bytes"].is_null(), "{status}");
        let restore = ["mirror", "restore", "v0", "1"];
        let why = said(&place.ask(&restore));
        assert!(why.contains(&format!("truncate -s {LEG_BYTES}")), "{why}");
        open(&place, "b").set_len(LEG_BYTES).unwrap();
        verify(&mut client, BLOCKS);
        assert_eq!(place.legs(), ["in-sync", "stale"], "it is told to return");
        place.told(&restore);
        place.told(&["mirror", "status", "v0", "--wait"]);
        assert_eq!(place.legs(), ["in-sync", "in-sync"]);
        verify(&mut client, BLOCKS);
        end(engine);
        assert!(place.data("a") == place.data("b"), "legs differ");
    }
}

#[test]
fn t45_of_the_last_leg_a_cut_is_shown_and_who_waits_for_what_nobody_can_read_is_told() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = written(&place);
    place.told(&["mirror", "fail", "v0", "1"]);
    open(&place, "a").set_len(CUT_AT).unwrap();
    assert_ne!(client.write(2900 << 12, 1), 0);
    let check = place.ask(&["check", "v0"]);
    assert_eq!(check.status.code(), Some(1), "degraded: {check:?}");
    let status = place.told(&["mirror", "status", "v0"]);
    let why = status["legs"][0]["why"].as_str().unwrap();
    assert!(why.contains("Save what is left"), "{why}");
    place.told(&["mirror", "restore", "v0", "1"]);
    let waited = place.ask(&["mirror", "status", "v0", "--wait"]);
    assert_eq!(waited.status.code(), Some(1), "{waited:?}");
    assert!(
        said(&waited).contains("no leg in sync can read"),
        "{waited:?}"
    );
    let status = place.told(&["mirror", "status", "v0"]);
    let progress = &status["legs"][1]["progress"];
    assert_eq!(progress["stuck"], true, "{progress}");
    assert!(progress["left_ns"].is_null(), "{progress}");
    let left = (CUT_AT - DATA_AT) >> 12;
    verify(&mut client, left);
    // Zeroes are not taken for what was there.
    open(&place, "a").set_len(LEG_BYTES).unwrap();
    let why = said(&place.ask(&["mirror", "restore", "v0", "0"]));
    assert!(why.contains("it is the last leg in sync"), "{why}");
    assert_ne!(client.write(2900 << 12, 1), 0);
    verify(&mut client, left);
    // By the user's word they are: what was there is lost.
    place.told(&["mirror", "accept-loss", "v0"]);
    assert_eq!(client.write(2900 << 12, 1), 0);
    let why = said(&place.ask(&["mirror", "accept-loss", "v0"]));
    assert!(why.contains("nothing to accept"), "{why}");
    wait_until(|| (place.legs() == ["in-sync", "in-sync"]).then_some(()));
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

/// One that was longer than the mirror needs, and then no shorter than that, has lost nothing: once
/// it is long again the mirror grows over where it ended.
#[test]
fn t50_mirror_grows_over_an_end_behind_its_own() {
    let Some(place) = Place::new() else {
        return;
    };
    let (mut engine, mut client) = written(&place);
    for name in ["a", "b"] {
        open(&place, name).set_len(2 * LEG_BYTES).unwrap();
    }
    // Each file is looked at once a second.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    open(&place, "b").set_len(LEG_BYTES).unwrap();
    engine.notes("was cut short behind our back");
    open(&place, "b").set_len(2 * LEG_BYTES).unwrap();
    place.told(&["mirror", "grow", "v0"]);
    let mut grown = place.client();
    let last = 2 * LEG_BYTES - DATA_AT - 4096;
    for _ in 0..4 {
        assert_eq!(grown.write(last, 9), 0);
        assert_eq!(grown.read(last), [9; 4096]);
    }
    verify(&mut client, BLOCKS);
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

/// Nothing is asked of it while it is short, and then the engine is another one.
#[test]
fn t50_of_the_last_leg_a_cut_is_known_to_the_next_engine() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, client) = written(&place);
    drop(client);
    place.told(&["mirror", "fail", "v0", "1"]);
    open(&place, "a").set_len(CUT_AT).unwrap();
    let why = || {
        let status = place.told(&["mirror", "status", "v0"]);
        status["legs"][0]["why"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    wait_until(|| why().contains("braid mirror accept-loss v0").then_some(()));
    let told = why();
    assert!(told.contains("make it as large again first"), "{told}");
    open(&place, "a").set_len(LEG_BYTES).unwrap();
    end(engine);
    let engine = place.start();
    let mut client = place.client();
    verify(&mut client, (CUT_AT - DATA_AT) >> 12);
    client.send_read(2900 << 12);
    assert_ne!(client.answer(), 0, "zeroes are no data");
    assert_ne!(client.write(2900 << 12, 1), 0);
    place.told(&["mirror", "accept-loss", "v0"]);
    assert_eq!(client.write(2900 << 12, 1), 0);
    end(engine);
}

#[test]
fn a_leg_that_was_cut_short_at_rest_is_not_to_be_made_long_again() {
    let Some(place) = Place::new() else {
        return;
    };
    open(&place, "a").set_len(CUT_AT).unwrap();
    let examined = place.braid(&["mirror", "examine", &place.leg("a")]);
    assert!(!examined.status.success());
    let said = String::from_utf8_lossy(&examined.stdout).into_owned() + &said(&examined);
    assert!(
        said.contains("is lost, also when it is made as long again"),
        "{said}"
    );
    assert!(said.contains("--without-missing"), "{said}");
}

#[test]
fn a_repair_goes_by_the_leg_that_the_user_names() {
    let Some(place) = Place::new() else {
        return;
    };
    let (mut engine, mut client) = written(&place);
    // Between legs that are the same for all that is known, the answer names the one that counts.
    let told = place.told(&["mirror", "repair", "v0", "--wait"]);
    assert_eq!(told["from"], 0, "{told}");
    // Leg 0 has what is wrong: as after somebody wrote to it beside the mirror.
    let wrong = [0xEE; 4096];
    for block in [10_u64, 2000] {
        open(&place, "a")
            .write_all_at(&wrong, DATA_AT + (block << 12))
            .unwrap();
    }
    place.told(&["mirror", "check", "v0"]);
    let b = place.leg("b");
    engine.notes(&format!(
        "2 differences, 0 unreadable, 0 rewritten; leg 1 ({b}), bytes 40960 to 45056"
    ));
    let status = place.told(&["mirror", "status", "v0"]);
    assert_eq!(
        status["checked"]["first"][1]["start"],
        2000 << 12,
        "{status}"
    );
    let check = ["mirror", "check", "v0", "--wait", "-o", "json"];
    let found = place.ask(&check);
    assert_eq!(found.status.code(), Some(1), "legs differ: {found:?}");
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(
        (&found["differences"], &found["alike"]),
        (&2.into(), &false.into())
    );
    let mended = place.told(&["mirror", "repair", "v0", "--from", "1", "--wait"]);
    assert_eq!(
        (&mended["repaired"], &mended["alike"]),
        (&2.into(), &true.into())
    );
    engine.notes("2 rewritten");
    place.told(&check[..4]);
    verify(&mut client, BLOCKS);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn who_waits_for_a_rebuild_waits_until_it_is_over() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = written(&place);
    place.told(&["mirror", "speed", "v0", "--ceiling", "24MiB/s"]);
    for _ in 0..3 {
        place.told(&["mirror", "fail", "v0", "1"]);
        client.write_blocks(BLOCKS);
        place.told(&["mirror", "restore", "v0", "1"]);
        place.told(&["mirror", "status", "v0", "--wait"]);
        assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    }
    // One that was rebuilt is no older than the other: which one counts is to be said.
    let why = said(&place.ask(&["mirror", "repair", "v0"]));
    for word in ["leg 0 (", "leg 1 (", "in sync since event", "--from LEG"] {
        assert!(why.contains(word), "{why}");
    }
    place.told(&["mirror", "repair", "v0", "--from", "0", "--wait"]);
    File::create(place.path("c"))
        .unwrap()
        .set_len(LEG_BYTES)
        .unwrap();
    let c = place.leg("c");
    place.told(&["mirror", "add", "v0", &c, "--wait"]);
    assert_eq!(place.legs(), ["in-sync", "in-sync", "in-sync"]);
    place.told(&["mirror", "remove", "v0", "2"]);
    place.told(&["mirror", "replace", "v0", "1", &c, "--wait", "--force"]);
    let legs = place.legs();
    assert!(
        legs.iter().all(|it| it == "in-sync") && legs.len() >= 2,
        "{legs:?}"
    );
    verify(&mut client, BLOCKS);
    end(engine);
}

/// Message of a refused verb.
fn refused(place: &Place, words: &[&str]) -> String {
    let output = place.ask(words);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
    said(&output)
}

/// An engine whose leg 0 is of no use, and which goes on without it by word.
fn without(place: &Place) -> Process {
    place.config("start_degraded = false\n");
    let mut engine = process::begun(place.0.path());
    engine.notes("not started");
    place.told(&["mirror", "assemble", "v0", "--without-missing"]);
    engine
}

#[test]
fn a_leg_whose_superblocks_are_gone_is_not_restored_and_may_be_added() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, client) = written(&place);
    drop(client);
    end(engine);
    open(&place, "a").write_all_at(&[0; 1 << 20], 0).unwrap();
    let mut engine = without(&place);
    let a = place.leg("a");
    let why = refused(&place, &["mirror", "restore", "v0", "0"]);
    assert!(
        why.contains("is there, and not this leg: replace 0 by it"),
        "{why}"
    );
    place.told(&["mirror", "add", "v0", &a, "--wait"]);
    let status = place.told(&["mirror", "status", "v0"]);
    let slot_0 = |leg: &&Value| leg["slot"] == 0;
    let old = status["legs"].as_array().unwrap().iter().find(slot_0);
    let taken = "its place is taken by leg 2: remove 0";
    assert_eq!(old.unwrap()["why"], taken, "{status}");
    let why = refused(&place, &["mirror", "restore", "v0", "0"]);
    assert!(why.contains(taken), "{why}");
    let removed = place.told(&["mirror", "remove", "v0", "0"]);
    assert_eq!(removed["carries_superblock"], false, "{removed}");
    engine.notes("leg 0 was removed");
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    verify(&mut place.client(), BLOCKS);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn a_leg_that_was_cut_short_at_rest_is_not_restored_and_says_what_it_is_once_removed() {
    for replaced in [false, true] {
        let Some(place) = Place::new() else {
            return;
        };
        let (engine, client) = written(&place);
        drop(client);
        end(engine);
        open(&place, "a").set_len(CUT_AT).unwrap();
        let engine = without(&place);
        open(&place, "a").set_len(LEG_BYTES).unwrap();
        let why = refused(&place, &["mirror", "restore", "v0", "0"]);
        assert!(why.contains("replace 0 by it"), "{why}");
        place.told(&["mirror", "status", "v0", "--wait"]);
        let a = place.leg("a");
        if replaced {
            // Without the word it stays what it is, and is shown as before.
            let before = place.told(&["mirror", "status", "v0"])["legs"].clone();
            refused(&place, &["mirror", "replace", "v0", "0", &a]);
            let after = place.told(&["mirror", "status", "v0"])["legs"].clone();
            let named = |legs: &Value| legs.as_array().unwrap().len();
            assert_eq!(named(&before), named(&after), "{before} {after}");
            place.told(&["mirror", "replace", "v0", "0", &a, "--force", "--wait"]);
            wait_until(|| (place.legs() == ["in-sync", "in-sync"]).then_some(()));
        } else {
            let removed = place.told(&["mirror", "remove", "v0", "0"]);
            assert_eq!(removed["carries_superblock"], true, "{removed}");
            assert_eq!(
                place.legs(),
                ["in-sync"],
                "what is in its place is gone too"
            );
            refused(&place, &["mirror", "add", "v0", &a]);
            place.told(&["mirror", "add", "v0", &a, "--force", "--wait"]);
            assert_eq!(place.legs(), ["in-sync", "in-sync"]);
        }
        verify(&mut place.client(), BLOCKS);
        end(engine);
        assert!(place.data("a") == place.data("b"), "legs differ");
    }
}
