//! One path on this core: its connections, its machines, the I/Os on it.
//!
//! Connection ids are fixed: path `g` of the engine has `2g` for the admin connection (core 0 only)
//! and `2g + 1` for its I/O queue.
use super::abort::{AbortQueue, Aborts};
use super::cache::CacheState;
use super::counters::PathCounters;
use super::device_errors::DeviceErrors;
use super::io_table::Lane;
use super::mark::Unmarked;
use super::recovery::Recovery;
use super::types::{Io, IoOp, PathConfig, PathFacts, PathKind, PathState};
use crate::machine::{ConnId, LocalDevice};
use crate::seldom::Seldom;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use multipath::Head;
use nvme::host::{Admin, IoQueue};
use policy::PathIndex;

/// The volume of a place without a path.
const NO_VOLUME: u16 = u16::MAX;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Admin,
    Io,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// There is none.
    Closed,
    /// Asked for; given up at `until_ns`.
    Opening { until_ns: u64 },
    /// Up.
    Open,
    /// Closed by us once all is sent; aborted at `until_ns`.
    Closing { until_ns: u64 },
    /// Aborted by us; the reactor has not said so yet.
    Aborting,
}

/// Where a path's association with its controller stands, on this core. Changed by
/// [`Path::set_session`] alone. A lost controller may be in the middle of a reset: the write fence
/// knows.
#[derive(Debug)]
pub(super) enum SessionState {
    /// Nothing was begun. Other cores than 0 wait to be told what core 0 finds.
    Idle,
    /// Core 0: the admin connection is being opened, or identifies controller and namespace.
    Identifying,
    /// Core 0: this was found; paths before it are to be tried first, or its bound to be marked.
    CheckingOthers(Box<Unmarked>),
    /// The I/O queue is being opened.
    Connecting,
    /// In use.
    Live,
    /// Over, with its reason reported; connections of this core or another may still be closing.
    Lost,
    /// Core 0: over on all cores, and connected again at that time, ns; `u64::MAX`: not before a
    /// user asks for it.
    Backoff { at_ns: u64 },
    /// Its queue was closed in order: the path leaves. Also a place without a path.
    Closed,
}

impl SessionState {
    /// Whether a path may get from here to `to`.
    fn leads_to(&self, to: &Self) -> bool {
        let in_use = self.has_association();
        match to {
            // A device that may be asked again.
            Self::Idle => matches!(self, Self::Lost),
            // Or what was found is looked at again.
            Self::Identifying => matches!(
                self,
                Self::Idle | Self::Backoff { .. } | Self::CheckingOthers(_)
            ),
            Self::CheckingOthers(_) => matches!(self, Self::Identifying),
            // Other cores come here from a loss, when core 0 has found the path again.
            Self::Connecting => matches!(self, Self::Idle | Self::Identifying | Self::Lost),
            // A device has no queue to open.
            Self::Live => matches!(self, Self::Idle | Self::Connecting),
            Self::Lost | Self::Closed => {
                matches!(self, Self::Idle) || self.is_identifying() || in_use
            }
            Self::Backoff { .. } => matches!(self, Self::Lost | Self::Backoff { .. }),
        }
    }

    /// Whether core 0 finds out what it is.
    pub(super) fn is_identifying(&self) -> bool {
        matches!(self, Self::Identifying | Self::CheckingOthers(_))
    }

    /// Whether I/O queues may be open, on this core or another.
    pub(super) fn has_association(&self) -> bool {
        matches!(self, Self::Connecting | Self::Live)
    }
}

/// What every command to the namespace needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Target {
    pub nsid: u32,
    pub block_shift: u8,
    pub crdt: [u16; 3],
}

/// What is known of a path's controller and namespace.
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

/// What a path failed on this core.
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
    /// What its probes repeat.
    pub suspect: Suspect,
    /// A probe on its probation was not answered, and that was reported: until its probation is
    /// over, that it is lost and live again and again is not.
    pub stays_out: bool,
    /// It was found silent with all others, or a probe found no room: it is not looked at again
    /// before.
    pub inspect_ns: u64,
}

