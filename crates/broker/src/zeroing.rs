//! A command that zeroes more of a memory device than one turn may: done piece by piece.
use crate::Store;
use crate::lane::cid_of;
use nvme::queue::Entry;
use nvme::queue::check::Checked;

/// See the module.
#[derive(Debug)]
pub struct Zeroing {
    pub cid: u16,
    /// Index of the namespace.
    pub namespace: usize,
    /// Ranges that are left: offset and length in bytes.
    ranges: Vec<(u64, u64)>,
    begun: bool,
}

impl Zeroing {
    pub fn new(entry: &Entry, checked: &Checked, ranges: Vec<(u64, u64)>) -> Self {
        Self {
            cid: cid_of(entry),
            namespace: checked.namespace as usize,
            ranges,
            begun: false,
        }
    }

    /// Something of it was zeroed.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Zeroes at most `bytes` more; whether that was all.
    pub fn piece(&mut self, store: &Store, bytes: u64) -> bool {
        let memory = match store {
            Store::Memory(memory) => memory,
            _ => return true,
        };
        self.begun = true;
        if let Some((offset, left)) = self.ranges.last_mut() {
            let len = bytes.min(*left);
            memory.discard(*offset, len);
            (*offset, *left) = (*offset + len, *left - len);
            if *left == 0 {
                self.ranges.pop();
            }
        }
        self.ranges.is_empty()
    }
}
