//! Configuration and events of the target side.
use alloc::boxed::Box;
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
    /// ANA state of all groups seen through this port (each port has its own groups' view).
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

/// What an I/O command asks of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Deallocate ranges (block, count).
    Deallocate(Box<[(u64, u64)]>),
    /// Compare with the buffer (all data has arrived).
    Compare,
}

/// An I/O command, checked (opcode, namespace, LBA range, transfer size).
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug)]
pub enum ControllerEvent {
    /// A command that carries data from the host needs a buffer of `len` bytes before data can flow:
    /// answer with `Subsystem::buffer_ready`. Until then `handle_bytes` may consume nothing.
    NeedBuffer {
        /// Connection.
        conn: ConnId,
        /// Command.
        token: u32,
        /// Bytes.
        len: u32,
    },
    /// Execute, then call `Subsystem::complete`. A read's buffer is the driver's to find.
    Command(IoCommand),
    /// The command is over and nothing refers to its buffer.
    Release {
        /// Connection.
        conn: ConnId,
        /// Command.
        token: u32,
    },
    /// There is something for `poll_transmit` on this connection.
    Transmit(ConnId),
    /// Send what is queued, then close.
    Close {
        /// Connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why the target ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The host said Disconnect, or its controller was shut down or reset.
    Finished,
    /// Keep-alive missed.
    KeepAlive,
    /// The host broke the protocol (a TermReq is queued).
    Protocol,
    /// The handshake took too long.
    Handshake,
    // … to be completed by the owner of this module
}
