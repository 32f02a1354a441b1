//! Copies of pieces between legs: resync, rebuild, repair, check.
//!
//! # Contract
//! Each piece fits a copy buffer and is locked: it takes its turn among the writes of users, so the
//! data that are written are those that were read (T5, T46). A piece that one leg can't read is
//! read from another; where none in sync can, a rebuild or repair reads a leg that is being rebuilt
//! and does not lack it (`missed`), or a stale one (`spare`). Where none can, the piece is cut, at
//! last into blocks; the rest is lost: reported, and its dirty bit stays. A piece that a returning
//! leg has is left until then, and reported as lost only if it can't be read afterwards. Order:
//! reads that wait, repairs, resync, rebuilds and checks; the first two at once, the others as the
//! pace allows.
//!
//! # Limits
//! One job less than there are buffers, and as many once a leg that left has some; one per region.
//! [`Jobs`](super::jobs::Jobs) has them.
use super::checks::Part;
use super::jobs::{Job, Kind, PIECE_MIN, Step};
use super::legs::{Legs, Round, Work};
use super::lifecycle::COPY_PAUSE_NS;
use super::planted::{Bug, has};
use super::requests::Phase;
use super::{Mirror, News, Output, Request};
use crate::bad::BadKind;
use block::Outcome;
use block::Range;

/// Pause before lost regions are read again, ns: media rarely recover by themselves.
const LOST_PAUSE_NS: u64 = 600_000_000_000;
impl Mirror {
    /// Starts the copies that may begin now.
    pub(super) fn start_copies(&mut self) {
        self.advance_resync_flush();
        self.copies.idle = false;
        // Reads that wait end before a stop.
        while !self.update.is_broken()
            && !self.unverified.is_held(self.now_ns)
            && (!self.stop.is_begun() || self.waited_for().is_some())
        {
            let Some(free) = self.copies.free() else {
                return; // all buffers are in use
            };
            let Some((kind, range)) = self.next_copy(free) else {
                return; // nothing is to be copied now
            };
            let targets = match kind {
                Kind::Rebuild(region) => self.lacking(region),
                _ => Legs::default(),
            };
            let unit = self.config.copy_bytes.into();
            self.copies.begin(free, kind, range, targets, unit);
            self.next_piece(free);
        }
    }

    /// Returns the kind and range of the next copy of a job.
    fn next_copy(&mut self, job: u8) -> Option<(Kind, Range)> {
        if let Some(region) = self.waited_for() {
            return Some((Kind::Resync(region), self.generation.bytes_of(region)));
        }
        if let Some((leg, range)) = self.copies.next_repair() {
            return Some((Kind::Repair(leg), range));
        }
        let running = self.copies.is_any_paced();
        if self.now_ns < self.copies.pause_ns || !self.copies.pace.allows(self.now_ns, running) {
            return None;
        }
        let mut uncopied = self.diverged.uncopied();
        let diverged = uncopied.find(|&region| !self.copies.has_region(region));
        drop(uncopied);
        let (kind, range) = match diverged {
            Some(_) if self.legs.in_sync().count() < 2 => {
                self.copies.idle = true;
                return None;
            }
            Some(region) => (Kind::Resync(region), self.generation.bytes_of(region)),
            None if !self.diverged.is_empty() => {
                self.copies.idle = true;
                return None;
            }
            None => match self.legs.next_to_rebuild(|region| {
                self.unreadable.is_paused(region) || self.copies.has_region(region)
            }) {
                Some(region) => (Kind::Rebuild(region), self.generation.bytes_of(region)),
                None => {
                    let is_busy = self.copies.under_way().any(|job| job.kind == Kind::Check);
                    let (geometry, in_sync) =
                        (&self.generation.committed().geometry, self.legs.in_sync());
                    let out = &mut self.outputs;
                    let next = self
                        .checks
                        .next(job, geometry.regions(), in_sync, is_busy, out);
                    self.copies.idle = next.is_none();
                    let range = match next? {
                        Part::Region(region) => geometry.bytes_of(region),
                        Part::Rest(range) => range,
                    };
                    (Kind::Check, range)
                }
            },
        };
        self.copies.pace.spend(range.end - range.start);
        Some((kind, range))
    }

