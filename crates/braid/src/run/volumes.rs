//! The volumes of a running engine: which there are, and under which number the engine knows each.
//!
//! # Contract
//! A user knows a volume by its name, the engine by its number, which another volume may have once
//! the engine has said that it is gone. A volume is being opened, then there, then leaving: only
//! one that is there is shown or changed, and what the engine says of a number is of the one that
//! has it, whichever it is. There is never more than one of a name. Volumes are shown in the order
//! of the configuration.
use super::config::{Config, PathKeys, Volume};
use super::desired::{DesiredVolume, PathSpec};
use super::entries::{AdminState, PathEntry, PathTable};
use super::late::Absent;
use super::mirrors;
use super::rename::Renames;
use crate::control::rpc::ControlError;
use crate::mirror::same::Storage;
use crate::uri::PathUri;
use engine::host::VolumeInfo;
use engine::mirror::{LegReport, MIRRORS_FROM};
use multipath::Namespace;
use policy::{PathIndex, Policy, PolicyError, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};

/// One volume.
pub struct Running {
    /// As configured, with the values in force and the paths that it has now: those of its entries,
    /// in their order. Its exports are kept elsewhere while they listen
    /// ([`exports_of`](super::service::State::exports_of)).
    pub of: Volume,
    /// Its paths; changed by the methods of this type only.
    entries: PathTable,
    /// Its absent paths join together: the engine before did not stop in order, and a flush has to
    /// reach all of them (T13).
    pub all_at_once: bool,
    /// Cores on which it is ready.
    pub ready_on: BTreeSet<u16>,
    /// Once it is ready on all that may have clients of it.
    pub info: Option<VolumeInfo>,
    /// Under which number it asks for marks: no other volume of this engine that is opened later
    /// has it.
    pub serial: u64,
    /// The namespace that it is open with.
    pub shown: Option<Box<Namespace>>,
    /// The namespace that its mark names.
    pub marked: Option<Box<Namespace>>,
    /// Why it is not opened, though a path of it can be connected.
    pub barred: Option<String>,
    /// The last such reason that was logged.
    pub told: Option<String>,
    /// Why it is used without a mark, where its configuration allows that.
    pub unmarked: Option<String>,
    /// The values of policies that were set, those in force before included (row B5).
    pub values: Values,
    /// A path that joins: it may be written to before its answer is heard.
    pub joining: Option<PathSpec>,
    /// Of a mirror that was told to stop: its legs as they were shown then.
    pub stopped: Option<Vec<LegReport>>,
}

/// [`Running::serial`] of the volumes that an engine starts with.
pub const AT_START: u64 = 0;

/// All volumes, by the engine's number.
#[derive(Default)]
pub struct Volumes {
    all: BTreeMap<u16, Running>,
    /// Their numbers in the order of the configuration.
    order: Vec<u16>,
    /// Those that are to be there with the configuration that is being applied. Of one of them at
    /// most the engine has not said yet which number it has.
    opening: Vec<(Option<u16>, Running)>,
    /// Those that the engine has not said to be gone yet: name and paths.
    leaving: BTreeMap<u16, (String, Vec<PathKeys>)>,
    /// How often other volumes were there.
    pub changes: u64,
    /// How many were to be opened.
    opens: u64,
}

impl Running {
    /// One with all of its paths, not yet ready; see [`PathTable::new`].
    pub fn new(desired: DesiredVolume) -> Self {
        let entries = PathTable::new(desired.paths, desired.awaited);
        Self {
            ready_on: BTreeSet::new(),
            info: None,
            all_at_once: false,
            serial: AT_START,
            shown: None,
            marked: None,
            barred: None,
            told: None,
            unmarked: None,
            values: Values::default(),
            joining: None,
            stopped: None,
            of: Volume {
                paths: entries.keys(),
                ..desired.of
            },
            entries,
        }
    }

    /// The same, without those of its paths that can't be opened yet.
    pub fn without(mut self, absent: &Absent) -> Self {
        for (place, why) in &absent.paths {
            self.entries.begin_without(*place, why.clone());
        }
        Self {
            all_at_once: absent.unclean,
            ..self
        }
    }

