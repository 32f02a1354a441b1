//! Worlds with a mirror whose host stands still in a turn, or in a thread of its own, with what it
//! was about to do in its hands (T49); some with legs that are devices of that host.
//!
//! # Contract
//! Drawn apart from the rest. In half of the worlds in which much may happen (see `ample`) what a
//! turn has given out is sent only when its core goes on. One in five of the others has legs that
//! are devices of the mirror's host, which another one reaches as well, beside one behind a target,
//! and this instead of what went wrong there: the host stands still when its turn has given out a
//! change of such a leg, or a thread is about to make it. It goes on and still has the mirror, or
//! finds that another host has taken it over. Directly before the change it reads the clock.
//!
//! # Limits
//! A process that was overtaken does not go on for longer than that: its further messages and
//! requests are not modelled. Requests that its devices had before it stood still are done by then.
use super::super::strike::high_bit;
use super::hung::MILD;
use crate::chaos::prelude::*;

/// Of the worlds in which little may happen one of so many has local legs.
const OF: u64 = 5;
/// How often their host stands still, and how far apart that is.
const HALTS: u64 = 3;
const APART_NS: u64 = 16_000 * MS;
/// Further faults, and how often.
const BESIDE: [Kind; 6] = [
    Kind::ClientSlow,
    Kind::ClientFull,
    Kind::HungSubmit,
    Kind::KillHost,
    Kind::FailLeg,
    Kind::CheckMirror,
];
const FAULTS: u64 = 10;
const MILDS: u64 = 24;

/// A plan, perhaps with local legs, or a host that stands still.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let deep = plan.faults.iter().any(|it| it.kind == Kind::DeepQueue);
    match is_mild(plan) {
        _ if deep => return,
        true if random.up_to(OF - 1) == 0 => return with_local_legs(plan, random),
        true => return,
        false if random.up_to(1) == 0 => return,
        false => {}
    }
    for _ in 0..1 + random.up_to(1) {
        let at_ns = random.up_to(WINDOW_NS);
        // Shorter than a keep-alive time-out, and longer than a lease.
        let lasts_ns = (100 << random.up_to(6)) * MS;
        plan.add(Kind::HaltHost, at_ns, lasts_ns, random.up_to(u64::MAX));
    }
}

fn with_local_legs(plan: &mut Plan, random: &mut Random) {
    let Some(shape) = plan.layout.mirror.as_mut() else {
        return;
    };
    (shape.local, shape.shared, shape.unfenced) = (true, true, false);
    (shape.core, shape.put_back, shape.exchanged) = (0, false, false);
    (plan.layout.cores, plan.layout.ports) = (1, 1);
    plan.layout.targets = shape.legs;
    // Requests are there for as long as faults are.
    plan.layout.habit.pause_ns *= 2;
    plan.faults.clear();
    for number in 0..HALTS {
        let at_ns = 1_500 * MS + number * APART_NS + random.up_to(3_000) * MS;
        let lasts_ns = (3_000 + random.up_to(4_000)) * MS;
        plan.add(Kind::HaltHost, at_ns, lasts_ns, random.up_to(u64::MAX));
    }
    let all_ns = HALTS * APART_NS;
    plan.add_some((&BESIDE, FAULTS), (1_000 * MS, all_ns), random);
    plan.add_some((&MILD, MILDS), (500 * MS, all_ns / 2), random);
}

impl Course<'_> {
    /// Whether another host takes the mirror over while its host stands still.
    fn is_taken_over(&self, fault: &Fault) -> bool {
        let shape = self.plan.layout.mirror;
        shape.is_some_and(|it| it.local) && bit(fault)
    }

    /// The core of a host's mirror stands still from the next turn on that gives something out.
    pub(in crate::chaos) fn halt_host(&mut self, fault: &Fault, host: usize, end_ns: u64) {
        let local = self.plan.layout.mirror.is_some_and(|it| it.local);
        // Before the other host has taken it over, and after.
        let more_ns = match self.is_taken_over(fault) {
            true => (500 + fault.whom / 256 % 10_000) * MS,
            false => 0,
        };
        let node = self.rig.mirror_node(host);
        self.rig.world.nodes[node].halt = Some(Halt {
            until_ns: end_ns + more_ns,
            in_worker: local && high_bit(fault),
        });
    }

    /// A host that stands still goes on, or another host takes the mirror over.
    pub(in crate::chaos) fn take_over_halted(&mut self, fault: &Fault, host: usize) {
        let now_ns = self.rig.world.now_ns;
        let taken_over = self.is_taken_over(fault);
        let node = self.rig.mirror_node(host);
        let node = &mut self.rig.world.nodes[node];
        // The awaited state did not come.
        node.halt = None;
        let stands = core::mem::take(&mut node.in_hand) && node.frozen_ns > now_ns;
        if !taken_over || !stands {
            return;
        }
        node.outlives = true;
        self.kill_host(host);
        self.replace(host);
        self.start_host(host);
    }
}
