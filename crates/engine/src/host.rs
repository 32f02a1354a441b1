//! The host's engine of one core: volumes over paths, each path a queue of a controller or a local device.
//!
//! `impl Machine for HostEngine` (programs wrap it to add load or exports). Core 0 owns the admin
//! connections; what it learns of a path reaches the other cores as [`HostControl::Path`] messages, which
//! core 0 emits through [`HostEngine::poll_event`] as [`HostEvent::Publish`].
use crate::machine::{DeviceId, Span};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// One path of a volume.
#[derive(Clone, Debug)]
pub enum PathKind {
    /// A namespace of an NVMe/TCP subsystem.
    NvmeTcp {
        /// Index into the reactor's address table.
        address: u32,
        /// Subsystem NQN.
        subsystem: String,
        /// NSID; `None` = the only one (several: an error that lists them).
        nsid: Option<u32>,
    },
    /// A device of the reactor.
    Device {
        /// Its number (the same on every core).
        device: DeviceId,
        /// Size in bytes.
        bytes: u64,
        /// log2 of the block size.
        block_shift: u8,
    },
}

/// A path with its attributes.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// As the user wrote it; used in errors and statistics.
    pub uri: String,
    /// What it is.
    pub kind: PathKind,
    /// NUMA distance from this core (smaller is nearer).
    pub distance: u32,
}

/// A volume over its paths.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Name.
    pub name: String,
    /// Policy.
    pub policy: policy::Policy,
    /// Knobs.
    pub knobs: policy::Knobs,
    /// Paths, 1…64.
    pub paths: Vec<PathConfig>,
}

/// What a host engine is made of.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// This core, 0…; core 0 owns the admin connections.
    pub core: u16,
    /// Cores in all (queues asked of every controller).
    pub cores: u16,
    /// Our identity.
    pub identity: nvme::host::HostIdentity,
    /// Digests.
    pub digests: nvme::host::Digests,
    /// Keep-alive time-out, ms.
    pub kato_ms: u32,
    /// Longest wait for connecting and for admin commands.
    pub connect_timeout_ns: u64,
    /// Longest wait for one I/O.
    pub io_timeout_ns: u64,
    /// Most I/Os in flight on this core.
    pub io_max: u32,
    /// Volumes.
    pub volumes: Vec<VolumeConfig>,
}

/// What is asked of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Read into the span.
    Read,
    /// Write the span.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Flush.
    Flush,
    /// Zero the range.
    WriteZeroes,
    /// Deallocate the range.
    Deallocate,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Volume index.
    pub volume: u16,
    /// What to do.
    pub op: IoOp,
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Bytes; a multiple of the block size.
    pub length: u32,
    /// Memory (`len == length` where the op has data).
    pub span: Span,
    /// Reader's identity (B1).
    pub source: u64,
    /// Comes back.
    pub cookie: u64,
}

/// Why an I/O was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// `io_max` in flight: try again after a completion.
    Full,
    /// The volume isn't ready.
    NotReady,
    /// Outside the volume, or not block aligned.
    Range,
}

/// The end of one I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoDone {
    /// As submitted.
    pub cookie: u64,
    /// What became of it.
    pub outcome: volume::Outcome,
    /// The path that served it.
    pub path: policy::PathIndex,
    /// Completion − submission, including the wait for a full path.
    pub latency_ns: u64,
}

/// Size and limits of a volume that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Bytes.
    pub bytes: u64,
    /// log2 of the logical block size.
    pub block_shift: u8,
    /// Largest single I/O, bytes.
    pub transfer_max: u32,
}

/// What a host engine tells its owner.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// An I/O ended.
    Done(IoDone),
    /// All paths of a volume were checked and are connected on this core.
    Ready(u16, VolumeInfo),
    /// A volume can't be, or has lost a path: one line with what, which, why, what to do.
    Failed(u16, String),
    /// For the other cores (core 0 only): pass on as `HostControl::Path`.
    Publish(Box<PathFacts>),
}

/// What core 0 learnt of one path and the others need to open their queues.
#[derive(Clone, Debug)]
pub struct PathFacts {
    /// Volume index.
    pub volume: u16,
    /// Path.
    pub path: policy::PathIndex,
    /// The controller.
    pub controller: nvme::host::ControllerInfo,
    /// The namespace.
    pub namespace: nvme::host::NamespaceInfo,
}

/// Messages to a host engine.
#[derive(Clone, Debug)]
pub enum HostControl {
    /// From core 0.
    Path(Box<PathFacts>),
    /// Change the policy of a volume.
    Policy(u16, policy::Policy, policy::Knobs),
    /// Shut down in order, then `Output::Stop`.
    Stop,
}

/// Counters of one path on this core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// I/Os completed well: read, write, other.
    pub ios: [u64; 3],
    /// Bytes: read, written.
    pub bytes: [u64; 2],
    /// I/Os failed.
    pub errors: u64,
    /// I/Os that had to wait because the path was full.
    pub waited_full: u64,
    /// In flight now.
    pub in_flight: u32,
}

/// The engine of one core.
pub struct HostEngine {
    _todo: (),
}

#[allow(missing_docs, unused_variables)]
impl HostEngine {
    pub fn new(config: HostConfig) -> Self {
        todo!()
    }
    pub fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        todo!()
    }
    pub fn counters(&self, volume: u16, path: policy::PathIndex) -> PathCounters {
        todo!()
    }
    /// The selector's statistics (row A9).
    pub fn policy_stats(
        &self,
        volume: u16,
        path: policy::PathIndex,
        group: policy::Group,
    ) -> policy::PathStats {
        todo!()
    }
}
