//! Tables of the ownership's states, and of when a start is decided.
use super::*;
use crate::{Id, Label};

const MS: u64 = 1_000_000;
const WAIT_NS: u64 = 1000 * MS;

fn owner() -> Owner {
    Owner {
        run: Id([1; 16]),
        host: Id([2; 16]),
        label: Label::cut("a host"),
        since_s: 100,
        heartbeat_s: 0,
        bound_ms: 0,
    }
}

/// One of each state.
fn states() -> [(&'static str, State); 9] {
    [
        ("assembling", State::Assembling),
        (
            "refused",
            State::Refused {
                again_at_ns: 0,
                known: 0,
            },
        ),
        (
            "acquiring",
            State::Acquiring(Box::new(Acquire::new(owner(), &[], Reach::Here))),
        ),
        ("owned", State::Owned),
        ("read-only", State::ReadOnly),
        ("releasing", State::Releasing),
        ("abandoned", State::Abandoned),
        ("released", State::Released),
        ("lost", State::Lost(None)),
    ]
}

#[test]
fn each_edge_of_the_table_and_no_other() {
    let edges = [
        ("assembling", "refused acquiring"),
        ("refused", "assembling"),
        ("acquiring", "refused owned read-only"),
        ("owned", "releasing abandoned released lost"),
        ("read-only", "released"),
        ("releasing", "owned abandoned released lost"),
        ("abandoned", "lost"),
        ("released", ""),
        ("lost", ""),
    ];
    for ((from, before), (name, to)) in states().iter().zip(edges) {
        assert_eq!(*from, name);
        for (next_name, next) in &states() {
            let expected = to.split(' ').any(|it| it == *next_name);
            assert_eq!(is_edge(before, next), expected, "{from} to {next_name}");
        }
    }
}

#[test]
#[should_panic(expected = "from Assembling to Owned")]
fn a_mirror_that_was_not_acquired_does_not_run() {
    Ownership::new(owner(), WAIT_NS).begin(false, 0);
}

#[test]
fn t48_nothing_is_over_before_a_lease_or_the_owner_is() {
    let owned = || {
        let mut it = Ownership::acquired(owner());
        it.begin(false, 0);
        it
    };
    // An event that clears the record, and one that does not after all.
    let mut it = owned();
    it.set_releasing(true);
    assert!(!it.has_heartbeats() && !it.is_over());
    it.set_releasing(false);
    assert!(it.has_heartbeats());
    it.set_releasing(true);
    it.end();
    assert!(matches!(it.state(), State::Released) && !it.is_over());
    it.abandon(); // the record is cleared by then
    assert!(!it.is_abandoned());
    // A lease ends first: the record stays, whatever the last superblock does.
    let mut it = owned();
    it.set_releasing(true);
    it.abandon();
    it.end();
    assert!(it.is_abandoned() && it.is_over());
    // A heartbeat that was under way finds another owner.
    assert!(it.lose(Some(owner())) && !it.lose(None), "it is lost once");
    assert!(matches!(it.state(), State::Lost(Some(_))));
    it.end();
    assert!(it.is_lost());
}

#[test]
fn t09_the_record_has_the_longest_bound_and_the_time_since_the_start() {
    let mut it = Ownership::acquired(owner());
    it.begin(false, 5000 * MS);
    assert!(it.raise_bound(7) && !it.raise_bound(6));
    let terms = Terms {
        hold_until_ns: 9000 * MS,
        left_ms: 40,
        ..Terms::default()
    };
    let legs = Default::default();
    it.leases.begin(terms, u64::MAX, legs, 5000 * MS);
    let bound = |at_ms: u64| it.owner_at(at_ms * MS).bound_ms;
    assert_eq!((bound(8999), bound(9000)), (40, 7));
    assert_eq!(it.owner_at(8000 * MS).heartbeat_s, 103);
}

const fn leg(known: Known, reading: Reading) -> LegRead {
    LegRead { known, reading }
}

const THERE: LegRead = leg(Known::Yes, Reading::Due(0));
const OLD: LegRead = leg(Known::Outdated, Reading::Due(0));
const ABSENT: LegRead = leg(Known::No, Reading::Unreachable);
const NEW: LegRead = leg(Known::No, Reading::Due(0));
const ASKED: LegRead = leg(Known::No, Reading::Since(300 * MS));
const LATE: LegRead = leg(Known::No, Reading::Late);
const PAUSED: LegRead = leg(Known::No, Reading::Due(700 * MS));

#[test]
fn a_start_is_decided_when_no_leg_is_waited_for() {
    // Legs, the time in ms, whether a user forces it; whether it is decided, and the next time.
    type Row<'a> = (&'a [LegRead], u64, bool, bool, Option<u64>);
    let table: [Row<'_>; 9] = [
        (&[THERE, THERE], 0, false, true, Some(1000)),
        (&[THERE, ABSENT], 999, false, false, Some(1000)),
        (&[THERE, ABSENT], 1000, false, true, Some(1000)),
        (&[THERE, ABSENT], 1, true, true, Some(1000)),
        // One that was asked is waited for longer, also where it is forced.
        (&[THERE, ASKED], 1100, false, false, Some(1300)),
        (&[THERE, ASKED], 400, true, false, Some(1300)),
        (&[THERE, LATE], 1300, false, true, Some(1000)),
        (&[THERE, PAUSED], 600, false, false, Some(700)),
        (&[], 0, false, true, Some(1000)),
    ];
    for (at, (legs, now_ms, forced, decides, next_ms)) in table.into_iter().enumerate() {
        let mut it = Ownership::new(owner(), WAIT_NS);
        it.handle_turn(0, 0);
        if forced {
            it.force();
        }
        let next_ns = it.assembling_timeout(legs);
        assert_eq!(next_ns, next_ms.map(|ms| ms * MS), "row {at}");
        assert_eq!(it.decides(legs, now_ms * MS), decides, "row {at}");
    }
}

