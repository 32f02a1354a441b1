//! The requests in flight of one session.
//!
//! # Contract
//! A cookie is a slot number in the low bits and a generation above it. The generation changes
//! whenever the slot is freed: an answer to a request that has ended is refused instead of being
//! taken for one to the slot's next request (T11). A request ends once: when it is answered, all of
//! it was handed out to be sent, and the driver holds no range of its buffer any more.
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::ranges::Ranges;
use super::{CommandError, Completed};
use crate::limits::EXTENTS_MAX;
use crate::{Errno, Extent, Kind, Request};
use canary::Bug;

/// Low bits of a cookie that hold the slot.
const INDEX_BITS: u32 = 16;

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Its header is not sent yet: the server does not know its cookie.
    Queued,
    /// Its header was sent, its data not completely.
    Sending,
    /// All of it was sent.
    Sent,
    /// Its completion waits to be polled.
    Ended,
}

/// One request.
#[derive(Debug)]
pub(super) struct Slot {
    state: State,
    /// Slot and generation.
    pub cookie: u64,
    pub request: Request,
    /// A read with DF: the server must answer in one piece.
    pub df: bool,
    /// Bytes of a write handed out to be sent.
    pub done: u32,
    /// Bytes of a read that arrived or are arriving.
    pub arrived: Ranges,
    /// Its extents have arrived.
    pub has_status: bool,
    /// Error of an error chunk.
    pub error: Option<Errno>,
    /// The server's answer; the request ends with it once nothing refers to the buffer.
    answer: Option<Result<(), CommandError>>,
    /// Ranges of the buffer that the driver still reads.
    lent: u32,
}

/// Extents of one Block Status.
#[derive(Clone, Copy, Debug, Default)]
struct Extents {
    list: [Extent; EXTENTS_MAX],
    len: usize,
    /// An extent was left out, so none behind it is kept.
    is_cut: bool,
}

impl Extents {
    fn add(&mut self, extent: Extent) {
        if self.is_cut {
            return;
        }
        let kept = &mut self.list[..self.len];
        let before = kept.last_mut().filter(|it| it.flags == extent.flags);
        let joined = before.and_then(|it| Some((it.length.checked_add(extent.length)?, it)));
        if let Some((length, before)) = joined {
            before.length = length;
        } else if let Some(place) = self.list.get_mut(self.len) {
            *place = extent;
            self.len += 1;
        } else {
            self.is_cut = true;
        }
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    all: Box<[Slot]>,
    free: Vec<u16>,
    /// Slots with `lent > 0`, in the order in which the driver got the first range: it returns them
    /// in about that order.
    lenders: VecDeque<u16>,
    extents: Box<[Extents]>,
}

impl Slots {
    pub fn new(count: u16, block_status: bool) -> Self {
        let slot = |index: u16| Slot {
            state: State::Free,
            cookie: index.into(),
            request: Request::flush(0),
            df: false,
            done: 0,
            arrived: Ranges::default(),
            has_status: false,
            error: None,
            answer: None,
            lent: 0,
        };
        let answers = if block_status { count } else { 0 };
        Self {
            all: (0..count).map(slot).collect(),
            free: (0..count).rev().collect(),
            lenders: VecDeque::with_capacity(count.into()),
            extents: (0..answers).map(|_| Extents::default()).collect(),
        }
    }

    pub fn count(&self) -> u16 {
        self.all.len() as u16
    }

    /// Requests whose completion was not polled.
    pub fn used(&self) -> u16 {
        (self.all.len() - self.free.len()) as u16
    }

    /// Takes a slot for a request, with DF if it is a read; `None`: all are in use.
    #[inline]
    pub fn take(&mut self, request: &Request, df: bool) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self[index];
        slot.state = State::Queued;
        slot.request = *request;
        slot.df = df && request.kind == Kind::Read;
        slot.done = 0;
        slot.arrived.clear();
        slot.has_status = false;
        slot.error = None;
        slot.answer = None;
        if let Some(extents) = self.extents.get_mut(usize::from(index)) {
            *extents = Extents::default();
        }
        Some(index)
    }

    /// Whether the header of this request is still to be sent.
    #[inline]
    pub fn is_queued(&self, index: u16) -> bool {
        self[index].state == State::Queued
    }

    /// Hands out the header; data follows it if it is a write.
    #[inline]
    pub fn send_header(&mut self, index: u16) {
        let slot = &mut self[index];
        slot.state = match slot.request.kind {
            Kind::Write => State::Sending,
            _ => State::Sent,
        };
    }

    /// Hands out `len` bytes of data; the driver reads them from now on.
    #[inline]
    pub fn lend(&mut self, index: u16, len: u32) {
        let slot = &mut self[index];
        slot.done += len;
        if slot.done == slot.request.length {
            slot.state = State::Sent;
        }
        slot.lent += 1;
        if slot.lent == 1 {
            self.lenders.push_back(index);
        }
    }

