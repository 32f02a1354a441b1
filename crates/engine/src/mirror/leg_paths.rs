//! The paths among which `soonest` selects for a mirror's reads: every path of every leg at once.
//!
//! # Contract
//! A path keeps its number of the policy while the mirror runs. Numbers below [`LEGS_MAX`] are
//! legs, by their slots. A leg with one path has that number alone; as soon as its head would use
//! several, each of them has a number, the first one the leg's. Only paths that the leg's own head
//! would use are offered: it goes by ANA and probation (T45).
//!
//! # Limits
//! [`PATHS_MAX`] numbers in all. The further paths of a leg, beyond that, are used when the others
//! are gone.
use mirror::limits::LEGS_MAX;
use mirror::machine::Legs;
use multipath::limits::PATHS_MAX;

use alloc::vec::Vec;
use policy::PathIndex;

/// A path of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LegPath {
    slot: u8,
    path: PathIndex,
}

/// See the module.
pub(super) struct LegPaths {
    /// By number; of legs with one path, none.
    all: Vec<Option<LegPath>>,
    /// Legs that have several.
    split: Legs,
    /// Of each leg, the paths with a number that its head would use now, as bits.
    usable: [u64; LEGS_MAX],
}

/// Bits, as paths.
fn paths(bits: u64) -> impl Iterator<Item = PathIndex> {
    let all = (0..PATHS_MAX as u8).map(PathIndex);
    all.filter(move |path| bits >> path.0 & 1 == 1)
}

impl LegPaths {
    pub fn new() -> Self {
        Self {
            all: alloc::vec![None; LEGS_MAX],
            split: Legs::default(),
            usable: [0; LEGS_MAX],
        }
    }

    /// Whether the leg's paths have numbers of their own.
    pub fn is_split(&self, slot: u8) -> bool {
        self.split.has(slot)
    }

    /// Sets the paths that the leg's head would use now. Calls `appeared` with the number of each
    /// that was not usable before.
    pub fn set_usable(&mut self, slot: u8, bits: u64, mut appeared: impl FnMut(u8)) {
        let before = match self.usable.get(usize::from(slot)) {
            Some(&before) if self.is_split(slot) || bits.count_ones() > 1 => before,
            _ => return, // a leg with one path is one way
        };
        if self.is_split(slot) && before == bits {
            return; // nothing has changed
        }
        let mut offered = 0;
        for path in paths(bits) {
            let Some(number) = self.number(LegPath { slot, path }) else {
                continue;
            };
            offered |= 1 << path.0;
            if self.is_split(slot) && before >> path.0 & 1 == 0 {
                appeared(number);
            }
        }
        self.usable[usize::from(slot)] = offered;
        self.split.add(slot);
    }

    /// The number of a path, a new one if it has none yet; `None`: there is no room.
    fn number(&mut self, leg_path: LegPath) -> Option<u8> {
        let place = |all: &[Option<LegPath>]| all.iter().position(|it| *it == Some(leg_path));
        if let Some(number) = place(&self.all) {
            return Some(number as u8);
        }
        let own = &mut self.all[usize::from(leg_path.slot)];
        if own.is_none() {
            *own = Some(leg_path);
            return Some(leg_path.slot);
        }
        if self.all.len() == PATHS_MAX {
            return None;
        }
        self.all.push(Some(leg_path));
        Some(self.all.len() as u8 - 1)
    }

    /// How many numbers are in use above those of legs.
    pub fn count(&self) -> Option<usize> {
        (self.all.len() > LEGS_MAX).then_some(self.all.len())
    }

    /// All paths with a number of their own: number, leg, path.
    pub fn split(&self) -> impl Iterator<Item = (u8, u8, PathIndex)> {
        let all = (0..).zip(&self.all);
        let split = self.split;
        all.filter_map(move |(number, leg_path)| {
            let leg_path = leg_path.filter(|leg_path| split.has(leg_path.slot))?;
            Some((number, leg_path.slot, leg_path.path))
        })
    }

