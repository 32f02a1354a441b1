//! The units of NVMe/TCP (NVMe-TCP 1.0, 3.6): common header, digests, padding, and each type's own
//! part.
//!
//! A PDU is: header of HLEN bytes · header digest · padding up to PDO · data · data digest.
//! [`Header`] reads the first 8 bytes, [`Header::layout`] checks them against the negotiated
//! parameters and returns the length of each part, and the structure of the type reads the rest of
//! the header. [`Framing`] writes.
//!
//! # Contract
//! A [`PduError`] is the peer's fault; its two fields are those of a TermReq (T24).
mod setup;

use alloc::vec::Vec;

use super::{Cqe, WireError, crc::crc32c, exact, le16, le32, put};
use crate::limits::TERM_REQ_MAX;

pub use setup::{IcReq, IcResp, TermReq};

/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// HLEN of ICReq and ICResp.
pub const IC_LEN: usize = 128;
/// HLEN of CapsuleCmd.
pub const CAPSULE_CMD_LEN: usize = 72;
/// HLEN of CapsuleResp, H2CData, C2HData, R2T and both TermReqs.
pub const SHORT_LEN: usize = 24;
/// Bytes of either digest.
pub const DIGEST_LEN: usize = 4;
/// Longest header with its digest.
pub const HEADER_MAX: usize = IC_LEN + DIGEST_LEN;

/// Flags of the common header.
pub mod flags {
    /// A header digest follows the header.
    pub const HDGST: u8 = 1 << 0;
    /// A data digest follows the data.
    pub const DDGST: u8 = 1 << 1;
    /// Last PDU of the transfer (H2CData: of the R2T).
    pub const LAST: u8 = 1 << 2;
    /// C2HData: the command ended well and no response follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// PDU types (NVMe-TCP 1.0, 3.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum PduType {
    IcReq = 0x00,
    IcResp = 0x01,
    H2cTermReq = 0x02,
    C2hTermReq = 0x03,
    CapsuleCmd = 0x04,
    CapsuleResp = 0x05,
    H2cData = 0x06,
    C2hData = 0x07,
    R2t = 0x09,
}

impl PduType {
    /// From the header's first byte.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// HLEN: bytes of the header without digest.
    pub const fn header_len(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => IC_LEN,
            Self::CapsuleCmd => CAPSULE_CMD_LEN,
            _ => SHORT_LEN,
        }
    }

    /// Whether the host sends it (else the controller does).
    pub const fn from_host(self) -> bool {
        matches!(
            self,
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData
        )
    }

    /// Connection set-up and termination never carry digests (NVMe-TCP 1.0, 3.3.1.1; T24).
    const fn has_digests(self) -> bool {
        !matches!(
            self,
            Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq
        )
    }
}

/// Fatal error status of a TermReq (NVMe-TCP 1.0, 3.6.2.3 and 3.6.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Fes {
    /// A header field has an illegal value; FEI is its offset.
    InvalidHeaderField = 1,
    /// The PDU may not come now.
    Sequence = 2,
    /// FEI is the digest received.
    HeaderDigest = 3,
    /// Offset or length outside the command or R2T.
    DataRange = 4,
    /// More R2Ts than agreed (to the controller); more data than agreed (to the host).
    Limit = 5,
    /// A parameter isn't supported; FEI is its offset.
    UnsupportedParameter = 6,
}

impl Fes {
    /// From the field; `None` is reserved.
    pub const fn from_value(value: u16) -> Option<Self> {
        Some(match value {
            1 => Self::InvalidHeaderField,
            2 => Self::Sequence,
            3 => Self::HeaderDigest,
            4 => Self::DataRange,
            5 => Self::Limit,
            6 => Self::UnsupportedParameter,
            _ => return None,
        })
    }

    /// The text for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidHeaderField => "invalid PDU header field",
            Self::Sequence => "PDU sequence error",
            Self::HeaderDigest => "header digest error",
            Self::DataRange => "data transfer out of range",
            Self::Limit => "R2T or data transfer limit exceeded",
            Self::UnsupportedParameter => "unsupported parameter",
        }
    }
}

/// A violation of the protocol by a PDU, as a TermReq reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduError {
    /// Fatal error status.
    pub fes: Fes,
    /// Fatal error information: offset of the field, or the digest received; else 0.
    pub fei: u32,
}

impl PduError {
    /// A field at `offset` has an illegal value.
    pub const fn field(offset: u32) -> Self {
        Self {
            fes: Fes::InvalidHeaderField,
            fei: offset,
        }
    }

    /// A PDU of this type may not come now.
    pub const SEQUENCE: Self = Self {
        fes: Fes::Sequence,
        fei: 0,
    };
    /// Offset or length outside the negotiated range.
    pub const RANGE: Self = Self {
        fes: Fes::DataRange,
        fei: 0,
    };
    /// Too many R2Ts, or too much data.
    pub const LIMIT: Self = Self {
        fes: Fes::Limit,
        fei: 0,
    };
}

