//! Configuration and events of the target side.
use alloc::string::String;
use alloc::vec::Vec;

use crate::host::AnaState;
use crate::wire::sqe::{admin, nvm};

/// One connection, as the driver numbers it (dense, reused only after `handle_closed`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// A namespace offered.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// NSID, 1…
    pub nsid: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// log2 of block bytes: 9 or 12.
    pub block_shift: u8,
    /// UUID.
    pub uuid: [u8; 16],
    /// NGUID.
    pub nguid: [u8; 16],
    /// ANA group, 1…
    pub ana_group: u32,
    /// Write protected.
    pub read_only: bool,
    /// Whether blocks that were deallocated with success read as zeroes (DLFEAT).
    pub deallocate_zeroes: bool,
}

/// One listening port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Port id in discovery records.
    pub id: u16,
    /// Address as discovery shows it.
    pub traddr: String,
    /// Service (TCP port), decimal.
    pub trsvcid: String,
    /// IPv6.
    pub ipv6: bool,
    /// Initial ANA state of all groups through this port.
    pub ana: AnaState,
}

/// A subsystem to offer.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// NQN.
    pub nqn: String,
    /// Serial, ≤ 20 ASCII bytes.
    pub serial: String,
    /// Model, ≤ 40.
    pub model: String,
    /// Smallest controller identifier (ranges of processes of one subsystem are disjoint).
    pub cntlid_min: u16,
    /// Largest controller identifier.
    pub cntlid_max: u16,
    /// Namespaces.
    pub namespaces: Vec<NamespaceConfig>,
    /// Ports.
    pub ports: Vec<PortConfig>,
    /// Host NQNs that may connect; empty = any.
    pub hosts: Vec<String>,
    /// Largest I/O queue, entries.
    pub entries_max: u16,
    /// I/O queues per controller.
    pub io_queues_max: u16,
    /// Largest transfer, log2 bytes (MDTS with 4 KiB pages): 17 = 128 KiB, 20 = 1 MiB.
    pub transfer_shift: u8,
    /// In-capsule data on I/O queues, bytes (multiple of 16).
    pub in_capsule_max: u32,
    /// Largest accepted H2CData PDU, bytes.
    pub maxh2cdata: u32,
    /// Send the SUCCESS flag instead of a response where legal (T18).
    pub c2h_success: bool,
    /// Command Quiesce Time reported, ms.
    pub cqt_ms: u16,
    /// Volatile write cache reported.
    pub volatile_write_cache: bool,
    /// Compare is offered.
    pub compare: bool,
    /// Get LBA Status is offered: the caller answers [`ControllerEvent::Extent`].
    pub lba_status: bool,
    /// Most connections.
    pub connections_max: u32,
}

impl SubsystemConfig {
    /// Whether an I/O opcode is one of those that there are and this configuration offers.
    #[inline]
    pub(super) fn has_command(&self, opcode: u8) -> bool {
        use nvm::{COMPARE, DATASET_MANAGEMENT, FLUSH, READ, WRITE, WRITE_ZEROES};
        match opcode {
            READ | WRITE | FLUSH | WRITE_ZEROES | DATASET_MANAGEMENT => true,
            COMPARE => self.compare,
            _ => false,
        }
    }

    /// Whether an admin command that there is is one that this configuration offers.
    pub(super) fn has_admin_command(&self, opcode: u8) -> bool {
        self.lba_status || opcode != admin::GET_LBA_STATUS
    }
}

/// Use of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOffer {
    /// It is in the discovery log, and hosts connect to the subsystem.
    Subsystem,
    /// It is not in the discovery log and accepts no host; connected hosts stay.
    Withdrawn,
    /// It serves discovery only.
    Discovery,
}

/// Another discovery subsystem in the discovery log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// Port id in its record.
    pub port_id: u16,
    /// Address.
    pub traddr: String,
    /// Service (TCP port), decimal.
    pub trsvcid: String,
    /// IPv6.
    pub ipv6: bool,
    /// Its NQN: the well-known one of discovery, or its own.
    pub nqn: String,
}

/// A change of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryChange {
    /// Use of a port (index).
    Offer(u16, PortOffer),
    /// Host NQNs that may connect; empty: any. Connected hosts stay until
    /// [`disconnect_hosts`](super::Subsystem::disconnect_hosts).
    Hosts(Vec<String>),
    /// All referrals.
    Referrals(Vec<Referral>),
    /// A name of its own for the discovery subsystem, beside the well-known one; `None`: none.
    Name(Option<String>),
}

/// Action of an I/O command for the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fill the command's buffer.
    Read,
    /// Write it (all data has arrived).
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Flush the namespace (all namespaces where nsid is FFFFFFFFh).
    Flush,
    /// Zero the range.
    WriteZeroes {
        /// Deallocate allowed.
        deallocate: bool,
        /// Force unit access: the zeroes are durable when it is done.
        fua: bool,
    },
    /// Deallocate the ranges that [`Subsystem::take_ranges`](super::Subsystem::take_ranges)
    /// returns.
    Deallocate,
    /// Compare with the buffer (all data has arrived).
    Compare,
}

