//! `braid queue`: hardware queues for applications, over memory that they share with a software
//! controller ([docs/queues.md](../../../../docs/queues.md)).
//!
//! * [`serve`]: the controller in the foreground; [`allow`]: who may do what
//! * [`list`]: the queues that there are
//! * [`load::queue::bench`]: a load on queues
pub mod allow;
mod in_engine;
mod list;
mod serve;

use load::queue::bench;
use service::queues::{QUEUE as SERVICE, client_error};

/// The verbs.
#[derive(Debug, clap::Subcommand)]
pub enum QueueVerb {
    Serve(Box<serve::ServeArgs>),
    List(list::ListArgs),
    Bench(Box<bench::BenchArgs>),
}

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
