//! Acknowledged writes of a volume that may be lost, and which flushes fail for them (T13).
//!
//! A loss fails one flush, and every flush and cut change that began before it: none of them can
//! say whether those writes are durable. A failure whose caller was gone fails the next flush too.
use alloc::string::String;
use canary::Bug;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// How often unflushed writes of lost paths were given up.
    given_up: u32,
    /// How often another core did that, for its own flushes.
    given_up_elsewhere: u32,
    /// The next flush fails for this: a path left with such writes, or failed to flush them.
    next_failure: Option<String>,
    /// The first flush of any core fails for this: the engine before has lost writes.
    lost_before: Option<String>,
    /// The line of the last failure, until a caller of a flush has received one.
    reported: Option<String>,
    /// That of `lost_before`, until then: the other cores keep theirs as long.
    reported_before: Option<String>,
    /// The same; its caller was gone, and the next flush fails for it.
    unreported: Option<String>,
    /// A path of a leg left before its mirror was ours, and was not flushed: a loss if the mirror's
    /// last owner did not stop in order.
    before_claim: Option<String>,
}

impl Losses {
    /// Changes with every loss: a flush that began in another generation fails.
    #[inline(always)]
    pub(super) fn generation(&self) -> u32 {
        self.given_up
    }

    /// Changes with every loss, on any core: a change that is cut and began in another one is not
    /// known to be whole.
    #[inline(always)]
    pub(super) fn generation_of_all(&self) -> u32 {
        self.given_up.wrapping_add(self.given_up_elsewhere)
    }

    /// Another core's flushes have failed for a loss.
    pub(super) fn give_up_elsewhere(&mut self) {
        self.given_up_elsewhere = self.given_up_elsewhere.wrapping_add(1);
    }

    /// The next flush fails, for this reason.
    pub(super) fn fail_next(&mut self, line: String) {
        self.next_failure = Some(line);
    }

    /// The engine before has lost writes, and no flush has failed for that.
    pub(super) fn lose_before(&mut self, line: String) {
        self.lost_before = Some(line);
    }

    /// The caller of another core's flush has heard of that. Whether no flush of this core fails
    /// any more that would have.
    pub(super) fn reported_elsewhere(&mut self) -> bool {
        self.reported_before = None;
        let known = self.lost_before.take().is_some();
        known && self.next_failure.is_none() && self.unreported.is_none()
    }

    /// Whether a flush that begins now fails, and why: all under way fail with it.
    pub(super) fn fail_flush(&mut self) -> Option<String> {
        let (own, before) = self.take_reasons();
        let line = joined(own.clone(), before.clone())?;
        self.give_up();
        self.reported = own.or(self.reported.take());
        self.reported_before = before.or(self.reported_before.take());
        if canary::has(Bug::ToldTwice) && !line.ends_with('!') {
            self.next_failure = Some(line.clone() + "!");
        }
        Some(line)
    }

    /// All flushes under way fail.
    pub(super) fn give_up(&mut self) {
        self.given_up = self.given_up.wrapping_add(1);
    }

    /// All flushes under way fail for this reason, which was reported.
    pub(super) fn report(&mut self, line: String) {
        self.reported = Some(line);
    }

    /// A caller has received the failure of a flush. Whether other cores' flushes would still fail
    /// for the same.
    pub(super) fn acknowledge(&mut self) -> bool {
        self.reported = None;
        self.unreported = None;
        let is_shared = self.reported_before.take().is_some();
        if is_shared {
            self.lost_before = None;
        }
        is_shared
    }

    /// The caller of a flush that failed was gone: the next one fails as well. Whether there is
    /// something to fail it for.
    pub(super) fn repeat(&mut self) -> bool {
        let again = self.reported.clone();
        let before = self.reported_before.clone();
        let any = again.is_some() || before.is_some();
        self.unreported = again.or(self.unreported.take());
        self.lost_before = before.or(self.lost_before.take());
        any
    }

    /// Takes the reasons for which the next flush would fail.
    pub(super) fn take_pending(&mut self) -> Option<String> {
        let (own, before) = self.take_reasons();
        joined(own, before)
    }

    /// This engine's, and that of the engine before.
    fn take_reasons(&mut self) -> (Option<String>, Option<String>) {
        let own = self.next_failure.take().or_else(|| self.unreported.take());
        (own, self.lost_before.take())
    }

