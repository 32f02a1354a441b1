//! Meaning of an answer for the volume: the one table from status codes to [`Outcome`].
//!
//! A route that failed is a path error whatever its Do Not Retry bit says: that bit ends what is
//! tried on this path (T3), and another one may do it (T2). An error that may pass by itself is
//! [`Outcome::Busy`] unless the controller forbids to try again; the wait it asks for is looked up
//! in its own table (T1). Where it forbids that, a transfer that failed is a matter of this route,
//! and all else an error: another path leads to the same controller's data.
use multipath::Outcome;
use nvme::wire::Status;
use nvme::wire::status::Class;

/// A transfer that failed so often, and each time in passing, is no more likely to succeed on this
/// path (Base 2.0, 22h of the generic codes: four times or more). Then the route has failed.
const TRANSFERS_MAX: u8 = 4;

/// The outcome of a command that ended with `status`; `crdt` as the controller reports it (units of
/// 100 ms); `retries`: repetitions before it.
#[inline]
pub fn outcome(status: Status, crdt: &[u16; 3], retries: u8) -> Outcome {
    if status.is_success() {
        Outcome::Done
    } else {
        failure(status, crdt, retries)
    }
}

#[cold]
fn failure(status: Status, crdt: &[u16; 3], retries: u8) -> Outcome {
    let busy = Outcome::Busy {
        after_ns: retry_delay_ns(status, crdt),
    };
    let persistent = status.dnr() || retries >= TRANSFERS_MAX - 1;
    match status.class() {
        Class::Success => Outcome::Done,
        Class::Path | Class::Ana | Class::Namespace => Outcome::PathError,
        Class::Transport if persistent => Outcome::PathError,
        Class::Transport => busy,
        Class::Retry | Class::Internal if !status.dnr() => busy,
        // Another copy may have what this controller can't give.
        Class::Retry | Class::Internal | Class::Media => Outcome::MediaError,
        // No block of it is bad: all of it is, and for ever (T14).
        Class::Erased => Outcome::Erased,
        Class::Compare => Outcome::Mismatch,
        Class::Capacity => Outcome::NoSpace,
        Class::ReadOnly => Outcome::ReadOnly,
        Class::Denied => Outcome::Denied,
        Class::Reservation => Outcome::Reservation,
        Class::Unsupported => Outcome::Unsupported,
        Class::Range => Outcome::PastEnd,
        Class::Invalid => Outcome::Invalid,
    }
}

