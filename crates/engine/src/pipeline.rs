//! One request of a front end on its way over a device.
//!
//! Responsible for the request's place among overlapping changes, for its I/Os, for zeroes that the
//! device can't write by command, and for the request's outcome. Not for buffers, for partial
//! blocks, nor for what the client is told: these are the front end's.
//!
//! # Contract
//! [`Stage`] lists the states; [`Pipeline::enter`] alone changes them, and asserts the edge. The
//! front end calls [`Pipeline::pump`] when the request may go on, and acts on the end of a stage.
//!
//! A request whose device has no Write Zeroes, by a path or a leg that lacks it, writes zeroes from
//! a [`ZeroBuffer`] instead, in its place in the order; blocks that were zeroed before are written
//! again.
//!
//! # Limits
//! [`REQUEST_IOS_MAX`] I/Os of a request at a time.
use crate::host::{Io, IoOp, SubmitError};
use crate::limits::{AGAIN_MAX, BUFFER_MAX, REQUEST_IOS_MAX, ZEROES_BYTES};
use crate::machine::{Memory, Span};
use crate::mirror::Devices;
use crate::slot_queues::SlotQueues;
use block::Range;
use block::order::{ChangeOrder, Ticket};
use multipath::Outcome;

/// Most bytes of one I/O without data; a multiple of each block size.
const PIECE_MAX: u64 = 1 << 31;
const _: () = assert!(ZEROES_BYTES >= nbd::limits::BLOCK_MIN_MAX);

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No request.
    #[default]
    Free,
    /// Waits for memory.
    Memory,
    /// A write whose data arrives.
    Data,
    /// Waits for a place among the changes of all cores.
    Cores,
    /// Waits for changes that it overlaps.
    Order,
    /// The blocks that it covers partly are read.
    Edges,
    /// Waits for the end of the turn, where memory can be touched: what was read is merged, or
    /// compared.
    Merge,
    /// Its I/Os are under way, or wait for slots of its device.
    Io,
    /// They are done and must become durable.
    Flush,
    /// It has ended; its answer may refer to its memory.
    Answered,
}

impl Stage {
    fn may_become(self, next: Self) -> bool {
        use Stage::{Answered, Cores, Data, Edges, Flush, Free, Io, Memory, Merge, Order};
        match self {
            Free => matches!(next, Memory | Data | Cores | Order | Io),
            Memory => matches!(next, Data | Cores | Order | Io | Answered | Free),
            Data => matches!(next, Cores | Order | Answered | Free),
            Cores => matches!(next, Order | Answered),
            Order => matches!(next, Edges | Io | Answered),
            Edges => matches!(next, Merge | Answered),
            Merge => matches!(next, Io | Answered),
            Io => matches!(next, Merge | Flush | Answered),
            Flush => next == Answered,
            Answered => next == Free,
        }
    }
}

/// How a range is zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Zeroing {
    /// By command or not at all; or nothing is zeroed.
    #[default]
    Fast,
    /// By command, if the device has it.
    Command,
    /// The device has no such command; other I/Os of the request are still under way.
    Refused,
    /// By writes.
    Writes,
}

/// Purpose of an I/O of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A block that is covered partly.
    Edge,
    /// The next bytes of the range.
    Range,
    /// All that was written before.
    Flush,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Pipeline {
    stage: Stage,
    /// Number of its device.
    device: u16,
    op: IoOp,
    /// Range of its I/Os on the device, in whole blocks; empty where there is nothing to do.
    range: Range,
    /// Next byte of it to ask for.
    cursor: u64,
    /// Edges, or the flush, of this stage that were asked for.
    asked: u8,
    /// I/Os under way.
    outstanding: u16,
    /// I/Os that its range was cut into.
    pieces: u16,
    /// How often its device had given up unflushed writes when the request began, and how often the
    /// request was begun anew for that (T13). Low bits: a request sees fewer.
    given_up: u16,
    again: u8,
    /// How many losses flushes of this core had failed for when it began.
    losses: u16,
    zeroing: Zeroing,
    /// It waits for a slot of its device.
    is_queued: bool,
    /// Its place among the changes under way, from when all of it is here until its last I/O ended.
    order: Option<Ticket>,
    alone: Alone,
    failed: Option<Outcome>,
}

/// Whether a change has to be alone in its range, on all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Alone {
    #[default]
    No,
    /// Its turn has not come on all of them.
    Asked,
    /// It has.
    Granted,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self {
            stage: Stage::Free,
            device: 0,
            op: IoOp::Flush,
            range: Range::new(0, 0),
            cursor: 0,
            asked: 0,
            outstanding: 0,
            pieces: 0,
            given_up: 0,
            again: 0,
            losses: 0,
            zeroing: Zeroing::Fast,
            is_queued: false,
            order: None,
            alone: Alone::No,
            failed: None,
        }
    }
}

