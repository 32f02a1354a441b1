//! Lines about mirrors and their legs, for people.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use block::Range;
use mirror::assembly::Refusal;
use mirror::assembly::degraded::Reason;
use mirror::machine::{CheckReport, LegFacts, Unfit};
use mirror::{Id, Superblock};
use multipath::Outcome;

/// Advice for a leg whose file became shorter.
pub const CUT_SHORT: &str = "its file was cut short, so nothing that it has counts any more: make \
                             the file as long again and restore the leg, or replace it; it is \
                             rebuilt from the start";

/// Advice for the last leg in sync, which stays, when its file became shorter.
pub const CUT_AND_LAST: &str = "its file was cut short, and no other leg in sync has what lay \
                                behind its end: I/O there fails. Save what is left before \
                                anything else; then make the file as long again, and braid mirror \
                                accept-loss uses it as it is, with zeroes there";

/// A leg that was too small and is large enough again; one that was sanitized as the last one.
pub const WAS_TOO_SMALL: &str = "it was smaller than the mirror needs for a while, or sanitized, \
                                 so nothing that it has counts: it is rebuilt from the start";

/// Advice for a leg that is too small.
pub fn too_small(bytes: u64, needs: u64) -> String {
    format!(
        "it has {bytes} bytes, and the mirror needs {needs}, so nothing that it has counts any \
         more: make it as large again, and it is rebuilt from the start"
    )
}

/// Advice for the last leg in sync, which was too small for a while.
pub fn cut_at(mirror: &str, end: u64, is_small: bool) -> String {
    let now = match is_small {
        true => "make it as large again first",
        false => "it is as large again",
    };
    // Superblocks have 1 for a leg that has nothing left.
    if end <= 1 {
        return format!(
            "all that it had is lost: it was sanitized, or smaller than anything of the mirror, \
             while no other leg was in sync, and all I/O fails ({now}). What is there instead is \
             used, and copied to the other legs, once you say so: braid mirror accept-loss {mirror}"
        );
    }
    format!(
        "it was smaller than the mirror needs while no other leg was in sync: what lay behind byte \
         {end} of the mirror is lost, and I/O there fails ({now}). Save what is left; what is \
         there instead is used, and copied to the other legs, once you say so: braid mirror \
         accept-loss {mirror}"
    )
}

/// Why a mirror is not started: its legs are of one with another name.
pub fn other_name(name: &str, legs: &Superblock) -> String {
    format!(
        "its legs are of the mirror \"{}\" ({}), not of \"{name}\": give the legs of {name}, or \
         accept that mirror, which is called {name} then: braid mirror assemble {name} --accept \
         (braid run --accept {name})",
        legs.name, legs.mirror
    )
}

/// The legs are of another mirror than the one that ran last under this name.
pub fn other_mirror(name: &str, legs: &Superblock, known: Id) -> String {
    format!(
        "its legs are of another mirror than when it ran last: UUID {}, before UUID {known}; \
         nothing of it is used; correct its legs, or accept that mirror: braid accept {name} \
         (braid run --accept {name})",
        legs.mirror
    )
}

/// Why a leg gets no I/O though it takes part.
pub const LAPSED: &str = "no heartbeat has ended there for two intervals: nothing is read or \
                          written there before two have";

/// Why a leg can't return, and what to do.
pub fn unfit(why: &Unfit) -> String {
    match why {
        Unfit::Failed(outcome) => format!("its superblock can't be read: {outcome}"),
        Unfit::NoLeg(why) => format!("{why}"),
        Unfit::Other => "it is another leg now, or another mirror's".into(),
        Unfit::Parted => "it was written by itself since it left: make it a new leg if its writes \
                          are not needed"
            .into(),
        Unfit::Small => "it is smaller than the mirror needs".into(),
        Unfit::Owned(other) => format!("another host has it, and lives ({other})"),
        Unfit::Ahead => {
            "its sequence is too far ahead: overwrite its superblocks, and add it as a \
                         new leg"
                .into()
        }
    }
}

