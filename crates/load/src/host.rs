//! The controlling thread of a load: opens what the paths need, starts one reactor per core, gives
//! them tasks, waits for their ends, adds up.
//!
//! # Contract
//! Nothing here is on the I/O path. The controlling thread sleeps until something happens; only
//! where somebody sees progress it wakes every [`TICK`] to show it.
use super::board::{Board, node_of};
use super::machine::{LoadControl, LoadEvent, LoadMachine, Progress, Queues};
use super::worker::{Finished, Task};
use crate::cli::Usage;
use crate::log;
use crate::mirror::holder;
use crate::output;
use crate::progress;
use crate::signals::Interrupt;
use crate::uri::{Found, NvmeNg, NvmeTcp, PathKeys, PathUri, Start, UriKind};
use anyhow::{Context, anyhow, bail};
use engine::host::{
    Attached, HostConfig, HostControl, HostEngine, PathConfig, PathKind, Recovery, VolumeConfig,
    VolumeInfo,
};
use engine::limits::{IO_MAX, SCRATCH_BYTES};
use engine::{DeviceId, Span};
use runtime::{
    Device, FileDevice, MemoryDevice, NOWHERE, PassthroughDevice, QueueDevice, ReactorConfig,
    ReactorStats,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);

/// Keep-alive time-out, unless half an I/O's time-out is shorter (T12).
const KATO_MS: u64 = 10_000;

/// Volumes over paths, and the cores that drive them.
pub struct HostPlan {
    /// Volumes; each core opens all of them.
    pub volumes: Vec<VolumePlan>,
    /// The CPU of each core; `None` = not pinned.
    pub cores: Vec<Option<usize>>,
    /// Never sleep.
    pub spin: bool,
    /// Host NQN and identifier.
    pub identity: nvme::host::HostIdentity,
    /// Digests.
    pub digests: nvme::host::Digests,
    /// Longest wait for connecting, ns.
    pub connect_timeout_ns: u64,
    /// Longest wait for one I/O, ns.
    pub io_timeout_ns: u64,
    /// Most outstanding I/Os of one core.
    pub outstanding: u32,
    /// Bytes of buffers of one core.
    pub arena_bytes: u64,
}

/// One volume.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// Name, in messages.
    pub name: String,
    /// Policy.
    pub policy: policy::Policy,
    /// Its knobs.
    pub knobs: policy::Knobs,
    /// Paths.
    pub paths: Vec<PathKeys>,
    /// How files and block devices are opened.
    pub access: FileAccess,
    /// As of [`QueueDevice::with_quiesce`].
    pub quiesce_ns: u64,
}

/// How a file or block device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// To be read.
    ReadOnly,
    /// Others may write it too.
    Shared,
    /// Nobody else writes it (T48).
    Alone,
}

/// A host at work.
pub struct Host {
    cores: Vec<Core>,
    events: Receiver<LoadEvent>,
    volumes: Vec<VolumeInfo>,
    interrupt: Interrupt,
}

struct Core {
    number: u16,
    handle: runtime::Handle<LoadMachine>,
    sender: runtime::Sender<LoadControl>,
    progress: Arc<Progress>,
}

