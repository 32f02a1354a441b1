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

use super::Multipath;
use super::connections::Role;
use super::counters::group;
use super::io::VolumeIo;
use super::io_table::{IoState, IoTable, Kind, Lane, carries};
use super::path::Path;
use super::types::{IoOp, PathKind};
use super::volumes::Volume;
use crate::limits::{BUFFER_MAX, HEDGES_MAX};
use crate::machine::{Memory, Span};
use crate::scratch::Scratch;
use alloc::vec::Vec;
use canary::Bug;
use multipath::Outcome;
use policy::{Hedge, PathIndex};

/// Least time between two looks, and until the first after a time without I/O, ns: what a read
/// over the quickest network takes.
const INSPECT_NS_MIN: u64 = 50_000;
/// Most of it: a core wakes no more often than twice this for reads of which it knows when they
/// are late, and once more for each that outlives it.
const INSPECT_NS_MAX: u64 = 1_000_000;
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

/// State of a slot beside its I/O.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Of which use of the slot.
    token: u32,
    /// When to look again, ns; [`UNASKED`] in each attempt until the policy was asked.
    inspect_ns: u64,
    /// It was counted as without room.
    no_room: bool,
    /// While it is hedged: the caller's buffer.
    home: Span,
    stand: Stand,
    /// It is the second of the two.
    second: bool,
}

/// Second copies of late reads of one core: which get one, and what becomes of both.
pub(super) struct Hedger {
    /// By slot; empty where there is no memory for copies.
    table: Vec<Pair>,
    /// Reads that are done, in buffers of the engine's own.
    done: Lane,
    /// When to look at the lanes, if the core is awake then; `u64::MAX` while there are no reads.
    inspect_ns: u64,
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

/// I/Os that are inspected: all of a core that are on paths.
pub(super) struct Inspected<'a> {
    pub ios: &'a mut IoTable,
    pub volumes: &'a mut [Volume],
    pub scratch: &'a mut Scratch,
}

/// An inspection of the oldest reads of all paths: how far it is, and when the next one is due. It
/// is interrupted for each copy that is to be sent.
pub(super) struct Inspection {
    now_ns: u64,
    /// The next path is the one with this index, if there is one, of this volume.
    volume: usize,
    next: u8,
    /// The path that is being inspected.
    walk: Option<Walk>,
    /// Some volume hedges.
    is_hedging: bool,
    /// The earliest time at which a read will be worth an inspection, ns.
    at_ns: u64,
    /// The shortest time after which one is, ns.
    after_ns: u64,
    /// There are reads.
    any: bool,
    /// How far it went on the path with the most I/Os.
    reach: Reach,
}

/// How far an inspection went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// To all I/Os, at most [`WALK_MAX`] of each path.
    All,
    /// Further on some path.
    Far,
    /// Not to all I/Os.
    Cut,
}

/// Where the inspection of one path is.
struct Walk {
    volume: usize,
    at: PathIndex,
    /// The next I/O, and the first that was not given to the path's queue.
    next: Option<u32>,
    waiting: Option<u32>,
    /// I/Os so far.
    walked: u32,
    /// Of those, reads of which the policy was asked.
    asked: u32,
    /// Of those, reads that are not late, and never were.
    young: u32,
}

/// A copy that is to be sent: the policy has chosen its path, and its memory is reserved.
pub(super) struct LateRead {
    /// Slot of the read.
    pub index: u32,
    pub other: PathIndex,
    /// For the read itself, and for the copy.
    pub buffers: [Span; 2],
}

/// Meaning of the end of one of two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    /// The read is done; its caller gets the bytes at the end of the turn.
    Done,
    /// The other one is the read, or was done before.
    Forgotten,
    /// It is a read like any other again, and failed.
    Failed,
}

impl Inspection {
    pub(super) fn begin(now_ns: u64) -> Self {
        Self {
            now_ns,
            volume: 0,
            next: 0,
            walk: None,
            is_hedging: false,
            at_ns: u64::MAX,
            after_ns: u64::MAX,
            any: false,
            reach: Reach::All,
        }
    }

