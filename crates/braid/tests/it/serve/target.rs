//! `braid target` as a process: what it prints, how it is changed, how it ends, what it refuses.
mod cache;

use crate::serve::no_io_uring;
use crate::tmpfs::Tmpfs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn braid() -> Command {
    Command::new(env!("CARGO_BIN_EXE_braid"))
}

/// A running target, and what it printed for each port.
struct Target {
    child: Child,
    lines: Vec<String>,
    socket: PathBuf,
}

impl Target {
    /// Starts one and waits for a line per port. `None`: this machine has no io_uring.
    fn start(directory: &Path, name: &str, arguments: &[&str], ports: usize) -> Option<Self> {
        let socket = directory.join(name);
        let mut child = braid()
            .arg("target")
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> = out.lines().take(ports).map(Result::unwrap).collect();
        if lines.len() < ports {
            let output = child.wait_with_output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            no_io_uring::skip(&error);
            return None;
        }
        Some(Target {
            child,
            lines,
            socket,
        })
    }

    fn control(&self, arguments: &[&str]) -> Output {
        let mut words = arguments.iter();
        let verb = words.next().unwrap();
        let mut command = braid();
        command
            .args(["target", verb, "--socket"])
            .arg(&self.socket)
            .args(words);
        command.output().unwrap()
    }

    fn show(&self) -> serde_json::Value {
        let output = self.control(&["show", "-o", "json"]);
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// SIGTERM, and its end.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert!(!self.socket.exists(), "the socket goes with its owner");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Message of a target that can't start, and its exit code.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("t.sock");
    let mut command = braid();
    command
        .arg("target")
        .args(arguments)
        .arg("--socket")
        .arg(socket);
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty());
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_target_is_started_changed_shown_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let ports = [
        "--mem",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0,delay=30ms",
    ];
    let Some(target) = Target::start(directory.path(), "t.sock", &ports, 2) else {
        return;
    };
    assert!(
        target.lines[0].starts_with("port 1: nvme-tcp://127.0.0.1:"),
        "{:?}",
        target.lines
    );
    let shown = target.show();
    let uri = format!("port 2: {}", shown["ports"][1]["uri"].as_str().unwrap());
    assert_eq!(uri, target.lines[1]);
    assert_eq!(shown["ports"][1]["shape"]["delay_ns"], 30_000_000);

    assert!(
        target
            .control(&["set", "--port", "2", "delay=1ms", "ana=inaccessible"])
            .status
            .success()
    );
    assert!(target.control(&["resize", "1", "32MiB"]).status.success());
    assert!(target.control(&["drop", "--port", "1"]).status.success());
    let shown = target.show();
    assert_eq!(shown["ports"][1]["shape"]["delay_ns"], 1_000_000);
    assert_eq!(shown["ports"][1]["ana_state"], "inaccessible");
    assert_eq!(shown["namespaces"][0]["bytes"], 32 << 20);

    for (arguments, code, error) in [
        (
            &["set", "--port", "7", "delay=1ms"][..],
            2,
            "there is no port 7; ports are 1…2",
        ),
        (
            &["set", "--port", "1", "dealy=1ms"],
            2,
            "unknown key `dealy`",
        ),
        (
            &["resize", "1", "1TiB"],
            1,
            "1 TiB is more than the 64 MiB of its backend",
        ),
    ] {
        let output = target.control(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(error), "{text}");
    }
    target.end();
}

#[test]
fn t31_two_processes_offer_one_file_as_one_subsystem() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("v0");
    let text = |first: u32| {
        format!(
            "nqn = \"nqn.2026-01.org.example:v0\"\ncntlid = [{first}, {}]\n\
             [[namespace]]\nbackend = \"file:{}\"\n\
             [[port]]\nlisten = \"127.0.0.1:0\"\n",
            first + 99,
            file.display(),
        )
    };
    std::fs::File::create(&file)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let start = |first: u32| {
        let name = format!("{first}.toml");
        let path = directory.path().join(&name);
        std::fs::write(&path, text(first)).unwrap();
        let arguments = ["-c", path.to_str().unwrap()];
        Target::start(directory.path(), &format!("{first}.sock"), &arguments, 1)
    };
    let (Some(one), Some(two)) = (start(1), start(101)) else {
        return;
    };
    let (a, b) = (one.show(), two.show());
    assert_eq!(a["namespaces"][0]["uuid"], b["namespaces"][0]["uuid"]);
    assert_eq!(a["namespaces"][0]["nguid"], b["namespaces"][0]["nguid"]);
    assert_eq!(a["subsystem"]["serial"], b["subsystem"]["serial"]);
    assert_ne!(a["subsystem"]["cntlid"], b["subsystem"]["cntlid"]);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 16 << 20);
    assert!(one.control(&["resize", "1", "32MiB"]).status.success());
    assert_eq!(
        std::fs::metadata(&file).unwrap().len(),
        32 << 20,
        "a file grows"
    );
    assert!(one.control(&["resize", "1", "8MiB"]).status.success());
    assert_eq!(
        std::fs::metadata(&file).unwrap().len(),
        32 << 20,
        "and is never cut off"
    );
    one.end();
    two.end();
}

