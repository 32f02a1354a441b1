//! Which worlds have discovery, and what goes wrong there beside the rest.
//!
//! # Contract
//! Drawn apart from everything else: worlds without discovery are what they would be if there were
//! none.
use crate::chaos::prelude::*;

/// One world in so many.
const ONE_IN: u64 = 5;
/// Faults of discovery that are aimed at a state of a path, and others.
const AIMED: u64 = 5;
const FREE: u64 = 2;

/// A plan, perhaps with discovery.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    if random.up_to(ONE_IN - 1) > 0 {
        return;
    }
    let layout = &mut plan.layout;
    layout.more.tellers = 1 + random.up_to(1) as usize;
    if layout.targets * usize::from(layout.ports) == 1 {
        layout.ports = 2; // the last path never goes
    }
    let mut faults = Vec::new();
    let kinds = Kind::OF_DISCOVERY;
    let first = random.up_to(u64::MAX) as usize;
    for number in 0..AIMED {
        // Neighbours in the table are far from each other in time.
        let cell = aim::cell(kinds, first.wrapping_add(17 * number as usize));
        let each_ns = WINDOW_NS / AIMED;
        let at_ns = each_ns * number + random.up_to(each_ns / 2);
        aim::aimed(&mut faults, cell, at_ns, random);
    }
    for _ in 0..FREE {
        let kind = kinds[random.up_to(kinds.len() as u64 - 1) as usize];
        let (at_ns, lasts_ns) = (random.up_to(WINDOW_NS), lasts_ns(random));
        faults.push(fault(kind, at_ns, lasts_ns, random.up_to(u64::MAX)));
    }
    // Faults that need two controllers.
    if faults.iter().any(|it| it.kind == Kind::Unreferred) {
        layout.more.tellers = 2;
    }
    plan.faults.extend(faults);
}
