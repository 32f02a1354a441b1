//! I/Os that are on no path: what becomes of one after a failed attempt, and what it waits for.
//!
//! * [`Waits`]: a usable path, first come first served; a busy path; a lost controller's flush
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
use super::flush::is_loss;
use super::hedge::CopyEnd;
use super::io::VolumeIo;
use super::io_table::{AttemptEnd, IoState, IoTable, Kind, Lane, Slot};
use super::queues::is_tied;
use super::recovery::HoldStats;
use super::standstill::Standstills;
use super::types::{IoOp, NO_PATH};
use super::volumes::{LegRole, Volume};
use super::{Multipath, WriteFailover};
use crate::limits::NO_QUEUE_WAIT_NS;
use block::order::Ticket as Place;
use multipath::{Attempt, Disposition, Outcome};
use policy::PathIndex;

/// The I/Os of one volume that are on no path, nor at its fence, by what they wait for.
pub(super) struct Waits {
    /// A usable path; oldest wait first.
    queued: Lane,
    /// The path that was busy.
    delayed: Lane,
    /// Flushes: a lost controller with unflushed writes.
    flushes: Lane,
}

impl Waits {
    pub(super) const EMPTY: Self = Self {
        queued: Lane::EMPTY,
        delayed: Lane::EMPTY,
        flushes: Lane::EMPTY,
    };

    /// An I/O waits for a usable path, until `until_ns` at most. Those before it wait no longer:
    /// all have the same patience.
    fn queue(&mut self, ios: &mut IoTable, index: u32, until_ns: u64) {
        let last_ns = ios.last(&self.queued).and_then(|it| it.state().until_ns());
        assert!(last_ns <= Some(until_ns), "a wait for a path ends early");
        ios.push(&mut self.queued, index, IoState::Queued { until_ns });
    }

    /// An I/O waits to be repeated on the path that was busy.
    fn delay(&mut self, ios: &mut IoTable, index: u32, until_ns: u64) {
        ios.push(&mut self.delayed, index, IoState::Backoff { until_ns });
    }

    /// A flush waits for a lost controller, until `until_ns` at most.
    pub(super) fn await_flush(&mut self, ios: &mut IoTable, index: u32, until_ns: u64) {
        ios.push(&mut self.flushes, index, IoState::FlushWait { until_ns });
    }

    /// Takes out the I/O that waits longest for a path.
    pub(super) fn pop_queued(&mut self, ios: &mut IoTable) -> Option<u32> {
        pop(&mut self.queued, ios)
    }

    /// The I/O that waits longest for a path, of those whose clients can go to another core.
    fn first_untied(&self, ios: &IoTable) -> Option<u32> {
        let mut all = core::iter::successors(self.queued.front(), |&it| ios.next(it));
        all.find(|&it| !is_tied(&ios.get(it).io))
    }

    /// Takes out an I/O whose wait for a path is over.
    fn pop_queued_due(&mut self, ios: &mut IoTable, now_ns: u64) -> Option<u32> {
        let first = self.queued.front()?;
        let is_due = ios.get(first).state().is_due(now_ns);
        is_due.then(|| self.pop_queued(ios)).flatten()
    }

    /// Takes out an I/O that is to be repeated now.
    fn pop_delayed_due(&mut self, ios: &mut IoTable, now_ns: u64) -> Option<u32> {
        let index = ios.first_due(&self.delayed, now_ns)?;
        ios.unlink(&mut self.delayed, index);
        Some(index)
    }

    /// Takes out the flush that waits longest.
    pub(super) fn pop_flush(&mut self, ios: &mut IoTable) -> Option<u32> {
        pop(&mut self.flushes, ios)
    }

    /// Takes out any.
    fn pop(&mut self, ios: &mut IoTable) -> Option<u32> {
        let mut lanes = [&mut self.queued, &mut self.delayed, &mut self.flushes].into_iter();
        lanes.find_map(|lane| pop(lane, ios))
    }

    /// Takes out an I/O, no flush, that a mirror takes back.
    pub(super) fn pop_cut(&mut self, ios: &mut IoTable) -> Option<u32> {
        for lane in [&mut self.queued, &mut self.delayed] {
            let mut all = core::iter::successors(lane.front(), |&it| ios.next(it));
            if let Some(index) = all.find(|&it| !ios.get(it).survives_cut()) {
                ios.unlink(lane, index);
                return Some(index);
            }
        }
        None
    }

    /// I/Os that wait for a path.
    fn queued(&self, ios: &IoTable) -> usize {
        ios.of(&self.queued).count()
    }

