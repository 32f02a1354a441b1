//! Identify (Base 2.0, 5.17; NVM command set 1.0, 4.1.5).
use super::Answer;
use super::features::events_of;
use crate::controller::NamespaceConfig;
use crate::controller::association::{Controller, KAS_MS};
use crate::controller::config::Shared;
use crate::controller::connection::Page;
use crate::controller::io::to_host;
use crate::limits::{ASYNC_EVENTS_MAX, ERROR_ENTRIES_MAX};
use crate::wire::fabrics::Version;
use crate::wire::identify::{
    self as id, CSI_NVM, Descriptor, IDENTIFY_LEN, LbaFormat, cmic, cns, cntrltype, ctratt, lpa,
    oacs, oncs, sgls,
};
use crate::wire::layout::{padded, terminated};
use crate::wire::sqe::NSID_ALL;
use crate::wire::{Sqe, Status};

/// Firmware revision reported: the version of this crate.
pub(super) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// ANA transition time reported, s: the time a host waits in state "change" (T26).
const ANATT_S: u8 = 10;
/// All five states, and groups that never change while a namespace is attached.
const ANACAP: u8 = 0x5f;

pub(super) fn execute(
    shared: &Shared,
    controller: &mut Controller,
    sqe: &Sqe<'_>,
) -> Result<Answer, Status> {
    let cns = sqe.cdw(10) as u8;
    let nsid = sqe.nsid();
    let csi = (sqe.cdw(11) >> 24) as u8;
    if controller.discovery && cns != cns::CONTROLLER {
        return Err(Status::INVALID_FIELD);
    }
    match cns {
        cns::CONTROLLER => {}
        // Without namespace management there are no common properties of all namespaces.
        cns::NAMESPACE | cns::COMMAND_SET_NAMESPACE | cns::INDEPENDENT_NAMESPACE => {
            if nsid == 0 || nsid > shared.nsid_max.max(shared.room) {
                return Err(Status::INVALID_NAMESPACE);
            }
        }
        cns::ACTIVE_NAMESPACES => {
            if nsid >= NSID_ALL - 1 {
                return Err(Status::INVALID_NAMESPACE);
            }
        }
        cns::DESCRIPTORS => {
            if shared.namespace(nsid).is_none() {
                return Err(Status::INVALID_NAMESPACE);
            }
        }
        cns::COMMAND_SET_CONTROLLER => {}
        _ => return Err(Status::INVALID_FIELD),
    }
    let by_command_set = [cns::COMMAND_SET_NAMESPACE, cns::COMMAND_SET_CONTROLLER].contains(&cns);
    if by_command_set && csi != CSI_NVM {
        return Err(Status::INVALID_FIELD);
    }
    to_host(sqe, IDENTIFY_LEN as u32)?;
    let is_of_all = [
        cns::CONTROLLER,
        cns::COMMAND_SET_CONTROLLER,
        cns::ACTIVE_NAMESPACES,
    ]
    .contains(&cns);
    if !is_of_all && shared.namespace(nsid).is_some() {
        controller.note_known(nsid);
    }
    Ok(Page::identify(cns, nsid))
}

/// Makes the data. A namespace that doesn't exist (any more) is all zeroes.
pub(super) fn page(shared: &Shared, controller: &Controller, cns: u8, nsid: u32) -> id::Page {
    let zeroes = [0; IDENTIFY_LEN];
    let namespace = shared.namespace(nsid);
    match cns {
        cns::CONTROLLER => controller_data(shared, controller).emit(),
        cns::NAMESPACE => namespace.map_or(zeroes, |n| namespace_data(n).emit()),
        cns::ACTIVE_NAMESPACES => {
            let all = shared
                .config
                .namespaces
                .iter()
                .map(|namespace| namespace.nsid);
            id::emit_nsids(all.filter(|&other| other > nsid))
        }
        cns::DESCRIPTORS => namespace.map_or(zeroes, descriptors),
        cns::INDEPENDENT_NAMESPACE => namespace.map_or(zeroes, |n| independent_data(n).emit()),
        // No limits beyond MDTS. WZSL stays 0: Write Zeroes is limited by MDTS, so to fewer blocks
        // than NLB can say.
        cns::COMMAND_SET_CONTROLLER => id::NvmController {
            aocs: id::NvmController::ALLOCATED_LBAS,
            ..id::NvmController::default()
        }
        .emit(),
        // CNS 05h: no protection formats.
        _ => zeroes,
    }
}

