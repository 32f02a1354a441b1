//! I/Os larger than what one command may carry: how they are cut, and what becomes of the pieces.
//!
//! The slot of such an I/O carries one piece after the other; while slots are free, *helpers* carry
//! further ones beside it. Each piece goes the whole way of an I/O: path, hold, failover, FUA,
//! sample. What was cut for a wider path and must go to a narrower one is cut again, and its parts
//! go one after the other in the slot that it has.
//!
//! # Contract
//! Pieces are cut in order of offset, with the limits that hold at that moment: never larger than
//! what every path carries, and no read or write crosses the volume's boundary (NOIOB). After a
//! failure nothing more is cut. The I/O ends once, after all its pieces, with the outcome of the
//! failed piece of the lowest offset, and its path: as pieces are cut in order, all before it was
//! done. Where none failed, the path is that of the last one.
//!
//! Order (T9). A change that is cut is in the table of held writes, with its whole range, from its
//! beginning to its end. So a newer change that overlaps it waits until all of it has ended, also
//! while a piece of it is held or not yet cut; and it begins only when no older entry overlaps it,
//! and stays first from then on. What was given to a path before it began is under way together
//! with it and has no order, as between any two writes under way together. A piece needs no entry
//! of its own: no two pieces overlap, and whoever overlaps one overlaps the whole.
//!
//! Durability (T13). What a controller had in its cache may be given up after it has done a piece:
//! the flush that fails for that says nothing of an I/O that has not ended. So a change that ends
//! after that is done again, all of it, before anybody hears of its end.
//!
//! # Limits
//! [`PIECES_MAX`] pieces of one I/O are under way; helpers have at most half of all slots. One slot
//! is enough, so a table full of large I/Os goes on. Hops, repetitions and the time spent in
//! attempts are bounded per piece (T4), and the pieces are finite.
use super::HostEngine;
use super::fence::range;
use super::io_table::{IoState, IoTable, Kind, NONE};
use super::types::{Io, IoOp, NO_PATH};
use crate::limits::{AGAIN_MAX, PIECES_MAX};
use crate::machine::Span;
use alloc::vec::Vec;
use block::IoLimits;
use block::order::Ticket as Place;
use policy::PathIndex;
use volume::Outcome;

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
pub(super) fn cut(limits: &IoLimits, op: IoOp, offset: u64, length: u32) -> u32 {
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
pub(super) fn carries(limits: &IoLimits, io: &Io) -> bool {
    io.length <= of_op(limits, io.op).0
}

/// An I/O up to so many bytes is never cut, whatever it does and wherever it lies.
pub(super) fn whole_max(limits: &IoLimits) -> u32 {
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

/// What a slot carries beside one whole I/O.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// All of the I/O.
    whole: Io,
    /// Bytes of it that were cut off so far.
    cursor: u32,
    /// Its own slot carries a piece now.
    carrying: bool,
    /// Pieces under way in other slots.
    helpers: u16,
    /// Pieces are being given out, further up the stack.
    busy: bool,
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
            carrying: false,
            helpers: 0,
            busy: false,
            failed: None,
            path: NO_PATH,
            given_up: 0,
            owner: NONE,
            rest: 0,
        }
    }
}

/// What the slots carry, by slot.
pub(super) struct Splits {
    table: Vec<Split>,
    /// Slots that are helpers, and how many may be.
    helpers: u32,
    helpers_max: u32,
}

impl Splits {
    /// For so many I/Os, and so many slots beside them: any slot may become any I/O's.
    pub(super) fn new(slots: u32, spare: u32, io: Io) -> Self {
        Self {
            table: alloc::vec![Split::of(io); (slots + spare) as usize],
            helpers: 0,
            helpers_max: slots / 2,
        }
    }

    fn of(&mut self, index: u32) -> &mut Split {
        &mut self.table[index as usize]
    }

