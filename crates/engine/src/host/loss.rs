//! The end of a path, and of the engine: lost connections, time-outs, orderly shutdown.
//!
//! A path is lost once, for whatever came first; that is reported in one line. Its connections are
//! closed, its waiting I/Os fail at once, and those given to its queue fail when nobody refers to
//! their memory any more: when the queue says so, at the latest when the reactor has closed the
//! connection (T10, T23). An expired I/O escalates to exactly this (T12). Nothing is retried and no
//! path comes back yet.
use super::path::{Link, Phase, Role};
use super::types::{HostEvent, PathKind, PathNews};
use super::{HostEngine, report};
use crate::machine::{Closed, Output};
use nvme::host::HostError;

/// An engine that stops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    /// End of the patience of this stage.
    until_ns: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// I/O drains, queues close, controllers are shut down.
    Orderly,
    /// All connections are aborted.
    Aborting,
    /// `Output::Stop` was given.
    Stopped,
}

impl HostEngine {
    /// Ends a path for the reason `why` (`None`: it was reported elsewhere); nothing more happens
    /// if it was lost before.
    pub(super) fn lose(&mut self, number: usize, why: Option<&str>, now_ns: u64) {
        let path = &mut self.paths[number];
        if path.phase == Phase::Lost {
            return;
        }
        let phase = core::mem::replace(&mut path.phase, Phase::Lost);
        let (volume, index) = (path.volume, path.index);
        if phase == Phase::Live {
            self.head(number).set_enabled(index, false);
        }
        if let Some(why) = why.filter(|_| self.stop.is_none()) {
            let name = &self.volumes[usize::from(volume)].name;
            let line = report::line(name, &self.paths[number], self.settings.core, why);
            self.events.push_back(HostEvent::Failed(volume, line));
        }
        if self.settings.core == 0 && self.paths[number].address().is_some() {
            let news = PathNews::Lost {
                volume,
                path: index,
            };
            self.events.push_back(HostEvent::Publish(news));
        }
        self.fail_waiting(number, now_ns);
        for role in [Role::Admin, Role::Io] {
            // A link that is being closed in order has a last word to say.
            if !matches!(self.paths[number].link(role), Link::Closing { .. }) {
                self.close(number, role, true, now_ns);
            }
        }
        self.settle(number);
    }

    /// Closes a connection of a path, if there is one.
    pub(super) fn close(&mut self, number: usize, role: Role, abort: bool, now_ns: u64) {
        let path = &mut self.paths[number];
        let conn = path.conn(role);
        let abort = match path.link(role) {
            Link::Closed | Link::Aborting => return,
            Link::Closing { .. } if !abort => return,
            Link::Opening { .. } => true,
            Link::Open | Link::Closing { .. } => abort,
        };
        if abort {
            path.set_link(role, Link::Aborting);
        } else {
            let until_ns = now_ns.saturating_add(self.settings.connect_timeout_ns);
            path.set_link(role, Link::Closing { until_ns });
            self.outputs.transmit(conn);
            self.wake_by(until_ns);
        }
        self.outputs.push(Output::Close { conn, abort });
    }

    /// A connection is over.
    pub(super) fn closed(&mut self, number: usize, role: Role, why: Closed, now_ns: u64) {
        let path = &mut self.paths[number];
        let link = path.link(role);
        path.set_link(role, Link::Closed);
        // Else we asked for it, and the reason is known.
        let surprise = matches!(link, Link::Open | Link::Opening { .. });
        if surprise && self.stop.is_none() {
            let why = report::closed(path.phase, role, why);
            self.lose(number, Some(&why), now_ns);
        }
        match role {
            Role::Admin => self.paths[number].admin = None,
            Role::Io => {
                if let Some(queue) = &mut self.paths[number].queue {
                    queue.handle_closed(now_ns);
                }
                self.drain_queue(number, now_ns);
                self.paths[number].queue = None;
                self.fail_waiting(number, now_ns);
            }
        }
    }