    /// When the next copy may begin, if one waits for a time.
    pub(super) fn copies_at(&self) -> u64 {
        let idle = self.diverged.is_empty()
            && self.legs.rebuilding().is_empty()
            && !self.checks.is_running();
        let full = self.copies.free().is_none();
        if self.flushes_alone_later() {
            return self.copies.pause_ns;
        }
        let idle = idle || self.copies.idle;
        let waits = self.update.is_broken() || self.unverified.is_held(self.now_ns);
        if idle || full || self.stop.is_begun() || waits || !self.startup.is_running() {
            return u64::MAX;
        }
        self.copies.pause_ns.max(self.copies.pace.next_at())
    }

    /// Returns a region that a read waits for, and that no job copies yet.
    fn waited_for(&self) -> Option<u64> {
        if self.diverged.is_empty() || self.legs.in_sync().count() < 2 {
            return None;
        }
        let held = |slot: &super::Slot| match slot.request {
            Request::Read(range) if slot.phase() == Phase::Held => Some(range),
            _ => None,
        };
        let ranges = self.ios.iter().filter_map(held);
        let mut regions = ranges.flat_map(|range| self.generation.regions_in(range));
        regions.find(|&region| {
            let done = self.copies.has_region(region) || self.diverged.is_copied(region);
            self.diverged.has(region) && !done
        })
    }

    /// Legs that are being rebuilt and lack the region.
    fn lacking(&self, region: u64) -> Legs {
        let lacks = |leg: &u8| {
            let rebuild = self.legs.rebuild(*leg);
            rebuild.is_some_and(|it| it.lacks(region))
        };
        self.legs.rebuilding().iter().filter(lacks).collect()
    }

    /// Queues a range for repair that `leg` could not read.
    pub(super) fn repair(&mut self, leg: u8, range: Range) {
        let may_repair = self.legs.in_sync().has(leg) && self.startup.has_proposed();
        if may_repair && self.copies.queue_repair(leg, range) {
            self.outputs.wake();
        }
    }

    /// Whether the leg is to be repaired, and another one may have what it can't read.
    fn may_repair(&self, leg: u8, range: Range) -> bool {
        let spares = || !self.spares(range, Legs::default()).is_empty();
        let others = || self.legs.in_sync() != Legs::one(leg) || spares();
        self.legs.in_sync().has(leg) && others()
    }

    /// Legs that may be read where none in sync can give the piece of a job. A resync reads legs in
    /// sync only: data that were read before must stay (T51).
    fn spares_of(&self, job: &Job, but: Legs) -> Legs {
        match job.kind {
            Kind::Rebuild(_) | Kind::Repair(_) => self.spares(job.piece, but),
            Kind::Resync(_) | Kind::Check => Legs::default(),
        }
    }

    /// Whether a leg that is not in sync is a valid source for the piece of a job.
    fn counts_as_spare(&self, job: &Job, leg: u8) -> bool {
        let reads_spares = matches!(job.kind, Kind::Rebuild(_) | Kind::Repair(_));
        let spares = || {
            let rebuilt = self.legs.rebuilt_in(self.generation.regions_in(job.piece));
            rebuilt.with(self.verified_spares(job.piece))
        };
        reads_spares && spares().has(leg)
    }

    /// Whether zeroes that the copy in this buffer writes may become holes: all that it writes is
    /// flushed before it counts, and is no sector that is rewritten for its own sake.
    pub fn may_leave_holes(&self, copy: u8) -> bool {
        let job = self.copies.get(copy);
        job.is_some_and(|job| matches!(job.kind, Kind::Resync(_) | Kind::Rebuild(_)))
    }

    /// Gives up the place of a job's piece, if it has one.
    pub(super) fn release_piece(&mut self, job: u8) {
        if let Some(place) = self.copies.take_place(job) {
            self.release(place);
        }
    }

