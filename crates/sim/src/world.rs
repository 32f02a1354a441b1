//! The loop of a world: events in order, until its time is over.
//!
//! # Contract
//! The course of one I/O: a job issues it on its CPU; a path is chosen; the request passes the
//! path's link (queue, then delay) to the device, is served, and the answer passes the link back;
//! the host notices it when that CPU is there. Each queue is first come first served, and an I/O's
//! place in it is fixed when it arrives.
use crate::cpu::{Cpu, Process};
use crate::disk::Disk;
use crate::draw::sequence;
use crate::limits::IN_FLIGHT_MAX;
use crate::plan::{DevicePlan, Flash, Plan, PlanError, Rule, Way};
use crate::queue::{Event, Queue, Ticket};
use crate::rule::{Rules, Truth};
use crate::tally::Tally;
use alloc::boxed::Box;
use alloc::vec::Vec;
use policy::{Ana, Knobs, Means, PathView, Policy, Program, Selector};
use replay::Replay;
use shape::{Bandwidth, Random, Servers, Stall};

mod change;
mod hedge;
mod io;
mod jobs;
mod replay;

/// Owners of random sequences.
mod things {
    pub const CPU: u64 = 1;
    pub const DEVICE: u64 = 2;
    pub const LINK: u64 = 3;
    pub const JOB: u64 = 4;
    pub const CROSS: u64 = 5;
    pub const SERVER: u64 = 6;
    pub const LOSS: u64 = 7;
    pub const MACHINE: u64 = 8;
}

/// No parent.
const NONE: u32 = u32::MAX;

/// One I/O under way.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    address: u64,
    /// When the job issued it, and when it was given to its path.
    begun_ns: u64,
    placed_ns: u64,
    /// When its service ends, on the device's clock.
    port_ns: u64,
    job: u32,
    bytes: u32,
    /// The write of which it is one copy.
    parent: u32,
    used: u8,
    path: u8,
    host: u8,
    cpu: u8,
    write: bool,
    /// On a path.
    placed: bool,
    /// Copies of a mirrored write that are still under way.
    copies: u8,
    /// Whether there is or was a second copy of this read.
    hedge: hedge::Copies,
    /// The ticket that the policy gets back.
    ticket: policy::Ticket,
    /// Its end was not noticed: since when its CPU was away.
    back_ns: Option<u64>,
    /// So much later it leaves: its CPU has other I/Os to handle first.
    late_ns: u64,
}

/// A path's link, as it is now.
struct Path {
    out: Bandwidth,
    back: Bandwidth,
    bytes_per_s: u64,
    delay_ns: u64,
    ana: Ana,
    enabled: bool,
    /// It answers nothing any more; found out later.
    dead: bool,
    random: Random,
    cross: Random,
    /// Draws lost packets.
    loss: Random,
}

/// A device that serves I/Os.
enum Device {
    Flash(Flash, Servers),
    Disk(Disk),
}

/// A device, its luck and its clock.
struct Station {
    device: Device,
    stall: Stall,
    /// The process that serves it.
    cpu: Cpu,
    random: Random,
}

/// One CPU of a host.
struct Core {
    cpu: Cpu,
    node: usize,
    selector: Option<Selector>,
    /// By path: when its connection last delivered something, out and back. Only where packets are
    /// lost.
    delivered_ns: Vec<[u64; 2]>,
    /// Its measurements of each path, as its node's other cores see them.
    means: Vec<Means>,
    /// Its node's `told` when it last calculated weights from that.
    heard: u64,
}

/// One host.
struct Host {
    cores: Vec<Core>,
    /// The view that a policy gets of each path; by node of the CPU.
    views: Vec<Vec<PathView>>,
    /// By node: how often a core of it published what it measured.
    told: Vec<u64>,
    /// I/Os in flight on each path.
    in_flight: Vec<u32>,
    /// As the one before, by CPU as last published, and when; used where counts are stale.
    published: Vec<Vec<u32>>,
    published_ns: u64,
}

/// A job at work.
struct Job {
    kind: usize,
    number: usize,
    in_flight: usize,
    next: u64,
    random: Random,
}

struct World<'a> {
    plan: &'a Plan,
    now_ns: u64,
    queue: Queue,
    slots: Vec<Slot>,
    free: Vec<u32>,
    paths: Vec<Path>,
    stations: Vec<Station>,
    hosts: Vec<Host>,
    jobs: Vec<Job>,
    rules: Option<Rules>,
    replay: Option<Replay>,
    policy: Option<(Policy, Knobs)>,
    /// Late reads get second copies.
    hedges: bool,
    truth: Vec<Truth>,
    /// I/Os that no path can take now.
    parked: Vec<u32>,
    tally: Tally,
}

