//! The paths of a running volume: one entry each, which owns what is known of the path.
//!
//! An entry has what the configuration or a verb says of the path, the engine's index of it, who
//! told of it ([`Origin`]) and what a user wants of it ([`AdminState`]). States of its presence:
//! * `There` until the path is removed; one that has joined late may become `Absent` again
//! * `Absent` → `Opening` → `There` or `Absent`
//!
//! An entry keeps its number in every state, and may be removed in every state. Only the thread
//! that made it `Opening` takes it out of that state.
use super::config::PathKeys;
use super::desired::PathSpec;
use crate::mirror::same::Storage;
use crate::uri::{PathUri, names};
use engine::host::Change;
use policy::PathIndex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Source of a path. Whether the configuration file has it too is the file's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file, or a verb.
    User,
    /// A discovery controller, by its words.
    Discovery(String),
}

/// A user's setting of a path, by verb; it is kept for the next engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdminState {
    /// It is used.
    #[default]
    Enabled,
    /// As lost, and not looked for.
    Failed,
    /// It stays connected, and gets nothing new.
    Drained,
}

impl AdminState {
    /// Change of the engine that carries out the setting.
    pub fn change(self, volume: u16, path: PathIndex, force: bool) -> Change {
        match self {
            Self::Enabled => Change::RestorePath(volume, path),
            Self::Failed => Change::FailPath(volume, path, force),
            Self::Drained => Change::DrainPath(volume, path, force),
        }
    }

    /// The verb that makes a path so.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Enabled => "restore",
            Self::Failed => "fail",
            Self::Drained => "drain",
        }
    }

    /// Past participle of the verb for a path that is so now.
    pub fn done(self) -> &'static str {
        match self {
            Self::Enabled => "restored",
            Self::Failed => "failed",
            Self::Drained => "drained",
        }
    }
}

/// Whether the engine has a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    /// The engine has it.
    There,
    /// It could not be opened at the start, and is tried again.
    Absent(Absence),
    /// One thread opens it, or hands it to the engine: why it was absent.
    Opening(Absence),
}

/// Why a path is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Absence {
    why: String,
    /// It can be opened, and waits for other paths of its volume.
    waits: bool,
}

/// One path.
pub struct PathEntry {
    /// No other entry of this process has it.
    id: u64,
    /// URI and attributes.
    config: PathKeys,
    /// As the file has it, or made.
    name: String,
    /// The engine's; `devid:N` is index N - 1.
    index: PathIndex,
    origin: Origin,
    admin: AdminState,
    presence: Presence,
    /// Its file or device, as looked at before it was opened; `None`: it is none, or absent.
    storage: Option<Storage>,
}

