//! Hedged reads: a read that is late gets a second copy on another path, and who is done first
//! counts.
//!
//! The policy says after how long a read is worth a look, whether it gets a copy, and where. Here
//! is when reads are looked at, whose memory the copies read into, and what becomes of both.
//!
//! # Contract
//! Only reads (T8), whole ones, on NVMe/TCP paths, of which nothing has arrived yet. Each of the
//! two has a buffer of the engine's own (T10): what the first copy gets is put elsewhere from then
//! on, which nothing has been put anywhere yet makes possible. The bytes of the one that is done
//! first are copied into the caller's buffer, in `turn`; nowhere else does the engine touch
//! payload. The I/O ends there, once. The other stays on its path, under a slot that is no I/O
//! any more, until its command has ended, or nobody refers to its memory: then its buffer is free,
//! and the policy learns of it as of any I/O (T41, T43). If one fails the other is the I/O, as if
//! there had been no copy; if that fails too, its caller's buffer is its own again and it goes the
//! way of every I/O that a path did not do.
//!
//! No timer per I/O: lanes are in order of age, so the first few of each are looked at, now and
//! then, while there are any. The core wakes for that only if nothing else wakes it.
//!
//! # Limits
//! Not hedged: pieces of larger reads, reads above [`BUFFER_MAX`](crate::limits::BUFFER_MAX), those
//! that wait for room on their path, those of which data has come, local devices. At most
//! [`HEDGES_MAX`] copies of a core, and what is left of them, at a time; want of slots or memory
//! is no copy (T6). A look goes through [`WALK_MAX`] I/Os of a path, one each [`FAR_NS`] through
//! [`WALK_FAR`]: what lies behind those waits until some have ended.
mod stats;

pub use stats::HedgeStats;

use super::counters::group;
use super::path::Role;
use super::slots::{IoState, Kind, Lane, Slots};
use super::split::carries;
use super::types::{IoOp, PathKind};
use super::{HostEngine, VACANT};
use crate::limits::{BUFFER_MAX, HEDGES_MAX};
use crate::machine::{Memory, Span};
use alloc::vec::Vec;
use canary::Bug;
use policy::{Hedge, PathIndex};
use volume::Outcome;

/// Least time between two looks, and until the first after a time without I/O, ns: what a read
/// over the quickest network takes.
const LOOK_NS_MIN: u64 = 50_000;
/// Most of it: a core wakes no more often than twice this for reads of which it knows when they
/// are late, and once more for each that outlives it.
const LOOK_NS_MAX: u64 = 1_000_000;
/// When to ask again where no path had room for a copy, or we had none, ns.
const FULL_NS: u64 = 1_000_000;
/// I/Os of a path that a look goes through, whether they are reads or not.
const WALK_MAX: u32 = 64;
/// The same of a look that goes far: those in front may be stuck and never get a copy. More than
/// targets take on a connection.
const WALK_FAR: u32 = 4096;
/// Least time between two looks that go far, ns: a hundred times what one takes.
const FAR_NS: u64 = 1_000_000;
/// Reads of a path that the policy is asked about in one look.
const ASKED_MAX: u32 = 8;
/// Reads of a path that are not late, and never were, after which those behind are believed not to
/// be.
const YOUNG_MAX: u32 = 2;

/// How a copy stands to the other.
#[derive(Clone, Copy, Debug)]
enum Stand {
    /// The other is under way as well, in this slot.
    With(u32),
    /// The other has failed.
    Alone,
    /// The other was done before, at this time, ns.
    Beaten(u64),
}

const UNASKED: u64 = 0;

/// What is known of a slot beside its I/O.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Of which use of the slot.
    token: u32,
    /// When to look again, ns; [`UNASKED`] in each attempt until the policy was asked.
    look_ns: u64,
    /// It was counted as without room.
    no_room: bool,
    /// While it is hedged: the caller's buffer.
    home: Span,
    stand: Stand,
    /// It is the second of the two.
    second: bool,
}

