//! Reads of users: which legs may serve one, and retries on others.
//!
//! # Contract
//! A read goes to a leg that has all of it: in sync or being rebuilt, and where none of these can
//! be read, a stale one (`spare`). A failed read is counted, and where another leg had the data
//! they are rewritten (T5). Data of a leg that has left meanwhile are read again from another.
//! Where several legs had medium errors, or one had and a leg that is not in sync has a part, the
//! range is read in pieces of [`PIECE`] bytes, at last of a block. A leg that did not answer in a
//! short time, while another one had the data, is asked once more if those others have left. The
//! read fails when no leg can read a piece.
//!
//! # Limits
//! The pieces of a read go one after the other. Their failures are not counted again. While a leg
//! returns, until its superblocks and bitmap are read, it serves no read: one that no other leg can
//! serve fails then.
use super::legs::{Legs, Round, Ticket, Work};
use super::planted::{Bug, has};
use super::requests::{Phase, Slot};
use super::{Mirror, Output, Request};
use crate::{Access, LegAttempt, LegDisposition, dispose_leg};
use block::Outcome;
use block::Range;

/// First size of pieces, bytes.
const PIECE: u64 = 4096;

/// No pieces: all that is left.
const WHOLE: u64 = 1 << 62;

/// How long a leg is waited for that was asked for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No longer than one answer takes: another leg has it too.
    Briefly,
    /// As long as it is tried at all.
    Long,
}

impl Slot {
    /// Whether only a part of it is being read.
    fn is_cut(&self) -> bool {
        self.request
            .reads()
            .is_some_and(|range| range != self.piece)
    }
}

impl Mirror {
    /// Legs that may serve a read which waits for one to be chosen.
    pub fn readers(&self, io: u32) -> Legs {
        match self.ios.get(io) {
            Some(slot) if slot.phase() == Phase::Choosing => self
                .readers_of(&slot)
                .without(self.ownership.leases.lapsed()),
            _ => Legs::default(),
        }
    }

    /// `leg` was chosen for a read, and is waited for so long; `None` if it may not serve it (any
    /// more).
    pub fn take(&mut self, io: u32, leg: u8, wait: Wait) -> Option<Ticket> {
        if !self.readers(io).has(leg) {
            return None;
        }
        self.ios.set_phase(io, Phase::Legs);
        let slot = self.ios.expect(io);
        slot.brief = wait == Wait::Briefly;
        slot.round.waits.add(leg);
        Some(self.outputs.ticket(leg, Work::Io(io)))
    }

    /// No leg may serve a read any more that waits for one to be chosen: it ends.
    pub fn no_reader(&mut self, io: u32) {
        let slot = self.ios.get(io);
        if let Some(slot) = slot.filter(|slot| slot.phase() == Phase::Choosing)
            && !self.reads_wait(io, self.readers_of(&slot))
            && self.readers_of(&slot).is_empty()
        {
            let anyone = self.readers_of_any(&slot);
            let rest = self.bad.fitted(slot.piece, anyone);
            if self.ios.expect(io).ask_silent_again(self.legs.in_sync()) || !rest.1.is_empty() {
                return self.offer_read(io);
            }
            // Those that have not failed have bad blocks there.
            let without = match anyone.is_empty() {
                true => Outcome::PathError,
                false => Outcome::MediaError,
            };
            self.finish(io, slot.round.outcome.unwrap_or(without));
        }
    }

    /// Returns the legs that all have to report a range as a hole before it is one: those in sync,
    /// any of which may serve a read. None where a part may be unreadable or diverged.
    pub fn hole_witnesses(&self, range: Range) -> Legs {
        let is_certain = self.may_be_read(range)
            && !self.ownership.is_lost()
            && !self.legs.has_lost(range)
            && !self
                .generation
                .regions_in(range)
                .any(|region| self.unreadable.has(region))
            && self
                .ownership
                .leases
                .lapsed()
                .both(self.legs.in_sync())
                .is_empty()
            && self.bad.legs_in(self.legs.in_sync(), range).is_empty();
        if is_certain {
            self.legs.in_sync()
        } else {
            Legs::default()
        }
    }