    /// Whether a read may use this number, if `legs` may serve it; `pairs`: paths are selected, not
    /// legs alone.
    pub fn allows(&self, number: u8, legs: Legs, pairs: bool) -> bool {
        let leg = usize::from(number) < LEGS_MAX;
        if !pairs || leg && !self.is_split(number) {
            return leg && legs.has(number);
        }
        let leg_path = self.all.get(usize::from(number)).copied().flatten();
        leg_path.is_some_and(|leg_path| {
            let bits = self.usable[usize::from(leg_path.slot)];
            let here = match bits {
                // The leg waits for a path; whichever comes is its head's choice.
                0 => leg_path.slot == number,
                bits => bits >> leg_path.path.0 & 1 == 1,
            };
            legs.has(leg_path.slot) && here
        })
    }

    /// The leg and, where that was chosen, the path of a number.
    pub fn of(&self, number: u8, pairs: bool) -> (u8, Option<PathIndex>) {
        let leg_path = self.all.get(usize::from(number)).copied().flatten();
        match leg_path {
            Some(leg_path) if pairs && self.is_split(leg_path.slot) => {
                let usable = self.usable[usize::from(leg_path.slot)] >> leg_path.path.0 & 1 == 1;
                (leg_path.slot, usable.then_some(leg_path.path))
            }
            _ => (number, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legs(slots: &[u8]) -> Legs {
        slots.iter().copied().collect()
    }

    fn allowed(leg_paths: &LegPaths, legs: Legs, pairs: bool) -> Vec<(u8, Option<PathIndex>)> {
        let all = 0..PATHS_MAX as u8;
        let all = all.filter(|&number| leg_paths.allows(number, legs, pairs));
        all.map(|number| leg_paths.of(number, pairs)).collect()
    }

    #[test]
    fn a_leg_with_one_path_is_one_way_and_with_several_each_is_one() {
        let (first, second) = (Some(PathIndex(0)), Some(PathIndex(3)));
        let mut leg_paths = LegPaths::new();
        leg_paths.set_usable(0, 1, |_| panic!("nothing appeared"));
        leg_paths.set_usable(1, 0b1001, |_| panic!("all are new"));
        let both = legs(&[0, 1]);
        assert_eq!(
            allowed(&leg_paths, both, true),
            [(0, None), (1, first), (1, second)]
        );
        assert_eq!(allowed(&leg_paths, legs(&[0]), true), [(0, None)]);
        // Other policies choose among legs.
        assert_eq!(allowed(&leg_paths, both, false), [(0, None), (1, None)]);
        // One path is gone, then both, then one is back.
        leg_paths.set_usable(1, 0b1000, |_| panic!("it was there"));
        assert_eq!(allowed(&leg_paths, both, true), [(0, None), (1, second)]);
        leg_paths.set_usable(1, 0, |_| panic!("nothing appeared"));
        assert_eq!(allowed(&leg_paths, both, true), [(0, None), (1, None)]);
        let mut back = Vec::new();
        leg_paths.set_usable(1, 1, |number| back.push(number));
        assert_eq!(back, [1]);
        assert_eq!(allowed(&leg_paths, both, true), [(0, None), (1, first)]);
    }

    #[test]
    fn there_are_never_more_ways_than_the_policy_has_room_for() {
        let mut leg_paths = LegPaths::new();
        leg_paths.set_usable(2, u64::MAX, |_| {});
        assert_eq!(leg_paths.count(), Some(PATHS_MAX));
        let of_two = allowed(&leg_paths, legs(&[2]), true);
        assert_eq!(of_two.len(), PATHS_MAX - LEGS_MAX + 1);
        // Only paths without a number are left: its head chooses.
        leg_paths.set_usable(2, 1 << 63, |_| {});
        assert_eq!(allowed(&leg_paths, legs(&[2]), true), [(2, None)]);
    }
}
