//! One change at a time for each volume: verbs of a volume stand in its queue.
//!
//! # Contract
//! A verb enters the queues of all its volumes in one moment, and begins when it is first in each:
//! verbs of different volumes go on side by side, none has one volume while it waits for another,
//! and one of many volumes is not overtaken. A caller that goes away while it waits gives up its
//! place. Users come before discovery, which waits until the queue is empty, so that a user waits
//! for one change of discovery at most.
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a caller that waits is asked whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub struct VerbQueues {
    line: Mutex<Line>,
    moved: Condvar,
}

/// All verbs in the order in which they came: the queue of a volume are those that have it.
#[derive(Default)]
struct Line {
    /// The last ticket.
    last: u64,
    verbs: BTreeMap<u64, Verb>,
}

struct Verb {
    volumes: Vec<String>,
    has_begun: bool,
}

/// A place in the queues, which ends when this is dropped. Once it is handed out, no other verb
/// changes these volumes.
pub struct Alone<'a> {
    queues: &'a VerbQueues,
    ticket: u64,
}

impl Alone<'_> {
    /// Has a volume besides that does not exist yet. Verbs of that name only find that out, so this
    /// waits for none that is long, nor for one that waits for this one.
    pub fn add(&mut self, volume: &str) {
        let mut line = self.queues.line();
        let has = |it: &Verb| it.has_begun && it.volumes.iter().any(|it| it == volume);
        while (line.verbs.iter()).any(|(ticket, it)| *ticket != self.ticket && has(it)) {
            line = self.queues.wait(line);
        }
        let verb = line.verbs.get_mut(&self.ticket);
        verb.into_iter()
            .for_each(|it| it.volumes.push(volume.to_owned()));
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.queues.line().verbs.remove(&self.ticket);
        self.queues.moved.notify_all();
    }
}

impl Line {
    /// Whether none that came before this ticket, or has begun, has one of these volumes.
    fn is_free(&self, ticket: u64, volumes: &[String]) -> bool {
        let is_before =
            |(other, it): &(&u64, &Verb)| **other < ticket || **other != ticket && it.has_begun;
        let mut before = self.verbs.iter().filter(is_before);
        !before.any(|(_, it)| it.volumes.iter().any(|it| volumes.contains(it)))
    }

    fn enter(&mut self, volumes: &[String], has_begun: bool) -> u64 {
        self.last += 1;
        let verb = Verb {
            volumes: volumes.to_vec(),
            has_begun,
        };
        self.verbs.insert(self.last, verb);
        self.last
    }
}

