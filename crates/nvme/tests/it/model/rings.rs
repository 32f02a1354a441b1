//! Both ends of a queue in shared memory against a side that writes while its words are read.
//!
//! The memory changes by the tape at each load: before it, so that what was checked may differ
//! from what is read next, and after it. The model checks: an end reads and writes nothing but what
//! its part of the queue says, each word of an entry once; a command that passes the check stays in
//! its namespace and rights; a data pointer that passes the walk has as many bytes as the command,
//! and takes a bounded number of words; no command ends twice.
use super::tape::Tape;
use nvme::limits::SGL_DESCRIPTORS_MAX;
use nvme::queue::check::{self, Checked, Namespace, Order, Trust};
use nvme::queue::pointer::{self, Form, List, PAGE, Piece};
use nvme::queue::{Cids, CqConsumer, CqProducer, Entry, Place, SharedMemory};
use nvme::queue::{SqConsumer, SqProducer};
use nvme::wire::sqe::nvm;
use nvme::wire::{Cqe, Status};
use std::cell::{Cell, RefCell};
use std::ops::Range;

const SQ: Place = Place {
    entries_at: 256,
    doorbell_at: 0,
    entries: 5,
};
const CQ: Place = Place {
    entries_at: 1024,
    doorbell_at: 128,
    entries: 5,
};
const LISTS: Range<usize> = 4096..4 * 4096;
const BYTES: usize = LISTS.end;
/// Where the lists and the data memory begin for data pointers, and how long the latter is.
const LISTS_ADDRESS: u64 = 1 << 40;
const DATA_ADDRESS: u64 = 2 << 40;
const DATA_BYTES: u64 = 1 << 22;
const TRANSFER_MAX: u32 = 1 << 20;
const OPCODES: [u8; 9] = [
    nvm::FLUSH,
    nvm::WRITE,
    nvm::READ,
    nvm::WRITE_ZEROES,
    nvm::DATASET_MANAGEMENT,
    check::CANCEL,
    // Compare, Verify, and one of a vendor's.
    0x05,
    0x0c,
    0x80,
];

/// The memory, and what an end did to it since it was last asked.
struct Memory<'a> {
    words: Vec<Cell<u64>>,
    tape: RefCell<Tape<'a>>,
    loads: RefCell<Vec<usize>>,
    stores: RefCell<Vec<usize>>,
}

impl<'a> Memory<'a> {
    fn new(tape: Tape<'a>) -> Self {
        Self {
            words: vec![Cell::new(0); BYTES / 8],
            tape: RefCell::new(tape),
            loads: RefCell::default(),
            stores: RefCell::default(),
        }
    }

    /// The other side writes, if the tape says so: where this side is about to read or has just
    /// read, to the doorbells, or anywhere.
    fn strike(&self, at: usize) {
        let tape = &mut *self.tape.borrow_mut();
        let choice = tape.byte();
        let word = match choice & 0x83 {
            0x80 => at / 8,
            0x81 => [SQ.doorbell_at, CQ.doorbell_at][usize::from(choice >> 2 & 1)] / 8,
            0x82 => LISTS.start / 8 + usize::from(tape.word()) % (LISTS.len() / 8),
            0x83 => usize::from(tape.word()) % self.words.len(),
            _ => return,
        };
        self.words[word].set(value(tape, choice >> 4));
    }

    fn read(&self, at: usize) -> u64 {
        assert!(
            at.is_multiple_of(4) && at < BYTES,
            "{at}: outside of the memory"
        );
        self.strike(at);
        let word = self.words[at / 8].get();
        self.loads.borrow_mut().push(at);
        self.strike(at);
        word
    }

    fn write(&self, at: usize, value: u64) {
        assert!(
            at.is_multiple_of(4) && at < BYTES,
            "{at}: outside of the memory"
        );
        self.words[at / 8].set(value);
        self.stores.borrow_mut().push(at);
    }

    /// Places that were loaded and stored since the last call.
    fn did(&self) -> (Vec<usize>, Vec<usize>) {
        (self.loads.take(), self.stores.take())
    }
}

