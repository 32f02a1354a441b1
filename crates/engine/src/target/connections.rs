//! The lives of connections: accepted, open, closing, gone, and only then free again.
use super::TargetEngine;
use super::commands::{Recall, Stage};
use super::log::{Event, Why};
use crate::client::{ClientCounters, ClientPlace, ClientReport};
use crate::limits::TARGET_LINGER_NS;
use crate::machine::{Closed, ConnId, Output};
use crate::seldom::Seldom;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use canary::Bug;
use core::cmp::Reverse;
use nvme::controller::{CloseReason, ControllerStatus};
use nvme::wire::Status;

/// All connections by number.
pub(super) struct Connections {
    all: Vec<Connection>,
    /// Numbers that are free, the lowest on top.
    free: BinaryHeap<Reverse<u32>>,
    expires_first_ns: u64,
    /// Hosts for whom there was no place.
    turned_away: Seldom,
}

/// One connection.
#[derive(Clone)]
pub(super) struct Connection {
    state: State,
    /// Its port (index).
    pub(super) port: u16,
    /// Counts of its host's commands.
    pub(super) counters: ClientCounters,
    /// Commands not yet released.
    pub(super) commands: u32,
    /// An `Output::Transmit` for it is queued.
    pub(super) transmit_named: bool,
    /// When its writes that have not begun end, if they outlive it; `u64::MAX` = never.
    pub(super) expires_ns: u64,
    /// Why it was told to close.
    why: Option<Why>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    /// Told to close when all is sent.
    Closing,
    /// Told to close at once.
    Aborted,
    /// Closed; some of its commands are still at devices.
    Gone,
}

/// How far the end of the target is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// No host has asked.
    No,
    /// Connections are closing in order; at that time they are cut off.
    Closing { until_ns: u64 },
    /// They were cut off; at that time it ends, whatever a device still does.
    Aborting { until_ns: u64 },
    /// `Output::Stop` is out.
    Done,
}

impl Connection {
    /// Neither gone nor told to go at once.
    pub(super) fn may_send(&self) -> bool {
        matches!(self.state, State::Open | State::Closing)
    }

    /// Ended by nothing that the target decided or its host asked for.
    fn is_lost(&self) -> bool {
        matches!(
            self.why,
            None | Some(Why::Dropped | Why::Target(CloseReason::AssociationLost))
        )
    }
}

