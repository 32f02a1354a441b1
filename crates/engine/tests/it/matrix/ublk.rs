//! The kernel's side of a ublk queue: it has requests under way, and memory for each tag.
use super::stage::Op;
use crate::common::HOST;
use crate::nvme_server::rig::{Rig, UBLK_QUEUE};
use engine::{UblkOp, UblkRequest};
use std::collections::BTreeMap;

/// A request that has ended: its result, if it was told one, and what it has read.
type Ended = (u16, Option<i32>, Vec<u8>);

#[derive(Default)]
pub struct UblkClient {
    /// Payload of writes that wait to be copied, by tag.
    payload: BTreeMap<u16, Vec<u8>>,
    ended: Vec<Ended>,
}

impl UblkClient {
    pub fn start(&mut self, rig: &mut Rig, tag: u16, op: Op, at: (u64, u32), data: &[u8]) {
        self.start_on(rig, UBLK_QUEUE, tag, (op, at, data));
    }

    /// The same on any queue.
    pub fn start_on(
        &mut self,
        rig: &mut Rig,
        queue: u32,
        tag: u16,
        (op, at, data): (Op, (u64, u32), &[u8]),
    ) {
        let op = match op {
            Op::Read => UblkOp::Read,
            Op::Write => UblkOp::Write { fua: false },
            Op::WriteFua => UblkOp::Write { fua: true },
            Op::Flush => UblkOp::Flush,
            Op::Zeroes => UblkOp::WriteZeroes { fua: false },
            Op::Discard => UblkOp::Discard,
        };
        self.payload.insert(tag, data.to_vec());
        let request = UblkRequest {
            queue,
            tag,
            op,
            offset: at.0,
            bytes: at.1.into(),
        };
        let now_ns = rig.world.now_ns;
        let begun = rig.core.borrow_mut().begin_ublk_request(request, now_ns);
        assert!(begun, "{request:?}");
        self.exchange(rig);
    }

    /// Copies payload, and takes what has ended.
    pub fn exchange(&mut self, rig: &mut Rig) {
        let (mut core, now_ns) = (rig.core.borrow_mut(), rig.world.now_ns);
        let arena = &mut rig.world.nodes[HOST].arena.0;
        while let Some(load) = core.ublk().next_load() {
            let memory = &mut arena[load.span.at as usize..][..load.span.len as usize];
            memory.copy_from_slice(&self.payload[&load.tag]);
            core.ublk_payload_loaded(load.id, now_ns);
        }
        while let Some(done) = core.ublk().next_done() {
            let read = done.read.unwrap_or_default();
            let bytes = &arena[read.at as usize..][..read.len as usize];
            self.ended.push((done.tag, done.result, bytes.to_vec()));
            core.release_ublk_request(done.id, done.result.is_some());
        }
    }

    pub fn has_ended(&self, tag: u16) -> bool {
        self.ended.iter().any(|it| it.0 == tag)
    }

    /// The end of a request: its result, and what it has read.
    pub fn take(&mut self, tag: u16) -> (Option<i32>, Vec<u8>) {
        let at = self.ended.iter().position(|it| it.0 == tag).unwrap();
        let (_, result, bytes) = self.ended.swap_remove(at);
        (result, bytes)
    }

    /// The end of one that was told how: what it has read, or the error.
    pub fn end(&mut self, tag: u16) -> Result<Vec<u8>, i32> {
        match self.take(tag) {
            (Some(error @ ..0), _) => Err(error),
            (result, bytes) => {
                assert!(result.is_some(), "{tag} is left to the next engine");
                Ok(bytes)
            }
        }
    }
}
