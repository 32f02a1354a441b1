//! Faults of devices, of what controllers answer, and what users do to a host.
use super::disk::{Flaw, Flawed};
use super::overlap::ana;
use super::plan;
use super::prelude::*;
use super::user::Wish;
use engine::target::{ErrorRule, Faults, Ops, Probability};
use nvme::wire::Status;
use policy::{Hedging, ProgramSlot};

/// Statuses of path errors and of busy controllers.
const STATUSES: [Status; 6] = [
    Status::INTERNAL_PATH,
    Status::ANA_TRANSITION,
    Status::HOST_ABORTED,
    Status::NAMESPACE_NOT_READY,
    Status::TRANSIENT_TRANSPORT,
    Status::INVALID_NAMESPACE,
];

/// How long after the end of its connection a controller may execute a write. A host waits for 2 ×
/// KATO and the time to quiesce from the end of its connection; the controller's end may come one
/// KATO later, where nothing passes between them from then on, nor what a partition kept. The
/// result is the remainder, less the latency of a slow disk.
fn late_ns(layout: &Layout) -> u64 {
    let quiesce_ns = match layout.more.cqt_ms {
        0 => QUIESCE_NS,
        cqt_ms => u64::from(cqt_ms) * 1_000_000,
    };
    u64::from(KATO_MS) * 1_000_000 + quiesce_ns - 150_000_000
}

impl Course<'_> {
    /// Begins a fault, if it is of one of these kinds.
    pub(super) fn harm(&mut self, number: usize, fault: &Fault, whom: Whom) {
        let Whom { host, target, .. } = whom;
        match fault.kind {
            Kind::Ana => {
                let state = ana(fault);
                let by = self.rig.targets[target] as u8 + 1;
                if state != AnaState::NonOptimized {
                    let disk = self.rig.disk_of(target);
                    self.rig.world.disks[disk].hand_over(by);
                }
                self.set_ana(target, whom.port);
            }
            Kind::Drop => self.target(target, TargetControl::Drop(whom.port)),
            Kind::LateWrites | Kind::Hang | Kind::Mute | Kind::Status => {
                if fault.kind == Kind::LateWrites {
                    let until_ns =
                        self.rig.world.now_ns + fault.lasts_ns + late_ns(&self.plan.layout);
                    self.late_ns[target] = self.late_ns[target].max(until_ns);
                    // Commands that are late already would be later.
                    let node = self.rig.targets[target];
                    self.rig.world.nodes[node].halt = None;
                }
                self.set_faults(target, whom.port);
            }
            Kind::SlowDisk | Kind::DeepQueue => self.set_disks(),
            Kind::Media | Kind::NoSpace | Kind::Transient | Kind::OneWrite => {
                let flaw = flaw(number as u64, fault, self.plan.layout.habit.blocks);
                let disk = self.rig.disk_of(target);
                let disk = &mut self.rig.world.disks[disk];
                match flaw.once && fault.whom & 128 != 0 {
                    true => disk.flaws.push(flaw), // also of what is before the data
                    false => disk.add(flaw),
                }
            }
            Kind::Resize => self.set_size(target),
            Kind::Shrink => self.shrink_leg(fault, whom),
            Kind::Policy | Kind::Knobs => self.change_policy(fault, host),
            Kind::FailPath => self.ask(number, fault, whom, Wish::Fail),
            Kind::DrainPath => self.ask(number, fault, whom, Wish::Drain),
            Kind::RemovePath => self.ask(number, fault, whom, Wish::Remove),
            Kind::AddPath => self.ask(number, fault, whom, Wish::Second(number as u64)),
            _ => {}
        }
    }

    /// All is as before.
    pub(super) fn repair(&mut self, number: usize, fault: &Fault, whom: Whom) {
        let Whom {
            host,
            address,
            target,
            port,
        } = whom;
        match fault.kind {
            Kind::Ana => {
                if ana(fault) != AnaState::NonOptimized {
                    let by = self.rig.targets[target] as u8 + 1;
                    let disk = self.rig.disk_of(target);
                    self.rig.world.disks[disk].take_back(by);
                }
                self.set_ana(target, port);
            }
            Kind::LateWrites | Kind::Hang | Kind::Mute | Kind::Status => {
                self.set_faults(target, port);
            }
            Kind::SlowDisk => self.set_disks(),
            Kind::DeepQueue => {
                self.set_disks();
                self.none_starved(fault, host);
            }
            Kind::Media | Kind::NoSpace | Kind::Transient | Kind::OneWrite => {
                let disk = self.rig.disk_of(target);
                let flaws = &mut self.rig.world.disks[disk].flaws;
                flaws.retain(|flaw| flaw.name != number as u64);
            }
            Kind::Resize => self.set_size(target),
            Kind::Shrink => self.grow_leg(whom),
            Kind::FailPath | Kind::DrainPath | Kind::RemovePath => self.rig.restore(host, address),
            Kind::AddPath => self
                .rig
                .ask(host, address, Wish::NoSecond(number as u64), true),
            _ => {}
        }
    }

    fn change_policy(&mut self, fault: &Fault, host: usize) {
        let policy = plan::policy(&mut self.rig.world.random);
        let unusual = fault.kind == Kind::Knobs;
        let knobs = match unusual {
            true => Knobs {
                ewma_shift: (fault.whom / 64 % 9) as u8,
                weight_timeout_ns: [0, 1_000_000, 100_000_000][fault.whom as usize / 1024 % 3],
                hedging: [Hedging::Auto, Hedging::Off][fault.whom as usize / 8192 % 2],
            },
            false => Knobs::default(),
        };
        let rare = [
            Policy::ServiceTime,
            Policy::HistoricalServiceTime,
            Policy::Pid,
            Policy::Latency,
        ];
        let policy = match unusual && bit(fault) {
            true => rare[fault.whom as usize / 128 % rare.len()],
            false => policy,
        };
        for node in self.rig.hosts[host].cores.clone() {
            let mirror = self.plan.layout.mirror.map(|_| MIRRORS_FROM);
            let volumes = self.rig.volumes().chain(mirror);
            let of = |volume| match self.program(fault) {
                Some((id, it)) => HostControl::Program(volume, id, ProgramSlot(Some(it)), knobs),
                None => HostControl::Policy(volume, policy, knobs),
            };
            let mut messages: Vec<HostControl> = volumes.map(of).collect();
            if unusual {
                messages.push(HostControl::Throughput(0, PathIndex(0), 100));
            }
            for message in messages {
                self.rig.tell(node, ExportControl::Host(message));
            }
        }
    }

    fn ask(&mut self, number: usize, fault: &Fault, whom: Whom, wish: Wish) {
        let force = fault.whom & aim::FORCE != 0;
        self.rig.ask(whom.host, whom.address, wish, force);
        let ticket = self.rig.hosts[whom.host].user.last();
        self.asked_for(number, whom.host, ticket);
    }
}

