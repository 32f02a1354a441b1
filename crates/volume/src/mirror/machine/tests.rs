//! The machine over legs with volatile caches, in any order of what ends, with legs that fail and
//! power that fails at any moment; what is left is compared with what was acknowledged.
use super::super::assembly::tests::{PLACE, legs};
use super::super::assembly::{Role, Wishes, assemble};
use super::super::superblock::tests::Draw;
use super::*;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use crc_fast::crc32_iscsi;

const LEGS: usize = 3;
/// What a write covers: two to a region.
const BLOCKS: usize = 8;
const BLOCK: u64 = 512 << 10;

/// One leg: versions of blocks, those that are only in its cache, and what braid wrote.
#[derive(Clone)]
struct Disk {
    blocks: [u64; BLOCKS],
    cache: Vec<(usize, u64)>,
    superblock: Superblock,
    intents: Bitmap,
    sick: bool,
}

/// What a leg was given.
enum Given {
    Io(Request, u64),
    Page(Box<[u8; PAGE_BYTES]>),
    Superblock(Box<Superblock>),
}

struct Asked {
    request: Request,
    version: u64,
    /// What was acknowledged when it came.
    acked: [u64; BLOCKS],
}

struct World {
    seed: Draw,
    disks: Vec<Disk>,
    given: Vec<(Ticket, Given)>,
    asked: BTreeMap<u32, Asked>,
    version: u64,
    /// The last version that was acknowledged, and that is durable besides.
    acked: [u64; BLOCKS],
    kept: [u64; BLOCKS],
    lineage: u64,
    ended: u64,
}

fn blocks(range: Range) -> core::ops::Range<usize> {
    (range.start / BLOCK) as usize..(range.end / BLOCK) as usize
}

impl Disk {
    /// What a read finds.
    fn block(&self, block: usize) -> u64 {
        let cached = self.cache.iter().rev().find(|it| it.0 == block);
        cached.map_or(self.blocks[block], |it| it.1)
    }

