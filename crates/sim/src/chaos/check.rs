//! What must be true of a world that has come to rest.
use super::judged::Check;
use super::node::Body;
use super::run::{Course, Finding};
use alloc::format;
use alloc::string::String;
use engine::host::PathState;

impl Course<'_> {
    /// Nobody has done what nobody may do.
    pub(super) fn no_wrong(&mut self) -> Result<(), Finding> {
        let hosts = self.rig.hosts.iter_mut();
        let said = hosts.filter_map(|host| host.user.wrong.take()).next();
        match self.rig.world.wrong.take().or(said) {
            Some(what) => Err(Finding::Wrong(what)),
            None => Ok(()),
        }
    }

    /// A path that is not in use on every core, or a change that was not answered.
    pub(super) fn what_is_missing(&self) -> Option<String> {
        for (number, host) in self.rig.hosts.iter().enumerate() {
            if !host.user.is_content(|address| self.rig.is_told(address)) {
                let why = host.user.unanswered().or_else(|| self.what_is_unheard());
                let lacks = || format!("host {number} lacks a path, or has one too many");
                return Some(why.unwrap_or_else(lacks));
            }
            for (core, &node) in host.cores.iter().enumerate() {
                let Body::Core(engine) = &self.rig.world.nodes[node].body else {
                    continue;
                };
                let it = engine.host();
                let mut away = it.paths(0).map(|path| (path, it.path_state(0, path)));
                if let Some((path, state)) = away.find(|(_, state)| *state != PathState::Live) {
                    let why = it.path_hindrance(0, path).unwrap_or_default();
                    let what = format!("host {number} core {core}: {path:?} is {state:?}: {why}");
                    return Some(what);
                }
            }
        }
        self.what_is_unheard()
    }

    /// Everything that applications saw, and every count.
    pub(super) fn judge(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            let client = self.rig.client(host);
            client.tell(&mut self.history);
            self.report.requests += client.ended;
            let failed = client.failed.clone();
            if !failed.is_empty() {
                self.report.judged.insert(Check::Failures);
            }
            for (start_ns, end_ns) in self.given_up(host, &failed) {
                self.history.given_up(host as u64 + 1, start_ns, end_ns);
            }
            if let Some(it) = self.unforgiven(host, &failed) {
                self.report.block = Some(it.request.offset / self.plan.layout.habit.unit);
                return Err(Finding::Failed(format!("{it:?}")));
            }
        }
        self.history.check().map_err(|(block, wrong)| {
            (self.report.block, self.report.seen_ns) = (Some(block), Some(wrong.seen_ns()));
            Finding::Disk(block, wrong)
        })?;
        if self.plan.layout.habit.homes > 1 {
            self.report.judged.insert(Check::Cores);
        }
        self.report
            .judged
            .extend([Check::Blocks, Check::HostMemory, Check::TargetMemory]);
        if self.history.has_crashed() {
            self.report.judged.insert(Check::Durable);
        }
        self.counts()
    }

    /// What waits, is in flight or has memory.
    pub(super) fn what_is_left(&self) -> Option<String> {
        for host in &self.rig.hosts {
            for &node in &host.cores {
                let Body::Core(engine) = &self.rig.world.nodes[node].body else {
                    continue;
                };
                let it = engine.host();
                let holds = it.hold_stats(0);
                let waits =
                    holds.held + holds.behind + holds.queued + holds.delayed + holds.flushes;
                let in_flight: u32 = it.paths(0).map(|path| it.in_flight(0, path)).sum();
                let used = engine.buffers() - engine.buffers_free();
                let scratch = u64::from(self.plan.layout.more.scratch_bytes);
                let lent = scratch - it.scratch_free();
                if (waits, in_flight, used, lent) != (0, 0, 0, 0) {
                    let what = format!(
                        "node {node}: {waits} wait, {in_flight} in flight, {used} bytes in use, \
                         {lent} of the engine's own"
                    );
                    return Some(what);
                }
            }
        }
        self.what_targets_have()
    }
}