    /// Goes on to the next path with reads that may be late; false: there is none.
    fn next_path(&mut self, on: &Inspected<'_>) -> bool {
        while let Some(volume) = on.volumes.get(self.volume) {
            let hedges = volume.head.hedges();
            self.is_hedging |= hedges;
            let at = PathIndex(self.next);
            if !hedges || self.next >= volume.paths.end() {
                self.volume += 1;
                self.next = 0;
                continue;
            }
            self.next += 1;
            let path = volume.paths.get(at);
            if let Some(path) = path.filter(|it| it.session.queue.is_some() && it.is_live()) {
                self.walk = Some(Walk {
                    volume: self.volume,
                    at,
                    next: path.lane.oldest_issued(),
                    waiting: path.lane.waiting(),
                    walked: 0,
                    asked: 0,
                    young: 0,
                });
                return true;
            }
        }
        false
    }
}

/// Spare slots beside `slots`, where there is memory to use them with; all have 16-bit numbers.
pub(super) fn spare(slots: u32, memory: Span) -> u32 {
    match memory.len {
        0 => 0,
        _ => HEDGES_MAX.min(crate::limits::IO_MAX - slots),
    }
}

impl Hedger {
    /// For so many slots in all, `spare` of them for copies.
    pub(super) fn new(slots: u32, spare: u32, unseen_ns_max: u64) -> Self {
        let pair = |index| Pair {
            token: index,
            inspect_ns: UNASKED,
            no_room: false,
            home: Span::default(),
            stand: Stand::Alone,
            second: false,
        };
        let count = if spare == 0 { 0 } else { slots };
        let mut it = Self {
            table: (0..count).map(pair).collect(),
            done: Lane::EMPTY,
            inspect_ns: u64::MAX,
            far_ns: 0,
            after_ns: u64::MAX,
            patience_ns: unseen_ns_max,
            unseen_ns_max,
            busy_ns: 0,
        };
        it.set_period(if spare == 0 { u64::MAX } else { INSPECT_NS_MIN });
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
        self.set_period(self.after_ns);
    }

    /// The longest time that an I/O may go without an answer before its path is looked at, ns.
    pub(super) fn unseen_ns_max(&self) -> u64 {
        self.unseen_ns_max
    }

    fn set_period(&mut self, after_ns: u64) {
        self.after_ns = after_ns;
        self.patience_ns = match after_ns {
            u64::MAX => self.unseen_ns_max,
            // Twice, as while I/O ends the core is awake anyway.
            _ => (2 * after_ns).min(self.unseen_ns_max / 2),
        };
    }

    /// The core did not look for so long: what has ended may not have been seen.
    #[inline]
    pub(super) fn set_busy(&mut self, busy_ns: u64) {
        self.busy_ns = busy_ns;
    }

    /// Policies, paths or limits have changed: inspects soon. False: copies have no memory.
    pub(super) fn rouse(&mut self) -> bool {
        let can = !self.table.is_empty();
        if can {
            self.set_period(INSPECT_NS_MIN);
        }
        can
    }