/// How far a task has come.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Since its start.
    pub elapsed: Duration,
    /// I/Os completed.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Host {
    /// Opens all volumes on all cores and waits until they are ready.
    ///
    /// # Errors
    /// A name, file, path or reactor that can't be; the user's interruption.
    pub fn start(plan: &HostPlan, interrupt: Interrupt) -> anyhow::Result<Self> {
        let mut resources = Resources::default();
        let volumes = plan
            .volumes
            .iter()
            .map(|volume| resources.volume(volume))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let paths = plan.volumes.iter().map(|volume| volume.paths.len()).sum();
        let nodes: Vec<u32> = plan.cores.iter().map(|&cpu| node_of(cpu)).collect();
        let board = Arc::new(Board::new(&nodes, paths));
        let queues = Arc::new(Queues::of(&resources.known));
        let (told, events) = mpsc::channel();
        let wake = told.clone();
        interrupt.on_signal(move || {
            // The receiver is gone: nothing runs that could be stopped.
            let _ = wake.send(LoadEvent::Interrupted);
        });
        let mut cores: Vec<Core> = Vec::new();
        // Core 0 comes last: it passes on to the others what it learns.
        for number in (0..plan.cores.len()).rev() {
            let peers = cores.iter().map(|core| core.sender.clone()).collect();
            let progress = Arc::new(Progress::default());
            let config = plan.config(number, &volumes);
            config
                .check()
                .map_err(|error| Usage::error(error.to_string()))?;
            let engine = HostEngine::new(config);
            let machine = LoadMachine::new(
                engine,
                number as u16,
                if number == 0 { peers } else { Vec::new() },
                told.clone(),
                Arc::clone(&progress),
                Arc::clone(&board),
                Arc::clone(&queues),
            );
            let handle = runtime::spawn(plan.reactor(number, &resources), machine)?;
            cores.push(Core {
                number: number as u16,
                sender: handle.sender(),
                handle,
                progress,
            });
        }
        cores.reverse();
        let mut host = Self {
            cores,
            events,
            volumes: Vec::new(),
            interrupt,
        };
        host.wait_ready(plan)?;
        Ok(host)
    }

    /// Size and limits of each volume.
    pub fn volumes(&self) -> &[VolumeInfo] {
        &self.volumes
    }

    /// Changes the policy of a volume on all cores.
    pub fn set_policy(&self, volume: u16, policy: policy::Policy, knobs: policy::Knobs) {
        for core in &self.cores {
            core.sender.send(LoadControl::Host(HostControl::Policy(
                volume, policy, knobs,
            )));
        }
    }

    /// Runs one task per core to their ends.
    ///
    /// # Errors
    /// A reactor died. A volume that is lost is a result: [`Finished::failed`].
    pub fn run(
        &mut self,
        tasks: Vec<Task>,
        line: &mut progress::Progress,
    ) -> anyhow::Result<Finished> {
        let mut waiting = tasks.len();
        for (core, task) in self.cores.iter().zip(tasks) {
            core.sender.send(LoadControl::Start(Box::new(task)));
        }
        let start = Instant::now();
        let (mut failed, mut stopping) = (false, false);
        let mut result: Option<Finished> = None;
        while waiting > 0 {
            if (failed || self.interrupt.is_set()) && !stopping {
                stopping = true;
                self.send_all(|| LoadControl::Interrupt);
            }
            let event = match line.is_shown() {
                true => self.events.recv_timeout(TICK),
                false => self.events.recv().map_err(Into::into),
            };
            match event {
                Ok(LoadEvent::Finished(finished)) => {
                    waiting -= 1;
                    failed |= finished.failed.is_some();
                    match &mut result {
                        None => result = Some(*finished),
                        Some(sum) => sum.merge(*finished),
                    }
                }
                Ok(LoadEvent::Failed(_)) => failed = true,
                Ok(LoadEvent::Ready(..) | LoadEvent::Interrupted) => {}
                Ok(LoadEvent::Warning(what)) => output::note(&what),
                Ok(LoadEvent::Gone(core)) => return Err(self.bury(core)),
                Err(RecvTimeoutError::Timeout) => line.show(self.moment(start)),
                Err(RecvTimeoutError::Disconnected) => bail!("all reactors have ended"),
            }
        }
        result.context("a task needs at least one core")
    }

    /// Shuts down in order; what the reactors counted, added up.
    ///
    /// # Errors
    /// What ended a reactor.
    pub fn stop(self) -> anyhow::Result<ReactorStats> {
        let mut sum = ReactorStats::default();
        // Core 0 shuts the controllers down, so it comes last.
        for core in self.cores.into_iter().rev() {
            core.sender.send(LoadControl::Host(HostControl::Stop));
            let (_, stats) = core.handle.join()?;
            sum.turns += stats.turns;
            sum.enters += stats.enters;
            sum.wakeups += stats.wakeups;
            sum.receives += stats.receives;
            sum.sends += stats.sends;
            sum.bytes_copied_in += stats.bytes_copied_in;
            sum.bytes_direct_in += stats.bytes_direct_in;
            sum.bytes_copied_out += stats.bytes_copied_out;
            sum.bytes_direct_out += stats.bytes_direct_out;
        }
        Ok(sum)
    }

    fn wait_ready(&mut self, plan: &HostPlan) -> anyhow::Result<()> {
        let mut waiting = plan.volumes.len() * self.cores.len();
        let mut infos = vec![None; plan.volumes.len()];
        // The engine gives up by itself; this is for the case that it does not.
        let limit = Duration::from_nanos(plan.connect_timeout_ns) * 4 + Duration::from_secs(10);
        let start = Instant::now();
        while waiting > 0 {
            if self.interrupt.is_set() {
                bail!("interrupted while connecting");
            }
            let left = limit.saturating_sub(start.elapsed());
            match self.events.recv_timeout(left) {
                Ok(LoadEvent::Ready(volume, info)) => {
                    waiting -= 1;
                    infos[usize::from(volume)] = Some(info);
                }
                Ok(LoadEvent::Failed(why)) => return Err(anyhow!(why)),
                Ok(LoadEvent::Finished(_) | LoadEvent::Interrupted) => {}
                Ok(LoadEvent::Warning(what)) => output::note(&what),
                Ok(LoadEvent::Gone(core)) => return Err(self.bury(core)),
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the paths are not ready after {} s",
                    start.elapsed().as_secs()
                ),
                Err(RecvTimeoutError::Disconnected) => bail!("all reactors have ended"),
            }
        }
        self.volumes = infos.into_iter().flatten().collect();
        Ok(())
    }

    fn send_all(&self, message: impl Fn() -> LoadControl) {
        for core in &self.cores {
            core.sender.send(message());
        }
    }

    /// Why the reactor of a core has ended.
    fn bury(&mut self, number: u16) -> anyhow::Error {
        let Some(at) = self.cores.iter().position(|core| core.number == number) else {
            return anyhow!("a reactor has ended");
        };
        match self.cores.remove(at).handle.join() {
            Err(error) => error.into(),
            Ok(_) => anyhow!("the reactor of core {number} has ended unexpectedly"),
        }
    }

    fn moment(&self, start: Instant) -> Moment {
        let counts = self.cores.iter().map(|core| core.progress.read());
        let (ios, bytes) = counts.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
        Moment {
            elapsed: start.elapsed(),
            ios,
            bytes,
        }
    }
}

