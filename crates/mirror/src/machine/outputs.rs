//! Outputs in their order, and the tickets that legs have; without a lease, which outputs may be
//! polled (T48).
use super::legs::{Legs, Round, Ticket, Work};
use super::{Mirror, News, Output, Request};
use crate::limits::LEGS_MAX;
use alloc::collections::VecDeque;
use block::Outcome;

/// Steps that follow one another without anything to be done outside.
const TURNS_MAX: usize = 8;

/// Outputs that were not polled yet, the tickets that legs have, and whether a turn is due.
#[derive(Debug)]
pub(super) struct Outputs {
    queue: VecDeque<Output>,
    /// Tickets of each leg that have not ended, by slot.
    in_flight: [u32; LEGS_MAX],
    /// Legs of which superblocks are read as those of a spare; a stop does not wait for that.
    probed: Legs,
    /// Something besides users' I/O may be due.
    is_turn_due: bool,
}

impl Outputs {
    /// None; a turn is due.
    pub fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            in_flight: [0; LEGS_MAX],
            probed: Legs::default(),
            is_turn_due: true,
        }
    }

    /// Room for so many more.
    pub fn reserve(&mut self, more: usize) {
        self.queue.reserve(more);
    }

    /// A turn is due: something besides users' I/O may be done.
    #[inline]
    pub fn wake(&mut self) {
        self.is_turn_due = true;
    }

    /// Whether a turn is due.
    #[inline]
    pub fn is_turn_due(&self) -> bool {
        self.is_turn_due
    }

    /// A turn begins: none is due, unless it wakes the mirror.
    pub fn begin_turn(&mut self) {
        self.is_turn_due = false;
    }

    /// Returns a ticket for work that a leg is given now.
    pub fn ticket(&mut self, leg: u8, work: Work) -> Ticket {
        self.in_flight[usize::from(leg)] += 1;
        if work == Work::Verify {
            self.probed.add(leg);
        }
        Ticket { leg, work }
    }

    /// Ends a ticket. Returns how many more its leg has.
    ///
    /// # Panics
    /// If the leg has none.
    pub fn end_ticket(&mut self, ticket: Ticket) -> u32 {
        let in_flight = &mut self.in_flight[usize::from(ticket.leg)];
        assert!(*in_flight > 0, "{ticket:?} ends twice");
        *in_flight -= 1;
        if ticket.work == Work::Verify {
            self.probed.remove(ticket.leg);
        }
        *in_flight
    }

    /// Returns how many tickets a leg has.
    pub fn in_flight(&self, leg: u8) -> u32 {
        self.in_flight[usize::from(leg)]
    }

    /// Whether a leg has I/O that a stop waits for.
    pub fn has_busy_leg(&self) -> bool {
        let mut legs = (0..).zip(self.in_flight);
        legs.any(|(leg, in_flight)| in_flight > u32::from(self.probed.has(leg)))
    }

    /// Adds one, behind all others.
    pub fn push(&mut self, output: Output) {
        self.queue.push_back(output);
    }

    /// Adds news, behind all other outputs.
    pub fn news(&mut self, news: News) {
        self.queue.push_back(Output::News(news));
    }

    /// Adds news in front of all other outputs.
    pub fn news_first(&mut self, news: News) {
        self.queue.push_front(Output::News(news));
    }

    /// Flushes several legs. Returns the round.
    pub fn flush(&mut self, legs: Legs, work: Work) -> Round {
        for leg in legs.iter() {
            let ticket = self.ticket(leg, work);
            self.push(Output::Flush(ticket));
        }
        Round::of(legs)
    }

    /// Takes out the first one.
    pub fn pop(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }

    /// Returns the one at a place in the order.
    pub fn get(&self, at: usize) -> Option<Output> {
        self.queue.get(at).copied()
    }

    /// Takes out the one at a place in the order.
    pub fn remove(&mut self, at: usize) {
        self.queue.remove(at);
    }

    /// Returns all, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Output> {
        self.queue.iter()
    }
}

/// Disposition of an output.
enum Fate {
    Go,
    Wait,
    /// It is dropped, and asked for again later.
    Back,
    End(Outcome),
}

impl Mirror {
    /// Takes turns until nothing more can be done without outputs.
    pub(super) fn turns(&mut self, now_ns: u64) {
        for _ in 0..TURNS_MAX {
            if self.outputs.is_turn_due() {
                self.turn(now_ns);
            }
        }
    }

    /// Returns the next output that may be polled.
    pub(super) fn next_output(&mut self) -> Option<Output> {
        match self.ownership.leases.lapsed().is_empty() && !self.ownership.is_lost() {
            true => self.outputs.pop(),
            false => self.next_allowed(),
        }
    }

    /// The next output, where not all of them may go.
    #[cold]
    pub(super) fn next_allowed(&mut self) -> Option<Output> {
        let mut at = 0;
        while let Some(output) = self.outputs.get(at) {
            match self.fate(&output) {
                Fate::Wait => at += 1,
                Fate::Go => {
                    self.outputs.remove(at);
                    return Some(match output {
                        Output::Read(io, range, legs) => {
                            Output::Read(io, range, legs.without(self.ownership.leases.lapsed()))
                        }
                        other => other,
                    });
                }
                Fate::Back => {
                    self.outputs.remove(at);
                    self.put_back(&output);
                }
                Fate::End(outcome) => {
                    self.outputs.remove(at);
                    self.end_ungiven(output, outcome);
                    at = 0;
                }
            }
        }
        self.ownership.leases.settle(self.legs.writable());
        None
    }

