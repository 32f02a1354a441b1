//! The course of a command: capsule, data, driver, response.
use super::connection::{Phase, Purpose, Sink, State};
use super::io::{Plan, Way};
use super::{Action, ControllerEvent, IoCommand, Subsystem, admin, io};
use crate::wire::log::ErrorEntry;
use crate::wire::pdu::PduError;
use crate::wire::sqe::FABRICS;
use crate::wire::{Sqe, Status};

impl Subsystem {
    /// A capsule arrived.
    #[inline]
    pub(super) fn command(&mut self, at: usize, entry: &[u8; 64], now_ns: u64) {
        let Ok(sqe) = Sqe::new(entry) else { return };
        let (connection, _) = self.connection(at);
        let Some(slot) = connection.take_slot(sqe.cid()) else {
            return self.overflow(at, now_ns);
        };
        let (phase, qid) = (connection.phase, connection.qid);
        if sqe.opcode() == FABRICS {
            self.fabrics_command(at, slot, &sqe, now_ns);
            self.rearm();
        } else if phase != Phase::Ready {
            self.respond(at, slot, Status::SEQUENCE_ERROR.with_dnr(), 0);
        } else if qid == 0 {
            self.admin_command(at, slot, &sqe, now_ns);
            self.rearm();
        } else {
            self.io_command(at, slot, &sqe);
        }
    }

    /// More commands than the queue holds: fatal, and the association ends (Base 2.0, 3.3.1.5).
    fn overflow(&mut self, at: usize, now_ns: u64) {
        let (connection, controller) = self.connection(at);
        if let Some(controller) = controller {
            controller.fail();
        }
        connection.refuse(PduError::SEQUENCE, &[]);
        self.fail(at, now_ns);
    }

    fn admin_command(&mut self, at: usize, slot: u16, sqe: &Sqe<'_>, now_ns: u64) {
        let (connection, controller) =
            Self::parts(&mut self.connections, &mut self.controllers, at);
        let (Some(controller), Some(index)) = (controller, connection.controller) else {
            return self.respond(at, slot, Status::SEQUENCE_ERROR.with_dnr(), 0);
        };
        if controller.discovery {
            controller.touch(now_ns);
        }
        connection.slots[slot].nsid = sqe.nsid();
        match admin::execute(&self.shared, controller, sqe, now_ns) {
            Err(status) => self.respond(at, slot, status, 0),
            Ok(admin::Answer::Done(result)) => self.respond(at, slot, Status::SUCCESS, result),
            Ok(admin::Answer::Page(page, len)) => {
                connection.slots[slot].page = page;
                connection.slots[slot].len = len;
                connection.queue(slot, State::SendPage, &mut self.events);
            }
            Ok(admin::Answer::Hold) => {
                controller.event_requests.push(slot);
                self.post_events(index);
            }
            Ok(admin::Answer::Abort { sqid, cid }) => {
                let aborted = sqid == 0 && self.abort_event_request(index, cid);
                // Bit 0: not aborted. Nothing else is ever taken back from the driver (T12).
                self.respond(at, slot, Status::SUCCESS, (!aborted).into());
            }
        }
    }

    #[inline]
    fn io_command(&mut self, at: usize, slot: u16, sqe: &Sqe<'_>) {
        let (connection, _) = Self::parts(&mut self.connections, &mut self.controllers, at);
        let capsule = connection.rx.capsule_data();
        let plan = io::check(&self.shared, connection.port, sqe, capsule);
        let command = &mut connection.slots[slot];
        match plan {
            Ok(plan) => {
                command.nsid = plan.nsid;
                command.slba = plan.slba;
                command.blocks = plan.blocks;
                command.len = plan.len;
                command.purpose = plan.purpose;
                self.begin(at, slot, &plan);
            }
            Err(status) => {
                // What the error log says of it.
                command.nsid = sqe.nsid();
                command.slba = sqe.slba();
                self.respond(at, slot, status, 0);
            }
        }
    }

