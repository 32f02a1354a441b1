//! The lives of connections: accepted, open, closing, gone, and only then free again.
use super::commands::Stage;
use super::{TargetEngine, commands};
use crate::limits::TARGET_LINGER_NS;
use crate::machine::{ConnId, Output};
use alloc::vec::Vec;
use nvme::controller::CloseReason;
use nvme::wire::Status;

/// All connections by number.
pub(super) struct Connections {
    all: Vec<Connection>,
}

/// One connection.
#[derive(Clone)]
pub(super) struct Connection {
    state: State,
    /// Its port (index).
    pub(super) port: u16,
    /// Commands not yet released.
    pub(super) commands: u32,
    /// An `Output::Transmit` for it is queued.
    pub(super) transmit_named: bool,
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
    /// Nobody has asked.
    No,
    /// Connections are closing in order; at that time they are cut off.
    Closing { until_ns: u64 },
    /// They were cut off; at that time it ends, whatever a device still does.
    Aborting { until_ns: u64 },
    /// `Output::Stop` is out.
    Done,
}

impl Connections {
    pub(super) fn new(connections: u32) -> Self {
        let free = Connection {
            state: State::Free,
            port: 0,
            commands: 0,
            transmit_named: false,
        };
        Connections {
            all: alloc::vec![free; connections as usize],
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.all.len() as u32
    }

    pub(super) fn is_open(&self, conn: ConnId) -> bool {
        self.all[conn.0 as usize].state == State::Open
    }

    pub(super) fn of(&mut self, number: u32) -> &mut Connection {
        &mut self.all[number as usize]
    }

    fn ids(&self) -> impl Iterator<Item = ConnId> + use<> {
        (0..self.count()).map(ConnId)
    }
}

impl TargetEngine {
    pub(super) fn accept(&mut self, port: u16, now_ns: u64) -> Option<ConnId> {
        if self.stop != Stop::No || usize::from(port) >= self.ports.len() {
            return None;
        }
        let mut ids = self.connections.ids();
        let id = ids.find(|id| self.connections.of(id.0).state == State::Free)?;
        let opened = self
            .subsystem
            .open(nvme::controller::ConnId(id.0), port, now_ns);
        opened.ok()?;
        let connection = self.connections.of(id.0);
        connection.state = State::Open;
        connection.port = port;
        self.ports[usize::from(port)].stats.connections += 1;
        Some(id)
    }

    /// The subsystem wants a connection closed.
    pub(super) fn close_for(&mut self, conn: ConnId, reason: CloseReason) {
        if self.connections.is_open(conn) {
            let port = usize::from(self.connections.of(conn.0).port);
            match reason {
                CloseReason::Protocol => self.ports[port].stats.protocol_errors += 1,
                CloseReason::KeepAlive => self.ports[port].stats.keep_alive_expired += 1,
                _ => {}
            }
        }
        if reason.is_abortive() {
            self.abort(conn);
        } else {
            self.close(conn);
        }
    }

    /// Drops every connection of a port with a reset.
    pub(super) fn drop_port(&mut self, port: u16) {
        for id in self.connections.ids() {
            if self.connections.of(id.0).port == port {
                self.abort(id);
            }
        }
    }

    /// The reactor has closed a connection: what has not begun is over, what is at a device ends there.
    pub(super) fn closed(&mut self, conn: ConnId, now_ns: u64) {
        let connection = self.connections.of(conn.0);
        connection.state = State::Gone;
        connection.transmit_named = false;
        let port = usize::from(connection.port);
        self.ports[port].stats.connections -= 1;
        self.subsystem
            .handle_closed(nvme::controller::ConnId(conn.0), now_ns);
        while let Some(slot) = self.pool.withdraw(conn.0, &self.commands) {
            match self.commands[slot].stage {
                Stage::WaitsToRead => self.finish(slot, Status::SQ_DELETION, now_ns),
                // It never reached us: the subsystem releases it by itself.
                _ => self.commands[slot].stage = Stage::Receiving,
            }
        }
        let mut withdrawn = commands::Queue::EMPTY;
        self.ports[port].withdraw(|slot| {
            let leaves = self.commands[slot].connection == conn.0;
            if leaves {
                withdrawn.push(slot, &mut self.commands);
            }
            leaves
        });
        while let Some(slot) = withdrawn.pop(&self.commands) {
            self.finish(slot, Status::SQ_DELETION, now_ns);
        }
        // What is still to be said of it must not reach the next of its number.
        self.outputs.retain(|output| match output {
            Output::Transmit(of) | Output::Resume(of) | Output::Close { conn: of, .. } => {
                *of != conn
            }
            _ => true,
        });
        self.free_if_over(conn.0);
    }

    /// A connection's number is free when it is gone and its last command is released.
    pub(super) fn free_if_over(&mut self, number: u32) {
        let connection = self.connections.of(number);
        if connection.state == State::Gone && connection.commands == 0 {
            connection.state = State::Free;
        }
    }

    /// Closes all connections in order, and then the target.
    pub(super) fn begin_stop(&mut self, now_ns: u64) {
        if self.stop == Stop::No {
            self.stop = Stop::Closing {
                until_ns: now_ns + TARGET_LINGER_NS,
            };
            self.connections.ids().for_each(|id| self.close(id));
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
    pub(super) fn press_on(&mut self, now_ns: u64) {
        let (Stop::Closing { until_ns } | Stop::Aborting { until_ns }) = self.stop else {
            return;
        };
        let late = until_ns <= now_ns;
        let all_gone = self.connections.all.iter().all(|c| c.state == State::Free);
        if all_gone || late && matches!(self.stop, Stop::Aborting { .. }) {
            self.stop = Stop::Done;
            self.outputs.push_back(Output::Stop);
        } else if late {
            self.stop = Stop::Aborting {
                until_ns: now_ns + TARGET_LINGER_NS,
            };
            self.connections.ids().for_each(|id| self.abort(id));
        }
    }

    fn close(&mut self, conn: ConnId) {
        let connection = self.connections.of(conn.0);
        if connection.state == State::Open {
            connection.state = State::Closing;
            self.outputs.push_back(Output::Close { conn, abort: false });
        }
    }

    fn abort(&mut self, conn: ConnId) {
        let connection = self.connections.of(conn.0);
        if matches!(connection.state, State::Open | State::Closing) {
            connection.state = State::Aborted;
            self.outputs.push_back(Output::Close { conn, abort: true });
        }
    }
}
