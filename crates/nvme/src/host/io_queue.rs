//! One I/O queue over one connection: handshake, Connect, then commands.
//!
//! Decides from the controller's bytes how each submitted command ends.
//!
//! # Contract
//! `handle_connected` once the TCP connection is up; after [`QueueEvent::Ready`], `submit`. Every
//! accepted command ends in exactly one [`QueueEvent::Completed`], whose slot is in use until that
//! event was polled. [`QueueEvent::Failed`] comes last, once. The queue has no I/O time-out: its
//! owner closes the connection (T12), and no identifier outlives that (T11).
//!
//! # Limits
//! `entries − 1` commands in flight; `entries` is cut to 2…[`HOST_ENTRIES_MAX`].
//!
//! # Origin
//! NVMe-TCP 1.0, 3.3; Base 2.0, 6.3 (Connect).
use super::transport::{Connection, Sending, Settings, own_command};
use super::{Command, Data, HostError, IoQueueConfig, QueueEvent, Step};
use crate::limits::HOST_ENTRIES_MAX;
use crate::wire::dsm::Range;
use crate::wire::fabrics::{Connect, ConnectData, ConnectResult};
use crate::wire::sqe::nvm;
use crate::{Placement, Transmit};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Reason why a command was refused. Neither is a device failure (T6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many commands as the queue holds are in flight.
    Full,
    /// The queue isn't ready, or is over.
    NotReady,
}

/// State of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the TCP connection and during the handshake.
    Handshake,
    /// Connect was submitted.
    Connect,
    /// Connect succeeded; `true`: the event was polled.
    Ready(bool),
    /// It failed, and that was reported.
    Over,
}

/// One I/O queue.
#[derive(Debug)]
pub struct IoQueue {
    connection: Connection,
    phase: Phase,
    /// Deadline of the answer that it waits for, ns.
    deadline: Option<u64>,
    timeout_ns: u64,
    cntlid: u16,
    connect: Connect,
    connect_data: Box<[u8; ConnectData::LEN]>,
}

impl IoQueue {
    /// A queue to be connected. Allocates all the memory it will ever need.
    pub fn new(config: IoQueueConfig) -> Self {
        let settings = Settings {
            entries: config.entries.clamp(2, HOST_ENTRIES_MAX),
            digests: config.digests,
            disable_sq_flow_control: config.disable_sq_flow_control,
            few_commands: false,
            in_capsule_max: config.in_capsule_max,
        };
        let data = ConnectData {
            hostid: config.host.id,
            cntlid: config.cntlid,
            subnqn: config.subsystem.as_bytes(),
            hostnqn: config.host.nqn.as_bytes(),
        };
        Self {
            connection: Connection::new(settings),
            phase: Phase::Handshake,
            deadline: None,
            timeout_ns: config.timeout_ns,
            cntlid: config.cntlid,
            connect: Connect {
                recfmt: 0,
                qid: config.qid,
                sqsize: settings.entries - 1,
                cattr: settings.cattr(),
                kato_ms: 0,
            },
            connect_data: Box::new(data.emit()),
        }
    }

    /// The TCP connection is up: ICReq goes out.
    pub fn handle_connected(&mut self, now_ns: u64) {
        self.connection.handle_connected();
        self.deadline = Some(now_ns.saturating_add(self.timeout_ns));
    }

    /// Queues a command.
    ///
    /// # Errors
    /// [`SubmitError::Full`]: try again after a completion. [`SubmitError::NotReady`]: before
    /// [`QueueEvent::Ready`] or after a failure.
    #[inline(always)] // of each command, in one place
    pub fn submit(&mut self, command: &Command, _now_ns: u64) -> Result<(), SubmitError> {
        if !matches!(self.phase, Phase::Ready(_)) {
            return Err(SubmitError::NotReady);
        }
        if command.is_own_range() {
            let command = Command {
                data: Data::Out(Range::LEN as u32),
                ..*command
            };
            return self.connection.submit(&command, true);
        }
        self.connection.submit(command, false)
    }

    /// Returns the identifier of a command, for an Abort; `None`: it was not sent, or it has ended.
    /// Until [`Self::abort_over`] no other command gets its slot, so that a late Abort matches no
    /// other (T11).
    #[cold]
    pub fn abort(&mut self, token: u32) -> Option<u16> {
        self.connection.reserve(token)
    }

    /// The Abort of the command with this identifier was answered, or was not sent.
    #[cold]
    pub fn abort_over(&mut self, cid: u16) {
        self.connection.unreserve(cid);
    }

