//! A mirror while it runs: what goes to which leg, and when an I/O is acknowledged; for whoever
//! moves the bytes.
//!
//! # Contract
//! [`submit`](Mirror::submit), then [`poll_output`](Mirror::poll_output) until `None`; every
//! [`Output`] with a ticket ends once, by [`handle_done`](Mirror::handle_done). Pages and
//! superblocks are taken when their output is polled, and are durable when it ends well. A write
//! goes to the legs when its intents are durable on all legs in sync, and overlapping ones go in
//! the order in which they came (T46). It is acknowledged when every leg that is in sync *as the
//! legs say it* has it: one that failed it leaves first, durably (T14). The last leg in sync never
//! leaves (T45): where all of them fail, the first one stays, and the I/O fails. A flush goes to
//! all (T13). Intents are forgotten by [`relax`](Mirror::relax): what was flushed since it was last
//! written, while no leg lacks anything.
//!
//! # Limits
//! As many I/Os as at construction ([`Full`] retires nothing, T6), each on at most [`LEGS_MAX`]
//! legs; nothing is allocated for one. No rebuild, no repair of what a read found bad, no legs that
//! come back: not yet.
use super::bitmap::{Bitmap, PAGE_BYTES};
use super::{Crc32c, Superblock};
use crate::hold::{Full, Holds, Range};
use crate::limits::LEGS_MAX;
use crate::{Access, LegAttempt, LegDisposition, Outcome, dispose_leg};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What a mirror is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// From the leg that the policy chose; another one if that fails.
    Read(Range, u8),
    /// With FUA or without.
    Write(Range, bool),
    /// All that was acknowledged.
    Flush,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A part of an I/O, on a leg.
    Leg(Ticket, Request),
    /// [`Mirror::page`] of this number, durably.
    Page(Ticket, usize),
    /// [`Mirror::superblock`], durably.
    Superblock(Ticket),
    /// The I/O has ended.
    Done(u32, Outcome),
}

/// One thing that a leg was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The leg's slot.
    pub leg: u8,
    work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Io(u32),
    Page(usize),
    Event,
    /// The flush before intents are forgotten.
    Relax,
}

/// What several legs were given, until all have ended it.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    waits: LegSet,
    failed: LegSet,
    done: LegSet,
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Behind an overlapping write.
    Held,
    Intent,
    Legs,
    /// Until who failed it has left.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    request: Request,
    phase: Phase,
    round: Round,
}

/// The machine.
#[derive(Debug)]
pub struct Mirror {
    /// What is said, or is just being said.
    state: Superblock,
    /// Legs that are in sync by what all of them say durably, and the event that says so.
    happened: LegSet,
    happened_event: u64,
    /// Those of them that have not failed.
    up: LegSet,
    event: Option<Round>,
    /// No leg could take the last event: nothing can be changed any more.
    broken: bool,
    intents: Bitmap,
    durable: Bitmap,
    /// Pages that are being written.
    pages: Vec<(usize, Round)>,
    /// Bits that were set since their page is being written.
    late: Bitmap,
    slots: Vec<Option<Slot>>,
    holds: Holds,
    relaxing: Option<Round>,
    /// Regions that may be forgotten when that flush is over.
    quiet: Bitmap,
    outputs: VecDeque<Output>,
}

/// Slots of legs, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LegSet(u16);

impl LegSet {
    fn has(self, leg: u8) -> bool {
        self.0 >> leg & 1 == 1
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn add(&mut self, leg: u8) {
        self.0 |= 1 << leg;
    }

    fn remove(&mut self, leg: u8) {
        self.0 &= !(1 << leg);
    }

    fn first(self) -> Option<u8> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as u8)
    }

    fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |&leg| self.has(leg))
    }

    /// Those that are not in `other`.
    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl FromIterator<u8> for LegSet {
    fn from_iter<I: IntoIterator<Item = u8>>(legs: I) -> Self {
        let mut set = Self::default();
        legs.into_iter().for_each(|leg| set.add(leg));
        set
    }
}

