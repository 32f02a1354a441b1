//! Fabrics commands (Base 2.0, 6): Connect, Property Get and Set, Disconnect.
use super::Subsystem;
use super::association::{Change, Controller, Terms};
use super::config::Shared;
use super::connection::{Phase, Purpose};
use super::io::from_host;
use crate::limits::ADMIN_ENTRIES_MAX;
use crate::wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_ANY, Cap, Cc, Connect, ConnectData, ConnectResult,
    InvalidParameter, Property, Version, connect_status, property,
};
use crate::wire::sqe::fctype;
use crate::wire::{Sqe, Status, WireError, le16};

/// Time-out for enable, reset and shutdown in CAP and CRTO, units of 500 ms: 15 s. They wait for
/// the driver's commands.
const READY_TIMEOUT: u8 = 30;
/// CAP.CRMS: controller ready with media, the only mode there is (Base 2.0, 3.1.3.1).
const CAP_CRWMS: u64 = 1 << 59;
/// Offsets in the Connect entry.
const QID_AT: u16 = 42;
const SQSIZE_AT: u16 = 44;

/// Refusal of a Connect: status and first dword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    status: Status,
    result: u64,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            status: status.with_dnr(),
            result: 0,
        }
    }
}

impl Refusal {
    fn parameter(offset: u16, in_data: bool) -> Self {
        let result = InvalidParameter { offset, in_data }.emit();
        Self {
            result,
            ..connect_status::INVALID_PARAMETERS.into()
        }
    }

    /// Clears DNR: a later Connect of the same host may succeed. A Linux host removes a controller
    /// for good at the first refusal with DNR.
    fn passing(self) -> Self {
        Self {
            status: self.status.without_dnr(),
            ..self
        }
    }
}

/// A Connect whose parameters are valid in themselves.
struct Wish<'a> {
    connect: Connect,
    data: ConnectData<'a>,
    hostnqn: &'a str,
    discovery: bool,
}

impl Subsystem {
    /// A Fabrics command arrived.
    pub(super) fn fabrics_command(&mut self, at: usize, slot: u16, sqe: &Sqe<'_>, now_ns: u64) {
        let connection = self.work(at).connection;
        let (phase, qid) = (connection.phase, connection.qid);
        let answer = match sqe.fctype() {
            fctype::CONNECT => return self.connect_command(at, slot, sqe),
            _ if phase == Phase::Connect => Err(Status::SEQUENCE_ERROR),
            fctype::PROPERTY_GET if qid == 0 => self.property_get(at, sqe),
            fctype::PROPERTY_SET if qid == 0 => self.property_set(at, sqe, now_ns),
            fctype::DISCONNECT if qid == 0 => Err(connect_status::INVALID_QUEUE_TYPE),
            fctype::DISCONNECT if le16(sqe.bytes(), 40) != 0 => {
                Err(connect_status::INCOMPATIBLE_FORMAT)
            }
            fctype::DISCONNECT => return self.disconnect(at, slot, now_ns),
            _ => Err(Status::INVALID_OPCODE),
        };
        match answer {
            Ok(result) => self.work(at).respond(slot, Status::SUCCESS, result),
            Err(status) => self.work(at).respond(slot, status.with_dnr(), 0),
        }
    }

    /// Connect: its data is 1024 bytes, in the capsule as a rule.
    fn connect_command(&mut self, at: usize, slot: u16, sqe: &Sqe<'_>) {
        let mut work = self.work(at);
        let size = ConnectData::LEN as u32;
        let data = match work.connection.phase {
            Phase::Connect => from_host(sqe, work.connection.rx.capsule_data(), size..=size),
            _ => Err(Status::SEQUENCE_ERROR.with_dnr()),
        };
        match data {
            Err(status) => work.respond(slot, status, 0),
            Ok((len, way)) => {
                // The entry is needed again when the data has arrived.
                let command = &mut work.connection.slots[slot];
                command.purpose = Purpose::Connect;
                command.len = len;
                command.own.reserve_exact(Sqe::LEN + ConnectData::LEN);
                command.own.extend_from_slice(sqe.bytes());
                work.receive_own(slot, way);
            }
        }
    }

    /// All data of a Connect is here.
    pub(super) fn connect(&mut self, at: usize, slot: u16, now_ns: u64) {
        match self.try_connect(at, slot, now_ns) {
            Ok(cntlid) => {
                let result = ConnectResult { cntlid, authreq: 0 };
                self.work(at).respond(slot, Status::SUCCESS, result.emit());
            }
            Err(refusal) => self.work(at).respond(slot, refusal.status, refusal.result),
        }
        self.rearm(at);
    }

