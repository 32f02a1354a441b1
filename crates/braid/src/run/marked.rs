//! What the engine tells of its volumes that the next one has to know: see [`marks`](super::marks).
use super::service::Service;
use crate::log;

impl Service {
    /// Keeps the bound of a volume's controllers; then they may be used, also if it can't be kept.
    pub fn mark(&self, volume: u16, bound_ns: u64) {
        let of = self.state().volumes.meant(volume).map(|it| it.to_mark());
        let Some(of) = of else {
            return; // it leaves, and is not connected to
        };
        if let Err(error) = self.marks().keep(&of, bound_ns) {
            log::say(format!(
                "{}: if this engine is killed, the next one will not know that it must wait for \
                 writes under way, and may lose data: {error:#}",
                of.name
            ));
        }
        self.senders.marked(volume, bound_ns);
    }

    /// The paths of a volume have changed: its mark says so too, as far as that can be written.
    pub fn mark_paths(&self, volume: u16) {
        let of = self.state().volumes.meant(volume).map(|it| it.to_mark());
        if let Some(of) = of
            && let Err(error) = self.marks().keep_paths(&of)
        {
            log::say(format!(
                "{}: the mark for the engine after this one names other paths: {error:#}",
                of.name
            ));
        }
    }

    /// A volume ends with writes that were not flushed.
    pub fn note_unflushed(&self, volume: u16) {
        let known = self.state().volumes.paths(volume);
        if let Some((name, paths)) = known {
            self.marks().note_unflushed(&name, paths);
        }
    }

    /// What a path that has left had acknowledged and not flushed: no flush of the volume has
    /// failed for that yet, or one has.
    pub fn note_loss(&self, volume: u16, untold: bool) {
        let of = self.state().volumes.meant(volume).map(|it| it.to_mark());
        if let Some(of) = of
            && let Err(error) = self.marks().note_loss(&of, untold)
        {
            log::say(format!(
                "{}: if this engine is killed, the next one will not say that writes may be lost \
                 with a path that has left: {error:#}",
                of.name
            ));
        }
    }

    /// The engine has ended.
    ///
    /// # Errors
    /// The marks can't be written.
    pub fn close_marks(&self) -> anyhow::Result<()> {
        let volumes: Vec<_> = {
            let state = self.state();
            state.volumes.iter().map(|(_, it)| it.of.clone()).collect()
        };
        self.marks().close(&volumes)
    }
}
