//! Plans that aim: every kind of fault in every state of a path, in turn over the seeds.
//!
//! Decides, from what the first worlds would have been (`Plan::first`) and their seed, which
//! faults are aimed at which state, and what brings a path into that state.
//!
//! # Contract
//! So many cells of the table [kind](Kind) × [state](PathState) for each seed that seeds in a row
//! go through all of it again and again. An aimed fault waits for its state; a companion before it
//! sees to it that there is one. Whether it was hit is told by what happened only
//! ([`Report::coverage`](super::run::Report)).
use super::plan;
use super::prelude::*;
use super::rig::More;

/// Cells that one world aims at.
const CELLS_EACH: u64 = 5;
/// Faults of a world that are not aimed.
const FREE: u64 = 5;

/// A field of the table.
type Cell = (Kind, PathState);

/// Seeds from 1 on that leave no cell empty that can be hit, with some to spare.
pub const SEEDS: u64 = 1400;

/// All states of a path.
pub const STATES: [PathState; 7] = [
    PathState::Connecting,
    PathState::Live,
    PathState::Probation,
    PathState::Reconnecting,
    PathState::Draining,
    PathState::Failed,
    PathState::Removed,
];

/// Cells that can't be, and why. Some world may hit one yet: the state is that of a host's first
/// core, which may be a moment ahead of who asks, or behind.
pub const IMPOSSIBLE: [(Kind, PathState, &str); 3] = [
    (
        Kind::DrainPath,
        PathState::Failed,
        "a failed path has no I/O to drain: that is refused",
    ),
    (
        Kind::DrainPath,
        PathState::Removed,
        "there is no path that could be drained: that is refused",
    ),
    (
        Kind::RemovePath,
        PathState::Removed,
        "there is no path that could be removed: that is refused",
    ),
];

/// Whether that kind of fault can't touch a path in that state.
pub fn is_impossible(kind: Kind, state: PathState) -> bool {
    let named = |it: &(Kind, PathState, &str)| (it.0, it.1) == (kind, state);
    IMPOSSIBLE.iter().any(named)
}

/// The cells of the table of these kinds that none of these faults hit, and that could be.
pub fn empty_cells(kinds: &[Kind], hit: &[(Kind, PathState)]) -> Vec<(Kind, PathState)> {
    let possible = |&(kind, state): &(Kind, PathState)| !is_impossible(kind, state);
    let all = kinds
        .iter()
        .flat_map(|&kind| STATES.map(|state| (kind, state)));
    all.filter(possible)
        .filter(|cell| !hit.contains(cell))
        .collect()
}

/// Turns a plan of the first kind into one with the same layout, additions to it, and other faults.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let layout = &mut plan.layout;
    layout.more = more(random);
    layout.habit.crowded = 4;
    if layout.targets * usize::from(layout.ports) == 1 && random.up_to(3) > 0 {
        layout.ports = 2; // most states of a path need another one beside it
    }
    plan.faults.clear();
    let kinds = &Kind::ALL[..Kind::EVERYWHERE];
    aim_at_cells(plan, kinds, (CELLS_EACH, 61), random);
    for _ in 0..FREE + random.up_to(FREE) {
        // The kinds of the first worlds that lose data.
        let kinds = [Kind::FIRST, Kind::EVERYWHERE][random.up_to(1) as usize];
        let kind = Kind::ALL[random.up_to(kinds as u64 - 1) as usize];
        if plan.layout.allows(kind) {
            let at_ns = late(kind).max(random.up_to(WINDOW_NS));
            plan.add_drawn(kind, at_ns, random);
        }
    }
    let faults = &mut plan.faults;
    let slow = |fault: &&Fault| matches!(fault.kind, Kind::SlowDisk | Kind::LateWrites);
    let resets: Vec<Fault> = faults.iter().filter(slow).map(reset_within).collect();
    faults.extend(resets);
}

/// The field of the table of `kinds` with this number, or so many times around it.
pub(super) fn cell(kinds: &[Kind], number: usize) -> Cell {
    let number = number % (kinds.len() * STATES.len());
    (kinds[number / STATES.len()], STATES[number % STATES.len()])
}

/// Adds faults that are aimed at so many cells of the table of `kinds`, so many fields apart:
/// neighbours in the table are far from each other in time.
pub(super) fn aim_at_cells(
    plan: &mut Plan,
    kinds: &[Kind],
    (count, stride): (u64, usize),
    random: &mut Random,
) {
    for number in 0..count {
        let at = plan.seed.wrapping_mul(count).wrapping_add(number) as usize;
        let (kind, state) = cell(kinds, at.wrapping_mul(stride));
        plan.layout.digests |= kind == Kind::Damage;
        plan.layout.caches |= kind == Kind::Power;
        let each_ns = WINDOW_NS / count;
        let at_ns = late(kind).max(each_ns * number) + random.up_to(each_ns / 2);
        aimed(&mut plan.faults, (kind, state), at_ns, random);
    }
}

