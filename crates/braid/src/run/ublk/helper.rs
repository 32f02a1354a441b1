//! Short-lived children that do to a node what may wait for its I/O.
//!
//! # Contract
//! A write to `queue/` of a block device waits until its I/O in flight has ended, so does a stop of
//! its device, and an open may: for ever, where that I/O can't end. A thread of the engine that
//! waited there could not be killed, would keep the device open, and no other engine could serve
//! what it waits for. So a child process does it, started anew from the same program: it has no
//! descriptor and no memory of the engine. It is never waited for without a bound, and never
//! killed.
use super::holders;

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use sys::ublk::{Control, node_path};

/// Name of the verb that starts the child's part.
const VERB: &str = "ublk-helper";
/// How often a child is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(5);
/// Programs that open a node for a moment (udev does, after each change) have so long.
const MOMENT: Duration = Duration::from_secs(2);

/// The child's part (not for users)
#[derive(Clone, Debug, Args)]
pub struct HelperArgs {
    #[command(subcommand)]
    does: Helper,
}

#[derive(Clone, Debug, Subcommand)]
enum Helper {
    /// Lower settings of a node's queue, and see that they are in force
    Settings {
        /// Number of the node
        id: u32,
        /// Requests in flight, at most
        requests: u32,
        /// Milliseconds after which the driver looks at one
        timeout_ms: u32,
    },
    /// See that nothing uses a node
    Unused {
        /// Number of the node
        id: u32,
    },
    /// Stop and remove a device that nothing uses
    Remove {
        /// Number of the node
        id: u32,
        /// The mark that it has
        mark: u64,
        /// Also one that is used
        #[arg(long)]
        force: bool,
    },
}

/// Does the child's part.
///
/// # Errors
/// Why it can't be done.
pub fn run(args: &HelperArgs) -> anyhow::Result<()> {
    match args.does {
        Helper::Settings {
            id,
            requests,
            timeout_ms,
        } => {
            let queue = format!("/sys/block/ublkb{id}/queue");
            lower(&format!("{queue}/nr_requests"), requests)?;
            lower(&format!("{queue}/io_timeout"), timeout_ms)
        }
        Helper::Unused { id } => unused(id).map(drop),
        Helper::Remove { id, mark, force } => remove(id, mark, force),
    }
}

/// A setting is at most this much.
///
/// # Errors
/// It is not in force.
fn lower(file: &str, limit: u32) -> anyhow::Result<()> {
    let now = || {
        let text = fs::read_to_string(file).with_context(|| file.to_owned())?;
        let number = text.trim().parse::<u32>();
        number.with_context(|| format!("{file} is {}", text.trim()))
    };
    if now()? <= limit {
        return Ok(());
    }
    let written = fs::write(file, limit.to_string());
    written.with_context(|| format!("{file}: {limit} can't be set"))?;
    let now = now()?;
    ensure!(now <= limit, "{file} is {now} after {limit} was set");
    Ok(())
}

/// # Errors
/// It is used, or another device has the number.
fn remove(id: u32, mark: u64, force: bool) -> anyhow::Result<()> {
    let path = node_path(id);
    // Held until the device is stopped: it can't be mounted meanwhile.
    let held = match force {
        true => None,
        false => Some(unused(id)?),
    };
    let mut control = Control::open().map_err(|why| anyhow!("{why}"))?;
    let info = control.info(id).with_context(|| path.clone())?;
    ensure!(info.server_flags == mark, "{path} is another one by now");
    let stopped = control.stop(id);
    stopped.with_context(|| format!("{path}: cannot be stopped"))?;
    drop(held);
    let deleted = control.delete(id);
    deleted.with_context(|| format!("{path}: cannot be removed"))
}

/// A node that nothing uses, opened so that nothing else can have it for its own.
///
/// # Errors
/// Its users.
fn unused(id: u32) -> anyhow::Result<fs::File> {
    let path = node_path(id);
    let begun = Instant::now();
    loop {
        let held = holders::claim(id);
        let mut users = holders::at_once(id);
        if users.is_empty() {
            users.extend(held.as_ref().err().cloned());
        }
        let is_kept = !users.is_empty();
        users.extend(holders::processes(&path));
        match held {
            Ok(held) if users.is_empty() => return Ok(held),
            _ if !is_kept && begun.elapsed() < MOMENT => std::thread::sleep(MOMENT / 20),
            _ => bail!(
                "{path} is used ({}), and what is not written yet would be lost: unmount it first",
                users.join(", ")
            ),
        }
    }
}