    /// Notes its files and devices, by URI.
    pub fn note_storages(&mut self, storages: &[(PathUri, Storage)]) {
        for it in self.entries.iter_mut().filter(|it| it.is_there()) {
            let found = storages.iter().find(|(uri, _)| *uri == it.config().uri);
            it.set_storage(found.map(|(_, storage)| storage.clone()));
        }
    }

    /// Its paths.
    pub fn entries(&self) -> &PathTable {
        &self.entries
    }

    /// One of its paths, to be opened or handed to the engine; `None`: it was removed.
    pub fn entry(&mut self, id: u64) -> Option<&mut PathEntry> {
        self.entries.of_id(id)
    }

    /// The engine has a path more.
    pub fn join(&mut self, spec: PathSpec, number: PathIndex, storage: Option<Storage>) {
        self.entries.join(spec, number, storage);
        self.of.paths = self.entries.keys();
    }

    /// A path is shown at this place.
    pub fn set_place(&mut self, path: PathIndex, place: usize) {
        self.entries.set_place(path, place);
        self.of.paths = self.entries.keys();
    }

    /// A path has left, or does not come any more.
    pub fn part(&mut self, number: PathIndex) -> Option<PathEntry> {
        let gone = self.entries.remove(number)?;
        self.of.paths = self.entries.keys();
        Some(gone)
    }

    /// Sets a user's setting of a path.
    pub fn set_admin(&mut self, path: PathIndex, admin: AdminState) {
        self.entries.set_admin(path, admin);
    }

    /// See [`PathTable::awaited`].
    pub fn set_awaited(&mut self, awaited: BTreeMap<String, AdminState>) {
        self.entries.set_awaited(awaited);
    }

    /// See [`PathTable::tell_by`].
    pub fn tell_by(&mut self, found: &BTreeMap<String, String>) {
        self.entries.tell_by(found);
    }

    /// As configured anew, with the paths that it has; which of these have another name, in words.
    pub fn configure(&mut self, of: Volume) -> Vec<String> {
        let renamed = self.entries.take_names(&of.paths).into_iter();
        let renamed = renamed.map(|(uri, name)| format!("{uri}: name {name}"));
        let paths = self.entries.keys();
        self.of = Volume { paths, ..of };
        renamed.collect()
    }

    /// Whether `policy` fits its blocks (row B2), once they are known.
    ///
    /// # Errors
    /// Its value is no multiple of them.
    pub fn check_blocks(&self, policy: Policy) -> Result<(), PolicyError> {
        let blocks = self.info.map(|info| 1 << info.block_shift);
        blocks.map_or(Ok(()), |bytes| policy.check_blocks(bytes))
    }

    /// Another relative throughput and distance of a path; its number, if the engine has it.
    pub fn set_attributes(&mut self, keys: &PathKeys) -> Option<PathIndex> {
        let it = self.entries.of_uri(&keys.uri)?;
        let (number, is_there) = (it.index(), it.is_there());
        self.entries.set_attributes(number, keys);
        self.of.paths = self.entries.keys();
        is_there.then_some(number)
    }

    /// As a mark names it.
    pub fn to_mark(&self) -> Volume {
        let mut of = self.of.clone();
        of.paths
            .extend(self.joining.iter().map(|it| it.config.clone()));
        of
    }
}

/// Those that an engine starts with.
impl FromIterator<Running> for Volumes {
    fn from_iter<T: IntoIterator<Item = Running>>(all: T) -> Self {
        let all: Vec<Running> = all.into_iter().collect();
        let order = mirrors::numbers(all.iter().map(|it| &it.of));
        let all = order.iter().copied().zip(all).collect();
        Self {
            all,
            order,
            ..Self::default()
        }
    }
}

/// One that is there: its number was found under the same lock of the state, or under that of its
/// name. Elsewhere [`Volumes::get`].
impl Index<u16> for Volumes {
    type Output = Running;
    fn index(&self, number: u16) -> &Running {
        &self.all[&number]
    }
}

impl IndexMut<u16> for Volumes {
    fn index_mut(&mut self, number: u16) -> &mut Running {
        let it = self.all.get_mut(&number);
        it.unwrap_or_else(|| panic!("there is no volume {number}"))
    }
}

