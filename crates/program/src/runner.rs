//! A program at work on one core: calls it, checks its answers, and counts.
use crate::abi::Words;
use crate::instance::{Compiled, Instance, Trap};
use crate::limits::{FAULTS_MAX, TICK_NS, WINDOW};
use crate::workshop::{self, Work, Workshop};
use policy::{Choice, Completion, PathIndex, PathView, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Why `queue-depth` chose in the place of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A call wanted more fuel than it has.
    OutOfFuel,
    /// A call trapped.
    Trap,
    /// The path of that number does not exist.
    NoSuchPath,
    /// The path may not be used now.
    UnusablePath,
    /// A new instance is being made after a trap. Neither a fault nor a choice of the program.
    NewInstance,
}

impl Fault {
    /// All of them, in the order of [`Counts::faults`].
    pub const ALL: [Self; 5] = [
        Self::OutOfFuel,
        Self::Trap,
        Self::NoSuchPath,
        Self::UnusablePath,
        Self::NewInstance,
    ];

    /// As a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfFuel => "out-of-fuel",
            Self::Trap => "trap",
            Self::NoSuchPath => "no-such-path",
            Self::UnusablePath => "unusable-path",
            Self::NewInstance => "new-instance",
        }
    }
}

/// Counts of a program, of all cores together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Choices that it was asked for, or would have been with an instance.
    pub choices: u64,
    /// Choices and completions that had no good answer, by [`Fault::ALL`].
    pub faults: [u64; Fault::ALL.len()],
    /// Fuel of all its calls.
    pub fuel: u64,
    /// Its calls.
    pub calls: u64,
    /// Fuel of the call that took most.
    pub fuel_max: u64,
}

/// How a program does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Counts.
    pub counts: Counts,
    /// It failed too often, and does not choose any more.
    pub is_out: bool,
}

impl Counts {
    /// Adds those of others.
    pub fn add(&mut self, other: &Self) {
        self.choices += other.choices;
        self.fuel += other.fuel;
        self.calls += other.calls;
        self.fuel_max = self.fuel_max.max(other.fuel_max);
        for (sum, it) in self.faults.iter_mut().zip(other.faults) {
            *sum += it;
        }
    }

    /// Those of faults that are not 0, by name: `trap 2, no-such-path 7`.
    pub fn faults_in_words(&self) -> String {
        let all = Fault::ALL.iter().zip(self.faults);
        let all = all.filter(|(_, count)| *count > 0);
        let all = all.map(|(fault, count)| format!("{} {count}", fault.name()));
        all.collect::<Vec<_>>().join(", ")
    }
}

impl State {
    /// Adds that of another run.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.is_out |= other.is_out;
    }
}

/// Counts of one core, which alone writes them (T47).
#[derive(Default)]
#[repr(align(64))]
struct Core {
    choices: AtomicU64,
    faults: [AtomicU64; Fault::ALL.len()],
    fuel: AtomicU64,
    calls: AtomicU64,
    fuel_max: AtomicU64,
}

/// State that the runners of a program have in common.
#[derive(Default)]
pub(crate) struct Shared {
    /// Read at every choice, written once.
    is_out: AtomicBool,
    cores: Mutex<Vec<Arc<Core>>>,
}

/// A runner's part of it.
pub(crate) struct Part {
    shared: Arc<Shared>,
    core: Arc<Core>,
}

impl Shared {
    pub(crate) fn core(self: &Arc<Self>) -> Part {
        let core = Arc::<Core>::default();
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.push(core.clone());
        Part {
            shared: self.clone(),
            core,
        }
    }

    pub(crate) fn runners(&self) -> usize {
        let cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.iter().filter(|it| Arc::strong_count(it) > 1).count()
    }

    pub(crate) fn state(&self) -> State {
        let cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = Counts::default();
        for core in cores.iter() {
            counts.add(&Counts {
                choices: core.choices.load(Relaxed),
                faults: core.faults.each_ref().map(|it| it.load(Relaxed)),
                fuel: core.fuel.load(Relaxed),
                calls: core.calls.load(Relaxed),
                fuel_max: core.fuel_max.load(Relaxed),
            });
        }
        State {
            counts,
            is_out: self.is_out.load(Relaxed),
        }
    }
}

/// Adds to a count of which this thread is the only writer.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

/// State of the instance.
enum Live {
    /// It runs.
    Running(Box<Instance>),
    /// The workshop makes a new one.
    Awaited,
    /// None can be made.
    Gone,
}

/// A program at work on one core.
pub struct Runner {
    compiled: Arc<Compiled>,
    live: Live,
    words: Words,
    part: Part,
    workshop: Option<Workshop>,
    /// New instances come here.
    to: SyncSender<Option<Box<Instance>>>,
    made: Receiver<Option<Box<Instance>>>,
    ticked_ns: u64,
    /// Paths at the last choice.
    paths: usize,
    /// Choices and faults of this window.
    window: (u32, u32),
}

