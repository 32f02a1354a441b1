//! The values of all policies of a volume, those that are not in force included (row B5).
//!
//! A policy's value is shown while another one is in force, and lasts until it is set again. Its
//! word without a value sets the usual one.
use crate::types::Policy;
use core::mem::discriminant;

/// One of each policy, with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values([Policy; Policy::EACH.len()]);

impl Default for Values {
    fn default() -> Self {
        Self(Policy::EACH)
    }
}

impl Values {
    /// Notes the value of a policy that was set.
    pub fn note(&mut self, policy: Policy) {
        let is_same = |it: &&mut Policy| discriminant(*it) == discriminant(&policy);
        if let Some(it) = self.0.iter_mut().find(is_same) {
            *it = policy;
        }
    }

    /// All of them, in the order of [`Policy::EACH`].
    pub fn iter(&self) -> impl Iterator<Item = Policy> {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathIndex;
    use std::vec::Vec;

    #[test]
    fn b5_each_policy_keeps_its_last_value() {
        let mut values = Values::default();
        assert!(values.iter().eq(Policy::EACH));
        for policy in [
            Policy::RoundRobin { bytes: 65536 },
            Policy::Devid(PathIndex(3)),
            Policy::RoundRobin { bytes: 196_608 },
            Policy::Numa,
        ] {
            values.note(policy);
        }
        let all: Vec<_> = values.iter().collect();
        assert!(all.contains(&Policy::RoundRobin { bytes: 196_608 }));
        assert!(all.contains(&Policy::Devid(PathIndex(3))));
        assert_eq!(all.len(), Policy::EACH.len());
        let changed = all.iter().filter(|it| !Policy::EACH.contains(it));
        assert_eq!(changed.count(), 2);
    }
}
