//! Receiving: bytes come in large pieces through shared buffers; large payload goes straight to its
//! place.
//!
//! # Contract
//! One receive operation per connection. It takes a buffer only when bytes are there, so idle
//! connections hold none. Bytes that a blocked machine leaves stay in their buffer, and nothing
//! more is received, until `Output::Resume`. Where the machine expects `DIRECT_MIN` bytes of
//! payload or more and none are left in a buffer, the next receive puts them where they belong.
use crate::connection::Phase;
use crate::limits::{AFTER_LARGE_BYTES, DIRECT_MIN, RECEIVE_BUFFER_BYTES};
use crate::reactor::{Reactor, Tag};
use engine::Machine;
use engine::machine::{Closed, ConnId, Place};
use nvme::crc32c;
use std::mem;
use sys::{Buffer, Completion, Errno, OpId, Returned};

/// State of a connection's receiving side.
#[derive(Default)]
pub(crate) enum Inbound {
    /// Nothing, for a moment.
    #[default]
    Idle,
    /// Receiving into a buffer.
    Buffered(OpId),
    /// Receiving payload into place.
    Direct(OpId, Place),
    /// Waiting for the machine, with what it hasn't taken: the buffer from this byte on.
    Blocked(Buffer, usize),
}

impl Inbound {
    pub(crate) fn operation(&self) -> Option<OpId> {
        match *self {
            Self::Buffered(operation) | Self::Direct(operation, _) => Some(operation),
            Self::Idle | Self::Blocked(..) => None,
        }
    }

    /// Forgets what was kept for the machine.
    pub(crate) fn unblock(&mut self) {
        if matches!(self, Self::Blocked(..)) {
            *self = Self::Idle;
        }
    }
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    /// Starts the next receive of every connection that has none. Called when everything to send is
    /// under way: answers leave first, and the machine has said where payload goes.
    pub(crate) fn arm_receives(&mut self) {
        while let Some(conn) = self.unarmed.pop() {
            self.arm_receive(conn);
        }
    }

    fn arm_receive(&mut self, conn: ConnId) {
        let connection = &mut self.connections[conn.0 as usize];
        let receiving = matches!(connection.phase, Phase::Open | Phase::Closing);
        let Some(socket) = connection.socket.as_ref().filter(|_| receiving) else {
            return;
        };
        if !matches!(connection.inbound, Inbound::Idle) {
            return;
        }
        let tag = Tag::Receive(conn).bits();
        // In the course of a close, bytes are only discarded.
        let open = connection.phase == Phase::Open;
        let place = if open {
            self.machine.placement(conn)
        } else {
            None
        };
        connection.inbound = match place.filter(|place| place.span.len >= DIRECT_MIN) {
            Some(place) => {
                connection.large = true;
                let extent = crate::reactor::extent(self.arena_bytes, place.span);
                Inbound::Direct(self.ring.receive_into(socket, extent, tag), place)
            }
            None => {
                let limit = if connection.large {
                    AFTER_LARGE_BYTES
                } else {
                    RECEIVE_BUFFER_BYTES
                };
                let empty = !connection.nonempty;
                Inbound::Buffered(self.ring.receive(socket, limit, empty, tag))
            }
        };
    }

    /// A receive ended.
    pub(crate) fn handle_receive(&mut self, conn: ConnId, completion: Completion) {
        self.stats.receives += 1;
        let connection = self.connection_mut(conn);
        connection.nonempty = completion.nonempty;
        let inbound = mem::take(&mut connection.inbound);
        match (connection.phase, completion.result) {
            (Phase::Open | Phase::Closing, Err(Errno::NOBUFS)) => {
                // All that were lent are full; the next turn lends others.
                connection.nonempty = true;
                self.unarmed.push(conn);
            }
            (Phase::Open | Phase::Closing, Err(Errno::INTR | Errno::AGAIN)) => {
                self.unarmed.push(conn);
            }
            (Phase::Open, Ok(0)) => self.end(conn, Closed::ByPeer),
            (Phase::Open, Err(error)) => self.end(conn, Closed::Error(error.raw_os_error())),
            (Phase::Open, Ok(count)) => match (inbound, completion.returned) {
                (Inbound::Direct(_, place), _) => self.placed(conn, place, count),
                (_, Returned::Buffer(buffer)) => self.feed(conn, buffer, 0),
                _ => unreachable!("bytes were received nowhere"),
            },
            (Phase::Closing, Ok(1..)) => self.unarmed.push(conn),
            (Phase::Closing, _) => self.handle_closed_by_both(conn),
            _ => self.conclude_if_quiet(conn),
        }
    }

    /// `Output::Resume`.
    pub(crate) fn resume(&mut self, conn: ConnId) {
        let connection = self.connection_mut(conn);
        match mem::take(&mut connection.inbound) {
            Inbound::Blocked(buffer, at) => self.feed(conn, buffer, at),
            other => connection.inbound = other,
        }
    }

    /// Gives the machine what is in a buffer from `at` on.
    fn feed(&mut self, conn: ConnId, buffer: Buffer, mut at: usize) {
        // A placement that follows a header is whole; others are what is left of one.
        let mut after_header = false;
        while at < buffer.len() {
            let rest = &buffer[at..];
            if let Some(place) = self.machine.placement(conn) {
                if mem::take(&mut after_header) {
                    self.connection_mut(conn).large = place.span.len >= DIRECT_MIN;
                }
                at += self.copy_in(conn, place, rest);
                continue;
            }
            let taken = self.machine.handle_bytes(conn, rest, self.now_ns);
            assert!(
                taken <= rest.len(),
                "{conn:?} took {taken} of {} bytes",
                rest.len()
            );
            at += taken;
            after_header = true;
            if taken < rest.len() && self.machine.placement(conn).is_none() {
                self.connection_mut(conn).inbound = Inbound::Blocked(buffer, at);
                return;
            }
        }
        drop(buffer);
        if after_header {
            self.connection_mut(conn).large = false;
        }
        self.unarmed.push(conn);
    }

    /// Copies payload to its place; returns how much.
    fn copy_in(&mut self, conn: ConnId, place: Place, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(place.span.len as usize)];
        let mut extent = self.extent(place.span);
        extent.len = bytes.len() as u32;
        self.ring.bytes_mut(extent).copy_from_slice(bytes);
        let crc = place.crc.map_or(0, |running| crc32c(running, bytes));
        self.machine
            .handle_payload(conn, extent.len, crc, self.now_ns);
        self.stats.bytes_copied_in += bytes.len() as u64;
        bytes.len()
    }

    /// `count` bytes of payload were received into place.
    fn placed(&mut self, conn: ConnId, place: Place, count: u32) {
        let mut extent = self.extent(place.span);
        extent.len = count;
        let received = self.ring.arena().bytes(extent);
        let crc = place.crc.map_or(0, |running| crc32c(running, received));
        self.machine.handle_payload(conn, count, crc, self.now_ns);
        self.stats.bytes_direct_in += u64::from(count);
        self.unarmed.push(conn);
    }
}
