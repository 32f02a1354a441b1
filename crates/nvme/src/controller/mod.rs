//! The target: a subsystem with its ports, controllers, namespaces and connections.
//!
//! * [`Subsystem`] is the machine that a driver drives; [`types`](self) are its words
//! * `connection`: one TCP connection: PDUs, data, slots of commands
//! * `commands`: the course of a command through them; `io`, `admin`, `fabrics` say what each means
//! * `discovery`: what discovery tells hosts
//! * `association`: a controller's registers, keep-alive and events; `errors`: its error log
//! * `lifetime`: how things end; `config`: what all share
mod abort;
mod admin;
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
