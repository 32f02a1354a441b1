//! Clients that read and write the same few sectors, and break their connections.
use super::super::plan::Random;
use super::check::{Counts, End, History, Operation};
use super::client::{Connection, Reply};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

const SECTOR: usize = 512;
const SECTORS_PER_BLOCK: u64 = 8;
/// A sector is filled with its stamp and its number.
const MARK: usize = 16;
/// Requests that a client has under way at most.
const DEPTH: u64 = 4;
/// Sectors of one request at most.
const SECTORS_MAX: u64 = 24;
/// One round of so many ends with a broken connection.
const BREAKS: u64 = 8;

/// State that all clients share.
struct Shared {
    socket: PathBuf,
    epoch: Instant,
    stamps: AtomicU64,
    stop: AtomicBool,
    failed: AtomicBool,
    sectors: u64,
}

/// Record of one client.
type Done = (Vec<Operation>, Counts);

/// Running clients.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<Done>>>,
}

/// A request under way.
struct Request {
    first: u64,
    count: u64,
    /// `None`: a read.
    stamp: Option<u64>,
    begin: u64,
}

struct Client {
    shared: Arc<Shared>,
    random: Random,
    connection: Connection,
    under_way: BTreeMap<u64, Request>,
    operations: Vec<Operation>,
    counts: Counts,
}

impl Load {
    /// Starts clients on the first blocks of the export.
    pub fn start(socket: &Path, seed: u64, clients: u64, blocks: u64) -> Self {
        let shared = Arc::new(Shared {
            socket: socket.into(),
            epoch: Instant::now(),
            stamps: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            sectors: blocks * SECTORS_PER_BLOCK,
        });
        let threads = (0..clients).map(|number| {
            let shared = Arc::clone(&shared);
            let random = Random(seed ^ (number + 1) << 32);
            std::thread::spawn(move || {
                let done = Client::run(&shared, random);
                shared.failed.fetch_or(done.is_err(), Ordering::Relaxed);
                done
            })
        });
        Self {
            threads: threads.collect(),
            shared,
        }
    }

    /// # Errors
    /// A client has failed; why is told by [`Self::finish`].
    pub fn check(&self) -> Result<()> {
        let failed = self.shared.failed.load(Ordering::Relaxed);
        ensure!(!failed, "a client has failed");
        Ok(())
    }

