//! Local devices as paths: an I/O as a device request, and what a device's error means.
use super::Multipath;

use super::status;
use super::types::{Io, IoOp, PathKind};
use super::volumes::Volume;
use crate::machine::{DeviceError, DeviceOp, DeviceRequest, LocalDevice, Span};
use block::IoLimits;
use multipath::{Identity, Outcome, Shown, Size};
use nvme::wire::status::Class;

/// The request for `io`, under the name `id`.
pub(crate) fn request(io: &Io, device: LocalDevice, id: u32) -> DeviceRequest {
    let op = match io.op {
        IoOp::Read => DeviceOp::Read,
        IoOp::Write { fua } => DeviceOp::Write { fua },
        IoOp::Flush => DeviceOp::Flush,
        IoOp::WriteZeroes { deallocate } => DeviceOp::WriteZeroes { deallocate },
        IoOp::Deallocate => DeviceOp::Deallocate,
    };
    let data = matches!(io.op, IoOp::Read | IoOp::Write { .. });
    let span = if data { io.span } else { Span::default() };
    DeviceRequest {
        id,
        device,
        op,
        offset: io.offset,
        length: io.length.into(),
        span,
    }
}

/// A flush that belongs to no I/O.
pub(crate) fn flush(device: LocalDevice, id: u32) -> DeviceRequest {
    DeviceRequest {
        id,
        device,
        op: DeviceOp::Flush,
        offset: 0,
        length: 0,
        span: Span::default(),
    }
}

/// Description of a device; `None`: there is none.
pub(super) fn shown(kind: &PathKind) -> Option<Shown> {
    let PathKind::Device {
        device,
        bytes,
        block_shift,
        ref identity,
        read_only,
        deallocate_zeroes,
        hole_bytes,
    } = *kind
    else {
        return None; // of a controller's namespace its facts say that
    };
    Some(Shown {
        identity: match identity {
            Some(namespace) => Identity::Namespace((**namespace).clone()),
            None => Identity::Device(device.0),
        },
        size: Size {
            blocks: bytes >> block_shift,
            block_shift,
        },
        limits: IoLimits {
            read_only,
            deallocate_reads_zero: deallocate_zeroes,
            hole_bytes,
            ..limits(block_shift)
        },
    })
}

impl Volume {
    /// Whether a path leads to a device.
    pub(crate) fn uses(&self, device: LocalDevice) -> bool {
        let mut devices = self.paths.iter().filter_map(|path| path.kind.device());
        devices.any(|it| it == device)
    }

    /// The device that it is, where nothing lies between: it has one path, which is live and leads
    /// to a local device.
    pub(super) fn sole_device(&self) -> Option<LocalDevice> {
        let mut paths = self.paths.iter();
        let path = paths.next().filter(|path| path.is_live())?;
        match path.kind {
            PathKind::Device {
                device,
                identity: None,
                ..
            } if paths.next().is_none() => Some(device),
            _ => None,
        }
    }
}

impl Multipath {
    /// The devices that a volume's paths lead to have so many bytes now: a file or a disk became
    /// larger. The volume is as large when all its paths are.
    pub fn resize_device(&mut self, volume: u16, size: u64, now_ns: u64) {
        self.each_path(|sessions, at| {
            let path = &mut sessions.volume.paths[at];
            // Of a controller's namespace that says how large it is.
            if let PathKind::Device { bytes, .. } = &mut path.kind
                && path.volume == volume
            {
                *bytes = size;
                if let Some(shown) = shown(&path.kind).filter(|_| path.is_live()) {
                    sessions.changed(at, shown, now_ns);
                }
            }
        });
    }
}

/// Limits that a local device can promise. One transfer is one buffer; only a block is atomic.
pub(crate) fn limits(block_shift: u8) -> IoLimits {
    IoLimits {
        transfer_max: crate::limits::BUFFER_MAX,
        write_zeroes_max: crate::limits::BUFFER_MAX,
        deallocate_max: u32::MAX << block_shift.min(31),
        boundary: 0,
        optimal_write: 0,
        atomic_bytes: 1_u32.checked_shl(block_shift.into()).unwrap_or(0),
        volatile_cache: true,
        read_only: false,
        write_zeroes: true,
        deallocate: true,
        deallocate_reads_zero: false,
        hole_bytes: 0,
    }
}

/// Outcome of the end of a device request; `crdt`, `retries`: as of [`status::outcome`].
#[inline]
pub(crate) fn outcome(result: Result<(), DeviceError>, crdt: &[u16; 3], retries: u8) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(DeviceError::Mismatch) => Outcome::Mismatch,
        Err(DeviceError::Full) => Outcome::NoSpace,
        Err(DeviceError::ReadOnly) => Outcome::ReadOnly,
        Err(DeviceError::Unsupported) => Outcome::Unsupported,
        Err(DeviceError::CutShort) => Outcome::CutShort,
        Err(DeviceError::Lost) => Outcome::PathError,
        Err(DeviceError::NotBegun) => BUSY,
        Err(DeviceError::Os(errno)) => os(errno),
        Err(DeviceError::Nvme(status)) => status::outcome(status, crdt, retries),
    }
}

/// The same of a flush. An operating system says once that something could not be written, by
/// whatever number: who asked again would be told that all is well (T13).
pub(super) fn outcome_of_flush(
    kind: &PathKind,
    result: Result<(), DeviceError>,
    outcome: Outcome,
) -> Outcome {
    let is_device = matches!(kind, PathKind::Device { .. });
    match is_device && is_failed_flush(result) {
        true => outcome_of_failed_flush(outcome),
        false => outcome,
    }
}

/// Outcome of a flush that was begun and has failed: nothing of it is asked again.
pub(crate) fn outcome_of_failed_flush(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::CutShort | Outcome::NoSpace => outcome,
        _ => Outcome::MediaError,
    }
}

