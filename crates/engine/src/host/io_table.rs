//! The table of I/Os in flight on one core: who holds which, in what order, without allocating.
//!
//! # Contract
//! A slot is free, in one [`Lane`] (of a path, or of those that wait), or ended and waiting to be
//! reported; its links serve the list it is in. [`IoState`] says which. A token names a slot *and*
//! its use: a late answer to an earlier use finds nothing (T11).
//!
//! A lane is in order of submission, and its I/Os are given to the path's queue in this order: so
//! those that still wait are a suffix, and those given are in order of that time as well. The first
//! one tells when the path's oldest command expires; no timer per I/O is needed.
//!
//! *Spare* slots are for copies beside I/Os ([`super::hedge`]) and for probes: they take none from
//! the callers, nobody waits for them, and no I/O is counted for them. Of the two slots of an I/O
//! and its copy, the one that ends without being reported is the spare one from then on.
//!
//! # Limits
//! [`IO_MAX`](crate::limits::IO_MAX) slots, all allocated at construction.
mod pieces;

pub(super) use pieces::{carries, cut, whole_max};

use super::counters::group;
use super::types::{Hints, Io, IoDone, IoOp, NO_PATH};
use crate::machine::Span;
use alloc::vec::Vec;
use block::Covered;
use block::order::Ticket as Place;
use multipath::Outcome;
use pieces::Splits;
use policy::{PathIndex, Request, Ticket};

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Spare slots that probes of idle paths leave.
const SPARES_LEFT: u32 = 16;
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Content of a slot before its first use.
pub(super) const EMPTY: Io = Io {
    volume: 0,
    op: IoOp::Flush,
    offset: 0,
    length: 0,
    span: Span { at: 0, len: 0 },
    source: 0,
    cookie: 0,
};

/// One I/O.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// As submitted; of one that is cut, the piece that the slot carries.
    pub io: Io,
    /// As submitted.
    pub hints: Hints,
    /// Kind of I/O in the slot.
    pub kind: Kind,
    /// Its I/O was cut again for narrower paths.
    pub recut: bool,
    /// It is one of two copies of a read, or was and its buffer is still the engine's own.
    pub hedged: bool,
    /// It is a flush, fenced, or not a whole I/O: its end has consequences.
    pub watched: bool,
    state: IoState,
    /// When it was submitted.
    pub started_ns: u64,
    /// The path it was placed on.
    pub path: PathIndex,
    /// When it was given to the path's queue.
    pub issued_ns: u64,
    /// When it was placed on this path, or began to wait.
    pub placed_ns: u64,
    /// Ticket that the policy wants back when it leaves this path.
    pub ticket: Ticket,
    /// Only of a flush.
    pub flush: FlushProgress,
    /// A change of data that others wait for, or that waits itself: its place among them.
    pub fence: Option<Place>,
    pub history: IoHistory,
    /// How it ended.
    done: IoDone,
    token: u32,
    prev: u32,
    next: u32,
}

/// Where an I/O is. Changed by [`IoTable::push`] and [`IoTable::set_state`] alone; a slot that was
/// taken out of its lane keeps its state until the next one is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum IoState {
    /// The slot has no I/O: it is free, or its I/O has ended and is still to be reported.
    Ended,
    /// A change that waits for an earlier one that overlaps it.
    Blocked,
    /// Waits for the end of what the engine before this one had sent.
    Gated,
    /// A cut I/O of which other slots carry pieces, and its own carries none.
    Pieces,
    /// A read that is done, in a buffer of the engine's own, until that is copied.
    Copying,
    /// Submitted, no longer blocked or gated, or the next piece: a path is to be found.
    Placing,
    /// Waits for a usable path, at most until then, ns.
    Queued { until_ns: u64 },
    /// On a path: waits for room in its queue, or was given to it.
    OnPath,
    /// On a path, and expired: its command is to be aborted. `is_confirmed`: the controller has
    /// aborted it, so it is not executed (T9).
    Aborting { is_confirmed: bool },
    /// A change that an association of its path may still execute (T9), at most until then, ns.
    Held {
        until_ns: u64,
        association: u32,
        /// That time comes from a reset, not from the bound.
        is_proof: bool,
    },
    /// Waits to be repeated on the path that was busy, ns.
    Backoff { until_ns: u64 },
    /// A flush that waits for a lost controller with unflushed writes, at most until then, ns.
    FlushWait { until_ns: u64 },
}

