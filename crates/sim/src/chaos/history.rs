//! Writes and reads of clients on the blocks of a volume, and whether a disk could have done them.
//!
//! Decides, from the beginnings and ends of reads, writes and flushes, whether every block behaved
//! as one register (linearizability), and whether what a crash of volatile caches took had not been
//! flushed.
//!
//! # Contract
//! Every write of a block has a [`Tag`] of its own. An operation is recorded once, when it has
//! ended, or at the end of all with [`NEVER`]: it may then have happened or not. A write that was
//! [answered with an error](Deed::Failed) may have happened as well, but not after that. Times are
//! of one clock; a [crash](History::crash) is recorded when it happens.
//!
//! # Limits
//! Zeroes are [`BLANK`], which only the beginning may write: trims and writes of zeroes have no
//! place here.
//!
//! # Origin
//! Gibbons and Korach, Testing Shared Memories, SIAM J. Comput. 26 (1997): with one write per value
//! a history is linearizable if the zones of its values nest as `Epoch::check` says.
mod copies;
mod crash_checker;
mod crowd;
mod dead;
mod durable;
mod zone;

use super::prelude::*;
use super::story::{At, LOSS};
use alloc::string::ToString;
pub use crash_checker::Floors;
use durable::Durable;
use zone::Zone;

/// The content that a write leaves in a block; no two writes have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// Its writer.
    pub fn writer(self) -> u64 {
        self.0 >> 48
    }
}

/// Initial content of every block.
pub const BLANK: Tag = Tag(0);

/// The end of a request whose end is unknown, ns.
pub const NEVER: u64 = u64::MAX;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It read this.
    Read(Tag),
    /// It wrote this; `durable`: its end says that it survives a loss of caches (FUA).
    Write {
        /// The content.
        tag: Tag,
        /// FUA.
        durable: bool,
    },
    /// It wrote this and failed: it was done by its end, in this block at least, or never is.
    Failed(Tag),
}

/// One operation on one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The operation.
    pub deed: Deed,
    /// When it was asked for, ns.
    pub start_ns: u64,
    /// When its end was told, ns; [`NEVER`] of what was cut off.
    pub end_ns: u64,
}

impl Op {
    fn tag(&self) -> Tag {
        match self.deed {
            Deed::Read(tag) | Deed::Write { tag, .. } | Deed::Failed(tag) => tag,
        }
    }

    fn is_write(&self) -> bool {
        matches!(self.deed, Deed::Write { .. } | Deed::Failed(_))
    }

    /// Whether it had ended before the other began. An operation that begins in the instant in
    /// which another ends begins later than that: its request takes time to get anywhere.
    fn precedes(&self, other: &Self) -> bool {
        self.end_ns <= other.start_ns
    }
}

/// A violation: no disk does this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A read saw a value that was never written, or before it was written.
    FromNowhere(Op),
    /// A read saw what was overwritten before it began, or two reads saw two writes in two orders:
    /// the operations of both cannot be put into one sequence.
    OutOfOrder(Op, Op),
    /// After a loss of caches there was what a flush or a durable write had replaced before.
    RolledBack {
        /// The read that saw it.
        seen: Op,
        /// The write that was durable.
        lost: Op,
    },
    /// After a loss of caches, two reads saw two values from before it, with no write between.
    TwoPasts(Op, Op),
}

impl Wrong {
    /// In a word or two.
    pub fn name(&self) -> &'static str {
        match self {
            Self::FromNowhere(_) => "from nowhere",
            Self::RolledBack { .. } => "rolled back",
            Self::OutOfOrder(..) => "out of order",
            Self::TwoPasts(..) => "two pasts",
        }
    }

    fn ops(&self) -> [Op; 2] {
        match *self {
            Self::FromNowhere(op) => [op, op],
            Self::RolledBack { seen, lost } => [seen, lost],
            Self::OutOfOrder(a, b) | Self::TwoPasts(a, b) => [a, b],
        }
    }

    /// When it could be seen, ns.
    pub fn seen_ns(&self) -> u64 {
        let ops = self.ops();
        let times = ops.iter().flat_map(|op| [op.start_ns, op.end_ns]);
        times.filter(|&ns| ns != NEVER).max().unwrap_or(0)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FromNowhere(op) => write!(f, "{} was never there", Told(op)),
            Self::OutOfOrder(a, b) => {
                write!(f, "no order of writes explains {} and {}", Told(a), Told(b))
            }
            Self::RolledBack { seen, lost } => {
                write!(f, "{}, though durable was {}", Told(seen), Told(lost))
            }
            Self::TwoPasts(a, b) => {
                write!(f, "{} and {} after the caches were lost", Told(a), Told(b))
            }
        }
    }
}

