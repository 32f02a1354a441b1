//! I/Os that are on no path: what becomes of one after a failed attempt, and what it waits for.
//!
//! * a usable path: the volume's queue, first come first served
//! * a busy path: `delayed`
//! * the end of what a lost controller may do: `held`, per path (T9). It is proved (`proof`), or
//!   bounded from the end of every connection of that controller, ours and other cores'
//! * the end of what the engine before this one had sent: `gate` (`mark`)
//! * an overlapping write before it that is or was held: `behind`
//!
//! # Contract
//! A change of data that nobody answered for is held before anything else is done with it, also
//! before it fails; from the loss of its path on, a new one that overlaps it waits until it has
//! ended, in order. Reads don't wait: what they overlap is not acknowledged, so either content
//! is right. But one whose bytes are to be written back waits at the gate: what an engine
//! before this one sent might come between, be read, and then be undone where nobody wrote.
//! (What this engine sent can't: whoever asks lets no other change of these bytes be under way,
//! a held one included.) An I/O on a local device stays there until the device ends it,
//! whatever became of the path: the device still has its memory. It is told to let go, so that
//! it ends what it can take back.
//!
//! # Limits
//! All waits hold slots, so `io_max` bounds them together.
use super::counters::group;
use super::explain::Wait;
use super::path::Phase;
use super::slots::{Lane, Slot};
use super::types::{Io, IoOp, NO_PATH};
use super::{HostEngine, Recovery, WriteFailover};
use block::Range;
use block::order::{ChangeOrder, Ticket as Place};
use canary::Bug;
use nvme::host::ControllerInfo;
use policy::{PathIndex, Request};
use volume::bound_ns;
use volume::{Attempt, Disposition, Outcome};

/// The bytes that an I/O may change.
pub(super) fn range(io: &Io) -> Option<Range> {
    match io.op {
        IoOp::Read | IoOp::Flush => None,
        IoOp::Write { .. } | IoOp::WriteZeroes { .. } | IoOp::Deallocate => {
            Some(Range::new(io.offset, io.length.into()))
        }
    }
}

/// From now on others wait for a change of data. A piece needs no entry: the whole has one.
fn fence_own(slot: &mut Slot, index: u32, fence: &mut ChangeOrder) {
    let own = slot.fence.is_none() && !slot.course.helper;
    if let Some(range) = range(&slot.io).filter(|_| own) {
        slot.fence = Some(fence.admit(index.into(), 0, range).0);
        slot.course.watched = true;
    }
}

impl HostEngine {
    /// There is a deadline at `at_ns`.
    #[inline]
    pub(super) fn wake_by(&mut self, at_ns: u64) {
        self.wake_ns = self.wake_ns.min(at_ns);
        self.deadline_ns = self.deadline_ns.min(at_ns);
    }

