//! A user accepts the loss of the last leg in sync: how the other legs get its data.
//!
//! # Contract
//! The leg's data behind its cut count from then on. Each other leg may have something else there,
//! so these regions are marked as missed by stale legs, and as lacking on those that are being
//! rebuilt. The bitmap on the leg has them before its superblock drops the cut. The bitmap is
//! written once before that, as it is: a leg that can't be written, or loses more meanwhile, ends
//! the acceptance, and nothing was marked for it.
use super::{Mirror, commit::RETRY_NS};
use block::Range;

/// Progress of the acceptance of a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Acceptance {
    /// No user has accepted it.
    #[default]
    None,
    /// A user has accepted it; nothing was done yet.
    Asked,
    /// The bitmap is written as it is.
    Trying,
    /// The regions are marked; the bitmap is written with them.
    Marking,
    /// The bitmap has them: the next superblock of the leg has no cut.
    Marked,
}

/// State of all acceptances.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accepting {
    /// A page of the bitmap could not be written since one began to be.
    pub page_failed: bool,
    /// When it is tried again, ns.
    again_at_ns: u64,
}

impl Mirror {
    /// A user accepts the data behind the cut of the last leg in sync. Until that is on the leg,
    /// I/O there goes on to fail. It is over without effect if the leg loses more before. Returns
    /// false if there is nothing to accept.
    pub fn accept_cut(&mut self, leg: u8, now_ns: u64) -> bool {
        self.at(now_ns);
        let last = self
            .legs
            .last_cut()
            .filter(|it| it.0 == leg && !self.read_only);
        let Some((_, cut)) = last else {
            return false;
        };
        if cut.acceptance == Acceptance::None {
            self.legs.set_acceptance(leg, cut, Acceptance::Asked);
        }
        self.outputs.wake();
        true
    }

    /// Advances the acceptance of the last leg's loss.
    pub(super) fn advance_acceptance(&mut self) {
        let Some((leg, cut)) = self.legs.last_cut() else {
            return; // nothing is lost
        };
        let ready =
            self.startup.is_running() && !self.log.is_writing_all() && !self.stop.is_begun();
        if !ready || self.now_ns < self.accepting.again_at_ns {
            return;
        }
        let failed = core::mem::take(&mut self.accepting.page_failed);
        let next = match cut.acceptance {
            Acceptance::None | Acceptance::Marked => return,
            Acceptance::Asked => Acceptance::Trying,
            Acceptance::Trying | Acceptance::Marking if failed => Acceptance::Asked,
            Acceptance::Trying => Acceptance::Marking,
            Acceptance::Marking => Acceptance::Marked,
        };
        self.legs.set_acceptance(leg, cut, next);
        match next {
            Acceptance::None => {}
            Acceptance::Asked => self.accepting.again_at_ns = self.now_ns.saturating_add(RETRY_NS),
            Acceptance::Trying => self.write_all_from(0),
            Acceptance::Marking => {
                self.mark_cut(leg);
                self.write_all_from(0);
            }
            Acceptance::Marked => {
                self.cut_committed(); // where nothing of it stands on the leg
                self.startup.needs_write = true;
            }
        }
        self.outputs.wake();
    }

    /// All regions behind the cut of the last leg in sync are missed by every other one.
    fn mark_cut(&mut self, leg: u8) {
        let range = Range {
            start: self.legs[leg].cut_end().unwrap_or(0), // it may have lost all
            end: self.generation.committed().geometry.bytes,
        };
        if range.start >= range.end {
            return;
        }
        for region in self.generation.regions_in(range) {
            self.note_missed(region);
            self.log.set_dirty(region);
        }
        let clear_at_ns = self.now_ns.saturating_add(self.config.clear_after_ns);
        self.log.clear_by(clear_at_ns);
        self.mark_diverged(range);
    }

    /// When an acceptance is tried again, ns.
    pub(super) fn accepts_at(&self) -> u64 {
        let acceptance = self.legs.last_cut().map(|(_, cut)| cut.acceptance);
        let at_ns = self.accepting.again_at_ns;
        if acceptance == Some(Acceptance::Asked) && at_ns > self.now_ns && !self.stop.is_begun() {
            at_ns
        } else {
            u64::MAX
        }
    }
}
