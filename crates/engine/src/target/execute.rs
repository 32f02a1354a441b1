//! The course of one command: buffer, shape, device, completion, release.
use super::commands::{Command, Recall, Stage};
use super::{Namespace, TargetEngine, status};
use crate::machine::{ConnId, DeviceError, DeviceOp, DeviceRequest, ExtentRequest, Output, Span};
use block::Range;
use canary::Bug;
use nvme::controller::{Action, ControllerEvent, IoCommand};
use nvme::wire::Status;

/// NSID of a Flush of everything (Base 2.0, 7.1).
const ALL_NAMESPACES: u32 = u32::MAX;

impl TargetEngine {
    /// Follows everything the subsystem says, and serves who waits for a buffer, until both are
    /// quiet.
    #[inline]
    pub(super) fn drain(&mut self, now_ns: u64) {
        // As after most calls.
        let is_quiet = !self.subsystem.has_event() && !self.pool.is_waited_for();
        if !is_quiet || self.order.has_begun() {
            self.drain_all(now_ns);
        }
    }

    fn drain_all(&mut self, now_ns: u64) {
        loop {
            if let Some(event) = self.subsystem.poll_event() {
                self.follow(event, now_ns);
            } else if let Some((slot, span)) = self.pool.serve(&self.commands, now_ns) {
                self.have_buffer(slot, span, now_ns);
                if self.commands[slot].in_capsule {
                    self.resume(self.commands[slot].connection);
                }
            } else if let Some(begun) = self.order.poll_begun() {
                self.next_request(begun.owner as u32, now_ns);
            } else {
                return;
            }
        }
    }

    fn follow(&mut self, event: ControllerEvent, now_ns: u64) {
        match event {
            ControllerEvent::NeedBuffer {
                conn,
                token,
                len,
                in_capsule,
            } => {
                let slot = self.new_command(conn.0, token);
                let command = &mut self.commands[slot];
                (command.stage, command.len) = (Stage::WaitsToReceive, len);
                command.in_capsule = in_capsule;
                self.want_buffer(slot, now_ns);
            }
            ControllerEvent::Command(command) => self.arrived(command, now_ns),
            ControllerEvent::Abort {
                conn,
                token,
                by,
                answer,
            } => self.take_back((conn, token), (by, answer), now_ns),
            ControllerEvent::Extent {
                id,
                nsid,
                slba,
                blocks,
            } => self.ask_extent(id, nsid, (slba, blocks)),
            ControllerEvent::Release { conn, token } => self.released(conn.0, token),
            ControllerEvent::Transmit(conn) => self.name_transmit(conn.0),
            ControllerEvent::Resume(conn) => self.resume(conn.0),
            ControllerEvent::Close { conn, reason } => {
                self.close_for(ConnId(conn.0), reason, now_ns)
            }
        }
    }

    /// Asks the device of a namespace how far its blocks from `slba` on are a hole.
    fn ask_extent(&mut self, id: u32, nsid: u32, (slba, blocks): (u64, u32)) {
        let Some(Namespace {
            device,
            block_shift,
            ..
        }) = self.namespace(nsid)
        else {
            unreachable!("the subsystem asks about its namespaces");
        };
        let most = u32::MAX >> block_shift;
        self.outputs.push_back(Output::Extent(ExtentRequest {
            id,
            device,
            offset: slba << block_shift,
            length: blocks.min(most) << block_shift,
        }));
    }

    /// The namespace that has this NSID, or had it last.
    #[inline]
    pub(super) fn namespace(&self, nsid: u32) -> Option<Namespace> {
        // NSIDs are mostly 1, 2, 3, …
        let guess = self.namespaces.get((nsid as usize).wrapping_sub(1));
        if let Some(namespace) = guess.filter(|it| it.nsid == nsid) {
            return Some(*namespace);
        }
        let found = self.namespaces.binary_search_by_key(&nsid, |it| it.nsid);
        Some(self.namespaces[found.ok()?])
    }

    #[inline]
    fn new_command(&mut self, connection: u32, token: u32) -> u32 {
        self.connections.of(connection).commands += 1;
        self.commands.insert(connection, token)
    }

    /// A command with all its data is ready: the port's shape says when it begins.
    fn arrived(&mut self, io: IoCommand, now_ns: u64) {
        let found = self.commands.find(io.conn.0, io.token);
        let slot = found.unwrap_or_else(|| self.new_command(io.conn.0, io.token));
        let namespace = self.namespace(io.nsid);
        let block_shift = namespace.map_or(0, |it| it.block_shift);
        let command = &mut self.commands[slot];
        command.namespace = namespace;
        command.len = match io.action {
            Action::Read | Action::Write { .. } | Action::Compare => io.blocks << block_shift,
            _ => 0,
        };
        (command.slba, command.blocks) = (io.slba, io.blocks);
        (command.action, command.stage) = (io.action, Stage::Shaped);
        if io.action == Action::Deallocate {
            command.ranges = self.subsystem.take_ranges(io.conn, io.token);
        }
        let port = &mut self.ports[usize::from(io.port)];
        port.stats.in_flight += 1;
        if namespace.is_none() && io.nsid != ALL_NAMESPACES {
            self.finish(slot, Status::INVALID_NAMESPACE.with_dnr(), now_ns);
            return;
        }
        let due = port.admit(slot, command.len, now_ns);
        self.maybe_drop(usize::from(io.port), io.conn.0);
        if due {
            self.begin(usize::from(io.port), slot, now_ns);
        }
    }

