//! The whole engine in one virtual world, under faults drawn from a seed, watched by checkers.
//!
//! * [`plan`]: what a world is made of, and what goes wrong; [`run`]: it happens, and is judged
//! * [`history`]: what clients did and saw, and whether a disk could have done it
//! * `rig`: hosts, controllers and applications; `client`: one host's applications; `disk`: what
//!   controllers store
//! * `world`, `node`, `net`: places, connections, time
mod client;
mod disk;
pub mod history;
mod net;
mod node;
pub mod plan;
mod rig;
pub mod run;
mod world;