/// Why a leg that is being rebuilt lacks so many regions for now.
pub fn stuck(regions: u64) -> String {
    format!(
        "no leg in sync can read all of {regions} regions that it lacks: they are tried again \
         every ten minutes, and are copied when they were written anew (the log says where)"
    )
}

/// A range, for people.
pub fn bytes_of(range: Range) -> String {
    format!("{} bytes at {}", range.end - range.start, range.start)
}

/// The bad blocks of a leg in sync, and the blocks that no leg in sync has. `nowhere`: these, and
/// the leg that has them.
pub fn bad(mirror: &str, facts: &LegFacts, nowhere: Option<(Range, Option<u8>)>) -> String {
    let (ranges, bytes, first) = facts.bad;
    let first = first.map(bytes_of).unwrap_or_default();
    let which = match ranges {
        1 => first,
        _ => format!("{ranges} ranges, {bytes} bytes, the first {first}"),
    };
    let nowhere = match nowhere {
        None => String::new(),
        Some((range, Some(slot))) => format!(
            "; no leg in sync has {}, but leg {slot}: bring it back",
            bytes_of(range)
        ),
        Some((range, None)) => format!(
            "; no leg has {}: write them again, from a backup",
            bytes_of(range)
        ),
    };
    format!(
        "it could not write {which}: it is not read there. Later writes there are tried, also by \
         braid mirror repair {mirror} --from LEG, a leg that has them; if that doesn't help \
         replace the leg{nowhere}"
    )
}

/// Why a leg has left that could not write more blocks than are recorded.
pub fn full(more: Option<Range>, stuck: bool) -> String {
    let which = more.map_or("more".into(), bytes_of);
    let next = match stuck {
        true => {
            "stuck: it could not when it was rebuilt either, and is not tried again before it is \
             restored; replace it"
        }
        false => "it is rebuilt once more",
    };
    format!("it could not write {which} besides all that can be recorded as bad; {next}")
}

/// Whether a leg may be taken out by hand.
///
/// # Errors
/// The blocks that only it has.
pub fn may_leave(slot: u8, only: Option<Range>) -> Result<(), String> {
    match only {
        None => Ok(()),
        Some(range) => Err(format!(
            "only leg {slot} has {}: the other legs in sync could not write them. Write them \
             again, or replace the other legs first",
            bytes_of(range)
        )),
    }
}

/// Result of a check of a mirror. `name` returns the name of a leg.
pub fn checked(mirror: &str, report: &CheckReport, name: impl Fn(u8) -> String) -> String {
    let whole = match report.complete {
        true if report.changed => ", while legs came or went, so not all that they have",
        true => "",
        false if report.alone => {
            ", then only one leg was in sync, and there was nothing to compare"
        }
        false => ", then it was ended",
    };
    let mut line = format!(
        "{} MiB compared{whole}: {} differences, {} unreadable, {} rewritten",
        report.bytes >> 20,
        report.differences,
        report.unreadable,
        report.repaired
    );
    if report.skipped > 0 {
        let skipped = report.skipped;
        line.push_str(&format!(", {skipped} not compared (bad blocks of a leg)"));
    }
    let first = report.first.iter().flatten();
    let first = first.map(|&(leg, start, end)| {
        let name = name(leg);
        format!("leg {leg} ({name}), bytes {start} to {end}")
    });
    let first = first.collect::<Vec<_>>();
    if !first.is_empty() {
        let more = report.differences > first.len() as u64;
        let which = if more { "the first: " } else { "" };
        line.push_str(&format!("; {which}{}", first.join("; ")));
    }
    if report.differences > 0 && report.repaired == 0 {
        line.push_str(&format!(
            "; which leg is right nobody can tell from that: braid mirror repair {mirror} --from \
             LEG gives the others what that one has (without --from: the one with the lowest \
             number)"
        ));
    }
    line
}

