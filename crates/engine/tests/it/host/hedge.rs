//! A late read gets a second copy: it ends once, with the right bytes, and nothing is ever written
//! into a buffer that its caller has back (T10).

use crate::common::hedge::*;
use crate::common::*;
use engine::Span;
use engine::host::{Change, HedgeStats, HostControl, HostEvent, IoOp, PathState};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use multipath::Outcome;
use multipath::health::Limits;
use nvme::wire::Status;
use policy::{Hedging, Knobs, PathIndex, Policy};

#[test]
fn a_read_on_a_path_that_stalls_ends_by_its_copy() {
    let mut rig = hedging_rig();
    let (before, now_ns) = (stats(&rig), rig.world.now_ns);
    beaten(&mut rig);
    // The first is found when the core looks for it without knowing what late is.
    assert!(rig.world.now_ns - now_ns < 4 * MS, "looked late");
    rig.world.pass(2 * STALL_NS);
    let HedgeStats { gained_ns, .. } = stats(&rig);
    assert!(
        (STALL_NS - 4 * MS..STALL_NS).contains(&gained_ns),
        "{gained_ns}"
    );
    let want = HedgeStats {
        looked: before.looked + 1,
        sent: 1,
        won: 1,
        gained_ns,
        ..before
    };
    assert_eq!(stats(&rig), want);
    untouched(&mut rig);
    all_is_back(&rig);
    assert_eq!(rig.host.borrow().counters(0, P1).copies, 1);
}

#[test]
fn t10_a_loser_whose_connection_dies_writes_nowhere_either() {
    let mut rig = hedging_rig();
    beaten(&mut rig);
    rig.world.cut_queue(HOST, 0);
    until_returned(&mut rig, 10 * SECOND);
    rig.world.pass(2 * STALL_NS);
    untouched(&mut rig);
    all_is_back(&rig);
}

#[test]
fn t12_a_loser_that_is_never_answered_is_aborted_or_has_its_path_given_up() {
    for mute in [false, true] {
        let mut rig = hedging_rig_with(|host, _| host.io_timeout_ns = 3 * SECOND);
        beaten(&mut rig);
        stall(&mut rig, 0, 4 * SECOND);
        if mute {
            rig.world.mute_queue(HOST, 0);
        }
        rig.world.pass(20 * SECOND);
        rig.poll();
        let lost = usize::from(mute);
        assert_eq!(rig.failures().len(), lost, "{:?}", rig.failures());
        let counters = rig.host.borrow().counters(0, P0);
        assert_eq!(
            (counters.timed_out, counters.aborted),
            (1, u64::from(!mute))
        );
        assert_eq!(state(&rig, P0), PathState::Live);
        untouched(&mut rig);
        all_is_back(&rig);
    }
}

/// Its end is nobody's: then the shorter path takes as good as all again.
#[test]
fn t43_a_loser_that_is_taken_back_is_not_held_against_its_path() {
    let mut rig = hedging_rig_with(|host, _| host.io_timeout_ns = 3 * SECOND);
    let hang = Faults {
        hang_rate: Probability::ALWAYS,
        ..Faults::default()
    };
    rig.target_control(TargetControl::Faults(0, hang));
    rig.submit(&read(5, 0)).unwrap();
    assert!(rig.run(20 * MS, |_, done| done.len() == 1), "no copy");
    rig.done.clear();
    rig.target_control(TargetControl::Faults(0, Faults::default()));
    let (mut after, mut there) = (0, 0);
    while after < 50 {
        let done = rig.one(&read(7, 1), SECOND);
        if rig.host.borrow().counters(0, P0).aborted == 1 {
            after += 1;
            there += u32::from(done.path == P0);
        }
    }
    assert!(there > 40, "{there} of 50");
    all_is_back(&rig);
}