impl Round {
    fn of(waits: LegSet) -> Self {
        Self {
            waits,
            ..Self::default()
        }
    }

    /// `leg` has ended; whether all have.
    fn end(&mut self, leg: u8, outcome: Outcome) -> bool {
        self.waits.remove(leg);
        match outcome.is_done() {
            true => self.done.add(leg),
            false => {
                self.failed.add(leg);
                self.outcome = Some(outcome);
            }
        }
        self.waits.is_empty()
    }
}

impl Mirror {
    /// Runs the mirror that `state` says, durably on all legs in sync; `intents` are on these too.
    pub fn new(state: Superblock, intents: Bitmap, ios: usize) -> Self {
        let happened: LegSet = state.in_sync().collect();
        Self {
            happened,
            happened_event: state.event,
            up: happened,
            event: None,
            broken: false,
            durable: intents.clone(),
            quiet: Bitmap::new(intents.regions()),
            late: Bitmap::new(intents.regions()),
            pages: Vec::with_capacity(intents.pages()),
            slots: (0..ios).map(|_| None).collect(),
            holds: Holds::new(ios),
            relaxing: None,
            outputs: VecDeque::with_capacity((ios + 1) * (LEGS_MAX + 1)),
            intents,
            state,
        }
    }

    /// What is said now, or is just being said.
    pub fn superblock(&self) -> &Superblock {
        &self.state
    }

    /// Page `index` of the intents.
    pub fn page(&self, index: usize, crc32c: Crc32c) -> [u8; PAGE_BYTES] {
        self.intents.encode(index, self.state.mirror, crc32c)
    }

    /// Whether a policy may choose the leg.
    pub fn may_read(&self, leg: u8) -> bool {
        self.up.has(leg)
    }

