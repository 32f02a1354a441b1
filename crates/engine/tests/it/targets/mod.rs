//! The target by hand: hosts that send PDU after PDU.
mod abort;
mod faults;
mod injected;
mod life;
mod memory;
mod order;
mod places;
mod stall;