struct Told<'a>(&'a Op);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.0.is_write() { "write" } else { "read" };
        let (tag, start) = (self.0.tag().0, At(self.0.start_ns));
        write!(f, "the {what} of {tag:#x} from {start}")?;
        match self.0.end_ns {
            NEVER => f.write_str(" on, without an end"),
            end_ns => write!(f, " to {} s", At(end_ns)),
        }
    }
}

/// A flush: whose, and when it began, ns.
struct Flush(u64, u64);

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the flush of host {} from {}", self.0 - 1, At(self.1))
    }
}

/// All that happened to one volume.
#[derive(Debug, Default)]
pub struct History {
    blocks: BTreeMap<u64, Vec<Op>>,
    /// Of blocks with copies, for each operation: the latest beginning of it and those before.
    latest_ns: BTreeMap<u64, Vec<u64>>,
    /// Flushes that succeeded: whose, start and end.
    flushes: Vec<(u64, u64, u64)>,
    /// Flushes that failed because what a lost path had is given up: the same.
    given_up: Vec<(u64, u64, u64)>,
    /// When volatile caches were lost.
    crashes: Vec<u64>,
    /// Of those, when others than the lost ones kept what they had.
    partly: Vec<u64>,
    /// Blocks from this one on are written by several at a time.
    crowded: Option<u64>,
    /// Of these, those of which each write took effect once at most: they are registers too.
    pub once: BTreeSet<u64>,
    /// Blocks are kept in several copies.
    pub copies: bool,
    /// Late execution on lost paths is not waited for.
    pub unfenced: bool,
    /// Blocks from the first of these on were lost, and the loss was accepted: reads there from the
    /// second, a time, on are not judged.
    lost: Option<(u64, u64)>,
    /// When a copy was gone on without.
    pub left: Vec<u64>,
    /// When a writer died, and with it all that it had under way.
    deaths: Vec<(u64, u64)>,
}

impl History {
    /// An operation on `block` has ended, or never will.
    pub fn record(&mut self, block: u64, op: Op) {
        // A read without an end has no result to judge.
        if op.is_write() || op.end_ns != NEVER {
            self.blocks.entry(block).or_default().push(op);
            if self.copies {
                let latest = self.latest_ns.entry(block).or_default();
                let before = latest.last().copied().unwrap_or(0);
                latest.push(before.max(op.start_ns));
            }
        }
    }

    /// A flush of all [of](Tag::writer) this writer's that had ended before `start_ns` has
    /// succeeded.
    pub fn flushed(&mut self, writer: u64, start_ns: u64, end_ns: u64) {
        self.flushes.push((writer, start_ns, end_ns));
    }

    /// A flush of this writer's has failed because a path left with what its controller had cached:
    /// later ones say nothing of what had ended before it failed (T13).
    pub fn given_up(&mut self, writer: u64, start_ns: u64, end_ns: u64) {
        self.given_up.push((writer, start_ns, end_ns));
    }

    /// When the write of a block that has this tag began, if it has ended.
    pub fn began_ns(&self, block: u64, tag: u64) -> Option<u64> {
        let mut ops = self.blocks.get(&block)?.iter();
        let it = ops.find(|op| op.is_write() && op.tag() == Tag(tag));
        it.map(|op| op.start_ns)
    }

    /// Several may write at a time to blocks from `first` on: they are held to less (`crowd`), but
    /// for those of [`Self::once`].
    pub fn crowded(&mut self, first: u64) {
        self.crowded = Some(first);
    }

    /// All caches were lost: contents that were only there may be gone.
    pub fn crash(&mut self, at_ns: u64) {
        self.crashes.push(at_ns);
    }

    /// One of several caches was lost: what is there afterwards may be in another, and go with that
    /// one.
    pub fn crash_of_one(&mut self, at_ns: u64) {
        // It may be known only later that nothing else had what was lost.
        let before = self.crashes.partition_point(|it| *it <= at_ns);
        self.crashes.insert(before, at_ns);
        self.partly.push(at_ns);
    }