/// The path did not answer it, whoever else did.
#[test]
fn t43_a_loser_that_is_taken_back_counts_for_the_health_of_its_path_once() {
    let mut rig = hedging_rig_with(|host, _| {
        host.io_timeout_ns = 3 * SECOND;
        host.volumes[0].recovery.health = Limits {
            errors_permille: 10,
            ..Limits::OFF
        };
    });
    let hang = Faults {
        hang_rate: Probability::ALWAYS,
        ..Faults::default()
    };
    rig.target_control(TargetControl::Faults(0, hang));
    for _ in 0..40 {
        rig.one(&read(5, 0), SECOND);
        rig.world.pass(4 * SECOND);
        let host = rig.host.borrow();
        let counters = host.counters(0, P0);
        let once = (counters.errors, counters.timed_out);
        assert_eq!(once, (counters.aborted, counters.aborted));
        // Four in a row are too many.
        let on_probation = host.path_report(0, P0, 0).health.probation.is_some();
        assert_eq!(on_probation, counters.aborted == 4);
        if on_probation {
            return;
        }
    }
    panic!("the path was not chosen four times");
}

#[test]
fn the_first_may_still_win() {
    let mut rig = hedging_rig();
    stall(&mut rig, 0, 5 * MS);
    stall(&mut rig, 1, 50 * MS);
    let done = rig.one(&read(9, 0), SECOND);
    assert_eq!((done.outcome, done.path), (Outcome::Done, P0));
    assert!(holds(&mut rig, 0, 9, 4096));
    buffer(&mut rig, 0, 4096).fill(0xee);
    rig.world.pass(SECOND);
    untouched(&mut rig);
    let HedgeStats {
        sent,
        won,
        lost,
        gained_ns,
        ..
    } = stats(&rig);
    assert_eq!((sent, won, lost, gained_ns), (1, 0, 1, 0));
    all_is_back(&rig);
}

#[test]
fn if_one_copy_fails_the_other_goes_on() {
    for failing in [0, 1] {
        let mut rig = hedging_rig();
        // The one that fails ends first.
        let (stalls, path) = [([5, 20], P1), ([20, 2], P0)][failing];
        for port in [0, 1] {
            stall(&mut rig, port, stalls[usize::from(port)] * MS);
        }
        fail_reads(&mut rig, failing as u16, PATH_ERROR);
        let done = rig.one(&read(9, 0), SECOND);
        assert_eq!((done.outcome, done.path), (Outcome::Done, path));
        assert!((19 * MS..21 * MS).contains(&done.latency_ns), "{done:?}");
        assert!(holds(&mut rig, 0, 9, 4096));
        let HedgeStats {
            sent,
            won,
            lost,
            failed,
            rescued,
            ..
        } = stats(&rig);
        let ends = (won, lost, failed, rescued);
        let want = [(0, 0, 0, 1), (0, 0, 1, 0)][failing];
        assert_eq!((sent, ends), (1, want));
        rig.world.pass(SECOND);
        all_is_back(&rig);
    }
}

#[test]
fn t02_if_both_copies_fail_the_read_fails_as_one() {
    let statuses = [
        (Status::new(2, 0x81), Outcome::MediaError),
        (PATH_ERROR, Outcome::PathError),
    ];
    for (status, outcome) in statuses {
        let mut rig = hedging_rig();
        for port in [0, 1] {
            stall(&mut rig, port, 5 * MS);
            fail_reads(&mut rig, port, status);
        }
        let done = rig.one(&read(9, 0), 60 * SECOND);
        assert_eq!(done.outcome, outcome);
        assert!(stats(&rig).sent > 0);
        rig.world.pass(10 * SECOND);
        rig.poll();
        assert!(rig.done.is_empty(), "ended twice");
        all_is_back(&rig);
    }
}

#[test]
fn a_stop_does_not_wait_for_a_loser() {
    let mut rig = hedging_rig();
    beaten(&mut rig);
    let now_ns = rig.world.now_ns;
    rig.control(HostControl::Stop);
    let stopped = rig
        .world
        .run(20 * SECOND, |world| world.nodes[HOST].stopped);
    assert!(stopped);
    assert!(rig.world.now_ns - now_ns < 100 * MS);
    untouched(&mut rig);
    all_is_back(&rig);
}

