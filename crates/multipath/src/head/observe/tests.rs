use super::super::tests::head;
use super::{AnaUse, Head};
use crate::Outcome;
use crate::health::{Limits, Why};
use policy::{Ana, PathIndex, Policy};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const P0: PathIndex = PathIndex(0);
const P1: PathIndex = PathIndex(1);
const P2: PathIndex = PathIndex(2);

fn judging(paths: u8) -> Head {
    let mut head = head(paths, Policy::RoundRobin { bytes: 0 });
    head.set_health(Limits::default());
    for path in 0..paths {
        head.returned(PathIndex(path), SECOND);
    }
    head
}

fn put(head: &mut Head, path: PathIndex, why: Why) {
    assert_eq!(head.adopt_verdict(path, why, 2 * SECOND), Some(why));
}

#[test]
fn t45_whatever_is_on_probation_some_path_is_used() {
    for bits in 0..8_u64 {
        for ana_use in [AnaUse::Strict, AnaUse::Merge] {
            for anas in 0..27_u32 {
                let mut head = judging(3);
                head.set_ana_use(Some(ana_use));
                let ana = |at: u32| match anas / 3_u32.pow(at) % 3 {
                    0 => Ana::Optimized,
                    1 => Ana::NonOptimized,
                    _ => Ana::Inaccessible,
                };
                for at in 0..3_u8 {
                    head.set_ana(PathIndex(at), ana(at.into()));
                    if bits >> at & 1 == 1 {
                        put(&mut head, PathIndex(at), Why::Errors);
                    }
                }
                let can = (0..3).any(|at| ana(at) != Ana::Inaccessible);
                assert_eq!(head.is_usable(), can, "{bits:b} {anas}");
                // One that is in order is never left for one on probation.
                let good = |at: u32| ana(at) != Ana::Inaccessible && bits >> at & 1 == 0;
                let used = head.usable();
                if (0..3).any(good) {
                    assert_eq!(used & bits, 0, "{bits:b} {anas}");
                }
                for at in 0..3_u8 {
                    let can = ana(at.into()) != Ana::Inaccessible;
                    let out = can && bits >> at & 1 == 1 && used >> at & 1 == 0;
                    assert_eq!(head.sits_out(PathIndex(at)), out);
                }
            }
        }
    }
}

/// Strict: what fails or answers nothing makes way for a non-optimized path; what only stalls now
/// and then does not, since an array may move its units for it.
#[test]
fn t44_stalls_do_not_make_an_array_move_its_units() {
    for (why, used) in [
        (Why::Errors, 0b10),
        (Why::Silence, 0b10),
        (Why::Flaps, 0b10),
        (Why::Stalls, 0b01),
    ] {
        let mut head = judging(2);
        head.set_ana(P1, Ana::NonOptimized);
        head.set_ana_use(Some(AnaUse::Strict));
        assert_eq!(head.usable(), 0b01);
        put(&mut head, P0, why);
        assert_eq!(head.usable(), used, "{why:?}");
        put(&mut head, P1, Why::Errors);
        assert_eq!(head.usable(), 0b01, "{why:?}: both");
        head.set_ana_use(Some(AnaUse::Merge));
        assert_eq!(head.usable(), 0b11, "{why:?}: merged");
    }
}

/// Reads of `latency_ns` end on these paths now.
fn end(head: &mut Head, paths: &[PathIndex], latency_ns: u64, now_ns: u64) -> bool {
    let mut ends = paths.iter();
    ends.any(|&path| {
        let begun = head.observe(path, Outcome::Done, true, latency_ns, now_ns);
        begun.is_some()
    })
}

