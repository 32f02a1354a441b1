//! Names of paths and legs: given or made, shown everywhere, and taken by every verb.
use crate::serve::mirror::place::{Place, end};
use crate::serve::process::{engine, two_ports, wait_until};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn asked(root: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).arg("--socket").arg(root.join("c.sock"));
    command.output().unwrap()
}

fn text(root: &Path, words: &[&str]) -> String {
    let output = asked(root, words);
    String::from_utf8(output.stdout).unwrap()
}

fn json(root: &Path, words: &[&str]) -> Value {
    let output = asked(root, &[words, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {output:?}"))
}

/// State in `stat` of the only volume's path of this name.
fn path(root: &Path, name: &str) -> Value {
    let stat = json(root, &["stat"]);
    let paths = stat["volumes"][0]["paths"].as_array().unwrap();
    let found = paths.iter().find(|it| it["name"] == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {paths:?}"))
        .clone()
}

#[test]
fn paths_are_called_by_name_by_every_verb() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let Some((_target, [one, two])) = two_ports(root, "t") else {
        return;
    };
    let configure = |name: &str| {
        let text = format!(
            "[[volume]]\nname = \"v0\"\n[[volume.path]]\n{name}uri = \"{one}\"\n\
             [[volume.path]]\nuri = \"{two}\"\n"
        );
        std::fs::write(root.join("b.toml"), text).unwrap();
    };
    configure("name = \"left\"\n");
    let mut engine = engine(root);
    let made = two
        .trim_start_matches("nvme-tcp://")
        .split('/')
        .next()
        .unwrap();
    let made = made.replace(':', "-");
    for (name, number, uri) in [("left", 0, &one), (made.as_str(), 1, &two)] {
        wait_until(|| (path(root, name)["state"] == "live").then_some(()));
        let it = path(root, name);
        assert_eq!((&it["path"], it["devid"].is_null()), (&number.into(), true));
        let line = format!("  {number}  {name}  {uri}");
        assert!(
            text(root, &["stat"])
                .lines()
                .any(|it| it.starts_with(&line))
        );
        let number = number.to_string();
        // Each word means the same path, and each verb takes each.
        for word in [name, &number, uri] {
            for (verb, state) in [
                ("fail", "failed"),
                ("restore", "live"),
                ("drain", "draining"),
            ] {
                let done = asked(root, &["path", verb, "v0", word]);
                assert!(done.status.success(), "{verb} {word}: {done:?}");
                wait_until(|| (path(root, name)["state"] == state).then_some(()));
            }
            let check = json(root, &["check"])["volumes"][0]["paths"].clone();
            let unusable = check
                .as_array()
                .unwrap()
                .iter()
                .find(|it| it["usable"] == false);
            assert_eq!(unusable.unwrap()["name"], name);
            let line = format!("  {number} {name} {uri}: ");
            assert!(
                text(root, &["check"])
                    .lines()
                    .any(|it| it.starts_with(&line))
            );
            assert!(
                asked(root, &["path", "restore", "v0", word])
                    .status
                    .success()
            );
            wait_until(|| (path(root, name)["state"] == "live").then_some(()));
        }
    }
    let named = format!("devid:{made}");
    assert!(
        asked(root, &["policy", "set", "v0", &named])
            .status
            .success()
    );
    assert_eq!(json(root, &["stat"])["volumes"][0]["policy"], "devid:2");
    let unknown = asked(root, &["path", "fail", "v0", "right"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    let why = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        why.contains(&format!("it has 0 left {one}, 1 {made} {two}")),
        "{why}"
    );
    // In the file it is called otherwise.
    configure("name = \"west\"\n");
    let changed = json(root, &["reload"])["changed"].to_string();
    assert!(changed.contains(&format!("{one}: name west")), "{changed}");
    assert!(
        asked(root, &["path", "remove", "v0", "west"])
            .status
            .success()
    );
    assert_eq!(
        json(root, &["stat"])["volumes"][0]["paths"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    engine.signal(rustix::process::Signal::TERM);
    assert!(engine.ended().success());
}

#[test]
fn legs_are_called_by_name_by_every_verb() {
    let Some(place) = Place::new() else {
        return;
    };
    let text_of = |keys: &str| {
        format!(
            "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\nkind = \"mirror\"\n\
             [[volume.leg]]\nuri = \"{}\"\n[[volume.leg]]\n{keys}uri = \"{}\"\n",
            place.leg("b"),
            place.leg("a"),
        )
    };
    // Not in the order of the mirror's numbers.
    std::fs::write(place.path("b.toml"), text_of("name = \"left\"\n")).unwrap();
    let running = place.start();
    let root = place.0.path();
    place.until_in_sync();
    let leg = |name: &str| {
        let legs = place.told(&["stat"])["volumes"][0]["legs"].clone();
        let legs = legs.as_array().unwrap().clone();
        let found = legs.into_iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(leg("left")["uri"], place.leg("a"));
    assert_eq!(leg("b")["uri"], place.leg("b"));
    for name in ["left", "b"] {
        let number = leg(name)["slot"].to_string();
        for word in [name, &number] {
            assert!(
                asked(root, &["mirror", "fail", "v0", word])
                    .status
                    .success()
            );
            wait_until(|| (leg(name)["state"] != "in-sync").then_some(()));
            let check = text(root, &["check", "v0"]);
            let line = format!("  {name} {}: ", leg(name)["uri"].as_str().unwrap());
            assert!(check.lines().any(|it| it.starts_with(&line)), "{check}");
            assert!(
                asked(root, &["mirror", "restore", "v0", word])
                    .status
                    .success()
            );
            place.until_in_sync();
        }
        // Its paths and keys, by the leg's name.
        let of_leg = format!("v0/{name}");
        assert!(
            asked(root, &["knob", "set", &of_leg, "retries", "7"])
                .status
                .success()
        );
        let knobs = json(root, &["knob", "show", &of_leg]);
        assert_eq!(
            (&knobs["volume"], &knobs["retries"]),
            (&of_leg.into(), &7.into())
        );
    }
    // Numbers of legs as volumes are those of the file, as before.
    assert_eq!(json(root, &["knob", "show", "v0/1"])["volume"], "v0/left");
    let unknown = asked(root, &["mirror", "fail", "v0", "right"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    end(running);
    // A choice for a leg follows it, whatever the file calls it.
    std::fs::write(place.path("b.toml"), text_of("name = \"west\"\n")).unwrap();
    let running = place.start();
    assert_eq!(json(root, &["knob", "show", "v0/west"])["retries"], 7);
    end(running);
}
