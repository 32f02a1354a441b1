//! How a lost path comes back: with growing waits, after every connection of its controller is
//! over.
//!
//! Core 0 decides. A path that any core has lost is lost on all: core 0 says so, hears from every
//! other core that its connections are over, and tells all of them; from then on the bound of held
//! writes counts (T9), and the wait for the next attempt. A path that returns is learnt and checked
//! as at the start (T32), and what was measured of it is forgotten (T38).
//!
//! One that dies again before it has lived as long as the longest wait goes on with the wait it
//! had: a path that comes and goes costs its volume no more than one that is dead.
use super::Multipath;
use super::abort::CommandId;
use super::connections::{LossReport, Role, SessionState};
use super::outbox::Outbox;
use super::path::Path;
use super::session::Sessions;
use super::types::{
    Disconnected, Doubt, HostConfig, HostEvent, PathEvent, PathNews, ReconnectWait,
};
use super::volumes::{PathContext, Volume};
use policy::PathIndex;

impl Path {
    /// Tells the other cores that it was lost; `own`: this core saw it, and the path recovers;
    /// `renewal`: only to connect it anew.
    pub(super) fn report_loss(
        &mut self,
        own: bool,
        renewal: bool,
        settings: &HostConfig,
        out: &mut Outbox,
    ) {
        if self.address().is_none() {
            return; // each core sees by itself what becomes of a device
        }
        if settings.core == 0 {
            self.session.comeback.others = settings.cores - 1;
            out.publish(self.news(PathEvent::Lost { renewal }));
        } else if own {
            out.tell_core_0(self.news(PathEvent::Broken { renewal }));
        }
    }

    /// An answer says that its ANA state, or its namespace, is not what we know: it is not used
    /// until that was read again (T26).
    pub(super) fn doubt(&mut self, what: Doubt, on: &mut PathContext<'_>, now_ns: u64) {
        let facts = self.known.facts.as_ref();
        let known = facts.is_some_and(|it| it.controller.ana || what == Doubt::Namespace);
        // Another core may be live, and ask, while our own queue is still being opened.
        let used = self.session.state().has_association();
        if !used || !known || !on.recovery.enabled {
            return; // nothing is read again of a path that is lost, or never will be
        }
        on.head.set_pending(self.index, true);
        if core::mem::replace(&mut self.known.is_read_again, true) {
            return; // it was asked for, and not answered yet
        }
        if on.settings.core == 0 {
            if let Some(admin) = &mut self.session.admin {
                match what {
                    Doubt::Ana => admin.request_ana(now_ns),
                    Doubt::Namespace => admin.request_namespaces(now_ns),
                }
            }
            on.out.touch(&mut self.session, Role::Admin);
        } else {
            on.out.tell_core_0(self.news(PathEvent::Doubt(what)));
        }
    }

    /// The bound of what it had counts from `since_ns` on: it is lost, and every connection of its
    /// controller is over.
    fn begin_bound(&self, since_ns: u64, on: &mut PathContext<'_>) {
        // Without a bound only proof ends a hold.
        if let Some(bound_ns) = self.bound_ns(on.recovery, on.settings.kato_ms) {
            let until_ns = since_ns.saturating_add(bound_ns);
            if on.fence.bound(on.ios, self.index, until_ns) {
                on.out.wake_by(until_ns);
            }
        }
    }
}

impl Volume {
    /// Says that no path is live, once until one is.
    pub(super) fn report_all_paths_down(&mut self, is_closing: bool, out: &mut Outbox) {
        let is_down = |path: &Path| path.session.comeback.tried && !path.is_live();
        let none = self.paths.iter().all(is_down);
        if none && self.recovery.enabled && !is_closing && self.outage.report() {
            out.report(HostEvent::NoPath(self.number));
        }
    }
}