    /// Goes on with the next piece, or ends.
    fn next_piece(&mut self, number: u8) {
        let mut job = *self.copies.expect(number);
        let from = job.piece.end;
        let useless = match job.kind {
            Kind::Resync(_) => job.anew || self.legs.in_sync().count() < 2,
            Kind::Rebuild(_) => job.anew || job.targets.is_empty(),
            Kind::Repair(leg) => !self.may_repair(leg, job.range),
            Kind::Check => !self.checks.is_begun(),
        };
        let waits = matches!(job.kind, Kind::Resync(_)) && self.ios.iter().next().is_some();
        if useless || self.stop.is_begun() && !waits || self.ownership.is_lost() {
            return self.copies.end(number, &mut self.outputs);
        }
        if from >= job.range.end {
            self.copies.end(number, &mut self.outputs);
            return self.job_over(&job);
        }
        if !job.late.is_empty() {
            // Its buffer is not its own any more: another one does the rest.
            return self.give_up_job(number, from);
        }
        let whole = u64::from(self.config.copy_bytes);
        // Behind what is bad it goes on as before.
        let again = job.piece.end == job.piece.start;
        let done = from - job.range.start;
        if !again && done.is_multiple_of(whole) {
            job.unit = whole;
        } else if !again && done.is_multiple_of(PIECE_MIN) {
            job.unit = job.unit.max(PIECE_MIN);
        }
        job.piece = Range {
            start: from,
            end: job.range.end.min(from + job.unit),
        };
        job.tried = Legs::default();
        job.unreachable = false;
        *self.copies.expect(number) = job;
        self.copies.set_step(number, Step::Lock);
        let unlocked = match job.kind {
            Kind::Repair(_) => has(Bug::MendWithoutLock),
            Kind::Rebuild(_) => has(Bug::RebuildUnlocked),
            Kind::Resync(_) | Kind::Check => false,
        };
        if unlocked {
            return self.read_piece(number);
        }
        let place = self.ios.admit_copy(number, job.piece);
        self.copies.set_place(number, place);
        self.start_piece(number);
    }

    /// It may be the piece's turn.
    pub(super) fn start_piece(&mut self, number: u8) {
        let first = self.ios.may_begin(self.copies.place(number));
        if first
            && self
                .copies
                .get(number)
                .is_some_and(|job| job.step() == Step::Lock)
        {
            self.read_piece(number);
        }
    }

    fn read_piece(&mut self, number: u8) {
        let (up, counts) = (self.legs.in_sync(), self.checks.reference());
        let job = *self.copies.expect(number);
        let spares = self.spares_of(&job, job.tried);
        let from = up.without(job.tried);
        // The leg that is repaired is read last: it may be able to read by now.
        let last = match job.kind {
            Kind::Repair(leg) => Legs::one(leg),
            Kind::Check if from.both(counts) == counts => from.without(counts),
            _ => Legs::default(),
        };
        self.copies.set_step(number, Step::Read);
        let (mut piece, kind, targets) = (job.piece, job.kind, job.targets);
        if kind == Kind::Check {
            piece = self.bad.cut_at_edges(piece, BadKind::Unwritten, up);
        }
        let (piece, fit) = self.bad.fitted(piece, from);
        let spares = spares.without(self.bad.legs_in(spares, piece));
        if fit.is_empty() && spares.is_empty() && self.bad.legs_in(up, piece) == up {
            return self.without_source(
                number,
                self.bad.cut_at_edges(piece, BadKind::LastCopy, targets),
            );
        }
        let job = self.copies.expect(number);
        let leg = fit.without(last).first();
        let leg = leg.or(spares.first()).or(fit.first());
        // Where none is left, legs that failed a larger piece may have this one: all that is locked
        // is copied once more in smaller pieces, each of which all are asked for.
        if leg.is_some() || job.piece.end - job.piece.start <= PIECE_MIN {
            job.piece = piece;
        }
        job.asked = leg.unwrap_or(job.asked);
        match leg {
            Some(leg) => {
                let ticket = self.outputs.ticket(leg, Work::Copy(number));
                let output = Output::CopyRead(ticket, number, piece);
                self.outputs.push(output);
            }
            None => self.unreadable(number),
        }
    }

    /// The piece is bad on all legs in sync.
    fn without_source(&mut self, number: u8, piece: Range) {
        let job = self.copies.expect(number);
        job.piece = piece;
        job.lossy |= !matches!(job.kind, Kind::Rebuild(_));
        let job = *job;
        match job.kind {
            Kind::Rebuild(_) => self.copy_has_no_source(&job),
            Kind::Check => self.checks.add_skipped(self.legs.in_sync()),
            Kind::Resync(_) | Kind::Repair(_) => {}
        }
        self.piece_over(number);
    }