    /// Whether it is time for an inspection.
    #[inline]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.inspect_ns
    }

    /// Whether reads are done whose bytes are to be copied.
    #[inline]
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How long I/O that was just given to a path may stay unseen beyond the next inspection, ns.
    pub(super) fn unseen_ns_left(&self) -> u64 {
        self.unseen_ns_max - self.patience_ns
    }

    /// Whether the copy in this slot is one whose mate was done before.
    #[cold]
    pub(super) fn is_beaten(&self, ios: &IoTable, index: u32) -> bool {
        let beaten = |pair: &Pair| matches!(pair.stand, Stand::Beaten(_));
        ios.get(index).hedged && self.table.get(index as usize).is_some_and(beaten)
    }

    fn of(&mut self, index: u32) -> &mut Pair {
        &mut self.table[index as usize]
    }

    /// A new attempt of an I/O begins, perhaps on another path.
    #[inline]
    pub(super) fn begin_attempt(&mut self, index: u32) {
        if let Some(pair) = self.table.get_mut(index as usize) {
            pair.inspect_ns = UNASKED;
        }
    }

    /// Copies the next read that is done to where it was asked for. Returns its slot, and the path
    /// that did it: the I/O ends.
    #[cold]
    pub(super) fn next_done(
        &mut self,
        ios: &mut IoTable,
        scratch: &mut Scratch,
        memory: &mut dyn Memory,
    ) -> Option<(u32, PathIndex)> {
        let index = self.done.front()?;
        ios.unlink(&mut self.done, index);
        let home = self.of(index).home;
        let slot = ios.get_mut(index);
        let span = core::mem::replace(&mut slot.io.span, home);
        slot.hedged = false;
        memory.copy(span, home);
        scratch.give_back(span);
        Some((index, slot.path))
    }

    /// Goes on with an inspection. Returns the next copy that is to be sent, at once; `None`: it is
    /// over.
    #[cold]
    pub(super) fn next_copy(
        &mut self,
        it: &mut Inspection,
        mut on: Inspected<'_>,
    ) -> Option<LateRead> {
        while it.walk.is_some() || it.next_path(&on) {
            if let Some(copy) = self.walk_on(it, &mut on) {
                return Some(copy);
            }
        }
        None
    }

    /// Ends an inspection. Returns when the next one is due if nothing else wakes the core, ns.
    pub(super) fn end_inspection(&mut self, it: &Inspection) -> u64 {
        let now_ns = it.now_ns;
        if it.reach >= Reach::Far && now_ns >= self.far_ns {
            self.far_ns = now_ns + FAR_NS;
        }
        let mut at_ns = it.at_ns;
        if it.reach == Reach::Cut {
            at_ns = at_ns.min(self.far_ns);
        }
        let after_ns = match (it.is_hedging, it.after_ns) {
            (false, _) => u64::MAX,
            (true, u64::MAX) => self.after_ns.min(INSPECT_NS_MAX),
            (true, after_ns) => after_ns.clamp(INSPECT_NS_MIN, INSPECT_NS_MAX),
        };
        self.set_period(after_ns);
        let at_ns = at_ns.max(now_ns + INSPECT_NS_MIN);
        self.inspect_ns = match it.any || it.reach == Reach::Cut {
            true => at_ns.min(now_ns.saturating_add(after_ns)),
            false => u64::MAX, // until there is one
        };
        at_ns.saturating_add(after_ns)
    }

    /// Inspects the oldest reads of a path, as far as the next copy that is to be sent; `None`:
    /// all, or as many as one inspection does.
    fn walk_on(&mut self, it: &mut Inspection, on: &mut Inspected<'_>) -> Option<LateRead> {
        let mut walk = it.walk.take()?;
        while walk.walked < WALK_FAR {
            // Those that wait for room are not late on their path.
            let index = walk.next.filter(|_| walk.next != walk.waiting)?;
            if walk.walked == WALK_MAX {
                it.reach = it.reach.max(Reach::Far);
                if it.now_ns < self.far_ns {
                    break;
                }
            }
            walk.next = on.ios.next(index);
            walk.walked += 1;
            let Some((inspect_ns, fresh)) = self.plan_of(&walk, index, it, on) else {
                continue; // never worth an inspection
            };
            it.any = true;
            let mut copy = None;
            if inspect_ns > it.now_ns {
                it.at_ns = it.at_ns.min(inspect_ns);
                walk.young += u32::from(fresh);
            } else {
                let again_ns = match self.consider(&walk, index, it.now_ns, on) {
                    Ok(late) => {
                        copy = Some(late);
                        u64::MAX
                    }
                    Err(again_ns) => again_ns,
                };
                self.of(index).inspect_ns = again_ns;
                it.at_ns = it.at_ns.min(again_ns);
                walk.asked += 1;
            }
            if walk.asked == ASKED_MAX {
                it.at_ns = it.now_ns; // the next may be late as well
            }
            if walk.asked == ASKED_MAX || walk.young == YOUNG_MAX {
                return copy;
            }
            if copy.is_some() {
                it.walk = Some(walk);
                return copy;
            }
        }
        it.reach = Reach::Cut;
        None
    }

    /// When an I/O on a path is worth an inspection, and whether it is the first in this attempt;
    /// `None`: it never is.
    fn plan_of(
        &mut self,
        walk: &Walk,
        index: u32,
        it: &mut Inspection,
        on: &Inspected<'_>,
    ) -> Option<(u64, bool)> {
        let (slot, token) = (on.ios.get(index), on.ios.token(index));
        let whole = slot.kind == Kind::Whole && !slot.recut;
        if slot.io.op != IoOp::Read || slot.hedged || !whole || slot.io.length > BUFFER_MAX {
            return None;
        }
        let pair = self.table[index as usize];
        if pair.token == token && pair.inspect_ns != UNASKED {
            return (pair.inspect_ns < u64::MAX).then_some((pair.inspect_ns, false));
        }
        let head = &on.volumes[walk.volume].head;
        let after_ns = head.look_after_ns(walk.at, &slot.ticket)?;
        it.after_ns = it.after_ns.min(after_ns);
        Some((slot.placed_ns.saturating_add(after_ns), true))
    }

    /// A read is late: it gets a copy, or is inspected again at the time returned as error, ns.
    fn consider(
        &mut self,
        walk: &Walk,
        index: u32,
        now_ns: u64,
        on: &mut Inspected<'_>,
    ) -> Result<LateRead, u64> {
        let (slot, token) = (on.ios.get(index), on.ios.token(index));
        let (ticket, length) = (slot.ticket, slot.io.length);
        let age_ns = now_ns.saturating_sub(slot.placed_ns);
        let sure_ns = age_ns.saturating_sub(self.busy_ns);
        let Walk { volume, at, .. } = *walk;
        let pair = self.of(index);
        if pair.token != token {
            (pair.token, pair.no_room) = (token, false);
            on.volumes[volume].hedged.looked += 1;
        }
        let queue = on.volumes[volume].paths[at].session.queue.as_ref();
        if !queue.is_some_and(|queue| queue.awaits(token)) {
            return Err(u64::MAX);
        }
        let able = able_to_copy(index, on);
        if able == 0 {
            return Err(now_ns + FULL_NS);
        }
        let buffers = two_buffers(length, on);
        let request = on.ios.get(index).request(now_ns);
        let allow = |path: PathIndex| able >> path.0 & 1 == 1;
        let it = &mut on.volumes[volume];
        let Some(buffers) = buffers else {
            let head = &mut it.head;
            if head.would_hedge_among(&request, at, &ticket, sure_ns, allow) {
                let pair = self.of(index);
                it.hedged.no_room += u64::from(!pair.no_room);
                pair.no_room = true;
            }
            return Err(now_ns + FULL_NS);
        };
        let chosen = it.head.hedge_among(&request, at, &ticket, sure_ns, allow);
        let again_ns = match chosen {
            Hedge::Send(other) => {
                return Ok(LateRead {
                    index,
                    other,
                    buffers,
                });
            }
            Hedge::Again(ns) => now_ns.saturating_add(ns),
            Hedge::No => u64::MAX,
        };
        for buffer in buffers {
            on.scratch.give_back(buffer);
        }
        Err(again_ns)
    }

    /// The read in slot `index` and the copy in slot `copy` are under way; `home` is the caller's
    /// buffer.
    fn pair_up(&mut self, ios: &IoTable, index: u32, copy: u32, home: Span) {
        for (one, mate, second) in [(index, copy, false), (copy, index, true)] {
            *self.of(one) = Pair {
                token: ios.token(one),
                inspect_ns: u64::MAX,
                no_room: false,
                home,
                stand: Stand::With(mate),
                second,
            };
        }
    }

    /// One of two copies of a read of `volume` has ended.
    pub(super) fn end_copy(
        &mut self,
        ios: &mut IoTable,
        scratch: &mut Scratch,
        volume: &mut Volume,
        index: u32,
        outcome: Outcome,
        now_ns: u64,
    ) -> CopyEnd {
        let Pair {
            home,
            stand,
            second,
            ..
        } = *self.of(index);
        let stats = &mut volume.hedged;
        match (stand, outcome.is_done()) {
            (Stand::Beaten(_), _) if canary::has(Bug::DoubleEnd) => {
                ios.end(index, outcome, PathIndex(0), now_ns);
                return CopyEnd::Forgotten;
            }
            (Stand::Beaten(since_ns), _) => {
                if !second {
                    stats.gained_ns += now_ns.saturating_sub(since_ns);
                }
            }
            (Stand::With(mate), true) => {
                let (won, lost) = (u64::from(second), u64::from(!second));
                (stats.won, stats.lost) = (stats.won + won, stats.lost + lost);
                ios.prefer(index, mate);
                self.of(mate).stand = Stand::Beaten(now_ns);
                ios.push(&mut self.done, index, IoState::Copying);
                return CopyEnd::Done;
            }
            (Stand::With(mate), false) => {
                stats.failed += u64::from(second);
                ios.prefer(mate, index);
                self.of(mate).stand = Stand::Alone;
                let history = &mut ios.get_mut(mate).history;
                history.hops = history.hops.saturating_add(1);
            }
            (Stand::Alone, true) => {
                stats.rescued += u64::from(second);
                ios.push(&mut self.done, index, IoState::Copying);
                return CopyEnd::Done;
            }
            (Stand::Alone, false) => {
                stats.failed += u64::from(second);
                let slot = ios.get_mut(index);
                slot.hedged = false;
                let span = core::mem::replace(&mut slot.io.span, home);
                scratch.give_back(span);
                return CopyEnd::Failed;
            }
        }
        // Nothing refers to a copy that counts for nothing.
        volume.forget_explained(ios.token(index));
        scratch.give_back(ios.get(index).io.span);
        ios.free_spare(index);
        CopyEnd::Forgotten
    }
}

