//! A server's session against a client that says anything, and a driver that keeps the contract.
//!
//! Checked besides not panicking: payload lies inside the buffer of its request, each token that
//! was named is released once and not while it is read, requests stay below their bound, and
//! behind the end nothing is left.
use super::tape::Tape;
use super::{FEED, FLIP, Wire, ZEROES, in_one_piece};
use nbd::server::{Config, Event, Session};
use nbd::{BlockSizes, Errno, Export, Exports, Extent, Features, Kind, Request};
use std::collections::BTreeMap;

/// The driver ends a request well.
pub const COMPLETE: u8 = 3;
/// All sends were done.
pub const REPORT_SENT: u8 = 7;
/// A buffer is there.
pub const GIVE_BUFFER: u8 = 8;
/// Everything is done at once: buffers, requests, sends.
pub const WELL: u8 = 11;

const REQUESTS: u16 = 4;
const MS: u64 = 1_000_000;

/// A session, its driver's side, and what must hold between them.
pub struct Checked {
    session: Session,
    wire: Wire,
    piece: u32,
    now_ns: u64,
    /// Lengths of the buffers of requests that were named and not released.
    named: BTreeMap<u32, u32>,
    wanted: Vec<u32>,
    executing: Vec<Request>,
    unsent: Vec<u32>,
    kicked: bool,
    closed: bool,
    /// Transmission was reached.
    pub opened: bool,
    /// Requests that the driver ended.
    pub done: u32,
}

fn exports(choice: u8) -> Exports {
    let export = |id, name: &str, read_only| Export {
        id,
        name: name.into(),
        description: "a disk".into(),
        size: 1 << 20,
        block_sizes: BlockSizes {
            minimum: 512,
            preferred: 4096,
            maximum: 64 << 10,
        },
        features: Features {
            read_only,
            flush: true,
            fua: true,
            trim: true,
            write_zeroes: true,
            fast_zero: choice & 1 != 0,
            multi_conn: true,
            block_status: true,
            cache: choice & 2 != 0,
            rotational: false,
        },
    };
    let list = vec![export(7, "disk", false), export(8, "locked", true)];
    Exports::new(list, Some(1)).expect("exports that can be")
}

impl Checked {
    /// A client has connected.
    pub fn new(choice: u8) -> Self {
        let piece = 4096 << (choice >> 6);
        let config = Config {
            requests_max: REQUESTS,
            piece,
            handshake_ns: 10_000 * MS,
            stall_ns: 30_000 * MS,
        };
        let mut checked = Self {
            session: Session::new(config, exports(choice), 0),
            wire: Wire::new(choice),
            piece,
            now_ns: 0,
            named: BTreeMap::new(),
            wanted: Vec::new(),
            executing: Vec::new(),
            unsent: Vec::new(),
            kicked: false,
            closed: false,
            opened: false,
            done: 0,
        };
        checked.poll();
        checked
    }

