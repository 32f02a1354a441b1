//! From a configuration to running cores, and speaking to all of them.
use super::config::{Config, Volume};
use super::known;
use super::late::{self, Absent};
use super::marks::Before;
use super::mirrors::{self, Found, Mirrors};
use super::nvme_exports::{self, CONNECTIONS_MAX};
use super::seats::{CoreSeats, Seats};
use super::volumes::AT_START;
use crate::board::{Board, node_of};
use crate::cli::Usage;
use crate::ends::{Known, Resources, VolumePlan};
use ::cores::{CoreReport, Explain, PathStanding, RunControl, RunEvent, RunMachine, Sender};
use anyhow::{Context, bail};
use broker::CoreQueues;
use engine::export::{ExportConfig, ExportControl};
use engine::host::{Bar, Change, HostConfig, HostControl, Mark, Multipath, Recovery, VolumeConfig};
use engine::limits::{MIRRORS_MAX, SCRATCH_BYTES};
use engine::mirror::{Devices, MIRRORS_FROM, MirrorOrder};
use engine::{Core, LocalDevice, QueueMemory, Span};
use nvme::host::{Digests, HostIdentity};
use policy::{Knobs, PathIndex, Policy, ProgramId, ProgramSlot};
use program::Runner;
use runtime::watchdog::STUCK_GRACE;
use runtime::{Device, Handle, Mailbox, PeerLimit, ReactorConfig};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use target::waits;

/// Most I/Os in flight on each core.
const IO_MAX: u32 = 4096;
/// Where a front end's buffers may begin in the arena, bytes.
const ARENA_ALIGNMENT: u64 = 1 << 20;
/// Most requests in flight of one client.
const REQUESTS_MAX: u16 = 128;
/// Room for paths that are added while it runs: in all, and beside those of the start. Each costs
/// two connections' worth of tables, some 2 KiB.
const PATHS_MIN: usize = 256;
const PATHS_MORE: usize = 64;
/// How long a core may take to answer the control thread.
const REPORT_WAIT: Duration = Duration::from_secs(5);

/// Longest wait at the start for the names of all hosts together: a name server that is down must
/// not keep what needs none.
const RESOLVE_MAX: Duration = Duration::from_secs(5);

/// Resources opened for the cores: see [`opened`].
type Opened = (Resources, Vec<VolumeConfig>, Vec<Absent>);

/// Running cores.
pub struct Cores {
    handles: Vec<Handle<RunMachine>>,
    senders: Senders,
    /// Where the paths lead.
    pub known: Vec<Known>,
    /// Volumes that begin without some of their paths.
    pub absent: Vec<Absent>,
    /// Files and devices of the volumes, by place in the configuration.
    pub storages: Vec<Found>,
}

/// For speaking to them.
#[derive(Clone)]
pub struct Senders {
    all: Vec<Sender>,
    homes: Homes,
    cores: Arc<CoreSeats>,
    /// By volume.
    seats: Arc<Mutex<BTreeMap<u16, Arc<Seats>>>>,
    /// Mirrors that each core has memory for.
    mirrors_max: usize,
    /// Places of each core for subsystems, as reserved at the start.
    pub nvme_places: usize,
}

/// See [`Config::homes`]; volumes that were opened later included.
#[derive(Clone)]
pub struct Homes {
    cores: usize,
    others: Arc<Mutex<BTreeMap<u16, u16>>>,
}

