//! A host's I/O queue against a controller that says anything: raw bytes, or PDUs that are well
//! formed (lengths, digests, a CID in flight) and wrong in any other way.
use super::queue::{CheckedQueue, config};
use super::tape::Tape;
use nvme::host::Data;
use nvme::wire::pdu::{DataHeader, Framing, Header, IcResp, PduType};
use nvme::wire::sqe::nvm;
use nvme::wire::{Cqe, Sqe, Status};

/// Commands in a row whose CIDs all differ.
const CIDS_APART: usize = 64;

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let choice = tape.byte();
    let digest = |bit: u8| choice & bit != 0;
    let framing = Framing {
        header_digest: digest(1),
        data_digest: digest(2),
        alignment: 4,
    };
    let mut world = World {
        queue: CheckedQueue::new(config(choice, 1), 0),
        piece: [usize::MAX, 1, 37, 1000][usize::from(choice >> 6)],
        framing,
        cids: Vec::new(),
        now_ns: 0,
    };
    while let Some(operation) = tape.operation() {
        world.step(operation, &mut tape);
    }
    world.queue.finish(world.now_ns);
}

struct World {
    queue: CheckedQueue,
    /// Bytes of the controller arrive in pieces of this size.
    piece: usize,
    framing: Framing,
    /// CIDs the host has used, oldest first.
    cids: Vec<u16>,
    now_ns: u64,
}

impl World {
    fn step(&mut self, operation: u8, tape: &mut Tape<'_>) {
        match operation % 8 {
            0 => {
                let len = usize::from(tape.word() % 2048);
                self.feed(tape.take(len));
            }
            1 | 2 => self.say(tape),
            3 | 4 => self.submit(tape.byte(), tape.word()),
            5 => {
                self.now_ns += u64::from(tape.word()) * 1_000_000;
                self.queue.tick(self.now_ns);
            }
            6 => self.queue.report_sent(usize::from(tape.byte())),
            _ => match tape.byte() {
                0 => self.queue.close(self.now_ns),
                _ => self.transmit(),
            },
        }
        self.transmit();
    }

    fn submit(&mut self, kind: u8, size: u16) {
        let bytes = (u32::from(size % 64) + 1) * 512;
        let (opcode, data) = match kind % 4 {
            0 => (nvm::FLUSH, Data::None),
            1 | 2 => (nvm::READ, Data::In(bytes)),
            _ => (nvm::WRITE, Data::Out(bytes)),
        };
        self.queue.submit(opcode, data, 0, self.now_ns);
    }

    /// Sends what the host wants to send and learns its CIDs.
    fn transmit(&mut self) {
        let mut sent = Vec::new();
        self.queue.transmit(&mut sent, self.now_ns);
        let mut rest = sent.as_slice();
        while let Ok(header) = Header::parse(rest) {
            if header.kind == PduType::CapsuleCmd as u8
                && let Ok(sqe) = Sqe::new(&rest[8..])
            {
                // A late answer to an earlier command must find nothing (T11).
                let recent = &self.cids[self.cids.len().saturating_sub(CIDS_APART)..];
                assert!(!recent.contains(&sqe.cid()), "a CID came again too soon");
                self.cids.push(sqe.cid());
            }
            assert!(
                (8..=rest.len()).contains(&(header.plen as usize)),
                "a PDU of wrong length"
            );
            rest = &rest[header.plen as usize..];
        }
        assert!(rest.is_empty(), "a torn PDU was sent");
    }

    /// The controller says something well formed.
    fn say(&mut self, tape: &mut Tape<'_>) {
        let (kind, flags) = (tape.byte(), tape.byte());
        let recent = self.cids.len().wrapping_sub(1 + usize::from(tape.byte()));
        let cid = self.cids.get(recent).copied().unwrap_or(0);
        let mut pdu = Vec::new();
        match kind % 4 {
            0 => IcResp {
                pfv: 0,
                cpda: flags & 1,
                header_digest: self.framing.header_digest,
                data_digest: self.framing.data_digest,
                maxh2cdata: 4096,
            }
            .emit(&mut pdu),
            1 => {
                let status = Status(if flags & 1 != 0 { tape.word() >> 1 } else { 0 });
                let sqhd = if flags & 2 != 0 { tape.word() } else { 0 };
                let result = u64::from(if flags & 4 != 0 { tape.long() } else { 1 });
                let cqe = Cqe {
                    result,
                    sqhd,
                    sqid: 0,
                    cid,
                    status,
                };
                self.framing
                    .whole(&mut pdu, PduType::CapsuleResp, 0, &cqe.emit(), &[]);
            }
            2 => {
                let (offset, length) = (offset(tape), tape.word() % 4096);
                let own = DataHeader {
                    cccid: cid,
                    ttag: 0,
                    offset,
                    length: length.into(),
                }
                .emit();
                let data = vec![0; length.into()];
                self.framing
                    .whole(&mut pdu, PduType::C2hData, flags & 0x0c, &own, &data);
            }
            _ => {
                let (offset, length) = (offset(tape), offset(tape));
                let own = DataHeader {
                    cccid: cid,
                    ttag: tape.word(),
                    offset,
                    length,
                }
                .emit();
                self.framing.whole(&mut pdu, PduType::R2t, 0, &own, &[]);
            }
        }
        self.feed(&pdu);
    }

    fn feed(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece) {
            self.queue.feed(piece, self.now_ns);
        }
    }
}

/// An offset or length: mostly one that may occur, sometimes any.
fn offset(tape: &mut Tape<'_>) -> u32 {
    match tape.byte() {
        255 => tape.long(),
        units => u32::from(units) * 512,
    }
}
