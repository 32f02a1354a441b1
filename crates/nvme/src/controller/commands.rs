//! The life of a command: capsule, data, driver, response.
use super::association::Controller;
use super::config::Shared;
use super::connection::{Connection, DataState, Events, Page, Phase, Purpose, Sink, State};
use super::io::Way;
use super::{Action, ControllerEvent, IoCommand, Subsystem, admin, io};
use crate::limits::RANGES_UNDER_WAY_MAX;
use crate::wire::log::ErrorEntry;
use crate::wire::pdu::PduError;
use crate::wire::sqe::FABRICS;
use crate::wire::{Sqe, Status};
use alloc::vec::Vec;

/// Rest of an admin command that concerns other connections, or the driver.
enum Later {
    /// An I/O command is to be aborted: its queue, and its identifier there.
    Abort { sqid: u16, cid: u16 },
    /// It is Get LBA Status.
    Allocation,
}

/// One connection and everything that its commands need.
pub(super) struct Work<'a> {
    pub shared: &'a Shared,
    pub connection: &'a mut Connection,
    pub controller: Option<&'a mut Controller>,
    pub events: &'a mut Events,
    pub scratch: &'a mut Vec<u8>,
}

impl Subsystem {
    /// Handles a capsule that [`Work::io_capsule`] did not take.
    #[cold]
    pub(super) fn command(&mut self, at: usize, now_ns: u64) {
        let mut work = self.work(at);
        let entry = *work.connection.rx.entry();
        let sqe = Sqe::of(&entry);
        let Some(slot) = work.connection.take_slot(sqe.cid()) else {
            return self.overflow(at, now_ns);
        };
        if sqe.opcode() == FABRICS {
            self.fabrics_command(at, slot, &sqe, now_ns);
        } else {
            match work.admin_command(slot, &sqe, now_ns) {
                Some(Later::Abort { sqid, cid }) => self.abort_io(at, slot, sqid, cid),
                Some(Later::Allocation) => self.begin_allocation(at, slot, &sqe),
                None => {}
            }
        }
        self.rearm(at);
    }

    /// More commands than the queue holds: fatal, and the association ends (Base 2.0, 3.3.1.5).
    fn overflow(&mut self, at: usize, now_ns: u64) {
        let work = self.work(at);
        if let Some(controller) = work.controller {
            controller.fail();
        }
        work.connection.refuse(PduError::SEQUENCE, &[]);
        self.fail(at, now_ns);
    }

    /// All data of a command has arrived, with bytes that are not payload.
    pub(super) fn data_complete(&mut self, at: usize, slot: u16, now_ns: u64) {
        if !self.work(at).data_complete(slot) {
            self.connect(at, slot, now_ns);
        }
    }

    /// The driver has executed a command.
    #[inline]
    pub(super) fn executed(&mut self, at: usize, slot: u16, status: Status, now_ns: u64) {
        let mut work = self.work(at);
        work.executed(slot, status);
        match work.connection.phase {
            Phase::Drain(_) => self.drained(at, now_ns),
            Phase::Gone => self.remove_if_over(at),
            _ => {}
        }
    }

    /// Posts the pending events of a controller, as far as there are requests.
    pub(super) fn post_events(&mut self, index: usize) {
        let admin = self.controller(index).admin;
        self.work(admin).post_events();
    }
}

