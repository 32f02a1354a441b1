//! The block devices of one core, and the one way to them.
//!
//! Responsible for which back end serves a device, and for completions and events: they come back
//! by one match on the issuer. The closed set of back ends is [`BackEnd`]: multipath volumes, all
//! in the [`Multipath`], mirrors, and [local devices](crate::local).
//!
//! # Contract
//! Devices have numbers: multipath volumes below [`MIRRORS_FROM`], mirrors from there on, local
//! devices from [`LOCALS_FROM`]; no leg of a mirror is one of these. Front ends and mirrors issue
//! requests to the others by the same [`BackEndsMut::submit`]. A device issues requests
//! only to devices of lower number: it is driven with [`BackEndsMut`] that end below it, and
//! [`DeviceId::assert_above`] checks each leg when it is attached. So far a leg is a multipath
//! volume: what a mirror has to know of a leg after a failure (bounds, cuts, lost caches) only
//! these answer.
//!
//! The cookie of an [`Io`] is that of its [`Issuer`], and comes back once. A completion changes the
//! state of its issuer and issues nothing: the issuer is driven later in the turn, so completing
//! never recurses. `Io` and `IoDone` stay in the engine, not in `block`: they have a part of the
//! arena and an outcome, which that crate does not know.
//!
//! Mirrors are driven by [`Devices::settle`], which needs memory: [`Devices::turn`] calls it, and
//! front ends that submit I/O later in the turn call it then.
//!
//! The end: [`HostControl::Drain`] gives all I/O its time. [`HostControl::Stop`] stops mirrors in
//! order first (flushed, intents forgotten, "clean" said), and then the host. A request that has
//! not ended when the time is over fails; such a mirror was not stopped cleanly, and is made alike
//! at its next start.
use crate::cross_core::CrossCore;
use crate::host::{
    Hints, HostControl, HostEvent, Io, IoDone, Multipath, SubmitError, Volume, Witness,
};
use crate::limits::MIRROR_SCRATCH_BYTES;
use crate::local::{HOST_IO_MAX, LOCALS_FROM, LocalConfig, Locals};
use crate::machine::{self, DeviceError, Memory, Output, Span};
use crate::mirror::{
    Drive, LegReport, MIRRORS_FROM, MirrorDevice, MirrorOrder, MirrorReport, MirrorState, Mirrors,
    MirrorsConfig,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::order::ChangeOrder;
use block::{DeviceId, IoLimits, Issuer, Range};

/// The block devices of one core. See the module's contract.
pub struct Devices {
    host: Multipath,
    mirrors: Mirrors,
    locals: Locals,
    /// Changes that front ends have under way, whichever front end.
    pub(crate) order: ChangeOrder,
    /// Those of them that other cores know of, and those of other cores.
    pub(crate) cross_core: CrossCore,
    /// Events that front ends have not taken yet; unused where no mirror is here.
    events: VecDeque<HostEvent>,
    /// Something was submitted or asked since mirrors were driven.
    again: bool,
    /// The host is told to stop when all other devices are.
    stopping: bool,
}

/// The machine that serves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackEnd {
    /// A volume of the host, by its index.
    Multipath(u16),
    /// A mirror, by its place.
    Mirror(usize),
    /// A local device, by its place.
    Local(usize),
}

impl BackEnd {
    #[inline]
    fn of(device: DeviceId) -> Self {
        match device.0 {
            ..MIRRORS_FROM => Self::Multipath(device.0),
            MIRRORS_FROM..LOCALS_FROM => Self::Mirror((device.0 - MIRRORS_FROM).into()),
            LOCALS_FROM.. => Self::Local((device.0 - LOCALS_FROM).into()),
        }
    }
}

/// The back ends of some devices, to be asked: of all but local ones, or of those below a mirror.
#[derive(Clone, Copy)]
pub(crate) struct BackEnds<'a> {
    /// The multipath volumes, for what only these have: paths, and what is left on them.
    pub host: &'a Multipath,
    mirrors: &'a [Option<Box<MirrorDevice>>],
}