impl Runner {
    pub(crate) fn new(
        compiled: Arc<Compiled>,
        instance: Instance,
        part: Part,
        workshop: Option<&Workshop>,
    ) -> Self {
        let (to, made) = sync_channel(1);
        Self {
            compiled,
            live: Live::Running(Box::new(instance)),
            words: Words::default(),
            part,
            workshop: workshop.cloned(),
            to,
            made,
            ticked_ns: 0,
            paths: 0,
            window: (0, 0),
        }
    }

    #[cfg(test)]
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// Whether an instance runs now; takes one that the workshop has made.
    fn is_running(&mut self) -> bool {
        if matches!(self.live, Live::Awaited)
            && let Ok(made) = self.made.try_recv()
        {
            self.live = match made {
                Some(mut instance) => {
                    instance.restore(&self.words);
                    Live::Running(instance)
                }
                None => Live::Gone,
            };
        }
        matches!(self.live, Live::Running(_))
    }

    /// Calls the instance, if one runs, and throws it away if it traps.
    fn call<R>(
        &mut self,
        call: impl FnOnce(&mut Instance, &mut Words) -> Result<R, Trap>,
    ) -> Result<R, Fault> {
        let Live::Running(instance) = &mut self.live else {
            return Err(Fault::NewInstance);
        };
        instance.refuel();
        let answer = call(instance, &mut self.words);
        let (core, used) = (&self.part.core, instance.used());
        add(&core.fuel, used);
        add(&core.calls, u64::from(used > 0));
        if used > core.fuel_max.load(Relaxed) {
            core.fuel_max.store(used, Relaxed);
        }
        answer.map_err(|trap| {
            self.renew();
            match trap {
                Trap::OutOfFuel => Fault::OutOfFuel,
                Trap::Trap => Fault::Trap,
            }
        })
    }

    #[cold]
    fn renew(&mut self) {
        if let Live::Running(old) = std::mem::replace(&mut self.live, Live::Awaited) {
            let work = Work::Renew {
                of: self.compiled.clone(),
                old,
                to: self.to.clone(),
            };
            self.send(work);
        }
    }

    fn send(&self, work: Work) {
        let sent = match &self.workshop {
            Some(workshop) => workshop.send(work),
            None => Err(work),
        };
        if let Err(work) = sent {
            workshop::perform(work);
        }
    }

    /// Counts a fault; with one too many the program is out.
    #[cold]
    fn fault(&mut self, fault: Fault) {
        add(&self.part.core.faults[fault as usize], 1);
        if fault != Fault::NewInstance {
            self.window.1 += 1;
        }
        if self.window.1 > FAULTS_MAX || matches!(self.live, Live::Gone) {
            self.part.shared.is_out.store(true, Relaxed);
        }
    }

    fn tick(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.ticked_ns) >= TICK_NS {
            self.ticked_ns = now_ns;
            if let Err(fault) = self.call(|it, _| it.tick(now_ns)) {
                self.fault(fault);
            }
        }
    }

    fn is_out(&self) -> bool {
        self.part.shared.is_out.load(Relaxed)
    }

    fn choose(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32],
    ) -> Result<usize, Fault> {
        let chosen = self.call(|it, words| it.select(request, paths, in_flight, words))?;
        let chosen = usize::try_from(chosen).map_err(|_| Fault::NoSuchPath)?;
        let view = paths.get(chosen).ok_or(Fault::NoSuchPath)?;
        if view.usable() {
            Ok(chosen)
        } else {
            Err(Fault::UnusablePath)
        }
    }
}

impl policy::Program for Runner {
    fn select(&mut self, request: &Request, paths: &[PathView], in_flight: &[u32]) -> Choice {
        if self.is_out() {
            return Choice::TakenOut;
        }
        self.paths = paths.len();
        add(&self.part.core.choices, 1);
        if self.is_running() {
            // Without an instance it is not asked: however long new ones take, one that always
            // traps is out soon.
            self.window.0 += 1;
            if self.window.0 > WINDOW {
                self.window = (1, 0);
            }
            self.tick(request.now_ns);
        }
        match self.choose(request, paths, in_flight) {
            Ok(chosen) => Choice::Path(chosen),
            Err(fault) => {
                self.fault(fault);
                match self.is_out() {
                    true => Choice::TakenOut,
                    false => Choice::FallBack,
                }
            }
        }
    }

    fn complete(&mut self, done: &Completion, length: u32) {
        // An I/O from before its first choice.
        let paths = self.paths.max(usize::from(done.path.0) + 1);
        if self.is_running()
            && let Err(fault) = self.call(|it, words| it.complete(done, length, paths, words))
        {
            self.fault(fault);
        }
    }

    fn reset(&mut self, path: PathIndex) {
        let path = usize::from(path.0);
        self.words.reset(path);
        if self.is_running()
            && let Err(fault) = self.call(|it, _| it.reset(path))
        {
            self.fault(fault);
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let instance = match std::mem::replace(&mut self.live, Live::Gone) {
            Live::Running(instance) => Some(instance),
            Live::Awaited | Live::Gone => None,
        };
        self.send(Work::Drop(instance, self.compiled.clone()));
    }
}
