//! A reactor and hosts by hand around one target, or another machine that hosts connect to: the
//! test says what each host sends, when a device answers and when time passes. Hosts speak raw
//! PDUs, so they can also speak wrong ones.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use engine::machine::{Closed, DeviceError, ExtentRequest, Memory};
use engine::target::{TargetConfig, TargetEngine};
use engine::{ConnId, DeviceOp, DeviceRequest, LocalDevice, Machine, Output, Span};
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::AnaState;
use nvme::wire::fabrics::{CNTLID_ANY, Cc, Connect, ConnectData, Property, property};
use nvme::wire::pdu::{DataHeader, Framing, Header, IcReq, IcResp, PduType, flags, parse_response};
use nvme::wire::sqe::Sgl;
use nvme::wire::{Cqe, SqeBuilder, Status};
use std::collections::{BTreeMap, VecDeque};

pub const NQN: &str = "nqn.2026-01.org.example:t";
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
pub const SHIFT: u8 = 12;
pub const BLOCKS: u64 = 4096;
pub const IN_CAPSULE: u32 = 8192;
pub const MAXH2CDATA: u32 = 128 << 10;

/// One namespace of 16 MiB behind `shapes`, one port for each.
pub fn config(shapes: &[shape::Config]) -> TargetConfig {
    let port = |id| PortConfig {
        id,
        traddr: "127.0.0.1".into(),
        trsvcid: "4420".into(),
        ipv6: false,
        ana: AnaState::Optimized,
    };
    TargetConfig {
        subsystem: SubsystemConfig {
            nqn: NQN.into(),
            serial: "S".into(),
            model: "M".into(),
            cntlid_min: 1,
            cntlid_max: 100,
            namespaces: vec![namespace(1)],
            ports: (1..=shapes.len() as u16).map(port).collect(),
            hosts: Vec::new(),
            entries_max: 2048,
            io_queues_max: 8,
            transfer_shift: 20,
            in_capsule_max: IN_CAPSULE,
            maxh2cdata: MAXH2CDATA,
            c2h_success: true,
            cqt_ms: 0,
            volatile_write_cache: true,
            compare: true,
            lba_status: true,
            connections_max: 16,
        },
        shapes: shapes.to_vec(),
        devices: vec![LocalDevice(0)],
        arena_bytes: 64 << 20,
        seed: 1,
    }
}

pub fn namespace(nsid: u32) -> NamespaceConfig {
    NamespaceConfig {
        nsid,
        blocks: BLOCKS,
        block_shift: SHIFT,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8; 16],
        ana_group: 1,
        read_only: false,
        deallocate_zeroes: true,
    }
}

/// PDU that a host got, and when.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    IcResp(IcResp),
    /// A completion, or a read's success flag (then `cqe` is all zero but its CID).
    Done(Cqe),
    R2t(DataHeader),
    Data {
        cid: u16,
        offset: u32,
        bytes: Vec<u8>,
    },
    Term,
}

/// One connection as the network and its host see it.
#[derive(Default)]
pub struct Wire {
    /// From the target, not yet parsed.
    bytes: Vec<u8>,
    /// To the target, not yet taken.
    pub backlog: VecDeque<u8>,
    /// Times it was told that the stream may go on.
    pub resumed: u32,
    pub got: Vec<(u64, Got)>,
    /// It said `Output::Close`; the value is `abort`.
    pub closed: Option<bool>,
    next_cid: u16,
    /// The admin connection of a queue's controller.
    admin: Option<u32>,
}

struct Arena(Vec<u8>);

impl Memory for Arena {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.0[span.at as usize..][..span.len as usize]
    }
    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.0[span.at as usize..][..span.len as usize]
    }
}