    /// Records that the driver no longer reads one range of the buffer of request `token`; returns
    /// its slot.
    #[inline]
    pub fn take_back(&mut self, token: u32) -> Option<u16> {
        let named = |&index: &u16| self[index].request.token == token;
        let at = self.lenders.iter().position(named)?;
        let index = self.lenders[at];
        let slot = &mut self[index];
        slot.lent -= 1;
        if slot.lent == 0 {
            self.lenders.remove(at);
        }
        Some(index)
    }

    /// Records that the driver reads no buffer any more; returns the slots, one per range.
    pub fn take_back_all(&mut self) -> VecDeque<u16> {
        let lenders = core::mem::take(&mut self.lenders);
        for &index in &lenders {
            self[index].lent = 0;
        }
        lenders
    }

    /// Returns the slot that a server's cookie names; `None`: the request was never sent, or is
    /// answered.
    #[inline]
    pub fn find(&self, cookie: u64) -> Option<u16> {
        let index = (cookie & ((1 << INDEX_BITS) - 1)) as u16;
        let slot = self.all.get(usize::from(index))?;
        let live = matches!(slot.state, State::Sending | State::Sent) && slot.answer.is_none();
        (slot.cookie == cookie && live).then_some(index)
    }

    /// Queues a read once more, without DF and under another cookie; `false`: it had no DF.
    #[cold]
    pub fn repeat_without_df(&mut self, index: u16) -> bool {
        let slot = &mut self[index];
        if !slot.df || slot.state != State::Sent {
            return false;
        }
        slot.state = State::Queued;
        slot.cookie = slot.cookie.wrapping_add(1 << INDEX_BITS);
        slot.df = false;
        slot.arrived.clear();
        slot.error = None;
        true
    }

    /// Records the server's answer to a request.
    #[inline]
    pub fn answer(&mut self, index: u16, result: Result<(), CommandError>) {
        self[index].answer = Some(result);
    }

    /// Marks a request lost at the end of the session if it has no answer, and drops the rest of
    /// it. `false`: it had ended.
    pub fn lose(&mut self, index: u16) -> bool {
        let slot = &mut self[index];
        let over = slot.state == State::Free && !canary::has(Bug::EndedTwice);
        if over || slot.state == State::Ended {
            return false;
        }
        slot.state = State::Sent;
        slot.answer = slot.answer.or(Some(Err(CommandError::Lost)));
        true
    }

    /// Ends a request if nothing refers to it any more; `true`: it has ended just now.
    #[inline]
    pub fn end_if_idle(&mut self, index: u16) -> bool {
        let slot = &mut self[index];
        let idle = slot.state == State::Sent && slot.lent == 0 && slot.answer.is_some();
        if idle {
            slot.state = State::Ended;
        }
        idle
    }

    /// Frees the slot of a request that has ended.
    #[inline]
    pub fn free(&mut self, index: u16) -> Completed {
        let slot = &mut self[index];
        assert!(slot.state == State::Ended, "a request that has not ended");
        let Some(result) = slot.answer else {
            unreachable!("a request ends with its answer");
        };
        slot.state = State::Free;
        slot.cookie = slot.cookie.wrapping_add(1 << INDEX_BITS);
        let end = Completed {
            token: slot.request.token,
            result,
        };
        self.free.push(index);
        end
    }

    /// Keeps an extent, which begins at the end of the one before, if there is room.
    pub fn add_extent(&mut self, index: u16, extent: Extent) {
        self[index].has_status = true;
        if let Some(extents) = self.extents.get_mut(usize::from(index)) {
            extents.add(extent);
        }
    }

    /// Returns the extents of the Block Status that was last in this slot.
    pub fn extents(&self, index: u16) -> &[Extent] {
        let answer = self
            .all
            .get(usize::from(index))
            .and_then(|slot| slot.answer);
        match self.extents.get(usize::from(index)) {
            Some(extents) if answer == Some(Ok(())) => &extents.list[..extents.len],
            _ => &[],
        }
    }

    /// Capacity for requests.
    #[cfg(test)]
    pub fn capacity(&self) -> (usize, usize) {
        (self.free.capacity(), self.lenders.capacity())
    }
}

impl core::ops::Index<u16> for Slots {
    type Output = Slot;
    #[inline]
    fn index(&self, index: u16) -> &Slot {
        &self.all[usize::from(index)]
    }
}

impl core::ops::IndexMut<u16> for Slots {
    #[inline]
    fn index_mut(&mut self, index: u16) -> &mut Slot {
        &mut self.all[usize::from(index)]
    }
}
