//! Disposition of an I/O that a leg has ended: by its outcome, its kind, and whether another leg
//! has the data.
//!
//! A leg is a copy, not a path: another copy may have data that this one can't return (T2),
//! whatever it advised about a retry (T3). The paths of one leg belong to its own head
//! (`multipath::dispose`); its outcome comes here when that has ended.
//!
//! # Contract
//! Pure. A read goes to another copy for every failure of the leg; it is repaired only after a
//! medium error. A leg with a medium error in a change stays, without these blocks. A leg that
//! missed a change otherwise, or failed a flush, leaves, and the change is acknowledged when that
//! is durable (T14); the last copy never leaves (T45). A reservation of another host stops the I/O:
//! no other copy is read (T35), and no leg leaves.
//!
//! # Limits
//! Every disposition but [`LegDisposition::Complete`] takes a leg out of the choice for this I/O,
//! so there are at most as many as legs (T4).
use block::Outcome;

/// Kind of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write, write zeroes, deallocate.
    Change,
    /// Flush.
    Flush,
}

/// A leg's part of an I/O that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegAttempt {
    /// Its kind.
    pub access: Access,
    /// Another leg has these data and was not tried yet (read), or does the same and has not failed
    /// (change, flush).
    pub another: bool,
}

/// Disposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegDisposition {
    /// This part has ended with its outcome; without another leg, so has the I/O.
    Complete,
    /// Another leg is read.
    Another {
        /// The data of the other leg are written to this one, unless a newer write touched the
        /// range (T5).
        repair: bool,
    },
    /// The blocks are recorded as bad on this leg, which stays; without room for that it leaves.
    Record,
    /// This leg leaves the mirror; the others go on.
    Retire,
}

/// Returns the disposition after `outcome` of one leg.
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
