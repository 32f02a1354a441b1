//! The paths of a running volume: one entry each, which owns what is known of the path.
//!
//! States of an entry ([`Presence`]):
//! * `There` until the path is removed
//! * `Absent` or `Waiting` → `Opening` → `There`, `Absent` or `Waiting`
//!
//! An entry keeps its number in every state, and may be removed in every state. Only the thread
//! that made it `Opening` takes it out of that state.
use super::config::PathKeys;
use crate::mirror::same::Storage;
use crate::uri::PathUri;
use policy::PathIndex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether the engine has a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    /// The engine has it.
    There,
    /// It could not be opened at the start, and is tried again: the last reason.
    Absent(String),
    /// One thread opens it, or hands it to the engine: why it was absent, or waited.
    Opening { why: String, waited: bool },
    /// It can be opened, and waits for other paths of its volume: for which.
    Waiting(String),
}

/// One path.
pub struct PathEntry {
    /// No other entry of this process has it.
    id: u64,
    keys: PathKeys,
    /// The engine's index; `devid:N` is number N - 1.
    number: PathIndex,
    presence: Presence,
    /// Its file or device, as looked at before it was opened; `None`: it is none, or absent.
    storage: Option<Storage>,
}

impl PathEntry {
    fn new(keys: PathKeys, number: PathIndex, presence: Presence) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            keys,
            number,
            presence,
            storage: None,
        }
    }

    /// What no other entry of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// URI and attributes.
    pub fn keys(&self) -> &PathKeys {
        &self.keys
    }

    /// The engine's index.
    pub fn number(&self) -> PathIndex {
        self.number
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
        matches!(self.presence, Presence::Opening { .. })
    }

    /// Whether it can be opened, and waits for other paths.
    pub fn is_waiting(&self) -> bool {
        matches!(self.presence, Presence::Waiting(_))
    }

    /// Why the engine doesn't have it; `None`: it has.
    pub fn why(&self) -> Option<&str> {
        match &self.presence {
            Presence::There => None,
            Presence::Absent(why) | Presence::Opening { why, .. } | Presence::Waiting(why) => {
                Some(why)
            }
        }
    }

    /// The same in words.
    pub fn absence(&self) -> Option<String> {
        match &self.presence {
            Presence::There => None,
            Presence::Waiting(why) | Presence::Opening { why, waited: true } => Some(why.clone()),
            Presence::Absent(why) | Presence::Opening { why, waited: false } => {
                Some(format!("not there since the start, and tried again: {why}"))
            }
        }
    }

    /// The caller opens it, and no other thread.
    pub fn begin_opening(&mut self) {
        self.presence = match std::mem::replace(&mut self.presence, Presence::There) {
            Presence::Absent(why) => Presence::Opening { why, waited: false },
            Presence::Waiting(why) => Presence::Opening { why, waited: true },
            other => panic!("{}: to be opened while {other:?}", self.keys.uri),
        };
    }

    /// What it leads to is compared with what other paths lead to from now on.
    pub fn set_storage(&mut self, storage: Option<Storage>) {
        self.storage = storage;
    }

    /// It could not be opened, and why; whether that is news.
    pub fn not_opened(&mut self, why: String) -> bool {
        let (before, _) = self.end_opening();
        let is_news = before != why;
        self.presence = Presence::Absent(why);
        self.storage = None;
        is_news
    }

    /// Nothing came of it: it is what it was before.
    pub fn let_go(&mut self) {
        self.presence = match self.end_opening() {
            (why, true) => Presence::Waiting(why),
            (why, false) => {
                self.storage = None;
                Presence::Absent(why)
            }
        };
    }

    /// It can be opened, and waits for others; whether that is news.
    pub fn wait(&mut self, why: String) -> bool {
        let (before, _) = self.end_opening();
        let is_news = before != why;
        self.presence = Presence::Waiting(why);
        is_news
    }

    /// The engine has it.
    pub fn joined(&mut self) {
        self.end_opening();
        self.presence = Presence::There;
    }

    fn end_opening(&mut self) -> (String, bool) {
        match std::mem::replace(&mut self.presence, Presence::There) {
            Presence::Opening { why, waited } => (why, waited),
            other => panic!("{}: nobody opens it, it is {other:?}", self.keys.uri),
        }
    }
}