    /// An attempt has ended, and not well; or well, of a write that others wait for.
    #[cold]
    pub(super) fn dispose(&mut self, number: usize, index: u32, outcome: Outcome, now_ns: u64) {
        let flush = self.slots.get(index).io.op == IoOp::Flush;
        if flush && outcome.is_done() {
            return self.flushed(number, index, now_ns);
        }
        self.came_true(number, index, outcome, now_ns);
        if outcome.is_path_error() && self.paths[number].phase == Phase::Live {
            self.paths[number].suspect.note(&self.slots.get(index).io);
        }
        if self.slots.get(index).course.hedged && !self.copy_ended(number, index, outcome, now_ns) {
            return;
        }
        if outcome.is_done() {
            self.blame(number, index, now_ns);
        }
        let slot = self.slots.get_mut(index);
        let lost = outcome.is_path_error() && self.paths[number].will.returns();
        // Once: after a hold this is the end of the same attempt.
        if lost && slot.course.lost_ns == 0 {
            slot.course.lost_ns = slot.placed_ns.max(1);
        }
        if self.fails_now(outcome) {
            let path = self.paths[number].index;
            return self.end(index, Outcome::Stopped, path, now_ns);
        }
        let volume = &self.volumes[usize::from(self.paths[number].volume)];
        let recovery = &volume.recovery;
        let path = self.paths[number].index;
        if !recovery.enabled {
            return self.end(index, outcome, path, now_ns);
        }
        let slot = self.slots.get(index);
        let spent_ns = now_ns
            .saturating_sub(slot.started_ns)
            .saturating_sub(u64::from(slot.course.excused_ms) * 1_000_000);
        let fenced = recovery.write_failover == WriteFailover::Fenced;
        let proved = self.paths[number].proved || slot.course.aborted;
        let paths = self.paths_of(self.paths[number].volume).count() as u8;
        let attempt = Attempt {
            uncertain: slot.course.unanswered && range(&slot.io).is_some() && fenced && !proved,
            hops: slot.course.hops.saturating_sub(slot.course.losses),
            hops_max: (paths * 2).max(HOPS_MIN),
            paths,
            retries: slot.course.retries,
            retries_max: recovery.retries_max,
            left_ns: match self.is_elsewhere(number, index, outcome) {
                true => 0,
                false => self.attempts_left_ns(number, index, spent_ns),
            },
            patient: volume.is_leg && slot.io.op != IoOp::Read,
        };
        let disposition = volume::dispose(outcome, &attempt);
        let course = &self.slots.get(index).course;
        if outcome.is_device_error() && !course.in_transit && !course.replaceable {
            let failed = disposition == Disposition::Complete;
            self.device_error(number, index, outcome, failed, now_ns);
        }
        match disposition {
            Disposition::Complete => self.end(index, outcome, path, now_ns),
            Disposition::Retry { after_ns } => self.delay(index, after_ns, now_ns),
            Disposition::FailOver if flush => self.flush_again(index, path, now_ns),
            Disposition::FailOver => {
                if matches!(outcome, Outcome::Busy { .. }) {
                    let course = &mut self.slots.get_mut(index).course;
                    (course.refused, course.watched) = (course.refused | 1 << path.0, true);
                }
                self.fail_over(index, path, now_ns);
            }
            Disposition::Hold => self.hold(number, index, now_ns),
        }
    }

    /// Time that an I/O which path `number` did not do has left for further attempts. While there
    /// is a usable path that has not failed it since it was last known to be well, it may take
    /// twice `attempts_timeout`: paths that are silent one after the other are no reason for an
    /// error. Not a read that another volume can do as well.
    fn attempts_left_ns(&self, number: usize, index: u32, spent_ns: u64) -> u64 {
        let path = &self.paths[number];
        let volume = &self.volumes[usize::from(path.volume)];
        let attempts_ns = volume.recovery.attempts_ns;
        let course = &self.slots.get(index).course;
        let failed = course.failed | 1 << path.index.0;
        let most_ns = match volume.head.usable_among(!failed) {
            0 => attempts_ns,
            _ if course.elsewhere => attempts_ns,
            _ => attempts_ns.saturating_mul(2),
        };
        most_ns.saturating_sub(spent_ns)
    }

    /// Whether a read has timed out on all paths that there are, and may be had from elsewhere.
    fn is_elsewhere(&self, number: usize, index: u32, outcome: Outcome) -> bool {
        let course = &self.slots.get(index).course;
        let path = &self.paths[number];
        let tried = course.failed | 1 << path.index.0;
        let head = &self.volumes[usize::from(path.volume)].head;
        course.elsewhere && outcome == Outcome::TimedOut && head.usable_among(!tried) == 0
    }

    /// An I/O that a path did not do goes on, or ends: until now it was lost there.
    pub(super) fn note_cost(&mut self, index: u32, now_ns: u64) {
        let slot = self.slots.get_mut(index);
        let begun_ns = core::mem::take(&mut slot.course.lost_ns);
        if begun_ns > 0 {
            let (volume, path) = (usize::from(slot.io.volume), slot.path);
            let still_ns = self.standstills.within(begun_ns, now_ns);
            let head = &mut self.volumes[volume].head;
            head.cost(path, begun_ns, still_ns, now_ns);
        }
    }

