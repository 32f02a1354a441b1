//! Proof that a lost controller will not execute what it had (T9): it is reset over its admin
//! connection, if that outlives the path.
//!
//! Core 0 resets when a path is lost by anything but the end of its admin connection: an I/O queue
//! of any core failed or timed out (T12). When CSTS.RDY reads 0, answered by the very association
//! whose writes are in doubt, the controller has stopped, its I/O queues are deleted (Base 2.0,
//! 3.7.2), and what is still under way to them finds no queue; so all cores release what they
//! hold. It does not matter whether a core's own I/O connection is closed by then; all are being
//! aborted at the same time for their memory's sake (T10).
//!
//! A controller that reports how long it takes to quiesce (CQT) knows what is at stake, and is
//! believed at once. One that doesn't is believed `quiesce_ns` after its answer: Linux' target says
//! RDY = 0 while its disks still have writes of the queues that it has not yet taken down.
//!
//! # Contract
//! A reset that is not answered in time, refused, or cut off leaves everything to the bound, which
//! counts from the end of the admin connection as well: a keep-alive that is still in its socket
//! would renew the controller's timer. No Abort is sent then: the reset ends all commands anyway.
//!
//! # Limits
//! A controller that says RDY = 0 and executes writes later than that breaks Base 2.0, 3.7.2; what
//! it overwrites is lost, and nothing here can know.
use super::WriteFailover;
use super::connections::Role;
use super::io::VolumeIo;
use super::path::Path;
use super::session::Sessions;
use super::types::{PathEvent, PathKind};
use super::volumes::{PathContext, Volume};
use policy::PathIndex;

impl Volume {
    /// How long its controller, which says that it was reset, may yet execute what it had, ns.
    fn disbelief_ns(&self, at: PathIndex) -> u64 {
        let facts = self.paths[at].known.facts.as_deref();
        if facts.is_some_and(|it| it.controller.cqt_ms > 0) {
            return 0; // it knows how long it takes to quiesce
        }
        self.recovery.quiesce_ns
    }
}

impl Path {
    /// Core 0: its controller is being reset until then, ns, or is no longer; all cores say the
    /// same of what they hold.
    pub(super) fn set_resetting(&self, until_ns: Option<u64>, on: &mut PathContext<'_>) {
        if on.fence.set_resetting(self.index, until_ns) {
            on.out.publish(self.news(PathEvent::Resetting(until_ns)));
        }
    }

    /// Begins to reset its controller; `had_queues`: I/O queues may have been open when it was
    /// lost. False: it can't be reset, or there is nothing to prove.
    pub(super) fn reset(
        &mut self,
        had_queues: bool,
        is_closing: bool,
        on: &mut PathContext<'_>,
        now_ns: u64,
    ) -> bool {
        let recovery = on.recovery;
        let wanted = recovery.enabled && recovery.write_failover == WriteFailover::Fenced;
        let tcp = matches!(self.kind, PathKind::NvmeTcp { .. });
        let core_0 = on.settings.core == 0 && tcp && self.session.is_open(Role::Admin);
        if !wanted || !had_queues || !core_0 || is_closing {
            return false;
        }
        let until_ns = self
            .session
            .admin
            .as_mut()
            .and_then(|admin| admin.reset(now_ns));
        if until_ns.is_some() {
            self.set_resetting(until_ns, on);
            on.out.touch(&mut self.session, Role::Admin);
        }
        until_ns.is_some()
    }
}

impl VolumeIo<'_> {
    /// The lost controller of a path executes nothing any more.
    pub(super) fn proved(&mut self, at: PathIndex, now_ns: u64) {
        // Core 0 tells of a loss before it tells of the reset, and no core connects before that is
        // over.
        let path = &self.volume.paths[at];
        assert!(path.is_over(), "{}: reset while it is in use", path.uri);
        let disbelief_ns = self.volume.disbelief_ns(at);
        let path = at;
        let fence = &mut self.volume.fence;
        if disbelief_ns > 0 {
            let until_ns = now_ns.saturating_add(disbelief_ns);
            if fence.believe_from(&mut self.on.ios, path, until_ns) {
                self.on.out.wake_by(until_ns);
            }
        } else {
            fence.prove(&mut self.on.ios, path, now_ns);
            self.release_due(at, now_ns);
        }
    }
}

impl Sessions<'_> {
    /// Core 0: the controller of a path has been reset.
    pub(super) fn was_reset(&mut self, at: PathIndex, now_ns: u64) {
        let path = &self.volume.paths[at];
        self.on.out.publish(path.news(PathEvent::Reset));
        self.io().proved(at, now_ns);
        // Nothing that it could still say is of interest.
        self.volume.paths[at]
            .session
            .close(Role::Admin, true, &mut self.on.out, now_ns);
    }
}