impl Slot {
    /// The request that the policy sees for it.
    pub(super) fn request(&self, now_ns: u64) -> Request {
        let io = &self.io;
        Request {
            source: io.source,
            group: group(io.op),
            length: io.length,
            address: io.offset,
            now_ns,
        }
    }
}

impl IoState {
    /// Whether an I/O may get from here to `to`.
    #[inline(always)]
    fn leads_to(self, to: Self) -> bool {
        match to {
            Self::Placing => matches!(
                self,
                Self::Ended | Self::Blocked | Self::Gated | Self::Pieces
            ),
            Self::OnPath | Self::Queued { .. } => !matches!(
                self,
                Self::Ended | Self::Blocked | Self::Gated | Self::Pieces | Self::Copying
            ),
            Self::Aborting { .. } => self.is_on_path(),
            // Held again: its time is another.
            Self::Held { .. } => self.is_on_path() || matches!(self, Self::Held { .. }),
            Self::Backoff { .. } | Self::Copying => self.is_on_path(),
            Self::Blocked | Self::Gated => matches!(
                self,
                Self::Placing
                    | Self::OnPath
                    | Self::Aborting { .. }
                    | Self::Queued { .. }
                    | Self::Held { .. }
                    | Self::Backoff { .. }
            ),
            Self::FlushWait { .. } => matches!(
                self,
                Self::Placing
                    | Self::OnPath
                    | Self::Aborting { .. }
                    | Self::Backoff { .. }
                    | Self::FlushWait { .. }
            ),
            Self::Pieces => !matches!(self, Self::Ended | Self::Pieces | Self::Copying),
            Self::Ended => !matches!(self, Self::Ended),
        }
    }

    fn is_on_path(self) -> bool {
        matches!(self, Self::OnPath | Self::Aborting { .. })
    }

    /// Until when it waits, ns, where that is known. Of a gated one the fence knows.
    pub(super) fn until_ns(self) -> Option<u64> {
        match self {
            Self::Queued { until_ns }
            | Self::Held { until_ns, .. }
            | Self::Backoff { until_ns }
            | Self::FlushWait { until_ns } => Some(until_ns),
            _ => None,
        }
    }

    /// Whether its wait is over.
    pub(super) fn is_due(self, now_ns: u64) -> bool {
        self.until_ns().is_some_and(|at_ns| at_ns <= now_ns)
    }
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An I/O.
    Whole,
    /// An I/O that is cut: one piece after the other.
    Cut,
    /// A piece of an I/O in another slot.
    Helper,
    /// No I/O: the copy of a read, or what is left of a read that was reported.
    Copy,
    /// No I/O: a probe, of whose end no client is told.
    Probe,
}

impl Kind {
    /// Whether it is in a spare slot.
    fn is_spare(self) -> bool {
        matches!(self, Self::Copy | Self::Probe)
    }

    /// Whether it is a part of a larger I/O.
    pub(super) fn is_piece(self) -> bool {
        matches!(self, Self::Cut | Self::Helper)
    }
}

/// Earlier trouble of an I/O, where not all was good. Of one that is cut: per piece.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IoHistory {
    /// Moves to another path.
    pub hops: u8,
    /// Moves away from a path that was lost: these don't count against it (T4).
    pub losses: u8,
    /// Repetitions on a busy path.
    pub retries: u8,
    /// How often all of it was begun anew, for what its volume had given up meanwhile (T13).
    pub again: u8,
    /// Result of the present attempt, until the next one.
    pub attempt: AttemptEnd,
    /// Time it waited without being on a path, ms.
    pub excused_ms: u32,
    /// Paths that failed it, as bits.
    pub failed: u64,
    /// Paths that were busy to the end of the repetitions, as bits.
    pub refused: u64,
    /// When it was placed on the path that did not do it, ns; 0 once it has another, or none failed
    /// it.
    pub lost_ns: u64,
}

