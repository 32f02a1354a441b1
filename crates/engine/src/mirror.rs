//! Mirrors, a back end of the block layer ([`Devices`]): each leg is a device of lower number, the
//! mirror's state machine decides which leg gets which request, and a front end sees one device.
//!
//! * `device`: a mirror on its core; `leg`: one leg; `start`: reads, assembles and acquires them
//! * `dispatch`: executes the state machine's outputs; `requests`: I/O of front ends; `news`:
//!   its reports; `probe`: reads superblocks; `change`: adds and removes legs; `sizes`: legs that
//!   shrink
//! * `reads`: selects the leg of a read, among `leg_paths`; `depth`: bounds a leg's I/O in flight
//! * `table`: requests on legs; `queue`: submits them; `buffer_leases`: their memory; `stack`:
//!   limits that all legs share
//! * `record`: the host's record of a mirror for its next start
//! * `quiesce`: how long legs may execute late writes; `settings`: properties on the legs
//! * `extents`: which legs report holes; `holes`: zeroes that a copy leaves as holes; `names`:
//!   which leg a URI means; `types`, `report`: configuration and state; [`messages`]: texts
//!
//! # Contract
//! A leg is a whole volume of the host (one path or more, with its own head), to which the mirror
//! alone issues requests. So identity checks, failover, fences and health are per leg, as for any
//! volume. A leg is reached as every device is (`BackEndsMut::submit`); its completion carries the
//! key of an entry in `table`. A mirror is on one core, which serves all of its clients: all its
//! writes pass one state machine, and overlapping writes reach all legs in one order (T46). Other
//! cores do not have it, and the connections of its legs there carry nothing.
//!
//! # Limits
//! [`MIRRORS_MAX`] mirrors of 16 legs; of each,
//! [`MIRROR_IOS_MAX`](crate::limits::MIRROR_IOS_MAX) I/Os; nothing is allocated for one.
mod buffer_leases;
mod change;
mod depth;
mod device;
mod dispatch;
mod extents;
mod holes;
mod leg;
mod leg_paths;
pub mod messages;
mod names;
mod news;
#[cfg(test)]
mod parts;
mod probe;
mod queue;
mod quiesce;
mod reads;
mod record;
mod report;
mod requests;
mod settings;
mod sizes;
mod stack;
mod start;
mod table;
mod types;

pub use crate::devices::Devices;
pub(crate) use device::MirrorDevice;
pub use reads::for_mirror;
pub use settings::{admin_offline, kept_speed, set_admin_offline, set_speed, speed_of};
pub use types::*;

use crate::devices::BackEndsMut;
use crate::host::{Changed, HostEvent, IoDone, Multipath, VolumeInfo};
use crate::limits::{MIRROR_SCRATCH_BYTES, MIRRORS_MAX};
use crate::machine::{self, Memory, Span};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use block::{DeviceId, Key};
use buffer_leases::BufferLeases;
use device::{Context, Life};
use mirror::Crc32c;
use table::{Table, given_by};

/// The mirrors of one core. See the module's contract.
pub(crate) struct Mirrors {
    /// By number, less [`MIRRORS_FROM`]; `None`: it is on another core. Empty: all are.
    all: Vec<Option<Box<MirrorDevice>>>,
    /// Mirror and place of the leg that a device is, by the device's number.
    legs: Vec<Option<(u8, u8)>>,
    table: Table,
    buffer_leases: BufferLeases,
    crc32c: Crc32c,
    /// I/Os that the host has room for.
    room: usize,
    /// Memory for mirrors that come.
    free: Vec<Span>,
}

/// The parts of a core that drive mirrors.
pub(crate) struct Drive<'a> {
    pub host: &'a mut Multipath,
    /// For front ends and the program.
    pub events: &'a mut VecDeque<HostEvent>,
    pub memory: &'a mut dyn Memory,
    pub now_ns: u64,
}

/// The number of the mirror of a place.
fn number(place: u8) -> DeviceId {
    DeviceId(MIRRORS_FROM + u16::from(place))
}

