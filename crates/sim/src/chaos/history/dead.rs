//! Writes of those who died: they took effect before anything that was written afterwards, or
//! never.
//!
//! A write whose end nobody heard may take effect at any time, for all that a register knows. A
//! host that begins again after it was killed promises more (T9): it waits until what it had sent
//! before can't be executed any more. So no write of its earlier life replaces one of the later.
use super::{History, NEVER, Op, Wrong};

impl History {
    pub(super) fn check_dead(&self, ops: &[Op]) -> Result<(), Wrong> {
        for &(writer, died_ns) in &self.deaths {
            let own = |op: &&Op| op.is_write() && op.tag().writer() == writer;
            let later = ops.iter().filter(own);
            let later = later.filter(|op| op.start_ns >= died_ns && op.end_ns != NEVER);
            let Some(next) = later.min_by_key(|op| op.end_ns) else {
                continue;
            };
            // Until a loss of caches, which may bring back what was there before.
            let crashes = self.crashes.iter().copied();
            let until_ns = crashes.filter(|&at_ns| at_ns >= died_ns).min();
            let until_ns = until_ns.unwrap_or(NEVER);
            let is_late = |op: &&Op| op.start_ns > next.end_ns && op.end_ns < until_ns;
            let of_dead = |op: &&Op| {
                let mut writes = ops.iter().filter(own);
                let wrote = writes.find(|write| write.tag() == op.tag());
                wrote.is_some_and(|it| it.start_ns < died_ns && it.end_ns == NEVER)
            };
            let reads = ops.iter().filter(|op| !op.is_write());
            if let Some(read) = reads.filter(is_late).find(of_dead) {
                return Err(Wrong::OutOfOrder(*next, *read));
            }
        }
        Ok(())
    }
}
