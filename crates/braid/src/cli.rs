//! The command line: its verbs.
//!
//! # Contract
//! Exit codes: 0 ok, 1 failed, 2 usage; of `check` a wrong usage is 3.
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsStr;
use std::process::ExitCode;
pub use terminal::exit::{Exit, Usage};
use terminal::exit::{USAGE, conclude, report_clap};

/// User-space NVMe multipath: one device over several unequal ways to the same data
#[derive(Debug, Parser)]
#[command(
    name = "braid",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(load::demo::DemoArgs),
    Bench(Box<load::bench::BenchArgs>),
    /// Offer a software NVMe/TCP subsystem, or change a running one
    Target(Box<target::TargetArgs>),
    Run(Box<crate::run::RunArgs>),
    Discover(crate::discover::DiscoverArgs),
    /// Make mirrors of files and block devices, and see what is on their legs
    #[command(subcommand)]
    Mirror(crate::mirror::MirrorVerb),
    /// Hardware queues for applications: serve them, see them, measure them
    #[command(subcommand)]
    Queue(crate::queue::QueueVerb),
    Sim(Box<crate::sim::SimArgs>),
    Status(status::StatusArgs),
    #[command(flatten)]
    Engine(crate::run::EngineVerb),
    #[command(hide = true)]
    UblkHelper(crate::run::HelperArgs),
    /// Write the man pages of all verbs into a directory
    #[command(hide = true)]
    Man {
        /// Directory
        directory: std::path::PathBuf,
    },
    /// Print a completion script
    #[command(hide = true)]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_clap(&error, usage(std::env::args_os().nth(1).as_deref())),
    };
    let ended = run(cli.verb);
    // Why it ended is the last line.
    terminal::log::end();
    conclude(ended)
}

fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Demo(args) => load::demo::run(&args),
        Verb::Bench(args) => load::bench::run(&args),
        Verb::Target(args) => target::run(*args),
        Verb::Run(args) => crate::run::run(&args),
        Verb::Discover(args) => crate::discover::run(&args),
        Verb::Mirror(verb) => crate::mirror::run(&verb),
        Verb::Queue(verb) => crate::queue::run(&verb),
        Verb::Sim(_) => crate::sim::run(),
        Verb::Status(args) => status::run(&args),
        Verb::Engine(verb) => crate::run::ask(&verb),
        Verb::UblkHelper(args) => crate::run::help(&args),
        Verb::Man { directory } => clap_mangen::generate_to(Cli::command(), &directory)
            .map_err(|e| anyhow::Error::new(e).context(format!("{}", directory.display()))),
        Verb::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "braid", &mut text);
            crate::output::print(&String::from_utf8_lossy(&text))
        }
    }
}

/// Exit code of a usage error: that of `check` is 3, since scripts take its 2 for a volume that is
/// down.
fn usage(verb: Option<&OsStr>) -> u8 {
    if verb.is_some_and(|verb| verb == "check") {
        return crate::run::UNKNOWN;
    }
    USAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
