//! Types shared by a client's session and its owner.
use alloc::string::String;
use core::fmt;

use crate::limits::HANDSHAKE_NS;
use crate::{BlockSizes, Errno, Features};

/// Configuration of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the export; empty = the server's default.
    pub export: String,
    /// Most requests in flight; cut to 1…1024.
    pub requests_max: u16,
    /// Payload is placed and sent in pieces that don't cross a multiple of it, bytes; cut to
    /// 4 KiB…32 MiB.
    pub piece: u32,
    /// Ask for the block sizes; then requests keep to them. A server that isn't asked accepts any
    /// range, or fails those it doesn't support.
    pub block_sizes: bool,
    /// Ask for structured replies.
    pub structured: bool,
    /// Ask for `base:allocation`; needs structured replies.
    pub block_status: bool,
    /// From the connection to [`Event::Ready`], ns.
    pub handshake_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            export: String::new(),
            requests_max: 128,
            piece: 1 << 20,
            block_sizes: true,
            structured: true,
            block_status: false,
            handshake_ns: HANDSHAKE_NS,
        }
    }
}

/// The server's information about the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Bytes.
    pub size: u64,
    /// Requests that the server accepts, Block Status included if it was agreed.
    pub features: Features,
    /// Sizes of requests; `None`: the server sent none, see [`BlockSizes::DEFAULT`]. Requests
    /// beyond 32 MiB are never accepted.
    pub block_sizes: Option<BlockSizes>,
    /// Structured replies were agreed.
    pub structured: bool,
}

/// Reason why a request was refused locally. None is a failure of the server (T6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many requests as were configured are in flight.
    Full,
    /// The session isn't ready, or is over.
    NotReady,
    /// The server doesn't support such a request.
    Invalid(&'static str),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "all requests are in flight",
            Self::NotReady => "the session is not ready",
            Self::Invalid(why) => why,
        })
    }
}

impl core::error::Error for SubmitError {}

/// Failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// Error reported by the server.
    Server(Errno),
    /// The server completed a read or a Block Status without all its data (T16).
    Incomplete,
    /// The session ended before the answer.
    Lost,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(errno) => errno.fmt(f),
            Self::Incomplete => f.write_str("the server left data out"),
            Self::Lost => f.write_str("the connection ended before the answer"),
        }
    }
}

impl core::error::Error for CommandError {}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// As submitted.
    pub token: u32,
    /// How it ended.
    pub result: Result<(), CommandError>,
}

/// Events of a session for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requests may be submitted.
    Ready(Info),
    /// A read found a hole: zero this range of its buffer.
    Zero {
        /// The request.
        token: u32,
        /// First byte in the request's buffer.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// One request has ended.
    Completed(Completed),
    /// There is something for `poll_transmit`.
    Transmit,
    /// `handle_bytes`, which had stopped, accepts bytes again.
    Resume,
    /// DISC was queued: close after sending it.
    Close,
    /// The session is over; all its requests were completed before this. Close after sending what
    /// is queued.
    Failed(Error),
}

/// Reason why a client ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The handshake took too long.
    TimedOut,
    /// The connection ended.
    Closed,
    /// The server speaks the oldstyle handshake.
    Oldstyle,
    /// The server refused the export; the reply type of its error.
    Refused(u32),
    /// The server's block sizes are invalid.
    BlockSizes(BlockSizes),
    /// The server broke the protocol.
    Protocol(Fault),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::wire::rep;
        match *self {
            Self::TimedOut => f.write_str("the server did not finish the handshake in time"),
            Self::Closed => f.write_str("the connection ended"),
            Self::Oldstyle => {
                f.write_str("the server speaks the oldstyle handshake, which is not supported")
            }
            Self::Refused(rep::ERR_UNKNOWN) => f.write_str("the server has no such export"),
            Self::Refused(rep::ERR_TLS_REQD) => {
                f.write_str("the server wants TLS, which is not supported")
            }
            Self::Refused(rep::ERR_SHUTDOWN) => f.write_str("the server is being shut down"),
            Self::Refused(rep::ERR_POLICY) => f.write_str("the server's policy forbids the export"),
            Self::Refused(reply) => write!(f, "the server refused the export (reply {reply:#x})"),
            Self::BlockSizes(sizes) => write!(
                f,
                "the server's block sizes can't be: minimum {}, preferred {}, maximum {}",
                sizes.minimum, sizes.preferred, sizes.maximum
            ),
            Self::Protocol(fault) => write!(f, "the server broke the protocol: {fault}"),
        }
    }
}

impl core::error::Error for Error {}

/// A violation of the protocol by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The greeting is not the one of an NBD server.
    Greeting,
    /// An option reply without its magic, to another option, of an unexpected type.
    OptionReply,
    /// An option reply of so many bytes.
    OptionReplyLength(u32),
    /// Too many replies to one option.
    OptionReplies,
    /// Information about the export is malformed or missing.
    Info,
    /// Neither a simple nor a structured reply.
    ReplyMagic(u32),
    /// A reply to no request in flight.
    Cookie(u64),
    /// A simple reply where a structured one was agreed, or the other way round.
    ReplyForm,
    /// A chunk of this type and length, which is invalid for its request.
    Chunk {
        /// Type.
        kind: u16,
        /// Bytes.
        len: u32,
    },
    /// Content outside the request.
    Outside,
    /// Content that had arrived before.
    Overlap,
    /// Content in more ranges than a session records.
    Fragments,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greeting => f.write_str("no NBD greeting"),
            Self::OptionReply => f.write_str("an unexpected option reply"),
            Self::OptionReplyLength(len) => write!(f, "an option reply of {len} bytes"),
            Self::OptionReplies => f.write_str("too many replies to one option"),
            Self::Info => f.write_str("no sound information about the export"),
            Self::ReplyMagic(magic) => write!(f, "a reply with magic {magic:#x}"),
            Self::Cookie(cookie) => write!(f, "a reply to no request in flight ({cookie:#x})"),
            Self::ReplyForm => f.write_str("a reply of a form that was not agreed"),
            Self::Chunk { kind, len } => write!(f, "a chunk of type {kind} and {len} bytes"),
            Self::Outside => f.write_str("data outside the request"),
            Self::Overlap => f.write_str("the same data twice"),
            Self::Fragments => f.write_str("a read in too many fragments"),
        }
    }
}
