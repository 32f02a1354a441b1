//! The load of one core, from warming up to the last check.
//!
//! # Contract
//! ```text
//! WarmUp → Measure → Drain → ReadBack → Over
//! ```
//! The owner hands in every I/O that has ended ([`Worker::handle_done`]), then calls
//! [`Worker::turn`] once per loop turn, until [`Worker::is_over`]. I/Os that end while measuring
//! are measured, those that end later are only checked. Nothing is allocated after construction,
//! but words for the first failures. The buffers of failed I/Os rest (`rest`), and a task of
//! which nothing succeeds any more ends early.
mod parting;
mod rest;

use super::job::{Job, JobPlan, JobRules, Pause};
use super::pattern::Step;
use super::stats::Stats;
use engine::host::{HedgeStats, Io, IoDone, IoOp, SubmitError};
use engine::machine::Memory;
use engine::{Core, Span};
use multipath::Outcome;
use parting::Parting;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rest::Rest;
use std::sync::Arc;
use terminal::units::{format_bytes, format_ns};

/// A device that executes the I/Os of a load.
pub trait Device {
    /// Takes one I/O, whose end comes back with its cookie.
    ///
    /// # Errors
    /// See [`SubmitError`]; the I/O was not taken.
    fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError>;
    /// I/Os so far that waited because path number `path` was full.
    fn waited_full(&self, _volume: u16, _path: u8) -> u64 {
        0
    }
    /// Second copies of reads so far.
    fn hedges(&self, _volume: u16) -> HedgeStats {
        HedgeStats::default()
    }
}

impl Device for Core {
    fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        Core::submit(self, io, now_ns)
    }
    fn waited_full(&self, volume: u16, path: u8) -> u64 {
        let path = policy::PathIndex(path);
        self.host().counters(volume, path).waited_full
    }
    fn hedges(&self, volume: u16) -> HedgeStats {
        self.host().hedge_stats(volume)
    }
}

/// The work of one core.
#[derive(Clone, Debug)]
pub struct Task {
    /// Volume index.
    pub volume: u16,
    /// URIs of its paths.
    pub paths: Arc<[String]>,
    /// Rules of all jobs.
    pub rules: JobRules,
    /// This core's jobs.
    pub jobs: Vec<JobPlan>,
    /// Run so long before measuring.
    pub warmup_ns: u64,
    /// Measure at most so long; `None`: until the jobs end.
    pub runtime_ns: Option<u64>,
}

/// A task at work.
pub struct Worker {
    task: Task,
    jobs: Vec<Job>,
    slots: Vec<Slot>,
    phase: Phase,
    /// When the phase ends, ns.
    until_ns: Option<u64>,
    measured_from_ns: u64,
    waited_before: Vec<u64>,
    hedges_before: HedgeStats,
    outstanding: u32,
    ended_jobs: bool,
    interrupted: bool,
    failed: Option<String>,
    /// It ends before its time.
    parting: Option<Parting>,
    /// The soonest time a job waits for.
    wake_ns: Option<u64>,
    rest: Rest,
    /// How the last I/O that failed ended.
    last_failure: Option<Outcome>,
    stats: Stats,
    totals: Totals,
}

/// Counts since the task began, for showing progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// I/Os completed well.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Result of a task.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The measurements.
    pub stats: Stats,
    /// Everything that was done, measured or not.
    pub totals: Totals,
    /// Ended early by its owner.
    pub interrupted: bool,
    /// The volume was lost.
    pub failed: Option<String>,
}