/// Whether a flush was begun and has failed: no queue without a server, nor its controller's
/// answer.
pub(crate) fn is_failed_flush(result: Result<(), DeviceError>) -> bool {
    use DeviceError::{Lost, NotBegun, Nvme};
    !matches!(result, Ok(()) | Err(Lost | NotBegun | Nvme(_)))
}

/// Whether a path leads to a queue server.
pub(super) fn is_queue(kind: &PathKind) -> bool {
    matches!(
        kind,
        PathKind::Device {
            identity: Some(_),
            ..
        }
    )
}

/// Whether a path leads to a file or block device that the operating system has, no queue.
pub(super) fn is_file(kind: &PathKind) -> bool {
    matches!(kind, PathKind::Device { identity: None, .. })
}

/// Whether the end of a request says that its device is no more: what answers to its name later is
/// another one.
#[inline]
pub(super) fn is_gone(result: Result<(), DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Os(ENXIO | ENODEV)))
}

/// Whether our own system had no room for a request, or was interrupted (T6).
#[inline]
pub(super) fn is_ours(result: Result<(), DeviceError>) -> bool {
    matches!(
        result,
        Err(DeviceError::NotBegun | DeviceError::Os(EINTR | EAGAIN | ENOMEM | ENOBUFS))
    )
}

/// Whether a request was damaged or failed on the way to or from what is behind its device.
#[inline]
pub(super) fn is_in_transit(result: Result<(), DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Nvme(status)) if status.class() == Class::Transport)
}

/// Linux error numbers as the block layer uses them.
#[cold]
fn os(errno: i32) -> Outcome {
    match errno {
        EINTR | EAGAIN | ENOMEM | ENOBUFS => BUSY,
        ENXIO | ENODEV | ENOLINK | ESHUTDOWN => Outcome::PathError,
        ETIMEDOUT => Outcome::TimedOut,
        EBADE => Outcome::Reservation,
        EINVAL => Outcome::Invalid,
        _ => Outcome::MediaError,
    }
}

/// Our own system had no room (T6).
const BUSY: Outcome = Outcome::Busy { after_ns: 0 };

const EINTR: i32 = 4;
const ENXIO: i32 = 6;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EBADE: i32 = 52;
const ENOLINK: i32 = 67;
const ENOBUFS: i32 = 105;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_is_the_devices_own() {
        let span = Span {
            at: 8192,
            len: 4096,
        };
        let io = |op| Io {
            volume: 0,
            op,
            offset: 512,
            length: 4096,
            span,
            source: 0,
            cookie: 0,
        };
        let none = Span::default();
        for (op, want, memory) in [
            (IoOp::Read, DeviceOp::Read, span),
            (
                IoOp::Write { fua: true },
                DeviceOp::Write { fua: true },
                span,
            ),
            (
                IoOp::Write { fua: false },
                DeviceOp::Write { fua: false },
                span,
            ),
            (IoOp::Flush, DeviceOp::Flush, none),
            (
                IoOp::WriteZeroes { deallocate: false },
                DeviceOp::WriteZeroes { deallocate: false },
                none,
            ),
            (
                IoOp::WriteZeroes { deallocate: true },
                DeviceOp::WriteZeroes { deallocate: true },
                none,
            ),
            (IoOp::Deallocate, DeviceOp::Deallocate, none),
        ] {
            let request = request(&io(op), LocalDevice(3), 7);
            assert_eq!((request.op, request.span), (want, memory), "{op:?}");
            assert_eq!((request.id, request.device), (7, LocalDevice(3)));
            assert_eq!((request.offset, request.length), (512, 4096));
        }
    }

    #[test]
    fn t06_no_memory_is_no_failure_of_the_device() {
        for (errno, want) in [
            (11, Outcome::Busy { after_ns: 0 }),
            (12, Outcome::Busy { after_ns: 0 }),
            (5, Outcome::MediaError),
            (19, Outcome::PathError),
            (22, Outcome::Invalid),
            (52, Outcome::Reservation),
            (61, Outcome::MediaError),
            (110, Outcome::TimedOut),
            (-1, Outcome::MediaError),
        ] {
            let found = outcome(Err(DeviceError::Os(errno)), &[0; 3], 0);
            assert_eq!(found, want, "errno {errno}");
        }
        let outcome = |result| outcome(result, &[0; 3], 0);
        assert_eq!(outcome(Err(DeviceError::Full)), Outcome::NoSpace);
        assert_eq!(outcome(Err(DeviceError::ReadOnly)), Outcome::ReadOnly);
        assert_eq!(outcome(Err(DeviceError::Mismatch)), Outcome::Mismatch);
        assert_eq!(outcome(Err(DeviceError::Unsupported)), Outcome::Unsupported);
        assert_eq!(outcome(Err(DeviceError::NotBegun)), BUSY);
        assert_eq!(outcome(Ok(())), Outcome::Done);
    }

    #[test]
    fn t02_what_a_controller_says_is_judged_as_on_any_other_path() {
        use nvme::wire::Status;
        let outcome = |status, retries| {
            let end = Err(DeviceError::Nvme(status));
            outcome(end, &[3, 0, 0], retries)
        };
        assert_eq!(outcome(Status::HOST_ABORTED, 0), Outcome::PathError);
        assert_eq!(outcome(Status::UNRECOVERED_READ, 0), Outcome::MediaError);
        let busy = Status::NAMESPACE_NOT_READY.with_crd(1);
        let after_ns = 300_000_000;
        assert_eq!(outcome(busy, 0), Outcome::Busy { after_ns }); // T1
        assert!(is_gone(Err(DeviceError::Os(19))) && !is_gone(Err(DeviceError::Os(5))));
    }
}
