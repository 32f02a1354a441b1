//! Synchronous requests to the kernel's NVMe driver: the namespace of a device file, and Identify.
use crate::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// `NVME_IOCTL_ID`.
const IOCTL_ID: u64 = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const IOCTL_ADMIN: u64 = 0xc048_4e41;
/// Opcode of Identify.
const IDENTIFY: u8 = 6;
/// Longest wait for its answer, ms.
const TIMEOUT_MS: u32 = 10_000;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct PassthruCmd {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<PassthruCmd>() == 72);

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The NSID of a namespace's device file.
///
/// # Errors
/// ENOTTY and others: it isn't one. ENODEV: its controller is gone.
pub fn namespace_id(file: impl AsFd) -> Result<u32, Errno> {
    let file = file.as_fd().as_raw_fd();
    // SAFETY: this request has no argument, and the descriptor is open while `file` is borrowed.
    let nsid = unsafe { libc::ioctl(file, IOCTL_ID as libc::Ioctl) };
    u32::try_from(nsid).map_err(|_| last_error())
}

/// Identify: a page of its answer, or the status (15 bits) that the controller ended it with.
///
/// # Errors
/// EACCES, EPERM: not permitted. ENODEV, EINTR…: the controller is gone, or going.
pub fn identify(file: impl AsFd, cns: u8, nsid: u32) -> Result<Result<[u8; 4096], u16>, Errno> {
    let mut page = [0_u8; 4096];
    let mut command = PassthruCmd {
        opcode: IDENTIFY,
        nsid,
        addr: (&raw mut page) as u64,
        data_len: page.len() as u32,
        cdw10: [cns.into(), 0, 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..PassthruCmd::default()
    };
    let file = file.as_fd().as_raw_fd();
    // SAFETY: the request takes a `struct nvme_passthru_cmd`, which `command` is; its address and
    // length are those of `page`, which only this function refers to; the kernel is done with both
    // when the call returns.
    let status = unsafe { libc::ioctl(file, IOCTL_ADMIN as libc::Ioctl, &raw mut command) };
    match status {
        0 => Ok(Ok(page)),
        1.. => Ok(Err(status as u16)),
        _ => Err(last_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_nvme_device_says_so() {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(namespace_id(&zero), Err(Errno::NOTTY));
        assert_eq!(identify(&zero, 1, 0), Err(Errno::NOTTY));
    }
}
