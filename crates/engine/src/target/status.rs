//! NVMe status of a device's failure.
//!
//! The table is chosen so that a host does what helps: with Do Not Retry what the same request can
//! only fail at again; without it what may pass. Nothing here is a path error (status code type
//! 3h): another port leads to the same device.
use crate::machine::DeviceError;
use nvme::controller::Action;
use nvme::wire::Status;
use nvme::wire::status::Class;

/// Out of memory or interrupted: nothing is wrong with the device.
const TRANSIENT: [i32; 4] = [4, 11, 12, 105]; // EINTR, EAGAIN, ENOMEM, ENOBUFS

/// The status of a command that a device failed (Base 2.0, 3.3.3.2.1; NVM command set, 3.2).
pub(super) fn of_device_error(action: Action, error: DeviceError) -> Status {
    match (error, action) {
        (DeviceError::Mismatch, _) => Status::COMPARE_FAILURE.with_dnr(),
        (DeviceError::Full, _) => Status::CAPACITY_EXCEEDED.with_dnr(),
        (DeviceError::ReadOnly, _) => Status::WRITE_PROTECTED.with_dnr(),
        // Deallocating is a hint that a controller may leave (NVM command set, 3.2.3).
        (DeviceError::Unsupported, Action::Deallocate) => Status::SUCCESS,
        (DeviceError::Unsupported, _) => Status::INVALID_OPCODE.with_dnr(),
        // A transfer below our device: that may pass, and says nothing of the host's path to us.
        (DeviceError::Nvme(status), _) if status.class() == Class::Transport => {
            Status::INTERNAL_ERROR
        }
        // Another controller's, which is no namespace of ours.
        (DeviceError::Nvme(status), _) => status,
        (DeviceError::CutShort, Action::Read | Action::Compare) => Status::UNRECOVERED_READ,
        (DeviceError::CutShort, _) => Status::WRITE_FAULT,
        (DeviceError::Lost | DeviceError::NotBegun, _) => Status::INTERNAL_ERROR,
        (DeviceError::Os(errno), _) if TRANSIENT.contains(&errno) => Status::INTERNAL_ERROR,
        (DeviceError::Os(_), Action::Read | Action::Compare) => Status::UNRECOVERED_READ,
        (DeviceError::Os(_), _) => Status::WRITE_FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t02_no_device_error_is_a_path_error() {
        let errors = [
            DeviceError::Mismatch,
            DeviceError::Full,
            DeviceError::ReadOnly,
            DeviceError::Unsupported,
            DeviceError::NotBegun,
            DeviceError::Os(5),
            DeviceError::Os(12),
        ];
        for action in [Action::Read, Action::Write { fua: false }, Action::Flush] {
            for error in errors {
                let status = of_device_error(action, error);
                assert!(
                    !status.is_success() && status.sct() != 3,
                    "{action:?} {error:?}"
                );
            }
        }
    }

    #[test]
    fn t06_want_of_memory_may_be_retried() {
        let below = DeviceError::Nvme(Status::TRANSIENT_TRANSPORT);
        for error in [DeviceError::Os(12), below] {
            let status = of_device_error(Action::Read, error);
            assert_eq!(status, Status::INTERNAL_ERROR);
            assert!(!status.dnr());
        }
    }

    #[test]
    fn a_device_that_cannot_deallocate_is_no_error() {
        let action = Action::Deallocate;
        assert!(of_device_error(action, DeviceError::Unsupported).is_success());
        assert_eq!(
            of_device_error(action, DeviceError::Os(5)),
            Status::WRITE_FAULT
        );
    }
}
