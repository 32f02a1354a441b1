//! Worlds with a mirror of three legs of which one is away for a moment while another is rebuilt,
//! and then the third one, which alone is in sync, can't read some blocks.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in half of the worlds with three legs in which much may
//! happen (see `ample`). The first leg is taken out and returned, and rebuilds are so slow there
//! that the second one leaves before that one is over. The second leg lacks few regions, or none; a
//! mirror that reads a region of it that was written meanwhile gives old data.
use super::plan::Whom;
use crate::chaos::prelude::*;

/// One region of such worlds in a second.
const CEILING: u64 = 64 << 10;
/// Blocks that can't be read.
const FLAWS: u64 = 12;

/// A plan, perhaps with a leg that is away for a moment.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let mild = is_mild(plan);
    let Some(shape) = plan.layout.mirror.as_mut().filter(|it| it.legs == 3) else {
        return;
    };
    if mild || random.up_to(1) == 0 {
        return;
    }
    shape.ceiling = CEILING;
    let whom = &mut Whom::new(&plan.layout, random);
    let first = random.up_to(whom.legs - 1);
    let at_ns = random.up_to(WINDOW_NS / 2);
    let back_ns = at_ns + (300 + random.up_to(1_500)) * MS;
    let blink_ns = back_ns + (100 + random.up_to(1_500)) * MS;
    let away_ns = (5 + random.up_to(300)) * MS;
    plan.add(Kind::FailLeg, at_ns, back_ns - at_ns, whom.first(first));
    match random.up_to(1) {
        0 => plan.add(Kind::FailLeg, blink_ns, away_ns, whom.first(first + 1)),
        _ => plan.add_each(Kind::Kill, blink_ns, away_ns, whom.processes(first + 1)),
    }
    for _ in 0..FLAWS {
        whom.free = random.up_to(1 << 40);
        let at_ns = blink_ns + random.up_to(2_000) * MS;
        let lasts_ns = (500 + random.up_to(2_000)) * MS;
        plan.add(Kind::Media, at_ns, lasts_ns, whom.first(first + 2));
    }
}
