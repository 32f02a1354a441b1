//! Faults of the network and of processes.
use super::prelude::*;
use super::rig::Away;
use super::run::DRAIN_NS;
use super::story::LOSS;
use alloc::format;

impl Course<'_> {
    /// Begins a fault, if it is of one of these kinds.
    pub(super) fn strike(&mut self, number: usize, fault: &Fault, whom: Whom) {
        let end_ns = self.rig.world.now_ns + fault.lasts_ns;
        let Whom { host, target, .. } = whom;
        let node = self.rig.targets[target];
        let wires = self.rig.wires(host, whom.address);
        let core = self.core(fault, whom);
        match fault.kind {
            Kind::Reset => wires.into_iter().for_each(|wire| self.rig.world.cut(wire)),
            Kind::ResetCore => {
                let open = self.open_wires(whom);
                self.rig
                    .world
                    .cut(open[fault.whom as usize / 64 % open.len()]);
            }
            Kind::HalfOpen if high_bit(fault) => wires
                .into_iter()
                .for_each(|wire| self.rig.world.forget_on_the_way(wire)),
            Kind::HalfOpen => wires
                .into_iter()
                .for_each(|wire| self.rig.world.forget(wire, bit(fault))),
            Kind::Partition | Kind::OneWay => self.part(&wires, fault, end_ns),
            Kind::Slow | Kind::Damage | Kind::Trickle | Kind::Full => self.set_wires(),
            Kind::Unread => self.deafen(host, end_ns),
            Kind::Kill => {
                self.rig.world.kill(node);
                self.put_back(target);
            }
            Kind::Power => self.power(target, self.plan.layout.targets > 1),
            Kind::KillAll => {
                for target in 0..self.rig.targets.len() {
                    match bit(fault) && self.plan.layout.caches {
                        // Legs have caches of their own, which keep different parts.
                        true => self.power(target, self.plan.layout.mirror.is_some()),
                        false => self.rig.world.kill(self.rig.targets[target]),
                    }
                }
            }
            Kind::Away => {
                // A host that knows none of its paths yet would take the other one for its own.
                self.rig.away[target] = match bit(fault) && self.what_is_missing().is_none() {
                    true => Away::Other,
                    false => Away::None,
                };
                self.rig.world.kill(node);
                self.rig.start_target(target);
            }
            Kind::Freeze => self.freeze(fault, node, end_ns),
            Kind::HungSubmit => self.hang_leg(fault, target, end_ns),
            Kind::FreezeHost => self.rig.world.nodes[core.from].frozen_ns = end_ns,
            Kind::HaltHost => self.halt_host(fault, host, end_ns),
            Kind::KillHost => self.kill_host(host),
            Kind::Exchange => self.exchange(fault, host),
            Kind::StopHost => self.stop_host(host),
            Kind::StopUnread => {
                self.deafen(host, end_ns);
                self.stop_host(host);
            }
            Kind::Unexport => self.unexport(fault, host),
            Kind::Crowd | Kind::Greedy => {
                let paths = self.plan.layout.targets * usize::from(self.plan.layout.ports);
                let greedy = fault.kind == Kind::Greedy;
                let (address, count) = match greedy {
                    true => (paths + host, 6),
                    false => (whom.address, 32),
                };
                let stranger = self.rig.stranger();
                stranger.come(address as u32, count, number as u64, greedy);
            }
            _ => {}
        }
    }

    /// Ends a fault, if it was of one of these kinds.
    pub(super) fn relent(
        &mut self,
        number: usize,
        fault: &Fault,
        whom: Whom,
    ) -> Result<(), Finding> {
        let Whom { host, target, .. } = whom;
        match fault.kind {
            Kind::Slow | Kind::Damage | Kind::Trickle | Kind::Full => self.set_wires(),
            Kind::Kill | Kind::Power => self.begin_again(target),
            Kind::KillAll => (0..self.rig.targets.len()).for_each(|it| self.begin_again(it)),
            // The last of them brings it back.
            Kind::Away if self.goes_on(Kind::Away, target) => {}
            Kind::Away => {
                self.rig.away[target] = Away::No;
                self.rig.restart_target(target);
            }
            Kind::KillHost => {
                self.inherit(fault, host);
                self.start_host(host);
            }
            Kind::Exchange => self.exchange_back(host),
            Kind::HaltHost => self.take_over_halted(fault, host),
            Kind::StopHost | Kind::StopUnread => {
                let stopped = self.rig.hosts[host].has_stopped(&self.rig.world);
                if stopped {
                    // It promises the same: what it had is over, or its mark says until when not.
                    self.history.died(host as u64 + 1, self.rig.world.now_ns);
                    self.rig.take_mark_away(host);
                } else if fault.kind == Kind::StopUnread && !self.was_frozen(host, fault) {
                    let what = format!("host {host} does not stop while its clients do not read");
                    return Err(Finding::Stuck(what));
                } else {
                    self.kill_host(host); // the user gives up
                }
                self.start_host(host);
            }
            Kind::Crowd | Kind::Greedy => self.rig.stranger().leave(number as u64),
            Kind::Unexport => self.export_again(host),
            // The state in which it was to stand still did not come.
            Kind::Freeze => self.rig.world.nodes[self.rig.targets[target]].halt = None,
            _ => {}
        }
        Ok(())
    }

    /// A process stands still: at once, or with the next change that it gives to a device, before
    /// that is submitted or in a thread of its own (T49).
    fn freeze(&mut self, fault: &Fault, node: usize, end_ns: u64) {
        let node = &mut self.rig.world.nodes[node];
        if !is_halt(fault) {
            return node.frozen_ns = end_ns;
        }
        node.halt = Some(Halt {
            until_ns: end_ns,
            in_worker: bit(fault),
        });
    }

    /// A host is told to stop, as by SIGTERM.
    pub(super) fn stop_host(&mut self, host: usize) {
        let cores = self.rig.hosts[host].cores.clone();
        self.rig.hosts[host].lives.leave(self.rig.world.now_ns);
        for &node in &cores {
            self.rig.tell(node, ExportControl::Drain(DRAIN_NS));
        }
        self.rig.hosts[host].stopping = Some(cores.len() - 1);
        self.rig.stop_seeker(host);
    }

    /// A process of a host begins. It takes what it finds, so it must not find another namespace.
    pub(super) fn start_host(&mut self, host: usize) {
        for target in 0..self.rig.targets.len() {
            if self.rig.away[target] == Away::Other {
                self.rig.away[target] = Away::None;
                self.rig.restart_target(target);
            }
        }
        self.exports_are_back(host);
        self.rig.start_host(host);
    }

    pub(super) fn kill_host(&mut self, host: usize) {
        self.bare_legs();
        self.rig.keep_counts(host);
        self.rig.hosts[host].lives.leave(self.rig.world.now_ns);
        for node in self.rig.hosts[host].cores.clone() {
            self.rig.world.kill(node);
        }
        self.rig.kill_seeker(host);
        self.history.died(host as u64 + 1, self.rig.world.now_ns);
        self.rig.hosts[host].stopping = None;
    }

    /// A process of the target dies, and its controllers' cache is lost; `alone`: another process
    /// keeps its own.
    fn power(&mut self, target: usize, alone: bool) {
        let node = self.rig.targets[target];
        let disk = self.rig.disk_of(target);
        let covered = self.is_covered(disk);
        let world = &mut self.rig.world;
        world.kill(node);
        world.tell(|| format!("{LOSS}those of target {target}"));
        let lost = world.disks[disk].lose(node as u8 + 1, &mut world.random);
        if covered {
            self.judges(Check::Heir, lost > 0);
            return; // the mirror has what is lost
        }
        match alone {
            true => self.history.crash_of_one(world.now_ns),
            false => self.history.crash(world.now_ns),
        }
    }

    /// A process of the target begins, unless another one did meanwhile.
    fn begin_again(&mut self, target: usize) {
        if self.rig.world.nodes[self.rig.targets[target]].is_dead() {
            self.rig.start_target(target);
        }
    }

    /// Whether a core of a host stood still since this fault began, which ends now.
    fn was_frozen(&self, host: usize, fault: &Fault) -> bool {
        let world = &self.rig.world;
        let began_ns = world.now_ns - fault.lasts_ns;
        let cores = self.rig.hosts[host].cores.iter();
        let mut frozen = cores.map(|&node| world.nodes[node].frozen_ns);
        frozen.any(|frozen_ns| frozen_ns > began_ns)
    }

    /// All faults have ended and no client sends requests, and some connections are forgotten on
    /// the way once more: those of faults that did that. An engine with memory for probes finds
    /// out.
    pub(super) fn forget_idle(&mut self) {
        let layout = &self.plan.layout;
        if layout.mirror.is_some() || layout.more.scratch_bytes == 0 {
            return;
        }
        let plan = self.plan;
        let those = plan.faults.iter();
        for fault in those.filter(|it| it.kind == Kind::HalfOpen && high_bit(it)) {
            let whom = self.drawn(fault);
            for wire in self.rig.wires(whom.host, whom.address) {
                self.rig.world.forget_on_the_way(wire);
            }
        }
    }

    /// Nothing passes on some wires, both ways or one; or one way nothing large.
    fn part(&mut self, wires: &[Wire], fault: &Fault, end_ns: u64) {
        let way = (fault.kind == Kind::OneWay).then(|| usize::from(bit(fault)));
        for &wire in wires {
            match way.filter(|_| high_bit(fault)) {
                Some(way) => {
                    let way = &mut self.rig.world.wires.entry(wire).or_default().ways[way];
                    way.large_ns = way.large_ns.max(end_ns);
                }
                None => self.rig.world.part(wire, way, end_ns),
            }
        }
    }

    /// The applications of a host read nothing until then.
    fn deafen(&mut self, host: usize, end_ns: u64) {
        for wire in self.rig.client_wires(host) {
            let way = &mut self.rig.world.wires.entry(wire).or_default().ways[1];
            way.deaf_ns = way.deaf_ns.max(end_ns);
        }
    }
}

/// Whether a process is to stand still with the next change that it gives to a device.
pub(super) fn is_halt(fault: &Fault) -> bool {
    fault.kind == Kind::Freeze && fault.whom & 128 != 0
}

/// Whether a fault of a connection or of one way is one that keep-alive does not notice: I/O
/// connections are forgotten on the way, or only large packets get lost.
pub(super) fn high_bit(fault: &Fault) -> bool {
    fault.whom & 128 != 0
}

impl Fault {
    /// Returns its name in reports: that of its kind, or of the form in which it happens.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::HalfOpen if high_bit(self) => "forgotten-idle-connection".into(),
            Kind::OneWay if high_bit(self) => "one-way-loss-by-size".into(),
            kind => kind.name(),
        }
    }
}

/// One of two ways in which a fault may happen.
pub(super) fn bit(fault: &Fault) -> bool {
    fault.whom & 64 != 0
}