    /// A piece in slot `index` has ended; the I/O that it belongs to.
    fn piece_over(
        &mut self,
        ios: &mut IoTable,
        index: u32,
        outcome: Outcome,
        path: PathIndex,
    ) -> u32 {
        let slot = ios.get(index);
        let (offset, helper) = (slot.io.offset, slot.kind == Kind::Helper);
        let owner = if helper { self.of(index).owner } else { index };
        if helper {
            ios.free(index);
            self.helpers -= 1;
        } else {
            ios.set_state(index, IoState::Pieces);
        }
        let split = self.of(owner);
        if helper {
            split.helpers -= 1;
        } else {
            split.carrying = false;
        }
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

    /// How the I/O in slot `index` ended, once all its pieces have.
    fn result(&mut self, index: u32) -> Option<(Outcome, PathIndex)> {
        let split = self.of(index);
        if split.carrying || split.helpers > 0 || split.busy {
            return None;
        }
        match split.failed {
            Some((_, outcome)) => Some((outcome, split.path)),
            None if split.cursor < split.whole.length => None,
            None => Some((Outcome::Done, split.path)),
        }
    }

    /// The engine stops: an I/O that is in no lane any more has failed, whatever it carries.
    /// The place among changes of the I/O that ended with it, if one did and had one.
    pub(super) fn fail(&mut self, ios: &mut IoTable, index: u32, now_ns: u64) -> Option<Place> {
        let slot = ios.get(index);
        if !slot.kind.is_piece() {
            let place = slot.fence;
            ios.end(index, Outcome::Stopped, NO_PATH, now_ns);
            return place;
        }
        let owner = self.piece_over(ios, index, Outcome::Stopped, NO_PATH);
        let (outcome, path) = self.result(owner)?;
        let place = ios.get(owner).fence;
        ios.end(owner, outcome, path, now_ns);
        place
    }
}

impl HostEngine {
    /// Begins an I/O that has to be cut.
    #[cold]
    pub(super) fn split(&mut self, index: u32, now_ns: u64) {
        let slot = self.ios.get_mut(index);
        slot.kind = Kind::Cut;
        slot.watched = true;
        let io = slot.io;
        self.note_whole(index, io);
        if !self.fence_whole(index) {
            self.cut_on(index, now_ns);
        }
    }

    /// An I/O is cut from now on.
    fn note_whole(&mut self, index: u32, io: Io) {
        *self.splits.of(index) = Split {
            given_up: self.volumes[usize::from(io.volume)].losses.generation(),
            ..Split::of(io)
        };
    }

    /// All of an I/O that was cut is done: how it ends; `None`: it is to be done again, for a
    /// controller has perhaps lost some of it, and whoever flushed was told before it ended (T13).
    fn settle_whole(&mut self, index: u32) -> Option<Outcome> {
        let &mut Split {
            whole, given_up, ..
        } = self.splits.of(index);
        let it = &mut self.volumes[usize::from(whole.volume)];
        if given_up == it.losses.generation() || range(&whole).is_none() {
            return Some(Outcome::Done);
        }
        let history = &mut self.ios.get_mut(index).history;
        if history.again == AGAIN_MAX {
            return Some(Outcome::PathError);
        }
        history.again += 1;
        it.totals.again_bytes_total += u64::from(whole.length);
        self.note_whole(index, whole);
        None
    }

    /// Registers a change that is cut with the fence; true: it must wait itself, and does.
    fn fence_whole(&mut self, index: u32) -> bool {
        let volume = usize::from(self.ios.get(index).io.volume);
        let waits = self.volumes[volume].fence.admit_whole(&mut self.ios, index);
        if let Some(wait) = waits {
            self.explain_wait(index, wait, self.ios.get(index).placed_ns);
        }
        waits.is_some()
    }

    /// Places a change that the fence has released: all of it, if it is to be cut.
    pub(super) fn resume_change(&mut self, index: u32, now_ns: u64) {
        self.exclude_wait(index, now_ns);
        if self.ios.get(index).kind == Kind::Cut {
            self.cut_on(index, now_ns);
        } else {
            self.place_again(index, now_ns);
        }
    }

    /// Cuts off and places as many pieces as there may be now; ends the I/O after the last.
    pub(super) fn cut_on(&mut self, index: u32, now_ns: u64) {
        let split = self.splits.of(index);
        if core::mem::replace(&mut split.busy, true) {
            return; // a piece ended at once: the caller further up the stack goes on
        }
        let (outcome, path) = loop {
            while let Some((carrier, piece)) = self.next_piece(index, now_ns) {
                self.splits.of(index).cursor += piece.length;
                self.place_again(carrier, now_ns);
            }
            self.splits.of(index).busy = false;
            let Some((outcome, path)) = self.splits.result(index) else {
                return; // the end of a piece, or a free slot, goes on with it
            };
            if !outcome.is_done() {
                break (outcome, path);
            }
            if let Some(outcome) = self.settle_whole(index) {
                break (outcome, path);
            }
            self.splits.of(index).busy = true;
        };
        self.ios.get_mut(index).kind = Kind::Whole;
        self.end(index, outcome, path, now_ns);
    }