#[test]
fn a_read_with_two_copies_counts_once_when_the_time_to_drain_is_over() {
    let mut rig = hedging_rig();
    for port in [0, 1] {
        stall(&mut rig, port, STALL_NS);
    }
    rig.submit(&read(5, 0)).unwrap();
    rig.world.pass(20 * MS);
    assert_eq!(stats(&rig).sent, 1);
    rig.control(HostControl::Drain(10 * MS));
    rig.control(HostControl::Stop);
    assert!(
        rig.world
            .run(20 * SECOND, |world| world.nodes[HOST].stopped)
    );
    rig.poll();
    let outcomes: Vec<_> = rig.done.iter().map(|done| done.outcome).collect();
    assert_eq!(outcomes, [Outcome::Stopped]);
    let unfinished = |event: &&HostEvent| matches!(event, HostEvent::Unfinished { .. });
    let unfinished: Vec<_> = rig.events.iter().filter(unfinished).collect();
    assert!(
        matches!(
            unfinished[..],
            [HostEvent::Unfinished {
                changes: 0,
                others: 1,
                ..
            }]
        ),
        "{unfinished:?}"
    );
    all_is_back(&rig);
}

#[test]
fn t41_counts_balance_when_the_policy_changes_under_a_pair() {
    for beaten_before in [true, false] {
        let mut rig = hedging_rig();
        pair(&mut rig, beaten_before);
        let policy = Policy::QueueDepth;
        rig.control(HostControl::Policy(0, policy, Knobs::default()));
        rig.world.pass(2 * STALL_NS);
        rig.poll();
        assert_eq!(rig.done.len(), usize::from(!beaten_before));
        all_is_back(&rig);
    }
}

#[test]
fn either_path_of_a_pair_can_fail_drain_and_leave() {
    let changes: [fn(PathIndex) -> Change; 3] = [
        |path| Change::FailPath(0, path, false),
        |path| Change::DrainPath(0, path, false),
        |path| Change::RemovePath {
            volume: 0,
            path,
            force: false,
        },
    ];
    for (change, path) in (0..6).map(|n| (changes[n / 2], [P0, P1][n % 2])) {
        for over in [true, false] {
            let mut rig = hedging_rig();
            pair(&mut rig, over);
            let change = change(path);
            let name = format!("{change:?}, over: {over}");
            rig.control(HostControl::Change {
                ticket: 1,
                change,
                wait_ns: 10 * SECOND,
            });
            rig.world.pass(5 * SECOND);
            rig.poll();
            let made = |event: &HostEvent| matches!(event, HostEvent::Changed(1, Ok(_)));
            assert!(rig.events.iter().any(made), "{name}: {:?}", rig.events);
            if !over {
                assert_eq!(rig.done.len(), 1, "{name}");
                assert_eq!(rig.done[0].outcome, Outcome::Done, "{name}");
                assert!(holds(&mut rig, 0, 5, 4096), "{name}");
            }
            let scratch = rig.host.borrow().scratch_free();
            assert_eq!(scratch, u64::from(SCRATCH.len), "{name}");
        }
    }
}

#[test]
fn a_volume_leaves_after_its_losers() {
    let mut rig = hedging_rig();
    beaten(&mut rig);
    rig.control(HostControl::Change {
        ticket: 1,
        change: Change::RemoveVolume(0),
        wait_ns: 10 * SECOND,
    });
    rig.world.pass(5 * SECOND);
    rig.poll();
    let gone = |event: &HostEvent| matches!(event, HostEvent::Removed(0));
    assert!(rig.events.iter().any(gone), "{:?}", rig.events);
    untouched(&mut rig);
    let scratch = rig.host.borrow().scratch_free();
    assert_eq!(scratch, u64::from(SCRATCH.len));
}

