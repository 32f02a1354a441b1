//! Regions of which no leg can read all, and when these are tried again.
use super::leg::Rebuild;
use crate::bitmap::Bitmap;

/// See the module.
#[derive(Debug)]
pub(super) struct Unreadable {
    regions: Bitmap,
    /// Of these, not tried again before the time below.
    paused: Bitmap,
    /// `u64::MAX`: none is paused.
    until_ns: u64,
}

impl Unreadable {
    /// None, of so many regions.
    pub fn new(regions: u64) -> Self {
        Self {
            regions: Bitmap::new(regions),
            paused: Bitmap::new(regions),
            until_ns: u64::MAX,
        }
    }

    /// Room for so many regions; new ones can be read.
    pub fn resize(&mut self, regions: u64) {
        self.regions.resize(regions);
        self.paused.resize(regions);
    }

    /// All of them.
    pub fn regions(&self) -> &Bitmap {
        &self.regions
    }

    /// Whether no leg could read all of the region, when that was tried last.
    pub fn has(&self, region: u64) -> bool {
        self.regions.is_set(region)
    }

    /// No leg could read all of the region: it is paused; whether it was not.
    pub fn note(&mut self, region: u64) -> bool {
        let is_news = self.paused.set(region);
        if is_news {
            self.regions.set(region);
        }
        is_news
    }

    /// The region was written, and can be read there; whether it may be copied again by that.
    pub fn has_written(&mut self, region: u64) -> bool {
        self.regions.clear(region);
        self.paused.clear(region)
    }

    /// The region is tried again at once.
    pub fn retry(&mut self, region: u64) {
        self.paused.clear(region);
    }

    /// All that are paused are tried again at this time.
    pub fn retry_at(&mut self, at_ns: u64) {
        self.until_ns = at_ns;
    }

    /// When paused regions are tried again, ns; `u64::MAX`: none is paused.
    pub fn retries_at(&self) -> u64 {
        self.until_ns
    }

    /// It is so late now.
    pub fn handle_time(&mut self, now_ns: u64) {
        if now_ns >= self.until_ns {
            self.until_ns = u64::MAX;
            self.paused.clear_all();
        }
    }

    /// Whether the region is paused.
    pub fn is_paused(&self, region: u64) -> bool {
        self.paused.is_set(region)
    }

    /// Returns how many regions a leg lacks that no leg can give it now.
    pub fn count_lacked(&self, rebuild: &Rebuild) -> u64 {
        if self.until_ns == u64::MAX {
            return 0; // none is paused
        }
        let lacked = self.paused.iter().filter(|&region| rebuild.lacks(region));
        lacked.count() as u64
    }

    /// All paused regions.
    pub fn paused(&self) -> &Bitmap {
        &self.paused
    }
}
