//! Tables of one leg's heartbeats and its lease.
use super::*;

const INTERVAL: u64 = 1000;
const LEG: u8 = 3;
const BOTH: Legs = Legs(1 << LEG | 1 << 5);

/// Leases of two legs that other hosts reach, acquired by a record that was written from 0 to 10.
fn leases() -> Leases {
    let mut it = Leases::default();
    let terms = Terms {
        written_ns: Some((0, 10)),
        ..Terms::default()
    };
    it.begin(terms, INTERVAL, BOTH, 10);
    it
}

/// A heartbeat that begins at `asked_ns`, writes from `written_ns` on and ends at `done_ns`.
fn heartbeat(it: &mut Leases, (asked_ns, written_ns, done_ns): (u64, u64, u64)) -> Renewal {
    let heartbeat = &mut it.leg_mut(LEG).heartbeat;
    assert_eq!(*heartbeat, Heartbeat::Idle);
    *heartbeat = Heartbeat::Reading;
    it.leg_mut(LEG).asked_ns = asked_ns;
    assert!(it.heartbeat_read(LEG, false, (7, 0), written_ns));
    let ended = it.end_heartbeat(LEG);
    let Heartbeat::Writing { since_ns, .. } = ended else {
        panic!("{ended:?}");
    };
    it.renew(LEG, (asked_ns, since_ns), BOTH, done_ns)
}

#[test]
fn t48_a_lapsed_lease_is_renewed_by_the_second_of_two_heartbeats() {
    // When the second heartbeat asks, writes and ends: the record stood from 10 on.
    let table = [
        ((1010, 1020, 1030), Renewal::Renewed),
        // It began before the first had stood for an interval.
        ((1009, 1020, 1030), Renewal::First),
        // The first one's lease, which began with it, is over: at 2 intervals.
        ((1010, 1020, 1999), Renewal::Renewed),
        ((1010, 1020, 2000), Renewal::First),
    ];
    for (times, renewal) in table {
        let mut it = leases();
        assert!(it.stands_still(BOTH) && it.lapsed() == BOTH);
        assert_eq!(heartbeat(&mut it, times), renewal, "{times:?}");
        let renewed = renewal == Renewal::Renewed;
        assert_eq!(it.lapsed().has(LEG), !renewed, "{times:?}");
        let until_ns = if renewed { times.0 + 2 * INTERVAL } else { 0 };
        assert_eq!(it.until_ns(LEG), until_ns, "{times:?}");
    }
}

#[test]
fn t48_the_next_pair_begins_with_when_the_first_record_was_written() {
    let mut it = leases();
    assert_eq!(heartbeat(&mut it, (3000, 3500, 3600)), Renewal::First);
    assert_eq!(it.due_at(Legs::one(LEG)), 3600 + INTERVAL);
    assert_eq!(heartbeat(&mut it, (4600, 4700, 5499)), Renewal::Renewed);
    assert_eq!(heartbeat(&mut it, (5600, 5700, 5800)), Renewal::Extended);
    assert_eq!(it.until_ns(LEG), 5600 + 2 * INTERVAL);
}

#[test]
fn t48_a_lease_ends_two_intervals_after_its_last_heartbeat_began() {
    let mut it = leases();
    heartbeat(&mut it, (1010, 1020, 1030));
    it.find_end(BOTH);
    assert_eq!(it.end_ns(), 3010);
    assert_eq!(it.expire(BOTH, 3009), Legs::default());
    assert_eq!(it.expire(BOTH, 3010), Legs::one(LEG));
    assert!(it.stands_still(BOTH) && it.end_ns() == u64::MAX);
}

#[test]
fn a_heartbeat_and_the_superblock_of_an_event_are_never_written_together() {
    let mut it = leases();
    it.forget_lapse(LEG);
    it.forget_lapse(5);
    assert!(it.begin_heartbeat(LEG, 10) && !it.begin_heartbeat(LEG, 10));
    // While it reads an event may be written, which stands for it.
    assert!(!it.blocks_event(LEG, BOTH));
    it.begin_event(LEG, 20);
    assert!(!it.heartbeat_read(LEG, false, (7, 0), 30));
    assert!(!it.begin_heartbeat(LEG, 5000), "the event is under way");
    assert_eq!(it.end_event(LEG, true, 40), Some(10), "as of its read");
    assert_eq!(it.end_event(LEG, true, 40), None, "it ends once");
    assert!(it.begin_heartbeat(LEG, 10 + INTERVAL));
    assert!(it.heartbeat_read(LEG, false, (8, 0), 1020));
    assert!(it.blocks_event(LEG, BOTH));
}

#[test]
#[should_panic(expected = "its heartbeat is written")]
fn an_event_over_a_heartbeat_is_a_broken_invariant() {
    let mut it = leases();
    it.begin_heartbeat(LEG, 10);
    it.heartbeat_read(LEG, false, (7, 0), 20);
    it.begin_event(LEG, 30);
}

#[test]
fn the_first_event_of_a_leg_is_its_first_heartbeat() {
    let mut it = leases();
    it.forget(LEG);
    it.begin_return(LEG, 50);
    it.found(LEG);
    assert_eq!(it.until_ns(LEG), 50 + 2 * INTERVAL);
    it.begin_event(LEG, 60);
    assert_eq!(it.end_event(LEG, false, 70), None, "it has failed");
    it.begin_event(LEG, 80);
    assert_eq!(it.end_event(LEG, true, 90), Some(80));
    assert_eq!(it.due_at(Legs::one(LEG)), 90 + INTERVAL);
}

#[test]
fn t48_a_contender_is_watched_as_long_as_the_others_were() {
    let owner = Owner {
        run: Id([9; 16]),
        host: Id([9; 16]),
        label: Label::cut("another"),
        since_s: 0,
        heartbeat_s: 0,
        bound_ms: 0,
    };
    let other = Some(owner);
    let until = 100 + 3 * INTERVAL;
    // The owner on the leg, its sequence and the time, one after the other.
    let table = [
        (other, 5, 100, Watch::Until(until)),
        (other, 5, until - 1, Watch::Until(until)),
        (other, 6, until - 1, Watch::Lives(owner.label)),
        (other, 6, until, Watch::Until(until - 1 + 3 * INTERVAL)),
        (None, 7, until, Watch::Free),
        (other, 7, 9000, Watch::Until(9000 + 3 * INTERVAL)),
        (other, 7, 9000 + 3 * INTERVAL, Watch::Free),
    ];
    let mut it = leases();
    for (at, (other, sequence, now_ns, watch)) in table.into_iter().enumerate() {
        assert_eq!(it.watch(LEG, other, sequence, now_ns), watch, "row {at}");
    }
    assert_eq!(
        Leases::default().watch(LEG, other, 1, 0),
        Watch::Free,
        "locks"
    );
}

#[test]
fn how_a_heartbeat_failed_is_known_until_all_that_waits_has_heard_of_it() {
    let mut it = leases();
    assert!(it.set_failed(LEG, Outcome::TimedOut));
    assert_eq!(it.failed(LEG), Some(Outcome::TimedOut));
    it.settle(Legs::one(LEG));
    assert_eq!((it.failed(LEG), it.lapsed()), (None, Legs::one(LEG)));
    it.forget_lapse(LEG);
    assert!(!it.set_failed(LEG, Outcome::TimedOut) && it.failed(LEG).is_none());
}
