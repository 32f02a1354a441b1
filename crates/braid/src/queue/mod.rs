//! `braid queue`: hardware queues for applications, over memory that they share with a software
//! controller ([docs/queues.md](../../../../docs/queues.md)).
//!
//! * [`serve`]: the controller in the foreground; [`allow`]: who may do what
//! * [`list`]: the queues that there are
//! * [`mod@bench`]: a load on queues, in fio's words; [`local`]: the same on what the kernel drives
mod allow;
mod bench;
mod list;
mod local;
mod serve;

use crate::control::socket::{Service, default_path};
use anyhow::anyhow;
use std::path::PathBuf;

/// The verbs.
#[derive(Debug, clap::Subcommand)]
pub enum QueueVerb {
    Serve(Box<serve::ServeArgs>),
    List(list::ListArgs),
    Bench(Box<bench::BenchArgs>),
}

/// Who listens.
const SERVICE: Service = Service {
    file: "q.sock",
    noun: "queue server",
    command: "braid queue serve",
};

/// Does what a verb asks.
///
/// # Errors
/// As the verb says.
pub fn run(verb: &QueueVerb) -> anyhow::Result<()> {
    match verb {
        QueueVerb::Serve(args) => serve::run(args),
        QueueVerb::List(args) => list::run(args),
        QueueVerb::Bench(args) => bench::run(args),
    }
}

/// The socket's path: as given, else in the usual place.
fn socket_path(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    let path = given.cloned().or_else(|| default_path(SERVICE));
    path.ok_or_else(|| crate::cli::Usage::error("XDG_RUNTIME_DIR is not set: give --socket PATH"))
}

/// What a client could not do, and what to do about it.
fn client_error(error: ::queue::Error, path: &std::path::Path) -> anyhow::Error {
    let (noun, path) = (SERVICE.noun, path.display());
    if let Some(why) = error.nobody_listens() {
        return anyhow!(
            "no {noun} answers on {path}: {why} (start one with {}, or give its --socket)",
            SERVICE.command
        );
    }
    let context = format!("the {noun} on {path}{}", error.advice());
    anyhow::Error::new(error).context(context)
}
