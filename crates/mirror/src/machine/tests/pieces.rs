//! Rules by hand: what each leg has somewhere is read in pieces, and repaired (T5).
use super::super::*;
use super::rules::{MS, run, started, well};
use alloc::vec;
use alloc::vec::Vec;

const ALL: Range = Range {
    start: 0,
    end: 64 << 10,
};

fn overlap(a: Range, b: Range) -> bool {
    a.start < b.end && b.start < a.end
}

/// Legs whose bad places can't be read until they are written.
struct Media {
    bad: Vec<(u8, Range)>,
    reads: usize,
}

impl Media {
    fn answer(&mut self, output: &Output, leg: u8, piece: Range) -> Option<Outcome> {
        let is_bad = |range: Range| (self.bad.iter()).any(|it| it.0 == leg && overlap(it.1, range));
        match output {
            Output::Read(..) => {
                self.reads += 1;
                is_bad(piece).then_some(Outcome::MediaError)
            }
            Output::CopyRead(_, _, range) => is_bad(*range).then_some(Outcome::MediaError),
            Output::CopyWrite(_, _, range) => {
                self.bad.retain(|it| it.0 != leg || !overlap(it.1, *range));
                None
            }
            _ => None,
        }
    }

    /// Reads all of it; how that ended.
    fn read(&mut self, mirror: &mut Mirror, now_ns: u64) -> Outcome {
        mirror.submit(Request::Read(ALL), now_ns).unwrap();
        let mut answer = |output: &Output, leg: u8| {
            let piece = match output {
                Output::Read(_, piece, _) => *piece,
                _ => ALL,
            };
            self.answer(output, leg, piece)
        };
        let ended = run(mirror, now_ns, &mut answer);
        assert_eq!(ended.len(), 1);
        ended[0].1
    }
}

fn mirror_of(count: u8) -> Mirror {
    let mut mirror = started(count, Config::new(6));
    mirror.submit(Request::Write(ALL, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror
}

#[test]
fn t05_what_is_bad_on_each_leg_at_another_place_is_read_and_mended() {
    let mut mirror = mirror_of(2);
    let mut media = Media {
        bad: vec![(0, Range::new(4096, 4096)), (1, Range::new(40_960, 512))],
        reads: 0,
    };
    assert_eq!(media.read(&mut mirror, 2 * MS), Outcome::Done);
    assert!(media.bad.is_empty(), "{:?}", media.bad);
    for leg in 0..2 {
        let facts = mirror.facts(leg).unwrap();
        assert!(facts.in_sync && facts.repaired == 1, "{facts:?}");
    }
    // As a whole, and once.
    media.reads = 0;
    assert_eq!(media.read(&mut mirror, 3 * MS), Outcome::Done);
    assert_eq!(media.reads, 1);
}

/// Bad sectors of one piece, another one on each leg.
#[test]
fn t05_piece_with_other_bad_sectors_on_each_leg_is_copied() {
    let mut mirror = mirror_of(3);
    mirror.leg_lost(2, MS);
    mirror.submit(Request::Write(ALL, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    let mut media = Media {
        bad: vec![(0, Range::new(4096, 512)), (1, Range::new(5120, 512))],
        reads: 0,
    };
    let mut small = 0;
    let mut answer = |output: &Output, leg: u8| {
        if let Output::CopyRead(_, _, range) = output {
            small += usize::from(range.end - range.start < 4096);
        }
        media.answer(output, leg, ALL)
    };
    mirror.leg_found(2, 0, 2 * MS);
    for now_ns in (2 * MS..5000 * MS).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        run(&mut mirror, now_ns, &mut answer);
    }
    assert!(mirror.facts(2).unwrap().in_sync, "{:?}", mirror.facts(2));
    assert!(mirror.unreadable.regions().next(0).is_none());
    // Behind these it goes on with larger ones.
    assert!(small < 64, "{small}");
}

#[test]
fn what_no_leg_can_read_fails_and_what_leg_alone_can_not_is_not_tried_in_pieces() {
    let mut mirror = mirror_of(2);
    let bad = Range::new(8192, 4096);
    let mut media = Media {
        bad: vec![(0, bad), (1, bad)],
        reads: 0,
    };
    assert_eq!(media.read(&mut mirror, 2 * MS), Outcome::MediaError);
    assert!(media.reads <= 8, "{}", media.reads);
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    media.reads = 0;
    assert_eq!(media.read(&mut mirror, 3 * MS), Outcome::MediaError);
    assert_eq!(media.reads, 1);
}

#[test]
fn who_is_to_be_mended_is_asked_before_it_is_said_that_nobody_can_read() {
    let mut mirror = mirror_of(2);
    mirror.submit(Request::Read(ALL), 2 * MS).unwrap();
    let mut first = true;
    let mut lost = 0;
    let mut written = Vec::new();
    while let Some(output) = mirror.poll_output(2 * MS) {
        match output {
            Output::News(News::Lost(_)) => lost += 1,
            Output::Read(io, ..) => {
                // The first one fails once.
                let outcome = match core::mem::take(&mut first) {
                    true => Outcome::MediaError,
                    false => Outcome::Done,
                };
                let leg = mirror.readers(io).first().unwrap();
                let ticket = mirror.take(io, leg, Wait::Long).unwrap();
                mirror.handle_done(ticket, outcome, 2 * MS);
            }
            Output::CopyRead(ticket, ..) => {
                let outcome = match ticket.leg {
                    1 if written.is_empty() => Outcome::MediaError,
                    _ => Outcome::Done,
                };
                mirror.handle_done(ticket, outcome, 2 * MS);
            }
            Output::CopyWrite(ticket, ..) => {
                written.push(ticket.leg);
                mirror.handle_done(ticket, Outcome::Done, 2 * MS);
            }
            _ => {}
        }
    }
    assert_eq!(lost, 0, "leg 0 can read it by now");
    assert_eq!(written, [1], "and the other one is repaired");
    assert_eq!(mirror.facts(0).map(|it| it.repaired), Some(0));
}
