//! A path that was slow once, and therefore gets no I/O, is tried again.
use super::*;

const MS: u64 = 1_000_000;

/// T38: the first I/O on a path met a stall, so the path is believed to take that long. Trying
/// other paths may cost 1 in 128 of the time of I/Os, and 0.2 s saved pay for any try.
#[test]
fn t38_soonest_tries_a_path_again_however_slow_it_once_was() {
    for stall_ns in [50 * MS, 300 * MS, 1500 * MS, 5000 * MS] {
        let mut selector = Selector::new(2, Policy::Soonest);
        let (mut now_ns, mut spent_ns) = (MS, 0);
        let mut used = [0_u64; 2];
        while used[0] < 2 {
            let wanted = Request {
                now_ns,
                ..request(Group::Read, 4096)
            };
            let path = selector.select(&wanted, &[UP; 2]).unwrap().0;
            let times = &mut used[usize::from(path)];
            *times += 1;
            let latency_ns = match (path, *times) {
                (0, 1) => stall_ns,
                _ => MS,
            };
            now_ns += latency_ns;
            spent_ns += latency_ns;
            let owed_ns = 128 * stall_ns.min(200 * MS) + 1000 * MS;
            assert!(spent_ns < owed_ns + stall_ns, "{stall_ns}: {used:?}");
            let _ = selector.complete(&Completion {
                ticket: selector.ticket(),
                ..good(path, latency_ns, now_ns)
            });
        }
    }
}

/// T38: a third path is tried for less, and often enough to use up the savings; a path that was
/// idle for half a minute has its turn all the same.
#[test]
fn t38_soonest_tries_a_dear_path_again_beside_one_that_costs_little() {
    let mut selector = Selector::new(3, Policy::Soonest);
    let (mut now_ns, mut used) = (MS, [0_u64; 3]);
    while used[1] < 2 {
        let wanted = Request {
            now_ns,
            ..request(Group::Read, 4096)
        };
        let path = selector.select(&wanted, &[UP; 3]).unwrap().0;
        let times = &mut used[usize::from(path)];
        *times += 1;
        let latency_ns = match (path, *times) {
            (1, 1) => 1500 * MS,
            (2, _) => 6 * MS,
            _ => MS,
        };
        now_ns += latency_ns;
        // Idle for 30 s, then 128 times 0.2 s of I/Os.
        assert!(now_ns < 60_000 * MS, "{used:?}");
        let _ = selector.complete(&Completion {
            ticket: selector.ticket(),
            ..good(path, latency_ns, now_ns)
        });
    }
    assert!(used[2] > 8, "the third was hardly looked at: {used:?}");
}

/// T38: an I/O that is neither read nor write teaches nothing, so it is not sent to try a path:
/// that would spend the savings that a read needs.
#[test]
fn t38_soonest_looks_at_no_path_by_what_teaches_nothing() {
    let mut selector = Selector::new(2, Policy::Soonest);
    let mut now_ns = MS;
    let mut give = |selector: &mut Selector, group: Group, stalls: bool| {
        let wanted = Request {
            now_ns,
            ..request(group, 4096)
        };
        let path = selector.select(&wanted, &[UP; 2]).unwrap().0;
        let latency_ns = if stalls { 50 * MS } else { MS };
        now_ns += latency_ns;
        let _ = selector.complete(&Completion {
            group,
            ticket: selector.ticket(),
            ..good(path, latency_ns, now_ns)
        });
        path
    };
    assert_eq!(give(&mut selector, Group::Read, true), 0);
    for _ in 0..8 {
        assert_eq!(give(&mut selector, Group::Read, false), 1);
    }
    for _ in 0..20_000 {
        assert_eq!(give(&mut selector, Group::Other, false), 1);
    }
    // The time of that I/O is saved: the next read tries the path.
    assert_eq!(give(&mut selector, Group::Read, false), 0);
}
