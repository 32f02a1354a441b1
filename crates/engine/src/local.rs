//! Local devices as block devices: files and block devices of this machine, without paths.
//!
//! Responsible for their requests to the reactor, for one flush at a time of each, and for what a
//! flush that fails means. A device takes what it is asked; an error is that of its I/O.
//!
//! # Contract
//! An operating system reports a failed write once, to the flush that comes first (T13). So a
//! device flushes for all that ask, by one request at a time: those that ask meanwhile wait for the
//! next one. A failure fails all that waited, and counts ([`Locals::times_given_up`]).
//!
//! An I/O for which the system has no room (EAGAIN, ENOMEM) is repeated after
//! [`LOCAL_BUSY_PAUSE_NS`], for [`LOCAL_BUSY_NS`] at most, and keeps its place among its device's
//! until then (T6). A flush is repeated only if it was not begun: what the system says of one that
//! was may be its only report of a lost write.
//!
//! A change starts within [`START_WITHIN_NS`] of the time at which it was allowed, or is asked
//! about anew ([`Locals::start_before_ns`]): a process that stood still executes nothing whose
//! client has let go meanwhile (T9, T49).
//!
//! The end ([`Locals::stop`]): each device that may have been written is flushed; one that can't
//! be, or lost writes of which no client heard, is named by [`HostEvent::Unflushed`].
//!
//! # Limits
//! [`LOCAL_IO_MAX`] I/Os of all devices, each of which has its part: one that hangs leaves the rest
//! to others.
use crate::host::{HostEvent, Io, IoDone, IoOp, NO_PATH, SubmitError, VolumeInfo};
use crate::host::{device, fits, misfit};
use crate::limits::{BUFFER_MAX, LOCAL_BUSY_NS, LOCAL_BUSY_PAUSE_NS, LOCAL_IO_MAX};
use crate::limits::{LOCALS_MAX, START_WITHIN_NS};
use crate::machine::{DeviceError, DeviceRequest, LocalDevice, Output};
use crate::mirror::MIRRORS_FROM;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use block::{IoLimits, SlotMap};
use core::mem;
use multipath::Outcome;

/// Number of the first local device; they are behind the mirrors.
pub const LOCALS_FROM: u16 = MIRRORS_FROM + crate::limits::MIRRORS_MAX as u16;

/// Names of device requests: of these bits they have the first one alone. Those of paths have none
/// of them where a core has local devices ([`HOST_IO_MAX`]), or both.
const MARKED: u32 = 0xc000;
const MARK: u32 = 0x8000;
/// Most I/Os on paths of a core that has local devices.
pub(crate) const HOST_IO_MAX: usize = 0x4000;
/// The name of a device's flush is its place behind this; those of I/Os are below.
const FLUSHES: u32 = LOCAL_IO_MAX;
const _: () = assert!(LOCAL_IO_MAX + LOCALS_MAX as u32 <= 0x4000);

/// A local device.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// In messages.
    pub name: String,
    /// Its number among the reactor's devices.
    pub device: LocalDevice,
    /// Bytes.
    pub bytes: u64,
    /// log2 of the block size.
    pub block_shift: u8,
    /// It takes no changes.
    pub read_only: bool,
}

/// One device.
struct Local {
    config: LocalConfig,
    info: VolumeInfo,
    /// I/Os that have not ended.
    in_flight: u32,
    /// Flushes that have failed.
    given_up: u32,
    /// One failed, or writes were lost, and the client was gone: the next flush fails for that.
    is_unreported: bool,
    /// Whether a flush is with the device, and the I/Os that it is for.
    is_flushing: bool,
    flush_patience: Patience,
    flushing: Vec<u32>,
    /// Those that wait for the next one.
    next_flush: Vec<u32>,
}

/// An I/O of some device.
struct LocalIo {
    /// Its place.
    at: usize,
    io: Io,
    patience: Patience,
}

/// Until when a request is repeated for which the system has no room; `None`: it had some.
#[derive(Default)]
struct Patience(Option<u64>);

