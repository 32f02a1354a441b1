//! Configuration of the host side, and properties of controllers and namespaces.
use alloc::string::String;
use alloc::vec::Vec;

use crate::wire::Status;

/// Identity of the host: one NQN and identifier on every path (T35).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN, at most 223 bytes.
    pub nqn: String,
    /// Host identifier.
    pub id: [u8; 16],
}

/// Digests to ask for; a controller that doesn't echo them is refused (T25).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// CRC32C over every PDU header.
    pub header: bool,
    /// CRC32C over every PDU's data.
    pub data: bool,
}

/// Configuration of the admin connection of one controller.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// Identity of the host.
    pub host: HostIdentity,
    /// Subsystem NQN (or the discovery NQN).
    pub subsystem: String,
    /// Digests wanted.
    pub digests: Digests,
    /// Keep-alive time-out, ms; 0 = none.
    pub kato_ms: u32,
    /// I/O queues wanted (granted may be fewer).
    pub io_queues: u16,
    /// Longest wait for any one answer while connecting and for any admin command, ns.
    pub timeout_ns: u64,
    /// The wanted namespace; `None`: any. If the controller lists it, only it is examined and
    /// reported, and no transition of another one ends the association.
    pub nsid: Option<u32>,
}

impl AdminConfig {
    pub(super) fn wants(&self, nsid: u32) -> bool {
        self.nsid.is_none_or(|wanted| wanted == nsid)
    }
}

/// Configuration of one I/O queue of a controller that is ready.
#[derive(Clone, Debug)]
pub struct IoQueueConfig {
    /// Identity of the host; the same as on the admin connection.
    pub host: HostIdentity,
    /// Subsystem NQN.
    pub subsystem: String,
    /// Controller the admin connection was given.
    pub cntlid: u16,
    /// 1…
    pub qid: u16,
    /// Queue size in entries (so `entries − 1` commands at most in flight), ≤ MQES + 1.
    pub entries: u16,
    /// Digests wanted.
    pub digests: Digests,
    /// Ask for SQ flow control to be switched off.
    pub disable_sq_flow_control: bool,
    /// Largest in-capsule data, bytes: IOCCSZ·16 − 64.
    pub in_capsule_max: u32,
    /// Longest wait for any one answer while connecting, ns.
    pub timeout_ns: u64,
}

/// Properties of a controller, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Controller identifier.
    pub cntlid: u16,
    /// Subsystem NQN it reports.
    pub subnqn: String,
    /// Serial, model, firmware; trimmed.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Largest transfer, bytes; `None` = no limit reported.
    pub transfer_max: Option<u32>,
    /// Largest Write Zeroes, bytes; `None` = no limit reported.
    pub write_zeroes_max: Option<u32>,
    /// Most blocks of a deallocated range; `None` = no limit reported.
    pub deallocate_blocks_max: Option<u32>,
    /// Largest queue, entries (the smaller of MQES + 1 and MAXCMD).
    pub entries_max: u16,
    /// I/O queues granted.
    pub io_queues: u16,
    /// In-capsule data on I/O queues, bytes.
    pub in_capsule_max: u32,
    /// Keep-alive granularity, units of 100 ms; 0 = not supported.
    pub kas: u16,
    /// Traffic-based keep-alive (CTRATT bit 6).
    pub traffic_keep_alive: bool,
    /// Command Quiesce Time, ms; 0 = not reported.
    pub cqt_ms: u16,
    /// Command Retry Delay Times 1…3, units of 100 ms.
    pub crdt: [u16; 3],
    /// Volatile write cache present.
    pub volatile_write_cache: bool,
    /// ONCS bits: which optional commands exist.
    pub oncs: u16,
    /// Get LBA Status lists allocated blocks.
    pub lists_allocated: bool,
    /// ANA reporting supported.
    pub ana: bool,
    /// ANATT, seconds.
    pub anatt_s: u8,
    /// CMIC: subsystem may have several controllers.
    pub multi_controller: bool,
}

/// Properties of one namespace as one controller reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// NSID.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// log2 of the logical block size in bytes.
    pub block_shift: u8,
    /// NGUID, zero = none.
    pub nguid: [u8; 16],
    /// EUI-64, zero = none.
    pub eui64: [u8; 8],
    /// UUID, zero = none.
    pub uuid: [u8; 16],
    /// Command set identifier.
    pub csi: u8,
    /// May be attached to several controllers (NMIC bit 0).
    pub shared: bool,
    /// ANA group; 0 = none.
    pub ana_group: u32,
    /// ANA state as last read.
    pub ana_state: AnaState,
    /// Write protected now.
    pub read_only: bool,
    /// Atomic write unit in blocks (NAWUN or AWUN), at least 1.
    pub atomic_blocks: u32,
    /// Reads and writes that cross a multiple of this many blocks are slow (NOIOB); 0 = none is.
    pub boundary_blocks: u16,
    /// Preferred multiple of writes, blocks (NOWS); 0 = not reported.
    pub optimal_write_blocks: u32,
    /// Deallocated blocks read as zeroes (DLFEAT).
    pub deallocate_reads_zero: bool,
    /// Write Zeroes can deallocate aligned multiples of so many blocks, which read as zeroes then
    /// (DLFEAT, NPDG, NPDGL); 0 = it cannot.
    pub hole_blocks: u32,
}

