//! The end of the engine: I/O drains, controllers are shut down, connections are closed, each
//! within bounds.
//!
//! While I/O drains everything goes on as usual: held writes wait for proof or bound, lost paths
//! are connected again. I/O that has not ended when that time is over fails with
//! [`Outcome::Stopped`], and its owner is told how much that was.
//!
//! Before a queue closes, its controller flushes what it acknowledged: one that is shut down in
//! order should keep that by itself, and not all do. A path that didn't flush, or is lost with such
//! writes, is named to the owner, so that the next engine's flush covers it (T13).
use super::cache::FinalFlush;
use super::connections::{Link, Role};
use super::fence::range;
use super::io_table::{Kind, Slot};
use super::path::Path;
use super::session::Sessions;
use super::shutdown::Stage;
use super::types::HostEvent;
use super::volumes::PathContext;
use super::{Multipath, report};
use crate::machine::Output;
use policy::PathIndex;

impl Path {
    /// Flushes what it acknowledged before it ends; whether that is under way.
    fn flush_before_close(&mut self, on: &mut PathContext<'_>, now_ns: u64) -> bool {
        // No client waits for what is left in a lane then: copies of reads that ended.
        let ended = self.lane.is_empty() || on.ios.active() == 0;
        if self.is_live()
            && self.cache.final_flush() == FinalFlush::None
            && ended
            && self.is_unflushed()
            && on.recovery.enabled
        {
            self.send_final_flush(on.settings, on.out, now_ns);
        }
        if self.cache.final_flush() == FinalFlush::Ended(true) {
            self.cache.all_flushed();
        }
        self.cache.is_flushing()
    }
}

impl Sessions<'_> {
    fn stop_path(&mut self, at: PathIndex, abort: bool, now_ns: u64) {
        let resetting = self.volume.fence.is_resetting(at);
        let (path, mut on) = self.path(at);
        let leaves = !abort && path.flush_before_close(&mut on, now_ns);
        if leaves || path.kind.device().is_some() {
            return; // it flushes first, or has no connections
        }
        if abort {
            path.session.close(Role::Io, true, on.out, now_ns);
            path.session.close(Role::Admin, true, on.out, now_ns);
            return;
        }
        if !path.lane.is_empty() {
            // No client waits for what is left: copies of reads that ended.
            if on.ios.active() == 0 {
                path.session.close(Role::Io, true, on.out, now_ns);
            }
            return;
        }
        if resetting && path.session.admin.is_some() {
            return path.session.close(Role::Admin, true, on.out, now_ns);
        }
        let is_early = path.session.state().is_identifying();
        match path.session.link(Role::Admin) {
            None => path.session.close(Role::Io, false, on.out, now_ns),
            // Nothing to shut down before the controller is ready.
            Some(link) if is_early || matches!(link, Link::Opening { .. }) => {
                path.session.close(Role::Admin, true, on.out, now_ns);
            }
            Some(_) if path.session.shut_down(now_ns) => {
                on.out.transmit(path.session.conn(Role::Admin));
                self.drain_admin(at, now_ns);
            }
            // It is under way.
            Some(_) => {}
        }
    }
}

impl Multipath {
    /// I/O has `drain_ns` from now on.
    pub(super) fn begin_drain(&mut self, drain_ns: u64, now_ns: u64) {
        let until_ns = now_ns.saturating_add(drain_ns);
        self.on.shutdown.begin_drain(until_ns);
        self.on.out.wake_by(until_ns);
    }

    /// Begins to stop.
    pub(super) fn stop(&mut self, now_ns: u64) {
        self.begin_stopping(now_ns);
        self.on.shutdown.refuse_io();
        self.on.out.wake_by(now_ns);
    }

    /// The time to drain counts from now on, if it doesn't yet; I/O is taken as before.
    pub fn begin_stopping(&mut self, now_ns: u64) {
        if !self.on.shutdown.has_begun() {
            self.begin_drain(self.on.settings.connect_timeout_ns, now_ns);
        }
    }

    /// Whether no I/O is taken any more.
    pub fn is_stopping(&self) -> bool {
        self.on.shutdown.refuses_io()
    }

