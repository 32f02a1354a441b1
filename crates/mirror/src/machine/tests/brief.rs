//! Reads that were not waited for, since another leg had the data too; and what can only be read.
use super::super::super::assembly::tests::legs;
use super::super::super::ownership::Terms;
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, started_with, well};
use alloc::vec::Vec;

/// The next leg that is offered for a read, by what else is done well.
fn offered(mirror: &mut Mirror, now_ns: u64) -> Option<Legs> {
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::Read(_, _, from) => return Some(from),
            other => end(mirror, other, now_ns, &mut well),
        }
    }
    None
}

#[test]
fn who_was_not_waited_for_is_asked_again_when_the_others_have_left() {
    let mut mirror = started(2, Config::new(6));
    let io = mirror.submit(Request::Read(Range::new(0, BLOCK)), 0);
    let io = io.unwrap();
    assert_eq!(offered(&mut mirror, 0), Some(Legs(3)));
    let asked = mirror.take(io, 0, Wait::Briefly).unwrap();
    mirror.leg_lost(1, MS);
    assert_eq!(run(&mut mirror, MS, &mut well), []);
    mirror.handle_done(asked, Outcome::TimedOut, 2 * MS);
    assert_eq!(offered(&mut mirror, 2 * MS), Some(Legs(1)));
    let asked = mirror.take(io, 0, Wait::Long).unwrap();
    mirror.handle_done(asked, Outcome::Done, 3 * MS);
    assert_eq!(run(&mut mirror, 3 * MS, &mut well), [(io, Outcome::Done)]);
}

#[test]
fn who_was_not_waited_for_is_asked_again_where_the_others_failed_and_once_only() {
    let mut mirror = started(2, Config::new(6));
    let io = mirror.submit(Request::Read(Range::new(0, BLOCK)), 0);
    let io = io.unwrap();
    assert_eq!(offered(&mut mirror, 0), Some(Legs(3)));
    let asked = mirror.take(io, 0, Wait::Briefly).unwrap();
    mirror.handle_done(asked, Outcome::TimedOut, MS);
    assert_eq!(offered(&mut mirror, MS), Some(Legs(2)));
    let asked = mirror.take(io, 1, Wait::Long).unwrap();
    mirror.handle_done(asked, Outcome::MediaError, 2 * MS);
    assert_eq!(offered(&mut mirror, 2 * MS), Some(Legs(1)));
    let asked = mirror.take(io, 0, Wait::Long).unwrap();
    mirror.handle_done(asked, Outcome::TimedOut, 3 * MS);
    let ended = run(&mut mirror, 3 * MS, &mut well);
    assert_eq!(ended, [(io, Outcome::TimedOut)]);
}

/// Superblocks say what an older braid would not write down again.
#[test]
fn nothing_is_written_to_a_mirror_that_can_only_be_read() {
    let mut superblocks = legs(2);
    for superblock in &mut superblocks {
        superblock.features.read_only = 1;
    }
    let mut mirror = started_with(superblocks, &[], Config::new(6), Terms::default(), 0);
    let mut ended = Vec::new();
    let mut stopped = None;
    let mut properties = mirror.properties();
    properties.set("policy", "latency").unwrap();
    let read = mirror.submit(Request::Read(Range::new(0, BLOCK)), 0);
    let write = mirror.submit(Request::Write(Range::new(0, BLOCK), true), 0);
    let flush = mirror.submit(Request::Flush, 0);
    let ios = [read, write, flush].map(Result::unwrap);
    for now_ns in (0..60_000 * MS).step_by(100 * MS as usize) {
        match now_ns / MS {
            1_000 => mirror.set_properties(properties, now_ns),
            2_000 => mirror.check(true, now_ns),
            3_000 => mirror.leg_lost(1, now_ns),
            4_000 => mirror.leg_found(1, now_ns, now_ns),
            50_000 => mirror.stop(now_ns),
            _ => {}
        }
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Superblock(..) | Output::Pages(..) | Output::CopyWrite(..) => {
                    panic!("{output:?} at {now_ns}")
                }
                Output::Done(io, outcome) => ended.push((io, outcome)),
                Output::News(News::Stopped(clean)) => stopped = Some(clean),
                other => end(&mut mirror, other, now_ns, &mut well),
            }
        }
    }
    ended.sort_unstable_by_key(|it| it.0);
    let mut wanted = ios.map(|io| (io, Outcome::Done));
    wanted[1].1 = Outcome::ReadOnly;
    wanted.sort_unstable_by_key(|it| it.0);
    assert_eq!(ended, wanted);
    assert_eq!(stopped, Some(true));
}
