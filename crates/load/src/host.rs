//! The controlling thread of a load: opens what the paths need, starts one reactor per core, gives
//! them tasks, waits for their ends, adds up.
//!
//! # Contract
//! Nothing here is on the I/O path. The controlling thread sleeps until something happens; only
//! where somebody sees progress it wakes every `TICK` to show it.
use super::machine::{LoadControl, LoadEvent, LoadMachine, Progress, Queues};
use super::worker::{Finished, Task};
use crate::progress;
use anyhow::{Context, anyhow, bail};
use engine::Span;
use engine::host::{HostConfig, HostControl, Multipath, VolumeConfig, VolumeInfo};
use engine::limits::{IO_MAX, SCRATCH_BYTES};
use paths::board::{Board, node_of};
use paths::ends::{Resources, VolumePlan};
use runtime::{Polling, ReactorConfig, ReactorStats};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use terminal::exit::Usage;
use terminal::output;
use terminal::signals::Interrupt;

const TICK: Duration = Duration::from_millis(100);

/// Keep-alive time-out, unless half an I/O's time-out is shorter (T12).
const KATO_MS: u64 = 10_000;

/// Volumes over paths, and the cores that drive them.
pub struct HostPlan {
    /// Volumes; each core opens all of them.
    pub volumes: Vec<VolumePlan>,
    /// The CPU of each core; `None` = not pinned.
    pub cores: Vec<Option<usize>>,
    /// How the cores wait.
    pub polling: Polling,
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

/// A host at work.
pub struct Host {
    cores: Vec<Core>,
    events: Receiver<LoadEvent>,
    volumes: Vec<VolumeInfo>,
    interrupt: Interrupt,
}

struct Core {
    handle: runtime::Handle<LoadMachine>,
    progress: Arc<Progress>,
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, Default)]
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
        let volumes = plan.volumes.iter().map(|volume| resources.volume(volume));
        let volumes = volumes.collect::<anyhow::Result<Vec<_>>>()?;
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
            let peers = cores.iter().map(|core| core.handle.sender()).collect();
            let progress = Arc::new(Progress::default());
            let config = plan.config(number, &volumes);
            let fits = config.check();
            fits.map_err(|error| Usage::error(error.to_string()))?;
            let engine = engine::Core::without_front_ends(Multipath::new(config));
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
            cores.push(Core { handle, progress });
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
        self.send_all(|| LoadControl::Host(HostControl::Policy(volume, policy, knobs)));
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
            core.handle
                .sender()
                .send(LoadControl::Start(Box::new(task)));
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

    /// Shuts down in order; system calls and wake-ups of the reactors, added up.
    ///
    /// # Errors
    /// What ended a reactor.
    pub fn stop(self) -> anyhow::Result<ReactorStats> {
        let mut sum = ReactorStats::default();
        // Core 0 shuts the controllers down, so it comes last.
        for core in self.cores.into_iter().rev() {
            core.handle
                .sender()
                .send(LoadControl::Host(HostControl::Stop));
            let (_, stats) = core.handle.join()?;
            sum.enters += stats.enters;
            sum.wakeups += stats.wakeups;
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
            core.handle.sender().send(message());
        }
    }

    /// Why the reactor of a core has ended.
    fn bury(&mut self, number: u16) -> anyhow::Error {
        match self.cores.remove(number.into()).handle.join() {
            Err(error) => error.into(),
            Ok(_) => anyhow!("the reactor of core {number} has ended unexpectedly"),
        }
    }

    fn moment(&self, start: Instant) -> Moment {
        let counts = self.cores.iter().map(|core| core.progress.read());
        let (ios, bytes) = counts.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
        let elapsed = start.elapsed();
        Moment {
            elapsed,
            ios,
            bytes,
        }
    }
}

/// Payload that a command of a usual target carries, bytes.
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
            polling: self.polling,
            arena_bytes: self.scratch().at + u64::from(self.scratch().len),
            per_peer_max: None,
            addresses: resources.addresses.clone(),
            listeners: Vec::new(),
            devices: resources.devices.clone(),
        }
    }
}