impl Patience {
    /// There is no room at this time. Returns whether the request is repeated.
    fn is_left(&mut self, now_ns: u64) -> bool {
        now_ns < *self.0.get_or_insert(now_ns + LOCAL_BUSY_NS)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locals {
    all: Vec<Local>,
    /// Most I/Os of each.
    each_max: u32,
    ios: SlotMap<LocalIo>,
    requests: VecDeque<DeviceRequest>,
    /// Names of requests that are repeated, and when, by that time.
    paused: VecDeque<(u64, u32)>,
    done: VecDeque<IoDone>,
    events: VecDeque<HostEvent>,
    /// When the clock was read last.
    now_ns: u64,
    /// Devices whose last flush has not ended; `None`: it is not that far.
    stopping: Option<usize>,
}

impl Local {
    fn limits(&self) -> IoLimits {
        IoLimits {
            read_only: self.config.read_only,
            ..device::limits(self.config.block_shift)
        }
    }
}

impl Locals {
    /// # Panics
    /// There are too many.
    pub fn new(all: Vec<LocalConfig>) -> Self {
        assert!(all.len() <= LOCALS_MAX, "{} local devices", all.len());
        let local = |config: LocalConfig| Local {
            info: VolumeInfo {
                bytes: config.bytes,
                block_shift: config.block_shift,
                transfer_max: BUFFER_MAX,
                read_only: config.read_only,
            },
            config,
            in_flight: 0,
            given_up: 0,
            is_unreported: false,
            is_flushing: false,
            flush_patience: Patience::default(),
            flushing: Vec::new(),
            next_flush: Vec::new(),
        };
        Self {
            each_max: LOCAL_IO_MAX / all.len().max(1) as u32,
            all: all.into_iter().map(local).collect(),
            ..Self::default()
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The clock was read. A request may go on before the turn that follows.
    #[inline]
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Takes one I/O of the device in this place.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing was taken.
    pub fn submit(&mut self, at: usize, io: &Io) -> Result<(), SubmitError> {
        let local = self.all.get_mut(at).ok_or(SubmitError::NotReady)?;
        if self.stopping.is_some() {
            return Err(SubmitError::NotReady);
        }
        if !fits(io, &local.info) {
            return Err(misfit(io, &local.info));
        }
        if local.in_flight == self.each_max {
            return Err(SubmitError::Full);
        }
        if is_change(io.op) && local.config.read_only {
            self.done.push_back(ended(io.cookie, Outcome::ReadOnly));
            return Ok(());
        }
        local.in_flight += 1;
        let slot = self.ios.insert(LocalIo {
            at,
            io: *io,
            patience: Patience::default(),
        });
        let slot = slot.index();
        match io.op {
            IoOp::Flush if local.is_flushing => local.next_flush.push(slot),
            IoOp::Flush => {
                local.flushing.push(slot);
                self.flush(at);
            }
            _ => self.send(slot),
        }
        Ok(())
    }

    /// Sends a device its next flush.
    fn flush(&mut self, at: usize) {
        let local = &mut self.all[at];
        assert!(!local.is_flushing, "{}: it is flushed", local.config.name);
        local.is_flushing = true;
        self.send(FLUSHES + at as u32);
    }

    /// Sends a device the request of this name: an I/O, or its flush.
    fn send(&mut self, name: u32) {
        let request = match name.checked_sub(FLUSHES) {
            Some(at) => device::flush(self.all[at as usize].config.device, MARK | name),
            None => {
                let LocalIo { at, io, .. } = &self.ios[name];
                device::request(io, self.all[*at].config.device, MARK | name)
            }
        };
        self.requests.push_back(request);
    }

    /// The system had no room for the request of this name.
    fn pause(&mut self, name: u32) {
        let due_ns = self.now_ns + LOCAL_BUSY_PAUSE_NS;
        self.paused.push_back((due_ns, name));
    }

    /// Once per turn: requests whose pause is over are repeated.
    pub fn turn(&mut self, now_ns: u64) {
        self.set_now(now_ns);
        while let Some((due_ns, name)) = self.paused.front().copied()
            && due_ns <= now_ns
        {
            self.paused.pop_front();
            self.send(name);
        }
    }

    /// When a pause is over.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.paused.front().map(|(due_ns, _)| *due_ns)
    }

    /// Whether a device request has a name of these devices.
    #[inline]
    pub fn has_asked(&self, id: u32) -> bool {
        id & MARKED == MARK && !self.is_empty()
    }

    /// A device request has ended.
    pub fn handle_device(&mut self, id: u32, end: Result<(), DeviceError>) {
        let name = id & !MARK;
        let Some(at) = name.checked_sub(FLUSHES) else {
            let mut outcome = device::outcome(end, &[0; 3], 0);
            let it = &mut self.ios[name];
            // It flushes the file, and so took the report of other writes that failed: repeated, it
            // would end well.
            let took = it.io.op == IoOp::Write { fua: true } && device::is_failed_flush(end);
            if took {
                outcome = device::outcome_of_failed_flush(outcome);
            }
            let is_busy = matches!(outcome, Outcome::Busy { .. });
            if is_busy && it.patience.is_left(self.now_ns) {
                return self.pause(name);
            }
            return self.end(name, outcome, took);
        };
        let flush = &mut self.all[at as usize].flush_patience;
        if end == Err(DeviceError::NotBegun) && flush.is_left(self.now_ns) {
            return self.pause(name);
        }
        *flush = Patience::default();
        self.flush_ended(at as usize, end.is_ok());
    }

    /// `took`: it took the report of other writes.
    fn end(&mut self, slot: u32, outcome: Outcome, took: bool) {
        let LocalIo { at, io, .. } = self.ios.remove(self.ios.key(slot));
        let local = &mut self.all[at];
        local.in_flight -= 1;
        if took {
            local.given_up = local.given_up.wrapping_add(1);
            local.is_unreported = true;
        }
        self.done.push_back(ended(io.cookie, outcome));
    }

    /// A flush has ended, for all that waited for it.
    fn flush_ended(&mut self, at: usize, is_done: bool) {
        let local = &mut self.all[at];
        local.is_flushing = false;
        let is_lost = is_done && mem::take(&mut local.is_unreported);
        // It is told once: asked again, the device finds nothing unflushed.
        let outcome = match is_done && !is_lost {
            true => Outcome::Done,
            false => Outcome::MediaError,
        };
        if !outcome.is_done() {
            local.given_up = local.given_up.wrapping_add(1);
        }
        if let Some(left) = &mut self.stopping {
            *left -= 1;
            if !outcome.is_done() {
                let line = unflushed(&local.config.name);
                let number = LOCALS_FROM + at as u16;
                self.events.push_back(HostEvent::Unflushed(number, line));
            }
            return;
        }
        let next = mem::take(&mut local.next_flush);
        let mut flushed = mem::replace(&mut local.flushing, next);
        for slot in flushed.drain(..) {
            self.end(slot, outcome, false);
        }
        let local = &mut self.all[at];
        local.next_flush = flushed;
        if !local.flushing.is_empty() {
            self.flush(at);
        }
    }

    /// How often a flush of the device in this place has failed.
    #[inline]
    pub fn times_given_up(&self, at: usize) -> u32 {
        self.all.get(at).map_or(0, |it| it.given_up)
    }

    /// A flush of it has failed, or writes were lost; whether a client has heard of that.
    pub fn flush_failed_for(&mut self, at: usize, heard: bool) {
        if let Some(local) = self.all.get_mut(at) {
            local.is_unreported |= !heard;
        }
    }

    pub fn limits(&self, at: usize) -> Option<IoLimits> {
        self.all.get(at).map(Local::limits)
    }

    pub fn has(&self, at: usize) -> bool {
        at < self.all.len()
    }

    /// The cookie of the I/O that a change is of; `None`: the request is none.
    pub fn changes_for(&self, id: u32) -> Option<u64> {
        let key = self.ios.find(id & !MARK)?;
        let io = &self.ios.get(key)?.io;
        is_change(io.op).then_some(io.cookie)
    }

    /// When a change that is allowed now has to start.
    pub fn start_before_ns(&self) -> u64 {
        self.now_ns + START_WITHIN_NS
    }

    #[inline]
    pub fn poll_done(&mut self) -> Option<IoDone> {
        self.done.pop_front()
    }

    #[inline]
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    #[inline]
    pub fn poll_output(&mut self) -> Option<Output> {
        self.requests.pop_front().map(Output::Device)
    }

    /// No I/O is taken any more, and none is under way. Devices that may have been written are
    /// flushed.
    pub fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        let writable = |at: &usize| !self.all[*at].config.read_only;
        let all: Vec<usize> = (0..self.all.len()).filter(writable).collect();
        self.stopping = Some(all.len());
        all.into_iter().for_each(|at| self.flush(at));
    }

    /// Whether all have been flushed.
    pub fn have_stopped(&self) -> bool {
        self.stopping == Some(0)
    }
}

fn is_change(op: IoOp) -> bool {
    !matches!(op, IoOp::Read | IoOp::Flush)
}

fn ended(cookie: u64, outcome: Outcome) -> IoDone {
    IoDone {
        cookie,
        outcome,
        path: NO_PATH,
        latency_ns: 0,
    }
}

fn unflushed(name: &str) -> String {
    alloc::format!(
        "what was written to {name} may be lost: it can't be flushed, or was lost before and no \
         client was told (see what is wrong with the storage)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{DeviceOp, Span};

    const BLOCK: u32 = 4096;

    fn locals(count: u16) -> Locals {
        let local = |number| LocalConfig {
            name: alloc::format!("file {number}"),
            device: LocalDevice(number),
            bytes: 1 << 20,
            block_shift: 12,
            read_only: false,
        };
        Locals::new((0..count).map(local).collect())
    }

    fn io(op: IoOp, cookie: u64) -> Io {
        let has_data = matches!(op, IoOp::Read | IoOp::Write { .. });
        let len = if has_data { BLOCK } else { 0 };
        Io {
            volume: LOCALS_FROM,
            op,
            offset: 0,
            length: len,
            span: Span { at: 0, len },
            source: 0,
            cookie,
        }
    }

    fn asked(locals: &mut Locals) -> Vec<(DeviceOp, u32)> {
        let outputs = core::iter::from_fn(|| locals.poll_output());
        let request = |output| match output {
            Output::Device(request) => (request.op, request.id),
            other => unreachable!("{other:?}"),
        };
        outputs.map(request).collect()
    }

    fn done(locals: &mut Locals) -> Vec<(u64, Outcome)> {
        let all = core::iter::from_fn(|| locals.poll_done());
        all.map(|it| (it.cookie, it.outcome)).collect()
    }

    /// Whether it asks no device for anything, and nothing has ended.
    fn waits(locals: &mut Locals) -> bool {
        asked(locals).is_empty() && done(locals).is_empty()
    }

    /// The device's one flush. `end`: how it ends.
    fn flush_once(locals: &mut Locals, end: Result<(), DeviceError>) {
        let requests = asked(locals);
        let [(DeviceOp::Flush, id)] = requests[..] else {
            unreachable!("{requests:?}: one flush at a time");
        };
        assert!(locals.has_asked(id));
        locals.handle_device(id, end);
    }

    #[test]
    fn t13_flush_that_fails_fails_all_that_waited_for_it() {
        let mut locals = locals(1);
        for cookie in 0..2 {
            assert_eq!(locals.submit(0, &io(IoOp::Flush, cookie)), Ok(()));
        }
        // The second one came when the first had begun: it is for the next.
        flush_once(&mut locals, Err(DeviceError::Os(5)));
        assert_eq!(done(&mut locals), [(0, Outcome::MediaError)]);
        assert_eq!(locals.times_given_up(0), 1);
        locals.submit(0, &io(IoOp::Flush, 2)).unwrap();
        locals.submit(0, &io(IoOp::Flush, 3)).unwrap();
        flush_once(&mut locals, Ok(()));
        assert_eq!(done(&mut locals), [(1, Outcome::Done)]);
        flush_once(&mut locals, Err(DeviceError::Full));
        let both = [(2, Outcome::MediaError), (3, Outcome::MediaError)];
        assert_eq!(done(&mut locals), both);
        assert_eq!(locals.times_given_up(0), 2);
    }

    #[test]
    fn t13_failure_of_which_no_client_heard_fails_the_next() {
        let mut locals = locals(1);
        locals.flush_failed_for(0, true);
        locals.flush_failed_for(0, false);
        for want in [Outcome::MediaError, Outcome::Done] {
            locals.submit(0, &io(IoOp::Flush, 1)).unwrap();
            flush_once(&mut locals, Ok(()));
            assert_eq!(done(&mut locals), [(1, want)]);
        }
        assert_eq!(
            locals.times_given_up(0),
            1,
            "whose flush it was may be asked again"
        );
    }

    /// The system reports a failed write once, and this one's flush may have taken the report of
    /// another one.
    #[test]
    fn t13_durable_write_that_fails_fails_the_next_flush() {
        let mut locals = locals(1);
        for (fua, fails) in [(false, false), (true, true)] {
            locals.submit(0, &io(IoOp::Write { fua }, 1)).unwrap();
            let [(_, id)] = asked(&mut locals)[..] else {
                unreachable!("one write");
            };
            locals.handle_device(id, Err(DeviceError::Os(5)));
            assert_eq!(done(&mut locals), [(1, Outcome::MediaError)]);
            for want in [fails, false] {
                locals.submit(0, &io(IoOp::Flush, 2)).unwrap();
                flush_once(&mut locals, Ok(()));
                let told = done(&mut locals) == [(2, Outcome::MediaError)];
                assert_eq!(told, want);
            }
        }
    }

    #[test]
    fn t06_flush_that_was_not_begun_is_repeated() {
        let mut locals = locals(1);
        locals.turn(5);
        locals.submit(0, &io(IoOp::Flush, 1)).unwrap();
        flush_once(&mut locals, Err(DeviceError::NotBegun));
        assert_eq!(locals.poll_timeout(), Some(5 + LOCAL_BUSY_PAUSE_NS));
        locals.turn(4 + LOCAL_BUSY_PAUSE_NS);
        assert!(waits(&mut locals));
        // Another one is for the next flush: this one may begin any time.
        locals.submit(0, &io(IoOp::Flush, 2)).unwrap();
        locals.turn(5 + LOCAL_BUSY_PAUSE_NS);
        flush_once(&mut locals, Ok(()));
        assert_eq!(done(&mut locals), [(1, Outcome::Done)]);
        assert_eq!(locals.poll_timeout(), None);
        // Of one that was begun the number may be the report of a lost write.
        flush_once(&mut locals, Err(DeviceError::Os(12)));
        assert_eq!(done(&mut locals), [(2, Outcome::MediaError)]);
    }

    #[test]
    fn t06_io_without_room_is_repeated_for_a_while() {
        let mut locals = locals(1);
        let busy = [
            DeviceError::Os(11),
            DeviceError::Os(12),
            DeviceError::NotBegun,
        ];
        let ops = [IoOp::Read, IoOp::Write { fua: false }];
        for (op, cookie) in ops.into_iter().zip(0..) {
            let begins_ns = locals.now_ns;
            locals.submit(0, &io(op, cookie)).unwrap();
            let requests = asked(&mut locals);
            let [(_, id)] = requests[..] else {
                unreachable!("{requests:?}");
            };
            for error in busy {
                locals.handle_device(id, Err(error));
                assert!(waits(&mut locals));
                let due_ns = locals.poll_timeout().unwrap();
                assert_eq!(due_ns, locals.now_ns + LOCAL_BUSY_PAUSE_NS);
                locals.turn(due_ns);
                assert_eq!(asked(&mut locals), requests, "the same again");
            }
            assert_eq!(locals.changes_for(id).is_some(), is_change(op), "T9");
            if cookie == 0 {
                locals.handle_device(id, Ok(()));
                assert_eq!(done(&mut locals), [(cookie, Outcome::Done)]);
                continue;
            }
            locals.turn(begins_ns + LOCAL_BUSY_PAUSE_NS + LOCAL_BUSY_NS);
            locals.handle_device(id, Err(DeviceError::Os(12)));
            let busy = Outcome::Busy { after_ns: 0 };
            assert_eq!(done(&mut locals), [(cookie, busy)]);
        }
        assert_eq!((locals.all[0].in_flight, locals.poll_timeout()), (0, None));
    }

    /// It flushes the file: repeated, it would hide the report of other writes.
    #[test]
    fn t13_durable_write_is_repeated_only_if_it_was_not_begun() {
        let mut locals = locals(1);
        let write = io(IoOp::Write { fua: true }, 0);
        locals.submit(0, &write).unwrap();
        let [(_, id)] = asked(&mut locals)[..] else {
            unreachable!("one request");
        };
        locals.handle_device(id, Err(DeviceError::NotBegun));
        assert!(waits(&mut locals));
        let due_ns = locals.poll_timeout().unwrap();
        locals.turn(due_ns);
        assert_eq!(asked(&mut locals).len(), 1);
        locals.handle_device(id, Err(DeviceError::Os(12)));
        assert_eq!(done(&mut locals), [(0, Outcome::MediaError)]);
        locals.submit(0, &io(IoOp::Flush, 1)).unwrap();
        flush_once(&mut locals, Ok(()));
        assert_eq!(done(&mut locals), [(1, Outcome::MediaError)]);
    }

    #[test]
    fn t13_stop_flushes_all_and_names_those_that_cannot_be() {
        let mut locals = locals(3);
        locals.flush_failed_for(2, false);
        locals.stop();
        locals.stop();
        let requests = asked(&mut locals);
        assert_eq!(requests.len(), 3);
        let refused = locals.submit(0, &io(IoOp::Read, 1));
        assert_eq!(refused, Err(SubmitError::NotReady));
        for ((_, id), end) in requests
            .into_iter()
            .zip([Ok(()), Err(DeviceError::Os(5)), Ok(())])
        {
            assert!(!locals.have_stopped());
            locals.handle_device(id, end);
        }
        assert!(locals.have_stopped());
        let named = core::iter::from_fn(|| locals.poll_event());
        let number = |event| match event {
            HostEvent::Unflushed(number, line) => {
                assert!(line.contains("file "), "{line}");
                number - LOCALS_FROM
            }
            other => unreachable!("{other:?}"),
        };
        assert_eq!(named.map(number).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn t52_device_that_hangs_leaves_slots_to_others() {
        let mut locals = locals(2);
        let read = io(IoOp::Read, 1);
        let taken = (0..2 * LOCAL_IO_MAX).find(|_| locals.submit(0, &read).is_err());
        assert_eq!(taken, Some(LOCAL_IO_MAX / 2));
        assert_eq!(locals.submit(0, &read), Err(SubmitError::Full));
        assert_eq!(locals.submit(1, &read), Ok(()));
        let (_, id) = asked(&mut locals)[0];
        locals.handle_device(id, Ok(()));
        assert_eq!(locals.submit(0, &read), Ok(()));
    }

    #[test]
    fn change_of_a_device_that_takes_none_fails() {
        let mut locals = locals(1);
        locals.all[0].config.read_only = true;
        locals
            .submit(0, &io(IoOp::Write { fua: false }, 7))
            .unwrap();
        assert_eq!(done(&mut locals), [(7, Outcome::ReadOnly)]);
        locals.stop();
        assert!(locals.have_stopped() && asked(&mut locals).is_empty());
    }

    #[test]
    fn t49_only_changes_have_to_start_soon() {
        let mut locals = locals(1);
        locals.set_now(5);
        locals.submit(0, &io(IoOp::Read, 1)).unwrap();
        locals
            .submit(0, &io(IoOp::Write { fua: false }, 2))
            .unwrap();
        let changes: Vec<_> = asked(&mut locals)
            .into_iter()
            .map(|(_, id)| locals.changes_for(id))
            .collect();
        assert_eq!(changes, [None, Some(2)]);
        assert_eq!(locals.start_before_ns(), 5 + START_WITHIN_NS);
    }
}