    /// Drains and stops as far as it goes now.
    #[cold]
    pub(super) fn advance_stop(&mut self, now_ns: u64) {
        match self.on.shutdown.stage() {
            Stage::Running | Stage::Stopped => {}
            Stage::Serving | Stage::Draining => self.advance_drain(now_ns),
            Stage::Orderly | Stage::Aborting => self.close_down(now_ns),
        }
    }

    /// I/O that has had its time fails. Once all has ended and none is taken, queues are closed.
    fn advance_drain(&mut self, now_ns: u64) {
        if self.on.shutdown.becomes_overdue(now_ns) {
            self.fail_unfinished(now_ns);
        }
        let over = self.on.ios.active() == 0 || self.on.shutdown.is_overdue();
        if self.on.shutdown.stage() == Stage::Serving || !over {
            return; // I/O is taken, or has not ended
        }
        // A flush for somebody else has covered what was completed before it, not all.
        for path in self.volumes.iter_mut().flat_map(|it| it.paths.iter_mut()) {
            path.cache.leave_final_flush();
        }
        self.enter(Stage::Orderly, now_ns);
        self.close_down(now_ns);
    }

    fn enter(&mut self, stage: Stage, now_ns: u64) {
        self.on
            .shutdown
            .enter(stage, self.on.out.connect_by(now_ns));
    }

    /// Queues are closed, controllers shut down; what takes too long is aborted.
    fn close_down(&mut self, now_ns: u64) {
        let late = self.on.shutdown.is_late(now_ns);
        let gone = self.on.shutdown.stage() == Stage::Aborting && late;
        if self.on.shutdown.stage() == Stage::Orderly && late {
            self.enter(Stage::Aborting, now_ns);
        }
        let abort = self.on.shutdown.stage() == Stage::Aborting;
        self.each_path(|sessions, at| sessions.stop_path(at, abort, now_ns));
        let flushes = |path: &Path| path.cache.is_flushing() && !abort;
        let over = |path: &Path| path.session.is_disconnected() && !flushes(path);
        if gone
            || (self.paths_there().all(|(it, at)| over(&it.paths[at])) && self.on.ios.active() == 0)
        {
            self.enter(Stage::Stopped, now_ns);
            self.report_unflushed();
            self.on.out.push(Output::Stop);
        }
    }

    /// The time to drain is over. Waiting I/O fails now, I/O of a queue when its connection is
    /// closed; a local device keeps its I/O until it ends it.
    fn fail_unfinished(&mut self, now_ns: u64) {
        for volume in (0..).take(self.volumes.len()) {
            let mut counts = [0_u32, 0];
            let whole = |slot: &&Slot| slot.kind != Kind::Helper;
            for slot in self.on.ios.active_of(volume).filter(whole) {
                counts[usize::from(range(&slot.io).is_none())] += 1;
            }
            let [changes, others] = counts;
            if changes + others > 0 {
                self.on.out.report(HostEvent::Unfinished {
                    volume,
                    changes,
                    others,
                });
            }
        }
        for it in &mut self.volumes {
            it.fail_held(&mut self.on.ios, now_ns);
        }
        for it in &mut self.volumes {
            it.fail_waits(&mut self.on.ios, now_ns);
        }
        self.each_path(|sessions, at| {
            sessions.io().fail_waiting(at, now_ns);
            let (path, on) = sessions.path(at);
            if !path.lane.is_empty() {
                path.session.close(Role::Io, true, on.out, now_ns);
            }
        });
    }

    /// Says which writes may still be in caches only.
    fn report_unflushed(&mut self) {
        // Writes of paths that left by force, and for which no flush has failed yet: the next
        // engine's flush says so, or covers it.
        for (volume, it) in (0..).zip(&mut self.volumes) {
            let line = it.losses.take_pending();
            if let Some(line) = line.filter(|_| it.recovery.enabled) {
                self.on.out.report(HostEvent::Unflushed(volume, line));
            }
        }
        self.each_path(|sessions, at| {
            if sessions.volume.recovery.enabled && sessions.volume.is_doubtful(at) {
                let (path, on) = sessions.path(at);
                let line = on.line(path, report::left_unflushed(path));
                on.out.report(HostEvent::Unflushed(path.volume, line));
            }
        });
    }
}
