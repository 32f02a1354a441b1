//! Byte ranges of several volumes, found by the bytes that they cover: for [`crate::order`].
//!
//! A balanced tree (AVL) in the order of volume and start. Each node knows how far the ranges below
//! it reach, so a query leaves out whole subtrees. To insert, remove or find one of `n` entries
//! takes O(log n) steps.
//!
//! # Limits
//! The height is at most 1.45 log2 n. Nodes are used again: the table grows to the largest number
//! of entries and stays.
use crate::Range;
use alloc::vec::Vec;

/// Place of no entry; the node there is an empty subtree.
pub(crate) const NONE: u32 = 0;
/// More than the height of 2^32 nodes.
const HEIGHT_MAX: usize = 48;

/// A range with what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub volume: u32,
    pub range: Range,
    /// The owner's name of it.
    pub owner: u32,
}

/// A byte of a volume, as a number in the order of volumes and bytes.
#[inline]
fn point(volume: u32, byte: u64) -> u128 {
    u128::from(volume) << 64 | u128::from(byte)
}

impl Entry {
    #[inline]
    fn key(&self) -> u128 {
        point(self.volume, self.range.start)
    }

    /// Of a subtree with nothing else.
    #[inline]
    fn sum(&self) -> Sum {
        Sum {
            height: 1,
            reach: point(self.volume, self.range.end),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    entry: Entry,
    /// The subtrees in front and behind; of a free node: the next free one.
    below: [u32; 2],
    sum: Sum,
}

/// Summary of a node's subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum {
    height: u32,
    /// The last end.
    reach: u128,
}

/// Nodes from the root down.
struct Path {
    nodes: [u32; HEIGHT_MAX],
    len: usize,
}

impl Path {
    const EMPTY: Self = Self {
        nodes: [NONE; HEIGHT_MAX],
        len: 0,
    };

    #[inline]
    fn push(&mut self, at: u32) {
        self.nodes[self.len] = at;
        self.len += 1;
    }

