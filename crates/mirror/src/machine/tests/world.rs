//! Legs with volatile caches, in any order of what ends; legs that fail, go away, come back with
//! late writes, can't read; power that fails at any moment, and tears what is under way.
use super::super::super::assembly::tests::{PLACE, legs};
use super::super::super::assembly::{Assembly, Role, Why, Wishes, assemble};
use super::super::super::bad::BadKind;
use super::super::super::copies::{Chosen, NoLeg, choose};
use super::super::super::ownership::{Ownership, Terms};
use super::super::super::superblock::tests::Draw;
use super::super::super::superblock::{EntryState, Lack};
use super::super::super::{Id, Label, Superblock};
use super::super::*;
use crate::bitmap::Bitmap;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use crc_fast::crc32_iscsi;
use disk::{Disk, Given};

/// Of a mirror, and of one that has grown as far as it can.
const BLOCKS: usize = 16;
pub const BLOCKS_MAX: usize = 26;
const REGIONS_MAX: u64 = 7;
pub const BLOCK: u64 = 256 << 10;
const REGION_BLOCKS: usize = 4;
const SECOND_NS: u64 = 1_000_000_000;
/// Requests under way to a leg that was lost are executed until then, or never.
const FENCE_NS: u64 = 5 * SECOND_NS;

struct Asked {
    request: Request,
    version: u64,
    /// Writes that were acknowledged when it came.
    acked: [u64; BLOCKS_MAX],
}

pub struct World {
    seed: Draw,
    /// Only the first region is written.
    near: bool,
    /// Its legs become larger.
    grows: bool,
    /// Legs hang.
    hang: bool,
    /// The host after a crash is another one, and requests that were under way may come later.
    inherits: bool,
    /// The owner of a leg's paths does not wait for late requests: only the mirror does.
    unfenced: bool,
    /// Legs are put back to what they were.
    copies: bool,
    /// A leg is away for a moment while another one is rebuilt.
    blinks: bool,
    /// Legs have blocks that they can't write.
    refuses: bool,
    /// A copy of a leg, and legs that were put back and are not in sync since.
    old: Option<(usize, Disk)>,
    put_back: Vec<usize>,
    /// How many blocks users were told of.
    blocks: usize,
    pub disks: Vec<Disk>,
    /// With the life of its leg.
    given: Vec<(Ticket, Given, u64)>,
    asked: BTreeMap<u32, Asked>,
    buffers: Vec<Vec<u64>>,
    version: u64,
    /// The last version that was acknowledged, and that is durable besides.
    acked: [u64; BLOCKS_MAX],
    kept: [u64; BLOCKS_MAX],
    /// Data read in a block that no host wrote since: it stays.
    read: [Option<u64>; BLOCKS_MAX],
    written: [bool; BLOCKS_MAX],
    lineage: u64,
    /// Legs that say nothing, and identifiers that new ones got.
    replaced: Vec<u8>,
    ids: u64,
    now_ns: u64,
    last_clean: bool,
    stopped: Option<bool>,
    /// Which things happened, and how often.
    pub happened: BTreeMap<&'static str, u64>,
    pub finding: Option<&'static str>,
}

/// Whether a leg has bad blocks in a block of ours by what is said.
pub fn is_bad(state: &Superblock, leg: usize, block: usize) -> bool {
    let shift = state.geometry.block_shift;
    let of = |block: usize| (block as u64 * BLOCK) >> shift;
    let record = &state.bad;
    record.touches(leg as u8, BadKind::Unwritten, of(block), of(block + 1))
}

pub fn blocks(range: Range) -> core::ops::Range<usize> {
    (range.start / BLOCK) as usize..range.end.div_ceil(BLOCK) as usize
}

