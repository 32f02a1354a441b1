//! One path on this core: its session, what is known of it, the I/Os on it.
use super::abort::{AbortQueue, Aborts};
use super::cache::CacheState;
use super::connections::PathSession;
use super::counters::PathCounters;
use super::device_errors::DeviceErrors;
use super::fence;
use super::io_table::Lane;
use super::measured::Measured;
use super::recovery::Recovery;
use super::types::{Io, IoOp, PathConfig, PathEvent, PathFacts, PathKind, PathNews, PathState};
use crate::latency::LatencyHistogram;
use crate::seldom::Seldom;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use multipath::Head;
use policy::PathIndex;

/// Facts that every command to the namespace needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Target {
    pub nsid: u32,
    pub block_shift: u8,
    pub crdt: [u16; 3],
}

/// Known facts of a path's controller and namespace.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// As learnt by core 0. `None`: nothing yet, or a device.
    pub facts: Option<Box<PathFacts>>,
    pub target: Target,
    /// Number of this core's I/O queue; 0: it has none, or no facts are known. Valid from when the
    /// queue is opened, or the path is live without one.
    pub qid: u16,
    /// Core 0: I/O queues that the controller granted last.
    pub granted: u16,
    /// Core 0: its user was told that its controller may keep writes held for long.
    pub was_long_hold_reported: bool,
    /// It was asked for again, because of an answer.
    pub is_read_again: bool,
}

/// Errors of a path on this core.
pub(super) struct PathErrors {
    /// Lines about damage on the way, by direction.
    pub damage_lines: [Seldom; 2],
    /// Its last probation began for errors of which some were damage on the way.
    pub has_damaged: bool,
    /// I/O that it answered with errors of what is behind it.
    pub device: DeviceErrors,
}

impl PathErrors {
    fn new() -> Self {
        Self {
            damage_lines: [Seldom::new(1), Seldom::new(1)],
            has_damaged: false,
            device: DeviceErrors::new(),
        }
    }
}

/// The probes of a path.
#[derive(Default)]
pub(super) struct Probing {
    /// The probe that is under way.
    pub probe: Option<u32>,
    /// That probe was aborted while no other path was better: if the path is lost for it, it is not
    /// to blame.
    pub renewing: bool,
    /// How often the path was lost with a probe of an idle time unanswered, since one was answered.
    pub renewals: u8,
    /// How long the last answered probe of an idle time took, ns; 0: there was none.
    pub probe_took_ns: u64,
    /// I/Os that its probes repeat.
    pub suspect: Suspect,
    /// A probe on its probation was not answered, and that was reported: until its probation is
    /// over, that it is lost and live again and again is not.
    pub stays_out: bool,
    /// It was found silent with all others, or a probe found no room: it is not looked at again
    /// before.
    pub inspect_ns: u64,
}

pub(super) struct Path {
    /// Its place among the paths of the program, the same on every core: names its connections.
    pub place: usize,
    pub volume: u16,
    pub index: PathIndex,
    pub uri: String,
    pub kind: PathKind,
    /// Its connections, and where its association stands.
    pub session: PathSession,
    /// Known facts of its controller and namespace.
    pub known: Known,
    /// I/Os on this path, oldest first.
    pub lane: Lane,
    pub counters: PathCounters,
    /// Latencies of the I/Os that it did, by group.
    pub latency: Box<[LatencyHistogram; 3]>,
    /// Its measures as they were reported last.
    pub measured: Measured,
    /// I/Os on it that were asked back.
    pub aborts: Aborts,
    /// Core 0: Aborts for its controller.
    pub abort_queue: AbortQueue,
    /// Core 0: questions about holes that its controller has not answered.
    pub questions: Vec<u64>,
    /// Writes that its controller may have in its cache only.
    pub cache: CacheState,
    /// Probes, and what they are for.
    pub probing: Probing,
    /// Its controller activates firmware: time-outs count from then on, ns (T30).
    pub paused_ns: u64,
    admin_state: AdminState,
    /// Its device has not said yet that it may be asked again, since this path was lost.
    pub letting_go: bool,
    /// It can't be beside another path.
    pub refused: bool,
    /// Its errors that its user was told.
    pub errors: PathErrors,
}

/// I/Os that a path failed, or did not answer, since it was last well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Suspect {
    /// Bytes of the longest read; 0: none.
    pub read: u32,
    /// A write was among it.
    pub write: bool,
    /// The last probe went in the direction of writes.
    pub wrote: bool,
}

impl Suspect {
    pub(super) fn note(&mut self, io: &Io) {
        match io.op {
            IoOp::Read => self.read = self.read.max(io.length),
            IoOp::Write { .. } => self.write = true,
            _ => {}
        }
    }
}

