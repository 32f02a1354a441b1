//! A session with a scripted client on one side and storage in memory on the other.
mod handshake;
mod hostile;
mod lifetime;
mod refusals;
mod requests;
mod stalls;

use super::*;
use crate::wire::{
    ChunkHeader, Fields, OptionHeader, OptionReply, RequestHeader, SimpleReply, chunk,
    handshake as bits, info, opt,
};
use crate::{BlockSizes, Export, Features, Request};
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

const KIB: u32 = 1024;
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn all_features() -> Features {
    Features {
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
    }
}

fn export(id: u32, name: &str) -> Export {
    Export {
        id,
        name: name.to_string(),
        description: "a disk".to_string(),
        size: MIB,
        block_sizes: BlockSizes {
            minimum: 512,
            preferred: 4096,
            maximum: 64 * KIB,
        },
        features: all_features(),
    }
}

/// Two exports; the second, the default one, is read-only.
fn exports() -> Exports {
    let mut second = export(8, "locked");
    second.features.read_only = true;
    second.description.clear();
    Exports::new(vec![export(7, "disk"), second], Some(1)).unwrap()
}

fn config() -> Config {
    Config {
        requests_max: 4,
        piece: 16 * KIB,
        handshake_ns: 1000 * MS,
        stall_ns: 30_000 * MS,
    }
}

/// A reply in transmission, as the client reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Simple {
        error: u32,
        cookie: u64,
        data: Vec<u8>,
    },
    Chunk {
        done: bool,
        kind: u16,
        cookie: u64,
        body: Vec<u8>,
    },
}

/// Steps that a test may hold back.
#[derive(Default)]
struct Hold {
    buffers: bool,
    requests: bool,
    sends: bool,
    transmit: bool,
}

struct Bench {
    session: Session,
    now: u64,
    disk: Vec<u8>,
    /// Buffers of requests that were named and not released.
    buffers: BTreeMap<u32, Vec<u8>>,
    hold: Hold,
    wanted: Vec<u32>,
    requests: Vec<Request>,
    unsent: Vec<u32>,
    /// Bytes sent to the client, payload included.
    sent: Vec<u8>,
    /// There may be something to send.
    kicked: bool,
    opened: Option<Opened>,
    closed: Vec<CloseReason>,
    resumed: u32,
    executed: Vec<Request>,
}

impl Bench {
    fn with(config: Config, exports: Exports) -> Self {
        let disk = (0..MIB).map(|i| (i / 7) as u8).collect();
        let mut bench = Self {
            session: Session::new(config, exports, 1),
            now: 1,
            disk,
            buffers: BTreeMap::new(),
            hold: Hold::default(),
            wanted: Vec::new(),
            requests: Vec::new(),
            unsent: Vec::new(),
            sent: Vec::new(),
            kicked: false,
            opened: None,
            closed: Vec::new(),
            resumed: 0,
            executed: Vec::new(),
        };
        bench.pump();
        bench
    }

    /// A session after the greeting and the client's flags.
    fn greeted() -> Self {
        let mut bench = Self::with(config(), exports());
        bench.sent.clear();
        bench.feed(&[0, 0, 0, 3]);
        bench
    }

    /// A session in transmission on "disk".
    fn open(structured: bool, block_size: bool) -> Self {
        let mut bench = Self::greeted();
        if structured {
            bench.option(opt::STRUCTURED_REPLY, &[]);
            let name = 4u32.to_be_bytes();
            let one = 1u32.to_be_bytes();
            let len = 15u32.to_be_bytes();
            let parts: [&[u8]; 5] = [&name, b"disk", &one, &len, b"base:allocation"];
            bench.option(opt::SET_META_CONTEXT, &parts.concat());
        }
        let wanted: &[u16] = if block_size { &[info::BLOCK_SIZE] } else { &[] };
        bench.option(opt::GO, &choice("disk", wanted));
        assert!(bench.opened.is_some());
        bench.sent.clear();
        bench
    }

