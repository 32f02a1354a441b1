//! Changing and showing a running service: JSON-RPC 2.0 over a private Unix socket.
//!
//! * [`socket`]: the socket's file; [`access`]: whose it is; [`rpc`]: messages;
//!   [`call`]: what is asked
//! * [`server`]: clients; [`limits`]: all bounds
pub mod access;
pub mod call;
pub mod limits;
pub mod rpc;
pub mod server;
pub mod socket;
