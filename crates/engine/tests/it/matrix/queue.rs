//! A queue's client: it has commands under way, and memory of its own for each.
use super::stage::Op;
use crate::common::HOST;
use crate::nvme_server::rig::{QUEUE, Rig};
use engine::{QueueCommand, QueueOp};
use nvme::wire::Status;
use std::collections::BTreeMap;

/// A command that has ended, and what it has read.
type Ended = (u16, Status, Vec<u8>);

#[derive(Default)]
pub struct QueueClient {
    /// Payload of writes that wait to be copied, by number.
    payload: BTreeMap<u16, Vec<u8>>,
    ended: Vec<Ended>,
    /// Of its next commands; by default [`QUEUE_NAMESPACE`](crate::nvme_server::rig).
    pub namespace: u32,
    /// It does not get the ends of its commands any more.
    pub has_gone: bool,
}

impl QueueClient {
    pub fn start(&mut self, rig: &mut Rig, number: u16, op: Op, at: (u64, u32), data: &[u8]) {
        self.start_on(rig, QUEUE, number, (op, at, data));
    }

    /// The same on any queue.
    pub fn start_on(
        &mut self,
        rig: &mut Rig,
        queue: u32,
        number: u16,
        (op, at, data): (Op, (u64, u32), &[u8]),
    ) {
        let op = match op {
            Op::Read => QueueOp::Read,
            Op::Write => QueueOp::Write { fua: false },
            Op::WriteFua => QueueOp::Write { fua: true },
            Op::Flush => QueueOp::Flush { rest: Vec::new() },
            Op::Zeroes => QueueOp::WriteZeroes { fua: false },
            Op::Discard => QueueOp::Deallocate {
                ranges: vec![(at.0, at.1.into())],
            },
        };
        self.payload.insert(number, data.to_vec());
        let command = QueueCommand {
            queue,
            cid: number,
            tag: number.into(),
            namespace: self.namespace,
            op,
            offset: at.0,
            length: at.1.into(),
        };
        let now_ns = rig.world.now_ns;
        rig.core.borrow_mut().begin_queue_command(command, now_ns);
        self.exchange(rig);
    }

    /// The payload of a command that waits for memory is lost.
    pub fn lose(&mut self, number: u16) {
        self.payload.remove(&number);
    }

    /// Copies payload, and takes what has ended.
    pub fn exchange(&mut self, rig: &mut Rig) {
        let (mut core, now_ns) = (rig.core.borrow_mut(), rig.world.now_ns);
        let arena = &mut rig.world.nodes[HOST].arena.0;
        while let Some((id, tag, span)) = core.queues().next_load() {
            let Some(bytes) = self.payload.get(&(tag as u16)) else {
                core.queue_payload_lost(id);
                continue;
            };
            arena[span.at as usize..][..span.len as usize].copy_from_slice(bytes);
            core.queue_payload_loaded(id, now_ns);
        }
        while let Some(done) = core.queues().next_done() {
            let read = done.read.unwrap_or_default();
            let bytes = &arena[read.at as usize..][..read.len as usize];
            self.ended
                .push((done.tag as u16, done.status, bytes.to_vec()));
            core.release_queue_command(done.id, !self.has_gone);
        }
    }

    pub fn has_ended(&self, number: u16) -> bool {
        self.ended.iter().any(|it| it.0 == number)
    }

    /// The end of a command.
    pub fn end(&mut self, number: u16) -> Result<Vec<u8>, Status> {
        let at = self.ended.iter().position(|it| it.0 == number).unwrap();
        let (_, status, bytes) = self.ended.swap_remove(at);
        match status.is_success() {
            true => Ok(bytes),
            false => Err(status),
        }
    }
}
