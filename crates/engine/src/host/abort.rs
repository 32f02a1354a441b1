//! I/Os that outlive `io_timeout`: taken back by Abort, else their path is lost (T12).
//!
//! An Abort for the command goes out over the admin connection, which core 0 has; other cores ask
//! it to. The path lives on if the command then ends within [`ABORT_WAIT_NS`], aborted or done
//! after all. One that was aborted is not executed any more (Base 2.0, 5.1), so it moves to another
//! path at once, a write too (T9). Whatever else happens, or nothing, the path is lost: its
//! controller is reset, else the bound counts (`proof`).
//!
//! # Contract
//! An overdue command keeps its place, its memory and its identifier until it has ended (T10, T11);
//! that an Abort was answered ends nothing by itself, but is proof where the path is lost before
//! the command's own end has come. Each expired I/O counts as timed out on its path, however it
//! ends.
//!
//! # Limits
//! Who says that it activates firmware is believed for as long as it reported (MTFA: up to 109
//! minutes); what it has waits for that. A command that was asked back before that is not waited
//! for.
//! [`ABORTS_MAX`] expired I/Os per path and core; where more expire together it isn't one command
//! that is stuck, and the path is lost at once. A controller takes few Aborts at a time from all
//! cores together: core 0 keeps the others until those are answered, within the same wait. A
//! flush before a path
//! leaves is not aborted.
use super::connections::Role;
use super::io_table::{IoState, IoTable, Kind};
use super::outbox::Outbox;
use super::path::Path;
use super::report;
use super::types::{HostConfig, PathEvent, PathKind};
use super::volumes::{PathContext, Volume};
use crate::limits::{
    ABORT_ANSWERED_WAIT_NS, ABORT_WAIT_NS, ABORTS_MAX, ABORTS_SAID_NS, IDLE_PROBE_WAIT_NS,
    PROBE_WAIT_NS, RENEWALS_MAX,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use multipath::Head;
use nvme::wire::Status;
use policy::PathIndex;

/// The state of an I/O that has just expired.
const ASKED_BACK: IoState = IoState::Aborting {
    is_confirmed: false,
};

/// A command, as Abort names it: number of its queue, and its identifier there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandId {
    pub sqid: u16,
    pub cid: u16,
}

/// The commands of one path on this core that are to be aborted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aborts {
    asked: [Option<Asked>; ABORTS_MAX],
}

/// A command that is to be aborted.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Its I/O.
    token: u32,
    cid: u16,
    /// When that was asked for.
    since_ns: u64,
    /// It must have ended by then.
    until_ns: u64,
    state: AbortState,
}

/// How far the Abort of a command has got. It is over when the command has ended and the Abort was
/// answered, in either order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbortState {
    /// Neither.
    Asked,
    /// The command has ended.
    CommandEnded,
    /// The Abort was answered.
    Answered,
}

/// The end of a command that is to be aborted, or of its Abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbortEvent {
    CommandEnded,
    Answered,
}

impl Aborts {
    /// The queue is another one: nothing is asked of it.
    pub(super) fn clear(&mut self) {
        self.asked = [None; ABORTS_MAX];
    }

    /// The entry of an I/O whose command has not ended.
    fn of(&self, token: u32) -> Option<&Asked> {
        let mut asked = self.asked.iter().flatten();
        asked.find(|it| it.token == token && it.state != AbortState::CommandEnded)
    }

    /// When the command of an I/O must have ended; `None`: it is not to be aborted.
    fn until_ns(&self, token: u32) -> Option<u64> {
        self.of(token).map(|it| it.until_ns)
    }

    /// When the command of an I/O was to be aborted.
    fn since_ns(&self, token: u32) -> u64 {
        self.of(token).map_or(0, |it| it.since_ns)
    }

    fn room(&self) -> usize {
        self.asked.iter().filter(|it| it.is_none()).count()
    }

