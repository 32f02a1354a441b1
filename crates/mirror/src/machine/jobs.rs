//! Copy jobs: which piece each has, how far it is, and which legs still have its buffer.
//!
//! * `Lock`: the piece waits for its turn; `Read`, `Compare`, `Write`: a leg does that; `Over`: the
//!   job has ended, but a leg that has left still has its buffer
//!
//! # Contract
//! [`Jobs::set_step`] asserts each edge but the one to `Over` ([`Jobs::end`]), from which there is
//! none. A job is named by its buffer. `copy` decides what is copied, and from which leg.
//!
//! # Limits
//! [`REPAIRS_MAX`] ranges wait to be repaired; further ones are found by the next read that fails.
use super::Config;
use super::legs::{Legs, Round};
use super::outputs::Outputs;
use super::pace::Pace;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::Range;
use block::order::Ticket as Place;

/// Ranges that wait to be repaired.
const REPAIRS_MAX: usize = 64;
/// Pieces that a copy is cut into at first; blocks are next.
pub(super) const PIECE_MIN: u64 = 4096;
/// So many of these are cut into blocks of one job: where more than that is bad, each block takes
/// as long as a medium needs to give up.
const CUTS_MAX: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Resync(u64),
    Rebuild(u64),
    /// On this leg.
    Repair(u8),
    Check,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Lock,
    Read,
    Compare,
    Write,
    Over,
}

/// A copy job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub kind: Kind,
    pub range: Range,
    pub piece: Range,
    /// Most bytes of its next piece: fewer than a buffer has where somewhere no leg can read all of
    /// a piece, or be written all of it.
    pub unit: u64,
    /// How many pieces were cut into blocks.
    cuts: u8,
    step: Step,
    /// The leg that is reading it.
    pub asked: u8,
    /// Legs that have left, and still have its buffer (T10).
    pub late: Legs,
    /// Legs that could not read the piece.
    pub tried: Legs,
    /// The leg that could.
    pub source: u8,
    /// No leg could, and some for another reason than the medium.
    pub unreachable: bool,
    /// The legs that are rebuilt.
    pub targets: Legs,
    pub round: Round,
    /// Something of it is lost, or was written.
    pub lossy: bool,
    pub wrote: bool,
    /// It is repeated from the beginning.
    pub anew: bool,
}

impl Job {
    /// How far it is.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Whether its piece is being read from a leg.
    pub fn is_read_by(&self, leg: u8) -> bool {
        self.step == Step::Read && self.asked == leg
    }

    /// Bytes of the pieces that its piece is cut into; `None`: it is not.
    pub fn smaller_unit(&self, block_bytes: u64) -> Option<u64> {
        let bytes = self.piece.end - self.piece.start;
        match bytes > PIECE_MIN.max(block_bytes) {
            true => Some(PIECE_MIN.max(block_bytes)),
            false => (bytes > block_bytes && self.cuts < CUTS_MAX).then_some(block_bytes),
        }
    }

    /// Its piece is copied once more, in smaller ones of `unit` bytes.
    pub fn cut(&mut self, unit: u64) {
        self.unit = unit;
        self.cuts += u8::from(unit < PIECE_MIN);
        self.piece.end = self.piece.start;
    }

    /// Whether smaller pieces may be read where its one is not: of blocks only where several legs
    /// were asked, which may have bad ones at other places. Another job repairs the findings of a
    /// check.
    pub fn is_worth_cutting(&self) -> bool {
        let several = self.tried.count() > 1 && self.kind != Kind::Check;
        several || self.piece.end - self.piece.start > PIECE_MIN
    }
}

/// All copy jobs, by buffer, and ranges that are to be repaired.
#[derive(Debug)]
pub(super) struct Jobs {
    jobs: Vec<Option<Job>>,
    /// By job: the place of its piece in the order of changes.
    places: Vec<Option<Place>>,
    /// Ranges of legs that are to be rewritten from another leg, oldest first.
    repairs: VecDeque<(u8, Range)>,
    /// Nothing is to be copied, until something wakes it.
    pub idle: bool,
    /// No copy begins before that, ns.
    pub pause_ns: u64,
    pub pace: Pace,
}

impl Jobs {
    /// None yet; as many at a time as `config` has.
    pub fn new(config: &Config, now_ns: u64) -> Self {
        let jobs = usize::from(config.copies);
        Self {
            jobs: alloc::vec![None; jobs],
            places: alloc::vec![None; jobs],
            repairs: VecDeque::with_capacity(REPAIRS_MAX),
            idle: false,
            pause_ns: 0,
            pace: Pace::new(config.speed, now_ns),
        }
    }

    /// Numbers of all jobs that there may be.
    pub fn numbers(&self) -> core::ops::Range<u8> {
        0..self.jobs.len() as u8
    }

    /// Returns the job that has a buffer.
    pub fn get(&self, number: u8) -> Option<&Job> {
        self.jobs.get(usize::from(number))?.as_ref()
    }

    /// As [`Self::get`], to change it.
    pub fn get_mut(&mut self, number: u8) -> Option<&mut Job> {
        self.jobs.get_mut(usize::from(number))?.as_mut()
    }

    /// Returns a job under way.
    ///
    /// # Panics
    /// If there is none of this number.
    pub fn expect(&mut self, number: u8) -> &mut Job {
        let job = self.jobs[usize::from(number)].as_mut();
        job.unwrap_or_else(|| unreachable!("copy job {number} goes on after its end"))
    }

