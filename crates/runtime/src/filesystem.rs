//! Which file systems never block the thread that submits an operation to io_uring (T52).
//!
//! # Contract
//! io_uring first tries an operation on the submitting thread, without waiting where the file says
//! that it can do so (FMODE_NOWAIT), and hands it to a worker of the kernel where it can't. That
//! holds for the file systems of [`SUBMITTED`] and for block devices. Of all others an operation
//! may wait inside `io_uring_enter` for a server, a network or another file system, and everything
//! else of that core with it: FUSE takes O_DIRECT requests that way. An unknown file system counts
//! as one of those.
use rustix::fs::fstatfs;
use std::os::fd::AsFd;

/// Type as `statfs` gives it, name, and why it does not block.
const SUBMITTED: [(i64, &str, &str); 5] = [
    (0xEF53, "ext4", "direct I/O by iomap, which knows NOWAIT"),
    (
        0x5846_5342,
        "xfs",
        "direct I/O by iomap, which knows NOWAIT",
    ),
    (0x9123_683E, "btrfs", "knows NOWAIT, or refuses it"),
    (
        0xF2F5_2010,
        "f2fs",
        "direct I/O by iomap, which knows NOWAIT",
    ),
    (
        0x0102_1994,
        "tmpfs",
        "memory; without NOWAIT, so the kernel's workers do it",
    ),
];

/// Whether a submission to this file may block its submitter.
pub(crate) fn blocks_submitter(file: impl AsFd, is_block_device: bool) -> bool {
    // A block device waits in its queue. The file system of its node does not matter.
    if is_block_device {
        return false;
    }
    let Ok(stat) = fstatfs(file) else {
        return true;
    };
    // Its type differs between architectures.
    let kind = i128::from(stat.f_type);
    !SUBMITTED
        .iter()
        .any(|&(known, ..)| i128::from(known) == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn t52_unknown_file_systems_count_as_blocking() {
        let proc = File::open("/proc/self/status").unwrap();
        assert!(blocks_submitter(&proc, false));
        let device = File::open("/dev/null").unwrap();
        assert!(!blocks_submitter(&device, true));
    }

    #[test]
    fn every_reason_is_given_once() {
        for (at, (kind, name, reason)) in SUBMITTED.iter().enumerate() {
            let same = |other: &&(i64, &str, &str)| other.0 == *kind || other.1 == *name;
            assert_eq!(SUBMITTED.iter().filter(same).count(), 1, "{at}");
            assert!(!reason.is_empty());
        }
    }
}
