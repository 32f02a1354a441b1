//! A mirror while it runs: what goes to which leg, and when an I/O is acknowledged; for whoever
//! moves the bytes.
//!
//! * `leg`: state of each leg; `legs`: sets of legs, and what they were given
//! * `io`: writes and flushes of users; [order](block::order): which of them wait; `read`: reads
//! * `leaving`: what a leg still has that has left; `unverified`: what the last one may execute
//!   late
//! * `dirty_log`: pages of the bitmap, and when intents are forgotten
//! * `commit`: superblocks: what is said of the mirror, who leaves; `heartbeat`: that its owner
//!   lives, for [`ownership`](super::ownership); `confirmed`: legs put back to an older state;
//!   `outputs`: which of them may be polled meanwhile
//! * `startup`: states from an assembly to the first change; `lifecycle`: these, and the clean stop
//! * `accept`: what the last leg in sync has lost, once
//!   a user accepts that
//! * `returns`: legs that return; `rebuild`: until they have everything; `missed`: what each lacks;
//!   `spare`: legs that wait, and are read as the last resort
//! * `change`: legs that are added and removed
//! * `grow`: a larger size
//! * `bad`: blocks that a leg could not write
//! * `copy`: what is read from one leg and written to others, under a lock
//! * `pace`: how fast that may be; `check`: all copies compared
//! * `types`: what it is asked, and what it says; `planted`: mistakes that its tests must find
//!
//! # Contract
//! [`submit`](Mirror::submit), then [`poll_output`](Mirror::poll_output) until `None`, as after
//! every other call; every [`Output`] with a ticket ends once, by
//! [`handle_done`](Mirror::handle_done) or what it names. Pages and superblocks are taken when
//! their output is polled, and are durable when it ends well. A write goes to the legs when its
//! intents are durable on all legs in sync, and overlapping ones go in the order in which they came
//! (T46). It is acknowledged when every leg that is in sync *as the legs say it* has it: one that
//! failed it leaves first, durably (T14). The last leg in sync never leaves (T45): where all of
//! them fail, the first one stays, and the I/O fails; for what it may yet execute of that
//! ([`may_be_late`](Mirror::may_be_late)) changes wait (T9). A flush goes to all (T13). Of what a
//! leg has that leaves, only its own reads are waited for: a change may end before a ticket of it,
//! which still has the caller's memory (T10). The leg returns when all its tickets have ended (T9).
//!
//! # Limits
//! As many I/Os as at construction ([`Full`](block::Full) retires nothing, T6), each on at
//! most [`LEGS_MAX`](crate::limits::LEGS_MAX) legs; nothing is allocated for one. Memory: an eighth
//! of a byte per region a few times over, once more per leg that is away, and twice per leg that is
//! being rebuilt. A read of a region that is to be made alike waits for all of it. One machine has
//! the whole mirror, on one core (T46).
use super::bitmap::PAGE_BYTES;
use super::copies::{Chosen, NoLeg};
use super::layout::Place;
use super::ownership::{Ownership, State};
use super::superblock::{Owner, SUPERBLOCK_BYTES};
use super::{Crc32c, Name, Properties, Superblock};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

use block::Outcome;
use block::order::ChangeOrder;
use block::{Range, SlotMap};

mod accept;
mod bad;
mod change;
mod check;
mod commit;
mod confirmed;
mod copy;
mod dirty_log;
mod grow;
mod heartbeat;
mod io;
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
mod resync;
mod returns;
mod spare;
mod startup;
mod types;
mod unreadable;
mod unverified;

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
use check::Check;
use commit::SuperblockUpdate;
use copy::Copies;
use dirty_log::DirtyLog;
use grow::Growth;
use io::Slot;
use leg::{Leg, LegState, LegTable, Rebuild};
use legs::{Round, Work};
use lifecycle::{LineageRecord, Stop};
use loss::Loss;
use resync::Diverged;
use spare::Spare;
use startup::Startup;
use unreadable::Unreadable;

