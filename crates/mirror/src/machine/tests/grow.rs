//! A mirror that becomes larger.
use super::super::*;
use super::rules::{BLOCK, MS, run, started};
use crate::layout::DATA_ALIGN;
use crate::limits::LEGS_MAX;
use crate::{Id, Label};
use alloc::vec::Vec;

fn sizes(mirror: &Mirror, more: u64) -> [u64; LEGS_MAX] {
    let mut sizes = [0; LEGS_MAX];
    for (slot, _) in mirror.superblock().entries() {
        sizes[usize::from(slot)] = mirror.place(slot).unwrap().leg_bytes + more;
    }
    sizes
}

/// Requests to legs, in their order: pages, superblocks, copies; and events.
fn traced(mirror: &mut Mirror, now_ns: u64) -> Vec<&'static str> {
    let mut seen = Vec::new();
    run(mirror, now_ns, &mut |output, _| {
        seen.push(match output {
            Output::Pages(..) => "pages",
            Output::Superblock(..) => "superblock",
            Output::CopyWrite(..) => "copy",
            _ => "other",
        });
        None
    });
    seen
}

#[test]
fn it_grows_when_all_legs_have_and_bits_of_the_new_part_come_before_its_size() {
    let mut mirror = started(2, Config::new(6));
    mirror
        .submit(Request::Write(Range::new(0, BLOCK), false), MS)
        .unwrap();
    traced(&mut mirror, MS);
    let (before, event) = (mirror.superblock().geometry, mirror.superblock().event);
    let larger = sizes(&mirror, 64 * DATA_ALIGN);
    let bytes = mirror.grow(&larger, 2 * MS).unwrap();
    assert_eq!(bytes, larger[0] - mirror.place(0).unwrap().data_offset);
    assert!(bytes > before.bytes + 63 * DATA_ALIGN);
    assert_eq!(mirror.grow(&larger, 2 * MS), Err(GrowError::Refused));
    let seen = traced(&mut mirror, 2 * MS);
    assert_eq!(mirror.place(1).unwrap().leg_bytes, larger[1]);
    let first = |what: &str| seen.iter().position(|it| *it == what).unwrap();
    let last = |what: &str| seen.iter().rposition(|it| *it == what).unwrap();
    assert!(last("pages") < first("superblock"), "{seen:?}");
    let now = *mirror.superblock();
    assert_eq!((now.geometry.bytes, now.event), (bytes, event + 1));
    // The new part is made alike.
    let far = Range::new(bytes - BLOCK, BLOCK);
    mirror.submit(Request::Read(far), 3 * MS).unwrap();
    let mut copied = traced(&mut mirror, 3 * MS);
    for ms in 4..60_000 {
        if mirror.diverged() == 0 {
            break;
        }
        mirror.handle_timeout(ms * MS);
        copied.extend(traced(&mut mirror, ms * MS));
    }
    assert_eq!(mirror.diverged(), 0);
    assert!(copied.contains(&"copy"), "{copied:?}");
    mirror
        .submit(Request::Write(far, true), 60_000 * MS)
        .unwrap();
    let ended = run(&mut mirror, 60_000 * MS, &mut |_, _| None);
    assert!(ended.iter().all(|it| it.1.is_done()) && ended.len() == 1);
}

#[test]
fn it_stays_as_it_is_where_a_leg_is_away_or_the_bitmap_has_no_room() {
    let mut mirror = started(2, Config::new(6));
    mirror
        .submit(Request::Write(Range::new(0, BLOCK), false), MS)
        .unwrap();
    traced(&mut mirror, MS);
    let huge = sizes(&mirror, 1 << 59);
    let refused = mirror.grow(&huge, MS);
    assert!(matches!(refused, Err(GrowError::Bitmap(_))), "{refused:?}");
    mirror.leg_lost(1, 2 * MS);
    traced(&mut mirror, 2 * MS);
    let larger = sizes(&mirror, 64 * DATA_ALIGN);
    assert_eq!(mirror.grow(&larger, 3 * MS), Err(GrowError::Leg(1)));
}

#[test]
fn a_size_that_could_not_be_said_leaves_nothing_behind_and_a_leg_is_added_before_or_after() {
    let mut mirror = started(1, Config::new(6));
    mirror
        .submit(Request::Write(Range::new(0, BLOCK), false), MS)
        .unwrap();
    traced(&mut mirror, MS);
    let (regions, place) = (mirror.log.dirty().regions(), mirror.place(0).unwrap());
    let larger = sizes(&mirror, 64 * DATA_ALIGN);
    let (id, label) = (Id([0x33; 16]), Label::default());
    mirror.grow(&larger, 2 * MS).unwrap();
    let added = mirror.add_leg(id, label, place, Legs::default(), 2 * MS);
    assert_eq!(added, Err(ChangeError::Refused), "it would be too small");
    // The last leg can't take the bits.
    let mut bad = |output: &Output, _| match output {
        Output::Pages(..) => Some(Outcome::MediaError),
        _ => None,
    };
    run(&mut mirror, 2 * MS, &mut bad);
    assert_eq!(mirror.superblock().geometry.bytes, 4 * DATA_ALIGN);
    assert_eq!(mirror.log.dirty().regions(), regions);
    assert!(mirror.log.dirty().count() <= regions);
    let added = mirror.add_leg(id, label, place, Legs::default(), 3 * MS);
    assert!(added.is_ok(), "{added:?}");
    assert_eq!(mirror.grow(&larger, 3 * MS), Err(GrowError::Refused));
}

#[test]
fn t14_a_leg_that_leaves_while_it_grows_is_stale_in_the_new_size() {
    let mut mirror = started(2, Config::new(6));
    mirror
        .submit(Request::Write(Range::new(0, BLOCK), false), MS)
        .unwrap();
    traced(&mut mirror, MS);
    let larger = sizes(&mirror, 64 * DATA_ALIGN);
    let bytes = mirror.grow(&larger, 2 * MS).unwrap();
    let mut news = Vec::new();
    while let Some(output) = mirror.poll_output(2 * MS) {
        match output {
            // Leg 1 can't write its pages.
            Output::Pages(ticket, _) if ticket.leg == 1 => {
                mirror.handle_done(ticket, Outcome::MediaError, 2 * MS);
            }
            Output::Pages(ticket, _) | Output::Superblock(ticket, _) | Output::Flush(ticket) => {
                mirror.handle_done(ticket, Outcome::Done, 2 * MS);
            }
            Output::News(it) => news.push(it),
            _ => {}
        }
    }
    assert!(news.contains(&News::Grown(bytes)), "{news:?}");
    let state = *mirror.superblock();
    assert_eq!(state.geometry.bytes, bytes);
    assert_eq!(state.in_sync().collect::<Vec<_>>(), [0]);
    assert_eq!(mirror.diverged(), 0, "nobody differs from the only one");
}
