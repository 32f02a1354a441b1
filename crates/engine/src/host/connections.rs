//! The connections of one path on this core, and where its association with its controller stands.
//!
//! # Contract
//! Connection ids are fixed: path `g` of the engine has `2g` for the admin connection (core 0 only)
//! and `2g + 1` for its I/O queue. A connection has its machine from when it is asked for until the
//! reactor has said that it is over and what the machine had has ended. All that has to happen
//! leaves by the outbox; nothing here knows of I/O, of other paths, or of the volume.
//!
//! # States
//! Of the association: [`SessionState`]. Of a connection: [`Link`], or none.
use super::mark::Unmarked;
use super::outbox::Outbox;
use super::recovery::Recovery;
use crate::machine::{ConnId, Output};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use nvme::host::{Admin, IoQueue};
use nvme::{Placement, Transmit};

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Admin,
    Io,
}

impl Role {
    pub(super) const ALL: [Self; 2] = [Self::Admin, Self::Io];
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Asked for; given up at `until_ns`.
    Opening { until_ns: u64 },
    /// Up.
    Open,
    /// Closed by us once all is sent; aborted at `until_ns`.
    Closing { until_ns: u64 },
    /// Aborted by us, or over; its machine still has what was under way.
    Aborting,
}

/// A connection and the machine that speaks over it.
pub(super) struct Connection<M> {
    link: Link,
    machine: Box<M>,
}

impl<M> Deref for Connection<M> {
    type Target = M;

    #[inline(always)]
    fn deref(&self) -> &M {
        &self.machine
    }
}

impl<M> DerefMut for Connection<M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut M {
        &mut self.machine
    }
}

/// The machine of a connection that is up.
#[inline(always)]
fn opened<M>(of: &mut Option<Connection<M>>) -> Option<&mut Connection<M>> {
    of.as_mut().filter(|it| it.link == Link::Open)
}

/// Where a path's association with its controller stands, on this core. Changed by
/// [`PathSession::enter`] alone. A lost controller may be in the middle of a reset: the write fence
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

    /// Whether it was lost.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost | Self::Backoff { .. })
    }
}

/// Another core's report to core 0 of the end of its connections of a lost path.
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
    live_ns: u64,
    /// Since when it has not been live, ns.
    pub lost_ns: Option<u64>,
    /// Core 0: cores that have not said that their connections are over.
    pub others: u16,
    /// Other cores: what core 0 was told of their connections.
    pub report: LossReport,
    /// Why it is lost, as said; and the reason that was said before that one.
    pub line: String,
    line_before: String,
}

impl Comeback {
    /// It is lost, closed, or live: what core 0 finds from now on is no news before it has heard
    /// that our connections are over. That it still waits for it stays.
    fn end_report(&mut self) {
        if self.report == LossReport::Given {
            self.report = LossReport::None;
        }
    }

    /// Why it is lost now; whether that is to be said. Where two reasons take turns each is said
    /// once: attempts go on for as long as people need to mend things.
    pub(super) fn is_news(&mut self, line: &str) -> bool {
        if self.line == line {
            return false;
        }
        let before = core::mem::replace(&mut self.line, line.to_owned());
        core::mem::replace(&mut self.line_before, before) != line
    }

    /// Counts a failure. Returns how many there were before, and when the next attempt is to be,
    /// ns.
    pub(super) fn fail(&mut self, recovery: &Recovery, now_ns: u64) -> (u32, u64) {
        let failures = self.failures;
        let wait_ns = recovery
            .reconnect_min_ns
            .checked_shl(failures.min(32))
            .unwrap_or(u64::MAX)
            .min(recovery.reconnect_max_ns);
        self.failures = failures.saturating_add(1);
        (failures, now_ns.saturating_add(wait_ns))
    }
}

/// See the module.
pub(super) struct PathSession {
    /// Which of the engine's paths it is.
    number: usize,
    state: SessionState,
    pub(super) admin: Option<Connection<Admin>>,
    pub(super) queue: Option<Connection<IoQueue>>,
    /// The machine of this role was called since the last turn.
    pub(super) touched: [bool; 2],
    /// The admin machine was told to shut the controller down.
    is_shutting_down: bool,
    pub(super) comeback: Comeback,
}

impl PathSession {
    /// Of path `number`, which was not begun.
    pub(super) fn new(number: usize) -> Self {
        Self {
            number,
            state: SessionState::Idle,
            admin: None,
            queue: None,
            touched: [false; 2],
            is_shutting_down: false,
            comeback: Comeback::default(),
        }
    }

