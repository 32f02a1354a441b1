//! Worlds with a mirror that have what is rare together: a leg that is away until long after the
//! last write, and legs whose late writes nothing but the mirror's own wait keeps back (T9).
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in one world in four a long absence is added, and one
//! in four has legs without a fence, with no faults but theirs.
//!
//! # Limits
//! Legs without a fence have one path each and fail as soon as that is lost, and their host lives:
//! else what is executed late could come over newer data whatever a mirror does.
use super::plan::Whom;
use crate::chaos::prelude::*;

/// By then applications have ended, mostly, and a mirror has forgotten what it intended, where it
/// may: after twice the time that a region must be quiet.
const FORGOTTEN_NS: u64 = WINDOW_NS + 11_000 * MS;
/// How far apart legs without a fence are lost: each has returned, mostly.
const ROUND_NS: u64 = 5_000 * MS;

/// A plan with more in it, or another one.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    match random.up_to(3) {
        0 => absence(plan, random),
        1 => unfenced(plan, random),
        _ => {}
    }
}

/// A leg is away from early on, before most regions were recorded on it, until long after the last
/// write.
fn absence(plan: &mut Plan, random: &mut Random) {
    let whom = Whom::new(&plan.layout, random);
    let habit = &mut plan.layout.habit;
    habit.blocks = (LEG_BYTES - (1 << 20)) / habit.unit;
    habit.depth = habit.depth.min(2);
    if random.up_to(1) == 0 {
        plan.faults.clear();
    }
    let leg = random.up_to(whom.legs - 1);
    let at_ns = random.up_to(50) * MS;
    let back_ns = FORGOTTEN_NS + random.up_to(3_000) * MS;
    plan.add_each(Kind::Kill, at_ns, back_ns - at_ns, whom.processes(leg));
}

/// Legs are lost one after the other, whose hosts' ends vanish while they keep writes back.
fn unfenced(plan: &mut Plan, random: &mut Random) {
    let layout = &mut plan.layout;
    if let Some(shape) = &mut layout.mirror {
        (shape.unfenced, shape.patience_ns) = (true, 0);
        (layout.targets, layout.ports) = (shape.legs, 1);
        shape.ceiling = 1 << 40;
    }
    layout.habit.writes = layout.habit.writes.max(160);
    plan.faults.clear();
    for round in 0..3 {
        let mut whom = Whom::new(&plan.layout, random);
        // Of a half-open connection the host's end is the one that is gone.
        whom.free *= 16;
        let leg = random.up_to(whom.legs - 1);
        let at_ns = round * ROUND_NS + random.up_to(1_000) * MS;
        let lost_ns = at_ns + (50 + random.up_to(500)) * MS;
        for it in whom.paths(leg) {
            let kind = [Kind::HalfOpen, Kind::HalfOpen, Kind::Reset][random.up_to(2) as usize];
            plan.add(Kind::LateWrites, at_ns, 2_500 * MS, it);
            plan.add(kind, lost_ns, 5 * MS, it);
        }
    }
}
