//! Mirrors over the host's volumes: each leg is a volume of its own, the mirror's machine decides
//! what goes to which, and whoever submits I/O sees one more volume.
//!
//! `impl Machine for Devices`, whose `turn` includes that of the [`HostEngine`] inside.
//!
//! * `one`: a mirror on its core; `gather`: until it runs; `look`: what legs say; `drive`: what its
//!   machine wants; `users`: the I/O of users; `returns`: legs that leave and return; `change`:
//!   legs that are added and removed; `sizes`: legs that shrink; `names`: which leg a URI means;
//!   `behind`: what is left behind on legs, and for how long
//! * `extents`: which legs say what is a hole; `holes`: zeroes that a copy leaves as holes
//! * `reads`: which leg serves a read; `table`: what legs were given; `loans`: memory of it that is
//!   lent beyond its I/O; `stack`: what all of them can do; `depth`: how much a leg has
//!   outstanding; `lasting`: what users said that holds beyond this engine
//! * `types`, `report`: how it is made, and how it is doing; [`words`]: the same for people
//!
//! # Contract
//! A leg is a whole volume of the host (one path or more, with its own head), that nobody else
//! submits I/O to. So identity checks, failover, fences and health are per leg, as for any volume.
//! Mirrors have the numbers from [`MIRRORS_FROM`] on. A mirror is on one core, where all of its
//! clients are; so all its writes pass one machine, and overlapping ones reach all legs in one
//! order (T46). On other cores it is not there, and its legs' connections carry nothing.
//!
//! Mirrors are moved by [`Devices::settle`], which needs memory: `turn` calls it, and a
//! program that submits I/O later in its turn calls it then. Cookies have their highest bit clear.
//!
//! The end: [`HostControl::Drain`] gives all I/O its time. [`HostControl::Stop`] stops mirrors in
//! order first (flushed, intents forgotten, "clean" said), and then the host. What has not ended
//! when the time is over fails; such a mirror was not stopped cleanly, and is made alike at its
//! next start.
//!
//! # Limits
//! [`MIRRORS_MAX`] mirrors of 16 legs; of each,
//! [`MIRROR_IOS_MAX`](crate::limits::MIRROR_IOS_MAX) I/Os; nothing is allocated for one.
mod behind;
mod change;
mod depth;
mod drive;
mod extents;
mod gather;
mod holes;
mod lasting;
mod loans;
mod look;
mod names;
mod one;
#[cfg(test)]
mod parts;
mod reads;
mod report;
mod returns;
mod sizes;
mod stack;
mod table;
mod types;
mod users;
mod ways;
pub mod words;

pub use lasting::{aside, set_aside, set_speed, speed_of};
pub use reads::for_mirror;
pub use types::*;

