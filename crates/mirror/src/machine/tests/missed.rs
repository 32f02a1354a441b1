//! Rules by hand: what a leg lacks that was away, beside what others lack.
use super::super::super::assembly::tests::legs;
use super::super::super::ownership::Terms;
use super::super::planted::{Bug, plant};
use super::super::*;
use super::rules::{MS, end, run, started, started_with, well};
use crate::Id;
use alloc::vec;
use alloc::vec::Vec;

const REGION: u64 = 1 << 20;
const SECOND: u64 = 1000 * MS;

fn region(number: u64) -> Range {
    Range::new(number * REGION, REGION)
}

fn config() -> Config {
    Config {
        copies: 6,
        copy_bytes: REGION as u32,
        clear_after_ns: SECOND,
        ..Config::new(6)
    }
}

fn write(mirror: &mut Mirror, number: u64, now_ns: u64) {
    let io = mirror.submit(Request::Write(region(number), false), now_ns);
    let ended = run(mirror, now_ns, &mut well);
    assert_eq!(ended, [(io.unwrap(), Outcome::Done)]);
}

/// All that is due until then ends well, but for copies: these wait.
fn rest(mirror: &mut Mirror, from_ns: u64, until_ns: u64) -> Vec<Output> {
    let mut copies = vec![];
    for now_ns in (from_ns..=until_ns).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::CopyRead(..) => copies.push(output),
                other => end(mirror, other, now_ns, &mut well),
            }
        }
    }
    copies
}

/// Legs 0 to 2: region 0 was written without leg 1, which is being rebuilt and gets none of it
/// yet; all have region 1; nothing else was written for seconds. The copies that wait.
fn one_is_rebuilt() -> (Mirror, Vec<Output>) {
    let mut mirror = started(3, config());
    write(&mut mirror, 1, MS);
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    write(&mut mirror, 0, 3 * MS);
    rest(&mut mirror, 4 * MS, 5 * SECOND);
    mirror.leg_found(1, 0, 5 * SECOND);
    let copies = rest(&mut mirror, 5 * SECOND, 6 * SECOND);
    assert!(mirror.facts(1).unwrap().rebuilding);
    (mirror, copies)
}

/// Takes a leg away and brings it back; what is in between.
fn blink(
    mirror: &mut Mirror,
    leg: u8,
    at_ns: u64,
    between: impl FnOnce(&mut Mirror),
) -> Vec<Output> {
    mirror.leg_lost(leg, at_ns);
    rest(mirror, at_ns, at_ns + MS);
    between(mirror);
    mirror.leg_found(leg, 0, at_ns + 2 * MS);
    rest(mirror, at_ns + 2 * MS, at_ns + SECOND)
}

#[test]
fn a_blink_without_writes_lacks_nothing_of_another() {
    let (mut mirror, _) = one_is_rebuilt();
    assert_eq!(mirror.facts(1).unwrap().lacks, 2, "regions 0 and 1");
    blink(&mut mirror, 2, 7 * SECOND, |_| {});
    let facts = mirror.facts(2).unwrap();
    assert!(facts.in_sync && facts.lacks == 0, "{facts:?}");
    assert!(mirror.facts(1).unwrap().rebuilding, "the other goes on");
    // Regions that leg 1 lacks stay marked on the legs.
    assert!(mirror.log.is_dirty(0));
}

#[test]
fn a_blink_with_a_write_lacks_that_region() {
    let (mut mirror, _) = one_is_rebuilt();
    blink(&mut mirror, 2, 7 * SECOND, |mirror| {
        write(mirror, 2, 7 * SECOND + MS);
    });
    let facts = mirror.facts(2).unwrap();
    assert!(facts.rebuilding && facts.lacks == 1, "{facts:?}");
    assert!(mirror.legs.rebuild(2).unwrap().lacks(2));
}

/// It may lose them with its cache (T13).
#[test]
fn t13_a_leg_that_leaves_lacks_what_it_has_not_flushed() {
    let (mut mirror, _) = one_is_rebuilt();
    write(&mut mirror, 3, 7 * SECOND);
    blink(&mut mirror, 2, 7 * SECOND + MS, |_| {});
    let rebuild = mirror.legs.rebuild(2).unwrap();
    assert!(rebuild.lacks(3) && rebuild.left() == 1, "{rebuild:?}");
}

