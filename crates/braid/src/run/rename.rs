//! Volumes that have other names in the file than they run with.
//!
//! # Contract
//! A volume of the file is one that runs if both lead to the same namespace, file or queue
//! ([`Identity`]), or `uuid` or `nguid` name the namespace that it shows; its own name comes first.
//! So volumes may swap names. A renamed volume keeps its number, paths and clients, and what is
//! kept of it follows it: records are found by where a volume leads, and have its name inside only.
//!
//! # Limits
//! A namespace over NVMe/TCP whose `uuid` or `nguid` derives from the name is another one for hosts
//! under the new name. Memory is known by the name of its volume: under another name it is another
//! one. A mirror has its name on its legs too, and keeps it while the engine runs.
use super::config::{Config, Subsystem, Volume};
use super::records::Identity;
use super::service::{Service, State};
use super::volumes::{Running, Volumes};
use crate::log;
use anyhow::bail;
use std::collections::BTreeMap;

/// Names before, each with the one after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renames(BTreeMap<String, String>);

impl Renames {
    /// Those that a file asks of an engine.
    ///
    /// # Errors
    /// A name is another volume's, which is no renamed one; or the volume is a mirror.
    pub fn new(volumes: &Volumes, configured: &Config, new: &Config) -> anyhow::Result<Self> {
        // All are of one engine, whichever.
        let identity = |of: &Volume| Identity::of(of, "");
        let is_one = |it: &&Volume| it.leg_of.is_none();
        let running = || volumes.iter().map(|(_, it)| it);
        let running = || running().filter(|it| is_one(&&it.of));
        let leads = |it: &Running| {
            let mut all = identity(&it.of);
            if let Some(file) = configured.volume(&it.of.name) {
                all.add_all(&identity(file));
            }
            all
        };
        let same = |it: &Running, of: &Volume| {
            let shown = it.shown.as_ref();
            let is_shown = shown.is_some_and(|shown| {
                let is = |pin: Option<_>, shown| pin == Some(shown);
                is(of.uuid.map(|it| it.0), shown.uuid) || is(of.nguid.map(|it| it.0), shown.nguid)
            });
            is_shown || leads(it).is(&identity(of))
        };
        let stays = |it: &Running| new.volume(&it.of.name).is_some_and(|of| same(it, of));
        let mut names = BTreeMap::new();
        for of in new.volumes.iter().filter(is_one) {
            let mut all = running().filter(|it| same(it, of));
            if let (Some(it), None) = (all.next(), all.next())
                && !stays(it)
            {
                names.insert(it.of.name.clone(), of.name.clone());
            }
        }
        // Of one that two volumes would be, neither is it.
        let count = |to: &Volume| running().filter(|it| same(it, to)).count();
        names.retain(|from, _| {
            let it = running().find(|it| it.of.name == *from);
            let would = new.volumes.iter().filter(is_one);
            let would = would.filter(|of| it.is_some_and(|it| same(it, of)));
            would.filter(|of| count(of) == 1).count() == 1
        });
        let it = Self(names);
        for (from, to) in &it.0 {
            if running().any(|it| it.of.name == *from && it.of.is_mirror()) {
                bail!(
                    "volume {from}: its legs are those of {to} in the file, and have its name: \
                     restart the engine with --accept {to}"
                );
            }
            let taken = |name: &String| !it.0.contains_key(name) && volumes.is_named(name);
            let is_new = |name: &String| !it.0.values().any(|it| it == name);
            if taken(to) || is_new(from) && new.volume(from).is_some() {
                bail!(
                    "volume {from}: it is {to} in the file, and one of these names is another \
                     volume's, too: reload without that one first"
                );
            }
        }
        Ok(it)
    }

    /// Names before and after.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }

    /// The name after.
    pub fn now<'a>(&'a self, name: &'a str) -> &'a str {
        self.0.get(name).map_or(name, |it| it)
    }

