//! One controller: the subsystem as one host sees it over its admin and I/O queues.
//!
//! Decides enable, reset and shutdown from writes to CC (Base 2.0, 3.5 and 3.6), the expiry of
//! keep-alive (Base 2.0, 3.9), and which asynchronous event is due (Base 2.0, 5.2).
//!
//! # Contract
//! Reset and shutdown are acknowledged (CSTS.RDY, CSTS.SHST) only when the driver has no command of
//! this controller any more: that proves to the host that no old write follows (T9).
use super::connection::Purpose;
use super::errors::ErrorLog;
use crate::limits::{ASYNC_EVENTS_MAX, IDLE_NS};
use crate::wire::fabrics::{Cc, Csts};
use crate::wire::features::{AsyncEvent, events};
use crate::wire::identify::NSID_LIST_MAX;
use crate::wire::sqe::NSID_ALL;
use alloc::string::String;
use alloc::vec::Vec;
use canary::Bug;

/// Keep-alive granularity (KAS), ms: time-outs are rounded up to it.
pub(super) const KAS_MS: u32 = 100;

/// Change requested by a write to CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// CC.EN went up.
    Enable,
    /// CC.EN went down: controller reset.
    Reset,
    /// CC.SHN went up.
    Shutdown,
}

/// A notice to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Notice {
    Namespace = 0,
    Ana = 1,
    Discovery = 2,
}

impl Notice {
    const ALL: [Self; 3] = [Self::Namespace, Self::Ana, Self::Discovery];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Its bit in Asynchronous Event Configuration.
    fn config_bit(self) -> u32 {
        match self {
            Self::Namespace => events::NAMESPACE_ATTRIBUTE,
            Self::Ana => events::ANA_CHANGE,
            Self::Discovery => events::DISCOVERY_CHANGE,
        }
    }

    pub fn event(self) -> AsyncEvent {
        match self {
            Self::Namespace => AsyncEvent::NAMESPACE_ATTRIBUTE,
            Self::Ana => AsyncEvent::ANA_CHANGE,
            Self::Discovery => AsyncEvent::DISCOVERY_CHANGE,
        }
    }
}

/// Work done for a host (SMART).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub reads: u64,
    pub writes: u64,
    /// Units of 512 bytes.
    pub units_read: u64,
    pub units_written: u64,
}

impl Counters {
    /// A command ended well.
    #[inline]
    pub fn add(&mut self, purpose: Purpose, len: u32) {
        let units = u64::from(len / 512);
        match purpose {
            Purpose::Read | Purpose::Compare => {
                self.reads += 1;
                self.units_read += units;
            }
            Purpose::Write { .. } => {
                self.writes += 1;
                self.units_written += units;
            }
            _ => {}
        }
    }
}

/// One controller.
#[derive(Debug)]
pub(super) struct Controller {
    pub cntlid: u16,
    pub discovery: bool,
    pub port: u16,
    pub hostnqn: String,
    pub hostid: [u8; 16],
    /// Index of the admin connection.
    pub admin: usize,
    /// Connection indices of the I/O queues; queue `n` at `n − 1`.
    pub io: Vec<Option<usize>>,
    /// I/O queues granted (Number of Queues).
    pub queues: u16,
    pub cc: Cc,
    csts: Csts,
    resetting: bool,
    pub kato_ms: u32,
    /// End of the association unless the host sends something; `u64::MAX` = never.
    pub deadline_ns: u64,
    /// Asynchronous Event Configuration.
    pub event_config: u32,
    /// Notices that were not posted yet.
    pending: u8,
    /// Notices posted whose log page was not read yet (T30).
    masked: u8,
    /// Slots of the Asynchronous Event Requests.
    pub event_requests: Vec<u16>,
    /// Namespaces changed since the log of them was read, ascending; of too many for the log, one
    /// more than it has room for.
    pub changed: Vec<u32>,
    /// Active namespaces that the host has identified or used, ascending.
    known: Vec<u32>,
    pub errors: ErrorLog,
    pub counters: Counters,
    /// Commands of all its queues that are with the driver.
    pub backend: u32,
    /// Its connections, also of queues that have ended.
    pub members: usize,
}

