//! A scripted host and a driver with its storage in memory, around the subsystem.
mod admin;
mod allocation;
mod data;
mod discovery;
mod events;
mod fabrics;
mod features;
mod framing;
mod hostile;
mod io;
mod lifetime;
mod namespaces;
mod room;

use super::*;
use crate::host::AnaState;
use crate::wire::crc::crc32c;
use crate::wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_ANY, Cc, Connect, ConnectData, Property, property,
};
use crate::wire::pdu::{
    DataHeader, Framing, Header, IcReq, IcResp, PduType, TermReq, flags, parse_response,
};
use crate::wire::sqe::Sgl;
use crate::wire::{Cqe, SqeBuilder, Status};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

pub const NQN: &str = "nqn.2026-01.org.example:t";
pub const HOST: &str = "nqn.2026-01.org.example:host";
pub const BLOCKS: u64 = 4096;
pub const MS: u64 = 1_000_000;

pub fn config() -> SubsystemConfig {
    let namespace = |nsid, block_shift, ana_group| NamespaceConfig {
        nsid,
        blocks: BLOCKS,
        block_shift,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8 + 100; 16],
        ana_group,
        read_only: false,
        deallocate_zeroes: true,
    };
    let port = |id, traddr: &str| PortConfig {
        id,
        traddr: traddr.into(),
        trsvcid: "4420".into(),
        ipv6: false,
        ana: AnaState::Optimized,
    };
    let mut read_only = namespace(5, 9, 2);
    (read_only.read_only, read_only.deallocate_zeroes) = (true, false);
    SubsystemConfig {
        nqn: NQN.into(),
        serial: "S1".into(),
        model: "braid".into(),
        cntlid_min: 3,
        cntlid_max: 6,
        namespaces: vec![read_only, namespace(1, 9, 1), namespace(2, 12, 2)],
        ports: vec![port(1, "10.0.0.1"), port(2, "10.0.0.2")],
        hosts: Vec::new(),
        entries_max: 16,
        io_queues_max: 4,
        transfer_shift: 17,
        in_capsule_max: 4096,
        maxh2cdata: 8192,
        c2h_success: true,
        cqt_ms: 250,
        volatile_write_cache: true,
        compare: true,
        lba_status: true,
        connections_max: 12,
    }
}

/// One PDU from the target.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    IcResp(IcResp),
    Response(Cqe),
    R2t(DataHeader),
    Data {
        header: DataHeader,
        flags: u8,
        bytes: Vec<u8>,
    },
    Term {
        fes: u16,
        fei: u32,
        refused: Vec<u8>,
    },
}

/// State of one connection on its host's side.
#[derive(Clone, Default)]
pub struct Wire {
    pub to: Framing,
    pub from: Framing,
    /// Bytes from the target, not yet parsed.
    pub bytes: Vec<u8>,
    cid: u16,
}

impl Default for Framing {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// The world around a subsystem.
pub struct Bench {
    pub target: Subsystem,
    pub now: u64,
    /// By NSID: what is stored.
    pub disks: BTreeMap<u32, Vec<u8>>,
    pub wires: BTreeMap<u32, Wire>,
    pub buffers: BTreeMap<(u32, u32), Vec<u8>>,
    /// Commands stay here instead of being executed at once.
    pub hold_commands: bool,
    /// Held commands are returned when they are to be aborted.
    pub take_back: bool,
    pub held: VecDeque<IoCommand>,
    /// Buffers asked for and not supplied.
    pub hold_buffers: bool,
    pub wanted: Vec<(u32, u32, u32)>,
    /// Payload sent and not reported.
    pub hold_sends: bool,
    pub unsent: Vec<(u32, u32)>,
    pub closed: Vec<(u32, CloseReason)>,
    pub released: Vec<(u32, u32)>,
    pub resumed: Vec<u32>,
    pub executed: Vec<IoCommand>,
    /// Extents asked for and not reported.
    pub hold_extents: bool,
    pub extents: Vec<u32>,
    /// Of the deallocation executed last.
    pub ranges: Box<[(u64, u64)]>,
}

impl Bench {
    pub fn new(config: SubsystemConfig) -> Self {
        let disk = |n: &NamespaceConfig| (n.nsid, vec![0; (n.blocks << n.block_shift) as usize]);
        Self {
            disks: config.namespaces.iter().map(disk).collect(),
            target: Subsystem::new(config).unwrap(),
            now: 1000,
            wires: BTreeMap::new(),
            buffers: BTreeMap::new(),
            hold_commands: false,
            take_back: false,
            held: VecDeque::new(),
            hold_buffers: false,
            wanted: Vec::new(),
            hold_sends: false,
            unsent: Vec::new(),
            closed: Vec::new(),
            released: Vec::new(),
            resumed: Vec::new(),
            executed: Vec::new(),
            hold_extents: false,
            extents: Vec::new(),
            ranges: Box::default(),
        }
    }

