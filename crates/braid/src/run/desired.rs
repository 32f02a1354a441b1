//! What an engine is to be: its configuration, what was chosen by hand, and what discovery tells,
//! each path with its origin.
//!
//! # Contract
//! [`Desired::now`] is what holds at present, [`Desired::reloaded`] the same with another
//! configuration. Both are compared with what runs by [`plan`](super::plan::plan). A volume whose
//! paths the file gives as before keeps those that were added and removed by hand; one whose paths
//! it gives anew gets just these. A path keeps its admin state. Paths that discovery told of stay.
use super::choices::Choices;
use super::config::{Config, PathKeys, Volume};
use super::entries::{AdminState, Origin, PathEntry};
use super::paths::uris;
use super::service::State;
use super::volumes::Running;
use policy::{Knobs, Policy};

/// One path as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// URI and attributes.
    pub config: PathKeys,
    /// Who told of it.
    pub origin: Origin,
    /// Set by hand.
    pub admin: AdminState,
}

/// One volume as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredVolume {
    /// Its keys and exports, with the values of keys that were chosen by hand and still hold.
    pub of: Volume,
    /// The one in force: of the file, or chosen by hand.
    pub policy: Policy,
    /// Those in force.
    pub knobs: Knobs,
    /// In the order in which they are shown.
    pub paths: Vec<PathSpec>,
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
    /// What holds now of one that runs.
    pub fn new(running: &Running) -> Self {
        Self {
            of: running.of.clone(),
            policy: running.policy,
            knobs: running.knobs,
            paths: running.entries().iter().map(PathSpec::from).collect(),
        }
    }

    /// As the file has it. `before`: what it was, and its paths as the file had them then.
    fn of_file(of: Volume, before: Option<(&Self, &[PathKeys])>) -> Self {
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
            policy: of.policy,
            knobs: of.knobs(),
            of,
            paths,
        }
    }
}

impl Desired {
    /// What holds now.
    pub fn now(state: &State) -> Self {
        let volumes = state.volumes.iter();
        Self {
            volumes: volumes.map(|(_, it)| DesiredVolume::new(it)).collect(),
        }
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
        let volume = |of: &Volume| {
            let mut of = of.clone();
            choices.apply_keys(&mut of);
            let before = self.volume(&of.name);
            let before = before.map(|it| (it, old.paths_of(&of.name)));
            let (policy, knobs) = choices.of(&of.name, of.policy, of.knobs());
            DesiredVolume {
                policy,
                knobs,
                ..DesiredVolume::of_file(of, before)
            }
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
