//! The ublk server's part of [`Core`]: functions for the caller that has the rings.
use super::Core;
use crate::queue_server::{QueueCounters, QueueMemory};
use crate::ublk_server::{UblkRequest, UblkServer};

impl Core {
    /// Gives the ublk server its memory, before the first turn.
    pub fn reserve_ublk(&mut self, memory: QueueMemory) {
        self.ublk.set_memory(memory);
        self.has_front_ends = true;
    }

    /// The ublk server. The caller of its functions calls [`turn`](crate::Machine::turn)
    /// afterwards.
    pub fn ublk(&mut self) -> &mut UblkServer {
        &mut self.ublk
    }

    /// Counters of queues, by number.
    pub fn ublk_counters(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        self.ublk.counters()
    }

    /// Opens a queue of a node over a volume, with a number that none ever had.
    pub fn open_ublk_queue(&mut self, queue: u32, volume: u16, node: &str) {
        self.ublk.open(&self.devices, queue, volume, node);
    }

    /// Begins a request. Returns `false` if it is none that a node of ours can have.
    #[inline]
    pub fn begin_ublk_request(&mut self, request: UblkRequest, now_ns: u64) -> bool {
        self.ublk.begin(&mut self.devices, request, now_ns)
    }

    /// The payload of a write has been copied ([`UblkServer::next_load`]).
    #[inline]
    pub fn ublk_payload_loaded(&mut self, id: u32, now_ns: u64) {
        self.ublk.queues().loaded(&mut self.devices, id, now_ns);
    }

    /// The payload of a write can't be had.
    pub fn ublk_payload_lost(&mut self, id: u32) {
        self.ublk.queues().payload_lost(&mut self.devices, id);
    }

    /// The caller is done with a request that has ended. `is_heard`: the driver was told how.
    #[inline]
    pub fn release_ublk_request(&mut self, id: u32, is_heard: bool) {
        self.ublk.queues().release(&mut self.devices, id, is_heard);
    }
}