/// The target and all around it.
pub struct Hand<M = TargetEngine> {
    pub target: M,
    /// Number of the listener of its first port.
    pub first_port: u32,
    pub now: u64,
    pub wires: BTreeMap<u32, Wire>,
    pub disk: Vec<u8>,
    /// Requests wait in `at_device` until the test answers them.
    pub hold_device: bool,
    pub at_device: VecDeque<DeviceRequest>,
    /// Answer to every request.
    pub device_error: Option<DeviceError>,
    /// All requests there were.
    pub requests: Vec<DeviceRequest>,
    /// Sends are reported by [`Hand::report_sends`] only: the host doesn't read.
    pub hold_sends: Vec<u32>,
    /// Keep-alive time-out of controllers made from now on; 0 = none.
    pub kato_ms: u32,
    unsent: Vec<(u32, u32)>,
    pub stopped: bool,
    /// Holes that it has asked for.
    pub extents: Vec<ExtentRequest>,
    arena: Arena,
}

impl Hand {
    pub fn new(config: TargetConfig) -> Self {
        let arena = config.arena_bytes as usize;
        let target = TargetEngine::new(config);
        Self::around(
            target.unwrap_or_else(|e| panic!("{}: {}", e.field, e.why)),
            arena,
        )
    }

    /// A target with these ports, and on each one an I/O queue, whose connections come back.
    pub fn ready(shapes: &[shape::Config]) -> (Self, Vec<u32>) {
        let mut hand = Self::new(config(shapes));
        let ports = 0..shapes.len() as u32;
        let queues = ports.map(|port| hand.queue(port, 2048)).collect();
        (hand, queues)
    }
}

impl<M: Machine> Hand<M> {
    /// Any machine, with so many bytes of memory.
    pub fn around(target: M, arena: usize) -> Self {
        Hand {
            arena: Arena(vec![0; arena]),
            target,
            first_port: 0,
            now: SECOND,
            wires: BTreeMap::new(),
            disk: vec![0; (BLOCKS << SHIFT) as usize],
            hold_device: false,
            at_device: VecDeque::new(),
            device_error: None,
            requests: Vec::new(),
            hold_sends: Vec::new(),
            kato_ms: 0,
            unsent: Vec::new(),
            stopped: false,
            extents: Vec::new(),
        }
    }

    /// A TCP connection to a port, nothing said yet.
    pub fn accept(&mut self, port: u32) -> Option<u32> {
        let conn = self
            .target
            .handle_accepted(self.first_port + port, self.now)?;
        let conn = conn.0;
        let old = self.wires.insert(conn, Wire::default());
        assert!(old.is_none(), "connection {conn} is in use");
        self.settle();
        Some(conn)
    }

    /// A controller of its own with one I/O queue: the queue's connection.
    pub fn queue(&mut self, port: u32, entries: u16) -> u32 {
        let (admin, cntlid) = self.admin(port);
        let conn = self.open(port);
        self.wire(conn).admin = Some(admin);
        let connected = self.connect(conn, cntlid, 1, entries - 1);
        assert!(connected.status.is_success(), "{:?}", connected.status);
        conn
    }

    /// An enabled controller: its admin connection and identifier.
    pub fn admin(&mut self, port: u32) -> (u32, u16) {
        let conn = self.open(port);
        let cqe = self.connect(conn, CNTLID_ANY, 0, 31);
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        let enable = Cc::enabled(0, 0).0.into();
        let set = Property {
            offset: property::CC,
            wide: false,
            value: enable,
        };
        assert!(self.ask(conn, set.emit_set(), &[]).status.is_success());
        (conn, cqe.result as u16)
    }

    fn open(&mut self, port: u32) -> u32 {
        let conn = self.accept(port).unwrap();
        let mut bytes = Vec::new();
        IcReq {
            pfv: 0,
            hpda: 0,
            header_digest: false,
            data_digest: false,
            maxr2t: 0,
        }
        .emit(&mut bytes);
        self.say(conn, &bytes);
        let got = self.take(conn);
        assert!(matches!(got[..], [(_, Got::IcResp(_))]), "{got:?}");
        conn
    }

