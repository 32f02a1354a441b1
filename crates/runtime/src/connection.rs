//! A connection's life: opened or accepted, open, closed in order or at once, reported exactly
//! once.
//!
//! # Contract
//! `handle_closed` comes when no operation of the connection is in flight any more: nothing is
//! received into its buffers or sent from them after it. An end that isn't an orderly close of ours
//! is abortive: the socket is reset, so that nothing the machine had queued goes out later (T9).
//!
//! An orderly close sends what is queued, then FIN, and discards what arrives until the peer has
//! closed too: closing with unread bytes would reset, and the peer might lose our last words. All
//! of it within `CLOSE_WAIT_NS`.
use crate::limits::{CLOSE_WAIT_NS, EXTENTS_MAX, UNSENT_MAX};
use crate::mailbox::Kept;
use crate::reactor::{Reactor, Tag};
use crate::receive::Inbound;
use engine::Machine;
use engine::machine::{Closed, ConnId};
use std::mem;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use sys::{Errno, Fd, OpId, os};

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The id is not in use.
    #[default]
    Free,
    Connecting,
    Open,
    /// Closed in order by the machine: being sent, then waiting for the peer's end.
    Closing,
    /// Over; its operations are being cancelled.
    Ending(Closed),
}

/// One connection.
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) phase: Phase,
    pub(crate) socket: Option<Fd>,
    pub(crate) connecting: Option<OpId>,
    pub(crate) inbound: Inbound,
    /// The last receive left bytes in the socket.
    pub(crate) nonempty: bool,
    /// The last payload was one to receive directly; so may be the next.
    pub(crate) large: bool,
    pub(crate) sending: Option<OpId>,
    /// The machine has something to transmit.
    pub(crate) dirty: bool,
    /// It stands in the list of the dirty.
    pub(crate) queued: bool,
    /// FIN was sent.
    pub(crate) finished: bool,
    /// Payloads that the message in flight refers to.
    pub(crate) cookies: Vec<u32>,
    /// End of an orderly close.
    pub(crate) deadline_ns: u64,
    /// The peer connected to us; from this address, where that has a share.
    pub(crate) accepted: bool,
    pub(crate) peer: Option<IpAddr>,
    /// Dropped with it.
    pub(crate) kept: Option<Kept>,
    /// Steps of sending; and how many there were at the last look, if it was sending.
    pub(crate) moves: u32,
    pub(crate) looked: Option<u32>,
}

