//! One job: a pattern over its own part of the volume, its free buffers, its rate, its stamps.
use super::pace::Pace;
use super::pattern::{Pattern, Region, Shape, Step};
use super::verify::{Expected, Mismatch, Stamps, Table};
use engine::Span;
use engine::machine::Memory;

/// Parameters that all jobs of a load share.
#[derive(Clone, Debug)]
pub struct JobRules {
    /// The I/Os.
    pub shape: Shape,
    /// Most outstanding I/Os of one job.
    pub iodepth: u32,
    /// End when as many bytes were issued as the job's region has.
    pub once: bool,
    /// I/Os per second of one job; 0 = no limit.
    pub rate_iops: u64,
    /// Bytes per second of one job; 0 = no limit.
    pub rate_bytes: u64,
    /// Stamp and check blocks.
    pub verify: Option<Verify>,
}

/// How data is checked.
#[derive(Clone, Copy, Debug)]
pub struct Verify {
    /// Of this run.
    pub stamps: Stamps,
    /// Bytes of a stamped block, 512…4096.
    pub block: u32,
}

/// Where one job works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// Its part of the volume.
    pub region: Region,
    /// Of its pattern.
    pub seed: u64,
}

/// A job at work.
pub(super) struct Job {
    pattern: Pattern,
    region: Region,
    verify: Option<(Verify, Table)>,
    /// An I/O that could not be issued yet.
    pending: Option<Step>,
    free: Vec<u32>,
    iops: Pace,
    bytes: Pace,
    ended: bool,
    longest: u32,
    /// How far reading back has come.
    cursor: u64,
}

/// Why a job issues nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Until one of its I/Os has ended.
    Completion,
    /// Until this time, ns.
    Time(u64),
    /// For ever: everything was issued.
    Ended,
}

impl Job {
    /// A job with buffers `first_slot`…`first_slot + iodepth`.
    pub(super) fn new(plan: &JobPlan, rules: &JobRules, first_slot: u32, now_ns: u64) -> Self {
        let table = rules
            .verify
            .map(|verify| (verify, Table::new(plan.region, verify.block)));
        Self {
            pattern: Pattern::new(rules.shape.clone(), plan.region, rules.once, plan.seed),
            region: plan.region,
            verify: table,
            pending: None,
            free: (first_slot..first_slot + rules.iodepth).rev().collect(),
            iops: Pace::new(rules.rate_iops, now_ns),
            bytes: Pace::new(rules.rate_bytes, now_ns),
            ended: false,
            longest: rules.shape.sizes.largest(),
            cursor: plan.region.begin,
        }
    }

    /// The next I/O and the buffer for it. Its blocks are claimed; [`Job::put_back`] if it can't be
    /// submitted, else [`Job::ended_io`] when it has ended.
    pub(super) fn next(&mut self, now_ns: u64) -> Result<(Step, u32), Pause> {
        if self.ended {
            return Err(Pause::Ended);
        }
        let due_ns = self.iops.due_ns().max(self.bytes.due_ns());
        if due_ns > now_ns {
            return Err(Pause::Time(due_ns));
        }
        let Some(&slot) = self.free.last() else {
            return Err(Pause::Completion);
        };
        let Some(step) = self.pending.take().or_else(|| self.pattern.next_step()) else {
            self.ended = true;
            return Err(Pause::Ended);
        };
        if !self.claim(step) {
            self.pending = Some(step);
            return Err(Pause::Completion);
        }
        self.free.pop();
        Ok((step, slot))
    }

    /// The next read of what was written, in the order of addresses; [`Pause::Ended`] after the
    /// last.
    pub(super) fn next_read_back(&mut self) -> Result<(Step, u32), Pause> {
        let Some((_, table)) = &self.verify else {
            return Err(Pause::Ended);
        };
        if self.cursor >= self.region.end {
            return Err(Pause::Ended);
        }
        let Some((offset, length)) = table.next_written(self.cursor, self.longest) else {
            self.cursor = self.region.end;
            return Err(Pause::Ended);
        };
        let step = Step {
            write: false,
            offset,
            length,
        };
        let Some(&slot) = self.free.last() else {
            return Err(Pause::Completion);
        };
        if !self.claim(step) {
            return Err(Pause::Completion);
        }
        self.free.pop();
        self.cursor = offset + u64::from(length);
        Ok((step, slot))
    }

    /// The I/O was taken: it counts against the rates.
    pub(super) fn charge(&mut self, step: Step, now_ns: u64) {
        self.iops.take(1, now_ns);
        self.bytes.take(step.length.into(), now_ns);
    }

    /// The I/O was not taken: it comes again.
    pub(super) fn put_back(&mut self, step: Step, slot: u32, read_back: bool) {
        self.free.push(slot);
        self.release(step);
        if read_back {
            self.cursor = step.offset;
        } else {
            self.pending = Some(step);
        }
    }

    /// Stamps the blocks of a write; the sequence number they got (0 where nothing is checked).
    pub(super) fn stamp(&mut self, step: Step, span: Span, memory: &mut dyn Memory) -> u32 {
        let Some((verify, table)) = &mut self.verify else {
            return 0;
        };
        let sequence = table.next_sequence();
        let blocks = memory
            .bytes_mut(span)
            .chunks_exact_mut(verify.block as usize);
        for (address, block) in (step.offset..).step_by(verify.block as usize).zip(blocks) {
            verify.stamps.stamp(block, address, sequence);
        }
        sequence
    }

    /// An I/O has ended: its blocks are free, and its buffer is after [`Job::free`].
    pub(super) fn ended_io(&mut self, step: Step, sequence: u32, good: bool) {
        match &mut self.verify {
            Some((_, table)) if step.write => {
                table.written(step.offset, step.length, sequence, good);
            }
            _ => self.release(step),
        }
    }

    /// A buffer can be used again.
    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Checks what a read found; bytes that were right, and the first block that was not.
    pub(super) fn check(
        &self,
        step: Step,
        bytes: &[u8],
        any: bool,
    ) -> (u64, Option<(u64, Mismatch)>) {
        let Some((verify, table)) = &self.verify else {
            return (0, None);
        };
        let (mut right, mut wrong) = (0, None);
        let blocks = bytes.chunks_exact(verify.block as usize);
        for (address, block) in (step.offset..).step_by(verify.block as usize).zip(blocks) {
            let fallback = any.then_some(Expected::AnyRun);
            let Some(expected) = table.expected(address).or(fallback) else {
                continue;
            };
            match verify.stamps.check(block, address, expected) {
                Ok(()) => right += u64::from(verify.block),
                Err(mismatch) if wrong.is_none() => wrong = Some((address, mismatch)),
                Err(_) => {}
            }
        }
        (right, wrong)
    }

    fn claim(&mut self, step: Step) -> bool {
        match &mut self.verify {
            Some((_, table)) => table.claim(step.offset, step.length),
            None => true,
        }
    }

    fn release(&mut self, step: Step) {
        if let Some((_, table)) = &mut self.verify {
            table.release(step.offset, step.length);
        }
    }
}
