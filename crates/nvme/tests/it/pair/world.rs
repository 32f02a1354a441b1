//! Host machines and a subsystem, wired by byte pipes that split at random, in virtual time.
use nvme::controller::{
    Action, CloseReason, ConnId, ControllerEvent, IoCommand, NamespaceConfig, PortConfig,
    Subsystem, SubsystemConfig,
};
use nvme::host::{
    Admin, AdminConfig, AdminEvent, AnaState, Command, Completed, ControllerInfo, Digests,
    HostError, HostIdentity, IoQueue, IoQueueConfig, NamespaceInfo, QueueEvent,
};
use nvme::wire::Status;
use nvme::wire::crc::crc32c;
use std::collections::{BTreeMap, VecDeque};

pub const NQN: &str = "nqn.2026-01.org.example:pair";
pub const MS: u64 = 1_000_000;

/// A sequence of numbers that looks random and is always the same (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// 0…n − 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn config() -> SubsystemConfig {
    let namespace = |nsid: u32, block_shift, blocks| NamespaceConfig {
        nsid,
        blocks,
        block_shift,
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8 + 100; 16],
        ana_group: nsid,
        read_only: nsid == 3,
        deallocate_zeroes: true,
    };
    let port = |id, ana| PortConfig {
        id,
        traddr: format!("10.0.0.{id}"),
        trsvcid: "4420".into(),
        ipv6: false,
        ana,
    };
    SubsystemConfig {
        nqn: NQN.into(),
        serial: "SERIAL".into(),
        model: "MODEL".into(),
        cntlid_min: 10,
        cntlid_max: 19,
        namespaces: vec![
            namespace(1, 9, 4096),
            namespace(2, 12, 512),
            namespace(3, 12, 8),
        ],
        ports: vec![
            port(1, AnaState::Optimized),
            port(2, AnaState::NonOptimized),
        ],
        hosts: Vec::new(),
        entries_max: 32,
        io_queues_max: 3,
        transfer_shift: 17,
        in_capsule_max: 8192,
        maxh2cdata: 16384,
        c2h_success: true,
        cqt_ms: 400,
        volatile_write_cache: true,
        compare: true,
        lba_status: true,
        connections_max: 8,
    }
}

pub fn identity() -> HostIdentity {
    HostIdentity {
        nqn: "nqn.2026-01.org.example:host".into(),
        id: [7; 16],
    }
}

/// The host's end of one connection.
pub enum End {
    Admin(Box<Admin>),
    Queue(Box<IoQueue>),
}

/// One connection: both machines, and the bytes under way between them.
pub struct Link {
    pub end: End,
    to_target: VecDeque<u8>,
    to_host: VecDeque<u8>,
    /// Payload handed out by the host and not yet reported as sent.
    host_sends: Vec<u32>,
    pub completed: Vec<Completed>,
    pub ready: bool,
    pub failed: Option<HostError>,
    pub closed: Option<CloseReason>,
    /// Cut: neither side gets another event.
    pub cut: bool,
    /// Bytes arrive at neither side.
    pub stalled: bool,
}

/// All of it.
pub struct World {
    pub rng: Rng,
    pub now: u64,
    pub target: Subsystem,
    pub disks: BTreeMap<u32, (u8, Vec<u8>)>,
    pub links: BTreeMap<u32, Link>,
    /// The host's buffers, by connection and token.
    pub host_buffers: BTreeMap<(u32, u32), Vec<u8>>,
    target_buffers: BTreeMap<(u32, u32), Vec<u8>>,
    wanting: Vec<(ConnId, u32)>,
    executing: Vec<IoCommand>,
    target_sends: Vec<(ConnId, u32)>,
    pub info: Option<(ControllerInfo, Vec<NamespaceInfo>)>,
    pub changed: Vec<Vec<NamespaceInfo>>,
    /// Extents that the storage reports, in order: bytes, and whether they are a hole. None: data.
    pub extents: VecDeque<(u32, bool)>,
    /// Answers to questions about allocation.
    pub allocated: Vec<(u64, Option<(u32, bool)>)>,
    /// Commands the storage executed.
    pub executed: u64,
}