/// Result of an attempt of an I/O, beside its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AttemptEnd {
    /// It has not ended, or the path answered.
    #[default]
    Answered,
    /// Its path was lost before it answered; the controller may still execute it.
    Unanswered,
    /// The same, but the controller can't execute it any more.
    Fenced,
    /// It was damaged or failed on the way.
    InTransit,
    /// It failed for want of room in our own system (T6).
    NoRoom,
    /// Its device is a queue without a server, which has not got it.
    Refused,
}

/// How far a flush has got.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlushProgress {
    /// Paths it was given to, as bits.
    pub asked: u64,
    /// How often its volume had given up unflushed writes when it was submitted.
    pub given_up: u32,
    /// It waits, or waited last, for a queue of its core.
    pub is_without_queue: bool,
    /// From when on its wait for lost controllers counts, ns, if that is after its start: before,
    /// it waited for a queue.
    pub from_ns: u64,
    /// Acknowledged writes of the path that has it, which it covers.
    pub covers: Covered,
}

impl IoHistory {
    /// It moves to another path; `lost`: because its own is.
    pub(super) fn moved(&mut self, lost: bool) {
        let unanswered = matches!(self.attempt, AttemptEnd::Unanswered | AttemptEnd::Fenced);
        self.hops = self.hops.saturating_add(1);
        self.losses = self.losses.saturating_add(u8::from(lost || unanswered));
    }
}

/// All slots of one core.
pub(super) struct IoTable {
    table: Vec<Slot>,
    free: u32,
    /// Free ones for copies.
    spare: u32,
    /// Ended, to be reported in this order.
    ended: Queue,
    active: u32,
    /// Spare slots, free or not.
    spares: u32,
    /// State of cut I/Os, by slot.
    splits: Splits,
}

/// A first-in first-out list.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

/// The I/Os of one path, in order of submission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    head: u32,
    tail: u32,
    /// First of those the path had no room for.
    waiting: u32,
}

impl Lane {
    pub(super) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        waiting: NONE,
    };

    /// No I/O.
    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The first I/O that waits for room.
    pub(super) fn waiting(&self) -> Option<u32> {
        some(self.waiting)
    }

    /// The first I/O.
    pub(super) fn front(&self) -> Option<u32> {
        some(self.head)
    }

    /// The oldest I/O, if it has been given to the queue.
    pub(super) fn oldest_issued(&self) -> Option<u32> {
        some(self.head).filter(|_| self.head != self.waiting)
    }
}

impl Slot {
    #[inline(always)]
    pub(super) fn state(&self) -> IoState {
        self.state
    }

    /// Whether it has an I/O, or something like it, that has not ended.
    #[inline(always)]
    fn is_active(&self) -> bool {
        !matches!(self.state, IoState::Ended)
    }

    /// Whether its command has expired: what now fails has timed out.
    #[inline(always)]
    pub(super) fn is_expired(&self) -> bool {
        matches!(self.state, IoState::Aborting { .. })
    }

    /// Whether its command was aborted, and so is not executed (T9).
    pub(super) fn is_aborted(&self) -> bool {
        matches!(self.state, IoState::Aborting { is_confirmed: true })
    }

    /// Whether it goes on where its volume is taken back from its mirror.
    pub(super) fn survives_cut(&self) -> bool {
        self.hints.past_cut && self.io.op == IoOp::Read
    }

    /// The one place where a state changes.
    #[inline(always)]
    fn set_state(&mut self, to: IoState) {
        if !self.state.leads_to(to) {
            no_edge(self.state, to);
        }
        self.state = to;
    }

