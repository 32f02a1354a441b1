//! The session of one connection of an application: an NBD session, or an I/O queue of NVMe/TCP.
//!
//! # Contract
//! Requests are those of NBD; their offsets are bytes of the volume. After [`Event::Over`] the
//! connection is to be closed, and after [`Session::handle_closed`] every request has ended.
use crate::chaos::prelude::*;
use nbd::Kind;
use nbd::client::CommandError;
use nbd::client::Event as NbdEvent;
use nvme::host::{Command, IoQueue, QueueEvent};
use nvme::wire::Status;
use nvme::wire::status::Class;
use nvme::{Placement, TxPayload};

/// The namespace of an export, which is its subsystem's only one.
pub const NSID: u32 = 1;

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// An error of the server.
    Server(Errno),
    /// The command was ended, and is not executed any more: the association or the controller could
    /// not do it, and another one may (NVMe/TCP only).
    Path(Status),
    /// A read that was completed without all its data (NBD only).
    Incomplete,
    /// The connection ended before the answer.
    Lost,
}

impl From<CommandError> for RequestError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Server(errno) => Self::Server(errno),
            CommandError::Incomplete => Self::Incomplete,
            CommandError::Lost => Self::Lost,
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(errno) => errno.fmt(f),
            Self::Path(status) => status.fmt(f),
            Self::Incomplete => CommandError::Incomplete.fmt(f),
            Self::Lost => CommandError::Lost.fmt(f),
        }
    }
}

/// The end of a command of a queue, as a request's.
fn result_of(status: Status) -> Result<(), RequestError> {
    let class = status.class();
    Err(match class {
        _ if status.is_success() => return Ok(()),
        // The host's own, for commands of a connection that has ended.
        _ if status.is(Status::HOST_PATH) => RequestError::Lost,
        _ if status.is_path_error() => RequestError::Path(status),
        _ if status.is(Status::CAPACITY_EXCEEDED) => RequestError::Server(Errno::NoSpc),
        Class::Invalid | Class::Range => RequestError::Server(Errno::Inval),
        _ => RequestError::Server(Errno::Io),
    })
}

/// See the module.
pub(super) enum Session {
    Nbd(Box<nbd::client::Session>),
    Nvme(Box<IoQueue>),
}

/// An event of a session.
pub(super) enum Event {
    Ready,
    /// Bytes of a read that did not come, because they are zeroes.
    Zero {
        token: u32,
        offset: u32,
        len: u32,
    },
    Completed(u32, Result<(), RequestError>),
    Transmit,
    Resume,
    Over,
}

/// Calls a session, of whatever kind.
macro_rules! call {
    ($session:expr, $it:ident => $call:expr) => {
        match $session {
            Session::Nbd($it) => $call,
            Session::Nvme($it) => $call,
        }
    };
}

impl Session {
    pub fn handle_connected(&mut self, now_ns: u64) {
        call!(self, it => it.handle_connected(now_ns));
    }

    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        call!(self, it => it.handle_bytes(bytes, now_ns))
    }

    pub fn placement(&self) -> Option<Placement> {
        match self {
            Self::Nbd(it) => it.placement().map(|it| Placement {
                token: it.token,
                offset: it.offset,
                len: it.len,
                crc: None,
            }),
            Self::Nvme(it) => it.placement(),
        }
    }

    pub fn handle_payload(&mut self, len: u32, crc: u32, now_ns: u64) {
        match self {
            Self::Nbd(it) => it.handle_payload(len, now_ns),
            Self::Nvme(it) => it.handle_payload(len, crc, now_ns),
        }
    }

    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, now_ns: u64) -> Option<Option<TxPayload>> {
        match self {
            Self::Nbd(it) => Some(it.poll_transmit(out)?.payload.map(|it| TxPayload {
                token: it.token,
                offset: it.offset,
                len: it.len,
                digest: false,
            })),
            Self::Nvme(it) => Some(it.poll_transmit(out, now_ns)?.payload),
        }
    }

    pub fn handle_sent(&mut self, token: u32) {
        call!(self, it => it.handle_sent(token));
    }

    pub fn handle_closed(&mut self, now_ns: u64) {
        match self {
            Self::Nbd(it) => it.handle_closed(),
            Self::Nvme(it) => it.handle_closed(now_ns),
        }
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        call!(self, it => it.poll_timeout())
    }

    pub fn handle_timeout(&mut self, now_ns: u64) {
        call!(self, it => it.handle_timeout(now_ns));
    }

    /// Whether it would take a request now, as far as that is known before.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Nbd(_) => true,
            Self::Nvme(it) => it.has_room(),
        }
    }

    /// Takes a request; false: it is over, and has not said so yet.
    pub fn submit(&mut self, request: &Request, now_ns: u64) -> bool {
        match self {
            Self::Nbd(it) => it.submit(request).is_ok(),
            Self::Nvme(it) => it.submit(&command(request), now_ns).is_ok(),
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        Some(match self {
            Self::Nbd(it) => match it.poll_event()? {
                NbdEvent::Ready(_) => Event::Ready,
                NbdEvent::Zero { token, offset, len } => Event::Zero { token, offset, len },
                NbdEvent::Completed(it) => {
                    Event::Completed(it.token, it.result.map_err(Into::into))
                }
                NbdEvent::Transmit => Event::Transmit,
                NbdEvent::Resume => Event::Resume,
                NbdEvent::Close | NbdEvent::Failed(_) => Event::Over,
            },
            Self::Nvme(it) => match it.poll_event()? {
                QueueEvent::Ready => Event::Ready,
                QueueEvent::Completed(it) => Event::Completed(it.token, result_of(it.status)),
                QueueEvent::Failed(_) => Event::Over,
            },
        })
    }
}

/// The command that does what a request asks for, in blocks of a namespace.
fn command(request: &Request) -> Command {
    let (token, shift) = (request.token, BLOCK.ilog2() as u8);
    let slba = request.offset >> shift;
    let blocks = request.length >> shift;
    match request.kind {
        Kind::Read => Command::read(NSID, slba, blocks, shift, false, token),
        Kind::Write => Command::write(NSID, slba, blocks, shift, request.fua, token),
        Kind::Flush => Command::flush(NSID, token),
        // Both forms.
        Kind::WriteZeroes => {
            Command::write_zeroes(NSID, slba, blocks, slba.is_multiple_of(2), token)
        }
        Kind::Trim => Command::deallocate(NSID, slba, blocks, token),
        Kind::Cache | Kind::BlockStatus { .. } => unreachable!("applications ask for none"),
    }
}