    /// Connection `conn` on `port` with ICReq and ICResp exchanged.
    pub fn open(&mut self, conn: u32, port: u16, request: &IcReq) -> IcResp {
        self.target.open(ConnId(conn), port, self.now).unwrap();
        self.wires.insert(conn, Wire::default());
        let mut bytes = Vec::new();
        request.emit(&mut bytes);
        assert_eq!(self.feed(conn, &bytes), bytes.len());
        let got = self.receive(conn);
        let [Got::IcResp(response)] = got[..] else {
            panic!("{got:?}")
        };
        let framing = |alignment| Framing {
            header_digest: response.header_digest,
            data_digest: response.data_digest,
            alignment,
        };
        let wire = self.wires.get_mut(&conn).unwrap();
        wire.to = framing((u32::from(response.cpda) + 1) * 4);
        wire.from = framing((u32::from(request.hpda) + 1) * 4);
        response
    }

    /// Offers bytes until nothing more is taken; returns how many were.
    pub fn feed(&mut self, conn: u32, bytes: &[u8]) -> usize {
        let id = ConnId(conn);
        let mut at = 0;
        loop {
            if let Some(place) = self.target.placement(id) {
                let n = (bytes.len() - at).min(place.len as usize);
                if n == 0 {
                    return at;
                }
                let data = &bytes[at..at + n];
                let buffer = self.buffers.get_mut(&(conn, place.token)).unwrap();
                buffer[place.offset as usize..][..n].copy_from_slice(data);
                let crc = place.crc.map_or(0, |crc| crc32c(crc, data));
                self.target.handle_payload(id, n as u32, crc, self.now);
                at += n;
            } else {
                let n = self.target.handle_bytes(id, &bytes[at..], self.now);
                at += n;
                self.settle();
                if n == 0 && self.target.placement(id).is_none() {
                    return at;
                }
            }
            self.settle();
        }
    }