/// The copies of one core.
pub(super) struct Hedges {
    /// By slot; empty where there is no memory for copies.
    table: Vec<Pair>,
    /// Reads that are done, in buffers of the engine's own.
    done: Lane,
    /// When to look at the lanes, if the core is awake then; `u64::MAX` while there are no reads.
    look_ns: u64,
    /// When a look may go far again.
    far_ns: u64,
    /// The shortest time after which a read was worth a look; `u64::MAX`: no volume hedges.
    after_ns: u64,
    /// How long after an I/O was given to a path the core has to wake, whatever comes: for a look,
    /// where reads are hedged, or as the I/O expires.
    pub patience_ns: u64,
    /// The longest time until then: its path may be silent, or the I/O expires.
    unseen_ns_max: u64,
    /// For how long nobody had looked before this turn: what has ended may not have been seen.
    busy_ns: u64,
}

/// What a look found out about the next.
struct Next {
    /// Earliest read that will be worth it.
    at_ns: u64,
    /// Shortest time after which one is.
    after_ns: u64,
    /// There are reads.
    any: bool,
    /// More than [`WALK_MAX`] I/Os of a path are under way.
    long: bool,
    /// Those that a look didn't come to.
    cut: bool,
}

/// Spare slots beside `slots`, where there is memory to use them with; all have 16-bit numbers.
pub(super) fn spare(slots: u32, memory: Span) -> u32 {
    match memory.len {
        0 => 0,
        _ => HEDGES_MAX.min(crate::limits::IO_MAX - slots),
    }
}

impl Hedges {
    /// For so many slots in all, `spare` of them for copies.
    pub(super) fn new(slots: u32, spare: u32, unseen_ns_max: u64) -> Self {
        let pair = |index| Pair {
            token: index,
            look_ns: UNASKED,
            no_room: false,
            home: Span::default(),
            stand: Stand::Alone,
            second: false,
        };
        let count = if spare == 0 { 0 } else { slots };
        let mut it = Self {
            table: (0..count).map(pair).collect(),
            done: Lane::EMPTY,
            look_ns: u64::MAX,
            far_ns: 0,
            after_ns: u64::MAX,
            patience_ns: unseen_ns_max,
            unseen_ns_max,
            busy_ns: 0,
        };
        it.look_after(if spare == 0 { u64::MAX } else { LOOK_NS_MIN });
        it
    }

    /// Whether any volume hedges, for all that is known.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.after_ns < u64::MAX
    }

    /// No I/O goes without a look for longer than this, ns.
    pub(super) fn set_unseen_max(&mut self, unseen_ns_max: u64) {
        self.unseen_ns_max = unseen_ns_max;
        self.look_after(self.after_ns);
    }

    fn look_after(&mut self, after_ns: u64) {
        self.after_ns = after_ns;
        self.patience_ns = match after_ns {
            u64::MAX => self.unseen_ns_max,
            // Twice, as while I/O ends the core is awake anyway.
            _ => (2 * after_ns).min(self.unseen_ns_max / 2),
        };
    }

    /// Nobody looked for so long.
    #[inline]
    pub(super) fn looked(&mut self, busy_ns: u64) {
        self.busy_ns = busy_ns;
    }

    /// Whether the copy in this slot is one that nobody waits for any more.
    #[cold]
    pub(super) fn is_beaten(&self, slots: &Slots, index: u32) -> bool {
        let beaten = |pair: &Pair| matches!(pair.stand, Stand::Beaten(_));
        slots.get(index).hedged && self.table.get(index as usize).is_some_and(beaten)
    }

    fn of(&mut self, index: u32) -> &mut Pair {
        &mut self.table[index as usize]
    }
}

impl HostEngine {
    /// What became of second copies of reads of a volume.
    pub fn hedge_stats(&self, volume: u16) -> HedgeStats {
        let volume = self.volumes.get(usize::from(volume));
        volume.map_or_else(HedgeStats::default, |volume| volume.hedged)
    }

    /// Policies, paths or wishes have changed.
    pub(super) fn rouse_hedges(&mut self) {
        if !self.hedges.table.is_empty() {
            self.hedges.look_after(LOOK_NS_MIN);
            self.timers.wake_by(0);
        }
    }

    /// Something has come over the network, and the core is awake: ends the reads that are done,
    /// and looks for late ones if it is time.
    #[inline]
    pub(super) fn hedge(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        if !self.hedges.done.is_empty() {
            self.hand_in(memory, now_ns);
        }
        if now_ns >= self.hedges.look_ns {
            self.look(now_ns);
        } else if self.slots.active() == 0 && self.hedges.is_on() {
            self.timers.set_inspection(u64::MAX); // nothing is left to look at
        }
    }

