//! Executes the outputs of the mirror state machine as I/O on the legs, and feeds completions back.
//!
//! # Contract
//! The machine is polled only while there is memory for its largest output, so that each output is
//! submitted at once. When the engine's time to drain is over, the legs' I/O ends with
//! [`Outcome::Stopped`]. That is no failure of a leg: the machine gets no completions from then
//! on (it is frozen), and all I/O of users fails, also where no leg has a part of it. `Stopped`
//! from a leg whose volume alone is removed counts as a lost leg.
use super::device::{Context, MirrorDevice, Phase};
use super::holes::Run;
use super::leg::LegDevice;
use super::probe::Purpose;
use super::reads::{Reads, policy_of};
use super::record::LineageRecord;
use super::requests::User;
use super::settings::speed_of;
use super::stack::stacked;
use super::start;
use super::table::{Entry, Task};
use crate::host::{Hints, HostEvent, IoDone, IoOp, Multipath, Volume, VolumeInfo};
use crate::limits::{IO_BYTES_MAX, MIRROR_COPIES, MIRROR_COPY_BYTES, MIRROR_IOS_MAX};
use crate::machine::Span;
use crate::scratch::Scratch;
use alloc::string::String;
use alloc::vec::Vec;
use block::{IoLimits, Range, SecondaryMap};
use mirror::Id;
use mirror::assembly::Assembly;
use mirror::bitmap::PAGE_BYTES;
use mirror::copies::{Chosen, NoLeg};
use mirror::layout::COPIES_AT;
use mirror::limits::LEGS_MAX;
use mirror::machine::{Mirror, News, Output, Start, Ticket};
use mirror::ownership::Terms;
use mirror::superblock::SUPERBLOCK_BYTES;
use multipath::Outcome;

/// The machine is polled only while there is memory for the largest output.
const NO_MEMORY: &str = "an output without memory";

/// Outputs come of a machine.
const NO_MACHINE: &str = "an output of a mirror that does not run";

/// Most bytes of pages that the machine asks for at a time.
const PAGES_BYTES_MAX: u32 = 64 << 10;

/// The state machine of a mirror that runs, and the I/O of users in it.
pub(super) struct Running {
    pub machine: Mirror,
    pub info: VolumeInfo,
    pub limits: IoLimits,
    pub reads: Reads,
    /// Place in the configuration of the leg of each slot.
    pub places: [Option<u8>; LEGS_MAX],
    /// Users' I/Os, beside the machine's.
    pub users: SecondaryMap<User>,
    /// Memory to copy through, and to compare with.
    copies: Vec<Span>,
    compares: Vec<Span>,
    /// The machine gets no completions any more: see the module.
    pub frozen: bool,
    pub health: Health,
    pub record: LineageRecord,
    /// Paths that the host had found when bounds were looked at.
    pub paths_found: u64,
}

/// The health of a mirror that runs. [`Running::set_health`] changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It was not reported as ready yet.
    Unreported,
    Good,
    /// Changes fail, and why.
    Failed(String),
}

