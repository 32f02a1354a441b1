//! State of a check: what was compared, what it has found, and the rests of its jobs.
//!
//! * none, running, paused ([`Checks::is_running`])
//!
//! # Contract
//! A finding of a job whose check has ended is dropped.
use super::legs::Legs;
use super::outputs::Outputs;
use super::{CheckReport, News};
use block::{Outcome, Range};

/// A check that is under way.
#[derive(Clone, Copy, Debug)]
struct Check {
    repair: bool,
    paused: bool,
    /// The next region.
    next: u64,
    /// Legs that were in sync when it began to compare.
    legs: Option<Legs>,
    /// Legs that have other data in the piece of a job, by job.
    differ: [Legs; 16],
    /// Rests of jobs, by job.
    again: [Option<Range>; 16],
    report: CheckReport,
}

/// Next part of a check.
pub(super) enum Part {
    Region(u64),
    /// The rest of an earlier job.
    Rest(Range),
}

/// The check that is under way, and the report of the last one.
#[derive(Debug, Default)]
pub(super) struct Checks {
    check: Option<Check>,
    report: CheckReport,
}

impl Checks {
    /// Begins one; an earlier one ends without a report.
    pub fn begin(&mut self, repair: bool, from: Option<u8>) {
        self.check = Some(Check {
            repair,
            paused: false,
            next: 0,
            legs: None,
            differ: [Legs::default(); 16],
            again: [None; 16],
            report: CheckReport {
                from,
                ..CheckReport::default()
            },
        });
    }

    /// Ends it, if there is one.
    pub fn end(&mut self, out: &mut Outputs) {
        if let Some(check) = self.check.take() {
            self.report = check.report;
            out.news(News::Checked);
        }
    }

    /// Pauses it, or lets it go on.
    pub fn pause(&mut self, paused: bool) {
        if let Some(check) = &mut self.check {
            check.paused = paused;
        }
    }

    /// Whether there is one, running or paused.
    pub fn is_begun(&self) -> bool {
        self.check.is_some()
    }

    /// Whether one is running.
    pub fn is_running(&self) -> bool {
        self.check.is_some_and(|check| !check.paused)
    }

    /// Returns the findings so far, or those of the last one.
    pub fn report(&self) -> CheckReport {
        self.check.map_or(self.report, |check| CheckReport {
            paused: check.paused,
            ..check.report
        })
    }

    /// The leg that the copies are compared with, where one was named.
    pub fn reference(&self) -> Legs {
        let from = self.check.and_then(|check| check.report.from);
        from.map(Legs::one).unwrap_or_default()
    }

    /// A leg has left: a repair from it ends.
    pub fn leg_left(&mut self, leg: u8, out: &mut Outputs) {
        if let Some(check) = &mut self.check {
            check.report.changed |= check.legs.is_some_and(|legs| legs.has(leg));
        }
        if self.reference().has(leg) {
            self.end(out);
        }
    }

    /// Returns the next part for a job: first the rest of the one before it, so that nothing else
    /// comes in its place. Ends the check behind the last of so many regions, when no job has a
    /// part any more (`is_busy`), and where no two legs are in sync.
    pub fn next(
        &mut self,
        job: u8,
        regions: u64,
        in_sync: Legs,
        is_busy: bool,
        out: &mut Outputs,
    ) -> Option<Part> {
        let check = self.check.as_mut().filter(|check| !check.paused)?;
        if in_sync.count() < 2 {
            check.report.alone = true;
            self.end(out);
            return None;
        }
        let legs = *check.legs.get_or_insert(in_sync);
        let own = check.again[usize::from(job)].take();
        if let Some(rest) = own.or_else(|| check.again.iter_mut().find_map(Option::take)) {
            return Some(Part::Rest(rest));
        }
        if check.next >= regions {
            if !is_busy {
                check.report.complete = true;
                check.report.changed |= in_sync != legs;
                self.end(out);
            }
            return None;
        }
        check.next += 1;
        Some(Part::Region(check.next - 1))
    }

    /// Leaves the rest of a job to another one.
    pub fn leave_rest(&mut self, job: u8, range: Range) {
        if let Some(check) = self.check.as_mut().filter(|_| range.start < range.end) {
            check.differ[usize::from(job)] = Legs::default();
            check.again[usize::from(job)] = Some(range);
        }
    }

    /// A range was compared, if two legs are in sync.
    pub fn add_compared(&mut self, range: Range, in_sync: Legs) {
        if let Some(check) = self.check.as_mut().filter(|_| in_sync.count() > 1) {
            check.report.bytes += range.end - range.start;
        }
    }

    /// No leg in sync can read a piece. Returns whether that is repaired where another leg has it.
    pub fn add_unreadable(&mut self) -> bool {
        let Some(check) = &mut self.check else {
            return false; // it has ended meanwhile
        };
        check.report.unreadable += 1;
        check.repair
    }

    /// These legs could not write the piece of a job: they are not compared, and get it if the
    /// check repairs.
    pub fn skip(&mut self, job: u8, legs: Legs) {
        if let Some(check) = &mut self.check {
            let differ = &mut check.differ[usize::from(job)];
            *differ = differ.with(legs);
        }
        self.add_skipped(legs);
    }

    /// These legs could not write a piece.
    pub fn add_skipped(&mut self, legs: Legs) {
        if let Some(check) = &mut self.check {
            check.report.skipped += u64::from(legs.count());
        }
    }

    /// A leg was compared with the piece of a job.
    pub fn add_result(&mut self, job: u8, leg: u8, differs: Result<Option<Range>, Outcome>) {
        let Some(check) = &mut self.check else {
            return; // it has ended meanwhile
        };
        let report = &mut check.report;
        match differs {
            Ok(None) => return,
            Ok(Some(range)) => {
                let first = report.first.iter_mut().find(|it| it.is_none());
                if let Some(first) = first {
                    *first = Some((leg, range.start, range.end));
                }
                report.differences += 1;
            }
            Err(outcome) => {
                report.unreadable += 1;
                if outcome != Outcome::MediaError {
                    return;
                }
            }
        }
        check.differ[usize::from(job)].add(leg);
    }

    /// All legs were compared with the piece of a job. Returns those that get it.
    pub fn take_targets(&mut self, job: u8) -> Legs {
        let Some(check) = &mut self.check else {
            return Legs::default(); // it has ended meanwhile
        };
        let differ = core::mem::take(&mut check.differ[usize::from(job)]);
        match check.repair {
            true => differ,
            false => Legs::default(),
        }
    }

    /// A piece was rewritten on these legs.
    pub fn add_repaired(&mut self, legs: Legs) {
        if let Some(check) = &mut self.check {
            check.report.repaired += u64::from(legs.count());
        }
    }
}
