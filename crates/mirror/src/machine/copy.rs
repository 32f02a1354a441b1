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
//! [`CUTS_MAX`] pieces of a job are cut into blocks. One job less than there are buffers, and as
//! many once a leg that left has some; one per region. [`REPAIRS_MAX`] ranges wait to be repaired;
//! further ones are found by the next read that fails.
use super::checks::Part;
use super::legs::{Legs, Round, Work};
use super::lifecycle::COPY_PAUSE_NS;
use super::pace::{Pace, Speed};
use super::planted::{Bug, has};
use super::requests::Phase;
use super::{Mirror, News, Output, Request};
use crate::bad::BadKind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::Outcome;
use block::Range;

/// Pause before lost regions are read again, ns: media rarely recover by themselves.
const LOST_PAUSE_NS: u64 = 600_000_000_000;
/// Ranges that wait to be repaired.
const REPAIRS_MAX: usize = 64;
/// Pieces that a copy is cut into at first; blocks are next.
pub(super) const PIECE_MIN: u64 = 4096;
/// So many of these are cut into blocks of one job: where more than that is bad, each block takes
/// as long as a medium needs to give up.
const CUTS_MAX: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Resync(u64),
    Rebuild(u64),
    /// On this leg.
    Repair(u8),
    Check,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It waits for its turn.
    Lock,
    Read,
    Compare,
    Write,
    /// It is over, but a leg that has left still has its buffer.
    Over,
}

/// All copies under a lock: repairs, resync, rebuilds and checks.
#[derive(Debug)]
pub(super) struct Copies {
    /// By number, which is that of the buffer.
    pub jobs: Vec<Option<Job>>,
    /// By job: the place of its piece in the order of changes.
    pub places: Vec<Option<block::order::Ticket>>,
    /// Ranges of legs that are to be rewritten from another leg, oldest first.
    pub repairs: VecDeque<(u8, Range)>,
    /// Nothing is to be copied, until something wakes it.
    pub idle: bool,
    /// No copy begins before that, ns.
    pub pause_ns: u64,
    pub pace: Pace,
}

impl Copies {
    /// None yet; `jobs` at a time.
    pub fn new(jobs: usize, speed: Speed, now_ns: u64) -> Self {
        Self {
            jobs: (0..jobs).map(|_| None).collect(),
            places: alloc::vec![None; jobs],
            repairs: VecDeque::with_capacity(REPAIRS_MAX),
            idle: false,
            pause_ns: 0,
            pace: Pace::new(speed, now_ns),
        }
    }

    /// The job that has this buffer.
    pub fn job(&self, buffer: u8) -> Option<&Job> {
        self.jobs.get(usize::from(buffer))?.as_ref()
    }
}

/// A copy job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub kind: Kind,
    pub range: Range,
    pub piece: Range,
    /// Most bytes of its next piece: fewer than a buffer has where somewhere no leg can read all of
    /// a piece, or be written all of it.
    unit: u64,
    /// How many pieces were cut into blocks.
    cuts: u8,
    pub step: Step,
    /// The leg that is reading it.
    pub asked: u8,
    /// Legs that have left, and still have its buffer (T10).
    pub late: Legs,
    /// Legs that could not read the piece.
    tried: Legs,
    /// The leg that could.
    pub source: u8,
    /// No leg could, and some for another reason than the medium.
    unreachable: bool,
    /// The legs that are rebuilt.
    pub targets: Legs,
    pub round: Round,
    /// Something of it is lost, or was written.
    pub lossy: bool,
    wrote: bool,
    /// It is repeated from the beginning.
    pub anew: bool,
}

impl Job {
    /// Whether its piece is being read from a leg.
    pub fn is_read_by(&self, leg: u8) -> bool {
        self.step == Step::Read && self.asked == leg
    }

