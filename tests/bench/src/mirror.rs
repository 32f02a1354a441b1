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

use super::fio::{self, Run};
use crate::prelude::*;

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Only these tables; all of them if none is named.
    #[arg(value_enum)]
    tables: Vec<Table>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds; odd gives a true median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
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
    if !is_installed("fio") {
        bail!("fio is not installed: apt-get install fio");
    }
    let braid = setup.braid()?;
    let wanted = |table| args.tables.is_empty() || args.tables.contains(&table);
    let mut shown = serde_json::Map::new();
    let mut show = |name: &str, columns: &[Column], cells: Vec<Value>| {
        if setup.output == Format::Text {
            println!("{name}\n{}", table::text(columns, &cells));
        }
        shown.insert(name.into(), Value::Array(cells));
    };
    if wanted(Table::Balance) {
        show("balance", &balance::COLUMNS, balance::run(&braid, args)?);
    }
    if wanted(Table::Intent) {
        show("intent", &intent::COLUMNS, intent::run(&braid, args)?);
    }
    match setup.output {
        Format::Text => println!("load average of the machine: {}", super::load_average()),
        Format::Json => println!("{}", Value::Object(shown)),
    }
    Ok(())
}

impl Args {
    /// Whether a cell with this heading is to be measured.
    fn wants(&self, heading: &str) -> bool {
        heading.contains(&self.cells)
    }
}

/// Parameters of fio, in its own words.
#[derive(Clone, Copy)]
struct Load {
    /// Its name in the table.
    name: &'static str,
    /// Its `--rw`, `--bs` and whatever else.
    words: &'static [&'static str],
}

impl Load {
    /// Runs it against the socket of an export, for so long, or until all is done once.
    fn run(self, socket: &Path, seconds: Option<f64>) -> Result<Run> {
        let mut command = Command::new("fio");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        fio::words(&mut command, &uri, seconds);
        fio::run(command.args(self.words))
    }
}
