//! One I/O first on a path whose probation is over, before it has its share.
//!
//! Probes show that a path answers again, not that it does what it failed. So the first I/O that
//! the policy gives it, of the kind that failed, is alone there until it has ended: the path ranks
//! as one on probation meanwhile. Ended well, it has its share; else the next one is the first.
//! Where changes of data failed, a change is the first of all; reads go on beside it that had not
//! failed. Where both had failed, whichever comes first is the first, and after a read a change
//! is due as well.
//!
//! # Contract
//! Every choice is answered by one [`Head::complete`] or [`Head::dropped`] (T41), with the ticket
//! of the choice, so no path waits for ever: only that I/O ends the time of the first. A choice
//! among some paths only, for an I/O that moves, begins no trial.
use super::Head;
use policy::{Group, PathIndex, Ticket};

/// Paths with their first I/O to come or under way. As bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trials {
    /// The next I/O is the first.
    pub due: u64,
    /// Of these, a change of data is.
    writes: u64,
    /// Of these, a change of data is the next one after a read.
    then: u64,
    /// It is under way.
    pub out: u64,
    /// The last choice was one.
    pub begun: bool,
}

impl Head {
    /// `path` is used again: one I/O first. `writes`: a change of data, for that is what it failed;
    /// `reads`: it failed reads as well.
    pub fn try_first(&mut self, path: PathIndex, reads: bool, writes: bool) {
        let bit = 1 << path.0;
        let set = |bits: &mut u64, on: bool| *bits = *bits & !bit | u64::from(on) << path.0;
        set(&mut self.trials.due, true);
        set(&mut self.trials.writes, writes && !reads);
        set(&mut self.trials.then, writes && reads);
    }

    /// Whether the first I/O of `path` is under way.
    pub fn is_tried(&self, path: PathIndex) -> bool {
        self.trials.out >> path.0 & 1 == 1
    }

    /// The policy chose a path while a first I/O is due somewhere, or the last choice was one.
    #[cold]
    pub(super) fn begin_trial(&mut self, chosen: Option<PathIndex>, group: Group) {
        let trials = &mut self.trials;
        trials.begun = false;
        let Some(path) = chosen else {
            return; // no path is usable: the I/O waits
        };
        let bit = 1 << path.0;
        let write = group == Group::Write;
        let waits = trials.writes & bit != 0 && !write;
        if trials.due & bit == 0 || waits {
            return;
        }
        trials.due &= !bit;
        trials.out |= bit;
        trials.begun = true;
        if write {
            // Its result covers the rest, and if it fails it is a change that is due.
            trials.writes |= trials.then & bit;
            trials.then &= !bit;
        }
        self.show();
    }

