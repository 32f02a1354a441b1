//! Storage of a namespace's blocks: opened, checked against the configuration, and later resized.
use super::config::Namespace;
use super::limits::{FILE_QUIESCE_NS, MEMORY_QUIESCE_NS};
use super::quantity::Size;
use anyhow::{Context, bail};
use paths::uri::UriKind;
use runtime::{Device, FileDevice, MemoryDevice, RuntimeError};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terminal::units::format_bytes;

/// A backend in use.
#[derive(Debug)]
pub struct Backend {
    /// For the reactor.
    pub device: Device,
    /// Size of the namespace on it, bytes.
    pub bytes: u64,
    /// How it can grow.
    pub room: Room,
    made: Option<Made>,
}

/// A file that was made for this backend: removed again unless kept.
#[derive(Debug)]
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How far a namespace can grow.
#[derive(Clone, Debug)]
pub enum Room {
    /// To so many bytes.
    Fixed(u64),
    /// A file is made longer.
    File(PathBuf),
    /// Nothing is kept anyway.
    Endless,
}

impl Backend {
    /// Opens what the configuration names. A file that had to be made for it is removed with the
    /// backend unless [`Backend::keep`] was called: what refuses to start leaves nothing behind.
    ///
    /// # Errors
    /// It isn't there, may not be written, or its size doesn't fit.
    pub fn open(namespace: &Namespace) -> anyhow::Result<Self> {
        let shift = namespace.block_shift()?;
        let wanted = namespace.size.map(|size| size.0);
        let mut made = None;
        let (device, available, room) = match namespace.backend.kind() {
            UriKind::Memory(bytes) => {
                let device = Device::Memory(Arc::new(MemoryDevice::new(*bytes)?));
                (device, *bytes, Room::Fixed(*bytes))
            }
            UriKind::Null(bytes) => (Device::Null, *bytes, Room::Endless),
            UriKind::File(path) => open_file(path, namespace, shift, &mut made)?,
            UriKind::NvmeTcp(_) | UriKind::NvmeNg(_) | UriKind::Queue { .. } => {
                bail!("{} is no backend", namespace.backend)
            }
        };
        let bytes = wanted.unwrap_or(available);
        if bytes > available {
            bail!(
                "size {} is more than the {} of {}: make it smaller, or the backend larger",
                format_bytes(bytes),
                format_bytes(available),
                namespace.backend
            );
        }
        if bytes >> shift == 0 || wanted.is_some() && !bytes.is_multiple_of(1 << shift) {
            bail!(
                "size {bytes} is not a multiple of the block size {} above 0",
                namespace.block_size
            );
        }
        Ok(Backend {
            device,
            bytes: bytes >> shift << shift,
            room,
            made,
        })
    }

    /// After which time nothing changes its data any more that a lost association has left, ns:
    /// from when keep-alive expires, as changes start only before that (T49). A reset is answered
    /// when all of them have ended (T9), however long that takes. `None`: what its file system
    /// has been given may take any time, as the server of a FUSE file system may hang.
    pub fn quiesce_ns(&self) -> Option<u64> {
        match &self.device {
            Device::File(file) if file.blocks() => None,
            Device::File(_) => Some(FILE_QUIESCE_NS),
            _ => Some(MEMORY_QUIESCE_NS),
        }
    }

    /// Whether what was deallocated with success reads as zeroes.
    pub fn deallocate_zeroes(&self) -> bool {
        match &self.device {
            Device::File(file) => file.deallocated_reads_zero(),
            // Memory is given back, and nothing is ever kept: both read zeroes.
            _ => true,
        }
    }

    /// A file that was made stays.
    pub fn keep(&mut self) {
        if let Some(made) = self.made.take() {
            std::mem::forget(made);
        }
    }
}

impl Room {
    /// Makes room for a namespace of that size. Nothing is ever cut off from a file.
    ///
    /// # Errors
    /// There is no such room.
    pub fn make(&self, bytes: u64) -> anyhow::Result<()> {
        match self {
            Self::Endless => Ok(()),
            Self::Fixed(limit) if bytes <= *limit => Ok(()),
            Self::Fixed(limit) => bail!(
                "{} is more than the {} of its backend",
                format_bytes(bytes),
                format_bytes(*limit)
            ),
            Self::File(path) => {
                let file = std::fs::OpenOptions::new().write(true).open(path);
                let grow = |file: std::fs::File| match file.metadata()?.len() {
                    have if have < bytes => file.set_len(bytes),
                    _ => Ok(()),
                };
                file.and_then(grow).with_context(|| {
                    format!(
                        "cannot make {} {} long",
                        path.display(),
                        format_bytes(bytes)
                    )
                })
            }
        }
    }
}