    /// Commands in flight: those whose completion wasn't polled yet.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.connection.in_flight()
    }

    /// Whether a command would be accepted now. Fewer in flight than [`Self::capacity`] is not
    /// enough: a slot may be kept for an Abort, and the controller's SQHD may lag behind its
    /// completions.
    pub fn has_room(&self) -> bool {
        matches!(self.phase, Phase::Ready(_)) && self.connection.has_room()
    }

    /// Whether the command `token` is in flight and none of its data has arrived: until then
    /// [`Self::placement`] never named it. Searches all commands.
    pub fn awaits(&self, token: u32) -> bool {
        self.connection.awaits(token)
    }

    /// Whether the queue has failed: a command that ends with Host Pathing Error from now on has no
    /// answer, and the controller may still execute it.
    pub fn has_failed(&self) -> bool {
        self.connection.error().is_some()
    }

    /// Most commands in flight.
    pub fn capacity(&self) -> u32 {
        self.connection.capacity()
    }

    /// Takes bytes that arrived; returns how many. Fewer than offered: payload begins
    /// ([`Self::placement`]).
    #[inline]
    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        if matches!(self.phase, Phase::Ready(_)) {
            return self.connection.handle_bytes(bytes);
        }
        self.handle_connecting(bytes, now_ns)
    }

    /// Returns where the next bytes belong, if they are payload.
    #[inline]
    pub fn placement(&self) -> Option<Placement> {
        self.connection.placement()
    }

    /// `len` bytes of payload are in place; `crc` continues [`Placement::crc`].
    #[inline]
    pub fn handle_payload(&mut self, len: u32, crc: u32, _now_ns: u64) {
        self.connection.handle_payload(len, crc);
    }

    /// Appends the next bytes to send to `out`; see [`Transmit`]. `None`: nothing.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, _now_ns: u64) -> Option<Transmit> {
        let payload = match self.connection.poll_transmit(out)? {
            Sending::Whole => None,
            Sending::Payload(payload) => Some(payload),
            Sending::Own(command, payload) => {
                if command.is_connect() {
                    self.connection
                        .append_own(&payload, &*self.connect_data, out);
                } else {
                    self.connection
                        .append_own(&payload, &command.own_range().emit(), out);
                }
                None
            }
        };
        Some(Transmit { payload })
    }

    /// The range of one [`TxPayload`](crate::TxPayload) of this command is no longer read. Ignored
    /// once the queue is over.
    ///
    /// # Panics
    /// If none was handed out.
    #[inline]
    pub fn handle_sent(&mut self, token: u32) {
        self.connection.handle_sent(token);
    }

    /// Whether [`Self::poll_event`] may have one.
    #[inline]
    pub fn may_have_event(&self) -> bool {
        !matches!(self.phase, Phase::Ready(true)) || self.connection.has_end()
    }

    /// Returns the next event; `None`: there is none.
    #[inline]
    pub fn poll_event(&mut self) -> Option<QueueEvent> {
        match self.phase {
            Phase::Ready(true) => {
                if let Some(end) = self.connection.poll_end() {
                    return Some(QueueEvent::Completed(end));
                }
                self.connection.error()?;
                self.poll_failure()
            }
            Phase::Ready(false) => {
                self.phase = Phase::Ready(true);
                Some(QueueEvent::Ready)
            }
            Phase::Over => None,
            _ => self.poll_failure(),
        }
    }

    /// When [`Self::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.deadline
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.deadline.is_some_and(|deadline| now_ns >= deadline) {
            self.deadline = None;
            let step = if self.phase == Phase::Connect {
                Step::Connect
            } else {
                Step::Handshake
            };
            self.connection.fail(HostError::TimedOut(step));
        }
    }

    /// The connection ended, and no buffer is read or written on its behalf any more: every command
    /// in flight completes with Host Pathing Error (3h/70h), then comes `Failed`.
    pub fn handle_closed(&mut self, _now_ns: u64) {
        self.deadline = None;
        self.connection.handle_closed();
    }

    /// Bytes before the queue is ready.
    fn handle_connecting(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        let mut used = self.connection.handle_bytes(bytes);
        if self.phase == Phase::Handshake && self.connection.is_up() {
            self.phase = Phase::Connect;
            self.deadline = Some(now_ns.saturating_add(self.timeout_ns));
            let data = Data::Out(ConnectData::LEN as u32);
            let command = own_command(&self.connect.emit(), data, 0);
            let taken = self.connection.submit(&command, true);
            assert!(taken.is_ok(), "an empty queue has room for Connect");
            used += self.connection.handle_bytes(&bytes[used..]);
        }
        if self.phase == Phase::Connect
            && self.connection.is_up()
            && let Some(end) = self.connection.poll_end()
        {
            self.deadline = None;
            match check_connect(end.status, end.result, self.cntlid) {
                Ok(_) => self.phase = Phase::Ready(false),
                Err(error) => self.connection.fail(error),
            }
        }
        used
    }

    /// Reports `Failed`, once all commands have ended.
    #[cold]
    fn poll_failure(&mut self) -> Option<QueueEvent> {
        let error = self.connection.error()?;
        if !matches!(self.phase, Phase::Ready(_)) {
            while self.connection.poll_end().is_some() {} // Connect is nobody's
        }
        if self.connection.in_flight() > 0 {
            return None;
        }
        self.phase = Phase::Over;
        self.deadline = None;
        Some(QueueEvent::Failed(error))
    }
}

/// Parses the answer of Connect; `want`: the controller asked for, if not any.
pub(super) fn check_connect(
    status: crate::wire::Status,
    result: u64,
    want: u16,
) -> Result<u16, HostError> {
    if !status.is_success() {
        return Err(HostError::Connect { status, result });
    }
    let ConnectResult { cntlid, authreq } = ConnectResult::parse(result);
    if authreq != 0 {
        return Err(HostError::Authentication);
    }
    if want != crate::wire::fabrics::CNTLID_ANY && cntlid != want {
        return Err(HostError::ControllerId { want, got: cntlid });
    }
    Ok(cntlid)
}

impl Command {
    /// Dataset Management whose single range the machine sends itself.
    #[inline]
    fn is_own_range(&self) -> bool {
        self.opcode == nvm::DATASET_MANAGEMENT && self.data == Data::None
    }

    fn own_range(&self) -> Range {
        let slba = u64::from(self.cdw[2]) | u64::from(self.cdw[3]) << 32;
        Range {
            attributes: 0,
            blocks: self.cdw[4],
            slba,
        }
    }
}