/// The paths that could carry a copy of a read at once, as bits.
fn able_to_copy(index: u32, on: &Inspected<'_>) -> u64 {
    let io = &on.ios.get(index).io;
    let volume = &on.volumes[usize::from(io.volume)];
    let able = volume.head.among(|limits| carries(limits, io));
    let has_room = |path: &&Path| {
        let tcp = matches!(path.kind, PathKind::NvmeTcp { .. });
        let room = path.session.queue.as_ref().is_some_and(|it| it.has_room());
        tcp && room && path.is_live() && path.lane.waiting().is_none()
    };
    let paths = volume.paths.iter();
    paths
        .filter(has_room)
        .fold(0, |bits, path| bits | able & 1 << path.index.0)
}

/// Buffers for both copies, if there is a slot for the second as well.
fn two_buffers(length: u32, on: &mut Inspected<'_>) -> Option<[Span; 2]> {
    if !on.ios.has_spare() {
        return None;
    }
    let first = on.scratch.take(length)?;
    let Some(second) = on.scratch.take(length) else {
        on.scratch.give_back(first);
        return None;
    };
    Some([first, second])
}

impl VolumeIo<'_> {
    /// Sends the copy of a late read.
    fn send_copy(&mut self, late: LateRead, now_ns: u64) {
        let LateRead {
            index,
            other,
            buffers,
        } = late;
        let ticket = self.volume.head.ticket();
        let copy = self.on.ios.take_copy_of(index, now_ns);
        let Some(copy) = copy.filter(|&copy| {
            let slot = self.on.ios.get_mut(copy);
            (slot.ticket, slot.path, slot.io.span) = (ticket, other, buffers[1]);
            slot.hedged = true;
            self.issue(other, copy, now_ns)
        }) else {
            // The queue has just failed: it was never sent.
            copy.inspect(|&copy| self.on.ios.free_spare(copy));
            for buffer in buffers {
                self.on.scratch.give_back(buffer);
            }
            let head = &mut self.volume.head;
            head.dropped(other, group(IoOp::Read), now_ns, ticket);
            return;
        };
        let path = &mut self.volume.paths[other];
        self.on.ios.push_on_path(&mut path.lane, copy, false);
        let slot = self.on.ios.get_mut(index);
        slot.hedged = true;
        slot.watched = true;
        let home = core::mem::replace(&mut slot.io.span, buffers[0]);
        self.on.hedger.pair_up(&self.on.ios, index, copy, home);
        self.volume.hedged.sent += 1;
        let path = &mut self.volume.paths[other];
        path.counters.copies += 1;
        self.on.out.touch(&mut path.session, Role::Io);
    }

    /// One of two copies, which was on path `at`, has ended.
    pub(super) fn copy_ended(
        &mut self,
        at: PathIndex,
        index: u32,
        outcome: Outcome,
        now_ns: u64,
    ) -> CopyEnd {
        let (ios, scratch) = (&mut self.on.ios, &mut self.on.scratch);
        let (hedger, volume) = (&mut self.on.hedger, &mut *self.volume);
        let end = hedger.end_copy(ios, scratch, volume, index, outcome, now_ns);
        if end == CopyEnd::Done {
            // Its bytes are copied in the next turn.
            self.on
                .out
                .touch(&mut self.volume.paths[at].session, Role::Io);
        }
        end
    }
}