impl Finished {
    /// Adds what another core came to.
    pub fn merge(&mut self, other: Self) {
        self.stats.merge(&other.stats);
        self.totals.ios += other.totals.ios;
        self.totals.bytes += other.totals.bytes;
        self.interrupted |= other.interrupted;
        self.failed = self.failed.take().or(other.failed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Measure,
    Drain,
    ReadBack,
    Over,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    job: u32,
    step: Step,
    sequence: u32,
}

impl Worker {
    /// Begins a task. Its buffers are the first bytes of the arena, one after the other.
    pub fn new(task: Task, memory: &mut dyn Memory, now_ns: u64) -> Self {
        let depth = task.rules.iodepth;
        let firsts = (0..).step_by(depth as usize);
        let plans = task.jobs.iter().zip(firsts);
        let jobs: Vec<_> = plans
            .map(|(plan, first)| Job::new(plan, &task.rules, first, now_ns))
            .collect();
        let (paths, buffers) = (task.paths.len(), task.jobs.len() * depth as usize);
        let worker = Self {
            jobs,
            slots: vec![Slot::default(); buffers],
            phase: Phase::WarmUp,
            until_ns: Some(now_ns.saturating_add(task.warmup_ns)),
            measured_from_ns: now_ns,
            waited_before: vec![0; paths],
            hedges_before: HedgeStats::default(),
            outstanding: 0,
            ended_jobs: false,
            interrupted: false,
            failed: None,
            parting: None,
            wake_ns: None,
            rest: Rest::new(buffers),
            last_failure: None,
            stats: Stats::new(paths),
            totals: Totals::default(),
            task,
        };
        worker.fill(memory);
        worker
    }

    /// An I/O has ended.
    pub fn handle_done(&mut self, done: &IoDone, memory: &mut dyn Memory) {
        let slot_number = done.cookie as u32;
        let Slot {
            job,
            step,
            sequence,
        } = self.slots[slot_number as usize];
        let good = done.outcome == Outcome::Done;
        if good {
            self.totals.ios += 1;
            self.totals.bytes += u64::from(step.length);
            if matches!(self.phase, Phase::WarmUp | Phase::Measure) {
                let path = usize::from(done.path.0);
                self.stats
                    .good(step.write, path, step.length, done.latency_ns);
            }
            if !step.write {
                let bytes = memory.bytes(self.span(slot_number, step.length));
                self.check(job, step, bytes, done.path.0);
            }
        } else {
            self.count_failure(step, done);
        }
        let job = &mut self.jobs[job as usize];
        job.ended_io(step, sequence, good);
        if good {
            self.rest.good(slot_number);
            job.free(slot_number);
        } else {
            self.rest.failed(slot_number);
        }
        self.outstanding -= 1;
    }

    /// Once per loop turn, after all ends were handed in.
    pub fn turn(&mut self, device: &mut impl Device, memory: &mut dyn Memory, now_ns: u64) {
        let (slots, jobs) = (&self.slots, &mut self.jobs);
        self.rest.wake(now_ns, |slot| {
            jobs[slots[slot as usize].job as usize].free(slot);
        });
        self.give_up(device, now_ns);
        self.part(device, now_ns);
        self.advance(device, now_ns);
        loop {
            let phase = self.phase;
            self.wake_ns = None;
            let read_back = phase == Phase::ReadBack;
            if !read_back && !matches!(phase, Phase::WarmUp | Phase::Measure) {
                return;
            }
            self.issue_all(read_back, device, memory, now_ns);
            self.advance(device, now_ns);
            // Nothing outstanding would call again for a phase that has just begun. Phases only
            // go forward, so this ends.
            if self.phase == phase {
                return;
            }
        }
    }

    /// When to call [`Worker::turn`] at the latest, ns. `None` only while I/Os are outstanding, or
    /// when all is over.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.phase == Phase::Drain && self.outstanding == 0 {
            return Some(0);
        }
        let parts_ns = self.parting.map(|it| it.until_ns);
        let parts_ns = parts_ns.filter(|_| self.outstanding > 0);
        let all = [self.until_ns, self.wake_ns, parts_ns];
        all.into_iter().flatten().min()
    }

    /// Buffers, which the lower half of a cookie counts.
    pub fn buffers(&self) -> usize {
        self.slots.len()
    }

    /// Whether everything has ended.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The result.
    pub fn finish(self) -> Finished {
        Finished {
            stats: self.stats,
            totals: self.totals,
            interrupted: self.interrupted,
            failed: self.failed,
        }
    }

