//! The table of I/Os in flight on one core: who holds which, in what order, without allocating.
//!
//! # Contract
//! A slot is free, in one [`Lane`] (of a path, or of those that wait), or ended and waiting to be
//! reported; its links serve the list it is in. A token names a slot *and* its use: a late
//! answer to an earlier use finds nothing (T11).
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
use super::types::{Io, IoDone, IoOp, NO_PATH};
use crate::machine::Span;
use alloc::vec::Vec;
use block::Covered;
use block::order::Ticket as Place;
use policy::{PathIndex, Ticket};
use volume::Outcome;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Spare slots that probes of idle paths leave.
const SPARES_LEFT: u32 = 16;
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// What a slot holds before its first use.
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
    /// As submitted.
    pub io: Io,
    /// When it was submitted.
    pub started_ns: u64,
    /// The path it was placed on.
    pub path: PathIndex,
    /// When it was given to the path's queue.
    pub issued_ns: u64,
    /// When it was placed on this path.
    pub placed_ns: u64,
    /// What the policy wants back when it leaves this path.
    pub ticket: Ticket,
    /// While it waits: until when.
    pub until_ns: u64,
    /// While it is held: which association of its path may yet execute it.
    pub association: u32,
    /// A flush: acknowledged writes of its path that it covers.
    pub covers: Covered,
    /// A change of data that others wait for, or that waits itself: its place among them.
    pub fence: Option<Place>,
    /// What happened to it so far.
    pub course: Course,
    /// How it ended.
    done: IoDone,
    /// Its command has expired: what now fails has timed out.
    pub expired: bool,
    /// Taken, and not ended.
    active: bool,
    token: u32,
    prev: u32,
    next: u32,
}

/// What happened to an I/O so far, where that is not all good.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    /// Moves to another path.
    pub hops: u8,
    /// Paths that failed it, as bits.
    pub failed: u64,
    /// Repetitions on a busy path.
    pub retries: u8,
    /// Paths that were busy to the end of them, as bits.
    pub refused: u64,
    /// It is a flush, fenced, or a piece: its end has consequences.
    pub watched: bool,
    /// A flush: paths it was given to.
    pub flushed: u64,
    /// A flush: how often its volume had given up unflushed writes when it was submitted.
    pub given_up: u32,
    /// It waits behind an overlapping write.
    pub behind: bool,
    /// Its path was lost before it answered.
    pub unanswered: bool,
    /// The same, for as long as it has no other.
    pub bereft: bool,
    /// Moves away from a path that was lost: these don't count against it (T4).
    pub losses: u8,
    /// Its controller has taken it back: it is not executed any more (T9).
    pub aborted: bool,
    /// Its last attempt was damaged or failed on the way.
    pub in_transit: bool,
    /// Its last attempt failed for want of room in our own system (T6).
    pub ours: bool,
    /// It is held, and its controller has said that it was reset, but not how long it takes to
    /// quiesce.
    pub quiesces: bool,
    /// It is cut into pieces, and this slot carries one of them.
    pub split: bool,
    /// It is a piece of an I/O in another slot.
    pub helper: bool,
    /// What the slot carries was cut again for narrower paths.
    pub recut: bool,
    /// How often all of it was begun anew, for what its volume had given up meanwhile (T13).
    pub again: u8,
    /// It is one of two copies of a read, or was and its buffer is still the engine's own.
    pub hedged: bool,
    /// It is no I/O: a copy beside one, what is left of one that was reported, or a probe.
    pub spare: bool,
    /// It is a probe: nobody is told of its end.
    pub probe: bool,
    /// A read of what another volume has as well.
    pub elsewhere: bool,
    /// How long it takes says nothing of its path.
    pub untimed: bool,
    /// Its caller has another way, so an error of the device is none of its path.
    pub replaceable: bool,
    /// A read that goes on when its volume is cut off.
    pub past_cut: bool,
    /// A change that does not wait for what the engine before had sent.
    pub past_gate: bool,
    /// When it was placed on the path that did not do it, ns; 0 once it has another, or none did
    /// fail it.
    pub lost_ns: u64,
    /// Time it waited without being on a path, ms.
    pub excused_ms: u32,
}

impl Course {
    /// It moves to another path; `lost`: because its own is.
    pub(super) fn moved(&mut self, lost: bool) {
        self.hops = self.hops.saturating_add(1);
        self.losses = self.losses.saturating_add(u8::from(lost || self.bereft));
    }
}

