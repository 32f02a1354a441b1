//! The I/Os that legs were given and have not ended.
//!
//! # Contract
//! A request to a leg has the key of its entry here ([`Issuer::Device`](block::Issuer)). Each entry
//! is taken out once, when the request has ended.
//!
//! # Limits
//! As many as the host has slots; nothing is allocated for one.
use crate::host::{Hints, IoOp};
use crate::machine::Span;
use crate::mirror::holes::Run;
use block::Range;
use block::{Key, SlotMap};
use mirror::machine::Ticket;

/// One thing that a leg was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Index of the mirror.
    pub mirror: u8,
    /// Place of the leg in its configuration.
    pub leg: u8,
    /// Its kind.
    pub task: Task,
    /// Of a user's I/O: of which one, and what.
    pub part: PartOf,
    /// Hints for the host.
    pub hints: Hints,
    /// Memory that goes back to the mirror when it has ended; of length 0: none does.
    pub span: Span,
    /// It is one of those that its leg's window counts.
    pub counted: bool,
}

impl Entry {
    /// One of the mirror's own.
    pub fn new(mirror: u8, leg: u8, task: Task, span: Span) -> Self {
        Self {
            mirror,
            leg,
            task,
            part: PartOf::default(),
            hints: Hints::default(),
            span,
            counted: false,
        }
    }
}

/// A part of a user's I/O, whose number may be another's when the part ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartOf {
    /// Of its memory.
    pub buffer_lease: Option<Key>,
    pub op: IoOp,
    pub bytes: u32,
}

impl Default for PartOf {
    fn default() -> Self {
        Self {
            buffer_lease: None,
            op: IoOp::Flush,
            bytes: 0,
        }
    }
}

/// The kind of a request to a leg.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// Part of a user's I/O.
    Io(Ticket),
    /// The mirror's own, whose end is all that matters.
    Own(Ticket),
    /// Pages of the bitmap are read.
    Pages(Ticket),
    /// A range is read, to be compared with the copy buffer of this number.
    Compare(Ticket, u8, Range),
    /// A run of what is copied is written.
    Run(Run),
    /// Copy 0 or 1 of its superblock is read.
    Probe(u8),
    /// A copy of the superblock of a leg that was removed is overwritten.
    Wipe,
    /// A superblock with the owner's record is written to the leg of this number among those given.
    Acquire(usize),
}

/// All of them.
pub(super) struct Table {
    entries: SlotMap<Entry>,
}

impl Table {
    pub fn new(room: usize) -> Self {
        Self {
            entries: SlotMap::new(room as u32),
        }
    }

    /// The key of a new one; `None`: there is no room (T6).
    pub fn put(&mut self, entry: Entry) -> Option<Key> {
        (!self.entries.is_full()).then(|| self.entries.insert(entry))
    }

    /// Those of a mirror.
    pub fn of(&self, mirror: u8) -> impl Iterator<Item = &Entry> {
        let all = self.entries.iter().map(|(_, it)| it);
        all.filter(move |it| it.mirror == mirror)
    }

    /// The one of this key; `None`: it has ended, and its copy beside a read has not.
    pub fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The one of this key has ended, or was not given.
    ///
    /// # Panics
    /// If there is none: an I/O ends once.
    pub fn take(&mut self, key: Key) -> Entry {
        self.entries.remove(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t06_each_is_taken_out_once_and_a_full_table_says_so() {
        let mut table = Table::new(2);
        let entry = |leg| Entry::new(0, leg, Task::Probe(0), Span::default());
        let first = table.put(entry(3)).unwrap();
        assert!(table.put(entry(4)).is_some() && table.put(entry(5)).is_none());
        assert_eq!(table.take(first).leg, 3);
        assert!(table.get(first).is_none());
        assert_eq!((table.of(0).count(), table.of(1).count()), (1, 0));
        let again = table.put(entry(6)).unwrap();
        assert!(again != first && table.get(first).is_none(), "T11");
    }
}