pub(super) struct Path {
    /// Which of the engine's paths this is.
    pub number: usize,
    pub volume: u16,
    pub index: PathIndex,
    pub uri: String,
    pub kind: PathKind,
    session: SessionState,
    /// What is known of its controller and namespace.
    pub known: Known,
    /// I/Os on this path, oldest first.
    pub lane: Lane,
    pub counters: PathCounters,
    /// I/Os on it that were asked back.
    pub aborts: Aborts,
    /// Core 0: Aborts for its controller.
    pub abort_queue: AbortQueue,
    /// Core 0: questions about holes that its controller has not answered.
    pub questions: Vec<u64>,
    /// What its controller may have in its cache only.
    pub cache: CacheState,
    /// Probes, and what they are for.
    pub probing: Probing,
    pub admin: Option<Box<Admin>>,
    pub queue: Option<Box<IoQueue>>,
    /// The machine of this role was called since the last turn.
    pub touched: [bool; 2],
    /// The admin machine was told to shut the controller down.
    pub shutting_down: bool,
    links: [Link; 2],
    /// How it comes back.
    pub comeback: Comeback,
    /// Its controller activates firmware: time-outs count from then on, ns (T30).
    pub paused_ns: u64,
    admin_state: AdminState,
    /// Its device has not said yet that it may be asked again, since this path was lost.
    pub letting_go: bool,
    /// It can't be beside another path.
    pub refused: bool,
    /// What it failed, and its user was told.
    pub errors: PathErrors,
}

/// What a path failed, or did not answer, since it was last well.
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

/// What users, or the engine for them, have decided about a path. Changed by
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

/// What core 0 was told by another core of the end of its connections of a lost path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LossReport {
    /// Nothing: it is not lost, or core 0 has not told of that yet.
    #[default]
    None,
    /// Core 0 waits to hear that they are over.
    Due,
    /// That they are: what core 0 finds now is new.
    Given,
}

/// How a lost path comes back.
#[derive(Debug, Default)]
pub(super) struct Comeback {
    /// It has been live or lost.
    pub tried: bool,
    /// Failures in a row, a short life counted as one.
    pub failures: u32,
    /// When it became live, ns.
    pub live_ns: u64,
    /// Since when it has not been live, ns.
    pub lost_ns: Option<u64>,
    /// Core 0: cores that have not said that their connections are over.
    pub others: u16,
    /// Other cores: what core 0 was told of their connections.
    pub report: LossReport,
    /// Why it is lost, as said; and the reason that was said before that one.
    pub line: String,
    pub line_before: String,
}

impl Path {
    pub(super) fn new(number: usize, volume: u16, index: PathIndex, config: PathConfig) -> Self {
        Self {
            number,
            volume,
            index,
            uri: config.uri,
            kind: config.kind,
            session: SessionState::Idle,
            known: Known::default(),
            lane: Lane::EMPTY,
            counters: PathCounters::default(),
            aborts: Aborts::default(),
            abort_queue: AbortQueue::default(),
            questions: Vec::new(),
            cache: CacheState::default(),
            probing: Probing::default(),
            admin: None,
            queue: None,
            touched: [false; 2],
            shutting_down: false,
            links: [Link::Closed; 2],
            comeback: Comeback::default(),
            paused_ns: 0,
            admin_state: AdminState::Enabled,
            letting_go: false,
            refused: false,
            errors: PathErrors::new(),
        }
    }

    /// A place without a path.
    pub(super) fn vacant(number: usize) -> Self {
        let kind = PathKind::Device {
            device: LocalDevice(0),
            bytes: 0,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        };
        let config = PathConfig {
            uri: String::new(),
            kind,
            distance: 0,
            throughput: 0,
            numbers: PathConfig::ANY_NUMBER,
        };
        Self {
            session: SessionState::Closed,
            ..Self::new(number, NO_VOLUME, PathIndex(0), config)
        }
    }

    pub(super) fn session(&self) -> &SessionState {
        &self.session
    }

