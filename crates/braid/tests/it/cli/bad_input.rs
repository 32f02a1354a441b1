//! Every bad input gives an error that says what and why, and the right exit code; never a panic.
use crate::cli::common::{Place, code, stderr, stdout};
use std::fs;
use std::net::TcpListener;

const USAGE: i32 = 2;
const FAILED: i32 = 1;

/// Runs `line` and looks for the exit code and every part of the error.
fn refused(place: &Place, line: &str, expected: i32, parts: &[&str]) {
    let args: Vec<&str> = line.split_whitespace().collect();
    let output = place.braid(&args);
    let text = stderr(&output);
    assert_eq!(code(&output), expected, "{line}: {text}");
    assert!(text.starts_with("braid: "), "{line}: {text}");
    for part in parts {
        assert!(text.contains(part), "{line}: no {part:?} in: {text}");
    }
    assert!(!text.contains("panicked"), "{line}: {text}");
    assert_eq!(stdout(&output), "", "{line}");
}

#[test]
fn a_status_that_is_none_or_several() {
    let place = Place::new();
    for (line, parts) in [
        (
            "status 281",
            &["0x281", "unrecovered read error", "0x119"][..],
        ),
        ("status 0x12345", &["0x12345", "15 bits"]),
        ("status 9/81", &["a type is 0 to 7"]),
        (
            "status no-such-thing",
            &["no-such-thing", "all are listed by braid status"],
        ),
        ("status 0x281 and 0x282", &["neither one code"]),
    ] {
        refused(&place, line, USAGE, parts);
    }
    let output = place.braid(&["status", "sct", "0x2", "/", "sc", "0x81"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).starts_with("unrecovered read error (2h/81h = 0x281)\n"));
}

#[test]
fn words_that_mean_nothing() {
    let place = Place::new();
    for (line, parts) in [
        ("nonsense", &["nonsense"][..]),
        ("bench", &["URI"]),
        (
            "bench mem:1m --policy fastest",
            &["fastest", "unknown policy", "queue-depth"],
        ),
        (
            "bench mem:1m --policy round-robin:513",
            &["round-robin:513", "multiple of 512"],
        ),
        ("bench mem:1m --policy numa:1", &["takes no value"]),
        ("top", &["needs a terminal", "braid stat --interval"]),
        ("stat --interval 1ms", &["1ms", "100ms to 24h"]),
        ("stat --interval soon", &["soon"]),
        ("stat --count 0", &["0 is not in"]),
        (
            "bench mem:1m --policy devid:2",
            &["devid:2", "no such path", "1 to 1"],
        ),
        (
            "bench mem:1m --policy weighted-latency:per-core",
            &["per-core", "per-numa+buckets"],
        ),
        ("demo --policies devid:3", &["no such path", "1 to 2"]),
        (
            "bench mem:1m --ewma-shift 9",
            &["ewma_shift is over 8", "weigh nothing"],
        ),
        (
            "bench mem:1m --ewma-shift -1",
            &["ewma_shift is not a whole number"],
        ),
        (
            "bench mem:1m --weight-timeout 4294967296",
            &["over 4294967295 seconds"],
        ),
        (
            "bench mem:1m --weight-timeout -5",
            &["neither whole seconds"],
        ),
        (
            "bench mem:1m --weight-timeout soon",
            &["neither whole seconds"],
        ),
        ("bench mem:1m --iodepth 0", &["0"]),
        ("bench mem:1m --bs 1000", &["multiple of 512"]),
        ("bench mem:1m --bssplit 4k/60:8k/60", &["120"]),
        ("bench mem:1m --cpus 0,0", &["twice"]),
        ("bench mem:1m --digests body", &["body", "header"]),
        ("bench mem:1m --hostnqn foo", &["foo", "NQN"]),
        ("bench mem:1m --hostid foo", &["foo", "UUID"]),
        ("bench mem:1m --size 2m", &["end of the volume", "1 MiB"]),
        ("bench mem:1m --cores 2 --numjobs 1", &["--numjobs 1"]),
        (
            "bench null:2t --rw write --verify",
            &["--verify", "smaller --size"],
        ),
        ("bench mem:1m --bs 1m --iodepth 65535", &["of buffers"]),
        ("bench mem:1m --io-timeout 0", &["shorter than 10ms"]),
        (
            "demo --policies numa,soonish",
            &["soonish", "unknown policy"],
        ),
        ("demo --seconds soon", &["\"soon\" is not a duration"]),
        ("demo --seconds 0", &["at least 0.05 s"]),
    ] {
        refused(&place, line, USAGE, parts);
    }
}

