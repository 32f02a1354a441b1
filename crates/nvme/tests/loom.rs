//! Every order in which two sides of a queue can meet, and every value that a load may see.
//!
//! `cargo xtask ci --only loom` runs it, with `--cfg loom`: without that there is nothing here, and
//! nobody pays for compiling loom. Each model has twins in which one order is too weak: they must
//! be found, or the model shows nothing.
#![allow(unexpected_cfgs, reason = "cargo doesn't know of loom")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "tests")]

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;
use nvme::queue::{CqConsumer, CqProducer, Entry, Nap, Place, SharedMemory};
use nvme::queue::{Misbehaved, SqConsumer, SqProducer};
use nvme::wire::Cqe;

/// What is taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weak {
    Nothing,
    /// Doorbells publish nothing.
    Doorbells,
    /// The phase tag publishes nothing.
    Phase,
    /// No fence between a store and a load.
    Fences,
}

/// Words of eight bytes; entries are cut down to the two that tell them apart.
struct Memory(Vec<AtomicU64>, Weak);

impl Memory {
    fn new(words: usize, weak: Weak) -> Arc<Self> {
        Arc::new(Self((0..words).map(|_| AtomicU64::new(0)).collect(), weak))
    }
}

impl SharedMemory for Memory {
    fn load(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Relaxed)
    }
    fn store(&self, at: usize, value: u64) {
        self.0[at / 8].store(value, Ordering::Relaxed);
    }
    fn load_acquire(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Acquire)
    }
    fn store_release(&self, at: usize, value: u64) {
        let order = match self.1 {
            Weak::Phase => Ordering::Relaxed,
            _ => Ordering::Release,
        };
        self.0[at / 8].store(value, order);
    }
    fn load_word(&self, at: usize) -> u32 {
        self.0[at / 8].load(Ordering::Acquire) as u32
    }
    fn store_word(&self, at: usize, value: u32) {
        let order = match self.1 {
            Weak::Doorbells => Ordering::Relaxed,
            _ => Ordering::Release,
        };
        self.0[at / 8].store(value.into(), order);
    }
    fn fence(&self) {
        if self.1 != Weak::Fences {
            fence(Ordering::SeqCst);
        }
    }
    fn load_entry(&self, at: usize) -> Entry {
        [self.load(at), self.load(at + 8), 0, 0, 0, 0, 0, 0]
    }
    fn store_entry(&self, at: usize, entry: &Entry) {
        self.store(at, entry[0]);
        self.store(at + 8, entry[1]);
    }
}

const SQ: Place = Place {
    entries_at: 64,
    doorbell_at: 0,
    entries: 2,
};

const CQ: Place = Place {
    entries_at: 64 + 128,
    doorbell_at: 8,
    entries: 2,
};

const WORDS: usize = (64 + 128 + 32) / 8;
const NAP: usize = 16;

/// Commands through both queues of two entries, so that each wraps: the controller sees each whole,
/// and the host sees each completion whole, of its own round.
fn commands(weak: Weak, count: u64) {
    loom::model(move || {
        let memory = Memory::new(WORDS, weak);
        let theirs = Arc::clone(&memory);
        let controller = thread::spawn(move || {
            let (mut sq, mut cq) = (SqConsumer::new(SQ), CqProducer::new(CQ));
            for round in 1..=count {
                while sq.available(&*theirs).unwrap() == 0 {
                    thread::yield_now();
                }
                let entry = sq.fetch(&*theirs).unwrap();
                assert_eq!((entry[0], entry[1]), (round, round << 32), "torn or stale");
                while cq.room(&*theirs, 1).unwrap() == 0 {
                    thread::yield_now();
                }
                let cqe = Cqe {
                    result: round << 32,
                    sqhd: sq.head(),
                    cid: round as u16,
                    ..Cqe::default()
                };
                cq.post(&*theirs, &cqe);
            }
        });
        let (mut sq, mut cq) = (SqProducer::new(SQ, 0), CqConsumer::new(CQ));
        for round in 1..=count {
            let entry = [round, round << 32, 0, 0, 0, 0, 0, 0];
            sq.push(&*memory, &entry).unwrap();
            sq.ring(&*memory);
            let cqe = loop {
                if let Some(cqe) = cq.take(&*memory) {
                    break cqe;
                }
                thread::yield_now();
            };
            let seen = (u64::from(cqe.cid), cqe.result);
            assert_eq!(seen, (round, round << 32), "torn or stale");
            sq.fetched(cqe.sqhd).unwrap();
            cq.ring(&*memory);
        }
        controller.join().unwrap();
    });
}

