//! One core's whole: connections' lives, timers, and the routing of events between the machines.
//!
//! * [`machine`]: the face a reactor drives, of a [`Core`] or a [`target`]
//! * [`host`]: volumes over paths
//! * [`target`]: a software subsystem behind shaped ports
//! * [`Core`]: front ends and block devices of one core, and the owner of each connection
//! * `devices`: the block devices of one core: multipath volumes of [`host`], and each [`mirror`]
//! * [`export`]: the NBD server, a front end
//! * `nvme_server`: the NVMe/TCP server, another one
//! * `queue_server`: commands of queues in shared memory, another one
//! * `ublk_server`: requests of block devices of the kernel, another one
//! * `alarms`: what a person would call wrong of a path that works
//! * `latency`: histograms of how long I/O takes
//! * `local`: files and block devices without paths, block devices as volumes are
//! * `pipeline`: a request of any of them on its way over a device
//! * `cross_core`: changes of which all cores have to know
//! * [`discovery`]: which ways to subsystems there are
//! * `client`: what is reported of clients
//! * [`buddy`]: who owns which range of the core's arena
//! * `client_errors`: errors that clients were answered with
//! * [`seldom`]: how often is spoken of what strangers can cause
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod alarms;
pub mod buddy;
mod client;
mod client_errors;
mod core;
mod cross_core;
mod devices;
pub mod discovery;
pub mod export;
pub mod host;
mod latency;
pub mod limits;
mod local;
pub mod machine;
pub mod mirror;
mod motion;
mod nvme_server;
mod pipeline;
mod queue_server;
mod scratch;
pub mod seldom;
mod slot_queues;
pub mod target;
mod ublk_server;

pub use self::core::{Core, listener_of};
pub use client::{ClientCounters, ClientPlace, ClientReport};
pub use client_errors::ClientError;
pub use cross_core::CoreMessage;
pub use latency::{LATENCY_BUCKETS, LatencyHistogram, latency_below_ns};
pub use local::{LOCALS_FROM, LocalConfig};
pub use machine::{Around, ConnId, DeviceOp, DeviceRequest, LocalDevice, Machine, Output, Span};
pub use nvme_server::{NvmeConfig, NvmeControl, NvmePlace};
pub use queue_server::{
    HasLetGo, QueueCommand, QueueCounters, QueueDone, QueueMemory, QueueOp, QueueServer,
};
pub use ublk_server::{UblkDone, UblkLoad, UblkOp, UblkRequest, UblkServer};
