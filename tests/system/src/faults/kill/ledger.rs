//! Ledger of writes, and which of them have to be there after a kill.
//!
//! # Contract
//! Every block of a writer says which write it is of. One write of a writer is under way at a time.
//! After a kill a block has the version that is durable, or one that was asked for since: where a
//! kill takes nothing but the process, what was acknowledged is durable; where it takes caches too,
//! only what a flush or FUA was acknowledged for. Data that was found once stays.
use super::super::nbd::BLOCK;
use anyhow::{Result, ensure};

/// Bytes of a mark; a block is full of its own.
const MARK: usize = 16;

/// A writer's blocks.
pub struct Ledger {
    /// Number of the first one.
    first: u64,
    /// Of each block, the versions that it may have, the last one that was asked for behind.
    may: Vec<Vec<u64>>,
    version: u64,
    /// A kill takes caches, too.
    volatile: bool,
}

impl Ledger {
    /// Blocks in which nothing was written yet.
    pub fn new(first: u64, count: usize, volatile: bool) -> Self {
        Self {
            first,
            may: vec![vec![0]; count],
            version: 0,
            volatile,
        }
    }

    /// How many blocks.
    pub fn count(&self) -> usize {
        self.may.len()
    }

    /// The device has become larger: so many blocks more, in which nothing was written yet.
    pub fn extend(&mut self, count: usize) {
        self.may.extend(std::iter::repeat_n(vec![0], count));
    }

    /// Byte of block `at` on the device.
    pub fn offset(&self, at: usize) -> u64 {
        (self.first + at as u64) * BLOCK as u64
    }

    /// The next write, of `count` blocks from `at` on: what they are to hold.
    pub fn ask(&mut self, at: usize, count: usize) -> Vec<u8> {
        self.version += 1;
        let mut bytes = Vec::with_capacity(count * BLOCK);
        for block in at..at + count {
            self.may[block].push(self.version);
            let number = self.first + block as u64 + 1;
            let mark = [self.version.to_le_bytes(), number.to_le_bytes()].concat();
            bytes.extend(mark.repeat(BLOCK / MARK));
        }
        bytes
    }

    /// The last write was acknowledged, with FUA or without.
    pub fn acknowledge(&mut self, at: usize, count: usize, fua: bool) {
        if fua || !self.volatile {
            self.may[at..at + count].iter_mut().for_each(only_the_last);
        }
    }

    /// A flush was acknowledged, that was sent after the last write had been.
    pub fn flushed(&mut self) {
        self.may.iter_mut().for_each(only_the_last);
    }

    /// Block `at` holds `bytes` after a kill; which version that is.
    ///
    /// # Errors
    /// It may not: what it should hold, and what it does.
    pub fn check(&self, at: usize, bytes: &[u8]) -> Result<u64> {
        let version = self.version_of(at, bytes)?;
        let (number, may) = (self.first + at as u64, &self.may[at]);
        ensure!(
            may.contains(&version),
            "block {number} has version {version}; durable was {}, asked for since: {:?}",
            may[0],
            &may[1..]
        );
        Ok(version)
    }

    /// Block `at` holds `bytes` while nothing was killed and no write is under way.
    ///
    /// # Errors
    /// It is not what was written last.
    pub fn check_live(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let version = self.version_of(at, bytes)?;
        let (number, last) = (self.first + at as u64, self.may[at].last());
        ensure!(
            last == Some(&version),
            "block {number} is read as version {version}; {last:?} was acknowledged"
        );
        Ok(())
    }

    fn version_of(&self, at: usize, bytes: &[u8]) -> Result<u64> {
        let number = self.first + at as u64;
        let words = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (version, mark) = (words(0), words(8));
        let whole = bytes.chunks_exact(MARK).all(|it| *it == bytes[..MARK]);
        ensure!(
            whole,
            "block {number} is torn, of version {version} at its beginning"
        );
        let ours = mark == number + 1 || version == 0 && mark == 0;
        ensure!(
            ours,
            "block {number} holds what belongs to block {}",
            mark.wrapping_sub(1)
        );
        Ok(version)
    }

    /// It was read by a user as of this version.
    pub fn settle(&mut self, at: usize, version: u64) {
        self.may[at] = vec![version];
    }
}

/// Bytes of the device of which these know.
pub fn bytes(ledgers: &[Ledger]) -> u64 {
    let ends = ledgers.iter().map(|it| it.offset(it.count()));
    ends.max().unwrap_or(0)
}

fn only_the_last(may: &mut Vec<u64>) {
    may.drain(..may.len() - 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_has_to_be_there_and_what_was_asked_may() -> Result<()> {
        let mut ledger = Ledger::new(8, 4, false);
        assert_eq!(ledger.offset(1), 9 * BLOCK as u64);
        let nothing = [0; BLOCK];
        assert_eq!(ledger.check(0, &nothing)?, 0);
        let first = ledger.ask(0, 2);
        assert_eq!(ledger.check(0, &nothing)?, 0);
        assert_eq!(ledger.check(1, &first[BLOCK..])?, 1);
        ledger.acknowledge(0, 2, false);
        assert!(ledger.check(0, &nothing).is_err(), "lost");
        assert!(ledger.check(0, &first[BLOCK..]).is_err(), "another block's");
        ledger.check_live(1, &first[BLOCK..])?;
        assert_eq!(bytes(std::slice::from_ref(&ledger)), 12 * BLOCK as u64);
        ledger.extend(2);
        assert_eq!(ledger.check(5, &nothing)?, 0, "new");
        assert_eq!(bytes(std::slice::from_ref(&ledger)), 14 * BLOCK as u64);
        let second = ledger.ask(0, 1);
        assert_eq!(ledger.check(0, &first[..BLOCK])?, 1);
        assert_eq!(ledger.check(0, &second)?, 2);
        let torn = [&first[..BLOCK / 2], &second[BLOCK / 2..]].concat();
        assert!(ledger.check(0, &torn).is_err(), "torn");
        ledger.settle(0, 2);
        assert!(
            ledger.check(0, &first[..BLOCK]).is_err(),
            "read before, and gone"
        );
        Ok(())
    }

    #[test]
    fn a_cache_may_lose_what_was_not_flushed_and_a_live_device_may_not() -> Result<()> {
        let mut ledger = Ledger::new(0, 2, true);
        let nothing = [0; BLOCK];
        let first = ledger.ask(0, 1);
        ledger.acknowledge(0, 1, false);
        assert_eq!(ledger.check(0, &nothing)?, 0, "not flushed");
        assert!(ledger.check_live(0, &nothing).is_err(), "and nobody died");
        ledger.flushed();
        assert!(ledger.check(0, &nothing).is_err(), "flushed");
        let second = ledger.ask(0, 1);
        ledger.acknowledge(0, 1, false);
        let third = ledger.ask(0, 1);
        for (bytes, version) in [(&first, 1), (&second, 2), (&third, 3)] {
            assert_eq!(ledger.check(0, bytes)?, version);
        }
        ledger.acknowledge(0, 1, true);
        assert!(ledger.check(0, &second).is_err(), "older than FUA");
        Ok(())
    }
}
