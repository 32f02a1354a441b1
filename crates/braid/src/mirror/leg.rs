//! A leg, a file or a namespace: opened, locked where that can be, and what braid keeps on it read
//! and written.
//!
//! # Contract
//! [`Leg::open_exclusively`]: nobody else who asks has it meanwhile (T48): a file by an OFD lock, a
//! block device by O_EXCL, which fails for what is mounted too. A namespace has no lock: whether an
//! owner lives is what [`Leg::unowned`] watches. [`Leg::open`] reads beside whoever has it. Data
//! that is written is durable only after [`Leg::sync`].
//!
//! # Limits
//! The lock is advisory and of this host; between hosts the owner record counts
//! (docs/mirrors.md). Other uses of a namespace than as a leg are not seen.
use super::far::Far;
use super::same::Storage;
use crate::cli::Usage;
use crate::identity::{self, IdentityArgs};
use crate::uri::{PathUri, UriKind};
use anyhow::{Context, bail};
use mirror::bitmap::{Bitmap, PAGE_BYTES};
use mirror::copies::{Chosen, NoLeg, choose};
use mirror::layout::{COPIES_AT, Candidate};
use mirror::ownership::heartbeat_ns;
use mirror::superblock::SUPERBLOCK_BYTES;
use mirror::{Id, Superblock};
use nvme::host::{Digests, HostIdentity};
use runtime::sysfs::SYS;
use runtime::{FileDevice, RuntimeError};
use rustix::fs::Advice;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Zeroes are written in pieces of it.
const PIECE: usize = 1 << 20;

/// CRC32C, for what is on legs.
pub fn crc32c(bytes: &[u8]) -> u32 {
    nvme::crc32c(0, bytes)
}

/// Options for legs over NVMe/TCP.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AccessArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// Refuse legs over NVMe/TCP whose controllers have no checksums over headers; they are used
    /// wherever they are offered
    #[arg(long)]
    hdr_digest: bool,
    /// The same for checksums over data
    #[arg(long)]
    data_digest: bool,
}

/// How legs over NVMe/TCP are reached.
#[derive(Clone, Debug)]
pub struct Access {
    /// Host NQN and identifier.
    pub identity: HostIdentity,
    /// Digests that a controller must have; others are used where it offers them.
    pub digests: Digests,
}

impl Access {
    /// As this host, with the digests that controllers offer.
    pub fn of(identity: HostIdentity) -> Self {
        let digests = Digests::default();
        Self { identity, digests }
    }

    /// As the options say. Files need no identity, so none is looked for where all legs are files.
    ///
    /// # Errors
    /// As [`identity::identity`].
    pub fn for_legs(args: &AccessArgs, legs: &[PathUri]) -> anyhow::Result<Self> {
        let is_far = |uri: &PathUri| matches!(uri.kind(), UriKind::NvmeTcp(_));
        let identity = if legs.iter().any(is_far) {
            identity::identity(&args.identity)?
        } else {
            identity::ephemeral()
        };
        let digests = Digests {
            header: args.hdr_digest,
            data: args.data_digest,
        };
        Ok(Self { identity, digests })
    }
}

/// Error for a URI that can't be a leg here.
fn unfit(uri: &PathUri) -> anyhow::Error {
    let why = match uri.kind() {
        UriKind::Memory(_) => {
            "memory is forgotten when this command ends: make the mirror of other legs, and add it \
             to the engine that runs it (braid mirror add), which forgets it when it ends"
        }
        _ => "legs are files, block devices and namespaces: write file:/path or nvme-tcp://…",
    };
    Usage::error(format!("{uri}: {why}"))
}

/// A leg that is open.
pub enum Leg {
    /// A file or block device.
    File(LegFile),
    /// A namespace.
    Far(Box<Far>),
}

impl Leg {
    /// Opens it to read it.
    ///
    /// # Errors
    /// [`Usage`] for what can be no leg; as [`LegFile::open`], as [`Far::open`].
    pub fn open(uri: &PathUri, access: &Access) -> anyhow::Result<Self> {
        match uri.kind() {
            UriKind::File(path) => Ok(Self::File(LegFile::open(path)?)),
            UriKind::NvmeTcp(_) => Ok(Self::Far(Box::new(Far::open(uri, access)?))),
            _ => Err(unfit(uri)),
        }
    }

