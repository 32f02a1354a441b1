//! Threads that make a file's blocking system calls, so that a file that hangs holds up nothing
//! else (T52).
//!
//! # Contract
//! They execute the calls for which the kernel would use its own workers (a write into a hole, a
//! file system without NOWAIT, `fallocate`) and everything on file systems that block their
//! submitter. Directly before each system call the thread asks the job's [`Permit`]: a process that
//! stood still executes nothing whose time passed meanwhile (T49). A stop between that question and
//! the call remains possible. Where a file has holes, space is allocated first and the permit asked
//! again; the result of the allocation does not count, but that of the write itself.
//!
//! A job is one system call; short counts come back as they are. Its end goes to
//! [`Complete::complete`], on the thread.
//!
//! # Limits
//! [`FILE_WORKERS_MAX`] threads a file, started as they are needed, ended when idle. Jobs wait in
//! the order in which they came, as many as their senders have requests. A question about holes is
//! given up after a time while its job stays, so of such jobs there are [`FILE_QUESTIONS_MAX`] at
//! most.
use crate::limits::{FILE_QUESTIONS_MAX, FILE_WORKER_IDLE, FILE_WORKERS_MAX, ZERO_BYTES_MAX};
use engine::machine::DeviceExtent;
use rustix::fs::{FallocateFlags, FileType, SeekFrom};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;
use sys::freeze::{self, Point};
use sys::{Allocate, Errno, LATE, Lease, Shared, os};

/// An open file. One whose file system may block is closed on a thread of its own: FUSE asks its
/// server at each close.
#[derive(Debug)]
pub struct FileHandle {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    blocks: bool,
}

impl FileHandle {
    /// `blocks`: its file system may block.
    pub fn new(fd: OwnedFd, blocks: bool) -> Self {
        Self {
            fd: Some(fd),
            blocks,
        }
    }
}

impl AsFd for FileHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take()
            && self.blocks
        {
            // Without a thread it is closed here.
            let _ = thread("braid-close").spawn(move || drop(fd));
        }
    }
}

/// There was no thread for a job, of which nothing was done. No system call on a file ends so.
pub const NO_THREAD: Errno = Errno::USERS;

/// Under which condition a system call may be made.
#[derive(Clone, Debug)]
pub enum Permit {
    /// At any time.
    Always,
    /// Before this time, ns.
    Before(u64),
    /// As long as a client has not let go of its queue.
    Open {
        /// The queue's memory.
        memory: Arc<Shared>,
        /// A word there.
        at: usize,
        /// The word's value once the client has let go.
        closed: u32,
        /// The server has given the queue up.
        shut: Arc<AtomicBool>,
    },
}

impl Permit {
    fn allows(&self) -> bool {
        match self {
            Self::Always => true,
            Self::Before(at_ns) => os::now_ns() < *at_ns,
            Self::Open {
                memory,
                at,
                closed,
                shut,
            } => {
                let word = memory.load_word(*at);
                // Of lost memory the word says nothing.
                word != *closed && !memory.is_lost() && !shut.load(Ordering::Relaxed)
            }
        }
    }
}

/// Memory of a job.
#[derive(Debug)]
pub enum Bytes {
    /// None.
    Nothing,
    /// A part of a reactor's arena.
    Lease(Lease),
    /// A part of shared memory: where, and how much.
    Shared(Arc<Shared>, usize, u32),
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `preadv2`.
    Read,
    /// `pwritev2`.
    Write {
        /// With `RWF_DSYNC`.
        durable: bool,
        /// The file may have holes: space is allocated before.
        allocate: bool,
    },
    /// `fdatasync`.
    Sync,
    /// `lseek` for data and holes: how far from the offset on the file has the one or the other, in
    /// so many bytes.
    Extent {
        /// Bytes.
        length: u32,
    },
    /// `fallocate` that leaves zeroes.
    Allocate {
        /// How.
        how: Allocate,
        /// Bytes.
        length: u64,
    },
}

/// One system call to make.
pub struct Job {
    /// Of which file.
    pub file: Arc<FileHandle>,
    /// Which.
    pub call: Call,
    /// First byte in the file.
    pub offset: u64,
    /// Memory to read into or write from.
    pub bytes: Bytes,
    /// Asked directly before.
    pub permit: Permit,
    /// Comes back with the end.
    pub tag: u64,
    /// Where the end is reported.
    pub to: Arc<dyn Complete>,
}

