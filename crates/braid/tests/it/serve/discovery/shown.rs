//! Output of `braid discover`, and its messages about those that are no discovery controllers.
use super::{Target, braid, failure, json, nqn};
use serde_json::Value;
use std::net::TcpListener;

fn discover(uri: &str) -> Value {
    json(&["discover", uri])
}

fn told(log: &Value, key: &str) -> Vec<String> {
    let records = log["records"].as_array().unwrap().iter();
    records
        .map(|it| it[key].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn discover_shows_all_that_is_told_and_ends_where_referrals_go_round() {
    let directory = tempfile::tempdir().unwrap();
    let ports = ["127.0.0.1:0", "127.0.0.1:0,offer=discovery"];
    let start = |name| Target::start(directory.path(), name, &ports);
    let (Some(one), Some(two)) = (start("one"), start("two")) else {
        return;
    };
    one.say(&["referrals", two.address(2), one.address(2)]);
    two.say(&["referrals", one.address(2)]);
    let (host, port) = one.address(2).rsplit_once(':').unwrap();
    let log = json(&["discover", "-t", "tcp", "-a", host, "-s", port]);
    assert_eq!(log, discover(&one.uris[1]));
    let controllers = log["controllers"].as_array().unwrap();
    assert_eq!(controllers.len(), 2, "{log}");
    assert_eq!(controllers[1]["uri"], two.uris[1]);
    let kinds = told(&log, "subtype");
    let [subsystem, current, referral] = [
        "nvme subsystem",
        "current discovery subsystem",
        "discovery subsystem referral",
    ];
    assert_eq!(
        kinds,
        [
            subsystem, current, referral, referral, subsystem, current, referral
        ]
    );
    assert_eq!(told(&log, "subnqn")[0], nqn("one"));
    assert_eq!(
        told(&log, "trsvcid")[0],
        one.address(1).rsplit_once(':').unwrap().1
    );
    assert_eq!(told(&log, "subnqn")[4], nqn("two"));
    // For people, the same.
    let output = braid(&["discover", &one.uris[1]]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(&nqn("two")) && text.contains(", by referral: "),
        "{text}"
    );
    // A referral to nobody is a note, and no failure; to programs it has all keys.
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    two.say(&["referrals", &dead]);
    let output = braid(&["discover", &one.uris[1]]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    assert!(
        notes.contains(&dead) && notes.contains("refused"),
        "{notes}"
    );
    let log = discover(&one.uris[1]);
    let all = log["controllers"].as_array().unwrap();
    assert!(all.iter().any(|it| !it["error"].is_null()), "{log}");
    for it in all {
        for key in ["uri", "depth", "genctr", "records", "error"] {
            assert!(it.get(key).is_some(), "no {key}: {it}");
        }
    }
}

#[test]
fn what_is_no_discovery_controller_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "t", &["127.0.0.1:0"]) else {
        return;
    };
    let (code, text) = failure(&["discover", &target.uris[0]]);
    assert_eq!(code, 1);
    assert!(text.contains("no discovery controller"), "{text}");
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (code, text) = failure(&["discover", &format!("nvme-tcp://{free}")]);
    assert_eq!(code, 1);
    assert!(
        text.contains(&free.to_string()) && text.contains("refused"),
        "{text}"
    );
    for (words, part) in [
        (&["discover"][..], "--traddr"),
        (&["discover", "-t", "rdma", "-a", "127.0.0.1"], "only tcp"),
        (&["discover", "10.0.0.1"], "write nvme-tcp://"),
        (&["discover", "-a", "a b"], "--traddr a b"),
        (
            &["discover", "-a", "::1", "-n", "v0"],
            "\"v0\" is not an NQN",
        ),
        (
            &["discover", "-a", "127.0.0.1", "nvme-tcp://h"],
            "cannot be used with",
        ),
        (&["connect-all", "file:/x"], "write nvme-tcp://"),
        (&["connect", "-a", "host", "-n", "nqn.x:a"], "host"),
    ] {
        let (code, text) = failure(words);
        assert_eq!(code, 2, "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
}
