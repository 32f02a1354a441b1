//! The queues that there are, and who has them.
use crate::config::Config;
use crate::lane::Tally;
use crate::limits::{AWAITED_SHOWN, LEAVING_NS};
use crate::messages::CoreWaits;
use crate::{Namespace, Trust};
use queue::Kind;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use sys::Shared;

/// A queue that somebody has.
#[derive(Debug)]
pub struct Place {
    pub number: u32,
    pub kind: Kind,
    pub entries: u16,
    pub uid: u32,
    pub core: usize,
    /// Bit n: region n is registered.
    pub regions: u32,
    /// Its data memory and what it registered, also what was let go and commands still use.
    pub mapped: Vec<Weak<Shared>>,
    /// Since when its client is gone; commands of it are in flight yet.
    pub leaving: Option<Instant>,
    /// All cores know of these that are changes.
    pub is_shown: bool,
    pub tally: Arc<Tally>,
    /// Set when the client is gone: nothing of it is begun any more.
    pub shut: Arc<AtomicBool>,
}

impl Place {
    /// Bytes that are mapped of it, besides its rings.
    pub fn memory(&self) -> u64 {
        let bytes = |it: &Weak<Shared>| it.upgrade().map_or(0, |it| it.len() as u64);
        self.mapped.iter().map(bytes).sum()
    }
}

/// Queues whose clients have gone, and whose last commands have not ended.
#[derive(Debug, Default)]
pub struct Stuck {
    pub count: u32,
    /// Bit n: requests to namespace n + 1 are waited for.
    namespaces: u64,
    /// Since the first of their clients went.
    longest: Duration,
}

impl Stuck {
    /// Whether one of them had time to end: storage holds it that does not answer.
    pub fn is_held(&self) -> bool {
        self.longest.as_nanos() >= LEAVING_NS.into()
    }

    fn add(&mut self, place: &Place, age: Duration) {
        self.count += 1;
        self.namespaces |= place.tally.awaited.load(Ordering::Relaxed);
        self.longest = self.longest.max(age);
    }

    /// The reason why they wait.
    pub fn words(&self, namespaces: &[Namespace]) -> String {
        let named = (0..)
            .zip(namespaces)
            .filter(|(at, _)| self.namespaces >> at & 1 == 1);
        let named = named.map(|(at, it): (u32, _)| format!("{} ({})", at + 1, it.store.name()));
        let mut named = named.collect::<Vec<_>>().join(", ");
        // Its thread has not said yet which.
        if !named.is_empty() {
            named.insert_str(0, ", to namespace ");
        }
        format!(
            "{} wait for requests of clients that are gone, for {} s{named}: see what is wrong \
             with that storage",
            self.count,
            self.longest.as_secs()
        )
    }
}

/// All of them: first those of kind `user_poll`, from number 1.
#[derive(Debug)]
pub struct Places {
    user_poll: u32,
    user_irq: u32,
    taken: BTreeMap<u64, Place>,
    /// By number − 1.
    used: Vec<bool>,
}

impl Places {
    pub fn new(user_poll: u32, user_irq: u32) -> Self {
        Self {
            user_poll,
            user_irq,
            taken: BTreeMap::new(),
            used: vec![false; (user_poll + user_irq) as usize],
        }
    }

    pub fn capacity(&self) -> usize {
        self.used.len()
    }

    /// How many there are.
    pub fn all(&self) -> usize {
        self.taken.len()
    }

    /// A number that a queue of this kind can have.
    pub fn room(&self, kind: Kind) -> Option<u32> {
        let numbers = match kind {
            Kind::UserPoll => 0..self.user_poll,
            Kind::UserIrq => self.user_poll..self.user_poll + self.user_irq,
        };
        let mut numbers = numbers.into_iter();
        let found = numbers.find(|&number| !self.used[number as usize])?;
        Some(found + 1)
    }

    pub fn take(&mut self, id: u64, place: Place) {
        self.used[place.number as usize - 1] = true;
        let other = self.taken.insert(id, place);
        debug_assert!(other.is_none(), "two queues of one connection");
    }

    pub fn free(&mut self, id: u64) -> Option<Place> {
        let place = self.taken.remove(&id)?;
        self.used[place.number as usize - 1] = false;
        Some(place)
    }

    pub fn find(&self, id: u64) -> Option<&Place> {
        self.taken.get(&id)
    }

    pub fn find_mut(&mut self, id: u64) -> Option<&mut Place> {
        self.taken.get_mut(&id)
    }

