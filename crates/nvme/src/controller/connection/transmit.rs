//! PDUs to the host: R2T, C2HData and responses, in the order in which they became due.
use super::{Connection, Events, State};
use crate::TxPayload;
use crate::wire::Cqe;
use crate::wire::cqe::SQHD_NONE;
use crate::wire::pdu::{DataHeader, Framing, PduType, flags};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Sending side of a connection.
#[derive(Debug)]
pub(in crate::controller) struct Transmitter {
    pub framing: Framing,
    /// ICResp or TermReq, ahead of everything else.
    pub own: Vec<u8>,
    /// Slots with something to send; each at most once.
    pub queue: VecDeque<u16>,
    /// A [`ControllerEvent::Transmit`](super::super::ControllerEvent::Transmit) is outstanding.
    pub kicked: bool,
}

/// Result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum Sent {
    /// Nothing is left to send.
    Idle,
    /// A header was appended; this belongs behind it.
    Payload(TxPayload),
    /// The data of this admin command is next: [`Connection::send_page`].
    Page(u16),
}

impl Transmitter {
    pub fn new() -> Self {
        Self {
            framing: Framing::PLAIN,
            own: Vec::new(),
            queue: VecDeque::new(),
            kicked: false,
        }
    }

    /// Room for one position of every slot, so that nothing is allocated later.
    pub fn reserve(&mut self, slots: u16) {
        self.queue.reserve(usize::from(slots));
    }
}

impl Connection {
    /// Appends PDUs until payload follows, admin data is due, or nothing is left.
    #[inline]
    pub fn transmit(&mut self, out: &mut Vec<u8>, events: &mut Events) -> Sent {
        if !self.tx.own.is_empty() {
            out.append(&mut self.tx.own);
        }
        while let Some(&slot) = self.tx.queue.front() {
            match self.slots[slot].state {
                State::SendData => return Sent::Payload(self.send_data(slot, out, events)),
                State::SendPage => return Sent::Page(slot),
                State::SendR2t => {
                    self.tx.queue.pop_front();
                    self.send_r2t(slot, out);
                }
                state => {
                    assert!(state == State::SendResponse, "nothing to send in {state:?}");
                    self.tx.queue.pop_front();
                    self.send_response(slot, out, events);
                }
            }
        }
        self.tx.kicked = false;
        Sent::Idle
    }

    /// One R2T for all data of the command: that is legal whatever MAXR2T is (T19).
    fn send_r2t(&mut self, slot: u16, out: &mut Vec<u8>) {
        let command = &mut self.slots[slot];
        command.state = State::Receiving;
        let header = DataHeader {
            cccid: command.cid,
            ttag: slot,
            offset: 0,
            length: command.len,
        };
        self.tx
            .framing
            .begin(out, PduType::R2t, 0, &header.emit(), 0);
    }

    /// All data of a read, in one PDU: some hosts accept only one (SPDK 26.05). The response
    /// follows, unless SUCCESS replaces it.
    #[inline]
    fn send_data(&mut self, slot: u16, out: &mut Vec<u8>, events: &mut Events) -> TxPayload {
        let success = self.may_succeed(slot);
        let command = &mut self.slots[slot];
        let len = command.len;
        command.sends += 1;
        let flag = if success {
            flags::LAST | flags::SUCCESS
        } else {
            flags::LAST
        };
        let header = DataHeader {
            cccid: command.cid,
            ttag: 0,
            offset: 0,
            length: len,
        };
        self.tx
            .framing
            .begin(out, PduType::C2hData, flag, &header.emit(), len);
        self.end_data(slot, success, events);
        let digest = self.tx.framing.data_digest;
        TxPayload {
            token: slot.into(),
            offset: 0,
            len,
            digest,
        }
    }

    /// Sends admin data in one PDU, and the response.
    pub fn send_page(&mut self, slot: u16, data: &[u8], out: &mut Vec<u8>, events: &mut Events) {
        let success = self.may_succeed(slot);
        let flag = if success {
            flags::LAST | flags::SUCCESS
        } else {
            flags::LAST
        };
        let length = data.len() as u32;
        let header = DataHeader {
            cccid: self.slots[slot].cid,
            ttag: 0,
            offset: 0,
            length,
        };
        self.tx
            .framing
            .whole(out, PduType::C2hData, flag, &header.emit(), data);
        self.end_data(slot, success, events);
    }

    /// Whether SUCCESS may replace the response (T18). Data is sent only for commands that ended
    /// well and have nothing in DW0, so a response would only report the queue's head.
    #[inline]
    fn may_succeed(&self, slot: u16) -> bool {
        let command = &self.slots[slot];
        debug_assert!(command.status.is_success() && command.result == 0);
        self.terms.c2h_success && !self.flow_control
    }

    /// All data of the command at the front went out.
    #[inline]
    fn end_data(&mut self, slot: u16, success: bool, events: &mut Events) {
        if success {
            self.tx.queue.pop_front();
            self.answered();
            self.finish(slot, events);
        } else {
            // It stays at the front: its response is sent next.
            self.slots[slot].state = State::SendResponse;
        }
    }

    #[inline]
    fn send_response(&mut self, slot: u16, out: &mut Vec<u8>, events: &mut Events) {
        self.answered();
        let command = &self.slots[slot];
        let cqe = Cqe {
            result: command.result,
            sqhd: if self.flow_control {
                self.sqhd
            } else {
                SQHD_NONE
            },
            sqid: 0,
            cid: command.cid,
            status: command.status,
        };
        self.tx
            .framing
            .begin(out, PduType::CapsuleResp, 0, &cqe.emit(), 0);
        self.finish(slot, events);
    }

    /// The head moves with answers, not with arrivals: it never promises a slot that is not free.
    #[inline]
    fn answered(&mut self) {
        self.outstanding -= 1;
        self.sqhd = if self.sqhd + 1 == self.entries {
            0
        } else {
            self.sqhd + 1
        };
    }
}
