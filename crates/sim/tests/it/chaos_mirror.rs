//! The engine with mirrors in worlds of chaos.
use crate::programs::Modules;
use sim::chaos::aim;
use sim::chaos::judged::{Check, Family};
use sim::chaos::mirror::ample;
use sim::chaos::plan::Plan;
use sim::chaos::run::{self, Report};

/// Cells of which no fault has touched anything in that many worlds.
const EMPTY_MAX: usize = 36;

/// `MIRROR_WORLDS` says how many, if it is there.
fn half(first: u64, worlds: u64) -> Vec<Report> {
    let report = |seed| {
        let report = run::run(&Plan::draw_mirror(seed), &Modules::new());
        let found = &report.finding;
        assert!(found.is_none(), "seed {seed}: {found:?}");
        report
    };
    (first..=worlds).step_by(2).map(report).collect()
}

/// Of how many worlds in a hundred a checker has something to judge, at least.
fn share(check: Check) -> usize {
    match check {
        Check::Durable => 60,
        Check::Plug | Check::Alike => 50,
        Check::Failures | Check::Peaks => 25,
        Check::Orphans => 10,
        Check::Hosts => 25,
        Check::Excuse => 5,
        Check::Heir => 6,
        Check::Gate => 3,
        Check::PutBack => 16,
        Check::Shrunk | Check::Exchanged => 10,
        Check::Deep => 2,
        Check::Hung => 4,
        Check::Overtaken => 2,
        _ => 100,
    }
}

/// 1 and 2, as they were drawn first, kept a core busy for as long as a leg that was due could not
/// be reached. As they were drawn then: 2835345: a read was done by a leg that had left meanwhile,
/// with older contents. 16338785: a mirror that was not started kept a core busy while its host
/// stopped. 37 has a start that was refused, which only its users repeat.
///
/// As they were before `apart`: 82: a leg that was too short when its mirror began
/// was none any more when it was as long again. 91, 129: a leg lost what was in its cache while
/// another one was rebuilt from it, and that joined with what the first one had not any more.
///
/// As they were before `enough`: 900194: a mirror whose last leg could not flush kept a core
/// busy while it stopped. 901020: one whose leases were over did not end when its time to drain
/// was. 3100189, 3100732: the last leg in sync, which does not fence its writes, executed one late
/// that had failed: after older contents had been copied, and over a newer one (T9). 3101288,
/// 3107206: a leg reported its loss by one flush, and the next one was acknowledged while another
/// leg was slow with the first. 3103865: the path to a controller left before its mirror was taken
/// over, and that one's cache was unknown.
///
/// As they were before `put_back`: 8010489: a fault of a checker: a read that waits for a
/// lease fails with the write of a beat. 8009396, 8013285: a write that had not ended failed,
/// because the last leg in sync told of a loss. 8015441: all legs lost their caches, the last
/// one was read, and after a kill another one had what was lost. 8020350: a path that had never
/// been there left without force before its mirror was taken over. 8024899: what was copied to
/// a leg was read when it was alone, and was not flushed. 8025265: a fault of a checker: the
/// user took out the one leg that had everything. 8028761: one flush that told of a loss failed
/// reads.
///
/// As they were before `blink`: 41010058, 41014044 and 42010300: faults of checkers, of
/// legs that had left, of a last leg on which nothing could be said, and of a host that stood still
/// while one controller lost its cache and all were lost. 45060246: a read that one leg did not
/// answer failed, since the other one had left meanwhile. 48035387: records of two owners that had
/// died came late over both copies of a third one's, who took them for those of a fourth.
#[test]
fn worlds_with_mirrors_that_found_something_once() {
    let first = [1, 2].map(|it| Plan::draw_mirror_before("sharp", it));
    let second = [37, 2_835_345, 16_338_785].map(|it| Plan::draw_mirror_before("ample", it));
    let fourth = [82, 91, 129].map(|it| Plan::draw_mirror_before("apart", it));
    let sixth = [
        900_194, 901_020, 3_001_489, 3_004_387, 3_005_964, 3_008_344, 3_100_189, 3_100_732,
        3_101_288, 3_103_865, 3_107_206,
    ]
    .map(|it| Plan::draw_mirror_before("enough", it));
    let seventh = [
        8_009_396, 8_010_489, 8_013_285, 8_015_441, 8_020_350, 8_024_899, 8_025_265, 8_028_761,
    ]
    .map(|it| Plan::draw_mirror_before("put_back", it));
    let before = first.into_iter().chain(second).chain(fourth).chain(sixth);
    let eighth = [41_010_058, 41_014_044, 42_010_300, 45_060_246, 48_035_387]
        .map(|it| Plan::draw_mirror_before("blink", it));
    for plan in before.chain(seventh).chain(eighth) {
        let found = run::run(&plan, &Modules::new()).finding;
        assert!(found.is_none(), "seed {}: {found:?}", plan.seed);
    }
}

/// There are many requests and faults, every kind of fault in every state of a path of a leg, and
/// checkers have something to judge.
#[test]
fn mirrors_come_to_rest_with_all_legs_alike_and_nothing_was_lost() {
    let asked = std::env::var("MIRROR_WORLDS").ok();
    let count = asked.map_or(ample::SEEDS, |it| it.parse().unwrap());
    let other = std::thread::spawn(move || half(2, count));
    let mut worlds = half(1, count);
    worlds.extend(other.join().unwrap());
    let few = |it: &Report| it.requests < 2000 || it.faults < 10;
    let few = worlds.iter().find(|it| few(it));
    assert!(few.is_none(), "{few:?}");
    // Where a mirror starts late, or legs are only slow (`deep`), few of them have an effect.
    let spared = worlds.iter().filter(|it| it.touched() < 10).count();
    assert!(spared * 40 <= worlds.len(), "{spared} worlds");
    if count >= ample::SEEDS {
        let begun: Vec<_> = worlds.iter().flat_map(|it| it.begun.clone()).collect();
        assert_eq!(aim::empty_cells(&ample::KINDS, &begun), []);
        // Here it is not yet so that all of them have touched something.
        let hit: Vec<_> = worlds.iter().flat_map(|it| it.coverage.clone()).collect();
        let empty = aim::empty_cells(&ample::KINDS, &hit);
        assert!(empty.len() <= EMPTY_MAX, "{empty:?}");
    }
    for check in Check::of(Family::Mirrors) {
        let judged = worlds.iter().filter(|it| it.judged.contains(&check));
        let percent = judged.count() * 100 / worlds.len();
        assert!(percent >= share(check), "{check:?}: {percent} % of worlds");
    }
}

#[test]
fn the_same_seed_has_the_same_course() {
    let report = |seed| {
        let report = run::run(&Plan::draw_mirror(seed), &Modules::new());
        (report.requests, report.events, report.time_ns)
    };
    assert_eq!(report(5), report(5));
    assert_ne!(report(5), report(6));
}
