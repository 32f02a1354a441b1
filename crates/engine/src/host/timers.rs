//! The times at which the engine wants to be called.
//!
//! Two of them, because late reads are inspected more often than anything expires: the *deadline*
//! is when something expires or is due, the *wake-up* also when reads are to be inspected.

/// Never later than the first time that they stand for: an I/O that ends leaves them as they are,
/// so that I/O costs no search for the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    wake_ns: u64,
    /// Less exact for the expiry of I/O. Only kept while reads are hedged.
    deadline_ns: u64,
}

impl Timers {
    /// Nothing is due.
    pub(super) fn new() -> Self {
        Self {
            wake_ns: u64::MAX,
            deadline_ns: u64::MAX,
        }
    }

    /// Adds a deadline at `at_ns`.
    #[inline]
    pub(super) fn wake_by(&mut self, at_ns: u64) {
        self.wake_ns = self.wake_ns.min(at_ns);
        self.deadline_ns = self.deadline_ns.min(at_ns);
    }

    /// Adds an inspection of what is in flight at `at_ns`; an I/O that was given to its path now
    /// expires later than that.
    #[inline(always)]
    pub(super) fn inspect_by(&mut self, at_ns: u64) {
        self.wake_ns = self.wake_ns.min(at_ns);
    }

    /// Adds a deadline that needs no wake-up before the inspection that is planned.
    #[inline]
    pub(super) fn expire_by(&mut self, at_ns: u64) {
        self.deadline_ns = self.deadline_ns.min(at_ns);
    }

    /// Sets both, once all deadlines were looked up; `None`: there is none.
    pub(super) fn set_deadline(&mut self, at_ns: Option<u64>) {
        self.deadline_ns = at_ns.unwrap_or(u64::MAX);
        self.wake_ns = self.deadline_ns;
    }

    /// Plans the next inspection for `at_ns`, or for the deadline if that is earlier.
    #[inline]
    pub(super) fn set_inspection(&mut self, at_ns: u64) {
        self.wake_ns = self.deadline_ns.min(at_ns);
    }

    /// When the engine is to be called; `u64::MAX`: not for the sake of time.
    #[inline]
    pub(super) fn wake_ns(&self) -> u64 {
        self.wake_ns
    }

    /// Whether the first deadline has come.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.deadline_ns
    }
}