    /// Copies what was read to where it was asked for.
    #[cold]
    fn hand_in(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        while let Some(index) = self.hedges.done.front() {
            self.slots.unlink(&mut self.hedges.done, index);
            let home = self.hedges.of(index).home;
            let slot = self.slots.get_mut(index);
            let span = core::mem::replace(&mut slot.io.span, home);
            slot.hedged = false;
            let path = slot.path;
            memory.copy(span, home);
            self.scratch.give_back(span);
            self.end(index, Outcome::Done, path, now_ns);
        }
    }

    /// Looks for late reads in all volumes.
    #[cold]
    pub(super) fn look(&mut self, now_ns: u64) {
        let mut next = Next {
            at_ns: u64::MAX,
            after_ns: u64::MAX,
            any: false,
            long: false,
            cut: false,
        };
        let mut hedging = false;
        for volume in 0..self.volumes.len() {
            if !self.volumes[volume].head.hedges() {
                continue;
            }
            hedging = true;
            for place in 0..self.volumes[volume].places.len() {
                let number = self.volumes[volume].places[place];
                if number != VACANT {
                    self.look_at(number, now_ns, &mut next);
                }
            }
        }
        let hedges = &mut self.hedges;
        if next.long && now_ns >= hedges.far_ns {
            hedges.far_ns = now_ns + FAR_NS;
        }
        if next.cut {
            (next.any, next.at_ns) = (true, next.at_ns.min(hedges.far_ns));
        }
        let after_ns = match (hedging, next.after_ns) {
            (false, _) => u64::MAX,
            (true, u64::MAX) => hedges.after_ns.min(LOOK_NS_MAX),
            (true, after_ns) => after_ns.clamp(LOOK_NS_MIN, LOOK_NS_MAX),
        };
        hedges.look_after(after_ns);
        let at_ns = next.at_ns.max(now_ns + LOOK_NS_MIN);
        hedges.look_ns = match next.any {
            true => at_ns.min(now_ns.saturating_add(after_ns)),
            false => u64::MAX, // until there is one
        };
        if self.slots.active() > 0 {
            // What was given to a path since the last look expires after that.
            let expiry_ns = now_ns + hedges.unseen_ns_max - hedges.patience_ns;
            self.timers.expire_by(expiry_ns);
        }
        // Reads that are given to a path from now on see to it themselves.
        self.timers.set_inspection(at_ns.saturating_add(after_ns));
    }

    /// Looks at the oldest reads of a path.
    fn look_at(&mut self, number: usize, now_ns: u64, next: &mut Next) {
        let path = &self.paths[number];
        if path.queue.is_none() || !path.is_live() {
            return;
        }
        let (mut asked, mut young) = (0, 0);
        let waiting = path.lane.waiting();
        let mut oldest = path.lane.oldest_issued();
        for walked in 0..WALK_FAR {
            let Some(index) = oldest.filter(|_| oldest != waiting) else {
                return; // those that wait for room are not late on their path
            };
            next.long |= walked == WALK_MAX;
            if walked == WALK_MAX && now_ns < self.hedges.far_ns {
                break;
            }
            oldest = self.slots.next(index);
            let Some((look_ns, fresh)) = self.look_of(number, index, next) else {
                continue;
            };
            next.any = true;
            if look_ns > now_ns {
                next.at_ns = next.at_ns.min(look_ns);
                young += u32::from(fresh);
            } else {
                let again_ns = self.consider(number, index, now_ns);
                self.hedges.of(index).look_ns = again_ns;
                next.at_ns = next.at_ns.min(again_ns);
                asked += 1;
            }
            if asked == ASKED_MAX {
                next.at_ns = now_ns; // the next may be late as well
            }
            if asked == ASKED_MAX || young == YOUNG_MAX {
                return;
            }
        }
        next.cut = true;
    }

