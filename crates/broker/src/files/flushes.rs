//! Flushes of files and volumes: one at a time of each, for all who wait; failed ones are counted,
//! and told to each queue that wrote.
use super::request::Request;
use super::{Backing, Ended, Files, Job, NO_LANE, Way, Work};
use crate::volume::Order;
use block::FlushTracker;
use nvme::wire::Status;
use sys::Errno;

/// Tags of flushes, with the namespace's index; those of requests are 32 bits.
pub(super) const FLUSHES: u64 = 1 << 32;

/// Knowledge of a lane that wrote to a namespace.
#[derive(Clone, Copy)]
pub(super) struct Told {
    /// Flushes that had failed when it was last told, or first wrote.
    failures: u64,
    /// Its writes that have ended and are not durable by themselves.
    pub(super) writes: FlushTracker,
    /// Its writes that have not ended. Of each some may have been done already.
    under_way: u64,
}

impl Told {
    /// Whether all that it wrote was flushed: what is lost later is none of it.
    pub(super) fn is_flushed(&self) -> bool {
        self.writes.is_flushed() && self.under_way == 0
    }
}

impl Backing {
    /// A lane that wrote has gone.
    fn leave(&mut self, told: Told) {
        if told.is_flushed() {
            return;
        }
        match &self.way {
            Way::File(_) => self.untold |= told.failures != self.failures,
            Way::Volume(volume) => volume.leave(told.failures),
        }
    }

    /// Whether who flushes now is to be told of what queues were not that have gone.
    fn take_untold(&mut self, well: bool) -> bool {
        match &self.way {
            Way::File(_) => std::mem::take(&mut self.untold),
            Way::Volume(volume) => volume.take_untold(well.then_some(self.covers_gone)),
        }
    }
}

impl Files {
    /// A queue that writes to a file is told of flushes that fail from now on.
    pub(super) fn note(&mut self, request: &Request) {
        let Job {
            lane, namespace, ..
        } = request.job;
        let writes = matches!(request.work, Work::Write { .. } | Work::Zeroes { .. });
        let Some(backing) = &self.backings[namespace] else {
            return;
        };
        if !writes || lane == NO_LANE {
            return;
        }
        let first = Told {
            failures: backing.failures(),
            writes: FlushTracker::default(),
            under_way: 0,
        };
        let namespaces = self.backings.len();
        let told = &mut self.known(lane).told;
        told.resize(namespaces, None);
        let told = told[namespace].get_or_insert(first);
        if told.is_flushed() {
            // Writes lost before this one began are none that it has yet to flush.
            told.failures = first.failures;
        }
        told.under_way += 1;
    }

    pub(super) fn told(&mut self, job: Job) -> Option<&mut Told> {
        let lane = self.lanes.get_mut(job.lane);
        lane.and_then(|lane| lane.told.get_mut(job.namespace)?.as_mut())
    }

    /// A request has ended: where it has written what is not durable yet, that is counted.
    pub(super) fn wrote(&mut self, request: &Request, status: Status) {
        if let Work::Write { fua, .. } | Work::Zeroes { fua, .. } = request.work
            && let Some(told) = self.told(request.job)
        {
            if !fua && status.is_success() {
                told.writes.acknowledge();
            }
            told.under_way = told.under_way.saturating_sub(1);
        }
    }

    /// A lane has ended, with all of its requests. Its writes may never be flushed by it: losses
    /// that it wasn't told of are told to others (T13).
    pub fn forget(&mut self, lane: usize) {
        let Some(known) = self.lanes.get_mut(lane) else {
            return;
        };
        for (backing, told) in self.backings.iter_mut().zip(known.told.drain(..)) {
            if let (Some(backing), Some(told)) = (backing, told) {
                backing.leave(told);
            }
        }
        known.copied = 0;
    }

    /// A request of a queue that nobody listens to any more has ended: where it was a flush that
    /// failed, it is not told. One that was taken back, or found no engine, had nothing to tell.
    pub fn unheard(&mut self, ended: &Ended) {
        let nothing = [
            Status::SUCCESS,
            Status::ABORT_REQUESTED,
            Status::INTERNAL_PATH,
        ];
        if !ended.flush || nothing.iter().any(|&it| ended.status.is(it)) {
            return;
        }
        if let Some(Some(backing)) = self.backings.get_mut(ended.job.namespace) {
            match &backing.way {
                Way::File(_) => backing.untold = true,
                Way::Volume(volume) => volume.unheard(),
            }
        }
    }

    /// Makes earlier writes to a file durable, for one more request.
    pub(super) fn flush(&mut self, namespace: usize, slot: u32) {
        let told = self.told(self.requests[slot].job);
        let covers = told.map(|told| told.writes.covered_now());
        self.requests[slot].covers = covers.unwrap_or_default();
        let Some(backing) = &mut self.backings[namespace] else {
            return;
        };
        if backing.flushing.is_empty() {
            backing.flushing.push(slot);
            self.sync(namespace);
        } else {
            // A flush under way may have begun before the last of its writes ended.
            backing.next_flush.push(slot);
        }
    }

    /// A flush has ended, for all that waited for it.
    pub(super) fn end_flush(&mut self, namespace: usize, result: Result<u32, Errno>) {
        let Some(backing) = &mut self.backings[namespace] else {
            return;
        };
        if let Err(Errno::INTR | Errno::AGAIN) = result {
            return self.sync(namespace);
        }
        let needs_none = match &backing.way {
            Way::Volume(volume) => !volume.has_flush() && result == Err(Errno::OPNOTSUPP),
            Way::File(_) => false,
        };
        let result = if needs_none { Ok(0) } else { result };
        backing.failures += u64::from(result.is_err());
        let failures = backing.failures();
        while let Some(slot) = backing.flushing.pop() {
            let request = &self.requests[slot];
            if result == Err(Errno::NOTCONN) {
                // It wasn't flushed. Possible losses with the connection are told by the next one:
                // whoever takes this for trouble of the way asks again.
                self.flushed.push((slot, request.status_of(Errno::NOTCONN)));
                continue;
            }
            let lane = self.lanes.get_mut(request.job.lane);
            let told = lane.and_then(|lane| lane.told.get_mut(namespace)?.as_mut());
            let mut missed = false;
            if let Some(told) = told {
                let known = std::mem::replace(&mut told.failures, failures);
                missed = known != failures && !told.is_flushed();
                // Those who wait together end in any order.
                told.writes.flushed(request.covers);
            }
            // Also by who stops the server, behind whom nobody asks.
            missed |= backing.take_untold(result.is_ok());
            let status = match result {
                Err(error) => request.status_of(error),
                Ok(_) if missed => Status::WRITE_FAULT,
                Ok(_) => Status::SUCCESS,
            };
            self.flushed.push((slot, status));
        }
        std::mem::swap(&mut backing.flushing, &mut backing.next_flush);
        if !backing.flushing.is_empty() {
            self.sync(namespace);
        }
    }

    /// Begins a flush.
    fn sync(&mut self, namespace: usize) {
        let tag = FLUSHES + namespace as u64;
        let Some(backing) = &mut self.backings[namespace] else {
            return;
        };
        match &backing.way {
            Way::File(Some(file)) => {
                self.ring.sync_data(file, tag);
            }
            Way::File(None) => self.employ_to_flush(namespace),
            Way::Volume(volume) => {
                backing.covers_gone = volume.gone_unflushed();
                let post = self.post.clone();
                volume.begin(Order::new(nbd::Kind::Flush, (0, 0), post, tag));
            }
        }
    }
}