fn controller_data(shared: &Shared, controller: &Controller) -> id::Controller {
    let config = &shared.config;
    let common = id::Controller {
        sn: padded(&config.serial),
        mn: padded(&config.model),
        fr: padded(FIRMWARE),
        // Never 0 (see `SubsystemConfig`): without a limit a Linux host takes Write Zeroes for
        // unlimited, sends an NLB cut to 16 bits, and reports success.
        mdts: config.transfer_shift - 12,
        cntlid: controller.cntlid,
        ver: Version::V2_0.0,
        oaes: events_of(controller),
        ctratt: ctratt::HOST_ID_128,
        acl: 3,
        aerl: ASYNC_EVENTS_MAX as u8 - 1,
        // One slot, which is read only.
        frmw: 0x03,
        // A discovery controller has no page 05h.
        lpa: if controller.discovery {
            lpa::EXTENDED
        } else {
            lpa::EFFECTS | lpa::EXTENDED
        },
        elpe: ERROR_ENTRIES_MAX as u8 - 1,
        kas: (KAS_MS / 100) as u16,
        cqt: config.cqt_ms,
        maxcmd: config.entries_max,
        sgls: sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT,
        ..id::Controller::default()
    };
    if controller.discovery {
        let subnqn = terminated(shared.discovery.nqn());
        return id::Controller {
            cntrltype: cntrltype::DISCOVERY,
            subnqn,
            ..common
        };
    }
    let groups = &shared.groups;
    let compare = if config.compare { oncs::COMPARE } else { 0 };
    id::Controller {
        cntrltype: cntrltype::IO,
        cmic: cmic::MULTI_PORT | cmic::MULTI_CONTROLLER | cmic::ANA,
        anatt: ANATT_S,
        anacap: ANACAP,
        anagrpmax: groups.last().copied().unwrap_or(0).max(shared.room),
        nanagrpid: (groups.len() as u32).max(shared.room),
        sqes: 0x66,
        cqes: 0x44,
        nn: shared.nsid_max.max(shared.room),
        mnan: shared.namespaces_max.max(shared.room),
        oacs: if config.lba_status {
            oacs::GET_LBA_STATUS
        } else {
            0
        },
        oncs: oncs::DSM | oncs::WRITE_ZEROES | compare,
        vwc: u8::from(config.volatile_write_cache) | 0b110,
        subnqn: terminated(&config.nqn),
        // The capsule is the entry of 64 bytes and the data behind it.
        ioccsz: 4 + config.in_capsule_max / 16,
        iorcsz: 1,
        msdbd: 1,
        ofcs: 1,
        ..common
    }
}

fn namespace_data(namespace: &NamespaceConfig) -> id::Namespace {
    let mut data = id::Namespace {
        nsze: namespace.blocks,
        ncap: namespace.blocks,
        nuse: namespace.blocks,
        nmic: 1,
        // Deallocated blocks read as zeroes, and Write Zeroes may deallocate; or nothing is said.
        dlfeat: if namespace.deallocate_zeroes {
            0b1001
        } else {
            0
        },
        anagrpid: namespace.ana_group,
        nsattr: u8::from(namespace.read_only),
        nguid: namespace.nguid,
        ..id::Namespace::default()
    };
    let format = LbaFormat {
        metadata: 0,
        block_shift: namespace.block_shift,
    };
    data.lbaf[..4].copy_from_slice(&format.emit());
    data
}

fn independent_data(namespace: &NamespaceConfig) -> id::IndependentNamespace {
    id::IndependentNamespace {
        nmic: 1,
        anagrpid: namespace.ana_group,
        nsattr: u8::from(namespace.read_only),
        nstat: 1,
        ..id::IndependentNamespace::default()
    }
}

/// The identifiers that are set, and the command set.
fn descriptors(namespace: &NamespaceConfig) -> id::Page {
    let mut list = [Descriptor::Csi(CSI_NVM); 3];
    let mut count = 0;
    if namespace.nguid != [0; 16] {
        list[count] = Descriptor::Nguid(namespace.nguid);
        count += 1;
    }
    if namespace.uuid != [0; 16] {
        list[count] = Descriptor::Uuid(namespace.uuid);
        count += 1;
    }
    // The entry not overwritten is the command set's.
    id::emit_descriptors(&list[..=count])
}
