//! The admin connection of one controller, from ICReq to its end.
//!
//! Decides whether a controller and its namespaces can be used, reports their properties and
//! changes of them, and keeps the association alive. The engine opens I/O queues according to it.
//!
//! * [`connect`]: Connect, properties, Identify Controller, features
//! * [`scan`]: the namespaces; [`ana`]: their ANA states; [`discovery`]: the log of a discovery
//!   controller
//! * [`ready`]: events and their consequences; [`keep_alive`]; [`abort`]; [`reset`]; [`shutdown`]
//! * [`allocation`]: which blocks are allocated
//!
//! # Contract
//! One ordinary command is outstanding at a time ([`Step`] names it), one Keep Alive, one
//! Asynchronous Event Request, one command of a reset, one question about allocation, and a few
//! Aborts; of a scan, some pages that are read ahead. The queue has room for all of them at any
//! moment, so a keep-alive never waits for a slot (T29), and no event takes an ordinary command's
//! identifier (T30). Every answer has a deadline but those of an event request and of a question
//! about allocation.
//! [`AdminEvent::Failed`] is the last event.
//!
//! # Limits
//! [`HOST_NAMESPACES_MAX`], [`ANA_LOG_MAX`], [`DISCOVERY_ENTRIES_MAX`]; more is a
//! [`HostError::Limit`].
//!
//! # Origin
//! Base 2.0, 3.5 (initialization), 3.6 (shutdown), 3.9 (keep alive), 5.2 (events), 8.1 (ANA).
//!
//! [`HOST_NAMESPACES_MAX`]: crate::limits::HOST_NAMESPACES_MAX
//! [`ANA_LOG_MAX`]: crate::limits::ANA_LOG_MAX
//! [`DISCOVERY_ENTRIES_MAX`]: crate::limits::DISCOVERY_ENTRIES_MAX
mod abort;
mod allocation;
mod ana;
mod connect;
mod discovery;
mod keep_alive;
mod ready;
mod reset;
mod scan;
mod shutdown;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::transport::{Connection, Sending, Settings, own_command};
use super::{AdminConfig, AdminEvent, Command, Completed, Data, HostError, NamespaceInfo, Step};
use crate::limits::{
    ADMIN_RETRIES_MAX, ADMIN_RETRY_NS, HOST_ABORTS_MAX, HOST_ADMIN_ENTRIES, LOG_PIECE,
    NAMESPACES_AHEAD, NQN_MAX,
};
use crate::wire::fabrics::{CNTLID_ANY, ConnectData};
use crate::wire::features::ACRE;
use crate::wire::status::Class;
use crate::wire::{SqeBuilder, Status};
use crate::{Transmit, crc32c};

pub(super) use connect::{controller_info, limits_of};
pub(super) use scan::{blank, identifiers, nvm_shape, shape};

use abort::Aborting;
use allocation::Allocation;
use ana::Ana;
use connect::Facts;
use discovery::Discovery;
use keep_alive::KeepAlive;
use ready::Work;
use reset::Resetting;
use scan::Scan;
use shutdown::Ending;

/// Tokens: the kind of command that a completion belongs to.
const ORDINARY: u32 = 0;
const KEEP_ALIVE: u32 = 1;
const EVENT: u32 = 2;
const RESET: u32 = 3;
const ALLOCATION: u32 = 4;
/// Aborts: this token and above, by their place in the table.
const ABORT: u32 = 16;
/// Pages that are read ahead: this token and above, by their place.
const AHEAD: u32 = 32;
const _: () = assert!(ABORT + HOST_ABORTS_MAX as u32 <= AHEAD);
// Beside those: an ordinary command, a keep-alive, an event request, one of a reset, a question.
const _: () = assert!(NAMESPACES_AHEAD + HOST_ABORTS_MAX + 5 < HOST_ADMIN_ENTRIES as usize);

/// Input for which the machine waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing, or an event.
    Nothing,
    /// The answer of the current step, until this time.
    Answer(u64),
    /// This time, to begin this step.
    Until(u64, Step),
}

/// Consequence of a step that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Begin(Step),
    At(u64, Step),
    /// The most urgent pending work, or nothing.
    Work,
}

