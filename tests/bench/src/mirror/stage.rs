//! The processes under a measurement: targets with shaped ports, and the engine.
use super::super::server::directory;
use crate::prelude::*;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

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
        let beside = shapes.last().copied();
        let targets = shapes
            .iter()
            .copied()
            .chain(beside)
            .map(|shape| Target::start_backend(braid, &directory, &backend, shape))
            .collect::<Result<Vec<Target>>>()?;
        let mut uris = Vec::new();
        for target in &targets {
            let uri = target.uris.first().context("the target named no URI")?;
            uris.push(uri.clone());
        }
        let alone = uris.pop().context("no shapes")?;
        create(braid, &uris)?;
        Self::start(braid, directory, targets, &uris, Some(&alone))
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
        alone: Option<&str>,
    ) -> Result<Self> {
        let mut config = String::from("[[volume]]\nname = \"m0\"\nkind = \"mirror\"\n");
        for uri in legs {
            writeln!(config, "[[volume.leg]]\nuri = \"{uri}\"")?;
        }
        let export = |name: &str| directory.join(name).display().to_string();
        writeln!(config, "[[volume.export]]\nnbd = \"unix:{}\"", export("m0"))?;
        if let Some(uri) = alone {
            write!(
                config,
                "[[volume]]\nname = \"alone\"\n[[volume.path]]\nuri = \"{uri}\"\n\
                 [[volume.export]]\nnbd = \"unix:{}\"\n",
                export("alone")
            )?;
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
    let zeroes = vec![0; 1 << 20];
    for _ in 0..LEG_BYTES >> 20 {
        made.write_all(&zeroes)?;
    }
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
