use super::{ERRORS, ERRORS_IN_A_ROW, Health, Limits, PROBES, Why};
use alloc::vec::Vec;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const LIMITS: Limits = Limits {
    errors_permille: 10,
    silence_ns: 500 * MS,
    slow_ns: 50 * MS,
    probe_ns: 100 * MS,
    probe_max_ns: 10 * SECOND,
    idle_ns: 10 * SECOND,
};

/// Any sequence, the same for a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        self.0 >> 33
    }

    /// With so many chances in a million.
    fn hits(&mut self, ppm: u64) -> bool {
        self.roll() % 1_000_000 < ppm
    }
}

/// A path that is used since a second, and its clock.
fn used() -> (Health, u64) {
    let mut health = Health::default();
    assert_eq!(health.used(SECOND, &LIMITS), None);
    (health, SECOND)
}

/// An I/O that ends now, after `latency_ns`, while another path did well.
fn ends(health: &mut Health, latency_ns: u64, now_ns: u64) -> Option<Why> {
    let pause = health.good(latency_ns, now_ns, &LIMITS)?;
    health
        .paused(pause, 0, now_ns, &LIMITS)
        .then(|| health.stalled(pause.pause_ns, now_ns, &LIMITS))
        .flatten()
}

/// I/Os that fail with this chance, 10,000 a second, until the path is on probation: how many.
fn until_errors(ppm: u64, most: u64, seed: u64) -> Option<u64> {
    let (mut health, mut now_ns) = used();
    let mut dice = Dice(seed);
    (0..most).find(|_| {
        now_ns += MS / 10;
        let begun = match dice.hits(ppm) {
            true => health.failed(now_ns, &LIMITS),
            false => ends(&mut health, MS / 10, now_ns),
        };
        begun == Some(Why::Errors)
    })
}

#[test]
fn a_share_of_errors_is_found_out_above_the_limit_and_borne_below() {
    for seed in 1..20 {
        let found = |ppm, most| until_errors(ppm, most, seed);
        assert!(found(1_000_000, 10).unwrap() < u64::from(ERRORS_IN_A_ROW));
        assert!(found(50_000, 2_000).is_some(), "5 %, seed {seed}");
        assert!(found(20_000, 10_000).is_some(), "2 %, seed {seed}");
        assert_eq!(found(2_500, 200_000), None, "0.25 %, seed {seed}");
    }
    // A few, however close together, prove nothing.
    let (mut health, now_ns) = used();
    for _ in 0..ERRORS - 1 {
        assert_eq!(health.failed(now_ns, &LIMITS), None);
        assert_eq!(ends(&mut health, MS, now_ns), None);
    }
}

#[test]
fn t06_a_path_that_answers_busy_or_a_bad_block_is_well() {
    let (mut health, mut now_ns) = used();
    for _ in 0..10_000 {
        now_ns += 10 * MS;
        health.answered(now_ns);
    }
    assert_eq!(health.probation(), None);
    assert!(health.silent_ns(now_ns, &LIMITS) > now_ns);
}

#[test]
fn four_stalls_are_a_habit_if_they_come_soon_after_each_other() {
    let stalls = |every_ns: u64, pause_ns: u64| {
        let (mut health, mut now_ns) = used();
        for count in 1..20 {
            let next_ns = now_ns + every_ns;
            while now_ns < next_ns - pause_ns {
                now_ns += MS;
                assert_eq!(ends(&mut health, MS, now_ns), None);
            }
            now_ns = next_ns;
            // All that was under way ends together: that is one stall.
            for _ in 0..32 {
                if ends(&mut health, pause_ns, now_ns).is_some() {
                    return Some(count);
                }
            }
        }
        None
    };
    assert_eq!(stalls(SECOND, 100 * MS), Some(4));
    assert_eq!(stalls(SECOND, 60 * MS), Some(4));
    assert_eq!(stalls(10 * SECOND, 2 * SECOND), Some(4));
    assert_eq!(stalls(20 * SECOND, 100 * MS), None, "0.5 % of the time");
    assert_eq!(stalls(SECOND, 40 * MS), None, "short");
}

