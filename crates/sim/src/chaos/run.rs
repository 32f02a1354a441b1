//! One world from its beginning to its end: faults happen and pass, then everything must come to
//! rest, and what the applications saw must have been a disk.
use super::history::{History, Wrong};
use super::node::{Body, Wire};
use super::plan::{self, Fault, Kind, Plan};
use super::rig::{QUIESCE_NS, Rig};
use super::world::Event;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use engine::Machine;
use engine::export::ExportControl;
use engine::host::{HostControl, PathState};
use engine::target::{Faults, TargetControl};
use nbd::Errno;
use nbd::client::CommandError;
use nvme::host::AnaState;
use policy::{Knobs, PathIndex};

const SECOND: u64 = 1_000_000_000;
/// What a stop may take for I/O under way.
pub const DRAIN_NS: u64 = 5 * SECOND;
/// How long the world has to come to rest once the last fault is over: holds, back-off and
/// time-outs, several in a row.
const REST_NS: u64 = 120 * SECOND;
/// For hosts to connect, before anything goes wrong.
const BEGIN_NS: u64 = SECOND / 5;

/// What should never happen.
#[derive(Clone, Debug)]
pub enum Finding {
    /// No disk does that: a block, and what was wrong with it.
    Disk(u64, Wrong),
    /// A request failed, and nothing that was done to the world excuses it.
    Failed(String),
    /// Something had not come to its end when all was well for long.
    Stuck(String),
    /// Counts that should be zero are not.
    Unbalanced(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(block, wrong) => write!(f, "block {block}: {wrong}"),
            Self::Failed(what) => write!(f, "a request failed: {what}"),
            Self::Stuck(what) => write!(f, "still waiting: {what}"),
            Self::Unbalanced(what) => write!(f, "out of balance: {what}"),
        }
    }
}

/// What came of one world.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests of applications that ended.
    pub requests: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Events of the world.
    pub events: u64,
    /// Virtual time, ns.
    pub time_ns: u64,
    /// Kind of fault × state of a path when it began.
    pub coverage: Vec<(Kind, PathState)>,
    /// The first thing that should not have happened.
    pub finding: Option<Finding>,
}

/// Lets the world of a plan happen.
///
/// # Panics
/// If a machine breaks its contract, or an invariant of its own.
pub fn run(plan: &Plan) -> Report {
    play(plan, None).0
}

/// The story of one block in the world of a plan: what was done to it, where, and when; ns and
/// line, in order.
pub fn story(plan: &Plan, block: u64) -> Vec<(u64, String)> {
    let (_, history, mut lines) = play(plan, Some(block));
    lines.extend(history.story(block));
    lines.sort();
    lines
}

fn play(plan: &Plan, watched: Option<u64>) -> (Report, History, Vec<(u64, String)>) {
    let mut course = Course::new(plan);
    course.rig.world.watched = watched.map(|block| (block, Vec::new()));
    let finding = course.all().err();
    let Course {
        rig,
        mut report,
        history,
        ..
    } = course;
    report.events = rig.world.count;
    report.time_ns = rig.world.now_ns;
    report.finding = finding;
    let lines = rig.world.watched.map(|(_, lines)| lines);
    (report, history, lines.unwrap_or_default())
}

struct Course<'a> {
    plan: &'a Plan,
    rig: Rig,
    history: History,
    report: Report,
    /// Faults that are going on.
    going_on: Vec<bool>,
}