impl Homes {
    /// Of so many cores; `others`: volumes that are not on the core of their number.
    pub fn new(cores: usize, others: BTreeMap<u16, u16>) -> Self {
        let others = Arc::new(Mutex::new(others));
        Self { cores, others }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<u16, u16>> {
        // Every change to it is one call.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The home of a volume: a mirror's core, and the first to have a queue of a multipath volume.
    pub fn core_of(&self, volume: u16) -> usize {
        let home = self.others().get(&volume).copied();
        home.map_or(usize::from(volume) % self.cores, usize::from)
    }
}

impl Cores {
    /// Starts all.
    ///
    /// # Errors
    /// A path, file or reactor that can't be.
    pub fn start(
        config: &Config,
        identity: &HostIdentity,
        before: impl Fn(&Volume) -> Before,
        namespaces: &known::Known,
        events: &mpsc::Sender<RunEvent>,
    ) -> anyhow::Result<Self> {
        let storages = mirrors::apart(&config.volumes).map_err(anyhow::Error::msg)?;
        let (resources, volumes, absent) = opened(config, before)?;
        let room = room(config);
        let cpu = |core: u16| config.cpus.get(usize::from(core)).copied();
        let nodes: Vec<u32> = (0..config.cores).map(|core| node_of(cpu(core))).collect();
        let board = Arc::new(Board::new(&nodes, room));
        let mirrors = Mirrors::new(config, identity, namespaces);
        let name = |core: u16| format!("braid-{core}");
        let mailboxes = (0..config.cores).map(|core| Mailbox::new(&name(core)));
        let mailboxes: Vec<_> = mailboxes.collect::<Result<_, _>>()?;
        let senders: Vec<_> = mailboxes.iter().map(|it| it.0.clone()).collect();
        let per_peer_max = config
            .clients_per_host
            .map(|most| PeerLimit::new(most.get()));
        let mut handles: Vec<Handle<RunMachine>> = Vec::new();
        for (core, mailbox) in (0..).zip(mailboxes) {
            let host = host(config, core, identity, &volumes);
            let checked = host.check();
            checked.map_err(|error| Usage::error(error.to_string()))?;
            let export = ExportConfig {
                clients_max: config.clients,
                requests_max: REQUESTS_MAX,
                arena_bytes: config.buffers.0,
            };
            let behind = scratch(config).at + u64::from(SCRATCH_BYTES);
            let of_mirrors = mirrors.of_core(core, behind);
            let mut arena_bytes = behind + u64::from(of_mirrors.scratch.len);
            let engine = Devices::new(Multipath::with_room(host, room), of_mirrors);
            let mut engine = Core::new(engine, volumes.len(), export);
            for _ in 0..config.nvme_places() {
                let at = arena_bytes.next_multiple_of(ARENA_ALIGNMENT);
                engine.reserve_nvme_server(nvme_exports::place(config, at));
                arena_bytes = at + config.buffers.0;
            }
            let at = arena_bytes.next_multiple_of(ARENA_ALIGNMENT);
            engine.reserve_queues(QueueMemory {
                arena_at: at,
                arena_bytes: config.buffers.0,
            });
            arena_bytes = at + config.buffers.0;
            let at = arena_bytes.next_multiple_of(ARENA_ALIGNMENT);
            engine.reserve_ublk(QueueMemory {
                arena_at: at,
                arena_bytes: config.buffers.0,
            });
            arena_bytes = at + config.buffers.0;
            let queues = CoreQueues::new().context("cannot make an epoll")?;
            let kicks = queues.kicks().context("cannot duplicate a descriptor")?;
            mailbox.0.watch(kicks);
            let (events, board) = (events.clone(), Arc::clone(&board));
            let engine = (engine, queues);
            let machine = RunMachine::new(engine, core, senders.clone(), events, board);
            let reactor = ReactorConfig {
                name: name(core),
                cpu: cpu(core),
                polling: config.poll.polling(config.spin, config.poll_cpu_max),
                arena_bytes,
                per_peer_max: per_peer_max.clone(),
                addresses: resources.addresses.clone(),
                listeners: Vec::new(),
                devices: resources.devices.clone(),
            };
            handles.push(::cores::spawn(reactor, machine, mailbox)?);
        }
        let homes = Homes::new(senders.len(), config.homes.clone());
        let seats = CoreSeats::new(
            senders.clone(),
            homes.clone(),
            config.clients,
            events.clone(),
        );
        Ok(Self {
            handles,
            senders: Senders {
                all: senders,
                homes,
                cores: Arc::new(seats),
                seats: Arc::default(),
                mirrors_max: mirrors.room(),
                nvme_places: config.nvme_places(),
            },
            known: resources.known,
            absent,
            storages,
        })
    }

    /// For speaking to them.
    pub fn senders(&self) -> Senders {
        self.senders.clone()
    }

    /// Ends all: clients are told, I/O under way has `drain_ns`.
    ///
    /// # Errors
    /// What ended a reactor before.
    pub fn stop(self, drain_ns: u64) -> anyhow::Result<()> {
        self.senders.all(|| ExportControl::Drain(drain_ns));
        crate::signals::end_when_stuck(Duration::from_nanos(drain_ns) + STUCK_GRACE);
        // Core 0 shuts the controllers down, so it comes last.
        for handle in self.handles.into_iter().rev() {
            let stop = RunControl::Export(ExportControl::Stop(drain_ns));
            handle.sender().send(stop);
            handle.join()?;
        }
        Ok(())
    }
}

impl Senders {
    /// The sender to a core.
    pub fn core(&self, number: u16) -> &Sender {
        &self.all[usize::from(number)]
    }

    /// The home of a volume that was opened is this core; `None`: that of its number.
    pub fn set_home(&self, volume: u16, core: Option<u16>) {
        match core {
            Some(core) => self.homes.others().insert(volume, core),
            None => self.homes.others().remove(&volume),
        };
    }

    /// See [`Homes::core_of`].
    pub fn core_of(&self, volume: u16) -> usize {
        self.homes.core_of(volume)
    }

    /// The cores that may have NBD clients of a volume: a mirror's home, or all.
    pub fn cores_of_clients(&self, volume: u16) -> BTreeSet<u16> {
        match volume >= MIRRORS_FROM {
            true => [self.core_of(volume) as u16].into(),
            false => (0..self.all.len() as u16).collect(),
        }
    }

    /// Where the NBD clients of a volume go.
    pub fn seats(&self, volume: u16) -> Arc<Seats> {
        let mut all = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Seats::new(volume, &self.cores));
        Arc::clone(all.entry(volume).or_insert_with(new))
    }

    /// For clients that come and go.
    pub fn events(&self) -> mpsc::Sender<RunEvent> {
        self.cores.events().clone()
    }

    /// A volume has left: its number may be another's.
    pub fn forget_seats(&self, volume: u16) {
        let mut all = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&volume);
    }

