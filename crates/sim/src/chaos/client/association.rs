//! Applications as NVMe/TCP hosts of an engine's export: their associations.
//!
//! # Contract
//! An association has an admin connection, and the connections of some applications as I/O queues.
//! These are opened once its controller is ready, and take commands while the namespace is there
//! and accessible. When any of its connections has ended, the association is over: all the others
//! are closed, as a host does whose controller is lost, and it begins anew after [`AGAIN_NS`].
//!
//! # Limits
//! Hosts do without multipath: a command that ends with a path's status is not repeated.
use super::AGAIN_NS;
use super::session::{NSID, Session};
use crate::chaos::prelude::*;
use crate::chaos::wire_recorder::ENTRIES;
use nvme::host::{
    Admin, AdminConfig, AdminEvent, ControllerInfo, HostIdentity, IoQueue, IoQueueConfig,
    NamespaceInfo,
};

/// The subsystem of an export.
pub const NQN: &str = "nqn.2026-01.org.example:export";
/// Longest wait for any one answer while connecting, ns.
const TIMEOUT_NS: u64 = 2_000_000_000;

/// The life of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no connection, and begins then, ns.
    Away { again_ns: u64 },
    /// Its admin connection is opened, and its controller is not ready yet.
    Opening,
    /// Queues may be opened; `usable`: the namespace is there, and accessible.
    Ready { usable: bool },
    /// It is over, and its connections are to be closed.
    Ending,
    /// They were told to close.
    Closing,
}

/// One of a host's associations.
pub(super) struct Association {
    state: State,
    admin: Option<Admin>,
    /// Properties of the controller, once it was ready.
    info: Option<Box<ControllerInfo>>,
    /// Its admin connection is up.
    up: bool,
    /// Its admin connection has ended.
    gone: bool,
    /// It may have something to send.
    stirred: bool,
}

impl Association {
    fn new() -> Self {
        Self {
            state: State::Away { again_ns: 0 },
            admin: None,
            info: None,
            up: false,
            gone: false,
            stirred: false,
        }
    }

    /// All of one application's.
    pub fn all(front_end: FrontEnd, homes: u32) -> Vec<Self> {
        let each = match front_end {
            FrontEnd::Nbd => 0,
            FrontEnd::Nvme(it) => it.associations,
        };
        (0..each * homes).map(|_| Self::new()).collect()
    }

    fn end(&mut self) {
        if matches!(self.state, State::Opening | State::Ready { .. }) {
            self.state = State::Ending;
        }
    }

    /// The namespaces of the controller were read.
    fn see(&mut self, namespaces: &[NamespaceInfo]) {
        let there = namespaces.iter().find(|it| it.nsid == NSID);
        let usable = there.is_some_and(|it| {
            assert_eq!(1 << it.block_shift, BLOCK, "the namespace has other blocks");
            matches!(it.ana_state, AnaState::Optimized | AnaState::NonOptimized)
        });
        if matches!(self.state, State::Opening | State::Ready { .. }) {
            self.state = State::Ready { usable };
        }
    }

    pub fn handle_connected(&mut self, now_ns: u64) {
        (self.up, self.stirred) = (true, true);
        if let Some(admin) = &mut self.admin {
            admin.handle_connected(now_ns);
        }
    }

    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        self.stirred = true;
        let admin = self.admin.as_mut();
        admin.map_or(bytes.len(), |it| it.handle_bytes(bytes, now_ns))
    }

    /// Whether it appended something to send.
    pub fn transmit(&mut self, out: &mut Vec<u8>, now_ns: u64) -> bool {
        let admin = self.admin.as_mut();
        admin.is_some_and(|it| it.poll_transmit(out, now_ns).is_some())
    }

    pub fn handle_closed(&mut self, now_ns: u64) {
        (self.up, self.gone) = (false, true);
        if let Some(admin) = &mut self.admin {
            admin.handle_closed(now_ns);
        }
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        match self.state {
            State::Away { again_ns } => Some(again_ns),
            _ if self.gone => None,
            _ => self.admin.as_ref()?.poll_timeout(),
        }
    }

    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.stirred = true;
        if let Some(admin) = &mut self.admin {
            admin.handle_timeout(now_ns);
        }
    }
}

/// The identity of a host's association; each is a host of its own to the controller.
fn identity(number: u64, association: usize) -> HostIdentity {
    let name = format!("{number:08x}-3333-4444-8555-{association:012x}");
    let mut id = [0x30 + association as u8; 16];
    id[0] = number as u8;
    HostIdentity {
        nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{name}"),
        id,
    }
}

impl Client {
    fn digests(&self) -> Digests {
        match self.habit.front_end {
            FrontEnd::Nbd => Digests::default(),
            FrontEnd::Nvme(it) => it.digests,
        }
    }

    /// The association that a connection is a queue of, and which queue; `None`: it is one of NBD.
    fn queue_of(&self, conn: usize) -> Option<(usize, u16)> {
        let FrontEnd::Nvme(of) = self.habit.front_end else {
            return None;
        };
        let (homes, each) = (self.habit.homes as usize, of.associations as usize);
        let (home, place) = (conn % homes, conn / homes);
        let place = match of.beside_nbd {
            true if place % 2 == 1 => return None,
            true => place / 2,
            false => place,
        };
        Some((home + homes * (place % each), (place / each) as u16 + 1))
    }

    /// The association that a connection is a queue of; `None`: it is one of NBD.
    pub(super) fn association_of(&self, conn: usize) -> Option<usize> {
        self.queue_of(conn).map(|it| it.0)
    }

