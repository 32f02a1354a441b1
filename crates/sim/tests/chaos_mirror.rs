//! The engine with mirrors in worlds of chaos.
#![allow(clippy::unwrap_used, reason = "tests")]
use sim::chaos::plan::Plan;
use sim::chaos::run::{self, Report};

/// So many worlds if `MIRROR_WORLDS` does not say how many.
const WORLDS: u64 = 60;

fn half(first: u64, worlds: u64) -> Vec<Report> {
    let report = |seed| {
        let report = run::run(&Plan::draw_mirror(seed));
        let found = &report.finding;
        assert!(found.is_none(), "seed {seed}: {found:?}");
        report
    };
    (first..=worlds).step_by(2).map(report).collect()
}

/// 1 and 2, as they were drawn then, kept a core busy for as long as a leg that was due could not
/// be reached. 2835345: a read was done by a leg that had left meanwhile, with what was there
/// before. 16338785: a mirror that was not started kept a core busy while its host stopped.
#[test]
fn worlds_with_mirrors_that_found_something_once() {
    let drawn = [2_835_345, 16_338_785].map(Plan::draw_mirror);
    for plan in [1, 2].map(Plan::first_mirror).into_iter().chain(drawn) {
        let found = run::run(&plan).finding;
        assert!(found.is_none(), "seed {}: {found:?}", plan.seed);
    }
}

#[test]
fn mirrors_come_to_rest_with_all_legs_alike_and_nothing_was_lost() {
    let asked = std::env::var("MIRROR_WORLDS").ok();
    let count = asked.map_or(WORLDS, |it| it.parse().unwrap());
    let other = std::thread::spawn(move || half(2, count));
    let mut worlds = half(1, count);
    worlds.extend(other.join().unwrap());
    let requests: u64 = worlds.iter().map(|it| it.requests).sum();
    let faults: u64 = worlds.iter().map(|it| it.faults).sum();
    assert!(requests > 1000 * count, "{requests} requests");
    assert!(faults > 4 * count, "{faults} faults");
}

#[test]
fn the_same_seed_has_the_same_course() {
    let report = |seed| {
        let report = run::run(&Plan::draw_mirror(seed));
        (report.requests, report.events, report.time_ns)
    };
    assert_eq!(report(5), report(5));
    assert_ne!(report(5), report(6));
}
