//! All commands under way, by slot; a command's slot is its device request's id.
use super::Namespace;
use super::pool::Purpose;
use crate::machine::Span;
use alloc::boxed::Box;
use alloc::vec::Vec;
use block::SlotMap;
use block::order::Ticket;
use core::ops::{Index, IndexMut};
use nvme::controller::{Action, ConnId};

/// End of a list of slots.
const NONE: u32 = u32::MAX;

/// Where a command is on its course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its data waits for a buffer.
    WaitsToReceive,
    /// Its data is coming, or it has none.
    Receiving,
    /// It waits for the port's shape.
    Shaped,
    /// The port holds writes.
    Held,
    /// A fault keeps it from ever being answered.
    Hung,
    /// Its connection is gone, and it is executed all the same, later.
    Late,
    /// It may begin when there is a buffer.
    WaitsToRead,
    /// Its device request waits for changes that it overlaps.
    Ordered,
    /// A device has it.
    AtDevice,
    /// It was completed, and awaits its release.
    Completed,
    /// It was released, and a leg of a mirror may still read its buffer (T10).
    Lent,
}

/// Whether a command whose request a front end has is wanted back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recall {
    /// It is not.
    No,
    /// Its connection is over.
    Closed,
    /// Its host has sent this Abort, which is not answered yet: admin connection and place there.
    Abort(ConnId, u32),
}

/// One command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) connection: u32,
    pub(super) token: u32,
    pub(super) stage: Stage,
    /// Work to do, once it is known (all data has arrived).
    pub(super) action: Action,
    /// As it was when the command came; `None` = all of them (Flush).
    pub(super) namespace: Option<Namespace>,
    /// Of a Deallocate: block and count of each.
    pub(super) ranges: Box<[(u64, u64)]>,
    pub(super) slba: u64,
    pub(super) blocks: u32,
    /// Device requests already done, for those that need several.
    pub(super) step: u32,
    /// Payload bytes.
    pub(super) len: u32,
    pub(super) in_capsule: bool,
    pub(super) buffer: Option<Span>,
    /// Place of its device request among the changes under way: from [`Stage::Ordered`] until the
    /// device has answered.
    pub(super) order: Option<Ticket>,
    pub(super) recall: Recall,
    /// How often its buffer is lent beyond the end of a device request.
    pub(super) loans: u32,
    /// When a late write is executed.
    pub(super) due_ns: u64,
    /// Next in whichever list it is.
    pub(super) next: u32,
}

impl Stage {
    /// In a line for a buffer.
    pub(super) fn is_waiting(self) -> bool {
        matches!(self, Stage::WaitsToReceive | Stage::WaitsToRead)
    }
}

impl Command {
    /// It changes what a namespace holds.
    pub(super) fn is_change(&self) -> bool {
        match self.action {
            Action::Write { .. } | Action::WriteZeroes { .. } | Action::Deallocate => true,
            Action::Read | Action::Flush | Action::Compare => false,
        }
    }

    /// One request to a device is all of it.
    #[inline]
    pub(super) fn is_one_request(&self) -> bool {
        matches!(
            self.action,
            Action::Read | Action::Write { .. } | Action::Compare
        )
    }

    /// Purpose of its buffer.
    pub(super) fn purpose(&self) -> Purpose {
        if self.in_capsule {
            Purpose::InCapsule
        } else if self.stage == Stage::WaitsToRead {
            Purpose::Read
        } else {
            Purpose::Asked
        }
    }
}

/// A table of slots, and the way from (connection, token) to a slot. Tokens are small numbers: the
/// subsystem's own slots.
pub(super) struct Commands {
    slots: SlotMap<Command>,
    /// By connection and token: slot + 1, or 0.
    by_token: Vec<Vec<u32>>,
}

impl Commands {
    /// Room for about `tokens` commands on each connection.
    pub(super) fn new(connections: u32, tokens: u32) -> Self {
        let (connections, tokens) = (connections as usize, tokens as usize);
        Commands {
            slots: SlotMap::new((connections * tokens) as u32),
            by_token: (0..connections)
                .map(|_| Vec::with_capacity(tokens))
                .collect(),
        }
    }

    /// A slot for a command that is new.
    pub(super) fn insert(&mut self, connection: u32, token: u32) -> u32 {
        let command = self.slots.insert(Command {
            connection,
            token,
            stage: Stage::Receiving,
            action: Action::Flush,
            namespace: None,
            ranges: Box::default(),
            slba: 0,
            blocks: 0,
            step: 0,
            len: 0,
            in_capsule: false,
            buffer: None,
            order: None,
            recall: Recall::No,
            loans: 0,
            due_ns: 0,
            next: NONE,
        });
        let slot = command.index();
        let by_token = &mut self.by_token[connection as usize];
        if by_token.len() <= token as usize {
            by_token.resize(token as usize + 1, 0);
        }
        by_token[token as usize] = slot + 1;
        slot
    }

    /// The slot of a command, if there is one.
    pub(super) fn find(&self, connection: u32, token: u32) -> Option<u32> {
        let slot = self.by_token[connection as usize].get(token as usize)?;
        slot.checked_sub(1)
    }

    /// A command, if there is one in this slot.
    pub(super) fn get(&self, slot: u32) -> Option<&Command> {
        self.slots.get(self.slots.find(slot)?)
    }

    /// Every command.
    pub(super) fn all(&self) -> impl Iterator<Item = &Command> {
        self.slots.iter().map(|(_, command)| command)
    }

    /// The slots of a connection's commands.
    pub(super) fn of_connection(&self, connection: u32) -> impl Iterator<Item = u32> + '_ {
        let slots = self.by_token[connection as usize].iter();
        slots.filter_map(|slot| slot.checked_sub(1))
    }

    /// Frees a token of a connection, whose next command may have it. Returns the slot of the
    /// command that had it.
    #[inline]
    pub(super) fn free_token(&mut self, connection: u32, token: u32) -> Option<u32> {
        let slot = self.by_token[connection as usize].get_mut(token as usize)?;
        core::mem::take(slot).checked_sub(1)
    }

    /// Frees a slot, whose token was freed before.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) -> Command {
        let key = self.slots.key(slot);
        self.slots.remove(key)
    }
}

impl Index<u32> for Commands {
    type Output = Command;
    fn index(&self, slot: u32) -> &Command {
        &self.slots[slot]
    }
}

impl IndexMut<u32> for Commands {
    fn index_mut(&mut self, slot: u32) -> &mut Command {
        &mut self.slots[slot]
    }
}

/// A queue of commands, linked through `Command::next`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue {
        first: NONE,
        last: NONE,
    };

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn push(&mut self, slot: u32, commands: &mut Commands) {
        commands[slot].next = NONE;
        match self.last {
            NONE => self.first = slot,
            last => commands[last].next = slot,
        }
        self.last = slot;
    }

    /// Takes out a command that is in the queue. Looks at all before it.
    pub(super) fn remove(&mut self, slot: u32, commands: &mut Commands) {
        let mut rest = core::mem::replace(self, Self::EMPTY);
        while let Some(next) = rest.pop(commands) {
            if next != slot {
                self.push(next, commands);
            }
        }
    }

    pub(super) fn pop(&mut self, commands: &Commands) -> Option<u32> {
        let slot = self.first()?;
        self.first = commands[slot].next;
        if self.first == NONE {
            self.last = NONE;
        }
        Some(slot)
    }
}
