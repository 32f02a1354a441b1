//! Losses of power at any moment: prefixes of the targets' writes, mounted as ext4.
//!
//! # Contract
//! Three targets serve one file on a disk that logs its writes and flushes ([`disk`]). An ext4 on
//! the exported volume is written and synced while targets fail. Then the disk is built as it
//! would be after a loss of power at random moments: all writes before the last flush, and of the
//! writes since either those up to the moment or any of these. Each image must mount, hold every
//! file whose `fsync` had returned, whole, and pass `e2fsck`.
//!
//! # Limits
//! Needs root, loop devices, FUSE, ext4, nbdfuse.
mod disk;
mod files;

use super::engine::SHORT;
use super::mounted::{Image, Mounted, mount_hindrance};
use super::net::run as run_program;
use super::plan::{Plan, Random};
use super::stage::{Directory, Stage};
use super::table::Table;
use super::{Common, stop};
use anyhow::{Context, Result, bail, ensure};
use disk::{Disk, Event};
use files::Files;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WAYS: usize = 3;
const BYTES: usize = 48 << 20;
const FAULT_MS_MAX: u64 = 1500;

/// How much is written, and how often the power is lost.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// For how long faults are begun.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Losses of power.
    #[arg(long, default_value_t = 100)]
    prefixes: u64,
    /// The disk forgets flushes: shows that this check fails then.
    #[arg(long)]
    forget_flushes: bool,
}

impl Args {
    /// The command line that repeats it.
    pub fn words(&self) -> String {
        let forget = if self.forget_flushes {
            " --forget-flushes"
        } else {
            ""
        };
        format!(
            "prefixes --seconds {} --prefixes {}{forget}",
            self.seconds, self.prefixes
        )
    }
}

/// Why this can't be done here; `None`: it can.
pub fn hindrance() -> Option<&'static str> {
    mount_hindrance()
}

/// Runs it and prints.
///
/// # Errors
/// A file is missing or damaged after a loss of power, or something can't be set up.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    if let Some(reason) = hindrance() {
        bail!("{reason}");
    }
    let mut faults = BTreeMap::new();
    let (events, files) = record(common, args, &mut faults)?;
    let checked = check(common, args, &events, &files)?;
    let table = Table::of_faults(&faults);
    let flushes = events
        .iter()
        .filter(|it| matches!(it, Event::Flush))
        .count();
    common.show(
        "prefixes",
        &format!(
            "{} losses of power after {} writes",
            args.prefixes,
            events.len() - flushes
        ),
        &table,
        json!({
            "flushes": flushes,
            "synced_versions": files.synced(),
            "files_compared": checked,
        }),
    );
    Ok(())
}

/// Writes under faults; what the disk was sent.
fn record(
    common: &Common,
    args: &Args,
    faults: &mut BTreeMap<String, u64>,
) -> Result<(Vec<Event>, Files)> {
    // Made first, so that it goes last: the targets have its file open.
    let home = Directory::make("prefixes-disk")?;
    let disk = Disk::mount(&home.0, BYTES)?;
    let namespaces = common.namespaces();
    let backend = disk.path.clone();
    let mut stage = Stage::targets_on(
        &common.program,
        "prefixes",
        WAYS,
        namespaces,
        (&backend, BYTES as u64, ""),
    )?;
    stage.run(SHORT, |_| String::new())?;
    let image = Image::make(&stage.directory.0, &stage.engine()?.export())?;
    let mut mounted = Mounted::make(&image, 0, &stage.directory.0)?;
    run_program("sync", &["-f", &mounted.directory.to_string_lossy()])?;
    let first = disk.position();
    let files = Files::start(&mounted.directory, common.seed, disk.log());
    let injected = inject(common, args, &mut stage, &files, faults);
    let files = files.finish();
    injected?;
    let files = files?;
    // The disk is whole before it is taken apart.
    mounted.unmount()?;
    mounted.fsck()?;
    drop(mounted);
    drop(image);
    drop(stage);
    let events = disk.unmount()?;
    ensure!(files.synced() > 0, "no file was synced");
    ensure!(first < events.len(), "nothing was written");
    Ok((events, files.starting_at(first)))
}

