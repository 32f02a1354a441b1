//! A target that lies: a real one, and somebody who changes what it says.
//!
//! It plays well until a [`Lie`] is armed; each lie is told once, of the next PDU that it fits.
//! Its lies are recorded in [`Told`], as far as a host can't know better: a host that hears only
//! the liar has to believe it.
use super::tape::Tape;
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::target::TargetEngine;
use engine::{ConnId, Machine, Output, Span};
use nvme::wire::crc::crc32c;
use nvme::wire::fabrics::Connect;
use nvme::wire::pdu::{
    CAPSULE_CMD_LEN, COMMON_LEN, DIGEST_LEN, DataHeader, Fes, Framing, Header, IC_LEN, IcReq,
    PduError, PduType, SHORT_LEN, TermReq, flags,
};
use nvme::wire::sqe::{FABRICS, fctype};
use nvme::wire::{Cqe, Sqe, Status};
use std::collections::VecDeque;

/// Commands of a connection that it remembers.
const COMMANDS_MAX: usize = 16;
/// Number of kinds of lies about a PDU, and of its own accord.
pub const KINDS: u8 = 20;

/// One lie.
#[derive(Clone, Copy, Debug)]
pub struct Lie {
    /// Told on an I/O queue, or else on an admin connection.
    io: bool,
    /// So many PDUs are let pass first.
    skip: u8,
    kind: u8,
    a: u16,
    b: u32,
}

impl Lie {
    /// One byte where and when, one what, six how.
    pub fn read(tape: &mut Tape) -> Self {
        let place = tape.byte();
        Self {
            io: place & 1 != 0,
            skip: place >> 1 & 15,
            kind: tape.byte() % KINDS,
            a: tape.word(),
            b: tape.long(),
        }
    }
}

/// Lies that a host can't detect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// Reads have other bytes.
    pub reads: bool,
    /// Writes were acknowledged that weren't done.
    pub writes: bool,
    /// I/O failed that had not to.
    pub status: bool,
    /// Properties, pages, sizes, identities.
    pub facts: bool,
}

impl Told {
    const ALL: Self = Self {
        reads: true,
        writes: true,
        status: true,
        facts: true,
    };

    fn add(&mut self, other: Self) {
        self.reads |= other.reads;
        self.writes |= other.writes;
        self.status |= other.status;
        self.facts |= other.facts;
    }
}

/// One connection, as the one between hears it.
struct Line {
    open: bool,
    io: bool,
    mute: bool,
    framing: Framing,
    /// The beginning of a PDU of the host, and what is left of one.
    header: Vec<u8>,
    skip: usize,
    /// Identifiers and opcodes of commands, the latest last.
    commands: VecDeque<(u16, u8)>,
    /// To be said before anything else.
    extra: VecDeque<Vec<u8>>,
    /// Said after the next PDU.
    held: Option<Vec<u8>>,
}

impl Line {
    fn new() -> Self {
        Self {
            open: true,
            io: false,
            mute: false,
            framing: Framing::PLAIN,
            header: Vec::new(),
            skip: 0,
            commands: VecDeque::new(),
            extra: VecDeque::new(),
            held: None,
        }
    }