    /// Opens it to read and write it, where that can be so that nobody else has it.
    ///
    /// # Errors
    /// As [`Self::open`]; somebody has it.
    pub fn open_exclusively(uri: &PathUri, access: &Access) -> anyhow::Result<Self> {
        match uri.kind() {
            UriKind::File(path) => Ok(Self::File(LegFile::open_exclusively(path)?)),
            _ => Self::open(uri, access),
        }
    }

    /// Its size.
    pub fn size(&self) -> Candidate {
        match self {
            Self::File(file) => file.size(),
            Self::Far(far) => Candidate {
                bytes: far.info().bytes,
                block_shift: far.info().block_shift,
            },
        }
    }

    /// Which storage it is, as far as can be told without writing.
    ///
    /// # Errors
    /// It can't be asked.
    pub fn storage(&self) -> anyhow::Result<Storage> {
        match self {
            Self::File(file) => file.storage(),
            Self::Far(far) => Ok(far.storage().clone()),
        }
    }

    /// The next read sees the present content, also by another name of it.
    ///
    /// # Errors
    /// That can't be had.
    pub fn read_anew(&self) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.read_anew(),
            Self::Far(_) => Ok(()),
        }
    }

    /// Its superblocks; the inner error is what they say.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read_superblock(&self) -> anyhow::Result<Result<Chosen, NoLeg>> {
        superblock(self.size().bytes, |at, bytes| self.read(at, bytes))
    }

    /// Its bitmap, and how many of its pages say nothing (their regions count as set).
    ///
    /// # Errors
    /// It can't be read.
    pub fn read_bitmap(&self, superblock: &Superblock) -> anyhow::Result<(Bitmap, usize)> {
        let mut bitmap = Bitmap::new(superblock.geometry.regions());
        let bytes = bitmap.pages() * PAGE_BYTES;
        let bytes = self.read(superblock.place.bitmap_offset, bytes)?;
        let mut bad = 0;
        for page in 0..bitmap.pages() {
            let from = (page * PAGE_BYTES).min(bytes.len());
            let to = (from + PAGE_BYTES).min(bytes.len());
            let read = bitmap.merge_page(page, &bytes[from..to], superblock.mirror, crc32c);
            if read.is_err() {
                bitmap.suspect(page);
                bad += 1;
            }
        }
        Ok((bitmap, bad))
    }

    /// Whether nothing was ever written from `offset` on, as the file system knows it: then it
    /// reads as zeroes. Of a namespace nobody knows.
    pub fn is_hole_from(&self, offset: u64) -> bool {
        match self {
            Self::File(it) => it.is_hole_from(offset),
            Self::Far(_) => false,
        }
    }

    /// Up to `bytes` bytes at `offset`: fewer where it ends.
    ///
    /// # Errors
    /// They can't be read.
    pub fn read(&self, offset: u64, bytes: usize) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::File(file) => file.read(offset, bytes),
            Self::Far(far) => far.read(offset, bytes),
        }
    }

    /// Writes `bytes`, whole blocks, at `offset`.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.write(offset, bytes),
            Self::Far(far) => far.write(offset, bytes),
        }
    }

    /// Writes zeroes over `range`.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn zero(&self, range: std::ops::Range<u64>) -> anyhow::Result<()> {
        let zeroes = vec![0; PIECE];
        let mut at = range.start;
        while at < range.end {
            let piece = (range.end - at).min(PIECE as u64);
            self.write(at, &zeroes[..piece as usize])?;
            at += piece;
        }
        Ok(())
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// It can't be.
    pub fn sync(&self) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.sync(),
            Self::Far(far) => far.flush(),
        }
    }

    /// Watches whether the owner that a namespace names lives, for three of its beats (T48); a file
    /// is locked.
    ///
    /// # Errors
    /// It lives, or can't be read.
    pub fn unowned(&self) -> anyhow::Result<()> {
        let Self::Far(_) = self else {
            return Ok(());
        };
        let Ok(first) = self.read_superblock()? else {
            return Ok(());
        };
        let Some(owner) = first.superblock.owner else {
            return Ok(());
        };
        let interval = Duration::from_nanos(heartbeat_ns(first.superblock.heartbeat_interval_ms));
        let until = Instant::now() + 3 * interval;
        while Instant::now() < until {
            std::thread::sleep(interval / 4);
            let now = self.read_superblock()?;
            let beats = |it: Chosen| it.superblock.sequence != first.superblock.sequence;
            if now.is_ok_and(beats) {
                bail!(
                    "{} has it, and lives: stop the mirror there first",
                    owner.label
                );
            }
        }
        Ok(())
    }
}

