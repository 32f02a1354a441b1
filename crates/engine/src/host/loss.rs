//! The end of a path: lost connections, time-outs.
//!
//! A path is lost once, for whatever came first; that is reported in one line. Its connections are
//! closed, its waiting I/Os go on at once, and those given to its queue when nobody refers to
//! their memory any more: when the queue says so, at the latest when the reactor has closed the
//! connection (T10, T23). An expired I/O that can't be taken back escalates to exactly this (T12).
use super::connections::{Link, Role, SessionState};
use super::outbox::Outbox;
use super::path::{AdminState, Path};
use super::pending_change::{ChangeStep, Changing};
use super::report;
use super::session::Sessions;
use super::types::{HostEvent, PathKind};
use super::volumes::PathContext;
use crate::machine::{Closed, Output};
use multipath::Head;
use multipath::health::Why;
use nvme::host::HostError;
use policy::PathIndex;

impl Path {
    /// Its device is to end what it can be kept from doing. The path is used again when the device
    /// may be asked again, and has ended all.
    fn take_back_device(&mut self, out: &mut Outbox) {
        if let Some(device) = self.kind.device() {
            self.letting_go = true;
            let id = let_go_id(self.place);
            out.push(Output::LetGo { device, id });
        }
    }

    /// Whether its device has answered under `id` that it may be asked again; else that is a
    /// request's.
    pub(super) fn take_let_go(&mut self, id: u32) -> bool {
        let answers = self.letting_go && id == let_go_id(self.place);
        self.letting_go &= !answers;
        answers
    }

    /// Whether it is lost for a reason that was reported since its probation began: it is on
    /// probation because it was lost before, and another probe was not answered.
    fn stays_out(&mut self, head: &Head, why: &str) -> bool {
        let again = head.probation(self.index).map(|it| it.why) == Some(Why::Flaps);
        let again = again && why == report::PROBE_UNANSWERED;
        again && core::mem::replace(&mut self.probing.stays_out, true)
    }

    /// Whether what a connection has not sent must not go out any more: the bound of held writes
    /// counts from its end (T9).
    pub(super) fn must_abort(&self, role: Role, on: &PathContext<'_>) -> bool {
        let has_io = !self.lane.is_empty();
        let doubt = match role {
            Role::Io => has_io,
            Role::Admin => has_io || on.fence.is_resetting(self.index),
        };
        doubt && on.recovery.enabled
    }
}