    /// Bytes of the host, but payload.
    fn hear(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.skip.min(bytes.len());
            (self.skip, bytes) = (self.skip - n, &bytes[n..]);
            let want = self.want().saturating_sub(self.header.len());
            let n = want.min(bytes.len());
            self.header.extend(&bytes[..n]);
            bytes = &bytes[n..];
            if self.header.len() >= COMMON_LEN && self.header.len() == self.want() {
                self.understand();
            }
        }
    }

    /// Bytes of the present PDU that are kept.
    fn want(&self) -> usize {
        let Ok(header) = Header::parse(&self.header) else {
            return COMMON_LEN;
        };
        let most = PduType::from_byte(header.kind).map_or(COMMON_LEN, PduType::header_len);
        (header.plen as usize).clamp(COMMON_LEN, most)
    }

    fn understand(&mut self) {
        let bytes = core::mem::take(&mut self.header);
        let Ok(header) = Header::parse(&bytes) else {
            return;
        };
        self.skip = (header.plen as usize).saturating_sub(bytes.len());
        match (PduType::from_byte(header.kind), bytes.len()) {
            (Some(PduType::IcReq), IC_LEN) => {
                if let Ok(request) = IcReq::parse(&bytes) {
                    self.framing.header_digest = request.header_digest;
                    self.framing.data_digest = request.data_digest;
                }
            }
            (Some(PduType::CapsuleCmd), CAPSULE_CMD_LEN) => {
                let Ok(sqe) = Sqe::new(&bytes[COMMON_LEN..]) else {
                    return;
                };
                if sqe.opcode() == FABRICS && sqe.fctype() == fctype::CONNECT {
                    self.io = Connect::parse(&sqe).qid > 0;
                }
                self.commands.push_back((sqe.cid(), sqe.opcode()));
                let more = self.commands.len().saturating_sub(COMMANDS_MAX);
                self.commands.drain(..more);
            }
            _ => {}
        }
    }

    /// A command that the host has given: by its age, or of an opcode.
    fn command(&self, age: u16) -> u16 {
        let count = self.commands.len();
        let at = count.wrapping_sub(1 + usize::from(age) % COMMANDS_MAX);
        self.commands.get(at).map_or(age, |(cid, _)| *cid)
    }

    /// A PDU of its own, of a kind that a target may say.
    fn forge(&self, lie: Lie) -> Vec<u8> {
        let (cid, mut pdu) = (self.command(lie.a), Vec::new());
        let data = DataHeader {
            cccid: cid,
            ttag: lie.b as u16 & 31,
            offset: (lie.b & 0xff) * 512,
            length: (lie.b >> 8 & 0xff) * 512,
        };
        match lie.kind {
            8 => self
                .framing
                .whole(&mut pdu, PduType::R2t, 0, &data.emit(), &[]),
            9 => {
                let cqe = Cqe {
                    result: lie.b.into(),
                    sqhd: lie.a >> 8,
                    sqid: 0,
                    cid,
                    status: Status(lie.b as u16 >> 1 & if lie.a & 16 == 0 { 0 } else { 0x7fff }),
                };
                self.framing
                    .whole(&mut pdu, PduType::CapsuleResp, 0, &cqe.emit(), &[]);
            }
            10 => {
                let flag = (lie.b >> 16) as u8 & (flags::LAST | flags::SUCCESS);
                let bytes = vec![0; data.length as usize];
                self.framing
                    .whole(&mut pdu, PduType::C2hData, flag, &data.emit(), &bytes);
            }
            11 => {
                let error = PduError {
                    fes: Fes::from_value(lie.a & 7).unwrap_or(Fes::InvalidHeaderField),
                    fei: lie.b,
                };
                TermReq::emit(error, false, &vec![0; usize::from(lie.a >> 8)], &mut pdu);
            }
            _ => pdu.extend(&lie.b.to_le_bytes()[..1 + usize::from(lie.a) % 4]),
        }
        pdu
    }
}

/// The lying target. See the module.
pub struct Liar {
    pub inner: TargetEngine,
    /// To be told.
    pub lies: Vec<Lie>,
    pub told: Told,
    /// No connection is accepted any more.
    pub refuses: bool,
    lines: Vec<Line>,
    /// Memory with bytes that nobody wrote.
    garbage: Span,
    outputs: VecDeque<Output>,
}

impl Liar {
    /// A target that has not lied yet. Its arena ends with `garbage`.
    pub fn new(inner: TargetEngine, garbage: Span) -> Self {
        let lines = (0..inner.connections_max()).map(|_| Line {
            open: false,
            ..Line::new()
        });
        Self {
            lines: lines.collect(),
            inner,
            lies: Vec::new(),
            told: Told::default(),
            refuses: false,
            garbage,
            outputs: VecDeque::new(),
        }
    }

    /// Something is said of its own accord, on the first connection that fits.
    pub fn say(&mut self, lie: Lie) {
        let mut lines = self.lines.iter_mut();
        let Some(at) = lines.position(|line| line.open && line.io == lie.io) else {
            return;
        };
        self.told.add(told_by(lie));
        let pdu = self.lines[at].forge(lie);
        self.lines[at].extra.push_back(pdu);
        self.outputs.push_back(Output::Transmit(ConnId(at as u32)));
    }

    /// Nothing more is said on any connection that is open; or something is again.
    pub fn mute(&mut self, mute: bool) {
        for (at, line) in (0..).zip(&mut self.lines).filter(|(_, line)| line.open) {
            line.mute = mute;
            self.outputs.push_back(Output::Transmit(ConnId(at)));
        }
    }

