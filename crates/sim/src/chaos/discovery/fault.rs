//! Faults of discovery: what is told changes, who tells is gone, and what is told is not heard.
use crate::chaos::prelude::*;

impl Rig {
    /// A path is withheld for one reason more, or for one less.
    pub(super) fn withhold(&mut self, address: usize, more: bool) {
        let Some(discovery) = &mut self.discovery else {
            return;
        };
        count(&mut discovery.withheld[address], more);
        let tellers = discovery.tellers.len();
        self.offer_at(address % tellers, address);
    }

    fn unrefer(&mut self, more: bool) {
        let Some(discovery) = &mut self.discovery else {
            return;
        };
        count(&mut discovery.unreferred, more);
        let tellers = discovery.tellers.len();
        (0..tellers).for_each(|number| self.refer(number));
    }
}

fn count(reasons: &mut u32, more: bool) {
    *reasons = match more {
        true => *reasons + 1,
        false => *reasons - 1,
    };
}

impl Course<'_> {
    /// Whether a fault of discovery can happen now.
    pub(in crate::chaos) fn can_mislead(&self, fault: &Fault) -> bool {
        let Some(discovery) = &self.rig.discovery else {
            return false;
        };
        let world = &self.rig.world;
        let teller = &world.nodes[self.teller(fault)];
        match fault.kind {
            Kind::KillTeller | Kind::FreezeTeller => {
                !teller.is_dead() && teller.frozen_ns <= world.now_ns
            }
            Kind::Unreferred => discovery.tellers.len() > 1,
            _ => true,
        }
    }

    /// Begins a fault of discovery.
    pub(in crate::chaos) fn mislead(&mut self, fault: &Fault, whom: Whom) {
        let end_ns = self.rig.world.now_ns + fault.lasts_ns;
        match fault.kind {
            Kind::Withdraw => self.rig.withhold(whom.address, true),
            Kind::Unheard => {
                self.rig.withhold(whom.address, true);
                self.cut_discovery();
            }
            Kind::Unreferred => self.rig.unrefer(true),
            Kind::KillTeller => self.rig.world.kill(self.teller(fault)),
            Kind::FreezeTeller => {
                let node = self.teller(fault);
                self.rig.world.nodes[node].frozen_ns = end_ns;
            }
            Kind::PartTeller => {
                for wire in self.rig.discovery_wires(Some(whom.host)) {
                    self.rig.world.part(wire, None, end_ns);
                }
            }
            _ => {}
        }
    }

    /// A fault of discovery is over.
    pub(in crate::chaos) fn enlighten(&mut self, fault: &Fault, whom: Whom) {
        match fault.kind {
            Kind::Withdraw => self.rig.withhold(whom.address, false),
            Kind::Unheard => {
                self.rig.withhold(whom.address, false);
                self.cut_discovery();
            }
            Kind::Unreferred => self.rig.unrefer(false),
            Kind::KillTeller if self.rig.world.nodes[self.teller(fault)].is_dead() => {
                self.rig.start_teller(self.number(fault));
            }
            _ => {}
        }
    }

    /// The notice of what was just changed is lost with its connection.
    fn cut_discovery(&mut self) {
        for wire in self.rig.discovery_wires(None) {
            self.rig.world.cut(wire);
        }
    }

    /// Which controller a fault is about.
    fn number(&self, fault: &Fault) -> usize {
        let tellers = self.rig.discovery.as_ref().map_or(1, |it| it.tellers.len());
        fault.whom as usize / 256 % tellers
    }

    pub(in crate::chaos) fn teller(&self, fault: &Fault) -> usize {
        let number = self.number(fault);
        let discovery = self.rig.discovery.as_ref();
        discovery.map_or(0, |it| it.tellers[number])
    }
}