    /// A new use begins.
    #[inline(always)]
    fn begin(&mut self, io: &Io, kind: Kind, now_ns: u64) {
        assert!(!self.is_active(), "a free slot has an I/O");
        self.io = *io;
        self.kind = kind;
        self.recut = false;
        self.hedged = false;
        self.watched = false;
        self.state = IoState::Placing;
        self.started_ns = now_ns;
        self.placed_ns = now_ns;
        self.fence = None;
        self.history = IoHistory::default();
        self.token = self.token.wrapping_add(1 << INDEX_BITS);
    }
}

#[cold]
#[inline(never)]
fn no_edge(from: IoState, to: IoState) -> ! {
    panic!("an I/O that is {from:?} can't become {to:?}")
}

fn some(index: u32) -> Option<u32> {
    (index != NONE).then_some(index)
}

impl IoTable {
    /// So many slots, and so many spare ones.
    pub(super) fn new(count: u32, spare: u32) -> Self {
        let done = IoDone {
            cookie: 0,
            outcome: Outcome::Done,
            path: NO_PATH,
            latency_ns: 0,
        };
        let slot = |index: u32| Slot {
            io: EMPTY,
            hints: Hints::default(),
            kind: Kind::Whole,
            recut: false,
            hedged: false,
            watched: false,
            state: IoState::Ended,
            started_ns: 0,
            path: NO_PATH,
            issued_ns: 0,
            placed_ns: 0,
            ticket: Ticket::default(),
            flush: FlushProgress::default(),
            fence: None,
            history: IoHistory::default(),
            done,
            token: index,
            prev: NONE,
            next: match index + 1 {
                next if next == count || next == count + spare => NONE,
                next => next,
            },
        };
        let table: Vec<_> = (0..count + spare).map(slot).collect();
        Self {
            table,
            free: if count == 0 { NONE } else { 0 },
            spare: if spare == 0 { NONE } else { count },
            ended: Queue::EMPTY,
            active: 0,
            spares: spare,
            splits: Splits::new(count, spare),
        }
    }

    /// I/Os that have not ended.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Slots that are neither free nor of an I/O: there should be none, ever. Looks at all.
    pub(super) fn leaked(&self) -> usize {
        let chain = |first: u32| {
            let next = |&at: &u32| some(self.table[at as usize].next);
            core::iter::successors(some(first), next).count()
        };
        let here = chain(self.free) + chain(self.spare) + chain(self.ended.head);
        self.table.len().saturating_sub(here + self.active as usize)
    }

    /// Those of a volume. Looks at all slots.
    pub(super) fn active_of(&self, volume: u16) -> impl Iterator<Item = &Slot> {
        let all = self.table.iter();
        all.filter(move |it| it.is_active() && !it.kind.is_spare() && it.io.volume == volume)
    }

    /// Lets the I/Os of a volume try a path again that they had failed on: it was connected anew.
    /// A read that another volume can do as well asks no path twice. Looks at all slots.
    pub(super) fn forget_failures(&mut self, volume: u16, path: PathIndex) {
        let of = |slot: &&mut Slot| slot.is_active() && slot.io.volume == volume;
        let repeats = |slot: &&mut Slot| of(slot) && !slot.hints.elsewhere;
        for slot in self.table.iter_mut().filter(repeats) {
            slot.history.failed &= !(1 << path.0);
        }
    }

    /// Takes a slot for `io`; `None`: all are in use, or ended and not yet reported.
    #[inline]
    pub(super) fn take(&mut self, io: &Io, hints: Hints, now_ns: u64) -> Option<u32> {
        let index = some(self.free)?;
        let slot = &mut self.table[index as usize];
        self.free = slot.next;
        slot.begin(io, Kind::Whole, now_ns);
        slot.hints = hints;
        self.active += 1;
        Some(index)
    }

    /// Takes a spare slot for a copy of the I/O in slot `of`, with a history of its own from now
    /// on; `None`: none is left.
    pub(super) fn take_copy_of(&mut self, of: u32, now_ns: u64) -> Option<u32> {
        let Slot {
            io,
            hints,
            started_ns,
            history,
            ..
        } = self.table[of as usize];
        let index = self.take_spare(&io, Kind::Copy, now_ns)?;
        let slot = &mut self.table[index as usize];
        slot.started_ns = started_ns;
        slot.hints = hints;
        slot.history = history;
        Some(index)
    }

