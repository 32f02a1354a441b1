//! One thing by two names: a path by name and by address, a controller that two refer to; and what
//! is none at all.
use super::{PORTS, Rig, Target, braid, discovered, failure, json, nqn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_path_by_name_is_what_is_told_by_address() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "n", &PORTS) else {
        return;
    };
    let by_name = target.uris[0].replacen("127.0.0.1", "localhost", 1);
    let path = format!("[[volume.path]]\nuri = \"{by_name}\"\n");
    let mut rig = Rig::new(directory, &discovered(&target, "n", &path));
    rig.start();
    target.offer("2", "subsystem");
    let two = target.uris[1].as_str();
    rig.notes(&format!("path {two}: discovered by"));
    let both = [[&*by_name, "live", "config"], [two, "live", "discovery"]];
    rig.reaches(&both);
    let (host, port) = target.address(1).rsplit_once(':').unwrap();
    let name = nqn("n");
    let once = ["connect", "-a", host, "-s", port, "-n", &name];
    for words in [&["connect-all", &target.uris[2]][..], &once] {
        let answer = rig.ask(words);
        let states = answer["paths"].as_array().unwrap().iter();
        let states: Vec<_> = states.map(|it| it["state"].clone()).collect();
        assert!(!states.is_empty(), "{answer}");
        assert!(states.iter().all(|it| it == "there"), "{answer}");
    }
    rig.reaches(&both);
    rig.stop();
}

#[test]
fn a_verb_that_adds_nothing_and_finds_nothing_there_fails() {
    let directory = tempfile::tempdir().unwrap();
    let start = |name| Target::start(directory.path(), name, &PORTS);
    let (Some(one), Some(other)) = (start("o"), start("p")) else {
        return;
    };
    let uri = &one.uris[0];
    let path = format!("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n");
    let mut rig = Rig::new(directory, &path);
    rig.start();
    let (host, port) = one.address(1).rsplit_once(':').unwrap();
    let wrong = nqn("wrong");
    for words in [
        &["connect", "-a", host, "-s", port, "-n", &wrong][..],
        &["connect-all", &other.uris[2]],
    ] {
        let why = rig.refusal(words);
        assert!(why.contains("no path was added: no volume has"), "{why}");
        assert!(why.contains("`braid reload`"), "{why}");
    }
    other.offer("1", "withdrawn");
    let why = rig.refusal(&["connect-all", &other.uris[2]]);
    assert!(why.contains("nothing that can be used was told"), "{why}");
    // The state is as it should be.
    rig.ask(&["connect-all", &one.uris[2]]);
    rig.stop();
}

#[test]
fn a_controller_that_two_refer_to_is_one_and_one_that_is_not_there_has_its_depth() {
    let directory = tempfile::tempdir().unwrap();
    let start = |name| Target::start(directory.path(), name, &PORTS);
    let (Some(one), Some(two), Some(far)) = (start("q"), start("r"), start("s")) else {
        return;
    };
    let (near_dead, far_dead) = (nobody(), nobody());
    one.say(&["referrals", far.address(3)]);
    two.say(&["referrals", far.address(3), &near_dead]);
    far.say(&["referrals", &far_dead]);
    let second = format!("[[discovery]]\nuri = \"{}\"\n[[volume]]", two.uris[2]);
    let keys = discovered(&one, "q", "").replacen("[[volume]]", &second, 1);
    let mut rig = Rig::new(directory, &keys);
    rig.start();
    let [near_dead, far_dead] = [near_dead, far_dead].map(|it| format!("nvme-tcp://{it}"));
    for dead in [&near_dead, &far_dead] {
        rig.notes(&format!("discovery: {dead}: can't connect"));
    }
    let stat = rig.ask(&["stat"]);
    let all = stat["discovery"].as_array().unwrap().iter();
    let all: BTreeMap<&str, &Value> = all.map(|it| (it["uri"].as_str().unwrap(), it)).collect();
    let [one_uri, two_uri, far_uri] = [&one, &two, &far].map(|it| it.uris[2].as_str());
    for (uri, depth, by) in [
        (one_uri, 0, vec![]),
        (two_uri, 0, vec![]),
        (far_uri, 1, vec![one_uri, two_uri]),
        (&near_dead, 1, vec![two_uri]),
        (&far_dead, 2, vec![far_uri]),
    ] {
        let it = all[uri];
        assert_eq!(it["depth"], depth, "{it}");
        let told = it["referred_by"].as_array().unwrap().iter();
        let mut told: Vec<_> = told.map(|it| it.as_str().unwrap()).collect();
        told.sort_unstable();
        let mut by = by;
        by.sort_unstable();
        assert_eq!(told, by, "{it}");
        let lost = [near_dead.as_str(), &far_dead].contains(&uri);
        assert_eq!(it["state"], if lost { "lost" } else { "connected" }, "{it}");
        let why = it["why"].as_str().unwrap_or_default();
        assert_eq!(why.contains("refused"), lost, "{it}");
    }
    assert_eq!(all.len(), 5, "{stat}");
    // One session, whoever refers to it.
    let shown = json(&["target", "show", "--socket", &far.socket]);
    assert_eq!(shown["ports"][2]["connections"], 1, "{shown}");
    rig.stop();
}

#[test]
fn a_subsystem_that_is_not_there_leads_to_what_is() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "t", &["127.0.0.1:0"]) else {
        return;
    };
    let wrong = target.uris[0].replacen(&nqn("t"), &nqn("wrong"), 1);
    let verb = format!("discover nvme-tcp://{}", target.address(1));
    let hint = format!("see what the target has: `braid {verb}`");
    let paths = [&target.uris[0], &wrong].map(|it| format!("[[volume.path]]\nuri = \"{it}\"\n"));
    let keys = format!("[[volume]]\nname = \"v0\"\n{}", paths.concat());
    let mut rig = Rig::new(directory, &keys);
    rig.start();
    assert!(rig.notes("NQN unknown").contains(&hint));
    let stat = rig.ask(&["stat"]);
    let why = stat["volumes"][0]["paths"][1]["hindrance"].as_str();
    assert!(why.is_some_and(|why| why.contains(&hint)), "{stat}");
    let other = wrong.replacen("wrong", "also-wrong", 1);
    let why = rig.refusal(&["path", "add", "v0", &other]);
    assert!(why.contains(&hint), "{why}");
    let (code, why) = failure(&["bench", &other, "--runtime", "1"]);
    assert_eq!(code, 1, "{why}");
    assert!(why.contains(&hint), "{why}");
    // And it does.
    let words: Vec<_> = verb.split(' ').collect();
    let shown = String::from_utf8(braid(&words).stdout).unwrap();
    assert!(shown.contains(&nqn("t")), "{shown}");
    rig.stop();
}
