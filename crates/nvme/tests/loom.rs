//! Explores every order of two sides of a queue, and every value that a load may see.
//!
//! `cargo xtask ci --only loom` runs it, with `--cfg loom`: without it this file is empty and loom
//! is not compiled. Each model has twins in which one order is too weak: they must be found, or the
//! model shows nothing.
//!
//! Modelled: the four ends, naps and identifiers of [`nvme::queue`] as they are, over memory laid
//! out as a queue's (`crates/queue/src/layout.md`): doorbells and naps are words of four bytes, at
//! their places; entries have all their words of eight, the phase tag is a bit of its word. Reading
//! a word in another size than it is written in panics. Both queues have two entries, or three
//! where two commands are outstanding, at every position: the steps before it run alone, before
//! there are two threads.
//!
//! Not modelled: loads that depend on later stores (loom has no such executions; so the completion
//! queue's head is shown to free room in time, but not the reason for its own order), memory that
//! is read in two sizes, more than two threads, and data, whose copies are made before a doorbell
//! and behind a phase tag as those of entries are. Where two commands are outstanding and a third
//! follows, orders are left out in which threads that could have gone on are switched more than
//! [`SWITCHES`] times.
#![allow(unexpected_cfgs, reason = "cargo doesn't know of loom")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "tests")]

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;
use nvme::queue::{Cids, CqConsumer, CqProducer, Entry, Nap, Place, SharedMemory};
use nvme::queue::{Misbehaved, SqConsumer, SqProducer};
use nvme::wire::Cqe;

/// The order that is weakened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weak {
    Nothing,
    /// Doorbells publish nothing.
    Doorbells,
    /// Reading a doorbell does not acquire the entries.
    DoorbellLoads,
    /// The phase tag publishes nothing.
    Phase,
    /// Reading a phase tag does not acquire the completion.
    PhaseLoads,
    /// No fence between a store and a load.
    Fences,
}

/// The memory of a queue, but for its header and pages for lists.
struct Memory {
    /// The two doorbells and the two naps.
    words: [AtomicU32; 4],
    /// Of the submission queue and of the completion queue.
    entries: [Vec<AtomicU64>; 2],
    weak: Weak,
}

const ENTRIES_AT: [usize; 2] = [8192, 12_288];
const DOORBELLS_AT: [usize; 2] = [4096, 4224];
const ASLEEP_AT: usize = 4352;
const ARMED_AT: usize = 4480;

