//! Buffers that rest after their I/O has failed, and when to give up.
//!
//! # Contract
//! A failed I/O's buffer is used again after 1 ms, then after twice as long each time, at most
//! 100 ms, until one of its I/Os ends well: where no path can serve, I/Os fail at once, and a load
//! would do nothing but that at full speed. If nothing but failures came for a second, the load is
//! to give up.
//!
//! # Limits
//! One entry per buffer; nothing is allocated after construction.

const SHORTEST_NS: u64 = 1_000_000;
const LONGEST_NS: u64 = 100_000_000;
/// All I/Os failed for so long …
const GIVE_UP_NS: u64 = 1_000_000_000;
/// … and so many of them: one that timed out says nothing about the next.
const GIVE_UP_FAILURES: u32 = 10;

/// Not told the time yet.
const UNDATED: u64 = u64::MAX;

/// The resting buffers of one worker.
pub(super) struct Rest {
    /// Next pause of each buffer, ns.
    pauses: Vec<u64>,
    /// (until, buffer); those without a time are the last ones.
    resting: Vec<(u64, u32)>,
    /// The soonest time in `resting`.
    due_ns: Option<u64>,
    /// Failures since the last I/O that ended well.
    failures: u32,
    failing_since_ns: Option<u64>,
}

impl Rest {
    /// For so many buffers, all awake.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            pauses: vec![SHORTEST_NS; slots],
            resting: Vec::with_capacity(slots),
            due_ns: None,
            failures: 0,
            failing_since_ns: None,
        }
    }

    /// An I/O in this buffer ended well.
    pub(super) fn good(&mut self, slot: u32) {
        if self.failures > 0 {
            (self.failures, self.failing_since_ns) = (0, None);
        }
        self.pauses[slot as usize] = SHORTEST_NS;
    }

    /// An I/O in this buffer failed: it rests from the next [`Rest::wake`] on.
    pub(super) fn failed(&mut self, slot: u32) {
        self.failures = self.failures.saturating_add(1);
        self.resting.push((UNDATED, slot));
    }

    /// Hands the buffers to `free` that have rested long enough.
    pub(super) fn wake(&mut self, now_ns: u64, mut free: impl FnMut(u32)) {
        if self.resting.is_empty() {
            return;
        }
        for (until, slot) in self.resting.iter_mut().rev() {
            if *until != UNDATED {
                break;
            }
            let pause = &mut self.pauses[*slot as usize];
            *until = now_ns.saturating_add(*pause);
            self.due_ns = Some(self.due_ns.map_or(*until, |due| due.min(*until)));
            *pause = (*pause * 2).min(LONGEST_NS);
        }
        if self.failures > 0 {
            self.failing_since_ns.get_or_insert(now_ns);
        }
        if self.due_ns.is_none_or(|due| due > now_ns) {
            return;
        }
        self.resting.retain(|&(until, slot)| {
            let rests = until > now_ns;
            if !rests {
                free(slot);
            }
            rests
        });
        self.due_ns = self.resting.iter().map(|(until, _)| *until).min();
    }

    /// When the next buffer has rested, ns.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// How long nothing but failures came, if that is long enough to give up.
    pub(super) fn hopeless_ns(&self, now_ns: u64) -> Option<u64> {
        let for_ns = now_ns.saturating_sub(self.failing_since_ns?);
        (for_ns >= GIVE_UP_NS && self.failures >= GIVE_UP_FAILURES).then_some(for_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pause_doubles_up_to_its_longest_and_ends_with_success() {
        let mut rest = Rest::new(1);
        let mut now_ns = 0;
        for pause_ms in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
            rest.failed(0);
            rest.wake(now_ns, |_| panic!("too early"));
            assert_eq!(rest.due_ns(), Some(now_ns + pause_ms * MS));
            now_ns += pause_ms * MS;
            rest.wake(now_ns - 1, |_| panic!("too early"));
            let mut woken = 0;
            rest.wake(now_ns, |_| woken += 1);
            assert_eq!((woken, rest.due_ns()), (1, None));
        }
        rest.good(0);
        rest.failed(0);
        rest.wake(now_ns, |_| panic!("too early"));
        assert_eq!(rest.due_ns(), Some(now_ns + MS));
    }

    #[test]
    fn only_failures_without_a_success_are_hopeless() {
        let mut rest = Rest::new(10);
        let fail_all = |rest: &mut Rest, now_ns| {
            (0..10).for_each(|slot| rest.failed(slot));
            rest.wake(now_ns, |_| {});
            rest.wake(now_ns + 100 * MS, |_| {});
        };
        fail_all(&mut rest, 0);
        assert_eq!(rest.hopeless_ns(999 * MS), None);
        assert_eq!(rest.hopeless_ns(1000 * MS), Some(1000 * MS));
        rest.good(3);
        assert_eq!(rest.hopeless_ns(1000 * MS), None);
        fail_all(&mut rest, 1000 * MS);
        assert_eq!(rest.hopeless_ns(1999 * MS), None);
        assert!(rest.hopeless_ns(2000 * MS).is_some());
    }
}