    /// Notes that a command is to be aborted.
    ///
    /// # Panics
    /// If there is no room.
    fn begin(&mut self, token: u32, cid: u16, now_ns: u64) -> u64 {
        let Some(place) = self.asked.iter_mut().find(|it| it.is_none()) else {
            unreachable!("an Abort is asked for without room");
        };
        let until_ns = now_ns.saturating_add(ABORT_WAIT_NS);
        *place = Some(Asked {
            token,
            cid,
            since_ns: now_ns,
            until_ns,
            state: AbortState::Asked,
        });
        until_ns
    }

    /// The command of an I/O must have ended by then, ns, if not before.
    fn hasten(&mut self, token: u32, until_ns: u64) {
        let mut asked = self.asked.iter_mut().flatten();
        let of = asked.find(|it| it.token == token && it.state != AbortState::CommandEnded);
        if let Some(of) = of {
            of.until_ns = of.until_ns.min(until_ns);
        }
    }

    /// Notes what has ended of the first entry for which `is` holds, and drops it when both have.
    /// Returns it as it was before; `None`: there is none.
    fn end(&mut self, event: AbortEvent, is: impl Fn(&Asked) -> bool) -> Option<Asked> {
        let mut all = self.asked.iter_mut();
        let place = all.find(|it| it.as_ref().is_some_and(&is))?;
        let before = (*place)?;
        let state = match (before.state, event) {
            (AbortState::Asked, AbortEvent::CommandEnded) => Some(AbortState::CommandEnded),
            (AbortState::Asked, AbortEvent::Answered) => Some(AbortState::Answered),
            (AbortState::CommandEnded, AbortEvent::Answered)
            | (AbortState::Answered, AbortEvent::CommandEnded) => None,
            (state, event) => unreachable!("an Abort is {state:?}, and again {event:?}"),
        };
        *place = state.map(|state| Asked { state, ..before });
        Some(before)
    }
}

/// Core 0: the Aborts for one controller, of all cores' commands.
#[derive(Debug, Default)]
pub(super) struct AbortQueue {
    /// Those that wait for others, which the controller has not answered.
    due: VecDeque<CommandId>,
    /// Probes whose Aborts were not answered yet.
    probes: Vec<CommandId>,
    /// When it was last said that an I/O was aborted, ns, and how many were since.
    reported_ns: Option<u64>,
    unreported: u32,
}

impl AbortQueue {
    /// The queues are other ones: nothing is asked of them.
    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.probes.clear();
    }

    /// A command is to be aborted that is a probe.
    fn note_probe(&mut self, command: CommandId) {
        self.probes.push(command);
    }

    /// Whether an answer is to a probe's Abort; it is none any more.
    fn take_probe(&mut self, command: CommandId) -> bool {
        let at = self.probes.iter().position(|&it| it == command);
        at.inspect(|&at| {
            self.probes.swap_remove(at);
        })
        .is_some()
    }

    /// Counts an I/O that was aborted. Returns how many are to be reported now, if any.
    fn count(&mut self, now_ns: u64) -> Option<u32> {
        self.unreported += 1;
        let soon = |at_ns: u64| now_ns < at_ns.saturating_add(ABORTS_SAID_NS);
        if self.reported_ns.is_some_and(soon) {
            return None;
        }
        self.reported_ns = Some(now_ns);
        Some(core::mem::take(&mut self.unreported))
    }
}

impl Path {
    /// Whether nothing but its probe is under way on it, here and on the other cores: then it costs
    /// nothing to connect it again.
    pub(super) fn has_only_probe(&self, recovers: bool, head: &Head, ios: &IoTable) -> bool {
        let probe = self.probing.probe.and_then(|token| ios.find(token));
        let front = self.lane.front();
        let only = front.is_some_and(|first| ios.next(first).is_none());
        front == probe && only && recovers && head.is_unused_elsewhere(self.index)
    }

    /// Whether it is lost because its probe was not answered in an idle time, while no other path
    /// was better: that is no fault of it.
    pub(super) fn is_renewal(&self, recovers: bool, head: &Head, ios: &IoTable) -> bool {
        let well = head.probation(self.index).is_none();
        self.probing.renewing && self.has_only_probe(recovers, head, ios) && well
    }

