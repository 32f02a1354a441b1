//! Faults that touch something in nearly every world. Those drawn elsewhere sometimes begin where
//! they can have no effect.
//!
//! # Contract
//! Drawn apart from the rest, on top of it. Ten faults of a world touch something then, whatever
//! else it has; worlds with a mirror in which little may happen get what takes no leg and no host
//! away, and more of it, for they have few others: in some of these fewer than ten touch anything.
use super::prelude::*;
use core::iter;

/// Faults that hardly ever miss, and how often each.
const SURE: [Kind; 3] = [Kind::Reset, Kind::ClientReset, Kind::FailPath];
const SURE_EACH: usize = 2;
/// Faults that take no leg and no host away. A mirror may begin late there, so they are spread over
/// twice the time.
const MILD: [Kind; 3] = [Kind::ClientReset, Kind::ClientHalfOpen, Kind::SlowDisk];
const MILD_EACH: usize = 9;

/// A plan with more in it.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let mild = plan.layout.mirror.is_some() && is_mild(plan);
    let (kinds, each, within_ns) = match mild {
        true => (MILD, MILD_EACH, 2 * WINDOW_NS),
        false => (SURE, SURE_EACH, WINDOW_NS),
    };
    for kind in kinds.iter().flat_map(|&kind| iter::repeat_n(kind, each)) {
        let at_ns = random.up_to(within_ns);
        plan.add_drawn(kind, at_ns, random);
    }
}
