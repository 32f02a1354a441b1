use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64, u64),
    Remove(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (0u32..3, 0u64..60, 0u64..20)
        .prop_map(|(volume, start, length)| Step::Insert(volume, start, length));
    let remove = any::<prop::sample::Index>().prop_map(Step::Remove);
    prop::collection::vec(prop_oneof![3 => insert, 2 => remove], 1..200)
}

/// Checks a subtree: order, balance, and what its top knows of it. Returns its height.
fn check(of: &Ranges, at: u32) -> u32 {
    if at == NONE {
        return 0;
    }
    let node = &of.nodes[at as usize];
    let heights = node.below.map(|side| check(of, side));
    assert!(heights[0].abs_diff(heights[1]) <= 1, "{heights:?}");
    let mut want = node.entry.sum();
    want.height = heights[0].max(heights[1]) + 1;
    for (side, below) in node.below.into_iter().enumerate() {
        let child = &of.nodes[below as usize];
        if below != NONE {
            assert_eq!(child.entry.key() > node.entry.key(), side == 1);
            want.reach = want.reach.max(child.sum.reach);
        }
    }
    assert_eq!(node.sum, want);
    want.height
}

proptest! {
    /// Against a list that is looked through.
    #[test]
    fn queries_find_what_a_plain_list_has(steps in steps(), start in 0u64..60, length in 0u64..20) {
        let (mut ranges, mut model) = (Ranges::new(4), Vec::<(u32, Entry)>::new());
        let asked = Range::new(start, length);
        for (owner, step) in (0..).zip(steps) {
            match step {
                Step::Insert(volume, start, length) => {
                    let range = Range::new(start, length);
                    let entry = Entry { volume, range, owner };
                    if model.iter().all(|(_, it)| it.key() != entry.key()) {
                        model.push((ranges.insert(entry), entry));
                    }
                }
                Step::Remove(index) if !model.is_empty() => {
                    let (at, entry) = model.swap_remove(index.index(model.len()));
                    prop_assert_eq!(ranges.remove(at), entry);
                }
                Step::Remove(_) => prop_assert!(ranges.is_empty()),
            }
            check(&ranges, ranges.root);
            model.sort_by_key(|(_, it)| it.key());
            for volume in 0..3 {
                let overlaps = |it: &Entry| it.volume == volume && it.range.overlaps(asked);
                let first = model.iter().find(|(_, it)| overlaps(it));
                prop_assert_eq!(ranges.first(volume, asked), first.map(|it| it.0));
            }
        }
    }
}

/// Starts that rise or fall make no list of it.
#[test]
fn tree_stays_low_in_any_order_of_starts() {
    for falls in [false, true] {
        let mut ranges = Ranges::new(0);
        let all: Vec<u32> = (0..4096)
            .map(|n| if falls { 4096 - n } else { n })
            .map(|start| {
                ranges.insert(Entry {
                    volume: 0,
                    range: Range::new(start, 1),
                    owner: 0,
                })
            })
            .collect();
        assert!(check(&ranges, ranges.root) <= 17);
        for at in &all[..4000] {
            ranges.remove(*at);
        }
        assert!(check(&ranges, ranges.root) <= 9);
    }
}
