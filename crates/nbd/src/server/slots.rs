//! The requests of one session, from their header to the last byte of their reply.
//!
//! # Limits
//! As many as [`Slots::open`] was told. The first request takes the memory of all of them: a client
//! that is connected and idle has none.
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::EXTENTS_MAX;
use crate::shape::Refusal;
use crate::{Errno, Extent, Kind, Request};

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Its header is being looked at, or its data skipped.
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

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub errno: Errno,
    /// For people; perhaps empty.
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

    /// The same as it may be said of this request: EOVERFLOW and ENOTSUP have one use each (Error
    /// values; exports that zero offer fast zeroes), and an offset must lie inside.
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
    /// The reply must have one chunk of content at most.
    pub df: bool,
    pub cookie: u64,
    pub request: Request,
    pub failure: Option<Failure>,
    /// Bytes received of a write, or handed out of a read.
    pub done: u32,
    /// Bytes of a read that its reply has.
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

/// What a Block Status is answered with.
#[derive(Clone, Copy, Debug, Default)]
struct Extents {
    list: [Extent; EXTENTS_MAX],
    len: usize,
}

/// All of them. Indices of taken slots are valid, by construction; others panic.
#[derive(Debug)]
pub(super) struct Slots {
    all: Box<[Slot]>,
    /// How many there are to be, and whether Block Status may be asked.
    most: u16,
    block_status: bool,
    free: Vec<u16>,
    /// By slot; empty where Block Status isn't asked.
    extents: Box<[Extents]>,
}

impl Slots {
    /// None yet.
    pub fn new() -> Self {
        Self {
            all: Box::default(),
            most: 0,
            block_status: false,
            free: Vec::new(),
            extents: Box::default(),
        }
    }

    /// There will be room for `count` requests, and for answers to Block Status.
    pub fn open(&mut self, count: u16, block_status: bool) {
        (self.most, self.block_status) = (count, block_status);
    }

    /// Room for all of them.
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

    /// A slot for a request. The caller saw that there is one.
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
        debug_assert!(slot.state != State::Free && slot.sends == 0);
        slot.state = State::Free;
        if let Some(extents) = self.extents.get_mut(usize::from(index)) {
            extents.len = 0;
        }
        self.free.push(index);
    }

    /// Keeps what of `extents` the reply may say (Structured reply types, BLOCK_STATUS): nothing
    /// empty, nothing beyond the request, one where one was asked for.
    pub fn set_extents(&mut self, index: u16, extents: &[Extent]) {
        let request = self[index].request;
        let Some(kept) = self.extents.get_mut(usize::from(index)) else {
            return;
        };
        let most = match request.kind {
            Kind::BlockStatus { one: true } => 1,
            _ => EXTENTS_MAX,
        };
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

    /// What a Block Status is answered with; never empty. What isn't known counts as allocated.
    pub fn extents(&mut self, index: u16) -> &[Extent] {
        let length = self[index].request.length;
        let Some(kept) = self.extents.get_mut(usize::from(index)) else {
            return &[];
        };
        if kept.len == 0 {
            kept.list[0] = Extent { length, flags: 0 };
            kept.len = 1;
        }
        &kept.list[..kept.len]
    }

    /// Room set aside.
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
