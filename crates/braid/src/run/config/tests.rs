use super::*;

/// A configuration that is right.
pub fn parsed(text: &str) -> Config {
    Config::parse(text).unwrap()
}

const GOOD: &str = r#"
[[volume]]
name = "v0"
policy = "round-robin:65536"
weight_timeout = "500ms"
[[volume.path]]
uri = "mem:64MiB"
[[volume.export]]
nbd = "unix:/run/braid/v0.sock"
"#;

#[test]
fn the_example_of_the_design_is_read() {
    let config = Config::parse(GOOD).unwrap();
    let volume = &config.volumes[0];
    assert_eq!(volume.policy, Policy::RoundRobin { bytes: 65536 });
    assert_eq!(volume.knobs().weight_timeout_ns, 500_000_000);
    assert_eq!(volume.exports[0].nbd.to_string(), "unix:/run/braid/v0.sock");
    let usable = std::thread::available_parallelism().unwrap().get();
    let derived = (usable.min(4) as u16, 30_000_000_000);
    assert_eq!((config.cores, config.drain_timeout.0), derived);
    let pinned = Config::parse(&format!("cpus = [3, 5, 9]{GOOD}")).unwrap();
    assert_eq!(pinned.cores, 3);
}

#[test]
fn nodes_have_a_number_or_get_one() {
    let nbd = "nbd = \"unix:/run/braid/v0.sock\"";
    let with = |export: &str| Config::parse(&GOOD.replacen(nbd, export, 1));
    let node = |export: &str| with(export).unwrap().volumes[0].node().unwrap();
    let of = |number, read_only| NodeKeys { number, read_only };
    assert_eq!(node("ublk = 3"), of(Some(3), false));
    assert_eq!(node("ublk = \"auto\"\nread_only = true"), of(None, true));
    let other = "[[volume.export]]\n";
    for (export, why) in [
        ("ublk = -1", "write the number of /dev/ublkbN"),
        ("ublk = \"any\"", "write the number of /dev/ublkbN"),
        ("ublk = 1048576", "write the number of /dev/ublkbN"),
        ("ublk = 0\nmode = \"0660\"", "mode is not of ublk"),
        ("ublk = 0\nnqn = \"nqn.x\"", "nqn is not of ublk"),
        (&format!("ublk = 0\n{nbd}"), "a [[volume.export]] for each"),
        (
            &format!("ublk = 0\n{other}ublk = 1"),
            "has a ublk export already",
        ),
    ] {
        let error = with(export).unwrap_err();
        assert!(
            error.contains(why) && error.contains("line "),
            "{export}: {error}"
        );
    }
    let one = GOOD.replacen(nbd, "ublk = 7", 1);
    let error = Config::parse(&(one.clone() + &one.replace("\"v0\"", "\"v1\"")));
    let error = error.unwrap_err();
    assert!(error.contains("/dev/ublkb7 is exported twice"), "{error}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (from, to, part) in [
        ("policy", "polcy", "unknown key `polcy`"),
        ("policy", "polcy", "line 4, column 1"),
        ("round-robin:65536", "fastest", "unknown policy"),
        ("round-robin:65536", "devid:9", "no such path"),
        ("mem:64MiB", "disk.img", "not a path URI"),
        ("unix:/run/braid/v0.sock", "/run/v0", "unix:/path"),
        ("500ms", "2 days", "weight_timeout"),
        ("\"v0\"", "\"v 0\"", "a name has"),
        (
            "[[volume.path]]\nuri = \"mem:64MiB\"",
            "",
            "no [[volume.path]]",
        ),
        ("\n[[volume]]", "clients = 0\n[[volume]]", "clients must be"),
        (
            "\n[[volume]]",
            "buffers = \"1MiB\"\n[[volume]]",
            "buffers must be",
        ),
    ] {
        let text = GOOD.replacen(from, to, 1);
        let error = Config::parse(&text).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
    let twice = [GOOD, &GOOD.replace("\"v0\"", "\"v1\"")].concat();
    assert!(
        Config::parse(&twice)
            .unwrap_err()
            .contains("exported twice")
    );
    let twice = [GOOD, GOOD].concat();
    assert!(Config::parse(&twice).unwrap_err().contains("two volumes"));
}

#[test]
fn distance_and_throughput_of_a_path_stand_in_its_uri_or_beside_it() {
    let uri = "uri = \"mem:64MiB\"";
    let path = |text: &str| Config::parse(&GOOD.replacen(uri, text, 1));
    for (text, distance, throughput) in [
        (uri, 0, 1),
        ("uri = \"mem:64MiB?throughput=0&distance=7\"", 7, 0),
        (
            "uri = \"mem:64MiB\"\nthroughput = 100\ndistance = 7",
            7,
            100,
        ),
        ("uri = \"mem:64MiB?throughput=5\"\ndistance = 2", 2, 5),
    ] {
        let keys = &path(text).unwrap().volumes[0].paths[0];
        assert_eq!((keys.distance, keys.throughput), (distance, throughput));
    }
    for (text, wanted) in [
        (
            "throughput = 101",
            "throughput 101 is not a number from 0 to 100",
        ),
        (
            "throughput = -1",
            "throughput -1 is not a number from 0 to 100",
        ),
        ("throughput = 300", "line 8, column 14"),
        ("throughput = \"9\"", "must be a whole number, not the text"),
    ] {
        let error = path(&format!("{uri}\n{text}")).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    for key in ["throughput", "distance"] {
        let error = path(&format!("uri = \"mem:64MiB?{key}=1\"\n{key} = 1")).unwrap_err();
        assert!(
            error.contains(&format!("{key} stands in the URI and beside it")),
            "{error}"
        );
    }
}

#[test]
fn what_a_volume_does_about_failing_paths_stands_in_its_keys() {
    assert_eq!(
        Config::parse(GOOD).unwrap().volumes[0].recovery(),
        Recovery::default(),
        "what is not said is the engine's default"
    );
    let keys = r#"
ana = "merge"
write_failover = "immediate"
quiesce_time = "7s"
ctrl_loss_tmo = "off"
fast_io_fail_tmo = "2m"
flush_timeout = "0"
shared_write_cache = true
reconnect_delay_min = "50ms"
reconnect_delay = "3s"
retries = 2
attempts_timeout = "40s"
probation_errors = "2.5%"
probation_silence = "off"
probation_slow = "80ms"
probe_interval = "50ms"
probe_interval_max = "1m"
probe_idle = "off"
"#;
    let text = GOOD.replacen("weight_timeout = \"500ms\"", keys, 1);
    let want = Recovery {
        ana: Some(AnaUse::Merge),
        write_failover: WriteFailover::Immediate,
        quiesce_ns: 7_000_000_000,
        ctrl_loss_ns: u64::MAX,
        fast_io_fail_ns: 120_000_000_000,
        flush_timeout_ns: 0,
        shared_write_cache: true,
        reconnect_min_ns: 50_000_000,
        reconnect_max_ns: 3_000_000_000,
        retries_max: 2,
        attempts_ns: 40_000_000_000,
        health: multipath::health::Limits {
            errors_permille: 25,
            silence_ns: 0,
            slow_ns: 80_000_000,
            probe_ns: 50_000_000,
            probe_max_ns: 60_000_000_000,
            idle_ns: 0,
        },
        ..Recovery::default()
    };
    assert_eq!(Config::parse(&text).unwrap().volumes[0].recovery(), want);
    let text = text.replace("\"2m\"", "\"off\"");
    let recovery = Config::parse(&text).unwrap().volumes[0].recovery();
    assert_eq!(recovery.fast_io_fail_ns, u64::MAX);
    for (key, value, wanted) in [
        (
            "probation_errors",
            "2.5%",
            ["60%", "0%", "1", "1.25%"].as_slice(),
        ),
        ("probation_silence", "off", &["0", "100us", "never"]),
        ("probe_interval", "50ms", &["0", "2m"]),
    ] {
        for other in wanted {
            let text = text.replace(
                &format!("{key} = \"{value}\""),
                &format!("{key} = \"{other}\""),
            );
            let error = Config::parse(&text).unwrap_err();
            assert!(error.contains("line "), "{key} {other}: {error}");
        }
    }
}

#[test]
fn t12_the_keep_alive_is_shorter_than_the_io_timeout() {
    for (keys, kato_ms) in [
        ("", 5_000),
        ("io_timeout = \"1s\"", 500),
        ("keep_alive_tmo = \"12s\"", 12_000),
        ("keep_alive_tmo = \"0\"", 0),
    ] {
        let config = Config::parse(&[keys, GOOD].concat()).unwrap();
        assert_eq!(config.kato_ms(), kato_ms, "{keys}");
    }
    let both = "io_timeout = \"4s\"\nkeep_alive_tmo = \"4s\"\n";
    let error = Config::parse(&[both, GOOD].concat()).unwrap_err();
    assert_eq!(
        error,
        "line 2, column 18: keep_alive_tmo must be shorter than io_timeout, or 0: a dead target \
         must be found out before its I/O is given up"
    );
}

#[test]
fn tcp_keep_alive_is_a_time_or_off() {
    for (keys, seconds) in [
        ("", Some(10)),
        ("tcp_keep_alive = \"2m\"", Some(120)),
        ("tcp_keep_alive = \"off\"", None),
    ] {
        let config = Config::parse(&[keys, GOOD].concat()).unwrap();
        let idle = config.tcp_keep_alive();
        assert_eq!(idle.map(|it| it.as_secs()), seconds, "{keys}");
    }
}

#[test]
fn a_value_out_of_range_is_refused_with_its_key_and_place() {
    for (key, value, part) in [
        ("ana", "\"lax\"", "write \"strict\" or \"merge\""),
        ("write_failover", "\"now\"", "\"fenced\" or \"immediate\""),
        ("write_failover", "true", "must be text in quotes"),
        ("quiesce_time", "5", "a duration in quotes"),
        ("quiesce_time", "\"2h\"", "longer than an hour"),
        ("fast_io_fail_tmo", "\"never\"", "; or write \"off\""),
        ("fast_io_fail_tmo", "5", "in \"600s\", or \"off\""),
        ("ctrl_loss_tmo", "-1", "a duration in quotes, as in"),
        ("ctrl_loss_tmo", "\"-1\"", "; or write \"off\""),
        ("ctrl_loss_tmo", "\"0\"", "\"off\" to try for ever"),
        ("ctrl_loss_tmo", "\"2h\"", "than an hour; or write"),
        ("probation_slow", "\"0\"", "at least 1 ms, or \"off\""),
        ("flush_timeout", "\"-1s\"", "a duration"),
        ("shared_write_cache", "1", "must be true or false"),
        ("reconnect_delay", "\"0\"", "must be at least 1.00 ms"),
        ("reconnect_delay_min", "\"11s\"", "not be longer than"),
        ("reconnect_delay", "\"10ms\"", "not be longer than"),
        ("retries", "256", "must be 0…255"),
        ("retries", "-1", "must be 0…255"),
        ("attempts_timeout", "\"0\"", "must be at least"),
    ] {
        let line = format!("{key} = {value}");
        let text = GOOD.replacen("weight_timeout = \"500ms\"", &line, 1);
        let error = Config::parse(&text).unwrap_err();
        let column = key.len() + 4;
        let place = format!("line 5, column {column}");
        for part in [part, key, &place] {
            assert!(error.contains(part), "{line}: {part}: {error}");
        }
    }
    for (key, value, part) in [
        ("io_timeout", "\"0\"", "must be at least"),
        ("connect_timeout", "\"0\"", "must be at least"),
        ("keep_alive_tmo", "\"99ms\"", "at least 100 ms"),
        ("tcp_keep_alive", "\"900ms\"", "at least 1 s, or \"off\""),
        ("tcp_keep_alive", "30", "a duration in quotes"),
        ("header_digest", "\"yes\"", "must be true or false"),
        ("socket_owner", "\"\"", "name or the number"),
        ("socket_mode", "\"0777\"", "octal digits"),
        ("socket_mode", "600", "must be text in quotes"),
    ] {
        let text = format!("{key} = {value}{GOOD}");
        let error = Config::parse(&text).unwrap_err();
        for part in [part, key, "line 1, column "] {
            assert!(error.contains(part), "{key}: {part}: {error}");
        }
    }
}

#[test]
fn an_export_says_whose_socket_it_is() {
    let keys = "owner = \"root\"\ngroup = \"0\"\nmode = \"0660\"\n";
    let config = Config::parse(&[GOOD, keys].concat()).unwrap();
    let want = Access {
        owner: Some(Name::Word("root".into())),
        group: Some(Name::Id(0)),
        mode: Some(Mode(0o660)),
    };
    assert_eq!(config.volumes[0].exports[0].access(), want);
    let tcp = GOOD.replace("unix:/run/braid/v0.sock", "tcp::10809");
    let error = Config::parse(&[&tcp, keys].concat()).unwrap_err();
    assert!(
        error.starts_with("line 10, column 9: owner is for unix:/path"),
        "{error}"
    );
}

#[test]
fn what_one_value_cannot_tell_has_its_place_too() {
    let second = GOOD.replace("\"v0\"", "\"v1\"");
    let error = Config::parse(&[GOOD, &second].concat()).unwrap_err();
    assert!(error.starts_with("line 18, column 7: "), "{error}");
    let error = Config::parse(&[GOOD, GOOD].concat()).unwrap_err();
    assert!(error.starts_with("line 12, column 8: "), "{error}");
    let few = Config::parse(&format!("cores = 1\ncpus = [1, 2]{GOOD}")).unwrap_err();
    assert!(few.starts_with("line 2, column 8: cpus"), "{few}");
    let none = Config::parse(&format!("cores = 0{GOOD}")).unwrap_err();
    for part in ["line 1, column 9", "cores must be 1…64"] {
        assert!(none.contains(part), "{none}");
    }
}

/// A socket that other machines reach says which of them may connect.
#[test]
fn sockets_beyond_loopback_need_rules_or_open() {
    let export = |keys: &str| {
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        Config::parse(&format!("{text}[[volume.export]]\n{keys}\n")).map(drop)
    };
    let metrics = |keys: &str| {
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        Config::parse(&format!("{keys}\n{text}")).map(drop)
    };
    for good in [
        "nbd = \"tcp:localhost:0\"",
        "nbd = \"tcp:[::1]:0\"\nopen = true",
        "nbd = \"tcp:0.0.0.0:0\"\nopen = true",
        "nbd = \"tcp:host:0\"\nallow = [\"address=any\"]",
        "nbd = \"unix:/v0\"\nallow = [\"uid=0\", \"uid=any,read-only\"]",
    ] {
        assert_eq!(export(good), Ok(()), "{good}");
    }
    for (wrong, part) in [
        (
            "nbd = \"tcp:0.0.0.0:0\"",
            "line 6, column 7: other machines reach",
        ),
        ("nbd = \"tcp:host:0\"", "or write open = true"),
        ("nbd = \"tcp:[fe80::1%lo]:0\"", "other machines reach"),
        (
            "nbd = \"tcp::0\"\nallow = [\"uid=0\"]",
            "line 7, column 9: ",
        ),
        (
            "nbd = \"unix:/v0\"\nallow = [\"address=any\"]",
            "write uid=",
        ),
        ("nbd = \"unix:/v0\"\nopen = true", "open is for TCP"),
        ("nbd = \"tcp::0\"\nallow = [\"x\"]", "names no clients"),
        ("ublk = \"auto\"\nopen = true", "open is not of ublk"),
        (
            "nvme = \"127.0.0.1:0\"\nnqn = \"nqn.x\"\nallow = [\"address=any\"]",
            "hosts = [\"NQN\"]",
        ),
    ] {
        let error = export(wrong).unwrap_err();
        assert!(error.contains(part), "{wrong}: {error}");
    }
    for good in [
        "metrics = \"127.0.0.1:9750\"",
        "metrics = \"0.0.0.0:9750\"\nmetrics_open = true",
        "metrics = \"192.0.2.1:9750\"\nmetrics_allow = [\"address=192.0.2.9\"]",
        "metrics = \"unix:/m\"\nmetrics_allow = [\"uid=0\"]",
    ] {
        assert_eq!(metrics(good), Ok(()), "{good}");
    }
    for (wrong, part) in [
        (
            "metrics = \"0.0.0.0:9750\"",
            "line 1, column 11: other machines",
        ),
        ("metrics = \"[::]:9750\"", "metrics_allow = [\"address="),
        ("metrics = \"9750\"", "write IP:PORT"),
        ("metrics_open = true", "has no address"),
    ] {
        let error = metrics(wrong).unwrap_err();
        assert!(error.contains(part), "{wrong}: {error}");
    }
}

/// The reader of serde lists the keys when it meets one that isn't there.
#[test]
fn every_key_is_in_the_document() {
    let document = include_str!("../../../../../docs/configuration.md");
    let path = "[[volume.path]]\nuri = \"mem:64MiB\"";
    for text in [
        format!("nope = 1{GOOD}"),
        GOOD.replacen("weight_timeout = \"500ms\"", "nope = 1", 1),
        GOOD.replacen(path, &format!("{path}\nnope = 1"), 1),
        format!("{GOOD}nope = 1"),
        MIRROR.replacen("policy = \"numa\"", "nope = 1", 1),
    ] {
        let error = Config::parse(&text).unwrap_err();
        let keys = error.split_once("known here: ").unwrap_or_default().1;
        let keys: Vec<_> = keys.split('`').skip(1).step_by(2).collect();
        assert!(!keys.is_empty(), "{error}");
        for key in keys {
            assert!(
                document.contains(&format!("`{key}`"))
                    || document.contains(&format!("[[volume.{key}]]"))
                    || key == "volume",
                "{key}"
            );
        }
    }
}

const MIRROR: &str = r#"
[[volume]]
name = "m0"
kind = "mirror"
retries = 7
[[volume.leg]]
uri = "file:/a"
[[volume.leg]]
policy = "numa"
[[volume.leg.path]]
uri = "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:b?distance=3"
[[volume.leg.path]]
uri = "nvme-tcp://127.0.0.2:4420/nqn.2026-01.org.example:b"
[[volume.export]]
nbd = "unix:/m0.sock"
"#;

#[test]
fn t48_whether_other_hosts_reach_the_legs_can_be_said() {
    let mirror = |shared: &str, leg: &str| {
        let text = format!(
            "[[volume]]\nname = \"m\"\nkind = \"mirror\"\n{shared}\
             [[volume.leg]]\nuri = \"{leg}\"\n"
        );
        let config = Config::parse(&text).map_err(|error| format!("{error:#}"));
        config.map(|config| config.volumes[0].is_shared())
    };
    let (file, far) = ("file:/srv/a", "nvme-tcp://h:4420/nqn.2026-01.org.example:a");
    assert_eq!(mirror("", file), Ok(false));
    assert_eq!(mirror("shared = true\n", file), Ok(true));
    assert_eq!(mirror("shared = false\n", file), Ok(false));
    assert_eq!(mirror("", far), Ok(true));
    let why = mirror("shared = false\n", far).unwrap_err();
    assert!(why.contains("other hosts can reach"), "{why}");
}

#[test]
fn a_leg_is_a_volume_behind_its_mirror() {
    let config = parsed(MIRROR);
    let names: Vec<_> = config.volumes.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["m0", "m0/a", "m0/127.0.0.1"]);
    let [mirror, first, second] = &config.volumes[..] else {
        panic!("{names:?}");
    };
    assert!(mirror.is_mirror() && mirror.is_shared() && mirror.paths.is_empty());
    assert_eq!(
        (first.policy, second.policy),
        (Policy::QueueDepth, Policy::Numa)
    );
    assert_eq!((first.paths.len(), second.paths.len()), (1, 2));
    for leg in [first, second] {
        assert_eq!(leg.leg_of.as_deref(), Some("m0"));
        assert!(leg.exports.is_empty() && !leg.is_mirror());
        let recovery = leg.recovery();
        assert_eq!(
            (recovery.retries_max, recovery.fast_io_fail_ns),
            (7, 5_000_000_000)
        );
    }
}

#[test]
fn what_is_wrong_with_a_mirror_is_named_with_its_place() {
    let plain = "[[volume]]\nname = \"p\"\n[[volume.path]]\nuri = \"file:/a\"\n";
    for (from, to, parts) in [
        (
            "kind = \"mirror\"",
            "",
            &["line 6, column", "kind = \"mirror\" too"][..],
        ),
        (
            "kind = \"mirror\"",
            "kind = \"raid\"",
            &["line 4, column 8", "`mirror`"],
        ),
        (
            "retries = 7",
            "policy = \"numa\"",
            &["line 5, column 10", "braid policy set"],
        ),
        (
            "retries = 7",
            "hedge = \"on\"",
            &["line 5, column 9", "second copy"],
        ),
        (
            "retries = 7",
            "subsystem = \"nqn.x\"",
            &["line 5, column", "not discovered"],
        ),
        (
            "retries = 7",
            "rebuild_floor = \"9\"\nrebuild_ceiling = \"8\"",
            &["line 5"],
        ),
        (
            "uri = \"file:/a\"",
            "",
            &["line 6, column 1", "a leg has a uri"],
        ),
        (
            "uri = \"file:/a\"",
            "url = \"file:/a\"",
            &["line 7", "unknown key `url`"],
        ),
        (
            "uri = \"file:/a\"",
            "uri = \"/a\"",
            &["line 7, column 7", "file:/a"],
        ),
        ("policy = \"numa\"", "uri = \"mem:1MiB\"", &["not both"]),
        (
            "policy = \"numa\"",
            "policy = \"devid:9\"",
            &["no such path"],
        ),
        ("127.0.0.2", "127.0.0.1", &["is a leg twice"]),
        (
            "[[volume.export]]",
            &format!("{plain}[[volume.export]]"),
            &["is a leg of \"m0\""],
        ),
    ] {
        let error = Config::parse(&MIRROR.replacen(from, to, 1)).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{to}: {part}: {error}");
        }
    }
    let none = "[[volume]]\nname = \"m\"\nkind = \"mirror\"\n";
    let error = Config::parse(none).unwrap_err();
    assert!(error.contains("at least one [[volume.leg]]"), "{error}");
}

