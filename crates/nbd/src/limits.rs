//! All limits of this crate.

/// Longest name, description, query or message, bytes (Conventions).
pub const STRING_MAX: usize = 4096;
/// Longest reason why there is no export, bytes: a few of them fit into one run of sending.
pub const WHY_MAX: usize = 1024;
/// Most exports of one list.
pub const EXPORTS_MAX: usize = 1024;
/// Largest export, bytes: sizes are signed in most clients.
pub const SIZE_MAX: u64 = i64::MAX as u64;
/// Largest minimum block size, bytes (Block size constraints).
pub const BLOCK_MIN_MAX: u32 = 1 << 16;
/// Smallest preferred block size, bytes (Block size constraints).
pub const BLOCK_PREFERRED_MIN: u32 = 512;
/// Largest read or write, bytes: every client may expect it to be accepted (Block size
/// constraints).
pub const BLOCK_MAX: u32 = 1 << 25;

/// Data of one option that a server parses, bytes: four strings. More is skipped and answered with
/// Too Big.
pub const OPTION_DATA_MAX: u32 = 4 * STRING_MAX as u32;
/// Data of one option that a server skips, bytes; more ends the session.
pub const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Options in one handshake.
pub const OPTIONS_MAX: u16 = 64;
/// Bytes of an export list after which one `poll_transmit` ends.
pub const LIST_RUN: usize = 4096;
/// Data of a refused write that a server skips, bytes; more ends the session.
pub const WRITE_SKIP_MAX: u32 = 1 << 26;
/// Most requests in flight on one connection.
pub const REQUESTS_MAX: u16 = 1024;
/// Most extents in one answer to Block Status, given or kept.
pub const EXTENTS_MAX: usize = 16;
/// Smallest piece of payload that may be configured, bytes.
pub const PIECE_MIN: u32 = 4096;
/// From the connection to transmission, ns: the usual value of the configuration.
pub const HANDSHAKE_NS: u64 = 10_000_000_000;
/// Time a client may stop in the middle of a request, or leave all its answers unread, ns: the
/// usual value of the configuration. Longer than any pause of a working network: TCP sends a lost
/// segment five times in that.
pub const STALL_NS: u64 = 30_000_000_000;
/// Bytes of one request that must arrive in that time, unless it is complete: 32 MiB then take at
/// most a quarter of an hour, and every link that suits a block device is faster.
pub const STALL_BYTES: u64 = 1 << 20;
/// Time in which queued bytes must be sent after a session's end was decided, ns.
pub const LINGER_NS: u64 = 5_000_000_000;

/// Data of one option reply that a client parses, bytes; more ends the session.
pub const REPLY_DATA_MAX: u32 = 2 * STRING_MAX as u32;
/// Replies to one option of a client; more end the session.
pub const REPLIES_MAX: u16 = 64;
/// Longest error chunk that a client accepts, bytes.
pub const CHUNK_MAX: u32 = 1 << 20;
/// Ranges of one read that a client records as arrived, adjacent ones as one.
pub const RANGES_MAX: usize = 8;
