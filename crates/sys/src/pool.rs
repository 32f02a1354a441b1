//! Memory for bytes that arrive: lent to the kernel buffer by buffer, handed out as [`Buffer`]s.
//!
//! # Contract
//! Each buffer has one owner: the kernel (its number stands in the ring of provided buffers), a
//! [`Buffer`], or the free list. The kernel holds only `kernel_max` at a time and takes the most
//! recently used first, so that a busy pool stays in the cache while the rest is never touched.
//!
//! # Limits
//! Owners that keep their buffers (of connections whose machine takes no more bytes) have
//! [`KEPT_BYTES_MAX`] together, and what the kernel had then; from there on only short buffers are
//! lent, and each owner has one at most. The first buffers are handed out before all others and
//! keep their memory; others give back what is more than short, so that many owners in turn don't
//! leave memory behind. Memory in all: (lent + [`WARM`]) · size, [`KEPT_BYTES_MAX`], and
//! [`SHORT_BYTES`] for each buffer.
use crate::Error;
use crate::mapping::Mapping;
use io_uring::types::BufRingEntry;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

/// The one buffer group.
pub(crate) const GROUP: u16 = 0;

/// Bytes in buffers that are out from which on only short ones are lent.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;
/// Bytes of a short one: a page.
pub(crate) const SHORT_BYTES: usize = 4096;
/// Buffers, beside those lent, that keep their memory: a busy pool has few out at a time.
pub(crate) const WARM: u16 = 64;

/// All buffers, shared with the [`Buffer`]s that are out.
#[derive(Debug)]
struct Shared {
    memory: Mapping,
    free: RefCell<Free>,
    /// Bytes in those that are out.
    kept_bytes: Cell<usize>,
    /// Numbers below keep their memory.
    warm: u16,
    buffer_bytes: usize,
}

/// Free buffers, the one used last on top.
#[derive(Debug, Default, PartialEq, Eq)]
struct Free {
    warm: Vec<u16>,
    cold: Vec<u16>,
}

impl Shared {
    /// A buffer that had so many bytes comes back.
    fn put(&self, number: u16, len: usize) {
        self.kept_bytes.set(self.kept_bytes.get() - len);
        let free = &mut *self.free.borrow_mut();
        if number < self.warm {
            return free.warm.push(number);
        }
        if len > SHORT_BYTES {
            let at = usize::from(number) * self.buffer_bytes;
            // SAFETY: its owner is gone, and the kernel gets it only from the free list, where it
            // is not yet. Failing leaves the memory as it is, which is harmless.
            unsafe { self.memory.discard(at, self.buffer_bytes) };
        }
        free.cold.push(number);
    }

    fn take(&self) -> Option<u16> {
        let free = &mut *self.free.borrow_mut();
        free.warm.pop().or_else(|| free.cold.pop())
    }
}

/// Bytes that arrived. Goes back to the pool on drop.
#[derive(Debug)]
pub struct Buffer {
    pool: Rc<Shared>,
    number: u16,
    len: usize,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let at = usize::from(self.number) * self.pool.buffer_bytes;
        let at = self.pool.memory.pointer(at, self.len);
        // SAFETY: inside the mapping (checked), initialised (zero pages, then the kernel's bytes),
        // and this `Buffer` is the only owner: the kernel gave the number back before it was made.
        unsafe { std::slice::from_raw_parts(at, self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.put(self.number, self.len);
    }
}

/// The pool and its end of the ring of provided buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Rc<Shared>,
    /// The ring that the kernel reads: `kernel_max` entries of 16 bytes, the tail in the first.
    entries: Rc<Mapping>,
    kernel_max: u16,
    with_kernel: u16,
    tail: u16,
}

impl Pool {
    /// `count` buffers of `buffer_bytes`, of which the kernel holds at most `kernel_max` (a power
    /// of two).
    pub(crate) fn new(count: u16, kernel_max: u16, buffer_bytes: u32) -> Result<Self, Error> {
        assert!(
            kernel_max.is_power_of_two() && kernel_max <= count,
            "{kernel_max} of {count}"
        );
        let buffer_bytes = buffer_bytes as usize;
        let warm = count.min(kernel_max.saturating_add(WARM));
        let free = Free {
            warm: (0..warm).rev().collect(),
            cold: (warm..count).rev().collect(),
        };
        let shared = Shared {
            memory: Mapping::new(buffer_bytes * usize::from(count))?,
            free: RefCell::new(free),
            kept_bytes: Cell::new(0),
            warm,
            buffer_bytes,
        };
        let entries = Mapping::new(usize::from(kernel_max) * size_of::<BufRingEntry>())?;
        let (shared, entries) = (Rc::new(shared), Rc::new(entries));
        Ok(Self {
            shared,
            entries,
            kernel_max,
            with_kernel: 0,
            tail: 0,
        })
    }

    /// Address of the ring and its number of entries, for registering it.
    pub(crate) fn registration(&self) -> (u64, u16) {
        (self.entries.pointer(0, 0).addr() as u64, self.kernel_max)
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.shared.buffer_bytes as u32
    }

    /// Lends the kernel what it may have.
    pub(crate) fn refill(&mut self) {
        let before = self.tail;
        while self.with_kernel < self.kernel_max {
            let Some(number) = self.shared.take() else {
                break;
            };
            self.lend(number);
        }
        if self.tail != before {
            let first = self
                .entries
                .pointer(0, size_of::<BufRingEntry>())
                .cast::<BufRingEntry>();
            // SAFETY: `first` is the first entry of the ring, mapped and initialised.
            let tail = unsafe { BufRingEntry::tail(first) }.cast::<AtomicU16>();
            // SAFETY: aligned and inside the mapping. The kernel reads it and only we write it, by
            // atomic stores: no reference to the entry that it is a part of exists (`lend`).
            unsafe { &*tail }.store(self.tail, Ordering::Release);
        }
    }

