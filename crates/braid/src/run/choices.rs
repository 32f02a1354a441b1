//! What `policy set`, `knob set` and `path` chose: kept so that it survives a restart.
//!
//! # Contract
//! The record of a volume is replaced whole or not at all. It is found by where the volume leads,
//! whatever the volume is called, and whichever control socket the engine had that kept it: a path
//! that was failed by hand stays failed. A choice wins over the configuration that was there when
//! it was made; a configuration that says something else later, wins.
mod differences;

pub use differences::Difference;

use super::config::{Config, PathKeys, Volume};
use super::entries::AdminState;
use super::live::{self, Key};
use super::paths::uris;
use super::records::{Found, Identity, Kept, Records};
use super::registry::Registry;
use super::rename::Renames;
use super::state;
use crate::log;
use crate::uri::PathUri;
use policy::{Hedging, Knobs, Policy};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All choices, and their files.
pub struct Choices {
    records: Records<Choice>,
    /// By the names of volumes.
    map: BTreeMap<String, Choice>,
}

/// Of one volume, in the words that a user would say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// What the configuration said then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configured: Option<Setting>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chosen: Option<Setting>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paths: Option<PathChoice>,
    /// Of other keys, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    keys: BTreeMap<String, KeyChoice>,
    /// Since when it holds, s after 1970, by [`Difference::what`]. Not in files of older versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    since: BTreeMap<String, u64>,
}

/// The value of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyChoice {
    /// What the configuration said then.
    configured: String,
    chosen: String,
}

/// The paths of a volume, as URIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathChoice {
    /// What the configuration said then.
    pub configured: Vec<String>,
    /// What they are.
    pub chosen: Vec<String>,
    /// Those that were failed or drained by hand.
    #[serde(default)]
    pub aside: BTreeMap<String, AdminState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    policy: String,
    ewma_shift: u8,
    weight_timeout_ns: u64,
    /// Not in files of older versions.
    #[serde(default = "auto")]
    hedge: String,
}

impl Kept for Choice {
    const KIND: &'static str = "choice";
    const OLD: &'static str = "choices";
    const ADVICE: &'static str = "has what was set by verb (remove it to forget choices)";
    const STRICT: bool = false;

    fn tell(&self, of: &mut Identity) {
        let uris = self.paths.iter().flat_map(|it| &it.configured);
        let uris = uris.filter_map(|uri| uri.parse().ok());
        uris.for_each(|uri: PathUri| of.add_path(&uri));
    }

    fn merged(self, _other: Self) -> Self {
        self
    }
}

impl Choice {
    fn is_empty(&self) -> bool {
        self.chosen.is_none() && self.paths.is_none() && self.keys.is_empty()
    }
}

fn auto() -> String {
    Hedging::Auto.to_string()
}

impl Setting {
    fn new(policy: Policy, knobs: Knobs) -> Self {
        Self {
            policy: policy.to_string(),
            ewma_shift: knobs.ewma_shift,
            weight_timeout_ns: knobs.weight_timeout_ns,
            hedge: knobs.hedging.to_string(),
        }
    }
}

impl Choices {
    /// None yet.
    pub fn new(registry: &Registry) -> Self {
        Self {
            records: Records::new(registry),
            map: BTreeMap::new(),
        }
    }

    /// Reads what was chosen of the volumes that an engine starts with. Of volumes that its
    /// configuration has no more it is forgotten.
    ///
    /// # Errors
    /// A file of one of them can't be read; others are logged.
    pub fn adopt(&mut self, registry: &Registry, config: &Config) -> anyhow::Result<()> {
        let volumes = config.volumes.iter();
        let identities: Vec<Identity> = volumes.map(|it| self.records.learn(it)).collect();
        let mut found = self.records.read(registry, &identities)?;
        found.retain(|it| registry.names_of(&it.record.of.engine).is_none());
        for now in &identities {
            let rank = |it: &Found<Choice>| {
                let of = &it.record.of;
                (of.has_name_of(now), of.volume == now.volume)
            };
            let its = (0..found.len()).filter(|at| found[*at].record.of.is(now));
            let Some(best) = its.max_by_key(|at| rank(&found[*at])) else {
                continue;
            };
            let Found { path, record } = found.remove(best);
            self.map.insert(now.volume.clone(), record.holds.clone());
            if let Some(path) = path {
                self.records.claim(&now.volume, path, record);
            }
        }
        found.retain(|it| it.record.of.engine == registry.id());
        let mut over = found.into_iter().filter_map(|it| it.path);
        if let Err(error) = over.try_for_each(|path| state::remove(&path)) {
            log::say(format!("what was chosen is not forgotten: {error:#}"));
        }
        Ok(())
    }