    /// The address of a core's NBD export: behind those of NVMe/TCP, where there are such.
    pub(super) fn nbd_address(&self, home: u32) -> u32 {
        match self.habit.front_end {
            FrontEnd::Nbd => home,
            FrontEnd::Nvme(_) => self.habit.homes + home,
        }
    }

    /// The association that a connection is the admin connection of.
    pub(super) fn admin(&mut self, conn: ConnId) -> Option<&mut Association> {
        let at = (conn.0 as usize).checked_sub(self.conns.len())?;
        Some(&mut self.associations[at])
    }

    fn admin_conn(&self, at: usize) -> ConnId {
        ConnId((self.conns.len() + at) as u32)
    }

    /// Whether a connection may be opened, as far as that depends on its association.
    pub(super) fn may_connect(&self, conn: usize) -> bool {
        self.association_of(conn)
            .is_none_or(|at| matches!(self.associations[at].state, State::Ready { .. }))
    }

    /// Whether commands may be begun on a connection, as far as that depends on its association.
    pub(super) fn may_begin(&self, conn: usize) -> bool {
        self.association_of(conn)
            .is_none_or(|at| self.associations[at].state == State::Ready { usable: true })
    }

    /// Whether no association has a namespace that can be used.
    pub fn sees_no_export(&self) -> bool {
        let is_usable = |it: &Association| it.state == State::Ready { usable: true };
        !self.associations.iter().any(is_usable)
    }

    /// One of an association's connections is over.
    pub(super) fn end_association(&mut self, at: usize) {
        self.associations[at].end();
    }

    /// An I/O queue of an association whose controller is ready.
    pub(super) fn queue(&self, conn: usize, at: usize) -> Session {
        let (Some(info), Some((_, qid))) = (&self.associations[at].info, self.queue_of(conn))
        else {
            unreachable!("a queue of a controller that is not ready");
        };
        Session::Nvme(Box::new(IoQueue::new(IoQueueConfig {
            host: identity(self.number, at),
            subsystem: NQN.into(),
            cntlid: info.cntlid,
            qid,
            entries: info.entries_max.min(ENTRIES as u16),
            digests: self.digests(),
            disable_sq_flow_control: false,
            in_capsule_max: info.in_capsule_max,
            timeout_ns: TIMEOUT_NS,
        })))
    }

    /// Goes on with all associations: what their controllers report, and what they lack.
    pub(super) fn advance_associations(&mut self, now_ns: u64) {
        for at in 0..self.associations.len() {
            self.poll_admin(at);
            match self.associations[at].state {
                State::Away { again_ns } if again_ns <= now_ns => self.open_admin(at),
                State::Ending => self.close_all(at),
                State::Closing => self.leave(at, now_ns),
                _ => {}
            }
            let id = self.admin_conn(at);
            let it = &mut self.associations[at];
            if core::mem::take(&mut it.stirred) && it.up {
                self.outputs.push_back(Output::Transmit(id));
            }
        }
    }

    fn poll_admin(&mut self, at: usize) {
        let it = &mut self.associations[at];
        while let Some(event) = it.admin.as_mut().and_then(Admin::poll_event) {
            match event {
                AdminEvent::Ready(ready) => {
                    let (info, namespaces) = *ready;
                    it.info = Some(Box::new(info));
                    it.see(&namespaces);
                }
                AdminEvent::Changed(namespaces) => it.see(&namespaces),
                AdminEvent::Failed(_) => it.end(),
                _ => {}
            }
        }
        if it.gone {
            (it.admin, it.gone) = (None, false);
            it.end();
        }
    }

    fn open_admin(&mut self, at: usize) {
        let homes = self.habit.homes as usize;
        let queues = (0..self.conns.len()).filter(|it| self.association_of(*it) == Some(at));
        let config = AdminConfig {
            host: identity(self.number, at),
            subsystem: NQN.into(),
            digests: self.digests(),
            kato_ms: KATO_MS,
            io_queues: queues.count() as u16,
            timeout_ns: TIMEOUT_NS,
            nsid: None,
        };
        let conn = self.admin_conn(at);
        let it = &mut self.associations[at];
        assert!(it.admin.is_none(), "an association is opened twice");
        (it.admin, it.state) = (Some(Admin::new(config)), State::Opening);
        let address = (at % homes) as u32;
        self.outputs.push_back(Output::Open { conn, address });
    }

    /// Closes all connections of an association that is over.
    fn close_all(&mut self, at: usize) {
        self.associations[at].state = State::Closing;
        self.associations[at].info = None;
        if self.associations[at].admin.is_some() {
            self.associations[at].up = false;
            let conn = self.admin_conn(at);
            self.outputs.push_back(Output::Close { conn, abort: true });
        }
        for conn in 0..self.conns.len() {
            if self.association_of(conn) == Some(at) && self.conns[conn].session.is_some() {
                (self.conns[conn].ready, self.conns[conn].up) = (false, false);
                let conn = ConnId(conn as u32);
                self.outputs.push_back(Output::Close { conn, abort: true });
            }
        }
    }

    /// An association that is over begins anew once it has no connection any more.
    fn leave(&mut self, at: usize, now_ns: u64) {
        let is_left = |conn: usize| {
            self.association_of(conn) == Some(at) && self.conns[conn].session.is_some()
        };
        let left = (0..self.conns.len()).any(is_left);
        let it = &mut self.associations[at];
        if !left && it.admin.is_none() {
            let again_ns = now_ns + AGAIN_NS;
            it.state = State::Away { again_ns };
        }
    }
}
