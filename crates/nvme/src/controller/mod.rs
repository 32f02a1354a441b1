//! The target: a subsystem with its ports, controllers, namespaces and connections.
mod subsystem;
mod types;

pub use subsystem::{ConfigError, Full, Subsystem};
pub use types::*;
