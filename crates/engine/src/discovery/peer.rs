//! One discovery controller: its connection, its session, and how it comes back.
use super::{DiscoveryEngine, DiscoveryEvent, Endpoint, Offer};
use crate::host::ended;
use crate::machine::{Closed, ConnId, Output};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use canary::Bug;
use nvme::host::{Admin, AdminConfig, AdminEvent, DiscoveryLog, HostError};
use nvme::wire::Status;
use nvme::wire::fabrics::{InvalidParameter, connect_status};

/// Offset of KATO in the Connect entry.
const KATO_AT: u16 = 48;

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The driver was asked to make its address known.
    Leading,
    /// To be connected then; `u64::MAX`: not again.
    Waiting { at_ns: u64 },
    /// Asked for; given up at that time.
    Opening { until_ns: u64 },
    /// Up.
    Open,
    /// Closed by us once all is sent; aborted at that time.
    Closing { until_ns: u64 },
    /// Aborted by us.
    Aborting,
}

/// Last answers of a controller.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub offers: Vec<Offer>,
    pub referrals: Vec<Endpoint>,
}

pub(super) struct Peer {
    pub endpoint: Endpoint,
    /// Referrals between it and its source.
    pub depth: u8,
    pub state: State,
    admin: Option<Box<Admin>>,
    /// Once it has told anything.
    pub known: Option<Known>,
    /// Nothing refers to it any more.
    pub unwanted: bool,
    /// Its log was read, or can't be.
    pub tried: bool,
    /// When its log is read again, where it doesn't say by itself that it has changed.
    poll_ns: Option<u64>,
    /// It has refused a Connect with a keep-alive time-out, and not yet one without.
    without_kato: bool,
    /// Failures since its log was read.
    failures: u32,
    /// Why it is lost, as said last.
    line: String,
}

impl Peer {
    pub(super) fn new(endpoint: Endpoint, depth: u8) -> Self {
        Self {
            endpoint,
            depth,
            state: State::Leading,
            admin: None,
            known: None,
            unwanted: false,
            tried: false,
            poll_ns: None,
            without_kato: false,
            failures: 0,
            line: String::new(),
        }
    }

    /// The session, if it may send.
    pub(super) fn admin_to_send(&mut self) -> Option<&mut Admin> {
        let sends = matches!(self.state, State::Open | State::Closing { .. });
        self.admin.as_deref_mut().filter(|_| sends)
    }

    pub(super) fn timeout_ns(&self) -> Option<u64> {
        let admin = || self.admin.as_ref()?.poll_timeout();
        match self.state {
            State::Leading | State::Aborting => None,
            State::Waiting { at_ns } => Some(at_ns).filter(|at_ns| *at_ns < u64::MAX),
            State::Opening { until_ns } | State::Closing { until_ns } => Some(until_ns),
            State::Open => [admin(), self.poll_ns].into_iter().flatten().min(),
        }
    }
}

impl DiscoveryEngine {
    /// The address of a peer is known: it is connected, unless nobody wants it any more.
    pub(super) fn led(&mut self, conn: ConnId, now_ns: u64) {
        let Some(peer) = self.peer(conn).filter(|it| it.state == State::Leading) else {
            return;
        };
        if peer.unwanted {
            return self.bury(conn, now_ns);
        }
        self.open(conn, now_ns);
    }

    fn open(&mut self, conn: ConnId, now_ns: u64) {
        let config = &self.config;
        let until_ns = now_ns.saturating_add(config.connect_timeout_ns);
        let admin = AdminConfig {
            host: config.identity.clone(),
            subsystem: String::new(),
            digests: config.digests,
            kato_ms: config.kato_ms,
            io_queues: 1,
            timeout_ns: config.connect_timeout_ns,
            nsid: None,
        };
        let Some(peer) = self.peer(conn) else { return };
        let subsystem = peer.endpoint.nqn.clone();
        let kato_ms = if peer.without_kato { 0 } else { admin.kato_ms };
        peer.admin = Some(Box::new(Admin::new(AdminConfig {
            subsystem,
            kato_ms,
            ..admin
        })));
        peer.poll_ns = None;
        peer.state = State::Opening { until_ns };
        let address = conn.0;
        self.outputs.push_back(Output::Open { conn, address });
    }

    pub(super) fn connected(&mut self, conn: ConnId, now_ns: u64) {
        let Some(peer) = self.peer(conn) else { return };
        if !matches!(peer.state, State::Opening { .. }) {
            return; // given up in the meantime
        }
        peer.state = State::Open;
        if let Some(admin) = &mut peer.admin {
            admin.handle_connected(now_ns);
        }
        self.drain(conn, now_ns);
    }

