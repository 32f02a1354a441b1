//! Times without a usable path: how long I/O waits, and when a lost path is given up.
//!
//! * `fast_io_fail_tmo` counts on each core from the moment it lost the last usable path of a
//!   volume: what waits for a path then fails at that time, what comes later at once, until one is
//!   usable again. A flush that waits for a lost controller fails as well, and what that had cached
//!   stays in doubt (T13).
//! * `ctrl_loss_tmo` counts on core 0 from the loss of a path: it is tried again so long, then
//!   given up on all cores, until it is restored by hand. A volume none of whose paths will return,
//!   at least one for that reason, fails its I/O.
//!
//! # Contract
//! A change of data that nobody answered for is held first, and fails when the controller that had
//! it can't execute it any more (T9): an error says that it did not happen, or may have, and not
//! that it may yet. One exception: an engine that stops waits no longer than its user gave it to
//! drain, and then fails what is held though the old controller may yet execute it. The next engine
//! for this data on this machine waits by the mark; nobody else does. (A mirror may answer before
//! the volume of a leg that has left does; see docs/mirrors.md.)
//!
//! # Limits
//! A path of a volume that was never ready is not given up: a start waits for its paths.
use super::connections::SessionState;
use super::io::VolumeIo;
use super::io_table::IoTable;
use super::outbox::Outbox;
use super::path::{AdminState, Path};
use super::report;
use super::session::Sessions;
use super::types::{HostEvent, NO_PATH, PathEvent};
use super::volumes::Volume;
use multipath::Outcome;
use policy::PathIndex;

/// A volume's time without a usable path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OutageState {
    /// There is a path.
    #[default]
    Over,
    /// I/O waits, since that time, ns.
    Waiting { since_ns: u64 },
    /// I/O fails, until there is a path.
    Failing { since_ns: u64 },
}

/// See the module. The times are of `fast_io_fail_tmo`, which its user may change meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outage {
    state: OutageState,
    /// It was reported that no path is live, or usable.
    is_reported: bool,
}

impl Outage {
    /// Since when there is no usable path, ns; `None`: there is one.
    fn since_ns(&self) -> Option<u64> {
        match self.state {
            OutageState::Over => None,
            OutageState::Waiting { since_ns } | OutageState::Failing { since_ns } => Some(since_ns),
        }
    }

    fn is_on(&self) -> bool {
        self.state != OutageState::Over
    }

    /// The last usable path was lost.
    fn begin(&mut self, now_ns: u64) {
        assert!(!self.is_on(), "an outage begins in another one");
        self.state = OutageState::Waiting { since_ns: now_ns };
    }

    /// A path is usable again.
    fn end(&mut self) {
        assert!(self.is_on(), "an outage ends that never began");
        self.state = OutageState::Over;
        self.is_reported = false;
    }

    /// Notes a report that there is no path; false: it was reported before.
    pub(super) fn report(&mut self) -> bool {
        !core::mem::replace(&mut self.is_reported, true)
    }

    /// A path is live: the next outage is reported again.
    pub(super) fn note_live_path(&mut self) {
        self.is_reported = false;
    }

    /// Until when I/O may wait that comes at `now_ns`, ns.
    fn until_ns(&self, fast_io_fail_ns: u64, now_ns: u64) -> u64 {
        let since_ns = self.since_ns().unwrap_or(now_ns);
        since_ns.saturating_add(fast_io_fail_ns)
    }

    /// The time is another: what comes waits so long again.
    fn renew(&mut self) {
        if let OutageState::Failing { since_ns } = self.state {
            self.state = OutageState::Waiting { since_ns };
        }
    }

    /// When I/O is to fail; `None`: it fails already, or there is a path, or it waits for ever.
    fn timeout(&self, fast_io_fail_ns: u64) -> Option<u64> {
        let OutageState::Waiting { since_ns } = self.state else {
            return None; // there is a path, or it fails already
        };
        let at_ns = since_ns.saturating_add(fast_io_fail_ns);
        Some(at_ns).filter(|&at_ns| at_ns < u64::MAX)
    }

