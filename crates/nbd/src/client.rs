//! One connection as the client sees it: handshake, then requests.
//!
//! Decides from the server's bytes how each submitted request ends. The owner has the socket and
//! the buffers. Phases: handshake (`handshake`), requests (`receive`, `transmit`), and the end,
//! here.
//!
//! # Contract
//! * `handle_connected` once the connection is up; after [`Event::Ready`], `submit`. Payload is
//!   moved by the owner, see [`crate::Placement`]; tokens are the submitter's.
//! * Every accepted request ends in exactly one [`Event::Completed`], whose slot is in use until
//!   that event was polled; its buffer is free then. [`Event::Failed`] comes last, once.
//! * [`Event::Zero`] comes before the [`Event::Completed`] of its read: the owner zeroes that range
//!   of the buffer.
//! * `handle_bytes` takes fewer bytes than offered where payload begins, and where events wait to
//!   be polled ([`Event::Resume`] follows).
//! * The session has no time-out for requests: its owner closes the connection.
//!
//! No input from the server causes a panic or growth, places data outside a buffer or twice, or
//! completes a read that lacks a byte (T16).
//!
//! # Limits
//! Requests in flight as configured (≤ 1024); a read's chunks may arrive in any order as long as
//! they form at most 8 ranges. Of a Block Status the first 16 runs are kept, neighbours of one
//! status as one, however long the answer is: the owner asks again from the end of the last one.
//!
//! # Origin
//! `doc/proto.md`. Falls back to EXPORT_NAME where a server doesn't know GO, and to simple replies
//! where it doesn't know structured ones; oldstyle servers are refused. Reads carry DF where the
//! server offers it: then an unreadable block fails its request, where qemu-nbd otherwise closes
//! the connection in the middle of the reply. A server that can't send so much in one piece answers
//! EOVERFLOW, and is asked once more without DF.
mod handshake;
mod ranges;
mod receive;
mod slots;
mod transmit;
mod types;

pub use types::{CommandError, Completed, Config, Error, Event, Fault, Info, SubmitError};

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limits::{BLOCK_MAX, PIECE_MIN, REQUESTS_MAX};
use crate::shape::Shape;
use crate::wire::flag;
use crate::{Errno, Extent, Kind, Request};
use handshake::Negotiation;
use receive::Receiver;
use slots::Slots;

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the connection.
    Idle,
    /// The server's greeting and the options.
    Handshake,
    /// Requests flow.
    Ready,
    /// No new requests are accepted; `true`: DISC was sent.
    Ending(bool),
    /// The session ended or failed; `true`: the owner was told.
    Over(bool),
}

/// An event for the owner, in order.
#[derive(Clone, Copy, Debug)]
enum Queued {
    Event(Event),
    /// The request in this slot has ended.
    End(u16),
}

/// One session. See the module.
#[derive(Debug)]
pub struct Session {
    config: Config,
    phase: Phase,
    /// End of the handshake; `u64::MAX` = none.
    deadline_ns: u64,
    error: Option<Error>,
    negotiation: Negotiation,
    shape: Shape,
    structured: bool,
    /// Reads carry DF: the server offers it, and structured replies were agreed.
    has_df: bool,
    /// Identifier of `base:allocation`, if selected.
    context: Option<u32>,
    slots: Slots,
    /// The slot whose end was polled last.
    last_end: u16,
    rx: Receiver,
    /// Bytes of the handshake, ahead of everything else.
    own: Vec<u8>,
    /// Slots with something to send.
    queue: VecDeque<u16>,
    /// A [`Event::Transmit`] is outstanding: the owner has not polled the end of it.
    kicked: bool,
    /// A [`Event::Resume`] is owed to the owner.
    starved: bool,
    events: VecDeque<Queued>,
}

impl Session {
    /// A session to be connected. Allocates all memory that its requests will need.
    pub fn new(config: Config) -> Self {
        let config = Config {
            requests_max: config.requests_max.clamp(1, REQUESTS_MAX),
            piece: config.piece.clamp(PIECE_MIN, BLOCK_MAX),
            ..config
        };
        let requests = config.requests_max;
        Self {
            phase: Phase::Idle,
            deadline_ns: u64::MAX,
            error: None,
            negotiation: Negotiation::new(),
            shape: Shape::NONE,
            structured: false,
            has_df: false,
            context: None,
            slots: Slots::new(requests, config.block_status),
            last_end: 0,
            rx: Receiver::new(),
            own: Vec::new(),
            queue: VecDeque::with_capacity(requests.into()),
            kicked: false,
            starved: false,
            events: VecDeque::with_capacity(events_max(requests)),
            config,
        }
    }

    /// The connection is up; the server speaks first.
    pub fn handle_connected(&mut self, now_ns: u64) {
        if self.phase == Phase::Idle {
            self.phase = Phase::Handshake;
            self.deadline_ns = now_ns.saturating_add(self.config.handshake_ns);
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`SubmitError::Full`]: try again after a completion. [`SubmitError::NotReady`]: before
    /// [`Event::Ready`], or at the end. [`SubmitError::Invalid`]: the server does not offer it.
    #[inline]
    pub fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        if self.phase != Phase::Ready {
            return Err(SubmitError::NotReady);
        }
        self.check(request)?;
        let index = self
            .slots
            .take(request, self.has_df)
            .ok_or(SubmitError::Full)?;
        self.queue.push_back(index);
        self.kick();
        Ok(())
    }

