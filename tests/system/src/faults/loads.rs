//! Loads on the volume while things go wrong: `braid bench --verify` on the export as a file, and
//! a tree of files with known contents on an ext4.
use super::plan::Random;
use super::target::own_state;
use crate::process::Group;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs::{File, create_dir_all};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// Longest time of one bench besides its run time: it waits for whatever the volume waits for.
const BENCH_PATIENCE: Duration = Duration::from_secs(300);
/// One bench after the other, each as long.
const BENCH_SECONDS: u64 = 15;
/// Bytes that bench has.
pub const BENCH_BYTES: u64 = 64 << 20;

/// Work that a load did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Benches, or files.
    pub count: u64,
    /// Bytes that were read and found right.
    pub verified_bytes: u64,
}

/// A load with a thread of its own.
pub struct Load {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Result<Work>>>,
}

/// Messages to and from a load.
#[derive(Default)]
struct Stop {
    /// Come to an end.
    soon: AtomicBool,
    /// At once: nobody wants the result.
    now: AtomicBool,
    failed: AtomicBool,
}

impl Stop {
    fn is(flag: &AtomicBool) -> bool {
        flag.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    /// A process that waits for the volume waits no longer than until that is gone too.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.stop.soon.store(true, Ordering::Relaxed);
        self.stop.now.store(true, Ordering::Relaxed);
        let begun = std::time::Instant::now();
        while !thread.is_finished() && begun.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(10));
        }
    }
}

impl Load {
    fn spawn(work: impl FnOnce(&Stop) -> Result<Work> + Send + 'static) -> Self {
        let stop = Arc::new(Stop::default());
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let done = work(&told);
            told.failed.store(done.is_err(), Ordering::Relaxed);
            done
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Whether it has failed already.
    pub fn has_failed(&self) -> bool {
        Stop::is(&self.stop.failed)
    }

    /// Lets it come to its end.
    ///
    /// # Errors
    /// What went wrong.
    pub fn finish(mut self) -> Result<Work> {
        self.stop.soon.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("a load ends once")?;
        let Ok(done) = thread.join() else {
            bail!("a load has panicked");
        };
        done
    }

    /// `braid bench --verify` again and again.
    pub fn bench(program: &Path, directory: &Path, image: &Path, offset: u64, seed: u64) -> Self {
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let uri = format!("file:{}", image.display());
        Self::spawn(move |stop| {
            let mut work = Work::default();
            while !Stop::is(&stop.soon) {
                let mut command = Command::new(&program);
                own_state(&mut command, &directory);
                command.args(["bench", &uri, "--rw=randrw", "--verify", "-o", "json"]);
                command.args(["--bssplit=4k/70:64k/30", "--iodepth=8", "--rate-iops=200"]);
                command.arg(format!("--offset={offset}"));
                command.arg(format!("--size={BENCH_BYTES}"));
                command.arg(format!("--runtime={BENCH_SECONDS}"));
                command.arg(format!("--seed={}", seed.wrapping_add(work.count)));
                command.args(["--io-timeout=300"]);
                let facts = bench_once(&mut command, &directory, stop)?;
                work.count += 1;
                let verified = facts["verified_bytes"].as_u64();
                work.verified_bytes += verified.unwrap_or(0);
                ensure!(facts["errors"] == 0, "braid bench --verify: {facts}");
            }
            Ok(work)
        })
    }

    /// Files that are written, synced, renamed, read again and compared, until it is told to stop.
    pub fn files(tree: Tree) -> Self {
        Self::spawn(move |stop| {
            let mut work = Work::default();
            let mut random = Random(tree.seed);
            while !Stop::is(&stop.soon) {
                let number = random.below(FILES as u64) as usize;
                if random.below(3) == 0 {
                    work.verified_bytes += tree.verify(number)?;
                } else {
                    tree.write(number)?;
                    work.count += 1;
                }
                sleep(Duration::from_millis(20));
            }
            Ok(work)
        })
    }
}

fn bench_once(command: &mut Command, directory: &Path, stop: &Stop) -> Result<Value> {
    let (out, err) = (directory.join("bench.out"), directory.join("bench.err"));
    command.stdin(Stdio::null()).stdout(File::create(&out)?);
    command.stderr(File::create(&err)?);
    let mut group = Group::spawn(command)?;
    let begun = std::time::Instant::now();
    let limit = BENCH_PATIENCE + Duration::from_secs(BENCH_SECONDS);
    let status = loop {
        if let Some(status) = group.child().try_wait()? {
            break status;
        }
        ensure!(begun.elapsed() < limit, "braid bench --verify hangs");
        ensure!(!Stop::is(&stop.now), "given up");
        sleep(Duration::from_millis(20));
    };
    let text = std::fs::read_to_string(&out)?;
    let said = std::fs::read_to_string(&err)?;
    ensure!(
        status.success(),
        "braid bench --verify: {status}: {} {}",
        said.trim(),
        text.trim()
    );
    let line = text.lines().rev().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("braid bench printed no JSON: {text}"))?;
    Ok(serde_json::from_str(line)?)
}

