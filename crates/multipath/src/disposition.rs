//! Disposition of an I/O whose attempt on a path has ended: decided from the outcome and the I/O's
//! history, for the engine.
//!
//! # Contract
//! Pure: the same [`Attempt`] always gets the same answer. A route that failed is tried elsewhere,
//! a busy path again; all else ends the I/O, since another *path* leads to the same data, the same
//! reservation and the same range (T2, T35). An error without a retry here (DNR, T3) is
//! no [`Outcome::Busy`] when it gets here. A path that stays busy is left for each of the others
//! once: what it waits for may be its own trouble, and it said that it did nothing. A user that
//! would lose more than time by a failure waits for as long as attempts may take (T6). A change of
//! data that no one answered for is held before anything else is done with it (T9).
//!
//! # Limits
//! Moves, repetitions and the time spent in attempts are bounded (T4).
use crate::Outcome;
use canary::Bug;

/// One attempt that has ended, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// It may have changed data, nobody said whether, and it may yet do so.
    pub uncertain: bool,
    /// Moves to another path so far.
    pub hops: u8,
    /// Most of them.
    pub hops_max: u8,
    /// Paths there are, this one among them.
    pub paths: u8,
    /// Repetitions on a busy path so far.
    pub retries: u8,
    /// Most of them.
    pub retries_max: u8,
    /// Time left for further attempts, ns.
    pub left_ns: u64,
    /// It had better wait than fail: a mirror goes on without a leg that missed a change (T6).
    pub patient: bool,
}

/// Disposition of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It has ended with its outcome.
    Complete,
    /// The same path again, after a wait.
    Retry {
        /// Wait, ns.
        after_ns: u64,
    },
    /// Another path, at once.
    FailOver,
    /// No path until the controller that has it can't execute it any more (T9).
    Hold,
}

/// First wait for a busy path that names none; doubled with each repetition, so that five of them
/// span a third of a second, the time of a short internal recovery, and none spins.
const RETRY_NS: u64 = 10_000_000;
/// The longest wait of who is patient, where none is named.
const PATIENT_NS: u64 = 1_000_000_000;

