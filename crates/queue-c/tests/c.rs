//! The header is the library's, and C programs work with both.
#![allow(clippy::unwrap_used, reason = "tests")]

use broker::local::LocalNamespace;
use broker::{Config, Grant, Rights, Trust};
use cores::local::LocalServer;
use runtime::{Device, MemoryDevice};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_header_is_as_cbindgen_writes_it() {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
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
    // Each function and type of the library, once.
    for file in std::fs::read_dir(here("src")).unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let names = |begin: &str| -> Vec<String> {
            let rest = source.split(begin).skip(1);
            let name = |rest: &str| rest.split(['(', ' ']).next().unwrap().to_owned();
            rest.map(name).collect()
        };
        for name in names("extern \"C\" fn ") {
            assert_eq!(made.matches(&format!("{name}(")).count(), 1, "{name}");
        }
        for name in names("#[derive(Clone, Copy)]\npub struct ") {
            assert_eq!(made.matches(&format!("}} {name};")).count(), 1, "{name}");
        }
    }
}

/// A broker with 1 MiB of memory, in blocks of 4 KiB.
fn broker(socket: &Path) -> LocalServer {
    let memory = Arc::new(MemoryDevice::new(1 << 20).unwrap());
    let everything = Grant {
        namespaces: None,
        depth_max: 4095,
        queues_max: 8,
        memory_max: u64::MAX,
    };
    let config = Config {
        listener: UnixListener::bind(socket).unwrap(),
        namespaces: Vec::new(),
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
    let namespace = LocalNamespace {
        device: Device::Memory(memory),
        block_shift: 12,
        blocks: 256,
        read_only: false,
    };
    LocalServer::start(config, &[namespace], &[None], drop).unwrap()
}

/// Where the shared library was put: beside this program, or above it.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let mut places = deps.ancestors().skip(1).take(2);
    let found = places.find(|place| place.join("libbraid_queue.so").exists());
    found.unwrap().to_owned()
}

/// Whether all programs are there; if not, says so.
fn have(test: &str, programs: &[&str]) -> bool {
    let missing = programs
        .iter()
        .find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(missing) = missing {
        let mut errors = std::io::stderr();
        let _ = writeln!(errors, "SKIP {test}: {missing} is not installed");
    }
    missing.is_none()
}

/// Output of a command that must succeed.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    said
}

/// Compiles a C program against the library as it was built.
fn compile(source: &str, program: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread"]);
    cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(program);
    cc.arg(here(source)).arg("-I").arg(here("include"));
    said(cc.arg("-L").arg(library()).arg("-lbraid_queue"));
}

/// With the library beside it, by the name that programs look for.
fn start(program: &Path) -> Command {
    let beside = program.parent().unwrap();
    let name = beside.join("libbraid_queue.so.0");
    if !name.exists() {
        let built = library().join("libbraid_queue.so");
        std::os::unix::fs::symlink(built, name).unwrap();
    }
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", beside);
    command
}

