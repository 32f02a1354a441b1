//! Worlds with a mirror in which a leg's namespace becomes smaller and as large again, and what lay
//! behind its new end is gone: zeroes are there, which nothing tells from data (T50).
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in half of the worlds in which much may happen (see
//! `ample`). A leg that is in sync shrinks, for a moment or until applications have ended, or when
//! they have and no bit says what it lacks; in one of three worlds it is the last one in sync. It
//! grows once the legs say that it left, or where it
//! was cut, and no host ends before that; in half of these worlds the host dies then, and the leg
//! grows while the next process runs, or before it begins.
//!
//! # Limits
//! Shrinking and growing while no engine runs, or between two checks of it, goes unnoticed
//! ([docs/mirrors.md](../../../../../docs/mirrors.md)). The leg's metadata stay. Ranges that users
//! have accepted as lost are not checked any more.
use super::crash_checker::Legs;
use super::plan;
use super::put_back::LATE_NS;
use crate::chaos::prelude::*;
use engine::mirror::LegOrder;
use mirror::Superblock;

/// The bit of [`Fault::whom`] that says that the host dies while the leg is small.
const DIES: u64 = 1 << 15;
/// The bit of [`Fault::whom`] that says that the leg grows before the next process begins.
const BEFORE: u64 = 1 << 16;
/// For how long a leg waits until it is in sync, and can shrink, ns.
pub(in crate::chaos) const WAIT_NS: u64 = 12_000 * MS;
/// How often it is looked whether a leg may grow, ns.
const LOOK_NS: u64 = 5 * MS;

/// Contents that a leg has lost.
#[derive(Clone, Copy, Debug)]
pub(in crate::chaos) struct Shrunk {
    /// From this byte of the mirror on.
    pub from: u64,
    /// It is written down that it left, or where it was cut.
    seen: bool,
}

/// Records of legs about one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It is in sync.
    Whole,
    /// It is in sync, and was cut.
    Cut,
    /// It is not in sync.
    Left,
}

/// How far the death of a host is that comes while a leg is small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::chaos) enum Restart {
    #[default]
    Not,
    Dead,
    Begun,
}

/// A plan, perhaps with a leg that shrinks.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    if is_mild(plan) || random.up_to(1) == 0 {
        return;
    }
    let mut whom = plan::Whom::new(&plan.layout, random);
    whom.free = random.up_to(1 << 40);
    let leg = random.up_to(whom.legs - 1);
    let at_ns = match random.up_to(1) {
        0 => LATE_NS + random.up_to(3_000) * MS,
        _ => 1_000 * MS + random.up_to(WINDOW_NS),
    };
    let lasts_ns = match random.up_to(3) {
        0 => LATE_NS.saturating_sub(at_ns) + random.up_to(5_000) * MS,
        _ => (5 << random.up_to(9)) * MS,
    };
    if random.up_to(2) == 0 {
        // The others are out by then, most of the time.
        let away_ns = (100 + random.up_to(3_000)) * MS;
        for other in 1..whom.legs {
            let out_ns = at_ns.saturating_sub(random.up_to(300) * MS);
            let lasts_ns = away_ns + (at_ns - out_ns);
            plan.add(Kind::FailLeg, out_ns, lasts_ns, whom.first(leg + other));
        }
    }
    plan.faults.push(Fault {
        when: Some(PathState::Live),
        ..fault(Kind::Shrink, at_ns, lasts_ns, whom.first(leg))
    });
}

/// The first block of the mirror that is lost, of those that applications use.
pub(in crate::chaos) fn first_lost(fault: &Fault, blocks: u64) -> u64 {
    fault.whom / 64 % blocks
}