impl<'a> BackEnds<'a> {
    fn mirror(self, place: usize) -> Option<&'a MirrorDevice> {
        self.mirrors.get(place)?.as_deref()
    }

    /// Limits of one command (T34); `None`: the device is not ready, or not here. Of a mirror:
    /// what every leg can.
    pub fn limits(self, device: DeviceId) -> Option<IoLimits> {
        match BackEnd::of(device) {
            BackEnd::Multipath(volume) => self.host.volume(volume)?.limits(),
            BackEnd::Mirror(place) => self.mirror(place)?.limits(),
            BackEnd::Local(_) => None,
        }
    }

    /// Whether a device can take I/O now, and whether it does so with something that is not on
    /// probation. A volume does so by a path; a mirror runs, and does so by a leg in sync.
    pub fn usability(self, device: DeviceId) -> (bool, bool) {
        match BackEnd::of(device) {
            BackEnd::Multipath(volume) => {
                let volume = self.host.volume(volume);
                volume.map_or((false, false), Volume::usability)
            }
            BackEnd::Mirror(place) => {
                let is_usable = self.mirror(place).is_some_and(|it| it.is_usable(self));
                (is_usable, is_usable)
            }
            BackEnd::Local(_) => (false, false),
        }
    }

    /// Whether a device can take I/O now.
    pub fn is_usable(self, device: DeviceId) -> bool {
        self.usability(device).0
    }

    /// How often acknowledged writes that were not flushed were given up: see
    /// [`Volume::times_given_up`]. A mirror gives nothing up while it has another leg in sync.
    pub fn times_given_up(self, device: DeviceId) -> u32 {
        match BackEnd::of(device) {
            BackEnd::Multipath(volume) => {
                self.host.volume(volume).map_or(0, Volume::times_given_up)
            }
            BackEnd::Mirror(place) => self.mirror(place).map_or(0, MirrorDevice::times_given_up),
            BackEnd::Local(_) => 0,
        }
    }

    /// As [`Volume::flush_losses`]; a mirror is on one core.
    pub fn flush_losses(self, device: DeviceId) -> u32 {
        match BackEnd::of(device) {
            BackEnd::Multipath(volume) => self.host.volume(volume).map_or(0, Volume::flush_losses),
            BackEnd::Mirror(place) => self.mirror(place).map_or(0, MirrorDevice::flush_losses),
            BackEnd::Local(_) => 0,
        }
    }

    /// The status of a range: adds to `list` what holds all of it, each with the offset of the
    /// range there. A hole in all of them reads as zeroes. `false`: nothing can be said of
    /// it.
    pub fn witnesses(self, device: DeviceId, range: Range, list: &mut Vec<(Witness, u64)>) -> bool {
        match BackEnd::of(device) {
            BackEnd::Multipath(volume) => {
                let witness = self.host.witness(volume);
                list.extend(witness.map(|it| (it, range.start)));
                witness.is_some()
            }
            BackEnd::Mirror(place) => self
                .mirror(place)
                .is_some_and(|it| it.witnesses(self, range, list)),
            BackEnd::Local(_) => false,
        }
    }
}

/// As [`BackEnds`], to issue requests.
pub(crate) struct BackEndsMut<'a> {
    /// As [`BackEnds::host`].
    pub host: &'a mut Multipath,
    mirrors: &'a mut [Option<Box<MirrorDevice>>],
}

impl<'a> BackEndsMut<'a> {
    /// The volumes of the host, and these mirrors: the first ones.
    pub fn new(host: &'a mut Multipath, mirrors: &'a mut [Option<Box<MirrorDevice>>]) -> Self {
        Self { host, mirrors }
    }

