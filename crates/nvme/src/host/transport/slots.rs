//! The commands in flight on one connection: identifiers, progress, and when their buffers are
//! free.
//!
//! # Contract
//! A command identifier is a slot number in the low bits and a generation above it; the generation
//! changes whenever the slot is freed, so an answer to an ended command is refused instead of being
//! taken for one to the slot's next command (T11). A command ends once: its slot goes to `ended`
//! when it is answered *and* the driver holds no range of its buffer any more (T23), and is free
//! again when the end was taken. So ends can't outnumber slots. A slot named by an Abort stays
//! unused until that was answered, since generations are few where slots are many.
//!
//! # Limits
//! As many commands as slots; all memory is allocated by `new`.
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use canary::Bug;

use crate::host::{Command, Completed, Data};
use crate::wire::Status;

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Its capsule is not sent yet: the controller does not know its identifier.
    Queued,
    /// The controller has it.
    Sent,
    /// Its end is decided.
    Ended,
}

/// One command.
#[derive(Debug)]
pub struct Slot {
    pub cid: u16,
    /// Transfer tag of the R2T that is being answered.
    pub ttag: u16,
    state: State,
    /// C2HData with LAST was seen.
    pub last: bool,
    /// A data digest was wrong: the command fails whatever its response is (T17).
    pub damaged: bool,
    /// Whether its payload is the machine's own.
    pub own: bool,
    /// An Abort names it.
    reserved: bool,
    /// Bytes of data in place, or handed out for sending.
    pub moved: u32,
    /// Bytes of data that the controller asked for so far; as `moved` while no R2T is open.
    pub granted: u32,
    /// Ranges of the buffer that the driver still reads.
    lent: u32,
    pub command: Command,
    status: Status,
    result: u64,
    /// The slot behind this one, in the list of free or of ended slots; [`NONE`] is the end.
    next: Index,
}

/// A command's number on this connection.
pub type Index = u16;

/// No slot: there are never so many.
const NONE: Index = Index::MAX;

/// See the module.
#[derive(Debug)]
pub struct Slots {
    slots: Box<[Slot]>,
    /// The slot freed last is used first: its memory is in the cache.
    free: Index,
    used: Index,
    /// Ended slots whose buffers the driver has returned, in that order: first and last; the last
    /// is valid if there is a first.
    ended: Index,
    ended_last: Index,
    /// Slots with `lent > 0`, in the order in which the driver got the first range: it returns them
    /// in about that order.
    lenders: VecDeque<Index>,
    /// Low bits of a CID that are the slot.
    mask: u16,
}

impl Slots {
    /// Room for `count` commands.
    pub fn new(count: u16) -> Self {
        let mask = count.max(1).next_power_of_two() - 1;
        let mask = if canary::has(Bug::CidReuse) { 7 } else { mask };
        let idle = Command {
            opcode: 0,
            nsid: 0,
            cdw: [0; 6],
            data: Data::None,
            token: 0,
        };
        let slot = |cid| Slot {
            cid,
            ttag: 0,
            state: State::Free,
            last: false,
            damaged: false,
            own: false,
            reserved: false,
            moved: 0,
            granted: 0,
            lent: 0,
            command: idle,
            status: Status::SUCCESS,
            result: 0,
            next: if cid + 1 < count { cid + 1 } else { NONE },
        };
        Self {
            slots: (0..count).map(slot).collect(),
            free: if count > 0 { 0 } else { NONE },
            used: 0,
            ended: NONE,
            ended_last: NONE,
            lenders: VecDeque::with_capacity(count.into()),
            mask,
        }
    }

    /// Most commands.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Commands whose end wasn't taken yet.
    pub fn used(&self) -> usize {
        usize::from(self.used)
    }

    /// Whether a slot is free.
    pub fn has_free(&self) -> bool {
        self.free != NONE
    }

    /// Returns a slot by its number, which came from here.
    #[inline]
    pub fn at(&mut self, index: Index) -> &mut Slot {
        &mut self.slots[usize::from(index)]
    }

    /// As [`Self::at`], read-only.
    #[inline]
    pub fn peek(&self, index: Index) -> &Slot {
        &self.slots[usize::from(index)]
    }

    /// Takes a slot for a command to be sent; `None`: all are in use.
    #[inline]
    pub fn take(&mut self, command: &Command, own: bool) -> Option<Index> {
        let index = self.free;
        let slot = self.slots.get_mut(usize::from(index))?;
        self.free = slot.next;
        self.used += 1;
        slot.state = State::Queued;
        slot.last = false;
        slot.damaged = false;
        slot.own = own;
        slot.moved = 0;
        slot.granted = 0;
        slot.command = *command;
        Some(index)
    }