    /// Requests whose completion was not polled yet.
    pub fn in_flight(&self) -> u16 {
        self.slots.used()
    }

    /// Sends DISC when all requests have ended; no new ones are accepted.
    pub fn disconnect(&mut self) {
        if self.phase == Phase::Ready {
            self.phase = Phase::Ending(false);
            self.kick();
        } else if matches!(self.phase, Phase::Idle | Phase::Handshake) {
            self.abort();
            self.fail(Error::Closed);
        }
    }

    /// Returns the next event; `None`: there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        match self.events.pop_front() {
            Some(Queued::Event(event)) => Some(event),
            Some(Queued::End(index)) => {
                let end = self.slots.free(index);
                self.last_end = index;
                if self.phase == Phase::Ending(false) && self.slots.used() == 0 {
                    self.kick();
                }
                Some(Event::Completed(end))
            }
            None if self.starved => {
                self.starved = false;
                Some(Event::Resume)
            }
            None => self.poll_failure(),
        }
    }

    /// The first extents of the Block Status whose [`Event::Completed`] was polled last; until the
    /// next `submit`. Empty unless it was a success.
    pub fn extents(&self) -> &[Extent] {
        self.slots.extents(self.last_end)
    }

    /// Returns when [`Self::handle_timeout`] must be called at the latest, ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        (self.deadline_ns != u64::MAX).then_some(self.deadline_ns)
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns >= self.deadline_ns {
            self.fail(Error::TimedOut);
        }
    }

    /// The connection ended, and no buffer is read or written on its behalf any more: every request
    /// in flight ends with [`CommandError::Lost`].
    pub fn handle_closed(&mut self) {
        if self.phase == Phase::Ending(true) {
            // The server closed after our DISC.
            self.phase = Phase::Over(true);
        }
        self.own.clear();
        self.fail(Error::Closed);
        for index in self.slots.take_back_all() {
            self.end_if_idle(index);
        }
    }

    /// Whether the server accepts this request.
    #[inline]
    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let features = &self.shape.features;
        let zeroes = request.kind == Kind::WriteZeroes;
        if request.fua && !(features.fua && request.kind.is_change()) {
            return Err(SubmitError::Invalid("FUA was not offered"));
        }
        if (request.fast_zero && !(zeroes && features.fast_zero)) || (request.no_hole && !zeroes) {
            return Err(SubmitError::Invalid("such zeroes were not offered"));
        }
        let offered = self.shape.offers(request.kind);
        let checked = offered.and_then(|()| self.shape.check_range(request, false));
        checked.map_err(|refusal| SubmitError::Invalid(refusal.why))
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Ends the session: only the bytes in `own` are still sent, and all requests end.
    fn fail(&mut self, error: Error) {
        if self.is_over() {
            return;
        }
        self.phase = Phase::Over(false);
        self.deadline_ns = u64::MAX;
        self.error = Some(error);
        self.starved = false;
        self.rx.stop();
        self.queue.clear();
        for index in 0..self.slots.count() {
            if self.slots.lose(index) {
                self.end_if_idle(index);
            }
        }
    }

    /// Ends a request if nothing refers to it any more.
    #[inline]
    fn end_if_idle(&mut self, index: u16) {
        if self.slots.end_if_idle(index) {
            self.events.push_back(Queued::End(index));
        }
    }

    /// Records the server's answer to a request.
    fn answered(&mut self, index: u16, result: Result<(), CommandError>) {
        // Structured reply types, NBD_CMD_FLAG_DF: EOVERFLOW means that the reply would be too
        // large in one piece.
        let is_too_large = result == Err(CommandError::Server(Errno::Overflow));
        if is_too_large && self.slots.repeat_without_df(index) {
            self.queue.push_back(index);
            return self.kick();
        }
        self.slots.answer(index, result);
        self.end_if_idle(index);
        // A server that shuts down expects the client to disconnect (Terminating the transmission
        // phase).
        if result == Err(CommandError::Server(Errno::Shutdown)) && self.phase == Phase::Ready {
            self.phase = Phase::Ending(false);
        }
    }

    #[inline]
    fn kick(&mut self) {
        if !self.kicked {
            self.kicked = true;
            self.events.push_back(Queued::Event(Event::Transmit));
        }
    }

    /// Reports `Failed`, once all requests have ended.
    #[cold]
    fn poll_failure(&mut self) -> Option<Event> {
        if self.phase != Phase::Over(false) || self.slots.used() > 0 {
            return None;
        }
        self.phase = Phase::Over(true);
        self.error.map(Event::Failed)
    }
}

/// Events that may be queued before `handle_bytes` stops.
fn events_max(requests: u16) -> usize {
    2 * usize::from(requests) + 8
}

/// Flags of a request on the wire; `df`: of a read.
#[inline]
fn flags(request: &Request, df: bool) -> u16 {
    let bits = [
        (df, flag::DF),
        (request.fua, flag::FUA),
        (request.no_hole, flag::NO_HOLE),
        (request.fast_zero, flag::FAST_ZERO),
        (
            request.kind == Kind::BlockStatus { one: true },
            flag::REQ_ONE,
        ),
    ];
    let on = bits.into_iter().filter(|(on, _)| *on);
    on.fold(0, |flags, (_, bit)| flags | bit)
}

#[cfg(test)]
mod tests;