    /// Says the same to all cores that may have NBD clients of a volume.
    pub fn to_clients(&self, volume: u16, message: impl Fn() -> ExportControl) {
        for core in self.cores_of_clients(volume) {
            self.core(core).send(RunControl::Export(message()));
        }
    }

    /// Number of a mirror that comes beside these, on a core that has memory for it.
    pub fn free_mirror(&self, there: &[u16]) -> Option<u16> {
        let beside = |core| there.iter().filter(|it| self.core_of(**it) == core).count();
        let mut all = MIRRORS_FROM..MIRRORS_FROM + MIRRORS_MAX as u16;
        all.find(|it| !there.contains(it) && beside(self.core_of(*it)) < self.mirrors_max)
    }

    /// Says the same to all.
    pub fn all(&self, message: impl Fn() -> ExportControl) {
        for core in &self.all {
            core.send(RunControl::Export(message()));
        }
    }

    /// A mark is durable, or can't be and is done without.
    pub fn marked(&self, mark: Mark) {
        let marked = HostControl::Marked(mark);
        self.all[0].send(RunControl::Export(ExportControl::Host(marked)));
    }

    /// Paths that show a mark's namespace are not used, and why.
    pub fn barred(&self, mark: Mark, bar: Bar) {
        let barred = HostControl::Barred(mark, bar);
        self.all[0].send(RunControl::Export(ExportControl::Host(barred)));
    }

    /// Clients of a volume that is not open are refused for this reason, or wait.
    pub fn refuse_clients(&self, volume: u16, why: Option<String>) {
        self.to_clients(volume, || ExportControl::Refused(volume, why.clone()));
    }