impl Memory {
    fn new(entries: u16, weak: Weak) -> Arc<Self> {
        let longs = |each: usize| {
            let count = each * usize::from(entries);
            (0..count).map(|_| AtomicU64::new(0)).collect()
        };
        Arc::new(Self {
            words: std::array::from_fn(|_| AtomicU32::new(0)),
            entries: [longs(8), longs(2)],
            weak,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(
            (4096..8192).contains(&at) && at % 128 == 0,
            "no word at {at}"
        );
        &self.words[(at - 4096) / 128]
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        let which = usize::from(at >= ENTRIES_AT[1]);
        &self.entries[which][(at - ENTRIES_AT[which]) / 8]
    }

    fn unless(&self, weak: Weak, order: Ordering) -> Ordering {
        match self.weak == weak {
            true => Ordering::Relaxed,
            false => order,
        }
    }
}

impl SharedMemory for Memory {
    fn load(&self, at: usize) -> u64 {
        self.long(at).load(Ordering::Relaxed)
    }
    fn store(&self, at: usize, value: u64) {
        self.long(at).store(value, Ordering::Relaxed);
    }
    fn load_acquire(&self, at: usize) -> u64 {
        let order = self.unless(Weak::PhaseLoads, Ordering::Acquire);
        self.long(at).load(order)
    }
    fn store_release(&self, at: usize, value: u64) {
        let order = self.unless(Weak::Phase, Ordering::Release);
        self.long(at).store(value, order);
    }
    fn load_word(&self, at: usize) -> u32 {
        let order = self.unless(Weak::DoorbellLoads, Ordering::Acquire);
        self.word(at).load(order)
    }
    fn store_word(&self, at: usize, value: u32) {
        let order = self.unless(Weak::Doorbells, Ordering::Release);
        self.word(at).store(value, order);
    }
    fn fence(&self) {
        if self.weak != Weak::Fences {
            fence(Ordering::SeqCst);
        }
    }
}

const fn place(which: usize, entries: u16) -> Place {
    Place {
        entries_at: ENTRIES_AT[which],
        doorbell_at: DOORBELLS_AT[which],
        entries,
    }
}

const SQ: Place = place(0, 2);
const CQ: Place = place(1, 2);

/// A command whose words all tell which one it is.
fn command(n: u64, cid: u16) -> Entry {
    let mut entry = [n; 8];
    entry[0] |= u64::from(cid) << 16;
    for (at, word) in (0..).zip(&mut entry) {
        *word |= at << 48;
    }
    entry
}

/// Number of the command and its identifier, if it is whole.
fn told(entry: &Entry) -> (u64, u16) {
    let (n, cid) = (entry[1] as u16, (entry[0] >> 16) as u16);
    assert_eq!(*entry, command(n.into(), cid), "torn or stale");
    (n.into(), cid)
}

/// The host's side, as a client has it.
struct Host {
    sq: SqProducer,
    cq: CqConsumer,
    cids: Cids<u64>,
}

/// The controller's side; `next`: the command that it will fetch.
struct Controller {
    sq: SqConsumer,
    cq: CqProducer,
    next: u64,
}

/// Both sides, of queues with `entries` entries.
fn ends(entries: u16) -> (Host, Controller) {
    let (sq, cq) = (place(0, entries), place(1, entries));
    let host = Host {
        sq: SqProducer::new(sq, 0),
        cq: CqConsumer::new(cq),
        cids: Cids::new(entries - 1),
    };
    let controller = Controller {
        sq: SqConsumer::new(sq),
        cq: CqProducer::new(cq),
        next: 1,
    };
    (host, controller)
}

impl Host {
    fn push(&mut self, memory: &Memory, n: u64) {
        let cid = self.cids.take(n).unwrap();
        self.sq.push(memory, &command(n, cid)).unwrap();
    }

    /// The command that has ended, once one has.
    fn take(&mut self, memory: &Memory) -> u64 {
        let cqe = loop {
            if let Some(cqe) = self.cq.take(memory) {
                break cqe;
            }
            thread::yield_now();
        };
        let n = self.cids.end(cqe.cid).expect("torn or stale");
        assert_eq!((cqe.result, cqe.sqid), (n << 32 | n, 7), "torn or stale");
        self.sq.fetched(cqe.sqhd).unwrap();
        self.cq.ring(memory);
        n
    }
}

impl Controller {
    /// Fetches all entries there are, at least one; there is room for the answers.
    fn fetch(&mut self, memory: &Memory, under_way: &mut Vec<(u64, u16)>) {
        let count = loop {
            match self.sq.available(memory).unwrap() {
                0 => thread::yield_now(),
                count => break count,
            }
        };
        let wanted = under_way.len() as u16 + count;
        while self.cq.room(memory, wanted).unwrap() < wanted {
            thread::yield_now();
        }
        for _ in 0..count {
            let (n, cid) = told(&self.sq.fetch(memory).unwrap());
            assert_eq!(n, self.next, "torn or stale");
            self.next += 1;
            under_way.push((n, cid));
        }
    }

    fn answer(&mut self, memory: &Memory, (n, cid): (u64, u16)) {
        let cqe = Cqe {
            result: n << 32 | n,
            sqhd: self.sq.head(),
            sqid: 7,
            cid,
            ..Cqe::default()
        };
        self.cq.post(memory, &cqe);
    }
}

/// How two commands are outstanding.
#[derive(Clone, Copy)]
struct Two {
    /// One doorbell for both, or one for each.
    together: bool,
    /// The one that was submitted last ends first.
    reversed: bool,
    /// Commands that came before, alone: where in their queues the two begin.
    before: u64,
    /// Commands that follow, each when one of those before it has ended.
    more: u64,
}

/// Of orders with more switches than these, and of more commands than two, there are too many.
const SWITCHES: usize = 4;

/// Two commands outstanding in queues of three entries.
fn two(weak: Weak, case: Two) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = (case.more > 0).then_some(SWITCHES);
    model.check(move || {
        let memory = Memory::new(3, weak);
        let (mut host, mut controller) = ends(3);
        for n in 1..=case.before {
            host.push(&memory, n);
            host.sq.ring(&*memory);
            let mut under_way = Vec::new();
            controller.fetch(&memory, &mut under_way);
            controller.answer(&memory, under_way[0]);
            assert_eq!(host.take(&memory), n);
        }
        let last = case.before + 2 + case.more;
        let theirs = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            let mut under_way = Vec::new();
            while controller.next <= last {
                controller.fetch(&theirs, &mut under_way);
                while let Some(&first) = under_way.first() {
                    if !case.reversed {
                        under_way.remove(0);
                        controller.answer(&theirs, first);
                        continue;
                    }
                    // The first waits for a second; with three, that ends, and the first waits on.
                    if under_way.len() < 2 && controller.next <= last {
                        break;
                    }
                    let ended = under_way.pop().unwrap();
                    controller.answer(&theirs, ended);
                }
            }
        });
        let mut n = case.before;
        for _ in 0..2 {
            n += 1;
            host.push(&memory, n);
            if !case.together {
                host.sq.ring(&*memory);
            }
        }
        host.sq.ring(&*memory);
        let mut ended = Vec::new();
        while ended.len() < 2 + case.more as usize {
            ended.push(host.take(&memory));
            if n < last {
                n += 1;
                host.push(&memory, n);
                host.sq.ring(&*memory);
            }
        }
        ended.sort_unstable();
        assert!(ended.into_iter().eq(case.before + 1..=last));
        assert_eq!(host.cids.used(), 0);
        thread.join().unwrap();
    });
}