/// Adds so many faults of these kinds, each of which waits for a state of a path.
pub(super) fn add_waiting(plan: &mut Plan, kinds: &[Kind], count: u64, random: &mut Random) {
    let first = random.up_to(u64::MAX) as usize;
    for number in 0..count {
        // Neighbours in the table are far from each other in time.
        let (kind, state) = cell(kinds, first.wrapping_add(17 * number as usize));
        let (at_ns, lasts_ns) = (random.up_to(WINDOW_NS), lasts_ns(random));
        plan.faults.push(Fault {
            when: Some(state),
            ..plan::fault(kind, at_ns, lasts_ns, random.up_to(u64::MAX))
        });
    }
}

/// How long a kind of fault is put off, ns: after one that takes its host away for long there is
/// none for the others.
pub(super) fn late(kind: Kind) -> u64 {
    match kind {
        Kind::StopUnread => WINDOW_NS,
        _ => 0,
    }
}

fn more(random: &mut Random) -> More {
    More {
        window: [0, 16 << 10, 64 << 10][random.up_to(2) as usize],
        tight: random.up_to(2) == 0,
        scratch_bytes: [4 << 20, 4 << 20, 4 << 20, 64 << 10, 0][random.up_to(4) as usize],
        connections_spare: [None, Some(2), Some(0)][random.up_to(2) as usize],
        large: true,
        ..More::default()
    }
}

pub(super) fn fault(kind: Kind, at_ns: u64, whom: u64, random: &mut Random) -> Fault {
    let least_ns = match kind {
        // Longest stop with clients that read nothing: 5 s to drain, 1 s to learn of it, 5 s for
        // queued messages, and 1 s for each core and its controllers.
        Kind::StopUnread => 15_000 * MS,
        _ => 0,
    };
    plan::fault(kind, at_ns, least_ns + lasts_ns(random), whom)
}

/// Late execution by a path that is lost meanwhile (T9).
fn reset_within(slow: &Fault) -> Fault {
    let at_ns = slow.at_ns + slow.lasts_ns / 2;
    plan::fault(Kind::Reset, at_ns, 5 * MS, slow.whom)
}

/// A fault that is aimed at a state, and what brings about that state.
pub(super) fn aimed(faults: &mut Vec<Fault>, cell: Cell, at_ns: u64, random: &mut Random) {
    let (kind, state) = cell;
    let whom = random.up_to(u64::MAX) | FORCE;
    let mut first = |kind, at_ns, lasts_ms: u64| {
        faults.push(plan::fault(kind, at_ns, lasts_ms * MS, whom));
    };
    let last_ms = 200 + random.up_to(800);
    let cuts = matches!(kind, Kind::Reset | Kind::ResetCore | Kind::HalfOpen);
    let after_ns = match state {
        PathState::Live => 0,
        PathState::Connecting => {
            first(Kind::Partition, at_ns, 900);
            first(Kind::KillHost, at_ns + MS, 5);
            10 * MS
        }
        PathState::Reconnecting => {
            if cuts {
                first(Kind::Slow, at_ns, 900); // connections are being made for long
            }
            first(Kind::Reset, at_ns, 5);
            MS
        }
        PathState::Probation => {
            // Lost twice within a minute: it flaps.
            first(Kind::Reset, at_ns, 5);
            first(Kind::Reset, at_ns + 400 * MS, 5);
            500 * MS
        }
        PathState::Draining => {
            first(Kind::DrainPath, at_ns, last_ms);
            MS
        }
        PathState::Failed | PathState::Removed if cuts => {
            // Its connections stay for as long as its controller has something to do, if it has.
            first(Kind::SlowDisk, at_ns, 1300);
            first(Kind::Slow, at_ns, 1300);
            let by_hand = match state {
                PathState::Failed => Kind::FailPath,
                _ => Kind::RemovePath,
            };
            for again in 0..4 {
                first(by_hand, at_ns + (50 + 300 * again) * MS, 150);
            }
            50 * MS
        }
        PathState::Failed => {
            first(Kind::FailPath, at_ns, last_ms);
            MS
        }
        PathState::Removed => {
            first(Kind::RemovePath, at_ns, last_ms);
            MS
        }
    };
    let aimed = fault(kind, at_ns + after_ns, whom, random);
    faults.push(Fault {
        when: Some(state),
        ..aimed
    });
}

/// The bit of [`Fault::whom`] that says that what a user asks for is forced.
pub(super) const FORCE: u64 = 1 << 20;
