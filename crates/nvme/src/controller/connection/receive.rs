//! Bytes from the host: reassembly of PDUs from any split, their checks, and where data belongs.
use super::{Connection, DataState, Events, Phase, Slots, State};
use crate::Placement;
use crate::limits::ADMIN_IN_CAPSULE;
use crate::wire::crc::crc32c;
use crate::wire::pdu::{
    COMMON_LEN, DIGEST_LEN, DataHeader, Fes, Framing, HEADER_MAX, Header, IC_LEN, IcReq, IcResp,
    Layout, PduError, PduType, TermReq, flags,
};
use crate::wire::{le32, put};

/// Result of bytes from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Step {
    /// No more bytes can be taken now.
    Wait,
    /// A command: [`Receiver::entry`]. Its data is dropped unless [`Receiver::route`] is called.
    Capsule,
    /// All data of this command has arrived.
    Complete(u16),
    /// The host broke the protocol; a TermReq is queued.
    Failed,
    /// The host sent a TermReq.
    Terminated,
}

/// Destination of a PDU's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Sink {
    /// Nowhere: the command was refused.
    Drop,
    /// The machine's own buffer of this slot.
    Own(u16),
    /// The driver's buffer of this slot.
    Payload(u16),
    /// As `Payload`, once the driver has a buffer.
    Await(u16),
}

/// Receiving side of a connection.
#[derive(Debug)]
pub(in crate::controller) struct Receiver {
    framing: Framing,
    /// Part of a header that arrived in pieces.
    header: [u8; HEADER_MAX],
    have: usize,
    /// The command of the capsule just read.
    entry: [u8; 64],
    /// The part of the PDU behind its header, while it lasts.
    body: Body,
}

/// The part of a PDU still to be received.
#[derive(Debug)]
struct Body {
    sink: Sink,
    pad: u32,
    left: u32,
    /// Bytes of the data digest still to come.
    digest_left: u8,
    /// Running data digest, where there is one.
    crc: Option<u32>,
    /// The digest received so far.
    digest: [u8; DIGEST_LEN],
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            framing: Framing::PLAIN,
            header: [0; HEADER_MAX],
            have: 0,
            entry: [0; 64],
            body: Body {
                sink: Sink::Drop,
                pad: 0,
                left: 0,
                digest_left: 0,
                crc: None,
                digest: [0; DIGEST_LEN],
            },
        }
    }

    /// The command of the capsule just read.
    #[inline]
    pub fn entry(&self) -> &[u8; 64] {
        &self.entry
    }

    /// In-capsule data of the command just read, bytes.
    #[inline]
    pub fn capsule_data(&self) -> u32 {
        self.body.left
    }

    /// Sets the destination of the data behind the header just read.
    #[inline]
    pub fn route(&mut self, sink: Sink) {
        self.body.sink = sink;
    }

    /// The driver has a buffer for this slot now. `true`: its data is next in the stream.
    #[inline]
    pub fn buffer_ready(&mut self, slot: u16) -> bool {
        let next = self.body.sink == Sink::Await(slot);
        if next {
            self.body.sink = Sink::Payload(slot);
        }
        next
    }

    fn fill(&mut self, up_to: usize, bytes: &[u8]) -> usize {
        let n = up_to.saturating_sub(self.have).min(bytes.len());
        put(&mut self.header, self.have, &bytes[..n]);
        self.have += n;
        n
    }

    #[inline]
    fn layout(&self, bytes: &[u8]) -> Result<Layout, PduError> {
        let header = Header::parse(bytes).map_err(|_| PduError::field(4))?;
        header.layout(true, &self.framing)
    }

    #[inline]
    fn expect_body(&mut self, layout: &Layout, sink: Sink) {
        let body = &mut self.body;
        body.sink = sink;
        body.pad = layout.pad;
        body.left = layout.data;
        body.digest_left = layout.data_digest as u8;
        body.crc = (layout.data_digest > 0).then_some(0);
    }
}

impl Body {
    /// Takes bytes that are not payload. Returns how many.
    fn take(&mut self, bytes: &[u8], slots: &mut Slots) -> usize {
        let mut used = bytes.len().min(self.pad as usize);
        self.pad -= used as u32;
        if self.pad == 0 && self.left > 0 {
            let n = (bytes.len() - used).min(self.left as usize);
            let data = &bytes[used..used + n];
            match self.sink {
                Sink::Drop => {}
                Sink::Own(slot) => {
                    let command = &mut slots[slot];
                    let most = command.own_len();
                    if command.own.capacity() == 0 {
                        command.own.reserve_exact(most as usize);
                    }
                    let kept = n.min(most.saturating_sub(command.done) as usize);
                    command.own.extend_from_slice(&data[..kept]);
                    command.done += n as u32;
                    self.crc = self.crc.map(|crc| crc32c(crc, data));
                }
                Sink::Payload(_) | Sink::Await(_) => return used,
            }
            self.left -= n as u32;
            used += n;
        }
        if self.pad == 0 && self.left == 0 && self.digest_left > 0 {
            let n = (bytes.len() - used).min(self.digest_left.into());
            let at = DIGEST_LEN - usize::from(self.digest_left);
            put(&mut self.digest, at, &bytes[used..used + n]);
            self.digest_left -= n as u8;
            used += n;
        }
        used
    }

