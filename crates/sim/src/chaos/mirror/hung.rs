//! Worlds with a mirror in which the device of a leg hangs: it takes requests and executes none,
//! and what it took starts late.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in half of the worlds in which much may happen (see
//! `ample`). All processes of the leg find it so, or only one, whose leg another one reaches yet.
//! Processes live on: they answer keep-alives and what needs no device. Requests go on one by one,
//! up to [`LONGER_NS`] after the rest; a change only if its association lives by the clock that is
//! read directly before (T49). Often the host dies meanwhile, or its connections are reset: it asks
//! again, and others change the same, before that starts. One in five of the other worlds has this
//! instead of what it had, and applications that change few blocks.
//!
//! # Limits
//! Where writes are wanted late (`LateWrites`) no device hangs: they would be later than late.
use super::super::late::LONGER_NS;
use super::super::rig::IO_TIMEOUT_NS;
use super::plan::Whom;
use crate::chaos::prelude::*;

/// How long after its end requests may fail because of one: what hangs longest, and time-outs.
pub(in crate::chaos) const OVER_NS: u64 = LONGER_NS + IO_TIMEOUT_NS;

/// Of the worlds in which little may happen one of so many has this instead.
const OF: u64 = 5;
/// How often a device hangs there, and how far apart that is.
const HANGS: u64 = 4;
const APART_NS: u64 = 6_000 * MS;
/// Requests there, of few blocks, so that many are changed again soon.
const REQUESTS: u64 = 5_000;
const BLOCKS: u64 = 64;
const DEPTH: u16 = 8;
/// Further faults, which hardly ever miss; and how often.
pub(super) const MILD: [Kind; 4] = [
    Kind::ClientReset,
    Kind::ClientReset,
    Kind::ClientHalfOpen,
    Kind::SlowDisk,
];
const BESIDE: u64 = 30;

/// A plan, perhaps with legs whose devices hang.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    if plan.faults.iter().any(|it| it.kind == Kind::DeepQueue) {
        return;
    }
    match is_mild(plan) {
        true if random.up_to(OF - 1) == 0 => return with_little_else(plan, random),
        true => return,
        false if random.up_to(1) == 0 => return,
        false => {}
    }
    for _ in 0..1 + random.up_to(1) {
        let at_ns = random.up_to(WINDOW_NS);
        // Shorter than a time-out of a request, and longer than the bound after it (T9).
        let lasts_ns = (500 << random.up_to(4)) * MS;
        hang(plan, at_ns, lasts_ns, random);
    }
}

fn with_little_else(plan: &mut Plan, random: &mut Random) {
    let Some(shape) = plan.layout.mirror.as_mut() else {
        return;
    };
    (shape.unfenced, shape.put_back, shape.exchanged) = (false, false, false);
    let habit = &mut plan.layout.habit;
    habit.pause_ns = habit.pause_ns * habit.total / REQUESTS;
    (habit.total, habit.blocks) = (REQUESTS, BLOCKS);
    habit.depth = habit.depth.max(DEPTH);
    plan.faults.clear();
    for number in 0..HANGS {
        let at_ns = 500 * MS + number * APART_NS + random.up_to(2_000) * MS;
        let lasts_ns = (500 << random.up_to(2)) * MS;
        hang(plan, at_ns, lasts_ns, random);
    }
    plan.add_some((&MILD, BESIDE), (500 * MS, HANGS * APART_NS), random);
}

/// The device of a leg hangs; perhaps its host dies then, or loses its connections there.
fn hang(plan: &mut Plan, at_ns: u64, lasts_ns: u64, random: &mut Random) {
    let whom = Whom::new(&plan.layout, random);
    let leg = random.up_to(whom.legs - 1);
    let processes: Vec<u64> = whom.processes(leg).collect();
    plan.add(
        Kind::HungSubmit,
        at_ns,
        lasts_ns,
        one_of(&processes, random),
    );
    let ends_ns = at_ns + 50 * MS + random.up_to(lasts_ns / 2);
    match random.up_to(3) {
        0 => {}
        1 => {
            let away_ns = (5 + random.up_to(400)) * MS;
            plan.add(Kind::KillHost, ends_ns, away_ns, random.up_to(u64::MAX));
        }
        _ => plan.add_each(Kind::Reset, ends_ns, MS, whom.paths(leg)),
    }
}

impl Course<'_> {
    /// Nodes whose device such a fault concerns, and which that is.
    fn those_that_hang(&self, fault: &Fault, target: usize) -> Vec<(usize, LocalDevice)> {
        let leg = self.rig.disk_of(target);
        let shape = self.plan.layout.mirror;
        if shape.is_some_and(|it| it.is_local(leg)) {
            return vec![(self.rig.mirror_node(0), LocalDevice(leg as u16))];
        }
        let all = 0..self.rig.targets.len();
        let all = all.filter(move |&it| match bit(fault) {
            true => self.rig.disk_of(it) == leg,
            false => it == target,
        });
        all.map(|it| (self.rig.targets[it], LocalDevice(0)))
            .collect()
    }

    /// The device of a leg hangs.
    pub(in crate::chaos) fn hang_leg(&mut self, fault: &Fault, target: usize, until_ns: u64) {
        for (node, device) in self.those_that_hang(fault, target) {
            self.rig.world.hang(node, device, until_ns);
        }
    }

    /// Whether no process of a leg may have late writes.
    pub(in crate::chaos) fn may_hang(&self, target: usize) -> bool {
        let leg = self.rig.disk_of(target);
        let now_ns = self.rig.world.now_ns;
        let mut late = self.late_ns.iter().enumerate();
        late.all(|(it, &late_ns)| self.rig.disk_of(it) != leg || late_ns <= now_ns)
    }

    /// How many requests its device took while it hung.
    pub(in crate::chaos) fn were_hung(&self, fault: &Fault, target: usize) -> u64 {
        let those = self.those_that_hang(fault, target).into_iter();
        those.map(|it| self.rig.world.nodes[it.0].were_hung).sum()
    }
}
