//! How queues, associations and connections end, in order or not, and the clocks that see to it.
use super::association::Controller;
use super::commands::Work;
use super::connection::Phase;
use super::{CloseReason, ControllerEvent, Subsystem};
use crate::limits::LINGER_NS;
use crate::wire::Status;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Subsystem {
    /// The host broke the protocol on this connection; its TermReq is queued.
    pub(super) fn fail(&mut self, at: usize, now_ns: u64) {
        self.end(at, CloseReason::Protocol, now_ns);
        let work = self.work(at);
        work.connection.kick_own(work.events);
    }

    /// Ends a connection, and with an admin connection the whole association (Base 2.0, 3.3.2.2).
    pub(super) fn end(&mut self, at: usize, reason: CloseReason, now_ns: u64) {
        let rest = match reason {
            CloseReason::KeepAlive | CloseReason::Finished => reason,
            _ => CloseReason::AssociationLost,
        };
        self.detach(at, rest, now_ns);
        self.close(at, reason, now_ns);
        self.rearm();
    }

    /// Tells the driver to close, once.
    fn close(&mut self, at: usize, reason: CloseReason, now_ns: u64) {
        let Work {
            connection, events, ..
        } = self.work(at);
        if connection.is_live() {
            connection.closing(now_ns.saturating_add(LINGER_NS));
            let conn = connection.id;
            events.push(ControllerEvent::Close { conn, reason });
        }
    }

    /// Takes a connection out of its controller. Without its admin connection a controller is over:
    /// its other connections are closed for `reason`.
    pub(super) fn detach(&mut self, at: usize, reason: CloseReason, now_ns: u64) {
        let work = self.work(at);
        let (Some(index), Some(controller)) = (work.connection.controller, work.controller) else {
            return;
        };
        if controller.admin == at {
            self.controllers[index] = None;
            for other in 0..self.connections.len() {
                let Some(connection) = self.connections[other].as_deref_mut() else {
                    continue;
                };
                if connection.controller == Some(index) {
                    connection.controller = None;
                    if other != at {
                        self.close(other, reason, now_ns);
                    }
                }
            }
        } else if let Some(queue) = controller.io.iter_mut().find(|queue| **queue == Some(at)) {
            *queue = None;
        }
    }

    /// Reset or shutdown: the I/O queues of a controller are deleted.
    pub(super) fn close_io_queues(&mut self, index: usize, now_ns: u64) {
        let Some(controller) = self.controllers[index].as_deref() else {
            return;
        };
        let queues: Vec<usize> = controller.io.iter().flatten().copied().collect();
        for at in queues {
            self.end(at, CloseReason::Finished, now_ns);
        }
    }

    /// Nothing of a disconnected queue may be with the driver any more: then Disconnect is answered
    /// and the connection ends.
    pub(super) fn drained(&mut self, at: usize, now_ns: u64) {
        let mut work = self.work(at);
        if let Phase::Drain(slot) = work.connection.phase
            && work.connection.backend == 0
        {
            work.respond(slot, Status::SUCCESS, 0);
            self.end(at, CloseReason::Finished, now_ns);
        }
    }

    /// Forgets a connection that is gone and of which nothing is left.
    pub(super) fn bury(&mut self, at: usize) {
        let place = &mut self.connections[at];
        if place
            .as_ref()
            .is_some_and(|c| c.phase == Phase::Gone && c.slots.is_idle())
        {
            *place = None;
        }
    }

    /// Gives a controller a place. There is room for as many as there are connections.
    pub(super) fn insert_controller(&mut self, controller: Controller) -> usize {
        let controller = Some(Box::new(controller));
        match self.controllers.iter().position(Option::is_none) {
            Some(index) => {
                self.controllers[index] = controller;
                index
            }
            None => {
                self.controllers.push(controller);
                self.controllers.len() - 1
            }
        }
    }

    /// Finds the earliest deadline anew. Called where one may have changed: never on the I/O path.
    pub(super) fn rearm(&mut self) {
        let connections = self.connections.iter().flatten().map(|c| c.deadline_ns);
        let controllers = self.controllers.iter().flatten().map(|c| c.deadline_ns);
        self.timeout_ns = connections.chain(controllers).min().unwrap_or(u64::MAX);
    }

    /// Ends what has reached its deadline.
    pub(super) fn expire(&mut self, now_ns: u64) {
        for index in 0..self.controllers.len() {
            let Some(controller) = self.controllers[index].as_deref_mut() else {
                continue;
            };
            if controller.deadline_ns > now_ns {
                continue;
            }
            let reason = match (controller.keeps_alive(), controller.cc.en()) {
                (true, _) => CloseReason::KeepAlive,
                (false, false) if controller.cc.0 == 0 => CloseReason::Handshake,
                _ => CloseReason::Finished,
            };
            let admin = controller.admin;
            self.end(admin, reason, now_ns);
        }
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections[at].as_deref_mut() else {
                continue;
            };
            if connection.deadline_ns > now_ns {
                continue;
            }
            if connection.is_live() {
                self.end(at, CloseReason::Handshake, now_ns);
            } else {
                connection.deadline_ns = u64::MAX;
                let (conn, reason) = (connection.id, CloseReason::Linger);
                self.events.push(ControllerEvent::Close { conn, reason });
            }
        }
        self.rearm();
    }
}