/// All slots of one core.
pub(super) struct Slots {
    table: Vec<Slot>,
    free: u32,
    /// Free ones for copies.
    spare: u32,
    /// Ended, to be reported in this order.
    ended: Queue,
    active: u32,
    /// Spare slots, free or not.
    spares: u32,
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

fn some(index: u32) -> Option<u32> {
    (index != NONE).then_some(index)
}

impl Slots {
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
            started_ns: 0,
            path: NO_PATH,
            issued_ns: 0,
            placed_ns: 0,
            ticket: Ticket::default(),
            until_ns: 0,
            association: 0,
            covers: Covered::default(),
            fence: None,
            course: Course::default(),
            done,
            expired: false,
            active: false,
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
        all.filter(move |slot| slot.active && !slot.course.spare && slot.io.volume == volume)
    }

    /// Lets the I/Os of a volume try a path again that they had failed on: it was connected anew.
    /// A read that another volume can do as well asks no path twice. Looks at all slots.
    pub(super) fn forget_failures(&mut self, volume: u16, path: PathIndex) {
        let of = |slot: &&mut Slot| slot.active && slot.io.volume == volume;
        let repeats = |slot: &&mut Slot| of(slot) && !slot.course.elsewhere;
        for slot in self.table.iter_mut().filter(repeats) {
            slot.course.failed &= !(1 << path.0);
        }
    }

    /// Takes a slot for `io`; `None`: all are in use, or ended and not yet reported.
    #[inline]
    pub(super) fn take(&mut self, io: &Io, now_ns: u64) -> Option<u32> {
        let index = some(self.free)?;
        let slot = &mut self.table[index as usize];
        self.free = slot.next;
        slot.io = *io;
        slot.started_ns = now_ns;
        slot.placed_ns = now_ns;
        slot.fence = None;
        slot.course = Course::default();
        slot.expired = false;
        slot.active = true;
        slot.token = slot.token.wrapping_add(1 << INDEX_BITS);
        self.active += 1;
        Some(index)
    }

    /// Takes a spare slot for a copy of the I/O in slot `of`, with a course of its own from now on;
    /// `None`: none is left.
    pub(super) fn take_spare_of(&mut self, of: u32, now_ns: u64) -> Option<u32> {
        let Slot {
            io,
            started_ns,
            course,
            ..
        } = self.table[of as usize];
        let index = self.take_spare(&io, now_ns)?;
        let slot = &mut self.table[index as usize];
        (slot.started_ns, slot.course) = (started_ns, course);
        slot.course.spare = true;
        Some(index)
    }

    /// Takes a spare slot for something that is no caller's I/O; `None`: none is left.
    pub(super) fn take_spare(&mut self, io: &Io, now_ns: u64) -> Option<u32> {
        let index = some(self.spare)?;
        let slot = &mut self.table[index as usize];
        self.spare = slot.next;
        (slot.io, slot.started_ns, slot.placed_ns) = (*io, now_ns, now_ns);
        slot.fence = None;
        slot.course = Course {
            spare: true,
            ..Course::default()
        };
        slot.expired = false;
        slot.active = true;
        slot.token = slot.token.wrapping_add(1 << INDEX_BITS);
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
        debug_assert!(slot.active && slot.course.spare);
        slot.active = false;
        slot.next = self.spare;
        self.spare = index;
    }

    /// Of an I/O and its copy, `index` is the I/O from now on, whichever it was, and `other` the
    /// spare one.
    pub(super) fn prefer(&mut self, index: u32, other: u32) {
        self.get_mut(index).course.spare = false;
        self.get_mut(other).course.spare = true;
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
        (slot.token == token && slot.active).then_some(index)
    }

    /// Puts a slot at the end of `lane`; `wait`: the path has no room for it.
    #[inline]
    pub(super) fn push(&mut self, lane: &mut Lane, index: u32, wait: bool) {
        let slot = &mut self.table[index as usize];
        slot.prev = lane.tail;
        slot.next = NONE;
        match some(lane.tail) {
            Some(tail) => self.table[tail as usize].next = index,
            None => lane.head = index,
        }
        lane.tail = index;
        if wait && lane.waiting == NONE {
            lane.waiting = index;
        }
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

    /// An I/O that is in no lane has ended; it is kept to be reported.
    #[inline]
    pub(super) fn end(&mut self, index: u32, outcome: Outcome, path: PathIndex, now_ns: u64) {
        let slot = &mut self.table[index as usize];
        debug_assert!(slot.active, "an I/O ends once");
        slot.done = IoDone {
            cookie: slot.io.cookie,
            outcome,
            path,
            latency_ns: now_ns.saturating_sub(slot.started_ns),
        };
        slot.active = false;
        self.active -= 1;
        self.ended.push(&mut self.table, index);
    }

    /// A slot whose end nobody is told of is free again.
    pub(super) fn free(&mut self, index: u32) {
        let slot = &mut self.table[index as usize];
        slot.active = false;
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
