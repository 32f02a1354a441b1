//! Every state of up to three paths: ANA state × enabled × group × what the policy remembers.

use super::oracle::{Cell, Oracle};
use super::{ANA, PER_CPU, UP, request};
use crate::{Completion, Ended, Group, PathIndex, PathView, Policy, Selector};
use std::vec::Vec;

/// Calls `visit` with every list of `count` digits below `base`.
fn every_list(count: usize, base: usize, mut visit: impl FnMut(&[usize])) {
    for mut number in 0..base.pow(count as u32) {
        let mut digits = [0; 3];
        for digit in &mut digits[..count] {
            *digit = number % base;
            number /= base;
        }
        visit(&digits[..count]);
    }
}

/// Calls `visit` with every table of 1…3 paths in every ANA state, enabled or not.
fn every_table(mut visit: impl FnMut(&[PathView])) {
    for count in 1..=3 {
        every_list(count, 10, |digits| {
            let view = |digit: &usize| PathView {
                enabled: digit < &5,
                ana: ANA[digit % 5],
                ..UP
            };
            visit(&digits.iter().map(view).collect::<Vec<_>>());
        });
    }
}

/// Selects with both, and compares choice and counts.
fn check(selector: &mut Selector, oracle: &mut Oracle, views: &[PathView], group: Group) {
    let before = selector.in_flight;
    let chosen = selector.select(&request(group, 4096), views);
    assert_eq!(
        chosen,
        oracle.select(&request(group, 4096), views),
        "{views:?} {oracle:?}"
    );
    assert_eq!(
        chosen.is_some(),
        views
            .iter()
            .any(|view| view.enabled && ANA[..2].contains(&view.ana))
    );
    for (path, count) in before.iter().enumerate() {
        let more = u32::from(chosen.is_some_and(|chosen| usize::from(chosen.0) == path));
        assert_eq!(selector.in_flight[path], count + more);
    }
}

#[test]
fn a1_numa_in_every_state() {
    let mut selectors = [1, 2, 3].map(|count| Selector::new(count, Policy::Numa));
    let mut oracles = [1, 2, 3].map(|count| Oracle::new(count, Policy::Numa));
    every_table(|views| {
        every_list(views.len(), 3, |distances| {
            let mut views = views.to_vec();
            for (view, &distance) in views.iter_mut().zip(distances) {
                view.distance = [0, 10, u32::MAX][distance];
            }
            for group in Group::ALL {
                let n = views.len() - 1;
                check(&mut selectors[n], &mut oracles[n], &views, group);
            }
        });
    });
}

#[test]
fn a1_queue_depth_in_every_state() {
    let mut selectors = [1, 2, 3].map(|count| Selector::new(count, Policy::QueueDepth));
    let mut oracles = [1, 2, 3].map(|count| Oracle::new(count, Policy::QueueDepth));
    every_table(|views| {
        every_list(views.len(), 6, |depths| {
            let (selector, oracle) = (
                &mut selectors[views.len() - 1],
                &mut oracles[views.len() - 1],
            );
            let mut views = views.to_vec();
            for group in Group::ALL {
                for (path, &depth) in depths.iter().enumerate() {
                    selector.in_flight[path] = depth as u32 % 3;
                    oracle.in_flight[path] = depth as u64 % 3;
                    views[path].in_flight_elsewhere = [0, 2][depth / 3];
                }
                check(selector, oracle, &views, group);
            }
        });
    });
}

#[test]
fn a1_round_robin_in_every_state() {
    for bytes in [0, 8192] {
        let policy = Policy::RoundRobin { bytes };
        let mut selectors = [1, 2, 3].map(|count| Selector::new(count, policy));
        let mut oracles = [1, 2, 3].map(|count| Oracle::new(count, policy));
        every_table(|views| {
            let (selector, oracle) = (
                &mut selectors[views.len() - 1],
                &mut oracles[views.len() - 1],
            );
            for last in (0..views.len()).map(Some).chain([None]) {
                for handed in [0, 4096, 8192, u64::MAX] {
                    for group in Group::ALL {
                        let handed = if last.is_some() { handed } else { 0 };
                        (selector.round_robin.last, selector.round_robin.handed) = (last, handed);
                        (oracle.last, oracle.handed) = (last, handed);
                        check(selector, oracle, views, group);
                        assert_eq!(selector.round_robin.last, oracle.last);
                        assert_eq!(selector.round_robin.handed, oracle.handed);
                    }
                }
            }
        });
    }
}

