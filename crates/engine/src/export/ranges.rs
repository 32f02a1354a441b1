//! Which changes of a volume may be under way together: for clients that may write any bytes.
//!
//! Decides, from byte ranges alone, when a change may begin. A change that covers blocks partly is
//! *exclusive*: what it reads around its bytes must still be there when it writes the whole blocks
//! back, so no other change of these blocks may be under way. Changes of whole blocks don't wait
//! for each other.
//!
//! # Contract
//! Whoever waits begins after everything that came before it and conflicts with it; nobody
//! overtakes somebody it conflicts with, so each waits for a bounded number of others. Ranges are
//! those of the blocks, not of the bytes.
//!
//! # Limits
//! As many changes as tickets, whose places are made when their client begins. While nothing
//! exclusive is
//! there, a change costs a few instructions.
use super::places::Places;
use crate::limits::TICKETS_READY;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use canary::Bug;

/// Changes under way and waiting, by ticket.
pub(super) struct Ranges {
    entries: Places<Entry>,
    active: Vec<u32>,
    waiting: VecDeque<u32>,
    /// Exclusive ones, under way or waiting.
    exclusive: u32,
}

/// One change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    pub volume: u16,
    /// First byte of its first block.
    pub start: u64,
    /// Behind its last block.
    pub end: u64,
    pub exclusive: bool,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    change: Change,
    /// In `active`.
    position: u32,
}

impl Change {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive)
            && self.volume == other.volume
            && self.start < other.end
            && other.start < self.end
    }
}

impl Ranges {
    pub fn new(clients: u16, requests: u16) -> Self {
        let ready = (usize::from(clients) * usize::from(requests)).min(TICKETS_READY);
        Self {
            entries: Places::new(clients, requests, Entry::default),
            active: Vec::with_capacity(ready),
            waiting: VecDeque::with_capacity(ready),
            exclusive: 0,
        }
    }

    /// A client's first change comes.
    pub fn open(&mut self, client: u16) {
        self.entries.open(client);
    }

    /// None of a client's changes is left.
    pub fn close(&mut self, client: u16) {
        self.entries.close(client, |_| false);
    }

    /// Whether the change may begin now; else [`Self::end`] of another says when.
    pub fn begin(&mut self, ticket: u32, change: Change) -> bool {
        self.entries[ticket].change = change;
        self.exclusive += u32::from(change.exclusive);
        if self.exclusive > 0 && !canary::has(Bug::Overtaking) {
            let mut others = self.active.iter().chain(&self.waiting);
            if others.any(|other| self.change(*other).conflicts(&change)) {
                self.waiting.push_back(ticket);
                return false;
            }
        }
        self.activate(ticket);
        true
    }

    /// A change that began is over; appends those that begin now.
    pub fn end(&mut self, ticket: u32, begun: &mut VecDeque<u32>) {
        let position = self.entries[ticket].position;
        assert!(
            self.active.get(position as usize) == Some(&ticket),
            "it has not begun"
        );
        self.active.swap_remove(position as usize);
        if let Some(&moved) = self.active.get(position as usize) {
            self.entries[moved].position = position;
        }
        self.exclusive -= u32::from(self.change(ticket).exclusive);
        let mut at = 0;
        while let Some(&next) = self.waiting.get(at) {
            let change = *self.change(next);
            let earlier = self.waiting.iter().take(at);
            let mut before = self.active.iter().chain(earlier);
            if before.any(|other| self.change(*other).conflicts(&change)) {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            self.activate(next);
            begun.push_back(next);
        }
    }

    fn activate(&mut self, ticket: u32) {
        self.entries[ticket].position = self.active.len() as u32;
        self.active.push(ticket);
    }

    fn change(&self, ticket: u32) -> &Change {
        &self.entries[ticket].change
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Begin(u16, u64, u64, bool),
        End(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let begin = (0u16..2, 0u64..12, 1u64..5, any::<bool>())
            .prop_map(|(volume, start, length, x)| Step::Begin(volume, start, start + length, x));
        let end = any::<prop::sample::Index>().prop_map(Step::End);
        prop::collection::vec(prop_oneof![begin, end], 1..60)
    }

    /// Every change, in the order of arrival; `true`: it has begun.
    struct Model(Vec<(u32, Change, bool)>);

    impl Model {
        /// Whether nothing that came before conflicts with the one at `at`.
        fn may_begin(&self, at: usize) -> bool {
            let (_, change, _) = self.0[at];
            self.0[..at].iter().all(|(_, c, _)| !c.conflicts(&change))
        }
    }

    proptest! {
        #[test]
        fn a_change_begins_as_soon_as_nothing_before_it_conflicts(steps in steps()) {
            let mut ranges = Ranges::new(1, 64);
            ranges.open(0);
            let mut model = Model(Vec::new());
            let mut tickets = 0..64;
            for step in steps {
                match step {
                    Step::Begin(volume, start, end, exclusive) => {
                        let ticket = tickets.next().unwrap();
                        let change = Change { volume, start, end, exclusive };
                        let begun = ranges.begin(ticket, change);
                        model.0.push((ticket, change, begun));
                        prop_assert_eq!(begun, model.may_begin(model.0.len() - 1));
                    }
                    Step::End(index) => {
                        let active: Vec<u32> = model.0.iter()
                            .filter(|(.., begun)| *begun).map(|(ticket, ..)| *ticket).collect();
                        if active.is_empty() {
                            continue;
                        }
                        let ticket = active[index.index(active.len())];
                        model.0.retain(|(other, ..)| *other != ticket);
                        let mut begun = VecDeque::new();
                        ranges.end(ticket, &mut begun);
                        let mut expected = Vec::new();
                        for at in 0..model.0.len() {
                            if !model.0[at].2 && model.may_begin(at) {
                                model.0[at].2 = true;
                                expected.push(model.0[at].0);
                            }
                        }
                        prop_assert_eq!(Vec::from(begun), expected);
                    }
                }
            }
            // Whatever is left comes to its end.
            while let Some((ticket, ..)) = model.0.iter().find(|(.., begun)| *begun).copied() {
                let mut begun = VecDeque::new();
                ranges.end(ticket, &mut begun);
                model.0.retain(|(other, ..)| *other != ticket);
                for (other, _, active) in &mut model.0 {
                    *active |= begun.contains(other);
                }
            }
            prop_assert!(model.0.is_empty());
            prop_assert_eq!(ranges.exclusive, 0);
        }
    }

    #[test]
    fn whole_blocks_do_not_wait_for_each_other() {
        let mut ranges = Ranges::new(1, 3);
        ranges.open(0);
        let whole = Change {
            volume: 0,
            start: 0,
            end: 8,
            exclusive: false,
        };
        assert!(ranges.begin(0, whole) && ranges.begin(1, whole));
        let exclusive = true;
        assert!(!ranges.begin(2, Change { exclusive, ..whole }));
        let mut begun = VecDeque::new();
        ranges.end(0, &mut begun);
        assert!(begun.is_empty(), "the other one is still under way");
        ranges.end(1, &mut begun);
        assert_eq!(begun, [2]);
    }
}