    pub(super) fn readers_of(&self, slot: &Slot) -> Legs {
        let anyone = self.readers_of_any(slot);
        anyone.without(self.bad.legs_in(anyone, slot.piece))
    }

    /// As [`Self::readers_of`], with bad blocks or without.
    fn readers_of_any(&self, slot: &Slot) -> Legs {
        let Request::Read(_) = slot.request else {
            return Legs::default();
        };
        let range = slot.piece;
        let but = slot.round.failed.with(slot.round.refused);
        if self.legs.rebuilding().is_empty() && self.legs.verified().is_empty() {
            return self.legs.in_sync().without(but);
        }
        let spares = match has(Bug::LackingRead) {
            true => self.legs.rebuilding(),
            false => self.legs.rebuilt_in(self.generation.regions_in(range)),
        };
        let legs = match self.legs.in_sync().without(but) {
            up if up.is_empty() || !has(Bug::SpareLacks) => up.with(spares.without(but)),
            up => up,
        };
        // Those that get no writes only where no other can be read.
        let first = Range::new(range.start, 1);
        match self.legs.verified().is_empty() || self.bad.legs_in(legs, first) != legs {
            true => legs,
            false => legs.with(self.waiting_spares(range).without(but)),
        }
    }

    /// Whether a spare was the last resort of what was read.
    fn is_last_resort(&self, slot: &Slot, leg: u8) -> bool {
        let but = slot.round.failed.with(slot.round.refused);
        let in_sync = self.legs.in_sync().has(leg) || !self.legs.in_sync().without(but).is_empty();
        !in_sync && (!slot.unreadable.is_empty() || self.is_verified(leg))
    }

    pub(super) fn read_done(&mut self, id: u32, leg: u8, range: Range, outcome: Outcome) {
        let slot = *self.ios.expect(id);
        // A leg that has left may have lost acknowledged writes: another path to it returns older
        // data.
        let stays = self.may_read(leg) || self.is_verified(leg);
        if !outcome.is_done() {
            self.spare_unread(leg, outcome);
        }
        if outcome.is_done() && stays {
            for bad in slot.unreadable.iter() {
                self.repair(bad, slot.piece);
            }
            if self.is_last_resort(&slot, leg) {
                self.note_rescued(leg, slot.piece);
            }
            return self.piece_read(id, range);
        }
        let outcome = match outcome {
            Outcome::Done => Outcome::PathError,
            other => other,
        };
        let attempt = LegAttempt {
            access: Access::Read,
            another: true,
        };
        let others = !self.readers_of(&slot).is_empty();
        let bad = outcome == Outcome::MediaError;
        if let Some(slot) = self.ios.get_mut(id) {
            if bad {
                slot.unreadable.add(leg);
            }
            if slot.brief && outcome == Outcome::TimedOut {
                slot.silent.add(leg);
            }
        }
        match dispose_leg(outcome, &attempt) {
            LegDisposition::Another { .. } if others => {
                if stays && !slot.is_cut() {
                    self.count_error(leg, outcome);
                }
                // A leg with too many errors has left by now.
                self.offer_read(id);
            }
            LegDisposition::Another { .. }
                if self.ios.expect(id).ask_silent_again(self.legs.in_sync()) =>
            {
                self.offer_read(id)
            }
            LegDisposition::Another { .. } if self.cut(id, range) => self.offer_read(id),
            _ => self.finish(id, outcome),
        }
    }

    /// Offers the next piece of a read to the legs that may serve it.
    pub(super) fn offer_read(&mut self, id: u32) {
        self.ios.set_phase(id, Phase::Choosing);
        let mut slot = *self.ios.expect(id);
        let (piece, fit) = self.bad.fitted(slot.piece, self.readers_of_any(&slot));
        if !fit.is_empty() {
            slot.piece = piece;
            *self.ios.expect(id) = slot;
        }
        let from = self.readers_of(&slot);
        match from.is_empty() {
            true => self.no_reader(id),
            false => self.outputs.push(Output::Read(id, slot.piece, from)),
        }
    }

