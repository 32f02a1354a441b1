//! Random sequences of all calls of a caller, compared with the oracle step by step.

use super::oracle::Oracle;
use super::{ANA, request};
use crate::limits::WEIGHT_TIMEOUT_NS_MAX;
use crate::{
    Aggregate, Completion, Ended, Group, Knobs, PathIndex, PathView, Policy, Request, Selector,
    Ticket,
};
use proptest::prelude::*;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Select {
        group: Group,
        length: u32,
        source: u64,
    },
    Complete {
        which: usize,
        latency_ns: u64,
        ended: Ended,
        after_ns: i64,
    },
    Weigh,
    Views(Vec<PathView>),
    Policy(Policy),
    Knobs(Knobs),
    Reset(u8),
    Paths(usize),
}

fn group() -> impl Strategy<Value = Group> {
    prop::sample::select(&Group::ALL[..])
}

pub(crate) fn view() -> impl Strategy<Value = PathView> {
    (
        prop::bool::weighted(0.8),
        0..9_usize,
        0..4_u32,
        prop_oneof![0..9_u32, Just(u32::MAX)],
        prop_oneof![5 => Just(1), 1 => 0..=100_u8],
    )
        .prop_map(
            |(enabled, ana, distance, in_flight_elsewhere, throughput)| PathView {
                enabled,
                ana: ANA[ana.saturating_sub(4)],
                distance,
                in_flight_elsewhere,
                throughput,
            },
        )
}

pub(super) fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Numa),
        Just(Policy::RoundRobin { bytes: 0 }),
        Just(Policy::RoundRobin { bytes: 16384 }),
        Just(Policy::RoundRobinLatency { bytes: 0 }),
        Just(Policy::RoundRobinLatency { bytes: 16384 }),
        Just(Policy::QueueDepth),
        Just(Policy::WEIGHTED_LATENCY),
        Just(Policy::WeightedLatency(Aggregate::PER_CPU)),
        Just(Policy::Soonest),
        Just(Policy::Soonest),
        Just(Policy::Pid),
        Just(Policy::Latency),
        (0..4_u8).prop_map(|path| Policy::Devid(PathIndex(path))),
        Just(Policy::ServiceTime),
        Just(Policy::HistoricalServiceTime),
    ]
}

fn knobs() -> impl Strategy<Value = Knobs> {
    let timeout_ns = prop_oneof![Just(0), 1..1_000_000_u64, Just(WEIGHT_TIMEOUT_NS_MAX)];
    (0..=8_u8, timeout_ns).prop_map(|(ewma_shift, weight_timeout_ns)| Knobs {
        ewma_shift,
        weight_timeout_ns,
        ..Knobs::default()
    })
}

fn length() -> impl Strategy<Value = u32> {
    let edge = (14..22_u32, 0..2_u32).prop_map(|(shift, less)| (1 << shift) - less);
    prop_oneof![4 => 0..20_000_u32, 3 => 0..2_000_000_u32, 1 => edge, 1 => Just(u32::MAX)]
}

fn completion() -> impl Strategy<Value = Step> {
    let latency_ns = prop_oneof![
        20 => 1..2_000_000_u64,
        1 => Just(0),
        1 => Just(1),
        1 => 999_999_999..=1_000_000_001_u64,
        1 => Just(u64::MAX),
    ];
    let after_ns = prop_oneof![20 => 0..200_000_i64, 1 => -50_000..0_i64, 1 => Just(6_000_000_000)];
    let ended = prop_oneof![
        18 => Just(Ended::Good),
        1 => Just(Ended::Failed),
        1 => Just(Ended::Dropped),
    ];
    (any::<usize>(), latency_ns, ended, after_ns).prop_map(
        |(which, latency_ns, ended, after_ns)| Step::Complete {
            which,
            latency_ns,
            ended,
            after_ns,
        },
    )
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (group(), length(), 0..6_u64)
            .prop_map(|(group, length, source)| Step::Select { group, length, source }),
        25 => completion(),
        10 => Just(Step::Weigh),
        3 => prop::collection::vec(view(), 64).prop_map(Step::Views),
        1 => policy().prop_map(Step::Policy),
        1 => knobs().prop_map(Step::Knobs),
        1 => (0..70_u8).prop_map(Step::Reset),
        1 => prop_oneof![0..=5_usize, 0..=64_usize].prop_map(Step::Paths),
    ]
}

/// A selector, its oracle, and the caller's state.
struct Pair {
    selector: Selector,
    oracle: Oracle,
    views: Vec<PathView>,
    in_flight: Vec<Placed>,
    now_ns: u64,
}

/// An I/O, and the period of the policy in which it was placed.
struct Placed {
    path: PathIndex,
    group: Group,
    ticket: Ticket,
    length: u32,
    period: u32,
}

