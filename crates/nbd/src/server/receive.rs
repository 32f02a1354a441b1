//! Parses headers out of an arbitrarily cut stream, and places the data that follows.
use alloc::vec::Vec;

use super::slots::{Failure, State};
use super::{CloseReason, Event, Fault, Phase, Session};
use crate::limits::{OPTION_DATA_MAX, OPTION_SKIP_MAX, OPTIONS_MAX, WRITE_SKIP_MAX};
use crate::shape::{Refusal, refuse};
use crate::wire::{Fields, Gather, OptionHeader, RequestHeader, cmd, flag, handshake, opt};
use crate::{Errno, Kind, Placement, Request, transfer};

/// The next part of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A header.
    None,
    /// Data of an option; bytes still missing.
    Option(OptionHeader, u32),
    /// Data of an option that is too big.
    SkipOption(OptionHeader, u32),
    /// Data of a write without a buffer yet.
    Await(u16),
    /// Data of a write.
    Payload(u16),
    /// Data of a refused write; it is answered when all of it was skipped.
    Skip(u16, u32),
}

/// Receiving side of a session.
#[derive(Debug)]
pub(super) struct Receiver {
    pub header: Gather,
    pub body: Body,
    /// Requests so far, and all bytes of transmission.
    pub requests: u64,
    pub moved: u64,
    /// Data received of the current option.
    data: Vec<u8>,
    /// Options so far.
    options: u16,
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            header: Gather::new(),
            body: Body::None,
            requests: 0,
            moved: 0,
            data: Vec::new(),
            options: 0,
        }
    }

    /// Ends the handshake and frees its memory.
    pub fn begin_transmission(&mut self) {
        self.data = Vec::new();
    }

    /// Capacity for an option's data.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.data.capacity()
    }
}

/// A request header after its checks.
struct Asked {
    request: Request,
    df: bool,
}

