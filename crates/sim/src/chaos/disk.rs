//! Storage of the controllers: one disk, and of each controller a cache that it may lose.
//!
//! # Contract
//! All controllers read what any has written. A block is dirty in the cache of the controller that
//! wrote it last; its flush makes that durable. A controller that [loses](Disk::lose) its cache
//! takes dirty blocks with it: each is as it was when it was last durable, or survives, at random.
//! Bytes beyond the kept blocks are zeroes, and stay so.
use super::prelude::*;
use engine::DeviceOp;

/// Bytes of a block.
pub const BLOCK: usize = 512;
/// Bytes of what is looked at together, and whose changes are counted together.
const STRETCH: usize = 64 << 10;
/// No disk is so large, bytes.
const BEYOND: u64 = 1 << 60;
/// How long a request takes where nothing is wrong, ns: at least, and at most so much more.
pub const USUAL_NS: (u64, u64) = (20_000, 100_000);

/// How long a request takes at first where they are done in turn, ns.
const IN_TURN_NS: u64 = 3_000_000;
/// For how long that becomes more, ns.
const SLOWER_NS: u64 = 6_000_000_000;

/// Zeroes that a copy leaves as a hole.
const HOLE: DeviceOp = DeviceOp::WriteZeroes { deallocate: true };

/// One disk.
#[derive(Default)]
pub struct Disk {
    bytes: Vec<u8>,
    /// As it would be after all caches were lost.
    durable: Vec<u8>,
    /// By block: whose cache it is in, from 1; 0: in none.
    dirty: Vec<u8>,
    /// Bytes that it has now: what touches more fails.
    size: usize,
    /// By [`STRETCH`]: how often it has changed, as it is and as it would be.
    changes: [Vec<u64>; 2],
    /// Bytes of what applications call a block.
    pub unit: usize,
    /// Where the first block is, bytes.
    pub base: u64,
    /// Where, of what is kept, what applications call the first block lies.
    pub data_at: usize,
    /// How long a request takes: at least, and at most so much more.
    pub delay_ns: (u64, u64),
    /// It does one request after the other, since then, ns, and each takes as long as this at last.
    pub in_turn: Option<(u64, u64)>,
    /// When it has done all that it was asked for in turn, ns.
    done_ns: u64,
    /// The requests that it does not execute.
    pub flaws: Vec<Flaw>,
    /// Controllers that have [handed over](Self::hand_over), once for each time.
    handed_over: Vec<u8>,
    /// Requests that took longer than usual.
    pub slowed: u64,
    /// Names of flaws that a request met.
    pub hit: Vec<u64>,
    unwritten: Vec<Unwritten>,
    /// The time of the last request, ns.
    now_ns: u64,
}

/// A block that a write failed to change.
struct Unwritten {
    block: u64,
    /// From when on, and until when: then a later write of the block was durable.
    from_ns: u64,
    to_ns: u64,
    /// The controller whose cache holds such a write; 0: none.
    rewritten_by: u8,
}

/// Requests that fail.
#[derive(Clone, Copy, Debug)]
pub struct Flaw {
    /// Which fault it is of.
    pub name: u64,
    /// Which requests.
    pub op: Flawed,
    /// Those that touch one of these blocks: first, and behind the last.
    pub blocks: (u64, u64),
    /// The first one only.
    pub once: bool,
    /// One of so many.
    pub of: u64,
    /// The error that they end with.
    pub error: DeviceError,
}

/// Kinds of requests that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flawed {
    Reads,
    Writes,
    /// Reads, changes and flushes.
    All,
}

impl Flaw {
    fn concerns(&self, request: &DeviceRequest) -> bool {
        let op = match request.op {
            DeviceOp::Read => self.op != Flawed::Writes,
            DeviceOp::Write { .. } | HOLE => self.op != Flawed::Reads,
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => self.op == Flawed::All,
            _ => return self.op == Flawed::All,
        };
        let blocks = blocks_of(request);
        op && blocks.start < self.blocks.1 && self.blocks.0 < blocks.end
    }
}

