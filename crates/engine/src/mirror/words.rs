//! Lines about mirrors and their legs, for people.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use volume::mirror::Superblock;
use volume::mirror::assembly::Refusal;
use volume::mirror::machine::{CheckReport, Unfit};

/// What is to be done with a leg whose file became shorter.
pub const CUT_SHORT: &str = "its file was cut short, so nothing that it has counts any more: make \
                             the file as long again and restore the leg, or replace it; it is \
                             rebuilt from the start";

/// Why a leg gets no I/O though it takes part.
pub const LAPSED: &str = "no beat has ended there for two intervals: nothing is read or written \
                          there before two have";

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

/// What a check of a mirror has found; `name`: of a leg.
pub fn checked(mirror: &str, report: &CheckReport, name: impl Fn(u8) -> String) -> String {
    let whole = match report.complete {
        true => "",
        false => ", then it was ended",
    };
    let mut line = format!(
        "{} MiB compared{whole}: {} differences, {} unreadable, {} rewritten",
        report.bytes >> 20,
        report.differences,
        report.unreadable,
        report.repaired
    );
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

/// Why legs make no mirror, and what to do. `mirror`: what it is called; `name`: of the legs given;
/// `known`: what they say.
pub fn refusal(
    mirror: &str,
    refusal: &Refusal,
    name: impl Fn(usize) -> String,
    known: &[Superblock],
) -> String {
    let newest = known.iter().max_by_key(|it| it.event);
    let slots = |slots: &[u8]| {
        let words = |&slot: &u8| {
            let entry = newest.and_then(|it| it.legs.get(usize::from(slot))?.as_ref());
            match entry.filter(|it| !it.label.is_empty()) {
                Some(entry) => format!("leg {slot} ({})", entry.label),
                None => format!("leg {slot}"),
            }
        };
        slots.iter().map(words).collect::<Vec<_>>().join(", ")
    };
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
            let given = |slot: &u8| known.iter().any(|it| it.slot == *slot);
            let (put_back, away): (Vec<u8>, Vec<u8>) = missing.iter().partition(|it| given(it));
            let mut why = Vec::new();
            if !away.is_empty() {
                why.push(format!(
                    "{} may have newer writes; bring it, or give up what only it has",
                    slots(&away)
                ));
            }
            if !put_back.is_empty() {
                why.push(format!(
                    "{} shows an older state than it once had (a snapshot that was put back?), and \
                     may have had newer writes than the others; bring what it had, or give that up",
                    slots(&put_back)
                ));
            }
            let why = why.join("; ");
            format!("{why}: braid mirror assemble {mirror} --without-missing")
        }
        Refusal::NoneInSync(missing) => format!(
            "none of these has everything; what has it: {}",
            slots(missing)
        ),
    }
}
