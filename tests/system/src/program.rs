//! The braid program as a measured process: a target that runs beside, and one bench after the
//! other.
use crate::process::Group;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longest wait for a target to listen.
const READY: Duration = Duration::from_secs(20);
/// Tells targets of this process apart.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// How an end waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// As it does by default: it polls while that pays.
    Adaptive,
    /// It never sleeps.
    Spinning,
    /// It never polls.
    Sleeping,
}

impl Waits {
    /// Options of `braid target` and `braid bench`.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Adaptive => &[],
            Self::Spinning => &["--spin"],
            Self::Sleeping => &["--poll=never"],
        }
    }

    /// Keys of a configuration.
    pub fn keys(self) -> &'static str {
        match self {
            Self::Adaptive => "",
            Self::Spinning => "spin = true",
            Self::Sleeping => "poll = \"never\"",
        }
    }
}

/// A target on loopback; ended when dropped.
pub struct Target {
    group: Group,
    socket: PathBuf,
    /// Where each port is reached, with namespace.
    pub uris: Vec<String>,
}

impl Target {
    /// Starts `braid target` with so many ports over a null namespace.
    pub fn start(braid: &Path, ports: usize, cpu: Option<usize>, waits: Waits) -> Result<Self> {
        Self::start_shaped(braid, ports, cpu, waits, "")
    }

    /// The same, each port with such options (`delay=1ms,…`).
    pub fn start_shaped(
        braid: &Path,
        ports: usize,
        cpu: Option<usize>,
        waits: Waits,
        port: &str,
    ) -> Result<Self> {
        let mut command = Command::new(braid);
        command.args(["target", "--null", "1TiB"]);
        for _ in 0..ports {
            let comma = if port.is_empty() { "" } else { "," };
            command.args(["--listen", &format!("127.0.0.1:0{comma}{port}")]);
        }
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        command.args(waits.flags());
        Self::spawn(command, ports)
    }

    /// Starts `braid target` with one port of such a shape (`delay=1ms,…`) over a namespace with
    /// blocks of 512 B. Its configuration is kept in `directory`.
    pub fn start_backend(
        braid: &Path,
        directory: &Path,
        backend: &str,
        shape: &str,
    ) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let config = directory.join(format!("target-{number}.toml"));
        let mut text = format!(
            "nqn = \"nqn.2026-01.org.example:bench-{number}\"\n\
             [[namespace]]\nbackend = \"{backend}\"\nblock_size = 512\n\
             [[port]]\nlisten = \"127.0.0.1:0\"\n"
        );
        for (key, value) in shape.split(',').filter_map(|word| word.split_once('=')) {
            let quote = if value.parse::<u64>().is_ok() {
                ""
            } else {
                "\""
            };
            writeln!(text, "{key} = {quote}{value}{quote}")?;
        }
        std::fs::write(&config, text)?;
        let mut command = Command::new(braid);
        command.args(["target", "-c"]).arg(config);
        Self::spawn(command, 1)
    }

    /// Waits until it has named its ports.
    fn spawn(mut command: Command, ports: usize) -> Result<Self> {
        // A control socket of its own: another target may run on this machine.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("braid-bench-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        command.arg("--socket").arg(&socket);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut group = Group::spawn(&mut command)?;
        let (sender, lines) = mpsc::channel();
        let child = group.child();
        forward(
            child.stdout.take().context("no pipe from the target")?,
            sender.clone(),
        );
        forward(
            child.stderr.take().context("no pipe from the target")?,
            sender,
        );
        let mut target = Self {
            group,
            socket,
            uris: Vec::new(),
        };
        let mut last = String::new();
        while target.uris.len() < ports {
            let line = lines.recv_timeout(READY);
            last =
                line.with_context(|| format!("the target named too few URIs; it said: {last}"))?;
            let word = last
                .split_whitespace()
                .find(|word| word.starts_with("nvme-tcp://"));
            target.uris.extend(word.map(str::to_owned));
        }
        Ok(target)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.group.id()
    }
}

/// Passes on lines for as long as somebody listens, then drops them, so that nobody waits for a
/// full pipe.
fn forward(output: impl Read + Send + 'static, lines: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
}

impl Drop for Target {
    fn drop(&mut self) {
        // It is killed, and so can't clean up itself.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Builds one program in release and returns its path, as cargo reports it.
///
/// `--bin` without `-p` selects features as `cargo build --release` does, so that what it compiled
/// is used again.
pub fn build(root: &Path, which: &[&str]) -> Result<PathBuf> {
    build_in(root, "release", which)
}

/// Builds one program as it is installed, with link-time optimisation, and returns its path.
pub fn build_dist(root: &Path, which: &[&str]) -> Result<PathBuf> {
    build_in(root, "dist", which)
}

fn build_in(root: &Path, profile: &str, which: &[&str]) -> Result<PathBuf> {
    let output = Command::new("cargo")
        .args([
            "build",
            "--profile",
            profile,
            "--quiet",
            "--message-format=json-render-diagnostics",
        ])
        .args(which)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    ensure!(
        output.status.success(),
        "cargo build --profile {profile} {} failed",
        which.join(" ")
    );
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut program = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    });
    program
        .next_back()
        .with_context(|| format!("cargo build {} made no program", which.join(" ")))
}

/// Runs `command` (a `braid … -o json`) to its end and reads the facts that it prints.
pub fn facts(command: &mut Command) -> Result<Value> {
    let text = printed(command)?;
    let line = text.lines().rev().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("{command:?} printed no JSON object:\n{text}"))?;
    serde_json::from_str(line).with_context(|| format!("{command:?} printed no JSON:\n{text}"))
}

/// Runs `command` to its end; what it prints.
pub fn printed(command: &mut Command) -> Result<String> {
    let said = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {said}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{said}: {}: {}",
        output.status,
        errors.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A number among facts, by key.
pub fn number(facts: &Value, key: &str) -> Result<f64> {
    facts
        .get(key)
        .and_then(Value::as_f64)
        .with_context(|| format!("no number {key:?} in {facts}"))
}

/// The median; of an even count the upper of the middle two.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The least and the greatest.
pub fn range(figures: &[f64]) -> [f64; 2] {
    let figures = || figures.iter().copied();
    [
        figures().fold(f64::NAN, f64::min),
        figures().fold(f64::NAN, f64::max),
    ]
}

#[cfg(test)]
mod tests {
    use super::{facts, median, number, range};
    use std::process::Command;

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(range(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
        assert_eq!(median(vec![7.0]), 7.0);
    }

    #[test]
    fn facts_come_from_the_last_object_and_failures_say_why() {
        let shell = |script: &str| facts(Command::new("sh").args(["-c", script]));
        let read = shell("echo words; echo '{\"iops\": 2.5}'").unwrap();
        assert_eq!(number(&read, "iops").unwrap(), 2.5);
        assert!(number(&read, "mib_s").is_err());
        assert!(shell("echo words").is_err());
        assert!(
            shell("echo refused >&2; exit 1")
                .unwrap_err()
                .to_string()
                .contains("refused")
        );
    }
}
