//! Faults carried out: what the engine does where a port's [`Injector`](super::faults::Injector)
//! says.
use super::commands::{Queue, Stage};
use super::log::Why;
use super::{Faults, TargetEngine};
use crate::machine::{ConnId, Output};
use alloc::vec::Vec;
use nvme::wire::Status;

impl TargetEngine {
    /// Other faults of a port, in force at once: what was held may go on.
    pub(super) fn change_faults(&mut self, port: u16, mut faults: Faults, now_ns: u64) {
        let port = usize::from(port);
        if port >= self.ports.len() {
            return;
        }
        let was_mute = self.ports[port].faults.faults().mute_until_ns != 0;
        if was_mute && faults.mute_until_ns == 0 {
            faults.mute_until_ns = now_ns; // ends now
        }
        self.ports[port].faults.configure(faults);
        self.faults_timeout(port, now_ns);
    }

    /// A command arrived, by chance the last of its connection.
    pub(super) fn maybe_drop(&mut self, port: usize, connection: u32) {
        let conn = ConnId(connection);
        if self.connections.is_open(conn) && self.ports[port].faults.drops() {
            self.ports[port].stats.faults.drops += 1;
            self.abort(conn, Why::Dropped);
        }
    }

    /// A command may begin, as far as its shape is concerned. True: a fault has taken it.
    pub(super) fn intercept(&mut self, port: usize, slot: u32, now_ns: u64) -> bool {
        let injector = &mut self.ports[port].faults;
        let command = &self.commands[slot];
        if command.is_change() && injector.holds(now_ns) {
            self.commands[slot].stage = Stage::Held;
            injector.held.push(slot, &mut self.commands);
            self.ports[port].stats.faults.held_writes += 1;
            return true;
        }
        if injector.hangs() {
            self.commands[slot].stage = Stage::Hung;
            injector.hung.push(slot, &mut self.commands);
            self.ports[port].stats.faults.hung += 1;
            return true;
        }
        if let Some(status) = injector.error(command) {
            self.ports[port].stats.faults.errors += 1;
            self.finish(slot, status, now_ns);
            return true;
        }
        if self.connections.is_gone(command.connection) {
            self.ports[port].stats.faults.outlived_writes += 1;
        }
        false
    }

    /// Takes what has not begun of a connection that is gone out of its port: it ends, or is late.
    /// With `until_keep_alive`, writes stay where they are.
    pub(super) fn withdraw(&mut self, connection: u32, until_keep_alive: bool, now_ns: u64) {
        let port = usize::from(self.connections.of(connection).port);
        let mut withdrawn = Queue::EMPTY;
        if !until_keep_alive {
            self.withdraw_ordered(connection, &mut withdrawn);
        }
        let mut held = core::mem::replace(&mut self.ports[port].faults.held, Queue::EMPTY);
        while let Some(slot) = held.pop(&self.commands) {
            let leaves = self.commands[slot].connection == connection && !until_keep_alive;
            let queue = match leaves {
                true => &mut withdrawn,
                false => &mut self.ports[port].faults.held,
            };
            queue.push(slot, &mut self.commands);
        }
        let mut hung = core::mem::replace(&mut self.ports[port].faults.hung, Queue::EMPTY);
        while let Some(slot) = hung.pop(&self.commands) {
            let queue = match self.commands[slot].connection == connection {
                true => &mut withdrawn,
                false => &mut self.ports[port].faults.hung,
            };
            queue.push(slot, &mut self.commands);
        }
        self.ports[port].withdraw(|slot| {
            let command = &self.commands[slot];
            let leaves =
                command.connection == connection && !(until_keep_alive && command.is_change());
            if leaves {
                withdrawn.push(slot, &mut self.commands);
            }
            leaves
        });
        let late = self.ports[port].faults.faults().late_writes_ns > 0;
        while let Some(slot) = withdrawn.pop(&self.commands) {
            if late && !until_keep_alive && self.commands[slot].is_change() {
                self.make_late(port, slot, now_ns);
            } else {
                self.finish(slot, Status::SQ_DELETION, now_ns);
            }
        }
    }

