//! Second copies of late reads: what they mend, and where none are sent.
use super::*;
use policy::Knobs;

fn both(plan: &Plan) -> [Tally; 2] {
    let knobs = Knobs::default();
    let (policy, seed) = (Policy::Soonest, 1);
    [Way::Policy(policy, knobs), Way::Hedged(policy, knobs)]
        .map(|way| run(plan, &way, seed).unwrap())
}

fn longest_ms(tally: &Tally) -> u64 {
    tally.latencies[0].quantile_ns(1000) / MS
}

/// Two paths, one of which stands still for 300 ms; 4 reads in flight from 2 CPUs.
fn stalling() -> Plan {
    let mut plan = plan(2, vec![job(4, 1)]);
    plan.run_ns = 700 * MS;
    plan.events = vec![EventPlan {
        at_ns: 300 * MS,
        what: Change::Stall(0, 300 * MS),
    }];
    plan
}

#[test]
fn t37_a_path_that_stalls_keeps_no_read_waiting() {
    let [plain, hedged] = both(&stalling());
    assert!((290..=300).contains(&longest_ms(&plain)));
    assert!(longest_ms(&hedged) < 10, "{} ms", longest_ms(&hedged));
    // Half of the reads in flight would wait for the end of it.
    let [some, all] = [&plain, &hedged].map(|it| it.series[35..55].iter().sum::<u64>());
    assert!(some * 18 < all * 10, "{some} {all}");
    assert!((1..=8).contains(&hedged.hedged), "{}", hedged.hedged);
    // A look at the path in mid-stall is lost; what is late for chance may win.
    assert!(hedged.hedges_won <= hedged.hedged);
    // It comes back when the stall is over.
    assert!(hedged.path_ios[0] > plain.path_ios[0] / 2, "{hedged:?}");
}

/// T41: whatever fails or is late, no I/O is lost and none ends twice: the jobs keep what they have
/// in flight.
#[test]
fn t41_losers_that_fail_or_come_late_end_nothing_twice() {
    let mut plan = stalling();
    let change = |ms, what| EventPlan {
        at_ns: ms * MS,
        what,
    };
    // The stalled path dies with losers on it; later the other one, with copies on it.
    plan.events.extend([
        change(400, Change::Down(0, 50 * MS)),
        change(500, Change::Up(0)),
        change(550, Change::Stall(1, 100 * MS)),
        change(560, Change::Down(1, 20 * MS)),
        change(650, Change::Up(1)),
    ]);
    plan.jobs = vec![job(4, 4)];
    let [_, hedged] = both(&plan);
    assert!(hedged.hedged > 4 && hedged.failed > 4, "{hedged:?}");
    // Little: of 16 in flight, all the time, none too many and none too few.
    let ios = hedged.latencies[0].count();
    let in_flight = hedged.mean_ns() * ios / plan.run_ns;
    assert!((15..=16).contains(&in_flight), "{in_flight}");
    let last = hedged.series[70..].iter().min();
    assert!(
        last > Some(&500_000),
        "all are at work at the end: {last:?}"
    );
}

/// T37: reads that wait on a silent path go on though the other one is full; others don't.
#[test]
fn t37_a_path_that_stalls_keeps_no_read_waiting_where_the_other_is_full() {
    let mut plan = stalling();
    plan.jobs = vec![job(8, 16)];
    let [plain, hedged] = both(&plan);
    assert!((290..=300).contains(&longest_ms(&plain)));
    assert!(longest_ms(&hedged) < 50, "{} ms", longest_ms(&hedged));
    assert!((32..=100).contains(&hedged.hedged), "{}", hedged.hedged);
}

/// Where everything is full a copy only makes others wait.
#[test]
fn where_all_paths_are_full_no_copies_are_sent() {
    let mut plan = plan(2, vec![job(16, 16)]);
    for device in &mut plan.devices {
        *device = DevicePlan::Flash(Flash {
            noise: Noise::Usual,
            ..flash()
        });
    }
    plan.run_ns = 500 * MS;
    let [plain, hedged] = both(&plan);
    assert_eq!(hedged.hedged, 0);
    assert_eq!(plain.bytes, hedged.bytes);
}

/// T8, and policies that do not predict.
#[test]
fn t08_neither_writes_nor_other_policies_send_copies() {
    let mut plan = stalling();
    plan.jobs[0].write_percent = 100;
    assert_eq!(both(&plan)[1].hedged, 0);
    let way = Way::Hedged(Policy::QueueDepth, Knobs::default());
    assert_eq!(run(&stalling(), &way, 1).unwrap().hedged, 0);
}

/// One in a hundred is late by 5 ms and more; half of what the paths can do.
#[test]
fn of_a_heavy_tail_little_is_left_for_one_copy_in_a_hundred_reads() {
    let jobs = vec![JobPlan {
        iops: 5_500,
        ..job(8, 64)
    }];
    let mut plan = plan(2, jobs);
    plan.paths[0].tail_per_million = 10_000;
    plan.paths[0].tail_ns = 5 * MS;
    plan.run_ns = 2_000 * MS;
    let [plain, hedged] = both(&plan);
    let late = |tally: &Tally| tally.quantile_ns(999);
    assert!(
        late(&hedged) * 3 < late(&plain),
        "{} {}",
        late(&hedged),
        late(&plain)
    );
    let ios = hedged.latencies[0].count();
    assert!(hedged.hedged * 128 <= ios, "{} of {ios}", hedged.hedged);
    assert!(
        hedged.hedges_won * 10 > hedged.hedged * 7,
        "{}",
        hedged.hedges_won
    );
}