    /// An I/O that was asked back has ended on it, one way or another.
    #[cold]
    pub(super) fn overdue_ended(&mut self, token: u32) {
        let is = |it: &Asked| it.token == token && it.state != AbortState::CommandEnded;
        // Else it expired, and could not be asked for.
        self.aborts.end(AbortEvent::CommandEnded, is);
    }

    /// Whether a command ended because it was aborted, as its time was over: that means as much as
    /// no answer, but that it will not be executed.
    pub(super) fn was_aborted(&mut self, ios: &mut IoTable, index: u32, status: Status) -> bool {
        let slot = ios.get(index);
        let aborted = status.is(Status::ABORT_REQUESTED) && slot.is_expired();
        let counted = aborted && slot.kind != Kind::Probe;
        self.counters.aborted += u64::from(counted);
        if aborted {
            // It may say so before the Abort is answered.
            let state = IoState::Aborting { is_confirmed: true };
            ios.set_state(index, state);
        }
        aborted
    }

    /// Its controller answers nothing until then: what it has is not late before it has had its
    /// time from there on (T30). Core 0 tells the others.
    pub(super) fn pause(&mut self, until_ns: u64, out: &mut Outbox) {
        self.paused_ns = until_ns;
        if out.core() == 0 {
            out.publish(self.news(PathEvent::Paused(until_ns)));
        }
    }

