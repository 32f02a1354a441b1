//! Parts that tests of several modules begin with.
use alloc::vec;
use alloc::vec::Vec;
use mirror::events::{New, NewLeg};
use mirror::layout::{BITMAP_AT, Candidate, Place, plan};
use mirror::limits::LEGS_MAX;
use mirror::{Id, Label, Name, Properties, Superblock};

/// The superblock of leg 0 of a new mirror "m0" whose legs have these labels.
pub(super) fn superblock(labels: &[Label]) -> Superblock {
    let size = Candidate {
        bytes: 16 << 20,
        block_shift: 12,
    };
    let (geometry, data_offset) = plan(&vec![size; labels.len()], None).ok().unwrap();
    let place = Place {
        leg_bytes: size.bytes,
        data_offset,
        bitmap_offset: BITMAP_AT,
    };
    let new = New {
        mirror: Id([1; 16]),
        lineage: 7,
        name: Name::new("m0").ok().unwrap(),
        properties: Properties::default(),
        geometry,
        created_s: 0,
        heartbeat_interval_ms: 1000,
    };
    let leg = |(slot, label): (u8, &Label)| NewLeg {
        id: Id([2 + slot; 16]),
        label: *label,
        in_sync: true,
    };
    let legs: Vec<NewLeg> = (0..).zip(labels).map(leg).collect();
    assert!(legs.len() <= LEGS_MAX);
    Superblock::new(&new, &legs, place).unwrap()
}
