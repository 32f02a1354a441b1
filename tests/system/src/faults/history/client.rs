//! An NBD connection with several requests under way.
//!
//! # Limits
//! Simple replies, export `v0`, a Unix socket.
use super::super::nbd::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// An answer.
pub struct Reply {
    /// Of the request.
    pub cookie: u64,
    /// NBD's error number, or 0.
    pub error: u32,
    /// Bytes that a read found that did not fail.
    pub data: Vec<u8>,
}

/// A connection in transmission.
pub struct Connection {
    stream: UnixStream,
    cookie: u64,
    /// Bytes that each read under way asked for; 0 for writes.
    lengths: BTreeMap<u64, usize>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// The server does not answer, or is no NBD server.
    pub fn open(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut [0; 18])?;
        // NBD_FLAG_C_FIXED_NEWSTYLE and NO_ZEROES, then NBD_OPT_EXPORT_NAME.
        let option = [&1_u32.to_be_bytes()[..], &2_u32.to_be_bytes(), b"v0"].concat();
        stream.write_all(&[&3_u32.to_be_bytes()[..], b"IHAVEOPT", &option].concat())?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Self {
            stream,
            cookie: 0,
            lengths: BTreeMap::new(),
        })
    }

    /// Sends a read of `length` bytes; its cookie.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send_read(&mut self, offset: u64, length: usize) -> Result<u64> {
        self.send(READ, offset, length, &[])
    }

    /// Sends a write; its cookie.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send_write(&mut self, offset: u64, data: &[u8]) -> Result<u64> {
        self.send(WRITE, offset, data.len(), data)
    }

    fn send(&mut self, kind: u16, offset: u64, length: usize, data: &[u8]) -> Result<u64> {
        self.cookie += 1;
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).context("send a request")?;
        let expected = if kind == READ { length } else { 0 };
        self.lengths.insert(self.cookie, expected);
        Ok(self.cookie)
    }

    /// Waits for the next reply, of whichever request.
    ///
    /// # Errors
    /// None comes, or it belongs to no request under way.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).context("no reply")?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        ensure!(word(0) == REPLY, "not a reply: {head:x?}");
        let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
        let Some(length) = self.lengths.remove(&cookie) else {
            bail!("a reply to no request: {head:x?}");
        };
        let error = word(4);
        let mut data = vec![0; if error == 0 { length } else { 0 }];
        self.stream
            .read_exact(&mut data)
            .context("data of a read")?;
        Ok(Reply {
            cookie,
            error,
            data,
        })
    }
}
