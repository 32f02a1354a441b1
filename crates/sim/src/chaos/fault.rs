//! Faults begin and are over.
//!
//! # Contract
//! What can't happen to those it is about, because they are dead, frozen or leaving already, does
//! not begin, and is not counted.
use super::node::{Body, Wire};
use super::plan::{self, Fault, Kind};
use super::rig::QUIESCE_NS;
use super::run::{Course, DRAIN_NS};
use alloc::format;
use engine::Machine;
use engine::export::ExportControl;
use engine::host::HostControl;
use engine::target::{Faults, TargetControl};
use nvme::host::AnaState;
use policy::{Knobs, PathIndex};

impl Course<'_> {
    /// A host is told to stop, as by SIGTERM.
    pub(super) fn stop_host(&mut self, host: usize) {
        let cores = self.rig.hosts[host].cores.clone();
        for &node in &cores {
            self.rig.tell(node, ExportControl::Drain(DRAIN_NS));
        }
        self.rig.hosts[host].stopping = Some(cores.len() - 1);
    }

    /// Host, address, target, port that a fault is about.
    fn whom(&self, fault: &Fault) -> (usize, usize, usize, u16) {
        let layout = &self.plan.layout;
        let whom = fault.whom as usize;
        let paths = layout.targets * usize::from(layout.ports);
        let address = whom / 8 % paths;
        (
            whom % layout.hosts,
            address,
            address % layout.targets,
            (address / layout.targets) as u16,
        )
    }

    fn target(&mut self, target: usize, message: TargetControl) {
        let now_ns = self.rig.world.now_ns;
        let node = &mut self.rig.world.nodes[self.rig.targets[target]];
        if let Body::Target(engine) = &mut node.body {
            engine.handle_control(message, now_ns);
            node.stirred = true;
        }
    }

    /// A fault begins, if it can.
    pub(super) fn begin(&mut self, number: usize, fault: &Fault) {
        let (host, address, target, port) = self.whom(fault);
        if !self.is_possible(fault.kind, host, target) {
            return;
        }
        self.note(fault.kind, host, address);
        let what = format!(
            "{:?} begins: host {host}, path {address}, target {target}",
            fault.kind
        );
        self.rig.world.tell(|| what);
        self.going_on[number] = true;
        let now_ns = self.rig.world.now_ns;
        let end_ns = now_ns + fault.lasts_ns;
        let node = self.rig.targets[target];
        let wires = self.rig.wires(host, address);
        let core = wires[fault.whom as usize / 64 % wires.len()];
        match fault.kind {
            Kind::Reset => wires.into_iter().for_each(|wire| self.rig.world.cut(wire)),
            Kind::ResetCore => self.rig.world.cut(core),
            Kind::Partition | Kind::Slow | Kind::Damage => self.spoil(&wires, fault.kind, end_ns),
            Kind::Drop => self.target(target, TargetControl::Drop(port)),
            Kind::Ana => {
                let states = [
                    AnaState::NonOptimized,
                    AnaState::Inaccessible,
                    AnaState::PersistentLoss,
                    AnaState::Change,
                ];
                let state = states[fault.whom as usize / 64 % states.len()];
                self.target(target, TargetControl::Ana(port, state));
            }
            Kind::Kill | Kind::Power => {
                self.rig.world.kill(node);
                if fault.kind == Kind::Power {
                    let world = &mut self.rig.world;
                    world.disks[0].lose(node as u8 + 1, &mut world.random);
                    self.history.crash(now_ns);
                }
            }
            Kind::Freeze => self.rig.world.nodes[node].frozen_ns = end_ns,
            Kind::FreezeHost => self.rig.world.nodes[core.from].frozen_ns = end_ns,
            Kind::KillHost => {
                for node in self.rig.hosts[host].cores.clone() {
                    self.rig.world.kill(node);
                }
                self.rig.hosts[host].stopping = None;
            }
            Kind::StopHost => self.stop_host(host),
            Kind::Policy => {
                let policy = plan::policy(&mut self.rig.world.random);
                for node in self.rig.hosts[host].cores.clone() {
                    let message = HostControl::Policy(0, policy, Knobs::default());
                    self.rig.tell(node, ExportControl::Host(message));
                }
            }
            Kind::SlowDisk => self.rig.world.disks[0].delay_ns = (1_000_000, 50_000_000),
            Kind::LateWrites => {
                let faults = Faults {
                    // What a host waits for, less the time until its connection is over here too.
                    late_writes_ns: QUIESCE_NS / 2,
                    ..Faults::default()
                };
                self.target(target, TargetControl::Faults(port, faults));
            }
        }
    }

    fn spoil(&mut self, wires: &[Wire], kind: Kind, end_ns: u64) {
        for &wire in wires {
            let state = self.rig.world.wires.entry(wire).or_default();
            match kind {
                Kind::Partition => state.heals_ns = state.heals_ns.max(end_ns),
                Kind::Slow => state.slow_ns = 1_000_000,
                _ => state.damages = 20,
            }
        }
    }

    /// A fault is over, if it began.
    pub(super) fn end(&mut self, number: usize, fault: &Fault) {
        if !core::mem::take(&mut self.going_on[number]) {
            return;
        }
        let (host, address, target, port) = self.whom(fault);
        self.rig.world.tell(|| format!("{:?} is over", fault.kind));
        match fault.kind {
            Kind::Slow | Kind::Damage => {
                for wire in self.rig.wires(host, address) {
                    let state = self.rig.world.wires.entry(wire).or_default();
                    match fault.kind {
                        Kind::Slow => state.slow_ns = 0,
                        _ => state.damages = 0,
                    }
                }
            }
            Kind::Ana => self.target(target, TargetControl::Ana(port, AnaState::Optimized)),
            Kind::Kill | Kind::Power => self.rig.start_target(target),
            Kind::KillHost => self.rig.start_host(host),
            Kind::StopHost => {
                if self.rig.hosts[host].has_stopped(&self.rig.world) {
                    self.rig.hosts[host].mark_ns = 0; // it took it away
                } else {
                    for node in self.rig.hosts[host].cores.clone() {
                        self.rig.world.kill(node); // somebody lost patience
                    }
                }
                self.rig.start_host(host);
            }
            Kind::SlowDisk => self.rig.world.disks[0].delay_ns = (20_000, 100_000),
            Kind::LateWrites => {
                self.target(target, TargetControl::Faults(port, Faults::default()));
            }
            _ => {}
        }
    }

    /// Whether the one it is about is there to suffer it.
    fn is_possible(&self, kind: Kind, host: usize, target: usize) -> bool {
        let host_is_well = self.rig.hosts[host].stopping.is_none()
            && self.rig.hosts[host].cores.iter().all(|&node| {
                let node = &self.rig.world.nodes[node];
                !node.is_dead() && !node.stopped && node.frozen_ns <= self.rig.world.now_ns
            });
        let node = &self.rig.world.nodes[self.rig.targets[target]];
        let target_is_well = !node.is_dead() && node.frozen_ns <= self.rig.world.now_ns;
        match kind {
            Kind::Drop | Kind::Ana | Kind::Kill | Kind::Power | Kind::Freeze | Kind::LateWrites => {
                target_is_well
            }
            Kind::SlowDisk => true,
            _ => host_is_well,
        }
    }

    fn note(&mut self, kind: Kind, host: usize, address: usize) {
        self.report.faults += 1;
        let node = self.rig.hosts[host].cores[0];
        if let Body::Core(engine) = &self.rig.world.nodes[node].body {
            let state = engine.host().path_state(0, PathIndex(address as u8));
            self.report.coverage.push((kind, state));
        }
    }
}