impl PathEntry {
    fn new(spec: PathSpec, index: PathIndex) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            config: spec.config,
            name: String::new(),
            index,
            origin: spec.origin,
            admin: spec.admin,
            presence: Presence::There,
            storage: None,
        }
    }

    /// Identifier that no other entry of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// URI and attributes.
    pub fn config(&self) -> &PathKeys {
        &self.config
    }

    /// Name for users: no other path of its volume is called so.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is meant by a user's word: its URI, name or number.
    pub fn is_called(&self, word: &str) -> bool {
        let number = word.parse::<u8>();
        number == Ok(self.index.0) || word == self.name || word == self.config.uri.to_string()
    }

    /// The engine's index.
    pub fn index(&self) -> PathIndex {
        self.index
    }

    /// Source of the path.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether it came from discovery.
    pub fn is_found(&self) -> bool {
        matches!(self.origin, Origin::Discovery(_))
    }

    /// A user's setting of it.
    pub fn admin(&self) -> AdminState {
        self.admin
    }

    /// Whether it was failed by hand, and not restored.
    pub fn is_failed(&self) -> bool {
        self.admin == AdminState::Failed
    }

    /// Its file or device.
    pub fn storage(&self) -> Option<&Storage> {
        self.storage.as_ref()
    }

    /// Whether the engine has it.
    pub fn is_there(&self) -> bool {
        self.presence == Presence::There
    }

    /// Whether a thread opens it.
    pub fn is_opening(&self) -> bool {
        matches!(self.presence, Presence::Opening(_))
    }

    /// Whether it can be opened, and waits for other paths.
    pub fn is_waiting(&self) -> bool {
        self.absent().is_some_and(|it| it.waits)
    }

    fn absent(&self) -> Option<&Absence> {
        match &self.presence {
            Presence::There => None,
            Presence::Absent(it) | Presence::Opening(it) => Some(it),
        }
    }

    /// Why the engine doesn't have it; `None`: it has.
    pub fn why(&self) -> Option<&str> {
        self.absent().map(|it| it.why.as_str())
    }

    /// The same in words.
    pub fn absence(&self) -> Option<String> {
        let Absence { why, waits } = self.absent()?;
        Some(match (self.is_failed(), waits) {
            (true, _) => {
                format!("failed by hand, and not looked for until it is restored: {why}")
            }
            (false, true) => why.clone(),
            (false, false) => format!("not there since the start, and tried again: {why}"),
        })
    }

    /// The caller opens it, and no other thread.
    pub fn begin_opening(&mut self) {
        self.presence = match std::mem::replace(&mut self.presence, Presence::There) {
            Presence::Absent(why) => Presence::Opening(why),
            other => panic!("{}: to be opened while {other:?}", self.config.uri),
        };
    }

    /// Its destination is compared with those of other paths from now on.
    pub fn set_storage(&mut self, storage: Option<Storage>) {
        self.storage = storage;
    }

    /// It is absent, and why; `waits`: for other paths. Whether that is news.
    pub fn set_absent(&mut self, why: String, waits: bool) -> bool {
        let is_news = self.why() != Some(&why);
        (self.presence, self.storage) = (Presence::Absent(Absence { why, waits }), None);
        is_news
    }

    /// Nothing came of it: it is what it was before.
    pub fn let_go(&mut self) {
        (self.presence, self.storage) = (Presence::Absent(self.end_opening()), None);
    }

    /// The engine has it.
    pub fn joined(&mut self) {
        self.end_opening();
    }

    fn end_opening(&mut self) -> Absence {
        match std::mem::replace(&mut self.presence, Presence::There) {
            Presence::Opening(why) => why,
            other => panic!("{}: nobody opens it, it is {other:?}", self.config.uri),
        }
    }
}

/// All paths of a volume, in the order in which they are shown.
#[derive(Default)]
pub struct PathTable {
    all: Vec<PathEntry>,
    /// Settings by users of paths that discovery may announce again, by URI.
    awaited: BTreeMap<String, AdminState>,
}

impl PathTable {
    /// Paths that the engine has, numbered in their order; and what a user wanted of others that
    /// may come, by URI.
    pub fn new(paths: Vec<PathSpec>, awaited: BTreeMap<String, AdminState>) -> Self {
        let all = (0..).zip(paths);
        let all = all.map(|(index, spec)| PathEntry::new(spec, PathIndex(index)));
        let mut table = Self {
            all: all.collect(),
            awaited,
        };
        table.name_all();
        table
    }

    /// Names as the file has them, and others for the rest: one that was made stays, unless the
    /// file has it for another path by now.
    fn name_all(&mut self) {
        let given = self.all.iter().filter_map(|it| it.config.name.clone());
        let mut taken: Vec<String> = given.collect();
        for it in &mut self.all {
            it.name = match &it.config.name {
                Some(name) => name.clone(),
                None if !it.name.is_empty() && !taken.contains(&it.name) => {
                    std::mem::take(&mut it.name)
                }
                None => names::made(&it.config.uri, |name| taken.iter().any(|it| it == name)),
            };
            taken.push(it.name.clone());
        }
    }

