//! Structures on the wire.
//!
//! Each structure is an accessor over a byte array plus a plain parsed form; nothing is cast, and
//! all integers are little-endian (Base 2.0, 1.6).
//!
//! * [`sqe`], [`cqe`], [`status`]: commands and their completions
//! * [`pdu`]: the units of NVMe/TCP
//! * [`fabrics`]: Connect, properties, Disconnect
//! * [`identify`], [`log`], [`features`], [`dsm`], [`lba_status`]: data structures and parameters
//!   of commands
//! * [`layout`]: how fixed structures are declared, and their text fields
//! * [`crc`]: the digest of both
pub mod cqe;
pub mod crc;
pub mod dsm;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod layout;
pub mod lba_status;
pub mod log;
pub mod pdu;
pub mod sqe;
pub mod status;

pub use cqe::Cqe;
pub use sqe::{Sqe, SqeBuilder};
pub use status::Status;

/// Bytes that are not the structure they should be: a fault of the peer that wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Fewer bytes than the structure has.
    Truncated {
        /// Bytes the structure has.
        need: u32,
        /// Bytes that are there.
        got: u32,
    },
    /// A field holds a value that it can't have.
    Field {
        /// Offset of the field's first byte in the structure.
        offset: u16,
    },
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated { need, got } => write!(f, "structure of {need} bytes cut at {got}"),
            Self::Field { offset } => write!(f, "illegal value in the field at byte {offset}"),
        }
    }
}

impl core::error::Error for WireError {}

/// The first `N` bytes, or how many are missing.
#[inline]
pub(crate) fn exact<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], WireError> {
    bytes.first_chunk().ok_or(WireError::Truncated {
        need: N as u32,
        got: bytes.len() as u32,
    })
}

/// Little-endian 16 bits at `at`; `at + 2` lies within the structure.
#[inline]
pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Little-endian 32 bits at `at`; `at + 4` lies within the structure.
#[inline]
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    let b = &bytes[at..at + 4];
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// Little-endian 64 bits at `at`; `at + 8` lies within the structure.
#[inline]
pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// Stores little-endian bytes at `at`.
#[inline]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
