//! What must be true of a world that has come to rest.
use super::disk::BLOCK;
use super::node::Body;
use super::run::{Course, Finding};
use alloc::format;
use nbd::Errno;
use nbd::client::CommandError;

impl Course<'_> {
    /// Everything that applications saw, and every count.
    pub(super) fn judge(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            let excused = self.rig.hosts[host].lives > 1;
            let client = self.rig.client(host);
            client.tell(&mut self.history);
            self.report.requests += client.ended;
            let bad = client.failed.iter().find(|(_, error)| match error {
                CommandError::Lost | CommandError::Server(Errno::Shutdown) => !excused,
                _ => true,
            });
            if let Some((request, error)) = bad {
                self.report.block = Some(request.offset / BLOCK as u64);
                return Err(Finding::Failed(format!("{request:?}: {error}")));
            }
        }
        self.history.check().map_err(|(block, wrong)| {
            (self.report.block, self.report.seen_ns) = (Some(block), Some(wrong.seen_ns()));
            Finding::Disk(block, wrong)
        })?;
        self.balance()
    }

    /// Nothing waits, is in flight or has memory.
    fn balance(&self) -> Result<(), Finding> {
        for host in &self.rig.hosts {
            for &node in &host.cores {
                let Body::Core(engine) = &self.rig.world.nodes[node].body else {
                    continue;
                };
                let it = engine.host();
                let holds = it.hold_stats(0);
                let waits =
                    holds.held + holds.behind + holds.queued + holds.delayed + holds.flushes;
                let in_flight: u32 = it.paths(0).map(|path| it.in_flight(0, path)).sum();
                let used = engine.buffers() - engine.buffers_free();
                if (waits, in_flight, used) != (0, 0, 0) {
                    let what = format!(
                        "node {node}: {waits} wait, {in_flight} in flight, {used} bytes in use"
                    );
                    return Err(Finding::Unbalanced(what));
                }
            }
        }
        Ok(())
    }
}
