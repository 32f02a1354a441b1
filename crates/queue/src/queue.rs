//! A queue that is open: commands in, completions out.
use crate::layout::{Header, Kind, LIST_BYTES, Layout, region_address};
use crate::memory::Memory;
use crate::open::Connection;
use crate::region::Region;
use crate::{Error, SubmitError};
use nvme::queue::check::CANCEL;
use nvme::queue::pointer::{Form, List, Piece, build};
use nvme::queue::{Cids, CqConsumer, Entry, SharedMemory, SqProducer};
use nvme::wire::sqe::{NSID_ALL, nvm};
use nvme::wire::{Status, dsm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::{Errno, Shared};

/// A command that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// As given with the command.
    pub token: u64,
    /// How it ended.
    pub status: Status,
    /// DW0 and DW1 of the completion.
    pub result: u64,
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Looks at the completion queue: those of `poll` and `reap`, and those of `wait` and `arm`
    /// that found nothing.
    pub polls: u64,
    /// Of these, those that found nothing.
    pub empty_polls: u64,
    /// System calls: kicks, waits and what belongs to them.
    pub calls: u64,
}

/// Resources of a queue besides its rings.
#[derive(Debug)]
pub(crate) struct Held {
    pub connection: Connection,
    pub ring: OwnedFd,
    pub kick: OwnedFd,
    pub interrupt: Option<OwnedFd>,
    pub data: Option<Region>,
}

/// A queue. See the crate for who may use it, and `layout.md` for its memory.
#[derive(Debug)]
pub struct Queue {
    /// Before `held`: let go of before the connection is.
    rings: Rings,
    layout: Layout,
    header: Header,
    form: Form,
    counts: Counts,
    /// An impossible value that the controller wrote: nothing behind it is believed.
    failed: Option<Error>,
    held: Held,
}

/// The client's ends of its rings. Commands in flight when this is dropped are taken back, as far
/// as the broker has not begun them.
#[derive(Debug)]
struct Rings {
    memory: Memory,
    sq: SqProducer,
    cq: CqConsumer,
    cids: Cids<u64>,
}

impl Drop for Rings {
    fn drop(&mut self) {
        // With nothing in flight another process may have this queue by now.
        if self.cids.used() > 0 {
            self.sq.let_go(&self.memory);
        }
    }
}

impl Queue {
    /// A queue in which nothing is in flight, new or used before.
    pub(crate) fn new(held: Held, memory: Arc<Shared>, header: Header, form: Form) -> Self {
        let layout = header.layout;
        let memory = Memory(memory);
        // A doorbell that was never rung is 0; the position is ours, so a wrong one harms us only.
        let position = |at: usize| match u16::try_from(memory.load_word(at)) {
            Ok(position) if position < layout.entries() => position,
            _ => 0,
        };
        let tail = position(layout.sq().doorbell_at);
        let head = position(layout.cq().doorbell_at);
        Self {
            rings: Rings {
                sq: SqProducer::new(layout.sq(), tail),
                cq: CqConsumer::resume(layout.cq(), head, &memory),
                cids: Cids::new(layout.entries() - 1),
                memory,
            },
            counts: Counts::default(),
            failed: None,
            layout,
            header,
            form,
            held,
        }
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.held.connection
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    pub(crate) fn into_held(mut self) -> (Held, Form) {
        // The next owner of the queue begins where the doorbells are.
        self.rings.cq.ring(&self.rings.memory);
        (self.held, self.form)
    }

    /// Its number: SQID.
    pub fn number(&self) -> u32 {
        self.header.number
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.header.kind
    }

    /// Namespaces of the broker: NSIDs 1 to this.
    pub fn namespaces(&self) -> u32 {
        self.header.namespaces
    }

    /// Largest transfer of one command, bytes.
    pub fn transfer_max(&self) -> u32 {
        self.header.transfer_max
    }

    /// Most commands in flight.
    pub fn depth(&self) -> u16 {
        self.rings.cids.capacity()
    }

    /// Commands in flight, those that were not submitted yet among them.
    pub fn in_flight(&self) -> u16 {
        self.rings.cids.used()
    }

    /// The memory that the broker made for it.
    pub fn data(&self) -> Option<&Region> {
        self.held.data.as_ref()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Prepares a read of `blocks` blocks from `slba` into `pieces`. So for all: nothing is seen by
    /// the controller before [`Self::submit`]; the command's end comes with `token`; the
    /// identifier that is returned is for [`Self::cancel`].
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn read(
        &mut self,
        nsid: u32,
        slba: u64,
        blocks: u32,
        pieces: &[Piece],
        token: u64,
    ) -> Result<u16, SubmitError> {
        let entry = blocks_entry(nvm::READ, nsid, slba, blocks, 0)?;
        self.check(nsid, blocks, pieces)?;
        self.push(entry, pieces, token)
    }

    /// Prepares a write; `fua`: durable when it has ended.
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn write(
        &mut self,
        (nsid, fua): (u32, bool),
        slba: u64,
        blocks: u32,
        pieces: &[Piece],
        token: u64,
    ) -> Result<u16, SubmitError> {
        let flags = if fua { nvm::FUA } else { 0 };
        let entry = blocks_entry(nvm::WRITE, nsid, slba, blocks, flags)?;
        self.check(nsid, blocks, pieces)?;
        self.push(entry, pieces, token)
    }

    /// Prepares a flush of a namespace; `None`: of all.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn flush(&mut self, nsid: Option<u32>, token: u64) -> Result<u16, SubmitError> {
        let entry = entry(nvm::FLUSH, nsid.unwrap_or(NSID_ALL));
        self.push(entry, &[], token)
    }

    /// Prepares writing zeroes; `deallocate`: the blocks may be deallocated.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn write_zeroes(
        &mut self,
        (nsid, deallocate): (u32, bool),
        slba: u64,
        blocks: u32,
        token: u64,
    ) -> Result<u16, SubmitError> {
        let flags = if deallocate { nvm::DEALLOCATE } else { 0 };
        let entry = blocks_entry(nvm::WRITE_ZEROES, nsid, slba, blocks, flags)?;
        self.push(entry, &[], token)
    }