    /// Blocks from `first` on may hold anything from now on.
    pub fn lose(&mut self, first: u64, at_ns: u64) {
        let (before, since_ns) = self.lost.unwrap_or((u64::MAX, u64::MAX));
        self.lost = Some((first.min(before), at_ns.min(since_ns)));
    }

    /// Whether a block may hold anything.
    fn is_lost(&self, block: u64) -> bool {
        self.lost.is_some_and(|(first, _)| block >= first)
    }

    /// The operations on a block that say something.
    fn known(&self, block: u64, ops: &[Op]) -> Vec<Op> {
        let until_ns = self.lost.filter(|_| self.is_lost(block)).map(|it| it.1);
        let counts = |op: &&Op| {
            until_ns.is_none_or(|ns| match op.is_write() {
                true => op.start_ns < ns,
                false => op.end_ns < ns,
            })
        };
        ops.iter().filter(counts).copied().collect()
    }

    /// Requests that a writer had under way never end; see `dead`.
    pub fn died(&mut self, writer: u64, at_ns: u64) {
        self.deaths.push((writer, at_ns));
    }

    /// Whether a read saw a written value: of blocks with one writer at a time, of those with
    /// several, and of these, of those that are registers too.
    pub fn has_judged(&self) -> [bool; 3] {
        let saw = |ops: &Vec<Op>| ops.iter().any(|op| !op.is_write() && op.tag() != BLANK);
        let first = self.crowded.unwrap_or(u64::MAX);
        let mut crowds = self.blocks.range(first..);
        let mut once = self.once.iter().filter_map(|block| self.blocks.get(block));
        [
            self.blocks.range(..first).any(|(_, ops)| saw(ops)),
            crowds.any(|(_, ops)| saw(ops)),
            once.any(saw),
        ]
    }

    /// Whether caches were ever lost.
    pub fn has_crashed(&self) -> bool {
        !self.crashes.is_empty()
    }

    /// Operations recorded.
    pub fn operations(&self) -> usize {
        self.blocks.values().map(Vec::len).sum()
    }

    /// Returns the operations on a block, each at its beginning and its end.
    pub fn story(&self, block: u64) -> Vec<(u64, String)> {
        let mut lines = Vec::new();
        for op in self.blocks.get(&block).into_iter().flatten() {
            lines.push((op.start_ns, format!("begins: {}", Told(op))));
            if op.end_ns != NEVER {
                lines.push((op.end_ns, format!("ends: {}", Told(op))));
            }
        }
        // Without a loss of caches flushes say nothing.
        let flushes = if self.crashes.is_empty() {
            &[]
        } else {
            &self.flushes[..]
        };
        for &(writer, start_ns, end_ns) in flushes {
            let flush = Flush(writer, start_ns);
            lines.push((start_ns, format!("begins: {flush}")));
            lines.push((end_ns, format!("ends: {flush}")));
        }
        lines
    }

    /// Words of the lines of the story of a block that tell why what is wrong there is wrong.
    pub fn keys(&self, block: u64, wrong: &Wrong) -> Vec<String> {
        let mut keys = Vec::from([String::from(LOSS)]);
        let ops = self.blocks.get(&block).map_or(&[][..], Vec::as_slice);
        for op in wrong.ops() {
            let tag = op.tag();
            let write = ops.iter().find(|it| it.is_write() && it.tag() == tag);
            keys.push(Told(&op).to_string());
            keys.extend(write.map(|it| Told(it).to_string()));
            keys.push(format!("leaves {:#x}", tag.0));
        }
        if let Wrong::RolledBack { lost, .. } = wrong {
            let writer = lost.tag().writer();
            let covers = |it: &&(u64, u64, u64)| it.0 == writer && it.1 >= lost.end_ns;
            let those = self.flushes.iter().filter(covers);
            let first = those.min_by_key(|it| it.2);
            keys.extend(first.map(|it| Flush(it.0, it.1).to_string()));
        }
        keys
    }

    /// The first block with something that no disk does, and what.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<(), (u64, Wrong)> {
        let crashes: Vec<Durable> = self.crashes.iter().map(|&it| self.durable(it)).collect();
        let deaths = self.deaths();
        for (&block, ops) in &self.blocks {
            let ops = match self.copies {
                true => {
                    let ops = self.known(block, ops);
                    let ops = dead::ended(&self.late(&ops), &deaths);
                    copies::settled(ops, &self.crashes).map_err(|wrong| (block, wrong))?
                }
                false => dead::ended(ops, &deaths),
            };
            let checked = match self.crowded {
                Some(first) if block >= first && !self.once.contains(&block) => {
                    crowd::check(&ops, &self.crashes)
                }
                _ => check_block(&ops, &crashes),
            };
            checked.map_err(|wrong| (block, wrong))?;
        }
        Ok(())
    }
}