impl Course<'_> {
    fn leg_of(&self, whom: Whom) -> usize {
        self.rig.disk_of(whom.target)
    }

    /// Blocks that a leg's namespace has left; `None`: all.
    pub(in crate::chaos) fn shrunk_to(&self, target: usize) -> Option<u64> {
        let leg = self.rig.disk_of(target);
        let data_at = (self.rig.world.disks.get(leg)?.data_at / BLOCK) as u64;
        let those = self.ongoing(&[Kind::Shrink]);
        let those = those.iter().filter(|it| self.leg_of(it.2) == leg);
        let first = |it: &Fault| first_lost(it, self.plan.layout.habit.blocks);
        those.map(|it| data_at + first(&it.0)).min()
    }

    /// Whether a leg may shrink now: it is in sync, and its mirror can notice.
    pub(in crate::chaos) fn may_shrink(&self, whom: Whom) -> bool {
        let leg = self.leg_of(whom);
        let engine = self.rig.mirror_core(whom.host);
        let state = engine
            .and_then(|it| it.mirror(MIRRORS_FROM))
            .map(|it| it.state);
        let legs = Legs::of(self.rig.leg_disks(), false);
        let in_sync = legs.in_sync().is_some_and(|it| it[leg]);
        in_sync && state == Some(MirrorState::Running) && self.cuts[leg].is_none()
    }

    /// A leg shrinks.
    pub(in crate::chaos) fn shrink_leg(&mut self, fault: &Fault, whom: Whom) {
        let leg = self.leg_of(whom);
        self.takes_out(leg, whom.host);
        let from = first_lost(fault, self.plan.layout.habit.blocks) * BLOCK as u64;
        self.cuts[leg] = Some(Shrunk { from, seen: false });
        let disk = &mut self.rig.world.disks[leg];
        disk.shrink(disk.data_at + from as usize);
        self.set_sizes(leg);
        self.report.judged.insert(Check::Shrunk);
    }

    /// A leg is as large again.
    pub(in crate::chaos) fn grow_leg(&mut self, whom: Whom) {
        let leg = self.leg_of(whom);
        self.rig.world.disks[leg].grow();
        self.set_sizes(leg);
        if core::mem::take(&mut self.restarts[leg]) == Restart::Dead {
            self.start_host(whom.host);
        }
    }

    fn set_sizes(&mut self, leg: usize) {
        for target in 0..self.rig.targets.len() {
            if self.rig.disk_of(target) == leg {
                self.set_size(target);
            }
        }
    }

    /// Checks the records of legs about their losses, or about those of others: as they are, and
    /// without caches.
    pub(super) fn look_at_cuts(&mut self) {
        if self.cuts.iter().all(Option::is_none) {
            return;
        }
        let Some(now) = self.said_of_cuts(false) else {
            return;
        };
        let durable = match self.plan.layout.caches {
            true => self.said_of_cuts(true),
            false => None,
        };
        let durable = durable.unwrap_or_else(|| now.clone());
        for ((cut, now), durable) in self.cuts.iter_mut().zip(now).zip(durable) {
            match (now, durable) {
                // All of it is copied when it returns.
                (Said::Left, Said::Left) => *cut = None,
                (now, durable) => {
                    let seen = now != Said::Whole && durable != Said::Whole;
                    cut.iter_mut().for_each(|it| it.seen = seen);
                }
            }
        }
    }

    /// Returns the records about each leg; `None`: they are no mirror.
    fn said_of_cuts(&self, durable: bool) -> Option<Vec<Said>> {
        let legs = Legs::of(self.rig.leg_disks(), durable);
        let each = legs.in_sync()?.into_iter().zip(legs.said()).zip(&self.cuts);
        let each = each.map(|((in_sync, said), cut)| {
            // It may have been smaller before, but not as small.
            let end = cut.map_or(u64::MAX, |it| it.from.max(1));
            let is_cut = |it: &Superblock| it.cut_at > 0 && it.cut_at <= end;
            match in_sync {
                false => Said::Left,
                true if said.as_ref().is_ok_and(is_cut) => Said::Cut,
                true => Said::Whole,
            }
        });
        Some(each.collect())
    }

    /// Whether that a leg shrank is not written down yet.
    fn is_unseen_on(&mut self, leg: usize) -> bool {
        self.look_at_cuts();
        self.cuts[leg].is_some_and(|it| !it.seen)
    }

    /// As above, of any leg.
    pub(in crate::chaos) fn is_any_unseen(&self) -> bool {
        self.cuts.iter().flatten().any(|it| !it.seen)
    }

    /// Executes the step before a leg grows; returns how long that takes, ns.
    pub(in crate::chaos) fn before_growth(&mut self, number: usize, fault: &Fault) -> Option<u64> {
        let whom = self.going_on[number].filter(|_| fault.kind == Kind::Shrink)?;
        let leg = self.leg_of(whom);
        if self.is_unseen_on(leg) {
            return Some(LOOK_NS);
        }
        let (next, within) = match self.restarts[leg] {
            Restart::Not if fault.whom & DIES != 0 && self.host_is_well(whom.host) => {
                self.kill_host(whom.host);
                (Restart::Dead, 600)
            }
            Restart::Dead if fault.whom & BEFORE == 0 => {
                self.start_host(whom.host);
                (Restart::Begun, 3_000)
            }
            _ => return None,
        };
        self.restarts[leg] = next;
        Some(self.rig.world.random.up_to(within) * MS)
    }

    /// Legs that return after a loss was accepted may have what was lost: people make them the same
    /// as the one that lost it.
    pub(super) fn repair_accepted(&mut self, host: usize) {
        let engine = self.rig.mirror_core(host);
        let report = engine.and_then(|it| it.mirror(MIRRORS_FROM));
        let (Some(report), Some((leg, asked))) = (report, self.accepted) else {
            return;
        };
        let well = report.legs.iter().all(|it| it.status == LegStatus::InSync);
        match asked {
            _ if !well || report.checking.is_some() => {}
            true => self.accepted = None,
            false => {
                self.rig.order_leg(host, leg as u8, LegOrder::RepairFrom);
                self.accepted = Some((leg, true));
            }
        }
    }

    /// People take what the last leg in sync has lost for lost.
    pub(super) fn accept_loss(&mut self, leg: usize) {
        if let Some(it) = self.cuts[leg] {
            let first = it.from / self.plan.layout.habit.unit;
            self.history.lose(first, self.rig.world.now_ns);
            self.accepted = Some((leg, false));
        }
    }
}
