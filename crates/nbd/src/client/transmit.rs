//! Sends to the server: options, requests in the order of their submission with their data, and
//! DISC.
use alloc::vec::Vec;

use super::{Event, Phase, Queued, Session, flags};
use crate::wire::{RequestHeader, cmd};
use crate::{Kind, Transmit, TxPayload, transfer};

impl Session {
    /// Appends the next bytes to send to `out`; see [`Transmit`]. `None`: nothing was appended and
    /// nothing is left; an [`Event::Transmit`] follows when there is more.
    #[inline]
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        let before = out.len();
        if !self.own.is_empty() {
            out.append(&mut self.own);
        }
        while let Some(&index) = self.queue.front() {
            if let Some(payload) = self.send(index, out) {
                let payload = Some(payload);
                return Some(Transmit { payload });
            }
        }
        self.kicked = false;
        if self.phase == Phase::Ending(false) && self.slots.used() == 0 {
            self.send_disconnect(out);
        }
        (out.len() > before).then_some(Transmit { payload: None })
    }

    /// One range of this request's buffer is no longer read. Ignored after the session's end.
    ///
    /// # Panics
    /// If none was handed out.
    #[inline]
    pub fn handle_sent(&mut self, token: u32) {
        match self.slots.take_back(token) {
            Some(index) => self.end_if_idle(index),
            None => assert!(self.is_over(), "handle_sent without a payload"),
        }
    }

    /// Appends the next part of one request.
    #[inline]
    fn send(&mut self, index: u16, out: &mut Vec<u8>) -> Option<TxPayload> {
        let slot = &self.slots[index];
        let request = slot.request;
        if self.slots.is_queued(index) {
            RequestHeader {
                flags: flags(&request, slot.df),
                command: request.kind.command(),
                cookie: slot.cookie,
                offset: request.offset,
                length: request.length,
            }
            .emit(out);
            self.slots.send_header(index);
        }
        if request.kind != Kind::Write {
            self.queue.pop_front();
            return None;
        }
        let offset = self.slots[index].done;
        let left = request.length - offset;
        let len = transfer::piece(offset, left, self.config.piece);
        self.slots.lend(index, len);
        if len == left {
            self.queue.pop_front();
        }
        Some(TxPayload {
            token: request.token,
            offset,
            len,
        })
    }

    fn send_disconnect(&mut self, out: &mut Vec<u8>) {
        let (flags, cookie, offset, length) = (0, 0, 0, 0);
        RequestHeader {
            flags,
            command: cmd::DISC,
            cookie,
            offset,
            length,
        }
        .emit(out);
        self.phase = Phase::Ending(true);
        self.events.push_back(Queued::Event(Event::Close));
    }
}
