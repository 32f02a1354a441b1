//! One hardware queue of a device.
use super::layout::{DEPTH_MAX, Descriptor, Op};
use crate::{Errno, Error};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// `UBLK_U_IO_FETCH_REQ` and `UBLK_U_IO_COMMIT_AND_FETCH_REQ`, of an argument of 16 bytes.
const FETCH: u32 = 3 << 30 | 16 << 16 | (b'u' as u32) << 8 | 0x20;
const COMMIT_AND_FETCH: u32 = FETCH + 1;
/// `UBLKSRV_IO_BUF_OFFSET`, and where tag and queue stand in an offset of user copy.
const COPY_OFFSET: u64 = 0x8000_0000;
const COPY_TAG_SHIFT: u32 = 25;
const COPY_QUEUE_SHIFT: u32 = 41;
const PAGE: usize = 4096;

/// Descriptors of all tags, which the driver writes and we read.
struct Descriptors {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process; it is read through `Descriptors::get` alone.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(file: &OwnedFd, queue: u16, depth: u16) -> Result<Self, Error> {
        let stride = (usize::from(DEPTH_MAX) * Descriptor::BYTES).next_multiple_of(PAGE);
        let bytes = (usize::from(depth) * Descriptor::BYTES).next_multiple_of(PAGE);
        let offset = usize::from(queue) * stride;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ,
                flags,
                file,
                offset as u64,
            )
        };
        let at = at.map_err(|source| Error::new("mmap of a ublk queue", source))?;
        let at = NonNull::new(at.cast()).ok_or(Error::new("mmap of a ublk queue", Errno::NOMEM))?;
        Ok(Self { at, bytes })
    }

    fn get(&self, tag: u16) -> Descriptor {
        let from = usize::from(tag) * Descriptor::BYTES;
        assert!(from + Descriptor::BYTES <= self.bytes, "tag {tag}");
        let at = self.at.as_ptr().wrapping_add(from);
        // SAFETY: inside the mapping (checked), and of bytes, which any values are. The driver
        // writes it before the completion that says that this server has the tag.
        let bytes = unsafe { ptr::read_volatile(at.cast::<[u8; Descriptor::BYTES]>()) };
        Descriptor::from_bytes(&bytes)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, which nothing refers to any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// State of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// Nothing was fetched for it.
    Unused,
    /// The driver has it, to put a request there.
    Fetching,
    /// This server has the request.
    Serving(Descriptor),
}

/// News of a tag from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// A request.
    Request(u16, Descriptor),
    /// No more requests come: the device is stopped (ENODEV), or was not this server's.
    Ended(u16, Errno),
}

/// The ring of a queue, made before there is one.
pub struct UblkRing {
    uring: IoUring,
    depth: u16,
}

impl UblkRing {
    /// For a queue of this depth.
    ///
    /// # Errors
    /// `io_uring_setup`: as the kernel says.
    pub fn new(depth: u16) -> Result<Self, Error> {
        // Not with cooperative task work: a reactor that spins makes no system call, in which alone
        // its requests would come then.
        let uring = IoUring::new(u32::from(depth).next_power_of_two());
        let uring = uring.map_err(|source| Error::io("io_uring_setup", &source))?;
        Ok(Self { uring, depth })
    }
}

/// The descriptors of a queue, mapped. Apart from the ring, which outlives an attempt that failed.
pub struct UblkMapping {
    file: Arc<OwnedFd>,
    descriptors: Descriptors,
    number: u16,
    depth: u16,
}

impl UblkMapping {
    /// Of queue `number` of a device, which was opened once.
    ///
    /// # Errors
    /// `mmap of a ublk queue`: EINVAL (another depth, or another process has it), ENOMEM.
    pub fn new(file: &Arc<OwnedFd>, number: u16, depth: u16) -> Result<Self, Error> {
        Ok(Self {
            file: Arc::clone(file),
            descriptors: Descriptors::map(file, number, depth)?,
            number,
            depth,
        })
    }
}

/// One hardware queue of a device. The thread that fetches first is the only one that may go on.
pub struct UblkQueue {
    uring: IoUring,
    file: Arc<OwnedFd>,
    descriptors: Descriptors,
    number: u16,
    tags: Box<[Tag]>,
    /// Entries that await a submission.
    pushed: u32,
}

impl UblkQueue {
    /// Of a mapped queue.
    ///
    /// # Panics
    /// The ring is of another depth.
    pub fn new(ring: UblkRing, of: UblkMapping) -> Self {
        assert_eq!(ring.depth, of.depth, "the ring is of another queue");
        Self {
            uring: ring.uring,
            file: of.file,
            descriptors: of.descriptors,
            number: of.number,
            tags: vec![Tag::Unused; ring.depth.into()].into(),
            pushed: 0,
        }
    }

    /// Whether the driver may have been asked for requests.
    pub fn has_fetched(&self) -> bool {
        self.tags.iter().any(|it| *it != Tag::Unused)
    }

    /// Requests that it may have in flight.
    pub fn depth(&self) -> u16 {
        self.tags.len() as u16
    }

