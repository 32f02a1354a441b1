//! The engine of one core: front ends and block devices side by side, and the owner of each
//! connection.
//!
//! Responsible for the routing of connections, device requests, timers and events between them. The
//! NBD server ([`export`](crate::export)) is a front end, and so is each NVMe/TCP server; the block
//! devices ([`Devices`]) are multipath volumes, and mirrors over them.
//!
//! # Contract
//! `impl Machine for Core`. The owner of a connection is set when the engine is made and never
//! changes: each path has two connections, each place of a client has one, and each place of an
//! NVMe/TCP server as many as its subsystem may have. Listeners below [`EXPORTS_MAX`] are exports
//! of the NBD server; those from there on are the ports of the NVMe/TCP servers ([`listener_of`]).
//!
//! NVMe/TCP servers come and go in places that were reserved before the first turn. One that was
//! told to end keeps its place until no connection and no I/O refers to it.
//!
//! The issuer of an I/O or a change is a front end ([`Issuer`]): 0 is the NBD server, the NVMe/TCP
//! servers follow by their places, [`QUEUES`] is the queue server, [`UBLK`] the ublk server, and
//! [`PROGRAM`] is the program, which submits I/O of its own by [`Core::submit`].
//!
//! A core [without front ends](Core::without_front_ends) hands the events of the devices to the
//! program without a detour, and takes its cookies as they are. The program finds the ends of I/O
//! that ends at once when it asks for events after [`Core::submit`].
//!
//! The end: [`ExportControl::Stop`] ends clients and hosts first, then stops the devices, which say
//! [`Output::Stop`].
mod clients;
mod queues;
mod ublk;

use crate::cross_core::{CoreMessage, OTHER_CORES, Step};
use crate::devices::Devices;
use crate::export::{ExportConfig, ExportControl, ExportCounters, ExportEvent, NbdServer};
use crate::host::{
    Hints, HostControl, HostEvent, Io, IoDone, Multipath, Peers, SubmitError, VolumeInfo,
};
use crate::limits::{CHANGES_READY, EXPORTS_MAX};
use crate::machine::{
    Closed, ConnId, DeviceError, DeviceExtent, LocalDevice, Machine, Memory, Output, Place, Send,
};
use crate::mirror::{LegReport, MirrorReport};
use crate::nvme_server::{self, NvmeConfig, NvmeControl, NvmePlace, NvmeServer};
use crate::queue_server::{QUEUES, QueueServer};
use crate::target::{PortStats, TargetEngine};
use crate::ublk_server::{UBLK, UblkServer};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::order::ChangeOrder;
use block::{Issuer, Key};
use nvme::controller::ConfigError;
use nvme::limits::PORTS_MAX;

/// The part of the engine that a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A path of a multipath volume.
    Path,
    /// A client of the NBD server, by its place.
    Client(u16),
    /// A host of an NVMe/TCP server, by the server's place.
    Host(u16),
}

/// The listener of a port of the NVMe/TCP server in a place.
pub fn listener_of(place: u16, port: u16) -> u32 {
    EXPORTS_MAX + u32::from(place) * PORTS_MAX as u32 + u32::from(port)
}

/// The place and port of a listener; `None`: it is the NBD server's.
fn port_of(listener: u32) -> Option<(usize, u16)> {
    let at = listener.checked_sub(EXPORTS_MAX)? as usize;
    Some((at / PORTS_MAX, (at % PORTS_MAX) as u16))
}

/// The program, as a front end.
const PROGRAM: u32 = u32::MAX >> 1;