impl Disk {
    /// Zeroes.
    pub fn new(blocks: u64) -> Self {
        let bytes = vec![0; blocks as usize * BLOCK];
        Self {
            durable: bytes.clone(),
            dirty: vec![0; blocks as usize],
            changes: [(); 2].map(|()| vec![0; bytes.len().div_ceil(STRETCH)]),
            size: usize::MAX,
            bytes,
            unit: BLOCK,
            delay_ns: USUAL_NS,
            ..Self::default()
        }
    }

    /// Sets initial contents, durable.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let range = at as usize..at as usize + bytes.len();
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.durable[range.clone()].copy_from_slice(bytes);
        for durable in [false, true] {
            self.count(durable, range.clone());
        }
    }

    fn count(&mut self, durable: bool, range: core::ops::Range<usize>) {
        let stretches = range.start / STRETCH..range.end.div_ceil(STRETCH);
        let changes = &mut self.changes[usize::from(durable)];
        changes[stretches].iter_mut().for_each(|it| *it += 1);
    }

    /// How often [what is there](Self::contents) in this range, or near it, has changed: as long as
    /// that is the same, so is what is there.
    pub fn changes(&self, durable: bool, range: core::ops::Range<usize>) -> u64 {
        let stretches = range.start / STRETCH..range.end.div_ceil(STRETCH);
        self.changes[usize::from(durable)][stretches].iter().sum()
    }

    /// Sets durable contents of an earlier time: a snapshot is put back.
    pub fn put_back(&mut self, bytes: &[u8]) {
        self.put(0, bytes);
        self.dirty.fill(0);
    }

    /// It ends at this byte from now on: what lay behind that is gone, durably.
    pub fn shrink(&mut self, size: usize) {
        self.size = self.size.min(size);
        let range = size.min(self.bytes.len())..self.bytes.len();
        self.bytes[range.clone()].fill(0);
        self.durable[range.clone()].fill(0);
        self.dirty[range.start / BLOCK..].fill(0);
        for durable in [false, true] {
            self.count(durable, range.clone());
        }
    }

    /// It is as large as ever, with zeroes where something is gone.
    pub fn grow(&mut self) {
        self.size = usize::MAX;
    }

    /// Returns the contents; `durable`: those after a loss of all caches.
    pub fn contents(&self, durable: bool) -> &[u8] {
        match durable {
            true => &self.durable,
            false => &self.bytes,
        }
    }

    /// Controller `by` must not be used any more, and its dirty blocks pass to others: flushes of
    /// the volume do not reach it. The array takes care of that itself: blocks in its cache, and
    /// commands that it still executes, are durable at once.
    pub fn hand_over(&mut self, by: u8) {
        self.flush(by);
        self.handed_over.push(by);
    }

    /// Controller `by` may be used again.
    pub fn take_back(&mut self, by: u8) {
        if let Some(at) = self.handed_over.iter().position(|it| *it == by) {
            self.handed_over.swap_remove(at);
        }
    }

    /// A request by what lies where on the disk; what is before its first block is far behind.
    pub fn locate(&self, request: DeviceRequest) -> DeviceRequest {
        let offset = request.offset.checked_sub(self.base);
        DeviceRequest {
            offset: offset.unwrap_or(BEYOND),
            ..request
        }
    }

    /// When a request is executed that it is asked for now, ns.
    pub fn due_ns(&mut self, now_ns: u64, random: &mut Random) -> u64 {
        let (least_ns, more_ns) = self.delay_ns;
        let usual = (least_ns, more_ns) == USUAL_NS && self.in_turn.is_none();
        self.slowed += u64::from(!usual);
        let Some((since_ns, most_ns)) = self.in_turn else {
            return now_ns + least_ns + random.up_to(more_ns);
        };
        let passed_ns = (now_ns - since_ns).min(SLOWER_NS);
        let each_ns = IN_TURN_NS + most_ns.saturating_sub(IN_TURN_NS) * passed_ns / SLOWER_NS;
        self.done_ns = self.done_ns.max(now_ns) + each_ns;
        self.done_ns
    }

    /// Another flaw, of blocks as applications count them.
    pub fn add(&mut self, flaw: Flaw) {
        let base = (self.data_at / BLOCK) as u64;
        let at = |block: u64| block.saturating_add(base);
        let blocks = (at(flaw.blocks.0), at(flaw.blocks.1));
        self.flaws.push(Flaw { blocks, ..flaw });
    }

    /// First word of an application's block.
    pub fn tag(&self, block: u64) -> u64 {
        let at = self.data_at + block as usize * self.unit;
        let word = self.bytes[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(word)
    }

    /// Executes a request of controller `by`, with its memory as it is now.
    ///
    /// # Errors
    /// A compare found a difference; or a [`Flaw`] has it: then it was done in part, or not at all.
    pub fn execute(
        &mut self,
        by: u8,
        request: &DeviceRequest,
        memory: &mut dyn Memory,
        random: &mut Random,
        now_ns: u64,
    ) -> Result<(), DeviceError> {
        self.now_ns = now_ns;
        let end = request.offset.saturating_add(request.length);
        if request.op != DeviceOp::Flush && end > self.size as u64 {
            return Err(DeviceError::Os(5));
        }
        let mut flaws = self.flaws.iter().filter(|flaw| flaw.concerns(request));
        if let Some(flaw) = flaws.find(|flaw| random.up_to(flaw.of - 1) == 0).copied() {
            self.flaws.retain(|it| !(it.once && it.name == flaw.name));
            if !self.hit.contains(&flaw.name) {
                self.hit.push(flaw.name);
            }
            let part = DeviceRequest {
                length: random.up_to(request.length / BLOCK as u64) * BLOCK as u64,
                ..*request
            };
            if matches!(request.op, DeviceOp::Write { .. } | HOLE) && part.length > 0 {
                let span = engine::Span {
                    len: part.length as u32,
                    ..request.span
                };
                self.perform(by, &DeviceRequest { span, ..part }, memory)?;
            }
            if matches!(request.op, DeviceOp::Write { .. } | HOLE) {
                self.note_unwritten(request);
            }
            return Err(flaw.error);
        }
        self.perform(by, request, memory)
    }

    fn perform(
        &mut self,
        by: u8,
        request: &DeviceRequest,
        memory: &mut dyn Memory,
    ) -> Result<(), DeviceError> {
        let from = (request.offset as usize).min(self.bytes.len());
        let range = from..(from + request.length as usize).min(self.bytes.len());
        match request.op {
            DeviceOp::Read => {
                let into = memory.bytes_mut(request.span);
                into[range.len()..].fill(0);
                into[..range.len()].copy_from_slice(&self.bytes[range]);
            }
            DeviceOp::Write { fua } => {
                self.take_over(by, range.clone());
                let from = &memory.bytes(request.span)[..range.len()];
                self.bytes[range.clone()].copy_from_slice(from);
                self.count(false, range.clone());
                self.changed(by, fua, range);
            }
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => {
                self.take_over(by, range.clone());
                self.bytes[range.clone()].fill(0);
                self.count(false, range.clone());
                self.changed(by, false, range);
            }
            DeviceOp::Flush => self.flush(by),
            DeviceOp::Compare if self.bytes[range] == *memory.bytes(request.span) => {}
            DeviceOp::Compare => return Err(DeviceError::Mismatch),
        }
        Ok(())
    }

    fn note_unwritten(&mut self, request: &DeviceRequest) {
        for block in blocks_of(request) {
            let is_open = |it: &&mut Unwritten| it.block == block && it.to_ns == u64::MAX;
            match self.unwritten.iter_mut().find(is_open) {
                Some(it) => it.rewritten_by = 0,
                None => self.unwritten.push(Unwritten {
                    block,
                    from_ns: self.now_ns,
                    to_ns: u64::MAX,
                    rewritten_by: 0,
                }),
            }
        }
    }

    /// Whether a write to this block, as applications count them, had failed, and no later one was
    /// durable, at some moment of this time.
    pub fn is_unwritten(&self, block: u64, from_ns: u64, to_ns: u64) -> bool {
        let block = block + (self.data_at / BLOCK) as u64;
        let mut of_block = self.unwritten.iter().filter(|it| it.block == block);
        of_block.any(|it| it.from_ns <= to_ns && from_ns <= it.to_ns)
    }

    /// Dirty blocks of another controller get to the disk before they are overwritten.
    fn take_over(&mut self, by: u8, range: core::ops::Range<usize>) {
        for block in range.start / BLOCK..range.end / BLOCK {
            if self.dirty[block] != by && self.dirty[block] != 0 {
                self.keep(block);
            }
        }
    }

    fn changed(&mut self, by: u8, durable: bool, range: core::ops::Range<usize>) {
        let durable = durable || self.handed_over.contains(&by);
        let blocks = (range.start / BLOCK) as u64..(range.end / BLOCK) as u64;
        for it in self.unwritten.iter_mut() {
            if blocks.contains(&it.block) && it.to_ns == u64::MAX {
                it.rewritten_by = by;
            }
        }
        for block in range.start / BLOCK..range.end / BLOCK {
            self.dirty[block] = if durable { 0 } else { by };
            if durable {
                self.keep(block);
            }
        }
    }

    fn keep(&mut self, block: usize) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        self.durable[range.clone()].copy_from_slice(&self.bytes[range.clone()]);
        self.count(true, range);
        for it in self.unwritten.iter_mut() {
            if it.block == block as u64 && it.rewritten_by != 0 && it.to_ns == u64::MAX {
                it.to_ns = self.now_ns;
            }
        }
    }

    fn flush(&mut self, by: u8) {
        const BLOCKS: usize = STRETCH / BLOCK;
        for first in (0..self.dirty.len()).step_by(BLOCKS) {
            let end = self.dirty.len().min(first + BLOCKS);
            // Most have nothing, and that is soon seen.
            if !self.dirty[first..end].contains(&by) {
                continue;
            }
            for block in first..end {
                if self.dirty[block] == by {
                    self.dirty[block] = 0;
                    self.keep(block);
                }
            }
        }
    }

    /// Controller `by` loses its cache; how many blocks went back.
    pub fn lose(&mut self, by: u8, random: &mut Random) -> u64 {
        let mut lost = 0;
        // A write that was lost makes no block good.
        let theirs = |it: &&mut Unwritten| it.rewritten_by == by && it.to_ns == u64::MAX;
        for it in self.unwritten.iter_mut().filter(theirs) {
            it.rewritten_by = 0;
        }
        for block in 0..self.dirty.len() {
            if self.dirty[block] != by {
                continue;
            }
            self.dirty[block] = 0;
            if random.up_to(1) == 0 {
                self.keep(block); // it had got there by itself
            } else {
                let range = block * BLOCK..(block + 1) * BLOCK;
                self.bytes[range.clone()].copy_from_slice(&self.durable[range.clone()]);
                self.count(false, range);
                lost += 1;
            }
        }
        lost
    }
}

/// The blocks of the disk that a request touches.
fn blocks_of(request: &DeviceRequest) -> core::ops::Range<u64> {
    let block = BLOCK as u64;
    request.offset / block..(request.offset + request.length) / block
}

/// A block with the tag in every word.
pub fn fill(bytes: &mut [u8], tag: u64) {
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&tag.to_le_bytes());
    }
}

/// The tag of a block; of one that is torn or damaged, a tag that no write has.
pub fn tag(bytes: &[u8]) -> Tag {
    let Some(first) = bytes.first_chunk() else {
        return BLANK;
    };
    // All words are the same if each is the one after it.
    match bytes[8..] == bytes[..bytes.len() - 8] {
        true => Tag(u64::from_le_bytes(*first)),
        false => Tag(u64::MAX),
    }
}
