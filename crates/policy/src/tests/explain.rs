//! Explanations: the choice is the same as without one, and the reasons are true.

use super::properties::{Step, policy, step, view};
use super::{PER_CPU, UP, good, request};
use crate::limits::PATHS_MAX;
use crate::{
    Ana, Basis, Completion, Explained, Group, Look, PathIndex, PathView, Policy, Request, Selector,
    Ticket, Why,
};
use proptest::prelude::*;
use std::vec::Vec;

/// Two selectors that get the same calls; one has to explain.
struct Twins {
    plain: Selector,
    told: Selector,
    views: Vec<PathView>,
    in_flight: Vec<(PathIndex, Group, Ticket)>,
    now_ns: u64,
    out: Explained,
}

impl Twins {
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Select {
                group,
                length,
                source,
            } => self.select(&Request {
                now_ns: self.now_ns,
                source,
                ..request(group, length)
            }),
            Step::Complete {
                which,
                latency_ns,
                ended,
                after_ns,
            } => {
                self.now_ns = self.now_ns.saturating_add_signed(after_ns);
                if self.in_flight.is_empty() {
                    return;
                }
                let (path, group, ticket) =
                    self.in_flight.swap_remove(which % self.in_flight.len());
                let done = Completion {
                    path,
                    group,
                    latency_ns,
                    ended,
                    now_ns: self.now_ns,
                    ticket,
                    gap_ns: 0,
                };
                assert_eq!(self.plain.complete(&done), self.told.complete(&done));
            }
            Step::Views(ref views) => self.views.clone_from(views),
            Step::Weigh => self.both(Selector::weigh),
            Step::Policy(policy) => self.both(|it| it.set_policy(policy)),
            Step::Knobs(knobs) => self.both(|it| it.set_knobs(knobs).unwrap()),
            Step::Reset(path) => self.both(|it| it.reset_path(PathIndex(path))),
            Step::Paths(paths) => self.both(|it| it.set_paths(paths).unwrap()),
        }
    }

    fn both(&mut self, change: impl Fn(&mut Selector)) {
        change(&mut self.plain);
        change(&mut self.told);
    }

    fn select(&mut self, request: &Request) {
        let views = &self.views[..self.plain.paths()];
        let before = self.told.in_flight;
        let chosen = self.plain.select(request, views);
        let told = self.told.select_explained(request, views, &mut self.out);
        assert_eq!(chosen, told, "asking why changes nothing");
        assert_eq!(self.out.chosen, chosen);
        assert_eq!(self.plain.ticket(), self.told.ticket());
        check(&self.out, request, &before, views);
        let ticket = self.told.ticket();
        let placed = chosen.map(|path| (path, request.group, ticket));
        self.in_flight.extend(placed);
    }
}

/// The explanation matches the paths, is consistent, and implies the choice.
fn check(it: &Explained, request: &Request, before: &[u32; PATHS_MAX], views: &[PathView]) {
    assert_eq!(it.looks().len(), views.len());
    for (path, (look, view)) in it.looks().iter().zip(views).enumerate() {
        assert_eq!(look.in_flight, before[path]);
        assert_eq!(look.usable, view.usable());
        check_sum(look);
    }
    let Some(look) = it.look() else {
        assert_eq!(it.why, Why::NoneUsable);
        return assert!(!views.iter().any(PathView::usable));
    };
    assert!(
        look.usable && !look.stands_by || it.why == Why::Named,
        "{it:?}"
    );
    let candidates = || it.looks().iter().filter(|it| it.usable && !it.stands_by);
    if it.why == Why::Only {
        assert_eq!(candidates().count(), 1, "{:?}", it.policy);
    }
    let numbers = candidates().filter_map(|look| number(it.policy, look));
    let (least, mine) = (numbers.min(), number(it.policy, look));
    match (it.policy, it.why) {
        (Policy::Soonest, _) => check_soonest(it, look, least),
        (
            Policy::Numa
            | Policy::QueueDepth
            | Policy::Latency
            | Policy::RoundRobin { .. }
            | Policy::RoundRobinLatency { .. }
            | Policy::HistoricalServiceTime,
            Why::Least | Why::Tie | Why::Untried | Why::Explored | Why::Turn,
        ) => {
            assert_eq!(mine, least, "{:?} {:?}", it.why, it.looks());
        }
        (Policy::ServiceTime, Why::Least | Why::Tie) => {
            assert!(
                candidates().all(|it| !serves_sooner(it, look)),
                "{:?}",
                it.looks()
            );
        }
        (Policy::Pid, Why::Reader) => {
            let number = (request.source % candidates().count() as u64) as u32;
            let of = candidates().count() as u32;
            let number_of = |number| Basis::Reader {
                number,
                of,
                wanted: number.unwrap_or(0),
            };
            assert_eq!(look.basis, number_of(Some(number)));
        }
        (Policy::WeightedLatency(_), Why::Credit) => {
            // A path without credit is refilled at the first round, and pays at the second.
            let pays = |look: &Look| matches!(look.basis, Basis::Credit { credit: 1.., .. });
            let free = |look: &Look| matches!(look.basis, Basis::Credit { weight: 0, .. });
            let any = candidates().any(|look| pays(look) || free(look));
            assert!(pays(look) || !any, "{:?}", it.looks());
        }
        (Policy::WeightedLatency(_), Why::Untried) => {
            assert!(matches!(look.basis, Basis::Credit { weight: 0, .. }));
        }
        (Policy::Devid(_), Why::Named | Why::Instead) | (_, Why::Only) => {}
        odd => panic!("{odd:?}"),
    }
}