impl Pair {
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Select {
                group,
                length,
                source,
            } => {
                let views = &self.views[..self.oracle.paths];
                let request = Request {
                    now_ns: self.now_ns,
                    source,
                    ..request(group, length)
                };
                let chosen = self.selector.select(&request, views);
                self.oracle.told = chosen;
                assert_eq!(chosen, self.oracle.select(&request, views));
                let usable = |view: &PathView| view.enabled && ANA[..2].contains(&view.ana);
                assert_eq!(chosen.is_some(), views.iter().any(usable));
                assert!(chosen.is_none_or(|path| usable(&views[usize::from(path.0)])));
                let ticket = self.selector.ticket();
                let period = self.oracle.period;
                self.in_flight.extend(chosen.map(|path| Placed {
                    path,
                    group,
                    ticket,
                    length,
                    period,
                }));
            }
            Step::Complete {
                which,
                latency_ns,
                ended,
                after_ns,
            } => {
                self.now_ns = self.now_ns.saturating_add_signed(after_ns);
                self.complete(which, latency_ns, ended);
            }
            Step::Weigh => {
                self.selector.weigh();
                self.oracle.weigh();
            }
            Step::Views(ref views) => self.views.clone_from(views),
            Step::Policy(policy) => {
                self.selector.set_policy(policy);
                self.oracle.set_policy(policy);
            }
            Step::Knobs(knobs) => {
                self.selector.set_knobs(knobs).unwrap();
                self.oracle.knobs = knobs;
            }
            Step::Reset(path) => {
                self.selector.reset_path(PathIndex(path));
                if usize::from(path) < self.oracle.paths {
                    self.oracle.reset_path(PathIndex(path));
                }
            }
            Step::Paths(paths) => {
                self.selector.set_paths(paths).unwrap();
                self.oracle.set_paths(paths);
            }
        }
    }

    fn complete(&mut self, which: usize, latency_ns: u64, ended: Ended) {
        if self.in_flight.is_empty() {
            return;
        }
        let placed = self.in_flight.swap_remove(which % self.in_flight.len());
        let done = Completion {
            path: placed.path,
            group: placed.group,
            latency_ns,
            ended,
            now_ns: self.now_ns,
            ticket: placed.ticket,
            gap_ns: 0,
        };
        let expected = self.oracle.complete(&done, placed.length, placed.period);
        assert_eq!(self.selector.complete(&done), expected);
    }

    /// Counts balance and statistics agree, for every possible path.
    fn check(&self) {
        for path in (0..64).map(PathIndex) {
            let mine = self.in_flight.iter().filter(|it| it.path == path).count();
            assert_eq!(self.selector.in_flight(path) as usize, mine);
            for group in Group::ALL {
                let stats = self.selector.stats(path, group);
                if usize::from(path.0) < self.oracle.paths {
                    assert_eq!(stats, self.oracle.stats(path, group), "{path:?} {group:?}");
                } else {
                    assert_eq!(stats, Default::default());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn t41_t43_every_sequence_balances_and_agrees_with_the_oracle(
        policy in policy(),
        paths in 1..=4_usize,
        views in prop::collection::vec(view(), 64),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair {
            selector: Selector::new(paths, policy),
            oracle: Oracle::new(paths, policy),
            views,
            in_flight: Vec::new(),
            now_ns: 0,
        };
        for step in &steps {
            pair.take(step);
            pair.check();
        }
        while !pair.in_flight.is_empty() {
            let (latency_ns, ended, after_ns) = (1, Ended::Good, 1);
            pair.take(&Step::Complete { which: 0, latency_ns, ended, after_ns });
        }
        pair.check();
    }

    #[test]
    fn a8_no_text_makes_a_knob_or_policy_that_is_out_of_range(text in "[0-9a-z:.µ+-]{0,24}") {
        if let Ok(shift) = Knobs::parse_ewma_shift(&text) {
            prop_assert!(shift <= 8);
        }
        if let Ok(timeout_ns) = Knobs::parse_weight_timeout(&text) {
            prop_assert!(timeout_ns <= WEIGHT_TIMEOUT_NS_MAX);
        }
        if let Ok(Policy::RoundRobin { bytes }) = Policy::parse(&text) {
            prop_assert_eq!(bytes % 512, 0);
        }
    }
}

proptest! {
    /// Arbitrary text, and text that is nearly a policy or a knob.
    #[test]
    fn a1_a8_hostile_words_are_refused_or_read_again_as_the_same(
        text in concat!(
            "\\PC*|(numa|round-robin(-latency)?|rr|rr-1m|rotation|queue-depth|",
            "weighted-lat(ency)?|soonest)(:[0-9:k-]{0,9})?"
        ),
        knob in "\\PC*|(0[xX]?)?[0-9a-f]{0,24}(h|m|s|ms|us|ns|µs)?",
    ) {
        match Policy::parse(&text) {
            Ok(policy) => prop_assert_eq!(Policy::parse(&policy.to_string()), Ok(policy)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let usual = Knobs::default();
        let ewma_shift = Knobs::parse_ewma_shift(&knob).unwrap_or(usual.ewma_shift);
        let weight_timeout_ns = Knobs::parse_weight_timeout(&knob);
        let weight_timeout_ns = weight_timeout_ns.unwrap_or(usual.weight_timeout_ns);
        let knobs = Knobs { ewma_shift, weight_timeout_ns, ..Knobs::default() };
        prop_assert!(knobs.check().is_ok());
        let ns = std::format!("{weight_timeout_ns}ns");
        prop_assert_eq!(Knobs::parse_weight_timeout(&ns), Ok(weight_timeout_ns));
    }
}
