//! I/O of users that has not ended, and the order of overlapping changes.
//!
//! * `Held`, `Dirtying`, `Choosing`, `Legs`, `Leaving`: see [`Phase`]
//!
//! # Contract
//! [`Requests::set_phase`] asserts each edge. A request ends once; its number is free again when
//! that end was polled. Copies take their turns among the changes of users (T46).
use super::legs::{Legs, Round};
use super::{Config, Request};
use block::order::{ChangeOrder, Ticket as Place};
use block::{Full, Range, SlotMap};

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for an overlapping write, for the first change, or for the resync of a region.
    Held,
    Dirtying,
    /// A read waits until its leg is selected.
    Choosing,
    Legs,
    /// Waits until legs that failed it have left; a read: until that is durable.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub request: Request,
    /// A change: its place in the order of overlapping ones.
    pub place: Option<Place>,
    phase: Phase,
    pub round: Round,
    /// A read: the piece that is being read, and legs that had a medium error there.
    pub piece: Range,
    pub unreadable: Legs,
    /// Legs that could not read all of it before it was cut.
    pub bad: Legs,
    /// A read: it was sent [briefly](super::Wait::Briefly); legs that did not answer in that time.
    pub brief: bool,
    pub silent: Legs,
    /// A change: legs that could not write it, and stay when that is recorded.
    pub recorded: Legs,
    /// Count of rewritten bad blocks when it was done, and whether a flush has to come first.
    pub heals: u64,
    pub flushes: bool,
    /// Count of failed superblock updates when it was held.
    pub tries: u32,
    /// Losses that the last leg in sync had reported when it began.
    pub losses_before: u32,
    pub since_ns: u64,
}

impl Slot {
    pub fn phase(&self) -> Phase {
        self.phase
    }
}

/// A request or a copy that may begin, since nothing before it overlaps it any more.
pub(super) enum Turn {
    Io(u32),
    Copy(u8),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Requests {
    /// By number; `None`: it has ended, and its end was not polled yet.
    slots: SlotMap<Option<Slot>>,
    capacity: u32,
    /// Owners are numbers of requests, and behind them those of copies.
    order: ChangeOrder,
    /// Those that may begin are being started.
    is_releasing: bool,
}

impl Requests {
    /// None, with room for those of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            slots: SlotMap::new(config.ios as u32),
            capacity: config.ios as u32,
            order: ChangeOrder::new(config.ios + usize::from(config.copies)),
            is_releasing: false,
        }
    }

    /// Returns how many there may be.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Begins a request, after so many losses. Returns its number.
    ///
    /// # Errors
    /// [`Full`].
    pub fn begin(&mut self, request: Request, losses: u32, now_ns: u64) -> Result<u32, Full> {
        if self.slots.is_full() {
            return Err(Full);
        }
        let slot = Slot {
            request,
            place: None,
            phase: Phase::Held,
            round: Round::default(),
            piece: request.reads().unwrap_or(Range::new(0, 0)),
            unreadable: Legs::default(),
            bad: Legs::default(),
            brief: false,
            silent: Legs::default(),
            recorded: Legs::default(),
            heals: 0,
            flushes: false,
            tries: 0,
            losses_before: losses,
            since_ns: now_ns,
        };
        Ok(self.slots.insert(Some(slot)).index())
    }

    /// Ends a request.
    ///
    /// # Panics
    /// If it has ended.
    pub fn end(&mut self, id: u32) -> Slot {
        let slot = self.slots[id].take();
        slot.unwrap_or_else(|| unreachable!("I/O {id} ends twice"))
    }

    /// Frees the number of a request whose end was polled.
    pub fn free(&mut self, id: u32) {
        let key = self.slots.key(id);
        self.slots.remove(key);
    }

    /// Returns one that has not ended.
    pub fn get(&self, id: u32) -> Option<Slot> {
        self.slots.find(id).and_then(|key| self.slots[key])
    }

    /// As [`Self::get`], to change it.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Slot> {
        let key = self.slots.find(id)?;
        self.slots[key].as_mut()
    }

    /// Returns one that has not ended.
    ///
    /// # Panics
    /// If it has.
    pub fn expect(&mut self, id: u32) -> &mut Slot {
        let slot = self.get_mut(id);
        slot.unwrap_or_else(|| unreachable!("I/O {id} goes on after its end"))
    }

    /// Returns all that have not ended.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter_map(|(_, slot)| slot.as_ref())
    }

    /// As [`Self::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.values_mut().flatten()
    }

    /// Changes the phase of a request.
    ///
    /// # Panics
    /// If it has ended, or there is no such edge.
    pub fn set_phase(&mut self, id: u32, next: Phase) {
        use Phase::*;
        let slot = self.expect(id);
        let is_edge = match (slot.phase, next) {
            (Held, Dirtying | Choosing | Legs) | (Dirtying, Legs) | (Legs, Choosing | Leaving) => {
                true
            }
            // Another piece of a read, or other legs for it.
            (Choosing, Choosing | Legs) => true,
            // A leg repeats its part, for it has lost that.
            (Legs | Leaving, Legs) => slot.request.changes().is_some(),
            _ => false,
        };
        assert!(is_edge, "I/O {id} from {:?} to {next:?}", slot.phase);
        slot.phase = next;
    }

    /// A change takes its place in the order.
    pub fn admit(&mut self, id: u32, range: Range) {
        let (place, _) = self.order.admit(id.into(), 0, range);
        self.expect(id).place = Some(place);
    }

    /// The piece of a copy takes its place in the order.
    pub fn admit_copy(&mut self, job: u8, piece: Range) -> Place {
        let owner = u64::from(self.capacity) + u64::from(job);
        self.order.admit(owner, 0, piece).0
    }

    /// Whether no change before it overlaps one.
    pub fn may_begin(&self, place: Option<Place>) -> bool {
        place.is_none_or(|place| self.order.may_begin(place))
    }

    /// Gives up a place. Returns whether the caller starts the changes that waited for it
    /// ([`Self::next_turn`]): an outer call may be doing that.
    #[must_use]
    pub fn withdraw(&mut self, place: Place) -> bool {
        self.order.withdraw(place);
        !core::mem::replace(&mut self.is_releasing, true)
    }

    /// Returns the next change that may begin.
    pub fn next_turn(&mut self) -> Option<Turn> {
        let Some(begun) = self.order.poll_begun() else {
            self.is_releasing = false;
            return None;
        };
        let owner = begun.owner as u32;
        Some(match owner.checked_sub(self.capacity) {
            None => Turn::Io(owner),
            Some(job) => Turn::Copy(job as u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "from Held to Leaving")]
    fn held_request_that_is_over_panics() {
        let mut ios = Requests::new(&Config::new(1));
        let id = ios.begin(Request::Flush, 0, 0).unwrap();
        ios.set_phase(id, Phase::Leaving);
    }
}
