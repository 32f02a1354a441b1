//! The whole engine in one virtual world, under faults drawn from a seed, watched by checkers.
//!
//! * [`plan`]: what a world is made of, and what goes wrong; [`run`]: it happens, and is judged
//! * [`history`]: what clients did and saw, and whether a disk could have done it
//! * `fault`: faults begin and end; `check`: what must be true at the end
//! * `rig`: hosts, controllers and applications, `make`: what they are made of, `cores`: what
//!   passes between those of one host; `client`: its applications; `disk`: what controllers store
//! * [`shrink`]: what of a plan is enough
//! * `world`, `node`, `net`: places, connections, time
//!
//! # Contract
//! The same plan gives the same course on every machine. The engines, controllers and NBD sessions
//! are those that run in production, with the contract of their reactor kept to the letter.
//!
//! # Limits
//! One volume, one namespace. Not modelled: TCP's windows, devices that fail, changes of paths and
//! sizes.
mod check;
mod client;
mod cores;
mod disk;
mod fault;
pub mod history;
mod make;
mod net;
mod node;
pub mod plan;
mod rig;
pub mod run;
pub mod shrink;
mod world;

/// What the clock of every world says when it begins, ns.
pub const START_NS: u64 = 1_000_000_000;
