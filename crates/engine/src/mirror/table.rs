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
    /// A request of the mirror itself, without data to handle at its end.
    Own(Ticket),
    /// Pages of the bitmap are read.
    Pages(Ticket),
    /// A range is read, to be compared with the copy buffer of this number.
    Compare(Ticket, u8, Range),
    /// A run of a copied piece is written.
    Run(Run),
    /// Copy 0 or 1 of its superblock is read.
    Probe(u8),
    /// A copy of the superblock of a leg that was removed is overwritten.
    Wipe,
    /// A superblock with the owner's record is written to the leg of this number among those given.
    Acquire(usize),
}

/// All of them.
pub(super) type Table = SlotMap<Entry>;

/// Requests of one mirror.
pub(super) fn given_by(table: &Table, mirror: u8) -> impl Iterator<Item = &Entry> {
    let all = table.iter().map(|(_, it)| it);
    all.filter(move |it| it.mirror == mirror)
}
