//! Bodies of the fuzz targets over `volume`: what is read from the legs of a mirror.
//!
//! # Contract
//! A tree of its own beside the bodies over `nvme`: compiled by the fuzz targets, and by a test of
//! `volume` that replays the corpus. It uses `volume` and nothing else.
//!
//! Legs begin as a mirror's life left them ([`life`]); then somebody writes into their bytes, with
//! or without making the checksums right again. Checked besides not panicking: what was parsed
//! comes out of its encoding again, and a block at the wrong place is none; what several legs come
//! to names legs that are there, has one that is in sync, and is itself a state that can be written
//! and read; a page sets bits of regions that there are, and no others than its own.
pub mod life;
pub mod seeds;
#[path = "../tape.rs"]
#[allow(dead_code, reason = "each crate's bodies use a part")]
pub mod tape;

use life::{Leg, crc32c};
use mirror::assembly::{Assembly, Refusal, Role, Wishes, assemble};
use mirror::bitmap::{Bitmap, PAGE_BYTES, PAGE_REGIONS};
use mirror::copies::{NoLeg, choose};
use mirror::{Id, Superblock};
use tape::Tape;

/// Events in one life, and how many pages are read: each costs.
const STEPS_MAX: usize = 64;
const PAGES_MAX: usize = 8;

/// A body.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
#[allow(dead_code, reason = "for the test that replays")]
pub const TARGETS: [(&str, Body); 1] = [("mirror", run)];

/// The tape: a byte, of which bit 7 says that it is about a page of the bitmap and else the lower
/// ones how many legs there are; then operations.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    match tape.byte() {
        choice if choice & 0x80 != 0 => page(choice, &mut tape),
        choice => legs(choice, &mut tape),
    }
}

fn legs(choice: u8, tape: &mut Tape) {
    let mut legs = life::begin(choice);
    for _ in 0..STEPS_MAX {
        let Some(operation) = tape.operation() else {
            break;
        };
        life::step(operation, &mut legs, tape);
    }
    let given: Vec<Result<Superblock, NoLeg>> = legs.iter().map(read).collect();
    let mut wishes = vec![Wishes::default()];
    for without in [false, true] {
        let discard = (0..given.len()).map(Some);
        wishes.extend(discard.map(|discard| Wishes { without, discard }));
    }
    wishes.push(Wishes {
        without: true,
        discard: None,
    });
    for wishes in wishes {
        match assemble(&given, wishes) {
            Ok(assembly) => assembled(&assembly, &given, wishes),
            Err(refusal) => refused(&refusal, given.len()),
        }
    }
}