use crate::host::{Hints, HostControl, HostEngine, HostEvent, Io, SubmitError};
use crate::limits::{MIRROR_SCRATCH_BYTES, MIRRORS_MAX};
use crate::machine::{
    Closed, ConnId, DeviceError, DeviceId, Machine, Memory, Output, Place, Send, Span,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use block::order::ChangeOrder;
use holes::Run;
use loans::Loans;
use one::{Kit, Mirrored, Phase};
use policy::{Knobs, Policy};
use table::{OURS, Table, Task};
use volume::mirror::Crc32c;

/// The host's engine of one core, and the mirrors that are there. See the module's contract.
pub struct Devices {
    host: HostEngine,
    /// By number, less [`MIRRORS_FROM`]; `None`: it is on another core. Empty: all are.
    mirrors: Vec<Option<Box<Mirrored>>>,
    /// Mirror and place of the leg that a volume of the host is.
    legs: Vec<Option<(u8, u8)>>,
    table: Table,
    loans: Loans,
    /// Changes that front ends have under way, whichever front end.
    pub(crate) order: ChangeOrder,
    events: VecDeque<HostEvent>,
    crc32c: Crc32c,
    /// Something was submitted or asked since mirrors were moved.
    again: bool,
    /// The host is told to stop when all mirrors are.
    stopping: bool,
}

impl From<HostEngine> for Devices {
    fn from(host: HostEngine) -> Self {
        let none = MirrorsConfig {
            mirrors: Vec::new(),
            elsewhere: Vec::new(),
            scratch: Span::default(),
            crc32c: |_| 0,
        };
        Self::new(host, none)
    }
}

impl Devices {
    /// A host's engine with these mirrors over its volumes.
    ///
    /// # Panics
    /// If there are too many, or there is less memory than they need; configurations are checked
    /// before.
    pub fn new(mut host: HostEngine, config: MirrorsConfig) -> Self {
        let here = config.mirrors.iter().flatten().count();
        let bytes = here as u64 * u64::from(MIRROR_SCRATCH_BYTES);
        assert!(
            config.mirrors.len() <= MIRRORS_MAX && bytes <= config.scratch.len.into(),
            "{} mirrors with {} bytes",
            config.mirrors.len(),
            config.scratch.len
        );
        let room = if here > 0 { host.io_max() } else { 0 };
        let mut at = config.scratch.at;
        let mut legs = Vec::new();
        let mut mirrors = Vec::with_capacity(config.mirrors.len());
        for (index, mirror) in (0_u8..).zip(config.mirrors) {
            let Some(mirror) = mirror else {
                mirrors.push(None);
                continue;
            };
            for (place, leg) in (0_u8..).zip(&mirror.legs) {
                let volume = usize::from(leg.volume);
                if legs.len() <= volume {
                    legs.resize(volume + 1, None);
                }
                legs[volume] = Some((index, place));
                host.set_leg(leg.volume);
            }
            let len = MIRROR_SCRATCH_BYTES;
            let it = Mirrored::new(mirror, Span { at, len }, room);
            mirrors.push(Some(Box::new(it)));
            at += u64::from(len);
        }
        for volume in config.elsewhere {
            host.set_leg_elsewhere(volume);
        }
        if here == 0 {
            mirrors.clear(); // its events come from the host without a detour
        }
        Self {
            host,
            mirrors,
            legs,
            table: Table::new(room),
            loans: Loans::new(room),
            order: ChangeOrder::new(0),
            events: VecDeque::with_capacity(2 * room),
            crc32c: config.crc32c,
            again: here > 0,
            stopping: false,
        }
    }

    /// The host's engine: its volumes, those that are legs among them.
    pub fn host(&self) -> &HostEngine {
        &self.host
    }

    /// The same.
    pub fn host_mut(&mut self) -> &mut HostEngine {
        &mut self.host
    }

    /// Takes one I/O, as [`HostEngine::submit`]. The memory of a change is the engine's after its
    /// end too, while [`Self::is_lent`].
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing was taken.
    #[inline]
    pub fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        match io.volume.checked_sub(MIRRORS_FROM) {
            None => self.host.submit(io, now_ns),
            Some(index) => self.submit_to(index, io, false, now_ns),
        }
    }

    /// See [`HostEngine::times_given_up`]; a mirror gives nothing up while it has another leg in
    /// sync.
    pub fn times_given_up(&self, volume: u16) -> u32 {
        match volume.checked_sub(MIRRORS_FROM) {
            None => self.host.times_given_up(volume),
            Some(index) => {
                let it = self.mirrors.get(usize::from(index));
                it.and_then(Option::as_deref)
                    .map_or(0, Mirrored::times_given_up)
            }
        }
    }

    /// See [`HostEngine::flush_failed_for`].
    pub fn flush_failed_for(&mut self, volume: u16, heard: bool) {
        match volume.checked_sub(MIRRORS_FROM) {
            None => self.host.flush_failed_for(volume, heard),
            Some(index) => {
                if let Some(mirror) = self.mirror_mut(index) {
                    mirror.flush_failed_for(heard);
                }
            }
        }
    }

    /// Whether a device can take I/O now: a volume has a usable path, a mirror runs and a leg in
    /// sync has one.
    pub fn is_usable(&self, volume: u16) -> bool {
        match self.numbered(volume) {
            Some(mirror) => mirror.is_usable(&self.host),
            None => self.host.usability(volume).0,
        }
    }

    /// Whether a device is a mirror that was stopped, and was not begun anew.
    pub fn is_stopped(&self, volume: u16) -> bool {
        self.numbered(volume).is_some_and(Mirrored::is_stopped)
    }

    /// As [`HostEngine::submit_with`] [`Hints::for_change`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_for_change(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        match io.volume.checked_sub(MIRRORS_FROM) {
            None => {
                let for_change = true;
                let hints = Hints {
                    for_change,
                    ..Hints::default()
                };
                self.host.submit_with(io, hints, now_ns)
            }
            Some(index) => self.submit_to(index, io, true, now_ns),
        }
    }

    fn submit_to(
        &mut self,
        index: u16,
        io: &Io,
        for_change: bool,
        now_ns: u64,
    ) -> Result<(), SubmitError> {
        let mirror = self.mirror_mut(index).ok_or(SubmitError::NotReady)?;
        mirror.submit(io, for_change, now_ns)?;
        self.again = true;
        Ok(())
    }

    /// What one command can do, as [`HostEngine::limits`]; of a mirror, on every leg (T34).
    pub fn limits(&self, volume: u16) -> Option<IoLimits> {
        let Some(index) = volume.checked_sub(MIRRORS_FROM) else {
            return self.host.limits(volume);
        };
        match &self.mirrors.get(usize::from(index))?.as_ref()?.phase {
            Phase::Running(it) => Some(it.limits),
            _ => None,
        }
    }

    /// Whether there is memory of changes that have ended, which a leg that has left still has.
    #[inline]
    pub fn lends(&self) -> bool {
        self.loans.lends()
    }

    /// Whether such memory is a part of `span`: it must not be changed, nor given to anybody (T10).
    /// It looks at all of it: who asks often goes by [`HostEvent::Lent`] and [`HostEvent::Back`].
    pub fn is_lent(&self, span: Span) -> bool {
        self.loans.is_lent(span)
    }

    /// What happened since. Ends of I/Os come in the order in which they ended.
    #[inline]
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        match self.mirrors.is_empty() {
            true => self.host.poll_event(),
            false => self.events.pop_front(),
        }
    }

    /// How a mirror is doing; `None`: there is none of this number here.
    pub fn mirror(&self, volume: u16) -> Option<MirrorReport> {
        Some(self.numbered(volume)?.report(&self.host))
    }

    /// A mirror's legs alone, as its [`MirrorReport::legs`]; `None`: there is none of this number
    /// here.
    pub fn mirror_legs(&self, volume: u16) -> Option<Vec<LegReport>> {
        Some(self.numbered(volume)?.report_legs(&self.host))
    }

    /// Bytes of its own memory ([`MIRROR_SCRATCH_BYTES`]) that a mirror has in use, and whether it
    /// runs; `None`: there is none of this number here.
    pub fn mirror_memory(&self, volume: u16) -> Option<(u64, bool)> {
        let it = self.numbered(volume)?;
        let used = u64::from(MIRROR_SCRATCH_BYTES) - it.scratch.free_bytes();
        Some((used, it.state == MirrorState::Running))
    }

    fn numbered(&self, volume: u16) -> Option<&Mirrored> {
        let index = usize::from(volume.checked_sub(MIRRORS_FROM)?);
        self.mirrors.get(index)?.as_deref()
    }

    /// Asks something of a mirror that is here; of another, nothing. What comes of it is said.
    pub fn order(&mut self, volume: u16, order: MirrorOrder, now_ns: u64) {
        let Some(index) = volume.checked_sub(MIRRORS_FROM) else {
            return;
        };
        if let MirrorOrder::Grow(sizes) = &order {
            for (leg, bytes) in sizes {
                self.host.resize_device(*leg, *bytes, now_ns);
            }
        }
        let mirror = self.mirrors.get_mut(usize::from(index));
        let Some(mirror) = mirror.and_then(Option::as_deref_mut) else {
            return;
        };
        let name = mirror.config.name.clone();
        mirror.taken_back = None;
        let done = match &order {
            MirrorOrder::Add(new) => {
                let added = mirror.add(new, &self.host, now_ns);
                mirror.restack(&self.host);
                let why = added.as_ref().err().cloned();
                mirror.not_added = why.map(|why| (new.config.volume, why));
                let leg = usize::from(new.config.volume);
                added
                    .map(|place| self.lead(leg, index as u8, place))
                    .map_err(|why| format!("{} was not added: {why}", new.config.name))
            }
            MirrorOrder::Begin(anew) => self.begin(index as u8, anew, now_ns),
            order => mirror.order(order, now_ns),
        };
        if let Err(why) = done {
            let line = format!("{name}: {why}");
            self.events.push_back(HostEvent::Warning(volume, line));
        }
        self.again = true;
    }

    /// A mirror that was stopped begins anew, in the same memory.
    ///
    /// # Errors
    /// It has not been, or what it gave its legs has not ended.
    fn begin(&mut self, index: u8, anew: &Anew, now_ns: u64) -> Result<(), String> {
        let (stopping, busy) = (self.stopping, self.table.has(index));
        let it = self.mirror_mut(index.into());
        let it = it.ok_or("it is not on this core")?;
        let queued = it.legs.iter().any(|leg| leg.depth.first().is_some());
        let waits = busy || queued || it.lacks_room() || !it.early.is_empty();
        let why = match it.state {
            _ if stopping => Some("its engine ends"),
            MirrorState::Stopped if waits => {
                Some("what its legs were given before it was stopped has not ended: try again")
            }
            MirrorState::Stopped => None,
            _ => Some("it has not been stopped"),
        };
        it.not_begun = why.map(String::from);
        if let Some(why) = why {
            return Err(why.into());
        }
        let (room, accepts_name) = (it.early.capacity(), it.accepts_name);
        *it = Mirrored::new(anew.config.clone(), it.span, room);
        it.accepts_name = accepts_name;
        let number = MIRRORS_FROM + u16::from(index);
        self.events.push_back(HostEvent::Refused(number, None));
        let theirs = |it: &&mut Option<(u8, u8)>| it.is_some_and(|it| it.0 == index);
        self.legs
            .iter_mut()
            .filter(theirs)
            .for_each(|it| *it = None);
        for (place, (leg, info)) in (0..).zip(anew.config.legs.iter().zip(&anew.infos)) {
            self.lead(leg.volume.into(), index, place);
            if let Some(it) = self.mirror_mut(index.into()) {
                it.leg_ready(place.into(), *info, now_ns);
            }
        }
        Ok(())
    }

    /// From now on a volume of the host is a leg.
    fn lead(&mut self, volume: usize, mirror: u8, place: u8) {
        self.host.set_leg(volume as u16);
        self.host.uncut(volume as u16);
        if self.legs.len() <= volume {
            self.legs.resize(volume + 1, None);
        }
        self.legs[volume] = Some((mirror, place));
    }

    fn mirror_mut(&mut self, index: u16) -> Option<&mut Mirrored> {
        self.mirrors.get_mut(usize::from(index))?.as_deref_mut()
    }

    /// Moves the mirrors as far as they go now; whether anything came of it.
    pub fn settle(&mut self, memory: &mut dyn Memory, now_ns: u64) -> bool {
        if self.mirrors.is_empty() {
            return false;
        }
        self.again = false;
        self.mirrors
            .iter_mut()
            .flatten()
            .for_each(|it| it.look = true);
        let mut ever = false;
        loop {
            let mut any = self.take_events(memory, now_ns);
            for index in 0..self.mirrors.len() {
                any |= self.with(index, memory, now_ns, |mirror, kit| {
                    mirror.again = false;
                    mirror.drive(kit)
                });
            }
            ever |= any;
            if !any {
                break;
            }
        }
        if self.stopping && self.mirrors.iter().flatten().all(|it| it.has_stopped()) {
            self.stopping = false;
            self.host.handle_control(HostControl::Stop, now_ns);
        }
        ever
    }

    /// Does something with a mirror that is here.
    fn with(
        &mut self,
        index: usize,
        memory: &mut dyn Memory,
        now_ns: u64,
        what: impl FnOnce(&mut Mirrored, &mut Kit<'_>) -> bool,
    ) -> bool {
        let Some(mirror) = self.mirrors.get_mut(index).and_then(Option::as_deref_mut) else {
            return false;
        };
        let mut kit = Kit {
            host: &mut self.host,
            table: &mut self.table,
            loans: &mut self.loans,
            events: &mut self.events,
            memory,
            crc32c: self.crc32c,
            number: MIRRORS_FROM + index as u16,
            index: index as u8,
            now_ns,
        };
        what(mirror, &mut kit)
    }

    /// Takes what the host tells; whether there was anything.
    fn take_events(&mut self, memory: &mut dyn Memory, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(event) = self.host.poll_event() {
            any = true;
            match event {
                HostEvent::Done(done) if done.cookie & OURS != 0 => {
                    let entry = self.table.take(done.cookie);
                    self.with(entry.mirror.into(), memory, now_ns, |mirror, kit| {
                        mirror.leg_ended(&entry, &done, kit);
                        true
                    });
                }
                HostEvent::Ready(volume, info) | HostEvent::Resized(volume, info) => {
                    if let Some(Some((index, place))) = self.legs.get(usize::from(volume)).copied()
                        && let Some(mirror) = self.mirror_mut(index.into())
                        && mirror.is_led_by(place.into(), volume)
                    {
                        mirror.leg_ready(place.into(), info, now_ns);
                    }
                    self.events.push_back(event);
                }
                HostEvent::Removed(volume) => {
                    // Whoever has this number next is no leg.
                    if let Some(leg) = self.legs.get_mut(usize::from(volume)) {
                        *leg = None;
                    }
                    self.events.push_back(event);
                }
                event => self.events.push_back(event),
            }
        }
        any
    }

    /// Before when change `id` of a device has to start: while its mirror's lease lasts, and of a
    /// record that takes a mirror over, while what it rests on is fresh (T49). What is no mirror's
    /// may start at any time.
    fn start_before(&self, id: u32) -> u64 {
        let cookie = self.host.cookie_of(id).filter(|it| it & OURS != 0);
        let Some(entry) = cookie.and_then(|it| self.table.get(it)) else {
            return u64::MAX;
        };
        let mirror = self.mirrors.get(usize::from(entry.mirror));
        match mirror.and_then(Option::as_ref).map(|it| &it.phase) {
            Some(Phase::Running(it)) => match entry.task {
                Task::Io(ticket) | Task::Own(ticket) | Task::Run(Run { ticket, .. }) => {
                    it.machine.start_before_ns(ticket)
                }
                Task::Wipe => it.machine.wipe_before_ns(),
                Task::Pages(_) | Task::Compare(..) | Task::Look(_) | Task::Claim(_) => u64::MAX,
            },
            Some(Phase::Claiming(it)) => match entry.task {
                Task::Claim(_) => it.claim.start_before_ns(),
                _ => u64::MAX,
            },
            _ => u64::MAX,
        }
    }

    /// Other knobs, and another policy, which becomes a property of the mirror.
    fn set_policy(&mut self, volume: u16, policy: Policy, knobs: Knobs, now_ns: u64) {
        let index = volume.checked_sub(MIRRORS_FROM);
        if let Some(mirror) = index.and_then(|index| self.mirror_mut(index)) {
            mirror.set_policy(policy, knobs, now_ns);
            self.again = true;
        }
    }

    fn stop(&mut self, now_ns: u64) {
        // Without time that was given before, the host's own for this.
        if self.mirrors.iter().flatten().next().is_none() {
            return self.host.handle_control(HostControl::Stop, now_ns);
        }
        self.host.begin_stopping(now_ns);
        self.stopping = true;
        self.again = true;
        for mirror in self.mirrors.iter_mut().flatten() {
            mirror.stop(now_ns);
        }
    }
}

