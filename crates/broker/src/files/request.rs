//! One request to a file or a volume: which operation is next, and what follows from its end.
use super::{Job, Work};
use crate::limits::{VOLUME_ZEROES_BYTES, ZEROES_BYTES};
use crate::transfer::{Door, Part};
use crate::volume::{Order, Post, Volume};
use block::order::Ticket;
use block::{Covered, Range};
use nbd::Kind;
use nvme::wire::Status;
use std::sync::Arc;
use sys::{Errno, LATE, Shared};

/// A request, in flight or waiting.
pub struct Request {
    pub job: Job,
    pub work: Work,
    /// Memory and the range of it, in order.
    pub parts: Vec<(Arc<Shared>, Part)>,
    /// Of a change for a client: where that lets go.
    pub door: Option<Door>,
    /// Of a change: its place among all changes of its namespace, and whether it waits for it.
    pub order: Option<Ticket>,
    pub parked: bool,
    /// Where its data really is, if `parts` don't suit the file.
    pub bounce: Option<Arc<Shared>>,
    /// Bytes that are done of the part, or of the range, at hand.
    pub done: u64,
    /// Parts or ranges that are done.
    pub index: usize,
    /// Bytes before the part at hand.
    pub before: u64,
    /// Zeroes are written because nothing else worked.
    pub plain: bool,
    /// Of a file: its workers make the system calls; it has no place on the ring.
    pub by_workers: bool,
    /// All is written; the flush is left.
    pub flush: bool,
    /// Of a flush: writes of its lane that had ended when it was asked for.
    pub covers: Covered,
    /// Operations go over all of its parts, as one run of bytes.
    pub whole: bool,
}

impl Request {
    /// Range that it changes, or the one at hand of several.
    pub fn range(&self) -> Option<Range> {
        match &self.work {
            Work::Read { .. } | Work::Flush { .. } => None,
            Work::Write { offset, .. } => Some(Range::new(*offset, self.bytes() as u64)),
            Work::Zeroes { offset, len, .. } => Some(Range::new(*offset, *len)),
            Work::Deallocate { ranges } => {
                let &(offset, len) = ranges.get(self.index)?;
                Some(Range::new(offset, len))
            }
        }
    }

