//! The requests of one session, from their header to the last byte of their reply.
//!
//! # Limits
//! The number given to [`Slots::open`]. The first request allocates the memory of all of them: a
//! client that is connected and idle uses none.
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::EXTENTS_MAX;
use crate::shape::Refusal;
use crate::{Errno, Extent, Kind, Request};

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Its header is being checked, or its data skipped.
    Taken,
    /// The driver was asked for a buffer.
    AwaitBuffer,
    /// Its data arrives.
    Receiving,
    /// The driver executes it.
    Backend,
    /// Its reply is queued.
    Reply,
    /// All of the reply was handed out; the driver still reads some of it.
    Unsent,
}

/// Failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub errno: Errno,
    /// Text for people; may be empty.
    pub why: &'static str,
    /// The byte of the export that it concerns.
    pub at: Option<u64>,
}

impl Failure {
    pub fn new(errno: Errno) -> Self {
        Self {
            errno,
            why: "",
            at: None,
        }
    }

    /// Adapts the error to the request: EOVERFLOW and ENOTSUP have one use each (Error values;
    /// exports that zero offer fast zeroes), and an offset must lie inside.
    pub fn fit(mut self, request: &Request, df: bool) -> Self {
        let legal = match self.errno {
            Errno::Overflow => df,
            Errno::NotSup => request.kind == Kind::WriteZeroes,
            _ => true,
        };
        if !legal {
            self.errno = Errno::Inval;
        }
        let inside = |at: &u64| {
            at.checked_sub(request.offset)
                .is_some_and(|distance| distance < request.length.into())
        };
        self.at = self.at.filter(inside);
        self
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self {
            why: refusal.why,
            ..Self::new(refusal.errno)
        }
    }
}

/// One request.
#[derive(Debug)]
pub(super) struct Slot {
    pub state: State,
    /// The driver knows the token: it gets a Release.
    pub named: bool,
    /// The reply may have one chunk of content at most.
    pub df: bool,
    pub cookie: u64,
    pub request: Request,
    pub failure: Option<Failure>,
    /// Bytes received of a write, or handed out of a read.
    pub done: u32,
    /// Bytes of a read that its reply carries.
    pub data: u32,
    /// Payloads handed to the driver and not yet reported sent.
    pub sends: u32,
}

impl Slot {
    fn new() -> Self {
        Self {
            state: State::Free,
            named: false,
            df: false,
            cookie: 0,
            request: Request::flush(0),
            failure: None,
            done: 0,
            data: 0,
            sends: 0,
        }
    }
}

/// Extents of the answer to a Block Status.
#[derive(Clone, Copy, Debug, Default)]
struct Extents {
    list: [Extent; EXTENTS_MAX],
    len: usize,
}

/// All slots. Indices of taken slots are valid, by construction; others panic.
#[derive(Debug)]
pub(super) struct Slots {
    all: Box<[Slot]>,
    /// Number of slots, and whether Block Status was agreed.
    most: u16,
    block_status: bool,
    free: Vec<u16>,
    /// By slot; empty where Block Status was not agreed.
    extents: Box<[Extents]>,
}

impl Slots {
    /// No slots yet.
    pub fn new() -> Self {
        Self {
            all: Box::default(),
            most: 0,
            block_status: false,
            free: Vec::new(),
            extents: Box::default(),
        }
    }

    /// Sets the number of slots, and whether answers to Block Status need room.
    pub fn open(&mut self, count: u16, block_status: bool) {
        (self.most, self.block_status) = (count, block_status);
    }

    /// Allocates all of them.
    pub fn make(&mut self) {
        let (count, block_status) = (self.most, self.block_status);
        self.all = (0..count).map(|_| Slot::new()).collect();
        self.free = (0..count).rev().collect();
        let answers = if block_status { count } else { 0 };
        self.extents = (0..answers).map(|_| Extents::default()).collect();
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty() && !self.all.is_empty()
    }

    pub fn used(&self) -> u16 {
        (self.all.len() - self.free.len()) as u16
    }

    pub fn count(&self) -> u16 {
        self.all.len() as u16
    }

    /// Takes a slot for a request. The caller has checked that one is free.
    #[inline]
    pub fn take(&mut self, cookie: u64) -> u16 {
        let Some(index) = self.free.pop() else {
            panic!("room is checked before a header is read");
        };
        let slot = &mut self[index];
        slot.state = State::Taken;
        slot.named = false;
        slot.df = false;
        slot.cookie = cookie;
        slot.failure = None;
        slot.done = 0;
        index
    }

    #[inline]
    pub fn put_back(&mut self, index: u16) {
        let slot = &mut self[index];
        assert!(slot.state != State::Free, "a request is freed twice");
        assert!(
            slot.sends == 0,
            "a request is freed while its payload is sent"
        );
        slot.state = State::Free;
        if let Some(extents) = self.extents.get_mut(usize::from(index)) {
            extents.len = 0;
        }
        self.free.push(index);
    }

    /// Keeps the part of `extents` that the reply may carry (Structured reply types, BLOCK_STATUS):
    /// nothing empty, nothing beyond the request, a single one if the request says so.
    pub fn set_extents(&mut self, index: u16, extents: &[Extent]) {
        let request = self[index].request;
        let most = match request.kind {
            Kind::BlockStatus { one: true } => 1,
            Kind::BlockStatus { one: false } => EXTENTS_MAX,
            kind => panic!("extents in answer to {kind:?}"),
        };
        // Block Status was agreed, so every slot has room for extents.
        let kept = &mut self.extents[usize::from(index)];
        kept.len = 0;
        let mut left = request.length;
        for extent in extents.iter().filter(|extent| extent.length > 0) {
            if left == 0 || kept.len == most {
                break;
            }
            let length = extent.length.min(left);
            left -= length;
            kept.list[kept.len] = Extent {
                length,
                flags: extent.flags,
            };
            kept.len += 1;
        }
    }

    /// Extents of the answer to a Block Status; never empty. Bytes of unknown status count as
    /// allocated.
    pub fn extents(&mut self, index: u16) -> &[Extent] {
        let length = self[index].request.length;
        // Block Status was agreed, so every slot has room for extents.
        let kept = &mut self.extents[usize::from(index)];
        if kept.len == 0 {
            kept.list[0] = Extent { length, flags: 0 };
            kept.len = 1;
        }
        &kept.list[..kept.len]
    }

    /// Capacity for requests.
    #[cfg(test)]
    pub fn capacity(&self) -> (usize, usize, usize) {
        (self.all.len(), self.free.capacity(), self.extents.len())
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
