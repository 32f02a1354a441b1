//! Exclusively locked files that another process truncated all the same.
//!
//! # Contract
//! Data behind the end of a file that was truncated is lost. A write there would make the file long
//! again, and the hole before it would read as good zeroes. So an exclusive opener notes how long
//! the file is, and where its end was when it was seen to be shorter. From then on nothing is read
//! or written behind that, however long the file is by then, until the file is accepted as it is
//! ([`FileDevice::take_as_it_is`]). Its size is checked no more often than every `LOOK_NS`, by its
//! requests, and once a second besides (`device/cut.rs`; not where the file system may block the
//! reactor). Nothing waits for the check: a change that the file system has not noticed itself yet
//! is not asked of a server. All cores know how far all cores have written: an end that a write may
//! have put there is no truncation.
//!
//! # Limits
//! A write within `LOOK_NS` after the truncation may make the file longer: that shows at the next
//! check, and where the end was is not known any more, so nothing of the file is trusted then.
//! Until then a read of the hole finds zeroes. A file that is cut and made as long again between
//! two checks isn't noticed; nor is data that other processes write into it.
use crate::FileDevice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often a file's size is looked at, ns.
pub(crate) const LOOK_NS: u64 = 1_000_000;

/// Known lengths of a file. Cores may share it; each of its numbers stands for itself.
#[derive(Debug)]
pub(crate) struct TruncationGuard {
    /// Writes of all cores.
    pub written: Written,
    /// As it was seen at its longest.
    longest: AtomicU64,
    /// Where its end was when it was shorter; `u64::MAX`: it never was.
    end: AtomicU64,
    told: AtomicBool,
}

/// When a reactor looked last, and where the end was that it told its machine of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    at_ns: u64,
    end: Option<u64>,
}

/// Writes to a file by any core: how far they reached since a look before which none was in flight,
/// how many have begun (modulo 64), and how many are in flight. One number, so that a look forgets
/// only what it has seen.
#[derive(Debug, Default)]
pub(crate) struct Written(AtomicU64);

/// State that [`Written`] holds. `reach` is in [`REACH_UNIT`]s.
#[derive(Clone, Copy)]
struct Writes {
    reach: u64,
    begun: u64,
    in_flight: u64,
}

const REACH_UNIT: u64 = 4096;
/// Also of all that lies farther.
const REACH_MAX: u64 = (1 << 36) - 1;
const BEGUN_MAX: u64 = (1 << 6) - 1;
const IN_FLIGHT_MAX: u64 = (1 << 22) - 1;

impl Writes {
    fn of(number: u64) -> Self {
        Self {
            reach: number >> 28,
            begun: number >> 22 & BEGUN_MAX,
            in_flight: number & IN_FLIGHT_MAX,
        }
    }

    fn number(self) -> u64 {
        self.reach << 28 | self.begun << 22 | self.in_flight
    }
}

impl Written {
    fn update(&self, change: impl Fn(Writes) -> Writes) {
        let change = |number| Some(change(Writes::of(number)).number());
        // It always succeeds.
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// A write up to `to` begins.
    fn begin(&self, to: u64) {
        self.update(|it| {
            assert!(it.in_flight < IN_FLIGHT_MAX, "too many writes in flight");
            Writes {
                reach: it.reach.max(to.div_ceil(REACH_UNIT).min(REACH_MAX)),
                begun: (it.begun + 1) & BEGUN_MAX,
                in_flight: it.in_flight + 1,
            }
        });
    }

    /// A write has ended.
    pub fn end(&self) {
        self.update(|it| {
            // An end too many would hide a truncation (T50).
            assert!(it.in_flight > 0, "a write ends that has not begun");
            Writes {
                in_flight: it.in_flight - 1,
                ..it
            }
        });
    }

    /// Where a write may have put the end of the file, at most.
    fn reach(&self) -> u64 {
        match Writes::of(self.0.load(Ordering::Acquire)).reach {
            REACH_MAX => u64::MAX,
            reach => reach * REACH_UNIT,
        }
    }

    /// The file was looked at after `before` was loaded: forgets writes that had ended by then,
    /// unless others have begun since.
    fn forget(&self, before: u64) {
        let was = Writes::of(before);
        if was.in_flight == 0 {
            let after = Writes { reach: 0, ..was }.number();
            let order = Ordering::AcqRel;
            let _ = self
                .0
                .compare_exchange(before, after, order, Ordering::Acquire);
        }
    }
}

impl TruncationGuard {
    pub fn new(bytes: u64) -> Self {
        Self {
            written: Written::default(),
            longest: AtomicU64::new(bytes),
            end: AtomicU64::new(u64::MAX),
            told: AtomicBool::new(false),
        }
    }

