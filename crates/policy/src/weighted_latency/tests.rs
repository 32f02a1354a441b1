//! Each formula worked by hand once, and the rows' corner cases.

use super::*;
use crate::limits::PATHS_MAX;
use crate::tests::{PER_CPU, UP};
use crate::types::{Aggregate, Ended, Policy, Request};
use crate::{Hedging, KnobError, Selector, Ticket};
use std::vec::Vec;

const SECOND: u64 = 1_000_000_000;
const KNOBS: Knobs = Knobs {
    ewma_shift: 3,
    weight_timeout_ns: 15 * SECOND,
    hedging: Hedging::Auto,
};
fn done(path: u8, latency_ns: u64, now_ns: u64) -> Completion {
    let group = Group::Read;
    Completion {
        path: PathIndex(path),
        group,
        latency_ns,
        ended: Ended::Good,
        now_ns,
        ticket: Ticket::default(),
        gap_ns: 0,
    }
}

/// Feeds one latency to one path; returns whether a window closed.
fn feed(state: &mut WeightedLatency, path: u8, latency_ns: u64, now_ns: u64) -> bool {
    state
        .sample(0, &done(path, latency_ns, now_ns), &KNOBS)
        .weigh
}

fn read(state: &WeightedLatency, path: usize) -> Measure {
    state.measures[0][path]
}

/// Gives paths their smoothed latencies, each by a first sample, and weighs them.
fn measured(latencies_ns: &[u64]) -> WeightedLatency {
    let mut state = WeightedLatency::new(1);
    for (path, &latency_ns) in latencies_ns.iter().enumerate() {
        assert!(feed(&mut state, path as u8, latency_ns, 1));
    }
    state.weigh(latencies_ns.len());
    state
}

#[test]
fn a2_zero_and_over_a_second_are_no_samples() {
    let mut state = WeightedLatency::new(1);
    assert_eq!(state.sample(0, &done(0, 0, 1), &KNOBS), Noted::default());
    assert_eq!(read(&state, 0), Measure::NEW);
    let noted = state.sample(0, &done(0, SECOND + 1, 1), &KNOBS);
    assert_eq!(
        noted,
        Noted {
            weigh: false,
            warn_ignored: true
        }
    );
    assert_eq!((state.ignored[0][0], read(&state, 0)), (1, Measure::NEW));
    assert!(feed(&mut state, 0, SECOND, 1));
    assert_eq!(
        (read(&state, 0).samples, read(&state, 0).smoothed_ns),
        (1, 1_000_000_000)
    );
}

#[test]
fn a2_the_warning_is_rate_limited() {
    let mut state = WeightedLatency::new(1);
    let mut warned = Vec::new();
    for tenth in 0..120 {
        let now_ns = tenth * SECOND / 10;
        if state
            .sample(0, &done((tenth % 2) as u8, u64::MAX, now_ns), &KNOBS)
            .warn_ignored
        {
            warned.push(tenth);
        }
    }
    assert_eq!(warned, [0, 50, 100]);
    assert_eq!(state.ignored[0][..2], [60, 60]);
}

#[test]
fn a2_a_single_path_is_not_sampled() {
    for (paths, samples) in [(1, 0), (2, 1)] {
        let mut selector = Selector::new(paths, PER_CPU);
        let request = Request {
            source: 0,
            group: Group::Read,
            length: 512,
            address: 0,
            now_ns: 0,
        };
        selector.select(&request, &[UP; 2][..paths]).unwrap();
        assert_eq!(selector.complete(&done(0, 1000, 1)).weigh, samples > 0);
        assert_eq!(selector.stats(PathIndex(0), Group::Read).samples, samples);
    }
}