/// As above for `soonest`; `least` is the least cost.
fn check_soonest(it: &Explained, look: &Look, least: Option<u64>) {
    let about = least.map(|least| least.saturating_add(least / 16));
    let of = |look: &Look| number(Policy::Soonest, look);
    let mine = of(look);
    let candidates = || it.looks().iter().filter(|it| it.usable);
    match it.why {
        Why::Least | Why::Even => assert_eq!(mine, least),
        Why::Fewest => {
            assert!(mine > least && mine <= about, "{mine:?} {:?}", it.looks());
            // One pass may miss a third that has even fewer.
            let count = |look: &Look| u64::from(look.in_flight) + u64::from(look.elsewhere);
            let mut nearest = candidates().filter(|look| of(look) == least);
            assert!(
                nearest.any(|least| count(look) <= count(least)),
                "{:?} {:?} {:?}",
                it.chosen,
                look,
                it.looks()
            );
        }
        Why::OthersSmall => {
            let later = |other: &Look| other.expected_ns() > look.expected_ns();
            let mut cheaper = candidates().filter(|look| of(look) == least);
            assert!(mine > least && cheaper.all(later), "{:?}", it.looks());
        }
        Why::GoesOn => {
            assert!(mine >= least && look.basis != Basis::Unknown);
            assert!(candidates().count() > 1, "{:?}", it.looks());
        }
        Why::Explored => assert!(mine > least || candidates().count() > 1),
        Why::Untried => assert_eq!(look.basis, Basis::Unknown),
        why => assert_eq!(why, Why::Only),
    }
}

/// The parts of a forecast add up to the cost; the rest is a penalty.
fn check_sum(look: &Look) {
    let (Basis::Forecast(it) | Basis::Crowd { forecast: it, .. }) = look.basis else {
        return;
    };
    let parts_ns = it.base_ns + it.tail_ns + it.wait_ns + it.price_ns;
    assert_eq!(
        it.cost_ns,
        parts_ns.saturating_add(it.penalty_ns()),
        "{it:?}"
    );
    if it.penalty_ns() > 0 {
        assert!(it.silent || it.has_failed(), "{it:?}");
    }
    assert_eq!(look.expected_ns(), Some(parts_ns - it.price_ns));
}

/// Fewer bytes in flight for the throughput.
fn serves_sooner(it: &Look, than: &Look) -> bool {
    let of = |look: &Look| match look.basis {
        Basis::Bytes { bytes, throughput } => (u128::from(bytes), u128::from(throughput)),
        _ => panic!("{look:?}"),
    };
    match (of(it), of(than)) {
        ((mine, 0), (its, 0)) => mine < its,
        ((_, 0), _) => false,
        ((mine, throughput), (its, than)) => mine * than < its * throughput,
    }
}

/// The number that the policy minimizes.
fn number(policy: Policy, look: &Look) -> Option<u64> {
    let count = u64::from(look.in_flight) + u64::from(look.elsewhere);
    match look.basis {
        Basis::Distance(distance) => Some(distance.into()),
        Basis::Depth => Some(count),
        Basis::Turn { before, .. } | Basis::TurnWithin { before, .. } => before.map(u64::from),
        Basis::Recent(mean_ns) if look.in_flight == 0 => Some(mean_ns.map_or(0, |ns| ns + 1)),
        Basis::Recent(mean_ns) => Some(mean_ns.map_or(1 << 40, |ns| ns + 1)),
        Basis::Served {
            service_ns: None, ..
        } if look.in_flight > 0 => Some(u64::MAX),
        // Estimates are cut to whole ns.
        Basis::Served { estimate_ns, .. } => Some(estimate_ns.map_or(0, |ns| ns + 1)),
        Basis::Forecast(it) => Some(it.cost_ns),
        Basis::Crowd { usual_ns, .. } => Some(usual_ns),
        _ => None.filter(|_: &u64| policy == Policy::Soonest),
    }
}

proptest! {
    #[test]
    fn asking_why_changes_nothing_and_the_answer_is_what_was_chosen_by(
        policy in policy(),
        paths in 1..=4_usize,
        views in prop::collection::vec(view(), 64),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut twins = Twins {
            plain: Selector::new(paths, policy),
            told: Selector::new(paths, policy),
            views,
            in_flight: Vec::new(),
            now_ns: 0,
            out: Explained::new(),
        };
        for step in &steps {
            twins.take(step);
        }
    }
}

fn why(selector: &mut Selector, views: &[PathView]) -> (u8, Why) {
    let mut out = Explained::new();
    let chosen = selector.select_explained(&request(Group::Read, 4096), views, &mut out);
    (chosen.map_or(u8::MAX, |path| path.0), out.why)
}