impl World {
    pub fn new(config: SubsystemConfig, seed: u64) -> Self {
        let disk = |n: &NamespaceConfig| {
            (
                n.nsid,
                (n.block_shift, vec![0; (n.blocks << n.block_shift) as usize]),
            )
        };
        Self {
            rng: Rng(seed),
            now: 1,
            disks: config.namespaces.iter().map(disk).collect(),
            target: Subsystem::new(config).unwrap(),
            links: BTreeMap::new(),
            host_buffers: BTreeMap::new(),
            target_buffers: BTreeMap::new(),
            wanting: Vec::new(),
            executing: Vec::new(),
            target_sends: Vec::new(),
            info: None,
            changed: Vec::new(),
            extents: VecDeque::new(),
            allocated: Vec::new(),
            executed: 0,
        }
    }

    fn open(&mut self, conn: u32, port: u16, mut end: End) {
        self.target.open(ConnId(conn), port, self.now).unwrap();
        match &mut end {
            End::Admin(admin) => admin.handle_connected(self.now),
            End::Queue(queue) => queue.handle_connected(self.now),
        }
        let link = Link {
            end,
            to_target: VecDeque::new(),
            to_host: VecDeque::new(),
            host_sends: Vec::new(),
            completed: Vec::new(),
            ready: false,
            failed: None,
            closed: None,
            cut: false,
            stalled: false,
        };
        self.links.insert(conn, link);
    }

    /// An admin association on connection `conn`, up and enabled.
    pub fn connect(
        &mut self,
        conn: u32,
        port: u16,
        digests: Digests,
        kato_ms: u32,
    ) -> ControllerInfo {
        self.info = None;
        let config = AdminConfig {
            host: identity(),
            subsystem: NQN.into(),
            digests,
            kato_ms,
            io_queues: 2,
            timeout_ns: 5_000 * MS,
            nsid: None,
        };
        self.open(conn, port, End::Admin(Box::new(Admin::new(config))));
        self.run_until("the association is up", |world| world.info.is_some());
        self.info.clone().unwrap().0
    }

    /// An I/O queue of the controller of `info`.
    pub fn queue(&mut self, conn: u32, port: u16, info: &ControllerInfo, options: &QueueOptions) {
        let config = IoQueueConfig {
            host: identity(),
            subsystem: NQN.into(),
            cntlid: info.cntlid,
            qid: options.qid,
            entries: options.entries,
            digests: options.digests,
            disable_sq_flow_control: !options.flow_control,
            in_capsule_max: info.in_capsule_max,
            timeout_ns: 5_000 * MS,
        };
        self.open(conn, port, End::Queue(Box::new(IoQueue::new(config))));
        self.run_until("the queue is ready", |world| world.links[&conn].ready);
    }

    pub fn io(&mut self, conn: u32) -> &mut IoQueue {
        match &mut self.links.get_mut(&conn).unwrap().end {
            End::Queue(queue) => queue,
            End::Admin(_) => panic!("connection {conn} is an admin connection"),
        }
    }

    pub fn admin(&mut self, conn: u32) -> &mut Admin {
        match &mut self.links.get_mut(&conn).unwrap().end {
            End::Admin(admin) => admin,
            End::Queue(_) => panic!("connection {conn} is an I/O queue"),
        }
    }

    /// Submits a command and waits for its end. `data`: the host's buffer.
    pub fn one(&mut self, conn: u32, command: Command, data: Vec<u8>) -> (Completed, Vec<u8>) {
        self.host_buffers.insert((conn, command.token), data);
        let now = self.now;
        self.io(conn).submit(&command, now).unwrap();
        self.run_until("the command has ended", |world| {
            !world.links[&conn].completed.is_empty()
        });
        let end = self.links.get_mut(&conn).unwrap().completed.pop().unwrap();
        assert_eq!(end.token, command.token);
        (
            end,
            self.host_buffers.remove(&(conn, command.token)).unwrap(),
        )
    }