    #[inline]
    fn last(&self) -> u32 {
        match self.len {
            0 => NONE,
            len => self.nodes[len - 1],
        }
    }
}

/// The entries. See the module.
#[derive(Debug)]
pub(crate) struct Ranges {
    nodes: Vec<Node>,
    root: u32,
    free: u32,
}

impl Ranges {
    /// Empty, with room for so many before it takes more memory.
    pub fn new(entries: usize) -> Self {
        let mut nodes = Vec::with_capacity(entries + 1);
        let entry = Entry {
            volume: 0,
            range: Range::new(0, 0),
            owner: 0,
        };
        let sum = Sum {
            height: 0,
            ..entry.sum()
        };
        nodes.push(Node {
            entry,
            below: [NONE; 2],
            sum,
        });
        Self {
            nodes,
            root: NONE,
            free: NONE,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Adds an entry and returns its place. No other entry has its volume and start.
    pub fn insert(&mut self, entry: Entry) -> u32 {
        let new = self.take_node(entry);
        let (key, own) = (entry.key(), entry.sum());
        let mut path = Path::EMPTY;
        let (mut at, mut side) = (self.root, 0);
        while at != NONE {
            path.push(at);
            let node = &mut self.nodes[at as usize];
            node.sum.reach = node.sum.reach.max(own.reach);
            side = usize::from(key > node.entry.key());
            at = node.below[side];
        }
        match path.last() {
            NONE => self.root = new,
            parent => self.nodes[parent as usize].below[side] = new,
        }
        self.raise(&mut path);
        new
    }

    /// After an insertion below the last node of `path`, of which all but the heights is known.
    fn raise(&mut self, path: &mut Path) {
        while path.len > 0 {
            let at = path.last();
            path.len -= 1;
            let heights = self.nodes[at as usize].below.map(|side| self.height(side));
            if heights[0].abs_diff(heights[1]) > 1 {
                // Its height is then what it was.
                let top = self.balance(at);
                return self.replace(path.last(), at, top);
            }
            let height = 1 + heights[0].max(heights[1]);
            if core::mem::replace(&mut self.nodes[at as usize].sum.height, height) == height {
                return;
            }
        }
    }

    fn take_node(&mut self, entry: Entry) -> u32 {
        let node = Node {
            entry,
            below: [NONE; 2],
            sum: entry.sum(),
        };
        if self.free == NONE {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let at = self.free;
        self.free = self.nodes[at as usize].below[0];
        self.nodes[at as usize] = node;
        at
    }

    /// Removes the entry at a place.
    pub fn remove(&mut self, place: u32) -> Entry {
        let Node {
            entry, below, sum, ..
        } = self.nodes[place as usize];
        let key = entry.key();
        let mut path = Path::EMPTY;
        let mut at = self.root;
        while at != place {
            path.push(at);
            let node = &self.nodes[at as usize];
            at = node.below[usize::from(key > node.entry.key())];
        }
        let (parent, depth) = (path.last(), path.len);
        if below[0] == NONE || below[1] == NONE {
            self.replace(parent, place, below[0].max(below[1]));
        } else {
            // The next one in order takes its place.
            path.push(place);
            let mut next = below[1];
            while self.nodes[next as usize].below[0] != NONE {
                path.push(next);
                next = self.nodes[next as usize].below[0];
            }
            let rest = self.nodes[next as usize].below[1];
            self.replace(path.last(), next, rest);
            let below = self.nodes[place as usize].below;
            let node = &mut self.nodes[next as usize];
            node.below = below;
            node.sum = sum;
            self.replace(parent, place, next);
            path.nodes[depth] = next;
        }
        self.settle(&mut path, depth);
        self.nodes[place as usize].below[0] = self.free;
        self.free = place;
        entry
    }

    /// The entry at a place.
    #[inline]
    pub fn at(&self, place: u32) -> &Entry {
        &self.nodes[place as usize].entry
    }

    /// Place of the first entry, by start, that overlaps `range`.
    pub fn first(&self, volume: u32, range: Range) -> Option<u32> {
        let mut at = self.root;
        while self.reaches(at, volume, range) {
            let node = &self.nodes[at as usize];
            let [before, behind] = node.below;
            // One that ends behind the start of `range` and does not overlap it begins behind it,
            // as do all after it.
            if self.reaches(before, volume, range) {
                at = before;
                continue;
            }
            match node.place(volume, range) {
                Place::Overlaps => return Some(at),
                Place::Before => at = behind,
                Place::Behind => return None,
            }
        }
        None
    }

    /// Whether anything in a subtree ends behind the start of `range`, or is of a later volume.
    #[inline]
    fn reaches(&self, at: u32, volume: u32, range: Range) -> bool {
        at != NONE && self.nodes[at as usize].sum.reach > point(volume, range.start)
    }

    /// Puts another node, or none, below `parent`, where `old` was.
    #[inline]
    fn replace(&mut self, parent: u32, old: u32, new: u32) {
        if parent == NONE {
            self.root = new;
            return;
        }
        let below = &mut self.nodes[parent as usize].below;
        below[usize::from(below[1] == old)] = new;
    }

    /// After a removal below the last node of `path`: balances it and those above, up to the first
    /// for which nothing changes; those behind the first `sure` in any case.
    fn settle(&mut self, path: &mut Path, sure: usize) {
        while path.len > 0 {
            let at = path.last();
            path.len -= 1;
            let old = self.nodes[at as usize].sum;
            let top = self.balance(at);
            if top != at {
                self.replace(path.last(), at, top);
            }
            if path.len <= sure && self.nodes[top as usize].sum == old {
                return;
            }
        }
    }

    fn height(&self, at: u32) -> u32 {
        self.nodes[at as usize].sum.height
    }

    /// After a change below: makes the heights of both sides alike. Returns the subtree's top.
    fn balance(&mut self, at: u32) -> u32 {
        let below = self.nodes[at as usize].below;
        let heights = below.map(|side| self.height(side));
        if heights[0].abs_diff(heights[1]) <= 1 {
            self.learn(at);
            return at;
        }
        let tall = usize::from(heights[1] > heights[0]);
        let child = below[tall];
        let [outer, inner] = [tall, 1 - tall].map(|side| self.nodes[child as usize].below[side]);
        if self.height(inner) > self.height(outer) {
            self.nodes[at as usize].below[tall] = self.rotate(child, tall);
        }
        self.rotate(at, 1 - tall)
    }

    /// Moves a node down to this side. Returns its other child, which moves up.
    fn rotate(&mut self, at: u32, side: usize) -> u32 {
        let up = self.nodes[at as usize].below[1 - side];
        let between = core::mem::replace(&mut self.nodes[up as usize].below[side], at);
        self.nodes[at as usize].below[1 - side] = between;
        self.learn(at);
        self.learn(up);
        up
    }

    fn learn(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let [one, other] = node.below.map(|side| self.nodes[side as usize].sum);
        let own = node.entry.sum();
        self.nodes[at as usize].sum = Sum {
            height: 1 + one.height.max(other.height),
            reach: own.reach.max(one.reach).max(other.reach),
        };
    }
}

/// Where an entry lies, seen from a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It ends in front of it, or is of a volume before.
    Before,
    Overlaps,
    /// It starts behind it, and so does all that comes later.
    Behind,
}

impl Node {
    fn place(&self, volume: u32, range: Range) -> Place {
        let it = &self.entry;
        if point(it.volume, it.range.start) >= point(volume, range.end) {
            Place::Behind
        } else if it.volume == volume && it.range.overlaps(range) {
            Place::Overlaps
        } else {
            Place::Before
        }
    }
}

#[cfg(test)]
mod tests;
