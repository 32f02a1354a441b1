//! A host that says what its tape wants: whole associations, and any departure from them.
use super::clients::Clients;
use super::common::NQN;
use super::tape::Tape;
use nvme::wire::SqeBuilder;
use nvme::wire::fabrics::{self, CNTLID_ANY, Cc, Connect, ConnectData, ConnectResult, Property};
use nvme::wire::pdu::{
    DataHeader, Framing, Header, IcReq, PduError, PduType, TermReq, flags, parse_response,
};
use nvme::wire::sqe::{NSID_ALL, Sgl, admin, nvm};

/// Operations that play well, for seeds.
pub const OPEN: u8 = 0;
/// ICReq; a choice follows.
pub const INITIALIZE: u8 = 1;
/// Connect of an admin queue; a choice follows.
pub const CONNECT_ADMIN: u8 = 2;
/// Connect of an I/O queue; a choice, and where that says so a controller follow.
pub const CONNECT_IO: u8 = 3;
/// A value of CC; a choice follows.
pub const CONFIGURE: u8 = 4;
/// An admin command: its place in the list, a choice, three words.
pub const ADMIN: u8 = 6;
/// An I/O command: its place in the list, a choice, a block, a count.
pub const IO: u8 = 7;
/// The transfer that was asked for last, as it was asked for.
pub const DATA: u8 = 8;

/// Transfers that it remembers.
const ASKED_MAX: usize = 16;
/// Bytes in one H2CData at most, as the target has it.
const H2C_MAX: u32 = 8192;

const ADMIN_OPCODES: [u8; 12] = [
    admin::IDENTIFY,
    admin::GET_LOG_PAGE,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    admin::ABORT,
    admin::DELETE_SQ,
    admin::CREATE_SQ,
    admin::NAMESPACE_MANAGEMENT,
    admin::FORMAT_NVM,
    admin::SANITIZE,
];
const IO_OPCODES: [u8; 12] = [
    nvm::READ,
    nvm::WRITE,
    nvm::FLUSH,
    nvm::COMPARE,
    nvm::WRITE_ZEROES,
    nvm::DATASET_MANAGEMENT,
    nvm::RESERVATION_REGISTER,
    nvm::RESERVATION_ACQUIRE,
    nvm::RESERVATION_REPORT,
    nvm::RESERVATION_RELEASE,
    nvm::COPY,
    nvm::VERIFY,
];
const NSIDS: [u32; 6] = [2, 2, 1, NSID_ALL, 0, 3];
const NQNS: [&str; 4] = [
    NQN,
    fabrics::DISCOVERY_NQN,
    NQN,
    "nqn.2026-01.org.example:other",
];

/// One connection of a host, and what it learnt on it.
pub struct Initiator {
    /// Its raw connection, while it has one.
    pub conn: Option<usize>,
    framing: Framing,
    /// Bytes of what the target said that were looked at.
    heard: usize,
    cid: u16,
    /// CID of its last Connect.
    connect: u16,
    /// Transfers that were asked for, the latest last.
    asked: Vec<DataHeader>,
    /// Of the controller it was given.
    pub cntlid: Option<u16>,
    /// Of the next PDU only so many bytes are said.
    cut: Option<u16>,
    /// A byte of the next PDU, and what is changed in it.
    flip: Option<(u16, u8)>,
    /// Responses that were good.
    pub done: u32,
}

impl Initiator {
    /// Not connected.
    pub fn new() -> Self {
        Self {
            conn: None,
            framing: Framing::PLAIN,
            heard: 0,
            cid: 0,
            connect: 0,
            asked: Vec::new(),
            cntlid: None,
            cut: None,
            flip: None,
            done: 0,
        }
    }

    /// Takes a connection.
    pub fn open(&mut self, conn: usize) {
        let done = self.done;
        *self = Self {
            conn: Some(conn),
            done,
            ..Self::new()
        };
    }