/// Lets everything happen, and tells what came of it.
///
/// # Errors
/// The plan is no world.
pub fn run(plan: &Plan, way: &Way, seed: u64) -> Result<Tally, PlanError> {
    run_with(plan, way, seed, || None)
}

/// As [`run`]. `program` makes the program of each selector, where the policy is one.
///
/// # Errors
/// The plan is no world.
pub fn run_with(
    plan: &Plan,
    way: &Way,
    seed: u64,
    mut program: impl FnMut() -> Option<Box<dyn Program>>,
) -> Result<Tally, PlanError> {
    plan.check()?;
    let mut world = World::new(plan, way, seed);
    for core in world.hosts.iter_mut().flat_map(|host| &mut host.cores) {
        if let Some(selector) = &mut core.selector
            && let Policy::Program(id) = selector.policy()
            && let Some(program) = program()
        {
            selector.set_program(id, program);
        }
    }
    world.begin();
    let end_ns = plan.warm_ns + plan.run_ns;
    while let Some((at_ns, event)) = world.queue.pop() {
        if at_ns >= end_ns {
            break;
        }
        world.now_ns = at_ns;
        world.tally.events += 1;
        world.handle(event);
    }
    Ok(world.tally)
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, way: &Way, seed: u64) -> Self {
        let (rules, policy) = match way {
            Way::Rule(rule) => (Some(Rules::new(rule, plan)), None),
            Way::Policy(policy, knobs) | Way::Hedged(policy, knobs) => {
                (None, Some((*policy, *knobs)))
            }
        };
        let count = plan.paths.len();
        let mut world = Self {
            plan,
            now_ns: 0,
            queue: Queue::default(),
            slots: Vec::new(),
            free: Vec::new(),
            paths: paths(plan, seed),
            stations: stations(plan, seed),
            hosts: hosts(plan, policy, seed),
            jobs: jobs(plan, seed),
            rules,
            replay: replay(plan, way),
            policy,
            hedges: matches!(way, Way::Hedged(..)),
            truth: vec![Truth::default(); count],
            parked: Vec::new(),
            tally: Tally::new(count, plan.hosts.len(), plan.warm_ns, plan.run_ns),
        };
        world.show();
        world
    }

    fn begin(&mut self) {
        for (number, event) in (0..).zip(&self.plan.events) {
            self.queue.push(event.at_ns, Event::Change(number));
        }
        for (number, path) in (0..).zip(&self.plan.paths) {
            if path.cross_percent > 0 && path.bytes_per_s > 0 {
                self.queue.push(0, Event::Cross(number));
            }
        }
        self.start_jobs();
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(io) => self.arrive(io),
            Event::Served(io) => self.served(io),
            Event::End(io) => self.noticed(io),
            Event::Issue(job) => self.issue(job),
            Event::Disk(device) => self.disk_free(device as usize),
            Event::Cross(path) => self.cross(path as usize),
            Event::Change(number) => self.change(number as usize),
            Event::Detect(path) => self.detect(path as usize),
            Event::Look(io) => self.look(io),
            Event::Hedge(io) => self.hedge(io),
        }
    }

    /// A slot for an I/O; `None`: the world is full.
    fn take(&mut self, io: Slot) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            let used = self.slots[index as usize].used;
            self.slots[index as usize] = Slot { used, ..io };
            return Some(index);
        }
        if self.slots.len() == IN_FLIGHT_MAX {
            return None;
        }
        self.slots.push(io);
        Some(self.slots.len() as u32 - 1)
    }

    fn give_back(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.used = slot.used.wrapping_add(1);
        slot.placed = false;
        self.free.push(index);
    }

    fn ticket(&self, index: u32) -> Ticket {
        Ticket {
            slot: index,
            used: self.slots[index as usize].used,
        }
    }

    /// Whether an event is about the I/O that is in its slot now, on a path that answers.
    #[inline]
    fn is_now(&self, io: Ticket) -> bool {
        let slot = &self.slots[io.slot as usize];
        slot.used == io.used && slot.placed && !self.paths[usize::from(slot.path)].dead
    }
}

