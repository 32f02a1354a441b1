//! Plans that aim: every kind of fault in every state of a path, in turn over the seeds.
//!
//! Decides, from what the first worlds would have been ([`Plan::first`]) and their seed, which
//! faults are aimed at which state, and what brings a path into that state.
//!
//! # Contract
//! So many cells of the table [kind](Kind) × [state](PathState) for each seed that seeds in a row
//! go through all of it again and again. An aimed fault waits for its state; a companion before it
//! sees to it that there is one. Whether it was hit is told by what happened only
//! ([`Report::coverage`](super::run::Report)).
use super::kind::Kind;
use super::plan::{Fault, Plan, WINDOW_NS, lasts_ns};
use super::rig::More;
use alloc::vec::Vec;
use engine::host::PathState;
use shape::Random;

const MS: u64 = 1_000_000;
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
pub(super) fn plan(mut plan: Plan) -> Plan {
    let mut random = Random::new(plan.seed ^ 0x0a1e_d000);
    let random = &mut random;
    let layout = &mut plan.layout;
    layout.more = more(random);
    layout.habit.crowded = 4;
    if layout.targets * usize::from(layout.ports) == 1 && random.up_to(3) > 0 {
        layout.ports = 2; // most states of a path need another one beside it
    }
    let cells = Kind::EVERYWHERE * STATES.len();
    let mut faults = Vec::new();
    for number in 0..CELLS_EACH {
        // Neighbours in the table are far from each other in time.
        let at = plan.seed.wrapping_mul(CELLS_EACH).wrapping_add(number) as usize;
        let cell = at.wrapping_mul(61) % cells;
        let (kind, state) = (Kind::ALL[cell / STATES.len()], STATES[cell % STATES.len()]);
        layout.digests |= kind == Kind::Damage;
        layout.caches |= kind == Kind::Power;
        let each_ns = WINDOW_NS / CELLS_EACH;
        let at_ns = late(kind).max(each_ns * number) + random.up_to(each_ns / 2);
        aimed(&mut faults, (kind, state), at_ns, random);
    }
    for _ in 0..FREE + random.up_to(FREE) {
        // The kinds of the first worlds that lose data.
        let kinds = [Kind::FIRST, Kind::EVERYWHERE][random.up_to(1) as usize];
        let kind = Kind::ALL[random.up_to(kinds as u64 - 1) as usize];
        let possible = match kind {
            Kind::Damage => layout.digests,
            Kind::Power => layout.caches,
            _ => true,
        };
        if possible {
            let at_ns = late(kind).max(random.up_to(WINDOW_NS));
            let whom = random.up_to(u64::MAX);
            faults.push(fault(kind, at_ns, whom, random));
        }
    }
    let slow = |fault: &&Fault| matches!(fault.kind, Kind::SlowDisk | Kind::LateWrites);
    let resets: Vec<Fault> = faults.iter().filter(slow).map(reset_within).collect();
    faults.extend(resets);
    faults.sort_by_key(|fault| fault.at_ns);
    plan.faults = faults;
    plan
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
    Fault {
        kind,
        at_ns,
        lasts_ns: least_ns + lasts_ns(random),
        whom,
        when: None,
    }
}

/// Late execution by a path that is lost meanwhile (T9).
fn reset_within(slow: &Fault) -> Fault {
    Fault {
        kind: Kind::Reset,
        at_ns: slow.at_ns + slow.lasts_ns / 2,
        lasts_ns: 5 * MS,
        whom: slow.whom,
        when: None,
    }
}

/// A fault that is aimed at a state, and what brings about that state.
pub(super) fn aimed(faults: &mut Vec<Fault>, cell: Cell, at_ns: u64, random: &mut Random) {
    let (kind, state) = cell;
    let whom = random.up_to(u64::MAX) | FORCE;
    let mut first = |kind, at_ns, lasts_ms: u64| {
        let (lasts_ns, when) = (lasts_ms * MS, None);
        faults.push(Fault {
            kind,
            at_ns,
            lasts_ns,
            whom,
            when,
        });
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