    /// No leg has given the piece.
    fn unreadable(&mut self, number: u8) {
        let job = *self.copies.expect(number);
        let (piece, kind) = (job.piece, job.kind);
        let unreachable = job.unreachable && kind != Kind::Check;
        let alone = matches!(kind, Kind::Repair(leg) if !self.may_repair(leg, piece));
        if alone {
            // The legs that had it have left: nothing was reported as lost.
            self.copies.end(number, &mut self.outputs);
        } else if unreachable {
            // Not for the medium's sake: later.
            self.copies.end(number, &mut self.outputs);
            self.copies.pause_ns = self.now_ns + COPY_PAUSE_NS;
        } else if self.copies.expect(number).is_worth_cutting() && self.once_more_in_pieces(number)
        {
            return;
        } else {
            self.copies.expect(number).lossy = true;
            if kind == Kind::Check {
                // A repair has it rewritten where a leg that is not in sync has it.
                let repairs = self.checks.add_unreadable();
                if repairs && !self.spares(piece, Legs::default()).is_empty() {
                    let in_sync = self.legs.in_sync();
                    in_sync.iter().for_each(|leg| self.repair(leg, piece));
                }
            } else {
                let reads_spares = matches!(kind, Kind::Rebuild(_) | Kind::Repair(_));
                self.note_unreadable(piece, reads_spares && self.returns_with(piece, job.tried));
            }
            return self.piece_over(number);
        }
        self.release_piece(number);
    }

    /// The piece is copied once more, in smaller ones; false: there are none.
    fn once_more_in_pieces(&mut self, number: u8) -> bool {
        let block_bytes = self.generation.proposed().geometry.block_bytes();
        let job = self.copies.expect(number);
        let Some(unit) = job.smaller_unit(block_bytes) else {
            return false;
        };
        job.cut(unit);
        self.release_piece(number);
        self.next_piece(number);
        true
    }

    /// No leg can read the piece: its region is tried again later. Where a leg that has it is about
    /// to return that is no news: the region is tried again then.
    fn note_unreadable(&mut self, piece: Range, returns: bool) {
        for region in self.generation.regions_in(piece) {
            if self.unreadable.note(region) && !returns {
                self.outputs.news(News::Lost(piece));
            }
        }
        self.unreadable.retry_at(self.now_ns + LOST_PAUSE_NS);
    }

    pub(super) fn copy_done(&mut self, number: u8, leg: u8, outcome: Outcome) {
        let foreign = self.ownership.is_lost();
        // A leg that has left may have older data than were acknowledged.
        let job = self.copies.get(number);
        let gone =
            !self.legs.in_sync().has(leg) && !job.is_some_and(|job| self.counts_as_spare(job, leg));
        if self.copies.take_late(number, leg, &mut self.outputs) {
            return;
        }
        let job = self.copies.expect(number);
        match job.step() {
            _ if foreign => {}
            Step::Lock | Step::Over => {}
            Step::Read if outcome.is_done() && gone => {
                job.tried.add(leg);
                job.unreachable = true;
                self.read_piece(number);
            }
            Step::Read if outcome.is_done() => self.write_piece(number, leg),
            Step::Read => {
                job.tried.add(leg);
                self.spare_unread(leg, outcome);
                let job = self.copies.expect(number);
                use Outcome::{CutShort, Erased, MediaError};
                let bad = matches!(outcome, MediaError | CutShort | Erased);
                job.unreachable |= !bad;
                // A slow leg is not counted as failing under a check.
                let counts = bad || job.kind != Kind::Check;
                if counts && self.legs.in_sync() != Legs::one(leg) {
                    self.count_error(leg, outcome);
                }
                self.read_piece(number);
            }
            Step::Compare => self.compared(number, leg, Err(outcome)),
            Step::Write => self.piece_written(number, leg, outcome),
        }
    }

    /// The piece was written to `leg`, or was not.
    pub(super) fn piece_written(&mut self, number: u8, leg: u8, outcome: Outcome) {
        let job = self.copies.expect(number);
        if !job.round.ends(leg, outcome) {
            return;
        }
        let mut round = job.round;
        job.wrote |= !round.done.is_empty();
        let repairs = job.kind == Kind::Check;
        if matches!(job.kind, Kind::Resync(_)) && !round.done.is_empty() {
            self.diverged.note_unflushed();
        }
        let smaller = self.copy_spoiled(number, &mut round);
        round.failed = round.failed.with(round.refused);
        self.leave_but_last(round);
        if smaller && self.once_more_in_pieces(number) {
            return;
        }
        if repairs {
            self.checks.add_repaired(round.done);
        }
        self.piece_over(number);
    }

