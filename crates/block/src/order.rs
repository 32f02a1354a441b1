//! Order of overlapping changes in flight, whoever sent them (T9).
//!
//! Decides, from byte ranges alone, when a change may be executed. Pure: the caller executes.
//!
//! # Contract
//! [`ChangeOrder::admit`] registers a change. It may be executed once all changes that were
//! registered before it and overlap it have ended: at once, or when [`ChangeOrder::poll_begun`]
//! names it. [`ChangeOrder::end`] when it was executed or has failed for good; a change that was
//! not executed is taken back by [`ChangeOrder::withdraw`] at any time. So overlapping changes are
//! executed in the order of their registration, and a change of a session that is gone keeps its
//! place until it has ended. Changes that don't overlap never wait for each other.
//!
//! A change waits only for earlier ones, so nothing waits for ever as long as each change that
//! has begun ends.
//!
//! # Cost
//! `segments` holds, in order, which bytes are covered and by which change last. A change that
//! overlaps none costs a search of O(log n) steps and an insertion; one that overlaps others waits
//! for the last change of each segment that it covers, which in turn waits for the ones before. No
//! change looks at all others. The tables grow to the largest number of changes in flight and stay.
//! `cargo xtask bench layers` counts instructions.
use crate::Range;
use crate::ranges::{Entry, Ranges};
use crate::{Key, SlotMap};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// No node or link.
const NONE: u32 = u32::MAX;

/// A registered change. Never names a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(Key);

/// A change that may be executed now, with what its owner registered it under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The owner's name of the change.
    pub owner: u64,
    /// Its ticket.
    pub ticket: Ticket,
}

/// Changes in flight on several volumes. See the module.
#[derive(Debug)]
pub struct ChangeOrder {
    /// Covered bytes; disjoint. The owner of each is the node of the last change that covers it.
    segments: Ranges,
    nodes: SlotMap<Node>,
    links: Vec<Link>,
    free_link: u32,
    /// Nodes whose turn came and that were not polled yet.
    ready: VecDeque<u32>,
    /// Nodes that ended, while their followers are released.
    ended: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for `blockers` earlier changes.
    Waiting,
    /// May be executed; its owner was not told yet.
    Ready,
    /// May be executed, as its owner knows.
    Begun,
    /// Was taken back while it waited: what waits for it still waits for those before it.
    Withdrawn,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    state: State,
    owner: u64,
    volume: u32,
    range: Range,
    /// Links of earlier changes that it waits for.
    blockers: u32,
    /// Changes that wait for it, in order of registration.
    first: u32,
    last: u32,
    /// How often [`ChangeOrder::for_each_begun`] has named it.
    looks: u32,
}

/// One change that waits for another one.
#[derive(Clone, Copy, Debug)]
struct Link {
    node: u32,
    next: u32,
}

impl ChangeOrder {
    /// Empty, with room for `changes` in flight before it takes more memory.
    pub fn new(changes: usize) -> Self {
        Self {
            segments: Ranges::new(2 * changes),
            nodes: SlotMap::new(changes as u32),
            // A change may wait for one at each of its ends.
            links: Vec::with_capacity(2 * changes),
            free_link: NONE,
            ready: VecDeque::with_capacity(changes),
            ended: Vec::with_capacity(changes),
        }
    }

    /// Whether no change is registered.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Registers a change of `range` on `volume`. Returns its ticket, and whether it may be
    /// executed at once; else [`Self::poll_begun`] names it later.
    pub fn admit(&mut self, owner: u64, volume: u32, range: Range) -> (Ticket, bool) {
        let key = self.nodes.insert(Node {
            state: State::Waiting,
            owner,
            volume,
            range,
            blockers: 0,
            first: NONE,
            last: NONE,
            looks: 0,
        });
        if range.start < range.end {
            self.cover(key.index(), volume, range);
        }
        let of = &mut self.nodes[key];
        let begins = of.blockers == 0;
        if begins {
            of.state = State::Begun;
        }
        (Ticket(key), begins)
    }

    /// Ends a change that has begun.
    ///
    /// # Panics
    /// If it has not begun, or ended before.
    pub fn end(&mut self, ticket: Ticket) {
        let state = self.state(ticket);
        assert!(
            state == Some(State::Begun),
            "a change ends that has not begun"
        );
        self.close(ticket.0.index());
    }

    /// Whether a change of `range` would have to wait.
    pub fn overlaps(&self, volume: u32, range: Range) -> bool {
        let first = self.segments.get(self.segments.seek(volume, range.start));
        first.is_some_and(|it| it.is_before_end(volume, range))
    }

    /// Whether a registered change may be executed, as it may from when it was named on.
    pub fn may_begin(&self, ticket: Ticket) -> bool {
        self.nodes[ticket.0].blockers == 0
    }

