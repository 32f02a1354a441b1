//! Callers supply the time. If it goes back, or far ahead, that is their defect; a policy still
//! makes a choice.
use super::*;
use crate::Aggregate;

const POLICIES: [Policy; 10] = [
    Policy::Numa,
    Policy::RoundRobin { bytes: 16384 },
    Policy::QueueDepth,
    PER_CPU,
    Policy::WeightedLatency(Aggregate {
        per_numa: true,
        buckets: true,
    }),
    Policy::Soonest,
    Policy::Pid,
    Policy::Latency,
    Policy::ServiceTime,
    Policy::HistoricalServiceTime,
];
const MOMENTS: [u64; 8] = [
    0,
    1,
    1_000,
    1_000_000_000,
    3_600_000_000_000,
    u64::MAX / 2,
    u64::MAX - 1,
    u64::MAX,
];

#[test]
fn t42_a_clock_that_jumps_breaks_no_policy_and_no_count() {
    for policy in POLICIES {
        let mut selector = Selector::new(3, policy);
        let mut random = 7_u64;
        let mut below = |n: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize % n
        };
        let mut out = Vec::new();
        for _ in 0..2000 {
            let now_ns = MOMENTS[below(MOMENTS.len())];
            if below(2) == 0 && out.len() < 64 {
                let request = Request {
                    now_ns,
                    ..request(Group::Read, 4096)
                };
                let path = selector.select(&request, &[UP; 3]).unwrap();
                out.push((path.0, selector.ticket()));
            } else if !out.is_empty() {
                let (path, ticket) = out.swap_remove(below(out.len()));
                let latency_ns = MOMENTS[below(MOMENTS.len())];
                let ended = [Ended::Good, Ended::Failed, Ended::Dropped][below(3)];
                let _ = selector.complete(&Completion {
                    ended,
                    ticket,
                    ..good(path, latency_ns, now_ns)
                });
                selector.weigh();
            }
        }
        for (path, ticket) in out {
            let _ = selector.complete(&Completion {
                ticket,
                ..good(path, 1000, 1000)
            });
        }
        for path in 0..3 {
            assert_eq!(selector.in_flight(PathIndex(path)), 0, "{policy}");
        }
    }
}