    /// The other way round.
    pub fn back(&self) -> Self {
        let all = self.0.iter();
        Self(all.map(|(from, to)| (to.clone(), from.clone())).collect())
    }

    /// Gives a name the one after.
    pub fn apply(&self, name: &mut String) {
        if let Some(now) = self.0.get(name) {
            name.clone_from(now);
        }
    }

    /// Gives the volumes of a configuration their names after.
    pub fn apply_to(&self, config: &mut Config) {
        for it in &mut config.volumes {
            self.apply(&mut it.name);
        }
        let subsystems = config.subsystems.iter_mut();
        subsystems.for_each(|it| self.apply_to_namespaces(it));
        let queues = config.queues.iter_mut();
        for it in queues.flat_map(|it| &mut it.namespaces) {
            self.apply(&mut it.volume);
        }
    }

    /// Gives the volumes of a subsystem their names after.
    pub fn apply_to_namespaces(&self, of: &mut Subsystem) {
        for it in &mut of.namespaces {
            self.apply(&mut it.volume);
        }
    }

    /// Gives what is kept by name the names after, all at once; what stands there is no volume's.
    pub fn apply_to_keys<T>(&self, map: &mut BTreeMap<String, T>) {
        map.retain(|name, _| self.0.contains_key(name) || !self.0.values().any(|it| it == name));
        let all = std::mem::take(map).into_iter();
        *map = all
            .map(|(name, it)| (self.now(&name).to_owned(), it))
            .collect();
    }
}

impl Service {
    /// Volumes have other names at once, for users and in messages of the engine. Clients that are
    /// connected stay, new ones ask for the new name.
    pub fn rename(&self, state: &mut State, names: &Renames) -> Vec<String> {
        state.volumes.rename(names);
        names.apply_to(&mut state.configured);
        state.rename_namespaces(names);
        self.changes.rename(names);
        let mut said = Vec::new();
        for (from, to) in names.iter() {
            let Ok(volume) = state.volumes.number(to) else {
                unreachable!("{to} is renamed, and not there");
            };
            self.senders.rename(volume, to);
            for (number, it) in (0..).zip(&state.exports) {
                if let Some(it) = it.as_ref().filter(|it| it.volume == volume) {
                    self.offer_export(state, number, volume, &it.export);
                }
            }
            said.push(format!("renamed {from} to {to}"));
        }
        said
    }

