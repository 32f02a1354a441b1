//! Desired state of an engine: its configuration, choices by hand, and announcements of discovery,
//! each path with its origin.
//!
//! # Contract
//! A verb edits a volume as it is to be, a reload has all with another configuration
//! ([`Desired::reloaded`]); [`plan`](super::plan::plan) says which changes lead there, and the
//! [reconciler](super::reconcile) carries them out, or takes them back. The state of a volume that
//! is other than its file says is what is kept of it for the next engine
//! ([`Choices`]), which begins with that. A volume whose
//! paths the file gives as before keeps those that were added and removed by hand; one whose paths
//! it gives anew gets just these. A path keeps its admin state. Paths that discovery told of stay.
use super::address::NbdAddress;
use super::choices::Choices;
use super::config::{Config, Export, PathKeys, Volume};
use super::entries::{AdminState, Origin, PathEntry};
use super::paths::uris;
use super::service::State;
use crate::uri::PathUri;
use mirror::machine::Speed;
use policy::Policy;
use std::collections::BTreeMap;

/// One path as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// URI and attributes.
    pub config: PathKeys,
    /// Source of the path.
    pub origin: Origin,
    /// Set by hand.
    pub admin: AdminState,
}

/// One volume as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredVolume {
    /// Its keys and exports, with the policy and the values of keys that are in force: of the file,
    /// or chosen by hand.
    pub of: Volume,
    /// In the order in which they are shown.
    pub paths: Vec<PathSpec>,
    /// Set by hand of paths that discovery may tell of again, by URI.
    pub awaited: BTreeMap<String, AdminState>,
    /// Every volume but a mirror is on.
    pub run: RunState,
    /// `None`: they stay, or it is no mirror that runs.
    pub settings: Option<MirrorSettings>,
}

/// Whether a mirror runs. Set by verb, and not kept for the next engine, which starts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It runs, or is to. One that was stopped starts so.
    On(MirrorStart),
    /// It was told to stop, and has not ended yet. Not to be desired.
    Ending,
    /// Its legs are free, and its exports do not listen.
    Off,
}

/// How a mirror starts that was stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorStart {
    /// Without legs that are missing.
    pub without: bool,
    /// Name of the leg that is given up.
    pub discard: Option<String>,
    /// Whatever name its legs give.
    pub accept: bool,
}

/// Settings of a mirror that runs. Its legs keep them (row B6), but for a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSettings {
    /// The file has none for a mirror.
    pub policy: Policy,
    /// Bounds of copies in the background; `None`: those of the file.
    pub speed: Option<Speed>,
    /// Nothing is copied until that is ended, or the engine is.
    pub is_paused: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorSetting {
    /// [`MirrorSettings::policy`]
    Policy(Policy),
    /// [`MirrorSettings::is_paused`]
    Pause(bool),
    /// [`MirrorSettings::speed`]
    Speed(Option<Speed>),
}

impl MirrorSettings {
    /// Those of a mirror that was told nothing by verb.
    pub fn usual() -> Self {
        Self {
            policy: Policy::Soonest,
            speed: None,
            is_paused: false,
        }
    }

    /// All, in the order in which they are set: bounds do not end a pause.
    pub fn each(&self) -> [MirrorSetting; 3] {
        [
            MirrorSetting::Policy(self.policy),
            MirrorSetting::Pause(self.is_paused),
            MirrorSetting::Speed(self.speed),
        ]
    }
}

impl Default for RunState {
    fn default() -> Self {
        Self::On(MirrorStart::default())
    }
}

/// All volumes as they are to be, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// Mirrors and legs too.
    pub volumes: Vec<DesiredVolume>,
}

impl From<PathKeys> for PathSpec {
    /// One of the file or added by hand, in use.
    fn from(config: PathKeys) -> Self {
        Self {
            config,
            origin: Origin::User,
            admin: AdminState::Enabled,
        }
    }
}

impl From<&PathEntry> for PathSpec {
    fn from(it: &PathEntry) -> Self {
        Self {
            config: it.config().clone(),
            origin: it.origin().clone(),
            admin: it.admin(),
        }
    }
}

impl DesiredVolume {
    /// Present state of a running engine, with its present exports.
    pub fn new(state: &State, number: u16) -> Self {
        let running = &state.volumes[number];
        Self {
            of: Volume {
                exports: state.exports_of(number),
                ..running.of.clone()
            },
            paths: running.entries().iter().map(PathSpec::from).collect(),
            awaited: running.entries().awaited().clone(),
            run: match running.stopped {
                None => RunState::default(),
                Some(_) if state.volumes.legs(&running.of.name).is_empty() => RunState::Off,
                Some(_) => RunState::Ending,
            },
            settings: None,
        }
    }

    /// A mirror that was stopped is to run again.
    ///
    /// # Errors
    /// It was not.
    pub fn start(&mut self, how: MirrorStart) -> Result<(), String> {
        if let RunState::On(_) = self.run {
            return Err(format!("{} was not stopped by verb", self.of.name));
        }
        self.run = RunState::On(how);
        Ok(())
    }

    /// A path more.
    ///
    /// # Errors
    /// It has it.
    pub fn add(&mut self, path: PathSpec) -> Result<(), String> {
        let uri = &path.config.uri;
        if self.paths.iter().any(|it| it.config.uri == *uri) {
            return Err(format!("{uri} is a path of this volume already"));
        }
        self.paths.push(path);
        Ok(())
    }

