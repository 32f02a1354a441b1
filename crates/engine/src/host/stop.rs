//! The end of the engine: I/O drains, controllers are shut down, connections are closed, each
//! within bounds.
use super::HostEngine;
use super::path::{Link, Phase, Role};
use super::types::PathKind;
use crate::machine::Output;

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
            self.fail_waits(now_ns);
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
        let volume = path.volume;
        if !path.lane.is_empty() || self.has_waiting(volume) {
            return;
        }
        let path = &mut self.paths[number];
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
