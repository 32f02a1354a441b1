//! T55: what was asked and given up is taken back while no leg has been told of it.
use super::super::*;
use super::rules::{BLOCK, MS, run, started, well};
use crate::layout::DATA_ALIGN;
use crate::limits::LEGS_MAX;
use crate::{Id, Label};

/// Three legs, of which 2 has left, and the superblock of that event is under way on leg 0.
fn busy() -> (Mirror, alloc::vec::Vec<Output>) {
    let mut mirror = started(3, Config::new(6));
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror.leg_lost(2, 2 * MS);
    let mut under_way = alloc::vec::Vec::new();
    while let Some(output) = mirror.poll_output(2 * MS) {
        under_way.extend(output.ticket().map(|_| output));
    }
    assert!(!under_way.is_empty(), "an event is being said");
    (mirror, under_way)
}

fn finish(mirror: &mut Mirror, under_way: alloc::vec::Vec<Output>, now_ns: u64) {
    for ticket in under_way.iter().filter_map(Output::ticket) {
        mirror.handle_done(ticket, Outcome::Done, now_ns);
    }
    run(mirror, now_ns, &mut well);
}

fn add(mirror: &mut Mirror) -> Result<u8, ChangeError> {
    let (id, label) = (Id([0x99; 16]), Label::of_uri("file:/new"));
    let place = mirror.place(0).unwrap();
    mirror.add_leg(id, label, place, Legs::default(), 3 * MS)
}

#[test]
fn t55_removal_taken_back_before_it_is_said() {
    let (mut mirror, under_way) = busy();
    mirror.remove_leg(2, 3 * MS).unwrap();
    assert!(mirror.take_back_removal(2, 4 * MS));
    assert!(!mirror.take_back_removal(2, 4 * MS), "there is none");
    finish(&mut mirror, under_way, 5 * MS);
    assert!(mirror.superblock().entries().any(|it| it.0 == 2));
    // One that is being said is not taken back: a leg may have it.
    mirror.remove_leg(2, 6 * MS).unwrap();
    let mut under_way = alloc::vec::Vec::new();
    while let Some(output) = mirror.poll_output(6 * MS) {
        under_way.extend(output.ticket().map(|_| output));
    }
    assert!(!mirror.take_back_removal(2, 7 * MS));
    finish(&mut mirror, under_way, 8 * MS);
    assert!(!mirror.superblock().entries().any(|it| it.0 == 2));
}

#[test]
fn t55_addition_taken_back_before_it_is_said() {
    let (mut mirror, under_way) = busy();
    let slot = add(&mut mirror).unwrap();
    assert!(mirror.take_back_addition(slot, 4 * MS));
    assert!(!mirror.take_back_addition(slot, 4 * MS), "there is none");
    finish(&mut mirror, under_way, 5 * MS);
    assert_eq!(mirror.superblock().entries().count(), 3);
    assert_eq!(add(&mut mirror), Ok(slot), "the slot is free again");
    run(&mut mirror, 6 * MS, &mut well);
    assert_eq!(mirror.superblock().entries().count(), 4);
    assert!(!mirror.take_back_addition(slot, 7 * MS));
}

/// The next leg of a slot is not on its way back because the one before it was.
#[test]
fn leg_that_gets_a_slot_begins_as_away() {
    let (mut mirror, under_way) = busy();
    let is_away = |mirror: &Mirror, leg| !mirror.legs.is_returning(leg);
    let slot = add(&mut mirror).unwrap();
    assert!(is_away(&mirror, slot));
    mirror.leg_found(slot, 0, 3 * MS);
    assert!(!is_away(&mirror, slot));
    assert!(mirror.take_back_addition(slot, 4 * MS));
    assert!(is_away(&mirror, slot), "there is no leg");
    finish(&mut mirror, under_way, 5 * MS);
    // It was removed, and is found once more while its superblocks are overwritten.
    mirror.leg_found(slot, 0, 5 * MS);
    assert_eq!(add(&mut mirror), Ok(slot));
    assert!(is_away(&mirror, slot), "another leg");
}

#[test]
fn t55_growth_taken_back_before_its_size_is_said() {
    let mut mirror = started(2, Config::new(6));
    let mut sizes = [0; LEGS_MAX];
    for (slot, _) in mirror.superblock().entries() {
        let bytes = mirror.place(slot).unwrap().leg_bytes;
        sizes[usize::from(slot)] = bytes + 64 * DATA_ALIGN;
    }
    let before = mirror.superblock().geometry;
    mirror.grow(&sizes, MS).unwrap();
    assert!(mirror.take_back_growth(2 * MS));
    assert!(!mirror.take_back_growth(2 * MS), "there is none");
    run(&mut mirror, 3 * MS, &mut well);
    assert_eq!(mirror.superblock().geometry, before);
    mirror.grow(&sizes, 4 * MS).unwrap();
    run(&mut mirror, 4 * MS, &mut well);
    assert!(mirror.superblock().geometry.bytes > before.bytes);
}

/// It was found, and its addition is to be said once more: the leg begins with that.
#[test]
fn leg_whose_addition_is_not_committed_does_not_return() {
    let mut mirror = started(2, Config::new(6));
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    run(&mut mirror, MS, &mut well);
    let slot = add(&mut mirror).unwrap();
    let mut under_way = alloc::vec::Vec::new();
    while let Some(output) = mirror.poll_output(3 * MS) {
        under_way.extend(output.ticket().map(|_| output));
    }
    assert!(!mirror.take_back_addition(slot, 4 * MS), "it is being said");
    mirror.leg_found(slot, 0, 4 * MS);
    // One leg leaves, and the last one may execute what it has failed: nothing is said until then.
    mirror.submit(write, 5 * MS).unwrap();
    let mut fails =
        |output: &Output, _| matches!(output, Output::Leg(..)).then_some(Outcome::PathError);
    for leg in [0, 1] {
        mirror.may_be_late(leg, 100 * MS, 5 * MS);
    }
    run(&mut mirror, 5 * MS, &mut fails);
    finish(&mut mirror, under_way, 6 * MS);
    assert_eq!(mirror.committed().entries().count(), 2);
    assert!(!mirror.facts(slot).unwrap().rebuilding);
    for now_ns in (100 * MS..3_000 * MS).step_by(10 * MS as usize) {
        mirror.handle_timeout(now_ns);
        run(&mut mirror, now_ns, &mut well);
    }
    assert_eq!(mirror.committed().entries().count(), 3);
    assert!(mirror.facts(slot).unwrap().in_sync);
}