    /// Whether it has an export at this address.
    pub fn export(&self, nbd: &NbdAddress) -> bool {
        self.of.exports.iter().any(|it| it.nbd == *nbd)
    }

    /// An export more.
    ///
    /// # Errors
    /// It has it.
    pub fn add_export(&mut self, export: Export) -> Result<(), String> {
        // One with any port is another one once it listens.
        if !export.nbd.is_any() && self.export(&export.nbd) {
            return Err(format!(
                "{} is an export of this volume already",
                export.nbd
            ));
        }
        self.of.exports.push(export);
        Ok(())
    }

    /// A path less.
    ///
    /// # Errors
    /// It hasn't it.
    pub fn remove(&mut self, uri: &PathUri) -> Result<(), String> {
        let at = self.paths.iter().position(|it| it.config.uri == *uri);
        let at = at.ok_or_else(|| format!("{uri} has left meanwhile"))?;
        self.paths.remove(at);
        Ok(())
    }

    /// A path that discovery told of joins; set aside, if that was wanted of it when it left.
    pub fn add_found(&mut self, uri: PathUri, by: String) {
        let config = PathKeys::from(uri);
        self.of.paths.push(config.clone());
        self.paths.push(PathSpec {
            admin: self
                .awaited
                .remove(&config.uri.to_string())
                .unwrap_or_default(),
            origin: Origin::Discovery(by),
            config,
        });
    }

    /// Those that came from discovery, and who told of each, by URI.
    pub fn found(&self) -> BTreeMap<String, String> {
        let all = self.paths.iter().filter_map(|it| match &it.origin {
            Origin::Discovery(by) => Some((it.config.uri.to_string(), by.clone())),
            Origin::User => None,
        });
        all.collect()
    }

    /// Settings by hand of paths that are not enabled, by URI.
    pub fn aside(&self) -> BTreeMap<String, AdminState> {
        let mut all = self.awaited.clone();
        let aside = self
            .paths
            .iter()
            .filter(|it| it.admin != AdminState::Enabled);
        all.extend(aside.map(|it| (it.config.uri.to_string(), it.admin)));
        all
    }

    /// As the file has it. `before`: what it was, and its paths as the file had them then.
    pub fn of_file(of: Volume, before: Option<(&Self, &[PathKeys])>) -> Self {
        let there = |keys: &PathKeys| {
            let mut paths = before.into_iter().flat_map(|it| &it.0.paths);
            paths.find(|it| it.config.uri == keys.uri)
        };
        let of_file = |keys: &PathKeys| match there(keys) {
            Some(it) => PathSpec {
                config: keys.clone(),
                ..it.clone()
            },
            None => keys.clone().into(),
        };
        let in_file = |it: &PathSpec| of.paths.iter().find(|keys| keys.uri == it.config.uri);
        let paths = match before {
            Some((before, configured)) if uris(configured) == uris(&of.paths) => {
                let same = before.paths.iter();
                same.map(|it| in_file(it).map_or_else(|| it.clone(), of_file))
                    .collect()
            }
            _ => {
                let found = before.into_iter().flat_map(|it| &it.0.paths);
                let found = found.filter(|it| matches!(it.origin, Origin::Discovery(_)));
                let found = found.filter(|it| in_file(it).is_none()).cloned();
                of.paths.iter().map(of_file).chain(found).collect()
            }
        };
        Self {
            of,
            paths,
            awaited: before.map_or_else(BTreeMap::new, |it| it.0.awaited.clone()),
            run: before.map_or_else(RunState::default, |it| it.0.run.clone()),
            settings: None,
        }
    }
}

impl Desired {
    /// Present state.
    pub fn now(state: &State) -> Self {
        let volumes = state.volumes.iter();
        let volumes = volumes.map(|(number, _)| DesiredVolume::new(state, number));
        Self {
            volumes: volumes.collect(),
        }
    }

    /// State with which an engine begins: its configuration, and the choices for it.
    pub fn at_start(config: &Config, choices: &Choices) -> Self {
        let volumes = config.volumes.iter();
        Self {
            volumes: volumes.map(|file| choices.desired(file)).collect(),
        }
    }

    /// A configuration gets what its volumes are to be.
    pub fn give_to(&self, config: &mut Config) {
        config.volumes = self.volumes.iter().map(|it| it.of.clone()).collect();
    }

    /// Of a configuration alone.
    pub fn of_file(config: &Config) -> Self {
        let volumes = config.volumes.iter();
        let volumes = volumes.map(|of| DesiredVolume::of_file(of.clone(), None));
        Self {
            volumes: volumes.collect(),
        }
    }

    /// With another configuration. `old`: the one before.
    pub fn reloaded(&self, old: &Config, new: &Config, choices: &Choices) -> Self {
        let volume = |file: &Volume| {
            let chosen = choices.desired(file);
            let of = Volume {
                paths: file.paths.clone(),
                ..chosen.of
            };
            let before = self.volume(&file.name);
            let before = before.map(|it| (it, old.paths_of(&file.name)));
            DesiredVolume::of_file(of, before)
        };
        Self {
            volumes: new.volumes.iter().map(volume).collect(),
        }
    }

    /// The legs of a mirror.
    pub fn legs(&self, mirror: &str) -> Vec<Volume> {
        let all = self.volumes.iter().map(|it| &it.of);
        let legs = all.filter(|it| it.leg_of.as_deref() == Some(mirror));
        legs.cloned().collect()
    }

    /// The one of that name.
    pub fn volume(&self, name: &str) -> Option<&DesiredVolume> {
        self.volumes.iter().find(|it| it.of.name == name)
    }
}