    /// Returns those that go on.
    pub fn under_way(&self) -> impl Iterator<Item = &Job> {
        let jobs = self.jobs.iter().flatten();
        jobs.filter(|job| job.step != Step::Over)
    }

    /// Whether a job whose pace is limited has a buffer.
    pub fn is_any_paced(&self) -> bool {
        let mut jobs = self.jobs.iter().flatten();
        jobs.any(|job| !matches!(job.kind, Kind::Repair(_)))
    }

    /// Whether no job has a buffer.
    pub fn is_empty(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }

    /// Returns how many have a buffer.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.jobs.iter().flatten().count()
    }

    /// The number of the next job. One buffer stays free until a leg that has left has others: it
    /// may have all that were in use, and reads that wait for a copy go on with the last one.
    pub fn free(&self) -> Option<u8> {
        let mut free = self.numbers().filter(|&number| self.get(number).is_none());
        let first = free.next()?;
        let is_over = |job: &Job| job.step == Step::Over;
        let kept = self.jobs.len() > 1 && !self.jobs.iter().flatten().any(is_over);
        (!kept || free.next().is_some()).then_some(first)
    }

    /// Begins a job, in pieces of `unit` bytes.
    pub fn begin(&mut self, number: u8, kind: Kind, range: Range, targets: Legs, unit: u64) {
        self.jobs[usize::from(number)] = Some(Job {
            kind,
            range,
            piece: Range::new(range.start, 0),
            unit,
            cuts: 0,
            step: Step::Lock,
            asked: 0,
            late: Legs::default(),
            tried: Legs::default(),
            source: 0,
            unreachable: false,
            targets,
            round: Round::default(),
            lossy: false,
            wrote: false,
            anew: false,
        });
    }

    /// Changes the step of a job.
    ///
    /// # Panics
    /// If there is none, or no such edge.
    pub fn set_step(&mut self, number: u8, next: Step) {
        use Step::*;
        let job = self.expect(number);
        let is_edge = matches!(
            (job.step, next),
            (Lock, Lock | Read)
                | (Read, Lock | Read | Compare | Write)
                | (Compare, Lock | Compare | Write)
                | (Write, Lock)
        );
        assert!(is_edge, "copy job {number} from {:?} to {next:?}", job.step);
        job.step = next;
    }

    /// Ends a job; its buffer is free when no leg has it any more.
    pub fn end(&mut self, number: u8, out: &mut Outputs) {
        let job = &mut self.jobs[usize::from(number)];
        match job {
            Some(job) if !job.late.is_empty() => job.step = Step::Over,
            _ => *job = None,
        }
        out.wake();
    }

    /// Whether that was the end of a ticket that a leg had when it left. Then the leg has the
    /// buffer no more.
    pub fn take_late(&mut self, number: u8, leg: u8, out: &mut Outputs) -> bool {
        let Some(job) = self.get_mut(number).filter(|job| job.late.has(leg)) else {
            return false;
        };
        job.late.remove(leg);
        if job.step == Step::Over {
            self.end(number, out);
        }
        true
    }

    /// Whether a job resyncs or rebuilds the region.
    pub fn has_region(&self, region: u64) -> bool {
        let mut kinds = self.under_way().map(|job| job.kind);
        kinds.any(|kind| matches!(kind, Kind::Resync(it) | Kind::Rebuild(it) if it == region))
    }

    /// All jobs are repeated from the beginning.
    pub fn restart(&mut self) {
        self.jobs
            .iter_mut()
            .flatten()
            .for_each(|job| job.anew = true);
    }

    /// A leg has left: it is not rebuilt any more.
    pub fn drop_target(&mut self, leg: u8) {
        let jobs = self.jobs.iter_mut().flatten();
        jobs.for_each(|job| job.targets.remove(leg));
    }

    /// Sets the place of a job's piece.
    pub fn set_place(&mut self, number: u8, place: Place) {
        self.places[usize::from(number)] = Some(place);
    }

    /// Returns the place of a job's piece, if it has one.
    pub fn place(&self, number: u8) -> Option<Place> {
        self.places[usize::from(number)]
    }

    /// Takes the place of a job's piece.
    pub fn take_place(&mut self, number: u8) -> Option<Place> {
        self.places[usize::from(number)].take()
    }

    /// Queues a range that a leg could not read for repair. Returns whether it was not queued, and
    /// there is room.
    pub fn queue_repair(&mut self, leg: u8, range: Range) -> bool {
        let is_new = !self.repairs.contains(&(leg, range)) && self.repairs.len() < REPAIRS_MAX;
        if is_new {
            self.repairs.push_back((leg, range));
        }
        is_new
    }

    /// Takes the next repair out of the queue.
    pub fn next_repair(&mut self) -> Option<(u8, Range)> {
        self.repairs.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "from Over to Lock")]
    fn job_that_goes_on_after_its_end_panics() {
        let mut jobs = Jobs::new(&Config::new(1), 0);
        jobs.begin(0, Kind::Check, Range::new(0, 4096), Legs::default(), 4096);
        jobs.expect(0).late.add(1);
        jobs.end(0, &mut Outputs::new());
        assert!(jobs.under_way().next().is_none() && !jobs.is_empty());
        jobs.set_step(0, Step::Lock);
    }
}
