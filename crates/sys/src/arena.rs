//! One core's payload memory, and which of its pages the kernel is using.
//!
//! # Contract
//! The arena counts, per 4 KiB page, the operations through which the kernel reads and writes it.
//! Safe access to a page that the kernel may be writing, and writing to a page that it may be
//! reading, panics: the owner of the buffers has lost track of one, and going on would corrupt
//! data. Two kernel operations on one page are not our races, and are allowed.
use crate::Error;
use crate::lease::Lease;
use crate::mapping::{Mapping, PAGE};
use std::sync::Arc;

/// A range of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

impl Extent {
    /// `len` bytes from `at`.
    pub fn new(at: u64, len: u32) -> Self {
        Self { at, len }
    }

    /// Without its first `count` bytes.
    ///
    /// # Panics
    /// It has fewer.
    pub fn skip(self, count: u32) -> Self {
        assert!(count <= self.len, "{count} of {} bytes skipped", self.len);
        Self {
            at: self.at + u64::from(count),
            len: self.len - count,
        }
    }

    fn pages(self) -> std::ops::Range<usize> {
        let end = self.at + u64::from(self.len);
        let first = (self.at / PAGE as u64) as usize;
        if self.len == 0 {
            first..first
        } else {
            first..end.div_ceil(PAGE as u64) as usize
        }
    }
}

/// How the kernel uses an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Kernel operations that use a page now: readers in the lower half, writers in the upper one. All
/// zero, so that a table of idle pages is memory that was never touched.
type Page = u64;

const WRITER: Page = 1 << 32;

impl Access {
    fn one(self) -> Page {
        match self {
            Self::Read => 1,
            Self::Write => WRITER,
        }
    }
}

/// Payload memory of one core.
#[derive(Debug)]
pub struct Arena {
    memory: Arc<Mapping>,
    pages: Box<[Page]>,
    bytes: u64,
}

impl Arena {
    /// Reserves `bytes` of address space; memory is used as it is touched.
    ///
    /// # Errors
    /// The address space can't be had.
    pub fn new(bytes: u64) -> Result<Self, Error> {
        let too_large = Error::new("mmap", rustix::io::Errno::NOMEM);
        let len = usize::try_from(bytes)
            .ok()
            .filter(|&len| len < isize::MAX as usize - PAGE)
            .ok_or(too_large)?;
        let memory = Arc::new(Mapping::new(len)?);
        let pages = vec![0; memory.len() / PAGE].into_boxed_slice();
        Ok(Self {
            memory,
            pages,
            bytes,
        })
    }