/// Also when the others have left, and their places are vacant.
#[test]
fn a2_a_path_that_is_left_alone_is_not_sampled() {
    let mut selector = Selector::new(3, PER_CPU);
    let mut expected = 0;
    for (path, is_present, samples) in [(0, false, 1), (2, false, 0), (0, true, 1), (0, false, 0)] {
        selector.set_present(PathIndex(path), is_present);
        serve_on(&mut selector, 1);
        expected += samples;
        let stats = selector.stats(PathIndex(1), Group::Read);
        assert_eq!(stats.samples, expected, "{path} {is_present}");
    }
    selector.set_policy(Policy::Numa);
    selector.set_policy(PER_CPU);
    serve_on(&mut selector, 1);
    let stats = selector.stats(PathIndex(1), Group::Read);
    assert_eq!(stats.samples, 0, "the change of policy forgets no vacancy");
    // New paths of the table are there.
    selector.set_paths(5).unwrap();
    serve_on(&mut selector, 1);
    assert_eq!(selector.stats(PathIndex(1), Group::Read).samples, 1);
}

/// One I/O on this path.
fn serve_on(selector: &mut Selector, path: u8) {
    let mut views = [PathView {
        enabled: false,
        ..UP
    }; PATHS_MAX];
    views[usize::from(path)].enabled = true;
    let request = crate::tests::request(Group::Read, 4096);
    selector
        .select(&request, &views[..selector.paths()])
        .unwrap();
    let ticket = selector.ticket();
    let _ = selector.complete(&Completion {
        ticket,
        ..done(path, 1000, 1)
    });
}

/// The first sample closes alone; then 15 s of samples make one mean.
#[test]
fn a3_a_window_is_the_mean_of_its_samples() {
    let mut state = WeightedLatency::new(1);
    assert!(feed(&mut state, 0, 500, 1));
    assert_eq!(read(&state, 0).smoothed_ns, 500);
    assert!(!feed(&mut state, 0, 100, 2));
    assert!(!feed(&mut state, 0, 200, 15 * SECOND));
    assert_eq!((read(&state, 0).sum_ns, read(&state, 0).count), (300, 2));
    assert!(feed(&mut state, 0, 600, 15 * SECOND + 1));
    // Mean (100 + 200 + 600) / 3 = 300; (500·7 + 300) / 8 = 475.
    assert_eq!(read(&state, 0).smoothed_ns, 475);
    assert_eq!((read(&state, 0).sum_ns, read(&state, 0).count), (0, 0));
    assert!(!feed(&mut state, 0, 600, 15 * SECOND + 2));
}

#[test]
fn a3_paths_and_groups_have_windows_of_their_own() {
    let mut state = WeightedLatency::new(1);
    assert!(feed(&mut state, 0, 500, 1));
    assert!(feed(&mut state, 1, 700, 2));
    assert!(
        state
            .sample(
                1,
                &Completion {
                    group: Group::Write,
                    ..done(0, 900, 3)
                },
                &KNOBS
            )
            .weigh
    );
    assert!(!feed(&mut state, 1, 700, 15 * SECOND + 1));
    assert!(feed(&mut state, 0, 500, 15 * SECOND + 1));
    let cells = [0, 1, 2].map(|cell| state.measures[cell][0].smoothed_ns);
    assert_eq!(cells, [500, 900, 0]);
}

#[test]
fn a4_smoothing_by_hand() {
    for (shift, smoothed_ns) in [
        (0, 2000), // (1000·0 + 2000) / 1
        (1, 1500), // (1000·1 + 2000) / 2
        (3, 1125), // (1000·7 + 2000) / 8
        (8, 1003), // (1000·255 + 2000) / 256 = 1003.9
    ] {
        let mut state = measured(&[1000, 1000]);
        let knobs = Knobs {
            ewma_shift: shift,
            ..KNOBS
        };
        assert!(state.sample(0, &done(0, 2000, 16 * SECOND), &knobs).weigh);
        assert_eq!(read(&state, 0).smoothed_ns, smoothed_ns, "shift {shift}");
    }
}

