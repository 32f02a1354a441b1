//! One client's connection as the server sees it.
//!
//! Decides what a client may do, from its bytes, a list of exports, the completions of the driver's
//! storage and the time. The driver owns the socket and the buffers. Phases: handshake (`options`),
//! transmission (`receive`, `transmit`), and the end (`lifetime`).
//!
//! # Contract
//! * Payload is moved by the driver, see [`crate::Placement`]. Tokens are slot numbers, below the
//!   configured requests in flight. Every call may make events: the driver polls `poll_event` until
//!   `None` before it sleeps.
//! * A write is [`Event::NeedBuffer`], then (answered by `buffer_ready`) its data, then
//!   [`Event::Request`]. All others begin with [`Event::Request`]; a read's buffer is the driver's
//!   to find. The driver answers each with `complete` or one of its neighbours, in any order.
//! * A buffer belongs to the request from then until [`Event::Release`], which comes once for every
//!   token that was named: behind the last `handle_sent`, or in `handle_closed`.
//! * `handle_bytes` takes fewer bytes than offered where payload begins, where a buffer is awaited,
//!   and where the client must wait ([`Event::Resume`] follows): for a free slot, or, during the
//!   handshake, until the answers to it were sent.
//! * After [`Event::Close`] the driver sends what is queued (nothing, where the reason is abortive)
//!   and closes. `handle_closed` may come at any time; afterwards the driver completes what it has
//!   and drops the session when [`Session::is_over`].
//!
//! A client that did not ask for the block sizes (`Opened::negotiated_block_size`) may send any
//! range, and the driver has to serve it. One that did ask gets EINVAL (Block size constraints).
//!
//! # Limits
//! Requests in flight as configured (≤ 1024), each with one place in the reply queue; a client that
//! stops in the middle of one, or reads no answers, is disconnected (`watch`); 64 options, of 16
//! KiB of data each; 16 extents in an answer; see [`crate::limits`]. All memory of transmission is
//! allocated with its first request.
//!
//! # Origin
//! `doc/proto.md`. Choices where it leaves one: successes without data are simple replies even
//! where structured ones were agreed (4 bytes less), errors are then chunks with a message; a
//! length of zero is EINVAL; the maximum holds for reads and writes only; several requests' chunks
//! alternate, so a large read does not delay small ones.
mod lifetime;
mod options;
mod receive;
mod slots;
mod transmit;
mod types;
mod watch;

pub use types::{CloseReason, Config, Event, Fault, Opened};

use alloc::collections::VecDeque;

use crate::limits::{BLOCK_MAX, PIECE_MIN, REQUESTS_MAX};
use crate::shape::Shape;
use crate::{Errno, Exports, Extent, Kind, Request};
use receive::Receiver;
use slots::{Failure, Slots, State};
use transmit::Transmitter;
use watch::Watch;

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client's flags are awaited.
    Flags,
    /// Option haggling.
    Options,
    /// Requests flow.
    Transmission,
    /// The client sent DISC; its requests are finished, nothing more is read.
    Draining,
    /// The driver was told to close.
    Closing,
    /// The connection is gone; some slots are still in use.
    Gone,
}

/// Results of the negotiation so far.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    no_zeroes: bool,
    structured: bool,
    /// Index of the export whose `base:allocation` was selected.
    context: Option<usize>,
}

/// One session. See the module.
#[derive(Debug)]
pub struct Session {
    exports: Exports,
    config: Config,
    phase: Phase,
    /// End of the handshake, of the drain or of the time for queued bytes; `u64::MAX` = none.
    deadline_ns: u64,
    /// Detects a client that stalls.
    watch: Watch,
    /// The server shuts down: new requests are refused.
    shutting: bool,
    terms: Terms,
    /// The chosen export, in transmission.
    shape: Shape,
    /// Requests that wait for their data or are with the driver.
    work: u16,
    /// A [`Event::Resume`] is owed to the driver.
    starved: bool,
    slots: Slots,
    rx: Receiver,
    tx: Transmitter,
    events: VecDeque<Event>,
}

impl Session {
    /// Starts a session with a client that has connected: the greeting is queued.
    pub fn new(config: Config, exports: Exports, now_ns: u64) -> Self {
        let config = Config {
            requests_max: config.requests_max.clamp(1, REQUESTS_MAX),
            piece: config.piece.clamp(PIECE_MIN, BLOCK_MAX),
            ..config
        };
        let mut session = Self {
            exports,
            phase: Phase::Flags,
            deadline_ns: now_ns.saturating_add(config.handshake_ns),
            config,
            watch: Watch::IDLE,
            shutting: false,
            terms: Terms::default(),
            shape: Shape::NONE,
            work: 0,
            starved: false,
            slots: Slots::new(),
            rx: Receiver::new(),
            tx: Transmitter::new(),
            events: VecDeque::new(),
        };
        session.greet();
        session
    }

    /// Replaces the exports of a session that is still in its handshake; a selected context is
    /// dropped.
    pub fn set_exports(&mut self, exports: Exports) {
        if matches!(self.phase, Phase::Flags | Phase::Options) {
            self.terms.context = None;
            self.tx.restart_list(&exports);
            self.exports = exports;
        }
    }

