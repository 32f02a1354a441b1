//! A table whose entries are named by slot and generation.
//!
//! # Contract
//! [`SlotMap::insert`] returns a key that names this entry alone: after [`SlotMap::remove`] the
//! slot may hold another entry, whose key has another generation (T11). [`SlotMap::get`] and
//! [`SlotMap::find`] return `None` for a key that names no entry: use them for keys that a peer
//! sent back. Indexing and `remove` panic for such a key: use them for keys of one's own, where it
//! is a broken invariant.
//!
//! The slot that was freed last is used first; new slots are used in ascending order.
//!
//! # Limits
//! Memory for `capacity` entries is taken at construction. [`SlotMap::insert`] takes more where
//! that is exceeded: a caller with a limit asks [`SlotMap::is_full`] first. Each step takes the
//! same time, however many entries there are; iteration visits all slots. A generation has 31 bits,
//! so a key is 63 bits long.
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// End of the list of free slots.
const NONE: u32 = u32::MAX;
const GENERATION_MASK: u32 = u32::MAX >> 1;

/// Names one entry of one [`SlotMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The slot: a small number, which names another entry once this one was removed.
    #[inline]
    pub fn index(self) -> u32 {
        self.index
    }

    /// The key as a number of 63 bits.
    #[inline]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key that [`Key::to_bits`] made this number of.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

/// All slots are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The table. See the module.
#[derive(Debug)]
pub struct SlotMap<T> {
    slots: Vec<Slot<T>>,
    /// The free slot that is used next.
    free: u32,
    len: u32,
    capacity: u32,
}

#[derive(Debug)]
struct Slot<T> {
    /// Of its entry; of a free slot: of its next one.
    generation: u32,
    /// Of a free slot: the one that is used after it.
    next_free: u32,
    value: Option<T>,
}

impl<T> Default for SlotMap<T> {
    /// Empty, without memory.
    fn default() -> Self {
        Self::new(0)
    }
}

impl<T> SlotMap<T> {
    /// Empty, with memory for `capacity` entries.
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: Vec::with_capacity(capacity as usize),
            free: NONE,
            len: 0,
            capacity,
        }
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there are as many entries as memory was taken for at construction.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    /// Adds an entry.
    #[inline]
    pub fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        let index = self.free;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            self.free = slot.next_free;
            slot.value = Some(value);
            let generation = slot.generation;
            return Key { index, generation };
        }
        self.push(value)
    }

    fn push(&mut self, value: T) -> Key {
        let index = self.slots.len() as u32;
        self.slots.push(Slot {
            generation: 0,
            next_free: NONE,
            value: Some(value),
        });
        Key {
            index,
            generation: 0,
        }
    }

    /// Removes the entry of `key` and returns it.
    ///
    /// # Panics
    /// If `key` names no entry.
    #[inline]
    pub fn remove(&mut self, key: Key) -> T {
        let slot = &mut self.slots[key.index as usize];
        assert!(slot.generation == key.generation, "{STALE}");
        let value = slot.value.take().expect(STALE);
        slot.generation = next(slot.generation);
        slot.next_free = self.free;
        self.free = key.index;
        self.len -= 1;
        value
    }

    /// The entry of `key`, if it names one.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        let value = slot.value.as_ref()?;
        (slot.generation == key.generation).then_some(value)
    }

    /// As [`Self::get`], to change it.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        let value = slot.value.as_mut()?;
        (slot.generation == key.generation).then_some(value)
    }

    /// The key of the entry in slot `index`; `None`: the slot is free, or there is no such slot.
    #[inline]
    pub fn find(&self, index: u32) -> Option<Key> {
        let slot = self.slots.get(index as usize)?;
        let generation = slot.generation;
        slot.value.as_ref().map(|_| Key { index, generation })
    }

    /// The key of the entry in slot `index`.
    ///
    /// # Panics
    /// If the slot is free.
    #[inline]
    pub fn key(&self, index: u32) -> Key {
        self.find(index).expect(STALE)
    }

    /// All entries, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| {
            let generation = slot.generation;
            let value = slot.value.as_ref()?;
            Some((Key { index, generation }, value))
        })
    }

    /// As [`Self::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(index, slot)| {
            let generation = slot.generation;
            let value = slot.value.as_mut()?;
            Some((Key { index, generation }, value))
        })
    }

    /// As [`Self::iter_mut`], without keys.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }
}

