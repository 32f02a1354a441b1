//! Checks of discovery after all faults have ended.
use crate::chaos::prelude::*;

impl Course<'_> {
    /// A host's reactor that has not heard of what is told, or goes by what is not.
    pub(in crate::chaos) fn what_is_unheard(&self) -> Option<String> {
        let paths = self.plan.layout.targets * usize::from(self.plan.layout.ports);
        for host in 0..self.rig.hosts.len() {
            let differs =
                |address: &usize| self.rig.has_heard(host, *address) != self.rig.is_told(*address);
            if let Some(address) = (0..paths).find(differs) {
                let word = match self.rig.is_told(address) {
                    true => "has not heard of",
                    false => "still goes by",
                };
                return Some(format!("host {host} {word} path {address} of the log"));
            }
        }
        None
    }

    /// Nothing but discovery changes any more: all paths but one are withdrawn, and told of again.
    pub(in crate::chaos) fn follow_the_log(&mut self) -> Result<(), Finding> {
        if self.rig.discovery.is_none() {
            return Ok(());
        }
        let paths = self.plan.layout.targets * usize::from(self.plan.layout.ports);
        let stays = self.plan.seed as usize % paths;
        for more in [true, false] {
            for address in (0..paths).filter(|it| *it != stays) {
                self.rig.withhold(address, more);
            }
            self.recover()?;
        }
        Ok(())
    }

    /// After all hosts have stopped: sessions that did not, and what controllers still have.
    pub(in crate::chaos) fn discovery_is_over(&self) -> Result<(), Finding> {
        let Some(discovery) = &self.rig.discovery else {
            return Ok(());
        };
        let nodes = &self.rig.world.nodes;
        for (host, seeker) in discovery.seekers.iter().enumerate() {
            let it = &nodes[seeker.node];
            if !it.stopped || it.open_conns().next().is_some() {
                let what = format!("discovery of host {host} does not stop");
                return Err(Finding::Stuck(what));
            }
        }
        for (number, &teller) in discovery.tellers.iter().enumerate() {
            let Body::Target(engine) = &nodes[teller].body else {
                continue;
            };
            let open = nodes[teller].open_conns().count();
            let used = engine.buffers() - engine.buffers_free();
            if (open, used) != (0, 0) {
                let what = format!(
                    "discovery controller {number}: {open} connections, {used} bytes in use"
                );
                return Err(Finding::Unbalanced(what));
            }
        }
        Ok(())
    }
}
