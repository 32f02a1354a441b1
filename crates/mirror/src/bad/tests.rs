//! The record against a map of blocks, and what is written against what is read.
extern crate std;
use super::BadKind::{LastCopy, Unwritten};
use super::*;
use alloc::collections::BTreeSet;
use proptest::prelude::*;

const BLOCKS: u64 = 300;

fn blocks_of(record: &BadBlocks) -> BTreeSet<(u8, BadKind, u64)> {
    let blocks = |it: &BadRange| {
        let (slot, kind) = (it.slot, it.kind);
        (it.first..it.end()).map(move |block| (slot, kind, block))
    };
    record.iter().copied().flat_map(|it| blocks(&it)).collect()
}

fn written(record: &BadBlocks) -> [u8; BAD_MAX * BAD_ENTRY_BYTES] {
    let mut bytes = [0; BAD_MAX * BAD_ENTRY_BYTES];
    record.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn record_holds_what_a_set_of_blocks_holds(
        steps in prop::collection::vec(
            (any::<bool>(), 0_u8..3, any::<bool>(), 0_u64..BLOCKS - 9, 1_u64..9), 0..120,
        ),
    ) {
        let mut record = BadBlocks::default();
        let mut model = BTreeSet::new();
        for (adds, slot, last, first, count) in steps {
            let kind = if last { LastCopy } else { Unwritten };
            let end = first + count;
            let next = match adds {
                true => record.with(slot, kind, first, end),
                false => record.without(slot, kind, first, end),
            };
            let Some(next) = next else {
                prop_assert!(record.iter().count() >= BAD_MAX);
                continue;
            };
            record = next;
            for block in first..end {
                match adds {
                    true => model.insert((slot, kind, block)),
                    false => model.remove(&(slot, kind, block)),
                };
            }
            prop_assert_eq!(&blocks_of(&record), &model);
            let any = (first..end).any(|block| model.contains(&(slot, kind, block)));
            let all = (first..end).all(|block| model.contains(&(slot, kind, block)));
            prop_assert_eq!(record.touches(slot, kind, first, end), any);
            prop_assert_eq!(record.covers(slot, kind, first, end), all);
            prop_assert_eq!(BadBlocks::parse(&written(&record)), Some(record));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_have_one_encoding(
        changes in prop::collection::vec((0_usize..48, any::<u8>()), 0..8),
    ) {
        let record = BadBlocks::default().with(1, Unwritten, 3, 5).unwrap();
        let record = record.with(1, Unwritten, 8, 9).unwrap();
        let mut bytes = written(&record);
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Some(read) = BadBlocks::parse(&bytes) {
            prop_assert_eq!(written(&read), bytes);
            prop_assert!(read.iter().all(|it| it.end() > it.first));
        }
    }
}

#[test]
fn full_record_takes_no_range_and_no_split() {
    let mut record = BadBlocks::default();
    for at in 0..BAD_MAX as u64 {
        record = record.with(2, Unwritten, at * 4, at * 4 + 3).unwrap();
    }
    assert_eq!(record.with(2, Unwritten, 200, 201), None);
    assert_eq!(record.without(2, Unwritten, 1, 2), None);
    assert!(record.with(2, Unwritten, 3, 4).is_some(), "it joins two");
    assert!(record.without(2, Unwritten, 0, 1).is_some());
    assert_eq!(record.without(2, Unwritten, 1, 1), Some(record), "no block");
    let all = record.retained(|it| it.slot != 2);
    assert!(all.is_empty());
    assert_eq!(all.with(0, Unwritten, 7, 7), None, "no block");
    assert_eq!(all.with(0, Unwritten, 0, 1 << 32), None, "too long");
}