#[test]
fn a5_scores_and_weights_by_hand() {
    // 10^9/250000 = 4000, 10^9/750000 = 1333; 4000·64/5333 = 48.0, 1333·64/5333 = 15.997.
    let state = measured(&[250_000, 750_000]);
    let shown = |path| (read(&state, path).score, read(&state, path).weight);
    assert_eq!([shown(0), shown(1)], [(4000, 48), (1333, 15)]);
    // 10^9/10^5 = 10000, 10^9/(3·10^7) = 33; 10000·64/10033 = 63.8, 33·64/10033 = 0.2, but at least
    // 1.
    let state = measured(&[100_000, 30_000_000]);
    let shown = |path| (read(&state, path).score, read(&state, path).weight);
    assert_eq!([shown(0), shown(1)], [(10_000, 63), (33, 1)]);
    // The extremes: 1 ns scores 10^9, 1 s scores 1.
    let state = measured(&[1, SECOND]);
    let shown = |path| (read(&state, path).score, read(&state, path).weight);
    assert_eq!([shown(0), shown(1)], [(1_000_000_000, 63), (1, 1)]);
}

/// "Use it until it is measured" ends at the first calculation, however many paths were measured by
/// then.
#[test]
fn a5_an_unmeasured_path_gets_weight_1_at_the_first_calculation() {
    let mut state = WeightedLatency::new(1);
    assert_eq!(
        (state.choose(0, &[UP; 2]), read(&state, 1).weight),
        (Some(0), 0)
    );
    feed(&mut state, 0, 30_000_000, 1);
    assert_eq!((read(&state, 0).weight, read(&state, 1).weight), (0, 0));
    state.weigh(2);
    assert_eq!((read(&state, 0).weight, read(&state, 1).weight), (64, 1));
    assert_eq!((read(&state, 1).score, read(&state, 1).samples), (0, 0));
    assert_eq!(state.measures[1][0].weight, 0);
}

#[test]
fn a5_without_any_score_nothing_changes() {
    let mut measures = [Measure {
        weight: 7,
        credit: 3,
        ..Measure::NEW
    }; 2];
    weigh_cell(&mut measures);
    assert_eq!(
        measures,
        [Measure {
            weight: 7,
            credit: 3,
            ..Measure::NEW
        }; 2]
    );
}

#[test]
fn a5_only_the_closing_of_a_window_asks_for_a_calculation() {
    let mut state = measured(&[1000, 1000]);
    assert_eq!(state.due, [0; CELLS]);
    assert!(!feed(&mut state, 0, 9000, 2));
    state.measures[0][0].smoothed_ns = 3000;
    state.weigh(2);
    assert_eq!((read(&state, 0).weight, read(&state, 1).weight), (32, 32));
    assert!(feed(&mut state, 1, 1000, 16 * SECOND));
    state.weigh(2);
    assert_eq!((read(&state, 0).weight, read(&state, 1).weight), (15, 48));
}

/// Whatever the weights, any cycle of Σ weight I/Os of a group gives each path exactly its weight,
/// also where groups of other weights are mixed with it at random.
#[test]
fn a6_credits_share_out_io_in_proportion_to_weight() {
    let mut seed = 0x2545_f491_u32;
    for weights in every_weights() {
        let count = weights.len();
        let mut state = WeightedLatency::new(1);
        // The groups' weights are the same list, turned round by one path each.
        let of = |group: usize, path: usize| weights[(path + group) % count];
        for (group, path) in (0..3 * count).map(|at| (at % 3, at / 3)) {
            state.measures[group][path].weight = of(group, path);
        }
        let views = [UP; PATHS_MAX];
        let cycle: usize = weights.iter().map(|&weight| usize::from(weight)).sum();
        let mut taken = [const { Vec::new() }; 3];
        for _ in 0..6 * cycle {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            let group = seed as usize % 3;
            taken[group].push(state.choose(group, &views[..count]).unwrap());
        }
        for (group, taken) in taken.iter().enumerate() {
            for window in taken.windows(cycle) {
                for path in 0..count {
                    let share = window.iter().filter(|&&on| on == path).count();
                    let weight = usize::from(of(group, path));
                    assert_eq!(share, weight, "path {path}, group {group} of {weights:?}");
                }
            }
        }
    }
}

