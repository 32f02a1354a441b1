//! Worlds with a mirror in which a leg shows an older state of itself, and says nothing of that:
//! its storage was put back to a snapshot. It lacks what was written since, also what no bit names
//! any more, and calls itself in sync.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in three of four worlds in which much may happen (see
//! `ample`). A leg is taken out and returned, so that there are generations; then it is taken out
//! once more, its processes die, perhaps the host does, and they come again with the contents from
//! before all that: once soon, and once when bits of later writes are cleared. So does every leg
//! there whose last process dies of [`Kind::Kill`], where that may be. Requests that dead processes
//! had at the device are never executed.
//!
//! # Limits
//! Only states that a mirror has to notice, and no loss of contents that only that leg has: by its
//! own superblock there were two generations since, of which it had one for certain; the others are
//! in sync, and call it stale, by the superblock of each, now and with the power gone. A leg that a
//! mirror may have in its memory is left alone: its host is dead, or the user has taken it out. So
//! is one whose older state would pass by itself, since that can't be detected, and one that the
//! others call in sync, since a mirror does not start then without its user's consent: the newest
//! contents may have been there alone.
use super::crash_checker::Legs;
use super::exchanged::leg_of;
use super::plan::Whom;
use crate::chaos::prelude::*;
use mirror::Superblock;
use mirror::history::Standing;
use mirror::superblock::EntryState;

/// By then a mirror runs, mostly.
const BEGUN_NS: u64 = 2_000 * MS;
/// By then applications have ended, mostly, and so long ago that a mirror has forgotten what it
/// intended: after twice the time that a region must be quiet.
pub(super) const LATE_NS: u64 = 3 * WINDOW_NS + 11_000 * MS;
/// So many lineages later it may be too long ago for a mirror to know the state: its superblocks
/// name 16 of them, and hosts may die some times before they read it.
const LINEAGES: usize = 6;

/// Contents of a leg at an earlier time.
#[derive(Clone)]
pub(in crate::chaos) struct Image {
    bytes: Vec<u8>,
    said: Superblock,
}

/// A plan, perhaps with a leg that is put back.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let mild = is_mild(plan);
    let Some(shape) = plan.layout.mirror.as_mut().filter(|_| !mild) else {
        return;
    };
    if random.up_to(3) == 0 {
        return;
    }
    shape.put_back = true;
    for late in [false, true] {
        put_back_once(plan, late, random);
    }
}

/// A leg is taken out and returned, then it is taken out once more and dies: soon, or `late`.
fn put_back_once(plan: &mut Plan, late: bool, random: &mut Random) {
    let whom = Whom::new(&plan.layout, random);
    let leg = random.up_to(whom.legs - 1);
    let first_ns = BEGUN_NS + random.up_to(WINDOW_NS);
    let again_ns = match late {
        true => LATE_NS + random.up_to(3_000) * MS,
        false => first_ns + (1_000 + random.up_to(4_000)) * MS,
    };
    let gone_ns = again_ns + (50 + random.up_to(500)) * MS;
    let away_ns = (100 + random.up_to(4_000)) * MS;
    plan.add(Kind::FailLeg, first_ns, 100 * MS, whom.first(leg));
    plan.add(Kind::FailLeg, again_ns, away_ns, whom.first(leg));
    if random.up_to(2) == 0 {
        plan.add(Kind::KillHost, gone_ns - MS, random.up_to(away_ns), 0);
    }
    plan.add_each(Kind::Kill, gone_ns, away_ns, whom.processes(leg));
}

impl Course<'_> {
    /// Keeps what legs have, of each once, while all are in sync; until the next event now and then
    /// anew.
    pub(super) fn keep_images(&mut self) {
        if !self.plan.layout.mirror.is_some_and(|it| it.put_back) {
            return;
        }
        let anew = self.rig.world.random.up_to(7) == 0;
        let count = self.rig.leg_disks().len();
        if !anew && self.images[..count].iter().all(Option::is_some) {
            return;
        }
        let legs = Legs::of(self.rig.leg_disks(), false);
        let all_in_sync = |it: &Superblock| it.entries().all(|it| it.1.state == EntryState::InSync);
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
    pub(in crate::chaos) fn put_back(&mut self, target: usize) {
        if !self.plan.layout.mirror.is_some_and(|it| it.put_back) {
            return;
        }
        let leg = self.rig.disk_of(target);
        let of_leg = |it: &usize| self.rig.disk_of(*it) == leg;
        let processes = (0..self.rig.targets.len()).filter(of_leg);
        let processes: Vec<usize> = processes.map(|it| self.rig.targets[it]).collect();
        let world = &self.rig.world;
        let gone = processes.iter().all(|&node| world.nodes[node].is_dead());
        let unused = self.is_unused(leg) && !self.bare.iter().any(|it| *it);
        let noticed = |durable| self.would_notice(leg, durable);
        if !gone || !unused || !noticed(false) || !noticed(true) {
            return;
        }
        if let Some(image) = self.images[leg].take() {
            let world = &mut self.rig.world;
            world.disks[leg].put_back(&image.bytes);
            processes.iter().for_each(|&node| world.drop_requests(node));
            self.report.judged.insert(Check::PutBack);
        }
    }

    /// Whether no mirror has anything of a leg in its memory: it reads what is there before it does
    /// anything with it.
    fn is_unused(&self, leg: usize) -> bool {
        match &self.rig.world.nodes[self.rig.mirror_node(0)].body {
            Body::Core(engine) => {
                let report = engine.mirror(MIRRORS_FROM);
                report.is_some_and(|it| leg_of(&it.legs, leg).is_some_and(|leg| leg.admin_offline))
            }
            body => matches!(body, Body::Dead),
        }
    }

    /// Whether a mirror has to notice that a leg shows what it had once, and needs nothing of it,
    /// by what all of them say now; `durable`: with the power gone.
    fn would_notice(&self, leg: usize, durable: bool) -> bool {
        let Some(Image { said: old, .. }) = &self.images[leg] else {
            return false;
        };
        let legs = Legs::of(self.rig.leg_disks(), durable);
        let (id, event) = (old.history.current().id, old.event);
        (0..).zip(legs.said()).all(|(other, said)| {
            let Ok(said) = said else { return false };
            // With one generation more, it is not known whether the leg had it.
            let later = said.event >= event + 2;
            if other == leg {
                return later;
            }
            let mut states = said.entries().map(|it| (usize::from(it.0), it.1.state));
            let newest = said.history.as_slice().iter().rev().take(LINEAGES);
            let known = newest.map(|it| it.id).any(|it| it == id)
                && said.history.standing(event, id, said.event) == Standing::Within;
            let well = |(slot, state)| match (slot == leg, state) {
                (true, state) => matches!(state, EntryState::Stale(_)),
                (false, state) => state == EntryState::InSync,
            };
            later && known && states.all(well)
        })
    }
}
