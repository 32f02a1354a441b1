//! Which path? The policies that choose one of several unequal ways to the same data.
//!
//! [`Selector`] decides, for the head of one volume on one core, on which path the next I/O goes.
//! It decides from what is true of the paths now ([`PathView`]) and from what it saw of earlier
//! I/Os ([`Completion`]). It knows nothing of NVMe: who is healthy and allowed was decided before.
//!
//! One policy, one file: `numa`, `round_robin`, `queue_depth`, `weighted_latency`, `soonest`.
//!
//! # Contract
//! One core owns a selector: no lock, no atomic, no clock, no allocation. Per loop turn the owner
//! calls [`Selector::select`] and [`Selector::complete`] as I/Os come and go, and
//! [`Selector::weigh`] once at the end of the turn. Every path that `select` named is given back by
//! exactly one `complete`.
//!
//! # Limits
//! All in [`limits`].
//!
//! # Origin
//! Rows A1–A8 and A11 of document A (Linux NVMe native multipath, adaptive I/O policy, RFC v5);
//! where a policy differs, its file says so. `round-robin:<bytes>` is row B2, `soonest` our own
//! (B8).
#![no_std]
#![forbid(unsafe_code)]
#[cfg(test)]
extern crate std;

mod ana;
pub mod limits;
mod numa;
mod parse;
mod queue_depth;
mod round_robin;
mod selector;
mod soonest;
mod types;
mod weighted_latency;

pub use parse::{KnobError, PolicyError};
pub use selector::{Selector, TooManyPaths};
pub use types::*;

#[cfg(test)]
pub(crate) mod tests;
