//! A volatile write cache in front of a file, as disks have one: for testing who is in front of it.
//!
//! # Contract
//! A write stays in memory of this process until a flush, or FUA of that write, puts it into the
//! file, durably; so a process that is killed loses everything not flushed, as a disk does that
//! loses power. Where the cache is full, a piece of it goes to the file before, and not the oldest
//! one: the lost writes need not be the last ones. Reads find the last write.
//!
//! # Limits
//! I/O is done at once, on the thread that asks: a flush holds up everything else of it. One
//! process has the file; a second one sees what is in it. Pieces of [`VOLATILE_PIECE_BYTES`], to
//! which the file's end is rounded up.
use crate::device::{device_error, within};
use crate::limits::VOLATILE_PIECE_BYTES;
use crate::{FileDevice, RuntimeError};
use engine::machine::{DeviceError, DeviceOp, DeviceRequest};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use sys::{Errno, Extent, Ring};

const PIECE: u64 = VOLATILE_PIECE_BYTES as u64;

/// See the module.
#[derive(Debug)]
pub(crate) struct VolatileCache {
    file: File,
    pieces_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By number in the file: whole pieces, newer than the file's.
    pieces: BTreeMap<u64, Box<[u8]>>,
    /// Where the next piece is looked for that has to go.
    hand: u64,
}

/// A request to a file that has a cache, done at once.
pub(crate) fn execute(
    ring: &mut Ring,
    file: &FileDevice,
    request: &DeviceRequest,
    data: Extent,
) -> Result<(), DeviceError> {
    within(request, i64::MAX as u64)?;
    let Some(cache) = file.cache() else {
        return Err(DeviceError::Unsupported);
    };
    let done = match request.op {
        DeviceOp::Read => cache.read(request.offset, ring.bytes_mut(data)),
        DeviceOp::Write { fua } => cache.write(request.offset, ring.arena().bytes(data), fua),
        DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => {
            cache.zero(request.offset, request.length)
        }
        DeviceOp::Flush => cache.flush(),
        DeviceOp::Compare => {
            let mut there = vec![0; request.length as usize];
            match cache.read(request.offset, &mut there) {
                Ok(()) if there != ring.arena().bytes(data) => return Err(DeviceError::Mismatch),
                read => read,
            }
        }
    };
    done.map_err(|error| {
        let number = error.raw_os_error().map(Errno::from_raw_os_error);
        device_error(number.unwrap_or(Errno::IO))
    })
}

impl VolatileCache {
    /// In front of the file of this path, of so many bytes at most, one piece at least.
    pub(crate) fn new(path: &Path, bytes_max: u64) -> Result<Self, RuntimeError> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|source| RuntimeError::File {
            path: path.into(),
            operation: "open again",
            source,
        })?;
        Ok(Self {
            file,
            pieces_max: (bytes_max / PIECE).max(1) as usize,
            state: Mutex::default(),
        })
    }

    /// Reads the data written last.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        for (piece, within, at) in parts(offset, data.len() as u64) {
            let data = &mut data[at..at + within.len()];
            match state.pieces.get(&piece) {
                Some(cached) => data.copy_from_slice(&cached[within]),
                None => read_whole(&self.file, piece * PIECE + within.start as u64, data)?,
            }
        }
        Ok(())
    }

    /// Writes; `durable`: it is in the file when this returns.
    pub(crate) fn write(&self, offset: u64, data: &[u8], durable: bool) -> io::Result<()> {
        let mut state = self.lock();
        for (piece, within, at) in parts(offset, data.len() as u64) {
            let data = &data[at..at + within.len()];
            if durable {
                let offset = piece * PIECE + within.start as u64;
                self.file.write_all_at(data, offset)?;
                if let Some(cached) = state.pieces.get_mut(&piece) {
                    cached[within].copy_from_slice(data);
                }
                continue;
            }
            self.piece(&mut state, piece)?[within].copy_from_slice(data);
        }
        match durable {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }

    /// Zeroes, in the cache like any other data.
    pub(crate) fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.lock();
        for (piece, within, _) in parts(offset, length) {
            self.piece(&mut state, piece)?[within].fill(0);
        }
        Ok(())
    }

    /// Everything is in the file, durably.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        for (piece, bytes) in &state.pieces {
            self.file.write_all_at(bytes, piece * PIECE)?;
        }
        self.file.sync_data()?;
        state.pieces.clear();
        Ok(())
    }

    /// A piece in the cache, which takes it from the file and makes room first.
    fn piece<'a>(&self, state: &'a mut State, piece: u64) -> io::Result<&'a mut [u8]> {
        if !state.pieces.contains_key(&piece) {
            let mut bytes = vec![0; VOLATILE_PIECE_BYTES].into_boxed_slice();
            read_whole(&self.file, piece * PIECE, &mut bytes)?;
            while state.pieces.len() >= self.pieces_max {
                self.push_out(state)?;
            }
            state.pieces.insert(piece, bytes);
        }
        Ok(state.pieces.entry(piece).or_default())
    }

    /// The next piece from the hand on goes to the file.
    fn push_out(&self, state: &mut State) -> io::Result<()> {
        let next = state.pieces.range(state.hand..).next();
        let next = next.or_else(|| state.pieces.iter().next());
        let Some((&piece, bytes)) = next else {
            return Ok(());
        };
        self.file.write_all_at(bytes, piece * PIECE)?;
        state.pieces.remove(&piece);
        state.hand = piece + 1;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while it was held left bytes, which are always valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pieces of a range: each one's number, the part of it, and where that is in the data.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let end = offset + length;
    let pieces = offset / PIECE..end.div_ceil(PIECE);
    pieces.map(move |piece| {
        let first = offset.max(piece * PIECE);
        let last = end.min((piece + 1) * PIECE);
        let within = (first - piece * PIECE) as usize..(last - piece * PIECE) as usize;
        (piece, within, (first - offset) as usize)
    })
}

