//! Requests by ticket, and the memory of each.
//!
//! A request's bytes lie in buffers of up to 1 MiB, cut at multiples of 1 MiB of the *volume
//! blocks'* bytes: position 0 is the first byte of the first block that the request touches.
use super::places::Places;
use crate::buddy::Buddy;
use crate::host::{Io, IoOp};
use crate::limits::BUFFER_MAX;
use crate::machine::Span;
use crate::mirror::Devices;
use crate::pipeline::{Part, Pipeline, Stage, ZeroBuffer};
use crate::slot_queues::SlotQueues;
use alloc::vec::Vec;
use block::{Key, Range};
use nbd::{Kind, Request};

/// A block that a change covers partly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edge {
    /// First byte of the block on the volume.
    pub at: u64,
    /// Range that was read.
    pub span: Span,
    /// First byte in the block that the change covers, and the first behind.
    pub from: u32,
    pub to: u32,
}

/// One request.
pub(super) struct Work {
    pub pipeline: Pipeline,
    pub client: u16,
    pub request: Request,
    /// When it began, ns.
    pub begun_ns: u64,
    /// Bytes of its blocks, as they were when the request began.
    pub block: u32,
    /// Its memory is its client's own.
    pub own: bool,
    /// Memory of it that legs of a mirror have though their I/Os have ended.
    pub debt: Option<Key>,
    first: Span,
    rest: Vec<Span>,
    pub edges: [Edge; 2],
    pub edge_count: u8,
    /// First halves of answers' pieces that aren't sent yet, and second halves that are.
    pub halves: u16,
    pub deferred: u16,
}

/// All requests.
pub(super) type Table = Places<Work>;

impl Work {
    /// None.
    pub fn new() -> Self {
        Self {
            pipeline: Pipeline::default(),
            client: 0,
            request: Request::flush(0),
            begun_ns: 0,
            block: 512,
            own: false,
            debt: None,
            first: Span::default(),
            rest: Vec::new(),
            edges: [Edge::default(); 2],
            edge_count: 0,
            halves: 0,
            deferred: 0,
        }
    }
}

impl Work {
    /// Whether it is a change that is here, or comes, and whose I/Os have not begun.
    pub fn may_begin(&self) -> bool {
        use Stage::{Cores, Data, Memory, Order};
        let waits = matches!(self.pipeline.stage(), Memory | Data | Cores | Order);
        waits && self.request.kind.is_change()
    }

    /// A request begins: which blocks of `block` bytes it touches, and which of these only partly.
    pub fn begin(&mut self, client: u16, volume: u16, request: Request, block: u32) {
        let (offset, length) = (request.offset, u64::from(request.length));
        let end = offset + length;
        let mask = !(u64::from(block) - 1);
        let down = |at: u64| at & mask;
        let up = |at: u64| (at + u64::from(block) - 1) & mask;
        (self.client, self.request) = (client, request);
        self.block = block;
        let touched = Range {
            start: down(offset),
            end: up(end),
        };
        // Blocks that are covered whole; an inner range may be empty.
        let covered = || Range {
            start: up(offset),
            end: down(end).max(up(offset)),
        };
        let (op, range) = match request.kind {
            Kind::Read => (IoOp::Read, touched),
            Kind::Write => (IoOp::Write { fua: request.fua }, touched),
            Kind::Trim => (IoOp::Deallocate, covered()),
            Kind::WriteZeroes => (IoOp::WriteZeroes { deallocate: false }, covered()),
            Kind::Flush => (IoOp::Flush, Range::new(0, 0)),
            Kind::Cache | Kind::BlockStatus { .. } => (IoOp::Read, Range::new(0, 0)),
        };
        self.pipeline.begin(volume, op, range);
        if request.fast_zero {
            self.pipeline.zero_fast();
        }
        self.own = false;
        self.edge_count = 0;
        (self.halves, self.deferred) = (0, 0);
        let is_whole = (offset | length) & !mask == 0;
        if matches!(request.kind, Kind::Write | Kind::WriteZeroes) && !is_whole {
            self.find_edges(down(offset), down(end - 1));
        }
    }

    /// A change may cover its first and its last block partly.
    #[cold]
    fn find_edges(&mut self, first: u64, last: u64) {
        let (block, offset) = (self.block, self.request.offset);
        let end = offset + u64::from(self.request.length);
        let blocks = [first, last].into_iter();
        for at in blocks.take(1 + usize::from(last != first)) {
            let from = offset.saturating_sub(at) as u32;
            let to = (end - at).min(block.into()) as u32;
            if to - from < block {
                self.edges[usize::from(self.edge_count)] = Edge {
                    at,
                    from,
                    to,
                    span: Span::default(),
                };
                self.edge_count += 1;
            }
        }
    }