/// Weight and credit of one path: unmeasured, spent, refilled, half spent.
const CREDITS: [(u8, u8); 5] = [(0, 0), (1, 0), (1, 1), (3, 0), (3, 2)];

#[test]
fn a6_weighted_latency_in_every_state() {
    let mut selectors = [1, 2, 3].map(|count| Selector::new(count, PER_CPU));
    let mut oracles = [1, 2, 3].map(|count| Oracle::new(count, PER_CPU));
    every_table(|views| {
        let (selector, oracle) = (
            &mut selectors[views.len() - 1],
            &mut oracles[views.len() - 1],
        );
        every_list(views.len(), CREDITS.len(), |credits| {
            for last in 0..views.len() {
                for group in Group::ALL {
                    let column = group as usize;
                    selector.weighted.last[column] = last as u8;
                    oracle.lasts[column] = Some(last);
                    for (path, &digit) in credits.iter().enumerate() {
                        set_credits(selector, oracle, path, group, digit);
                    }
                    check(selector, oracle, views, group);
                    let last = usize::from(selector.weighted.last[column]);
                    assert_eq!(Some(last), oracle.lasts[column]);
                    same_credits(selector, oracle);
                }
            }
        });
    });
}

/// `digit` names the path's state in `group`; the other groups are in other states, so that a
/// mix-up shows.
fn set_credits(s: &mut Selector, oracle: &mut Oracle, path: usize, group: Group, digit: usize) {
    for other in 0..3 {
        let (weight, credit) = CREDITS[(digit + other + 3 - group as usize) % CREDITS.len()];
        let measure = &mut s.weighted.measures[other][path];
        (measure.weight, measure.credit) = (weight, credit);
        let cell: &mut Cell = &mut oracle.cells[path][other];
        (cell.weight, cell.credit) = (weight.into(), credit.into());
    }
}

fn same_credits(selector: &Selector, oracle: &Oracle) {
    for (group, measures) in selector.weighted.measures.iter().enumerate() {
        for (path, measure) in measures[..selector.paths()].iter().enumerate() {
            assert_eq!(u128::from(measure.credit), oracle.cells[path][group].credit);
        }
    }
}

#[test]
fn b1_pid_and_b4_devid_in_every_state() {
    for policy in (0..4)
        .map(|id| Policy::Devid(PathIndex(id)))
        .chain([Policy::Pid])
    {
        let mut selectors = [1, 2, 3].map(|count| Selector::new(count, policy));
        let mut oracles = [1, 2, 3].map(|count| Oracle::new(count, policy));
        every_table(|views| {
            let n = views.len() - 1;
            for source in [0, 1, 2, 3, 4, u64::MAX] {
                let request = crate::Request {
                    source,
                    ..request(Group::Read, 4096)
                };
                let chosen = selectors[n].select(&request, views);
                assert_eq!(chosen, oracles[n].select(&request, views), "{views:?}");
            }
        });
    }
}

/// States of a path for these policies: nothing known, an I/O without an answer, fast and idle,
/// slow and busy.
const HEARD: usize = 4;

/// Brings a selector and its oracle into these states by I/Os.
fn hear(policy: Policy, states: &[usize]) -> (Selector, Oracle) {
    let mut selector = Selector::new(states.len(), policy);
    let mut oracle = Oracle::new(states.len(), policy);
    for (path, &state) in states.iter().enumerate() {
        let mut views = std::vec![PathView { enabled: false, ..UP }; states.len()];
        views[path].enabled = true;
        for io in 0..[0, 1, 1, 3][state] {
            let request = request(Group::Read, [0, 65536, 4096, 16384][state]);
            selector.select(&request, &views).unwrap();
            oracle.select(&request, &views);
            if state == 1 || io > 0 {
                continue;
            }
            let done = Completion {
                ticket: selector.ticket(),
                ..super::good(path as u8, [0, 0, 100_000, 900_000][state], 900_000)
            };
            let _ = selector.complete(&done);
            let _ = oracle.complete(&done, request.length, 0);
        }
    }
    (selector, oracle)
}

