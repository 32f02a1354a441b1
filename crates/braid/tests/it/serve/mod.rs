//! Programs that serve until told to end, as processes: `braid run` with volumes and mirrors,
//! `braid target`, and servers of hardware queues.

mod admission;
mod alarms;
mod called;
mod discovery;
mod early;
mod events;
mod explain;
mod extents;
mod faults;
mod hangfs;
mod hung;
mod knobs;
mod metrics;
mod mirror;
mod names;
mod nbd;
mod no_io_uring;
mod nvme;
mod places;
pub(crate) mod process;
mod programs;
mod queue;
mod read_only;
mod reload;
mod service_manager;
mod sockets;
mod target;
mod volumes;
