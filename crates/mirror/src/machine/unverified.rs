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

/// Until when the last leg in sync may execute what it has failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unverified {
    /// 0: it executes nothing late.
    until_ns: u64,
}

impl Unverified {
    /// Whether it may still execute failed writes.
    pub fn is_held(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns && !has(Bug::ChangeInDoubt)
    }

    /// Until when, ns; 0: it executes nothing late. Also a time that is over, until
    /// [`Self::end`] was called.
    pub fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// It may until then. Returns whether that is later than known.
    fn extend(&mut self, until_ns: u64, now_ns: u64) -> bool {
        let is_later = until_ns > now_ns.max(self.until_ns);
        if is_later {
            self.until_ns = until_ns;
        }
        is_later
    }

    /// Ends it when the time is over. Returns whether it ends now.
    fn end(&mut self, now_ns: u64) -> bool {
        let is_over = self.until_ns != 0 && now_ns >= self.until_ns;
        if is_over {
            self.until_ns = 0;
        }
        is_over
    }
}

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
        let was_held = self.unverified.is_held(self.now_ns);
        if !self.unverified.extend(until_ns, self.now_ns) {
            return; // changes wait for that already, or it executes nothing late
        }
        if !was_held {
            self.outputs.news(News::Unverified(leg));
        }
        self.outputs.wake();
    }

    /// Ends the wait once the time is over, and resumes the I/O that waited.
    pub(super) fn end_unverified(&mut self) {
        if !self.unverified.end(self.now_ns) {
            return; // not yet, or there is none
        }
        let takers = self.takers();
        self.log.write_late(takers, &mut self.outputs);
        // Else I/O that waits for the repeated update depends on its result.
        if !self.update.is_broken() {
            self.resume_waiting();
        }
    }
}
