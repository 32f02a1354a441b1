//! Admin connection of one controller, from ICReq to keep-alive.
use super::{AdminConfig, AdminEvent};
use crate::Transmit;
use alloc::vec::Vec;

/// One admin association.
pub struct Admin {
    _todo: (),
}

#[allow(missing_docs, unused_variables, clippy::new_without_default)]
impl Admin {
    pub fn new(config: AdminConfig) -> Self {
        todo!()
    }
    /// The TCP connection is up: ICReq goes out.
    pub fn handle_connected(&mut self, now_ns: u64) {
        todo!()
    }
    pub fn handle_bytes(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        todo!()
    }
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>, now_ns: u64) -> Option<Transmit> {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<AdminEvent> {
        todo!()
    }
    pub fn poll_timeout(&self) -> Option<u64> {
        todo!()
    }
    pub fn handle_timeout(&mut self, now_ns: u64) {
        todo!()
    }
    /// The connection ended or was reset.
    pub fn handle_closed(&mut self, now_ns: u64) {
        todo!()
    }
    /// Orderly end: CC.SHN and Disconnect go out, then `Failed(HostError::Closed)`.
    pub fn shutdown(&mut self, now_ns: u64) {
        todo!()
    }
    /// Traffic was seen on an I/O queue (for traffic-based keep-alive).
    pub fn note_traffic(&mut self, now_ns: u64) {
        todo!()
    }
}
