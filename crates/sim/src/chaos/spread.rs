//! Applications on every core of a host: the engine's cores then all have I/O of one volume, as
//! with a queue for each (T47), a flush on one covers what another had acknowledged (T13), and
//! changes of parts of one block come on several (T46).
//!
//! Decides, from a plan and its seed, in which worlds that is so.
use super::prelude::*;

/// A plan, perhaps with applications on all cores.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let layout = &mut plan.layout;
    if layout.cores > 1 && random.up_to(3) > 0 {
        layout.habit.homes = u32::from(layout.cores);
        layout.habit.connections = layout.habit.connections.max(layout.habit.homes);
    }
}