/// Files of the tree.
const FILES: usize = 64;

/// Files whose contents follow from number and version.
#[derive(Clone)]
pub struct Tree {
    root: PathBuf,
    seed: u64,
    versions: Arc<Vec<AtomicU64>>,
}

impl Tree {
    /// An empty one.
    pub fn new(root: &Path, seed: u64) -> Self {
        let versions = (0..FILES).map(|_| AtomicU64::new(0)).collect();
        Self {
            root: root.into(),
            seed,
            versions: Arc::new(versions),
        }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.root.join(format!("d{}/f{number}", number % 8))
    }

    fn contents(&self, number: usize, version: u64) -> Vec<u8> {
        let mut random = Random(self.seed ^ ((number as u64) << 40) ^ version);
        let bytes = 1 + random.below(256 << 10) as usize;
        let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
        words.take(bytes).collect()
    }

    /// The next version takes the place of the last: on the disk before this returns.
    fn write(&self, number: usize) -> Result<()> {
        let version = self.versions[number].load(Ordering::Relaxed) + 1;
        let path = self.path(number);
        let directory = path.parent().context("files lie in directories")?;
        create_dir_all(directory)?;
        let fresh = path.with_extension("new");
        let what = || format!("write {}", path.display());
        let mut file = File::create(&fresh).with_context(what)?;
        file.write_all(&self.contents(number, version))
            .with_context(what)?;
        file.sync_all().with_context(what)?;
        std::fs::rename(&fresh, &path).with_context(what)?;
        File::open(directory)?.sync_all().with_context(what)?;
        self.versions[number].store(version, Ordering::Relaxed);
        Ok(())
    }

    /// Compares one with what it must hold, read from the disk; its bytes.
    fn verify(&self, number: usize) -> Result<u64> {
        let version = self.versions[number].load(Ordering::Relaxed);
        if version == 0 {
            return Ok(0);
        }
        let path = self.path(number);
        let what = || format!("read {}", path.display());
        let mut file = File::open(&path).with_context(what)?;
        let advice = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, 0, None, advice)?;
        let mut found = Vec::new();
        file.read_to_end(&mut found).with_context(what)?;
        ensure!(
            found == self.contents(number, version),
            "MISMATCH: {} isn't what was written",
            path.display()
        );
        Ok(found.len() as u64)
    }

    /// All files; how many there are.
    ///
    /// # Errors
    /// One is not what was written.
    pub fn verify_all(&self) -> Result<Work> {
        let mut work = Work::default();
        for number in 0..FILES {
            let bytes = self.verify(number)?;
            work.count += u64::from(bytes > 0);
            work.verified_bytes += bytes;
        }
        Ok(work)
    }
}