    /// Flushes that wait.
    pub(super) fn flushes(&self, ios: &IoTable) -> usize {
        ios.of(&self.flushes).count()
    }

    /// A flush that has waited for too long.
    fn flush_due(&self, ios: &IoTable, now_ns: u64) -> Option<u32> {
        ios.first_due(&self.flushes, now_ns)
    }

    /// The patience is another: what waits for a path since `since_ns` does so until
    /// `until_ns(since_ns)`.
    pub(super) fn renew_queued(&mut self, ios: &mut IoTable, until_ns: impl Fn(u64) -> u64) {
        let mut next = self.queued.front();
        while let Some(index) = next {
            let until_ns = until_ns(ios.get(index).placed_ns);
            ios.set_state(index, IoState::Queued { until_ns });
            next = ios.next(index);
        }
    }

    /// When the first wait is over, ns. Of those for a path the first one's ends first; the other
    /// lanes are looked at whole.
    fn timeout(&self, ios: &IoTable) -> Option<u64> {
        let queued = ios.of(&self.queued).take(1);
        let others = ios.of(&self.delayed).chain(ios.of(&self.flushes));
        let all = queued.chain(others);
        all.filter_map(|slot| slot.state().until_ns()).min()
    }

    /// Fills in what waits here.
    pub(super) fn stats(&self, ios: &IoTable, totals: HoldStats) -> HoldStats {
        let queued = ios.of(&self.queued).map(|slot| slot.started_ns);
        HoldStats {
            queued: self.queued(ios) as u32,
            queued_since_ns: queued.min(),
            flushes: self.flushes(ios) as u32,
            delayed: ios.of(&self.delayed).count() as u32,
            ..totals
        }
    }
}

/// Takes out the first I/O of a lane.
fn pop(lane: &mut Lane, ios: &mut IoTable) -> Option<u32> {
    let index = lane.front()?;
    ios.unlink(lane, index);
    Some(index)
}

/// All paths refuse what they are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    since_ns: u64,
    /// I/Os that the volume's paths had done well by then: another one ends it.
    done: u64,
}

impl Volume {
    /// Time that an I/O which `path` did not do, and which has spent `spent_ns` in attempts, has
    /// left for further ones. While there is a usable path that has not failed it since it was last
    /// known to be well, it may take twice `attempts_timeout`: paths that are silent one after the
    /// other are no reason for an error. Not a read that another volume can do as well.
    fn attempts_left_ns(
        &self,
        slot: &Slot,
        path: PathIndex,
        outcome: Outcome,
        spent_ns: u64,
    ) -> u64 {
        let attempts_ns = self.recovery.attempts_ns;
        let failed = slot.history.failed | 1 << path.0;
        let is_left = self.head.usable_among(!failed) != 0;
        let most_ns = match (is_left, slot.hints.elsewhere) {
            // It has timed out on all paths that there are, and may be had from elsewhere.
            (false, true) if outcome == Outcome::TimedOut => return 0,
            (true, false) => attempts_ns.saturating_mul(2),
            _ => attempts_ns,
        };
        most_ns.saturating_sub(spent_ns)
    }

    /// Until when an I/O waits that all paths have refused: a queue whose server has ended says so
    /// at once, while of a controller the connection is lost. `None`: it is not so, or none was
    /// done for `fast_io_fail_tmo`. A mirror reads elsewhere, and a flush waits below.
    fn refused_until_ns(&mut self, slot: &Slot, at: PathIndex, now_ns: u64) -> Option<u64> {
        let may_wait = slot.io.op != IoOp::Flush && !self.leg.is_here();
        if slot.history.attempt != AttemptEnd::Refused || !may_wait || !self.paths[at].is_live() {
            return None;
        }
        if self.head.usable_among(!(slot.history.failed | 1 << at.0)) != 0 {
            return None; // that one was not asked
        }
        let done = self.paths.iter().flat_map(|path| path.counters.ios).sum();
        let refusal = self.refusal.filter(|it| it.done == done);
        let refusal = refusal.unwrap_or(Refusal {
            since_ns: now_ns,
            done,
        });
        self.refusal = Some(refusal);
        let waited_ns = now_ns.saturating_sub(refusal.since_ns);
        let pause_ns = (waited_ns / 8).clamp(REFUSED_MIN_NS, REFUSED_MAX_NS);
        let is_over = waited_ns.saturating_add(pause_ns) >= self.recovery.fast_io_fail_ns;
        (!is_over).then(|| now_ns.saturating_add(pause_ns))
    }