impl Connection {
    /// A free one, with all the memory it will need.
    pub(crate) fn new() -> Self {
        Self {
            cookies: Vec::with_capacity(EXTENTS_MAX),
            ..Self::default()
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    /// Whether a message may be sent now.
    pub(crate) fn can_send(&self) -> bool {
        let open = matches!(self.phase, Phase::Open | Phase::Closing);
        open && self.sending.is_none() && !self.finished
    }

    fn in_flight(&self) -> impl Iterator<Item = OpId> {
        [self.connecting, self.inbound.operation(), self.sending]
            .into_iter()
            .flatten()
    }

    /// Free again; the list of the dirty may still name it.
    fn reset(&mut self) {
        let (queued, cookies) = (self.queued, mem::take(&mut self.cookies));
        *self = Self {
            queued,
            cookies,
            ..Self::default()
        };
    }
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    /// `Output::Open`.
    pub(crate) fn open(&mut self, conn: ConnId, address: u32) {
        assert!(
            self.connection(conn).is_free(),
            "{conn:?} is in use and can't be opened"
        );
        let address = self.addresses[address as usize];
        let socket = if self.stopping {
            Err(Errno::CANCELED)
        } else if address == crate::NOWHERE {
            Err(Errno::DESTADDRREQ)
        } else {
            os::tcp_socket(&address)
        };
        let connection = &mut self.connections[conn.0 as usize];
        match socket {
            Ok(socket) => {
                let socket = Fd::new(socket);
                let tag = Tag::Connect(conn).bits();
                connection.connecting = Some(self.ring.connect(&socket, &address, tag));
                connection.socket = Some(socket);
                connection.phase = Phase::Connecting;
            }
            Err(error) => {
                connection.phase = Phase::Connecting;
                self.end(conn, Closed::Error(error.raw_os_error()));
            }
        }
    }

    pub(crate) fn handle_connect(&mut self, conn: ConnId, result: Result<u32, Errno>) {
        let connection = self.connection_mut(conn);
        connection.connecting = None;
        if connection.phase != Phase::Connecting {
            return self.conclude_if_quiet(conn);
        }
        match result {
            Ok(_) => {
                connection.phase = Phase::Open;
                let dirty = connection.dirty;
                self.machine.handle_connected(conn, self.now_ns);
                self.unarmed.push(conn);
                if dirty {
                    self.mark_dirty(conn);
                }
            }
            Err(error) => self.end(conn, Closed::Error(error.raw_os_error())),
        }
    }

    /// A connection was accepted on a listener: the machine takes or refuses it.
    pub(crate) fn adopt(&mut self, listener: u32, socket: OwnedFd, kept: Option<Kept>) {
        if self.stopping {
            return;
        }
        let peer = self.admission.peer(&socket);
        if let Err(turned_away) = self.admission.enter(peer, self.now_ns) {
            if let (Some(count), Some(peer)) = (turned_away, peer) {
                tracing::warn!(
                    "{count} connections turned away, the last one from {peer}: it has as many as \
                     one address may have"
                );
            }
            return;
        }
        let Some(conn) = self.machine.handle_accepted(listener, self.now_ns) else {
            self.admission.leave(peer);
            return;
        };
        // Fail only on a socket that is dead already, which the first receive will say, or that
        // isn't TCP.
        let _ = os::set_no_delay(&socket);
        let _ = os::set_keep_alive(&socket);
        let _ = os::set_unsent_max(&socket, UNSENT_MAX);
        let connection = self.connection_mut(conn);
        assert!(
            connection.is_free(),
            "{conn:?} is in use and can't be accepted"
        );
        connection.socket = Some(Fd::new(socket));
        connection.phase = Phase::Open;
        (connection.accepted, connection.peer) = (true, peer);
        connection.kept = kept;
        // The peer of a new connection usually sends first, and may have done so already.
        connection.nonempty = true;
        self.unarmed.push(conn);
    }

    /// `Output::Close`. Nothing to do where the end was already reported or is on its way.
    pub(crate) fn close(&mut self, conn: ConnId, abort: bool) {
        let now_ns = self.now_ns;
        let connection = self.connection_mut(conn);
        match connection.phase {
            Phase::Free | Phase::Ending(_) => {}
            Phase::Closing if !abort => {}
            Phase::Open if !abort => {
                connection.phase = Phase::Closing;
                connection.deadline_ns = now_ns + CLOSE_WAIT_NS;
                connection.inbound.unblock();
                self.closing.push(conn);
                self.unarmed.push(conn);
                self.mark_dirty(conn);
            }
            _ => self.end(conn, Closed::ByUs),
        }
    }

    /// Whether a connection is over, or will be once what has arrived is read.
    pub(crate) fn has_ended(&self, conn: ConnId) -> bool {
        let connection = self.connection(conn);
        match (connection.phase, &connection.socket) {
            (Phase::Open, Some(socket)) => os::has_hung_up(socket),
            _ => true,
        }
    }

    /// Everything of an orderly close was sent.
    pub(crate) fn finish_sending(&mut self, conn: ConnId) {
        let connection = self.connection_mut(conn);
        connection.finished = true;
        let shut = connection.socket.as_ref().map(os::finish_sending);
        if !matches!(shut, Some(Ok(()))) {
            self.end(conn, Closed::ByUs);
        }
    }

    /// The peer closed while we did.
    pub(crate) fn handle_closed_by_both(&mut self, conn: ConnId) {
        if self.connection(conn).finished {
            self.conclude(conn, Closed::ByUs);
        } else {
            self.end(conn, Closed::ByUs);
        }
    }

    /// Orderly closes whose time is over.
    pub(crate) fn expire_closing(&mut self) {
        // In the order of their deadlines; those that end leave the list.
        while let Some(&conn) = self.closing.first()
            && self.connection(conn).deadline_ns <= self.now_ns
        {
            self.end(conn, Closed::ByUs);
        }
    }

    /// It is over: with a reset, once its operations have ended.
    pub(crate) fn end(&mut self, conn: ConnId, why: Closed) {
        let connection = &mut self.connections[conn.0 as usize];
        assert!(
            connection.phase != Phase::Free,
            "{conn:?} ends ({why:?}), and is not in use"
        );
        connection.phase = Phase::Ending(why);
        connection.inbound.unblock();
        if let Some(socket) = &connection.socket {
            let _ = os::set_abortive_close(socket);
        }
        for operation in connection.in_flight() {
            self.ring.cancel(operation);
        }
        self.closing.retain(|&other| other != conn);
        self.conclude_if_quiet(conn);
    }

    pub(crate) fn conclude_if_quiet(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if let Phase::Ending(why) = connection.phase
            && connection.in_flight().next().is_none()
        {
            self.conclude(conn, why);
        }
    }

    fn conclude(&mut self, conn: ConnId, why: Closed) {
        self.deliver_sent(conn);
        let peer = self.connection(conn).peer;
        self.admission.leave(peer);
        self.connection_mut(conn).reset();
        self.closing.retain(|&other| other != conn);
        self.machine.handle_closed(conn, why, self.now_ns);
        self.again = true;
    }
}
