//! State of cut I/Os, by slot: which bytes were cut off, which pieces are under way, and how
//! the I/O ends ([`super::super::split`] has the rules).
//!
//! # Limits
//! Helpers have at most half of all slots.
use super::super::types::{Hints, Io, IoOp, NO_PATH};
use super::{EMPTY, IoState, IoTable, Kind, NONE};
use crate::limits::PIECES_MAX;
use crate::machine::Span;
use alloc::vec::Vec;
use block::IoLimits;
use block::order::Ticket as Place;
use multipath::Outcome;
use policy::PathIndex;

/// Most bytes of one command of this kind, and what a multiple of must not be inside it (0: none).
fn of_op(limits: &IoLimits, op: IoOp) -> (u32, u32) {
    match op {
        IoOp::Read | IoOp::Write { .. } => (limits.transfer_max, limits.boundary),
        IoOp::WriteZeroes { .. } => (limits.write_zeroes_max, 0),
        IoOp::Deallocate => (limits.deallocate_max, 0),
        IoOp::Flush => (u32::MAX, 0),
    }
}

/// Bytes of the first piece of `length` bytes at `offset`.
pub(in super::super) fn cut(limits: &IoLimits, op: IoOp, offset: u64, length: u32) -> u32 {
    let (most, boundary) = of_op(limits, op);
    let to_boundary = match boundary {
        0 => u32::MAX,
        // Below `boundary`, so it fits.
        boundary => boundary - (offset % u64::from(boundary)) as u32,
    };
    length.min(most).min(to_boundary)
}

/// Whether a path with these limits can carry `io` as one command; crossing a boundary is only
/// slow.
pub(in super::super) fn carries(limits: &IoLimits, io: &Io) -> bool {
    io.length <= of_op(limits, io.op).0
}

/// An I/O up to so many bytes is never cut, whatever it does and wherever it lies.
pub(in super::super) fn whole_max(limits: &IoLimits) -> u32 {
    if limits.boundary > 0 {
        return 0;
    }
    limits
        .transfer_max
        .min(limits.write_zeroes_max)
        .min(limits.deallocate_max)
}

/// `length` bytes of `io`, from its byte `from` on.
fn part(io: &Io, from: u32, length: u32) -> Io {
    let data = matches!(io.op, IoOp::Read | IoOp::Write { .. });
    let span = Span {
        at: io.span.at + u64::from(from),
        len: length,
    };
    Io {
        offset: io.offset + u64::from(from),
        length,
        span: if data { span } else { io.span },
        ..*io
    }
}

/// State of one cut I/O, or of one piece in a slot of its own.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// All of the I/O.
    whole: Io,
    /// Bytes of it that were cut off so far.
    cursor: u32,
    /// Its own slot carries a piece now.
    is_carrying: bool,
    /// Pieces under way in other slots.
    helpers: u16,
    /// A caller further up the stack places pieces.
    is_placing: bool,
    /// The failed piece of the lowest offset.
    failed: Option<(u64, Outcome)>,
    /// Its path; if none failed, that of the last piece that ended.
    path: PathIndex,
    /// How often its volume had given up unflushed writes when it began.
    given_up: u32,
    /// A helper: whose.
    owner: u32,
    /// A piece that was cut again: bytes behind the part under way.
    rest: u32,
}

impl Split {
    /// Nothing of it was cut off.
    fn of(whole: Io) -> Self {
        Self {
            whole,
            cursor: 0,
            is_carrying: false,
            helpers: 0,
            is_placing: false,
            failed: None,
            path: NO_PATH,
            given_up: 0,
            owner: NONE,
            rest: 0,
        }
    }
}

/// The cut I/Os, by slot.
pub(super) struct Splits {
    table: Vec<Split>,
    /// Slots that are helpers, and how many may be.
    helpers: u32,
    helpers_max: u32,
}

impl Splits {
    /// For so many I/Os, and so many slots beside them: any slot may become any I/O's.
    pub(super) fn new(slots: u32, spare: u32) -> Self {
        Self {
            table: alloc::vec![Split::of(EMPTY); (slots + spare) as usize],
            helpers: 0,
            helpers_max: slots / 2,
        }
    }

    fn of(&mut self, index: u32) -> &mut Split {
        &mut self.table[index as usize]
    }

    /// How the I/O in slot `index` ended, once all its pieces have.
    fn result(&mut self, index: u32) -> Option<(Outcome, PathIndex)> {
        let split = self.of(index);
        if split.is_carrying || split.helpers > 0 || split.is_placing {
            return None;
        }
        match split.failed {
            Some((_, outcome)) => Some((outcome, split.path)),
            None if split.cursor < split.whole.length => None,
            None => Some((Outcome::Done, split.path)),
        }
    }
}

impl IoTable {
    /// An I/O is cut from now on: all of `io`, of a volume that had given up unflushed writes
    /// `given_up` times.
    pub(in super::super) fn begin_whole(&mut self, index: u32, io: Io, given_up: u32) {
        *self.splits.of(index) = Split {
            given_up,
            ..Split::of(io)
        };
    }

    /// All of an I/O that is cut, and how often its volume had given up unflushed writes when it
    /// began.
    pub(in super::super) fn whole(&self, index: u32) -> (Io, u32) {
        let split = &self.splits.table[index as usize];
        (split.whole, split.given_up)
    }

    /// Begins to place pieces of an I/O; false: a caller further up the stack does.
    pub(in super::super) fn begin_placing(&mut self, index: u32) -> bool {
        !core::mem::replace(&mut self.splits.of(index).is_placing, true)
    }