    /// Does everything that the target asks for, until nothing is left.
    pub fn settle(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                ControllerEvent::NeedBuffer {
                    conn, token, len, ..
                } => {
                    assert!(
                        self.buffers
                            .insert((conn.0, token), vec![0xee; len as usize])
                            .is_none()
                    );
                    if self.hold_buffers {
                        self.wanted.push((conn.0, token, len));
                    } else {
                        self.target.buffer_ready(conn, token, self.now);
                    }
                }
                ControllerEvent::Command(command) if self.hold_commands => {
                    self.held.push_back(command);
                }
                ControllerEvent::Command(command) => self.execute(command),
                ControllerEvent::Abort {
                    conn,
                    token,
                    by,
                    answer,
                } => {
                    let held = |of: &IoCommand| (of.conn, of.token) == (conn, token);
                    let held = self.held.iter().position(held).filter(|_| self.take_back);
                    if let Some(at) = held {
                        self.held.remove(at);
                        let status = Status::ABORT_REQUESTED;
                        self.target.complete(conn, token, status, self.now);
                    }
                    self.target.abort_answered(by, answer, held.is_some());
                }
                ControllerEvent::Release { conn, token } => {
                    self.buffers.remove(&(conn.0, token));
                    self.released.push((conn.0, token));
                }
                ControllerEvent::Extent { id, .. } if self.hold_extents => {
                    self.extents.push(id);
                }
                ControllerEvent::Extent {
                    id,
                    nsid,
                    slba,
                    blocks,
                } => {
                    let (bytes, is_hole) = self.extent(nsid, slba, blocks);
                    self.target.extent_found(id, bytes, is_hole);
                }
                ControllerEvent::Transmit(conn) => self.transmit(conn),
                ControllerEvent::Resume(conn) => self.resumed.push(conn.0),
                ControllerEvent::Close { conn, reason } => self.closed.push((conn.0, reason)),
            }
        }
    }

    /// How many bytes from a block on are zero, or are not.
    fn extent(&self, nsid: u32, slba: u64, blocks: u32) -> (u32, bool) {
        let shift = if nsid == 2 { 12 } else { 9 };
        let range = (slba << shift) as usize..((slba + u64::from(blocks)) << shift) as usize;
        let bytes = &self.disks[&nsid][range];
        let is_hole = bytes[0] == 0;
        let end = bytes.iter().position(|&byte| (byte == 0) != is_hole);
        (end.unwrap_or(bytes.len()) as u32, is_hole)
    }

    /// Executes one held command.
    pub fn execute_one(&mut self) {
        let command = self.held.pop_front().unwrap();
        self.execute(command);
        self.settle();
    }

    fn execute(&mut self, command: IoCommand) {
        let key = (command.conn.0, command.token);
        let disk = self.disks.get_mut(&command.nsid);
        let shift = if command.nsid == 2 { 12 } else { 9 };
        let (from, len) = (command.slba << shift, u64::from(command.blocks) << shift);
        let range = from as usize..(from + len) as usize;
        let mut status = Status::SUCCESS;
        match command.action {
            Action::Read => {
                let data = disk.unwrap()[range].to_vec();
                assert!(self.buffers.insert(key, data).is_none());
            }
            Action::Write { .. } => disk.unwrap()[range].copy_from_slice(&self.buffers[&key]),
            Action::Compare if disk.as_ref().unwrap()[range.clone()] != self.buffers[&key] => {
                status = Status::COMPARE_FAILURE;
            }
            Action::Compare | Action::Flush => {}
            Action::WriteZeroes { .. } => disk.unwrap()[range].fill(0),
            Action::Deallocate => {
                let disk = disk.unwrap();
                let ranges = self.target.take_ranges(command.conn, command.token);
                for &(slba, blocks) in &ranges {
                    disk[(slba << shift) as usize..((slba + blocks) << shift) as usize].fill(0);
                }
                assert!(
                    self.target
                        .take_ranges(command.conn, command.token)
                        .is_empty()
                );
                self.ranges = ranges;
            }
        }
        let (conn, token) = (command.conn, command.token);
        self.executed.push(command);
        self.target.complete(conn, token, status, self.now);
    }

    fn transmit(&mut self, conn: ConnId) {
        let mut out = Vec::new();
        while let Some(transmit) = self.target.poll_transmit(conn, &mut out, self.now) {
            if let Some(payload) = transmit.payload {
                let buffer = &self.buffers[&(conn.0, payload.token)];
                let data = &buffer[payload.offset as usize..][..payload.len as usize];
                out.extend_from_slice(data);
                if payload.digest {
                    out.extend_from_slice(&crc32c(0, data).to_le_bytes());
                }
                if self.hold_sends {
                    self.unsent.push((conn.0, payload.token));
                } else {
                    self.target.handle_sent(conn, payload.token);
                }
            }
        }
        self.wires.get_mut(&conn.0).unwrap().bytes.append(&mut out);
    }

    /// Everything the target has sent on a connection, digests checked.
    pub fn receive(&mut self, conn: u32) -> Vec<Got> {
        let wire = self.wires.get_mut(&conn).unwrap();
        let mut got = Vec::new();
        while !wire.bytes.is_empty() {
            let header = Header::parse(&wire.bytes).unwrap();
            let pdu: Vec<u8> = wire.bytes.drain(..header.plen as usize).collect();
            got.push(parse(&header, &pdu, &wire.from));
        }
        got
    }

    /// Appends a capsule with in-capsule `data`.
    pub fn capsule(&self, conn: u32, sqe: &SqeBuilder, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.wires[&conn]
            .to
            .whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), data);
        bytes
    }

    /// H2CData for an R2T.
    pub fn h2c(&self, conn: u32, header: &DataHeader, last: bool, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let flag = if last { flags::LAST } else { 0 };
        self.wires[&conn]
            .to
            .whole(&mut bytes, PduType::H2cData, flag, &header.emit(), data);
        bytes
    }

    pub fn cid(&mut self, conn: u32) -> u16 {
        let cid = &mut self.wires.get_mut(&conn).unwrap().cid;
        *cid += 1;
        *cid
    }

    /// Sends a command with in-capsule `data` and returns the PDUs received.
    pub fn send(&mut self, conn: u32, sqe: SqeBuilder, data: &[u8]) -> Vec<Got> {
        let cid = self.cid(conn);
        let bytes = self.capsule(conn, &sqe.cid(cid), data);
        assert_eq!(self.feed(conn, &bytes), bytes.len());
        self.receive(conn)
    }

    /// Sends a command that has no data, and returns its completion.
    pub fn ask(&mut self, conn: u32, sqe: SqeBuilder) -> Cqe {
        let got = self.send(conn, sqe, &[]);
        let [Got::Response(cqe)] = got[..] else {
            panic!("{got:?}")
        };
        cqe
    }

    /// Sends an admin command that returns `len` bytes of data.
    pub fn fetch(&mut self, conn: u32, sqe: SqeBuilder, len: u32) -> Result<Vec<u8>, Status> {
        let got = self.send(conn, sqe.sgl(Sgl::Transport { len }), &[]);
        match &got[..] {
            [Got::Response(cqe)] => Err(cqe.status),
            [Got::Data { header, bytes, .. }, Got::Response(cqe)] if cqe.status.is_success() => {
                assert_eq!((header.offset, header.length as usize), (0, bytes.len()));
                Ok(bytes.clone())
            }
            _ => panic!("{got:?}"),
        }
    }

    pub fn connect(&mut self, conn: u32, connect: Connect, data: &ConnectData<'_>) -> Cqe {
        let data = data.emit();
        let sqe = connect.emit().sgl(Sgl::InCapsule {
            offset: 0,
            len: 1024,
        });
        let got = self.send(conn, sqe, &data);
        let [Got::Response(cqe)] = got[..] else {
            panic!("{got:?}")
        };
        cqe
    }

    pub fn set_cc(&mut self, conn: u32, cc: Cc) {
        let set = Property {
            offset: property::CC,
            wide: false,
            value: cc.0.into(),
        };
        assert!(self.ask(conn, set.emit_set()).status.is_success());
    }

    pub fn csts(&mut self, conn: u32) -> crate::wire::fabrics::Csts {
        let get = Property {
            offset: property::CSTS,
            wide: false,
            value: 0,
        };
        crate::wire::fabrics::Csts(self.ask(conn, get.emit_get()).result as u32)
    }

    /// An enabled controller of which `conn` is the admin connection.
    pub fn admin(&mut self, conn: u32, port: u16) -> u16 {
        self.open(conn, port, &plain());
        let cqe = self.connect(conn, admin_connect(), &connect_data(NQN, CNTLID_ANY));
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        self.set_cc(conn, Cc::enabled(0, 0));
        assert!(self.csts(conn).rdy());
        cqe.result as u16
    }

    /// I/O queue `qid` of a controller.
    pub fn io(&mut self, conn: u32, port: u16, cntlid: u16, qid: u16, options: &Options) {
        self.open(conn, port, &options.request);
        let connect = Connect {
            qid,
            sqsize: options.entries - 1,
            cattr: if options.flow_control {
                0
            } else {
                CATTR_DISABLE_SQ_FLOW
            },
            ..admin_connect()
        };
        let cqe = self.connect(conn, connect, &connect_data(NQN, cntlid));
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        let flow = if options.flow_control { 1 } else { 0xffff };
        assert_eq!((cqe.result as u16, cqe.sqhd), (cntlid, flow));
    }

    /// An enabled controller on connection 0 with one I/O queue on connection 1.
    pub fn ready(config: SubsystemConfig, options: &Options) -> Self {
        let mut bench = Self::new(config);
        let cntlid = bench.admin(0, 0);
        bench.io(1, 0, cntlid, 1, options);
        bench
    }

    pub fn advance(&mut self, ns: u64) {
        self.now += ns;
        self.target.handle_timeout(self.now);
        self.settle();
    }

    pub fn gone(&mut self, conn: u32) {
        self.target.handle_closed(ConnId(conn), self.now);
        self.settle();
    }
}

