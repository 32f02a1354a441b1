//! The installation, and the files that its engine may have.
use crate::faults::Common;
use crate::faults::engine::{Engine, SHORT};
use crate::faults::plan::Random;
use crate::faults::stage::Stage;
use crate::faults::target::{call, own_state};
use crate::stop;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes of each volume's data, and of a leg.
const VOLUME_BYTES: u64 = 16 << 20;
/// An export over NVMe/TCP.
const NVME: &str = "[[volume.export]]\nnvme = \"127.0.0.1:0\"\n\
                    nqn = \"nqn.2026-01.org.example:change\"\n";
/// Longest wait until an engine is as its file says.
pub const SETTLED: Duration = Duration::from_secs(120);

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The paths of the volume over targets: both, or one of them.
    pub paths: [bool; 2],
    /// It is called `w1`, not `v1`.
    pub renamed: bool,
    /// It and the volume over a file, which is there, have each other's names.
    pub swapped: bool,
    /// The volume over a file is exported over NVMe/TCP too, if it is there.
    pub nvme: bool,
    /// Another policy.
    pub policy: bool,
    /// The volume over a file is there.
    pub file: bool,
    /// It has the export that moves, if it is there.
    pub moved: bool,
    /// The mirror is there.
    pub mirror: bool,
    /// The files of its legs.
    pub legs: Vec<PathBuf>,
}

