//! An allocator that counts, for showing that the I/O path doesn't allocate.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

/// Bytes that were allocated and not freed.
static LIVE: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread allocates: a program makes it its
/// `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// Allocations of this thread so far; always 0 where it isn't the program's allocator.
    pub fn of_this_thread() -> u64 {
        COUNT.with(Cell::get)
    }

    /// Bytes that all threads have allocated and not freed, as they asked for them.
    pub fn live_bytes() -> i64 {
        LIVE.load(Ordering::Relaxed)
    }
}

/// Passes on what was allocated in place of `before` bytes; null: nothing was.
fn counted(at: *mut u8, before: usize, bytes: usize) -> *mut u8 {
    if !at.is_null() {
        LIVE.fetch_add(bytes as i64 - before as i64, Ordering::Relaxed);
    }
    at
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        counted(unsafe { System.alloc(layout) }, 0, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        counted(unsafe { System.alloc_zeroed(layout) }, 0, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        let at = unsafe { System.realloc(at, layout, bytes) };
        counted(at, layout.size(), bytes)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}