/// A path that is only far, or full, or gets larger I/O, or became far, is the policy's business.
#[test]
fn no_steady_path_is_ever_on_probation() {
    for (depth, service_ns, far_ns) in [
        (1, MS / 10, 0),
        (1, MS / 10, 100 * MS),
        (256, 20 * MS, 0),  // 5 s in the queue
        (64, MS, 300 * MS), // far and full
    ] {
        let (mut health, mut now_ns) = used();
        // Bursts from empty, and steps of the service time and the distance.
        for burst in 0..200_u64 {
            let (service_ns, far_ns) = match burst / 20 % 2 {
                0 => (service_ns, far_ns),
                _ => (service_ns * 8, far_ns + 200 * MS),
            };
            now_ns += burst % 3 * SECOND;
            let start_ns = now_ns + far_ns;
            for n in 1..=depth {
                let before_ns = now_ns;
                now_ns = (start_ns + n * service_ns).max(before_ns);
                let latency_ns = far_ns + n * service_ns;
                let begun = ends(&mut health, latency_ns, now_ns);
                assert_eq!(begun, None, "{depth} {service_ns} {far_ns} burst {burst}");
            }
        }
    }
}

#[test]
fn t37_a_path_that_ends_nothing_is_silent_after_its_usual_time_and_some() {
    let (mut health, now_ns) = used();
    assert_eq!(health.silent_ns(now_ns, &LIMITS), now_ns + 500 * MS);
    // 200 ms are usual: 8 times that.
    for n in 1..=50 {
        ends(&mut health, 200 * MS, now_ns + n);
    }
    let last_ns = now_ns + 50;
    assert_eq!(health.silent_ns(now_ns, &LIMITS), last_ns + 1_600 * MS);
    let later_ns = last_ns + SECOND;
    assert_eq!(health.silent_ns(later_ns, &LIMITS), later_ns + 1_600 * MS);
    assert_eq!(health.silent_ns(0, &Limits::OFF), u64::MAX);
}

/// How long a path is on probation if its probes go like this.
fn probation(health: &mut Health, now_ns: &mut u64, mut probe: impl FnMut(u64) -> bool) -> u64 {
    let since_ns = *now_ns;
    for n in 0..10_000 {
        let due_ns = health.probation().unwrap().due_ns;
        assert!(
            due_ns - *now_ns <= LIMITS.probe_max_ns,
            "the wait is bounded"
        );
        *now_ns = due_ns;
        health.probe();
        assert_eq!(
            health.probation().unwrap().due_ns,
            u64::MAX,
            "one at a time"
        );
        let well = probe(n);
        if let Some(took_ns) = health.probed(well, MS, *now_ns, &LIMITS) {
            assert_eq!(took_ns, *now_ns - since_ns);
            return took_ns;
        }
    }
    panic!("never over");
}

#[test]
fn so_many_good_probes_in_a_row_end_it_and_a_relapse_takes_twice_as_long() {
    let (mut health, mut now_ns) = used();
    let mut took = Vec::new();
    for _ in 0..10 {
        assert_eq!(health.silent(now_ns, &LIMITS), Some(Why::Silence));
        assert_eq!(health.silent(now_ns, &LIMITS), None, "once");
        took.push(probation(&mut health, &mut now_ns, |_| true) / MS);
        now_ns += SECOND;
    }
    let first = took[0];
    assert_eq!(first, 100 + 7 * 100);
    assert_eq!(took[1], 100 + 7 * 200);
    assert!(took.windows(2).all(|pair| pair[0] <= pair[1]), "{took:?}");
    assert_eq!(took[9], 100 + 7 * 10_000, "bounded");
    assert!(took[9] <= LIMITS.probation_ns_max() / MS);
    // Long afterwards it is as if it had never been.
    now_ns += 1_000 * SECOND;
    assert_eq!(health.silent(now_ns, &LIMITS), Some(Why::Silence));
    assert_eq!(probation(&mut health, &mut now_ns, |_| true) / MS, first);
    assert_eq!(health.tally().times, 11);
}

/// An episode: silent now, its I/O done elsewhere after `cost_ns`, then good probes. How long the
/// path is out, in all.
fn episode(health: &mut Health, now_ns: &mut u64, cost_ns: u64) -> u64 {
    let since_ns = *now_ns;
    assert_eq!(health.silent(since_ns, &LIMITS), Some(Why::Silence));
    *now_ns += cost_ns;
    health.cost(since_ns, 0, *now_ns, &LIMITS);
    while health.probation().is_some() {
        *now_ns = health.probation().unwrap().due_ns.max(*now_ns);
        health.probe();
        health.probed(true, MS, *now_ns, &LIMITS);
    }
    *now_ns - since_ns
}

