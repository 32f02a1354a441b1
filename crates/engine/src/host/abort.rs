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
//! minutes); what it has waits for that. What was asked back before that is not waited for.
//! [`ABORTS_MAX`] expired I/Os per path and core; where more expire together it isn't one command
//! that is stuck, and the path is lost at once. A controller takes few Aborts at a time from all
//! cores together: core 0 keeps the others until those are answered, within the same wait. A
//! flush before a path
//! leaves is not aborted.
use super::io_table::{IoState, IoTable, Kind};
use super::outbox::Outbox;
use super::path::{Path, Role};
use super::types::{HostConfig, HostEvent, PathKind, PathNews};
use super::volumes::{PathInVolume, Volume};
use super::{HostEngine, report};
use crate::limits::{
    ABORT_ANSWERED_WAIT_NS, ABORT_WAIT_NS, ABORTS_MAX, ABORTS_SAID_NS, IDLE_PROBE_WAIT_NS,
    PROBE_WAIT_NS, RENEWALS_MAX,
};
use nvme::wire::Status;

/// The state of an I/O that has just expired.
const ASKED_BACK: IoState = IoState::Aborting {
    is_confirmed: false,
};

/// The Aborts of one path on this core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aborts {
    asked: [Option<Asked>; ABORTS_MAX],
    /// Core 0: when it was last said that an I/O was aborted, and how many were since.
    reported_ns: Option<u64>,
    unreported: u32,
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
    /// It has ended, and the Abort was not answered yet.
    ended: bool,
    /// The Abort was answered, and it has not ended yet.
    answered: bool,
}

impl Aborts {
    /// The queue is another one: nothing is asked of it.
    pub(super) fn clear(&mut self) {
        self.asked = [None; ABORTS_MAX];
    }

    /// When the command of an I/O must have ended; `None`: it is not to be aborted.
    fn until_ns(&self, token: u32) -> Option<u64> {
        let mut asked = self.asked.iter().flatten();
        let of = asked.find(|it| it.token == token && !it.ended)?;
        Some(of.until_ns)
    }

    /// When the command of an I/O was to be aborted.
    fn since_ns(&self, token: u32) -> u64 {
        let mut asked = self.asked.iter().flatten();
        let of = asked.find(|it| it.token == token && !it.ended);
        of.map_or(0, |it| it.since_ns)
    }

    fn room(&self) -> usize {
        self.asked.iter().filter(|it| it.is_none()).count()
    }

    /// Changes the entry for which `is` holds, and drops it when both ends are known. False: there
    /// is none.
    fn change(&mut self, is: impl Fn(&Asked) -> bool, change: impl FnOnce(&mut Asked)) -> bool {
        let mut all = self.asked.iter_mut();
        let Some(place) = all.find(|it| it.as_ref().is_some_and(&is)) else {
            return false; // the caller knows what that means
        };
        if let Some(asked) = place {
            change(asked);
            if asked.ended && asked.answered {
                *place = None;
            }
        }
        true
    }
}

impl Path {
    /// Whether nothing but its probe is under way on it, here and on the other cores: then it costs
    /// nothing to connect it again.
    pub(super) fn has_only_probe(&self, volume: &Volume, ios: &IoTable) -> bool {
        let probe = self.probing.probe.and_then(|token| ios.find(token));
        let front = self.lane.front();
        let only = front.is_some_and(|first| ios.next(first).is_none());
        let is_unused = volume.head.is_unused_elsewhere(self.index) && volume.recovery.enabled;
        front == probe && only && is_unused
    }

    /// Whether it is lost because its probe was not answered in an idle time, while no other path
    /// was better: that is no fault of it.
    pub(super) fn is_renewal(&self, volume: &Volume, ios: &IoTable) -> bool {
        let well = volume.head.probation(self.index).is_none();
        self.probing.renewing && self.has_only_probe(volume, ios) && well
    }

    /// An I/O that was asked back has ended on it, one way or another.
    #[cold]
    pub(super) fn overdue_ended(&mut self, token: u32) {
        let of = |it: &Asked| it.token == token && !it.ended;
        self.aborts.change(of, |it| it.ended = true);
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
            out.publish(PathNews::Paused {
                volume: self.volume,
                path: self.index,
                until_ns,
            });
        }
    }
}

