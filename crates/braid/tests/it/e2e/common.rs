//! Processes that end with their test, and what is asked of them.
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for anything that must happen: on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Subsystem of all targets here.
pub const NQN: &str = "nqn.2026-01.org.example:v0";
/// Keys of an engine that soon finds out what died; it holds writes for two such times and for
/// [`QUIESCED`].
pub const QUICK: &str = "io_timeout = \"2s\"\nconnect_timeout = \"1s\"\nkeep_alive_tmo = \"500ms\"";
/// Keys of a volume whose paths are equal, and whose targets die all at once.
pub const QUIESCED: &str = "policy = \"round-robin\"\nquiesce_time = \"500ms\"";

/// Tells why a test does not run; the harness does not capture this.
pub fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {reason}");
}

/// Whether all programs are there; if not, says so.
pub fn have(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| {
        let mut directories = std::env::split_paths(&path);
        directories.any(|directory| directory.join(program).is_file())
    };
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(missing) = missing {
        skip(test, &format!("{missing} is not installed"));
    }
    missing.is_none()
}

/// MiB of payload: few, or `BRAID_E2E_MIB`.
pub fn mib(few: u64) -> u64 {
    let asked = std::env::var("BRAID_E2E_MIB").ok();
    asked.map_or(few, |text| text.parse().unwrap())
}

/// Numbers that look random and are the same in every run.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..bytes.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(bytes).collect()
}

/// Waits until `is_so`; asks again and again, for as long as anything may take.
pub fn wait<T>(what: &str, mut is_so: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = is_so() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// A program that must succeed; what it printed.
pub fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    text(&output.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A child that is killed when this is dropped.
pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// As by `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `braid`, with a state of its own.
pub fn braid(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.env("XDG_STATE_HOME", directory.join("state"));
    command.env("XDG_RUNTIME_DIR", directory.join("run"));
    command
}

/// A verb that must succeed, and its answer.
fn ask(directory: &Path, socket: &Path, words: &[&str]) -> Value {
    let mut command = braid(directory);
    let command = command.args(words).args(["-o", "json", "--socket"]);
    let output = command.arg(socket).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A target process with one port.
pub struct Target {
    process: Process,
    directory: PathBuf,
    name: &'static str,
    /// Of its port, without the namespace.
    pub uri: String,
}

/// Properties of a target, besides its name.
pub struct Offer<'a> {
    /// First and last of its controller identifiers.
    pub cntlid: [u16; 2],
    /// Keys of the target.
    pub target: &'a str,
    /// Keys of its namespace.
    pub namespace: &'a str,
    /// Keys of its port.
    pub port: &'a str,
}

impl Target {
    /// Starts one on any free port.
    pub fn start(directory: &Path, name: &'static str, offer: &Offer) -> Self {
        let Offer {
            cntlid,
            target,
            namespace,
            port,
        } = offer;
        let text = format!(
            "nqn = \"{NQN}\"\ncntlid = {cntlid:?}\n{target}\n[[namespace]]\n{namespace}\n\
             [[port]]\nlisten = \"127.0.0.1:0\"\n{port}\n"
        );
        std::fs::write(directory.join(name).with_extension("toml"), text).unwrap();
        let (process, uri) = Self::process(directory, name);
        Self {
            process,
            directory: directory.into(),
            name,
            uri,
        }
    }

    /// One of two over the file `v0` of so many bytes; its hosts wait for their `quiesce_time`.
    pub fn of_file(directory: &Path, name: &'static str, cntlid: u16, bytes: u64) -> Self {
        let file = directory.join("v0");
        let namespace = format!("backend = \"file:{}\"\nsize = \"{bytes}\"", file.display());
        let offer = Offer {
            cntlid: [cntlid, cntlid + 99],
            target: "cqt = \"0\"",
            namespace: &namespace,
            port: "",
        };
        Self::start(directory, name, &offer)
    }

    fn process(directory: &Path, name: &str) -> (Process, String) {
        let mut command = braid(directory);
        command.args(["target", "-c"]);
        command.arg(directory.join(name).with_extension("toml"));
        command.arg("--socket").arg(directory.join(name));
        let log = directory.join(name).with_extension("log");
        command.stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log).unwrap());
        let mut process = Process::spawn(&mut command);
        let mut line = String::new();
        let out = process.child().stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let uri = line.split_whitespace().last().unwrap_or_else(|| {
            panic!("{name}: {}", std::fs::read_to_string(&log).unwrap());
        });
        let uri = uri.to_owned();
        (process, uri)
    }

    /// As by `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Again on the port where it was.
    pub fn restart(&mut self) {
        let address = self.uri.split('/').nth(2).unwrap();
        let file = self.directory.join(self.name).with_extension("toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("127.0.0.1:0", address)).unwrap();
        let (process, uri) = Self::process(&self.directory, self.name);
        assert_eq!(uri, self.uri);
        self.process = process;
    }

    /// Changes its port.
    pub fn set(&self, settings: &[&str]) {
        let mut command = braid(&self.directory);
        command
            .args(["target", "set", "--port", "1"])
            .args(settings);
        command.arg("--socket").arg(self.directory.join(self.name));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Its port in `stat`.
    pub fn port(&self) -> Value {
        let socket = self.directory.join(self.name);
        ask(&self.directory, &socket, &["target", "show"])["ports"][0].take()
    }
}

/// A running engine with a volume `v0`, exported at `v0.sock`.
pub struct Engine {
    process: Process,
    directory: PathBuf,
}

impl Drop for Engine {
    /// A test that fails shows what the engine had said.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the engine said: {}", self.log());
        }
    }
}

