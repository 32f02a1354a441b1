//! How the load reaches the mirror: over an NBD export, or as a host of an NVMe/TCP export.
use super::super::{nbd, nvme};
use anyhow::Result;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Values of `--export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// NBD over a Unix socket.
    Nbd,
    /// NVMe/TCP.
    Nvme,
}

impl Kind {
    /// In the result.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nbd => "NBD",
            Self::Nvme => "NVMe/TCP",
        }
    }
}

/// An export of volume `v0`.
#[derive(Clone, Debug)]
pub enum Export {
    /// Socket.
    Nbd(PathBuf),
    /// Address.
    Nvme(SocketAddr),
}

impl Export {
    /// One of an engine whose files lie in this directory.
    ///
    /// # Errors
    /// No port is free.
    pub fn new(kind: Kind, directory: &Path) -> Result<Self> {
        Ok(match kind {
            Kind::Nbd => Self::Nbd(directory.join("v0.sock")),
            Kind::Nvme => Self::Nvme(TcpListener::bind("127.0.0.1:0")?.local_addr()?),
        })
    }

    /// Its keys in the configuration.
    pub fn keys(&self) -> String {
        match self {
            Self::Nbd(socket) => format!("nbd = \"unix:{}\"\n", socket.display()),
            Self::Nvme(address) => format!("nvme = \"{address}\"\nnqn = \"{}\"\n", nvme::NQN),
        }
    }

    /// Connects to it.
    ///
    /// # Errors
    /// As of each client.
    pub fn open(&self) -> Result<Client> {
        Ok(match self {
            Self::Nbd(socket) => Client::Nbd(nbd::Client::open(socket)?),
            Self::Nvme(address) => Client::Nvme(nvme::Client::open(*address)?),
        })
    }
}

/// A connection; errors of all requests are as of each client.
pub enum Client {
    Nbd(nbd::Client),
    Nvme(nvme::Client),
}

impl Client {
    /// Reads whole blocks.
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn read(&mut self, offset: u64, blocks: &mut [u8]) -> Result<()> {
        match self {
            Self::Nbd(client) => client.read(offset, blocks),
            Self::Nvme(client) => client.read(offset, blocks),
        }
    }

    /// Writes whole blocks; `fua`: they are durable then.
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn write(&mut self, offset: u64, blocks: &[u8], fua: bool) -> Result<()> {
        match self {
            Self::Nbd(client) if fua => client.write_fua(offset, blocks),
            Self::Nbd(client) => client.write(offset, blocks),
            Self::Nvme(client) => client.write(offset, blocks, fua),
        }
    }

    /// Flushes.
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Self::Nbd(client) => client.flush(),
            Self::Nvme(client) => client.flush(),
        }
    }
}
