//! Worlds with a mirror in which the device of a leg hangs: it takes requests and executes none, and
//! what it took starts late.
//!
//! # Contract
//! Drawn apart from the rest, on top of it: in half of the worlds in which much may happen (see
//! `ample`). All processes of the leg find it so, or only one, whose leg another one reaches yet.
//! Processes live on: they answer keep-alives and what needs no device. Requests go on one by one,
//! up to [`LONGER_NS`] after the rest; a change only if its association lives by the clock that is
//! read directly before (T49).
//!
//! # Limits
//! Where writes are wanted late (`LateWrites`) no device hangs: they would be later than late.
use super::super::kind::Kind;
use super::super::late::LONGER_NS;
use super::super::plan::{Fault, Plan, WINDOW_NS};
use super::super::rig::IO_TIMEOUT_NS;
use super::super::run::Course;
use super::super::strike::bit;
use super::ample::is_mild;
use super::plan::{MS, Whom, fault};
use alloc::vec::Vec;
use engine::DeviceId;
use shape::Random;

/// How long after its end requests may fail because of one: what hangs longest, and time-outs.
pub(in crate::chaos) const OVER_NS: u64 = LONGER_NS + IO_TIMEOUT_NS;

/// A plan, perhaps with legs whose devices hang.
pub(in crate::chaos) fn plan(mut plan: Plan) -> Plan {
    let mut random = Random::new(plan.seed ^ 0x4a9d_5b00);
    let random = &mut random;
    let deep = plan.faults.iter().any(|it| it.kind == Kind::DeepQueue);
    if is_mild(&plan) || deep || random.up_to(1) == 0 {
        return plan;
    }
    for _ in 0..1 + random.up_to(1) {
        let whom = Whom::new(&plan.layout, random);
        let leg = random.up_to(whom.legs - 1);
        let processes: Vec<u64> = whom.processes(leg).collect();
        let it = processes[random.up_to(processes.len() as u64 - 1) as usize];
        let at_ns = random.up_to(WINDOW_NS);
        // Shorter than a time-out of a request, and longer than the bound after it (T9).
        let lasts_ns = (500 << random.up_to(4)) * MS;
        plan.faults
            .push(fault(Kind::HungSubmit, at_ns, lasts_ns, it));
    }
    plan.faults.sort_by_key(|fault| fault.at_ns);
    plan
}

impl Course<'_> {
    /// Nodes whose device such a fault concerns.
    fn those_that_hang(&self, fault: &Fault, target: usize) -> impl Iterator<Item = usize> {
        let leg = self.rig.disk_of(target);
        let all = 0..self.rig.targets.len();
        let all = all.filter(move |&it| match bit(fault) {
            true => self.rig.disk_of(it) == leg,
            false => it == target,
        });
        all.map(|it| self.rig.targets[it])
    }

    /// The device of a leg hangs.
    pub(in crate::chaos) fn hang_leg(&mut self, fault: &Fault, target: usize, until_ns: u64) {
        let those: Vec<usize> = self.those_that_hang(fault, target).collect();
        for node in those {
            self.rig.world.hang(node, DeviceId(0), until_ns);
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
        let those = self.those_that_hang(fault, target);
        those.map(|it| self.rig.world.nodes[it].were_hung).sum()
    }
}