/// Data copied to it is in no set until it is in sync.
#[test]
fn a_leg_that_leaves_its_rebuild_lacks_what_it_had_missed() {
    let (mut mirror, copies) = one_is_rebuilt();
    for output in copies {
        end(&mut mirror, output, 6 * SECOND, &mut well);
    }
    let before = mirror.facts(1).unwrap().lacks;
    let stop = |mirror: &mut Mirror| {
        while let Some(output) = mirror.poll_output(6 * SECOND) {
            if let Output::Flush(_) = output {
                return; // it has everything, and not flushed that
            }
            end(mirror, output, 6 * SECOND, &mut well);
        }
    };
    stop(&mut mirror);
    assert!(mirror.facts(1).unwrap().lacks < before);
    mirror.leg_lost(1, 6 * SECOND);
    let missed = mirror.legs[1].missed().unwrap();
    assert!(missed.is_set(0), "{missed:?}");
}

/// Reads of leg 0 fail; all else goes well.
fn unreadable(output: &Output, leg: u8) -> Option<Outcome> {
    let reads = matches!(output, Output::Read(..) | Output::CopyRead(..));
    (reads && leg == 0).then_some(Outcome::MediaError)
}

fn read(mirror: &mut Mirror, number: u64, now_ns: u64) -> Outcome {
    mirror
        .submit(Request::Read(region(number)), now_ns)
        .unwrap();
    run(mirror, now_ns, &mut unreadable)[0].1
}

/// Leg 1 of two has left, and region 2 was written since.
fn one_has_left() -> Mirror {
    let mut mirror = started(2, config());
    write(&mut mirror, 1, MS);
    rest(&mut mirror, 2 * MS, 5 * SECOND);
    mirror.leg_lost(1, 5 * SECOND);
    write(&mut mirror, 2, 5 * SECOND);
    mirror
}

/// It waits for its fence, or is only there to be read: as the last resort it serves what it does
/// not lack, and nothing else.
#[test]
fn a_leg_that_waits_is_the_last_resort_of_a_read() {
    for is_told in [true, false] {
        let mut mirror = one_has_left();
        match is_told {
            true => mirror.leg_found(1, 60 * SECOND, 6 * SECOND),
            false => assert!(mirror.spare_found(1, 6 * SECOND)),
        }
        run(&mut mirror, 6 * SECOND, &mut well);
        assert_eq!(read(&mut mirror, 1, 7 * SECOND), Outcome::Done);
        assert_eq!(mirror.facts(1).unwrap().rescued, 1);
        assert_eq!(read(&mut mirror, 2, 7 * SECOND), Outcome::MediaError);
        // Where another one can be asked it is not.
        mirror.submit(Request::Read(region(1)), 7 * SECOND).unwrap();
        let first = core::iter::from_fn(|| mirror.poll_output(7 * SECOND))
            .find(|it| matches!(it, Output::Read(..)));
        let Some(Output::Read(io, _, from)) = first else {
            panic!("a read");
        };
        assert_eq!(from, Legs::one(0));
        let ticket = mirror.take(io, 0, Wait::Long).unwrap();
        mirror.handle_done(ticket, Outcome::Done, 7 * SECOND);
        run(&mut mirror, 7 * SECOND, &mut unreadable);
        // It is gone again.
        match is_told {
            true => mirror.leg_lost(1, 8 * SECOND),
            false => assert!(mirror.spare_lost(1)),
        }
        run(&mut mirror, 8 * SECOND, &mut well);
        assert_eq!(read(&mut mirror, 1, 8 * SECOND), Outcome::MediaError);
        assert!(mirror.may_have(1, region(1)) && !mirror.may_have(1, region(2)));
    }
}

#[test]
fn a_leg_that_waits_is_the_source_of_a_mend() {
    let mut mirror = one_has_left();
    mirror.spare_found(1, 6 * SECOND);
    run(&mut mirror, 6 * SECOND, &mut well);
    assert_eq!(read(&mut mirror, 1, 7 * SECOND), Outcome::Done);
    for now_ns in (7 * SECOND..8 * SECOND).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        run(&mut mirror, now_ns, &mut unreadable);
    }
    assert!(mirror.facts(0).unwrap().repaired > 0);
}