/// Connection of an I/O queue.
#[derive(Clone)]
pub struct Options {
    pub request: IcReq,
    pub flow_control: bool,
    pub entries: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            request: plain(),
            flow_control: true,
            entries: 8,
        }
    }
}

pub fn plain() -> IcReq {
    IcReq {
        pfv: 0,
        hpda: 0,
        header_digest: false,
        data_digest: false,
        maxr2t: 0,
    }
}

pub fn admin_connect() -> Connect {
    Connect {
        recfmt: 0,
        qid: 0,
        sqsize: 31,
        cattr: 0,
        kato_ms: 0,
    }
}

pub fn connect_data(subnqn: &str, cntlid: u16) -> ConnectData<'_> {
    ConnectData {
        hostid: [9; 16],
        cntlid,
        subnqn: subnqn.as_bytes(),
        hostnqn: HOST.as_bytes(),
    }
}

fn parse(header: &Header, pdu: &[u8], framing: &Framing) -> Got {
    let layout = header.layout(false, framing).unwrap();
    assert!(framing.header_digest_ok(layout.kind, &pdu[..layout.header as usize]));
    let from = (layout.header + layout.pad) as usize;
    let bytes = pdu[from..from + layout.data as usize].to_vec();
    if layout.data_digest > 0 {
        let digest = &pdu[from + bytes.len()..];
        assert_eq!(digest, crc32c(0, &bytes).to_le_bytes());
    }
    match layout.kind {
        PduType::IcResp => Got::IcResp(IcResp::parse(pdu).unwrap()),
        PduType::CapsuleResp => Got::Response(parse_response(pdu).unwrap()),
        PduType::R2t => Got::R2t(DataHeader::parse(pdu).unwrap()),
        PduType::C2hData => Got::Data {
            header: DataHeader::parse(pdu).unwrap(),
            flags: header.flags,
            bytes,
        },
        PduType::C2hTermReq => {
            let term = TermReq::parse(pdu).unwrap();
            Got::Term {
                fes: term.fes,
                fei: term.fei,
                refused: bytes,
            }
        }
        other => panic!("{other:?} from a controller"),
    }
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i as u8) ^ seed).collect()
}

