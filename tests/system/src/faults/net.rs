//! The ways between engine and targets: network namespaces with a veth pair each, or loopback.
//!
//! # Contract
//! Every interface lies inside namespaces made here; those of the machine are never touched. All of
//! it goes when this is dropped; what a run that was killed has left goes when the next one begins.
//!
//! # Limits
//! Namespaces need root and iproute2. On loopback a network can't be cut or narrowed, and a
//! connection can be reset by the target only.
use crate::process::is_installed;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "braid-f";
const PORT: u16 = 4420;

/// Loopback installations of this process.
static INSTALLATIONS: AtomicU32 = AtomicU32::new(0);

/// So many ways.
pub struct Net {
    /// Empty: loopback.
    namespaces: Vec<String>,
    /// Of each way, on loopback.
    addresses: Vec<SocketAddrV4>,
}

impl Net {
    /// Why namespaces can't be had here; `None`: they can.
    pub fn hindrance() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("network namespaces need root");
        }
        let missing = ["ip", "tc", "ss"].into_iter().find(|it| !is_installed(it));
        if missing.is_some() {
            return Some("network namespaces need ip, tc and ss (iproute2)");
        }
        let name = format!("{PREFIX}{}-try", std::process::id());
        if run("ip", &["netns", "add", &name]).is_err() {
            return Some("this machine makes no network namespaces");
        }
        let _ = run("ip", &["netns", "del", &name]);
        None
    }

    /// Namespaces, or loopback.
    ///
    /// # Errors
    /// A command failed.
    pub fn make(ways: usize, namespaces: bool) -> Result<Self> {
        let mut net = Self {
            namespaces: Vec::new(),
            addresses: Vec::new(),
        };
        if !namespaces {
            let number = INSTALLATIONS.fetch_add(1, Ordering::Relaxed);
            let ip = loopback(std::process::id(), number);
            // All are held until each has one: no two have the same.
            let free = (0..ways).map(|_| TcpListener::bind((ip, 0)));
            let free = free.collect::<Result<Vec<_>, _>>()?;
            for port in free.iter().map(TcpListener::local_addr) {
                net.addresses.push(SocketAddrV4::new(ip, port?.port()));
            }
            return Ok(net);
        }
        sweep();
        for end in 0..=ways {
            let name = format!("{PREFIX}{}-{end}", std::process::id());
            run("ip", &["netns", "add", &name])?;
            net.namespaces.push(name);
            net.ip(end, &["link", "set", "lo", "up"])?;
        }
        for way in 0..ways {
            net.lay(way)?;
        }
        Ok(net)
    }

    /// A pair between the engine's namespace and a target's.
    fn lay(&self, way: usize) -> Result<()> {
        let (ours, theirs) = (format!("way{way}"), &self.namespaces[way + 1]);
        let words = ["link", "add", &ours, "type", "veth"];
        let peer = ["peer", "name", "way", "netns", theirs];
        self.ip(0, &[&words[..], &peer].concat())?;
        let address = |end: u8| format!("10.231.{way}.{end}/24");
        self.ip(0, &["addr", "add", &address(1), "dev", &ours])?;
        self.ip(way + 1, &["addr", "add", &address(2), "dev", "way"])?;
        self.ip(0, &["link", "set", &ours, "up"])?;
        self.ip(way + 1, &["link", "set", "way", "up"])
    }

    /// Whether a network can be cut and narrowed.
    pub fn is_real(&self) -> bool {
        !self.namespaces.is_empty()
    }

    /// Where the target of a way listens.
    pub fn address(&self, way: usize) -> String {
        match self.addresses.get(way) {
            Some(address) => address.to_string(),
            None => format!("10.231.{way}.2:{PORT}"),
        }
    }

    /// `program` as one of the engine's end (0), or of the target of way `end` − 1.
    pub fn command(&self, end: usize, program: impl AsRef<OsStr>) -> Command {
        let Some(namespace) = self.namespaces.get(end) else {
            return Command::new(program);
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        command
    }

    /// Pulls the cable of a way.
    ///
    /// # Errors
    /// There is none.
    pub fn cut(&self, way: usize) -> Result<()> {
        self.ip(way + 1, &["link", "set", "way", "down"])
    }

    /// Puts it back.
    ///
    /// # Errors
    /// There is none.
    pub fn join(&self, way: usize) -> Result<()> {
        self.ip(way + 1, &["link", "set", "way", "up"])
    }

    /// Gives a way a bandwidth, both directions each (as `tc` writes it).
    ///
    /// # Errors
    /// `tc` says why.
    pub fn narrow(&self, way: usize, rate: &str) -> Result<()> {
        for (end, device) in self.ends(way) {
            let words = ["-n", end, "qdisc", "replace", "dev", &device, "root"];
            let shape = ["tbf", "rate", rate, "burst", "32k", "latency", "400ms"];
            run("tc", &[&words[..], &shape].concat())?;
        }
        Ok(())
    }

    /// Takes it away again.
    ///
    /// # Errors
    /// `tc` says why.
    pub fn widen(&self, way: usize) -> Result<()> {
        for (end, device) in self.ends(way) {
            run("tc", &["-n", end, "qdisc", "del", "dev", &device, "root"])?;
        }
        Ok(())
    }

    fn ends(&self, way: usize) -> [(&str, String); 2] {
        let end = |end: usize| self.namespaces[end].as_str();
        [(end(0), format!("way{way}")), (end(way + 1), "way".into())]
    }

    /// The kernel resets all of the engine's connections of a way, at both ends.
    ///
    /// # Errors
    /// `ss` says why.
    pub fn reset(&self, way: usize) -> Result<()> {
        ensure!(self.is_real(), "there is no network to reset in");
        let host = format!("10.231.{way}.2");
        let words = ["netns", "exec", &self.namespaces[0], "ss", "-K", "dst"];
        run("ip", &[&words[..], &[host.as_str()]].concat())
    }

    /// The kernel resets the busiest of the engine's connections of a way: that of an I/O queue.
    ///
    /// # Errors
    /// There is none, or `ss` says why.
    pub fn reset_busiest(&self, way: usize) -> Result<()> {
        ensure!(self.is_real(), "there is no network to reset in");
        let host = format!("10.231.{way}.2");
        let ss = ["netns", "exec", &self.namespaces[0], "ss"];
        let listed = output("ip", &[&ss[..], &["-tniHO", "dst", &host]].concat())?;
        let busiest = listed.lines().max_by_key(|line| bytes_of(line));
        let local = busiest.and_then(|line| line.split_whitespace().nth(3));
        let port = local.and_then(|it| it.rsplit_once(':'));
        let (_, port) = port.with_context(|| format!("no connection of way {way}: {listed}"))?;
        let words = ["-K", "dst", &host, "sport", "=", port];
        run("ip", &[&ss[..], &words].concat())
    }

    fn ip(&self, end: usize, words: &[&str]) -> Result<()> {
        let Some(namespace) = self.namespaces.get(end) else {
            bail!("loopback is no network that can be changed");
        };
        run("ip", &[&["-n", namespace.as_str()], words].concat())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // With a namespace go its interfaces, and with them their peers.
        for name in &self.namespaces {
            let _ = run("ip", &["netns", "del", name]);
        }
    }
}

