//! State machine of a mirror that runs: routes I/O to legs, and acknowledges it.
//!
//! * `leg`: state of each leg; `legs`: sets of legs, tickets, rounds
//! * `requests`: I/O of users, and the order of overlapping changes; `io`: writes and flushes;
//!   `read`: reads
//! * `leaving`: the rest of a leg that has left; `unverified`: late writes of the last one
//! * `dirty_log`: the bitmap and its pages; `dirty`: what waits for bits, when they are cleared
//! * `generation`: the committed state and the latest proposal; `commit`: superblock updates;
//!   `confirmed`: legs put back to an older state; `heartbeat`: heartbeats and leases; `outputs`:
//!   outputs in order, and which may be polled without a lease
//! * `startup`: states from an assembly to the first change; `stop`: those of the clean stop;
//!   `lifecycle`: both
//! * `accept`: a user accepts what the last leg in sync has lost; `loss`: lost caches
//! * `returns`: legs that return; `rebuild`: until they are in sync; `missed`: regions each lacks;
//!   `spare`: stale legs, read as the last resort
//! * `change`: legs that are added and removed; `grow`: a larger size; `unwritable`: blocks that a
//!   leg could not write; `bad`: their record
//! * `copy`: copies between legs under a lock; `jobs`: their states; `resync`, `diverged`: diverged
//!   regions; `pace`: the speed of copies; `check`, `checks`: comparison of all legs
//! * `types`: requests, outputs, news; `planted`: planted bugs
//!
//! # Contract
//! [`submit`](Mirror::submit), then [`poll_output`](Mirror::poll_output) until `None`, as after
//! every other call; every [`Output`] with a ticket ends once, by
//! [`handle_done`](Mirror::handle_done) or the function its variant names. Pages and superblocks
//! are encoded when their output is polled, and are durable when it ends well. A write goes to the
//! legs when its dirty bits are durable on all legs in sync; overlapping writes go in order of
//! submission (T46). It is acknowledged when every leg that is in sync *by a committed superblock*
//! has it: a leg that failed it leaves first, durably (T14). The last leg in sync never leaves
//! (T45): where all of them fail, the first one stays, and the I/O fails; changes wait for what
//! that leg may still execute ([`may_be_late`](Mirror::may_be_late), T9). A flush goes to all legs
//! (T13). Of a leg that leaves, only its reads are waited for: a change may end before its ticket,
//! which keeps the caller's memory (T10). The leg returns when all its tickets have ended (T9).
//!
//! # Limits
//! As many I/Os as at construction ([`Full`](block::Full) retires nothing, T6), each on at most
//! [`LEGS_MAX`](crate::limits::LEGS_MAX) legs; nothing is allocated for one. Memory: an eighth of a
//! byte per region a few times, once more per missing leg, twice per leg that is being rebuilt. A
//! read of a diverged region waits until all of it is resynced. One machine has the whole mirror,
//! on one core (T46).
use super::bitmap::PAGE_BYTES;
use super::copies::{Chosen, NoLeg};
use super::layout::Place;
use super::ownership::{Ownership, State};
use super::superblock::{Owner, SUPERBLOCK_BYTES};
use super::{Crc32c, Name, Properties, Superblock};

use block::Outcome;
use block::Range;

mod accept;
mod bad;
mod change;
mod check;
mod checks;
mod commit;
mod confirmed;
mod copy;
mod dirty;
mod dirty_log;
mod diverged;
mod generation;
mod grow;
mod heartbeat;
mod io;
mod jobs;
mod leaving;
mod leg;
mod legs;
mod lifecycle;
mod loss;
mod missed;
mod outputs;
mod pace;
pub(super) mod planted;
mod read;
mod rebuild;
mod requests;
mod resync;
mod returns;
mod spare;
mod startup;
mod stop;
mod types;
mod unreadable;
mod unverified;
mod unwritable;

pub use change::ChangeError;
pub use check::{CheckReport, DIFFERENCES_MAX};
pub use grow::GrowError;
pub use legs::{Legs, Ticket};
pub use pace::Speed;
pub use read::Wait;
pub use returns::Unfit;
pub use types::{Config, LegFacts, News, Output, Pages, Request, Resync, Start};

use accept::{Acceptance, Accepting};
use bad::Bad;
use checks::Checks;
use commit::SuperblockUpdate;
use dirty_log::DirtyLog;
use diverged::Diverged;
use generation::Generation;
use grow::Growth;
use jobs::Jobs;
use leg::{Leg, LegState, LegTable, Rebuild};
use legs::{Round, Work};
use lifecycle::LineageRecord;
use loss::Loss;
use outputs::Outputs;
use requests::{Requests, Slot};
use spare::Spare;
use startup::Startup;
use stop::Stop;
use unreadable::Unreadable;
use unverified::Unverified;

