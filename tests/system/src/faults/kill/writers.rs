//! Writers on an export that goes away under them.
use super::super::nbd::BLOCK;
use super::super::plan::Random;
use super::front::Export;
use super::ledger::Ledger;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Most blocks of one write.
const LARGEST: u64 = 16;

/// Results of their requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Reads, each as it had to be.
    pub reads: u64,
}

impl Count {
    /// Both.
    pub fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.reads += other.reads;
    }
}

/// State of the load while it runs.
pub struct Load<'a> {
    /// Set *before* anything is killed.
    pub killed: &'a AtomicBool,
    /// Each writer, when its first request was answered.
    answered: Receiver<()>,
}

impl Load<'_> {
    /// Waits until a request was answered: on a busy machine that takes longer than most loads
    /// last. Where all writers have failed instead, [`run`] says so.
    pub fn wait(&self, limit: Duration) {
        let _ = self.answered.recv_timeout(limit);
    }
}

/// Lets all write, each its own blocks, while `kill` decides when the end is.
///
/// # Errors
/// A request failed before, or read what it may not.
pub fn run(
    export: &Export,
    ledgers: &mut [Ledger],
    seed: u64,
    kill: impl FnOnce(&Load<'_>) -> Result<()>,
) -> Result<Count> {
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let killed = &killed;
        let (first, answered) = channel();
        let writers: Vec<_> = (0_u64..)
            .zip(ledgers)
            .filter(|(_, ledger)| ledger.count() > 0)
            .map(|(number, ledger)| {
                let first = first.clone();
                scope.spawn(move || {
                    let mut random = Random(seed ^ number << 56);
                    let mut count = Count::default();
                    let ended = write(export, ledger, &mut random, (&mut count, first), killed);
                    match killed.load(Ordering::SeqCst) {
                        true => Ok(count),
                        false => ended.map(|()| count),
                    }
                })
            })
            .collect();
        drop(first);
        let done = kill(&Load { killed, answered });
        killed.store(true, Ordering::SeqCst);
        let mut all = Count::default();
        for writer in writers {
            match writer.join() {
                Ok(count) => all.add(count?),
                Err(_) => bail!("a writer panicked"),
            }
        }
        done.map(|()| all)
    })
}

/// One writer, until a request fails.
fn write(
    export: &Export,
    ledger: &mut Ledger,
    random: &mut Random,
    (count, first): (&mut Count, Sender<()>),
    killed: &AtomicBool,
) -> Result<()> {
    let mut client = export.open()?;
    let mut first = Some(first);
    let mut block = [0; BLOCK];
    while !killed.load(Ordering::SeqCst) {
        let blocks = ledger.count() as u64;
        let at = random.below(blocks);
        match random.below(16) {
            0 => {
                client.flush()?;
                ledger.flushed();
                count.flushes += 1;
            }
            1..4 => {
                client.read(ledger.offset(at as usize), &mut block)?;
                ledger.check_live(at as usize, &block)?;
                count.reads += 1;
            }
            kind => {
                let fua = kind == 4;
                let length = (1 + random.below(LARGEST)).min(blocks - at) as usize;
                let at = at as usize;
                let bytes = ledger.ask(at, length);
                client.write(ledger.offset(at), &bytes, fua)?;
                ledger.acknowledge(at, length, fua);
                count.writes += 1;
            }
        }
        if let Some(first) = first.take() {
            let _ = first.send(()); // it is not waited for in all rounds
        }
    }
    Ok(())
}