    /// The driver moves the next bytes.
    #[inline]
    fn is_payload(&self) -> bool {
        let sink = matches!(self.sink, Sink::Payload(_) | Sink::Await(_));
        sink && self.pad == 0 && self.left > 0
    }

    /// Whether all of it was received.
    #[inline]
    fn is_over(&self) -> bool {
        self.pad == 0 && self.left == 0 && self.digest_left == 0
    }

    /// Ends a PDU: a wrong digest makes its command fail (T17). Returns the slot if that was all of
    /// its data.
    #[inline]
    fn end(&mut self, slots: &mut Slots) -> Option<u16> {
        let (Sink::Own(slot) | Sink::Payload(slot)) = self.sink else {
            return None;
        };
        self.sink = Sink::Drop;
        let command = &mut slots[slot];
        let is_damaged = self
            .crc
            .is_some_and(|crc| crc != u32::from_le_bytes(self.digest));
        if is_damaged && command.data == DataState::Good {
            command.data = DataState::Damaged;
        }
        (command.done == command.len).then_some(slot)
    }
}

impl Connection {
    /// Takes bytes from the host. Returns how many, and the result; call again until `Wait`.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8]) -> (usize, Step) {
        if !matches!(
            self.phase,
            Phase::Initialize | Phase::Connect | Phase::Ready
        ) {
            return (bytes.len(), Step::Wait);
        }
        let mut used = 0;
        loop {
            if !self.rx.body.is_over() {
                if self.rx.body.is_payload() {
                    return (used, Step::Wait);
                }
                used += self.rx.body.take(&bytes[used..], &mut self.slots);
                if !self.rx.body.is_over() {
                    return (used, Step::Wait);
                }
                if let Some(slot) = self.rx.body.end(&mut self.slots) {
                    return (used, Step::Complete(slot));
                }
            }
            if used == bytes.len() {
                return (used, Step::Wait);
            }
            if self.rx.have == 0 && self.slots.is_full() {
                self.starved = true;
                return (used, Step::Wait);
            }
            let (n, step) = self.receive_header(&bytes[used..]);
            used += n;
            if let Some(step) = step {
                return (used, step);
            }
        }
    }

    /// `len` bytes of payload are in place. Returns the slot whose data is now complete. A receive
    /// that was in progress when the queue ended completes nothing: its write would be executed
    /// after the reset was acknowledged (T9).
    #[inline]
    pub fn payload(&mut self, len: u32, crc: u32) -> Option<u16> {
        if self.phase != Phase::Ready {
            return None;
        }
        let body = &mut self.rx.body;
        let Sink::Payload(slot) = body.sink else {
            panic!("payload that was not placed");
        };
        assert!(len <= body.left, "more payload than was placed");
        body.left -= len;
        body.crc = body.crc.map(|_| crc);
        self.slots[slot].done += len;
        if !body.is_over() {
            return None;
        }
        body.end(&mut self.slots)
    }

    /// Returns where the next bytes belong, if they are payload.
    #[inline]
    pub fn placement(&self) -> Option<Placement> {
        let body = &self.rx.body;
        let Sink::Payload(slot) = body.sink else {
            return None;
        };
        if body.pad > 0 || body.left == 0 || self.phase != Phase::Ready {
            return None;
        }
        let offset = self.slots[slot].done;
        Some(Placement {
            token: slot.into(),
            offset,
            len: body.left,
            crc: body.crc,
        })
    }

    /// Takes bytes of a header; `None` if it has no consequence for the owner.
    #[inline]
    fn receive_header(&mut self, bytes: &[u8]) -> (usize, Option<Step>) {
        if self.rx.have == 0 && bytes.len() >= COMMON_LEN {
            let layout = match self.rx.layout(bytes) {
                Ok(layout) => layout,
                Err(error) => return self.violation(error, bytes),
            };
            // Usually the whole header is here: nothing is copied.
            if let Some(header) = bytes.get(..layout.header as usize) {
                return match self.accept(&layout, header) {
                    Ok(step) => (header.len(), step),
                    Err(error) => self.violation(error, header),
                };
            }
        }
        self.gather_header(bytes)
    }

    /// As above for a header that comes in pieces.
    #[cold]
    fn gather_header(&mut self, bytes: &[u8]) -> (usize, Option<Step>) {
        let mut used = self.rx.fill(COMMON_LEN, bytes);
        if self.rx.have < COMMON_LEN {
            return (used, Some(Step::Wait));
        }
        let header = self.rx.header;
        let layout = match self.rx.layout(&header) {
            Ok(layout) => layout,
            Err(error) => return self.violation(error, &header[..self.rx.have]),
        };
        used += self.rx.fill(layout.header as usize, &bytes[used..]);
        if self.rx.have < layout.header as usize {
            return (used, Some(Step::Wait));
        }
        let header = self.rx.header;
        self.rx.have = 0;
        let header = &header[..layout.header as usize];
        match self.accept(&layout, header) {
            Ok(step) => (used, step),
            Err(error) => self.violation(error, header),
        }
    }

    /// Ends the connection: all further bytes are discarded. `pdu` begins with the header in error.
    #[cold]
    fn violation(&mut self, error: PduError, pdu: &[u8]) -> (usize, Option<Step>) {
        let hlen = pdu.get(2).map_or(COMMON_LEN, |&hlen| usize::from(hlen));
        let header = &pdu[..hlen.clamp(COMMON_LEN, IC_LEN).min(pdu.len())];
        self.refuse(error, header);
        (0, Some(Step::Failed))
    }

    /// Checks a PDU against the state of the connection and returns where its data belongs.
    /// `header` has the length in its layout.
    #[inline]
    fn accept(&mut self, layout: &Layout, header: &[u8]) -> Result<Option<Step>, PduError> {
        if !self.rx.framing.header_digest_ok(layout.kind, header) {
            let fei = le32(header, header.len() - DIGEST_LEN);
            return Err(PduError {
                fes: Fes::HeaderDigest,
                fei,
            });
        }
        let connected = matches!(self.phase, Phase::Connect | Phase::Ready);
        match layout.kind {
            PduType::CapsuleCmd if connected => {
                // In-capsule data: up to the capsule size on I/O queues, 8 KiB elsewhere (T23).
                let io = self.qid != 0;
                let limit = if io {
                    self.terms.in_capsule_max
                } else {
                    ADMIN_IN_CAPSULE
                };
                if layout.data > limit {
                    return Err(PduError::field(4));
                }
                self.rx
                    .entry
                    .copy_from_slice(&header[COMMON_LEN..COMMON_LEN + 64]);
                self.rx.expect_body(layout, Sink::Drop);
                Ok(Some(Step::Capsule))
            }
            PduType::H2cData if connected => {
                let data = DataHeader::parse(header).map_err(|_| PduError::field(4))?;
                let slot = self.check_data(layout, &data)?;
                let own = self.slots[slot].purpose.is_own();
                let sink = if own {
                    Sink::Own(slot)
                } else {
                    Sink::Payload(slot)
                };
                self.rx.expect_body(layout, sink);
                Ok(None)
            }
            PduType::IcReq if self.phase == Phase::Initialize => {
                let request = IcReq::parse(header).map_err(|_| PduError::field(10))?;
                self.initialize(&request)?;
                Ok(None)
            }
            PduType::H2cTermReq => Ok(Some(Step::Terminated)),
            _ => Err(PduError::SEQUENCE),
        }
    }

    /// ICReq: only version 0 exists; digests are as the host asks (NVMe-TCP 1.0, 3.6.2.1).
    fn initialize(&mut self, request: &IcReq) -> Result<(), PduError> {
        if request.pfv != 0 {
            return Err(PduError {
                fes: Fes::UnsupportedParameter,
                fei: 8,
            });
        }
        let response = IcResp {
            pfv: 0,
            cpda: (self.terms.alignment / 4 - 1) as u8,
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            maxh2cdata: self.terms.maxh2cdata,
        };
        response.emit(&mut self.tx.own);
        let framing = |alignment| Framing {
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            alignment,
        };
        self.rx.framing = framing(self.terms.alignment);
        self.tx.framing = framing((u32::from(request.hpda) + 1) * 4);
        self.phase = Phase::Connect;
        Ok(())
    }

    /// H2CData must continue the one R2T of its command, within it, and have LAST at its end (T20).
    fn check_data(&self, layout: &Layout, data: &DataHeader) -> Result<u16, PduError> {
        let command = self.slots.get(data.ttag);
        let Some(command) = command.filter(|command| command.state == State::Receiving) else {
            return Err(PduError::field(10));
        };
        if command.cid != data.cccid {
            return Err(PduError::field(8));
        }
        if data.length != layout.data {
            return Err(PduError::field(16));
        }
        if data.length > self.terms.maxh2cdata {
            return Err(PduError::LIMIT);
        }
        let end = u64::from(data.offset) + u64::from(data.length);
        if data.offset != command.done || end > u64::from(command.len) {
            return Err(PduError::RANGE);
        }
        let last = layout.flags & flags::LAST != 0;
        if last != (end == u64::from(command.len)) {
            return Err(PduError::field(1));
        }
        Ok(data.ttag)
    }

    /// The peer broke the protocol, or a header was damaged in transit: only a TermReq is still
    /// sent (T24).
    pub fn refuse(&mut self, error: PduError, header: &[u8]) {
        self.damaged = error.fes == Fes::HeaderDigest;
        self.tx.queue.clear();
        TermReq::emit(error, false, header, &mut self.tx.own);
    }

    /// ICResp is sent at once.
    pub fn kick_own(&mut self, events: &mut Events) {
        if !self.tx.own.is_empty() {
            self.kick(events);
        }
    }
}
