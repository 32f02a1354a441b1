use super::*;
use proptest::prelude::*;

#[test]
fn the_table_is_bounded() {
    let mut holds = Holds::new(1);
    assert_eq!(holds.insert(1, Range::new(0, 1)), Ok(()));
    assert_eq!(holds.insert(2, Range::new(9, 1)), Err(Full));
    assert_eq!(holds.remove(1), Some(Range::new(0, 1)));
    assert_eq!(holds.remove(1), None);
    assert!(holds.is_empty() && holds.is_first(7));
}

/// Random histories: whenever writes are executed as soon as they may, overlapping ones are in
/// the order of arrival, none is executed twice or forgotten.
#[test]
fn t09_overlapping_writes_are_executed_in_the_order_of_arrival() {
    let mut random = 1_u64;
    let mut below = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    for _ in 0..500 {
        let mut holds = Holds::new(64);
        let ranges: Vec<_> = (0..40)
            .map(|_| Range::new(below(32), 1 + below(6)))
            .collect();
        let mut may: Vec<u32> = Vec::new();
        let mut executed: Vec<u32> = Vec::new();
        let mut next = 0;
        while executed.len() < ranges.len() {
            if next < ranges.len() && below(2) == 0 {
                let id = next as u32;
                let waits = holds.overlaps(ranges[next]);
                holds.insert(id, ranges[next]).unwrap();
                assert_eq!(holds.is_first(id), !waits);
                if !waits {
                    may.push(id);
                }
                next += 1;
            } else if !may.is_empty() {
                let id = may.swap_remove(below(may.len() as u64) as usize);
                executed.push(id);
                let freed = holds.remove(id).unwrap();
                holds.freed_by(freed, |id| may.push(id));
            }
        }
        for (at, &a) in executed.iter().enumerate() {
            let mut later = executed[at + 1..].iter();
            let swapped =
                later.find(|&&b| b < a && ranges[a as usize].overlaps(ranges[b as usize]));
            assert_eq!(swapped, None, "{executed:?}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Remove(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (0u64..40, 0u64..12).prop_map(|(start, length)| Step::Insert(start, length));
    let remove = any::<prop::sample::Index>().prop_map(Step::Remove);
    prop::collection::vec(prop_oneof![3 => insert, 2 => remove], 1..200)
}

/// All entries in order of arrival, each compared with all before it.
#[derive(Default)]
struct Model(Vec<(u32, Range)>);

impl Model {
    fn is_first(&self, at: usize) -> bool {
        let range = self.0[at].1;
        !self.0[..at].iter().any(|(_, it)| it.overlaps(range))
    }

    fn freed_by(&self, ended: Range) -> Vec<u32> {
        let is_freed = |at: &usize| self.0[*at].1.overlaps(ended) && self.is_first(*at);
        let freed = (0..self.0.len()).filter(is_freed);
        freed.map(|at| self.0[at].0).collect()
    }
}

proptest! {
    /// Against a model that compares each entry with all before it; also entries that are removed
    /// before their turn.
    #[test]
    fn t09_holds_name_what_a_plain_list_names(steps in steps()) {
        let (mut holds, mut model) = (Holds::new(64), Model::default());
        for step in steps {
            match step {
                Step::Insert(start, length) => {
                    let range = Range::new(start, length);
                    let overlaps = model.0.iter().any(|(_, it)| it.overlaps(range));
                    prop_assert_eq!(holds.overlaps(range), overlaps);
                    let id = (0..64).find(|id| model.0.iter().all(|(it, _)| it != id));
                    let Some(id) = id else {
                        prop_assert_eq!(holds.insert(64, range), Err(Full));
                        continue;
                    };
                    prop_assert_eq!(holds.insert(id, range), Ok(()));
                    model.0.push((id, range));
                }
                Step::Remove(index) if !model.0.is_empty() => {
                    let (id, range) = model.0.remove(index.index(model.0.len()));
                    prop_assert_eq!(holds.remove(id), Some(range));
                    let mut freed = Vec::new();
                    holds.freed_by(range, |id| freed.push(id));
                    prop_assert_eq!(freed, model.freed_by(range));
                }
                Step::Remove(_) => prop_assert_eq!(holds.remove(0), None),
            }
            prop_assert_eq!(holds.is_empty(), model.0.is_empty());
            for (at, (id, _)) in model.0.iter().enumerate() {
                prop_assert_eq!(holds.is_first(*id), model.is_first(at));
            }
        }
    }
}
