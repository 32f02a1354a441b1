//! Least contents of a copy of the disk, for a host that starts on it alone.
//!
//! # Contract
//! Of each block the last write that must not be gone: one that was acknowledged, or one that was
//! flushed besides. A copy has that one, or one that had not ended when it began, or a later one.
use super::Wrong;
use crate::chaos::prelude::*;

/// See the module.
pub struct Floors<'a> {
    history: &'a History,
    /// By block.
    floors: Vec<(u64, Op)>,
}

impl History {
    /// Returns the acknowledged writes that are not known to be lost; `flushed`: of those, the
    /// durable ones.
    pub fn floors(&self, flushed: bool) -> Floors<'_> {
        // By start, with the first end of all that began then or later.
        let mut flushes: Vec<(u64, u64)> = self.flushes.iter().map(|it| (it.1, it.2)).collect();
        flushes.sort_unstable();
        let mut first_ns = u64::MAX;
        for flush in flushes.iter_mut().rev() {
            first_ns = first_ns.min(flush.1);
            flush.1 = first_ns;
        }
        let last_crash_ns = self.crashes.last().copied();
        let is_kept = |op: &Op| {
            let Deed::Write { durable, .. } = op.deed else {
                return false;
            };
            if op.end_ns == NEVER || durable {
                return durable && op.end_ns != NEVER;
            }
            if !flushed {
                return last_crash_ns.is_none_or(|crash_ns| crash_ns < op.start_ns);
            }
            let next = flushes.partition_point(|it| it.0 < op.end_ns);
            flushes.get(next).is_some_and(|&(_, end_ns)| {
                let between = |&crash_ns: &u64| (op.start_ns..=end_ns).contains(&crash_ns);
                let given_up = |it: &(u64, u64, u64)| op.end_ns <= it.2 && it.1 <= end_ns;
                !self.crashes.iter().any(between) && !self.given_up.iter().any(given_up)
            })
        };
        let blocks = self.blocks.iter();
        let floors = blocks.filter_map(|(&block, ops)| {
            let latest = self.latest_ns.get(&block).map_or(&[][..], Vec::as_slice);
            Some((block, last_kept(ops, latest, is_kept)?))
        });
        Floors {
            history: self,
            floors: floors.collect(),
        }
    }
}

/// The operation that began last of those that are kept; `latest_ns` ends the search early.
fn last_kept(ops: &[Op], latest_ns: &[u64], is_kept: impl Fn(&Op) -> bool) -> Option<Op> {
    let mut best: Option<Op> = None;
    // The latest ones first: whether older ones are kept is not asked then.
    for (number, op) in ops.iter().enumerate().rev() {
        let begun_ns = best.map_or(0, |best| best.start_ns);
        let none_later = latest_ns.get(number).is_some_and(|&ns| ns <= begun_ns);
        if best.is_some() && none_later {
            break;
        }
        if (best.is_none() || begun_ns < op.start_ns) && is_kept(op) {
            best = Some(*op);
        }
    }
    best
}

impl Floors<'_> {
    /// Whether a copy may have this now.
    ///
    /// # Errors
    /// A value that was never written, or that was replaced before the one that must be there.
    pub fn judge(&self, block: u64, tag: Tag, now_ns: u64) -> Result<(), Wrong> {
        if self.history.is_lost(block) {
            return Ok(());
        }
        let seen = Op {
            deed: Deed::Read(tag),
            start_ns: now_ns,
            end_ns: now_ns,
        };
        let ops = self.history.blocks.get(&block);
        let mut writes = ops.into_iter().flatten().rev().filter(|op| op.is_write());
        let end_ns = match tag {
            BLANK => 0,
            _ => {
                let write = writes.find(|op| op.tag() == tag);
                write.ok_or(Wrong::FromNowhere(seen))?.end_ns
            }
        };
        let floor = self.floors.binary_search_by_key(&block, |it| it.0);
        match floor.ok().map(|at| &self.floors[at].1) {
            Some(lost) if end_ns < lost.start_ns => Err(Wrong::RolledBack { seen, lost: *lost }),
            _ => Ok(()),
        }
    }
}