    /// A piece was read: the next one follows, or the read ends.
    fn piece_read(&mut self, id: u32, range: Range) {
        let slot = self.ios.expect(id);
        slot.bad = slot.bad.without(slot.unreadable);
        if slot.piece.end >= range.end {
            // Somewhere in it; the others have all of it.
            let bad = slot.bad;
            bad.iter().for_each(|leg| self.repair(leg, range));
            return self.finish_read(id, range);
        }
        // Behind what was bad it goes on with larger ones.
        let bytes = if slot.bad.is_empty() { WHOLE } else { PIECE };
        slot.take_piece(slot.piece.end, range, bytes);
        self.offer_read(id);
    }

    /// Cuts a piece that no leg could read. Returns whether smaller ones may be read.
    fn cut(&mut self, id: u32, range: Range) -> bool {
        let block = self.generation.proposed().geometry.block_bytes();
        let Some(slot) = self.ios.get(id) else {
            return false;
        };
        let bytes = slot.piece.end - slot.piece.start;
        let smaller = [PIECE.max(block), block].into_iter().find(|it| *it < bytes);
        let Some(smaller) = smaller.filter(|_| !slot.unreadable.is_empty()) else {
            return false;
        };
        let mut cut = slot;
        cut.bad = cut.bad.with(cut.unreadable);
        cut.take_piece(slot.piece.start, range, smaller);
        // A leg with bad blocks in this piece may have the others, and so may one that lacks some
        // regions of it.
        let several = self.readers_of_any(&cut).count() > 1 || self.has_spares_in(slot.piece);
        let may = several && !self.readers_of(&cut).is_empty();
        if may {
            *self.ios.expect(id) = cut;
        }
        may
    }

    /// Whether a leg that is not in sync has some region of a range.
    fn has_spares_in(&self, range: Range) -> bool {
        if self.legs.rebuilding().is_empty() && self.legs.verified().is_empty() {
            return false;
        }
        self.generation.regions_in(range).any(|region| {
            let region = self.generation.bytes_of(region);
            let part = Range {
                start: region.start.max(range.start),
                end: region.end.min(range.end),
            };
            let spares = self.legs.rebuilt_in(self.generation.regions_in(part));
            !spares.with(self.waiting_spares(part)).is_empty()
        })
    }

    /// Counts a failed read of a leg; with too many it leaves.
    pub(super) fn count_error(&mut self, leg: u8, outcome: Outcome) {
        let most = self.config.errors_max;
        if matches!(outcome, Outcome::Busy { .. }) {
            return; // it is no fault of the leg's data, nor of what leads there (T6)
        }
        let it = &mut self.legs[leg];
        it.errors += 1;
        if it.errors > most {
            self.lose(leg, outcome);
        }
    }
}

impl Slot {
    /// Retries legs that were given up briefly because others were there. Returns whether there are
    /// any.
    fn ask_silent_again(&mut self, in_sync: Legs) -> bool {
        let again = core::mem::take(&mut self.silent).both(in_sync);
        self.round.failed = self.round.failed.without(again);
        !again.is_empty()
    }

    /// Sets the next piece: from `start` to the next multiple of `bytes`. Legs that had a medium
    /// error are asked again.
    fn take_piece(&mut self, start: u64, range: Range, bytes: u64) {
        let end = (start / bytes + 1).saturating_mul(bytes).min(range.end);
        self.piece = Range { start, end };
        let unreadable = core::mem::take(&mut self.unreadable);
        self.round = Round {
            failed: self.round.failed.without(unreadable),
            refused: self.round.refused.without(unreadable),
            ..Round::default()
        };
    }
}