    fn fate(&self, output: &Output) -> Fate {
        let still = self.ownership.leases.stands_still(self.legs.in_sync());
        let failed = |leg: u8| self.ownership.leases.failed(leg);
        let all_failed = || match self.legs.in_sync().iter().all(|leg| failed(leg).is_some()) {
            true => self.legs.in_sync().first().and_then(failed),
            false => None,
        };
        let end = |outcome: Option<Outcome>| outcome.map_or(Fate::Wait, Fate::End);
        match output {
            Output::News(_) => return Fate::Go,
            Output::Done(_, outcome) if !outcome.is_done() => return Fate::Go,
            _ if self.ownership.is_over() => {
                return Fate::End(Outcome::Reservation);
            }
            Output::Done(..) if still => return end(all_failed()),
            Output::Done(..) => return Fate::Go,
            Output::Read(_, _, legs)
                if still || legs.without(self.ownership.leases.lapsed()).is_empty() =>
            {
                return end(all_failed());
            }
            Output::Read(..) => return Fate::Go,
            Output::Superblock(ticket, _)
                if !ticket.is_heartbeat()
                    && (still || self.ownership.leases.lapsed().has(ticket.leg)) =>
            {
                return Fate::Back;
            }
            Output::ReadSuperblocks(_) | Output::Superblock(..) => return Fate::Go,
            _ => {}
        }
        let Some(ticket) = output.ticket() else {
            return Fate::Go;
        };
        match self.ownership.leases.lapsed().has(ticket.leg) {
            true if !self.legs.writable().has(ticket.leg) => Fate::End(Outcome::PathError),
            true => end(failed(ticket.leg)),
            false if still => end(all_failed()),
            false => Fate::Go,
        }
    }

    /// Ends an output that was never polled.
    fn end_ungiven(&mut self, output: Output, outcome: Outcome) {
        match output {
            Output::Done(io, _) => return self.outputs.push(Output::Done(io, outcome)),
            Output::Read(io, ..) => {
                // One that waited for its turn ended with the loss of the mirror (`end_all`).
                if self.ios.get(io).is_some() {
                    self.finish(io, outcome);
                }
                return;
            }
            _ => {}
        }
        let Some(ticket) = output.ticket() else {
            unreachable!("news are always given out");
        };
        let nobody_asks = self.ownership.is_over();
        self.ended(ticket, self.now_ns);
        if !nobody_asks || ticket.io().is_some() {
            self.apply_outcome(ticket, outcome);
        }
    }

    /// Queues a request again that a leg had when its lease lapsed, and that it can't execute any
    /// more. Returns false if the request ends instead, as a flush does whose failure reports a
    /// loss (T13).
    #[cold]
    pub(super) fn ask_again(&mut self, ticket: Ticket) -> bool {
        let leg = ticket.leg;
        let over = self.ownership.is_over() || !self.legs.writable().has(leg);
        let it = &self.legs[leg];
        if over || !self.ownership.leases.lapsed().has(leg) {
            return false;
        }
        if it.late_until_ns > self.now_ns || canary::has(canary::Bug::TakenBackFails) {
            return false;
        }
        let gave_up = it.gave_up;
        match ticket.work {
            Work::Io(id) => self.io_again(id, leg, gave_up),
            Work::Pages(first) => self.log.write_again(first, leg, &mut self.outputs),
            Work::Update if self.update.waits_for(leg) => {
                self.put_due(leg);
                true
            }
            Work::Heal if !gave_up && self.bad.waits_for(leg, self.times_given_up()) => {
                let ticket = self.outputs.ticket(leg, Work::Heal);
                self.outputs.push(Output::Flush(ticket));
                true
            }
            _ => false,
        }
    }

    /// A read that no leg may serve just now waits.
    pub(super) fn reads_wait(&mut self, io: u32, legs: Legs) -> bool {
        let slot = self.ios.get(io);
        let waits = legs.without(self.ownership.leases.lapsed()).is_empty() && !legs.is_empty();
        if let Some(slot) = slot.filter(|it| waits && it.request.reads().is_some()) {
            self.outputs.push(Output::Read(io, slot.piece, legs));
        }
        waits
    }

    /// Withdraws a superblock for a leg without a lease: it waits for that.
    fn put_back(&mut self, output: &Output) {
        if let Output::Superblock(ticket, _) = *output {
            self.ended(ticket, self.now_ns);
            self.put_due(ticket.leg);
        }
    }

    fn put_due(&mut self, leg: u8) {
        self.update.put_due(leg);
        self.ownership.leases.take_back_event(leg);
    }

    /// Repeats a withdrawn part of a user's I/O; a read goes to any leg that may serve it.
    fn io_again(&mut self, id: u32, leg: u8, gave_up: bool) -> bool {
        let told = self.times_given_up();
        let slot = self.ios.get_mut(id);
        let Some(slot) = slot.filter(|slot| slot.round.waits.has(leg)) else {
            return false;
        };
        match slot.request {
            Request::Read(_) => {
                slot.round.waits.remove(leg);
                self.offer_read(id);
            }
            // One loss may fail several.
            Request::Flush if gave_up || slot.losses_before != told => return false,
            request => {
                let ticket = self.outputs.ticket(leg, Work::Io(id));
                self.outputs.push(Output::Leg(ticket, request));
            }
        }
        true
    }
}