    fn try_connect(&mut self, at: usize, slot: u16, now_ns: u64) -> Result<u16, Refusal> {
        let connection = self.work(at).connection;
        if connection.phase != Phase::Connect {
            return Err(Status::SEQUENCE_ERROR.into());
        }
        let own = core::mem::take(&mut connection.slots[slot].own);
        let (sqe, data) = own.split_at(Sqe::LEN);
        let sqe = Sqe::new(sqe).map_err(|_| Status::INVALID_FIELD)?;
        let wish = parse(&self.shared, &Connect::parse(&sqe), data)?;
        match wish.connect.qid {
            0 => self.connect_admin(at, &wish, now_ns),
            _ => self.connect_io(at, &wish),
        }
    }

    /// A new controller, with an identifier that no other has.
    fn connect_admin(&mut self, at: usize, wish: &Wish<'_>, now_ns: u64) -> Result<u16, Refusal> {
        // The dynamic controller model (FCATT bit 0 clear).
        if wish.data.cntlid != CNTLID_ANY {
            return Err(Refusal::parameter(ConnectData::CNTLID_AT, true));
        }
        let entries = entries(&wish.connect, ADMIN_ENTRIES_MAX)?;
        let Some(cntlid) = self.free_cntlid() else {
            return Err(Refusal::from(connect_status::CONTROLLER_BUSY).passing());
        };
        let port = self.work(at).connection.port;
        if !wish.discovery && !self.shared.discovery.takes_hosts(port) {
            // The port may be offered again.
            return Err(Refusal::parameter(ConnectData::SUBNQN_AT, true).passing());
        }
        let terms = Terms {
            cntlid,
            discovery: wish.discovery,
            port,
            hostnqn: wish.hostnqn.into(),
            hostid: wish.data.hostid,
            admin: at,
            queues: if wish.discovery {
                0
            } else {
                self.shared.config.io_queues_max
            },
            kato_ms: wish.connect.kato_ms,
        };
        let controller = self.insert_controller(Controller::new(terms, now_ns));
        self.connected(at, controller, &wish.connect, entries);
        Ok(cntlid)
    }

    /// Another queue of a controller that is enabled, from the same host by the same port.
    fn connect_io(&mut self, at: usize, wish: &Wish<'_>) -> Result<u16, Refusal> {
        let (connect, data) = (&wish.connect, &wish.data);
        let port = self.work(at).connection.port;
        let fits = |c: &Controller| {
            c.cntlid == data.cntlid && c.discovery == wish.discovery && c.port == port
        };
        let found = self
            .controllers
            .iter_mut()
            .enumerate()
            .find_map(|(index, controller)| {
                controller
                    .as_deref_mut()
                    .filter(|c| fits(c))
                    .map(|controller| (index, controller))
            });
        let Some((index, controller)) = found else {
            // The association has ended meanwhile: the host may begin another one.
            return Err(Refusal::parameter(ConnectData::CNTLID_AT, true).passing());
        };
        if controller.hostnqn != wish.hostnqn {
            return Err(Refusal::parameter(ConnectData::HOSTNQN_AT, true));
        }
        if controller.hostid != data.hostid {
            return Err(Refusal::parameter(0, true));
        }
        if !controller.is_ready() {
            // Disabled, resetting or shutting down.
            return Err(Refusal::from(Status::SEQUENCE_ERROR).passing());
        }
        let queue = controller.io.get_mut(usize::from(connect.qid) - 1);
        let queue = match queue.filter(|_| connect.qid <= controller.queues) {
            Some(queue @ None) => queue,
            // The queue's old connection has not ended yet.
            Some(_) => return Err(Refusal::parameter(QID_AT, false).passing()),
            None => return Err(Refusal::parameter(QID_AT, false)),
        };
        let entries = entries(connect, self.shared.config.entries_max)?;
        *queue = Some(at);
        let cntlid = controller.cntlid;
        self.connected(at, index, connect, entries);
        Ok(cntlid)
    }

    fn connected(&mut self, at: usize, controller: usize, connect: &Connect, entries: u16) {
        let flow_control = connect.cattr & CATTR_DISABLE_SQ_FLOW == 0;
        let connection = self.work(at).connection;
        let before = usize::from(connection.entries);
        connection.connected(controller, connect.qid, entries, flow_control);
        let Some(controller) = self.work(at).controller else {
            unreachable!("the connection has just got its controller");
        };
        controller.members += 1;
        self.entries = self.entries - before + usize::from(entries);
        // The most events that all queues can have at once: nothing is allocated later.
        self.events.reserve(3 * self.entries);
    }