    /// Whether nothing up to `to` was cut off, as far as was seen.
    pub fn reaches(&self, to: u64) -> bool {
        to <= self.end.load(Ordering::Relaxed)
    }

    /// Its end was here.
    pub fn ended_at(&self, end: u64) {
        self.end.fetch_min(end, Ordering::Relaxed);
    }

    /// Looks at its size by `bytes_now`; `None`: that is not known.
    fn look(&self, bytes_now: impl FnOnce() -> Option<u64>) {
        let written = self.written.0.load(Ordering::Acquire);
        // Before its size: another core may see a longer file meanwhile, because it grows.
        let before = self.longest.load(Ordering::Acquire);
        let Some(bytes) = bytes_now() else {
            return;
        };
        let longest = self.longest.fetch_max(bytes, Ordering::AcqRel);
        if bytes < longest.min(before) {
            // A write may have put its end there.
            let is_known = bytes > self.written.reach();
            self.ended_at(if is_known { bytes } else { 0 });
        }
        self.written.forget(written);
    }

    /// Whether that it is too short is to be told now.
    pub fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// How long it once was, and where its end was later.
    pub fn lengths(&self) -> (u64, u64) {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        (load(&self.longest), load(&self.end))
    }

    /// Where its end was when it was shorter, if that is news to a reactor.
    pub fn news(&self, looked: &mut Looked) -> Option<u64> {
        let end = self.end.load(Ordering::Relaxed);
        let end = (end != u64::MAX).then_some(end);
        let before = std::mem::replace(&mut looked.end, end);
        end.filter(|_| end != before)
    }

