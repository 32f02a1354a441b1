//! I/Os that are on no path: what becomes of one after a failed attempt, and what it waits for.
//!
//! * a usable path: the volume's queue, first come first served
//! * a busy path: `delayed`
//! * what the write fence says (`fence`): a lost controller, the engine before this one, or an
//!   overlapping change
//!
//! # Contract
//! A change of data without an answer is held before anything else is done with it, also before it
//! fails. An I/O on a local device stays there until the device ends it, whatever became of the
//! path: the device still has its memory. It is told to let go, so that it ends what it can take
//! back.
//!
//! # Limits
//! All waits hold slots, so `io_max` bounds them together.
use super::explain::Wait;
use super::fence::range;
use super::hedge::CopyEnd;

use super::io_table::{AttemptEnd, IoState, Kind, Lane};
use super::types::{IoOp, NO_PATH};
use super::{HostEngine, WriteFailover, fence};
use block::order::Ticket as Place;
use nvme::host::ControllerInfo;
use policy::PathIndex;
use volume::{Attempt, Disposition, Outcome};

impl HostEngine {
    /// An attempt has ended, and not well; or well, of a write that others wait for.
    #[cold]
    pub(super) fn dispose(&mut self, number: usize, index: u32, outcome: Outcome, now_ns: u64) {
        let flush = self.ios.get(index).io.op == IoOp::Flush;
        if flush && outcome.is_done() {
            return self.flushed(number, index, now_ns);
        }
        self.explain_end(number, index, outcome, now_ns);
        if outcome.is_path_error() && self.paths[number].is_live() {
            self.paths[number]
                .probing
                .suspect
                .note(&self.ios.get(index).io);
        }
        if self.ios.get(index).hedged {
            match self.copy_ended(number, index, outcome, now_ns) {
                CopyEnd::Done | CopyEnd::Forgotten => return,
                CopyEnd::Failed => {}
            }
        }
        if outcome.is_done() {
            self.blame(number, index, now_ns);
        }
        let slot = self.ios.get_mut(index);
        let lost = outcome.is_path_error() && self.paths[number].admin_state().returns();
        // Once: after a hold this is the end of the same attempt.
        if lost && slot.history.lost_ns == 0 {
            slot.history.lost_ns = slot.placed_ns.max(1);
        }
        if self.shutdown.fails_now(outcome) {
            let path = self.paths[number].index;
            return self.end(index, Outcome::Stopped, path, now_ns);
        }
        let volume = &self.volumes[usize::from(self.paths[number].volume)];
        let recovery = &volume.recovery;
        let path = self.paths[number].index;
        if !recovery.enabled {
            return self.end(index, outcome, path, now_ns);
        }
        let slot = self.ios.get(index);
        let spent_ns = now_ns
            .saturating_sub(slot.started_ns)
            .saturating_sub(u64::from(slot.history.excused_ms) * 1_000_000);
        let fenced = recovery.write_failover == WriteFailover::Fenced;
        let proved = volume.fence.is_proved(path) || slot.is_aborted();
        let unanswered = slot.history.attempt == AttemptEnd::Unanswered;
        let paths = self.paths_of(self.paths[number].volume).count() as u8;
        let attempt = Attempt {
            uncertain: unanswered && range(&slot.io).is_some() && fenced && !proved,
            hops: slot.history.hops.saturating_sub(slot.history.losses),
            hops_max: (paths * 2).max(HOPS_MIN),
            paths,
            retries: slot.history.retries,
            retries_max: recovery.retries_max,
            left_ns: match self.is_elsewhere(number, index, outcome) {
                true => 0,
                false => self.attempts_left_ns(number, index, spent_ns),
            },
            patient: volume.leg.is_here() && slot.io.op != IoOp::Read,
        };
        let disposition = volume::dispose(outcome, &attempt);
        let slot = self.ios.get(index);
        let in_transit = slot.history.attempt == AttemptEnd::InTransit;
        if outcome.is_device_error() && !in_transit && !slot.hints.replaceable {
            let failed = disposition == Disposition::Complete;
            self.device_error(number, index, outcome, failed, now_ns);
        }
        match disposition {
            Disposition::Complete => self.end(index, outcome, path, now_ns),
            Disposition::Retry { after_ns } => self.delay(index, after_ns, now_ns),
            Disposition::FailOver if flush => self.flush_again(index, path, now_ns),
            Disposition::FailOver => {
                if matches!(outcome, Outcome::Busy { .. }) {
                    let slot = self.ios.get_mut(index);
                    slot.history.refused |= 1 << path.0;
                    slot.watched = true;
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
        let slot = self.ios.get(index);
        let failed = slot.history.failed | 1 << path.index.0;
        let most_ns = match volume.head.usable_among(!failed) {
            0 => attempts_ns,
            _ if slot.hints.elsewhere => attempts_ns,
            _ => attempts_ns.saturating_mul(2),
        };
        most_ns.saturating_sub(spent_ns)
    }

    /// Whether a read has timed out on all paths that there are, and may be had from elsewhere.
    fn is_elsewhere(&self, number: usize, index: u32, outcome: Outcome) -> bool {
        let slot = self.ios.get(index);
        let path = &self.paths[number];
        let tried = slot.history.failed | 1 << path.index.0;
        let head = &self.volumes[usize::from(path.volume)].head;
        slot.hints.elsewhere && outcome == Outcome::TimedOut && head.usable_among(!tried) == 0
    }

    /// An I/O that a path did not do goes on, or ends: until now it was lost there.
    pub(super) fn note_cost(&mut self, index: u32, now_ns: u64) {
        let slot = self.ios.get_mut(index);
        let begun_ns = core::mem::take(&mut slot.history.lost_ns);
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
        self.end_explained(index);
        let slot = self.ios.get(index);
        let (volume, place) = (slot.io.volume, slot.fence);
        if slot.kind != Kind::Whole || slot.recut {
            return self.piece_ended(index, outcome, path, now_ns);
        }
        self.ios.end(index, outcome, path, now_ns);
        if let Some(place) = place {
            self.unfence(volume, place, now_ns);
        }
    }

    fn delay(&mut self, index: u32, after_ns: u64, now_ns: u64) {
        let slot = self.ios.get_mut(index);
        slot.history.retries = slot.history.retries.saturating_add(1);
        let until_ns = now_ns.saturating_add(after_ns);
        let volume = &mut self.volumes[usize::from(slot.io.volume)];
        let state = IoState::Backoff { until_ns };
        self.ios.push(&mut volume.delayed, index, state);
        self.timers.wake_by(until_ns);
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
        let number = self.number(self.ios.get(index).io.volume, from);
        let lost = number.is_none_or(|number| !self.paths[number].is_live());
        let slot = self.ios.get_mut(index);
        slot.history.moved(lost);
        slot.history.failed |= 1 << from.0;
        let failed = slot.history.failed;
        let moves = slot.history.hops.saturating_sub(slot.history.losses);
        let volume = usize::from(slot.io.volume);
        let moved_max = &mut self.volumes[volume].totals.moved_max;
        *moved_max = moves.max(*moved_max);
        let fence = &mut self.volumes[volume].fence;
        if fence.is_blocked(slot) {
            let wait = fence.block(&mut self.ios, index);
            let at_ns = self.ios.get(index).placed_ns;
            return self.explain_wait(index, wait, at_ns);
        }
        // Also one that is worse in general may do what a better one has failed.
        let head = &self.volumes[volume].head;
        let others = match head.usable_among(!failed) {
            0 => !(1 << from.0),
            _ => !failed,
        };
        let Some(able) = self.able(index, others) else {
            return; // as in `place_again`
        };
        self.volumes[volume].totals.moved_total += 1;
        // Of the best ones, a path that has answered meanwhile counts before one that was not
        // asked.
        let head = &self.volumes[volume].head;
        let best = head.usable_among(able & others);
        let among = match best & head.proven_since(self.ios.get(index).placed_ns) {
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

    /// No path is usable.
    #[cold]
    pub(super) fn park(&mut self, index: u32, now_ns: u64) {
        if self.shutdown.fails_now(Outcome::PathError) {
            return self.end(index, Outcome::Stopped, NO_PATH, now_ns);
        }
        let volume = usize::from(self.ios.get(index).io.volume);
        let recovery = &self.volumes[volume].recovery;
        if !recovery.enabled {
            return self.end(index, Outcome::PathError, NO_PATH, now_ns);
        }
        let Some(until_ns) = self.patience_ns(volume, now_ns) else {
            let outcome = self.without_path(volume);
            return self.end(index, outcome, NO_PATH, now_ns);
        };
        let slot = self.ios.get_mut(index);
        slot.placed_ns = now_ns;
        let before = self.ios.last(&self.volumes[volume].queue);
        debug_assert!(before.is_none_or(|it| it.state().until_ns() <= Some(until_ns)));
        let state = IoState::Queued { until_ns };
        self.ios.push(&mut self.volumes[volume].queue, index, state);
        self.timers.wake_by(until_ns);
    }

    /// Places what waits for a usable path, as far as there is one.
    pub(super) fn release(&mut self, volume: u16, now_ns: u64) {
        let it = usize::from(volume);
        // What finds none goes to the end of the queue; each is tried once.
        for _ in 0..self.ios.of(&self.volumes[it].queue).count() {
            let volume = &mut self.volumes[it];
            let Some(index) = volume.queue.front().filter(|_| volume.head.is_usable()) else {
                return; // none is usable, or no longer
            };
            self.ios.unlink(&mut volume.queue, index);
            self.exclude_wait(index, now_ns);
            self.place_again(index, now_ns);
        }
    }

    /// Excludes the time since `placed_ns` from the I/O's timeout: it was waiting, not executing.
    pub(super) fn exclude_wait(&mut self, index: u32, now_ns: u64) {
        let slot = self.ios.get_mut(index);
        let waited_ms = now_ns.saturating_sub(slot.placed_ns) / 1_000_000;
        let waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        slot.history.excused_ms = slot.history.excused_ms.saturating_add(waited_ms);
    }

    /// Holds a change of data that the lost controller of path `number` may still execute.
    fn hold(&mut self, number: usize, index: u32, now_ns: u64) {
        let path = &self.paths[number];
        let fence = &mut self.volumes[usize::from(path.volume)].fence;
        let until_ns = fence.hold(&mut self.ios, path.index, index, now_ns);
        self.explain_wait(index, Wait::Held(until_ns), now_ns);
        self.timers.wake_by(until_ns);
    }

    /// Fences what is in flight on lost path `number`.
    pub(super) fn fence_in_flight(&mut self, number: usize) {
        let path = &self.paths[number];
        let volume = &mut self.volumes[usize::from(path.volume)];
        let waits = volume.recovery.write_failover == WriteFailover::Fenced;
        // A device ends what it had, and only then is it known what became of it.
        if waits && path.kind.device().is_none() {
            volume.fence.admit_in_flight(&mut self.ios, &path.lane);
        }
    }

    /// The bound of what lost path `number` had counts from `since_ns` on: every connection of its
    /// controller is over.
    pub(super) fn begin_bound(&mut self, number: usize, since_ns: u64) {
        // Without a bound only proof ends a hold.
        if let Some(bound_ns) = self.bound_ns(number) {
            let until_ns = since_ns.saturating_add(bound_ns);
            let path = &self.paths[number];
            let fence = &mut self.volumes[usize::from(path.volume)].fence;
            if fence.bound(&mut self.ios, path.index, until_ns) {
                self.timers.wake_by(until_ns);
            }
        }
    }

    /// How long the controller of a path may execute what it had, from the end of its connections.
    pub(super) fn bound_ns(&self, number: usize) -> Option<u64> {
        let path = &self.paths[number];
        self.bound_of(path.volume, &path.facts.as_ref()?.controller)
    }

    /// The same of a controller of a volume.
    pub(super) fn bound_of(&self, volume: u16, controller: &ControllerInfo) -> Option<u64> {
        let recovery = &self.volumes[usize::from(volume)].recovery;
        fence::bound_ns(recovery, self.settings.kato_ms, controller)
    }

    /// Whether a new change of data, or what is read `for_change`, must wait; it does so then.
    #[cold]
    pub(super) fn waits_at_fence(&mut self, index: u32, for_change: bool) -> bool {
        let volume = usize::from(self.ios.get(index).io.volume);
        let fence = &mut self.volumes[volume].fence;
        let waits = fence.admit(&mut self.ios, index, for_change);
        if let Some(wait) = waits {
            self.explain_wait(index, wait, self.ios.get(index).placed_ns);
        }
        waits.is_some()
    }

    /// A change that others may have waited for has ended: places those that may go now. Each goes
    /// from here, one after the other, and none from within another: one may end at once, and so on
    /// through all that wait.
    fn unfence(&mut self, volume: u16, place: Place, now_ns: u64) {
        let at = usize::from(volume);
        if !self.volumes[at].fence.end(&mut self.ios, place) {
            return; // a caller further up the stack places them
        }
        while let Some(index) = self.volumes[at].fence.next_released(&mut self.ios) {
            self.resume_change(index, now_ns);
        }
    }

    /// When the first wait of any I/O is over. An I/O that is put into a queue comes last there and
    /// has the same patience as those before, counted from now: so the first one's ends first. The
    /// other lanes are looked at whole.
    pub(super) fn waits_timeout(&self) -> Option<u64> {
        let queues = self.volumes.iter().map(|it| &it.queue);
        let queued = queues.filter_map(|lane| self.ios.get(lane.front()?).state().until_ns());
        let lanes = self.volumes.iter();
        let others = lanes
            .flat_map(|it| [&it.delayed, &it.flushes])
            .flat_map(|lane| self.ios.of(lane));
        let fences = self.volumes.iter();
        let fenced = fences.filter_map(|it| it.fence.timeout(&self.ios));
        let waits = queued.chain(others.filter_map(|slot| slot.state().until_ns()));
        let first = waits.chain(fenced).min();
        first.filter(|&at_ns| at_ns < u64::MAX)
    }

    /// Ends the waits whose time is over.
    pub(super) fn waits_over(&mut self, now_ns: u64) {
        self.open_gates(now_ns);
        self.outages_over(now_ns);
        for number in 0..self.paths.len() {
            self.release_due(number, now_ns);
        }
        for volume in 0..self.volumes.len() {
            while let Some(index) = self.due(&self.volumes[volume].delayed, now_ns) {
                self.ios.unlink(&mut self.volumes[volume].delayed, index);
                self.repeat(index, now_ns);
            }
            if self.due(&self.volumes[volume].flushes, now_ns).is_some() {
                self.give_up_writes(volume as u16, now_ns);
            }
            while let Some(index) = self.volumes[volume].queue.front()
                && self.ios.get(index).state().is_due(now_ns)
            {
                self.ios.unlink(&mut self.volumes[volume].queue, index);
                self.end(index, Outcome::PathError, NO_PATH, now_ns);
            }
        }
    }

    /// The first I/O of `lane` whose wait is over.
    fn due(&self, lane: &Lane, now_ns: u64) -> Option<u32> {
        let mut all = core::iter::successors(lane.front(), |&index| self.ios.next(index));
        all.find(|&index| self.ios.get(index).state().is_due(now_ns))
    }

    /// Goes on with held changes of path `number` that its controller can't execute any more, as
    /// was proved, or since the bound is over.
    pub(super) fn release_due(&mut self, number: usize, now_ns: u64) {
        let path = &self.paths[number];
        if path.is_vacant() {
            return; // none left anything behind: see `is_forgettable`
        }
        let (volume, path) = (usize::from(path.volume), path.index);
        let mut next = self.volumes[volume].fence.first_held(path);
        while let Some(index) = next {
            // What goes on is not held again here: its association is over.
            next = self.ios.next(index);
            if self.ios.get(index).state().is_due(now_ns) {
                self.exclude_wait(index, now_ns);
                let fence = &mut self.volumes[volume].fence;
                fence.release(&mut self.ios, path, index, now_ns);
                self.dispose(number, index, Outcome::PathError, now_ns);
            }
        }
    }

    /// Gives an I/O to the path that was busy, or to another if that is gone.
    fn repeat(&mut self, index: u32, now_ns: u64) {
        let slot = self.ios.get(index);
        let path = slot.path;
        if slot.io.op == IoOp::Flush {
            return self.flush_again(index, path, now_ns);
        }
        let Some(able) = self.able(index, 1 << path.0) else {
            return; // as in `place_again`
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
        for volume in 0..self.volumes.len() {
            for path in self.indexes(volume as u16) {
                while let Some(index) = self.volumes[volume].fence.abandon_held(&mut self.ios, path)
                {
                    self.fail_wait(index, now_ns);
                }
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
                self.ios.unlink(lane, index);
                self.fail_wait(index, now_ns);
            }
        }
        while let Some(index) = self.volumes[volume].fence.abandon_waiting(&mut self.ios) {
            self.fail_wait(index, now_ns);
        }
    }

    /// Ends an I/O that is in no lane any more, not well. What is blocked by it fails as well, so
    /// nothing is released; and a write before it that ends later must not find it.
    fn fail_wait(&mut self, index: u32, now_ns: u64) {
        self.end_explained(index);
        let slot = self.ios.get_mut(index);
        let volume = usize::from(slot.io.volume);
        if let Some(place) = self.splits.fail(&mut self.ios, index, now_ns) {
            self.volumes[volume].fence.withdraw(place);
        }
    }
}

/// Moves allowed where two per path would be fewer: a path that comes and goes is no ping-pong.
const HOPS_MIN: u8 = 8;