    /// Returns the next identifier of the range that no controller has; round-robin, so that one
    /// just freed is not reused at once.
    fn free_cntlid(&mut self) -> Option<u16> {
        let (min, max) = (self.shared.config.cntlid_min, self.shared.config.cntlid_max);
        for _ in min..=max {
            let cntlid = self.cntlid_next;
            self.cntlid_next = if cntlid == max { min } else { cntlid + 1 };
            if !self
                .controllers
                .iter()
                .flatten()
                .any(|controller| controller.cntlid == cntlid)
            {
                return Some(cntlid);
            }
        }
        None
    }

    fn property_get(&mut self, at: usize, sqe: &Sqe<'_>) -> Result<u64, Status> {
        let wanted = Property::parse(sqe).map_err(|_| Status::INVALID_FIELD)?;
        let entries_max = self.shared.config.entries_max;
        let controller = self.work(at).controller.ok_or(Status::SEQUENCE_ERROR)?;
        match (wanted.offset, wanted.wide) {
            (property::CAP, true) => Ok(Cap::fabrics(entries_max - 1, READY_TIMEOUT).0 | CAP_CRWMS),
            (property::VS, false) => Ok(Version::V2_0.0.into()),
            (property::CC, false) => Ok(controller.cc.0.into()),
            (property::CSTS, false) => Ok(controller.csts().0.into()),
            (property::CRTO, false) => Ok(READY_TIMEOUT.into()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// CC alone can be written.
    fn property_set(&mut self, at: usize, sqe: &Sqe<'_>, now_ns: u64) -> Result<u64, Status> {
        let wanted = Property::parse(sqe).map_err(|_| Status::INVALID_FIELD)?;
        let work = self.work(at);
        let (Some(controller), Some(index)) = (work.controller, work.connection.controller) else {
            return Err(Status::SEQUENCE_ERROR);
        };
        if wanted.offset != property::CC || wanted.wide {
            return Err(Status::INVALID_FIELD);
        }
        match controller.configure(Cc(wanted.value as u32), now_ns) {
            Change::Reset => {
                self.close_io_queues(index, now_ns);
                self.work(at).abort_event_requests();
                self.abort_questions(at);
            }
            Change::Shutdown => self.close_io_queues(index, now_ns),
            Change::Enable | Change::None => {}
        }
        Ok(0)
    }

    /// The queue ends when the driver has no command of it: the answer proves that to the host
    /// (T9).
    fn disconnect(&mut self, at: usize, slot: u16, now_ns: u64) {
        self.work(at).connection.phase = Phase::Drain(slot);
        self.drained(at, now_ns);
    }
}

/// Checks parameters that don't depend on the state of any controller.
fn parse<'a>(shared: &Shared, connect: &Connect, data: &'a [u8]) -> Result<Wish<'a>, Refusal> {
    if connect.recfmt != 0 {
        return Err(connect_status::INCOMPATIBLE_FORMAT.into());
    }
    let data = ConnectData::parse(data).map_err(|error| match error {
        WireError::Field { offset } => Refusal::parameter(offset, true),
        WireError::Truncated { .. } => Status::SGL_DATA_LENGTH.into(),
    })?;
    let discovery = shared.discovery.is_named(data.subnqn);
    if !discovery && data.subnqn != shared.config.nqn.as_bytes() {
        return Err(Refusal::parameter(ConnectData::SUBNQN_AT, true));
    }
    // Discovery answers every host, with the entries for that host.
    let hostnqn = core::str::from_utf8(data.hostnqn).unwrap_or("");
    if !discovery && !shared.admits(hostnqn) {
        // The host may be allowed later.
        return Err(Refusal::from(connect_status::INVALID_HOST).passing());
    }
    Ok(Wish {
        connect: *connect,
        data,
        hostnqn,
        discovery,
    })
}

/// Entries of the queue: SQSIZE is 0's based, and a queue of one entry can hold nothing.
fn entries(connect: &Connect, most: u16) -> Result<u16, Refusal> {
    if connect.sqsize == 0 || connect.sqsize >= most {
        return Err(Refusal::parameter(SQSIZE_AT, false));
    }
    Ok(connect.sqsize + 1)
}
