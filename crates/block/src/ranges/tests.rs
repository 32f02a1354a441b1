use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64, u64),
    Remove(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (0u32..3, 0u64..600, 1u64..10)
        .prop_map(|(volume, start, length)| Step::Insert(volume, start, length));
    let remove = any::<prop::sample::Index>().prop_map(Step::Remove);
    prop::collection::vec(prop_oneof![3 => insert, 2 => remove], 1..400)
}

/// Checks the chunks, and returns the entries in order.
fn entries(of: &Ranges) -> Vec<Entry> {
    let lens: Vec<usize> = (0..of.order.len()).map(|at| of.chunk(at).len).collect();
    assert!(lens.iter().all(|len| (1..=CHUNK).contains(len)), "{lens:?}");
    let pairs = lens.windows(2).map(|pair| pair[0] + pair[1]);
    assert!(pairs.clone().all(|sum| sum > CHUNK / 4), "{lens:?}");
    assert_eq!(of.order.len() + of.free.len(), of.chunks.len());
    let chunks = (0..of.order.len()).map(|at| of.chunk(at).used().to_vec());
    chunks.flatten().collect()
}

proptest! {
    /// Against a list that is looked through.
    #[test]
    fn queries_find_what_a_plain_list_has(steps in steps(), byte in 0u64..600) {
        let (mut ranges, mut model) = (Ranges::new(4), Vec::<Entry>::new());
        for (owner, step) in (0..).zip(steps) {
            match step {
                Step::Insert(volume, start, length) => {
                    let range = Range::new(start, length);
                    let entry = Entry { volume, owner, range };
                    let place = ranges.seek(volume, start);
                    let found = ranges.get(place).copied();
                    let overlaps = |it: &Entry| it.volume == volume && it.range.overlaps(range);
                    let first = model.iter().find(|it| overlaps(it)).copied();
                    prop_assert_eq!(found.filter(overlaps), first);
                    if first.is_none() {
                        ranges.insert(place, entry);
                        model.push(entry);
                        model.sort_by_key(Entry::end);
                    }
                }
                Step::Remove(index) if !model.is_empty() => {
                    let entry = model.remove(index.index(model.len()));
                    let place = ranges.seek(entry.volume, entry.range.start);
                    prop_assert_eq!(ranges.remove(place), entry);
                }
                Step::Remove(_) => prop_assert!(ranges.is_empty()),
            }
            prop_assert_eq!(&entries(&ranges), &model);
            for volume in 0..3 {
                let first = model.iter().find(|it| it.end() > point(volume, byte));
                prop_assert_eq!(ranges.get(ranges.seek(volume, byte)), first);
            }
        }
    }
}

/// Chunks that have given up most of their entries are not kept.
#[test]
fn chunks_are_few_when_entries_are() {
    let mut ranges = Ranges::new(0);
    for start in 0..4096 {
        let (owner, range) = (0, Range::new(start, 1));
        let place = ranges.seek(0, start);
        ranges.insert(
            place,
            Entry {
                volume: 0,
                owner,
                range,
            },
        );
    }
    assert!(ranges.order.len() <= 4096 / (CHUNK / 2));
    for start in (0..4096).filter(|start| start % 64 > 0) {
        ranges.remove(ranges.seek(0, start));
    }
    assert_eq!(entries(&ranges).len(), 64);
    assert!(
        ranges.order.len() <= 64 / (CHUNK / 8) + 1,
        "{}",
        ranges.order.len()
    );
}