/// Changes that users ordered and that are not committed.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    properties: Option<Properties>,
    name: Option<Name>,
    /// Legs that are being added, and removed.
    adding: Legs,
    removing: Legs,
    growth: Option<Growth>,
}

impl Changes {
    /// Whether bits of regions beyond the committed size are under way.
    fn is_growing(&self) -> bool {
        self.growth.is_some_and(|it| it.is_begun())
    }
}

/// The machine.
#[derive(Debug)]
pub struct Mirror {
    config: Config,
    now_ns: u64,
    ownership: Ownership,
    lineage: u64,
    startup: Startup,
    record: LineageRecord,
    stop: Stop,
    read_only: bool,
    accepting: Accepting,
    loss: Loss,
    legs: LegTable,
    generation: Generation,
    changes: Changes,
    update: SuperblockUpdate,
    sequence: u64,
    unverified: Unverified,
    log: DirtyLog,
    ios: Requests,
    /// Regions in which legs in sync may differ.
    diverged: Diverged,
    copies: Jobs,
    unreadable: Unreadable,
    /// A read of a spare is not reported again until then.
    rescue_reported_until_ns: u64,
    bad: Bad,
    checks: Checks,
    errors_halved_ns: u64,
    outputs: Outputs,
}

impl Mirror {
    /// The latest proposal; the committed state if there is none.
    pub fn superblock(&self) -> &Superblock {
        self.generation.proposed()
    }

    /// The state by the last event that was committed.
    #[inline]
    pub fn committed(&self) -> &Superblock {
        self.generation.committed()
    }

    /// Where the mirror lies on a leg.
    pub fn place(&self, leg: u8) -> Option<Place> {
        Some(self.legs.get(leg)?.committed.place)
    }

    /// How large a leg must be to have all of the mirror.
    pub fn leg_needs(&self, leg: u8) -> Option<u64> {
        let place = self.legs.get(leg)?.committed.place;
        let end = place
            .data_offset
            .checked_add(self.generation.committed().geometry.bytes)?;
        Some(end)
    }

    /// Whether a policy may choose the leg, for some reads at least.
    pub fn may_read(&self, leg: u8) -> bool {
        self.legs.in_sync().has(leg) || self.legs.rebuilding().has(leg)
    }

    /// Returns the facts about a leg.
    pub fn facts(&self, leg: u8) -> Option<LegFacts> {
        let it = self.legs.get(leg)?;
        let cut = it.cut().filter(|_| self.legs.last_in_sync() == Some(leg));
        let rebuild = self.legs.rebuild(leg);
        Some(LegFacts {
            in_sync: self.legs.in_sync().has(leg),
            rebuilding: self.legs.rebuilding().has(leg),
            returning: self.changes.adding.has(leg) || self.legs.is_returning(leg),
            leaving: self.generation.required().has(leg) && !self.legs.writable().has(leg),
            lapsed: self.lapsed().has(leg),
            cut_short: cut.is_some(),
            cut_end: cut.and_then(|cut| cut.end),
            accepting: cut.is_some_and(|cut| cut.acceptance != Acceptance::None),
            event: it.committed.event,
            since_event: it.since_event,
            lacks: rebuild.map_or(0, Rebuild::left),
            stuck: rebuild.map_or(0, |it| self.unreadable.count_lacked(it)),
            bad: self.bad.of_leg(leg),
            bad_full: it.bad_full.is_some(),
            bad_more: it.bad_full,
            last_copy: self.last_copy_on(leg),
            errors: it.errors,
            repaired: it.repaired,
            rescued: it.rescued,
            in_flight: self.outputs.in_flight(leg),
        })
    }

    /// Whether another owner has, or has had, the mirror.
    pub fn has_lost_ownership(&self) -> bool {
        self.ownership.is_lost()
    }

    /// Returns the other owner of the mirror, where it is known.
    pub fn foreign_owner(&self) -> Option<Owner> {
        match self.ownership.state() {
            State::Lost(other) => *other,
            _ => None,
        }
    }

    /// Returns how many regions of legs in sync may differ; they are resynced.
    pub fn diverged(&self) -> u64 {
        self.diverged.len()
    }