    /// Offers bytes as a reactor would; returns how many were taken before the session stopped for
    /// good.
    fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let taken = self.session.handle_bytes(&bytes[used..], self.now);
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
                self.session.handle_payload(n as u32, self.now);
                self.pump();
            } else if used == bytes.len() || (taken == 0 && self.resumed == resumed) {
                return used;
            }
        }
    }

    /// Does everything that the session asks for until nothing is left.
    fn pump(&mut self) {
        loop {
            if self.kicked && !self.hold.transmit {
                self.transmit();
            }
            let Some(event) = self.session.poll_event() else {
                return;
            };
            match event {
                Event::Opened(opened) => assert_eq!(self.opened.replace(opened), None),
                Event::NeedBuffer { token, len, .. } => {
                    assert!(self.buffers.insert(token, vec![0; len as usize]).is_none());
                    if self.hold.buffers {
                        self.wanted.push(token);
                    } else {
                        self.session.buffer_ready(token);
                    }
                }
                Event::Request(request) => self.request(request),
                Event::Release { token } => {
                    assert!(self.buffers.remove(&token).is_some(), "released twice");
                    assert!(!self.unsent.contains(&token), "released while it is read");
                }
                Event::Transmit => self.kicked = true,
                Event::Resume => self.resumed += 1,
                Event::Close { reason } => self.closed.push(reason),
            }
        }
    }

    fn request(&mut self, request: Request) {
        assert!(request.token < u32::from(self.session.config.requests_max));
        if request.kind == Kind::Write {
            assert!(self.buffers.contains_key(&request.token));
        } else {
            let len = if request.kind == Kind::Read {
                request.length
            } else {
                0
            };
            let buffer = vec![0; len as usize];
            assert!(self.buffers.insert(request.token, buffer).is_none());
        }
        if self.hold.requests {
            self.requests.push(request);
        } else {
            self.execute(request);
            self.session.complete(request.token, Ok(()), self.now);
        }
    }

    fn execute(&mut self, request: Request) {
        self.executed.push(request);
        let start = request.offset as usize;
        let range = start..start + request.length as usize;
        let buffer = self.buffers.get_mut(&request.token).unwrap();
        match request.kind {
            Kind::Read => buffer.copy_from_slice(&self.disk[range]),
            Kind::Write => self.disk[range].copy_from_slice(buffer),
            Kind::WriteZeroes => self.disk[range].fill(0),
            _ => {}
        }
    }

    /// Ends a held request.
    fn complete(&mut self, at: usize, result: Result<(), Errno>) {
        let request = self.requests.remove(at);
        self.execute(request);
        self.session.complete(request.token, result, self.now);
        self.pump();
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
                if self.hold.sends {
                    self.unsent.push(payload.token);
                } else {
                    self.session.handle_sent(payload.token);
                }
            }
            self.sent.append(&mut out);
        }
        assert!(out.is_empty());
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let before = self.sent.len();
        let bytes = option_bytes(option, data);
        assert_eq!(self.feed(&bytes), bytes.len());
        replies_to(option, &self.sent[before..])
    }

    /// Sends one request and returns what the client got since.
    fn ask(&mut self, header: RequestHeader, data: &[u8]) -> Vec<Reply> {
        let before = self.sent.len();
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        bytes.extend_from_slice(data);
        assert_eq!(self.feed(&bytes), bytes.len());
        self.replies(before)
    }

    /// The replies behind the first `before` bytes sent.
    fn replies(&self, before: usize) -> Vec<Reply> {
        replies(&self.sent[before..], |cookie| cookie >> 32)
    }

    /// The error of the only reply; 0 = success.
    fn error_of(&mut self, header: RequestHeader, data: &[u8]) -> u32 {
        let replies = self.ask(header, data);
        assert_eq!(replies.len(), 1, "{replies:?}");
        error(&replies[0])
    }

    fn gone(&mut self) {
        self.session.handle_closed();
        self.pump();
    }
}

/// The error that a reply names.
fn error(reply: &Reply) -> u32 {
    match reply {
        Reply::Simple { error, .. } => *error,
        Reply::Chunk { kind, body, .. } if kind & chunk::IS_ERROR != 0 => {
            Fields(body).u32().unwrap()
        }
        Reply::Chunk { .. } => 0,
    }
}

/// Takes a stream of replies apart; `data_of`: bytes that follow a successful simple reply.
fn replies(mut bytes: &[u8], data_of: impl Fn(u64) -> u64) -> Vec<Reply> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        if let Some(SimpleReply { error, cookie }) = SimpleReply::parse(bytes) {
            let len = if error == 0 {
                data_of(cookie) as usize
            } else {
                0
            };
            let data = bytes[16..16 + len].to_vec();
            bytes = &bytes[16 + len..];
            found.push(Reply::Simple {
                error,
                cookie,
                data,
            });
        } else {
            let header = ChunkHeader::parse(bytes).expect("a reply");
            let body = bytes[20..20 + header.len as usize].to_vec();
            bytes = &bytes[20 + body.len()..];
            found.push(Reply::Chunk {
                done: header.flags == chunk::DONE,
                kind: header.kind,
                cookie: header.cookie,
                body,
            });
        }
    }
    found
}

/// A request; the high half of its cookie has the length of a simple reply's data.
fn request(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
    let data = if command == crate::wire::cmd::READ {
        length
    } else {
        0
    };
    RequestHeader {
        flags,
        command,
        cookie: u64::from(data) << 32 | 0x5a,
        offset,
        length,
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    let mut bytes = Vec::new();
    OptionHeader { option, len }.emit(&mut bytes);
    bytes.extend_from_slice(data);
    bytes
}

/// Data of Info and Go.
fn choice(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// All replies, each to this option: type and data.
fn replies_to(option: u32, mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let reply = OptionReply::parse(bytes).expect("an option reply");
        assert_eq!(reply.option, option);
        let data = bytes[20..20 + reply.len as usize].to_vec();
        bytes = &bytes[20 + data.len()..];
        found.push((reply.kind, data));
    }
    found
}
