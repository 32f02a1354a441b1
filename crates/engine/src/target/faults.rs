//! Faults of a port on purpose, and their times.
//!
//! Decides from a port's [`Faults`], the commands that pass and a seeded generator: which
//! connection is dropped, which command gets an error status or hangs, which write is held, and
//! what becomes of writes whose connection is gone.
//!
//! # Contract
//! Without faults nothing here costs more than a comparison, and a write that has not begun when
//! its connection ends is never executed. With `late_writes_ns` it is, that long after the end,
//! though its host may have repeated it elsewhere: a host is safe from it only while that lies
//! within what it waits for, 2 × KATO + CQT (T9). With `until_keep_alive` it takes its usual course
//! until the keep-alive timer of its controller would have expired (Base 2.0, 3.9), and no longer.
//!
//! A dropped connection's commands take their usual course until it is closed: those that no shape
//! delays are executed, and their answer is lost.
//!
//! # Limits
//! What hangs goes on hanging when the fault is taken away. [`ERROR_RULES_MAX`] rules; more are cut
//! off. Late writes keep the order in which they were lost: a shorter `late_writes_ns` lets none
//! overtake.
use super::commands::{Command, Queue};
use crate::limits::ERROR_RULES_MAX;
use alloc::vec::Vec;
use core::ops::BitOr;
use nvme::controller::Action;
use nvme::wire::Status;
use shape::Random;

/// The faults of one port. Default: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Commands that fail; the first rule that hits counts.
    pub errors: Vec<ErrorRule>,
    /// Chance of every I/O command to have its connection dropped with a reset.
    pub drop_rate: Probability,
    /// Chance of every I/O command to hang: it does not begin and is not answered until it is
    /// aborted or its connection ends.
    pub hang_rate: Probability,
    /// Chance of every read to bring less than was asked for, and to end well (no controller may,
    /// T16).
    pub short_rate: Probability,
    /// Commands that change data don't begin before this time, absolute; 0 = they do.
    pub hold_writes_until_ns: u64,
    /// Writes that had not begun are executed so long after their connection is gone; 0 = never.
    pub late_writes_ns: u64,
    /// Writes outlive their connection until keep-alive expires. `late_writes_ns` goes before.
    pub until_keep_alive: bool,
    /// Nothing is sent before this time, absolute; 0 = it is.
    pub mute_until_ns: u64,
    /// New connections are closed at once before this time, absolute; 0 = they aren't.
    pub refuse_until_ns: u64,
}

/// Commands that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRule {
    /// With what, its retry bits included.
    pub status: Status,
    /// Which kinds of command.
    pub ops: Ops,
    /// First and last block: those that touch one of them. `None`: all, also those without blocks.
    pub blocks: Option<(u64, u64)>,
    /// How many of them.
    pub rate: Probability,
}

/// A chance in parts of 10⁹.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

/// A set of kinds of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ops(u8);

impl Probability {
    /// Every time.
    pub const ALWAYS: Self = Self(1_000_000_000);

    /// So many times of 10⁹; `None` where that is more than always.
    pub fn new(parts_per_billion: u32) -> Option<Self> {
        (parts_per_billion <= Self::ALWAYS.0).then_some(Self(parts_per_billion))
    }

    /// Times of 10⁹.
    pub fn parts_per_billion(self) -> u32 {
        self.0
    }

    fn hits(self, random: &mut Random) -> bool {
        self.0 > 0 && random.up_to(u64::from(Self::ALWAYS.0) - 1) < u64::from(self.0)
    }
}

impl Ops {
    /// Read.
    pub const READ: Self = Self(1);
    /// Write.
    pub const WRITE: Self = Self(1 << 1);
    /// Flush.
    pub const FLUSH: Self = Self(1 << 2);
    /// Write Zeroes.
    pub const WRITE_ZEROES: Self = Self(1 << 3);
    /// Dataset Management that deallocates.
    pub const DEALLOCATE: Self = Self(1 << 4);
    /// Compare.
    pub const COMPARE: Self = Self(1 << 5);
    /// All of them.
    pub const ALL: Self = Self((1 << 6) - 1);

    /// Whether all of `other` is in the set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn of(action: Action) -> Self {
        match action {
            Action::Read => Self::READ,
            Action::Write { .. } => Self::WRITE,
            Action::Flush => Self::FLUSH,
            Action::WriteZeroes { .. } => Self::WRITE_ZEROES,
            Action::Deallocate => Self::DEALLOCATE,
            Action::Compare => Self::COMPARE,
        }
    }
}

