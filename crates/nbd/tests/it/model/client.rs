//! A client's session against a server that says anything.
//!
//! Checked besides not panicking: payload and zeroes lie inside the buffer of their request and
//! nowhere twice, each request ends once and not while it is sent, and no read is a success that
//! lacks a byte (T16).
use super::tape::Tape;
use super::{FEED, FLIP, Wire, ZEROES, in_one_piece};
use nbd::client::{Config, Event, Session};
use nbd::wire::{ChunkHeader, RequestHeader, SimpleReply};
use nbd::{Kind, Request};
use std::collections::BTreeMap;

/// A request is submitted.
pub const SUBMIT: u8 = 4;
/// The server answers a request simply.
pub const SIMPLE: u8 = 5;
/// The server answers a request with a chunk.
pub const CHUNK: u8 = 6;
/// All sends were done.
pub const REPORT_SENT: u8 = 7;

const REQUESTS: u16 = 4;
const MS: u64 = 1_000_000;

/// A request that was taken.
struct Taken {
    request: Request,
    /// Bytes that were placed or zeroed.
    filled: u64,
}

/// A session, its owner's side, and what must hold between them.
pub struct Checked {
    session: Session,
    wire: Wire,
    piece: u32,
    now_ns: u64,
    taken: BTreeMap<u32, Taken>,
    next: u32,
    /// Cookies of requests that went out, the latest last.
    cookies: Vec<u64>,
    unsent: Vec<u32>,
    kicked: bool,
    over: bool,
    /// Requests could be submitted.
    pub ready: bool,
    /// Requests that ended well.
    pub done: u32,
}

impl Checked {
    /// Connected.
    pub fn new(choice: u8) -> Self {
        let piece = 4096 << (choice >> 6);
        let mut session = Session::new(Config {
            export: "disk".into(),
            requests_max: REQUESTS,
            piece,
            block_sizes: true,
            structured: choice & 1 != 0,
            block_status: choice & 2 != 0,
            handshake_ns: 10_000 * MS,
        });
        session.handle_connected(0);
        Self {
            session,
            wire: Wire::new(choice),
            piece,
            now_ns: 0,
            taken: BTreeMap::new(),
            next: 0,
            cookies: Vec::new(),
            unsent: Vec::new(),
            kicked: false,
            over: false,
            ready: false,
            done: 0,
        }
    }

