//! The kernel's ublk driver: block devices (`/dev/ublkbN`) whose requests a process serves.
//!
//! * [`Control`]: the control device, which makes, starts and removes devices
//! * [`UblkQueue`]: one hardware queue of a device, with a ring of its own
//! * [`Info`], [`Params`], [`Descriptor`]: what both exchange with the driver, in its layout
//!
//! # Contract
//! The order is the driver's: [`Control::add`], [`Control::set_params`], open the device, a
//! [`UblkQueue`] for each hardware queue, [`UblkQueue::fetch_all`] on the thread that serves it,
//! then [`Control::start`]; after the death of a server [`Control::start_recovery`] and
//! [`Control::end_recovery`] take the place of the first and the last of these.
//!
//! Payload is copied by `pread` and `pwrite` on the device (`UBLK_F_USER_COPY`), so the driver has
//! no address of ours, and a queue can be dropped at any time.
mod control;
mod layout;
mod queue;

pub use control::{Control, device_path, node_path, open_device};
pub use layout::{DEPTH_MAX, Descriptor, Feature, Info, Op, Params, Phase};
pub use queue::{Fetched, UblkMapping, UblkQueue, UblkRing};