    /// Whether I/O fails from now on; true once.
    fn expires(&mut self, fast_io_fail_ns: u64, now_ns: u64) -> bool {
        let OutageState::Waiting { since_ns } = self.state else {
            return false; // as in `timeout`
        };
        let over = since_ns.saturating_add(fast_io_fail_ns) <= now_ns;
        if over {
            self.state = OutageState::Failing { since_ns };
        }
        over
    }
}

impl Volume {
    /// Until when an I/O that finds no path may wait; `None`: it fails now.
    pub(super) fn patience_ns(&self, now_ns: u64) -> Option<u64> {
        let fast_io_fail_ns = self.recovery.fast_io_fail_ns;
        let until_ns = self.outage.until_ns(fast_io_fail_ns, now_ns);
        (until_ns > now_ns && !self.has_lost_all()).then_some(until_ns)
    }

    /// `fast_io_fail_tmo` is another: what waits for a path waits so long, and so does what comes.
    pub(super) fn renew_patience(&mut self, ios: &mut IoTable) {
        self.outage.renew();
        let fast_io_fail_ns = self.recovery.fast_io_fail_ns;
        let outage = self.outage;
        let until_ns = |since_ns| outage.until_ns(fast_io_fail_ns, since_ns);
        self.waits.renew_queued(ios, until_ns);
    }

    /// When I/O of the volume is to fail, ns.
    pub(super) fn outage_timeout(&self) -> Option<u64> {
        let patience_ns = self.recovery.fast_io_fail_ns;
        self.outage
            .timeout(patience_ns)
            .filter(|_| self.recovery.enabled)
    }

    /// How I/O ends that no path can be waited for.
    pub(super) fn without_path(&self) -> Outcome {
        if self.is_leaving() {
            Outcome::Stopped
        } else {
            Outcome::PathError
        }
    }

    /// No path of the volume is usable or will be, unless somebody restores one that was given up;
    /// all of one that leaves will not.
    fn has_lost_all(&self) -> bool {
        let states = || self.paths.iter().map(Path::admin_state);
        let is_gone = |state| {
            matches!(
                state,
                AdminState::GivenUp | AdminState::Failed | AdminState::Removing
            )
        };
        let given_up = states().any(|state| state == AdminState::GivenUp);
        (given_up || self.is_leaving()) && states().all(is_gone)
    }

    /// Notes whether it has lost its last usable path, or has one again; once a turn.
    #[inline]
    pub(super) fn watch_outage(&mut self, is_closing: bool, out: &mut Outbox, now_ns: u64) {
        let no_path = self.ready.is_some() && !self.head.is_usable();
        let is_out = no_path && !self.is_served_elsewhere();
        if is_out != self.outage.is_on() {
            self.set_outage(is_out, is_closing, out, now_ns);
        }
    }

    /// It has lost its last usable path, or has one again.
    #[cold]
    fn set_outage(&mut self, is_out: bool, is_closing: bool, out: &mut Outbox, now_ns: u64) {
        if !is_out {
            return self.outage.end();
        }
        self.outage.begin(now_ns);
        if self.recovery.enabled {
            out.wake_by(now_ns.saturating_add(self.recovery.fast_io_fail_ns));
            if !is_closing && self.outage.report() {
                out.report(HostEvent::NoPath(self.number));
            }
        }
    }

    /// Core 0: when a path is given up if it is not live before, ns.
    pub(super) fn gives_up_ns(&self, at: PathIndex) -> u64 {
        let since_ns = self.paths[at].session.comeback.lost_ns;
        let since_ns = since_ns.filter(|_| self.ready.is_some());
        let ctrl_loss_ns = self.recovery.ctrl_loss_ns;
        since_ns.map_or(u64::MAX, |at_ns| at_ns.saturating_add(ctrl_loss_ns))
    }
}

