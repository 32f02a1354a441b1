//! `braid run` as a process: what it exports, what clients of others' make do with it, how it is
//! asked, changed and ended, what it refuses.
mod late;
mod policies;
mod sole;

use crate::serve::nbd;
use crate::serve::no_io_uring;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// Long enough for anything that is to happen soon, on the slowest machine.
const SOON: Duration = Duration::from_secs(60);

/// A running engine over one volume in memory.
struct Engine {
    child: Child,
    lines: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
}

fn braid(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.env("XDG_STATE_HOME", directory.join("state"));
    command
}

fn config(directory: &Path, more: &str) {
    let socket = directory.join("v0.sock");
    let text = format!(
        "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\npolicy = \"queue-depth\"\n\
         [[volume.path]]\nuri = \"mem:64MiB\"\n[[volume.export]]\nnbd = \"unix:{}\"\n{more}",
        socket.display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

impl Engine {
    /// `None`: this machine has no io_uring.
    fn start(directory: tempfile::TempDir) -> Option<Self> {
        let mut command = braid(directory.path());
        command
            .args(["run", "-c"])
            .arg(directory.path().join("b.toml"));
        command.arg("--socket").arg(directory.path().join("c.sock"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while !text.contains("v0: ready, 64 MiB") {
            if lines.read_line(&mut text).unwrap() == 0 {
                let mut error = String::new();
                let mut stderr = child.stderr.take().unwrap();
                stderr.read_to_string(&mut error).unwrap();
                child.wait().unwrap();
                no_io_uring::skip(&error);
                return None;
            }
        }
        Some(Self {
            child,
            lines,
            directory,
        })
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = braid(self.directory.path());
        command.args(words).arg("--socket").arg(self.path("c.sock"));
        command.output().unwrap()
    }

    fn json(&self, words: &[&str]) -> serde_json::Value {
        let output = self.ask(&[words, &["-o", "json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path("v0.sock").display())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// SIGTERM, and its end.
    fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        assert!(self.child.wait().unwrap().success());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        for name in ["c.sock", "v0.sock"] {
            assert!(!self.path(name).exists(), "{name} goes with its owner");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn engine() -> Option<Engine> {
    let directory = tempfile::tempdir().unwrap();
    config(directory.path(), "");
    Engine::start(directory)
}

/// Runs a program that may not be installed; its output.
fn tool(test: &str, program: &str, words: &[&str]) -> Option<String> {
    match Command::new(program).args(words).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {output:?}");
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            let line = format!("SKIP {test}: {program}: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
    }
}

#[test]
fn nbdinfo_sees_what_is_exported() {
    let Some(engine) = engine() else { return };
    let mode = std::fs::metadata(engine.path("v0.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let name = "nbdinfo_sees_what_is_exported";
    let Some(text) = tool(name, "nbdinfo", &["--json", &engine.uri()]) else {
        return;
    };
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-name"], "v0");
    assert_eq!(export["export-size"], 64 << 20);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    for key in [
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
        "can_multi_conn",
    ] {
        assert_eq!(export[key], true, "{key}");
    }
    engine.end();
}

#[test]
fn nbdcopy_in_and_out_is_identical() {
    let Some(engine) = engine() else { return };
    let (image, back) = (engine.path("in"), engine.path("out"));
    let bytes: Vec<u8> = (0..16_u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(&image, &bytes).unwrap();
    let name = "nbdcopy_in_and_out_is_identical";
    if tool(name, "nbdcopy", &[image.to_str().unwrap(), &engine.uri()]).is_none() {
        return;
    }
    tool(name, "nbdcopy", &[&engine.uri(), back.to_str().unwrap()]);
    let read = std::fs::read(&back).unwrap();
    assert!(read[..bytes.len()] == bytes[..]);
    engine.end();
}

#[test]
fn qemu_io_patterns_of_any_alignment_and_up_to_32_mib() {
    let Some(engine) = engine() else { return };
    let commands = [
        "write -P 7 1000 5000",
        "read -P 7 1000 5000",
        "write -z 100k 32M",
        "read -P 0 100k 32M",
        "write -P 9 3M 31M",
        "read -P 9 3M 31M",
        "discard 1M 1M",
        "flush",
    ];
    let uri = engine.uri();
    let mut words = vec!["-f", "raw", &uri];
    commands
        .iter()
        .for_each(|command| words.extend(["-c", command]));
    let name = "qemu_io_patterns_of_any_alignment_and_up_to_32_mib";
    if let Some(text) = tool(name, "qemu-io", &words) {
        assert!(!text.contains("verification failed"), "{text}");
    }
    engine.end();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(engine) = engine() else { return };
    let uri = format!("--uri={}", engine.uri());
    let words = [
        "--name=t",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bs=4k",
        "--iodepth=32",
        "--size=8M",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--minimal",
    ];
    tool("fio_verifies_what_it_wrote", "fio", &words);
    engine.end();
}

/// A client that never asked for block sizes.
struct Bytes(UnixStream);

impl Bytes {
    fn open(engine: &Engine) -> Self {
        Self(nbd::open(&engine.path("v0.sock"), SOON))
    }

    fn request(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "no error");
        let mut read = vec![0; if kind == 0 { length as usize } else { 0 }];
        self.0.read_exact(&mut read).unwrap();
        read
    }
}

#[test]
fn a_client_without_block_sizes_writes_any_bytes() {
    let Some(engine) = engine() else { return };
    let mut client = Bytes::open(&engine);
    let mut model = vec![0_u8; 4 << 20];
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..200 {
        let lengths = [1, 3, 511, 513, 5000, 1 + next(1_500_000)];
        let offset = next(model.len());
        let length = lengths[next(lengths.len())].min(model.len() - offset);
        let (at, range) = (offset as u64, offset..offset + length);
        match next(3) {
            0 => assert!(
                client.request(0, at, length as u32, &[]) == model[range],
                "{round}"
            ),
            1 => {
                let data = vec![round as u8 + 1; length];
                client.request(1, at, length as u32, &data);
                model[range].copy_from_slice(&data);
            }
            _ => {
                client.request(6, at, length as u32, &[]);
                model[range].fill(0);
            }
        }
    }
    assert!(client.request(0, 0, model.len() as u32, &[]) == model);
    let stat = engine.json(&["stat"]);
    assert!(stat["volumes"][0]["exports"][0]["merged"].as_u64().unwrap() > 0);
    drop(client);
    engine.end();
}

#[test]
fn verbs_show_and_change_and_choices_survive_a_restart() {
    let Some(engine) = engine() else { return };
    let stat = engine.json(&["stat"]);
    let volume = &stat["volumes"][0];
    assert_eq!(
        (&volume["name"], &volume["policy"]),
        (&"v0".into(), &"queue-depth".into())
    );
    let path = &volume["paths"][0];
    assert_eq!(
        (&path["uri"], &path["state"]),
        (&"mem:64MiB".into(), &"live".into())
    );
    for group in ["read", "write", "other"] {
        assert!(path["groups"][group]["selections"].is_u64(), "{path}");
    }
    assert_eq!(engine.ask(&["check", "v0"]).status.code(), Some(0));
    assert_eq!(engine.ask(&["check", "v9"]).status.code(), Some(3));
    let subsystems = engine.json(&["list-subsys"]);
    assert!(subsystems[0]["HostNQN"].is_string() && subsystems[0]["Subsystems"].is_array());
    assert_eq!(
        engine
            .ask(&["policy", "set", "v0", "fastest"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        engine.json(&["policy", "set", "v0", "numa"])["policy"],
        "numa"
    );
    policies::every_one_can_be_set(&engine);
    engine.json(&["knob", "set", "v0", "ewma_shift", "5"]);
    let added = format!("nbd:unix:{}", engine.path("more.sock").display());
    engine.json(&["export", "add", "v0", &added]);
    assert!(UnixStream::connect(engine.path("more.sock")).is_ok());
    engine.json(&["export", "remove", "v0", &added]);
    assert!(!engine.path("more.sock").exists());
    assert_eq!(
        engine
            .ask(&["export", "remove", "v0", &added])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        engine
            .ask(&["path", "remove", "v0", "mem:64MiB"])
            .status
            .code(),
        Some(1)
    );
    // Ended by hand, to keep the directory.
    let mut engine = engine;
    engine.signal(rustix::process::Signal::TERM);
    assert!(engine.child.wait().unwrap().success());
    let directory = std::mem::replace(&mut engine.directory, tempfile::tempdir().unwrap());
    let engine = Engine::start(directory).unwrap();
    assert_eq!(engine.json(&["policy", "show", "v0"])["policy"], "numa");
    assert_eq!(engine.json(&["knob", "show", "v0"])["ewma_shift"], 5);
    engine.end();
}

#[test]
fn stat_says_what_waits_and_the_risk_of_immediate_failover() {
    let directory = tempfile::tempdir().unwrap();
    config(directory.path(), "");
    let file = directory.path().join("b.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("policy", "write_failover = \"immediate\"\npolicy");
    std::fs::write(&file, text).unwrap();
    let Some(engine) = Engine::start(directory) else {
        return;
    };
    let stat = engine.json(&["stat"]);
    let volume = &stat["volumes"][0];
    let (waiting, failover) = (&volume["waiting"], &volume["failover"]);
    assert_eq!(
        (&waiting["held"], &waiting["flushes"]),
        (&0.into(), &0.into())
    );
    assert_eq!(failover["write_failover"], "immediate");
    assert!(failover["risk"].is_string() && failover["flush_failed"].is_null());
    let shown = String::from_utf8(engine.ask(&["stat"]).stdout).unwrap();
    assert!(shown.contains("waiting: nothing"), "{shown}");
    assert!(
        shown.contains("risk: write_failover is immediate"),
        "{shown}"
    );
    engine.end();
}

#[test]
fn a_reload_is_all_or_nothing() {
    let Some(mut engine) = engine() else { return };
    let mut notes = BufReader::new(engine.child.stderr.take().unwrap());
    let mut reload = |more: &str| {
        config(engine.directory.path(), more);
        engine.signal(rustix::process::Signal::HUP);
        let mut lines = (&mut notes).lines().map(Result::unwrap);
        let is_it = |it: &String| it.contains("nothing was changed") || it.contains("reloaded:");
        lines.find(is_it).unwrap()
    };
    let export = format!(
        "[[volume.export]]\nnbd = \"unix:{}\"\n",
        engine.path("b.sock").display()
    );
    let bad = format!("{export}[[volume.export]]\nnbd = \"unix:/proc/no/such.sock\"\n");
    let line = reload(&bad);
    assert!(line.contains("nothing was changed"), "{line}");
    assert!(
        !engine.path("b.sock").exists(),
        "the good one went with the bad one"
    );
    let line = reload("[[volume.path]]\nuri = \"mem:1MiB\"\n");
    assert!(line.contains("nothing was changed"), "{line}");
    assert!(line.contains("is no other path's data"), "{line}");
    let line = reload(&export);
    assert!(line.contains("reloaded: added"), "{line}");
    assert!(engine.path("b.sock").exists());
    let line = reload("");
    assert!(line.contains("reloaded: removed"), "{line}");
    assert!(!engine.path("b.sock").exists());
    // The text behind it shows the place; more lines than one.
    let line = reload("polcy = 1\n");
    assert!(line.contains("nothing was changed"), "{line}");
    assert!(line.contains("at line 9, column 1"), "{line}");
    engine.end();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_export_is_added_for_whom_it_is_meant_in_either_spelling() {
    let Some(engine) = engine() else { return };
    let gid = rustix::process::getegid().as_raw().to_string();
    for (name, prefix) in [("a.sock", ""), ("b.sock", "nbd:")] {
        let path = engine.path(name);
        let export = format!("{prefix}unix:{}", path.display());
        let add = ["export", "add", "v0", &export, "--group", &gid];
        let added = engine.json(&[&add[..], &["--mode", "0660"]].concat());
        assert_eq!(mode(&path), 0o660);
        let shown = added["uri"].as_str().unwrap();
        let other = format!("unix:{}", path.display());
        let remove = if prefix.is_empty() { shown } else { &other };
        engine.json(&["export", "remove", "v0", remove]);
        assert!(!path.exists());
    }
    let unix = format!("unix:{}", engine.path("a.sock").display());
    for (words, code, part) in [
        (["v0", "tcp::0", "--mode", "0660"], 2, "a TCP port has none"),
        (["v0", "ublk:0", "--mode", "0660"], 2, "write unix:/path"),
        (["v0", &unix, "--mode", "0777"], 2, "octal"),
        (["v0", &unix, "--group", "no-such-group"], 1, "no group"),
    ] {
        let output = engine.ask(&[&["export", "add"][..], &words].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(part), "{error}");
        assert!(!engine.path("a.sock").exists());
    }
    engine.end();
}

/// R5: each has a port of its own, by which it is known.
#[test]
fn exports_with_port_0_are_told_apart_by_their_ports() {
    let Some(engine) = engine() else { return };
    let added = || engine.json(&["export", "add", "v0", "tcp::0"])["uri"].clone();
    let [first, second] = [added(), added()];
    assert_ne!(first, second);
    let listens = |uri: &serde_json::Value| {
        let address = uri.as_str().unwrap().strip_prefix("nbd://").unwrap();
        std::net::TcpStream::connect(address).is_ok()
    };
    assert!(listens(&first) && listens(&second));
    engine.json(&["export", "remove", "v0", first.as_str().unwrap()]);
    assert!(!listens(&first) && listens(&second));
    let address = second.to_string().replace("nbd://", "tcp:");
    engine.json(&["export", "remove", "v0", address.trim_matches('"')]);
    assert!(!listens(&second));
    engine.end();
}

#[test]
fn a_reload_changes_who_may_connect_and_nobody_is_disconnected_for_it() {
    let Some(engine) = engine() else { return };
    let reload = |more: &str| {
        config(engine.directory.path(), more);
        let output = engine.ask(&["reload"]);
        let text = if output.status.success() {
            output.stdout
        } else {
            output.stderr
        };
        String::from_utf8(text).unwrap()
    };
    let mut client = UnixStream::connect(engine.path("v0.sock")).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    // The keys behind the export are of it.
    let text = reload("mode = \"0666\"\n");
    assert!(text.starts_with("changed nbd+unix"), "{text}");
    assert_eq!(mode(&engine.path("v0.sock")), 0o666);
    let more = |name: &str, keys: &str| {
        let path = engine.path(name);
        format!(
            "[[volume.export]]\nnbd = \"nbd:unix:{}\"\n{keys}",
            path.display()
        )
    };
    let text = reload(&more("b.sock", "group = \"no-such-group\"\n"));
    assert!(text.contains("nothing was changed"), "{text}");
    assert_eq!(mode(&engine.path("v0.sock")), 0o666, "taken back");
    let text = reload("");
    assert!(text.starts_with("changed nbd+unix"), "{text}");
    assert_eq!(mode(&engine.path("v0.sock")), 0o600);
    // Still served: fixed newstyle, and an option that nobody knows.
    client.write_all(&1_u32.to_be_bytes()).unwrap();
    client.write_all(b"IHAVEOPT\0\0\x03\xe7\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 20]).unwrap();
    let text = reload("read_only = true\n");
    assert!(text.starts_with("changed nbd+unix"), "{text}");
    assert_eq!(client.read(&mut [0; 64]).unwrap_or(0), 0, "told to go");
    let stat = engine.json(&["stat"]);
    assert_eq!(stat["volumes"][0]["exports"][0]["read_only"], true);
    let mut again = UnixStream::connect(engine.path("v0.sock")).unwrap();
    again.read_exact(&mut [0; 18]).unwrap();
    engine.end();
}

#[test]
fn two_engines_on_one_socket_and_configurations_that_cannot_be() {
    let Some(engine) = engine() else { return };
    let start = || {
        let mut command = braid(engine.directory.path());
        command.args(["run", "-c"]).arg(engine.path("b.toml"));
        command
            .arg("--socket")
            .arg(engine.path("c.sock"))
            .output()
            .unwrap()
    };
    let output = start();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("another engine listens on"), "{error}");
    std::fs::write(engine.path("b.toml"), "[[volume]]\nnme = \"v0\"\n").unwrap();
    let output = start();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("line 2, column 1"), "{error}");
    engine.end();
}

/// Every line of a corpus of the parsers, to an engine that serves: an answer each, and it goes on.
#[test]
fn hostile_requests_are_answered_and_the_engine_goes_on() {
    let Some(engine) = engine() else { return };
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/run_control");
    let files = std::fs::read_dir(corpus).unwrap();
    let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let texts: Vec<String> = texts.collect();
    let (mut answered, notification) = (0, "{\"jsonrpc\":\"2.0\",\"method\":\"list\"}");
    for line in texts.iter().flat_map(|text| text.lines()) {
        let mut stream = UnixStream::connect(engine.path("c.sock")).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if line == notification {
            assert_eq!(answer, "");
            continue;
        }
        let answer: serde_json::Value = serde_json::from_str(&answer).expect(line);
        let message = answer["error"]["message"].as_str();
        let said = message.is_some_and(|message| !message.is_empty());
        assert!(said == answer["result"].is_null(), "{line}: {answer}");
        answered += 1;
    }
    assert!(answered > 20, "{answered}");
    let mut client = Bytes::open(&engine);
    client.request(1, 0, 4096, &[7; 4096]);
    assert_eq!(client.request(0, 0, 4096, &[]), [7; 4096]);
    assert_eq!(engine.json(&["list"])["volumes"][0]["name"], "v0");
    engine.end();
}

#[test]
fn without_volumes_or_with_boundless_buffers_nothing_is_started() {
    let directory = tempfile::tempdir().unwrap();
    let volume = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
    let buffers = format!("buffers = \"100TiB\"\n{volume}");
    for (text, wanted) in [
        (
            "",
            "there is no [[volume]]: write one with a name and a [[volume.path]]",
        ),
        (
            &buffers,
            "line 1, column 11: buffers must be 68 MiB to 8 GiB",
        ),
    ] {
        std::fs::write(directory.path().join("b.toml"), text).unwrap();
        let mut command = braid(directory.path());
        command
            .args(["run", "-c"])
            .arg(directory.path().join("b.toml"));
        let output = command.arg("--socket").arg(directory.path().join("c.sock"));
        let output = output.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(wanted), "{error}");
    }
}
