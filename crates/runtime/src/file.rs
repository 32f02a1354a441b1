//! A file or block device as a device: opening it, and what it can do.
//!
//! # Contract
//! O_DIRECT is used where the file system can and its alignment fits ours; elsewhere the page cache
//! is used, and `direct` says so. Several cores, and several processes, may open one file: each I/O
//! goes to the file, nothing is cached here. Only a file opened [alone](FileDevice::open_alone), or
//! by a [sole](FileDevice::open_sole) writer, is protected from others: see `lock`. A
//! [volatile](FileDevice::make_volatile) one keeps writes in memory until a flush, for tests.
use crate::RuntimeError;
use crate::filesystem::blocks_submitter;
use crate::lock::lock;
use crate::loop_backing::lock_below;
use crate::truncation_guard::TruncationGuard;
use crate::volatile::VolatileCache;
use crate::workers::{FileHandle, Workers};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Alignment of every buffer in the arena.
const BUFFER_ALIGN: u32 = 4096;
/// Block sizes on offer, log2.
const SHIFTS: std::ops::RangeInclusive<u32> = 9..=12;

/// A file or block device, opened.
#[derive(Debug)]
pub struct FileDevice {
    fd: Arc<FileHandle>,
    workers: Workers,
    path: PathBuf,
    read_only: bool,
    bytes: u64,
    block_shift: u8,
    direct: bool,
    /// A regular file, not a block device.
    regular: bool,
    /// Its file system may block its submitters.
    blocks: bool,
    /// Its file system makes holes when it is asked for one.
    punches: bool,
    /// It is a block device that the kernel can have zero its blocks.
    zeroes_blocks: bool,
    /// It is sparse on purpose: it was so when it was opened, or is said to be.
    sparse: bool,
    /// It may have holes. Written by any core, read before a write by a worker.
    has_holes: AtomicBool,
    /// A descriptor that makes exclusive opens of a block device fail, mounts included.
    claim: Option<OwnedFd>,
    /// Of files that are behind a block device, locked with it.
    below: Vec<OwnedFd>,
    cache: Option<VolatileCache>,
    /// Of a file that we have alone.
    whole: Option<TruncationGuard>,
}

impl FileDevice {
    /// Opens `path` with O_DIRECT where the file system can, and only to read where the kernel
    /// protects a block device. `create`: make a sparse file of that
    /// many bytes if there is none.
    ///
    /// # Errors
    /// [`RuntimeError::Open`]: missing, not permitted, read-only file system.
    /// [`RuntimeError::Device`]: a directory, socket…, or with nothing in it.
    /// [`RuntimeError::File`]: its size can't be read or set. [`RuntimeError::InUse`]: to be
    /// written, and another opener has it exclusively.
    pub fn open(path: PathBuf, read_only: bool, create: Option<u64>) -> Result<Self, RuntimeError> {
        let mut device = Self::opened(path, read_only, create)?;
        // The kernel opens such a device to write, and then refuses each write.
        device.read_only |= is_write_protected(&device.path, &*device.fd)?;
        if !device.read_only {
            device.lock(false)?;
            device.try_to_punch();
        }
        Ok(device)
    }

    /// As [`Self::open`], but if it is to be written, nobody else does (T48).
    ///
    /// # Errors
    /// As [`Self::open`]; [`RuntimeError::InUse`] also while another process writes it, or has a
    /// block device mounted.
    pub fn open_sole(path: PathBuf) -> Result<Self, RuntimeError> {
        let mut device = Self::opened(path, false, None)?;
        device.read_only |= is_write_protected(&device.path, &*device.fd)?;
        if !device.read_only {
            match device.lock(true) {
                // Its file system may know no locks: then no other process has one.
                Err(RuntimeError::File { .. }) => device.lock(false)?,
                locked => locked?,
            }
            device.try_to_punch();
            device.claim()?;
        }
        Ok(device)
    }