#[test]
fn t33_a_namespace_that_was_grown_is_used_up_to_its_new_end() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("v0");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let file = ["--file", file.to_str().unwrap()];
    let arguments = [&file[..], &["--listen", "127.0.0.1:0"]].concat();
    let Some(target) = Target::start(directory.path(), "t.sock", &arguments, 1) else {
        return;
    };
    assert!(target.control(&["resize", "1", "4MiB"]).status.success());
    for rw in ["write", "read"] {
        let (well, said) = target.write(&["--size", "4m", "--rw", rw]);
        assert!(well, "{rw}: {said}");
    }
    target.end();
}

#[test]
fn port_beyond_loopback_needs_hosts_or_open() {
    for listen in [
        "0.0.0.0:0,advertise=127.0.0.1",
        "192.0.2.1:4420",
        "[fe80::1%lo]:0",
    ] {
        let (code, error) = refused(&["--mem", "1MiB", "--listen", listen]);
        assert_eq!(code, Some(2), "{error}");
        for part in ["other machines reach it", "hosts = [\"NQN\"]", "--open"] {
            assert!(error.contains(part), "{listen}: {error}");
        }
    }
}

#[test]
fn a_wildcard_is_listened_on_and_never_told_to_hosts() {
    let (code, error) = refused(&["--mem", "1MiB", "--open", "--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("add advertise=ADDRESS"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let mem = ["--mem", "1MiB", "--open", "--listen"];
    let arguments = [&mem[..], &["0.0.0.0:0,advertise=127.0.0.1"]].concat();
    let Some(target) = Target::start(directory.path(), "t.sock", &arguments, 1) else {
        return;
    };
    assert!(target.uri().starts_with("nvme-tcp://127.0.0.1:"));
    let (well, said) = target.write(&[]);
    assert!(well, "{said}");
    target.end();
}

#[test]
fn what_can_not_be_is_refused_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let mem = ["--mem", "1MiB", "--listen"];
    for (arguments, code, parts) in [
        (&["--mem", "1MiB"][..], 2, &["no port", "--listen"][..]),
        (
            &["--listen", "127.0.0.1:0"],
            2,
            &["nothing to serve", "--mem"],
        ),
        (
            &["--mem", "1PB", "--listen", "127.0.0.1:0"],
            2,
            &["\"1PB\" is not a size"],
        ),
        (
            &[mem[0], mem[1], mem[2], "somewhere"],
            2,
            &["\"somewhere\"", "ADDRESS:PORT"],
        ),
        (
            &[mem[0], mem[1], mem[2], &taken],
            1,
            &[&taken, "in use", "choose another port", "ss -ltnp"],
        ),
        (
            &[mem[0], mem[1], mem[2], "127.0.0.1:0,dealy=1ms"],
            2,
            &["`dealy`", "`delay`"],
        ),
        (
            &["--file", "/nonexistent/v0", "--listen", "127.0.0.1:0"],
            1,
            &["namespace 1", "/nonexistent/v0", "check the path"],
        ),
        (
            &[mem[0], mem[1], mem[2], "127.0.0.1:0", "--nqn", "v0"],
            2,
            &["--nqn \"v0\"", "must begin with \"nqn.\""],
        ),
        (
            &["-c", "/nonexistent.toml"],
            2,
            &["cannot read /nonexistent.toml", "No such file"],
        ),
    ] {
        let (got, error) = refused(arguments);
        assert_eq!(got, Some(code), "{error}");
        for part in parts {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}

#[test]
fn a_second_target_does_not_take_the_socket_of_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let mem = ["--mem", "1MiB", "--listen", "127.0.0.1:0"];
    let Some(first) = Target::start(directory.path(), "t.sock", &mem, 1) else {
        return;
    };
    let mut command = braid();
    command
        .arg("target")
        .args(mem)
        .arg("--socket")
        .arg(&first.socket);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("another target listens on"), "{error}");
    first.show();
    first.end();
}

impl Target {
    fn uri(&self) -> &str {
        self.lines[0].split_whitespace().last().unwrap()
    }

    fn set(&self, settings: &[&str]) {
        let words = [&["set", "--port", "1"], settings].concat();
        let output = self.control(&words);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// How often a fault was injected.
    fn injected(&self, kind: &str) -> u64 {
        let shown = self.show();
        shown["ports"][0]["faults"]["injected"][kind]
            .as_u64()
            .unwrap()
    }

    /// Writes 16 blocks unless told otherwise; whether all went well, and what was said.
    fn write(&self, options: &[&str]) -> (bool, String) {
        let sized = options.contains(&"--size");
        let size: &[&str] = if sized { &[] } else { &["--size", "64k"] };
        let mut command = braid();
        let rw: &[&str] = match options.contains(&"--rw") {
            true => &[],
            false => &["--rw", "write"],
        };
        command
            .args(["bench", self.uri(), "--bs", "4k"])
            .args(rw)
            .args(["--connect-timeout", "500ms"])
            .args(size)
            .args(options);
        let output = command.output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!said.contains("panicked"), "{said}");
        (output.status.success(), said)
    }

    /// Ends it; what it had written to standard error.
    fn end_with_log(mut self) -> String {
        let mut log = self.child.stderr.take().unwrap();
        self.end();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const MEM: [&str; 4] = ["--mem", "1MiB", "--listen", "127.0.0.1:0"];

#[test]
fn injected_errors_reach_hosts_are_counted_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "t.sock", &MEM, 1) else {
        return;
    };
    target.set(&["error=media-write:dnr:lba=3+0x281:op=read"]);
    let shown = target.show();
    let rules = &shown["ports"][0]["faults"]["errors"];
    assert_eq!(rules[0], "write-fault:dnr:op=write:op=write-zeroes:lba=3-3");
    assert_eq!(rules[1], "unrecovered-read-error:op=read");
    let (well, said) = target.write(&[]);
    assert!(!well && said.contains("byte 12288"), "{said}");
    assert_eq!(target.injected("errors"), 1);
    target.set(&["error=0"]);
    let (well, said) = target.write(&[]);
    assert!(well, "{said}");
    assert_eq!(target.injected("errors"), 1);
    target.end();
}

#[test]
fn ports_drop_refuse_and_fall_silent_while_they_are_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "t.sock", &MEM, 1) else {
        return;
    };
    for (on, off, kind) in [
        ("refuse=1h", "refuse=0", "refused"),
        ("mute=1h", "mute=0", "muted"),
        ("drop_rate=1", "drop_rate=0", "drops"),
    ] {
        target.set(&[on]);
        let (well, said) = target.write(&[]);
        assert!(!well, "{on}: {said}");
        // Counts are shown from the target's next turn on, and nobody waits for that one.
        let asked = (0..10_000).find(|_| target.injected(kind) > 0);
        assert!(asked.is_some(), "{kind}");
        target.set(&[off]);
        let (well, said) = target.write(&[]);
        assert!(well, "{off}: {said}");
    }
    target.end();
}