    /// Everything that this turn's time and ends make over.
    fn advance(&mut self, device: &impl Device, now_ns: u64) {
        let due = self.until_ns.is_some_and(|until| until <= now_ns);
        let done = self.ended_jobs && self.outstanding == 0;
        if self.phase == Phase::WarmUp && due {
            self.begin_measuring(device, now_ns);
        } else if self.phase == Phase::Measure && (due || done) {
            self.end_measuring(device, now_ns);
        }
        if self.phase == Phase::Drain && self.outstanding == 0 {
            let writes =
                self.task.rules.verify.is_some() && self.task.rules.shape.read_percent < 100;
            let read_back = writes && !self.interrupted && self.failed.is_none();
            self.phase = if read_back {
                Phase::ReadBack
            } else {
                Phase::Over
            };
            self.ended_jobs = false;
        } else if self.phase == Phase::ReadBack && done {
            self.phase = Phase::Over;
        }
    }

    fn begin_measuring(&mut self, device: &impl Device, now_ns: u64) {
        self.stats.restart();
        self.phase = Phase::Measure;
        self.measured_from_ns = now_ns;
        self.until_ns = self
            .task
            .runtime_ns
            .map(|runtime| now_ns.saturating_add(runtime));
        for (path, before) in (0..).zip(&mut self.waited_before) {
            *before = device.waited_full(self.task.volume, path);
        }
        self.hedges_before = device.hedges(self.task.volume);
    }

    fn end_measuring(&mut self, device: &impl Device, now_ns: u64) {
        self.stats.elapsed_ns = now_ns - self.measured_from_ns;
        for (path, tally) in (0..).zip(&mut self.stats.paths) {
            let before = self.waited_before[usize::from(path)];
            tally.waited_full = device.waited_full(self.task.volume, path) - before;
        }
        let hedges = device.hedges(self.task.volume);
        self.stats.hedges = hedges.since(&self.hedges_before);
        self.phase = Phase::Drain;
        self.until_ns = None;
    }

    fn stop_issuing(&mut self, device: &impl Device, now_ns: u64) {
        match self.phase {
            Phase::WarmUp => {
                self.stats.restart();
                self.phase = Phase::Drain;
                self.until_ns = None;
            }
            Phase::Measure => self.end_measuring(device, now_ns),
            Phase::ReadBack => self.phase = Phase::Drain,
            Phase::Drain | Phase::Over => {}
        }
        self.wake_ns = None;
    }

    /// As many I/Os of all jobs as there may be now.
    fn issue_all(
        &mut self,
        read_back: bool,
        device: &mut impl Device,
        memory: &mut dyn Memory,
        now_ns: u64,
    ) {
        self.ended_jobs = true;
        for job in 0..self.jobs.len() {
            self.issue(job, read_back, device, memory, now_ns);
            if self.failed.is_some() {
                return;
            }
        }
        if let Some(due_ns) = self.rest.due_ns() {
            self.wake_at(due_ns);
        }
    }

    /// Ends a task of which every I/O has failed for long enough.
    fn give_up(&mut self, device: &impl Device, now_ns: u64) {
        if matches!(self.phase, Phase::Drain | Phase::Over) {
            return;
        }
        let (Some(for_ns), Some(outcome)) = (self.rest.hopeless_ns(now_ns), self.last_failure)
        else {
            return;
        };
        let since = format_ns(for_ns as f64);
        let uris = self.task.paths.join(", ");
        let why = if outcome.is_path_error() {
            format!(
                "no path may serve: every I/O has failed for {since}, the last one because \
                 {outcome} ({uris}): see that a path is up and its ANA state lets it serve"
            )
        } else {
            format!("every I/O has failed for {since}, the last one: {outcome} ({uris})")
        };
        self.fail(why, device, now_ns);
    }