/// Something that hurts more often than eight bytes from the tape would.
fn value(tape: &mut Tape<'_>, choice: u8) -> u64 {
    match choice & 3 {
        0 => u64::from(tape.byte()),
        1 => LISTS_ADDRESS + u64::from(tape.word()),
        2 => DATA_ADDRESS + u64::from(tape.word()) * 256,
        _ => u64::from(tape.long()) | u64::from(tape.long()) << 32,
    }
}

impl SharedMemory for Memory<'_> {
    fn load(&self, at: usize) -> u64 {
        self.read(at)
    }
    fn store(&self, at: usize, value: u64) {
        self.write(at, value);
    }
    fn load_acquire(&self, at: usize) -> u64 {
        self.read(at)
    }
    fn store_release(&self, at: usize, value: u64) {
        self.write(at, value);
    }
    fn load_word(&self, at: usize) -> u32 {
        self.read(at) as u32
    }
    fn store_word(&self, at: usize, value: u32) {
        self.write(at, value.into());
    }
    fn fence(&self) {}
}

/// First byte: which side is ours. Then operations of the other side, and turns of ours.
pub fn run(data: &[u8]) {
    let Some((&side, rest)) = data.split_first() else {
        return;
    };
    let memory = Memory::new(Tape::new(rest));
    match side & 1 {
        0 => controller(&memory, side),
        _ => host(&memory),
    }
}

fn next(memory: &Memory<'_>) -> Option<u8> {
    memory.tape.borrow_mut().operation()
}

/// Our controller, their host.
fn controller(memory: &Memory<'_>, side: u8) {
    let trust = [Trust::Mediated, Trust::Trusted][usize::from(side >> 1 & 1)];
    let (mut sq, mut cq) = (SqConsumer::new(SQ), CqProducer::new(CQ));
    // Most an input has: each takes one byte of the tape at least.
    while let Some(operation) = next(memory) {
        attack(memory, operation);
        if operation & 7 >= 5 && !turn(memory, &mut sq, &mut cq, trust) {
            return;
        }
    }
}

/// Something that the other side does before our next turn.
fn attack(memory: &Memory<'_>, operation: u8) {
    let tape = &mut *memory.tape.borrow_mut();
    let slot = usize::from(operation >> 4) % usize::from(SQ.entries);
    match operation & 7 {
        0 | 1 => {
            let entry = command(tape, operation & 1 != 0, memory);
            for (word, value) in entry.into_iter().enumerate() {
                memory.words[(SQ.entries_at + 64 * slot) / 8 + word].set(value);
            }
        }
        2 => memory.words[SQ.doorbell_at / 8].set(slot as u64),
        3 => memory.words[CQ.doorbell_at / 8].set(slot as u64),
        4 => {
            let word = usize::from(tape.word()) % memory.words.len();
            memory.words[word].set(value(tape, operation >> 4));
        }
        _ => {}
    }
}

/// A command that means something: opcode, pointers and blocks by the tape; `built`: the pointer
/// is one that a host builds, over a list of its own.
fn command(tape: &mut Tape<'_>, built: bool, memory: &Memory<'_>) -> Entry {
    let mut entry = [0; 8];
    let opcode = OPCODES[usize::from(tape.byte()) % OPCODES.len()];
    let flags = u64::from(tape.byte());
    entry[0] = u64::from(opcode) | u64::from(tape.word()) << 16 | (flags & 3) << 32;
    let blocks = u64::from(tape.byte());
    (entry[5], entry[6]) = (flags >> 2, blocks);
    if built {
        let form = [Form::Auto, Form::Prp, Form::Sgl][usize::from(tape.byte()) % 3];
        let count = usize::from(tape.byte() & 15) + 1;
        let each = ((blocks as u32 + 1) * 512).div_ceil(count as u32);
        let pieces: Vec<Piece> = (0..count as u64)
            .map(|n| Piece {
                address: DATA_ADDRESS + n * 8192 + (flags & 0xfc) * u64::from(form == Form::Sgl),
                len: each,
            })
            .collect();
        let list = List {
            address: LISTS_ADDRESS,
            store: |word: usize, value| memory.words[LISTS.start / 8 + word].set(value),
        };
        // Where no such pointer can be built the entry is as good as any other.
        let _ = pointer::build(&mut entry, &pieces, form, list);
    } else {
        entry[0] |= u64::from(tape.byte() & 3) << 14;
        (entry[3], entry[4]) = (value(tape, 2), value(tape, (flags >> 4) as u8));
    }
    entry
}

