//! Scenarios: TOML in, plans of worlds out.
//!
//! A file tells one story. Keys outside `[[variant]]` hold for all of its scenarios; each variant
//! has a name and its differences. A file without variants is one scenario and bears the file's
//! name.
//!
//! # Limits
//! Those of [`sim::limits`]; unknown keys are refused, and so is what would be about nothing
//! ([`sense`]).
mod document;
mod sense;

use crate::limits::VARIANTS_MAX;
use anyhow::{Context, anyhow, bail, ensure};
pub use document::{Document, Figures};
use policy::{Ana, Policy};
use serde::Deserialize;
use sim::limits::{EVENTS_MAX, HOSTS_MAX, PATHS_MAX};
use sim::{
    Change, DevicePlan, Disk, EventPlan, Flash, HostPlan, JobPlan, MachinePlan, Noise, PathPlan,
    Plan,
};
use std::collections::BTreeMap;
use terminal::text;
use terminal::units::parse_size;
use toml::{Table, Value};

/// One scenario, ready to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its subject, in one line.
    pub title: String,
    /// The world.
    pub plan: Plan,
    /// When the event comes after which the policies have to find their way again.
    pub step_ns: Option<u64>,
    /// Policies that are of interest here beside those that are compared everywhere.
    pub also: Vec<Policy>,
    /// Whether what second copies of late reads change is of interest here.
    pub hedge: bool,
    /// Runs of `weighted-latency` with its window of 15 s, for policies of this scenario alone.
    pub long: Option<Long>,
    /// Measurements of a source document.
    pub document: Option<Document>,
    /// The bound that another simulator found, MB/s or mean µs.
    pub bound_elsewhere: Option<f64>,
}

/// Times of runs with the default window of `weighted-latency`. Other policies and the bound have
/// those of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Long {
    /// Not measured at the beginning.
    pub warm_ns: u64,
    /// Measured after that.
    pub run_ns: u64,
}

/// Keys that a file may leave out; below `each`, those of each table of this kind. A path has the
/// keys of a device too, for its own.
const DEFAULTS: &str = "\
warm_ms = 500
run_ms = 2000
stale_us = 0
mirror = false
ana = 'strict'
also = []
hedge = false
host = {hosts = 1, cpus = 8, nodes = 1, busy_run_us = 0, io_us = 0, busy_stall_us = 0}
device = {}
event = []
figures = {}
figures_of_host = []
reads = {}
[each]
path = {copies = 1, bandwidth_mb_s = 1200, delay_us = 50, jitter_percent = 5, large_from = '0', \
large_us = 0, small_us = 0, tail_per_million = 0, tail_us = 0, cross_percent = 0, \
loss_per_million = 0, state = 'optimized'}
device = {servers = 8, read_us = 200, write_us = 160, read_byte_ps = 50, write_byte_ps = 60, \
noise = true, busy_run_us = 0, busy_stall_us = 0, disk = false}
job = {count = 1, depth = 1, sizes = '4k', write_percent = 0, sequential = false, \
span = '64GiB', iops = 0, move_ms = 0}
";

impl Long {
    /// The plan with these times.
    pub fn of(&self, plan: &Plan) -> Plan {
        Plan {
            warm_ns: self.warm_ns,
            run_ns: self.run_ns,
            ..plan.clone()
        }
    }
}