    /// Ends that. Returns how the I/O ended; `None`: the end of a piece, or a free slot, goes on
    /// with it.
    pub(in super::super) fn end_placing(&mut self, index: u32) -> Option<(Outcome, PathIndex)> {
        self.splits.of(index).is_placing = false;
        self.splits.result(index)
    }

    /// Cuts off the next piece, by the limits of its volume. Returns the slot that carries it;
    /// `None`: no slot is free, or nothing is left, or a piece has failed, or the volume was
    /// removed and has no limits.
    pub(in super::super) fn next_piece(
        &mut self,
        index: u32,
        limits: Option<IoLimits>,
        now_ns: u64,
    ) -> Option<u32> {
        let split = self.splits.of(index);
        let left = split.whole.length - split.cursor;
        if left == 0 || split.failed.is_some() {
            return None;
        }
        let offset = split.whole.offset + u64::from(split.cursor);
        let Some(limits) = limits else {
            split.failed = Some((offset, Outcome::Stopped));
            return None; // the volume was removed, and nothing can carry the rest
        };
        let length = cut(&limits, split.whole.op, offset, left);
        let piece = part(&split.whole, split.cursor, length);
        let carrier = if split.is_carrying {
            self.take_helper(index, &piece, now_ns)?
        } else {
            split.is_carrying = true;
            self.carry(index, piece, now_ns);
            index
        };
        self.splits.of(index).cursor += length;
        Some(carrier)
    }

    /// Puts a piece into the slot of its I/O.
    fn carry(&mut self, index: u32, piece: Io, now_ns: u64) {
        // The first piece is placed by the caller that placed the whole.
        if self.get(index).state() == IoState::Pieces {
            self.set_state(index, IoState::Placing);
        }
        let slot = self.get_mut(index);
        let spent_ns = now_ns.saturating_sub(slot.started_ns);
        slot.io = piece;
        // Bounds are per piece.
        let history = &mut slot.history;
        history.hops = 0;
        history.failed = 0;
        history.retries = 0;
        history.excused_ms = u32::try_from(spent_ns / 1_000_000).unwrap_or(u32::MAX);
    }

    /// Takes a slot for a piece of the I/O in slot `owner`; `None`: it has enough, or none is free.
    fn take_helper(&mut self, owner: u32, piece: &Io, now_ns: u64) -> Option<u32> {
        let helpers = self.splits.of(owner).helpers;
        if helpers + 1 >= PIECES_MAX || self.splits.helpers == self.splits.helpers_max {
            return None;
        }
        let hints: Hints = self.get(owner).hints;
        let helper = self.take(piece, hints, now_ns)?;
        let slot = self.get_mut(helper);
        slot.kind = Kind::Helper;
        slot.watched = true;
        let split = self.splits.of(helper);
        split.owner = owner;
        split.rest = 0;
        self.splits.of(owner).helpers += 1;
        self.splits.helpers += 1;
        Some(helper)
    }

    /// Cuts what was cut for wider paths, or not at all: the slot carries the first part from now
    /// on, and the rest later.
    pub(in super::super) fn recut(&mut self, index: u32, limits: &IoLimits) {
        let slot = self.get(index);
        let (io, again) = (slot.io, slot.recut);
        let length = cut(limits, io.op, io.offset, io.length);
        let split = self.splits.of(index);
        split.rest = io.length - length + if again { split.rest } else { 0 };
        let slot = self.get_mut(index);
        slot.io = part(&io, 0, length);
        slot.recut = true;
        slot.watched = true;
    }

    /// A part of a piece that was cut again has ended. Returns whether the slot carries the rest
    /// now; it doesn't after a failure, or where none is left.
    pub(in super::super) fn carry_rest(&mut self, index: u32, outcome: Outcome) -> bool {
        let rest = core::mem::take(&mut self.splits.of(index).rest);
        let slot = self.get_mut(index);
        let goes_on = rest > 0 && outcome.is_done();
        if goes_on {
            slot.io = part(&slot.io, slot.io.length, rest);
        } else {
            slot.recut = false;
        }
        goes_on
    }

    /// A piece in slot `index` has ended; the I/O that it belongs to.
    pub(in super::super) fn piece_over(
        &mut self,
        index: u32,
        outcome: Outcome,
        path: PathIndex,
    ) -> u32 {
        let slot = self.get(index);
        let (offset, helper) = (slot.io.offset, slot.kind == Kind::Helper);
        let owner = if helper {
            self.splits.of(index).owner
        } else {
            index
        };
        if helper {
            self.free(index);
            self.splits.helpers -= 1;
            self.splits.of(owner).helpers -= 1;
        } else {
            self.set_state(index, IoState::Pieces);
            self.splits.of(owner).is_carrying = false;
        }
        let split = self.splits.of(owner);
        match (outcome.is_done(), split.failed) {
            (true, None) => split.path = path,
            (true, Some(_)) => {}
            (false, Some((lowest, _))) if lowest < offset => {}
            (false, _) => {
                split.failed = Some((offset, outcome));
                split.path = path;
            }
        }
        owner
    }

    /// The engine stops: an I/O that is in no lane any more has failed, whatever it carries.
    /// Returns the place among changes of the I/O that ended with it, if one did and had one.
    pub(in super::super) fn fail(&mut self, index: u32, now_ns: u64) -> Option<Place> {
        let slot = self.get(index);
        if !slot.kind.is_piece() {
            let place = slot.fence;
            self.end(index, Outcome::Stopped, NO_PATH, now_ns);
            return place;
        }
        let owner = self.piece_over(index, Outcome::Stopped, NO_PATH);
        let (outcome, path) = self.splits.result(owner)?;
        let place = self.get(owner).fence;
        self.end(owner, outcome, path, now_ns);
        place
    }
}

#[cfg(test)]
mod tests;
