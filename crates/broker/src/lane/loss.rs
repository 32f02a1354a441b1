//! Why a lane ends though its client may be there, and how it notices that its memory is lost.
use super::Lane;
use nvme::queue::Misbehaved;
use std::fmt;

/// The server gave a queue up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Its client wrote something to the rings that can't be, or has let go.
    Misbehaved(Misbehaved),
    /// An access to its memory faulted ([`sys::fault`]).
    MemoryLost,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misbehaved(why) => why.fmt(f),
            Self::MemoryLost => f.write_str(
                "an access to its shared memory failed (SIGBUS): the system has no memory for a \
                 page that the client released, or the page is damaged",
            ),
        }
    }
}

impl Lane {
    /// Whether memory of this queue is lost: then nothing is answered any more, as the bytes of any
    /// command may have been zeroes, and the lane ends.
    #[inline]
    pub(super) fn has_lost_memory(&mut self) -> bool {
        sys::fault::count() != self.faults && self.find_lost_memory()
    }

    #[cold]
    fn find_lost_memory(&mut self) -> bool {
        // Before the look: a fault that comes behind that is another one.
        let faults = sys::fault::count();
        if self.memory.0.is_lost() || self.memories.has_lost() {
            self.broken = Some(GivenUp::MemoryLost);
        }
        let is_lost = self.broken == Some(GivenUp::MemoryLost);
        if !is_lost {
            self.faults = faults;
        }
        is_lost
    }

    /// Ends the lane for what its rings say: of lost memory they say nothing.
    pub(super) fn give_up(&mut self, why: Misbehaved) {
        if !self.has_lost_memory() {
            self.broken = Some(GivenUp::Misbehaved(why));
        }
    }
}
