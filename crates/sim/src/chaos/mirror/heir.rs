//! Hosts that die with a mirror, those that take it over, and what legs had lost by then.
use super::super::node::Body;
use super::super::plan::Fault;
use super::super::run::Course;
use super::plug::Legs;
use engine::mirror::{LegStatus, MIRRORS_FROM, MirrorState};

/// The bit of [`Fault::whom`] that says that another host comes after one that died.
pub(super) const OTHER: u64 = 1 << 12;

impl Course<'_> {
    /// Another host has the mirror from now on, which knows nothing of what was left.
    pub(in crate::chaos) fn inherit(&mut self, fault: &Fault, host: usize) {
        let shared = self.plan.layout.mirror.is_some_and(|it| it.shared);
        if shared && fault.whom & OTHER != 0 {
            let host = &mut self.rig.hosts[host];
            host.heirs += 1;
            host.mark_ns = None;
        }
    }

    /// Whether what a leg loses with a cache is on another one, and the mirror's host is there to
    /// notice: then nobody may see that anything was lost. From then on that leg is bare, until it
    /// is not called in sync any more.
    pub(in crate::chaos) fn is_covered(&mut self, leg: usize) -> bool {
        if self.plan.layout.mirror.is_none() {
            return false;
        }
        self.look_at_bare();
        let Some(in_sync) = Legs::of(&self.rig.world.disks, false).in_sync() else {
            return false;
        };
        let host = &self.rig.hosts[0];
        let node = &self.rig.world.nodes[self.rig.mirror_node(0)];
        let Body::Core(engine) = &node.body else {
            return false;
        };
        let well = host.stopping.is_none() && !node.stopped;
        let report = engine.mirror(MIRRORS_FROM);
        let covered = report.filter(|it| well && it.state == MirrorState::Running);
        let covered = covered.is_some_and(|report| {
            (0..report.legs.len()).any(|other| {
                let there = report.legs[other].status == LegStatus::InSync;
                other != leg && there && in_sync[other] && !self.bare[other]
            })
        });
        self.bare[leg] |= covered;
        covered
    }

    /// Legs that have left, and are not bare any more.
    pub(super) fn look_at_bare(&mut self) {
        if let Some(in_sync) = Legs::of(&self.rig.world.disks, false).in_sync() {
            for (bare, in_sync) in self.bare.iter_mut().zip(in_sync) {
                *bare &= in_sync;
            }
        }
    }

    /// A host is about to die. Who comes after it may take a leg for in sync that is bare: what was
    /// acknowledged, and not flushed, may be gone from now on.
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
