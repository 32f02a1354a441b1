//! Worlds with a mirror that have as much in them as the others: requests, and faults of more
//! kinds, aimed at states of paths.
//!
//! # Contract
//! Drawn apart from the rest, on top of it. Each world has at least `REQUESTS` requests and plans
//! at least `FAULTS` faults, so that ten begin where some can't. Seeds in a row go through the
//! table kind × state as those of the other family do (see [`aim`]). Worlds of `sharp`, in which
//! little may happen beside what they have, get what takes no leg and no host away.
//!
//! # Limits
//! Left out: faults that need discovery, and unrelated clients of exports (the mirror is smaller
//! than what they ask for).
use super::super::kind::of_kinds;
use super::plan::Whom;
use crate::chaos::prelude::*;

/// Requests of a world, at least.
const REQUESTS: u64 = 2000;
/// Faults that are planned, at least.
const FAULTS: usize = 16;
/// Cells of the table that one world aims at.
const CELLS_EACH: u64 = 7;
/// A fault that lasts longer is an absence.
const LONG_NS: u64 = 15_000 * MS;

/// Seeds from 1 on in which every kind of fault begins in every state, with what `dense` adds.
pub const SEEDS: u64 = 360;

/// All that goes wrong in worlds with a mirror.
pub const KINDS: [Kind; 44] = of_kinds![
    Reset Partition Slow Damage Drop Ana Kill Power Freeze FreezeHost KillHost StopHost Policy
    SlowDisk LateWrites HalfOpen OneWay Trickle Full Unread Media NoSpace Transient FailPath
    DrainPath RemovePath AddPath Resize Away Knobs Hang Mute Status Crowd KillAll StopUnread
    ClientReset ClientHalfOpen ClientPartition ClientSlow ClientFull FailLeg CheckMirror OneWrite
];

/// Kinds that are drawn apart from these.
const APART: [Kind; 5] = of_kinds![
    Shrink Exchange DeepQueue HungSubmit HaltHost
];

/// Whether worlds with a mirror have faults of this kind.
pub(in crate::chaos) fn is_known(kind: Kind) -> bool {
    KINDS.contains(&kind) || APART.contains(&kind)
}

/// Faults that take no leg and no host away.
const MILD: [Kind; 12] = of_kinds![
    Slow Trickle Full Unread Policy Knobs SlowDisk ClientReset ClientPartition ClientSlow ClientFull
    ClientHalfOpen
];

/// A plan with more in it.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let habit = &mut plan.layout.habit;
    let before = habit.total;
    habit.total = REQUESTS.max(before) + random.up_to(800);
    habit.pause_ns = habit.pause_ns * before / habit.total;
    let kinds: &[Kind] = match is_mild(plan) {
        true => &MILD,
        false => {
            aim::aim_at_cells(plan, &KINDS, (CELLS_EACH, 61), random);
            if random.up_to(1) == 0 {
                fail_a_copy(plan, random);
            }
            &KINDS
        }
    };
    let more = FAULTS.saturating_sub(plan.faults.len()) as u64 + random.up_to(3);
    for _ in 0..more {
        let kind = match one_of(kinds, random) {
            Kind::Damage if !plan.layout.digests => Kind::OneWay,
            Kind::Power if !plan.layout.caches => Kind::Kill,
            kind => kind,
        };
        let at_ns = aim::late(kind).max(random.up_to(WINDOW_NS));
        plan.add_drawn(kind, at_ns, random);
    }
}

/// Whether little may happen in it but what it has.
pub(in crate::chaos) fn is_mild(plan: &Plan) -> bool {
    let is_absence = |it: &Fault| it.lasts_ns > LONG_NS && it.kind != Kind::StopUnread;
    plan.layout.mirror.is_some_and(|it| it.unfenced) || plan.faults.iter().any(is_absence)
}

/// A leg is taken out and returned, and one write to it fails while what it lacks is copied.
fn fail_a_copy(plan: &mut Plan, random: &mut Random) {
    let whom = Whom::new(&plan.layout, random);
    let leg = random.up_to(whom.legs - 1);
    let at_ns = random.up_to(WINDOW_NS / 2);
    let away_ns = (200 + random.up_to(2000)) * MS;
    let back_ns = at_ns + away_ns + random.up_to(40) * MS;
    plan.add(Kind::FailLeg, at_ns, away_ns, whom.first(leg));
    plan.add(Kind::OneWrite, back_ns, 500 * MS, whom.first(leg));
}