impl core::fmt::Display for PduError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.fes {
            Fes::InvalidHeaderField | Fes::UnsupportedParameter => {
                write!(f, "{} at byte {}", self.fes.name(), self.fei)
            }
            _ => f.write_str(self.fes.name()),
        }
    }
}

impl core::error::Error for PduError {}

/// The common header as it is written; nothing checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// PDU type.
    pub kind: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Bytes of the header.
    pub hlen: u8,
    /// Offset of the data.
    pub pdo: u8,
    /// Bytes of the whole PDU.
    pub plen: u32,
}

/// Type of a PDU and the length of each part, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its type.
    pub kind: PduType,
    /// See [`flags`].
    pub flags: u8,
    /// Header with its digest.
    pub header: u32,
    /// Padding behind it.
    pub pad: u32,
    /// Data.
    pub data: u32,
    /// Data digest: 0 or 4.
    pub data_digest: u32,
}

/// Parameters agreed for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Header digests on.
    pub header_digest: bool,
    /// Data digests on.
    pub data_digest: bool,
    /// Alignment of data in a PDU, bytes: (CPDA or HPDA + 1) · 4, so 4…128.
    pub alignment: u32,
}

impl Header {
    /// # Errors
    /// [`WireError::Truncated`] below 8 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact::<COMMON_LEN>(bytes)?;
        Ok(Self {
            kind: b[0],
            flags: b[1],
            hlen: b[2],
            pdo: b[3],
            plen: le32(b, 4),
        })
    }

    /// The 8 bytes.
    #[inline]
    pub fn emit(&self) -> [u8; COMMON_LEN] {
        let p = self.plen.to_le_bytes();
        [
            self.kind, self.flags, self.hlen, self.pdo, p[0], p[1], p[2], p[3],
        ]
    }

    /// Checks type, direction, lengths, digests flags and data offset against the agreed
    /// parameters.
    ///
    /// `from_host`: the host sent it. Where the type carries data, its length isn't bounded here
    /// except by PLEN itself: the machine compares it with the command before a byte of it is
    /// taken.
    ///
    /// # Errors
    /// The fields of the TermReq to send: `InvalidHeaderField` with the offset of type (0), flags
    /// (1), HLEN (2), PDO (3) or PLEN (4); `Sequence` if the type goes the other way.
    #[inline(always)] // with a constant `from_host` half of it is gone
    pub fn layout(&self, from_host: bool, framing: &Framing) -> Result<Layout, PduError> {
        // Each of the usual ones has a copy of what follows, in which its type is a constant.
        match PduType::from_byte(self.kind) {
            Some(kind) if kind.from_host() != from_host => Err(PduError::SEQUENCE),
            Some(PduType::CapsuleCmd) => self.layout_of(PduType::CapsuleCmd, framing),
            Some(PduType::CapsuleResp) => self.layout_of(PduType::CapsuleResp, framing),
            Some(PduType::C2hData) => self.layout_of(PduType::C2hData, framing),
            Some(kind) => self.layout_of(kind, framing),
            None => Err(PduError::field(0)),
        }
    }

    #[inline(always)]
    fn layout_of(&self, kind: PduType, framing: &Framing) -> Result<Layout, PduError> {
        let hlen = kind.header_len() as u32;
        if u32::from(self.hlen) != hlen {
            return Err(PduError::field(2));
        }
        let digest = if kind.has_digests() {
            if (self.flags & flags::HDGST != 0) != framing.header_digest {
                return Err(PduError::field(1));
            }
            u32::from(framing.header_digest) * DIGEST_LEN as u32
        } else {
            0
        };
        let header = hlen + digest;
        let none = Layout {
            kind,
            flags: self.flags,
            header,
            pad: 0,
            data: 0,
            data_digest: 0,
        };
        match kind {
            PduType::IcReq | PduType::IcResp | PduType::CapsuleResp | PduType::R2t => {
                if self.plen == header {
                    Ok(none)
                } else {
                    Err(PduError::field(4))
                }
            }
            // Error data: the header of the PDU that was refused. It has no offset of its own.
            PduType::H2cTermReq | PduType::C2hTermReq => match self.plen {
                24..=TERM_REQ_MAX => Ok(Layout {
                    data: self.plen - header,
                    ..none
                }),
                _ => Err(PduError::field(4)),
            },
            PduType::CapsuleCmd if self.plen == header => Ok(none),
            _ => self.data_layout(none, framing),
        }
    }

    /// The rest of [`Self::layout`] for PDUs that carry data.
    #[inline(always)]
    fn data_layout(&self, layout: Layout, framing: &Framing) -> Result<Layout, PduError> {
        if (self.flags & flags::DDGST != 0) != framing.data_digest {
            return Err(PduError::field(1));
        }
        let pdo = u32::from(self.pdo);
        let aligned = match framing.alignment {
            4 => pdo & 3 == 0, // the usual one needs no division
            alignment => pdo.is_multiple_of(alignment),
        };
        if pdo < layout.header || !aligned {
            return Err(PduError::field(3));
        }
        let data_digest = u32::from(framing.data_digest) * DIGEST_LEN as u32;
        match self.plen.checked_sub(pdo + data_digest) {
            None | Some(0) => Err(PduError::field(4)),
            Some(data) => Ok(Layout {
                pad: pdo - layout.header,
                data,
                data_digest,
                ..layout
            }),
        }
    }
}

