//! Flushes of files and volumes: one at a time of each, for all who wait; failed ones are counted,
//! and told to each queue that wrote.
use super::{Files, NO_LANE, Way};
use crate::volume::Order;
use nvme::wire::Status;
use sys::Errno;

/// Tags of flushes, with the namespace's index; those of requests are 32 bits.
pub(super) const FLUSHES: u64 = 1 << 32;

impl Files {
    /// What was written to a file before is made durable, for one more request.
    pub(super) fn flush(&mut self, namespace: usize, slot: u32) {
        let Some(backing) = &mut self.backings[namespace] else {
            return;
        };
        if backing.flushing.is_empty() {
            backing.flushing.push(slot);
            self.sync(namespace);
        } else {
            // What is under way may have begun before the last of its writes ended.
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
            let Some(request) = &self.requests[slot as usize] else {
                continue;
            };
            if result == Err(Errno::NOTCONN) {
                // It wasn't flushed. What may be lost with the connection is told by the next one:
                // whoever takes this for trouble of the way asks again.
                self.flushed.push((slot, request.status_of(Errno::NOTCONN)));
                continue;
            }
            let lane = self.lanes.get_mut(request.job.lane);
            let told = lane.and_then(|lane| lane.told.get_mut(namespace));
            let mut missed = match told {
                Some(Some(told)) => std::mem::replace(told, failures) != failures,
                _ => false,
            };
            if request.job.lane != NO_LANE {
                missed |= std::mem::take(&mut backing.untold);
            }
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
        match self.backings[namespace].as_ref().map(|it| &it.way) {
            Some(Way::File(file)) => {
                self.ring.sync_data(file, tag);
            }
            Some(Way::Volume(volume)) => {
                let post = self.post.clone();
                volume.begin(Order::new(nbd::Kind::Flush, (0, 0), post, tag));
            }
            None => {}
        }
    }
}