impl World {
    pub fn new(seed: u64) -> Self {
        // Two to four of them.
        let count = 2 + (seed / 6 % 3) as usize;
        let mut superblocks = legs(count as u8);
        let new = seed.is_multiple_of(3);
        if new {
            let lack = Lack {
                position: 0,
                seen_event: 1,
                seen_lineage: 1,
            };
            for superblock in &mut superblocks {
                superblock.set_state(count as u8 - 1, EntryState::Stale(lack));
            }
        }
        let mut disks: Vec<_> = superblocks.iter().map(Disk::new).collect();
        for disk in disks.iter_mut().take(count - usize::from(new)) {
            disk.blocks[..BLOCKS].fill(1);
        }
        let grows = seed % 4 == 2;
        let first = core::array::from_fn(|block| u64::from(block < BLOCKS));
        for (number, disk) in (2..).zip(&mut disks).filter(|_| grows) {
            // Behind the end there is on each what was there before anybody cared.
            disk.blocks[BLOCKS..].fill(number);
            disk.bytes = PLACE.data_offset + BLOCKS as u64 * BLOCK;
        }
        Self {
            seed: Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            disks,
            near: seed.is_multiple_of(2),
            inherits: seed % 7 == 5,
            unfenced: seed % 6 == 4,
            grows,
            hang: seed % 5 == 1,
            copies: seed % 11 == 6,
            blinks: matches!(seed % 13, 2 | 4),
            refuses: seed % 13 < 3,
            old: None,
            put_back: Vec::new(),
            blocks: BLOCKS,
            given: Vec::new(),
            asked: BTreeMap::new(),
            buffers: vec![Vec::new(); 3],
            version: 10,
            acked: first,
            kept: first,
            read: [None; BLOCKS_MAX],
            written: [false; BLOCKS_MAX],
            lineage: 1,
            replaced: Vec::new(),
            ids: 0,
            now_ns: 0,
            last_clean: true,
            stopped: None,
            happened: BTreeMap::new(),
            finding: None,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed.below(below)
    }

    fn claim(&mut self, holds: bool, what: &'static str) {
        if !holds {
            self.finding.get_or_insert(what);
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    /// Brings the legs together as the next writer does; `None`: those given don't suffice.
    fn assembled(&mut self, present: &[usize]) -> Option<Mirror> {
        let given: Vec<_> = present
            .iter()
            .map(|&leg| self.disks[leg].chosen())
            .collect();
        let superblocks: Vec<_> = given.iter().map(|it| it.map(|it| it.superblock)).collect();
        let assembly = match assemble(&superblocks, Wishes::default()) {
            Ok(assembly) => assembly,
            Err(_) => {
                self.claim(
                    present.len() < self.disks.len(),
                    "all legs are there, and refused",
                );
                return None;
            }
        };
        let removed = |it: &Role| *it == Role::Unusable(NoLeg::Removed);
        if let Some(at) = assembly.roles.iter().position(removed) {
            self.disks[present[at]].replace();
            return self.assembled(present);
        }
        self.inspect(present, &assembly);
        let blocks = (assembly.next.geometry.bytes / BLOCK) as usize;
        self.claim(blocks >= self.blocks, "a size that was told is gone");
        self.blocks = blocks;
        let owner = Owner {
            run: Id([self.lineage as u8 | 1; 16]),
            host: Id([9; 16]),
            label: Label::default(),
            since_s: 0,
            heartbeat_s: 0,
            bound_ms: 0,
        };
        self.own(present, &given, owner, assembly.next.sequence + 1);
        let given: Vec<_> = present
            .iter()
            .map(|&leg| self.disks[leg].chosen())
            .collect();
        for (leg, disk) in self.disks.iter_mut().enumerate() {
            (disk.sick, disk.hung, disk.found) = (false, false, present.contains(&leg));
            disk.away = !disk.found;
        }
        self.lineage += 1;
        self.written = [false; BLOCKS_MAX];
        self.stopped = None;
        let start = Start {
            assembly: &assembly,
            late_until_ns: &[],
            given: &given,
            lineage: self.lineage,
            terms: Terms {
                written_ns: None,
                hold_until_ns: match self.inherits {
                    true => self.now_ns + FENCE_NS,
                    false => 0,
                },
                left_ms: 0,
            },
        };
        let config = Config {
            copies: 3,
            position_bytes: 1 << 20,
            position_ns: SECOND_NS,
            clear_after_ns: SECOND_NS,
            errors_max: 4,
            bad_ranges: 5,
            bad_bytes: 12 * BLOCK,
            ..Config::new(6)
        };
        Some(Mirror::start(
            &start,
            Ownership::acquired(owner),
            config,
            self.now_ns,
        ))
    }

    /// The owner's record is written.
    fn own(
        &mut self,
        present: &[usize],
        given: &[Result<Chosen, NoLeg>],
        owner: Owner,
        sequence: u64,
    ) {
        let above = if self.inherits { 1 << 20 } else { 0 };
        let sequence = sequence + above;
        for (&leg, found) in present.iter().zip(given) {
            let Ok(found) = found else { continue };
            let owned = Superblock {
                owner: Some(owner),
                sequence,
                ..found.superblock
            };
            let copies = match self.inherits {
                true => vec![found.next_copy(), found.copy],
                false => vec![found.next_copy()],
            };
            for copy in copies {
                let bytes = owned.encode(copy, crc32_iscsi).to_vec();
                self.disks[leg].copies[usize::from(copy)] = bytes;
            }
        }
    }

    /// Checks the claims of an assembly against acknowledged writes.
    fn inspect(&mut self, present: &[usize], assembly: &Assembly) {
        let of = |at: &usize| assembly.roles[*at] == Role::InSync;
        let in_sync: Vec<usize> = (0..present.len())
            .filter(of)
            .map(|at| present[at])
            .collect();
        let mut union = Bitmap::new(REGIONS_MAX);
        for &leg in &in_sync {
            union.merge(&self.disks[leg].intents());
        }
        let first = in_sync[0];
        for (at, &leg) in present.iter().enumerate() {
            let position = match assembly.roles[at] {
                Role::Behind { position, .. } => position,
                Role::InSync => u64::MAX,
                Role::Unusable(_) => continue,
            };
            let rolled_back = |it: &Role| {
                matches!(
                    it,
                    Role::Behind {
                        why: Why::RolledBack,
                        ..
                    }
                )
            };
            let known = !rolled_back(&assembly.roles[at]) || self.put_back.contains(&leg);
            self.claim(known, "a leg is taken for an older copy");
            let own = self.disks[leg].intents();
            for block in 0..(assembly.next.geometry.bytes / BLOCK) as usize {
                let bad = |leg: usize| is_bad(&assembly.next, leg, block);
                let region = (block / REGION_BLOCKS) as u64;
                let (ours, theirs) = (self.disks[leg].block(block), self.disks[first].block(block));
                let marked = union.is_set(region) || position != u64::MAX && own.is_set(region);
                let known = marked && (assembly.unclean || position != u64::MAX);
                let lacks = block as u64 * BLOCK >= position;
                self.claim(
                    ours == theirs || known || lacks || bad(leg) || bad(first),
                    "a leg differs, and nobody knows",
                );
                if in_sync.contains(&leg) && !bad(leg) {
                    let kept = self.kept[block];
                    self.claim(ours >= kept, "a leg in sync lacks what was flushed");
                    let same = self.read[block].is_none_or(|read| read == ours);
                    self.claim(same || marked, "what was read is gone");
                }
            }
        }
        if self.last_clean {
            self.claim(!assembly.unclean, "the stop was clean, and nobody knows");
        }
        self.last_clean = false;
        // Later lives may rely on the present data, once it was read.
        self.acked = self.kept;
    }

    fn poll(&mut self, mirror: &mut Mirror) {
        while let Some(output) = mirror.poll_output(self.now_ns) {
            let (ticket, given) = match output {
                Output::Leg(ticket, request) => {
                    let io = ticket.io().expect("it is a user's");
                    (ticket, Given::Io(request, self.asked[&io].version))
                }
                Output::Read(io, range, from) => {
                    let choice = from.iter().nth(self.draw(u64::from(from.count())) as usize);
                    let leg = choice.expect("somebody has it");
                    // It may have left since.
                    let other = mirror.readers(io).first();
                    let wait = match mirror.readers(io).count() {
                        0 | 1 => Wait::Long,
                        _ => Wait::Briefly,
                    };
                    let ticket = mirror.take(io, leg, wait);
                    let Some(ticket) = ticket.or_else(|| mirror.take(io, other?, wait)) else {
                        mirror.no_reader(io);
                        continue;
                    };
                    (ticket, Given::Io(Request::Read(range), 0))
                }
                Output::Flush(ticket) => (ticket, Given::Io(Request::Flush, 0)),
                Output::CopyRead(ticket, buffer, range) => (ticket, Given::CopyRead(buffer, range)),
                Output::CopyWrite(ticket, buffer, range) => {
                    let data = self.buffers[usize::from(buffer)].clone();
                    (ticket, Given::Copy(range, data))
                }
                Output::Compare(ticket, buffer, range) => (ticket, Given::Compare(buffer, range)),
                Output::Pages(ticket, pages) => {
                    let mut bytes = vec![0; 512 * pages.count as usize];
                    mirror.encode_pages(pages, &mut bytes, crc32_iscsi);
                    (ticket, Given::Page(bytes))
                }
                Output::Superblock(ticket, copy) => {
                    let bytes = mirror.encode_superblock(ticket.leg, copy, crc32_iscsi);
                    (ticket, Given::Superblock(copy, bytes.to_vec()))
                }
                Output::ReadPages(ticket, _) => (ticket, Given::ReadPages),
                Output::ReadSuperblocks(ticket) => (ticket, Given::ReadSuperblocks),
                Output::Done(io, outcome) => {
                    self.done(io, outcome);
                    continue;
                }
                Output::News(news) => {
                    let differs = mirror.check_report().differences > 0;
                    self.claim(!differs, "a check finds a difference");
                    self.is_acknowledged(news);
                    continue;
                }
            };
            let disk = &self.disks[usize::from(ticket.leg)];
            let (life, behind) = (disk.life, disk.ends_before(&given));
            self.claim(!behind, "behind the end of a leg");
            self.given.push((ticket, given, life));
        }
    }

    fn is_acknowledged(&mut self, news: News) {
        let what = match news {
            News::Left(leg, _) => {
                self.disks[usize::from(leg)].found = false;
                "left"
            }
            News::Rebuilding(_) => "joining",
            News::InSync(leg) => {
                self.put_back.retain(|&it| it != usize::from(leg));
                "joined"
            }
            News::Unfit(leg, why) => {
                self.disks[usize::from(leg)].found = false;
                let failed = matches!(why, Unfit::Failed(_) | Unfit::NoLeg(_));
                if matches!(why, Unfit::NoLeg(_)) {
                    self.replaced.push(leg);
                }
                self.claim(failed, "a leg can't return");
                "unfit"
            }
            News::Removed(leg) => {
                self.disks[usize::from(leg)].replace();
                "removed"
            }
            News::Added(_) => "added",
            News::Resynced => "alike",
            News::Repaired(..) => "repaired",
            News::Rescued(..) => "rescued",
            News::Unwritable(..) => "unwritable",
            News::Rewritten(_) => "rewritten",
            News::NoCopy(..) => "no copy",
            News::Lost(_) => "lost",
            News::Checked => "checked",
            News::Grown(bytes) => {
                self.blocks = (bytes / BLOCK) as usize;
                "grown"
            }
            News::NotGrown => "not grown",
            News::LostOwnership => {
                self.claim(false, "there is no other owner");
                "foreign"
            }
            News::Broken => "broken",
            News::Cut(..) => "cut",
            News::Unverified(_) => "in doubt",
            News::Restored => "restored",
            News::Lapsed(_) => "lapsed",
            News::Renewed(_) => "renewed",
            News::Begins => unreachable!("no record is kept here"),
            News::Stopped(clean) => {
                self.stopped = Some(clean);
                "stopped"
            }
        };
        self.count(what);
    }

    fn done(&mut self, io: u32, outcome: Outcome) {
        let asked = self.asked.remove(&io).expect("it has not ended before");
        self.count("ended");
        let fua = matches!(asked.request, Request::Write(_, true));
        match asked.request {
            Request::Write(range, _) | Request::Zero(range) if outcome.is_done() => {
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

    pub fn submit(&mut self, mirror: &mut Mirror) {
        let kind = self.draw(8);
        let all = match kind {
            4.. if self.near => REGION_BLOCKS as u64,
            _ => self.blocks as u64,
        };
        let first = self.draw(all);
        let count = 1 + self.draw(5).min(all - first - 1);
        let range = Range::new(first * BLOCK, count * BLOCK);
        let request = match kind {
            0 => Request::Flush,
            1..=3 => Request::Read(range),
            7 if self.draw(4) == 0 => Request::Zero(range),
            kind => Request::Write(range, kind == 4),
        };
        if let Ok(io) = mirror.submit(request, self.now_ns) {
            self.version += 1;
            let (version, acked) = (self.version, self.acked);
            if let Some(range) = request.changes() {
                for block in blocks(range) {
                    (self.written[block], self.read[block]) = (true, None);
                }
            }
            let asked = Asked {
                request,
                version,
                acked,
            };
            self.asked.insert(io, asked);
        }
    }

    /// A request that a leg has done is durable, or in its cache.
    fn apply(&mut self, leg: usize, given: &Given) {
        let disk = &mut self.disks[leg];
        let mut write = |block: usize, version, fua: bool| {
            if disk.refused[block] {
                return;
            }
            disk.bad[block] = false;
            disk.cache.push((block, version));
            if fua {
                disk.cache.retain(|it| it.0 != block);
                disk.blocks[block] = version;
            }
        };
        match given {
            Given::Io(Request::Write(range, fua), version) => {
                blocks(*range).for_each(|block| write(block, *version, *fua));
            }
            Given::Io(Request::Zero(range), version) => {
                blocks(*range).for_each(|block| write(block, *version, false));
            }
            Given::Copy(range, data) => {
                for (block, version) in blocks(*range).zip(data) {
                    write(block, *version, false);
                }
            }
            Given::Io(Request::Flush, _) => disk.flush(),
            Given::Page(page) => disk.page.clone_from(page),
            Given::Superblock(copy, bytes) => disk.copies[usize::from(*copy)].clone_from(bytes),
            _ => {}
        }
    }

    /// One thing ends on its leg, well or not.
    pub fn end_one(&mut self, mirror: &mut Mirror) {
        if self.given.is_empty() {
            return;
        }
        let at = self.draw(self.given.len() as u64) as usize;
        if !self.hangs(at) {
            self.end_at(mirror, at);
        }
    }

    /// Whether what was given is on a leg that ends nothing.
    fn hangs(&self, at: usize) -> bool {
        self.disks[usize::from(self.given[at].0.leg)].hung
    }

    fn end_at(&mut self, mirror: &mut Mirror, at: usize) {
        let (ticket, given, life) = self.given.swap_remove(at);
        let leg = usize::from(ticket.leg);
        if self.disks[leg].away || self.disks[leg].life != life {
            // It may be executed yet.
            let until = self.now_ns + FENCE_NS;
            match self.disks[leg].away {
                true => {
                    if self.unfenced && given.changes() {
                        mirror.may_be_late(ticket.leg, until, self.now_ns);
                    }
                    self.disks[leg].late.push((given, until));
                    // One that was to return is told of anew, when that is over.
                    if !mirror.may_read(ticket.leg) {
                        mirror.leg_lost(ticket.leg, self.now_ns);
                    }
                }
                false if self.seed.below(2) == 0 => self.apply(leg, &given),
                false => {}
            }
            mirror.handle_done(ticket, Outcome::PathError, self.now_ns);
            return self.poll(mirror);
        }
        let change = matches!(given, Given::Io(request, _) if request.changes().is_some());
        if change && self.draw(200) == 0 {
            // Refused, and not for this leg's sake.
            self.count("refused");
            mirror.handle_done(ticket, Outcome::Reservation, self.now_ns);
            return self.poll(mirror);
        }
        if self.disks[leg].refuses(&given) {
            self.count("refused block");
            if self.draw(2) == 0 {
                self.apply(leg, &given);
            }
            mirror.handle_done(ticket, Outcome::MediaError, self.now_ns);
            return self.poll(mirror);
        }
        let fails = self.disks[leg].sick && self.draw(3) == 0;
        if fails {
            if self.draw(2) == 0 {
                self.apply(leg, &given);
            }
            mirror.handle_done(ticket, Outcome::MediaError, self.now_ns);
            return self.poll(mirror);
        }
        self.end_well(mirror, ticket, &given);
        self.poll(mirror);
    }

    fn end_well(&mut self, mirror: &mut Mirror, ticket: Ticket, given: &Given) {
        let (leg, now_ns) = (usize::from(ticket.leg), self.now_ns);
        let disk = &mut self.disks[leg];
        let mut outcome = Outcome::Done;
        match given {
            Given::Io(Request::Read(range), _) | Given::CopyRead(_, range)
                if disk.is_bad(*range) =>
            {
                outcome = Outcome::MediaError;
            }
            Given::Io(Request::Read(range), _) => {
                self.check_read(ticket, *range);
            }
            Given::CopyRead(buffer, range) => {
                let data = blocks(*range).map(|block| disk.block(block)).collect();
                self.buffers[usize::from(*buffer)] = data;
            }
            Given::Compare(buffer, range) => {
                let data = &self.buffers[usize::from(*buffer)];
                let differs = (blocks(*range).zip(data)).any(|(it, data)| disk.block(it) != *data);
                let bad = disk.is_bad(*range);
                return match bad {
                    true => mirror.handle_done(ticket, Outcome::MediaError, now_ns),
                    false => mirror.handle_compared(ticket, differs.then_some(*range), now_ns),
                };
            }
            Given::ReadPages => {
                let page = disk.page.clone();
                return mirror.handle_pages(ticket, &page, crc32_iscsi, now_ns);
            }
            Given::ReadSuperblocks => {
                let found = disk.chosen();
                return mirror.handle_superblocks(ticket, &found, now_ns);
            }
            _ => self.apply(leg, given),
        }
        mirror.handle_done(ticket, outcome, now_ns);
    }

    fn check_read(&mut self, ticket: Ticket, range: Range) {
        let leg = usize::from(ticket.leg);
        let io = ticket.io().expect("it is a user's");
        for block in blocks(range) {
            let found = self.disks[leg].block(block);
            let acked = self.asked[&io].acked[block];
            self.claim(found >= acked, "a read finds what was overwritten");
            if !self.written[block] {
                let read = *self.read[block].get_or_insert(found);
                self.claim(found == read, "a read finds something else than before");
            }
        }
    }
}

mod disk;
mod life;
mod old;