    /// Takes back a change, whether or not it may be executed by now; what waits for it still waits
    /// for those before it.
    ///
    /// # Panics
    /// If it has ended, or was taken back before.
    pub fn withdraw(&mut self, ticket: Ticket) {
        match self.state(ticket) {
            Some(State::Waiting) => self.nodes[ticket.0].state = State::Withdrawn,
            Some(State::Ready) => {
                let node = ticket.0.index();
                self.ready.retain(|it| *it != node);
                self.close(node);
            }
            Some(State::Begun) => self.close(ticket.0.index()),
            Some(State::Withdrawn) | None => panic!("a change is taken back that is not there"),
        }
    }

    /// Whether [`Self::poll_begun`] has one.
    #[inline]
    pub fn has_begun(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next change that may be executed now, in the order in which they became free.
    #[inline]
    pub fn poll_begun(&mut self) -> Option<Begun> {
        let key = self.nodes.key(self.ready.pop_front()?);
        let of = &mut self.nodes[key];
        of.state = State::Begun;
        Some(Begun {
            owner: of.owner,
            ticket: Ticket(key),
        })
    }

    /// Calls `each` for all changes that have begun: with the change, its volume and range, and how
    /// often that was done before.
    pub fn for_each_begun(&mut self, mut each: impl FnMut(Begun, u32, Range, u32)) {
        for (key, of) in self.nodes.iter_mut() {
            if of.state == State::Begun {
                let (owner, ticket) = (of.owner, Ticket(key));
                each(Begun { owner, ticket }, of.volume, of.range, of.looks);
                of.looks = of.looks.saturating_add(1);
            }
        }
    }

    fn state(&self, ticket: Ticket) -> Option<State> {
        self.nodes.get(ticket.0).map(|of| of.state)
    }

    /// Makes `node` the last change of `range`, behind those that were.
    fn cover(&mut self, node: u32, volume: u32, range: Range) {
        let place = loop {
            let place = self.segments.seek(volume, range.start);
            let first = self.segments.get(place);
            let Some(&it) = first.filter(|it| it.is_before_end(volume, range)) else {
                break place;
            };
            self.segments.remove(place);
            self.link(it.owner, node);
            // Of segments that are covered partly the rest stays as it was.
            let head = Range {
                end: range.start,
                ..it.range
            };
            let tail = Range {
                start: range.end,
                ..it.range
            };
            for range in [head, tail] {
                if range.start < range.end {
                    let place = self.segments.seek(volume, range.start);
                    self.segments.insert(place, Entry { range, ..it });
                }
            }
        };
        let owner = node;
        let entry = Entry {
            volume,
            owner,
            range,
        };
        self.segments.insert(place, entry);
    }

    /// `node` waits for `blocker`. Once is enough for segments in a row.
    fn link(&mut self, blocker: u32, node: u32) {
        let last = self.nodes[blocker].last;
        if last != NONE && self.links[last as usize].node == node {
            return;
        }
        let link = Link { node, next: NONE };
        let at = match self.links.get_mut(self.free_link as usize) {
            Some(free) => {
                let at = self.free_link;
                self.free_link = free.next;
                *free = link;
                at
            }
            None => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
        };
        match last {
            NONE => self.nodes[blocker].first = at,
            last => self.links[last as usize].next = at,
        }
        self.nodes[blocker].last = at;
        self.nodes[node].blockers += 1;
    }

    /// Releases those that wait for a node, and those that wait for withdrawn ones among them: in a
    /// loop, since a chain may be long.
    fn close(&mut self, node: u32) {
        let mut ended = Some(node);
        while let Some(node) = ended {
            let of = self.nodes.remove(self.nodes.key(node));
            self.uncover(node, of.volume, of.range);
            let mut next = of.first;
            while next != NONE {
                let link = self.links[next as usize];
                self.links[next as usize].next = self.free_link;
                self.free_link = next;
                next = link.next;
                self.unblock(link.node);
            }
            ended = self.ended.pop();
        }
    }

    fn unblock(&mut self, node: u32) {
        let of = &mut self.nodes[node];
        of.blockers -= 1;
        if of.blockers > 0 {
            return;
        }
        if of.state == State::Withdrawn {
            self.ended.push(node);
        } else {
            of.state = State::Ready;
            self.ready.push_back(node);
        }
    }

    /// Removes what a node is still the last change of.
    fn uncover(&mut self, node: u32, volume: u32, range: Range) {
        let mut rest = range;
        while rest.start < rest.end {
            let place = self.segments.seek(volume, rest.start);
            let first = self.segments.get(place);
            let Some(&it) = first.filter(|it| it.is_before_end(volume, rest)) else {
                return;
            };
            if it.owner == node {
                self.segments.remove(place);
            }
            rest.start = it.range.end;
        }
    }
}

#[cfg(test)]
mod tests;
