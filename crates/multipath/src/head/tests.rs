use super::{Head, Shown};
use crate::{Conflict, Identity, Namespace, Outcome, Size};
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use policy::{Ana, Basis, Explained, Group, Hedge, Knobs, PathIndex, Policy, Request, Ticket};

const KNOBS: Knobs = Knobs {
    ewma_shift: 3,
    weight_timeout_ns: 50_000_000,
    hedging: policy::Hedging::Auto,
};
const POLICIES: [Policy; 4] = [
    Policy::Numa,
    Policy::RoundRobin { bytes: 0 },
    Policy::QueueDepth,
    Policy::WEIGHTED_LATENCY,
];

pub(super) fn shown(controller: u16) -> Shown {
    Shown {
        identity: Identity::Namespace(Namespace {
            subsystem: String::from("nqn.2026-01.org.example:v0"),
            controller,
            nsid: 1,
            nguid: [1; 16],
            eui64: [0; 8],
            uuid: [0; 16],
            command_set: 0,
            shared: true,
        }),
        size: Size {
            blocks: 1000,
            block_shift: 12,
        },
        limits: IoLimits {
            transfer_max: 1 << 17,
            write_zeroes_max: 1 << 17,
            deallocate_max: 1 << 30,
            boundary: 0,
            optimal_write: 0,
            atomic_bytes: 4096,
            volatile_cache: false,
            read_only: false,
            write_zeroes: true,
            deallocate: true,
            deallocate_reads_zero: true,
            hole_bytes: 1 << 16,
        },
    }
}

pub(super) fn head(paths: u8, policy: Policy) -> Head {
    let mut head = Head::new((0..u32::from(paths)).map(|_| 10), policy, KNOBS);
    for path in 0..paths {
        head.admit(PathIndex(path), shown(u16::from(path) + 1))
            .unwrap();
        head.set_enabled(PathIndex(path), true);
    }
    head
}

pub(super) fn request(now_ns: u64) -> Request {
    Request {
        source: 0,
        group: Group::Read,
        length: 4096,
        address: 0,
        now_ns,
    }
}

#[test]
fn a_path_that_disagrees_with_any_other_is_named_and_left_out() {
    let mut head = Head::new([1, 1, 1], Policy::Numa, KNOBS);
    head.admit(PathIndex(0), shown(1)).unwrap();
    head.admit(PathIndex(1), shown(2)).unwrap();
    let refused = head.admit(PathIndex(2), shown(2)).unwrap_err();
    assert_eq!((refused.path, refused.other), (PathIndex(2), PathIndex(1)));
    assert_eq!(refused.why, Conflict::Controller(2));
    assert_eq!(head.admitted().count(), 2);
}

#[test]
fn t33_block_size_and_capacity_agree_or_the_path_is_refused() {
    let mut head = head(1, Policy::Numa);
    let mut other = shown(9);
    other.size.block_shift = 9;
    let mut two = Head::new([1, 1], Policy::Numa, KNOBS);
    two.admit(PathIndex(0), shown(1)).unwrap();
    let why = two.admit(PathIndex(1), other.clone()).unwrap_err().why;
    assert_eq!(why, Conflict::BlockSize(9, 12));
    assert_eq!(head.changed(PathIndex(0), other).unwrap_err().why, why);
    let mut other = shown(9);
    other.size.blocks = 999;
    assert_eq!(
        two.admit(PathIndex(1), other).unwrap_err().why,
        Conflict::Capacity(999, 1000)
    );
}

#[test]
fn t33_when_one_path_shows_other_blocks_none_is_used_before_it_was_read_again() {
    let mut head = head(3, Policy::Numa);
    let mut other = shown(1);
    other.size.block_shift = 9;
    let why = head.changed(PathIndex(0), other).unwrap_err().why;
    assert_eq!(why, Conflict::BlockSize(9, 12));
    head.lose(PathIndex(0));
    assert_eq!(head.select(&request(0)), None);
    assert!(head.is_stale(PathIndex(1)) && head.is_stale(PathIndex(2)));
    assert_eq!(head.changed(PathIndex(1), shown(2)), Ok(false));
    assert_eq!(head.select(&request(0)), Some(PathIndex(1)));
    assert!(head.is_stale(PathIndex(2)));
}

