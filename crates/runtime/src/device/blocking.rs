//! Requests to files that workers do: what would wait inside the kernel.
use super::{Backend, Devices, FileRequest, Step, device_number};
use crate::limits::FILE_OPERATIONS_MAX;
use crate::mailbox::Wake;
use crate::workers::{Bytes, Call, Complete, Finished, Job, Permit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::{Allocate, Errno, Extent, Ring};

/// Ends of system calls that workers made for one reactor.
pub(crate) struct Inbox {
    finished: Mutex<Vec<Finished>>,
    /// The reactor's, as for messages.
    wake: Arc<Wake>,
}

impl Inbox {
    pub(super) fn new(wake: Arc<Wake>) -> Self {
        Self {
            finished: Mutex::new(Vec::with_capacity(FILE_OPERATIONS_MAX)),
            wake,
        }
    }

    /// Takes what has ended. `spare`: an empty list, which is left here in exchange. Call after the
    /// reactor's event was lowered.
    pub(crate) fn take(&self, spare: &mut Vec<Finished>) {
        std::mem::swap(&mut *self.lock(), spare);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Complete for Inbox {
    fn complete(&self, finished: Finished) {
        self.lock().push(finished);
        self.wake.raise();
    }
}

impl Step {
    /// Whether it changes the file (and may make it longer).
    pub(super) fn changes(self) -> bool {
        match self {
            Self::Write { .. } | Self::Allocate(_) | Self::Zeroes => true,
            Self::Read | Self::Sync | Self::Compare(_) => false,
        }
    }

    /// Whether the kernel would have a worker do it; `waits`: any write as well.
    pub(super) fn always_waits(self, waits: bool) -> bool {
        match self {
            Self::Allocate(_) | Self::Zeroes => true,
            Self::Write { .. } => waits,
            Self::Read | Self::Sync | Self::Compare(_) => false,
        }
    }
}

impl Devices {
    /// Has the file's workers make the next system call of a request.
    pub(super) fn employ(&mut self, ring: &mut Ring, slot: u32) {
        let it = &mut self.requests[slot];
        let Backend::File { device, .. } = &self.backends[device_number(it.request.device)] else {
            unreachable!("the device of {:?} is no file", it.request);
        };
        it.by_workers = true;
        let FileRequest {
            request,
            extent,
            step,
            done,
            before_ns,
            ..
        } = *it;
        let left = request.length - done;
        let up_to = |all: Extent| Extent::new(all.at, left.min(all.len.into()) as u32);
        let mut lease = |extent, fills| Bytes::Lease(ring.lease(extent, fills));
        let (call, bytes) = match step {
            Step::Read => (Call::Read, lease(extent.skip(done as u32), true)),
            Step::Compare(Some(scratch)) => (Call::Read, lease(up_to(scratch), true)),
            Step::Compare(None) => {
                unreachable!("a compare has been started without scratch memory")
            }
            Step::Write { durable } => {
                let allocate = device.has_holes();
                let call = Call::Write { durable, allocate };
                (call, lease(extent.skip(done as u32), false))
            }
            Step::Zeroes => {
                let call = Call::Write {
                    durable: false,
                    allocate: device.has_holes(),
                };
                (call, lease(up_to(self.zeroes), false))
            }
            Step::Sync => (Call::Sync, Bytes::Nothing),
            Step::Allocate(how) => {
                if how == Allocate::PunchHole {
                    device.note_holes();
                }
                let length = left;
                (Call::Allocate { how, length }, Bytes::Nothing)
            }
        };
        let permit = match before_ns {
            u64::MAX => Permit::Always,
            _ if !step.changes() => Permit::Always,
            before_ns => Permit::Before(before_ns),
        };
        device.workers().submit(Job {
            file: Arc::clone(device.handle()),
            call,
            offset: request.offset + done,
            bytes,
            permit,
            tag: slot.into(),
            to: Arc::clone(&self.inbox) as Arc<dyn Complete>,
        });
    }

    /// Whether the ring ended a write because the kernel can't do it without waiting.
    pub(super) fn is_refused(&mut self, slot: u32, result: Result<u32, Errno>) -> bool {
        let it = &mut self.requests[slot];
        let writes = matches!(it.step, Step::Write { .. }) && !it.by_workers;
        let Err(error @ (Errno::AGAIN | Errno::OPNOTSUPP)) = result else {
            return false;
        };
        // A file that can't at all is not asked again.
        if writes
            && error == Errno::OPNOTSUPP
            && let Backend::File { waits, .. } =
                &mut self.backends[device_number(it.request.device)]
        {
            *waits = true;
        }
        writes
    }
}