/// A leg as its two blocks say.
fn read(leg: &Leg) -> Result<Superblock, NoLeg> {
    let copies = [0, 1].map(|copy| {
        let bytes = &leg.copies[usize::from(copy)];
        let parsed = Superblock::parse(bytes, copy, crc32c);
        match &parsed {
            Ok(superblock) => {
                let written = superblock.encode(copy, crc32c);
                let again = Superblock::parse(&written, copy, crc32c);
                assert_eq!(again, Ok(known(superblock)), "written and read again");
                let elsewhere = Superblock::parse(bytes, 1 - copy, crc32c);
                assert!(elsewhere.is_err(), "at the other's place");
                assert!(superblock.in_sync().next().is_some() && superblock.leg().is_some());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        parsed
    });
    let chosen = choose(copies).and_then(|chosen| chosen.on_leg_of(leg.bytes));
    match chosen {
        Ok(chosen) => {
            let other = copies[usize::from(chosen.next_copy())];
            let older = other.is_ok_and(|other| other.sequence > chosen.superblock.sequence);
            assert!(!older, "the newer one holds");
            Ok(chosen.superblock)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Err(error)
        }
    }
}

fn assembled(assembly: &Assembly, given: &[Result<Superblock, NoLeg>], wishes: Wishes) {
    let next = &assembly.next;
    assert_eq!(assembly.roles.len(), given.len());
    assert!(given[assembly.newest].is_ok() && wishes.discard != Some(assembly.newest));
    assert!(assembly.roles.contains(&Role::InSync), "nobody has all");
    for (at, (role, leg)) in assembly.roles.iter().zip(given).enumerate() {
        let leg = match (leg, role) {
            (Ok(leg), Role::InSync | Role::Behind { .. }) => leg,
            // It can be read, and is of no use beside the newest; its place may be another's.
            (Ok(_), Role::Unusable(why)) => {
                assert!(matches!(
                    why,
                    NoLeg::Removed | NoLeg::Small | NoLeg::TooOld | NoLeg::Worn
                ));
                assert_ne!(at, assembly.newest);
                continue;
            }
            (Err(_), role) => {
                assert!(matches!(role, Role::Unusable(_)));
                continue;
            }
        };
        // A leg that is taken for in sync says so of itself, in the newest state or the one before.
        let in_sync = next.in_sync().any(|slot| slot == leg.slot);
        assert_eq!(*role == Role::InSync, in_sync, "leg {at}");
        assert!(!in_sync || (wishes.discard != Some(at) && leg.event + 1 >= next.event));
        assert!(next.sequence >= leg.sequence);
    }
    let used = |slot: u8| {
        let roles = assembly.roles.iter().zip(given);
        let mut used = roles.filter(|(role, _)| !matches!(role, Role::Unusable(_)));
        used.any(|(_, leg)| leg.as_ref().is_ok_and(|leg| leg.slot == slot))
    };
    for slot in next.in_sync() {
        assert!(used(slot), "a leg that nobody gave is stale");
    }
    for slot in &assembly.absent {
        assert!(next.legs[usize::from(*slot)].is_some());
        assert!(!used(*slot), "a leg that is there is not absent");
    }
    assert!(assembly.lagging.iter().all(|at| given[*at].is_ok()));
    let written = next.encode(0, crc32c);
    assert_eq!(Superblock::parse(&written, 0, crc32c), Ok(known(next)));
}

/// Without compatible features that this version doesn't know: it drops them when it writes.
fn known(superblock: &Superblock) -> Superblock {
    let mut known = *superblock;
    known.features.compatible = 0;
    known
}

fn refused(refusal: &Refusal, given: usize) {
    let named = match refusal {
        Refusal::Newer(at, _) | Refusal::TooOld(at) => vec![*at],
        Refusal::Small(at) => vec![*at],
        Refusal::Foreign(a, b) | Refusal::Twice(a, b) | Refusal::Parted(a, b) => vec![*a, *b],
        Refusal::Nothing | Refusal::Incomplete(_) | Refusal::NoneInSync(_) => Vec::new(),
    };
    assert!(named.iter().all(|at| *at < given), "{refusal:?}");
    assert!(named.len() < 2 || named[0] != named[1], "{refusal:?}");
}

/// Pages of a bitmap of some regions, written over and merged.
fn page(choice: u8, tape: &mut Tape) {
    let mirror = Id([1 + choice % 2; 16]);
    let regions = 1 + u64::from(tape.word()) % (3 * PAGE_REGIONS);
    let mut map = Bitmap::new(regions);
    for _ in 0..PAGES_MAX {
        let Some(operation) = tape.operation() else {
            break;
        };
        let index = usize::from(operation & 3);
        let mut source = Bitmap::new(regions);
        for _ in 0..operation >> 5 {
            source.set(u64::from(tape.word()));
        }
        let of = Id([1 + (operation >> 4 & 1); 16]);
        let written = source.encode(index, of, crc32c);
        let mut bytes = written.to_vec();
        life::write_over(&mut bytes, operation & 4 != 0, 4, tape);
        let before = map.clone();
        let merged = map.merge_page(index, &bytes, mirror, crc32c);
        let own = index as u64 * PAGE_REGIONS..(index as u64 + 1) * PAGE_REGIONS;
        for region in 0..regions {
            let was = before.is_set(region);
            assert!(map.is_set(region) || !was, "a bit is lost");
            assert!(own.contains(&region) || map.is_set(region) == was);
        }
        match merged {
            Ok(()) if bytes == written => {
                assert_eq!(of, mirror);
                assert!(own.filter(|at| source.is_set(*at)).all(|at| map.is_set(at)));
            }
            Ok(()) => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(map, before, "nothing has changed");
                if operation & 8 != 0 {
                    map.suspect(index);
                }
            }
        }
        let count = (0..regions).filter(|region| map.is_set(*region)).count();
        assert_eq!(map.count(), count as u64, "only regions that there are");
        assert!(!map.is_set(regions) && map.encode(index, mirror, crc32c).len() == PAGE_BYTES);
    }
}