    /// Begins an I/O, inside the mirror; its number is free again after [`Output::Done`].
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit(&mut self, request: Request) -> Result<u32, Full> {
        let free = self.slots.iter().position(Option::is_none).ok_or(Full)?;
        let id = free as u32;
        if let Request::Write(range, _) = request {
            self.holds.insert(id, range)?;
        }
        self.slots[free] = Some(Slot {
            request,
            phase: Phase::Held,
            round: Round::default(),
        });
        self.go_on(id);
        Ok(id)
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What a leg was given has ended.
    pub fn handle_done(&mut self, ticket: Ticket, outcome: Outcome) {
        let leg = ticket.leg;
        match ticket.work {
            Work::Io(id) => self.io_done(id, leg, outcome),
            Work::Page(index) => self.page_done(index, leg, outcome),
            Work::Event => self.event_done(leg, outcome),
            Work::Relax => self.relax_done(leg, outcome),
        }
    }

    /// Forgets intents that nobody needs: from time to time.
    pub fn relax(&mut self) {
        if self.relaxing.is_some() || !self.may_forget() || self.intents.count() == 0 {
            return;
        }
        self.quiet.copy_from(&self.intents);
        for slot in self.slots.iter().flatten() {
            if let Request::Write(range, _) = slot.request {
                for region in regions(&self.state, range) {
                    self.quiet.clear(region);
                }
            }
        }
        self.relaxing = Some(Round::of(self.up));
        for leg in self.up.iter() {
            let work = Work::Relax;
            self.outputs
                .push_back(Output::Leg(Ticket { leg, work }, Request::Flush));
        }
    }

    /// Takes an I/O as far as it can go now.
    fn go_on(&mut self, id: u32) {
        let Some(slot) = self.slots[id as usize] else {
            return;
        };
        match (slot.phase, slot.request) {
            (Phase::Held, Request::Read(_, leg)) => {
                let leg = if self.up.has(leg) {
                    Some(leg)
                } else {
                    self.up.first()
                };
                self.send(id, leg.into_iter().collect());
            }
            (Phase::Held, Request::Flush) => self.send(id, self.up),
            (Phase::Held, Request::Write(..)) if self.broken => {
                self.finish(id, Outcome::PathError);
            }
            (Phase::Held, Request::Write(range, _)) if self.holds.is_first(id) => {
                self.phase(id, Phase::Intent);
                for region in regions(&self.state, range) {
                    self.quiet.clear(region);
                    self.intents.set(region);
                    if !self.durable.is_set(region) {
                        self.late.set(region);
                        self.write_page(Bitmap::page_of(region));
                    }
                }
                self.intended(id);
            }
            (Phase::Intent, _) => self.intended(id),
            (Phase::Leaving, _) => self.has_left(id),
            _ => {}
        }
    }

    /// The data may go if the intents are on the legs.
    fn intended(&mut self, id: u32) {
        if let Some(slot) = self.slots[id as usize]
            && let Request::Write(range, _) = slot.request
            && regions(&self.state, range).all(|region| self.durable.is_set(region))
        {
            self.send(id, self.up);
        }
    }

    fn phase(&mut self, id: u32, phase: Phase) {
        if let Some(slot) = &mut self.slots[id as usize] {
            slot.phase = phase;
        }
    }

    /// Gives an I/O to `legs`.
    fn send(&mut self, id: u32, legs: LegSet) {
        let Some(slot) = &mut self.slots[id as usize] else {
            return;
        };
        slot.phase = Phase::Legs;
        slot.round.waits = legs;
        let request = slot.request;
        for leg in legs.iter() {
            let work = Work::Io(id);
            self.outputs
                .push_back(Output::Leg(Ticket { leg, work }, request));
        }
    }

    fn io_done(&mut self, id: u32, leg: u8, outcome: Outcome) {
        let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) else {
            return;
        };
        if !slot.round.waits.has(leg) || !slot.round.end(leg, outcome) {
            return;
        }
        let (round, request) = (slot.round, slot.request);
        if let Request::Read(..) = request {
            let other = self.up.without(round.failed).first();
            let attempt = LegAttempt {
                access: Access::Read,
                another: other.is_some(),
            };
            return match (dispose_leg(outcome, &attempt), other) {
                (LegDisposition::Another { .. }, Some(other)) => {
                    self.send(id, LegSet::from_iter([other]));
                }
                _ => self.finish(id, outcome),
            };
        }
        self.leave(round);
        self.phase(id, Phase::Leaving);
        self.has_left(id);
    }

    /// Whoever failed something leaves; of all of them the first one stays.
    fn leave(&mut self, round: Round) {
        for leg in round.failed.iter() {
            let stays = round.done.is_empty() && Some(leg) == round.failed.first();
            let last = self.up.without(LegSet::from_iter([leg])).is_empty();
            if !stays && !last {
                self.up.remove(leg);
            }
        }
        self.say();
    }

    /// An I/O ends when all legs have it that are in sync by what they say.
    fn has_left(&mut self, id: u32) {
        let Some(slot) = self.slots[id as usize] else {
            return;
        };
        let round = slot.round;
        // Who failed it and stays is the last one in sync: its errors go to the caller.
        if round.failed.iter().any(|leg| self.up.has(leg)) {
            self.finish(id, round.outcome.unwrap_or(Outcome::PathError));
        } else if self.happened.without(round.done).is_empty() {
            self.finish(id, Outcome::Done);
        } else if self.broken {
            self.finish(id, Outcome::PathError);
        }
    }

    fn finish(&mut self, id: u32, outcome: Outcome) {
        self.slots[id as usize] = None;
        self.outputs.push_back(Output::Done(id, outcome));
        if self.holds.remove(id).is_some() {
            for other in 0..self.slots.len() as u32 {
                if self.slots[other as usize].is_some_and(|it| it.phase == Phase::Held) {
                    self.go_on(other);
                }
            }
        }
    }