#[test]
fn legs_are_read_that_the_next_decision_needs() {
    let mut it = Ownership::new(owner(), WAIT_NS);
    it.handle_turn(0, 0);
    let wants = |it: &Ownership, now_ms: u64| {
        [THERE, OLD, ABSENT, NEW, ASKED, LATE, PAUSED].map(|leg| it.wants_read(leg, now_ms * MS))
    };
    let assembling = [false, true, false, true, false, false, false];
    assert_eq!(wants(&it, 699), assembling);
    assert!(it.wants_read(PAUSED, 700 * MS));
    // While a refused start pauses, those that were known are not read again.
    assert!(it.decides(&[THERE], 0));
    it.refuse(WAIT_NS, 0);
    let refused = [false, false, false, true, false, false, false];
    assert_eq!(wants(&it, 699), refused);
}

#[test]
fn a_refused_start_is_tried_again() {
    type Change = fn(&mut Ownership);
    // How many legs are known, the time in ms, and what a user does; whether that is a new try.
    let table: [(usize, u64, Change, bool); 6] = [
        (1, 9_999, |_| {}, false),
        (1, 10_000, |_| {}, true),
        (2, 1, |_| {}, true),
        (0, 1, |_| {}, true),
        (1, 1, Ownership::force, true),
        (1, 1, |it| it.try_again(0), true),
    ];
    for (at, (known, now_ms, change, again)) in table.into_iter().enumerate() {
        let mut it = Ownership::new(owner(), WAIT_NS);
        it.handle_turn(1, 0);
        assert!(it.decides(&[THERE], 0));
        it.refuse(10_000 * MS, 0);
        assert_eq!(it.assembling_timeout(&[OLD]), Some(10_000 * MS));
        assert!(!it.decides(&[THERE], 1), "once");
        change(&mut it);
        it.handle_turn(known, now_ms * MS);
        let assembling = matches!(it.state(), State::Assembling);
        assert_eq!(assembling, again, "row {at}");
        assert!(
            !it.decides(&[OLD], now_ms * MS),
            "row {at}: it is read first"
        );
        assert_eq!(it.decides(&[THERE], now_ms * MS), again, "row {at}");
    }
}

#[test]
fn a_start_that_another_host_prevents_waits_for_a_leg_or_the_user() {
    let mut it = Ownership::new(owner(), WAIT_NS);
    it.handle_turn(1, 0);
    assert!(it.decides(&[THERE], 0));
    it.refuse(u64::MAX, 0);
    it.handle_turn(1, u64::MAX - 1);
    assert!(matches!(it.state(), State::Refused { .. }));
    assert_eq!(it.assembling_timeout(&[OLD]), None);
}

#[test]
fn a_leg_is_counted_as_it_was_when_the_start_was_decided() {
    let mut it = Ownership::new(owner(), WAIT_NS);
    it.handle_turn(2, 0);
    assert!(it.decides(&[THERE, THERE], 0));
    it.acquire(0, &[], Reach::Here, false);
    // One could not be written meanwhile, which is reason enough for another try.
    it.refuse(u64::MAX, 0);
    it.handle_turn(1, 1);
    assert!(matches!(it.state(), State::Assembling));
}