    /// When an I/O on a path is worth a look, and if it is the first in this attempt; `None`:
    /// it never is.
    fn look_of(&mut self, number: usize, index: u32, next: &mut Next) -> Option<(u64, bool)> {
        let (slot, token) = (self.slots.get(index), self.slots.token(index));
        let whole = slot.kind == Kind::Whole && !slot.recut;
        if slot.io.op != IoOp::Read || slot.hedged || !whole || slot.io.length > BUFFER_MAX {
            return None;
        }
        let pair = self.hedges.table[index as usize];
        if pair.token == token && pair.look_ns != UNASKED {
            return (pair.look_ns < u64::MAX).then_some((pair.look_ns, false));
        }
        let path = &self.paths[number];
        let head = &self.volumes[usize::from(path.volume)].head;
        let after_ns = head.look_after_ns(path.index, &slot.ticket)?;
        next.after_ns = next.after_ns.min(after_ns);
        Some((slot.placed_ns.saturating_add(after_ns), true))
    }

    /// A read is late: perhaps it gets a copy. When to look again, ns.
    fn consider(&mut self, number: usize, index: u32, now_ns: u64) -> u64 {
        let (slot, token) = (self.slots.get(index), self.slots.token(index));
        let (ticket, length) = (slot.ticket, slot.io.length);
        let age_ns = now_ns.saturating_sub(slot.placed_ns);
        let sure_ns = age_ns.saturating_sub(self.hedges.busy_ns);
        let path = &self.paths[number];
        let (volume, from) = (usize::from(path.volume), path.index);
        let pair = self.hedges.of(index);
        if pair.token != token {
            (pair.token, pair.no_room) = (token, false);
            self.volumes[volume].hedged.looked += 1;
        }
        let queue = self.paths[number].queue.as_ref();
        if !queue.is_some_and(|queue| queue.awaits(token)) {
            return u64::MAX;
        }
        let able = self.able_to_copy(index);
        if able == 0 {
            return now_ns + FULL_NS;
        }
        let buffers = self.two_buffers(length);
        let request = self.request(index, now_ns);
        let allow = |path: PathIndex| able >> path.0 & 1 == 1;
        let head = &mut self.volumes[volume].head;
        let Some(buffers) = buffers else {
            if head.would_hedge_among(&request, from, &ticket, sure_ns, allow) {
                self.without_room(volume, index);
            }
            return now_ns + FULL_NS;
        };
        let again_ns = match head.hedge_among(&request, from, &ticket, sure_ns, allow) {
            Hedge::Send(other) => {
                self.send_copy(index, other, buffers, now_ns);
                return u64::MAX;
            }
            Hedge::Again(ns) => now_ns.saturating_add(ns),
            Hedge::No => u64::MAX,
        };
        for buffer in buffers {
            self.scratch.give_back(buffer);
        }
        again_ns
    }

    /// A read would have got a copy, had there been room for it.
    fn without_room(&mut self, volume: usize, index: u32) {
        let pair = self.hedges.of(index);
        self.volumes[volume].hedged.no_room += u64::from(!pair.no_room);
        pair.no_room = true;
    }

    /// A new attempt of an I/O begins, perhaps on another path.
    pub(super) fn look_anew(&mut self, index: u32) {
        if let Some(pair) = self.hedges.table.get_mut(index as usize) {
            pair.look_ns = UNASKED;
        }
    }

    /// The paths that could carry a copy of a read at once, as bits.
    fn able_to_copy(&self, index: u32) -> u64 {
        let io = &self.slots.get(index).io;
        let volume = &self.volumes[usize::from(io.volume)];
        let able = volume.head.among(|limits| carries(limits, io));
        let roomy = |index: &PathIndex| {
            let path = &self.paths[volume.place(*index)];
            let tcp = matches!(path.kind, PathKind::NvmeTcp { .. });
            let room = path.queue.as_ref().is_some_and(|it| it.has_room());
            tcp && room && path.is_live() && path.lane.waiting().is_none()
        };
        let there = self.paths_of(io.volume).map(|path| path.index);
        there
            .filter(roomy)
            .fold(0, |bits, path| bits | able & 1 << path.0)
    }

    /// Buffers for both copies, if there is a slot for the second as well.
    fn two_buffers(&mut self, length: u32) -> Option<[Span; 2]> {
        if !self.slots.has_spare() {
            return None;
        }
        let first = self.scratch.take(length)?;
        let Some(second) = self.scratch.take(length) else {
            self.scratch.give_back(first);
            return None;
        };
        Some([first, second])
    }

