//! Many changes of one place: none of them waits for those that come later, and the depth of the
//! stack does not depend on how many wait (T53).
use super::super::*;
use super::rules::{BLOCK, MS, run, run_in_order, started, well};
use super::std::thread;
use alloc::vec;
use alloc::vec::Vec;

fn write(at: u64) -> Request {
    Request::Write(Range::new(at, 4096), false)
}

/// Polls all outputs; tickets of page writes, and how many data writes there were.
fn asked(mirror: &mut Mirror, now_ns: u64) -> (Vec<Ticket>, usize) {
    let (mut pages, mut data) = (vec![], 0);
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::Pages(ticket, _) => pages.push(ticket),
            Output::Leg(..) => data += 1,
            _ => {}
        }
    }
    (pages, data)
}

/// A mirror of two legs whose lineage has begun, with the bits of region 0 on its legs.
fn begun() -> Mirror {
    let mut mirror = started(2, Config::new(64));
    mirror.submit(write(0), MS).unwrap();
    assert_eq!(run(&mut mirror, MS, &mut well), [(0, Outcome::Done)]);
    mirror
}

/// Each write comes while the page write for the region's bit is under way, as it would over slow
/// legs. Before the mend each of them marked the bit as changed again, so the page was written
/// again after each write, and no data went to any leg for as long as writes came.
#[test]
fn t53_writes_to_one_region_do_not_starve() {
    let mut mirror = begun();
    let region = 1 << 20;
    let mut under_way = vec![];
    for at in 0..10 {
        mirror.submit(write(region + at * 4096), 2 * MS).unwrap();
        let (pages, data) = asked(&mut mirror, 2 * MS);
        assert_eq!((pages.len(), data), (if at == 0 { 2 } else { 0 }, 0));
        under_way.extend(pages);
    }
    for ticket in under_way {
        mirror.handle_done(ticket, Outcome::Done, 3 * MS);
    }
    assert_eq!(
        asked(&mut mirror, 3 * MS),
        (vec![], 20),
        "all of them, on both legs"
    );
}

/// The page write under way does not have the bit of a region that is entered after it began.
#[test]
fn t53_a_bit_set_behind_a_page_write_is_written() {
    let mut mirror = begun();
    mirror.submit(write(1 << 20), 2 * MS).unwrap();
    let (first, _) = asked(&mut mirror, 2 * MS);
    for region in [2, 1, 2] {
        mirror.submit(write(region << 20), 2 * MS).unwrap();
    }
    for ticket in first {
        mirror.handle_done(ticket, Outcome::Done, 3 * MS);
    }
    let (second, data) = asked(&mut mirror, 3 * MS);
    assert_eq!(
        (second.len(), data),
        (2, 2),
        "one write waits for another of its blocks"
    );
    for ticket in second {
        mirror.handle_done(ticket, Outcome::Done, 4 * MS);
    }
    let (third, data) = asked(&mut mirror, 4 * MS);
    assert_eq!((third.len(), data), (0, 2));
}

/// Where the page write fails on the last leg, the bit is on none: the next write asks anew.
#[test]
fn t53_a_failed_page_write_is_repeated() {
    let mut mirror = begun();
    let mut bad = |output: &Output, _| match output {
        Output::Pages(..) => Some(Outcome::MediaError),
        _ => None,
    };
    mirror.submit(write(1 << 20), 2 * MS).unwrap();
    assert_eq!(run(&mut mirror, 2 * MS, &mut bad)[0].1, Outcome::MediaError);
    mirror.submit(write(1 << 20), 3 * MS).unwrap();
    let (ended, order) = run_in_order(&mut mirror, 3 * MS);
    assert_eq!(ended[0].1, Outcome::Done);
    assert_eq!(order, ["page", "data"]);
}

/// All superblocks fail, so all writes that wait for one another end at once. Before the mend each
/// of them ended inside of the call that ended the one before, which overflowed this stack.
#[test]
fn overlapping_writes_end_in_bounded_stack() {
    const IOS: usize = 4096; // as many as a core has
    let all = || {
        let mut mirror = started(2, Config::new(IOS));
        for _ in 0..IOS {
            let request = Request::Write(Range::new(0, BLOCK), false);
            mirror.submit(request, MS).unwrap();
        }
        let mut bad = |output: &Output, _| match output {
            Output::Superblock(..) => Some(Outcome::MediaError),
            _ => None,
        };
        let ended = run(&mut mirror, MS, &mut bad);
        assert_eq!(ended.len(), IOS);
        assert!(ended.iter().all(|it| !it.1.is_done()));
    };
    let small = thread::Builder::new().stack_size(320 << 10);
    small.spawn(all).unwrap().join().unwrap();
}