#[test]
fn t09_memory_promises_a_quiesce_time() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--mem", "1MiB", "--listen", "127.0.0.1:0"];
    let Some(target) = Target::start(directory.path(), "t.sock", &arguments, 1) else {
        return;
    };
    assert_eq!(target.show()["subsystem"]["cqt_ns"], 100_000_000u64);
    target.end();
}

#[test]
fn t09_a_write_that_its_host_gave_up_is_executed_late() {
    let directory = tempfile::tempdir().unwrap();
    let quick = ["--mem", "1MiB", "--cqt", "3s", "--listen"];
    let ports = [&quick[..], &["127.0.0.1:0,late_writes=50ms,hold_writes=1h"]].concat();
    let Some(target) = Target::start(directory.path(), "t.sock", &ports, 1) else {
        return;
    };
    assert_eq!(target.show()["subsystem"]["cqt_ns"], 3_000_000_000u64);
    let (well, said) = target.write(&["--io-timeout", "300ms"]);
    assert!(!well, "{said}");
    let held = target.injected("held_writes");
    assert!(held > 0);
    let asked = (0..10_000).find(|_| target.injected("late_writes") == held);
    assert!(asked.is_some(), "never executed");
    assert_eq!(target.show()["ports"][0]["inflight"], 0);
    target.end();
}

#[test]
fn the_log_tells_of_connections_and_faults_unless_it_is_to_be_quiet() {
    let directory = tempfile::tempdir().unwrap();
    for quiet in [false, true] {
        let arguments = [&MEM[..], if quiet { &["--quiet"] } else { &[] }].concat();
        let Some(target) = Target::start(directory.path(), "t.sock", &arguments, 1) else {
            return;
        };
        target.set(&["error=media-write:dnr"]);
        assert!(!target.write(&[]).0);
        let log = target.end_with_log();
        for part in [
            "port 1: connection 0 accepted\n",
            "port 1: connection 0 closed: ",
            "port 1: faults injected: ",
        ] {
            assert_eq!(log.contains(part), !quiet, "{part} in {log}");
        }
        assert!(!quiet || log.is_empty(), "{log}");
    }
}

