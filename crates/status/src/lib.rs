//! `braid status`: what an NVMe status means, and what a volume does about it.
//!
//! * `code`: what was written, to a status
//! * `meaning`: what the engine makes of it
//! * `show`: one status or all of them, as text and JSON
#![forbid(unsafe_code)]

mod code;
mod meaning;
mod show;

pub use code::only as by_name;

use terminal::exit::Usage;
use terminal::output::{self, Format, Style};
use terminal::table;

/// Explain an NVMe status: what it is called, and what a volume does about it
///
/// CODE as it is found in logs: 0x281, 281h, 2h/81h, "sct 0x2 / sc 0x81", a name such as
/// "unrecovered read error" or enough of its words, a fault of braid target such as media-read.
/// Retry bits that are set in it are explained (0x4281), and so is the upper half of a completion
/// with its phase tag (0x8503). Without CODE: all of them.
#[derive(Clone, Debug, clap::Args)]
pub struct StatusArgs {
    /// The status; several words are one
    #[arg(value_name = "CODE")]
    code: Vec<String>,
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
}

/// Shows one status, or all.
///
/// # Errors
/// [`Usage`] where `CODE` is none, or several; else what printing says.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let json = args.output == Format::Json;
    if args.code.is_empty() {
        return match json {
            true => output::print_json(&show::all_json()),
            false => output::print(&show::all(Style::of_stdout())),
        };
    }
    let asked = code::parse(&args.code.join(" ")).map_err(Usage::error)?;
    match json {
        true => output::print_json(&show::one_json(&asked)),
        false => output::print(&show::one(&asked, Style::of_stdout())),
    }
}