    pub(super) fn received(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) {
        let Some(peer) = self.peer(conn).filter(|it| it.state == State::Open) else {
            return; // what comes after we gave up is of no interest
        };
        if let Some(admin) = &mut peer.admin {
            admin.handle_bytes(bytes, now_ns);
        }
        self.drain(conn, now_ns);
    }

    pub(super) fn timed_out(&mut self, conn: ConnId, now_ns: u64) {
        let Some(peer) = self.peer(conn) else { return };
        match peer.state {
            State::Waiting { at_ns } if at_ns <= now_ns => self.open(conn, now_ns),
            State::Opening { until_ns } if until_ns <= now_ns => {
                let why = "no connection within connect_timeout; check address and port";
                self.give_up(conn, why.to_string(), true, now_ns);
            }
            State::Closing { until_ns } if until_ns <= now_ns => self.close(conn, true, now_ns),
            State::Open => {
                let poll = peer.poll_ns.take_if(|at_ns| *at_ns <= now_ns).is_some();
                if let Some(admin) = &mut peer.admin {
                    if poll {
                        admin.request_discovery(now_ns);
                    }
                    admin.handle_timeout(now_ns);
                }
                self.drain(conn, now_ns);
            }
            _ => {}
        }
    }

    /// Takes what a session has to tell, and lets it send.
    fn drain(&mut self, conn: ConnId, now_ns: u64) {
        self.outputs.push_back(Output::Transmit(conn));
        let once = !self.is_persistent();
        loop {
            let Some(peer) = self.peer(conn).filter(|it| it.state == State::Open) else {
                return;
            };
            let Some(admin) = &mut peer.admin else { return };
            match admin.poll_event() {
                None => return self.watch(conn, now_ns),
                Some(AdminEvent::Ready(_)) => {
                    if !admin.is_discovery() {
                        let why = "it is no discovery controller; give the address and port of one \
                                   (8009 as a rule), without a subsystem's NQN";
                        self.give_up(conn, why.to_string(), false, now_ns);
                    }
                }
                Some(AdminEvent::Discovery(log)) => self.read(conn, log, now_ns),
                Some(AdminEvent::Failed(_)) if peer.unwanted || (once && peer.known.is_some()) => {
                    self.close(conn, false, now_ns);
                }
                Some(AdminEvent::Failed(error)) => {
                    let refused = !once && !peer.without_kato && refuses_kato(&error);
                    if refused {
                        // Asked again without, after the shortest wait: no reason to complain.
                        peer.without_kato = true;
                        return self.close(conn, false, now_ns);
                    }
                    if matches!(error, HostError::Connect { .. }) {
                        peer.without_kato = false;
                    }
                    self.give_up(conn, error.to_string(), false, now_ns);
                }
                // Of controllers with namespaces, and never asked for.
                Some(
                    AdminEvent::Changed(_)
                    | AdminEvent::Reset
                    | AdminEvent::Paused(_)
                    | AdminEvent::Aborted { .. }
                    | AdminEvent::Allocated { .. },
                ) => {}
            }
        }
    }

    /// Reads the log of a controller again and again that doesn't report changes, or takes no
    /// keep-alive: reading shows that it is there.
    fn watch(&mut self, conn: ConnId, now_ns: u64) {
        let (persistent, poll_ns) = (self.is_persistent(), self.config.poll_ns);
        let Some(peer) = self.peer(conn) else { return };
        let Some(admin) = &peer.admin else { return };
        let refused = admin.is_discovery() && !(admin.tells_discovery() && admin.keeps_alive());
        if persistent && refused && peer.known.is_some() && peer.poll_ns.is_none() {
            peer.poll_ns = Some(now_ns.saturating_add(poll_ns));
        }
    }

    /// A log was read.
    fn read(&mut self, conn: ConnId, log: DiscoveryLog, now_ns: u64) {
        let (persistent, poll_ns) = (self.is_persistent(), self.config.poll_ns);
        let Some(peer) = self.peer(conn).filter(|it| !it.unwanted) else {
            return;
        };
        let admin = peer.admin.as_deref();
        let tells = admin.is_some_and(|it| it.tells_discovery() && it.keeps_alive());
        peer.poll_ns = (persistent && !tells).then(|| now_ns.saturating_add(poll_ns));
        let stale = canary::has(Bug::StaleLog) && peer.failures > 0;
        if peer.known.is_none() || !stale {
            peer.known = Some(super::tree::known(&log, peer.endpoint.address));
        }
        peer.failures = 0;
        peer.line.clear();
        let read = DiscoveryEvent::Read(peer.endpoint.clone(), peer.depth, log);
        if !persistent && let Some(admin) = &mut peer.admin {
            admin.shutdown(now_ns);
        }
        self.take_log(read, now_ns);
        if let Some(peer) = self.peer(conn) {
            peer.tried = true;
        }
        self.finish_when_over();
    }

