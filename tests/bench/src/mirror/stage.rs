//! The processes under a measurement: targets with shaped ports, and the engine.
use super::super::server::{directory, volume};
use crate::prelude::*;
use std::fs::File;
use std::io::Read as _;

/// Bytes of a leg: braid's own, and a GiB of data.
pub const LEG_BYTES: u64 = (1 << 30) + (1 << 20);

/// A mirror over such legs, and whatever volumes beside it; ended when dropped.
pub struct Stage {
    braid: PathBuf,
    _targets: Vec<Target>,
    engine: Server,
}

impl Stage {
    /// A mirror `m0` with a leg behind a target for each shape of a port, and another
    /// target of the last shape as volume `alone`.
    ///
    /// # Errors
    /// Something does not start, with what it said.
    pub fn shaped(braid: &Path, shapes: &[&str]) -> Result<Self> {
        let directory = directory()?;
        // In memory: behind a file, blocks that were written would be read from the disk of
        // this machine, in its time and not the shape's, and the volume beside has none.
        let backend = format!("mem:{LEG_BYTES}");
        // A leg is nobody else's while the mirror has it: so another one of the same shape.
        let shapes = shapes.iter().chain(shapes.last());
        let start = |shape: &&str| Target::start_backend(braid, &directory, &backend, shape);
        let targets = shapes.map(start).collect::<Result<Vec<Target>>>()?;
        let mut uris: Vec<String> = targets.iter().map(|it| it.uris[0].clone()).collect();
        let alone = uris.pop().context("no shapes")?;
        create(braid, &uris)?;
        Self::start(braid, directory, targets, &uris, Some(alone))
    }

    /// A mirror `m0` over two files that were written once.
    ///
    /// # Errors
    /// Something does not start, with what it said.
    pub fn files(braid: &Path) -> Result<Self> {
        let directory = directory()?;
        let uris = ["leg0.img", "leg1.img"].map(|leg| written(&directory.join(leg)));
        let uris = uris.into_iter().collect::<Result<Vec<String>>>()?;
        create(braid, &uris)?;
        Self::start(braid, directory, Vec::new(), &uris, None)
    }

    fn start(
        braid: &Path,
        directory: PathBuf,
        targets: Vec<Target>,
        legs: &[String],
        alone: Option<String>,
    ) -> Result<Self> {
        let mut config = volume("m0", "leg", legs, &directory);
        if let Some(uri) = alone {
            config += &volume("alone", "path", &[uri], &directory);
        }
        // Until all volumes are there.
        let is_ready = |server: &Server| ask(braid, server, &["check"]).is_ok();
        Ok(Self {
            braid: braid.to_path_buf(),
            engine: Server::braid(braid, "run", directory, &config, is_ready)?,
            _targets: targets,
        })
    }

    /// Asks the engine; what it says.
    ///
    /// # Errors
    /// It refuses, or is gone.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        ask(&self.braid, &self.engine, words)
    }

    /// Where the export of a volume listens.
    pub fn socket(&self, volume: &str) -> PathBuf {
        self.engine.file(volume)
    }

    /// Reads that each leg was given so far.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn reads(&self) -> Result<Vec<f64>> {
        let facts: Value = serde_json::from_str(&self.ask(&["stat", "-o", "json"])?)?;
        let mut volumes = facts["volumes"].as_array().into_iter().flatten();
        let mirror = volumes.find(|it| it["name"] == "m0").context("no m0")?;
        let legs = mirror["legs"].as_array().context("no legs")?;
        legs.iter().map(|leg| number(leg, "reads")).collect()
    }
}

fn ask(braid: &Path, engine: &Server, words: &[&str]) -> Result<String> {
    let mut command = Command::new(braid);
    command.args(words);
    command.arg("--socket").arg(engine.file("control"));
    printed(&mut command)
}

/// Makes a file for a leg, and writes all of it; its URI.
fn written(file: &Path) -> Result<String> {
    let mut made = File::create(file)?;
    std::io::copy(&mut std::io::repeat(0).take(LEG_BYTES), &mut made)?;
    made.sync_all()?;
    Ok(format!("file:{}", file.display()))
}

/// A new mirror on these.
fn create(braid: &Path, legs: &[String]) -> Result<()> {
    let mut command = Command::new(braid);
    command.args(["mirror", "create", "m0"]).args(legs);
    printed(&mut command)?;
    Ok(())
}