/// Reads of weights 21:43 beside writes of 32:32, half of each: from a common last path both would
/// be shared out nearly alike.
#[test]
fn a6_mixed_groups_keep_their_shares() {
    let mut selector = Selector::new(2, PER_CPU);
    let groups = [Group::Read, Group::Write];
    for (group, weights) in groups.into_iter().zip([[21, 43], [32, 32]]) {
        for (path, weight) in weights.into_iter().enumerate() {
            for bucket in 0..BUCKETS {
                selector.weighted.measures[bucket * 3 + group as usize][path].weight = weight;
            }
        }
    }
    let mut taken = [[0; 2]; 2];
    for io in 0..640 {
        let request = crate::tests::request(groups[io % 2], 4096);
        let path = selector.select(&request, &[UP; 2]).unwrap();
        taken[io % 2][usize::from(path.0)] += 1;
    }
    assert_eq!(taken, [[21 * 5, 43 * 5], [160, 160]]);
}

/// All pairs and triples that sum to about 64, as calculations make them, and one full table.
fn every_weights() -> Vec<Vec<u8>> {
    let mut all = Vec::from([[1; PATHS_MAX].to_vec()]);
    for first in (1..=64).step_by(3) {
        for second in (1..=64).step_by(3) {
            all.push(Vec::from([first, second]));
            all.push(Vec::from([
                first,
                second,
                64_u8.saturating_sub(first + second).max(1),
            ]));
        }
    }
    all
}

#[test]
fn a6_an_unmeasured_path_is_taken_at_once_and_spends_nothing() {
    let mut state = measured(&[1000, 1000]);
    for _ in 0..5 {
        // Both measured paths are refilled on the way to the third, which stays the last used.
        assert_eq!(state.choose(0, &[UP; 3]), Some(2));
    }
    assert_eq!(
        (
            read(&state, 0).credit,
            read(&state, 1).credit,
            read(&state, 2).credit
        ),
        (32, 32, 0)
    );
}

#[test]
fn a8_timeout_0_closes_at_every_completion_of_a_turn() {
    let mut state = WeightedLatency::new(1);
    let knobs = Knobs {
        weight_timeout_ns: 0,
        ewma_shift: 0,
        ..KNOBS
    };
    for latency_ns in [5, 6, 7] {
        assert!(state.sample(0, &done(0, latency_ns, 9), &knobs).weigh);
        assert_eq!(u64::from(read(&state, 0).smoothed_ns), latency_ns);
    }
}

#[test]
fn a8_a_new_timeout_holds_from_the_next_completion() -> Result<(), KnobError> {
    let mut selector = Selector::new(2, PER_CPU);
    let request = Request {
        source: 0,
        group: Group::Read,
        length: 512,
        address: 0,
        now_ns: 0,
    };
    for _ in 0..3 {
        selector.select(&request, &[UP; 2]);
    }
    assert!(selector.complete(&done(0, 1000, 1)).weigh);
    assert!(!selector.complete(&done(0, 1000, SECOND)).weigh);
    selector.set_knobs(Knobs {
        weight_timeout_ns: SECOND,
        ewma_shift: 3,
        ..KNOBS
    })?;
    assert!(selector.complete(&done(0, 1000, SECOND + 1)).weigh);
    Ok(())
}

#[test]
fn a11_a_reset_cancels_pending_work_of_that_path_only() {
    let mut state = WeightedLatency::new(1);
    feed(&mut state, 0, 1000, 1);
    feed(&mut state, 1, 1000, 1);
    state.reset(PathIndex(0));
    assert_eq!(
        (state.due[0], state.due[1], read(&state, 0)),
        (0b10, 0, Measure::NEW)
    );
    state.reset(PathIndex(1));
    state.weigh(2);
    assert_eq!((read(&state, 0).weight, read(&state, 1).weight), (0, 0));
}

