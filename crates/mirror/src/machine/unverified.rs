//! Failed writes that the last leg in sync may still execute.
//!
//! # Contract
//! A leg that fails a request leaves, and returns when it can't execute the request any more (T9).
//! The last one in sync stays. Where its volume has not waited for that itself, the mirror does:
//! until then it writes nothing to the leg but owner records. Changes wait, for the late write may
//! overwrite them; so do copies, which would read older data, and generations, of which an old one
//! may overwrite a new one. Reads go on: a write that was answered with an error may be found, or
//! not, until then.
use super::planted::{Bug, has};
use super::{Mirror, News};

impl Mirror {
    /// The leg may execute failed requests until then. Called before their failure is reported.
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
            self.outputs.news(News::Unverified(leg));
        }
        self.unverified_until_ns = until_ns;
        self.outputs.wake();
    }

    /// Whether the last leg may still execute failed writes.
    pub(super) fn is_unverified(&self) -> bool {
        self.now_ns < self.unverified_until_ns && !has(Bug::ChangeInDoubt)
    }

    /// Ends the wait once the time is over, and resumes the I/O that waited.
    pub(super) fn end_unverified(&mut self) {
        if self.unverified_until_ns == 0 || self.now_ns < self.unverified_until_ns {
            return;
        }
        self.unverified_until_ns = 0;
        let takers = self.takers();
        self.log.write_late(takers, &mut self.outputs);
        // Else I/O that waits for the repeated update depends on its result.
        if !self.update.is_broken() {
            self.resume_waiting();
        }
    }
}
