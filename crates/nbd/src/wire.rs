//! Structures on the wire: numbers, and headers between bytes and a plain form. All big-endian.
use alloc::vec::Vec;

/// First word of a server: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of a newstyle server and first of every option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second word of an oldstyle server.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// First word of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Zeroes behind the answer to Export Name, unless declined.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// The one metadata context of the protocol itself.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags of a server; a client's have the same bits.
#[allow(missing_docs)]
pub mod handshake {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags.
#[allow(missing_docs)]
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options.
#[allow(missing_docs)]
pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types; errors have bit 31 set.
#[allow(missing_docs)]
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR + 1;
    pub const ERR_POLICY: u32 = ERROR + 2;
    pub const ERR_INVALID: u32 = ERROR + 3;
    pub const ERR_PLATFORM: u32 = ERROR + 4;
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR + 8;
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of information about an export.
#[allow(missing_docs)]
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands.
#[allow(missing_docs)]
pub mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
#[allow(missing_docs)]
pub mod flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flags of structured reply chunks; errors have bit 15 set.
#[allow(missing_docs)]
pub mod chunk {
    /// Flag: the last of its reply.
    pub const DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const IS_ERROR: u16 = 1 << 15;
    pub const ERROR: u16 = IS_ERROR + 1;
    pub const ERROR_OFFSET: u16 = IS_ERROR + 2;
}

/// Flags of extents in `base:allocation`.
#[allow(missing_docs)]
pub mod state {
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// Reads numbers and strings from the front of bytes; `None` where they end too early.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// 16 bits.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// 32 bits.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// 64 bits.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(head)
    }

    /// A string behind its length (32 bits).
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len)
    }
}

/// Greeting of a newstyle server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// [`handshake`] bits.
    pub flags: u16,
}

impl Greeting {
    /// Bytes.
    pub const LEN: usize = 18;

    /// To bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(INIT_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend(self.flags.to_be_bytes());
    }
}

/// Header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// [`opt`].
    pub option: u32,
    /// Bytes of data behind it.
    pub len: u32,
}

impl OptionHeader {
    /// Bytes.
    pub const LEN: usize = 16;

    /// `None`: too short, or another magic.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_MAGIC {
            return None;
        }
        let option = fields.u32()?;
        let len = fields.u32()?;
        Some(Self { option, len })
    }

    /// To bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend(self.option.to_be_bytes());
        out.extend(self.len.to_be_bytes());
    }
}

/// Header of an option reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The option it answers.
    pub option: u32,
    /// [`rep`].
    pub kind: u32,
    /// Bytes of data behind it.
    pub len: u32,
}

impl OptionReply {
    /// Bytes.
    pub const LEN: usize = 20;

    /// `None`: too short, or another magic.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_REPLY_MAGIC {
            return None;
        }
        let option = fields.u32()?;
        let kind = fields.u32()?;
        let len = fields.u32()?;
        Some(Self { option, kind, len })
    }

    /// To bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend(self.option.to_be_bytes());
        out.extend(self.kind.to_be_bytes());
        out.extend(self.len.to_be_bytes());
    }
}

/// Header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// [`flag`] bits.
    pub flags: u16,
    /// [`cmd`].
    pub command: u16,
    /// The client's identifier of it.
    pub cookie: u64,
    /// First byte on the export.
    pub offset: u64,
    /// Bytes; so many follow a write.
    pub length: u32,
}

impl RequestHeader {
    /// Bytes.
    pub const LEN: usize = 28;

    /// `None`: too short, or another magic.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        })
    }

    /// To bytes.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// A simple reply; data of a read follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// 0 = success.
    pub error: u32,
    /// As in the request.
    pub cookie: u64,
}

impl SimpleReply {
    /// Bytes.
    pub const LEN: usize = 16;

    /// `None`: too short, or another magic.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != SIMPLE_REPLY_MAGIC {
            return None;
        }
        Some(Self {
            error: fields.u32()?,
            cookie: fields.u64()?,
        })
    }

    /// To bytes.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.to_be_bytes());
        bytes[8..].copy_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// Header of a structured reply chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`chunk::DONE`] or 0.
    pub flags: u16,
    /// [`chunk`].
    pub kind: u16,
    /// As in the request.
    pub cookie: u64,
    /// Bytes behind it.
    pub len: u32,
}

