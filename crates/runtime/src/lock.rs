//! Locks on files and block devices, which other engines, targets and mirrors see.
//!
//! # Contract
//! A target or a queue server takes a shared lock, so that several may write (two over one file are
//! two controllers of it), and so does a volume whose user wants that. Any other volume, and a leg
//! of a mirror, takes an exclusive one: no other writer changes it meanwhile, and none starts while
//! another process writes (T48). Reading takes none.
//! Locks belong to an opened file, not to a process: the same rules hold within one. They end when
//! all descriptors of it are closed, which after a `kill -9` may take the kernel a moment: so long
//! is waited. With a loop device the range that it shows of its file is locked (`loop_backing`).
//!
//! # Limits
//! OFD locks are advisory, and of one host (on some network file systems, of all its clients).
use crate::RuntimeError;
use crate::limits::{LOCK_POLL, LOCK_WAIT};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

/// Takes the lock of `file`, the one for `alone` or that which others may have too.
///
/// # Errors
/// [`RuntimeError::InUse`]; [`RuntimeError::File`] where it can't be locked at all.
pub(crate) fn lock(file: impl AsFd + Copy, path: &Path, alone: bool) -> Result<(), RuntimeError> {
    lock_part(file, path, &(0..u64::MAX), alone)
}

/// As [`lock`], for some bytes: locks on overlapping bytes, or on the whole file, conflict.
///
/// # Errors
/// As [`lock`].
pub(crate) fn lock_part(
    file: impl AsFd + Copy,
    path: &Path,
    part: &Range<u64>,
    alone: bool,
) -> Result<(), RuntimeError> {
    let kind = if alone { libc::F_WRLCK } else { libc::F_RDLCK };
    let wanted = request(kind, part);
    let begin = Instant::now();
    loop {
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&wanted)) {
            Ok(_) => return Ok(()),
            // Such a file system knows no locks, so no other process has one.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOLCK) if !alone => return Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) if begin.elapsed() < LOCK_WAIT => {
                std::thread::sleep(LOCK_POLL);
            }
            Err(Errno::EAGAIN | Errno::EACCES) => {
                return Err(RuntimeError::InUse {
                    path: path.to_owned(),
                    holder: holder(file, wanted),
                });
            }
            Err(error) => {
                return Err(RuntimeError::File {
                    path: path.to_owned(),
                    operation: "lock",
                    source: error.into(),
                });
            }
        }
    }
}

/// Of a process with a shared lock.
pub(crate) const SHARED: &str =
    "writes it (a shared lock: a target, a queue server or a shared volume)";

/// The kind of lock that conflicts with `wanted`.
fn holder(file: impl AsFd + Copy, wanted: libc::flock) -> &'static str {
    let mut found = wanted;
    let asked = fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut found));
    let is = |kind: i32| asked.is_ok() && i32::from(found.l_type) == kind;
    if is(libc::F_WRLCK) {
        "has it locked for itself (an exclusive lock: a volume or a mirror's leg)"
    } else if is(libc::F_RDLCK) {
        SHARED
    } else {
        "had it locked"
    }
}

/// A lock of these bytes; to the end of the file, however long it becomes, where they are more than
/// a file may have.
fn request(kind: i32, part: &Range<u64>) -> libc::flock {
    let start = i64::try_from(part.start).unwrap_or(i64::MAX);
    let end = i64::try_from(part.end).unwrap_or(i64::MAX);
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: if end == i64::MAX { 0 } else { end - start },
        l_pid: 0,
    }
}