#[test]
fn what_all_paths_suffer_together_is_nobodys_fault() {
    for alone in [false, true] {
        let mut head = judging(3);
        let mut begun = false;
        let mut now_ns = 2 * SECOND;
        for _ in 0..20 {
            for _ in 0..100 {
                now_ns += MS;
                begun |= end(&mut head, &[P0, P1, P2], MS, now_ns);
            }
            // P2 sleeps with P0, or goes on.
            for _ in 0..100 {
                now_ns += MS;
                if alone {
                    begun |= end(&mut head, &[P1, P2], MS, now_ns);
                }
            }
            begun |= end(&mut head, &[P0], 100 * MS, now_ns);
            begun |= !alone && end(&mut head, &[P1, P2], 100 * MS, now_ns);
        }
        assert_eq!(begun, alone);
        assert_eq!(head.probation(P0).is_some(), alone);
    }
    // Our own CPU was away: the head knows for how long.
    let mut head = judging(2);
    let mut now_ns = 2 * SECOND;
    for n in 0..20 {
        for _ in 0..100 {
            now_ns += MS;
            assert!(!end(&mut head, &[P0, P1], MS, now_ns));
        }
        now_ns += 100 * MS;
        head.set_gap(100 * MS);
        // The order in which we see it says nothing.
        let order = if n % 2 == 0 { [P0, P1] } else { [P1, P0] };
        assert!(!end(&mut head, &order[..1], 100 * MS, now_ns));
        assert!(!end(&mut head, &order[1..], 2 * MS, now_ns));
        head.set_gap(0);
    }
}

/// An I/O that ends late because this core stood still costs nothing that its path is to blame for.
#[test]
fn core_that_stood_still_is_no_cost_of_a_path() {
    let mut head = judging(2);
    let mut now_ns = 2 * SECOND;
    put(&mut head, P0, Why::Silence);
    while let Some(it) = head.probation(P0) {
        now_ns = it.due_ns;
        head.probed(P0, Outcome::Done, MS, now_ns);
    }
    now_ns += SECOND;
    assert_eq!(
        head.adopt_verdict(P0, Why::Silence, now_ns),
        Some(Why::Silence)
    );
    let least_ns = |head: &Head| head.probation(P0).unwrap().least_until_ns;
    for (gap_ns, cost_ns) in [(5 * SECOND, 0), (2 * SECOND, 3 * SECOND)] {
        let end_ns = now_ns + 5 * SECOND;
        head.set_gap(gap_ns);
        assert!(!end(&mut head, &[P0], 5 * SECOND, end_ns));
        head.set_gap(0);
        assert_eq!(least_ns(&head) - now_ns, 32 * cost_ns);
        head.observe(P0, Outcome::Busy { after_ns: 0 }, true, 0, now_ns);
    }
}

#[test]
fn t37_silence_counts_while_another_answers_or_rests() {
    let since_ns = 2 * SECOND;
    let until_ns = since_ns + 600 * MS;
    let mut head = judging(2);
    assert_eq!(head.silent_ns(P0, since_ns), since_ns + 500 * MS);
    assert_eq!(head.inspect(P0, since_ns, since_ns + 400 * MS), None);
    assert_eq!(head.inspect(P0, since_ns, until_ns), Some(Why::Silence));
    assert_eq!(head.usable(), 0b10);
    // No other: it would change nothing.
    let mut head = judging(1);
    assert_eq!(head.inspect(P0, since_ns, until_ns), None);
    // The other has I/O, and is as silent.
    let mut head = judging(2);
    let request = super::super::tests::request(since_ns);
    assert_eq!(head.select(&request), Some(P0));
    assert_eq!(head.select(&request), Some(P1));
    assert_eq!(head.inspect(P0, since_ns, until_ns), None);
    assert!(!end(&mut head, &[P1], MS, until_ns - 100 * MS));
    assert_eq!(head.inspect(P0, since_ns, until_ns), Some(Why::Silence));
}

/// The loss of `path` as the engine reports it.
fn lose(head: &mut Head, path: PathIndex, now_ns: u64) {
    head.broke(path, now_ns);
    head.lose(path);
}

fn comes_back(head: &mut Head, path: PathIndex, now_ns: u64) -> Option<Why> {
    head.admit(path, super::super::tests::shown(u16::from(path.0) + 1))
        .unwrap();
    head.set_enabled(path, true);
    head.returned(path, now_ns)
}

