//! The machine of one core under load: a [`Core`] without front ends, and a [`Worker`] as its
//! program.
//!
//! # Contract
//! Everything of the engine is passed through; [`Machine::turn`] hands the ends of I/Os to the
//! worker and lets it make new ones. News for the controlling thread go to it as [`LoadEvent`]s.
//! Core 0 passes what its engine learnt of the paths on to the other cores. The number in flight
//! here is shown to the others after the worker's turn: between an end and the I/O that replaces it
//! the count would always be too low (trap T47).
use super::worker::{Finished, Task, Worker};
use engine::export::{ExportControl, ExportEvent};
use engine::host::{HostControl, HostEvent, VolumeInfo};
use engine::machine::Memory;
use engine::{Around, Core, Machine};
use paths::board::Board;
use paths::ends::{Known, What};
use runtime::QueueDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// The engine and the load on it.
pub struct LoadMachine {
    engine: Core,
    board: Arc<Board>,
    load: Load,
}

/// The program of one core.
struct Load {
    peers: Vec<runtime::Sender<LoadControl>>,
    events: Farewell,
    progress: Arc<Progress>,
    queues: Arc<Queues>,
    next: Option<Box<Task>>,
    worker: Option<Worker>,
    /// Events came behind the worker's turn: come again at once.
    again: bool,
}

/// The namespaces of queue servers among the paths, by URI.
#[derive(Default)]
pub struct Queues(Vec<(String, Arc<QueueDevice>)>);

impl Queues {
    /// Those of what is known.
    pub fn of(known: &[Known]) -> Self {
        let queue = |it: &Known| match &it.what {
            What::Queue(queue) => Some((it.uri.clone(), Arc::clone(queue))),
            _ => None,
        };
        Self(known.iter().filter_map(queue).collect())
    }

    /// Whether this is a path to one, and a queue of it was lost.
    fn is_lost(&self, uri: &str) -> bool {
        let its = self.0.iter().filter(|it| it.0 == uri);
        its.map(|it| &it.1).any(|queue| queue.was_lost())
    }
}

/// Messages to a core under load.
pub enum LoadControl {
    /// For the engine.
    Host(HostControl),
    /// Begin.
    Start(Box<Task>),
    /// End what runs, early.
    Interrupt,
}

/// News from a core under load for the controlling thread.
#[derive(Debug)]
pub enum LoadEvent {
    /// A volume is ready on this core.
    Ready(u16, VolumeInfo),
    /// A volume can't be, or is lost.
    Failed(String),
    /// Something the user should know.
    Warning(String),
    /// The task of a core has ended.
    Finished(Box<Finished>),
    /// The reactor of that core has ended, whatever the reason.
    Gone(u16),
    /// The user wants to stop: see [`terminal::signals::Interrupt`].
    Interrupted,
}

/// Says [`LoadEvent::Gone`] when its machine is dropped.
struct Farewell {
    core: u16,
    events: mpsc::Sender<LoadEvent>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.events.send(LoadEvent::Gone(self.core));
    }
}

/// Counts of one core's running task; written by its core only.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Progress {
    ios: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// I/Os and bytes so far.
    pub fn read(&self) -> (u64, u64) {
        (
            self.ios.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }
}

impl LoadMachine {
    /// A machine without a task. `peers`: the other cores, for core 0.
    pub fn new(
        engine: Core,
        core: u16,
        peers: Vec<runtime::Sender<LoadControl>>,
        events: mpsc::Sender<LoadEvent>,
        progress: Arc<Progress>,
        board: Arc<Board>,
        queues: Arc<Queues>,
    ) -> Self {
        let load = Load {
            peers,
            events: Farewell { core, events },
            progress,
            queues,
            next: None,
            worker: None,
            again: false,
        };
        Self {
            engine,
            board,
            load,
        }
    }
}

impl Load {
    /// Lets the worker take what has ended and submit more.
    fn turn(&mut self, engine: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        if let Some(task) = self.next.take() {
            self.worker = Some(Worker::new(*task, memory, now_ns));
        }
        self.drain(engine, memory, now_ns);
        if let Some(worker) = &mut self.worker {
            worker.turn(engine, memory, now_ns);
        }
        self.again = self.drain(engine, memory, now_ns);
        self.publish();
        if let Some(worker) = self.worker.take_if(|worker| worker.is_over()) {
            self.tell(LoadEvent::Finished(Box::new(worker.finish())));
        }
    }

    /// Hands on what the engine has to tell; whether there was anything.
    fn drain(&mut self, engine: &mut Core, memory: &mut dyn Memory, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(event) = engine.poll_event() {
            let ExportEvent::Host(event) = event else {
                unreachable!("{event:?}: it has no front ends");
            };
            any = true;
            match event {
                HostEvent::Done(done) => {
                    if let Some(worker) = &mut self.worker {
                        worker.handle_done(&done, memory);
                        if let Some(why) = worker.lost_queue(&done, |uri| self.queues.is_lost(uri))
                        {
                            worker.fail(why, engine, now_ns);
                        }
                    }
                }
                HostEvent::Ready(volume, info) => self.tell(LoadEvent::Ready(volume, info)),
                HostEvent::Failed(_, why) => {
                    if let Some(worker) = &mut self.worker {
                        worker.fail(why.clone(), engine, now_ns);
                    }
                    self.tell(LoadEvent::Failed(why));
                }
                // The report's latencies tell more than this line.
                HostEvent::Warning(_, what) | HostEvent::Trouble(_, what) => {
                    self.tell(LoadEvent::Warning(what));
                }
                HostEvent::Publish(facts) => {
                    for peer in &self.peers {
                        peer.send(LoadControl::Host(HostControl::Path(facts.clone())));
                    }
                }
                // Nothing recovers or changes here, and there are no mirrors.
                _ => {}
            }
        }
        any
    }

