//! Which changes make an engine what its configuration file says, and in which order: a pure
//! function of both.
//!
//! # Contract
//! [`plan`] has first what can fail: volumes open, paths join, paths leave, of which those that
//! are in use leave first, since others may not connect again. Each of these steps can be taken
//! back ([`Change::undo`]), so a plan that is carried out in order, and taken back in reverse where
//! a step fails, ends with the engine as desired or as it was. What can't fail comes last. A
//! volume whose paths the file gives as before keeps what was added and removed by verb, and what
//! discovery told of is never removed.
use super::config::{PathKeys, Volume};
use super::entries::PathEntry;
use super::live;
use super::paths::uris;
use super::volumes::Running;
use std::fmt;

/// One path of a volume that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualPath {
    /// URI and attributes.
    pub config: PathKeys,
    /// It came from discovery.
    pub is_found: bool,
    /// How the engine has it.
    pub presence: Presence,
}

/// How an engine has a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is in use.
    Live,
    /// It is not in use.
    Down,
    /// It was not there since the start.
    Absent,
}

/// One volume that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ActualVolume {
    /// Its keys in force, but for policy and knobs that a verb has chosen.
    pub of: Volume,
    /// URIs of its paths as the file had them when it was read last.
    pub configured: Vec<String>,
    /// In the order in which they are shown.
    pub paths: Vec<ActualPath>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A volume opens with its paths.
    OpenVolume(String),
    /// A path joins a volume.
    AddPath(String, PathKeys),
    /// A path that the engine has leaves a volume.
    RemovePath(String, PathKeys),
    /// A path that was not there since the start is not looked for any more.
    ForgetPath(String, PathKeys),
    /// Another policy, or other knobs of it.
    SetPolicy(String, String),
    /// Another relative throughput of a path.
    SetThroughput(String, PathKeys),
    /// Other values of keys, in words.
    SetKeys(String, Vec<String>),
    /// A volume leaves.
    CloseVolume(String),
}

impl Change {
    /// Whether it may fail, and has to be taken back where a later step does.
    pub fn can_fail(&self) -> bool {
        matches!(
            self,
            Self::OpenVolume(_) | Self::AddPath(..) | Self::RemovePath(..)
        )
    }

    /// The change that takes it back; `None`: it can't fail.
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::OpenVolume(volume) => Some(Self::CloseVolume(volume.clone())),
            Self::AddPath(volume, path) => Some(Self::RemovePath(volume.clone(), path.clone())),
            Self::RemovePath(volume, path) => Some(Self::AddPath(volume.clone(), path.clone())),
            _ => None,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenVolume(volume) => write!(f, "add volume {volume}"),
            Self::AddPath(volume, path) => write!(f, "{volume}: add path {}", path.uri),
            Self::RemovePath(volume, path) | Self::ForgetPath(volume, path) => {
                write!(f, "{volume}: remove path {}", path.uri)
            }
            Self::SetPolicy(volume, policy) => write!(f, "{volume}: set policy {policy}"),
            Self::SetThroughput(volume, path) => {
                let (uri, throughput) = (&path.uri, path.throughput);
                write!(f, "{volume}: set throughput {throughput} of {uri}")
            }
            Self::SetKeys(volume, keys) => write!(f, "{volume}: set {}", keys.join(", ")),
            Self::CloseVolume(volume) => write!(f, "remove volume {volume}"),
        }
    }
}

impl ActualVolume {
    /// As it runs. `presence`: how the engine has each of its paths.
    pub fn of(
        running: &Running,
        configured: &[PathKeys],
        presence: impl Fn(&PathEntry) -> Presence,
    ) -> Self {
        let path = |it: &PathEntry| ActualPath {
            config: it.config().clone(),
            is_found: it.is_found(),
            presence: presence(it),
        };
        Self {
            of: running.of.clone(),
            configured: uris(configured),
            paths: running.entries().iter().map(path).collect(),
        }
    }

    fn has(&self, path: &PathKeys) -> bool {
        self.paths.iter().any(|it| it.config.uri == path.uri)
    }

    /// Steps that may fail, then the others, until it is as desired.
    fn plan(&self, wanted: &Volume, changes: &mut [Vec<Change>; 4]) {
        let [_, add, remove, rest] = changes;
        let name = || wanted.name.clone();
        if self.configured != uris(&wanted.paths) {
            let missing = wanted.paths.iter().filter(|it| !self.has(it));
            add.extend(missing.map(|it| Change::AddPath(name(), it.clone())));
            let is_wanted = |it: &ActualPath| {
                let mut wanted = wanted.paths.iter();
                it.is_found || wanted.any(|keys| keys.uri == it.config.uri)
            };
            for it in self.paths.iter().filter(|it| !is_wanted(it)) {
                match it.presence {
                    Presence::Absent => rest.push(Change::ForgetPath(name(), it.config.clone())),
                    _ => remove.push(Change::RemovePath(name(), it.config.clone())),
                }
            }
        }
        if (self.of.policy, self.of.knobs()) != (wanted.policy, wanted.knobs()) {
            rest.push(Change::SetPolicy(name(), wanted.policy.to_string()));
        }
        for keys in &wanted.paths {
            let is_it = |it: &&ActualPath| it.config.uri == keys.uri;
            let there = self.paths.iter().find(is_it);
            if there.is_some_and(|it| it.config.throughput != keys.throughput) {
                rest.push(Change::SetThroughput(name(), keys.clone()));
            }
        }
        let keys = live::changed(&self.of.recovery(), &wanted.recovery());
        if !keys.is_empty() {
            rest.push(Change::SetKeys(name(), keys));
        }
    }

    fn is_live(&self, path: &PathKeys) -> bool {
        let mut paths = self.paths.iter();
        paths.any(|it| it.config.uri == path.uri && it.presence == Presence::Live)
    }
}

/// Returns the steps in their order. `wanted`: the volumes of the file, with the values of keys
/// that were chosen by verb and still hold.
pub fn plan(wanted: &[Volume], actual: &[ActualVolume]) -> Vec<Change> {
    let mut changes = [const { Vec::new() }; 4];
    let named = |name: &str| actual.iter().find(|it| it.of.name == name);
    for volume in wanted {
        match named(&volume.name) {
            Some(there) => there.plan(volume, &mut changes),
            None => changes[0].push(Change::OpenVolume(volume.name.clone())),
        }
    }
    let [open, add, mut remove, rest] = changes;
    remove.sort_by_key(|change| match change {
        Change::RemovePath(volume, path) => !named(volume).is_some_and(|it| it.is_live(path)),
        _ => unreachable!("{change}: it is no removal"),
    });
    let gone = actual.iter().map(|it| &it.of.name);
    let gone = gone.filter(|name| !wanted.iter().any(|it| it.name == **name));
    let gone = gone.map(|name| Change::CloseVolume(name.clone()));
    let changes = open.into_iter().chain(add).chain(remove);
    changes.chain(rest).chain(gone).collect()
}

#[cfg(test)]
mod tests;