    /// Opens `path` to read and write it, with a lock that excludes other writers (T48), and takes
    /// note of how long it is.
    ///
    /// # Errors
    /// As [`Self::open`]; [`RuntimeError::InUse`] also while another process writes it, or has a
    /// block device mounted.
    pub fn open_alone(path: PathBuf) -> Result<Self, RuntimeError> {
        let mut device = Self::opened(path, false, None)?;
        if is_write_protected(&device.path, &*device.fd)? {
            return Err(RuntimeError::Open {
                path: device.path,
                read_only: false,
                source: Errno::ROFS.into(),
                advice: "the block device is read-only (blockdev --getro)",
            });
        }
        device.lock(true)?;
        device.try_to_punch();
        if device.regular {
            device.whole = Some(TruncationGuard::new(device.bytes));
        }
        device.claim()?;
        Ok(device)
    }

    /// Has a block device alone.
    fn claim(&mut self) -> Result<(), RuntimeError> {
        if self.regular {
            return Ok(());
        }
        // By its descriptor, so that it is the same device.
        let claimed = rustix::fs::open(
            format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd()),
            OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC,
            Mode::empty(),
        );
        self.claim = Some(claimed.map_err(|source| claim_error(&self.path, source))?);
        Ok(())
    }

    /// Locks it, and what it shows of another file.
    fn lock(&mut self, alone: bool) -> Result<(), RuntimeError> {
        lock(&*self.fd, &self.path, alone)?;
        if kind(&self.path, &*self.fd)? {
            let stat = rustix::fs::fstat(&*self.fd);
            let stat = stat.map_err(|source| file_error(&self.path, "examine", source))?;
            self.below = lock_below(stat.st_rdev, alone)?;
        }
        Ok(())
    }

    /// Asks for a hole behind its end, where there is nothing: the ext2 driver, of whose file
    /// systems only the number looks like ext4, refuses that as it does any other.
    fn try_to_punch(&mut self) {
        if self.tells_holes() {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let behind = self.bytes.next_multiple_of(BUFFER_ALIGN.into());
            let punched = rustix::io::retry_on_intr(|| {
                rustix::fs::fallocate(&*self.fd, flags, behind, BUFFER_ALIGN.into())
            });
            self.punches = punched.is_ok();
        }
    }

    /// From now on writes stay in memory, of so many bytes at most, until a flush or FUA: a kill of
    /// this process loses them, as a power failure does in a disk's cache. For tests.
    ///
    /// # Errors
    /// [`RuntimeError::File`]: it can't be opened once more.
    pub fn make_volatile(&mut self, bytes_max: u64) -> Result<(), RuntimeError> {
        self.cache = Some(VolatileCache::new(&self.path, bytes_max)?);
        Ok(())
    }

    pub(crate) fn cache(&self) -> Option<&VolatileCache> {
        self.cache.as_ref()
    }

    fn opened(path: PathBuf, read_only: bool, create: Option<u64>) -> Result<Self, RuntimeError> {
        let access = if read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        // Not to hang on a FIFO, which is refused below.
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(Errno::NOENT) if !read_only && create.is_some() => {
                make(&path, flags, create.unwrap_or_default())?
            }
            opened => opened.map_err(|source| open_error(&path, read_only, source))?,
        };
        let block_device = kind(&path, &opened)?;
        let bytes = size(&path, &opened)?;
        if bytes == 0 {
            let reason = "it is empty: make it as long as it is to be (truncate -s SIZE)";
            return Err(RuntimeError::Device { path, reason });
        }
        let blocks = blocks_submitter(&opened, block_device);
        let zeroes_blocks = block_device && {
            let stat = rustix::fs::fstat(&opened);
            let stat = stat.map_err(|source| file_error(&path, "examine", source))?;
            zeroes_blocks(&sysfs(stat.st_rdev))
        };
        let mut device = Self {
            sparse: !block_device && has_holes(&opened, bytes),
            has_holes: AtomicBool::new(has_holes(&opened, bytes)),
            punches: true,
            zeroes_blocks,
            blocks,
            fd: Arc::new(FileHandle::new(opened, blocks)),
            workers: Workers::new(&path),
            path,
            read_only,
            regular: !block_device,
            bytes,
            block_shift: 9,
            direct: false,
            claim: None,
            below: Vec::new(),
            cache: None,
            whole: None,
        };
        device.go_direct(access | OFlags::CLOEXEC, block_device);
        Ok(device)
    }

    pub(crate) fn whole(&self) -> Option<&TruncationGuard> {
        self.whole.as_ref()
    }

    /// Its length in bytes, as far as known without a system call.
    pub(crate) fn bytes_now(&self) -> Option<u64> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&*self.fd, c"", flags, StatxFlags::SIZE).ok()?;
        let known = stat.stx_mask & StatxFlags::SIZE.bits() != 0;
        known.then_some(stat.stx_size)
    }

    /// How long it is now.
    pub(crate) fn size(&self) -> Result<u64, RuntimeError> {
        size(&self.path, &*self.fd)
    }

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// log2 of the logical block size (9 for files that need no more).
    pub fn block_shift(&self) -> u8 {
        self.block_shift
    }

    /// Whether O_DIRECT is in force.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// Whether writing was not asked for, or is not possible.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether its file system may block the thread that submits to it: then its system calls are
    /// made by [`Self::workers`] only.
    pub fn blocks(&self) -> bool {
        self.blocks
    }

    /// Whether what its file system calls a hole reads as zeroes, whatever lies in the page cache:
    /// that is known of those which do not block. FUSE asks a server, which may not know.
    pub(crate) fn tells_holes(&self) -> bool {
        self.regular && !self.blocks && self.cache.is_none()
    }

    /// Whether what is deallocated reads as zeroes: a hole is made, or zeroes are written where
    /// there is no room for its description. qemu's FUSE export reports success and keeps the data;
    /// some file systems cannot make holes.
    pub fn deallocate_zeroes(&self) -> bool {
        self.tells_holes() && self.punches
    }

    /// Whether a range that was deallocated with success reads as zeroes: a hole of a file, what is
    /// zeroed in a cache, or a block device that zeroes by command. Any other block device refuses,
    /// and a file system whose server may lie (FUSE) promises nothing.
    pub fn deallocated_reads_zero(&self) -> bool {
        self.deallocate_zeroes() || self.cache.is_some() || self.zeroes_blocks
    }

    /// It is meant to be sparse, however full it is.
    pub fn set_sparse(&mut self) {
        self.sparse = self.regular;
    }

    /// Whether zeroing may give up its space: not of a file that has all of it, perhaps on purpose,
    /// nor where a hole may keep its data. A block device zeroes as it likes, or refuses.
    pub(crate) fn may_lose_space(&self) -> bool {
        !self.regular || self.sparse && self.deallocate_zeroes()
    }

    /// Size and alignment of holes by which it is zeroed to save space; 0: it is not. A block
    /// device does not say whether its space was reserved.
    pub fn hole_bytes(&self) -> u32 {
        let makes_holes = self.regular && self.may_lose_space();
        let unit = rustix::fs::fstat(&*self.fd).map(|stat| stat.st_blksize);
        let unit = unit.ok().filter(|_| makes_holes);
        unit.and_then(|it| u32::try_from(it).ok()).unwrap_or(0)
    }

    /// As if its file system blocked.
    #[cfg(test)]
    pub(crate) fn blocking(mut self, blocks: bool) -> Self {
        self.blocks = blocks;
        self
    }

    /// As if its file system made no holes.
    #[cfg(test)]
    pub(crate) fn without_holes(mut self) -> Self {
        self.punches = false;
        self
    }

    /// The threads for its blocking system calls.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The file, for these threads.
    pub fn handle(&self) -> &Arc<FileHandle> {
        &self.fd
    }

    /// Whether space may have to be allocated for a write.
    pub fn has_holes(&self) -> bool {
        self.has_holes.load(Ordering::Relaxed)
    }

    /// A hole was made, or the file longer.
    pub fn note_holes(&self) {
        self.has_holes.store(true, Ordering::Relaxed);
    }

    /// Another descriptor of the same file.
    ///
    /// # Errors
    /// [`RuntimeError::File`]: EMFILE, ENFILE.
    pub fn try_clone(&self) -> Result<OwnedFd, RuntimeError> {
        let cloned = rustix::io::fcntl_dupfd_cloexec(&*self.fd, 0);
        cloned.map_err(|source| file_error(&self.path, "duplicate the descriptor of", source))
    }

    /// Reopens with O_DIRECT if that can work. A block device's logical block is its own in any
    /// case.
    fn go_direct(&mut self, flags: OFlags, block_device: bool) {
        if block_device && let Ok(size) = rustix::fs::ioctl_blksszget(&*self.fd) {
            self.block_shift = size.ilog2().clamp(9, 12) as u8;
        }
        let Ok(direct) = rustix::fs::open(&self.path, flags | OFlags::DIRECT, Mode::empty()) else {
            return;
        };
        let alignment = if block_device {
            Some(1 << self.block_shift)
        } else {
            direct_alignment(&direct)
        };
        let shift = alignment
            .filter(|size| size.is_power_of_two())
            .map(u32::ilog2);
        if let Some(shift) = shift.map(|shift| shift.max(*SHIFTS.start()))
            && SHIFTS.contains(&shift)
            && self.bytes.is_multiple_of(1 << shift)
            && same_file(&*self.fd, &direct)
            && reads_directly(&direct)
        {
            let blocks = self.blocks;
            self.fd = Arc::new(FileHandle::new(direct, blocks));
            (self.block_shift, self.direct) = (shift as u8, true);
        }
    }
}