#[test]
fn faults_in_the_configuration_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    let config = |cqt: &str, faults: &str| {
        let text = format!(
            "nqn = \"nqn.2026-01.org.example:v0\"\ncqt = \"{cqt}\"\n\
             [[namespace]]\nbackend = \"mem:1MiB\"\n\
             [[port]]\nlisten = \"127.0.0.1:0\"\nfaults = {{ {faults} }}\n"
        );
        std::fs::write(&path, text).unwrap();
    };
    let arguments = ["-c", path.to_str().unwrap()];
    for (cqt, faults, code, part) in [
        ("1s", "dealy = \"1s\"", 2, "unknown key `dealy`"),
        (
            "1s",
            "error = \"no-such\"",
            2,
            "\"no-such\" is no error status",
        ),
        ("1s", "drop_rate = \"2\"", 2, "\"2\" is no probability"),
        ("2m", "", 2, "cqt 120000 ms is more than the 65535 ms"),
    ] {
        config(cqt, faults);
        let (got, error) = refused(&arguments);
        assert!(error.contains(part), "{error}");
        assert_eq!(got, Some(code), "{error}");
    }
    config("1s", "drop_rate = \"0.25\", until_kato = \"on\"");
    let Some(target) = Target::start(directory.path(), "t.sock", &arguments, 1) else {
        return;
    };
    let faults = &target.show()["ports"][0]["faults"];
    assert_eq!(
        (&faults["drop_rate"], &faults["until_kato"]),
        (&0.25.into(), &true.into())
    );
    target.end();
}

#[test]
fn groups_of_a_port_have_a_state_each() {
    let directory = tempfile::tempdir().unwrap();
    let keys = "nqn = \"nqn.2026-01.org.example:v0\"\nsocket_mode = \"0660\"\n\
                [[namespace]]\nbackend = \"mem:1MiB\"\n\
                [[namespace]]\nbackend = \"mem:1MiB\"\nana_group = 2\n\
                [[port]]\nlisten = \"127.0.0.1:0\"\nana = \"2:inaccessible\"\n";
    let config = directory.path().join("t.toml");
    std::fs::write(&config, keys).unwrap();
    let words = ["-c", config.to_str().unwrap()];
    let Some(target) = Target::start(directory.path(), "t.sock", &words, 1) else {
        return;
    };
    let mode = std::fs::metadata(&target.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    let shown = target.show();
    assert_eq!(shown["ports"][0]["ana_state"], "1:optimized+2:inaccessible");
    assert_eq!(shown["namespaces"][1]["ana_group"], 2);
    let uri = target.lines[0].split_whitespace().nth(2).unwrap();
    let reads = |nsid: u32| {
        let mut bench = braid();
        let bench = bench.args(["bench", "--rw", "randread", "--runtime", "0.1"]);
        bench.arg(format!("{uri}?nsid={nsid}")).output().unwrap()
    };
    assert!(reads(1).status.success());
    let refused = reads(2);
    assert!(!refused.status.success(), "{refused:?}");
    let set = |ana: &str| target.control(&["set", "--port", "1", ana]);
    let unknown = set("ana=3:optimized");
    assert_eq!(unknown.status.code(), Some(2));
    let said = text(&unknown.stderr);
    assert!(
        said.contains("no namespace is in group 3, only in 1, 2"),
        "{said}"
    );
    assert!(set("ana=2:non-optimized").status.success());
    assert!(reads(2).status.success());
    target.end();
}

#[test]
fn a_full_disk_under_a_namespace_is_an_error_and_not_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let disk = match Tmpfs::mount(&directory.path().join("disk"), "256k") {
        Ok(mounted) => mounted,
        Err(reason) => {
            let line = format!("SKIP target-disk-full: no tmpfs can be mounted: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return;
        }
    };
    let file = disk.path().join("v0");
    // One that has its space yet to get: others are not made on a full disk.
    std::fs::File::create(&file)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let file = ["--file", file.to_str().unwrap()];
    let arguments = [&file[..], &["--listen", "127.0.0.1:0"]].concat();
    let Some(target) = Target::start(directory.path(), "t.sock", &arguments, 1) else {
        return;
    };
    let (well, said) = target.write(&["--size", "1m"]);
    assert!(!well && said.contains("out of space"), "{said}");
    let shown = target.show();
    assert!(shown["ports"][0]["errors"].as_u64().unwrap() > 0);
    let (well, said) = target.write(&[]);
    assert!(well, "what has its place can be written again: {said}");
    target.end();
}
