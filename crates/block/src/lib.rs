//! Parts that all devices, front ends and back ends of the block layer share.
//!
//! * [`DeviceId`]: devices by number, each over lower ones; [`Issuer`]: where a completion goes
//! * [`SlotMap`]: requests in flight, named by keys that are used once (T11); [`SecondaryMap`]:
//!   what another part keeps of them
//! * [`order`]: in which order overlapping changes in flight are executed, whoever sent them
//! * [`FlushTracker`]: which acknowledged writes are durable (T13)
//! * [`Outcome`]: what became of an I/O, free of any protocol's codes
//! * [`IoLimits`]: what a device over several others can promise (T34)
//!
//! Knows no protocol, no policy and no device.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod device;
mod flush_tracker;
mod issuer;
mod limits;
pub mod order;
mod outcome;
mod range;
mod ranges;
mod secondary_map;
mod slot_map;

pub use device::DeviceId;
pub use flush_tracker::{Covered, FlushTracker};
pub use issuer::Issuer;
pub use limits::IoLimits;
pub use outcome::Outcome;
pub use range::Range;
pub use secondary_map::SecondaryMap;
pub use slot_map::{Full, Key, SlotMap};
