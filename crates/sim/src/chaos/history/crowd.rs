//! Blocks that several write at a time, in no order.
//!
//! A write that is under way may take effect more than once, when it is repeated on another path:
//! also before and after another one that is under way with it. So such a block is no register. But
//! nothing takes effect after its end: a value that was overwritten by a write that began after it
//! had ended never comes back, and without writes nothing changes (T46).
//!
//! # Limits
//! Nothing is said of what a loss of caches lies between.
use super::{Wrong, written};
use crate::chaos::prelude::*;

/// The first thing that is wrong with what happened to a block.
///
/// # Errors
/// That.
pub(super) fn check(ops: &[Op], crashes: &[u64]) -> Result<(), Wrong> {
    let whole = |from_ns: u64, to_ns: u64| !crashes.iter().any(|at| (from_ns..=to_ns).contains(at));
    let blank = written(BLANK, 0);
    let writes: Vec<&Op> = ops.iter().filter(|op| op.is_write()).collect();
    let reads: Vec<&Op> = ops.iter().filter(|op| !op.is_write()).collect();
    for &&read in &reads {
        let mut of = writes.iter().copied().chain([&blank]);
        let source = of.find(|write| write.tag() == read.tag() && write.start_ns < read.end_ns);
        let source = source.ok_or(Wrong::FromNowhere(read))?;
        let over = |write: &&&Op| {
            let done = matches!(write.deed, Deed::Write { .. });
            done && source.precedes(write) && write.precedes(&read)
        };
        let over = writes.iter().filter(over);
        if let Some(over) = over.copied().find(|it| whole(it.start_ns, read.end_ns)) {
            return Err(Wrong::OutOfOrder(*over, read));
        }
    }
    for &&first in &reads {
        for &&then in reads.iter().filter(|then| first.precedes(then)) {
            let between =
                |write: &&Op| write.start_ns < then.end_ns && write.end_ns > first.start_ns;
            let quiet = whole(first.start_ns, then.end_ns)
                && !writes.iter().copied().any(|it| between(&it));
            if quiet && first.tag() != then.tag() {
                return Err(Wrong::OutOfOrder(first, then));
            }
        }
    }
    Ok(())
}
