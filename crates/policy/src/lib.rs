//! Policies that choose one of several unequal paths to the same data.
//!
//! [`Selector`] decides, for the head of one volume on one core, on which path the next I/O goes.
//! It decides from the present state of the paths ([`PathView`]) and from earlier completions
//! ([`Completion`]). It knows nothing of NVMe: the caller decides which paths are healthy and
//! allowed.
//!
//! One policy, one file: `numa`, `round_robin`, `queue_depth`, `weighted_latency`, `soonest`, for
//! mirrors `pid`, `latency`, `devid`, `round_robin_latency`, and from device-mapper `service_time`
//! and `historical_service_time`. A module that a user loads is a `program`.
//!
//! # Contract
//! One core owns a selector: no lock, no atomic, no clock, no allocation (but the place of a
//! program). Per loop turn the owner
//! calls [`Selector::select`] and [`Selector::complete`] as I/Os come and go, and
//! [`Selector::weigh`] once at the end of the turn. Every path that `select` named is given back by
//! exactly one `complete`. Under `per-numa` the cores of a node exchange their [`Means`]: see
//! [`Selector::take_news`] and [`Selector::weigh_node`]. [`Selector::select_explained`] also
//! returns the reasons of a choice. A caller that hedges calls [`Selector::look_after_ns`] when a
//! read was placed, and [`Selector::hedge`] when that time is over.
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
extern crate alloc;
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
mod program;
mod queue_depth;
mod round_robin;
mod round_robin_latency;
mod selector;
mod service_time;
mod soonest;
mod types;
mod values;
mod weighted_latency;

pub use explain::{Basis, Explained, Look, Why};
pub use hedging::Hedging;
pub use parse::{KnobError, PolicyError};
pub use program::{Choice, PROGRAM_NAME_MAX, Program, ProgramId, ProgramSlot};
pub use selector::{Selector, TooManyPaths};
pub use types::*;
pub use values::Values;

#[cfg(test)]
pub(crate) mod tests;