/// The engine of one core. See the module's contract.
pub struct Core {
    devices: Devices,
    nbd: NbdServer,
    /// By place, up to the last one that is taken.
    nvme: Vec<Option<NvmeServer>>,
    /// Places for NVMe/TCP servers, and the first connection of each.
    places: Vec<(NvmePlace, u32)>,
    /// NVMe/TCP servers that there have been.
    served: u32,
    queues: QueueServer,
    ublk: UblkServer,
    /// Front end that goes on first in this turn: 0 is the NBD server, the last one the queue
    /// server with the ublk server.
    first: usize,
    /// By connection.
    owners: Vec<Owner>,
    /// There is a front end beside the program.
    has_front_ends: bool,
    /// Unused without front ends.
    events: VecDeque<ExportEvent>,
    /// The devices are told to stop when no client is left.
    stopping: bool,
    /// Something was left for the next turn.
    again: bool,
}

impl Core {
    /// An engine without exports over these devices, with room for so many volumes at first.
    ///
    /// # Panics
    /// If the configuration is out of its limits; configurations are checked before.
    pub fn new(devices: impl Into<Devices>, volumes: usize, config: ExportConfig) -> Self {
        let mut devices = devices.into();
        let paths = devices.host().connections_max();
        let owners = (0..paths).map(|_| Owner::Path);
        let owners = owners.chain((0..config.clients_max).map(Owner::Client));
        let has_front_ends = config.clients_max > 0;
        let nbd = NbdServer::new(paths, volumes, config);
        devices.order = ChangeOrder::new(nbd.requests_max().min(CHANGES_READY));
        Self {
            owners: owners.collect(),
            has_front_ends,
            nbd,
            nvme: Vec::new(),
            queues: QueueServer::new(QUEUES, queues::words),
            ublk: UblkServer::new(),
            places: Vec::new(),
            served: 0,
            first: 0,
            devices,
            events: VecDeque::new(),
            stopping: false,
            again: false,
        }
    }

    /// An engine without front ends, but for the program.
    pub fn without_front_ends(devices: impl Into<Devices>) -> Self {
        Self::new(devices, 0, ExportConfig::NONE)
    }

