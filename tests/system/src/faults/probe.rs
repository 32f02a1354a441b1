//! Small I/O that measures how long each one took, and checks what it reads.
//!
//! # Contract
//! So many connections of one request each, paced, each with blocks of its own, half reads and half
//! writes; the first connection also flushes. Each write is stamped with connection, block and
//! a count, so a read tells every lost or old write. The first thing that is wrong is kept.
use super::nbd::{BLOCK, Client};
use super::plan::Random;
use anyhow::{Result, bail, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Connections.
const WORKERS: usize = 8;
/// Blocks of each.
const BLOCKS: u64 = 256;
/// Bytes of the volume that belong to it, from its begin.
pub const BYTES: u64 = WORKERS as u64 * BLOCKS * BLOCK as u64;
/// Rest between two requests of a connection.
const PACE: Duration = Duration::from_millis(5);
/// A request that takes as long is remembered.
const SLOW: Duration = Duration::from_millis(5);

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
}

/// A request that took its time; both ends since the probe's begin.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// Its operation.
    pub op: Op,
    /// When it was sent.
    pub begun: Duration,
    /// When it was answered.
    pub ended: Duration,
}

impl Slow {
    /// How long it took.
    pub fn took(&self) -> Duration {
        self.ended - self.begun
    }
}

struct Shared {
    epoch: Instant,
    stop: AtomicBool,
    slow: Mutex<Vec<Slow>>,
    /// When each connection's last completed request was sent, ns.
    begun_ns: [AtomicU64; WORKERS],
    done: AtomicU64,
    verified: AtomicU64,
    wrong: Mutex<Option<String>>,
}

/// The running load.
pub struct Probe {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Probe {
    /// Connects and begins.
    ///
    /// # Errors
    /// A connection can't be had.
    pub fn start(socket: &Path, seed: u64) -> Result<Self> {
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            stop: AtomicBool::new(false),
            slow: Mutex::default(),
            begun_ns: Default::default(),
            done: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            wrong: Mutex::default(),
        });
        let clients: Result<Vec<Client>> = (0..WORKERS).map(|_| Client::open(socket)).collect();
        let threads = clients?.into_iter().enumerate().map(|(number, client)| {
            let shared = Arc::clone(&shared);
            let mut worker = Worker {
                number,
                client,
                random: Random(seed ^ (number as u64) << 32),
                counts: [0; BLOCKS as usize],
                block: vec![0; BLOCK],
            };
            std::thread::spawn(move || {
                if let Err(error) = worker.run(&shared) {
                    let mut wrong = shared.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    wrong.get_or_insert(format!("{error:#}"));
                }
            })
        });
        let threads = threads.collect();
        Ok(Self { shared, threads })
    }

    /// Time since its begin.
    pub fn now(&self) -> Duration {
        self.shared.epoch.elapsed()
    }

    /// When it began.
    pub fn epoch(&self) -> Instant {
        self.shared.epoch
    }

    /// # Errors
    /// What went wrong first.
    pub fn check(&self) -> Result<()> {
        match &*lock(&self.shared.wrong) {
            Some(wrong) => bail!("the client got: {wrong}"),
            None => Ok(()),
        }
    }

    /// Whether each connection has sent a request after `since` that was answered.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn has_gone_on_since(&self, since: Duration) -> Result<bool> {
        self.check()?;
        let since_ns = since.as_nanos() as u64;
        let begun = &self.shared.begun_ns;
        Ok(begun.iter().all(|it| it.load(Ordering::Acquire) > since_ns))
    }

    /// Slow requests so far, which are forgotten.
    pub fn take_slow(&self) -> Vec<Slow> {
        std::mem::take(&mut *lock(&self.shared.slow))
    }

    /// Requests done, and blocks found right.
    pub fn counts(&self) -> (u64, u64) {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        (load(&self.shared.done), load(&self.shared.verified))
    }

    /// Ends it: every block that was written is read once more.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn finish(mut self) -> Result<(u64, u64)> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.check()?;
        Ok(self.counts())
    }
}

impl Drop for Probe {
    /// The threads end with the engine's sockets, at the latest.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    number: usize,
    client: Client,
    random: Random,
    /// Of each block, how often it was written.
    counts: [u64; BLOCKS as usize],
    block: Vec<u8>,
}

impl Worker {
    fn run(&mut self, shared: &Shared) -> Result<()> {
        while !shared.stop.load(Ordering::Relaxed) {
            let at = self.random.below(BLOCKS) as usize;
            let op = match self.random.below(50) {
                0 if self.number == 0 => Op::Flush,
                0..25 => Op::Write,
                _ if self.counts[at] == 0 => Op::Write,
                _ => Op::Read,
            };
            let begun = shared.epoch.elapsed();
            self.step(op, at, shared)?;
            let ended = shared.epoch.elapsed();
            let begun_ns = begun.as_nanos() as u64;
            shared.begun_ns[self.number].store(begun_ns, Ordering::Release);
            shared.done.fetch_add(1, Ordering::Relaxed);
            if ended - begun >= SLOW {
                lock(&shared.slow).push(Slow { op, begun, ended });
            }
            sleep(PACE);
        }
        for at in 0..self.counts.len() {
            if self.counts[at] > 0 {
                self.step(Op::Read, at, shared)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, op: Op, at: usize, shared: &Shared) -> Result<()> {
        let offset = (self.number as u64 * BLOCKS + at as u64) * BLOCK as u64;
        match op {
            Op::Flush => self.client.flush(),
            Op::Write => {
                self.counts[at] += 1;
                stamp(&mut self.block, offset, self.counts[at]);
                self.client.write(offset, &self.block)
            }
            Op::Read => {
                self.client.read(offset, &mut self.block)?;
                let mut expected = vec![0; BLOCK];
                stamp(&mut expected, offset, self.counts[at]);
                let word =
                    |at: usize| -> [u8; 8] { std::array::from_fn(|byte| self.block[at + byte]) };
                ensure!(
                    self.block == expected,
                    "MISMATCH: the block at {offset} was written {} times, and holds write {} of \
                     {}",
                    self.counts[at],
                    u64::from_le_bytes(word(8)),
                    u64::from_le_bytes(word(0))
                );
                shared.verified.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// Fills a block: offset, count, and what follows from both.
fn stamp(block: &mut [u8], offset: u64, count: u64) {
    let mut random = Random(offset.rotate_left(32) ^ count);
    let head = [offset, count];
    for (at, word) in block.chunks_exact_mut(8).enumerate() {
        let value = head.get(at).copied().unwrap_or_else(|| random.next());
        word.copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn no_two_writes_look_alike() {
        let make = |offset, count| {
            let mut block = [0; 64];
            stamp(&mut block, offset, count);
            block
        };
        assert_ne!(make(0, 1)[16..], make(0, 2)[16..]);
        assert_ne!(make(0, 1)[16..], make(4096, 1)[16..]);
        assert_eq!(make(4096, 7), make(4096, 7));
    }
}