/// Reads; behind the end of the file are zeroes.
fn read_whole(file: &File, offset: u64, data: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], offset + done as u64) {
            Ok(0) => {
                data[done..].fill(0);
                return Ok(());
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Backing(PathBuf);

    impl Backing {
        fn new(name: &str, pieces: u64) -> Self {
            let name = format!("braid-volatile-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            File::create(&path)
                .unwrap()
                .set_len(pieces * PIECE)
                .unwrap();
            Self(path)
        }

        fn bytes(&self) -> Vec<u8> {
            std::fs::read(&self.0).unwrap()
        }
    }

    impl Drop for Backing {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn read(cache: &VolatileCache, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xff; length];
        cache.read(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_not_flushed_is_not_in_the_file_and_what_is_flushed_is() {
        let backing = Backing::new("flush", 4);
        let cache = VolatileCache::new(&backing.0, 4 * PIECE).unwrap();
        cache.write(PIECE - 512, &[1; 1024], false).unwrap();
        assert_eq!(read(&cache, PIECE - 1024, 2048)[511..514], [0, 1, 1]);
        assert!(backing.bytes().iter().all(|&it| it == 0), "in memory only");
        cache.flush().unwrap();
        assert_eq!(backing.bytes()[PIECE as usize - 512..][..1024], [1; 1024]);
        cache.write(0, &[2; 512], false).unwrap();
        cache.write(512, &[3; 512], true).unwrap();
        assert_eq!(read(&cache, 0, 1024), [[2; 512], [3; 512]].concat());
        drop(cache);
        let left = &backing.bytes()[..1024];
        assert_eq!(
            left,
            [[0; 512], [3; 512]].concat(),
            "FUA is of its own data"
        );
    }

    #[test]
    fn zeroes_hide_what_was_there_and_are_lost_like_data() {
        let backing = Backing::new("zero", 4);
        let cache = VolatileCache::new(&backing.0, 4 * PIECE).unwrap();
        cache.write(0, &[1; 2 * PIECE as usize], true).unwrap();
        cache.zero(512, PIECE).unwrap();
        let seen = read(&cache, 0, PIECE as usize + 1024);
        assert_eq!(
            (seen[511], seen[512], seen[PIECE as usize + 511]),
            (1, 0, 0)
        );
        assert_eq!(seen[PIECE as usize + 512], 1);
        assert_eq!(backing.bytes()[512], 1, "in memory only");
    }

    #[test]
    fn a_full_cache_gives_pieces_up_and_keeps_what_it_has_no_room_for() {
        let backing = Backing::new("full", 8);
        let cache = VolatileCache::new(&backing.0, 2 * PIECE).unwrap();
        for piece in [6, 1, 3, 5] {
            cache
                .write(piece * PIECE, &[piece as u8; 512], false)
                .unwrap();
        }
        let file = backing.bytes();
        let there = |piece: usize| file[piece * PIECE as usize] > 0;
        assert_eq!((1..8).filter(|&it| there(it)).collect::<Vec<_>>(), [1, 3]);
        for piece in [1, 3, 5, 6] {
            let seen = read(&cache, piece * PIECE, 512);
            assert_eq!(seen, [piece as u8; 512], "piece {piece}");
        }
        assert!(cache.lock().pieces.len() <= 2);
    }
}