#[test]
fn a_mirror_waits_for_its_legs_for_some_time_at_least() {
    let with = |wait| MIRROR.replace("retries = 7", &format!("assemble_wait = \"{wait}\""));
    assert!(Config::parse(&with("100ms")).is_ok());
    let error = Config::parse(&with("0s")).unwrap_err();
    let parts = ["line 5, column 17", "at least 100 ms"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn hostile_files_get_an_error_with_a_place() {
    hostile::attack("run_config", |text| match Config::parse(text) {
        Ok(config) => {
            assert!(!config.volumes.is_empty() && config.kato_ms() <= 3_600_000);
            let again = config.volumes.iter().all(|volume| {
                let uris = volume.paths.iter().map(|it| &it.uri);
                let mut exports = volume.exports.iter().map(|it| &it.nbd);
                Policy::parse(&volume.policy.to_string()) == Ok(volume.policy)
                    && volume.knobs().check().is_ok()
                    && uris
                        .into_iter()
                        .all(|it| it.to_string().parse().as_ref() == Ok(it))
                    && exports.all(|it| it.to_string().parse().as_ref() == Ok(it))
            });
            assert!(again, "what was accepted is read again as the same");
        }
        Err(error) => assert!(
            error.contains("line ") || error.contains("too deep"),
            "{error}"
        ),
    });
}

const DISCOVERY: &str = "[[discovery]]\nuri = \"nvme-tcp://127.0.0.1\"\n";

/// Two volumes, `a` and `b`, with these keys and paths.
fn two(a: &str, b: &str) -> Result<Config, String> {
    let volume = |name: &str, keys: &str| {
        let (subsystem, path) = match keys.split_once(' ') {
            Some(("discovered", rest)) => (rest, ""),
            _ => ("", keys),
        };
        let path = path.split_whitespace();
        let path = path.map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
        format!(
            "[[volume]]\nname = \"{name}\"\n{subsystem}\n{}",
            path.collect::<String>()
        )
    };
    Config::parse(&[DISCOVERY, &volume("a", a), &volume("b", b)].concat())
}

#[test]
fn t09_t13_two_volumes_over_one_namespace_are_refused() {
    let discovered = "discovered subsystem = \"nqn.x:v\"";
    for (a, b) in [
        ("nvme-tcp://h/nqn.x:v", "nvme-tcp://other:4421/nqn.x:v"),
        ("nvme-tcp://h/nqn.x:v?nsid=1", "nvme-tcp://h/nqn.x:v?nsid=1"),
        // One without a number is the only one there.
        ("nvme-tcp://h/nqn.x:v", "nvme-tcp://h/nqn.x:v?nsid=2"),
        ("nvme-tcp://h/nqn.x:v?nsid=2", discovered),
        (discovered, "nvme-tcp://h/nqn.x:v?nsid=2"),
        (discovered, discovered),
        (discovered, &format!("{discovered}\nnsid = 3")),
        ("file:/a", "file:/a?distance=3"),
        ("nvme-ng:/dev/ng0n1", "nvme-ng:/dev/ng0n1?poll=true"),
        ("queue:/q.sock", "queue:/q.sock?nsid=1"),
    ] {
        let error = two(a, b).unwrap_err();
        assert!(error.contains("volume \"a\""), "{a} {b}: {error}");
        assert!(error.contains("two volumes over one namespace"), "{error}");
        assert!(error.starts_with("line "), "{error}");
    }
    for (a, b) in [
        ("nvme-tcp://h/nqn.x:v?nsid=1", "nvme-tcp://h/nqn.x:v?nsid=2"),
        ("nvme-tcp://h/nqn.x:v", "nvme-tcp://h/nqn.x:w"),
        ("nvme-tcp://h/nqn.x:w", discovered),
        (
            "nvme-tcp://h/nqn.x:v?nsid=1",
            &format!("{discovered}\nnsid = 3"),
        ),
        ("mem:1MiB", "mem:1MiB"),
        ("null:1MiB", "null:1MiB"),
        ("queue:/q.sock", "queue:/q.sock?nsid=2"),
        ("file:/a", "file:/b"),
    ] {
        assert!(two(a, b).is_ok(), "{a} {b}: {:?}", two(a, b).err());
    }
    let leg = MIRROR.replacen("file:/a", "nvme-tcp://h/nqn.x:l", 1);
    let other = "[[volume]]\nname = \"b\"\n[[volume.path]]\nuri = \"nvme-tcp://g/nqn.x:l\"\n";
    let error = Config::parse(&[&leg, other].concat()).unwrap_err();
    assert!(error.contains("volume \"m0/h\""), "{error}");
}

#[test]
fn names_of_paths_and_legs_are_words_and_differ() {
    let volume = "[[volume]]\nname = \"v0\"\n";
    let path =
        |name: &str, uri: &str| format!("[[volume.path]]\nname = \"{name}\"\nuri = \"{uri}\"\n");
    let of = |name: &str| Config::parse(&format!("{volume}{}", path(name, "mem:1MiB")));
    assert_eq!(
        of("left").unwrap().volumes[0].paths[0].name.as_deref(),
        Some("left")
    );
    for name in ["", "0", "17", "a b", "-a", "a/b"] {
        let error = of(name).unwrap_err();
        assert!(error.contains("line 4, column 8"), "{error}");
        assert!(error.contains("a name has 1 to 64"), "{error}");
    }
    let uri = |port| format!("nvme-tcp://h:{port}/nqn.2026-01.org.example:s");
    let twice = [path("a", &uri(1)), path("a", &uri(2))].concat();
    let error = Config::parse(&format!("{volume}{twice}")).unwrap_err();
    assert!(error.starts_with("line 7, column 8: "), "{error}");
    assert!(
        error.contains("name \"a\": another path is called so"),
        "{error}"
    );
    let leg = |file: &str| format!("[[volume.leg]]\nname = \"a\"\nuri = \"file:{file}\"\n");
    let legs = [leg("/a"), leg("/b")].concat();
    let error = Config::parse(&format!("{volume}kind = \"mirror\"\n{legs}")).unwrap_err();
    assert!(
        error.contains("name \"a\": another leg is called so"),
        "{error}"
    );
    // Of two legs, paths may be called alike.
    let leg = |file: &str| {
        let path = path("a", &format!("file:{file}")).replace("volume.path", "volume.leg.path");
        format!("[[volume.leg]]\n{path}")
    };
    let legs = [leg("/a"), leg("/b")].concat();
    let config = Config::parse(&format!("{volume}kind = \"mirror\"\n{legs}")).unwrap();
    assert_eq!(config.volumes[2].leg(), Some("b"));
}

#[test]
fn a_path_is_there_once() {
    for (first, second, part) in [
        ("nvme-tcp://h/nqn.x:v", "nvme-tcp://h/nqn.x:v", "twice"),
        (
            "nvme-tcp://h/nqn.x:v",
            "nvme-tcp://H:4420/nqn.x:v",
            "one path",
        ),
        (
            "nvme-tcp://h/nqn.x:v?nsid=1",
            "nvme-tcp://h/nqn.x:v?distance=2&nsid=1",
            "one path",
        ),
        ("file:/a", "file:/a", "twice"),
    ] {
        let error = two(&format!("{first} {second}"), "mem:1MiB").unwrap_err();
        assert!(error.contains(part), "{error}");
        assert!(
            error.contains("volume \"a\"") && error.contains(second),
            "{error}"
        );
    }
    let ways = "nvme-tcp://h/nqn.x:v nvme-tcp://h:4421/nqn.x:v nvme-tcp://g/nqn.x:v";
    assert!(two(ways, "mem:1MiB").is_ok());
}

#[test]
fn a_key_of_discovery_without_a_subsystem_is_refused() {
    for (key, part) in [
        (
            "gone = \"remove\"",
            "gone is for a subsystem that is discovered",
        ),
        ("nsid = 1", "nsid is for a subsystem that is discovered"),
    ] {
        let text = GOOD.replacen("policy", &format!("{key}\npolicy"), 1);
        let error = Config::parse(&text).unwrap_err();
        assert!(error.starts_with("line 4, column "), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn discovery_controllers_are_as_many_as_have_places_and_each_once() {
    let one = |number: usize| format!("[[discovery]]\nuri = \"nvme-tcp://127.0.0.1:{number}\"\n");
    let read = |numbers: &[usize]| {
        let all: String = numbers.iter().map(|it| one(*it)).collect();
        let volume = "[[volume]]\nname = \"a\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        Config::parse(&format!("{all}{volume}")).map_err(|error| format!("{error:#}"))
    };
    let most: Vec<usize> = (1..=engine::limits::DISCOVERY_CONTROLLERS_MAX).collect();
    read(&most).unwrap();
    let error = read(&[&most[..], &[99]].concat()).unwrap_err();
    assert!(
        error.contains("17 discovery controllers are more than 16"),
        "{error}"
    );
    assert!(error.contains("line 33"), "{error}");
    let error = read(&[1, 2, 1]).unwrap_err();
    assert!(error.contains("is asked twice"), "{error}");
}

#[test]
fn queues_that_cannot_be_are_refused_by_name() {
    let parse = |keys: &str, namespaces: &str| {
        let text = format!(
            "socket = \"/run/c\"\n[[queue]]\nsocket = \"/run/q\"\n{keys}\n{namespaces}\n\
             [[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n\
             [[volume.export]]\nnbd = \"unix:/run/v0\"\n"
        );
        Config::parse(&text)
    };
    let one = "[[queue.namespace]]\nvolume = \"v0\"\nnsid = 1";
    let config = parse("", one).unwrap();
    assert_eq!(config.queues[0].namespaces[0].volume, "v0");
    for (keys, namespaces, why) in [
        (
            "",
            "",
            "write a [[queue.namespace]] with a volume and an nsid",
        ),
        (
            "",
            &one.replace("v0", "v1")[..],
            "there is no volume \"v1\"",
        ),
        ("", &one.replace("= 1", "= 65"), "nsid must be 1…64"),
        ("", &format!("{one}\n{one}"), "namespace 1 is v0"),
        ("user_poll = 0\nuser_irq = 0", one, "there is no queue"),
        ("user_irq = 4097", one, "user_irq must be 0…4096"),
        (
            "memory_max = \"0\"",
            one,
            "a queue needs memory for its data",
        ),
        ("controller = 0", one, "controller must be 1…65519"),
        ("subsystem = \"x\"", one, "subsystem"),
    ] {
        let error = parse(keys, namespaces).unwrap_err();
        assert!(error.contains(why) && error.starts_with("line "), "{error}");
    }
    for (other, why) in [
        ("/run/c", "is the control socket"),
        ("/run/v0", "an export over NBD"),
    ] {
        let text = "socket = \"/run/c\"\n[[queue]]\nsocket = \"SOCKET\"\n".to_owned()
            + one
            + "\n[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n"
            + "[[volume.export]]\nnbd = \"unix:/run/v0\"\n";
        let error = Config::parse(&text.replace("SOCKET", other)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
