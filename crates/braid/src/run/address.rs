//! Where NBD clients connect: `unix:/path`, `tcp:host:port`, with or without `nbd:` in front. And
//! listening there.
//!
//! # Contract
//! A Unix socket is private (0600) unless its export says more, and taken over only if nobody
//! answers on it. TCP is loopback unless the address says otherwise.
use super::admission::{Admitted, Guard, Peer, Reach, Refusals};
use super::seats::{Client, Seats};
use crate::control::access::Access;
use crate::control::socket::PrivateSocket;
use crate::log;
use crate::uri::zone;
use anyhow::{Context, bail};
use runtime::Kept;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use cores::{RunControl, RunEvent, Sender};
use engine::export::{ExportControl, Reader};

/// Pause when a client couldn't be accepted: out of descriptors, most likely, which come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

impl FromStr for NbdAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "write unix:/path or tcp:host:port (tcp::10809 is loopback)".to_owned();
        let text = text.strip_prefix("nbd:").unwrap_or(text);
        match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(("tcp", rest)) => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(wanted)?;
                let port = port.parse().map_err(|_| wanted())?;
                let host = match host.trim_start_matches('[').trim_end_matches(']') {
                    "" => "127.0.0.1".to_owned(),
                    host => zone::host(host)?,
                };
                Ok(Self::Tcp(host, port))
            }
            _ => Err(wanted()),
        }
    }
}

/// As it is written, without `nbd:` in front.
impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// A bound listener.
pub enum Bound {
    /// With its file.
    Unix(PrivateSocket),
    /// TCP.
    Tcp(TcpListener),
}

impl NbdAddress {
    /// Listens; `access` is of a Unix socket.
    ///
    /// # Errors
    /// Somebody listens there, or it can't be.
    pub fn bind(&self, access: &Access) -> anyhow::Result<Bound> {
        match self {
            Self::Unix(path) => PrivateSocket::bind(path, "server", access).map(Bound::Unix),
            Self::Tcp(host, port) => {
                let context = || format!("cannot listen on {self}");
                let mut all = (host.as_str(), *port)
                    .to_socket_addrs()
                    .with_context(context)?;
                let Some(address) = all.next() else {
                    bail!("{self} stands for no address");
                };
                TcpListener::bind(address)
                    .map(Bound::Tcp)
                    .with_context(context)
            }
        }
    }
}

impl NbdAddress {
    /// From where clients can reach it. A name is not looked up: its address may change.
    pub fn reach(&self) -> Reach {
        match self {
            Self::Unix(_) => Reach::Unix,
            Self::Tcp(host, _) if host == "localhost" => Reach::Loopback,
            Self::Tcp(host, _) => host.parse().map_or(Reach::Network, Reach::of),
        }
    }

    /// Whether it has port 0: it is another address each time.
    pub fn is_any(&self) -> bool {
        matches!(self, Self::Tcp(_, 0))
    }

    /// The same address with a port that is free now, where it has port 0.
    ///
    /// # Errors
    /// It can't be listened on.
    pub fn with_port(self) -> anyhow::Result<Self> {
        let Self::Tcp(host, 0) = &self else {
            return Ok(self);
        };
        let port = match self.bind(&Access::default())? {
            Bound::Tcp(listener) => listener.local_addr()?.port(),
            Bound::Unix(_) => unreachable!("{self}: it is no socket file"),
        };
        Ok(Self::Tcp(host.clone(), port))
    }
}

impl Bound {
    /// URI for clients.
    pub fn uri(&self, address: &NbdAddress) -> String {
        match (self, address) {
            (Self::Tcp(listener), _) => match listener.local_addr() {
                Ok(address) => format!("nbd://{}", zone::authority(&address)),
                Err(_) => address.to_string(),
            },
            (_, NbdAddress::Unix(path)) => format!("nbd+unix:///?socket={}", path.display()),
            _ => address.to_string(),
        }
    }

    /// Changes the access from now on; of a TCP port there is nothing to change.
    ///
    /// # Errors
    /// As [`PrivateSocket::set_access`].
    fn set_access(&self, access: &Access) -> anyhow::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_access(access),
            Self::Tcp(_) => Ok(()),
        }
    }

    /// Whether its file is gone, or another one's: no client can connect.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Unix(socket) => !socket.is_there(),
            Self::Tcp(_) => false,
        }
    }

    /// Its export, as in messages.
    fn export(&self, target: &Towards) -> String {
        let address = match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        };
        match address {
            Some(address) if target.nbd().is_none() => format!("NVMe/TCP export {address}"),
            Some(address) => format!("export tcp:{address}"),
            None => format!("export {}", target.nbd().unwrap_or_default()),
        }
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// None is left.
    pub fn listener(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Unix(socket) => socket.listener.try_clone().map(Into::into),
            Self::Tcp(listener) => listener.try_clone().map(Into::into),
        }
    }
}