    fn lend(&mut self, number: u16) {
        let size = self.shared.buffer_bytes;
        let len = match self.shared.kept_bytes.get() > KEPT_BYTES_MAX {
            true => size.min(SHORT_BYTES),
            false => size,
        };
        let buffer = self.shared.memory.pointer(usize::from(number) * size, len);
        let slot = usize::from(self.tail & (self.kernel_max - 1)) * size_of::<BufRingEntry>();
        let entry = self.entries.pointer(slot, size_of::<BufRingEntry>());
        // SAFETY: an aligned entry of the ring (`struct io_uring_buf`: address, length, number)
        // that the kernel has consumed (it holds fewer than `kernel_max`) and won't look at before
        // the tail moves. Written field by field: the tail, which the kernel reads at any time,
        // lies behind these in the first entry, and no reference may span it.
        unsafe {
            entry.cast::<u64>().write(buffer.addr() as u64);
            entry.add(8).cast::<u32>().write(len as u32);
            entry.add(12).cast::<u16>().write(number);
        }
        self.tail = self.tail.wrapping_add(1);
        self.with_kernel += 1;
    }

    /// The kernel gave buffer `number` back with `len` bytes in it.
    pub(crate) fn take(&mut self, number: u16, len: usize) -> Buffer {
        assert!(
            self.with_kernel > 0 && len <= self.shared.buffer_bytes,
            "{len} in {number}"
        );
        self.with_kernel -= 1;
        let kept = &self.shared.kept_bytes;
        kept.set(kept.get() + len);
        Buffer {
            pool: Rc::clone(&self.shared),
            number,
            len,
        }
    }

    /// Never unmaps: the kernel may go on using it for an unknown time.
    pub(crate) fn leak(&self) {
        std::mem::forget(Rc::clone(&self.shared));
        std::mem::forget(Rc::clone(&self.entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_holds_its_share_and_gets_the_hottest_buffer_back() {
        let mut pool = Pool::new(6, 4, 4096).unwrap();
        pool.refill();
        assert_eq!((pool.with_kernel, pool.tail), (4, 4));
        drop(pool.take(2, 10));
        let kept = pool.take(3, 4096);
        assert_eq!(kept.len(), 4096);
        pool.refill();
        assert_eq!((pool.with_kernel, pool.tail), (4, 6));
        // 2 went back first; the other lent one is the first of the reserve.
        assert_eq!(pool.shared.free.borrow().warm, [5]);
    }

    /// Bytes of the buffer that was lent last.
    fn lent_bytes(pool: &Pool) -> u32 {
        let slot = usize::from((pool.tail - 1) & (pool.kernel_max - 1));
        let entry = pool.entries.pointer(16 * slot, 16);
        // SAFETY: an entry of the ring, mapped and initialised; the length is at byte 8.
        unsafe { entry.add(8).cast::<u32>().read() }
    }

    #[test]
    fn when_much_is_kept_only_short_buffers_are_lent() {
        let size = 256 << 10;
        let mut pool = Pool::new(100, 1, size).unwrap();
        let mut kept = Vec::new();
        for number in 0..=(KEPT_BYTES_MAX / size as usize) as u16 {
            pool.refill();
            assert_eq!(lent_bytes(&pool), size, "{number}");
            kept.push(pool.take(number, size as usize));
        }
        pool.refill();
        assert_eq!(lent_bytes(&pool) as usize, SHORT_BYTES);
        kept.truncate(4);
        drop(pool.take(kept.len() as u16 + 61, 0));
        pool.refill();
        assert_eq!(lent_bytes(&pool), size);
    }

    #[test]
    fn only_the_first_buffers_keep_their_memory() {
        let count = WARM + 3;
        let mut pool = Pool::new(count, 1, 8192).unwrap();
        let mut all = Vec::new();
        for number in 0..count {
            pool.refill();
            let at = pool.shared.memory.pointer(usize::from(number) * 8192, 1);
            // SAFETY: in the mapping, and the kernel has never heard of this pool.
            unsafe { at.write(1) };
            all.push(pool.take(number, if number == WARM + 1 { 1 } else { 8192 }));
        }
        drop(all);
        let first = |number: u16| pool.shared.memory.pointer(usize::from(number) * 8192, 1);
        for (number, there) in [(0, 1), (WARM, 1), (WARM + 1, 1), (WARM + 2, 0)] {
            // SAFETY: in the mapping, initialised, and not written meanwhile.
            assert_eq!(unsafe { first(number).read() }, there, "{number}");
        }
        assert_eq!(pool.shared.kept_bytes.get(), 0);
    }

    #[test]
    fn the_tail_survives_entry_zero() {
        let mut pool = Pool::new(2, 1, 4096).unwrap();
        for turn in 1..5_u16 {
            pool.refill();
            assert_eq!(pool.tail, turn);
            let first = pool.entries.pointer(0, 16);
            // SAFETY: the first entry's last field, mapped and initialised.
            let tail = unsafe { first.add(14).cast::<u16>().read() };
            assert_eq!(tail, turn);
            drop(pool.take(1 - turn % 2, 0));
        }
    }
}
