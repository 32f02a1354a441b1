//! Configuration and events of the target side.
use alloc::string::String;
use alloc::vec::Vec;

use crate::host::AnaState;

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
    /// ANA state of all groups seen through this port at first.
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
    /// Controller ids handed out, inclusive (disjoint between processes of one subsystem).
    pub cntlid_min: u16,
    /// Last one.
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
    /// Largest H2CData PDU we take.
    pub maxh2cdata: u32,
    /// Send the SUCCESS flag instead of a response where legal (T18).
    pub c2h_success: bool,
    /// Command Quiesce Time reported, ms.
    pub cqt_ms: u16,
    /// Volatile write cache reported.
    pub volatile_write_cache: bool,
    /// Most connections.
    pub connections_max: u32,
}

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOffer {
    /// Hosts are told of it, and connect to the subsystem.
    Subsystem,
    /// Hosts are not told of it and none connects to the subsystem; those that are connected stay.
    Withdrawn,
    /// Hosts are told that discovery is there, and find nothing else.
    Discovery,
}

/// Another discovery subsystem that hosts are told of.
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

/// A change of what discovery tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryChange {
    /// What a port (index) is for.
    Offer(u16, PortOffer),
    /// Host NQNs that may connect; empty: any. Those that are connected stay.
    Hosts(Vec<String>),
    /// All referrals.
    Referrals(Vec<Referral>),
    /// A name of its own for the discovery subsystem, beside the well-known one; `None`: none.
    Name(Option<String>),
}

/// What an I/O command asks of the backend.
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
    },
    /// Deallocate the ranges that [`Subsystem::take_ranges`](super::Subsystem::take_ranges) gives.
    Deallocate,
    /// Compare with the buffer (all data has arrived).
    Compare,
}

/// An I/O command, checked (opcode, namespace, LBA range, transfer size).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// Where it came from.
    pub conn: ConnId,
    /// Its name on this connection until [`ControllerEvent::Release`].
    pub token: u32,
    /// Port of the connection (index into `SubsystemConfig::ports`).
    pub port: u16,
    /// Namespace.
    pub nsid: u32,
    /// First logical block.
    pub slba: u64,
    /// Blocks.
    pub blocks: u32,
    /// What to do.
    pub action: Action,
}

/// What the subsystem tells its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerEvent {
    /// A command that carries data from the host needs a buffer of `len` bytes before data can
    /// flow: answer with `Subsystem::buffer_ready`. A `Release` may come first, if the connection
    /// ends: then no answer is due any more.
    NeedBuffer {
        /// Connection.
        conn: ConnId,
        /// Command.
        token: u32,
        /// Bytes.
        len: u32,
        /// The data is in the capsule: `handle_bytes` takes nothing until the buffer is there.
        /// Other data is asked for (R2T) when the buffer is there, and the stream goes on
        /// meanwhile: behind a stream that stood still for it might lie the very data that frees
        /// the buffers.
        in_capsule: bool,
    },
    /// Execute, then call `Subsystem::complete`. A read's buffer is the driver's to find.
    Command(IoCommand),
    /// The host asks that a command be taken back (T12). The driver does so only if nothing has
    /// begun to execute it: then it completes it with
    /// [`Status::ABORT_REQUESTED`](crate::wire::Status::ABORT_REQUESTED). Either way it says so
    /// with [`Subsystem::abort_answered`](super::Subsystem::abort_answered), once and soon.
    Abort {
        /// Connection of the command.
        conn: ConnId,
        /// Command.
        token: u32,
        /// Connection that is to be answered.
        by: ConnId,
        /// What is to be answered there.
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
    /// There is something for `poll_transmit` on this connection.
    Transmit(ConnId),
    /// `handle_bytes` had stopped for want of a command slot (sends were slow to be reported); now
    /// it takes bytes again.
    Resume(ConnId),
    /// Send what is queued, then close; at once where [`CloseReason::is_abortive`] says so. Comes a
    /// second time, with [`CloseReason::Linger`], if the peer doesn't let the rest go.
    Close {
        /// Connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}

/// Events are moved more than once on their way: two of them are a cache line.
const _: () = assert!(size_of::<ControllerEvent>() == 32);

/// Why the target ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host said Disconnect, or its controller was shut down or reset.
    Finished,
    /// Keep-alive missed.
    KeepAlive,
    /// The host broke the protocol (a TermReq is queued).
    Protocol,
    /// A header arrived whose digest is wrong: it was damaged on the way (a TermReq is queued).
    Damaged,
    /// The handshake took too long.
    Handshake,
    /// The host sent a TermReq.
    Terminated,
    /// The admin connection of its controller is gone, and with it the association.
    AssociationLost,
    /// What was queued before an earlier `Close` could not be sent in time.
    Linger,
}

impl CloseReason {
    /// Whether nothing that is queued may still go out: the peer doesn't read, or must not get it.
    pub fn is_abortive(self) -> bool {
        matches!(self, Self::KeepAlive | Self::Handshake | Self::Linger)
    }
}

/// A connection, for a display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Which.
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

/// A controller (one host's association), for a display.
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