#[test]
fn relapse_keeps_a_path_out_by_its_cost() {
    let (mut health, mut now_ns) = used();
    let first_ns = episode(&mut health, &mut now_ns, 2 * SECOND);
    assert!(first_ns < 5 * SECOND, "{first_ns}: no relapse");
    // Cheap this time: what the last one cost is waited for.
    now_ns += SECOND;
    let by_last_ns = episode(&mut health, &mut now_ns, MS);
    let range = 64 * SECOND..66 * SECOND;
    assert!(range.contains(&by_last_ns), "{by_last_ns}");
    // Dear this time.
    now_ns += SECOND;
    let by_own_ns = episode(&mut health, &mut now_ns, 4 * SECOND);
    let range = 128 * SECOND..132 * SECOND;
    assert!(range.contains(&by_own_ns), "{by_own_ns}");
    // Two cheap ones, and it is forgotten.
    now_ns += SECOND;
    episode(&mut health, &mut now_ns, MS);
    now_ns += SECOND;
    let cheap_ns = episode(&mut health, &mut now_ns, MS);
    assert!(cheap_ns < 30 * SECOND, "{cheap_ns}");
    now_ns += SECOND;
    let most_ns = episode(&mut health, &mut now_ns, 3_600 * SECOND);
    assert!(most_ns <= 3_600 * SECOND + LIMITS.probation_ns_max());
    now_ns += SECOND;
    let bounded_ns = episode(&mut health, &mut now_ns, MS);
    let range = LIMITS.relapse_ns_max()..=LIMITS.probation_ns_max();
    assert!(range.contains(&bounded_ns), "{bounded_ns}");
    // Long afterwards it is as if it had never been.
    now_ns += 24 * 3_600 * SECOND;
    assert!(episode(&mut health, &mut now_ns, MS) < SECOND);
}

#[test]
fn restored_path_is_out_for_its_probes_only() {
    let (mut health, mut now_ns) = used();
    episode(&mut health, &mut now_ns, 2 * SECOND);
    now_ns += SECOND;
    health.silent(now_ns, &LIMITS);
    health.cost(now_ns - 4 * SECOND, 0, now_ns, &LIMITS);
    let least_ns = |health: &Health| health.probation().map(|it| it.least_until_ns);
    assert_eq!(least_ns(&health), Some(now_ns + 128 * SECOND), "a relapse");
    health.restored(now_ns, &LIMITS);
    assert_eq!(least_ns(&health), Some(now_ns));
    // Also what an I/O of before is known to have cost later, and the loss that was under way.
    health.lost(now_ns);
    health.restored(now_ns, &LIMITS);
    health.cost(now_ns - 4 * SECOND, 0, now_ns + SECOND, &LIMITS);
    assert_eq!(least_ns(&health), Some(now_ns));
    for _ in 0..PROBES {
        assert!(health.probation().is_some());
        now_ns += 100 * MS;
        health.probe();
        health.probed(true, MS, now_ns, &LIMITS);
    }
    assert_eq!(health.probation(), None);
}

/// Silence, the loss of the path, and a probe that is lost with it once more: one fault.
#[test]
fn an_episode_is_one_relapse_whatever_shows_in_it() {
    let (mut health, mut now_ns) = used();
    let begun_ns = now_ns;
    assert_eq!(health.silent(now_ns, &LIMITS), Some(Why::Silence));
    for _ in 0..3 {
        health.probe();
        health.lost(now_ns + SECOND);
        health.probed(false, SECOND, now_ns + SECOND, &LIMITS);
        now_ns += 2 * SECOND;
        assert_eq!(health.used(now_ns, &LIMITS), Some(Why::Flaps));
        health.cost(begun_ns, 0, now_ns, &LIMITS);
        let it = health.probation().unwrap();
        assert_eq!(it.since_ns, begun_ns);
    }
    assert_eq!(health.tally().times, 1);
    // Bad probes made the next ones rarer; no relapse did, and none keeps it out.
    let wait_ns = |health: &Health, now_ns| health.probation().unwrap().due_ns - now_ns;
    assert_eq!(wait_ns(&health, now_ns), 800 * MS);
    for n in 0..8 {
        assert!(health.probation().is_some(), "{n}");
        now_ns = health.probation().unwrap().due_ns;
        health.probed(true, MS, now_ns, &LIMITS);
    }
    assert_eq!(health.probation(), None);
    // The next one is the first relapse, and all of the first fault is its cost: 6 s.
    assert_eq!(health.silent(now_ns, &LIMITS), Some(Why::Silence));
    let it = health.probation().unwrap();
    assert_eq!(it.least_until_ns - now_ns, 6 * 32 * SECOND);
    health.probed(true, MS, now_ns, &LIMITS);
    assert_eq!(wait_ns(&health, now_ns), 200 * MS, "once");
    assert_eq!(health.tally().times, 2);
}

