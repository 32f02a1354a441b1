//! The installation: a directory, a network, one target process per way over one file, an engine.
use super::engine::{Engine, Keys};
use super::net::Net;
use super::target::{Offer, Target};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait until all paths are live, with any knobs.
pub const WHOLE: Duration = Duration::from_secs(90);

/// A directory that goes when this is dropped.
pub struct Directory(pub PathBuf);

impl Directory {
    /// A new one; `name` besides ours keeps those of one process apart.
    ///
    /// # Errors
    /// It can't be made.
    pub fn make(name: &str) -> Result<Self> {
        let name = format!("braid-faults-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    /// It stays when this is dropped, for whoever looks into it; where it is.
    pub fn keep(&mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// All of it. Dropped from the top: engine, targets, network, files.
pub struct Stage {
    /// `None` before it is started, and after it was taken.
    pub engine: Option<Engine>,
    /// One for each way.
    pub targets: Vec<Target>,
    /// The ways.
    pub net: Net,
    /// Files.
    pub directory: Directory,
    /// `braid`.
    pub program: PathBuf,
}

impl Stage {
    /// Network and targets, which share one file of `bytes`. `keys`: further ones of the targets.
    ///
    /// # Errors
    /// Something can't be made.
    pub fn targets(
        program: &Path,
        name: &str,
        ways: usize,
        namespaces: bool,
        (bytes, keys): (u64, &str),
    ) -> Result<Self> {
        let directory = Directory::make(name)?;
        let file = directory.0.join("data");
        Self::targets_in(directory, program, ways, namespaces, (&file, bytes, keys))
    }

    /// [`Self::targets`] which share this file.
    ///
    /// # Errors
    /// Something can't be made.
    pub fn targets_on(
        program: &Path,
        name: &str,
        ways: usize,
        namespaces: bool,
        offer: (&Path, u64, &str),
    ) -> Result<Self> {
        let directory = Directory::make(name)?;
        Self::targets_in(directory, program, ways, namespaces, offer)
    }

    fn targets_in(
        directory: Directory,
        program: &Path,
        ways: usize,
        namespaces: bool,
        (file, bytes, keys): (&Path, u64, &str),
    ) -> Result<Self> {
        let net = Net::make(ways, namespaces)?;
        let mut stage = Self {
            engine: None,
            targets: Vec::new(),
            net,
            directory,
            program: program.into(),
        };
        let backend = format!("file:{}", file.display());
        for way in 0..ways {
            let size = bytes.to_string();
            let offer = Offer {
                backend: &backend,
                size: &size,
                keys,
                ..Offer::default()
            };
            let (program, directory) = (&stage.program, &stage.directory.0);
            let target = Target::start(program, directory, &stage.net, way, offer)?;
            stage.targets.push(target);
        }
        Ok(stage)
    }

    /// The engine over all ways, all live. `suffix`: behind each URI.
    ///
    /// # Errors
    /// It doesn't start, or not all paths become live.
    pub fn run(&mut self, keys: Keys, suffix: impl Fn(usize) -> String) -> Result<()> {
        let uris = self.targets.iter().enumerate();
        let uris: Vec<String> = uris
            .map(|(way, target)| format!("{}{}", target.uri, suffix(way)))
            .collect();
        let engine = Engine::start(&self.program, &self.directory.0, &self.net, keys, &uris)?;
        engine.wait_whole(WHOLE)?;
        self.engine = Some(engine);
        Ok(())
    }

    /// The engine.
    ///
    /// # Errors
    /// It was not started.
    pub fn engine(&self) -> Result<&Engine> {
        self.engine.as_ref().context("the engine isn't there")
    }

    /// A file in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }
}