    fn flush(&mut self) {
        for (block, version) in self.cache.drain(..) {
            self.blocks[block] = version;
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = |superblock| Disk {
            blocks: [0; BLOCKS],
            cache: Vec::new(),
            superblock,
            intents: Bitmap::new(4),
            sick: false,
        };
        Self {
            seed: Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            disks: legs(LEGS as u8).into_iter().map(disk).collect(),
            given: Vec::new(),
            asked: BTreeMap::new(),
            version: 0,
            acked: [0; BLOCKS],
            kept: [0; BLOCKS],
            lineage: 1,
            ended: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed.below(below)
    }

    /// Brings the legs together as the next writer does: begins, and makes alike.
    fn assembled(&mut self) -> Mirror {
        let given: Vec<_> = self.disks.iter().map(|disk| Ok(disk.superblock)).collect();
        let assembly = assemble(&given, Wishes::default()).expect("all legs are there");
        let of = |role| move |leg: &usize| (assembly.roles[*leg] == Role::InSync) == role;
        let in_sync: Vec<usize> = (0..LEGS).filter(of(true)).collect();
        let mut union = Bitmap::new(4);
        for &leg in &in_sync {
            union.merge(&self.disks[leg].intents);
        }
        let first = in_sync[0];
        for leg in 0..LEGS {
            for block in 0..BLOCKS {
                let (ours, theirs) = (
                    self.disks[leg].blocks[block],
                    self.disks[first].blocks[block],
                );
                let marked = union.is_set(block as u64 / 2)
                    || self.disks[leg].intents.is_set(block as u64 / 2);
                assert!(
                    ours == theirs || marked,
                    "leg {leg} differs in block {block}"
                );
                if in_sync.contains(&leg) {
                    assert!(ours >= self.kept[block], "leg {leg} lacks block {block}");
                }
            }
        }
        self.lineage += 1;
        let begun = assembly.next.begun(self.lineage);
        let blocks = self.disks[first].blocks;
        for (leg, disk) in self.disks.iter_mut().enumerate() {
            disk.superblock = begun.on(leg as u8, PLACE);
            disk.sick = false;
            if in_sync.contains(&leg) {
                (disk.blocks, disk.intents) = (blocks, union.clone());
            }
        }
        (self.acked, self.kept) = (blocks, blocks);
        Mirror::new(begun, union, 6)
    }

    fn poll(&mut self, mirror: &mut Mirror) {
        while let Some(output) = mirror.poll_output() {
            match output {
                Output::Leg(ticket, request) => {
                    let asked = match ticket.work {
                        Work::Io(id) => self.asked[&id].version,
                        _ => 0,
                    };
                    self.given.push((ticket, Given::Io(request, asked)));
                }
                Output::Page(ticket, index) => {
                    self.given.push((
                        ticket,
                        Given::Page(Box::new(mirror.page(index, crc32_iscsi))),
                    ));
                }
                Output::Superblock(ticket) => {
                    let superblock = Box::new(mirror.superblock().on(ticket.leg, PLACE));
                    self.given.push((ticket, Given::Superblock(superblock)));
                }
                Output::Done(id, outcome) => self.done(id, outcome),
            }
        }
    }

    fn done(&mut self, id: u32, outcome: Outcome) {
        let asked = self
            .asked
            .remove(&id)
            .expect("it was asked, and has not ended");
        self.ended += 1;
        match asked.request {
            Request::Write(range, fua) if outcome.is_done() => {
                for block in blocks(range) {
                    self.acked[block] = self.acked[block].max(asked.version);
                    if fua {
                        self.kept[block] = self.kept[block].max(asked.version);
                    }
                }
            }
            Request::Flush if outcome.is_done() => {
                for (kept, acked) in self.kept.iter_mut().zip(asked.acked) {
                    *kept = (*kept).max(acked);
                }
            }
            _ => {}
        }
    }

    fn submit(&mut self, mirror: &mut Mirror) {
        let first = self.draw(BLOCKS as u64);
        let count = 1 + self.draw(3).min(BLOCKS as u64 - first - 1);
        let range = Range::new(first * BLOCK, count * BLOCK);
        let request = match self.draw(8) {
            0 => Request::Flush,
            1 | 2 => Request::Read(range, self.draw(LEGS as u64) as u8),
            kind => Request::Write(range, kind == 3),
        };
        if let Ok(id) = mirror.submit(request) {
            self.version += 1;
            let (version, acked) = (self.version, self.acked);
            self.asked.insert(
                id,
                Asked {
                    request,
                    version,
                    acked,
                },
            );
        }
    }

    /// What a leg has done is durable, or in its cache.
    fn apply(&mut self, leg: usize, given: &Given) {
        let disk = &mut self.disks[leg];
        match given {
            Given::Io(Request::Write(range, fua), version) => {
                for block in blocks(*range) {
                    disk.cache.push((block, *version));
                    if *fua {
                        disk.cache.retain(|it| it.0 != block);
                        disk.blocks[block] = *version;
                    }
                }
            }
            Given::Io(Request::Flush, _) => disk.flush(),
            Given::Io(Request::Read(..), _) => {}
            Given::Page(page) => {
                let mut read = Bitmap::new(4);
                let mirror = disk.superblock.mirror;
                read.merge_page(0, &page[..], mirror, crc32_iscsi)
                    .expect("as it was written");
                disk.intents = read;
            }
            Given::Superblock(superblock) => disk.superblock = **superblock,
        }
    }

    /// One thing ends on its leg, well or not.
    fn end_one(&mut self, mirror: &mut Mirror) {
        if self.given.is_empty() {
            return;
        }
        let at = self.draw(self.given.len() as u64) as usize;
        let (ticket, given) = self.given.swap_remove(at);
        let leg = usize::from(ticket.leg);
        let fails = self.disks[leg].sick && self.draw(3) == 0;
        if !fails || self.draw(2) == 0 {
            self.apply(leg, &given);
        }
        if let (Work::Io(id), Given::Io(Request::Read(range, _), _), false) =
            (ticket.work, &given, fails)
        {
            for block in blocks(*range) {
                let found = self.disks[leg].block(block);
                assert!(
                    found >= self.asked[&id].acked[block],
                    "leg {leg} reads an old block"
                );
            }
        }
        let outcome = if fails {
            Outcome::MediaError
        } else {
            Outcome::Done
        };
        mirror.handle_done(ticket, outcome);
        self.poll(mirror);
    }

    /// The power fails: of what is under way and in caches anything may have been done.
    fn crash(&mut self) {
        for (ticket, given) in core::mem::take(&mut self.given) {
            if self.draw(2) == 0 {
                self.apply(usize::from(ticket.leg), &given);
            }
        }
        for leg in 0..LEGS {
            for (block, version) in core::mem::take(&mut self.disks[leg].cache) {
                if self.draw(2) == 0 {
                    self.disks[leg].blocks[block] = version;
                }
            }
        }
        self.asked.clear();
    }

    /// From an assembly to the next crash, or to rest.
    fn live(&mut self) {
        let mut mirror = self.assembled();
        if self.draw(2) == 0 {
            let leg = self.draw(LEGS as u64) as usize;
            self.disks[leg].sick = true;
            let other = self.draw(LEGS as u64) as usize;
            self.disks[other].sick |= self.draw(4) == 0;
        }
        for _ in 0..self.draw(300) {
            match self.draw(10) {
                0..3 => self.submit(&mut mirror),
                3 => mirror.relax(),
                _ => self.end_one(&mut mirror),
            }
            self.poll(&mut mirror);
        }
        if self.draw(3) == 0 {
            while !self.given.is_empty() {
                self.end_one(&mut mirror);
            }
            assert!(self.asked.is_empty(), "all has ended, and something waits");
        }
        self.crash();
    }
}

#[test]
fn t13_t14_t46_nothing_acknowledged_and_flushed_is_lost_on_any_leg_in_sync() {
    let mut ended = 0;
    for seed in 0..10_000 {
        let mut world = World::new(seed);
        for _ in 0..4 {
            world.live();
        }
        let _ = world.assembled();
        ended += world.ended;
    }
    assert!(ended > 100_000, "{ended}");
}

#[test]
fn no_io_allocates() {
    let disks = legs(2);
    let mut mirror = Mirror::new(disks[0].begun(2), Bitmap::new(4), 6);
    let mut run = |rounds: u64| {
        for round in 0..rounds {
            let at = Range::new((round % 4) << 20, BLOCK);
            for request in [
                Request::Write(at, false),
                Request::Read(at, 1),
                Request::Flush,
            ] {
                assert!(mirror.submit(request).is_ok());
                while let Some(output) = mirror.poll_output() {
                    match output {
                        Output::Leg(ticket, _)
                        | Output::Page(ticket, _)
                        | Output::Superblock(ticket) => mirror.handle_done(ticket, Outcome::Done),
                        Output::Done(_, outcome) => assert_eq!(outcome, Outcome::Done),
                    }
                }
            }
            mirror.relax();
        }
    };
    assert_eq!(allocation_counter::measure(|| run(100)).count_total, 0);
}

#[test]
fn t45_the_last_leg_in_sync_stays_and_its_errors_are_the_callers() {
    let mut mirror = Mirror::new(legs(2)[0].begun(2), Bitmap::new(4), 6);
    let mut run = |request| {
        let id = mirror.submit(request).unwrap();
        while let Some(output) = mirror.poll_output() {
            match output {
                Output::Leg(ticket, _) => mirror.handle_done(ticket, Outcome::MediaError),
                Output::Page(ticket, _) | Output::Superblock(ticket) => {
                    mirror.handle_done(ticket, Outcome::Done);
                }
                Output::Done(it, outcome) => {
                    assert_eq!(it, id);
                    return (
                        outcome,
                        mirror.superblock().in_sync().count(),
                        mirror.may_read(0),
                    );
                }
            }
        }
        panic!("it has not ended");
    };
    let block = Range::new(0, BLOCK);
    assert_eq!(run(Request::Read(block, 1)), (Outcome::MediaError, 2, true));
    assert_eq!(
        run(Request::Write(block, false)),
        (Outcome::MediaError, 1, true)
    );
    assert_eq!(run(Request::Flush), (Outcome::MediaError, 1, true));
}
