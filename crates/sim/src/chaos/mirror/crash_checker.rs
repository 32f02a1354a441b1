//! Contents of a mirror's legs if everything ended this moment.
//!
//! Decides, from what is on the legs and what was acknowledged, whether any of those that could be
//! brought together without a word of the user lacks an acknowledged write, or differs from another
//! where nothing says so.
//!
//! # Contract
//! Twice: as it is (all processes die), and as it is after all caches were lost. Looking changes
//! nothing.
use super::super::disk;
use super::super::history::Floors;
use super::make::crc32c;
use crate::chaos::prelude::*;
use core::cell::RefCell;
use mirror::Superblock;
use mirror::assembly::{Assembly, Role, Wishes, assemble};
use mirror::bad::BadKind;
use mirror::bitmap::{Bitmap, PAGE_BYTES};
use mirror::copies::{NoLeg, read_copies};
use mirror::layout::COPIES_AT;
use mirror::superblock::SUPERBLOCK_BYTES;

/// All legs, as they are or as they are without caches.
pub(super) struct Legs<'a> {
    disks: &'a [Disk],
    durable: bool,
    contents: Vec<&'a [u8]>,
    said: Vec<Result<Superblock, NoLeg>>,
    /// Of two legs and a size of regions: those that are not alike.
    unlike: RefCell<Unlike>,
    /// Results of earlier checks.
    compared: Option<&'a RefCell<Compared>>,
    /// From which byte of the mirror on a leg has lost what it had, unnoticed.
    cuts: Vec<Option<u64>>,
}

/// See [`Legs`].
type Unlike = BTreeMap<(usize, usize, u64), Vec<u64>>;
/// Of two places, how often what is near them [had changed](Disk::changes) when they were compared
/// last, and whether they differed.
pub(in crate::chaos) type Compared = BTreeMap<[Place; 2], ([u64; 2], bool)>;
/// Without caches, leg, first byte, and how many.
type Place = (bool, usize, usize, usize);

impl<'a> Legs<'a> {
    pub fn of(disks: &'a [Disk], durable: bool) -> Self {
        let contents: Vec<&[u8]> = disks.iter().map(|disk| disk.contents(durable)).collect();
        let said = |bytes: &&[u8]| {
            let copy = |at: u64| &bytes[at as usize..][..SUPERBLOCK_BYTES];
            let copies = COPIES_AT.map(|at| Some(copy(at)));
            read_copies(copies, crc32c).map(|it| it.superblock)
        };
        let said = contents.iter().map(said).collect();
        Self {
            disks,
            durable,
            contents,
            said,
            unlike: RefCell::default(),
            compared: None,
            cuts: Vec::new(),
        }
    }

    /// From these bytes of the mirror on, legs may lack what they say that they have.
    fn shrunk(self, cuts: Vec<Option<u64>>) -> Self {
        Self { cuts, ..self }
    }

    /// Skips blocks that did not change since they were compared last.
    fn compared(self, compared: &'a RefCell<Compared>) -> Self {
        Self {
            compared: Some(compared),
            ..self
        }
    }

    /// Returns each leg's superblock.
    pub fn said(&self) -> &[Result<Superblock, NoLeg>] {
        &self.said
    }

    /// Which of them all together would be in sync; `None`: they are no mirror.
    pub fn in_sync(&self) -> Option<Vec<bool>> {
        let assembly = assemble(&self.said, Wishes::default()).ok()?;
        let roles = assembly.roles.iter();
        Some(roles.map(|role| *role == Role::InSync).collect())
    }

    /// The mirror's data on a leg.
    pub fn data(&self, leg: usize) -> &[u8] {
        &self.contents[leg][self.data_at(leg)..]
    }

    /// Bytes of the mirror that a leg does not have by what is said of the whole mirror: it could
    /// not write them, or it was cut off there.
    pub fn bad(&self, leg: usize, next: &Superblock) -> Vec<Range<u64>> {
        let Ok(it) = &self.said[leg] else {
            return Vec::new();
        };
        let shift = next.geometry.block_shift;
        let bad = next.bad.of(it.slot, BadKind::Unwritten);
        let bad = bad.map(|it| it.first << shift..it.end() << shift);
        let said = (it.cut_at > 0).then_some(it.cut_at);
        let unseen = self.cuts.get(leg).copied().flatten();
        let cut = said.into_iter().chain(unseen).min();
        bad.chain(cut.map(|from| from..next.geometry.bytes))
            .collect()
    }

    fn data_at(&self, leg: usize) -> usize {
        let place = self.said[leg].as_ref().map(|it| it.place);
        place.map_or(0, |it| it.data_offset as usize)
    }

    /// The bits of these legs' bitmaps, all together.
    fn intents(&self, legs: &[usize], next: &Superblock) -> Bitmap {
        let mut all = Bitmap::new(next.geometry.regions());
        for &leg in legs {
            let Ok(it) = &self.said[leg] else {
                continue;
            };
            for page in 0..all.pages() {
                let at = it.place.bitmap_offset as usize + page * PAGE_BYTES;
                let bytes = &self.contents[leg][at..][..PAGE_BYTES];
                if all.merge_page(page, bytes, it.mirror, crc32c).is_err() {
                    all.suspect(page);
                }
            }
        }
        all
    }

