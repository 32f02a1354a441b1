//! A part of an arena on a thread that makes blocking system calls with it.
//!
//! # Contract
//! The arena's pages stay locked until [`Arena::end_lease`](crate::Arena::end_lease), and the
//! memory stays mapped as long as the lease lives, whatever becomes of the arena. Safe code never
//! sees the bytes: only the kernel reads and writes them. A lease that is dropped without being
//! ended leaves its pages locked, so they are never used again.
use crate::arena::{Access, Extent};
use crate::mapping::Mapping;
use crate::{Errno, Shared};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Lease {
    memory: Arc<Mapping>,
    extent: Extent,
    access: Access,
}

impl Lease {
    pub(crate) fn new(memory: Arc<Mapping>, extent: Extent, access: Access) -> Self {
        Self {
            memory,
            extent,
            access,
        }
    }

    pub(crate) fn into_parts(self) -> (Arc<Mapping>, Extent, Access) {
        (self.memory, self.extent, self.access)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a lease is never empty")]
    pub fn len(&self) -> u32 {
        self.extent.len
    }

    fn pointer(&self) -> *mut u8 {
        let Extent { at, len } = self.extent;
        self.memory.pointer(at as usize, len as usize)
    }

    /// Writes it to a file; `durable`: like `O_DSYNC`. Returns the bytes written.
    ///
    /// # Errors
    /// As `pwritev2`.
    pub fn write_to(&self, file: impl AsFd, offset: u64, durable: bool) -> Result<u32, Errno> {
        // SAFETY: inside the mapping (checked), which this lease keeps; the pages are locked, so no
        // safe code writes to them meanwhile.
        unsafe { write(&file, self.pointer(), self.extent.len, offset, durable) }
    }

    /// Reads a file into it. Returns the bytes read.
    ///
    /// # Errors
    /// As `preadv2`.
    ///
    /// # Panics
    /// It was leased to be written to a file.
    pub fn read_from(&mut self, file: impl AsFd, offset: u64) -> Result<u32, Errno> {
        assert!(self.access == Access::Write, "it is not to be filled");
        // SAFETY: as in `write_to`; the pages are locked for writing, so no safe code reads them.
        unsafe { read(&file, self.pointer(), self.extent.len, offset) }
    }
}

impl Shared {
    /// Writes `len` bytes at `at` to a file, whatever they are at that moment; `durable`: like
    /// `O_DSYNC`. Returns the bytes written.
    ///
    /// # Errors
    /// As `pwritev2`.
    ///
    /// # Panics
    /// Outside.
    pub fn write_to(
        &self,
        (at, len): (usize, u32),
        file: impl AsFd,
        offset: u64,
        durable: bool,
    ) -> Result<u32, Errno> {
        let from = self.part(at, len);
        // SAFETY: inside the mapping (checked), which lives as long as `self`; no references to
        // its bytes exist, and the kernel may read what others change.
        unsafe { write(&file, from, len, offset, durable) }
    }

    /// Reads a file into `len` bytes at `at`. Returns the bytes read.
    ///
    /// # Errors
    /// As `preadv2`.
    ///
    /// # Panics
    /// Outside.
    pub fn read_from(
        &self,
        (at, len): (usize, u32),
        file: impl AsFd,
        offset: u64,
    ) -> Result<u32, Errno> {
        let to = self.part(at, len);
        // SAFETY: as in `write_to`.
        unsafe { read(&file, to, len, offset) }
    }

    fn part(&self, at: usize, len: u32) -> *mut u8 {
        assert!(
            self.contains(at, len as usize),
            "{at} + {len} is outside of the shared memory"
        );
        self.as_ptr().wrapping_add(at)
    }
}

/// # Safety
/// `len` bytes at `from` are mapped until it returns.
unsafe fn write(
    file: &impl AsFd,
    from: *mut u8,
    len: u32,
    offset: u64,
    durable: bool,
) -> Result<u32, Errno> {
    let part = libc::iovec {
        iov_base: from.cast(),
        iov_len: len as usize,
    };
    let flags = if durable { libc::RWF_DSYNC } else { 0 };
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: one vector of mapped memory (the caller's promise) and an open descriptor.
    let written = unsafe { libc::pwritev2(fd, &raw const part, 1, offset as i64, flags) };
    counted(written)
}

/// # Safety
/// As of [`write`]; nothing else may have a reference to these bytes.
unsafe fn read(file: &impl AsFd, to: *mut u8, len: u32, offset: u64) -> Result<u32, Errno> {
    let part = libc::iovec {
        iov_base: to.cast(),
        iov_len: len as usize,
    };
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: as in `write`.
    let read = unsafe { libc::preadv2(fd, &raw const part, 1, offset as i64, 0) };
    counted(read)
}

fn counted(result: isize) -> Result<u32, Errno> {
    u32::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use crate::{Arena, Extent};

    #[test]
    fn leased_bytes_reach_a_file_and_come_back() {
        let path = std::env::temp_dir().join(format!("braid-lease-{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let mut arena = Arena::new(1 << 20).unwrap();
        let (from, to) = (Extent::new(4096, 4096), Extent::new(8192, 4096));
        arena.bytes_mut(from).fill(7);
        let lease = arena.lease(from, false);
        assert!(arena.is_busy(from));
        let thread = std::thread::spawn(move || {
            assert_eq!(lease.write_to(&file, 512, true), Ok(4096));
            (file, lease)
        });
        let (file, lease) = thread.join().unwrap();
        arena.end_lease(lease);
        assert!(!arena.is_busy(from));
        let mut lease = arena.lease(to, true);
        assert_eq!(lease.read_from(&file, 512), Ok(4096));
        assert_eq!(lease.read_from(&file, 1 << 20), Ok(0), "behind the end");
        arena.end_lease(lease);
        assert!(arena.bytes(to).iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_lease_outlives_its_arena() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let lease = arena.lease(Extent::new(0, 4096), false);
        drop(arena);
        let file = std::fs::File::create("/dev/null").unwrap();
        assert_eq!(lease.write_to(&file, 0, false), Ok(4096));
    }

    #[test]
    #[should_panic(expected = "in use by the kernel")]
    fn leased_bytes_are_locked() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let _lease = arena.lease(Extent::new(0, 4096), false);
        arena.bytes_mut(Extent::new(0, 1));
    }
}
