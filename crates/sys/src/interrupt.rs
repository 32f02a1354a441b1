//! An eventfd that another process holds too, raised without ever waiting.
//!
//! # Contract
//! A write to an eventfd blocks while its counter is full and `O_NONBLOCK` is not set; the other
//! side can cause both. So it is not written to: an io_uring has it registered, and the kernel
//! raises it when a no-op completes. That never blocks and leaves a full counter as it is.
use crate::os::Event;
use crate::{Errno, Error};
use io_uring::{IoUring, opcode};
use std::os::fd::{AsRawFd, OwnedFd};

/// See the module.
pub struct Interrupt {
    uring: IoUring,
    event: OwnedFd,
}

impl Interrupt {
    /// A new one, not raised.
    ///
    /// # Errors
    /// `io_uring_setup`, `io_uring_register`: as the kernel says. `eventfd`: EMFILE, ENFILE.
    pub fn new() -> Result<Self, Error> {
        let event = Event::new().and_then(|event| event.try_clone());
        let event = event.map_err(|source| Error::new("eventfd", source))?;
        let uring = IoUring::new(2).map_err(|source| Error::io("io_uring_setup", &source))?;
        let registered = uring.submitter().register_eventfd(event.as_raw_fd());
        registered.map_err(|source| Error::io("io_uring_register", &source))?;
        Ok(Self { uring, event })
    }

    /// Raises it: one system call.
    ///
    /// # Errors
    /// The kernel has no memory for it now.
    pub fn raise(&mut self) -> Result<(), Errno> {
        let nothing = opcode::Nop::new().build();
        // SAFETY: an operation without memory.
        let pushed = unsafe { self.uring.submission().push(&nothing) };
        // There is room: each submission takes what is there.
        debug_assert!(pushed.is_ok());
        let submitted = self.uring.submit();
        self.uring.completion().for_each(drop);
        match submitted {
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// The eventfd that the other side waits on.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupt").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lower(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(event, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    #[test]
    fn it_is_raised_as_often_as_asked() {
        let mut interrupt = Interrupt::new().unwrap();
        assert_eq!(lower(interrupt.event()), 0);
        for _ in 0..10 {
            interrupt.raise().unwrap();
        }
        assert_eq!(lower(interrupt.event()), 10);
    }

    #[test]
    fn a_full_counter_that_would_block_holds_nobody_up() {
        let mut interrupt = Interrupt::new().unwrap();
        let theirs = rustix::io::dup(interrupt.event()).unwrap();
        let flags = rustix::fs::fcntl_getfl(&theirs).unwrap();
        rustix::fs::fcntl_setfl(&theirs, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..10 {
            interrupt.raise().unwrap();
        }
        assert!(lower(&theirs) >= u64::MAX - 1);
    }
}