    /// Gives the records of volumes their new names. Not to be called while the state is held,
    /// nor without [`Changes::names`](super::pending::Changes::names): the keeper asks by name.
    pub fn rename_records(&self, names: &Renames) {
        if names.0.is_empty() {
            return; // nothing is written anew
        }
        // One after the other: elsewhere the registry is locked before the others.
        let marks = self.marks().rename(names);
        let known = self.known().rename(names);
        let registry = self.registry().rename(names);
        let maintenance = self.health.maintenance.rename(names);
        for written in [marks, known, registry, maintenance] {
            if let Err(error) = written {
                log::say(format!("a record has the name of before yet: {error:#}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::PathKeys;
    use crate::run::config::tests::parsed;
    use crate::run::desired::{DesiredVolume, MirrorSetting};
    use crate::run::entries::AdminState;
    use crate::run::pending::Changes;
    use crate::run::plan::tests::leg;
    use crate::run::plan::{Change, LegVerb};
    use proptest::prelude::*;

    /// Of each volume, its name; `None`: it is not there.
    type Names = Vec<Option<usize>>;

    const POOL: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

    fn config(names: &[Option<usize>]) -> Config {
        let volume = |(number, name): (usize, &Option<usize>)| {
            let name = POOL[(*name)?];
            let uri = format!("file:/srv/{number}");
            Some(format!(
                "[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n"
            ))
        };
        let all = names.iter().enumerate().filter_map(volume);
        parsed(&all.collect::<String>())
    }

    fn renames(before: &[Option<usize>], after: &[Option<usize>]) -> anyhow::Result<Renames> {
        let before = config(before);
        let all = before.volumes.iter().cloned();
        let all = all.map(|of| Running::new(DesiredVolume::of_file(of, None)));
        Renames::new(&all.collect(), &before, &config(after))
    }

    /// At least one volume is there: a configuration has one.
    fn names() -> impl Strategy<Value = Names> {
        let places = Just((0..POOL.len()).collect::<Vec<usize>>()).prop_shuffle();
        let there = proptest::collection::vec(any::<bool>(), 4);
        (places, there).prop_map(|(places, there)| {
            let all = there.iter().zip(places);
            let mut names: Names = all.map(|(there, name)| there.then_some(name)).collect();
            if names.iter().all(Option::is_none) {
                names[0] = Some(0);
            }
            names
        })
    }

    proptest! {
        /// By where they lead; a name that another volume gives up or takes at once is refused.
        #[test]
        fn volumes_are_known_under_other_names(before in names(), after in names()) {
            let both: Vec<(usize, usize)> = before
                .iter()
                .zip(&after)
                .filter_map(|(from, to)| Some(((*from)?, (*to)?)))
                .filter(|(from, to)| from != to)
                .collect();
            let from: Vec<usize> = both.iter().map(|it| it.0).collect();
            let to: Vec<usize> = both.iter().map(|it| it.1).collect();
            let taken = |all: &[Option<usize>], name: usize| all.contains(&Some(name));
            let is_left = to.iter().any(|it| taken(&before, *it) && !from.contains(it));
            let is_new = from.iter().any(|it| taken(&after, *it) && !to.contains(it));
            match renames(&before, &after) {
                Err(_) => prop_assert!(is_left || is_new),
                Ok(found) => {
                    prop_assert!(!is_left && !is_new);
                    let wanted = both.iter().map(|(from, to)| (POOL[*from], POOL[*to]));
                    let wanted: BTreeMap<&str, &str> = wanted.collect();
                    let found: BTreeMap<&str, &str> =
                        found.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
                    prop_assert_eq!(found, wanted);
                }
            }
        }
    }

    #[test]
    fn change_that_goes_on_follows_its_volume() {
        let changes = Changes::default();
        let all = |volume: &str| {
            let path = PathKeys::from("mem:1MiB".parse::<crate::uri::PathUri>().unwrap());
            let leg = Box::new(leg(1, "file:/a", &["file:/a"]));
            let pause = MirrorSetting::Pause;
            [
                Change::SetAdmin(volume.to_owned(), path.into(), AdminState::Failed),
                Change::SetMirror(volume.to_owned(), pause(false), pause(true)),
                Change::Leg(volume.to_owned(), leg, LegVerb::Fail),
            ]
        };
        all("a").into_iter().for_each(|it| changes.note_going(it));
        changes.rename(&renames(&[Some(0), Some(1)], &[Some(1), Some(0)]).unwrap());
        for (now, before) in all("b").iter().zip(&all("a")) {
            assert!(changes.goes_on(now) && !changes.goes_on(before), "{now}");
        }
    }

    #[test]
    fn names_are_swapped_at_once() {
        let it = renames(&[Some(0), Some(1)], &[Some(1), Some(0)]).unwrap();
        let mut map = BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 1)]);
        it.apply_to_keys(&mut map);
        assert_eq!(
            map,
            BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 0)])
        );
        it.back().apply_to_keys(&mut map);
        assert_eq!((it.now("a"), map["a"]), ("b", 0));
        // A record under a name that was free is no volume's.
        let it = renames(&[Some(0)], &[Some(2)]).unwrap();
        map.insert("c".to_owned(), 2);
        it.apply_to_keys(&mut map);
        assert_eq!(
            map,
            BTreeMap::from([("b".to_owned(), 1), ("c".to_owned(), 0)])
        );
    }
}