#[test]
fn t08_only_reads_are_hedged() {
    let mut rig = hedging_rig();
    stall(&mut rig, 0, 50 * MS);
    stall(&mut rig, 1, 50 * MS);
    let span = read(0, 0).span;
    for (op, slot) in [
        (IoOp::Write { fua: false }, 0),
        (IoOp::Write { fua: true }, 1),
        (IoOp::WriteZeroes { deallocate: false }, 2),
        (IoOp::Deallocate, 3),
        (IoOp::Flush, 4),
    ] {
        let mut io = io(op, slot << 20, BLOCK, slot);
        if !matches!(op, IoOp::Write { .. }) {
            io.span = Span { len: 0, ..span };
        }
        rig.submit(&io).unwrap();
    }
    let before = stats(&rig);
    assert!(rig.run(SECOND, |_, done| done.len() == 5));
    assert!(rig.done.iter().all(|done| done.outcome.is_done()));
    assert_eq!(stats(&rig), before);
    all_is_back(&rig);
}

#[test]
fn t06_without_memory_or_slots_there_is_no_copy_and_nothing_fails() {
    // None at all; too little for two; enough for some.
    for (len, sent) in [(0, 0), (4096, 0), (8192, 1), (1 << 20, 1)] {
        let scratch = Span { len, ..SCRATCH };
        let mut rig = hedging_rig_with(|host, _| host.scratch = scratch);
        stall(&mut rig, 0, 20 * MS);
        let done = rig.one(&read(5, 0), SECOND);
        assert_eq!(done.outcome, Outcome::Done);
        assert_eq!(stats(&rig).sent, sent, "{len} bytes");
        let without = u64::from(len == 4096);
        assert_eq!(
            stats(&rig).no_room,
            without,
            "counted by reads, not by questions"
        );
        rig.world.pass(SECOND);
        assert_eq!(rig.host.borrow().scratch_free(), u64::from(len));
    }
}

#[test]
fn where_it_is_off_or_the_policy_does_not_predict_nothing_is_hedged() {
    for policy in [Policy::Soonest, Policy::QueueDepth] {
        for hedging in [Hedging::Off, Hedging::On, Hedging::Auto] {
            let mut rig = hedging_rig();
            let knobs = Knobs {
                hedging,
                ..Knobs::default()
            };
            rig.control(HostControl::Policy(0, policy, knobs));
            stall(&mut rig, 0, 20 * MS);
            rig.submit(&read(5, 0)).unwrap();
            rig.submit(&read(6, 1)).unwrap();
            assert!(rig.run(SECOND, |_, done| done.len() == 2));
            let works = hedging.works(policy);
            assert_eq!(works, policy == Policy::Soonest && hedging != Hedging::Off);
            assert_eq!(stats(&rig).sent > 0, works, "{policy:?} {hedging:?}");
        }
    }
}

#[test]
fn an_idle_engine_sleeps_as_long_as_without() {
    let wakeups = |hedging| {
        let mut rig = hedging_rig_with(|host, _| {
            host.volumes[0].knobs.hedging = hedging;
            host.kato_ms = 0;
        });
        rig.world.pass(SECOND);
        let before = rig.world.nodes[HOST].wakeups;
        rig.world.pass(100 * SECOND);
        rig.world.nodes[HOST].wakeups - before
    };
    assert_eq!(wakeups(Hedging::Auto), wakeups(Hedging::Off));
}

/// Something that happens to a port, or to the path over it.
fn happen(rig: &mut Rig, random: &mut Random) {
    let port = random.below(2) as u16;
    match random.below(11) {
        // Both copies are under way when one of them fails.
        8..=10 => {
            stall(rig, 0, 500 * MS);
            stall(rig, 1, 500 * MS);
            rig.world.pass(random.below(20) * MS);
            rig.world.cut_queue(HOST, port.into());
        }
        0 | 1 => stall(rig, port, random.below(200) * MS),
        2 => shape(rig, port, |it| {
            it.delay_ns = random.below(20) * 100_000;
            it.jitter_ns = random.below(20) * 100_000;
        }),
        3 => {
            let statuses = [PATH_ERROR, Status::new(0, 0x22), Status::new(3, 2)];
            let status = statuses[random.below(3) as usize];
            let rule = ErrorRule {
                status,
                ops: Ops::READ,
                blocks: None,
                rate: Probability::new(random.below(100_000_000) as u32).unwrap(),
            };
            let faults = Faults {
                errors: vec![rule],
                ..Faults::default()
            };
            rig.target_control(TargetControl::Faults(port, faults));
        }
        4 => rig.target_control(TargetControl::Faults(port, Faults::default())),
        5 => rig.world.cut_queue(HOST, port.into()),
        6 => rig.target_control(TargetControl::Drop(port)),
        _ => {
            let policy = [Policy::Soonest, Policy::QueueDepth][random.below(4) as usize / 3];
            rig.control(HostControl::Policy(0, policy, Knobs::default()));
        }
    }
}

