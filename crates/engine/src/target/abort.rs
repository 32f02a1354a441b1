//! Commands that a host wants back (T12).
//!
//! Only what no device has is taken back: a command that waits for its port's shape or for changes
//! that it overlaps, or that a fault holds; and one whose request waits at a front end of
//! [`Core`](crate::Core), which is asked. Of everything else the truth is "not aborted", writes
//! above all: the host takes "aborted" as proof that a write will not be executed (T9).
use super::TargetEngine;
use super::commands::{Recall, Stage};
use nvme::controller::ConnId;
use nvme::wire::Status;

impl TargetEngine {
    /// Takes a command back and answers the Abort.
    #[cold]
    pub(super) fn take_back(&mut self, of: (ConnId, u32), answer: (ConnId, u32), now_ns: u64) {
        let slot = self.commands.find(of.0.0, of.1);
        if slot.is_some_and(|slot| self.recall(slot, Recall::Abort(answer.0, answer.1))) {
            return;
        }
        let taken = slot.filter(|&slot| self.withdraw_one(slot));
        if let Some(slot) = taken {
            self.finish(slot, Status::ABORT_REQUESTED, now_ns);
        }
        self.subsystem
            .abort_answered(answer.0, answer.1, taken.is_some());
    }

    /// Asks the front end for a command that it has; false: it has not, or none is asked.
    pub(super) fn recall(&mut self, slot: u32, recall: Recall) -> bool {
        let Some(recalls) = &mut self.recalls else {
            return false;
        };
        let command = &mut self.commands[slot];
        // Of one that needs several requests some were done: only its connection's end is an end.
        let is_free = command.step == 1 && command.recall == Recall::No;
        if command.stage != Stage::AtDevice || (!is_free && recall != Recall::Closed) {
            return false;
        }
        let before = core::mem::replace(&mut command.recall, recall);
        recalls.push_back(slot);
        self.answer_abort(before, false);
        true
    }

    /// A command goes on, or has ended by itself: it is not wanted back any more.
    #[cold]
    pub(super) fn refuse_recall(&mut self, slot: u32) {
        let recall = core::mem::replace(&mut self.commands[slot].recall, Recall::No);
        self.answer_abort(recall, false);
    }

    /// Answers the Abort for which a command was wanted back.
    pub(super) fn answer_abort(&mut self, recall: Recall, aborted: bool) {
        if let Recall::Abort(by, answer) = recall {
            self.subsystem.abort_answered(by, answer, aborted);
        }
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