impl Mirrors {
    /// These mirrors over volumes of `host`.
    ///
    /// # Panics
    /// As [`Devices::new`].
    pub fn new(config: MirrorsConfig, host: &mut Multipath) -> Self {
        let here = config.mirrors.iter().flatten().count();
        let bytes = here as u64 * u64::from(MIRROR_SCRATCH_BYTES);
        assert!(
            config.mirrors.len() <= MIRRORS_MAX && bytes <= config.scratch.len.into(),
            "{} mirrors with {} bytes",
            config.mirrors.len(),
            config.scratch.len
        );
        let room = if here > 0 { host.io_max() } else { 0 };
        let mut it = Self {
            all: Vec::with_capacity(config.mirrors.len()),
            legs: Vec::new(),
            table: Table::new(room as u32),
            buffer_leases: BufferLeases::new(room),
            crc32c: config.crc32c,
            room,
            free: Vec::new(),
        };
        let len = MIRROR_SCRATCH_BYTES;
        let mut at = config.scratch.at;
        let end = at + u64::from(config.scratch.len);
        for (index, mirror) in (0_u8..).zip(config.mirrors) {
            let mirror = mirror.map(|mirror| {
                for (place, leg) in (0_u8..).zip(&mirror.legs) {
                    it.attach(DeviceId(leg.volume), (index, place), host);
                }
                let span = Span { at, len };
                at += u64::from(len);
                Box::new(MirrorDevice::new(mirror, span, room))
            });
            it.all.push(mirror);
        }
        while at + u64::from(len) <= end {
            it.free.push(Span { at, len });
            at += u64::from(len);
        }
        for volume in config.elsewhere {
            host.set_leg(volume, false);
        }
        if here == 0 {
            it.all.clear();
        }
        it
    }

    /// From now on a device is the leg at this place of this mirror.
    ///
    /// # Panics
    /// If it is no device that a mirror may stand over.
    fn attach(&mut self, device: DeviceId, (mirror, place): (u8, u8), host: &mut Multipath) {
        number(mirror).assert_above(device);
        assert!(
            device.0 < MIRRORS_FROM,
            "{device:?} is no volume of the host"
        );
        host.set_leg(device.0, true);
        let at = usize::from(device.0);
        if self.legs.len() <= at {
            self.legs.resize(at + 1, None);
        }
        self.legs[at] = Some((mirror, place));
    }

    /// No mirror is on this core.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// I/Os that the host has room for; 0: no mirror is here.
    pub fn room(&self) -> usize {
        self.room
    }

    /// All mirrors, by place.
    pub fn all(&self) -> &[Option<Box<MirrorDevice>>] {
        &self.all
    }

    /// The same.
    #[inline]
    pub fn all_mut(&mut self) -> &mut [Option<Box<MirrorDevice>>] {
        &mut self.all
    }

    /// The mirror of a place; `None`: there is none here.
    pub fn get(&self, place: usize) -> Option<&MirrorDevice> {
        self.all.get(place)?.as_deref()
    }

