//! Order of outputs; without a lease, which of them may be polled (T48).
use super::legs::{Legs, Ticket, Work};
use super::{Mirror, Output, Request};
use block::Outcome;

/// Steps that follow one another without anything to be done outside.
const TURNS_MAX: usize = 8;

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
            if self.wake {
                self.turn(now_ns);
            }
        }
    }

    /// Returns the next output that may be polled.
    pub(super) fn next_output(&mut self) -> Option<Output> {
        match self.ownership.leases.lapsed().is_empty() && !self.ownership.is_lost() {
            true => self.outputs.pop_front(),
            false => self.next_allowed(),
        }
    }

    /// The next output, where not all of them may go.
    #[cold]
    pub(super) fn next_allowed(&mut self) -> Option<Output> {
        let mut at = 0;
        while let Some(&output) = self.outputs.get(at) {
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
        let still = self.stands_still();
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
            Output::Done(io, _) => return self.outputs.push_back(Output::Done(io, outcome)),
            Output::Read(io, ..) => {
                // One that waited for its turn ended with the loss of the mirror (`end_all`).
                if self.io(io).is_some() {
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
            Work::Pages(first) => self.pages_again(first, leg),
            Work::Update if self.update.waits_for(leg) => {
                self.put_due(leg);
                true
            }
            Work::Heal if !gave_up && self.heal_waits_for(leg) => {
                let ticket = self.ticket(leg, Work::Heal);
                self.outputs.push_back(Output::Flush(ticket));
                true
            }
            _ => false,
        }
    }

    /// A read that no leg may serve just now waits.
    pub(super) fn reads_wait(&mut self, io: u32, legs: Legs) -> bool {
        let slot = self.io(io);
        let waits = legs.without(self.ownership.leases.lapsed()).is_empty() && !legs.is_empty();
        if let Some(slot) = slot.filter(|it| waits && it.request.reads().is_some()) {
            self.outputs.push_back(Output::Read(io, slot.piece, legs));
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

    /// Writes withdrawn pages again.
    fn pages_again(&mut self, first: u32, leg: u8) -> bool {
        let found = self.pages_on(leg).find(|it| it.first == first);
        let Some(pages) = found else {
            return false;
        };
        let ticket = self.ticket(leg, Work::Pages(first));
        self.outputs.push_back(Output::Pages(ticket, pages));
        true
    }

    /// Repeats a withdrawn part of a user's I/O; a read goes to any leg that may serve it.
    fn io_again(&mut self, id: u32, leg: u8, gave_up: bool) -> bool {
        let told = self.times_given_up();
        let slot = self.io_mut(id);
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
                let ticket = self.ticket(leg, Work::Io(id));
                self.outputs.push_back(Output::Leg(ticket, request));
            }
        }
        true
    }
}
