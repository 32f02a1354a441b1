//! The processes under a measurement: targets with shaped ports, and the engine.
use super::super::nbd::directory;
use super::super::program::{Target, printed};
use crate::process::Group;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes of a leg: braid's own, and a GiB of data.
pub const LEG_BYTES: u64 = (1 << 30) + (1 << 20);
/// Longest wait for the mirror to come up.
const READY: Duration = Duration::from_secs(60);

/// A mirror over such legs, and whatever volumes beside it; ended when dropped.
pub struct Stage {
    braid: PathBuf,
    directory: PathBuf,
    _targets: Vec<Target>,
    engine: Group,
}

impl Stage {
    /// A mirror `m0` with a leg behind a target for each shape of a port, and another
    /// target of the last shape as volume `alone`.
    ///
    /// # Errors
    /// Something does not start, with what it said.
    pub fn shaped(braid: &Path, shapes: &[&str]) -> Result<Self> {
        let (directory, files) = create(braid, shapes.len(), Legs::Holes)?;
        let mut targets = Vec::new();
        let mut config = String::from(MIRROR);
        for (file, shape) in files.iter().zip(shapes) {
            let backend = format!("file:{}", file.display());
            let target = Target::start_backend(braid, &directory, &backend, shape)?;
            let uri = target.uris.first().context("the target named no URI")?;
            writeln!(config, "[[volume.leg]]\nuri = \"{uri}\"")?;
            targets.push(target);
        }
        // A leg is nobody else's while the mirror has it: so another one of the same shape.
        let last = shapes.last().copied().unwrap_or_default();
        let beside = beside(&directory, Legs::Holes)?;
        let target = Target::start_backend(braid, &directory, &beside, last)?;
        let alone = target.uris.first().cloned().unwrap_or_default();
        targets.push(target);
        Self::start(braid, directory, targets, config, &alone)
    }

    /// A mirror `m0` over so many files, and a file of the same size as volume `alone`.
    ///
    /// # Errors
    /// Something does not start, with what it said.
    pub fn files(braid: &Path, legs: usize, kind: Legs) -> Result<Self> {
        let (directory, files) = create(braid, legs, kind)?;
        let mut config = String::from(MIRROR);
        for file in &files {
            writeln!(config, "[[volume.leg]]\nuri = \"file:{}\"", file.display())?;
        }
        let alone = beside(&directory, kind)?;
        Self::start(braid, directory, Vec::new(), config, &alone)
    }

    fn start(
        braid: &Path,
        directory: PathBuf,
        targets: Vec<Target>,
        mut config: String,
        alone: &str,
    ) -> Result<Self> {
        let export = |name: &str| directory.join(name).display().to_string();
        writeln!(config, "[[volume.export]]\nnbd = \"unix:{}\"", export("m0"))?;
        write!(
            config,
            "[[volume]]\nname = \"alone\"\n[[volume.path]]\nuri = \"{alone}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            export("alone")
        )?;
        std::fs::write(directory.join("braid.toml"), config)?;
        let said = File::create(directory.join("engine.log"))?;
        let mut command = Command::new(braid);
        command
            .arg("run")
            .arg("-c")
            .arg(directory.join("braid.toml"));
        command.arg("--socket").arg(directory.join("control"));
        command.env("XDG_STATE_HOME", &directory);
        command
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said);
        let mut stage = Self {
            braid: braid.to_path_buf(),
            engine: Group::spawn(&mut command)?,
            directory,
            _targets: targets,
        };
        stage.wait()?;
        Ok(stage)
    }

    /// Until both volumes are there.
    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while ["m0", "alone"]
            .iter()
            .any(|name| self.ask(&["check", name]).is_err())
        {
            if begun.elapsed() > READY || self.engine.child().try_wait()?.is_some() {
                let log = std::fs::read_to_string(self.directory.join("engine.log"));
                bail!("the mirror does not come up: {}", log.unwrap_or_default());
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Asks the engine; what it says.
    ///
    /// # Errors
    /// It refuses, or is gone.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.braid);
        command
            .args(words)
            .arg("--socket")
            .arg(self.directory.join("control"));
        printed(&mut command)
    }

    /// Where the export of a volume listens.
    pub fn socket(&self, volume: &str) -> PathBuf {
        self.directory.join(volume)
    }

    /// Reads that each leg was given so far.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn reads(&self) -> Result<Vec<f64>> {
        let facts: Value = serde_json::from_str(&self.ask(&["stat", "-o", "json"])?)?;
        let volumes = facts["volumes"].as_array().context("no volumes")?;
        let mirror = volumes
            .iter()
            .find(|it| it["name"] == "m0")
            .context("no m0")?;
        let legs = mirror["legs"].as_array().context("no legs")?;
        let reads = legs
            .iter()
            .map(|leg| leg["reads"].as_f64().context("no reads"));
        reads.collect()
    }

    /// Seconds of a processor that the engine took so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn engine_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.engine.id()))?;
        super::super::cpu_seconds(&stat, super::super::OWN)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const MIRROR: &str = "[[volume]]\nname = \"m0\"\nkind = \"mirror\"\n";

/// What files are before they are used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Legs {
    /// Nothing was ever written: reads ask no disk, a first write also has a place found for it.
    Holes,
    /// Written once.
    Written,
}

impl Legs {
    fn make(self, file: &Path) -> Result<()> {
        let mut made = File::create(file)?;
        if self == Self::Written {
            let zeroes = vec![0; 1 << 20];
            for _ in 0..LEG_BYTES >> 20 {
                made.write_all(&zeroes)?;
            }
            made.sync_all()?;
        }
        made.set_len(LEG_BYTES)
            .with_context(|| file.display().to_string())
    }
}

/// A file of a leg's size, without a mirror.
fn beside(directory: &Path, kind: Legs) -> Result<String> {
    let file = directory.join("alone.img");
    kind.make(&file)?;
    Ok(format!("file:{}", file.display()))
}

/// A mirror on so many new files.
fn create(braid: &Path, legs: usize, kind: Legs) -> Result<(PathBuf, Vec<PathBuf>)> {
    ensure!(legs > 0, "a mirror has legs");
    let directory = directory()?;
    let files: Vec<PathBuf> = (0..legs)
        .map(|leg| directory.join(format!("leg{leg}.img")))
        .collect();
    let mut command = Command::new(braid);
    command.args(["mirror", "create", "m0"]);
    for file in &files {
        kind.make(file)?;
        command.arg(format!("file:{}", file.display()));
    }
    printed(&mut command)?;
    Ok((directory, files))
}
