//! Verbs and reloads of an engine under load: many at once, and with `kill -9` within them.
//!
//! # Contract
//! The file has a volume over two targets, one over a file, a mirror, and one that nothing changes.
//! A reload adds and removes volumes, paths and legs, renames a volume, moves an export, and sets
//! keys, all in one or some of it.
//!
//! `--seconds`: eight clients ask verbs and reloads at random, while each volume that is there is
//! written and read, and a target holds writes again and again. Each call is answered; verbs of the
//! volume that nothing changes are answered while others wait for long, and take no longer than
//! their own I/O and that of the records of others. In the end the engine is as the file says.
//!
//! `--rounds`: the engine is killed at any time of a reload or verb, and started with the file of
//! before or after. It is as that file says; what a verb was answered holds, what it was not may
//! hold or not. In both, all that was acknowledged is there.
//!
//! `--steps`: the engine dies at each named step of each kind of reload and verb ([`steps`]).
//!
//! # Limits
//! A leg that was added or removed when the engine was killed may be one or none: the next engine
//! is told by verb.
mod file;
mod kills;
mod race;
mod steps;
pub mod writers;

use super::Common;
use anyhow::Result;

/// Options.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// How long clients race
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Kills
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    /// Kills at each step of each kind of change, too
    #[arg(long)]
    steps: bool,
}

impl Args {
    /// As they are to be repeated.
    pub fn words(&self) -> String {
        let steps = if self.steps { " --steps" } else { "" };
        let Self {
            seconds, rounds, ..
        } = self;
        format!("change --seconds {seconds} --rounds {rounds}{steps}")
    }
}

/// Runs all that is asked for and prints.
///
/// # Errors
/// Data that were acknowledged are lost, a call was not answered, or an engine is neither as before
/// nor as after.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    if args.seconds > 0 {
        race::run(common, args.seconds)?;
    }
    if args.rounds > 0 {
        kills::run(common, args.rounds)?;
    }
    if args.steps {
        steps::run(common)?;
    }
    Ok(())
}
