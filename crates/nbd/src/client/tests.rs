//! A session against a scripted server.
mod handshake;
mod hostile;
mod life;
mod replies;

use super::*;
use crate::wire::{
    ChunkHeader, Greeting, OPTION_MAGIC, OptionReply, RequestHeader, SimpleReply, chunk, cmd,
    handshake as bits, info, opt, rep, transmission,
};
use crate::{BlockSizes, Features};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

const KIB: u32 = 1024;
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const ALL_FLAGS: u16 = transmission::HAS_FLAGS
    | transmission::SEND_FLUSH
    | transmission::SEND_FUA
    | transmission::SEND_TRIM
    | transmission::SEND_WRITE_ZEROES
    | transmission::SEND_DF
    | transmission::CAN_MULTI_CONN
    | transmission::SEND_CACHE
    | transmission::SEND_FAST_ZERO;

fn config() -> Config {
    Config {
        export: "disk".into(),
        requests_max: 4,
        piece: 16 * KIB,
        block_sizes: true,
        structured: true,
        block_status: true,
        handshake_ns: 1000 * MS,
    }
}

struct Bench {
    session: Session,
    /// Bytes the server received and no test has read yet, payload included.
    sent: Vec<u8>,
    kicked: bool,
    hold_sends: bool,
    /// Holds back everything to be sent.
    hold_transmit: bool,
    unsent: Vec<u32>,
    buffers: BTreeMap<u32, Vec<u8>>,
    /// All but Transmit, Resume and Completed.
    events: Vec<Event>,
    completed: Vec<Completed>,
    extents: Vec<Extent>,
    resumed: u32,
}

impl Bench {
    fn new(config: Config) -> Self {
        let mut session = Session::new(config);
        session.handle_connected(1);
        let mut bench = Self {
            session,
            sent: Vec::new(),
            kicked: false,
            hold_sends: false,
            hold_transmit: false,
            unsent: Vec::new(),
            buffers: BTreeMap::new(),
            events: Vec::new(),
            completed: Vec::new(),
            extents: Vec::new(),
            resumed: 0,
        };
        bench.pump();
        bench
    }

