//! Exports over NVMe/TCP that a reload takes from a host's applications, and returns.
//!
//! Decides, from a plan and its seed, in which worlds that happens, and makes the changes that
//! `braid reload` makes: on each core a namespace leaves, a port, or the whole subsystem.
//!
//! # Contract
//! Drawn apart from everything else: worlds whose applications use NBD, and most others, are as
//! they would be if there were none. While an export is away no command that its hosts begin is
//! done; they fail with Invalid Namespace, or lose their connection. A process of the host that
//! begins anew has all of its exports.
//!
//! # Limits
//! An NSID is of one volume only. Worlds with a mirror have no such changes.
use super::aim::add_waiting;
use super::client::NSID;
use super::prelude::*;
use super::run::DRAIN_NS;
use alloc::format;
use engine::NvmeControl;

/// One of so many worlds with NVMe/TCP hosts has some, and how many.
const OF: u64 = 3;
const EACH: u64 = 3;
/// How often it is looked whether a subsystem has ended, ns.
const LOOK_NS: u64 = 20 * MS;

/// Part of an export that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Namespace,
    Port,
    Subsystem,
}

/// An export that is away.
#[derive(Clone, Copy, Debug)]
pub struct Unexported {
    part: Part,
    since_ns: u64,
}

/// A plan, perhaps with such changes.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    if plan.layout.habit.front_end != FrontEnd::Nbd && random.up_to(OF - 1) == 0 {
        add_waiting(plan, &[Kind::Unexport], EACH, random);
    }
}

impl Course<'_> {
    /// An export leaves.
    pub(super) fn unexport(&mut self, fault: &Fault, host: usize) {
        let since_ns = self.rig.world.now_ns;
        let (part, change) = match fault.whom / 64 % 4 {
            0 | 1 => (Part::Namespace, NvmeControl::RemoveNamespace(NSID)),
            2 => (Part::Port, NvmeControl::WithdrawPort(0)),
            _ => (Part::Subsystem, NvmeControl::End(DRAIN_NS)),
        };
        self.change_exports(host, |_| change.clone());
        self.rig.hosts[host].unexported = Some(Unexported { part, since_ns });
        if part == Part::Subsystem {
            self.rig.hosts[host].lives.recount();
        }
        self.rig.client(host).unexported_ns = Some(since_ns);
    }

    /// How long it takes at least, ns, until such a fault can end: a subsystem begins where none is
    /// left of the one before.
    pub(super) fn before_export(&self, number: usize, fault: &Fault) -> Option<u64> {
        let whom = self.going_on[number].filter(|_| fault.kind == Kind::Unexport)?;
        let host = &self.rig.hosts[whom.host];
        let ends = host.unexported.is_some_and(|it| it.part == Part::Subsystem);
        let mut cores = host.cores.iter().filter_map(|&it| self.rig.core(it));
        let is_left = |core: &Core| core.targets().next().is_some();
        let is_stopping = host.stopping.is_some();
        (ends && !is_stopping && cores.any(is_left)).then_some(LOOK_NS)
    }

    /// An export returns; one whose process stops does so with the next one.
    pub(super) fn export_again(&mut self, host: usize) {
        let it = &self.rig.hosts[host];
        let Some(Unexported { part, .. }) = it.unexported.filter(|_| it.stopping.is_none()) else {
            return;
        };
        self.exports_are_back(host);
        let layout = self.plan.layout.clone();
        self.change_exports(host, |core| {
            let config = front::config(&layout, core);
            let (first, port) = (&config.subsystem.namespaces[0], &config.subsystem.ports[0]);
            match part {
                Part::Namespace => {
                    NvmeControl::AddNamespace(Box::new(first.clone()), config.volumes[0])
                }
                Part::Port => NvmeControl::SetPort(0, port.clone()),
                Part::Subsystem => NvmeControl::Serve(Box::new(config)),
            }
        });
    }

    /// An export that was away is there again, or about to be.
    pub(super) fn exports_are_back(&mut self, host: usize) {
        let now_ns = self.rig.world.now_ns;
        let Some(Unexported { part, since_ns }) = self.rig.hosts[host].unexported.take() else {
            return;
        };
        let client = self.rig.client(host);
        client.unexported_ns = None;
        let is_seen = client.sees_no_export();
        self.judges(Check::Unexported, is_seen);
        if part != Part::Port {
            self.pardon_unexported(host, since_ns);
        }
        if part != Part::Namespace {
            self.rig.hosts[host].lives.silence(since_ns, now_ns);
        }
    }

    fn change_exports(&mut self, host: usize, change: impl Fn(u16) -> NvmeControl) {
        for (core, node) in (0..).zip(self.rig.hosts[host].cores.clone()) {
            self.rig.tell(node, ExportControl::Nvme(0, change(core)));
        }
    }
}

impl Client {
    /// A request that began then was done over NVMe/TCP: none may be while its export is away.
    pub(super) fn done_over_export(&mut self, begun_ns: u64) {
        if self
            .unexported_ns
            .is_some_and(|since_ns| begun_ns > since_ns)
        {
            let what = format!("a command of {begun_ns} ns was done after its export had left");
            self.wrong.get_or_insert(what);
        }
    }
}