#[test]
fn what_all_paths_lost_together_is_no_cost() {
    let (mut health, mut now_ns) = used();
    episode(&mut health, &mut now_ns, MS);
    now_ns += SECOND;
    let begun_ns = now_ns;
    now_ns += 20 * SECOND;
    health.lost(now_ns);
    health.lost_together(now_ns);
    now_ns += SECOND;
    assert_eq!(health.used(now_ns, &LIMITS), None);
    health.cost(begun_ns, 0, now_ns, &LIMITS);
    assert!(episode(&mut health, &mut now_ns, MS) < 2 * SECOND);
}

/// However long each outage takes: an outage is judged by when it began.
#[test]
fn path_lost_for_long_again_and_again_relapses() {
    let (mut health, mut now_ns) = used();
    health.lost(now_ns);
    assert_eq!(health.used(now_ns, &LIMITS), None, "for the first time");
    let mut took = Vec::new();
    for _ in 0..3 {
        now_ns += 10 * SECOND;
        health.lost(now_ns);
        health.cost(now_ns - SECOND, 0, now_ns, &LIMITS);
        now_ns += 300 * SECOND;
        assert_eq!(health.used(now_ns, &LIMITS), Some(Why::Flaps));
        let it = health.probation().unwrap();
        took.push((health.relapses.level(), it.least_until_ns - now_ns));
        probation(&mut health, &mut now_ns, |_| true);
    }
    let cost_ns = 32 * SECOND;
    assert_eq!(took, [(0, 0), (1, cost_ns), (2, cost_ns)]);
}

/// A probation that is excused is no relapse, and what the path did before it is not forgotten.
#[test]
fn excused_probation_leaves_no_relapse_behind() {
    let (mut health, mut now_ns) = used();
    // Before any other episode, and after one.
    for (level, least_ns) in [(0, 0), (1, 64 * SECOND)] {
        assert_eq!(health.silent(now_ns, &LIMITS), Some(Why::Silence));
        health.cost(now_ns, 0, now_ns + SECOND, &LIMITS);
        now_ns += 2 * SECOND;
        health.lost(now_ns);
        health.lost_together(now_ns);
        assert_eq!(health.probation(), None);
        now_ns += SECOND;
        assert_eq!(health.used(now_ns, &LIMITS), None);
        now_ns += SECOND;
        health.silent(now_ns, &LIMITS).unwrap();
        let it = health.probation().unwrap();
        assert_eq!(health.relapses.level(), level);
        assert_eq!(it.least_until_ns - now_ns, least_ns);
        health.cost(now_ns, 0, now_ns + 2 * SECOND, &LIMITS);
        probation(&mut health, &mut now_ns, |_| true);
        now_ns += 11 * SECOND;
    }
}

/// This core stood still for a part of the time: the path lost the I/O for the rest only.
#[test]
fn time_of_others_is_no_cost() {
    let (mut health, mut now_ns) = used();
    episode(&mut health, &mut now_ns, MS);
    health.silent(now_ns, &LIMITS).unwrap();
    health.cost(now_ns, 9 * SECOND, now_ns + 10 * SECOND, &LIMITS);
    let it = health.probation().unwrap();
    assert_eq!(it.least_until_ns - now_ns, 32 * SECOND);
}

#[test]
fn a_bad_probe_begins_the_row_anew_and_doubles_the_wait() {
    let (mut health, mut now_ns) = used();
    health.silent(now_ns, &LIMITS).unwrap();
    let took = probation(&mut health, &mut now_ns, |n| n >= 5);
    // 100; after bad ones 200, 400, 800, 1600, 3200; after good ones half, down to 100.
    let bad: u64 = 100 + 200 + 400 + 800 + 1600;
    let good: u64 = 3200 + 1600 + 800 + 400 + 200 + 100 + 100 + 100;
    assert_eq!(took / MS, bad + good);
    let tally = health.tally();
    assert_eq!((tally.probes_good, tally.probes_bad), (8, 5));
    // One in three fails: it never ends, and its probes are as rare as may be.
    health.silent(now_ns, &LIMITS).unwrap();
    for n in 0..1_000 {
        let due_ns = health.probation().unwrap().due_ns;
        assert_eq!(health.probed(n % 3 > 0, MS, due_ns, &LIMITS), None);
    }
}