/// Whatever becomes of both copies, a read ends once, with the right bytes if it says so, and its
/// buffer is its caller's from then on.
#[test]
fn t10_whatever_happens_a_buffer_that_was_handed_back_is_never_written_to() {
    let mut all = HedgeStats::default();
    for seed in 1..=30_u64 {
        let mut random = Random::new(seed);
        let digests = random.below(2) == 0;
        let bytes = [4096, 16 << 10, 128 << 10][random.below(3) as usize];
        let depth = [1, 4, 24][random.below(3) as usize];
        let mut rig = hedging_rig_with(|host, target| {
            host.digests.data = digests;
            host.io_timeout_ns = 2 * SECOND;
            target.subsystem.entries_max = [4, 128][random.below(2) as usize];
        });
        rig.world.piece_max = [100, 3000, 20_000][random.below(3) as usize];
        rig.world.sent_delay_ns = [0, 100_000, 3 * MS][random.below(3) as usize];
        // Purpose of the read into each buffer; `None`: it is its caller's, who has written to it.
        let mut reads = vec![None; depth as usize];
        for slot in 0..depth {
            buffer(&mut rig, slot, bytes).fill(0xee);
        }
        let (mut ended, mut next, total) = (0, 30, 600);
        while ended < total {
            let now_ns = rig.world.now_ns;
            for slot in 0..depth {
                if reads[slot as usize].is_none() {
                    let spoilt = buffer(&mut rig, slot, bytes).iter().any(|&it| it != 0xee);
                    assert!(!spoilt, "seed {seed}, slot {slot}, at {now_ns}");
                    let block = random.below(BLOCKS - 32);
                    let it = io(IoOp::Read, block * u64::from(BLOCK), bytes as u32, slot);
                    rig.submit(&it).unwrap();
                    reads[slot as usize] = Some(block);
                }
            }
            let came = rig.run(60 * SECOND, |_, done| !done.is_empty());
            assert!(came, "seed {seed}: {ended} of {total} ended");
            for done in core::mem::take(&mut rig.done) {
                let block = reads[done.cookie as usize].take().expect("ended twice");
                if done.outcome.is_done() {
                    assert!(holds(&mut rig, done.cookie, block, bytes), "seed {seed}");
                }
                buffer(&mut rig, done.cookie, bytes).fill(0xee);
                ended += 1;
            }
            if ended >= next {
                next = ended + 30;
                happen(&mut rig, &mut random);
            }
        }
        rig.world.pass(60 * SECOND);
        rig.poll();
        for done in core::mem::take(&mut rig.done) {
            reads[done.cookie as usize].take().expect("ended twice");
            buffer(&mut rig, done.cookie, bytes).fill(0xee);
        }
        assert_eq!(reads, vec![None; depth as usize], "seed {seed}");
        for slot in 0..depth {
            assert!(buffer(&mut rig, slot, bytes).iter().all(|&it| it == 0xee));
        }
        all_is_back(&rig);
        let these = stats(&rig);
        all.won += these.won;
        all.lost += these.lost;
        all.failed += these.failed;
    }
    // All that can become of a copy did.
    let enough = all.won > 50 && all.lost > 10 && all.failed > 2;
    assert!(enough, "{all:?}");
}
