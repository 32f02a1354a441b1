//! Memory that a queue's commands may use.
use nvme::queue::pointer::Piece;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::Shared;

/// Registered memory. The broker may write to it while a read is in flight: bytes are copied, not
/// referred to.
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) shared: Arc<Shared>,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) address: u64,
}

impl Region {
    /// Its address in data pointers.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// A part of it, for a command.
    ///
    /// # Panics
    /// Outside.
    #[inline]
    pub fn piece(&self, at: usize, len: u32) -> Piece {
        assert!(
            self.shared.contains(at, len as usize),
            "{at} + {len} is outside of {} registered bytes",
            self.len()
        );
        Piece {
            address: self.address + at as u64,
            len,
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// Outside.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        self.shared.read(at, bytes);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Outside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.shared.write(at, bytes);
    }

    /// Where it lies in this process, for those who bring their own rules (C).
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.as_ptr()
    }

    /// The memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
