//! All limits of the target verb.

/// Longest control request or answer, bytes with its newline.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Control clients at a time; another is turned away.
pub const CLIENTS_MAX: usize = 16;
/// How long a control client may be silent within a message, or between two.
pub const CLIENT_SILENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// Pause before the next control client when one couldn't be accepted.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// How long `braid target set` and its like wait for an answer.
pub const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(10);
/// Longest delay, service time or stall that may be asked for: an hour.
pub const WAIT_NS_MAX: u64 = 3_600_000_000_000;
/// How often the log is written.
pub const LOG_PERIOD: std::time::Duration = std::time::Duration::from_millis(250);
/// Most lines about connections that are written each time; the rest is counted.
pub const LOG_LINES_MAX: usize = 16;
/// How long the end of the target waits for its log's last lines to be taken.
pub const LOG_END_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Longest command quiesce time that can be reported, ms.
pub const CQT_MS_MAX: u64 = u16::MAX as u64;
/// Largest configuration file, bytes.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
