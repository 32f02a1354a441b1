//! Runs programs as policies: WebAssembly modules that choose a path for each I/O.
//!
//! [`Program`] is a module that has been checked; a [`Runner`] is that program at work on one core,
//! for the selector of one volume (crate `policy`). docs/programs.md has the interface for authors.
//!
//! # Contract
//! Loading translates the whole module: never on a thread that serves I/O. A runner neither blocks
//! nor panics, whatever its module does: each call has a bound of fuel, and where it has no usable
//! answer `queue-depth` chooses, counted by [`Fault`]. A trap leaves the memory of a module
//! damaged (its stack pointer and heap are not restored): the instance is thrown away and a new one
//! made by the [`Workshop`], off the path of I/O. The program's words in the context outlive
//! that. A program with more than [`limits::FAULTS_MAX`] faults in
//! [`limits::WINDOW`] choices is taken out on all cores.
//!
//! # Limits
//! All in [`limits`].
#![forbid(unsafe_code)]

pub mod abi;
mod fuel;
mod instance;
pub mod limits;
mod load;
mod runner;
mod wasi;
mod workshop;

pub use load::{LoadError, Options, Program, id, read};
pub use runner::{Counts, Fault, Runner, State};
pub use workshop::Workshop;

#[cfg(test)]
mod tests;