/// Decision of users, or of the engine for them, about a path. Changed by
/// [`Path::set_admin_state`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminState {
    /// It serves I/O.
    Enabled,
    /// It is new, and serves none until all cores have it.
    Joining,
    /// It was failed by hand, until it is restored.
    Failed,
    /// The same, because it was lost for too long or its device is gone.
    GivenUp,
    /// It serves nothing new.
    Draining,
    /// The same, and it is to leave.
    Removing,
}

impl AdminState {
    /// Whether a path that was lost is tried again.
    pub(super) fn returns(self) -> bool {
        matches!(self, Self::Enabled | Self::Draining)
    }

    /// Whether a path may get from here to `to`.
    fn leads_to(self, to: Self) -> bool {
        match to {
            // Restored, joined, or not removed after all.
            Self::Enabled | Self::Removing => true,
            Self::Joining => self == Self::Enabled,
            Self::Draining => self != Self::Joining,
            Self::Failed => !matches!(self, Self::Joining | Self::Removing),
            Self::GivenUp => self.returns(),
        }
    }
}

impl Path {
    pub(super) fn new(place: usize, volume: u16, index: PathIndex, config: PathConfig) -> Self {
        Self {
            place,
            volume,
            index,
            uri: config.uri,
            kind: config.kind,
            session: PathSession::new(place),
            known: Known::default(),
            lane: Lane::EMPTY,
            counters: PathCounters::default(),
            latency: Box::default(),
            measured: Measured::default(),
            aborts: Aborts::default(),
            abort_queue: AbortQueue::default(),
            questions: Vec::new(),
            cache: CacheState::default(),
            probing: Probing::default(),
            paused_ns: 0,
            admin_state: AdminState::Enabled,
            letting_go: false,
            refused: false,
            errors: PathErrors::new(),
        }
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.session.is_live()
    }

    /// Whether it was lost, or closed in order.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.session.is_over()
    }

    pub(super) fn admin_state(&self) -> AdminState {
        self.admin_state
    }

    /// Changes what was decided about it.
    ///
    /// # Panics
    /// If the state that it has doesn't lead there.
    pub(super) fn set_admin_state(&mut self, to: AdminState) {
        let from = self.admin_state;
        assert!(from.leads_to(to), "{}: {from:?} → {to:?}", self.uri);
        self.admin_state = to;
    }

    /// News of it for the other cores.
    pub(super) fn news(&self, what: PathEvent) -> PathNews {
        PathNews::Of(self.volume, self.index, what)
    }

    /// How long its controller may execute what it had, from the end of its connections on, ns;
    /// `None`: nothing bounds it, or it was never seen.
    pub(super) fn bound_ns(&self, recovery: &Recovery, kato_ms: u32) -> Option<u64> {
        fence::bound_ns(recovery, kato_ms, &self.known.facts.as_ref()?.controller)
    }

    /// The reactor's address number; `None` for local devices.
    pub(super) fn address(&self) -> Option<u32> {
        match self.kind {
            PathKind::NvmeTcp { address, .. } => Some(address),
            PathKind::Device { .. } | PathKind::Passthrough { .. } => None,
        }
    }

    /// How it is doing, in its volume.
    pub(super) fn state(&self, recovery: &Recovery, head: &Head) -> PathState {
        let recovers = recovery.enabled;
        let on_probation = head.probation(self.index).is_some();
        match self.admin_state {
            AdminState::Removing => PathState::Removed,
            admin if self.is_over() => match recovers && admin.returns() {
                true => PathState::Reconnecting,
                false => PathState::Failed,
            },
            AdminState::Joining if self.is_live() => PathState::Connecting,
            AdminState::Enabled if self.is_live() => match on_probation {
                true => PathState::Probation,
                false => PathState::Live,
            },
            _ if self.is_live() => PathState::Draining,
            _ if self.session.comeback.tried => PathState::Reconnecting,
            _ => PathState::Connecting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn admin_states_are_reached_from_these_only() {
        use AdminState::*;
        let all = [Enabled, Joining, Failed, GivenUp, Draining, Removing];
        for (to, want) in [
            (Enabled, all.to_vec()),
            (Joining, vec![Enabled]),
            (Failed, vec![Enabled, Failed, GivenUp, Draining]),
            (GivenUp, vec![Enabled, Draining]),
            (Draining, vec![Enabled, Failed, GivenUp, Draining, Removing]),
            (Removing, all.to_vec()),
        ] {
            let from = all.into_iter().filter(|from| from.leads_to(to));
            assert_eq!(from.collect::<Vec<_>>(), want, "to {to:?}");
        }
    }
}
