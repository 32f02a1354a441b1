//! What a mirror does when a leg has ended its part of an I/O: decided from the outcome, from what
//! was asked of the leg, and from whether another leg has the data.
//!
//! A leg is a copy, not a route: what it can't give, another copy may have (T2), whatever it said
//! of trying again (T3). The paths of one leg are its own head's matter
//! (`multipath::dispose`); its outcome comes here when that has ended.
//!
//! # Contract
//! Pure. A read goes to another copy for every failure that is the leg's and not the request's; it
//! is repaired only where the leg says that its copy is bad. A leg whose medium refused a change
//! stays, without these blocks. One that missed a change otherwise or can't say that it kept one is
//! out of step, so it leaves, and the change is acknowledged when that is
//! durable (T14); the last copy never leaves (T45). A reservation is another host's word to stop:
//! no copy is read past it (T35), and no leg pays for it.
//!
//! # Limits
//! Every answer but [`LegDisposition::Complete`] takes a leg out of the choice for this I/O, so
//! there are at most as many as legs (T4).
use block::Outcome;

/// What was asked of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To give data.
    Read,
    /// To change data: write, zero, deallocate.
    Change,
    /// To keep what it was given.
    Flush,
}

/// A leg's part of an I/O that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegAttempt {
    /// What was asked of it.
    pub access: Access,
    /// Another leg has these data and was not asked yet (read), or does the same and has not failed
    /// (change, flush).
    pub another: bool,
}

/// What the mirror does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegDisposition {
    /// This part has ended with its outcome; without another leg, so has the I/O.
    Complete,
    /// Another leg is read.
    Another {
        /// What it has is written over what this one could not give, unless a newer write touched
        /// the range (T5).
        repair: bool,
    },
    /// The blocks are recorded as bad on this leg, which stays; without room for that it leaves.
    Record,
    /// This leg leaves the mirror; the others go on.
    Retire,
}

/// What a mirror does after `outcome` of one leg.
pub fn dispose_leg(outcome: Outcome, attempt: &LegAttempt) -> LegDisposition {
    let stops = match outcome {
        Outcome::Done | Outcome::Stopped | Outcome::Reservation => true,
        // The copy is there, and differs from what it was compared with.
        Outcome::Mismatch => true,
        Outcome::PathError
        | Outcome::TimedOut
        | Outcome::Busy { .. }
        | Outcome::MediaError
        | Outcome::CutShort
        | Outcome::Erased
        | Outcome::NoSpace
        | Outcome::ReadOnly
        | Outcome::Denied
        | Outcome::Unsupported
        | Outcome::Invalid
        | Outcome::PastEnd => false,
    };
    match attempt.access {
        _ if stops || !attempt.another => LegDisposition::Complete,
        Access::Read => LegDisposition::Another {
            repair: outcome == Outcome::MediaError,
        },
        Access::Change if outcome == Outcome::MediaError => LegDisposition::Record,
        Access::Change | Access::Flush => LegDisposition::Retire,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURES: [Outcome; 12] = [
        Outcome::CutShort,
        Outcome::Erased,
        Outcome::PathError,
        Outcome::TimedOut,
        Outcome::Busy { after_ns: 7 },
        Outcome::MediaError,
        Outcome::NoSpace,
        Outcome::ReadOnly,
        Outcome::Denied,
        Outcome::Unsupported,
        Outcome::Invalid,
        Outcome::PastEnd,
    ];
    const ENDS: [Outcome; 4] = [
        Outcome::Done,
        Outcome::Stopped,
        Outcome::Reservation,
        Outcome::Mismatch,
    ];
    const ALL: [Access; 3] = [Access::Read, Access::Change, Access::Flush];

    fn with_another(outcome: Outcome, access: Access) -> LegDisposition {
        let another = true;
        dispose_leg(outcome, &LegAttempt { access, another })
    }

    #[test]
    fn t02_a_media_read_error_moves_between_copies_and_is_repaired() {
        for outcome in FAILURES {
            let repair = outcome == Outcome::MediaError;
            assert_eq!(
                with_another(outcome, Access::Read),
                LegDisposition::Another { repair },
                "{outcome}"
            );
        }
    }

    #[test]
    fn t14_a_leg_that_missed_a_change_leaves_before_it_is_acknowledged() {
        for outcome in FAILURES {
            for access in [Access::Change, Access::Flush] {
                let disposition = with_another(outcome, access);
                let expected = match (outcome, access) {
                    (Outcome::MediaError, Access::Change) => LegDisposition::Record,
                    _ => LegDisposition::Retire,
                };
                assert_eq!(disposition, expected, "{outcome}");
            }
        }
    }

    #[test]
    fn t35_a_reservation_stops_and_costs_no_leg() {
        for outcome in ENDS {
            for access in ALL {
                let disposition = with_another(outcome, access);
                assert_eq!(disposition, LegDisposition::Complete, "{outcome}");
            }
        }
    }

    #[test]
    fn t45_the_last_copy_never_leaves() {
        for outcome in FAILURES.into_iter().chain(ENDS) {
            for access in ALL {
                let another = false;
                let disposition = dispose_leg(outcome, &LegAttempt { access, another });
                assert_eq!(disposition, LegDisposition::Complete, "{outcome}");
            }
        }
    }
}