/// T42: time is what the caller says; if it goes back, no window closes and nothing breaks.
#[test]
fn t42_time_that_goes_back_closes_no_window() {
    let mut state = WeightedLatency::new(1);
    assert!(feed(&mut state, 0, 1000, 100 * SECOND));
    assert!(!feed(&mut state, 0, 1000, 0));
    assert!(!feed(&mut state, 0, 1000, 100 * SECOND));
    assert!(feed(&mut state, 0, 1000, 115 * SECOND));
}

/// T43: errors that complete fast must not attract I/O.
#[test]
fn t43_failed_io_is_never_a_sample() {
    let mut selector = Selector::new(2, PER_CPU);
    let request = Request {
        source: 0,
        group: Group::Read,
        length: 512,
        address: 0,
        now_ns: 0,
    };
    for latency_ns in [0, 1, SECOND + 1] {
        selector.select(&request, &[UP; 2]).unwrap();
        let failed = Completion {
            ended: Ended::Failed,
            ..done(0, latency_ns, 1)
        };
        assert_eq!(selector.complete(&failed), Noted::default());
    }
    let stats = selector.stats(PathIndex(0), Group::Read);
    assert_eq!(
        (
            stats.selections,
            stats.samples,
            stats.ignored,
            stats.smoothed_ns
        ),
        (3, 0, 0, 0)
    );
}

#[test]
fn a12_every_bucket_has_its_sizes() {
    for (length, bucket) in [
        (0, 0),
        (32767, 0),
        (32768, 1),
        (65535, 1),
        (65536, 2),
        (131_072, 3),
        (262_143, 3),
        (262_144, 4),
        (524_288, 5),
        (1_048_575, 5),
        (1_048_576, 6),
        (u32::MAX, 6),
    ] {
        assert_eq!(cell(true, Group::Read, length), bucket * 3, "{length}");
        assert_eq!(cell(true, Group::Other, length), bucket * 3 + 2);
        assert_eq!(cell(false, Group::Write, length), 1);
    }
}

/// A selector over two paths with these modes, a window of 0 and no smoothing.
fn selector(per_numa: bool, buckets: bool) -> Selector {
    let mut selector = Selector::new(2, Policy::WeightedLatency(Aggregate { per_numa, buckets }));
    let knobs = Knobs {
        ewma_shift: 0,
        weight_timeout_ns: 0,
        ..KNOBS
    };
    selector.set_knobs(knobs).unwrap();
    selector
}

/// One I/O of this length on `path`, which takes `latency_ns`.
fn serve(selector: &mut Selector, path: u8, length: u32, latency_ns: u64) {
    let mut views = [UP; 2];
    views[1 - usize::from(path)].enabled = false;
    let request = Request {
        length,
        ..crate::tests::request(Group::Read, length)
    };
    assert_eq!(selector.select(&request, &views), Some(PathIndex(path)));
    let ticket = selector.ticket();
    let noted = selector.complete(&Completion {
        ticket,
        ..done(path, latency_ns, 1)
    });
    assert!(noted.weigh);
}

/// TA8 in small: path 0 is bad from 32 KiB on. Without buckets its large I/Os spoil it for small
/// ones; with them small I/Os share evenly, and large ones go to path 1.
#[test]
fn a13_buckets_keep_sizes_apart() {
    let learnt = |buckets: bool| {
        let mut selector = selector(false, buckets);
        for (path, length, latency_ns) in [
            (0, 16384, 1000),
            (1, 16384, 1000),
            (0, 65536, 7000),
            (1, 65536, 1000),
        ] {
            serve(&mut selector, path, length, latency_ns);
        }
        selector.weigh();
        let weights = |length| {
            let at = cell(buckets, Group::Read, length);
            [0, 1].map(|path| selector.weighted.measures[at][path].weight)
        };
        [weights(16384), weights(65536)]
    };
    // 10^9/1000 = 10^6 and 10^9/7000 = 142857: 142857·64/1142857 = 8.0, 10^6·64/1142857 = 56.0.
    assert_eq!(learnt(true), [[32, 32], [7, 56]]);
    assert_eq!(learnt(false), [[7, 56]; 2]);
}

