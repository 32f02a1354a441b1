//! A scripted controller, and a driver that moves payload as the contract says.
#![allow(clippy::unwrap_used)]
pub mod admin;

use std::collections::BTreeMap;

use nvme::host::{
    Command, Completed, Data, Digests, HostError, HostIdentity, IoQueue, IoQueueConfig, QueueEvent,
    SubmitError,
};
use nvme::wire::cqe::SQHD_NONE;
use nvme::wire::pdu::{DataHeader, Framing, Header, IcResp, PduError, PduType, TermReq};
use nvme::wire::{Cqe, Sqe, Status};
use nvme::{Placement, TxPayload, crc32c};

pub const CNTLID: u16 = 7;

pub fn identity() -> HostIdentity {
    HostIdentity {
        nqn: "nqn.2014-08.org.nvmexpress:uuid:host".into(),
        id: [0x11; 16],
    }
}

pub fn config() -> IoQueueConfig {
    IoQueueConfig {
        host: identity(),
        subsystem: "nqn.2026-01.org.example:v0".into(),
        cntlid: CNTLID,
        qid: 1,
        entries: 8,
        digests: Digests::default(),
        disable_sq_flow_control: true,
        in_capsule_max: 4096,
        timeout_ns: 1_000,
    }
}

/// The byte of a write's buffer at `offset`.
pub fn pattern(token: u32, offset: u32) -> u8 {
    (token.wrapping_mul(31) ^ offset ^ offset >> 8) as u8
}

/// One PDU that the host sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub kind: PduType,
    pub flags: u8,
    pub pdo: u8,
    /// Without header digest.
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

impl Sent {
    pub fn sqe(&self) -> Sqe<'_> {
        Sqe::new(&self.header[8..]).unwrap()
    }

    pub fn data_header(&self) -> DataHeader {
        DataHeader::parse(&self.header).unwrap()
    }
}

/// Cuts a stream of host PDUs; every digest must be right.
pub fn parse_sent(mut bytes: &[u8], framing: &Framing) -> Vec<Sent> {
    let mut sent = Vec::new();
    while !bytes.is_empty() {
        let common = Header::parse(bytes).unwrap();
        let l = common.layout(true, framing).unwrap();
        let header = &bytes[..l.header as usize];
        assert!(framing.header_digest_ok(l.kind, header));
        let at = (l.header + l.pad) as usize;
        let data = &bytes[at..at + l.data as usize];
        if l.data_digest > 0 {
            let digest = &bytes[at + data.len()..at + data.len() + 4];
            assert_eq!(digest, crc32c(0, data).to_le_bytes());
        }
        sent.push(Sent {
            kind: l.kind,
            flags: l.flags,
            pdo: common.pdo,
            header: header[..common.hlen as usize].to_vec(),
            data: data.to_vec(),
        });
        bytes = &bytes[common.plen as usize..];
    }
    sent
}

/// An I/O queue, its driver, and the script's controller.
pub struct Peer {
    pub queue: IoQueue,
    pub framing: Framing,
    pub buffers: BTreeMap<u32, Vec<u8>>,
    /// Payloads not yet reported as sent.
    pub unsent: Vec<TxPayload>,
    /// Report payloads as sent at once.
    pub sends_complete: bool,
    /// Bytes are fed in pieces of this many.
    pub piece: usize,
    pub now_ns: u64,
}

impl Peer {
    pub fn new(config: IoQueueConfig) -> Self {
        let mut queue = IoQueue::new(config);
        queue.handle_connected(0);
        Self {
            queue,
            framing: Framing::PLAIN,
            buffers: BTreeMap::new(),
            unsent: Vec::new(),
            sends_complete: true,
            piece: usize::MAX,
            now_ns: 0,
        }
    }

    /// A queue that is ready: handshake as asked, `cpda` and `maxh2cdata` of the controller's.
    pub fn ready_with(config: IoQueueConfig, cpda: u8, maxh2cdata: u32) -> Self {
        let (digests, off) = (config.digests, config.disable_sq_flow_control);
        let mut peer = Self::new(config);
        assert_eq!(peer.sent()[0].kind, PduType::IcReq);
        peer.handshake(digests, cpda, maxh2cdata);
        let connect = peer.sent().remove(0);
        assert_eq!(connect.data.len(), 1024);
        let sqhd = if off { SQHD_NONE } else { 1 };
        let cid = connect.sqe().cid();
        peer.respond(Cqe {
            cid,
            sqhd,
            result: CNTLID.into(),
            ..Cqe::default()
        });
        assert_eq!(peer.queue.poll_event(), Some(QueueEvent::Ready));
        peer
    }

    pub fn ready(config: IoQueueConfig) -> Self {
        Self::ready_with(config, 0, 131_072)
    }

    /// ICResp.
    pub fn handshake(&mut self, digests: Digests, cpda: u8, maxh2cdata: u32) {
        let (header_digest, data_digest) = (digests.header, digests.data);
        let mut out = Vec::new();
        IcResp {
            pfv: 0,
            cpda,
            header_digest,
            data_digest,
            maxh2cdata,
        }
        .emit(&mut out);
        self.give(&out);
        self.framing = Framing {
            header_digest,
            data_digest,
            alignment: (u32::from(cpda) + 1) * 4,
        };
    }