/// `latency`, `service-time` and `historical-service-time`, soon after, and when every measurement
/// is old.
#[test]
fn b3_and_service_times_in_every_state() {
    for count in 1..=3 {
        every_list(count, HEARD, |states| {
            let (latency, its) = hear(Policy::Latency, states);
            let (service, of_bytes) = hear(Policy::ServiceTime, states);
            let (historical, history) = hear(Policy::HistoricalServiceTime, states);
            let ask = |views: &[PathView], now_ns| {
                let request = crate::Request {
                    now_ns,
                    ..request(Group::Read, 8192)
                };
                let flying = &its.in_flight;
                assert_eq!(
                    latency.latency.choose(&request, views, &latency.in_flight),
                    its.others.least_latency(&request, views, flying)
                );
                assert_eq!(
                    service.service_time.choose(8192, views),
                    of_bytes.others.least_bytes(&request, views)
                );
                let mut copy = historical.historical.clone();
                assert_eq!(
                    copy.choose(now_ns, views, &historical.in_flight),
                    history.others.least_estimate(now_ns, views, flying),
                    "{states:?} {views:?}"
                );
            };
            every_table(|views| {
                if views.len() == count {
                    for now_ns in [900_000, 1_200_000, 2_000_000_000] {
                        ask(views, now_ns);
                    }
                }
            });
        });
    }
}

/// States of a path for `soonest`: nothing known, near, near and crowded, far, failed recently.
const KNOWN: usize = 5;

/// Every table × state of each path: it chooses a usable path whenever there is one, and if all are
/// known one of about least cost.
#[test]
fn soonest_in_every_state() {
    every_table(|views| {
        every_list(views.len(), KNOWN, |known| {
            let mut selector = Selector::new(views.len(), Policy::Soonest);
            teach(&mut selector, known);
            for group in Group::ALL {
                check_soonest(&mut selector.clone(), views, known, group);
            }
        });
    });
}

/// Brings each path into its state by I/Os that all go there.
fn teach(selector: &mut Selector, known: &[usize]) {
    for (path, &state) in known.iter().enumerate() {
        let mut views = std::vec![PathView { enabled: false, ..UP }; known.len()];
        views[path].enabled = true;
        for io in 0..[0, 2, 9, 2, 3][state] {
            let request = request(Group::Read, 4096);
            let at = selector.select(&request, &views).unwrap();
            assert_eq!(usize::from(at.0), path);
            let (ticket, crowded) = (selector.ticket(), state == 2 && io > 0);
            if crowded {
                continue;
            }
            let _ = selector.complete(&Completion {
                path: at,
                group: Group::Read,
                latency_ns: [0, 100_000, 100_000, 900_000, 100_000][state],
                ended: if io == 2 { Ended::Failed } else { Ended::Good },
                now_ns: 0,
                ticket,
                gap_ns: 0,
            });
        }
    }
}

fn check_soonest(selector: &mut Selector, views: &[PathView], known: &[usize], group: Group) {
    let usable = |path: usize| views[path].enabled && ANA[..2].contains(&views[path].ana);
    let request = request(group, 4096);
    let cost = |selector: &Selector, path: usize| {
        let index = PathIndex(path as u8);
        selector
            .forecast(&request, index, &views[path])
            .map(|it| it.cost_ns)
    };
    let costs: Vec<Option<u64>> = (0..views.len()).map(|path| cost(selector, path)).collect();
    let before = selector.in_flight;
    let chosen = selector
        .select(&request, views)
        .map(|path| usize::from(path.0));
    assert_eq!(chosen.is_some(), (0..views.len()).any(usable), "{views:?}");
    let Some(chosen) = chosen else {
        return;
    };
    assert!(usable(chosen));
    assert_eq!(selector.in_flight[chosen], before[chosen] + 1);
    let unknown = (0..views.len()).find(|&path| usable(path) && known[path] == 0);
    let least = (0..views.len())
        .filter(|&path| usable(path))
        .filter_map(|path| costs[path])
        .min();
    let about = |cost: u64| least.is_some_and(|least| cost <= least + least / 16);
    match unknown {
        Some(unknown) => assert_eq!(chosen, unknown),
        None => assert!(
            costs[chosen].is_some_and(about),
            "{chosen} {known:?} {costs:?}"
        ),
    }
}
