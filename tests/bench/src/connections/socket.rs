//! Stream sockets of a load: TCP from several addresses of loopback, or Unix.
use crate::prelude::*;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;

/// Longest wait for one answer of a server.
const ANSWER: Duration = Duration::from_secs(10);

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    Tcp(SocketAddrV4),
    Unix(PathBuf),
}

/// Result of a look at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// So many bytes were taken or given.
    Bytes(usize),
    /// Not now.
    Nothing,
    /// It is over.
    Over,
}

/// A connected socket. Dropped, it is reset, so that no port rests in TIME-WAIT.
#[derive(Debug)]
pub struct Socket(File);

impl Socket {
    /// Connects; TCP from 127.0.`source`.1.
    pub fn connect(to: &Address, source: u8) -> Result<Self> {
        let family = match to {
            Address::Tcp(_) => AddressFamily::INET,
            Address::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .context("no socket: raise the limit of open files (ulimit -n)")?;
        match to {
            Address::Tcp(address) => {
                let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, source, 1), 0);
                rustix::net::bind(&socket, &from).context("bind")?;
                sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
                sockopt::set_tcp_nodelay(&socket, true)?;
                rustix::net::connect(&socket, address)
            }
            Address::Unix(path) => rustix::net::connect(&socket, &SocketAddrUnix::new(path)?),
        }
        .context("connect")?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
        Ok(Self(socket.into()))
    }

    /// The same connection of TCP, as its protocol's client takes it.
    pub fn stream(&self) -> Result<TcpStream> {
        Ok(OwnedFd::from(self.0.try_clone()?).into())
    }

    /// Little is received before the peer has to wait.
    pub fn narrow(&self) -> Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.0, 4096)?)
    }

    /// Sends all.
    pub fn say(&self, bytes: &[u8]) -> Result<()> {
        (&self.0).write_all(bytes).context("send")
    }

    /// Receives some; nothing is an error.
    pub fn hear(&self, bytes: &mut [u8]) -> Result<usize> {
        let count = (&self.0).read(bytes).context("receive")?;
        ensure!(count > 0, "the server closed the connection");
        Ok(count)
    }

    /// Receives exactly as many.
    pub fn hear_all(&self, bytes: &mut [u8]) -> Result<()> {
        (&self.0).read_exact(bytes).context("receive")
    }

    /// Takes what is there, without waiting.
    pub fn peep(&self, bytes: &mut [u8]) -> Seen {
        seen(rustix::net::recv(&self.0, bytes, RecvFlags::DONTWAIT).map(|(count, _)| count))
    }

    /// Gives what goes, without waiting.
    pub fn drip(&self, bytes: &[u8]) -> Seen {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        seen(rustix::net::send(&self.0, bytes, flags))
    }
}

fn seen(result: rustix::io::Result<usize>) -> Seen {
    match result {
        Ok(0) => Seen::Over,
        Ok(count) => Seen::Bytes(count),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Seen::Nothing,
        Err(_) => Seen::Over,
    }
}