#[test]
fn a_path_that_has_become_far_is_well_again() {
    let (mut health, mut now_ns) = used();
    for n in 0..100 {
        ends(&mut health, MS / 10, now_ns + n);
    }
    health.silent(now_ns, &LIMITS).unwrap();
    let mut left = 100;
    while health.probation().is_some() {
        now_ns = health.probation().unwrap().due_ns;
        health.probed(true, 300 * MS, now_ns, &LIMITS);
        left -= 1;
        assert_ne!(left, 0, "for good");
    }
    assert!(left > 80, "{left}");
}

/// Around the limit a path is not put on probation and back again all the time.
#[test]
fn hysteresis_a_constant_share_of_errors_does_not_flip_the_state() {
    for ppm in [2_500, 5_000, 8_000, 10_000, 12_000, 20_000, 50_000, 200_000] {
        let (mut health, mut now_ns) = used();
        let mut dice = Dice(ppm);
        let (mut placed, mut total) = (0_u64, 0_u64);
        while now_ns < 3_600 * SECOND {
            total += 1;
            // A tenth of an hour's usual load, to be quick.
            if let Some(probation) = health.probation() {
                now_ns = probation.due_ns;
                health.probed(!dice.hits(ppm), MS / 10, now_ns, &LIMITS);
                continue;
            }
            now_ns += MS;
            placed += 1;
            match dice.hits(ppm) {
                true => drop(health.failed(now_ns, &LIMITS)),
                false => drop(ends(&mut health, MS / 10, now_ns)),
            }
        }
        let times = health.tally().times;
        let share = placed * 100 / 3_600_000;
        assert!(times <= 150, "{ppm} ppm: {times} in an hour, {total} steps");
        match ppm {
            ..=5_000 => assert!(times <= 2 && share >= 95, "{ppm}: {times}, {share} %"),
            20_000.. => assert!(share <= 10, "{ppm}: {times}, {share} %"),
            _ => {}
        }
    }
}

#[test]
fn t38_a_path_that_is_lost_again_soon_returns_on_probation() {
    let (mut health, mut now_ns) = used();
    for (after, what) in [(1, "for the first time"), (100, "once in a while")] {
        now_ns += after * SECOND;
        health.lost(now_ns);
        assert_eq!(health.used(now_ns + SECOND, &LIMITS), None, "{what}");
    }
    let mut took = Vec::new();
    now_ns += SECOND;
    for _ in 0..4 {
        now_ns += 10 * SECOND;
        health.lost(now_ns);
        now_ns += SECOND;
        assert_eq!(health.used(now_ns, &LIMITS), Some(Why::Flaps));
        took.push(probation(&mut health, &mut now_ns, |_| true) / MS);
    }
    assert_eq!(took, [800, 1500, 2900, 5700]);
    // Lost on probation, and back after an hour: that is still before it.
    now_ns += 10 * SECOND;
    health.lost(now_ns);
    assert_eq!(health.used(now_ns, &LIMITS), Some(Why::Flaps));
    health.lost(now_ns + SECOND);
    now_ns += 3_600 * SECOND;
    assert_eq!(health.used(now_ns, &LIMITS), Some(Why::Flaps));
}

#[test]
fn a_core_that_sees_a_path_answer_well_believes_itself() {
    let (mut health, now_ns) = used();
    ends(&mut health, MS, now_ns + MS);
    let adopt = |health: &mut Health, now_ns| health.adopt_verdict(Why::Errors, now_ns, &LIMITS);
    assert_eq!(adopt(&mut health, now_ns + 50 * MS), None);
    let mut failing = health;
    assert_eq!(failing.failed(now_ns + 40 * MS, &LIMITS), None);
    assert_eq!(adopt(&mut failing, now_ns + 50 * MS), Some(Why::Errors));
    assert_eq!(adopt(&mut health, now_ns + 500 * MS), Some(Why::Errors));
    assert_eq!(usize::from(PROBES), 8);
}

#[test]
fn nothing_is_judged_where_it_is_off() {
    let off = Limits::OFF;
    let mut health = Health::default();
    for n in 1..5 {
        assert_eq!(health.used(n * SECOND, &off), None);
        health.lost(n * SECOND + MS);
    }
    assert_eq!(health.adopt_verdict(Why::Errors, 5 * SECOND, &off), None);
    for n in 1..1_000_u64 {
        assert_eq!(health.good(SECOND, n * SECOND, &off), None);
        assert_eq!(health.failed(n * SECOND, &off), None);
    }
    for (permille, probe_ns, possible) in [(10, 1, true), (1000, 1, false), (10, 0, false)] {
        let limits = Limits {
            errors_permille: permille,
            probe_ns,
            ..LIMITS
        };
        assert_eq!(limits.is_possible(), possible);
    }
}
