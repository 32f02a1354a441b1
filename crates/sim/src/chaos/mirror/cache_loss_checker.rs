//! Hosts that die with a mirror, those that take it over, and what legs had lost by then.
use super::crash_checker::Legs;
use super::exchanged::leg_of;
use crate::chaos::prelude::*;

/// The bit of [`Fault::whom`] that says that another host comes after one that died.
pub(super) const OTHER: u64 = 1 << 12;

impl Course<'_> {
    /// Another host has the mirror from now on, which knows nothing of what was left.
    pub(in crate::chaos) fn inherit(&mut self, fault: &Fault, host: usize) {
        let shared = self.plan.layout.mirror.is_some_and(|it| it.shared);
        if shared && fault.whom & OTHER != 0 {
            self.replace(host);
        }
    }

    /// As above, for any fault.
    pub(super) fn replace(&mut self, host: usize) {
        let host = &mut self.rig.hosts[host];
        host.heirs += 1;
        (host.mark_ns, host.losses) = (None, 0);
    }

    /// Whether contents that a leg loses with a cache are on another one, and the mirror's host is
    /// there to notice: then no client may see a loss. From then on that leg is bare, until it is
    /// not in sync any more. A host that stands still may find, when it goes on, that it has lost
    /// the controllers of all legs: then it can't find out which of them has a cache less.
    pub(in crate::chaos) fn is_covered(&mut self, leg: usize) -> bool {
        if self.plan.layout.mirror.is_none() {
            return false;
        }
        self.look_at_bare();
        let Some(in_sync) = Legs::of(self.rig.leg_disks(), false).in_sync() else {
            return false;
        };
        let host = &self.rig.hosts[0];
        let node = &self.rig.world.nodes[self.rig.mirror_node(0)];
        let Some(engine) = node.core() else {
            return false;
        };
        let well = host.stopping.is_none() && !node.stopped && !self.is_frozen(0);
        let report = engine.mirror(MIRRORS_FROM);
        let covered = report.filter(|it| well && it.state == MirrorState::Running);
        let covered = covered.is_some_and(|report| {
            (0..in_sync.len()).any(|other| {
                let there = leg_of(&report.legs, other);
                let there = there.is_some_and(|it| it.status == LegStatus::InSync);
                let whole = !self.bare[other] && self.cuts[other].is_none();
                other != leg && there && in_sync[other] && whole
            })
        });
        if covered {
            self.bare[leg] = true;
            self.bare_ns.get_or_insert(self.rig.world.now_ns);
        }
        covered
    }

    /// Legs that have left, and are not bare any more. Where the user has taken out the one that
    /// had everything, before the mirror could know that the others had lost something, what was
    /// acknowledged, and not flushed, may be gone.
    pub(super) fn look_at_bare(&mut self) {
        let Some(in_sync) = Legs::of(self.rig.leg_disks(), false).in_sync() else {
            return;
        };
        for (bare, in_sync) in self.bare.iter_mut().zip(&in_sync) {
            *bare &= in_sync;
        }
        let some = self.bare.iter().any(|it| *it);
        self.taken_blindly &= some || self.is_frozen(0);
        let lost_ns = self.bare_ns.filter(|_| some);
        self.bare_ns = lost_ns;
        let mut legs = in_sync.iter().zip(&self.bare);
        if self.taken_blindly && some && legs.all(|(in_sync, bare)| in_sync == bare) {
            let now_ns = self.rig.world.now_ns;
            self.history.crash_of_one(lost_ns.unwrap_or(now_ns));
            self.bare.fill(false);
        }
    }

    /// The user takes a leg out: whether the mirror could know by now what others have lost.
    pub(super) fn takes_out(&mut self, leg: usize, host: usize) {
        self.look_at_bare();
        let others = Legs::of(self.rig.leg_disks(), false).in_sync();
        let mut others = others.into_iter().flatten().zip(&self.bare).enumerate();
        let whole = others.any(|(other, (in_sync, bare))| other != leg && in_sync && !bare);
        self.taken_blindly |= !whole || self.is_frozen(host);
    }

    /// Whether the core of a host's mirror stands still.
    fn is_frozen(&self, host: usize) -> bool {
        let world = &self.rig.world;
        world.nodes[self.rig.mirror_node(host)].frozen_ns > world.now_ns
    }

    /// A host is about to die. Its successor may take a bare leg for in sync: acknowledged writes
    /// that were not flushed may be gone from now on.
    pub(in crate::chaos) fn bare_legs(&mut self) {
        if self.plan.layout.mirror.is_none() {
            return;
        }
        self.look_at_bare();
        if self.bare.iter().any(|it| *it) {
            self.history.crash_of_one(self.rig.world.now_ns);
            self.bare.fill(false);
        }
    }
}