const STALE: &str = "a key that names no entry";

fn next(generation: u32) -> u32 {
    (generation + 1) & GENERATION_MASK
}

/// The entry of a key of one's own; panics if it names none.
impl<T> Index<Key> for SlotMap<T> {
    type Output = T;
    #[inline]
    fn index(&self, key: Key) -> &T {
        self.get(key).expect(STALE)
    }
}

impl<T> IndexMut<Key> for SlotMap<T> {
    #[inline]
    fn index_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect(STALE)
    }
}

/// The entry in a slot; panics if the slot is free. For lists that hold slots of entries that they
/// keep from being removed.
impl<T> Index<u32> for SlotMap<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        self.slots[index as usize].value.as_ref().expect(STALE)
    }
}

impl<T> IndexMut<u32> for SlotMap<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.slots[index as usize].value.as_mut().expect(STALE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16),
        Remove(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u16>().prop_map(Step::Insert),
            2 => any::<prop::sample::Index>().prop_map(Step::Remove),
        ]
    }

    /// Compares a map with a list of the entries that it should have, and of all former keys.
    fn compare(map: &SlotMap<u16>, model: &[(Key, u16)], stale: &[Key]) {
        assert_eq!(map.len() as usize, model.len());
        assert_eq!(map.is_empty(), model.is_empty());
        for &(key, value) in model {
            assert_eq!(map.get(key), Some(&value));
            assert_eq!((map[key], map[key.index()]), (value, value));
            assert_eq!(
                (map.find(key.index()), map.key(key.index())),
                (Some(key), key)
            );
            assert_eq!(Key::from_bits(key.to_bits()), key);
            assert_eq!(key.to_bits() >> 63, 0);
        }
        assert!(stale.iter().all(|&key| map.get(key).is_none()));
        let sorted: BTreeMap<_, _> = model.iter().map(|it| (it.0.index(), it.1)).collect();
        let all = map.iter().map(|(key, value)| (key.index(), *value));
        assert!(all.eq(sorted));
    }

    proptest! {
        #[test]
        fn t11_each_key_names_one_entry_once(
            steps in prop::collection::vec(step(), 1..200), capacity in 0u32..8,
        ) {
            let mut map = SlotMap::new(capacity);
            let (mut model, mut stale) = (Vec::<(Key, u16)>::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Insert(value) => {
                        prop_assert_eq!(map.is_full(), model.len() as u32 >= capacity);
                        model.push((map.insert(value), value));
                    }
                    Step::Remove(of) if !model.is_empty() => {
                        let (key, value) = model.swap_remove(of.index(model.len()));
                        prop_assert_eq!(map.remove(key), value);
                        stale.push(key);
                    }
                    _ => {}
                }
                compare(&map, &model, &stale);
            }
            map.values_mut().for_each(|value| *value ^= 1);
            model.iter_mut().for_each(|(_, value)| *value ^= 1);
            compare(&map, &model, &stale);
        }
    }

    #[test]
    fn slots_are_reused_last_freed_first() {
        let mut map = SlotMap::new(4);
        let keys: Vec<_> = (0..3).map(|value| map.insert(value)).collect();
        assert!(keys.iter().map(|key| key.index()).eq(0..3));
        map.remove(keys[0]);
        map.remove(keys[2]);
        let reused: Vec<_> = (0..3).map(|value| map.insert(value).index()).collect();
        assert_eq!(reused, [2, 0, 3]);
    }

    #[test]
    fn within_its_capacity_a_map_never_allocates() {
        let mut map = SlotMap::new(64);
        let info = allocation_counter::measure(|| {
            for round in 0_u32..100 {
                while !map.is_full() {
                    map.insert(round);
                }
                for index in 0..64 {
                    let key = map.find(index).unwrap();
                    map.remove(key);
                }
            }
        });
        assert_eq!(info.count_total, 0);
    }

    #[test]
    #[should_panic(expected = "a key that names no entry")]
    fn an_entry_is_removed_once() {
        let mut map = SlotMap::new(1);
        let key = map.insert(());
        map.remove(key);
        map.insert(());
        map.remove(key);
    }

    #[test]
    #[should_panic(expected = "a key that names no entry")]
    fn an_own_key_that_is_stale_panics() {
        let mut map = SlotMap::new(1);
        let key = map.insert(1);
        map.remove(key);
        map.insert(2);
        assert_eq!(map[key], 1);
    }
}
