//! Second copies of reads that are late, as an engine would send them: the I/O is over with the
//! first, and the loser goes on, takes its place on link and device, and teaches the policy.
use super::World;
use crate::queue::{Event, Ticket};
use policy::{Hedge, PathIndex};

/// Of one read, or of one of its two copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Copies {
    /// There was never a second one.
    #[default]
    One,
    /// The other is in this slot, and is under way.
    Two {
        /// Which slot.
        other: u32,
        /// This is the second.
        second: bool,
    },
    /// The other has failed.
    Left,
    /// The other was first: this one's end is not used.
    Lost,
}

impl World<'_> {
    /// Plans the first look at an I/O that was placed now.
    #[inline]
    pub(super) fn look_later(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        if !self.hedges || slot.hedge != Copies::One {
            return;
        }
        let core = &self.hosts[usize::from(slot.host)].cores[usize::from(slot.cpu)];
        let path = PathIndex(slot.path);
        let selector = core.selector.as_ref();
        let after_ns = selector.and_then(|it| it.look_after_ns(path, &slot.ticket));
        if let Some(after_ns) = after_ns {
            let at_ns = self.now_ns.saturating_add(after_ns);
            self.queue.push(at_ns, Event::Look(self.ticket(index)));
        }
    }

    /// A read has not ended in time. Its CPU handles what has ended before it looks at what has
    /// not.
    pub(super) fn look(&mut self, io: Ticket) {
        let slot = &self.slots[io.slot as usize];
        if !self.is_waited_for(io) {
            return;
        }
        let host = &mut self.hosts[usize::from(slot.host)];
        let free_ns = host.cores[usize::from(slot.cpu)].cpu.free_ns(self.now_ns);
        if free_ns > self.now_ns {
            return self.queue.push(free_ns, Event::Look(io));
        }
        self.queue.push(self.now_ns, Event::Hedge(io));
    }

    /// It gets a second copy, or another look later.
    pub(super) fn hedge(&mut self, io: Ticket) {
        if !self.is_waited_for(io) {
            return;
        }
        let slot = self.slots[io.slot as usize];
        let (request, path) = (slot.request(self.now_ns), PathIndex(slot.path));
        // A slot for it before it is booked.
        let Some(copy) = self.take(slot) else {
            return;
        };
        let age_ns = self.now_ns - slot.placed_ns;
        let hedge = match self.selector(&slot) {
            Some((selector, views)) => {
                let hedge = selector.hedge(&request, views, path, &slot.ticket, age_ns);
                (hedge, selector.ticket())
            }
            None => (Hedge::No, slot.ticket),
        };
        match hedge {
            (Hedge::Send(other), ticket) => {
                self.slots[io.slot as usize].hedge = Copies::Two {
                    other: copy,
                    second: false,
                };
                let second = &mut self.slots[copy as usize];
                second.ticket = ticket;
                second.hedge = Copies::Two {
                    other: io.slot,
                    second: true,
                };
                self.tally.hedged += u64::from(self.now_ns >= self.plan.warm_ns);
                self.send(copy, usize::from(other.0));
            }
            (again, _) => {
                self.give_back(copy);
                if let Hedge::Again(after_ns) = again {
                    let at_ns = self.now_ns.saturating_add(after_ns);
                    self.queue.push(at_ns, Event::Look(io));
                }
            }
        }
    }

    /// Whether an event is about the read that is in its slot now, and has no copy; its path may be
    /// dead.
    fn is_waited_for(&self, io: Ticket) -> bool {
        let slot = &self.slots[io.slot as usize];
        slot.used == io.used && slot.placed && slot.hedge == Copies::One
    }

    /// One copy of a read has ended, or the only one. Returns whether it ends the read. The other
    /// one has lost then.
    #[inline]
    pub(super) fn is_first(&mut self, index: u32) -> bool {
        match self.slots[index as usize].hedge {
            Copies::One | Copies::Left => true,
            Copies::Lost => false,
            Copies::Two { other, second } => {
                self.slots[other as usize].hedge = Copies::Lost;
                let counts = second && self.now_ns >= self.plan.warm_ns;
                self.tally.hedges_won += u64::from(counts);
                true
            }
        }
    }

    /// One copy of a read has failed, or the only one: whether it has to go elsewhere. If the other
    /// is under way, that is enough.
    pub(super) fn is_alone(&mut self, index: u32) -> bool {
        match self.slots[index as usize].hedge {
            Copies::One | Copies::Left => true,
            Copies::Lost => false,
            Copies::Two { other, .. } => {
                self.slots[other as usize].hedge = Copies::Left;
                false
            }
        }
    }
}