/// One admin association.
#[derive(Debug)]
pub struct Admin {
    config: AdminConfig,
    connection: Connection,
    connect_data: Box<[u8; ConnectData::LEN]>,
    step: Step,
    wait: Wait,
    attempts: u8,
    /// Data of the ordinary command in flight.
    page: Box<[u8; LOG_PIECE as usize]>,
    facts: Facts,
    scan: Scan,
    ana: Ana,
    discovery: Discovery,
    keep_alive: KeepAlive,
    work: Work,
    ending: Ending,
    resetting: Resetting,
    aborting: Aborting,
    allocation: Allocation,
    /// `Ready` was reported.
    ready: bool,
    events: VecDeque<AdminEvent>,
    /// `Failed` was reported.
    over: bool,
}

impl Admin {
    /// An association to be opened.
    pub fn new(config: AdminConfig) -> Self {
        let data = ConnectData {
            hostid: config.host.id,
            cntlid: CNTLID_ANY,
            subnqn: config.subsystem.as_bytes(),
            hostnqn: config.host.nqn.as_bytes(),
        };
        let connect_data = Box::new(data.emit());
        Self {
            connection: Connection::new(settings(&config)),
            connect_data,
            step: Step::Handshake,
            wait: Wait::Nothing,
            attempts: 0,
            page: Box::new([0; LOG_PIECE as usize]),
            facts: Facts::default(),
            scan: Scan::default(),
            ana: Ana::default(),
            discovery: Discovery::default(),
            keep_alive: KeepAlive::new(config.kato_ms),
            work: Work::default(),
            ending: Ending::default(),
            resetting: Resetting::default(),
            aborting: Aborting::default(),
            allocation: Allocation::default(),
            ready: false,
            events: VecDeque::new(),
            over: false,
            config,
        }
    }

    /// The TCP connection is up: ICReq goes out.
    pub fn handle_connected(&mut self, now_ns: u64) {
        let nqn = |nqn: &str| (1..=NQN_MAX).contains(&nqn.len());
        if !nqn(&self.config.subsystem) || !nqn(&self.config.host.nqn) {
            self.connection.fail(HostError::Nqn);
            return;
        }
        self.connection.handle_connected();
        self.wait = Wait::Answer(self.deadline(now_ns));
    }