/// Leg 1 is rebuilt, leg 2 has left and can be reached: what leg 0 can't read is copied from it.
#[test]
fn a_leg_that_waits_is_the_source_of_a_rebuild() {
    let (mut mirror, copies) = one_is_rebuilt();
    mirror.leg_lost(2, 7 * SECOND);
    rest(&mut mirror, 7 * SECOND, 7 * SECOND);
    mirror.spare_found(2, 8 * SECOND);
    let seen = with_a_bad_leg_0(&mut mirror, (8 * SECOND, 20 * SECOND), 0, copies);
    let lost = |it: &News| matches!(it, News::Lost(_));
    assert!(!seen.news.iter().any(lost), "{:?}", seen.news);
    let rescued = |it: &News| matches!(it, News::Rescued(2, _));
    assert!(seen.news.iter().any(rescued), "{:?}", seen.news);
    assert!(seen.written.contains(&(1, 0)) && !mirror.legs.writable().has(2));
    assert!(mirror.facts(1).unwrap().in_sync);
}

/// Leg 1 lacks a region that leg 0 can't read, and leg 2, which has it, is away.
fn one_that_is_stuck() -> Mirror {
    let (mut mirror, copies) = one_is_rebuilt();
    mirror.leg_lost(2, 7 * SECOND);
    rest(&mut mirror, 7 * SECOND, 7 * SECOND);
    for output in copies {
        let Output::CopyRead(ticket, ..) = output else {
            continue;
        };
        mirror.handle_done(ticket, Outcome::MediaError, 7 * SECOND);
    }
    let seen = with_a_bad_leg_0(&mut mirror, (7 * SECOND, 12 * SECOND), 0, vec![]);
    assert!(seen.news.contains(&News::Lost(Range::new(0, 4096))));
    mirror
}

/// A region that was given up is tried again when a leg can be reached that has it.
#[test]
fn a_stuck_rebuild_goes_on_when_a_spare_can_be_read() {
    let mut mirror = one_that_is_stuck();
    mirror.spare_found(2, 13 * SECOND);
    with_a_bad_leg_0(&mut mirror, (13 * SECOND, 20 * SECOND), 0, vec![]);
    assert!(mirror.facts(1).unwrap().in_sync);
}

/// It may be another one by now, or put back, or somebody else's.
#[test]
fn t50_a_leg_that_waits_is_not_read_before_its_superblock() {
    type Change = fn(&mut Superblock);
    let changes: [(Change, Outcome); 5] = [
        (|_| (), Outcome::Done),
        (|it| it.sequence -= 1, Outcome::MediaError),
        (|it| it.owner = None, Outcome::MediaError),
        (|it| it.mirror = Id([9; 16]), Outcome::MediaError),
        (|it| it.slot = 0, Outcome::MediaError),
    ];
    for (number, (change, expected)) in (0..).zip(changes) {
        let mut mirror = one_has_left();
        mirror.spare_found(1, 6 * SECOND);
        let mut asked = None;
        while let Some(output) = mirror.poll_output(6 * SECOND) {
            match output {
                Output::ReadSuperblocks(ticket) if ticket.leg == 1 => asked = Some(ticket),
                other => end(&mut mirror, other, 6 * SECOND, &mut well),
            }
        }
        assert_eq!(read(&mut mirror, 1, 7 * SECOND), Outcome::MediaError);
        let mut superblock = mirror.legs[1].committed;
        superblock.owner = Some(*mirror.ownership.owner());
        change(&mut superblock);
        let found = Chosen {
            superblock,
            copy: 0,
            other: Ok(0),
        };
        mirror.handle_superblocks(asked.unwrap(), &Ok(found), 7 * SECOND);
        assert_eq!(read(&mut mirror, 1, 7 * SECOND), expected, "{number}");
    }
}

