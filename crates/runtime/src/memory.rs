//! Memory as a block device, shared by all cores.
//!
//! # Contract
//! The bytes lie in stripes, each under a lock that is held for one copy. A block never crosses a
//! stripe, so a write of one block is atomic to readers on any core (NVM command set 2.1.4), as a
//! device's must be; a larger I/O isn't. This is the one lock on the I/O path: it stands in for the
//! device's own arbitration, and cores meet at it only where their I/Os meet. Stripes can be lent:
//! while one is, changes are made to a copy that takes its place.
use crate::RuntimeError;
use crate::limits::{STRIPE_BYTES, STRIPES_MAX};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::Stripe;

/// Memory as a device.
#[derive(Debug)]
pub struct MemoryDevice {
    stripes: Box<[Mutex<Arc<Stripe>>]>,
    stripe_bytes: usize,
    bytes: u64,
}

impl MemoryDevice {
    /// `bytes` of zeroes, committed as they are written.
    ///
    /// # Errors
    /// [`RuntimeError::Memory`]: the address space can't be had.
    pub fn new(bytes: u64) -> Result<Self, RuntimeError> {
        let mut stripe_bytes = STRIPE_BYTES;
        while bytes.div_ceil(stripe_bytes as u64) > STRIPES_MAX {
            stripe_bytes *= 2;
        }
        let stripes = sys::stripes(bytes, stripe_bytes).map_err(|error| RuntimeError::Memory {
            object: "a memory device",
            bytes,
            source: error.source.into(),
        })?;
        let stripes = stripes.into_iter().map(Arc::new);
        Ok(Self {
            stripes: stripes.map(Mutex::new).collect(),
            stripe_bytes,
            bytes,
        })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies a range of the device to `data`.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        self.see(offset, data.len() as u64, |stripe, range, at| {
            data[at..][..range.len()].copy_from_slice(&stripe[range]);
        });
    }

    /// Whether its stripes are larger than usual.
    pub(crate) fn has_large_stripes(&self) -> bool {
        self.stripe_bytes > STRIPE_BYTES
    }

    /// Appends the stripes of a range, and the part of each, as they are now.
    pub(crate) fn lend(
        &self,
        offset: u64,
        length: u64,
        parts: &mut Vec<(Arc<Stripe>, Range<usize>)>,
    ) {
        self.see(offset, length, |stripe, range, _| {
            parts.push((Arc::clone(stripe), range));
        });
    }

    /// Copies `data` to a range of the device.
    pub fn write(&self, offset: u64, data: &[u8]) {
        self.each(offset, data.len() as u64, |stripe, range, at| {
            let bytes = range.len();
            stripe[range].copy_from_slice(&data[at..][..bytes]);
        });
    }

    /// Whether a range of the device has these bytes.
    pub(crate) fn is_equal(&self, offset: u64, data: &[u8]) -> bool {
        let mut equal = true;
        self.see(offset, data.len() as u64, |stripe, range, at| {
            equal &= data[at..][..range.len()] == stripe[range];
        });
        equal
    }

    /// Zeroes a range, giving whole pages back.
    ///
    /// # Panics
    /// The range is not inside the device.
    pub fn discard(&self, offset: u64, length: u64) {
        self.each(offset, length, |stripe, range, _| stripe.discard(range));
    }

    /// Calls `visit` with each stripe of the range, the part of it, and that part's place in the
    /// data. The stripe is locked meanwhile.
    ///
    /// # Panics
    /// The range is not inside the device.
    pub fn each(
        &self,
        offset: u64,
        length: u64,
        mut visit: impl FnMut(&mut Stripe, Range<usize>, usize),
    ) {
        for (number, range, at) in self.parts(offset, length) {
            let mut stripe = self.lock(number);
            if Arc::get_mut(&mut stripe).is_none() {
                *stripe = Arc::new(stripe.replacement());
            }
            let own = Arc::get_mut(&mut stripe);
            let own = own.unwrap_or_else(|| unreachable!("a stripe is lent under its lock"));
            visit(own, range, at);
        }
    }

    /// As [`Self::each`], for what changes nothing.
    fn see(
        &self,
        offset: u64,
        length: u64,
        mut visit: impl FnMut(&Arc<Stripe>, Range<usize>, usize),
    ) {
        for (number, range, at) in self.parts(offset, length) {
            visit(&self.lock(number), range, at);
        }
    }

    /// Number of each stripe of a range, the part of it, and that part's place in the range.
    fn parts(
        &self,
        offset: u64,
        length: u64,
    ) -> impl Iterator<Item = (u64, Range<usize>, usize)> + use<> {
        let stripe_bytes = self.stripe_bytes as u64;
        let end = offset + length;
        let mut at = offset;
        std::iter::from_fn(move || {
            let from = at;
            let first = from % stripe_bytes;
            let last = (end - from + first).min(stripe_bytes);
            at += last - first;
            let range = first as usize..last as usize;
            (from < end).then_some((from / stripe_bytes, range, (from - offset) as usize))
        })
    }

    fn lock(&self, stripe: u64) -> MutexGuard<'_, Arc<Stripe>> {
        // A panic while it was held left bytes, which are always valid.
        self.stripes[stripe as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_across_stripes_is_read_and_compared() {
        let device = MemoryDevice::new(1 << 20).unwrap();
        let offset = STRIPE_BYTES as u64 - 512;
        let mut data: Vec<u8> = (0..2 * STRIPE_BYTES + 1024).map(|at| at as u8).collect();
        device.write(offset, &data);
        let mut read = vec![0xee; data.len()];
        device.read(offset, &mut read);
        assert_eq!(read, data);
        assert!(device.is_equal(offset, &data));
        *data.last_mut().unwrap() ^= 1;
        assert!(!device.is_equal(offset, &data));
        device.read(offset - 512, &mut read[..512]);
        assert_eq!(read[..512], [0; 512]);
    }

    #[test]
    fn discarded_ranges_read_as_zeroes() {
        let device = MemoryDevice::new(1 << 20).unwrap();
        device.write(0, &[5; 1 << 20]);
        device.discard(4608, 199_680);
        let mut data = vec![1; 1 << 20];
        device.read(0, &mut data);
        let end = 4608 + 199_680;
        assert!(data[4608..end].iter().all(|&byte| byte == 0));
        assert!(
            data[..4608]
                .iter()
                .chain(&data[end..])
                .all(|&byte| byte == 5)
        );
    }

    #[test]
    fn a_device_larger_than_memory_is_fine_and_one_larger_than_addresses_an_error() {
        assert_eq!(MemoryDevice::new(1 << 40).unwrap().bytes(), 1 << 40);
        assert!(matches!(
            MemoryDevice::new(u64::MAX),
            Err(RuntimeError::Memory { .. })
        ));
    }
}