/// A job's end.
#[derive(Debug)]
pub struct Finished {
    /// The job's.
    pub tag: u64,
    /// Bytes, or zero where nothing is counted; [`LATE`]: the permit was withdrawn before the last
    /// call. Of a read or a write nothing was done then, but space may have been allocated; an
    /// [`Allocate`] in several calls may have been done in part.
    pub result: Result<u32, Errno>,
    /// The job's.
    pub bytes: Bytes,
}

/// Takes ends of jobs, on any thread.
pub trait Complete: Send + Sync {
    /// A job has ended.
    fn complete(&self, finished: Finished);
}

/// The threads of one file.
#[derive(Clone)]
pub struct Workers(Arc<Pool>);

struct Pool {
    /// Path of the file.
    path: PathBuf,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Questions about holes that have no answer, whether or not a thread has taken them.
    questions: usize,
    /// When the system calls that are being made began, ns; in no order.
    began_ns: Vec<u64>,
}

/// All files that have workers, or had.
static POOLS: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());

/// A file of this process of which a system call has not returned for so long.
pub fn hung(at_least: Duration) -> Option<PathBuf> {
    let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let before_ns = os::now_ns().saturating_sub(at_least.as_nanos() as u64);
    let hangs = |pool: &Arc<Pool>| pool.lock().began_ns.iter().any(|at_ns| *at_ns <= before_ns);
    let found = pools.iter().filter_map(Weak::upgrade).find(hangs);
    found.map(|pool| pool.path.clone())
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Workers")
            .field("jobs", &state.jobs.len())
            .field("threads", &state.threads)
            .finish_non_exhaustive()
    }
}

