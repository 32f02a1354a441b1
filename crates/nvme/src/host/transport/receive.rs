//! Parses PDUs out of an arbitrarily cut stream, and checks them against the agreed parameters.
//!
//! Errors are [`PduError`]s: each names the violated rule as in a TermReq.
use super::{Connection, Index, Phase, Queued};
use crate::Placement;
use crate::host::{Data, Digests, HostError};
use crate::wire::pdu::{
    COMMON_LEN, DIGEST_LEN, DataHeader, Fes, Framing, HEADER_MAX, Header, IcResp, Layout, PduError,
    PduType, TermReq, flags, parse_response,
};
use crate::wire::{Status, WireError, le32};
use canary::Bug;

/// Offsets of fields that a TermReq names (NVMe-TCP 1.0, 3.6.2).
mod field {
    pub const FLAGS: u32 = 1;
    pub const PFV: u32 = 8;
    pub const DIGESTS: u32 = 11;
    pub const CCCID: u32 = 8;
    pub const OFFSET: u32 = 12;
    pub const LENGTH: u32 = 16;
    /// In the completion, which starts at 8.
    pub const SQHD: u32 = 16;
    pub const CID: u32 = 20;
}

/// The part of a PDU that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    Pad,
    Payload,
    DataDigest,
    /// All input is ignored.
    Over,
}

/// The PDU being received.
#[derive(Debug)]
pub struct Receive {
    part: Part,
    /// A header that arrived in pieces, and its layout once the first 8 bytes have arrived.
    header: [u8; HEADER_MAX],
    have: usize,
    layout: Option<Layout>,
    /// The data being received: its command, padding and bytes still missing, digest so far.
    index: Index,
    pad: u32,
    left: u32,
    crc: u32,
    success: bool,
    digest: [u8; DIGEST_LEN],
}

impl Receive {
    pub fn new() -> Self {
        Self {
            part: Part::Header,
            header: [0; HEADER_MAX],
            have: 0,
            layout: None,
            index: 0,
            pad: 0,
            left: 0,
            crc: 0,
            success: false,
            digest: [0; DIGEST_LEN],
        }
    }

    pub fn stop(&mut self) {
        self.part = Part::Over;
        self.left = 0;
    }
}

