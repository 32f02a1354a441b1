//! A subsystem under a driver that keeps the contract and checks that the subsystem does.
use super::queue::{OUTPUTS_MAX, SUBSYSTEM};
use nvme::controller::{
    Action, ConnId, ControllerEvent, IoCommand, NamespaceConfig, PortConfig, Subsystem,
    SubsystemConfig,
};
use nvme::host::AnaState;
use nvme::wire::Status;
use nvme::wire::crc::crc32c;
use std::collections::BTreeMap;

/// Most connections of a world.
pub const CONNECTIONS: u32 = 4;
const BLOCKS: u64 = 1 << 20;
const BLOCK_SHIFT: u8 = 9;
const TRANSFER_SHIFT: u8 = 17;

/// A subsystem and what is expected of it.
pub struct CheckedTarget {
    subsystem: Subsystem,
    connections: Vec<Connection>,
    /// Commands at the backend, oldest first.
    backend: Vec<IoCommand>,
    /// Buffers asked for, not given: oldest first.
    wanted: Vec<(ConnId, u32)>,
}

#[derive(Default)]
struct Connection {
    open: bool,
    /// The subsystem asked to close it.
    closing: bool,
    /// Commands by token, until released.
    commands: BTreeMap<u32, Command>,
    /// Tokens of payload handed out and not reported as sent.
    unsent: Vec<u32>,
}

/// Stage of one command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Wanted,
    Buffered,
    AtBackend,
    Completed,
}

#[derive(Clone, Copy)]
struct Command {
    stage: Stage,
    /// Bytes of its buffer.
    len: u32,
}

