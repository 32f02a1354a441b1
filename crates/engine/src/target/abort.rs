//! Commands that a host wants back (T12).
//!
//! Only what no device has is taken back: a command that waits for its port's shape or for changes
//! that it overlaps, or that a fault holds. Of everything else the truth is "not aborted", writes
//! above all: the host takes "aborted" as proof that a write will not be executed (T9).
use super::TargetEngine;
use super::commands::Stage;
use nvme::controller::ConnId;
use nvme::wire::Status;

impl TargetEngine {
    /// Takes a command back and answers the Abort.
    #[cold]
    pub(super) fn take_back(&mut self, of: (ConnId, u32), answer: (ConnId, u32), now_ns: u64) {
        let slot = self.commands.find(of.0.0, of.1);
        let taken = slot.filter(|&slot| self.withdraw_one(slot));
        if let Some(slot) = taken {
            self.finish(slot, Status::ABORT_REQUESTED, now_ns);
        }
        self.subsystem
            .abort_answered(answer.0, answer.1, taken.is_some());
    }

    /// Takes a command that has not begun out of its line; false: it has begun, or its data are
    /// under way.
    fn withdraw_one(&mut self, slot: u32) -> bool {
        let command = &self.commands[slot];
        if command.stage == Stage::Ordered && command.step == 0 {
            // Of one that needs several requests, and comes here later, some were done.
            self.leave_order(slot);
            return true;
        }
        let port = usize::from(self.connections.of(command.connection).port);
        let port = &mut self.ports[port];
        match self.commands[slot].stage {
            Stage::Shaped => port.withdraw(|waiting| waiting == slot),
            Stage::Held => port.faults.held.remove(slot, &mut self.commands),
            Stage::Hung => port.faults.hung.remove(slot, &mut self.commands),
            _ => return false,
        }
        true
    }
}