    /// All of a write is here, and with it whether it must be durable.
    pub fn complete(&mut self, request: Request) {
        self.request = request;
        self.pipeline.set_fua(request.fua);
    }

    /// Position of the request's first byte.
    pub fn head(&self) -> u64 {
        match self.request.kind {
            Kind::Read | Kind::Write => self.request.offset - self.pipeline.range().start,
            _ => 0,
        }
    }

    /// The blocks that it touches, whole.
    pub fn blocks(&self, block: u32) -> (u64, u64) {
        let mask = !(u64::from(block) - 1);
        let end = self.request.offset + u64::from(self.request.length);
        (
            self.request.offset & mask,
            (end + u64::from(block) - 1) & mask,
        )
    }

    /// Bytes of data that need memory.
    #[inline]
    fn data(&self) -> u64 {
        match self.request.kind {
            Kind::Read | Kind::Write => {
                let range = self.pipeline.range();
                range.end - range.start
            }
            _ => 0,
        }
    }

    /// Bytes of the arena that it takes: for its data, and for the blocks that it covers partly.
    #[inline]
    pub fn need(&self) -> u64 {
        let data = self.data();
        let edges = u64::from(self.edge_count) * Buddy::block_bytes(self.block);
        let (whole, rest) = (data / u64::from(BUFFER_MAX), data % u64::from(BUFFER_MAX));
        let rest = if rest > 0 {
            Buddy::block_bytes(rest as u32)
        } else {
            0
        };
        whole * u64::from(BUFFER_MAX) + rest + edges
    }

    /// Takes all of its memory, or none.
    #[inline]
    pub fn allocate(&mut self, buddy: &mut Buddy) -> bool {
        if self.edge_count > 0 || !(1..=BUFFER_MAX.into()).contains(&self.data()) {
            return self.allocate_pieces(buddy);
        }
        let span = buddy.allocate(self.data() as u32);
        self.first = span.unwrap_or(self.first);
        span.is_some()
    }

    /// More than one buffer, or none.
    fn allocate_pieces(&mut self, buddy: &mut Buddy) -> bool {
        let (data, block) = (self.data(), self.block);
        let count = data.div_ceil(u64::from(BUFFER_MAX));
        self.rest.reserve((count as usize).saturating_sub(1));
        let mut taken = 0;
        for piece in 0..count {
            let left = data - piece * u64::from(BUFFER_MAX);
            let Some(span) = buddy.allocate(left.min(BUFFER_MAX.into()) as u32) else {
                break;
            };
            match piece {
                0 => self.first = span,
                _ => self.rest.push(span),
            }
            taken += 1;
        }
        let mut edges = 0;
        while taken == count && edges < self.edge_count {
            let Some(span) = buddy.allocate(block) else {
                break;
            };
            self.edges[usize::from(edges)].span = span;
            edges += 1;
        }
        if taken == count && edges == self.edge_count {
            return true;
        }
        self.give_back(taken > 0, edges, buddy);
        false
    }

    /// Takes its memory from what is its client's own, from byte `at` of the arena.
    pub fn allocate_own(&mut self, at: u64) {
        self.own = true;
        let (block, len) = (self.block, self.data() as u32);
        self.first = Span { at, len };
        let mut at = at + if len > 0 { Buddy::block_bytes(len) } else { 0 };
        for edge in &mut self.edges[..usize::from(self.edge_count)] {
            edge.span = Span { at, len: block };
            at += Buddy::block_bytes(block);
        }
    }

    /// All of its memory, of which nothing is known here any more.
    pub fn move_memory(&mut self, spans: &mut Vec<Span>) {
        let first = (self.data() > 0).then_some(self.first);
        let edges = &self.edges[..usize::from(self.edge_count)];
        spans.extend(first);
        spans.append(&mut self.rest);
        spans.extend(edges.iter().map(|edge| edge.span));
    }

    /// Gives back all of its memory, which isn't its client's own.
    #[inline]
    pub fn free(&mut self, buddy: &mut Buddy) {
        if self.edge_count > 0 || self.data() > BUFFER_MAX.into() {
            self.give_back(self.data() > 0, self.edge_count, buddy);
        } else if self.data() > 0 {
            buddy.free(self.first);
        }
    }

    fn give_back(&mut self, first: bool, edges: u8, buddy: &mut Buddy) {
        if first {
            buddy.free(self.first);
        }
        self.rest.drain(..).for_each(|span| buddy.free(span));
        let edges = &self.edges[..usize::from(edges)];
        edges.iter().for_each(|edge| buddy.free(edge.span));
    }