    /// Takes steps until something is true.
    pub fn run_until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for _ in 0..2_000_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    /// Runs until `time`, and until nothing is left to do.
    pub fn run_to(&mut self, time: u64) {
        while self.now < time {
            if !self.work() {
                let next = self.next_timeout().unwrap_or(u64::MAX);
                self.now = next.clamp(self.now + 1, time.max(self.now + 1)).min(time);
                self.timeouts();
            }
        }
    }

    /// Makes one step; if nothing can be done, time passes.
    pub fn step(&mut self) {
        if !self.work() {
            let next = self.next_timeout().expect("nothing will ever happen again");
            self.now = next.max(self.now + 1);
            self.timeouts();
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        let hosts = self
            .links
            .values()
            .filter(|link| !link.cut)
            .filter_map(|l| match &l.end {
                End::Admin(admin) => admin.poll_timeout(),
                End::Queue(queue) => queue.poll_timeout(),
            });
        hosts.chain(self.target.poll_timeout()).min()
    }

    fn timeouts(&mut self) {
        self.target.handle_timeout(self.now);
        for link in self.links.values_mut().filter(|link| !link.cut) {
            match &mut link.end {
                End::Admin(admin) => admin.handle_timeout(self.now),
                End::Queue(queue) => queue.handle_timeout(self.now),
            }
        }
    }

    /// Does a random part of the work. `false`: there is none.
    pub fn work(&mut self) -> bool {
        let mut worked = false;
        let conns: Vec<u32> = self.links.keys().copied().collect();
        for conn in conns {
            worked |= self.host_side(conn);
            worked |= self.deliver_to_target(conn);
            worked |= self.deliver_to_host(conn);
        }
        worked |= self.target_events();
        worked |= self.storage();
        worked
    }

    /// Polls the host for bytes to send and for events.
    fn host_side(&mut self, conn: u32) -> bool {
        let link = self.links.get_mut(&conn).unwrap();
        if link.cut {
            return false;
        }
        let mut worked = false;
        let mut out = Vec::new();
        loop {
            let transmit = match &mut link.end {
                End::Admin(admin) => admin.poll_transmit(&mut out, self.now),
                End::Queue(queue) => queue.poll_transmit(&mut out, self.now),
            };
            let Some(transmit) = transmit else { break };
            worked = true;
            if let Some(payload) = transmit.payload {
                let buffer = &self.host_buffers[&(conn, payload.token)];
                let data = &buffer[payload.offset as usize..][..payload.len as usize];
                out.extend_from_slice(data);
                if payload.digest {
                    out.extend_from_slice(&crc32c(0, data).to_le_bytes());
                }
                link.host_sends.push(payload.token);
            }
        }
        link.to_target.extend(out);
        if let End::Queue(queue) = &mut link.end
            && !link.host_sends.is_empty()
        {
            worked = true;
            if self.rng.below(3) == 0 {
                queue.handle_sent(link.host_sends.swap_remove(0));
            }
        }
        worked | self.host_events(conn)
    }

    fn host_events(&mut self, conn: u32) -> bool {
        let link = self.links.get_mut(&conn).unwrap();
        let mut worked = false;
        match &mut link.end {
            End::Admin(admin) => {
                while let Some(event) = admin.poll_event() {
                    worked = true;
                    match event {
                        AdminEvent::Ready(info) => self.info = Some(*info),
                        AdminEvent::Changed(namespaces) => self.changed.push(namespaces),
                        AdminEvent::Discovery(_) => {}
                        AdminEvent::Allocated { token, found } => {
                            self.allocated.push((token, found));
                        }
                        AdminEvent::Reset | AdminEvent::Paused(_) | AdminEvent::Aborted { .. } => {}
                        AdminEvent::Failed(error) => link.failed = Some(error),
                    }
                }
            }
            End::Queue(queue) => {
                while let Some(event) = queue.poll_event() {
                    worked = true;
                    match event {
                        QueueEvent::Ready => link.ready = true,
                        QueueEvent::Completed(end) => link.completed.push(end),
                        QueueEvent::Failed(error) => link.failed = Some(error),
                    }
                }
            }
        }
        worked
    }

    fn deliver_to_target(&mut self, conn: u32) -> bool {
        let link = self.links.get_mut(&conn).unwrap();
        if link.to_target.is_empty() || link.cut || link.stalled {
            return false;
        }
        let id = ConnId(conn);
        let most = 1 + self.rng.below(link.to_target.len() as u64) as usize;
        let bytes: Vec<u8> = link.to_target.iter().take(most).copied().collect();
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            if let Some(place) = self.target.placement(id) {
                let n = rest.len().min(place.len as usize);
                let buffer = self.target_buffers.get_mut(&(conn, place.token)).unwrap();
                buffer[place.offset as usize..][..n].copy_from_slice(&rest[..n]);
                let crc = place.crc.map_or(0, |crc| crc32c(crc, &rest[..n]));
                self.target.handle_payload(id, n as u32, crc, self.now);
                taken += n;
            } else {
                let n = self.target.handle_bytes(id, rest, self.now);
                taken += n;
                if n == 0 && self.target.placement(id).is_none() {
                    break;
                }
            }
        }
        self.links.get_mut(&conn).unwrap().to_target.drain(..taken);
        taken > 0
    }