/// Each cell shares out its I/Os by its own weights, however they are mixed.
#[test]
fn a13_mixed_sizes_keep_their_shares() {
    let mut selector = selector(false, true);
    let at = [4096, 65536].map(|length| cell(true, Group::Read, length));
    for (at, weights) in at.into_iter().zip([[32, 32], [12, 51]]) {
        for (path, weight) in weights.into_iter().enumerate() {
            selector.weighted.measures[at][path].weight = weight;
        }
    }
    let mut taken = [[0; 2]; 2];
    for io in 0..64 * 63 * 4 {
        let large = usize::from(io % 4 == 3);
        let request = crate::tests::request(Group::Read, [4096, 65536][large]);
        let path = selector.select(&request, &[UP; 2]).unwrap();
        taken[large][usize::from(path.0)] += 1;
    }
    assert_eq!(taken, [[6048, 6048], [12 * 64, 51 * 64]]);
}

/// T41: an I/O that another policy placed has no size here, and teaches no bucket.
#[test]
fn t41_an_io_of_another_policy_is_no_sample_of_a_bucket() {
    let mut selector = selector(false, true);
    selector.set_policy(Policy::Numa);
    let request = crate::tests::request(Group::Read, 65536);
    selector.select(&request, &[UP; 2]).unwrap();
    let ticket = selector.ticket();
    for (buckets, samples) in [(true, 0), (false, 1)] {
        let per_numa = false;
        selector.set_policy(Policy::WeightedLatency(Aggregate { per_numa, buckets }));
        let mut selector = selector.clone();
        let _ = selector.complete(&Completion {
            ticket,
            ..done(0, 1000, 1)
        });
        assert_eq!(selector.stats(PathIndex(0), Group::Read).samples, samples);
    }
}

/// Two cores of a node: one measured 1 and 3 ms, the other 3 ms on the first path only. The node's
/// means are 2 and 3 ms: scores 500 and 333, weights 38 and 25, on both cores.
#[test]
fn a13_a_node_weighs_by_the_mean_of_its_cores() {
    let mut cores = [selector(true, false), selector(true, false)];
    serve(&mut cores[0], 0, 4096, 1_000_000);
    serve(&mut cores[0], 1, 4096, 3_000_000);
    serve(&mut cores[1], 0, 4096, 3_000_000);
    assert!(cores.iter_mut().all(Selector::take_news));
    assert!(!cores.iter_mut().any(Selector::take_news));
    let node = [0, 1].map(|path| {
        let mut node = NodeMeans::default();
        for core in &cores {
            node.add(&core.means(PathIndex(path)));
        }
        node
    });
    for core in &mut cores {
        core.weigh();
        let weights =
            |core: &Selector| [0, 1].map(|path| core.stats(PathIndex(path), Group::Read).weight);
        assert_eq!(weights(core), [0, 0], "by itself it does not weigh");
        core.weigh_node(|path| node[usize::from(path.0)]);
        assert_eq!(weights(core), [38, 25]);
        let other = core.stats(PathIndex(0), Group::Write);
        assert_eq!((other.weight, other.score), (0, 0));
    }
    // A core's own smoothed latency stays unchanged.
    let own = cores[1].stats(PathIndex(1), Group::Read);
    assert_eq!((own.smoothed_ns, own.samples), (0, 0));
    cores[1].reset_path(PathIndex(0));
    assert!(
        cores[1].take_news(),
        "the others must not count it any more"
    );
    assert_eq!(cores[1].means(PathIndex(0)), [0; CELLS]);
}

#[test]
fn a13_by_itself_no_core_shares() {
    let mut alone = selector(false, true);
    serve(&mut alone, 0, 4096, 1000);
    assert!(!alone.take_news());
    alone.weigh_node(|_| NodeMeans::default());
    alone.weigh();
    assert_eq!(alone.stats(PathIndex(0), Group::Read).weight, 64);
    assert_eq!(alone.means(PathIndex(9)), [0; CELLS]);
}