/// A turn as the broker's lane does it; `false`: the queue was given up.
fn turn(memory: &Memory<'_>, sq: &mut SqConsumer, cq: &mut CqProducer, trust: Trust) -> bool {
    memory.did();
    let Ok(available) = sq.available(memory) else {
        return false;
    };
    assert!(available < SQ.entries);
    let Ok(room) = cq.room(memory, available) else {
        return false;
    };
    assert!(room < CQ.entries);
    let (loads, stores) = memory.did();
    let doorbells = [SQ.doorbell_at, CQ.doorbell_at];
    assert!(loads.iter().all(|at| doorbells.contains(at)) && stores.is_empty());
    for _ in 0..available.min(room) {
        let head = usize::from(sq.head());
        let entry = sq.fetch(memory).expect("as many as were said");
        let begin = SQ.entries_at + 64 * head;
        let words: Vec<usize> = (0..8).map(|word| begin + 8 * word).collect();
        assert_eq!(memory.did(), (words, vec![]), "each word of an entry once");
        let status = execute(memory, &entry, trust);
        let cqe = Cqe {
            result: 0,
            sqhd: sq.head(),
            sqid: 1,
            cid: (entry[0] >> 16) as u16,
            status: status.err().unwrap_or(Status::SUCCESS),
        };
        memory.did();
        cq.post(memory, &cqe);
        let (loads, stores) = memory.did();
        let ring = CQ.entries_at..CQ.entries_at + 16 * usize::from(CQ.entries);
        assert!(loads.is_empty() && stores.iter().all(|at| ring.contains(at)));
        assert!(
            stores.len() == 2 && stores[1] == stores[0] + 8,
            "the tag last"
        );
    }
    true
}

fn execute(memory: &Memory<'_>, entry: &Entry, trust: Trust) -> Result<(), Status> {
    let namespace = |read_only| Namespace {
        block_shift: 9,
        blocks: 4096,
        first: 8,
        end: 4000,
        read_only,
    };
    let views = [Some(namespace(false)), None, Some(namespace(true))];
    let checked = check::check(entry, &views, TRANSFER_MAX, trust)?;
    stays_inside(&checked, &views);
    if checked.data == 0 {
        return Ok(());
    }
    let (mut pieces, mut words) = (Vec::new(), 0);
    let walked = pointer::walk(
        entry,
        checked.data,
        |address| {
            words += 1;
            listed(memory, address)
        },
        &mut pieces,
    );
    // A page of a list has one entry and one that leads on, at least; an SGL two words for each.
    let pages = u64::from(checked.data).div_ceil(PAGE) as usize + 1;
    assert!(words <= (2 * pages).max(2 * SGL_DESCRIPTORS_MAX + 2));
    walked?;
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
    assert_eq!(sum, u64::from(checked.data), "{pieces:?}");
    assert!(pieces.iter().all(|piece| piece.len > 0));
    Ok(())
}

/// The word of a list, or data that is taken for one; `None`: no registered memory is there.
fn listed(memory: &Memory<'_>, address: u64) -> Option<u64> {
    let offset = address.wrapping_sub(LISTS_ADDRESS);
    if offset <= LISTS.len() as u64 - 8 {
        // Words that are not aligned may be torn: those of a list of SGL descriptors.
        let at = LISTS.start + offset as usize / 8 * 8;
        return Some(memory.read(at));
    }
    let offset = address.wrapping_sub(DATA_ADDRESS);
    (offset <= DATA_BYTES - 8).then(|| value(&mut memory.tape.borrow_mut(), 3))
}

