//! Description of a world: plain figures, read from a scenario by the program.
//!
//! # Contract
//! Indices point into the lists of the same [`Plan`]; [`Plan::check`] says where they don't.
//!
//! # Limits
//! See [`limits`](crate::limits).
use crate::limits::{
    BYTES_MAX, CPUS_MAX, DEPTH_MAX, EVENTS_MAX, HOSTS_MAX, IOPS_MAX, JOBS_MAX, PATHS_MAX,
    SIZES_MAX, TIME_NS_MAX,
};
use alloc::{format, string::String, vec::Vec};
use policy::{Ana, Knobs, Policy};

/// A world, and what happens in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ways to a device.
    pub paths: Vec<PathPlan>,
    /// Devices that serve the I/Os; several paths may end at one.
    pub devices: Vec<DevicePlan>,
    /// Hosts that send them.
    pub hosts: Vec<HostPlan>,
    /// Their loads.
    pub jobs: Vec<JobPlan>,
    /// Events meanwhile, in any order.
    pub events: Vec<EventPlan>,
    /// Not measured at the beginning.
    pub warm_ns: u64,
    /// Measured after that.
    pub run_ns: u64,
    /// How old the counts of the other CPUs are that a CPU sees; 0 = exact.
    pub stale_ns: u64,
    /// Paths are legs of a mirror: a write goes to all of them.
    pub mirror: bool,
    /// Non-optimized paths are used beside optimized ones (T44).
    pub merge: bool,
    /// The process of each host and that of the devices share CPUs with other ones.
    pub machine: Option<MachinePlan>,
}

/// One machine on which a host, its targets, and processes that never sleep take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachinePlan {
    /// 1: all are on one CPU; 2: host and targets have one each, and the loops are spread.
    pub cpus: usize,
    /// Processes that never sleep.
    pub loops: usize,
    /// Mean time that host or target runs in its turn.
    pub own_ns: u64,
    /// Mean time that a loop runs in its turn.
    pub loop_ns: u64,
}

/// One path: a full-duplex link in front of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPlan {
    /// Each way; 0 = unlimited.
    pub bytes_per_s: u64,
    /// One way.
    pub delay_ns: u64,
    /// Extra, 0…jitter, uniform, each way.
    pub jitter_ns: u64,
    /// Extra from this size on; 0 = none.
    pub large_from: u32,
    /// See `large_from`.
    pub large_ns: u64,
    /// Extra below `large_from`.
    pub small_ns: u64,
    /// Of a million I/Os so many are late by a Pareto time.
    pub tail_per_million: u32,
    /// Least of these times.
    pub tail_ns: u64,
    /// Others' traffic, of the bandwidth each way, percent.
    pub cross_percent: u32,
    /// Where the path ends.
    pub device: usize,
    /// State at the beginning.
    pub ana: Ana,
    /// NUMA node of the path's adapter; `None`: all nodes are equally near.
    pub node: Option<usize>,
    /// Packets lost on the way, of a million. Each connection (one per path and CPU) keeps its
    /// order, so what follows waits until the packet was sent again.
    pub loss_per_million: u32,
    /// The path whose line this one shares, a lower one that ends at the same device and shares
    /// none itself; `None`: it has a line of its own.
    pub line_of: Option<usize>,
}

/// A device that serves I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePlan {
    /// Servers side by side: a controller, or a solid-state drive.
    Flash(Flash),
    /// One arm.
    Disk(Disk),
}

/// Servers side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flash {
    /// How many.
    pub servers: u16,
    /// Mean service of a read, and of a write.
    pub read_ns: u64,
    /// See `read_ns`.
    pub write_ns: u64,
    /// And for each of its bytes, in thousandths of a nanosecond.
    pub read_byte_ps: u64,
    /// See `read_byte_ps`.
    pub write_byte_ps: u64,
    /// Distribution of the service around its mean.
    pub noise: Noise,
    /// Mean time the process that serves runs until its scheduler stops it; 0 = it is never
    /// stopped.
    pub busy_run_ns: u64,
    /// Mean time it is stopped: nothing arrives and nothing is answered meanwhile, but what its
    /// drives serve goes on.
    pub busy_stall_ns: u64,
}

/// Distribution of a service around its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Always the mean.
    None,
    /// 0.7 + 0.3 · exponential.
    Usual,
    /// All from 0 to twice the mean alike.
    Flat,
    /// Nine of ten take 0.6 times the mean, the others 4.6 times.
    Bimodal,
}

impl Noise {
    /// The shortest service of this mean.
    pub fn least_ns(self, mean_ns: u64) -> u64 {
        match self {
            Self::None => mean_ns,
            Self::Usual => mean_ns * 7 / 10,
            Self::Flat => 0,
            Self::Bimodal => mean_ns * 6 / 10,
        }
    }
}

/// A rotating disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its size, bytes.
    pub bytes: u64,
    /// Transfer at the outer edge; half of it at the inner one.
    pub bytes_per_s: u64,
    /// The shortest seek, and what a seek over the whole disk takes more.
    pub seek_ns: u64,
    /// See `seek_ns`.
    pub stroke_ns: u64,
    /// One turn.
    pub turn_ns: u64,
}

