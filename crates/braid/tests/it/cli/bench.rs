//! Loads against a target in another process.
use crate::cli::common::{Place, code, stderr, stdout};
use std::fs;

#[test]
fn what_was_written_over_tcp_is_read_back() {
    let place = Place::new();
    let target = place.target(&["--mem", "8MiB"]);
    let write = place.json(&[
        "bench",
        &target.uri,
        "--rw",
        "write",
        "--bs",
        "64k",
        "--iodepth",
        "16",
        "--verify",
        "-o",
        "json",
    ]);
    assert_eq!(
        (&write["op"], &write["errors"]),
        (&"write".into(), &0.into())
    );
    assert_eq!(write["verified_bytes"], 8 << 20);
    assert_eq!(write["share"][&target.uri], 1.0);
    for key in ["iops", "mib_s", "mean_us", "p50_us", "p99_us", "p999_us"] {
        assert!(write[key].as_f64().unwrap() > 0.0, "{key}: {write}");
    }
    // Another process finds it, in other sizes and with digests.
    let read = place.json(&[
        "bench",
        &target.uri,
        "--rw",
        "read",
        "--bssplit",
        "4k/50:128k/50",
        "--verify",
        "--digests",
        "header,data",
        "-o",
        "json",
    ]);
    assert_eq!(
        (&read["errors"], &read["verified_bytes"]),
        (&0.into(), &(8 << 20).into())
    );
}

#[test]
fn a_mix_over_two_paths_and_two_cores_finds_its_last_writes() {
    let place = Place::new();
    let target = place.target(&["--mem", "8MiB"]);
    let mixed = place.json(&[
        "bench",
        &target.uri,
        &target.uri,
        "--policy",
        "queue-depth",
        "--rw",
        "randrw",
        "--iodepth",
        "32",
        "--numjobs",
        "2",
        "--cores",
        "2",
        "--size",
        "8m",
        "--verify",
        "-o",
        "json",
    ]);
    assert_eq!(
        (&mixed["op"], &mixed["errors"]),
        (&"mixed".into(), &0.into()),
        "{mixed}"
    );
    assert!(mixed["verified_bytes"].as_u64().unwrap() > 1 << 20);
    for path in 0..2 {
        let share = mixed["paths"][path]["share"].as_f64().unwrap();
        assert!(share > 0.05, "both paths serve: {mixed}");
    }
    assert_eq!(mixed["share"][&target.uri], 1.0, "one URI given twice");
}

#[test]
fn numa_takes_the_path_that_is_said_to_be_nearest() {
    let place = Place::new();
    let target = place.target(&["--mem", "1MiB"]);
    let [far, near] = [20, 10].map(|distance| format!("{}?distance={distance}", target.uri));
    let numa = ["--policy", "numa", "--rw", "randread", "--runtime", "50ms"];
    let args = [
        &["bench", far.as_str(), near.as_str()],
        &numa[..],
        &["-o", "json"],
    ]
    .concat();
    let json = place.json(&args);
    assert_eq!(
        (&json["share"][&near], &json["share"][&far]),
        (&1.0.into(), &0.0.into())
    );
}

#[test]
fn wrong_data_is_found_and_fails() {
    let place = Place::new();
    let path = place.path().join("disk.img");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let uri = format!("file:{}", path.display());
    place.json(&[
        "bench",
        &uri,
        "--rw",
        "write",
        "--verify",
        "--iodepth",
        "32",
        "-o",
        "json",
    ]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[300 * 1024 + 17] ^= 4;
    fs::write(&path, bytes).unwrap();
    let output = place.braid(&["bench", &uri, "--rw", "read", "--verify"]);
    let (out, text) = (stdout(&output), stderr(&output));
    assert_eq!(code(&output), 1, "{text}");
    assert!(out.contains("errors 1, verified 1020 KiB"), "{out}");
    assert!(text.contains("wrong data at byte 307200"), "{text}");
}

#[test]
fn a_load_with_a_rate_and_a_time_ends_and_reports() {
    let place = Place::new();
    let paced = place.json(&[
        "bench",
        "null:1GiB",
        "--rw",
        "randread",
        "--iodepth",
        "8",
        "--rate-iops",
        "1000",
        "--runtime",
        "300ms",
        "-o",
        "json",
    ]);
    // How the rate is kept to is tested in virtual time, with the pace itself.
    assert_eq!(paced["errors"], 0, "{paced}");
    assert!(paced["iops"].as_f64().unwrap() > 0.0, "{paced}");
}

#[test]
fn a_pipe_gets_tables_without_colour_or_progress() {
    let place = Place::new();
    let output = place.braid(&["bench", "mem:1m", "mem:1m", "--runtime", "150ms"]);
    // Two memories of one size are still two different things.
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    let output = place.braid(&["bench", "mem:1m", "--runtime", "150ms"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let out = stdout(&output);
    assert!(
        out.starts_with("sequential read of 4 KiB, 1 outstanding on 1 core"),
        "{out}"
    );
    assert!(!out.contains('\x1b'), "{out}");
}

#[test]
fn t35_the_host_identity_is_kept() {
    let place = Place::new();
    let target = place.target(&["--mem", "1MiB"]);
    let read = ["bench", &target.uri, "--size", "64k", "-o", "json"];
    place.json(&read);
    let path = place.path().join("braid/hostid");
    let first = fs::read_to_string(&path);
    place.json(&read);
    match first {
        Ok(first) => assert_eq!(first, fs::read_to_string(&path).unwrap()),
        // Made only where the machine has none of its own.
        Err(_) => assert!(std::path::Path::new("/etc/nvme/hostid").exists()),
    }
}

#[test]
fn a_target_that_dies_ends_the_load_with_its_name() {
    let place = Place::new();
    let mut target = place.target(&["--mem", "1MiB"]);
    let bench = place.long_bench(&target);
    target.kill();
    let output = bench.output();
    let text = stderr(&output);
    assert_eq!(code(&output), 1, "{text}");
    assert!(
        text.contains(&target.uri) && !text.contains("panicked"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        json["iops"].as_f64().unwrap() > 0.0,
        "what was measured is shown: {json}"
    );
}

#[test]
fn an_interrupted_load_shows_its_results() {
    let place = Place::new();
    let target = place.target(&["--mem", "1MiB"]);
    let bench = place.long_bench(&target);
    rustix::process::kill_process(bench.pid(), rustix::process::Signal::INT).unwrap();
    let output = bench.output();
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["interrupted"], &json["errors"]),
        (&true.into(), &0.into())
    );
    assert!(json["iops"].as_f64().unwrap() > 0.0, "{json}");
}