    /// The shape of its port has let go of a command.
    pub(super) fn begin(&mut self, port: usize, slot: u32, now_ns: u64) {
        if self.intercept(port, slot, now_ns) {
            return;
        }
        let command = &mut self.commands[slot];
        if command.action == Action::Read {
            command.stage = Stage::WaitsToRead;
            let (connection, len, purpose) = (command.connection, command.len, command.purpose());
            match self.pool.take(connection, len, purpose, now_ns) {
                Some(span) => {
                    self.commands[slot].buffer = Some(span);
                    self.next_request(slot, now_ns);
                }
                None => self.wait_for_buffer(slot, now_ns),
            }
        } else {
            self.next_request(slot, now_ns);
        }
    }

    fn want_buffer(&mut self, slot: u32, now_ns: u64) {
        let command = &self.commands[slot];
        let (connection, len, purpose) = (command.connection, command.len, command.purpose());
        if let Some(span) = self.pool.take(connection, len, purpose, now_ns) {
            self.have_buffer(slot, span, now_ns);
        } else {
            self.wait_for_buffer(slot, now_ns);
        }
    }

    fn wait_for_buffer(&mut self, slot: u32, now_ns: u64) {
        let command = &self.commands[slot];
        let (connection, purpose) = (command.connection, command.purpose());
        self.pool.wait(slot, purpose, &mut self.commands, now_ns);
        self.stalls.watch(now_ns);
        let port = self.connections.of(connection).port;
        self.ports[usize::from(port)].stats.waited_buffer += 1;
    }

    fn have_buffer(&mut self, slot: u32, span: Span, now_ns: u64) {
        let command = &mut self.commands[slot];
        command.buffer = Some(span);
        if command.stage == Stage::WaitsToRead {
            self.next_request(slot, now_ns);
            return;
        }
        command.stage = Stage::Receiving;
        let conn = nvme::controller::ConnId(command.connection);
        self.subsystem.buffer_ready(conn, command.token, now_ns);
    }

    /// The next request to a device that a command needs; none left: it is done.
    pub(super) fn next_request(&mut self, slot: u32, now_ns: u64) {
        let command = &mut self.commands[slot];
        command.stage = Stage::AtDevice;
        let is_ordered = self.keeps_order && command.is_change();
        while let Some(request) = request(slot, command, &self.namespaces) {
            if is_ordered && request.length > 0 && command.order.is_none() {
                let range = Range::new(request.offset, request.length);
                let device = request.device.0.into();
                let (ticket, begins) = self.order.admit(slot.into(), device, range);
                command.order = Some(ticket);
                if !begins {
                    // Comes here again, by `drain`.
                    command.stage = Stage::Ordered;
                    return;
                }
            }
            command.step += 1;
            if matches!(request.op, DeviceOp::Write { .. })
                && canary::has(Bug::FreedAtDevice)
                && let Some(span) = command.buffer.take()
            {
                self.pool.free(command.connection, span);
            }
            let flushes = request.op == DeviceOp::Flush && !canary::has(Bug::UnaskedFlush);
            if request.length > 0 || flushes {
                self.outputs.push_back(Output::Device(request));
                return;
            }
        }
        self.finish(slot, Status::SUCCESS, now_ns);
    }

    /// A device has answered.
    pub(super) fn device_done(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        let result = result.map_err(|error| self.device_failed(id, error));
        self.request_done(id, result, now_ns);
    }

    #[cold]
    fn device_failed(&mut self, id: u32, error: DeviceError) -> Status {
        let command = &self.commands[id];
        let status = status::of_device_error(command.action, error);
        let port = self.connections.of(command.connection).port;
        let stats = &mut self.ports[usize::from(port)].stats;
        stats.device.count(error, status);
        status
    }

    /// A request of a command has ended; with which status, if not well.
    #[inline(always)] // of each answer of a device
    pub(super) fn request_done(&mut self, id: u32, result: Result<(), Status>, now_ns: u64) {
        let command = &mut self.commands[id];
        assert!(command.stage == Stage::AtDevice, "no request {id}");
        if let Some(ticket) = command.order.take() {
            self.order.end(ticket);
        }
        let conn = ConnId(command.connection);
        let is_aborted = matches!(command.recall, Recall::Abort(..));
        match result {
            Ok(()) if command.is_one_request() => self.finish(id, Status::SUCCESS, now_ns),
            // The rest of it has no place in the order yet, and its host may have changed the
            // same blocks over another connection by then (T9).
            Ok(()) if !self.connections.is_open(conn) && self.goes_on(id) => {
                self.finish(id, Status::SQ_DELETION, now_ns);
            }
            Ok(()) => {
                // An Abort comes too late: a part of the command is done.
                if is_aborted {
                    self.refuse_recall(id);
                }
                self.next_request(id, now_ns);
            }
            Err(status) => self.finish(id, status, now_ns),
        }
    }

