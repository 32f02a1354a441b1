//! Both ends of each queue wired together over plain memory, at every wrap position.
mod check;
mod pointer;
mod rings;

use super::SharedMemory;
use core::cell::RefCell;
use std::vec;
use std::vec::Vec;

/// Memory without another side.
struct Plain(RefCell<Vec<u64>>);

impl Plain {
    fn new(bytes: usize) -> Self {
        Self(RefCell::new(vec![0; bytes / 8]))
    }
}

impl SharedMemory for Plain {
    fn load(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8));
        self.0.borrow()[at / 8]
    }
    fn store(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8));
        self.0.borrow_mut()[at / 8] = value;
    }
    fn load_acquire(&self, at: usize) -> u64 {
        self.load(at)
    }
    fn store_release(&self, at: usize, value: u64) {
        self.store(at, value);
    }
    fn load_word(&self, at: usize) -> u32 {
        self.load(at) as u32
    }
    fn store_word(&self, at: usize, value: u32) {
        self.store(at, value.into());
    }
    fn fence(&self) {}
}
