//! Requests for the kernel, or an engine: changes as late as can be; and data that was copied for
//! requests whose memory does not suit their file.
use super::{Files, NO_LANE, Way, Work};
use nvme::wire::Status;
use sys::WriteHow;

impl Files {
    /// Whether the kernel is to be entered.
    pub fn wants_enter(&mut self) -> bool {
        !self.due.is_empty() || self.ring.wants_enter()
    }

    /// Puts the changes that are due before the kernel, which is to be entered at once. `false`:
    /// some have ended here.
    pub fn ask(&mut self) -> bool {
        self.begin_placed();
        while let Some(slot) = self.due.pop_front() {
            if self.requests[slot].is_forsaken() {
                self.flushed.push((slot, Status::SQ_DELETION));
            } else {
                self.order(slot);
            }
        }
        self.flushed.is_empty()
    }

    /// Bytes that were copied for requests so far.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    pub(super) fn count_copied(&mut self, lane: usize, bytes: usize) {
        self.copied += bytes as u64;
        if bytes > 0 && lane != NO_LANE {
            self.known(lane).copied += bytes as u64;
        }
    }

    /// Asks for it.
    pub(super) fn order(&mut self, slot: u32) {
        let request = &self.requests[slot];
        let Some(backing) = &self.backings[request.job.namespace] else {
            return;
        };
        let file = match &backing.way {
            Way::File(Some(file)) if !request.by_workers => file,
            Way::File(_) => return self.employ(slot),
            Way::Volume(volume) => {
                let to = (self.post.clone(), slot.into());
                return volume.begin(request.order(volume, &self.zeroes, to));
            }
        };
        let (ring, tag) = (&mut self.ring, slot.into());
        let done = request.done;
        match &request.work {
            Work::Read { offset } => {
                let memory = request.at_hand();
                ring.read_shared(file, memory, offset + request.before + done, tag);
            }
            Work::Write { offset, fua } => {
                let memory = request.at_hand();
                let at = offset + request.before + done;
                let how = WriteHow {
                    durable: *fua && backing.direct,
                    nowait: backing.slow.is_some(),
                    before_ns: u64::MAX, // its door was looked at
                };
                ring.write_shared(file, memory, at, how, tag);
            }
            // The first goes another way; the others are slow.
            Work::Flush { .. } | Work::Zeroes { .. } | Work::Deallocate { .. } => {}
        }
    }
}