    /// Asks all cores for what they measured, also of paths that rest.
    pub fn measure(&self) {
        for core in &self.all {
            core.send(RunControl::Measure);
        }
    }

    /// Asks core 0 for a change of paths.
    pub fn change(&self, ticket: u64, change: Change, wait_ns: u64) {
        let change = HostControl::Change {
            ticket,
            change,
            wait_ns,
        };
        self.all[0].send(RunControl::Export(ExportControl::Host(change)));
    }

    /// Meaning of an address number from now on, on all cores.
    pub fn set_address(&self, number: u32, address: SocketAddr) {
        for core in &self.all {
            core.set_address(number, address);
        }
    }

    /// Meaning of a device number from now on, on all cores; `None`: nothing.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn set_device(&self, number: u16, device: Option<&Device>) -> anyhow::Result<()> {
        for core in &self.all {
            core.set_device(LocalDevice(number), device)?;
        }
        Ok(())
    }

    /// Another policy or knobs for a volume, on all cores.
    pub fn set_policy(&self, volume: u16, policy: Policy, knobs: Knobs) {
        self.all(|| ExportControl::Host(HostControl::Policy(volume, policy, knobs)));
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// A program as policy of a volume: with a runner for each core, or none yet.
    pub fn set_program(&self, volume: u16, id: ProgramId, runners: Vec<Runner>, knobs: Knobs) {
        assert!([0, self.all.len()].contains(&runners.len()), "one for each");
        let mut runners = runners.into_iter();
        for core in &self.all {
            let runner = runners
                .next()
                .map(|it| Box::new(it) as Box<dyn policy::Program>);
            let program = HostControl::Program(volume, id, ProgramSlot(runner), knobs);
            core.send(RunControl::Export(ExportControl::Host(program)));
        }
    }

    /// Other times and limits for a volume's failing paths, on all cores.
    pub fn set_recovery(&self, volume: u16, recovery: Recovery) {
        self.all(|| ExportControl::Host(HostControl::Recovery(volume, recovery)));
    }

    /// The name of a volume in messages, on all cores.
    pub fn rename(&self, volume: u16, name: &str) {
        self.all(|| ExportControl::Host(HostControl::Rename(volume, name.to_owned())));
    }

    /// Asks something of a mirror.
    pub fn order(&self, volume: u16, order: MirrorOrder) {
        let order = ExportControl::Mirror(volume, order);
        let home = &self.all[self.core_of(volume)];
        home.send(RunControl::Export(order));
    }

    /// Relative throughput of a path, on all cores.
    pub fn set_throughput(&self, volume: u16, path: PathIndex, throughput: u8) {
        let it = || ExportControl::Host(HostControl::Throughput(volume, path, throughput));
        self.all(it);
    }

    /// NUMA distance of a path, on all cores.
    pub fn set_distance(&self, volume: u16, path: PathIndex, distance: u32) {
        let it = || ExportControl::Host(HostControl::Distance(volume, path, distance));
        self.all(it);
    }

    /// Asks why I/Os of a volume go where they go; `None`: enough.
    pub fn explain(&self, volume: u16, asker: Option<Explain>) {
        for core in &self.all {
            core.send(RunControl::Explain(volume, asker.clone()));
        }
    }

    /// How core 0 sees a path; `None`: it doesn't answer.
    pub fn standing(&self, volume: u16, path: PathIndex) -> Option<PathStanding> {
        let (to, from) = mpsc::sync_channel(1);
        self.all[0].send(RunControl::Standing(volume, path, to));
        from.recv_timeout(REPORT_WAIT).ok()
    }

    /// How all have waited, by core, in JSON.
    pub fn waits(&self) -> Value {
        let all = self.all.iter().map(Sender::poll_stats).enumerate();
        all.map(|(core, stats)| waits::json(core, &stats)).collect()
    }

    /// How all are doing.
    ///
    /// # Errors
    /// One doesn't answer.
    pub fn report(&self) -> anyhow::Result<Vec<CoreReport>> {
        let mut answers = Vec::new();
        for core in &self.all {
            let (to, from) = mpsc::sync_channel(1);
            core.send(RunControl::Report(to));
            answers.push(from);
        }
        let mut reports = Vec::new();
        for (core, answer) in answers.into_iter().enumerate() {
            match answer.recv_timeout(REPORT_WAIT) {
                Ok(report) => reports.push(report),
                Err(_) => bail!("core {core} does not answer"),
            }
        }
        Ok(reports)
    }
}