    /// A path of a leg has left before its mirror was ours.
    pub(super) fn note_before_claim(&mut self, line: String) {
        self.before_claim = Some(line);
    }

    /// The leg's mirror is ours; `is_loss`: its last owner left unflushed writes.
    pub(super) fn claim(&mut self, is_loss: bool) {
        let early = self.before_claim.take().filter(|_| is_loss);
        self.next_failure = self.next_failure.take().or(early);
    }
}

fn joined(one: Option<String>, two: Option<String>) -> Option<String> {
    match (one, two) {
        (Some(one), Some(two)) => Some(one + "; " + &two),
        (one, two) => one.or(two),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_fails_one_flush_and_those_before_it() {
        let mut it = Losses::default();
        let before = it.generation();
        assert_eq!(it.fail_flush(), None);
        it.fail_next("a".into());
        assert_eq!(it.generation(), before, "nothing failed for it yet");
        assert_eq!(it.fail_flush().as_deref(), Some("a"));
        assert_ne!(it.generation(), before);
        assert_eq!(it.fail_flush(), None);
    }

    #[test]
    fn loss_of_the_engine_before_fails_one_flush_of_all_cores() {
        let mut it = Losses::default();
        it.lose_before("a".into());
        assert!(it.reported_elsewhere());
        assert_eq!(it.fail_flush(), None);
        it.lose_before("a".into());
        it.fail_next("b".into());
        assert!(!it.reported_elsewhere(), "it has a loss of its own");
        assert_eq!(it.fail_flush().as_deref(), Some("b"));
        it.lose_before("a".into());
        assert_eq!(it.fail_flush().as_deref(), Some("a"));
    }

    /// This core's flushes fail for it themselves.
    #[test]
    fn loss_of_another_core_is_of_changes_only() {
        let mut it = Losses::default();
        let (flushes, changes) = (it.generation(), it.generation_of_all());
        it.give_up_elsewhere();
        assert_eq!(it.generation(), flushes);
        assert_ne!(it.generation_of_all(), changes);
        it.give_up();
        assert_ne!(it.generation(), flushes);
    }

    /// The other cores' flushes fail for it until a caller has heard.
    #[test]
    fn loss_of_the_engine_before_is_shared_until_heard() {
        let mut it = Losses::default();
        it.lose_before("a".into());
        assert!(it.fail_flush().is_some() && it.repeat());
        assert!(it.fail_flush().is_some());
        assert!(it.acknowledge());
        it.fail_next("b".into());
        it.fail_flush();
        assert!(!it.acknowledge(), "only of this core");
        it.lose_before("a".into());
        it.fail_flush();
        assert!(it.repeat() && it.reported_elsewhere());
        assert_eq!(it.fail_flush(), None);
        assert!(!it.acknowledge(), "the others know");
    }

    #[test]
    fn loss_of_two_reasons_names_both() {
        let mut it = Losses::default();
        it.lose_before("a".into());
        it.fail_next("b".into());
        assert_eq!(it.fail_flush().as_deref(), Some("b; a"));
        assert_eq!(it.fail_flush(), None);
    }

    #[test]
    fn failure_without_a_caller_fails_the_next() {
        let mut it = Losses::default();
        assert!(!it.repeat(), "nothing has failed");
        it.fail_next("a".into());
        it.fail_flush();
        assert!(it.repeat());
        assert_eq!(it.fail_flush().as_deref(), Some("a"));
        it.acknowledge();
        assert!(!it.repeat());
        assert_eq!(it.take_pending(), None);
    }

    #[test]
    fn path_that_left_before_claim_counts_only_as_a_loss() {
        for is_loss in [false, true] {
            let mut it = Losses::default();
            it.note_before_claim("a".into());
            assert_eq!(it.take_pending(), None);
            it.claim(is_loss);
            assert_eq!(it.take_pending().is_some(), is_loss);
            it.claim(true);
            assert_eq!(it.take_pending(), None, "once");
        }
        let mut it = Losses::default();
        it.note_before_claim("a".into());
        it.fail_next("b".into());
        it.claim(true);
        assert_eq!(it.take_pending().as_deref(), Some("b"));
    }
}