    /// As `take`, of a file that has so many bytes now, where nothing below `needs` was cut off.
    fn take_behind(&self, needs: u64, bytes: u64) {
        let end = self.end.load(Ordering::Acquire);
        if end == u64::MAX || end < needs || bytes < end {
            return;
        }
        // First, so that a look does not find it shorter than it was.
        self.longest.store(bytes, Ordering::Release);
        // Another core may have seen a lower end meanwhile: that one stays.
        let forgotten =
            self.end
                .compare_exchange(end, u64::MAX, Ordering::AcqRel, Ordering::Acquire);
        if forgotten.is_ok() {
            self.told.store(false, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: u64) {
        self.longest.store(bytes, Ordering::Relaxed);
        self.end.store(u64::MAX, Ordering::Relaxed);
        self.told.store(false, Ordering::Relaxed);
    }
}

impl FileDevice {
    /// A request up to `to` begins, a write or not: looks at the size of a file that we have alone
    /// when that is due. Whether nothing up to there was cut off.
    pub(crate) fn look(&self, to: u64, writes: bool, looked: &mut Looked, now_ns: u64) -> bool {
        let Some(whole) = self.whole() else {
            return true;
        };
        if looked.at_ns.saturating_add(LOOK_NS) <= now_ns {
            looked.at_ns = now_ns;
            whole.look(|| self.bytes_now());
        }
        let reaches = whole.reaches(to);
        if writes && reaches {
            whole.written.begin(to);
        }
        reaches
    }

    /// The file is to be used as it is now, whatever was cut off it; its bytes.
    ///
    /// # Errors
    /// [`RuntimeError::File`](crate::RuntimeError::File): its size can't be read.
    pub fn take_as_it_is(&self) -> Result<u64, crate::RuntimeError> {
        let bytes = self.size()?;
        if let Some(whole) = self.whole() {
            whole.take(bytes);
        }
        Ok(bytes)
    }

    /// As [`Self::take_as_it_is`], where nothing below `needs` was cut off: a caller that needs no
    /// more than that has lost nothing, and uses the range behind it from now on.
    ///
    /// # Errors
    /// [`RuntimeError::File`](crate::RuntimeError::File): its size can't be read.
    pub fn take_behind(&self, needs: u64) -> Result<(), crate::RuntimeError> {
        if let Some(whole) = self.whole() {
            whole.take_behind(needs, self.size()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = REACH_UNIT;

    /// A write by some core, from its begin to its end.
    fn write(whole: &TruncationGuard, to: u64) {
        whole.written.begin(to);
        whole.written.end();
    }

    fn seen(whole: &TruncationGuard, bytes: u64) {
        whole.look(|| Some(bytes));
    }

    #[test]
    fn where_a_file_that_became_shorter_ended_is_known_or_nothing_is() {
        let whole = TruncationGuard::new(16 * K);
        write(&whole, 16 * K);
        seen(&whole, 16 * K);
        assert!(whole.reaches(16 * K));
        write(&whole, 16 * K);
        seen(&whole, 24 * K);
        seen(&whole, 24 * K);
        assert!(whole.reaches(24 * K), "it was made longer");
        write(&whole, 4 * K);
        seen(&whole, 8 * K);
        assert!(whole.reaches(8 * K) && !whole.reaches(8 * K + 1));
        write(&whole, 4 * K);
        seen(&whole, 24 * K);
        assert!(!whole.reaches(9 * K), "as long again, and a hole");
        write(&whole, 14 * K);
        seen(&whole, 14 * K);
        assert!(!whole.reaches(1), "a write has put its end there");
        assert_eq!(whole.lengths(), (24 * K, 0));
        let mut looked = Looked::default();
        assert_eq!(whole.news(&mut looked), Some(0));
        assert_eq!(whole.news(&mut looked), None, "it was told of that");
        whole.take(24 * K);
        assert_eq!(whole.news(&mut looked), None);
        seen(&whole, 16 * K);
        assert_eq!(whole.news(&mut looked), Some(16 * K), "it was cut again");
        whole.take(24 * K);
        assert!(whole.reaches(24 * K) && whole.tell() && !whole.tell());
    }

    /// A write of one core is known to another one that looks, also one that began during a look.
    #[test]
    fn t50_end_that_another_core_may_have_written_is_unknown() {
        let whole = TruncationGuard::new(16 * K);
        whole.written.begin(12 * K);
        seen(&whole, 16 * K); // it is in flight
        whole.written.end();
        seen(&whole, 12 * K);
        assert_eq!(whole.lengths().1, 0);
        let whole = TruncationGuard::new(16 * K);
        whole.look(|| {
            write(&whole, 12 * K);
            Some(16 * K)
        });
        seen(&whole, 12 * K);
        assert_eq!(whole.lengths().1, 0);
        // Farther than can be counted.
        let whole = TruncationGuard::new(u64::MAX);
        write(&whole, u64::MAX / 2);
        seen(&whole, u64::MAX - 1);
        assert_eq!(whole.lengths().1, 0);
    }

    #[test]
    fn end_behind_what_is_needed_can_be_forgotten() {
        let whole = TruncationGuard::new(32 * K);
        seen(&whole, 20 * K);
        whole.take_behind(16 * K, 16 * K);
        assert!(!whole.reaches(21 * K), "it is shorter by now");
        whole.take_behind(24 * K, 28 * K);
        assert!(!whole.reaches(21 * K), "more is needed than was left");
        whole.take_behind(16 * K, 28 * K);
        assert!(whole.reaches(28 * K) && whole.tell());
        seen(&whole, 28 * K);
        assert!(whole.reaches(28 * K));
        seen(&whole, 16 * K);
        assert_eq!(whole.lengths(), (28 * K, 16 * K), "it was cut again");
    }

    #[test]
    fn file_that_grows_during_a_look_was_not_cut() {
        let whole = TruncationGuard::new(16 * K);
        whole.look(|| {
            seen(&whole, 24 * K); // by another core
            Some(16 * K)
        });
        assert!(whole.reaches(24 * K));
        seen(&whole, 16 * K);
        assert!(!whole.reaches(24 * K), "by now it would be shorter");
    }
}
