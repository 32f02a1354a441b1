//! A device: one namespace behind several paths, its identity and its limits.
//!
//! * [`Head`]: the one device over all paths; asks the policy which of them serves an I/O
//! * [`health`]: which paths a policy may choose from at all
//! * [`dispose`]: what becomes of an I/O after an attempt
//! * [`bound_ns`]: how long a lost controller may still execute what it had
//! * [`identity`]: whether two paths show one namespace
//! * [`Outcome`]: what became of an I/O, free of any protocol's codes
//!
//! Knows policies, and nothing of protocols: `engine` tells it what paths show and how I/Os ended.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod disposition;
mod head;
pub mod health;
pub mod identity;
pub mod limits;
mod quiesce;

pub use block::Outcome;
pub use disposition::{Attempt, Disposition, dispose};
pub use head::{AnaUse, Head, Hindrance, Shown};
pub use identity::{Changed, Conflict, Identity, Namespace, Refused, Size};
pub use quiesce::bound_ns;