    /// Ends its connections of one sort, or all.
    pub fn leave(&mut self, io: Option<bool>, abort: bool) {
        for (at, line) in (0..).zip(&self.lines).filter(|(_, line)| line.open) {
            if io.is_none_or(|io| io == line.io) {
                let conn = ConnId(at);
                self.outputs.push_back(Output::Close { conn, abort });
            }
        }
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.lines.iter().filter(|line| line.open).count()
    }

    /// The lie that is told of the next PDU of a connection.
    fn lie(&mut self, at: usize) -> Option<Lie> {
        let io = self.lines[at].io;
        let place = self.lies.iter().position(|lie| lie.io == io)?;
        let lie = &mut self.lies[place];
        if lie.skip > 0 {
            lie.skip -= 1;
            return None;
        }
        Some(self.lies.remove(place))
    }

    /// Passes on what the target says, with lies. `None` of payload: it isn't sent.
    fn alter(&mut self, at: usize, said: &[u8], mut send: Option<Send>) -> (Vec<u8>, Option<Send>) {
        let (mut out, mut rest) = (Vec::new(), said);
        while let Ok(header) = Header::parse(rest) {
            let end = (header.plen as usize).max(COMMON_LEN);
            let payload = end > rest.len();
            let (pdu, more) = rest.split_at(end.min(rest.len()));
            rest = more;
            let held = self.lines[at].held.take();
            let mut pdu = pdu.to_vec();
            if let Some(lie) = self.lie(at) {
                let mut none = None;
                let behind = if payload { &mut send } else { &mut none };
                let kept = self.tell(at, lie, &mut pdu, behind);
                if !kept {
                    send = send.filter(|_| !payload);
                    pdu.clear();
                }
            }
            out.extend(pdu);
            match held {
                // A held PDU comes behind this one, and so behind its payload.
                Some(held) if payload => self.lines[at].extra.push_back(held),
                Some(held) => out.extend(held),
                None => {}
            }
        }
        out.extend(rest);
        (out, send)
    }

    /// Lies about one PDU; whether it is said at all.
    fn tell(&mut self, at: usize, lie: Lie, pdu: &mut Vec<u8>, send: &mut Option<Send>) -> bool {
        self.told.add(told_by(lie));
        let garbage = self.garbage;
        let line = &mut self.lines[at];
        let framing = line.framing;
        let place = usize::from(lie.a);
        let response = pdu[0] == PduType::CapsuleResp as u8;
        match lie.kind {
            0 => return false,
            1 if send.is_none() => pdu.extend_from_within(..),
            1 => {
                let length = (lie.b >> 8 & 0x1f) << 8 | lie.b & 0xff;
                let again = line.forge(Lie {
                    kind: 10,
                    b: length,
                    ..lie
                });
                line.extra.push_back(again);
            }
            2 => {
                let byte = place % SHORT_LEN.min(pdu.len());
                pdu[byte] ^= lie.b as u8;
            }
            3 => {
                let cid = line.command(lie.a).to_le_bytes();
                // Of data and of responses it stands elsewhere.
                let from = if response { 20 } else { 8 };
                pdu[from..from + 2].copy_from_slice(&cid);
            }
            4 if response => pdu[22..24].copy_from_slice(&(lie.b as u16 & 0xfffe).to_le_bytes()),
            5 if response => pdu[8..12].copy_from_slice(&lie.b.to_le_bytes()),
            6 => pdu[1] ^= lie.b as u8 & (flags::LAST | flags::SUCCESS),
            7 => {
                spoil(pdu, send, line);
                return true;
            }
            8..=12 => {
                let forged = line.forge(lie);
                pdu.splice(0..0, forged);
                return true;
            }
            13 | 14 => change_page(pdu, place, lie),
            15 if send.is_none() => {
                line.held = Some(core::mem::take(pdu));
                return true;
            }
            16 => {
                let (conn, abort) = (ConnId(at as u32), lie.b & 1 != 0);
                self.outputs.push_back(Output::Close { conn, abort });
            }
            17 => line.mute = true,
            18 => {
                if let Some(send) = send {
                    send.span.at = garbage.at;
                }
            }
            19 => pdu.truncate(1 + place % pdu.len()),
            _ => {}
        }
        seal(pdu, &framing);
        true
    }
}