    /// Prepares deallocating 1 to 256 ranges. They are copied.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn deallocate(
        &mut self,
        nsid: u32,
        ranges: &[dsm::Range],
        token: u64,
    ) -> Result<u16, SubmitError> {
        if ranges.is_empty() || ranges.len() > dsm::RANGES_MAX {
            return Err(SubmitError::Count);
        }
        let cid = self.take(token)?;
        let (at, address) = self.list(cid);
        for (n, range) in ranges.iter().enumerate() {
            self.rings.memory.0.write(at + 16 * n, &range.emit());
        }
        let mut entry = entry(nvm::DATASET_MANAGEMENT, nsid);
        entry[3] = address;
        entry[5] = (ranges.len() as u64 - 1) | u64::from(nvm::DSM_DEALLOCATE) << 32;
        self.send(cid, entry)
    }

    /// Prepares any command; its identifier is put in. Data pointers mean registered memory, and
    /// whether that has as many bytes as the command moves is the caller's to know.
    ///
    /// # Errors
    /// [`SubmitError::Full`].
    pub fn raw(&mut self, entry: &Entry, token: u64) -> Result<u16, SubmitError> {
        let cid = self.take(token)?;
        self.send(cid, *entry)
    }

    /// Prepares asking for a command to end soon. It ends in any case, and so does this: bits 15:0
    /// of its result count the commands that were taken back.
    ///
    /// # Errors
    /// [`SubmitError::Full`].
    pub fn cancel(&mut self, cid: u16, token: u64) -> Result<u16, SubmitError> {
        let mut entry = entry(CANCEL, NSID_ALL);
        entry[5] = u64::from(self.header.number as u16) | u64::from(cid) << 16;
        self.push(entry, &[], token)
    }

    /// Submits everything that was prepared: no system call while the broker is awake.
    ///
    /// # Errors
    /// [`Error::System`]: the kernel would not kick the broker.
    #[inline]
    pub fn submit(&mut self) -> Result<(), Error> {
        // Reaped entries make room for the completions of these commands.
        self.rings.cq.ring(&self.rings.memory);
        if self.rings.sq.ring(&self.rings.memory) && self.layout.asleep().take(&self.rings.memory) {
            return self.kick();
        }
        Ok(())
    }

    #[cold]
    fn kick(&mut self) -> Result<(), Error> {
        self.counts.calls += 1;
        match rustix::io::write(&self.held.kick, &1_u64.to_ne_bytes()) {
            // A counter that is full was raised often enough.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(source) => Err(Error::system("kick the broker", source)),
        }
    }

    /// The end of one more command, if there is one. Never enters the kernel; so it can't tell
    /// whether the broker still lives: see [`Self::is_alive`].
    ///
    /// # Errors
    /// The controller wrote what can't be true: close the queue. From then on each call says so.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Done>, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.counts.polls += 1;
        let Some(cqe) = self.rings.cq.take(&self.rings.memory) else {
            self.counts.empty_polls += 1;
            self.rings.cq.ring(&self.rings.memory);
            return Ok(None);
        };
        if let Err(why) = self.rings.sq.fetched(cqe.sqhd) {
            return self.fail(why.into());
        }
        let Some(token) = self.rings.cids.end(cqe.cid) else {
            return self.fail(Error::UnknownCommand { cid: cqe.cid });
        };
        Ok(Some(Done {
            token,
            status: cqe.status,
            result: cqe.result,
        }))
    }

    #[cold]
    fn fail<T>(&mut self, error: Error) -> Result<T, Error> {
        self.rings.cq.ring(&self.rings.memory);
        self.failed = Some(error.clone());
        Err(error)
    }

    /// Calls `each` for up to `most` commands that have ended; how many there were.
    ///
    /// # Errors
    /// As [`Self::poll`], where `each` was not called; else the next call says so.
    #[inline]
    pub fn reap(&mut self, most: usize, mut each: impl FnMut(Done)) -> Result<usize, Error> {
        let mut count = 0;
        while count < most {
            let done = match self.poll() {
                Ok(Some(done)) => done,
                Err(error) if count == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            };
            each(done);
            count += 1;
        }
        self.rings.cq.ring(&self.rings.memory);
        Ok(count)
    }

    /// Whether [`Self::poll`] would find something: one load, which is not counted.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.rings.cq.is_ready(&self.rings.memory)
    }

    /// As [`Self::is_ready`], and counts it if it found nothing: what it has found, `poll` finds
    /// again and counts.
    fn look(&mut self) -> bool {
        let is_ready = self.is_ready();
        self.counts.polls += u64::from(!is_ready);
        self.counts.empty_polls += u64::from(!is_ready);
        is_ready
    }

    /// The descriptor that becomes readable when completions have come since [`Self::arm`]; of
    /// `user_irq` only. Read eight bytes of it to lower it.
    pub fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.held.interrupt.as_ref().map(AsFd::as_fd)
    }

    /// Asks for one interrupt when completions come. `false`: there are some already, and there
    /// may be an interrupt or not.
    pub fn arm(&mut self) -> bool {
        self.rings.cq.ring(&self.rings.memory);
        self.layout.armed().begin(&self.rings.memory);
        if self.look() {
            self.layout.armed().end(&self.rings.memory);
            return false;
        }
        true
    }

    /// Sleeps until completions have come (`true`) or the time is over. Of a `user_poll` queue, it
    /// looks and does not sleep: it has no interrupt.
    ///
    /// # Errors
    /// [`Error::Gone`]: the broker is, and nothing will come any more.
    pub fn wait(&mut self, at_most: Duration) -> Result<bool, Error> {
        if self.look() {
            return Ok(true);
        }
        if self.held.interrupt.is_none() {
            return self.is_alive().map(|()| self.look());
        }
        let begun = Instant::now();
        loop {
            let left = at_most.saturating_sub(begun.elapsed());
            let woken = self.sleep(left)?;
            if self.look() {
                return Ok(true);
            }
            // The interrupt may still be up for completions that were reaped before: sleep again.
            if !woken {
                return Ok(false);
            }
        }
    }

    /// Sleeps until the interrupt is up, a signal has come (`true` for both) or the time is over.
    fn sleep(&mut self, at_most: Duration) -> Result<bool, Error> {
        self.layout.armed().begin(&self.rings.memory);
        if self.look() {
            self.layout.armed().end(&self.rings.memory);
            return Ok(true);
        }
        let Some(interrupt) = &self.held.interrupt else {
            return Ok(false);
        };
        self.rings.cq.ring(&self.rings.memory);
        let socket = self.held.connection.socket();
        let mut fds = [
            PollFd::new(interrupt, PollFlags::IN),
            PollFd::from_borrowed_fd(socket, PollFlags::RDHUP),
        ];
        let time = Timespec {
            tv_sec: at_most.as_secs().min(1 << 40) as i64,
            tv_nsec: at_most.subsec_nanos().into(),
        };
        self.counts.calls += 1;
        let woken = poll(&mut fds, Some(&time));
        let gone = !fds[1].revents().is_empty();
        if fds[0].revents().contains(PollFlags::IN) {
            self.counts.calls += 1;
            let _ = rustix::io::read(interrupt, &mut [0; 8]);
        }
        self.layout.armed().end(&self.rings.memory);
        match woken {
            Err(source) if source != Errno::INTR => Err(Error::system("poll", source)),
            _ if gone && !self.is_ready() => Err(Error::Gone),
            Ok(count) => Ok(count > 0),
            Err(_) => Ok(true),
        }
    }

    /// Whether the broker still has this queue: one system call. For when nothing has come for
    /// long.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn is_alive(&mut self) -> Result<(), Error> {
        self.counts.calls += 1;
        let socket = self.held.connection.socket();
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            _ => Err(Error::Gone),
        }
    }

    /// Another descriptor of the connection, to be watched for POLLRDHUP, with epoll for
    /// EPOLLRDHUP: then the broker has ended or has given up this queue. POLLIN is no proof of
    /// that: a late answer to a request that was given up causes it too ([`Error::OutOfStep`]).
    ///
    /// # Errors
    /// EMFILE.
    pub fn end_event(&self) -> Result<OwnedFd, Error> {
        let cloned = rustix::io::fcntl_dupfd_cloexec(self.held.connection.socket(), 3);
        cloned.map_err(|source| Error::system("duplicate a descriptor", source))
    }

    /// Gives the queue back, also one whose broker hangs. Dropping it does the same. Of the
    /// commands in flight, those that the broker has not begun are not executed any more, also if
    /// it stands still now and goes on later. Completions of begun commands are lost. Requests that
    /// the broker has passed to the kernel by then are still executed: wait for that, if their
    /// writes matter.
    pub fn close(self) {}

    /// As [`Self::close`], and calls `each` for every command that has ended by then. So the
    /// failure of a flush either reaches the client here, or the broker knows that it did not, and
    /// fails the next flush (T13); at times both.
    pub fn close_with(mut self, mut each: impl FnMut(Done)) {
        let rings = &mut self.rings;
        if rings.cids.used() > 0 {
            rings.sq.let_go(&rings.memory);
        }
        // Behind that; and each is of a command in flight, so that it ends.
        while let Some(cqe) = rings.cq.take(&rings.memory)
            && let Some(token) = rings.cids.end(cqe.cid)
        {
            each(Done {
                token,
                status: cqe.status,
                result: cqe.result,
            });
        }
    }

    /// A data pointer of PRPs says where memory begins and not how much of it there is: so it is
    /// looked at here, for all forms alike.
    #[inline]
    fn check(&self, nsid: u32, blocks: u32, pieces: &[Piece]) -> Result<(), SubmitError> {
        let Some(blocks) = self.header.bytes_of(nsid, blocks) else {
            return Ok(()); // it is refused there
        };
        let pieces = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        match blocks == pieces {
            true => Ok(()),
            false => Err(SubmitError::Bytes { blocks, pieces }),
        }
    }

    #[inline]
    fn push(&mut self, entry: Entry, pieces: &[Piece], token: u64) -> Result<u16, SubmitError> {
        let mut entry = entry;
        let cid = self.take(token)?;
        if !pieces.is_empty() {
            let (at, address) = self.list(cid);
            let memory = &self.rings.memory;
            let list = List {
                address,
                store: |word, value| memory.store(at + 8 * word, value),
            };
            if let Err(error) = build(&mut entry, pieces, self.form, list) {
                self.rings.cids.end(cid);
                return Err(SubmitError::Pieces(error));
            }
        }
        self.send(cid, entry)
    }

    #[inline]
    fn take(&mut self, token: u64) -> Result<u16, SubmitError> {
        self.rings.cids.take(token).ok_or(SubmitError::Full)
    }

    #[inline]
    fn send(&mut self, cid: u16, mut entry: Entry) -> Result<u16, SubmitError> {
        entry[0] = entry[0] & !0xffff_0000 | u64::from(cid) << 16;
        if let Err(full) = self.rings.sq.push(&self.rings.memory, &entry) {
            self.rings.cids.end(cid);
            return Err(full.into());
        }
        Ok(cid)
    }

    /// The page for the list of a command: where it is in the queue's memory, and its address.
    #[inline]
    fn list(&self, cid: u16) -> (usize, u64) {
        let offset = LIST_BYTES * usize::from(self.rings.cids.slot(cid));
        (
            self.layout.lists_at() + offset,
            region_address(0) + offset as u64,
        )
    }
}

#[inline]
fn entry(opcode: u8, nsid: u32) -> Entry {
    let mut entry = [0; 8];
    entry[0] = u64::from(opcode) | u64::from(nsid) << 32;
    entry
}

#[inline]
fn blocks_entry(
    opcode: u8,
    nsid: u32,
    slba: u64,
    blocks: u32,
    flags: u32,
) -> Result<Entry, SubmitError> {
    if blocks == 0 || blocks > 1 << 16 {
        return Err(SubmitError::Count);
    }
    let mut entry = entry(opcode, nsid);
    entry[5] = slba;
    entry[6] = u64::from((blocks - 1) | flags);
    Ok(entry)
}

#[cfg(test)]
mod tests;