/// ANA state codes (Base 2.0, 5.16.1.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AnaState {
    /// 01h
    Optimized = 1,
    /// 02h
    NonOptimized = 2,
    /// 03h
    Inaccessible = 3,
    /// 04h
    PersistentLoss = 4,
    /// 0Fh
    Change = 15,
}

/// Direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// None.
    None,
    /// Controller to host, bytes.
    In(u32),
    /// Host to controller, bytes.
    Out(u32),
}

/// One I/O command to submit; see `Command::read` and its neighbours.
///
/// Dataset Management (opcode 09h) with `Data::None` is a single range that the machine sends
/// itself: first block in `cdw[2]` (low) and `cdw[3]`, number of blocks in `cdw[4]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Opcode (NVM command set).
    pub opcode: u8,
    /// Namespace.
    pub nsid: u32,
    /// CDW10…CDW15.
    pub cdw: [u32; 6],
    /// Data and direction.
    pub data: Data,
    /// The caller's identifier; comes back in placements and completions. Unique among the commands
    /// in flight.
    pub token: u32,
}

/// The end of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// As submitted.
    pub token: u32,
    /// Status from the controller, or from the host where the controller did not answer.
    pub status: Status,
    /// DW0 and DW1.
    pub result: u64,
}

/// Events of the admin connection.
#[derive(Clone, Debug)]
pub enum AdminEvent {
    /// The properties needed to open I/O queues.
    Ready(alloc::boxed::Box<(ControllerInfo, Vec<NamespaceInfo>)>),
    /// The namespace list or ANA states were read again after a notice.
    Changed(Vec<NamespaceInfo>),
    /// From a discovery controller instead of namespaces: its log, after `Ready` and after each
    /// change.
    Discovery(DiscoveryLog),
    /// The requested reset is done: the controller executes no earlier command. Only `Failed`
    /// follows; the driver closes the connection.
    Reset,
    /// An Abort was answered: the controller aborted the command (it then ends, or has ended, with
    /// Command Abort Requested), or did not.
    Aborted {
        /// Queue of the command.
        sqid: u16,
        /// Its identifier.
        cid: u16,
        /// The command is not executed any more.
        aborted: bool,
    },
    /// The controller has said how far the blocks from the first one of a question on are of one
    /// kind: their number, never 0, and whether they are allocated. `None`: it did not.
    Allocated {
        /// As passed to [`Admin::ask_allocated`](super::Admin::ask_allocated).
        token: u64,
        /// The answer.
        found: Option<(u32, bool)>,
    },
    /// Firmware is being activated: commands of all queues may go without an answer until this
    /// time, ns (T30).
    Paused(u64),
    /// The association is over; this is the last event. The driver closes the connection after
    /// sending the queued bytes.
    Failed(super::HostError),
}

/// A consistent copy of a discovery controller's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Its generation counter.
    pub generation: u64,
    /// Its entries.
    pub entries: Vec<DiscoveryEntry>,
}

/// One entry of a discovery log (Base 2.0, 5.16.1.23), texts trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Transport: 3 = TCP.
    pub trtype: u8,
    /// Address family: 1 = IPv4, 2 = IPv6.
    pub adrfam: u8,
    /// 1 = referral, 2 = NVM subsystem, 3 = the discovery subsystem itself.
    pub subtype: u8,
    /// Transport requirements; bits 1:0 secure channel: 1 = required, 2 = not required.
    pub treq: u8,
    /// Security of the transport: 0 = none, 1 = TLS 1.2, 2 = TLS 1.3.
    pub sectype: u8,
    /// Port.
    pub port_id: u16,
    /// Controller; FFFFh = chosen at Connect.
    pub cntlid: u16,
    /// Largest admin queue, entries.
    pub admin_entries_max: u16,
    /// Flags: see [`eflags`](crate::wire::log::eflags).
    pub eflags: u16,
    /// Address.
    pub traddr: String,
    /// Service (TCP port).
    pub trsvcid: String,
    /// Subsystem NQN.
    pub subnqn: String,
}

/// Events of an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// Commands may be submitted.
    Ready,
    /// One command has ended. Its buffer is free (T23).
    Completed(Completed),
    /// The queue is over; all its commands were completed before this. The driver closes the
    /// connection after sending the queued bytes.
    Failed(super::HostError),
}
