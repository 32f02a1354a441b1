//! A copy that leaves the caches to others.
//!
//! # Contract
//! [`copy_past_cache`] copies as `copy_from_slice` does. Its stores don't fetch the lines that they
//! overwrite, which is half of the traffic of a copy to memory that is in no cache, and evict
//! nothing. They are visible to other threads, as all stores are, once a lock that is held is let
//! go of.
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

/// Bytes of one store.
#[cfg(target_arch = "x86_64")]
const STORE: usize = size_of::<__m128i>();

/// Copies `source` to memory that is not read again soon.
///
/// # Panics
/// The lengths differ.
#[cfg(target_arch = "x86_64")]
pub fn copy_past_cache(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "a copy of another length");
    // SAFETY: any bytes are a valid `__m128i`, and a reference to bytes may be one to that.
    let (head, stores, tail) = unsafe { target.align_to_mut::<__m128i>() };
    let (first, rest) = source.split_at(head.len());
    let (middle, last) = rest.split_at(stores.len() * STORE);
    head.copy_from_slice(first);
    tail.copy_from_slice(last);
    for (store, from) in stores.iter_mut().zip(middle.chunks_exact(STORE)) {
        // SAFETY: `from` has as many bytes, and the load needs no alignment; `store` is aligned
        // and ours alone. Every processor of this architecture has both instructions.
        unsafe { _mm_stream_si128(store, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    // SAFETY: it orders the stores before those that follow, and touches nothing.
    unsafe { _mm_sfence() };
}

/// Copies `source` to memory that is not read again soon.
///
/// # Panics
/// The lengths differ.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy_past_cache(target: &mut [u8], source: &[u8]) {
    target.copy_from_slice(source);
}

#[cfg(test)]
mod tests {
    use super::copy_past_cache;

    #[test]
    fn copy_past_cache_of_any_place_and_length_is_a_copy() {
        let source: Vec<u8> = (0..300_u32).map(|at| (at * 7) as u8).collect();
        for start in 0..17 {
            for len in [0, 1, 15, 16, 17, 63, 64, 200] {
                for from in [0, 1, 8, 16] {
                    let mut target = vec![0xee; 260];
                    copy_past_cache(&mut target[start..start + len], &source[from..from + len]);
                    assert_eq!(target[start..start + len], source[from..from + len]);
                    let around = target[..start].iter().chain(&target[start + len..]);
                    assert!(around.copied().all(|byte| byte == 0xee), "{start} {len}");
                }
            }
        }
    }
}