    /// One thing is said; `controller`: one that this or another connection was given.
    pub fn act(&mut self, operation: u8, tape: &mut Tape, clients: &mut Clients, controller: u16) {
        let mut pdu = Vec::new();
        match operation {
            INITIALIZE => self.initialize(tape, &mut pdu),
            CONNECT_ADMIN => self.connect(tape, CNTLID_ANY, &mut pdu),
            CONNECT_IO => self.connect(tape, controller, &mut pdu),
            CONFIGURE => self.configure(tape, &mut pdu),
            5 => self.property(tape, &mut pdu),
            ADMIN => self.admin(tape, &mut pdu),
            IO => self.io(tape, &mut pdu),
            DATA => self.data(&mut pdu),
            9 => self.false_data(tape, &mut pdu),
            10 => {
                let error = PduError::field(tape.long());
                let refused = tape.byte();
                TermReq::emit(error, true, &vec![7; refused.into()], &mut pdu);
            }
            11 => {
                let len = usize::from(tape.byte());
                pdu.extend(tape.take(len));
            }
            12 => pdu.resize(usize::from(tape.word() % 4096), 0),
            13 => self.cut = Some(tape.word()),
            14 => self.flip = Some((tape.word(), tape.byte())),
            _ => self.anything(tape, &mut pdu),
        }
        self.say(pdu, clients);
    }

    fn say(&mut self, mut pdu: Vec<u8>, clients: &mut Clients) {
        let Some(conn) = self.conn.filter(|_| !pdu.is_empty()) else {
            return;
        };
        if let Some((at, bits)) = self.flip.take() {
            let at = usize::from(at) % pdu.len();
            pdu[at] ^= bits;
        }
        if let Some(len) = self.cut.take() {
            pdu.truncate(usize::from(len) % pdu.len() + 1);
        }
        if clients.all[conn].closed.is_none() {
            clients.say(conn, &pdu);
        }
    }

    /// Learns from what the target said.
    pub fn hear(&mut self, clients: &Clients) {
        let Some(conn) = self.conn else { return };
        let said = &clients.all[conn].said;
        while let Ok(header) = Header::parse(&said[self.heard..]) {
            let rest = &said[self.heard..];
            let kind = PduType::from_byte(header.kind).filter(|kind| !kind.from_host());
            let kind = kind.expect("a target says what targets say");
            let len = header.plen as usize;
            assert!(len >= kind.header_len(), "{kind:?} of {len} bytes");
            if len > rest.len() {
                return;
            }
            match (kind, DataHeader::parse(rest), parse_response(rest)) {
                (PduType::R2t, Ok(asked), _) => {
                    self.asked.push(asked);
                    let more = self.asked.len().saturating_sub(ASKED_MAX);
                    self.asked.drain(..more);
                }
                (PduType::CapsuleResp, _, Ok(cqe)) if cqe.status.is_success() => {
                    self.done += 1;
                    if cqe.cid == self.connect && self.cntlid.is_none() {
                        self.cntlid = Some(ConnectResult::parse(cqe.result).cntlid);
                    }
                }
                _ => {}
            }
            self.heard += len;
        }
    }

    fn initialize(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let choice = tape.byte();
        let lies = choice & 0x80 != 0;
        let request = IcReq {
            pfv: if lies { tape.word() } else { 0 },
            hpda: if lies { tape.byte() } else { choice >> 2 & 7 },
            header_digest: choice & 1 != 0,
            data_digest: choice & 2 != 0,
            maxr2t: if lies { tape.long() } else { 0 },
        };
        (self.framing.header_digest, self.framing.data_digest) = (false, false);
        request.emit(pdu);
        self.framing.header_digest = request.header_digest;
        self.framing.data_digest = request.data_digest;
    }

