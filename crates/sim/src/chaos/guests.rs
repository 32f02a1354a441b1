//! Faults of the connections between a host and its applications, while the host lives.
//!
//! Decides, from a plan and its seed, in which worlds there are some, and what they do.
//!
//! # Contract
//! Drawn apart from everything else: worlds without them are as they would be if there were none. A
//! client that is cut off connects again and goes on.
//!
//! # Limits
//! Bytes are not damaged: NBD has no digests, so damaged data would be data.
use super::aim::add_waiting;
use super::prelude::*;

/// Faults of a world that has some.
const EACH: u64 = 3;

/// A plan, perhaps with such faults.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    if random.up_to(1) == 0 {
        return;
    }
    add_waiting(plan, Kind::OF_CLIENTS, EACH, random);
}

impl Course<'_> {
    /// Begins such a fault.
    pub(super) fn annoy(&mut self, fault: &Fault, whom: Whom) {
        let now_ns = self.rig.world.now_ns;
        let end_ns = now_ns + fault.lasts_ns;
        let mut wires = self.rig.client_wires(whom.host);
        match fault.kind {
            Kind::ClientReset => {
                if bit(fault) {
                    wires.truncate(1);
                }
                self.rig.hosts[whom.host].lives.cut(now_ns, wires.len());
                wires.iter().for_each(|&wire| self.rig.world.cut(wire));
            }
            Kind::ClientHalfOpen => {
                self.rig.hosts[whom.host].lives.cut(now_ns, wires.len());
                let world = &mut self.rig.world;
                wires
                    .iter()
                    .for_each(|&wire| world.forget(wire, bit(fault)));
            }
            Kind::ClientPartition => {
                for wire in wires {
                    self.rig.world.part(wire, None, end_ns);
                }
            }
            Kind::ClientSlow | Kind::ClientFull => self.set_wires(),
            _ => {}
        }
    }

    /// Such a fault is over.
    pub(super) fn appease(&mut self, fault: &Fault, whom: Whom) {
        match fault.kind {
            Kind::ClientHalfOpen => {
                let wires: Vec<_> = self.rig.client_wires(whom.host);
                wires.into_iter().for_each(|it| self.rig.world.give_up(it));
            }
            Kind::ClientSlow | Kind::ClientFull => self.set_wires(),
            _ => {}
        }
    }
}
