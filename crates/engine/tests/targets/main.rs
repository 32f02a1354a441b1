//! The target by hand: hosts that send PDU after PDU.
#![allow(clippy::unwrap_used, reason = "a test")]
mod abort;
mod faults;
mod injected;
mod life;
mod memory;
mod order;
mod places;
mod stall;
#[path = "../target_hand/mod.rs"]
mod target_hand;
