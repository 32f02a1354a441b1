//! Checks of a world that is quiescent.
use super::late::Late;
use super::prelude::*;
use super::story::At;

impl Course<'_> {
    /// No machine has broken a rule.
    pub(super) fn no_wrong(&mut self) -> Result<(), Finding> {
        let nodes = &mut self.rig.world.nodes;
        let hosts = self.rig.hosts.iter_mut();
        let said = hosts.filter_map(|host| {
            let read = nodes[host.clients].take_wrong();
            host.user.wrong.take().or(read)
        });
        let said = said.collect::<Vec<_>>().into_iter().next();
        match self.rig.world.wrong.take().or(said) {
            Some(what) => Err(Finding::Wrong(what)),
            None => Ok(()),
        }
    }

    /// A path that is not in use on every core, or a change that was not answered.
    pub(super) fn what_is_missing(&self) -> Option<String> {
        self.what_is_away().or_else(|| self.what_is_probed())
    }

    /// A probe that has not ended, or memory of one that was not given back.
    pub(super) fn what_is_probed(&self) -> Option<String> {
        let scratch = u64::from(self.plan.layout.more.scratch_bytes);
        if self.plan.layout.mirror.is_some() {
            return None; // copies of a mirror have memory of their own
        }
        self.rig.cores().find_map(|(host, core, _, engine)| {
            let free = engine.host().scratch_free();
            (free != scratch).then(|| format!("host {host} core {core}: a probe is under way"))
        })
    }

    /// [`Self::what_is_missing`], where probes may be under way: paths that rest have some.
    pub(super) fn what_is_away(&self) -> Option<String> {
        if self.plan.layout.mirror.is_some() {
            return self.what_mirrors_lack();
        }
        for (number, host) in self.rig.hosts.iter().enumerate() {
            if !host.user.is_content(|address| self.rig.is_told(address)) {
                let why = host.user.unanswered().or_else(|| self.what_is_unheard());
                let lacks = || format!("host {number} lacks a path, or has one too many");
                return Some(why.unwrap_or_else(lacks));
            }
            for (core, &node) in host.cores.iter().enumerate() {
                let Some(engine) = self.rig.core(node) else {
                    continue;
                };
                let it = engine.host();
                let scratch = u64::from(self.plan.layout.more.scratch_bytes);
                if scratch > 0 && self.rig.world.has_stale(node) {
                    let what = format!("host {number} core {core} uses a connection that is gone");
                    return Some(what);
                }
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
        self.remember_failed_flushes();
        for host in 0..self.rig.hosts.len() {
            let client = self.rig.client(host);
            client.tell(&mut self.history);
            self.report.requests += client.ended;
            let failed = client.failed.clone();
            self.judges(Check::Failures, !failed.is_empty());
            for (start_ns, end_ns) in self.given_up(host, &failed) {
                self.history.given_up(host as u64 + 1, start_ns, end_ns);
            }
            if let Some(it) = self.unforgiven(host, &failed) {
                let asked = self.asked(host, it.home, it.start_ns, &it.request);
                let asked = format!("{asked}");
                let is_flush = it.request.kind == nbd::Kind::Flush;
                let first = it.request.offset / self.plan.layout.habit.unit;
                self.report.block = (!is_flush).then_some(first);
                self.report.seen_ns = Some(it.end_ns);
                let end = format!("to {} s: {}", At(it.end_ns), it.error);
                let what = format!("{asked} {end}");
                self.report.keys.push(asked);
                return Err(Finding::Failed(what));
            }
        }
        let legs = self.rig.hosts.iter().flat_map(|host| &host.good);
        self.history.left = legs.flat_map(|it| &it.left).map(|it| it.1).collect();
        self.history.once = self.rig.world.once();
        self.history.check().map_err(|(block, wrong)| {
            (self.report.block, self.report.seen_ns) = (Some(block), Some(wrong.seen_ns()));
            self.report.keys = self.history.keys(block, &wrong);
            Finding::Disk(block, wrong)
        })?;
        self.waits_are_kept()?;
        self.judges(Check::Cores, self.plan.layout.habit.homes > 1);
        self.note_judged();
        match self.plan.layout.mirror {
            Some(_) => Ok(()), // what legs do is more than what applications ask for
            None => self.counts(),
        }
    }

    /// Notes the checks that had something to judge.
    fn note_judged(&mut self) {
        let nodes = &self.rig.world.nodes;
        let has_conns = |&node: &usize| nodes[node].open_conns().next().is_some();
        let mut cores = self.rig.cores();
        let layout = &self.plan.layout;
        let had_requests = cores.any(|(.., engine)| front::answered(engine, layout).0 > 0);
        let clients = |host: &Host| nodes[host.clients].client();
        let mut clients = self.rig.hosts.iter().filter_map(clients);
        let orphans = clients.clone().any(|client| client.orphans_over > 0);
        let zeroes = clients.any(|client| client.zeroes_judged);
        let is_nvme = layout.habit.front_end != FrontEnd::Nbd;
        let [blocks, crowds, once] = self.history.has_judged();
        let no_mirror = self.plan.layout.mirror.is_none();
        let (peaks, io_max) = (self.rig.world.peaks, u64::from(self.plan.layout.io_max));
        let dropped = self.rig.world.dropped;
        let checks = [
            (Check::Hung, dropped[Late::Hung as usize] > 0),
            (Check::Overtaken, self.rig.world.refused > 0),
            (Check::Blocks, blocks),
            (Check::Crowds, crowds),
            (Check::Once, once),
            (Check::HostMemory, had_requests),
            (Check::TargetMemory, self.rig.targets.iter().any(has_conns)),
            (Check::Durable, self.history.has_crashed()),
            (Check::Orphans, orphans),
            (Check::Hosts, is_nvme && had_requests),
            (Check::Zeroes, zeroes),
            (Check::Discovery, self.rig.discovery.is_some()),
            (
                Check::Peaks,
                peaks.at_devices > 0
                    && 2 * peaks.ios >= io_max
                    && (no_mirror || peaks.of_mirror > 0),
            ),
        ];
        let those = checks.into_iter().filter(|it| it.1);
        self.report.judged.extend(those.map(|it| it.0));
    }

    /// A connection with requests that were never answered.
    fn what_is_unanswered(&self) -> Option<String> {
        let nodes = self.rig.world.nodes.iter().enumerate();
        let mut open = nodes.flat_map(|(node, it)| it.open_conns().map(move |(_, it)| (node, it)));
        open.find_map(|(node, conn)| {
            let count = conn.tap.as_ref()?.unanswered();
            let to = conn.wire.to;
            (count > 0)
                .then(|| format!("node {node}: {count} requests to node {to} have no answer"))
        })
    }

    /// Returns a description of anything that waits, is in flight or holds memory.
    pub(super) fn what_is_left(&self) -> Option<String> {
        for (_, _, node, engine) in self.rig.cores() {
            let it = engine.host();
            let (mut waits, mut in_flight) = (0, 0);
            for volume in self.rig.volumes() {
                let holds = it.hold_stats(volume);
                waits += holds.held + holds.behind + holds.queued + holds.delayed + holds.flushes;
                let paths = it.paths(volume);
                in_flight += paths.map(|path| it.in_flight(volume, path)).sum::<u32>();
            }
            if let Some(Ok(beside @ 1..)) = super::peaks::beside(engine) {
                let what = format!("node {node}: its mirror has {beside} bytes of its own");
                return Some(what);
            }
            let used = engine.buffers() - engine.buffers_free();
            let scratch = u64::from(self.plan.layout.more.scratch_bytes);
            let lent = scratch - it.scratch_free();
            if it.slots_leaked() > 0 {
                let what = format!("node {node}: {} slots are lost", it.slots_leaked());
                return Some(what);
            }
            if (waits, in_flight, used, lent) != (0, 0, 0, 0) {
                let what = format!(
                    "node {node}: {waits} wait, {in_flight} in flight, {used} bytes in use, \
                     {lent} of the engine's own"
                );
                return Some(what);
            }
        }
        self.what_is_unanswered()
            .or_else(|| self.what_targets_have())
    }
}
