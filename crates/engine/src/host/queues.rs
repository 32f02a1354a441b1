//! Which cores have an I/O queue on a path: all, or those that need one first where its controller
//! grants fewer.
//!
//! # Contract
//! A volume has a home core. Where queues are few the home gets the first one, core 0 the next (it
//! flushes for paths that leave), then the others in order; the program sends all I/O of such a
//! volume to its home. On a core without a
//! queue the path is live and disabled: no policy chooses it, nothing is probed there, and nothing
//! is cached that another core does not know of. All cores come to the same result, since each
//! knows what the controller granted ([`PathFacts`](super::PathFacts)).
//!
//! I/O on a core that has no queue to a usable path, while others have, ends soon: its client goes
//! to another core. Requests of the kernel's block devices stay ([`is_tied`]), and wait as they do
//! while all paths are lost.
//!
//! # Limits
//! An engine that does not recover paths measures: there fewer queues than cores are refused.
use super::cache::FinalFlush;
use super::path::{AdminState, Path};
use super::report;
use super::session::Sessions;
use super::types::{Io, PathEvent};
use super::volumes::{PathContext, Volume};
use crate::limits::NO_QUEUE_WAIT_NS;
use crate::ublk_server::UBLK;
use alloc::string::String;
use block::Issuer;
use multipath::health::Why;
use policy::PathIndex;

/// Number of the I/O queue that `core` has; `None`: it has none. The volume's home is `home`.
fn queue_id(core: u16, cores: u16, home: u16, granted: u16) -> Option<u16> {
    if granted >= cores {
        return Some(core + 1);
    }
    let rank = match core {
        _ if core == home => 0,
        _ if home == 0 => core,
        0 => 1,
        _ => core + 1 - u16::from(home < core),
    };
    (rank < granted).then_some(rank + 1)
}

/// Whether the client of an I/O stays on this core, whether or not that has a queue: a block device
/// of the kernel does. An error would reach a mounted file system.
pub(super) fn is_tied(io: &Io) -> bool {
    matches!(Issuer::of_cookie(io.cookie), Issuer::FrontEnd(UBLK, _))
}

impl Path {
    /// Whether this core can give I/O to it while it is live.
    pub(super) fn has_queue(&self) -> bool {
        self.kind.device().is_some() || self.known.qid > 0
    }

    /// Another core has put it on probation, and this one has no queue on it: it passes that on,
    /// and does not judge.
    pub(super) fn pass_on_sick(&self, why: Why, on: &mut PathContext<'_>) {
        if on.settings.core != 0 {
            return; // core 0 passes it on
        }
        on.out.publish(self.news(PathEvent::Sick(why)));
        on.warn(self, report::on_probation(self, why));
    }

    /// Core 0: says once that its controller grants fewer queues than there are cores.
    pub(super) fn warn_of_few_queues(&mut self, granted: u16, on: &mut PathContext<'_>) {
        let cores = on.settings.cores;
        let before = core::mem::replace(&mut self.known.granted, granted);
        if granted < cores && granted != before {
            on.warn(self, &report::shared_queues(granted, cores));
        }
    }
}

impl Volume {
    /// Whether a live path that ANA leaves open is used by other cores alone. `paths`: of the
    /// engine.
    pub(super) fn is_served_elsewhere(&self) -> bool {
        let mut paths = self.paths.iter();
        paths.any(|path| path.is_live() && !path.has_queue() && self.head.is_open(path.index))
    }

    /// Number of the I/O queue on a path that one of so many cores has; `None`: it has none, or the
    /// controller is not known.
    pub(super) fn queue_of(&self, at: PathIndex, core: u16, cores: u16) -> Option<u16> {
        let granted = self.paths[at].known.facts.as_ref()?.controller.io_queues;
        let home = self.recovery.home.unwrap_or(self.number) % cores.max(1);
        queue_id(core, cores, home, granted)
    }

    /// Whether another path is live, left open by ANA and in use by other cores alone, as far as
    /// this core knows.
    pub(super) fn is_served_elsewhere_beside(&self, at: PathIndex) -> bool {
        let mut others = self.others(at);
        others.any(|path| {
            let serves = path.is_live() && path.admin_state() == AdminState::Enabled;
            serves && !path.has_queue() && self.head.is_open(path.index)
        })
    }

    /// Whether this core has a queue on it, and core 0, whose lines about probation are the ones
    /// that are heard, has none.
    pub(super) fn judges_for_core_0(&self, at: PathIndex, core: u16, cores: u16) -> bool {
        let device = self.paths[at].kind.device().is_some();
        !device && core != 0 && self.queue_of(at, 0, cores).is_none()
    }

    /// Why a mirror on this core can't use its leg's path: other cores have its queues.
    pub(super) fn lacks_queue(&self, at: PathIndex, cores: u16) -> Option<String> {
        let granted = self.paths[at].known.facts.as_ref()?.controller.io_queues;
        let needed = self.leg.is_here();
        needed.then(|| report::no_queue(granted, cores))
    }
}

impl Sessions<'_> {
    /// A path is live whose queues are other cores'. The writes that this core acknowledged there
    /// are known to them since the path was lost, and their flushes cover it.
    pub(super) fn live_without_queue(&mut self, at: PathIndex, now_ns: u64) {
        self.volume.paths[at].cache.all_flushed();
        self.live(at, now_ns);
        self.on.out.wake_by(now_ns.saturating_add(NO_QUEUE_WAIT_NS));
    }

    /// Flushes a path that leaves and on which core 0, which does that else, has no queue. Whether
    /// that is under way.
    pub(super) fn flushes_for_core_0(&mut self, at: PathIndex, now_ns: u64) -> bool {
        let path = &self.volume.paths[at];
        let leaves = path.admin_state() == AdminState::Removing && path.is_live();
        let ended = leaves && path.lane.is_empty() && path.session.queue.is_some();
        if !ended
            || self.on.settings.core == 0
            || self
                .volume
                .queue_of(at, 0, self.on.settings.cores)
                .is_some()
        {
            return false;
        }
        let has_more = self.volume.paths[at].is_unflushed() || self.volume.leaves_early(at);
        match self.volume.paths[at].cache.final_flush() {
            FinalFlush::Out { .. } | FinalFlush::Late { .. } => true,
            FinalFlush::None if has_more => {
                self.volume.paths[at].send_final_flush(&self.on.settings, &mut self.on.out, now_ns);
                self.volume.paths[at].cache.is_flushing()
            }
            FinalFlush::None => false,
            FinalFlush::Ended(done) => {
                let path = &mut self.volume.paths[at];
                path.cache.set_final_flush(FinalFlush::None);
                if done {
                    path.cache.all_flushed();
                    path.cache.flushed_to_leave = true;
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn few_queues_go_to_the_home_core_and_core_0_first() {
        for cores in 1..=5 {
            for home in 0..cores {
                for granted in 1..=cores + 1 {
                    let ids = |core| queue_id(core, cores, home, granted);
                    let mut found: Vec<u16> = (0..cores).filter_map(ids).collect();
                    found.sort_unstable();
                    let all: Vec<u16> = (1..=granted.min(cores)).collect();
                    assert_eq!(found, all, "{granted} of {cores}, home {home}");
                    assert!(ids(home).is_some());
                    assert!(granted == 1 || ids(0).is_some());
                }
            }
        }
        let each: Vec<_> = (0..3).map(|core| queue_id(core, 3, 1, 3)).collect();
        assert_eq!(each, [Some(1), Some(2), Some(3)]);
    }
}