    /// Size in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes
    }

    /// The bytes of an extent.
    ///
    /// # Panics
    /// It is outside the arena, or the kernel may be writing there.
    pub fn bytes(&self, extent: Extent) -> &[u8] {
        let at = self.pointer(extent);
        let free = self.pages[extent.pages()].iter().all(|page| *page < WRITER);
        assert!(free, "{extent:?} is being received or read into");
        // SAFETY: inside the mapping (`pointer` checked), initialised (zero pages), no kernel
        // operation writes there (checked), and `&self` keeps safe writers and new operations out.
        unsafe { std::slice::from_raw_parts(at, extent.len as usize) }
    }

    /// The bytes of an extent, to change.
    ///
    /// # Panics
    /// It is outside the arena, or a kernel operation is using it.
    pub fn bytes_mut(&mut self, extent: Extent) -> &mut [u8] {
        let at = self.pointer(extent);
        assert!(!self.is_busy(extent), "{extent:?} is in use by the kernel");
        // SAFETY: as in `bytes`, and no kernel operation reads there either; `&mut self` keeps
        // everybody else out.
        unsafe { std::slice::from_raw_parts_mut(at, extent.len as usize) }
    }

    /// Whether a kernel operation is using a page of this extent.
    pub fn is_busy(&self, extent: Extent) -> bool {
        self.pages[extent.pages()].iter().any(|page| *page != 0)
    }

    /// Where an extent lies, for the kernel.
    pub(crate) fn pointer(&self, extent: Extent) -> *mut u8 {
        let end = extent.at.checked_add(u64::from(extent.len));
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{extent:?} is outside the arena"
        );
        self.memory.pointer(extent.at as usize, extent.len as usize)
    }

    /// A kernel operation begins.
    pub(crate) fn lock(&mut self, extent: Extent, access: Access) {
        for page in &mut self.pages[extent.pages()] {
            *page += access.one();
        }
    }

    /// A kernel operation that began with `lock` is over.
    pub(crate) fn unlock(&mut self, extent: Extent, access: Access) {
        for page in &mut self.pages[extent.pages()] {
            *page -= access.one();
        }
    }

    /// Lends an extent to a thread that writes it to a file (`false`) or reads a file into it
    /// (`true`). Its pages are locked as for an operation of the kernel until
    /// [`Arena::end_lease`].
    ///
    /// # Panics
    /// It is outside the arena.
    pub fn lease(&mut self, extent: Extent, fills: bool) -> Lease {
        self.pointer(extent);
        let access = if fills { Access::Write } else { Access::Read };
        self.lock(extent, access);
        Lease::new(Arc::clone(&self.memory), extent, access)
    }

    /// Takes a leased extent back.
    ///
    /// # Panics
    /// It is of another arena.
    pub fn end_lease(&mut self, lease: Lease) {
        let (memory, extent, access) = lease.into_parts();
        assert!(
            Arc::ptr_eq(&memory, &self.memory),
            "{extent:?} is of another arena"
        );
        self.unlock(extent, access);
    }

    /// Never unmaps: the kernel may go on using it for an unknown time.
    pub(crate) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arena {
        Arena::new(1 << 20).unwrap()
    }

    #[test]
    fn bytes_are_zero_and_keep_what_is_written() {
        let mut arena = arena();
        assert!(
            arena
                .bytes(Extent::new(4096, 8192))
                .iter()
                .all(|&byte| byte == 0)
        );
        arena
            .bytes_mut(Extent::new(5000, 3))
            .copy_from_slice(&[1, 2, 3]);
        assert_eq!(arena.bytes(Extent::new(4999, 5)), [0, 1, 2, 3, 0]);
        assert_eq!(arena.bytes(Extent::new(1 << 20, 0)), []);
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn an_extent_outside_panics() {
        arena().bytes(Extent::new((1 << 20) - 1, 2));
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn an_extent_that_wraps_panics() {
        arena().bytes(Extent::new(u64::MAX, 2));
    }

    #[test]
    fn the_kernel_reading_allows_reading_only() {
        let mut arena = arena();
        let extent = Extent::new(4096, 100);
        arena.lock(extent, Access::Read);
        arena.bytes(extent);
        assert!(arena.is_busy(extent));
        assert!(!arena.is_busy(Extent::new(8192, 4096)));
        arena.unlock(extent, Access::Read);
        arena.bytes_mut(extent);
    }

    #[test]
    #[should_panic(expected = "in use by the kernel")]
    fn writing_where_the_kernel_reads_panics() {
        let mut arena = arena();
        arena.lock(Extent::new(4096, 1), Access::Read);
        arena.bytes_mut(Extent::new(0, 8192));
    }

    #[test]
    #[should_panic(expected = "being received")]
    fn reading_where_the_kernel_writes_panics() {
        let mut arena = arena();
        arena.lock(Extent::new(0, 8192), Access::Write);
        arena.bytes(Extent::new(8191, 1));
    }

    #[test]
    fn a_page_is_free_after_its_last_operation() {
        let mut arena = arena();
        let extent = Extent::new(0, 4096);
        arena.lock(extent, Access::Write);
        arena.lock(extent, Access::Write);
        arena.unlock(extent, Access::Write);
        assert!(arena.is_busy(extent));
        arena.unlock(extent, Access::Write);
        assert!(!arena.is_busy(extent));
    }
}
