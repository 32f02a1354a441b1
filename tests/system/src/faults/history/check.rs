//! Decides whether the operations on each sector are those of a register.
//!
//! # Contract
//! Values are unique, so the write that a read returned is known. Then a history is linearizable
//! exactly if no read precedes its write, the zones of writes that were surely done before later
//! operations do not overlap, and no other write fits into one of them only (Gibbons and Korach,
//! "Testing Shared Memories", SIAM J. Comput. 26, 1997).
//!
//! A write without an end may take effect at any time after its begin. [`History::check`] gives an
//! orphaned write its latest end: when a write to the same sector is acknowledged that was begun
//! after the orphan's connection had broken.
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;

/// Time of an operation that never ended.
const NEVER: u64 = u64::MAX;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Acknowledged at this time, ns.
    Done(u64),
    /// An error was reported at this time, ns: a write may have been done before.
    Failed(u64),
    /// The connection broke at this time, ns, after the server had received the request.
    Orphaned(u64),
}

/// One request on one sector.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Sector number.
    pub sector: u64,
    /// Value written, or value read. 0: nothing was written there yet.
    pub stamp: u64,
    /// Write, or read.
    pub is_write: bool,
    /// When it was sent, ns.
    pub begin: u64,
    /// See [`End`].
    pub end: End,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Requests that were sent.
    pub requests: u64,
    /// Operations on single sectors.
    pub operations: u64,
    /// Connections that a client broke.
    pub broken: u64,
    /// Writes under way in them.
    pub orphaned: u64,
    /// Requests that were answered with an error.
    pub failed: u64,
    /// Sectors with a history.
    pub sectors: u64,
}

/// All operations of a run.
#[derive(Default)]
pub struct History {
    operations: Vec<Operation>,
    counts: Counts,
}

/// The time during which a value must have been that of the register, or could have been.
struct Zone {
    stamp: u64,
    /// First end of an operation with the value.
    first_end: u64,
    /// Last begin of one.
    last_begin: u64,
}

impl Zone {
    /// The value was there from its first end to its last begin.
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

impl History {
    /// Adds what a client did.
    pub fn add(&mut self, operations: &[Operation], counts: Counts) {
        self.operations.extend_from_slice(operations);
        self.counts.requests += counts.requests;
        self.counts.broken += counts.broken;
        self.counts.orphaned += counts.orphaned;
        self.counts.failed += counts.failed;
    }

    fn sectors(&self) -> BTreeMap<u64, Vec<Operation>> {
        let mut sectors: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
        for operation in &self.operations {
            sectors
                .entry(operation.sector)
                .or_default()
                .push(*operation);
        }
        sectors
    }

    /// See [`Counts`].
    pub fn counts(&self) -> Counts {
        Counts {
            operations: self.operations.len() as u64,
            sectors: self.sectors().len() as u64,
            ..self.counts
        }
    }

    /// # Errors
    /// The first sector whose history is not that of a register, with the operations in question.
    pub fn check(&self) -> Result<()> {
        for (sector, operations) in self.sectors() {
            if let Err(error) = check_sector(&operations) {
                bail!("sector {sector} is no register: {error:#}");
            }
        }
        Ok(())
    }
}

/// The latest time at which a write can have taken effect.
fn latest_effect(write: &Operation, writes: &[Operation]) -> u64 {
    match write.end {
        End::Done(at) | End::Failed(at) => at,
        End::Orphaned(broken) => {
            let later = writes.iter().filter(|it| it.begin > broken);
            let acknowledged = later.filter_map(|it| match it.end {
                End::Done(at) => Some(at),
                _ => None,
            });
            acknowledged.min().unwrap_or(NEVER)
        }
    }
}

fn check_sector(operations: &[Operation]) -> Result<()> {
    let writes: Vec<Operation> = operations
        .iter()
        .filter(|it| it.is_write)
        .copied()
        .collect();
    // The first value was there before the run.
    let mut zones: BTreeMap<u64, (Zone, u64, bool)> = BTreeMap::new();
    let zone = |stamp, first_end, last_begin| Zone {
        stamp,
        first_end,
        last_begin,
    };
    zones.insert(0, (zone(0, 0, 0), 0, true));
    for write in &writes {
        let end = latest_effect(write, &writes);
        let surely = matches!(write.end, End::Done(_));
        let value = (zone(write.stamp, end, write.begin), write.begin, surely);
        let twice = zones.insert(write.stamp, value).is_some();
        ensure!(!twice, "stamp {} was written twice", write.stamp);
    }
    for read in operations.iter().filter(|it| !it.is_write) {
        let End::Done(end) = read.end else { continue };
        let Some((zone, written, surely)) = zones.get_mut(&read.stamp) else {
            bail!("{read:?} found what was never written there");
        };
        ensure!(end >= *written, "{read:?} found what was written later");
        zone.first_end = zone.first_end.min(end);
        zone.last_begin = zone.last_begin.max(read.begin);
        *surely = true;
    }
    // A write that was not acknowledged and that no read found may never have been done.
    let zones = zones.into_values().filter(|it| it.2).map(|it| it.0);
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) = zones.partition(Zone::is_forward);
    forward.sort_by_key(|it| it.first_end);
    for pair in forward.windows(2) {
        ensure!(
            pair[0].last_begin <= pair[1].first_end,
            "{} and {} were both read before and after the other:\n{}",
            pair[0].stamp,
            pair[1].stamp,
            story(operations, &[pair[0].stamp, pair[1].stamp])
        );
    }
    for inner in &backward {
        // The zone in which the write was begun, if any: forward zones do not overlap.
        let at = forward.partition_point(|it| it.first_end < inner.last_begin);
        let Some(outer) = at.checked_sub(1).map(|at| &forward[at]) else {
            continue;
        };
        ensure!(
            inner.first_end >= outer.last_begin,
            "{} was acknowledged while {} was there before and after it:\n{}",
            inner.stamp,
            outer.stamp,
            story(operations, &[inner.stamp, outer.stamp])
        );
    }
    Ok(())
}

