//! Work of a file's workers: everything that would wait inside the kernel.
use super::{FLUSHES, Files, Way, Work};
use crate::limits::ZEROES_BYTES;
use crate::transfer::Door;
use crate::volume::Post;
use runtime::FileDevice;
use runtime::workers::{Bytes, Call, Complete, FileHandle, Finished, Job, Permit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::{Allocate, Errno};

/// A file for its workers.
pub(super) struct Slow {
    pub(super) device: Arc<FileDevice>,
    /// This thread's description of it.
    pub(super) handle: Arc<FileHandle>,
    /// It can't be written without waiting: workers write it.
    pub(super) writes: bool,
}

/// Ends of system calls that workers made for one thread.
pub(super) struct Inbox {
    finished: Mutex<Vec<Finished>>,
    /// There are some. Set behind them, with the thread's mail.
    has_any: AtomicBool,
    post: Post,
}

impl Inbox {
    pub(super) fn new(post: Post) -> Self {
        Self {
            finished: Mutex::default(),
            has_any: AtomicBool::new(false),
            post,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Complete for Inbox {
    fn complete(&self, finished: Finished) {
        self.lock().push(finished);
        self.has_any.store(true, Ordering::Release);
        self.post.has_mail.store(true, Ordering::Release);
        self.post.event.raise();
    }
}

impl Files {
    /// Whether all system calls of a namespace's file are made by workers.
    pub(super) fn blocks(&self, namespace: usize) -> bool {
        let backing = self.backings[namespace].as_ref();
        backing.is_some_and(|backing| matches!(backing.way, Way::File(None)))
    }

    /// A request that workers have ended is as one of the ring.
    pub(super) fn take_finished(&mut self) {
        if !self.inbox.has_any.swap(false, Ordering::Acquire) {
            return;
        }
        let mut finished = self.inbox.lock();
        let ended = finished.drain(..).map(|it| (it.tag, it.result));
        self.elsewhere.extend(ended);
    }

    /// Whether the kernel would have had a worker of its own do a write: then ours do it.
    pub(super) fn is_refused(&mut self, slot: u32, result: Result<u32, Errno>) -> bool {
        let Err(error @ (Errno::AGAIN | Errno::OPNOTSUPP)) = result else {
            return false;
        };
        let request = &mut self.requests[slot];
        let backing = self.backings[request.job.namespace].as_mut();
        let Some(slow) = backing.and_then(|backing| backing.slow.as_mut()) else {
            return false;
        };
        if request.by_workers || !matches!(request.work, Work::Write { .. }) {
            return false;
        }
        // A file that can't at all is not asked again.
        slow.writes |= error == Errno::OPNOTSUPP;
        request.by_workers = true;
        self.in_flight -= 1;
        self.start_waiting();
        true
    }

    /// Whether a request that begins has no place on the ring, since workers make all its system
    /// calls but a flush: from now on that stands in it.
    pub(super) fn is_left_to_workers(&mut self, slot: u32) -> bool {
        let request = &mut self.requests[slot];
        let backing = self.backings[request.job.namespace].as_ref();
        let slow = backing.and_then(|backing| backing.slow.as_ref());
        request.by_workers |= slow.is_some_and(|slow| match request.work {
            Work::Zeroes { .. } | Work::Deallocate { .. } => true,
            Work::Write { .. } => slow.writes,
            Work::Read { .. } | Work::Flush { .. } => false,
        });
        request.by_workers
    }

    /// Has the file's workers make the next system call of a request.
    pub(super) fn employ(&self, slot: u32) {
        let request = &self.requests[slot];
        let backing = self.backings[request.job.namespace].as_ref();
        let Some(slow) = backing.and_then(|backing| backing.slow.as_ref()) else {
            return;
        };
        let done = request.done;
        let allocate = slow.device.has_holes();
        let direct = slow.device.direct();
        let (call, offset, bytes) = match &request.work {
            Work::Read { offset } => {
                let (memory, at, len) = request.at_hand();
                let bytes = Bytes::Shared(Arc::clone(memory), at, len);
                (Call::Read, offset + request.before + done, bytes)
            }
            Work::Write { offset, fua } => {
                let (memory, at, len) = request.at_hand();
                let bytes = Bytes::Shared(Arc::clone(memory), at, len);
                let durable = *fua && direct;
                let call = Call::Write { durable, allocate };
                (call, offset + request.before + done, bytes)
            }
            Work::Zeroes { offset, len, .. } if request.plain => {
                let len = (len - done).min(ZEROES_BYTES.into()) as u32;
                let durable = false;
                let bytes = Bytes::Shared(Arc::clone(&self.zeroes), 0, len);
                (Call::Write { durable, allocate }, offset + done, bytes)
            }
            Work::Zeroes {
                offset,
                len,
                deallocate,
                ..
            } => {
                let how = match deallocate {
                    true => Allocate::PunchHole,
                    false => Allocate::ZeroRange,
                };
                let length = len - done;
                (
                    Call::Allocate { how, length },
                    offset + done,
                    Bytes::Nothing,
                )
            }
            Work::Deallocate { ranges } => {
                let (offset, length) = ranges.get(request.index).copied().unwrap_or((0, 1));
                let how = Allocate::PunchHole;
                (Call::Allocate { how, length }, offset, Bytes::Nothing)
            }
            Work::Flush { .. } => return,
        };
        let punches = Allocate::PunchHole;
        if matches!(call, Call::Allocate { how, .. } if how == punches) {
            slow.device.note_holes();
        }
        slow.device.workers().submit(Job {
            file: Arc::clone(&slow.handle),
            call,
            offset,
            bytes,
            permit: request.door.as_ref().map_or(Permit::Always, Door::permit),
            tag: slot.into(),
            to: Arc::clone(&self.inbox) as Arc<dyn Complete>,
        });
    }

    /// Has a worker flush the file of a namespace.
    pub(super) fn employ_to_flush(&self, namespace: usize) {
        let backing = self.backings[namespace].as_ref();
        let Some(slow) = backing.and_then(|backing| backing.slow.as_ref()) else {
            return;
        };
        slow.device.workers().submit(Job {
            file: Arc::clone(&slow.handle),
            call: Call::Sync,
            offset: 0,
            bytes: Bytes::Nothing,
            permit: Permit::Always,
            tag: FLUSHES + namespace as u64,
            to: Arc::clone(&self.inbox) as Arc<dyn Complete>,
        });
    }
}