impl CheckedTarget {
    /// A subsystem with two ports and one namespace.
    pub fn new(choice: u8) -> Self {
        let port = |id, ana| PortConfig {
            id,
            traddr: "127.0.0.1".to_owned(),
            trsvcid: "4420".to_owned(),
            ipv6: false,
            ana,
        };
        let namespace = NamespaceConfig {
            nsid: 1,
            blocks: BLOCKS,
            block_shift: BLOCK_SHIFT,
            uuid: [1; 16],
            nguid: [2; 16],
            ana_group: 1,
            read_only: choice & 1 != 0,
            deallocate_zeroes: true,
        };
        let config = SubsystemConfig {
            nqn: SUBSYSTEM.to_owned(),
            serial: "1".to_owned(),
            model: "fuzz".to_owned(),
            cntlid_min: 1,
            cntlid_max: 8,
            namespaces: vec![namespace],
            ports: vec![
                port(1, AnaState::Optimized),
                port(2, AnaState::NonOptimized),
            ],
            hosts: Vec::new(),
            entries_max: 32,
            io_queues_max: 4,
            transfer_shift: TRANSFER_SHIFT,
            in_capsule_max: 8192,
            maxh2cdata: 8192,
            c2h_success: choice & 2 != 0,
            cqt_ms: 0,
            volatile_write_cache: true,
            compare: true,
            lba_status: true,
            connections_max: CONNECTIONS,
        };
        let subsystem = Subsystem::new(config).expect("a legal configuration");
        let connections = (0..CONNECTIONS).map(|_| Connection::default()).collect();
        Self {
            subsystem,
            connections,
            backend: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// Whether the connection is open (and not about to be closed).
    pub fn is_open(&self, conn: u32) -> bool {
        let connection = &self.connections[conn as usize];
        connection.open && !connection.closing
    }

    /// A host connects, two connections to each port; nothing happens while the connection is in
    /// use.
    pub fn open(&mut self, conn: u32, now_ns: u64) {
        let connection = &mut self.connections[conn as usize];
        if connection.open || !connection.commands.is_empty() {
            return;
        }
        *connection = Connection::default();
        if self
            .subsystem
            .open(ConnId(conn), (conn / 2) as u16, now_ns)
            .is_ok()
        {
            connection.open = true;
        }
        self.settle();
    }

    /// Hands in bytes; how many were taken (fewer: a buffer is awaited, or the end).
    pub fn feed(&mut self, conn: u32, bytes: &[u8], now_ns: u64) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.is_open(conn) {
            let rest = &bytes[at..];
            let id = ConnId(conn);
            let taken = match self.subsystem.placement(id) {
                Some(place) => {
                    let known = self.connections[conn as usize].commands.get(&place.token);
                    let command = known.expect("payload for no command");
                    assert!(command.stage == Stage::Buffered, "payload without a buffer");
                    let end = u64::from(place.offset) + u64::from(place.len);
                    assert!(
                        place.len > 0 && end <= u64::from(command.len),
                        "outside the buffer"
                    );
                    let taken = rest.len().min(place.len as usize);
                    let crc = place.crc.map_or(0, |crc| crc32c(crc, &rest[..taken]));
                    self.subsystem.handle_payload(id, taken as u32, crc, now_ns);
                    taken
                }
                None => self.subsystem.handle_bytes(id, rest, now_ns),
            };
            assert!(taken <= rest.len());
            self.settle();
            at += taken;
            if taken == 0 && self.subsystem.placement(id).is_none() {
                // It waits for a buffer, or for sends to be reported so that a slot gets free.
                let waits = !self.connections[conn as usize].commands.is_empty();
                assert!(
                    waits || !self.is_open(conn),
                    "stuck: takes nothing, waits for nothing"
                );
                break;
            }
        }
        at
    }

    /// Gives the oldest buffer that was asked for.
    pub fn give_buffer(&mut self, now_ns: u64) {
        if self.wanted.is_empty() {
            return;
        }
        let (conn, token) = self.wanted.remove(0);
        if let Some(command) = self.connections[conn.0 as usize].commands.get_mut(&token) {
            command.stage = Stage::Buffered;
            self.subsystem.buffer_ready(conn, token, now_ns);
        }
        self.settle();
    }

    /// The backend ends a command: the `which`th.
    pub fn complete(&mut self, which: u8, status: Status, now_ns: u64) {
        if self.backend.is_empty() {
            return;
        }
        let io = self.backend.remove(usize::from(which) % self.backend.len());
        let command = self.connections[io.conn.0 as usize]
            .commands
            .get_mut(&io.token);
        command.expect("released while at the backend").stage = Stage::Completed;
        self.subsystem.complete(io.conn, io.token, status, now_ns);
        self.settle();
    }

    /// Appends everything that is to be sent on a connection, payload included.
    pub fn transmit(&mut self, conn: u32, out: &mut Vec<u8>, now_ns: u64) {
        for _ in 0..OUTPUTS_MAX {
            if !self.connections[conn as usize].open {
                return;
            }
            let before = out.len();
            let Some(transmit) = self.subsystem.poll_transmit(ConnId(conn), out, now_ns) else {
                assert_eq!(out.len(), before);
                return;
            };
            // A page whose controller has gone appends nothing; its response comes with the next
            // call.
            if let Some(payload) = transmit.payload {
                let connection = &mut self.connections[conn as usize];
                let command = connection
                    .commands
                    .get(&payload.token)
                    .expect("sends of no command");
                assert!(
                    command.stage == Stage::Completed,
                    "sends a buffer that is not filled"
                );
                let end = u64::from(payload.offset) + u64::from(payload.len);
                assert!(
                    payload.len > 0 && end <= u64::from(command.len),
                    "outside the buffer"
                );
                connection.unsent.push(payload.token);
                let begun = out.len();
                out.resize(begun + payload.len as usize, payload.token as u8);
                if payload.digest {
                    let crc = crc32c(0, &out[begun..]);
                    out.extend_from_slice(&crc.to_le_bytes());
                }
            }
            self.settle();
        }
        panic!("sends without end");
    }

    /// Reports the oldest `count` sends of a connection as done.
    pub fn report_sent(&mut self, conn: u32, count: usize) {
        let unsent = &mut self.connections[conn as usize].unsent;
        let sent: Vec<u32> = unsent.drain(..count.min(unsent.len())).collect();
        for token in sent {
            self.subsystem.handle_sent(ConnId(conn), token);
            self.settle();
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now_ns: u64) {
        if self.subsystem.poll_timeout().is_some_and(|at| at <= now_ns) {
            self.subsystem.handle_timeout(now_ns);
            self.settle();
        }
        let timeout = self.subsystem.poll_timeout();
        assert!(
            timeout.is_none_or(|at| at > now_ns),
            "a timer that never rests"
        );
    }

    /// Closes what the subsystem wants closed, after sending what is queued.
    pub fn close_as_asked(&mut self, now_ns: u64) {
        for conn in 0..CONNECTIONS {
            if self.connections[conn as usize].closing {
                self.transmit(conn, &mut Vec::new(), now_ns);
                self.close(conn, now_ns);
            }
        }
    }

    /// A connection ended.
    pub fn close(&mut self, conn: u32, now_ns: u64) {
        if self.connections[conn as usize].open {
            self.report_sent(conn, usize::MAX);
            self.connections[conn as usize].open = false;
            self.connections[conn as usize].closing = false;
            self.subsystem.handle_closed(ConnId(conn), now_ns);
            self.settle();
        }
    }

    /// The subsystem's own operations.
    pub fn administer(&mut self, choice: u8, now_ns: u64) {
        match choice % 4 {
            0 => self.subsystem.set_ana(0, AnaState::Inaccessible, now_ns),
            1 => self.subsystem.set_ana(0, AnaState::Optimized, now_ns),
            // Never smaller: commands at the backend were checked against the old size.
            _ => assert!(self.subsystem.resize(1, BLOCKS, now_ns).is_ok()),
        }
        self.settle();
    }

    /// The end: everything must have been given back.
    pub fn finish(mut self, now_ns: u64) {
        for conn in 0..CONNECTIONS {
            self.close(conn, now_ns);
        }
        while !self.backend.is_empty() {
            self.complete(0, Status(0), now_ns);
        }
        for connection in &self.connections {
            assert!(connection.commands.is_empty(), "commands never released");
        }
    }

    fn settle(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let Some(event) = self.subsystem.poll_event() else {
                return;
            };
            match event {
                ControllerEvent::NeedBuffer {
                    conn, token, len, ..
                } => {
                    assert!(len > 0 && len <= 1 << TRANSFER_SHIFT);
                    let command = Command {
                        stage: Stage::Wanted,
                        len,
                    };
                    let known = self.live(conn).commands.insert(token, command);
                    assert!(known.is_none(), "a token was used twice");
                    self.wanted.push((conn, token));
                }
                ControllerEvent::Command(io) => self.take_command(io),
                ControllerEvent::Abort {
                    conn,
                    token,
                    by,
                    answer,
                } => self.take_back((conn, token), by, answer),
                ControllerEvent::Release { conn, token } => {
                    let connection = &mut self.connections[conn.0 as usize];
                    let command = connection.commands.remove(&token).expect("released twice");
                    assert!(
                        command.stage != Stage::AtBackend,
                        "released while at the backend"
                    );
                    assert!(
                        !connection.unsent.contains(&token),
                        "released while being sent"
                    );
                    self.wanted.retain(|wanted| *wanted != (conn, token));
                }
                ControllerEvent::Extent { id, blocks, .. } => {
                    assert!(blocks > 0);
                    let (bytes, is_hole) = (id << 9, id & 1 == 0);
                    self.subsystem.extent_found(id, bytes, is_hole);
                }
                ControllerEvent::Resume(_) => {}
                ControllerEvent::Transmit(conn) => assert!(self.live(conn).open),
                ControllerEvent::Close { conn, .. } => self.live(conn).closing = true,
            }
        }
        panic!("events without end");
    }

    /// Every second command is given back.
    fn take_back(&mut self, of: (ConnId, u32), by: ConnId, answer: u32) {
        let mut backend = self.backend.iter();
        let at = backend.position(|io| (io.conn, io.token) == of);
        let at = at.expect("an Abort of a command that isn't at the backend");
        let aborted = of.1.is_multiple_of(2);
        if aborted {
            self.backend.remove(at);
            let commands = &mut self.connections[of.0.0 as usize].commands;
            let command = commands.get_mut(&of.1);
            command.expect("released while at the backend").stage = Stage::Completed;
            let status = Status::ABORT_REQUESTED;
            self.subsystem.complete(of.0, of.1, status, 0);
        }
        self.subsystem.abort_answered(by, answer, aborted);
    }

    fn live(&mut self, conn: ConnId) -> &mut Connection {
        &mut self.connections[conn.0 as usize]
    }

    fn take_command(&mut self, io: IoCommand) {
        let bytes = io.blocks << BLOCK_SHIFT;
        let carries = matches!(io.action, Action::Write { .. } | Action::Compare);
        if carries || matches!(io.action, Action::Read | Action::WriteZeroes { .. }) {
            assert_eq!(io.nsid, 1);
            let end = io.slba.checked_add(u64::from(io.blocks));
            assert!(
                io.blocks > 0 && end.is_some_and(|end| end <= BLOCKS),
                "range not checked"
            );
        }
        if io.action == Action::Deallocate {
            let ranges = self.subsystem.take_ranges(io.conn, io.token);
            let ends = ranges
                .iter()
                .map(|(slba, blocks)| slba.checked_add(*blocks));
            assert!(
                ends.into_iter()
                    .all(|end| end.is_some_and(|end| end <= BLOCKS))
            );
        }
        let command = Command {
            stage: Stage::AtBackend,
            len: bytes,
        };
        let known = self.live(io.conn).commands.insert(io.token, command);
        match known {
            Some(known) => {
                assert!(
                    known.stage == Stage::Buffered,
                    "executed before its buffer was there"
                );
                assert!(!carries || known.len == bytes, "a buffer of another size");
            }
            None => assert!(!carries, "executed without its data"),
        }
        self.backend.push(io);
    }
}
