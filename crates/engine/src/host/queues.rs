//! Which cores have an I/O queue on a path: all, or those that need one first where its controller
//! grants fewer.
//!
//! # Contract
//! A volume's I/O comes to one core, its home. Where queues are few the home gets the first one,
//! core 0 the next (it flushes for paths that leave), then the others in order. On a core without a
//! queue the path is live and disabled: no policy chooses it, nothing is probed there, and nothing
//! is cached that another core does not know of. All cores come to the same result, since each
//! knows what the controller granted ([`PathFacts`](super::PathFacts)).
//!
//! # Limits
//! An engine that does not recover paths measures: there fewer queues than cores are refused.
use super::path::{AdminState, FinalFlush};
use super::types::{HostEvent, PathNews};
use super::{HostEngine, report};
use alloc::string::String;
use volume::health::Why;

/// Number of the I/O queue that `core` has; `None`: it has none. The home of the I/O is `home`.
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

impl HostEngine {
    /// Number of the I/O queue that a core has on a path whose facts are known.
    fn queue_of(&self, number: usize, core: u16) -> Option<u16> {
        let path = &self.paths[number];
        let granted = path.facts.as_ref()?.controller.io_queues;
        let cores = self.settings.cores;
        let recovery = &self.volumes[usize::from(path.volume)].recovery;
        let home = recovery.home.unwrap_or(path.volume) % cores.max(1);
        queue_id(core, cores, home, granted)
    }

    /// Number of this core's I/O queue on such a path.
    pub(super) fn own_queue(&self, number: usize) -> Option<u16> {
        self.queue_of(number, self.settings.core)
    }

    /// Whether this core can give I/O to a live path.
    pub(super) fn has_queue(&self, number: usize) -> bool {
        let path = &self.paths[number];
        path.kind.device().is_some() || path.qid > 0
    }

    /// A path is live whose queues are other cores'. What this core had acknowledged there is known
    /// to them since the path was lost, and their flushes cover it.
    pub(super) fn live_without_queue(&mut self, number: usize, now_ns: u64) {
        self.paths[number].all_flushed();
        self.live(number, now_ns);
    }

    /// Whether a volume has a live path that other cores alone use, and that ANA leaves open.
    pub(super) fn is_served_elsewhere(&self, volume: u16) -> bool {
        let head = &self.volumes[usize::from(volume)].head;
        let mut paths = self.paths_of(volume);
        paths.any(|path| {
            let elsewhere = path.is_live() && !self.has_queue(path.number);
            elsewhere && head.is_open(path.index)
        })
    }

    /// Whether that is so of another path than this one, as far as this core knows.
    pub(super) fn is_served_elsewhere_beside(&self, number: usize) -> bool {
        let own = &self.paths[number];
        let head = &self.volumes[usize::from(own.volume)].head;
        let mut paths = self.paths_of(own.volume);
        paths.any(|path| {
            let serves = path.is_live() && path.admin_state() == AdminState::Enabled;
            let elsewhere = serves && !self.has_queue(path.number);
            elsewhere && path.index != own.index && head.is_open(path.index)
        })
    }

    /// Another core has put a path on probation on which this one has no queue: it passes that on,
    /// and does not judge.
    pub(super) fn pass_on_sick(&mut self, number: usize, why: Why) {
        if self.settings.core != 0 {
            return;
        }
        let path = &self.paths[number];
        let volume = path.volume;
        let news = PathNews::Sick {
            volume,
            path: path.index,
            why,
        };
        let name = &self.volumes[usize::from(volume)].name;
        let line = report::line(name, path, 0, report::on_probation(path, why));
        self.events.push_back(HostEvent::Publish(news));
        self.events.push_back(HostEvent::Warning(volume, line));
    }

    /// Whether this core has a queue on a path, and core 0, whose lines about probation are the
    /// ones that are heard, has none.
    pub(super) fn judges_for_core_0(&self, number: usize) -> bool {
        let device = self.paths[number].kind.device().is_some();
        !device && self.settings.core != 0 && self.queue_of(number, 0).is_none()
    }

    /// Core 0: says once that a controller grants fewer queues than there are cores.
    pub(super) fn warn_of_few_queues(&mut self, number: usize, granted: u16) {
        let cores = self.settings.cores;
        let before = core::mem::replace(&mut self.paths[number].granted, granted);
        if granted >= cores || granted == before {
            return;
        }
        let path = &self.paths[number];
        let why = report::shared_queues(granted, cores);
        let name = &self.volumes[usize::from(path.volume)].name;
        let line = report::line(name, path, self.settings.core, &why);
        self.events.push_back(HostEvent::Warning(path.volume, line));
    }

    /// Why a mirror on this core can't use its leg's path: other cores have its queues.
    pub(super) fn lacks_queue(&self, number: usize) -> Option<String> {
        let path = &self.paths[number];
        let needed = self.volumes[usize::from(path.volume)].leg.is_here();
        let granted = path.facts.as_ref()?.controller.io_queues;
        needed.then(|| report::no_queue(granted, self.settings.cores))
    }

    /// Flushes a path that leaves and on which core 0, which does that else, has no queue. Whether
    /// that is under way.
    pub(super) fn flushes_for_core_0(&mut self, number: usize, now_ns: u64) -> bool {
        let path = &self.paths[number];
        let leaves = path.admin_state() == AdminState::Removing && path.is_live();
        let ended = leaves && path.lane.is_empty() && path.queue.is_some();
        if !ended || self.settings.core == 0 || self.queue_of(number, 0).is_some() {
            return false;
        }
        let has_more = self.paths[number].is_unflushed() || self.leaves_early(number);
        match self.paths[number].cache.final_flush {
            FinalFlush::Out | FinalFlush::Late => true,
            FinalFlush::None if has_more => {
                self.send_final_flush(number, now_ns);
                self.paths[number].cache.final_flush.is_out()
            }
            FinalFlush::None => false,
            FinalFlush::Ended(done) => {
                let path = &mut self.paths[number];
                path.cache.final_flush = FinalFlush::None;
                if done {
                    path.all_flushed();
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
