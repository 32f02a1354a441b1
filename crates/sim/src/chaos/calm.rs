//! What must be true of a world in which nothing is wrong any more.
use super::node::Body;
use super::run::{Course, Finding};
use alloc::format;

const SECOND: u64 = 1_000_000_000;
/// Several keep-alive time-outs.
const CALM_NS: u64 = 4 * SECOND;
/// Moves that an I/O may have, and a little for those on lost paths, which don't count (T4).
const MOVES_MAX: u64 = 10;

impl Course<'_> {
    /// Every path stays.
    pub(super) fn calm(&mut self) -> Result<(), Finding> {
        self.moves()?;
        let end_ns = self.rig.world.now_ns + CALM_NS;
        while self.rig.world.now_ns < end_ns {
            let next_ns = (self.rig.world.now_ns + SECOND / 10).min(end_ns);
            self.pass(next_ns)?;
            if let Some(what) = self.what_is_missing() {
                return Err(Finding::Stuck(format!("with nothing wrong, {what}")));
            }
        }
        Ok(())
    }

    /// I/Os have not moved from path to path more often than they may.
    fn moves(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            let mut moves = 0;
            for &node in &self.rig.hosts[host].cores {
                if let Body::Core(engine) = &self.rig.world.nodes[node].body {
                    moves += engine.host().hold_stats(0).moved_total;
                }
            }
            let requests = self.rig.client(host).begun;
            if moves > MOVES_MAX * requests {
                let what = format!("host {host}: {moves} moves of {requests} requests");
                return Err(Finding::Unbalanced(what));
            }
        }
        Ok(())
    }
}
