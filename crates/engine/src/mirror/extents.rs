//! Which devices and controllers have to say that a range is a hole before it may be called one.
use super::one::{Mirrored, Phase};
use super::{Devices, MIRRORS_FROM};
use crate::host::{HostEngine, Witness};
use alloc::vec::Vec;
use block::Range;

impl Devices {
    /// Lists what holds all of a range of a volume, each with the offset of the range there. What
    /// all of them call a hole reads as zeroes. None: nothing can be said of it.
    pub(crate) fn witnesses(&self, volume: u16, range: Range, list: &mut Vec<(Witness, u64)>) {
        list.clear();
        match volume.checked_sub(MIRRORS_FROM) {
            None => list.extend(self.host.witness(volume).map(|it| (it, range.start))),
            Some(_) => {
                if let Some(mirror) = self.numbered(volume) {
                    mirror.witnesses(&self.host, range, list);
                }
            }
        }
    }
}

impl Mirrored {
    /// See [`Devices::witnesses`]: those of all legs in sync.
    fn witnesses(&self, host: &HostEngine, range: Range, list: &mut Vec<(Witness, u64)>) {
        let Phase::Running(it) = &self.phase else {
            return;
        };
        if it.frozen {
            return;
        }
        for slot in it.machine.hole_witnesses(range).iter() {
            let at = it.places.get(usize::from(slot)).copied().flatten();
            let leg = at.and_then(|at| self.legs.get(usize::from(at)));
            let witness = leg.and_then(|leg| host.witness(leg.config.volume));
            let Some((witness, place)) = witness.zip(it.machine.place(slot)) else {
                return list.clear();
            };
            list.push((witness, place.data_offset + range.start));
        }
    }
}
