//! All limits of this crate.

/// Longest TermReq, bytes: 24 of header and 128 of the header that was refused (NVMe-TCP 1.0,
/// 3.6.2.3).
pub const TERM_REQ_MAX: u32 = 152;
/// Longest NQN, bytes (Base 2.0, 4.5).
pub const NQN_MAX: usize = 223;

/// Most ports of a subsystem.
pub const PORTS_MAX: usize = 64;
/// Most referrals to other discovery subsystems that a target reports.
pub const REFERRALS_MAX: usize = 64;
/// Most namespaces of a subsystem: all of them fit one list.
pub const NAMESPACES_MAX: usize = 1024;
/// Hosts that left without a shutdown and are remembered, once for each namespace they had used.
pub const DEPARTED_MAX: usize = 1024;
/// Largest I/O queue, entries.
pub const IO_ENTRIES_MAX: u16 = 4096;
/// Largest admin queue, entries. Hosts ask for 32.
pub const ADMIN_ENTRIES_MAX: u16 = 128;
/// Most I/O queues of one controller.
pub const IO_QUEUES_MAX: u16 = 1024;
/// Most connections of one subsystem.
pub const CONNECTIONS_MAX: u32 = 1 << 16;
/// Largest transfer of a target, log2 bytes.
pub const TRANSFER_SHIFT_MAX: u8 = 24;
/// In-capsule data that the target takes on admin queues and with Connect, bytes (NVMe-TCP 1.0,
/// 3.3.2.1).
pub const ADMIN_IN_CAPSULE: u32 = 8192;
/// Most Get LBA Status commands for which a target asks its driver at a time.
pub const ALLOCATION_COMMANDS_MAX: usize = 64;
/// Most entries of a list of allocated blocks that a target makes.
pub const ALLOCATION_LIST_MAX: usize = 64;
/// Most ranges of all Dataset Managements of a connection that are under way together: 64 KiB. More
/// are answered and left.
pub const RANGES_UNDER_WAY_MAX: u32 = 4096;
/// Commands a target holds for a connection before Connect gave it its size.
pub const SLOTS_BEFORE_CONNECT: u16 = 2;
/// Asynchronous Event Requests a target keeps per controller (AERL + 1).
pub const ASYNC_EVENTS_MAX: usize = 4;
/// Entries of a target's error log (ELPE + 1).
pub const ERROR_ENTRIES_MAX: usize = 64;
/// From the TCP connection to the end of Connect, ns. Slower peers are disconnected.
pub const HANDSHAKE_NS: u64 = 10_000_000_000;
/// Life of an association that is not enabled or was shut down, and of a discovery controller
/// without keep-alive that gets no command, ns (Base 2.0, 3.1.2.3 and 3.6: two minutes).
pub const IDLE_NS: u64 = 120_000_000_000;
/// As [`IDLE_NS`] where all places are taken and another host wants one, ns: a working host enables
/// or disconnects within a few round trips.
pub const IDLE_WANTED_NS: u64 = 5_000_000_000;
/// Time in which queued bytes must be sent after a connection's end was decided, ns.
pub const LINGER_NS: u64 = 5_000_000_000;

/// Largest queue a host opens, entries: leaves at least four bits of the CID for the generation
/// (T11).
pub const HOST_ENTRIES_MAX: u16 = 4096;
/// Entries of a host's admin queue: the fewest that a controller must take (Base 2.0, 3.3.1.2).
pub const HOST_ADMIN_ENTRIES: u16 = 32;
/// Most command capsules without payload that one `poll_transmit` of a host appends.
pub const TRANSMIT_RUN_MAX: usize = 64;
/// Most namespaces a host reads from one controller.
pub const HOST_NAMESPACES_MAX: usize = 4096;
/// Most usable namespaces about which a host asks a controller if the wanted one is not listed, or
/// none is wanted by number: enough to name some.
pub const NAMESPACES_ASKED_MAX: usize = 16;
/// Namespaces in a row that can't be used, after which a host requests pages of several together.
pub const REFUSED_IN_A_ROW: usize = 4;
/// Most namespaces of which it does.
pub const NAMESPACES_AHEAD: usize = 16;
/// Most questions about allocated blocks that a host keeps for one controller.
pub const ALLOCATION_QUESTIONS_MAX: usize = 64;
/// Entries that a host asks for of a list of allocated blocks. Two at least: their order shows that
/// no others are missing.
pub const ALLOCATION_ENTRIES: usize = 4;
/// Bytes of one piece of a log that a host reads: one memory page, so within every MDTS.
pub const LOG_PIECE: u32 = 4096;
/// Longest ANA log a host reads, bytes.
pub const ANA_LOG_MAX: usize = 1 << 20;
/// Most entries of a discovery log a host reads.
pub const DISCOVERY_ENTRIES_MAX: u64 = 1024;
/// Most repetitions of reading a log because it changed meanwhile.
pub const LOG_RESTARTS_MAX: u8 = 8;
/// Most Aborts that a host has outstanding, where the controller takes so many.
pub const HOST_ABORTS_MAX: usize = 8;
/// Most repetitions of a host's admin command when the controller allows them.
pub const ADMIN_RETRIES_MAX: u8 = 3;
/// Wait before such a repetition where the controller reports no delay, ns.
pub const ADMIN_RETRY_NS: u64 = 100_000_000;
/// Interval at which a host reads CSTS while it waits for a change, ns.
pub const CSTS_POLL_NS: u64 = 10_000_000;
/// Interval at which a host reads the ANA log while a group is missing or in transition, ns.
pub const ANA_REREAD_NS: u64 = 1_000_000_000;
/// Shortest time between two readings of a discovery log because its controller reports a change,
/// ns: a controller that reports changes without end costs a log a second.
pub const DISCOVERY_REREAD_NS: u64 = 1_000_000_000;
/// Shortest time after a pause for firmware in which no other one begins, ns: commands that are
/// late by then end, whatever the controller reports. Longer than `io_timeout` is set to.
pub const PAUSE_REST_NS: u64 = 600_000_000_000;
/// Largest logical block a host accepts, log2 bytes.
pub const BLOCK_SHIFT_MAX: u8 = 16;

/// Largest queue in shared memory, entries: as [`HOST_ENTRIES_MAX`].
pub const QUEUE_ENTRIES_MAX: u16 = HOST_ENTRIES_MAX;
/// Most descriptors of one SGL that a queue's controller reads.
pub const SGL_DESCRIPTORS_MAX: usize = 512;
