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
use super::Mirror;
use super::jobs::Kind;
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

impl Mirror {
    /// Compares all copies, and makes them the same if `repair`; an earlier one ends. Of a mirror
    /// that can only be read one copy is used, and nothing is compared.
    pub fn check(&mut self, repair: bool, now_ns: u64) {
        self.at(now_ns);
        if self.read_only {
            return;
        }
        self.checks.begin(repair, None);
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
        self.checks.begin(true, Some(leg));
        self.startup.needs_write = true;
        self.outputs.wake();
        true
    }

    /// Pauses the check, or lets it go on.
    pub fn pause_check(&mut self, paused: bool, now_ns: u64) {
        self.at(now_ns);
        self.checks.pause(paused);
        self.outputs.wake();
    }

    /// Ends the check.
    pub fn end_check(&mut self, now_ns: u64) {
        self.at(now_ns);
        self.checks.end(&mut self.outputs);
    }

    /// Returns the findings so far, or those of the last check.
    pub fn check_report(&self) -> CheckReport {
        self.checks.report()
    }

    /// Whether it is a check that has this copy buffer.
    pub fn is_checked_by(&self, copy: u8) -> bool {
        let job = self.copies.get(copy);
        job.is_some_and(|job| job.kind == Kind::Check)
    }

    /// A leg was compared with the piece that was read.
    pub(super) fn compared(&mut self, job: u8, leg: u8, differs: Result<Option<Range>, Outcome>) {
        if self.copies.take_late(job, leg, &mut self.outputs) {
            return;
        }
        // A region that a refused write left diverged is resynced anyhow.
        let it = self.copies.expect(job);
        let (mut piece, up) = (self.generation.regions_in(it.piece), self.legs.in_sync());
        it.round.waits.remove(leg);
        let source = it.source;
        let known = piece.any(|region| self.diverged.has(region));
        // Legs that have left may differ, and are rebuilt.
        let gone = !up.has(leg) || !up.has(source);
        let is_known = known && matches!(differs, Ok(Some(_)));
        if !gone && !is_known {
            self.checks.add_result(job, leg, differs);
        }
        self.compare_next(job);
    }
}
