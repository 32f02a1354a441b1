//! Meaning of a server's answers.
use super::*;

/// The engine judges them as of any controller: a path that failed is left, a medium that failed
/// is not asked again elsewhere.
#[test]
fn t02_a_failed_path_is_told_from_a_failed_medium() {
    for status in [
        Status::INTERNAL_PATH,
        Status::INVALID_NAMESPACE,
        Status::WRITE_FAULT,
        Status::UNRECOVERED_READ,
        Status::INTERNAL_ERROR,
        Status::LBA_RANGE,
        Status::ACCESS_DENIED,
    ] {
        assert_eq!(device_error(status), DeviceError::Nvme(status), "{status}");
    }
    for (status, want) in [
        (Status::ABORT_REQUESTED, LOST),
        (Status::CAPACITY_EXCEEDED, DeviceError::Full),
        (Status::WRITE_PROTECTED, DeviceError::ReadOnly),
        (Status::INVALID_OPCODE, DeviceError::Unsupported),
    ] {
        assert_eq!(device_error(status), want, "{status}");
    }
}

#[test]
fn t09_a_volumes_longer_quiesce_time_counts_and_a_shorter_one_does_not() {
    let waits = [1, 6_000_000_000, 0].map(quiet_after);
    assert_eq!(waits, [QUEUE_QUIESCE_NS, 6_000_000_000, 0]);
}
