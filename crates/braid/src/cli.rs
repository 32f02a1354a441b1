//! The command line: verbs, exit codes, and how an error reaches the user.
//!
//! # Contract
//! Exit codes: 0 ok, 1 failed, 2 usage; of `check` a wrong usage is 3. An error is one chain on
//! standard error, `braid: what: why`.
use crate::output::OutputClosed;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsStr;
use std::fmt;
use std::process::ExitCode;

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
    Demo(crate::demo::DemoArgs),
    Bench(Box<crate::bench::BenchArgs>),
    /// Offer a software NVMe/TCP subsystem, or change a running one
    Target(Box<crate::target::TargetArgs>),
    Run(Box<crate::run::RunArgs>),
    Discover(crate::discover::DiscoverArgs),
    /// Make mirrors of files and block devices, and see what is on their legs
    #[command(subcommand)]
    Mirror(crate::mirror::MirrorVerb),
    /// Hardware queues for applications: serve them, see them, measure them
    #[command(subcommand)]
    Queue(crate::queue::QueueVerb),
    Sim(Box<crate::sim::SimArgs>),
    Status(crate::status::StatusArgs),
    #[command(flatten)]
    Engine(crate::run::EngineVerb),
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

/// The user asked for something that can't be: exit code 2.
#[derive(Clone, Debug)]
pub struct Usage(String);

impl Usage {
    /// An error with this text.
    pub fn error(text: impl Into<String>) -> anyhow::Error {
        Self(text.into()).into()
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The answer is the exit code; everything was said.
#[derive(Clone, Copy, Debug)]
pub struct Exit(pub u8);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Exit {}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_clap(&error, std::env::args_os().nth(1).as_deref()),
    };
    match run(cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(Exit(code)) = error.downcast_ref() {
                return ExitCode::from(*code);
            }
            crate::output::note(&format!("{error:#}"));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Demo(args) => crate::demo::run(&args),
        Verb::Bench(args) => crate::bench::run(&args),
        Verb::Target(args) => crate::target::run(*args),
        Verb::Run(args) => crate::run::run(&args),
        Verb::Discover(args) => crate::discover::run(&args),
        Verb::Mirror(verb) => crate::mirror::run(&verb),
        Verb::Queue(verb) => crate::queue::run(&verb),
        Verb::Sim(args) => crate::sim::run(&args),
        Verb::Status(args) => crate::status::run(&args),
        Verb::Engine(verb) => crate::run::ask(&verb),
        Verb::Man { directory } => clap_mangen::generate_to(Cli::command(), &directory)
            .map_err(|e| anyhow::Error::new(e).context(format!("{}", directory.display()))),
        Verb::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "braid", &mut text);
            crate::output::print(&String::from_utf8_lossy(&text))
        }
    }
}

/// Help and version go to standard output; a usage error reads like every other error of ours.
fn report_clap(error: &clap::Error, verb: Option<&OsStr>) -> ExitCode {
    // Scripts take 2 of `check` for a volume that is down.
    let usage = match verb.is_some_and(|verb| verb == "check") {
        true => crate::run::UNKNOWN,
        false => 2,
    };
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(usage);
    }
    let text = error.render().to_string();
    crate::output::note(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_is_recognised_below_context() {
        let error = Err::<(), _>(Usage::error("no such thing"))
            .context("--bs")
            .unwrap_err();
        assert!(error.is::<Usage>());
        assert_eq!(format!("{error:#}"), "--bs: no such thing");
    }
}
