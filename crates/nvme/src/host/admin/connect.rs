//! Initialization, from Connect to a controller whose properties are read and checked (Base 2.0,
//! 3.5.2).
//!
//! Connect → CAP → CRTO, if there is one → VS → CC.EN → CSTS.RDY → Identify Controller → Number of
//! Queues → Asynchronous Event Configuration → Host Behavior Support, where it reports retry
//! delays → limits of the NVM command set → the namespaces, or the discovery log.
use alloc::string::String;

use super::{Admin, Next};
use crate::host::io_queue::check_connect;
use crate::host::{ControllerInfo, Data, HostError, Step};
use crate::limits::{CSTS_POLL_NS, HOST_ADMIN_ENTRIES};
use crate::wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_ANY, Cap, Cc, Connect, ConnectData, Csts, DISCOVERY_NQN,
    Property, Version, property,
};
use crate::wire::features::{HOST_BEHAVIOR_LEN, QueueCount, events, fid};
use crate::wire::identify::{
    CSI_NVM, Controller, IDENTIFY_LEN, NvmController, cmic, cns, cntrltype, ctratt, oacs,
};
use crate::wire::layout::text;
use crate::wire::sqe::admin;
use crate::wire::{SqeBuilder, Status, le16};

/// CNTRLTYPE of an administrative controller.
const CNTRLTYPE_ADMIN: u8 = 3;
/// Offset of MTFA in Identify Controller: longest stop of command processing, units of 100 ms.
const MTFA_AT: usize = 270;
/// Longest accepted time to become ready, units of 500 ms: the largest value of CAP.TO.
const READY_MOST: u32 = 256;

/// Properties of the controller read so far.
#[derive(Debug)]
pub struct Facts {
    pub cntlid: u16,
    pub cap: Cap,
    /// CRTO.CRWMT: until it is ready with its media (CC.CRIME stays 0), units of 500 ms.
    ready_timeout: u16,
    pub version: Version,
    /// When CSTS.RDY must be set.
    ready_by_ns: u64,
    /// It is a discovery controller.
    pub discovery: bool,
    pub crdt: [u16; 3],
    /// Events to ask for.
    pub events: u32,
    /// AWUN, blocks.
    pub atomic_blocks: u32,
    /// Largest transfer (MDTS), bytes; `None`: no limit.
    pub transfer_max: Option<u32>,
    /// MTFA, ns.
    pub pause_ns: u64,
    pub anatt_s: u8,
    pub ana: bool,
    /// It has Get LBA Status.
    lba_status: bool,
    /// Reported with `Ready`, then taken.
    pub info: Option<ControllerInfo>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            cntlid: 0,
            cap: Cap(0),
            ready_timeout: 0,
            version: Version(0),
            ready_by_ns: 0,
            discovery: false,
            crdt: [0; 3],
            events: 0,
            atomic_blocks: 1,
            transfer_max: None,
            pause_ns: 0,
            anatt_s: 0,
            ana: false,
            lba_status: false,
            info: None,
        }
    }
}

impl Facts {
    /// CC as it is written: all command sets if there are several, so that a namespace of another
    /// one is seen and refused by name.
    pub fn cc(&self) -> Cc {
        Cc::enabled(
            self.cap.mpsmin(),
            if self.cap.css_multiple() { 6 } else { 0 },
        )
    }

    /// Whether to request events: errors and health need no configuration, but a discovery
    /// controller has only the one event.
    pub fn wants_events(&self) -> bool {
        !self.discovery || self.events != 0
    }
}

/// Property Get.
pub fn get(offset: u32, wide: bool) -> (SqeBuilder, Data) {
    (
        Property {
            offset,
            wide,
            value: 0,
        }
        .emit_get(),
        Data::None,
    )
}

/// Property Set of 4 bytes.
pub fn set(offset: u32, value: u32) -> (SqeBuilder, Data) {
    (
        Property {
            offset,
            wide: false,
            value: value.into(),
        }
        .emit_set(),
        Data::None,
    )
}