    /// Takes a connection's commands that wait for changes that they overlap out of the order.
    fn withdraw_ordered(&mut self, connection: u32, withdrawn: &mut Queue) {
        if self.order.is_empty() {
            return;
        }
        let of = self.commands.of_connection(connection);
        let slots: Vec<_> = of
            .filter(|&slot| self.commands[slot].stage == Stage::Ordered)
            .collect();
        for slot in slots {
            self.leave_order(slot);
            withdrawn.push(slot, &mut self.commands);
        }
    }

    fn make_late(&mut self, port: usize, slot: u32, now_ns: u64) {
        let injector = &mut self.ports[port].faults;
        let command = &mut self.commands[slot];
        (command.stage, command.due_ns) = (Stage::Late, injector.late_due_ns(now_ns));
        injector.late.push(slot, &mut self.commands);
    }

    /// Before the subsystem forgets a controller: until when its connections' writes go on.
    pub(super) fn note_keep_alive(&mut self, conn: ConnId) {
        let conn = nvme::controller::ConnId(conn.0);
        let Some(expires_ns) = self.subsystem.keep_alive_expires_ns(conn) else {
            return;
        };
        let cntlid = |of| {
            let mut all = self.subsystem.connections();
            all.find(|status| status.conn == of)?.cntlid
        };
        let controller = cntlid(conn);
        for status in self.subsystem.connections() {
            if status.cntlid.is_some() && status.cntlid == controller {
                self.connections.of(status.conn.0).expires_ns = expires_ns;
            }
        }
    }

    /// Keep-alive of connections that are gone has expired: what still has not begun never will.
    pub(super) fn expire_gone(&mut self, now_ns: u64) {
        if self
            .connections
            .expires_ns()
            .is_none_or(|first| first > now_ns)
        {
            return;
        }
        for id in self.connections.ids() {
            if self.connections.is_gone(id.0) && self.connections.of(id.0).expires_ns <= now_ns {
                self.connections.of(id.0).expires_ns = u64::MAX;
                self.withdraw(id.0, false, now_ns);
                self.free_if_over(id.0);
            }
        }
        self.connections.rearm();
    }

    /// A time of a port's faults may have come.
    pub(super) fn faults_timeout(&mut self, port: usize, now_ns: u64) {
        if self.ports[port].faults.faults().hold_writes_until_ns <= now_ns {
            let mut held = core::mem::replace(&mut self.ports[port].faults.held, Queue::EMPTY);
            while let Some(slot) = held.pop(&self.commands) {
                self.begin(port, slot, now_ns);
            }
        }
        while let Some(slot) = self.ports[port].faults.late.first() {
            if self.commands[slot].due_ns > now_ns {
                break;
            }
            self.ports[port].faults.late.pop(&self.commands);
            self.ports[port].stats.faults.late_writes += 1;
            self.next_request(slot, now_ns);
        }
        if self.ports[port].faults.ends_mute(now_ns) {
            for conn in self.connections.ids() {
                let connection = self.connections.of(conn.0);
                if usize::from(connection.port) == port && connection.may_send() {
                    self.name_transmit(conn.0);
                }
            }
        }
    }

    /// When [`Self::faults_timeout`] or [`Self::expire_gone`] has something to do.
    pub(super) fn faults_timeout_ns(&self) -> Option<u64> {
        let ports = self.ports.iter().filter_map(|port| {
            let late = port.faults.late.first();
            let late = late.map(|slot| self.commands[slot].due_ns);
            late.into_iter().chain(port.faults.timeout_ns()).min()
        });
        ports.chain(self.connections.expires_ns()).min()
    }

    /// Asks for a connection's transmission, once until it is polled.
    pub(super) fn name_transmit(&mut self, connection: u32) {
        let of = self.connections.of(connection);
        if !of.transmit_named {
            of.transmit_named = true;
            self.outputs.push_back(Output::Transmit(ConnId(connection)));
        }
    }
}
