//! New clients, and the ends of the connections that they may have had before.
//!
//! Decides when a new client may be greeted: once no core can begin or end anything unnoticed that
//! an earlier connection of it has asked for (T9, T46). A client that lost a connection then has an
//! order between what it sent by it and what it sends now.
//!
//! # Contract
//! A client comes ([`NbdServer::arrive`]) and each core is asked to [settle](NbdServer::settle) it.
//! The core asks its reactor which connections of the volume's clients have ended, read or not
//! ([`Output::CheckEnd`]). It answers once none of these begins a change any more: each was read to
//! its end, and what it had not begun was dropped, or has begun if it sent DISC. Then the core
//! shows what is under way. A blocked connection is not read: [`END_READ_NS`] after its end was
//! found it is closed unread.
//!
//! Changes before a DISC are executed, however long that takes: a new client waits for the
//! last of these changes to begin. Other cores can't be told of it sooner: a change that is shown
//! before it begins could wait for one that waits for it.
use super::clients::{Client, State};
use super::{Devices, NbdServer, Work};
use crate::cross_core::Arrival;
use crate::limits::{ARRIVALS_READY, END_READ_NS};
use crate::machine::Output;
use crate::mirror::MIRRORS_FROM;
use alloc::vec::Vec;
use canary::Bug;

/// The peer's end of a client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// Not known to have come.
    #[default]
    Unknown,
    /// It has come, and is read until then, ns.
    ReadUntil(u64),
    /// It was not read in time: what was not begun is dropped.
    Cut,
}

/// New clients of all cores.
pub(super) struct Arrivals {
    /// Those that this core has not settled.
    open: Vec<Arrival>,
    /// Connections of which the reactor has not told whether they have ended.
    checks: u32,
    /// When the first [`End::ReadUntil`] is over, ns; 0: there is none.
    due_ns: u64,
}

impl Arrivals {
    pub fn new() -> Self {
        Self {
            open: Vec::with_capacity(ARRIVALS_READY),
            checks: 0,
            due_ns: 0,
        }
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        (self.due_ns > 0).then_some(self.due_ns)
    }

    /// An end is read until then.
    fn read_until(&mut self, until_ns: u64) -> End {
        self.due_ns = match self.due_ns {
            0 => until_ns,
            due_ns => due_ns.min(until_ns),
        };
        End::ReadUntil(until_ns)
    }
}

impl NbdServer {
    /// A client of the volume comes. Returns its number for [`NbdServer::settled`]; `None`: it
    /// can't have had another connection.
    pub(super) fn arrive(&self, devices: &mut Devices, volume: u16) -> Option<u64> {
        // A mirror's clients are on one core.
        let is_home = !devices.cross_core.has_others() || volume >= MIRRORS_FROM;
        let is_first = || !self.clients.iter().any(|it| is_of(it, volume));
        if is_home && is_first() || canary::has(Bug::GreetedAtOnce) {
            return None;
        }
        Some(devices.cross_core.arrive(volume, is_home))
    }

    /// A client has come to a core: looks for ends of connections of its volume here.
    pub fn settle(&mut self, arrival: Arrival) {
        for client in 0..self.config.clients_max {
            let conn = self.conn_of(client);
            let it = &mut self.clients[usize::from(client)];
            let is_asked = !it.closed && it.end == End::Unknown && is_of(it, arrival.volume());
            // One that is yet to be answered looks later than this client came.
            if is_asked && !core::mem::replace(&mut it.is_checked, true) {
                self.arrivals.checks += 1;
                self.outputs.push_back(Output::CheckEnd(conn));
            }
        }
        self.arrivals.open.push(arrival);
    }

    /// Whether the peer's end of a client's connection has come.
    pub fn end_checked(&mut self, client: u16, has_ended: bool, now_ns: u64) {
        assert!(
            self.arrivals.checks > 0,
            "client {client} was not asked for"
        );
        self.arrivals.checks -= 1;
        let it = &mut self.clients[usize::from(client)];
        it.is_checked = false;
        if has_ended {
            it.end = self.arrivals.read_until(now_ns.saturating_add(END_READ_NS));
        }
    }

    /// Settles new clients for which no end is to be read any more; whether there were any.
    pub(super) fn answer_arrivals(&mut self, devices: &mut Devices) -> bool {
        if self.arrivals.open.is_empty() || self.arrivals.checks > 0 {
            return false;
        }
        let mut open = core::mem::take(&mut self.arrivals.open);
        let before = open.len();
        open.retain(|arrival| {
            let volume = arrival.volume();
            let waits = (0..self.config.clients_max).any(|it| self.is_ending(it, volume));
            if !waits {
                self.show_ended(devices, volume);
                devices.cross_core.settled(*arrival);
            }
            waits
        });
        let any = open.len() < before;
        self.arrivals.open = open;
        any
    }

    /// Whether it is a client of the volume whose connection has ended, and that may begin changes.
    fn is_ending(&self, client: u16, volume: u16) -> bool {
        let it = &self.clients[usize::from(client)];
        let has_ended = it.closed || it.end != End::Unknown;
        has_ended && is_of(it, volume) && self.may_begin(client)
    }

    /// Whether changes of a client may yet begin: the server executes all before a DISC (NBD).
    fn may_begin(&self, client: u16) -> bool {
        let it = &self.clients[usize::from(client)];
        let State::Session(session) = &it.state else {
            return false;
        };
        if it.closed && it.broken {
            return false;
        }
        let is_read = it.closed || session.is_draining();
        !is_read || session.has_event() || self.table.of(client).any(Work::may_begin)
    }

    /// Shows what closed connections of the volume have under way. Also changes that have begun
    /// since their ends: a draining one begins them one after the other.
    fn show_ended(&self, devices: &mut Devices, volume: u16) {
        for client in 0..self.config.clients_max {
            let it = &self.clients[usize::from(client)];
            if is_of(it, volume) && (it.closed || it.end != End::Unknown) {
                self.show_changes_of(devices, client);
            }
        }
    }

    /// Cuts off connections whose ends were not read in time.
    pub(super) fn expire_ends(&mut self, now_ns: u64) {
        if self
            .arrivals
            .poll_timeout()
            .is_none_or(|at_ns| at_ns > now_ns)
        {
            return;
        }
        self.arrivals.due_ns = 0;
        for client in 0..self.config.clients_max {
            let conn = self.conn_of(client);
            let it = &mut self.clients[usize::from(client)];
            match it.end {
                End::ReadUntil(at_ns) if at_ns > now_ns => {
                    it.end = self.arrivals.read_until(at_ns);
                }
                End::ReadUntil(_) if !it.closed && !it.is_draining() => {
                    it.end = End::Cut;
                    self.outputs.push_back(Output::Close { conn, abort: true });
                }
                _ => {}
            }
        }
    }
}

/// Whether it is a client of the volume that was greeted.
fn is_of(client: &Client, volume: u16) -> bool {
    client.volume == volume && matches!(client.state, State::Session(_))
}