/// Identify: CNS in CDW10, CSI in CDW11 bits 31:24.
pub fn identify(cns: u8, nsid: u32) -> (SqeBuilder, Data) {
    let sqe = SqeBuilder::new(admin::IDENTIFY)
        .nsid(nsid)
        .cdw(10, cns.into());
    (
        sqe.cdw(11, u32::from(CSI_NVM) << 24),
        Data::In(IDENTIFY_LEN as u32),
    )
}

fn set_features(fid: u8, value: u32) -> (SqeBuilder, Data) {
    let sqe = SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, fid.into())
        .cdw(11, value);
    (sqe, Data::None)
}

impl Admin {
    pub(super) fn connect_command(&self, step: Step) -> (SqeBuilder, Data) {
        match step {
            Step::Connect => {
                let connect = Connect {
                    recfmt: 0,
                    qid: 0,
                    sqsize: HOST_ADMIN_ENTRIES - 1,
                    cattr: CATTR_DISABLE_SQ_FLOW,
                    kato_ms: self.config.kato_ms,
                };
                (connect.emit(), Data::Out(ConnectData::LEN as u32))
            }
            Step::Capabilities => get(property::CAP, true),
            Step::ReadyTimeouts => get(property::CRTO, false),
            Step::Version => get(property::VS, false),
            Step::Configure => set(property::CC, self.facts.cc().0),
            Step::Ready => get(property::CSTS, false),
            Step::QueueCount => {
                let count = self.config.io_queues;
                let asked = QueueCount {
                    submission: count,
                    completion: count,
                };
                set_features(fid::NUMBER_OF_QUEUES, asked.emit())
            }
            Step::EventConfig => set_features(fid::ASYNC_EVENTS, self.facts.events),
            Step::HostBehavior => {
                let (sqe, _) = set_features(fid::HOST_BEHAVIOR, 0);
                (sqe, Data::Out(HOST_BEHAVIOR_LEN as u32))
            }
            Step::NvmController => identify(cns::COMMAND_SET_CONTROLLER, 0),
            _ => identify(cns::CONTROLLER, 0),
        }
    }

    pub(super) fn connect_finished(
        &mut self,
        step: Step,
        result: u64,
        now_ns: u64,
    ) -> Result<Next, HostError> {
        Ok(Next::Begin(match step {
            Step::Connect => {
                self.facts.cntlid = check_connect(Status::SUCCESS, result, CNTLID_ANY)?;
                Step::Capabilities
            }
            Step::Capabilities => {
                self.facts.cap = Cap(result);
                match self.facts.cap.has_ready_timeouts() {
                    true => Step::ReadyTimeouts,
                    false => Step::Version,
                }
            }
            Step::ReadyTimeouts => {
                self.facts.ready_timeout = result as u16;
                Step::Version
            }
            Step::Version => {
                self.facts.version = Version(result as u32);
                self.check_properties()?;
                Step::Configure
            }
            Step::Configure => {
                let wait_ns = u64::from(self.ready_ms()) * 1_000_000;
                self.facts.ready_by_ns = now_ns.saturating_add(wait_ns);
                Step::Ready
            }
            Step::Ready => return self.check_ready(Csts(result as u32), now_ns),
            Step::IdentifyController => return self.identified(),
            Step::QueueCount => {
                let granted = QueueCount::parse(result as u32)
                    .map_or(1, |count| count.submission.min(count.completion));
                if let Some(info) = &mut self.facts.info {
                    info.io_queues = granted.min(self.config.io_queues.max(1));
                }
                return Ok(self.configure_events());
            }
            Step::EventConfig => return Ok(self.events_configured()),
            Step::HostBehavior => Self::behavior_told(self.facts.version),
            _ => return Ok(self.limits_known()),
        }))
    }