fn check_block(ops: &[Op], crashes: &[Durable]) -> Result<(), Wrong> {
    let mut pasts = vec![Past {
        write: written(BLANK, 0),
        gone: None,
    }];
    let (mut start_ns, mut all) = (0, true);
    for crash in crashes {
        let epoch = Epoch::of(ops, (start_ns, crash.crash_ns), pasts, all)?;
        epoch.check()?;
        pasts = epoch.pasts(|op| crash.has(op));
        (start_ns, all) = (crash.crash_ns, crash.all);
    }
    Epoch::of(ops, (start_ns, NEVER), pasts, all)?.check()
}

/// A write whose value may be there after a loss of caches, or that was replaced for good.
#[derive(Clone, Copy, Debug)]
struct Past {
    write: Op,
    /// By this durable one.
    gone: Option<Op>,
}

fn written(tag: Tag, at_ns: u64) -> Op {
    Op {
        deed: Deed::Write { tag, durable: true },
        start_ns: at_ns,
        end_ns: at_ns,
    }
}

/// Operations on one block between two losses of caches.
struct Epoch {
    start_ns: u64,
    ops: Vec<Op>,
    /// Its possible initial contents.
    pasts: Vec<Past>,
    /// All caches had been lost, so that it is durable.
    all_lost: bool,
    /// The write that it began with, as far as a read tells.
    found: Option<Op>,
}

impl Epoch {
    /// Operations that a loss of caches cuts in two: a write may be of either side, and a read of
    /// both is left out.
    fn of(
        told: &[Op],
        (start_ns, end_ns): (u64, u64),
        pasts: Vec<Past>,
        all_lost: bool,
    ) -> Result<Self, Wrong> {
        let mut ops = Vec::new();
        for op in told {
            let whole = op.start_ns >= start_ns && op.end_ns <= end_ns;
            let touches = op.start_ns < end_ns && op.end_ns > start_ns;
            if whole || op.is_write() && touches {
                let beyond = op.end_ns > end_ns;
                ops.push(Op {
                    start_ns: op.start_ns.max(start_ns),
                    end_ns: if beyond { NEVER } else { op.end_ns },
                    ..*op
                });
            }
        }
        let mut this = Self {
            start_ns,
            ops,
            pasts,
            all_lost,
            found: None,
        };
        this.begin()?;
        Ok(this)
    }

    /// Decides on the block's initial content, as far as a read shows it.
    fn begin(&mut self) -> Result<(), Wrong> {
        let here = self.written();
        let is_here = |tag| here.binary_search(&tag).is_ok();
        let mut old = self
            .ops
            .iter()
            .filter(|op| !op.is_write() && !is_here(op.tag()));
        let Some(first) = old.next().copied() else {
            return Ok(());
        };
        if let Some(other) = old.find(|op| op.tag() != first.tag()) {
            let known = |op: &Op| self.pasts.iter().any(|past| past.write.tag() == op.tag());
            return Err(match [first, *other].into_iter().find(|op| !known(op)) {
                Some(op) => Wrong::FromNowhere(op),
                None => Wrong::TwoPasts(first, *other),
            });
        }
        let past = self
            .pasts
            .iter()
            .find(|past| past.write.tag() == first.tag());
        match past {
            None => Err(Wrong::FromNowhere(first)),
            Some(Past {
                gone: Some(lost), ..
            }) => Err(Wrong::RolledBack {
                seen: first,
                lost: *lost,
            }),
            Some(&past) => {
                // An operation that a loss of caches cut in two may have been before.
                let begins = Op {
                    end_ns: self.start_ns + 1,
                    ..written(first.tag(), self.start_ns)
                };
                self.ops.push(begins);
                self.found = Some(past.write);
                if self.all_lost {
                    self.found = Some(begins); // it is durable
                    self.pasts = vec![past];
                }
                Ok(())
            }
        }
    }

    /// Tags of all writes, in order.
    fn written(&self) -> Vec<Tag> {
        let writes = self.ops.iter().filter(|op| op.is_write());
        let mut tags: Vec<Tag> = writes.map(Op::tag).collect();
        tags.sort_unstable();
        tags
    }

