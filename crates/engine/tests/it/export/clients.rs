//! Clients of one node: sessions of `nbd`, and raw connections that say exactly what a test wants.
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::{ConnId, Machine, Output, Span};
use nbd::client::{CommandError, Config, Error, Event, Info, Session};
use nbd::{Kind, Request};
use std::collections::VecDeque;

/// The end of one request, and what was read.
#[derive(Clone, Debug)]
pub struct Ended {
    pub token: u32,
    pub result: Result<(), CommandError>,
    pub data: Vec<u8>,
    /// Of a Block Status: length and flags.
    pub extents: Vec<(u32, u32)>,
}

/// One connection; its number is its place.
pub struct Client {
    /// `None`: raw.
    session: Option<Session>,
    /// Where the buffers of its requests begin.
    base: u64,
    connected: bool,
    /// Said since the last poll.
    to_say: VecDeque<Vec<u8>>,
    to_submit: VecDeque<(Request, Vec<u8>)>,
    in_flight: Vec<Option<Request>>,
    pub ready: Option<Info>,
    pub ended: Vec<Ended>,
    /// Why its session gave up.
    pub failed: Option<Error>,
    pub closed: Option<Closed>,
    /// Bytes that a raw one received.
    pub said: Vec<u8>,
}

/// All of them; every request has a buffer of `slot_bytes`.
pub struct Clients {
    pub all: Vec<Client>,
    slot_bytes: u64,
    arena_next: u64,
    outputs: VecDeque<Output>,
}

impl Clients {
    pub fn new(slot_bytes: u64) -> Self {
        Self {
            all: Vec::new(),
            slot_bytes,
            arena_next: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Connects a session to an export.
    pub fn connect(&mut self, address: u32, config: Config) -> usize {
        let requests = u64::from(config.requests_max);
        let session = Session::new(config);
        self.add(address, Some(session), requests)
    }

    /// Connects somebody who says nothing of his own accord.
    pub fn connect_raw(&mut self, address: u32) -> usize {
        self.add(address, None, 0)
    }

    fn add(&mut self, address: u32, session: Option<Session>, requests: u64) -> usize {
        let conn = self.all.len();
        self.all.push(Client {
            session,
            base: self.arena_next,
            connected: false,
            to_say: VecDeque::new(),
            to_submit: VecDeque::new(),
            in_flight: vec![None; requests as usize],
            ready: None,
            ended: Vec::new(),
            failed: None,
            closed: None,
            said: Vec::new(),
        });
        self.arena_next += requests * self.slot_bytes;
        let id = ConnId(conn as u32);
        self.outputs.push_back(Output::Open { conn: id, address });
        conn
    }

    /// Bytes of arena that the connections made so far need.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_next
    }

    /// A token that isn't in use.
    pub fn free_token(&self, conn: usize) -> Option<u32> {
        let place = self.all[conn].in_flight.iter().position(Option::is_none);
        place.map(|token| token as u32)
    }

    /// Submits a request at the next turn; `data`: of a write.
    pub fn submit(&mut self, conn: usize, request: Request, data: &[u8]) {
        assert!(u64::from(request.length) <= self.slot_bytes || !has_data(request.kind));
        let client = &mut self.all[conn];
        let place = &mut client.in_flight[request.token as usize];
        assert!(place.replace(request).is_none(), "the token is in use");
        client.to_submit.push_back((request, data.to_vec()));
    }

    /// Bytes of a raw connection.
    pub fn say(&mut self, conn: usize, bytes: &[u8]) {
        self.all[conn].to_say.push_back(bytes.to_vec());
        if self.all[conn].connected {
            let id = ConnId(conn as u32);
            self.outputs.push_back(Output::Transmit(id));
        }
    }

    /// Says goodbye, where there is a session.
    pub fn leave(&mut self, conn: usize) {
        if let Some(session) = &mut self.all[conn].session {
            session.disconnect();
        }
    }

    /// Drops the connection.
    pub fn reset(&mut self, conn: usize) {
        let (conn, abort) = (ConnId(conn as u32), true);
        self.outputs.push_back(Output::Close { conn, abort });
    }

    pub fn in_flight(&self, conn: usize) -> usize {
        self.all[conn].in_flight.iter().flatten().count()
    }

    fn span(&self, conn: usize, token: u32, offset: u32, len: u32) -> Span {
        let slot = self.all[conn].base + u64::from(token) * self.slot_bytes;
        let at = slot + u64::from(offset);
        Span { at, len }
    }

    fn begin(&mut self, conn: usize, memory: &mut dyn Memory) {
        while let Some((request, data)) = self.all[conn].to_submit.pop_front() {
            if request.kind == Kind::Write {
                let span = self.span(conn, request.token, 0, request.length);
                memory.bytes_mut(span).copy_from_slice(&data);
            }
            let session = self.all[conn].session.as_mut().expect("a session");
            if let Err(error) = session.submit(&request) {
                panic!("{request:?}: {error}");
            }
        }
    }

    fn poll(&mut self, conn: usize, memory: &mut dyn Memory) {
        let id = ConnId(conn as u32);
        while let Some(event) = self.all[conn]
            .session
            .as_mut()
            .and_then(Session::poll_event)
        {
            match event {
                Event::Ready(info) => self.all[conn].ready = Some(info),
                Event::Zero { token, offset, len } => {
                    memory
                        .bytes_mut(self.span(conn, token, offset, len))
                        .fill(0);
                }
                Event::Completed(end) => {
                    let request = self.all[conn].in_flight[end.token as usize].take();
                    let request = request.expect("a request ended twice");
                    let mut data = Vec::new();
                    if request.kind == Kind::Read && end.result.is_ok() {
                        let span = self.span(conn, end.token, 0, request.length);
                        data.extend_from_slice(memory.bytes(span));
                    }
                    let it = &mut self.all[conn];
                    let extents = it.session.iter().flat_map(|it| it.extents());
                    let extents = extents.map(|it| (it.length, it.flags)).collect();
                    it.ended.push(Ended {
                        token: end.token,
                        result: end.result,
                        data,
                        extents,
                    });
                }
                Event::Transmit => self.outputs.push_back(Output::Transmit(id)),
                Event::Resume => self.outputs.push_back(Output::Resume(id)),
                Event::Failed(error) => {
                    self.all[conn].failed = Some(error);
                    self.close(conn);
                }
                Event::Close => self.close(conn),
            }
        }
    }

    fn close(&mut self, conn: usize) {
        if self.all[conn].closed.is_none() {
            let (conn, abort) = (ConnId(conn as u32), false);
            self.outputs.push_back(Output::Close { conn, abort });
        }
    }
}

fn has_data(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Write)
}