impl Workers {
    /// None yet, for the file of this path.
    pub fn new(path: &Path) -> Self {
        let pool = Arc::new(Pool {
            path: path.to_owned(),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        Self(pool)
    }

    /// Hands over a [`Call::Extent`], unless there are too many already. `false`: it was not.
    #[must_use]
    pub(crate) fn ask(&self, job: Job) -> bool {
        debug_assert!(job.is_question(), "of others all are made");
        let mut state = self.0.lock();
        let has_room = state.questions < FILE_QUESTIONS_MAX;
        if has_room {
            state.questions += 1;
            drop(state);
            self.submit(job);
        }
        has_room
    }

    /// Hands a job over. It ends with [`NO_THREAD`] where the system has no thread for it.
    pub fn submit(&self, job: Job) {
        let mut state = self.0.lock();
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle || state.threads >= FILE_WORKERS_MAX {
            drop(state);
            return self.0.wake.notify_one();
        }
        state.threads += 1;
        drop(state);
        let pool = Arc::clone(&self.0);
        if thread("braid-file").spawn(move || pool.work()).is_ok() {
            return;
        }
        let mut state = self.0.lock();
        state.threads -= 1;
        // Threads that are there go on with it.
        let left = if state.threads == 0 {
            std::mem::take(&mut state.jobs)
        } else {
            VecDeque::new()
        };
        drop(state);
        for job in left {
            self.0.end(job, Err(NO_THREAD));
        }
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes system calls until there has been none for a while.
    fn work(&self) {
        let mut began_ns = None;
        while let Some((job, at_ns)) = self.next(began_ns) {
            began_ns = Some(at_ns);
            self.run(job);
        }
    }

    fn run(&self, mut job: Job) {
        let result = job.make_calls(Job::allocate);
        self.end(job, result);
    }

    /// The receiver of the end may ask the next question.
    fn end(&self, job: Job, result: Result<u32, Errno>) {
        if job.is_question() {
            let mut state = self.lock();
            assert!(state.questions > 0, "a question ends that was not counted");
            state.questions -= 1;
        }
        job.end(result);
    }

    /// The next job, and when it was taken; the one taken at `ended_ns` is over.
    fn next(&self, ended_ns: Option<u64>) -> Option<(Job, u64)> {
        let mut state = self.lock();
        if let Some(at) = state
            .began_ns
            .iter()
            .position(|at_ns| Some(*at_ns) == ended_ns)
        {
            state.began_ns.swap_remove(at);
        }
        let mut waited = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let now_ns = os::now_ns();
                state.began_ns.push(now_ns);
                return Some((job, now_ns));
            }
            if waited {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let woken = self.wake.wait_timeout(state, FILE_WORKER_IDLE);
            let (again, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            waited = timeout.timed_out();
        }
    }
}

impl Job {
    fn is_question(&self) -> bool {
        matches!(self.call, Call::Extent { .. })
    }

    fn end(self, result: Result<u32, Errno>) {
        let (tag, bytes) = (self.tag, self.bytes);
        // Its file may be closed with it, before the end is reported.
        drop(self.file);
        self.to.complete(Finished { tag, result, bytes });
    }

    fn make_calls(&mut self, allocate: fn(&Self, u32) -> Result<(), Errno>) -> Result<u32, Errno> {
        let changes = matches!(self.call, Call::Write { .. } | Call::Allocate { .. });
        if changes {
            freeze::point(Point::Worker);
        }
        if let Call::Write { allocate: true, .. } = self.call {
            let length = match &self.bytes {
                Bytes::Nothing => 0,
                Bytes::Lease(lease) => lease.len(),
                Bytes::Shared(_, _, len) => *len,
            };
            if !self.permit.allows() {
                return Err(LATE);
            }
            // No room, or a file system that can't: what was written before is overwritten all the
            // same, and the write itself says what is wrong.
            let _ = allocate(self, length);
        }
        let zero_max = self.zero_max()?;
        freeze::begin();
        if !self.permit.allows() {
            return Err(LATE);
        }
        // In a program that is shipped nothing stands between the permit and the call.
        if changes {
            freeze::point(Point::Call);
        }
        let result = match (self.call, &mut self.bytes) {
            (Call::Extent { length }, _) => find_extent(&*self.file, self.offset, length),
            (Call::Sync, _) => rustix::fs::fdatasync(&*self.file).map(|()| 0),
            (Call::Allocate { how, length }, _) => self.zero(how, length, zero_max),
            (Call::Read, Bytes::Lease(lease)) => lease.read_from(&*self.file, self.offset),
            (Call::Read, Bytes::Shared(memory, at, len)) => {
                memory.read_from((*at, *len), &*self.file, self.offset)
            }
            (Call::Write { durable, .. }, Bytes::Lease(lease)) => {
                lease.write_to(&*self.file, self.offset, durable)
            }
            (Call::Write { durable, .. }, Bytes::Shared(memory, at, len)) => {
                memory.write_to((*at, *len), &*self.file, self.offset, durable)
            }
            (Call::Read | Call::Write { .. }, Bytes::Nothing) => Err(Errno::INVAL),
        };
        freeze::end();
        result
    }

    /// Most bytes that one call may zero; of other calls 0.
    fn zero_max(&self) -> Result<u64, Errno> {
        let Call::Allocate { length, .. } = self.call else {
            return Ok(0);
        };
        let stat = rustix::fs::fstat(&*self.file)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => ZERO_BYTES_MAX,
            _ => length,
        })
    }

    /// Zeroes a range by calls of at most `most` bytes.
    fn zero(&self, how: Allocate, length: u64, most: u64) -> Result<u32, Errno> {
        let mode = match how {
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE,
            Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
        };
        let mode = mode | FallocateFlags::KEEP_SIZE;
        in_pieces((self.offset, length), most, |offset, length| {
            // The first was asked for by the caller.
            if offset > self.offset && !self.permit.allows() {
                return Err(LATE);
            }
            rustix::fs::fallocate(&*self.file, mode, offset, length)
        })
    }

    /// Allocates the space of a write: that may take long, and what follows does not then.
    fn allocate(&self, length: u32) -> Result<(), Errno> {
        let mode = FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&*self.file, mode, self.offset, length.into())
    }
}

/// Zeroes a range by calls of at most `most` bytes each, up to the first that fails.
fn in_pieces(
    (offset, length): (u64, u64),
    most: u64,
    mut zero: impl FnMut(u64, u64) -> Result<(), Errno>,
) -> Result<u32, Errno> {
    let mut done = 0;
    loop {
        let piece = (length - done).min(most);
        zero(offset + done, piece)?;
        done += piece;
        if done >= length {
            return Ok(0);
        }
    }
}

/// Set in the result of a [`Call::Extent`] that found a hole; the other bits are its length.
const IS_HOLE: u32 = 1 << 31;
/// Longest extent that is reported, bytes.
const EXTENT_MAX: u32 = 1 << 30;