    /// An I/O has ended for good.
    pub(super) fn end(&mut self, index: u32, outcome: Outcome, path: PathIndex, now_ns: u64) {
        self.note_cost(index, now_ns);
        self.explained_all(index);
        let slot = self.slots.get(index);
        let (volume, place) = (slot.io.volume, slot.fence);
        if slot.course.split || slot.course.helper || slot.course.recut {
            return self.piece_ended(index, outcome, path, now_ns);
        }
        self.slots.end(index, outcome, path, now_ns);
        if let Some(place) = place {
            self.unfence(volume, place, now_ns);
        }
    }

    fn delay(&mut self, index: u32, after_ns: u64, now_ns: u64) {
        let slot = self.slots.get_mut(index);
        slot.course.retries = slot.course.retries.saturating_add(1);
        slot.until_ns = now_ns.saturating_add(after_ns);
        let (volume, until_ns) = (slot.io.volume, slot.until_ns);
        let volume = &mut self.volumes[usize::from(volume)];
        self.slots.push(&mut volume.delayed, index, false);
        self.wake_by(until_ns);
    }

    /// Gives an I/O to a path that has not failed it yet; if all have, to another than `from`; to
    /// `from` only if there is no other.
    ///
    /// To leave a path that was lost is no move that counts (T4): that is bounded by time alone.
    fn fail_over(&mut self, index: u32, from: PathIndex, now_ns: u64) {
        if self.is_taken_back(index, now_ns) {
            return;
        }
        // What it waits for from now on is not `from`.
        self.note_cost(index, now_ns);
        let number = self.number(self.slots.get(index).io.volume, from);
        let lost = number.is_none_or(|number| self.paths[number].phase != Phase::Live);
        let slot = self.slots.get_mut(index);
        slot.course.moved(lost);
        slot.course.failed |= 1 << from.0;
        let failed = slot.course.failed;
        let moves = slot.course.hops.saturating_sub(slot.course.losses);
        let volume = usize::from(slot.io.volume);
        let moved_max = &mut self.volumes[volume].totals.moved_max;
        *moved_max = moves.max(*moved_max);
        let fence = &self.volumes[volume].fence;
        if slot.fence.is_some_and(|place| !fence.may_begin(place)) {
            return self.put_behind(index);
        }
        // Also one that is worse in general may do what a better one has failed.
        let head = &self.volumes[volume].head;
        let others = match head.usable_among(!failed) {
            0 => !(1 << from.0),
            _ => !failed,
        };
        let Some(able) = self.able(index, others) else {
            return;
        };
        self.volumes[volume].totals.moved_total += 1;
        // Of the best ones, a path that has answered meanwhile counts before one that was not
        // asked.
        let head = &self.volumes[volume].head;
        let best = head.usable_among(able & others);
        let among = match best & head.proven_since(self.slots.get(index).placed_ns) {
            0 => able & others,
            proven => proven,
        };
        match self.choose(index, among, now_ns) {
            Some(chosen) => self.put(index, chosen, now_ns),
            None => {
                self.place_again(index, now_ns);
            }
        }
    }

    /// What the policy is told of an I/O.
    pub(super) fn request(&self, index: u32, now_ns: u64) -> Request {
        let io = &self.slots.get(index).io;
        Request {
            source: io.source,
            group: group(io.op),
            length: io.length,
            address: io.offset,
            now_ns,
        }
    }

    /// No path is usable.
    #[cold]
    pub(super) fn park(&mut self, index: u32, now_ns: u64) {
        if self.fails_now(Outcome::PathError) {
            return self.end(index, Outcome::Stopped, NO_PATH, now_ns);
        }
        let volume = usize::from(self.slots.get(index).io.volume);
        let recovery = &self.volumes[volume].recovery;
        if !recovery.enabled {
            return self.end(index, Outcome::PathError, NO_PATH, now_ns);
        }
        let Some(until_ns) = self.patience_ns(volume, now_ns) else {
            let outcome = self.without_path(volume);
            return self.end(index, outcome, NO_PATH, now_ns);
        };
        let slot = self.slots.get_mut(index);
        slot.placed_ns = now_ns;
        slot.until_ns = until_ns;
        let before = self.slots.last(&self.volumes[volume].queue);
        debug_assert!(before.is_none_or(|it| it.until_ns <= until_ns));
        self.slots
            .push(&mut self.volumes[volume].queue, index, false);
        self.wake_by(until_ns);
    }

