//! Shared memory as the rings want it.
use nvme::queue::{Entry, SharedMemory};
use std::sync::Arc;
use sys::Shared;

/// A queue's memory.
#[derive(Clone, Debug)]
pub struct Memory(pub Arc<Shared>);

impl SharedMemory for Memory {
    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.0.load::<1>(at)[0]
    }
    #[inline]
    fn store(&self, at: usize, value: u64) {
        self.0.store(at, &[value]);
    }
    #[inline]
    fn load_acquire(&self, at: usize) -> u64 {
        self.0.load_acquire(at)
    }
    #[inline]
    fn store_release(&self, at: usize, value: u64) {
        self.0.store_release(at, value);
    }
    #[inline]
    fn load_word(&self, at: usize) -> u32 {
        self.0.load_word(at)
    }
    #[inline]
    fn store_word(&self, at: usize, value: u32) {
        self.0.store_word(at, value);
    }
    #[inline]
    fn fence(&self) {
        self.0.fence();
    }
    #[inline]
    fn load_entry(&self, at: usize) -> Entry {
        self.0.load(at)
    }
    #[inline]
    fn store_entry(&self, at: usize, entry: &Entry) {
        self.0.store(at, entry);
    }
}