    /// Takes a spare slot for something that is no caller's I/O; `None`: none is left.
    pub(super) fn take_spare(&mut self, io: &Io, kind: Kind, now_ns: u64) -> Option<u32> {
        let index = some(self.spare)?;
        let slot = &mut self.table[index as usize];
        self.spare = slot.next;
        slot.begin(io, kind, now_ns);
        slot.hints = Hints::default();
        slot.watched = true;
        Some(index)
    }

    /// Whether there is a spare slot.
    pub(super) fn has_spare(&self) -> bool {
        self.spare != NONE
    }

    /// Whether a spare slot may be taken for what is not urgent: a quarter of them, at most
    /// [`SPARES_LEFT`], stays for copies and for paths on probation.
    pub(super) fn has_spares(&self) -> bool {
        let left = SPARES_LEFT.min(self.spares / 4) as usize;
        let next = |&index: &u32| self.next(index);
        core::iter::successors(some(self.spare), next)
            .nth(left)
            .is_some()
    }

    /// Nothing is under way any more in a spare slot.
    pub(super) fn free_spare(&mut self, index: u32) {
        let slot = &mut self.table[index as usize];
        slot.set_state(IoState::Ended);
        assert!(slot.kind.is_spare(), "a spare slot is freed, not {slot:?}");
        slot.next = self.spare;
        self.spare = index;
    }

    /// Of an I/O and its copy, `index` is the I/O from now on, whichever it was, and `other` the
    /// spare one.
    pub(super) fn prefer(&mut self, index: u32, other: u32) {
        self.get_mut(index).kind = Kind::Whole;
        self.get_mut(other).kind = Kind::Copy;
    }

    pub(super) fn get(&self, index: u32) -> &Slot {
        &self.table[index as usize]
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.table[index as usize]
    }

    /// The name under which a path's queue knows the slot's present use.
    pub(super) fn token(&self, index: u32) -> u32 {
        self.table[index as usize].token
    }

    /// The I/O goes on under another token: an answer to the old one finds nothing (T11).
    pub(super) fn rename(&mut self, index: u32) {
        let slot = &mut self.table[index as usize];
        slot.token = slot.token.wrapping_add(1 << INDEX_BITS);
    }

    /// The slot of `token`, if its I/O has not ended.
    #[inline]
    pub(super) fn find(&self, token: u32) -> Option<u32> {
        let index = token & INDEX_MASK;
        let slot = self.table.get(index as usize)?;
        (slot.token == token && slot.is_active()).then_some(index)
    }

    /// Changes the state of a slot that enters no lane.
    ///
    /// # Panics
    /// If the state that it has doesn't lead there.
    #[inline(always)]
    pub(super) fn set_state(&mut self, index: u32, to: IoState) {
        self.table[index as usize].set_state(to);
    }

    /// Puts a slot at the end of a path's `lane`; `waits`: the path has no room for it.
    #[inline(always)]
    pub(super) fn push_on_path(&mut self, lane: &mut Lane, index: u32, waits: bool) {
        self.enter(lane, index, IoState::OnPath);
        if waits && lane.waiting == NONE {
            lane.waiting = index;
        }
    }

    /// Puts a slot at the end of `lane`, where it has this state.
    ///
    /// # Panics
    /// As [`Self::set_state`].
    pub(super) fn push(&mut self, lane: &mut Lane, index: u32, state: IoState) {
        self.enter(lane, index, state);
    }

    /// Inlined where the state is known: then its edge costs a comparison.
    #[inline(always)]
    fn enter(&mut self, lane: &mut Lane, index: u32, state: IoState) {
        let slot = &mut self.table[index as usize];
        slot.set_state(state);
        slot.prev = lane.tail;
        slot.next = NONE;
        match some(lane.tail) {
            Some(tail) => self.table[tail as usize].next = index,
            None => lane.head = index,
        }
        lane.tail = index;
    }

