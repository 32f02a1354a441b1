//! Rings: full, empty, batches, wrap-around, phase; invalid doorbells; identifiers.
use super::super::{Cids, CqConsumer, CqProducer, Full, Misbehaved, Nap, Place, SharedMemory};
use super::super::{LET_GO, SqConsumer, SqProducer};
use super::Plain;
use crate::wire::{Cqe, Status};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

const SQ_DOORBELL: usize = 0;
const CQ_DOORBELL: usize = 8;
const NAP: usize = 16;

fn places(entries: u16) -> (Place, Place, usize) {
    let sq = Place {
        entries_at: 64,
        doorbell_at: SQ_DOORBELL,
        entries,
    };
    let cq = Place {
        entries_at: 64 + 64 * usize::from(entries),
        doorbell_at: CQ_DOORBELL,
        entries,
    };
    (sq, cq, 64 + 80 * usize::from(entries))
}

/// Both ends of both queues, and the expected results.
struct Pair {
    memory: Plain,
    sq: (SqProducer, SqConsumer),
    cq: (CqProducer, CqConsumer),
    cids: Cids<u64>,
    pushed: VecDeque<u64>,
    rung: usize,
    fetched: VecDeque<u16>,
    posted: VecDeque<u16>,
    entries: u16,
    next: u64,
}

impl Pair {
    fn new(entries: u16) -> Self {
        let (sq, cq, bytes) = places(entries);
        Self {
            memory: Plain::new(bytes),
            sq: (SqProducer::new(sq, 0), SqConsumer::new(sq)),
            cq: (CqProducer::new(cq), CqConsumer::new(cq)),
            cids: Cids::new(entries - 1),
            pushed: VecDeque::new(),
            rung: 0,
            fetched: VecDeque::new(),
            posted: VecDeque::new(),
            entries,
            next: 0,
        }
    }

    /// The host sends up to `count`, and rings once.
    fn send(&mut self, count: usize) {
        for _ in 0..count {
            let value = self.next;
            let room = self.sq.0.room();
            let Some(cid) = (room > 0).then(|| self.cids.take(value)).flatten() else {
                if room == 0 {
                    let refused = self.sq.0.push(&self.memory, &[0; 8]);
                    assert_eq!(refused, Err(Full), "t06: full is not failed");
                }
                break;
            };
            let entry = [u64::from(cid) << 16, value, !value, 3, 4, 5, 6, 7];
            self.sq.0.push(&self.memory, &entry).unwrap();
            self.next += 1;
            self.pushed.push_back(value);
        }
        assert_eq!(self.sq.0.ring(&self.memory), self.rung < self.pushed.len());
        assert!(!self.sq.0.ring(&self.memory), "nothing new to tell");
        self.rung = self.pushed.len();
    }

    /// The controller fetches up to `count`, as many as it has room to answer.
    fn fetch(&mut self, count: usize) {
        for _ in 0..count {
            if self.sq.1.available(&self.memory).unwrap() == 0 {
                assert!(self.pushed.is_empty() && self.sq.1.fetch(&self.memory).is_none());
                break;
            }
            let entry = self.sq.1.fetch(&self.memory).unwrap();
            let value = self.pushed.pop_front().unwrap();
            self.rung -= 1;
            assert_eq!((entry[1], entry[2]), (value, !value), "in order, whole");
            self.fetched.push_back((entry[0] >> 16) as u16);
        }
    }

    /// The controller answers up to `count`, the newest or the oldest first.
    fn post(&mut self, count: usize, newest: bool) {
        for _ in 0..count {
            if self.cq.0.room(&self.memory, 1).unwrap() == 0 {
                break;
            }
            let cid = match newest {
                true => self.fetched.pop_back(),
                false => self.fetched.pop_front(),
            };
            let Some(cid) = cid else { break };
            let cqe = Cqe {
                result: u64::from(cid) << 7,
                sqhd: self.sq.1.head(),
                sqid: 1,
                cid,
                status: Status::LBA_RANGE.with_dnr(),
            };
            self.cq.0.post(&self.memory, &cqe);
            self.posted.push_back(cid);
        }
    }

