//! Compares all legs in sync, and repairs them if asked.
//!
//! # Contract
//! Each piece is compared under a lock, so that no write is under way there. The in-sync leg with
//! the lowest slot is the reference; without checksums no copy can be shown to be the right one.
//! With `repair` the others get its data. A user may name the reference: when that leg leaves, the
//! repair ends. Where only one leg is in sync there is nothing to compare, and a check ends.
//!
//! # Limits
//! The first [`DIFFERENCES_MAX`] ranges are named, the others counted.
use super::copy::{Job, Kind};
use super::legs::Legs;
use super::{Mirror, News};
use block::Outcome;
use block::Range;

/// Ranges that a report names.
pub const DIFFERENCES_MAX: usize = 8;

/// Findings of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Bytes of the mirror that were compared.
    pub bytes: u64,
    /// Pieces in which a leg has other data than the first one, once for each leg.
    pub differences: u64,
    /// The first of them: leg, first byte, first byte behind.
    pub first: [Option<(u8, u64, u64)>; DIFFERENCES_MAX],
    /// Pieces that a leg could not read.
    pub unreadable: u64,
    /// Pieces that were not compared on a leg, which could not write them.
    pub skipped: u64,
    /// Pieces that were rewritten on a leg.
    pub repaired: u64,
    /// All of the mirror was compared.
    pub complete: bool,
    /// It ended since no more than one leg was in sync.
    pub alone: bool,
    /// Legs in sync left or came while it compared: not all of what they have was compared.
    pub changed: bool,
    /// A user has paused it.
    pub paused: bool,
    /// The leg whose data the others get, where one was named.
    pub from: Option<u8>,
}

/// A check that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    repair: bool,
    paused: bool,
    /// The next region.
    next: u64,
    /// Legs that were in sync when it began to compare.
    legs: Option<Legs>,
    /// Legs that have other data in the piece of a job, by job.
    differ: [Legs; 16],
    /// Rests of jobs, by job.
    again: [Option<Range>; 16],
    report: CheckReport,
}

impl Mirror {
    /// Compares all copies, and makes them the same if `repair`; an earlier one ends. Of a mirror
    /// that can only be read one copy is used, and nothing is compared.
    pub fn check(&mut self, repair: bool, now_ns: u64) {
        self.at(now_ns);
        if self.read_only {
            return;
        }
        self.check = Some(Check {
            repair,
            paused: false,
            next: 0,
            legs: None,
            differ: [Legs::default(); 16],
            again: [None; 16],
            report: CheckReport::default(),
        });
        self.startup.needs_write = true;
        self.outputs.wake();
    }

    /// Makes all copies the same as what `leg` has; an earlier check ends. False: it is not in
    /// sync.
    pub fn repair_from(&mut self, leg: u8, now_ns: u64) -> bool {
        self.at(now_ns);
        if !self.legs.in_sync().has(leg) || self.read_only {
            return false;
        }
        self.check(true, now_ns);
        if let Some(check) = &mut self.check {
            check.report.from = Some(leg);
        }
        true
    }

    /// The leg that the copies are compared with, where one was named.
    pub(super) fn checked_from(&self) -> Legs {
        let from = self.check.and_then(|check| check.report.from);
        from.map(Legs::one).unwrap_or_default()
    }

    /// A leg has left: a repair from it ends.
    pub(super) fn check_without(&mut self, leg: u8) {
        if let Some(check) = &mut self.check {
            check.report.changed |= check.legs.is_some_and(|legs| legs.has(leg));
        }
        if self.checked_from().has(leg) {
            self.finish_check();
        }
    }

    /// Pauses the check, or lets it go on.
    pub fn pause_check(&mut self, paused: bool, now_ns: u64) {
        self.at(now_ns);
        if let Some(check) = &mut self.check {
            check.paused = paused;
        }
        self.outputs.wake();
    }

    /// Ends the check.
    pub fn end_check(&mut self, now_ns: u64) {
        self.at(now_ns);
        self.finish_check();
    }

    /// Returns the findings so far, or those of the last check.
    pub fn check_report(&self) -> CheckReport {
        self.check.map_or(self.report, |check| CheckReport {
            paused: check.paused,
            ..check.report
        })
    }

    /// Whether it is a check that has this copy buffer.
    pub fn is_checked_by(&self, copy: u8) -> bool {
        let job = self.copies.job(copy);
        job.is_some_and(|job| job.kind == Kind::Check)
    }

    pub(super) fn is_checking(&self) -> bool {
        self.check.is_some_and(|check| !check.paused)
    }

    fn finish_check(&mut self) {
        if let Some(check) = self.check.take() {
            self.report = check.report;
            self.outputs.news(News::Checked);
        }
    }