/// Whether a leg that the newest state calls in sync is there, and shows an older state.
fn is_put_back(slot: u8, newest: Option<&Superblock>, known: &[Superblock]) -> bool {
    let Some(newest) = newest else { return false };
    let entry = newest.legs.get(usize::from(slot)).copied().flatten();
    known.iter().any(|it| {
        let same = it.slot == slot && it.leg().map(|it| it.id) == entry.map(|it| it.id);
        same && it.leaves_room() && it.event.saturating_add(1) < newest.event
    })
}

fn put_back(count: usize, legs: &str) -> String {
    let (show, they) = match count {
        1 => ("shows", "it"),
        _ => ("show", "they"),
    };
    format!(
        "{legs} {show} an older state than {they} once had (a snapshot that was put back?), and \
         may have had newer writes than the others; bring what {they} had, or give that up"
    )
}

/// Why a leg that is there is left out: its superblock can't be written.
pub fn unwritable(outcome: Outcome) -> String {
    match outcome {
        Outcome::ReadOnly => "it is there, and write-protected: lift that protection, and it is \
                              used again by itself"
            .into(),
        _ => format!("it is there, and its superblock can't be written: {outcome}; see the device"),
    }
}

fn newest(known: &[Superblock]) -> Option<&Superblock> {
    let usable = known.iter().filter(|it| it.leaves_room());
    usable.max_by_key(|it| it.event)
}

