//! The Error Information log of one controller: the last failed commands, newest first.
use crate::limits::ERROR_ENTRIES_MAX;
use crate::wire::log::ErrorEntry;
use alloc::vec::Vec;

/// A ring of entries.
#[derive(Debug)]
pub(super) struct ErrorLog {
    ring: Vec<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    pub fn new() -> Self {
        Self {
            ring: Vec::with_capacity(ERROR_ENTRIES_MAX),
            count: 0,
        }
    }

    /// Number of entries ever made.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds an entry and numbers it. The oldest one is dropped.
    pub fn record(&mut self, entry: ErrorEntry) {
        let at = (self.count % ERROR_ENTRIES_MAX as u64) as usize;
        self.count += 1;
        let entry = ErrorEntry {
            error_count: self.count,
            ..entry
        };
        match self.ring.get_mut(at) {
            Some(oldest) => *oldest = entry,
            None => self.ring.push(entry),
        }
    }

    /// Newest first.
    pub fn entries(&self) -> impl Iterator<Item = &ErrorEntry> {
        let newest = (self.count % ERROR_ENTRIES_MAX as u64) as usize;
        let (new, old) = self.ring.split_at(newest.min(self.ring.len()));
        new.iter().rev().chain(old.iter().rev())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_errors_newest_first() {
        let mut log = ErrorLog::new();
        assert_eq!(log.entries().count(), 0);
        for nsid in 1..=(ERROR_ENTRIES_MAX as u32 * 2 + 3) {
            log.record(ErrorEntry {
                nsid,
                ..ErrorEntry::default()
            });
            let numbers: Vec<_> = log.entries().map(|e| (e.error_count, e.nsid)).collect();
            let oldest = nsid.saturating_sub(ERROR_ENTRIES_MAX as u32) + 1;
            let want: Vec<_> = (oldest..=nsid).rev().map(|n| (u64::from(n), n)).collect();
            assert_eq!(numbers, want);
        }
    }
}