/// Parameters of a Connect.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub cntlid: u16,
    pub discovery: bool,
    pub port: u16,
    pub hostnqn: String,
    pub hostid: [u8; 16],
    pub admin: usize,
    pub queues: u16,
    pub kato_ms: u32,
}

impl Controller {
    pub fn new(terms: Terms, now_ns: u64) -> Self {
        Self {
            cntlid: terms.cntlid,
            discovery: terms.discovery,
            port: terms.port,
            hostnqn: terms.hostnqn,
            hostid: terms.hostid,
            admin: terms.admin,
            io: alloc::vec![None; usize::from(terms.queues)],
            queues: terms.queues,
            cc: Cc::default(),
            csts: Csts::default(),
            resetting: false,
            kato_ms: round_kato(terms.kato_ms),
            deadline_ns: now_ns.saturating_add(IDLE_NS),
            event_config: 0,
            pending: 0,
            masked: 0,
            event_requests: Vec::with_capacity(ASYNC_EVENTS_MAX),
            changed: Vec::new(),
            known: Vec::new(),
            errors: ErrorLog::new(),
            counters: Counters::default(),
            backend: 0,
            members: 0,
        }
    }

    pub fn csts(&self) -> Csts {
        self.csts
    }

    /// Commands other than Fabrics' are accepted.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.csts.rdy() && self.csts.shst() == 0 && !self.resetting
    }

    /// The host broke a rule that makes the controller fail (CSTS.CFS).
    pub fn fail(&mut self) {
        self.csts = Csts::new(self.csts.rdy(), true, self.csts.shst());
    }

    /// Takes a new value of CC.
    pub fn configure(&mut self, cc: Cc, now_ns: u64) -> Change {
        let old = core::mem::replace(&mut self.cc, cc);
        let change = match (old.en(), cc.en()) {
            (true, false) => self.reset(),
            (false, true) if self.resetting => Change::None,
            (false, true) => self.enable(),
            (true, true) if !self.has_what_is_asked() => {
                // To be changed only while the controller is disabled (Base 2.0, 3.1.3.5).
                self.fail();
                Change::None
            }
            _ if old.shn() == 0 && cc.shn() != 0 => Change::Shutdown,
            _ => Change::None,
        };
        if cc.shn() != 0 && self.csts.shst() == 0 {
            self.csts = Csts::new(self.csts.rdy(), self.csts.cfs(), 1);
        }
        self.settle();
        self.touch(now_ns);
        change
    }

    /// 4 KiB pages, round robin, NVM command set: all that CAP offers. Without I/O queues the entry
    /// sizes mean nothing (Base 2.0, 3.1.3.5).
    fn has_what_is_asked(&self) -> bool {
        let cc = self.cc;
        let sizes = self.discovery || (cc.iosqes() == 6 && cc.iocqes() == 4);
        cc.mps() == 0 && cc.ams() == 0 && cc.css() == 0 && sizes
    }

    fn enable(&mut self) -> Change {
        let fits = self.has_what_is_asked();
        self.csts = Csts::new(fits, !fits, 0);
        Change::Enable
    }

    fn reset(&mut self) -> Change {
        self.resetting = true;
        self.event_config = 0;
        self.pending = 0;
        self.masked = 0;
        self.changed.clear();
        self.known.clear();
        self.queues = self.io.len() as u16;
        Change::Reset
    }

    /// Acknowledges reset and shutdown once nothing is with the driver.
    pub fn settle(&mut self) {
        if self.backend > 0 && !canary::has(Bug::EarlyReset) {
            return;
        }
        if self.resetting {
            self.resetting = false;
            self.csts = Csts::new(false, false, self.csts.shst());
            if self.cc.en() {
                self.enable();
            }
        }
        if self.csts.shst() == 1 {
            self.csts = Csts::new(self.csts.rdy(), self.csts.cfs(), 2);
        }
    }

    /// The host is alive: sets the time at which keep-alive expires. The timer runs only while the
    /// controller is enabled and not shut down (Base 2.0, 3.9.1).
    pub fn touch(&mut self, now_ns: u64) {
        let stays = !self.is_ready() && canary::has(Bug::IdleStays);
        let wait_ns = if stays {
            u64::MAX
        } else if !self.is_ready() || (self.discovery && self.kato_ms == 0) {
            IDLE_NS
        } else if self.kato_ms == 0 || canary::has(Bug::UnwatchedKeepAlive) {
            u64::MAX
        } else {
            u64::from(self.kato_ms) * 1_000_000
        };
        self.deadline_ns = now_ns.saturating_add(wait_ns);
    }

    /// Whether the keep-alive timer runs.
    pub fn keeps_alive(&self) -> bool {
        self.is_ready() && self.kato_ms > 0
    }

    pub fn set_kato(&mut self, kato_ms: u32, now_ns: u64) {
        self.kato_ms = round_kato(kato_ms);
        self.touch(now_ns);
    }

    /// Queues a notice. Hosts that enabled it get it once, until they have read the log.
    pub fn notify(&mut self, notice: Notice) {
        if self.event_config & notice.config_bit() != 0 && self.masked & notice.bit() == 0 {
            self.pending |= notice.bit();
        }
    }

    /// Returns a notice to post now and the request to post it with.
    pub fn due_event(&mut self) -> Option<(u16, AsyncEvent)> {
        let notice = Notice::ALL
            .into_iter()
            .find(|notice| self.pending & notice.bit() != 0)?;
        let slot = self.event_requests.pop()?;
        self.pending &= !notice.bit();
        self.masked |= notice.bit();
        Some((slot, notice.event()))
    }

    /// The log page of a notice was read without Retain Asynchronous Event.
    pub fn rearm(&mut self, notice: Notice) {
        self.pending &= !notice.bit();
        self.masked &= !notice.bit();
    }

    /// A namespace changed.
    pub fn note_changed(&mut self, nsid: u32) {
        if let Err(at) = self.changed.binary_search(&nsid)
            && self.changed.len() <= NSID_LIST_MAX
        {
            self.changed.insert(at, nsid);
        }
        self.notify(Notice::Namespace);
    }

    /// The host identifies an active namespace, or sends a command to it.
    #[inline]
    pub fn note_known(&mut self, nsid: u32) {
        // That of most commands: a subsystem often has one namespace.
        if self.known.first() != Some(&nsid) {
            self.find_known(nsid);
        }
    }

    #[cold]
    fn find_known(&mut self, nsid: u32) {
        if nsid != NSID_ALL
            && let Err(at) = self.known.binary_search(&nsid)
        {
            self.known.insert(at, nsid);
        }
    }

    /// A namespace is active no more.
    pub fn forget_known(&mut self, nsid: u32) {
        self.known.retain(|it| *it != nsid);
    }

    /// Whether the host has identified or used a namespace since that is active.
    pub fn knows(&self, nsid: u32) -> bool {
        self.known.binary_search(&nsid).is_ok()
    }

    /// Those namespaces.
    pub fn known(&self) -> impl Iterator<Item = u32> {
        self.known.iter().copied()
    }

    pub fn io_queues(&self) -> u16 {
        self.io.iter().flatten().count() as u16
    }
}

/// Rounds up to the granularity, unless that leaves 32 bits.
fn round_kato(kato_ms: u32) -> u32 {
    kato_ms.checked_next_multiple_of(KAS_MS).unwrap_or(kato_ms)
}