#[test]
fn each_policy_says_what_decided() {
    let far = PathView { distance: 20, ..UP };
    let standby = PathView {
        ana: Ana::NonOptimized,
        ..UP
    };
    let down = PathView {
        enabled: false,
        ..UP
    };
    for (policy, views, expected) in [
        (Policy::Numa, [far, UP], (1, Why::Least)),
        (Policy::Numa, [UP, UP], (0, Why::Tie)),
        (Policy::Numa, [far, standby], (0, Why::Only)),
        (Policy::Numa, [down, down], (u8::MAX, Why::NoneUsable)),
        (Policy::RoundRobin { bytes: 0 }, [UP, UP], (0, Why::Turn)),
        (Policy::QueueDepth, [UP, UP], (0, Why::Tie)),
        (PER_CPU, [UP, UP], (0, Why::Untried)),
        (PER_CPU, [down, UP], (1, Why::Only)),
        (Policy::Soonest, [UP, UP], (0, Why::Untried)),
        (Policy::Pid, [UP, UP], (0, Why::Reader)),
        (Policy::Latency, [UP, UP], (0, Why::Untried)),
        (Policy::Devid(PathIndex(1)), [UP, standby], (1, Why::Named)),
        (Policy::Devid(PathIndex(1)), [UP, down], (0, Why::Instead)),
        (
            Policy::ServiceTime,
            [
                UP,
                PathView {
                    throughput: 2,
                    ..UP
                },
            ],
            (1, Why::Least),
        ),
        (Policy::HistoricalServiceTime, [UP, UP], (0, Why::Untried)),
    ] {
        let mut selector = Selector::new(2, policy);
        assert_eq!(why(&mut selector, &views), expected, "{policy}");
    }
}

#[test]
fn soonest_says_whether_it_took_the_least_or_looked_again() {
    let mut selector = Selector::new(2, Policy::Soonest);
    let end = |selector: &mut Selector, path, latency_ns, now_ns| {
        let ticket = selector.ticket();
        let _ = selector.complete(&Completion {
            ticket,
            ..good(path, latency_ns, now_ns)
        });
    };
    for (path, latency_ns) in [(0, 100_000), (1, 150_000)] {
        assert_eq!(why(&mut selector, &[UP; 2]), (path, Why::Untried));
        end(&mut selector, path, latency_ns, 0);
    }
    assert_eq!(why(&mut selector, &[UP; 2]), (0, Why::Least));
    end(&mut selector, 0, 100_000, 0);
    // Idle paths are tried again, once the savings pay for it.
    let mut seen = Vec::new();
    for n in 0..2000_u64 {
        let mut out = Explained::new();
        let now_ns = 60_000_000 * (n + 1);
        let request = Request {
            now_ns,
            ..request(Group::Read, 4096)
        };
        let path = selector
            .select_explained(&request, &[UP; 2], &mut out)
            .unwrap();
        end(
            &mut selector,
            path.0,
            100_000 + 50_000 * u64::from(path.0),
            now_ns,
        );
        seen.push((path.0, out.why));
    }
    assert!(seen.contains(&(1, Why::Explored)), "{seen:?}");
    assert!(seen.contains(&(0, Why::Least)));
    assert!(!seen.contains(&(1, Why::Least)));
}

/// Overloads paths that serve one I/O after the other; returns the reasons.
fn crowded(services_ns: [u64; 2]) -> Vec<Why> {
    let mut selector = Selector::new(2, Policy::Soonest);
    let (mut free_ns, mut flying, mut now_ns) = ([0; 2], Vec::new(), 0);
    let mut out = Explained::new();
    let mut seen = Vec::new();
    for n in 0..4000_u64 {
        let request = Request {
            now_ns,
            ..request(Group::Read, if n % 4 == 0 { 65_536 } else { 4096 })
        };
        let before = selector.in_flight;
        let path = selector
            .select_explained(&request, &[UP; 2], &mut out)
            .unwrap();
        check(&out, &request, &before, &[UP; 2]);
        seen.push(out.why);
        let free_ns = &mut free_ns[usize::from(path.0)];
        *free_ns = now_ns.max(*free_ns) + services_ns[usize::from(path.0)];
        flying.push((*free_ns, now_ns, path.0, selector.ticket()));
        if flying.len() == 64 {
            flying.sort_by_key(|it| core::cmp::Reverse(it.0));
            let (end_ns, begun_ns, path, ticket) = flying.pop().unwrap();
            now_ns = end_ns;
            let done = good(path, end_ns - begun_ns, now_ns);
            let _ = selector.complete(&Completion { ticket, ..done });
        }
    }
    seen
}

#[test]
fn where_all_paths_are_full_soonest_goes_by_the_waits_and_says_so() {
    let seen = crowded([20_000, 40_000]);
    assert!(seen.contains(&Why::Even));
    assert!(seen.contains(&Why::Least), "at first");
}

#[test]
fn where_the_other_path_carries_next_to_nothing_soonest_says_so() {
    assert!(crowded([20_000, 1_600_000]).contains(&Why::OthersSmall));
}
