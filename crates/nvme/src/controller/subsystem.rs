//! The subsystem machine.
use super::{ConnId, ControllerEvent, SubsystemConfig};
use crate::host::AnaState;
use crate::wire::Status;
use crate::{Placement, Transmit};
use alloc::vec::Vec;

/// A subsystem and all its connections.
pub struct Subsystem {
    _todo: (),
}

#[allow(missing_docs, unused_variables)]
impl Subsystem {
    /// Errors name the offending field.
    pub fn new(config: SubsystemConfig) -> Result<Self, ConfigError> {
        todo!()
    }
    /// A host connected to `port` (index). `Err`: too many connections.
    pub fn open(&mut self, conn: ConnId, port: u16, now_ns: u64) -> Result<(), Full> {
        todo!()
    }
    pub fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        todo!()
    }
    pub fn placement(&self, conn: ConnId) -> Option<Placement> {
        todo!()
    }
    pub fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        todo!()
    }
    pub fn buffer_ready(&mut self, conn: ConnId, token: u32, now_ns: u64) {
        todo!()
    }
    /// The backend has executed a command; a read's data is in its buffer.
    pub fn complete(&mut self, conn: ConnId, token: u32, status: Status, now_ns: u64) {
        todo!()
    }
    pub fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Transmit> {
        todo!()
    }
    pub fn handle_sent(&mut self, conn: ConnId, token: u32) {
        todo!()
    }
    /// The connection is gone. Commands still at the backend are completed by the driver as usual; each gets its Release.
    /// `conn` may be opened again once all of them are released.
    pub fn handle_closed(&mut self, conn: ConnId, now_ns: u64) {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<ControllerEvent> {
        todo!()
    }
    pub fn poll_timeout(&self) -> Option<u64> {
        todo!()
    }
    pub fn handle_timeout(&mut self, now_ns: u64) {
        todo!()
    }
    /// Changes the ANA state seen through a port; hosts get the event.
    pub fn set_ana(&mut self, port: u16, state: AnaState, now_ns: u64) {
        todo!()
    }
    /// Changes a namespace's size; hosts get the event.
    pub fn resize(&mut self, nsid: u32, blocks: u64, now_ns: u64) -> Result<(), ConfigError> {
        todo!()
    }
}

/// A field of the configuration that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Field.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub why: &'static str,
}

/// No room for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;