    /// The host's next PDUs.
    pub fn sent(&mut self) -> Vec<Sent> {
        let mut stream = Vec::new();
        while let Some(transmit) = self.queue.poll_transmit(&mut stream, self.now_ns) {
            let Some(payload) = transmit.payload else {
                continue;
            };
            let range = payload.offset..payload.offset + payload.len;
            let bytes: Vec<u8> = range.map(|at| pattern(payload.token, at)).collect();
            stream.extend_from_slice(&bytes);
            if payload.digest {
                stream.extend_from_slice(&crc32c(0, &bytes).to_le_bytes());
            }
            if self.sends_complete {
                self.queue.handle_sent(payload.token);
            } else {
                self.unsent.push(payload);
            }
        }
        parse_sent(&stream, &self.framing)
    }

    /// Submits and returns the capsule.
    pub fn submit(&mut self, command: Command) -> Sent {
        assert_eq!(self.try_submit(command), Ok(()));
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1);
        sent.remove(0)
    }

    pub fn try_submit(&mut self, command: Command) -> Result<(), SubmitError> {
        if let Data::In(len) = command.data {
            self.buffers.insert(command.token, vec![0xee; len as usize]);
        }
        let room = self.queue.has_room();
        let taken = self.queue.submit(&command, self.now_ns);
        assert_eq!(room, taken.is_ok(), "what it says before is true");
        taken
    }

    /// Bytes from the controller, cut into pieces, payload moved into the buffers.
    pub fn give(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece.min(bytes.len().max(1))) {
            self.give_piece(piece);
        }
    }

    fn give_piece(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = self.queue.handle_bytes(bytes, self.now_ns);
            bytes = &bytes[used..];
            match self.queue.placement() {
                Some(place) if !bytes.is_empty() => bytes = self.place(place, bytes),
                place => assert!(
                    place.is_some() || bytes.is_empty(),
                    "stopped without payload"
                ),
            }
        }
    }

    fn place<'a>(&mut self, place: Placement, bytes: &'a [u8]) -> &'a [u8] {
        assert!(place.len > 0);
        let (now, rest) = bytes.split_at(bytes.len().min(place.len as usize));
        let buffer = self
            .buffers
            .get_mut(&place.token)
            .expect("a command in flight");
        let at = place.offset as usize;
        buffer[at..at + now.len()].copy_from_slice(now);
        let crc = place.crc.map_or(0, |crc| crc32c(crc, now));
        self.queue
            .handle_payload(now.len() as u32, crc, self.now_ns);
        rest
    }

    /// A PDU with the controller's framing (HPDA 0).
    pub fn pdu(&self, kind: PduType, flags: u8, own: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Framing {
            alignment: 4,
            ..self.framing
        }
        .whole(&mut out, kind, flags, own, data);
        out
    }

    pub fn respond(&mut self, cqe: Cqe) {
        let pdu = self.pdu(PduType::CapsuleResp, 0, &cqe.emit(), &[]);
        self.give(&pdu);
    }

    /// Success, SQHD not reported.
    pub fn succeed(&mut self, cid: u16) {
        self.respond(Cqe {
            cid,
            sqhd: SQHD_NONE,
            ..Cqe::default()
        });
    }

    pub fn c2h(&self, cccid: u16, offset: u32, data: &[u8], flags: u8) -> Vec<u8> {
        let header = DataHeader {
            cccid,
            ttag: 0,
            offset,
            length: data.len() as u32,
        };
        self.pdu(PduType::C2hData, flags, &header.emit(), data)
    }

    pub fn r2t(&mut self, cccid: u16, ttag: u16, offset: u32, length: u32) {
        let pdu = self.pdu(
            PduType::R2t,
            0,
            &DataHeader {
                cccid,
                ttag,
                offset,
                length,
            }
            .emit(),
            &[],
        );
        self.give(&pdu);
    }

    /// The next completion, which must exist.
    pub fn completed(&mut self) -> Completed {
        match self.queue.poll_event() {
            Some(QueueEvent::Completed(completed)) => completed,
            other => panic!("{other:?} instead of a completion"),
        }
    }

    /// The next completion's token and status.
    pub fn outcome(&mut self) -> (u32, Status) {
        let completed = self.completed();
        (completed.token, completed.status)
    }

    /// All events there are.
    pub fn events(&mut self) -> Vec<QueueEvent> {
        std::iter::from_fn(|| self.queue.poll_event()).collect()
    }
}

/// The TermReq that the host sends, after the queue failed with `error`.
pub fn refused(peer: &mut Peer, error: PduError) {
    let sent = peer.sent();
    assert_eq!(sent.len(), 1, "a TermReq and nothing else");
    assert_eq!(sent[0].kind, PduType::H2cTermReq);
    let term = TermReq::parse(&sent[0].header).unwrap();
    assert_eq!((term.fes, term.fei), (error.fes as u16, error.fei));
    assert!(!sent[0].data.is_empty() && sent[0].data.len() <= 128);
    assert_eq!(
        peer.events().last(),
        Some(&QueueEvent::Failed(HostError::Protocol(error)))
    );
    assert_eq!(
        peer.queue.submit(&Command::flush(1, 0), 0),
        Err(SubmitError::NotReady)
    );
}

pub fn read(token: u32, blocks: u32) -> Command {
    Command::read(1, 64, blocks, 9, false, token)
}

pub fn write(token: u32, bytes: u32) -> Command {
    Command::write(1, 64, bytes / 512, 9, false, token)
}
