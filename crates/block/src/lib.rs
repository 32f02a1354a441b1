//! Parts that all devices, front ends and back ends of the block layer share.
//!
//! * [`SlotMap`]: requests in flight, named by keys that are used once (T11)
//!
//! Knows no protocol, no policy and no device.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod slot_map;

pub use slot_map::{Key, SlotMap};