impl Running {
    /// The machine of legs that are ours.
    ///
    /// # Errors
    /// Why it can't begin, for people: no leg is there any more, or there is no memory. Nothing is
    /// kept of it.
    #[cold]
    #[inline(never)] // else each turn makes room for its stack: superblocks, policies
    pub fn begin(
        it: &mut MirrorDevice,
        assembly: &Assembly,
        given: &[Result<Chosen, NoLeg>],
        terms: Terms,
        cx: &Context<'_>,
    ) -> Result<Self, &'static str> {
        let legs = it.legs.iter().filter(|leg| leg.slot.is_some());
        let limits = stacked(cx.below.ask(), legs.map(LegDevice::device));
        let mut limits = limits.ok_or("none of its legs is there any more")?;
        limits.read_only |= assembly.read_only;
        let buffers = take_buffers(&mut it.scratch);
        let (copies, compares) = buffers.ok_or("there is no memory for its copy buffers")?;
        // An unfenced leg may execute writes of this engine or one before, which no record lists.
        let late_until_ns = |found: &Result<Chosen, NoLeg>| {
            let slot = found.ok().map(|it| it.superblock.slot);
            let leg = it
                .legs
                .iter()
                .find(|leg| leg.slot.is_some() && leg.slot == slot);
            let late = leg.is_some_and(|leg| !cx.below.host.is_fenced(leg.config.volume));
            match late {
                true => cx.now_ns.saturating_add(it.config.leg_quiesce_ns),
                false => 0,
            }
        };
        let late_until_ns: Vec<u64> = given.iter().map(late_until_ns).collect();
        let start = Start {
            assembly,
            given,
            late_until_ns: &late_until_ns,
            lineage: it.config.lineage,
            terms,
        };
        let mut places = [None; LEGS_MAX];
        let mut reads = Reads::new(policy_of(&assembly.next.properties), it.config.knobs);
        for (at, leg) in (0..).zip(&it.legs) {
            let Some(slot) = leg.slot else {
                continue;
            };
            places[usize::from(slot)] = Some(at);
            reads.set_leg(slot, leg.config.distance, leg.config.throughput);
        }
        let geometry = assembly.next.geometry;
        let speed = speed_of(&assembly.next.properties, it.config.speed);
        let machine = {
            let Phase::Starting(starting) = core::mem::replace(&mut it.phase, Phase::Over(None))
            else {
                unreachable!("it starts");
            };
            let records = it.config.degraded.records;
            start::machine(
                &start,
                starting.ownership,
                &limits,
                speed,
                records,
                cx.now_ns,
            )
        };
        Ok(Self {
            machine,
            info: VolumeInfo {
                bytes: geometry.bytes,
                block_shift: geometry.block_shift,
                transfer_max: IO_BYTES_MAX,
                read_only: limits.read_only,
            },
            limits,
            reads,
            places,
            users: SecondaryMap::new(MIRROR_IOS_MAX as u32),
            copies,
            compares,
            frozen: false,
            health: Health::Unreported,
            record: LineageRecord::new(assembly.next.event),
            paths_found: 0,
        })
    }

    /// Stops the machine, once no record is being written for which changes wait.
    pub fn stop(&mut self, now_ns: u64) {
        let waits = self.machine.waits_for_lineage_record();
        if !(waits && self.record.is_awaited(now_ns)) {
            self.record.give_up();
            self.machine.stop(now_ns);
        }
    }

    /// The slot of the leg with this identifier; `None`: it is no leg any more.
    pub fn slot_of(&self, id: Id) -> Option<u8> {
        let mut entries = self.machine.superblock().entries();
        entries.find(|it| it.1.id == id).map(|it| it.0)
    }

    /// Changes the health.
    ///
    /// # Panics
    /// If it was reported, and would not be any more.
    pub fn set_health(&mut self, next: Health) {
        assert!(next != Health::Unreported, "it was {:?}", self.health);
        self.health = next;
    }
}

impl MirrorDevice {
    /// Passes the time to the machine. Legs whose lease is over are fenced before any request that
    /// waited for room is submitted to them (T48).
    pub(super) fn handle_time(&mut self, cx: &mut Context<'_>) {
        let it = match &mut self.phase {
            Phase::Running(it) if !it.frozen => it,
            // Before it runs times are `start`'s.
            _ => return,
        };
        // Once a turn: later in the turn the machine's outputs are polled anyway.
        if core::mem::take(&mut self.is_timeout_unchecked) {
            let due = it.machine.poll_timeout();
            if due.is_some_and(|at_ns| at_ns <= cx.now_ns) {
                it.machine.handle_timeout(cx.now_ns);
            }
        }
        let queued = self.legs.iter().any(|leg| leg.depth.first().is_some());
        let waits = queued || self.queue.lacks_room() || !self.scratch.has_room(PAGES_BYTES_MAX);
        while waits && let Some(slot) = self.running().and_then(|it| it.machine.poll_lapsed()) {
            self.handle_news(News::Lapsed(slot), cx);
        }
    }