    fn poll(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Opened(_) => self.opened = true,
                Event::NeedBuffer { token, len, .. } => {
                    self.name(token, len);
                    self.wanted.push(token);
                }
                Event::Request(request) => {
                    if request.kind != Kind::Write {
                        let len = match request.kind {
                            Kind::Read => request.length,
                            _ => 0,
                        };
                        self.name(request.token, len);
                    }
                    let end = request.offset.checked_add(request.length.into());
                    assert!(end.is_some_and(|end| end <= 1 << 20), "outside the export");
                    self.executing.push(request);
                }
                Event::Release { token } => {
                    assert!(self.named.remove(&token).is_some(), "released twice");
                    assert!(!self.unsent.contains(&token), "released while it is sent");
                    self.wanted.retain(|wanted| *wanted != token);
                }
                Event::Transmit => self.kicked = true,
                Event::Resume => {}
                Event::Close { reason } => {
                    assert!(!reason.to_string().is_empty());
                    self.closed = true;
                }
            }
        }
        assert!(self.session.in_flight() <= REQUESTS);
    }

    fn name(&mut self, token: u32, len: u32) {
        assert!(token < REQUESTS.into());
        assert!(self.named.insert(token, len).is_none(), "named twice");
    }

    /// Bytes arrive; what isn't taken is lost, as if the client had not sent it.
    pub fn feed(&mut self, bytes: &[u8]) {
        let (bytes, piece) = self.wire.arrive(bytes);
        let _ = bytes.chunks(piece).all(|it| self.feed_piece(it));
    }

    /// Whether all of it was taken.
    fn feed_piece(&mut self, bytes: &[u8]) -> bool {
        let mut used = 0;
        while used < bytes.len() {
            let taken = self.session.handle_bytes(&bytes[used..], self.now_ns);
            used += taken;
            self.poll();
            let Some(place) = self.session.placement() else {
                if taken == 0 {
                    return false;
                }
                continue;
            };
            let room = self.named[&place.token];
            assert!(in_one_piece(place.offset, place.len, self.piece));
            assert!(place.offset + place.len <= room);
            let n = (place.len as usize).min(bytes.len() - used);
            used += n;
            self.session.handle_payload(n as u32, self.now_ns);
            self.poll();
        }
        true
    }

    /// Everything that is to be sent goes out.
    pub fn transmit(&mut self) {
        if !core::mem::take(&mut self.kicked) {
            return;
        }
        let mut out = Vec::new();
        while let Some(transmit) = self.session.poll_transmit(&mut out) {
            if let Some(payload) = transmit.payload {
                let room = self.named[&payload.token];
                assert!(in_one_piece(payload.offset, payload.len, self.piece));
                assert!(payload.offset + payload.len <= room);
                self.unsent.push(payload.token);
            }
        }
        self.poll();
    }

    fn report_sent(&mut self) {
        for token in core::mem::take(&mut self.unsent) {
            self.session.handle_sent(token);
        }
        self.poll();
    }

    fn give_buffers(&mut self) {
        for token in core::mem::take(&mut self.wanted) {
            self.session.buffer_ready(token);
        }
        self.poll();
    }

    /// Ends one of the driver's requests in some way.
    fn complete(&mut self, at: u8, how: u8, tape: &mut Tape) {
        if self.executing.is_empty() {
            return;
        }
        let at = usize::from(at) % self.executing.len();
        let Request { token, kind, .. } = self.executing.swap_remove(at);
        self.done += 1;
        let now_ns = self.now_ns;
        match how % 4 {
            0 | 1 => self.session.complete(token, Ok(()), now_ns),
            2 => {
                let errno = Errno::from_os(i32::from(tape.byte()));
                let at = u64::from(tape.long());
                self.session.complete_failed_at(token, errno, at, now_ns);
            }
            _ if !matches!(kind, Kind::BlockStatus { .. }) => {
                self.session.complete(token, Ok(()), now_ns);
            }
            _ => {
                let count = usize::from(tape.byte() % 20);
                let extents: Vec<Extent> = (0..count)
                    .map(|_| Extent {
                        length: tape.long(),
                        flags: tape.byte().into(),
                    })
                    .collect();
                self.session.complete_status(token, &extents, now_ns);
            }
        }
        self.poll();
    }

    fn well(&mut self) {
        self.give_buffers();
        while !self.executing.is_empty() {
            self.complete(0, 0, &mut Tape::new(&[]));
        }
        self.transmit();
        self.report_sent();
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        if self
            .session
            .poll_timeout()
            .is_some_and(|at| at <= self.now_ns)
        {
            self.session.handle_timeout(self.now_ns);
        }
        self.poll();
        let next = self.session.poll_timeout();
        assert!(
            next.is_none_or(|at| at > self.now_ns),
            "a timer that doesn't rest"
        );
    }

    /// The connection ends and the driver finishes.
    fn finish(mut self) {
        self.report_sent();
        self.session.handle_closed();
        self.poll();
        while !self.executing.is_empty() {
            self.complete(0, 0, &mut Tape::new(&[]));
        }
        assert!(self.session.is_over(), "requests are left");
        assert!(self.named.is_empty(), "buffers are left");
        assert_eq!(self.session.poll_timeout(), None);
    }
}

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    play(data).finish();
}

/// The same, without the end.
pub fn play(data: &[u8]) -> Checked {
    let mut tape = Tape::new(data);
    let choice = tape.byte();
    let mut server = Checked::new(choice);
    while let Some(operation) = tape.operation() {
        match operation & 15 {
            0 => server.session.shutdown(100 * MS, server.now_ns),
            1 => server.pass(u64::from(tape.word()) * MS),
            2 => {
                let (at, how) = (tape.byte(), tape.byte());
                server.complete(at, how, &mut tape);
            }
            COMPLETE => server.complete(0, 0, &mut Tape::new(&[])),
            REPORT_SENT => server.report_sent(),
            GIVE_BUFFER => server.give_buffers(),
            FLIP => server.wire.flip(tape.word()),
            WELL => server.well(),
            ZEROES => {
                let len = usize::from(tape.word());
                server.feed(&vec![0; len]);
            }
            FEED => {
                let len = usize::from(tape.word() % 4096);
                server.feed(tape.take(len));
            }
            _ => server.transmit(),
        }
        server.poll();
        if server.closed {
            break;
        }
    }
    server
}
