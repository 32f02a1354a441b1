//! Sends to the client: answers to options, the list of exports, replies in the order in which they
//! became due.
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::options::CONTEXT_ID;
use super::slots::{Failure, Slot};
use super::{Phase, Session};
use crate::limits::LIST_RUN;
use crate::wire::{ChunkHeader, OptionReply, SimpleReply, chunk, opt, rep};
use crate::{Exports, Kind, Transmit, TxPayload, transfer};
use canary::Bug;

/// Sending side of a session.
#[derive(Debug)]
pub(super) struct Transmitter {
    /// Greeting and answers to options; they are sent first.
    pub own: Vec<u8>,
    /// The next export of an answer to List.
    list: Option<usize>,
    /// Slots with a reply; each at most once.
    pub queue: VecDeque<u16>,
    /// A [`Event::Transmit`](super::Event::Transmit) is outstanding.
    pub kicked: bool,
    /// Payloads handed out and not yet reported sent, and all steps of sending so far.
    pub unsent: u32,
    pub moved: u64,
}

impl Transmitter {
    pub fn new() -> Self {
        Self {
            own: Vec::new(),
            list: None,
            queue: VecDeque::new(),
            kicked: false,
            unsent: 0,
            moved: 0,
        }
    }

    /// Room for one position of every slot.
    pub fn reserve(&mut self, slots: u16) {
        self.queue.reserve(usize::from(slots));
    }

    /// Whether bytes of the handshake wait to be sent.
    pub fn has_own(&self) -> bool {
        !self.own.is_empty() || self.list.is_some()
    }

    /// Whether the client has not taken all of its answers.
    pub fn has_unsent(&self) -> bool {
        !self.queue.is_empty() || self.unsent > 0
    }

    /// Begins the answer to List.
    pub fn begin_list(&mut self) {
        self.list = Some(0);
    }

    /// The list has changed; a client in the middle of it gets the rest of the new one.
    pub fn restart_list(&mut self, exports: &Exports) {
        let len = exports.list().len();
        self.list = self.list.map(|next| next.min(len));
    }

    /// Drops everything that was to be sent.
    pub fn silence(&mut self) {
        self.own.clear();
        self.list = None;
        self.queue.clear();
    }

    /// Appends entries of the list, and behind the last one the end. `true`: more is to come.
    fn send_list(&mut self, exports: &Exports, out: &mut Vec<u8>) -> bool {
        let Some(next) = self.list else {
            return false;
        };
        let limit = out.len() + LIST_RUN;
        let reply = |kind, len| OptionReply {
            option: opt::LIST,
            kind,
            len,
        };
        for (index, export) in exports.list().iter().enumerate().skip(next) {
            if out.len() > limit {
                self.list = Some(index);
                return true;
            }
            let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
            let len = 4 + name.len() + description.len();
            reply(rep::SERVER, len as u32).emit(out);
            out.extend((name.len() as u32).to_be_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(description);
        }
        reply(rep::ACK, 0).emit(out);
        self.list = None;
        false
    }
}

impl Session {
    /// Appends the next bytes to send to `out`; see [`Transmit`]. `None`: nothing was appended and
    /// nothing is left; an [`Event::Transmit`](super::Event::Transmit) follows when there is more.
    #[inline]
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        let before = out.len();
        if self.tx.has_own() && self.send_own(out) {
            return Some(Transmit { payload: None });
        }
        self.tx.moved += 1;
        while let Some(&index) = self.tx.queue.front() {
            if let Some(payload) = self.send(index, out) {
                self.tx.unsent += 1;
                let payload = Some(payload);
                return Some(Transmit { payload });
            }
        }
        self.tx.kicked = false;
        (out.len() > before).then_some(Transmit { payload: None })
    }

    /// The payload of one [`TxPayload`] is no longer read.
    ///
    /// # Panics
    /// If none was handed out.
    #[inline]
    pub fn handle_sent(&mut self, token: u32) {
        let index = token as u16;
        let slot = &mut self.slots[index];
        assert!(slot.sends > 0, "handle_sent without a payload");
        slot.sends -= 1;
        self.tx.unsent -= 1;
        self.tx.moved += 1;
        if slot.sends == 0 && self.is_over_but_sends(index) {
            self.release(index);
        }
    }

