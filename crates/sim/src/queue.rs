//! Future events, in order of time; events due at the same time, in the order they were planned.
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// One thing that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An I/O reaches its device.
    Arrive(Ticket),
    /// Its service is over.
    Served(Ticket),
    /// The host could notice its end.
    End(Ticket),
    /// A job wants to issue an I/O.
    Issue(u32),
    /// A disk's arm is free.
    Disk(u32),
    /// Others' traffic passes a path's link.
    Cross(u32),
    /// An event of the plan.
    Change(u32),
    /// A path that died is found out.
    Detect(u32),
    /// A read has been under way for long enough to be looked at.
    Look(Ticket),
    /// As above, when its CPU has handled the ends meanwhile.
    Hedge(Ticket),
}

/// An I/O under way: its slot and how often that was used before, which tells old events apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Which slot.
    pub slot: u32,
    /// Its use.
    pub used: u8,
}

/// The future.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Time, order of planning and event as one number each.
    heap: BinaryHeap<Reverse<u128>>,
    planned: u32,
}

const INDEX_BITS: u32 = 20;
const USED_BITS: u32 = 8;
const KIND_BITS: u32 = 4;

impl Queue {
    /// Plans an event.
    #[inline]
    pub fn push(&mut self, at_ns: u64, event: Event) {
        let (kind, index, used) = match event {
            Event::Arrive(io) => (0, io.slot, io.used),
            Event::Served(io) => (1, io.slot, io.used),
            Event::End(io) => (2, io.slot, io.used),
            Event::Issue(job) => (3, job, 0),
            Event::Disk(device) => (4, device, 0),
            Event::Cross(path) => (5, path, 0),
            Event::Change(number) => (6, number, 0),
            Event::Detect(path) => (7, path, 0),
            Event::Look(io) => (8, io.slot, io.used),
            Event::Hedge(io) => (9, io.slot, io.used),
        };
        self.planned = self.planned.wrapping_add(1);
        let low = (u64::from(self.planned) << (INDEX_BITS + USED_BITS + KIND_BITS))
            | kind << (INDEX_BITS + USED_BITS)
            | u64::from(used) << INDEX_BITS
            | u64::from(index);
        self.heap
            .push(Reverse(u128::from(at_ns) << 64 | u128::from(low)));
    }

    /// The next event and its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse(entry) = self.heap.pop()?;
        let low = entry as u64;
        let index = (low & ((1 << INDEX_BITS) - 1)) as u32;
        let io = Ticket {
            slot: index,
            used: (low >> INDEX_BITS) as u8,
        };
        let event = match (low >> (INDEX_BITS + USED_BITS)) & 0xf {
            0 => Event::Arrive(io),
            1 => Event::Served(io),
            2 => Event::End(io),
            3 => Event::Issue(index),
            4 => Event::Disk(index),
            5 => Event::Cross(index),
            6 => Event::Change(index),
            7 => Event::Detect(index),
            8 => Event::Look(io),
            _ => Event::Hedge(io),
        };
        Some(((entry >> 64) as u64, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_planning() {
        let mut queue = Queue::default();
        let io = |slot, used| Ticket { slot, used };
        let planned = [
            (30, Event::Issue(1)),
            (10, Event::Served(io((1 << 20) - 1, 255))),
            (30, Event::Arrive(io(2, 7))),
            (u64::MAX, Event::Detect(0)),
            (30, Event::End(io(0, 0))),
            (10, Event::Disk(3)),
            (20, Event::Cross(4)),
            (20, Event::Change(5)),
            (40, Event::Look(io(8, 9))),
            (40, Event::Hedge(io(9, 10))),
        ];
        for (at_ns, event) in planned {
            queue.push(at_ns, event);
        }
        let order = [1, 5, 6, 7, 0, 2, 4, 8, 9, 3];
        for number in order {
            assert_eq!(queue.pop(), Some(planned[number]));
        }
        assert_eq!(queue.pop(), None);
    }
}
