//! Room for requests to files; errors of the system.
use super::*;
use crate::FileDevice;
use engine::machine::Span;
use sys::{Arena, RingConfig};

const NOW: (u64, fn(u32) -> u64) = (0, |_| u64::MAX);

/// A ring whose operations nobody waits for.
fn ring() -> Ring {
    let config = RingConfig {
        operations_max: FILE_OPERATIONS_MAX as u32 + 2,
        buffers: 1,
        buffers_lent: 1,
        buffer_bytes: 4096,
    };
    Ring::new(&config, Arena::new(4096 + SCRATCH_BYTES).unwrap()).unwrap()
}

#[test]
fn a_compare_that_waits_for_scratch_memory_holds_up_nothing_behind_it() {
    let path = std::env::temp_dir().join(format!("braid-compares-{}", std::process::id()));
    let file = FileDevice::open(path.clone(), false, Some(4096)).unwrap();
    std::fs::remove_file(path).unwrap();
    let mut devices = {
        let wake = Arc::new(Wake::new("test").unwrap());
        Devices::new(&[Device::File(Arc::new(file))], 4096, wake).unwrap()
    };
    let mut ring = ring();
    let (extent, span) = (Extent::new(0, 4096), Span { at: 0, len: 4096 });
    let begin = |devices: &mut Devices, ring: &mut Ring, op| {
        let request = DeviceRequest {
            id: 0,
            device: DeviceId(0),
            op,
            offset: 0,
            length: 4096,
            span,
        };
        devices.begin(ring, 0, &request, extent, (0, u64::MAX));
    };
    for slot in 0..FILE_OPERATIONS_MAX {
        let op = match slot {
            ..COMPARES_MAX => DeviceOp::Compare,
            _ => DeviceOp::Read,
        };
        begin(&mut devices, &mut ring, op);
    }
    begin(&mut devices, &mut ring, DeviceOp::Compare);
    begin(&mut devices, &mut ring, DeviceOp::Read);
    let read = COMPARES_MAX as u32;
    assert!(devices.handle(&mut ring, read, Ok(4096), NOW).is_some());
    assert_eq!(devices.in_flight, FILE_OPERATIONS_MAX, "the read started");
    assert!(!devices.is_idle());
    assert!(devices.handle(&mut ring, 0, Err(Errno::IO), NOW).is_some());
    assert_eq!(devices.in_flight, FILE_OPERATIONS_MAX, "and the compare");
    assert!(devices.waiting_for_scratch.is_empty());
}

#[test]
fn the_systems_errors_are_told_apart() {
    for (error, expected) in [
        (Errno::NOSPC, DeviceError::Full),
        (Errno::DQUOT, DeviceError::Full),
        (Errno::ROFS, DeviceError::ReadOnly),
        (Errno::PERM, DeviceError::ReadOnly),
        (Errno::OPNOTSUPP, DeviceError::Unsupported),
        (Errno::IO, DeviceError::Os(5)),
    ] {
        assert_eq!(device_error(error), expected);
    }
}
