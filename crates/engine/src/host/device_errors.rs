//! Errors that a path answers with and that are not the path's by their names: reported now and
//! then, kept for the health of the volume, compared with what other paths answer.
//!
//! An error that calls itself passing (busy, an internal error) is repeated where it was refused,
//! so it moves no I/O by itself. Where another path of the volume answers at most a quarter of that
//! share in the same time, it is this path that does badly after all, and it is put on probation.
//! Errors about the data are the same on every path to it (T2), and are not compared.
//!
//! An I/O that our own system had no room for says nothing of a path, and is not compared (T6). An
//! I/O that is repeated on a path counts once.
//!
//! # Limits
//! A path is compared with those that ended I/O on this core: of paths that a policy does not use
//! nothing is known.
use super::io::VolumeIo;
use super::io_table::AttemptEnd;
use super::path::Path;
use super::report;
use super::volumes::{LegRole, Volume};
use crate::limits::{
    DEVICE_ERRORS_COMPARED_NS, DEVICE_ERRORS_EXPECTED, DEVICE_ERRORS_MIN, DEVICE_ERRORS_RECENT_NS,
};
use crate::seldom::Seldom;
use multipath::Outcome;
use policy::PathIndex;

/// Device errors of one path on this core. Arrays: what was repeated, and what failed for good.
#[derive(Debug)]
pub(super) struct DeviceErrors {
    lines: [Seldom; 2],
    /// In the present period, since `period_ns`, and in the one before.
    recent: [u32; 2],
    before: [u32; 2],
    period_ns: u64,
    /// Passing ones, and I/Os completed well, since `from_ns`.
    passing: u64,
    /// I/Os that had completed well by then.
    done_before: u64,
    from_ns: u64,
}

impl DeviceErrors {
    pub(super) fn new() -> Self {
        Self {
            lines: [Seldom::new(1), Seldom::new(1)],
            recent: [0; 2],
            before: [0; 2],
            period_ns: 0,
            passing: 0,
            done_before: 0,
            from_ns: 0,
        }
    }

    fn note(&mut self, failed: bool, now_ns: u64) {
        if now_ns.saturating_sub(self.period_ns) >= DEVICE_ERRORS_RECENT_NS {
            self.before = self.recent(now_ns);
            self.recent = [0; 2];
            self.period_ns = now_ns;
        }
        let count = &mut self.recent[usize::from(failed)];
        *count = count.saturating_add(1);
    }

    /// In the last period or two.
    pub(super) fn recent(&self, now_ns: u64) -> [u32; 2] {
        match now_ns.saturating_sub(self.period_ns) / DEVICE_ERRORS_RECENT_NS {
            0 => core::array::from_fn(|at| self.recent[at].saturating_add(self.before[at])),
            1 => self.recent,
            _ => [0; 2],
        }
    }
}

/// Of the I/O of one path in the time that is compared: passing errors, and what it did well.
#[derive(Clone, Copy, Debug)]
struct Share {
    errors: u64,
    done: u64,
}

impl Share {
    fn total(self) -> u128 {
        u128::from(self.errors) + u128::from(self.done)
    }

    /// Whether it is more than so many errors of a thousand, and enough of them.
    fn is_many(self, permille: u16) -> bool {
        let errors = u128::from(self.errors);
        self.errors >= DEVICE_ERRORS_MIN && errors * 1000 > u128::from(permille) * self.total()
    }

    /// Whether another path does better: at most a quarter of this share, and of as many I/Os as
    /// would have met [`DEVICE_ERRORS_EXPECTED`] of the errors if it was the same there.
    fn is_worse_than(self, other: Self) -> bool {
        let expected = u128::from(self.errors) * other.total();
        let enough = expected >= u128::from(DEVICE_ERRORS_EXPECTED) * self.total();
        let quarter = u128::from(other.errors) * self.total() * 4 <= expected;
        enough && quarter && other.done >= DEVICE_ERRORS_MIN
    }
}