/// An I/O command, checked (opcode, namespace, LBA range, transfer size).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// Connection on which it was sent.
    pub conn: ConnId,
    /// Its identifier on this connection until [`ControllerEvent::Release`].
    pub token: u32,
    /// Port of the connection (index into `SubsystemConfig::ports`).
    pub port: u16,
    /// Namespace.
    pub nsid: u32,
    /// First logical block.
    pub slba: u64,
    /// Blocks.
    pub blocks: u32,
    /// The action.
    pub action: Action,
}

/// Events of the subsystem for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// A command with data from the host needs a buffer of `len` bytes before data can be received:
    /// answer with `Subsystem::buffer_ready`. A `Release` may come first, if the connection ends:
    /// then no answer is due any more.
    NeedBuffer {
        /// Connection.
        conn: ConnId,
        /// Command.
        token: u32,
        /// Bytes.
        len: u32,
        /// The data is in the capsule: `handle_bytes` takes nothing until the buffer is ready.
        /// Other data is requested (R2T) when the buffer is ready, and the stream goes on
        /// meanwhile: a blocked stream might hold the very data that frees the buffers.
        in_capsule: bool,
    },
    /// Execute, then call `Subsystem::complete`. The driver allocates a read's buffer.
    Command(IoCommand),
    /// The host asks to abort a command (T12). The driver aborts it only if its execution has not
    /// begun: then it completes it with
    /// [`Status::ABORT_REQUESTED`](crate::wire::Status::ABORT_REQUESTED). Either way it reports the
    /// result with [`Subsystem::abort_answered`](super::Subsystem::abort_answered), once and soon.
    Abort {
        /// Connection of the command.
        conn: ConnId,
        /// Command.
        token: u32,
        /// Connection of the Abort.
        by: ConnId,
        /// Value to pass to `abort_answered`.
        answer: u32,
    },
    /// The command is over and nothing refers to its buffer. One for every token that was named in
    /// a `NeedBuffer` or `Command`.
    Release {
        /// Connection.
        conn: ConnId,
        /// Command.
        token: u32,
    },
    /// Say how far the blocks from `slba` on are of one kind, allocated or not, of the `blocks`
    /// that are asked about: [`Subsystem::extent_found`](super::Subsystem::extent_found). The
    /// answer may come late or never; nothing waits for it.
    Extent {
        /// Value to pass to `extent_found`.
        id: u32,
        /// Namespace.
        nsid: u32,
        /// First logical block.
        slba: u64,
        /// Blocks; never 0.
        blocks: u32,
    },
    /// There is something for `poll_transmit` on this connection.
    Transmit(ConnId),
    /// `handle_bytes` had stopped because no command slot was free (sends were reported late); now
    /// it accepts bytes again.
    Resume(ConnId),
    /// Send the queued bytes, then close; at once where [`CloseReason::is_abortive`] says so. Comes
    /// a second time, with [`CloseReason::Linger`], if the peer does not take them.
    Close {
        /// Connection.
        conn: ConnId,
        /// The reason.
        reason: CloseReason,
    },
}

/// Events are moved several times: two of them are a cache line.
const _: () = assert!(size_of::<ControllerEvent>() == 32);

/// Reason why the target ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host sent Disconnect, or its controller was shut down or reset.
    Finished,
    /// Keep-alive missed.
    KeepAlive,
    /// The host broke the protocol (a TermReq is queued).
    Protocol,
    /// A header arrived with a wrong digest: it was damaged in transit (a TermReq is queued).
    Damaged,
    /// The handshake took too long.
    Handshake,
    /// The host sent a TermReq.
    Terminated,
    /// The admin connection of its controller is gone, and with it the association.
    AssociationLost,
    /// Bytes queued before an earlier `Close` could not be sent in time.
    Linger,
    /// Its host may not connect any more.
    NotAdmitted,
}

impl CloseReason {
    /// Whether queued bytes must not be sent: the peer doesn't read, or must not get them.
    pub fn is_abortive(self) -> bool {
        matches!(
            self,
            Self::KeepAlive | Self::Handshake | Self::Linger | Self::NotAdmitted
        )
    }
}

/// Status of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Its identifier.
    pub conn: ConnId,
    /// Port (index into `SubsystemConfig::ports`).
    pub port: u16,
    /// Its controller, once connected.
    pub cntlid: Option<u16>,
    /// Queue; 0 = admin (or not yet connected).
    pub qid: u16,
    /// Queue size, entries; 0 before Connect.
    pub entries: u16,
    /// Commands the host has outstanding.
    pub outstanding: u16,
}

/// Status of a controller (one host's association).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerStatus<'a> {
    /// Controller identifier.
    pub cntlid: u16,
    /// Host.
    pub hostnqn: &'a str,
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Port (index into `SubsystemConfig::ports`).
    pub port: u16,
    /// A discovery controller.
    pub discovery: bool,
    /// CSTS.RDY.
    pub ready: bool,
    /// I/O queues connected.
    pub io_queues: u16,
    /// Keep-alive time-out, ms; 0 = none.
    pub kato_ms: u32,
}