    /// The time-outs of one path.
    pub(super) fn path_timeout(&mut self, number: usize, now_ns: u64) {
        for role in [Role::Admin, Role::Io] {
            match self.paths[number].link(role) {
                Link::Opening { until_ns } if until_ns <= now_ns => {
                    let why = report::connect_timed_out(self.settings.connect_timeout_ns);
                    self.lose(number, Some(&why), now_ns);
                }
                Link::Closing { until_ns } if until_ns <= now_ns => {
                    self.close(number, role, true, now_ns);
                }
                Link::Open => self.machine_timeout(number, role, now_ns),
                _ => {}
            }
        }
        let expiry_ns = self.expiry_ns(&self.paths[number]);
        if expiry_ns.is_some_and(|at_ns| at_ns <= now_ns) && self.expire(number, now_ns) {
            let why = report::io_timed_out(self.settings.io_timeout_ns);
            self.lose(number, Some(&why), now_ns);
        }
    }

    fn machine_timeout(&mut self, number: usize, role: Role, now_ns: u64) {
        let path = &mut self.paths[number];
        let conn = path.conn(role);
        let due = |at_ns: Option<u64>| at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        match role {
            Role::Admin => {
                let Some(admin) = path.admin.as_mut().filter(|it| due(it.poll_timeout())) else {
                    return;
                };
                admin.handle_timeout(now_ns);
                self.drain_admin(number, now_ns);
            }
            Role::Io => {
                let Some(queue) = path.queue.as_mut().filter(|it| due(it.poll_timeout())) else {
                    return;
                };
                queue.handle_timeout(now_ns);
                self.drain_queue(number, now_ns);
            }
        }
        self.outputs.transmit(conn);
    }

    /// A machine gave up its connection; it may have a last word to send.
    pub(super) fn gave_up(&mut self, number: usize, role: Role, error: HostError, now_ns: u64) {
        self.close(number, role, false, now_ns);
        if self.stop.is_none() {
            let why = report::machine(self.paths[number].phase, role, error);
            self.lose(number, Some(&why), now_ns);
        }
    }

    /// Begins to stop.
    pub(super) fn stop(&mut self, now_ns: u64) {
        if self.stop.is_none() {
            let until_ns = now_ns.saturating_add(self.settings.connect_timeout_ns);
            self.stop = Some(Stop {
                until_ns,
                stage: Stage::Orderly,
            });
            self.wake_by(until_ns);
        }
    }

    /// When the patience with the present stage of stopping ends.
    pub(super) fn stop_timeout(&self) -> Option<u64> {
        let stop = self.stop?;
        (stop.stage != Stage::Stopped).then_some(stop.until_ns)
    }

    /// Stops as far as it goes now: I/O drains, then the controller is shut down, then the
    /// queue's connection closed.
    pub(super) fn advance_stop(&mut self, now_ns: u64) {
        let Some(mut stop) = self.stop else {
            return;
        };
        if stop.stage == Stage::Stopped {
            return;
        }
        let overdue = now_ns >= stop.until_ns;
        let gone = stop.stage == Stage::Aborting && overdue;
        if stop.stage == Stage::Orderly && overdue {
            stop.stage = Stage::Aborting;
            stop.until_ns = now_ns.saturating_add(self.settings.connect_timeout_ns);
        }
        for number in 0..self.paths.len() {
            self.stop_path(number, stop.stage == Stage::Aborting, now_ns);
        }
        let disconnected = self.paths.iter().all(|path| path.is_disconnected());
        if gone || (disconnected && self.slots.active() == 0) {
            stop.stage = Stage::Stopped;
            self.outputs.push(Output::Stop);
        }
        self.stop = Some(stop);
    }

    fn stop_path(&mut self, number: usize, abort: bool, now_ns: u64) {
        let path = &mut self.paths[number];
        if matches!(path.kind, PathKind::Device { .. }) {
            return;
        }
        if abort {
            self.close(number, Role::Io, true, now_ns);
            self.close(number, Role::Admin, true, now_ns);
            return;
        }
        if !path.lane.is_empty() {
            return;
        }
        match (path.phase, path.link(Role::Admin)) {
            (_, Link::Closed) => self.close(number, Role::Io, false, now_ns),
            // Nothing to shut down before the controller is ready.
            (_, Link::Opening { .. }) | (Phase::Learning, _) => {
                self.close(number, Role::Admin, true, now_ns);
            }
            (_, Link::Open) if !path.shutting_down => {
                path.shutting_down = true;
                let conn = path.conn(Role::Admin);
                if let Some(admin) = &mut path.admin {
                    admin.shutdown(now_ns);
                }
                self.outputs.transmit(conn);
                self.drain_admin(number, now_ns);
            }
            _ => {}
        }
    }
}