    /// Says, durably, who is in sync; one event after the other.
    fn say(&mut self) {
        let said: LegSet = self.state.in_sync().collect();
        if self.event.is_some() || self.broken || said == self.up {
            return;
        }
        for leg in said.without(self.up).iter() {
            if let Some(next) = self.state.without(leg, self.happened_event) {
                self.state = next;
            }
        }
        self.event = Some(Round::of(self.up));
        for leg in self.up.iter() {
            let work = Work::Event;
            self.outputs
                .push_back(Output::Superblock(Ticket { leg, work }));
        }
    }

    fn event_done(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = &mut self.event else {
            return;
        };
        if !round.end(leg, outcome) {
            return;
        }
        let round = *round;
        self.event = None;
        if round.done.is_empty() {
            self.broken = true;
        } else if round.failed.is_empty() {
            self.happened = self.state.in_sync().collect();
            self.happened_event = self.state.event;
        }
        self.leave(round);
        // Nor can the last one say that it is alone.
        let stays = round.failed.iter().any(|leg| self.up.has(leg));
        self.broken |= stays && self.event.is_none();
        for id in 0..self.slots.len() as u32 {
            self.go_on(id);
        }
    }

    /// Writes a page, unless that is being done: then its late bits are written afterwards.
    fn write_page(&mut self, index: usize) {
        if self.pages.iter().any(|it| it.0 == index) {
            return;
        }
        let mut from = 0;
        while let Some(region) = self.late.next_of_page(index, from) {
            self.late.clear(region);
            from = region + 1;
        }
        self.pages.push((index, Round::of(self.up)));
        for leg in self.up.iter() {
            let work = Work::Page(index);
            self.outputs
                .push_back(Output::Page(Ticket { leg, work }, index));
        }
    }

    fn page_done(&mut self, index: usize, leg: u8, outcome: Outcome) {
        let Some(at) = self.pages.iter().position(|it| it.0 == index) else {
            return;
        };
        if !self.pages[at].1.end(leg, outcome) {
            return;
        }
        let round = self.pages.swap_remove(at).1;
        self.leave(round);
        // Who failed it and stays is the last one in sync: then the page is not on it.
        let written = !round.done.is_empty() && !round.failed.iter().any(|leg| self.up.has(leg));
        if written {
            let mut from = 0;
            while let Some(region) = self.intents.next_of_page(index, from) {
                if !self.late.is_set(region) {
                    self.durable.set(region);
                }
                from = region + 1;
            }
        }
        if self.late.next_of_page(index, 0).is_some() {
            self.write_page(index);
        }
        for id in 0..self.slots.len() as u32 {
            let Some(slot) = self.slots[id as usize].filter(|it| it.phase == Phase::Intent) else {
                continue;
            };
            let Request::Write(range, _) = slot.request else {
                continue;
            };
            let lacks = |region: u64| {
                let here = Bitmap::page_of(region) == index;
                here && !self.durable.is_set(region) && !self.late.is_set(region)
            };
            match round.outcome {
                Some(outcome) if !written && regions(&self.state, range).any(lacks) => {
                    self.finish(id, outcome);
                }
                _ => self.intended(id),
            }
        }
    }

    /// Whether intents may be forgotten: no leg lacks anything, nor is one about to.
    fn may_forget(&self) -> bool {
        let said: LegSet = self.state.in_sync().collect();
        !self.broken && self.event.is_none() && said == self.up && !self.state.keeps_intents()
    }

    fn relax_done(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = &mut self.relaxing else {
            return;
        };
        if !round.end(leg, outcome) {
            return;
        }
        let round = *round;
        self.relaxing = None;
        self.leave(round);
        if !round.failed.is_empty() || !self.may_forget() {
            return;
        }
        let mut from = 0;
        while let Some(region) = self.quiet.next(from) {
            self.intents.clear(region);
            self.durable.clear(region);
            self.write_page(Bitmap::page_of(region));
            from = region + 1;
        }
    }
}

/// The regions that a range touches.
fn regions(state: &Superblock, range: Range) -> impl Iterator<Item = u64> + use<> {
    let shift = state.geometry.region_shift;
    range.start >> shift..range.end.div_ceil(1 << shift)
}

#[cfg(test)]
mod tests;