    /// To be asked.
    pub fn ask(&self) -> BackEnds<'_> {
        BackEnds {
            host: self.host,
            mirrors: self.mirrors,
        }
    }

    /// Issues one request. Its end is one completion with its cookie, also where it fails at once;
    /// until then the bytes of `io.span` are the device's.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing was taken.
    #[inline(always)] // without hints, which most I/Os of front ends are, it is another function
    pub fn submit(
        &mut self,
        io: &Io,
        hints: Option<Hints>,
        now_ns: u64,
    ) -> Result<(), SubmitError> {
        match BackEnd::of(DeviceId(io.volume)) {
            BackEnd::Multipath(_) => match hints {
                None => self.host.submit(io, now_ns),
                Some(hints) => self.host.submit_with(io, hints, now_ns),
            },
            BackEnd::Mirror(place) => match self.mirrors.get_mut(place) {
                Some(Some(mirror)) => {
                    let for_change = hints.is_some_and(|it| it.for_change);
                    mirror.submit(io, for_change, now_ns)
                }
                // It is on another core, or there is none.
                _ => Err(SubmitError::NotReady),
            },
            BackEnd::Local(_) => Err(SubmitError::NotReady),
        }
    }
}

impl From<Multipath> for Devices {
    fn from(host: Multipath) -> Self {
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
    /// If there are too many, or there is less memory than they need, or a leg is no volume of the
    /// host; configurations are checked before.
    pub fn new(mut host: Multipath, config: MirrorsConfig) -> Self {
        let mirrors = Mirrors::new(config, &mut host);
        let (core, cores) = host.cores();
        let room = mirrors.room();
        Self {
            again: !mirrors.is_empty(),
            cross_core: CrossCore::new(core, cores),
            host,
            mirrors,
            locals: Locals::default(),
            order: ChangeOrder::new(0),
            events: VecDeque::with_capacity(2 * room),
            stopping: false,
        }
    }

    /// These local devices, with numbers from [`LOCALS_FROM`] on, beside the others.
    ///
    /// # Panics
    /// There are too many, or the host has too many I/Os.
    #[must_use]
    pub fn with_locals(mut self, locals: Vec<LocalConfig>) -> Self {
        let most = self.host.io_max();
        assert!(most <= HOST_IO_MAX, "{most} I/Os beside local devices");
        self.locals = Locals::new(locals);
        self
    }

    /// The host's engine: its volumes, those that are legs among them.
    pub fn host(&self) -> &Multipath {
        &self.host
    }

    /// The same.
    pub(crate) fn host_mut(&mut self) -> &mut Multipath {
        &mut self.host
    }

    fn back_ends(&self) -> BackEnds<'_> {
        BackEnds {
            host: &self.host,
            mirrors: self.mirrors.all(),
        }
    }

