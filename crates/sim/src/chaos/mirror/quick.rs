//! Worlds with a mirror whose beats are short beside the bound of what a dead host has left (T9):
//! who takes it over writes its records, and serves reads, while what the dead one had sent is yet
//! executed; on the same host that is before the gate of its unclean stop opens.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: of those that other hosts reach, and in which much may
//! happen (see `ample`), three in four have such beats. A host dies twice there while legs execute
//! writes late: it comes again, and another one takes over.
use super::cache_loss_checker::OTHER;
use super::plan::Whom;
use crate::chaos::prelude::*;

/// Five and a half of each are shorter than the bound.
const BEATS_MS: [u32; 3] = [150, 250, 400];

/// A plan, perhaps with short beats.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let mild = is_mild(plan);
    let Some(shape) = &mut plan.layout.mirror else {
        return;
    };
    if mild || !shape.shared || random.up_to(3) == 0 {
        return;
    }
    shape.beat_ms = BEATS_MS[random.up_to(2) as usize];
    for round in 0..2 {
        die_late(plan, round, random);
    }
}

/// A host dies while a leg, or each of them, executes writes late; the next one comes soon.
fn die_late(plan: &mut Plan, round: u64, random: &mut Random) {
    let whom = Whom::new(&plan.layout, random);
    let at_ns = round * WINDOW_NS / 2 + random.up_to(WINDOW_NS / 3);
    let legs = match random.up_to(1) {
        0 => 1,
        _ => whom.legs,
    };
    let first = random.up_to(whom.legs - 1);
    let late = (first..first + legs).flat_map(|leg| whom.paths(leg));
    plan.add_each(Kind::LateWrites, at_ns, 3_000 * MS, late);
    let dies_ns = at_ns + (300 + random.up_to(1_000)) * MS;
    // At first the same one comes again, then another one.
    let host = match round {
        0 => random.up_to(u64::MAX) & !OTHER,
        _ => random.up_to(u64::MAX) | OTHER,
    };
    let away_ns = 5 + random.up_to(300);
    plan.add(Kind::KillHost, dies_ns, away_ns * MS, host);
}
