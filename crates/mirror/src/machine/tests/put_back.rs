//! Legs that show an older state than they had: an older copy of a disk, put back (T50, T51).
use super::super::super::assembly::tests::{PLACE, legs};
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, started_with, well};
use crate::bitmap::Bitmap;
use crate::ownership::Terms;
use crate::superblock::EntryState;
use alloc::vec;
use alloc::vec::Vec;
use crc_fast::crc32_iscsi;

/// Ends all that is asked; the legs' bitmaps have region 1 set. Which legs were read for copies,
/// and which were written by them.
fn copies(mirror: &mut Mirror, superblocks: Option<Outcome>) -> (Vec<u8>, Vec<u8>) {
    let mut pages = Bitmap::new(4);
    pages.set(1);
    let page = pages.encode(0, mirror.superblock().mirror, crc32_iscsi);
    let (mut from, mut to) = (vec![], vec![]);
    let mut answer = |output: &Output, leg| match output {
        Output::CopyRead(..) => {
            from.push(leg);
            None
        }
        Output::CopyWrite(..) => {
            to.push(leg);
            None
        }
        Output::Superblock(..) => superblocks,
        _ => None,
    };
    for now_ns in (MS..4000 * MS).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::ReadPages(ticket, _) => {
                    mirror.handle_pages(ticket, &page, crc32_iscsi, now_ns);
                }
                other => end(mirror, other, now_ns, &mut answer),
            }
        }
    }
    (from, to)
}

/// Leg 0 was stopped in order, copied, written, killed, and the copy put back. Before the mend the
/// regions that were being written were copied from it to leg 1.
#[test]
fn t51_an_old_copy_is_no_source_of_a_resync() {
    let created = legs(2)[0];
    let begun = created.begun(7);
    let two = vec![created, begun.on(1, PLACE)];
    let mut mirror = started_with(two, &[], Config::new(6), Terms::default(), 0);
    let read = mirror.submit(Request::Read(Range::new(1 << 20, BLOCK)), 0);
    assert_eq!(copies(&mut mirror, None), (vec![1, 1], vec![0, 0]));
    assert!(read.is_ok());
    let state = mirror.superblock();
    assert_eq!(state.in_sync().collect::<Vec<_>>(), [0, 1]);
}

/// It is said to be stale before anything is copied: no crash makes it a source.
#[test]
fn t51_what_lags_is_stale_by_the_first_event() {
    let created = legs(2)[0];
    let begun = created.begun(7);
    let two = vec![created, begun.on(1, PLACE)];
    let mut mirror = started_with(two, &[], Config::new(6), Terms::default(), 0);
    let none = (vec![], vec![]);
    assert_eq!(copies(&mut mirror, Some(Outcome::MediaError)), none);
    let said = mirror.superblock();
    assert!(
        matches!(said.state(0), Some(EntryState::Stale(_))),
        "{said:?}"
    );
}

/// Lets heartbeats pass until `until_ns`.
fn heartbeats(
    mirror: &mut Mirror,
    until_ns: u64,
    found: &mut dyn FnMut(&Mirror, u8) -> Chosen,
) -> u64 {
    let mut now_ns = 0;
    while let Some(at) = mirror.poll_timeout().filter(|&at| at <= until_ns) {
        now_ns = at.max(now_ns + 1);
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::ReadSuperblocks(ticket) => {
                    let found = Ok(found(mirror, ticket.leg));
                    mirror.handle_superblocks(ticket, &found, now_ns);
                }
                other => end(mirror, other, now_ns, &mut well),
            }
        }
    }
    now_ns
}

/// Superblock of a leg that is as it should be.
fn as_said(mirror: &Mirror, leg: u8) -> Chosen {
    let said = mirror.legs[leg].committed;
    Chosen {
        superblock: said,
        copy: 0,
        other: Ok(said.sequence - 1),
    }
}

fn begun() -> Mirror {
    let mut mirror = started(2, Config::new(6));
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror
}

#[test]
fn t50_beats_confirm_the_records_of_the_others() {
    let mut mirror = begun();
    let before = mirror.legs[1].committed.sequence;
    heartbeats(&mut mirror, 12_000 * MS, &mut as_said);
    let said = mirror.encode_superblock(0, 0, crc32_iscsi);
    let said = Superblock::parse(&said, 0, crc32_iscsi).unwrap();
    assert!(mirror.legs[1].confirmed > before);
    let leg = &mirror.legs[0];
    let confirmed = mirror.legs.confirmed_by(leg, &said);
    assert!(confirmed > before && confirmed < mirror.legs[1].committed.sequence);
    // A leg that begins anew has read nothing yet, and says the same of the same legs.
    mirror.legs[1].confirmed = 0;
    mirror.legs[0].committed.confirmed = confirmed;
    let leg = &mirror.legs[0];
    assert_eq!(mirror.legs.confirmed_by(leg, &leg.committed), confirmed);
    let mut other = leg.committed;
    other.legs[1].as_mut().unwrap().id = crate::Id([99; 16]);
    assert_eq!(mirror.legs.confirmed_by(leg, &other), 0);
}

/// A superblock that may yet be executed late can replace the one that was read.
#[test]
fn t09_t50_nothing_is_confirmed_where_something_is_late() {
    let mut mirror = begun();
    mirror.may_be_late(1, 30_000 * MS, 2 * MS);
    heartbeats(&mut mirror, 12_000 * MS, &mut as_said);
    assert_eq!(mirror.legs[1].confirmed, 0);
    heartbeats(&mut mirror, 60_000 * MS, &mut as_said);
    assert!(mirror.legs[1].confirmed > 0);
    // Nor where one copy is bad: the other may be torn next.
    let mut bad = |mirror: &Mirror, leg| Chosen {
        other: Err(crate::ParseError::Checksum(1, 2)),
        ..as_said(mirror, leg)
    };
    heartbeats(&mut mirror, 80_000 * MS, &mut bad);
    assert_eq!(mirror.legs[1].confirmed, 0);
}

#[test]
fn t50_a_leg_put_back_while_it_runs_is_copied_whole() {
    let mut mirror = begun();
    heartbeats(&mut mirror, 12_000 * MS, &mut as_said);
    let old = mirror.legs[1].confirmed - 1;
    let mut put_back = |mirror: &Mirror, leg| {
        let mut found = as_said(mirror, leg);
        if leg == 1 {
            found.superblock.sequence = old;
        }
        found
    };
    heartbeats(&mut mirror, 18_000 * MS, &mut put_back);
    match mirror.superblock().state(1) {
        Some(EntryState::Stale(lack)) => assert_eq!(lack.position, 0),
        other => panic!("{other:?}"),
    }
    // The last one stays.
    let mut first = |mirror: &Mirror, leg| {
        let mut found = as_said(mirror, leg);
        found.superblock.sequence = 1;
        found
    };
    heartbeats(&mut mirror, 24_000 * MS, &mut first);
    assert!(mirror.facts(0).unwrap().in_sync);
}
