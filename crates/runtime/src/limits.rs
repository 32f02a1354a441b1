//! All limits of this crate.
use engine::limits::{LOCAL_IO_MAX, LOCALS_MAX};

/// Most connections of one reactor: each may hold one receive buffer, whose numbers are 15 bits
/// wide.
pub const CONNECTIONS_MAX: u32 = 16 << 10;
/// Bytes of one receive buffer: as many arrive in one receive operation, and how many messages that
/// is decides what each of them costs. Memory is used as it is filled.
pub const RECEIVE_BUFFER_BYTES: u32 = 256 << 10;
/// Receive buffers lent to the kernel at a time: as many connections can receive in one turn
/// without asking twice. Few, because the kernel takes them in turn, and each one is cache that the
/// next receive overwrites.
pub const RECEIVE_BUFFERS_LENT_MIN: u16 = 4;
/// As [`RECEIVE_BUFFERS_LENT_MIN`], for many connections.
pub const RECEIVE_BUFFERS_LENT_MAX: u16 = 64;
/// Payload from this size on isn't copied: it is received into, and sent from, where it lies.
pub const DIRECT_MIN: u32 = 16 << 10;
/// Bytes of the receive that follows large payload: such payloads tend to follow each other, and
/// what comes through a buffer is copied.
pub const AFTER_LARGE_BYTES: u32 = 4 << 10;
/// Staged bytes at which a message is sent before more is asked of the machine.
pub const STAGED_MAX: usize = 256 << 10;
/// Bytes staged and unstaged at which a message is sent before more is asked of the machine.
pub const MESSAGE_MAX: usize = 1 << 20;
/// Room behind the staged bytes for what the last answer of the machine appends: payload below
/// `DIRECT_MIN`, or a PDU with data of its own.
pub const STAGED_SLACK: usize = 64 << 10;
/// Messages that a reactor begins with.
pub const MESSAGES: u32 = 16;
/// Messages in flight from which on further ones are small: as many connections send at once where
/// all is well, and peers that don't read hold 40 MiB with as many.
pub const MESSAGES_LARGE_MAX: u32 = 128;
/// Staged bytes at which a small one is sent: some answers, and little to be held for each of
/// thousands of peers that don't read.
pub const STAGED_SMALL_MAX: usize = 16 << 10;
/// Payloads sent from where they lie in a small one.
pub const EXTENTS_SMALL_MAX: usize = 8;
/// Bytes that the kernel takes for a peer that connected to us before it can send them; besides,
/// what is on its way. Much more than what a connection sends until its next message is composed,
/// and far less than the 4 MiB that the kernel takes by itself, of which a peer that reads nothing
/// would hold all.
pub const UNSENT_MAX: u32 = 256 << 10;
/// How long a message to a peer that connected to us may make no progress: longer than any pause
/// that a living network makes.
pub const SEND_STALL_NS: u64 = 30_000_000_000;
/// Payloads sent from where they lie in one message.
pub const EXTENTS_MAX: usize = 64;
/// File operations in flight; more wait.
pub const FILE_OPERATIONS_MAX: usize = 512;
const _: () = assert!(
    LOCAL_IO_MAX as usize + LOCALS_MAX <= FILE_OPERATIONS_MAX,
    "a local device that hangs takes no other's operations (T52)"
);
/// Threads that make system calls of one file (T52).
pub const FILE_WORKERS_MAX: usize = 16;
/// Questions about holes in one file that they have at a time; further ones are not asked. A file
/// that hangs keeps those it has, and the other threads are its reads' and writes'.
pub const FILE_QUESTIONS_MAX: usize = 4;
/// How long such a thread waits for the next one before it ends.
pub const FILE_WORKER_IDLE: std::time::Duration = std::time::Duration::from_secs(1);
/// How often the watchdog looks at reactors.
pub const WATCHDOG_LOOK: std::time::Duration = std::time::Duration::from_secs(1);
/// Bytes read at a time to compare, and how many of these at once.
pub const COMPARE_BYTES: u32 = 64 << 10;
/// Compare operations that read at once; more wait.
pub const COMPARES_MAX: usize = 8;
/// Zeroes written at a time to files that can't zero a range themselves.
pub const ZEROES_BYTES: u32 = 256 << 10;
/// Bytes of a block device that one call zeroes. 65,536 of the smallest blocks: the kernel's NVMe
/// host may cut the number of blocks of a Write Zeroes to 16 bits and report success.
pub const ZERO_BYTES_MAX: u64 = 32 << 20;
/// Piece of a volatile cache: what goes to the file at a time.
pub const VOLATILE_PIECE_BYTES: usize = 4096;
/// Messages that wait for one reactor; a sender waits when there are as many.
pub const MAILBOX_MAX: usize = 1024;
/// Rounds of the machine between two submissions.
pub const ROUNDS_MAX: u32 = 8;
/// Longest orderly close: what is queued must leave, and the peer close its side, within that time.
/// A peer of ours answers within a round trip; one that doesn't is reset.
pub const CLOSE_WAIT_NS: u64 = 1_000_000_000;
/// How long an ended machine's requests to devices are waited for: one that never answers keeps
/// nothing from ending.
pub const DEVICES_WAIT_NS: u64 = 2_000_000_000;
/// Pause before accepting again when the process is out of descriptors or memory.
pub const ACCEPT_PAUSE_NS: u64 = 100_000_000;
/// Bytes of a memory device under one lock: large enough that most I/Os take one, small enough that
/// cores rarely meet.
pub const STRIPE_BYTES: usize = 64 << 10;
/// Reads of memory devices whose data are lent at a time; others are copied.
pub const LENT_READS_MAX: usize = 1024;
/// Stripes of a memory device; larger devices have larger stripes.
pub const STRIPES_MAX: u64 = 128 << 10;
/// A wait that took longer was a sleep, and not only a call.
pub const SLEEP_NS: u64 = 10_000;
/// How long a file that is locked is waited for: what a killed process leaves to the kernel takes
/// milliseconds to end, and who has it for good is told soon.
pub const LOCK_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// How often it is tried meanwhile.
pub const LOCK_POLL: std::time::Duration = std::time::Duration::from_millis(10);

/// Requests that one reactor has with a queue server.
pub const QUEUE_SLOTS: u16 = 63;
/// Bytes of a command to a queue server: each slot has memory for them.
pub const QUEUE_PIECE_BYTES: u32 = 64 << 10;
/// Devices of one reactor that are queues.
pub const QUEUE_DEVICES_MAX: usize = 64;
/// How long a queue server that is lost may execute what it had: as `quiesce_time` of paths to
/// controllers, which say of themselves no more than it does.
pub const QUEUE_QUIESCE_NS: u64 = 5_000_000_000;
/// First wait before a queue server that is lost is tried again; it doubles.
pub const QUEUE_RETRY_NS_MIN: u64 = 50_000_000;
/// Longest such wait.
pub const QUEUE_RETRY_NS_MAX: u64 = 1_000_000_000;
/// How long a queue server may take to answer the last changes of a queue that is being released. A
/// healthy one takes less; a hanging one is waited for by so much more.
pub const QUEUE_FAREWELL_NS: u64 = 1_000_000_000;
