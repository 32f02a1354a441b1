//! Points at which a test build of the program stops itself, for `cargo xtask faults freeze` (T49),
//! and steps of changes at which it dies, for `cargo xtask faults change`.
//!
//! # Contract
//! Without the feature `freeze-points` nothing of it is compiled into a program: [`point`],
//! [`step`], [`begin`] and [`end`] are empty. With it, a process whose environment has
//! `BRAID_FREEZE`, a directory, sends itself SIGSTOP at a point as soon as there is a file of the
//! point's name, which it removes first. A thread that stood in an open window, between the last
//! look at the clock and the end of the system call that follows, adds a line to the file `windows`
//! there.
//!
//! A file `step` there has a number: the process passes so many steps more, and at the next one
//! writes its name to the file `died` and sends itself SIGKILL. Points before changes are submitted
//! are steps too.

/// Where a process can stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// After a turn has read its clock.
    Turn,
    /// Before a turn submits changes, and reads the clock for them again.
    Submit,
    /// In a worker, before it asks whether its change may still start.
    Worker,
    /// Open: between that clock and the system call that submits.
    Clock,
    /// Open: in a worker, between its question and its system call.
    Call,
}

#[cfg(not(feature = "freeze-points"))]
mod points {
    use super::Point;

    /// Does nothing in this build.
    #[inline(always)]
    pub fn point(_at: Point) {}

    /// Does nothing in this build.
    #[inline(always)]
    pub fn step(_stage: &str, _of: &dyn std::fmt::Display) {}

    /// Does nothing in this build.
    #[inline(always)]
    pub fn begin() {}

    /// Does nothing in this build.
    #[inline(always)]
    pub fn end() {}
}

#[cfg(feature = "freeze-points")]
mod points {
    use super::Point;
    use crate::os;
    use std::cell::Cell;
    use std::fmt::Display;
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::{Mutex, OnceLock, PoisonError};

    /// A window that took longer than this had the standstill in it, ns.
    const LONG_NS: u64 = 300_000_000;

    thread_local! {
        /// When this thread entered an open window; 0: it is in none.
        static ENTERED_NS: Cell<u64> = const { Cell::new(0) };
    }

    fn directory() -> Option<&'static PathBuf> {
        static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
        let found = DIRECTORY.get_or_init(|| std::env::var_os("BRAID_FREEZE").map(PathBuf::from));
        found.as_ref()
    }

    /// Stops the process here, if that was asked for.
    pub fn point(at: Point) {
        let name = match at {
            Point::Turn => "turn",
            Point::Submit => "submit",
            Point::Worker => "worker",
            Point::Clock => "clock",
            Point::Call => "call",
        };
        if matches!(at, Point::Submit | Point::Worker) {
            step("before", &name);
        }
        // One thread removes it, and all stop with it.
        if let Some(directory) = directory()
            && std::fs::remove_file(directory.join(name)).is_ok()
        {
            // SAFETY: it takes and leaves no memory. To this thread, which so stops here; a signal
            // to the process may stop another one first, while this one goes on.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }

    /// Dies here, if this is the step that was asked for.
    pub fn step(stage: &str, of: &dyn Display) {
        /// How many steps are passed yet.
        static LEFT: Mutex<Option<u64>> = Mutex::new(None);
        let Some(directory) = directory() else {
            return;
        };
        // All other threads stop at their next step meanwhile.
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let armed = directory.join("step");
        if let Ok(text) = std::fs::read_to_string(&armed)
            && std::fs::remove_file(&armed).is_ok()
        {
            *left = text.trim().parse().ok();
        }
        *left = match *left {
            Some(0) => {
                let _ = std::fs::write(directory.join("died"), format!("{stage} {of}"));
                // SAFETY: it takes and leaves no memory; no thread of the process goes on.
                unsafe { libc::raise(libc::SIGKILL) };
                None
            }
            other => other.map(|count| count - 1),
        };
    }

    /// This thread enters an open window.
    pub fn begin() {
        ENTERED_NS.set(os::now_ns());
    }

    /// It leaves the window; a long stay is noted.
    pub fn end() {
        let entered_ns = ENTERED_NS.replace(0);
        let stayed_ns = os::now_ns().saturating_sub(entered_ns);
        let Some(directory) = directory().filter(|_| entered_ns > 0 && stayed_ns > LONG_NS) else {
            return;
        };
        let mut options = std::fs::File::options();
        let file = options.create(true).append(true);
        if let Ok(mut file) = file.open(directory.join("windows")) {
            let _ = writeln!(file, "{}", stayed_ns / 1_000_000);
        }
    }
}

pub use points::{begin, end, point, step};
