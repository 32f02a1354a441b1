//! Changes of a world while it runs.
use super::World;
use crate::draw::exponential_ns;
use crate::plan::Change;
use crate::queue::Event;
use crate::rule::Truth;
use policy::{Ana, Ended, PathIndex, Policy};

/// Others send in pieces of this size.
const CROSS_BYTES: u64 = 65_536;

impl World<'_> {
    /// An event of the plan.
    pub(super) fn change(&mut self, number: usize) {
        match self.plan.events[number].what {
            Change::Delay(path, delay_ns) => self.paths[path].delay_ns = delay_ns,
            Change::Rate(path, rate) => {
                let link = &mut self.paths[self.plan.line(path)];
                link.out.set_rate(rate);
                link.back.set_rate(rate);
                link.bytes_per_s = rate;
            }
            Change::Stall(path, for_ns) => {
                let station = &mut self.stations[self.plan.paths[path].device];
                station.stall.set(self.now_ns + for_ns, self.now_ns);
                self.truth[path].stalled_until_ns = self.now_ns + for_ns;
            }
            Change::Down(path, after_ns) => {
                self.paths[path].dead = true;
                self.queue
                    .push(self.now_ns + after_ns, Event::Detect(path as u32));
            }
            Change::Up(path) => self.up(path),
            Change::Ana(path, ana) => self.paths[path].ana = ana,
            Change::Policy(policy) => self.switch(policy),
        }
        self.show();
        self.unpark();
    }

    /// A dead path is found out: what is on it fails and goes elsewhere.
    pub(super) fn detect(&mut self, path: usize) {
        if !self.paths[path].dead || !self.paths[path].enabled {
            return;
        }
        self.paths[path].enabled = false;
        self.show();
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            if !slot.placed || usize::from(slot.path) != path {
                continue;
            }
            slot.used = slot.used.wrapping_add(1);
            self.leave(index, Ended::Failed);
            self.tally.failed += 1;
            self.place_again(index);
        }
    }

    /// A failed I/O goes elsewhere; of a mirrored write the other copies are enough, and of a
    /// hedged read the other one.
    fn place_again(&mut self, index: u32) {
        let parent = self.slots[index as usize].parent;
        if parent == super::NONE && self.is_alone(index) {
            return self.place(index);
        }
        if parent == super::NONE {
            return self.give_back(index);
        }
        self.give_back(index);
        let whole = &mut self.slots[parent as usize];
        whole.copies -= 1;
        if whole.copies == 0 {
            let job = whole.job;
            self.give_back(parent);
            self.done(job, 0);
        }
    }

    fn up(&mut self, path: usize) {
        self.detect(path);
        let link = &mut self.paths[path];
        (link.dead, link.enabled) = (false, true);
        for core in self.hosts.iter_mut().flat_map(|host| &mut host.cores) {
            if let Some(selector) = &mut core.selector {
                selector.reset_path(PathIndex(path as u8));
            }
        }
    }

    fn switch(&mut self, policy: Policy) {
        let Some((now, _)) = &mut self.policy else {
            return;
        };
        *now = policy;
        for core in self.hosts.iter_mut().flat_map(|host| &mut host.cores) {
            if let Some(selector) = &mut core.selector {
                selector.set_policy(policy);
            }
        }
    }

    /// Tells policies and rules how the paths are now.
    pub(super) fn show(&mut self) {
        let merges = matches!(self.policy, Some((Policy::WeightedLatency(_), _)))
            || self.rules.is_some()
            || self.plan.merge;
        let optimized = self
            .paths
            .iter()
            .any(|it| it.enabled && it.ana == Ana::Optimized);
        for (number, path) in self.paths.iter().enumerate() {
            let hidden = optimized && !merges && path.ana == Ana::NonOptimized;
            let usable = matches!(path.ana, Ana::Optimized | Ana::NonOptimized);
            for view in self.hosts.iter_mut().flat_map(|host| &mut host.views) {
                view[number].enabled = path.enabled && !hidden;
                view[number].ana = path.ana;
            }
            let plan = &self.plan.paths[number];
            let free = 100 - u64::from(plan.cross_percent.min(99));
            self.truth[number] = Truth {
                usable: path.enabled && !path.dead && usable,
                delay_ns: path.delay_ns,
                bytes_per_s: path.bytes_per_s / 100 * free,
                stalled_until_ns: self.truth[number].stalled_until_ns,
            };
        }
    }

    /// A path may have become usable.
    fn unpark(&mut self) {
        for index in core::mem::take(&mut self.parked) {
            self.place(index);
        }
    }

    /// Others' traffic takes its place in a link's queues.
    pub(super) fn cross(&mut self, path: usize) {
        let percent = u64::from(self.plan.paths[path].cross_percent);
        let link = &mut self.paths[self.plan.line(path)];
        let rate = (link.bytes_per_s / 100 * percent).max(1);
        link.out.admit(CROSS_BYTES as u32, self.now_ns);
        link.back.admit(CROSS_BYTES as u32, self.now_ns);
        let mean_ns = CROSS_BYTES * 1_000_000_000 / rate;
        let gap_ns = exponential_ns(&mut link.cross, mean_ns);
        self.queue
            .push(self.now_ns + gap_ns, Event::Cross(path as u32));
    }
}