impl Framing {
    /// Before ICResp: no digests, data aligned to 4.
    pub const PLAIN: Self = Self {
        header_digest: false,
        data_digest: false,
        alignment: 4,
    };

    /// Appends header, header digest and padding of a PDU whose `data` bytes (0 = none) the caller
    /// puts behind, with their digest where that is on. `own` is the header after the common 8
    /// bytes.
    ///
    /// # Panics
    /// If `own` isn't as long as the type says (a broken caller).
    #[inline(always)]
    pub fn begin(&self, out: &mut Vec<u8>, kind: PduType, flag: u8, own: &[u8], data: u32) {
        let hlen = kind.header_len();
        assert!(own.len() + COMMON_LEN == hlen);
        let digests = kind.has_digests();
        let header_digest = digests && self.header_digest;
        let data_digest = digests && self.data_digest && data > 0;
        let header = hlen + usize::from(header_digest) * DIGEST_LEN;
        let pdo = if data == 0 { 0 } else { self.align(header) };
        let common = Header {
            kind: kind as u8,
            flags: flag
                | if header_digest { flags::HDGST } else { 0 }
                | if data_digest { flags::DDGST } else { 0 },
            hlen: hlen as u8,
            // At most 72 + 4 rounded up to 128.
            pdo: if digests { pdo as u8 } else { 0 },
            plen: (header.max(pdo) as u32) + data + u32::from(data_digest) * DIGEST_LEN as u32,
        };
        let start = out.len();
        if let Ok(own) = <&[u8; SHORT_LEN - COMMON_LEN]>::try_from(own) {
            // In one piece: nearly all PDUs, and room is looked for once.
            let mut bytes = [0; SHORT_LEN];
            bytes[..COMMON_LEN].copy_from_slice(&common.emit());
            bytes[COMMON_LEN..].copy_from_slice(own);
            out.extend_from_slice(&bytes);
        } else {
            out.extend_from_slice(&common.emit());
            out.extend_from_slice(own);
        }
        if header_digest {
            let crc = crc32c(0, &out[start..]);
            out.extend_from_slice(&crc.to_le_bytes());
        }
        if pdo > header {
            out.resize(start + pdo, 0);
        }
    }

    /// Where data begins behind a header of so many bytes, a multiple of 4.
    #[inline]
    fn align(&self, header: usize) -> usize {
        match self.alignment {
            4 => header, // the usual one needs no division
            alignment => header.next_multiple_of(alignment as usize),
        }
    }

    /// Appends a whole PDU with the machine's own data behind the header (empty = none).
    pub fn whole(&self, out: &mut Vec<u8>, kind: PduType, flag: u8, own: &[u8], data: &[u8]) {
        self.begin(out, kind, flag, own, data.len() as u32);
        out.extend_from_slice(data);
        if kind.has_digests() && self.data_digest && !data.is_empty() {
            out.extend_from_slice(&crc32c(0, data).to_le_bytes());
        }
    }

    /// Whether the digest behind `header` (of `layout.header` bytes) is right; true where there is
    /// none.
    #[inline]
    pub fn header_digest_ok(&self, kind: PduType, header: &[u8]) -> bool {
        if !(self.header_digest && kind.has_digests()) {
            return true;
        }
        let at = header.len() - DIGEST_LEN;
        crc32c(0, &header[..at]) == le32(header, at)
    }
}

/// The header of H2CData, C2HData and R2T (NVMe-TCP 1.0, 3.6.2.7 to 3.6.2.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Command.
    pub cccid: u16,
    /// Transfer tag (R2T and H2CData; reserved in C2HData).
    pub ttag: u16,
    /// First byte in the command's buffer.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

impl DataHeader {
    /// Parses a whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 24 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact::<SHORT_LEN>(bytes)?;
        Ok(Self {
            cccid: le16(b, 8),
            ttag: le16(b, 10),
            offset: le32(b, 12),
            length: le32(b, 16),
        })
    }

    /// The header after the common 8 bytes, for [`Framing::begin`].
    #[inline]
    pub fn emit(&self) -> [u8; SHORT_LEN - COMMON_LEN] {
        let mut own = [0; SHORT_LEN - COMMON_LEN];
        put(&mut own, 0, &self.cccid.to_le_bytes());
        put(&mut own, 2, &self.ttag.to_le_bytes());
        put(&mut own, 4, &self.offset.to_le_bytes());
        put(&mut own, 8, &self.length.to_le_bytes());
        own
    }
}

/// CapsuleResp (NVMe-TCP 1.0, 3.6.2.6): the completion behind the common header.
///
/// # Errors
/// [`WireError::Truncated`] below 24 bytes.
#[inline]
pub fn parse_response(bytes: &[u8]) -> Result<Cqe, WireError> {
    let b = exact::<SHORT_LEN>(bytes)?;
    Cqe::parse(&b[COMMON_LEN..])
}

#[cfg(test)]
mod tests;