/// Both orders of completions, from each position.
fn each_way(together: bool, more: u64) {
    for before in 0..3 {
        for reversed in [false, true] {
            let case = Two {
                together,
                reversed,
                before,
                more,
            };
            two(Weak::Nothing, case);
        }
    }
}

#[test]
fn two_commands_that_are_submitted_together_end_in_either_order() {
    each_way(true, 0);
}

#[test]
fn two_commands_that_are_submitted_one_by_one_end_in_either_order() {
    each_way(false, 0);
}

#[test]
fn two_commands_are_outstanding_and_a_third_follows() {
    each_way(false, 1);
    each_way(true, 1);
}

/// Where the second of the two is the first of its round.
const WRAPS: Two = Two {
    together: true,
    reversed: true,
    before: 2,
    more: 0,
};

#[test]
#[should_panic(expected = "torn or stale")]
fn a_doorbell_without_release_for_two_commands_is_found() {
    two(Weak::Doorbells, WRAPS);
}

#[test]
#[should_panic(expected = "torn or stale")]
fn a_doorbell_that_is_read_without_acquire_is_found() {
    two(Weak::DoorbellLoads, WRAPS);
}

#[test]
#[should_panic(expected = "torn or stale")]
fn a_phase_tag_without_release_of_two_commands_is_found() {
    two(Weak::Phase, WRAPS);
}

#[test]
#[should_panic(expected = "torn or stale")]
fn a_phase_tag_that_is_read_without_acquire_is_found() {
    two(Weak::PhaseLoads, WRAPS);
}

/// Commands through both queues of two entries, one at a time, so that each wraps: the controller
/// sees each whole, and the host sees each completion whole, of its own round.
fn commands(weak: Weak, count: u64) {
    loom::model(move || {
        let memory = Memory::new(2, weak);
        let theirs = Arc::clone(&memory);
        let (mut host, mut controller) = ends(2);
        let thread = thread::spawn(move || {
            for _ in 0..count {
                let mut under_way = Vec::new();
                controller.fetch(&theirs, &mut under_way);
                controller.answer(&theirs, under_way[0]);
            }
        });
        for n in 1..=count {
            host.push(&memory, n);
            host.sq.ring(&*memory);
            assert_eq!(host.take(&memory), n, "torn or stale");
        }
        thread.join().unwrap();
    });
}

#[test]
fn commands_and_completions_are_seen_whole_and_in_order() {
    commands(Weak::Nothing, 3);
}

/// The host lets go while the controller fetches: the controller gets the whole command, or one
/// that does nothing; and once it has seen that the host let go, it fetches nothing.
#[test]
fn t09_a_command_that_is_taken_back_while_it_is_fetched_is_whole_or_none() {
    loom::model(|| {
        let memory = Memory::new(2, Weak::Nothing);
        let theirs = Arc::clone(&memory);
        let (mut sq, entry) = (SqProducer::new(SQ, 0), command(1, 1));
        sq.push(&*memory, &entry).unwrap();
        sq.ring(&*memory);
        let controller = thread::spawn(move || {
            let mut sq = SqConsumer::new(SQ);
            match sq.available(&*theirs) {
                Ok(1) => {
                    let entry = sq.fetch(&*theirs).unwrap();
                    assert!(entry[0] == 0x7e || told(&entry) == (1, 1));
                }
                other => assert_eq!(other, Err(Misbehaved::LetGo)),
            }
        });
        sq.let_go(&*memory);
        controller.join().unwrap();
        assert!(SqConsumer::new(SQ).is_let_go(&*memory));
    });
}

/// The host lets go while the controller answers: the host finds the answer after that, or the
/// controller knows that it may not have been read.
fn last_answer(weak: Weak) {
    loom::model(move || {
        let memory = Memory::new(2, weak);
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

/// Work is published by a doorbell.
const WORK_AT: usize = DOORBELLS_AT[0];

/// A sleeper waits for `count` pieces of work, one after the other; loom reports a lost wake-up as
/// a deadlock.
fn naps(nap_at: usize, weak: Weak, count: u32) {
    loom::model(move || {
        let memory = Memory::new(2, weak);
        let kick = Arc::new(Notify::new());
        let (theirs, their_kick) = (Arc::clone(&memory), Arc::clone(&kick));
        let worker = thread::spawn(move || {
            for work in 1..=count {
                theirs.store_word(WORK_AT, work);
                if Nap::new(nap_at).take(&*theirs) {
                    their_kick.notify();
                }
            }
        });
        let mut seen = 0;
        while seen < count {
            Nap::new(nap_at).begin(&*memory);
            let now = memory.load_word(WORK_AT);
            if now == seen {
                kick.wait();
            }
            Nap::new(nap_at).end(&*memory);
            seen = memory.load_word(WORK_AT);
        }
        worker.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    naps(ARMED_AT, Weak::Nothing, 1);
    naps(ASLEEP_AT, Weak::Nothing, 1);
    naps(ASLEEP_AT, Weak::Nothing, 2);
}

#[test]
#[should_panic]
fn a_nap_without_fences_is_found() {
    naps(ASLEEP_AT, Weak::Fences, 1);
}
