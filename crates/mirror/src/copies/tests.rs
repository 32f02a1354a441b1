//! Whatever becomes of an update, one of the two copies is whole, and it is the right one.
use super::super::superblock::{MAGIC, SUPERBLOCK_BYTES, tests::superblock};
use super::*;
use crate::Id;
use crc_fast::crc32_iscsi;

type Block = [u8; SUPERBLOCK_BYTES];
const SECTOR: usize = 512;

fn read(copies: &[Block; 2]) -> Result<Chosen, NoLeg> {
    choose([0, 1].map(|at| Superblock::parse(&copies[usize::from(at)], at, crc32_iscsi)))
}

/// `old` and the next event of it, on a leg at rest.
fn before_and_after() -> ([Block; 2], Superblock, Superblock) {
    let old = superblock(11);
    let new = old.begun(99);
    (
        [old.encode(0, crc32_iscsi), old.encode(1, crc32_iscsi)],
        old,
        new,
    )
}

#[test]
fn a_torn_update_gives_the_old_or_the_new_one_never_none() {
    let (mut copies, old, new) = before_and_after();
    // Both copies in turn, as an update writes them, in any subset of sectors.
    for round in 0..2 {
        let at = read(&copies).unwrap().next_copy();
        let next = new.encode(at, crc32_iscsi);
        for written in 0..1_u32 << (SUPERBLOCK_BYTES / SECTOR) {
            let mut torn = copies;
            let sectors = torn[usize::from(at)]
                .chunks_mut(SECTOR)
                .zip(next.chunks(SECTOR));
            for (nth, (old, new)) in sectors.enumerate() {
                if written >> nth & 1 == 1 {
                    old.copy_from_slice(new);
                }
            }
            let chosen = read(&torn).unwrap();
            // A sector that is the same in both is no tear.
            let whole = torn[usize::from(at)] == next;
            let expected = if round == 1 || whole { new } else { old };
            assert_eq!(
                chosen.superblock, expected,
                "sectors {written:#010b}, round {round}"
            );
        }
        copies[usize::from(at)] = next;
    }
    let chosen = read(&copies).unwrap();
    assert_eq!((chosen.superblock, chosen.other), (new, Ok(new.sequence)));
}

#[test]
fn at_rest_damage_to_either_copy_costs_nothing() {
    let (copies, old, _) = before_and_after();
    for at in 0..2_usize {
        for sector in 0..SUPERBLOCK_BYTES / SECTOR {
            for byte in [0, 0xff, 0x5a] {
                let mut bad = copies;
                bad[at][sector * SECTOR..][..SECTOR].fill(byte);
                let chosen = read(&bad).unwrap();
                assert_eq!(chosen.superblock, old, "copy {at}, sector {sector}");
                // An empty sector was empty before.
                let whole = bad == copies;
                assert_eq!(chosen.other.is_ok(), whole, "copy {at}, sector {sector}");
                assert!(whole || usize::from(chosen.copy) == 1 - at);
            }
        }
    }
}

#[test]
fn the_higher_sequence_holds_and_the_other_is_written_next() {
    let (_, old, new) = before_and_after();
    for (a, b, holds, next) in [(old, new, new, 0), (new, old, new, 1), (old, old, old, 1)] {
        let chosen = read(&[a.encode(0, crc32_iscsi), b.encode(1, crc32_iscsi)]).unwrap();
        assert_eq!((chosen.superblock, chosen.next_copy()), (holds, next));
    }
}

#[test]
fn what_is_no_leg_is_refused_for_what_it_is() {
    let (copies, old, new) = before_and_after();
    let empty = [0; SUPERBLOCK_BYTES];
    assert_eq!(read(&[empty, empty]), Err(NoLeg::Missing));
    let mut rubbish = empty;
    rubbish[..8].copy_from_slice(&MAGIC);
    assert!(matches!(read(&[rubbish, empty]), Err(NoLeg::Damaged(_))));
    assert_eq!(
        read_copies([None, None], crc32_iscsi),
        Err(NoLeg::Unreadable)
    );
    let mut other = old;
    other.mirror = Id([1; 16]);
    assert_eq!(
        read(&[old.encode(0, crc32_iscsi), other.encode(1, crc32_iscsi)]),
        Err(NoLeg::Disagree)
    );
    // Both in the same place: one of them was written to a wrong one.
    let chosen = read(&[old.encode(0, crc32_iscsi), new.encode(0, crc32_iscsi)]).unwrap();
    assert_eq!(chosen.superblock, old);
    let newer = ParseError::Incompatible(1);
    for order in [[Ok(old), Err(newer)], [Err(newer), Ok(old)]] {
        assert_eq!(choose(order), Err(NoLeg::Newer(newer)), "{copies:?}");
    }
}
