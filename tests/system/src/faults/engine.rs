//! The engine under test: `braid run` with a volume `v0` over all ways.
use super::net::Net;
use super::stop;
use super::target::{READY, call, own_state};
use crate::process::Group;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Its keys.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Of the engine.
    pub engine: &'a str,
    /// Of the volume.
    pub volume: &'a str,
}

/// Where a fault is found out, and what it leads to, within seconds.
pub const SHORT: Keys = Keys {
    engine: "keep_alive_tmo = \"500ms\"\nio_timeout = \"2s\"\nconnect_timeout = \"1s\"\n\
             drain_timeout = \"5s\"",
    volume: "policy = \"round-robin\"\nquiesce_time = \"500ms\"\n\
             reconnect_delay = \"500ms\"",
};

/// As one who sets nothing has it.
pub const DEFAULTS: Keys = Keys {
    engine: "",
    volume: "policy = \"round-robin\"",
};

impl Keys<'_> {
    /// On one line.
    pub fn words(&self) -> String {
        let lines = self.engine.lines().chain(self.volume.lines());
        let words: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        words.join(", ")
    }
}

/// A running one.
pub struct Engine {
    process: Group,
    directory: PathBuf,
    socket: PathBuf,
}

impl Engine {
    /// Starts one and waits until it can be asked.
    ///
    /// # Errors
    /// It ended, with what it said.
    pub fn start(
        program: &Path,
        directory: &Path,
        net: &Net,
        keys: Keys,
        uris: &[String],
    ) -> Result<Self> {
        let text = Self::configuration(directory, keys, uris);
        Self::start_as(program, directory, net, &text)
    }

    /// The configuration of a volume `v0` over these paths.
    pub fn configuration(directory: &Path, keys: Keys, uris: &[String]) -> String {
        let mut text = format!(
            "{}\n[[volume]]\nname = \"v0\"\n{}\n[[volume.export]]\nnbd = \"unix:{}\"\n",
            keys.engine,
            keys.volume,
            directory.join("v0.sock").display()
        );
        for uri in uris {
            text.push_str(&format!("[[volume.path]]\nuri = \"{uri}\"\n"));
        }
        text
    }

    /// The same, of this configuration.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_as(program: &Path, directory: &Path, net: &Net, text: &str) -> Result<Self> {
        let socket = directory.join("engine.sock");
        Self::start_on(program, directory, net, text, &socket)
    }

    /// The same, with this control socket.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_on(
        program: &Path,
        directory: &Path,
        net: &Net,
        text: &str,
        socket: &Path,
    ) -> Result<Self> {
        std::fs::write(directory.join("engine.toml"), text)?;
        let mut command = net.command(0, program);
        own_state(&mut command, directory);
        command
            .args(["run", "-c"])
            .arg(directory.join("engine.toml"));
        command.arg("--socket").arg(socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(directory.join("engine.log"))?);
        let mut engine = Self {
            process: Group::spawn(&mut command)?,
            directory: directory.into(),
            socket: socket.into(),
        };
        stop::wait("the engine can be asked", READY, || {
            if let Some(status) = engine.process.child().try_wait()? {
                bail!("braid run: {status}: {}", engine.log().trim());
            }
            Ok(engine.stat().ok())
        })?;
        Ok(engine)
    }

    /// The socket of its export.
    pub fn export(&self) -> PathBuf {
        self.directory.join("v0.sock")
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The volume in `stat`.
    ///
    /// # Errors
    /// It doesn't answer.
    pub fn stat(&self) -> Result<Value> {
        stat(&self.socket())
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("engine.log")).unwrap_or_default()
    }

    /// Waits until all paths are live or on probation, and nothing is held or waits for a path.
    ///
    /// # Errors
    /// Not within `limit`: with what `stat` says.
    pub fn wait_whole(&self, limit: Duration) -> Result<()> {
        let mut last = Value::Null;
        let waited = stop::wait("all paths are there again", limit, || {
            last = self.stat()?;
            Ok(is_whole(&last).then_some(()))
        });
        waited.with_context(|| format!("the volume: {last}"))
    }

    /// Waits until so many paths are live.
    ///
    /// # Errors
    /// Not within `limit`.
    pub fn wait_live(&self, count: usize, limit: Duration) -> Result<()> {
        stop::wait(&format!("{count} paths are live"), limit, || {
            Ok((live(&self.stat()?) == count).then_some(()))
        })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// It isn't there.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.process.id() as i32).context("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// As by `kill -9`: when this returns, it is gone.
    pub fn kill(self) {}

    /// SIGTERM: its exit code, and how long that took; `None`: it had to be killed after `limit`.
    ///
    /// # Errors
    /// It can't be waited for.
    pub fn end(mut self, limit: Duration) -> Result<Option<(i32, Duration)>> {
        let begun = Instant::now();
        self.signal(Signal::TERM)?;
        while begun.elapsed() < limit {
            if let Some(status) = self.process.child().try_wait()? {
                return Ok(Some((status.code().unwrap_or(-1), begun.elapsed())));
            }
            stop::pause(Duration::from_millis(5))?;
        }
        Ok(None)
    }
}

/// The volume in `stat` of the engine behind a control socket.
///
/// # Errors
/// It doesn't answer.
pub fn stat(socket: &Path) -> Result<Value> {
    Ok(call(socket, "stat", &json!({}))?["volumes"][0].take())
}

/// How many paths are live.
pub fn live(stat: &Value) -> usize {
    let paths = stat["paths"].as_array().into_iter().flatten();
    paths.filter(|path| path["state"] == "live").count()
}

fn is_whole(stat: &Value) -> bool {
    let paths = stat["paths"].as_array();
    // Faults that come every few seconds put all paths on probation for ever longer; such a one
    // is there, and carries I/O when no other is.
    let usable = |path: &Value| match path["state"].as_str() {
        Some("live") => path["hindrance"].is_null(),
        state => state == Some("probation"),
    };
    let waiting = &stat["waiting"];
    let none = |key: &str| waiting[key].as_u64() == Some(0);
    paths.is_some_and(|it| it.iter().all(usable)) && none("held") && none("queued")
}
