//! The server under load: `braid target`, or `braid run` with an NBD export, and a look at its
//! process.
use super::peer::{Place, Wire};
use super::socket::Address;
use crate::prelude::*;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

const NQN: &str = "nqn.2026-01.org.braid:connections";
/// Entries of a target's queues: few, as there may be many.
const ENTRIES: u32 = 64;
/// Payload in flight: less than by default, so that the rest shows.
const BUFFERS: &str = "buffers = \"128MiB\"\n";
pub const BUFFERS_MIB: u64 = 128;
/// Places for connections: the most clients of an export.
const PLACES: u32 = 12 << 10;

/// Which server, reached how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// `braid target` on loopback TCP.
    Target,
    /// An NBD export on a Unix socket.
    NbdUnix,
    /// An NBD export on loopback TCP.
    NbdTcp,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::NbdUnix => "nbd-unix",
            Self::NbdTcp => "nbd-tcp",
        }
    }
}

/// A server that runs; ended when dropped.
pub struct Served {
    server: Server,
    pub place: Place,
}

impl Served {
    /// Starts one.
    pub fn start(braid: &Path, kind: Kind) -> Result<Self> {
        let directory = server::directory()?;
        let (address, nbd) = if kind == Kind::NbdUnix {
            let path = directory.join("nbd");
            let nbd = format!("unix:{}", path.display());
            (Address::Unix(path), nbd)
        } else {
            let address = free()?;
            (Address::Tcp(address), format!("tcp:{address}"))
        };
        let (verb, wire) = match kind {
            Kind::Target => ("target", Wire::Nvme(NQN.into())),
            _ => ("run", Wire::Nbd),
        };
        let config = match nbd.strip_prefix("tcp:") {
            Some(listen) if kind == Kind::Target => format!(
                "nqn = \"{NQN}\"\nconnections = {PLACES}\nqueue_entries = {ENTRIES}\n{BUFFERS}\
                 [[namespace]]\nbackend = \"null:1TiB\"\n[[port]]\nlisten = \"{listen}\"\n"
            ),
            _ => format!(
                "cores = 1\nclients = {PLACES}\n{BUFFERS}[[volume]]\nname = \"v0\"\n\
                 [[volume.path]]\nuri = \"null:1TiB\"\n[[volume.export]]\nnbd = \"{nbd}\"\n"
            ),
        };
        let server = Server::braid(braid, verb, directory, &config, |_| address.answers())?;
        let place = Place { address, wire };
        Ok(Self { server, place })
    }

    /// Its notes so far.
    pub fn said(&self) -> String {
        self.server.said()
    }

    pub fn look(&self) -> Result<Look> {
        Look::at(self.server.id())
    }
}

impl Address {
    fn answers(&self) -> bool {
        match self {
            Self::Tcp(address) => TcpStream::connect(address).is_ok(),
            Self::Unix(path) => UnixStream::connect(path).is_ok(),
        }
    }
}

/// A port that nobody listened on a moment ago.
fn free() -> Result<SocketAddrV4> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match listener.local_addr()? {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => bail!("loopback has no IPv4 address"),
    }
}

/// One look at a process.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Resident now, and at most so far, KiB.
    pub resident: u64,
    pub peak: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Processor time, s.
    pub cpu: f64,
    /// Memory of the whole machine's TCP buffers, KiB.
    pub tcp: u64,
}

impl Look {
    fn at(id: u32) -> Result<Self> {
        use super::super::memory::{count, read};
        use super::super::{OWN, cpu_seconds};
        let status = read(&format!("/proc/{id}/status"))?;
        let stat = read(&format!("/proc/{id}/stat"))?;
        Ok(Self {
            resident: count(&status, "VmRSS")?,
            peak: count(&status, "VmHWM")?,
            descriptors: fs::read_dir(format!("/proc/{id}/fd"))?.count() as u64,
            cpu: cpu_seconds(&stat, OWN)?,
            tcp: tcp_pages(&read("/proc/net/sockstat")?).unwrap_or(0) * 4,
        })
    }
}

fn tcp_pages(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find(|line| line.starts_with("TCP:"))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "mem");
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_the_kernels_words() {
        let sockstat = "sockets: used 9\nTCP: inuse 3 orphan 0 tw 1 alloc 4 mem 25\nUDP: mem 1\n";
        assert_eq!(tcp_pages(sockstat), Some(25));
        let look = Look::at(std::process::id()).unwrap();
        assert!(look.peak >= look.resident && look.descriptors > 2);
    }
}
