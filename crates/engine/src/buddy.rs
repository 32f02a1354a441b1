//! A buddy allocator over the arena's address range: who owns which bytes. Pure bookkeeping.
//!
//! # Contract
//! Blocks are 4 KiB…1 MiB, powers of two, aligned to their size. Of each size some freed blocks
//! stay as they are: the next request of that size takes the last one, whose memory is the
//! likeliest to be in the cache, and splits nothing. They are joined with their buddies once a
//! request finds no block: so no request fails for which there is room. No memory is allocated
//! after `new`; a call takes at most one step per block size, and one for each block that it joins.
//!
//! # Limits
//! The arena's size is rounded down to 4 KiB, and to 2³² − 1 pages (16 TiB). `UNJOINED_MAX`
//! freed blocks of a size are not joined.
//!
//! # Origin
//! Knuth, The Art of Computer Programming, vol. 1, 2.5 (the buddy system); Barkley and Lee, A Lazy
//! Buddy System Bounded by Two Coalescing Delays per Class, 1989.
use crate::limits::BUFFER_MAX;
use crate::machine::Span;
use alloc::vec;
use alloc::vec::Vec;

const PAGE: u32 = 4096;
const ORDERS: usize = (BUFFER_MAX / PAGE).ilog2() as usize + 1;
const NONE: u32 = u32::MAX;
/// Freed blocks of one size that are not joined.
const UNJOINED_MAX: u32 = 128;

/// State of a block, at its first page; other pages are `INSIDE`.
const INSIDE: u8 = 0;
const UNJOINED: u8 = 0x20;
const FREE: u8 = 0x40;
const USED: u8 = 0x80;

/// Owner of `bytes` of arena; blocks of 4 KiB…1 MiB, powers of two, aligned to their size.
pub struct Buddy {
    /// `FREE`, `UNJOINED` or `USED`, `| order`, at the first page of each block.
    state: Vec<u8>,
    /// Neighbours of a free block in the list of its order.
    links: Vec<Links>,
    /// First free block of each order.
    heads: [u32; ORDERS],
    /// Of each order, the freed blocks that are not joined, the last one first.
    unjoined: [Unjoined; ORDERS],
    free_pages: u64,
}

#[derive(Clone, Copy, Default)]
struct Links {
    next: u32,
    prev: u32,
}

/// A stack of blocks.
#[derive(Clone, Copy)]
struct Unjoined {
    head: u32,
    count: u32,
}

impl Buddy {
    /// Everything free.
    pub fn new(bytes: u64) -> Self {
        let pages = (bytes / u64::from(PAGE)).min(u64::from(NONE) - 1) as u32;
        let mut buddy = Buddy {
            state: vec![INSIDE; pages as usize],
            links: vec![Links::default(); pages as usize],
            heads: [NONE; ORDERS],
            unjoined: [Unjoined {
                head: NONE,
                count: 0,
            }; ORDERS],
            free_pages: u64::from(pages),
        };
        // From the end, so that the lowest addresses are handed out first.
        let mut end = pages;
        while end > 0 {
            let order = (end.trailing_zeros() as usize).min(ORDERS - 1);
            end -= 1 << order;
            buddy.insert(end, order);
        }
        buddy
    }

    /// A block of at least `len` bytes, as a span of exactly `len`. `None`: no room now (not an
    /// error of any device, T6).
    ///
    /// # Panics
    /// If `len` is above [`BUFFER_MAX`]: there never is room for that.
    #[inline]
    pub fn allocate(&mut self, len: u32) -> Option<Span> {
        let wanted = order_of(len);
        let page = match self.unjoined[wanted].head {
            NONE => self.split(wanted)?,
            page => self.pop(page, wanted),
        };
        self.state[page as usize] = USED | wanted as u8;
        self.free_pages -= 1 << wanted;
        Some(Span {
            at: u64::from(page) * u64::from(PAGE),
            len,
        })
    }

