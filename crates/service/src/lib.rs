//! Parts that all programs with a socket share.
//!
//! * [`control`]: private sockets, JSON-RPC, who may connect
//! * [`queues`]: queue servers, as their clients find them
//! * [`service_manager`]: systemd's READY, STOPPING, watchdog
//! * [`signals`]: an end in spite of files that hang; [`advice`]: too few descriptors
#![forbid(unsafe_code)]

pub mod advice;
pub mod control;
pub mod queues;
pub mod service_manager;
pub mod signals;