    /// A leg that differs from one in sync where it should not.
    fn contradict(&self, given: &[usize], assembly: &Assembly) -> Option<String> {
        let roles = || given.iter().copied().zip(&assembly.roles);
        let in_sync = roles().filter(|it| *it.1 == Role::InSync);
        let in_sync: Vec<usize> = in_sync.map(|it| it.0).collect();
        let first = *in_sync.first()?;
        let region = 1 << assembly.next.geometry.region_shift;
        roles().find_map(|(leg, role)| {
            let (below, mut having) = match role {
                Role::InSync => (u64::MAX, Vec::new()),
                Role::Behind { position, .. } => (*position, vec![leg]),
                Role::Unusable(_) => return None,
            };
            having.extend(&in_sync);
            let mut intents = self.intents(&having, &assembly.next);
            for it in self
                .bad(leg, &assembly.next)
                .into_iter()
                .chain(self.bad(first, &assembly.next))
            {
                (it.start / region..it.end.div_ceil(region)).for_each(|it| {
                    intents.set(it);
                });
            }
            let number = self.differ((first, leg), &intents, region, below)?;
            Some(format!(
                "leg {leg} ({role:?}) differs from leg {first} in region {number}, whose bit is \
                 not set"
            ))
        })
    }

    /// Where two legs differ though no bit says so, below a byte of the mirror.
    fn differ(
        &self,
        (a, b): (usize, usize),
        intents: &Bitmap,
        region: u64,
        below: u64,
    ) -> Option<u64> {
        let (ours, theirs) = (self.data(a), self.data(b));
        let all = ours.len().min(theirs.len()) as u64;
        let range = |number: u64, end: u64| {
            (number * region) as usize..((number + 1) * region).min(end) as usize
        };
        let differ = |number: u64, end: u64| ours[range(number, end)] != theirs[range(number, end)];
        // Many sets of legs ask for the same two.
        let mut unlike = self.unlike.borrow_mut();
        let unlike = unlike.entry((a, b, region)).or_insert_with(|| {
            let numbers = 0..all.div_ceil(region);
            let differ =
                |&number: &u64| self.compare([a, b], range(number, all), || differ(number, all));
            numbers.filter(differ).collect()
        });
        let end = below.min(all);
        let mut numbers = unlike.iter().copied();
        numbers.find(|&it| it * region < end && !intents.is_set(it) && differ(it, end))
    }

    /// Whether two legs differ in a range of their data, which `differ` finds out.
    fn compare(&self, legs: [usize; 2], range: Range<usize>, differ: impl Fn() -> bool) -> bool {
        let Some(compared) = self.compared else {
            return differ();
        };
        let places = legs.map(|leg| {
            let first = self.data_at(leg) + range.start;
            (self.durable, leg, first, range.len())
        });
        let changes = places.map(|(durable, leg, first, bytes)| {
            self.disks[leg].changes(durable, first..first + bytes)
        });
        let mut compared = compared.borrow_mut();
        if let Some(&(then, differed)) = compared.get(&places)
            && then == changes
        {
            debug_assert_eq!(differed, differ(), "changes of legs {legs:?} not counted");
            return differed;
        }
        let differed = differ();
        compared.insert(places, (changes, differed));
        differed
    }
}

