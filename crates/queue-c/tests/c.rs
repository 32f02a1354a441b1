//! The header is the library's, and C programs work with both.
#![allow(clippy::unwrap_used, reason = "tests")]

use broker::{Broker, Config, Grant, Namespace, Rights, Trust};
use runtime::{Device, MemoryDevice};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_header_is_as_cbindgen_writes_it() {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_src(here("src/types.rs"))
        .with_src(here("src/lib.rs"))
        .with_config(config)
        .generate()
        .unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    let path = here("include/braid_queue.h");
    if std::env::var_os("BRAID_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let made = String::from_utf8(header).unwrap();
    assert!(
        there == made,
        "BRAID_WRITE_HEADER=1 writes it anew:\n{made}"
    );
}

/// A broker with 1 MiB of memory, in blocks of 4 KiB.
fn broker(socket: &Path) -> Broker {
    let memory = Arc::new(MemoryDevice::new(1 << 20).unwrap());
    let everything = Grant {
        namespaces: None,
        depth_max: 4095,
        queues_max: 8,
        memory_max: u64::MAX,
    };
    let config = Config {
        listener: UnixListener::bind(socket).unwrap(),
        namespaces: vec![Namespace {
            device: Device::Memory(memory),
            block_shift: 12,
            blocks: 256,
            read_only: false,
        }],
        workers: vec![None],
        user_poll: 2,
        user_irq: 2,
        memory_max: 1 << 30,
        patience_ns: broker::limits::PATIENCE_NS,
        spin_ns: 50_000,
        trust: Trust::Mediated,
        identity: None,
        rights: Rights {
            users: Vec::new(),
            others: Some(everything),
        },
    };
    Broker::start(config).unwrap()
}

/// Where the shared library was put: beside this program, or above it.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let mut places = deps.ancestors().skip(1).take(2);
    let found = places.find(|place| place.join("libbraid_queue.so").exists());
    found.unwrap().to_owned()
}

#[test]
fn the_example_in_c_verifies_data_and_counts() {
    if Command::new("cc").arg("--version").output().is_err() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP the_example_in_c_verifies_data_and_counts: cc is not installed"
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (socket, program) = (
        directory.path().join("q.sock"),
        directory.path().join("queue"),
    );
    let library = library();
    let compiled = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ])
        .arg(&program)
        .arg(here("examples/queue.c"))
        .arg("-I")
        .arg(here("include"))
        .arg("-L")
        .arg(&library)
        .arg("-lbraid_queue")
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let run = |nsid: &str| {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", &library);
        command.arg(&socket).args([nsid, "0.05"]).output().unwrap()
    };
    let refused = run("1");
    assert!(!refused.status.success(), "nobody serves");
    let broker = broker(&socket);
    let ended = run("1");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}{errors}");
    assert!(said.contains("verified 256 blocks of 4096 bytes"), "{said}");
    assert!(said.contains("IOPS, 127 outstanding"), "{said}");
    let wrong = run("2");
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        !wrong.status.success() && errors.contains("no namespace 2"),
        "{errors}"
    );
    broker.stop().unwrap();
}