    /// A value's zone lies between the first end and the last beginning of its operations. Where
    /// the end comes first, the value was there all that time: two such zones do not overlap, and
    /// no value came and went within one.
    fn check(&self) -> Result<(), Wrong> {
        let mut zones = self.zones()?;
        zones.sort_by_key(|zone| (zone.lower().0, zone.upper().0));
        let (forward, backward): (Vec<&Zone>, Vec<&Zone>) =
            zones.iter().partition(|zone| zone.is_forward());
        for pair in forward.windows(2) {
            if pair[0].upper().0 >= pair[1].lower().0 {
                return Err(Wrong::OutOfOrder(pair[0].upper().1, pair[1].lower().1));
            }
        }
        for inner in backward {
            // One after the other as they are, only the last that begins before may be around it.
            let before = forward.partition_point(|it| it.lower().0 <= inner.lower().0);
            let around = forward[..before].last();
            if let Some(outer) = around.filter(|it| inner.upper().0 <= it.upper().0) {
                return Err(Wrong::OutOfOrder(inner.lower().1, outer.upper().1));
            }
        }
        Ok(())
    }

    fn zones(&self) -> Result<Vec<Zone>, Wrong> {
        let writes = self.ops.iter().filter(|op| op.is_write());
        let zone = |write: &Op| Zone {
            write: *write,
            first_end: *write,
            last_start: *write,
            seen: false,
        };
        let mut zones: Vec<Zone> = writes.map(zone).collect();
        zones.sort_by_key(|zone| zone.write.tag());
        for read in self.ops.iter().filter(|op| !op.is_write()) {
            let at = zones.binary_search_by_key(&read.tag(), |zone| zone.write.tag());
            let zone = at.ok().and_then(|at| zones.get_mut(at));
            let zone = zone.ok_or(Wrong::FromNowhere(*read))?;
            if read.precedes(&zone.write) {
                return Err(Wrong::FromNowhere(*read));
            }
            zone.seen = true;
            if read.end_ns < zone.first_end.end_ns {
                zone.first_end = *read;
            }
            if read.start_ns > zone.last_start.start_ns {
                zone.last_start = *read;
            }
        }
        // A failed write that no read saw proves nothing: it may never have happened.
        let failed = |zone: &Zone| matches!(zone.write.deed, Deed::Failed(_));
        zones.retain(|zone| zone.first_end.end_ns != NEVER && (zone.seen || !failed(zone)));
        Ok(zones)
    }

    /// Returns the possible contents after a loss of caches that these writes survive.
    fn pasts(&self, is_durable: impl Fn(&Op) -> bool) -> Vec<Past> {
        let all = || self.ops.iter().filter(|op| op.is_write());
        let here = self.written();
        let old = self.pasts.iter().filter(|past| past.gone.is_none());
        let old = old.map(|past| past.write);
        let old = old.filter(|write| here.binary_search(&write.tag()).is_err());
        let found = |op: &Op| self.found.filter(|it| it.tag() == op.tag());
        let real = |op: &Op| found(op).unwrap_or(*op);
        let proves = |op: &&Op| is_durable(&real(op)) && !self.may_be_older(op);
        let durable: Vec<&Op> = all().filter(proves).collect();
        let last_ns = durable.iter().map(|op| op.start_ns).max().unwrap_or(0);
        let mut pasts: Vec<Past> = Vec::new();
        for write in all().map(real).chain(old) {
            let is_after = |op: &&&Op| write.precedes(op) && write.tag() != op.tag();
            let after = || durable.iter().find(is_after);
            let gone = (write.end_ns <= last_ns).then(after).flatten();
            let gone = gone.map(|op| **op);
            pasts.push(Past { write, gone });
        }
        // A value that was replaced for good before stays so.
        let lost = self.pasts.iter().filter(|past| past.gone.is_some());
        pasts.extend(lost.copied());
        pasts
    }
}

impl Epoch {
    /// Whether a write may have been executed, and lost, before this began: it was cut in two, says
    /// nothing of durability, and no read saw it here.
    fn may_be_older(&self, write: &Op) -> bool {
        let lasts = matches!(write.deed, Deed::Write { durable: true, .. });
        let seen = |op: &Op| !op.is_write() && op.tag() == write.tag();
        self.start_ns > 0 && write.start_ns == self.start_ns && !lasts && !self.ops.iter().any(seen)
    }
}

#[cfg(test)]
mod tests;