    pub(super) fn state(&self) -> &SessionState {
        &self.state
    }

    /// Changes where its association stands. Returns where it stood.
    ///
    /// # Panics
    /// If the state that it has doesn't lead there.
    pub(super) fn enter(&mut self, to: SessionState) -> SessionState {
        let from = &self.state;
        assert!(from.leads_to(&to), "{}: {from:?} → {to:?}", self.number);
        core::mem::replace(&mut self.state, to)
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, SessionState::Live)
    }

    /// Whether it was lost, or closed in order.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.state.is_lost() || matches!(self.state, SessionState::Closed)
    }

    /// Core 0: when it is connected again, ns; `u64::MAX`: not by itself. `None`: it is not over on
    /// all cores.
    pub(super) fn retry_ns(&self) -> Option<u64> {
        match self.state {
            SessionState::Backoff { at_ns } => Some(at_ns),
            _ => None,
        }
    }

    /// Core 0: what was found, while it waits for paths before it or for its mark.
    pub(super) fn unmarked(&self) -> Option<&Unmarked> {
        match &self.state {
            SessionState::CheckingOthers(it) => Some(it),
            _ => None,
        }
    }

    pub(super) fn unmarked_mut(&mut self) -> Option<&mut Unmarked> {
        match &mut self.state {
            SessionState::CheckingOthers(it) => Some(it),
            _ => None,
        }
    }

    /// Core 0: looks at what was found again. Returns it; `None`: it does not wait.
    pub(super) fn look_again(&mut self) -> Option<Box<Unmarked>> {
        self.unmarked()?;
        match self.enter(SessionState::Identifying) {
            SessionState::CheckingOthers(it) => Some(it),
            other => unreachable!("{other:?} has found nothing"),
        }
    }

    pub(super) fn conn(&self, role: Role) -> ConnId {
        ConnId(self.number as u32 * 2 + role as u32)
    }

    /// Where a connection stands; `None`: there is none.
    pub(super) fn link(&self, role: Role) -> Option<Link> {
        match role {
            Role::Admin => self.admin.as_ref().map(|it| it.link),
            Role::Io => self.queue.as_ref().map(|it| it.link),
        }
    }

    fn set_link(&mut self, role: Role, to: Link) {
        let link = match role {
            Role::Admin => self.admin.as_mut().map(|it| &mut it.link),
            Role::Io => self.queue.as_mut().map(|it| &mut it.link),
        };
        let link = link.unwrap_or_else(|| unreachable!("{role:?}: there is no connection"));
        *link = to;
    }

    pub(super) fn is_open(&self, role: Role) -> bool {
        self.link(role) == Some(Link::Open)
    }

    /// Whether it has no connection, and nothing that was under way on one.
    pub(super) fn is_disconnected(&self) -> bool {
        self.admin.is_none() && self.queue.is_none()
    }

    /// Core 0: opens its admin connection, to learn what the controller is.
    pub(super) fn identify(&mut self, machine: Admin, address: u32, out: &mut Outbox, now_ns: u64) {
        self.enter(SessionState::Identifying);
        self.is_shutting_down = false;
        let link = self.ask(Role::Admin, address, out, now_ns);
        self.admin = Some(Connection {
            link,
            machine: Box::new(machine),
        });
    }

    /// Opens the connection of this core's I/O queue.
    pub(super) fn connect(
        &mut self,
        machine: IoQueue,
        address: u32,
        out: &mut Outbox,
        now_ns: u64,
    ) {
        let link = self.ask(Role::Io, address, out, now_ns);
        self.queue = Some(Connection {
            link,
            machine: Box::new(machine),
        });
    }

    /// Asks for a connection.
    fn ask(&self, role: Role, address: u32, out: &mut Outbox, now_ns: u64) -> Link {
        assert!(self.link(role).is_none(), "{role:?}: a second connection");
        let until_ns = out.connect_by(now_ns);
        let conn = self.conn(role);
        out.push(Output::Open { conn, address });
        Link::Opening { until_ns }
    }

    /// Closes a connection, if there is one; `abort`: without sending what is left.
    pub(super) fn close(&mut self, role: Role, abort: bool, out: &mut Outbox, now_ns: u64) {
        let conn = self.conn(role);
        let abort = match self.link(role) {
            None | Some(Link::Aborting) => return,
            Some(Link::Closing { .. }) if !abort => return,
            Some(Link::Opening { .. }) => true,
            Some(Link::Open | Link::Closing { .. }) => abort,
        };
        if abort {
            self.set_link(role, Link::Aborting);
        } else {
            let until_ns = out.connect_by(now_ns);
            self.set_link(role, Link::Closing { until_ns });
            out.transmit(conn);
        }
        out.push(Output::Close { conn, abort });
    }

    /// The reactor says that a connection is over: its machine has what was under way until
    /// it is dropped. Returns where it stood.
    pub(super) fn end_connection(&mut self, role: Role) -> Link {
        let Some(link) = self.link(role) else {
            unreachable!("{role:?}: a connection ended that there was not");
        };
        self.set_link(role, Link::Aborting);
        link
    }

    /// Core 0: has the controller shut down, once. False: it was told before, or can't be.
    pub(super) fn shut_down(&mut self, now_ns: u64) -> bool {
        let Some(admin) = opened(&mut self.admin).filter(|_| !self.is_shutting_down) else {
            return false;
        };
        admin.shutdown(now_ns);
        self.is_shutting_down = true;
        true
    }

    /// Its association is over for a reason that came first. Returns where it stood; `None`: it was
    /// over before. A life shorter than `longest_ns` counts as one failure more.
    pub(super) fn lose(&mut self, longest_ns: u64, now_ns: u64) -> Option<SessionState> {
        if self.is_over() {
            return None;
        }
        let before = self.enter(SessionState::Lost);
        let comeback = &mut self.comeback;
        comeback.tried = true;
        comeback.end_report();
        let was_live = matches!(before, SessionState::Live);
        if was_live && now_ns.saturating_sub(comeback.live_ns) >= longest_ns {
            comeback.failures = 0;
        }
        comeback.lost_ns = comeback.lost_ns.or(Some(now_ns));
        Some(before)
    }

    /// It can take I/O. Returns whether its loss was reported.
    pub(super) fn begin_use(&mut self, now_ns: u64) -> bool {
        self.enter(SessionState::Live);
        let comeback = &mut self.comeback;
        comeback.tried = true;
        comeback.end_report();
        comeback.live_ns = now_ns;
        comeback.lost_ns = None;
        comeback.line_before.clear();
        !core::mem::take(&mut comeback.line).is_empty()
    }

    /// Since when it can take I/O, ns, if it can.
    pub(super) fn live_ns(&self) -> Option<u64> {
        self.is_live().then_some(self.comeback.live_ns)
    }

    /// Its queue is to be closed in order. Returns where it stood.
    pub(super) fn leave(&mut self) -> SessionState {
        self.comeback.end_report();
        self.enter(SessionState::Closed)
    }

    // Events of its connections. Those after the end of one are of no interest.

    /// Whether a machine was called.
    pub(super) fn handle_connected(&mut self, role: Role, now_ns: u64) -> bool {
        if !matches!(self.link(role), Some(Link::Opening { .. })) {
            return false;
        }
        self.set_link(role, Link::Open);
        match role {
            Role::Admin => opened(&mut self.admin).map(|it| it.handle_connected(now_ns)),
            Role::Io => opened(&mut self.queue).map(|it| it.handle_connected(now_ns)),
        }
        .is_some()
    }

    /// Returns how many bytes its machine has taken; `None`: the connection is not up.
    #[inline(always)]
    pub(super) fn handle_bytes(&mut self, role: Role, bytes: &[u8], now_ns: u64) -> Option<usize> {
        Some(match role {
            Role::Io => opened(&mut self.queue)?.handle_bytes(bytes, now_ns),
            Role::Admin => opened(&mut self.admin)?.handle_bytes(bytes, now_ns),
        })
    }

    #[inline(always)]
    pub(super) fn placement(&self, role: Role) -> Option<Placement> {
        let queue = self.queue.as_ref().filter(|it| it.link == Link::Open)?;
        (role == Role::Io).then(|| queue.placement()).flatten()
    }

    /// Whether a machine was called.
    #[inline(always)]
    pub(super) fn handle_payload(&mut self, role: Role, len: u32, crc: u32, now_ns: u64) -> bool {
        assert!(role == Role::Io, "only an I/O queue has placed payload");
        let queue = opened(&mut self.queue);
        queue
            .map(|it| it.handle_payload(len, crc, now_ns))
            .is_some()
    }

    #[inline(always)]
    pub(super) fn poll_transmit(
        &mut self,
        role: Role,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Transmit> {
        if !matches!(self.link(role)?, Link::Open | Link::Closing { .. }) {
            return None;
        }
        match role {
            Role::Admin => self.admin.as_mut()?.poll_transmit(out, now_ns),
            Role::Io => self.queue.as_mut()?.poll_transmit(out, now_ns),
        }
    }

    /// Calls the machine of a connection whose time has come; whether it was one.
    pub(super) fn handle_timeout(&mut self, role: Role, now_ns: u64) -> bool {
        let due = |at_ns: Option<u64>| at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        match role {
            Role::Admin => opened(&mut self.admin)
                .filter(|it| due(it.poll_timeout()))
                .map(|it| it.handle_timeout(now_ns)),
            Role::Io => opened(&mut self.queue)
                .filter(|it| due(it.poll_timeout()))
                .map(|it| it.handle_timeout(now_ns)),
        }
        .is_some()
    }

    /// When a connection or its machine wants to be called, ns.
    pub(super) fn timeout_ns(&self) -> Option<u64> {
        fn of<M>(
            it: Option<&Connection<M>>,
            machine: impl FnOnce(&M) -> Option<u64>,
        ) -> Option<u64> {
            match it?.link {
                Link::Opening { until_ns } | Link::Closing { until_ns } => Some(until_ns),
                Link::Open => machine(&it?.machine),
                Link::Aborting => None,
            }
        }
        let times = [
            self.retry_ns(),
            of(self.admin.as_ref(), Admin::poll_timeout),
            of(self.queue.as_ref(), IoQueue::poll_timeout),
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

    fn live() -> PathSession {
        let mut it = PathSession::new(3);
        it.enter(SessionState::Connecting);
        assert!(!it.begin_use(10), "its loss was never reported");
        it
    }

    #[test]
    fn path_is_lost_once_for_what_came_first() {
        let mut it = live();
        assert!(it.comeback.is_news("cut"));
        let before = it.lose(100, 50);
        assert!(matches!(before, Some(SessionState::Live)));
        assert!(it.lose(100, 60).is_none() && it.is_over() && !it.is_live());
        assert_eq!(it.comeback.lost_ns, Some(50));
        assert!(!it.comeback.is_news("cut"));
        it.enter(SessionState::Connecting);
        assert!(it.begin_use(70), "it was reported");
        assert_eq!(it.comeback.lost_ns, None);
        assert!(it.comeback.is_news("cut"), "of the life before");
    }

    #[test]
    fn waits_grow_until_path_has_lived_for_the_longest() {
        let recovery = Recovery {
            reconnect_min_ns: 10,
            reconnect_max_ns: 35,
            ..Recovery::NONE
        };
        let mut it = live();
        for (failures, at_ns) in [(0, 110), (1, 120), (2, 135), (3, 135)] {
            assert_eq!(it.comeback.fail(&recovery, 100), (failures, at_ns));
        }
        for (lived_ns, failures) in [(34, 4), (35, 0)] {
            it.lose(35, it.comeback.live_ns + lived_ns);
            assert_eq!(it.comeback.failures, failures);
            it.enter(SessionState::Connecting);
            it.begin_use(1000);
        }
    }

    #[test]
    fn two_reasons_in_turn_are_said_once_each() {
        let mut it = Comeback::default();
        let said = ["a", "b", "a", "b", "c", "a"].map(|line| it.is_news(line));
        assert_eq!(said, [true, true, false, false, true, true]);
    }

    #[test]
    fn core_0_is_told_again_only_after_another_loss() {
        let mut it = live();
        it.comeback.report = LossReport::Due;
        it.lose(100, 50);
        assert_eq!(it.comeback.report, LossReport::Due, "it still waits");
        it.comeback.report = LossReport::Given;
        it.enter(SessionState::Connecting);
        it.begin_use(60);
        assert_eq!(it.comeback.report, LossReport::None);
    }

    #[test]
    fn every_connection_names_its_path_and_role() {
        let it = PathSession::new(3);
        for role in Role::ALL {
            assert_eq!(of(it.conn(role)), (3, role));
            assert!(!it.is_open(role) && it.is_disconnected());
        }
    }

    #[test]
    #[should_panic(expected = "there was not")]
    fn end_of_no_connection_is_refused() {
        PathSession::new(3).end_connection(Role::Io);
    }
}
