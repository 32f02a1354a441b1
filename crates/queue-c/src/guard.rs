//! Use of a queue from two threads at once: found in debug builds.
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether it is in use.
#[derive(Debug, Default)]
pub struct Guard(AtomicBool);

/// Marks it as in use until this is dropped.
pub struct Used(*const Guard);

impl Guard {
    /// Marks it as in use; in debug builds the process aborts if it already is.
    #[inline]
    pub fn enter(&self) -> Used {
        if cfg!(debug_assertions) && self.0.swap(true, Ordering::Acquire) {
            eprintln!("braid_queue: a queue is used from two threads at once");
            std::process::abort();
        }
        Used(self)
    }
}

impl Drop for Used {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            // SAFETY: the queue that it is a part of outlives every call (`with` in lib.rs).
            unsafe { &*self.0 }.0.store(false, Ordering::Release);
        }
    }
}