#[test]
fn t32_a_path_that_returns_is_checked_against_its_former_self() {
    let mut head = head(2, Policy::Numa);
    head.set_enabled(PathIndex(1), false);
    head.admit(PathIndex(1), shown(7)).unwrap();
    let mut other = shown(8);
    if let Identity::Namespace(namespace) = &mut other.identity {
        namespace.nguid = [9; 16];
    }
    assert!(matches!(
        head.admit(PathIndex(1), other).unwrap_err().why,
        Conflict::Nguid(..)
    ));
}

/// T31: users of the volume have data of the namespace that it was, though its only path has left.
#[test]
fn t31_a_volume_without_paths_does_not_become_another_namespace() {
    let mut head = head(1, Policy::Numa);
    head.forget(PathIndex(0));
    let mut other = shown(1);
    if let Identity::Namespace(namespace) = &mut other.identity {
        namespace.nguid = [9; 16];
    }
    let mut coarse = shown(1);
    coarse.size.block_shift += 1;
    for wrong in [other, coarse] {
        let refused = head.admit(PathIndex(0), wrong).unwrap_err();
        assert_eq!(refused.other, PathIndex(0));
        assert_eq!(head.admitted().count(), 0);
    }
    let mut grown = shown(2);
    grown.size.blocks *= 2;
    head.admit(PathIndex(0), grown).unwrap();
    // A path that was never enabled gave no client any data.
    let mut fresh = Head::new([10], Policy::Numa, KNOBS);
    let mut other = shown(1);
    other.size.block_shift += 1;
    fresh.admit(PathIndex(0), other).unwrap();
    fresh.forget(PathIndex(0));
    fresh.admit(PathIndex(0), shown(1)).unwrap();
}

#[test]
fn t34_limits_and_size_are_the_strictest_of_the_paths() {
    let mut head = Head::new([1, 1], Policy::Numa, KNOBS);
    assert_eq!((head.limits(), head.size()), (None, None));
    head.admit(PathIndex(0), shown(1)).unwrap();
    let mut second = shown(2);
    second.limits.transfer_max = 1 << 16;
    second.limits.volatile_cache = true;
    second.limits.deallocate_reads_zero = false;
    second.limits.hole_bytes = 0;
    head.admit(PathIndex(1), second).unwrap();
    let want = IoLimits {
        transfer_max: 1 << 16,
        volatile_cache: true,
        deallocate_reads_zero: false,
        hole_bytes: 0,
        ..shown(1).limits
    };
    assert_eq!(head.limits(), Some(want));
    assert_eq!(
        head.size(),
        Some(Size {
            blocks: 1000,
            block_shift: 12
        })
    );
}

#[test]
fn a11_a_new_capacity_forgets_what_was_learnt_of_that_path_only() {
    let mut head = head(2, Policy::WEIGHTED_LATENCY);
    for i in 0..200 {
        let path = head.select(&request(i)).unwrap();
        let ticket = head.ticket();
        head.complete(path, Group::Read, Outcome::Done, 1000, 1000 + i, ticket);
        head.turn();
    }
    let mut grown = shown(1);
    grown.size.blocks = 2000;
    head.changed(PathIndex(0), grown).unwrap();
    assert_eq!(head.stats(PathIndex(0), Group::Read).samples, 0);
    assert_ne!(head.stats(PathIndex(1), Group::Read).samples, 0);
    assert_eq!(head.size().unwrap().blocks, 1000);
}

/// A lost path may come back; one that has left, or was never admitted, is no other path.
#[test]
fn a2_a_path_that_is_left_alone_is_not_sampled() {
    let mut head = head(2, Policy::WEIGHTED_LATENCY);
    head.add(PathIndex(2), 10);
    let sampled = |head: &mut Head| {
        let before = head.stats(PathIndex(1), Group::Read).samples;
        let path = head.select(&request(1)).unwrap();
        let ticket = head.ticket();
        head.complete(path, Group::Read, Outcome::Done, 1000, 1, ticket);
        assert_eq!(path, PathIndex(1));
        head.stats(PathIndex(1), Group::Read).samples > before
    };
    head.lose(PathIndex(0));
    assert!(sampled(&mut head));
    head.forget(PathIndex(0));
    assert!(!sampled(&mut head));
    head.admit(PathIndex(2), shown(3)).unwrap();
    assert!(sampled(&mut head));
}

