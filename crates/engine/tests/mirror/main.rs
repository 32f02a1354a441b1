//! Mirrors over the host's volumes, in virtual time: legs are devices with volatile caches, that
//! fail, vanish and come back.
#![allow(clippy::unwrap_used, reason = "a test")]
mod again;
#[path = "../export/clients.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod deep;
mod frozen;
mod grow;
mod hang;
mod holes;
mod lease;
mod legs;
mod life;
mod numbers;
mod overlap;
mod rig;
mod silent;
mod sizes;
mod spare;
mod start;
