//! One NVMe/TCP connection of a host: handshake, capsules, data, and its end.
//!
//! Decides, from received bytes and submitted commands, where payload belongs, which bytes to send,
//! and how each command ended. [`IoQueue`](super::IoQueue) and [`Admin`](super::Admin) give the
//! commands their meaning.
//!
//! # Contract
//! The interface is that of [`crate::Placement`]. No input from the controller causes a panic or
//! growth, and every command ends exactly once. A protocol error queues a TermReq, ends all
//! commands with Host Pathing Error and ends the connection; later bytes are ignored.
//!
//! A connection fails of its own accord only between PDUs, so never while the driver moves payload
//! into a buffer; and a command whose buffer is being sent ends when that is done.
//!
//! # Limits
//! Commands in flight: the queue's entries − 1. One R2T outstanding per command (MAXR2T 0).
//!
//! # Origin
//! NVMe-TCP 1.0, 3. Stricter than most hosts: lengths, offsets and order of data are checked before
//! a byte is placed. Laxer in two points, for targets in the field: SQHD may go back, and SUCCESS
//! is taken if flow control was *asked* to be off, even where SQHD goes on being reported.
mod receive;
mod slots;
mod transmit;

use alloc::collections::VecDeque;
use canary::Bug;

use super::{Command, Completed, Data, Digests, HostError, SubmitError};
use crate::TxPayload;
use crate::wire::cqe::SQHD_NONE;
use crate::wire::fabrics::CATTR_DISABLE_SQ_FLOW;
use crate::wire::pdu::{Framing, HEADER_MAX, PduError};
use crate::wire::{SqeBuilder, Status};

use receive::Receive;
use slots::{Index, Slots};

/// Phase of a connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not connected yet.
    Idle,
    /// ICReq is queued or sent.
    Handshake,
    /// Commands are exchanged.
    Up,
    /// It ended or failed.
    Over,
}

/// Something to send, in order.
#[derive(Clone, Copy, Debug)]
enum Queued {
    IcReq,
    /// The capsule of the command in this slot.
    Command(Index),
    /// Data that an R2T asked for; the identifier tells whether the command is still the same.
    Data(Index, u16),
}

/// Result of [`Connection::poll_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Whole PDUs.
    Whole,
    /// A header; the driver puts this payload behind it.
    Payload(TxPayload),
    /// A header; the owner puts this range of its own data behind it with
    /// [`Connection::append_own`].
    Own(Command, TxPayload),
}

/// A refused header, to be quoted in the TermReq.
#[derive(Debug)]
struct Refusal {
    error: PduError,
    header: [u8; HEADER_MAX],
    len: usize,
}

/// The submission queue as known from the controller's SQHD (Base 2.0, 3.3.1.1).
#[derive(Debug)]
struct Ring {
    entries: u16,
    head: u16,
    tail: u16,
    /// SQ flow control is on.
    on: bool,
}

/// Parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Queue size, entries ≥ 2.
    pub entries: u16,
    /// Digests wanted.
    pub digests: Digests,
    /// SQ flow control will be asked to be off.
    pub disable_sq_flow_control: bool,
    /// Never more than a few commands are in flight, so the ring can't fill and SQHD isn't checked.
    pub few_commands: bool,
    /// In-capsule data of ordinary commands, bytes.
    pub in_capsule_max: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    phase: Phase,
    settings: Settings,
    slots: Slots,
    ring: Ring,
    rx: Receive,
    /// Parameters agreed for received PDUs, and for sent ones.
    rx_framing: Framing,
    tx_framing: Framing,
    maxh2cdata: u32,
    queued: VecDeque<Queued>,
    refusal: Option<Refusal>,
    error: Option<HostError>,
}

impl Connection {
    pub fn new(settings: Settings) -> Self {
        let count = settings.entries - 1;
        Self {
            phase: Phase::Idle,
            settings,
            slots: Slots::new(count),
            ring: Ring {
                entries: settings.entries,
                head: 0,
                tail: 0,
                on: true,
            },
            rx: Receive::new(),
            rx_framing: Framing::PLAIN,
            tx_framing: Framing::PLAIN,
            maxh2cdata: 0,
            // Each slot has at most a capsule and an answer to one R2T here.
            queued: VecDeque::with_capacity(2 * usize::from(count) + 1),
            refusal: None,
            error: None,
        }
    }

    /// The TCP connection is up.
    pub fn handle_connected(&mut self) {
        if self.phase == Phase::Idle {
            self.phase = Phase::Handshake;
            self.queued.push_back(Queued::IcReq);
        }
    }

    /// The handshake is done and nothing failed since.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// The error that ended it.
    pub fn error(&self) -> Option<HostError> {
        self.error
    }

    /// Commands whose end wasn't taken yet.
    pub fn in_flight(&self) -> u32 {
        self.slots.used() as u32
    }

    /// Whether a command is in flight and has moved no data.
    pub fn awaits(&self, token: u32) -> bool {
        self.slots.awaits(token)
    }

