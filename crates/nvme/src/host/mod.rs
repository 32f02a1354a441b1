//! The initiator: one [`Admin`] association per controller and one [`IoQueue`] per I/O connection.
//!
//! Both machines have the same transport interface (see [`crate::Placement`]): `handle_connected`,
//! `handle_bytes`, `placement`, `handle_payload`, `poll_transmit`, `handle_sent`, `handle_closed`,
//! `poll_timeout`, `handle_timeout`, `poll_event`. An [`Admin`] never has a placement: its data is
//! its own.
mod admin;
mod command;
mod error;
mod io_queue;
mod learn;
mod transport;
mod types;

pub use admin::Admin;
pub use error::{DIGESTS_DIFFER, HostError, NamespaceError, Step};
pub use io_queue::{IoQueue, SubmitError};
pub use learn::{LearnError, learn};
pub use types::*;