#[test]
fn configuration_that_cannot_be_is_refused_by_field() {
    fn field(change: impl Fn(&mut SubsystemConfig)) -> &'static str {
        let mut config = config();
        change(&mut config);
        match Subsystem::new(config) {
            Ok(_) => "",
            Err(error) => error.field,
        }
    }
    assert_eq!(field(|_| {}), "");
    assert_eq!(field(|c| c.nqn = "iqn.x".into()), "nqn");
    assert_eq!(
        field(|c| c.nqn = String::from("nqn.") + &"x".repeat(220)),
        "nqn"
    );
    assert_eq!(
        field(|c| c.nqn = crate::wire::fabrics::DISCOVERY_NQN.into()),
        "nqn"
    );
    assert_eq!(field(|c| c.serial = "x".repeat(21)), "serial");
    assert_eq!(field(|c| c.model = "ü".into()), "model");
    assert_eq!(field(|c| c.cntlid_min = 0), "cntlid_min");
    assert_eq!(field(|c| c.cntlid_min = 7), "cntlid_min");
    assert_eq!(field(|c| c.cntlid_max = 0xfff0), "cntlid_max");
    assert_eq!(field(|c| c.namespaces[0].nsid = 1), "nsid");
    assert_eq!(field(|c| c.namespaces[0].nsid = 0), "nsid");
    assert_eq!(field(|c| c.namespaces[0].block_shift = 10), "block_shift");
    assert_eq!(field(|c| c.namespaces[0].ana_group = 0), "ana_group");
    assert_eq!(field(|c| c.namespaces[0].blocks = 0), "blocks");
    assert_eq!(field(|c| c.namespaces[0].blocks = u64::MAX >> 9), "blocks");
    assert_eq!(field(|c| c.ports.clear()), "ports");
    assert_eq!(field(|c| c.hosts = vec!["x".into()]), "hosts");
    assert_eq!(field(|c| c.entries_max = 1), "entries_max");
    assert_eq!(field(|c| c.io_queues_max = 0), "io_queues_max");
    assert_eq!(field(|c| c.transfer_shift = 12), "transfer_shift");
    assert_eq!(field(|c| c.in_capsule_max = 4097), "in_capsule_max");
    assert_eq!(field(|c| c.maxh2cdata = 4095), "maxh2cdata");
    assert_eq!(field(|c| c.maxh2cdata = 4098), "maxh2cdata");
    assert_eq!(field(|c| c.connections_max = 0), "connections_max");
}