    /// Ends the clients, reads every sector once more, and returns the whole history.
    ///
    /// # Errors
    /// A client failed, or the export can't be read.
    pub fn finish(mut self) -> Result<History> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut history = History::default();
        for thread in std::mem::take(&mut self.threads) {
            let Ok(done) = thread.join() else {
                bail!("a client has panicked");
            };
            let (operations, counts) = done?;
            history.add(&operations, counts);
        }
        let mut last = Client::open(&self.shared, Random(0))?;
        for first in (0..self.shared.sectors).step_by(SECTORS_PER_BLOCK as usize) {
            last.send(first, SECTORS_PER_BLOCK, false)?;
            last.receive()?;
        }
        history.add(&last.operations, last.counts);
        Ok(history)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // After a failure elsewhere: the clients end with the engine at the latest.
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Client {
    fn open(shared: &Arc<Shared>, random: Random) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(&shared.socket).context("connect")?,
            shared: Arc::clone(shared),
            random,
            under_way: BTreeMap::new(),
            operations: Vec::new(),
            counts: Counts::default(),
        })
    }

    fn run(shared: &Arc<Shared>, random: Random) -> Result<Done> {
        let mut client = Self::open(shared, random)?;
        while !shared.stop.load(Ordering::Relaxed) {
            client.round()?;
        }
        Ok((client.operations, client.counts))
    }

    fn now(&self) -> u64 {
        self.shared.epoch.elapsed().as_nanos() as u64
    }

    /// Sends a few requests; then waits for all of them, or breaks the connection.
    fn round(&mut self) -> Result<()> {
        for _ in 0..1 + self.random.below(DEPTH) {
            let count = match self.random.below(3) {
                0 => 1 + self.random.below(SECTORS_MAX.min(self.shared.sectors)),
                _ => SECTORS_PER_BLOCK,
            };
            let blocks = self.shared.sectors / SECTORS_PER_BLOCK;
            let is_aligned = count == SECTORS_PER_BLOCK && self.random.below(4) != 0;
            let first = if is_aligned {
                self.random.below(blocks) * SECTORS_PER_BLOCK
            } else {
                self.random.below(self.shared.sectors - count + 1)
            };
            let is_write = self.random.below(5) < 3;
            self.send(first, count, is_write)?;
        }
        if self.random.below(BREAKS) == 0 {
            return self.break_connection();
        }
        self.receive_all()
    }

    /// Breaks the connection once the server has surely received all that was sent: a server
    /// answers a read of elsewhere only after it has received what was sent before it.
    fn break_connection(&mut self) -> Result<()> {
        let elsewhere = self.shared.sectors * SECTOR as u64;
        let probe = self.connection.send_read(elsewhere, SECTOR)?;
        loop {
            let reply = self.connection.receive()?;
            if reply.cookie == probe {
                break;
            }
            self.end(&reply)?;
        }
        let broken = self.now();
        self.counts.broken += 1;
        let mut orphaned = Vec::new();
        for request in std::mem::take(&mut self.under_way).into_values() {
            if let Some(stamp) = request.stamp {
                self.counts.orphaned += 1;
                self.note(&request, stamp, End::Orphaned(broken));
                orphaned.push((request.first, request.count));
            }
        }
        // The old connection is closed when this replaces it: the time above comes before that, and
        // what is sent over the new one comes after it.
        let again = Connection::open(&self.shared.socket).context("connect again")?;
        self.connection = again;
        // As clients do that reconnect: what was not answered is sent again, and read later.
        for is_write in [true, false] {
            for (first, count) in &orphaned {
                self.send(*first, *count, is_write)?;
            }
            self.receive_all()?;
        }
        Ok(())
    }

    fn send(&mut self, first: u64, count: u64, is_write: bool) -> Result<()> {
        let offset = first * SECTOR as u64;
        let begin = self.now();
        let (cookie, stamp) = if is_write {
            let stamp = 1 + self.shared.stamps.fetch_add(1, Ordering::Relaxed);
            let data: Vec<u8> = (first..first + count)
                .flat_map(|sector| mark(stamp, sector).repeat(SECTOR / MARK))
                .collect();
            (self.connection.send_write(offset, &data)?, Some(stamp))
        } else {
            let length = count as usize * SECTOR;
            (self.connection.send_read(offset, length)?, None)
        };
        self.counts.requests += 1;
        let request = Request {
            first,
            count,
            stamp,
            begin,
        };
        self.under_way.insert(cookie, request);
        Ok(())
    }

    fn receive_all(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let reply = self.connection.receive()?;
        self.end(&reply)
    }

    fn end(&mut self, reply: &Reply) -> Result<()> {
        let now = self.now();
        let request = self.under_way.remove(&reply.cookie);
        let request = request.context("a reply to another request")?;
        let end = if reply.error == 0 {
            End::Done(now)
        } else {
            self.counts.failed += 1;
            End::Failed(now)
        };
        if let Some(stamp) = request.stamp {
            self.note(&request, stamp, end);
            return Ok(());
        }
        for (sector, bytes) in (request.first..).zip(reply.data.chunks_exact(SECTOR)) {
            self.operations.push(Operation {
                sector,
                stamp: stamp_of(sector, bytes)?,
                is_write: false,
                begin: request.begin,
                end,
            });
        }
        Ok(())
    }

    /// A write, on each of its sectors.
    fn note(&mut self, request: &Request, stamp: u64, end: End) {
        let sectors = request.first..request.first + request.count;
        self.operations.extend(sectors.map(|sector| Operation {
            sector,
            stamp,
            is_write: true,
            begin: request.begin,
            end,
        }));
    }
}

fn mark(stamp: u64, sector: u64) -> Vec<u8> {
    [stamp.to_le_bytes(), (sector + 1).to_le_bytes()].concat()
}

/// The stamp of a sector that was read.
///
/// # Errors
/// The sector is torn, or another one's.
fn stamp_of(sector: u64, bytes: &[u8]) -> Result<u64> {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    let stamp = u64::from_le_bytes(word);
    let expected = if stamp == 0 {
        vec![0; MARK]
    } else {
        mark(stamp, sector)
    };
    let is_whole = bytes.chunks_exact(MARK).all(|it| it == expected);
    ensure!(
        is_whole,
        "sector {sector} is torn or another one's: {:x?}",
        &bytes[..2 * MARK]
    );
    Ok(stamp)
}