    /// Takes one I/O. Its end is a [`HostEvent::Done`] with its cookie, which has its highest bit
    /// clear. The memory of a change is the engine's after its end too, while [`Self::is_lent`].
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing was taken.
    #[inline]
    pub(crate) fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        self.submit_with(io, None, now_ns)
    }

    /// As [`Self::submit`], with [`Hints::for_change`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub(crate) fn submit_for_change(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        let for_change = true;
        let hints = Hints {
            for_change,
            ..Hints::default()
        };
        self.submit_with(io, Some(hints), now_ns)
    }

    /// As [`Self::submit`], of an I/O of which something may be known.
    ///
    /// # Errors
    /// As [`Self::submit`].
    #[inline(always)] // as `BackEndsMut::submit`
    pub(crate) fn submit_with(
        &mut self,
        io: &Io,
        hints: Option<Hints>,
        now_ns: u64,
    ) -> Result<(), SubmitError> {
        debug_assert!(
            matches!(Issuer::of_cookie(io.cookie), Issuer::FrontEnd(..)),
            "a front end has the cookie of a device: {io:?}"
        );
        if let BackEnd::Local(place) = BackEnd::of(DeviceId(io.volume)) {
            return self.locals.submit(place, io);
        }
        let mut all = BackEndsMut::new(&mut self.host, self.mirrors.all_mut());
        let submitted = all.submit(io, hints, now_ns);
        if io.volume >= MIRRORS_FROM {
            self.again |= submitted.is_ok();
        }
        submitted
    }

    /// As [`Volume::times_given_up`], of any device.
    pub fn times_given_up(&self, volume: u16) -> u32 {
        match BackEnd::of(DeviceId(volume)) {
            BackEnd::Local(place) => self.locals.times_given_up(place),
            _ => self.back_ends().times_given_up(DeviceId(volume)),
        }
    }

    /// As [`Volume::flush_losses`], of any device.
    pub fn flush_losses(&self, volume: u16) -> u32 {
        match BackEnd::of(DeviceId(volume)) {
            BackEnd::Local(place) => self.locals.times_given_up(place),
            _ => self.back_ends().flush_losses(DeviceId(volume)),
        }
    }

    /// As [`Multipath::flush_failed_for`], of any device; of one that is not here, nothing.
    pub fn flush_failed_for(&mut self, volume: u16, heard: bool) {
        match BackEnd::of(DeviceId(volume)) {
            BackEnd::Multipath(volume) => self.host.flush_failed_for(volume, heard),
            BackEnd::Mirror(place) => {
                if let Some(mirror) = self.mirrors.get_mut(place) {
                    mirror.flush_failed_for(heard);
                }
            }
            BackEnd::Local(place) => self.locals.flush_failed_for(place, heard),
        }
    }

    /// Whether a device can take I/O now: a volume has a usable path, a mirror runs and a leg in
    /// sync has one.
    pub fn is_usable(&self, volume: u16) -> bool {
        match BackEnd::of(DeviceId(volume)) {
            BackEnd::Local(place) => self.locals.has(place),
            _ => self.back_ends().is_usable(DeviceId(volume)),
        }
    }

    /// Whether a device is a mirror that was stopped, and was not begun anew.
    pub(crate) fn is_stopped(&self, volume: u16) -> bool {
        self.numbered(volume).is_some_and(MirrorDevice::is_stopped)
    }

    /// Limits of one command on every path of a device (T34), once it is ready. Of a mirror, on
    /// every leg.
    pub fn limits(&self, volume: u16) -> Option<IoLimits> {
        match BackEnd::of(DeviceId(volume)) {
            BackEnd::Local(place) => self.locals.limits(place),
            _ => self.back_ends().limits(DeviceId(volume)),
        }
    }

    /// Lists what holds all of a range of a device, each with the offset of the range there. A
    /// range that all of them call a hole reads as zeroes. None: nothing can be said of it.
    pub(crate) fn witnesses(&self, volume: u16, range: Range, list: &mut Vec<(Witness, u64)>) {
        list.clear();
        if !self.back_ends().witnesses(DeviceId(volume), range, list) {
            list.clear();
        }
    }

    /// Whether there is memory of changes that have ended, which a leg that has left still has.
    #[inline]
    pub fn lends(&self) -> bool {
        self.mirrors.lends()
    }

    /// Whether such memory is a part of `span`: it must not be changed, nor given to anybody (T10).
    /// It looks at all of it: who asks often goes by [`HostEvent::Lent`] and [`HostEvent::Back`].
    pub fn is_lent(&self, span: Span) -> bool {
        self.mirrors.is_lent(span)
    }

    /// Next event, for front ends and the program. Ends of I/Os come in the order in which
    /// they ended.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<HostEvent> {
        if let Some(event) = self.locals.poll_event() {
            return Some(event);
        }
        if self.mirrors.is_empty() {
            // Its events come from the host without a detour.
            self.host.poll_event()
        } else {
            self.events.pop_front()
        }
    }

    /// As [`Self::poll_event`], if the next one is the end of an I/O; where there are no mirrors,
    /// front ends take most ends so.
    #[inline]
    pub(crate) fn poll_done(&mut self) -> Option<IoDone> {
        if let Some(done) = self.locals.poll_done() {
            return Some(done);
        }
        if self.mirrors.is_empty() {
            self.host.poll_done()
        } else {
            None
        }
    }

    /// How a mirror is doing; `None`: there is none of this number here.
    pub fn mirror(&self, volume: u16) -> Option<MirrorReport> {
        Some(self.numbered(volume)?.report(self.back_ends()))
    }

    /// A mirror's legs alone, as its [`MirrorReport::legs`]; `None`: there is none of this number
    /// here.
    pub fn mirror_legs(&self, volume: u16) -> Option<Vec<LegReport>> {
        Some(self.numbered(volume)?.report_legs(self.back_ends()))
    }

    /// Bytes of its own memory ([`MIRROR_SCRATCH_BYTES`]) that a mirror has in use, and whether it
    /// runs; `None`: there is none of this number here.
    pub fn mirror_memory(&self, volume: u16) -> Option<(u64, bool)> {
        let it = self.numbered(volume)?;
        let used = u64::from(MIRROR_SCRATCH_BYTES) - it.scratch_free();
        Some((used, it.state() == MirrorState::Running))
    }

    fn numbered(&self, volume: u16) -> Option<&MirrorDevice> {
        match BackEnd::of(DeviceId(volume)) {
            BackEnd::Multipath(_) | BackEnd::Local(_) => None,
            BackEnd::Mirror(place) => self.mirrors.get(place),
        }
    }

    /// Asks something of a mirror that is here; of another, nothing. The result is an event.
    pub(crate) fn order(&mut self, volume: u16, order: MirrorOrder, now_ns: u64) {
        let BackEnd::Mirror(place) = BackEnd::of(DeviceId(volume)) else {
            unreachable!("volume {volume} is no mirror: {order:?}");
        };
        if let MirrorOrder::Grow(sizes) = &order {
            for (leg, bytes) in sizes {
                self.host.resize_device(*leg, *bytes, now_ns);
            }
        }
        let (host, events) = (&mut self.host, &mut self.events);
        let ends = self.stopping;
        self.again |= self
            .mirrors
            .order(place, &order, ends, host, events, now_ns);
        // One that is the first here needs it.
        self.events.reserve(2 * self.mirrors.room());
    }

    /// Drives the mirrors as far as they go now; whether anything came of it.
    #[inline]
    pub(crate) fn settle(&mut self, memory: &mut dyn Memory, now_ns: u64) -> bool {
        !self.mirrors.is_empty() && self.settle_mirrors(memory, now_ns)
    }

    fn settle_mirrors(&mut self, memory: &mut dyn Memory, now_ns: u64) -> bool {
        self.again = false;
        self.mirrors.begin_round();
        let mut by = Drive {
            host: &mut self.host,
            events: &mut self.events,
            memory,
            now_ns,
        };
        let mut ever = false;
        loop {
            let any = take_events(&mut self.mirrors, &mut by) | self.mirrors.drive(&mut by);
            ever |= any;
            if !any {
                break;
            }
        }
        self.stop_host(now_ns);
        ever
    }

    /// Stops the host once all other devices have stopped.
    fn stop_host(&mut self, now_ns: u64) {
        let mirrors = self.mirrors.is_empty() || self.mirrors.have_stopped();
        if self.stopping && mirrors && self.locals.have_stopped() {
            self.stopping = false;
            self.host.handle_control(HostControl::Stop, now_ns);
        }
    }

    /// A device request has ended.
    #[inline]
    pub(crate) fn handle_device(&mut self, id: u32, end: Result<(), DeviceError>, now_ns: u64) {
        match self.locals.has_asked(id) {
            true => self.locals.handle_device(id, end),
            false => self.host.handle_device(id, end, now_ns),
        }
    }

    /// The issuer of the I/O that a request to a local device is of, where that is a change, and
    /// when it has to start if it still may.
    pub(crate) fn local_change(&self, id: u32) -> Option<(Issuer, u64)> {
        let cookie = self
            .locals
            .has_asked(id)
            .then(|| self.locals.changes_for(id))??;
        Some((Issuer::of_cookie(cookie), self.locals.start_before_ns()))
    }

    /// Next thing to do.
    #[inline]
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        let output = self.host.poll_output();
        output.or_else(|| self.locals.poll_output())
    }

    /// As [`start_before_ns`](machine::Machine::start_before_ns) of the reactor's machine: of a
    /// request that a mirror has issued, what the mirror says (T49). A request that no mirror
    /// issued may start at any time.
    pub(crate) fn start_before_ns(&self, id: u32) -> u64 {
        match self.host.cookie_of(id).map(Issuer::of_cookie) {
            Some(Issuer::Device(key)) => self.mirrors.start_before_ns(key),
            Some(Issuer::FrontEnd(..)) | None => u64::MAX,
        }
    }

    fn stop(&mut self, now_ns: u64) {
        self.stopping = true;
        self.locals.stop();
        if !self.mirrors.is_empty() {
            // Without time that was given before, the host's own for this.
            self.host.begin_stopping(now_ns);
            self.again = true;
            self.mirrors.stop(now_ns);
        }
        self.stop_host(now_ns);
    }

    /// As [`Machine::handle_look`](machine::Machine::handle_look).
    pub(crate) fn handle_look(&mut self, busy_ns: u64, now_ns: u64) {
        self.host.handle_look(busy_ns, now_ns);
        self.locals.set_now(now_ns);
        self.mirrors.set_gap(busy_ns.saturating_mul(2));
    }

    /// A message from the program.
    pub(crate) fn handle_control(&mut self, message: HostControl, now_ns: u64) {
        match message {
            HostControl::Policy(volume, policy, knobs) if volume >= MIRRORS_FROM => {
                if let BackEnd::Mirror(place) = BackEnd::of(DeviceId(volume))
                    && let Some(mirror) = self.mirrors.get_mut(place)
                {
                    mirror.set_policy(policy, knobs, now_ns);
                    self.again = true;
                }
            }
            HostControl::Stop => self.stop(now_ns),
            message => self.host.handle_control(message, now_ns),
        }
    }

    /// Once per turn of the loop, after all events.
    #[inline]
    pub(crate) fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        if !self.locals.is_empty() {
            self.locals.turn(now_ns);
            self.stop_host(now_ns);
        }
        self.host.turn(memory, now_ns);
        if !self.mirrors.is_empty() {
            self.mirrors.inspect_legs(&mut self.host, now_ns);
            self.settle(memory, now_ns);
        }
    }

    /// When to be called at the latest.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        if self.again {
            return Some(0);
        }
        let mut host = self.host.poll_timeout();
        if let Some(due) = self.locals.poll_timeout() {
            host = Some(host.map_or(due, |host| host.min(due)));
        }
        if self.mirrors.is_empty() {
            return host;
        }
        self.mirrors.timeouts(&self.host).chain(host).min()
    }

    /// That time has come. Times of mirrors are looked at in the turn.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        if self.host.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.host.handle_timeout(now_ns);
        }
    }

    /// As [`Machine::handle_cut`](machine::Machine::handle_cut).
    pub(crate) fn handle_cut(&mut self, device: machine::LocalDevice, end: u64, now_ns: u64) {
        self.again |= self.mirrors.file_cut(&self.host, device, end, now_ns);
    }
}

/// Takes what the host tells; whether there was anything. A completion goes to the mirror that
/// issued the request, or waits for its front end.
fn take_events(mirrors: &mut Mirrors, by: &mut Drive<'_>) -> bool {
    let mut any = false;
    while let Some(event) = by.host.poll_event() {
        any = true;
        match &event {
            HostEvent::Done(done) => {
                if let Issuer::Device(key) = Issuer::of_cookie(done.cookie) {
                    mirrors.complete(key, done, by);
                    continue;
                }
            }
            HostEvent::Ready(volume, info) | HostEvent::Resized(volume, info) => {
                mirrors.device_ready(DeviceId(*volume), *info, by.now_ns);
            }
            HostEvent::Removed(volume) => mirrors.device_removed(DeviceId(*volume)),
            _ => {}
        }
        by.events.push_back(event);
    }
    any
}