/// One host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// CPUs, each with a selector of its own.
    pub cpus: usize,
    /// NUMA nodes; CPUs lie on them in blocks.
    pub nodes: usize,
    /// Mean time a CPU runs between two stalls; 0 = it never stalls.
    pub busy_run_ns: u64,
    /// Mean length of a stall: nothing is noticed and nothing is issued meanwhile.
    pub busy_stall_ns: u64,
    /// Time of a CPU for an I/O. It polls for ends, handles all it finds, and polls again; its
    /// messages for them leave late too.
    pub io_ns: u64,
}

/// Jobs of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// On which host.
    pub host: usize,
    /// How many.
    pub count: usize,
    /// I/Os each keeps in flight; with a pace the most that may be.
    pub depth: usize,
    /// Sizes and how often each, as weights.
    pub sizes: Vec<(u32, u32)>,
    /// Writes, of a hundred.
    pub write_percent: u32,
    /// Addresses one after the other, else random ones.
    pub sequential: bool,
    /// Addresses lie below this.
    pub span: u64,
    /// I/Os per second and job, at Poisson times; 0 = the next when one ends.
    pub iops: u64,
    /// The job goes to the next CPU so often; 0 = never.
    pub move_ns: u64,
}

/// Something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPlan {
    /// When.
    pub at_ns: u64,
    /// The change.
    pub what: Change,
}

/// Changes that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The one-way delay of a path is another.
    Delay(usize, u64),
    /// The bandwidth of a path is another, bytes per second.
    Rate(usize, u64),
    /// The device behind a path stands still for so long.
    Stall(usize, u64),
    /// A path dies: what is on it fails after so long, and goes elsewhere.
    Down(usize, u64),
    /// It is back.
    Up(usize),
    /// Its ANA state is another.
    Ana(usize, Ana),
    /// Another policy everywhere.
    Policy(Policy),
}

/// How the paths are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// As braid does, with the policy's own code.
    Policy(Policy, Knobs),
    /// As `Policy`, with second copies of reads that are late.
    Hedged(Policy, Knobs),
    /// By a rule that knows more than a policy can: for bounds.
    Rule(Rule),
}

/// Rules to find out how good a policy could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// To each path this share of the I/Os, in any unit.
    Split(Vec<u32>),
    /// The path whose in-flight I/Os (or bytes) are least beside its share.
    Window {
        /// Shares, in any unit.
        share: Vec<u32>,
        /// Bytes count, not I/Os.
        bytes: bool,
    },
    /// The first path in order with fewer I/Os in flight than its cap; else the last of the order.
    Fill {
        /// Paths, best first.
        order: Vec<usize>,
        /// Most I/Os in flight on each, in the order of the paths.
        caps: Vec<u32>,
    },
    /// Least completion time by the true figures and the true load; waiting counts 1 + this many
    /// eighths.
    Clairvoyant(u32),
    /// As above, from the true state of links and servers, with all I/O under way replayed.
    Replay(u32),
    /// Shares as in `Split`, for each size and direction (of a write: true) its own; what is not
    /// named goes to the first usable path.
    Kinds(Vec<(u32, bool, Vec<u32>)>),
    /// Stripes of so many bytes over the paths.
    Stripe(u64),
    /// The address space in equal parts, one for each path.
    Region,
    /// Each job to a path of its own.
    Job,
}

/// A plan that can't be a world: why, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError(pub String);

