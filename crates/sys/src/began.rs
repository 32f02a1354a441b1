//! How the program was started: whether it has standard output.
//!
//! # Contract
//! The standard library opens `/dev/null` in place of a standard descriptor that is closed, before
//! `main` begins. Whoever wants to know of it has to look earlier, as the C library's constructors
//! do.
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed when the program began: what is written there reaches nobody.
pub fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
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