#[test]
fn u2_a_queue_in_c_registers_memory_waits_by_epoll_is_passed_on_and_hears_the_end() {
    let name = "u2_a_queue_in_c_registers_memory_waits_by_epoll_is_passed_on_and_hears_the_end";
    if !have(name, &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    let program = directory.path().join("whole");
    compile("tests/whole.c", &program);
    let broker = broker(&socket);
    let mut command = start(&program);
    let mut running = command.arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let mut next = || lines.next().transpose().unwrap().unwrap_or_default();
    assert_eq!(next(), "all of it");
    broker.stop().unwrap();
    assert_eq!(next(), "it has ended");
    assert!(running.wait().unwrap().success());
}

#[test]
fn u7_every_command_can_be_prepared_in_c_with_lists_of_either_kind() {
    let name = "u7_every_command_can_be_prepared_in_c_with_lists_of_either_kind";
    if !have(name, &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    let program = directory.path().join("commands");
    compile("tests/commands.c", &program);
    let broker = broker(&socket);
    let told = said(start(&program).arg(&socket));
    assert_eq!(told, "all commands\n");
    broker.stop().unwrap();
}

#[test]
fn the_example_in_c_verifies_data_and_counts() {
    if !have("the_example_in_c_verifies_data_and_counts", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    let program = directory.path().join("queue");
    compile("examples/queue.c", &program);
    let run = |nsid: &str| {
        let mut command = start(&program);
        command.arg(&socket).args([nsid, "0.05"]).output().unwrap()
    };
    let refused = run("1");
    assert!(!refused.status.success(), "there is no server");
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    let words = format!("no queue: {}: connect to the broker", socket.display());
    assert!(errors.starts_with(&words), "{errors}");
    for word in ["0", "x", "1x", "-1", "4294967295", ""] {
        let wrong = run(word);
        assert_eq!(wrong.status.code(), Some(2), "{word:?}: {wrong:?}");
    }
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

#[test]
fn the_example_in_c_says_what_it_could_not_write_and_that_its_server_has_ended() {
    let name = "the_example_in_c_says_what_it_could_not_write_and_that_its_server_has_ended";
    if !have(name, &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    let program = directory.path().join("queue");
    compile("examples/queue.c", &program);
    let broker = broker(&socket);
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = start(&program);
    command.arg(&socket).args(["1", "0.05"]);
    let ended = command.stdout(full.unwrap()).output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(errors.contains("standard output: "), "{errors}");

    // A program without one of the standard streams doesn't print into what it has opened.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" >&-", "sh"]).arg(&program);
    shell.env("LD_LIBRARY_PATH", directory.path());
    let closed = shell.arg(&socket).args(["1", "0.05"]).output().unwrap();
    let errors = String::from_utf8_lossy(&closed.stderr).into_owned();
    assert_eq!(closed.status.code(), Some(1), "{errors}");
    assert!(errors.contains("standard output: Bad file"), "{errors}");

    // For so long that only the server's end can end it.
    let mut command = start(&program);
    command.arg(&socket).args(["1", "1e9"]);
    let mut running = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("verified "), "{line}");
    broker.stop().unwrap();
    let ended = running.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the broker has ended"), "{errors}");
}

/// Release builds don't look.
#[cfg(debug_assertions)]
#[test]
fn a_queue_may_go_from_thread_to_thread_but_two_at_once_end_the_process() {
    let name = "a_queue_may_go_from_thread_to_thread_but_two_at_once_end_the_process";
    if !have(name, &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    let program = directory.path().join("two_threads");
    compile("tests/two_threads.c", &program);
    let broker = broker(&socket);
    for more in [&[][..], &["close"]] {
        let mut command = start(&program);
        let ended = command.arg(&socket).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(6), "{}: {said}{errors}", ended.status);
        assert_eq!(said, "from thread to thread\n");
        assert!(errors.contains("used from two threads at once"), "{errors}");
    }
    broker.stop().unwrap();
}

/// The commands of docs/queues.md that install the library and compile against it.
fn installation() -> String {
    let text = std::fs::read_to_string(here("../../docs/queues.md")).unwrap();
    let mut lines = text.lines();
    lines.by_ref().find(|line| *line == "<!-- install -->");
    assert_eq!(lines.next(), Some("```sh"), "docs/queues.md: no such block");
    let block: Vec<&str> = lines.take_while(|line| *line != "```").collect();
    // The output of cargo was built for this test; the rest is typed in as it stands.
    let (built, typed) = block.split_first().unwrap();
    assert_eq!(*built, "cargo build --release -p braid-queue-c");
    typed.join("\n")
}

#[test]
fn the_library_is_installed_and_found_as_the_documentation_says() {
    let name = "the_library_is_installed_and_found_as_the_documentation_says";
    if !have(name, &["cc", "pkg-config"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (prefix, socket) = (
        directory.path().join("prefix"),
        directory.path().join("q.sock"),
    );
    let broker = broker(&socket);
    let typed = installation()
        .replace("target/release", library().to_str().unwrap())
        .replace("/run/braid/q.sock", socket.to_str().unwrap())
        .replace(
            "/tmp/queue",
            directory.path().join("queue").to_str().unwrap(),
        );
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &typed]).current_dir(here("../.."));
    let told = said(shell.env("prefix", &prefix));
    assert!(told.contains("verified 256 blocks of 4096 bytes"), "{told}");
    assert!(told.contains("IOPS, 127 outstanding"), "{told}");
    let mut asked = Command::new("pkg-config");
    asked.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let version = said(asked.args(["--modversion", "braid-queue"]));
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));

    // Without the shared library.
    let program = directory.path().join("static");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(here("examples/queue.c"));
    cc.arg("-I").arg(prefix.join("include"));
    let mut asked = Command::new("pkg-config");
    asked.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = said(asked.args(["--libs", "--static", "braid-queue"]));
    let system = flags.split_whitespace().filter(|it| *it != "-lbraid_queue");
    said(cc.arg(prefix.join("lib/libbraid_queue.a")).args(system));
    let told = said(Command::new(&program).arg(&socket).args(["1", "0.05"]));
    assert!(told.contains("verified 256 blocks of 4096 bytes"), "{told}");
    broker.stop().unwrap();
}