    /// Gets a checked I/O command its data, or executes it.
    #[inline]
    fn begin(&mut self, at: usize, slot: u16, plan: &Plan) {
        if plan.hint {
            return self.respond(at, slot, Status::SUCCESS, 0);
        }
        match plan.way {
            Way::None | Way::ToHost => self.submit(at, slot, None),
            Way::FromHost | Way::InCapsule if plan.purpose.is_own() => {
                self.connection(at).0.slots[slot]
                    .own
                    .reserve_exact(plan.len as usize);
                self.receive_own(at, slot, plan.way);
            }
            Way::FromHost | Way::InCapsule => {
                let (connection, _) = self.connection(at);
                let conn = connection.id;
                let command = &mut connection.slots[slot];
                command.state = State::AwaitBuffer;
                command.named = true;
                let (token, len) = (slot.into(), plan.len);
                let in_capsule = plan.way == Way::InCapsule;
                if in_capsule {
                    connection.rx.route(Sink::Await(slot));
                }
                self.events.push(ControllerEvent::NeedBuffer {
                    conn,
                    token,
                    len,
                    in_capsule,
                });
            }
        }
    }

    /// Data of a command of the machine's own comes next, or is asked for.
    pub(super) fn receive_own(&mut self, at: usize, slot: u16, way: Way) {
        let (connection, _) = Self::parts(&mut self.connections, &mut self.controllers, at);
        if way == Way::InCapsule {
            connection.slots[slot].state = State::Receiving;
            connection.rx.route(Sink::Own(slot));
        } else {
            connection.queue(slot, State::SendR2t, &mut self.events);
        }
    }

    /// The driver has a buffer for a write. Late answers (the connection ended) change nothing.
    pub(super) fn buffer_is_ready(&mut self, at: usize, slot: u16) {
        let Some(connection) = self.connections[at].as_deref_mut() else {
            return;
        };
        let waits = connection
            .slots
            .get(slot)
            .is_some_and(|s| s.state == State::AwaitBuffer);
        if !waits || connection.phase != Phase::Ready {
            return;
        }
        if connection.rx.buffer_ready(slot) {
            connection.slots[slot].state = State::Receiving;
        } else {
            connection.queue(slot, State::SendR2t, &mut self.events);
        }
    }

    /// All data of a command is here.
    #[inline]
    pub(super) fn data_complete(&mut self, at: usize, slot: u16, now_ns: u64) {
        let command = &self.connection(at).0.slots[slot];
        if command.digest_failed {
            // Only this command, and it may be repeated (T17).
            return self.respond(at, slot, Status::TRANSIENT_TRANSPORT, 0);
        }
        match command.purpose {
            Purpose::Connect => self.connect(at, slot, now_ns),
            Purpose::Deallocate => match self.deallocation(at, slot) {
                Ok(action) => self.submit(at, slot, Some(action)),
                Err(status) => self.respond(at, slot, status, 0),
            },
            _ => self.submit(at, slot, None),
        }
    }

    /// The ranges of a Dataset Management, checked.
    fn deallocation(&mut self, at: usize, slot: u16) -> Result<Action, Status> {
        let (connection, _) = Self::parts(&mut self.connections, &mut self.controllers, at);
        let command = &connection.slots[slot];
        let namespace = self.shared.namespace(command.nsid);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        io::deallocate(namespace, command.blocks, &command.own)
    }

    /// Hands a command to the driver. `action`: where the entry alone doesn't say it.
    #[inline]
    fn submit(&mut self, at: usize, slot: u16, action: Option<Action>) {
        let (connection, controller) =
            Self::parts(&mut self.connections, &mut self.controllers, at);
        connection.backend += 1;
        if let Some(controller) = controller {
            controller.backend += 1;
        }
        let (conn, port) = (connection.id, connection.port);
        let command = &mut connection.slots[slot];
        command.state = State::Backend;
        command.named = true;
        let action = action.unwrap_or(match command.purpose {
            Purpose::Read => Action::Read,
            Purpose::Write { fua } => Action::Write { fua },
            Purpose::Compare => Action::Compare,
            Purpose::WriteZeroes { deallocate } => Action::WriteZeroes { deallocate },
            _ => Action::Flush,
        });
        self.events.push(ControllerEvent::Command(IoCommand {
            conn,
            token: slot.into(),
            port,
            nsid: command.nsid,
            slba: command.slba,
            blocks: command.blocks,
            action,
        }));
    }

