//! How the program was started: whether it has standard output.
//!
//! # Contract
//! The standard library opens `/dev/null` in place of a standard descriptor that is closed, before
//! `main` begins. So this is checked earlier, at the time of the C library's constructors.
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when the program began: writes to it are lost.
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Closes standard output again if it was closed when the program began: a program that is executed
/// in place of this one then begins as this one did. Nothing may be written there afterwards.
pub fn close_stdout_again() {
    if stdout_was_closed() {
        // SAFETY: descriptor 1 is the `/dev/null` that the standard library opened, and no value
        // owns it: `Stdout` doesn't close it, and an error in writing to it is EBADF.
        unsafe { libc::close(libc::STDOUT_FILENO) };
    }
}

extern "C" fn look() {
    // SAFETY: it takes a number, which may be no descriptor, and touches no memory.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: this section holds pointers to C functions, each of which is called once before `main`.
// This one takes no arguments, and needs nothing that is set up later.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;