    /// Whether [`Self::allocate`] would give out `len` bytes now.
    pub fn has_room(&mut self, len: u32) -> bool {
        let order = order_of(len);
        self.unjoined[order].head != NONE || self.find(order).is_some()
    }

    /// Takes back a span as `allocate` gave it.
    ///
    /// # Panics
    /// If that span is not in use.
    #[inline]
    pub fn free(&mut self, span: Span) {
        let order = order_of(span.len);
        let page = (span.at / u64::from(PAGE)) as u32;
        let state = &mut self.state[page as usize];
        assert!(*state == USED | order as u8, "freed what is not in use");
        self.free_pages += 1 << order;
        let unjoined = &mut self.unjoined[order];
        if unjoined.count == UNJOINED_MAX {
            return self.join(page, order);
        }
        *state = UNJOINED | order as u8;
        self.links[page as usize].next = unjoined.head;
        unjoined.head = page;
        unjoined.count += 1;
    }

    /// Takes the last of the freed blocks of an order that are not joined: this page.
    #[inline]
    fn pop(&mut self, page: u32, order: usize) -> u32 {
        let unjoined = &mut self.unjoined[order];
        unjoined.head = self.links[page as usize].next;
        unjoined.count -= 1;
        page
    }

    /// Takes a block of an order out of a larger one, or the last of its own.
    #[inline(never)]
    fn split(&mut self, wanted: usize) -> Option<u32> {
        let mut order = self.find(wanted)?;
        let page = self.heads[order];
        self.remove(page, order);
        while order > wanted {
            order -= 1;
            self.insert(page + (1 << order), order);
        }
        Some(page)
    }

    /// The smallest order of which a joined block is free, and that is enough; all freed blocks are
    /// joined where it takes that.
    fn find(&mut self, wanted: usize) -> Option<usize> {
        let find = |heads: &[u32; ORDERS]| (wanted..ORDERS).find(|order| heads[*order] != NONE);
        find(&self.heads).or_else(|| {
            self.join_all();
            find(&self.heads)
        })
    }

    fn join_all(&mut self) {
        for order in 0..ORDERS {
            while self.unjoined[order].head != NONE {
                let page = self.pop(self.unjoined[order].head, order);
                self.join(page, order);
            }
        }
    }

    /// Joins a block with its buddy, if that is free, and so on.
    fn join(&mut self, mut page: u32, mut order: usize) {
        self.state[page as usize] = INSIDE;
        while order < ORDERS - 1 {
            let buddy = page ^ (1 << order);
            if self.state.get(buddy as usize) != Some(&(FREE | order as u8)) {
                break;
            }
            self.remove(buddy, order);
            page &= !(1 << order);
            order += 1;
        }
        self.insert(page, order);
    }

    /// Bytes in no block; perhaps not in one piece.
    pub fn free_bytes(&self) -> u64 {
        self.free_pages * u64::from(PAGE)
    }

    /// Bytes that a buffer of `len` takes from the arena.
    pub fn block_bytes(len: u32) -> u64 {
        u64::from(PAGE) << order_of(len)
    }

    fn insert(&mut self, page: u32, order: usize) {
        let next = self.heads[order];
        self.links[page as usize] = Links { next, prev: NONE };
        if next != NONE {
            self.links[next as usize].prev = page;
        }
        self.heads[order] = page;
        self.state[page as usize] = FREE | order as u8;
    }

    fn remove(&mut self, page: u32, order: usize) {
        let Links { next, prev } = self.links[page as usize];
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        if prev == NONE {
            self.heads[order] = next;
        } else {
            self.links[prev as usize].next = next;
        }
        self.state[page as usize] = INSIDE;
    }
}