/// Passing errors of a path since it is compared, and I/Os that it completed well.
fn compared(path: &Path) -> Share {
    let done: u64 = path.counters.ios.iter().sum();
    let errors = &path.errors.device;
    Share {
        errors: errors.passing,
        done: done.saturating_sub(errors.done_before),
    }
}

impl Volume {
    /// Earlier answers of its paths are not compared any more: also where one has come back, for
    /// the others had I/O meanwhile that it could not have.
    pub(super) fn compare_anew(&mut self, now_ns: u64) {
        for path in self.paths.iter_mut() {
            path.errors.device.passing = 0;
            path.errors.device.done_before = path.counters.ios.iter().sum();
            path.errors.device.from_ns = now_ns.max(1);
        }
    }
}

impl VolumeIo<'_> {
    /// A path has answered the I/O in slot `index` with an error of what is behind it; `failed`:
    /// the I/O ends with it.
    #[cold]
    pub(super) fn device_error(
        &mut self,
        at: PathIndex,
        index: u32,
        outcome: Outcome,
        failed: bool,
        now_ns: u64,
    ) {
        let history = &self.on.ios.get(index).history;
        // Once for each path: who was busy to the end of all repeats is not repeated elsewhere.
        let once = history.retries == 0 || history.refused != 0;
        if matches!(outcome, Outcome::Busy { .. }) && once && history.attempt != AttemptEnd::NoRoom
        {
            self.compare_passing_errors(at, now_ns);
        }
        if self.volume.leg != LegRole::None {
            return; // its mirror judges that
        }
        let errors = &mut self.volume.paths[at].errors.device;
        errors.note(failed, now_ns);
        let Some(count) = errors.lines[usize::from(failed)].one_more(now_ns) else {
            return; // a line was written lately
        };
        let (path, mut on) = self.path(at);
        on.report_trouble(
            path,
            &report::device_error(&path.kind, outcome, count, failed),
        );
    }

    /// Puts a path on probation that answers with passing errors while another one of its volume
    /// does not.
    fn compare_passing_errors(&mut self, at: PathIndex, now_ns: u64) {
        let from_ns = self.volume.paths[at].errors.device.from_ns;
        if now_ns.saturating_sub(from_ns) >= DEVICE_ERRORS_COMPARED_NS || from_ns == 0 {
            self.volume.compare_anew(now_ns);
        }
        self.volume.paths[at].errors.device.passing += 1;
        let share = compared(&self.volume.paths[at]);
        let permille = self.volume.recovery.health.errors_permille;
        if permille == 0 || !share.is_many(permille) {
            return; // too few to say something
        }
        let others = self.volume.others(at);
        let better = others.filter(|path| share.is_worse_than(compared(path)));
        let better = better.fold(0, |bits, path| bits | 1_u64 << path.index.0);
        if let Some(why) = self.volume.head.does_worse(at, better, now_ns) {
            self.volume.compare_anew(now_ns);
            self.on_probation(at, why, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(errors: u64, total: u64) -> Share {
        let done = total - errors;
        Share { errors, done }
    }

    #[test]
    fn small_sample_shows_no_better_path() {
        for (of, other, want) in [
            // Of twenty I/Os it would have met none of these either.
            (share(16, 800), share(0, 20), false),
            (share(16, 800), share(0, 399), false),
            (share(16, 800), share(0, 400), true),
            (share(16, 800), share(2, 400), true),
            (share(16, 800), share(3, 400), false),
            (share(16, 16), share(0, 15), false),
            (share(16, 16), share(0, 16), true),
            (share(u64::MAX / 2, u64::MAX), share(0, u64::MAX), true),
        ] {
            assert_eq!(of.is_worse_than(other), want, "{of:?} {other:?}");
        }
        assert!(share(16, 800).is_many(10) && !share(16, 1600).is_many(10));
        assert!(!share(15, 15).is_many(10));
    }
}