impl Work<'_> {
    /// Handles a command of the admin queue, or one before Connect, as far as it concerns nothing
    /// but its own connection and controller. Returns the rest.
    fn admin_command(&mut self, slot: u16, sqe: &Sqe<'_>, now_ns: u64) -> Option<Later> {
        let Some(controller) = self.controller.as_deref_mut() else {
            self.respond(slot, Status::SEQUENCE_ERROR.with_dnr(), 0);
            return None;
        };
        if controller.discovery {
            controller.touch(now_ns);
        }
        let command = &mut self.connection.slots[slot];
        command.nsid = sqe.nsid();
        match admin::execute(self.shared, controller, sqe, now_ns) {
            Err(status) => self.respond(slot, status, 0),
            Ok(admin::Answer::Done(result)) => self.respond(slot, Status::SUCCESS, result),
            Ok(admin::Answer::Page(page, len)) => {
                command.page = page;
                command.len = len;
                command.status = Status::SUCCESS;
                command.result = 0;
                self.connection.queue(slot, State::SendPage, self.events);
            }
            Ok(admin::Answer::Hold) => {
                controller.event_requests.push(slot);
                self.post_events();
            }
            Ok(admin::Answer::Abort { sqid: 0, cid }) => {
                let aborted = self.abort_event_request(cid);
                // Bit 0: not aborted.
                self.respond(slot, Status::SUCCESS, (!aborted).into());
            }
            Ok(admin::Answer::Abort { sqid, cid }) => return Some(Later::Abort { sqid, cid }),
            Ok(admin::Answer::Allocation) => return Some(Later::Allocation),
        }
        None
    }

    /// A capsule arrived: takes it if it is an I/O command and there is room for it.
    #[inline]
    pub fn io_capsule(&mut self) -> bool {
        let connection = &mut *self.connection;
        let sqe = Sqe::of(connection.rx.entry());
        // Only a queue that is connected has a number.
        if connection.qid == 0 || sqe.opcode() == FABRICS {
            return false;
        }
        let (cid, capsule) = (sqe.cid(), connection.rx.capsule_data());
        let Some(slot) = connection.take_slot(cid) else {
            return false;
        };
        // Taking it needs all of the connection.
        let sqe = Sqe::of(connection.rx.entry());
        let command = &mut connection.slots[slot];
        match io::check(self.shared, connection.port, &sqe, capsule, command) {
            Ok(way) => {
                if let Some(controller) = self.controller.as_deref_mut() {
                    controller.note_known(command.nsid);
                }
                self.begin(slot, way);
            }
            Err(status) => self.respond(slot, status, 0),
        }
        true
    }

    /// Receives the data of a checked I/O command, or executes it.
    #[inline]
    fn begin(&mut self, slot: u16, way: Way) {
        let command = &mut self.connection.slots[slot];
        match way {
            Way::Hint => self.leave(slot),
            Way::None | Way::ToHost => {
                let action = command.purpose.action();
                self.submit(slot, action);
            }
            Way::FromHost | Way::InCapsule if command.purpose.is_own() => {
                let is_too_much = command.purpose == Purpose::Deallocate
                    && self.connection.slots.ranges() > RANGES_UNDER_WAY_MAX;
                if is_too_much {
                    return self.leave(slot);
                }
                // Its buffer is allocated at the first byte.
                self.receive_own(slot, way);
            }
            Way::FromHost | Way::InCapsule => {
                let len = command.len;
                command.state = State::AwaitBuffer;
                command.named = true;
                let in_capsule = way == Way::InCapsule;
                if in_capsule {
                    self.connection.rx.route(Sink::Await(slot));
                }
                let (conn, token) = (self.connection.id, slot.into());
                self.events.push(ControllerEvent::NeedBuffer {
                    conn,
                    token,
                    len,
                    in_capsule,
                });
            }
        }
    }

    /// Answers a command whose data can't be used.
    #[cold]
    fn refuse_data(&mut self, slot: u16) {
        let status = match self.connection.slots[slot].data {
            DataState::Good => unreachable!("the data of command {slot} can be used"),
            // Only this command fails, and the host may repeat it (T17).
            DataState::Damaged => Status::TRANSIENT_TRANSPORT,
            DataState::Outdated => Status::INVALID_NAMESPACE.with_dnr(),
        };
        self.respond(slot, status, 0);
    }

    /// Answers a Dataset Management without executing it: it is a hint (NVM command set 1.0,
    /// 3.2.3).
    #[cold]
    fn leave(&mut self, slot: u16) {
        self.connection.slots[slot].blocks = 0; // it holds no ranges
        self.respond(slot, Status::SUCCESS, 0);
    }

    /// Data of a command of the machine's own comes next, or is requested.
    pub fn receive_own(&mut self, slot: u16, way: Way) {
        if way == Way::InCapsule {
            self.connection.slots[slot].state = State::Receiving;
            self.connection.rx.route(Sink::Own(slot));
        } else {
            self.connection.queue(slot, State::SendR2t, self.events);
        }
    }

    /// All data of a command has arrived: executes it. `false`: it is a Connect, which concerns
    /// more than its own connection.
    #[inline(always)] // of each write
    pub fn data_complete(&mut self, slot: u16) -> bool {
        let command = &self.connection.slots[slot];
        match command.purpose {
            _ if command.data != DataState::Good => self.refuse_data(slot),
            Purpose::Connect => return false,
            Purpose::Deallocate => match self.check_ranges(slot) {
                Ok(()) => self.submit(slot, Action::Deallocate),
                Err(status) => self.respond(slot, status, 0),
            },
            purpose => self.submit(slot, purpose.action()),
        }
        true
    }

    /// Checks the ranges of a Dataset Management; they stay in their slot until they are taken.
    #[cold]
    fn check_ranges(&self, slot: u16) -> Result<(), Status> {
        let command = &self.connection.slots[slot];
        let namespace = self.shared.namespace(command.nsid);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        io::check_ranges(namespace, command.blocks, &command.own)
    }

    /// Passes a command to the driver.
    #[inline]
    fn submit(&mut self, slot: u16, action: Action) {
        self.connection.backend += 1;
        if let Some(controller) = self.controller.as_deref_mut() {
            controller.backend += 1;
        }
        let (conn, port) = (self.connection.id, self.connection.port);
        let command = &mut self.connection.slots[slot];
        command.state = State::Backend;
        command.named = true;
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

    #[inline]
    fn executed(&mut self, slot: u16, status: Status) {
        let command = &mut self.connection.slots[slot];
        assert!(
            command.state == State::Backend,
            "complete: the command isn't the driver's"
        );
        let (purpose, len) = (command.purpose, command.len);
        self.connection.backend -= 1;
        if let Some(controller) = self.controller.as_deref_mut() {
            controller.backend -= 1;
            if controller.backend == 0 {
                controller.settle();
            }
            if status.is_success() {
                controller.counters.add(purpose, len);
            }
        }
        if purpose == Purpose::Read && status.is_success() && self.connection.is_live() {
            let command = &mut self.connection.slots[slot];
            command.done = 0;
            command.status = status;
            command.result = 0;
            self.connection.queue(slot, State::SendData, self.events);
        } else {
            self.respond(slot, status, 0);
        }
    }

    /// Answers a command; failures go to the error log.
    #[inline]
    pub fn respond(&mut self, slot: u16, status: Status, result: u64) {
        if !status.is_success() {
            self.record(slot, status);
        }
        self.connection.respond(slot, status, result, self.events);
    }

    #[cold]
    fn record(&mut self, slot: u16, status: Status) {
        let Some(controller) = self.controller.as_deref_mut() else {
            return;
        };
        let command = &self.connection.slots[slot];
        controller.errors.record(ErrorEntry {
            sqid: self.connection.qid,
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

    /// Posts the pending events, as far as there are requests; on the admin connection.
    fn post_events(&mut self) {
        let Some(controller) = self.controller.as_deref_mut() else {
            unreachable!("events are those of a controller");
        };
        while let Some((slot, event)) = controller.due_event() {
            let result = event.emit().into();
            self.connection
                .respond(slot, Status::SUCCESS, result, self.events);
        }
    }

    /// Aborts the event request with this identifier. `false`: there is none.
    fn abort_event_request(&mut self, cid: u16) -> bool {
        let Some(controller) = self.controller.as_deref_mut() else {
            unreachable!("event requests are those of a controller");
        };
        let requests = &mut controller.event_requests;
        let slots = &self.connection.slots;
        let Some(found) = requests.iter().position(|&slot| slots[slot].cid == cid) else {
            return false;
        };
        let slot = requests.remove(found);
        self.connection
            .respond(slot, Status::ABORT_REQUESTED, 0, self.events);
        true
    }

    /// A reset ends all event requests.
    pub fn abort_event_requests(&mut self) {
        let Some(controller) = self.controller.as_deref_mut() else {
            unreachable!("a reset is that of a controller");
        };
        for slot in controller.event_requests.drain(..) {
            self.connection
                .respond(slot, Status::ABORT_REQUESTED, 0, self.events);
        }
    }

    /// Makes and sends the data of an admin command whose turn has come.
    pub fn send_page(&mut self, slot: u16, out: &mut Vec<u8>) {
        let command = &mut self.connection.slots[slot];
        let Some(controller) = self.controller.as_deref_mut() else {
            // The controller is gone, and its data with it.
            command.status = Status::SQ_DELETION;
            command.state = State::SendResponse;
            return;
        };
        admin::page(
            self.shared,
            controller,
            command.page,
            command.len,
            self.scratch,
        );
        if command.page == Page::Own {
            self.scratch[..command.own.len()].copy_from_slice(&command.own);
        }
        self.connection
            .send_page(slot, self.scratch, out, self.events);
        self.post_events();
    }
}

impl Purpose {
    /// The action for the driver, where the entry alone determines it.
    #[inline]
    fn action(self) -> Action {
        match self {
            Self::Read => Action::Read,
            Self::Write { fua } => Action::Write { fua },
            Self::Compare => Action::Compare,
            Self::WriteZeroes { deallocate, fua } => Action::WriteZeroes { deallocate, fua },
            _ => Action::Flush,
        }
    }
}