impl Volume {
    /// Core 0: how long it still waits before it is connected again; `None`: it does not wait.
    pub(super) fn reconnect_wait(&self, at: PathIndex, now_ns: u64) -> Option<ReconnectWait> {
        let path = self.paths.get(at)?;
        let at_ns = path.session.retry_ns()?;
        Some(ReconnectWait {
            left_ns: at_ns.saturating_sub(now_ns),
            failures: path.session.comeback.failures.saturating_sub(1),
            in_doubt: path.was_seen() && self.is_in_doubt(at),
        })
    }
}

impl Sessions<'_> {
    /// Handles another core's event of a path.
    pub(super) fn handle_path_event(&mut self, at: PathIndex, event: PathEvent, now_ns: u64) {
        match event {
            PathEvent::Lost { renewal } => {
                self.volume.paths[at].session.comeback.report = LossReport::Due;
                self.lose_for(at, None, renewal, now_ns);
                self.gone(at, now_ns);
            }
            PathEvent::Broken { renewal } => self.lose_for(at, None, renewal, now_ns),
            PathEvent::Doubt(what) => {
                let (path, mut on) = self.path(at);
                path.doubt(what, &mut on, now_ns);
            }
            PathEvent::Sick(why) => self.io().sick_elsewhere(at, why, now_ns),
            PathEvent::Reset => self.io().proved(at, now_ns),
            PathEvent::Abort { sqid, cid, probe } => {
                let (path, mut on) = self.path(at);
                let command = CommandId { sqid, cid };
                if path.abort_asked(command, probe, &mut on, now_ns) {
                    self.io().refill(at, now_ns);
                }
            }
            PathEvent::Aborted { sqid, cid, aborted } => {
                let (path, mut on) = self.path(at);
                if sqid == path.known.qid && path.abort_ended(cid, aborted, &mut on, now_ns) {
                    self.io().refill(at, now_ns);
                }
            }
            PathEvent::AskExtent {
                token,
                slba,
                blocks,
            } => self.volume.paths[at].ask_controller(
                token,
                (slba, blocks),
                &mut self.on.out,
                now_ns,
            ),
            PathEvent::Extent { token, found } => {
                self.volume.paths[at].extent_answered(token, found, &mut self.on.out);
            }
            PathEvent::GivenUp => self.io().given_up(at, now_ns),
            PathEvent::Paused(until_ns) => self.volume.paths[at].pause(until_ns, &mut self.on.out),
            PathEvent::Flushed => self.io().flushed_elsewhere(at, now_ns),
            PathEvent::FlushFailed(core, heard) => {
                self.io().flush_failed_elsewhere(at, core, heard, now_ns);
            }
            PathEvent::WritesGivenUp(core) => self.io().writes_given_up_elsewhere(at, core),
            PathEvent::Resetting(until_ns) => {
                let (path, on) = self.path(at);
                on.fence.set_resetting(path.index, until_ns);
            }
            PathEvent::Closed {
                since_ns,
                unflushed,
            } => {
                let (path, mut on) = self.path(at);
                if on.settings.core == 0 {
                    path.cache.note_to_pass_on(unflushed);
                    let others = &mut path.session.comeback.others;
                    *others = others.saturating_sub(1);
                    return self.gone(at, now_ns);
                }
                path.cache.note_elsewhere(unflushed);
                let was_awaited = path.cache.end_reports();
                path.begin_bound(since_ns, &mut on);
                if was_awaited {
                    self.io().release_flushes(now_ns);
                }
            }
        }
    }

    /// A connection of a lost path is over, perhaps the last one.
    pub(super) fn gone(&mut self, at: PathIndex, now_ns: u64) {
        let recovery = self.volume.recovery;
        let (core, cores) = (self.on.settings.core, self.on.settings.cores);
        let path = &mut self.volume.paths[at];
        if !path.is_over()
            || !path.session.is_disconnected()
            || path.address().is_none()
            || !recovery.enabled
        {
            return; // connections are left, it is a device or in use, or it never comes back
        }
        let closed = |path: &mut Path| {
            let unflushed = path.cache.take_due_report() && path.has_unflushed();
            path.news(PathEvent::Closed {
                since_ns: now_ns,
                unflushed,
            })
        };
        let is_lost = matches!(path.session.state(), SessionState::Lost);
        let comeback = &mut path.session.comeback;
        if core != 0 {
            if comeback.report == LossReport::Due {
                comeback.report = LossReport::Given;
                self.on.out.tell_core_0(closed(path));
            }
            return; // core 0 decides when it is connected again
        }
        if comeback.others > 0 || !is_lost {
            return; // other cores have connections, or it was reported, or it leaves
        }
        let (failures, next_ns) = comeback.fail(&recovery, now_ns);
        let returns = path.admin_state().returns();
        let (volume, path, address) = (path.volume, path.index, path.address());
        if let Some(address) = address.filter(|_| returns) {
            let seen = self.volume.paths[at].was_seen();
            self.on.out.report(HostEvent::Disconnected(Disconnected {
                volume,
                path,
                address,
                failures,
                in_doubt: seen && self.volume.is_in_doubt(at),
            }));
        }
        let at_ns = match returns {
            true => next_ns.min(self.volume.gives_up_ns(at).max(now_ns)),
            false => u64::MAX,
        };
        self.volume.paths[at]
            .session
            .enter(SessionState::Backoff { at_ns });
        self.on.out.wake_by(at_ns);
        if cores > 1 {
            let closed = closed(&mut self.volume.paths[at]);
            self.on.out.publish(closed);
        }
        self.reports_complete(at, now_ns);
        let (path, mut on) = self.path(at);
        path.begin_bound(now_ns, &mut on);
    }

    /// It is known of a lost path whether any core had unflushed writes there.
    fn reports_complete(&mut self, at: PathIndex, now_ns: u64) {
        if self.volume.paths[at].cache.end_reports() {
            self.io().release_flushes(now_ns);
        }
    }

    /// Core 0: the wait of a lost path may be over.
    pub(super) fn retry(&mut self, at: PathIndex, now_ns: u64) {
        let path = &self.volume.paths[at];
        if path.session.retry_ns().is_none_or(|at_ns| at_ns > now_ns) {
            return; // it is not lost, or its time has not come
        }
        if self.on.shutdown.is_closing() {
            // No connection is opened any more.
            self.volume.paths[at]
                .session
                .enter(SessionState::Backoff { at_ns: u64::MAX });
        } else if self.volume.gives_up_ns(at) <= now_ns {
            self.give_up_path(at, now_ns);
        } else {
            self.volume.paths[at].learn(&self.on.settings, &mut self.on.out, now_ns);
        }
    }
}

