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
use super::outbox::Outbox;
use super::path::Path;
use super::session::Sessions;
use super::types::{PathEvent, PathKind, PathNews};
use super::volumes::{PathContext, PathInVolume, Volume};
use policy::PathIndex;

impl PathInVolume<'_> {
    /// Whether core 0 resets its controller.
    pub(super) fn is_resetting(&self) -> bool {
        self.volume.fence.is_resetting(self.path.index)
    }

    /// How long its controller, which says that it was reset, may yet execute what it had, ns.
    fn disbelief_ns(&self) -> u64 {
        let facts = self.path.known.facts.as_deref();
        if facts.is_some_and(|it| it.controller.cqt_ms > 0) {
            return 0; // it knows how long it takes to quiesce
        }
        self.volume.recovery.quiesce_ns
    }
}

impl Volume {
    /// Core 0: the controller of a path is being reset until then, ns, or is no longer; all cores
    /// say the same of what they hold.
    pub(super) fn set_resetting(
        &mut self,
        path: PathIndex,
        until_ns: Option<u64>,
        out: &mut Outbox,
    ) {
        if self.fence.set_resetting(path, until_ns) {
            let what = PathEvent::Resetting(until_ns);
            out.publish(PathNews::Of(self.number, path, what));
        }
    }
}

impl Path {
    /// Begins to reset its controller; `had_queues`: I/O queues may have been open when it was
    /// lost. False: it can't be reset, or there is nothing to prove.
    pub(super) fn reset(
        &mut self,
        had_queues: bool,
        is_closing: bool,
        on: &mut PathContext<'_>,
        now_ns: u64,
    ) -> bool {
        let recovery = &on.volume.recovery;
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
            on.volume.set_resetting(self.index, until_ns, on.out);
            on.out.touch(&mut self.session, Role::Admin);
        }
        until_ns.is_some()
    }
}

impl VolumeIo<'_> {
    /// The lost controller of a path executes nothing any more.
    pub(super) fn proved(&mut self, number: usize, now_ns: u64) {
        // Core 0 tells of a loss before it tells of the reset, and no core connects before that is
        // over.
        let path = &self.paths[number];
        assert!(path.is_over(), "{}: reset while it is in use", path.uri);
        let disbelief_ns = self.at(number).disbelief_ns();
        let path = path.index;
        let fence = &mut self.volume.fence;
        if disbelief_ns > 0 {
            let until_ns = now_ns.saturating_add(disbelief_ns);
            if fence.believe_from(&mut self.on.ios, path, until_ns) {
                self.on.out.wake_by(until_ns);
            }
        } else {
            fence.prove(&mut self.on.ios, path, now_ns);
            self.release_due(number, now_ns);
        }
    }
}

impl Sessions<'_> {
    /// Core 0: the controller of a path has been reset.
    pub(super) fn was_reset(&mut self, number: usize, now_ns: u64) {
        let path = &self.paths[number];
        self.on.out.publish(path.news(PathEvent::Reset));
        self.io().proved(number, now_ns);
        // Nothing that it could still say is of interest.
        self.paths[number]
            .session
            .close(Role::Admin, true, &mut self.on.out, now_ns);
    }
}