    /// An I/O that a path did not do goes on, or ends: until now it was lost there.
    pub(super) fn note_cost(
        &mut self,
        ios: &mut IoTable,
        standstills: &Standstills,
        index: u32,
        now_ns: u64,
    ) {
        let slot = ios.get_mut(index);
        let begun_ns = core::mem::take(&mut slot.history.lost_ns);
        if begun_ns > 0 {
            let still_ns = standstills.within(begun_ns, now_ns);
            self.head.cost(slot.path, begun_ns, still_ns, now_ns);
        }
    }

    /// Repeats an I/O on the path that was busy, after a pause. Returns when that is, ns.
    fn delay(&mut self, ios: &mut IoTable, index: u32, after_ns: u64, now_ns: u64) -> u64 {
        let history = &mut ios.get_mut(index).history;
        history.retries = history.retries.saturating_add(1);
        let until_ns = now_ns.saturating_add(after_ns);
        self.waits.delay(ios, index, until_ns);
        until_ns
    }

    /// Holds a change of data that the lost controller of a path may still execute. Returns until
    /// when, ns; `u64::MAX`: that is not known yet.
    fn hold(&mut self, ios: &mut IoTable, path: PathIndex, index: u32, now_ns: u64) -> u64 {
        let until_ns = self.fence.hold(ios, path, index, now_ns);
        self.explain_wait(ios, index, Wait::Held(until_ns), now_ns);
        until_ns
    }

    /// Fences what is in flight on a lost path.
    pub(super) fn fence_in_flight(&mut self, at: PathIndex, ios: &mut IoTable) {
        let waits = self.recovery.write_failover == WriteFailover::Fenced;
        let path = &self.paths[at];
        // A device ends what it had, and only then is it known what became of it.
        if waits && path.kind.device().is_none() {
            self.fence.admit_in_flight(ios, &path.lane);
        }
    }

    /// Whether a new change of data, or what is read `for_change`, must wait; it does so then.
    #[cold]
    pub(super) fn waits_at_fence(
        &mut self,
        ios: &mut IoTable,
        index: u32,
        for_change: bool,
    ) -> bool {
        let waits = self.fence.admit(ios, index, for_change);
        if let Some(wait) = waits {
            self.explain_wait(ios, index, wait, ios.get(index).placed_ns);
        }
        waits.is_some()
    }

    /// When the first wait of any I/O is over, or an outage has lasted for long enough, ns.
    pub(super) fn timeout(&self, ios: &IoTable) -> Option<u64> {
        let waits = [self.waits.timeout(ios), self.fence.timeout(ios)];
        let without_queue = self.without_queue(ios).map(|(_, at_ns)| at_ns);
        let others = [self.outage_timeout(), without_queue];
        waits.into_iter().chain(others).flatten().min()
    }

    /// The first I/O that ends because this core has no queue, while others have some, and when.
    fn without_queue(&self, ios: &IoTable) -> Option<(u32, u64)> {
        if self.head.is_usable() || !self.is_served_elsewhere() {
            return None;
        }
        let index = self.waits.first_untied(ios)?;
        let since_ns = ios.get(index).placed_ns;
        Some((index, since_ns.saturating_add(NO_QUEUE_WAIT_NS)))
    }

    /// Ends all held changes, not well: the engine stops.
    pub(super) fn fail_held(&mut self, ios: &mut IoTable, now_ns: u64) {
        for path in self.paths.indexes() {
            while let Some(index) = self.fence.abandon_held(ios, path) {
                self.fail_wait(ios, index, now_ns);
            }
        }
    }

    /// Ends all other waits, not well; not those on paths.
    pub(super) fn fail_waits(&mut self, ios: &mut IoTable, now_ns: u64) {
        while let Some(index) = self.waits.pop(ios) {
            self.fail_wait(ios, index, now_ns);
        }
        while let Some(index) = self.fence.abandon_waiting(ios) {
            self.fail_wait(ios, index, now_ns);
        }
    }

    /// Ends an I/O that is in no lane any more, not well. An I/O that is blocked by it fails as
    /// well, so nothing is released; and a write before it that ends later must not find it.
    fn fail_wait(&mut self, ios: &mut IoTable, index: u32, now_ns: u64) {
        self.forget_explained(ios.token(index));
        if let Some(place) = ios.fail(index, now_ns) {
            self.fence.withdraw(place);
        }
    }
}

