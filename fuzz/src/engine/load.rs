//! I/O of a host whose every end is awaited, and whose bytes are checked where they are known.
use super::common::{HostCore, World, fill};
use engine::Span;
use engine::host::{Io, IoDone, IoOp};
use std::cell::RefCell;

/// I/Os under way at most.
pub const SLOTS: usize = 8;
/// Places of each slot that are written and read.
const PARTS: u64 = 4;
/// Largest I/O, and the room for each in the arena.
pub const ROOM: u64 = 64 << 10;

/// Knowledge of one place: the version that a read must find. `None`: a write may or may not
/// have been done there.
type Known = Option<u64>;

struct Slot {
    /// Operation, place, and the version that it writes.
    busy: Option<(IoOp, u64, u64)>,
    known: [Known; PARTS as usize],
    bytes: u32,
}

/// All of it.
pub struct Load {
    slots: Vec<Slot>,
    version: u64,
    /// I/Os that were taken, and that ended.
    pub begun: u64,
    /// See `begun`.
    pub ended: u64,
    /// Reads whose every byte was checked.
    pub verified: u64,
    /// Reads and writes that failed.
    pub failed: u64,
    /// Bytes are of no interest any more.
    pub blind: bool,
}

/// Which ends of I/Os can be believed.
#[derive(Clone, Copy)]
pub struct Trust {
    /// Writes that were acknowledged are done.
    pub writes: bool,
    /// Reads have the bytes that are there.
    pub reads: bool,
}

impl Load {
    /// Of a volume full of zeroes.
    pub fn new() -> Self {
        let slot = |number: usize| Slot {
            busy: None,
            known: [Some(0); PARTS as usize],
            bytes: [4096, 16 << 10, 64 << 10][number % 3],
        };
        Self {
            slots: (0..SLOTS).map(slot).collect(),
            version: 0,
            begun: 0,
            ended: 0,
            verified: 0,
            failed: 0,
            blind: false,
        }
    }

    /// Nothing is under way.
    pub fn at_rest(&self) -> bool {
        self.slots.iter().all(|slot| slot.busy.is_none())
    }

    /// One I/O, if there is a free slot and the host takes it; what it is, says `choice`.
    pub fn begin(&mut self, choice: u8, world: &mut World, node: usize, host: &RefCell<HostCore>) {
        let Some(number) = self.slots.iter().position(|slot| slot.busy.is_none()) else {
            return;
        };
        let part = u64::from(choice >> 4) % PARTS;
        let (at, length) = (number as u64 * ROOM, self.slots[number].bytes);
        let offset = (part * SLOTS as u64 + number as u64) * ROOM;
        let op = match choice & 15 {
            0 => IoOp::Flush,
            1..=6 => IoOp::Write {
                fua: choice & 1 != 0,
            },
            _ => IoOp::Read,
        };
        let none = op == IoOp::Flush;
        let io = Io {
            volume: 0,
            op,
            offset: if none { 0 } else { offset },
            length: if none { 0 } else { length },
            span: Span {
                at,
                len: if none { 0 } else { length },
            },
            source: 1,
            cookie: number as u64,
        };
        let memory = &mut world.nodes[node].arena.0[at as usize..][..length as usize];
        match op {
            IoOp::Write { .. } => fill(memory, offset, self.version + 1),
            _ => memory.fill(0xee),
        }
        if host.borrow_mut().submit(&io, world.now_ns).is_err() {
            return;
        }
        self.begun += 1;
        if let IoOp::Write { .. } = op {
            self.version += 1;
            self.slots[number].known[part as usize] = None;
        }
        self.slots[number].busy = Some((op, part, self.version));
    }

    /// One has ended.
    pub fn end(&mut self, done: &IoDone, trust: Trust, world: &World, node: usize) {
        let number = done.cookie as usize;
        let (op, part, written) = self.slots[number].busy.take().expect("an I/O ended twice");
        self.ended += 1;
        let well = done.outcome.is_done();
        self.failed += u64::from(!well && op != IoOp::Flush);
        let slot = &mut self.slots[number];
        let known = &mut slot.known[part as usize];
        if let (IoOp::Write { .. }, true, true) = (op, well, trust.writes) {
            *known = Some(written);
            return;
        }
        let Some(version) = known.filter(|_| well && op == IoOp::Read && trust.reads) else {
            return;
        };
        if self.blind {
            return;
        }
        let length = slot.bytes as usize;
        let offset = (part * SLOTS as u64 + number as u64) * ROOM;
        let memory = &world.nodes[node].arena.0[number * ROOM as usize..][..length];
        let mut want = vec![0; length];
        if version > 0 {
            fill(&mut want, offset, version);
        }
        assert!(
            memory == want,
            "wrong bytes at {offset}, read by {:?}",
            done.path
        );
        self.verified += 1;
    }
}
