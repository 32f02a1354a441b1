//! Growth of a mirror whose legs have become larger, while it runs.
//!
//! # Contract
//! All legs are in sync and have room: for the data, and for the dirty bits of new regions between
//! the bitmap and the data. First the bits of the new regions are set, durably on all legs; then a
//! generation has the new size. An interrupted growth leaves the old size, or the new one with all
//! of the new part marked as diverged, which is resynced before it is read. No leg returns, none is
//! added, and no dirty bit is cleared, between the two. A proposed generation is not taken back:
//! some leg may have it.
use super::legs::Legs;
use super::planted::{Bug, has};
use super::{Mirror, News};
use crate::Superblock;
use crate::bitmap::{Bitmap, PAGE_BYTES, PAGE_REGIONS};
use crate::layout::{Geometry, UNIT};
use crate::limits::{LEGS_MAX, REGIONS_MAX};
use block::Range;
use core::fmt;

/// Why the mirror keeps its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowError {
    /// This leg leaves no room for more.
    Small(u8),
    /// This leg is away, or not in sync.
    Leg(u8),
    /// Its bitmap has room for so many bytes.
    Bitmap(u64),
    /// It is being stopped, is not ours, can only be read, gets a leg, or grows already.
    Refused,
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small(leg) => {
                write!(
                    f,
                    "leg {leg} is not larger than the mirror needs: make all legs larger"
                )
            }
            Self::Leg(leg) => write!(
                f,
                "leg {leg} is not in sync: wait for its rebuild, restore it, or remove it"
            ),
            Self::Bitmap(bytes) => write!(
                f,
                "its bitmap has room for {bytes} bytes: make a new mirror, with larger regions"
            ),
            Self::Refused => {
                f.write_str("it is read-only, stopping, not ours, gets a leg, or grows already")
            }
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    bytes: u64,
    /// Bytes of each leg, by slot.
    sizes: [u64; LEGS_MAX],
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// For what is under way.
    Wait,
    /// The bits are being written.
    Bits,
    /// The generation with the new size is to be committed.
    Event,
}

impl Growth {
    /// Whether bits of new regions are under way.
    pub fn is_begun(&self) -> bool {
        self.step != Step::Wait
    }
}

/// How large a mirror its bitmap allows on a leg that lies so.
fn room(state: &Superblock, place: &crate::layout::Place) -> u64 {
    let map_bytes = place.data_offset - place.bitmap_offset;
    let regions = (map_bytes / PAGE_BYTES as u64).saturating_mul(PAGE_REGIONS);
    let regions = u128::from(regions.min(REGIONS_MAX));
    u64::try_from(regions << state.geometry.region_shift).unwrap_or(u64::MAX)
}

impl Mirror {
    /// The legs, by slot, have so many bytes now (0: not known): the mirror becomes as large as
    /// they allow, which is returned; [`News::Grown`] says when it is so, [`News::NotGrown`] that
    /// it stays as it is.
    ///
    /// # Errors
    /// [`GrowError`].
    pub fn grow(&mut self, sizes: &[u64; LEGS_MAX], now_ns: u64) -> Result<u64, GrowError> {
        self.at(now_ns);
        let busy = self.stop.is_begun()
            || self.changes.growth.is_some()
            || !self.changes.adding.is_empty();
        if self.read_only || self.ownership.is_lost() || busy {
            return Err(GrowError::Refused);
        }
        if let Some((slot, _)) = self
            .generation
            .proposed()
            .entries()
            .find(|it| !self.legs.in_sync().has(it.0))
        {
            return Err(GrowError::Leg(slot));
        }
        let (mut bytes, mut most) = (u64::MAX, u64::MAX);
        for slot in self.legs.in_sync().iter() {
            let (place, leg_bytes) = (self.place(slot), sizes[usize::from(slot)]);
            let Some(place) = place.filter(|_| leg_bytes > 0) else {
                return Err(GrowError::Leg(slot));
            };
            let allows = leg_bytes.saturating_sub(place.data_offset) / UNIT * UNIT;
            if allows <= self.generation.proposed().geometry.bytes {
                return Err(GrowError::Small(slot));
            }
            bytes = bytes.min(allows);
            most = most.min(room(self.generation.proposed(), &place));
        }
        let geometry = Geometry {
            bytes,
            ..self.generation.proposed().geometry
        };
        if bytes > most || !geometry.is_sound() {
            return Err(GrowError::Bitmap(most));
        }
        self.changes.growth = Some(Growth {
            bytes,
            sizes: *sizes,
            step: Step::Wait,
        });
        self.startup.needs_write = true;
        self.outputs.wake();
        Ok(bytes)
    }

