//! Kinds of paths: a queue of a controller of our own, or a device of the reactor.
use crate::machine::LocalDevice;
use alloc::boxed::Box;
use alloc::string::String;

/// One path of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        device: LocalDevice,
        /// Size in bytes.
        bytes: u64,
        /// log2 of the block size.
        block_shift: u8,
        /// Identity that it shows, so that it can be beside other paths; `None`: nothing, and it
        /// is the same as itself only.
        identity: Option<Box<multipath::Namespace>>,
        /// It refuses all changes of its data.
        read_only: bool,
        /// Deallocated blocks of it read as zeroes.
        deallocate_zeroes: bool,
        /// [`IoLimits::hole_bytes`](block::IoLimits::hole_bytes).
        hole_bytes: u32,
    },
    /// A device of the reactor that is a namespace of a controller, which somebody else drives.
    Passthrough {
        /// Its number (the same on every core).
        device: LocalDevice,
        /// Its facts.
        facts: Box<Attached>,
    },
}

/// A namespace and its controller, as Identify tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The controller.
    pub controller: nvme::host::ControllerInfo,
    /// The namespace.
    pub namespace: nvme::host::NamespaceInfo,
}

impl PathKind {
    /// The device of the reactor that it is, if it is one.
    pub fn device(&self) -> Option<LocalDevice> {
        match *self {
            Self::NvmeTcp { .. } => None,
            Self::Device { device, .. } | Self::Passthrough { device, .. } => Some(device),
        }
    }
}
