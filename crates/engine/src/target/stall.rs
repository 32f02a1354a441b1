//! Connections that hold memory for which others wait, and move nothing, are given up.
//!
//! Decides, from what each connection holds and what it has moved since the last look, which hosts
//! keep others from memory: they were asked for data that doesn't come, or sent data that they
//! don't take. One such connection starves itself alone (see `pool`); several together would leave
//! nothing to anybody.
//!
//! # Contract
//! A look every [`TARGET_STALL_NS`] while any command waits for memory, and none while nobody does:
//! a slow host that is in nobody's way is let be. A command that waits has memory after twice that,
//! as far as it is stalled hosts that have it. Memory of commands that wait for a device, a shape
//! or a fault is no fault of the host, nor is a stream that stands still until there is memory.
use super::TargetEngine;
use super::commands::Stage;
use super::log::Why;
use crate::limits::{TARGET_STALL_NS, TARGET_STALL_SHARE};
use crate::machine::ConnId;
use alloc::vec::Vec;

/// Stall state of all connections.
pub(super) struct Stalls {
    /// The next look; `u64::MAX`: nobody waits.
    look_ns: u64,
    /// By connection.
    all: Vec<Flow>,
}

/// Transfers between one connection and its commands' memory.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// Payload so far, bytes.
    moved: u64,
    /// That, at the last look of this row, and what was its host's turn then.
    seen: Option<u64>,
    /// Bytes that it is its host's turn to move; of the present look.
    due: u64,
}

impl Stalls {
    pub(super) fn new(connections: u32) -> Self {
        Self {
            look_ns: u64::MAX,
            all: alloc::vec![Flow::default(); connections as usize],
        }
    }

    /// Payload has moved.
    #[inline]
    pub(super) fn moved(&mut self, connection: u32, bytes: u32) {
        self.all[connection as usize].moved += u64::from(bytes);
    }

    /// Somebody waits for memory from now on.
    pub(super) fn watch(&mut self, now_ns: u64) {
        if self.look_ns == u64::MAX {
            self.look_ns = now_ns.saturating_add(TARGET_STALL_NS);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        Some(self.look_ns).filter(|at_ns| *at_ns != u64::MAX)
    }
}

impl Flow {
    /// One look; whether it stalls.
    fn look(&mut self) -> bool {
        let due = core::mem::take(&mut self.due);
        let seen = self.seen.replace(self.moved).filter(|_| due > 0);
        if due == 0 {
            self.seen = None;
        }
        seen.is_some_and(|seen| (self.moved - seen) * TARGET_STALL_SHARE < due)
    }
}

impl TargetEngine {
    /// Payload has moved.
    #[inline]
    pub(super) fn moved(&mut self, conn: ConnId, bytes: u32, now_ns: u64) {
        self.stalls.moved(conn.0, bytes);
        self.pool.moved(conn.0, bytes, now_ns);
    }

    /// Looks, if it is time.
    pub(super) fn look_for_stalls(&mut self, now_ns: u64) {
        if now_ns < self.stalls.look_ns {
            return;
        }
        self.stalls.look_ns = u64::MAX;
        if !self.pool.is_waited_for() {
            self.stalls.all.iter_mut().for_each(|flow| flow.seen = None);
            return;
        }
        self.stalls.watch(now_ns);
        for command in self.commands.all() {
            let turn = matches!(command.stage, Stage::Receiving | Stage::Completed)
                && !self.pool.blocks(command.connection);
            let held = command.buffer.filter(|_| turn).map_or(0, |span| span.len);
            self.stalls.all[command.connection as usize].due += u64::from(held);
        }
        for number in 0..self.connections.count() {
            if self.stalls.all[number as usize].look() {
                self.abort(ConnId(number), Why::Stalled);
            }
        }
    }
}