    /// The command is being sent.
    #[inline]
    pub fn mark_sent(&mut self, index: Index) {
        self.at(index).state = State::Sent;
    }

    /// Returns the command that a controller's identifier names; `None`: it was never sent, or has
    /// ended.
    #[inline]
    pub fn find(&self, cid: u16) -> Option<Index> {
        let index = cid & self.mask;
        let slot = self.slots.get(usize::from(index))?;
        (slot.cid == cid && slot.state == State::Sent).then_some(index)
    }

    /// Whether the command in this slot may still send or receive data.
    #[inline]
    pub fn is_live(&self, index: Index) -> bool {
        matches!(
            self.slots[usize::from(index)].state,
            State::Queued | State::Sent
        )
    }

    /// Whether the command `token` is in flight, and none of its data has moved.
    pub fn awaits(&self, token: u32) -> bool {
        let named = |slot: &&Slot| slot.command.token == token;
        let mut live = self
            .slots
            .iter()
            .filter(|slot| matches!(slot.state, State::Queued | State::Sent));
        live.find(named).is_some_and(|slot| slot.moved == 0)
    }

    /// Returns the identifier of a command that was sent; its slot gets no other command until
    /// [`Self::unreserve`].
    pub fn reserve(&mut self, token: u32) -> Option<u16> {
        let named = |it: &&mut Slot| it.state == State::Sent && it.command.token == token;
        let slot = self.slots.iter_mut().find(named)?;
        slot.reserved = true;
        Some(slot.cid)
    }

    /// Releases the slot that had this identifier for other commands.
    pub fn unreserve(&mut self, cid: u16) {
        let index = cid & self.mask;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        if core::mem::take(&mut slot.reserved) && slot.state == State::Free {
            slot.next = self.free;
            self.free = index;
        }
    }