impl Session {
    /// Takes bytes from the client; returns how many. See the module's contract.
    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let taken = match self.phase {
                Phase::Flags | Phase::Options => self.receive_handshake(rest, now_ns),
                Phase::Transmission => self.receive_request(rest, now_ns),
                // The rest of the stream is discarded.
                Phase::Draining | Phase::Closing | Phase::Gone => rest.len(),
            };
            if taken == 0 {
                break;
            }
            used += taken;
        }
        self.rx.moved += used as u64;
        self.watch(now_ns);
        used
    }

    /// Returns where the next bytes belong, if they are payload.
    #[inline]
    pub fn placement(&self) -> Option<Placement> {
        let Body::Payload(index) = self.rx.body else {
            return None;
        };
        if self.phase != Phase::Transmission {
            return None;
        }
        let slot = &self.slots[index];
        let left = slot.request.length - slot.done;
        Some(Placement {
            token: index.into(),
            offset: slot.done,
            len: transfer::piece(slot.done, left, self.config.piece),
        })
    }

    /// `len` bytes of payload are in place. Ignored after the session's end.
    ///
    /// # Panics
    /// If more is reported than was placed.
    #[inline]
    pub fn handle_payload(&mut self, len: u32, now_ns: u64) {
        let Some(placement) = self.placement() else {
            let flows = self.phase == Phase::Transmission;
            assert!(!flows, "payload that was not placed");
            return;
        };
        assert!(len <= placement.len, "more payload than was placed");
        let index = placement.token as u16;
        let slot = &mut self.slots[index];
        slot.done += len;
        self.rx.moved += u64::from(len);
        if slot.done == slot.request.length {
            self.rx.body = Body::None;
            slot.state = State::Backend;
            let request = slot.request;
            self.events.push_back(Event::Request(request));
        }
        self.watch(now_ns);
    }

    /// The buffer of [`Event::NeedBuffer`] is ready. A late call (the session ended) changes
    /// nothing.
    #[inline]
    pub fn buffer_ready(&mut self, token: u32) {
        let index = token as u16;
        if self.rx.body == Body::Await(index) && self.phase == Phase::Transmission {
            self.rx.body = Body::Payload(index);
            self.slots[index].state = State::Receiving;
        }
    }

    /// Takes bytes before transmission. Nothing is taken while an answer waits to be sent, so the
    /// memory for answers is bounded.
    fn receive_handshake(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        if self.tx.has_own() {
            self.starved = true;
            return 0;
        }
        match self.rx.body {
            Body::Option(header, left) => {
                let n = bytes.len().min(left as usize);
                self.rx.data.extend_from_slice(&bytes[..n]);
                self.continue_option(Body::Option(header, left - n as u32), now_ns);
                n
            }
            Body::SkipOption(header, left) => {
                let n = bytes.len().min(left as usize);
                self.continue_option(Body::SkipOption(header, left - n as u32), now_ns);
                n
            }
            _ => {
                let need = match self.phase {
                    Phase::Flags => 4,
                    _ => OptionHeader::LEN,
                };
                let n = self.rx.header.fill(need, bytes);
                if self.rx.header.bytes().len() == need {
                    self.handshake_header(now_ns);
                    self.rx.header.clear();
                }
                n
            }
        }
    }

    fn handshake_header(&mut self, now_ns: u64) {
        let bytes = self.rx.header.bytes();
        if self.phase == Phase::Flags {
            let Some(flags) = Fields(bytes).u32() else {
                unreachable!("the client's flags are a header of four bytes");
            };
            let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
            if flags & !known != 0 {
                return self.violate(Fault::ClientFlags(flags), now_ns);
            }
            // Fixed newstyle is used whether or not the client sets its flag (Client flags).
            self.terms.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
            self.phase = Phase::Options;
            return;
        }
        let Some(header) = OptionHeader::parse(bytes) else {
            return self.violate(Fault::OptionMagic, now_ns);
        };
        self.rx.options += 1;
        if self.rx.options > OPTIONS_MAX {
            return self.violate(Fault::Options, now_ns);
        }
        if header.len > OPTION_SKIP_MAX
            || (header.len > OPTION_DATA_MAX && header.option == opt::EXPORT_NAME)
        {
            return self.violate(Fault::OptionLength(header.len), now_ns);
        }
        let body = if header.len > OPTION_DATA_MAX {
            Body::SkipOption(header, header.len)
        } else {
            Body::Option(header, header.len)
        };
        self.continue_option(body, now_ns);
    }

    /// Part of an option's data was skipped or stored; the last part causes the answer.
    fn continue_option(&mut self, body: Body, now_ns: u64) {
        self.rx.body = body;
        match body {
            Body::Option(header, 0) => {
                self.rx.body = Body::None;
                let mut data = core::mem::take(&mut self.rx.data);
                self.option(header.option, &data, now_ns);
                if self.phase == Phase::Options {
                    data.clear();
                    self.rx.data = data;
                }
            }
            Body::SkipOption(header, 0) => {
                self.rx.body = Body::None;
                self.option_too_big(header.option);
            }
            _ => {}
        }
    }

    /// Takes bytes in transmission.
    #[inline]
    fn receive_request(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        match self.rx.body {
            Body::None => {}
            Body::Skip(index, left) => {
                let n = bytes.len().min(left as usize);
                self.skip(index, left - n as u32);
                return n;
            }
            _ => return 0,
        }
        if self.rx.header.is_empty() {
            if self.slots.is_full() {
                self.starved = true;
                return 0;
            }
            // Usually the whole header is here: nothing is copied.
            if let Some(header) = bytes.get(..RequestHeader::LEN) {
                self.request_header(header, now_ns);
                return RequestHeader::LEN;
            }
        }
        let n = self.rx.header.fill(RequestHeader::LEN, bytes);
        if self.rx.header.bytes().len() == RequestHeader::LEN {
            let mut header = [0; RequestHeader::LEN];
            header.copy_from_slice(self.rx.header.bytes());
            self.rx.header.clear();
            self.request_header(&header, now_ns);
        }
        n
    }

    #[inline]
    fn request_header(&mut self, bytes: &[u8], now_ns: u64) {
        let Some(header) = RequestHeader::parse(bytes) else {
            return self.violate(Fault::RequestMagic, now_ns);
        };
        self.rx.requests += 1;
        if header.command == cmd::DISC {
            self.phase = Phase::Draining;
            return self.settle(now_ns);
        }
        let asked = self.ask(&header);
        let is_write = header.command == cmd::WRITE;
        if asked.is_err() && is_write && header.length > WRITE_SKIP_MAX {
            return self.violate(Fault::WriteLength(header.length), now_ns);
        }
        if self.slots.count() == 0 {
            self.make_room();
        }
        let index = self.slots.take(header.cookie);
        match asked {
            Ok(asked) => self.begin(index, asked),
            Err(refusal) => {
                let slot = &mut self.slots[index];
                slot.request = Request::flush(index.into());
                slot.failure = Some(Failure::from(refusal));
                let left = if is_write { header.length } else { 0 };
                self.skip(index, left);
            }
        }
    }

    /// Allocates the memory of all requests at the first one.
    #[cold]
    fn make_room(&mut self) {
        let requests = self.config.requests_max;
        self.slots.make();
        self.tx.reserve(requests);
        // A driver that polls after each call never leaves more than a few.
        self.events.reserve(3 * usize::from(requests) + 8);
    }

    /// `left` bytes of a refused write's data are still to come.
    fn skip(&mut self, index: u16, left: u32) {
        self.rx.body = if left > 0 {
            Body::Skip(index, left)
        } else {
            Body::None
        };
        if left == 0 {
            self.respond(index);
        }
    }

    /// Requests a buffer for a write, or hands the request to the driver.
    #[inline]
    fn begin(&mut self, index: u16, asked: Asked) {
        self.work += 1;
        let slot = &mut self.slots[index];
        slot.named = true;
        slot.df = asked.df;
        slot.request = Request {
            token: index.into(),
            ..asked.request
        };
        let request = slot.request;
        let event = if request.kind == Kind::Write {
            slot.state = State::AwaitBuffer;
            self.rx.body = Body::Await(index);
            Event::NeedBuffer {
                token: request.token,
                offset: request.offset,
                len: request.length,
            }
        } else {
            slot.state = State::Backend;
            Event::Request(request)
        };
        self.events.push_back(event);
    }

    /// Checks a request, in this order: the server's state, the command, its flags, its range.
    #[inline]
    fn ask(&self, header: &RequestHeader) -> Result<Asked, Refusal> {
        if self.shutting {
            return refuse(Errno::Shutdown, "the server is being shut down");
        }
        let has = |bit| header.flags & bit != 0;
        let structured = self.terms.structured;
        let features = &self.shape.features;
        let (kind, allowed) = match header.command {
            cmd::READ => (Kind::Read, if structured { flag::DF } else { 0 }),
            cmd::WRITE => (Kind::Write, 0),
            cmd::FLUSH => (Kind::Flush, 0),
            cmd::TRIM => (Kind::Trim, 0),
            cmd::CACHE => (Kind::Cache, 0),
            cmd::WRITE_ZEROES if features.fast_zero => {
                (Kind::WriteZeroes, flag::NO_HOLE | flag::FAST_ZERO)
            }
            cmd::WRITE_ZEROES => (Kind::WriteZeroes, flag::NO_HOLE),
            cmd::BLOCK_STATUS => {
                let one = has(flag::REQ_ONE);
                (Kind::BlockStatus { one }, flag::REQ_ONE)
            }
            _ => return refuse(Errno::Inval, "unknown command"),
        };
        self.shape.offers(kind)?;
        // FUA is valid with every command, and has no effect on most (Command flags).
        let fua = if features.fua { flag::FUA } else { 0 };
        if header.flags & !(allowed | fua) != 0 {
            return refuse(Errno::Inval, "a flag that this command does not take");
        }
        let request = Request {
            token: 0,
            kind,
            offset: header.offset,
            length: header.length,
            fua: has(flag::FUA) && kind.is_change(),
            no_hole: has(flag::NO_HOLE),
            fast_zero: has(flag::FAST_ZERO),
        };
        let df = has(flag::DF);
        self.shape.check_range(&request, df)?;
        Ok(Asked { request, df })
    }

    /// Ends the session of a client that broke the protocol; nothing more is sent.
    fn violate(&mut self, fault: Fault, now_ns: u64) {
        self.tx.silence();
        self.close(CloseReason::Protocol(fault), now_ns);
    }
}