    /// The driver has executed a request; a read's data is in its buffer. Block Status answered so
    /// is "all of it allocated".
    ///
    /// # Panics
    /// If the request isn't the driver's.
    #[inline]
    pub fn complete(&mut self, token: u32, result: Result<(), Errno>, now_ns: u64) {
        let failure = result.err().map(Failure::new);
        self.executed(token, failure, now_ns);
    }

    /// As [`Self::complete`] with an error at byte `at` of the export. The bytes of a read before
    /// it are in the buffer and may be sent.
    ///
    /// # Panics
    /// If the request isn't the driver's.
    pub fn complete_failed_at(&mut self, token: u32, errno: Errno, at: u64, now_ns: u64) {
        let failure = Failure {
            at: Some(at),
            ..Failure::new(errno)
        };
        self.executed(token, Some(failure), now_ns);
    }

    /// As [`Self::complete`] with success, for Block Status: the runs from the request's offset on.
    /// Bytes beyond the request, and runs beyond the sixteenth, are left out.
    ///
    /// # Panics
    /// If the request isn't the driver's, or no Block Status.
    pub fn complete_status(&mut self, token: u32, extents: &[Extent], now_ns: u64) {
        self.slots.set_extents(token as u16, extents);
        self.executed(token, None, now_ns);
    }

    /// Returns the next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The write whose buffer `handle_bytes` has just asked for. A driver that has one at once may
    /// say so before it takes the events in front of that [`Event::NeedBuffer`], which it then
    /// takes back by [`Self::withdraw_buffer_request`].
    #[inline]
    pub fn buffer_request(&self) -> Option<Request> {
        match self.events.back() {
            Some(&Event::NeedBuffer { token, offset, len }) => {
                Some(Request::new(token, Kind::Write, offset, len))
            }
            _ => None,
        }
    }

    /// The last event is not told any more.
    ///
    /// # Panics
    /// If it is no [`Event::NeedBuffer`].
    #[inline]
    pub fn withdraw_buffer_request(&mut self) {
        let event = self.events.pop_back();
        assert!(
            matches!(event, Some(Event::NeedBuffer { .. })),
            "no buffer was asked for"
        );
    }

    /// Takes the first event if it is a [`Event::Release`]. Returns its token.
    #[inline]
    pub fn take_release(&mut self) -> Option<u32> {
        let Some(&Event::Release { token }) = self.events.front() else {
            return None;
        };
        self.events.pop_front();
        Some(token)
    }

    /// Whether [`Self::poll_event`] has something. `poll_transmit` may add events: it releases
    /// requests.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns when [`Self::handle_timeout`] must be called at the latest, ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        let due_ns = self.deadline_ns.min(self.watch.at_ns);
        (due_ns != u64::MAX).then_some(due_ns)
    }

    /// Requests in progress, from their header to the last byte of their reply.
    pub fn in_flight(&self) -> u16 {
        self.slots.used()
    }

    #[inline]
    fn executed(&mut self, token: u32, failure: Option<Failure>, now_ns: u64) {
        let index = token as u16;
        self.watch(now_ns);
        let slot = &mut self.slots[index];
        assert!(
            slot.state == State::Backend,
            "complete: the request isn't the driver's"
        );
        self.work -= 1;
        slot.failure = failure.map(|failure| failure.fit(&slot.request, slot.df));
        self.respond(index);
        self.settle(now_ns);
    }

    /// Queues the reply to a request, or drops it if the session has ended.
    #[inline]
    fn respond(&mut self, index: u16) {
        if !matches!(self.phase, Phase::Transmission | Phase::Draining) {
            return self.finish(index);
        }
        let structured = self.terms.structured;
        let slot = &mut self.slots[index];
        slot.state = State::Reply;
        slot.done = 0;
        slot.data = match (slot.request.kind, slot.failure) {
            (Kind::Read, None) => slot.request.length,
            // Data before the failed byte, if the reply can say so.
            (Kind::Read, Some(Failure { at: Some(at), .. })) if structured => {
                (at - slot.request.offset) as u32
            }
            _ => 0,
        };
        self.tx.queue.push_back(index);
        self.kick();
    }

    /// Tells the driver once that there is something to send, until it has taken all.
    #[inline]
    fn kick(&mut self) {
        if !self.tx.kicked {
            self.tx.kicked = true;
            self.events.push_back(Event::Transmit);
        }
    }

    /// The reply to this request was handed out: frees the request when its payload is free too.
    #[inline]
    fn finish(&mut self, index: u16) {
        if self.slots[index].sends > 0 {
            self.slots[index].state = State::Unsent;
        } else {
            self.release(index);
        }
    }

    #[inline]
    fn release(&mut self, index: u16) {
        if self.slots[index].named {
            let token = index.into();
            self.events.push_back(Event::Release { token });
        }
        self.slots.put_back(index);
        self.resume();
    }

    /// Lets the driver offer bytes again.
    fn resume(&mut self) {
        if self.starved {
            self.starved = false;
            self.events.push_back(Event::Resume);
        }
    }
}

#[cfg(test)]
mod tests;