/// Reads as the last resort do not keep a leg from returning, and none of them is lost by that.
#[test]
fn a_spare_that_is_read_all_the_time_returns() {
    let mut mirror = one_has_left();
    mirror.leg_found(1, 10 * SECOND, 6 * SECOND);
    run(&mut mirror, 6 * SECOND, &mut well);
    // It has one read after the other, each of which begins before the one before it has ended.
    let mut before: Option<Ticket> = None;
    let (mut given, mut ended) = (vec![], vec![]);
    for step in 0..100 {
        let now_ns = 9 * SECOND + step * 100 * MS;
        mirror.handle_timeout(now_ns);
        let _ = mirror.submit(Request::Read(region(1)), now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Read(io, _, from) if from.has(1) && !mirror.legs.writable().has(1) => {
                    let ticket = mirror.take(io, 1, Wait::Long);
                    given.push(io);
                    if let Some(ended) = core::mem::replace(&mut before, ticket) {
                        mirror.handle_done(ended, Outcome::Done, now_ns);
                    }
                }
                Output::Done(io, outcome) if given.contains(&io) => {
                    given.retain(|&it| it != io);
                    ended.push(outcome);
                }
                other => end(&mut mirror, other, now_ns, &mut unreadable),
            }
        }
        if let Some(ended) = before.take_if(|_| step > 50) {
            mirror.handle_done(ended, Outcome::Done, now_ns);
        }
    }
    assert!(mirror.facts(1).unwrap().in_sync || mirror.facts(1).unwrap().rebuilding);
    assert!(given.is_empty() && ended.len() > 5, "{given:?} {ended:?}");
    assert!(ended.iter().all(|it| it.is_done()), "{ended:?}");
}

/// Leg 1 is rebuilt and leg 2 waits for its fence, which ends at 10 s; leg 0 can't read region 0,
/// and a copy of it is being read from leg 2 at 9 s: its ticket.
fn one_waits_and_is_copied_from() -> (Mirror, Ticket) {
    let (mut mirror, copies) = one_is_rebuilt();
    mirror.leg_lost(2, 7 * SECOND);
    rest(&mut mirror, 7 * SECOND, 7 * SECOND);
    mirror.leg_found(2, 10 * SECOND, 8 * SECOND);
    rest(&mut mirror, 8 * SECOND, 9 * SECOND);
    for output in copies {
        match output {
            Output::CopyRead(ticket, _, range) if range.start == 0 => {
                mirror.handle_done(ticket, Outcome::MediaError, 9 * SECOND);
            }
            other => end(&mut mirror, other, 9 * SECOND, &mut well),
        }
    }
    let mut asked = None;
    while let Some(output) = mirror.poll_output(9 * SECOND) {
        match output {
            Output::CopyRead(ticket, ..) if ticket.leg == 2 => asked = Some(ticket),
            other => end(&mut mirror, other, 9 * SECOND, &mut unreadable),
        }
    }
    (mirror, asked.unwrap())
}

/// Its fence passes while a copy is read from it.
#[test]
fn a_copy_from_a_spare_that_may_return_is_used() {
    let (mut mirror, asked) = one_waits_and_is_copied_from();
    rest(&mut mirror, 10 * SECOND, 11 * SECOND);
    assert!(!mirror.legs.writable().has(2));
    assert!(
        !mirror.spare_found(2, 11 * SECOND),
        "that it is there is no news"
    );
    mirror.handle_done(asked, Outcome::Done, 11 * SECOND);
    let seen = with_a_bad_leg_0(&mut mirror, (11 * SECOND, 20 * SECOND), 0, vec![]);
    assert!(
        seen.news.contains(&News::Rescued(2, region(0))),
        "{:?}",
        seen.news
    );
    assert!(
        !seen.news.iter().any(|it| matches!(it, News::Lost(_))),
        "{:?}",
        seen.news
    );
    for leg in 0..3 {
        assert!(mirror.facts(leg).unwrap().in_sync, "leg {leg}");
    }
}

/// The copy goes on in smaller pieces while the leg returns: they are read there once it has.
#[test]
fn what_a_leg_that_returns_has_is_not_lost() {
    let (mut mirror, asked) = one_waits_and_is_copied_from();
    rest(&mut mirror, 10 * SECOND, 10 * SECOND);
    mirror.handle_done(asked, Outcome::MediaError, 10 * SECOND);
    let seen = with_a_bad_leg_0(&mut mirror, (10 * SECOND, 20 * SECOND), 0, vec![]);
    let lost = |it: &News| matches!(it, News::Lost(_));
    assert!(!seen.news.iter().any(lost), "{:?}", seen.news);
    for leg in 0..3 {
        assert!(mirror.facts(leg).unwrap().in_sync, "leg {leg}");
    }
}

/// Its superblocks can't be read while it reads: what it gives is not used, and not lost either.
#[test]
fn a_copy_from_a_spare_in_doubt_is_done_later() {
    let (mut mirror, asked) = one_waits_and_is_copied_from();
    mirror.spare_failed(2);
    mirror.handle_done(asked, Outcome::Done, 9 * SECOND);
    let seen = with_a_bad_leg_0(&mut mirror, (9 * SECOND, 9 * SECOND + 500 * MS), 0, vec![]);
    assert!(
        !seen.news.iter().any(|it| matches!(it, News::Lost(_))),
        "{:?}",
        seen.news
    );
    assert!(mirror.unreadable.paused().next(0).is_none() && mirror.copies.pause_ns > 9 * SECOND);
}