/// All paths of a volume, in the order in which they are shown.
#[derive(Default)]
pub struct PathTable(Vec<PathEntry>);

impl PathTable {
    /// Paths that the engine has, numbered in their order.
    pub fn new(paths: &[PathKeys]) -> Self {
        let all = (0..)
            .zip(paths)
            .map(|(number, keys)| PathEntry::new(keys.clone(), PathIndex(number), Presence::There));
        Self(all.collect())
    }

    /// All, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, PathEntry> {
        self.0.iter()
    }

    /// All, in order, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, PathEntry> {
        self.0.iter_mut()
    }

    /// Of its place in the order.
    pub fn at(&self, place: usize) -> Option<&PathEntry> {
        self.0.get(place)
    }

    /// Of this number.
    pub fn get(&self, number: PathIndex) -> Option<&PathEntry> {
        self.iter().find(|it| it.number == number)
    }

    /// Of this id.
    pub fn of_id(&mut self, id: u64) -> Option<&mut PathEntry> {
        self.iter_mut().find(|it| it.id == id)
    }

    /// Of this URI.
    pub fn of_uri(&mut self, uri: &PathUri) -> Option<&mut PathEntry> {
        self.iter_mut().find(|it| it.keys.uri == *uri)
    }

    /// Those that the engine does not have.
    pub fn absent(&self) -> impl Iterator<Item = &PathEntry> {
        self.iter().filter(|it| !it.is_there())
    }

    /// Numbers that a new path may have, one bit each: those of absent paths are kept for them.
    pub fn free_numbers(&self) -> u64 {
        let all = self.absent().map(|it| 1_u64 << it.number.0);
        !all.fold(0, |all, it| all | it)
    }

    /// The engine begins without the path at this place.
    ///
    /// # Panics
    /// There is none, or its absence was noted before.
    pub fn begin_without(&mut self, place: usize, why: String) {
        let it = &mut self.0[place];
        assert!(it.is_there(), "{}: it is {:?}", it.keys.uri, it.presence);
        (it.presence, it.storage) = (Presence::Absent(why), None);
    }

    /// The engine has one more.
    ///
    /// # Panics
    /// Another path has its number.
    pub fn join(&mut self, keys: PathKeys, number: PathIndex, storage: Option<Storage>) {
        let other = self.get(number).map(|it| it.keys.uri.to_string());
        assert!(other.is_none(), "{}: {number:?} is {other:?}'s", keys.uri);
        let mut it = PathEntry::new(keys, number, Presence::There);
        it.storage = storage;
        self.0.push(it);
    }

    /// The volume has it no more.
    pub fn remove(&mut self, number: PathIndex) -> Option<PathEntry> {
        let at = self.iter().position(|it| it.number == number)?;
        Some(self.0.remove(at))
    }

    /// Another relative throughput of a path.
    pub fn set_throughput(&mut self, number: PathIndex, throughput: u8) {
        for it in self.iter_mut().filter(|it| it.number == number) {
            it.keys.throughput = throughput;
        }
    }

    /// URIs and attributes of all, in order.
    pub fn keys(&self) -> Vec<PathKeys> {
        self.iter().map(|it| it.keys.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: u8) -> PathTable {
        let keys = |n| format!("mem:{n}MiB").parse::<PathUri>().unwrap().into();
        PathTable::new(&(1..=count).map(keys).collect::<Vec<PathKeys>>())
    }

    fn numbers(table: &PathTable) -> Vec<u8> {
        table.iter().map(|it| it.number.0).collect()
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
        let keys = paths.at(0).unwrap().keys().clone();
        paths.join(keys, PathIndex(0), None);
        assert_eq!(numbers(&paths), [1, 2, 0]);
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
        assert!(it.not_opened("busy".into()));
        assert_eq!(
            it.absence().unwrap(),
            "not there since the start, and tried again: busy"
        );
        it.begin_opening();
        assert!(it.wait("for another".into()) && it.is_waiting());
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