    /// The controlling thread may be gone; then nobody needs to know.
    fn tell(&self, event: LoadEvent) {
        let _ = self.events.events.send(event);
    }

    fn publish(&self) {
        if let Some(worker) = &self.worker {
            let totals = worker.totals();
            self.progress.ios.store(totals.ios, Ordering::Relaxed);
            self.progress.bytes.store(totals.bytes, Ordering::Relaxed);
        }
    }
}

impl Around for LoadMachine {
    type Inner = Core;
    type Control = LoadControl;

    fn inner(&self) -> &Core {
        &self.engine
    }
    fn inner_mut(&mut self) -> &mut Core {
        &mut self.engine
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        let load = &mut self.load;
        let mut peers = self.board.peers_of(load.events.core);
        self.engine.exchange(&mut peers, |engine| {
            engine.turn(memory, now_ns);
            load.turn(engine, memory, now_ns);
        });
    }

    fn handle_control(&mut self, message: LoadControl, now_ns: u64) {
        match message {
            LoadControl::Host(message) => {
                let message = ExportControl::Host(message);
                self.engine.handle_control(message, now_ns);
            }
            LoadControl::Start(task) => self.load.next = Some(task),
            LoadControl::Interrupt => {
                if let Some(worker) = &mut self.load.worker {
                    worker.interrupt(&self.engine, now_ns);
                }
            }
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.load.again {
            return Some(0);
        }
        let worker = self.load.worker.as_ref().and_then(Worker::poll_timeout);
        [self.engine.poll_timeout(), worker]
            .into_iter()
            .flatten()
            .min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.engine.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.engine.handle_timeout(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    mod cores;

    use super::*;
    use crate::job::{JobPlan, JobRules};
    use crate::pattern::{Region, Shape};
    use crate::sizes::Sizes;
    use engine::host::{HostConfig, Multipath, PathConfig, PathKind, VolumeConfig};
    use engine::{LocalDevice, Output};

    /// One device path, of core 0 of two.
    fn config() -> HostConfig {
        HostConfig {
            core: 0,
            cores: 2,
            identity: paths::identity::ephemeral(),
            digests: nvme::host::Digests {
                header: false,
                data: false,
            },
            kato_ms: 0,
            connect_timeout_ns: 1_000_000,
            io_timeout_ns: 1_000_000_000,
            io_max: 1,
            scratch: engine::Span::default(),
            volumes: vec![VolumeConfig {
                name: "v".to_owned(),
                policy: policy::Policy::QueueDepth,
                knobs: policy::Knobs::default(),
                paths: vec![PathConfig {
                    uri: "null:1MiB".to_owned(),
                    kind: PathKind::Device {
                        device: LocalDevice(0),
                        bytes: 1 << 20,
                        block_shift: 9,
                        identity: None,
                        read_only: false,
                        deallocate_zeroes: false,
                        hole_bytes: 0,
                    },
                    distance: 0,
                    throughput: 1,
                    numbers: PathConfig::ANY_NUMBER,
                }],
                recovery: engine::host::Recovery::NONE,
            }],
        }
    }

    /// Reads of 4 KiB, one outstanding, until interrupted.
    fn task() -> Task {
        Task {
            volume: 0,
            paths: Arc::new(["null:1MiB".to_owned()]),
            rules: JobRules {
                shape: Shape {
                    random: false,
                    read_percent: 100,
                    sizes: Sizes::parse_bs("4k").unwrap(),
                },
                iodepth: 1,
                once: false,
                rate_iops: 0,
                rate_bytes: 0,
                verify: None,
            },
            jobs: vec![JobPlan {
                region: Region {
                    begin: 0,
                    end: 1 << 20,
                },
                seed: 1,
            }],
            warmup_ns: 0,
            runtime_ns: None,
        }
    }

    /// One loop turn; the device requests that came of it.
    fn turn(machine: &mut LoadMachine, arena: &mut Vec<u8>, now_ns: u64) -> Vec<u32> {
        Machine::turn(machine, arena, now_ns);
        let outputs = std::iter::from_fn(|| Machine::poll_output(machine));
        let device = |output| match output {
            Output::Device(request) => Some(request.id),
            _ => None,
        };
        outputs.filter_map(device).collect()
    }

    #[test]
    fn t47_while_a_core_sleeps_the_board_shows_what_it_waits_for() {
        let board = Arc::new(Board::new(&[0; 2], 1));
        let (told, events) = mpsc::channel();
        let engine = Core::without_front_ends(Multipath::new(config()));
        let progress = Arc::default();
        let shown = Arc::clone(&board);
        let mut machine =
            LoadMachine::new(engine, 0, vec![], told, progress, shown, Arc::default());
        let arena = &mut vec![0; 4096];
        assert!(turn(&mut machine, arena, 0).is_empty());
        assert!(matches!(events.try_recv(), Ok(LoadEvent::Ready(0, _))));
        Machine::handle_control(&mut machine, LoadControl::Start(Box::new(task())), 1);
        let mut requests = turn(&mut machine, arena, 1);
        for now_ns in 2..10 {
            assert_eq!((requests.len(), board.elsewhere(1, 0)), (1, 1));
            machine.handle_device(requests[0], Ok(()), now_ns);
            requests = turn(&mut machine, arena, now_ns);
        }
        Machine::handle_control(&mut machine, LoadControl::Interrupt, 10);
        machine.handle_device(requests[0], Ok(()), 10);
        assert!(turn(&mut machine, arena, 10).is_empty());
        assert_eq!(board.elsewhere(1, 0), 0);
    }
}
