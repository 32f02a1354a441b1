//! The target: a subsystem with its ports, controllers, namespaces and connections.
//!
//! * [`Subsystem`] is the machine that a driver drives; [`types`](self) are its types
//! * `connection`: one TCP connection: PDUs, data, slots of commands
//! * `commands`: the life of a command; `io`, `admin`, `fabrics` execute the command sets
//! * `discovery`: the discovery log; `allocation`: which blocks are allocated
//! * `association`: a controller's registers, keep-alive and events; `errors`: its error log
//! * `lifetime`: the end of connections and controllers; `config`: shared state
mod abort;
mod admin;
mod allocation;
mod association;
mod commands;
mod config;
mod connection;
mod discovery;
mod errors;
mod fabrics;
mod io;
mod lifetime;
mod subsystem;
mod types;

pub use config::ConfigError;
pub use subsystem::{Full, Subsystem};
pub use types::*;

#[cfg(test)]
mod tests;
