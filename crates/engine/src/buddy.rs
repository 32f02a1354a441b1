//! A buddy allocator over the arena's address range: who owns which bytes. Pure bookkeeping.
use crate::machine::Span;

/// Owner of `bytes` of arena; blocks of 4 KiB…1 MiB, powers of two, aligned to their size.
pub struct Buddy {
    _todo: (),
}

#[allow(missing_docs, unused_variables)]
impl Buddy {
    pub fn new(bytes: u64) -> Self {
        todo!()
    }
    /// `None`: no room now (not an error of any device, T6). `len` ≤ 1 MiB.
    pub fn allocate(&mut self, len: u32) -> Option<Span> {
        todo!()
    }
    pub fn free(&mut self, span: Span) {
        todo!()
    }
    pub fn free_bytes(&self) -> u64 {
        todo!()
    }
}
