//! Worlds with a mirror in which a leg shows an older state of itself, and says nothing of that:
//! its storage was put back to a snapshot. It lacks what was written since, also what no bit names
//! any more, and calls itself in sync.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in three of four worlds in which much may happen (see
//! `ample`). A leg is taken out and returned, so that there are events; then it leaves once more,
//! its processes die, perhaps the host does, and they come again with what it had before all that:
//! once soon, and once when bits of what was written since are cleared. So does every leg there
//! whose processes all die for long, where that may be.
//!
//! # Limits
//! Only what a mirror can notice, and nothing that only that leg has: there was an event before
//! it left, and the others are in sync by what each of them says, now and with the power gone.
//! One that its mirror is using is left alone, and so is one whose older state would do by
//! itself: of either nobody could tell. Where others call it in sync a mirror does not start
//! without its user's word: what was newest may have been there alone.
use super::super::judged::Check;
use super::super::kind::Kind;
use super::super::plan::{Fault, Plan, WINDOW_NS};
use super::super::rig::KATO_MS;
use super::super::run::Course;
use super::ample::is_mild;
use super::plan::{MS, Whom, fault};
use super::plug::Legs;
use alloc::vec::Vec;
use shape::Random;
use volume::mirror::Superblock;
use volume::mirror::superblock::LegState;

/// Who is away for so long is missed by its host, whatever is lost on the way: it is read anew.
const MISSED_NS: u64 = 2 * KATO_MS as u64 * MS + 200 * MS;
/// By then a mirror runs, mostly.
const BEGUN_NS: u64 = 2_000 * MS;
/// By then applications have ended, mostly, and so long ago that a mirror has forgotten what it
/// intended: after twice the time that a region must be quiet.
const LATE_NS: u64 = 3 * WINDOW_NS + 11_000 * MS;
/// So many lineages later it may be too long ago for a mirror to know the state: its superblocks
/// name 16 of them, and hosts may die some times before they read it.
const LINEAGES: usize = 6;

/// What a leg had once.
#[derive(Clone)]
pub(in crate::chaos) struct Image {
    bytes: Vec<u8>,
    said: Superblock,
}

/// A plan, perhaps with a leg that is put back.
pub(in crate::chaos) fn plan(mut plan: Plan) -> Plan {
    let mut random = Random::new(plan.seed ^ 0x9b7b_ac00);
    let random = &mut random;
    let mild = is_mild(&plan);
    let Some(shape) = plan.layout.mirror.as_mut().filter(|_| !mild) else {
        return plan;
    };
    if random.up_to(3) == 0 {
        return plan;
    }
    shape.put_back = true;
    for late in [false, true] {
        put_back_once(&mut plan, late, random);
    }
    plan.faults.sort_by_key(|fault| fault.at_ns);
    plan
}

/// A leg is taken out and returned, then it is taken out once more and dies: soon, or `late`.
fn put_back_once(plan: &mut Plan, late: bool, random: &mut Random) {
    let whom = Whom::new(&plan.layout, random);
    let leg = random.up_to(whom.legs - 1);
    let mut add = |kind, at_ns, lasts_ns, whom| {
        plan.faults.push(fault(kind, at_ns, lasts_ns, whom));
    };
    let first_ns = BEGUN_NS + random.up_to(WINDOW_NS);
    let again_ns = match late {
        true => LATE_NS + random.up_to(3_000) * MS,
        false => first_ns + (1_000 + random.up_to(4_000)) * MS,
    };
    let gone_ns = again_ns + (50 + random.up_to(500)) * MS;
    let away_ns = MISSED_NS + random.up_to(2_000) * MS;
    let one = || whom.processes(leg).take(1);
    one().for_each(|it| add(Kind::FailLeg, first_ns, 100 * MS, it));
    one().for_each(|it| add(Kind::FailLeg, again_ns, away_ns, it));
    if random.up_to(2) == 0 {
        add(Kind::KillHost, gone_ns - MS, random.up_to(away_ns), 0);
    }
    let all = whom.processes(leg);
    all.for_each(|it| add(Kind::Kill, gone_ns, away_ns, it));
}

impl Course<'_> {
    /// Keeps what legs have, of each once, while all are in sync; until the next event now and then
    /// anew.
    pub(super) fn keep_images(&mut self) {
        if !self.plan.layout.mirror.is_some_and(|it| it.put_back) {
            return;
        }
        let anew = self.rig.world.random.up_to(7) == 0;
        let legs = Legs::of(&self.rig.world.disks, false);
        let all_in_sync = |it: &Superblock| it.entries().all(|it| it.1.state == LegState::InSync);
        let mut kept = Vec::new();
        for (leg, said) in legs.said().iter().enumerate() {
            let Some(said) = said.as_ref().ok().filter(|it| all_in_sync(it)) else {
                continue;
            };
            let kept_before = self.images[leg].as_ref();
            if kept_before.is_none_or(|it| anew && it.said.event == said.event) {
                let bytes = self.rig.world.disks[leg].contents(false).to_vec();
                kept.push((leg, Image { bytes, said: *said }));
            }
        }
        for (leg, image) in kept {
            self.images[leg] = Some(image);
        }
    }

    /// A process of the target has died: its leg is put back, if that may be.
    pub(in crate::chaos) fn put_back(&mut self, fault: &Fault, target: usize) {
        if !self.plan.layout.mirror.is_some_and(|it| it.put_back) || fault.lasts_ns < MISSED_NS {
            return;
        }
        let leg = self.rig.disk_of(target);
        let world = &self.rig.world;
        let mut processes = (0..self.rig.targets.len()).filter(|&it| self.rig.disk_of(it) == leg);
        let gone = processes.all(|it| world.nodes[self.rig.targets[it]].is_dead());
        let noticed = |durable| self.would_notice(leg, durable);
        if !gone || self.bare.iter().any(|it| *it) || !noticed(false) || !noticed(true) {
            return;
        }
        if let Some(image) = self.images[leg].take() {
            self.rig.world.disks[leg].put_back(&image.bytes);
            self.report.judged.insert(Check::PutBack);
        }
    }

    /// Whether a mirror has to notice that a leg shows what it had once, and needs nothing of it,
    /// by what the others say; `durable`: with the power gone.
    fn would_notice(&self, leg: usize, durable: bool) -> bool {
        let Some(Image { said: old, .. }) = &self.images[leg] else {
            return false;
        };
        let dead = self.rig.world.nodes[self.rig.mirror_node(0)].is_dead();
        let legs = Legs::of(&self.rig.world.disks, durable);
        let others = (0..).zip(legs.said()).filter(|it| it.0 != leg);
        others.map(|it| it.1).all(|said| {
            let Ok(said) = said else { return false };
            let whole = |it: (u8, LegState)| usize::from(it.0) == leg || it.1 == LegState::InSync;
            let states: Vec<_> = said.entries().map(|it| (it.0, it.1.state)).collect();
            let own = states.iter().find(|it| it.0 == old.slot);
            let newest = said.history.as_slice().iter().rev().take(LINEAGES);
            let known = newest
                .map(|it| it.id)
                .any(|it| it == old.history.current().id);
            let noticed = match own.map(|it| it.1) {
                Some(LegState::Stale(lack)) => lack.seen_event > old.event,
                Some(LegState::Rebuilding(lack)) => dead && lack.seen_event > old.event,
                Some(LegState::InSync) | None => false,
            };
            noticed && known && said.event >= old.event + 2 && states.into_iter().all(whole)
        })
    }
}