#[test]
fn an_address_and_its_port_are_two_options() {
    let place = Place::new();
    for (line, parts) in [
        (
            "discover -a 127.0.0.1:8109",
            &["127.0.0.1:8109", "-a 127.0.0.1 -s 8109"][..],
        ),
        ("discover -a [::1]:8109", &["[::1]:8109", "-a ::1 -s 8109"]),
        ("discover -a host:8109", &["-a host -s 8109"]),
        ("connect-all -a host:8109", &["-a host -s 8109"]),
        (
            "connect -a 127.0.0.1:8109 -n nqn.x:a",
            &["-a 127.0.0.1 -s 8109"],
        ),
        ("discover -a host -s 0", &["--trsvcid", "1..=65535"]),
        ("discover -a host -s -1", &["--trsvcid", "-1", "1..=65535"]),
        (
            "connect -a 127.0.0.1 -n nqn.x:a -s 0",
            &["--trsvcid", "1..=65535"],
        ),
    ] {
        refused(&place, line, USAGE, parts);
    }
}

/// The error is the number's, and not that there is no such option.
#[test]
fn numbers_below_zero_are_numbers() {
    let place = Place::new();
    for option in ["--seeds", "--seed", "--requests", "--jobs"] {
        let line = format!("sim --chaos {option} -1");
        refused(&place, &line, USAGE, &[option, "'-1'", "invalid digit"]);
    }
}

#[test]
fn referrals_and_hosts_that_cannot_be() {
    let place = Place::new();
    let many: Vec<_> = (1..=65).map(|it| format!("10.0.0.{it}")).collect();
    for (line, parts) in [
        ("10.0.0.2 10.0.0.2:8009", &["10.0.0.2:8009", "twice"][..]),
        (&*many.join(" "), &["65 referrals", "64"]),
    ] {
        refused(&place, &format!("target referrals {line}"), USAGE, parts);
    }
    for line in ["any any", "any nqn.x:a"] {
        let parts = ["\"any\" stands alone"];
        refused(&place, &format!("target hosts {line}"), USAGE, &parts);
    }
}

#[test]
fn paths_that_are_none() {
    let place = Place::new();
    for (uri, part) in [
        ("disk.img", "not a path URI"),
        ("/dev/sdb", "file:/dev/sdb"),
        ("http://host/x", "unknown scheme"),
        ("nvme-pcie:0000:01:00.0", "not supported yet"),
        ("nbd://host:1/x", "not supported yet"),
        ("nvme-tcp://host:4420", "no subsystem NQN"),
        ("nvme-tcp://host:99999/nqn.x", "invalid port"),
        ("nvme-tcp://fd00::1:4420/nqn.x", "in brackets"),
        ("nvme-tcp://[fd00::zz]/nqn.x", "invalid IPv6"),
        ("nvme-tcp://host/%ff", "UTF-8"),
        ("nvme-tcp://host/nqn.x?nsid=0", "nsid"),
        ("mem:much", "not a size"),
        ("mem:100", "multiple of 4 KiB"),
        ("file:relative", "absolute path"),
    ] {
        refused(&place, &format!("bench {uri}"), USAGE, &[uri, part]);
    }
}

#[test]
fn paths_that_lead_nowhere() {
    let place = Place::new();
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let uri = format!("nvme-tcp://{nobody}/nqn.2026-01.org.example%3Av0");
    refused(&place, &format!("bench {uri}"), FAILED, &[&uri, "refused"]);
    let uri = "nvme-tcp://no.such.host.invalid/nqn.x";
    refused(
        &place,
        &format!("bench {uri}"),
        FAILED,
        &[uri, "resolve", "no.such.host.invalid"],
    );
    refused(
        &place,
        "bench file:/no/such/file",
        FAILED,
        &["/no/such/file", "No such file"],
    );
    refused(&place, "bench file:/", FAILED, &["directory"]);
}

#[test]
fn configuration_that_cannot_be_is_a_usage_error() {
    let place = Place::new();
    for verb in ["run", "target"] {
        let line = format!("{verb} -c nosuch.toml");
        refused(&place, &line, USAGE, &["cannot read nosuch.toml"]);
    }
    let volume = "[[volume]]\nname = \"v\"\n[[volume.path]]\ndistance = 1\n";
    for (keys, parts) in [
        (
            "uri = \"mem:1\"\n",
            ["line 5, column 7", "multiple of 4 KiB"],
        ),
        (
            "uri = 7\n",
            ["line 5, column 7", "must be text in quotes, not 7"],
        ),
        (
            "uri = \"mem:1MiB\"\nthroughput = 101\n",
            ["line 6, column 14", "from 0 to 100"],
        ),
        ("", ["line 3, column 1", "the key `uri` is missing"]),
    ] {
        fs::write(place.path().join("b.toml"), format!("{volume}{keys}")).unwrap();
        refused(&place, "run -c b.toml", USAGE, &parts);
    }
}

