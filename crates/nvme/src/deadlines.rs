//! The earliest of many deadlines: one each for a fixed number of owners.
//!
//! Returns the owner that is due, for machines with thousands of connections whose next time-out is
//! polled every turn.
//!
//! # Contract
//! Setting a deadline costs a step per doubling of the number of owners, or one comparison if it is
//! unchanged; reading the earliest costs one load. Nothing is allocated after `new`.
//!
//! # Origin
//! A tournament tree (Knuth, The Art of Computer Programming, vol. 3, 5.4.1).
use alloc::vec;
use alloc::vec::Vec;

/// None.
const NEVER: u64 = u64::MAX;

/// Deadlines of owners 0…count − 1, ns; `u64::MAX` = none.
#[derive(Debug)]
pub struct Deadlines {
    /// Root at 1; the children of `n` at `2 n` and `2 n + 1`; the owners from `first` on.
    tree: Vec<u64>,
    first: usize,
    count: usize,
}

impl Deadlines {
    /// None set.
    pub fn new(count: usize) -> Self {
        let first = count.next_power_of_two();
        Self {
            tree: vec![NEVER; 2 * first],
            first,
            count,
        }
    }

    /// Sets the deadline of an owner.
    ///
    /// # Panics
    /// There is no such owner.
    #[inline]
    pub fn set(&mut self, owner: usize, at_ns: u64) {
        assert!(owner < self.count, "no owner {owner}");
        let mut node = self.first + owner;
        if self.tree[node] == at_ns {
            return;
        }
        self.tree[node] = at_ns;
        while node > 1 {
            node /= 2;
            let earlier = self.tree[2 * node].min(self.tree[2 * node + 1]);
            if self.tree[node] == earlier {
                return;
            }
            self.tree[node] = earlier;
        }
    }

    /// Returns the earliest of all; `u64::MAX` = none.
    #[inline]
    pub fn earliest_ns(&self) -> u64 {
        self.tree[1]
    }

    /// Returns the first owner whose deadline has come.
    pub fn due(&self, now_ns: u64) -> Option<usize> {
        if self.tree[1] > now_ns || self.tree[1] == NEVER {
            return None;
        }
        let mut node = 1;
        while node < self.first {
            node = 2 * node + usize::from(self.tree[2 * node] > now_ns);
        }
        Some(node - self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_owner_and_none() {
        let mut one = Deadlines::new(1);
        assert_eq!((one.earliest_ns(), one.due(NEVER)), (NEVER, None));
        one.set(0, 7);
        assert_eq!((one.due(6), one.due(7)), (None, Some(0)));
        assert_eq!(Deadlines::new(0).due(NEVER), None);
    }

    #[test]
    #[should_panic(expected = "no owner 3")]
    fn set_of_an_unknown_owner_panics() {
        Deadlines::new(3).set(3, 7);
    }

    proptest! {
        #[test]
        fn the_earliest_is_that_of_a_list(
            sets in prop::collection::vec((0usize..11, prop_oneof![0u64..20, Just(NEVER)]), 0..60),
            now_ns in 0u64..20,
        ) {
            let (mut tree, mut list) = (Deadlines::new(11), [NEVER; 11]);
            for (owner, at_ns) in sets {
                tree.set(owner, at_ns);
                list[owner] = at_ns;
                prop_assert_eq!(Some(tree.earliest_ns()), list.iter().min().copied());
                prop_assert_eq!(tree.due(now_ns), list.iter().position(|at| *at <= now_ns));
            }
        }
    }
}
