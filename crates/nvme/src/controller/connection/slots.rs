//! The commands of one connection: preallocated slots, named by their index.
use crate::wire::{Status, dsm, log};
use alloc::vec::Vec;
use canary::Bug;

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum State {
    Free,
    /// The driver was asked for a buffer.
    AwaitBuffer,
    /// An R2T is queued.
    SendR2t,
    /// Data is being received, from the capsule or after the R2T.
    Receiving,
    /// The driver executes it.
    Backend,
    /// An event request, or a Disconnect that waits for the queue to drain.
    Held,
    /// A read's data is queued.
    SendData,
    /// Admin data is queued; it is made when it is sent.
    SendPage,
    /// The response is queued.
    SendResponse,
    /// The response was sent; the driver has not yet reported all its sends.
    Unsent,
}

/// Purpose of a command, once its data from the host (if any) has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(in crate::controller) enum Purpose {
    /// Admin, or refused.
    #[default]
    None,
    Read,
    Write {
        fua: bool,
    },
    Flush,
    WriteZeroes {
        deallocate: bool,
        fua: bool,
    },
    Deallocate,
    Compare,
    Connect,
}

impl Purpose {
    /// Whether the data is the machine's own, not payload.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Deallocate | Self::Connect)
    }
}

/// Whether the data of a command from the host may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum DataState {
    Good,
    /// A data digest was wrong: the command fails, and the host may repeat it (T17).
    Damaged,
    /// Its namespace was deactivated while the data was on its way. The NSID may be active again,
    /// with other contents: the command is not for those.
    Outdated,
}

/// Admin data to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(in crate::controller) enum Page {
    #[default]
    None,
    Identify {
        cns: u8,
        nsid: u32,
    },
    Log(log::Request),
    HostId,
    /// Bytes that the command has in `own`.
    Own,
}

/// One command.
#[derive(Debug)]
pub(in crate::controller) struct Slot {
    pub state: State,
    /// The driver knows the token: it gets a Release.
    pub named: bool,
    pub data: DataState,
    pub cid: u16,
    /// Payloads handed to the driver and not yet reported sent.
    pub sends: u16,
    pub status: Status,
    pub purpose: Purpose,
    pub nsid: u32,
    pub blocks: u32,
    pub slba: u64,
    /// Bytes of data.
    pub len: u32,
    /// Bytes of it received, or sent.
    pub done: u32,
    pub result: u64,
    pub page: Page,
    /// Data of the machine's own commands.
    pub own: Vec<u8>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: State::Free,
            named: false,
            data: DataState::Good,
            cid: 0,
            sends: 0,
            status: Status::SUCCESS,
            purpose: Purpose::None,
            nsid: 0,
            blocks: 0,
            slba: 0,
            len: 0,
            done: 0,
            result: 0,
            page: Page::None,
            own: Vec::new(),
        }
    }

    /// Bytes that are kept of data of the machine's own: a Dataset Management may send more than
    /// the ranges that it counts.
    pub fn own_len(&self) -> u32 {
        match self.purpose {
            Purpose::Deallocate => self.blocks * dsm::Range::LEN as u32,
            _ => self.len,
        }
    }

    #[cold]
    fn forget_own(&mut self) {
        self.own = Vec::new();
    }
}

/// All slots. Indices of taken slots are valid, by construction; others panic.
#[derive(Debug)]
pub(in crate::controller) struct Slots {
    all: Vec<Slot>,
    free: Vec<u16>,
}

impl Slots {
    pub fn new(count: u16) -> Self {
        let mut slots = Self {
            all: Vec::new(),
            free: Vec::new(),
        };
        slots.grow(count);
        slots
    }

    /// Grows to `count` slots in all; there are never fewer than before.
    pub fn grow(&mut self, count: u16) {
        let have = self.all.len() as u16;
        self.all
            .resize_with(usize::from(count.max(have)), Slot::new);
        // Exact: the list never holds more than all slots.
        self.free.reserve_exact(self.all.len() - self.free.len());
        self.free.extend((have..count).rev());
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether all slots are `Free`.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.all.len()
    }

    /// Takes a slot for a command. It is `Held` until its state is set; its length, status, result
    /// and page are stale. The caller has checked that there is room.
    #[inline]
    pub fn take(&mut self, cid: u16) -> u16 {
        let Some(index) = self.free.pop() else {
            panic!("room is checked before a capsule is read");
        };
        let slot = &mut self.all[usize::from(index)];
        slot.state = State::Held;
        slot.named = false;
        slot.data = DataState::Good;
        slot.cid = cid;
        slot.purpose = Purpose::None;
        slot.nsid = 0;
        slot.slba = 0;
        slot.done = 0;
        index
    }

    /// Frees a slot. The next command sets all fields that it needs.
    #[inline]
    pub fn put_back(&mut self, index: u16) {
        let slot = &mut self.all[usize::from(index)];
        let held = slot.state != State::Free && slot.sends == 0;
        assert!(
            held || canary::has(Bug::SentFree),
            "a command is freed too early or twice"
        );
        slot.state = State::Free;
        if slot.own.capacity() > 0 {
            slot.forget_own();
        }
        self.free.push(index);
    }

    #[inline]
    pub fn get(&self, index: u16) -> Option<&Slot> {
        self.all.get(usize::from(index))
    }

    pub fn get_mut(&mut self, index: u16) -> Option<&mut Slot> {
        self.all.get_mut(usize::from(index))
    }

    /// Capacity: for commands, and for the list of free ones.
    #[cfg(test)]
    pub fn capacity(&self) -> (usize, usize) {
        (self.all.capacity(), self.free.capacity())
    }

    /// The command with this identifier, if it is in that state.
    pub fn find(&self, cid: u16, state: State) -> Option<u16> {
        let found = |slot: &Slot| slot.cid == cid && slot.state == state;
        self.all.iter().position(found).map(|index| index as u16)
    }

    /// Ranges of all Dataset Managements that are under way.
    pub fn ranges(&self) -> u32 {
        let taken = self.all.iter().filter(|slot| slot.state != State::Free);
        let of = taken.filter(|slot| slot.purpose == Purpose::Deallocate);
        of.map(|slot| slot.blocks).sum()
    }

    /// Marks the commands for this namespace whose data has not arrived.
    pub fn outdate(&mut self, nsid: u32) {
        for slot in self.all.iter_mut().filter(|slot| slot.nsid == nsid) {
            let awaits = matches!(
                slot.state,
                State::AwaitBuffer | State::SendR2t | State::Receiving
            );
            let is_io = matches!(
                slot.purpose,
                Purpose::Write { .. } | Purpose::Compare | Purpose::Deallocate
            );
            if awaits && is_io {
                slot.data = DataState::Outdated;
            }
        }
    }

    pub fn count(&self) -> u16 {
        self.all.len() as u16
    }
}

impl core::ops::Index<u16> for Slots {
    type Output = Slot;
    #[inline]
    fn index(&self, index: u16) -> &Slot {
        &self.all[usize::from(index)]
    }
}

impl core::ops::IndexMut<u16> for Slots {
    #[inline]
    fn index_mut(&mut self, index: u16) -> &mut Slot {
        &mut self.all[usize::from(index)]
    }
}