    /// The next piece, in the slot that carries it; `None`: no slot, or nothing is left, or one has
    /// failed.
    fn next_piece(&mut self, index: u32, now_ns: u64) -> Option<(u32, Io)> {
        let split = self.splits.of(index);
        let left = split.whole.length - split.cursor;
        if left == 0 || split.failed.is_some() {
            return None;
        }
        let (whole, cursor, carrying, helpers) =
            (split.whole, split.cursor, split.carrying, split.helpers);
        let offset = whole.offset + u64::from(cursor);
        let Some(limits) = self.cut_limits(whole.volume) else {
            // Its volume was removed, and nothing can carry the rest.
            self.splits.of(index).failed = Some((offset, Outcome::Stopped));
            return None;
        };
        let piece = part(&whole, cursor, cut(&limits, whole.op, offset, left));
        if !carrying {
            self.splits.of(index).carrying = true;
            // The first piece is placed by the caller that placed the whole.
            if self.ios.get(index).state() == IoState::Pieces {
                self.ios.set_state(index, IoState::Placing);
            }
            let slot = self.ios.get_mut(index);
            let spent_ns = now_ns.saturating_sub(slot.started_ns);
            slot.io = piece;
            // Bounds are per piece.
            let history = &mut slot.history;
            (history.hops, history.failed, history.retries) = (0, 0, 0);
            history.excused_ms = u32::try_from(spent_ns / 1_000_000).unwrap_or(u32::MAX);
            return Some((index, piece));
        }
        if helpers + 1 >= PIECES_MAX || self.splits.helpers == self.splits.helpers_max {
            return None;
        }
        let hints = self.ios.get(index).hints;
        let helper = self.ios.take(&piece, hints, now_ns)?;
        let slot = self.ios.get_mut(helper);
        slot.kind = Kind::Helper;
        slot.watched = true;
        (self.splits.of(helper).owner, self.splits.of(helper).rest) = (index, 0);
        self.splits.of(index).helpers += 1;
        self.splits.helpers += 1;
        Some((helper, piece))
    }

    /// What I/O is cut to: also in a volume that is being removed, whose I/O is still under way.
    fn cut_limits(&self, volume: u16) -> Option<IoLimits> {
        let head = &self.volumes[usize::from(volume)].head;
        self.limits(volume).or_else(|| head.limits())
    }

    /// A piece has ended for good; or a part of one that was cut again.
    #[cold]
    pub(super) fn piece_ended(
        &mut self,
        index: u32,
        outcome: Outcome,
        path: PathIndex,
        now_ns: u64,
    ) {
        let slot = self.ios.get_mut(index);
        let recut = slot.recut;
        if recut {
            let rest = core::mem::take(&mut self.splits.of(index).rest);
            if rest > 0 && outcome.is_done() {
                let done = slot.io.length;
                slot.io = part(&slot.io, done, rest);
                return self.place_again(index, now_ns);
            }
            slot.recut = false;
        }
        if !slot.kind.is_piece() {
            let settled = match recut && outcome.is_done() {
                true => self.settle_whole(index),
                false => Some(outcome),
            };
            let Some(outcome) = settled else {
                self.ios.get_mut(index).io = self.splits.of(index).whole;
                return self.place_again(index, now_ns);
            };
            return self.end(index, outcome, path, now_ns);
        }
        let owner = self.splits.piece_over(&mut self.ios, index, outcome, path);
        self.cut_on(owner, now_ns);
    }

    /// The paths that can carry an I/O, as bits. Where some that are wanted are usable and none of
    /// those can, it is cut so that all can. `None`: it has to wait behind others first, and does.
    pub(super) fn able(&mut self, index: u32, wanted: u64) -> Option<u64> {
        let io = self.ios.get(index).io;
        let head = &self.volumes[usize::from(io.volume)].head;
        let usable = head.usable_among(wanted);
        let able = head.among(|limits| carries(limits, &io));
        if usable == 0 || usable & able != 0 {
            return Some(able);
        }
        (!self.recut(index)).then_some(u64::MAX)
    }

    /// Cuts what was cut for wider paths, or not at all; true: it must wait behind others first.
    fn recut(&mut self, index: u32) -> bool {
        let io = self.ios.get(index).io;
        let Some(limits) = self.cut_limits(io.volume) else {
            unreachable!("a volume with a usable path has limits");
        };
        let slot = self.ios.get(index);
        let alone = !slot.kind.is_piece();
        let again = slot.recut;
        if alone && !again {
            self.note_whole(index, io);
        }
        let waits = alone && self.fence_whole(index);
        let length = cut(&limits, io.op, io.offset, io.length);
        let split = self.splits.of(index);
        split.rest = io.length - length + if again { split.rest } else { 0 };
        let slot = self.ios.get_mut(index);
        slot.io = part(&io, 0, length);
        slot.recut = true;
        slot.watched = true;
        waits
    }
}

#[cfg(test)]
mod tests;