    /// A session that is ready, on a server that offers everything.
    fn ready(structured: bool) -> Self {
        let mut bench = Self::new(Config {
            structured,
            ..config()
        });
        bench.greet(bits::FIXED_NEWSTYLE | bits::NO_ZEROES);
        if structured {
            bench.reply(opt::STRUCTURED_REPLY, rep::ACK, &[]);
            let name = [&[0, 0, 0, 9][..], b"base:allocation"].concat();
            bench.reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &name);
            bench.reply(opt::SET_META_CONTEXT, rep::ACK, &[]);
        }
        bench.reply(opt::GO, rep::INFO, &export_info(MIB, ALL_FLAGS));
        bench.reply(opt::GO, rep::INFO, &size_info(512, 4096, 256 * KIB));
        bench.reply(opt::GO, rep::ACK, &[]);
        assert!(matches!(bench.events.pop(), Some(Event::Ready(_))));
        bench.sent.clear();
        bench
    }

    fn greet(&mut self, flags: u16) {
        let mut bytes = Vec::new();
        Greeting { flags }.emit(&mut bytes);
        self.feed(&bytes);
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        let len = data.len() as u32;
        let mut bytes = Vec::new();
        OptionReply { option, kind, len }.emit(&mut bytes);
        bytes.extend_from_slice(data);
        self.feed(&bytes);
    }

    /// Offers bytes as a reactor would; returns how many were taken.
    fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let taken = self.session.handle_bytes(&bytes[used..], 1);
            used += taken;
            let resumed = self.resumed;
            self.pump();
            if let Some(place) = self.session.placement() {
                assert!(place.len > 0);
                let piece = self.session.config.piece;
                assert!(place.offset / piece == (place.offset + place.len - 1) / piece);
                let n = (place.len as usize).min(bytes.len() - used);
                if n == 0 {
                    return used;
                }
                let at = place.offset as usize;
                let buffer = self.buffers.get_mut(&place.token).unwrap();
                buffer[at..at + n].copy_from_slice(&bytes[used..used + n]);
                used += n;
                self.session.handle_payload(n as u32, 1);
                self.pump();
            } else if used == bytes.len() || (taken == 0 && self.resumed == resumed) {
                return used;
            }
        }
    }

    fn pump(&mut self) {
        loop {
            if self.kicked && !self.hold_transmit {
                self.transmit();
            }
            match self.session.poll_event() {
                None => return,
                Some(Event::Transmit) => self.kicked = true,
                Some(Event::Resume) => self.resumed += 1,
                Some(Event::Completed(completed)) => {
                    assert!(
                        !self.unsent.contains(&completed.token),
                        "its buffer is read"
                    );
                    self.completed.push(completed);
                    self.extents = self.session.extents().to_vec();
                }
                Some(Event::Zero { token, offset, len }) => {
                    let range = offset as usize..(offset + len) as usize;
                    self.buffers.get_mut(&token).unwrap()[range].fill(0);
                    self.events.push(Event::Zero { token, offset, len });
                }
                Some(event) => self.events.push(event),
            }
        }
    }

    fn transmit(&mut self) {
        self.kicked = false;
        let mut out = Vec::new();
        while let Some(transmit) = self.session.poll_transmit(&mut out) {
            assert!(!out.is_empty() || transmit.payload.is_some());
            if let Some(payload) = transmit.payload {
                let piece = self.session.config.piece;
                assert!(payload.len > 0);
                assert!(payload.offset / piece == (payload.offset + payload.len - 1) / piece);
                let range = payload.offset as usize..(payload.offset + payload.len) as usize;
                out.extend_from_slice(&self.buffers[&payload.token][range]);
                if self.hold_sends {
                    self.unsent.push(payload.token);
                } else {
                    self.session.handle_sent(payload.token);
                }
            }
            self.sent.append(&mut out);
        }
        assert!(out.is_empty());
    }

    /// Submits a request with a buffer of its size; returns its cookie, if it was sent.
    fn submit(&mut self, request: Request) -> u64 {
        self.buffers.insert(request.token, pattern(request.length));
        self.session.submit(&request).unwrap();
        let before = self.sent.len();
        self.pump();
        RequestHeader::parse(&self.sent[before..]).map_or(0, |header| header.cookie)
    }

    fn simple(&mut self, cookie: u64, error: u32, data: &[u8]) -> usize {
        let mut bytes = Vec::new();
        SimpleReply { error, cookie }.emit(&mut bytes);
        bytes.extend_from_slice(data);
        self.feed(&bytes)
    }

    fn chunk(&mut self, cookie: u64, done: bool, kind: u16, parts: &[&[u8]]) -> usize {
        let bytes = chunk_bytes(cookie, done, kind, parts);
        self.feed(&bytes)
    }

    fn failure(&self) -> Option<Error> {
        match self.events.last() {
            Some(Event::Failed(error)) => Some(*error),
            _ => None,
        }
    }

    fn gone(&mut self) {
        self.unsent.clear();
        self.session.handle_closed();
        self.pump();
    }
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8 | 1).collect()
}

fn read(token: u32, offset: u64, length: u32) -> Request {
    Request::new(token, Kind::Read, offset, length)
}

fn chunk_bytes(cookie: u64, done: bool, kind: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    ChunkHeader {
        flags: u16::from(done),
        kind,
        cookie,
        len: parts.concat().len() as u32,
    }
    .emit(&mut bytes);
    bytes.extend(parts.concat());
    bytes
}

fn export_info(size: u64, flags: u16) -> Vec<u8> {
    let parts: [&[u8]; 3] = [&[0, 0], &size.to_be_bytes(), &flags.to_be_bytes()];
    parts.concat()
}

fn size_info(minimum: u32, preferred: u32, maximum: u32) -> Vec<u8> {
    let sizes = [minimum, preferred, maximum].map(u32::to_be_bytes);
    [&info::BLOCK_SIZE.to_be_bytes()[..], sizes.as_flattened()].concat()
}