/// The whole of a scenario: what is left out is as in [`DEFAULTS`].
fn with_defaults(mut given: Table) -> anyhow::Result<Table> {
    let mut whole: Table = text::toml(DEFAULTS).map_err(|why| anyhow!("defaults: {why}"))?;
    let each = whole.remove("each");
    let each = each.and_then(|it| it.try_into::<BTreeMap<String, Table>>().ok());
    let each = each.context("defaults of each")?;
    for (kind, defaults) in &each {
        let Some(Value::Table(those)) = given.get_mut(kind) else {
            continue;
        };
        for given in those.iter_mut().filter_map(|it| it.1.as_table_mut()) {
            let mut filled = defaults.clone();
            if kind == "path" {
                let mut own = each["device"].clone();
                for (key, value) in &mut own {
                    *value = given.remove(key).unwrap_or_else(|| value.clone());
                }
                ensure!(!given.contains_key("own"), "unknown field `own`");
                filled.insert("own".to_owned(), Value::Table(own));
            }
            merge(&mut filled, std::mem::take(given));
            *given = filled;
        }
    }
    merge(&mut whole, given);
    Ok(whole)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    warm_ms: u64,
    run_ms: u64,
    stale_us: u64,
    mirror: bool,
    ana: AnaWord,
    step_ms: Option<u64>,
    also: Vec<String>,
    hedge: bool,
    host: Host,
    machine: Option<Machine>,
    path: BTreeMap<String, Path>,
    device: BTreeMap<String, Device>,
    job: BTreeMap<String, Job>,
    event: Vec<Event>,
    long: Option<LongTimes>,
    /// MiB/s in a source document, by policy, or mode of weighted-latency. `bound` is the bound of
    /// another simulator, MB/s or mean µs.
    figures: BTreeMap<String, f64>,
    /// The same for each host; their sums then are the figures.
    figures_of_host: Vec<BTreeMap<String, f64>>,
    /// The figures are seconds for so many bytes instead.
    seconds_for: Option<String>,
    /// Reads of each path there.
    reads: BTreeMap<String, Vec<u64>>,
    /// Why pairs of policies compare differently here.
    differs: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LongTimes {
    warm_ms: u64,
    run_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AnaWord {
    Strict,
    Merge,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    /// Hosts of this kind.
    hosts: usize,
    cpus: usize,
    nodes: usize,
    busy_run_us: u64,
    io_us: u64,
    busy_stall_us: u64,
}

/// See [`MachinePlan`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    cpus: usize,
    loops: usize,
    own_us: u64,
    loop_us: u64,
}

/// A path; the standard one where nothing is said.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Path {
    copies: usize,
    bandwidth_mb_s: u64,
    delay_us: u64,
    /// Of the delay.
    jitter_percent: u64,
    large_from: String,
    large_us: u64,
    small_us: u64,
    tail_per_million: u32,
    tail_us: u64,
    cross_percent: u32,
    loss_per_million: u32,
    /// The name of an earlier path whose line it shares.
    line_of: Option<String>,
    state: State,
    node: Option<usize>,
    /// The name of a shared one.
    device: Option<String>,
    /// Its own, where it has one: a path's keys of [`Device`].
    own: Device,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Optimized,
    NonOptimized,
    Inaccessible,
}

