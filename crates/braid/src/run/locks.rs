//! One change at a time for each volume.
//!
//! # Contract
//! A verb of one volume excludes other verbs of that volume; verbs of different volumes go on side
//! by side. A verb of a mirror's legs has the mirror and its legs, and a reload the volumes that it
//! changes, all at once or none. Verbs that have a volume in common come in the order in which
//! they were asked for, so that one of many volumes is not overtaken for ever; a caller that goes
//! away while it waits gives up its place. Users come before discovery, which waits for the verb
//! that is under way at most once.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a caller that waits is asked whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub struct VerbLock {
    turn: Mutex<Turn>,
    free: Condvar,
}

#[derive(Default)]
struct Turn {
    /// Those that one changes.
    volumes: BTreeSet<String>,
    /// The last ticket.
    ticket: u64,
    /// What users wait for, by ticket.
    waiting: BTreeMap<u64, Vec<String>>,
}

/// No other verb changes what this one has, while it is there.
pub struct Alone<'a> {
    lock: &'a VerbLock,
    volumes: Vec<String>,
}

impl Alone<'_> {
    /// Has a volume besides that does not exist yet. Verbs of that name only find that out, so this
    /// waits for none that is long, nor for one that waits for this one.
    pub fn add(&mut self, volume: &str) {
        if self.volumes.iter().any(|it| it == volume) {
            return;
        }
        let mut turn = self.lock.turn();
        while turn.volumes.contains(volume) {
            turn = self.lock.wait(turn);
        }
        turn.volumes.insert(volume.to_owned());
        self.volumes.push(volume.to_owned());
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let mut turn = self.lock.turn();
        turn.volumes.retain(|it| !self.volumes.contains(it));
        drop(turn);
        self.lock.free.notify_all();
    }
}

impl Turn {
    /// Whether a verb of a volume may begin.
    fn has_room_for(&self, volume: &str) -> bool {
        !self.volumes.contains(volume)
    }

    /// Whether discovery may change a volume.
    fn is_left_alone(&self, volume: &str) -> bool {
        self.has_room_for(volume) && !self.is_waited_for(volume)
    }

    /// Whether a user waits for a volume.
    fn is_waited_for(&self, volume: &str) -> bool {
        let mut all = self.waiting.values().flatten();
        all.any(|it| it == volume)
    }

    /// Whether the verb with this ticket may begin: what it waits for is free, and none that came
    /// before waits for any of it.
    fn is_next(&self, ticket: u64) -> bool {
        let mut earlier = self.waiting.range(..ticket).flat_map(|it| it.1);
        let mine = &self.waiting[&ticket];
        mine.iter().all(|volume| self.has_room_for(volume)) && !earlier.any(|it| mine.contains(it))
    }
}

impl VerbLock {
    /// Waits until no other verb changes one of these volumes, and never for one while it has
    /// another; until the result is dropped, none does. `None`: the caller wants to `stop` while it
    /// waits, which is asked ten times a second. Whoever has a volume must not ask for more by
    /// this.
    pub fn alone_with_all_unless(
        &self,
        volumes: Vec<String>,
        stop: &dyn Fn() -> bool,
    ) -> Option<Alone<'_>> {
        let mut turn = self.turn();
        turn.ticket += 1;
        let ticket = turn.ticket;
        turn.waiting.insert(ticket, volumes.clone());
        while !turn.is_next(ticket) {
            if stop() {
                turn.waiting.remove(&ticket);
                drop(turn);
                self.free.notify_all(); // those behind it
                return None;
            }
            let waited = self.free.wait_timeout(turn, TICK);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        turn.waiting.remove(&ticket);
        turn.volumes.extend(volumes.iter().cloned());
        Some(self.has(volumes))
    }