    /// The same.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut MirrorDevice> {
        self.all.get_mut(place)?.as_deref_mut()
    }

    fn here(&mut self) -> impl Iterator<Item = &mut MirrorDevice> {
        self.all.iter_mut().flatten().map(Box::as_mut)
    }

    /// See [`Devices::lends`].
    #[inline]
    pub fn lends(&self) -> bool {
        self.buffer_leases.has_retained()
    }

    /// See [`Devices::is_lent`].
    pub fn is_lent(&self, span: Span) -> bool {
        self.buffer_leases.is_retained(span)
    }

    /// Asks something of a mirror; `ends`: the engine does. Whether the mirror is here.
    pub fn order(
        &mut self,
        place: usize,
        order: &MirrorOrder,
        ends: bool,
        host: &mut Multipath,
        events: &mut VecDeque<HostEvent>,
        now_ns: u64,
    ) -> bool {
        if let MirrorOrder::Begin(anew) = order
            && self.get(place).is_none()
        {
            self.admit(place, anew, host);
        }
        let place = place.min(self.all.len());
        let (lower, rest) = self.all.split_at_mut(place);
        let Some(Some(mirror)) = rest.first_mut() else {
            return false;
        };
        let index = place as u8;
        let name = mirror.config.name.clone();
        mirror.orders.taken_back = None;
        let done = match order {
            MirrorOrder::Add(new) => {
                let below = BackEndsMut::new(host, lower);
                let added = mirror.add(new, below.ask(), (&self.table, index), now_ns);
                let why = added.as_ref().err().cloned();
                mirror.orders.not_added = why.map(|why| (new.config.volume, why));
                let leg = DeviceId(new.config.volume);
                added
                    .map(|place| self.attach_again(leg, (index, place), host))
                    .map_err(|why| format!("{} was not added: {why}", new.config.name))
            }
            MirrorOrder::Begin(anew) => {
                let begun = self.begin(index, anew, ends, host, now_ns);
                if begun.is_ok() {
                    events.push_back(HostEvent::Refused(number(index).0, None));
                }
                begun
            }
            order => mirror.order(order, now_ns),
        };
        if let Err(why) = done {
            let line = format!("{name}: {why}");
            events.push_back(HostEvent::Warning(number(index).0, line));
        }
        true
    }

    /// A place for a mirror that is new, as one that was stopped.
    ///
    /// # Panics
    /// There is no memory left for it: the program counts mirrors.
    fn admit(&mut self, place: usize, anew: &Anew, host: &Multipath) {
        let Some(span) = self.free.pop() else {
            unreachable!("{}: a mirror more than there is memory", anew.config.name);
        };
        if self.room == 0 {
            self.room = host.io_max();
            self.table = Table::new(self.room as u32);
            self.buffer_leases = BufferLeases::new(self.room);
        }
        if self.all.len() <= place {
            self.all.resize_with(place + 1, || None);
        }
        let mut new = Box::new(MirrorDevice::new(anew.config.clone(), span, self.room));
        new.end();
        self.all[place] = Some(new);
    }

    /// Whether all requests of a mirror have ended.
    fn is_idle(&self, it: &MirrorDevice, index: u8) -> bool {
        let queued = it.legs.iter().any(|leg| leg.depth.first().is_some());
        let mut given = given_by(&self.table, index).chain(it.queue.iter());
        given.next().is_none() && !queued
    }

    /// A mirror that was told to leave goes, once nothing of it is under way.
    fn remove(&mut self, place: usize, events: &mut VecDeque<HostEvent>) {
        let index = place as u8;
        let is_over = |it: &&MirrorDevice| it.is_over() && self.is_idle(it, index);
        let Some(it) = self.get(place).filter(is_over) else {
            return; // it is looked at again when it is driven
        };
        self.free.push(it.span);
        self.all[place] = None;
        self.detach(index);
        let (volume, path) = (number(index).0, None);
        events.push_back(HostEvent::Removed(volume));
        events.push_back(HostEvent::Changed(0, Ok(Changed { volume, path })));
    }

    /// No device is a leg of this mirror any more.
    fn detach(&mut self, index: u8) {
        let theirs = |it: &&mut Option<(u8, u8)>| it.is_some_and(|it| it.0 == index);
        let legs = self.legs.iter_mut().filter(theirs);
        legs.for_each(|it| *it = None);
    }

    /// A mirror that was stopped begins anew, in the same memory.
    ///
    /// # Errors
    /// It has not been stopped, or not all of its requests have ended.
    fn begin(
        &mut self,
        index: u8,
        anew: &Anew,
        ends: bool,
        host: &mut Multipath,
        now_ns: u64,
    ) -> Result<(), String> {
        let idle = self.get(index.into()).map(|it| self.is_idle(it, index));
        let waits = idle == Some(false);
        let room = self.room;
        let it = self.get_mut(index.into());
        let it = it.unwrap_or_else(|| unreachable!("a mirror is told to begin on its own core"));
        let why = match it.state() {
            _ if ends => Some("its engine ends"),
            MirrorState::Stopped if waits => {
                Some("what its legs were given before it was stopped has not ended: try again")
            }
            MirrorState::Stopped => None,
            _ => Some("it has not been stopped"),
        };
        it.orders.not_begun = why.map(String::from);
        if let Some(why) = why {
            return Err(why.into());
        }
        let accepts_name = it.refusal.accepts_name;
        *it = MirrorDevice::new(anew.config.clone(), it.span, room);
        it.refusal.accepts_name = accepts_name;
        for (place, info) in (0..).zip(&anew.infos) {
            it.leg_ready(place, *info, now_ns);
        }
        self.detach(index);
        for (place, leg) in (0..).zip(&anew.config.legs) {
            self.attach_again(DeviceId(leg.volume), (index, place), host);
        }
        Ok(())
    }

    /// As [`Self::attach`], of one that may have been a leg before.
    fn attach_again(&mut self, device: DeviceId, leg: (u8, u8), host: &mut Multipath) {
        self.attach(device, leg, host);
        host.uncut(device.0);
    }

    /// A round of [`Self::drive`] begins: times are looked at.
    pub fn begin_round(&mut self) {
        self.here().for_each(|it| it.is_timeout_unchecked = true);
    }

    /// Drives each mirror as far as it goes; whether anything came of it.
    pub fn drive(&mut self, by: &mut Drive<'_>) -> bool {
        let mut any = false;
        for place in 0..self.all.len() {
            let driven = self.with(place, by, |mirror, cx| {
                mirror.needs_turn = false;
                (mirror.drive(cx), mirror.life == Life::Leaving)
            });
            if let Some((driven, leaves)) = driven {
                any |= driven;
                if leaves {
                    self.remove(place, by.events);
                }
            }
        }
        any
    }

    /// Handles the end of a request to a leg.
    ///
    /// # Panics
    /// If there is no such I/O: each ends once.
    pub fn complete(&mut self, key: Key, done: &IoDone, by: &mut Drive<'_>) {
        let entry = self.table.remove(key);
        let ended = self.with(entry.mirror.into(), by, |mirror, cx| {
            mirror.leg_ended(&entry, done, cx);
        });
        assert!(ended.is_some(), "an I/O of a mirror that is not here");
    }

    /// Does something with a mirror that is here; `None`: it is not.
    fn with<T>(
        &mut self,
        place: usize,
        by: &mut Drive<'_>,
        what: impl FnOnce(&mut MirrorDevice, &mut Context<'_>) -> T,
    ) -> Option<T> {
        // Legs are of lower number: a mirror reaches neither itself nor those above it.
        let (lower, rest) = self.all.split_at_mut(place);
        let mirror = rest.first_mut()?.as_deref_mut()?;
        let index = place as u8;
        let mut cx = Context {
            below: BackEndsMut::new(by.host, lower),
            table: &mut self.table,
            buffer_leases: &mut self.buffer_leases,
            events: by.events,
            memory: by.memory,
            crc32c: self.crc32c,
            number: number(index).0,
            index,
            now_ns: by.now_ns,
        };
        Some(what(mirror, &mut cx))
    }

    /// The mirror that has a device as leg, and the leg's place there.
    fn over(&mut self, device: DeviceId) -> Option<(&mut MirrorDevice, usize)> {
        let (index, at) = (*self.legs.get(usize::from(device.0))?)?;
        let mirror = self.get_mut(index.into())?;
        let at = usize::from(at);
        mirror.is_leg(at, device.0).then_some((mirror, at))
    }

    /// A device is ready, or has another size: maybe a leg is.
    pub fn device_ready(&mut self, device: DeviceId, info: VolumeInfo, now_ns: u64) {
        if let Some((mirror, at)) = self.over(device) {
            mirror.leg_ready(at, info, now_ns);
        }
    }

    /// A device is gone: the next one of its number is no leg.
    pub fn device_removed(&mut self, device: DeviceId) {
        if let Some(leg) = self.legs.get_mut(usize::from(device.0)) {
            *leg = None;
        }
    }

    /// Before when a request that a mirror has issued has to start (T49).
    pub fn start_before_ns(&self, key: Key) -> u64 {
        let Some(entry) = self.table.get(key) else {
            return u64::MAX; // the second copy of a read that has ended
        };
        let mirror = self.get(entry.mirror.into());
        mirror.map_or(u64::MAX, |it| it.start_before_ns(entry))
    }

    /// The file behind a leg became shorter; whether it is a leg.
    pub fn file_cut(
        &mut self,
        host: &Multipath,
        file: machine::LocalDevice,
        end: u64,
        now_ns: u64,
    ) -> bool {
        let mut any = false;
        for device in (0..self.legs.len() as u16).map(DeviceId) {
            if host.volume(device.0).is_some_and(|it| it.uses(file))
                && let Some((mirror, at)) = self.over(device)
            {
                mirror.file_cut(at, end, now_ns);
                any = true;
            }
        }
        any
    }

    /// See [`reads::Reads::set_gap`].
    pub fn set_gap(&mut self, gap_ns: u64) {
        for it in self.here().filter_map(|it| it.running()) {
            it.reads.set_gap(gap_ns);
        }
    }

    /// Once a turn: see [`MirrorDevice::inspect_legs`].
    pub fn inspect_legs(&mut self, host: &mut Multipath, now_ns: u64) {
        for place in 0..self.all.len() {
            let (lower, rest) = self.all.split_at_mut(place);
            if let Some(Some(mirror)) = rest.first_mut() {
                mirror.inspect_legs(&mut BackEndsMut::new(host, lower), now_ns);
            }
        }
    }

    /// When something is due, of each.
    pub fn timeouts(&self, host: &Multipath) -> impl Iterator<Item = u64> {
        let here = self.all.iter().flatten();
        here.filter_map(|it| it.timeout(host))
    }

    /// Stops all in order.
    pub fn stop(&mut self, now_ns: u64) {
        self.here().for_each(|it| it.stop(now_ns));
    }

    /// Whether nothing is under way that a stop waits for.
    pub fn have_stopped(&self) -> bool {
        self.all.iter().flatten().all(|it| it.has_stopped())
    }
}