/// A leg that waits is lost, taken out or cut short while a copy is read from it: writes go on
/// before the read ends.
#[test]
fn writes_go_on_when_a_spare_that_is_read_is_lost() {
    let now_ns = 9 * SECOND;
    type Loss = fn(&mut Mirror);
    let losses: [Loss; 3] = [
        |mirror| mirror.leg_lost(2, 9 * SECOND),
        |mirror| assert!(mirror.spare_lost(2)),
        |mirror| {
            // It is only there to be read.
            mirror.change_leg(2, leg::Change::Leave);
            mirror.leg_resized(2, REGION, 9 * SECOND);
        },
    ];
    for (number, lose) in (0..).zip(losses) {
        let (mut mirror, asked) = one_waits_and_is_copied_from();
        let io = mirror
            .submit(Request::Write(region(0), false), now_ns)
            .unwrap();
        assert_eq!(
            run(&mut mirror, now_ns, &mut unreadable),
            [],
            "it waits its turn"
        );
        lose(&mut mirror);
        let ended = run(&mut mirror, now_ns, &mut well);
        assert_eq!(ended, [(io, Outcome::Done)], "{number}");
        let jobs = |mirror: &Mirror| mirror.copies.count();
        assert_eq!(jobs(&mirror), 1, "its buffer is not free yet");
        mirror.handle_done(asked, Outcome::PathError, now_ns);
        assert_eq!(jobs(&mirror), 0);
    }
}

/// No leg can read it: that is said once in the time that it is left alone, although the
/// superblocks of the leg that waits are read in each interval.
#[test]
fn what_a_spare_can_not_read_is_left_alone() {
    let (mut mirror, asked) = one_waits_and_is_copied_from();
    let mut lost = 0;
    let mut first = Some(asked);
    for now_ns in (9 * SECOND..60 * SECOND).step_by(100 * MS as usize) {
        // Its fence stays closed.
        mirror.leg_found(2, 1000 * SECOND, now_ns);
        mirror.handle_timeout(now_ns);
        if let Some(asked) = first.take() {
            mirror.handle_done(asked, Outcome::MediaError, now_ns);
        }
        while let Some(output) = mirror.poll_output(now_ns) {
            lost += u32::from(matches!(output, Output::News(News::Lost(_))));
            let mut bad = |output: &Output, leg: u8| match output {
                Output::CopyRead(_, _, range) if range.start < 4096 && leg != 1 => {
                    Some(Outcome::MediaError)
                }
                _ => None,
            };
            end(&mut mirror, output, now_ns, &mut bad);
        }
    }
    assert!(mirror.waiting_spares(region(0)).has(2));
    assert_eq!(lost, 1);
}

/// A leg that waits lacks the region: cutting the read has nothing to win.
#[test]
fn a_read_that_no_spare_has_is_not_cut() {
    for (number, asked) in [(2, 1), (1, 2)] {
        let mut mirror = one_has_left();
        mirror.spare_found(1, 6 * SECOND);
        run(&mut mirror, 6 * SECOND, &mut well);
        mirror
            .submit(Request::Read(region(number)), 7 * SECOND)
            .unwrap();
        let mut reads = 0;
        let mut answer = |output: &Output, leg: u8| {
            reads += u32::from(matches!(output, Output::Read(..)));
            unreadable(output, leg)
        };
        run(&mut mirror, 7 * SECOND, &mut answer);
        assert_eq!(reads, asked, "region {number}");
    }
}

/// A leg that waits lacks the first region of a read, and has the second, where the leg in sync has
/// a bad block: the read is cut.
#[test]
fn a_read_is_cut_where_a_spare_has_a_later_part() {
    let mut mirror = one_has_left();
    write(&mut mirror, 0, 5 * SECOND);
    mirror.spare_found(1, 6 * SECOND);
    run(&mut mirror, 6 * SECOND, &mut well);
    let range = Range::new(REGION - 8192, 16384);
    mirror.submit(Request::Read(range), 7 * SECOND).unwrap();
    let mut answer = |output: &Output, leg: u8| match output {
        Output::Read(_, range, _) if leg == 0 && range.end > REGION + 4096 => {
            Some(Outcome::MediaError)
        }
        _ => None,
    };
    let ended = run(&mut mirror, 7 * SECOND, &mut answer);
    assert!(
        ended.iter().all(|it| it.1.is_done()) && !ended.is_empty(),
        "{ended:?}"
    );
}