impl ChunkHeader {
    /// Bytes.
    pub const LEN: usize = 20;

    /// `None`: too short, or another magic.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != STRUCTURED_REPLY_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            len: fields.u32()?,
        })
    }

    /// To bytes.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..].copy_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// A header that arrives in pieces.
#[derive(Debug)]
pub(crate) struct Gather {
    bytes: [u8; RequestHeader::LEN],
    have: usize,
}

impl Gather {
    pub fn new() -> Self {
        Self {
            bytes: [0; RequestHeader::LEN],
            have: 0,
        }
    }

    /// No byte of a header has arrived.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// Bytes that have arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.have]
    }

    /// Takes bytes until `need` have arrived; returns how many were taken.
    pub fn fill(&mut self, need: usize, bytes: &[u8]) -> usize {
        let n = need.saturating_sub(self.have).min(bytes.len());
        self.bytes[self.have..self.have + n].copy_from_slice(&bytes[..n]);
        self.have += n;
        n
    }

    /// Drops the bytes that have arrived.
    pub fn clear(&mut self) {
        self.have = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        emit(&mut out);
        out
    }

    #[test]
    fn a_request_is_laid_out_as_the_protocol_says() {
        let header = RequestHeader {
            flags: 0x0102,
            command: 0x0304,
            cookie: 0x1112_1314_1516_1718,
            offset: 0x2122_2324_2526_2728,
            length: 0x3132_3334,
        };
        let bytes = emitted(|out| header.emit(out));
        let want = [
            0x25, 0x60, 0x95, 0x13, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34,
        ];
        assert_eq!(bytes, want);
        assert_eq!(RequestHeader::parse(&bytes), Some(header));
    }

    #[test]
    fn every_header_survives_and_none_is_taken_short_or_with_another_magic() {
        let option = OptionHeader { option: 7, len: 9 };
        let reply = OptionReply {
            option: 7,
            kind: rep::ERR_UNSUP,
            len: 3,
        };
        let simple = SimpleReply {
            error: 5,
            cookie: 77,
        };
        let chunk = ChunkHeader {
            flags: 1,
            kind: chunk::ERROR,
            cookie: 78,
            len: 6,
        };
        let bytes = [
            emitted(|out| option.emit(out)),
            emitted(|out| reply.emit(out)),
            emitted(|out| simple.emit(out)),
            emitted(|out| chunk.emit(out)),
        ];
        assert_eq!(OptionHeader::parse(&bytes[0]), Some(option));
        assert_eq!(OptionReply::parse(&bytes[1]), Some(reply));
        assert_eq!(SimpleReply::parse(&bytes[2]), Some(simple));
        assert_eq!(ChunkHeader::parse(&bytes[3]), Some(chunk));
        let lens: Vec<usize> = bytes.iter().map(Vec::len).collect();
        assert_eq!(lens, [16, 20, 16, 20]);
        let parses = |bytes: &[u8]| {
            OptionHeader::parse(bytes).is_some()
                || OptionReply::parse(bytes).is_some()
                || SimpleReply::parse(bytes).is_some()
                || ChunkHeader::parse(bytes).is_some()
                || RequestHeader::parse(bytes).is_some()
        };
        for header in bytes {
            assert!(parses(&header));
            assert!(!parses(&header[..header.len() - 1]));
            let mut other = header.clone();
            other[1] ^= 1;
            assert!(!parses(&other));
        }
    }

    #[test]
    fn fields_end_where_the_bytes_do() {
        let mut fields = Fields(&[0, 0, 0, 2, b'a', b'b', 0, 0, 0, 9, b'c']);
        assert_eq!(fields.string(), Some(&b"ab"[..]));
        assert_eq!(fields.string(), None);
        assert_eq!(Fields(&[0xff; 6]).string(), None);
        assert_eq!(Fields(&[1]).u16(), None);
    }

    #[test]
    fn a_header_is_gathered_from_any_split() {
        let mut gather = Gather::new();
        assert_eq!(gather.fill(4, &[1, 2]), 2);
        assert_eq!(gather.fill(4, &[]), 0);
        assert_eq!(gather.fill(4, &[3, 4, 5]), 2);
        assert_eq!(gather.bytes(), [1, 2, 3, 4]);
        assert_eq!(gather.fill(4, &[9]), 0);
        gather.clear();
        assert!(gather.is_empty());
    }
}