impl Machine for Clients {
    type Control = ();

    fn connections_max(&self) -> u32 {
        u32::MAX
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        None
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        let client = &mut self.all[conn.0 as usize];
        client.connected = true;
        match &mut client.session {
            Some(session) => session.handle_connected(now_ns),
            None => self.outputs.push_back(Output::Transmit(conn)),
        }
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        let client = &mut self.all[conn.0 as usize];
        match &mut client.session {
            Some(session) => session.handle_bytes(bytes, now_ns),
            None => {
                client.said.extend_from_slice(bytes);
                bytes.len()
            }
        }
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let session = self.all[conn.0 as usize].session.as_ref()?;
        let place = session.placement()?;
        let span = self.span(conn.0 as usize, place.token, place.offset, place.len);
        Some(Place { span, crc: None })
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, _: u32, now_ns: u64) {
        if let Some(session) = &mut self.all[conn.0 as usize].session {
            session.handle_payload(len, now_ns);
        }
    }
    fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
        let client = &mut self.all[conn.0 as usize];
        let Some(session) = &mut client.session else {
            out.extend(client.to_say.pop_front()?);
            return Some(None);
        };
        let payload = session.poll_transmit(out)?.payload;
        Some(payload.map(|payload| Send {
            span: self.span(conn.0 as usize, payload.token, payload.offset, payload.len),
            digest: false,
            cookie: payload.token,
            read: None,
        }))
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, _: u64) {
        if let Some(session) = &mut self.all[conn.0 as usize].session {
            session.handle_sent(cookie);
        }
    }
    fn handle_closed(&mut self, conn: ConnId, why: Closed, _: u64) {
        let client = &mut self.all[conn.0 as usize];
        client.closed = Some(why);
        client.connected = false;
        if let Some(session) = &mut client.session {
            session.handle_closed();
        }
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, memory: &mut dyn Memory, _: u64) {
        for conn in 0..self.all.len() {
            if self.all[conn].ready.is_some() {
                self.begin(conn, memory);
            }
            self.poll(conn, memory);
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        let sessions = self.all.iter().filter_map(|client| client.session.as_ref());
        sessions.filter_map(Session::poll_timeout).min()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        for client in &mut self.all {
            if let Some(session) = &mut client.session {
                session.handle_timeout(now_ns);
            }
        }
    }
}
