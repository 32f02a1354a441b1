//! Begin and end of faults, and their targets. Their effects: `strike` (the network and processes),
//! `harm` (devices, answers of controllers, users).
//!
//! # Contract
//! A fault that can't happen to its target, because that is dead, frozen or leaving already, does
//! not begin, and is not counted. A fault that waits for a state of a path ([`Fault::when`]) begins
//! with the first path that has it, and after [its time](wait_ns) without it.
use super::kind::Scope;
use super::mirror::shrunk;
use super::prelude::*;

/// How long a fault waits for its state, ns.
const WAIT_NS: u64 = 2_000_000_000;
/// How long one of this kind waits for its state, ns.
pub(super) fn wait_ns(kind: Kind) -> u64 {
    match kind {
        Kind::Shrink | Kind::DeepQueue => shrunk::WAIT_NS,
        _ => WAIT_NS,
    }
}

/// How often it looks for it, ns.
const LOOK_NS: u64 = 500_000;

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whom {
    pub host: usize,
    /// Of the path: port, and process of the target.
    pub address: usize,
    pub target: usize,
    /// Index.
    pub port: u16,
}

impl Course<'_> {
    /// Number `number` of what was planned is due: the beginning of a fault, or its end.
    pub(super) fn due(&mut self, number: usize) -> Result<(), Finding> {
        let Some(&fault) = self.plan.faults.get(number / 2) else {
            return self.examine();
        };
        self.look();
        match number % 2 {
            0 => self.begin(number / 2, &fault),
            _ => self.end(number / 2, &fault),
        }
    }

    /// A fault begins, if it can.
    fn begin(&mut self, number: usize, fault: &Fault) -> Result<(), Finding> {
        let now_ns = self.rig.world.now_ns;
        let waits =
            fault.when.is_some() && now_ns < self.begin_ns + fault.at_ns + wait_ns(fault.kind);
        let Some(whom) = self.find(fault, waits) else {
            if waits {
                let again = Event::Planned(number * 2);
                self.rig.world.at(now_ns + LOOK_NS, again);
            }
            return Ok(());
        };
        self.examine()?;
        if fault.when.is_some() {
            let at_ns = now_ns + fault.lasts_ns;
            self.rig.world.at(at_ns, Event::Planned(number * 2 + 1));
        }
        self.expect(number, fault, whom);
        self.going_on[number] = Some(whom);
        self.until_ns[number] = now_ns + fault.lasts_ns;
        let Whom {
            host,
            address,
            target,
            ..
        } = whom;
        let name = fault.name();
        let what = format!("{name} begins: host {host}, path {address}, target {target}");
        self.rig.world.tell(|| what);
        self.pardon(number, fault, whom);
        self.bore(fault, whom.host);
        self.silence(fault, whom.host);
        // Each does what it does for its own kinds.
        self.mislead(fault, whom);
        self.annoy(fault, whom);
        self.order_mirror(fault, whom, true);
        self.strike(number, fault, whom);
        self.harm(number, fault, whom);
        Ok(())
    }

    /// Returns the present target of a fault: the drawn one, or another whose path has the state
    /// that it waits for.
    fn find(&self, fault: &Fault, waits: bool) -> Option<Whom> {
        let drawn = self.drawn(fault);
        let possible = |whom: &Whom| self.is_possible(fault, *whom);
        let Some(state) = fault.when else {
            return Some(drawn).filter(possible);
        };
        let mut all = [drawn].into_iter().chain(self.all_whom());
        let found = all.find(|whom| self.state(*whom) == Some(state) && possible(whom));
        found.or_else(|| Some(drawn).filter(|whom| !waits && possible(whom)))
    }

    /// A fault is over, if it began.
    fn end(&mut self, number: usize, fault: &Fault) -> Result<(), Finding> {
        let growth = self.before_growth(number, fault);
        if let Some(wait_ns) = growth.or_else(|| self.before_export(number, fault)) {
            let at_ns = self.rig.world.now_ns + wait_ns;
            self.rig.world.at(at_ns, Event::Planned(number * 2 + 1));
            return Ok(());
        }
        let Some(whom) = self.going_on[number].take() else {
            return Ok(());
        };
        self.rig.world.tell(|| format!("{} is over", fault.name()));
        self.enlighten(fault, whom);
        self.appease(fault, whom);
        self.order_mirror(fault, whom, false);
        self.repair(number, fault, whom);
        self.relent(number, fault, whom)
    }

    /// Returns the drawn target of a fault.
    pub(super) fn drawn(&self, fault: &Fault) -> Whom {
        let layout = &self.plan.layout;
        let whom = fault.whom as usize;
        let paths = layout.targets * usize::from(layout.ports);
        self.of(whom % layout.hosts, whom / 8 % paths)
    }

    fn of(&self, host: usize, address: usize) -> Whom {
        let targets = self.plan.layout.targets;
        Whom {
            host,
            address,
            target: address % targets,
            port: (address / targets) as u16,
        }
    }

    pub(super) fn all_whom(&self) -> impl Iterator<Item = Whom> {
        let layout = &self.plan.layout;
        let paths = layout.targets * usize::from(layout.ports);
        let each = move |host| (0..paths).map(move |address| (host, address));
        let all = (0..layout.hosts).flat_map(each);
        all.map(|(host, address)| self.of(host, address))
    }

    /// The state of a path, if its host is there.
    fn state(&self, whom: Whom) -> Option<PathState> {
        let host = &self.rig.hosts[whom.host];
        let node = host.cores[self.rig.layout.first_home()];
        let engine = self.rig.core(node)?.host();
        let (volume, _) = self.rig.first_path(whom.address);
        let path = host.user.path(whom.address);
        let state = |path| engine.path_state(volume, path);
        Some(match path {
            Some(path) => state(path),
            // Told of, and not in use yet.
            None if self.rig.discovery.is_some()
                && host.user.is_adding(whom.address)
                && engine.paths(0).any(|it| state(it) == PathState::Connecting) =>
            {
                PathState::Connecting
            }
            None => PathState::Removed,
        })
    }

    /// Whether the one it is about is there to suffer it.
    fn is_possible(&self, fault: &Fault, whom: Whom) -> bool {
        let kind = fault.kind;
        let world = &self.rig.world;
        let host_is_well = self.host_is_well(whom.host);
        let target_is_well = |target: usize| {
            let node = &world.nodes[self.rig.targets[target]];
            !node.is_dead() && node.frozen_ns <= world.now_ns
        };
        match (kind, kind.scope()) {
            _ if Kind::OF_DISCOVERY.contains(&kind) => self.can_mislead(fault),
            // It would be later than late.
            (Kind::Freeze, _) if self.late_ns[whom.target] > world.now_ns => false,
            // Nor what hangs, nor does it hang then.
            (Kind::HungSubmit, _) => target_is_well(whom.target) && self.may_hang(whom.target),
            (Kind::LateWrites, _) if world.is_hung(self.rig.targets[whom.target]) => false,
            (Kind::DeepQueue, _) => host_is_well && self.may_be_deep(whom.host),
            (Kind::Shrink, _) => host_is_well && self.may_shrink(whom),
            (Kind::Unexport, _) => host_is_well && self.rig.hosts[whom.host].unexported.is_none(),
            // A loss that it has not noticed yet would stay unnoticed.
            (
                Kind::KillHost
                | Kind::StopHost
                | Kind::StopUnread
                | Kind::Exchange
                | Kind::HaltHost,
                _,
            ) if self.is_any_unseen() => false,
            (Kind::KillAll, _) => (0..self.rig.targets.len()).any(target_is_well),
            (Kind::Reset | Kind::ResetCore | Kind::HalfOpen, _) => {
                host_is_well && !self.open_wires(whom).is_empty()
            }
            // Also while a core stands still, which does not see it then.
            (Kind::ClientReset, _) => self.host_is_there(whom.host),
            (_, Scope::World) => true,
            (_, Scope::Port | Scope::Target) => target_is_well(whom.target),
            (_, Scope::Path | Scope::Host) => host_is_well,
        }
    }

    /// Whether a host is there, and neither stands still nor stops.
    pub(super) fn host_is_well(&self, host: usize) -> bool {
        let world = &self.rig.world;
        let mut cores = self.rig.hosts[host].cores.iter();
        self.host_is_there(host) && cores.all(|&it| world.nodes[it].frozen_ns <= world.now_ns)
    }

    /// Whether a host is there, and does not stop.
    fn host_is_there(&self, host: usize) -> bool {
        let host = &self.rig.hosts[host];
        let is_there = |&node: &usize| {
            let node = &self.rig.world.nodes[node];
            !node.is_dead() && !node.stopped
        };
        host.stopping.is_none() && host.cores.iter().all(is_there)
    }

    /// The wires of a path over which there are connections.
    pub(super) fn open_wires(&self, whom: Whom) -> Vec<Wire> {
        let mut wires = self.rig.wires(whom.host, whom.address);
        wires.retain(|wire| {
            let mut conns = self.rig.world.nodes[wire.from].open_conns();
            conns.any(|(_, conn)| conn.wire == *wire && !conn.closing)
        });
        wires
    }

    /// In which states the paths are that a fault concerns.
    pub(super) fn cells(&self, kind: Kind, whom: Whom) -> Vec<(Kind, PathState)> {
        let concerns = |it: &Whom| match kind.scope() {
            Scope::Path => *it == whom,
            Scope::Host => it.host == whom.host,
            Scope::Port => it.address == whom.address,
            Scope::Target => it.target == whom.target,
            Scope::World => true,
        };
        let those = self.all_whom().filter(concerns);
        let states = those.filter_map(|it| self.state(it));
        states.map(|state| (kind, state)).collect()
    }

    /// Whether what is told changes because of a fault of discovery.
    pub(super) fn is_news(&self, kind: Kind, whom: Whom) -> bool {
        let discovery = self.rig.discovery.as_ref();
        discovery.is_some_and(|it| match kind {
            Kind::Unreferred => it.unreferred == 0,
            _ => it.withheld[whom.address] == 0,
        })
    }

    /// The wire of the core that a fault of one core is about.
    pub(super) fn core(&self, fault: &Fault, whom: Whom) -> Wire {
        let wires = self.rig.wires(whom.host, whom.address);
        wires[fault.whom as usize / 64 % wires.len()]
    }

    /// Something is said to a process of the target.
    pub(super) fn target(&mut self, target: usize, message: TargetControl) {
        let node = self.rig.targets[target];
        self.rig.world.command(node, message);
    }
}