    /// Nothing comes of it any more.
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }
}

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
            let Some(free) = self.free_job() else {
                return;
            };
            let Some((kind, range)) = self.next_copy(free) else {
                return;
            };
            let targets = match kind {
                Kind::Rebuild(region) => self.lacking(region),
                _ => Legs::default(),
            };
            self.copies.jobs[free] = Some(Job {
                kind,
                range,
                piece: Range::new(range.start, 0),
                unit: self.config.copy_bytes.into(),
                cuts: 0,
                step: Step::Lock,
                asked: 0,
                late: Legs::default(),
                tried: Legs::default(),
                source: 0,
                unreachable: false,
                targets,
                round: Round::default(),
                lossy: false,
                wrote: false,
                anew: false,
            });
            self.next_piece(free as u8);
        }
    }

    /// The number of the next job. One buffer stays free until a leg that has left has others: it
    /// may have all that were in use, and reads that wait for a copy go on with the last one.
    fn free_job(&self) -> Option<usize> {
        let mut free = (0..self.copies.jobs.len()).filter(|&at| self.copies.jobs[at].is_none());
        let first = free.next()?;
        let kept =
            self.copies.jobs.len() > 1 && !self.copies.jobs.iter().flatten().any(Job::is_over);
        (!kept || free.next().is_some()).then_some(first)
    }

    /// Returns the kind and range of the next copy of a job.
    fn next_copy(&mut self, job: usize) -> Option<(Kind, Range)> {
        if let Some(region) = self.waited_for() {
            return Some((
                Kind::Resync(region),
                self.committed.geometry.bytes_of(region),
            ));
        }
        if let Some((leg, range)) = self.copies.repairs.pop_front() {
            return Some((Kind::Repair(leg), range));
        }
        let paced = |job: &Job| !matches!(job.kind, Kind::Repair(_));
        let running = self.copies.jobs.iter().flatten().any(paced);
        if self.now_ns < self.copies.pause_ns || !self.copies.pace.allows(self.now_ns, running) {
            return None;
        }
        let mut uncopied = self.diverged.uncopied();
        let diverged = uncopied.find(|&region| !self.is_copied_now(region));
        drop(uncopied);
        let (kind, range) = match diverged {
            Some(_) if self.legs.in_sync().count() < 2 => {
                self.copies.idle = true;
                return None;
            }
            Some(region) => (
                Kind::Resync(region),
                self.committed.geometry.bytes_of(region),
            ),
            None if !self.diverged.is_empty() => {
                self.copies.idle = true;
                return None;
            }
            None => match self.next_to_rebuild() {
                Some(region) => (
                    Kind::Rebuild(region),
                    self.committed.geometry.bytes_of(region),
                ),
                None => {
                    let checks = |job: &Job| job.kind == Kind::Check && !job.is_over();
                    let is_busy = self.copies.jobs.iter().flatten().any(checks);
                    let (geometry, in_sync) = (&self.committed.geometry, self.legs.in_sync());
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
        let full = self.free_job().is_none();
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
        let mut regions = ranges.flat_map(|range| self.state.geometry.regions_in(range));
        regions.find(|&region| {
            let done = self.is_copied_now(region) || self.diverged.is_copied(region);
            self.diverged.has(region) && !done
        })
    }

    /// Whether a job has the region.
    pub(super) fn is_copied_now(&self, region: u64) -> bool {
        let mut jobs = self
            .copies
            .jobs
            .iter()
            .flatten()
            .filter(|job| !job.is_over());
        jobs.any(|job| matches!(job.kind, Kind::Resync(it) | Kind::Rebuild(it) if it == region))
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
        let known = self.copies.repairs.contains(&(leg, range));
        if self.legs.in_sync().has(leg)
            && self.startup.has_proposed()
            && !known
            && self.copies.repairs.len() < REPAIRS_MAX
        {
            self.copies.repairs.push_back((leg, range));
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
            let rebuilt = self.rebuilt_spares(job.piece);
            rebuilt.with(self.verified_spares(job.piece))
        };
        reads_spares && spares().has(leg)
    }

    /// Whether zeroes that the copy in this buffer writes may become holes: all that it writes is
    /// flushed before it counts, and is no sector that is rewritten for its own sake.
    pub fn may_leave_holes(&self, copy: u8) -> bool {
        let job = self.copies.job(copy);
        job.is_some_and(|job| matches!(job.kind, Kind::Resync(_) | Kind::Rebuild(_)))
    }

    /// Gives up the place of a job's piece, if it has one.
    pub(super) fn release_piece(&mut self, job: u8) {
        if let Some(place) = self.copies.places[usize::from(job)].take() {
            self.release(place);
        }
    }

    pub(super) fn job(&mut self, job: u8) -> Option<&mut Job> {
        self.copies.jobs.get_mut(usize::from(job))?.as_mut()
    }

    /// A job under way.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn expect_job(&mut self, number: u8) -> &mut Job {
        let job = self.copies.jobs[usize::from(number)].as_mut();
        job.unwrap_or_else(|| unreachable!("copy job {number} goes on after its end"))
    }

    /// Goes on with the next piece, or ends.
    fn next_piece(&mut self, number: u8) {
        let mut job = *self.expect_job(number);
        let from = job.piece.end;
        let useless = match job.kind {
            Kind::Resync(_) => job.anew || self.legs.in_sync().count() < 2,
            Kind::Rebuild(_) => job.anew || job.targets.is_empty(),
            Kind::Repair(leg) => !self.may_repair(leg, job.range),
            Kind::Check => !self.checks.is_begun(),
        };
        let waits = matches!(job.kind, Kind::Resync(_)) && self.ios.iter().next().is_some();
        if useless || self.stop.is_begun() && !waits || self.ownership.is_lost() {
            return self.end_job(number);
        }
        if from >= job.range.end {
            self.end_job(number);
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
        (job.step, job.tried) = (Step::Lock, Legs::default());
        job.unreachable = false;
        self.copies.jobs[usize::from(number)] = Some(job);
        let unlocked = match job.kind {
            Kind::Repair(_) => has(Bug::MendWithoutLock),
            Kind::Rebuild(_) => has(Bug::RebuildUnlocked),
            Kind::Resync(_) | Kind::Check => false,
        };
        if unlocked {
            return self.read_piece(number);
        }
        let place = self.ios.admit_copy(number, job.piece);
        self.copies.places[usize::from(number)] = Some(place);
        self.start_piece(number);
    }

    /// It may be the piece's turn.
    pub(super) fn start_piece(&mut self, number: u8) {
        let first = self.ios.may_begin(self.copies.places[usize::from(number)]);
        if first && self.job(number).is_some_and(|job| job.step == Step::Lock) {
            self.read_piece(number);
        }
    }

    fn read_piece(&mut self, number: u8) {
        let (up, counts) = (self.legs.in_sync(), self.checks.reference());
        let job = *self.expect_job(number);
        let spares = self.spares_of(&job, job.tried);
        let from = up.without(job.tried);
        // The leg that is repaired is read last: it may be able to read by now.
        let last = match job.kind {
            Kind::Repair(leg) => Legs::one(leg),
            Kind::Check if from.both(counts) == counts => from.without(counts),
            _ => Legs::default(),
        };
        let job = self.expect_job(number);
        job.step = Step::Read;
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
        let job = self.expect_job(number);
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
        let job = self.expect_job(number);
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
        let job = *self.expect_job(number);
        let (piece, kind) = (job.piece, job.kind);
        let unreachable = job.unreachable && kind != Kind::Check;
        let alone = matches!(kind, Kind::Repair(leg) if !self.may_repair(leg, piece));
        if alone {
            // The legs that had it have left: nothing was reported as lost.
            self.end_job(number);
        } else if unreachable {
            // Not for the medium's sake: later.
            self.end_job(number);
            self.copies.pause_ns = self.now_ns + COPY_PAUSE_NS;
        } else if self.is_worth_cutting(number) && self.once_more_in_pieces(number) {
            return;
        } else {
            self.expect_job(number).lossy = true;
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

    /// Whether smaller pieces may be read where this one is not: of blocks only where several legs
    /// were asked, which may have bad ones at other places. Another job repairs the findings of a
    /// check.
    fn is_worth_cutting(&mut self, number: u8) -> bool {
        let job = self.expect_job(number);
        let several = job.tried.count() > 1 && job.kind != Kind::Check;
        several || job.piece.end - job.piece.start > PIECE_MIN
    }

    /// Bytes of the pieces that the piece of a job is cut into; `None`: it is not.
    pub(super) fn smaller_unit(&self, job: &Job) -> Option<u64> {
        let (bytes, block) = (
            job.piece.end - job.piece.start,
            self.state.geometry.block_bytes(),
        );
        match bytes > PIECE_MIN.max(block) {
            true => Some(PIECE_MIN.max(block)),
            false => (bytes > block && job.cuts < CUTS_MAX).then_some(block),
        }
    }

    /// The piece is copied once more, in smaller ones; false: there are none.
    fn once_more_in_pieces(&mut self, number: u8) -> bool {
        let job = *self.expect_job(number);
        let Some(unit) = self.smaller_unit(&job) else {
            return false;
        };
        let job = self.expect_job(number);
        job.unit = unit;
        job.cuts += u8::from(unit < PIECE_MIN);
        job.piece.end = job.piece.start;
        self.release_piece(number);
        self.next_piece(number);
        true
    }

    /// No leg can read the piece: its region is tried again later. Where a leg that has it is about
    /// to return that is no news: the region is tried again then.
    fn note_unreadable(&mut self, piece: Range, returns: bool) {
        for region in self.state.geometry.regions_in(piece) {
            if self.unreadable.note(region) && !returns {
                self.outputs.news(News::Lost(piece));
            }
        }
        self.unreadable.retry_at(self.now_ns + LOST_PAUSE_NS);
    }

    pub(super) fn copy_done(&mut self, number: u8, leg: u8, outcome: Outcome) {
        let foreign = self.ownership.is_lost();
        // A leg that has left may have older data than were acknowledged.
        let job = self.copies.jobs[usize::from(number)];
        let gone = !self.legs.in_sync().has(leg)
            && !job.is_some_and(|job| self.counts_as_spare(&job, leg));
        if self.is_late(number, leg) {
            return;
        }
        let Some(job) = self.job(number) else {
            return;
        };
        match job.step {
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
                let job = self.expect_job(number);
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
        let job = self.expect_job(number);
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
        let job = self.expect_job(number);
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
                self.expect_job(number).round = Round::of(others.without(bad));
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
        let job = self.expect_job(number);
        (job.step, job.round) = (Step::Write, Round::of(targets));
        let piece = job.piece;
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
        let job = self.expect_job(number);
        if !up.has(job.source) {
            // Another source: one that has left may have older data.
            job.piece.end = job.piece.start;
            self.release_piece(number);
            return self.next_piece(number);
        }
        job.step = Step::Compare;
        let piece = job.piece;
        let leg = job.round.waits.both(up).first();
        job.asked = leg.unwrap_or(job.asked);
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
            true => self.end_job(number),
            false => self.next_piece(number),
        }
    }

    fn job_over(&mut self, job: &Job) {
        self.outputs.wake();
        match job.kind {
            Kind::Resync(region) => self.diverged.has_copied(region),
            Kind::Rebuild(region) if !job.lossy => {
                for leg in job.targets.both(self.legs.rebuilding()).iter() {
                    self.has_region(leg, region);
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
        for job in self.copies.jobs.iter_mut().flatten() {
            job.targets.remove(leg);
        }
        self.checks.leg_left(leg, &mut self.outputs);
    }
}