    /// What holds for a volume that is configured so.
    pub fn of(&self, volume: &str, policy: Policy, knobs: Knobs) -> (Policy, Knobs) {
        let chosen = self.map.get(volume).and_then(|choice| {
            let same = choice.configured == Some(Setting::new(policy, knobs));
            let chosen = choice.chosen.as_ref()?;
            let knobs = Knobs {
                ewma_shift: chosen.ewma_shift,
                weight_timeout_ns: chosen.weight_timeout_ns,
                hedging: Hedging::parse(&chosen.hedge).ok()?,
            };
            let policy = Policy::parse(&chosen.policy).ok()?;
            (same && knobs.check().is_ok()).then_some((policy, knobs))
        });
        chosen.unwrap_or((policy, knobs))
    }

    /// Keeps a choice.
    ///
    /// # Errors
    /// The file can't be written; nothing has changed then.
    pub fn keep(
        &mut self,
        volume: &str,
        configured: (Policy, Knobs),
        chosen: (Policy, Knobs),
    ) -> anyhow::Result<()> {
        let mut choice = self.map.get(volume).cloned().unwrap_or_default();
        choice.configured = Some(Setting::new(configured.0, configured.1));
        choice.chosen = Some(Setting::new(chosen.0, chosen.1));
        self.keep_choice(volume, choice)
    }

    /// Keeps the value of a key, of a volume that is configured so.
    ///
    /// # Errors
    /// The file can't be written; nothing has changed then.
    pub fn keep_key(
        &mut self,
        configured: &Volume,
        key: &Key,
        chosen: &Volume,
    ) -> anyhow::Result<()> {
        let name = &configured.name;
        let mut choice = self.map.get(name).cloned().unwrap_or_default();
        let values = KeyChoice {
            configured: key.text(&configured.recovery()),
            chosen: key.text(&chosen.recovery()),
        };
        choice.keys.insert(key.name.to_owned(), values);
        self.keep_choice(name, choice)
    }

    /// Gives a volume that is as configured the values that were chosen for keys of which the
    /// configuration says what it said then; none of them, if these can't be beside the others.
    pub fn apply_keys(&self, volume: &mut Volume) {
        let Some(choice) = self.map.get(&volume.name) else {
            return;
        };
        let recovery = volume.recovery();
        let mut changed = volume.clone();
        for (name, it) in &choice.keys {
            let key = live::find(name);
            let key = key.ok().filter(|key| key.text(&recovery) == it.configured);
            if let Some((key, chosen)) =
                key.and_then(|key| Some((key, key.parse(&it.chosen).ok()?)))
            {
                (key.take)(&mut changed, &chosen);
            }
        }
        if changed.check_times().is_ok() {
            *volume = changed;
        }
    }

    /// What was chosen of a volume's paths, if the configuration says of them what it said then.
    fn paths(&self, volume: &Volume) -> Option<&PathChoice> {
        let choice = self.map.get(&volume.name)?.paths.as_ref()?;
        (choice.configured == uris(&volume.paths)).then_some(choice)
    }

    /// Gives all volumes the paths that were chosen, where any are left.
    pub fn apply_paths(&self, config: &mut Config) {
        for volume in &mut config.volumes {
            let Some(choice) = self.paths(volume) else {
                continue;
            };
            let configured = |uri: &String| {
                let keys = volume
                    .paths
                    .iter()
                    .find(|keys| keys.uri.to_string() == *uri);
                keys.cloned()
                    .or_else(|| Some(uri.parse::<PathUri>().ok()?.into()))
            };
            let paths: Vec<PathKeys> = choice.chosen.iter().filter_map(configured).collect();
            if !paths.is_empty() {
                volume.paths = paths;
            }
        }
    }

    /// The paths of `volume` that were failed or drained by hand.
    pub fn aside(&self, volume: &Volume, configured: &Config) -> BTreeMap<String, AdminState> {
        let mut all = configured.volumes.iter();
        let of = all.find(|it| it.name == volume.name);
        let choice = of.and_then(|volume| self.paths(volume));
        choice
            .map(|choice| choice.aside.clone())
            .unwrap_or_default()
    }

