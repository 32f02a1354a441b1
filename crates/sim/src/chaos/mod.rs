//! The whole engine in one virtual world, under faults drawn from a seed, watched by checkers.
//!
//! * [`history`]: what clients did and saw, and whether a disk could have done it
pub mod history;
