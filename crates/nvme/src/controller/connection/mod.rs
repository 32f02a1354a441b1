//! One TCP connection of the target: PDUs in both directions and the commands between them.
//!
//! Decides whether a PDU is legal (NVMe-TCP 1.0, 3) and where its bytes belong. Its owner, the
//! [`Subsystem`](super::Subsystem), gets every capsule as a [`Step`] and executes the command.
//!
//! # Contract
//! Slots of commands are named by their index; the driver knows them as tokens below the queue's
//! entries. A slot is free when its response was handed out and its payload was reported sent.
//!
//! # Limits
//! `entries` slots, one queue position for each; beside them one ICResp and one TermReq.
mod receive;
mod slots;
mod transmit;

pub(super) use receive::{Receiver, Sink, Step};
pub(super) use slots::{DataState, Page, Purpose, Slot, Slots, State};
pub(super) use transmit::{Sent, Transmitter};

use super::{ConnId, ControllerEvent};
use crate::limits::{HANDSHAKE_NS, SLOTS_BEFORE_CONNECT};
use crate::wire::Status;
use alloc::vec::Vec;
use canary::Bug;

/// Events for the driver, in order. It takes all of them before it sleeps, so a list that begins
/// again when it is empty is enough.
#[derive(Debug, Default)]
pub(super) struct Events {
    list: Vec<ControllerEvent>,
    /// Number of events taken.
    taken: usize,
}

impl Events {
    #[inline]
    pub fn push(&mut self, event: ControllerEvent) {
        self.list.push(event);
    }

    /// Whether none is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[inline]
    pub fn pop(&mut self) -> Option<ControllerEvent> {
        let event = *self.list.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.list.len() {
            self.list.clear();
            self.taken = 0;
        }
        Some(event)
    }

    /// Allocates room for `most` at a time, so that nothing is allocated later.
    pub fn reserve(&mut self, most: usize) {
        self.list.reserve(most.saturating_sub(self.list.len()));
    }

    /// Capacity for events.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.list.capacity()
    }
}

/// Phase of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// ICReq is awaited.
    Initialize,
    /// Connect is awaited.
    Connect,
    /// Commands are exchanged.
    Ready,
    /// Disconnect (in this slot) waits for the driver's commands; nothing more is read.
    Drain(u16),
    /// The driver was told to close.
    Closing,
    /// The connection is gone; some slots are still in use.
    Gone,
}

/// Configuration common to all connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// In-capsule data on I/O queues, bytes.
    pub in_capsule_max: u32,
    /// Largest H2CData, bytes.
    pub maxh2cdata: u32,
    /// Alignment asked of the host (CPDA), bytes.
    pub alignment: u32,
    /// SUCCESS flags where legal.
    pub c2h_success: bool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnId,
    pub port: u16,
    pub phase: Phase,
    /// End of the handshake, or of the time for queued bytes; `u64::MAX` = none.
    pub deadline_ns: u64,
    /// Index of its controller.
    pub controller: Option<usize>,
    /// 0 = admin.
    pub qid: u16,
    /// Entries of the queue.
    pub entries: u16,
    /// SQ flow control is on: responses carry the head.
    pub flow_control: bool,
    sqhd: u16,
    /// Commands received and not yet answered.
    pub outstanding: u16,
    /// Commands at the driver.
    pub backend: u16,
    /// A [`ControllerEvent::Resume`](super::ControllerEvent::Resume) is owed to the driver.
    starved: bool,
    /// It failed because of a wrong header digest.
    pub damaged: bool,
    pub slots: Slots,
    pub rx: Receiver,
    pub tx: Transmitter,
    terms: Terms,
}

impl Connection {
    pub fn new(id: ConnId, port: u16, terms: Terms, now_ns: u64) -> Self {
        Self {
            id,
            port,
            phase: Phase::Initialize,
            deadline_ns: now_ns.saturating_add(HANDSHAKE_NS),
            controller: None,
            qid: 0,
            entries: SLOTS_BEFORE_CONNECT,
            flow_control: true,
            sqhd: 0,
            outstanding: 0,
            backend: 0,
            starved: false,
            damaged: false,
            slots: Slots::new(SLOTS_BEFORE_CONNECT),
            rx: Receiver::new(),
            tx: Transmitter::new(),
            terms,
        }
    }