impl Keys {
    /// The name of the volume over targets.
    pub fn name(&self) -> &'static str {
        match (self.swapped, self.renamed) {
            (true, _) => "v2",
            (false, true) => "w1",
            (false, false) => "v1",
        }
    }

    /// The name of the volume over a file.
    fn file_name(&self) -> &'static str {
        if self.swapped { "v1" } else { "v2" }
    }

    /// The sockets of volumes whose data are written, and the names of these.
    pub fn sockets(&self) -> Vec<(&'static str, &'static str)> {
        let file = self.file.then(|| ("v2", self.file_name()));
        let mirror = self.mirror.then_some(("m0", "m0"));
        let of_targets = Some(("v1", self.name()));
        [of_targets, file, mirror].into_iter().flatten().collect()
    }

    /// The names of all volumes.
    pub fn names(&self) -> Vec<&'static str> {
        let names = self.sockets().into_iter().map(|it| it.1);
        ["q0"].into_iter().chain(names).collect()
    }

    /// Changes one thing; whether it is of the mirror's legs.
    pub fn change(&mut self, random: &mut Random, stage: &Place) -> Result<bool> {
        match random.below(9) {
            0 => {
                let at = random.below(2) as usize;
                self.paths[at] = !self.paths[at] || !self.paths[1 - at];
            }
            1 | 2 => self.renamed = !self.renamed,
            3 => self.policy = !self.policy,
            4 => self.file = !self.file,
            5 => self.moved = !self.moved,
            6 => self.mirror = !self.mirror,
            7 => self.nvme = !self.nvme,
            _ if self.mirror => {
                match self.legs.len() {
                    2 => self.legs.push(stage.new_leg(random)?),
                    _ => drop(self.legs.remove(random.below(3) as usize)),
                }
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }
}

/// Targets and files, and perhaps an engine.
pub struct Place {
    pub stage: Stage,
}

impl Place {
    /// With a mirror of two legs, and the keys of that.
    ///
    /// # Errors
    /// Something can't be made.
    pub fn new(common: &Common, name: &str) -> Result<(Self, Keys)> {
        let bytes = (VOLUME_BYTES, "");
        let stage = Stage::targets(&common.program, name, 2, false, bytes)?;
        let place = Self { stage };
        File::create(place.path("f2"))?.set_len(VOLUME_BYTES)?;
        let legs: Vec<PathBuf> = ["leg-a", "leg-b"].map(|it| place.path(it)).into();
        for leg in &legs {
            File::create(leg)?.set_len(VOLUME_BYTES)?;
        }
        let mut create = Command::new(&common.program);
        own_state(&mut create, &place.stage.directory.0);
        create
            .args(["mirror", "create", "m0"])
            .args(legs.iter().map(|it| uri(it)));
        let output = create.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "mirror create: {said}");
        let keys = Keys {
            paths: [true; 2],
            renamed: false,
            swapped: false,
            nvme: false,
            policy: false,
            file: true,
            moved: false,
            mirror: true,
            legs,
        };
        Ok((place, keys))
    }

    /// A file in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.stage.path(name)
    }

    /// A file that may become a leg.
    fn new_leg(&self, random: &mut Random) -> Result<PathBuf> {
        let path = self.path(&format!("leg-{}", random.below(1 << 20)));
        File::create(&path)?.set_len(VOLUME_BYTES)?;
        Ok(path)
    }

    /// The file of these keys.
    pub fn text(&self, keys: &Keys) -> String {
        let export = |name: &str| {
            let socket = self.path(&format!("{name}.sock"));
            format!("[[volume.export]]\nnbd = \"unix:{}\"\n", socket.display())
        };
        let volume = |name: &str, keys: &str, exports: &str, paths: &[String]| {
            let paths = paths
                .iter()
                .map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
            let paths: String = paths.collect();
            format!("[[volume]]\nname = \"{name}\"\n{keys}{exports}{paths}")
        };
        let all = self.stage.targets.iter().zip(keys.paths);
        let uris: Vec<String> = all.filter(|it| it.1).map(|it| it.0.uri.clone()).collect();
        let policy = match keys.policy {
            true => "policy = \"round-robin\"\nretries = 9\n",
            false => "",
        };
        let extra = export("x");
        let to_file = keys.file && keys.moved;
        let more = |is: bool| if is { extra.as_str() } else { "" };
        let mut text = format!("{}\ncores = 2\n", SHORT.engine);
        text += &volume("q0", "", "", &["mem:1MiB".into()]);
        let of = format!("{policy}quiesce_time = \"500ms\"\n");
        let exports = format!("{}{}", export("v1"), more(!to_file));
        text += &volume(keys.name(), &of, &exports, &uris);
        if keys.file {
            let nvme = if keys.nvme { NVME } else { "" };
            let exports = format!("{}{}{nvme}", export("v2"), more(to_file));
            text += &volume(keys.file_name(), "", &exports, &[uri(&self.path("f2"))]);
        }
        if keys.mirror {
            text += &volume("m0", "kind = \"mirror\"\n", &export("m0"), &[]);
            for leg in &keys.legs {
                text += &format!("[[volume.leg]]\nuri = \"{}\"\n", uri(leg));
            }
        }
        text
    }

    /// The file is replaced at once.
    ///
    /// # Errors
    /// It can't be.
    pub fn write(&self, keys: &Keys) -> Result<()> {
        let new = self.path("engine.toml.new");
        std::fs::write(&new, self.text(keys))?;
        Ok(std::fs::rename(new, self.path("engine.toml"))?)
    }

    /// An engine with these keys, once it is as they say.
    ///
    /// # Errors
    /// It does not start, or is not so.
    pub fn start(&mut self, keys: &Keys) -> Result<()> {
        self.start_only(keys)?;
        self.wait_as(keys)
    }

    /// An engine with these keys, which can be asked.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_only(&mut self, keys: &Keys) -> Result<()> {
        let (program, directory) = (&self.stage.program, &self.stage.directory.0);
        let text = self.text(keys);
        let engine = Engine::start_as(program, directory, &self.stage.net, &text)?;
        self.stage.engine = Some(engine);
        Ok(())
    }

    /// Asks the engine.
    ///
    /// # Errors
    /// It refuses that, or does not answer.
    pub fn ask(&self, method: &str, params: &Value) -> Result<Value> {
        call(&self.path("engine.sock"), method, params)
    }

    /// Waits until the engine has these volumes and paths, all serve, and all legs are in sync.
    ///
    /// # Errors
    /// It has others, or does not serve in time.
    pub fn wait_as(&self, keys: &Keys) -> Result<()> {
        let mut why = String::new();
        let waited = stop::wait("the engine is as its file says", SETTLED, || {
            why = self.difference(keys)?;
            Ok(why.is_empty().then_some(()))
        });
        let log = || {
            self.stage
                .engine
                .as_ref()
                .map_or_else(String::new, Engine::log)
        };
        waited.with_context(|| format!("{why}\n{}", log()))
    }

    /// In what an engine is not as its file says; empty: in nothing.
    fn difference(&self, keys: &Keys) -> Result<String> {
        let stat = self.ask("stat", &json!({}))?;
        let volumes = stat["volumes"].as_array().context("volumes")?;
        let found: Vec<&str> = volumes
            .iter()
            .filter_map(|it| it["name"].as_str())
            .collect();
        let found: Vec<&str> = found.into_iter().filter(|it| !it.contains('/')).collect();
        if found != keys.names() {
            bail!("volumes {found:?} in place of {:?}", keys.names());
        }
        let of = |name: &str| volumes.iter().find(|it| it["name"] == name);
        let targets = of(keys.name()).context("the volume over targets")?;
        let paths = targets["paths"].as_array().context("paths")?;
        let uris: Vec<&str> = paths.iter().filter_map(|it| it["uri"].as_str()).collect();
        let wanted = self.stage.targets.iter().zip(keys.paths);
        let wanted: Vec<&str> = wanted.filter(|it| it.1).map(|it| &*it.0.uri).collect();
        let same = uris.len() == wanted.len() && wanted.iter().all(|it| uris.contains(it));
        if !same {
            bail!("paths {uris:?} in place of {wanted:?}");
        }
        if let Some(mirror) = of("m0") {
            let legs = mirror["legs"].as_array().context("legs")?;
            if legs.len() != keys.legs.len() || !legs.iter().all(|it| it["state"] == "in-sync") {
                self.settle_legs(keys, legs)?;
                return Ok(format!("legs: {legs:?}"));
            }
        }
        let check = self.ask("check", &json!({"volume": null}))?;
        let state = check["state"].as_str().context("state")?;
        Ok(match state {
            "ok" => String::new(),
            state => format!("it is {state}: {check}"),
        })
    }

    /// Files that are no legs yet become legs, and legs that the file has no more none.
    fn settle_legs(&self, keys: &Keys, legs: &[Value]) -> Result<()> {
        for leg in legs {
            let Some(name) = leg["uri"].as_str() else {
                continue;
            };
            // One that is not there is known by its label, which may be the beginning.
            let is_wanted = keys.legs.iter().any(|it| uri(it).starts_with(name));
            let (method, params) = match leg["state"].as_str() {
                Some("unusable") if is_wanted => (
                    "mirror.add",
                    json!({"volume": "m0", "leg": name, "force": true}),
                ),
                Some(_) if !is_wanted => ("mirror.remove", json!({"volume": "m0", "leg": name})),
                _ => continue,
            };
            // One that is just changing is asked for again.
            let _ = self.ask(method, &params);
        }
        Ok(())
    }
}

/// Of a file.
pub fn uri(path: &Path) -> String {
    format!("file:{}", path.display())
}