impl VolumeIo<'_> {
    /// An attempt has ended, and not well; or well, of a write that others wait for.
    #[cold]
    pub(super) fn dispose(&mut self, at: PathIndex, index: u32, outcome: Outcome, now_ns: u64) {
        let flush = self.on.ios.get(index).io.op == IoOp::Flush;
        if flush && outcome.is_done() {
            return self.flushed(at, index, now_ns);
        }
        self.volume
            .explain_end(&self.on.ios, index, outcome, now_ns);
        if outcome.is_path_error() && self.volume.paths[at].is_live() {
            self.volume.paths[at]
                .probing
                .suspect
                .note(&self.on.ios.get(index).io);
        }
        if self.on.ios.get(index).hedged {
            match self.copy_ended(at, index, outcome, now_ns) {
                CopyEnd::Done | CopyEnd::Forgotten => return,
                CopyEnd::Failed => {}
            }
        }
        if outcome.is_done() {
            self.blame(at, index, now_ns);
        }
        let slot = self.on.ios.get_mut(index);
        let lost = outcome.is_path_error() && self.volume.paths[at].admin_state().returns();
        // Once: after a hold this is the end of the same attempt.
        if lost && slot.history.lost_ns == 0 {
            slot.history.lost_ns = slot.placed_ns.max(1);
        }
        if flush && is_loss(outcome) && self.volume.leg == LegRole::None {
            self.lost_by_flush(at, now_ns); // else its mirror judges that
        }
        if self.on.shutdown.fails_now(outcome) {
            let path = self.volume.paths[at].index;
            return self.end(index, Outcome::Stopped, path, now_ns);
        }
        let volume = &*self.volume;
        let recovery = &volume.recovery;
        let path = self.volume.paths[at].index;
        if !recovery.enabled {
            return self.end(index, outcome, path, now_ns);
        }
        let slot = self.on.ios.get(index);
        let spent_ns = now_ns
            .saturating_sub(slot.started_ns)
            .saturating_sub(u64::from(slot.history.excused_ms) * 1_000_000);
        let fenced = recovery.write_failover == WriteFailover::Fenced;
        let proved = volume.fence.is_proved(path) || slot.is_aborted();
        let unanswered = slot.history.attempt == AttemptEnd::Unanswered;
        let paths = volume.paths.iter().count() as u8;
        let attempt = Attempt {
            uncertain: unanswered && range(&slot.io).is_some() && fenced && !proved,
            hops: slot.history.hops.saturating_sub(slot.history.losses),
            hops_max: (paths * 2).max(HOPS_MIN),
            paths,
            retries: slot.history.retries,
            retries_max: recovery.retries_max,
            left_ns: volume.attempts_left_ns(slot, path, outcome, spent_ns),
            patient: volume.leg.is_here() && slot.io.op != IoOp::Read,
        };
        let disposition = multipath::dispose(outcome, &attempt);
        if outcome == Outcome::PathError
            && let Some(until_ns) = self.volume.refused_until_ns(slot, at, now_ns)
        {
            return self.await_queues(index, until_ns, now_ns);
        }
        let in_transit = slot.history.attempt == AttemptEnd::InTransit;
        if outcome.is_device_error() && !in_transit && !slot.hints.replaceable {
            let failed = disposition == Disposition::Complete;
            self.device_error(at, index, outcome, failed, now_ns);
        }
        match disposition {
            Disposition::Complete => self.end(index, outcome, path, now_ns),
            Disposition::Retry { after_ns } => {
                let until_ns = self.volume.delay(&mut self.on.ios, index, after_ns, now_ns);
                self.on.out.wake_by(until_ns);
            }
            Disposition::FailOver if flush => self.flush_again(index, path, now_ns),
            Disposition::FailOver => {
                if matches!(outcome, Outcome::Busy { .. }) {
                    let slot = self.on.ios.get_mut(index);
                    slot.history.refused |= 1 << path.0;
                    slot.watched = true;
                }
                self.fail_over(index, path, now_ns);
            }
            Disposition::Hold => {
                let until_ns = self.volume.hold(&mut self.on.ios, path, index, now_ns);
                self.on.out.wake_by(until_ns);
            }
        }
    }

    /// All paths have refused it: they are asked again later.
    fn await_queues(&mut self, index: u32, until_ns: u64, now_ns: u64) {
        let it = &mut *self.volume;
        it.note_cost(&mut self.on.ios, &self.on.standstills, index, now_ns);
        let slot = self.on.ios.get_mut(index);
        // Bounded by time alone, as where all paths are lost (T4).
        slot.history.hops = slot.history.losses;
        slot.history.failed = 0;
        slot.placed_ns = now_ns;
        it.waits.delay(&mut self.on.ios, index, until_ns);
        it.explain_wait(&mut self.on.ios, index, Wait::Path(until_ns), now_ns);
        self.on.out.wake_by(until_ns);
    }

    /// An I/O has ended for good.
    pub(super) fn end(&mut self, index: u32, outcome: Outcome, path: PathIndex, now_ns: u64) {
        let it = &mut *self.volume;
        it.note_cost(&mut self.on.ios, &self.on.standstills, index, now_ns);
        it.forget_explained(self.on.ios.token(index));
        let slot = self.on.ios.get(index);
        let place = slot.fence;
        if slot.kind != Kind::Whole || slot.recut {
            return self.piece_ended(index, outcome, path, now_ns);
        }
        self.on.ios.end(index, outcome, path, now_ns);
        if let Some(place) = place {
            self.unfence(place, now_ns);
        }
    }

    /// Gives an I/O to a path that has not failed it yet; if all have, to another than `from`; to
    /// `from` only if there is no other.
    ///
    /// To leave a path that was lost is no move that counts (T4): that is bounded by time alone.
    fn fail_over(&mut self, index: u32, from: PathIndex, now_ns: u64) {
        if self.is_taken_back(index, now_ns) {
            return;
        }
        // Its reason to wait from now on is not `from`.
        let it = &mut *self.volume;
        it.note_cost(&mut self.on.ios, &self.on.standstills, index, now_ns);
        let lost = it.paths.get(from).is_none_or(|it| !it.is_live());
        let slot = self.on.ios.get_mut(index);
        slot.history.moved(lost);
        slot.history.failed |= 1 << from.0;
        let failed = slot.history.failed;
        let moves = slot.history.hops.saturating_sub(slot.history.losses);
        it.totals.moved_max = it.totals.moved_max.max(moves);
        if it.fence.is_blocked(slot) {
            let wait = it.fence.block(&mut self.on.ios, index);
            let at_ns = self.on.ios.get(index).placed_ns;
            return it.explain_wait(&mut self.on.ios, index, wait, at_ns);
        }
        // Also one that is worse in general may do what a better one has failed.
        let others = match it.head.usable_among(!failed) {
            0 => !(1 << from.0),
            _ => !failed,
        };
        let Some(able) = it.able(&mut self.on.ios, index, others) else {
            return; // as in `place_again`
        };
        it.totals.moved_total += 1;
        // Of the best ones, a path that has answered meanwhile counts before one that was not
        // asked.
        let best = it.head.usable_among(able & others);
        let among = match best & it.head.proven_since(self.on.ios.get(index).placed_ns) {
            0 => able & others,
            proven => proven,
        };
        match it.choose(&mut self.on.ios, index, among, now_ns) {
            Some(chosen) => self.put(index, chosen, now_ns),
            None => self.place_again(index, now_ns),
        }
    }

    /// No path is usable.
    #[cold]
    pub(super) fn park(&mut self, index: u32, now_ns: u64) {
        if self.on.shutdown.fails_now(Outcome::PathError) {
            return self.end(index, Outcome::Stopped, NO_PATH, now_ns);
        }
        let it = &mut *self.volume;
        if !it.recovery.enabled {
            return self.end(index, Outcome::PathError, NO_PATH, now_ns);
        }
        let Some(until_ns) = it.patience_ns(now_ns) else {
            let outcome = it.without_path();
            return self.end(index, outcome, NO_PATH, now_ns);
        };
        self.on.ios.get_mut(index).placed_ns = now_ns;
        it.waits.queue(&mut self.on.ios, index, until_ns);
        self.on.out.wake_by(until_ns);
        if self.volume.is_served_elsewhere() {
            self.on.out.wake_by(now_ns.saturating_add(NO_QUEUE_WAIT_NS));
        }
    }

    /// Places what waits for a usable path, as far as there is one.
    pub(super) fn release(&mut self, now_ns: u64) {
        // An I/O that finds none goes to the end of the queue; each is tried once.
        for _ in 0..self.volume.waits.queued(&self.on.ios) {
            if !self.volume.head.is_usable() {
                return; // none is usable, or no longer
            }
            let Some(index) = self.volume.waits.pop_queued(&mut self.on.ios) else {
                return; // one of them has failed all
            };
            self.on.ios.exclude_wait(index, now_ns);
            self.place_again(index, now_ns);
        }
    }

    /// A change that others may have waited for has ended: places those that may go now. Each goes
    /// from here, one after the other, and none from within another: one may end at once, and so on
    /// through all that wait.
    fn unfence(&mut self, place: Place, now_ns: u64) {
        if !self.volume.fence.end(&mut self.on.ios, place) {
            return; // a caller further up the stack places them
        }
        while let Some(index) = self.volume.fence.next_released(&mut self.on.ios) {
            self.resume_change(index, now_ns);
        }
    }

    /// Repeats what was busy, and ends the waits for flushes and paths whose time is over.
    fn end_waits(&mut self, now_ns: u64) {
        while let Some(index) = self.volume.waits.pop_delayed_due(&mut self.on.ios, now_ns) {
            self.repeat(index, now_ns);
        }
        while let Some(index) = self.volume.waits.flush_due(&self.on.ios, now_ns) {
            if self.on.ios.get(index).flush.is_without_queue {
                let waits = &mut self.volume.waits;
                self.on.ios.unlink(&mut waits.flushes, index);
                self.on.ios.exclude_wait(index, now_ns);
                self.flush(index, now_ns); // its path may be lost by now
            } else {
                self.give_up_writes(now_ns);
            }
        }
        while let Some(index) = self.volume.waits.pop_queued_due(&mut self.on.ios, now_ns) {
            self.end(index, Outcome::PathError, NO_PATH, now_ns);
        }
        self.end_without_queue(now_ns);
    }

    /// Ends what has waited for long on a core that has no queue: it is on no path, and its client
    /// goes, or has gone, to a core that has one.
    fn end_without_queue(&mut self, now_ns: u64) {
        while let Some((index, at_ns)) = self.volume.without_queue(&self.on.ios)
            && at_ns <= now_ns
        {
            let waits = &mut self.volume.waits;
            self.on.ios.unlink(&mut waits.queued, index);
            self.end(index, self.volume.without_path(), NO_PATH, now_ns);
        }
    }

    /// Goes on with held changes of path `at` that its controller can't execute any more, as
    /// was proved, or since the bound is over.
    pub(super) fn release_due(&mut self, at: PathIndex, now_ns: u64) {
        let path = self.volume.paths[at].index;
        let mut next = self.volume.fence.first_held(path);
        while let Some(index) = next {
            // An I/O that goes on is not held again here: its association is over.
            next = self.on.ios.next(index);
            if self.on.ios.get(index).state().is_due(now_ns) {
                self.on.ios.exclude_wait(index, now_ns);
                self.volume
                    .fence
                    .release(&mut self.on.ios, path, index, now_ns);
                self.dispose(at, index, Outcome::PathError, now_ns);
            }
        }
    }

    /// Gives an I/O to the path that was busy, or to another if that is gone.
    fn repeat(&mut self, index: u32, now_ns: u64) {
        let slot = self.on.ios.get(index);
        let path = slot.path;
        if slot.io.op == IoOp::Flush {
            return self.flush_again(index, path, now_ns);
        }
        if slot.history.attempt == AttemptEnd::Refused {
            self.on.ios.exclude_wait(index, now_ns);
            return self.place_again(index, now_ns);
        }
        let it = &mut *self.volume;
        let Some(able) = it.able(&mut self.on.ios, index, 1 << path.0) else {
            return; // as in `place_again`
        };
        match it.choose(&mut self.on.ios, index, able & 1 << path.0, now_ns) {
            Some(chosen) => self.put(index, chosen, now_ns),
            None => self.place_again(index, now_ns),
        }
    }
}

impl Multipath {
    /// Ends the waits whose time is over.
    pub(super) fn waits_over(&mut self, now_ns: u64) {
        // One kind after the other, in all volumes.
        for volume in (0..).take(self.volumes.len()) {
            self.io(volume).open_gate(now_ns);
        }
        for volume in (0..).take(self.volumes.len()) {
            self.io(volume).end_patience(now_ns);
        }
        self.each_path(|sessions, at| sessions.io().release_due(at, now_ns));
        for volume in (0..).take(self.volumes.len()) {
            self.io(volume).end_waits(now_ns);
        }
    }
}

/// The first wait for queues that have all refused an I/O, and the longest: long enough that a
/// thousand of them are no load, and short beside the start of a server.
const REFUSED_MIN_NS: u64 = 10_000_000;
const REFUSED_MAX_NS: u64 = 250_000_000;

/// Moves allowed where two per path would be fewer: a path that comes and goes is no ping-pong.
const HOPS_MIN: u8 = 8;