impl VolumeIo<'_> {
    /// Fails what waits if the outage has lasted for `fast_io_fail_tmo`.
    pub(super) fn end_patience(&mut self, now_ns: u64) {
        let it = &mut *self.volume;
        let patience_ns = it.recovery.fast_io_fail_ns;
        if it.recovery.enabled && it.outage.expires(patience_ns, now_ns) {
            let line = report::fails_fast(&it.name, patience_ns);
            self.on.out.report(HostEvent::Warning(it.number, line));
            self.fail_queued(now_ns);
        }
    }

    /// Fails all that waits for a path, or for a lost controller to flush.
    pub(super) fn fail_queued(&mut self, now_ns: u64) {
        while let Some(index) = self.volume.waits.pop_queued(&mut self.on.ios) {
            self.end(index, self.volume.without_path(), NO_PATH, now_ns);
        }
        self.fail_waiting_flushes(now_ns);
    }

    /// Fails flushes that wait for a lost controller.
    pub(super) fn fail_waiting_flushes(&mut self, now_ns: u64) {
        while let Some(index) = self.volume.waits.pop_flush(&mut self.on.ios) {
            self.fail_flush(index, now_ns);
        }
    }

    /// A path is to leave. With the last of a volume that leaves itself goes what waits for one:
    /// else that would wait for the volume's end, or, where the engine stops meanwhile and nobody
    /// removes it any more, for the end of the time to drain.
    pub(super) fn path_leaves(&mut self, now_ns: u64) {
        if self.volume.is_leaving() && self.volume.has_lost_all() {
            self.fail_queued(now_ns);
        }
    }

    /// A lost path is not tried any more.
    pub(super) fn given_up(&mut self, at: PathIndex, now_ns: u64) {
        let path = &mut self.volume.paths[at];
        if !path.is_over() || !path.admin_state().returns() {
            return; // it came back while the news was under way, or a user has decided
        }
        path.set_admin_state(AdminState::GivenUp);
        self.on.out.note_state();
        if self.volume.has_lost_all() {
            let line = report::none_returns(&self.volume.name);
            self.on
                .out
                .report(HostEvent::Warning(self.volume.number, line));
            self.fail_queued(now_ns);
        }
    }
}

impl Sessions<'_> {
    /// Core 0: a lost path was tried for long enough.
    pub(super) fn give_up_path(&mut self, at: PathIndex, now_ns: u64) {
        let path = &mut self.volume.paths[at];
        path.session
            .enter(SessionState::Backoff { at_ns: u64::MAX });
        let it = &*self.volume;
        let path = &it.paths[at];
        let why = report::given_up(&it.name, &path.uri, it.recovery.ctrl_loss_ns);
        let line = report::line(&it.name, path, 0, &why);
        self.on.out.report(HostEvent::Failed(it.number, line));
        self.on.out.publish(path.news(PathEvent::GivenUp));
        self.io().given_up(at, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_fails_once_and_waits_again_with_more_time() {
        let mut it = Outage::default();
        assert_eq!((it.timeout(10), it.until_ns(10, 5)), (None, 15));
        it.begin(100);
        assert!(it.report() && !it.report());
        assert_eq!(it.timeout(10), Some(110));
        assert_eq!(it.timeout(u64::MAX), None);
        assert_eq!(
            it.until_ns(10, 105),
            110,
            "it counts from the loss of the last path"
        );
        assert!(!it.expires(10, 109) && it.expires(10, 110) && !it.expires(10, 111));
        assert_eq!(it.timeout(10), None);
        it.renew();
        assert_eq!(it.timeout(50), Some(150));
        it.end();
        assert!(!it.is_on() && it.report());
        it.note_live_path();
        assert!(it.report());
    }

    #[test]
    #[should_panic(expected = "begins in another")]
    fn outage_in_an_outage_is_refused() {
        let mut it = Outage::default();
        it.begin(1);
        it.begin(2);
    }
}