#[test]
fn commands_and_completions_are_seen_whole_and_in_order() {
    commands(Weak::Nothing, 3);
}

/// The host lets go while the controller fetches: what that has is the whole command, or none
/// whatever the rest says; and once it has seen that the host let go, it fetches nothing.
#[test]
fn t09_a_command_that_is_taken_back_while_it_is_fetched_is_whole_or_none() {
    loom::model(|| {
        let memory = Memory::new(WORDS, Weak::Nothing);
        let theirs = Arc::clone(&memory);
        let (mut sq, entry) = (SqProducer::new(SQ, 0), [1, 1 << 32, 0, 0, 0, 0, 0, 0]);
        sq.push(&*memory, &entry).unwrap();
        sq.ring(&*memory);
        let controller = thread::spawn(move || {
            let mut sq = SqConsumer::new(SQ);
            match sq.available(&*theirs) {
                Ok(1) => {
                    let entry = sq.fetch(&*theirs).unwrap();
                    assert!(entry[0] == 0x7e || (entry[0], entry[1]) == (1, 1 << 32));
                }
                other => assert_eq!(other, Err(Misbehaved::LetGo)),
            }
        });
        sq.let_go(&*memory);
        controller.join().unwrap();
        assert!(SqConsumer::new(SQ).is_let_go(&*memory));
    });
}

/// The host lets go while the controller answers: the host finds the answer behind that, or the
/// controller knows that nobody may have.
fn last_answer(weak: Weak) {
    loom::model(move || {
        let memory = Memory::new(WORDS, weak);
        let theirs = Arc::clone(&memory);
        let controller = thread::spawn(move || {
            let (sq, mut cq) = (SqConsumer::new(SQ), CqProducer::new(CQ));
            cq.post(&*theirs, &Cqe::default());
            !sq.was_let_go(&*theirs)
        });
        let (mut sq, mut cq) = (SqProducer::new(SQ, 0), CqConsumer::new(CQ));
        sq.let_go(&*memory);
        let heard = cq.take(&*memory).is_some();
        assert!(controller.join().unwrap() <= heard, "told nobody");
    });
}

#[test]
fn t13_an_answer_is_heard_by_who_lets_go_or_its_controller_knows() {
    last_answer(Weak::Nothing);
}

#[test]
#[should_panic(expected = "told nobody")]
fn letting_go_without_fences_is_found() {
    last_answer(Weak::Fences);
}

#[test]
#[should_panic(expected = "torn or stale")]
fn a_doorbell_without_release_is_found() {
    commands(Weak::Doorbells, 2);
}

#[test]
#[should_panic(expected = "torn or stale")]
fn a_phase_tag_without_release_is_found() {
    commands(Weak::Phase, 2);
}

/// A sleeper waits for `count` pieces of work, one after the other; loom calls a wake-up that is
/// lost a deadlock.
fn naps(weak: Weak, count: u32) {
    loom::model(move || {
        let memory = Memory::new(4, weak);
        let kick = Arc::new(Notify::new());
        let (theirs, their_kick) = (Arc::clone(&memory), Arc::clone(&kick));
        let worker = thread::spawn(move || {
            for work in 1..=count {
                theirs.store_word(0, work);
                if Nap::new(NAP).take(&*theirs) {
                    their_kick.notify();
                }
            }
        });
        let mut seen = 0;
        while seen < count {
            Nap::new(NAP).begin(&*memory);
            let now = memory.load_word(0);
            if now == seen {
                kick.wait();
            }
            Nap::new(NAP).end(&*memory);
            seen = memory.load_word(0);
        }
        worker.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    naps(Weak::Nothing, 1);
    naps(Weak::Nothing, 2);
}

#[test]
#[should_panic]
fn a_nap_without_fences_is_found() {
    naps(Weak::Fences, 1);
}