    /// The same, if no verb changes one of them just now, or waits for it.
    pub fn alone_now_with_all(&self, volumes: Vec<String>) -> Option<Alone<'_>> {
        let mut turn = self.turn();
        // The lock is made only where it was free: one that is dropped ends another one's turn.
        if !volumes.iter().all(|volume| turn.is_left_alone(volume)) {
            return None;
        }
        turn.volumes.extend(volumes.iter().cloned());
        Some(self.has(volumes))
    }

    /// The same for a change that no user asked for: users who wait come first.
    pub fn alone_at_last(&self, volume: &str) -> Alone<'_> {
        let mut turn = self.turn();
        while !turn.is_left_alone(volume) {
            turn = self.wait(turn);
        }
        turn.volumes.insert(volume.to_owned());
        self.has(vec![volume.to_owned()])
    }

    /// The same, unless the caller wants to `stop` first, which is asked ten times a second.
    pub fn alone_at_last_unless(&self, volume: &str, stop: &dyn Fn() -> bool) -> Option<Alone<'_>> {
        let mut turn = self.turn();
        while !turn.is_left_alone(volume) {
            if stop() {
                return None;
            }
            let waited = self.free.wait_timeout(turn, TICK);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        turn.volumes.insert(volume.to_owned());
        Some(self.has(vec![volume.to_owned()]))
    }

    fn has(&self, volumes: Vec<String>) -> Alone<'_> {
        Alone {
            lock: self,
            volumes,
        }
    }

    fn wait<'a>(&self, turn: MutexGuard<'a, Turn>) -> MutexGuard<'a, Turn> {
        let waited = self.free.wait(turn);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    impl VerbLock {
        fn alone_with(&self, volume: &str) -> Alone<'_> {
            self.alone_with_all(vec![volume.to_owned()])
        }

        fn alone_with_all(&self, volumes: Vec<String>) -> Alone<'_> {
            self.alone_with_all_unless(volumes, &|| false).unwrap()
        }
    }

    #[test]
    fn users_come_before_discovery() {
        let lock = Arc::new(VerbLock::default());
        let (to, order) = channel();
        let first = lock.alone_at_last("a");
        let (mine, told) = (Arc::clone(&lock), to.clone());
        let discovery = std::thread::spawn(move || {
            for _ in 0..3 {
                let _alone = mine.alone_at_last("a");
                told.send("discovery").unwrap();
            }
        });
        let users: Vec<_> = (0..3)
            .map(|_| {
                let (mine, told) = (Arc::clone(&lock), to.clone());
                std::thread::spawn(move || {
                    let _alone = mine.alone_with("a");
                    told.send("user").unwrap();
                })
            })
            .collect();
        while lock.turn().waiting.len() != 3 {
            std::thread::yield_now();
        }
        drop(first);
        discovery.join().unwrap();
        users.into_iter().for_each(|it| it.join().unwrap());
        drop(to);
        let order: Vec<_> = order.iter().collect();
        assert_eq!(order[..3], ["user"; 3], "{order:?}");
        assert_eq!(order[3..], ["discovery"; 3], "{order:?}");
    }

    #[test]
    fn verbs_of_two_volumes_do_not_wait_for_each_other() {
        let lock = Arc::new(VerbLock::default());
        let first = lock.alone_with("a");
        let second = lock.alone_with("b"); // does not wait
        assert!(lock.alone_at_last_unless("a", &|| true).is_none());
        // A reload of both waits for both, and others go on.
        let mine = Arc::clone(&lock);
        let (to, done) = channel();
        let both = std::thread::spawn(move || {
            let _alone = mine.alone_with_all(vec!["a".to_owned(), "b".to_owned()]);
            to.send(()).unwrap();
        });
        while !lock.turn().is_waited_for("b") {
            std::thread::yield_now();
        }
        drop(lock.alone_with("c"));
        drop(first);
        assert!(done.try_recv().is_err());
        drop(second);
        both.join().unwrap();
        assert!(lock.turn().volumes.is_empty());
    }

    #[test]
    fn verbs_of_two_mirrors_do_not_wait_for_each_other() {
        let lock = Arc::new(VerbLock::default());
        let names = |mirror: &str| vec![mirror.to_owned(), format!("{mirror}/0")];
        let first = lock.alone_with_all(names("a"));
        let second = lock.alone_with_all(names("b")); // does not wait
        let is_free = |volume: &str| lock.alone_at_last_unless(volume, &|| true).is_some();
        assert!(!is_free("a/0") && !is_free("b") && is_free("c"));
        // One that waits for a leg has none of the others meanwhile.
        let mine = Arc::clone(&lock);
        let third = std::thread::spawn(move || {
            drop(mine.alone_with_all(vec!["b/0".to_owned(), "c".to_owned()]));
        });
        while !lock.turn().is_waited_for("c") {
            std::thread::yield_now();
        }
        assert!(!lock.turn().volumes.contains("c"));
        drop(lock.alone_with("d"));
        drop(first);
        assert!(!third.is_finished());
        drop(second);
        third.join().unwrap();
        assert!(lock.turn().volumes.is_empty() && lock.turn().waiting.is_empty());
    }

    #[test]
    fn verb_of_several_volumes_is_not_overtaken() {
        let lock = Arc::new(VerbLock::default());
        let first = lock.alone_with("a");
        let (to, order) = channel();
        let start = |names: &[&str], said: &'static str| {
            let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
            let (mine, told, before) = (Arc::clone(&lock), to.clone(), lock.turn().ticket);
            let thread = std::thread::spawn(move || {
                let _alone = mine.alone_with_all(names);
                told.send(said).unwrap();
            });
            while lock.turn().ticket == before {
                std::thread::yield_now();
            }
            thread
        };
        let both = start(&["a", "b"], "both");
        // Though "b" is free.
        let one = start(&["b"], "one");
        assert!(lock.turn().is_waited_for("b"));
        // One that gives up lets those behind it go on.
        let mut asked = std::cell::Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) > 0;
        let names = vec!["b".to_owned(), "c".to_owned()];
        assert!(lock.alone_with_all_unless(names, &stop).is_none());
        assert!(*asked.get_mut() > 1 && !lock.turn().is_waited_for("c"));
        drop(first);
        both.join().unwrap();
        one.join().unwrap();
        drop(to);
        assert_eq!(order.iter().collect::<Vec<_>>(), ["both", "one"]);
        assert!(lock.turn().volumes.is_empty());
    }

    #[test]
    fn new_volume_is_locked_beside_one_that_waits_for_it() {
        let lock = Arc::new(VerbLock::default());
        let names = || vec!["a".to_owned(), "a/1".to_owned()];
        let mut first = lock.alone_with_all(vec!["a".to_owned(), "a/0".to_owned()]);
        let mine = Arc::clone(&lock);
        let other = std::thread::spawn(move || drop(mine.alone_with_all(names())));
        while !lock.turn().is_waited_for("a/1") {
            std::thread::yield_now();
        }
        first.add("a/1"); // does not wait for the one that waits for this one
        first.add("a/1");
        assert!(!other.is_finished());
        assert!(lock.turn().volumes.contains("a/1"));
        drop(first);
        other.join().unwrap();
        assert!(lock.turn().volumes.is_empty());
    }

    #[test]
    fn alone_now_gets_nothing_while_another_has_it() {
        let lock = Arc::new(VerbLock::default());
        let names = || vec!["a".to_owned(), "a/0".to_owned()];
        let tried = |lock: &Arc<VerbLock>| {
            let mine = Arc::clone(lock);
            // Elsewhere: a caller that waits for its own lock waits for ever.
            let (to, answer) = channel();
            std::thread::spawn(move || to.send(mine.alone_now_with_all(names()).is_none()));
            answer.recv_timeout(Duration::from_secs(60))
        };
        for name in ["a", "a/0"] {
            let first = lock.alone_with(name);
            let answer = tried(&lock);
            if answer.is_err() {
                std::mem::forget(first); // it would wait too
                panic!("it waits for itself");
            }
            assert_eq!(answer, Ok(true));
            assert!(!lock.turn().volumes.is_empty(), "the first one has it yet");
            drop(first);
        }
        // Others go on beside it.
        let now = lock.alone_now_with_all(names());
        assert!(now.is_some());
        drop(lock.alone_with("b"));
        drop(now);
        assert!(lock.turn().volumes.is_empty());
    }
}