    /// Asks back its I/Os whose time is over; true: it must be given up.
    pub(super) fn expire(&mut self, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        let flush_ns = self.cache.final_flush().until_ns();
        let mut late = flush_ns.is_some_and(|at_ns| at_ns.max(self.paused_ns) <= now_ns);
        let mut new = 0;
        let mut next = self.lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != self.lane.waiting()) {
            let slot = on.ios.get(index);
            let since_ns = slot.issued_ns.max(self.paused_ns);
            if since_ns.saturating_add(on.settings.io_timeout_ns) > now_ns {
                break;
            }
            let until_ns = self.aborts.until_ns(on.ios.token(index));
            late |= until_ns.is_some_and(|at_ns| at_ns <= now_ns);
            if !slot.is_expired() {
                new += 1;
                self.counters.timed_out += u64::from(slot.kind != Kind::Probe);
                on.ios.set_state(index, ASKED_BACK);
            }
            next = on.ios.next(index);
        }
        if new == 0 || late {
            return late;
        }
        let tcp = matches!(self.kind, PathKind::NvmeTcp { .. });
        let can = tcp && on.recovery.enabled && new <= self.aborts.room();
        !can || !self.ask_back(on, now_ns)
    }

    /// Its probe has had its time; true: it must be given up.
    pub(super) fn expire_probe(&mut self, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        let Some(index) = self.probing.probe.and_then(|token| on.ios.find(token)) else {
            unreachable!("only a probe that is under way has a time");
        };
        let slot = on.ios.get(index);
        if slot.is_expired() {
            return true; // it was aborted, and did not end
        }
        let can = on.recovery.enabled && self.aborts.room() > 0;
        let head = &*on.head;
        let blameless = head.probation(self.index).is_none()
            && !head.another_is_well(self.index, slot.issued_ns);
        self.probing.renewing =
            blameless && self.has_only_probe(on.recovery.enabled, on.head, on.ios);
        on.ios.set_state(index, ASKED_BACK);
        let token = on.ios.token(index);
        !can || !self.ask_one_back(token, on, now_ns)
    }

    /// Asks for all its expired I/Os; false: one can't be asked for.
    fn ask_back(&mut self, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        let lane = self.lane;
        let mut next = lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != lane.waiting()) {
            if !on.ios.get(index).is_expired() {
                break;
            }
            let token = on.ios.token(index);
            let asked = self.aborts.until_ns(token).is_some();
            if !asked && !self.ask_one_back(token, on, now_ns) {
                return false;
            }
            next = on.ios.next(index);
        }
        true
    }

    fn ask_one_back(&mut self, token: u32, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        if self.aborts.room() == 0 {
            return false; // so many late commands are no trouble of single ones
        }
        // A command that the controller was never sent can't be aborted, and says that nothing is
        // sent.
        let queue = self.session.queue.as_mut();
        let Some(cid) = queue.and_then(|queue| queue.abort(token)) else {
            return false; // the path is lost for it
        };
        let slot = on.ios.find(token).map(|index| on.ios.get(index));
        let probe = slot.is_some_and(|slot| slot.kind == Kind::Probe);
        let until_ns = self.aborts.begin(token, cid, now_ns);
        on.out.wake_by(until_ns);
        let sqid = self.known.qid;
        let command = CommandId { sqid, cid };
        if on.settings.core == 0 {
            if probe {
                self.abort_queue.note_probe(command);
            }
            return self.send_abort(command, on, now_ns);
        }
        on.out
            .tell_core_0(self.news(PathEvent::Abort { sqid, cid, probe }));
        true
    }

    /// Core 0: sends an Abort; false: it can't.
    fn send_abort(&mut self, command: CommandId, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        let open = self.session.state().has_association() && self.session.is_open(Role::Admin);
        let admin = self.session.admin.as_mut().filter(|_| open);
        let CommandId { sqid, cid } = command;
        if admin.is_some_and(|admin| admin.abort(sqid, cid, now_ns)) {
            on.out.touch(&mut self.session, Role::Admin);
            return true;
        }
        // The controller takes no more at a time, for all cores: the next answer makes room.
        let most = usize::from(on.settings.cores) * ABORTS_MAX;
        let resetting = on.fence.is_resetting(self.index);
        let wait = open && !resetting && self.abort_queue.due.len() < most;
        if wait {
            self.abort_queue.due.push_back(command);
        }
        wait
    }

    /// Core 0: another core wants a command of its queue aborted, which may be a `probe`. Returns
    /// as [`Self::abort_answered`].
    pub(super) fn abort_asked(
        &mut self,
        command: CommandId,
        probe: bool,
        on: &mut PathContext<'_>,
        now_ns: u64,
    ) -> bool {
        if probe {
            self.abort_queue.note_probe(command);
        }
        self.abort_for(command, on, now_ns)
    }

    /// Core 0: a command is to be aborted. Returns as [`Self::abort_answered`].
    fn abort_for(&mut self, command: CommandId, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        !self.send_abort(command, on, now_ns) && self.abort_answered(command, false, on, now_ns)
    }

    /// Core 0: its controller has answered an Abort; `aborted`: and taken the command back. Returns
    /// whether this core's queue may have room again.
    pub(super) fn abort_answered(
        &mut self,
        command: CommandId,
        aborted: bool,
        on: &mut PathContext<'_>,
        now_ns: u64,
    ) -> bool {
        // A probe is no I/O that anybody waits for.
        let counts = !self.abort_queue.take_probe(command) && aborted;
        if let Some(count) = counts.then(|| self.abort_queue.count(now_ns)).flatten() {
            // A line for all cores, now and then.
            on.warn(self, &report::aborted(count, on.settings.io_timeout_ns));
        }
        // The next may go out.
        let due = self.abort_queue.due.pop_front();
        let has_room = due.is_some_and(|due| self.abort_for(due, on, now_ns));
        let CommandId { sqid, cid } = command;
        if sqid == self.known.qid {
            return self.abort_ended(cid, aborted, on, now_ns) || has_room;
        }
        on.out
            .publish(self.news(PathEvent::Aborted { sqid, cid, aborted }));
        has_room
    }

    /// An Abort of this core's is over. The command ends by itself. Returns as
    /// [`Self::abort_answered`].
    pub(super) fn abort_ended(
        &mut self,
        cid: u16,
        aborted: bool,
        on: &mut PathContext<'_>,
        now_ns: u64,
    ) -> bool {
        let soon_ns = now_ns.saturating_add(ABORT_ANSWERED_WAIT_NS);
        let is = |it: &Asked| it.cid == cid && it.state != AbortState::Answered;
        let Some(asked) = self.aborts.end(AbortEvent::Answered, is) else {
            return false; // it was asked of a queue that is gone
        };
        let probe = self.probing.probe.filter(|_| !self.probing.renewing);
        if Some(asked.token) == probe {
            // The controller is well, and what it answers is lost on the way.
            self.aborts.hasten(asked.token, soon_ns);
        }
        if let Some(queue) = &mut self.session.queue {
            queue.abort_over(cid);
        }
        let is_under_way = asked.state == AbortState::Asked;
        if let Some(index) = on.ios.find(asked.token).filter(|_| is_under_way) {
            let is_confirmed = aborted;
            on.ios.set_state(index, IoState::Aborting { is_confirmed });
        }
        on.out.wake_by(soon_ns);
        true
    }
}

