//! A machine that does what the test says and tells it what happens.
use engine::machine::*;
use runtime::{
    Device, Handle, Mailbox, PeerLimit, Polling, ReactorConfig, ReactorStats, RuntimeError, Sender,
    spawn_with,
};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

/// Events of the reactor.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Accepted(u32, ConnId),
    Connected(ConnId),
    Bytes(ConnId, Vec<u8>),
    Payload(ConnId, u32, u32),
    Sent(ConnId, u32),
    Closed(ConnId, Closed),
    Device(u32, Result<(), DeviceError>),
    Data(Vec<u8>),
    Timeout,
}

/// Commands to the machine.
#[derive(Clone, Debug)]
pub enum Command {
    Output(Output),
    /// Queue a header, perhaps with payload, on a connection.
    Say(ConnId, Vec<u8>, Option<Send>),
    /// Expect payload next.
    Place(ConnId, Place),
    /// Take this many more bytes, then block.
    Take(ConnId, usize),
    Fill(Span, u8),
    Read(Span),
    TimeoutAt(u64),
    Panic,
}

#[derive(Default)]
struct Conn {
    open: bool,
    places: VecDeque<Place>,
    take: Option<usize>,
    said: VecDeque<(Vec<u8>, Option<Send>)>,
}

pub struct Recorder {
    conns: Vec<Conn>,
    refuse: bool,
    outputs: VecDeque<Output>,
    memory: VecDeque<Command>,
    timeout: Option<u64>,
    events: mpsc::Sender<Event>,
}

impl Recorder {
    fn tell(&mut self, event: Event) {
        let _ = self.events.send(event);
    }

    fn conn(&mut self, conn: ConnId) -> &mut Conn {
        &mut self.conns[conn.0 as usize]
    }
}

/// Request whose data only go into messages.
pub const LENT: u32 = 78;

impl Machine for Recorder {
    type Control = Command;

    fn connections_max(&self) -> u32 {
        self.conns.len() as u32
    }
    fn handle_accepted(&mut self, listener: u32, _: u64) -> Option<ConnId> {
        let free = self.conns.iter().position(|conn| !conn.open);
        let conn = ConnId(free.filter(|_| !self.refuse)? as u32);
        self.conn(conn).open = true;
        self.tell(Event::Accepted(listener, conn));
        Some(conn)
    }
    fn handle_connected(&mut self, conn: ConnId, _: u64) {
        self.conn(conn).open = true;
        self.tell(Event::Connected(conn));
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], _: u64) -> usize {
        assert!(!bytes.is_empty());
        let state = self.conn(conn);
        let taken = state.take.map_or(bytes.len(), |take| take.min(bytes.len()));
        state.take = state.take.map(|take| take - taken);
        if taken > 0 {
            self.tell(Event::Bytes(conn, bytes[..taken].to_vec()));
        }
        taken
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let state = self.conn(conn);
        if state.take.is_some_and(|take| take > 0) {
            None
        } else {
            state.places.front().copied()
        }
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, _: u64) {
        let state = self.conn(conn);
        let place = state.places.front_mut().unwrap();
        place.span.at += u64::from(len);
        place.span.len -= len;
        place.crc = place.crc.map(|_| crc);
        if place.span.len == 0 {
            state.places.pop_front();
            state.take = None;
        }
        self.tell(Event::Payload(conn, len, crc));
    }
    fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
        let (header, send) = self.conn(conn).said.pop_front()?;
        out.extend_from_slice(&header);
        Some(send)
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, _: u64) {
        self.tell(Event::Sent(conn, cookie));
    }
    fn handle_closed(&mut self, conn: ConnId, why: Closed, _: u64) {
        *self.conn(conn) = Conn::default();
        self.tell(Event::Closed(conn, why));
    }
    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, _: u64) {
        self.tell(Event::Device(id, result));
    }
    fn may_lend(&self, id: u32) -> bool {
        id == LENT
    }
    fn handle_control(&mut self, command: Command, _: u64) {
        match command {
            Command::Output(output) => self.outputs.push_back(output),
            Command::Say(conn, header, send) => {
                self.conn(conn).said.push_back((header, send));
                self.outputs.push_back(Output::Transmit(conn));
            }
            Command::Place(conn, place) => self.conn(conn).places.push_back(place),
            Command::Take(conn, count) => self.conn(conn).take = Some(count),
            Command::TimeoutAt(at) => self.timeout = Some(at),
            Command::Panic => panic!("as the test said"),
            Command::Fill(..) | Command::Read(_) => self.memory.push_back(command),
        }
    }
    fn turn(&mut self, memory: &mut dyn Memory, _: u64) {
        while let Some(command) = self.memory.pop_front() {
            match command {
                Command::Fill(span, byte) => memory.bytes_mut(span).fill(byte),
                Command::Read(span) => self.tell(Event::Data(memory.bytes(span).to_vec())),
                _ => unreachable!(),
            }
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.timeout
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        assert!(self.timeout.take().is_some_and(|at| at <= now_ns));
        self.tell(Event::Timeout);
    }
}

