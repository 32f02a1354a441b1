//! The legs of the mirror under test, looked at while nobody has them.
use super::super::nbd::BLOCK;
use super::super::net::Net;
use super::super::target::{Offer, Target};
use super::ledger::{self, Ledger};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the mirror at first: little, so that many rounds can be had.
pub const BYTES: u64 = 4 << 20;
/// Of each file: what stands before the data besides.
const FILE_BYTES: u64 = BYTES + (1 << 20);
/// Bytes of a region: as many regions as a larger mirror has that is written here and there.
pub const REGION_BYTES: u64 = 64 << 10;
/// By so much legs become larger at a time, so often.
const STEP_BYTES: u64 = 256 << 10;
const STEPS: u64 = 16;

/// How often an owner says that it lives, where others may reach the legs: a start takes five and a
/// half of that.
const BEAT: &str = "100ms";
/// So that what a killed engine had sent is soon over: whoever takes its mirror over changes
/// nothing, and reads nothing that may differ, before twice the one and the other have passed.
pub const SOON: [&str; 2] = ["keep_alive_tmo = \"500ms\"", "quiesce_time = \"100ms\""];
/// Bytes of a target's cache: less than is written in a round, so that it has to push out.
const CACHE: &str = "256KiB";

/// Files, one per leg, and who serves them.
pub struct Legs {
    program: PathBuf,
    directory: PathBuf,
    files: Vec<PathBuf>,
    /// Bytes of each of them.
    file_bytes: u64,
    /// So many files were legs so far.
    named: usize,
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
        let mut legs = Self {
            program: program.into(),
            directory: directory.into(),
            files: Vec::new(),
            file_bytes: FILE_BYTES,
            named: 0,
            block_bytes: 0,
            targets: Vec::new(),
        };
        for _ in 0..count {
            let file = legs.new_file()?;
            legs.files.push(file);
        }
        let region = REGION_BYTES.to_string();
        let mut create = legs.command(&["create", "v0", "-o", "json", "--region", &region]);
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

    /// A file as large as the others, of nothing.
    ///
    /// # Errors
    /// It can't be made.
    pub fn new_file(&mut self) -> Result<PathBuf> {
        let path = self.directory.join(format!("leg{}.img", self.named));
        File::create(&path)?.set_len(self.file_bytes)?;
        self.named += 1;
        Ok(path)
    }

    /// This file may be a leg from now on.
    pub fn admit(&mut self, file: PathBuf) {
        self.files.push(file);
    }

    /// That is none any more, and nobody has it.
    ///
    /// # Errors
    /// It can't be deleted.
    pub fn dismiss(&mut self, leg: usize) -> Result<()> {
        let file = self.files.remove(leg);
        std::fs::remove_file(&file).with_context(|| format!("delete {}", file.display()))
    }

    /// Whether they may become still larger.
    pub fn may_grow(&self) -> bool {
        self.file_bytes < FILE_BYTES + STEPS * STEP_BYTES
    }

    /// All files become larger.
    ///
    /// # Errors
    /// One can't.
    pub fn enlarge(&mut self) -> Result<()> {
        self.file_bytes += STEP_BYTES;
        for file in &self.files {
            let file = File::options().write(true).open(file)?;
            file.set_len(self.file_bytes)?;
        }
        Ok(())
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

    /// URIs of the legs, but of `away`.
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
        files.map(|file| uri(file)).collect()
    }

    /// Superblocks of all of them, and their state together.
    ///
    /// # Errors
    /// They can't be read.
    pub fn examine(&self) -> Result<Value> {
        let mut examine = self.command(&["examine", "-o", "json"]);
        let output = examine.args(self.file_uris()).output()?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!(
                "mirror examine: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
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
        let shown = self.examine()?;
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

/// URI of a file.
pub fn uri(file: &Path) -> String {
    format!("file:{}", file.display())
}

fn check_leg(path: &Path, offset: u64, ledgers: &[Ledger]) -> Result<()> {
    let mut bytes = vec![0; ledger::bytes(ledgers) as usize];
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