    /// The last I/O of `lane`.
    pub(super) fn last(&self, lane: &Lane) -> Option<&Slot> {
        some(lane.tail).map(|index| self.get(index))
    }

    /// The first waiting I/O of `lane` was given to the queue.
    pub(super) fn issued(&mut self, lane: &mut Lane) {
        lane.waiting = self.table[lane.waiting as usize].next;
    }

    /// Takes a slot out of `lane`.
    #[inline]
    pub(super) fn unlink(&mut self, lane: &mut Lane, index: u32) {
        let Slot { prev, next, .. } = self.table[index as usize];
        match some(prev) {
            Some(prev) => self.table[prev as usize].next = next,
            None => lane.head = next,
        }
        match some(next) {
            Some(next) => self.table[next as usize].prev = prev,
            None => lane.tail = prev,
        }
        if lane.waiting == index {
            lane.waiting = next;
        }
    }

    /// The I/Os of a lane, in order.
    pub(super) fn of<'a>(&'a self, lane: &Lane) -> impl Iterator<Item = &'a Slot> {
        core::iter::successors(lane.front(), |&index| self.next(index)).map(|it| self.get(it))
    }

    /// Whether `index`, which is in `lane`, waits for room in the path's queue.
    pub(super) fn is_waiting(&self, lane: &Lane, index: u32) -> bool {
        let next = |&index: &u32| self.next(index);
        core::iter::successors(lane.waiting(), next).any(|it| it == index)
    }

    /// The I/O behind `index` in its lane.
    pub(super) fn next(&self, index: u32) -> Option<u32> {
        some(self.table[index as usize].next)
    }

    /// The first I/O of `lane` whose wait is over.
    pub(super) fn first_due(&self, lane: &Lane, now_ns: u64) -> Option<u32> {
        let mut all = core::iter::successors(lane.front(), |&index| self.next(index));
        all.find(|&index| self.get(index).state().is_due(now_ns))
    }

    /// Excludes the time since `placed_ns` from the I/O's timeout: it was waiting, not executing.
    pub(super) fn exclude_wait(&mut self, index: u32, now_ns: u64) {
        let slot = self.get_mut(index);
        let waited_ms = now_ns.saturating_sub(slot.placed_ns) / 1_000_000;
        let waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        slot.history.excused_ms = slot.history.excused_ms.saturating_add(waited_ms);
    }

    /// An I/O that is in no lane has ended; it is kept to be reported.
    #[inline]
    pub(super) fn end(&mut self, index: u32, outcome: Outcome, path: PathIndex, now_ns: u64) {
        let slot = &mut self.table[index as usize];
        slot.set_state(IoState::Ended);
        slot.done = IoDone {
            cookie: slot.io.cookie,
            outcome,
            path,
            latency_ns: now_ns.saturating_sub(slot.started_ns),
        };
        self.active -= 1;
        self.ended.push(&mut self.table, index);
    }

    /// A slot whose end nobody is told of is free again.
    pub(super) fn free(&mut self, index: u32) {
        let slot = &mut self.table[index as usize];
        slot.set_state(IoState::Ended);
        slot.next = self.free;
        self.free = index;
        self.active -= 1;
    }

    /// The next I/O that ended; its slot is free again.
    #[inline]
    pub(super) fn report(&mut self) -> Option<IoDone> {
        let index = self.ended.pop(&self.table)?;
        let slot = &mut self.table[index as usize];
        slot.next = self.free;
        self.free = index;
        Some(slot.done)
    }
}

impl Queue {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    fn push(&mut self, table: &mut [Slot], index: u32) {
        table[index as usize].next = NONE;
        match some(self.tail) {
            Some(tail) => table[tail as usize].next = index,
            None => self.head = index,
        }
        self.tail = index;
    }

    fn pop(&mut self, table: &[Slot]) -> Option<u32> {
        let index = some(self.head)?;
        self.head = table[index as usize].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests;