impl Course<'_> {
    /// Nothing that the legs have now is less than what was promised.
    pub(in crate::chaos) fn examine(&mut self) -> Result<(), Finding> {
        if self.plan.layout.mirror.is_none() {
            return Ok(());
        }
        self.look_at_bare();
        self.look_at_cuts();
        self.keep_images();
        self.judges(Check::Gate, self.passed_gate());
        self.remember();
        let under_way = self.under_way();
        let caches = self.plan.layout.caches;
        let floors = [self.history.floors(true), self.history.floors(false)];
        for durable in [false, true]
            .into_iter()
            .filter(|durable| caches || !durable)
        {
            let cuts = self.cuts.iter().map(|it| it.map(|it| it.from)).collect();
            let legs = Legs::of(self.rig.leg_disks(), durable)
                .compared(&self.compared)
                .shrunk(cuts);
            match self.judge_legs(&legs, durable, &floors, &under_way) {
                Ok(without) => {
                    let judged = without.then_some(Check::Plug);
                    self.report.judged.extend(judged);
                }
                Err((block, finding)) => {
                    self.report.block = block;
                    self.report.seen_ns = Some(self.rig.world.now_ns);
                    return Err(finding);
                }
            }
        }
        Ok(())
    }

    /// Whether the process of a host has taken the mirror over before the gate of its legs opened.
    fn passed_gate(&self) -> bool {
        let hosts = 0..self.rig.hosts.len();
        let mut engines = hosts.filter_map(|host| self.rig.mirror_core(host));
        engines.any(|engine| {
            let runs = engine.mirror(MIRRORS_FROM);
            let runs = runs.is_some_and(|it| it.state == MirrorState::Running);
            let mut stats = self.rig.volumes().map(|leg| engine.host().hold_stats(leg));
            runs && stats.any(|it| it.past_gate_total > 0)
        })
    }

    /// Writes whose end is not in the history: block and tag.
    fn under_way(&self) -> Vec<(u64, Tag)> {
        let unit = self.plan.layout.habit.unit;
        let mut all = Vec::new();
        let client = |host: &Host| self.rig.world.nodes[host.clients].client();
        for client in self.rig.hosts.iter().filter_map(client) {
            let writes = client.tagged().filter(|it| it.0.kind == nbd::Kind::Write);
            for (request, tag) in writes {
                let (first, end) = (request.offset, request.offset + u64::from(request.length));
                all.extend((first / unit..end / unit).zip((tag..).map(Tag)));
            }
            for it in &client.orphans {
                all.extend(it.blocks.clone().zip((it.tag..).map(Tag)));
            }
        }
        all.sort_unstable();
        all
    }

    /// Whether some of the legs would have come up without one that is not in sync.
    fn judge_legs(
        &self,
        legs: &Legs<'_>,
        durable: bool,
        [certain, told]: &[Floors<'_>; 2],
        under_way: &[(u64, Tag)],
    ) -> Result<bool, (Option<u64>, Finding)> {
        let how = match durable {
            true => "if power failed",
            false => "if all died",
        };
        let count = legs.said().len();
        let mut judged = vec![false; count];
        let mut well: Vec<(usize, bool)> = Vec::new();
        let all = legs.in_sync().unwrap_or_default();
        let mut without = false;
        for set in 1..1_u32 << count {
            let given: Vec<usize> = (0..count).filter(|leg| set >> leg & 1 == 1).collect();
            let said: Vec<_> = given.iter().map(|&leg| legs.said()[leg]).collect();
            let assembly = match assemble(&said, Wishes::default()) {
                Ok(assembly) => assembly,
                Err(why) if given.len() == count => {
                    let what = format!("{how}, all legs together were refused: {why:?}");
                    return Err((None, Finding::Wrong(what)));
                }
                Err(_) => continue,
            };
            let roles = || given.iter().copied().zip(&assembly.roles);
            let in_sync = roles().filter(|it| *it.1 == Role::InSync);
            let in_sync: Vec<usize> = in_sync.map(|it| it.0).collect();
            let lacks = |leg: usize| !all[leg] && !given.contains(&leg);
            without |= !in_sync.is_empty() && (0..all.len()).any(lacks);
            for &leg in &in_sync {
                if core::mem::replace(&mut judged[leg], true) {
                    continue;
                }
                let floors = match durable || self.bare[leg] {
                    true => certain,
                    false => told,
                };
                // The contents of a leg with the same judgement are known already.
                let before = well.iter().find(|it| it.1 == self.bare[leg]);
                let known = before.map(|it| legs.data(it.0));
                let bad = legs.bad(leg, &assembly.next);
                self.judge_leg((legs.data(leg), known, &bad), floors, under_way)
                    .map_err(|(block, why)| {
                        let what = format!("{how}, legs {given:?}: leg {leg} in sync: {why}");
                        (Some(block), Finding::Wrong(what))
                    })?;
                if bad.is_empty() {
                    well.push((leg, self.bare[leg]));
                }
            }
            // No bit marks the regions that a bare leg lacks.
            if in_sync.iter().any(|&leg| self.bare[leg]) && !durable {
                continue;
            }
            if let Some(what) = legs.contradict(&given, &assembly) {
                let what = format!("{how}, legs {given:?}: {what}");
                return Err((None, Finding::Wrong(what)));
            }
        }
        Ok(without)
    }

    fn judge_leg(
        &self,
        (data, known, bad): (&[u8], Option<&[u8]>, &[Range<u64>]),
        floors: &Floors<'_>,
        under_way: &[(u64, Tag)],
    ) -> Result<(), (u64, String)> {
        let unit = self.plan.layout.habit.unit as usize;
        let blocks = self.plan.layout.habit.blocks;
        let now_ns = self.rig.world.now_ns;
        for (block, bytes) in (0..blocks).zip(data.chunks(unit)) {
            let at = block as usize * unit;
            let same = known.and_then(|known| known.get(at..at + bytes.len()));
            let end = (at + bytes.len()) as u64;
            let is_bad = bad.iter().any(|it| it.start < end && (at as u64) < it.end);
            if same == Some(bytes) || is_bad {
                continue;
            }
            let tag = disk::tag(bytes);
            if under_way.binary_search(&(block, tag)).is_ok() {
                continue;
            }
            let judged = floors.judge(block, tag, now_ns);
            judged.map_err(|wrong| (block, format!("block {block}: {wrong}")))?;
        }
        Ok(())
    }
}