impl BitOr for Ops {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl ErrorRule {
    fn concerns(&self, command: &Command) -> bool {
        let Some((first, last)) = self.blocks else {
            return self.ops.contains(Ops::of(command.action));
        };
        let touches =
            |slba: u64, blocks: u64| blocks > 0 && slba <= last && first <= slba + (blocks - 1);
        self.ops.contains(Ops::of(command.action))
            && match command.action {
                Action::Flush => false,
                Action::Deallocate => command.ranges.iter().any(|(at, n)| touches(*at, *n)),
                _ => touches(command.slba, u64::from(command.blocks)),
            }
    }
}

/// A port's faults at work.
pub(super) struct Injector {
    faults: Faults,
    random: Random,
    /// Begun by nobody as long as writes are held.
    pub(super) held: Queue,
    /// They hang.
    pub(super) hung: Queue,
    /// Their connections are gone; by the time of their execution (`Command::due_ns`).
    pub(super) late: Queue,
    late_last_ns: u64,
}

impl Injector {
    /// No faults.
    pub(super) fn new(seed: u64) -> Self {
        Injector {
            faults: Faults::default(),
            random: Random::new(!seed),
            held: Queue::EMPTY,
            hung: Queue::EMPTY,
            late: Queue::EMPTY,
            late_last_ns: 0,
        }
    }

    /// Other faults from now on; the generator's sequence goes on.
    pub(super) fn configure(&mut self, mut faults: Faults) {
        faults.errors.truncate(ERROR_RULES_MAX);
        self.faults = faults;
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Whether a command that arrives takes its connection with it.
    pub(super) fn drops(&mut self) -> bool {
        self.faults.drop_rate.hits(&mut self.random)
    }

    /// Whether a command that may begin hangs instead.
    pub(super) fn hangs(&mut self) -> bool {
        self.faults.hang_rate.hits(&mut self.random)
    }

    /// Whether a read that is done brings less.
    pub(super) fn shortens(&mut self) -> bool {
        self.faults.short_rate.hits(&mut self.random)
    }

    /// Whether commands that change data must wait. Those that wait let nobody overtake them.
    pub(super) fn holds(&self, now_ns: u64) -> bool {
        self.faults.hold_writes_until_ns > now_ns || self.held.first().is_some()
    }

    /// The status to fail a command with.
    pub(super) fn error(&mut self, command: &Command) -> Option<Status> {
        let mut rules = self.faults.errors.iter();
        let rule = rules.find(|rule| rule.concerns(command) && rule.rate.hits(&mut self.random))?;
        Some(rule.status)
    }

    /// When a write that is lost now is executed.
    pub(super) fn late_due_ns(&mut self, now_ns: u64) -> u64 {
        let due_ns = now_ns.saturating_add(self.faults.late_writes_ns);
        self.late_last_ns = due_ns.max(self.late_last_ns);
        self.late_last_ns
    }

    /// Whether nothing may be sent.
    pub(super) fn is_mute(&self, now_ns: u64) -> bool {
        self.faults.mute_until_ns > now_ns
    }

    /// True once when a silence is over.
    pub(super) fn ends_mute(&mut self, now_ns: u64) -> bool {
        let ends = self.faults.mute_until_ns != 0 && !self.is_mute(now_ns);
        if ends {
            self.faults.mute_until_ns = 0;
        }
        ends
    }

    /// When held writes go on, or a silence ends.
    pub(super) fn timeout_ns(&self) -> Option<u64> {
        let held = self.held.first().map(|_| self.faults.hold_writes_until_ns);
        let mute = Some(self.faults.mute_until_ns).filter(|until| *until != 0);
        held.into_iter().chain(mute).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_hits_as_often_as_it_says() {
        let mut random = Random::new(3);
        let tenth = Probability::new(100_000_000).unwrap_or_default();
        let hits = (0..100_000).filter(|_| tenth.hits(&mut random)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..100).all(|_| Probability::ALWAYS.hits(&mut random)));
        assert!(!(0..100).any(|_| Probability::default().hits(&mut random)));
        assert_eq!(Probability::new(1_000_000_001), None);
    }

    #[test]
    fn late_writes_never_overtake() {
        let mut injector = Injector::new(1);
        let mut late = |late_writes_ns, now_ns| {
            injector.configure(Faults {
                late_writes_ns,
                ..Faults::default()
            });
            injector.late_due_ns(now_ns)
        };
        assert_eq!([late(100, 10), late(5, 20), late(5, 200)], [110, 110, 205]);
    }
}