/// Names legs by their slots, with their labels as far as `known` superblocks have them.
fn name_slots(slots: &[u8], known: &[Superblock]) -> String {
    let newest = newest(known);
    let words = |&slot: &u8| {
        let entry = newest.and_then(|it| it.legs.get(usize::from(slot))?.as_ref());
        match entry.filter(|it| !it.label.is_empty()) {
            Some(entry) => format!("leg {slot} ({})", entry.label),
            None => format!("leg {slot}"),
        }
    };
    slots.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// Why a mirror does not start without missing legs by itself; `None`: the refusal has it.
pub fn waits(reason: &Reason, known: &[Superblock]) -> Option<String> {
    let why = match reason {
        Reason::Unusable(_) | Reason::Refused(_) => return None,
        Reason::Off => "start_degraded is false".into(),
        Reason::Shared => "other hosts can reach its legs, and one may have gone on with those \
                           that are missing: set start_degraded = true if none ever does"
            .into(),
        Reason::NoRecord => "this host has no record of its last state".into(),
        Reason::Untrusted => "this host's record of its last state is damaged, or was put back \
                              from a copy, and may not be the last one"
            .into(),
        Reason::Older => "another host, or an engine with another state directory, has changed it \
                          since this host did, and may have gone on with those that are missing"
            .into(),
        Reason::Owned(Some(owner)) => format!(
            "{owner} has it, or had it and did not stop it in order, and may have gone on with \
             those that are missing"
        ),
        Reason::Owned(None) => "another host, or an engine with another state directory, has had \
                                it since this host's record, and may have gone on with those that \
                                are missing"
            .into(),
        Reason::Unclean => "it was not stopped in order".into(),
        Reason::Newer(slots) => {
            let there = |slot: &u8| known.iter().any(|it| it.slot == *slot);
            let newer: Vec<u8> = slots.iter().copied().filter(|it| !there(it)).collect();
            match newer.is_empty() {
                true => "this host has begun to change it since".into(),
                false => format!(
                    "this host has changed it since, or begun to: {} may have newer data",
                    name_slots(&newer, known)
                ),
            }
        }
    };
    Some(why)
}

/// A mirror has started by itself without these legs, which had everything.
pub fn started_without(slots: &[u8], known: &[Superblock]) -> String {
    let event = newest(known).map_or(0, |it| it.event);
    format!(
        "STARTED DEGRADED, by itself, without {}: by this host's record the legs that are there \
         have all data, as of the clean stop of generation {event}; what is missing is rebuilt \
         when it returns",
        name_slots(slots, known)
    )
}

/// Why a mirror can't be assembled, and what to do. `mirror`: its name; `name` returns the name of
/// a given leg; `known`: their superblocks.
pub fn refusal(
    mirror: &str,
    refusal: &Refusal,
    name: impl Fn(usize) -> String,
    known: &[Superblock],
) -> String {
    let newest = newest(known);
    let slots = |slots: &[u8]| name_slots(slots, known);
    match refusal {
        Refusal::Nothing => "none of these is a leg".into(),
        Refusal::Newer(at, error) => format!("{}: {error}", name(*at)),
        Refusal::Foreign(a, b) => format!(
            "{} and {} are of different mirrors; leave one of them out",
            name(*a),
            name(*b)
        ),
        Refusal::Twice(a, b) => format!(
            "{} and {} are the same leg: one is a copy of the other; leave it out",
            name(*a),
            name(*b)
        ),
        Refusal::Parted(a, b) => format!(
            "{} and {} were both written since they parted: one of them has to be given up; \
             leave it out, or braid mirror assemble {mirror} --discard LEG",
            name(*a),
            name(*b)
        ),
        Refusal::TooOld(at) => format!(
            "{} was away for so long that it can't be told whether it was written meanwhile; \
             leave it out",
            name(*at)
        ),
        Refusal::Small(at) => format!("{} is smaller than its superblock says", name(*at)),
        Refusal::Incomplete(missing) => {
            let is_back = |slot: &&u8| is_put_back(**slot, newest, known);
            let (back, away): (Vec<u8>, Vec<u8>) = missing.iter().partition(is_back);
            let away = (!away.is_empty()).then(|| {
                let away = slots(&away);
                format!("{away} may have newer writes; bring it, or give up what only it has")
            });
            let back = (!back.is_empty()).then(|| put_back(back.len(), &slots(&back)));
            let why: Vec<String> = [away, back].into_iter().flatten().collect();
            let why = why.join("; ");
            format!("{why}: braid mirror assemble {mirror} --without-missing")
        }
        Refusal::NoneInSync(missing) => format!(
            "none of these has everything; what has it: {}",
            slots(missing)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::parts::superblock;
    use mirror::{Id, Label};

    /// Two legs of one mirror, at these events.
    fn legs(events: [u64; 2]) -> [Superblock; 2] {
        let first = superblock(&["a", "b"].map(Label::cut));
        let place = first.place;
        let at = |slot: u8| Superblock {
            event: events[usize::from(slot)],
            ..first.on(slot, place)
        };
        [at(0), at(1)]
    }

    fn incomplete(missing: &[u8], known: &[Superblock]) -> String {
        let why = Refusal::Incomplete(missing.into());
        refusal("m0", &why, |_| String::new(), known)
    }

    #[test]
    fn a_leg_that_was_put_back_is_told_from_one_that_is_away() {
        let [a, b] = legs([3, 5]);
        let told = incomplete(&[0], &[a, b]);
        assert!(told.starts_with("leg 0 (a) shows an older"), "{told}");
        let told = incomplete(&[0], &[b]);
        assert!(told.starts_with("leg 0 (a) may have newer"), "{told}");
        // The user gives up what it has, which is as new as any.
        let [a, b] = legs([5, 5]);
        let told = incomplete(&[0], &[a, b]);
        assert!(told.starts_with("leg 0 (a) may have newer"), "{told}");
        // A leg that was removed, whose place another one has.
        let [mut a, b] = legs([3, 5]);
        if let Some(entry) = &mut a.legs[0] {
            entry.id = Id([9; 16]);
        }
        let told = incomplete(&[0], &[a, b]);
        assert!(told.starts_with("leg 0 (a) may have newer"), "{told}");
        // One that counts so high that nobody can have written it.
        let [a, mut b] = legs([3, 5]);
        b.event = u64::MAX;
        let told = incomplete(&[1], &[a, b]);
        assert!(told.starts_with("leg 1 (b) may have newer"), "{told}");
    }
}