    /// Queues of a kind that nobody has and whose last commands have not ended, though they had
    /// time to.
    pub fn stuck(&self, kind: Kind) -> Stuck {
        let mut stuck = Stuck::default();
        for (place, age) in self.leaving(kind) {
            if age.as_nanos() >= LEAVING_NS.into() {
                stuck.add(place, age);
            }
        }
        stuck
    }

    /// Of a user, all of them: also those that may be gone in a moment.
    pub fn leaving_of(&self, kind: Kind, uid: u32) -> Stuck {
        let mut leaving = Stuck::default();
        for (place, age) in self.leaving(kind).filter(|(place, _)| place.uid == uid) {
            leaving.add(place, age);
        }
        leaving
    }

    /// With how long each has been leaving.
    fn leaving(&self, kind: Kind) -> impl Iterator<Item = (&Place, Duration)> {
        let places = self.taken.values().filter(move |place| place.kind == kind);
        places.filter_map(|place| Some((place, place.leaving?.elapsed())))
    }

    /// Whether the client of some queue is gone, and not all cores know of what it left.
    pub fn has_unshown(&self) -> bool {
        let mut all = self.taken.values();
        all.any(|place| place.leaving.is_some() && !place.is_shown)
    }

    /// Queues of a user.
    pub fn of_user(&self, uid: u32) -> u32 {
        self.taken.values().filter(|place| place.uid == uid).count() as u32
    }

    /// Bytes that are mapped of all queues of a user, besides their rings.
    pub fn memory_of_user(&self, uid: u32) -> u64 {
        let all = self.taken.values().filter(|place| place.uid == uid);
        all.map(Place::memory).sum()
    }

    /// All of it, as JSON, for a user and whether it is shown all. A user that is not is shown its
    /// own queues and how many others there are, and of namespaces those that it may use.
    /// There are numbers and our own words in it only.
    pub fn list(
        &self,
        config: &Config,
        (uid, sees_all): (u32, bool),
        cores: impl Iterator<Item = CoreWaits>,
    ) -> String {
        let trust = match config.trust {
            Trust::Mediated => "mediated",
            Trust::Trusted => "trusted",
        };
        let mut text = format!(
            "{{\"user_poll\":{},\"user_irq\":{},\"trust\":\"{trust}\",\"spin_us\":{},\
             \"namespaces\":[",
            self.user_poll,
            self.user_irq,
            config.spin_ns / 1000
        );
        push_namespaces(&mut text, config, uid, sees_all);
        push_cores(&mut text, cores.filter(|_| sees_all));
        let is_shown = |place: &&Place| sees_all || place.uid == uid;
        let shown: Vec<_> = self.taken.values().filter(is_shown).collect();
        let others = self.taken.len() - shown.len();
        let _ = write!(text, "],\"others\":{others},\"queues\":[");
        for (at, place) in shown.into_iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let Tally {
                commands,
                errors,
                in_flight,
                interrupts,
                ..
            } = &*place.tally;
            let [commands, errors, in_flight, interrupts] =
                [commands, errors, in_flight, interrupts]
                    .map(|count| count.load(Ordering::Relaxed));
            let _ = write!(
                text,
                "{comma}{{\"number\":{},\"kind\":\"{}\",\"entries\":{},\"uid\":{},\"thread\":{},\
                 \"leaving\":{},\"commands\":{commands},\"errors\":{errors},\
                 \"in_flight\":{in_flight},\"interrupts\":{interrupts}",
                place.number,
                place.kind.name(),
                place.entries,
                place.uid,
                place.core,
                place.leaving.is_some()
            );
            if let Some(since) = place.leaving {
                let seconds = since.elapsed().as_secs();
                let _ = write!(text, ",\"leaving_s\":{seconds},\"awaits\":[");
                push_nsids(&mut text, place.tally.awaited.load(Ordering::Relaxed));
                text.push(']');
            }
            text.push('}');
        }
        text.push_str("]}");
        text
    }
}

/// Namespaces, as a user may use them; who is shown all, those too that it may not use.
fn push_namespaces(text: &mut String, config: &Config, uid: u32, sees_all: bool) {
    let grant = config.rights.of(uid);
    let mut own = grant.map_or(Vec::new(), |grant| grant.views(&config.namespaces));
    own.resize_with(config.namespaces.len(), || None);
    let all = crate::Grant::whole().views(&config.namespaces);
    let views = (1..).zip(own.into_iter().zip(all));
    let shown = views.filter_map(|(nsid, (own, whole)): (u32, _)| match own {
        Some(view) => Some((nsid, view, true)),
        None => Some((nsid, whole.filter(|_| sees_all)?, false)),
    });
    for (at, (nsid, view, yours)) in shown.enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(
            text,
            "{comma}{{\"nsid\":{nsid},\"blocks\":{},\"first\":{},\"end\":{},\
             \"block_bytes\":{},\"read_only\":{},\"yours\":{yours}}}",
            view.blocks,
            view.first,
            view.end,
            1_u32 << view.block_shift,
            view.read_only
        );
    }
}

