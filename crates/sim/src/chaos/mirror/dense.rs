//! Worlds with a mirror in which every kind of fault meets every state of a path soon, and in which
//! what only a mirror does is tried often: caches that a leg loses while another one has what was
//! in them, and reads that fail on one leg while the same blocks are written.
//!
//! # Contract
//! Drawn apart from the rest, on top of it. Worlds in which little may happen (see `ample`) are as
//! they were.
use super::super::aim::aim_at_cells;
use super::ample::KINDS;
use super::plan::Whom;
use crate::chaos::prelude::*;

/// Cells of the table that one world aims at, besides those of `ample`.
const CELLS_EACH: u64 = 12;
/// Caches are lost so long after the time in which other faults begin, at most: by then a mirror
/// whose host died runs again, mostly, and applications still write.
const AFTER_NS: u64 = 4_000 * MS;

/// A plan with more in it.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    if is_mild(plan) {
        return;
    }
    // Other cells than `ample` aims at in the same world.
    aim_at_cells(plan, &KINDS, (CELLS_EACH, 101), random);
    match random.up_to(2) {
        0 => spoil(plan, random),
        _ => lose_caches(plan, random),
    }
}

/// A leg loses what it has in its caches, then another one does, when the first has it again or
/// has not.
fn lose_caches(plan: &mut Plan, random: &mut Random) {
    plan.layout.caches = true;
    plan.layout.habit.writes = plan.layout.habit.writes.max(128);
    let whom = Whom::new(&plan.layout, random);
    let first = random.up_to(whom.legs - 1);
    let mut at_ns = WINDOW_NS + random.up_to(AFTER_NS);
    for leg in first..first + whom.legs {
        let away_ns = (5 + random.up_to(200)) * MS;
        plan.add_each(Kind::Power, at_ns, away_ns, whom.processes(leg));
        at_ns += away_ns + random.up_to(2_000) * MS;
    }
}

/// Of few blocks, which are read and written all the time, some can't be read on a leg that is
/// slow: what is rewritten there meets what is written.
fn spoil(plan: &mut Plan, random: &mut Random) {
    let habit = &mut plan.layout.habit;
    (habit.blocks, habit.writes) = (64, 128);
    habit.depth = habit.depth.max(8);
    let mut whom = Whom::new(&plan.layout, random);
    let leg = random.up_to(whom.legs - 1);
    let at_ns = random.up_to(WINDOW_NS / 2);
    plan.add_each(Kind::SlowDisk, at_ns, 4_000 * MS, whom.paths(leg));
    for number in 0..8 {
        whom.free = random.up_to(1 << 40);
        let at_ns = at_ns + number * 500 * MS;
        let lasts_ns = (100 + random.up_to(400)) * MS;
        plan.add(Kind::Media, at_ns, lasts_ns, whom.first(leg));
    }
}
