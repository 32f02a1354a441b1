//! Memory that another process reads and writes meanwhile.
//!
//! # Contract
//! The bytes are reached by atomic loads and stores only, and by copies in machine code that the
//! compiler doesn't look into: never by a reference. So a hostile other side can spoil values and
//! nothing else. The mapping is of a memory file that can't shrink (sealed). Its pages are ordinary
//! ones: the other side can punch huge ones out, and the system may have none to put in their
//! place. Where it has no ordinary one either, or a page is damaged, an access faults: that ends
//! the process, unless the mapping is guarded ([`crate::fault`]).
use crate::Error;
use crate::fault::Guard;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// `f_type` of files of huge pages.
const HUGETLBFS: i64 = 0x958458f6;
/// The seals that make accesses safe while other processes have the file.
const NEEDED: SealFlags = SealFlags::SHRINK;

/// Creates a memory file of that many zeroes, sealed against changes of its length.
///
/// # Errors
/// `memfd_create`: EMFILE, ENFILE, ENOMEM. `ftruncate`, `fcntl`: as the kernel says.
pub fn memory_file(name: &str, bytes: u64) -> Result<OwnedFd, Error> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).and_then(crate::os::aside);
    let file = file.map_err(|e| Error::new("memfd_create", e))?;
    rustix::fs::ftruncate(&file, bytes).map_err(|e| Error::new("ftruncate", e))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(|e| Error::new("fcntl (seals)", e))?;
    Ok(file)
}

/// Pages that are allocated in one system call: other threads that map or unmap memory wait for it.
const POPULATED_BYTES: usize = 4 << 20;

/// A mapping of a memory file.
#[derive(Debug)]
pub struct Shared {
    at: NonNull<u8>,
    len: usize,
    guard: Option<&'static Guard>,
}

