//! Data that the last leg in sync has lost, once a user accepts it (T50).
use super::super::super::assembly::tests::PLACE;
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, well};
use alloc::vec;

/// Where leg 0 was cut.
const CUT_AT: u64 = 2 << 20;
const BYTES: u64 = 4 << 20;

/// A mirror whose leg 1 is away, then lacks a write at `missed`, and whose leg 0 was cut.
fn cut(missed: u64) -> Mirror {
    let mut mirror = started(2, Config::new(6));
    for (at, now_ns) in [(0, MS), (missed, 2 * MS)] {
        if now_ns > MS {
            mirror.leg_lost(1, now_ns);
        }
        let request = Request::Write(Range::new(at, BLOCK), false);
        mirror.submit(request, now_ns).unwrap();
        run(&mut mirror, now_ns, &mut well);
    }
    mirror.leg_resized(0, PLACE.data_offset + CUT_AT, 3 * MS);
    run(&mut mirror, 3 * MS, &mut well);
    assert_eq!(mirror.legs[0].committed.cut_at, CUT_AT);
    mirror
}

/// Whether all behind the cut is copied to leg 1 until it is in sync.
fn is_copied(mirror: &mut Mirror, from_ms: u64) -> bool {
    let mut blocks = vec![false; (BYTES / BLOCK) as usize];
    let mut notes = |output: &Output, _| {
        if let Output::CopyWrite(_, _, range) = output {
            let (first, end) = (range.start / BLOCK, range.end / BLOCK);
            blocks[first as usize..end as usize].fill(true);
        }
        None
    };
    for now_ms in (from_ms..from_ms + 5000).step_by(100) {
        mirror.handle_timeout(now_ms * MS);
        while let Some(output) = mirror.poll_output(now_ms * MS) {
            end(mirror, output, now_ms * MS, &mut notes);
        }
    }
    assert!(mirror.facts(1).unwrap().in_sync);
    blocks[(CUT_AT / BLOCK) as usize..].iter().all(|&it| it)
}

/// Data of leg 1 there is older, and not what is used from now on.
#[test]
fn t50_accepted_loss_is_copied_to_a_leg_that_returns() {
    let mut mirror = cut(0);
    assert!(mirror.accept_cut(0, 4 * MS));
    run(&mut mirror, 4 * MS, &mut well);
    assert_eq!(mirror.legs[0].committed.cut_at, 0);
    mirror.leg_found(1, 0, 5 * MS);
    assert!(is_copied(&mut mirror, 5));
}

/// It was being rebuilt, and lacked one of two regions.
#[test]
fn t50_accepted_loss_is_copied_to_a_leg_being_rebuilt() {
    let mut mirror = cut(3 << 20);
    mirror.leg_found(1, 0, 4 * MS);
    for now_ms in (4..5000).step_by(100) {
        mirror.handle_timeout(now_ms * MS);
        run(&mut mirror, now_ms * MS, &mut well);
    }
    assert!(mirror.facts(1).unwrap().is_stuck());
    assert!(mirror.accept_cut(0, 5000 * MS));
    assert!(is_copied(&mut mirror, 5000));
}

/// After a crash the bitmap is all that tells of it.
#[test]
fn t50_accepted_loss_is_marked_before_it_is_said() {
    let mut mirror = cut(0);
    assert!(mirror.accept_cut(0, 4 * MS));
    let mut said = false;
    while let Some(output) = mirror.poll_output(4 * MS) {
        if let Output::Superblock(ticket, _) = &output {
            let leg = &mirror.legs[ticket.leg];
            said |= leg.proposed.cut_at == 0;
            let marked = [2, 3].map(|region| mirror.log.is_durable(region));
            assert!(leg.proposed.cut_at > 0 || marked == [true; 2]);
        }
        assert!(said || mirror.facts(0).unwrap().accepting);
        end(&mut mirror, output, 4 * MS, &mut well);
    }
    assert!(said && !mirror.facts(0).unwrap().accepting);
}

/// A sanitize operation is under way: that is no loss that was accepted, and nothing is marked.
#[test]
fn t50_leg_that_loses_more_is_not_accepted() {
    let mut mirror = cut(0);
    assert!(mirror.accept_cut(0, 4 * MS));
    let mut erased = |output: &Output, _| match output {
        Output::Pages(..) => Some(Outcome::Erased),
        _ => None,
    };
    run(&mut mirror, 4 * MS, &mut erased);
    let facts = mirror.facts(0).unwrap();
    assert_eq!((facts.accepting, facts.cut_end), (false, Some(0)));
    assert!(mirror.was_cut(0));
    let missed = mirror.legs[1].missed().unwrap();
    assert!(!missed.is_set(2) && !missed.is_set(3));
    run(&mut mirror, 5 * MS, &mut well);
    assert_eq!(mirror.legs[0].committed.cut_at, 1);
}

#[test]
fn t50_acceptance_goes_on_when_the_bitmap_can_be_written() {
    let mut mirror = cut(0);
    assert!(mirror.accept_cut(0, 4 * MS));
    for now_ms in [4, 1100] {
        let mut fails = |output: &Output, _| match output {
            Output::Pages(..) => Some(Outcome::MediaError),
            _ => None,
        };
        mirror.handle_timeout(now_ms * MS);
        run(&mut mirror, now_ms * MS, &mut fails);
        let facts = mirror.facts(0).unwrap();
        assert!(facts.accepting && facts.cut_short, "{facts:?}");
        assert!(
            mirror
                .poll_timeout()
                .is_some_and(|at| at <= (now_ms + 1100) * MS)
        );
    }
    mirror.handle_timeout(2200 * MS);
    run(&mut mirror, 2200 * MS, &mut well);
    assert_eq!(mirror.legs[0].committed.cut_at, 0);
    mirror.leg_found(1, 0, 2300 * MS);
    assert!(is_copied(&mut mirror, 2300));
}