impl Multipath {
    /// Counters of second copies of reads of a volume.
    pub fn hedge_stats(&self, volume: u16) -> HedgeStats {
        let volume = self.volumes.get(usize::from(volume));
        volume.map_or_else(HedgeStats::default, |volume| volume.hedged)
    }

    /// Something has come over the network, and the core is awake: ends the reads that are done,
    /// and inspects the others if it is time.
    #[inline]
    pub(super) fn hedge(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        if self.on.hedger.has_done() {
            self.end_done_reads(memory, now_ns);
        }
        if self.on.hedger.is_due(now_ns) {
            self.inspect_reads(now_ns);
        } else if self.on.ios.active() == 0 && self.on.hedger.is_on() {
            self.on.out.timers.set_inspection(u64::MAX); // nothing is left to inspect
        }
    }

    #[cold]
    fn end_done_reads(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        let hedger = &mut self.on.hedger;
        let mut next = hedger.next_done(&mut self.on.ios, &mut self.on.scratch, memory);
        while let Some((index, path)) = next {
            let volume = self.on.ios.get(index).io.volume;
            self.io(volume).end(index, Outcome::Done, path, now_ns);
            let hedger = &mut self.on.hedger;
            next = hedger.next_done(&mut self.on.ios, &mut self.on.scratch, memory);
        }
    }

    /// Looks for late reads in all volumes, and sends their copies.
    #[cold]
    pub(super) fn inspect_reads(&mut self, now_ns: u64) {
        let mut inspection = Inspection::begin(now_ns);
        loop {
            let on = Inspected {
                ios: &mut self.on.ios,
                volumes: &mut self.volumes,
                scratch: &mut self.on.scratch,
            };
            let Some(copy) = self.on.hedger.next_copy(&mut inspection, on) else {
                break; // all were inspected
            };
            let volume = self.on.ios.get(copy.index).io.volume;
            self.io(volume).send_copy(copy, now_ns);
        }
        let at_ns = self.on.hedger.end_inspection(&inspection);
        if self.on.ios.active() > 0 {
            // An I/O given to a path since the last inspection expires after that.
            let left_ns = self.on.hedger.unseen_ns_left();
            self.on.out.timers.expire_by(now_ns + left_ns);
        }
        // Reads that are given to a path from now on see to it themselves.
        self.on.out.timers.set_inspection(at_ns);
    }
}