fn stays_inside(checked: &Checked, views: &[Option<Namespace>]) {
    if checked.all || matches!(checked.order, Order::Cancel { .. }) {
        assert_eq!((checked.data, checked.len), (0, 0));
        return;
    }
    let view = views[checked.namespace as usize].expect("a namespace of this client");
    let end = checked.offset + checked.len;
    assert!(end <= view.blocks << view.block_shift, "{checked:?}");
    match checked.order {
        Order::Read | Order::Write { .. } => {
            assert!(checked.data > 0 && u64::from(checked.data) == checked.len);
            assert!(checked.data <= TRANSFER_MAX);
        }
        Order::Deallocate { ranges, .. } => assert_eq!(checked.data, 16 * ranges),
        _ => assert_eq!(checked.data, 0),
    }
    let changes = match checked.order {
        Order::Read | Order::Flush => false,
        Order::Deallocate { apply, .. } => apply,
        _ => true,
    };
    assert!(!(changes && view.read_only), "{checked:?}");
    // However far a client is believed, its rights end there.
    if checked.len > 0 {
        assert!(
            checked.offset >= view.first << view.block_shift,
            "{checked:?}"
        );
        assert!(end <= view.end << view.block_shift, "{checked:?}");
    }
}

/// Our host, their controller.
fn host(memory: &Memory<'_>) {
    let (mut sq, mut cq) = (SqProducer::new(SQ, 0), CqConsumer::new(CQ));
    let mut cids: Cids<u32> = Cids::new(SQ.entries - 1);
    let (mut sent, mut open) = (0, Vec::new());
    while let Some(operation) = next(memory) {
        memory.did();
        match operation & 7 {
            0 | 1 => {
                if let Some(cid) = cids.take(sent) {
                    let entry = [u64::from(cid) << 16; 8];
                    if sq.push(memory, &entry).is_err() {
                        cids.end(cid);
                        continue;
                    }
                    open.push(sent);
                    sent += 1;
                    let (loads, stores) = memory.did();
                    let ring = SQ.entries_at..SQ.entries_at + 64 * usize::from(SQ.entries);
                    assert!(loads.is_empty() && stores.iter().all(|at| ring.contains(at)));
                }
                assert!(open.len() < usize::from(SQ.entries));
            }
            2 => assert!(sq.ring(memory) || !sq.is_pending()),
            3 | 4 => {
                // A completion that may be true: of an identifier that was given out, or nearly.
                let tape = &mut *memory.tape.borrow_mut();
                let (slot, cid) = (usize::from(operation >> 4) % 5, u64::from(tape.byte()));
                let [sqhd, phase] = [tape.byte(), tape.byte()].map(u64::from);
                let word = (CQ.entries_at + 16 * slot) / 8 + 1;
                memory.words[word].set((sqhd % 6) | (1 << 16) | (cid << 32) | (phase << 48));
            }
            _ => {
                let Some(cqe) = cq.take(memory) else { continue };
                let (loads, stores) = memory.did();
                let ring = CQ.entries_at..CQ.entries_at + 16 * usize::from(CQ.entries);
                assert!(loads.len() == 2 && loads.iter().all(|at| ring.contains(at)));
                assert!(stores.is_empty());
                if sq.fetched(cqe.sqhd).is_err() {
                    return;
                }
                let Some(token) = cids.end(cqe.cid) else {
                    return;
                };
                let at = open.iter().position(|&it| it == token);
                open.remove(at.expect("a command ended twice"));
                cq.ring(memory);
            }
        }
        assert_eq!(usize::from(cids.used()), open.len());
    }
    memory.did();
    sq.let_go(memory);
    let (loads, stores) = memory.did();
    let is_first_word = |at: &usize| {
        let offset = at.wrapping_sub(SQ.entries_at);
        offset.is_multiple_of(64) && offset / 64 < usize::from(SQ.entries)
    };
    assert!(loads.is_empty() && stores.first() == Some(&SQ.doorbell_at));
    assert!(stores[1..].iter().all(is_first_word), "{stores:?}");
}