    /// Most commands in flight.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity() as u32
    }

    /// Whether a command would be accepted now.
    pub fn has_room(&self) -> bool {
        let (ring, drained) = (&self.ring, self.slots.used() == 0);
        let full = ring.on && ring.next(ring.tail) == ring.head && !drained;
        self.phase == Phase::Up && !full && self.slots.has_free()
    }

    /// Queues a command; `own`: its data comes from the owner ([`Sending::Own`]).
    #[inline]
    pub fn submit(&mut self, command: &Command, own: bool) -> Result<(), SubmitError> {
        if self.phase != Phase::Up {
            return Err(SubmitError::NotReady);
        }
        if self.ring.is_full(self.slots.used() == 0) {
            return Err(SubmitError::Full);
        }
        let index = self.slots.take(command, own).ok_or(SubmitError::Full)?;
        self.ring.push();
        self.queued.push_back(Queued::Command(index));
        Ok(())
    }

    /// Connect succeeded with this SQHD: the ring starts there, and flow control is off if the host
    /// asked for that and the controller agrees (Base 2.0, 6.3).
    pub fn start_ring(&mut self, sqhd: u16) {
        let off = self.settings.disable_sq_flow_control && sqhd == SQHD_NONE;
        self.ring.on = !(off || self.settings.few_commands);
        if self.ring.on && sqhd < self.ring.entries {
            // Nothing else was sent: all entries up to there are consumed, however the controller
            // counts.
            self.ring.head = sqhd;
            self.ring.tail = sqhd;
        }
    }

    /// Whether a command has ended, or the connection.
    #[inline]
    pub fn has_end(&self) -> bool {
        self.slots.has_ended() || self.error.is_some()
    }

    /// Takes the end of a command.
    #[inline]
    pub fn poll_end(&mut self) -> Option<Completed> {
        self.slots.take_end()
    }

    /// See [`IoQueue::abort`](super::IoQueue::abort).
    pub fn reserve(&mut self, token: u32) -> Option<u16> {
        self.slots.reserve(token)
    }

    /// See [`IoQueue::abort_over`](super::IoQueue::abort_over).
    pub fn unreserve(&mut self, cid: u16) {
        self.slots.unreserve(cid);
    }

    /// The driver no longer reads one range of the buffer of the command named `token`. Ignored
    /// once the connection is over.
    ///
    /// # Panics
    /// If the driver read none.
    #[inline]
    pub fn handle_sent(&mut self, token: u32) {
        let known = self.slots.give_back(token) || canary::has(Bug::LentFree);
        assert!(
            known || self.phase == Phase::Over,
            "handle_sent without a payload"
        );
    }

    /// The TCP connection is gone; the driver reads no buffer any more.
    pub fn handle_closed(&mut self) {
        self.fail(HostError::Closed);
        self.refusal = None;
        self.slots.end_all(Status::HOST_PATH, true);
    }

    /// Ends the connection: all commands end, and only a TermReq already queued is still sent.
    pub fn fail(&mut self, error: HostError) {
        if self.phase == Phase::Over {
            return;
        }
        self.phase = Phase::Over;
        self.error = Some(error);
        self.rx.stop();
        self.queued.clear();
        self.slots.end_all(Status::HOST_PATH, false);
    }

    /// Ends the connection because of a PDU, and queues a TermReq with the reason (T24).
    fn refuse(&mut self, host_error: HostError, error: PduError, header: &[u8]) {
        let mut refusal = Refusal {
            error,
            header: [0; HEADER_MAX],
            len: header.len(),
        };
        refusal.header[..header.len()].copy_from_slice(header);
        self.refusal = Some(refusal);
        self.fail(host_error);
    }
}

impl Ring {
    /// `drained`: no command is in flight, so the controller has consumed all entries.
    #[inline]
    fn is_full(&mut self, drained: bool) -> bool {
        if !self.on || self.next(self.tail) != self.head {
            return false;
        }
        if drained {
            self.head = self.tail;
        }
        !drained
    }

    #[inline]
    fn push(&mut self) {
        if self.on {
            self.tail = self.next(self.tail);
        }
    }

    /// Takes SQHD of a completion; `false`: it is invalid. One that goes back a little is ignored:
    /// controllers with several threads send completions in another order than they counted them.
    #[inline]
    fn advance(&mut self, sqhd: u16) -> bool {
        if !self.on {
            return true;
        }
        if sqhd >= self.entries {
            return false;
        }
        if self.distance(sqhd) <= self.distance(self.tail) {
            self.head = sqhd;
        }
        true
    }

    /// Entries from the head to `to`.
    fn distance(&self, to: u16) -> u16 {
        if to >= self.head {
            to - self.head
        } else {
            to + (self.entries - self.head)
        }
    }

    fn next(&self, at: u16) -> u16 {
        if at + 1 == self.entries { 0 } else { at + 1 }
    }
}

impl Settings {
    /// Connection attributes of the Connect command.
    pub fn cattr(&self) -> u8 {
        if self.disable_sq_flow_control {
            CATTR_DISABLE_SQ_FLOW
        } else {
            0
        }
    }
}

/// Makes a command of the machine's own from its entry.
pub fn own_command(sqe: &SqeBuilder, data: Data, token: u32) -> Command {
    let view = sqe.view();
    let cdw = core::array::from_fn(|i| view.cdw(10 + i));
    Command {
        opcode: view.opcode(),
        nsid: view.nsid(),
        cdw,
        data,
        token,
    }
}
