//! Legs that are smaller for a moment than the mirror needs: what they have counts no more (T50).
use super::super::super::assembly::tests::PLACE;
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, well};
use crate::mirror::superblock::LegState;

const NEEDED: u64 = PLACE.data_offset + (4 << 20);

fn begun() -> Mirror {
    let mut mirror = started(2, Config::new(6));
    write(&mut mirror, 0, MS);
    mirror
}

fn write(mirror: &mut Mirror, at: u64, now_ns: u64) -> Outcome {
    let request = Request::Write(Range::new(at, BLOCK), false);
    mirror.submit(request, now_ns).unwrap();
    run(mirror, now_ns, &mut well)[0].1
}

fn read(mirror: &mut Mirror, at: u64, now_ns: u64) -> Outcome {
    let request = Request::Read(Range::new(at, BLOCK));
    mirror.submit(request, now_ns).unwrap();
    run(mirror, now_ns, &mut well)[0].1
}

#[test]
fn t50_a_leg_that_shrank_leaves_and_has_nothing() {
    for slot in [0, 1] {
        let mut mirror = begun();
        mirror.leg_resized(slot, NEEDED, 2 * MS);
        assert!(mirror.facts(slot).unwrap().in_sync, "it is large enough");
        mirror.leg_resized(slot, NEEDED - 1, 2 * MS);
        mirror.leg_resized(slot, NEEDED, 2 * MS);
        assert!(!mirror.may_read(slot));
        run(&mut mirror, 2 * MS, &mut well);
        match mirror.superblock().state(slot) {
            Some(LegState::Stale(lack)) => assert_eq!(lack.position, 0),
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&mut mirror, 3 << 20, 3 * MS), Outcome::Done);
    }
}

#[test]
fn t50_the_last_leg_serves_what_was_never_cut() {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    let held = Request::Read(Range::new(3 << 20, BLOCK));
    mirror.submit(held, 2 * MS).unwrap();
    let Some(Output::Read(io, _, from)) = mirror.poll_output(2 * MS) else {
        panic!("a read");
    };
    let ticket = mirror.take(io, from.first().unwrap(), Wait::Long).unwrap();
    mirror.leg_resized(0, PLACE.data_offset + (2 << 20), 3 * MS);
    mirror.leg_resized(0, PLACE.data_offset + (3 << 20), 3 * MS);
    mirror.leg_resized(0, NEEDED, 3 * MS);
    // It was asked for before that was known.
    mirror.handle_done(ticket, Outcome::Done, 3 * MS);
    let ended = run(&mut mirror, 3 * MS, &mut well);
    assert_eq!(ended, [(io, Outcome::CutShort)]);
    for at in [2 << 20, (2 << 20) - 4096, 3 << 20] {
        assert_eq!(read(&mut mirror, at, 4 * MS), Outcome::CutShort, "{at}");
        assert_eq!(write(&mut mirror, at, 4 * MS), Outcome::CutShort, "{at}");
    }
    assert_eq!(write(&mut mirror, (2 << 20) - BLOCK, 5 * MS), Outcome::Done);
    assert_eq!(read(&mut mirror, (2 << 20) - BLOCK, 5 * MS), Outcome::Done);
    assert!(mirror.facts(0).unwrap().cut_short);
}

/// Nothing is copied from where it was cut: the other leg is not in sync.
#[test]
fn t50_a_rebuild_from_a_cut_leg_is_stuck() {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_resized(1, NEEDED - 1, 2 * MS);
    mirror.leg_resized(0, PLACE.data_offset + (2 << 20), 2 * MS);
    mirror.leg_resized(0, NEEDED, 2 * MS);
    mirror.leg_found(1, 0, 3 * MS);
    let mut copied = 0;
    let mut notes = |output: &Output, _| {
        if let Output::CopyWrite(_, _, range) = output {
            assert!(range.end <= 2 << 20, "{range:?}");
            copied += range.end - range.start;
        }
        None
    };
    for now_ns in (3 * MS..30_000 * MS).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            end(&mut mirror, output, now_ns, &mut notes);
        }
    }
    assert_eq!(copied, 2 << 20);
    let facts = mirror.facts(1).unwrap();
    assert!(facts.joining && facts.is_stuck(), "{facts:?}");
}
