//! Large reads of memory devices whose bytes are sent from the device itself, without a copy.
//!
//! # Contract
//! What is lent stays as it was when the read was executed: a change of a lent stripe changes a
//! copy, which takes its place (`memory`). A read's stripes go to the messages that send them;
//! those that are never sent, because their connection has ended, stay until another request has
//! the number.
//!
//! # Limits
//! [`LENT_READS_MAX`] at a time, of devices whose stripes have the usual size: a change of a lent
//! stripe copies all of it.
use crate::limits::LENT_READS_MAX;
use crate::memory::MemoryDevice;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use sys::Stripe;

type Part = (Arc<Stripe>, Range<usize>);

/// By number of the request.
#[derive(Default)]
pub(crate) struct LentReads {
    reads: HashMap<u32, Vec<Part>>,
    /// Empty ones that keep their memory.
    spare: Vec<Vec<Part>>,
}

impl LentReads {
    /// Keeps what the device has there, for request `id`; whether it does.
    pub(crate) fn lend(
        &mut self,
        id: u32,
        device: &MemoryDevice,
        offset: u64,
        length: u64,
    ) -> bool {
        if self.reads.len() >= LENT_READS_MAX || device.has_large_stripes() {
            return false;
        }
        let mut parts = self.spare.pop().unwrap_or_default();
        device.lend(offset, length, &mut parts);
        let old = self.reads.insert(id, parts);
        assert!(old.is_none(), "request {id} is another one's");
        true
    }

    /// Another request has the number.
    #[inline]
    pub(crate) fn forget(&mut self, id: u32) {
        if !self.reads.is_empty() {
            self.end(id);
        }
    }

    /// Calls `visit` with the parts that lie in `range` of the payload of request `id`; whether it
    /// was lent. The last ones end it.
    pub(crate) fn take(
        &mut self,
        id: u32,
        range: Range<usize>,
        mut visit: impl FnMut(&Arc<Stripe>, Range<usize>),
    ) -> bool {
        let Some(parts) = self.reads.get(&id) else {
            return false;
        };
        let mut at = 0;
        for (stripe, part) in parts {
            let first = range.start.max(at);
            let last = range.end.min(at + part.len());
            if first < last {
                visit(stripe, part.start + first - at..part.start + last - at);
            }
            at += part.len();
        }
        assert!(range.end <= at, "{range:?} of a payload of {at} bytes");
        if range.end == at {
            self.end(id);
        }
        true
    }

    fn end(&mut self, id: u32) {
        if let Some(mut parts) = self.reads.remove(&id) {
            parts.clear();
            self.spare.push(parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::STRIPE_BYTES;

    fn bytes(lent: &mut LentReads, id: u32, range: Range<usize>) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        let take = |stripe: &Arc<Stripe>, range| all.extend_from_slice(&stripe[range]);
        lent.take(id, range, take).then_some(all)
    }

    #[test]
    fn what_is_lent_stays_as_it_was_while_the_device_changes() {
        let device = MemoryDevice::new(4 * STRIPE_BYTES as u64).unwrap();
        let length = 2 * STRIPE_BYTES;
        let offset = STRIPE_BYTES as u64 / 2;
        device.write(offset, &vec![1; length]);
        let mut lent = LentReads::default();
        assert!(lent.lend(7, &device, offset, length as u64));
        device.write(offset, &vec![2; length]);
        device.discard(offset, 4096);
        let mut now = vec![0; length];
        device.read(offset, &mut now);
        assert!(now[..4096].iter().all(|&it| it == 0));
        assert!(now[4096..].iter().all(|&it| it == 2));
        assert_eq!(bytes(&mut lent, 6, 0..1), None);
        for (range, is_last) in [(0..100_000, false), (100_000..length, true)] {
            let expected = vec![1; range.len()];
            assert_eq!(bytes(&mut lent, 7, range), Some(expected));
            assert_eq!(lent.reads.is_empty(), is_last);
        }
        assert_eq!(bytes(&mut lent, 7, 0..1), None);
    }

    #[test]
    fn another_request_with_the_number_is_not_taken_for_it() {
        let device = MemoryDevice::new(STRIPE_BYTES as u64).unwrap();
        let mut lent = LentReads::default();
        assert!(lent.lend(1, &device, 0, 4096));
        lent.forget(1);
        assert_eq!(bytes(&mut lent, 1, 0..4096), None);
    }

    #[test]
    fn many_reads_and_large_stripes_are_not_lent() {
        let device = MemoryDevice::new(STRIPE_BYTES as u64).unwrap();
        let mut lent = LentReads::default();
        for id in 0..LENT_READS_MAX as u32 {
            assert!(lent.lend(id, &device, 0, 4096));
        }
        assert!(!lent.lend(u32::MAX, &device, 0, 4096));
        lent.forget(3);
        assert!(lent.lend(u32::MAX, &device, 0, 4096));
        lent.forget(4);
        let large = MemoryDevice::new(1 << 40).unwrap();
        assert!(!lent.lend(4, &large, 0, 4096));
    }
}
