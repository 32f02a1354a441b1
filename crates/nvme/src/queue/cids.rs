//! Command identifiers with generations (T11).
//!
//! # Contract
//! An identifier is a slot in its low bits and a generation above. The generation changes when the
//! slot is freed, so that an answer to an ended command matches none. FFFFh is never used:  in the
//! error log it means no command (Base 2.0, 5.16.1.2).
//!
//! # Limits
//! As many commands as slots, at most 4096: four bits of generation are left at least.
use crate::limits::HOST_ENTRIES_MAX;
use alloc::boxed::Box;

/// No slot: there are never so many.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
struct Slot<T> {
    /// The identifier it has, or will have next.
    cid: u16,
    /// `Some`: in use.
    value: Option<T>,
    /// Next free slot.
    next: u16,
}

/// Values of the commands in flight, by identifier.
#[derive(Debug)]
pub struct Cids<T> {
    slots: Box<[Slot<T>]>,
    free: u16,
    used: u16,
    mask: u16,
}

impl<T> Cids<T> {
    /// Room for `count` commands.
    ///
    /// # Panics
    /// None, or more than 4096.
    pub fn new(count: u16) -> Self {
        assert!(
            count > 0 && count <= HOST_ENTRIES_MAX,
            "{count} identifiers"
        );
        let slot = |cid| Slot {
            cid,
            value: None,
            next: if cid + 1 < count { cid + 1 } else { NONE },
        };
        Self {
            slots: (0..count).map(slot).collect(),
            free: 0,
            used: 0,
            mask: count.next_power_of_two() - 1,
        }
    }

    /// Commands in flight.
    #[inline]
    pub fn used(&self) -> u16 {
        self.used
    }

    /// Most commands.
    pub fn capacity(&self) -> u16 {
        self.slots.len() as u16
    }

    /// The slot part of an identifier: below the capacity for each one in use.
    #[inline]
    pub fn slot(&self, cid: u16) -> u16 {
        cid & self.mask
    }

    /// Takes an identifier for a command; `None`: all are in use, and `value` is dropped.
    #[inline]
    pub fn take(&mut self, value: T) -> Option<u16> {
        let slot = self.slots.get_mut(usize::from(self.free))?;
        self.free = slot.next;
        self.used += 1;
        let old = slot.value.replace(value);
        assert!(old.is_none(), "an identifier is used twice");
        Some(slot.cid)
    }

    /// Returns the value of a command in flight.
    #[inline]
    pub fn find(&self, cid: u16) -> Option<&T> {
        let slot = self.slots.get(usize::from(cid & self.mask))?;
        slot.value.as_ref().filter(|_| slot.cid == cid)
    }

    /// Frees the identifier of a command that has ended, and returns its value. `None`: it is not
    /// in flight.
    #[inline]
    pub fn end(&mut self, cid: u16) -> Option<T> {
        let index = cid & self.mask;
        let slot = self.slots.get_mut(usize::from(index))?;
        if slot.cid != cid {
            return None;
        }
        let value = slot.value.take()?;
        // With one slot the mask is 0 and the whole identifier is generation.
        slot.cid = cid.wrapping_add(self.mask + 1);
        if slot.cid == u16::MAX {
            slot.cid = index;
        }
        slot.next = self.free;
        self.free = index;
        self.used -= 1;
        Some(value)
    }
}