impl Multipath {
    /// News from another core.
    pub(super) fn news(&mut self, news: PathNews, now_ns: u64) {
        match news {
            PathNews::Order(order) => self.obey(*order, now_ns),
            PathNews::LossReported { volume, core } => self.loss_reported(volume, core),
            PathNews::Done { serial, unflushed } => self.on.changes.step_done(serial, unflushed),
            PathNews::Found(facts) => {
                // Else the path's volume has left on this core.
                if usize::from(facts.volume) < self.volumes.len() {
                    self.sessions(facts.volume).found(facts, now_ns);
                }
            }
            PathNews::Of(volume, path, event) => {
                // Else the path has left on this core while the news was under way.
                if self.path_of(volume, path).is_some() {
                    self.sessions(volume).handle_path_event(path, event, now_ns);
                }
            }
        }
    }

    /// I/O that waits in a volume, and why.
    pub fn hold_stats(&self, volume: u16) -> super::HoldStats {
        let Some(it) = self.volumes.get(usize::from(volume)) else {
            return super::HoldStats::default();
        };
        let others = it.waits.stats(&self.on.ios, it.totals);
        let kato_ms = self.on.settings.kato_ms;
        let bound_ns = |path| it.paths.get(path)?.bound_ns(&it.recovery, kato_ms);
        it.fence
            .stats(&self.on.ios, others, |path| bound_ns(path).is_some())
    }
}