impl PathInVolume<'_> {
    /// How long the probe of a silent path, issued at `issued_ns`, has before it is aborted;
    /// `None`: as long as any I/O.
    ///
    /// While another path is well, that is short. Else all may suffer together, and only a path
    /// with nothing but the probe is given up before `io_timeout`: it is connected anew before it
    /// is needed. A first block that takes long is no reason to do that again and again: each
    /// renewal doubles the wait until a probe is answered, and then it is twice what that took.
    fn probe_wait_ns(&self, ios: &IoTable, settings: &HostConfig, issued_ns: u64) -> Option<u64> {
        let path = self.path;
        let head = &self.volume.head;
        let another = head.another_is_well(path.index, issued_ns);
        let idle_ns = match settings.kato_ms {
            0 => IDLE_PROBE_WAIT_NS,
            kato_ms => u64::from(kato_ms) * 1_000_000,
        };
        match head.probation(path.index) {
            Some(_) => another.then_some(PROBE_WAIT_NS),
            None if another => Some(idle_ns),
            None if path.has_only_probe(self.volume, ios) => {
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
    fn renewal_turn_ns(&self, settings: &HostConfig) -> u64 {
        if !self.path.probing.renewing {
            return 0;
        }
        let others = self.others();
        let others = others.filter(|it| !it.is_live() && it.admin_state().returns());
        let lost_ns = others.filter_map(|it| it.comeback.lost_ns).max();
        let back_ns = settings.connect_timeout_ns.saturating_add(ABORT_WAIT_NS);
        lost_ns.map_or(0, |at_ns| at_ns.saturating_add(back_ns))
    }

    /// When the probe of a path is to be aborted, or the path to be given up after that;
    /// `u64::MAX`: never. A path that ends other I/O meanwhile is not silent: its probe has as long
    /// as any I/O, also once it was aborted. A probe that is never issued does not expire (T6).
    pub(super) fn probe_expiry_ns(&self, ios: &IoTable, settings: &HostConfig) -> u64 {
        let path = self.path;
        let tcp = matches!(path.kind, PathKind::NvmeTcp { .. });
        let index = path.probing.probe.filter(|_| tcp && path.is_live());
        let Some(index) = index.and_then(|token| ios.find(token)) else {
            return u64::MAX; // no probe is under way that could expire
        };
        let (slot, token) = (ios.get(index), ios.token(index));
        if !slot.is_expired() && ios.is_waiting(&path.lane, index) {
            return u64::MAX;
        }
        let head = &self.volume.head;
        let answered_ns = head.answered_ns(path.index);
        let io_timeout_ns = settings.io_timeout_ns;
        let early_ns = self.probe_wait_ns(ios, settings, slot.issued_ns);
        if !slot.is_expired() {
            let wait_ns = early_ns.map_or(io_timeout_ns, |ns| ns.min(io_timeout_ns));
            let last_ns = slot.issued_ns.max(answered_ns);
            return last_ns.max(path.paused_ns).saturating_add(wait_ns);
        }
        let Some(until_ns) = path.aborts.until_ns(token) else {
            return u64::MAX; // no Abort could be sent: the path is given up for that
        };
        if early_ns.is_some() && answered_ns < path.aborts.since_ns(token) {
            return until_ns.max(self.renewal_turn_ns(settings));
        }
        let since_ns = slot.issued_ns.max(path.paused_ns);
        until_ns.max(since_ns.saturating_add(io_timeout_ns))
    }

    /// When the oldest I/O of a path expires, or one that was asked back is to have ended, or its
    /// final flush.
    pub(super) fn expiry_ns(&self, ios: &IoTable, settings: &HostConfig) -> Option<u64> {
        let path = self.path;
        if !path.is_live() {
            return None;
        }
        let mut first_ns = u64::MAX;
        let mut next = path.lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != path.lane.waiting()) {
            let slot = ios.get(index);
            let until_ns = path.aborts.until_ns(ios.token(index));
            if let Some(until_ns) = until_ns.filter(|_| slot.is_expired()) {
                // What an aborted probe's time means is decided with the probe.
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
        if path.cache.final_flush.is_out() {
            first_ns = first_ns.min(path.cache.final_flush_ns.max(path.paused_ns));
        }
        first_ns = first_ns.min(self.probe_expiry_ns(ios, settings));
        Some(first_ns).filter(|&at_ns| at_ns < u64::MAX)
    }
}

impl HostEngine {
    /// The I/Os of a path whose time is over are asked back; true: the path must be given up.
    pub(super) fn expire(&mut self, number: usize, now_ns: u64) -> bool {
        let path = &self.paths[number];
        let paused_ns = path.paused_ns;
        let mut late =
            path.cache.final_flush.is_out() && path.cache.final_flush_ns.max(paused_ns) <= now_ns;
        let (lane, aborts) = (path.lane, path.aborts);
        let (mut new, mut counted) = (0, 0);
        let mut next = lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != lane.waiting()) {
            let token = self.ios.token(index);
            let slot = self.ios.get(index);
            let since_ns = slot.issued_ns.max(paused_ns);
            if since_ns.saturating_add(self.settings.io_timeout_ns) > now_ns {
                break;
            }
            let first = !slot.is_expired();
            new += u32::from(first);
            counted += u64::from(first && slot.kind != Kind::Probe);
            if first {
                self.ios.set_state(index, ASKED_BACK);
            }
            late |= aborts.until_ns(token).is_some_and(|at_ns| at_ns <= now_ns);
            next = self.ios.next(index);
        }
        self.paths[number].counters.timed_out += counted;
        if new == 0 || late {
            return late;
        }
        let tcp = matches!(self.paths[number].kind, PathKind::NvmeTcp { .. });
        let can = tcp && self.at(number).recovers() && new as usize <= aborts.room();
        !can || !self.ask_back(number, now_ns)
    }

    /// The probe of a path has had its time; true: the path must be given up.
    pub(super) fn expire_probe(&mut self, number: usize, now_ns: u64) -> bool {
        let path = &self.paths[number];
        let Some(index) = path.probing.probe.and_then(|token| self.ios.find(token)) else {
            unreachable!("only a probe that is under way has a time");
        };
        let slot = self.ios.get(index);
        if slot.is_expired() {
            return true; // it was aborted, and did not end
        }
        let can = self.at(number).recovers() && path.aborts.room() > 0;
        let head = &self.volumes[usize::from(path.volume)].head;
        let blameless = head.probation(path.index).is_none()
            && !head.another_is_well(path.index, slot.issued_ns);
        let volume = &self.volumes[usize::from(path.volume)];
        let renewing = blameless && path.has_only_probe(volume, &self.ios);
        self.paths[number].probing.renewing = renewing;
        self.ios.set_state(index, ASKED_BACK);
        let token = self.ios.token(index);
        !can || !self.ask_one_back(number, token, now_ns)
    }

    /// Asks for all expired I/Os of a path; false: one can't be asked for.
    fn ask_back(&mut self, number: usize, now_ns: u64) -> bool {
        let lane = self.paths[number].lane;
        let mut next = lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != lane.waiting()) {
            if !self.ios.get(index).is_expired() {
                break;
            }
            let token = self.ios.token(index);
            let asked = self.paths[number].aborts.until_ns(token).is_some();
            if !asked && !self.ask_one_back(number, token, now_ns) {
                return false;
            }
            next = self.ios.next(index);
        }
        true
    }

    fn ask_one_back(&mut self, number: usize, token: u32, now_ns: u64) -> bool {
        let core = self.settings.core;
        let path = &mut self.paths[number];
        let (volume, index) = (path.volume, path.index);
        let mut places = path.aborts.asked.iter_mut();
        let Some(place) = places.find(|it| it.is_none()) else {
            return false; // so many late commands are no trouble of single ones
        };
        // What the controller was never told of can't be aborted, and says that nothing is sent.
        let Some(cid) = path.queue.as_mut().and_then(|queue| queue.abort(token)) else {
            return false; // the path is lost for it
        };
        let slot = self.ios.find(token).map(|index| self.ios.get(index));
        let probe = slot.is_some_and(|slot| slot.kind == Kind::Probe);
        let until_ns = now_ns.saturating_add(ABORT_WAIT_NS);
        *place = Some(Asked {
            token,
            cid,
            since_ns: now_ns,
            until_ns,
            ended: false,
            answered: false,
        });
        self.out.wake_by(until_ns);
        if core == 0 {
            if probe {
                let qid = self.paths[number].qid;
                self.paths[number].probes_aborted.push((qid, cid));
            }
            return self.send_abort(number, self.paths[number].qid, cid, now_ns);
        }
        self.out.tell_core_0(PathNews::Abort {
            volume,
            path: index,
            sqid: self.paths[number].qid,
            cid,
            probe,
        });
        true
    }

    /// Core 0: sends an Abort; false: it can't.
    fn send_abort(&mut self, number: usize, sqid: u16, cid: u16, now_ns: u64) -> bool {
        let resetting = self.at(number).is_resetting();
        let path = &mut self.paths[number];
        let used = path.has_association();
        let open = used && path.is_open(Role::Admin);
        let admin = path.admin.as_mut().filter(|_| open);
        let sent = admin.is_some_and(|admin| admin.abort(sqid, cid, now_ns));
        if sent {
            self.out.touch(&mut self.paths[number], Role::Admin);
            return true;
        }
        // The controller takes no more at a time, for all cores: the next answer makes room.
        let most = usize::from(self.settings.cores) * ABORTS_MAX;
        let wait = open && !resetting && path.aborts_due.len() < most;
        if wait {
            path.aborts_due.push_back((sqid, cid));
        }
        wait
    }

    /// Core 0: an Abort was answered, so that the next may go out.
    fn send_next_abort(&mut self, number: usize, now_ns: u64) {
        let due = self.paths[number].aborts_due.pop_front();
        if let Some((sqid, cid)) = due {
            self.abort_for(number, sqid, cid, now_ns);
        }
    }

    /// Core 0: another core wants a command of its queue aborted, which may be a `probe`.
    pub(super) fn abort_asked(
        &mut self,
        number: usize,
        sqid: u16,
        cid: u16,
        probe: bool,
        now_ns: u64,
    ) {
        if probe {
            self.paths[number].probes_aborted.push((sqid, cid));
        }
        self.abort_for(number, sqid, cid, now_ns);
    }

    /// Core 0: a command of another core's queue is to be aborted.
    fn abort_for(&mut self, number: usize, sqid: u16, cid: u16, now_ns: u64) {
        if !self.send_abort(number, sqid, cid, now_ns) {
            self.abort_answered(number, sqid, cid, false, now_ns);
        }
    }

    /// Core 0: the controller has answered an Abort.
    pub(super) fn abort_answered(
        &mut self,
        number: usize,
        sqid: u16,
        cid: u16,
        aborted: bool,
        now_ns: u64,
    ) {
        // A probe is no I/O that anybody waits for.
        let probes = &mut self.paths[number].probes_aborted;
        let probe = probes.iter().position(|&it| it == (sqid, cid));
        if let Some(at) = probe {
            probes.swap_remove(at);
        } else if aborted {
            self.report_aborts(number, now_ns);
        }
        self.send_next_abort(number, now_ns);
        if sqid == self.paths[number].qid {
            return self.asked_back(number, cid, aborted, now_ns);
        }
        let path = &self.paths[number];
        let (volume, path) = (path.volume, path.index);
        self.out.publish(PathNews::Aborted {
            volume,
            path,
            sqid,
            cid,
            aborted,
        });
    }

    /// An Abort of this core's is over. The command ends by itself.
    pub(super) fn asked_back(&mut self, number: usize, cid: u16, aborted: bool, now_ns: u64) {
        let soon_ns = now_ns.saturating_add(ABORT_ANSWERED_WAIT_NS);
        let path = &mut self.paths[number];
        let probe = path.probing.probe.filter(|_| !path.probing.renewing);
        let mut token = None;
        let known = path.aborts.change(
            |it| it.cid == cid && !it.answered,
            |it| {
                it.answered = true;
                token = Some(it.token).filter(|_| !it.ended);
                // The controller is well, and what it answers is lost on the way.
                if Some(it.token) == probe {
                    it.until_ns = it.until_ns.min(soon_ns);
                }
            },
        );
        if !known {
            return; // it was asked of a queue that is gone
        }
        if let Some(queue) = &mut path.queue {
            queue.abort_over(cid);
        }
        if let Some(index) = token.and_then(|token| self.ios.find(token)) {
            let state = IoState::Aborting {
                is_confirmed: aborted,
            };
            self.ios.set_state(index, state);
        }
        self.out.wake_by(soon_ns);
        // There may be room again.
        self.refill(number, now_ns);
    }

    /// Core 0: a line for all cores, now and then.
    fn report_aborts(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        path.aborts.unreported += 1;
        let soon = |at_ns: u64| now_ns < at_ns.saturating_add(ABORTS_SAID_NS);
        if path.aborts.reported_ns.is_some_and(soon) {
            return;
        }
        let count = core::mem::take(&mut path.aborts.unreported);
        path.aborts.reported_ns = Some(now_ns);
        let path = &self.paths[number];
        let name = &self.volumes[usize::from(path.volume)].name;
        let why = report::aborted(count, self.settings.io_timeout_ns);
        let line = report::line(name, path, self.settings.core, &why);
        self.out.report(HostEvent::Warning(path.volume, line));
    }
}
