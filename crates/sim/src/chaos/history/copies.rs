//! Blocks that are kept in several copies: until a write of one has ended, some copies have it and
//! some don't, and reads go to any. So reads that meet a write may see the old and the new in any
//! order; all others are held to one order, as everywhere.
//!
//! # Contract
//! A read that meets a write is held to this much: what it saw was not replaced by a write that had
//! ended before it began.
use super::{BLANK, Deed, NEVER, Op, Wrong};
use alloc::vec::Vec;

/// What happened to a block, without the reads that met a write; `crashes`: when caches were lost,
/// ns.
///
/// # Errors
/// Such a read saw what was replaced before it.
pub(super) fn settled(ops: Vec<Op>, crashes: &[u64]) -> Result<Vec<Op>, Wrong> {
    let writes: Vec<Op> = ops.iter().filter(|op| op.is_write()).copied().collect();
    let meets = |read: &Op| {
        let meets = |it: &Op| it.start_ns < read.end_ns && read.start_ns < it.end_ns;
        writes.iter().any(meets)
    };
    let (met, rest): (Vec<Op>, Vec<Op>) = ops.iter().partition(|op| !op.is_write() && meets(op));
    for read in met {
        let tag = read.tag();
        let seen = writes.iter().find(|it| it.tag() == tag);
        let end_ns = match seen {
            Some(write) if write.start_ns < read.end_ns => write.end_ns,
            None if tag == BLANK => 0,
            _ => return Err(Wrong::FromNowhere(read)),
        };
        let lasts = |it: &Op| {
            let kept = !crashes
                .iter()
                .any(|ns| (it.start_ns..=read.end_ns).contains(ns));
            kept && it.end_ns != NEVER && matches!(it.deed, Deed::Write { .. })
        };
        let replaces = |it: &&Op| end_ns <= it.start_ns && it.end_ns <= read.start_ns && lasts(it);
        if let Some(newer) = writes.iter().find(replaces) {
            return Err(Wrong::OutOfOrder(read, *newer));
        }
    }
    Ok(rest)
}