    /// As many I/Os of one job as there may be now.
    fn issue(
        &mut self,
        number: usize,
        read_back: bool,
        device: &mut impl Device,
        memory: &mut dyn Memory,
        now_ns: u64,
    ) {
        loop {
            let job = &mut self.jobs[number];
            let next = if read_back {
                job.next_read_back()
            } else {
                job.next(now_ns)
            };
            let (step, slot) = match next {
                Ok(next) => next,
                Err(pause) => return self.note_pause(pause),
            };
            let span = self.span(slot, step.length);
            let job = &mut self.jobs[number];
            let sequence = if step.write {
                job.stamp(step, span, memory)
            } else {
                0
            };
            self.slots[slot as usize] = Slot {
                job: number as u32,
                step,
                sequence,
            };
            let io = Io {
                volume: self.task.volume,
                op: if step.write {
                    IoOp::Write { fua: false }
                } else {
                    IoOp::Read
                },
                offset: step.offset,
                length: step.length,
                span,
                source: number as u64,
                cookie: slot.into(),
            };
            match device.submit(&io, now_ns) {
                Ok(()) => {
                    self.outstanding += 1;
                    self.jobs[number].charge(step, now_ns);
                }
                Err(error) => {
                    self.jobs[number].put_back(step, slot, read_back);
                    self.ended_jobs = false;
                    return self.refused(error, step, device, now_ns);
                }
            }
        }
    }

    fn note_pause(&mut self, pause: Pause) {
        if let Pause::Time(due_ns) = pause {
            self.wake_at(due_ns);
        }
        self.ended_jobs &= pause == Pause::Ended;
    }

    fn wake_at(&mut self, due_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(due_ns, |wake| wake.min(due_ns)));
    }

    /// T6: a full engine is no failure; anything else is, of the volume or of the task.
    fn refused(&mut self, error: SubmitError, step: Step, device: &impl Device, now_ns: u64) {
        let why = match error {
            SubmitError::Full => {
                // Ours that end make room; where it is others', nothing of ours would tell.
                if self.outstanding == 0 {
                    self.wake_at(now_ns.saturating_add(1_000_000));
                }
                return;
            }
            SubmitError::NotReady => "the volume is not ready".to_owned(),
            SubmitError::PastEnd { .. } => format!("{}: {error}", words(step)),
            SubmitError::Range => format!("{} is outside the volume or not aligned", words(step)),
        };
        self.fail(why, device, now_ns);
    }

    fn check(&mut self, job: u32, step: Step, bytes: &[u8], path: u8) {
        // Without writes of our own there is nothing to know but the stamps themselves.
        let any = self.task.rules.shape.read_percent == 100;
        let (right, wrong) = self.jobs[job as usize].check(step, bytes, any);
        self.stats.verified_bytes += right;
        if let Some((address, mismatch)) = wrong {
            let paths = &self.task.paths;
            self.stats.bad(|| {
                let path = paths.get(usize::from(path)).map_or("no path", |path| path);
                format!("wrong data at byte {address} over {path}: {mismatch}")
            });
        }
    }

    fn count_failure(&mut self, step: Step, done: &IoDone) {
        self.last_failure = Some(done.outcome);
        let path = usize::from(done.path.0);
        if let Some(tally) = self.stats.paths.get_mut(path) {
            tally.errors += 1;
        }
        let paths = &self.task.paths;
        self.stats.bad(|| {
            let path = paths.get(path).map_or("no path", |path| path);
            format!("{} over {path}: {}", words(step), done.outcome)
        });
    }

    fn span(&self, slot: u32, len: u32) -> Span {
        let stride = u64::from(buffer_bytes(self.task.rules.shape.sizes.largest()));
        let at = u64::from(slot) * stride;
        Span { at, len }
    }

    /// Data that does not compress, for writes that carry no stamps.
    fn fill(&self, memory: &mut dyn Memory) {
        let rules = &self.task.rules;
        if rules.verify.is_some() || rules.shape.read_percent == 100 {
            return;
        }
        let mut rng =
            Xoshiro256PlusPlus::seed_from_u64(self.task.jobs.first().map_or(0, |j| j.seed));
        let length = rules.shape.sizes.largest();
        for slot in 0..self.slots.len() {
            let span = self.span(slot as u32, length);
            for chunk in memory.bytes_mut(span).chunks_exact_mut(8) {
                chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
        }
    }
}

/// Bytes of arena of one I/O whose size is at most `largest`: whole pages.
pub fn buffer_bytes(largest: u32) -> u32 {
    largest.next_multiple_of(4096)
}

fn words(step: Step) -> String {
    let what = if step.write { "write" } else { "read" };
    format!(
        "{what} of {} at byte {}",
        format_bytes(step.length.into()),
        step.offset
    )
}

#[cfg(test)]
mod tests;