    /// The host reaps up to `count`.
    fn reap(&mut self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.cq.1.is_ready(&self.memory), !self.posted.is_empty());
            let Some(cqe) = self.cq.1.take(&self.memory) else {
                assert!(self.posted.is_empty());
                break;
            };
            assert_eq!(Some(cqe.cid), self.posted.pop_front());
            assert_eq!(cqe.result, u64::from(cqe.cid) << 7);
            assert_eq!(cqe.status, Status::LBA_RANGE.with_dnr());
            self.sq.0.fetched(cqe.sqhd).unwrap();
            assert!(self.cids.end(cqe.cid).is_some());
            assert!(
                self.cids.end(cqe.cid).is_none() && self.cids.find(cqe.cid).is_none(),
                "t11: what has ended finds nothing"
            );
        }
        self.cq.1.ring(&self.memory);
    }

    fn all(&mut self, batch: usize) {
        self.send(batch);
        self.fetch(usize::MAX);
        self.post(usize::MAX, false);
        self.reap(usize::MAX);
        assert_eq!(self.cids.used(), 0);
    }
}

#[test]
fn every_batch_at_every_wrap_position_of_every_small_queue() {
    for entries in 2..=9 {
        for shift in 0..usize::from(2 * entries) {
            for batch in 1..usize::from(entries) + 2 {
                let mut pair = Pair::new(entries);
                for _ in 0..shift {
                    pair.all(1);
                }
                for _ in 0..5 {
                    pair.all(batch);
                }
                let most = batch.min(usize::from(entries) - 1);
                assert_eq!(pair.next, (shift + 5 * most) as u64);
            }
        }
    }
}

#[test]
fn a_queue_that_was_used_before_goes_on_at_every_position() {
    for entries in 2..=5 {
        for used in 0..3 * usize::from(entries) {
            let mut pair = Pair::new(entries);
            for _ in 0..used {
                pair.all(1);
            }
            let (sq, cq, _) = places(entries);
            let tail = pair.memory.load_word(SQ_DOORBELL) as u16;
            let head = pair.memory.load_word(CQ_DOORBELL) as u16;
            pair.sq.0 = SqProducer::new(sq, tail);
            pair.cq.1 = CqConsumer::resume(cq, head, &pair.memory);
            for _ in 0..2 * entries {
                pair.all(2);
            }
            assert!(pair.next > used as u64);
        }
    }
}

#[test]
fn doorbells_that_cannot_be_true_are_refused() {
    let mut pair = Pair::new(4);
    pair.send(2);
    pair.memory.store_word(SQ_DOORBELL, 4);
    let refused = pair.sq.1.available(&pair.memory);
    assert_eq!(refused, Err(Misbehaved::Doorbell { value: 4 }));
    pair.memory.store_word(SQ_DOORBELL, 2);
    pair.fetch(2);
    pair.post(1, false);
    for (value, expected) in [
        (u32::MAX, Misbehaved::Doorbell { value: u32::MAX }),
        (2, Misbehaved::Head { value: 2 }),
        (3, Misbehaved::Head { value: 3 }),
    ] {
        pair.memory.store_word(CQ_DOORBELL, value);
        assert_eq!(pair.cq.0.room(&pair.memory, 3), Err(expected));
    }
    pair.memory.store_word(CQ_DOORBELL, 1);
    assert_eq!(pair.cq.0.room(&pair.memory, 3), Ok(3));
    for sqhd in [3, 4, u16::MAX] {
        let refused = pair.sq.0.fetched(sqhd);
        assert_eq!(refused, Err(Misbehaved::SqHead { value: sqhd }));
    }
    assert_eq!(pair.sq.0.fetched(2), Ok(()));
    assert!(pair.sq.0.fetched(1).is_err(), "heads never go back");
}