    fn deliver_to_host(&mut self, conn: u32) -> bool {
        let link = self.links.get_mut(&conn).unwrap();
        if link.to_host.is_empty() || link.cut || link.stalled {
            return false;
        }
        let most = 1 + self.rng.below(link.to_host.len() as u64) as usize;
        let bytes: Vec<u8> = link.to_host.drain(..most).collect();
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            match &mut link.end {
                End::Admin(admin) => taken += admin.handle_bytes(rest, self.now),
                End::Queue(queue) => {
                    if let Some(place) = queue.placement() {
                        let n = rest.len().min(place.len as usize);
                        let buffer = self.host_buffers.get_mut(&(conn, place.token)).unwrap();
                        buffer[place.offset as usize..][..n].copy_from_slice(&rest[..n]);
                        let crc = place.crc.map_or(0, |crc| crc32c(crc, &rest[..n]));
                        queue.handle_payload(n as u32, crc, self.now);
                        taken += n;
                    } else {
                        taken += queue.handle_bytes(rest, self.now);
                    }
                }
            }
        }
        true
    }

    fn target_events(&mut self) -> bool {
        let mut worked = false;
        while let Some(event) = self.target.poll_event() {
            worked = true;
            match event {
                ControllerEvent::NeedBuffer {
                    conn, token, len, ..
                } => {
                    let new = self
                        .target_buffers
                        .insert((conn.0, token), vec![0xee; len as usize]);
                    assert!(new.is_none(), "a token is in use twice");
                    self.wanting.push((conn, token));
                }
                ControllerEvent::Command(command) => self.executing.push(command),
                ControllerEvent::Abort { by, answer, .. } => {
                    self.target.abort_answered(by, answer, false);
                }
                ControllerEvent::Release { conn, token } => {
                    self.target_buffers.remove(&(conn.0, token));
                    self.wanting.retain(|&wanting| wanting != (conn, token));
                }
                ControllerEvent::Extent { id, .. } => {
                    let (bytes, is_hole) = self.extents.pop_front().unwrap_or((u32::MAX, false));
                    self.target.extent_found(id, bytes, is_hole);
                }
                ControllerEvent::Transmit(conn) => self.target_transmit(conn),
                ControllerEvent::Resume(_) => {}
                ControllerEvent::Close { conn, reason } => {
                    let link = self.links.get_mut(&conn.0).unwrap();
                    link.closed.get_or_insert(reason);
                }
            }
        }
        worked
    }

    fn target_transmit(&mut self, conn: ConnId) {
        let mut out = Vec::new();
        while let Some(transmit) = self.target.poll_transmit(conn, &mut out, self.now) {
            if let Some(payload) = transmit.payload {
                let buffer = &self.target_buffers[&(conn.0, payload.token)];
                let data = &buffer[payload.offset as usize..][..payload.len as usize];
                out.extend_from_slice(data);
                if payload.digest {
                    out.extend_from_slice(&crc32c(0, data).to_le_bytes());
                }
                self.target_sends.push((conn, payload.token));
            }
        }
        self.links.get_mut(&conn.0).unwrap().to_host.extend(out);
    }

    /// Buffers appear, sends are reported and commands are executed, one of each, in any order.
    fn storage(&mut self) -> bool {
        let mut worked = false;
        if !self.wanting.is_empty() {
            let at = self.rng.below(self.wanting.len() as u64) as usize;
            let (conn, token) = self.wanting.swap_remove(at);
            self.target.buffer_ready(conn, token, self.now);
            worked = true;
        }
        if !self.target_sends.is_empty() {
            let (conn, token) = self.target_sends.remove(0);
            self.target.handle_sent(conn, token);
            worked = true;
        }
        if !self.executing.is_empty() {
            let at = self.rng.below(self.executing.len() as u64) as usize;
            let command = self.executing.swap_remove(at);
            self.execute(&command);
            worked = true;
        }
        worked
    }

    fn execute(&mut self, command: &IoCommand) {
        self.executed += 1;
        let key = (command.conn.0, command.token);
        let mut status = Status::SUCCESS;
        if command.action != Action::Flush {
            let (shift, disk) = self.disks.get_mut(&command.nsid).unwrap();
            let shift = *shift;
            let bytes = |slba: u64, blocks: u64| {
                (slba << shift) as usize..((slba + blocks) << shift) as usize
            };
            let range = bytes(command.slba, command.blocks.into());
            match command.action {
                Action::Read => {
                    let new = self.target_buffers.insert(key, disk[range].to_vec());
                    assert!(new.is_none());
                }
                Action::Write { .. } => disk[range].copy_from_slice(&self.target_buffers[&key]),
                Action::Compare if disk[range.clone()] != self.target_buffers[&key] => {
                    status = Status::COMPARE_FAILURE;
                }
                Action::WriteZeroes { .. } => disk[range].fill(0),
                Action::Deallocate => {
                    let ranges = self.target.take_ranges(command.conn, command.token);
                    ranges
                        .iter()
                        .for_each(|&(slba, n)| disk[bytes(slba, n)].fill(0));
                }
                Action::Compare | Action::Flush => {}
            }
        }
        self.target
            .complete(command.conn, command.token, status, self.now);
    }

    /// The connection breaks: neither side gets another byte.
    pub fn cut(&mut self, conn: u32) {
        let link = self.links.get_mut(&conn).unwrap();
        assert!(!link.cut);
        for token in link.host_sends.drain(..) {
            if let End::Queue(queue) = &mut link.end {
                queue.handle_sent(token);
            }
        }
        match &mut link.end {
            End::Admin(admin) => admin.handle_closed(self.now),
            End::Queue(queue) => queue.handle_closed(self.now),
        }
        self.host_events(conn);
        self.links.get_mut(&conn).unwrap().cut = true;
        for (id, token) in core::mem::take(&mut self.target_sends) {
            if id.0 == conn {
                self.target.handle_sent(id, token);
            } else {
                self.target_sends.push((id, token));
            }
        }
        self.target.handle_closed(ConnId(conn), self.now);
    }

    /// Checks that nothing of any connection is left on the target.
    pub fn assert_clean(&mut self) {
        while self.work() {}
        assert_eq!(self.target.connections().count(), 0);
        assert_eq!(self.target.controllers().count(), 0);
        assert_eq!(self.target.poll_timeout(), None);
        assert!(self.target_buffers.is_empty(), "buffers are lost");
    }
}

/// Connection of an I/O queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    pub qid: u16,
    pub entries: u16,
    pub digests: Digests,
    pub flow_control: bool,
}