impl State {
    fn ana(self) -> Ana {
        match self {
            Self::Optimized => Ana::Optimized,
            Self::NonOptimized => Ana::NonOptimized,
            Self::Inaccessible => Ana::Inaccessible,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    servers: u16,
    read_us: u64,
    write_us: u64,
    read_byte_ps: u64,
    write_byte_ps: u64,
    noise: NoiseWord,
    busy_run_us: u64,
    busy_stall_us: u64,
    /// A rotating disk instead.
    disk: bool,
}

/// Whether services vary, or how.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum NoiseWord {
    Is(bool),
    Named(NoiseName),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NoiseName {
    Flat,
    Bimodal,
}

impl NoiseWord {
    fn noise(self) -> Noise {
        match self {
            Self::Is(false) => Noise::None,
            Self::Is(true) => Noise::Usual,
            Self::Named(NoiseName::Flat) => Noise::Flat,
            Self::Named(NoiseName::Bimodal) => Noise::Bimodal,
        }
    }
}

impl Device {
    fn plan(&self) -> DevicePlan {
        if self.disk {
            return DevicePlan::Disk(Disk {
                bytes: 1_000_000_000_000,
                bytes_per_s: 200_000_000,
                seek_ns: 800_000,
                stroke_ns: 13_200_000,
                turn_ns: 8_333_333,
            });
        }
        DevicePlan::Flash(Flash {
            servers: self.servers,
            read_ns: self.read_us.saturating_mul(1000),
            write_ns: self.write_us.saturating_mul(1000),
            read_byte_ps: self.read_byte_ps,
            write_byte_ps: self.write_byte_ps,
            noise: self.noise.noise(),
            busy_run_ns: self.busy_run_us.saturating_mul(1000),
            busy_stall_ns: self.busy_stall_us.saturating_mul(1000),
        })
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    count: usize,
    depth: usize,
    sizes: String,
    write_percent: u32,
    sequential: bool,
    span: String,
    /// Of each job.
    iops: u64,
    move_ms: u64,
    /// Only on this host; else on each.
    host: Option<usize>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    at_ms: u64,
    path: Option<String>,
    delay_us: Option<u64>,
    bandwidth_mb_s: Option<u64>,
    stall_ms: Option<u64>,
    down_after_ms: Option<u64>,
    #[serde(default)]
    up: bool,
    state: Option<State>,
    policy: Option<String>,
    /// Again after so long, this many times in all.
    every_ms: Option<u64>,
    times: Option<u64>,
}

/// The scenarios of a file; `name` is the file's, without `.toml`.
///
/// # Errors
/// No TOML, unknown keys, or no possible world; line and column where there is one.
pub fn parse(name: &str, text: &str) -> anyhow::Result<Vec<Scenario>> {
    let base: Result<Table, _> = text::toml(text);
    let mut base = base.map_err(|why| anyhow!("scenario {name}: {why}"))?;
    let variants = match base.remove("variant") {
        None => vec![(name.to_owned(), Table::new())],
        Some(Value::Array(list)) => list
            .into_iter()
            .map(variant)
            .collect::<anyhow::Result<_>>()
            .with_context(|| format!("scenario {name}"))?,
        Some(_) => bail!("scenario {name}: write variants as [[variant]]"),
    };
    ensure!(
        variants.len() <= VARIANTS_MAX,
        "scenario {name}: {} variants; {VARIANTS_MAX} at most",
        variants.len()
    );
    let scenario = |(name, table): (String, Table)| {
        let mut whole = base.clone();
        merge(&mut whole, table);
        let file = with_defaults(whole).and_then(|it| Ok(it.try_into::<File>()?));
        let scenario = file.and_then(|file| build(&name, file));
        scenario.with_context(|| format!("scenario {name}"))
    };
    variants.into_iter().map(scenario).collect()
}

fn variant(value: Value) -> anyhow::Result<(String, Table)> {
    let Value::Table(mut table) = value else {
        bail!("write variants as [[variant]]");
    };
    match table.remove("name") {
        Some(Value::String(name)) => Ok((name, table)),
        _ => bail!("a [[variant]] needs a name"),
    }
}

/// Tables grow together, everything else is replaced.
fn merge(base: &mut Table, with: Table) {
    for (key, value) in with {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

fn build(name: &str, mut file: File) -> anyhow::Result<Scenario> {
    sense::check(&file)?;
    let mut plan = Plan {
        warm_ns: file.warm_ms.saturating_mul(1_000_000),
        run_ns: file.run_ms.saturating_mul(1_000_000),
        stale_ns: file.stale_us.saturating_mul(1000),
        mirror: file.mirror,
        merge: file.ana == AnaWord::Merge,
        machine: file.machine.map(|it| MachinePlan {
            cpus: it.cpus,
            loops: it.loops,
            own_ns: it.own_us.saturating_mul(1000),
            loop_ns: it.loop_us.saturating_mul(1000),
        }),
        ..Plan::default()
    };
    if name.starts_with("ana-") {
        ensure!(plan.merge, "scenarios named ana-… have ana = \"merge\"");
    }
    let shared: Vec<&String> = file.device.keys().collect();
    plan.devices = file.device.values().map(Device::plan).collect();
    let mut names = BTreeMap::new();
    for (path_name, path) in &file.path {
        ensure!(
            path.copies <= PATHS_MAX,
            "path {path_name}: copies = {}; a world has {PATHS_MAX} paths at most",
            path.copies
        );
        if path.copies > 0 {
            names.insert(path_name.as_str(), plan.paths.len());
        }
        for _ in 0..path.copies {
            let device = match &path.device {
                Some(device) => shared
                    .iter()
                    .position(|it| *it == device)
                    .with_context(|| format!("path {path_name}: no [device.{device}]"))?,
                None => {
                    plan.devices.push(path.own.plan());
                    plan.devices.len() - 1
                }
            };
            let line_of = match &path.line_of {
                Some(of) => Some(*names.get(of.as_str()).with_context(|| {
                    format!("path {path_name}: no [path.{of}] before it in the alphabet")
                })?),
                None => None,
            };
            let path = path_plan(path, device).with_context(|| format!("path {path_name}"))?;
            plan.paths.push(PathPlan { line_of, ..path });
        }
    }
    ensure!(
        file.host.hosts <= HOSTS_MAX,
        "hosts = {}; a world has {HOSTS_MAX} at most",
        file.host.hosts
    );
    for host in 0..file.host.hosts {
        plan.hosts.push(host_plan(&file.host));
        plan.jobs.extend(jobs_of(host, &file)?);
    }
    for event in &file.event {
        plan.events.extend(events(event, &names)?);
    }
    plan.check().map_err(|why| anyhow!("{why}"))?;
    let bound_elsewhere = file.figures.remove("bound");
    let long = file.long.map(|it| Long {
        warm_ns: it.warm_ms.saturating_mul(1_000_000),
        run_ns: it.run_ms.saturating_mul(1_000_000),
    });
    if let Some(long) = long {
        long.of(&plan)
            .check()
            .map_err(|why| anyhow!("long: {why}"))?;
    }
    Ok(Scenario {
        also: policies(&file.also, plan.paths.len())?,
        hedge: file.hedge,
        name: name.to_owned(),
        title: file.title.clone(),
        plan,
        bound_elsewhere,
        step_ns: file.step_ms.map(|ms| ms.saturating_mul(1_000_000)),
        long,
        document: document::document(&file)?,
    })
}

fn jobs_of(host: usize, file: &File) -> anyhow::Result<Vec<JobPlan>> {
    let all = file.job.iter();
    let here = all.filter(|(_, job)| job.host.is_none_or(|it| it == host));
    here.map(|(name, job)| job_plan(job, host).with_context(|| format!("job {name}")))
        .collect()
}

fn host_plan(host: &Host) -> HostPlan {
    HostPlan {
        cpus: host.cpus,
        nodes: host.nodes,
        io_ns: host.io_us.saturating_mul(1000),
        busy_run_ns: host.busy_run_us.saturating_mul(1000),
        busy_stall_ns: host.busy_stall_us.saturating_mul(1000),
    }
}

fn path_plan(path: &Path, device: usize) -> anyhow::Result<PathPlan> {
    Ok(PathPlan {
        bytes_per_s: path.bandwidth_mb_s.saturating_mul(1_000_000),
        delay_ns: path.delay_us.saturating_mul(1000),
        jitter_ns: path
            .delay_us
            .saturating_mul(10)
            .saturating_mul(path.jitter_percent),
        large_from: bytes(&path.large_from)?,
        large_ns: path.large_us.saturating_mul(1000),
        small_ns: path.small_us.saturating_mul(1000),
        tail_per_million: path.tail_per_million,
        tail_ns: path.tail_us.saturating_mul(1000),
        cross_percent: path.cross_percent,
        loss_per_million: path.loss_per_million,
        line_of: None,
        device,
        ana: path.state.ana(),
        node: path.node,
    })
}

/// Sizes of an I/O, bytes.
const SIZES: std::ops::RangeInclusive<u32> = 512..=1 << 24;

fn job_plan(job: &Job, host: usize) -> anyhow::Result<JobPlan> {
    let mut sizes = Vec::new();
    for part in job.sizes.split(':') {
        let (size, weight) = part.split_once('/').unwrap_or((part, "1"));
        let weight = weight
            .parse()
            .with_context(|| format!("sizes: {part}: no weight behind the slash"))?;
        sizes.push((bytes(size)?, weight));
    }
    let weighs = sizes.iter().any(|&(_, weight)| weight > 0);
    ensure!(
        weighs && sizes.iter().all(|(size, _)| SIZES.contains(size)),
        "sizes = \"{}\"; from 512 bytes to 16 MiB, and one with a weight",
        job.sizes
    );
    Ok(JobPlan {
        host,
        count: job.count,
        depth: job.depth,
        sizes,
        write_percent: job.write_percent,
        sequential: job.sequential,
        span: parse_size(&job.span).map_err(|why| anyhow!("span: {why}"))?,
        iops: job.iops,
        move_ns: job.move_ms.saturating_mul(1_000_000),
    })
}

/// Policies for a world of so many paths.
fn policies(words: &[String], paths: usize) -> anyhow::Result<Vec<Policy>> {
    let policy = |word: &String| {
        let policy = Policy::parse(word).and_then(|policy| policy.check(paths).map(|()| policy));
        policy.map_err(|why| anyhow!("also: \"{word}\": {why}"))
    };
    words.iter().map(policy).collect()
}

fn bytes(text: &str) -> anyhow::Result<u32> {
    if text == "0" {
        return Ok(0);
    }
    let bytes = parse_size(text).map_err(|why| anyhow!("{text}: {why}"))?;
    u32::try_from(bytes).with_context(|| format!("{text}: too large"))
}

fn events(event: &Event, names: &BTreeMap<&str, usize>) -> anyhow::Result<Vec<EventPlan>> {
    let path = || {
        let name = event.path.as_deref().context("an [[event]] needs a path")?;
        names
            .get(name)
            .copied()
            .with_context(|| format!("[[event]]: no [path.{name}]"))
    };
    // Of one kind only, see `sense`.
    let [us, ms, rate] =
        [1000, 1_000_000, 1_000_000].map(|by| move |it: u64| it.saturating_mul(by));
    let policy = |word: &String| Policy::parse(word).with_context(|| format!("policy {word}"));
    let changes = [
        event.delay_us.map(|it| Ok(Change::Delay(path()?, us(it)))),
        event
            .bandwidth_mb_s
            .map(|it| Ok(Change::Rate(path()?, rate(it)))),
        event.stall_ms.map(|it| Ok(Change::Stall(path()?, ms(it)))),
        event
            .down_after_ms
            .map(|it| Ok(Change::Down(path()?, ms(it)))),
        event.up.then(|| Ok(Change::Up(path()?))),
        event.state.map(|it| Ok(Change::Ana(path()?, it.ana()))),
        event
            .policy
            .as_ref()
            .map(|it| Ok(Change::Policy(policy(it)?))),
    ];
    let changes = changes.into_iter().flatten();
    let changes = changes.collect::<anyhow::Result<Vec<Change>>>()?;
    ensure!(
        !changes.is_empty(),
        "an [[event]] at {} ms does nothing",
        event.at_ms
    );
    let times = event.times.unwrap_or(1);
    let every_ms = event.every_ms.unwrap_or(0);
    ensure!(
        times <= EVENTS_MAX as u64,
        "an [[event]] at {} ms has times = {times}; at most {EVENTS_MAX}",
        event.at_ms
    );
    let at = |time: u64| {
        let later_ms = time.saturating_mul(every_ms);
        event
            .at_ms
            .saturating_add(later_ms)
            .saturating_mul(1_000_000)
    };
    Ok((0..times)
        .flat_map(|time| changes.iter().map(move |&what| (time, what)))
        .map(|(time, what)| EventPlan {
            at_ns: at(time),
            what,
        })
        .collect())
}

#[cfg(test)]
mod tests;