impl VerbQueues {
    /// For a verb of these volumes, when it is its turn. `None`: the caller wants to `stop` while
    /// it waits, which is asked ten times a second. A caller that has a volume must not ask for
    /// more by this.
    pub fn alone(&self, volumes: &[String], stop: &dyn Fn() -> bool) -> Option<Alone<'_>> {
        let ticket = self.line().enter(volumes, false);
        let place = Alone {
            queues: self,
            ticket,
        };
        let mut line = self.line();
        while !line.is_free(ticket, volumes) {
            if stop() {
                return None;
            }
            line = self.wait(line);
        }
        let verb = line.verbs.get_mut(&ticket);
        verb.into_iter().for_each(|it| it.has_begun = true);
        drop(line);
        Some(place)
    }

    /// The same for a change that no user asked for, when no verb is in these queues. With a `stop`
    /// that is always so: only if none is now.
    pub fn alone_last(&self, volumes: &[String], stop: &dyn Fn() -> bool) -> Option<Alone<'_>> {
        let mut line = self.line();
        while !line.is_free(u64::MAX, volumes) {
            if stop() {
                return None;
            }
            line = self.wait(line);
        }
        Some(Alone {
            queues: self,
            ticket: line.enter(volumes, true),
        })
    }

    fn wait<'a>(&self, line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        let waited = self.moved.wait_timeout(line, TICK);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    const NEVER: &dyn Fn() -> bool = &|| false;
    const AT_ONCE: &dyn Fn() -> bool = &|| true;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|it| (*it).to_owned()).collect()
    }

    impl VerbQueues {
        fn alone_with(&self, volumes: &[&str]) -> Alone<'_> {
            self.alone(&names(volumes), NEVER).unwrap()
        }

        fn at_last(&self, volume: &str) -> Alone<'_> {
            self.alone_last(&names(&[volume]), NEVER).unwrap()
        }

        fn is_free(&self, volume: &str) -> bool {
            self.alone_last(&names(&[volume]), AT_ONCE).is_some()
        }

        /// How many wait for a volume.
        fn waiting(&self, volume: &str) -> usize {
            let line = self.line();
            let all = line.verbs.values().filter(|it| !it.has_begun);
            all.filter(|it| it.volumes.iter().any(|it| it == volume))
                .count()
        }

        fn is_empty(&self) -> bool {
            self.line().verbs.is_empty()
        }
    }

    #[test]
    fn users_come_before_discovery() {
        let queues = Arc::new(VerbQueues::default());
        let (to, order) = channel();
        let first = queues.at_last("a");
        let (mine, told) = (Arc::clone(&queues), to.clone());
        let discovery = std::thread::spawn(move || {
            for _ in 0..3 {
                let _alone = mine.at_last("a");
                told.send("discovery").unwrap();
            }
        });
        let users: Vec<_> = (0..3)
            .map(|_| {
                let (mine, told) = (Arc::clone(&queues), to.clone());
                std::thread::spawn(move || {
                    let _alone = mine.alone_with(&["a"]);
                    told.send("user").unwrap();
                })
            })
            .collect();
        while queues.waiting("a") != 3 {
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
        let queues = Arc::new(VerbQueues::default());
        let first = queues.alone_with(&["a"]);
        let second = queues.alone_with(&["b"]); // does not wait
        assert!(!queues.is_free("a"));
        // A reload of both waits for both, and others go on.
        let mine = Arc::clone(&queues);
        let (to, done) = channel();
        let both = std::thread::spawn(move || {
            let _alone = mine.alone_with(&["a", "b"]);
            to.send(()).unwrap();
        });
        while queues.waiting("b") == 0 {
            std::thread::yield_now();
        }
        drop(queues.alone_with(&["c"]));
        drop(first);
        assert!(done.try_recv().is_err());
        drop(second);
        both.join().unwrap();
        assert!(queues.is_empty());
    }

    #[test]
    fn verbs_of_two_mirrors_do_not_wait_for_each_other() {
        let queues = Arc::new(VerbQueues::default());
        let first = queues.alone_with(&["a", "a/0"]);
        let second = queues.alone_with(&["b", "b/0"]); // does not wait
        assert!(!queues.is_free("a/0") && !queues.is_free("b") && queues.is_free("c"));
        let mine = Arc::clone(&queues);
        let third = std::thread::spawn(move || drop(mine.alone_with(&["b/0", "c"])));
        while queues.waiting("c") == 0 {
            std::thread::yield_now();
        }
        drop(queues.alone_with(&["d"]));
        drop(first);
        assert!(!third.is_finished());
        drop(second);
        third.join().unwrap();
        assert!(queues.is_empty());
    }

    #[test]
    fn verb_of_several_volumes_is_not_overtaken() {
        let queues = Arc::new(VerbQueues::default());
        let first = queues.alone_with(&["a"]);
        let (to, order) = channel();
        let start = |volumes: &'static [&str], said: &'static str| {
            let (mine, told, before) = (Arc::clone(&queues), to.clone(), queues.line().last);
            let thread = std::thread::spawn(move || {
                let _alone = mine.alone_with(volumes);
                told.send(said).unwrap();
            });
            while queues.line().last == before {
                std::thread::yield_now();
            }
            thread
        };
        let both = start(&["a", "b"], "both");
        // Though "b" is free.
        let one = start(&["b"], "one");
        assert_eq!(queues.waiting("b"), 2);
        // One that gives up lets those behind it go on.
        let mut asked = std::cell::Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) > 0;
        assert!(queues.alone(&names(&["b", "c"]), &stop).is_none());
        assert!(*asked.get_mut() > 1 && queues.is_free("c"));
        drop(first);
        both.join().unwrap();
        one.join().unwrap();
        drop(to);
        assert_eq!(order.iter().collect::<Vec<_>>(), ["both", "one"]);
        assert!(queues.is_empty());
    }

    #[test]
    fn new_volume_is_locked_beside_one_that_waits_for_it() {
        let queues = Arc::new(VerbQueues::default());
        let mut first = queues.alone_with(&["a", "a/0"]);
        let mine = Arc::clone(&queues);
        let other = std::thread::spawn(move || drop(mine.alone_with(&["a", "a/1"])));
        while queues.waiting("a/1") == 0 {
            std::thread::yield_now();
        }
        first.add("a/1"); // does not wait for the one that waits for this one
        first.add("a/1");
        assert!(!other.is_finished() && !queues.is_free("a/1"));
        drop(first);
        other.join().unwrap();
        assert!(queues.is_empty());
    }

    /// One that came earlier, and waits for a third one, does not begin beside it.
    #[test]
    fn earlier_verb_waits_for_a_volume_that_was_added() {
        let queues = Arc::new(VerbQueues::default());
        let third = queues.alone_with(&["b"]);
        let mine = Arc::clone(&queues);
        let earlier = std::thread::spawn(move || drop(mine.alone_with(&["b", "c"])));
        while queues.waiting("c") == 0 {
            std::thread::yield_now();
        }
        let mut first = queues.alone_with(&["a"]);
        first.add("c");
        drop(third);
        assert!(!earlier.is_finished());
        drop(first);
        earlier.join().unwrap();
        assert!(queues.is_empty());
    }

    #[test]
    fn nothing_is_left_of_a_verb_that_does_not_wait() {
        let queues = VerbQueues::default();
        let now = || queues.alone_last(&names(&["a", "a/0"]), AT_ONCE);
        for name in ["a", "a/0"] {
            let first = queues.alone_with(&[name]);
            assert!(now().is_none());
            assert!(!queues.is_free(name), "the first one has it yet");
            drop(first);
        }
        // Others go on beside it.
        let it = now();
        assert!(it.is_some());
        drop(queues.alone_with(&["b"]));
        drop(it);
        assert!(queues.is_empty());
    }
}