#[test]
fn configuration_is_checked_without_opening_anything() {
    let place = Place::new();
    let text = "[[volume]]\nname = \"v\"\n[[volume.path]]\nuri = \"file:/no/such\"\n\
                [[volume.export]]\nnbd = \"unix:/no/such/v.sock\"\n";
    fs::write(place.path().join("b.toml"), text).unwrap();
    let output = place.braid(&["run", "--check", "-c", "b.toml"]);
    let (said, lines) = (stdout(&output), "add volume v\nv: add export ");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        said.starts_with(lines) && said.contains("/no/such/v.sock"),
        "{said}"
    );
    fs::write(place.path().join("b.toml"), text.replace("path", "pth")).unwrap();
    refused(
        &place,
        "run --check -c b.toml",
        USAGE,
        &["line 3", "unknown key `pth`"],
    );
}

#[test]
fn a_file_that_is_read_only_can_be_read_and_not_written() {
    let place = Place::new();
    let path = place.path().join("disk.img");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let uri = format!("file:{}", path.display());
    let reads = ["bench", &uri, "--size", "1m", "-o", "json"];
    assert_eq!(place.json(&reads)["errors"], 0);
    if rustix::process::geteuid().is_root() {
        return; // root may write to anything
    }
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    assert_eq!(place.json(&reads)["errors"], 0);
    refused(
        &place,
        &format!("bench {uri} --rw write"),
        FAILED,
        &["disk.img", "ermission"],
    );
}

#[test]
fn paths_to_different_things_are_no_volume() {
    let place = Place::new();
    let line = "bench mem:64KiB mem:128KiB";
    refused(
        &place,
        line,
        FAILED,
        &["mem:128KiB", "mem:64KiB", "not one namespace"],
    );
}

#[test]
fn a_subsystem_or_namespace_that_is_not_there() {
    let place = Place::new();
    let target = place.target(&["--mem", "1MiB", "--nqn", "nqn.2026-01.org.example:here"]);
    let elsewhere = target
        .uri
        .replace(":here", ":elsewhere")
        .replace("%3Ahere", "%3Aelsewhere");
    assert_ne!(elsewhere, target.uri);
    refused(
        &place,
        &format!("bench {elsewhere}"),
        FAILED,
        &["elsewhere", "subsystem"],
    );
    let line = format!("bench {}?nsid=7", target.uri);
    refused(&place, &line, FAILED, &["nsid", "7"]);
}

#[test]
fn a_state_directory_that_cannot_be_written() {
    let place = Place::new();
    fs::write(place.path().join("braid"), "in the way").unwrap();
    let output = place
        .command()
        .args(["bench", "nvme-tcp://127.0.0.1:1/nqn.2026-01.org.example:x"])
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(code(&output), FAILED, "{text}");
    // A machine with an identity of its own in /etc/nvme needs no state directory.
    if !std::path::Path::new("/etc/nvme/hostid").exists() {
        assert!(
            text.contains("host identifier") && text.contains("hostid"),
            "{text}"
        );
    }
}

#[test]
fn standard_output_may_be_closed_early() {
    use std::process::Stdio;
    let place = Place::new();
    let mut child = place
        .command()
        .args(["bench", "mem:1m", "--size", "1m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
}

#[test]
fn help_and_version_are_no_errors() {
    let place = Place::new();
    let version = place.braid(&["--version"]);
    assert_eq!(
        stdout(&version),
        format!("braid {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = place.braid(&["bench", "--help"]);
    assert_eq!((code(&version), code(&help)), (0, 0));
    assert!(stdout(&help).contains("DESTROY"));
    let nothing = place.braid(&[]);
    assert_eq!(code(&nothing), USAGE);
    assert!(stderr(&nothing).contains("Usage: braid"));
}

#[test]
fn targets_that_cannot_be_or_would_take_all_memory() {
    let place = Place::new();
    let rest = "nqn = \"nqn.2026-01.org.example:v0\"\n[[namespace]]\nbackend = \"mem:1MiB\"\n\
                [[port]]\nlisten = \"127.0.0.1:0\"\n";
    for (key, parts) in [
        ("buffers = \"100TiB\"", &["buffers 100 TiB", "8 GiB"][..]),
        (
            "in_capsule = \"1TiB\"",
            &["in_capsule 1 TiB", "transfer_size"],
        ),
        (
            "connections = 4294967295",
            &["connections 4294967295", "queue_entries"],
        ),
        (
            "transfer_size = \"4KiB\"",
            &["transfer_size 4 KiB", "8 KiB"],
        ),
    ] {
        fs::write(place.path().join("t.toml"), format!("{key}\n{rest}")).unwrap();
        refused(&place, "target -c t.toml", USAGE, parts);
    }
    fs::write(place.path().join("t.toml"), "").unwrap();
    refused(
        &place,
        "target -c t.toml",
        USAGE,
        &["there is no nqn: write nqn"],
    );
}
