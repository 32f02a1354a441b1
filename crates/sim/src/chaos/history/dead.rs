//! Writes of those who died: they took effect before a later life wrote anything, or never.
//!
//! A write without a known end may take effect at any time, for all that a register knows. A host
//! that begins again after it was killed promises more (T9): no write of it reaches a device before
//! all requests of its earlier life were executed, or can't be any more. So any such later write,
//! wherever it was, shows when the earlier ones were over.
//!
//! # Contract
//! A later write is known by its good end, or by a read that saw it. A failed one proves
//! nothing: it may never have left the host.
use crate::chaos::prelude::*;

/// One death, and what followed from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    writer: u64,
    died_ns: u64,
    /// When it was first known that nothing of that life is executed any more, ns.
    over_ns: u64,
}

impl Death {
    fn is_of(&self, write: &Op) -> bool {
        write.tag().writer() == self.writer && write.start_ns < self.died_ns
    }
}

impl History {
    /// All deaths that something followed from.
    pub(super) fn deaths(&self) -> Vec<Death> {
        if self.deaths.is_empty() {
            return Vec::new();
        }
        let all = || self.blocks.values().flatten();
        let writes = all().filter(|op| op.is_write());
        let mut begun: Vec<(Tag, u64)> = writes.map(|op| (op.tag(), op.start_ns)).collect();
        begun.sort_unstable();
        let start_ns = |tag| {
            let at = begun.binary_search_by_key(&tag, |it| it.0).ok()?;
            Some(begun[at].1)
        };
        let death = |&(writer, died_ns): &(u64, u64)| {
            let known = |op: &&Op| match op.deed {
                Deed::Failed(_) => false,
                _ if op.end_ns == NEVER || op.tag().writer() != writer => false,
                _ => start_ns(op.tag()).is_some_and(|at_ns| at_ns >= died_ns),
            };
            let over_ns = all().filter(known).map(|op| op.end_ns).min()?;
            Some(Death {
                writer,
                died_ns,
                over_ns,
            })
        };
        self.deaths.iter().filter_map(death).collect()
    }
}

/// Returns the operations on a block, with the ends that follow from deaths.
pub(super) fn ended(ops: &[Op], deaths: &[Death]) -> Vec<Op> {
    let ended = |op: &Op| {
        let unheard = op.is_write() && op.end_ns == NEVER;
        let after = deaths.iter().filter(|death| unheard && death.is_of(op));
        match after.map(|death| death.over_ns).min() {
            Some(end_ns) => Op {
                deed: Deed::Failed(op.tag()),
                end_ns,
                ..*op
            },
            None => *op,
        }
    };
    ops.iter().map(ended).collect()
}
