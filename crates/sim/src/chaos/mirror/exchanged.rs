//! Worlds with a mirror whose host begins with exchanged legs: its configuration names them in
//! another order, or one of them, or all, are those of another mirror.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in half of the worlds in which much may happen (see
//! `ample`). The host dies and begins again with them at once. Legs that it names in another order
//! keep that order, and it has to find out which leg is which. It has to refuse the legs of another
//! mirror, and change nothing there; when the fault is over it dies once more, and begins with its
//! own.
//!
//! # Limits
//! The other mirror has another name and another number. An engine of it does not run.
use super::plan::Whom;
use crate::chaos::prelude::*;
use engine::mirror::LegReport;

/// A plan, perhaps with legs that are exchanged.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let mild = is_mild(plan);
    let Some(shape) = plan.layout.mirror.as_mut().filter(|_| !mild) else {
        return;
    };
    if random.up_to(1) == 0 {
        return;
    }
    shape.exchanged = true;
    for _ in 0..1 + random.up_to(1) {
        let mut whom = Whom::new(&plan.layout, random);
        whom.free = random.up_to(1 << 40);
        let at_ns = random.up_to(2 * WINDOW_NS);
        let lasts_ns = (5 << random.up_to(10)) * MS;
        let leg = random.up_to(whom.legs - 1);
        plan.add(Kind::Exchange, at_ns, lasts_ns, whom.first(leg));
    }
}

/// The leg of this number, wherever the configuration names it.
pub(in crate::chaos) fn leg_of(legs: &[LegReport], leg: usize) -> Option<&LegReport> {
    let mut legs = legs.iter();
    legs.find(|it| it.volume.map(usize::from) == Some(leg))
}

impl Course<'_> {
    /// A host dies, and begins with other legs.
    pub(in crate::chaos) fn exchange(&mut self, fault: &Fault, host: usize) {
        let legs = self.rig.leg_disks().len();
        let leg = self.rig.disk_of(self.drawn(fault).target);
        self.kill_host(host);
        match fault.whom / 64 % 4 {
            0 | 1 => {
                let by = 1 + fault.whom as usize / 256 % (legs - 1);
                self.rig.hosts[host].turned += by;
            }
            2 => self.set_foreign(|it| it == leg),
            _ => self.set_foreign(|_| true),
        }
        self.start_host(host);
        self.report.judged.insert(Check::Exchanged);
    }

    /// A host begins again with the legs of its mirror.
    pub(in crate::chaos) fn exchange_back(&mut self, host: usize) {
        if !self.rig.foreign.contains(&true) {
            return;
        }
        // A host that is dead, or stops, begins with them when that is over.
        let it = &self.rig.hosts[host];
        let node = self.rig.mirror_node(host);
        let anew = it.stopping.is_none() && !self.rig.world.nodes[node].is_dead();
        if anew {
            self.kill_host(host);
        }
        self.set_foreign(|_| false);
        if anew {
            self.start_host(host);
        }
    }

    /// Processes of the target have the legs of another mirror.
    fn set_foreign(&mut self, is_foreign: impl Fn(usize) -> bool) {
        for target in 0..self.rig.targets.len() {
            let foreign = is_foreign(self.rig.disk_of(target));
            if core::mem::replace(&mut self.rig.foreign[target], foreign) == foreign {
                continue;
            }
            self.rig.restart_target(target);
        }
    }

    /// No leg of another mirror has changed.
    pub(super) fn others_are_untouched(&self) -> Result<(), Finding> {
        let legs = self.rig.leg_disks().len();
        let others = self.rig.world.disks.iter().skip(legs);
        for (leg, disk) in others.enumerate() {
            if disk.changes(false, 0..LEG_BYTES as usize) != self.rig.untouched[leg] {
                let what = format!("leg {leg} of another mirror was changed");
                return Err(Finding::Wrong(what));
            }
        }
        Ok(())
    }
}