    /// Appends answers of the handshake. `true`: there are more.
    #[cold]
    fn send_own(&mut self, out: &mut Vec<u8>) -> bool {
        out.append(&mut self.tx.own);
        if self.phase == Phase::Transmission {
            self.tx.own = Vec::new();
        }
        let more = self.tx.send_list(&self.exports, out);
        if !more && self.phase != Phase::Transmission {
            self.resume();
        }
        more
    }

    /// Appends the next part of one reply.
    #[inline]
    fn send(&mut self, index: u16, out: &mut Vec<u8>) -> Option<TxPayload> {
        let slot = &self.slots[index];
        if slot.done < slot.data {
            return Some(self.send_data(index, out));
        }
        self.tx.queue.pop_front();
        let structured = self.terms.structured;
        match (slot.failure, slot.request.kind) {
            (Some(failure), _) if structured => send_error(slot, &failure, out),
            (None, Kind::BlockStatus { .. }) => self.send_status(index, out),
            (failure, kind) => {
                let reply = SimpleReply {
                    error: failure.map_or(0, |failure| failure.errno.code()),
                    cookie: slot.cookie,
                };
                reply.emit(out);
                if kind == Kind::Flush && canary::has(Bug::AnsweredTwice) {
                    reply.emit(out);
                }
            }
        }
        self.finish(index);
        None
    }

    /// Appends the next piece of a read. A simple reply and an unfragmented one have one header for
    /// all of it, and nothing between its pieces; otherwise each piece is a chunk, and replies
    /// alternate.
    #[inline]
    fn send_data(&mut self, index: u16, out: &mut Vec<u8>) -> TxPayload {
        let structured = self.terms.structured;
        let slot = &mut self.slots[index];
        let (offset, left) = (slot.done, slot.data - slot.done);
        let len = transfer::piece(offset, left, self.config.piece);
        let at_once = !structured || slot.df;
        if !structured && offset == 0 {
            let cookie = slot.cookie;
            SimpleReply { error: 0, cookie }.emit(out);
        } else if structured && (offset == 0 || !at_once) {
            let covers = if at_once { left } else { len };
            // Without an error, and none can follow, the last piece may end the reply.
            let last = covers == left && slot.failure.is_none();
            ChunkHeader {
                flags: if last { chunk::DONE } else { 0 },
                kind: chunk::OFFSET_DATA,
                cookie: slot.cookie,
                len: 8 + covers,
            }
            .emit(out);
            let at = slot.request.offset + u64::from(offset);
            out.extend_from_slice(&at.to_be_bytes());
        }
        slot.done += len;
        slot.sends += 1;
        if len == left && slot.failure.is_none() {
            self.tx.queue.pop_front();
            self.finish(index);
        } else if !at_once && self.tx.queue.len() > 1 {
            self.tx.queue.pop_front();
            self.tx.queue.push_back(index);
        }
        TxPayload {
            token: index.into(),
            offset,
            len,
        }
    }

    fn send_status(&mut self, index: u16, out: &mut Vec<u8>) {
        let cookie = self.slots[index].cookie;
        let extents = self.slots.extents(index);
        ChunkHeader {
            flags: chunk::DONE,
            kind: chunk::BLOCK_STATUS,
            cookie,
            len: 4 + 8 * extents.len() as u32,
        }
        .emit(out);
        out.extend_from_slice(&CONTEXT_ID.to_be_bytes());
        for extent in extents {
            out.extend_from_slice(&extent.length.to_be_bytes());
            out.extend_from_slice(&extent.flags.to_be_bytes());
        }
    }
}

/// Appends the chunk that ends a failed request, with its message (Structured reply types).
#[cold]
fn send_error(slot: &Slot, failure: &Failure, out: &mut Vec<u8>) {
    let message = failure.why.as_bytes();
    let (kind, more) = match failure.at {
        Some(_) => (chunk::ERROR_OFFSET, 8),
        None => (chunk::ERROR, 0),
    };
    ChunkHeader {
        flags: chunk::DONE,
        kind,
        cookie: slot.cookie,
        len: 6 + message.len() as u32 + more,
    }
    .emit(out);
    out.extend_from_slice(&failure.errno.code().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
    if let Some(at) = failure.at {
        out.extend_from_slice(&at.to_be_bytes());
    }
}
