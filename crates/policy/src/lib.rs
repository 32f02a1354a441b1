//! Which path? The policies that choose one of several unequal ways to the same data.
//!
//! [`Selector`] decides, for the head of one volume on one core, on which path the next I/O goes.
//! It decides from what is true of the paths now ([`PathView`]) and from what it saw of earlier
//! I/Os ([`Completion`]). It knows nothing of NVMe: who is healthy and allowed was decided before.
//!
//! One policy, one file: `numa`, `round_robin`, `queue_depth`, `weighted_latency`, `soonest`, for
//! mirrors `pid`, `latency`, `devid`, and from device-mapper `service_time` and
//! `historical_service_time`.
//!
//! # Contract
//! One core owns a selector: no lock, no atomic, no clock, no allocation. Per loop turn the owner
//! calls [`Selector::select`] and [`Selector::complete`] as I/Os come and go, and
//! [`Selector::weigh`] once at the end of the turn. Every path that `select` named is given back by
//! exactly one `complete`. Under `per-numa` the cores of a node tell each other their [`Means`]:
//! see [`Selector::take_news`] and [`Selector::weigh_node`]. Now and then a choice may be asked for
//! with its reasons: [`Selector::select_explained`]. Who wants second copies of late reads asks
//! [`Selector::look_after_ns`] when a read was placed, and [`Selector::hedge`] when that is over.
//!
//! # Limits
//! All in [`limits`].
//!
//! # Origin
//! Rows A1–A8 and A11–A13 of document A (Linux NVMe native multipath, adaptive I/O policy, RFC v5);
//! where a policy differs, its file says so. Rows B1–B5 are of document B (btrfs, balancing of
//! reads over mirrors), `soonest` is our own (B8).
#![no_std]
#![forbid(unsafe_code)]
#[cfg(test)]
extern crate std;

mod ana;
mod devid;
mod explain;
mod hedging;
mod historical_service_time;
mod latency;
pub mod limits;
mod numa;
mod parse;
mod pid;
mod queue_depth;
mod round_robin;
mod selector;
mod service_time;
mod soonest;
mod types;
mod weighted_latency;

pub use explain::{Basis, Explained, Look, Why};
pub use hedging::Hedging;
pub use parse::{KnobError, PolicyError};
pub use selector::{Selector, TooManyPaths};
pub use types::*;

#[cfg(test)]
pub(crate) mod tests;