/// A recorder in a reactor.
pub struct Recording {
    handle: Handle<Recorder>,
    sender: Sender<Command>,
    events: mpsc::Receiver<Event>,
}

pub struct Options {
    pub connections: u32,
    pub refuse: bool,
    pub polling: Polling,
    pub per_peer_max: Option<PeerLimit>,
    pub addresses: Vec<SocketAddr>,
    pub listeners: Vec<TcpListener>,
    pub devices: Vec<Device>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 4,
            refuse: false,
            polling: Polling::default(),
            per_peer_max: None,
            addresses: Vec::new(),
            listeners: Vec::new(),
            devices: Vec::new(),
        }
    }
}

/// Arena of a recorder.
pub const ARENA: u64 = 8 << 20;

pub fn config(options: Options) -> ReactorConfig {
    ReactorConfig {
        name: "recorder".into(),
        cpu: None,
        polling: options.polling,
        arena_bytes: ARENA,
        per_peer_max: options.per_peer_max,
        addresses: options.addresses,
        listeners: options.listeners,
        devices: options.devices,
    }
}

impl Recording {
    pub fn start(options: Options) -> Self {
        Self::try_start(options).unwrap()
    }

    pub fn try_start(options: Options) -> Result<Self, RuntimeError> {
        let (connections, refuse) = (options.connections, options.refuse);
        Self::with(config(options), connections, refuse)
    }

    pub fn with(
        config: ReactorConfig,
        connections: u32,
        refuse: bool,
    ) -> Result<Self, RuntimeError> {
        let mailbox = Mailbox::new(&config.name)?;
        Self::with_mailbox(config, connections, refuse, mailbox)
    }

    pub fn with_mailbox(
        config: ReactorConfig,
        connections: u32,
        refuse: bool,
        mailbox: (Sender<Command>, Mailbox<Command>),
    ) -> Result<Self, RuntimeError> {
        let (events, receiver) = mpsc::channel();
        let machine = Recorder {
            conns: (0..connections).map(|_| Conn::default()).collect(),
            refuse,
            outputs: VecDeque::new(),
            memory: VecDeque::new(),
            timeout: None,
            events,
        };
        let handle = spawn_with(config, machine, mailbox)?;
        Ok(Self {
            sender: handle.sender(),
            handle,
            events: receiver,
        })
    }

    /// With one listener, and its address.
    pub fn listening(mut options: Options) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        options.listeners.push(listener);
        (Self::start(options), address)
    }

    pub fn command(&self, command: Command) {
        assert!(self.sender.send(command), "the reactor is gone");
    }

    pub fn output(&self, output: Output) {
        self.command(Command::Output(output));
    }

    pub fn next(&self) -> Event {
        self.events.recv().unwrap()
    }

    #[track_caller]
    pub fn expect(&self, event: Event) {
        assert_eq!(self.next(), event);
    }

    /// Bytes of a connection until there are `count`, however they were split.
    pub fn bytes(&self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.next() {
                Event::Bytes(_, bytes) => all.extend(bytes),
                other => panic!("{other:?} after {} bytes", all.len()),
            }
        }
        all
    }

    /// The arena's bytes there.
    pub fn data(&self, span: Span) -> Vec<u8> {
        self.command(Command::Read(span));
        match self.next() {
            Event::Data(data) => data,
            other => panic!("{other:?} instead of data"),
        }
    }

    /// One request to device 0 (its id is returned as 77).
    pub fn device(
        &self,
        op: DeviceOp,
        offset: u64,
        length: u64,
        span: Span,
    ) -> Result<(), DeviceError> {
        let request = DeviceRequest {
            id: 77,
            device: LocalDevice(0),
            op,
            offset,
            length,
            span,
        };
        self.output(Output::Device(request));
        match self.next() {
            Event::Device(77, result) => result,
            other => panic!("{other:?} instead of the device's"),
        }
    }

    pub fn sender(&self) -> Sender<Command> {
        self.sender.clone()
    }

    pub fn handle(self) -> Handle<Recorder> {
        self.handle
    }

    /// Stops; what wasn't expected yet comes back.
    pub fn stop(self) -> (Vec<Event>, ReactorStats) {
        self.output(Output::Stop);
        let (recorder, stats) = self.handle.join().unwrap();
        drop(recorder);
        (self.events.iter().collect(), stats)
    }
}

pub fn span(at: u64, len: u32) -> Span {
    Span { at, len }
}
