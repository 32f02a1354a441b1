//! Get LBA Status (NVM command set 1.1, 4.2.1): which blocks of a namespace are allocated.
//!
//! # Contract
//! One command is in flight at a time, beside all others; [`ALLOCATION_QUESTIONS_MAX`] questions
//! wait for it, and what is beyond that is refused. It has no deadline of its own: a controller
//! that is slow with it, or never answers it, loses nothing but the questions behind it, which are
//! refused once it took as long as an answer may. Each question that was taken is answered by
//! [`AdminEvent::Allocated`], or the association ends.
//!
//! A piece of a namespace is asked about, and only how its first blocks are is reported: a list is
//! believed no further than it is certain. An error ends nothing; a controller that does not have
//! the command is not asked again.
use super::{ALLOCATION, Admin};
use crate::host::transport::own_command;
use crate::host::{AdminEvent, Completed, Data};
use crate::limits::{ALLOCATION_ENTRIES, ALLOCATION_QUESTIONS_MAX};
use crate::wire::lba_status::{ALLOCATED, Entry, HEADER_LEN, List, Request};
use crate::wire::sqe::admin;
use crate::wire::{SqeBuilder, Status};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Bytes of a list.
const LIST_LEN: usize = HEADER_LEN + ALLOCATION_ENTRIES * Entry::LEN;

/// Questions about allocation.
#[derive(Debug, Default)]
pub struct Allocation {
    /// The first one is in flight.
    asked: VecDeque<Question>,
    /// Since when, ns.
    since_ns: u64,
    /// Where its answer goes, once one was asked.
    list: Option<Box<[u8; LIST_LEN]>>,
    /// The controller does not have the command.
    refused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    token: u64,
    nsid: u32,
    slba: u64,
    /// Never 0.
    blocks: u16,
}