    /// Takes one I/O of the program. Its end is an [`ExportEvent::Host`] with its cookie, which is
    /// below 2³².
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing was taken.
    ///
    /// # Panics
    /// If the cookie is larger.
    #[inline]
    pub fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        assert!(io.cookie >> 32 == 0, "cookie {}", io.cookie);
        match self.has_front_ends {
            false => self.devices.submit(io, now_ns),
            true => self.devices.submit(&of_program(io), now_ns),
        }
    }

    /// As [`Core::submit`], of an I/O of which something is known.
    ///
    /// # Errors
    /// As [`Core::submit`].
    pub fn submit_with(&mut self, io: &Io, hints: Hints, now_ns: u64) -> Result<(), SubmitError> {
        assert!(io.cookie >> 32 == 0, "cookie {}", io.cookie);
        match self.has_front_ends {
            false => self.devices.submit_with(io, Some(hints), now_ns),
            true => self
                .devices
                .submit_with(&of_program(io), Some(hints), now_ns),
        }
    }

    /// Runs a turn of this core among the others: reads before it what they have in flight and have
    /// measured, and shows them what this core has after it. Between an end and the I/O that
    /// replaces it the count would always be too low (T47).
    #[inline]
    pub fn exchange(&mut self, peers: &mut impl Peers, turn: impl FnOnce(&mut Self)) {
        self.devices.host_mut().learn_from(peers);
        turn(self);
        self.devices.host_mut().show_to(peers);
    }

    /// The block devices, to be asked.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The same.
    pub fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    /// Keeps a place for an NVMe/TCP server, before the first turn. Returns its number: they count
    /// from 0.
    pub fn reserve_nvme_server(&mut self, place: NvmePlace) -> u16 {
        let number = self.places.len() as u16;
        self.places.push((place, self.owners.len() as u32));
        let hosts = (0..place.connections).map(|_| Owner::Host(number));
        self.owners.extend(hosts);
        self.has_front_ends = true;
        number
    }

    /// Begins an NVMe/TCP server in a place.
    ///
    /// # Errors
    /// The field of its configuration that can't be; then nothing was begun.
    ///
    /// # Panics
    /// There is no such place, or it is taken.
    pub fn serve_nvme(
        &mut self,
        place: u16,
        config: NvmeConfig,
        now_ns: u64,
    ) -> Result<(), ConfigError> {
        let at = usize::from(place);
        let (of, first_conn) = self.places[at];
        let volumes = config.volumes.clone();
        let mut server = NvmeServer::new(config, of, u64::from(place) + 1, first_conn)?;
        server.begin_questions_at(self.served << 16);
        self.served += 1;
        for volume in volumes {
            if let Some(info) = self.nbd.info(volume)
                && !self.devices.is_stopped(volume)
            {
                server.sized(&self.devices, volume, info, now_ns);
            }
        }
        if self.nvme.len() <= at {
            self.nvme.resize_with(at + 1, || None);
        }
        let before = self.nvme[at].replace(server);
        assert!(before.is_none(), "place {place} is taken");
        Ok(())
    }

    fn servers(&self) -> impl Iterator<Item = &NvmeServer> {
        self.nvme.iter().flatten()
    }

    fn servers_mut(&mut self) -> impl Iterator<Item = &mut NvmeServer> {
        self.nvme.iter_mut().flatten()
    }

    /// The NVMe/TCP server in a place.
    fn server(&mut self, place: usize) -> &mut NvmeServer {
        let Some(server) = self.nvme.get_mut(place).and_then(Option::as_mut) else {
            unreachable!("there is no NVMe/TCP server in place {place}");
        };
        server
    }

    /// The targets of the NVMe/TCP servers, by their places.
    pub fn targets(&self) -> impl Iterator<Item = &TargetEngine> {
        self.servers().map(NvmeServer::target)
    }

    /// Counters of the ports of NVMe/TCP servers, by their listeners.
    pub fn ports(&self) -> impl Iterator<Item = (u32, PortStats)> {
        let servers = (0..).zip(&self.nvme);
        let servers = servers.filter_map(|(place, it)| Some((place, it.as_ref()?.target())));
        servers.flat_map(|(place, target)| {
            let ports = 0..target.ports();
            ports.map(move |port| (listener_of(place, port), target.port_stats(port)))
        })
    }

    /// Counters of a port of an NVMe/TCP server, by its listener; `None`: there is none.
    pub fn port_stats(&self, listener: u32) -> Option<PortStats> {
        self.ports().find(|it| it.0 == listener).map(|it| it.1)
    }

    /// Devices that are namespaces, and how many NVMe/TCP hosts have identified each.
    pub fn hosts(&self) -> impl Iterator<Item = (u16, u32)> {
        self.servers().flat_map(NvmeServer::hosts)
    }

    /// Events in the order in which they happened.
    #[inline]
    pub fn poll_event(&mut self) -> Option<ExportEvent> {
        if !self.has_front_ends {
            return self.devices.poll_event().map(ExportEvent::Host);
        }
        let event = self.events.pop_front();
        event.or_else(|| self.nbd.poll_event())
    }

    /// Bytes of the front ends' arenas.
    pub fn buffers(&self) -> u64 {
        let hosts: u64 = self.targets().map(TargetEngine::buffers).sum();
        self.nbd.buffers() + hosts + self.queues.memory_bytes() + self.ublk.memory_bytes()
    }

    /// Of these, in no request; perhaps not in one piece.
    pub fn buffers_free(&self) -> u64 {
        let hosts: u64 = self.targets().map(TargetEngine::buffers_free).sum();
        self.nbd.buffers_free() + hosts + self.queues.memory_free() + self.ublk.memory_free()
    }

    /// The multipath volumes, for their counters.
    pub fn host(&self) -> &Multipath {
        self.devices.host()
    }

    /// The multipath volumes, for [`Multipath::explain`].
    pub fn host_mut(&mut self) -> &mut Multipath {
        self.devices.host_mut()
    }

    /// How a mirror is doing; `None`: there is none of this number on this core.
    pub fn mirror(&self, volume: u16) -> Option<MirrorReport> {
        self.devices.mirror(volume)
    }

    /// As [`Devices::mirror_legs`].
    pub fn mirror_legs(&self, volume: u16) -> Option<Vec<LegReport>> {
        self.devices.mirror_legs(volume)
    }

    /// As [`Devices::mirror_memory`].
    pub fn mirror_memory(&self, volume: u16) -> Option<(u64, bool)> {
        self.devices.mirror_memory(volume)
    }

    /// Counters of an export; zero for one that was never there.
    pub fn counters(&self, export: u32) -> ExportCounters {
        self.nbd.counters(export)
    }

    #[inline]
    fn owner(&self, conn: ConnId) -> Owner {
        self.owners[conn.0 as usize]
    }

    fn drain(&mut self, drain_ns: u64, now_ns: u64) {
        let host = HostControl::Drain(drain_ns);
        self.devices.handle_control(host, now_ns);
        self.nbd.drain(drain_ns, now_ns);
        self.ublk.stop();
        for server in self.servers_mut() {
            server.stop(now_ns);
        }
    }

    fn change_nvme(&mut self, place: u16, change: NvmeControl, now_ns: u64) {
        if let NvmeControl::Serve(config) = change {
            let served = self.serve_nvme(place, *config, now_ns);
            assert!(served.is_ok(), "{served:?}: the program checks it before");
            return;
        }
        let Some(Some(server)) = self.nvme.get_mut(usize::from(place)) else {
            unreachable!("there is no NVMe/TCP server in place {place}");
        };
        let nbd = &self.nbd;
        server.control(&self.devices, |volume| nbd.info(volume), change, now_ns);
    }

    /// Frees the places of NVMe/TCP servers that have left.
    fn free_places(&mut self) {
        for (place, server) in (0..).zip(&mut self.nvme) {
            if server.take_if(|it| it.has_left()).is_some() {
                self.events.push_back(ExportEvent::Ended(place));
            }
        }
        while self.nvme.pop_if(|it| it.is_none()).is_some() {}
        self.first = self.first.min(self.nvme.len() + 1);
    }

    /// The server of a host's connection, and the connection's number there.
    fn host_of(&mut self, server: u16, conn: ConnId) -> (&mut TargetEngine, ConnId) {
        let server = self.server(usize::from(server));
        let conn = server.local(conn);
        (server.target_mut(), conn)
    }

    /// An I/O has ended, whose cookie names its front end.
    #[inline]
    fn io_done(&mut self, done: IoDone, now_ns: u64) {
        match Issuer::of_cookie(done.cookie) {
            Issuer::FrontEnd(0, _) => {
                self.nbd.io_done(&mut self.devices, &done);
                self.queues.slot_freed();
                self.ublk.queues().slot_freed();
                self.servers_mut().for_each(NvmeServer::slot_freed);
            }
            Issuer::FrontEnd(front_end, _) => {
                self.nbd.slot_freed();
                self.queues.slot_freed();
                self.ublk.queues().slot_freed();
                self.servers_mut().for_each(NvmeServer::slot_freed);
                if front_end == PROGRAM {
                    self.tell_program(HostEvent::Done(done));
                } else if front_end == QUEUES {
                    self.queues.io_done(&mut self.devices, &done, now_ns);
                } else if front_end == UBLK {
                    self.ublk.io_done(&mut self.devices, &done, now_ns);
                } else {
                    let place = front_end as usize - 1;
                    let Some(Some(server)) = self.nvme.get_mut(place) else {
                        unreachable!("a server stays until its I/O has ended: place {place}");
                    };
                    server.io_done(&mut self.devices, &done, now_ns);
                }
            }
            Issuer::Device(key) => unreachable!("{key:?}: devices take their own"),
        }
    }

    fn tell_program(&mut self, event: HostEvent) {
        let event = ExportEvent::Host(for_program(event));
        self.events.push_back(event);
    }

    /// A leg has memory of an I/O that ends next.
    fn lent(&mut self, cookie: u64, loan: Key) {
        match Issuer::of_cookie(cookie) {
            Issuer::FrontEnd(0, request) => self.nbd.lent(request, loan),
            Issuer::FrontEnd(PROGRAM, _) => self.tell_program(HostEvent::Lent(cookie, loan)),
            Issuer::FrontEnd(QUEUES, request) => self.queues.lent(request),
            Issuer::FrontEnd(UBLK, request) => self.ublk.queues().lent(request),
            Issuer::FrontEnd(front_end, request) => {
                self.server(front_end as usize - 1).lent(request);
            }
            Issuer::Device(key) => unreachable!("{key:?}: memory is a front end's"),
        }
    }

    /// No leg has the memory of that loan any more, which was lent with this cookie.
    fn came_back(&mut self, cookie: u64, loan: Key, now_ns: u64) {
        match Issuer::of_cookie(cookie) {
            Issuer::FrontEnd(0, _) => self.nbd.came_back(loan),
            Issuer::FrontEnd(PROGRAM, _) => self.tell_program(HostEvent::Back(cookie, loan)),
            Issuer::FrontEnd(QUEUES, request) => self.queues.came_back(request),
            Issuer::FrontEnd(UBLK, request) => self.ublk.queues().came_back(request),
            Issuer::FrontEnd(front_end, request) => {
                let server = self.server(front_end as usize - 1);
                server.came_back(request, now_ns);
            }
            Issuer::Device(key) => unreachable!("{key:?}: memory is a front end's"),
        }
    }

    /// Begins changes that no other is in the way of any more; whether there were any.
    fn begin_changes(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(begun) = self.devices.order.poll_begun() {
            any = true;
            match Issuer::of_cookie(begun.owner) {
                Issuer::FrontEnd(0, request) => self.nbd.start(&mut self.devices, request),
                Issuer::FrontEnd(OTHER_CORES, _) => self.devices.cross_core.begun(begun.ticket),
                Issuer::FrontEnd(QUEUES, request) => {
                    self.queues.begun(&mut self.devices, request, now_ns);
                }
                Issuer::FrontEnd(UBLK, request) => {
                    let queues = self.ublk.queues();
                    queues.begun(&mut self.devices, request, now_ns);
                }
                Issuer::FrontEnd(front_end, request) => {
                    let place = front_end as usize - 1;
                    let Some(Some(server)) = self.nvme.get_mut(place) else {
                        unreachable!("a server stays until its requests have ended: {place}");
                    };
                    server.begun(&mut self.devices, request, now_ns);
                }
                Issuer::Device(key) => unreachable!("{key:?}: devices order their own changes"),
            }
        }
        any
    }

    /// Hands over what other cores have to know, and takes what is this core's own; whether there
    /// was any.
    #[inline(never)]
    fn exchange_messages(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while let Some(number) = self.devices.cross_core.poll_settled() {
            any = true;
            self.nbd.settled(&self.devices, number, now_ns);
        }
        while let Some((to, message)) = self.devices.cross_core.poll() {
            any = true;
            if to == self.devices.cross_core.core() {
                self.handle_message(message, now_ns);
            } else {
                self.events.push_back(ExportEvent::ToCore(to, message));
            }
        }
        any
    }

    /// A message of a core about changes that all have to know of.
    fn handle_message(&mut self, message: CoreMessage, now_ns: u64) {
        let devices = &mut self.devices;
        let step = devices.cross_core.handle(&mut devices.order, message);
        self.nbd.set_now(now_ns);
        match step {
            Some(Step::Place(cookie)) => self.nbd.place(&mut self.devices, cookie as u32),
            Some(Step::Begin(cookie)) => self.nbd.begin_alone(&mut self.devices, cookie as u32),
            Some(Step::Settle(arrival)) => self.nbd.settle(arrival),
            None => {}
        }
    }

    /// Takes the events of the devices; whether there were any.
    fn drain_devices(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        loop {
            while let Some(done) = self.devices.poll_done() {
                any = true;
                self.io_done(done, now_ns);
            }
            let Some(event) = self.devices.poll_event() else {
                return any;
            };
            any = true;
            match event {
                HostEvent::Done(done) => {
                    self.io_done(done, now_ns);
                    continue;
                }
                HostEvent::Lent(cookie, loan) => {
                    self.lent(cookie, loan);
                    continue;
                }
                HostEvent::Back(cookie, loan) => {
                    self.came_back(cookie, loan, now_ns);
                    continue;
                }
                HostEvent::Extent(id, extent) => {
                    self.extent_found(id, extent, now_ns);
                    continue;
                }
                HostEvent::Resized(volume, info) => {
                    self.nbd.resized(volume, info);
                    self.sized(volume, info, now_ns);
                }
                HostEvent::Ready(volume, info) => {
                    self.nbd.ready(&self.devices, volume, info);
                    self.sized(volume, info, now_ns);
                }
                HostEvent::Removed(volume) => {
                    self.nbd.forget_volume(volume);
                    self.queues.forget_volume(volume);
                    self.ublk.queues().forget_volume(volume);
                    for server in self.servers_mut() {
                        server.forget_volume(volume, now_ns);
                    }
                }
                HostEvent::Refused(volume, ref why) => {
                    self.nbd.refused(&self.devices, volume, why.clone());
                }
                _ => {}
            }
            self.events.push_back(ExportEvent::Host(event));
        }
    }

    /// A device or a controller says what a range is.
    fn extent_found(&mut self, id: u32, extent: DeviceExtent, now_ns: u64) {
        match nvme_server::server_of(id) {
            None => self.nbd.extent_found(&mut self.devices, id, extent),
            Some(server) => {
                // One that has left asked it.
                if let Some(Some(server)) = self.nvme.get_mut(server) {
                    server.extent_found(id, extent, now_ns);
                }
            }
        }
    }

    fn sized(&mut self, volume: u16, info: VolumeInfo, now_ns: u64) {
        for server in self.nvme.iter_mut().flatten() {
            server.sized(&self.devices, volume, info, now_ns);
        }
    }

    /// The front end behind this one, the first behind the last.
    fn front_end_after(&self, at: usize) -> usize {
        if at > self.nvme.len() { 0 } else { at + 1 }
    }

    /// Lets each front end go on, another one first in each turn: it takes the slots of the devices
    /// that have become free. Whether any did.
    fn advance_front_ends(&mut self, memory: &mut dyn Memory, now_ns: u64) -> bool {
        let mut any = false;
        let mut at = self.first;
        for _ in 0..2 + self.nvme.len() {
            match at.checked_sub(1).map(|server| self.nvme.get_mut(server)) {
                None => {
                    any |= self.nbd.advance(&mut self.devices, memory, now_ns);
                    any |= self.begin_changes(now_ns);
                    any |= self.nbd.submit_waiting(&mut self.devices);
                    while let Some(event) = self.nbd.poll_event() {
                        self.events.push_back(event);
                    }
                }
                Some(None) => any |= self.advance_queues(memory, now_ns),
                Some(Some(None)) => {}
                Some(Some(Some(server))) => {
                    any |= server.advance(&mut self.devices, memory, now_ns);
                    while let Some(event) = server.poll_event() {
                        self.events.push_back(event);
                    }
                }
            }
            at = self.front_end_after(at);
        }
        any
    }

    /// Everything that was made possible by what happened, until nothing more is.
    fn advance(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.nbd.set_now(now_ns);
        self.first = self.front_end_after(self.first);
        loop {
            let mut any = self.devices.settle(memory, now_ns);
            any |= self.drain_devices(now_ns);
            any |= self.advance_front_ends(memory, now_ns);
            if self.devices.cross_core.has_news() {
                any |= self.exchange_messages(now_ns);
            }
            if !any {
                break;
            }
        }
    }

    /// The rest of a turn, where there are front ends or it ends.
    fn turn_front_ends(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        if self.has_front_ends {
            self.advance(memory, now_ns);
            if self.devices.cross_core.has_others() {
                let devices = &mut self.devices;
                devices.cross_core.turn(&mut devices.order, now_ns);
                self.exchange_messages(now_ns);
            }
        }
        self.stop_devices(now_ns);
        if !self.nvme.is_empty() {
            self.free_places();
        }
    }

    /// Stops the devices once no client and no host is left.
    fn stop_devices(&mut self, now_ns: u64) {
        let have_ended = || {
            let queues = self.queues.is_idle() && self.ublk.is_idle();
            self.nbd.is_empty() && queues && self.servers().all(NvmeServer::is_over)
        };
        if self.stopping && have_ended() {
            self.stopping = false;
            self.devices.cross_core.leave();
            self.exchange_messages(now_ns);
            self.devices.handle_control(HostControl::Stop, now_ns);
            self.again = true;
        }
    }
}

