//! `braid target`: a software NVMe/TCP subsystem behind shaped ports, changeable while it runs.
//!
//! * `config`: what it is to be; `settings`: what can be set of a port, its `faults` among
//!   them; [`quantity`]: how both are written
//! * `discovery`: what discovery tells of it
//! * `launch`: from that to a running reactor; `backend`: what the blocks lie in
//! * `serve`: the verb in the foreground, with its `log`; [`embedded()`]: the same for a
//!   program around it
//! * [`waits`]: how cores waited, for `show`, and for engines
//! * `control`: changing it while it runs, over a socket of [`service::control`];
//!   `client`: the verbs that do so
//!
//! # Limits
//! One subsystem on one core per process. `limits` has the rest.
#![forbid(unsafe_code)]

mod backend;
mod client;
mod config;
mod control;
mod discovery;
mod embedded;
mod faults;
mod launch;
mod limits;
mod log;
pub mod quantity;
#[cfg(test)]
#[path = "../../braid/src/reference.rs"]
#[allow(dead_code, reason = "the tests of braid use the rest")]
mod reference;
mod serve;
mod settings;
pub mod waits;

pub use config::{check_nqn, identifiers, serial_of, volume_identifiers};
pub use embedded::{Embedded, EmbeddedConfig, embedded};
pub use log::reason;

use clap::{Args, Subcommand};

/// Options of `braid target`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TargetArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    serve: serve::ServeArgs,
    #[command(flatten)]
    log: terminal::log::LogArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Change the shape, faults or ANA state of a port of the running target
    Set(client::SetArgs),
    /// Drop all connections of a port, with a reset
    Drop(client::DropArgs),
    /// Change the size of a namespace
    Resize(client::ResizeArgs),
    /// Say which hosts may connect; those that are connected stay
    Hosts(client::HostsArgs),
    /// Say to which other discovery controllers hosts are referred
    Referrals(client::ReferralsArgs),
    /// Show the running target
    Show(client::ShowArgs),
}

/// The verb.
///
/// # Errors
/// Usage, or whatever of the target can't be had; each says what, which, why and what to do.
pub fn run(args: TargetArgs) -> anyhow::Result<()> {
    match args.verb {
        None => {
            args.log.apply(None);
            serve::run(args.serve)
        }
        Some(Verb::Set(args)) => client::set(&args),
        Some(Verb::Drop(args)) => client::drop_connections(&args),
        Some(Verb::Resize(args)) => client::resize(&args),
        Some(Verb::Hosts(args)) => client::set_hosts(&args),
        Some(Verb::Referrals(args)) => client::set_referrals(&args),
        Some(Verb::Show(args)) => client::show(&args),
    }
}