/// Destinations of the paths of all volumes, and their description for the engine; and which of
/// them begin without paths, and why.
///
/// # Errors
/// A path or file that can't be.
fn opened(config: &Config, before: impl Fn(&Volume) -> Before) -> anyhow::Result<Opened> {
    let mut resources = Resources {
        patience: Some(Instant::now() + RESOLVE_MAX),
        ..Resources::default()
    };
    let (mut volumes, mut absent) = (Vec::new(), Vec::new());
    let numbers = mirrors::numbers(config.volumes.iter());
    let mirror = |name: &str| {
        let mut all = config.volumes.iter().zip(&numbers);
        all.find(|(it, _)| it.name == name)
            .map(|(_, number)| number)
    };
    let plain = config.volumes.iter().zip(&numbers);
    for (volume, number) in plain.filter(|(it, _)| !it.is_mirror()) {
        let plan = VolumePlan {
            name: volume.name.clone(),
            policy: volume.policy,
            knobs: volume.knobs(),
            paths: volume.paths.clone(),
            access: late::access(volume),
            quiesce_ns: volume.queue_quiesce_ns(),
        };
        let unclean = before(volume) != Before::default();
        let is_leg = volume.leg_of.is_some();
        let (made, lacks) = late::volume(&mut resources, plan, unclean, is_leg)?;
        if !lacks.is_empty() {
            absent.push(Absent {
                number: *number,
                paths: lacks,
                unclean,
            });
        }
        let home = volume.leg_of.as_deref().and_then(mirror).copied();
        let home = home.or(config.homes.get(number).copied());
        volumes.push(VolumeConfig {
            recovery: Recovery {
                home,
                ..recovery(volume, before(volume), AT_START)
            },
            ..made
        });
    }
    Ok((resources, volumes, absent))
}

/// Rules for the failing paths of a volume, of which an earlier engine has left this.
/// `serial` is the number under which it asks for marks ([`Recovery::marks`]).
pub fn recovery(volume: &Volume, before: Before, serial: u64) -> Recovery {
    Recovery {
        unclean_stop_ns: before.wait_ns,
        unreported_loss: before.unreported_loss,
        marks: Some(serial),
        ..volume.recovery()
    }
}

/// Most paths in all: as many as the reactor's connections allow at most.
fn room(config: &Config) -> usize {
    let connections = runtime::limits::CONNECTIONS_MAX as usize;
    let hosts = config.nvme_places() * CONNECTIONS_MAX as usize;
    let most = connections.saturating_sub(usize::from(config.clients) + hosts) / 2;
    paths_wanted(config).min(most).max(config.paths())
}

/// Room for paths, where connections allow it.
pub fn paths_wanted(config: &Config) -> usize {
    PATHS_MIN.max(config.paths() + PATHS_MORE)
}

/// The engine's own part of each core's arena, behind the buffers of the exports.
fn scratch(config: &Config) -> Span {
    Span {
        at: config.buffers.0.next_multiple_of(4096),
        len: SCRATCH_BYTES,
    }
}

fn host(
    config: &Config,
    core: u16,
    identity: &HostIdentity,
    volumes: &[VolumeConfig],
) -> HostConfig {
    HostConfig {
        core,
        cores: config.cores,
        identity: identity.clone(),
        digests: Digests {
            header: config.header_digest,
            data: config.data_digest,
        },
        kato_ms: config.kato_ms(),
        connect_timeout_ns: config.connect_timeout.0,
        io_timeout_ns: config.io_timeout.0,
        io_max: IO_MAX,
        scratch: scratch(config),
        volumes: volumes.to_vec(),
    }
}