    /// The names of paths are as the file has them now; which have changed, by URI.
    pub fn take_names(&mut self, paths: &[PathKeys]) -> Vec<(String, String)> {
        let before: Vec<String> = self.iter().map(|it| it.name.clone()).collect();
        for it in &mut self.all {
            if let Some(keys) = paths.iter().find(|keys| keys.uri == it.config.uri) {
                it.config.name.clone_from(&keys.name);
            }
        }
        self.name_all();
        let renamed = self
            .iter()
            .zip(before)
            .filter(|(it, name)| it.name != *name);
        let renamed = renamed.map(|(it, _)| (it.config.uri.to_string(), it.name.clone()));
        renamed.collect()
    }

    /// All, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, PathEntry> {
        self.all.iter()
    }

    /// All, in order, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, PathEntry> {
        self.all.iter_mut()
    }

    /// Of its place in the order.
    pub fn at(&self, place: usize) -> Option<&PathEntry> {
        self.all.get(place)
    }

    /// Of this index.
    pub fn get(&self, index: PathIndex) -> Option<&PathEntry> {
        self.iter().find(|it| it.index == index)
    }

    fn get_mut(&mut self, index: PathIndex) -> Option<&mut PathEntry> {
        self.iter_mut().find(|it| it.index == index)
    }

    /// Of this id.
    pub fn of_id(&mut self, id: u64) -> Option<&mut PathEntry> {
        self.iter_mut().find(|it| it.id == id)
    }

    /// The one that a user's word means.
    pub fn called(&self, word: &str) -> Option<&PathEntry> {
        self.iter().find(|it| it.is_called(word))
    }

    /// Of this URI.
    pub fn of_uri(&self, uri: &PathUri) -> Option<&PathEntry> {
        self.iter().find(|it| it.config.uri == *uri)
    }

    /// Those that the engine does not have.
    pub fn absent(&self) -> impl Iterator<Item = &PathEntry> {
        self.iter().filter(|it| !it.is_there())
    }

    /// Numbers that a new path may have, one bit each: those of absent paths are kept for them.
    pub fn free_numbers(&self) -> u64 {
        let all = self.absent().map(|it| 1_u64 << it.index.0);
        !all.fold(0, |all, it| all | it)
    }

    /// The engine begins without the path at this place.
    ///
    /// # Panics
    /// There is none, or its absence was noted before.
    pub fn begin_without(&mut self, place: usize, why: String) {
        let it = &mut self.all[place];
        assert!(it.is_there(), "{}: it is {:?}", it.config.uri, it.presence);
        it.set_absent(why, false);
    }

    /// The engine has one more.
    ///
    /// # Panics
    /// Another path has its index.
    pub fn join(&mut self, spec: PathSpec, index: PathIndex, storage: Option<Storage>) {
        let uri = spec.config.uri.to_string();
        let other = self.get(index).map(|it| it.config.uri.to_string());
        assert!(other.is_none(), "{uri}: {index:?} is {other:?}'s");
        if let Origin::Discovery(_) = spec.origin {
            self.awaited.remove(&uri);
        }
        self.all.push(PathEntry {
            storage,
            ..PathEntry::new(spec, index)
        });
        self.name_all();
    }

    /// A path comes at this place in the order, or last.
    pub fn set_place(&mut self, index: PathIndex, place: usize) {
        if let Some(at) = self.iter().position(|it| it.index == index) {
            let it = self.all.remove(at);
            self.all.insert(place.min(self.all.len()), it);
        }
    }

    /// The volume has it no more, nor what was wanted of it.
    pub fn remove(&mut self, index: PathIndex) -> Option<PathEntry> {
        let at = self.iter().position(|it| it.index == index)?;
        let gone = self.all.remove(at);
        self.awaited.remove(&gone.config.uri.to_string());
        Some(gone)
    }

    /// Another relative throughput and distance of a path.
    pub fn set_attributes(&mut self, index: PathIndex, keys: &PathKeys) {
        if let Some(it) = self.get_mut(index) {
            it.config.throughput = keys.throughput;
            it.config.distance = keys.distance;
        }
    }

    /// Sets a user's setting of a path.
    pub fn set_admin(&mut self, index: PathIndex, admin: AdminState) {
        if let Some(it) = self.get_mut(index) {
            it.admin = admin;
            let uri = it.config.uri.to_string();
            self.awaited.remove(&uri); // of before it came
        }
    }

    /// Settings by users of paths that discovery may announce again, by URI.
    pub fn awaited(&self) -> &BTreeMap<String, AdminState> {
        &self.awaited
    }

    /// See [`Self::awaited`].
    pub fn set_awaited(&mut self, awaited: BTreeMap<String, AdminState>) {
        self.awaited = awaited;
    }

    /// Others tell of paths that came from discovery.
    pub fn tell_by(&mut self, found: &BTreeMap<String, String>) {
        for it in self.iter_mut().filter(|it| it.is_found()) {
            if let Some(by) = found.get(&it.config.uri.to_string()) {
                it.origin = Origin::Discovery(by.clone());
            }
        }
    }

    /// URIs and attributes of all, in order.
    pub fn keys(&self) -> Vec<PathKeys> {
        self.iter().map(|it| it.config.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: u8) -> PathTable {
        PathTable::new((1..=count).map(spec).collect(), BTreeMap::new())
    }

    fn spec(n: u8) -> PathSpec {
        let uri: PathUri = format!("mem:{n}MiB").parse().unwrap();
        PathKeys::from(uri).into()
    }

    fn numbers(table: &PathTable) -> Vec<u8> {
        table.iter().map(|it| it.index.0).collect()
    }

    fn called(table: &PathTable) -> Vec<&str> {
        table.iter().map(PathEntry::name).collect()
    }

    fn keys(name: Option<&str>, uri: &str) -> PathKeys {
        let uri: PathUri = uri.parse().unwrap();
        PathKeys {
            name: name.map(str::to_owned),
            ..uri.into()
        }
    }

    #[test]
    fn names_stay_while_paths_come_and_go() {
        let paths = ["file:/a/leg", "file:/b/leg"].map(|uri| keys(None, uri).into());
        let mut table = PathTable::new(paths.into(), BTreeMap::new());
        assert_eq!(called(&table), ["leg", "b-leg"]);
        table.remove(PathIndex(0));
        assert_eq!(called(&table), ["b-leg"]);
        table.join(keys(None, "file:/c/leg").into(), PathIndex(0), None);
        assert_eq!(called(&table), ["b-leg", "leg"]);
        // The file has that name for another path.
        table.join(keys(Some("leg"), "file:/d").into(), PathIndex(2), None);
        assert_eq!(called(&table), ["b-leg", "c-leg", "leg"]);
        let renamed = table.take_names(&[keys(Some("one"), "file:/b/leg")]);
        assert_eq!(renamed, [("file:/b/leg".to_owned(), "one".to_owned())]);
        assert_eq!(called(&table), ["one", "c-leg", "leg"]);
        for (word, index) in [("one", 1), ("0", 0), ("file:/d", 2)] {
            let it = table.called(word);
            assert_eq!(it.map(PathEntry::index), Some(PathIndex(index)), "{word}");
        }
        assert!(table.called("3").is_none() && table.called("two").is_none());
    }

    #[test]
    fn numbers_stay_while_paths_come_and_go() {
        let mut paths = table(3);
        paths.begin_without(0, "gone".into());
        paths.begin_without(1, "gone too".into());
        let whys: Vec<_> = paths.iter().map(|it| it.why().unwrap_or("there")).collect();
        assert_eq!(whys, ["gone", "gone too", "there"]);
        // A path that is added meanwhile takes no number of an absent one.
        assert_eq!(paths.free_numbers(), !0b11);
        paths.remove(PathIndex(0)).unwrap();
        assert_eq!((numbers(&paths), paths.free_numbers()), (vec![1, 2], !0b10));
        let keys = paths.at(0).unwrap().config().clone();
        paths.join(keys.into(), PathIndex(0), None);
        assert_eq!(numbers(&paths), [1, 2, 0]);
        // One that comes back is shown where it was.
        for (place, shown) in [(1, [1, 0, 2]), (0, [0, 1, 2]), (9, [1, 2, 0])] {
            paths.set_place(PathIndex(0), place);
            assert_eq!(numbers(&paths), shown);
        }
    }

    #[test]
    fn a_path_that_is_restored_is_restored_for_good() {
        let wanted = BTreeMap::from([("mem:3MiB".to_owned(), AdminState::Failed)]);
        let mut paths = PathTable::new((1..=2).map(spec).collect(), wanted.clone());
        paths.join(spec(3), PathIndex(2), None);
        assert_eq!(*paths.awaited(), wanted);
        paths.set_admin(PathIndex(2), AdminState::Enabled);
        assert_eq!(*paths.awaited(), BTreeMap::new());
    }

    #[test]
    fn admin_state_and_origin_are_of_the_path_that_has_the_uri() {
        let found = |n: u8, by: &str, admin| PathSpec {
            origin: Origin::Discovery(by.to_owned()),
            admin,
            ..spec(n)
        };
        use AdminState::{Drained, Enabled, Failed};
        let named = |n: u8| format!("mem:{n}MiB");
        let wanted = BTreeMap::from([(named(3), Failed)]);
        let drained = PathSpec {
            admin: Drained,
            ..spec(2)
        };
        let mut paths = PathTable::new(vec![found(1, "a", Enabled), drained], wanted);
        // One that discovery tells of again is what it was.
        paths.join(found(3, "b", Failed), PathIndex(2), None);
        assert_eq!(*paths.awaited(), BTreeMap::new());
        let all: Vec<_> = paths.iter().map(PathEntry::admin).collect();
        assert_eq!(all, [Enabled, Drained, Failed]);
        paths.tell_by(&BTreeMap::from([
            (named(1), "c".to_owned()),
            (named(2), "c".to_owned()),
        ]));
        let told: Vec<_> = paths.iter().map(|it| it.origin().clone()).collect();
        let [c, b] = ["c", "b"].map(|by| Origin::Discovery(by.to_owned()));
        assert_eq!(told, [c, Origin::User, b]);
        // A path's setting goes with it.
        paths.set_admin(PathIndex(0), Failed);
        for index in 0..3 {
            paths.remove(PathIndex(index)).unwrap();
        }
        assert!(paths.iter().next().is_none() && paths.awaited().is_empty());
    }

    #[test]
    fn path_opens_once_at_a_time_and_keeps_its_reason() {
        let mut paths = table(1);
        paths.begin_without(0, "no file".into());
        let it = paths.iter_mut().next().unwrap();
        it.begin_opening();
        assert!(it.is_opening() && it.why() == Some("no file"));
        it.let_go();
        assert!(!it.is_waiting() && it.why() == Some("no file"));
        it.begin_opening();
        assert!(it.set_absent("busy".into(), false));
        assert_eq!(
            it.absence().unwrap(),
            "not there since the start, and tried again: busy"
        );
        it.begin_opening();
        assert!(it.set_absent("for another".into(), true) && it.is_waiting());
        it.begin_opening();
        assert_eq!(it.absence().unwrap(), "for another");
        it.let_go();
        assert!(it.is_waiting() && it.absence().unwrap() == "for another");
        it.begin_opening();
        it.joined();
        assert!(it.is_there() && it.why().is_none());
    }

    #[test]
    #[should_panic(expected = "to be opened while Opening")]
    fn path_that_is_opened_is_not_opened_by_another() {
        let mut paths = table(1);
        paths.begin_without(0, "no file".into());
        let it = paths.iter_mut().next().unwrap();
        it.begin_opening();
        it.begin_opening();
    }
}
