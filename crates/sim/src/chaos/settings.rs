//! Settings of which there is one in most worlds, and others somewhere.
//!
//! Decides, from a plan and its seed, what controllers report as CQT, which of the two digests
//! there is where nothing is damaged, and where the blocks of the applications are in the
//! namespace.
//!
//! # Contract
//! Drawn apart from everything else, and after it.
//!
//! # Limits
//! Always a KATO of 1 s: without one, nothing but proof ends the hold of a write, and a target that
//! is gone for good gives none (T9). No controller counts traffic as keep-alive: braid's don't.
use super::prelude::*;
use super::rig::Checked;

/// Where the first block is, bytes: at the beginning, or so that the blocks lie across the place
/// where bytes or blocks don't go into 32 bits any more.
const BASES: [u64; 4] = [0, 0, (1 << 32) - AROUND, (1 << 41) - AROUND];
/// Less than the applications' blocks have.
const AROUND: u64 = 4 << 10;

/// A plan with other settings, perhaps.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let damage = plan.faults.iter().any(|it| it.kind == Kind::Damage);
    let more = &mut plan.layout.more;
    more.cqt_ms = [0, 0, 300, 900][random.up_to(3) as usize];
    more.base = BASES[random.up_to(3) as usize];
    more.checked = match (damage, random.up_to(3)) {
        (false, 0) => Checked::Headers,
        (false, 1) => Checked::Data,
        _ => Checked::Both,
    };
}