/// What the user wants to be otherwise, until it is said.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    properties: Option<Properties>,
    name: Option<Name>,
    /// Legs that are to be the mirror's, and that are not any more.
    adding: Legs,
    removing: Legs,
    growth: Option<Growth>,
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
    /// Something besides users' I/O may be due.
    wake: bool,
    legs: LegTable,
    /// The latest proposal; the committed state if there is none.
    state: Superblock,
    /// The state by the last event that was committed.
    committed: Box<Superblock>,
    changes: Changes,
    /// Legs that some leg may call in sync: what they lack is not acknowledged.
    required: Legs,
    update: SuperblockUpdate,
    sequence: u64,
    /// Until then the last leg in sync may execute what it has failed, ns; 0: it does not.
    unverified_until_ns: u64,
    log: DirtyLog,
    /// By number; `None`: it has ended, which its user was not told yet.
    slots: SlotMap<Option<Slot>>,
    /// Of changes and of pieces that jobs copy.
    order: ChangeOrder,
    is_releasing: bool,
    /// Regions that legs in sync may have differently.
    diverged: Diverged,
    copies: Copies,
    unreadable: Unreadable,
    /// Until then it is not said again that a spare was read.
    rescue_reported_until_ns: u64,
    bad: Bad,
    check: Option<Check>,
    report: CheckReport,
    errors_halved_ns: u64,
    outputs: VecDeque<Output>,
}

impl Mirror {
    /// The latest proposal; the committed state if there is none.
    pub fn superblock(&self) -> &Superblock {
        &self.state
    }

    /// The state by the last event that was committed.
    #[inline]
    pub fn committed(&self) -> &Superblock {
        &self.committed
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
            .checked_add(self.committed.geometry.bytes)?;
        Some(end)
    }

    /// Whether a policy may choose the leg, for some reads at least.
    pub fn may_read(&self, leg: u8) -> bool {
        self.legs.in_sync().has(leg) || self.legs.rebuilding().has(leg)
    }

    /// What is known of a leg.
    pub fn facts(&self, leg: u8) -> Option<LegFacts> {
        let it = self.legs.get(leg)?;
        let cut = it.cut().filter(|_| self.legs.last_in_sync() == Some(leg));
        Some(LegFacts {
            in_sync: self.legs.in_sync().has(leg),
            rebuilding: self.legs.rebuilding().has(leg),
            returning: self.changes.adding.has(leg) || self.legs.is_returning(leg),
            leaving: self.required.has(leg) && !self.legs.writable().has(leg),
            lapsed: self.lapsed().has(leg),
            cut_short: cut.is_some(),
            cut_end: cut.and_then(|cut| cut.end),
            accepting: cut.is_some_and(|cut| cut.acceptance != Acceptance::None),
            event: it.committed.event,
            since_event: it.since_event,
            lacks: self.legs.rebuild(leg).map_or(0, Rebuild::left),
            stuck: self.stuck(leg),
            bad: self.bad_of(leg),
            bad_full: it.bad_full.is_some(),
            bad_more: it.bad_full,
            last_copy: self.last_copy_on(leg),
            errors: it.errors,
            repaired: it.repaired,
            rescued: it.rescued,
            in_flight: it.in_flight,
        })
    }

    /// Whether somebody else has the mirror, or has had it since we last looked.
    pub fn has_lost_ownership(&self) -> bool {
        self.ownership.is_lost()
    }

    /// Who has the mirror instead of us, where that is known.
    pub fn foreign_owner(&self) -> Option<Owner> {
        match self.ownership.state() {
            State::Lost(other) => *other,
            _ => None,
        }
    }

    /// Regions that legs in sync may have differently, and are made alike.
    pub fn diverged(&self) -> u64 {
        self.diverged.len()
    }

