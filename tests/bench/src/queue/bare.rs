//! The bare exchange that an I/O of a hardware queue is measured against: entries of the same sizes
//! through memory that two threads share, with nothing done in between.
//!
//! # Contract
//! Two threads, each pinned to its CPU, neither sleeps. One writes entries of 64 bytes and then
//! their tail; the other reads each whole and answers with 16 bytes, whose last word turns in every
//! round. Each takes what is there, [`BATCH`] at most, before it goes on.
use crate::pingpong::pin;
use crate::prelude::*;
use std::hint::{black_box, spin_loop};

/// Entries that are taken at once.
const BATCH: u64 = 32;
/// Entries of either ring; a power of two, more than are ever outstanding.
const ENTRIES: u64 = 4096;

/// Two cache lines, so that nothing else lies beside it.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Default)]
#[repr(align(64))]
struct Entry([AtomicU64; 8]);

/// Memory that both share.
struct Rings {
    tail: Line,
    stop: AtomicBool,
    entries: Box<[Entry]>,
    answers: Box<[[AtomicU64; 2]]>,
}

/// Exchanges per second with so many outstanding.
pub fn run(depth: u64, cpus: [usize; 2], duration: Duration) -> Result<f64> {
    ensure!(depth > 0 && depth < ENTRIES, "depth {depth}");
    let rings = Arc::new(Rings {
        tail: Line::default(),
        stop: AtomicBool::new(false),
        entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
        answers: (0..ENTRIES).map(|_| Default::default()).collect(),
    });
    let theirs = Arc::clone(&rings);
    let server = thread::spawn(move || pin(cpus[1]).map(|()| theirs.answer()));
    // In a thread of its own as well: programs that are started later inherit no pinning.
    let ours = Arc::clone(&rings);
    let client = thread::spawn(move || pin(cpus[0]).map(|()| ours.ask(depth, duration)));
    let asked = client.join();
    rings.stop.store(true, Ordering::Relaxed);
    let served = server.join();
    ensure!(
        served.is_ok_and(|served| served.is_ok()),
        "the answering thread failed"
    );
    asked.unwrap_or_else(|_| Err(anyhow!("the asking thread panicked")))
}

/// Last word of an answer in the round that `position` is of.
fn turn(position: u64) -> u64 {
    1 - position / ENTRIES % 2
}

impl Rings {
    fn answer(&self) {
        let mut head = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let tail = self.tail.0.load(Ordering::Acquire).min(head + BATCH);
            if tail == head {
                spin_loop();
            }
            while head < tail {
                let at = (head % ENTRIES) as usize;
                let entry = &self.entries[at].0;
                let words: [u64; 8] = std::array::from_fn(|n| entry[n].load(Ordering::Relaxed));
                let [first, second] = &self.answers[at];
                first.store(black_box(words)[0], Ordering::Relaxed);
                second.store(turn(head), Ordering::Release);
                head += 1;
            }
        }
    }

    fn ask(&self, depth: u64, duration: Duration) -> f64 {
        let (mut head, mut tail) = (0, 0);
        let begun = Instant::now();
        loop {
            while tail < head + depth {
                let entry = &self.entries[(tail % ENTRIES) as usize].0;
                for (n, word) in (0..).zip(entry) {
                    word.store(tail ^ n, Ordering::Relaxed);
                }
                tail += 1;
            }
            self.tail.0.store(tail, Ordering::Release);
            let before = head;
            while head == before {
                while head < tail && head - before < BATCH {
                    let [first, second] = &self.answers[(head % ENTRIES) as usize];
                    if second.load(Ordering::Acquire) != turn(head) {
                        break;
                    }
                    black_box(first.load(Ordering::Relaxed));
                    head += 1;
                }
            }
            // As a benchmark does: the clock once a batch.
            let elapsed = begun.elapsed();
            if elapsed >= duration {
                return head as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::run;
    use std::time::Duration;

    #[test]
    fn every_depth_exchanges_something() {
        for depth in [1, 32, 4095] {
            assert!(run(depth, [0, 0], Duration::from_millis(20)).unwrap() > 0.0);
        }
        assert!(run(0, [0, 0], Duration::from_millis(1)).is_err());
    }
}
