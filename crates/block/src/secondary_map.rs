//! Values beside the entries of a [`SlotMap`](crate::SlotMap).

use alloc::vec::Vec;

/// Values by the slots of a [`SlotMap`](crate::SlotMap) that another part owns.
///
/// # Contract
/// A value is added when the entry of its slot is, and removed with it: each of both steps panics
/// where the two tables differ. The owner's table bounds the number of slots.
///
/// # Limits
/// Memory for `capacity` slots is taken at construction.
#[derive(Debug)]
pub struct SecondaryMap<T> {
    values: Vec<Option<T>>,
}

const VACANT: &str = "a slot without a value";

impl<T> SecondaryMap<T> {
    /// Empty, with memory for slots below `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self {
            values: (0..capacity).map(|_| None).collect(),
        }
    }

    /// Whether there is no value: looks at all slots.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }

    /// Adds the value of slot `index`.
    ///
    /// # Panics
    /// If the slot has one, or is not below the capacity.
    #[inline]
    pub fn insert(&mut self, index: u32, value: T) {
        let before = self.values[index as usize].replace(value);
        assert!(before.is_none(), "slot {index} has a value");
    }

    /// The value of slot `index`; `None`: the slot is free.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)?.as_ref()
    }

    /// As [`Self::get`], to change it.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.values.get_mut(index as usize)?.as_mut()
    }

    /// Removes the value of slot `index` and returns it.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn remove(&mut self, index: u32) -> T {
        let value = self.values[index as usize].take();
        value.expect(VACANT)
    }

    /// The slots that have values.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let slots = (0..).zip(&self.values);
        slots.filter_map(|(index, value)| value.as_ref().map(|_| index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_there_until_it_is_removed() {
        let mut map = SecondaryMap::new(3);
        assert!(map.is_empty() && map.get(0).is_none() && map.get(3).is_none());
        map.insert(2, 'a');
        map.insert(0, 'b');
        *map.get_mut(0).unwrap() = 'c';
        assert!(map.slots().eq([0, 2]));
        assert_eq!((map.remove(0), map.get(2)), ('c', Some(&'a')));
        assert_eq!((map.remove(2), map.is_empty()), ('a', true));
        map.insert(2, 'd');
        assert!(!map.is_empty());
    }

    #[test]
    #[should_panic(expected = "slot 1 has a value")]
    fn a_slot_has_one_value() {
        let mut map = SecondaryMap::new(2);
        map.insert(1, ());
        map.insert(1, ());
    }

    #[test]
    #[should_panic(expected = "a slot without a value")]
    fn a_value_is_removed_once() {
        let mut map = SecondaryMap::new(2);
        map.insert(1, ());
        map.remove(1);
        map.remove(1);
    }
}