    /// Executes the machine's outputs. Returns whether there were any.
    pub(super) fn run(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = self.freeze_late(cx);
        let is_stopping = self.is_stopping();
        if let Phase::Running(it) = &mut self.phase {
            // A mirror that stops is never reported as ready.
            if !is_stopping && it.health == Health::Unreported {
                it.set_health(Health::Good);
                let id = it.machine.superblock().mirror;
                cx.events.push_back(HostEvent::Mirror(cx.number, id));
                let ready = HostEvent::Ready(cx.number, it.info);
                cx.events.push_back(ready);
                any = true;
            }
            if is_stopping {
                it.stop(cx.now_ns);
            }
        }
        self.keep_record(cx);
        any |= self.announce_returned(cx) | self.grow(cx.now_ns);
        // Also while the host has no room: a heartbeat may come behind data.
        while self.scratch.has_room(PAGES_BYTES_MAX) {
            let output = match &mut self.phase {
                Phase::Running(it) if !it.frozen => it.machine.poll_output(cx.now_ns),
                _ => None,
            };
            let Some(output) = output else {
                break;
            };
            any = true;
            self.execute(output, cx);
        }
        any | self.give_up()
    }

    /// Freezes the machine when the engine's time is over: I/O that it holds, and no leg has, must
    /// not wait for the next heartbeat to end. Returns whether it did.
    fn freeze_late(&mut self, cx: &mut Context<'_>) -> bool {
        let late = cx.below.host.is_stopping() && self.running().is_some_and(|it| !it.frozen);
        if late {
            self.freeze(cx);
        }
        late
    }

    /// Ends a mirror that is to stop and that another owner has: nothing is written to its legs any
    /// more. Returns whether it did.
    fn give_up(&mut self) -> bool {
        let is_over = |it: &Running| it.machine.has_lost_ownership() && it.users.is_empty();
        let gives_up = self.is_stopping() && self.running().is_some_and(|it| is_over(it));
        if gives_up {
            self.end();
            let why = "somebody else has it";
            self.orders.grown.get_or_insert(Err(why.into()));
        }
        gives_up
    }