impl Machine for Devices {
    type Control = HostControl;

    fn handle_look(&mut self, busy_ns: u64, now_ns: u64) {
        self.host.handle_look(busy_ns, now_ns);
        for mirror in self.mirrors.iter_mut().flatten() {
            if let Phase::Running(it) = &mut mirror.phase {
                it.reads.set_gap(busy_ns.saturating_mul(2));
            }
        }
    }

    fn handle_control(&mut self, message: HostControl, now_ns: u64) {
        match message {
            HostControl::Policy(volume, policy, knobs) if volume >= MIRRORS_FROM => {
                self.set_policy(volume, policy, knobs, now_ns);
            }
            HostControl::Stop => self.stop(now_ns),
            message => self.host.handle_control(message, now_ns),
        }
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.host.turn(memory, now_ns);
        for mirror in self.mirrors.iter_mut().flatten() {
            mirror.look_at_legs(&mut self.host, now_ns);
        }
        self.settle(memory, now_ns);
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.again {
            return Some(0);
        }
        let host = self.host.poll_timeout();
        if self.mirrors.is_empty() {
            return host;
        }
        let mirrors = self.mirrors.iter().flatten();
        let mirrors = mirrors.filter_map(|it| it.timeout(&self.host));
        mirrors.chain(host).min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        // Those of mirrors are looked at in the turn.
        if self.host.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.host.handle_timeout(now_ns);
        }
    }

    fn connections_max(&self) -> u32 {
        self.host.connections_max()
    }

    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.host.handle_accepted(listener, now_ns)
    }

    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.host.handle_connected(conn, now_ns);
    }

    #[inline]
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.host.handle_bytes(conn, bytes, now_ns)
    }

    #[inline]
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        self.host.placement(conn)
    }

    #[inline]
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.host.handle_payload(conn, len, crc, now_ns);
    }

    #[inline]
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        self.host.poll_transmit(conn, out, now_ns)
    }

    #[inline]
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.host.handle_sent(conn, cookie, now_ns);
    }

    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.host.handle_closed(conn, why, now_ns);
    }

    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.host.handle_device(id, result, now_ns);
    }

    fn start_before_ns(&self, id: u32) -> u64 {
        self.start_before(id)
    }

    fn handle_cut(&mut self, device: DeviceId, end: u64, now_ns: u64) {
        for (volume, leg) in (0..).zip(self.legs.clone()) {
            let Some((index, at)) = leg.filter(|_| self.host.uses(volume, device)) else {
                continue;
            };
            if let Some(mirror) = self.mirror_mut(index.into())
                && mirror.is_led_by(at.into(), volume)
            {
                mirror.file_cut(at.into(), end, now_ns);
                self.again = true;
            }
        }
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        self.host.poll_output()
    }
}