    /// Checks CAP and VS.
    fn check_properties(&self) -> Result<(), HostError> {
        let (cap, version) = (self.facts.cap, self.facts.version);
        // Fabrics came with 1.2.1; a controller that has failed reads as all ones.
        if version < Version(1 << 16 | 2 << 8) || version.major() == 0xffff {
            return Err(HostError::Version(version));
        }
        if self.config.subsystem == DISCOVERY_NQN {
            return Ok(());
        }
        if !cap.css_nvm() && !cap.css_multiple() {
            return Err(HostError::NoNvmCommandSet);
        }
        // MQES is 0's based: below 1 no command fits.
        if cap.mqes() == 0 {
            Err(HostError::QueueSize(0))
        } else {
            Ok(())
        }
    }

    /// Longest time for CSTS.RDY, ms. CAP.TO is rounded down, and too short for some controllers,
    /// whose CRTO then has more (Base 2.0, 3.1.3.1 and 3.1.3.21). It is limited to the largest
    /// value of CAP.TO: CRTO goes up to nine hours, too long to wait for one controller.
    pub(super) fn ready_ms(&self) -> u32 {
        let to = u32::from(self.facts.cap.to()) + 1;
        to.max(self.facts.ready_timeout.into()).min(READY_MOST) * 500
    }

    fn check_ready(&mut self, csts: Csts, now_ns: u64) -> Result<Next, HostError> {
        if csts.cfs() {
            return Err(HostError::Fatal);
        }
        if csts.rdy() {
            self.keep_alive.start(now_ns);
            return Ok(Next::Begin(Step::IdentifyController));
        }
        if now_ns >= self.facts.ready_by_ns {
            return Err(HostError::NotReady(self.ready_ms()));
        }
        Ok(Next::At(now_ns.saturating_add(CSTS_POLL_NS), Step::Ready))
    }

    /// Handles Identify Controller in the page.
    fn identified(&mut self) -> Result<Next, HostError> {
        let malformed = |error| HostError::Malformed {
            step: Step::IdentifyController,
            error,
        };
        let id = Controller::parse(&*self.page).map_err(malformed)?;
        if id.cntlid != self.facts.cntlid {
            return Err(HostError::ControllerId {
                want: self.facts.cntlid,
                got: id.cntlid,
            });
        }
        self.facts.discovery =
            id.cntrltype == cntrltype::DISCOVERY || self.config.subsystem == DISCOVERY_NQN;
        self.facts.crdt = [id.crdt1, id.crdt2, id.crdt3];
        self.facts.atomic_blocks = u32::from(id.awun) + 1;
        self.facts.pause_ns = u64::from(le16(&*self.page, MTFA_AT)) * 100_000_000;
        self.facts.anatt_s = id.anatt;
        self.facts.lba_status = id.oacs & oacs::GET_LBA_STATUS != 0;
        self.facts.ana = id.cmic & cmic::ANA != 0 && !self.facts.discovery;
        let wanted = if self.facts.discovery {
            events::DISCOVERY_CHANGE
        } else {
            events::NAMESPACE_ATTRIBUTE | events::FIRMWARE_ACTIVATION | events::ANA_CHANGE
        };
        self.facts.events = id.oaes & wanted;
        self.check_controller(&id)?;
        self.keep_alive
            .configure(id.ctratt & ctratt::TRAFFIC_KEEP_ALIVE != 0);
        let info = self.info(&id);
        self.facts.transfer_max = info.transfer_max;
        self.facts.info = Some(info);
        if self.facts.discovery {
            return Ok(self.configure_events());
        }
        Ok(Next::Begin(Step::QueueCount))
    }

    fn check_controller(&self, id: &Controller) -> Result<(), HostError> {
        if self.facts.discovery {
            return Ok(());
        }
        let subnqn = text(&id.subnqn);
        if !subnqn.is_empty() && subnqn != self.config.subsystem {
            return Err(HostError::Subsystem);
        }
        if id.cntrltype == CNTRLTYPE_ADMIN {
            return Err(HostError::ControllerType(id.cntrltype));
        }
        // The entry alone is 64 bytes; TCP has no offset before in-capsule data.
        if id.ioccsz < 4 || id.icdoff != 0 {
            return Err(HostError::Capsule);
        }
        if id.kas == 0 && self.config.kato_ms > 0 {
            return Err(HostError::NoKeepAlive);
        }
        Ok(())
    }