    /// Bytes arrived; all are taken.
    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        let mut used = 0;
        loop {
            used += self.connection.handle_bytes(&bytes[used..]);
            used += self.place(&bytes[used..]);
            self.advance(now_ns);
            if used == bytes.len() {
                return used;
            }
        }
    }

    /// Appends the next bytes to send to `out`; there is never a payload.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, _now_ns: u64) -> Option<Transmit> {
        if let Sending::Own(_, payload) = self.connection.poll_transmit(out)? {
            // No other command carries data to the controller.
            let data: &[u8] = match self.step {
                Step::HostBehavior => &*self.page,
                _ => &*self.connect_data,
            };
            self.connection.append_own(&payload, data, out);
        }
        Some(Transmit { payload: None })
    }

    /// Returns the next event; `None`: there is none.
    pub fn poll_event(&mut self) -> Option<AdminEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let error = self.connection.error()?;
        self.wait = Wait::Nothing;
        self.keep_alive.stop();
        (!core::mem::replace(&mut self.over, true)).then_some(AdminEvent::Failed(error))
    }

    /// When [`Self::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.connection.error().is_some() {
            return None;
        }
        let wait = match self.wait {
            Wait::Nothing => None,
            Wait::Answer(at) | Wait::Until(at, _) => Some(at),
        };
        if self.resetting.is_begun() {
            // All other work has ended, but for the keep-alive in flight.
            let times = [self.resetting.timeout(), self.keep_alive.timeout()];
            return times.into_iter().flatten().min();
        }
        let reread = self.ana.reread_at.filter(|_| self.step == Step::Idle);
        let abort = self.aborting.timeout();
        let discovery = self.discovery_due();
        let times = [wait, reread, discovery, self.keep_alive.timeout(), abort];
        times.into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.connection.error().is_some() {
            return;
        }
        if self.resetting.is_begun() {
            self.keep_alive_due(now_ns);
            return self.reset_due(now_ns);
        }
        match self.wait {
            Wait::Answer(at) if now_ns >= at => {
                return self.connection.fail(HostError::TimedOut(self.step));
            }
            Wait::Until(at, step) if now_ns >= at => self.begin(step, now_ns),
            _ => {}
        }
        if self.step == Step::Idle && self.ana.reread_at.is_some_and(|at| now_ns >= at) {
            self.request_ana(now_ns);
        }
        if self.discovery_due().is_some_and(|at| now_ns >= at) {
            self.next_work(now_ns);
        }
        self.abort_due(now_ns);
        self.keep_alive_due(now_ns);
    }

    /// The connection ended or was reset.
    pub fn handle_closed(&mut self, _now_ns: u64) {
        self.connection.handle_closed();
    }

    /// Traffic was seen on an I/O queue (for traffic-based keep-alive).
    #[inline]
    pub fn note_traffic(&mut self, _now_ns: u64) {
        self.keep_alive.traffic = true;
    }

    /// Namespaces that the controller lists and that were not examined.
    pub fn unasked(&self) -> usize {
        self.scan.unasked
    }

    /// Restricts the association to this namespace from now on.
    pub fn want(&mut self, nsid: u32) {
        self.config.nsid = Some(nsid);
    }

    /// Reason why a listed namespace was not reported; `None`: it is not listed.
    pub fn refused(&self, nsid: u32) -> Option<HostError> {
        let why = self
            .scan
            .refused
            .iter()
            .find(|refused| refused.0 == nsid)?
            .1;
        Some(HostError::Namespace { nsid, why })
    }

    /// Reports `Ready`, the first time; `later` after that.
    fn tell(&mut self, namespaces: Vec<NamespaceInfo>, later: Option<AdminEvent>) {
        if let Some(info) = self.facts.info.take() {
            self.ready = true;
            self.work.arm = self.facts.wants_events();
            self.events
                .push_back(AdminEvent::Ready(Box::new((info, namespaces))));
        } else if later.is_none() {
            self.events.push_back(AdminEvent::Changed(namespaces));
        }
        self.events.extend(later);
    }

    /// Returns the deadline for the answer to a command sent now.
    fn deadline(&self, now_ns: u64) -> u64 {
        now_ns
            .saturating_add(self.config.timeout_ns)
            .max(self.work.paused_until_ns)
    }

    /// Copies data of the machine's own from the start of `bytes` to its place; returns its length.
    fn place(&mut self, bytes: &[u8]) -> usize {
        let Some(place) = self.connection.placement() else {
            return 0;
        };
        let len = bytes.len().min(place.len as usize);
        let at = place.offset as usize;
        let data = &bytes[..len];
        match place.token {
            ALLOCATION => self.allocation.place(at, data),
            AHEAD.. => self.scan.place_ahead(place.token - AHEAD, at, data),
            // Every command asks for at most a page.
            _ => self.page[at..at + len].copy_from_slice(data),
        }
        let crc = place.crc.map_or(0, |crc| crc32c(crc, &bytes[..len]));
        self.connection.handle_payload(len as u32, crc);
        len
    }

    /// Handles the events of the connection.
    fn advance(&mut self, now_ns: u64) {
        if self.step == Step::Handshake && self.connection.is_up() {
            self.begin(Step::Connect, now_ns);
        }
        while self.connection.error().is_none()
            && let Some(end) = self.connection.poll_end()
        {
            match end.token {
                RESET => self.reset_answered(&end, now_ns),
                // A command that ends because of a reset, or beside it, has no consequence any
                // more.
                _ if self.resetting.is_begun() => {}
                KEEP_ALIVE => self.keep_alive_answered(&end, now_ns),
                EVENT => self.event_happened(&end, now_ns),
                ALLOCATION => self.allocation_answered(&end, now_ns),
                AHEAD.. => self.read_ahead(&end, now_ns),
                ABORT.. => self.abort_answered(&end),
                _ => self.step_ended(&end, now_ns),
            }
        }
    }

    /// Handles the end of the current step's command.
    fn step_ended(&mut self, end: &Completed, now_ns: u64) {
        self.keep_alive.traffic = true;
        self.wait = Wait::Nothing;
        let step = self.step;
        let next = if end.status.is_success() {
            self.attempts = 0;
            self.finish(step, end.result, now_ns)
        } else if let Some(at) = self.retry_at(end, now_ns) {
            Ok(Next::At(at, step))
        } else {
            self.attempts = 0;
            self.give_up(step, end)
        };
        self.follow(next, now_ns);
    }

    /// Goes on after a step.
    fn follow(&mut self, next: Result<Next, HostError>, now_ns: u64) {
        match next {
            Ok(Next::Begin(step)) => self.begin(step, now_ns),
            Ok(Next::At(at, step)) => self.wait = Wait::Until(at, step),
            Ok(Next::Work) => {
                self.step = Step::Idle;
                self.next_work(now_ns);
            }
            Err(error) => self.connection.fail(error),
        }
    }

    /// Returns when to repeat a command, if the controller allows that (T1, T3).
    fn retry_at(&mut self, end: &Completed, now_ns: u64) -> Option<u64> {
        if !may_pass(end.status) || self.step == Step::Connect || self.attempts == ADMIN_RETRIES_MAX
        {
            return None;
        }
        self.attempts += 1;
        let delay = end.status.crd().map_or(ADMIN_RETRY_NS, |index| {
            u64::from(self.facts.crdt[index]) * 100_000_000
        });
        Some(now_ns.saturating_add(delay.min(self.config.timeout_ns)))
    }

    /// Sends the command of `step`.
    fn begin(&mut self, step: Step, now_ns: u64) {
        self.step = step;
        self.wait = Wait::Answer(self.deadline(now_ns));
        if self.scan.is_ahead() {
            return self.send_ahead(step);
        }
        let (sqe, data) = self.command(step);
        if let Data::In(len) | Data::Out(len) = data {
            self.page[..len as usize].fill(0);
        }
        if step == Step::HostBehavior {
            self.page[0] = ACRE;
        }
        self.submit(&own_command(&sqe, data, ORDINARY));
    }

    fn submit(&mut self, command: &Command) {
        // There is room: see the module's contract. If the connection is over, its error is
        // reported.
        let taken = self.connection.submit(command, true);
        let over = self.connection.error().is_some();
        assert!(taken.is_ok() || over, "no room for an admin command");
    }

    /// Returns the command of each step.
    fn command(&self, step: Step) -> (SqeBuilder, Data) {
        match step {
            Step::NamespaceList
            | Step::Descriptors
            | Step::Namespace
            | Step::NvmNamespace
            | Step::IndependentNamespace => self.scan_command(step),
            Step::AnaLog => self.ana_command(),
            Step::DiscoveryLog => self.discovery_command(),
            Step::ChangedLog | Step::EventLog => self.log_command(step),
            Step::Shutdown => self.shutdown_command(),
            _ => self.connect_command(step),
        }
    }

    /// Handles the success of a step's command.
    fn finish(&mut self, step: Step, result: u64, now_ns: u64) -> Result<Next, HostError> {
        match step {
            Step::NamespaceList
            | Step::Descriptors
            | Step::Namespace
            | Step::NvmNamespace
            | Step::IndependentNamespace => self.scan_finished(step),
            Step::AnaLog => self.ana_finished(now_ns),
            Step::DiscoveryLog => self.discovery_finished(),
            Step::ChangedLog | Step::EventLog => Ok(self.log_finished(step)),
            Step::Shutdown => self.shutdown_finished(result, now_ns),
            _ => self.connect_finished(step, result, now_ns),
        }
    }

    /// Handles the failure of a step's command that is not repeated.
    fn give_up(&mut self, step: Step, end: &Completed) -> Result<Next, HostError> {
        let status = end.status;
        match step {
            Step::Connect => Err(HostError::Connect {
                status,
                result: end.result,
            }),
            // Optional, or of later versions than the controller's.
            Step::NvmController => Ok(Next::Begin(Step::NamespaceList)),
            Step::EventConfig => {
                self.facts.events = 0;
                Ok(self.events_configured())
            }
            Step::HostBehavior => Ok(Next::Begin(Self::behavior_told(self.facts.version))),
            Step::Descriptors
            | Step::Namespace
            | Step::NvmNamespace
            | Step::IndependentNamespace => self.scan_refused(step, status),
            Step::ChangedLog | Step::EventLog => Ok(self.log_finished(step)),
            Step::Shutdown => Err(HostError::Closed),
            _ => Err(HostError::Command { step, status }),
        }
    }
}

/// Whether a command that ended so may succeed if it is repeated (T1, T3).
fn may_pass(status: Status) -> bool {
    matches!(status.class(), Class::Retry | Class::Transport) && !status.dnr()
}

fn settings(config: &AdminConfig) -> Settings {
    Settings {
        entries: HOST_ADMIN_ENTRIES,
        digests: config.digests,
        // Some targets use the SUCCESS flag whatever was asked for (T18).
        disable_sq_flow_control: true,
        few_commands: true,
        in_capsule_max: crate::limits::ADMIN_IN_CAPSULE,
    }
}