    /// No client waits for this change any more, and it must not be made (T9).
    pub fn is_forsaken(&self) -> bool {
        self.door.as_ref().is_some_and(Door::is_shut)
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, part)| part.len as usize).sum()
    }

    /// Goes through memory of our own instead of its parts; bytes that were copied for that.
    pub fn use_bounce(&mut self, bounce: Arc<Shared>) -> usize {
        let mut at = 0;
        if matches!(self.work, Work::Write { .. }) {
            let mut bytes = Vec::new();
            for (memory, part) in &self.parts {
                bytes.resize(part.len as usize, 0);
                memory.read(part.at, &mut bytes);
                bounce.write(at, &bytes);
                at += bytes.len();
            }
        }
        self.bounce = Some(bounce);
        at
    }

    /// Whether an access to memory of its parts faulted.
    pub fn has_lost_memory(&self) -> bool {
        self.parts.iter().any(|(memory, _)| memory.is_lost())
    }

    pub fn copy_back(&self, bounce: &Shared) {
        let mut at = 0;
        let mut bytes = Vec::new();
        for (memory, part) in &self.parts {
            bytes.resize(part.len as usize, 0);
            bounce.read(at, &mut bytes);
            memory.write(part.at, &bytes);
            at += bytes.len();
        }
    }

    /// The next operation on a volume; its end goes `to` there, with a tag.
    pub fn order(&self, volume: &Volume, zeroes: &Arc<Shared>, to: (Post, u64)) -> Order {
        let longest = volume.longest();
        let payload = |whole: u64| (whole - self.done).min(longest.into()) as u32;
        let bare = |whole: u64| (whole - self.done).min(VOLUME_ZEROES_BYTES) as u32;
        let (kind, offset, length) = match &self.work {
            Work::Read { offset } => (Kind::Read, *offset, payload(self.bytes() as u64)),
            Work::Write { offset, .. } => (Kind::Write, *offset, payload(self.bytes() as u64)),
            Work::Zeroes { offset, len, .. } if self.plain => {
                (Kind::Write, *offset, payload(*len).min(ZEROES_BYTES))
            }
            Work::Zeroes { offset, len, .. } => (Kind::WriteZeroes, *offset, bare(*len)),
            Work::Deallocate { ranges } => {
                let (offset, len) = ranges.get(self.index).copied().unwrap_or_default();
                (Kind::Trim, offset, bare(len))
            }
            Work::Flush { .. } => (Kind::Flush, 0, 0),
        };
        let (post, tag) = to;
        let mut order = Order::new(kind, (offset + self.done, length), post, tag);
        order.door.clone_from(&self.door);
        match &self.work {
            Work::Write { fua, .. } => order.fua = *fua && volume.has_fua(),
            Work::Zeroes { deallocate, .. } => order.no_hole = !self.plain && !*deallocate,
            _ => {}
        }
        match &self.work {
            Work::Read { .. } | Work::Write { .. } => {
                (order.parts, order.skip) = (self.parts.clone(), self.done as usize);
            }
            Work::Zeroes { .. } if self.plain => {
                let (region, at, len) = (0, 0, length);
                order.parts = vec![(Arc::clone(zeroes), Part { region, at, len })];
            }
            _ => {}
        }
        order
    }

    /// The memory of the next operation.
    pub fn at_hand(&self) -> (&Arc<Shared>, usize, u32) {
        let done = self.done as usize;
        if let Some(bounce) = &self.bounce {
            return (bounce, done, (self.bytes() - done) as u32);
        }
        let (memory, part) = &self.parts[self.index];
        (memory, part.at + done, part.len - done as u32)
    }

    /// Consequence of the end of an operation; `None`: another one.
    pub fn advance(&mut self, result: Result<u32, Errno>) -> Option<Status> {
        let count = match result {
            Ok(count) => u64::from(count),
            Err(Errno::INTR | Errno::AGAIN) => return None,
            Err(error) => return self.failed(error),
        };
        let whole = match self.bounce {
            _ if self.whole => self.bytes() as u64,
            Some(_) => self.bytes() as u64,
            None => self
                .parts
                .get(self.index)
                .map_or(0, |(_, part)| part.len.into()),
        };
        match &mut self.work {
            Work::Read { .. } | Work::Write { .. } => {
                if count == 0 {
                    // Cut off behind our back.
                    return Some(Status::UNRECOVERED_READ);
                }
                self.done += count;
                if self.done < whole {
                    return None;
                }
                (self.before, self.done) = (self.before + whole, 0);
                self.index += 1;
                let last = self.whole || self.bounce.is_some() || self.index == self.parts.len();
                last.then_some(Status::SUCCESS)
            }
            Work::Zeroes { len, .. } if self.plain || self.whole => {
                self.done += count;
                (self.done >= *len).then_some(Status::SUCCESS)
            }
            Work::Zeroes { .. } => Some(Status::SUCCESS),
            Work::Deallocate { ranges } => {
                self.done += count;
                let len = ranges.get(self.index).map_or(0, |&(_, len)| len);
                if self.whole && self.done < len {
                    return None;
                }
                self.done = 0;
                self.index += 1;
                (self.index >= ranges.len()).then_some(Status::SUCCESS)
            }
            Work::Flush { .. } => Some(Status::SUCCESS),
        }
    }

    pub fn failed(&mut self, error: Errno) -> Option<Status> {
        let unsupported = matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV);
        match &self.work {
            Work::Zeroes { .. } if unsupported && !self.plain => {
                self.plain = true;
                return None;
            }
            // It is a hint.
            Work::Deallocate { .. } if unsupported => return Some(Status::SUCCESS),
            _ => {}
        }
        Some(self.status_of(error))
    }

    /// Status for an error of this request.
    pub fn status_of(&self, error: Errno) -> Status {
        match error {
            Errno::NOTCONN => Status::INTERNAL_PATH,
            // Its client had let go of the queue before it could start.
            LATE => Status::SQ_DELETION,
            // Pages of the client's memory: the command's own copies are always there.
            Errno::FAULT => Status::DATA_TRANSFER_ERROR.with_dnr(),
            Errno::NOSPC | Errno::DQUOT => Status::CAPACITY_EXCEEDED,
            Errno::ROFS | Errno::PERM | Errno::BADF => Status::WRITE_PROTECTED.with_dnr(),
            Errno::IO if matches!(self.work, Work::Read { .. }) => Status::UNRECOVERED_READ,
            Errno::IO => Status::WRITE_FAULT,
            Errno::INVAL if !matches!(self.work, Work::Read { .. } | Work::Write { .. }) => {
                Status::INTERNAL_ERROR
            }
            Errno::INVAL => Status::SGL_GRANULARITY.with_dnr(),
            _ => Status::INTERNAL_ERROR,
        }
    }
}