/// Superblocks of a leg that has `leg_bytes`.
fn superblock(
    leg_bytes: u64,
    read: impl Fn(u64, usize) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<Result<Chosen, NoLeg>> {
    let mut copies = [Vec::new(), Vec::new()];
    for (at, bytes) in COPIES_AT.into_iter().zip(&mut copies) {
        *bytes = read(at, SUPERBLOCK_BYTES)?;
    }
    let [first, second] = copies;
    let chosen = choose([
        Superblock::parse(&first, 0, crc32c),
        Superblock::parse(&second, 1, crc32c),
    ]);
    Ok(chosen.and_then(|it| it.on_leg_of(leg_bytes)))
}

/// A file or block device that is a leg, open.
pub struct LegFile {
    file: File,
    path: PathBuf,
    size: Candidate,
    /// While it is open.
    _lock: Box<FileDevice>,
}

impl LegFile {
    /// Opens `path` to read it.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::opened(path, false)
    }

    /// Opens `path` to read and write it, so that nobody else has it.
    ///
    /// # Errors
    /// As [`FileDevice::open_alone`]; of what is in use, the owner that its superblock names.
    pub fn open_exclusively(path: &Path) -> anyhow::Result<Self> {
        Self::opened(path, true).or_else(|error| {
            let in_use = |it: &RuntimeError| matches!(it, RuntimeError::InUse { .. });
            if !error.downcast_ref().is_some_and(in_use) {
                return Err(error);
            }
            let superblock = Self::open(path)?.read_superblock()?;
            match superblock.ok().and_then(|it| it.superblock.owner) {
                Some(owner) => Err(error.context(format!("{} has it", owner.label))),
                None => Err(error),
            }
        })
    }

    fn opened(path: &Path, write: bool) -> anyhow::Result<Self> {
        let device = match write {
            true => FileDevice::open_alone(path.to_owned())?,
            false => FileDevice::open(path.to_owned(), true, None)?,
        };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(write).open(path);
        Ok(Self {
            file: file.with_context(|| format!("cannot open {}", path.display()))?,
            path: path.to_owned(),
            size: Candidate {
                bytes: device.bytes(),
                block_shift: device.block_shift(),
            },
            _lock: Box::new(device),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn size(&self) -> Candidate {
        self.size
    }

    /// Which file or device it is.
    ///
    /// # Errors
    /// It can't be asked.
    pub fn storage(&self) -> anyhow::Result<Storage> {
        let found = self.file.metadata();
        let found = found.with_context(|| self.cannot("examine"))?;
        Ok(Storage::of_file(&found, Path::new(SYS)))
    }

    /// The next read comes from the device, where the kernel would have it still from before.
    fn read_anew(&self) -> anyhow::Result<()> {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)
            .with_context(|| self.cannot("read"))
    }

    /// Its superblocks; the inner error is what they say.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read_superblock(&self) -> anyhow::Result<Result<Chosen, NoLeg>> {
        superblock(self.size.bytes, |at, bytes| self.read(at, bytes))
    }

    /// As [`Leg::is_hole_from`].
    fn is_hole_from(&self, offset: u64) -> bool {
        let data = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset));
        data == Err(Errno::NXIO)
    }

    /// As [`Leg::read`].
    fn read(&self, offset: u64, bytes: usize) -> anyhow::Result<Vec<u8>> {
        let mut read = vec![0; bytes];
        let mut filled = 0;
        while filled < bytes {
            match self
                .file
                .read_at(&mut read[filled..], offset + filled as u64)
            {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(|| self.cannot("read")),
            }
        }
        read.truncate(filled);
        Ok(read)
    }

    /// As [`Leg::write`].
    fn write(&self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.file.write_all_at(bytes, offset);
        written.with_context(|| self.cannot("write"))
    }

    /// As [`Leg::sync`].
    fn sync(&self) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| self.cannot("flush"))
    }

    fn cannot(&self, what: &str) -> String {
        format!("cannot {what} {}", self.path.display())
    }
}

/// 16 random bytes.
pub fn draw_id() -> Id {
    Id(*uuid::Uuid::new_v4().as_bytes())
}

/// A random number that is not 0.
pub fn draw_lineage() -> u64 {
    // The half of it with 62 random bits, and one that is always set.
    uuid::Uuid::new_v4().as_u64_pair().1
}