/// What a command of a usual target carries, bytes.
const PIECE_BYTES: u32 = 128 << 10;

impl HostPlan {
    /// The engine's own part of each core's arena, behind the load's buffers.
    fn scratch(&self) -> Span {
        Span {
            at: self.arena_bytes.next_multiple_of(4096),
            len: SCRATCH_BYTES,
        }
    }

    fn config(&self, core: usize, volumes: &[VolumeConfig]) -> HostConfig {
        HostConfig {
            core: core as u16,
            cores: self.cores.len() as u16,
            identity: self.identity.clone(),
            digests: self.digests,
            kato_ms: (self.io_timeout_ns / 2_000_000).min(KATO_MS) as u32,
            connect_timeout_ns: self.connect_timeout_ns,
            io_timeout_ns: self.io_timeout_ns,
            // Beside the I/Os themselves, pieces of those that are larger than a command.
            io_max: (u64::from(self.outstanding) + self.arena_bytes / u64::from(PIECE_BYTES))
                .min(IO_MAX.into()) as u32,
            scratch: self.scratch(),
            volumes: volumes.to_vec(),
        }
    }

    fn reactor(&self, core: usize, resources: &Resources) -> ReactorConfig {
        ReactorConfig {
            name: format!("braid-host-{core}"),
            cpu: self.cores[core],
            spin: self.spin,
            arena_bytes: self.scratch().at + u64::from(self.scratch().len),
            per_peer_max: None,
            addresses: resources.addresses.clone(),
            listeners: Vec::new(),
            devices: resources.devices.clone(),
        }
    }
}

/// What the reactors need to know of the paths.
#[derive(Default)]
pub struct Resources {
    /// What `PathKind::NvmeTcp` refers to.
    pub addresses: Vec<SocketAddr>,
    /// What `PathKind::Device` refers to.
    pub devices: Vec<Device>,
    /// What is known of where each path leads.
    pub known: Vec<Known>,
    /// Names that are not resolved by then leave their paths without an address; `None`: they are
    /// an error, as where a measurement is made.
    pub patience: Option<Instant>,
}

/// What is known of where a path leads.
pub struct Known {
    /// The path's.
    pub uri: String,
    /// Under which number the reactors know it.
    pub number: u16,
    /// What.
    pub what: What,
}

/// Where a path over TCP leads.
#[derive(Clone, Debug)]
pub struct Place {
    /// As it is written.
    pub tcp: NvmeTcp,
    /// The address in use; `None`: its name was not resolved yet.
    pub address: Option<SocketAddr>,
    /// All that its name stands for.
    pub all: Vec<SocketAddr>,
    /// Why its name can't be resolved now, or is not followed.
    pub why: Option<String>,
    /// While it is being looked up.
    pub look_up: Option<LookUp>,
    /// Addresses that the log named since the path was lost, or its name changed.
    pub logged: Vec<SocketAddr>,
    /// No other place has it, also not of the same URI: numbers of addresses are used again.
    pub generation: u64,
}

