//! The smallest NBD client: one request after the other, each waited for.
//!
//! # Limits
//! Simple replies, whole blocks, one export; a request that takes longer than [`PATIENCE`] fails.
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// A request that takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(180);

const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
/// Beside a request: what it writes is durable when it ends.
const FUA: u32 = 1 << 16;

/// A connection in transmission.
pub struct Client {
    stream: UnixStream,
    cookie: u64,
}

impl Client {
    /// Connects to export `v0`.
    ///
    /// # Errors
    /// Nobody listens, or it is no NBD server.
    pub fn open(socket: &Path) -> Result<Self> {
        Self::open_named(socket, "v0")
    }

    /// The same of another export.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_named(socket: &Path, name: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut [0; 18])?;
        let name = name.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let export_name = 1_u32.to_be_bytes();
        let flags = 3_u32.to_be_bytes();
        stream.write_all(&[&flags[..], b"IHAVEOPT", &export_name, &length, name].concat())?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Self { stream, cookie: 0 })
    }

    /// Reads a block.
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn read(&mut self, offset: u64, block: &mut [u8]) -> Result<()> {
        self.request(0, offset, block.len(), &[])?;
        self.stream.read_exact(block).context("data of a read")
    }

    /// Writes a block.
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn write(&mut self, offset: u64, block: &[u8]) -> Result<()> {
        self.request(1, offset, block.len(), block)
    }

    /// Writes a block, which is durable then (FUA).
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn write_fua(&mut self, offset: u64, block: &[u8]) -> Result<()> {
        self.request(FUA | 1, offset, block.len(), block)
    }

    /// Flushes.
    ///
    /// # Errors
    /// The server says which, or is gone.
    pub fn flush(&mut self) -> Result<()> {
        self.request(3, 0, 0, &[])
    }

    fn request(&mut self, kind: u32, offset: u64, length: usize, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut bytes = [REQUEST.to_be_bytes(), kind.to_be_bytes()].concat();
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).context("send a request")?;
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).context("no reply")?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        ensure!(word(0) == REPLY, "the reply is no reply: {head:x?}");
        ensure!(
            head[8..] == self.cookie.to_be_bytes(),
            "a reply to another request"
        );
        let error = word(4);
        ensure!(error == 0, "NBD error {error} ({})", name(error));
        Ok(())
    }
}

fn name(error: u32) -> &'static str {
    match error {
        5 => "EIO",
        22 => "EINVAL",
        28 => "ENOSPC",
        108 => "ESHUTDOWN",
        _ => "?",
    }
}
