//! Both sessions and a disk, wired by byte pipes that split at random, in virtual time.
use nbd::client::{self, Completed};
use nbd::server::{self, CloseReason, Opened};
use nbd::{BlockSizes, Errno, Export, Exports, Extent, Features, Kind, Request};
use std::collections::{BTreeMap, VecDeque};

pub const SIZE: usize = 1 << 20;
pub const BLOCK: usize = 512;
pub const MS: u64 = 1_000_000;
/// Every read that covers this byte fails there.
pub const BAD_BYTE: u64 = 700_000;

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
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

pub fn export() -> Export {
    Export {
        id: 42,
        name: "disk".into(),
        description: "the disk".into(),
        size: SIZE as u64,
        block_sizes: BlockSizes {
            minimum: BLOCK as u32,
            preferred: 8192,
            maximum: 128 << 10,
        },
        features: Features {
            read_only: false,
            flush: true,
            fua: true,
            rotational: false,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            cache: true,
            multi_conn: true,
            block_status: true,
        },
    }
}

/// Options that the client asks for.
#[derive(Clone, Debug)]
pub struct Options {
    pub structured: bool,
    pub block_status: bool,
    pub export: &'static str,
    pub client_piece: u32,
    pub server_piece: u32,
    pub client_requests: u16,
    pub server_requests: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            structured: true,
            block_status: true,
            export: "disk",
            client_piece: 32 << 10,
            server_piece: 8 << 10,
            client_requests: 8,
            server_requests: 6,
        }
    }
}

/// One direction: bytes under way, and whether the receiver refused more.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    blocked: bool,
}

/// All of it.
pub struct World {
    pub rng: Rng,
    pub now: u64,
    pub server: server::Session,
    pub client: client::Session,
    pub disk: Vec<u8>,
    to_server: Wire,
    to_client: Wire,
    server_buffers: BTreeMap<u32, Vec<u8>>,
    pub client_buffers: BTreeMap<u32, Vec<u8>>,
    wanting: Vec<u32>,
    executing: Vec<Request>,
    server_sends: Vec<u32>,
    client_sends: Vec<u32>,
    /// There may be something to send: at the server, at the client.
    kicked: (bool, bool),
    pub opened: Option<Opened>,
    pub ready: Option<client::Info>,
    pub completed: Vec<Completed>,
    pub extents: Vec<Extent>,
    pub server_closed: Vec<CloseReason>,
    pub client_closed: Option<Option<client::Error>>,
    pub executed: u64,
}

impl World {
    pub fn new(export: Export, options: &Options, seed: u64) -> Self {
        let exports = Exports::new(vec![export], Some(0)).unwrap();
        let server = server::Config {
            requests_max: options.server_requests,
            piece: options.server_piece,
            ..server::Config::default()
        };
        let client = client::Config {
            export: options.export.into(),
            requests_max: options.client_requests,
            piece: options.client_piece,
            structured: options.structured,
            block_status: options.block_status,
            ..client::Config::default()
        };
        let mut world = Self {
            rng: Rng(seed),
            now: 1,
            server: server::Session::new(server, exports, 1),
            client: client::Session::new(client),
            disk: vec![0; SIZE],
            to_server: Wire::default(),
            to_client: Wire::default(),
            server_buffers: BTreeMap::new(),
            client_buffers: BTreeMap::new(),
            wanting: Vec::new(),
            executing: Vec::new(),
            server_sends: Vec::new(),
            client_sends: Vec::new(),
            kicked: (false, false),
            opened: None,
            ready: None,
            completed: Vec::new(),
            extents: Vec::new(),
            server_closed: Vec::new(),
            client_closed: None,
            executed: 0,
        };
        world.client.handle_connected(1);
        world
    }

    /// A world in transmission.
    pub fn open(export: Export, options: &Options, seed: u64) -> Self {
        let mut world = Self::new(export, options, seed);
        world.run_until(|world| world.ready.is_some());
        world
    }