impl Pipeline {
    /// A request comes: what its I/Os do with this range of a device.
    pub fn begin(&mut self, device: u16, op: IoOp, range: Range) {
        assert_eq!(self.stage, Stage::Free, "a request is under way");
        let zeroing = match op {
            IoOp::WriteZeroes { .. } => Zeroing::Command,
            _ => Zeroing::Fast,
        };
        *self = Self {
            device,
            op,
            range,
            cursor: range.start,
            zeroing,
            ..Self::default()
        };
    }

    /// It fails where zeroing is no faster than writing.
    pub fn zero_fast(&mut self) {
        self.zeroing = Zeroing::Fast;
    }

    /// Whether the data of a write must be durable before it ends.
    pub fn set_fua(&mut self, fua: bool) {
        assert!(
            matches!(self.op, IoOp::Write { .. }),
            "only writes have FUA"
        );
        self.op = IoOp::Write { fua };
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn device(&self) -> u16 {
        self.device
    }

    pub fn range(&self) -> Range {
        self.range
    }

    /// Bytes of its range that were asked for.
    pub fn position(&self) -> u64 {
        self.cursor - self.range.start
    }

    /// Edges, or the flush, of its stage that were asked for.
    pub fn asked(&self) -> u8 {
        self.asked
    }

    /// Changes the stage.
    pub fn enter(&mut self, stage: Stage) {
        let before = core::mem::replace(&mut self.stage, stage);
        assert!(before.may_become(stage), "{before:?} becomes {stage:?}");
    }

    /// It fails so, unless it has failed before.
    pub fn fail(&mut self, outcome: Outcome) {
        self.failed.get_or_insert(outcome);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether no I/O of it is under way.
    pub fn is_waiting(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether part of it was not asked for yet.
    pub fn has_left(&self) -> bool {
        match self.op {
            IoOp::Flush => self.asked == 0,
            _ => self.cursor < self.range.end,
        }
    }

    /// How many losses flushes of this core had failed for when it was begun.
    pub fn losses(&self) -> u16 {
        self.losses
    }

    /// It is to make durable what was begun then.
    pub fn continue_from(&mut self, losses: u16) {
        self.losses = losses;
    }

    /// Whether a flush of this core has failed for a loss since then.
    pub fn has_lost(&self, devices: &Devices) -> bool {
        self.losses != devices.flush_losses(self.device) as u16
    }

    /// Whether an I/O of its range was asked for.
    pub fn has_begun(&self) -> bool {
        self.pieces > 0
    }

    /// Takes a place among the changes of its device; whether none is in the way.
    pub fn admit(&mut self, devices: &mut Devices, owner: u64, range: Range) -> bool {
        self.enter(Stage::Order);
        let (place, begins) = devices.order.admit(owner, self.device.into(), range);
        self.order = Some(place);
        begins
    }

    /// Asks the other cores for a place: it covers blocks partly. `id`: its number, and its cookie
    /// there.
    pub fn ask_cores(&mut self, id: u32, devices: &mut Devices, range: Range) {
        self.enter(Stage::Cores);
        self.alone = Alone::Asked;
        devices.cross_core.ask(id.into(), self.device, range);
    }

    /// The turn of a change has come on this core; whether it begins.
    #[inline]
    pub fn has_turn(&self, id: u32, devices: &mut Devices) -> bool {
        if self.alone != Alone::Asked {
            return true;
        }
        devices.cross_core.has_turn(id.into());
        false
    }

    /// Its turn has come on all cores.
    pub fn begin_alone(&mut self) {
        assert_eq!(self.alone, Alone::Asked, "it has a turn that did not ask");
        self.alone = Alone::Granted;
    }

    /// No change is in the way: its I/Os begin, with those of blocks that it covers partly.
    #[inline]
    pub fn start(&mut self, devices: &Devices, has_edges: bool) {
        self.given_up = devices.times_given_up(self.device) as u16;
        self.losses = devices.flush_losses(self.device) as u16;
        self.asked = 0;
        self.enter(if has_edges { Stage::Edges } else { Stage::Io });
    }

    /// Data that was read for it is merged or compared: its I/Os go on.
    pub fn merged(&mut self) {
        self.asked = 0;
        self.enter(Stage::Io);
    }

    /// Its changes must become durable. Nothing of it is executed any more, and a flush may wait
    /// long: it is no longer in the way of other changes.
    pub fn begin_flush(&mut self, id: u32, devices: &mut Devices) {
        self.asked = 0;
        self.enter(Stage::Flush);
        self.leave_order(id, devices, ChangeOrder::end);
    }

    /// Whether all of a read or write was asked for: `next` makes no more I/Os of it.
    #[inline]
    fn is_asked_for(&self) -> bool {
        let has_data = matches!(self.op, IoOp::Read | IoOp::Write { .. });
        has_data && self.stage == Stage::Io && self.cursor == self.range.end
    }

    /// Submits a read or write that is one I/O, whose data lies in `span`, with this source and
    /// cookie. `false`: it is none, or the device did not take it: [`Self::pump`] says why.
    #[inline]
    pub fn submit_whole(
        &mut self,
        (source, cookie): (u64, u64),
        span: Span,
        devices: &mut Devices,
        now_ns: u64,
    ) -> bool {
        let length = self.range.end - self.range.start;
        let has_data = matches!(self.op, IoOp::Read | IoOp::Write { .. });
        if !has_data || self.has_failed() || !(1..=BUFFER_MAX.into()).contains(&length) {
            return false;
        }
        assert_eq!(u64::from(span.len), length, "memory of another request");
        let io = Io {
            volume: self.device,
            op: self.op,
            offset: self.range.start,
            length: span.len,
            span,
            source,
            cookie,
        };
        let is_taken = devices.submit(&io, now_ns).is_ok();
        if is_taken {
            self.count(Part::Range, io.length);
        }
        is_taken
    }

    /// Whether it was one I/O with data, which has ended.
    #[inline]
    pub fn has_ended_whole(&self) -> bool {
        self.pieces == 1 && self.outstanding == 0 && self.is_asked_for()
    }

    /// Asks for as many of its I/Os as may be, which `next` makes; whether none is left or under
    /// way in this stage.
    #[inline]
    pub fn pump(
        &mut self,
        id: u32,
        devices: &mut Devices,
        slots: &mut SlotQueues,
        now_ns: u64,
        next: impl Fn(&Self) -> Option<(Io, Part)>,
    ) -> bool {
        if self.is_asked_for() {
            return self.outstanding == 0;
        }
        self.ask(id, devices, slots, now_ns, next)
    }

    fn ask(
        &mut self,
        id: u32,
        devices: &mut Devices,
        slots: &mut SlotQueues,
        now_ns: u64,
        next: impl Fn(&Self) -> Option<(Io, Part)>,
    ) -> bool {
        loop {
            let is_full = self.outstanding == REQUEST_IOS_MAX;
            if is_full || self.has_failed() || self.zeroing == Zeroing::Refused {
                break;
            }
            let Some((io, part)) = next(self) else {
                break;
            };
            if part == Part::Flush && self.has_lost(devices) {
                // While it waited what it is to make durable was lost, perhaps, and another flush
                // was told: the device finds nothing unflushed (T13).
                self.fail(Outcome::PathError);
                break;
            }
            let submitted = match self.stage {
                Stage::Edges => devices.submit_for_change(&io, now_ns),
                _ => devices.submit(&io, now_ns),
            };
            match submitted {
                Ok(()) => {
                    self.count(part, io.length);
                    if self.is_asked_for() {
                        return false;
                    }
                }
                Err(SubmitError::Full) => {
                    if !self.is_queued {
                        self.is_queued = true;
                        slots.push(self.device, id);
                    }
                    return false;
                }
                Err(SubmitError::NotReady) => self.fail(Outcome::Stopped),
                Err(SubmitError::Range) => self.fail(Outcome::Invalid),
                Err(SubmitError::PastEnd { .. }) => self.fail(Outcome::PastEnd),
            }
        }
        self.outstanding == 0
    }

    fn count(&mut self, part: Part, length: u32) {
        self.outstanding += 1;
        if self.stage == Stage::Io {
            self.pieces = self.pieces.saturating_add(1);
        }
        match part {
            Part::Edge | Part::Flush => self.asked += 1,
            Part::Range => self.cursor += u64::from(length),
        }
    }

    /// The next I/O of its range, or its flush, with source and cookie of `of`. `buffer`: where so
    /// many bytes from that byte of the range on lie in its memory; or fewer, to the end of a
    /// buffer.
    pub fn next_io(
        &self,
        (source, cookie): (u64, u64),
        zeroes: &ZeroBuffer,
        buffer: impl FnOnce(u64, u32) -> Span,
    ) -> Option<(Io, Part)> {
        let io = |op, offset, length, span| Io {
            volume: self.device,
            op,
            offset,
            length,
            span,
            source,
            cookie,
        };
        if self.stage == Stage::Flush || self.op == IoOp::Flush {
            let flush = io(IoOp::Flush, 0, 0, Span::default());
            return (self.asked == 0).then_some((flush, Part::Flush));
        }
        let left = self.range.end - self.cursor;
        if left == 0 {
            return None;
        }
        let (op, span) = match self.op {
            IoOp::Read | IoOp::Write { .. } => {
                let most = left.min(BUFFER_MAX.into()) as u32;
                (self.op, buffer(self.cursor - self.range.start, most))
            }
            IoOp::WriteZeroes { .. } if self.zeroing == Zeroing::Writes => {
                (IoOp::Write { fua: false }, zeroes.part(left))
            }
            op => {
                let it = io(op, self.cursor, left.min(PIECE_MAX) as u32, Span::default());
                return Some((it, Part::Range));
            }
        };
        Some((io(op, self.cursor, span.len, span), Part::Range))
    }

    /// An I/O of it has ended.
    pub fn io_ended(&mut self, outcome: Outcome) {
        self.outstanding -= 1;
        match (outcome, self.zeroing) {
            (Outcome::Done, _) => {}
            // A hint, so doing nothing is right: paths may be without it since the client was told.
            (Outcome::Unsupported, _) if self.op == IoOp::Deallocate => {}
            (Outcome::Unsupported, Zeroing::Command | Zeroing::Refused)
                if self.stage == Stage::Io =>
            {
                self.zeroing = Zeroing::Refused;
            }
            (outcome, _) => self.fail(outcome),
        }
    }

    /// Begins the I/Os of its range anew, where the device can't zero by command; or if the range
    /// was cut and what was done first may be lost since: a flush elsewhere was told of that before
    /// this change ended (T13).
    pub fn begins_anew(&mut self, devices: &Devices) -> bool {
        let is_change = !matches!(self.op, IoOp::Read | IoOp::Flush);
        if self.stage != Stage::Io || !is_change || self.has_failed() {
            return false;
        }
        if self.zeroing == Zeroing::Refused {
            self.zeroing = Zeroing::Writes;
            (self.asked, self.cursor) = (0, self.range.start);
            return true;
        }
        let given_up = devices.times_given_up(self.device) as u16;
        if self.pieces < 2 || self.given_up == given_up {
            return false;
        }
        if self.again == AGAIN_MAX {
            self.fail(Outcome::PathError);
            return false;
        }
        self.again += 1;
        self.given_up = given_up;
        self.losses = devices.flush_losses(self.device) as u16;
        (self.asked, self.cursor) = (0, self.range.start);
        true
    }

    /// A slot may be free: it stands in no queue any more.
    pub fn unqueued(&mut self) {
        self.is_queued = false;
    }

    /// It ends; with what, if not well.
    #[inline]
    pub fn end(
        &mut self,
        id: u32,
        devices: &mut Devices,
        slots: &mut SlotQueues,
    ) -> Option<Outcome> {
        self.enter(Stage::Answered);
        if core::mem::take(&mut self.is_queued) {
            // It failed, or found slots before its turn. Its number may be another's soon.
            slots.remove(self.device, id);
        }
        self.leave_order(id, devices, ChangeOrder::end);
        self.failed
    }

    /// It ends while it waits, perhaps for other changes.
    pub fn withdraw(&mut self, id: u32, devices: &mut Devices, slots: &mut SlotQueues) {
        assert!(self.is_waiting(), "an I/O of the request is under way");
        self.leave_order(id, devices, ChangeOrder::withdraw);
        self.end(id, devices, slots);
    }

    /// Begins though other changes are in the way: a planted bug.
    pub fn overtake(&mut self, id: u32, devices: &mut Devices) {
        self.leave_order(id, devices, ChangeOrder::withdraw);
    }

    /// Nothing of it is executed any more: changes that it kept waiting begin in this turn.
    #[inline]
    fn leave_order(
        &mut self,
        id: u32,
        devices: &mut Devices,
        leave: impl Fn(&mut ChangeOrder, Ticket),
    ) {
        if let Some(place) = self.order.take() {
            devices.cross_core.hide(place);
            leave(&mut devices.order, place);
        }
        if self.alone != Alone::No {
            self.alone = Alone::No;
            devices.cross_core.end(id.into());
        }
    }
}

/// A part of the arena that is zero, from which a front end writes zeroes.
#[derive(Debug)]
pub(crate) struct ZeroBuffer {
    span: Span,
    is_filled: bool,
}

impl ZeroBuffer {
    /// [`ZEROES_BYTES`] that nothing else uses; none for a front end that takes no requests.
    pub fn new(span: Span) -> Self {
        Self {
            span,
            is_filled: false,
        }
    }

    /// Makes it zero, once.
    #[inline]
    pub fn fill(&mut self, memory: &mut dyn Memory) {
        if !self.is_filled {
            self.is_filled = true;
            memory.bytes_mut(self.span).fill(0);
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u32 {
        self.span.len
    }

    /// So many bytes of it, or all.
    fn part(&self, bytes: u64) -> Span {
        Span {
            at: self.span.at,
            len: bytes.min(self.span.len.into()) as u32,
        }
    }
}