/// An address of its own for each installation. A target that was killed gets its port again: no
/// other installation listens on this address, and no connection leaves from it.
fn loopback(process: u32, number: u32) -> Ipv4Addr {
    let host = (1 << 23) + process % (1 << 13) * (1 << 10) + number % (1 << 10);
    Ipv4Addr::from_bits(127 << 24 | host)
}

/// Bytes that a connection has sent and received, as `ss -i` shows them.
fn bytes_of(line: &str) -> u64 {
    let of = |word: &str| {
        let (key, value) = word.split_once(':')?;
        let counts = matches!(key, "bytes_sent" | "bytes_received");
        value.parse::<u64>().ok().filter(|_| counts)
    };
    line.split_whitespace().filter_map(of).sum()
}

/// Takes away what runs have left whose process is gone.
fn sweep() {
    let Ok(names) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for name in names.flatten() {
        let name = name.file_name().to_string_lossy().into_owned();
        let Some((pid, _)) = name.strip_prefix(PREFIX).and_then(|it| it.split_once('-')) else {
            continue;
        };
        if !std::path::Path::new("/proc").join(pid).exists() {
            let _ = run("ip", &["netns", "del", &name]);
        }
    }
}

/// Runs a program to its end.
///
/// # Errors
/// It isn't there, or failed: with what it said.
pub fn run(program: &str, words: &[&str]) -> Result<()> {
    output(program, words).map(|_| ())
}

/// The same, and what it printed.
///
/// # Errors
/// It isn't there, or failed: with what it said.
pub fn output(program: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let command = command.args(words).stdin(Stdio::null());
    let output = command
        .output()
        .with_context(|| format!("start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    ensure!(
        status.success(),
        "{program} {}: {status}: {}",
        words.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{bytes_of, loopback};

    #[test]
    fn installations_have_addresses_of_their_own() {
        assert_eq!(loopback(1, 0).to_string(), "127.128.4.0");
        let all = [
            loopback(1, 1),
            loopback(2, 1),
            loopback(1, 0),
            loopback(8191, 1023),
        ];
        assert!(all.iter().all(|it| it.is_loopback() && !it.is_broadcast()));
        let unlike: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(unlike.len(), all.len());
    }

    #[test]
    fn the_bytes_of_a_connection_are_those_of_both_directions() {
        let line = "ESTAB 0 0 10.0.0.1:50 10.0.0.2:4420 cubic bytes_sent:8 bytes_acked:9 \
                    bytes_received:30";
        assert_eq!(bytes_of(line), 38);
    }
}