/// The earlier of two times, if there is one.
#[inline]
pub(crate) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

/// An I/O of the program as the devices take it, beside those of front ends.
fn of_program(io: &Io) -> Io {
    let cookie = Issuer::FrontEnd(PROGRAM, io.cookie as u32).to_cookie();
    Io { cookie, ..*io }
}

/// An event of the devices with the program's own number of the I/O.
fn for_program(mut event: HostEvent) -> HostEvent {
    if let HostEvent::Done(IoDone { cookie, .. })
    | HostEvent::Lent(cookie, _)
    | HostEvent::Back(cookie, _) = &mut event
    {
        let Issuer::FrontEnd(PROGRAM, request) = Issuer::of_cookie(*cookie) else {
            unreachable!("{cookie}: it is not the program's");
        };
        *cookie = request.into();
    }
    event
}

impl Machine for Core {
    type Control = ExportControl;

    fn connections_max(&self) -> u32 {
        self.owners.len() as u32
    }

    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        let Some((place, port)) = port_of(listener) else {
            return self.nbd.accept(&mut self.devices, listener, now_ns);
        };
        let server = self.nvme.get_mut(place)?.as_mut()?;
        server.accept(port.into(), now_ns)
    }

    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        assert_eq!(self.owner(conn), Owner::Path, "only paths are opened");
        self.devices.host_mut().handle_connected(conn, now_ns);
    }

    fn handle_look(&mut self, busy_ns: u64, now_ns: u64) {
        self.devices.handle_look(busy_ns, now_ns);
    }

    #[inline]
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_bytes(client, bytes, now_ns),
            Owner::Host(server) => {
                let (target, conn) = self.host_of(server, conn);
                target.handle_bytes(conn, bytes, now_ns)
            }
            Owner::Path => self.devices.host_mut().handle_bytes(conn, bytes, now_ns),
        }
    }

    #[inline]
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_placement(client),
            Owner::Host(server) => {
                let (target, conn) = self.host_of(server, conn);
                target.placement(conn)
            }
            Owner::Path => self.devices.host_mut().placement(conn),
        }
    }

    #[inline]
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_payload(client, len, now_ns),
            Owner::Host(server) => {
                let (target, conn) = self.host_of(server, conn);
                target.handle_payload(conn, len, crc, now_ns)
            }
            Owner::Path => self
                .devices
                .host_mut()
                .handle_payload(conn, len, crc, now_ns),
        }
    }

    #[inline]
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_transmit(client, out),
            Owner::Host(server) => {
                let (target, conn) = self.host_of(server, conn);
                target.poll_transmit(conn, out, now_ns)
            }
            Owner::Path => self.devices.host_mut().poll_transmit(conn, out, now_ns),
        }
    }

    #[inline]
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_sent(client, cookie),
            Owner::Host(server) => {
                let (target, conn) = self.host_of(server, conn);
                target.handle_sent(conn, cookie, now_ns)
            }
            Owner::Path => self.devices.host_mut().handle_sent(conn, cookie, now_ns),
        }
    }

    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        match self.owner(conn) {
            Owner::Client(client) => {
                self.nbd.client_closed(&mut self.devices, client);
            }
            Owner::Host(server) => {
                self.server(usize::from(server)).closed(conn, why, now_ns);
            }
            Owner::Path => self.devices.host_mut().handle_closed(conn, why, now_ns),
        }
    }

    fn handle_end_check(&mut self, conn: ConnId, has_ended: bool, now_ns: u64) {
        let Owner::Client(client) = self.owner(conn) else {
            unreachable!("{conn:?} was not asked about");
        };
        self.nbd.end_checked(client, has_ended, now_ns);
    }

    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.devices.handle_device(id, result, now_ns);
    }

    fn start_before_ns(&self, id: u32) -> u64 {
        match self.devices.local_change(id) {
            Some((Issuer::FrontEnd(QUEUES, request), _)) if self.queues.is_late(request) => 0,
            Some((_, before_ns)) => before_ns,
            None => self.devices.start_before_ns(id),
        }
    }

    fn handle_cut(&mut self, device: LocalDevice, end: u64, now_ns: u64) {
        self.devices.handle_cut(device, end, now_ns);
    }

    fn handle_extent(&mut self, id: u32, extent: DeviceExtent, now_ns: u64) {
        self.extent_found(id, extent, now_ns);
    }

    fn handle_control(&mut self, message: ExportControl, now_ns: u64) {
        match message {
            ExportControl::Host(message) => self.devices.handle_control(message, now_ns),
            ExportControl::Mirror(volume, order) => self.devices.order(volume, order, now_ns),
            ExportControl::OfCore(message) => self.handle_message(message, now_ns),
            ExportControl::Offer(export, offer) => self.nbd.offer(export, offer),
            ExportControl::Withdraw(export, drain_ns) => {
                self.nbd.withdraw(export, drain_ns, now_ns);
            }
            ExportControl::Renew(export, offer, drain_ns) => {
                self.nbd.renew(export, offer, drain_ns, now_ns);
            }
            ExportControl::Dismiss(export, numbers, drain_ns) => {
                self.nbd.dismiss(export, &numbers, drain_ns, now_ns);
            }
            ExportControl::Refused(volume, why) => {
                // One that is ready here was told of before it was.
                if self.nbd.info(volume).is_none() {
                    self.nbd.refused(&self.devices, volume, why);
                }
            }
            ExportControl::Source(export, source) => self.nbd.expect_source(export, source),
            ExportControl::Nvme(place, change) => self.change_nvme(place, change, now_ns),
            ExportControl::Drain(drain_ns) => self.drain(drain_ns, now_ns),
            ExportControl::Stop(drain_ns) => {
                self.stopping = true;
                self.drain(drain_ns, now_ns);
            }
        }
    }

    #[inline]
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.again = false;
        self.devices.turn(memory, now_ns);
        if self.has_front_ends || self.stopping {
            self.turn_front_ends(memory, now_ns);
        }
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        if !self.has_front_ends {
            return self.devices.host_mut().poll_output();
        }
        if let Some(output) = self.nbd.poll_output() {
            return Some(output);
        }
        let output = self.devices.poll_output();
        output.or_else(|| self.servers_mut().find_map(NvmeServer::poll_output))
    }

    #[inline]
    fn poll_timeout(&self) -> Option<u64> {
        if self.again || self.queues.has_more() || self.ublk.has_more() {
            return Some(0);
        }
        if !self.has_front_ends {
            return self.devices.poll_timeout();
        }
        let due = earlier(self.nbd.poll_timeout(), self.devices.poll_timeout());
        let due = earlier(due, self.devices.cross_core.poll_timeout());
        let due = earlier(due, self.queues_timeout());
        self.servers()
            .fold(due, |due, it| earlier(due, it.poll_timeout()))
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.devices.handle_timeout(now_ns);
        self.nbd.handle_timeout(now_ns);
        self.queues_handle_timeout(now_ns);
        for server in self.servers_mut() {
            server.handle_timeout(now_ns);
        }
    }
}