impl<'a> Course<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut rig = Rig::new(plan.layout.clone(), plan.canary, plan.seed);
        let begin_ns = rig.world.now_ns + BEGIN_NS;
        for (number, fault) in plan.faults.iter().enumerate() {
            let at_ns = begin_ns + fault.at_ns;
            rig.world.at(at_ns, Event::Planned(number * 2));
            rig.world
                .at(at_ns + fault.lasts_ns, Event::Planned(number * 2 + 1));
        }
        Self {
            plan,
            rig,
            history: History::default(),
            report: Report::default(),
            going_on: alloc::vec![false; plan.faults.len()],
        }
    }

    fn all(&mut self) -> Result<(), Finding> {
        let last = self
            .plan
            .faults
            .iter()
            .map(|it| it.at_ns + it.lasts_ns)
            .max();
        let end_ns = self.rig.world.now_ns + BEGIN_NS + last.unwrap_or(0) + 1;
        while let Some(number) = self.rig.run(end_ns) {
            let fault = self.plan.faults[number / 2];
            match number % 2 {
                0 => self.begin(number / 2, &fault),
                _ => self.end(number / 2, &fault),
            }
        }
        self.rest()?;
        self.read_all()?;
        self.judge()?;
        self.stop()
    }

    /// All requests end.
    fn rest(&mut self) -> Result<(), Finding> {
        let end_ns = self.rig.world.now_ns + REST_NS;
        while !self.are_over() {
            if self.rig.world.now_ns >= end_ns {
                return Err(Finding::Stuck(self.what_waits()));
            }
            let next_ns = (self.rig.world.now_ns + SECOND / 10).min(end_ns);
            self.rig.run(next_ns);
        }
        Ok(())
    }

    fn are_over(&mut self) -> bool {
        (0..self.rig.hosts.len()).all(|host| self.rig.client(host).is_over())
    }

    /// What everybody finds at the end is in the history as well.
    fn read_all(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            self.rig.client(host).read_all();
        }
        self.rest()
    }

    fn what_waits(&mut self) -> String {
        let mut lines = Vec::new();
        for host in 0..self.rig.hosts.len() {
            let client = self.rig.client(host);
            let (begun, ended) = (client.begun, client.ended);
            lines.push(format!("host {host}: {ended} of {begun} requests ended"));
            for &node in &self.rig.hosts[host].cores {
                if let Body::Core(engine) = &self.rig.world.nodes[node].body {
                    lines.push(format!("{:?}", engine.host().hold_stats(0)));
                }
            }
            let said = &self.rig.hosts[host].lines;
            lines.extend(said.iter().rev().take(4).cloned());
        }
        lines.join("; ")
    }

    fn judge(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            let excused = self.rig.hosts[host].lives > 1;
            let client = self.rig.client(host);
            client.tell(&mut self.history);
            self.report.requests += client.ended;
            let bad = client.failed.iter().find(|(_, error)| match error {
                CommandError::Lost | CommandError::Server(Errno::Shutdown) => !excused,
                _ => true,
            });
            if let Some((request, error)) = bad {
                return Err(Finding::Failed(format!("{request:?}: {error}")));
            }
        }
        self.history
            .check()
            .map_err(|(block, wrong)| Finding::Disk(block, wrong))?;
        self.balance()
    }

    /// Nothing waits, is in flight or has memory.
    fn balance(&self) -> Result<(), Finding> {
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
                if (waits, in_flight, used) != (0, 0, 0) {
                    let what = format!(
                        "node {node}: {waits} wait, {in_flight} in flight, {used} bytes in use"
                    );
                    return Err(Finding::Unbalanced(what));
                }
            }
        }
        Ok(())
    }

    /// All hosts stop in order.
    fn stop(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            self.rig.client(host).resting = true;
            self.stop_host(host);
        }
        let end_ns = self.rig.world.now_ns + 4 * DRAIN_NS;
        self.rig.run(end_ns);
        for (number, host) in self.rig.hosts.iter().enumerate() {
            if !host.has_stopped(&self.rig.world) {
                return Err(Finding::Stuck(format!("host {number} does not stop")));
            }
        }
        Ok(())
    }

    fn stop_host(&mut self, host: usize) {
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

    fn begin(&mut self, number: usize, fault: &Fault) {
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

    fn end(&mut self, number: usize, fault: &Fault) {
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
