//! Leases of the buffers of front ends' I/O while legs have parts of it, and the buffers that are
//! retained beyond the I/O's end.
//!
//! # Contract
//! An I/O has a lease while legs have parts of it ([`BufferLeases::add`], and one
//! [`BufferLeases::end`] for each part). Where an I/O ends before its parts, its buffer is retained
//! ([`BufferLeases::retain`]): a leg that has left may still read it (T10). The lease's key is used
//! again only when all parts have ended.
//!
//! # Limits
//! One lease per part in flight; each step takes constant time. The room for as many as the host
//! has slots is reserved once; parts that wait for a slot may need more.
use crate::machine::Span;
use block::{Key, SlotMap};

/// All leases of one core. See the module.
pub(super) struct BufferLeases {
    all: SlotMap<BufferLease>,
    /// Retained leases.
    retained: usize,
}

#[derive(Clone, Copy)]
struct BufferLease {
    span: Span,
    parts: u32,
    /// The cookie of its I/O, once that has ended.
    retained: Option<u64>,
}

/// The state of a lease after a part has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    /// Other parts of the I/O.
    Parts,
    /// No part; the I/O has not ended, or has no memory.
    Nothing,
    /// No part; the I/O with this cookie had ended before.
    Retained(u64),
}

impl BufferLeases {
    pub fn new(room: usize) -> Self {
        Self {
            all: SlotMap::new(room as u32),
            retained: 0,
        }
    }

    /// Adds a part to the I/O's lease, or makes a lease for its first part. Returns the lease.
    pub fn add(&mut self, buffer_lease: Option<Key>, span: Span) -> Key {
        if let Some(buffer_lease) = buffer_lease {
            self.all[buffer_lease].parts += 1;
            return buffer_lease;
        }
        self.all.insert(BufferLease {
            span,
            parts: 1,
            retained: None,
        })
    }

    /// Retains the buffer of the I/O with this cookie, which ends before its parts.
    pub fn retain(&mut self, buffer_lease: Key, cookie: u64) {
        let it = &mut self.all[buffer_lease];
        let before = it.retained.replace(cookie);
        assert!(
            it.parts > 0 && before.is_none(),
            "a buffer is retained once"
        );
        self.retained += 1;
    }

    /// Ends one part.
    pub fn end(&mut self, buffer_lease: Key) -> Remaining {
        let it = &mut self.all[buffer_lease];
        it.parts -= 1;
        if it.parts > 0 {
            return Remaining::Parts;
        }
        match self.all.remove(buffer_lease).retained {
            Some(cookie) => {
                self.retained -= 1;
                Remaining::Retained(cookie)
            }
            None => Remaining::Nothing,
        }
    }

    /// Whether any buffer is retained.
    pub fn has_retained(&self) -> bool {
        self.retained > 0
    }

    /// Whether a retained buffer overlaps `span`. Goes through all leases.
    pub fn is_retained(&self, span: Span) -> bool {
        let end = |it: Span| it.at + u64::from(it.len);
        let mut retained = self.all.iter().filter(|(_, it)| it.retained.is_some());
        retained.any(|(_, it)| it.span.at < end(span) && span.at < end(it.span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 64;

    /// The plain way: an I/O, and the parts that legs have.
    #[derive(Clone, Copy, Default)]
    struct Plain {
        buffer_lease: Option<Key>,
        parts: u32,
        ended: bool,
    }

    fn span(at: usize) -> Span {
        Span {
            at: at as u64 * 4096,
            len: 4096,
        }
    }

    /// One step of an I/O; what it came to.
    fn step(
        buffer_leases: &mut BufferLeases,
        (at, it): (usize, &mut Plain),
        what: u64,
    ) -> Option<Remaining> {
        match (what, it.buffer_lease) {
            (0 | 1, buffer_lease) if !it.ended => {
                it.buffer_lease = Some(buffer_leases.add(buffer_lease, span(at)));
                it.parts += 1;
            }
            (2, Some(buffer_lease)) if !it.ended => {
                buffer_leases.retain(buffer_lease, at as u64);
                it.ended = true;
            }
            (3, Some(buffer_lease)) => {
                it.parts -= 1;
                return Some(buffer_leases.end(buffer_lease));
            }
            _ => {}
        }
        None
    }

    #[test]
    fn t10_what_is_lent_is_what_a_walk_over_all_ios_finds_and_no_step_takes_memory() {
        let mut buffer_leases = BufferLeases::new(PLACES);
        let mut all = [Plain::default(); PLACES];
        let (mut random, mut came_back) = (7_u64, 0);
        for _ in 0..50_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (at, what) = ((random >> 33) as usize % PLACES, random >> 48 & 3);
            let mut left = None;
            let info = allocation_counter::measure(|| {
                left = step(&mut buffer_leases, (at, &mut all[at]), what);
            });
            assert_eq!(info.count_total, 0);
            let it = &mut all[at];
            let plain = match (it.parts, it.ended) {
                (0, true) => Remaining::Retained(at as u64),
                (0, false) => Remaining::Nothing,
                _ => Remaining::Parts,
            };
            assert!(left.is_none_or(|left| left == plain), "{left:?} {plain:?}");
            if left.is_some_and(|left| left != Remaining::Parts) {
                came_back += u32::from(it.ended);
                *it = Plain::default();
            }
            let retained = |it: &Plain| it.ended && it.parts > 0;
            assert_eq!(buffer_leases.has_retained(), all.iter().any(retained));
            assert_eq!(buffer_leases.is_retained(span(at)), retained(&all[at]));
        }
        assert!(came_back > 1000, "{came_back}");
    }
}