/// Command Retry Delay (Base 2.0, 3.3.3.2.1).
fn retry_delay_ns(status: Status, crdt: &[u16; 3]) -> u64 {
    let units = status
        .crd()
        .and_then(|index| crdt.get(index))
        .copied()
        .unwrap_or(0);
    u64::from(units) * 100_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRDT: [u16; 3] = [1, 20, 300];

    #[test]
    fn t01_the_delay_is_that_of_the_selector_less_one() {
        let busy = |crd| outcome(Status::NAMESPACE_NOT_READY.with_crd(crd), &CRDT, 0);
        let after = [0, 100_000_000, 2_000_000_000, 30_000_000_000];
        for (crd, after_ns) in (0..).zip(after) {
            assert_eq!(busy(crd), Outcome::Busy { after_ns }, "CRD {crd}");
        }
    }

    #[test]
    fn t02_what_may_move_to_another_path_and_what_may_not() {
        for (status, want) in [
            (Status::SUCCESS, Outcome::Done),
            (Status::INTERNAL_PATH, Outcome::PathError),
            (Status::ANA_PERSISTENT_LOSS, Outcome::PathError),
            (Status::ANA_INACCESSIBLE, Outcome::PathError),
            (Status::ANA_TRANSITION, Outcome::PathError),
            (Status::CONTROLLER_PATH, Outcome::PathError),
            (Status::HOST_PATH, Outcome::PathError),
            (Status::HOST_ABORTED, Outcome::PathError),
            (Status::SQ_DELETION, Outcome::PathError),
            (Status::KEEP_ALIVE_EXPIRED, Outcome::PathError),
            (Status::INVALID_NAMESPACE.with_dnr(), Outcome::PathError),
            (Status::SANITIZE_IN_PROGRESS, Outcome::Erased),
            (Status::SANITIZE_FAILED, Outcome::Erased),
            (Status::ACCESS_DENIED, Outcome::Denied),
            (Status::PREEMPT_ABORT, Outcome::Reservation),
            (Status::UNRECOVERED_READ, Outcome::MediaError),
            (Status::WRITE_FAULT, Outcome::MediaError),
            (Status::GUARD_CHECK, Outcome::MediaError),
            (Status::REF_TAG_CHECK, Outcome::MediaError),
            (Status::COMPARE_FAILURE, Outcome::Mismatch),
            (Status::LBA_RANGE, Outcome::PastEnd),
            (Status::INVALID_FIELD, Outcome::Invalid),
            (Status::INVALID_OPCODE, Outcome::Unsupported),
            (Status::CAPACITY_EXCEEDED, Outcome::NoSpace),
            (Status::WRITE_PROTECTED, Outcome::ReadOnly),
            (Status::READ_ONLY_RANGE, Outcome::ReadOnly),
            (Status::RESERVATION_CONFLICT, Outcome::Reservation),
            (Status::TRANSIENT_TRANSPORT, Outcome::Busy { after_ns: 0 }),
            (Status::INTERNAL_ERROR, Outcome::Busy { after_ns: 0 }),
        ] {
            assert_eq!(outcome(status, &CRDT, 0), want, "{status}");
        }
    }

    #[test]
    fn t03_do_not_retry_ends_retries_on_this_path_only() {
        assert_eq!(
            outcome(Status::INTERNAL_PATH.with_dnr(), &CRDT, 0),
            Outcome::PathError
        );
        assert_eq!(
            outcome(Status::NAMESPACE_NOT_READY.with_dnr(), &CRDT, 0),
            Outcome::MediaError
        );
        assert_eq!(
            outcome(Status::INTERNAL_ERROR.with_dnr(), &CRDT, 0),
            Outcome::MediaError
        );
        // The transfer is the route's: another one may have no such trouble.
        assert_eq!(
            outcome(Status::TRANSIENT_TRANSPORT.with_dnr(), &CRDT, 0),
            Outcome::PathError
        );
    }

    #[test]
    fn t04_a_transfer_that_failed_four_times_is_a_failed_route() {
        let after = |status, retries| outcome(status, &CRDT, retries);
        let busy = Outcome::Busy { after_ns: 0 };
        for status in [Status::TRANSIENT_TRANSPORT, Status::DATA_TRANSFER_ERROR] {
            assert_eq!([0, 1, 2].map(|retries| after(status, retries)), [busy; 3]);
            assert_eq!(after(status, 3), Outcome::PathError);
        }
        assert_eq!(after(Status::NAMESPACE_NOT_READY, 200), busy);
    }

    /// All 2^15 values: success is done whatever its retry bits, type 3h always a path error and
    /// beside it what is of one route alone, nothing that forbids a retry is busy, and no failure
    /// is done.
    #[test]
    fn every_status_has_a_meaning() {
        for value in 0..1 << 15 {
            let status = Status(value);
            let outcome = outcome(status, &CRDT, 0);
            assert_eq!(outcome.is_done(), status.is_success(), "{status}");
            let route = [
                Status::SQ_DELETION,
                Status::KEEP_ALIVE_EXPIRED,
                Status::INVALID_NAMESPACE,
            ];
            let transfer = [Status::DATA_TRANSFER_ERROR, Status::TRANSIENT_TRANSPORT];
            let path = status.sct() == 3
                || route.contains(&status.code())
                || status.dnr() && transfer.contains(&status.code());
            assert_eq!(outcome == Outcome::PathError, path, "{status}");
            assert!(
                !(status.dnr() && matches!(outcome, Outcome::Busy { .. })),
                "{status}"
            );
        }
    }
}