    /// Asks for requests of all tags. The calling thread serves the queue from now on. It does so
    /// without `CAP_SYS_ADMIN`: else the driver would scan for partitions inside the start, where
    /// the death of a server leaves a device beyond repair.
    ///
    /// # Errors
    /// As `io_uring_enter`. A tag that could not be fetched is told by [`Self::next_fetched`].
    pub fn fetch_all(&mut self) -> Result<(), Errno> {
        let own = capabilities(None)?;
        let mut fewer = own;
        fewer.effective.remove(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, fewer)?;
        for tag in 0..self.depth() {
            self.push(FETCH, tag, 0);
        }
        let submitted = self.submit();
        set_capabilities(None, own)?;
        submitted
    }

    fn push(&mut self, code: u32, tag: u16, result: i32) {
        let mut command = [0; 16];
        command[0..2].copy_from_slice(&self.number.to_ne_bytes());
        command[2..4].copy_from_slice(&tag.to_ne_bytes());
        command[4..8].copy_from_slice(&result.to_ne_bytes());
        let file = types::Fd(self.file.as_raw_fd());
        let entry: squeue::Entry = opcode::UringCmd16::new(file, code)
            .cmd(command)
            .build()
            .user_data(tag.into());
        self.tags[usize::from(tag)] = Tag::Fetching;
        // SAFETY: the entry names no memory.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "a tag is pushed once, and each has a place");
        self.pushed += 1;
    }

    /// Ends a request: bytes that were done, or an error below 0. It is told with the next
    /// [`Self::submit`].
    ///
    /// # Panics
    /// The tag has no request; a write would end with 0, which the driver repeats for ever.
    pub fn commit(&mut self, tag: u16, result: i32) {
        let Tag::Serving(of) = self.tags[usize::from(tag)] else {
            panic!("tag {tag} has no request");
        };
        let is_write = matches!(of.op, Op::Write { .. });
        assert!(!is_write || result != 0, "{of:?} ends with 0");
        self.push(COMMIT_AND_FETCH, tag, result);
    }

    /// Whether a system call is needed for progress, or something is there to be taken.
    pub fn has_news(&mut self) -> bool {
        let wants_enter = self.uring.submission().cq_overflow();
        self.pushed > 0 || wants_enter || !self.uring.completion().is_empty()
    }

    /// Tells the driver what has ended, and takes what it has to say for [`Self::next_fetched`].
    ///
    /// # Errors
    /// None that is of passing nature.
    pub fn submit(&mut self) -> Result<(), Errno> {
        let wants_enter = self.uring.submission().cq_overflow();
        while self.pushed > 0 || wants_enter {
            let entered = self.uring.submit();
            match entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
                Ok(count) => {
                    self.pushed = self.pushed.saturating_sub(count as u32);
                    if self.pushed == 0 {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::BUSY | Errno::AGAIN) => break, // again with the next turn
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next news. Never sleeps, never enters the kernel.
    pub fn next_fetched(&mut self) -> Option<Fetched> {
        let entry = self.uring.completion().next()?;
        let tag = entry.user_data() as u16;
        let state = &mut self.tags[usize::from(tag)];
        assert_eq!(*state, Tag::Fetching, "the driver says twice what it did");
        if entry.result() != 0 {
            *state = Tag::Unused;
            let why = Errno::from_raw_os_error(entry.result().saturating_neg());
            return Some(Fetched::Ended(tag, why));
        }
        let of = self.descriptors.get(tag);
        *state = Tag::Serving(of);
        Some(Fetched::Request(tag, of))
    }

    /// Copies payload of a write, from its first byte on.
    ///
    /// # Errors
    /// As `pread`; EIO: the driver has fewer bytes.
    ///
    /// # Panics
    /// The request has fewer bytes: the driver would hand out what lies behind it.
    pub fn read_payload(&self, tag: u16, bytes: &mut [u8]) -> Result<(), Errno> {
        let from = self.copy_offset(tag, bytes.len());
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.file, &mut bytes[done..], from + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies what a read has read, from its first byte on.
    ///
    /// # Errors
    /// As `pwrite`; EIO: the driver takes fewer bytes.
    ///
    /// # Panics
    /// The request has fewer bytes.
    pub fn write_payload(&self, tag: u16, bytes: &[u8]) -> Result<(), Errno> {
        let from = self.copy_offset(tag, bytes.len());
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.file, &bytes[done..], from + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn copy_offset(&self, tag: u16, bytes: usize) -> u64 {
        let state = self.tags[usize::from(tag)];
        let is_inside = matches!(state, Tag::Serving(of) if bytes as u64 <= of.bytes);
        assert!(is_inside, "{bytes} bytes of tag {tag}, which is {state:?}");
        COPY_OFFSET
            + (u64::from(self.number) << COPY_QUEUE_SHIFT)
            + (u64::from(tag) << COPY_TAG_SHIFT)
    }
}

/// Readable while [`UblkQueue::has_news`].
impl AsFd for UblkQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring is open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_offsets_are_those_of_the_drivers_header() {
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
        let bytes = usize::from(DEPTH_MAX) * Descriptor::BYTES;
        assert_eq!(bytes.next_multiple_of(PAGE), 98_304);
    }
}
