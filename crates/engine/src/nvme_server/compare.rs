//! Compare: a device is read piece by piece, and each piece compared with the host's data.
//!
//! # Contract
//! The first difference ends the command with Compare Failure, and nothing more is read. A piece
//! that can't be read ends it with the status of that read.
//!
//! # Limits
//! One Compare of a namespace at a time, with [`COMPARE_BYTES`] that are the namespace's for that
//! (of one that was added later, also another's); others wait, in the order in which they came.
use super::NvmeServer;
use crate::limits::COMPARE_BYTES;
use crate::machine::{Memory, Span};
use crate::mirror::Devices;
use crate::pipeline::Stage;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use multipath::Outcome;

pub(super) struct Compares {
    /// First byte of the buffers in the arena.
    at: u64,
    /// By [`Self::line`]: Compares of namespaces; the first one has the buffer.
    lines: Vec<VecDeque<u32>>,
    /// Those that got the buffer, or of which a piece was read.
    ready: VecDeque<u32>,
}

impl Compares {
    /// None, with [`Self::bytes`] from there on in the arena.
    pub fn new(at: u64, namespaces: usize) -> Self {
        Self {
            at,
            lines: (0..namespaces.max(1)).map(|_| VecDeque::new()).collect(),
            ready: VecDeque::new(),
        }
    }

    /// Bytes of the arena that so many namespaces need.
    pub fn bytes(namespaces: usize) -> u64 {
        namespaces.max(1) as u64 * u64::from(COMPARE_BYTES)
    }

    /// At most so many bytes of a namespace's buffer.
    pub fn buffer(&self, namespace: usize, len: u32) -> Span {
        Span {
            at: self.at + self.line(namespace) as u64 * u64::from(COMPARE_BYTES),
            len: len.min(COMPARE_BYTES),
        }
    }

    /// The line of a namespace, which one that came later shares with another.
    fn line(&self, namespace: usize) -> usize {
        namespace % self.lines.len()
    }

    /// A Compare of a namespace comes.
    pub fn join(&mut self, namespace: usize, id: u32) {
        let line = self.line(namespace);
        let line = &mut self.lines[line];
        line.push_back(id);
        if line.len() == 1 {
            self.ready.push_back(id);
        }
    }

    /// A piece was read.
    pub fn read(&mut self, id: u32) {
        self.ready.push_back(id);
    }

    /// A Compare is over: the next one of its namespace gets the buffer.
    pub fn leave(&mut self, namespace: usize, id: u32) {
        self.ready.retain(|it| *it != id);
        let line = self.line(namespace);
        let line = &mut self.lines[line];
        let was_first = line.front() == Some(&id);
        line.retain(|it| *it != id);
        self.ready.extend(line.front().filter(|_| was_first));
    }
}

impl NvmeServer {
    /// Goes on with Compares, where memory can be touched; whether there were any.
    pub(super) fn compare(
        &mut self,
        devices: &mut Devices,
        memory: &mut dyn Memory,
        now_ns: u64,
    ) -> bool {
        let mut any = false;
        while let Some(id) = self.compares.ready.pop_front() {
            any = true;
            if self.request(id).pipeline.stage() == Stage::Memory {
                self.begun(devices, id, now_ns);
                continue;
            }
            let volume = self.request(id).of.device.0;
            let namespace = self.namespace_of(volume);
            let buffer = self.compares.buffer(namespace, COMPARE_BYTES);
            let request = self.request(id);
            let len = (request.pipeline.position() - u64::from(request.compared)) as u32;
            let sent = Span {
                at: request.of.span.at + u64::from(request.compared),
                len,
            };
            let found = Span { len, ..buffer };
            if memory.bytes(sent) != memory.bytes(found) {
                request.pipeline.fail(Outcome::Mismatch);
            }
            request.compared += len;
            request.pipeline.merged();
            self.pump(devices, id, now_ns);
        }
        any
    }
}
