//! The legs of the mirror under test, looked at while nobody has them.
use super::super::nbd::BLOCK;
use super::super::net::Net;
use super::super::target::{Offer, Target};
use super::ledger::Ledger;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the mirror: little, so that many rounds can be had.
pub const BYTES: u64 = 4 << 20;
/// Of each file: what stands before the data besides.
const FILE_BYTES: u64 = BYTES + (1 << 20);
/// Bytes of a region: as many regions as a larger mirror has that is written here and there.
const REGION: &str = "64KiB";

/// How often an owner says that it lives, where others may reach the legs: a start takes four.
const BEAT: &str = "20ms";
/// Bytes of a target's cache: less than is written in a round, so that it has to push out.
const CACHE: &str = "256KiB";

/// Files, one per leg, and who serves them.
pub struct Legs {
    program: PathBuf,
    files: Vec<PathBuf>,
    block_bytes: u64,
    /// One for each; none: the engine has the files themselves.
    targets: Vec<Target>,
}

impl Legs {
    /// A new mirror over so many.
    ///
    /// # Errors
    /// It can't be made, with what was said.
    pub fn create(program: &Path, directory: &Path, count: usize, beats: bool) -> Result<Self> {
        let files = (0..count).map(|number| directory.join(format!("leg{number}.img")));
        let mut legs = Self {
            program: program.into(),
            files: files.collect(),
            block_bytes: 0,
            targets: Vec::new(),
        };
        for file in &legs.files {
            File::create(file)?.set_len(FILE_BYTES)?;
        }
        let mut create = legs.command(&["create", "v0", "-o", "json", "--region", REGION]);
        if beats {
            create.args(["--beat-interval", BEAT]);
        }
        let output = create.args(legs.file_uris()).output()?;
        if !output.status.success() {
            bail!("mirror create: {}", String::from_utf8_lossy(&output.stderr));
        }
        let made: Value = serde_json::from_slice(&output.stdout)?;
        legs.block_bytes = made["block_bytes"].as_u64().context("block_bytes")?;
        Ok(legs)
    }

    /// From now on a target stands before each file, with a cache that it loses when it is killed.
    ///
    /// # Errors
    /// One doesn't listen.
    pub fn put_on_targets(&mut self, directory: &Path, net: &Net) -> Result<()> {
        let size = FILE_BYTES.to_string();
        let block = self.block_bytes;
        for (way, file) in self.files.iter().enumerate() {
            let offer = Offer {
                backend: &format!("file:{}", file.display()),
                size: &size,
                keys: "",
                namespace: &format!("block_size = {block}\nvolatile_cache = \"{CACHE}\""),
                name: &format!(":leg{way}"),
            };
            let mut target = Target::start(&self.program, directory, net, way, offer)?;
            target.kill();
            self.targets.push(target);
        }
        Ok(())
    }

    /// Whether targets serve them.
    pub fn on_targets(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Starts their targets, but that of `away`; those that are there stay.
    ///
    /// # Errors
    /// One doesn't listen.
    pub fn start(&mut self, net: &Net, away: Option<usize>) -> Result<()> {
        let there = self.targets.iter_mut().enumerate();
        for (_, target) in there.filter(|(number, target)| Some(*number) != away && !target.runs())
        {
            target.restart(net)?;
        }
        Ok(())
    }

    /// Kills the target of one: what is in its cache is lost.
    pub fn kill(&mut self, leg: usize) {
        self.targets
            .iter_mut()
            .skip(leg)
            .take(1)
            .for_each(Target::kill);
    }

    /// Kills all.
    pub fn kill_all(&mut self) {
        self.targets.iter_mut().for_each(Target::kill);
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// All of them.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// What leads the engine to them, but to `away`.
    pub fn uris(&self, away: Option<usize>) -> Vec<String> {
        let uris = match self.targets.is_empty() {
            true => self.file_uris(),
            false => self.targets.iter().map(|it| it.uri.clone()).collect(),
        };
        let there = uris.into_iter().enumerate();
        let there = there.filter(|(number, _)| Some(*number) != away);
        there.map(|(_, uri)| uri).collect()
    }

    fn file_uris(&self) -> Vec<String> {
        let files = self.files.iter();
        files
            .map(|file| format!("file:{}", file.display()))
            .collect()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("mirror").args(words);
        command
    }

    /// Every leg that an assembly of all of them would call in sync has what was acknowledged, or
    /// what was under way; the numbers of those, each with whether it says so itself: one that has
    /// just been rebuilt is told last.
    ///
    /// # Errors
    /// One hasn't, or they are no mirror.
    pub fn check(&self, ledgers: &[Ledger]) -> Result<Vec<(usize, bool)>> {
        let mut examine = self.command(&["examine", "-o", "json"]);
        let output = examine.args(self.file_uris()).output()?;
        let shown: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            format!(
                "mirror examine: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })?;
        let legs = shown["legs"].as_array().context("legs")?;
        let roles = &shown["together"]["roles"];
        let mut checked = Vec::new();
        for (number, leg) in legs.iter().enumerate() {
            if roles[number]["role"] != "in-sync" {
                continue;
            }
            let offset = leg["data_offset"].as_u64();
            let offset = offset.with_context(|| format!("leg {number} is none: {leg}"))?;
            check_leg(&self.files[number], offset, ledgers)
                .with_context(|| format!("leg {number} by itself, which is in sync"))?;
            let slot = leg["slot"].as_u64();
            let mut says = leg["mirror"]["legs"].as_array().into_iter().flatten();
            let own = says.find(|entry| entry["slot"].as_u64() == slot);
            checked.push((number, own.is_some_and(|own| own["state"] == "in-sync")));
        }
        if checked.is_empty() {
            bail!("no leg is in sync: {}", shown["together"]);
        }
        Ok(checked)
    }
}

fn check_leg(path: &Path, offset: u64, ledgers: &[Ledger]) -> Result<()> {
    let mut bytes = vec![0; BYTES as usize];
    File::open(path)?.read_exact_at(&mut bytes, offset)?;
    check_bytes(&bytes, ledgers)
}

/// These are bytes that the mirror may have after a kill.
///
/// # Errors
/// The first block that may not be so.
pub fn check_bytes(bytes: &[u8], ledgers: &[Ledger]) -> Result<()> {
    for ledger in ledgers {
        for at in 0..ledger.count() {
            let from = ledger.offset(at) as usize;
            ledger.check(at, &bytes[from..from + BLOCK])?;
        }
    }
    Ok(())
}