/// After a restart the union is all that is known.
#[test]
fn a_leg_that_was_away_at_the_start_lacks_the_union() {
    let all = legs(3);
    let left = all[0].without(1, all[0].seen()).unwrap();
    let left = left.without(2, left.seen()).unwrap();
    let given = [0, 1, 2].map(|slot| left.on(slot, all[usize::from(slot)].place));
    let mut mirror = started_with(given.to_vec(), &[], config(), Terms::default(), 0);
    assert!(mirror.legs[1].missed().is_none());
    write(&mut mirror, 3, MS);
    let copies = rest(&mut mirror, 2 * MS, 3 * SECOND);
    assert!(!copies.is_empty());
    for leg in [1, 2] {
        let rebuild = mirror.legs.rebuild(leg);
        assert!(rebuild.is_none_or(|it| it.lacks(3)), "leg {leg}");
    }
}

/// Which leg says something older than it had acknowledged may lack anything.
#[test]
fn t50_a_leg_that_says_less_than_before_lacks_the_union() {
    let (mut mirror, _) = one_is_rebuilt();
    mirror.leg_lost(2, 7 * SECOND);
    rest(&mut mirror, 7 * SECOND, 7 * SECOND + MS);
    let mut found = mirror.legs[2].committed;
    found.owner = Some(*mirror.ownership.owner());
    let run = mirror.ownership.owner().run;
    mirror.legs[2].check_missed(&found, run);
    assert!(mirror.legs[2].missed().is_some());
    let older = Superblock {
        sequence: found.sequence - 1,
        ..found
    };
    mirror.legs[2].check_missed(&older, run);
    assert!(mirror.legs[2].missed().is_none());
}

/// Ends what is asked; leg 0 can't read region `bad`. Returns writes on it, events, and
/// how reads of users ended.
struct Seen {
    written: Vec<(u8, u64)>,
    news: Vec<News>,
    ended: Vec<Outcome>,
}

fn with_a_bad_leg_0(
    mirror: &mut Mirror,
    (from_ns, until_ns): (u64, u64),
    bad: u64,
    first: Vec<Output>,
) -> Seen {
    let (mut written, mut news, mut ended) = (vec![], vec![], vec![]);
    let is_bad = |range: &Range| range.start < (bad + 1) * REGION && range.end > bad * REGION;
    let mut first = first.into_iter();
    for now_ns in (from_ns..=until_ns).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = first.next().or_else(|| mirror.poll_output(now_ns)) {
            match output {
                Output::News(it) => news.push(it),
                Output::Done(_, outcome) => ended.push(outcome),
                _ => {}
            }
            let fixed = written.contains(&(0, bad));
            let mut answer = |output: &Output, leg: u8| match output {
                Output::Read(_, range, _) | Output::CopyRead(_, _, range) => {
                    (leg == 0 && is_bad(range) && !fixed).then_some(Outcome::MediaError)
                }
                Output::CopyWrite(_, _, range) => {
                    written.push((leg, range.start / REGION));
                    None
                }
                _ => None,
            };
            end(mirror, output, now_ns, &mut answer);
        }
    }
    Seen {
        written,
        news,
        ended,
    }
}

/// Legs 1 and 2 are rebuilt, and leg 0 is the only one in sync: leg 1 lacks regions 0 and 1, leg 2
/// region 2.
fn two_are_rebuilt() -> (Mirror, Vec<Output>) {
    let (mut mirror, mut copies) = one_is_rebuilt();
    let more = blink(&mut mirror, 2, 7 * SECOND, |mirror| {
        write(mirror, 2, 7 * SECOND + MS);
    });
    copies.extend(more);
    (mirror, copies)
}