#[inline]
fn order_of(len: u32) -> usize {
    assert!(len <= BUFFER_MAX, "a buffer of {len} bytes");
    len.div_ceil(PAGE).next_power_of_two().ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u32),
        Free(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let len = prop_oneof![1u32..=16_384, 0u32..=BUFFER_MAX];
        let step = prop_oneof![
            3 => len.prop_map(Step::Allocate),
            2 => any::<prop::sample::Index>().prop_map(Step::Free),
        ];
        prop::collection::vec(step, 1..400)
    }

    /// Whether `blocks` (address, bytes; in use) leave a hole of `bytes` aligned to its size.
    fn has_hole(blocks: &[(u64, u64)], bytes: u64, arena: u64) -> bool {
        (0..arena / bytes).map(|i| i * bytes).any(|at| {
            blocks
                .iter()
                .all(|(b, len)| at + bytes <= *b || b + len <= at)
        })
    }

    #[test]
    fn unjoined_blocks_are_joined_for_a_large_one() {
        let mut buddy = Buddy::new(u64::from(BUFFER_MAX));
        let pages = BUFFER_MAX / PAGE;
        let spans: Vec<_> = (0..pages).filter_map(|_| buddy.allocate(PAGE)).collect();
        assert_eq!(spans.len(), pages as usize);
        spans.into_iter().for_each(|span| buddy.free(span));
        let unjoined = buddy.unjoined[0].count;
        assert_eq!(unjoined, UNJOINED_MAX);
        assert!(buddy.has_room(BUFFER_MAX));
        let whole = Span {
            at: 0,
            len: BUFFER_MAX,
        };
        assert_eq!(buddy.allocate(BUFFER_MAX), Some(whole));
    }

    proptest! {
        #[test]
        fn blocks_are_aligned_disjoint_and_all_return(
            steps in steps(), pages in 0u64..700,
        ) {
            let arena = pages * 4096 + 123;
            let mut buddy = Buddy::new(arena);
            let mut held: Vec<Span> = Vec::new();
            for step in steps {
                let block = |span: &Span| (span.at, Buddy::block_bytes(span.len));
                let blocks: Vec<_> = held.iter().map(block).collect();
                match step {
                    Step::Allocate(len) => {
                        let bytes = Buddy::block_bytes(len);
                        prop_assert!(bytes >= u64::from(len) && bytes.is_power_of_two());
                        let has_room = buddy.has_room(len);
                        let span = buddy.allocate(len);
                        prop_assert_eq!(span.is_some(), has_room);
                        prop_assert_eq!(span.is_some(), has_hole(&blocks, bytes, pages * 4096));
                        let Some(span) = span else { continue };
                        prop_assert_eq!((span.len, span.at % bytes), (len, 0));
                        prop_assert!(span.at + bytes <= pages * 4096);
                        for (at, len) in blocks {
                            prop_assert!(span.at + bytes <= at || at + len <= span.at);
                        }
                        held.push(span);
                    }
                    Step::Free(_) if held.is_empty() => {}
                    Step::Free(index) => buddy.free(held.swap_remove(index.index(held.len()))),
                }
                let used: u64 = held.iter().map(|s| Buddy::block_bytes(s.len)).sum();
                prop_assert_eq!(buddy.free_bytes(), pages * 4096 - used);
            }
            held.into_iter().for_each(|span| buddy.free(span));
            for _ in 0..pages / 256 {
                prop_assert!(buddy.allocate(BUFFER_MAX).is_some(), "joined again");
            }
        }
    }

    #[test]
    fn the_last_freed_is_the_first_given() {
        let mut buddy = Buddy::new(1 << 20);
        let spans: Vec<_> = (0..4).filter_map(|_| buddy.allocate(4096)).collect();
        assert_eq!(
            spans.iter().map(|s| s.at).collect::<Vec<_>>(),
            [0, 4096, 8192, 12_288]
        );
        buddy.free(spans[2]);
        assert_eq!(buddy.allocate(100), Some(Span { at: 8192, len: 100 }));
    }

    #[test]
    #[should_panic(expected = "not in use")]
    fn a_double_free_is_caught() {
        let mut buddy = Buddy::new(1 << 20);
        let span = buddy.allocate(4096).unwrap();
        buddy.free(span);
        buddy.free(span);
    }
}
