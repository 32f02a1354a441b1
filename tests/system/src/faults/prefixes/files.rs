//! Files that are written, synced and renamed; which version each must have after a loss of power.
use super::super::plan::Random;
use super::disk::Log;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

const COUNT: usize = 24;
/// Longest file, in words of 8 bytes.
const WORDS_MAX: u64 = 8 << 10;
/// Keeps the log of a run small.
const PAUSE: Duration = Duration::from_millis(5);

/// A version of a file, and the positions of the disk's log.
#[derive(Clone, Copy)]
struct Version {
    number: u64,
    /// Before it was begun: not there before.
    begun: usize,
    /// When its `fsync` had returned: there from then on.
    synced: Option<usize>,
}

/// All versions of all files.
pub struct Files {
    seed: u64,
    first: usize,
    versions: Vec<Vec<Version>>,
}

/// Writes files until it is told to stop.
pub struct Writer {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Files>>>,
}

impl Files {
    /// Starts to write below `root`, which lies on the disk of this log.
    pub fn start(root: &Path, seed: u64, log: Log) -> Writer {
        let (stop, failed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (asked, told) = (Arc::clone(&stop), Arc::clone(&failed));
        let root = root.to_owned();
        let thread = std::thread::spawn(move || {
            let done = Self::write_until(&root, seed, &log, &asked);
            told.store(done.is_err(), Ordering::Relaxed);
            done
        });
        Writer {
            stop,
            failed,
            thread: Some(thread),
        }
    }

    fn write_until(root: &Path, seed: u64, log: &Log, stop: &AtomicBool) -> Result<Self> {
        let mut files = Self {
            seed,
            first: 0,
            versions: vec![Vec::new(); COUNT],
        };
        let mut random = Random(seed);
        while !stop.load(Ordering::Relaxed) {
            let file = random.below(COUNT as u64) as usize;
            files.write(root, file, log)?;
            sleep(PAUSE);
        }
        Ok(files)
    }

    /// The next version replaces the last one, and is durable when this returns.
    fn write(&mut self, root: &Path, file: usize, log: &Log) -> Result<()> {
        let number = self.versions[file].len() as u64 + 1;
        self.versions[file].push(Version {
            number,
            begun: log.position(),
            synced: None,
        });
        let path = path(root, file);
        let what = || format!("write {}", path.display());
        let directory = path.parent().context("a file lies in a directory")?;
        std::fs::create_dir_all(directory).with_context(what)?;
        let fresh = path.with_extension("new");
        let mut opened = File::create(&fresh).with_context(what)?;
        opened
            .write_all(&contents(self.seed, file, number))
            .with_context(what)?;
        opened.sync_all().with_context(what)?;
        std::fs::rename(&fresh, &path).with_context(what)?;
        File::open(directory)?.sync_all().with_context(what)?;
        File::open(root)?.sync_all().with_context(what)?;
        if let Some(last) = self.versions[file].last_mut() {
            last.synced = Some(log.position());
        }
        Ok(())
    }

    /// Power is lost after this position only: before it there is no file system.
    pub fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// See [`Self::starting_at`].
    pub fn first_position(&self) -> usize {
        self.first
    }

    /// Versions that were synced.
    pub fn synced(&self) -> u64 {
        let all = self.versions.iter().flatten();
        all.filter(|it| it.synced.is_some()).count() as u64
    }

    /// Compares the files below `root` with what a disk must hold that lost power at `cut`; how
    /// many there are.
    ///
    /// # Errors
    /// One is missing, older than its last `fsync`, or no version of it.
    pub fn compare(&self, root: &Path, cut: usize) -> Result<u64> {
        let mut compared = 0;
        for (file, versions) in self.versions.iter().enumerate() {
            let synced = versions
                .iter()
                .filter(|it| it.synced.is_some_and(|at| at <= cut));
            let least = synced.map(|it| it.number).max().unwrap_or(0);
            let begun = versions.iter().filter(|it| it.begun <= cut);
            let most = begun.map(|it| it.number).max().unwrap_or(0);
            let path = path(root, file);
            let found = match std::fs::read(&path) {
                Err(_) if least == 0 => continue,
                found => found.with_context(|| format!("file {file}, version {least} synced"))?,
            };
            let known = (least.max(1)..=most).find(|it| contents(self.seed, file, *it) == found);
            ensure!(
                known.is_some(),
                "file {file} ({} bytes) is none of its versions {} to {most}; {least} was synced",
                found.len(),
                least.max(1)
            );
            compared += 1;
        }
        Ok(compared)
    }
}

impl Writer {
    /// # Errors
    /// It has failed; why is told by [`Self::finish`].
    pub fn check(&self) -> Result<()> {
        ensure!(
            !self.failed.load(Ordering::Relaxed),
            "a file can't be written"
        );
        Ok(())
    }

    /// Ends it.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn finish(mut self) -> Result<Files> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it ends once")?;
        let Ok(done) = thread.join() else {
            bail!("the writer has panicked");
        };
        done
    }
}

fn path(root: &Path, file: usize) -> PathBuf {
    root.join(format!("d{}/f{file}", file % 4))
}

/// A function of its arguments, never empty.
fn contents(seed: u64, file: usize, version: u64) -> Vec<u8> {
    let mut random = Random(seed ^ ((file as u64 + 1) << 40) ^ version);
    let words = 1 + random.below(WORDS_MAX);
    (0..words)
        .flat_map(|_| random.next().to_le_bytes())
        .collect()
}
