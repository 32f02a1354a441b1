//! A mirror's life on its legs, as bytes: events that happen on all legs that are there, crashes in
//! the middle of one, legs that are away; and somebody who writes over them.
use super::tape::Tape;
use mirror::events::{New, NewLeg};
use mirror::history::Seen;
use mirror::layout::{BITMAP_AT, Geometry, Place};
use mirror::superblock::SUPERBLOCK_BYTES;
use mirror::{Id, Label, Name, Properties, Superblock};

/// An event of the mirror; the next bytes say which, and how far it comes.
pub const EVENT: u8 = 0;
/// A leg is away from now on, or back.
pub const AWAY: u8 = 1;
/// Bytes of a copy are written over; where, and with what, follows.
pub const OVER: u8 = 2;
/// A leg's copy becomes that of another leg.
pub const COPY: u8 = 3;
/// A leg is cut off.
pub const CUT: u8 = 4;

const PLACE: Place = Place {
    leg_bytes: 16 << 20,
    data_offset: 1 << 20,
    bitmap_offset: BITMAP_AT,
};
/// Where the checksum of a superblock lies.
const CHECKSUM_AT: usize = 8;

/// Content of one leg.
pub struct Leg {
    pub copies: [Vec<u8>; 2],
    pub bytes: u64,
    away: bool,
}

/// All legs, and what was said last.
pub struct Legs {
    legs: Vec<Leg>,
    state: Superblock,
    lineage: u64,
}

impl Legs {
    pub fn iter(&self) -> impl Iterator<Item = &Leg> {
        self.legs.iter()
    }
}

/// A new mirror of 1 to 4 legs, the last of them perhaps to be rebuilt.
pub fn begin(choice: u8) -> Legs {
    let count = 1 + choice % 4;
    let name = Name::cut("v0");
    let new = New {
        mirror: Id([1 + (choice >> 3 & 1); 16]),
        lineage: 1,
        name,
        properties: Properties::default(),
        geometry: Geometry {
            bytes: 4 << 20,
            block_shift: 9,
            region_shift: 20,
        },
        created_s: 1,
        heartbeat_interval_ms: 5000,
    };
    let leg = |slot| NewLeg {
        id: Id([slot + 10; 16]),
        label: Label::default(),
        in_sync: choice & 4 == 0 || slot + 1 < count,
    };
    let all: Vec<NewLeg> = (0..count).map(leg).collect();
    let state = Superblock::new(&new, &all, PLACE).expect("legs, and not too many");
    let legs = (0..count).map(|slot| Leg {
        copies: [0, 1].map(|copy| state.on(slot, PLACE).encode(copy, crc32c).to_vec()),
        bytes: PLACE.leg_bytes,
        away: false,
    });
    let legs = legs.collect();
    let lineage = 1;
    Legs {
        legs,
        state,
        lineage,
    }
}

pub fn step(operation: u8, all: &mut Legs, tape: &mut Tape) {
    let at = usize::from(operation >> 4) % all.legs.len();
    match operation % 8 {
        EVENT => event(at as u8, all, tape),
        AWAY => all.legs[at].away ^= true,
        COPY => {
            let from = tape.byte();
            let copies = all.legs[usize::from(from >> 1) % all.legs.len()]
                .copies
                .clone();
            let to = &mut all.legs[at].copies;
            to[usize::from(operation >> 3 & 1)] = copies[usize::from(from & 1)].clone();
        }
        CUT => all.legs[at].bytes = u64::from(tape.word()) << 10,
        OVER | 5.. => {
            let copy = usize::from(operation >> 3 & 1);
            let bytes = &mut all.legs[at].copies[copy];
            write_over(bytes, operation & 1 == 0, CHECKSUM_AT, tape);
        }
    }
}

/// Next superblock of the mirror, on the legs that are there; perhaps not on all of them, nor on
/// both copies of the last.
fn event(slot: u8, all: &mut Legs, tape: &mut Tape) {
    let choice = tape.byte();
    let state = &all.state;
    let position = u64::from(choice >> 4) << 18;
    let next = match choice % 7 {
        0 => {
            all.lineage += 1;
            Some(state.begun(all.lineage))
        }
        1 => Some(state.stopped()),
        2 => state.without(slot, state.seen()),
        3 => state.rebuilding(slot),
        4 => state.rebuilt_to(slot, position, state.seen()),
        5 => state.rejoined(slot),
        _ => {
            let event = state.event.saturating_sub(1);
            let lineage = state.history.lineage_of(event);
            state.without(slot, Seen { event, lineage })
        }
    };
    let Some(next) = next else { return };
    all.state = next;
    // Writings that happen: half a leg each.
    let mut left = match choice & 8 {
        0 => usize::MAX,
        _ => usize::from(tape.byte()) % (2 * all.legs.len()),
    };
    for (slot, leg) in (0..).zip(&mut all.legs) {
        for copy in [0, 1] {
            if leg.away || left == 0 {
                continue;
            }
            left -= 1;
            leg.copies[usize::from(copy)] = next.on(slot, PLACE).encode(copy, crc32c).to_vec();
        }
    }
}

/// Writes some bytes over others: where, how many, which. `repaired`: the checksum, of four bytes
/// at `checksum`, is made right again.
pub fn write_over(bytes: &mut Vec<u8>, repaired: bool, checksum: usize, tape: &mut Tape) {
    let (at, count) = (usize::from(tape.word()) % SUPERBLOCK_BYTES, tape.byte());
    if count == 0xff {
        // Only the beginning is there.
        return bytes.truncate(at);
    }
    for (byte, new) in bytes.iter_mut().skip(at).zip(tape.take(count.into())) {
        *byte = *new;
    }
    if repaired && bytes.len() >= checksum + 4 {
        bytes[checksum..checksum + 4].fill(0);
        let sum = crc32c(bytes).to_le_bytes();
        bytes[checksum..checksum + 4].copy_from_slice(&sum);
    }
}

/// CRC32C (RFC 3720, B.4), by a table.
pub fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |sum: u32, byte| {
        TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ sum >> 8
    })
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut sum = at as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0x82f6_3b78
            } else {
                sum >> 1
            };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
    }
    table
}
