//! Checks of a world after all faults have ended.
use super::prelude::*;
use super::rig::SPARE_PATHS;
use super::story::LOSS;
use nvme::limits::IDLE_NS;

/// Several keep-alive time-outs, and longer than any hold.
pub(super) const CALM_NS: u64 = 4 * SECOND;
/// Moves that an I/O may have where there are few paths; else twice as many as there are (T4).
const MOVES_MIN: usize = 8;

impl Course<'_> {
    /// Every path stays.
    pub(super) fn calm(&mut self) -> Result<(), Finding> {
        self.moves()?;
        let end_ns = self.rig.world.now_ns + CALM_NS;
        let mut was_probed = false;
        while self.rig.world.now_ns < end_ns {
            let next_ns = (self.rig.world.now_ns + SECOND / 10).min(end_ns);
            self.pass(next_ns)?;
            // A look may meet the probe of a path that rests; one that lasts until the next look
            // has no end.
            let probed = self.what_is_probed();
            let endless = probed.as_ref().filter(|_| was_probed).cloned();
            was_probed = probed.is_some();
            if let Some(what) = self.what_is_away().or(endless) {
                return Err(Finding::Stuck(format!("with nothing wrong, {what}")));
            }
        }
        Ok(())
    }

    /// All caches are lost after everybody has flushed: then everything is there that was. Flushed
    /// twice, for a flush may fail for what happened before it.
    pub(super) fn lose_caches(&mut self) -> Result<(), Finding> {
        if !self.plan.layout.caches {
            return Ok(());
        }
        for _ in 0..2 {
            self.rig.clients(Client::flush);
            self.rest()?;
        }
        self.remember();
        let world = &mut self.rig.world;
        let hosts = self.rig.hosts.iter().flat_map(|it| &it.cores);
        for &node in self.rig.targets.iter().chain(hosts) {
            for disk in world.nodes[node].disks.clone() {
                world.disks[disk].lose(node as u8 + 1, &mut world.random);
            }
        }
        self.history.crash(world.now_ns);
        world.tell(|| format!("{LOSS}all"));
        self.read_all()?;
        self.recover()
    }

    /// Memory of a target that is in use though nothing is under way.
    pub(super) fn what_targets_have(&self) -> Option<String> {
        let mut targets = self.rig.targets.iter().enumerate();
        targets.find_map(|(target, &node)| {
            let engine = self.rig.world.nodes[node].target()?;
            let used = engine.buffers() - engine.buffers_free();
            (used > 0).then(|| format!("target {target}: {used} bytes in use"))
        })
    }

    /// All hosts have stopped: no target has a connection for longer than one may be idle.
    pub(super) fn targets_are_left(&mut self) -> Result<(), Finding> {
        let end_ns = self.rig.world.now_ns + IDLE_NS + CALM_NS;
        loop {
            let nodes = &self.rig.world.nodes;
            let open = |&node: &usize| nodes[node].open_conns().count();
            let open: usize = self.rig.targets.iter().map(open).sum();
            let left =
                (open > 0).then(|| format!("targets have {open} connections without a peer"));
            match self.what_targets_have().or(left) {
                None => return Ok(()),
                Some(what) if self.rig.world.now_ns >= end_ns => {
                    return Err(Finding::Unbalanced(what));
                }
                Some(_) => self.pass(self.rig.world.now_ns + SECOND)?,
            }
        }
    }

    /// No I/O has moved from path to path more often than it may.
    fn moves(&mut self) -> Result<(), Finding> {
        let layout = &self.plan.layout;
        let paths = layout.targets * usize::from(layout.ports) + SPARE_PATHS;
        let most = MOVES_MIN.max(2 * paths);
        for (number, _, _, engine) in self.rig.cores() {
            let stats = self.rig.volumes().map(|it| engine.host().hold_stats(it));
            let moves = stats.map(|it| it.moved_max).max().unwrap_or(0);
            if usize::from(moves) > most {
                let what = format!("host {number}: {moves} moves of one I/O");
                return Err(Finding::Unbalanced(what));
            }
        }
        Ok(())
    }
}
