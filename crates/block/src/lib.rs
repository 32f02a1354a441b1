//! Parts that all devices, front ends and back ends of the block layer share.
//!
//! * [`SlotMap`]: requests in flight, named by keys that are used once (T11)
//! * [`order`]: in which order overlapping changes in flight are executed, whoever sent them
//! * [`FlushTracker`]: which acknowledged writes are durable (T13)
//! * [`IoLimits`]: what a device over several others can promise (T34)
//!
//! Knows no protocol, no policy and no device.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod flush_tracker;
mod limits;
pub mod order;
mod range;
mod ranges;
mod slot_map;

pub use flush_tracker::{Covered, FlushTracker};
pub use limits::IoLimits;
pub use range::Range;
pub use slot_map::{Full, Key, SlotMap};
