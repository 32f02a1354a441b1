//! One I/O queue over one connection.
use super::{Command, IoQueueConfig, QueueEvent};
use crate::{Placement, Transmit};
use alloc::vec::Vec;

/// Why a command was not taken. Neither is a device failure (T6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many commands as the queue holds are in flight.
    Full,
    /// The queue isn't ready, or is over.
    NotReady,
}

/// One I/O queue.
pub struct IoQueue {
    _todo: (),
}

#[allow(missing_docs, unused_variables)]
impl IoQueue {
    pub fn new(config: IoQueueConfig) -> Self {
        todo!()
    }
    pub fn handle_connected(&mut self, now_ns: u64) {
        todo!()
    }
    pub fn submit(&mut self, command: &Command, now_ns: u64) -> Result<(), SubmitError> {
        todo!()
    }
    /// Commands in flight.
    pub fn in_flight(&self) -> u32 {
        todo!()
    }
    /// Most commands in flight.
    pub fn capacity(&self) -> u32 {
        todo!()
    }
    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        todo!()
    }
    pub fn placement(&self) -> Option<Placement> {
        todo!()
    }
    pub fn handle_payload(&mut self, len: u32, crc: u32, now_ns: u64) {
        todo!()
    }
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, now_ns: u64) -> Option<Transmit> {
        todo!()
    }
    pub fn handle_sent(&mut self, token: u32) {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<QueueEvent> {
        todo!()
    }
    pub fn poll_timeout(&self) -> Option<u64> {
        todo!()
    }
    pub fn handle_timeout(&mut self, now_ns: u64) {
        todo!()
    }
    /// The connection ended: every command in flight completes with Host Path Error (3h/70h), then `Failed`.
    pub fn handle_closed(&mut self, now_ns: u64) {
        todo!()
    }
}