    /// Returns the next range for a job: first the rest of the one before it, so that nothing else
    /// comes in its place.
    pub(super) fn next_to_check(&mut self, job: usize) -> Option<Range> {
        let (regions, up) = (self.committed.geometry.regions(), self.legs.in_sync());
        let check = self.check.as_mut().filter(|check| !check.paused)?;
        if up.count() < 2 {
            check.report.alone = true;
            self.finish_check();
            return None;
        }
        let legs = *check.legs.get_or_insert(up);
        let own = check.again[job].take();
        let again = own.or_else(|| check.again.iter_mut().find_map(Option::take));
        if again.is_some() {
            return again;
        }
        if check.next >= regions {
            let checks = |job: &Job| job.kind == Kind::Check && !job.is_over();
            if !self.copies.jobs.iter().flatten().any(checks) {
                check.report.complete = true;
                check.report.changed |= up != legs;
                self.finish_check();
            }
            return None;
        }
        check.next += 1;
        let region = check.next - 1;
        Some(self.committed.geometry.bytes_of(region))
    }

    /// Leaves the rest of a job to another one.
    pub(super) fn check_again(&mut self, job: u8, range: Range) {
        let number = usize::from(job);
        if let Some(check) = self.check.as_mut().filter(|_| range.start < range.end) {
            check.differ[number] = Legs::default();
            check.again[number] = Some(range);
        }
    }

    /// A region was compared.
    pub(super) fn checked(&mut self, range: Range) {
        let compared = self.legs.in_sync().count() > 1;
        if let Some(check) = self.check.as_mut().filter(|_| compared) {
            check.report.bytes += range.end - range.start;
        }
    }

    /// No leg in sync can read the piece. A repair has it rewritten on all of them where a leg that
    /// is being rebuilt has it.
    pub(super) fn check_unreadable(&mut self, piece: Range) {
        let Some(check) = &mut self.check else {
            return; // it has ended meanwhile
        };
        check.report.unreadable += 1;
        if check.repair && !self.spares(piece, Legs::default()).is_empty() {
            let in_sync = self.legs.in_sync();
            in_sync.iter().for_each(|leg| self.repair(leg, piece));
        }
    }

    /// These legs could not write the piece of a job: they are not compared, and get it if the
    /// check repairs.
    pub(super) fn check_skips(&mut self, job: u8, legs: Legs) {
        if let Some(check) = &mut self.check {
            check.report.skipped += u64::from(legs.count());
            let differ = &mut check.differ[usize::from(job)];
            *differ = differ.with(legs);
        }
    }

    /// No leg in sync could write a piece.
    pub(super) fn check_skips_all(&mut self) {
        let legs = self.legs.in_sync().count();
        if let Some(check) = &mut self.check {
            check.report.skipped += u64::from(legs);
        }
    }

    /// A leg was compared with the piece that was read.
    pub(super) fn compared(&mut self, job: u8, leg: u8, differs: Result<Option<Range>, Outcome>) {
        let number = usize::from(job);
        if self.is_late(job, leg) {
            return;
        }
        // A region that a refused write left diverged is resynced anyhow.
        let Some(it) = self.copies.jobs[number] else {
            return;
        };
        let (mut piece, up) = (self.state.geometry.regions_in(it.piece), self.legs.in_sync());
        let known = piece.any(|region| self.diverged.has(region));
        // Legs that have left may differ, and are rebuilt.
        let gone = !up.has(leg) || !up.has(it.source);
        let mut bad = false;
        if let Some(check) = &mut self.check {
            let report = &mut check.report;
            match differs {
                Ok(None) => {}
                Ok(Some(_)) if known => {}
                _ if gone => {}
                Ok(Some(range)) => {
                    let first = report.first.iter_mut().find(|it| it.is_none());
                    if let Some(first) = first {
                        *first = Some((leg, range.start, range.end));
                    }
                    report.differences += 1;
                    bad = true;
                }
                Err(Outcome::MediaError) => {
                    report.unreadable += 1;
                    bad = true;
                }
                Err(_) => report.unreadable += 1,
            }
            if bad {
                check.differ[number].add(leg);
            }
        }
        if let Some(job) = &mut self.copies.jobs[number] {
            job.round.waits.remove(leg);
        }
        self.compare_next(job);
    }

    /// All legs were compared with the piece of a job.
    pub(super) fn compared_all(&mut self, job: u8) {
        let mut targets = Legs::default();
        if let Some(check) = &mut self.check {
            targets =
                core::mem::take(&mut check.differ[usize::from(job)]).both(self.legs.in_sync());
            if !check.repair {
                targets = Legs::default();
            }
        }
        self.write_to(job, targets);
    }

    /// A piece was rewritten on these legs.
    pub(super) fn repaired(&mut self, legs: Legs) {
        if let Some(check) = &mut self.check {
            check.report.repaired += u64::from(legs.count());
        }
    }
}
