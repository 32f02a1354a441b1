//! Failed writes that the last leg in sync may yet execute.
//!
//! # Contract
//! A leg that fails something leaves, and returns when that can't be executed any more (T9). The
//! last one in sync stays. Where its volume has not waited for that before it said that the thing
//! failed, the mirror does: until then nothing is changed on it but its owner's record. Changes
//! wait, so that nothing comes over a newer one; so do copies, which would have what was there
//! before; and events, of which an old one would come over a new one. Reads go on: what was
//! answered with an error may be found, or not, until it is over.
use super::planted::{Bug, has};
use super::{Mirror, News};

impl Mirror {
    /// What the leg was given, and has failed, may be executed until then. Said before it is told
    /// that it has failed.
    pub fn may_be_late(&mut self, leg: u8, until_ns: u64, now_ns: u64) {
        self.at(now_ns);
        let it = &mut self.legs[leg];
        it.late_until_ns = it.late_until_ns.max(until_ns);
    }

    /// The leg has failed something, and stays: it is the last one in sync.
    pub(super) fn keep_last(&mut self, leg: u8) {
        let until_ns = self.legs[leg].late_until_ns;
        if until_ns <= self.now_ns.max(self.unverified_until_ns) {
            return;
        }
        if !self.is_unverified() {
            self.news(News::Unverified(leg));
        }
        self.unverified_until_ns = until_ns;
        self.wake = true;
    }

    /// Whether what the last leg has failed may yet be executed.
    pub(super) fn is_unverified(&self) -> bool {
        self.now_ns < self.unverified_until_ns && !has(Bug::ChangeInDoubt)
    }

    /// Ends the wait once the time is over, and resumes the I/O that waited.
    pub(super) fn end_unverified(&mut self) {
        if self.unverified_until_ns == 0 || self.now_ns < self.unverified_until_ns {
            return;
        }
        self.unverified_until_ns = 0;
        self.write_late();
        // Else what waits for the event that is said again now goes by what becomes of that.
        if !self.update.is_broken() {
            self.resume_waiting();
        }
    }
}
