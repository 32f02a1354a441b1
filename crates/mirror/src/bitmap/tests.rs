//! Bits stay where they were set, and what can't be read counts as set.
use super::super::superblock::tests::documented;
use super::*;
use alloc::collections::BTreeSet;
use crc_fast::crc32_iscsi;
use proptest::prelude::*;

const MIRROR_ID: Id = Id([5; 16]);

fn bitmap(regions: u64, set: &[u64]) -> Bitmap {
    let mut bitmap = Bitmap::new(regions);
    for region in set {
        bitmap.set(*region);
    }
    bitmap
}

proptest! {
    #[test]
    fn it_is_a_set_of_regions(
        regions in 1_u64..12_000,
        steps in prop::collection::vec((any::<bool>(), 0_u64..12_100), 0..200),
    ) {
        let (mut bitmap, mut model) = (Bitmap::new(regions), BTreeSet::new());
        for (set, region) in steps {
            let changed = match set {
                true => region < regions && model.insert(region),
                false => model.remove(&region),
            };
            prop_assert_eq!(if set { bitmap.set(region) } else { bitmap.clear(region) }, changed);
            prop_assert_eq!(bitmap.is_set(region), model.contains(&region));
            prop_assert_eq!(bitmap.next(region), model.range(region..).next().copied());
        }
        prop_assert_eq!(bitmap.count(), model.len() as u64);
        let mut read = Bitmap::new(regions);
        for page in 0..bitmap.pages() {
            let bytes = bitmap.encode(page, MIRROR_ID, crc32_iscsi);
            prop_assert_eq!(read.merge_page(page, &bytes, MIRROR_ID, crc32_iscsi), Ok(()));
        }
        prop_assert_eq!(&read, &bitmap);
        prop_assert_eq!(bitmap.next(u64::MAX), None);
    }

    #[test]
    fn a_page_from_anywhere_sets_nothing_or_what_it_says(
        regions in 1_u64..9000,
        page in 0_usize..4,
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut bitmap = Bitmap::new(regions);
        prop_assert!(bitmap.merge_page(page, &bytes, MIRROR_ID, crc32_iscsi).is_err());
        prop_assert_eq!(bitmap.count(), 0);
    }
}

#[test]
fn every_byte_that_changes_is_seen() {
    let page = bitmap(5000, &[0, 77, 3839]).encode(0, MIRROR_ID, crc32_iscsi);
    for at in 0..PAGE_BYTES {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = page;
            bad[at] ^= flip;
            let mut read = Bitmap::new(5000);
            assert!(
                read.merge_page(0, &bad, MIRROR_ID, crc32_iscsi).is_err(),
                "byte {at} ^ {flip:#x}"
            );
            assert_eq!(read.count(), 0);
        }
    }
}

#[test]
fn a_page_of_elsewhere_is_refused() {
    let page = bitmap(9000, &[1]).encode(1, MIRROR_ID, crc32_iscsi);
    let mut read = Bitmap::new(9000);
    let misplaced = Err(PageError::Misplaced(1));
    assert_eq!(read.merge_page(0, &page, MIRROR_ID, crc32_iscsi), misplaced);
    assert_eq!(
        read.merge_page(1, &page, Id([6; 16]), crc32_iscsi),
        misplaced
    );
    assert_eq!(read.merge_page(1, &page, MIRROR_ID, crc32_iscsi), Ok(()));
    assert_eq!(
        read.merge_page(1, &[0; 512], MIRROR_ID, crc32_iscsi),
        Err(PageError::Missing)
    );
    assert_eq!(
        read.merge_page(1, &page[..511], MIRROR_ID, crc32_iscsi),
        Err(PageError::Length(511))
    );
}

#[test]
fn what_is_behind_the_last_region_means_nothing() {
    let larger = bitmap(3840, &(0..3840).collect::<Vec<_>>()).encode(0, MIRROR_ID, crc32_iscsi);
    for regions in [1, 63, 64, 65, 3839, 3840] {
        let mut read = Bitmap::new(regions);
        assert_eq!(read.merge_page(0, &larger, MIRROR_ID, crc32_iscsi), Ok(()));
        assert_eq!(read.count(), regions);
    }
}

#[test]
fn an_unreadable_page_suspects_its_regions_and_a_union_has_both() {
    let mut read = bitmap(5000, &[1]);
    read.suspect(1);
    assert_eq!(read.count(), 1 + 5000 - 3840);
    assert_eq!(read.next(2), Some(3840));
    read.suspect(7);
    let mut union = bitmap(5000, &[2]);
    union.merge(&read);
    assert_eq!(union.count(), 2 + 5000 - 3840);
    assert_eq!((Bitmap::page_of(3839), Bitmap::page_of(3840)), (0, 1));
}

#[test]
fn the_document_says_where_everything_lies() {
    let fields = [
        (MAGIC_AT, "magic"),
        (CHECKSUM, "checksum"),
        (INDEX, "page"),
        (MIRROR, "mirror"),
        (BITS, "bits"),
    ];
    documented("A page of the bitmap", &fields, PAGE_BYTES);
}
