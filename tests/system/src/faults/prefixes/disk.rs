//! A file on FUSE that logs what is written to it, and each flush.
use anyhow::{Context, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// Modes of `fallocate(2)` after which the range reads as zeroes: FALLOC_FL_PUNCH_HOLE, ZERO_RANGE.
const LEAVES_ZEROES: i32 = 0x02 | 0x10;
/// Nothing else changes it, so that its attributes stay.
const VALID: Duration = Duration::from_secs(3600);

/// Event at the disk.
pub enum Event {
    /// A write.
    Write {
        /// First byte.
        offset: u64,
        /// Written bytes.
        data: Vec<u8>,
    },
    /// All writes before it are durable.
    Flush,
}

impl Event {
    /// Does it to an image of the disk.
    pub fn apply(&self, image: &mut [u8]) {
        if let Self::Write { offset, data } = self {
            let at = *offset as usize;
            image[at..at + data.len()].copy_from_slice(data);
        }
    }
}

struct State {
    image: Vec<u8>,
    events: Vec<Event>,
}

/// The log of a disk.
#[derive(Clone)]
pub struct Log(Arc<Mutex<State>>);

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events so far.
    pub fn position(&self) -> usize {
        self.state().events.len()
    }
}

/// A mounted disk.
pub struct Disk {
    session: fuser::BackgroundSession,
    log: Log,
    /// The file.
    pub path: PathBuf,
}

impl Disk {
    /// Mounts one of so many bytes below `directory`.
    ///
    /// # Errors
    /// FUSE says why not.
    pub fn mount(directory: &Path, bytes: usize) -> Result<Self> {
        let at = directory.join("log");
        std::fs::create_dir_all(&at)?;
        let log = Log(Arc::new(Mutex::new(State {
            image: vec![0; bytes],
            events: Vec::new(),
        })));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("braid-faults".into())];
        let session = fuser::spawn_mount(Service(log.clone()), &at, &config);
        Ok(Self {
            session: session.context("mount a FUSE file system")?,
            log,
            path: at.join(NAME),
        })
    }

    /// See [`Log`].
    pub fn log(&self) -> Log {
        self.log.clone()
    }

    /// See [`Log::position`].
    pub fn position(&self) -> usize {
        self.log.position()
    }

    /// All events, once the file is closed.
    ///
    /// # Errors
    /// It can't be unmounted.
    pub fn unmount(self) -> Result<Vec<Event>> {
        self.session.umount_and_join().context("unmount the disk")?;
        Ok(std::mem::take(&mut self.log.state().events))
    }
}

struct Service(Log);

impl Service {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let size = self.0.state().image.len() as u64;
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            FILE => (FileType::RegularFile, 0o600, size),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Service {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(found) if parent == INodeNo::ROOT && name == NAME => {
                reply.entry(&VALID, &found, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(found) => reply.attr(&VALID, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.0.state();
        let begin = (offset as usize).min(state.image.len());
        let end = (begin + size as usize).min(state.image.len());
        reply.data(&state.image[begin..end]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.0.state();
        let fits = (offset as usize).checked_add(data.len());
        if fits.is_none_or(|end| end > state.image.len()) {
            return reply.error(Errno::ENOSPC);
        }
        let event = Event::Write {
            offset,
            data: data.to_vec(),
        };
        event.apply(&mut state.image);
        state.events.push(event);
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.state().events.push(Event::Flush);
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mut state = self.0.state();
        let fits = offset.checked_add(length);
        if fits.is_none_or(|end| end > state.image.len() as u64) {
            return reply.error(Errno::ENOSPC);
        }
        // Other modes only allocate space, which is there: what was written stays.
        if mode & LEAVES_ZEROES != 0 {
            let event = Event::Write {
                offset,
                data: vec![0; length as usize],
            };
            event.apply(&mut state.image);
            state.events.push(event);
        }
        reply.ok();
    }
}