    /// Choice: subsystem in bits 1:0, keep-alive in 3:2, size in 5:4, another host in 6, a lie in
    /// 7.
    fn connect(&mut self, tape: &mut Tape, controller: u16, pdu: &mut Vec<u8>) {
        let choice = tape.byte();
        let qid = match controller {
            CNTLID_ANY => 0,
            _ => u16::from(tape.byte() % 6),
        };
        let lies = choice & 0x80 != 0;
        let connect = Connect {
            recfmt: if lies { tape.word() } else { 0 },
            qid,
            sqsize: [15, 31, 1, u16::MAX][usize::from(choice >> 4 & 3)],
            cattr: if lies { tape.byte() } else { choice & 4 },
            kato_ms: [0, 1000, 120_000, u32::MAX][usize::from(choice >> 2 & 3)],
        };
        let data = ConnectData {
            hostid: [8 + (choice >> 6 & 1); 16],
            cntlid: if lies { tape.word() } else { controller },
            subnqn: NQNS[usize::from(choice & 3)].as_bytes(),
            hostnqn: b"nqn.2026-01.org.example:liar",
        }
        .emit();
        let len = data.len() as u32;
        let offset = if lies { tape.word().into() } else { 0 };
        self.connect = self.cid;
        self.capsule(
            connect.emit().sgl(Sgl::InCapsule { offset, len }),
            &data,
            pdu,
        );
    }

    fn configure(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let enabled = Cc::enabled(0, 0);
        let value = match tape.byte() & 7 {
            0..=2 => enabled.0,
            3 => 0,
            4 => enabled.with_shn(1).0,
            5 => enabled.with_shn(2).0,
            _ => tape.long(),
        };
        let property = Property {
            offset: nvme::wire::fabrics::property::CC,
            wide: false,
            value: value.into(),
        };
        self.capsule(property.emit_set(), &[], pdu);
    }

    fn property(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let choice = tape.byte();
        let property = Property {
            offset: u32::from(choice & 0x3f) * 4,
            wide: choice & 0x40 != 0,
            value: 0,
        };
        if choice & 0x80 == 0 {
            return self.capsule(property.emit_get(), &[], pdu);
        }
        let value = tape.long().into();
        self.capsule(Property { value, ..property }.emit_set(), &[], pdu);
    }

    fn admin(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let opcode = ADMIN_OPCODES[usize::from(tape.byte()) % ADMIN_OPCODES.len()];
        let choice = tape.byte();
        let (ten, eleven, twelve) = (tape.word(), tape.word(), tape.word());
        let len = match (opcode, choice >> 4) {
            (admin::IDENTIFY, 0) => 4096,
            (admin::GET_LOG_PAGE, 0) => (u32::from(eleven & 0xff) + 1) * 4,
            (_, more) => u32::from(more) * 512,
        };
        let dwords = match opcode {
            // The length of a log stands in two places.
            admin::GET_LOG_PAGE => u32::from(ten & 0xff) | (len / 4).saturating_sub(1) << 16,
            admin::SET_FEATURES | admin::GET_FEATURES => u32::from(ten & 0xff),
            admin::ABORT => u32::from(ten & 3) | u32::from(self.cid.wrapping_sub(eleven)) << 16,
            _ => ten.into(),
        };
        let sqe = SqeBuilder::new(opcode)
            .nsid(NSIDS[usize::from(choice & 15) % NSIDS.len()])
            .cdws(&[dwords, eleven.into(), twelve.into(), twelve.into(), 0, 0])
            .sgl(if len > 0 {
                Sgl::Transport { len }
            } else {
                Sgl::None
            });
        self.capsule(sqe, &[], pdu);
    }

    /// Choice: NSID in bits 2:0, how the data comes in 5:3, FUA in 6.
    fn io(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let opcode = IO_OPCODES[usize::from(tape.byte()) % IO_OPCODES.len()];
        let (choice, block, blocks) = (tape.byte(), tape.word(), u32::from(tape.byte() % 16));
        let len = match opcode {
            nvm::DATASET_MANAGEMENT => (blocks + 1) * 16,
            _ => (blocks + 1) * 4096,
        };
        let mut data = Vec::new();
        let sgl = match choice >> 3 & 7 {
            0..=2 => Sgl::Transport { len },
            3 | 4 => {
                data.resize(len as usize, choice);
                Sgl::InCapsule { offset: 0, len }
            }
            5 => Sgl::Transport { len: len + 512 },
            6 => {
                data.resize(len as usize / 2, 0);
                Sgl::InCapsule { offset: 0, len }
            }
            _ => Sgl::Other {
                identifier: block as u8,
            },
        };
        let fua = if choice & 0x40 != 0 { nvm::FUA } else { 0 };
        let cdw = match opcode {
            nvm::DATASET_MANAGEMENT => [blocks, nvm::DSM_DEALLOCATE, 0, 0, 0, 0],
            _ => [u32::from(block % 8192), 0, blocks | fua, 0, 0, 0],
        };
        let sqe = SqeBuilder::new(opcode);
        let sqe = sqe.nsid(NSIDS[usize::from(choice & 7) % NSIDS.len()]);
        self.capsule(sqe.cdws(&cdw).sgl(sgl), &data, pdu);
    }

