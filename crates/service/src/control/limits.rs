//! All limits of control sockets.

/// Longest control request or answer, bytes with its newline.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Control clients at a time; another is turned away.
pub const CLIENTS_MAX: usize = 16;
/// Control clients whose requests may take long, at a time: the other places are for short ones.
pub const LONG_MAX: usize = 8;
/// How long a control client may be silent within a message, or between two.
pub const CLIENT_SILENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// Pause before the next control client when one couldn't be accepted.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// How long the verbs wait for an answer.
pub const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(10);
