//! One I/O first on a path whose probation is over, before it has its share.
//!
//! Probes show that a path answers again, not that it does what it failed. So the first I/O that
//! the policy gives it, of the kind that failed, is alone there until it has ended: the path ranks
//! as one on probation meanwhile. Ended well, it has its share; else the next one is the first.
//!
//! # Contract
//! Every choice is answered by one [`Head::complete`] or [`Head::dropped`] (T41), so no path waits
//! for ever. A choice among some paths only, for an I/O that moves, begins no trial.
use super::Head;
use policy::{Group, PathIndex};

/// Paths with their first I/O to come or under way. As bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trials {
    /// The next I/O is the first.
    pub due: u64,
    /// Of these, a change of data is.
    writes: u64,
    /// It is under way.
    pub out: u64,
}

impl Head {
    /// `path` is used again: one I/O first; `writes`: a change of data, for that is what it failed.
    pub fn try_first(&mut self, path: PathIndex, writes: bool) {
        let bit = 1 << path.0;
        self.trials.due |= bit;
        self.trials.writes &= !bit;
        self.trials.writes |= u64::from(writes) << path.0;
    }

    /// Whether the first I/O of `path` is under way.
    pub fn is_tried(&self, path: PathIndex) -> bool {
        self.trials.out >> path.0 & 1 == 1
    }

    /// The policy chose a path while a first I/O is due somewhere.
    #[cold]
    pub(super) fn begin_trial(&mut self, chosen: Option<PathIndex>, group: Group) {
        let Some(path) = chosen else {
            return;
        };
        let trials = &mut self.trials;
        let first = trials.due >> path.0 & 1 == 1;
        let waits = trials.writes >> path.0 & 1 == 1 && group != Group::Write;
        if first && !waits {
            trials.due &= !(1 << path.0);
            trials.out |= 1 << path.0;
            self.show();
        }
    }

    /// An I/O of `path` has ended while a first one is under way somewhere.
    #[cold]
    pub(super) fn end_trial(&mut self, path: PathIndex, well: bool) {
        let bit = self.trials.out & 1 << path.0;
        if bit != 0 {
            self.trials.out &= !bit;
            self.trials.due |= if well { 0 } else { bit };
            self.show();
        }
    }

    /// `path` has left.
    pub(super) fn forget_trial(&mut self, path: PathIndex) {
        let bit = 1 << path.0;
        let trials = &mut self.trials;
        (trials.due, trials.out) = (trials.due & !bit, trials.out & !bit);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Head;
    use super::super::tests::head;
    use crate::Outcome;
    use policy::{Group, PathIndex, Policy, Request};

    const P0: PathIndex = PathIndex(0);
    const P1: PathIndex = PathIndex(1);

    /// Places so many I/Os; how many of them on path 0.
    fn place(head: &mut Head, group: Group, count: u32) -> u32 {
        let request = Request {
            source: 0,
            group,
            length: 4096,
            address: 0,
            now_ns: 0,
        };
        (0..count)
            .filter(|_| head.select(&request) == Some(P0))
            .count() as u32
    }

    fn end(head: &mut Head, path: PathIndex, group: Group, outcome: Outcome) {
        let ticket = head.ticket();
        head.complete(path, group, outcome, 1000, 1000, ticket);
    }

    #[test]
    fn one_io_is_first_and_the_share_comes_when_it_ends_well() {
        let mut head = head(2, Policy::RoundRobin { bytes: 0 });
        head.try_first(P0, false);
        assert_eq!(place(&mut head, Group::Read, 8), 1);
        // What fails, or is dropped, is followed by another first one.
        end(&mut head, P0, Group::Read, Outcome::PathError);
        assert_eq!(place(&mut head, Group::Read, 8), 1);
        let ticket = head.ticket();
        head.dropped(P0, Group::Read, 1000, ticket);
        assert_eq!(place(&mut head, Group::Read, 8), 1);
        end(&mut head, P1, Group::Read, Outcome::Done);
        assert_eq!(place(&mut head, Group::Read, 8), 0);
        end(&mut head, P0, Group::Read, Outcome::Done);
        assert_eq!(place(&mut head, Group::Read, 8), 4);
    }

    #[test]
    fn first_io_is_of_the_kind_that_failed() {
        let mut head = head(2, Policy::RoundRobin { bytes: 0 });
        head.try_first(P0, true);
        assert_eq!(place(&mut head, Group::Read, 8), 4);
        assert_eq!(place(&mut head, Group::Write, 8), 1);
        assert_eq!(place(&mut head, Group::Read, 8), 0);
    }

    #[test]
    fn t45_only_path_has_all_io_during_its_first() {
        let mut head = head(1, Policy::QueueDepth);
        head.try_first(P0, false);
        assert_eq!(place(&mut head, Group::Read, 8), 8);
    }
}