    /// Whether a command needs another request.
    #[cold]
    fn goes_on(&self, slot: u32) -> bool {
        request(slot, &self.commands[slot], &self.namespaces).is_some()
    }

    /// A command that waits for changes that it overlaps does so no more.
    pub(super) fn leave_order(&mut self, slot: u32) {
        if let Some(ticket) = self.commands[slot].order.take() {
            self.order.withdraw(ticket);
        }
    }

    /// Answers a command.
    pub(super) fn finish(&mut self, slot: u32, status: Status, now_ns: u64) {
        let command = &mut self.commands[slot];
        if let Some(ticket) = command.order.take() {
            self.order.withdraw(ticket);
        }
        command.stage = Stage::Completed;
        let is_recalled = command.recall != Recall::No;
        let (connection, token, len) = (command.connection, command.token, command.len);
        let bytes = match command.action {
            Action::Read => [len.into(), 0],
            _ => [0, len.into()],
        };
        let of = self.connections.of(connection);
        of.counters.ended(status.is_success(), bytes);
        let port = of.port;
        let stats = &mut self.ports[usize::from(port)].stats;
        stats.in_flight -= 1;
        stats.commands += 1;
        if status.is_success() {
            stats.bytes += u64::from(len);
        } else {
            stats.errors += 1;
        }
        let conn = nvme::controller::ConnId(connection);
        let injector = &mut self.ports[usize::from(port)].faults;
        if status.is_success() && command.action == Action::Read && injector.shortens() {
            self.subsystem.shorten(conn, token);
        }
        self.subsystem.complete(conn, token, status, now_ns);
        if is_recalled {
            self.refuse_recall(slot);
        }
    }

    /// Takes bytes from a connection's stream, as far as placements and buffers allow.
    pub(super) fn receive(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        if !self.connections.is_open(conn) {
            return bytes.len();
        }
        let id = nvme::controller::ConnId(conn.0);
        let taken = self.subsystem.handle_bytes(id, bytes, now_ns);
        self.drain(now_ns);
        taken
    }

    /// A connection's stream stood still, and may go on.
    fn resume(&mut self, connection: u32) {
        if self.connections.is_open(ConnId(connection)) {
            self.outputs.push_back(Output::Resume(ConnId(connection)));
        }
    }

    /// No host refers to a command or its buffer any more.
    fn released(&mut self, connection: u32, token: u32) {
        let Some(slot) = self.commands.free_token(connection, token) else {
            return;
        };
        let command = &mut self.commands[slot];
        assert!(!command.stage.is_waiting(), "released in a line");
        if command.loans > 0 {
            command.stage = Stage::Lent;
        } else {
            self.free_command(slot);
        }
    }

    /// Frees a released command and its buffer.
    #[inline(always)] // of each command
    pub(super) fn free_command(&mut self, slot: u32) {
        let Command {
            connection, buffer, ..
        } = self.commands.remove(slot);
        if let Some(span) = buffer {
            let late = !self.connections.is_open(ConnId(connection));
            if !(late && canary::has(Bug::LeakedBuffer)) {
                self.pool.free(connection, span);
            }
        }
        self.connections.of(connection).commands -= 1;
        self.free_if_over(connection);
    }
}

/// Request of a command's present step to a device.
#[inline]
fn request(slot: u32, command: &Command, namespaces: &[Namespace]) -> Option<DeviceRequest> {
    let step = command.step as usize;
    let own = command.namespace.as_ref();
    let namespace = own.or_else(|| namespaces.get(step))?;
    let op = match command.action {
        Action::Read => DeviceOp::Read,
        Action::Write { fua } => DeviceOp::Write { fua },
        Action::Flush => DeviceOp::Flush,
        // Devices don't zero durably: a flush behind it makes it so.
        Action::WriteZeroes { fua: true, .. } if step > 0 => DeviceOp::Flush,
        Action::WriteZeroes { deallocate, .. } => DeviceOp::WriteZeroes { deallocate },
        Action::Deallocate => DeviceOp::Deallocate,
        Action::Compare => DeviceOp::Compare,
    };
    let (first, blocks) = match command.action {
        Action::Deallocate => *command.ranges.get(step)?,
        Action::WriteZeroes { fua: true, .. } if step == 1 => (0, 0),
        _ if step > 0 && command.namespace.is_some() => return None,
        Action::Flush => (0, 0),
        _ => (command.slba, u64::from(command.blocks)),
    };
    Some(DeviceRequest {
        id: slot,
        device: namespace.device,
        op,
        offset: first << namespace.block_shift,
        length: blocks << namespace.block_shift,
        span: command.buffer.unwrap_or_default(),
    })
}
