//! Choices made by `policy set`, `knob set` and `path`: kept so that they survive a restart.
//!
//! # Contract
//! The record of a volume is replaced whole or not at all. It is found by where the volume leads,
//! whatever the volume is called, and whichever control socket the engine had that kept it: a path
//! that was failed by hand stays failed. A choice wins over the configuration that was there when
//! it was made; a configuration that says something else later, wins.
mod differences;

pub use differences::Difference;

use super::config::{Config, PathKeys, Volume};
use super::desired::{DesiredVolume, PathSpec};
use super::entries::{AdminState, Origin};
use super::live;
use super::paths::uris;
use super::records::{Found, Identity, Kept, Records};
use super::registry::Registry;
use super::rename::Renames;
use super::state;
use crate::log;
use crate::uri::PathUri;
use policy::{Hedging, Knobs, Policy, ProgramId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

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
    /// The configuration's value then.
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
    /// The configuration's value then.
    configured: String,
    chosen: String,
}

/// The paths of a volume, as URIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathChoice {
    /// The configuration's values then.
    configured: Vec<String>,
    /// The chosen values.
    chosen: Vec<String>,
    /// Those that were failed or drained by hand.
    #[serde(default)]
    aside: BTreeMap<String, AdminState>,
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
}

impl Choice {
    /// Settings of a volume that differ from its file. `before`: the choices until now.
    fn of(file: &Volume, now: &DesiredVolume, before: Option<&Self>) -> Self {
        let configured = Setting::of(file);
        let chosen = Setting::of(&now.of);
        let is_set = configured != chosen;
        let (in_file, in_force) = (file.recovery(), now.of.recovery());
        let keys = live::KEYS.iter().map(|key| {
            let values = KeyChoice {
                configured: key.text(&in_file),
                chosen: key.text(&in_force),
            };
            (key.name.to_owned(), values)
        });
        let configured_paths = uris(&file.paths);
        let stays = |it: &&PathSpec| {
            it.origin == Origin::User || file.paths.iter().any(|keys| keys.uri == it.config.uri)
        };
        let chosen_paths = now.paths.iter().filter(stays);
        let paths = PathChoice {
            chosen: chosen_paths.map(|it| it.config.uri.to_string()).collect(),
            configured: configured_paths,
            aside: now.aside(),
        };
        let are_chosen = paths.chosen != paths.configured || !paths.aside.is_empty();
        let mut choice = Self {
            configured: is_set.then_some(configured),
            chosen: is_set.then_some(chosen),
            paths: are_chosen.then_some(paths),
            keys: keys.filter(|(_, it)| it.configured != it.chosen).collect(),
            since: BTreeMap::new(),
        };
        choice.note_since(before);
        choice
    }

    /// See [`Choices::desired`].
    fn desired(&self, file: &Volume) -> DesiredVolume {
        let mut it = DesiredVolume::of_file(file.clone(), None);
        if let Some((policy, knobs)) = self.setting(file) {
            it.of.policy = policy;
            it.of.set_knobs(knobs);
        }
        self.apply_keys(&mut it.of);
        let paths = self.paths.as_ref();
        if let Some(choice) = paths.filter(|it| it.configured == uris(&file.paths)) {
            choice.apply(&mut it);
        }
        it
    }

    /// Policy and knobs, if the file says of them what it said then.
    fn setting(&self, file: &Volume) -> Option<(Policy, Knobs)> {
        let is_same = self.configured == Some(Setting::of(file));
        let chosen = self.chosen.as_ref().filter(|_| is_same)?;
        let knobs = Knobs {
            ewma_shift: chosen.ewma_shift,
            weight_timeout_ns: chosen.weight_timeout_ns,
            hedging: Hedging::parse(&chosen.hedge).ok()?,
        };
        let program = ProgramId::parse(&chosen.policy).map(Policy::Program);
        let policy = program.or_else(|_| Policy::parse(&chosen.policy)).ok()?;
        knobs.check().is_ok().then_some((policy, knobs))
    }

