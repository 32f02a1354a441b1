//! Bytes from the host: reassembly of PDUs from any split, their checks, and where data belongs.
use super::{Connection, Events, Phase, Slots, State};
use crate::Placement;
use crate::limits::ADMIN_IN_CAPSULE;
use crate::wire::crc::crc32c;
use crate::wire::pdu::{
    COMMON_LEN, DIGEST_LEN, DataHeader, Fes, Framing, HEADER_MAX, Header, IC_LEN, IcReq, IcResp,
    Layout, PduError, PduType, TermReq, flags,
};
use crate::wire::{le32, put};

/// What bytes from the host led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Step {
    /// All was taken that can be taken now.
    Wait,
    /// A command. Its in-capsule data is dropped unless [`Receiver::route`] says otherwise.
    Capsule([u8; 64]),
    /// All data of this command has arrived.
    Complete(u16),
    /// The host broke the protocol; a TermReq is queued.
    Failed,
    /// The host sent a TermReq.
    Terminated,
}

/// Where the data of a PDU goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Sink {
    /// Nowhere: the command was refused.
    Drop,
    /// The machine's own buffer of this slot.
    Own(u16),
    /// The driver's buffer of this slot.
    Payload(u16),
    /// As `Payload`, once the driver has one.
    Await(u16),
}

/// The part of a PDU behind its header.
#[derive(Clone, Copy, Debug)]
struct Body {
    sink: Sink,
    pad: u32,
    left: u32,
    /// Running data digest, where there is one.
    crc: Option<u32>,
    /// The digest received so far.
    digest: [u8; DIGEST_LEN],
    digest_have: u8,
}

/// Receiving side of a connection.
#[derive(Debug)]
pub(in crate::controller) struct Receiver {
    framing: Framing,
    header: [u8; HEADER_MAX],
    have: usize,
    body: Option<Body>,
}

/// A header that is whole and right in itself.
enum Pdu {
    IcReq(IcReq),
    Capsule([u8; 64]),
    Data(DataHeader),
    TermReq,
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            framing: Framing::PLAIN,
            header: [0; HEADER_MAX],
            have: 0,
            body: None,
        }
    }

    /// In-capsule data of the command just read, bytes.
    #[inline]
    pub fn capsule_data(&self) -> u32 {
        self.body.as_ref().map_or(0, |body| body.left)
    }

    /// Says where the data behind the header just read belongs.
    #[inline]
    pub fn route(&mut self, sink: Sink) {
        if let Some(body) = &mut self.body {
            body.sink = sink;
        }
    }

    /// The driver has a buffer for this slot now. `true`: its data is next in the stream.
    pub fn buffer_ready(&mut self, slot: u16) -> bool {
        match &mut self.body {
            Some(body) if body.sink == Sink::Await(slot) => {
                body.sink = Sink::Payload(slot);
                true
            }
            _ => false,
        }
    }

    /// Reads a header. Returns the bytes taken, and the header once it is whole (then `have` is the
    /// caller's to reset).
    #[inline]
    fn read_header(&mut self, bytes: &[u8]) -> Result<(usize, Option<(Layout, Pdu)>), PduError> {
        if self.have == 0 && bytes.len() >= COMMON_LEN {
            // All of it is here as a rule: nothing is copied.
            let layout = self.layout(bytes)?;
            if let Some(header) = bytes.get(..layout.header as usize) {
                let pdu = self.parse(&layout, header)?;
                return Ok((header.len(), Some((layout, pdu))));
            }
        }
        let mut used = self.fill(COMMON_LEN, bytes);
        if self.have < COMMON_LEN {
            return Ok((used, None));
        }
        let layout = self.layout(&self.header)?;
        used += self.fill(layout.header as usize, &bytes[used..]);
        if self.have < layout.header as usize {
            return Ok((used, None));
        }
        let pdu = self.parse(&layout, &self.header[..self.have])?;
        Ok((used, Some((layout, pdu))))
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

    /// `header` has the length that its layout says.
    #[inline]
    fn parse(&self, layout: &Layout, header: &[u8]) -> Result<Pdu, PduError> {
        if !self.framing.header_digest_ok(layout.kind, header) {
            let fei = le32(header, header.len() - DIGEST_LEN);
            return Err(PduError {
                fes: Fes::HeaderDigest,
                fei,
            });
        }
        match layout.kind {
            PduType::CapsuleCmd => {
                let mut sqe = [0; 64];
                sqe.copy_from_slice(&header[COMMON_LEN..COMMON_LEN + 64]);
                Ok(Pdu::Capsule(sqe))
            }
            PduType::H2cData => DataHeader::parse(header)
                .map(Pdu::Data)
                .map_err(|_| PduError::field(4)),
            PduType::IcReq => IcReq::parse(header)
                .map(Pdu::IcReq)
                .map_err(|_| PduError::field(10)),
            _ => Ok(Pdu::TermReq),
        }
    }

    #[inline]
    fn expect_body(&mut self, layout: &Layout, sink: Sink) {
        self.body = (layout.data > 0).then_some(Body {
            sink,
            pad: layout.pad,
            left: layout.data,
            crc: (layout.data_digest > 0).then_some(0),
            digest: [0; DIGEST_LEN],
            digest_have: 0,
        });
    }
}

