//! Files that we have alone, and that somebody cut short all the same.
//!
//! # Contract
//! What lies behind the end of a file that was cut off is lost. A write there would make the file
//! long again, and the hole before it would read as good zeroes. So who has a file alone notes how
//! long it is, and where its end was when it was seen to be shorter; from then on nothing is read
//! or written behind that, however long the file is by then, until somebody says that the file is
//! to be taken as it is ([`FileDevice::take_as_it_is`]). Its size is looked at no more often than
//! every `LOOK_NS`, by what is asked of it, and once a second besides (`device/cut.rs`), and never
//! waited for: what a file system has not
//! noticed itself yet is not asked of a server.
//!
//! # Limits
//! What is written within `LOOK_NS` after the cut may make the file longer: that shows at the next
//! look, and where the end was is not known any more, so nothing of the file is trusted then. Until
//! then a read of the hole finds zeroes. A file that is cut and made as long again between two
//! looks isn't noticed, as nothing is that others write into it.
use crate::FileDevice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often a file's size is looked at, ns.
pub(crate) const LOOK_NS: u64 = 1_000_000;

/// What is known of the length of a file. Cores may share it; each of its numbers stands for
/// itself.
#[derive(Debug)]
pub(crate) struct Whole {
    /// As it was seen at its longest.
    longest: AtomicU64,
    /// Where its end was when it was shorter; `u64::MAX`: it never was.
    end: AtomicU64,
    told: AtomicBool,
}

/// When a reactor looked last, how far it has written since, and where the end was that it told its
/// machine of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    at_ns: u64,
    written_to: u64,
    end: Option<u64>,
    /// Writes in flight.
    pub writes: u32,
}

impl Whole {
    pub fn new(bytes: u64) -> Self {
        Self {
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

    /// It has so many bytes now, and was written up to `written_to`.
    fn seen(&self, bytes: u64, written_to: u64) {
        let longest = self.longest.fetch_max(bytes, Ordering::Relaxed);
        if bytes < longest {
            // A write may have put its end there.
            self.ended_at(if bytes <= written_to { 0 } else { bytes });
        }
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
            if let Some(bytes) = self.bytes_now() {
                whole.seen(bytes, looked.written_to);
            }
            if looked.writes == 0 {
                looked.written_to = 0;
            }
        }
        let reaches = whole.reaches(to);
        if writes && reaches {
            looked.written_to = looked.written_to.max(to);
            looked.writes += 1;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_file_that_became_shorter_ended_is_known_or_nothing_is() {
        let whole = Whole::new(16);
        whole.seen(16, 16);
        assert!(whole.reaches(16));
        whole.seen(24, 16);
        whole.seen(24, 0);
        assert!(whole.reaches(24), "it was made longer");
        whole.seen(8, 4);
        assert!(whole.reaches(8) && !whole.reaches(9));
        whole.seen(24, 4);
        assert!(!whole.reaches(9), "as long again, and a hole");
        whole.seen(14, 14);
        assert!(!whole.reaches(1), "a write has put its end there");
        assert_eq!(whole.lengths(), (24, 0));
        let mut looked = Looked::default();
        assert_eq!(whole.news(&mut looked), Some(0));
        assert_eq!(whole.news(&mut looked), None, "it was told of that");
        whole.take(24);
        assert_eq!(whole.news(&mut looked), None);
        whole.seen(16, 0);
        assert_eq!(whole.news(&mut looked), Some(16), "it was cut again");
        whole.take(24);
        assert!(whole.reaches(24) && whole.tell() && !whole.tell());
    }
}