/// Counters of cores that have queues.
fn push_cores(text: &mut String, cores: impl Iterator<Item = CoreWaits>) {
    text.push_str("],\"threads\":[");
    for (at, waits) in cores.enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let CoreWaits { enters, sleeps } = waits;
        let _ = write!(
            text,
            "{comma}{{\"thread\":{at},\"enters\":{enters},\"sleeps\":{sleeps}}}"
        );
    }
}

/// The first few NSIDs of a set whose bit n is NSID n + 1.
fn push_nsids(text: &mut String, set: u64) {
    let nsids = (0..64).filter(|at| set >> at & 1 == 1).take(AWAITED_SHOWN);
    for (n, at) in nsids.enumerate() {
        let comma = if n > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{}", at + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rights;
    use crate::Store;
    use crate::limits::{CORES_MAX, NAMESPACES_MAX, QUEUES_MAX};
    use queue::limits::TEXT_MAX;
    use std::sync::atomic::AtomicU64;

    /// All that a broker can have, with the longest figures.
    #[test]
    fn the_list_of_all_queues_is_one_that_clients_take() {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join("q")).unwrap();
        let namespace = Namespace {
            store: Store::Null,
            block_shift: 9,
            blocks: u64::MAX,
            read_only: false,
        };
        let config = Config {
            listener,
            namespaces: vec![namespace; NAMESPACES_MAX],
            identity: None,
            user_poll: QUEUES_MAX,
            user_irq: QUEUES_MAX,
            memory_max: 4096,
            patience_ns: 0,
            spin_ns: u64::MAX,
            trust: Trust::Mediated,
            rights: Rights::default(),
        };
        let most = || AtomicU64::new(u64::MAX);
        let tally = Arc::new(Tally {
            uid: 7,
            pid: 7,
            since: None,
            commands: most(),
            errors: most(),
            in_flight: most(),
            interrupts: most(),
            bytes: [most(), most()],
            // Those that are shown: of the longest.
            awaited: AtomicU64::new(u64::MAX << 9),
        });
        // The largest age of a clock.
        let ages = Duration::from_secs(u64::MAX >> 2);
        let leaving = Instant::now().checked_sub(ages);
        assert!(leaving.is_some());
        let mut places = Places::new(QUEUES_MAX, QUEUES_MAX);
        for (id, number) in (0..).zip(1..=2 * QUEUES_MAX) {
            let place = Place {
                number,
                kind: Kind::UserPoll,
                entries: 4096,
                uid: u32::MAX,
                core: CORES_MAX,
                regions: 1,
                mapped: Vec::new(),
                leaving,
                is_shown: true,
                tally: Arc::clone(&tally),
                shut: Arc::default(),
            };
            places.take(id, place);
        }
        let waits = CoreWaits {
            enters: u64::MAX,
            sleeps: u64::MAX,
        };
        let cores = || std::iter::repeat_n(waits, CORES_MAX);
        let some = places.list(&config, (1, false), cores());
        assert!(some.contains("\"threads\":[],"), "others' doings: {some}");
        assert!(
            some.contains("\"namespaces\":[],"),
            "no right to any: {some}"
        );
        let all = places.list(&config, (1, true), cores());
        assert_eq!(all.matches("\"enters\":").count(), CORES_MAX);
        let namespaces = config.namespaces.len();
        assert_eq!(all.matches("\"yours\":false").count(), namespaces);
        assert_eq!(all.matches("\"number\":").count(), 2 * QUEUES_MAX as usize);
        assert!(all.contains(",\"leaving_s\":46116860184273") && all.contains("[10,11,12,13]"));
        assert!((1 << 20..=TEXT_MAX).contains(&all.len()), "{}", all.len());
    }
    #[test]
    fn what_is_waited_for_is_named_where_it_is_known() {
        let namespace = Namespace {
            store: Store::Null,
            block_shift: 9,
            blocks: 1,
            read_only: false,
        };
        let stuck = |namespaces| Stuck {
            count: 2,
            namespaces,
            longest: Duration::from_secs(3),
        };
        let words = |set| stuck(set).words(&[namespace.clone(), namespace.clone()]);
        let all = "2 wait for requests of clients that are gone, for 3 s";
        assert!(
            words(0).starts_with(&format!("{all}: see what")),
            "{}",
            words(0)
        );
        let want = format!("{all}, to namespace 1 (null:), 2 (null:): see");
        assert!(words(3).starts_with(&want), "{}", words(3));
    }
}