impl Volume {
    /// How long the probe of a silent path, issued at `issued_ns`, has before it is aborted;
    /// `None`: as long as any I/O.
    ///
    /// While another path is well, that is short. Else all may suffer together, and only a path
    /// with nothing but the probe is given up before `io_timeout`: it is connected anew before it
    /// is needed. A first block that takes long is no reason to do that again and again: each
    /// renewal doubles the wait until a probe is answered, and then it is twice what that took.
    fn probe_wait_ns(
        &self,
        at: PathIndex,
        ios: &IoTable,
        settings: &HostConfig,
        issued_ns: u64,
    ) -> Option<u64> {
        let path = &self.paths[at];
        let head = &self.head;
        let another = head.another_is_well(path.index, issued_ns);
        let idle_ns = match settings.kato_ms {
            0 => IDLE_PROBE_WAIT_NS,
            kato_ms => u64::from(kato_ms) * 1_000_000,
        };
        match head.probation(path.index) {
            Some(_) => another.then_some(PROBE_WAIT_NS),
            None if another => Some(idle_ns),
            None if path.has_only_probe(self.recovery.enabled, head, ios) => {
                let least_ns = idle_ns.max(path.probing.probe_took_ns.saturating_mul(2));
                let wait_ns = least_ns.saturating_mul(1 << path.probing.renewals.min(RENEWALS_MAX));
                // Before it expires as an I/O, which would be the path's fault.
                let io_timeout_ns = settings.io_timeout_ns;
                Some(wait_ns.min(io_timeout_ns - io_timeout_ns / 8))
            }
            None => None,
        }
    }

    /// From when on a path may be connected anew while no other path was better: those of a volume
    /// take turns, and one that was just lost has the time of a reset to come back.
    fn renewal_turn_ns(&self, at: PathIndex, settings: &HostConfig) -> u64 {
        if !self.paths[at].probing.renewing {
            return 0;
        }
        let others = self.others(at);
        let others = others.filter(|it| !it.is_live() && it.admin_state().returns());
        let lost_ns = others.filter_map(|it| it.session.comeback.lost_ns).max();
        let back_ns = settings.connect_timeout_ns.saturating_add(ABORT_WAIT_NS);
        lost_ns.map_or(0, |at_ns| at_ns.saturating_add(back_ns))
    }

    /// When the probe of a path is to be aborted, or the path to be given up after that;
    /// `u64::MAX`: never. A path that ends other I/O meanwhile is not silent: its probe has as long
    /// as any I/O, also once it was aborted. A probe that is never issued does not expire (T6).
    pub(super) fn probe_expiry_ns(
        &self,
        at: PathIndex,
        ios: &IoTable,
        settings: &HostConfig,
    ) -> u64 {
        let path = &self.paths[at];
        let tcp = matches!(path.kind, PathKind::NvmeTcp { .. });
        let index = path.probing.probe.filter(|_| tcp && path.is_live());
        let Some(index) = index.and_then(|token| ios.find(token)) else {
            return u64::MAX; // no probe is under way that could expire
        };
        let (slot, token) = (ios.get(index), ios.token(index));
        if !slot.is_expired() && ios.is_waiting(&path.lane, index) {
            return u64::MAX;
        }
        let head = &self.head;
        let answered_ns = head.answered_ns(path.index);
        let io_timeout_ns = settings.io_timeout_ns;
        let early_ns = self.probe_wait_ns(at, ios, settings, slot.issued_ns);
        if !slot.is_expired() {
            let wait_ns = early_ns.map_or(io_timeout_ns, |ns| ns.min(io_timeout_ns));
            let last_ns = slot.issued_ns.max(answered_ns);
            return last_ns.max(path.paused_ns).saturating_add(wait_ns);
        }
        let Some(until_ns) = path.aborts.until_ns(token) else {
            return u64::MAX; // no Abort could be sent: the path is given up for that
        };
        if early_ns.is_some() && answered_ns < path.aborts.since_ns(token) {
            return until_ns.max(self.renewal_turn_ns(at, settings));
        }
        let since_ns = slot.issued_ns.max(path.paused_ns);
        until_ns.max(since_ns.saturating_add(io_timeout_ns))
    }