    fn connect(&mut self, conn: u32, cntlid: u16, qid: u16, sqsize: u16) -> Cqe {
        let data = ConnectData {
            hostid: [9; 16],
            cntlid,
            subnqn: NQN.as_bytes(),
            hostnqn: b"nqn.2026-01.org.example:host",
        };
        let connect = Connect {
            recfmt: 0,
            qid,
            sqsize,
            cattr: 0,
            kato_ms: if qid == 0 { self.kato_ms } else { 0 },
        };
        let sqe = connect.emit().sgl(Sgl::InCapsule {
            offset: 0,
            len: 1024,
        });
        self.ask(conn, sqe, &data.emit())
    }

    /// Sends a command and returns its completion, which must be all that comes.
    pub fn ask(&mut self, conn: u32, sqe: SqeBuilder, data: &[u8]) -> Cqe {
        self.send(conn, sqe, data);
        let got = self.take(conn);
        let [(_, Got::Done(cqe))] = got[..] else {
            panic!("{got:?}")
        };
        cqe
    }

    /// Sends a command with in-capsule data; its CID.
    pub fn send(&mut self, conn: u32, sqe: SqeBuilder, data: &[u8]) -> u16 {
        let cid = self.wire(conn).next_cid;
        self.wire(conn).next_cid += 1;
        let mut bytes = Vec::new();
        let sqe = sqe.cid(cid);
        Framing::PLAIN.whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), data);
        self.say(conn, &bytes);
        cid
    }

    pub fn read(&mut self, conn: u32, slba: u64, blocks: u32) -> u16 {
        let len = blocks << SHIFT;
        self.send(
            conn,
            io(0x02, slba, blocks).sgl(Sgl::Transport { len }),
            &[],
        )
    }

    /// A write whose data is in the capsule.
    pub fn write(&mut self, conn: u32, slba: u64, data: &[u8]) -> u16 {
        let len = data.len() as u32;
        let sqe = io(0x01, slba, len >> SHIFT).sgl(Sgl::InCapsule { offset: 0, len });
        self.send(conn, sqe, data)
    }

    /// A write whose data the target has to ask for.
    pub fn write_later(&mut self, conn: u32, slba: u64, blocks: u32) -> u16 {
        let len = blocks << SHIFT;
        self.send(
            conn,
            io(0x01, slba, blocks).sgl(Sgl::Transport { len }),
            &[],
        )
    }

    /// All data that an R2T asks for.
    pub fn answer(&mut self, conn: u32, r2t: &DataHeader, data: &[u8]) {
        let data = &data[r2t.offset as usize..][..r2t.length as usize];
        let mut bytes = Vec::new();
        let mut offset = r2t.offset;
        for piece in data.chunks(MAXH2CDATA as usize) {
            let end = offset + piece.len() as u32 == r2t.offset + r2t.length;
            let flag = if end { flags::LAST } else { 0 };
            let own = DataHeader {
                offset,
                length: piece.len() as u32,
                ..*r2t
            }
            .emit();
            Framing::PLAIN.whole(&mut bytes, PduType::H2cData, flag, &own, piece);
            offset += piece.len() as u32;
        }
        self.say(conn, &bytes);
    }

    /// One H2CData for an R2T, without its last byte.
    pub fn answer_but_one(&mut self, conn: u32, r2t: &DataHeader, data: &[u8]) {
        let mut bytes = Vec::new();
        let kind = PduType::H2cData;
        Framing::PLAIN.whole(&mut bytes, kind, flags::LAST, &r2t.emit(), data);
        self.say(conn, &bytes[..bytes.len() - 1]);
    }

    /// Bytes from a host.
    pub fn say(&mut self, conn: u32, bytes: &[u8]) {
        self.wire(conn).backlog.extend(bytes);
        self.feed(conn);
        self.settle();
    }

    /// Everything a host got since it last asked.
    pub fn take(&mut self, conn: u32) -> Vec<(u64, Got)> {
        std::mem::take(&mut self.wire(conn).got)
    }

    /// Completions a host got since it last asked: when, CID, status.
    pub fn done(&mut self, conn: u32) -> Vec<(u64, u16, Status)> {
        let got = self.take(conn).into_iter();
        let done = got.filter_map(|(at, got)| match got {
            Got::Done(cqe) => Some((at, cqe.cid, cqe.status)),
            _ => None,
        });
        done.collect()
    }

    /// Lets time pass, with every time-out at its time.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        for round in 0.. {
            assert!(round < 1_000_000, "time-outs without end");
            let Some(next) = self.target.poll_timeout().filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            self.target.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
    }

    pub fn control(&mut self, message: M::Control) {
        self.target.handle_control(message, self.now);
        self.settle();
    }

    /// A device answers the oldest request it has.
    pub fn answer_device(&mut self) {
        let request = self.at_device.pop_front().unwrap();
        let result = self.execute(&request);
        self.target.handle_device(request.id, result, self.now);
        self.settle();
    }

    /// Each sent PDU is reported, and so are those sent thereupon.
    pub fn report_sends(&mut self, conn: u32) {
        while let Some(at) = self.unsent.iter().position(|(of, _)| *of == conn) {
            let (_, cookie) = self.unsent.remove(at);
            self.target.handle_sent(ConnId(conn), cookie, self.now);
            self.settle();
        }
    }

    /// The host ends a connection, and its controller with it.
    pub fn hang_up(&mut self, conn: u32) {
        self.wire(conn).backlog.clear();
        self.report_sends(conn);
        self.target
            .handle_closed(ConnId(conn), Closed::ByPeer, self.now);
        let wire = self.wires.remove(&conn).unwrap();
        self.settle();
        if let Some(admin) = wire.admin.filter(|admin| self.wires.contains_key(admin)) {
            self.hang_up(admin);
        }
    }

    pub fn wire(&mut self, conn: u32) -> &mut Wire {
        self.wires.get_mut(&conn).unwrap()
    }

    /// Turns and outputs until there are none.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1_000_000, "outputs without end");
            self.target.turn(&mut self.arena, self.now);
            let Some(output) = self.target.poll_output() else {
                return;
            };
            match output {
                Output::Transmit(conn) => self.transmit(conn),
                Output::Resume(conn) => {
                    self.wire(conn.0).resumed += 1;
                    self.feed(conn.0);
                }
                Output::Device(request) => {
                    self.requests.push(request);
                    self.at_device.push_back(request);
                    if !self.hold_device {
                        let request = self.at_device.pop_back().unwrap();
                        let result = self.execute(&request);
                        self.target.handle_device(request.id, result, self.now);
                    }
                }
                Output::Close { conn, abort } => {
                    if !abort {
                        self.transmit(conn);
                    }
                    self.wire(conn.0).closed = Some(abort);
                }
                Output::Stop => self.stopped = true,
                Output::Open { .. } => panic!("a target opens nothing"),
                Output::CheckEnd(_) => panic!("a target asks for no ends"),
                Output::Extent(request) => self.extents.push(request),
                Output::LetGo { .. } => panic!("a target waits for its devices"),
            }
        }
    }

    /// Does as the reactor does after `Output::Close`.
    pub fn finish_close(&mut self, conn: u32) {
        assert!(self.wire(conn).closed.is_some());
        self.report_sends(conn);
        self.target
            .handle_closed(ConnId(conn), Closed::ByUs, self.now);
        self.wires.remove(&conn);
        self.settle();
    }

    fn feed(&mut self, conn: u32) {
        loop {
            if self.wire(conn).closed.is_some() {
                return;
            }
            let bytes: Vec<u8> = self.wire(conn).backlog.iter().copied().collect();
            if bytes.is_empty() {
                return;
            }
            let taken = self.target.handle_bytes(ConnId(conn), &bytes, self.now);
            self.wire(conn).backlog.drain(..taken);
            if taken == bytes.len() {
                return;
            }
            let Some(place) = self.target.placement(ConnId(conn)) else {
                return;
            };
            let n = (bytes.len() - taken).min(place.span.len as usize);
            self.wire(conn).backlog.drain(..n);
            let into = Span {
                at: place.span.at,
                len: n as u32,
            };
            self.arena
                .bytes_mut(into)
                .copy_from_slice(&bytes[taken..taken + n]);
            self.target
                .handle_payload(ConnId(conn), n as u32, 0, self.now);
        }
    }

    fn transmit(&mut self, conn: ConnId) {
        let mut out = Vec::new();
        while let Some(send) = self.target.poll_transmit(conn, &mut out, self.now) {
            let Some(send) = send else { continue };
            out.extend_from_slice(self.arena.bytes(send.span));
            if self.hold_sends.contains(&conn.0) {
                self.unsent.push((conn.0, send.cookie));
            } else {
                self.target.handle_sent(conn, send.cookie, self.now);
            }
        }
        let now = self.now;
        let wire = self.wire(conn.0);
        wire.bytes.append(&mut out);
        while !wire.bytes.is_empty() {
            let header = Header::parse(&wire.bytes).unwrap();
            let pdu: Vec<u8> = wire.bytes.drain(..header.plen as usize).collect();
            for got in parse(&header, &pdu) {
                wire.got.push((now, got));
            }
        }
    }

    fn execute(&mut self, request: &DeviceRequest) -> Result<(), DeviceError> {
        if let Some(error) = self.device_error {
            return Err(error);
        }
        let range = request.offset as usize..(request.offset + request.length) as usize;
        let disk = &mut self.disk;
        match request.op {
            DeviceOp::Read => self
                .arena
                .bytes_mut(request.span)
                .copy_from_slice(&disk[range]),
            DeviceOp::Write { .. } => disk[range].copy_from_slice(self.arena.bytes(request.span)),
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => disk[range].fill(0),
            DeviceOp::Compare if disk[range.clone()] != *self.arena.bytes(request.span) => {
                return Err(DeviceError::Mismatch);
            }
            DeviceOp::Compare | DeviceOp::Flush => {}
        }
        Ok(())
    }
}