/// Where the clients of an address go.
#[derive(Clone)]
pub enum Towards {
    /// They are disconnected; why, is logged now and then.
    Nobody(Option<String>),
    /// They are hosts at a port of an NVMe/TCP server, on this core.
    Listener(u32, Sender, mpsc::Sender<RunEvent>),
    /// They are NBD clients of an export, each on a core of its own.
    Export(u32, Arc<Seats>),
}

impl Towards {
    /// Number of the export over NBD that they are clients of.
    fn nbd(&self) -> Option<u32> {
        match self {
            Self::Export(number, _) => Some(*number),
            Self::Listener(..) | Self::Nobody(_) => None,
        }
    }
}

/// Clients of an export over NBD that are connected, and how they were admitted.
#[derive(Default)]
pub struct Clients(Mutex<BTreeMap<u64, (Peer, Admitted)>>);

/// One of them. Dropped, it is gone.
struct Connected {
    of: Arc<Clients>,
    number: u64,
}

impl Clients {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (Peer, Admitted)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, peer: Peer, admitted: Admitted) -> Connected {
        /// No client has 0.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.all().insert(number, (peer, admitted));
        let of = Arc::clone(self);
        Connected { of, number }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.of.all().remove(&self.number);
    }
}

/// Treatment of clients of an address.
struct Door {
    to: Towards,
    guard: Guard,
}

/// A listener whose clients go to an engine. Dropped, it listens no more.
pub struct Accepting {
    bound: Bound,
    /// Held from before a client is accepted until it is handed over.
    door: Arc<Mutex<Door>>,
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
}