/// A look-up of a path's name that is under way.
#[derive(Clone, Debug)]
pub struct LookUp {
    /// The path was lost again since it began.
    pub lost_again: bool,
    /// Told whenever the path begins to wait for another attempt.
    pub waits: SyncSender<()>,
}

impl Place {
    /// A new path's.
    pub fn new(tcp: &NvmeTcp, found: anyhow::Result<Found>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (address, all, why) = match found {
            Ok(found) => (Some(found.address), found.all, None),
            Err(why) => (None, Vec::new(), Some(format!("{why:#}"))),
        };
        Self {
            tcp: tcp.clone(),
            address,
            all,
            why,
            look_up: None,
            logged: Vec::new(),
            generation: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// See [`Known`].
pub enum What {
    /// A port of a subsystem.
    Port(Place),
    /// A queue server's namespace.
    Queue(Arc<QueueDevice>),
    /// A file.
    File(Arc<FileDevice>),
    /// Another device.
    Device,
}

impl Resources {
    /// Opens or resolves what the paths of a volume lead to.
    ///
    /// # Errors
    /// A name or file that can't be; with its URI.
    pub fn volume(&mut self, plan: &VolumePlan) -> anyhow::Result<VolumeConfig> {
        let path = |keys| self.path_of(keys, plan);
        Ok(VolumeConfig {
            name: plan.name.clone(),
            policy: plan.policy,
            knobs: plan.knobs,
            paths: plan.paths.iter().map(path).collect::<anyhow::Result<_>>()?,
            recovery: Recovery::NONE, // a measurement shows every error
        })
    }

    /// Opens or resolves what one path of a volume leads to.
    ///
    /// # Errors
    /// A name or file that can't be, with its URI; then nothing is known of it.
    pub fn path_of(&mut self, keys: &PathKeys, plan: &VolumePlan) -> anyhow::Result<PathConfig> {
        let uri = &keys.uri;
        let kind = self.path(uri, plan).with_context(|| uri.to_string())?;
        Ok(PathConfig {
            uri: uri.to_string(),
            kind,
            distance: keys.distance,
            throughput: keys.throughput,
        })
    }

    fn path(&mut self, uri: &PathUri, plan: &VolumePlan) -> anyhow::Result<PathKind> {
        let end = match (uri.kind(), self.patience) {
            // Without a name there is nothing to wait for: an address that can't be is an error.
            (UriKind::NvmeTcp(tcp), Some(until)) if tcp.is_named() => {
                let wait = until.saturating_duration_since(Instant::now());
                let place = Place::new(tcp, tcp.find_within(Start::default(), wait));
                if let Some(why) = &place.why {
                    log::say(format!(
                        "{}: path {uri}: waits for its name: {why}; it is tried again",
                        plan.name
                    ));
                }
                End::Port(place)
            }
            _ => End::of(uri, plan.access, plan.quiesce_ns)?,
        };
        let number = match &end {
            End::Port(_) => self.addresses.len(),
            End::Passthrough(_) | End::Device { .. } => self.devices.len(),
        };
        let number = u16::try_from(number).context("too many paths")?;
        let kind = end.kind(number);
        self.known.push(Known {
            uri: uri.to_string(),
            number,
            what: end.what(),
        });
        if let End::Port(place) = &end {
            self.addresses.push(place.address.unwrap_or(NOWHERE));
        }
        self.devices.extend(end.device());
        Ok(kind)
    }
}

/// Where a path leads: resolved, or opened.
pub enum End {
    /// A port of a subsystem.
    Port(Place),
    /// A namespace that the kernel drives.
    Passthrough(Arc<PassthroughDevice>),
    /// A local device.
    Device {
        /// It.
        device: Device,
        /// Its size.
        bytes: u64,
        /// log2 of its block size.
        block_shift: u8,
        /// What it shows of itself.
        identity: Option<Box<volume::Namespace>>,
    },
}

impl End {
    /// Resolves or opens it; `quiesce_ns`: as of [`QueueDevice::with_quiesce`].
    ///
    /// # Errors
    /// A name or file that can't be.
    pub fn of(uri: &PathUri, access: FileAccess, quiesce_ns: u64) -> anyhow::Result<Self> {
        let (device, bytes, block_shift) = match uri.kind() {
            UriKind::NvmeTcp(tcp) => {
                return Ok(Self::Port(Place::new(tcp, Ok(tcp.resolve()?))));
            }
            UriKind::NvmeNg(NvmeNg { device, poll }) => {
                let read_only = match access {
                    FileAccess::Alone => bail!("nobody can have a kernel's namespace alone"),
                    access => access == FileAccess::ReadOnly,
                };
                let opened = PassthroughDevice::open(device.clone(), read_only, *poll)?;
                return Ok(Self::Passthrough(Arc::new(opened)));
            }
            UriKind::File(path) => {
                file(path, access).map_err(|error| crate::mirror::holder::named(error, path))?
            }
            UriKind::Memory(bytes) => (
                Device::Memory(Arc::new(MemoryDevice::new(*bytes)?)),
                *bytes,
                9,
            ),
            UriKind::Null(bytes) => (Device::Null, *bytes, 9),
            UriKind::Queue { socket, nsid } => return Self::queue(socket, *nsid, quiesce_ns),
        };
        Ok(Self::Device {
            device,
            bytes,
            block_shift,
            identity: None,
        })
    }

    fn queue(socket: &Path, nsid: u32, quiesce_ns: u64) -> anyhow::Result<Self> {
        let queue = QueueDevice::open(socket.to_owned(), nsid)?.with_quiesce(quiesce_ns);
        let identity = queue.identity().map(|shown| {
            Box::new(volume::Namespace {
                subsystem: shown.subsystem.clone(),
                controller: shown.controller,
                nsid,
                nguid: shown.nguid,
                eui64: [0; 8],
                uuid: shown.uuid,
                command_set: 0,
                shared: true,
            })
        });
        Ok(Self::Device {
            bytes: queue.bytes(),
            block_shift: queue.block_shift(),
            identity,
            device: Device::Queue(Arc::new(queue)),
        })
    }

    /// What the reactors call it; none is an address.
    pub fn device(&self) -> Option<Device> {
        match self {
            Self::Port(_) => None,
            Self::Passthrough(opened) => Some(Device::Passthrough(Arc::clone(opened))),
            Self::Device { device, .. } => Some(device.clone()),
        }
    }

    /// What is to be known of it.
    pub fn what(&self) -> What {
        match self {
            Self::Port(place) => What::Port(place.clone()),
            Self::Device {
                device: Device::Queue(queue),
                ..
            } => What::Queue(Arc::clone(queue)),
            Self::Device {
                device: Device::File(file),
                ..
            } => What::File(Arc::clone(file)),
            Self::Passthrough(_) | Self::Device { .. } => What::Device,
        }
    }

    /// What the engine calls it, under this number of the reactors' addresses or devices.
    pub fn kind(&self, number: u16) -> PathKind {
        match self {
            Self::Port(place) => PathKind::NvmeTcp {
                address: number.into(),
                subsystem: place.tcp.subsystem.clone(),
                nsid: place.tcp.nsid,
            },
            Self::Passthrough(opened) => PathKind::Passthrough {
                device: DeviceId(number),
                facts: Box::new(Attached {
                    controller: opened.controller().clone(),
                    namespace: opened.namespace().clone(),
                }),
            },
            Self::Device {
                device,
                bytes,
                block_shift,
                identity,
            } => PathKind::Device {
                device: DeviceId(number),
                bytes: *bytes,
                block_shift: *block_shift,
                identity: identity.clone(),
                read_only: match device {
                    Device::File(file) => file.read_only(),
                    _ => false,
                },
                deallocate_zeroes: match device {
                    Device::File(file) => file.deallocate_zeroes(),
                    Device::Memory(_) | Device::Null => true,
                    Device::Passthrough(_) | Device::Queue(_) => false,
                },
                hole_bytes: match device {
                    Device::File(file) => file.hole_bytes(),
                    Device::Memory(_) => engine::limits::hole_bytes(4096),
                    Device::Null | Device::Passthrough(_) | Device::Queue(_) => 0,
                },
            },
        }
    }
}

fn file(path: &Path, access: FileAccess) -> anyhow::Result<(Device, u64, u8)> {
    let file = match access {
        FileAccess::Alone => FileDevice::open_alone(path.to_owned())?,
        other => FileDevice::open(path.to_owned(), other == FileAccess::ReadOnly, None)?,
    };
    if access == FileAccess::Shared {
        holder::warn_of_leg(path);
    }
    let (bytes, block_shift) = (file.bytes(), file.block_shift());
    Ok((Device::File(Arc::new(file)), bytes, block_shift))
}
