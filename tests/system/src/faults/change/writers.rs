//! Ledger of writes to volumes.
use crate::faults::nbd::{BLOCK, Client};
use crate::faults::plan::Random;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Blocks of each volume that are written.
const BLOCKS: usize = 128;

/// Of each block the number that was acknowledged last, and one that may be there.
#[derive(Clone)]
pub struct Ledger {
    acknowledged: Vec<u64>,
    perhaps: Vec<Option<u64>>,
    next: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            acknowledged: vec![0; BLOCKS],
            perhaps: vec![None; BLOCKS],
            next: 1,
        }
    }
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

impl Ledger {
    /// Reads all blocks.
    ///
    /// # Errors
    /// One is neither what was acknowledged nor what may have been written.
    pub fn verify(&mut self, client: &mut Client) -> Result<()> {
        let mut found = vec![0; BLOCK];
        for at in 0..BLOCKS {
            client.read((at * BLOCK) as u64, &mut found)?;
            let (known, perhaps) = (self.acknowledged[at], self.perhaps[at]);
            let is = |number: u64| found == block(number);
            let number = [Some(known), perhaps]
                .into_iter()
                .flatten()
                .find(|it| is(*it));
            let first = found[..8].try_into().map(u64::from_le_bytes)?;
            // Data that was read once stays.
            self.acknowledged[at] = number.with_context(|| {
                format!("block {at} has {first}: {known} was acknowledged, {perhaps:?} written")
            })?;
            self.perhaps[at] = None;
        }
        Ok(())
    }

    fn write(&mut self, at: usize, client: &mut Client) -> Result<()> {
        let number = self.next;
        self.next += 1;
        self.perhaps[at] = Some(number);
        client.write((at * BLOCK) as u64, &block(number))?;
        (self.acknowledged[at], self.perhaps[at]) = (number, None);
        Ok(())
    }
}

/// A client of one volume, which writes and reads until it is told to stop or its client is closed.
pub struct Writer {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<(Ledger, Result<()>)>,
}

impl Writer {
    /// Begins with a read of all.
    ///
    /// # Errors
    /// It can't connect, or something is lost.
    pub fn start(socket: PathBuf, name: &str, mut ledger: Ledger, seed: u64) -> Result<Self> {
        let mut client = connect(&socket, name)?;
        ledger
            .verify(&mut client)
            .with_context(|| format!("volume {name}"))?;
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (told, count) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let mut random = Random(seed);
            while !told.load(Ordering::Relaxed) {
                let at = random.below(BLOCKS as u64) as usize;
                if ledger.write(at, &mut client).is_err() {
                    break; // the volume or its export has left, or the engine
                }
                count.fetch_add(1, Ordering::Relaxed);
                if random.below(16) == 0
                    && let Err(error) = ledger.verify(&mut client)
                {
                    let is_lost = format!("{error:#}").contains("acknowledged");
                    let lost = if is_lost { Err(error) } else { Ok(()) };
                    return (ledger, lost);
                }
            }
            (ledger, Ok(()))
        });
        Ok(Self { stop, done, thread })
    }

    /// Whether its client was closed.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Writes that were acknowledged.
    pub fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Its ledger.
    ///
    /// # Errors
    /// What was read was not what had been written.
    pub fn end(self) -> Result<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        let Ok((ledger, done)) = self.thread.join() else {
            bail!("a writer panicked");
        };
        done.map(|()| ledger)
    }
}

fn connect(socket: &Path, name: &str) -> Result<Client> {
    Client::open_named(socket, name).with_context(|| format!("connect to {name}"))
}
