//! Both ends of a completion queue (Base 2.0, 3.3.3.2): the phase tag says what is new.
use super::{Misbehaved, Place, SharedMemory};
use crate::wire::{Cqe, Status};

/// Bit of an entry's second word that is the phase tag.
const PHASE_BIT: u32 = 48;

/// The controller's end: posts completions.
#[derive(Debug)]
pub struct CqProducer {
    place: Place,
    tail: u16,
    /// Head as last read from the doorbell.
    head: u16,
    /// Tag of entries in this round; the first is 1 over zeroed memory.
    phase: bool,
}

impl CqProducer {
    /// Of a queue of zeroes.
    ///
    /// # Panics
    /// Fewer than 2 entries.
    pub fn new(place: Place) -> Self {
        assert!(place.entries >= 2, "{place:?}");
        Self {
            place,
            tail: 0,
            head: 0,
            phase: true,
        }
    }

    /// Completions that can be posted. The host's doorbell is read only where fewer than `wanted`
    /// are known.
    ///
    /// # Errors
    /// [`Misbehaved`]: the doorbell is invalid.
    #[inline]
    pub fn room(&mut self, memory: &impl SharedMemory, wanted: u16) -> Result<u16, Misbehaved> {
        if self.known_room() < wanted {
            let value = memory.load_word(self.place.doorbell_at);
            let told = self.place.position(value);
            let head = told.ok_or(Misbehaved::Doorbell { value })?;
            let posted = self.place.distance(self.head, self.tail);
            if self.place.distance(self.head, head) > posted {
                return Err(Misbehaved::Head { value });
            }
            self.head = head;
        }
        Ok(self.known_room())
    }

    #[inline]
    fn known_room(&self) -> u16 {
        self.place.entries - 1 - self.place.distance(self.head, self.tail)
    }

    /// Posts a completion.
    ///
    /// # Panics
    /// There is no room: the controller reserves it before it fetches a command.
    #[inline]
    pub fn post(&mut self, memory: &impl SharedMemory, cqe: &Cqe) {
        let next = self.place.next(self.tail);
        assert!(next != self.head, "a completion without room");
        let at = self.place.entries_at + 16 * usize::from(self.tail);
        let second = u64::from(cqe.sqhd)
            | u64::from(cqe.sqid) << 16
            | u64::from(cqe.cid) << 32
            | u64::from(cqe.status.0 << 1 | u16::from(self.phase)) << PHASE_BIT;
        memory.store(at, cqe.result);
        memory.store_release(at + 8, second);
        self.phase ^= next == 0;
        self.tail = next;
    }
}

/// The host's end: takes completions as their phase tag turns, without entering the kernel.
#[derive(Debug)]
pub struct CqConsumer {
    place: Place,
    head: u16,
    phase: bool,
    /// Head that the doorbell has.
    rung: u16,
}

impl CqConsumer {
    /// Of a queue of zeroes.
    ///
    /// # Panics
    /// Fewer than 2 entries.
    pub fn new(place: Place) -> Self {
        assert!(place.entries >= 2, "{place:?}");
        Self {
            place,
            head: 0,
            phase: true,
            rung: 0,
        }
    }

    /// Of a queue that was used before, whose completions were all taken up to `head`: the entry
    /// there is of the round before, and tells the phase.
    ///
    /// # Panics
    /// Fewer than 2 entries, or `head` is none of them.
    pub fn resume(place: Place, head: u16, memory: &impl SharedMemory) -> Self {
        assert!(place.entries >= 2 && head < place.entries, "{place:?}");
        let old = memory.load_acquire(place.entries_at + 16 * usize::from(head) + 8);
        Self {
            place,
            head,
            phase: old >> PHASE_BIT & 1 == 0,
            rung: head,
        }
    }

    /// Whether [`Self::take`] would find something: one load.
    #[inline]
    pub fn is_ready(&self, memory: &impl SharedMemory) -> bool {
        let at = self.place.entries_at + 16 * usize::from(self.head);
        (memory.load_acquire(at + 8) >> PHASE_BIT & 1 == 1) == self.phase
    }

    /// The next completion; `None`: none is new.
    #[inline]
    pub fn take(&mut self, memory: &impl SharedMemory) -> Option<Cqe> {
        let at = self.place.entries_at + 16 * usize::from(self.head);
        let second = memory.load_acquire(at + 8);
        if (second >> PHASE_BIT & 1 == 1) != self.phase {
            return None;
        }
        let cqe = Cqe {
            result: memory.load(at),
            sqhd: second as u16,
            sqid: (second >> 16) as u16,
            cid: (second >> 32) as u16,
            status: Status((second >> PHASE_BIT) as u16 >> 1),
        };
        let next = self.place.next(self.head);
        self.phase ^= next == 0;
        self.head = next;
        Some(cqe)
    }

    /// Publishes the head to the controller; returns whether it has changed.
    #[inline]
    pub fn ring(&mut self, memory: &impl SharedMemory) -> bool {
        if self.rung == self.head {
            return false;
        }
        self.rung = self.head;
        memory.store_word(self.place.doorbell_at, self.head.into());
        true
    }
}