    pub(super) fn running(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(it) => Some(it),
            _ => None,
        }
    }

    /// As [`Self::running`], where it is certain that the mirror runs.
    pub(super) fn expect_running(&mut self) -> &mut Running {
        self.running().expect(NO_MACHINE)
    }

    /// Place of the leg of a slot, and where its data begin.
    pub(super) fn at(&mut self, slot: u8) -> Option<(usize, u64, u64)> {
        let it = self.running()?;
        let at = (*it.places.get(usize::from(slot))?)?;
        let place = it.machine.place(slot)?;
        Some((at.into(), place.data_offset, place.bitmap_offset))
    }

    fn execute(&mut self, output: Output, cx: &mut Context<'_>) {
        match output {
            Output::Done(id, outcome) => self.user_done(id, outcome, cx),
            Output::Read(id, range, legs) => self.read(id, range, legs, cx),
            Output::Leg(ticket, request) => self.change(ticket, request, cx),
            Output::Flush(ticket) => {
                let Some((at, ..)) = self.at(ticket.leg) else {
                    return self.refuse_task(ticket, cx);
                };
                let entry = Entry::new(cx.index, at as u8, Task::Own(ticket), Span::default());
                let io = self.io(at, IoOp::Flush, 0, Span::default());
                self.submit_or_hold(entry, io, cx);
            }
            Output::CopyRead(ticket, copy, range) => {
                let span = self.buffer(copy, range);
                let task = Task::Own(ticket);
                self.copy(ticket, task, IoOp::Read, (copy, range.start), span, cx);
            }
            Output::CopyWrite(ticket, copy, range) => {
                let span = self.buffer(copy, range);
                if self.leaves_holes(ticket, copy, cx) {
                    return self.write_runs(ticket, copy, range, cx);
                }
                // A repair is reported with no dirty bit and no flush behind it.
                let fua = self
                    .running()
                    .is_some_and(|it| it.machine.is_checked_by(copy));
                let (task, op) = (Task::Own(ticket), IoOp::Write { fua });
                self.copy(ticket, task, op, (copy, range.start), span, cx);
            }
            Output::Compare(ticket, copy, range) => {
                let span = part_of(&self.expect_running().compares, copy, range);
                let task = Task::Compare(ticket, copy, range);
                self.copy(ticket, task, IoOp::Read, (copy, range.start), span, cx);
            }
            Output::Pages(ticket, pages) => self.write_pages(ticket, pages, cx),
            Output::ReadPages(ticket, pages) => {
                let bytes = pages.count * PAGE_BYTES as u32;
                let task = Task::Pages(ticket);
                self.meta(ticket, task, IoOp::Read, (pages.first, bytes), None, cx);
            }
            Output::Superblock(ticket, copy) => self.write_superblock(ticket, copy, cx),
            Output::ReadSuperblocks(ticket) => {
                let at = self.at(ticket.leg).map(|it| it.0);
                let at = at.filter(|&at| !self.legs[at].superblocks.are_read());
                // There was memory for more just now.
                if !at.is_some_and(|at| self.probe(at, Purpose::Machine(ticket), cx)) {
                    self.refuse_task(ticket, cx);
                }
            }
            Output::News(news) => self.handle_news(news, cx),
        }
    }

    /// Ends a ticket whose leg is not there. Else it would never end, and the leg could never
    /// return.
    pub(super) fn refuse_task(&mut self, ticket: Ticket, cx: &Context<'_>) {
        if let Some(it) = self.running() {
            it.machine
                .handle_done(ticket, Outcome::PathError, cx.now_ns);
        }
    }

    /// A copy buffer's part for `range`.
    pub(super) fn buffer(&mut self, copy: u8, range: Range) -> Span {
        part_of(&self.expect_running().copies, copy, range)
    }

    /// Reads or writes a copy buffer, from a byte of the mirror on.
    fn copy(
        &mut self,
        ticket: Ticket,
        task: Task,
        op: IoOp,
        (copy, start): (u8, u64),
        span: Span,
        cx: &mut Context<'_>,
    ) {
        let Some((at, data_offset, _)) = self.at(ticket.leg) else {
            return self.refuse_task(ticket, cx);
        };
        // A check reads everything, however busy a leg is: its latency is no sign of a failure.
        let hints = Hints {
            untimed: self
                .running()
                .is_some_and(|it| it.machine.is_checked_by(copy)),
            ..Hints::default()
        };
        let entry = Entry {
            hints,
            ..Entry::new(cx.index, at as u8, task, Span::default())
        };
        let io = self.io(at, op, data_offset + start, span);
        self.submit_data(entry, io, cx);
    }

    /// Gives a leg pages of the bitmap: the first one, and how many bytes they have.
    fn meta(
        &mut self,
        ticket: Ticket,
        task: Task,
        op: IoOp,
        (first, bytes): (u32, u32),
        span: Option<Span>,
        cx: &mut Context<'_>,
    ) {
        let Some((at, _, bitmap_offset)) = self.at(ticket.leg) else {
            if let Some(span) = span {
                self.scratch.give_back(span);
            }
            return self.refuse_task(ticket, cx);
        };
        let span = span.unwrap_or_else(|| self.scratch.take(bytes).expect(NO_MEMORY));
        let offset = bitmap_offset + u64::from(first) * PAGE_BYTES as u64;
        let entry = Entry::new(cx.index, at as u8, task, span);
        let io = self.io(at, op, offset, span);
        self.submit_or_hold(entry, io, cx);
    }

    fn write_pages(&mut self, ticket: Ticket, pages: mirror::machine::Pages, cx: &mut Context<'_>) {
        let bytes = pages.count * PAGE_BYTES as u32;
        let span = self.scratch.take(bytes).expect(NO_MEMORY);
        let memory = cx.memory.bytes_mut(span);
        let machine = &self.expect_running().machine;
        machine.encode_pages(pages, memory, cx.crc32c);
        let (task, op) = (Task::Own(ticket), IoOp::Write { fua: true });
        self.meta(ticket, task, op, (pages.first, bytes), Some(span), cx);
    }

    fn write_superblock(&mut self, ticket: Ticket, copy: u8, cx: &mut Context<'_>) {
        let Some((at, ..)) = self.at(ticket.leg) else {
            return self.refuse_task(ticket, cx);
        };
        let span = self.scratch.take(SUPERBLOCK_BYTES as u32);
        let span = span.expect(NO_MEMORY);
        let machine = &mut self.expect_running().machine;
        let block = machine.encode_superblock(ticket.leg, copy, cx.crc32c);
        cx.memory.bytes_mut(span).copy_from_slice(&block);
        // A heartbeat keeps the leg ours, and waits for nothing: a late write over it has a
        // lower sequence (`heartbeat`).
        let hints = Hints {
            past_gate: ticket.is_heartbeat(),
            ..Hints::default()
        };
        let entry = Entry {
            hints,
            ..Entry::new(cx.index, at as u8, Task::Own(ticket), span)
        };
        let offset = COPIES_AT[usize::from(copy & 1)];
        let io = self.io(at, IoOp::Write { fua: true }, offset, span);
        self.submit_urgent(entry, io, cx);
    }

    /// Handles the end of a request of the machine.
    pub(super) fn task_ended(&mut self, entry: &Entry, done: &IoDone, cx: &mut Context<'_>) {
        let (now_ns, outcome) = (cx.now_ns, done.outcome);
        let crc32c = cx.crc32c;
        let late_until_ns = self.late_until_ns(entry.leg.into(), cx.below.host);
        let Phase::Running(it) = &mut self.phase else {
            return; // it was stopped while a leg that had left still had this
        };
        if it.frozen {
            return; // its I/O has ended, and it gets no completions any more
        }
        let outcome = match outcome {
            Outcome::Stopped if cx.below.host.is_stopping() => return self.freeze(cx),
            // Only the volume of this leg is being removed; others go on.
            Outcome::Stopped => Outcome::PathError,
            other => other,
        };
        if outcome == Outcome::CutShort {
            self.legs[usize::from(entry.leg)].returns.extent.note_cut();
        }
        let change = match entry.task {
            Task::Io(ticket) | Task::Own(ticket) | Task::Run(Run { ticket, .. }) => Some(ticket),
            _ => None,
        };
        let failed = change.filter(|_| !outcome.is_done());
        if let Some(ticket) = failed
            && let Some(until_ns) = late_until_ns
        {
            it.machine.may_be_late(ticket.leg, until_ns, now_ns);
        }
        if let Some(ticket) = failed {
            let leg = &mut self.legs[usize::from(entry.leg)];
            let given_up = cx.below.ask().times_given_up(leg.device());
            if leg.watch.note_given_up(given_up) {
                it.machine.gives_up_writes(ticket.leg, now_ns);
            }
        }
        match entry.task {
            Task::Pages(ticket) if outcome.is_done() => {
                let bytes = cx.memory.bytes(entry.span);
                it.machine.handle_pages(ticket, bytes, crc32c, now_ns);
            }
            Task::Compare(ticket, copy, range) if outcome.is_done() => {
                let ours = part_of(&it.copies, copy, range);
                let theirs = part_of(&it.compares, copy, range);
                let differs = difference(cx.memory.bytes(ours), cx.memory.bytes(theirs));
                let differs = differs.map(|(from, to)| {
                    let block = 1_u64 << it.info.block_shift;
                    Range {
                        start: range.start + from as u64 / block * block,
                        end: range.start + (to as u64).div_ceil(block) * block,
                    }
                });
                it.machine.handle_compared(ticket, differs, now_ns);
            }
            Task::Io(ticket)
            | Task::Own(ticket)
            | Task::Pages(ticket)
            | Task::Compare(ticket, ..) => it.machine.handle_done(ticket, outcome, now_ns),
            Task::Run(run) => self.run_ended(entry, run, outcome, cx),
            Task::Probe(_) | Task::Acquire(_) | Task::Wipe => {}
        }
    }

    /// Before when a request to a leg has to start: within the mirror's lease, and a record that
    /// takes a mirror over while the reads that it rests on are fresh (T49).
    pub(super) fn start_before_ns(&self, entry: &Entry) -> u64 {
        match &self.phase {
            Phase::Running(it) => match entry.task {
                Task::Io(ticket) | Task::Own(ticket) | Task::Run(Run { ticket, .. }) => {
                    it.machine.start_before_ns(ticket)
                }
                Task::Wipe => it.machine.wipe_before_ns(),
                Task::Pages(_) | Task::Compare(..) | Task::Probe(_) | Task::Acquire(_) => u64::MAX,
            },
            Phase::Starting(it) => match (entry.task, it.ownership.acquiring()) {
                (Task::Acquire(_), Some(acquire)) => acquire.start_before_ns(),
                _ => u64::MAX,
            },
            Phase::Over(_) => u64::MAX,
        }
    }

    pub(super) fn run_timeout(&self, host: &Multipath) -> Option<u64> {
        let Phase::Running(it) = &self.phase else {
            return None;
        };
        let machine = it.machine.poll_timeout().filter(|_| !it.frozen);
        // A leg whose superblocks are being read is tried again when that read ends.
        let missing = self.legs.iter().filter(|leg| !leg.superblocks.are_read());
        let missing = missing.filter_map(|leg| Some(leg.returns.waiting()?.at_ns));
        let hangs = self.legs.iter().filter_map(|leg| leg.watch.hangs_ns);
        let interval_ns = self.heartbeat_interval_ns();
        // While the host has no room for what was given before, nothing waits for a time.
        let legs = self.legs.iter().filter(|_| !self.queue.lacks_room());
        let stalls = legs.filter_map(|leg| {
            let answered_ns = host
                .volume(leg.config.volume)
                .map_or(0, Volume::answered_ns);
            leg.depth.stalls_at(interval_ns, answered_ns)
        });
        let stop = it.record.until_ns().filter(|_| self.is_stopping());
        let due = machine.into_iter().chain(missing).chain(hangs).chain(stop);
        due.chain(stalls).min()
    }
}