    /// When the oldest I/O of a path expires, or one that was asked back is to have ended, or its
    /// final flush.
    pub(super) fn expiry_ns(
        &self,
        at: PathIndex,
        ios: &IoTable,
        settings: &HostConfig,
    ) -> Option<u64> {
        let path = &self.paths[at];
        if !path.is_live() {
            return None;
        }
        let mut first_ns = u64::MAX;
        let mut next = path.lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != path.lane.waiting()) {
            let slot = ios.get(index);
            let until_ns = path.aborts.until_ns(ios.token(index));
            if let Some(until_ns) = until_ns.filter(|_| slot.is_expired()) {
                // The meaning of an aborted probe's time is decided with the probe.
                if slot.kind != Kind::Probe {
                    first_ns = first_ns.min(until_ns);
                }
                next = ios.next(index);
                continue;
            }
            let since_ns = slot.issued_ns.max(path.paused_ns);
            let expires_ns = since_ns.saturating_add(settings.io_timeout_ns);
            first_ns = first_ns.min(expires_ns);
            break;
        }
        if let Some(at_ns) = path.cache.final_flush().until_ns() {
            first_ns = first_ns.min(at_ns.max(path.paused_ns));
        }
        first_ns = first_ns.min(self.probe_expiry_ns(at, ios, settings));
        Some(first_ns).filter(|&at_ns| at_ns < u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CID: u16 = 10;

    fn asked() -> Aborts {
        let mut it = Aborts::default();
        assert_eq!(it.begin(1, CID, 5), 5 + ABORT_WAIT_NS);
        it
    }

    fn end(it: &mut Aborts, event: AbortEvent) -> bool {
        it.end(event, |asked| asked.cid == CID).is_some()
    }

    #[test]
    fn abort_is_over_once_both_ends_are_known() {
        use AbortEvent::*;
        for (first, second, until_ns) in [
            (CommandEnded, Answered, None),
            (Answered, CommandEnded, Some(5 + ABORT_WAIT_NS)),
        ] {
            let mut it = asked();
            assert!(end(&mut it, first));
            assert_eq!(it.until_ns(1), until_ns, "after {first:?}");
            assert_eq!(it.room(), ABORTS_MAX - 1);
            assert!(end(&mut it, second));
            assert_eq!((it.room(), it.until_ns(1)), (ABORTS_MAX, None));
            assert!(!end(&mut it, second), "it is unknown");
        }
    }

    #[test]
    #[should_panic(expected = "again")]
    fn abort_answered_twice_is_refused() {
        let mut it = asked();
        end(&mut it, AbortEvent::Answered);
        end(&mut it, AbortEvent::Answered);
    }

    #[test]
    fn aborted_io_is_counted_until_the_next_line() {
        let mut it = AbortQueue::default();
        assert_eq!(it.count(7), Some(1));
        assert_eq!([it.count(8), it.count(7 + ABORTS_SAID_NS - 1)], [None; 2]);
        assert_eq!(it.count(7 + ABORTS_SAID_NS), Some(3));
    }

    #[test]
    fn probe_is_no_io_once() {
        let mut it = AbortQueue::default();
        let command = CommandId { sqid: 1, cid: CID };
        it.note_probe(command);
        assert!(it.take_probe(command) && !it.take_probe(command));
    }
}
