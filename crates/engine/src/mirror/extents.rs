//! The devices and controllers that have to report a range as a hole before the mirror does.
use super::device::{MirrorDevice, Phase};
use crate::devices::BackEnds;
use crate::host::Witness;
use alloc::vec::Vec;
use block::Range;

impl MirrorDevice {
    /// See [`BackEnds::witnesses`]: those of all legs in sync.
    pub fn witnesses(
        &self,
        below: BackEnds<'_>,
        range: Range,
        list: &mut Vec<(Witness, u64)>,
    ) -> bool {
        let Phase::Running(it) = &self.phase else {
            return false;
        };
        if it.frozen {
            return false;
        }
        let mut slots = it.machine.hole_witnesses(range).iter();
        slots.all(|slot| {
            let at = it.places.get(usize::from(slot)).copied().flatten();
            let leg = at.and_then(|at| self.legs.get(usize::from(at)));
            let Some((leg, place)) = leg.zip(it.machine.place(slot)) else {
                return false;
            };
            let there = Range {
                start: place.data_offset + range.start,
                end: place.data_offset + range.end,
            };
            below.witnesses(leg.device(), there, list)
        })
    }
}
