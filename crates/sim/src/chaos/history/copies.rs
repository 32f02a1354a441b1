//! Blocks that are kept in several copies: until a write of one has ended, some copies have it and
//! some don't, and reads go to any. So reads that meet a write may see the old and the new in any
//! order; all others are held to one order, as everywhere.
//!
//! A write that failed may yet be executed, for as long as a connection could deliver it (T9): on a
//! leg that has left meanwhile, whose volume does not delay the answer, or where a volume does not
//! fence its writes. A later write there waits for that.
//!
//! # Contract
//! A read that meets a write is held to this much: what it saw was not replaced by a write that had
//! ended before it began.
use super::Wrong;
use crate::chaos::prelude::*;

/// For how long after its bad end a write may yet be executed.
const LATE_NS: u64 = 2 * KATO_MS as u64 * 1_000_000 + QUIESCE_NS;

impl History {
    /// Returns `ops` with such writes under way until they are executed or can't be any more: a
    /// later write that ended well had waited for that.
    pub(super) fn late(&self, ops: &[Op]) -> Vec<Op> {
        let left = |op: &Op| {
            let then = |ns: &u64| (op.start_ns..=op.end_ns).contains(ns);
            self.unfenced || self.left.iter().any(then)
        };
        let late = |op: &Op| {
            let failed = matches!(op.deed, Deed::Failed(_)) && op.end_ns != NEVER;
            if !failed || !left(op) {
                return *op;
            }
            let after =
                |it: &&Op| matches!(it.deed, Deed::Write { .. }) && it.start_ns >= op.end_ns;
            let next_ns = ops.iter().filter(after).map(|it| it.start_ns).min();
            let end_ns = op.end_ns.saturating_add(LATE_NS);
            Op {
                end_ns: next_ns.map_or(end_ns, |ns| ns.min(end_ns)),
                ..*op
            }
        };
        ops.iter().map(late).collect()
    }
}

/// Returns the operations on a block, without the reads that met a write; `crashes`: when caches
/// were lost, ns.
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
