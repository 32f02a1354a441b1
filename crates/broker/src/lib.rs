//! The broker: a software NVMe controller whose queues lie in memory that it shares with
//! applications.
//!
//! * [`Broker`]: what runs; [`Config`]: what it has, and who may use it
//! * `server`: the socket: who comes, what they ask for, when they are gone; `session`: a
//!   connection's own thread
//! * [`CoreQueues`]: the queues of a core of an engine; [`local`]: an engine over local devices
//! * `lane`: one queue: fetches, checks, executes, answers; `zeroing`: what is too much at once
//! * `transfer`: between memory devices and registered memory; `messages`: between threads
//!
//! # Contract
//! A client can bring about the end of its own queue and the failure of its own commands, and
//! nothing else: what is checked is a copy, no call of ours waits for a client, and what belongs to
//! a queue (memory, descriptors, its place) goes back when the client is gone and the last command
//! that uses it has ended.
#![forbid(unsafe_code)]

mod config;
mod core_queues;
mod lane;
pub mod limits;
pub mod local;
mod messages;
mod server;
mod session;
mod transfer;
mod zeroing;

pub use config::{
    Config, EngineNamespace, Grant, Identity, Namespace, NamespaceRight, Rights, Shape, Store,
};
pub use core_queues::CoreQueues;
pub use messages::{CoreWaits, ServerCore, ToCore};
pub use nvme::queue::check::Trust;
pub use server::Broker;
/// A broker without threads, for whoever is all of them: a fuzzer.
#[doc(hidden)]
pub use server::room;