impl Plan {
    /// Whether a world can be made of it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        let paths = self.paths.len();
        let ends_nowhere = |it: &PathPlan| it.device >= self.devices.len();
        let has_no_line = |(path, it): (usize, &PathPlan)| {
            it.line_of.is_some_and(|of| {
                let there = self.paths.get(of).filter(|_| of < path);
                !there.is_some_and(|of| of.line_of.is_none() && of.device == it.device)
            })
        };
        let lost = |it: &EventPlan| {
            it.what.path().is_some_and(|path| path >= paths) || it.what.names_no_path(paths)
        };
        let wrong = if !(1..=PATHS_MAX).contains(&paths) {
            format!("a world has 1 to {PATHS_MAX} paths")
        } else if self.paths.iter().any(ends_nowhere) {
            "a path ends at a device that is not there".into()
        } else if self.paths.iter().enumerate().any(has_no_line) {
            "a path shares its line with an earlier one to the same device, which has its own"
                .into()
        } else if self.machine.is_some_and(|it| !it.is_sound()) {
            "a machine has 1 or 2 CPUs, at most 64 loops, and turns that are not 0 long".into()
        } else if !(1..=HOSTS_MAX).contains(&self.hosts.len())
            || !self.hosts.iter().all(HostPlan::is_sound)
        {
            format!(
                "a world has 1 to {HOSTS_MAX} hosts of 1 to {CPUS_MAX} CPUs, on no more nodes \
                 than CPUs"
            )
        } else if self.jobs.iter().any(|job| !job.is_sound(self.hosts.len())) {
            "a job needs a host, a count, a depth, sizes of 512 bytes to 16 MiB with a \
             weight, and at most 100 percent of writes"
                .into()
        } else if self.events.len() > EVENTS_MAX || self.events.iter().any(lost) {
            format!(
                "an event is about a path that is not there, or there are more than {EVENTS_MAX}"
            )
        } else if self.run_ns == 0 {
            "the run is 0 long".into()
        } else if self.times().any(|ns| ns > TIME_NS_MAX) {
            let ms = TIME_NS_MAX / 1_000_000;
            format!("no time may be longer than an hour ({ms} ms)")
        } else if self.is_too_much() {
            format!(
                "at most {JOBS_MAX} jobs in all, together {DEPTH_MAX} deep, {SIZES_MAX} sizes and \
                 {IOPS_MAX} iops; of others' traffic 99 percent, of late I/Os a million per \
                 million; rates and spans up to 2^60 bytes"
            )
        } else {
            return Ok(());
        };
        Err(PlanError(wrong))
    }

    /// The path whose line a path uses.
    #[inline]
    pub fn line(&self, path: usize) -> usize {
        self.paths[path].line_of.unwrap_or(path)
    }

    /// Every time that stands in it.
    fn times(&self) -> impl Iterator<Item = u64> + '_ {
        let paths = self.paths.iter().flat_map(|it| {
            let latency = [it.delay_ns, it.jitter_ns, it.tail_ns];
            latency.into_iter().chain([it.large_ns, it.small_ns])
        });
        let devices = self.devices.iter().flat_map(|it| match it {
            DevicePlan::Flash(it) => {
                let service = [it.read_ns, it.write_ns, it.read_byte_ps, it.write_byte_ps];
                let busy = [it.busy_run_ns, it.busy_stall_ns];
                service.into_iter().chain(busy)
            }
            DevicePlan::Disk(it) => [it.seek_ns, it.stroke_ns, it.turn_ns, 0]
                .into_iter()
                .chain([0; 2]),
        });
        let turns = self.machine.iter().flat_map(|it| [it.own_ns, it.loop_ns]);
        let hosts = self.hosts.iter();
        let hosts = hosts.flat_map(|it| [it.busy_run_ns, it.busy_stall_ns]);
        let jobs = self.jobs.iter().map(|it| it.move_ns);
        let events = self.events.iter().flat_map(|it| match it.what {
            Change::Delay(_, ns) | Change::Stall(_, ns) | Change::Down(_, ns) => [it.at_ns, ns],
            _ => [it.at_ns, 0],
        });
        let own = [self.warm_ns, self.run_ns, self.stale_ns];
        let world = own.into_iter().chain(paths).chain(devices);
        let world = world.chain(hosts).chain(jobs).chain(events);
        world.chain(turns)
    }

    fn is_too_much(&self) -> bool {
        let sum = |of: fn(&JobPlan) -> usize| {
            let jobs = self.jobs.iter().map(of);
            jobs.fold(0, usize::saturating_add)
        };
        let depth = |job: &JobPlan| job.count.saturating_mul(job.depth);
        let rate = |it: &EventPlan| matches!(it.what, Change::Rate(_, rate) if rate > BYTES_MAX);
        sum(|job| job.count) > JOBS_MAX
            || sum(depth) > DEPTH_MAX
            || self
                .jobs
                .iter()
                .any(|it| it.sizes.len() > SIZES_MAX || it.iops > IOPS_MAX || it.span > BYTES_MAX)
            || self.paths.iter().any(|it| {
                let share = it.cross_percent > 99
                    || it.tail_per_million > 1_000_000
                    || it.loss_per_million > 1_000_000;
                share || it.bytes_per_s > BYTES_MAX
            })
            || self.events.iter().any(rate)
    }
}

impl MachinePlan {
    fn is_sound(&self) -> bool {
        let turns = self.own_ns > 0 && self.loop_ns > 0;
        (1..=2).contains(&self.cpus) && self.loops <= 64 && turns
    }
}

impl HostPlan {
    fn is_sound(&self) -> bool {
        (1..=CPUS_MAX).contains(&self.cpus) && (1..=self.cpus).contains(&self.nodes)
    }
}

impl JobPlan {
    fn is_sound(&self, hosts: usize) -> bool {
        let weighs = self.sizes.iter().any(|it| it.1 > 0);
        let sizes = self.sizes.iter().all(|it| (512..=1 << 24).contains(&it.0));
        self.host < hosts
            && self.count > 0
            && self.depth > 0
            && weighs
            && sizes
            && self.write_percent <= 100
    }
}

impl Change {
    /// Whether it is a policy for a path that isn't there.
    fn names_no_path(&self, paths: usize) -> bool {
        matches!(self, Self::Policy(policy) if policy.check(paths).is_err())
    }

    /// The path that it is about.
    pub fn path(&self) -> Option<usize> {
        match *self {
            Self::Delay(path, _) | Self::Rate(path, _) | Self::Stall(path, _) => Some(path),
            Self::Down(path, _) | Self::Up(path) | Self::Ana(path, _) => Some(path),
            Self::Policy(_) => None,
        }
    }
}

impl core::fmt::Display for PlanError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for PlanError {}
