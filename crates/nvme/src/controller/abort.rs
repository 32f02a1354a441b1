//! Abort of I/O commands (Base 2.0, 5.1): the driver knows whether one has begun.
use super::connection::{Phase, State};
use super::{ConnId, ControllerEvent, Subsystem};
use crate::wire::Status;

impl Subsystem {
    /// Handles an Abort in `slot` of an admin connection for a command of an I/O queue. Only a
    /// command that waits at the driver can be aborted, not one whose data is being sent.
    pub(super) fn abort_io(&mut self, at: usize, slot: u16, sqid: u16, cid: u16) {
        let queue = self.io_queue(at, sqid);
        let found = queue.and_then(|queue| {
            let connection = self.connections[queue].as_deref()?;
            let token = connection.slots.find(cid, State::Backend)?;
            Some((connection.id, token))
        });
        match found {
            Some((conn, token)) => self.events.push(ControllerEvent::Abort {
                conn,
                token: token.into(),
                by: ConnId(at as u32),
                answer: slot.into(),
            }),
            None => self.work(at).respond(slot, Status::SUCCESS, 1),
        }
    }

    /// The connection of an I/O queue of the controller that this admin connection has.
    fn io_queue(&self, at: usize, sqid: u16) -> Option<usize> {
        let index = self.connections[at].as_deref()?.controller?;
        let queues = &self.controllers[index].as_deref()?.io;
        *queues.get(usize::from(sqid).checked_sub(1)?)?
    }

    /// Ends a [`ControllerEvent::Abort`]; where `aborted`, the driver has completed the command
    /// before with [`Status::ABORT_REQUESTED`]. Ignored on a connection that is over.
    pub fn abort_answered(&mut self, by: ConnId, answer: u32, aborted: bool) {
        let at = by.0 as usize;
        let Some(Some(connection)) = self.connections.get(at) else {
            return;
        };
        let waits = |state| state == State::Held && connection.phase == Phase::Ready;
        let slot = answer as u16;
        if connection.slots.get(slot).is_some_and(|it| waits(it.state)) {
            // Bit 0: not aborted.
            self.work(at)
                .respond(slot, Status::SUCCESS, (!aborted).into());
        }
    }
}