/// Finds data or a hole of a file from an offset on. Nothing that was written before is missed: a
/// file system counts its page cache as data.
fn find_extent(file: impl AsFd, offset: u64, length: u32) -> Result<u32, Errno> {
    let length = length.min(EXTENT_MAX);
    let size = rustix::fs::fstat(&file)?.st_size as u64;
    if offset >= size {
        return Err(Errno::NXIO);
    }
    let within = |end: u64| end.saturating_sub(offset).min(length.into()) as u32;
    let data = match rustix::fs::seek(&file, SeekFrom::Data(offset)) {
        Ok(at) => at,
        // There is a hole up to the end of the file.
        Err(Errno::NXIO) => size,
        Err(error) => return Err(error),
    };
    if data > offset {
        return Ok(within(data) | IS_HOLE);
    }
    let hole = rustix::fs::seek(&file, SeekFrom::Hole(offset))?;
    Ok(within(hole).max(1))
}

/// Decodes the result of a [`Call::Extent`]; of an error: nothing is known.
pub(crate) fn extent_of(result: Result<u32, Errno>) -> DeviceExtent {
    result.map_or(DeviceExtent::UNKNOWN, |found| DeviceExtent {
        length: found & !IS_HOLE,
        is_zero: found & IS_HOLE != 0,
    })
}