    /// The bytes at a position, at most `len` and at most to the end of their buffer.
    pub fn span(&self, position: u64, len: u32) -> Span {
        part(self.first, &self.rest, position, len)
    }

    /// Submits it, if it is one I/O; `false`: it is not, or the device did not take it.
    #[inline]
    pub fn submit_whole(
        &mut self,
        ticket: u32,
        source: u64,
        devices: &mut Devices,
        now_ns: u64,
    ) -> bool {
        let of = (source, ticket.into());
        self.edge_count == 0 && self.pipeline.submit_whole(of, self.first, devices, now_ns)
    }

    /// Asks for as many of its I/Os as may be; whether none is left or under way in this stage.
    pub fn pump(
        &mut self,
        ticket: u32,
        source: u64,
        zeroes: &ZeroBuffer,
        devices: &mut Devices,
        slots: &mut SlotQueues,
        now_ns: u64,
    ) -> bool {
        let (edges, count) = (&self.edges, self.edge_count);
        let (first, rest, block) = (self.first, &self.rest, self.block);
        let own_edges = match self.request.kind {
            // Those of zeroes have no data of a request around them.
            Kind::WriteZeroes => count,
            _ => 0,
        };
        let next = |pipeline: &Pipeline| {
            let asked = pipeline.asked();
            let edge = |op| {
                let edge = &edges[usize::from(asked)];
                let io = Io {
                    volume: pipeline.device(),
                    op,
                    offset: edge.at,
                    length: block,
                    span: edge.span,
                    source,
                    cookie: ticket.into(),
                };
                (io, Part::Edge)
            };
            match pipeline.stage() {
                Stage::Edges => (asked < count).then(|| edge(IoOp::Read)),
                Stage::Io if asked < own_edges => Some(edge(IoOp::Write { fua: false })),
                _ => pipeline.next_io((source, ticket.into()), zeroes, |at, len| {
                    part(first, rest, at, len)
                }),
            }
        };
        self.pipeline.pump(ticket, devices, slots, now_ns, next)
    }
}

/// The bytes at a position of a request's buffers, at most `len` and at most to the end of one.
fn part(first: Span, rest: &[Span], position: u64, len: u32) -> Span {
    let piece = (position / u64::from(BUFFER_MAX)) as usize;
    let within = (position % u64::from(BUFFER_MAX)) as u32;
    let span = match piece {
        0 => first,
        _ => rest[piece - 1],
    };
    Span {
        at: span.at + u64::from(within),
        len: len.min(BUFFER_MAX - within),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(kind: Kind, offset: u64, length: u32) -> Request {
        Request::new(0, kind, offset, length)
    }

    proptest! {
        /// Whole blocks and edges are the request's bytes, each once.
        #[test]
        fn a_change_is_its_edges_and_what_is_between(
            offset in 0u64..5000, length in 1u32..5000, zeroes: bool,
        ) {
            let kind = if zeroes { Kind::WriteZeroes } else { Kind::Write };
            let mut work = Work::new();
            work.begin(0, 0, request(kind, offset, length), 512);
            let mut covered = alloc::vec![0u8; 12_000];
            let edges = &work.edges[..usize::from(work.edge_count)];
            for edge in edges {
                prop_assert!(edge.from < edge.to && edge.to - edge.from < 512);
                (edge.from..edge.to).for_each(|b| covered[edge.at as usize + b as usize] += 1);
            }
            let is_edge = |at: u64| edges.iter().any(|edge| edge.at == at);
            let Range { start, end } = work.pipeline.range();
            let blocks = (start..end).step_by(512);
            for at in blocks.filter(|at| !is_edge(*at)) {
                (at..at + 512).for_each(|b| covered[b as usize] += 1);
            }
            for (at, times) in (0u64..).zip(covered) {
                let inside = (offset..offset + u64::from(length)).contains(&at);
                prop_assert_eq!(times, u8::from(inside), "byte {}", at);
            }
        }

        #[test]
        fn memory_is_taken_whole_and_given_back(
            offset in 0u64..10_000, length in 1u32..=(32 << 20), write: bool, room in 0u64..80,
        ) {
            let mut buddy = Buddy::new(room << 20);
            let mut work = Work::new();
            let kind = if write { Kind::Write } else { Kind::Read };
            work.begin(0, 0, request(kind, offset, length), 4096);
            let need = work.need();
            let got = work.allocate(&mut buddy);
            prop_assert_eq!(got, need <= room << 20);
            if got {
                prop_assert_eq!(buddy.free_bytes(), (room << 20) - need);
                work.free(&mut buddy);
            }
            prop_assert_eq!(buddy.free_bytes(), room << 20);
        }
    }
}