fn open_file(
    path: &PathBuf,
    namespace: &Namespace,
    shift: u8,
    made: &mut Option<Made>,
) -> anyhow::Result<(Device, u64, Room)> {
    if let (Some(size), false) = (namespace.size, namespace.read_only) {
        *made = make(path, size.0, namespace.sparse)?;
    }
    let file = FileDevice::open(path.clone(), namespace.read_only, None);
    let mut file = file.map_err(|error| advise(error, namespace.read_only))?;
    if file.read_only() && !namespace.read_only {
        bail!(
            "{} is a read-only block device (blockdev --getro): set read_only = true",
            path.display()
        );
    }
    if namespace.sparse {
        file.set_sparse();
    }
    if let Some(Size(bytes)) = namespace.volatile_cache {
        file.make_volatile(bytes)?;
    }
    if file.block_shift() > shift {
        bail!(
            "block_size {} is smaller than the {} that {} needs: set block_size = {}",
            namespace.block_size,
            1u32 << file.block_shift(),
            path.display(),
            1u32 << file.block_shift()
        );
    }
    let bytes = file.bytes();
    // A block device has the size that it has.
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let room = match is_file && !namespace.read_only {
        true => Room::File(path.clone()),
        false => Room::Fixed(bytes),
    };
    Ok((Device::File(Arc::new(file)), bytes, room))
}

/// Advice about a namespace's keys for a file that can't be opened.
fn advise(error: RuntimeError, read_only: bool) -> anyhow::Error {
    let kind = match &error {
        RuntimeError::Open { source, .. } => source.kind(),
        _ => return error.into(),
    };
    let advice = match kind {
        ErrorKind::NotFound if read_only => return error.into(),
        ErrorKind::NotFound => "give the namespace a size to have its file made",
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied if !read_only => {
            "set read_only = true if the namespace is only to be read"
        }
        _ => return error.into(),
    };
    anyhow::Error::new(error).context(advice)
}

/// Makes a file if there is none, with its space unless it is to be sparse: a write then allocates
/// nothing, so it does not stand still in the kernel with its process (T49).
fn make(path: &Path, bytes: u64, sparse: bool) -> anyhow::Result<Option<Made>> {
    let mut options = std::fs::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            let made = Made(path.to_owned());
            file.set_len(bytes).with_context(|| {
                format!(
                    "cannot make {} {} long",
                    path.display(),
                    format_bytes(bytes)
                )
            })?;
            if !sparse {
                allocate(&file, path, bytes)?;
            }
            Ok(Some(made))
        }
        // Opening it tells the rest.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            await_size(path);
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("cannot make {}", path.display())),
    }
}

/// Waits a moment for the size of an empty file: another target may be making it.
fn await_size(path: &Path) {
    let is_empty = || std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() == 0);
    let end = Instant::now() + Duration::from_secs(1);
    while is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Allocates the space of a new file.