#[test]
fn a_read_of_a_bad_block_is_served_by_a_leg_that_missed_nothing_there() {
    let (mut mirror, copies) = two_are_rebuilt();
    assert_eq!(mirror.legs.in_sync(), Legs::one(0));
    mirror.submit(Request::Read(region(0)), 9 * SECOND).unwrap();
    let seen = with_a_bad_leg_0(&mut mirror, (9 * SECOND, 9 * SECOND), 0, copies);
    assert_eq!(seen.ended, [Outcome::Done]);
    assert!(
        seen.news.contains(&News::Rescued(2, region(0))),
        "{:?}",
        seen.news
    );
    assert!(mirror.facts(2).unwrap().rescued > 0);
    assert!(seen.written.contains(&(0, 0)), "leg 0 is repaired");
}

/// Region 2 was written since leg 2 left, and region 0 since leg 1 did.
#[test]
fn a_read_of_a_bad_block_that_all_others_missed_fails() {
    let (mut mirror, _) = two_are_rebuilt();
    mirror.leg_lost(1, 9 * SECOND);
    rest(&mut mirror, 9 * SECOND, 9 * SECOND);
    let read = |mirror: &mut Mirror| {
        mirror.submit(Request::Read(region(2)), 9 * SECOND).unwrap();
        with_a_bad_leg_0(mirror, (9 * SECOND, 9 * SECOND), 2, vec![]).ended
    };
    assert_eq!(read(&mut mirror), [Outcome::MediaError]);
    plant(Some(Bug::SpareLacks));
    let ended = read(&mut mirror);
    plant(None);
    assert_eq!(ended, [Outcome::Done], "the planted bug serves old data");
}

#[test]
fn a_rebuild_reads_a_spare_where_no_leg_in_sync_can() {
    let (mut mirror, copies) = two_are_rebuilt();
    let seen = with_a_bad_leg_0(&mut mirror, (9 * SECOND, 20 * SECOND), 0, copies);
    let lost = |it: &News| matches!(it, News::Lost(_));
    assert!(!seen.news.iter().any(lost), "{:?}", seen.news);
    assert!(seen.written.contains(&(1, 0)) && seen.written.contains(&(0, 0)));
    for leg in 0..3 {
        assert!(mirror.facts(leg).unwrap().in_sync, "leg {leg}");
    }
}

/// A region that was given up is tried again when a leg returns that does not lack it.
#[test]
fn a_stuck_rebuild_goes_on_when_a_spare_returns() {
    let mut mirror = one_that_is_stuck();
    assert!(!mirror.facts(1).unwrap().in_sync);
    mirror.leg_found(2, 0, 13 * SECOND);
    let seen = with_a_bad_leg_0(&mut mirror, (13 * SECOND, 20 * SECOND), 0, vec![]);
    assert!(seen.written.contains(&(1, 0)), "{:?}", seen.written);
    for leg in 0..3 {
        assert!(mirror.facts(leg).unwrap().in_sync, "leg {leg}");
    }
}

/// Both legs in sync have the same bad block, and leg 2, which lacks region 2 only, has it.
#[test]
fn a_repair_rewrites_from_a_spare_what_no_leg_in_sync_can_read() {
    let mut mirror = started(3, config());
    write(&mut mirror, 0, MS);
    rest(&mut mirror, 2 * MS, 5 * SECOND);
    mirror.leg_lost(2, 5 * SECOND);
    rest(&mut mirror, 5 * SECOND, 5 * SECOND + MS);
    write(&mut mirror, 2, 5 * SECOND + MS);
    mirror.leg_found(2, 0, 6 * SECOND);
    let copies = rest(&mut mirror, 6 * SECOND, 7 * SECOND);
    assert_eq!(copies.len(), 1);
    assert_eq!(mirror.facts(2).unwrap().lacks, 1);
    let bad = Range::new(8192, 4096);
    let mut spoilt = vec![0, 1];
    mirror.check(true, 7 * SECOND);
    for now_ns in (7 * SECOND..20 * SECOND).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            let mut answer = |output: &Output, leg: u8| match output {
                Output::CopyRead(_, _, range) => {
                    let overlaps = range.start < bad.end && range.end > bad.start;
                    (overlaps && spoilt.contains(&leg)).then_some(Outcome::MediaError)
                }
                Output::CopyWrite(_, _, range) => {
                    assert_eq!((range.start, range.end), (bad.start, bad.end));
                    spoilt.retain(|&it| it != leg);
                    None
                }
                _ => None,
            };
            end(&mut mirror, output, now_ns, &mut answer);
        }
    }
    assert!(spoilt.is_empty(), "{spoilt:?}");
    for leg in 0..2 {
        assert!(mirror.facts(leg).unwrap().repaired > 0, "leg {leg}");
    }
}
