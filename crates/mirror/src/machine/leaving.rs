//! Ends the part of a leg that has left in everything that is under way.
//!
//! # Contract
//! Rounds go on as if the leg had failed them: superblocks, pages, flushes, changes of users,
//! copies. A leg that never answers delays only reads from it, whose memory it may still fill
//! (T10). Its tickets are counted; it returns when they have ended (T9). All this happens at the
//! beginning of a turn. A leg that fails a flush leaves at once, and no other flush of it counts
//! before it is durably stale (T13).
//!
//! # Limits
//! Copies have one buffer more than they use, for when a leg that hangs has the others. A second
//! leg that hangs may take that too: then I/O that waits for a copy waits for that leg.
use super::accept::Acceptance;
use super::io::is_wrong;
use super::jobs::{Kind, Step};
use super::leg::{Change, Cut};
use super::legs::{Legs, Round, Ticket, Work};
use super::planted::{Bug, has};
use super::{Leg, Mirror, News, Request};
use block::Outcome;
use block::Range;

impl Mirror {
    /// Ends the parts of legs that have left.
    pub(super) fn drop_left_legs(&mut self) {
        while let Some(leg) = self.legs.pop_left() {
            self.drop_left_leg(leg);
        }
    }

    fn drop_left_leg(&mut self, leg: u8) {
        let gone = Outcome::PathError;
        if self.startup.is_reading_of(leg) {
            self.continue_reading(leg, None);
        }
        self.update_written(leg, gone);
        loop {
            let pages = self.log.pages_on(leg).next();
            let Some(pages) = pages else { break };
            self.pages_done(pages.first, leg, gone);
        }
        self.cold_flushed(leg, gone);
        self.heal_flushed(leg, gone);
        self.resync_flushed(leg, gone);
        self.stop_flushed(leg, gone);
        self.copy_without(leg);
        for id in 0..self.ios.capacity() {
            let changes = |slot: super::Slot| slot.request.reads().is_none();
            if self.ios.get(id).is_some_and(changes) {
                self.io_done(id, leg, gone);
            }
        }
        debug_assert!(!self.legs.writable().has(leg));
    }

    /// A leg has failed a flush: it leaves at once, for later flushes may end well although
    /// acknowledged writes are lost (T13). The last leg in sync stays, and so does one that could
    /// not be reached.
    pub(super) fn flush_failed(&mut self, ticket: Ticket, outcome: Outcome) {
        if outcome.is_done() {
            return;
        }
        let flushes = match ticket.work {
            Work::Io(id) => {
                let slot = self.ios.get(id);
                slot.is_some_and(|slot| slot.request == Request::Flush)
            }
            Work::ClearCold | Work::Resync | Work::Heal | Work::Stop | Work::Rebuilt => true,
            _ => false,
        };
        let mut round = Round::of(Legs::one(ticket.leg));
        round.end(ticket.leg, outcome);
        if flushes && !round.failed.is_empty() && !is_wrong(round.outcome) {
            self.lose(ticket.leg, outcome);
            if self.legs.in_sync().has(ticket.leg) {
                self.report_loss(ticket, outcome);
            }
        }
    }

    /// The file of a leg was cut short: the leg leaves, unless it is the last one in sync, and is
    /// copied whole when it returns. A write could make the file as long again, with zeroes in the
    /// hole that can't be told from data.
    pub(super) fn note_cut_short(&mut self, leg: u8) {
        if self.legs.last_in_sync() != Some(leg) {
            self.void_leg(leg, Outcome::CutShort);
        } else if self.legs[leg].cut().is_none() {
            let cut = Cut::default(); // nothing else has what it has
            self.legs.change(leg, Change::Truncate(cut));
        }
    }

    /// None of the data of a leg count any more, while another one is in sync: it leaves.
    pub(super) fn void_leg(&mut self, leg: u8, outcome: Outcome) {
        let takes_part = self.legs.writable().has(leg);
        let is_ignored = has(Bug::ShrunkUnlike) && !self.legs[leg].is_void();
        if takes_part {
            self.drop_leg(leg, outcome);
        }
        if let Some(stale) = self.legs[leg].stale_mut() {
            stale.is_void = !is_ignored || outcome != Outcome::CutShort;
        }
        self.outputs.wake();
        if takes_part {
            self.propose();
        }
    }

    /// A leg's controller destroys its data: the leg leaves, and is copied whole when it returns.
    /// The last one in sync stays, and all I/O on it fails until a user accepts the loss: after the
    /// sanitize operation, its zeroes can't be told from data.
    pub(super) fn note_erased(&mut self, leg: u8) {
        if self.legs.last_in_sync() == Some(leg) {
            return self.last_was_cut(leg, 0);
        }
        self.void_leg(leg, Outcome::Erased);
    }

