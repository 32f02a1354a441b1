//! Early end of a task: by its user, by loss of its volume, or because I/O goes unanswered.
//!
//! # Contract
//! I/O in flight is waited for, with a bound: then it counts as failed, and the task is over. The
//! owner of the buffers has to know that they may still be written to.
use super::{Device, Phase, Worker};
use engine::host::IoDone;
use multipath::Outcome;
use terminal::units::{format_count, format_ns};

/// How long I/Os may take that are under way when the user wants to end, ns.
const INTERRUPTED_NS: u64 = 2_000_000_000;
/// Bound after a loss of the volume: longer than the end of a lost server's commands is waited for.
const LOST_NS: u64 = 10_000_000_000;

/// Until when what is under way is waited for.
#[derive(Clone, Copy)]
pub(super) struct Parting {
    for_ns: u64,
    pub until_ns: u64,
}

impl Worker {
    /// The owner wants it to end now: what is outstanding is waited for, 2 s at most, and nothing
    /// is read back.
    pub fn interrupt(&mut self, device: &impl Device, now_ns: u64) {
        self.interrupted = true;
        self.part_within(INTERRUPTED_NS, now_ns);
        self.stop_issuing(device, now_ns);
    }

    /// The volume is lost.
    pub fn fail(&mut self, why: String, device: &impl Device, now_ns: u64) {
        self.failed.get_or_insert(why);
        self.part_within(LOST_NS, now_ns);
        self.stop_issuing(device, now_ns);
    }

    fn part_within(&mut self, for_ns: u64, now_ns: u64) {
        let until_ns = now_ns.saturating_add(for_ns);
        self.parting.get_or_insert(Parting { for_ns, until_ns });
    }

    /// Nothing that is under way will be answered any more: it has failed, and everything is over.
    /// `why` names what does not answer; it is the reason unless there is one.
    pub fn abandon(&mut self, why: String, device: &impl Device, now_ns: u64) {
        self.fail(why, device, now_ns);
        let count = core::mem::take(&mut self.outstanding);
        self.stats.unanswered(count.into());
        self.phase = Phase::Over;
    }

    /// Whether an I/O has ended because its path's queue is lost, which `is_lost` says by the
    /// path's URI: it has no connection that the engine could see the end of. The outcome alone
    /// does not say it: a server that is well answers so while the engine behind its namespace is
    /// away.
    pub fn lost_queue(&self, done: &IoDone, is_lost: impl Fn(&str) -> bool) -> Option<String> {
        let path = self.task.paths.get(usize::from(done.path.0))?;
        let is_lost = done.outcome == Outcome::PathError && is_lost(path);
        is_lost.then(|| {
            format!(
                "path {path}: lost: its server has ended or has given up this queue (what it said \
                 when it ended tells why)"
            )
        })
    }

    /// Whether it was told to end before its time.
    pub fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// I/Os under way.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Waits no longer for what is not answered.
    pub(super) fn part(&mut self, device: &impl Device, now_ns: u64) {
        let Some(it) = self.parting.filter(|it| it.until_ns <= now_ns) else {
            return;
        };
        if self.outstanding == 0 || self.phase == Phase::Over {
            return;
        }
        let why = format!(
            "ended early: {} I/Os have not been answered for {} ({}); see why it hangs",
            format_count(self.outstanding.into()),
            format_ns(it.for_ns as f64),
            self.task.paths.join(", ")
        );
        self.abandon(why, device, now_ns);
    }
}