    /// The driver has executed a command.
    #[inline]
    pub(super) fn executed(&mut self, at: usize, slot: u16, status: Status, now_ns: u64) {
        let (connection, controller) =
            Self::parts(&mut self.connections, &mut self.controllers, at);
        let phase = connection.phase;
        let live = connection.is_live();
        let command = &connection.slots[slot];
        assert!(
            command.state == State::Backend,
            "complete: the command isn't the driver's"
        );
        let (purpose, len) = (command.purpose, command.len);
        connection.backend -= 1;
        if let Some(controller) = controller {
            controller.backend -= 1;
            if controller.backend == 0 {
                controller.settle();
            }
            if status.is_success() {
                controller.counters.add(purpose, len);
            }
        }
        if live && purpose == Purpose::Read && status.is_success() {
            connection.queue(slot, State::SendData, &mut self.events);
        } else {
            self.respond(at, slot, status, 0);
        }
        match phase {
            Phase::Drain(_) => self.drained(at, now_ns),
            Phase::Gone => self.bury(at),
            _ => {}
        }
    }

    /// Answers a command; failures go to the error log.
    #[inline]
    pub(super) fn respond(&mut self, at: usize, slot: u16, status: Status, result: u64) {
        let (connection, controller) =
            Self::parts(&mut self.connections, &mut self.controllers, at);
        if let Some(controller) = controller.filter(|_| !status.is_success()) {
            let command = &connection.slots[slot];
            controller.errors.record(ErrorEntry {
                sqid: connection.qid,
                cid: command.cid,
                status_phase: status.0 << 1,
                parameter: 0xffff,
                lba: command.slba,
                nsid: command.nsid,
                // TCP.
                trtype: 3,
                ..ErrorEntry::default()
            });
        }
        connection.respond(slot, status, result, &mut self.events);
    }

    /// Posts what events there are to the requests there are.
    pub(super) fn post_events(&mut self, index: usize) {
        let Some((controller, admin, events)) = self.association(index) else {
            return;
        };
        while let Some((slot, event)) = controller.due_event() {
            admin.respond(slot, Status::SUCCESS, event.emit().into(), events);
        }
    }

    /// Aborts the event request with this identifier. `false`: there is none.
    fn abort_event_request(&mut self, index: usize, cid: u16) -> bool {
        let Some((controller, admin, events)) = self.association(index) else {
            return false;
        };
        let requests = &mut controller.event_requests;
        let found = requests
            .iter()
            .position(|&slot| admin.slots[slot].cid == cid);
        let Some(slot) = found.map(|found| requests.remove(found)) else {
            return false;
        };
        admin.respond(slot, Status::ABORT_REQUESTED, 0, events);
        true
    }

    /// A reset ends all event requests.
    pub(super) fn abort_event_requests(&mut self, index: usize) {
        let Some((controller, admin, events)) = self.association(index) else {
            return;
        };
        for slot in controller.event_requests.drain(..) {
            admin.respond(slot, Status::ABORT_REQUESTED, 0, events);
        }
    }

    /// Makes and sends the data of an admin command whose turn has come.
    pub(super) fn send_page(&mut self, at: usize, slot: u16, out: &mut alloc::vec::Vec<u8>) {
        let (connection, controller) =
            Self::parts(&mut self.connections, &mut self.controllers, at);
        let command = &mut connection.slots[slot];
        let (Some(controller), Some(index)) = (controller, connection.controller) else {
            // The controller is gone, and what it would have said with it.
            command.status = Status::SQ_DELETION;
            command.state = State::SendResponse;
            return;
        };
        admin::page(
            &self.shared,
            controller,
            command.page,
            command.len,
            &mut self.scratch,
        );
        connection.send_page(slot, &self.scratch, out, &mut self.events);
        self.post_events(index);
    }
}