    /// Fills `bytes` with these pages of the intents.
    pub fn encode_pages(&self, pages: Pages, bytes: &mut [u8], crc32c: Crc32c) {
        let numbers = pages.first..pages.first + pages.count;
        for (index, page) in numbers.zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
            let index = index as usize;
            page.copy_from_slice(&self.log.dirty().encode(index, self.state.mirror, crc32c));
        }
    }

    /// What is being written to a leg.
    pub fn encode_superblock(&self, leg: u8, copy: u8, crc32c: Crc32c) -> [u8; SUPERBLOCK_BYTES] {
        self.written(&self.legs[leg]).encode(copy, crc32c)
    }

    /// What is to be done next.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<Output> {
        self.at(now_ns);
        self.turns(now_ns);
        let mut output = self.next_output();
        if output.is_none() && self.wake {
            self.turns(now_ns);
            output = self.next_output();
        }
        if let Some(Output::Done(id, _)) = output {
            let key = self.slots.key(id);
            self.slots.remove(key);
        }
        output
    }

    /// What a leg was given has ended.
    pub fn handle_done(&mut self, ticket: Ticket, outcome: Outcome, now_ns: u64) {
        self.ended(ticket, now_ns);
        let outcome = match self.is_behind_cut(ticket) {
            true => Outcome::CutShort,
            // What is asked of a leg lies inside of it: it is, or was, smaller than the mirror
            // needs (T50). Where a flush or a heartbeat ends tells nothing of that.
            false if outcome == Outcome::PastEnd && !self.is_flush_or_heartbeat(ticket) => {
                Outcome::CutShort
            }
            false => outcome,
        };
        if outcome == Outcome::PathError && self.ask_again(ticket) {
            return;
        }
        self.ended_so(ticket, outcome);
    }

    /// What becomes of that.
    fn ended_so(&mut self, ticket: Ticket, outcome: Outcome) {
        let leg = ticket.leg;
        if outcome == Outcome::CutShort {
            self.is_cut_short(leg);
        }
        if outcome == Outcome::Erased {
            self.is_erased(leg);
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

    /// What a leg's superblocks say.
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

    /// What these pages of a leg say.
    pub fn handle_pages(&mut self, ticket: Ticket, bytes: &[u8], crc32c: Crc32c, now_ns: u64) {
        let leg = self.ended(ticket, now_ns);
        if let Work::ReadPages(first) = ticket.work {
            self.pages_read(first, leg, Ok((bytes, crc32c)));
        }
    }

    /// What was compared is the same, or differs inside of a range.
    pub fn handle_compared(&mut self, ticket: Ticket, differs: Option<Range>, now_ns: u64) {
        let leg = self.ended(ticket, now_ns);
        if let Work::Copy(job) = ticket.work {
            self.compared(job, leg, Ok(differs));
        }
    }

    /// Background copies are as fast from now on.
    pub fn set_speed(&mut self, speed: Speed, now_ns: u64) {
        self.at(now_ns);
        self.config.speed = speed;
        self.copies.pace.set(speed);
        self.wake = true;
    }

    /// Bytes per second that may be copied in the background now.
    pub fn rate(&self) -> u64 {
        self.copies.pace.rate()
    }

    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
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
        self.wake |= self.is_stopping();
        let leg = &mut self.legs[ticket.leg];
        leg.in_flight -= 1;
        leg.is_probed &= ticket.work != Work::Verify;
        // It may be the last thing that it had when it left.
        let waits = leg.spare() != Spare::Missing || matches!(leg.state(), LegState::Fenced(..));
        self.wake |= leg.in_flight == 0 && waits;
        ticket.leg
    }

    /// A ticket for something that a leg is given now.
    fn ticket(&mut self, leg: u8, work: Work) -> Ticket {
        self.legs[leg].in_flight += 1;
        Ticket { leg, work }
    }

    fn news(&mut self, news: News) {
        self.outputs.push_back(Output::News(news));
    }

    /// Flushes several legs; the round of it.
    fn flush_all(&mut self, legs: Legs, work: Work) -> Round {
        for leg in legs.iter() {
            let ticket = self.ticket(leg, work);
            self.outputs.push_back(Output::Flush(ticket));
        }
        Round::of(legs)
    }

    /// A leg has ended its part of a flush; the round once all legs have, and those that failed it
    /// have left.
    fn flush_ended(
        &mut self,
        flush: impl FnOnce(&mut Self) -> &mut Option<Round>,
        leg: u8,
        outcome: Outcome,
    ) -> Option<Round> {
        let flush = flush(self);
        if !flush.as_mut()?.ends(leg, outcome) {
            return None;
        }
        let round = flush.take()?;
        self.wake = true;
        self.leave(round);
        Some(round)
    }

    /// The regions that a range touches.
    fn regions(&self, range: Range) -> core::ops::Range<u64> {
        let shift = self.state.geometry.region_shift;
        range.start >> shift..range.end.div_ceil(1 << shift)
    }

    /// The bytes of a region.
    fn bytes_of(&self, region: u64) -> Range {
        // A larger size that is just being said is nobody's yet.
        let geometry = &self.committed.geometry;
        let start = region << geometry.region_shift;
        let end = start.saturating_add(1 << geometry.region_shift);
        let end = end.min(geometry.bytes);
        Range { start, end }
    }
}

#[cfg(test)]
mod tests;
