//! One change at a time for each volume.
//!
//! # Contract
//! A verb of one volume excludes other verbs of that volume; verbs of different volumes go on side
//! by side. A verb of a mirror's legs has the mirror and its legs, and a reload the volumes that it
//! changes, all at once or none. Users come before discovery, which waits for the verb that is
//! under way at most once.
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
    /// Users who wait for one.
    waiting_for: BTreeMap<String, usize>,
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
        self.has_room_for(volume) && !self.waiting_for.contains_key(volume)
    }
}

impl VerbLock {
    /// Waits until no other verb changes this volume; until the result is dropped, none does.
    pub fn alone_with(&self, volume: &str) -> Alone<'_> {
        self.alone_with_all(vec![volume.to_owned()])
    }

    /// The same of several, in which it never waits for one while it has another.
    pub fn alone_with_all(&self, volumes: Vec<String>) -> Alone<'_> {
        let mut turn = self.turn();
        for volume in &volumes {
            *turn.waiting_for.entry(volume.clone()).or_default() += 1;
        }
        while !volumes.iter().all(|volume| turn.has_room_for(volume)) {
            turn = self.wait(turn);
        }
        for volume in &volumes {
            if let Some(count) = turn.waiting_for.get_mut(volume) {
                *count -= 1;
                if *count == 0 {
                    turn.waiting_for.remove(volume);
                }
            }
        }
        turn.volumes.extend(volumes.iter().cloned());
        self.has(volumes)
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
        while lock.turn().waiting_for.get("a") != Some(&3) {
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
        while !lock.turn().waiting_for.contains_key("b") {
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
        while !lock.turn().waiting_for.contains_key("c") {
            std::thread::yield_now();
        }
        drop(lock.alone_with("c"));
        drop(first);
        assert!(!third.is_finished());
        drop(second);
        third.join().unwrap();
        assert!(lock.turn().volumes.is_empty() && lock.turn().waiting_for.is_empty());
    }

    #[test]
    fn new_volume_is_locked_beside_one_that_waits_for_it() {
        let lock = Arc::new(VerbLock::default());
        let names = || vec!["a".to_owned(), "a/1".to_owned()];
        let mut first = lock.alone_with_all(vec!["a".to_owned(), "a/0".to_owned()]);
        let mine = Arc::clone(&lock);
        let other = std::thread::spawn(move || drop(mine.alone_with_all(names())));
        while !lock.turn().waiting_for.contains_key("a/1") {
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
