//! Admin commands (Base 2.0, 5) and their answers.
//!
//! # Contract
//! Data is made when it is its turn to be sent ([`page`]), not when the command is executed: a host
//! that doesn't read holds a slot, not a buffer.
mod features;
mod identify;
mod log;

use super::association::Controller;
use super::config::Shared;
use super::connection::Page;
use crate::limits::ASYNC_EVENTS_MAX;
use crate::wire::identify::IDENTIFY_LEN;
use crate::wire::log::Request;
use crate::wire::sqe::admin;
use crate::wire::{Sqe, Status};
use alloc::vec::Vec;

/// Result of a command that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is done, with this result.
    Done(u64),
    /// It is done; data of this length goes to the host.
    Page(Page, u32),
    /// It waits for an event.
    Hold,
    /// Abort the command with this identifier on this queue.
    Abort { sqid: u16, cid: u16 },
    /// The driver must be asked which blocks are allocated.
    Allocation,
}

/// Executes an admin command.
///
/// # Errors
/// The status to answer with; always with Do Not Retry.
pub(super) fn execute(
    shared: &Shared,
    controller: &mut Controller,
    sqe: &Sqe<'_>,
    now_ns: u64,
) -> Result<Answer, Status> {
    dispatch(shared, controller, sqe, now_ns).map_err(Status::with_dnr)
}

fn dispatch(
    shared: &Shared,
    controller: &mut Controller,
    sqe: &Sqe<'_>,
    now_ns: u64,
) -> Result<Answer, Status> {
    let opcode = sqe.opcode();
    if !is_supported(opcode) || !shared.config.has_admin_command(opcode) {
        return Err(Status::INVALID_OPCODE);
    }
    if sqe.psdt() != 1 || sqe.fuse() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    // Until the controller is enabled there are only Fabrics commands (Base 2.0, 3.5.1).
    if !controller.is_ready() {
        return Err(Status::SEQUENCE_ERROR);
    }
    match sqe.opcode() {
        admin::IDENTIFY => identify::execute(shared, controller, sqe),
        admin::GET_LOG_PAGE => log::execute(shared, controller, sqe),
        admin::SET_FEATURES => features::set(shared, controller, sqe, now_ns),
        admin::GET_FEATURES => features::get(shared, controller, sqe),
        admin::KEEP_ALIVE => {
            controller.touch(now_ns);
            Ok(Answer::Done(0))
        }
        admin::ASYNC_EVENT_REQUEST => {
            if controller.event_requests.len() == ASYNC_EVENTS_MAX {
                return Err(Status::AER_LIMIT);
            }
            Ok(Answer::Hold)
        }
        admin::GET_LBA_STATUS if !controller.discovery => Ok(Answer::Allocation),
        admin::GET_LBA_STATUS => Err(Status::INVALID_OPCODE),
        // The only other command that is_supported accepts: Abort.
        _ => Ok(Answer::Abort {
            sqid: sqe.cdw(10) as u16,
            cid: (sqe.cdw(10) >> 16) as u16,
        }),
    }
}

fn is_supported(opcode: u8) -> bool {
    log::ADMIN_EFFECTS.iter().any(|&(known, _)| known == opcode)
}

/// Makes the data of a command whose turn to be sent has come: `out` holds exactly `len` bytes
/// then. The rest of a shorter log page is zero.
pub(super) fn page(
    shared: &Shared,
    controller: &mut Controller,
    page: Page,
    len: u32,
    out: &mut Vec<u8>,
) {
    out.clear();
    match page {
        // Data that was made before is with its command.
        Page::None | Page::Own => {}
        Page::Identify { cns, nsid } => {
            out.extend_from_slice(&identify::page(shared, controller, cns, nsid));
        }
        Page::Log(request) => {
            log::page(shared, controller, &request, out);
            log::was_read(controller, &request);
            // The offset lay within the page when the command came; pages may shrink.
            out.drain(..out.len().min(request.offset as usize));
        }
        Page::HostId => out.extend_from_slice(&controller.hostid),
    }
    out.resize(len as usize, 0);
}

impl Page {
    fn identify(cns: u8, nsid: u32) -> Answer {
        Answer::Page(Self::Identify { cns, nsid }, IDENTIFY_LEN as u32)
    }

    fn log(request: Request) -> Answer {
        // Compared with the largest transfer before.
        Answer::Page(Self::Log(request), request.len as u32)
    }
}
