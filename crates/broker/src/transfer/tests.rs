//! Lists that change as soon as they were read: what is executed is what was checked.
use super::*;
use queue::layout::region_address;
use std::cell::RefCell;

const LISTS: usize = 4 * 4096;
const DATA: usize = 2 << 20;
/// Where lists end: within what is copied at once.
const LISTS_LEN: usize = LISTS - 40;

/// Two regions, of lists and of data. Each byte of a list that is read leads nowhere from then on.
struct Fickle {
    bytes: RefCell<Vec<u8>>,
    /// How often each was read.
    reads: RefCell<Vec<u32>>,
}

impl Fickle {
    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|n| {
            self.reads.borrow_mut()[at + n] += 1;
            std::mem::replace(&mut self.bytes.borrow_mut()[at + n], 0xff)
        })
    }
}

impl Changing for Fickle {
    fn find(&self, address: u64, len: u32) -> Option<Part> {
        let (region, at) = region_of(address)?;
        let end = [LISTS_LEN, DATA].get(region).copied()?;
        let inside = at <= end && len as usize <= end - at;
        inside.then_some(Part { region, at, len })
    }

    fn word(&self, part: &Part) -> u64 {
        assert_eq!(part.region, 0, "data is no list");
        u64::from_le_bytes(self.read(part.at))
    }

    fn copy(&self, part: &Part, bytes: &mut [u8]) {
        assert_eq!(part.region, 0, "data is no list");
        for (at, byte) in (part.at..).zip(bytes) {
            [*byte] = self.read(at);
        }
    }
}

/// A command and its lists, which begin at this byte of theirs.
struct Case {
    entry: Entry,
    len: u32,
    lists: Vec<u8>,
}

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % below
    }
}

fn put(lists: &mut [u8], at: usize, word: u64) {
    lists[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Pages by PRPs; a list that goes on in another page where its own ends.
fn prps(random: &mut impl FnMut(u64) -> u64) -> Case {
    let (pages, mut lists) = (3 + random(254), vec![0; LISTS]);
    let mut at = 8 * random(512) as usize;
    let first = at;
    let mut next_page = 4096;
    let mut left = pages - 1;
    while left > 0 {
        if at % 4096 == 4088 && left > 1 {
            // Chained.
            put(&mut lists, at, region_address(0) + next_page as u64);
            at = next_page;
            next_page += 4096;
            continue;
        }
        put(&mut lists, at, region_address(1) + 4096 * random(512));
        at += 8;
        left -= 1;
    }
    let list = region_address(0) + first as u64;
    let entry = [1 | 1 << 32, 0, 0, region_address(1), list, 0, 0, 0];
    Case {
        entry,
        len: pages as u32 * 4096,
        lists,
    }
}

/// Pieces by an SGL of one to three segments, anywhere in memory, the last to its end. All segments
/// are aligned alike: else copies for some have words of others, which are read again for those.
fn sgl(random: &mut impl FnMut(u64) -> u64) -> Case {
    let (segments, mut lists) = (1 + random(3), vec![0; LISTS]);
    let (mut entry, mut len) = ([1 | 1 << 14 | 1 << 32, 0, 0, 0, 0, 0, 0, 0], 0);
    // Where the descriptor of the segment is to be written: at first, in the command.
    let odd = random(8) as usize;
    let (mut pointer, mut at) = (None, 8 * random(12) as usize + odd);
    for segment in 1..=segments {
        let is_last = segment == segments;
        let data = 1 + random(80);
        let bytes = 16 * (data as usize + usize::from(!is_last));
        if is_last && random(2) == 0 {
            at = LISTS_LEN - bytes - (8 - odd) % 8;
        }
        let kind = if is_last { 3_u64 } else { 2 };
        let descriptor = [region_address(0) + at as u64, bytes as u64 | kind << 60];
        match pointer {
            None => entry[3..5].copy_from_slice(&descriptor),
            Some(to) => {
                put(&mut lists, to, descriptor[0]);
                put(&mut lists, to + 8, descriptor[1]);
            }
        }
        for n in 0..data as usize {
            let piece = 1 + random(4000);
            put(
                &mut lists,
                at + 16 * n,
                region_address(1) + random(DATA as u64 - piece),
            );
            put(&mut lists, at + 16 * n + 8, piece);
            len += piece as u32;
        }
        pointer = Some(at + 16 * data as usize);
        at += bytes + 8 * random(90) as usize;
    }
    Case { entry, len, lists }
}

#[test]
fn each_word_of_a_list_is_read_once_and_what_was_read_is_what_is_moved() {
    let mut random = random(9);
    for round in 0..2000 {
        let case = match round % 2 {
            0 => prps(&mut random),
            _ => sgl(&mut random),
        };
        let lists = &case.lists;
        // As it was before anybody read it.
        let word = |address: u64| {
            let at = region_of(address)?.1;
            Some(u64::from_le_bytes(lists[at..at + 8].try_into().ok()?))
        };
        let mut pieces = Vec::new();
        pointer::walk(&case.entry, case.len, word, &mut pieces).unwrap();
        for trust in [Trust::Mediated, Trust::Trusted] {
            let memory = Fickle {
                bytes: RefCell::new(lists.clone()),
                reads: RefCell::new(vec![0; LISTS]),
            };
            let mut found = Found {
                pieces: Vec::new(),
                parts: Vec::new(),
                copied: Copied::new(),
            };
            let looked_up = found.look_up(&memory, &case.entry, case.len, trust);
            assert_eq!(looked_up, Ok(()), "round {round}, {trust:?}");
            let parts = pieces
                .iter()
                .map(|piece| memory.find(piece.address, piece.len).unwrap());
            assert!(found.parts.iter().copied().eq(parts), "round {round}");
            let reads = memory.reads.borrow();
            assert!(reads.iter().all(|&count| count <= 1), "round {round}");
            assert!(reads.contains(&1), "round {round}");
        }
    }
}