    fn poll(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Ready(_) => self.ready = true,
                Event::Zero { token, offset, len } => self.fill(token, offset, len),
                Event::Completed(end) => {
                    let taken = self.taken.remove(&end.token).expect("ended once");
                    assert!(!self.unsent.contains(&end.token), "ended while it is sent");
                    if let Err(error) = end.result {
                        assert!(!error.to_string().is_empty());
                    }
                    if end.result.is_ok() {
                        self.done += 1;
                        let Request { kind, length, .. } = taken.request;
                        let want = if kind == Kind::Read { length } else { 0 };
                        assert_eq!(taken.filled, want.into(), "a short read (T16)");
                        let status = matches!(kind, Kind::BlockStatus { .. });
                        assert!(!status || !self.session.extents().is_empty());
                    }
                }
                Event::Transmit => self.kicked = true,
                Event::Resume => {}
                Event::Close | Event::Failed(_) => {
                    if let Event::Failed(error) = event {
                        assert!(!error.to_string().is_empty());
                    }
                    assert!(!core::mem::replace(&mut self.over, true), "two ends");
                }
            }
        }
        assert!(self.session.in_flight() <= REQUESTS);
        self.transmit();
    }

    /// Bytes of a read's buffer get their contents.
    fn fill(&mut self, token: u32, offset: u32, len: u32) {
        let taken = self.taken.get_mut(&token).expect("a request under way");
        assert_eq!(taken.request.kind, Kind::Read);
        let end = u64::from(offset) + u64::from(len);
        assert!(end <= taken.request.length.into(), "outside the buffer");
        taken.filled += u64::from(len);
    }

    fn feed(&mut self, bytes: &[u8]) {
        let (bytes, piece) = self.wire.arrive(bytes);
        bytes.chunks(piece).for_each(|it| self.feed_piece(it));
    }

    fn feed_piece(&mut self, bytes: &[u8]) {
        let mut used = 0;
        while used < bytes.len() {
            let n = self.session.handle_bytes(&bytes[used..], self.now_ns);
            used += n;
            self.poll();
            if let Some(place) = self.session.placement() {
                assert!(in_one_piece(place.offset, place.len, self.piece));
                let n = (place.len as usize).min(bytes.len() - used) as u32;
                if n > 0 {
                    self.fill(place.token, place.offset, n);
                    self.session.handle_payload(n, self.now_ns);
                    self.poll();
                    used += n as usize;
                }
            } else {
                assert!(n > 0 || used == bytes.len(), "it takes nothing more");
            }
        }
    }

    fn transmit(&mut self) {
        if !core::mem::take(&mut self.kicked) {
            return;
        }
        let mut out = Vec::new();
        while let Some(transmit) = self.session.poll_transmit(&mut out) {
            let last = out.len().checked_sub(RequestHeader::LEN);
            let header = last.and_then(|at| RequestHeader::parse(&out[at..]));
            self.cookies.extend(header.map(|header| header.cookie));
            if let Some(payload) = transmit.payload {
                let taken = &self.taken[&payload.token];
                assert_eq!(taken.request.kind, Kind::Write);
                let end = payload.offset + payload.len;
                assert!(in_one_piece(payload.offset, payload.len, self.piece));
                assert!(end <= taken.request.length);
                self.unsent.push(payload.token);
            }
            out.clear();
        }
    }

    fn submit(&mut self, kind: u8, block: u16, blocks: u8) {
        let (offset, length) = (u64::from(block) * 512, u32::from(blocks) * 512);
        let kind = match kind % 7 {
            0 | 1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::Flush,
            4 => Kind::Trim,
            5 => Kind::WriteZeroes,
            _ => Kind::BlockStatus {
                one: blocks & 1 != 0,
            },
        };
        let token = self.next;
        let request = match kind {
            Kind::Flush => Request::flush(token),
            kind => Request::new(token, kind, offset, length),
        };
        if self.session.submit(&request).is_ok() {
            let filled = 0;
            self.taken.insert(token, Taken { request, filled });
            self.next += 1;
        }
        self.poll();
    }

    /// The cookie of a request that went out so long ago.
    fn cookie(&self, ago: u8) -> u64 {
        let at = self.cookies.len().checked_sub(1 + usize::from(ago));
        at.map_or(0, |at| self.cookies[at])
    }

    fn report_sent(&mut self) {
        for token in core::mem::take(&mut self.unsent) {
            self.session.handle_sent(token);
        }
        self.poll();
    }

    /// The connection ends: every request has, and the session too.
    fn finish(mut self) {
        self.unsent.clear();
        self.session.handle_closed();
        self.poll();
        assert!(self.taken.is_empty(), "requests are left");
        assert_eq!(self.session.in_flight(), 0);
        assert_eq!(self.session.poll_timeout(), None);
        assert_eq!(self.session.placement(), None);
        self.session.handle_closed();
        assert_eq!(self.session.poll_event(), None);
    }
}

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    play(data).finish();
}

/// The same, without the end.
pub fn play(data: &[u8]) -> Checked {
    let mut tape = Tape::new(data);
    let mut client = Checked::new(tape.byte());
    while let Some(operation) = tape.operation() {
        match operation & 15 {
            0 => client.session.disconnect(),
            1 => {
                client.now_ns += u64::from(tape.word()) * MS;
                client.session.handle_timeout(client.now_ns);
            }
            SUBMIT => {
                let kind = tape.byte();
                client.submit(kind, tape.word() % 2048, tape.byte());
            }
            SIMPLE => {
                let (cookie, error) = (client.cookie(tape.byte()), tape.byte().into());
                let mut bytes = Vec::new();
                SimpleReply { error, cookie }.emit(&mut bytes);
                client.feed(&bytes);
            }
            CHUNK => {
                let cookie = client.cookie(tape.byte());
                let (flags, kind, len) = (tape.word(), tape.word(), tape.long());
                let mut bytes = Vec::new();
                ChunkHeader {
                    flags,
                    kind,
                    cookie,
                    len,
                }
                .emit(&mut bytes);
                client.feed(&bytes);
            }
            REPORT_SENT => client.report_sent(),
            FLIP => client.wire.flip(tape.word()),
            ZEROES => {
                let len = usize::from(tape.word());
                client.feed(&vec![0; len]);
            }
            FEED => {
                let len = usize::from(tape.word() % 4096);
                client.feed(tape.take(len));
            }
            _ => client.poll(),
        }
        client.poll();
    }
    client
}