    /// Steps until `done`. A world that stands still is an error.
    pub fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let mut idle = 0;
        while !done(self) {
            self.now += MS / 100;
            idle = if self.step() { 0 } else { idle + 1 };
            assert!(idle < 1000, "nothing moves any more");
        }
    }

    /// Makes `steps` steps.
    pub fn run_for(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now += MS / 100;
            self.step();
        }
    }

    /// Submits one request with its buffer. `false`: there is no room.
    pub fn submit(&mut self, request: &Request, buffer: Vec<u8>) -> bool {
        match self.client.submit(request) {
            Ok(()) => {
                self.client_buffers.insert(request.token, buffer);
                true
            }
            Err(client::SubmitError::Full) => false,
            Err(error) => panic!("{request:?}: {error}"),
        }
    }

    /// Cuts the connection for both sides.
    pub fn cut(&mut self) {
        self.to_server = Wire::default();
        self.to_client = Wire::default();
        self.client_sends.clear();
        self.client.handle_closed();
        self.server.handle_closed();
        self.poll();
    }

    /// The driver returns its buffers and finishes its requests; then nothing may be left.
    pub fn finish(&mut self) {
        while let Some(token) = self.server_sends.pop() {
            self.server.handle_sent(token);
        }
        while !self.executing.is_empty() {
            self.execute();
        }
        self.poll();
        assert!(self.server.is_over());
        assert!(self.server_buffers.is_empty(), "the server kept buffers");
        assert_eq!(self.client.in_flight(), 0);
    }

    /// Makes one step of a kind that is drawn at random; `false`: there is none.
    fn step(&mut self) -> bool {
        let moved = match self.rng.below(8) {
            0 | 1 => self.deliver_to_server(),
            2 | 3 => self.deliver_to_client(),
            4 => self.transmit(),
            5 => self.execute(),
            6 => self.give_buffer(),
            _ => self.report_sent(),
        };
        self.poll();
        moved
    }

    /// Bytes of one segment.
    fn segment(&mut self, waiting: usize) -> usize {
        let most = match self.rng.below(4) {
            0 => 1,
            1 => 40,
            2 => 1000,
            _ => 60_000,
        };
        waiting.min(1 + self.rng.below(most))
    }

    fn deliver_to_server(&mut self) -> bool {
        let n = self.segment(self.to_server.bytes.len());
        if n == 0 || self.to_server.blocked {
            return false;
        }
        let bytes = &self.to_server.bytes.make_contiguous()[..n];
        let mut used = self.server.handle_bytes(bytes, self.now);
        if used < n {
            match self.server.placement() {
                None => self.to_server.blocked = true,
                Some(place) => {
                    let len = (place.len as usize).min(n - used);
                    let at = place.offset as usize;
                    let buffer = self.server_buffers.get_mut(&place.token).unwrap();
                    buffer[at..at + len].copy_from_slice(&bytes[used..used + len]);
                    used += len;
                    self.server.handle_payload(len as u32, self.now);
                }
            }
        }
        self.to_server.bytes.drain(..used);
        true
    }

    fn deliver_to_client(&mut self) -> bool {
        let n = self.segment(self.to_client.bytes.len());
        if n == 0 || self.to_client.blocked {
            return false;
        }
        let bytes = &self.to_client.bytes.make_contiguous()[..n];
        let mut used = self.client.handle_bytes(bytes, self.now);
        if used < n {
            match self.client.placement() {
                None => self.to_client.blocked = true,
                Some(place) => {
                    let len = (place.len as usize).min(n - used);
                    let at = place.offset as usize;
                    let buffer = self.client_buffers.get_mut(&place.token).unwrap();
                    buffer[at..at + len].copy_from_slice(&bytes[used..used + len]);
                    used += len;
                    self.client.handle_payload(len as u32, self.now);
                }
            }
        }
        self.to_client.bytes.drain(..used);
        true
    }

    /// Transmits for either side, if it has something to send.
    fn transmit(&mut self) -> bool {
        let (mut out, before) = (Vec::new(), self.kicked);
        if self.kicked.0 {
            let transmit = self.server.poll_transmit(&mut out);
            if let Some(payload) = transmit.and_then(|t| t.payload) {
                let range = payload.offset as usize..(payload.offset + payload.len) as usize;
                out.extend_from_slice(&self.server_buffers[&payload.token][range]);
                self.server_sends.push(payload.token);
            }
            self.kicked.0 = transmit.is_some();
            self.to_client.bytes.extend(out.drain(..));
        }
        if self.kicked.1 {
            let transmit = self.client.poll_transmit(&mut out);
            if let Some(payload) = transmit.and_then(|t| t.payload) {
                let range = payload.offset as usize..(payload.offset + payload.len) as usize;
                out.extend_from_slice(&self.client_buffers[&payload.token][range]);
                self.client_sends.push(payload.token);
            }
            self.kicked.1 = transmit.is_some();
            self.to_server.bytes.extend(out);
        }
        before != (false, false)
    }

    fn report_sent(&mut self) -> bool {
        let (at_server, at_client) = (self.server_sends.len(), self.client_sends.len());
        if at_server > 0 {
            let at = self.rng.below(at_server);
            self.server.handle_sent(self.server_sends.swap_remove(at));
        }
        if at_client > 0 {
            let at = self.rng.below(at_client);
            self.client.handle_sent(self.client_sends.swap_remove(at));
        }
        at_server + at_client > 0
    }

    fn give_buffer(&mut self) -> bool {
        let Some(token) = self.wanting.pop() else {
            return false;
        };
        self.server.buffer_ready(token);
        self.to_server.blocked = false;
        true
    }

    /// The disk executes one of the requests, in any order.
    fn execute(&mut self) -> bool {
        if self.executing.is_empty() {
            return false;
        }
        let at = self.rng.below(self.executing.len());
        let request = self.executing.swap_remove(at);
        self.executed += 1;
        let range = request.offset as usize..request.offset as usize + request.length as usize;
        let (token, now) = (request.token, self.now);
        let buffer = self.server_buffers.get_mut(&token).unwrap();
        match request.kind {
            Kind::Read => {
                buffer.copy_from_slice(&self.disk[range.clone()]);
                if range.contains(&(BAD_BYTE as usize)) {
                    self.server
                        .complete_failed_at(token, Errno::Io, BAD_BYTE, now);
                    return true;
                }
            }
            Kind::Write => self.disk[range].copy_from_slice(buffer),
            Kind::WriteZeroes if request.fast_zero => {
                self.server.complete(token, Err(Errno::NotSup), now);
                return true;
            }
            Kind::WriteZeroes | Kind::Trim => self.disk[range].fill(0),
            Kind::BlockStatus { .. } => {
                let extents: Vec<Extent> = self.disk[range]
                    .chunks(BLOCK)
                    .map(|block| Extent {
                        length: BLOCK as u32,
                        flags: if block.iter().all(|b| *b == 0) { 3 } else { 0 },
                    })
                    .collect();
                self.server.complete_status(token, &extents, now);
                return true;
            }
            Kind::Flush | Kind::Cache => {}
        }
        self.server.complete(token, Ok(()), now);
        true
    }

    fn poll(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                server::Event::Opened(opened) => self.opened = Some(opened),
                server::Event::NeedBuffer { token, len, .. } => {
                    let buffer = vec![0; len as usize];
                    assert!(self.server_buffers.insert(token, buffer).is_none());
                    self.wanting.push(token);
                }
                server::Event::Request(request) => {
                    if request.kind != Kind::Write {
                        let buffer = vec![0; request.length as usize];
                        let old = self.server_buffers.insert(request.token, buffer);
                        assert!(old.is_none());
                    }
                    self.executing.push(request);
                }
                server::Event::Release { token } => {
                    assert!(self.server_buffers.remove(&token).is_some());
                    assert!(!self.server_sends.contains(&token));
                }
                server::Event::Transmit => self.kicked.0 = true,
                server::Event::Resume => self.to_server.blocked = false,
                server::Event::Close { reason } => self.server_closed.push(reason),
            }
        }
        while let Some(event) = self.client.poll_event() {
            match event {
                client::Event::Ready(info) => self.ready = Some(info),
                client::Event::Zero { .. } => panic!("our server sends no holes"),
                client::Event::Completed(end) => {
                    assert!(!self.client_sends.contains(&end.token));
                    self.completed.push(end);
                    self.extents = self.client.extents().to_vec();
                }
                client::Event::Transmit => self.kicked.1 = true,
                client::Event::Resume => self.to_client.blocked = false,
                client::Event::Close => self.client_closed = Some(None),
                client::Event::Failed(error) => self.client_closed = Some(Some(error)),
            }
        }
    }
}