fn paths(plan: &Plan, seed: u64) -> Vec<Path> {
    let path = |(index, it): (usize, &crate::plan::PathPlan)| Path {
        out: Bandwidth::new(it.bytes_per_s),
        back: Bandwidth::new(it.bytes_per_s),
        bytes_per_s: it.bytes_per_s,
        delay_ns: it.delay_ns,
        ana: it.ana,
        enabled: true,
        dead: false,
        random: sequence(seed, things::LINK, index),
        cross: sequence(seed, things::CROSS, index),
        loss: sequence(seed, things::LOSS, index),
    };
    plan.paths.iter().enumerate().map(path).collect()
}

fn stations(plan: &Plan, seed: u64) -> Vec<Station> {
    let station = |(index, it): (usize, &DevicePlan)| Station {
        device: match it {
            DevicePlan::Flash(it) => Device::Flash(*it, Servers::new(it.servers, it.read_ns)),
            DevicePlan::Disk(it) => Device::Disk(Disk::new(
                *it,
                sequence(seed, things::DEVICE, index + (1 << 16)),
            )),
        },
        stall: Stall::new(0),
        cpu: match (&plan.machine, it) {
            (Some(machine), _) => {
                let random = sequence(seed, things::MACHINE, 0);
                Cpu::shared(machine, Process::Targets, 0, random)
            }
            (None, DevicePlan::Flash(it)) => {
                Cpu::of_device(it, sequence(seed, things::SERVER, index))
            }
            (None, DevicePlan::Disk(_)) => Cpu::idle(),
        },
        random: sequence(seed, things::DEVICE, index),
    };
    plan.devices.iter().enumerate().map(station).collect()
}

fn hosts(plan: &Plan, policy: Option<(Policy, Knobs)>, seed: u64) -> Vec<Host> {
    let count = plan.paths.len();
    let view = |node: usize, path: usize| {
        let near = plan.paths[path].node.is_none_or(|home| home == node);
        PathView {
            enabled: true,
            ana: plan.paths[path].ana,
            distance: if near { 10 } else { 20 },
            in_flight_elsewhere: 0,
            throughput: 1,
        }
    };
    let selector = |(policy, knobs)| {
        let mut selector = Selector::new(count, policy);
        // Knobs out of range stay at their defaults.
        let _ = selector.set_knobs(knobs);
        selector
    };
    let host = |(index, it): (usize, &crate::plan::HostPlan)| {
        let core = |number: usize| Core {
            cpu: match &plan.machine {
                Some(machine) => {
                    let random = sequence(seed, things::MACHINE, 0);
                    Cpu::shared(machine, Process::Host, it.io_ns, random)
                }
                None => Cpu::new(it, sequence(seed, things::CPU, index << 8 | number)),
            },
            node: number * it.nodes / it.cpus,
            selector: policy.map(selector),
            delivered_ns: vec![[0; 2]; count],
            means: vec![Means::default(); count],
            heard: 0,
        };
        let views = |node| (0..count).map(|path| view(node, path)).collect();
        Host {
            cores: (0..it.cpus).map(core).collect(),
            views: (0..it.nodes).map(views).collect(),
            told: vec![0; it.nodes],
            in_flight: vec![0; count],
            published: vec![vec![0; count]; it.cpus],
            published_ns: 0,
        }
    };
    plan.hosts.iter().enumerate().map(host).collect()
}

fn jobs(plan: &Plan, seed: u64) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (kind, it) in plan.jobs.iter().enumerate() {
        for number in 0..it.count {
            let part = it.span / it.count as u64;
            let job = Job {
                kind,
                number,
                in_flight: 0,
                next: (part * number as u64) & !4095,
                random: sequence(seed, things::JOB, jobs.len()),
            };
            jobs.push(job);
        }
    }
    jobs
}

/// Returns the replay, if the way needs one, and all devices can be replayed.
fn replay(plan: &Plan, way: &Way) -> Option<Replay> {
    let foreseen = |it: &DevicePlan| matches!(it, DevicePlan::Flash(_));
    match way.is_rule() {
        Some(&Rule::Replay(weight)) if plan.devices.iter().all(foreseen) => {
            Some(Replay::new(weight, plan))
        }
        _ => None,
    }
}

/// Whether a rule is there at all to be kept up to date.
impl Way {
    /// A rule, or a policy with its default knobs.
    pub fn policy(policy: Policy) -> Self {
        Self::Policy(policy, Knobs::default())
    }

    /// Short words for what it is.
    pub fn is_rule(&self) -> Option<&Rule> {
        match self {
            Self::Rule(rule) => Some(rule),
            Self::Policy(..) | Self::Hedged(..) => None,
        }
    }
}