impl Engine {
    /// Starts one over these paths and waits until `v0` is ready. `keys`: of the engine; `volume`:
    /// of the volume.
    pub fn start(directory: &Path, keys: &str, volume: &str, paths: &[&str]) -> Self {
        let engine = Self::unready(directory, keys, volume, paths);
        let log = directory.join("engine.out");
        wait("the volume becomes ready", || {
            let text = std::fs::read_to_string(&log).unwrap();
            text.contains("v0: ready").then_some(())
        });
        engine
    }

    /// Starts one and waits until it can be asked.
    pub fn unready(directory: &Path, keys: &str, volume: &str, paths: &[&str]) -> Self {
        write_config(directory, keys, volume, paths);
        let mut command = braid(directory);
        command.args(["run", "-c"]).arg(directory.join("b.toml"));
        command.arg("--socket").arg(directory.join("c.sock"));
        for (name, to_stderr) in [("engine.out", false), ("engine.log", true)] {
            let file = std::fs::File::create(directory.join(name)).unwrap();
            match to_stderr {
                false => command.stdout(file),
                true => command.stderr(file),
            };
        }
        let mut process = Process::spawn(&mut command);
        wait("the engine can be asked", || {
            let ended = process.child().try_wait().unwrap();
            let log = std::fs::read_to_string(directory.join("engine.log")).unwrap();
            assert!(ended.is_none(), "{log}");
            directory.join("v0.sock").exists().then_some(())
        });
        Self {
            process,
            directory: directory.into(),
        }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        self.process.signal(signal);
    }

    /// How nbdcopy, qemu-img and fio name the export.
    pub fn uri(&self) -> String {
        let socket = self.directory.join("v0.sock");
        format!("nbd+unix:///?socket={}", socket.display())
    }

    pub fn json(&self, words: &[&str]) -> Value {
        ask(&self.directory, &self.directory.join("c.sock"), words)
    }

    pub fn output(&self, words: &[&str]) -> Output {
        let mut command = braid(&self.directory);
        let command = command.args(words).arg("--socket");
        command.arg(self.directory.join("c.sock")).output().unwrap()
    }

    /// Text of a verb for people.
    pub fn text(&self, words: &[&str]) -> String {
        text(&self.output(words).stdout)
    }

    /// The volume in `stat`.
    pub fn stat(&self) -> Value {
        self.json(&["stat"])["volumes"][0].take()
    }

    /// Waits until this path is in that state.
    pub fn wait_path(&self, path: usize, state: &str) {
        wait(&format!("path {path} becomes {state}"), || {
            (self.stat()["paths"][path]["state"] == state).then_some(())
        });
    }

    /// Waits until this path is not live any more.
    pub fn wait_lost(&self, path: usize) {
        wait(&format!("path {path} is lost"), || {
            (self.stat()["paths"][path]["state"] != "live").then_some(())
        });
    }

    /// Waits until I/O is under way on this path.
    pub fn wait_inflight(&self, path: usize) {
        wait("I/O is under way", || {
            let stat = self.stat();
            (stat["paths"][path]["inflight"].as_u64()? > 0).then_some(())
        });
    }

    /// Its standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("engine.log")).unwrap()
    }

    /// SIGTERM, and its end.
    pub fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.process.child().wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }
}

/// `b.toml`: one volume, exported.
pub fn write_config(directory: &Path, keys: &str, volume: &str, paths: &[&str]) {
    let socket = directory.join("v0.sock");
    let mut text = format!(
        "{keys}\n[[volume]]\nname = \"v0\"\n{volume}\n[[volume.export]]\nnbd = \"unix:{}\"\n",
        socket.display()
    );
    for path in paths {
        text.push_str(&format!("[[volume.path]]\nuri = \"{path}\"\n"));
    }
    std::fs::write(directory.join("b.toml"), text).unwrap();
}