    /// The piece was read from `source`: it is written to the others.
    fn write_piece(&mut self, number: u8, source: u8) {
        let (up, joining) = (self.legs.in_sync(), self.legs.rebuilding());
        let job = self.copies.expect(number);
        let (bad, piece) = (job.tried, job.piece);
        let (is_alike, is_rebuild) = match job.kind {
            Kind::Resync(_) => (true, false),
            Kind::Rebuild(_) => (false, true),
            Kind::Repair(_) | Kind::Check => (false, false),
        };
        job.source = source;
        let targets = match job.kind {
            Kind::Resync(_) => up.without(Legs::one(source)),
            Kind::Rebuild(_) => job.targets.both(joining).without(Legs::one(source)),
            Kind::Repair(leg) => up.both(Legs::one(leg)).without(Legs::one(source)),
            Kind::Check => {
                let bad = self.bad.legs_in(up, piece);
                self.checks.skip(number, bad);
                let others = up.without(Legs::one(source));
                self.copies.expect(number).round = Round::of(others.without(bad));
                return self.compare_next(number);
            }
        };
        if is_rebuild && !up.has(source) {
            self.note_rescued(source, piece);
        }
        if !is_alike {
            bad.iter().for_each(|leg| self.repair(leg, piece));
        }
        self.write_to(number, targets);
    }

    /// Writes the piece to `targets`.
    pub(super) fn write_to(&mut self, number: u8, targets: Legs) {
        let job = self.copies.expect(number);
        job.round = Round::of(targets);
        let piece = job.piece;
        self.copies.set_step(number, Step::Write);
        for leg in targets.iter() {
            let ticket = self.outputs.ticket(leg, Work::Copy(number));
            let output = Output::CopyWrite(ticket, number, piece);
            self.outputs.push(output);
        }
        if targets.is_empty() {
            self.piece_over(number);
        }
    }

    /// The next leg is compared with what was read, or all were.
    pub(super) fn compare_next(&mut self, number: u8) {
        let up = self.legs.in_sync();
        let job = self.copies.expect(number);
        if !up.has(job.source) {
            // Another source: one that has left may have older data.
            job.piece.end = job.piece.start;
            self.release_piece(number);
            return self.next_piece(number);
        }
        let piece = job.piece;
        let leg = job.round.waits.both(up).first();
        job.asked = leg.unwrap_or(job.asked);
        self.copies.set_step(number, Step::Compare);
        match leg {
            Some(leg) => {
                let ticket = self.outputs.ticket(leg, Work::Copy(number));
                let output = Output::Compare(ticket, number, piece);
                self.outputs.push(output);
            }
            None => {
                let targets = self.checks.take_targets(number);
                self.write_to(number, targets.both(up));
            }
        }
    }

    /// The piece is done: its lock is free, and the next one begins.
    pub(super) fn piece_over(&mut self, number: u8) {
        self.release_piece(number);
        match self.ownership.is_lost() {
            true => self.copies.end(number, &mut self.outputs),
            false => self.next_piece(number),
        }
    }

    fn job_over(&mut self, job: &Job) {
        self.outputs.wake();
        match job.kind {
            Kind::Resync(region) => self.diverged.has_copied(region),
            Kind::Rebuild(region) if !job.lossy => {
                for leg in job.targets.both(self.legs.rebuilding()).iter() {
                    self.legs.expect_rebuild(leg).has_region(region);
                }
            }
            Kind::Rebuild(_) => {}
            Kind::Repair(leg) if !job.lossy && job.wrote => {
                self.legs[leg].repaired += 1;
                self.outputs.news(News::Repaired(leg, job.range));
            }
            Kind::Repair(_) => {}
            Kind::Check => self.checks.add_compared(job.range, self.legs.in_sync()),
        }
    }

    /// A leg has left: nothing is copied to it.
    pub(super) fn without_copies(&mut self, leg: u8) {
        self.copies.drop_target(leg);
        self.checks.leg_left(leg, &mut self.outputs);
    }
}