    /// Whether [`Self::take_end`] has one.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended != NONE
    }

    /// The driver now reads a range of the command's buffer.
    #[inline]
    pub fn lend(&mut self, index: Index) {
        let slot = self.at(index);
        slot.lent += 1;
        if slot.lent == 1 {
            self.lenders.push_back(index);
        }
    }

    /// The driver no longer reads one range of the buffer of the command `token`; `false`: it read
    /// none.
    #[inline]
    pub fn give_back(&mut self, token: u32) -> bool {
        let named = |&index: &Index| self.slots[usize::from(index)].command.token == token;
        let Some(at) = self.lenders.iter().position(named) else {
            return false;
        };
        let index = self.lenders[at];
        let slot = &mut self.slots[usize::from(index)];
        slot.lent -= 1;
        if slot.lent == 0 {
            match at {
                0 => drop(self.lenders.pop_front()),
                at => drop(self.lenders.remove(at)),
            }
            if slot.state == State::Ended {
                self.push_ended(index);
            }
        }
        true
    }

    /// Ends the command; its end can be taken once the driver holds no range of its buffer.
    #[inline]
    pub fn end(&mut self, index: Index, status: Status, result: u64) {
        let slot = &mut self.slots[usize::from(index)];
        let live = matches!(slot.state, State::Queued | State::Sent);
        assert!(live, "a command ends twice");
        slot.state = State::Ended;
        slot.status = status;
        slot.result = result;
        if slot.lent == 0 || canary::has(Bug::LentFree) {
            self.push_ended(index);
        }
    }

    #[inline]
    fn push_ended(&mut self, index: Index) {
        self.slots[usize::from(index)].next = NONE;
        match self.slots.get_mut(usize::from(self.ended_last)) {
            Some(last) if self.ended != NONE => last.next = index,
            _ => self.ended = index,
        }
        self.ended_last = index;
    }

    /// Ends every command that has not ended. `returned`: the driver reads no buffer any more.
    pub fn end_all(&mut self, status: Status, returned: bool) {
        if returned {
            while let Some(index) = self.lenders.pop_front() {
                let slot = &mut self.slots[usize::from(index)];
                slot.lent = 0;
                if slot.state == State::Ended {
                    self.push_ended(index);
                }
            }
        }
        for index in 0..self.slots.len() as Index {
            if self.is_live(index) {
                self.end(index, status, 0);
            }
        }
    }

    /// Takes the end of a command and frees its slot.
    #[inline]
    pub fn take_end(&mut self) -> Option<Completed> {
        let index = self.ended;
        let slot = self.slots.get_mut(usize::from(index))?;
        self.ended = slot.next;
        slot.state = State::Free;
        slot.cid = slot.cid.wrapping_add(self.mask.wrapping_add(1));
        if !slot.reserved {
            slot.next = self.free;
            self.free = index;
        }
        self.used -= 1;
        Some(Completed {
            token: slot.command.token,
            status: slot.status,
            result: slot.result,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn taken(slots: &mut Slots, token: u32) -> Index {
        let index = slots.take(&Command::flush(1, token), false).unwrap();
        slots.mark_sent(index);
        index
    }

    #[test]
    fn t11_an_identifier_of_an_ended_command_is_refused() {
        let mut slots = Slots::new(3);
        let index = taken(&mut slots, 7);
        let cid = slots.at(index).cid;
        assert_eq!(slots.find(cid), Some(index));
        slots.end(index, Status::SUCCESS, 0);
        assert_eq!(slots.find(cid), None, "ended, not taken");
        slots.take_end().unwrap();
        let mut seen = alloc::collections::BTreeSet::from([cid]);
        // The slot's next users have other identifiers for as long as there are generations.
        for generation in 1..(1 << 14) {
            let again = taken(&mut slots, generation);
            assert_eq!(again, index);
            assert_eq!(slots.find(cid), None);
            assert!(seen.insert(slots.at(again).cid));
            slots.end(again, Status::SUCCESS, 0);
            slots.take_end().unwrap();
        }
    }

    #[test]
    fn t11_a_slot_named_by_an_abort_is_not_reused() {
        let mut slots = Slots::new(2);
        let index = taken(&mut slots, 7);
        assert_eq!(slots.reserve(8), None);
        let cid = slots.reserve(7).unwrap();
        assert_eq!(cid, slots.at(index).cid);
        slots.end(index, Status::SUCCESS, 0);
        slots.take_end().unwrap();
        assert_ne!(taken(&mut slots, 9), index);
        assert_eq!(
            (slots.used(), slots.take(&Command::flush(1, 3), false)),
            (1, None)
        );
        slots.unreserve(cid);
        slots.unreserve(cid);
        assert_eq!(taken(&mut slots, 10), index);
        assert_eq!(slots.take(&Command::flush(1, 3), false), None);
        // Answered before the command: nothing changes for it.
        let cid = slots.reserve(10).unwrap();
        slots.unreserve(cid);
        assert_eq!(slots.find(cid), Some(index));
        slots.end(index, Status::SUCCESS, 0);
        slots.take_end().unwrap();
        assert_eq!(taken(&mut slots, 11), index);
    }

    #[test]
    fn t11_only_what_was_sent_is_found() {
        let mut slots = Slots::new(3);
        let index = slots.take(&Command::flush(1, 0), false).unwrap();
        let cid = slots.at(index).cid;
        assert_eq!(slots.find(cid), None);
        slots.mark_sent(index);
        assert_eq!(slots.find(cid), Some(index));
        assert_eq!(slots.find(3), None, "inside the mask, outside the slots");
        assert_eq!(slots.find(cid | 4), None, "another generation");
    }

    #[test]
    fn t23_a_lent_buffer_holds_the_end_back() {
        for answer_first in [true, false] {
            let mut slots = Slots::new(2);
            let index = taken(&mut slots, 5);
            slots.lend(index);
            slots.lend(index);
            slots.give_back(5);
            if answer_first {
                slots.end(index, Status::SUCCESS, 1);
                assert_eq!(slots.take_end(), None);
                slots.give_back(5);
            } else {
                slots.give_back(5);
                assert_eq!(slots.take_end(), None);
                slots.end(index, Status::SUCCESS, 1);
            }
            let end = Completed {
                token: 5,
                status: Status::SUCCESS,
                result: 1,
            };
            assert_eq!(slots.take_end(), Some(end));
            assert_eq!(slots.used(), 0);
        }
    }

    #[test]
    fn ending_all_keeps_lent_buffers_unless_they_were_returned() {
        for returned in [true, false] {
            let mut slots = Slots::new(4);
            let lent = taken(&mut slots, 1);
            slots.lend(lent);
            taken(&mut slots, 2);
            slots.take(&Command::flush(1, 3), false).unwrap();
            slots.end_all(Status::HOST_PATH, returned);
            let tokens: Vec<_> = core::iter::from_fn(|| slots.take_end())
                .map(|end| end.token)
                .collect();
            if returned {
                assert_eq!(tokens.len(), 3);
            } else {
                assert_eq!(tokens, [2, 3]);
                slots.give_back(1);
                assert_eq!(slots.take_end().unwrap().status, Status::HOST_PATH);
            }
            assert_eq!(slots.used(), 0);
        }
    }
}