/// Disposition after `outcome`.
pub fn dispose(outcome: Outcome, attempt: &Attempt) -> Disposition {
    match outcome {
        Outcome::PathError | Outcome::TimedOut => {
            if attempt.uncertain && !canary::has(Bug::Unfenced) {
                Disposition::Hold
            } else if (attempt.hops < attempt.hops_max || canary::has(Bug::EndlessMoves))
                && attempt.left_ns > 0
            {
                Disposition::FailOver
            } else {
                Disposition::Complete
            }
        }
        Outcome::Busy { after_ns } => {
            let own_ns = RETRY_NS << attempt.retries.min(16);
            let after_ns = if after_ns == 0 { own_ns } else { after_ns };
            let stays = canary::has(Bug::BusyStays);
            let others = if stays { 1 } else { attempt.paths };
            let hops_max = attempt.hops_max.min(others.saturating_sub(1));
            if attempt.retries < attempt.retries_max && after_ns < attempt.left_ns {
                Disposition::Retry { after_ns }
            } else if attempt.hops < hops_max && attempt.left_ns > 0 {
                Disposition::FailOver
            } else if attempt.patient {
                let after_ns = match after_ns == own_ns {
                    true => own_ns.min(PATIENT_NS),
                    false => after_ns,
                };
                match after_ns < attempt.left_ns {
                    true => Disposition::Retry { after_ns },
                    false => Disposition::Complete,
                }
            } else {
                Disposition::Complete
            }
        }
        _ => Disposition::Complete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Attempt = Attempt {
        uncertain: false,
        hops: 0,
        hops_max: 4,
        paths: 2,
        retries: 0,
        retries_max: 5,
        left_ns: 30_000_000_000,
        patient: false,
    };

    #[test]
    fn t02_t35_only_a_failed_route_moves() {
        for outcome in [
            Outcome::Done,
            Outcome::MediaError,
            Outcome::CutShort,
            Outcome::Erased,
            Outcome::NoSpace,
            Outcome::ReadOnly,
            Outcome::Denied,
            Outcome::Mismatch,
            Outcome::Reservation,
            Outcome::Unsupported,
            Outcome::Invalid,
            Outcome::PastEnd,
        ] {
            for uncertain in [false, true] {
                let attempt = Attempt { uncertain, ..FIRST };
                assert_eq!(dispose(outcome, &attempt), Disposition::Complete);
            }
        }
        for outcome in [Outcome::PathError, Outcome::TimedOut] {
            assert_eq!(dispose(outcome, &FIRST), Disposition::FailOver);
        }
    }

    #[test]
    fn t09_what_nobody_answered_for_is_held_even_when_no_move_is_left() {
        for hops in [0, 4] {
            let attempt = Attempt {
                uncertain: true,
                hops,
                left_ns: 0,
                ..FIRST
            };
            assert_eq!(dispose(Outcome::PathError, &attempt), Disposition::Hold);
        }
    }

    #[test]
    fn t01_the_path_names_the_wait_or_we_do() {
        let wait = |after_ns, retries| {
            let attempt = Attempt { retries, ..FIRST };
            dispose(Outcome::Busy { after_ns }, &attempt)
        };
        let ms = |n: u64| Disposition::Retry {
            after_ns: n * 1_000_000,
        };
        assert_eq!(wait(100_000_000, 3), ms(100));
        assert_eq!(
            [wait(0, 0), wait(0, 1), wait(0, 4)],
            [ms(10), ms(20), ms(160)]
        );
        assert_eq!(wait(0, 5), Disposition::FailOver);
        assert_eq!(wait(30_000_000_000, 0), Disposition::FailOver, "too late");
    }

    #[test]
    fn t06_who_is_patient_waits_for_a_busy_path_as_long_as_there_is_time() {
        let after = |after_ns, retries, left_ns| {
            let attempt = Attempt {
                paths: 1,
                retries,
                left_ns,
                patient: true,
                ..FIRST
            };
            dispose(Outcome::Busy { after_ns }, &attempt)
        };
        let ms = |n: u64| Disposition::Retry {
            after_ns: n * 1_000_000,
        };
        let second = 1_000_000_000;
        assert_eq!(after(0, 5, 30 * second), ms(320));
        assert_eq!(after(0, 255, 30 * second), ms(1000));
        assert_eq!(after(5 * second, 255, 30 * second), ms(5000));
        assert_eq!(after(0, 255, second), Disposition::Complete);
    }

    #[test]
    fn t04_a_path_that_stays_busy_is_left_for_each_of_the_others_once() {
        let after = |hops, paths| {
            let attempt = Attempt {
                hops,
                paths,
                retries: 5,
                ..FIRST
            };
            dispose(Outcome::Busy { after_ns: 0 }, &attempt)
        };
        assert_eq!(after(0, 1), Disposition::Complete, "there is no other");
        assert_eq!(after(0, 3), Disposition::FailOver);
        assert_eq!(after(1, 3), Disposition::FailOver);
        assert_eq!(after(2, 3), Disposition::Complete);
        assert_eq!(
            after(4, 9),
            Disposition::Complete,
            "more moves than allowed"
        );
    }

    /// Whatever two half-sick paths say, an I/O comes to an end.
    #[test]
    fn t04_no_sequence_of_outcomes_goes_on_for_ever() {
        let outcomes = [Outcome::PathError, Outcome::Busy { after_ns: 1 }];
        for seed in 0..1_u32 << 12 {
            let mut attempt = FIRST;
            let mut steps = 0;
            loop {
                match dispose(outcomes[(seed >> (steps % 12) & 1) as usize], &attempt) {
                    Disposition::Complete => break,
                    Disposition::Retry { .. } => attempt.retries += 1,
                    Disposition::FailOver => attempt.hops += 1,
                    Disposition::Hold => unreachable!("nothing is uncertain"),
                }
                steps += 1;
                assert!(steps <= 9, "{seed:b}");
            }
        }
        let late = Attempt {
            left_ns: 0,
            ..FIRST
        };
        assert_eq!(dispose(Outcome::PathError, &late), Disposition::Complete);
    }
}
