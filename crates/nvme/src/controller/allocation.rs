//! Get LBA Status (NVM command set 1.1, 4.2.1): which blocks of a range are allocated.
//!
//! The driver is asked for one extent after the other, until the host's list is full or the range
//! is over. A question holds a slot of its admin connection, no buffer, and nothing waits for it:
//! one whose connection ends or whose controller is reset is forgotten, and so is a driver's answer
//! to it.
//!
//! # Limits
//! [`ALLOCATION_COMMANDS_MAX`] at a time; blocks of others are all reported allocated.
//! [`ALLOCATION_LIST_MAX`] entries in a list, whatever the host has room for.
use super::connection::{Page, State};
use super::io::access;
use super::{ControllerEvent, Subsystem};
use crate::limits::{ALLOCATION_COMMANDS_MAX, ALLOCATION_LIST_MAX};
use crate::wire::lba_status::{ALLOCATED, COMPLETE, Entry, HEADER_LEN, INCOMPLETE, List, Request};
use crate::wire::{Sqe, Status};
use alloc::vec::Vec;

/// Commands whose lists are being made.
#[derive(Debug, Default)]
pub(super) struct Questions {
    all: Vec<Question>,
    serial: u32,
}

#[derive(Debug)]
struct Question {
    /// Of the extent that the driver is asked for.
    id: u32,
    /// Its connection and slot.
    at: usize,
    slot: u16,
    nsid: u32,
    /// First block that nothing is known of, and the end.
    next: u64,
    end: u64,
    /// Entries that the host has room for.
    most: usize,
    entries: Vec<Entry>,
}

impl Questions {
    /// Forgets those of a connection that is over.
    pub fn forget(&mut self, at: usize) {
        self.all.retain(|it| it.at != at);
    }
}

impl Question {
    fn is_over(&self) -> bool {
        self.next >= self.end || self.entries.len() == self.most
    }

    /// Adds blocks of one kind from the first unknown one on. Of allocated blocks it takes as many
    /// as fit into one entry.
    fn add(&mut self, blocks: u64, is_allocated: bool) {
        let mut blocks = blocks.min(self.end - self.next);
        if is_allocated {
            // The rest stays unknown: a list that left it out would call it a hole.
            let most = blocks.min(u32::MAX.into()) as u32;
            self.entries.push(Entry::allocated(self.next, most));
            blocks = most.into();
        }
        self.next += blocks;
    }

    /// The list of this question.
    fn list(&self) -> Vec<u8> {
        let condition = match self.next >= self.end {
            true => COMPLETE,
            false => INCOMPLETE,
        };
        let mut list = Vec::new();
        List::emit(&self.entries, condition, &mut list);
        list
    }
}

impl Subsystem {
    /// Begins a Get LBA Status in `slot` of an admin connection.
    pub(super) fn begin_allocation(&mut self, at: usize, slot: u16, sqe: &Sqe<'_>) {
        match self.check_allocation(at, sqe) {
            Err(status) => self.work(at).respond(slot, status, 0),
            Ok((mut question, len)) => {
                question.slot = slot;
                self.work(at).connection.slots[slot].len = len;
                if self.questions.all.len() == ALLOCATION_COMMANDS_MAX {
                    // All of it is answered here: the driver is not asked for the rest either.
                    while !question.is_over() {
                        question.add(question.end - question.next, true);
                    }
                }
                self.ask_extent(question);
            }
        }
    }

    fn check_allocation(&mut self, at: usize, sqe: &Sqe<'_>) -> Result<(Question, u32), Status> {
        let request = Request::parse(&[10, 11, 12, 13].map(|n| sqe.cdw(n)));
        let shared = &self.shared;
        let namespace = shared.namespace(sqe.nsid());
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        if let Some(group) = shared.group(namespace.ana_group)
            && let Some(connection) = self.connections[at].as_deref()
        {
            access(shared.ana[usize::from(connection.port)].groups[group].state)?;
        }
        if request.action != ALLOCATED
            || request.len > u64::from(shared.transfer_max())
            || request.len < (HEADER_LEN + Entry::LEN) as u64
        {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let len = request.len as u32;
        let left = namespace.blocks.checked_sub(request.slba);
        let blocks = match (request.blocks, left) {
            (0, Some(left)) if left > 0 => left,
            (blocks, Some(left)) if blocks > 0 && u64::from(blocks) <= left => blocks.into(),
            _ => return Err(Status::LBA_RANGE.with_dnr()),
        };
        super::io::to_host(sqe, len)?;
        let room = (len as usize - HEADER_LEN) / Entry::LEN;
        let question = Question {
            id: 0,
            at,
            slot: 0,
            nsid: sqe.nsid(),
            next: request.slba,
            end: request.slba + blocks,
            most: room.min(ALLOCATION_LIST_MAX),
            entries: Vec::new(),
        };
        Ok((question, len))
    }

    /// Asks the driver for the next extent of a question, or answers its host.
    fn ask_extent(&mut self, mut question: Question) {
        if question.is_over() {
            let work = self.work(question.at);
            let command = &mut work.connection.slots[question.slot];
            command.own = question.list();
            command.page = Page::Own;
            (command.status, command.result) = (Status::SUCCESS, 0);
            return work
                .connection
                .queue(question.slot, State::SendPage, work.events);
        }
        self.questions.serial = self.questions.serial.wrapping_add(1);
        question.id = self.questions.serial;
        self.events.push(ControllerEvent::Extent {
            id: question.id,
            nsid: question.nsid,
            slba: question.next,
            blocks: (question.end - question.next).min(u32::MAX.into()) as u32,
        });
        self.questions.all.push(question);
    }

    /// Answers a [`ControllerEvent::Extent`]: so many bytes from its first block on are a hole, or
    /// may be data. A block of which a part is data is allocated. Ignored where its command is
    /// over.
    pub fn extent_found(&mut self, id: u32, bytes: u32, is_hole: bool) {
        let found = self.questions.all.iter().position(|it| it.id == id);
        let Some(mut question) = found.map(|place| self.questions.all.swap_remove(place)) else {
            return;
        };
        let connection = self.connections[question.at].as_deref();
        if connection.is_some_and(|it| it.is_live()) {
            let namespace = self.shared.namespace(question.nsid);
            let shift = namespace.map_or(0, |it| it.block_shift);
            match u64::from(bytes) >> shift {
                0 => question.add(1, true),
                whole if is_hole => question.add(whole, false),
                whole => question.add(whole, true),
            }
            self.ask_extent(question);
        }
    }

    /// A namespace is inactive: what was asked of it is refused.
    pub(super) fn refuse_questions(&mut self, nsid: u32) {
        while let Some(place) = self.questions.all.iter().position(|it| it.nsid == nsid) {
            let question = self.questions.all.swap_remove(place);
            let status = Status::INVALID_NAMESPACE.with_dnr();
            self.work(question.at).respond(question.slot, status, 0);
        }
    }

    /// A reset ends all questions of a controller.
    pub(super) fn abort_questions(&mut self, at: usize) {
        while let Some(place) = self.questions.all.iter().position(|it| it.at == at) {
            let question = self.questions.all.swap_remove(place);
            self.work(at)
                .respond(question.slot, Status::ABORT_REQUESTED, 0);
        }
    }
}
