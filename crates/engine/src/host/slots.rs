//! The table of I/Os in flight on one core, and the order of those on each path.
//!
//! # Contract
//! The I/O in a slot is in one [`Lane`] (of a path, or of those that wait); its links serve that. A
//! token names a slot *and* its use: a late answer to an earlier use finds nothing (T11). An I/O
//! that has ended leaves its slot at once; its end is kept until it is reported.
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
//! [`IO_MAX`](crate::limits::IO_MAX) slots, all allocated at construction. I/Os that have ended and
//! were not reported count as well.
use super::types::{Io, IoDone, IoOp, NO_PATH};
use crate::machine::Span;
use alloc::collections::VecDeque;
use block::order::Ticket as Place;
use block::{Covered, Key, SlotMap};
use policy::{PathIndex, Ticket};
use volume::Outcome;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Spare slots that probes of idle paths leave.
const SPARES_LEFT: u32 = 16;
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Placeholder of the tables beside this one.
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
    /// Its command has expired: what now fails has timed out.
    pub expired: bool,
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
    table: SlotMap<Slot>,
    /// Ends of I/Os, to be reported in this order.
    ended: VecDeque<IoDone>,
    /// I/Os that have not ended, and the most of them and of `ended` together.
    active: u32,
    count: u32,
    /// Spare slots in use, and the most of them.
    spares_used: u32,
    spares: u32,
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
    pub(super) fn new(count: u32, spares: u32) -> Self {
        Self {
            table: SlotMap::new(count + spares),
            ended: VecDeque::with_capacity(count as usize),
            active: 0,
            count,
            spares_used: 0,
            spares,
        }
    }

    /// I/Os that have not ended.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Slots that are neither free nor of an I/O: there should be none, ever.
    pub(super) fn leaked(&self) -> usize {
        self.table.len().saturating_sub(self.active) as usize
    }

    /// Those of a volume. Looks at all slots.
    pub(super) fn active_of(&self, volume: u16) -> impl Iterator<Item = &Slot> {
        let all = self.table.iter().map(|(_, slot)| slot);
        all.filter(move |slot| !slot.course.spare && slot.io.volume == volume)
    }

    /// Lets the I/Os of a volume try a path again that they had failed on: it was connected anew.
    /// A read that another volume can do as well asks no path twice. Looks at all slots.
    pub(super) fn forget_failures(&mut self, volume: u16, path: PathIndex) {
        let repeats = |slot: &&mut Slot| slot.io.volume == volume && !slot.course.elsewhere;
        for slot in self.table.values_mut().filter(repeats) {
            slot.course.failed &= !(1 << path.0);
        }
    }

    /// Takes a slot for `io`; `None`: all are in use, or ended and not yet reported.
    #[inline]
    pub(super) fn take(&mut self, io: &Io, now_ns: u64) -> Option<u32> {
        if self.active + self.ended.len() as u32 >= self.count {
            return None;
        }
        self.active += 1;
        Some(self.table.insert(Slot::new(io, now_ns)).index())
    }

    /// Takes a spare slot for a copy of the I/O in slot `of`, with a course of its own from now on;
    /// `None`: none is left.
    pub(super) fn take_spare_of(&mut self, of: u32, now_ns: u64) -> Option<u32> {
        let Slot {
            io,
            started_ns,
            course,
            ..
        } = self.table[of];
        let index = self.take_spare(&io, now_ns)?;
        let slot = &mut self.table[index];
        (slot.started_ns, slot.course) = (started_ns, course);
        slot.course.spare = true;
        Some(index)
    }

    /// Takes a spare slot for something that is no caller's I/O; `None`: none is left.
    pub(super) fn take_spare(&mut self, io: &Io, now_ns: u64) -> Option<u32> {
        if !self.has_spare() {
            return None;
        }
        self.spares_used += 1;
        let mut slot = Slot::new(io, now_ns);
        slot.course.spare = true;
        Some(self.table.insert(slot).index())
    }

    /// Whether there is a spare slot.
    pub(super) fn has_spare(&self) -> bool {
        self.spares_used < self.spares
    }

    /// Whether a spare slot may be taken for what is not urgent: a quarter of them, at most
    /// [`SPARES_LEFT`], stays for copies and for paths on probation.
    pub(super) fn has_spares(&self) -> bool {
        self.spares - self.spares_used > SPARES_LEFT.min(self.spares / 4)
    }

    /// Nothing is under way any more in a spare slot.
    pub(super) fn free_spare(&mut self, index: u32) {
        let slot = self.remove(index);
        assert!(slot.course.spare, "an I/O that is no copy ends as one");
        self.spares_used -= 1;
    }

    /// Of an I/O and its copy, `index` is the I/O from now on, whichever it was, and `other` the
    /// spare one.
    pub(super) fn prefer(&mut self, index: u32, other: u32) {
        self.get_mut(index).course.spare = false;
        self.get_mut(other).course.spare = true;
    }

    pub(super) fn get(&self, index: u32) -> &Slot {
        &self.table[index]
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.table[index]
    }

    fn remove(&mut self, index: u32) -> Slot {
        self.table.remove(self.table.key(index))
    }

    /// The name under which a path's queue knows the slot's present use.
    pub(super) fn token(&self, index: u32) -> u32 {
        token(self.table.key(index))
    }

    /// The I/O goes on under another token: an answer to the old one finds nothing (T11).
    pub(super) fn rename(&mut self, index: u32) {
        self.table.rename(index);
    }

    /// The slot of `token`, if its I/O has not ended.
    #[inline]
    pub(super) fn find(&self, of: u32) -> Option<u32> {
        let key = self.table.find(of & INDEX_MASK)?;
        (token(key) == of).then_some(key.index())
    }

    /// Puts a slot at the end of `lane`; `wait`: the path has no room for it.
    #[inline]
    pub(super) fn push(&mut self, lane: &mut Lane, index: u32, wait: bool) {
        let slot = &mut self.table[index];
        slot.prev = lane.tail;
        slot.next = NONE;
        match some(lane.tail) {
            Some(tail) => self.table[tail].next = index,
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
        lane.waiting = self.table[lane.waiting].next;
    }

    /// Takes a slot out of `lane`.
    #[inline]
    pub(super) fn unlink(&mut self, lane: &mut Lane, index: u32) {
        let Slot { prev, next, .. } = self.table[index];
        match some(prev) {
            Some(prev) => self.table[prev].next = next,
            None => lane.head = next,
        }
        match some(next) {
            Some(next) => self.table[next].prev = prev,
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
        some(self.table[index].next)
    }

    /// An I/O that is in no lane has ended; that is kept to be reported.
    #[inline]
    pub(super) fn end(&mut self, index: u32, outcome: Outcome, path: PathIndex, now_ns: u64) {
        let slot = self.remove(index);
        self.ended.push_back(IoDone {
            cookie: slot.io.cookie,
            outcome,
            path,
            latency_ns: now_ns.saturating_sub(slot.started_ns),
        });
        self.active -= 1;
    }

    /// Frees a slot whose end is not reported.
    pub(super) fn free(&mut self, index: u32) {
        self.remove(index);
        self.active -= 1;
    }

    /// The next I/O that ended.
    #[inline]
    pub(super) fn report(&mut self) -> Option<IoDone> {
        self.ended.pop_front()
    }
}

/// The low bits of the generation, above the slot: the width that queues and devices take.
fn token(key: Key) -> u32 {
    key.generation() << INDEX_BITS | key.index()
}

impl Slot {
    /// Submitted now, and in no lane.
    #[inline]
    fn new(io: &Io, now_ns: u64) -> Self {
        Self {
            io: *io,
            started_ns: now_ns,
            path: NO_PATH,
            issued_ns: 0,
            placed_ns: now_ns,
            ticket: Ticket::default(),
            until_ns: 0,
            association: 0,
            covers: Covered::default(),
            fence: None,
            course: Course::default(),
            expired: false,
            prev: NONE,
            next: NONE,
        }
    }
}

#[cfg(test)]
mod tests;