    /// Places what waits for a usable path, as far as there is one.
    pub(super) fn release(&mut self, volume: u16, now_ns: u64) {
        let it = usize::from(volume);
        // What finds none goes to the end of the queue; each is tried once.
        for _ in 0..self.slots.of(&self.volumes[it].queue).count() {
            let volume = &mut self.volumes[it];
            let Some(index) = volume.queue.front().filter(|_| volume.head.is_usable()) else {
                return;
            };
            self.slots.unlink(&mut volume.queue, index);
            self.excuse(index, now_ns);
            self.place_again(index, now_ns);
        }
    }

    /// The time since an I/O began to wait is not its own.
    pub(super) fn excuse(&mut self, index: u32, now_ns: u64) {
        let slot = self.slots.get_mut(index);
        let waited_ms = now_ns.saturating_sub(slot.placed_ns) / 1_000_000;
        let waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        slot.course.excused_ms = slot.course.excused_ms.saturating_add(waited_ms);
    }

    /// Holds a change of data that the lost controller of path `number` may yet execute.
    fn hold(&mut self, number: usize, index: u32, now_ns: u64) {
        let path = &mut self.paths[number];
        let volume = &mut self.volumes[usize::from(path.volume)];
        let slot = self.slots.get_mut(index);
        slot.placed_ns = now_ns;
        let until_ns = path.quiet_ns.unwrap_or(u64::MAX);
        slot.until_ns = until_ns;
        slot.association = path.association;
        slot.course.quiesces = path.quiet_ns.is_some();
        fence_own(slot, index, &mut volume.fence);
        volume.totals.held_total += 1;
        self.slots.push(&mut path.held, index, false);
        self.explain_wait(index, Wait::Held(until_ns), now_ns);
        self.wake_by(until_ns);
    }

    /// Whoever changes from now on what the lost controller of path `number` may yet execute waits
    /// for that, also before the queue has given it back: it may be long in doing so (T9).
    pub(super) fn fence_given(&mut self, number: usize) {
        let path = &self.paths[number];
        let volume = &mut self.volumes[usize::from(path.volume)];
        let waits = volume.recovery.write_failover == WriteFailover::Fenced;
        if !waits || path.kind.device().is_some() {
            return; // a device answers for what it had
        }
        let mut next = path.lane.front();
        while let Some(index) = next {
            next = self.slots.next(index);
            fence_own(self.slots.get_mut(index), index, &mut volume.fence);
        }
    }

    /// Every connection of the lost controller of path `number` is over since `since_ns`.
    pub(super) fn fence(&mut self, number: usize, since_ns: u64) {
        let Some(bound_ns) = self.bound_ns(number) else {
            return;
        };
        self.hold_until(number, since_ns.saturating_add(bound_ns), false);
    }

    /// What the present association of path `number` holds is over at that time, at the latest;
    /// `quiesces`: since its controller says that it was reset.
    pub(super) fn hold_until(&mut self, number: usize, until_ns: u64, quiesces: bool) {
        let association = self.paths[number].association;
        let mut next = self.paths[number].held.front();
        while let Some(index) = next {
            let slot = self.slots.get_mut(index);
            // What an earlier association had has its own bound, or none.
            if slot.association == association && until_ns < slot.until_ns {
                (slot.until_ns, slot.course.quiesces) = (until_ns, quiesces);
            }
            next = self.slots.next(index);
        }
        if !self.paths[number].held.is_empty() {
            self.wake_by(until_ns);
        }
    }

    /// How long the controller of a path may execute what it had, from the end of its connections.
    pub(super) fn bound_ns(&self, number: usize) -> Option<u64> {
        let path = &self.paths[number];
        self.bound_of(path.volume, &path.facts.as_ref()?.controller)
    }