/// Every subset of three enabled paths, every policy: only enabled paths are chosen.
#[test]
fn errors_come_before_balance() {
    for policy in POLICIES {
        for enabled in 0..8u8 {
            let mut head = head(3, policy);
            for path in 0..3 {
                head.set_enabled(PathIndex(path), enabled >> path & 1 == 1);
            }
            let chosen: Vec<_> = (0..9).map(|i| head.select(&request(i))).collect();
            for path in chosen {
                match path {
                    Some(PathIndex(path)) => assert_eq!(enabled >> path & 1, 1),
                    None => assert_eq!(enabled, 0),
                }
            }
        }
    }
}

#[test]
fn ana_states_that_forbid_io_are_respected() {
    for policy in POLICIES {
        let mut head = head(2, policy);
        for forbidden in [Ana::Inaccessible, Ana::PersistentLoss, Ana::Change] {
            head.set_ana(PathIndex(0), forbidden);
            assert_eq!(
                head.select(&request(1)),
                Some(PathIndex(1)),
                "{policy:?} {forbidden:?}"
            );
        }
    }
}

#[test]
fn t41_in_flight_counts_balance_across_switches_and_losses() {
    let mut head = head(2, Policy::QueueDepth);
    let mut held = Vec::new();
    for (i, policy) in POLICIES.into_iter().cycle().take(40).enumerate() {
        head.set_policy(policy, KNOBS).unwrap();
        if i == 20 {
            head.set_enabled(PathIndex(0), false);
        }
        held.push(head.select(&request(i as u64)).unwrap());
    }
    let counts = [0, 1].map(|p| head.in_flight(PathIndex(p)));
    assert_eq!(counts.iter().sum::<u32>(), 40);
    for path in held {
        head.complete(
            path,
            Group::Read,
            Outcome::PathError,
            10,
            100,
            Ticket::default(),
        );
    }
    assert_eq!([0, 1].map(|p| head.in_flight(PathIndex(p))), [0, 0]);
}

#[test]
fn t43_failures_are_no_samples() {
    let mut head = head(2, Policy::WEIGHTED_LATENCY);
    for i in 0..10 {
        let path = head.select(&request(i)).unwrap();
        head.complete(
            path,
            Group::Read,
            Outcome::PathError,
            1,
            i,
            Ticket::default(),
        );
    }
    for path in [0, 1] {
        assert_eq!(head.stats(PathIndex(path), Group::Read).samples, 0);
    }
}

#[test]
fn t47_what_other_cores_have_in_flight_counts() {
    let mut head = head(2, Policy::QueueDepth);
    head.set_elsewhere(PathIndex(0), 5);
    for i in 0..4 {
        assert_eq!(head.select(&request(i)), Some(PathIndex(1)));
    }
}

#[test]
fn a08_knobs_out_of_range_change_nothing() {
    let mut head = head(2, Policy::Numa);
    let wild = Knobs {
        ewma_shift: 9,
        ..KNOBS
    };
    assert!(head.set_policy(Policy::QueueDepth, wild).is_err());
    assert_eq!(head.policy(), Policy::Numa);
}

#[test]
fn a02_a_stall_is_reported_once() {
    let mut head = head(2, Policy::WEIGHTED_LATENCY);
    let warned = [0, 1].map(|_| {
        let path = head.select(&request(0)).unwrap();
        let ticket = head.ticket();
        head.complete(
            path,
            Group::Read,
            Outcome::Done,
            2_000_000_000,
            2_000_000_000,
            ticket,
        )
    });
    assert_eq!(warned, [true, false]);
}

#[test]
#[should_panic(expected = "enabled before admitted")]
fn a_path_that_was_not_checked_can_not_be_used() {
    Head::new([1], Policy::Numa, KNOBS).set_enabled(PathIndex(0), true);
}