/// Returns the requests that a device does not execute.
pub(super) fn flaw(name: u64, fault: &Fault, blocks: u64) -> Flaw {
    let first = fault.whom / 64 % blocks;
    let once = fault.kind == Kind::OneWrite;
    let here = match once {
        true => (0, u64::MAX),
        false => (first, first + 8),
    };
    let (op, of, error) = match (fault.kind, bit(fault)) {
        (Kind::Media, _) => (Flawed::Reads, 1, DeviceError::Os(5)),
        (Kind::NoSpace, true) => (Flawed::Writes, 1, DeviceError::Full),
        (Kind::NoSpace, false) => (Flawed::Writes, 2, DeviceError::Os(5)),
        // Which of the next ones, chance has it.
        (Kind::OneWrite, true) => (Flawed::Writes, 8, DeviceError::Os(5)),
        (Kind::OneWrite, false) => (Flawed::Writes, 2, DeviceError::Os(5)),
        // Out of memory: it may be tried again.
        _ => (Flawed::All, 3, DeviceError::Os(12)),
    };
    Flaw {
        name,
        op,
        blocks: here,
        once,
        of,
        error,
    }
}

/// Returns the effect on a port's commands of a fault that ends then.
pub(super) fn faults(layout: &Layout, fault: &Fault, end_ns: u64) -> Faults {
    let none = Faults::default();
    // A fault with the probability 0 would have no effect, and no checker could find that out.
    let one_of = |n: u32| match Probability::new(1_000_000_000 / n) {
        Some(it) => it,
        None => unreachable!("one of {n} is more than always"),
    };
    match fault.kind {
        Kind::LateWrites => Faults {
            hold_writes_until_ns: end_ns,
            late_writes_ns: late_ns(layout),
            ..none
        },
        Kind::Hang => Faults {
            hang_rate: one_of(50),
            ..none
        },
        Kind::Mute => Faults {
            mute_until_ns: end_ns,
            ..none
        },
        _ => {
            let rule = ErrorRule {
                status: STATUSES[fault.whom as usize / 64 % STATUSES.len()],
                ops: Ops::ALL,
                blocks: None,
                rate: one_of([2, 20, 2, 1][fault.whom as usize / 1024 % 4]),
            };
            Faults {
                errors: vec![rule],
                short_rate: [Probability::default(), one_of(8)][fault.whom as usize / 4096 % 2],
                ..none
            }
        }
    }
}