    /// Keeps what was chosen of a volume's paths.
    ///
    /// # Errors
    /// The file can't be written; nothing has changed then.
    pub fn keep_paths(&mut self, volume: &str, paths: PathChoice) -> anyhow::Result<()> {
        let mut choice = self.map.get(volume).cloned().unwrap_or_default();
        choice.paths = Some(paths);
        self.keep_choice(volume, choice)
    }

    /// Forgets what was chosen of volumes of which a configuration says something else, or nothing:
    /// whoever gives it later what stood there then, gets what stands there.
    pub fn forget_others(&mut self, config: &Config) {
        for volume in &config.volumes {
            self.records.learn(volume);
        }
        self.map.retain(|name, choice| {
            let Some(volume) = config.volume(name) else {
                return false;
            };
            let setting = Setting::new(volume.policy, volume.knobs());
            choice.configured.take_if(|then| *then != setting);
            if choice.configured.is_none() {
                choice.chosen = None;
            }
            let paths = uris(&volume.paths);
            choice.paths.take_if(|of| of.configured != paths);
            let recovery = volume.recovery();
            choice.keys.retain(|name, it| {
                live::find(name).is_ok_and(|key| key.text(&recovery) == it.configured)
            });
            !choice.is_empty()
        });
        if let Err(error) = self.write() {
            log::say(format!("what was chosen is not forgotten: {error:#}"));
        }
    }

    /// Volumes have other names.
    pub fn rename(&mut self, names: &Renames) {
        names.apply_to_keys(&mut self.map);
        self.records.rename_all(names);
    }

    fn write(&mut self) -> anyhow::Result<()> {
        for (name, choice) in &self.map {
            self.records.keep(name, choice)?;
        }
        let mut over = self.records.names();
        over.retain(|name| !self.map.contains_key(name));
        over.iter().try_for_each(|name| self.records.remove(name))
    }

    fn keep_choice(&mut self, volume: &str, mut choice: Choice) -> anyhow::Result<()> {
        choice.note_since(self.map.get(volume));
        self.records.keep(volume, &choice)?;
        self.map.insert(volume.to_owned(), choice);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;
    use std::fs;
    use std::path::Path;

    /// What was chosen, for an engine that starts with this configuration.
    fn started(directory: &Path, config: &Config) -> Choices {
        started_as("a", directory, config)
    }

    fn started_as(id: &str, directory: &Path, config: &Config) -> Choices {
        let registry = Registry::new(directory.to_owned(), id.to_owned(), &directory.join(id));
        let mut choices = Choices::new(&registry);
        choices.adopt(&registry, config).unwrap();
        choices
    }

    fn config(name: &str, keys: &str, uri: &str) -> Config {
        parsed(&format!(
            "[[volume]]\nname = \"{name}\"\n{keys}[[volume.path]]\nuri = \"{uri}\"\n"
        ))
    }

    #[test]
    fn a_choice_survives_until_the_configuration_says_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let knobs = Knobs::default();
        let (configured, chosen) = ((Policy::Numa, knobs), (Policy::QueueDepth, knobs));
        let of = config("v0", "", "mem:1MiB");
        let mut choices = started(place, &of);
        assert_eq!(choices.of("v0", Policy::Numa, knobs), configured);
        choices.keep("v0", configured, chosen).unwrap();
        let again = started(place, &of);
        assert_eq!(again.of("v0", Policy::Numa, knobs), chosen);
        assert_eq!(again.of("v1", Policy::Numa, knobs), configured);
        let other = again.of("v0", Policy::WEIGHTED_LATENCY, knobs);
        assert_eq!(other.0, Policy::WEIGHTED_LATENCY);
        let file = fs::read_dir(place.join("volumes")).unwrap().next();
        fs::write(file.unwrap().unwrap().path(), "{\"v0\": 1}").unwrap();
        let registry = Registry::new(place.to_owned(), "a".to_owned(), place);
        assert!(Choices::new(&registry).adopt(&registry, &of).is_err());
    }

