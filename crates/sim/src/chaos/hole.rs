//! A path that loses large packets stalls one request. Then it stays out until it carries them
//! again.
//!
//! # Contract
//! Runs last, in worlds in which one direction lost large packets. For [`HOLE_NS`], packets of more
//! than 1,400 bytes do not reach a host on the I/O queue of one of its paths; or, where a world
//! [`loses_writes`](super::rig::More::loses_writes), its controller. Its admin connection and small
//! packets pass. Probes repeat the direction and the length that were lost, so the path must stay
//! out: requests of that direction longer than [`STALL_NS`] in more than one of [`ROUNDS`] are a
//! finding.
//!
//! # Limits
//! Hosts of one core that have another path: each core has its own connection and its own stall.
//! Only requests of the direction that loses data are judged, and only where the slowest of a round
//! is one. A flush waits until the lost path is back (T13), and an overlapping write waits for the
//! fence of a lost one (T9). Requests that fail here, and the data of reads, are not judged.
use super::prelude::*;
use super::strike::high_bit;

/// Of worlds in which large packets get lost, one in so many loses writes.
const WRITES_ONE_OF: u64 = 2;
/// How long nothing large passes, ns.
const HOLE_NS: u64 = 60 * SECOND;
/// A request takes less than this on paths that are well. One that is lost waits until its command
/// is aborted or its path is lost, and a write until its fence ends, which may take longer.
const STALL_NS: u64 = SECOND;
/// Of requests, one at a time.
const ROUNDS: u64 = 20;
const REQUESTS: u64 = 30;

/// The fault that made a world lose large packets, if it has one.
fn fault_of(plan: &Plan) -> Option<&Fault> {
    let mut those = plan.faults.iter();
    those.find(|it| it.kind == Kind::OneWay && high_bit(it))
}

/// A plan whose writes get lost, perhaps.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let loses = fault_of(plan).is_some() && plan.layout.mirror.is_none();
    plan.layout.more.loses_writes = loses && random.up_to(WRITES_ONE_OF - 1) == 0;
}

impl Course<'_> {
    /// See the module; waits until all paths are used again.
    pub(super) fn lose_large(&mut self) -> Result<(), Finding> {
        let layout = &self.plan.layout;
        let judged = layout.mirror.is_none() && layout.more.scratch_bytes > 0;
        let plan = self.plan;
        let Some(fault) = fault_of(plan).filter(|_| judged && layout.cores == 1) else {
            return Ok(());
        };
        // Toward the target, or toward the host.
        let way = usize::from(!layout.more.loses_writes);
        let whom = self.drawn(fault);
        if self.paths_of(whom.host) < 2 {
            return Ok(());
        }
        let until_ns = self.rig.world.now_ns + HOLE_NS;
        for wire in self.rig.wires(whom.host, whom.address) {
            let way = &mut self.rig.world.wires.entry(wire).or_default().ways[way];
            way.large_io_ns = until_ns;
        }
        self.stalls_once(whom.host, until_ns)?;
        self.rig.hosts[whom.host].flapped = true;
        self.pass(until_ns.max(self.rig.world.now_ns))?;
        self.recover()
    }

    /// Requests of a host until then, of which one may wait for what was lost.
    fn stalls_once(&mut self, host: usize, until_ns: u64) -> Result<(), Finding> {
        let mut stalled = false;
        for _ in 0..ROUNDS {
            self.rig.client(host).exercise(REQUESTS, true);
            self.rest()?;
            if self.rig.world.now_ns >= until_ns {
                return Ok(());
            }
            // A flush waits until the lost path is back, and a write may wait for one.
            let slowest = self.rig.client(host).slowest;
            let lost = match self.plan.layout.more.loses_writes {
                true => nbd::Kind::Write,
                false => nbd::Kind::Read,
            };
            let slowest = slowest.filter(|it| it.request.kind == lost);
            if let Some(it) = slowest.filter(|it| it.end_ns - it.start_ns > STALL_NS) {
                if stalled {
                    let asked = self.asked(host, it.home, it.start_ns, &it.request);
                    let ms = (it.end_ns - it.start_ns) / 1_000_000;
                    let what = format!("nothing large passes, and once more {asked} took {ms} ms");
                    return Err(Finding::Stuck(what));
                }
                stalled = true;
            }
            self.pass(self.rig.world.now_ns + SECOND)?;
        }
        Ok(())
    }

    /// How many paths a host of one core has.
    fn paths_of(&self, host: usize) -> usize {
        let node = self.rig.hosts[host].cores[0];
        let engine = self.rig.core(node);
        engine.map_or(0, |engine| engine.host().paths(0).count())
    }
}