    fn apply_keys(&self, volume: &mut Volume) {
        let recovery = volume.recovery();
        let mut changed = volume.clone();
        for (name, it) in &self.keys {
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

    fn is_empty(&self) -> bool {
        self.chosen.is_none() && self.paths.is_none() && self.keys.is_empty()
    }
}

impl PathChoice {
    fn apply(&self, to: &mut DesiredVolume) {
        let keys = |uri: &String| {
            let mut there = to.of.paths.iter();
            let there = there.find(|keys| keys.uri.to_string() == *uri).cloned();
            there.or_else(|| Some(uri.parse::<PathUri>().ok()?.into()))
        };
        let paths: Vec<PathKeys> = self.chosen.iter().filter_map(keys).collect();
        if !paths.is_empty() {
            to.of.paths = paths;
        }
        to.awaited.clone_from(&self.aside);
        let spec = |keys: &PathKeys| PathSpec {
            admin: to.awaited.remove(&keys.uri.to_string()).unwrap_or_default(),
            ..keys.clone().into()
        };
        to.paths = to.of.paths.iter().map(spec).collect();
    }
}

fn auto() -> String {
    Hedging::Auto.to_string()
}

impl Setting {
    fn of(volume: &Volume) -> Self {
        let knobs = volume.knobs();
        Self {
            policy: volume.policy.to_string(),
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

    /// Where their files are.
    pub fn directory(&self) -> &Path {
        self.records.directory()
    }

    /// Reads what was chosen of the volumes that an engine starts with. Of volumes that its
    /// configuration has no more it is forgotten.
    ///
    /// # Errors
    /// A file of one of them can't be read; others are logged.
    pub fn adopt(&mut self, registry: &Registry, config: &Config) -> anyhow::Result<()> {
        let (identities, mut found) = self.records.read(registry, &config.volumes)?;
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

    /// A volume as its file has it, with those of its choices that hold still: the file says of
    /// them what it said when they were made. None of the keys, if these can't be beside the
    /// others; no path, if none would be left.
    pub fn desired(&self, file: &Volume) -> DesiredVolume {
        let choice = self.map.get(&file.name);
        choice.map_or_else(
            || DesiredVolume::of_file(file.clone(), None),
            |it| it.desired(file),
        )
    }

    /// Keeps what a volume is to be other than its file says.
    ///
    /// # Errors
    /// The file can't be written; nothing has changed then.
    pub fn keep(&mut self, file: &Volume, now: &DesiredVolume) -> anyhow::Result<()> {
        let name = &file.name;
        let choice = Choice::of(file, now, self.map.get(name));
        if choice.is_empty() {
            self.records.remove(name)?;
            self.map.remove(name);
        } else {
            self.records.keep(name, &choice)?;
            self.map.insert(name.clone(), choice);
        }
        Ok(())
    }

    /// Forgets what was chosen of volumes of which a configuration says something else, or nothing:
    /// whoever gives it later what stood there then, gets what stands there.
    pub fn forget_others(&mut self, config: &Config) {
        for volume in &config.volumes {
            self.records.learn(volume);
        }
        let held = config.volumes.iter().filter_map(|file| {
            let before = self.map.get(&file.name)?;
            let choice = Choice::of(file, &self.desired(file), Some(before));
            (!choice.is_empty()).then(|| (file.name.clone(), choice))
        });
        self.map = held.collect();
        if let Err(error) = self.records.keep_all(&self.map) {
            log::say(format!("what was chosen is not forgotten: {error:#}"));
        }
    }

    /// Volumes have other names.
    pub fn rename(&mut self, names: &Renames) {
        names.apply_to_keys(&mut self.map);
        self.records.rename_all(names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    /// Choices for an engine that starts with this configuration.
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

    /// Policy and knobs that hold for the volume of this configuration.
    fn setting(choices: &Choices, of: &Config) -> (Policy, Knobs) {
        let it = choices.desired(&of.volumes[0]);
        (it.of.policy, it.of.knobs())
    }

    /// Chooses this policy for the volume of a configuration.
    fn choose(choices: &mut Choices, of: &Config, policy: Policy) {
        let mut now = choices.desired(&of.volumes[0]);
        now.of.policy = policy;
        choices.keep(&of.volumes[0], &now).unwrap();
    }

    #[test]
    fn a_choice_survives_until_the_configuration_says_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let knobs = Knobs::default();
        let (configured, chosen) = ((Policy::Numa, knobs), (Policy::QueueDepth, knobs));
        let with = |name, policy| config(name, policy, "mem:1MiB");
        let of = with("v0", "policy = \"numa\"\n");
        let mut choices = started(place, &of);
        assert_eq!(setting(&choices, &of), configured);
        choose(&mut choices, &of, Policy::QueueDepth);
        let again = started(place, &of);
        assert_eq!(setting(&again, &of), chosen);
        let other = with("v1", "policy = \"numa\"\n");
        assert_eq!(setting(&again, &other), configured);
        let other = setting(&again, &with("v0", "policy = \"round-robin\"\n"));
        assert_ne!(other.0, Policy::QueueDepth);
        // One that is as the file says is none.
        let mut again = again;
        choose(&mut again, &of, Policy::Numa);
        assert_eq!(again.map, BTreeMap::new());
        assert_eq!(fs::read_dir(place.join("volumes")).unwrap().count(), 0);
        choose(&mut again, &of, Policy::QueueDepth);
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
        let chosen = (Policy::QueueDepth, knobs);
        let config = |name: &str, uri| config(name, "policy = \"numa\"\n", uri);
        let of = config("v0", "file:/srv/a");
        let choose = || choose(&mut started(place, &of), &of, Policy::QueueDepth);
        let holds = |id, name: &str, uri| {
            let of = config(name, uri);
            setting(&started_as(id, place, &of), &of) == chosen
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
        let mut choices = started(place, &first);
        let mut choose = |with: &Config| {
            let mut now = choices.desired(volume);
            now.of.policy = Policy::QueueDepth;
            now.paths[0].admin = AdminState::Failed;
            choices.keep(volume, &now).unwrap();
            choices.forget_others(with);
            let again = started(place, &first).desired(volume);
            (again.of.policy, again.aside().len())
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
            let mut now = choices.desired(&first.volumes[0]);
            now.of = key.set(&now.of, value).unwrap();
            choices.keep(&first.volumes[0], &now).unwrap();
        }
        let of = |choices: &Choices, keys: &str| {
            let recovery = choices.desired(&config(keys).volumes[0]).of.recovery();
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

    /// URIs of these numbers in the file or beside it.
    fn lines(paths: &[u8]) -> String {
        let uri = |it: &u8| format!("nvme-tcp://127.0.0.{it}/nqn.x:v");
        let line = |it: &u8| format!("[[volume.path]]\nuri = \"{}\"\n", uri(it));
        paths.iter().map(line).collect()
    }

    proptest! {
        /// Whatever verbs made of a volume holds after a restart; where the file says something
        /// else of one thing, all others hold.
        #[test]
        fn what_was_chosen_is_desired_again(
            is_policy in any::<bool>(),
            shift in 1_u8..9,
            retries in 0_u8..9,
            paths in proptest::sample::subsequence(vec![1_u8, 2, 3, 4], 1..=4).prop_shuffle(),
            admin in proptest::collection::vec(0_usize..3, 4),
            awaited in any::<bool>(),
        ) {
            let with = |keys: &str, paths: &[u8]| {
                let volume = format!("[[volume]]\nname = \"v0\"\n{keys}");
                parsed(&(volume + &lines(paths))).volumes.remove(0)
            };
            let file = with("policy = \"numa\"\n", &[1, 2]);
            let mut now = DesiredVolume::of_file(file.clone(), None);
            if is_policy {
                now.of.policy = Policy::QueueDepth;
            }
            now.of.ewma_shift = Some(shift);
            let key = live::find("retries").unwrap();
            now.of = key.set(&now.of, &retries.to_string()).unwrap();
            now.of.paths = with("", &paths).paths;
            let states = [AdminState::Enabled, AdminState::Failed, AdminState::Drained];
            let spec = |(keys, admin): (&PathKeys, usize)| PathSpec {
                admin: states[admin],
                ..keys.clone().into()
            };
            now.paths = now.of.paths.iter().zip(admin).map(spec).collect();
            if awaited {
                now.awaited.insert("nvme-tcp://127.0.0.9/nqn.x:v".into(), AdminState::Failed);
            }
            let choice = Choice::of(&file, &now, None);
            let again = choice.desired(&file);
            prop_assert_eq!(Setting::of(&again.of), Setting::of(&now.of));
            prop_assert_eq!(again.of.recovery(), now.of.recovery());
            prop_assert_eq!((&again.paths, &again.awaited), (&now.paths, &now.awaited));
            prop_assert_eq!(uris(&again.of.paths), uris(&now.of.paths));
            // The policy is another one in the file, and its paths and keys are not.
            let other = with("policy = \"round-robin\"\n", &[1, 2]);
            let again = choice.desired(&other);
            prop_assert_eq!(Setting::of(&again.of), Setting::of(&other));
            prop_assert_eq!(again.of.recovery(), now.of.recovery());
            prop_assert_eq!(&again.paths, &now.paths);
            // Its paths are others.
            let other = with("policy = \"numa\"\n", &[1, 5]);
            let again = choice.desired(&other);
            prop_assert_eq!(Setting::of(&again.of), Setting::of(&now.of));
            prop_assert_eq!(uris(&again.of.paths), uris(&other.paths));
            prop_assert!(again.aside().is_empty());
        }
    }

    #[test]
    fn hostile_files_are_passed_over_or_hold_choices_that_can_be() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        fs::create_dir_all(place.join("volumes")).unwrap();
        let path = place.join("volumes/choice-0.json");
        let of = config("v0", "", "mem:1MiB");
        hostile::attack("records", |text| {
            fs::write(&path, text).unwrap();
            let mut choices = started(place, &of);
            let now = choices.desired(&of.volumes[0]);
            assert!(now.of.knobs().check().is_ok());
            choices.keep(&of.volumes[0], &now).unwrap();
            assert_eq!(started(place, &of).map, choices.map);
            for file in fs::read_dir(place.join("volumes")).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        });
    }
}
