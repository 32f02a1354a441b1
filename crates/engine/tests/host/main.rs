//! The host: its paths in virtual time, against controllers that may do anything.
#![allow(clippy::unwrap_used, reason = "a test")]
mod abilities;
mod abort;
mod ana;
mod chain;
#[path = "../common/mod.rs"]
mod common;
mod cores;
mod damage;
mod explain;
mod failover;
mod faults;
mod flush;
mod flush_asked;
mod health;
mod hedge;
mod hedge_odds;
mod heeds;
mod idle;
mod io;
mod knobs;
mod late;
mod leaving;
mod let_go;
mod mark;
mod passthrough;
mod paths;
mod proof;
mod queues;
mod resize;
mod setup;
mod split;
mod stop;
mod turns;
mod volumes;
mod waits;
