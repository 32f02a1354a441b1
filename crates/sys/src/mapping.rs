//! Anonymous memory from the kernel: zeroed, committed page by page as it is touched.
//!
//! # Contract
//! A [`Mapping`] hands out raw pointers only; who may use them when is decided by its owners: the
//! arena (page locks), the receive pool (one owner per buffer), and [`Stripe`] (disjoint pieces).
use crate::Error;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Page size that locks and alignments count in; a multiple of no page size is smaller.
pub(crate) const PAGE: usize = 4096;

/// A private anonymous mapping; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and has no interior state.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` yields raw pointers only; using them is the business of its owners.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes of zeroes, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Result<Self, Error> {
        let len = len.next_multiple_of(PAGE).max(PAGE);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) }
            .map_err(|source| Error::new("mmap", source))?;
        let at = NonNull::new(at.cast()).ok_or(Error::new("mmap", rustix::io::Errno::NOMEM))?;
        Ok(Self { at, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of byte `at`, where `len` bytes must follow.
    ///
    /// # Panics
    /// The range is not inside the mapping.
    pub(crate) fn pointer(&self, at: usize, len: usize) -> *mut u8 {
        let end = at.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{at} + {len} is outside the mapping"
        );
        // `wrapping_add` keeps the provenance of the whole mapping and needs no promise.
        self.at.as_ptr().wrapping_add(at)
    }

    /// Gives whole pages back to the system: they read as zeroes from then on. Whether it did.
    ///
    /// # Safety
    /// No reference, of the kernel's either, leads to any of these bytes, and no code relies on
    /// their values.
    ///
    /// # Panics
    /// The range is not inside the mapping.
    pub(crate) unsafe fn discard(&self, at: usize, len: usize) -> bool {
        let from = self.pointer(at, len);
        // SAFETY: our own private anonymous mapping (checked), to whose bytes the caller has the
        // only access.
        unsafe { madvise(from.cast(), len, Advice::LinuxDontNeed) }.is_ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` are those of the mapping made in `new`, and this is its last
        // owner; owners that lent it to the kernel keep it alive until the kernel is done.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// One piece of a region of memory; the pieces are disjoint, so each may be locked on its own.
#[derive(Debug)]
pub struct Stripe {
    bytes: Bytes,
    /// Another one has its place: nobody asks for its bytes once it is dropped.
    is_replaced: AtomicBool,
}

#[derive(Debug)]
enum Bytes {
    /// A range of a region: its first byte, and how many.
    Mapped(Arc<Mapping>, usize, usize),
    /// A copy. Not a mapping: a process may have only so many.
    Copied(Box<[u8]>),
}

/// A region of `bytes` zeroes, committed as it is written, cut into pieces of `stripe_bytes` (the
/// last may be shorter).
///
/// # Errors
/// The address space can't be had (a limit, or strict overcommit).
///
/// # Panics
/// `stripe_bytes` is zero or no multiple of 4096.
pub fn stripes(bytes: u64, stripe_bytes: usize) -> Result<Vec<Stripe>, Error> {
    assert!(
        stripe_bytes > 0 && stripe_bytes.is_multiple_of(PAGE),
        "stripe of {stripe_bytes}"
    );
    let bytes = usize::try_from(bytes)
        .ok()
        .filter(|bytes| isize::try_from(bytes.saturating_add(PAGE)).is_ok())
        .ok_or(Error::new("mmap", rustix::io::Errno::NOMEM))?;
    let region = Arc::new(Mapping::new(bytes)?);
    let piece = |at| Stripe {
        bytes: Bytes::Mapped(Arc::clone(&region), at, stripe_bytes.min(bytes - at)),
        is_replaced: AtomicBool::new(false),
    };
    Ok((0..bytes).step_by(stripe_bytes).map(piece).collect())
}

impl Stripe {
    /// A copy that takes the place of this one, which others still read. Memory of this one is
    /// given back when it is dropped.
    pub fn replacement(&self) -> Self {
        self.is_replaced.store(true, Ordering::Relaxed);
        Self {
            bytes: Bytes::Copied(self[..].into()),
            is_replaced: AtomicBool::new(false),
        }
    }

    /// Zeroes a range and gives whole pages back to the system.
    ///
    /// # Panics
    /// The range is not inside the stripe.
    pub fn discard(&mut self, range: Range<usize>) {
        let first = range.start.next_multiple_of(PAGE);
        let last = range.end / PAGE * PAGE;
        if first >= last || matches!(self.bytes, Bytes::Copied(_)) {
            self[range].fill(0);
            return;
        }
        self[range.start..first].fill(0);
        self[last..range.end].fill(0);
        let is_done = match &self.bytes {
            // SAFETY: `&mut self` is the only access to these bytes, which are to be zero.
            Bytes::Mapped(region, at, _) => unsafe { region.discard(at + first, last - first) },
            Bytes::Copied(_) => false,
        };
        if !is_done {
            self[first..last].fill(0);
        }
    }
}

impl Drop for Stripe {
    fn drop(&mut self) {
        if let Bytes::Mapped(region, at, len) = &self.bytes
            && *self.is_replaced.get_mut()
        {
            // The last stripe of a region may end within a page, of which nobody has the rest.
            let len = len.next_multiple_of(PAGE);
            // SAFETY: who drops it is the last one that has access to these bytes.
            unsafe { region.discard(*at, len) };
        }
    }
}

impl Deref for Stripe {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(region, at, len) => {
                let at = region.pointer(*at, *len);
                // SAFETY: in the mapping (checked), initialised (zero pages), and no other stripe
                // covers it; the borrow of `self` keeps writers out.
                unsafe { std::slice::from_raw_parts(at, *len) }
            }
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl DerefMut for Stripe {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Mapped(region, at, len) => {
                let at = region.pointer(*at, *len);
                // SAFETY: as in `deref`; the exclusive borrow of `self` keeps everybody else out.
                unsafe { std::slice::from_raw_parts_mut(at, *len) }
            }
            Bytes::Copied(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_disjoint_zeroed_and_cover_the_region() {
        let mut pieces = stripes(3 * 8192 + 512, 8192).unwrap();
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [8192, 8192, 8192, 512]);
        for (number, piece) in pieces.iter_mut().enumerate() {
            assert!(piece.iter().all(|&byte| byte == 0));
            piece.fill(number as u8 + 1);
        }
        for (number, piece) in pieces.iter().enumerate() {
            assert!(piece.iter().all(|&byte| byte == number as u8 + 1));
        }
    }

    #[test]
    fn discard_zeroes_exactly_its_range() {
        for range in [100..200, 0..8192, 4000..8192, 1..16383, 4096..8192, 5..5] {
            let mut piece = stripes(16384, 16384).unwrap().remove(0);
            piece.fill(7);
            piece.discard(range.clone());
            for (at, &byte) in piece.iter().enumerate() {
                assert_eq!(byte == 0, range.contains(&at), "byte {at} of {range:?}");
            }
        }
    }

    #[test]
    fn a_replacement_is_a_copy_and_the_pages_of_the_replaced_one_are_given_back() {
        let mut pieces = stripes(8192 + 512, 8192).unwrap();
        pieces.iter_mut().for_each(|piece| piece.fill(7));
        for piece in pieces {
            let Bytes::Mapped(region, at, _) = &piece.bytes else {
                panic!("{piece:?}");
            };
            let (region, at) = (Arc::clone(region), *at);
            let at = region.pointer(at, 1).cast_const();
            let mut copy = piece.replacement();
            copy[0] = 8;
            // SAFETY: in the mapping, to which nobody writes.
            let first = || unsafe { at.read_volatile() };
            assert_eq!((first(), piece[0], copy[1]), (7, 7, 7));
            drop(piece);
            assert_eq!((first(), copy[0]), (0, 8));
            let len = copy.len();
            copy.discard(0..len - 1);
            assert!(copy[..len - 1].iter().all(|&byte| byte == 0) && copy[len - 1] == 7);
        }
    }

    #[test]
    fn a_region_that_no_machine_has_is_an_error() {
        assert!(stripes(u64::MAX, 1 << 20).is_err());
        assert!(Mapping::new(1 << 60).is_err());
    }
}
