//! Work and cost of a mirror.
//!
//! # Contract
//! Real processes: legs in memory behind targets whose ports are shaped, or in files on their own,
//! an engine that runs the mirror, fio over NBD. Two tables:
//! - `balance`: every policy over two equal legs and over one like a hard disk beside one like an
//!   SSD: random reads and writes of four processes, one sequential reader, random reads; beside
//!   the better leg alone. All policies in turn, several rounds; figures are medians over rounds,
//!   ratios those of each round.
//! - `intent`: writes where the bits of the intent bitmap have to be set first, and the same writes
//!   once more where they are set; each round on a new mirror, over files that were written before.
//!
//! # Limits
//! The legs of `balance` are shaped, so that the machine is not what bounds them; those of
//! `intent` are as fast as the machine's disk.
mod balance;
mod intent;
mod stage;

use super::fio;
use crate::prelude::*;

/// Which cells, how long.
#[derive(clap::Args)]
#[command(mut_arg("seconds", |it| it.default_value("3")))]
#[command(mut_arg("rounds", |it| it.default_value("3")))]
pub struct Args {
    /// Only these tables; all of them if none is named.
    #[arg(value_enum)]
    tables: Vec<Table>,
    #[command(flatten)]
    timing: Timing,
    /// Policies to balance with; all of them if none is named.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Only cells whose heading has this in it, such as "equal, read 128k".
    #[arg(long, default_value = "")]
    cells: String,
}

/// Tables that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// Policies over equal and unequal legs.
    Balance,
    /// Cost of the intent bitmap for writes.
    Intent,
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    needs("fio", "fio")?;
    let braid = setup.braid()?;
    let wanted = |table| args.tables.is_empty() || args.tables.contains(&table);
    let mut shown: Vec<table::Part<'_>> = Vec::new();
    if wanted(Table::Balance) {
        let cells = balance::run(&braid, args)?;
        shown.push(("balance", "balance".into(), &balance::COLUMNS, cells));
    }
    if wanted(Table::Intent) {
        let cells = intent::run(&braid, args)?;
        shown.push(("intent", "intent".into(), &intent::COLUMNS, cells));
    }
    table::print(setup.output, &shown);
    Ok(())
}

impl Args {
    /// Whether a cell with this heading is to be measured.
    fn wants(&self, heading: &str) -> bool {
        heading.contains(&self.cells)
    }
}

/// A load: its name in the table, and fio's words for it.
type Load = (&'static str, &'static str);

/// Runs it against the socket of an export, for so long, or until all is done once.
fn put(load: Load, socket: &Path, seconds: Option<f64>) -> Result<Value> {
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut command = Command::new("fio");
    fio::words(&mut command, &uri, seconds, load.1);
    fio::run(&mut command)
}
