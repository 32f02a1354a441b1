//! The engine in worlds of chaos, as the simulator runs them.
#![allow(clippy::unwrap_used, reason = "tests")]
mod chaos;
mod chaos_mirror;
#[path = "../../../sim-program/src/chaos/programs.rs"]
mod programs;