    /// Takes a growth back; [`News::NotGrown`] follows. Returns false if there is none, or its size
    /// is being written to the legs: some may have it.
    pub fn take_back_growth(&mut self, now_ns: u64) -> bool {
        self.at(now_ns);
        let growth = self.changes.growth;
        let may = growth.is_some_and(|it| it.step != Step::Event);
        if may {
            self.end_growth(News::NotGrown);
        }
        may
    }

    /// The next step.
    pub(super) fn advance_growth(&mut self) {
        let Some(growth) = self.changes.growth else {
            return; // it keeps its size
        };
        let all: Legs = self
            .generation
            .proposed()
            .entries()
            .map(|it| it.0)
            .collect();
        let quiet = self.update.is_idle() && !self.log.is_writing_all() && !self.log.is_clearing();
        match growth.step {
            Step::Wait if self.stop.is_begun() || all != self.legs.in_sync() => {
                self.end_growth(News::NotGrown)
            }
            Step::Bits if self.stop.is_begun() => self.end_growth(News::NotGrown),
            Step::Wait if self.startup.is_running() && quiet => {
                self.make_room(&growth);
                self.changes.growth = Some(Growth {
                    step: Step::Bits,
                    ..growth
                });
            }
            Step::Bits if !self.log.is_writing_all() || has(Bug::GrownBeforeBits) => {
                let mut new = self.new_regions(growth.bytes);
                let durable = new.all(|region| self.log.is_durable(region));
                if durable || has(Bug::GrownBeforeBits) {
                    let step = Step::Event;
                    self.changes.growth = Some(Growth { step, ..growth });
                } else if self.log.is_written() {
                    // They could not be written on the last leg.
                    self.end_growth(News::NotGrown);
                }
            }
            Step::Wait | Step::Bits | Step::Event => {}
        }
    }

    fn end_growth(&mut self, news: News) {
        self.changes.growth = None;
        self.outputs.wake();
        // Bits beyond the size mean nothing, and must not be found later.
        let regions = self.generation.committed().geometry.regions();
        self.resize_maps(regions);
        self.outputs.news(news);
    }

    /// Bits for so many regions in all maps. A leg may have left since the growth began: then it
    /// has one too.
    fn resize_maps(&mut self, regions: u64) {
        let missed = self.legs.iter_mut().filter_map(|(_, leg)| leg.missed_mut());
        missed.for_each(|map| map.resize(regions));
        self.log.resize(regions);
        self.diverged.resize(regions);
        self.unreadable.resize(regions);
    }

    /// Returns the regions of a mirror of so many bytes beyond the committed size, and the one that
    /// ends there.
    fn new_regions(&self, bytes: u64) -> core::ops::Range<u64> {
        let now = self.generation.committed().geometry;
        let first = now.bytes >> now.region_shift;
        first..Geometry { bytes, ..now }.regions()
    }

    /// Bits for a mirror of so many bytes: those of new regions are set, and go to all legs.
    fn make_room(&mut self, growth: &Growth) {
        // No update is under way: it would put the old sizes back.
        for slot in self.legs.in_sync().iter() {
            self.legs[slot].committed.place.leg_bytes = growth.sizes[usize::from(slot)];
        }
        let new = self.new_regions(growth.bytes);
        self.resize_maps(new.end);
        self.log.reserve(0);
        let first = Bitmap::page_of(new.start) as u32;
        new.for_each(|region| self.log.add_region(region));
        self.write_all_from(first);
    }

    /// Returns the size of the next generation, if it changes.
    pub(super) fn grown_size(&self) -> Option<u64> {
        let growth = self.changes.growth.filter(|it| it.step == Step::Event);
        growth.map(|it| it.bytes)
    }

    /// A generation was committed, before which the mirror had so many bytes.
    pub(super) fn note_grown(&mut self, before: u64) {
        let bytes = self.generation.proposed().geometry.bytes;
        if bytes == before {
            return;
        }
        if !has(Bug::GrownUnlike) {
            self.mark_diverged(Range {
                start: before,
                end: bytes,
            });
        }
        self.log.clear_by(self.now_ns + self.config.clear_after_ns);
        self.end_growth(News::Grown(bytes));
    }
}