    /// By where a volume leads, and never by its name.
    #[test]
    fn choices_follow_a_volume_and_no_other_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let knobs = Knobs::default();
        let (configured, chosen) = ((Policy::Numa, knobs), (Policy::QueueDepth, knobs));
        let of = config("v0", "", "file:/srv/a");
        let choose = || {
            let mut choices = started(place, &of);
            choices.keep("v0", configured, chosen).unwrap();
        };
        let holds = |id, name: &str, uri| {
            let choices = started_as(id, place, &config(name, "", uri));
            choices.of(name, Policy::Numa, knobs) == chosen
        };
        choose();
        assert!(!holds("b", "v0", "file:/srv/b"), "another volume");
        assert!(holds("b", "w0", "file:/srv/a"), "renamed, elsewhere");
        assert!(holds("a", "v0", "file:/srv/a"));
        assert!(!holds("a", "v0", "file:/srv/b"), "another volume");
        assert!(
            !holds("a", "v0", "file:/srv/a"),
            "forgotten, as it was gone"
        );
        choose();
        assert!(holds("a", "w0", "file:/srv/a?distance=3"));
    }

    #[test]
    fn a_configuration_that_comes_back_does_not_bring_back_what_was_chosen_before() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let config =
            |policy: &str, uri: &str| config("v0", &format!("policy = \"{policy}\"\n"), uri);
        let first = config("numa", "mem:1MiB");
        let volume = &first.volumes[0];
        let knobs = volume.knobs();
        let chosen = (Policy::QueueDepth, knobs);
        let aside = |choices: &Choices| choices.aside(volume, &first).len();
        let mut choices = started(place, &first);
        let mut choose = |with: &Config| {
            choices.keep("v0", (Policy::Numa, knobs), chosen).unwrap();
            let of_paths = PathChoice {
                configured: uris(&volume.paths),
                chosen: uris(&volume.paths),
                aside: BTreeMap::from([("mem:1MiB".to_owned(), AdminState::Failed)]),
            };
            choices.keep_paths("v0", of_paths).unwrap();
            choices.forget_others(with);
            let again = started(place, &first);
            let policy = again.of("v0", Policy::Numa, knobs).0;
            (policy, aside(&again))
        };
        assert_eq!(choose(&first), (Policy::QueueDepth, 1), "it still holds");
        let policy_only = choose(&config("round-robin", "mem:1MiB"));
        assert_eq!(policy_only, (Policy::Numa, 1));
        let paths_only = choose(&config("numa", "mem:2MiB"));
        assert_eq!(paths_only, (Policy::QueueDepth, 0));
    }

    #[test]
    fn a_key_that_was_chosen_holds_until_the_file_says_something_else_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let config = |keys: &str| config("v0", keys, "mem:1MiB");
        let first = config("retries = 7\n");
        let mut choices = started(place, &first);
        for (name, value) in [("ctrl_loss_tmo", "60s"), ("reconnect_delay", "30s")] {
            let key = live::find(name).unwrap();
            let chosen = key.set(&first.volumes[0], value).unwrap();
            choices.keep_key(&first.volumes[0], key, &chosen).unwrap();
        }
        let of = |choices: &Choices, keys: &str| {
            let mut volume = config(keys).volumes.remove(0);
            choices.apply_keys(&mut volume);
            let recovery = volume.recovery();
            [recovery.ctrl_loss_ns, recovery.reconnect_max_ns].map(|ns| ns / 1_000_000_000)
        };
        let again = started(place, &first);
        assert_eq!(of(&again, "retries = 6\n"), [60, 30]);
        assert_eq!(of(&again, "ctrl_loss_tmo = \"5s\"\n"), [5, 30]);
        let beside = "reconnect_delay = \"50s\"\nreconnect_delay_min = \"40s\"\n";
        assert_eq!(of(&again, beside), [60, 50]);
        choices.forget_others(&config("ctrl_loss_tmo = \"5s\"\n"));
        let again = started(place, &first);
        assert_eq!(of(&again, ""), [600, 30], "forgotten for good");
    }

    #[test]
    fn hostile_files_are_passed_over_or_hold_choices_that_can_be() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        fs::create_dir_all(place.join("volumes")).unwrap();
        let path = place.join("volumes/choice-0.json");
        let of = config("v0", "", "mem:1MiB");
        let knobs = Knobs::default();
        hostile::attack("records", |text| {
            fs::write(&path, text).unwrap();
            let mut choices = started(place, &of);
            let (policy, knobs) = choices.of("v0", Policy::QueueDepth, knobs);
            assert!(knobs.check().is_ok());
            choices
                .keep("v0", (policy, knobs), (policy, knobs))
                .unwrap();
            assert_eq!(started(place, &of).map, choices.map);
            for file in fs::read_dir(place.join("volumes")).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        });
    }
}
