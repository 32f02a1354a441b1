//! A request, as the server's driver receives it and as a client's owner submits it.
use crate::wire::cmd;

/// Commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Export to buffer.
    Read,
    /// Buffer to export.
    Write,
    /// Everything acknowledged becomes durable, on all connections if the export has `multi_conn`.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// The range will be needed.
    Cache,
    /// The range becomes zero.
    WriteZeroes,
    /// Returns which parts of the range are allocated.
    BlockStatus {
        /// Only the first extent.
        one: bool,
    },
}

impl Kind {
    /// The command on the wire.
    pub(crate) fn command(self) -> u16 {
        match self {
            Self::Read => cmd::READ,
            Self::Write => cmd::WRITE,
            Self::Flush => cmd::FLUSH,
            Self::Trim => cmd::TRIM,
            Self::Cache => cmd::CACHE,
            Self::WriteZeroes => cmd::WRITE_ZEROES,
            Self::BlockStatus { .. } => cmd::BLOCK_STATUS,
        }
    }

    /// Whether it changes what the export holds.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Identifies the request. In a server: a slot number, below the requests in flight. In a
    /// client: chosen by the submitter, unique among those in flight.
    pub token: u32,
    /// The command.
    pub kind: Kind,
    /// First byte on the export; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u32,
    /// Durable before it is answered; only with changes.
    pub fua: bool,
    /// Zeroes must be provisioned; only with [`Kind::WriteZeroes`].
    pub no_hole: bool,
    /// Fail with [`Errno::NotSup`](crate::Errno::NotSup) unless faster than a write; only with
    /// [`Kind::WriteZeroes`].
    pub fast_zero: bool,
}

impl Request {
    /// A request without flags.
    pub fn new(token: u32, kind: Kind, offset: u64, length: u32) -> Self {
        Self {
            token,
            kind,
            offset,
            length,
            fua: false,
            no_hole: false,
            fast_zero: false,
        }
    }

    /// Returns the request with [`Self::fua`].
    pub fn with_fua(self) -> Self {
        Self { fua: true, ..self }
    }

    /// A flush.
    pub fn flush(token: u32) -> Self {
        Self::new(token, Kind::Flush, 0, 0)
    }
}

/// A run of bytes of one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u32,
    /// [`state`](crate::wire::state) bits: hole, zero.
    pub flags: u32,
}