    /// A controller that nobody wants any more is left in order.
    pub(super) fn leave(&mut self, conn: ConnId, now_ns: u64) {
        let stopping = self.stopping;
        let Some(peer) = self.peer(conn) else { return };
        peer.unwanted = true;
        match (peer.state, &mut peer.admin) {
            (State::Open, Some(admin)) => {
                admin.shutdown(now_ns);
                self.drain(conn, now_ns);
            }
            (State::Waiting { .. }, _) => self.bury(conn, now_ns),
            // The peer may not be there to answer any more.
            (State::Leading, _) if stopping => self.bury(conn, now_ns),
            (State::Opening { .. }, _) => self.close(conn, true, now_ns),
            // The driver's answer is awaited; or it is on its way out.
            _ => {}
        }
    }

    /// A controller can't be used, for a reason that is said unless it was.
    fn give_up(&mut self, conn: ConnId, why: String, abort: bool, now_ns: u64) {
        self.complain(conn, why);
        self.close(conn, abort, now_ns);
    }

    fn complain(&mut self, conn: ConnId, why: String) {
        let Some(peer) = self.peer(conn) else { return };
        peer.tried = true;
        if peer.line != why && !peer.unwanted {
            peer.line.clone_from(&why);
            let lost = DiscoveryEvent::Lost(peer.endpoint.clone(), why);
            self.events.push_back(lost);
        }
    }

    fn close(&mut self, conn: ConnId, abort: bool, now_ns: u64) {
        let until_ns = now_ns.saturating_add(self.config.connect_timeout_ns);
        let Some(peer) = self.peer(conn) else { return };
        let abort = match peer.state {
            State::Opening { .. } => true,
            State::Open => abort,
            State::Closing { .. } if abort => true,
            _ => return,
        };
        peer.state = match abort {
            true => State::Aborting,
            false => State::Closing { until_ns },
        };
        self.outputs.push_back(Output::Close { conn, abort });
    }

    /// A connection is over.
    pub(super) fn closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        let once = !self.is_persistent();
        let Some(peer) = self.peer(conn) else { return };
        let state = peer.state;
        // A log that was read once holds, however the controller closes its connection.
        let done = once && peer.known.is_some();
        if !done && matches!(state, State::Opening { .. } | State::Open) {
            let what = match state {
                State::Open => "connection lost",
                _ => "can't connect",
            };
            self.complain(conn, ended(what, state == State::Open, why));
        }
        let persistent = self.is_persistent();
        let (least_ns, most_ns) = (self.config.reconnect_min_ns, self.config.reconnect_max_ns);
        let Some(peer) = self.peer(conn) else { return };
        peer.admin = None;
        if peer.unwanted {
            return self.bury(conn, now_ns);
        }
        let wait_ns = least_ns
            .checked_shl(peer.failures.min(32))
            .map_or(most_ns, |ns| ns.min(most_ns));
        peer.failures = peer.failures.saturating_add(1);
        let at_ns = match persistent {
            true => now_ns.saturating_add(wait_ns),
            false => u64::MAX,
        };
        peer.state = State::Waiting { at_ns };
        self.finish_when_over();
    }

    /// Its place is another's.
    fn bury(&mut self, conn: ConnId, now_ns: u64) {
        if let Some(peer) = self.peers[conn.0 as usize].take() {
            // It may be wanted again since, and have another place.
            let mut others = self.peers.iter().flatten();
            if !others.any(|it| it.endpoint == peer.endpoint) {
                self.events.push_back(DiscoveryEvent::Left(peer.endpoint));
            }
        }
        self.look_around(now_ns);
        self.stop_when_over();
    }
}

/// Whether a Connect was refused because of its keep-alive time-out: discovery controllers from
/// before NVMe-oF 1.1 take none.
fn refuses_kato(error: &HostError) -> bool {
    let HostError::Connect { status, result } = *error else {
        return false;
    };
    let named = InvalidParameter::parse(result);
    let of_entry = !named.in_data && matches!(named.offset, 0 | KATO_AT);
    status.is(Status::KEEP_ALIVE_INVALID)
        || status.is(Status::INVALID_FIELD)
        || (status.is(connect_status::INVALID_PARAMETERS) && of_entry)
}
