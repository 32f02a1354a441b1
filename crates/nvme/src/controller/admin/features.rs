//! Set and Get Features (Base 2.0, 5.27 and 5.15).
use super::Answer;
use crate::controller::association::Controller;
use crate::controller::config::Shared;
use crate::controller::connection::Page;
use crate::controller::io::to_host;
use crate::wire::features::{HOST_ID_EXTENDED, QueueCount, SAVE, events, fid};
use crate::wire::{Sqe, Status};

/// Events that may be configured: those of OAES.
pub(super) fn events_of(controller: &Controller) -> u32 {
    match controller.discovery {
        true => events::DISCOVERY_CHANGE,
        false => events::NAMESPACE_ATTRIBUTE | events::ANA_CHANGE,
    }
}

pub(super) fn set(
    shared: &Shared,
    controller: &mut Controller,
    sqe: &Sqe<'_>,
    now_ns: u64,
) -> Result<Answer, Status> {
    let id = feature(shared, controller, sqe)?;
    if sqe.cdw(10) & SAVE != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE);
    }
    let value = sqe.cdw(11);
    match id {
        fid::NUMBER_OF_QUEUES => return set_queues(controller, value),
        // Events outside OAES never happen: their bits are dropped.
        fid::ASYNC_EVENTS => controller.event_config = value & events_of(controller),
        fid::KEEP_ALIVE => controller.set_kato(value, now_ns),
        // The cache is the backend's and always on.
        fid::VOLATILE_WRITE_CACHE if value & 1 == 0 => return Err(Status::FEATURE_NOT_CHANGEABLE),
        fid::VOLATILE_WRITE_CACHE => {}
        _ if constant(id, value).is_some() => {
            if is_other(id, value) {
                return Err(Status::FEATURE_NOT_CHANGEABLE);
            }
        }
        // Over fabrics it comes with Connect, once (Base 2.0, 5.27.1.25).
        _ => return Err(Status::SEQUENCE_ERROR),
    }
    Ok(Answer::Done(0))
}

/// Grants the requested queues up to the configured number; only before the first I/O queue (Base
/// 2.0, 5.27.1.5).
fn set_queues(controller: &mut Controller, value: u32) -> Result<Answer, Status> {
    let wanted = QueueCount::parse(value).ok_or(Status::INVALID_FIELD)?;
    if controller.io_queues() > 0 {
        return Err(Status::SEQUENCE_ERROR);
    }
    let most = controller.io.len() as u16;
    controller.queues = wanted.submission.min(wanted.completion).min(most);
    Ok(Answer::Done(queues(controller)))
}

fn queues(controller: &Controller) -> u64 {
    let granted = QueueCount {
        submission: controller.queues,
        completion: controller.queues,
    };
    granted.emit().into()
}

pub(super) fn get(
    shared: &Shared,
    controller: &Controller,
    sqe: &Sqe<'_>,
) -> Result<Answer, Status> {
    let id = feature(shared, controller, sqe)?;
    // SEL: the current value alone (ONCS bit 4 is clear).
    if sqe.cdw(10) >> 8 & 7 != 0 {
        return Err(Status::INVALID_FIELD);
    }
    Ok(Answer::Done(match id {
        fid::NUMBER_OF_QUEUES => queues(controller),
        fid::ASYNC_EVENTS => controller.event_config.into(),
        fid::KEEP_ALIVE => controller.kato_ms.into(),
        fid::VOLATILE_WRITE_CACHE => 1,
        _ => {
            if let Some(value) = constant(id, sqe.cdw(11)) {
                return Ok(Answer::Done(value.into()));
            }
            if sqe.cdw(11) & HOST_ID_EXTENDED == 0 {
                return Err(Status::INVALID_FIELD);
            }
            to_host(sqe, 16)?;
            return Ok(Answer::Page(Page::HostId, 16));
        }
    }))
}

/// Features that every I/O controller has (Base 2.0, 3.1.2.1.3; NVM command set 1.0, 4.1.3), and
/// that are constant here: commands of all queues are taken in turn, there is one power state, no
/// sensor, no time limit of error recovery, and every write is atomic up to AWUN. `None`: it is not
/// one of them, or CDW11 asks for a part of it that does not exist.
fn constant(id: u8, cdw11: u32) -> Option<u32> {
    match id {
        // No limit of a burst.
        fid::ARBITRATION => Some(7),
        fid::POWER_MANAGEMENT | fid::ERROR_RECOVERY | fid::WRITE_ATOMICITY => Some(0),
        fid::TEMPERATURE_THRESHOLD => match (cdw11 >> 16 & 0xf, cdw11 >> 20 & 3) {
            // The composite temperature alone: never over, never under.
            (0, 0) => Some(0xffff),
            (0, 1) => Some(0),
            _ => None,
        },
        _ => None,
    }
}

/// Whether Set Features asks for another value than the constant one.
fn is_other(id: u8, cdw11: u32) -> bool {
    let value = match id {
        fid::TEMPERATURE_THRESHOLD => cdw11 & 0xffff,
        _ => cdw11,
    };
    constant(id, cdw11) != Some(value)
}

/// Returns the requested feature, if this controller has it.
fn feature(shared: &Shared, controller: &Controller, sqe: &Sqe<'_>) -> Result<u8, Status> {
    let id = sqe.cdw(10) as u8;
    let there = match id {
        fid::KEEP_ALIVE | fid::ASYNC_EVENTS => true,
        fid::NUMBER_OF_QUEUES | fid::HOST_IDENTIFIER => !controller.discovery,
        fid::VOLATILE_WRITE_CACHE => !controller.discovery && shared.config.volatile_write_cache,
        _ => !controller.discovery && constant(id, sqe.cdw(11)).is_some(),
    };
    if there {
        Ok(id)
    } else {
        Err(Status::INVALID_FIELD)
    }
}