/// A target that stands still takes all its paths along, within a keep-alive time-out.
#[test]
fn paths_lost_together_are_not_on_probation() {
    let mut head = judging(3);
    let mut now_ns = 2 * SECOND;
    for round in 0..4 {
        // The first is silent while another rests.
        head.inspect(P0, now_ns - SECOND, now_ns);
        for path in [P0, P1, P2] {
            now_ns += 2 * SECOND;
            lose(&mut head, path, now_ns);
        }
        for path in [P0, P1, P2] {
            now_ns += SECOND;
            assert_eq!(
                comes_back(&mut head, path, now_ns),
                None,
                "{round} {path:?}"
            );
        }
        assert_eq!(head.usable(), 0b111, "{round}");
        now_ns += 5 * SECOND;
    }
}

#[test]
fn path_lost_twice_beside_live_one_flaps() {
    let mut head = judging(2);
    for (at, want) in [(2, None), (5, Some(Why::Flaps))] {
        lose(&mut head, P0, at * SECOND);
        let back_ns = (at + 1) * SECOND;
        assert_eq!(comes_back(&mut head, P0, back_ns), want);
    }
    // Gone for long when the last one goes: not together.
    lose(&mut head, P0, 8 * SECOND);
    lose(&mut head, P1, 30 * SECOND);
    assert_eq!(comes_back(&mut head, P1, 31 * SECOND), None);
    assert_eq!(comes_back(&mut head, P0, 32 * SECOND), Some(Why::Flaps));
}

#[test]
fn t26_an_answer_that_puts_the_ana_state_in_doubt_is_no_error_of_the_path() {
    let mut head = judging(2);
    for n in 0..100 {
        head.set_pending(P0, true);
        let begun = head.observe(P0, Outcome::PathError, true, MS, 2 * SECOND + n);
        assert_eq!(begun, None);
    }
    // Nor is what a lost path had.
    head.lose(P1);
    for n in 0..100 {
        let begun = head.observe(P1, Outcome::PathError, true, MS, 2 * SECOND + n);
        assert_eq!(begun, None);
    }
}

/// Idle paths are probed together: a stall of all is no silence of any, before one of them answers.
#[test]
fn unanswered_probes_of_all_blame_no_path() {
    let mut head = judging(3);
    let since_ns = 2 * SECOND;
    for path in [P0, P1, P2] {
        head.probe(path, true, since_ns);
    }
    let late_ns = since_ns + 2 * SECOND;
    for path in [P0, P1, P2] {
        assert_eq!(head.inspect(path, since_ns, late_ns), None);
        assert!(!head.another_is_well(path, since_ns));
    }
    assert_eq!(head.probed(P1, Outcome::Done, 2 * SECOND, late_ns), None);
    assert!(head.another_is_well(P0, since_ns) && !head.another_is_well(P1, since_ns));
    let later_ns = late_ns + SECOND;
    assert_eq!(head.inspect(P0, since_ns, later_ns), Some(Why::Silence));
}

/// A path that is given up because all probes are late, and another that is, are not to blame.
#[test]
fn paths_connected_anew_in_idle_time_do_not_flap() {
    let mut head = judging(2);
    for round in 1..4 {
        for path in [P0, P1] {
            let now_ns = round * 20 * SECOND;
            head.renewed(path, now_ns);
            head.lose(path);
            assert_eq!(comes_back(&mut head, path, now_ns + SECOND), None);
        }
    }
}

#[test]
fn failures_prove_no_path_well() {
    let mut head = judging(2);
    assert_eq!(head.proven_since(SECOND), 0b11);
    assert_eq!(head.proven_since(2 * SECOND), 0);
    head.observe(P0, Outcome::PathError, true, MS, 3 * SECOND);
    head.observe(P1, Outcome::Done, true, MS, 3 * SECOND);
    assert_eq!(head.proven_since(2 * SECOND), 0b10);
    head.probed(P1, Outcome::PathError, MS, 4 * SECOND);
    head.probed(P0, Outcome::Done, MS, 4 * SECOND);
    assert_eq!(head.proven_since(2 * SECOND), 0b01);
}