fn inject(
    common: &Common,
    args: &Args,
    stage: &mut Stage,
    files: &files::Writer,
    faults: &mut BTreeMap<String, u64>,
) -> Result<()> {
    let mut plan = Plan::new(common.seed, WAYS, FAULT_MS_MAX, stage.net.is_real());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(args.seconds) {
        let fault = plan.next();
        common.progress(&format!(
            "{} s: {}",
            begun.elapsed().as_secs(),
            fault.name()
        ));
        stage.undergo(&fault)?;
        files.check()?;
        *faults.entry(fault.name()).or_default() += 1;
    }
    common.progress("");
    Ok(())
}

/// Loses power at random moments; how many files were compared.
fn check(common: &Common, args: &Args, events: &[Event], files: &Files) -> Result<u64> {
    let mut random = Random(common.seed ^ 0x7072_6566);
    let first = files.first_position();
    let span = (events.len() - first) as u64 + 1;
    let mut cuts: Vec<usize> = (0..args.prefixes)
        .map(|_| first + random.below(span) as usize)
        .collect();
    cuts.sort_unstable();
    let directory = Directory::make("prefixes")?;
    let mut base = vec![0; BYTES];
    let mut applied = 0;
    let mut compared = 0;
    for (number, cut) in cuts.iter().enumerate() {
        stop::check()?;
        common.progress(&format!("loss of power {} of {}", number + 1, cuts.len()));
        let flushed = if args.forget_flushes {
            applied.max(cut.saturating_sub(400))
        } else {
            last_flush(&events[..*cut]).max(applied)
        };
        events[applied..flushed]
            .iter()
            .for_each(|it| it.apply(&mut base));
        applied = flushed;
        let mut image = base.clone();
        // Any of the writes since the last flush may have been lost, or none of the last ones.
        let any = random.below(2) == 0;
        for event in &events[flushed..*cut] {
            if !any || random.below(2) == 0 {
                event.apply(&mut image);
            }
        }
        // A file of its own: `mount` takes a loop device that still has this file, with all that it
        // has cached, and the one of the round before may not be detached yet.
        let path = directory.0.join(format!("image-{number}"));
        std::fs::write(&path, &image)?;
        let checked = check_image(&directory.0, &path, *cut, files);
        compared += checked.with_context(|| {
            let kept = keep_image(&path, common.seed);
            format!(
                "power lost after {cut} of {} events (image: {kept})",
                events.len()
            )
        })?;
        std::fs::remove_file(&path)?;
    }
    common.progress("");
    Ok(compared)
}

/// Keeps an image for inspection; where.
fn keep_image(image: &Path, seed: u64) -> String {
    let kept = std::env::temp_dir().join(format!("braid-prefix-{seed}.img"));
    match std::fs::copy(image, &kept) {
        Ok(_) => kept.display().to_string(),
        Err(error) => format!("not kept: {error}"),
    }
}

/// Events up to the last flush, with it.
fn last_flush(events: &[Event]) -> usize {
    let at = events.iter().rposition(|it| matches!(it, Event::Flush));
    at.map_or(0, |at| at + 1)
}

fn check_image(directory: &Path, image: &Path, cut: usize, files: &Files) -> Result<u64> {
    let at: PathBuf = directory.join("mnt");
    std::fs::create_dir_all(&at)?;
    let (source, target) = (image.to_string_lossy(), at.to_string_lossy());
    run_program("mount", &["-o", "loop", &source, &target]).context("mount")?;
    let compared = files.compare(&at, cut);
    run_program("umount", &[&target]).context("unmount")?;
    let compared = compared?;
    run_program("fsck.ext4", &["-fn", &source]).context("the file system is damaged")?;
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::disk::Event;
    use super::last_flush;

    #[test]
    fn writes_up_to_the_last_flush_are_kept() {
        let write = |offset| Event::Write {
            offset,
            data: vec![1; 2],
        };
        let events = [write(0), Event::Flush, write(2)];
        assert_eq!(last_flush(&events), 2);
        assert_eq!(last_flush(&events[..1]), 0);
        let mut image = [0; 4];
        events.iter().for_each(|it| it.apply(&mut image));
        assert_eq!(image, [1; 4]);
    }
}
