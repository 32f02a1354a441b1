//! Get Log Page (Base 2.0, 5.16).
use super::Answer;
use super::identify::FIRMWARE;
use crate::controller::association::{Controller, Notice};
use crate::controller::config::Shared;
use crate::controller::connection::Page;
use crate::controller::discovery;
use crate::controller::io::to_host;
use crate::wire::identify::{CSI_NVM, NSID_LIST_MAX, emit_nsids};
use crate::wire::layout::padded;
use crate::wire::log::{
    ANA_GROUPS_ONLY, CSUPP, ErrorEntry, FirmwareSlot, LBCC, Request, Smart, emit_ana, emit_effects,
    lid,
};
use crate::wire::sqe::{NSID_ALL, admin, nvm};
use crate::wire::{Sqe, Status};
use alloc::vec::Vec;

/// Admin commands there are, and their effects.
pub(super) const ADMIN_EFFECTS: &[(u8, u32)] = &[
    (admin::GET_LOG_PAGE, CSUPP),
    (admin::IDENTIFY, CSUPP),
    (admin::ABORT, CSUPP),
    (admin::SET_FEATURES, CSUPP),
    (admin::GET_FEATURES, CSUPP),
    (admin::ASYNC_EVENT_REQUEST, CSUPP),
    (admin::KEEP_ALIVE, CSUPP),
    (admin::GET_LBA_STATUS, CSUPP),
];

/// I/O commands there are, and their effects.
pub(super) const IO_EFFECTS: &[(u8, u32)] = &[
    (nvm::FLUSH, CSUPP),
    (nvm::WRITE, CSUPP | LBCC),
    (nvm::READ, CSUPP),
    (nvm::COMPARE, CSUPP),
    (nvm::WRITE_ZEROES, CSUPP | LBCC),
    (nvm::DATASET_MANAGEMENT, CSUPP | LBCC),
];

/// Pages of an I/O controller, and of a discovery controller.
const IO_PAGES: &[u8] = &[
    lid::SUPPORTED,
    lid::ERROR,
    lid::SMART,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::EFFECTS,
    lid::ANA,
];
const DISCOVERY_PAGES: &[u8] = &[lid::SUPPORTED, lid::ERROR, lid::DISCOVERY];

/// 30 °C: there is no sensor, and 0 would mean -273 °C.
const TEMPERATURE_K: u16 = 303;

pub(super) fn execute(
    shared: &Shared,
    controller: &mut Controller,
    sqe: &Sqe<'_>,
) -> Result<Answer, Status> {
    let request = Request::parse(&[10, 11, 12, 13, 14].map(|n| sqe.cdw(n)));
    if !pages(controller).contains(&request.lid) {
        return Err(Status::INVALID_LOG_PAGE);
    }
    // SMART data is the controller's, not a namespace's (LPA bit 0 is clear).
    if request.lid == lid::SMART && !matches!(sqe.nsid(), 0 | NSID_ALL) {
        return Err(Status::INVALID_FIELD);
    }
    if request.lid == lid::EFFECTS && request.csi != CSI_NVM {
        return Err(Status::INVALID_FIELD);
    }
    if request.by_index || !request.offset.is_multiple_of(4) {
        return Err(Status::INVALID_FIELD);
    }
    if request.len > u64::from(shared.transfer_max()) {
        return Err(Status::INVALID_FIELD);
    }
    if request.offset > 0 {
        let mut whole = Vec::new();
        page(shared, controller, &request, &mut whole);
        if request.offset > whole.len() as u64 {
            return Err(Status::INVALID_FIELD);
        }
    }
    to_host(sqe, request.len as u32)?;
    Ok(Page::log(request))
}

fn pages(controller: &Controller) -> &'static [u8] {
    if controller.discovery {
        DISCOVERY_PAGES
    } else {
        IO_PAGES
    }
}

/// The host has read the page: its event is armed again, unless the host retains it (T30).
pub(super) fn was_read(controller: &mut Controller, request: &Request) {
    if request.retain {
        return;
    }
    match request.lid {
        lid::CHANGED_NAMESPACES => {
            controller.changed.clear();
            controller.rearm(Notice::Namespace);
        }
        lid::ANA => controller.rearm(Notice::Ana),
        lid::DISCOVERY => controller.rearm(Notice::Discovery),
        _ => {}
    }
}

/// Appends a whole page as it is now.
pub(super) fn page(shared: &Shared, controller: &Controller, request: &Request, out: &mut Vec<u8>) {
    match request.lid {
        lid::SUPPORTED => {
            out.resize(1024, 0);
            for &lid in pages(controller) {
                out[usize::from(lid) * 4] = 1;
            }
        }
        lid::ERROR => {
            let entries = controller.errors.entries().map(ErrorEntry::emit);
            out.extend(entries.flatten());
            out.resize(crate::limits::ERROR_ENTRIES_MAX * ErrorEntry::LEN, 0);
        }
        lid::SMART => out.extend_from_slice(&smart(controller).emit()),
        lid::FIRMWARE_SLOT => {
            let slot = FirmwareSlot {
                afi: 1,
                frs1: padded(FIRMWARE),
            };
            out.extend_from_slice(&slot.emit());
        }
        lid::CHANGED_NAMESPACES => {
            let changed = &controller.changed;
            // More than there is room for: any may have changed (Base 2.0, 5.16.1.5).
            let are_many = changed.len() > NSID_LIST_MAX;
            let listed: &[u32] = if are_many { &[NSID_ALL] } else { changed };
            out.extend_from_slice(&emit_nsids(listed.iter().copied()));
        }
        lid::EFFECTS => {
            let config = &shared.config;
            let admin = ADMIN_EFFECTS.iter().copied();
            let admin = admin.filter(|(opcode, _)| config.has_admin_command(*opcode));
            let io = IO_EFFECTS.iter().copied();
            let io = io.filter(|(opcode, _)| config.has_command(*opcode));
            let (admin, io) = (admin.collect::<Vec<_>>(), io.collect::<Vec<_>>());
            out.extend_from_slice(&emit_effects(&admin, &io));
        }
        lid::ANA => ana(shared, controller, request.lsp & ANA_GROUPS_ONLY != 0, out),
        _ => discovery::page(shared, controller, out),
    }
}

fn smart(controller: &Controller) -> Smart {
    let done = controller.counters;
    let thousands = |units: u64| u128::from(units.div_ceil(1000));
    Smart {
        temperature: TEMPERATURE_K,
        spare: 100,
        spare_threshold: 10,
        units_read: thousands(done.units_read),
        units_written: thousands(done.units_written),
        reads: done.reads.into(),
        writes: done.writes.into(),
        errors: controller.errors.count().into(),
        ..Smart::default()
    }
}

/// All groups as seen through the controller's port (Base 2.0, 5.16.1.13).
fn ana(shared: &Shared, controller: &Controller, groups_only: bool, out: &mut Vec<u8>) {
    let port = &shared.ana[usize::from(controller.port)];
    let groups = shared.groups.iter().zip(&port.groups).map(|(&id, ana)| {
        let members = shared.config.namespaces.iter();
        let members = members.filter(move |n| !groups_only && n.ana_group == id);
        let nsids = members.map(|namespace| namespace.nsid);
        (id, ana.changes, ana.state, nsids)
    });
    emit_ana(port.changes, groups, out);
}