/// The paths that an I/O may get now.
fn usable(head: &mut Head) -> Vec<u8> {
    let mut paths: Vec<u8> = (0..8)
        .filter_map(|_| {
            let path = head.select(&request(0))?;
            head.complete(path, Group::Read, Outcome::Done, 1, 0, Ticket::default());
            Some(path.0)
        })
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[test]
fn t44_strict_leaves_non_optimized_paths_alone_while_an_optimized_one_is_usable() {
    for policy in POLICIES {
        let mut head = head(3, policy);
        head.set_ana(PathIndex(1), Ana::NonOptimized);
        head.set_ana(PathIndex(2), Ana::NonOptimized);
        head.set_ana_use(Some(super::AnaUse::Strict));
        assert_eq!(usable(&mut head), [0], "{policy:?}");
        head.set_pending(PathIndex(0), true);
        assert!(
            !usable(&mut head).contains(&0),
            "T26: its state is in doubt"
        );
        assert!(!usable(&mut head).is_empty(), "{policy:?}");
        head.set_ana(PathIndex(0), Ana::Optimized);
        assert_eq!(usable(&mut head), [0], "{policy:?}");
        head.lose(PathIndex(0));
        assert!(!usable(&mut head).is_empty(), "{policy:?}");
        assert!(head.is_usable());
    }
    assert_eq!(
        super::AnaUse::by_default(Policy::Numa),
        super::AnaUse::Strict
    );
    let weighted = super::AnaUse::by_default(Policy::WEIGHTED_LATENCY);
    assert_eq!(weighted, super::AnaUse::Merge);
}

#[test]
fn t32_a_controller_number_that_a_lost_path_had_may_be_in_use_again() {
    let mut head = head(2, Policy::Numa);
    let taken = head.admit(PathIndex(0), shown(2)).unwrap_err();
    assert_eq!(taken.why, Conflict::Controller(2));
    head.lose(PathIndex(0));
    head.lose(PathIndex(1));
    assert_eq!(head.admit(PathIndex(0), shown(2)), Ok(()));
    let stolen = head.admit(PathIndex(1), shown(2)).unwrap_err();
    assert_eq!(stolen.why, Conflict::Controller(2));
    let mut grown = shown(3);
    grown.size.blocks += 1;
    let refused = head.admit(PathIndex(1), grown).unwrap_err();
    assert_eq!(refused.why, Conflict::Capacity(1001, 1000), "T33");
}

#[test]
fn t41_a_choice_among_some_is_balanced_and_leaves_the_others_as_they_were() {
    let mut head = head(3, Policy::RoundRobin { bytes: 0 });
    let only = head.select_among(&request(0), |path| path == PathIndex(2), None);
    assert_eq!(
        (only, head.in_flight(PathIndex(2))),
        (Some(PathIndex(2)), 1)
    );
    head.complete(
        PathIndex(2),
        Group::Read,
        Outcome::PathError,
        1,
        0,
        Ticket::default(),
    );
    assert_eq!(head.select_among(&request(0), |_| false, None), None);
    assert_eq!(usable(&mut head), [0, 1, 2]);
    assert_eq!(head.in_flight(PathIndex(2)), 0);
}

/// World 5009709: with a flush of all paths between any two, one path had all I/Os.
#[test]
fn a01_flushes_that_go_to_each_path_leave_the_turn_of_others_as_it_was() {
    let mut head = head(3, Policy::RoundRobin { bytes: 0 });
    let turns = (0..6).map(|_| {
        for path in (0..3).map(PathIndex) {
            assert_eq!(head.select_only(&request(0), path), Some(path));
        }
        head.select(&request(0)).unwrap().0
    });
    assert_eq!(turns.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn t38_a_path_that_comes_in_anothers_place_begins_anew() {
    for policy in POLICIES {
        let mut head = head(2, policy);
        let spend = |head: &mut Head, count: u64| {
            (0..count).for_each(|at| {
                let path = head.select(&request(at)).unwrap();
                head.complete(
                    path,
                    Group::Read,
                    Outcome::Done,
                    1000 + at,
                    at,
                    Ticket::default(),
                );
                head.turn();
            });
        };
        spend(&mut head, 100);
        head.set_draining(PathIndex(0), true);
        assert!(head.is_usable_beside(PathIndex(0)) && !head.is_usable_beside(PathIndex(1)));
        let before = head.stats(PathIndex(0), Group::Read).selections;
        spend(&mut head, 100);
        assert_eq!(
            head.stats(PathIndex(0), Group::Read).selections,
            before,
            "{policy}: it gets nothing new"
        );
        assert_eq!(
            head.select_only(&request(0), PathIndex(0)),
            Some(PathIndex(0))
        );
        head.complete(
            PathIndex(0),
            Group::Read,
            Outcome::Done,
            1,
            1,
            Ticket::default(),
        );
        head.lose(PathIndex(0));
        head.forget(PathIndex(0));
        assert_eq!(head.admitted().count(), 1);
        head.add(PathIndex(0), 5);
        head.add(PathIndex(2), 5);
        assert_eq!(head.stats(PathIndex(0), Group::Read).selections, 0);
        for path in [0, 2] {
            head.admit(PathIndex(path), shown(u16::from(path) + 10))
                .unwrap();
            head.set_enabled(PathIndex(path), true);
        }
        spend(&mut head, 300);
        assert!(head.is_usable() && (0..3).all(|path| head.in_flight(PathIndex(path)) == 0));
    }
}

/// An end that was noticed late says less about its path than the clock.
#[test]
fn a_late_look_teaches_soonest_no_distance() {
    let base_ns = |gap_ns| {
        let mut head = head(1, Policy::Soonest);
        for (n, latency_ns) in (0_u64..).zip([100_000, 900_000, 900_000, 900_000]) {
            let path = head.select(&request(n)).unwrap();
            let ticket = head.ticket();
            head.set_gap(if n == 0 { 0 } else { gap_ns });
            let now_ns = 1_000_000 * (n + 1);
            head.complete(path, Group::Read, Outcome::Done, latency_ns, now_ns, ticket);
        }
        let mut why = Explained::new();
        head.select_among(&request(9), |_| true, Some(&mut why));
        match why.looks()[0].basis {
            Basis::Forecast(forecast) => forecast.base_ns,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(base_ns(800_000), 100_000);
    assert!(base_ns(0) > 150_000, "{}", base_ns(0));
}

/// T41, T44: a copy goes where I/O may go, and both it and the first are balanced.
#[test]
fn t41_a_copy_of_a_late_read_goes_to_a_path_that_may_be_used_and_is_balanced() {
    const LATE_NS: u64 = 50_000_000;
    let end = |head: &mut Head, path, ticket, now_ns| {
        head.complete(path, Group::Read, Outcome::Done, 100_000, now_ns, ticket);
    };
    let mut head = head(3, Policy::Soonest);
    let mut now_ns = 0;
    for _ in 0..3000 {
        let path = head.select(&request(now_ns)).unwrap();
        now_ns += 100_000;
        let ticket = head.ticket();
        end(&mut head, path, ticket, now_ns);
    }
    let path = head.select(&request(now_ns)).unwrap();
    let ticket = head.ticket();
    let after_ns = head.look_after_ns(path, &ticket).unwrap();
    assert!((200_000..300_000).contains(&after_ns), "{after_ns}");
    let late = request(now_ns + LATE_NS);
    let other = PathIndex(if path.0 == 0 { 1 } else { 0 });
    let third = PathIndex(3 - path.0 - other.0);
    head.set_ana(other, Ana::NonOptimized);
    let none = head.hedge_among(&late, path, &ticket, LATE_NS, |it| it != third);
    assert_eq!(none, Hedge::Again(LATE_NS / 2), "strict, and not allowed");
    let copy = head.hedge(&late, path, &ticket, LATE_NS);
    assert_eq!(copy, Hedge::Send(third));
    let counts = [0, 1, 2].map(|path| head.in_flight(PathIndex(path)));
    assert_eq!(counts.iter().sum::<u32>(), 2);
    let copy = head.ticket();
    end(&mut head, third, copy, now_ns + LATE_NS);
    end(&mut head, path, ticket, now_ns + LATE_NS);
    assert!((0..3).all(|path| head.in_flight(PathIndex(path)) == 0));
}