    /// Changes where its association stands. Returns where it stood.
    ///
    /// # Panics
    /// If the state that it has doesn't lead there.
    pub(super) fn set_session(&mut self, to: SessionState) -> SessionState {
        let from = &self.session;
        assert!(from.leads_to(&to), "{}: {from:?} → {to:?}", self.uri);
        core::mem::replace(&mut self.session, to)
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.session, SessionState::Live)
    }

    /// Whether I/O queues may be open, on this core or another.
    pub(super) fn has_association(&self) -> bool {
        self.session.has_association()
    }

    /// Whether it was lost.
    pub(super) fn is_lost(&self) -> bool {
        matches!(
            self.session,
            SessionState::Lost | SessionState::Backoff { .. }
        )
    }

    /// Whether it was lost, or closed in order.
    pub(super) fn is_over(&self) -> bool {
        matches!(
            self.session,
            SessionState::Lost | SessionState::Backoff { .. } | SessionState::Closed
        )
    }

    /// Core 0: when it is connected again, ns; `u64::MAX`: not by itself. `None`: it is not over on
    /// all cores.
    pub(super) fn retry_ns(&self) -> Option<u64> {
        match self.session {
            SessionState::Backoff { at_ns } => Some(at_ns),
            _ => None,
        }
    }

    /// Core 0: what was found, while it waits for paths before it or for its mark.
    pub(super) fn unmarked(&self) -> Option<&Unmarked> {
        match &self.session {
            SessionState::CheckingOthers(it) => Some(it),
            _ => None,
        }
    }

    pub(super) fn unmarked_mut(&mut self) -> Option<&mut Unmarked> {
        match &mut self.session {
            SessionState::CheckingOthers(it) => Some(it),
            _ => None,
        }
    }

    /// Core 0: looks at what was found again. Returns it; `None`: it does not wait.
    pub(super) fn look_again(&mut self) -> Option<Box<Unmarked>> {
        if !matches!(self.session, SessionState::CheckingOthers(_)) {
            return None;
        }
        match self.set_session(SessionState::Identifying) {
            SessionState::CheckingOthers(it) => Some(it),
            other => unreachable!("{}: {other:?} has found nothing", self.uri),
        }
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

    pub(super) fn is_vacant(&self) -> bool {
        self.volume == NO_VOLUME
    }

    pub(super) fn conn(&self, role: Role) -> ConnId {
        ConnId(self.number as u32 * 2 + role as u32)
    }

    pub(super) fn link(&self, role: Role) -> Link {
        self.links[role as usize]
    }

    pub(super) fn set_link(&mut self, role: Role, link: Link) {
        self.links[role as usize] = link;
    }

    pub(super) fn is_open(&self, role: Role) -> bool {
        self.links[role as usize] == Link::Open
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.links == [Link::Closed; 2]
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
            _ if self.comeback.tried => PathState::Reconnecting,
            _ => PathState::Connecting,
        }
    }

    /// When a machine or connection of this path wants to be called, I/Os aside.
    pub(super) fn timeout_ns(&self) -> Option<u64> {
        let link = |link| match link {
            Link::Opening { until_ns } | Link::Closing { until_ns } => Some(until_ns),
            _ => None,
        };
        let admin = self.admin.as_ref().filter(|_| self.is_open(Role::Admin));
        let queue = self.queue.as_ref().filter(|_| self.is_open(Role::Io));
        let times = [
            link(self.links[0]),
            link(self.links[1]),
            self.retry_ns(),
            admin.and_then(|admin| admin.poll_timeout()),
            queue.and_then(|queue| queue.poll_timeout()),
        ];
        times.into_iter().flatten().min()
    }
}

/// The path and purpose of a connection.
#[inline]
pub(super) fn of(conn: ConnId) -> (usize, Role) {
    let role = if conn.0 & 1 == 0 {
        Role::Admin
    } else {
        Role::Io
    };
    ((conn.0 >> 1) as usize, role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Every edge that there is: a state, and those that lead to it.
    #[test]
    fn session_states_are_reached_from_these_only() {
        use SessionState::*;
        let (at_ns, found) = (1, || CheckingOthers(super::super::mark::tests::found()));
        let names = [
            "idle", "identify", "check", "connect", "live", "lost", "wait", "closed",
        ];
        let all = || {
            let early = [Idle, Identifying, found(), Connecting];
            early
                .into_iter()
                .chain([Live, Lost, Backoff { at_ns }, Closed])
        };
        let runs = "idle identify check connect live";
        for (to, want) in all().zip([
            "lost",
            "idle check wait",
            "identify",
            "idle identify lost",
            "idle connect",
            runs,
            "lost wait",
            runs,
        ]) {
            let from = all().zip(names).filter(|(from, _)| from.leads_to(&to));
            let from: Vec<_> = from.map(|(_, name)| name).collect();
            assert_eq!(from.join(" "), want, "to {to:?}");
        }
    }

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