/// Memory to copy through, and as much to compare with; `None`: there is no room for all of it, and
/// none is taken.
fn take_buffers(scratch: &mut Scratch) -> Option<(Vec<Span>, Vec<Span>)> {
    let buffers = (0..2 * MIRROR_COPIES).map_while(|_| scratch.take(MIRROR_COPY_BYTES));
    let mut copies: Vec<Span> = buffers.collect();
    if copies.len() < 2 * usize::from(MIRROR_COPIES) {
        copies.into_iter().for_each(|span| scratch.give_back(span));
        return None;
    }
    let compares = copies.split_off(MIRROR_COPIES.into());
    Some((copies, compares))
}

/// The part for `range` of the buffer with this number.
///
/// # Panics
/// If there is none, or it is shorter: the machine copies in pieces that fit.
fn part_of(buffers: &[Span], copy: u8, range: Range) -> Span {
    let whole = buffers[usize::from(copy)];
    let bytes = range.end - range.start;
    assert!(bytes <= whole.len.into(), "{range:?} in {whole:?}");
    let len = bytes as u32;
    Span { len, ..whole }
}

/// The first byte that differs, and the one behind the last.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<(usize, usize)> {
    if ours == theirs {
        return None;
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = ours.iter().zip(theirs).position(differs)?;
    let last = ours.iter().zip(theirs).rposition(differs)?;
    Some((first, last + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_buffer_begins_with_it() {
        let at = |at| Span { at, len: 64 << 10 };
        let buffers = [at(1 << 20), at(2 << 20)];
        let part = part_of(&buffers, 1, Range::new(8192, 4096));
        assert_eq!((part.at, part.len), (2 << 20, 4096));
    }

    #[test]
    fn copy_buffers_without_room_for_all_take_none() {
        let len = MIRROR_COPY_BYTES * u32::from(2 * MIRROR_COPIES);
        let free = |len| {
            let mut scratch = Scratch::new(Span { at: 1 << 20, len });
            let taken = take_buffers(&mut scratch).is_some();
            (taken, scratch.free_bytes())
        };
        assert_eq!(free(len), (true, 0));
        let less = len - MIRROR_COPY_BYTES;
        assert_eq!(free(less), (false, less.into()));
    }

    #[test]
    #[should_panic(expected = "Range { start: 0, end: 65537 }")]
    fn piece_larger_than_its_buffer_panics() {
        let buffers = [Span {
            at: 1 << 20,
            len: 64 << 10,
        }];
        part_of(&buffers, 0, Range::new(0, (64 << 10) + 1));
    }
}
