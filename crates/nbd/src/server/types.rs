//! Types shared by a server's session and its driver.
use crate::Request;
use crate::limits::{HANDSHAKE_NS, STALL_NS};
use core::fmt;

/// Configuration of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most requests in flight; cut to 1…1024.
    pub requests_max: u16,
    /// Payload is placed and sent in pieces that don't cross a multiple of it, bytes; cut to
    /// 4 KiB…32 MiB. Longer reads are answered in chunks of it.
    pub piece: u32,
    /// From the connection to transmission, ns.
    pub handshake_ns: u64,
    /// Time a client may stop in the middle of a request, or take no answers: it is disconnected
    /// after this at the earliest, after twice this at the latest, ns.
    pub stall_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            requests_max: 128,
            piece: 1 << 20,
            handshake_ns: HANDSHAKE_NS,
            stall_ns: STALL_NS,
        }
    }
}

/// Transmission has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// [`Export::id`](crate::Export::id) of the chosen export.
    pub export: u32,
    /// The client asked for the block sizes: its ranges are aligned to the minimum. Otherwise they
    /// may be any bytes.
    pub negotiated_block_size: bool,
    /// Structured replies.
    pub structured: bool,
    /// Block Status may be asked.
    pub block_status: bool,
}

/// Events of a session for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client chose an export.
    Opened(Opened),
    /// A write needs a buffer before its data can be received; nothing more is read until
    /// `Session::buffer_ready`. A `Release` may come first, if the connection ends: then no answer
    /// is due any more.
    NeedBuffer {
        /// The request.
        token: u32,
        /// First byte on the export.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Execute, then call `Session::complete`.
    Request(Request),
    /// The request is over and nothing refers to its buffer.
    Release {
        /// The request.
        token: u32,
    },
    /// There is something for `poll_transmit`.
    Transmit,
    /// `handle_bytes`, which had stopped, accepts bytes again.
    Resume,
    /// Send the queued bytes, then close; at once where [`CloseReason::is_abortive`] says so. Comes
    /// a second time, with [`CloseReason::Linger`], if the client does not take them.
    Close {
        /// Why.
        reason: CloseReason,
    },
}

/// Reason why a server ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client sent DISC, and has all its answers.
    Finished,
    /// EXPORT_NAME, which has no error reply, named an export that doesn't exist.
    Refused,
    /// `Session::shutdown`; all requests in flight are done.
    Shutdown,
    /// The handshake took too long.
    Handshake,
    /// The client stopped in the middle of a request.
    StalledRequest,
    /// The client takes none of its answers.
    StalledAnswers,
    /// The client broke the protocol.
    Protocol(Fault),
    /// Requests in flight, or queued bytes, could not be finished in time.
    Linger,
}

impl CloseReason {
    /// Whether queued bytes must not be sent.
    pub fn is_abortive(self) -> bool {
        !matches!(self, Self::Finished | Self::Refused | Self::Shutdown)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("the client disconnected"),
            Self::Refused => f.write_str("the client chose an export that does not exist"),
            Self::Shutdown => f.write_str("the server is shut down"),
            Self::Handshake => f.write_str("the handshake took too long"),
            Self::StalledRequest => f.write_str("the client stopped in the middle of a request"),
            Self::StalledAnswers => f.write_str("the client does not take its answers"),
            Self::Protocol(fault) => write!(f, "the client broke the protocol: {fault}"),
            Self::Linger => f.write_str("the client did not take its answers in time"),
        }
    }
}

/// A violation of the protocol by the client that no error reply can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Client flags that weren't offered.
    ClientFlags(u32),
    /// An option without its magic.
    OptionMagic,
    /// An option with more data than is skipped, bytes.
    OptionLength(u32),
    /// More options than a handshake takes.
    Options,
    /// A request without its magic.
    RequestMagic,
    /// A write with more data than is skipped, bytes.
    WriteLength(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientFlags(flags) => write!(f, "unknown client flags {flags:#x}"),
            Self::OptionMagic => f.write_str("an option without its magic"),
            Self::OptionLength(len) => write!(f, "an option with {len} bytes of data"),
            Self::Options => f.write_str("too many options"),
            Self::RequestMagic => f.write_str("a request without its magic"),
            Self::WriteLength(len) => write!(f, "a write of {len} bytes"),
        }
    }
}
