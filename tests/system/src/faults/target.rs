//! A target process with one port, behind one of the ways.
use super::net::Net;
use super::stop;
use crate::process::Group;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Subsystem of all targets here.
const NQN: &str = "nqn.2026-01.org.example:faults";
/// Longest wait for a process to be there, or to answer.
pub const READY: Duration = Duration::from_secs(30);

/// Properties of a target, besides its way.
#[derive(Clone, Copy, Default)]
pub struct Offer<'a> {
    /// Its namespace.
    pub backend: &'a str,
    /// Of the namespace.
    pub size: &'a str,
    /// Further keys of the target; without `cqt` it reports none, so that the engine's own
    /// `quiesce_time` counts.
    pub keys: &'a str,
    /// Further keys of the namespace.
    pub namespace: &'a str,
    /// Behind the subsystem's name, where targets don't offer the same.
    pub name: &'a str,
}

/// One target.
pub struct Target {
    process: Option<Group>,
    program: PathBuf,
    config: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    end: usize,
    /// Of its namespace.
    pub uri: String,
}

impl Target {
    /// Starts one.
    ///
    /// # Errors
    /// It doesn't listen.
    pub fn start(
        program: &Path,
        directory: &Path,
        net: &Net,
        way: usize,
        offer: Offer,
    ) -> Result<Self> {
        let file = |ending: &str| directory.join(format!("target{way}.{ending}"));
        let address = net.address(way);
        let first = 1 + 1000 * way;
        let cqt = if offer.keys.contains("cqt") {
            ""
        } else {
            "cqt = \"0\""
        };
        let text = format!(
            "nqn = \"{NQN}{}\"\ncntlid = [{first}, {}]\nopen = true\n{cqt}\n{}\n\
             [[namespace]]\nbackend = \"{}\"\n\
             size = \"{}\"\n{}\n[[port]]\nlisten = \"{address}\"\n",
            offer.name,
            first + 999,
            offer.keys,
            offer.backend,
            offer.size,
            offer.namespace,
        );
        std::fs::write(file("toml"), text)?;
        let mut target = Self {
            process: None,
            program: program.into(),
            config: file("toml"),
            socket: file("sock"),
            log: file("log"),
            end: way + 1,
            uri: format!("nvme-tcp://{address}/{NQN}{}", offer.name),
        };
        target.restart(net)?;
        Ok(target)
    }

    /// Starts it (again).
    ///
    /// # Errors
    /// It doesn't listen.
    pub fn restart(&mut self, net: &Net) -> Result<()> {
        let mut command = net.command(self.end, &self.program);
        command.args(["target", "-c"]).arg(&self.config);
        command.arg("--socket").arg(&self.socket);
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.process = Some(Group::spawn(command.stderr(log))?);
        stop::wait("a target listens", READY, || {
            if let Some(process) = &mut self.process
                && let Some(status) = process.child().try_wait()?
            {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("braid target: {status}: {}", said.trim());
            }
            Ok(self.show().ok())
        })?;
        Ok(())
    }

    /// Whether it was started, and not killed since.
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// As by `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// It isn't there.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// It isn't there.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether it stands still.
    ///
    /// # Errors
    /// It isn't there.
    pub fn is_stopped(&self) -> Result<bool> {
        let process = self.process.as_ref().context("the target isn't there")?;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
        // Behind the name, which may have anything in it.
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        Ok(state.is_some_and(|rest| rest.starts_with('T')))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("the target isn't there")?;
        let pid = Pid::from_raw(process.id() as i32).context("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Changes its port: `KEY=VALUE`.
    ///
    /// # Errors
    /// It says why not.
    pub fn set(&self, settings: &[&str]) -> Result<()> {
        let words = settings.iter().filter_map(|it| it.split_once('='));
        let settings: Map<String, Value> = words
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        let params = json!({"port": 1, "settings": settings});
        call(&self.socket, "target.set", &params).map(|_| ())
    }

    /// Resets all of its connections.
    ///
    /// # Errors
    /// It says why not.
    pub fn drop_connections(&self) -> Result<()> {
        call(&self.socket, "target.drop", &json!({"port": 1})).map(|_| ())
    }

    /// How often its port has injected a fault of a kind.
    ///
    /// # Errors
    /// It doesn't answer.
    pub fn injected(&self, kind: &str) -> Result<u64> {
        let shown = self.show()?;
        let count = &shown["ports"][0]["faults"]["injected"][kind];
        count
            .as_u64()
            .with_context(|| format!("no {kind} in {shown}"))
    }

    /// I/O commands that its port has served.
    ///
    /// # Errors
    /// It doesn't answer.
    pub fn commands(&self) -> Result<u64> {
        let shown = self.show()?;
        let count = shown["ports"][0]["commands"].as_u64();
        count.with_context(|| format!("no commands in {shown}"))
    }

    fn show(&self) -> Result<Value> {
        call(&self.socket, "target.show", &json!({}))
    }
}

/// Asks a control socket.
///
/// # Errors
/// Nobody answers, or the answer is why not.
pub fn call(socket: &Path, method: &str, params: &Value) -> Result<Value> {
    call_within(socket, method, params, READY)
}

/// The same, with this limit.
///
/// # Errors
/// As of [`call`].
pub fn call_within(socket: &Path, method: &str, params: &Value, limit: Duration) -> Result<Value> {
    let stream = ask(socket, method, params)?;
    stream.set_read_timeout(Some(limit))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let mut answer: Value = serde_json::from_str(&line)?;
    if let Some(message) = answer.pointer("/error/message") {
        bail!("{method}: {message}");
    }
    Ok(answer["result"].take())
}

/// Asks and does not wait; the answer comes from the connection.
fn ask(socket: &Path, method: &str, params: &Value) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(READY))?;
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    match stream.write_all(format!("{request}\n").as_bytes()) {
        // A server that turns us away has said why and closed.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(stream),
        written => Ok(written.map(|()| stream)?),
    }
}

/// `program` with files of its own.
pub fn own_state(command: &mut Command, directory: &Path) {
    command.env("XDG_STATE_HOME", directory.join("state"));
    command.env("XDG_RUNTIME_DIR", directory.join("run"));
}