    /// The same of a controller of a volume.
    pub(super) fn bound_of(&self, volume: u16, controller: &ControllerInfo) -> Option<u64> {
        let quiesce_ns = self.volumes[usize::from(volume)].recovery.quiesce_ns;
        let grain_ms = u32::from(controller.kas) * 100;
        if grain_ms == 0 {
            return None; // it has no keep-alive timer
        }
        // The controller may round the time-out up to its granularity (Base 2.0, 3.9).
        let kato_ms = self.settings.kato_ms.next_multiple_of(grain_ms);
        let reported_ns = u64::from(controller.cqt_ms) * 1_000_000;
        // Who asks for more than the default knows disks that take longer than a target may think.
        let is_longer = quiesce_ns > Recovery::QUIESCE_NS;
        let cqt_ns = match reported_ns {
            1.. if is_longer => reported_ns.max(quiesce_ns),
            _ => reported_ns,
        };
        let traffic = controller.traffic_keep_alive;
        bound_ns(u64::from(kato_ms) * 1_000_000, traffic, cqt_ns, quiesce_ns)
    }

    /// Whether a new change of data, or what is read `for_change`, must wait; it is then among
    /// those that do.
    #[cold]
    pub(super) fn is_behind(&mut self, index: u32, for_change: bool) -> bool {
        let slot = self.slots.get(index);
        let it = &mut self.volumes[usize::from(slot.io.volume)];
        let Some(range) = range(&slot.io) else {
            let waits = for_change && it.gate_ns > 0 && !canary::has(Bug::EdgeBeforeGate);
            if waits {
                self.put_at_gate(index);
            }
            return waits;
        };
        let overlaps = it.fence.overlaps(0, range) && !canary::has(Bug::NoBehind);
        if !overlaps && !it.gates(&slot.course) {
            return false;
        }
        let (place, _) = it.fence.admit(index.into(), 0, range);
        let slot = self.slots.get_mut(index);
        slot.fence = Some(place);
        slot.course.watched = true;
        if overlaps {
            self.put_behind(index);
        } else {
            self.put_at_gate(index);
        }
        true
    }

    pub(super) fn put_behind(&mut self, index: u32) {
        let slot = self.slots.get_mut(index);
        slot.course.behind = true;
        let (volume, at_ns) = (usize::from(slot.io.volume), slot.placed_ns);
        self.explain_wait(index, Wait::Behind, at_ns);
        self.slots
            .push(&mut self.volumes[volume].behind, index, false);
    }

    /// A write that others may have waited for has ended. One of them that is let go may end at
    /// once, and so on through all that wait: each goes from here, one after the other, and none
    /// from within another.
    fn unfence(&mut self, volume: u16, place: Place, now_ns: u64) {
        let it = &mut self.volumes[usize::from(volume)];
        // Also one that ended well on its lost path, before its turn to be repeated.
        it.fence.withdraw(place);
        while let Some(begun) = it.fence.poll_begun() {
            let index = begun.owner as u32;
            let slot = self.slots.get_mut(index);
            if core::mem::take(&mut slot.course.behind) {
                self.slots.unlink(&mut it.behind, index);
                self.slots.push(&mut self.freed, index, false);
            }
        }
        if core::mem::replace(&mut self.freeing, true) {
            return;
        }
        while let Some(index) = self.freed.front() {
            self.slots.unlink(&mut self.freed, index);
            self.let_go(index, now_ns);
        }
        self.freeing = false;
    }

    /// When the first wait of any I/O is over. Whoever is put into a queue comes last there and has
    /// the same patience as those before, counted from now: so the first one's ends first. The
    /// other lanes are looked at whole.
    pub(super) fn waits_timeout(&self) -> Option<u64> {
        let queues = self.volumes.iter().map(|it| &it.queue);
        let queued = queues.filter_map(|lane| Some(self.slots.get(lane.front()?).until_ns));
        let delayed = self
            .volumes
            .iter()
            .flat_map(|it| [&it.delayed, &it.flushes]);
        let held = self.paths.iter().map(|path| &path.held);
        let others = delayed.chain(held).flat_map(|lane| self.slots.of(lane));
        let gates = self.volumes.iter().map(|it| it.gate_ns);
        let waits = queued.chain(others.map(|slot| slot.until_ns));
        let first = waits.chain(gates.filter(|&gate_ns| gate_ns > 0)).min();
        first.filter(|&at_ns| at_ns < u64::MAX)
    }