    /// An I/O of `path` has ended while a first one is under way somewhere.
    #[cold]
    pub(super) fn end_trial(&mut self, path: PathIndex, ticket: &Ticket, well: bool) {
        let trials = &mut self.trials;
        let bit = trials.out & 1 << path.0;
        if bit == 0 || !ticket.is_first() {
            return;
        }
        trials.out &= !bit;
        if !well {
            trials.due |= bit;
        } else if trials.then & bit != 0 {
            trials.then &= !bit;
            trials.writes |= bit;
            trials.due |= bit;
        }
        self.show();
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
    use alloc::vec::Vec;
    use policy::{Group, PathIndex, Policy, Request, Ticket};

    const P0: PathIndex = PathIndex(0);
    const P1: PathIndex = PathIndex(1);

    /// Places so many I/Os; those that path 0 has.
    fn place(head: &mut Head, group: Group, count: u32) -> Vec<Ticket> {
        let request = Request {
            source: 0,
            group,
            length: 4096,
            address: 0,
            now_ns: 0,
        };
        let mut tickets = Vec::new();
        for _ in 0..count {
            if head.select(&request) == Some(P0) {
                tickets.push(head.ticket());
            }
        }
        tickets
    }

    fn end(head: &mut Head, path: PathIndex, group: Group, outcome: Outcome, ticket: Ticket) {
        head.complete(path, group, outcome, 1000, 1000, ticket);
    }

    #[test]
    fn one_io_is_first_and_the_share_comes_when_it_ends_well() {
        let mut head = head(2, Policy::RoundRobin { bytes: 0 });
        head.try_first(P0, true, false);
        let first = place(&mut head, Group::Read, 8);
        assert_eq!(first.len(), 1);
        // A trial that fails, or is dropped, is followed by another first one.
        end(&mut head, P0, Group::Read, Outcome::PathError, first[0]);
        let second = place(&mut head, Group::Read, 8);
        assert_eq!(second.len(), 1);
        head.dropped(P0, Group::Read, 1000, second[0]);
        let third = place(&mut head, Group::Read, 8);
        assert_eq!(third.len(), 1);
        end(&mut head, P1, Group::Read, Outcome::Done, Ticket::default());
        assert_eq!(place(&mut head, Group::Read, 8).len(), 0);
        end(&mut head, P0, Group::Read, Outcome::Done, third[0]);
        assert_eq!(place(&mut head, Group::Read, 8).len(), 4);
    }

    #[test]
    fn first_io_is_of_the_kind_that_failed() {
        let mut head = head(2, Policy::RoundRobin { bytes: 0 });
        head.try_first(P0, false, true);
        assert_eq!(place(&mut head, Group::Read, 8).len(), 4);
        assert_eq!(place(&mut head, Group::Write, 8).len(), 1);
        assert_eq!(place(&mut head, Group::Read, 8).len(), 0);
    }

    #[test]
    fn only_the_first_io_ends_its_time() {
        let mut head = head(2, Policy::RoundRobin { bytes: 0 });
        let old = place(&mut head, Group::Write, 8);
        head.try_first(P0, false, true);
        let reads = place(&mut head, Group::Read, 8);
        let first = place(&mut head, Group::Write, 8);
        assert_eq!((old.len(), reads.len(), first.len()), (4, 4, 1));
        end(&mut head, P0, Group::Read, Outcome::Done, reads[0]);
        end(
            &mut head,
            P0,
            Group::Other,
            Outcome::Done,
            Ticket::default(),
        );
        end(&mut head, P0, Group::Write, Outcome::Done, old[0]);
        assert_eq!(place(&mut head, Group::Write, 8).len(), 0);
        // Nor does it make another one the first.
        end(&mut head, P0, Group::Write, Outcome::PathError, old[1]);
        assert!(head.is_tried(P0));
        assert_eq!(place(&mut head, Group::Write, 8).len(), 0);
        // A choice among some paths is no first one.
        let request = Request {
            source: 0,
            group: Group::Write,
            length: 4096,
            address: 0,
            now_ns: 0,
        };
        head.select_only(&request, P0).unwrap();
        assert!(!head.ticket().is_first());
        end(&mut head, P0, Group::Write, Outcome::Done, first[0]);
        assert_eq!(place(&mut head, Group::Write, 8).len(), 4);
    }

    #[test]
    fn after_a_first_read_a_change_is_due_where_both_failed() {
        let mut head = head(2, Policy::RoundRobin { bytes: 0 });
        head.try_first(P0, true, true);
        let first = place(&mut head, Group::Read, 8);
        assert_eq!(first.len(), 1);
        end(&mut head, P0, Group::Read, Outcome::Done, first[0]);
        assert_eq!(place(&mut head, Group::Read, 8).len(), 4);
        let first = place(&mut head, Group::Write, 8);
        assert_eq!(first.len(), 1);
        end(&mut head, P0, Group::Write, Outcome::Done, first[0]);
        assert_eq!(place(&mut head, Group::Write, 8).len(), 4);
        // A change shows all at once.
        head.try_first(P0, true, true);
        let first = place(&mut head, Group::Write, 8);
        assert_eq!(first.len(), 1);
        end(&mut head, P0, Group::Write, Outcome::Done, first[0]);
        assert_eq!(place(&mut head, Group::Read, 8).len(), 4);
    }

    #[test]
    fn t45_only_path_has_all_io_during_its_first() {
        let mut head = head(1, Policy::QueueDepth);
        head.try_first(P0, true, false);
        assert_eq!(place(&mut head, Group::Read, 8).len(), 8);
    }
}
