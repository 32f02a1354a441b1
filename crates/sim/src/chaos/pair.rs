//! Faults in pairs: what is dangerous only while something else goes wrong at the same place.
//!
//! Decides, from a plan and its seed, which pairs are added to it and whether applications
//! change parts of blocks. Pairs by chance are rare: a dozen faults in a dozen seconds seldom meet.
//!
//! # Contract
//! Both faults of a pair are about the same host and path, and the second begins while the first
//! goes on.
use super::prelude::*;

/// Pairs begin in this time from the first fault on.
const WINDOW_NS: u64 = 9_000 * MS;

/// A pair: the first fault and how long it lasts, ms; the second one and how long at most.
type Pair = (Kind, u64, Kind, u64);

const PAIRS: [Pair; 8] = [
    // Late writes need something to be late after (T9).
    (Kind::LateWrites, 2000, Kind::Reset, 5),
    (Kind::LateWrites, 2000, Kind::ResetCore, 5),
    (Kind::LateWrites, 2500, Kind::Partition, 900),
    (Kind::LateWrites, 4000, Kind::Partition, 3500),
    (Kind::LateWrites, 2000, Kind::KillHost, 400),
    (Kind::LateWrites, 2500, Kind::Partition, 900),
    // A cache is lost while its controller is cut off (T13).
    (Kind::Partition, 2500, Kind::Power, 400),
    (Kind::LateWrites, 400, Kind::Power, 400),
];

/// Requests of a process are executed while its successor waits (T9).
const LATE_HEIR: Pair = (Kind::LateWrites, 2000, Kind::KillHost, 40);

/// A plan with more in it.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    for _ in 0..1 + random.up_to(1) {
        add(plan, one_of(&PAIRS, random), random);
    }
    match random.up_to(5) {
        0 => everywhere(plan, Kind::Ana, random),
        1 => everywhere(plan, Kind::Status, random),
        2 => {
            plan.layout.digests = true;
            everywhere(plan, Kind::Damage, random);
        }
        _ => {}
    }
    // Drawn apart from the rest: seeds that found something once are still the same worlds.
    let heirs = &mut Random::new(plan.seed ^ 0x3e11_3980);
    let drawn = heirs.up_to(7);
    if drawn == 0 {
        bequeath(plan, heirs);
    }
    let heir = drawn == 1;
    if heir {
        fit_for_parts(plan);
        add(plan, LATE_HEIR, heirs);
    }
    if heir || is_for_parts(plan) {
        plan.layout.habit.unit = BLOCK as u64 / 2;
        plan.layout.habit.crowded = 0;
    }
}

/// Whether applications may change parts of blocks in this world. Changes of one block by two hosts
/// have no order; a change that spans a loss of caches may bring back lost contents of the other
/// part; and a write fails where its block can't be read. Processes that die have worlds of their
/// own for that.
fn is_for_parts(plan: &Plan) -> bool {
    let hinders = |kind| match kind {
        Kind::KillHost | Kind::StopHost | Kind::StopUnread => true,
        other => is_of_blocks(other),
    };
    let all_fit = !plan.faults.iter().any(|fault| hinders(fault.kind));
    plan.layout.hosts == 1 && !plan.layout.caches && all_fit
}

/// Takes away what applications must not meet that change parts of blocks.
fn fit_for_parts(plan: &mut Plan) {
    plan.layout.hosts = 1;
    plan.layout.caches = false;
    let fits = |fault: &Fault| fault.kind != Kind::Power && !is_of_blocks(fault.kind);
    plan.faults.retain(fits);
}

fn is_of_blocks(kind: Kind) -> bool {
    matches!(kind, Kind::Media | Kind::NoSpace | Kind::Transient)
}

/// A host dies, and what its process had in a cache is lost once the next one may have flushed, and
/// has not written yet: while it waits for the bound (T13).
fn bequeath(plan: &mut Plan, random: &mut Random) {
    let layout = &mut plan.layout;
    // Other hosts and cores would have that cache flushed as well.
    (layout.hosts, layout.cores) = (1, 1);
    layout.caches = true;
    layout.targets = 2;
    // Writes wait, and soon all else behind them: a flush comes before that, and reads.
    layout.habit.writes = 64;
    layout.habit.flushes = 8;
    layout.habit.depth = layout.habit.depth.max(12);
    layout.habit.pause_ns /= 4;
    for half in 0..2 {
        let at_ns = half * WINDOW_NS / 2 + random.up_to(WINDOW_NS / 4);
        let whom = random.up_to(u64::MAX);
        plan.add(Kind::KillHost, at_ns, 5 * MS + random.up_to(20 * MS), whom);
        // Later, one flush is likely to have met that cache even if it was not asked to.
        let later_ns = 30 * MS + random.up_to(170 * MS);
        plan.add(Kind::Power, at_ns + later_ns, 100 * MS, whom);
    }
}

/// One fault at all ports, so that no way is left though all controllers live (T4, T26), and none
/// that is better than the others (T17); faults that answer with a status do so each time.
fn everywhere(plan: &mut Plan, kind: Kind, random: &mut Random) {
    let at_ns = random.up_to(WINDOW_NS);
    let lasts_ns = 500 * MS + random.up_to(1500 * MS);
    let state = random.up_to(3) * 64;
    let whom = match kind {
        Kind::Status => 3 * 1024,
        _ => state,
    };
    for address in 0..plan.layout.targets as u64 * u64::from(plan.layout.ports) {
        plan.add(kind, at_ns, lasts_ns, whom + 8 * address);
    }
}

fn add(plan: &mut Plan, (first, first_ms, second, second_ms): Pair, random: &mut Random) {
    plan.layout.caches |= second == Kind::Power;
    let at_ns = random.up_to(WINDOW_NS);
    let whom = random.up_to(u64::MAX);
    let gap_ns = random.up_to(first_ms * MS / 4);
    plan.add(first, at_ns, first_ms * MS, whom);
    let lasts_ns = second_ms * MS / 4 + random.up_to(second_ms * MS * 3 / 4);
    plan.add(second, at_ns + gap_ns, lasts_ns, whom);
}