// SAFETY: a mapping belongs to the process, and all accesses to its bytes are atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `len` bytes of a memory file, which may come from an untrusted process.
    ///
    /// # Errors
    /// `seals`: it is no memory file, or may shrink (EINVAL, EPERM). `size`: it is shorter
    /// (EINVAL). `huge pages`: it is of such (EINVAL). `mmap`: ENOMEM.
    pub fn map(file: impl AsFd, len: usize) -> Result<Self, Error> {
        let file = file.as_fd();
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|e| Error::new("seals", e))?;
        if !seals.contains(NEEDED) {
            return Err(Error::new("seals", Errno::PERM));
        }
        let kind = rustix::fs::fstatfs(file).map_err(|e| Error::new("fstatfs", e))?;
        if kind.f_type as i64 == HUGETLBFS {
            return Err(Error::new("huge pages", Errno::INVAL));
        }
        Self::map_unguarded(file, len)
    }

    /// As [`Self::map`], guarded: a fault in it ends nothing ([`crate::fault`]).
    ///
    /// # Errors
    /// As [`Self::map`]. `guard`: too many mappings are guarded (ENOSPC), or it is too large
    /// (EFBIG). `sigaction`: as the kernel says.
    pub fn map_guarded(file: impl AsFd, len: usize) -> Result<Self, Error> {
        Self::map(file, len)?.guarded()
    }

    /// As [`Self::map_guarded`], of a file that may shrink: for tests of what a fault leads to.
    ///
    /// # Errors
    /// As [`Self::map_guarded`], but for the seals and the size of pages.
    pub fn map_unsealed(file: impl AsFd, len: usize) -> Result<Self, Error> {
        Self::map_unguarded(file.as_fd(), len)?.guarded()
    }

    fn guarded(mut self) -> Result<Self, Error> {
        self.guard = Some(Guard::take(self.at.addr().get(), self.len)?);
        Ok(self)
    }

    /// Maps a file of any kind.
    pub(crate) fn map_unguarded(file: impl AsFd, len: usize) -> Result<Self, Error> {
        let file = file.as_fd();
        let stat = rustix::fs::fstat(file).map_err(|e| Error::new("fstat", e))?;
        if len == 0 || u64::try_from(stat.st_size).is_ok_and(|size| size < len as u64) {
            return Err(Error::new("size", Errno::INVAL));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }
            .map_err(|e| Error::new("mmap", e))?;
        let at = NonNull::new(at.cast()).ok_or(Error::new("mmap", Errno::NOMEM))?;
        Ok(Self {
            at,
            len,
            guard: None,
        })
    }

    /// Whether an access faulted: from then on its bytes are zeroes of our own. Never of a mapping
    /// that is not guarded.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.guard.is_some_and(Guard::is_lost)
    }

    /// Allocates the pages of `len` bytes at `at`, as far as they aren't yet, so that no access to
    /// them has to. The other side can still take them away.
    ///
    /// # Errors
    /// `madvise`: the system, or the control group, has no memory (ENOMEM); the file has no such
    /// pages (EFAULT); a page is damaged (EHWPOISON).
    ///
    /// # Panics
    /// Outside.
    pub fn populate(&self, at: usize, len: usize) -> Result<(), Error> {
        for begin in (at..at + len).step_by(POPULATED_BYTES) {
            let bytes = POPULATED_BYTES.min(at + len - begin);
            let from = self.pointer(begin, bytes).cast();
            // SAFETY: inside our own mapping; the advice changes no byte of it.
            unsafe { madvise(from, bytes, Advice::LinuxPopulateWrite) }
                .map_err(|e| Error::new("madvise", e))?;
        }
        Ok(())
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Asks for huge pages, where the system has any to give for such memory.
    pub fn prefer_huge(&self) {
        // SAFETY: our own mapping; the advice changes nothing that can be seen in it.
        let _ = unsafe { madvise(self.at.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Where it lies, for those who bring their own rules (C).
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Whether `len` bytes from `at` are inside.
    #[inline]
    pub fn contains(&self, at: usize, len: usize) -> bool {
        at <= self.len && len <= self.len - at
    }

    #[inline]
    fn pointer(&self, at: usize, len: usize) -> *mut u8 {
        assert!(
            self.contains(at, len),
            "{at} + {len} is outside of {} shared bytes",
            self.len
        );
        self.at.as_ptr().wrapping_add(at)
    }

    #[inline]
    fn cells<const N: usize>(&self, at: usize) -> &[AtomicU64; N] {
        let pointer = self.pointer(at, 8 * N);
        assert!(at.is_multiple_of(8), "{at} is not aligned");
        // SAFETY: inside the mapping and aligned (checked; mappings begin at pages), lives as long
        // as `self`; atomics may be shared with other processes.
        unsafe { &*pointer.cast::<[AtomicU64; N]>() }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        let pointer = self.pointer(at, 4);
        assert!(at.is_multiple_of(4), "{at} is not aligned");
        // SAFETY: as in `cells`.
        unsafe { &*pointer.cast::<AtomicU32>() }
    }

    /// `N` times eight bytes, in no order with anything.
    ///
    /// # Panics
    /// Outside, or `at` is no multiple of 8; so for the others, with 4 for words.
    #[inline]
    pub fn load<const N: usize>(&self, at: usize) -> [u64; N] {
        let cells = self.cells::<N>(at);
        std::array::from_fn(|n| u64::from_le(cells[n].load(Ordering::Relaxed)))
    }

    /// Stores `N` times eight bytes, in no order with anything.
    #[inline]
    pub fn store<const N: usize>(&self, at: usize, values: &[u64; N]) {
        for (cell, value) in self.cells::<N>(at).iter().zip(values) {
            cell.store(value.to_le(), Ordering::Relaxed);
        }
    }

    /// Eight bytes; what is loaded later is at least as new.
    #[inline]
    pub fn load_acquire(&self, at: usize) -> u64 {
        u64::from_le(self.cells::<1>(at)[0].load(Ordering::Acquire))
    }

    /// Stores eight bytes, behind everything that was stored before.
    #[inline]
    pub fn store_release(&self, at: usize, value: u64) {
        self.cells::<1>(at)[0].store(value.to_le(), Ordering::Release);
    }

    /// Four bytes; what is loaded later is at least as new.
    #[inline]
    pub fn load_word(&self, at: usize) -> u32 {
        u32::from_le(self.word(at).load(Ordering::Acquire))
    }

    /// Stores four bytes, behind everything that was stored before.
    #[inline]
    pub fn store_word(&self, at: usize, value: u32) {
        self.word(at).store(value.to_le(), Ordering::Release);
    }

    /// Stores before it are visible before anything after it is loaded.
    #[inline]
    pub fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Copies bytes out of it, whatever they are at that moment.
    ///
    /// # Panics
    /// Outside.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.pointer(at, bytes.len());
        // SAFETY: both ranges have that many bytes, and don't overlap: no reference to shared
        // memory exists.
        unsafe { copy(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies bytes into it.
    ///
    /// # Panics
    /// Outside.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.pointer(at, bytes.len());
        // SAFETY: as in `read`.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Before the address can be another mapping's.
        if let Some(guard) = self.guard {
            guard.release();
        }
        // SAFETY: the mapping made in `map`, whose last owner this is; operations of the kernel on
        // it hold an owner each.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Copies bytes of which one side may change meanwhile: by an instruction that the compiler knows
/// nothing of, so that it can assume nothing about them.
///
/// # Safety
/// `len` bytes at `from` may be read and at `to` be written, and they don't overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's; the direction flag is clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// As above, a byte at a time.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;
    for at in 0..len {
        // SAFETY: the caller's; one of the two may be shared, and atomics may always be.
        let byte = unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(byte, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> (Shared, Shared, OwnedFd) {
        let file = memory_file("test", 8192).unwrap();
        let map = || Shared::map(&file, 8192).unwrap();
        (map(), map(), file)
    }

    #[test]
    fn what_one_mapping_stores_the_other_loads() {
        let (one, other, _file) = two();
        one.store(8, &[1, 2, 3]);
        assert_eq!(other.load::<4>(0), [0, 1, 2, 3]);
        one.store_word(4096, 7);
        one.store_release(8184, u64::MAX);
        assert_eq!(
            (other.load_word(4096), other.load_acquire(8184)),
            (7, u64::MAX)
        );
        let text: Vec<u8> = (0..=255).collect();
        one.write(4097, &text);
        let mut read = vec![0; 256];
        other.read(4097, &mut read);
        assert_eq!(read, text);
        other.prefer_huge();
        assert_eq!(one.load::<1>(16), [2]);
    }

    #[test]
    fn nobody_makes_a_memory_file_shorter_or_longer() {
        let (_one, _other, file) = two();
        for bytes in [0, 4096, 8191, 8193] {
            assert_eq!(rustix::fs::ftruncate(&file, bytes), Err(Errno::PERM));
        }
        let more = rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE);
        assert_eq!(more, Err(Errno::PERM));
    }

    #[test]
    fn files_whose_accesses_could_fault_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        let refused = |file: &OwnedFd, len| Shared::map(file, len).unwrap_err();
        assert_eq!(refused(&open, 4096), Error::new("seals", Errno::PERM));
        rustix::fs::fcntl_add_seals(&open, SealFlags::SHRINK).unwrap();
        assert_eq!(refused(&open, 4097), Error::new("size", Errno::INVAL));
        assert_eq!(refused(&open, 0), Error::new("size", Errno::INVAL));
        assert!(Shared::map(&open, 4096).is_ok());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(refused(&null.into(), 1).operation, "seals");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_load_outside_panics() {
        two().0.load::<2>(8184);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_copy_that_wraps_panics() {
        two().0.write(usize::MAX, &[1, 2]);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn a_load_between_words_panics() {
        two().0.load::<1>(4);
    }
}
