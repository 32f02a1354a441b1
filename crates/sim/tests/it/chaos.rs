//! The engine in worlds of chaos.
use crate::programs::Modules;
use engine::host::PathState;
use sim::chaos::aim;
use sim::chaos::judged::{Check, Family};
use sim::chaos::plan::{Fault, Kind, Plan};
use sim::chaos::run::{self, Report};
use sim::chaos::story::{self, Lines};

/// Reports of half of the fixed worlds.
fn half(first: u64) -> Vec<Report> {
    let seeds = (first..=aim::SEEDS).step_by(2);
    let report = |seed| {
        let report = run::run(&Plan::draw(seed), &Modules::new());
        // `story` tells what became of a block there.
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
        Check::Crowds => 80,
        Check::Once => 70,
        Check::Orphans | Check::Discovery => 15,
        Check::Behind => 2,
        Check::Hosts => 25,
        Check::Zeroes => 12,
        Check::Unexported => 8,
        Check::Export => 65,
        // Where at least half of what a core may have was under way at some time.
        Check::Peaks => 60,
        Check::Bounds => 90,
        _ => 100,
    }
}

/// There are many requests and faults, and every kind of fault has touched something in every state
/// of a path, as far as that can be; and checkers have something to judge.
#[test]
fn worlds_of_chaos_come_to_rest_and_nothing_was_lost() {
    let other = std::thread::spawn(|| half(2));
    let mut worlds = half(1);
    worlds.extend(other.join().unwrap());
    let few = |it: &Report| it.requests < 2000 || it.touched() < 10;
    let few = worlds.iter().find(|it| few(it));
    assert!(few.is_none(), "{few:?}");
    let hit: Vec<_> = worlds.iter().flat_map(|it| it.coverage.clone()).collect();
    assert_eq!(aim::empty_cells(&Kind::ALL, &hit), []);
    for check in Check::of(Family::Plain) {
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
/// Of worlds as they were drawn before `settings`: 589, 618, 669, 736, 1107, 1509,
/// 1534, 1551: a fault of a checker: a write that failed, and never left its host, was to have
/// replaced one of the life before. 726, 1758, 10536: a target was full for two minutes with unused
/// buffers. 3876, 11984: a flush passed without a controller that another path's size put in doubt.
/// 4534, 10022, 10057: a fault of a checker, which knew of one cache only. 4217: a fault of a
/// checker: a flush was to cover writes that had been given up before it. 2544: flushes that waited
/// for room on a path were sent away from it and came back when its namespace was read again. 2620:
/// a path that had flushed and was about to leave was lost on one core first, which then failed a
/// flush for it. 12484, 19121, 19326: a path that was just coming back was removed by force, and
/// what it had unflushed was forgotten without an error. 22126: a fault of a checker: a part of a
/// write was lost before the write had ended. 7972, 8497, 8977: a target that had stood still for
/// long executed writes whose association was over. 2204: an application that read nothing for a
/// minute was cut off. 113976: a path left by force, and its host stopped before any flush had
/// failed for it. 208854246: a fault of worlds: a keep-alive arrived that had no sender any more.
///
/// Of worlds as they were before `enough`: 127429386: a path that had been read
/// again beside one of another size stayed unused when that one had left in order. 140303: a path
/// left that an earlier engine may have written to and one core had flushed; another one had
/// doubts. 845, 401527: `soonest` left a path alone that had been slow once. 401988, 403312: a
/// fault of a checker: by `weighted-latency` a path may wait for a third round. 500049: a fault of
/// worlds: what one partition had kept passed through another. 526529, 534548: a volume whose only
/// path was removed and added again became the other namespace that was there just then. 563245: a
/// flush failed for a path that had left in order, and that another core had flushed. 710830: a
/// client went in the turn in which its volume became ready, and its session was never over.
///
/// As they were before `front`: 4046332: a large write was lost with the cache of a controller that
/// had done a piece of it, and a flush had failed for that before the write ended. 5058541: a flush
/// failed for a controller that had left, and its requester had gone. 5009709: between two flushes
/// of all paths `round-robin` began with the same one each time. 7016872: a fault of worlds: a mark
/// forgot the controller that only a second path led to. 7049735: a path left by force with
/// unflushed writes, and its engine was killed before a flush had failed for that. 7090568: a fault
/// of worlds: a target that had stood still got notice of an end before the sends before that.
/// 175773665: a fault of worlds: an application's connection had no end, for the core at the other
/// end stood still when that went silent. 20059267: a fault of worlds: a handshake was damaged, and
/// that had effects after the last fault. 40062641: a write overtook one whose path was lost and
/// that did not count as held yet. 10122: a fault of a checker: with nothing wrong it met the probe
/// of a path that rested. 210476930: a fault of a checker: the only I/O that a path was to have
/// found its connection forgotten.
#[test]
fn worlds_that_found_something_once() {
    let first = [3003, 3024, 30249, 30269, 100401, 100593].map(|it| Plan::draw_before("aim", it));
    let second = [
        589,
        618,
        669,
        736,
        1107,
        1509,
        1534,
        1551,
        726,
        1758,
        10536,
        3876,
        11984,
        4534,
        10022,
        10057,
        4217,
        2544,
        2620,
        12484,
        19121,
        19326,
        22126,
        7972,
        8497,
        8977,
        2204,
        113976,
        208_854_246,
    ]
    .map(|it| Plan::draw_before("settings", it));
    let drawn = [
        845,
        401_527,
        401_988,
        403_312,
        500_049,
        526_529,
        534_548,
        563_245,
        710_830,
        1_069_389,
        127_429_386,
        140_303,
    ]
    .map(|it| Plan::draw_before("enough", it));
    let drawn = drawn.into_iter().chain(
        [
            4_046_332,
            5_058_541,
            5_009_709,
            7_016_872,
            7_049_735,
            7_090_568,
            175_773_665,
            20_059_267,
            40_062_641,
            10_122,
            210_476_930,
        ]
        .map(|it| Plan::draw_before("front", it)),
    );
    for plan in first.into_iter().chain(second).chain(drawn) {
        let found = run::run(&plan, &Modules::new()).finding;
        assert!(found.is_none(), "seed {}: {found:?}", plan.seed);
    }
}

/// The failure of a request, and its reason, are lines of its block.
#[test]
fn a_story_has_the_requests_that_failed() {
    let of_media = |plan: &Plan| plan.faults.iter().any(|it| it.kind == Kind::Media);
    let told = (1..).map(Plan::draw).filter(of_media).find_map(|plan| {
        let lines = Lines::default();
        let fault = plan.faults.iter().find(|it| it.kind == Kind::Media)?;
        let block = fault.whom / 64 % plan.layout.habit.blocks;
        story::story(&plan, &Modules::new(), Some(block), &lines);
        let lines = lines.take();
        assert!(lines.is_sorted());
        let told = |end: &str| {
            lines
                .iter()
                .any(|it| it.text.contains("read of blocks ") && it.text.ends_with(end))
        };
        (told(" begins") && told(": input/output error (EIO)")).then_some(plan.seed)
    });
    assert!(told.is_some_and(|seed| seed < 100), "{told:?}");
}

/// Worlds whose applications use NBD are as they were before there was anything else.
#[test]
fn front_ends_are_drawn_and_change_no_other_world() {
    let text = |plan: Plan| format!("{plan:?}");
    let seeds = 1..=600;
    let drawn = |seed| {
        (
            text(Plan::draw_before("return_elsewhere", seed)),
            text(Plan::draw_before("front", seed)),
        )
    };
    let (nvme, nbd): (Vec<_>, Vec<_>) = seeds.map(drawn).partition(|it| it.0.contains("Nvme("));
    assert!((180..=240).contains(&nvme.len()), "{} of 600", nvme.len());
    assert!(nbd.iter().all(|it| it.0 == it.1));
    for part in [
        "beside_nbd: true",
        "associations: 2",
        "zeroes: Some",
        "tight: true",
    ] {
        assert!(nvme.iter().any(|it| it.0.contains(part)), "{part}");
    }
}

#[test]
fn programs_choose_where_worlds_have_them() {
    let plans = (1..).map(Plan::draw).filter(|it| it.layout.more.programs);
    for plan in plans.take(4) {
        let modules = Modules::new();
        let found = run::run(&plan, &modules).finding;
        assert!(found.is_none(), "seed {}: {found:?}", plan.seed);
        assert!(modules.choices() > 0, "seed {}", plan.seed);
    }
    let seeds = 1..=800;
    let programs = seeds.filter(|it| Plan::draw(*it).layout.more.programs);
    assert!((70..=130).contains(&programs.count()));
}

#[test]
fn the_same_seed_has_the_same_course() {
    let report = |seed| {
        let report = run::run(&Plan::draw(seed), &Modules::new());
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

/// One path, and one fault of this kind while that is there or while it is removed. The course of
/// the world, but for that, is of no interest.
fn fault_of(kind: Kind, removed: bool) -> Report {
    let plan = (1..).map(Plan::draw).find(|plan| {
        let it = &plan.layout;
        it.hosts == 1 && it.targets * usize::from(it.ports) > 1 && it.more.tellers == 0
    });
    let mut plan = plan.unwrap();
    (plan.layout.digests, plan.layout.habit.total) = (true, 2000);
    // By force, of the first path.
    let fault = |kind, at_ms: u64, lasts_ms: u64| Fault {
        kind,
        at_ns: at_ms * 1_000_000,
        lasts_ns: lasts_ms * 1_000_000,
        whom: 1 << 20,
        when: None,
    };
    let remove = removed.then(|| fault(Kind::RemovePath, 50, 1000));
    plan.faults = remove.into_iter().chain([fault(kind, 300, 500)]).collect();
    let report = run::run(&plan, &Modules::new());
    assert!(report.finding.is_none(), "{kind:?}: {:?}", report.finding);
    assert_eq!(report.faults, 1 + u64::from(removed));
    report
}

/// A change of a path that is not there is no fault: it is not in the table.
#[test]
fn a_fault_that_touches_nothing_is_not_counted_as_one() {
    let kinds = [
        Kind::Damage,
        Kind::Slow,
        Kind::Partition,
        Kind::OneWay,
        Kind::Trickle,
        Kind::Full,
        Kind::LateWrites,
        Kind::Status,
        Kind::Hang,
        Kind::Mute,
        Kind::DrainPath,
    ];
    for kind in kinds {
        let idle = fault_of(kind, true);
        assert_eq!(idle.missed, [kind]);
        let of_it = idle.coverage.iter().filter(|it| it.0 == kind).count();
        assert_eq!(of_it, 0, "{kind:?}: {:?}", idle.coverage);
        let busy = fault_of(kind, false);
        assert_eq!(busy.missed, [], "{kind:?}");
        assert_eq!(busy.coverage, [(kind, PathState::Live)]);
    }
}

/// One core of a host stands still for 10 s, longer than keep-alive and time-outs of I/O, while
/// clients of all cores use a volume. Its clients are cut off meanwhile and return to the others.
#[test]
fn core_that_stands_still_for_10_s_loses_nothing() {
    let plans = (1..).map(Plan::draw).filter(|plan| {
        let it = &plan.layout;
        it.cores > 1 && it.habit.homes == u32::from(it.cores)
    });
    for (at, mut plan) in plans.take(12).enumerate() {
        let core = at as u64 % u64::from(plan.layout.cores);
        let fault = |kind, at_ms: u64, lasts_ms: u64, whom| Fault {
            kind,
            at_ns: at_ms * 1_000_000,
            lasts_ns: lasts_ms * 1_000_000,
            whom,
            when: None,
        };
        plan.faults = vec![
            fault(Kind::FreezeHost, 300, 10_000, 64 * core),
            fault(Kind::ClientReset, 2_000, 5, 0),
        ];
        let report = run::run(&plan, &Modules::new());
        let (seed, found) = (plan.seed, &report.finding);
        assert!(found.is_none(), "seed {seed}: {found:?}");
        assert_eq!(report.missed, [], "seed {seed}");
        assert!(report.time_ns > 10_300_000_000, "seed {seed}");
        assert!(report.judged.contains(&Check::Cores), "seed {seed}");
    }
}

#[test]
fn cells_that_cannot_be_are_not_asked_for() {
    let (kind, state, why) = aim::IMPOSSIBLE[0];
    assert!(aim::is_impossible(kind, state) && !why.is_empty());
    let all = Kind::ALL.len() * aim::STATES.len();
    let empty = aim::empty_cells(&Kind::ALL, &[]);
    assert_eq!(empty.len(), all - aim::IMPOSSIBLE.len());
    assert!(!empty.contains(&(kind, state)));
}
