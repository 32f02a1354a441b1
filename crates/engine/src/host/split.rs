//! I/Os larger than what one command may carry: how they are cut, and what becomes of the pieces.
//!
//! The slot of such an I/O carries one piece after the other; while slots are free, *helpers* carry
//! further ones beside it. Each piece goes the whole way of an I/O: path, hold, failover, FUA,
//! sample. An I/O that was cut for a wider path and must go to a narrower one is cut again, and its
//! parts go one after the other in the slot that it has.
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
//! and stays first from then on. A write given to a path before it began is under way together
//! with it and has no order, as between any two writes under way together. A piece needs no entry
//! of its own: no two pieces overlap, and whoever overlaps one overlaps the whole.
//!
//! Durability (T13). A controller may give up its cache after it has done a piece:
//! the flush that fails for that says nothing of an I/O that has not ended. So a change that ends
//! after that is done again, all of it, before anybody hears of its end.
//!
//! # Limits
//! [`PIECES_MAX`] pieces of one I/O are under way; helpers have at most half of all slots. One slot
//! is enough, so a table full of large I/Os goes on. Hops, repetitions and the time spent in
//! attempts are bounded per piece (T4), and the pieces are finite.
use super::fence::range;
use super::io::VolumeIo;
use super::io_table::{IoTable, Kind, carries};
use super::types::Io;
use super::volumes::Volume;
use crate::limits::AGAIN_MAX;
use block::IoLimits;
use multipath::Outcome;
use policy::PathIndex;

impl Volume {
    /// Limits by which I/O is cut: also of a volume that is being removed, whose I/O is still under
    /// way. `None`: no path is left that has any.
    fn cut_limits(&self) -> Option<IoLimits> {
        let ready = self.ready.as_ref().map(|it| it.limits);
        ready.or_else(|| self.head.limits())
    }

    /// An I/O is cut from now on.
    fn begin_whole(&self, ios: &mut IoTable, index: u32, io: Io) {
        ios.begin_whole(index, io, self.losses.generation_of_all());
    }

    /// All of an I/O that was cut is done: how it ends; `None`: it is to be done again, for a
    /// controller has perhaps lost some of it, and whoever flushed was told before it ended (T13).
    fn settle_whole(&mut self, ios: &mut IoTable, index: u32) -> Option<Outcome> {
        let (whole, given_up) = ios.whole(index);
        if given_up == self.losses.generation_of_all() || range(&whole).is_none() {
            return Some(Outcome::Done);
        }
        let history = &mut ios.get_mut(index).history;
        if history.again == AGAIN_MAX {
            return Some(Outcome::PathError);
        }
        history.again += 1;
        self.totals.again_bytes_total += u64::from(whole.length);
        self.begin_whole(ios, index, whole);
        None
    }

    /// Registers a change that is cut with the fence; true: it must wait itself, and does.
    fn fence_whole(&mut self, ios: &mut IoTable, index: u32) -> bool {
        let waits = self.fence.admit_whole(ios, index);
        if let Some(wait) = waits {
            self.explain_wait(ios, index, wait, ios.get(index).placed_ns);
        }
        waits.is_some()
    }

    /// The paths that can carry an I/O, as bits. Where some that are wanted are usable and none of
    /// those can, it is cut so that all can. `None`: it has to wait behind others first, and does.
    pub(super) fn able(&mut self, ios: &mut IoTable, index: u32, wanted: u64) -> Option<u64> {
        let io = ios.get(index).io;
        let usable = self.head.usable_among(wanted);
        let able = self.head.among(|limits| carries(limits, &io));
        if usable == 0 || usable & able != 0 {
            return Some(able);
        }
        (!self.recut(ios, index)).then_some(u64::MAX)
    }

    /// Cuts what was cut for wider paths, or not at all; true: it must wait behind others first.
    fn recut(&mut self, ios: &mut IoTable, index: u32) -> bool {
        let Some(limits) = self.cut_limits() else {
            unreachable!("a volume with a usable path has limits");
        };
        let slot = ios.get(index);
        let alone = !slot.kind.is_piece();
        if alone && !slot.recut {
            let io = slot.io;
            self.begin_whole(ios, index, io);
        }
        let waits = alone && self.fence_whole(ios, index);
        ios.recut(index, &limits);
        waits
    }
}

impl VolumeIo<'_> {
    /// Begins an I/O that has to be cut.
    #[cold]
    pub(super) fn split(&mut self, index: u32, now_ns: u64) {
        let slot = self.on.ios.get_mut(index);
        slot.kind = Kind::Cut;
        slot.watched = true;
        let io = slot.io;
        self.volume.begin_whole(&mut self.on.ios, index, io);
        if !self.volume.fence_whole(&mut self.on.ios, index) {
            self.cut_on(index, now_ns);
        }
    }

    /// Places a change that the fence has released: all of it, if it is to be cut.
    pub(super) fn resume_change(&mut self, index: u32, now_ns: u64) {
        self.on.ios.exclude_wait(index, now_ns);
        if self.on.ios.get(index).kind == Kind::Cut {
            self.cut_on(index, now_ns);
        } else {
            self.place_again(index, now_ns);
        }
    }

    /// Cuts off and places as many pieces as there may be now; ends the I/O after the last.
    fn cut_on(&mut self, index: u32, now_ns: u64) {
        loop {
            if !self.on.ios.begin_placing(index) {
                return; // a piece ended at once: the caller further up the stack goes on
            }
            loop {
                // A piece that ends at once may change the limits.
                let limits = self.volume.cut_limits();
                let Some(carrier) = self.on.ios.next_piece(index, limits, now_ns) else {
                    break; // nothing is left, or no slot is free
                };
                self.place_again(carrier, now_ns);
            }
            let Some((mut outcome, path)) = self.on.ios.end_placing(index) else {
                return; // the end of a piece, or a free slot, goes on with it
            };
            if outcome.is_done() {
                let Some(settled) = self.volume.settle_whole(&mut self.on.ios, index) else {
                    continue; // all of it is done again
                };
                outcome = settled;
            }
            self.on.ios.get_mut(index).kind = Kind::Whole;
            return self.end(index, outcome, path, now_ns);
        }
    }

    /// A piece has ended for good; or a part of one that was cut again.
    #[cold]
    pub(super) fn piece_ended(
        &mut self,
        index: u32,
        mut outcome: Outcome,
        path: PathIndex,
        now_ns: u64,
    ) {
        let recut = self.on.ios.get(index).recut;
        if recut && self.on.ios.carry_rest(index, outcome) {
            return self.place_again(index, now_ns);
        }
        let slot = self.on.ios.get(index);
        if slot.kind.is_piece() {
            let owner = self.on.ios.piece_over(index, outcome, path);
            return self.cut_on(owner, now_ns);
        }
        if recut && outcome.is_done() {
            let Some(settled) = self.volume.settle_whole(&mut self.on.ios, index) else {
                self.on.ios.get_mut(index).io = self.on.ios.whole(index).0;
                return self.place_again(index, now_ns);
            };
            outcome = settled;
        }
        self.end(index, outcome, path, now_ns);
    }
}