impl Body {
    /// Takes what isn't payload. Returns the bytes taken.
    fn take(&mut self, bytes: &[u8], slots: &mut Slots) -> usize {
        let skip = bytes.len().min(self.pad as usize);
        self.pad -= skip as u32;
        let mut used = skip;
        if self.pad > 0 {
            return used;
        }
        if self.left > 0 {
            let n = (bytes.len() - used).min(self.left as usize);
            let data = &bytes[used..used + n];
            match self.sink {
                Sink::Drop => {}
                Sink::Own(slot) => {
                    slots[slot].own.extend_from_slice(data);
                    slots[slot].done += n as u32;
                    self.crc = self.crc.map(|crc| crc32c(crc, data));
                }
                Sink::Payload(_) | Sink::Await(_) => return used,
            }
            self.left -= n as u32;
            used += n;
        }
        if self.left == 0 && self.crc.is_some() {
            let have = usize::from(self.digest_have);
            let n = (bytes.len() - used).min(DIGEST_LEN - have);
            self.digest[have..have + n].copy_from_slice(&bytes[used..used + n]);
            self.digest_have += n as u8;
            used += n;
        }
        used
    }

    #[inline]
    fn is_over(&self) -> bool {
        let digest = self.crc.is_none() || usize::from(self.digest_have) == DIGEST_LEN;
        self.pad == 0 && self.left == 0 && digest
    }
}

impl Connection {
    /// Takes bytes from the host. Returns how many, and what they led to; call again until `Wait`.
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
            if let Some(body) = &mut self.rx.body {
                used += body.take(&bytes[used..], &mut self.slots);
                if !body.is_over() {
                    return (used, Step::Wait);
                }
                if let Some(slot) = self.end_body() {
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

    /// `len` bytes of payload are in place. Returns the slot whose data is now complete.
    pub fn payload(&mut self, len: u32, crc: u32) -> Option<u16> {
        let body = self.rx.body.as_mut()?;
        let Sink::Payload(slot) = body.sink else {
            return None;
        };
        assert!(len <= body.left, "more payload than was placed");
        body.left -= len;
        body.crc = body.crc.map(|_| crc);
        self.slots[slot].done += len;
        if body.is_over() {
            self.end_body()
        } else {
            None
        }
    }

    /// Where the next bytes belong, if they are payload.
    #[inline]
    pub fn placement(&self) -> Option<Placement> {
        let body = self.rx.body.as_ref()?;
        let Sink::Payload(slot) = body.sink else {
            return None;
        };
        if body.pad > 0 || body.left == 0 || !matches!(self.phase, Phase::Ready) {
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

    /// The body is over: a wrong digest sticks to its command (T17). Returns the slot if that was
    /// its last data.
    #[inline]
    fn end_body(&mut self) -> Option<u16> {
        let body = self.rx.body.take()?;
        let (Sink::Own(slot) | Sink::Payload(slot)) = body.sink else {
            return None;
        };
        let command = &mut self.slots[slot];
        if body
            .crc
            .is_some_and(|crc| crc != u32::from_le_bytes(body.digest))
        {
            command.digest_failed = true;
        }
        (command.done == command.len).then_some(slot)
    }

    /// Takes bytes of a header; `None` if it doesn't lead to anything yet.
    #[inline]
    fn receive_header(&mut self, bytes: &[u8]) -> (usize, Option<Step>) {
        let gathered = self.rx.have > 0;
        let (used, result) = match self.rx.read_header(bytes) {
            Ok((used, None)) => return (used, Some(Step::Wait)),
            Ok((used, Some((layout, pdu)))) => (used, self.accept(&layout, pdu)),
            Err(error) => (bytes.len(), Err(error)),
        };
        match result {
            Ok(step) => {
                self.rx.have = 0;
                (used, step)
            }
            Err(error) => {
                // The header as it came, up to what has come of it.
                let (from, most) = if gathered {
                    (&self.rx.header[..], self.rx.have.max(COMMON_LEN))
                } else {
                    (bytes, bytes.len())
                };
                let hlen = from.get(2).map_or(COMMON_LEN, |&hlen| usize::from(hlen));
                let len = hlen.clamp(COMMON_LEN, IC_LEN).min(most);
                let mut refused = [0; IC_LEN];
                refused[..len].copy_from_slice(&from[..len]);
                self.refuse(error, &refused[..len]);
                (bytes.len(), Some(Step::Failed))
            }
        }
    }

    /// Checks a PDU against the state of the connection and says where its data belongs.
    fn accept(&mut self, layout: &Layout, pdu: Pdu) -> Result<Option<Step>, PduError> {
        match (pdu, self.phase) {
            (Pdu::TermReq, _) => Ok(Some(Step::Terminated)),
            (Pdu::IcReq(request), Phase::Initialize) => {
                self.initialize(&request)?;
                Ok(None)
            }
            (Pdu::Capsule(sqe), Phase::Connect | Phase::Ready) => {
                // In-capsule data: up to the capsule size on I/O queues, 8 KiB elsewhere (T23).
                let limit = if self.qid == 0 {
                    ADMIN_IN_CAPSULE
                } else {
                    self.terms.in_capsule_max
                };
                if layout.data > limit {
                    return Err(PduError::field(4));
                }
                self.rx.expect_body(layout, Sink::Drop);
                Ok(Some(Step::Capsule(sqe)))
            }
            (Pdu::Data(data), Phase::Connect | Phase::Ready) => {
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
            _ => Err(PduError::SEQUENCE),
        }
    }

    /// ICReq: version 0 alone exists; digests are what the host wants (NVMe-TCP 1.0, 3.6.2.1).
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

    /// H2CData must continue the one R2T of its command, within it, and say when it ends (T20).
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

    /// The peer broke the protocol: nothing but a TermReq goes out any more (T24).
    pub fn refuse(&mut self, error: PduError, header: &[u8]) {
        self.tx.queue.clear();
        TermReq::emit(error, false, header, &mut self.tx.own);
    }

    /// ICResp goes out as soon as it is there.
    pub fn kick_own(&mut self, events: &mut Events) {
        if !self.tx.own.is_empty() {
            self.kick(events);
        }
    }
}
