//! Requests of a front end that wait for free slots of their devices.
//!
//! # Contract
//! Each device has a queue of its own, oldest first: a mirror whose I/Os are all taken holds up its
//! own requests only. Devices take turns at the slots that all of a core share. A request stands in
//! one queue, once. An empty queue has no memory.
use alloc::collections::{BTreeMap, VecDeque};
use core::ops::Bound::{Excluded, Unbounded};

#[derive(Default)]
pub(crate) struct SlotQueues {
    /// By device.
    queues: BTreeMap<u16, VecDeque<u32>>,
    /// The next round begins with the first device from here on.
    next: u16,
    /// An I/O has ended since the last round.
    slot_freed: bool,
}

/// One pass over all queues.
pub(crate) struct Round {
    device: u16,
    /// Queues that may have requests to submit, with that of `device`.
    left: usize,
}

impl SlotQueues {
    /// A device has no slot for a request.
    pub fn push(&mut self, device: u16, request: u32) {
        let queue = self.queues.entry(device).or_default();
        debug_assert!(!queue.contains(&request), "{request} waits already");
        queue.push_back(request);
    }

    /// A request that waits for a slot of this device is over.
    pub fn remove(&mut self, device: u16, request: u32) {
        if let Some(queue) = self.queues.get_mut(&device) {
            queue.retain(|it| *it != request);
            self.drop_empty(device);
        }
    }

    /// An I/O of some front end ended.
    #[inline]
    pub fn slot_freed(&mut self) {
        self.slot_freed = true;
    }

    /// Begins a round, if a slot has become free since the last one.
    #[inline]
    pub fn begin_round(&mut self) -> Option<Round> {
        let begins = core::mem::take(&mut self.slot_freed) && !self.queues.is_empty();
        begins.then(|| self.first_round())
    }

    fn first_round(&self) -> Round {
        let (has_next, left) = (self.queues.contains_key(&self.next), self.queues.len());
        let device = if has_next {
            self.next
        } else {
            self.after(self.next)
        };
        Round { device, left }
    }

    /// Removes the next request of a round; the caller submits it, and then calls
    /// [`Self::is_back`].
    pub fn pop(&mut self, round: &mut Round) -> Option<u32> {
        while round.left > 0 {
            let queue = self.queues.get_mut(&round.device);
            let request = queue.and_then(VecDeque::pop_front);
            if request.is_some() {
                return request;
            }
            self.skip(round);
        }
        None
    }

    /// Whether a request that was just submitted waits again. It is the first of its device then,
    /// and the round goes on with the next device.
    pub fn is_back(&mut self, round: &mut Round, request: u32) -> bool {
        let queue = self.queues.get_mut(&round.device);
        let Some(queue) = queue.filter(|it| it.back() == Some(&request)) else {
            self.next = self.after(round.device);
            return false;
        };
        queue.rotate_right(1);
        self.skip(round);
        true
    }

    fn skip(&mut self, round: &mut Round) {
        let device = round.device;
        *round = Round {
            device: self.after(device),
            left: round.left - 1,
        };
        self.drop_empty(device);
    }

    /// The device behind this one, the first behind the last.
    fn after(&self, device: u16) -> u16 {
        let mut behind = self.queues.range((Excluded(device), Unbounded));
        let first = || self.queues.first_key_value();
        behind
            .next()
            .or_else(first)
            .map_or(0, |(device, _)| *device)
    }

    fn drop_empty(&mut self, device: u16) {
        if self.queues.get(&device).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&device);
        }
        if self.queues.is_empty() {
            // A map that had entries keeps a node.
            self.queues = BTreeMap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Submits what it can to devices with so many free slots, by number, of one pool.
    fn round(queues: &mut SlotQueues, pool: &mut usize, free: &mut [usize]) -> Vec<u32> {
        let mut submitted = Vec::new();
        queues.slot_freed();
        let Some(mut round) = queues.begin_round() else {
            unreachable!("a slot is free");
        };
        while let Some(request) = queues.pop(&mut round) {
            let device = request / 100;
            let free = &mut free[device as usize];
            if *free == 0 || *pool == 0 {
                queues.push(device as u16, request);
            } else {
                (*free, *pool) = (*free - 1, *pool - 1);
            }
            if !queues.is_back(&mut round, request) {
                submitted.push(request);
            }
        }
        submitted
    }

    fn filled() -> SlotQueues {
        let mut queues = SlotQueues::default();
        for request in [0, 100, 1, 101, 200, 2] {
            queues.push((request / 100) as u16, request);
        }
        queues
    }

    #[test]
    fn full_device_holds_up_no_other() {
        let mut queues = filled();
        let submitted = round(&mut queues, &mut 10, &mut [0, 10, 10]);
        assert_eq!(submitted, [100, 101, 200]);
        assert_eq!(round(&mut queues, &mut 10, &mut [2, 0, 0]), [0, 1]);
        assert_eq!(round(&mut queues, &mut 10, &mut [2, 0, 0]), [2]);
        assert!(queues.begin_round().is_none(), "no slot was freed");
    }

    #[test]
    fn devices_take_turns_at_slots_that_they_share() {
        let mut queues = filled();
        let each = (0..6).flat_map(|_| round(&mut queues, &mut 1, &mut [9; 3]));
        assert_eq!(each.collect::<Vec<_>>(), [0, 100, 200, 1, 101, 2]);
    }

    #[test]
    fn request_that_is_over_is_not_submitted() {
        let mut queues = filled();
        queues.remove(0, 1);
        assert_eq!(round(&mut queues, &mut 10, &mut [9, 0, 0]), [0, 2]);
    }
}
