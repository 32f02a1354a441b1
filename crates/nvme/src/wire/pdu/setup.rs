//! The PDUs that open and end a connection: ICReq, ICResp and the TermReqs.
use super::{COMMON_LEN, Framing, IC_LEN, PduError, PduType, SHORT_LEN};
use crate::limits::TERM_REQ_MAX;
use crate::wire::{WireError, exact, le16, le32, put};
use alloc::vec::Vec;

/// ICReq: the host's first PDU (NVMe-TCP 1.0, 3.6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// PDU format version: 0.
    pub pfv: u16,
    /// Alignment the host wants in C2HData: (HPDA + 1) · 4 bytes; 0…31.
    pub hpda: u8,
    /// Asks for header digests.
    pub header_digest: bool,
    /// Asks for data digests.
    pub data_digest: bool,
    /// R2Ts outstanding per command, less one.
    pub maxr2t: u32,
}

impl IcReq {
    /// Parses a whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 128 bytes; [`WireError::Field`] at 10 if HPDA is above 31.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact::<IC_LEN>(bytes)?;
        if b[10] > 31 {
            return Err(WireError::Field { offset: 10 });
        }
        Ok(Self {
            pfv: le16(b, 8),
            hpda: b[10],
            header_digest: b[11] & 1 != 0,
            data_digest: b[11] & 2 != 0,
            maxr2t: le32(b, 12),
        })
    }

    /// Appends the PDU.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let dgst = u8::from(self.header_digest) | u8::from(self.data_digest) << 1;
        let own = ic_own(self.pfv, self.hpda, dgst, self.maxr2t);
        Framing::PLAIN.begin(out, PduType::IcReq, 0, &own, 0);
    }
}

/// ICResp: the controller's first PDU (NVMe-TCP 1.0, 3.6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// PDU format version: 0.
    pub pfv: u16,
    /// Alignment the controller wants in CapsuleCmd and H2CData: (CPDA + 1) · 4 bytes; 0…31.
    pub cpda: u8,
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Most data in one H2CData, bytes: ≥ 4096, a multiple of 4.
    pub maxh2cdata: u32,
}

impl IcResp {
    /// Parses a whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 128 bytes; [`WireError::Field`] at 10 if CPDA is above 31, at
    /// 12 if
    /// MAXH2CDATA is below 4096 or not a multiple of 4 (T20).
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact::<IC_LEN>(bytes)?;
        if b[10] > 31 {
            return Err(WireError::Field { offset: 10 });
        }
        let maxh2cdata = le32(b, 12);
        if maxh2cdata < 4096 || !maxh2cdata.is_multiple_of(4) {
            return Err(WireError::Field { offset: 12 });
        }
        Ok(Self {
            pfv: le16(b, 8),
            cpda: b[10],
            header_digest: b[11] & 1 != 0,
            data_digest: b[11] & 2 != 0,
            maxh2cdata,
        })
    }

    /// Appends the PDU.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let dgst = u8::from(self.header_digest) | u8::from(self.data_digest) << 1;
        let own = ic_own(self.pfv, self.cpda, dgst, self.maxh2cdata);
        Framing::PLAIN.begin(out, PduType::IcResp, 0, &own, 0);
    }
}

/// TermReq of either direction: the last PDU of a connection that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// Fatal error status as written; see [`Fes::from_value`](super::Fes::from_value).
    pub fes: u16,
    /// Fatal error information.
    pub fei: u32,
}

impl TermReq {
    /// Parses a whole header (not the error data behind it).
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 24 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact::<SHORT_LEN>(bytes)?;
        // FEI isn't aligned: bytes 10…13.
        Ok(Self {
            fes: le16(b, 8),
            fei: le32(b, 10),
        })
    }

    /// Appends the PDU; `refused` is the header of the PDU in error, cut to what a TermReq may
    /// hold.
    pub fn emit(error: PduError, from_host: bool, refused: &[u8], out: &mut Vec<u8>) {
        let kind = if from_host {
            PduType::H2cTermReq
        } else {
            PduType::C2hTermReq
        };
        let mut own = [0; SHORT_LEN - COMMON_LEN];
        put(&mut own, 0, &(error.fes as u16).to_le_bytes());
        put(&mut own, 2, &error.fei.to_le_bytes());
        let most = TERM_REQ_MAX as usize - SHORT_LEN;
        Framing::PLAIN.whole(out, kind, 0, &own, &refused[..refused.len().min(most)]);
    }
}

/// The shared shape of both: version, alignment, digests, a 32-bit limit.
fn ic_own(pfv: u16, alignment: u8, dgst: u8, limit: u32) -> [u8; IC_LEN - COMMON_LEN] {
    let mut own = [0; IC_LEN - COMMON_LEN];
    put(&mut own, 0, &pfv.to_le_bytes());
    own[2] = alignment;
    own[3] = dgst;
    put(&mut own, 4, &limit.to_le_bytes());
    own
}