    /// Fills `bytes` with these pages of the bitmap.
    pub fn encode_pages(&self, pages: Pages, bytes: &mut [u8], crc32c: Crc32c) {
        let numbers = pages.first..pages.first + pages.count;
        for (index, page) in numbers.zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
            let index = index as usize;
            page.copy_from_slice(&self.log.dirty().encode(
                index,
                self.generation.proposed().mirror,
                crc32c,
            ));
        }
    }

    /// Returns the bytes of the superblock that is being written to a leg.
    pub fn encode_superblock(&self, leg: u8, copy: u8, crc32c: Crc32c) -> [u8; SUPERBLOCK_BYTES] {
        self.written(&self.legs[leg]).encode(copy, crc32c)
    }

    /// Returns the next output.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<Output> {
        self.at(now_ns);
        self.turns(now_ns);
        let mut output = self.next_output();
        if output.is_none() && self.outputs.is_turn_due() {
            self.turns(now_ns);
            output = self.next_output();
        }
        if let Some(Output::Done(id, _)) = output {
            self.ios.free(id);
        }
        output
    }

    /// Ends a ticket.
    pub fn handle_done(&mut self, ticket: Ticket, outcome: Outcome, now_ns: u64) {
        self.ended(ticket, now_ns);
        let outcome = match self.is_behind_cut(ticket) {
            true => Outcome::CutShort,
            // A request lies inside of the leg: that one is, or was, smaller than the mirror needs
            // (T50). The end of a flush or a heartbeat doesn't show that.
            false if outcome == Outcome::PastEnd && !self.is_flush_or_heartbeat(ticket) => {
                Outcome::CutShort
            }
            false => outcome,
        };
        if outcome == Outcome::PathError && self.ask_again(ticket) {
            return;
        }
        self.apply_outcome(ticket, outcome);
    }

    /// Applies the outcome of a ticket to its work.
    fn apply_outcome(&mut self, ticket: Ticket, outcome: Outcome) {
        let leg = ticket.leg;
        if outcome == Outcome::CutShort {
            self.note_cut_short(leg);
        }
        if outcome == Outcome::Erased {
            self.note_erased(leg);
        }
        self.flush_failed(ticket, outcome);
        match ticket.work {
            Work::Io(id) => self.io_done(id, leg, outcome),
            Work::Pages(first) => self.pages_done(first, leg, outcome),
            Work::Update => self.update_written(leg, outcome),
            Work::ClearCold => self.cold_flushed(leg, outcome),
            Work::Resync => self.resync_flushed(leg, outcome),
            Work::Heal => self.heal_flushed(leg, outcome),
            Work::Rebuilt => self.rebuilt_flushed(leg, outcome),
            Work::Stop => self.stop_flushed(leg, outcome),
            Work::Copy(job) => self.copy_done(job, leg, outcome),
            Work::ReadPages(first) => self.pages_read(first, leg, Err(outcome)),
            Work::Return => self.return_failed(leg, outcome),
            Work::Verify => self.spare_failed(leg),
            Work::Heartbeat => self.heartbeat_done(leg, outcome),
        }
    }

    /// Ends a read of a leg's superblocks.
    pub fn handle_superblocks(
        &mut self,
        ticket: Ticket,
        found: &Result<Chosen, NoLeg>,
        now_ns: u64,
    ) {
        let leg = self.ended(ticket, now_ns);
        match ticket.work {
            Work::Heartbeat => self.heartbeat_read(leg, found),
            Work::Return => self.returned(leg, found),
            Work::Verify => self.spare_read(leg, found),
            _ => {}
        }
    }

    /// Ends a read of these pages of a leg.
    pub fn handle_pages(&mut self, ticket: Ticket, bytes: &[u8], crc32c: Crc32c, now_ns: u64) {
        let leg = self.ended(ticket, now_ns);
        if let Work::ReadPages(first) = ticket.work {
            self.pages_read(first, leg, Ok((bytes, crc32c)));
        }
    }

    /// Ends a comparison: the range that differs, if one does.
    pub fn handle_compared(&mut self, ticket: Ticket, differs: Option<Range>, now_ns: u64) {
        let leg = self.ended(ticket, now_ns);
        if let Work::Copy(job) = ticket.work {
            self.compared(job, leg, Ok(differs));
        }
    }

    /// Sets the speed of background copies.
    pub fn set_speed(&mut self, speed: Speed, now_ns: u64) {
        self.at(now_ns);
        self.config.speed = speed;
        self.copies.pace.set(speed);
        self.outputs.wake();
    }

    /// The speed of background copies.
    pub fn speed(&self) -> Speed {
        self.config.speed
    }

    /// Returns the rate of background copies, bytes per second.
    pub fn rate(&self) -> u64 {
        self.copies.pace.rate()
    }

    /// Handles the time of [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.turn(now_ns);
    }

    fn at(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.now_ns >= self.ownership.leases.end_ns() {
            self.expire_leases();
        }
    }

    fn ended(&mut self, ticket: Ticket, now_ns: u64) -> u8 {
        self.at(now_ns);
        let left = self.outputs.end_ticket(ticket);
        let leg = &self.legs[ticket.leg];
        // It may be the last thing that it had when it left.
        let waits = leg.spare() != Spare::Missing || matches!(leg.state(), LegState::Fenced(..));
        if self.stop.is_begun() || left == 0 && waits {
            self.outputs.wake();
        }
        ticket.leg
    }

    /// A flush has ended on all of its legs: those that failed it leave.
    fn flush_over(&mut self, round: Round) {
        self.outputs.wake();
        self.leave(round);
    }
}

#[cfg(test)]
mod tests;
