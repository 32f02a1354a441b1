//! A stock Debian kernel in a guest, and our programs inside.
//!
//! Guests: a real NVMe host and target show what a twin of ours cannot. A guest is made of Debian's
//! packages, downloaded and unpacked below the build directory; nothing is installed and nothing
//! needs root.
//!
//! # Contract
//! The guest's first process runs one script and powers off; the script's exit status is ours.
//! Its output comes through as it is printed; the kernel's own console is kept in a file. Every
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
use packages::Kernel;

/// Task for a guest.
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
    /// Cost of reads through io_uring passthrough and the block layer, in virtual time.
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
    /// The guest's kernel.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
}

/// Does it.
pub fn run(root: &Path, task: &Task) -> Result<ExitCode> {
    let build = |kernel: Option<Kernel>, fresh| {
        let image = image::build(root, kernel.unwrap_or_default(), fresh);
        image.map_err(|error| unavailable(&error))
    };
    match task {
        Task::Build(args) => {
            let image = build(Some(args.kernel), args.fresh)?;
            println!("{}: {}", image.kernel_version, image.base.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Shell(options) => {
            let program = braid(root, options.program.as_deref())?;
            machine::shell(&build(options.kernel, false)?, &program, options)
        }
        Task::Run(args) => {
            let script = suite::find(root, &args.script)?;
            let options = args.options.over(&suite::options(&script)?);
            run_one(root, &build(options.kernel, false)?, &script, &options, &[])
        }
        Task::Peer(options) => {
            let image = build(options.kernel, false)?;
            let files = peer::files(&image).map_err(|error| unavailable(&error))?;
            let script = root.join(peer::SCRIPT);
            let options = options.over(&suite::options(&script)?);
            run_one(root, &image, &script, &options, &files)
        }
        Task::Tu1(args) => {
            let program = match &args.options.program {
                Some(program) => program.clone(),
                None => crate::program::build_dist(root, &["--bin", "braid"])?,
            };
            tu1::run(root, &build(args.options.kernel, false)?, &program, args)
        }
        Task::All(args) => suite::run(root, args, &|kernel| build(Some(kernel), false)),
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
    let run = machine::Run {
        script,
        braid: &braid(root, options.program.as_deref())?,
        options,
        echo: true,
        files,
    };
    let ended = machine::run(image, &run)?;
    println!("vm: {ended}");
    Ok(ended.code())
}

/// The program that goes into guests: this one, else one that is built for release.
fn braid(root: &Path, program: Option<&Path>) -> Result<PathBuf> {
    match program {
        Some(program) => Ok(program.to_path_buf()),
        None => crate::program::build(root, &["--bin", "braid"]),
    }
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
