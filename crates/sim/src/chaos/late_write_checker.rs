//! Writes that wait behind a held one (T9). A controller has executed a write, and may execute it
//! again on another path: no other write that began after the loss of the first path may be
//! executed between the two.
//!
//! Decides, for blocks that several write at a time, from the order in which writes were executed.
//!
//! # Limits
//! Only where all applications of a host are on one core, and no second paths are added: else it is
//! not known which connection a write was on, or which writes wait for which. Only of writes that
//! were executed twice.
use super::prelude::*;
use super::story::At;

/// A write of one block was executed.
#[derive(Clone, Copy, Debug)]
pub struct Execution {
    pub at_ns: u64,
    pub block: u64,
    pub tag: u64,
    pub node: usize,
}

impl World {
    /// The blocks that several write at a time of which each write was executed once at most.
    pub(super) fn once(&self) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        let again = |it: &&Execution| !seen.insert((it.block, it.tag));
        let twice = self.executions.iter().filter(again);
        let twice: BTreeSet<u64> = twice.map(|it| it.block).collect();
        let all = self.executions.iter().map(|it| it.block);
        all.filter(|it| !twice.contains(it) && !self.torn.contains(it))
            .collect()
    }
}

impl Course<'_> {
    /// No write has overtaken one that it had to wait for.
    pub(super) fn waits_are_kept(&mut self) -> Result<(), Finding> {
        let layout = &self.plan.layout;
        let second = self.plan.faults.iter().any(|it| it.kind == Kind::AddPath);
        if layout.habit.homes > 1 || second {
            return Ok(());
        }
        let mut blocks: BTreeMap<u64, Vec<Execution>> = BTreeMap::new();
        for it in &self.rig.world.executions {
            blocks.entry(it.block).or_default().push(*it);
        }
        let (mut twice, mut wrong) = (false, None);
        for all in blocks.values() {
            for (at, last) in all.iter().enumerate() {
                let Some(first) = all[..at].iter().position(|it| it.tag == last.tag) else {
                    continue;
                };
                twice = true;
                wrong = wrong.or_else(|| self.overtaker(&all[first..=at]));
            }
        }
        self.judges(Check::Behind, twice);
        match wrong {
            Some((block, what)) => {
                self.report.block = Some(block);
                Err(Finding::Wrong(what))
            }
            None => Ok(()),
        }
    }

    /// Returns the write that was executed between the first and the last execution of a write,
    /// though the path of the first was lost before.
    fn overtaker(&self, all: &[Execution]) -> Option<(u64, String)> {
        let (first, last) = (all.first()?, all.last()?);
        let host = (first.tag >> 48) as usize - 1;
        let target = self.rig.targets.iter().position(|it| *it == first.node)?;
        let layout = &self.plan.layout;
        let paths = layout.targets * usize::from(layout.ports);
        let lost = &self.rig.hosts[host].good[0].lost;
        let after = |address| {
            let mut of = lost
                .iter()
                .filter(|it| it.0 == address && it.1 > first.at_ns);
            of.next().map_or(u64::MAX, |it| it.1)
        };
        // Which of its ports it was is not known.
        let those = (0..paths).filter(|address| address % layout.targets == target);
        let lost_ns = those.map(after).max()?;
        let block = first.block;
        let between = |it: &&Execution| {
            let began_ns = self.history.began_ns(block, it.tag);
            it.tag >> 48 == first.tag >> 48
                && it.tag != first.tag
                && began_ns.is_some_and(|began_ns| lost_ns < began_ns)
        };
        let it = all.iter().find(between)?;
        let what = format!(
            "a write does not wait: {:#x} of block {block} was executed at {} s, its path was \
             lost at {} s, and it was executed again at {} s; {:#x} began after that, and was \
             executed at {} s",
            first.tag,
            At(first.at_ns),
            At(lost_ns),
            At(last.at_ns),
            it.tag,
            At(it.at_ns)
        );
        Some((block, what))
    }
}