impl Connection {
    /// Takes bytes up to where payload begins; see [`Placement`].
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            used += match self.rx.part {
                Part::Header => self.take_header(rest),
                Part::Pad => self.take_pad(rest),
                Part::Payload => break,
                Part::DataDigest => self.take_digest(rest),
                Part::Over => rest.len(),
            };
        }
        used
    }

    /// Returns where the next bytes belong, if they are payload.
    #[inline]
    pub fn placement(&self) -> Option<Placement> {
        if self.rx.part != Part::Payload {
            return None;
        }
        let slot = self.slots.peek(self.rx.index);
        Some(Placement {
            token: slot.command.token,
            offset: slot.moved - self.rx.left,
            len: self.rx.left,
            crc: self.rx_framing.data_digest.then_some(self.rx.crc),
        })
    }

    /// `len` bytes of payload are in place.
    #[inline]
    pub fn handle_payload(&mut self, len: u32, crc: u32) {
        if self.rx.part != Part::Payload {
            // The owner may have ended the connection meanwhile.
            let over = self.phase == Phase::Over;
            assert!(over, "payload that was not placed");
            return;
        }
        assert!(len <= self.rx.left, "more payload than was placed");
        self.rx.left -= len;
        self.rx.crc = crc;
        if self.rx.left > 0 {
            return;
        }
        if self.rx_framing.data_digest {
            self.rx.part = Part::DataDigest;
        } else {
            self.finish_data();
        }
    }

    fn take_header(&mut self, rest: &[u8]) -> usize {
        if self.rx.have == 0
            && let Ok(common) = Header::parse(rest)
        {
            // The usual case: the whole header has arrived and needs no copy.
            let layout = match common.layout(false, &self.rx_framing) {
                Ok(layout) => layout,
                Err(error) => {
                    self.refuse(HostError::Protocol(error), error, &rest[..COMMON_LEN]);
                    return rest.len();
                }
            };
            if let Some(header) = rest.get(..layout.header as usize) {
                self.process(&layout, header);
                return header.len();
            }
        }
        self.collect_header(rest)
    }

    /// A header in pieces.
    fn collect_header(&mut self, rest: &[u8]) -> usize {
        let need = self
            .rx
            .layout
            .map_or(COMMON_LEN, |layout| layout.header as usize);
        let n = rest.len().min(need - self.rx.have);
        self.rx.header[self.rx.have..self.rx.have + n].copy_from_slice(&rest[..n]);
        self.rx.have += n;
        if self.rx.have < need {
            return n;
        }
        let header = self.rx.header;
        if let Some(layout) = self.rx.layout.take() {
            self.rx.have = 0;
            self.process(&layout, &header[..need]);
            return n;
        }
        let layout = Header::parse(&header).map_err(|_| PduError::SEQUENCE);
        match layout.and_then(|common| common.layout(false, &self.rx_framing)) {
            Ok(layout) => self.rx.layout = Some(layout),
            Err(error) => self.refuse(HostError::Protocol(error), error, &header[..need]),
        }
        n
    }

    fn take_pad(&mut self, rest: &[u8]) -> usize {
        let n = rest.len().min(self.rx.pad as usize);
        self.rx.pad -= n as u32;
        if self.rx.pad == 0 {
            self.rx.part = Part::Payload;
        }
        n
    }

    fn take_digest(&mut self, rest: &[u8]) -> usize {
        let n = rest.len().min(DIGEST_LEN - self.rx.have);
        self.rx.digest[self.rx.have..self.rx.have + n].copy_from_slice(&rest[..n]);
        self.rx.have += n;
        if self.rx.have == DIGEST_LEN {
            self.rx.have = 0;
            if le32(&self.rx.digest, 0) != self.rx.crc && !canary::has(Bug::ForgottenDigest) {
                self.slots.at(self.rx.index).damaged = true; // T17
            }
            self.finish_data();
        }
        n
    }

    /// The data of one C2HData is complete.
    #[inline]
    fn finish_data(&mut self) {
        self.rx.part = Part::Header;
        if self.rx.success {
            self.end(self.rx.index, Status::SUCCESS, 0);
        }
    }

    /// One whole header.
    #[inline]
    fn process(&mut self, layout: &Layout, header: &[u8]) {
        if let Err(error) = self.dispatch(layout, header) {
            self.refuse(HostError::Protocol(error), error, header);
        }
    }

    #[inline(always)] // with the check of the layout, which knows the type already
    fn dispatch(&mut self, layout: &Layout, header: &[u8]) -> Result<(), PduError> {
        if !self.rx_framing.header_digest_ok(layout.kind, header) {
            let fei = le32(header, header.len() - DIGEST_LEN);
            return Err(PduError {
                fes: Fes::HeaderDigest,
                fei,
            });
        }
        let up = self.phase == Phase::Up;
        match layout.kind {
            PduType::C2hData if up => self.data(layout, header),
            PduType::CapsuleResp if up => self.response(header),
            PduType::R2t if up => self.ready_to_transfer(header),
            PduType::IcResp if self.phase == Phase::Handshake => self.handshake(header),
            PduType::C2hTermReq => {
                let TermReq { fes, fei } = TermReq::parse(header).map_err(truncated)?;
                self.fail(HostError::Terminated { fes, fei });
                Ok(())
            }
            _ => Err(PduError::SEQUENCE),
        }
    }

    /// ICResp (T25).
    #[cold]
    fn handshake(&mut self, header: &[u8]) -> Result<(), PduError> {
        let response = IcResp::parse(header).map_err(truncated)?;
        if response.pfv != 0 {
            let error = PduError {
                fes: Fes::UnsupportedParameter,
                fei: field::PFV,
            };
            self.refuse(HostError::PduVersion(response.pfv), error, header);
            return Ok(());
        }
        let asked = self.settings.digests;
        let got = Digests {
            header: response.header_digest,
            data: response.data_digest,
        };
        if asked != got {
            let error = PduError {
                fes: Fes::UnsupportedParameter,
                fei: field::DIGESTS,
            };
            self.refuse(HostError::Digests { asked, got }, error, header);
            return Ok(());
        }
        let framing = |alignment| Framing {
            header_digest: got.header,
            data_digest: got.data,
            alignment,
        };
        // The host asked for no alignment (HPDA 0: 4 bytes); the controller for CPDA's.
        self.rx_framing = framing(4);
        self.tx_framing = framing((u32::from(response.cpda) + 1) * 4);
        self.maxh2cdata = response.maxh2cdata;
        self.phase = Phase::Up;
        Ok(())
    }

    /// C2HData: in order, within the command, only for reads (T21).
    #[inline(always)] // of each read, in one place
    fn data(&mut self, layout: &Layout, header: &[u8]) -> Result<(), PduError> {
        let pdu = DataHeader::parse(header).map_err(truncated)?;
        let index = self
            .slots
            .find(pdu.cccid)
            .ok_or(PduError::field(field::CCCID))?;
        let slot = self.slots.at(index);
        let Data::In(len) = slot.command.data else {
            return Err(PduError::field(field::CCCID));
        };
        if slot.last {
            return Err(PduError::SEQUENCE);
        }
        if pdu.length != layout.data {
            return Err(PduError::field(field::LENGTH));
        }
        if u64::from(pdu.offset) + u64::from(pdu.length) > u64::from(len) {
            return Err(PduError::RANGE);
        }
        if pdu.offset != slot.moved {
            return Err(PduError::field(field::OFFSET));
        }
        slot.last = layout.flags & flags::LAST != 0;
        // No response follows: valid only where the host gave up SQHD, and at the end (T18).
        let success = layout.flags & flags::SUCCESS != 0;
        if success && !(slot.last && self.settings.disable_sq_flow_control) {
            return Err(PduError::field(field::FLAGS));
        }
        slot.moved += pdu.length;
        self.rx.index = index;
        self.rx.left = pdu.length;
        self.rx.pad = layout.pad;
        self.rx.crc = 0;
        self.rx.success = success;
        self.rx.part = if layout.pad > 0 {
            Part::Pad
        } else {
            Part::Payload
        };
        Ok(())
    }

    /// R2T: one outstanding per command, continuing, inside the command, only for writes (T19).
    #[inline(never)]
    fn ready_to_transfer(&mut self, header: &[u8]) -> Result<(), PduError> {
        let pdu = DataHeader::parse(header).map_err(truncated)?;
        let index = self
            .slots
            .find(pdu.cccid)
            .ok_or(PduError::field(field::CCCID))?;
        let slot = self.slots.at(index);
        let Data::Out(len) = slot.command.data else {
            return Err(PduError::field(field::CCCID));
        };
        if pdu.length == 0 {
            return Err(PduError::field(field::LENGTH));
        }
        if slot.moved < slot.granted {
            return Err(PduError::LIMIT);
        }
        if u64::from(pdu.offset) + u64::from(pdu.length) > u64::from(len) {
            return Err(PduError::RANGE);
        }
        if pdu.offset != slot.granted {
            return Err(PduError::field(field::OFFSET));
        }
        slot.granted += pdu.length;
        slot.ttag = pdu.ttag;
        self.queued.push_back(Queued::Data(index, pdu.cccid));
        Ok(())
    }

    /// CapsuleResp.
    #[inline]
    fn response(&mut self, header: &[u8]) -> Result<(), PduError> {
        let cqe = parse_response(header).map_err(truncated)?;
        let index = self
            .slots
            .find(cqe.cid)
            .ok_or(PduError::field(field::CID))?;
        if self.slots.at(index).command.is_connect() {
            if cqe.status.is_success() {
                self.start_ring(cqe.sqhd);
            }
        } else if !self.ring.advance(cqe.sqhd) {
            return Err(PduError::field(field::SQHD));
        }
        self.end(index, cqe.status, cqe.result);
        Ok(())
    }

    /// Ends a command with the controller's status, unless the host detected an error.
    #[inline]
    fn end(&mut self, index: Index, status: Status, result: u64) {
        let slot = self.slots.at(index);
        let short = match slot.command.data {
            Data::None => false,
            Data::In(len) | Data::Out(len) => slot.moved != len,
        };
        let status = match status.is_success() {
            true if slot.damaged => Status::TRANSIENT_TRANSPORT,
            // A success that moved fewer bytes than requested is an error (T16).
            true if short && !canary::has(Bug::ShortRead) => Status::DATA_TRANSFER_ERROR,
            _ => status,
        };
        self.slots.end(index, status, result);
    }
}

/// The layout has checked the length, so only a field can be wrong.
fn truncated(error: WireError) -> PduError {
    match error {
        WireError::Field { offset } => PduError::field(u32::from(offset)),
        WireError::Truncated { .. } => PduError::field(4),
    }
}