/// Lies that a host can't detect after this one.
fn told_by(lie: Lie) -> Told {
    let mut told = Told::default();
    match lie.kind {
        2 | 3 | 9 | 12 | 19 => told = Told::ALL,
        4 => (told.status, told.writes) = (true, true),
        5 => (told.facts, told.writes) = (true, true),
        1 | 10 | 18 => told.reads = true,
        13 | 14 => told = Told::ALL,
        _ => {}
    }
    told
}

/// A wrong digest, where there is one: of the data behind a header, or of the header.
fn spoil(pdu: &mut [u8], send: &mut Option<Send>, line: &mut Line) {
    match send {
        Some(send) if send.digest => {
            send.digest = false;
            line.extra.push_front(vec![0xbd; DIGEST_LEN]);
        }
        _ if pdu[1] & flags::HDGST != 0 && pdu.len() > SHORT_LEN => pdu[SHORT_LEN] ^= 0x40,
        _ => {}
    }
}

/// Changes data that stands behind a header, where there is any, and its digest.
fn change_page(pdu: &mut [u8], place: usize, lie: Lie) {
    let (from, digest) = (usize::from(pdu[3]), pdu[1] & flags::DDGST != 0);
    let end = pdu
        .len()
        .saturating_sub(if digest { DIGEST_LEN } else { 0 });
    if from == 0 || from >= end {
        return;
    }
    let data = &mut pdu[from..end];
    let place = place % data.len();
    if lie.kind == 13 {
        data[place] ^= (lie.b as u8).max(1);
    } else {
        let n = (data.len() - place).min(4);
        data[place..place + n].copy_from_slice(&lie.b.to_le_bytes()[..n]);
    }
    if digest {
        let crc = crc32c(0, &pdu[from..end]).to_le_bytes();
        pdu[end..].copy_from_slice(&crc);
    }
}

/// Makes the header's digest right again, so that the lie is heard.
fn seal(pdu: &mut [u8], framing: &Framing) {
    let Ok(header) = Header::parse(pdu) else {
        return;
    };
    let kind = PduType::from_byte(header.kind);
    let digests = kind.is_some_and(|kind| !matches!(kind, PduType::IcResp | PduType::C2hTermReq));
    if framing.header_digest && digests && pdu.len() >= SHORT_LEN + DIGEST_LEN {
        let crc = crc32c(0, &pdu[..SHORT_LEN]).to_le_bytes();
        pdu[SHORT_LEN..SHORT_LEN + DIGEST_LEN].copy_from_slice(&crc);
    }
}

impl Machine for Liar {
    type Control = ();

    fn connections_max(&self) -> u32 {
        self.inner.connections_max()
    }
    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        if self.refuses {
            return None;
        }
        let conn = self.inner.handle_accepted(listener, now_ns)?;
        self.lines[conn.0 as usize] = Line::new();
        Some(conn)
    }
    fn handle_connected(&mut self, _: ConnId, _: u64) {}
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        let taken = self.inner.handle_bytes(conn, bytes, now_ns);
        self.lines[conn.0 as usize].hear(&bytes[..taken]);
        taken
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        self.inner.placement(conn)
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.inner.handle_payload(conn, len, crc, now_ns);
        let skip = &mut self.lines[conn.0 as usize].skip;
        *skip = skip.saturating_sub(len as usize);
    }
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let at = conn.0 as usize;
        if self.lines[at].mute {
            return None;
        }
        if let Some(pdu) = self.lines[at].extra.pop_front() {
            out.extend(pdu);
            return Some(None);
        }
        let mut said = Vec::new();
        let send = self.inner.poll_transmit(conn, &mut said, now_ns)?;
        let (altered, kept) = self.alter(at, &said, send);
        out.extend(altered);
        if let (Some(send), None) = (send, kept) {
            self.inner.handle_sent(conn, send.cookie, now_ns);
        }
        Some(kept)
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.inner.handle_sent(conn, cookie, now_ns);
    }
    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.lines[conn.0 as usize].open = false;
        self.outputs.retain(|output| match output {
            Output::Transmit(of) | Output::Close { conn: of, .. } => *of != conn,
            _ => true,
        });
        self.inner.handle_closed(conn, why, now_ns);
    }
    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.inner.handle_device(id, result, now_ns);
    }
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.inner.turn(memory, now_ns);
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.inner
            .poll_output()
            .or_else(|| self.outputs.pop_front())
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.inner.poll_timeout()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        self.inner.handle_timeout(now_ns);
    }
}
