//! The engine of one core: front ends and block devices side by side, and the owner of each
//! connection.
//!
//! Responsible for the routing of connections, device requests, timers and events between them. The
//! NBD server ([`export`](crate::export)) is a front end; the block devices ([`Devices`]) are
//! multipath volumes, and mirrors over them.
//!
//! # Contract
//! `impl Machine for Core`. The owner of a connection is set when the engine is made and never
//! changes: each path has two connections, each place of a client has one.
//!
//! The end: [`ExportControl::Stop`] ends the clients first, then stops the devices, which say
//! [`Output::Stop`].
use crate::export::{ExportConfig, ExportControl, ExportCounters, ExportEvent, NbdServer};
use crate::host::{HostControl, HostEngine, HostEvent};
use crate::machine::{
    Closed, ConnId, DeviceError, DeviceExtent, DeviceId, Machine, Memory, Output, Place, Send,
};
use crate::mirror::{Devices, LegReport, MirrorReport};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The part of the engine that a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A path of a multipath volume.
    Path,
    /// A client of the NBD server, by its place.
    Client(u16),
}

/// The engine of one core. See the module's contract.
pub struct Core {
    devices: Devices,
    nbd: NbdServer,
    /// By connection.
    owners: Vec<Owner>,
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
        let devices = devices.into();
        let paths = devices.connections_max();
        let owners = (0..paths).map(|_| Owner::Path);
        let owners = owners.chain((0..config.clients_max).map(Owner::Client));
        Self {
            owners: owners.collect(),
            nbd: NbdServer::new(paths, volumes, config),
            devices,
            events: VecDeque::new(),
            stopping: false,
            again: false,
        }
    }

    /// Events in the order in which they happened.
    pub fn poll_event(&mut self) -> Option<ExportEvent> {
        let event = self.events.pop_front();
        event.or_else(|| self.nbd.poll_event())
    }

    /// Bytes of the NBD server's arena.
    pub fn buffers(&self) -> u64 {
        self.nbd.buffers()
    }

    /// Of these, in no request; perhaps not in one piece.
    pub fn buffers_free(&self) -> u64 {
        self.nbd.buffers_free()
    }

    /// The multipath volumes, for their counters.
    pub fn host(&self) -> &HostEngine {
        self.devices.host()
    }

    /// The multipath volumes, for [`HostEngine::set_elsewhere`].
    pub fn host_mut(&mut self) -> &mut HostEngine {
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
    }

    /// Takes the events of the devices; whether there were any.
    fn drain_devices(&mut self) -> bool {
        let Self { devices, nbd, .. } = self;
        let mut any = false;
        while let Some(event) = devices.poll_event() {
            any = true;
            match event {
                HostEvent::Done(done) => {
                    nbd.io_done(devices, &done);
                    continue;
                }
                HostEvent::Lent(cookie, loan) => {
                    nbd.lent(cookie as u32, loan);
                    continue;
                }
                HostEvent::Back(loan) => {
                    nbd.came_back(loan);
                    continue;
                }
                HostEvent::Resized(volume, info) => nbd.resized(volume, info),
                HostEvent::Ready(volume, info) => nbd.ready(devices, volume, info),
                HostEvent::Removed(volume) => nbd.forget_volume(volume),
                HostEvent::Refused(volume, ref why) => nbd.refused(devices, volume, why.clone()),
                _ => {}
            }
            self.events.push_back(ExportEvent::Host(event));
        }
        any
    }

    /// Everything that was made possible by what happened, until nothing more is.
    fn advance(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.nbd.set_now(now_ns);
        loop {
            let mut any = self.devices.settle(memory, now_ns);
            any |= self.drain_devices();
            any |= self.nbd.advance(&mut self.devices, memory, now_ns);
            while let Some(event) = self.nbd.poll_event() {
                self.events.push_back(event);
            }
            if !any {
                break;
            }
        }
        if self.stopping && self.nbd.is_empty() {
            self.stopping = false;
            self.devices.handle_control(HostControl::Stop, now_ns);
            self.again = true;
        }
    }
}

impl Machine for Core {
    type Control = ExportControl;

    fn connections_max(&self) -> u32 {
        self.owners.len() as u32
    }

    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.nbd.accept(&self.devices, listener, now_ns)
    }

    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        assert_eq!(self.owner(conn), Owner::Path, "only paths are opened");
        self.devices.handle_connected(conn, now_ns);
    }

    fn handle_look(&mut self, busy_ns: u64, now_ns: u64) {
        self.devices.handle_look(busy_ns, now_ns);
    }

    #[inline]
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_bytes(client, bytes, now_ns),
            Owner::Path => self.devices.handle_bytes(conn, bytes, now_ns),
        }
    }

    #[inline]
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_placement(client),
            Owner::Path => self.devices.placement(conn),
        }
    }

    #[inline]
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_payload(client, len, now_ns),
            Owner::Path => self.devices.handle_payload(conn, len, crc, now_ns),
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
            Owner::Path => self.devices.poll_transmit(conn, out, now_ns),
        }
    }

    #[inline]
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_sent(client, cookie),
            Owner::Path => self.devices.handle_sent(conn, cookie, now_ns),
        }
    }

    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        match self.owner(conn) {
            Owner::Client(client) => self.nbd.client_closed(client),
            Owner::Path => self.devices.handle_closed(conn, why, now_ns),
        }
    }

    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.devices.handle_device(id, result, now_ns);
    }

    fn start_before_ns(&self, id: u32) -> u64 {
        self.devices.start_before_ns(id)
    }

    fn handle_cut(&mut self, device: DeviceId, end: u64, now_ns: u64) {
        self.devices.handle_cut(device, end, now_ns);
    }

    fn handle_extent(&mut self, id: u32, extent: DeviceExtent, _now_ns: u64) {
        self.nbd.extent_found(&mut self.devices, id, extent);
    }

    fn handle_control(&mut self, message: ExportControl, now_ns: u64) {
        match message {
            ExportControl::Host(message) => self.devices.handle_control(message, now_ns),
            ExportControl::Mirror(volume, order) => self.devices.order(volume, order, now_ns),
            ExportControl::Offer(export, offer) => self.nbd.offer(export, offer),
            ExportControl::Withdraw(export, drain_ns) => {
                self.nbd.withdraw(export, drain_ns, now_ns);
            }
            ExportControl::Renew(export, offer, drain_ns) => {
                self.nbd.renew(export, offer, drain_ns, now_ns);
            }
            ExportControl::Refused(volume, why) => {
                // One that is ready here was told of before it was.
                if !self.nbd.is_ready(volume) {
                    self.nbd.refused(&self.devices, volume, why);
                }
            }
            ExportControl::Source(export, source) => self.nbd.expect_source(export, source),
            ExportControl::Drain(drain_ns) => self.drain(drain_ns, now_ns),
            ExportControl::Stop(drain_ns) => {
                self.stopping = true;
                self.drain(drain_ns, now_ns);
            }
        }
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.again = false;
        self.devices.turn(memory, now_ns);
        self.advance(memory, now_ns);
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        let output = self.nbd.poll_output();
        output.or_else(|| self.devices.poll_output())
    }

    #[inline]
    fn poll_timeout(&self) -> Option<u64> {
        if self.again {
            return Some(0);
        }
        let times = [self.nbd.poll_timeout(), self.devices.poll_timeout()];
        times.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.devices.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.devices.handle_timeout(now_ns);
        }
        self.nbd.handle_timeout(now_ns);
    }
}