impl Allocation {
    /// Takes the bytes of the list in flight from `at` on.
    pub fn place(&mut self, at: usize, bytes: &[u8]) {
        let Some(list) = &mut self.list else {
            unreachable!("a list arrives for a question");
        };
        list[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Admin {
    /// Asks how far the `blocks` blocks from `slba` on are of one kind, allocated or not; of a
    /// piece of them, if they are many. `false`: it can't be asked now, or never. To be called only
    /// where [`ControllerInfo::lists_allocated`](crate::host::ControllerInfo::lists_allocated).
    ///
    /// # Panics
    /// If `blocks` is 0.
    pub fn ask_allocated(
        &mut self,
        token: u64,
        (nsid, slba, blocks): (u32, u64, u64),
        now_ns: u64,
    ) -> bool {
        assert!(blocks > 0, "no block is asked about");
        let over = self.connection.error().is_some() || self.resetting.is_begun();
        let it = &mut self.allocation;
        let late =
            !it.asked.is_empty() && now_ns >= it.since_ns.saturating_add(self.config.timeout_ns);
        if !self.ready || over || it.refused || late || it.asked.len() == ALLOCATION_QUESTIONS_MAX {
            return false;
        }
        it.asked.push_back(Question {
            token,
            nsid,
            slba,
            blocks: blocks.min(u16::MAX.into()) as u16,
        });
        if it.asked.len() == 1 {
            self.send_question(now_ns);
        }
        true
    }

    /// Sends the first question.
    fn send_question(&mut self, now_ns: u64) {
        let it = &mut self.allocation;
        let Some(question) = it.asked.front() else {
            return;
        };
        it.since_ns = now_ns;
        it.list
            .get_or_insert_with(|| Box::new([0; LIST_LEN]))
            .fill(0);
        let request = Request {
            slba: question.slba,
            len: LIST_LEN as u64,
            action: ALLOCATED,
            blocks: question.blocks,
        };
        let sqe = SqeBuilder::new(admin::GET_LBA_STATUS).nsid(question.nsid);
        let cdw = request.emit();
        let sqe = (10..)
            .zip(cdw)
            .fold(sqe, |sqe, (n, value)| sqe.cdw(n, value));
        self.submit(&own_command(&sqe, Data::In(LIST_LEN as u32), ALLOCATION));
    }

    /// Handles the answer to the first question.
    pub(super) fn allocation_answered(&mut self, end: &Completed, now_ns: u64) {
        self.keep_alive.traffic = true;
        let it = &mut self.allocation;
        let Some(question) = it.asked.pop_front() else {
            unreachable!("an answer has its question");
        };
        let list = it.list.as_ref().filter(|_| end.status.is_success());
        let found = list.and_then(|list| first_extent(&list[..], question.slba, question.blocks));
        it.refused = end.status.is(Status::INVALID_OPCODE) || end.status.is(Status::INVALID_FIELD);
        let token = question.token;
        self.events
            .push_back(AdminEvent::Allocated { token, found });
        if self.allocation.refused {
            let found = None;
            let rest = self.allocation.asked.drain(..);
            let rest = rest.map(|it| AdminEvent::Allocated {
                token: it.token,
                found,
            });
            return self.events.extend(rest);
        }
        self.send_question(now_ns);
    }
}

/// How many of the `blocks` blocks from `slba` on are of one kind, and whether they are allocated,
/// by a list about them. `None`: the list does not say.
///
/// Whether an entry counts its blocks from 0 or from 1 makes a difference of one block, which
/// counts as allocated.
fn first_extent(list: &[u8], slba: u64, blocks: u16) -> Option<(u32, bool)> {
    let list = List::parse(list).ok()?;
    let mut last = None;
    for entry in list.entries() {
        // A list that is cut off says nothing of blocks ahead of its first one if it is unordered.
        if last.is_some_and(|last| entry.slba <= last) {
            return None;
        }
        last = Some(entry.slba);
    }
    let known = list.is_complete() || list.is_incomplete() && list.entries().nth(1).is_some();
    let Some(first) = list.entries().next() else {
        return list.is_complete().then_some((blocks.into(), false));
    };
    if first.slba > slba {
        let hole = (first.slba - slba).min(blocks.into()) as u32;
        return known.then_some((hole, false));
    }
    let end = first.slba.saturating_add(u64::from(first.blocks) + 1);
    let data = end.saturating_sub(slba).min(u32::MAX.into()) as u32;
    (data > 0).then_some((data, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::lba_status::{COMPLETE, INCOMPLETE};
    use alloc::vec::Vec;

    fn found(entries: &[(u64, u32)], condition: u8) -> Option<(u32, bool)> {
        let entries: Vec<_> = entries
            .iter()
            .map(|it| Entry::allocated(it.0, it.1))
            .collect();
        let mut list = Vec::new();
        List::emit(&entries, condition, &mut list);
        first_extent(&list, 100, 1000)
    }

    #[test]
    fn list_is_believed_no_further_than_it_is_certain() {
        let (data, hole) = (
            |blocks| Some((blocks, true)),
            |blocks| Some((blocks, false)),
        );
        for (entries, condition, want) in [
            (&[][..], COMPLETE, hole(1000)),
            (&[], INCOMPLETE, None),
            (&[], 0, None),
            (&[(100, 50)], COMPLETE, data(51)),
            (&[(100, 50)], INCOMPLETE, data(51)),
            (&[(100, 50)], 0, data(51)),
            (&[(90, 20)], COMPLETE, data(11)),
            (&[(150, 20)], COMPLETE, hole(50)),
            (&[(2000, 20)], COMPLETE, hole(1000)),
            // More entries than were asked for: the order of two shows that nothing is ahead.
            (&[(150, 20)], INCOMPLETE, None),
            (&[(150, 20), (200, 1)], INCOMPLETE, hole(50)),
            (&[(150, 20)], 0, None),
            // Unordered, overlapping what was asked, or elsewhere.
            (&[(200, 20), (150, 1)], INCOMPLETE, None),
            (&[(200, 20), (150, 1)], COMPLETE, None),
            (&[(10, 20)], COMPLETE, None),
            (&[(0, u32::MAX)], COMPLETE, data(u32::MAX - 99)),
        ] {
            assert_eq!(found(entries, condition), want, "{entries:?} {condition}");
        }
        assert_eq!(first_extent(&[0xff; 64], 100, 1000), None);
    }
}
