//! Worlds with a mirror on a core of its own: the host's first core has the admin connections of
//! its legs and tells the other what it learns; the mirror and all of its clients are on the
//! second (T46). So is the second mirror of a process of two cores.
//!
//! # Contract
//! Decides, from a plan and its seed, in which worlds that is so: in half of them.
use crate::chaos::prelude::*;

/// A plan, perhaps with the mirror on a second core.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    if let Some(shape) = &mut plan.layout.mirror
        && random.up_to(1) == 0
    {
        shape.core = 1;
        plan.layout.cores = 2;
    }
}