    /// Ends the waits whose time is over.
    pub(super) fn waits_over(&mut self, now_ns: u64) {
        self.open_gates(now_ns);
        self.outages_over(now_ns);
        for number in 0..self.paths.len() {
            while let Some(index) = self.due(&self.paths[number].held, now_ns) {
                let proved = self.slots.get(index).course.quiesces;
                self.unhold(number, index, proved, now_ns);
            }
        }
        for volume in 0..self.volumes.len() {
            while let Some(index) = self.due(&self.volumes[volume].delayed, now_ns) {
                self.slots.unlink(&mut self.volumes[volume].delayed, index);
                self.repeat(index, now_ns);
            }
            if self.due(&self.volumes[volume].flushes, now_ns).is_some() {
                self.give_up_writes(volume as u16, now_ns);
            }
            while let Some(index) = self.volumes[volume].queue.front()
                && self.slots.get(index).until_ns <= now_ns
            {
                self.slots.unlink(&mut self.volumes[volume].queue, index);
                self.end(index, Outcome::PathError, NO_PATH, now_ns);
            }
        }
    }

    /// The first I/O of `lane` whose wait is over.
    fn due(&self, lane: &Lane, now_ns: u64) -> Option<u32> {
        let mut all = core::iter::successors(lane.front(), |&index| self.slots.next(index));
        all.find(|&index| self.slots.get(index).until_ns <= now_ns)
    }

    /// The controller that had a held write can't execute it any more, as was `proved`, or since
    /// the bound is over.
    pub(super) fn unhold(&mut self, number: usize, index: u32, proved: bool, now_ns: u64) {
        self.excuse(index, now_ns);
        let path = &mut self.paths[number];
        self.slots.unlink(&mut path.held, index);
        let slot = self.slots.get_mut(index);
        slot.course.unanswered = false;
        let totals = &mut self.volumes[usize::from(path.volume)].totals;
        let held_ns = now_ns.saturating_sub(slot.placed_ns);
        totals.held_ns_max = totals.held_ns_max.max(held_ns);
        if proved {
            totals.proved_total += 1;
        } else {
            totals.bounded_total += 1;
        }
        self.dispose(number, index, Outcome::PathError, now_ns);
    }

    /// Gives an I/O to the path that was busy, or to another if that is gone.
    fn repeat(&mut self, index: u32, now_ns: u64) {
        let slot = self.slots.get(index);
        let path = slot.path;
        if slot.io.op == IoOp::Flush {
            return self.flush_again(index, path, now_ns);
        }
        let Some(able) = self.able(index, 1 << path.0) else {
            return;
        };
        match self.choose(index, able & 1 << path.0, now_ns) {
            Some(chosen) => self.put(index, chosen, now_ns),
            None => {
                self.place_again(index, now_ns);
            }
        }
    }

    /// Ends all waits, not well: the engine stops.
    pub(super) fn fail_waits(&mut self, now_ns: u64) {
        for number in 0..self.paths.len() {
            while let Some(index) = self.paths[number].held.front() {
                self.slots.unlink(&mut self.paths[number].held, index);
                self.fail_wait(index, now_ns);
            }
        }
        for volume in 0..self.volumes.len() {
            self.fail_waits_of(volume, now_ns);
        }
    }

    /// Ends all waits in a volume, not well; not those on its paths.
    pub(super) fn fail_waits_of(&mut self, volume: usize, now_ns: u64) {
        for lane in 0..self.volumes[volume].lanes().len() {
            while let Some(index) = self.volumes[volume].lanes()[lane].front() {
                let lane = &mut *self.volumes[volume].lanes()[lane];
                self.slots.unlink(lane, index);
                self.fail_wait(index, now_ns);
            }
        }
    }

    /// Ends an I/O that is in no lane any more, not well. Whoever waits behind it fails as well, so
    /// nobody is let go; and a write before it that ends later must not find it.
    fn fail_wait(&mut self, index: u32, now_ns: u64) {
        self.explained_all(index);
        let slot = self.slots.get_mut(index);
        slot.course.behind = false;
        let volume = usize::from(slot.io.volume);
        if let Some(place) = self.splits.fail(&mut self.slots, index, now_ns) {
            self.volumes[volume].fence.withdraw(place);
        }
    }
}

/// Moves allowed where two per path would be fewer: a path that comes and goes is no ping-pong.
const HOPS_MIN: u8 = 8;
