//! The target's engine: `nvme::controller::Subsystem` behind shaped ports, over devices.
//!
//! `impl Machine for TargetEngine`; listener number = port index; one device per namespace.
use crate::machine::DeviceId;
use alloc::vec::Vec;

/// What a target is made of.
pub struct TargetConfig {
    /// The subsystem.
    pub subsystem: nvme::controller::SubsystemConfig,
    /// Shape of each port, in the order of the subsystem's ports.
    pub shapes: Vec<shape::Config>,
    /// Device of each namespace, in the order of the subsystem's namespaces.
    pub devices: Vec<DeviceId>,
    /// Arena bytes for payload.
    pub arena_bytes: u64,
    /// Seed of jitter.
    pub seed: u64,
}

/// Changes while it runs.
#[derive(Clone, Debug)]
pub enum TargetControl {
    /// New shape of a port (index).
    Shape(u16, shape::Config),
    /// ANA state seen through a port.
    Ana(u16, nvme::host::AnaState),
    /// New size of a namespace, blocks.
    Resize(u32, u64),
    /// Drop all connections of a port now (with a reset).
    Drop(u16),
    /// End.
    Stop,
}

/// Counters of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// I/O commands completed.
    pub commands: u64,
    /// Payload bytes, both directions.
    pub bytes: u64,
    /// Connections now.
    pub connections: u32,
}

/// The target of one core.
pub struct TargetEngine {
    _todo: (),
}

#[allow(missing_docs, unused_variables)]
impl TargetEngine {
    pub fn new(config: TargetConfig) -> Result<Self, nvme::controller::ConfigError> {
        todo!()
    }
    pub fn port_stats(&self, port: u16) -> PortStats {
        todo!()
    }
}