impl Volumes {
    /// Those that are there, in the order of the configuration, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Running)> {
        self.order.iter().map(|number| (*number, &self[*number]))
    }

    /// Those that are there or are being opened, but for one.
    pub fn others(&self, number: u16) -> impl Iterator<Item = &Running> {
        let there = self.all.iter().map(|(it, of)| (Some(*it), of));
        let opening = self.opening.iter().map(|(it, of)| (*it, of));
        let others = there.chain(opening).filter(move |it| it.0 != Some(number));
        others.map(|it| it.1)
    }

    /// The one of this number, which may have left by now.
    pub fn get(&self, number: u16) -> Option<&Running> {
        self.all.get(&number)
    }

    /// The same.
    pub fn get_mut(&mut self, number: u16) -> Option<&mut Running> {
        self.all.get_mut(&number)
    }

    /// Whether one is there.
    pub fn has(&self, number: u16) -> bool {
        self.all.contains_key(&number)
    }

    /// Whether one is there with the configuration in force: one that a reload opens is not yet.
    pub fn is_configured(&self, number: u16) -> bool {
        self.order.contains(&number)
    }

    /// Whether what is written to a path of `of` shows on no path of another volume where either is
    /// a leg, which is its mirror's alone (T48).
    ///
    /// # Errors
    /// On which.
    pub fn ensure_apart(
        &self,
        of: &Volume,
        uri: &PathUri,
        storage: &Storage,
    ) -> Result<(), String> {
        let opening = self.opening.iter().map(|(_, it)| it);
        let all = self.all.values().chain(opening).flat_map(|it| {
            let entries = it.entries.iter();
            entries.filter_map(|path| Some((&it.of, &path.config().uri, path.storage()?)))
        });
        mirrors::ensure_apart((of, uri, storage), all)
    }

    /// The one that the engine means, there or being opened.
    pub fn meant(&mut self, number: u16) -> Option<&mut Running> {
        if self.leaving.contains_key(&number) {
            return None;
        }
        if let Some(it) = self.all.get_mut(&number) {
            return Some(it);
        }
        let has = |wanted| self.opening.iter().position(|(it, _)| *it == wanted);
        // A number that nobody has is that of the one whose number isn't known yet.
        let at = has(Some(number)).or_else(|| has(None))?;
        Some(&mut self.opening[at].1)
    }

    /// The one that asks under this number and serial; `None`: it leaves, or was not opened, and
    /// its number may be another's.
    pub fn asking(&mut self, number: u16, serial: u64) -> Option<&mut Running> {
        self.meant(number).filter(|it| it.serial == serial)
    }

    /// Whether one of this name is there, is being opened, or leaves.
    pub fn is_named(&self, name: &str) -> bool {
        let opening = self.opening.iter().map(|(_, it)| it);
        let named = self.all.values().chain(opening).map(|it| &it.of.name);
        let mut all = named.chain(self.leaving.values().map(|it| &it.0));
        all.any(|it| it == name)
    }

    /// Name of a volume.
    pub fn name(&self, number: u16) -> String {
        let there = self.all.get(&number).map(|it| &it.of.name);
        let there = there.or_else(|| Some(&self.leaving.get(&number)?.0));
        let opening = || self.opening.iter().find(|(it, _)| *it == Some(number));
        let name = there.or_else(|| Some(&opening()?.1.of.name));
        name.cloned().unwrap_or_else(|| format!("volume {number}"))
    }

    /// Name and paths of the volume that the engine means, also one that leaves.
    pub fn paths(&mut self, number: u16) -> Option<(String, Vec<String>)> {
        let uris = |paths: &[PathKeys]| paths.iter().map(|it| it.uri.to_string()).collect();
        if let Some((name, paths)) = self.leaving.get(&number) {
            return Some((name.clone(), uris(paths)));
        }
        let of = &self.meant(number)?.of;
        Some((of.name.clone(), uris(&of.paths)))
    }

    /// Number of the volume of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn number(&self, name: &str) -> Result<u16, ControlError> {
        let mut all = self.iter();
        let found = all.find(|(_, it)| it.of.name == name);
        let found = found.map(|(number, _)| number);
        found
            .or_else(|| self.leg_of_number(name))
            .ok_or_else(|| self.unknown(name))
    }

    /// A leg by its mirror and its number in the order of the file.
    fn leg_of_number(&self, name: &str) -> Option<u16> {
        let (mirror, leg) = name.split_once('/')?;
        let leg: usize = leg.parse().ok()?;
        self.legs(mirror).get(leg).map(|(number, _)| *number)
    }

    /// The legs of a mirror that are configured, with their names.
    pub fn legs(&self, mirror: &str) -> Vec<(u16, &str)> {
        let legs = self.iter().map(|(number, it)| (number, &it.of));
        let legs = legs.filter(|(_, of)| of.leg_of.as_deref() == Some(mirror));
        let legs = legs.filter_map(|(number, of)| Some((number, of.leg()?)));
        legs.collect()
    }

    /// There is no such volume.
    pub fn unknown(&self, name: &str) -> ControlError {
        let names: Vec<_> = self.iter().map(|(_, it)| it.of.name.as_str()).collect();
        let others = match names.is_empty() {
            true => "nor any other".to_owned(),
            false => format!("only {}", names.join(", ")),
        };
        ControlError::params(format!("there is no volume \"{name}\", {others}"))
    }

    /// The volumes of a configuration that are there or were opened for it, with their numbers.
    pub fn numbered(&self, config: &Config) -> Vec<(u16, Volume)> {
        let there = self.all.iter().map(|(number, it)| (*number, it));
        let opened = self.opening.iter();
        let opened = opened.filter_map(|(number, it)| Some(((*number)?, it)));
        let numbers: BTreeMap<&str, u16> = there
            .chain(opened)
            .map(|(number, it)| (it.of.name.as_str(), number))
            .collect();
        let volumes = config.volumes.iter();
        let number = |of: &Volume| Some((*numbers.get(of.name.as_str())?, of.clone()));
        volumes.filter_map(number).collect()
    }

    /// One is to be opened, and its number isn't known yet; its serial. Of no other one that is
    /// being opened is the number unknown.
    ///
    /// # Errors
    /// One of that name, or with one of its paths, has not left yet: its writes may be under way.
    pub fn open(&mut self, running: Running) -> Result<u64, String> {
        assert_eq!(self.unnumbered(), None, "another one is being opened");
        self.begin_opening(None, running)
    }

    /// A mirror is to be opened, under this number.
    ///
    /// # Errors
    /// One of that name has not left yet.
    pub fn open_mirror(&mut self, running: Running, number: u16) -> Result<(), String> {
        self.begin_opening(Some(number), running).map(drop)
    }

    fn begin_opening(&mut self, number: Option<u16>, mut running: Running) -> Result<u64, String> {
        let mut leaving = self.leaving.values();
        let of = |(name, paths): &&(String, Vec<PathKeys>)| {
            *name == running.of.name || running.of.shared(paths).is_some()
        };
        if let Some((name, _)) = leaving.find(of) {
            return Err(format!(
                "the {name} that was removed waits for the end of its I/O; try again later"
            ));
        }
        self.opens += 1;
        running.serial = AT_START + self.opens;
        let serial = running.serial;
        self.opening.push((number, running));
        Ok(serial)
    }

    /// The numbers of mirrors that are taken.
    pub fn mirrors(&self) -> Vec<u16> {
        let opening = self.opening.iter().filter_map(|it| it.0);
        let there = self.all.keys().chain(self.leaving.keys()).copied();
        there
            .chain(opening)
            .filter(|it| *it >= MIRRORS_FROM)
            .collect()
    }

    /// The one of that name that is there or was opened.
    pub fn opened_as(&self, name: &str) -> Option<u16> {
        let there = self.all.iter().map(|(number, it)| (Some(*number), it));
        let opening = self.opening.iter().map(|(number, it)| (*number, it));
        let found = there.chain(opening).find(|(_, it)| it.of.name == name);
        found?.0
    }

    /// The legs that leave with a mirror, by its name.
    pub fn leaving_legs(&self, mirror: &str) -> Vec<u16> {
        let leaving = self.leaving.iter();
        let is_leg = |name: &str| name.split_once('/').is_some_and(|it| it.0 == mirror);
        let legs = leaving.filter(|(_, it)| is_leg(&it.0));
        legs.map(|(number, _)| *number).collect()
    }

    /// The place among those that are being opened of the one whose number isn't known yet. A
    /// mirror may have come after it: its number is known from the start.
    fn unnumbered(&self) -> Option<usize> {
        self.opening.iter().position(|it| it.0.is_none())
    }

    /// Why the one that waits for its number is not opened.
    pub fn barred(&mut self) -> Option<String> {
        let at = self.unnumbered()?;
        self.opening[at].1.barred.take()
    }

    /// The engine has said which number the one has that waits for it; or it isn't opened.
    pub fn opened(&mut self, number: Option<u16>) {
        let Some(at) = self.unnumbered() else {
            unreachable!("no volume waits for its number, {number:?}");
        };
        match number {
            Some(_) => self.opening[at].0 = number,
            None => drop(self.opening.remove(at)),
        }
    }

    /// A number leaves whatever has it, until the engine says that it is gone; a mirror with its
    /// legs.
    pub fn leave(&mut self, number: u16) {
        let name = self.name(number);
        let is_leg = |(_, it): &(&u16, &Running)| it.of.leg_of.as_ref() == Some(&name);
        let legs: Vec<u16> = self.all.iter().filter(is_leg).map(|it| *it.0).collect();
        legs.into_iter().for_each(|leg| self.leave(leg));
        let it = self.all.remove(&number);
        let opening = self.opening.iter().find(|(it, _)| *it == Some(number));
        let paths = it.map(|it| it.of.paths);
        let paths = paths.or_else(|| Some(opening?.1.of.paths.clone()));
        self.order.retain(|it| *it != number);
        self.opening.retain(|(it, _)| *it != Some(number));
        let paths = paths.unwrap_or_default();
        self.leaving.insert(number, (name, paths));
        self.changes += 1;
    }

    /// The engine has said that a volume is gone; its name, if that was expected.
    pub fn left(&mut self, number: u16) -> Option<String> {
        Some(self.leaving.remove(&number)?.0)
    }

    /// Whether a volume has not left yet.
    pub fn is_leaving(&self, number: u16) -> bool {
        self.leaving.contains_key(&number)
    }

    /// Volumes that are there have other names.
    pub fn rename(&mut self, names: &Renames) {
        let all = self.all.values_mut();
        all.for_each(|it| names.apply(&mut it.of.name));
        self.changes += 1;
    }

    /// Those that were opened are there, and all are in the order of a configuration; the numbers
    /// of the new ones. One whose number isn't known yet is being opened still: it may be a leg
    /// that a verb of another mirror opens.
    pub fn admit(&mut self, config: &Config) -> Vec<u16> {
        let before: Vec<u16> = self.order.clone();
        for (number, it) in std::mem::take(&mut self.opening) {
            match number {
                Some(number) => drop(self.all.insert(number, it)),
                None => self.opening.push((None, it)),
            }
        }
        self.order = self.numbered(config).iter().map(|it| it.0).collect();
        self.changes += 1;
        let new = self.order.iter().filter(|it| !before.contains(it));
        new.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;

    fn config(names: &[&str]) -> Config {
        let volume = |name: &&str| {
            let uri = format!("nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:{name}");
            format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n")
        };
        parsed(&names.iter().map(volume).collect::<String>())
    }

    fn running(name: &str) -> Running {
        let of = config(&[name]).volumes.remove(0);
        Running::new(DesiredVolume::of_file(of, None))
    }

    fn shown(volumes: &Volumes) -> Vec<(u16, &str)> {
        let all = volumes.iter();
        all.map(|(number, it)| (number, it.of.name.as_str()))
            .collect()
    }

    #[test]
    fn what_the_engine_says_of_a_number_is_of_the_volume_that_has_it() {
        let mut volumes: Volumes = ["a", "b"].map(running).into_iter().collect();
        let name =
            |volumes: &mut Volumes, number| volumes.meant(number).map(|it| it.of.name.clone());
        volumes.open(running("c")).unwrap();
        assert_eq!(name(&mut volumes, 7).as_deref(), Some("c"), "not yet known");
        assert_eq!(name(&mut volumes, 1).as_deref(), Some("b"));
        volumes.opened(Some(2));
        volumes.open(running("d")).unwrap();
        assert_eq!(name(&mut volumes, 2).as_deref(), Some("c"));
        assert_eq!(name(&mut volumes, 3).as_deref(), Some("d"));
        volumes.opened(None);
        assert_eq!(name(&mut volumes, 3), None);
        // The next one may get the number of one that was not opened, and is not asked for by it.
        let serial = volumes.open(running("f")).unwrap();
        assert!(volumes.asking(3, serial).is_some() && volumes.is_named("f"));
        assert!(volumes.asking(3, serial - 1).is_none());
        volumes.opened(None);
        assert!(volumes.asking(1, AT_START).is_some() && !volumes.is_named("f"));
        assert_eq!(shown(&volumes), [(0, "a"), (1, "b")], "none is there yet");
        volumes.leave(0);
        assert_eq!(volumes.admit(&config(&["c", "b"])), [2]);
        assert_eq!(shown(&volumes), [(2, "c"), (1, "b")]);
        assert_eq!(name(&mut volumes, 0), None, "it has left");
        assert_eq!(volumes.name(0), "a");
        let why = volumes.open(running("a")).unwrap_err();
        assert!(why.contains("the a that was removed"), "{why}");
        let mut renamed = running("a");
        renamed.of.name = "e".to_owned();
        let why = volumes.open(renamed).unwrap_err();
        assert!(why.contains("the a that was removed"), "t09: {why}");
        assert_eq!(volumes.left(0).as_deref(), Some("a"));
        assert_eq!(volumes.left(0), None);
        // The number is another's now.
        volumes.open(running("a")).unwrap();
        volumes.opened(Some(0));
        volumes.admit(&config(&["b", "a", "c"]));
        assert_eq!(shown(&volumes), [(1, "b"), (0, "a"), (2, "c")]);
    }

    #[test]
    fn number_is_of_the_one_that_waits_for_it() {
        let mut volumes = Volumes::default();
        volumes.open(running("x")).unwrap();
        // A reload adds a mirror meanwhile.
        volumes.open_mirror(running("m0"), MIRRORS_FROM).unwrap();
        if let Some(leg) = volumes.meant(7) {
            leg.barred = Some("its mark".into());
        }
        assert_eq!(volumes.barred().as_deref(), Some("its mark"));
        volumes.opened(Some(7));
        assert_eq!(volumes.opened_as("m0"), Some(MIRRORS_FROM));
        assert_eq!(volumes.opened_as("x"), Some(7));
        volumes.open(running("y")).unwrap();
        volumes
            .open_mirror(running("m2"), MIRRORS_FROM + 1)
            .unwrap();
        volumes.opened(None);
        assert_eq!(volumes.opened_as("m2"), Some(MIRRORS_FROM + 1));
        assert!(!volumes.is_named("y"));
    }

    #[test]
    fn one_that_a_reload_opens_is_not_configured_yet() {
        let mut volumes: Volumes = ["a"].map(running).into_iter().collect();
        volumes.open_mirror(running("m0"), MIRRORS_FROM).unwrap();
        // A verb of another mirror has opened a leg meanwhile.
        volumes.admit(&config(&["a"]));
        assert!(volumes.has(MIRRORS_FROM) && !volumes.is_configured(MIRRORS_FROM));
        volumes.admit(&config(&["a", "m0"]));
        assert!(volumes.is_configured(MIRRORS_FROM));
    }

    #[test]
    fn one_that_is_being_opened_stays_so_while_others_are_admitted() {
        let mut volumes: Volumes = ["a"].map(running).into_iter().collect();
        volumes.open(running("b")).unwrap();
        volumes.opened(Some(1));
        let serial = volumes.open(running("c")).unwrap();
        assert_eq!(volumes.admit(&config(&["a", "b"])), [1]);
        assert!(volumes.is_named("c") && volumes.asking(2, serial).is_some());
        volumes.opened(Some(2));
        assert_eq!(volumes.admit(&config(&["a", "b", "c"])), [2]);
        assert_eq!(shown(&volumes), [(0, "a"), (1, "b"), (2, "c")]);
    }
}
