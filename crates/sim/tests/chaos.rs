//! The engine in worlds of chaos.
#![allow(clippy::unwrap_used, reason = "tests")]
use sim::chaos::aim;
use sim::chaos::judged::Check;
use sim::chaos::plan::Plan;
use sim::chaos::run::{self, Report};

/// What came of half of the fixed worlds.
fn half(first: u64) -> Vec<Report> {
    let seeds = (first..=aim::SEEDS).step_by(2);
    let report = |seed| {
        let report = run::run(&Plan::draw(seed));
        // `run::story` tells what became of a block there.
        let found = &report.finding;
        assert!(found.is_none(), "seed {seed}: {found:?}");
        report
    };
    seeds.map(report).collect()
}

/// Of how many worlds in a hundred a checker has something to judge, at least.
fn share(check: Check) -> usize {
    match check {
        Check::Failures | Check::Paths => 60,
        Check::Durable => 40,
        Check::Cores => 30,
        Check::Export => 70,
        Check::Bounds => 90,
        _ => 100,
    }
}

/// There are many requests and faults, and every kind of fault in every state of a path, as far as
/// that can be; and checkers have something to judge.
#[test]
fn worlds_of_chaos_come_to_rest_and_nothing_was_lost() {
    let other = std::thread::spawn(|| half(2));
    let mut worlds = half(1);
    worlds.extend(other.join().unwrap());
    let median = |count: fn(&Report) -> u64| {
        let mut counts: Vec<u64> = worlds.iter().map(count).collect();
        counts.sort_unstable();
        counts[counts.len() / 2]
    };
    let (requests, faults) = (median(|it| it.requests), median(|it| it.faults));
    assert!(requests >= 2000 && faults >= 10, "{requests} {faults}");
    let hit: Vec<_> = worlds.iter().flat_map(|it| it.coverage.clone()).collect();
    assert_eq!(aim::empty_cells(&hit), []);
    for check in Check::ALL {
        let judged = worlds.iter().filter(|it| it.judged.contains(&check));
        let percent = judged.count() * 100 / worlds.len();
        assert!(percent >= share(check), "{check:?}: {percent} % of worlds");
    }
}

/// 3003, 3024: a read whose copy was done first went on in a slot behind those that can be cut, and
/// the next I/O there was a large one (out of bounds). 30249, 30269: a flush that waited for room
/// on a path was sent away from it eight times, always back to it, when that was put on probation.
/// 100401, 100593: a fault of worlds: an array did not hand its cache over with its ANA group.
///
/// Of worlds as they are drawn now: 589, 618, 669, 736, 1107, 1509, 1534, 1551: a fault of a
/// checker: a write that failed, and never left its host, was to have replaced one of the life
/// before. 726, 1758, 10536: a target was full for two minutes of what nobody used. 3876,
/// 11984: a flush passed without a controller that another path's size put in doubt. 4534, 10022,
/// 10057: a fault of a checker, which knew of one cache only. 4217: a fault of a checker: a flush
/// was to cover what had been given up before it. 2544: flushes that waited for room on a path were
/// sent away from it and came back when its namespace was read again.
#[test]
fn worlds_that_found_something_once() {
    let first = [3003, 3024, 30249, 30269, 100401, 100593].map(Plan::first);
    let drawn = [
        589, 618, 669, 736, 1107, 1509, 1534, 1551, 726, 1758, 10536, 3876, 11984, 4534, 10022,
        10057, 4217, 2544,
    ]
    .map(Plan::draw);
    for plan in first.into_iter().chain(drawn) {
        let found = run::run(&plan).finding;
        assert!(found.is_none(), "seed {}: {found:?}", plan.seed);
    }
}

#[test]
fn the_same_seed_has_the_same_course() {
    let report = |seed| {
        let report = run::run(&Plan::draw(seed));
        (
            report.requests,
            report.events,
            report.time_ns,
            report.faults,
        )
    };
    assert_eq!(report(5), report(5));
    assert_ne!(report(5), report(6));
}
