//! The queue server's part of [`Core`]: functions for the caller that has the queues.
use super::{Core, earlier};
use crate::machine::Memory;
use crate::queue_server::{
    HasLetGo, QUEUES, QueueCommand, QueueCounters, QueueMemory, QueueOp, QueueServer,
};
use alloc::boxed::Box;
use alloc::string::ToString;
use block::Issuer;
use nvme::wire::Status;

/// The answer to a client of a queue.
pub(super) fn words(_: &QueueOp, status: Status) -> Box<str> {
    status.to_string().into()
}

impl Core {
    /// Lets the queue server and the ublk server go on; whether any did.
    pub(super) fn advance_queues(&mut self, memory: &mut dyn Memory, now_ns: u64) -> bool {
        let mut any = self.queues.advance(&mut self.devices, memory, now_ns);
        any |= self.ublk.advance(&mut self.devices, memory, now_ns);
        for server in [&mut self.queues, self.ublk.queues()] {
            while let Some(event) = server.poll_event() {
                self.events.push_back(event);
            }
        }
        any
    }

    /// When the queue server or the ublk server has something to report, ns.
    #[inline]
    pub(super) fn queues_timeout(&self) -> Option<u64> {
        earlier(self.queues.poll_timeout(), self.ublk.poll_timeout())
    }

    pub(super) fn queues_handle_timeout(&mut self, now_ns: u64) {
        self.queues.handle_timeout(now_ns);
        self.ublk.queues().handle_timeout(now_ns);
    }

    /// Gives the queue server its memory, before the first turn.
    pub fn reserve_queues(&mut self, memory: QueueMemory) {
        self.queues.set_memory(memory);
        self.has_front_ends = true;
    }

    /// The queue server. The caller of its functions calls [`turn`](crate::Machine::turn)
    /// afterwards.
    pub fn queues(&mut self) -> &mut QueueServer {
        &mut self.queues
    }

    /// Opens a queue of the client of this name, with a number that none has.
    ///
    /// # Panics
    /// One has it.
    pub fn open_queue(&mut self, queue: u32, client: Box<str>, has_let_go: HasLetGo) {
        self.queues.open(&self.devices, queue, client, has_let_go);
    }

    /// Counters of the namespaces of queues, by number.
    pub fn queue_counters(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        self.queues.counters()
    }

    /// Begins a command of a queue.
    #[inline]
    pub fn begin_queue_command(&mut self, command: QueueCommand, now_ns: u64) {
        self.queues.begin(&mut self.devices, command, now_ns);
    }

    /// The payload of a write of a queue has been copied ([`QueueServer::next_load`]).
    #[inline]
    pub fn queue_payload_loaded(&mut self, id: u32, now_ns: u64) {
        self.queues.loaded(&mut self.devices, id, now_ns);
    }

    /// The payload of a write can't be had from its client: it ends with *data transfer error*.
    pub fn queue_payload_lost(&mut self, id: u32) {
        self.queues.payload_lost(&mut self.devices, id);
    }

    /// The caller is done with a command that has ended. `is_heard`: its client has heard of that,
    /// which is told of flushes that failed (T13).
    #[inline]
    pub fn release_queue_command(&mut self, id: u32, is_heard: bool) {
        self.queues.release(&mut self.devices, id, is_heard);
    }

    /// Takes back commands of a queue that no device has yet: one, or all. Returns how many; they
    /// end as others do.
    pub fn cancel_queue_commands(&mut self, queue: u32, cid: Option<u16>) -> u32 {
        self.queues.cancel(&mut self.devices, queue, cid)
    }

    /// Closes a queue all of whose commands have ended and were released.
    pub fn close_queue(&mut self, queue: u32) {
        self.queues.close(queue);
    }

    /// The client of a queue is gone, which may send what is under way again to another core.
    pub fn shut_queue(&mut self, queue: u32) {
        self.queues.shut(queue);
        let (devices, queues) = (&mut self.devices, &self.queues);
        if devices.cross_core.has_others() {
            let order = &mut devices.order;
            devices
                .cross_core
                .show_all(order, |cookie| match Issuer::of_cookie(cookie) {
                    Issuer::FrontEnd(QUEUES, request) => queues.is_of(request, queue),
                    _ => false,
                });
        }
    }
}