    /// Any entry.
    fn anything(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let opcode = tape.byte();
        let mut entry = *SqeBuilder::new(opcode).cid(self.cid).bytes();
        self.cid = self.cid.wrapping_add(1);
        if tape.byte() & 1 != 0 {
            entry[1] = tape.byte();
        }
        let rest = tape.take(60);
        entry[4..4 + rest.len()].copy_from_slice(rest);
        let data = vec![0; usize::from(tape.byte()) * 64];
        let framing = self.framing;
        framing.whole(pdu, PduType::CapsuleCmd, 0, &entry, &data);
    }

    fn capsule(&mut self, sqe: SqeBuilder, data: &[u8], pdu: &mut Vec<u8>) {
        let sqe = sqe.cid(self.cid);
        self.cid = self.cid.wrapping_add(1);
        let framing = self.framing;
        framing.whole(pdu, PduType::CapsuleCmd, 0, sqe.bytes(), data);
    }

    fn data(&mut self, pdu: &mut Vec<u8>) {
        let Some(asked) = self.asked.pop() else {
            return;
        };
        let mut done = 0;
        while done < asked.length {
            let length = (asked.length - done).min(H2C_MAX);
            let offset = asked.offset + done;
            done += length;
            let last = if done == asked.length { flags::LAST } else { 0 };
            let header = DataHeader {
                offset,
                length,
                ..asked
            };
            self.h2c(header, last, length, pdu);
        }
    }

    /// Data that was asked for, with something wrong.
    fn false_data(&mut self, tape: &mut Tape, pdu: &mut Vec<u8>) {
        let (kind, by) = (tape.byte(), u32::from(tape.byte()) + 1);
        let Some(&asked) = self.asked.last() else {
            return;
        };
        let length = asked.length.min(H2C_MAX);
        let last = if length == asked.length {
            flags::LAST
        } else {
            0
        };
        let right = DataHeader { length, ..asked };
        let (header, flag, bytes) = match kind % 9 {
            0 => (
                DataHeader {
                    ttag: right.ttag ^ by as u16,
                    ..right
                },
                last,
                length,
            ),
            1 => (
                DataHeader {
                    cccid: right.cccid ^ by as u16,
                    ..right
                },
                last,
                length,
            ),
            2 => (
                DataHeader {
                    offset: right.offset.wrapping_add(by * 4),
                    ..right
                },
                last,
                length,
            ),
            3 => (
                DataHeader {
                    length: length / 2,
                    ..right
                },
                flags::LAST,
                length / 2,
            ),
            4 => (
                DataHeader {
                    length: length + by * 4,
                    ..right
                },
                last,
                length + by * 4,
            ),
            5 => (right, 0, length),
            6 => (right, last, length.saturating_sub(by)),
            7 => (
                DataHeader {
                    length: H2C_MAX + by * 4,
                    ..right
                },
                0,
                H2C_MAX + by * 4,
            ),
            _ => (DataHeader { length: 0, ..right }, last, 0),
        };
        self.h2c(header, flag, bytes, pdu);
    }

    fn h2c(&mut self, header: DataHeader, flag: u8, bytes: u32, pdu: &mut Vec<u8>) {
        let data = vec![0x5a; bytes as usize];
        self.framing
            .whole(pdu, PduType::H2cData, flag, &header.emit(), &data);
    }
}