    /// Sends a copy of the read in slot `index`, for which the policy has chosen `other`.
    fn send_copy(&mut self, index: u32, other: PathIndex, buffers: [Span; 2], now_ns: u64) {
        let volume = usize::from(self.slots.get(index).io.volume);
        let ticket = self.volumes[volume].head.ticket();
        let number = self.volumes[volume].place(other);
        let copy = self.slots.take_copy_of(index, now_ns);
        let Some(copy) = copy.filter(|&copy| {
            let slot = self.slots.get_mut(copy);
            (slot.ticket, slot.path, slot.io.span) = (ticket, other, buffers[1]);
            slot.hedged = true;
            self.issue(number, copy, now_ns)
        }) else {
            // The queue has just failed: it was never sent.
            copy.inspect(|&copy| self.slots.free_spare(copy));
            for buffer in buffers {
                self.scratch.give_back(buffer);
            }
            let head = &mut self.volumes[volume].head;
            head.dropped(other, group(IoOp::Read), now_ns, ticket);
            return;
        };
        self.slots
            .push_on_path(&mut self.paths[number].lane, copy, false);
        let slot = self.slots.get_mut(index);
        slot.hedged = true;
        slot.watched = true;
        let home = core::mem::replace(&mut slot.io.span, buffers[0]);
        for (one, mate, second) in [(index, copy, false), (copy, index, true)] {
            *self.hedges.of(one) = Pair {
                token: self.slots.token(one),
                look_ns: u64::MAX,
                no_room: false,
                home,
                stand: Stand::With(mate),
                second,
            };
        }
        self.volumes[volume].hedged.sent += 1;
        self.paths[number].counters.copies += 1;
        self.touch(number, Role::Io);
    }

    /// One of two copies has ended; true: it is a read like any other again, and failed.
    pub(super) fn copy_ended(
        &mut self,
        number: usize,
        index: u32,
        outcome: Outcome,
        now_ns: u64,
    ) -> bool {
        let Pair {
            home,
            stand,
            second,
            ..
        } = *self.hedges.of(index);
        let volume = usize::from(self.slots.get(index).io.volume);
        let stats = &mut self.volumes[volume].hedged;
        match (stand, outcome.is_done()) {
            (Stand::Beaten(_), _) if canary::has(Bug::DoubleEnd) => {
                self.slots.end(index, outcome, PathIndex(0), now_ns);
            }
            (Stand::Beaten(since_ns), _) => {
                if !second {
                    stats.gained_ns += now_ns.saturating_sub(since_ns);
                }
                self.forget_copy(index);
            }
            (Stand::With(mate), true) => {
                let (won, lost) = (u64::from(second), u64::from(!second));
                (stats.won, stats.lost) = (stats.won + won, stats.lost + lost);
                self.slots.prefer(index, mate);
                self.hedges.of(mate).stand = Stand::Beaten(now_ns);
                self.copy_done(number, index);
            }
            (Stand::With(mate), false) => {
                stats.failed += u64::from(second);
                self.slots.prefer(mate, index);
                self.hedges.of(mate).stand = Stand::Alone;
                let history = &mut self.slots.get_mut(mate).history;
                history.hops = history.hops.saturating_add(1);
                self.forget_copy(index);
            }
            (Stand::Alone, true) => {
                stats.rescued += u64::from(second);
                self.copy_done(number, index);
            }
            (Stand::Alone, false) => {
                stats.failed += u64::from(second);
                let slot = self.slots.get_mut(index);
                slot.hedged = false;
                let span = core::mem::replace(&mut slot.io.span, home);
                self.scratch.give_back(span);
                return true;
            }
        }
        false
    }

    /// A read is done; its caller gets the bytes at the end of the turn.
    fn copy_done(&mut self, number: usize, index: u32) {
        self.slots
            .push(&mut self.hedges.done, index, IoState::Copying);
        // For the next turn.
        self.touch(number, Role::Io);
    }

    /// Nobody refers any more to a copy that counts for nothing.
    fn forget_copy(&mut self, index: u32) {
        self.explained_all(index);
        let span = self.slots.get(index).io.span;
        self.scratch.give_back(span);
        self.slots.free_spare(index);
    }
}