/// A controller that knows of all entries, of some, or of none when the host lets go: it fetches
/// nothing more, or commands that do nothing.
#[test]
fn t09_unfetched_entries_are_never_executed() {
    for entries in 2..=6 {
        for used in 0..2 * usize::from(entries) {
            for (known, fetched) in (0..usize::from(entries)).flat_map(|n| [(false, n), (true, n)])
            {
                let mut pair = Pair::new(entries);
                (0..used).for_each(|_| pair.all(1));
                pair.send(usize::from(entries) - 1);
                if known {
                    assert_eq!(pair.sq.1.available(&pair.memory), Ok(entries - 1));
                }
                pair.fetch(fetched);
                assert!(!pair.sq.1.is_let_go(&pair.memory));
                pair.sq.0.let_go(&pair.memory);
                assert!(pair.sq.1.is_let_go(&pair.memory));
                while let Some(entry) = pair.sq.1.fetch(&pair.memory) {
                    assert_eq!(entry[0], 0x7e, "{entries} {used} {fetched}");
                }
                let over = Err(Misbehaved::LetGo);
                assert_eq!(pair.sq.1.available(&pair.memory), over);
                assert_eq!(pair.memory.load_word(SQ_DOORBELL), LET_GO);
                // Entries pushed after that are not published either.
                assert!(!pair.sq.0.ring(&pair.memory));
            }
        }
    }
}

#[test]
#[should_panic(expected = "without room")]
fn a_completion_never_overwrites_one_that_was_not_taken() {
    let mut pair = Pair::new(2);
    let cqe = Cqe::default();
    pair.cq.0.post(&pair.memory, &cqe);
    pair.cq.0.post(&pair.memory, &cqe);
}

#[test]
fn t11_identifiers_differ_from_all_recent_ones_and_are_never_ffffh() {
    for count in [1, 2, 3, 100, 128, 4096] {
        let mut cids = Cids::new(count);
        let mut recent = VecDeque::new();
        for round in 0..70_000_u64 {
            let cid = cids.take(round).unwrap();
            assert_ne!(cid, u16::MAX);
            assert!(cids.slot(cid) < count);
            assert!(!recent.contains(&cid), "{count}: {cid} again in {round}");
            recent.push_back(cid);
            if recent.len() > 14 {
                recent.pop_front();
            }
            assert_eq!(cids.end(cid), Some(round));
        }
        let all: BTreeSet<u16> = (0..count).map(|n| cids.take(n.into()).unwrap()).collect();
        assert_eq!((all.len(), cids.take(0)), (usize::from(count), None));
        assert_eq!(cids.used(), cids.capacity());
    }
}

#[test]
fn a_sleeper_is_owed_one_wake_up() {
    let (memory, nap) = (Plain::new(64), Nap::new(NAP));
    assert!(!nap.take(&memory));
    nap.begin(&memory);
    assert!(nap.take(&memory) && !nap.take(&memory));
    nap.begin(&memory);
    nap.end(&memory);
    assert!(!nap.take(&memory));
}

proptest! {
    #[test]
    fn whatever_happens_all_comes_out_once_in_order_and_whole(
        entries in 2_u16..20,
        steps in proptest::collection::vec((0..4_u8, 0..25_usize, any::<bool>()), 1..200),
    ) {
        let mut pair = Pair::new(entries);
        for (step, count, newest) in steps {
            match step {
                0 => pair.send(count),
                1 => pair.fetch(count),
                2 => pair.post(count, newest),
                _ => pair.reap(count),
            }
            let under_way = pair.pushed.len() + pair.fetched.len() + pair.posted.len();
            prop_assert_eq!(usize::from(pair.cids.used()), under_way);
            prop_assert!(under_way < usize::from(pair.entries));
        }
    }
}