/// A child that was started.
pub struct Started {
    child: Child,
    at: Instant,
}

impl Started {
    /// Lowers settings of a node's queue.
    ///
    /// # Errors
    /// No process can be started.
    pub fn settings(id: u32, requests: u32, timeout_ms: u32) -> Result<Self, String> {
        let [id, requests, timeout] = [id, requests, timeout_ms].map(|it| it.to_string());
        Self::start(&["settings", &id, &requests, &timeout])
    }

    /// Sees that nothing uses a node.
    ///
    /// # Errors
    /// No process can be started.
    pub fn unused(id: u32) -> Result<Self, String> {
        Self::start(&["unused", &id.to_string()])
    }

    /// Stops and removes the device of this mark.
    ///
    /// # Errors
    /// No process can be started.
    pub fn remove(id: u32, mark: u64, force: bool) -> Result<Self, String> {
        let [id, mark] = [id.to_string(), mark.to_string()];
        let mut words = vec!["remove", &id, &mark];
        words.extend(force.then_some("--force"));
        Self::start(&words)
    }

    fn start(words: &[&str]) -> Result<Self, String> {
        // By this name also where the file was replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg(VERB).args(words);
        Self::spawn(&mut command)
    }

    /// Starts any child.
    ///
    /// # Errors
    /// As above.
    pub(super) fn spawn(command: &mut Command) -> Result<Self, String> {
        // A group of its own: a key that interrupts the engine does not end it.
        let command = command.process_group(0);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::piped()).spawn();
        Ok(Self {
            child: child.map_err(|error| format!("cannot start a process: {error}"))?,
            at: Instant::now(),
        })
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// How it ended; `None`: it has not.
    pub fn ended(&mut self) -> Option<Result<(), String>> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => {
                let mut text = String::new();
                let said = self.child.stderr.take();
                // One line, which the pipe holds.
                let _ = said.map(|it| it.take(4096).read_to_string(&mut text));
                let text = text.trim().trim_start_matches("braid: ");
                Some(Err(match text.is_empty() {
                    true => status.to_string(),
                    false => text.to_owned(),
                }))
            }
            Err(error) => Some(Err(error.to_string())),
        }
    }

    /// The same, once it has ended or this time is over.
    pub fn wait(&mut self, bound: Duration) -> Option<Result<(), String>> {
        let begun = Instant::now();
        loop {
            let ended = self.ended();
            if ended.is_some() || begun.elapsed() >= bound {
                return ended;
            }
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_lowered_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("nr_requests");
        let path = file.to_str().unwrap();
        assert!(lower(path, 7).is_err(), "not there");
        for (before, after) in [("9\n", "7"), ("7\n", "7\n"), ("3\n", "3\n")] {
            fs::write(&file, before).unwrap();
            lower(path, 7).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
        fs::write(&file, "none\n").unwrap();
        assert!(lower(path, 7).is_err());
        // A file that takes 0 and is what it was: that is no success.
        let why = lower("/proc/self/timerslack_ns", 0).unwrap_err();
        assert!(why.to_string().contains("after 0 was set"), "{why:#}");
    }

    #[test]
    fn child_that_does_not_end_is_not_waited_for() {
        let mut it = Started::spawn(Command::new("sleep").arg("1000")).unwrap();
        assert!(it.wait(Duration::from_millis(20)).is_none());
        it.child.kill().unwrap();
        assert!(matches!(it.wait(Duration::from_secs(60)), Some(Err(_))));
    }

    #[test]
    fn error_of_a_child_is_reported() {
        let mut command = Command::new("sh");
        let said = "echo 'braid: /dev/ublkb0 is used' >&2; exit 1";
        let mut it = Started::spawn(command.args(["-c", said])).unwrap();
        let ended = it.wait(Duration::from_secs(60));
        assert_eq!(ended, Some(Err("/dev/ublkb0 is used".to_owned())));
        let mut it = Started::spawn(Command::new("true").arg("")).unwrap();
        assert_eq!(it.wait(Duration::from_secs(60)), Some(Ok(())));
    }
}