    /// The leg has another size now. One that is smaller than the mirror needs, if only for a
    /// moment, has lost data (T50): it leaves, and is copied whole when it returns. The last one in
    /// sync stays, and serves what lies below the smallest size that was seen.
    pub fn leg_resized(&mut self, leg: u8, leg_bytes: u64, now_ns: u64) {
        self.at(now_ns);
        let mirror_bytes = self.generation.committed().geometry.bytes;
        let Some(place) = self.place(leg) else {
            return; // it was not there at the start, and can't be reached yet
        };
        let end = leg_bytes.saturating_sub(place.data_offset);
        if end >= mirror_bytes || self.read_only {
            return;
        }
        if self.legs.last_in_sync() == Some(leg) {
            self.last_was_cut(leg, end);
        }
        let takes_part = self.legs.writable().has(leg);
        self.note_cut_short(leg);
        if !takes_part {
            self.spare_lost(leg);
            self.return_failed(leg, Outcome::CutShort);
            self.forget_rebuild(leg);
        }
        self.resume_waiting();
    }

    /// The last leg in sync has lost all from byte `end` of the mirror on.
    fn last_was_cut(&mut self, leg: u8, end: u64) {
        let before = self.legs[leg].cut_end();
        if before.is_none_or(|before| end < before) {
            self.outputs.news(News::Cut(leg, end));
        }
        // A loss that a user accepted does not cover this one.
        self.legs.change(
            leg,
            Change::Truncate(Cut::at(before.map_or(end, |it| it.min(end)))),
        );
        // It is to be on the leg, for the next start.
        self.startup.needs_write |= !self.read_only;
        self.outputs.wake();
    }

    /// Whether a leg has lost some of what it had as the last one in sync, and no user has accepted
    /// that.
    pub fn was_cut(&self, leg: u8) -> bool {
        self.legs.get(leg).is_some_and(Leg::has_unaccepted_cut)
    }

    /// Ends acceptances whose superblocks were written.
    pub(super) fn cut_committed(&mut self) {
        for leg in self.legs.in_sync().iter() {
            let it = &self.legs[leg];
            let is_marked = it
                .cut()
                .is_some_and(|cut| cut.acceptance == Acceptance::Marked);
            if !is_marked || it.committed.cut_at != 0 {
                continue;
            }
            self.legs.change(leg, Change::Accepted);
            // A range that could not be read is tried again.
            self.unreadable.retry_at(self.now_ns);
            self.restart_copies();
        }
    }

    /// Whether a ticket is a flush or a heartbeat.
    pub(super) fn is_flush_or_heartbeat(&self, ticket: Ticket) -> bool {
        match ticket.work {
            Work::Io(id) => {
                let slot = self.ios.get(id);
                slot.is_none_or(|slot| slot.request == Request::Flush)
            }
            Work::ClearCold
            | Work::Resync
            | Work::Heal
            | Work::Stop
            | Work::Rebuilt
            | Work::Heartbeat => true,
            _ => false,
        }
    }

    /// Whether a ticket is for a range that its leg has lost.
    pub(super) fn is_behind_cut(&self, ticket: Ticket) -> bool {
        let Some(end) = self.legs[ticket.leg].cut_end() else {
            return false;
        };
        let range = match ticket.work {
            Work::Io(id) => {
                let slot = self.ios.get(id);
                slot.and_then(|slot| slot.request.changes().or(slot.request.reads()))
            }
            Work::Copy(job) => {
                let job = self.copies.get(job);
                job.map(|job| job.piece)
            }
            _ => None,
        };
        range.is_some_and(|range| range.end > end)
    }

    /// A leg that was cut short while it was the last one in sync leaves as soon as it is not: by
    /// then it may be as long again, with zeroes.
    pub(super) fn leave_cut(&mut self) {
        let cut = |leg: &u8| self.legs[*leg].cut().is_some();
        if self.legs.in_sync().count() > 1
            && let Some(leg) = self.legs.in_sync().iter().find(cut)
        {
            self.note_cut_short(leg);
        }
    }

    /// Takes a leg that has left out of the copies.
    pub(super) fn copy_without(&mut self, leg: u8) {
        for number in self.copies.numbers() {
            let Some(job) = self.copies.get_mut(number) else {
                continue;
            };
            let (reads, from) = (job.asked == leg, job.piece.start);
            match job.step() {
                Step::Read | Step::Compare if reads => {
                    job.late.add(leg);
                    self.release_piece(number);
                    self.give_up_job(number, from);
                }
                Step::Write if job.round.waits.has(leg) => {
                    job.late.add(leg);
                    self.piece_written(number, leg, Outcome::PathError);
                }
                _ => {}
            }
        }
    }

    /// Ends a job; another one does the rest from this byte on.
    pub(super) fn give_up_job(&mut self, number: u8, from: u64) {
        if let Some(job) = self.copies.get(number)
            && job.kind == Kind::Check
        {
            let (start, end) = (job.range.start, job.range.end);
            let compared = Range { start, end: from };
            self.checks.add_compared(compared, self.legs.in_sync());
            self.checks.leave_rest(number, Range { start: from, end });
        }
        self.copies.end(number, &mut self.outputs);
    }
}