/// An NVM command on namespace 1.
pub fn io(opcode: u8, slba: u64, blocks: u32) -> SqeBuilder {
    SqeBuilder::new(opcode)
        .nsid(1)
        .cdw(10, slba as u32)
        .cdw(11, (slba >> 32) as u32)
        .cdw(12, blocks.wrapping_sub(1) & 0xffff)
}

fn parse(header: &Header, pdu: &[u8]) -> Vec<Got> {
    let layout = header.layout(false, &Framing::PLAIN).unwrap();
    let from = (layout.header + layout.pad) as usize;
    match layout.kind {
        PduType::IcResp => vec![Got::IcResp(IcResp::parse(pdu).unwrap())],
        PduType::CapsuleResp => vec![Got::Done(parse_response(pdu).unwrap())],
        PduType::R2t => vec![Got::R2t(DataHeader::parse(pdu).unwrap())],
        PduType::C2hData => {
            let data = DataHeader::parse(pdu).unwrap();
            let bytes = pdu[from..from + layout.data as usize].to_vec();
            let mut got = vec![Got::Data {
                cid: data.cccid,
                offset: data.offset,
                bytes,
            }];
            if header.flags & flags::SUCCESS != 0 {
                got.push(Got::Done(Cqe {
                    cid: data.cccid,
                    ..Cqe::default()
                }));
            }
            got
        }
        PduType::C2hTermReq => vec![Got::Term],
        other => panic!("{other:?} from a controller"),
    }
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i as u8) ^ seed).collect()
}