/// Whether a file has less space than it is long, or its file system doesn't tell.
fn has_holes(fd: &OwnedFd, bytes: u64) -> bool {
    let allocated = rustix::fs::fstat(fd).map(|stat| stat.st_blocks as u64 * 512);
    allocated.is_ok_and(|allocated| allocated < bytes)
}

fn size(path: &Path, fd: impl AsFd) -> Result<u64, RuntimeError> {
    let end = rustix::fs::seek(fd, SeekFrom::End(0));
    end.map_err(|source| file_error(path, "find the size of", source))
}

/// Makes a sparse file. Another process may have made it meanwhile: then it is that one.
fn make(path: &Path, flags: OFlags, bytes: u64) -> Result<OwnedFd, RuntimeError> {
    let mode = Mode::RUSR | Mode::WUSR;
    let made = rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode);
    let fd = match made {
        Err(Errno::EXIST) => rustix::fs::open(path, flags, Mode::empty()),
        made => made.and_then(|fd| rustix::fs::ftruncate(&fd, bytes).map(|()| fd)),
    };
    fd.map_err(|source| file_error(path, "create", source))
}

/// Whether it is a block device; an error unless that or a file.
fn kind(path: &Path, fd: impl AsFd) -> Result<bool, RuntimeError> {
    let stat = rustix::fs::fstat(fd).map_err(|source| file_error(path, "examine", source))?;
    let reason = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => "it is a directory; name a file in it",
        _ => "it is neither a file nor a block device",
    };
    Err(RuntimeError::Device {
        path: path.to_owned(),
        reason,
    })
}