    fn info(&mut self, id: &Controller) -> ControllerInfo {
        self.aborting.configure(id.acl);
        let mut info = controller_info(id, self.page_shift(), self.facts.ana);
        let entries = self.facts.cap.mqes().saturating_add(1);
        info.entries_max = info.entries_max.min(entries);
        info.crdt = self.facts.crdt;
        info
    }

    /// Pages of the controller, log2.
    fn page_shift(&self) -> u32 {
        12 + u32::from(self.facts.cap.mpsmin())
    }

    /// Configures the events that the controller has, if any.
    fn configure_events(&mut self) -> Next {
        match self.facts.events {
            0 => self.events_configured(),
            _ => Next::Begin(Step::EventConfig),
        }
    }

    /// The events are configured, or can't be.
    pub(super) fn events_configured(&mut self) -> Next {
        Next::Begin(if self.facts.discovery {
            Step::DiscoveryLog
        } else if self.facts.crdt != [0; 3] {
            Step::HostBehavior
        } else {
            Self::behavior_told(self.facts.version)
        })
    }

    /// The controller was asked to report retry delays (T1), has none, or refused.
    pub(super) fn behavior_told(version: Version) -> Step {
        if version >= Version::V2_0 {
            Step::NvmController
        } else {
            Step::NamespaceList
        }
    }

    /// Handles CNS 06h in the page: limits of commands without data (NVM command set 1.0, 4.1.5.4).
    fn limits_known(&mut self) -> Next {
        let page_shift = self.page_shift();
        if let (Ok(id), Some(info)) = (NvmController::parse(&*self.page), &mut self.facts.info) {
            limits_of(info, &id, page_shift);
            info.lists_allocated &= self.facts.lba_status;
        }
        Next::Begin(Step::NamespaceList)
    }
}

/// Converts Identify Controller; pages of the controller have 2^`page_shift` bytes.
pub(in crate::host) fn controller_info(
    id: &Controller,
    page_shift: u32,
    ana: bool,
) -> ControllerInfo {
    ControllerInfo {
        cntlid: id.cntlid,
        subnqn: String::from(text(&id.subnqn)),
        serial: String::from(text(&id.sn)),
        model: String::from(text(&id.mn)),
        firmware: String::from(text(&id.fr)),
        transfer_max: match id.mdts {
            0 => None,
            mdts => 1u32.checked_shl(page_shift + u32::from(mdts)),
        },
        write_zeroes_max: None,
        deallocate_blocks_max: None,
        entries_max: match id.maxcmd {
            0 => u16::MAX,
            // The smallest queue has two entries and carries one command.
            1 => 2,
            maxcmd => maxcmd,
        },
        io_queues: 0,
        in_capsule_max: id.ioccsz.saturating_mul(16).saturating_sub(64),
        kas: id.kas,
        traffic_keep_alive: id.ctratt & ctratt::TRAFFIC_KEEP_ALIVE != 0,
        cqt_ms: id.cqt,
        crdt: [id.crdt1, id.crdt2, id.crdt3],
        volatile_write_cache: id.vwc & 1 != 0,
        oncs: id.oncs,
        // Known with the limits: the bit alone says nothing of which blocks can be listed.
        lists_allocated: false,
        ana,
        anatt_s: id.anatt,
        multi_controller: id.cmic & cmic::MULTI_CONTROLLER != 0,
    }
}

/// Adds the limits of CNS 06h.
pub(in crate::host) fn limits_of(info: &mut ControllerInfo, id: &NvmController, page_shift: u32) {
    if id.wzsl > 0 {
        info.write_zeroes_max = 1u32.checked_shl(page_shift + u32::from(id.wzsl));
    }
    info.deallocate_blocks_max = (id.dmrsl > 0).then_some(id.dmrsl);
    info.lists_allocated = id.aocs & NvmController::ALLOCATED_LBAS != 0;
}
