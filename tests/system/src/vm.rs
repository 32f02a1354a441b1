//! A stock Debian kernel in a guest, and our programs inside.
//!
//! What a twin of ours cannot show, a real NVMe host and target can. The guest is made of Debian's
//! packages, downloaded and unpacked below the build directory; nothing is installed and nothing
//! needs root.
//!
//! # Contract
//! The guest's first process runs one script and powers off; the script's exit status is ours.
//! What it prints comes through as it is printed; the kernel's own console is kept in a file. Every
//! guest has a time limit, kept by `timeout` outside and by its own first process, so none outlives
//! it even if we die.
//!
//! # Limits
//! x86-64 only, emulated (no KVM): times measured inside mean something only with `--icount`.
mod archive;
mod image;
mod libraries;
mod machine;
mod packages;
mod peer;
mod suite;
mod tu1;

use anyhow::{Result, anyhow};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use machine::Options;

/// What to do with a guest.
#[derive(clap::Subcommand)]
pub enum Task {
    /// Run one script in a fresh guest; its exit status is the result.
    Run(RunArgs),
    /// A shell in a fresh guest; Ctrl-D ends it.
    Shell(Options),
    /// Run every script of tests/guest, each in a fresh guest, and print a table.
    All(suite::Args),
    /// Run nvme-cli's own tests against our target, through the kernel's host.
    Peer(Options),
    /// What reads through io_uring passthrough and the block layer cost, in virtual time.
    Tu1(tu1::Args),
    /// Fetch packages and build the guest's file system, and no more.
    Build(BuildArgs),
}

/// A script, and the guest for it.
#[derive(clap::Args)]
pub struct RunArgs {
    /// A shell script, or the name of one in tests/guest without `.sh`.
    script: PathBuf,
    #[command(flatten)]
    options: Options,
}

/// How to build.
#[derive(clap::Args)]
pub struct BuildArgs {
    /// Look for newer packages, and make everything anew.
    #[arg(long)]
    fresh: bool,
}

/// Does it.
pub fn run(root: &Path, task: &Task) -> Result<ExitCode> {
    let build = |fresh| image::build(root, fresh).map_err(|error| unavailable(&error));
    match task {
        Task::Build(args) => {
            let image = build(args.fresh)?;
            println!("{}: {}", image.kernel_version, image.base.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Shell(options) => machine::shell(&build(false)?, &braid(root)?, options),
        Task::Run(args) => {
            let script = suite::find(root, &args.script)?;
            run_one(root, &build(false)?, &script, &args.options, &[])
        }
        Task::Peer(options) => {
            let image = build(false)?;
            let files = peer::files(&image).map_err(|error| unavailable(&error))?;
            run_one(root, &image, &root.join(peer::SCRIPT), options, &files)
        }
        Task::Tu1(args) => {
            let braid = crate::program::build_dist(root, &["--bin", "braid"])?;
            tu1::run(root, &build(false)?, &braid, args)
        }
        Task::All(args) => suite::run(root, args, &build),
    }
}

/// Runs one script with all it prints.
fn run_one(
    root: &Path,
    image: &image::Image,
    script: &Path,
    options: &Options,
    files: &[(String, PathBuf)],
) -> Result<ExitCode> {
    let options = options.over(&suite::options(script)?);
    let run = machine::Run {
        script,
        braid: &braid(root)?,
        options: &options,
        echo: true,
        files,
    };
    let ended = machine::run(image, &run)?;
    println!("vm: {ended}");
    Ok(ended.code())
}

/// The program that goes into guests.
fn braid(root: &Path) -> Result<PathBuf> {
    crate::program::build(root, &["--bin", "braid"])
}

/// Where everything of the guest is kept.
fn directory(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    // QEMU and dpkg-deb run elsewhere.
    std::path::absolute(target.join("vm")).unwrap_or_else(|_| target.join("vm"))
}

fn unavailable(error: &anyhow::Error) -> anyhow::Error {
    anyhow!("no guest: {error:#}")
}
