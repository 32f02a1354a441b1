//! The ends of queues, associations and connections, in order or not, and their timers.
use super::association::Controller;
use super::commands::Work;
use super::connection::{Connection, Phase};
use super::{CloseReason, ControllerEvent, Subsystem};
use crate::limits::{IDLE_NS, IDLE_WANTED_NS, LINGER_NS};
use crate::wire::Status;
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Subsystem {
    /// The host broke the protocol on this connection, or a header was damaged in transit; its
    /// TermReq is queued.
    pub(super) fn fail(&mut self, at: usize, now_ns: u64) {
        let reason = if self.work(at).connection.damaged {
            CloseReason::Damaged
        } else {
            CloseReason::Protocol
        };
        self.end(at, reason, now_ns);
        let work = self.work(at);
        work.connection.kick_own(work.events);
    }

    /// Ends a connection, and with an admin connection the whole association (Base 2.0, 3.3.2.2).
    pub(super) fn end(&mut self, at: usize, reason: CloseReason, now_ns: u64) {
        let rest = match reason {
            CloseReason::KeepAlive | CloseReason::Finished | CloseReason::NotAdmitted => reason,
            _ => CloseReason::AssociationLost,
        };
        self.detach(at, rest, now_ns);
        self.close(at, reason, now_ns);
        self.rearm(at);
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
            self.rearm(at);
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
            let mut others = controller.members - 1;
            work.connection.controller = None;
            if let Some(controller) = self.controllers[index].take() {
                self.note_departed(&controller);
            }
            self.deadlines.set(index, u64::MAX);
            for other in 0..self.connections.len() {
                if others == 0 {
                    break;
                }
                let Some(connection) = self.connections[other].as_deref_mut() else {
                    continue;
                };
                if connection.controller == Some(index) {
                    connection.controller = None;
                    others -= 1;
                    self.close(other, reason, now_ns);
                }
            }
            assert!(
                others == 0,
                "controller {index} has members without a connection"
            );
        } else if let Some(queue) = controller.io.iter_mut().find(|queue| **queue == Some(at)) {
            *queue = None;
        }
    }

    /// Reset or shutdown: the I/O queues of a controller are deleted.
    pub(super) fn close_io_queues(&mut self, index: usize, now_ns: u64) {
        let queues = self.controller(index).io.iter().flatten();
        let queues: Vec<usize> = queues.copied().collect();
        for at in queues {
            self.end(at, CloseReason::Finished, now_ns);
        }
    }

    /// Answers Disconnect and ends the connection once the driver has no command of the queue.
    pub(super) fn drained(&mut self, at: usize, now_ns: u64) {
        let mut work = self.work(at);
        if let Phase::Drain(slot) = work.connection.phase
            && work.connection.backend == 0
        {
            work.respond(slot, Status::SUCCESS, 0);
            self.end(at, CloseReason::Finished, now_ns);
        }
    }

    /// Drops a connection that is gone and has no slot in use.
    pub(super) fn remove_if_over(&mut self, at: usize) {
        let is_over = |c: &mut Box<Connection>| c.phase == Phase::Gone && c.slots.is_idle();
        let Some(connection) = self.connections[at].take_if(is_over) else {
            return;
        };
        self.entries -= usize::from(connection.entries);
        if let Some(index) = connection.controller {
            let Some(controller) = self.controllers[index].as_deref_mut() else {
                unreachable!("connection {at} names a controller that has ended");
            };
            controller.members -= 1;
        }
    }

    /// Stores a controller. There is room for as many as there are connections.
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

    /// Updates the deadlines of a connection and its controller. Called where one may have changed:
    /// never on the I/O path.
    pub(super) fn rearm(&mut self, at: usize) {
        let Some(connection) = self.connections[at].as_deref() else {
            return;
        };
        let controllers = self.connections.len();
        self.deadlines.set(controllers + at, connection.deadline_ns);
        if let Some(index) = connection.controller {
            let due_ns = self.controller(index).deadline_ns;
            self.deadlines.set(index, due_ns);
        }
    }

    /// Ends everything whose deadline has come.
    pub(super) fn expire(&mut self, now_ns: u64) {
        while let Some(owner) = self.deadlines.due(now_ns) {
            // The handler sets the next deadline, if there is one.
            self.deadlines.set(owner, u64::MAX);
            match owner.checked_sub(self.connections.len()) {
                None => self.expire_controller(owner, now_ns),
                Some(at) => self.expire_connection(at, now_ns),
            }
        }
    }

    /// Makes room for a host that finds no place. Of the associations that are not enabled, or were
    /// shut down, the one idle for longest is ended, if that is longer than any working host needs.
    /// Its host may have vanished, and no keep-alive timer runs.
    ///
    /// A flood of such hosts does not search all associations each time: none can be idle for that
    /// long before the one that is longest now, or one that becomes idle now.
    pub fn make_room(&mut self, now_ns: u64) {
        if now_ns < self.room_from_ns {
            return;
        }
        let since_ns = |it: &Controller| it.deadline_ns.saturating_sub(IDLE_NS);
        let all = self.controllers.iter().enumerate();
        let silent = all.filter_map(|(at, it)| Some((at, it.as_deref()?)));
        let silent = silent.filter(|(_, it)| !it.is_ready());
        let mut longest: Option<(usize, u64)> = None;
        let mut first_ns = now_ns;
        for (index, it) in silent {
            first_ns = first_ns.min(since_ns(it));
            if it.backend == 0 && longest.is_none_or(|(_, of)| since_ns(it) <= of) {
                longest = Some((index, since_ns(it)));
            }
        }
        match longest {
            Some((index, since_ns)) if now_ns.saturating_sub(since_ns) >= IDLE_WANTED_NS => {
                self.expire_controller(index, now_ns);
            }
            _ => self.room_from_ns = first_ns.saturating_add(IDLE_WANTED_NS),
        }
    }

    /// Ends the associations of hosts that may not connect any more. Discovery is open to all.
    pub fn disconnect_hosts(&mut self, now_ns: u64) {
        for index in 0..self.controllers.len() {
            let of = self.controllers[index].as_deref();
            let of = of.filter(|it| !it.discovery && !self.shared.admits(&it.hostnqn));
            if let Some(admin) = of.map(|it| it.admin) {
                self.end(admin, CloseReason::NotAdmitted, now_ns);
            }
        }
    }

    fn expire_controller(&mut self, index: usize, now_ns: u64) {
        let controller = self.controller(index);
        let reason = match (controller.keeps_alive(), controller.cc.en()) {
            (true, _) => CloseReason::KeepAlive,
            (false, false) if controller.cc.0 == 0 => CloseReason::Handshake,
            _ => CloseReason::Finished,
        };
        let admin = controller.admin;
        self.end(admin, reason, now_ns);
    }

    fn expire_connection(&mut self, at: usize, now_ns: u64) {
        let connection = self.work(at).connection;
        if connection.is_live() {
            self.end(at, CloseReason::Handshake, now_ns);
        } else {
            connection.deadline_ns = u64::MAX;
            let (conn, reason) = (connection.id, CloseReason::Linger);
            self.events.push(ControllerEvent::Close { conn, reason });
        }
    }
}
