//! The face to the reactor.
use super::{TargetControl, TargetEngine};
use crate::machine::{
    Closed, ConnId, DeviceError, DeviceExtent, LentRead, Machine, Memory, Output, Place, Send, Span,
};
use alloc::vec::Vec;
use nvme::controller::Action;

impl Machine for TargetEngine {
    type Control = TargetControl;

    fn connections_max(&self) -> u32 {
        self.connections.count()
    }

    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        let conn = self.accept(u16::try_from(listener).ok()?, now_ns);
        self.drain(now_ns);
        conn
    }

    /// Never: a target opens no connections.
    fn handle_connected(&mut self, _: ConnId, _: u64) {}

    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.end_overdue(now_ns);
        self.receive(conn, bytes, now_ns)
    }

    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        if !self.connections.is_open(conn) {
            return None;
        }
        let place = self.subsystem.placement(id(conn))?;
        let span = self.part(conn, place.token, place.offset, place.len);
        Some(Place {
            span,
            crc: place.crc,
        })
    }

    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.end_overdue(now_ns);
        // A PDU that was being received when the connection was told to close begins nothing (T9).
        if self.connections.is_open(conn) {
            self.moved(conn, len, now_ns);
            self.subsystem.handle_payload(id(conn), len, crc, now_ns);
            self.drain(now_ns);
        }
    }

    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let port = usize::from(self.connections.of(conn.0).port);
        if self.ports[port].faults.is_mute(now_ns) {
            self.ports[port].stats.faults.muted += 1;
            return None;
        }
        let transmit = self.subsystem.poll_transmit(id(conn), out, now_ns);
        self.drain(now_ns);
        Some(transmit?.payload.map(|payload| Send {
            span: self.part(conn, payload.token, payload.offset, payload.len),
            digest: payload.digest,
            cookie: payload.token,
            read: self.lent_read(conn, payload.token, payload.offset),
        }))
    }

    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.end_overdue(now_ns);
        let slot = self.commands.find(conn.0, cookie);
        let len = slot.map_or(0, |slot| self.commands[slot].len);
        self.moved(conn, len, now_ns);
        self.subsystem.handle_sent(id(conn), cookie);
        self.drain(now_ns);
    }

    fn handle_closed(&mut self, conn: ConnId, closed: Closed, now_ns: u64) {
        self.end_overdue(now_ns);
        self.closed(conn, closed, now_ns);
        self.drain(now_ns);
        self.press_on(now_ns);
    }

    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.end_overdue(now_ns);
        self.device_done(id, result, now_ns);
        self.drain(now_ns);
        self.press_on(now_ns);
    }

    fn handle_extent(&mut self, id: u32, extent: DeviceExtent, now_ns: u64) {
        self.subsystem
            .extent_found(id, extent.length, extent.is_zero);
        self.drain(now_ns);
    }

    /// Until keep-alive of its association expires; not at all once its connection was cut off.
    fn start_before_ns(&self, id: u32) -> u64 {
        self.start_before(id)
    }

    /// All that a host gets of a read's payload is sent, once.
    fn may_lend(&self, id: u32) -> bool {
        self.commands[id].action == Action::Read
    }

    fn handle_control(&mut self, message: TargetControl, now_ns: u64) {
        self.end_overdue(now_ns);
        match message {
            TargetControl::Shape(port, shape) => {
                if let Some(port) = self.ports.get_mut(usize::from(port)) {
                    port.configure(shape, now_ns);
                }
            }
            TargetControl::Ana(port, state) => {
                if usize::from(port) < self.ports.len() {
                    self.subsystem.set_ana(port, state, now_ns);
                }
            }
            TargetControl::AnaGroup(port, group, state) => {
                if usize::from(port) < self.ports.len() {
                    self.subsystem.set_ana_group(port, group, state, now_ns);
                }
            }
            TargetControl::Resize(nsid, blocks) => {
                // Refused for a namespace that isn't there: then nothing changes.
                let _ = self.subsystem.resize(nsid, blocks, now_ns);
            }
            TargetControl::Discovery(change) => {
                // Refused as a whole: then nothing changes.
                let _ = self.subsystem.change_discovery(change);
            }
            TargetControl::DisconnectHosts => self.subsystem.disconnect_hosts(now_ns),
            TargetControl::Drop(port) => self.drop_port(port),
            TargetControl::Faults(port, faults) => self.change_faults(port, faults, now_ns),
            TargetControl::Stop => self.begin_stop(now_ns),
        }
        self.drain(now_ns);
        self.press_on(now_ns);
    }

    fn turn(&mut self, _: &mut dyn Memory, _: u64) {
        for (number, port) in self.ports.iter().enumerate() {
            self.board.publish(number, &port.stats);
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        match output {
            Some(Output::Transmit(conn)) => self.connections.of(conn.0).transmit_named = false,
            // An empty ring begins again at its start, and so stays in the cache.
            None => self.outputs.clear(),
            _ => {}
        }
        output
    }

    fn poll_timeout(&self) -> Option<u64> {
        if !self.outputs.is_empty() {
            return Some(0);
        }
        let due = self.ports.iter().filter_map(|port| port.due_ns());
        due.chain(self.subsystem.poll_timeout())
            .chain(self.faults_timeout_ns())
            .chain(self.stalls.poll_timeout())
            .chain(self.stop_ns())
            .min()
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.end_overdue(now_ns);
        for port in 0..self.ports.len() {
            while let Some(slot) = self.ports[port].pop_due(now_ns) {
                self.begin(port, slot, now_ns);
            }
            self.faults_timeout(port, now_ns);
        }
        self.expire_gone(now_ns);
        self.look_for_stalls(now_ns);
        self.drain(now_ns);
        self.press_on(now_ns);
    }
}

impl TargetEngine {
    /// Ends associations and connections whose time is over, before anything else is heeded. A
    /// process that stood still for longer than that finds writes in its sockets, and perhaps the
    /// keep-alive that would have come in time; their host has long sent them elsewhere (T9).
    #[inline]
    pub(super) fn end_overdue(&mut self, now_ns: u64) {
        let due_ns = self.subsystem.poll_timeout();
        if due_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.subsystem.handle_timeout(now_ns);
            self.drain(now_ns);
        }
    }

    /// Of a part of a read's payload.
    fn lent_read(&self, conn: ConnId, token: u32, at: u32) -> Option<LentRead> {
        let id = self.commands.find(conn.0, token)?;
        self.may_lend(id).then_some(LentRead { id, at })
    }

    /// A range of a command's buffer.
    fn part(&self, conn: ConnId, token: u32, offset: u32, len: u32) -> Span {
        let slot = self.commands.find(conn.0, token);
        let buffer = slot
            .and_then(|slot| self.commands[slot].buffer)
            .unwrap_or_default();
        assert!(
            offset + len <= buffer.len,
            "{offset} + {len} of {}",
            buffer.len
        );
        Span {
            at: buffer.at + u64::from(offset),
            len,
        }
    }
}

fn id(conn: ConnId) -> nvme::controller::ConnId {
    nvme::controller::ConnId(conn.0)
}