fn allocate(file: &std::fs::File, path: &Path, bytes: u64) -> anyhow::Result<()> {
    let full = |available: u64| {
        format!(
            "size {} of {} is more than the {} that its file system has left: make it smaller, or \
             set sparse = true",
            format_bytes(bytes),
            path.display(),
            format_bytes(available)
        )
    };
    // Asked before: to fill a file system and give all back again would disturb others on it.
    let left = rustix::fs::fstatvfs(file).map(|it| it.f_bavail.saturating_mul(it.f_frsize));
    if let Ok(left) = left
        && left < bytes
    {
        bail!("{}", full(left));
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            tracing::warn!(
                "{}: its file system can't allocate space before it is written; set sparse = true",
                path.display()
            );
            Ok(())
        }
        Err(Errno::NOSPC | Errno::DQUOT) => bail!("{}", full(left.unwrap_or(0))),
        Err(error) => {
            Err(error).with_context(|| format!("cannot allocate the space of {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn namespace(backend: &str, size: Option<u64>, block_size: u32) -> Namespace {
        let config = Config::quick(String::new(), backend.parse().unwrap(), Vec::new());
        let namespace = config.namespaces.into_iter().next().unwrap();
        Namespace {
            size: size.map(Size),
            block_size,
            ..namespace
        }
    }

    fn error(backend: &str, size: Option<u64>, block_size: u32) -> String {
        Backend::open(&namespace(backend, size, block_size))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_size_must_fit_the_backend_and_its_blocks() {
        assert_eq!(
            Backend::open(&namespace("mem:1MiB", None, 4096))
                .unwrap()
                .bytes,
            1 << 20
        );
        assert_eq!(
            error("mem:1MiB", Some(2 << 20), 4096),
            "size 2 MiB is more than the 1 MiB of mem:1MiB: make it smaller, or the backend larger"
        );
        assert_eq!(
            error("mem:1MiB", Some(1000), 512),
            "size 1000 is not a multiple of the block size 512 above 0"
        );
        assert_eq!(
            error("mem:1MiB", None, 1024),
            "block_size 1024 is neither 512 nor 4096"
        );
    }

    /// Bytes that a file has on its disk, after it was made with 1 MiB.
    fn space(sparse: bool) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v0");
        let uri = format!("file:{}", path.display());
        let made = namespace(&uri, Some(1 << 20), 4096);
        let _backend = Backend::open(&Namespace { sparse, ..made }).unwrap();
        std::fs::metadata(&path).unwrap().blocks() * 512
    }

    #[test]
    fn t49_a_file_is_made_with_its_space_unless_sparse() {
        assert!(space(false) >= 1 << 20);
        assert!(space(true) < 1 << 20);
    }

    /// However full it is by now.
    #[test]
    fn sparse_file_may_lose_space_by_zeroing() {
        for sparse in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("v0");
            std::fs::write(&path, vec![7; 1 << 20]).unwrap();
            let uri = format!("file:{}", path.display());
            let there = namespace(&uri, Some(1 << 20), 4096);
            let backend = Backend::open(&Namespace { sparse, ..there }).unwrap();
            let Device::File(file) = &backend.device else {
                panic!("it is a file");
            };
            assert_eq!(file.hole_bytes() > 0, sparse && file.deallocate_zeroes());
        }
    }

    /// The promise is that of the backend: a file that refuses holes (sealed, in tmpfs) has none.
    #[test]
    fn deallocated_blocks_read_zeroes_where_the_backend_says_so() {
        use rustix::fs::{MemfdFlags, SealFlags};
        use std::os::fd::AsRawFd;
        let promises = |uri: &str, cache: Option<Size>| {
            let it = namespace(uri, None, 4096);
            let it = Namespace {
                volatile_cache: cache,
                ..it
            };
            Backend::open(&it).unwrap().deallocate_zeroes()
        };
        assert!(promises("mem:1MiB", None) && promises("null:1MiB", None));
        for seals in [SealFlags::empty(), SealFlags::WRITE] {
            let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
            let fd = rustix::fs::memfd_create("backend", flags).unwrap();
            rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            let uri = format!("file:/proc/self/fd/{}", fd.as_raw_fd());
            assert_eq!(promises(&uri, None), seals.is_empty());
            // A cache zeroes what is deallocated in it.
            assert!(promises(&uri, Some(Size(1 << 16))));
        }
    }

    #[test]
    fn file_that_another_target_makes_is_awaited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v0");
        let file = std::fs::File::create(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                file.set_len(1 << 20).unwrap();
            });
            let uri = format!("file:{}", path.display());
            assert!(Backend::open(&namespace(&uri, Some(1 << 20), 4096)).is_ok());
        });
    }

    #[test]
    fn a_size_that_the_file_system_lacks_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v0");
        let error = error(&format!("file:{}", path.display()), Some(1 << 42), 4096);
        for word in ["size 4 TiB", "left", "sparse = true"] {
            assert!(error.contains(word), "{error}");
        }
        assert!(!path.exists(), "nothing is left behind");
    }

    #[test]
    fn a_file_is_made_grows_and_is_never_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v0");
        let uri = format!("file:{}", path.display());
        drop(Backend::open(&namespace(&uri, Some(1 << 20), 4096)).unwrap());
        assert!(!path.exists(), "was made, and not kept");
        let mut backend = Backend::open(&namespace(&uri, Some(1 << 20), 4096)).unwrap();
        backend.keep();
        let len = || std::fs::metadata(&path).unwrap().len();
        assert_eq!((backend.bytes, len()), (1 << 20, 1 << 20));
        backend.room.make(2 << 20).unwrap();
        assert_eq!(len(), 2 << 20);
        backend.room.make(4096).unwrap();
        assert_eq!(len(), 2 << 20);
        let again = Backend::open(&namespace(&uri, None, 4096)).unwrap();
        assert_eq!(again.bytes, 2 << 20, "the file's own size");
        drop((backend, again));
        drop(Backend::open(&namespace(&uri, Some(1 << 20), 4096)).unwrap());
        assert_eq!(len(), 2 << 20, "was there before");
    }
}
