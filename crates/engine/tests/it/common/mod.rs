//! A reactor and a network in virtual time, for tests of any machines wired to each other.
//!
//! [`World`] holds nodes: each a machine behind `Rc<RefCell<_>>` (so that a test can talk to it),
//! its arena, its devices, and what its addresses lead to. It keeps the reactor's contract strictly
//! and is unkind where the contract allows: bytes arrive in pieces of any size, a send is reported
//! late and its memory is compared then (nobody may change what is being sent), and connections end
//! at the worst moment.
//!
//! Nothing depends on anything but the seed.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod body;
mod config;
mod fleet;
pub mod hedge;
mod host_core;
mod net;
mod patched;
mod peer;
mod random;
mod recovery;
mod setup;
mod world;

pub use body::{Address, Arena, Body, Disk, NoMemory};
pub use fleet::*;
pub use host_core::HostCore;
pub use patched::Patched;
pub use peer::Player;
pub use random::Random;
pub use recovery::*;
pub use setup::*;
pub use world::{Node, World};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