    /// Connect was accepted: the queue has its size and its number.
    pub fn connected(&mut self, controller: usize, qid: u16, entries: u16, flow_control: bool) {
        self.phase = Phase::Ready;
        self.deadline_ns = u64::MAX;
        self.controller = Some(controller);
        self.qid = qid;
        self.entries = entries;
        self.flow_control = flow_control;
        self.slots.grow(entries);
        self.tx.reserve(entries);
    }

    /// Whether commands are received and answered.
    pub fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::Closing | Phase::Gone)
    }

    /// Takes a slot for a command that arrived; `None`: the host has more outstanding than the
    /// queue has entries (less the one that tells full from empty; Base 2.0, 3.3.1.5 and 3.3.2.3).
    #[inline]
    pub fn take_slot(&mut self, cid: u16) -> Option<u16> {
        if self.outstanding + 1 >= self.entries {
            return None;
        }
        self.outstanding += 1;
        Some(self.slots.take(cid))
    }

    /// Queues the response of a command, or drops it if the connection is over.
    #[inline]
    pub fn respond(&mut self, slot: u16, status: Status, result: u64, events: &mut Events) {
        let command = &mut self.slots[slot];
        command.status = status;
        command.result = result;
        if !self.is_live() {
            return self.finish(slot, events);
        }
        self.queue(slot, State::SendResponse, events);
    }

    /// Queues the PDUs of this slot.
    #[inline]
    pub fn queue(&mut self, slot: u16, state: State, events: &mut Events) {
        self.slots[slot].state = state;
        self.tx.queue.push_back(slot);
        self.kick(events);
    }

    /// The driver has a buffer for a write. Late calls (the connection ended) change nothing.
    #[inline]
    pub fn buffer_ready(&mut self, slot: u16, events: &mut Events) {
        let command = self.slots.get_mut(slot);
        let Some(command) = command.filter(|it| it.state == State::AwaitBuffer) else {
            return;
        };
        if self.phase != Phase::Ready {
            return;
        }
        if self.rx.buffer_ready(slot) {
            command.state = State::Receiving;
        } else {
            self.queue(slot, State::SendR2t, events);
        }
    }

    /// Tells the driver once that there is something to send, until it has taken all.
    #[inline]
    pub fn kick(&mut self, events: &mut Events) {
        if !self.tx.kicked {
            self.tx.kicked = true;
            events.push(ControllerEvent::Transmit(self.id));
        }
    }

    /// The response was handed out: frees the command when its payload is free too (T23).
    #[inline]
    fn finish(&mut self, slot: u16, events: &mut Events) {
        if self.slots[slot].sends > 0 && !canary::has(Bug::SentFree) {
            self.slots[slot].state = State::Unsent;
        } else {
            self.release(slot, events);
        }
    }

    #[inline]
    fn release(&mut self, slot: u16, events: &mut Events) {
        if self.slots[slot].named {
            events.push(ControllerEvent::Release {
                conn: self.id,
                token: slot.into(),
            });
        }
        self.slots.put_back(slot);
        if self.starved {
            self.resume(events);
        }
    }

    #[cold]
    fn resume(&mut self, events: &mut Events) {
        self.starved = false;
        events.push(ControllerEvent::Resume(self.id));
    }

    /// The driver no longer reads a payload of this command.
    #[inline]
    pub fn sent(&mut self, slot: u16, events: &mut Events) {
        let command = &mut self.slots[slot];
        assert!(command.sends > 0, "handle_sent without a payload");
        command.sends -= 1;
        let over = match self.phase {
            Phase::Gone => command.state != State::Backend,
            _ => command.state == State::Unsent,
        };
        if over && command.sends == 0 {
            self.release(slot, events);
        }
    }

    /// Reads nothing more. Queued bytes may still be sent, unless the peer broke the protocol: then
    /// only the TermReq is.
    pub fn closing(&mut self, deadline_ns: u64) {
        self.phase = Phase::Closing;
        self.deadline_ns = deadline_ns;
        self.starved = false;
    }

    /// The connection is gone: only the driver's own work still refers to a buffer.
    pub fn gone(&mut self, events: &mut Events) {
        self.phase = Phase::Gone;
        self.deadline_ns = u64::MAX;
        self.starved = false;
        self.tx.queue.clear();
        self.tx.own.clear();
        for slot in 0..self.slots.count() {
            let command = &self.slots[slot];
            let over = command.sends == 0 && !matches!(command.state, State::Free | State::Backend);
            if over {
                self.release(slot, events);
            }
        }
    }
}