fn thread(name: &str) -> Builder {
    Builder::new().name(name.into()).stack_size(256 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::sync::mpsc::{Receiver, Sender, channel};

    struct Ends(Mutex<Sender<Finished>>);

    impl Complete for Ends {
        fn complete(&self, finished: Finished) {
            let _ = self.0.lock().unwrap().send(finished);
        }
    }

    fn ends() -> (Arc<dyn Complete>, Receiver<Finished>) {
        let (sender, receiver) = channel();
        (Arc::new(Ends(Mutex::new(sender))), receiver)
    }

    fn file() -> (File, Arc<FileHandle>) {
        let file = tempfile();
        let fd = file.try_clone().unwrap().into();
        (file, Arc::new(FileHandle::new(fd, false)))
    }

    fn tempfile() -> File {
        use std::sync::atomic::AtomicU32;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("braid-workers-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    /// The kernel's NVMe host cuts the number of blocks to 16 bits, and reports success.
    #[test]
    fn a_block_device_is_zeroed_in_pieces_of_16_bits() {
        for length in [512, ZERO_BYTES_MAX, ZERO_BYTES_MAX + 512, 96 << 20] {
            let mut zeroed = Vec::new();
            let result = in_pieces((4096, length), ZERO_BYTES_MAX, |offset, length| {
                zeroed.push((offset, length));
                Ok(())
            });
            assert_eq!(result, Ok(0));
            let mut end = 4096;
            for (offset, length) in zeroed {
                assert!(offset == end && length > 0 && length / 512 <= 1 << 16);
                end += length;
            }
            assert_eq!(end, 4096 + length);
        }
        let refused = in_pieces((0, 96 << 20), ZERO_BYTES_MAX, |offset, _| match offset {
            0 => Ok(()),
            _ => Err(Errno::IO),
        });
        assert_eq!(refused, Err(Errno::IO));
    }

    fn memory(byte: u8) -> Arc<Shared> {
        let file = sys::memory_file("workers", 4096).unwrap();
        let memory = Shared::map(&file, 4096).unwrap();
        memory.write(0, &[byte; 4096]);
        Arc::new(memory)
    }

    fn job(file: &Arc<FileHandle>, to: &Arc<dyn Complete>, call: Call, permit: Permit) -> Job {
        Job {
            file: Arc::clone(file),
            call,
            offset: 4096,
            bytes: Bytes::Shared(memory(7), 0, 4096),
            permit,
            tag: 3,
            to: Arc::clone(to),
        }
    }

    const WRITE: Call = Call::Write {
        durable: false,
        allocate: true,
    };

    #[test]
    fn a_write_is_made_with_its_space() {
        let ((file, handle), (to, ended)) = (file(), ends());
        file.set_len(1 << 20).unwrap();
        let workers = Workers::new(Path::new("v0"));
        workers.submit(job(&handle, &to, WRITE, Permit::Always));
        let done = ended.recv().unwrap();
        assert_eq!((done.tag, done.result), (3, Ok(4096)));
        let mut read = [0; 4096];
        file.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(read, [7; 4096]);
        assert!(file.metadata().unwrap().blocks() >= 8);
    }

    #[test]
    fn a_write_without_new_space_is_made() {
        // As on XFS, which wants room for a whole range that was written before.
        let ((file, handle), (to, _ended)) = (file(), ends());
        file.set_len(1 << 20).unwrap();
        for error in [Errno::NOSPC, Errno::DQUOT, Errno::OPNOTSUPP] {
            file.write_all_at(&[1; 4096], 4096).unwrap();
            let mut job = job(&handle, &to, WRITE, Permit::Always);
            let refuse: fn(&Job, u32) -> _ = match error {
                Errno::NOSPC => |_, _| Err(Errno::NOSPC),
                Errno::DQUOT => |_, _| Err(Errno::DQUOT),
                _ => |_, _| Err(Errno::OPNOTSUPP),
            };
            assert_eq!(job.make_calls(refuse), Ok(4096));
            let mut read = [0; 4096];
            file.read_exact_at(&mut read, 4096).unwrap();
            assert_eq!(read, [7; 4096]);
        }
    }

    #[test]
    fn t49_a_write_without_permit_is_not_made() {
        let ((file, handle), (to, ended)) = (file(), ends());
        let workers = Workers::new(Path::new("v0"));
        let queue = memory(0);
        let shut = Arc::new(AtomicBool::new(true));
        let open = |closed, shut| Permit::Open {
            memory: Arc::clone(&queue),
            at: 0,
            closed,
            shut,
        };
        for permit in [
            Permit::Before(os::now_ns()),
            open(0, Arc::default()),
            open(1, shut),
        ] {
            workers.submit(job(&handle, &to, WRITE, permit));
            assert_eq!(ended.recv().unwrap().result, Err(LATE));
        }
        assert_eq!(file.metadata().unwrap().len(), 0);
        workers.submit(job(&handle, &to, WRITE, open(1, Arc::default())));
        assert_eq!(ended.recv().unwrap().result, Ok(4096));
    }

    /// All threads block in a system call, reads of pipes without a writer, until these go.
    fn hang(workers: &Workers, to: &Arc<dyn Complete>) -> Vec<OwnedFd> {
        let mut writers = Vec::new();
        for _ in 0..FILE_WORKERS_MAX {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let hung = Arc::new(FileHandle::new(reader, false));
            let mut read = job(&hung, to, Call::Read, Permit::Always);
            read.offset = u64::MAX; // no position
            workers.submit(read);
            writers.push(writer);
        }
        writers
    }

    #[test]
    fn t49_what_waits_for_a_hung_file_is_late_afterwards() {
        let ((file, handle), (to, ended)) = (file(), ends());
        let workers = Workers::new(Path::new("t49_what_waits"));
        let writers = hang(&workers, &to);
        let soon = Permit::Before(os::now_ns() + 50_000_000);
        workers.submit(job(&handle, &to, WRITE, soon));
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err());
        assert_eq!(workers.0.lock().threads, FILE_WORKERS_MAX);
        let here = Path::new("t49_what_waits");
        assert_eq!(hung(Duration::from_millis(50)).as_deref(), Some(here));
        assert_eq!(hung(Duration::from_secs(1000)), None);
        drop(writers);
        let results: Vec<_> = (0..=FILE_WORKERS_MAX)
            .map(|_| ended.recv().unwrap().result)
            .collect();
        assert_eq!(results.iter().filter(|it| **it == Err(LATE)).count(), 1);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    /// Their requesters give them up, and their jobs stay: without a bound these are as many as
    /// clients ask in all the time.
    #[test]
    fn t52_questions_of_a_hung_file_are_bounded() {
        let ((file, handle), (to, ended)) = (file(), ends());
        file.set_len(1 << 20).unwrap();
        let workers = Workers::new(Path::new("v0"));
        let writers = hang(&workers, &to);
        let call = Call::Extent { length: 4096 };
        let ask = || workers.ask(job(&handle, &to, call, Permit::Always));
        let asked = (0..100).filter(|_| ask()).count();
        assert_eq!(asked, FILE_QUESTIONS_MAX);
        assert_eq!(workers.0.lock().questions, FILE_QUESTIONS_MAX);
        assert!(ended.try_recv().is_err());
        drop(writers);
        for _ in 0..FILE_WORKERS_MAX + FILE_QUESTIONS_MAX {
            ended.recv().unwrap();
        }
        // All have their places back before they are heard of, late or not.
        for _ in 0..3 * FILE_QUESTIONS_MAX {
            assert!(ask());
            assert_eq!(ended.recv().unwrap().result, Ok(4096 | IS_HOLE));
        }
        assert_eq!(workers.0.lock().questions, 0);
    }
}