impl Connections {
    pub(super) fn new(connections: u32) -> Self {
        let free = Connection {
            state: State::Free,
            port: 0,
            counters: ClientCounters::default(),
            commands: 0,
            transmit_named: false,
            expires_ns: u64::MAX,
            why: None,
        };
        Connections {
            all: alloc::vec![free; connections as usize],
            free: (0..connections).map(Reverse).collect(),
            expires_first_ns: u64::MAX,
            turned_away: Seldom::new(1),
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// Those that are not free.
    pub(super) fn taken(&self) -> usize {
        self.all.len() - self.free.len()
    }

    pub(super) fn is_open(&self, conn: ConnId) -> bool {
        self.all[conn.0 as usize].state == State::Open
    }

    pub(super) fn of(&mut self, number: u32) -> &mut Connection {
        &mut self.all[number as usize]
    }

    /// Closed, though not all of its commands are over.
    pub(super) fn is_gone(&self, number: u32) -> bool {
        self.all[number as usize].state == State::Gone
    }

    /// When one of those that are gone may expire.
    pub(super) fn expires_ns(&self) -> Option<u64> {
        Some(self.expires_first_ns).filter(|expires_ns| *expires_ns != u64::MAX)
    }

    /// Finds that time anew.
    pub(super) fn rearm(&mut self) {
        let gone = self.all.iter().filter(|of| of.state == State::Gone);
        let first = gone.map(|of| of.expires_ns).min();
        self.expires_first_ns = first.unwrap_or(u64::MAX);
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ConnId> + use<> {
        (0..self.count()).map(ConnId)
    }
}

impl TargetEngine {
    pub(super) fn accept(&mut self, port: u16, now_ns: u64) -> Option<ConnId> {
        if self.stop != Stop::No || usize::from(port) >= self.ports.len() {
            return None;
        }
        let on = &mut self.ports[usize::from(port)];
        if on.faults.faults().refuse_until_ns > now_ns {
            on.stats.faults.refused += 1;
            return None;
        }
        let Some(Reverse(number)) = self.connections.free.pop() else {
            self.turn_away(port, now_ns);
            return None;
        };
        let id = ConnId(number);
        let opened = self
            .subsystem
            .open(nvme::controller::ConnId(id.0), port, now_ns);
        if opened.is_err() {
            self.connections.free.push(Reverse(number));
            return None;
        }
        let connection = self.connections.of(id.0);
        connection.state = State::Open;
        connection.port = port;
        (connection.expires_ns, connection.why) = (u64::MAX, None);
        connection.counters = ClientCounters {
            since_ns: now_ns,
            ..ClientCounters::default()
        };
        self.pool.begin(id.0);
        self.log.push(Event::Connected {
            port,
            connection: id.0,
        });
        self.ports[usize::from(port)].stats.connections += 1;
        Some(id)
    }

    /// Hosts that have identified a namespace, of `volume`: each association once. `listener`: that
    /// of a port.
    pub(crate) fn client_reports(
        &self,
        (nsid, volume): (u32, u16),
        listener: impl Fn(u16) -> u32,
    ) -> Vec<ClientReport> {
        let known = self.subsystem.hosts_of(nsid);
        let hosts = self.subsystem.controllers();
        let hosts = hosts.filter(|it| !it.discovery && known.contains(&it.hostid));
        let of_host = |host: ControllerStatus<'_>| {
            let mut report = ClientReport {
                place: ClientPlace::Listener(listener(host.port)),
                volume,
                name: host.hostnqn.into(),
                connections: 0,
                in_flight: 0,
                counters: ClientCounters {
                    since_ns: u64::MAX,
                    ..ClientCounters::default()
                },
            };
            let connections = self.subsystem.connections();
            for it in connections.filter(|it| it.cntlid == Some(host.cntlid)) {
                let connection = &self.connections.all[it.conn.0 as usize];
                report.connections += 1;
                report.in_flight += connection.commands;
                report.counters.add(&connection.counters);
            }
            report
        };
        hosts.map(of_host).collect()
    }

    /// Those who are here stay, unless they only keep a place; who comes when all are taken is told
    /// so at once, by a close, and may come again. Of many, few are spoken of.
    fn turn_away(&mut self, port: u16, now_ns: u64) {
        self.subsystem.make_room(now_ns);
        self.drain(now_ns);
        if let Some(count) = self.connections.turned_away.one_more(now_ns) {
            self.log.push(Event::TurnedAway { port, count });
        }
    }

    /// The subsystem wants a connection closed.
    ///
    /// A reset or shutdown deletes its queue: what has not begun is over at once, so that the host
    /// need not wait for the connection to end before it has its proof (T9). So is it when the
    /// keep-alive time is over, or the host may not connect any more: what is due as well must not
    /// begin before the connection has ended.
    pub(super) fn close_for(&mut self, conn: ConnId, reason: CloseReason, now_ns: u64) {
        if matches!(
            reason,
            CloseReason::Finished | CloseReason::KeepAlive | CloseReason::NotAdmitted
        ) {
            self.discard(conn.0, false, now_ns);
        }
        if self.connections.is_open(conn) {
            let port = usize::from(self.connections.of(conn.0).port);
            match reason {
                CloseReason::Protocol => self.ports[port].stats.protocol_errors += 1,
                CloseReason::Damaged => self.ports[port].stats.damaged_headers += 1,
                CloseReason::KeepAlive => self.ports[port].stats.keep_alive_expired += 1,
                _ => {}
            }
        }
        if reason.is_abortive() {
            self.abort(conn, Why::Target(reason));
        } else {
            self.close(conn, Why::Target(reason));
        }
    }

    /// Drops every connection of a port with a reset.
    pub(super) fn drop_port(&mut self, port: u16) {
        for id in self.connections.ids() {
            let connection = self.connections.of(id.0);
            if connection.port == port && connection.may_send() {
                self.ports[usize::from(port)].stats.faults.drops += 1;
                self.abort(id, Why::Dropped);
            }
        }
    }

    /// Whether commands of a connection are answered: neither the target nor the subsystem, which
    /// drops what comes behind a reset, has told it to close.
    pub(super) fn is_answered(&self, number: u32) -> bool {
        let live = self.subsystem.is_live(nvme::controller::ConnId(number));
        live && self.connections.is_open(ConnId(number))
    }

    /// Before when a change that is on its way to a device has to start there.
    pub(super) fn start_before(&self, slot: u32) -> u64 {
        let number = self.commands[slot].connection;
        let connection = &self.connections.all[number as usize];
        let faults = self.ports[usize::from(connection.port)].faults.faults();
        if faults.until_keep_alive || faults.late_writes_ns > 0 {
            // It is wanted that writes are late.
            return u64::MAX;
        }
        if !self.is_answered(number) {
            return 0;
        }
        let expires_ns = self
            .subsystem
            .keep_alive_expires_ns(nvme::controller::ConnId(number));
        expires_ns.unwrap_or(u64::MAX)
    }

    /// The reactor has closed a connection: what has not begun is over, or as the port's faults
    /// will have it; what is at a device ends there.
    pub(super) fn closed(&mut self, conn: ConnId, closed: Closed, now_ns: u64) {
        let port = self.connections.of(conn.0).port;
        let faults = self.ports[usize::from(port)].faults.faults();
        let outlives = faults.until_keep_alive && faults.late_writes_ns == 0;
        if outlives {
            self.note_keep_alive(conn);
        }
        let connection = self.connections.of(conn.0);
        connection.state = State::Gone;
        connection.transmit_named = false;
        self.log.push(Event::Closed {
            port,
            connection: conn.0,
            why: connection.why.unwrap_or(Why::Network(closed)),
        });
        let until_keep_alive = outlives && connection.is_lost();
        let stays = canary::has(Bug::CountedGone) && connection.why.is_some();
        if until_keep_alive {
            self.connections.rearm();
        }
        self.ports[usize::from(port)].stats.connections -= u32::from(!stays);
        self.subsystem
            .handle_closed(nvme::controller::ConnId(conn.0), now_ns);
        self.discard(conn.0, until_keep_alive, now_ns);
        // Messages about it that are still due must not reach the next of its number.
        self.outputs.retain(|output| match output {
            Output::Transmit(of) | Output::Resume(of) | Output::Close { conn: of, .. } => {
                *of != conn
            }
            _ => true,
        });
        self.free_if_over(conn.0);
    }

    /// A command of a connection that has not begun ends, or is late.
    fn discard(&mut self, number: u32, until_keep_alive: bool, now_ns: u64) {
        while let Some(slot) = self.pool.withdraw(number, &self.commands) {
            match self.commands[slot].stage {
                Stage::WaitsToRead => self.finish(slot, Status::SQ_DELETION, now_ns),
                // It never reached us: the subsystem releases it by itself.
                _ => self.commands[slot].stage = Stage::Receiving,
            }
        }
        self.withdraw(number, until_keep_alive, now_ns);
        if self.recalls.is_some() {
            let slots: Vec<u32> = self.commands.of_connection(number).collect();
            for slot in slots {
                self.recall(slot, Recall::Closed);
            }
        }
    }

    /// A connection's number is free when it is gone and its last command is released.
    pub(super) fn free_if_over(&mut self, number: u32) {
        let connection = self.connections.of(number);
        let is_over = connection.commands == 0 || canary::has(Bug::PlaceOfGone);
        if connection.state == State::Gone && is_over {
            connection.state = State::Free;
            self.connections.free.push(Reverse(number));
        }
    }

    /// Closes all connections in order, and then the target.
    pub(super) fn begin_stop(&mut self, now_ns: u64) {
        if self.stop == Stop::No {
            self.stop = Stop::Closing {
                until_ns: now_ns + TARGET_LINGER_NS,
            };
            self.connections
                .ids()
                .for_each(|id| self.close(id, Why::Stopping));
        }
    }

    /// When [`TargetEngine::press_on`] has something to do.
    pub(super) fn stop_ns(&self) -> Option<u64> {
        match self.stop {
            Stop::Closing { until_ns } | Stop::Aborting { until_ns } => Some(until_ns),
            Stop::No | Stop::Done => None,
        }
    }

    /// Ends the target when all have gone, or have had their time.
    #[inline]
    pub(super) fn press_on(&mut self, now_ns: u64) {
        if let Some(until_ns) = self.stop_ns() {
            self.press_on_by(until_ns, now_ns);
        }
    }

    fn press_on_by(&mut self, until_ns: u64, now_ns: u64) {
        let late = until_ns <= now_ns;
        let all_gone = self.connections.all.iter().all(|c| c.state == State::Free);
        if all_gone || late && matches!(self.stop, Stop::Aborting { .. }) {
            self.stop = Stop::Done;
            self.outputs.push_back(Output::Stop);
        } else if late {
            self.stop = Stop::Aborting {
                until_ns: now_ns + TARGET_LINGER_NS,
            };
            self.connections
                .ids()
                .for_each(|id| self.abort(id, Why::Stopping));
        }
    }

    pub(super) fn close(&mut self, conn: ConnId, why: Why) {
        let connection = self.connections.of(conn.0);
        if connection.state == State::Open {
            connection.why = Some(why);
            connection.state = State::Closing;
            self.outputs.push_back(Output::Close { conn, abort: false });
        }
    }

    pub(super) fn abort(&mut self, conn: ConnId, why: Why) {
        let connection = self.connections.of(conn.0);
        if connection.may_send() {
            connection.why.get_or_insert(why);
            connection.state = State::Aborted;
            self.outputs.push_back(Output::Close { conn, abort: true });
        }
    }
}
