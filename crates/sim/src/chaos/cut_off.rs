//! A controller that is cut off from a host, and loses its cache long after that host has noticed.
//!
//! Decides, from a plan and its seed, whether that is added to it. A pair of faults that begin
//! within a moment of each other ends before any flush has to do without the controller; here the
//! host has given its paths up, and has flushed what else there is, when the power fails (T13).
//!
//! # Contract
//! One world in [`ONE_OF`], of those with two processes or more whose applications change whole
//! blocks. All others are as they would be without.
use super::prelude::*;

/// Which share of seeds.
const ONE_OF: u64 = 6;
/// It begins in this time from the first fault on.
const WINDOW_NS: u64 = 9_000 * MS;
/// How long the host is cut off: longer than it takes to notice, and to flush elsewhere.
const CUT_NS: u64 = 2_600 * MS;
/// From the cut on.
const POWER_NS: u64 = 1_900 * MS;

/// A plan with that in it, or the same.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let layout = &mut plan.layout;
    let chosen = random.up_to(ONE_OF - 1) == 0;
    if !chosen || layout.targets < 2 || layout.habit.unit != BLOCK as u64 {
        return;
    }
    layout.caches = true;
    layout.habit.flushes = layout.habit.flushes.max(8);
    let (targets, ports) = (layout.targets as u64, u64::from(layout.ports));
    let host = random.up_to(layout.hosts as u64 - 1);
    let target = random.up_to(targets - 1);
    let at_ns = random.up_to(WINDOW_NS);
    for port in 0..ports {
        let address = target + port * targets;
        plan.add(Kind::Partition, at_ns, CUT_NS, 8 * address + host);
    }
    let power_ns = at_ns + POWER_NS + random.up_to(400 * MS);
    plan.add(Kind::Power, power_ns, 100 * MS, 8 * target + host);
}