/// The alignment of offsets that O_DIRECT needs; `None` where it can't work with our buffers.
fn direct_alignment(fd: &OwnedFd) -> Option<u32> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        // The file system doesn't tell: pages satisfy all there are.
        return Some(BUFFER_ALIGN);
    }
    let fits = stat.stx_dio_mem_align != 0 && stat.stx_dio_mem_align <= BUFFER_ALIGN;
    fits.then_some(stat.stx_dio_offset_align)
        .filter(|&align| align != 0)
}

/// The path was opened twice; it must not have been replaced in between.
fn same_file(one: impl AsFd, other: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// Some file systems take the flag and refuse the I/O: one read tells.
fn reads_directly(fd: &OwnedFd) -> bool {
    let align = BUFFER_ALIGN as usize;
    let mut memory = vec![0; 2 * align];
    let first = memory.as_ptr().align_offset(align);
    let Some(aligned) = memory.get_mut(first..first + align) else {
        return false;
    };
    rustix::io::pread(fd, aligned, 0).is_ok()
}

/// Directory of a block device.
fn sysfs(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Whether this is a block device that the kernel protects from writes.
fn is_write_protected(path: &Path, fd: impl AsFd) -> Result<bool, RuntimeError> {
    if !kind(path, fd.as_fd())? {
        return Ok(false);
    }
    let stat = rustix::fs::fstat(fd).map_err(|source| file_error(path, "examine", source))?;
    let shown = std::fs::read_to_string(sysfs(stat.st_rdev).join("ro"));
    Ok(shown.is_ok_and(|it| it.trim() == "1"))
}

/// Whether the kernel can have the block device of this directory of sysfs zero its blocks by a
/// command: hole punching is done so, and refused by any other device. Support of discards is no
/// promise.
fn zeroes_blocks(device: &Path) -> bool {
    // A partition has the queue of its disk.
    ["queue", "../queue"].iter().any(|queue| {
        let most = std::fs::read_to_string(device.join(queue).join("write_zeroes_max_bytes"));
        most.is_ok_and(|it| it.trim().parse().is_ok_and(|bytes: u64| bytes > 0))
    })
}

fn open_error(path: &Path, read_only: bool, source: Errno) -> RuntimeError {
    let advice = match source {
        Errno::NOENT => "there is none: check the path",
        Errno::ROFS => "its file system is read-only",
        Errno::ACCESS | Errno::PERM if read_only => "check the permissions of it and its directory",
        Errno::ACCESS | Errno::PERM => "check the permissions to read and to write it",
        Errno::ISDIR => "it is a directory; name a file in it",
        Errno::BUSY => "something else uses it exclusively",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        _ => "see the source",
    };
    RuntimeError::Open {
        path: path.to_owned(),
        read_only,
        source: source.into(),
        advice,
    }
}

fn claim_error(path: &Path, source: Errno) -> RuntimeError {
    match source {
        Errno::BUSY => RuntimeError::InUse {
            path: path.to_owned(),
            holder: "has it mounted, or for itself (lsblk shows mounts)",
        },
        _ => file_error(path, "have alone", source),
    }
}

fn file_error(path: &Path, operation: &'static str, source: Errno) -> RuntimeError {
    RuntimeError::File {
        path: path.to_owned(),
        operation,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("braid-file-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_missing_file_is_an_error_and_made_if_a_size_is_given() {
        let directory = Directory::new("missing");
        let path = directory.0.join("a");
        let error = FileDevice::open(path.clone(), false, None).unwrap_err();
        assert!(error.to_string().contains("there is none"), "{error}");
        assert!(FileDevice::open(path.clone(), true, Some(4096)).is_err());
        let device = FileDevice::open(path.clone(), false, Some(1 << 30)).unwrap();
        assert_eq!(device.bytes(), 1 << 30);
        let again = FileDevice::open(path, true, Some(4096)).unwrap();
        assert_eq!((again.bytes(), again.read_only()), (1 << 30, true));
    }

    #[test]
    fn t48_several_may_write_a_file_and_who_has_it_alone_is_alone() {
        let directory = Directory::new("alone");
        let path = directory.0.join("a");
        let alone = || FileDevice::open_alone(path.clone());
        let sole = || FileDevice::open_sole(path.clone());
        let writer = || FileDevice::open(path.clone(), false, None);
        let first = FileDevice::open(path.clone(), false, Some(1 << 20)).unwrap();
        let second = writer().unwrap();
        for error in [alone().unwrap_err(), sole().unwrap_err()] {
            let error = error.to_string();
            for word in [path.to_str().unwrap(), "in use", "shared lock"] {
                assert!(error.contains(word), "{error}");
            }
        }
        drop((first, second));
        let leg = alone().unwrap();
        // Its lock is that of all its descriptors, whichever is closed first.
        let on_a_core = leg.try_clone().unwrap();
        drop(leg);
        for error in [
            writer().unwrap_err(),
            alone().unwrap_err(),
            sole().unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains("exclusive lock"), "{error}");
        }
        FileDevice::open(path.clone(), true, None).unwrap();
        drop(on_a_core);
        let volume = sole().unwrap();
        assert!(sole().is_err() && writer().is_err());
        drop(volume);
        writer().unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let directory = Directory::new("kinds");
        let empty = directory.0.join("empty");
        std::fs::write(&empty, b"").unwrap();
        for (path, word) in [
            (directory.0.clone(), "directory"),
            (PathBuf::from("/dev/null"), "neither"),
            (empty, "empty"),
        ] {
            let error = FileDevice::open(path.clone(), true, None)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(word) && error.contains(path.to_str().unwrap()),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_system_without_o_direct_is_used_through_the_page_cache() {
        // The proc file system refuses O_DIRECT; its files are empty, so ask the helper.
        let fd = rustix::fs::open("/proc/self/status", OFlags::RDONLY, Mode::empty()).unwrap();
        let refused = rustix::fs::open("/proc/self/status", OFlags::DIRECT, Mode::empty());
        assert_eq!(refused.unwrap_err(), Errno::INVAL);
        let mut device = FileDevice {
            fd: Arc::new(FileHandle::new(fd, false)),
            workers: Workers::new(Path::new("/proc/self/status")),
            blocks: false,
            sparse: false,
            has_holes: AtomicBool::new(false),
            punches: true,
            zeroes_blocks: false,
            path: PathBuf::from("/proc/self/status"),
            read_only: true,
            regular: true,
            bytes: 4096,
            block_shift: 9,
            direct: false,
            claim: None,
            below: Vec::new(),
            cache: None,
            whole: None,
        };
        device.go_direct(OFlags::RDONLY, false);
        assert!(!device.direct());
        assert_eq!(device.block_shift(), 9);
    }

    #[test]
    fn block_device_zeroes_if_its_disk_says_a_size() {
        let directory = Directory::new("sysfs");
        let (disk, part) = (directory.0.join("sda"), directory.0.join("sda/sda1"));
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        std::fs::create_dir(&part).unwrap();
        assert!(!zeroes_blocks(&disk), "an old kernel says nothing");
        for (most, want) in [("0\n", false), ("2147483136\n", true)] {
            std::fs::write(disk.join("queue/write_zeroes_max_bytes"), most).unwrap();
            assert_eq!((zeroes_blocks(&disk), zeroes_blocks(&part)), (want, want));
        }
    }

    #[test]
    fn an_odd_size_goes_through_the_page_cache() {
        let directory = Directory::new("odd");
        let path = directory.0.join("odd");
        std::fs::write(&path, [1; 5000]).unwrap();
        let device = FileDevice::open(path, false, None).unwrap();
        assert_eq!((device.bytes(), device.direct()), (5000, false));
    }

    #[test]
    fn a_file_system_that_refuses_holes_is_known_and_nothing_changes() {
        use rustix::fs::{MemfdFlags, SealFlags};
        for seals in [SealFlags::empty(), SealFlags::WRITE] {
            // Sealed, a file of tmpfs refuses them with EPERM.
            let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
            let fd = rustix::fs::memfd_create("holes", flags).unwrap();
            rustix::io::pwrite(&fd, &[7; 10_000], 0).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            let device = FileDevice::open(path.clone(), false, None).unwrap();
            assert!(device.tells_holes());
            assert_eq!(device.deallocate_zeroes(), seals.is_empty());
            assert_eq!(std::fs::read(&path).unwrap(), [7; 10_000]);
            assert_eq!(device.deallocated_reads_zero(), seals.is_empty());
            assert_eq!(device.hole_bytes(), 0, "it has all its space");
            let alone = || FileDevice::open_alone(path.clone());
            assert!(alone().is_err(), "it is in use");
            drop(device);
            assert_eq!(alone().unwrap().deallocate_zeroes(), seals.is_empty());
        }
    }
}