impl Accepting {
    /// Begins.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn start(
        bound: Bound,
        target: Towards,
        guard: Guard,
        clients: Arc<Clients>,
    ) -> anyhow::Result<Self> {
        let listener = bound.listener().context("cannot share a listener")?;
        rustix::io::ioctl_fionbio(&listener, true).context("cannot share a listener")?;
        let unix = matches!(bound, Bound::Unix(_));
        let name: Arc<str> = bound.export(&target).into();
        let door = Arc::new(Mutex::new(Door { to: target, guard }));
        let (inner, connected) = (Arc::clone(&door), Arc::clone(&clients));
        let accept = move || {
            let mut warned = false;
            let mut refusals = Refusals::default();
            let mut refuse = |why: &str| {
                if let Some(line) = refusals.more(why) {
                    log::say(format!("{name}: {line}"));
                }
            };
            loop {
                use rustix::event::{PollFd, PollFlags, poll};
                use rustix::io::Errno;
                let mut ready = [PollFd::new(&listener, PollFlags::IN)];
                if poll(&mut ready, None).is_ok() && ready[0].revents().contains(PollFlags::HUP) {
                    return; // it was shut down
                }
                let door = inner.lock().unwrap_or_else(PoisonError::into_inner);
                let socket = match accepted(&listener) {
                    Ok(socket) => socket,
                    Err(Errno::INVAL) => return,
                    Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
                    Err(error) => {
                        drop(door);
                        if !std::mem::replace(&mut warned, true) {
                            tracing::warn!(
                                "{name} accepts no clients for now, and tries again: {error}"
                            );
                        }
                        std::thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                warned = false;
                let peer = Peer::of(&socket, unix);
                let Some(admitted) = door.guard.admits(peer) else {
                    refuse(&format!("allow does not name {peer}"));
                    continue;
                };
                let is_there = match &door.to {
                    // Of a host over NVMe/TCP its NQN says who it is.
                    Towards::Listener(number, to, events) => {
                        let from = reader(&socket, unix).name;
                        let kept: Kept = Box::new(Client::host(&name, &from, events));
                        to.adopt(*number, socket, Some(kept))
                    }
                    Towards::Export(number, seats) => {
                        let (to, seat) = seats.take();
                        let client = connected.add(peer, admitted);
                        let source = Reader {
                            number: client.number,
                            read_only: admitted.read_only,
                            ..reader(&socket, unix)
                        };
                        let seat = seat.taken_by(*number, &source.name);
                        let source = ExportControl::Source(*number, source);
                        let kept: Kept = Box::new((seat, client));
                        to.send(RunControl::Export(source)) && to.adopt(*number, socket, Some(kept))
                    }
                    Towards::Nobody(why) => {
                        why.iter().for_each(|why| refuse(why));
                        true
                    }
                };
                if !is_there {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("accept".into());
        let thread = builder.spawn(accept).context("cannot start a thread")?;
        Ok(Self {
            bound,
            door,
            clients,
            thread: Some(thread),
        })
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where clients go that connect from now on.
    pub fn set_target(&self, to: Towards) {
        self.door().to = to;
    }

    /// Clients that are admitted, and the socket's access, from now on: none that a wider mode lets
    /// in is admitted by the rules of before.
    ///
    /// # Errors
    /// As [`Accepting::set_access`]; then the rules are those of before.
    pub fn set_terms(&self, guard: Guard, before: &Access, after: &Access) -> anyhow::Result<()> {
        let mut door = self.door();
        self.set_access(before, after)?;
        door.guard = guard;
        Ok(())
    }

    /// Clients that are admitted now.
    pub fn guard(&self) -> Guard {
        self.door().guard.clone()
    }

    /// Clients that are connected.
    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// Numbers of connected clients that would not be admitted now, or with other rights, in
    /// ascending order.
    pub fn unfit(&self) -> Vec<u64> {
        let door = self.door();
        let all = self.clients.all();
        let unfit = all
            .iter()
            .filter(|(_, (peer, admitted))| door.guard.admits(*peer) != Some(*admitted));
        unfit.map(|(number, _)| *number).collect()
    }

    /// As [`Accepting::set_target`] and [`Accepting::set_terms`], in one moment for clients: where
    /// others may connect, those that were not accepted yet are disconnected.
    ///
    /// # Errors
    /// As [`Accepting::set_access`].
    pub fn move_to(
        &self,
        to: Towards,
        guard: Guard,
        before: &Access,
        after: &Access,
    ) -> anyhow::Result<()> {
        let mut door = self.door();
        self.set_access(before, after)?;
        if before != after {
            let listener = self.bound.listener().context("cannot share a listener")?;
            while accepted(&listener).is_ok() {}
        }
        *door = Door { to, guard };
        Ok(())
    }

    /// Whether no client can connect: its socket was removed.
    pub fn is_lost(&self) -> bool {
        self.bound.is_lost()
    }

    /// Replaces the access of before.
    ///
    /// # Errors
    /// As [`PrivateSocket::set_access`]; then nothing has changed, or it is its owner's alone.
    fn set_access(&self, before: &Access, after: &Access) -> anyhow::Result<()> {
        if before == after {
            return Ok(());
        }
        let set = self.bound.set_access(after);
        set.map_err(|error| match self.bound.set_access(before) {
            Ok(()) => error,
            Err(_) => error.context("and it is its owner's alone (0600) now"),
        })
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        let both = rustix::net::Shutdown::Both;
        let shut = match &self.bound {
            Bound::Unix(socket) => rustix::net::shutdown(&socket.listener, both),
            Bound::Tcp(listener) => rustix::net::shutdown(listener, both),
        };
        if let (Ok(()), Some(thread)) = (shut, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// The next client that has connected.
fn accepted(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::net::accept_with(listener.as_fd(), rustix::net::SocketFlags::CLOEXEC)
}

/// Identity of a client: its process, or where it connects from.
fn reader(socket: &OwnedFd, unix: bool) -> Reader {
    let of = |source, name: String| Reader {
        source,
        name: name.into(),
        ..Reader::default()
    };
    if unix {
        return match rustix::net::sockopt::socket_peercred(socket) {
            Ok(peer) => {
                let (pid, uid) = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw());
                of(pid as u64, format!("process {pid} of user {uid}"))
            }
            Err(_) => of(0, "a process".into()),
        };
    }
    let peer = rustix::net::getpeername(socket).ok().flatten();
    match peer.map(std::net::SocketAddr::try_from) {
        Some(Ok(peer)) => of(identity(peer.ip()), peer.to_string()),
        _ => of(0, "a client that is gone".into()),
    }
}

/// The reader's identity (row B1): its host.
fn identity(ip: std::net::IpAddr) -> u64 {
    match ip {
        std::net::IpAddr::V4(ip) => ip.to_bits().into(),
        std::net::IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            (bits >> 64) as u64 ^ bits as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R5: each export is known by its own port.
    #[test]
    fn port_0_stands_for_ports_of_their_own() {
        let address: NbdAddress = "tcp::0".parse().unwrap();
        let first = address.clone().with_port().unwrap();
        let listens = first.bind(&Access::default()).unwrap();
        let second = address.with_port().unwrap();
        assert_ne!(first, second);
        for given in [&first, &second] {
            assert!(given.to_string().starts_with("tcp:127.0.0.1:"), "{given}");
            assert_eq!(given.clone().with_port().unwrap(), *given);
        }
        drop(listens);
    }

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("unix:/run/v0.sock", "unix:/run/v0.sock"),
            ("tcp:10.0.0.1:10809", "tcp:10.0.0.1:10809"),
            ("tcp::10809", "tcp:127.0.0.1:10809"),
            ("tcp:[::1]:10809", "tcp:[::1]:10809"),
            ("tcp:[fe80::1%eth0]:10809", "tcp:[fe80::1%eth0]:10809"),
            ("tcp:[fe80::1%253]:10809", "tcp:[fe80::1%253]:10809"),
            ("nbd:unix:/run/v0.sock", "unix:/run/v0.sock"),
            ("nbd:tcp::10809", "tcp:127.0.0.1:10809"),
        ] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "/run/v0.sock",
            "unix:v0.sock",
            "tcp:10809",
            "tcp:h:x",
            "ublk:0",
            "nbd:nbd:unix:/run/v0.sock",
            "nbd:",
        ] {
            assert!(
                text.parse::<NbdAddress>()
                    .unwrap_err()
                    .contains("unix:/path"),
                "{text}"
            );
        }
    }
}