/// The operations with these values, in order of their begin.
fn story(operations: &[Operation], stamps: &[u64]) -> String {
    let of_them = operations.iter().filter(|it| stamps.contains(&it.stamp));
    let mut of_them: Vec<&Operation> = of_them.collect();
    of_them.sort_by_key(|it| it.begin);
    let lines = of_them.iter().map(|it| {
        let kind = if it.is_write { "write" } else { "read" };
        format!(
            "  {:>12} ns: {kind} of {}: {:?}",
            it.begin, it.stamp, it.end
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(stamp: u64, begin: u64, end: End) -> Operation {
        Operation {
            sector: 0,
            stamp,
            is_write: true,
            begin,
            end,
        }
    }

    fn read(stamp: u64, begin: u64, end: u64) -> Operation {
        Operation {
            sector: 0,
            stamp,
            is_write: false,
            begin,
            end: End::Done(end),
        }
    }

    fn is_register(operations: &[Operation]) -> bool {
        check_sector(operations).is_ok()
    }

    /// Tries every order of the operations: slow, and surely right.
    fn has_an_order(operations: &[Operation], writes: &[Operation]) -> bool {
        fn go(left: &mut Vec<(Operation, u64)>, value: u64) -> bool {
            let must = |it: &(Operation, u64)| !it.0.is_write || matches!(it.0.end, End::Done(_));
            if !left.iter().any(must) {
                return true;
            }
            for at in 0..left.len() {
                let (next, end) = left.remove(at);
                let comes_first = left.iter().all(|it| it.1 >= next.begin);
                let fits = next.is_write || next.stamp == value;
                let value = if next.is_write { next.stamp } else { value };
                let found = comes_first && fits && go(left, value);
                left.insert(at, (next, end));
                if found {
                    return true;
                }
            }
            // A write that was not acknowledged may be left out.
            for at in 0..left.len() {
                if !must(&left[at]) {
                    let it = left.remove(at);
                    let found = go(left, value);
                    left.insert(at, it);
                    if found {
                        return true;
                    }
                }
            }
            false
        }
        let end = |it: &Operation| match it.end {
            End::Done(at) if !it.is_write => at,
            _ => latest_effect(it, writes),
        };
        let mut left = operations.iter().map(|it| (*it, end(it))).collect();
        go(&mut left, 0)
    }

    #[test]
    fn registers_pass_and_others_do_not() {
        let done = End::Done;
        assert!(is_register(&[
            read(0, 1, 2),
            write(1, 3, done(4)),
            read(1, 5, 6)
        ]));
        assert!(!is_register(&[write(1, 3, done(4)), read(0, 5, 6)]), "lost");
        assert!(
            !is_register(&[read(1, 1, 2), write(1, 3, done(4))]),
            "early"
        );
        assert!(!is_register(&[read(7, 1, 2)]), "invented");
        let failed = write(1, 1, End::Failed(3));
        assert!(is_register(&[failed, read(0, 4, 5)]), "not done");
        assert!(is_register(&[failed, read(1, 4, 5), read(1, 6, 7)]), "done");
        assert!(
            !is_register(&[failed, read(0, 4, 5), read(1, 6, 7)]),
            "done after its error"
        );
    }

    #[test]
    fn an_orphan_is_done_before_a_later_write_is_acknowledged() {
        let orphan = write(1, 1, End::Orphaned(2));
        let second = write(2, 3, End::Done(6));
        assert!(is_register(&[orphan, second, read(2, 7, 8)]));
        assert!(is_register(&[orphan, second, read(1, 4, 5), read(2, 7, 8)]));
        assert!(!is_register(&[
            orphan,
            second,
            read(2, 7, 8),
            read(1, 9, 10)
        ]));
    }

    /// All histories of a few random operations: the verdict is that of trying every order.
    #[test]
    fn the_verdict_is_that_of_trying_every_order() {
        let mut random = super::super::Random(7);
        let mut verdicts = [0_u32; 2];
        for _ in 0..20_000 {
            let mut operations = Vec::new();
            let writes = 1 + random.below(3);
            for stamp in 1..=writes {
                let begin = 1 + random.below(12);
                let at = begin + 1 + random.below(5);
                let end = match random.below(5) {
                    0 => End::Failed(at),
                    1 => End::Orphaned(at),
                    _ => End::Done(at),
                };
                operations.push(write(stamp, begin, end));
            }
            for _ in 0..1 + random.below(3) {
                let begin = 1 + random.below(14);
                let end = begin + 1 + random.below(5);
                operations.push(read(random.below(writes + 1), begin, end));
            }
            let mut times: Vec<u64> = operations.iter().map(|it| it.begin).collect();
            times.extend(operations.iter().map(|it| match it.end {
                End::Done(at) | End::Failed(at) | End::Orphaned(at) => at,
            }));
            times.sort_unstable();
            if times.windows(2).any(|pair| pair[0] == pair[1]) {
                continue;
            }
            let only_writes: Vec<Operation> = operations
                .iter()
                .filter(|it| it.is_write)
                .copied()
                .collect();
            let expected = has_an_order(&operations, &only_writes);
            assert_eq!(is_register(&operations), expected, "{operations:?}");
            verdicts[usize::from(expected)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 200), "{verdicts:?}");
    }
}