impl Sessions<'_> {
    /// Ends a path for the reason `why` (`None`: it was reported elsewhere); nothing more happens
    /// if it was lost before.
    pub(super) fn lose(&mut self, at: PathIndex, why: Option<&str>, now_ns: u64) {
        let it = &*self.volume;
        let renewal = it.paths[at].is_renewal(it.recovery.enabled, &it.head, &self.on.ios);
        self.lose_for(at, why, renewal, now_ns);
    }

    /// The same; `renewal`: only to connect it anew, without any blame.
    pub(super) fn lose_for(
        &mut self,
        at: PathIndex,
        why: Option<&str>,
        renewal: bool,
        now_ns: u64,
    ) {
        let others = self.volume.others_may_cache(at, self.on.settings.cores);
        let covered = self
            .on
            .changes
            .step(Changing::Path(self.volume.paths[at].place))
            == Some(ChangeStep::CloseQueue);
        let is_closing = self.on.shutdown.is_closing();
        let (path, mut on) = self.path(at);
        let longest_ns = on.recovery.reconnect_max_ns;
        let Some(before) = path.session.lose(longest_ns, now_ns) else {
            return; // it was lost before, for another reason, or closed in order
        };
        on.out.note_state();
        let was_live = matches!(before, SessionState::Live);
        path.counters.losses += u64::from(was_live);
        let had_queues = before.has_association();
        path.cache.note_lost(others && !covered && had_queues);
        let head = &mut *on.head;
        if path.admin_state().returns() && was_live {
            path.suspect(on.ios);
            if renewal {
                let is_probed = u8::from(path.probing.probe.is_some());
                path.probing.renewals = path.probing.renewals.saturating_add(is_probed);
                head.renewed(at, now_ns);
            } else {
                path.measured.losses += u32::from(on.settings.core == 0);
                head.broke(at, now_ns);
            }
        }
        head.lose(at);
        path.stop_asking(&before, &mut on);
        path.drop_questions(on.out);
        if let Some(why) = why.filter(|_| !is_closing) {
            let line = on.line(path, why);
            // The caller that adds a path is answered with the line.
            let answered = on.settings.core == 0 && path.admin_state() == AdminState::Joining;
            let known = path.stays_out(on.head, why);
            if path.session.comeback.is_news(&line) && !answered && !known {
                on.out.report(HostEvent::Failed(path.volume, line));
            }
        }
        let own = why.is_some() && on.recovery.enabled;
        path.report_loss(own, renewal, on.settings, on.out);
        let mut io = self.io();
        io.fail_waiting(at, now_ns);
        io.volume.fence_in_flight(at, &mut io.on.ios);
        io.abandon_flushes(at, now_ns);
        let (path, mut on) = io.path(at);
        if was_live {
            path.take_back_device(on.out);
        }
        let resets = path.reset(had_queues, is_closing, &mut on, now_ns);
        for role in Role::ALL {
            // A link that is being closed in order has a last word to say.
            let has_more = matches!(path.session.link(role), Some(Link::Closing { .. }));
            let is_kept = role == Role::Admin && resets;
            if !has_more && !is_kept {
                path.session.close(role, true, on.out, now_ns);
            }
        }
        self.volume.settle(&mut self.on.out);
        self.read_again(now_ns);
        self.volume
            .report_all_paths_down(self.on.shutdown.is_closing(), &mut self.on.out);
        self.take_turns(now_ns);
        self.gone(at, now_ns);
    }

    /// The device of a path is no more. Asking it again helps nothing: whatever comes back under
    /// its name has to be opened and looked at anew.
    #[cold]
    pub(super) fn vanished(&mut self, at: PathIndex, now_ns: u64) {
        if matches!(self.volume.paths[at].kind, PathKind::Passthrough { .. }) {
            self.lose(at, Some(report::VANISHED), now_ns);
            self.io().given_up(at, now_ns);
        }
    }

    /// A connection is over.
    pub(super) fn closed(&mut self, at: PathIndex, role: Role, why: Closed, now_ns: u64) {
        let ending = self.on.shutdown.is_closing();
        let path = &mut self.volume.paths[at];
        let link = path.session.end_connection(role);
        // Else we asked for it, and the reason is known.
        let surprise = matches!(link, Link::Open | Link::Opening { .. });
        if surprise && !ending {
            let opened = link == Link::Open;
            let why = report::closed(path.session.state(), role, opened, why);
            self.lose(at, Some(&why), now_ns);
        }
        match role {
            Role::Admin => {
                self.volume.paths[at].session.admin = None;
                let (path, mut on) = self.path(at);
                path.set_resetting(None, &mut on);
            }
            Role::Io => {
                if let Some(queue) = &mut self.volume.paths[at].session.queue {
                    queue.handle_closed(now_ns);
                }
                self.drain_queue(at, now_ns);
                self.volume.paths[at].session.queue = None;
                self.io().fail_waiting(at, now_ns);
            }
        }
        self.gone(at, now_ns);
    }

    /// The time-outs of one path.
    pub(super) fn path_timeout(&mut self, at: PathIndex, now_ns: u64) {
        self.retry(at, now_ns);
        for role in Role::ALL {
            match self.volume.paths[at].session.link(role) {
                Some(Link::Opening { until_ns }) if until_ns <= now_ns => {
                    let why = report::connect_timed_out(self.on.settings.connect_timeout_ns);
                    self.lose(at, Some(&why), now_ns);
                }
                Some(Link::Closing { until_ns }) if until_ns <= now_ns => {
                    self.volume.paths[at]
                        .session
                        .close(role, true, &mut self.on.out, now_ns);
                }
                Some(Link::Open) => self.machine_timeout(at, role, now_ns),
                _ => {}
            }
        }
        let expiry_ns = self.volume.expiry_ns(at, &self.on.ios, &self.on.settings);
        let is_due = expiry_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let (path, mut on) = self.path(at);
        if is_due && path.expire(&mut on, now_ns) {
            let why = report::io_timed_out(self.on.settings.io_timeout_ns);
            self.lose(at, Some(&why), now_ns);
        }
        let expiry_ns = self
            .volume
            .probe_expiry_ns(at, &self.on.ios, &self.on.settings);
        let (path, mut on) = self.path(at);
        if expiry_ns <= now_ns && path.expire_probe(&mut on, now_ns) {
            self.lose(at, Some(report::PROBE_UNANSWERED), now_ns);
        }
    }

    fn machine_timeout(&mut self, at: PathIndex, role: Role, now_ns: u64) {
        let session = &mut self.volume.paths[at].session;
        if !session.handle_timeout(role, now_ns) {
            return; // another path's time it is
        }
        let conn = session.conn(role);
        match role {
            Role::Admin => self.drain_admin(at, now_ns),
            Role::Io => {
                self.drain_queue(at, now_ns);
            }
        }
        self.on.out.transmit(conn);
    }

    /// A machine gave up its connection; it may have a last word to send.
    pub(super) fn gave_up(&mut self, at: PathIndex, role: Role, error: HostError, now_ns: u64) {
        let (path, on) = self.path(at);
        let abort = path.must_abort(role, &on);
        path.count_damage_of(error, now_ns);
        path.session.close(role, abort, on.out, now_ns);
        if !self.on.shutdown.is_closing() {
            let why = report::machine(self.volume.paths[at].session.state(), role, error);
            self.lose(at, Some(&why), now_ns);
        }
    }
}

/// The place of the path whose device may be asked again, if `id` says that.
pub(super) fn let_go_place(id: u32) -> usize {
    (id >> 16 & !LET_GO) as usize
}

/// Of no slot, and of no final flush: there are fewer paths.
const LET_GO: u32 = 0x8000;

/// Whether a device has answered to [`Output::LetGo`].
pub(super) fn is_let_go(id: u32) -> bool {
    id & let_go_id(0) == let_go_id(0)
}

fn let_go_id(number: usize) -> u32 {
    (LET_GO | number as u32) << 16 | 0xffff
}
