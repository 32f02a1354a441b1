//! Rules by hand: blocks that a leg can't write (T14).
use super::super::super::bad::BadKind::{LastCopy, Unwritten};
use super::super::*;
use super::heartbeats::{INTERVAL, shared};
use super::rules::{MS, started, started_with};
use crate::superblock::EntryState;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use crc_fast::crc32_iscsi;

const UNIT: u64 = 4096;
const BAD: u64 = 5;

fn units(range: Range) -> core::ops::Range<u64> {
    range.start / UNIT..range.end.div_ceil(UNIT)
}

fn at(unit: u64, count: u64) -> Range {
    Range::new(unit * UNIT, count * UNIT)
}

/// Legs with what each has in each 4 KiB, and what they can't write.
struct Rig {
    mirror: Mirror,
    now_ns: u64,
    has: Vec<BTreeMap<u64, u64>>,
    refuses: BTreeSet<(u8, u64)>,
    /// The same of parts of a unit.
    refused_bytes: Vec<(u8, Range)>,
    /// Blocks that they can't read until they are written.
    unreadable: BTreeSet<(u8, u64)>,
    buffers: Vec<Vec<u64>>,
    versions: BTreeMap<u32, u64>,
    version: u64,
    /// Findings of a read, and from which legs.
    found: Vec<(u64, u64)>,
    read_from: Legs,
    done: Vec<(u32, Outcome)>,
    news: Vec<News>,
    /// Tickets of this leg's superblocks and flushes are kept.
    silent: Option<u8>,
    kept: Vec<Ticket>,
    written: Vec<(u8, Range)>,
    /// This leg's controller sanitizes it.
    erased: Option<u8>,
}

impl Rig {
    fn new(mirror: Mirror) -> Self {
        Self {
            mirror,
            now_ns: MS,
            has: vec![BTreeMap::new(); 4],
            refuses: BTreeSet::new(),
            refused_bytes: Vec::new(),
            unreadable: BTreeSet::new(),
            buffers: vec![Vec::new(); 8],
            versions: BTreeMap::new(),
            version: 0,
            found: Vec::new(),
            read_from: Legs::default(),
            done: Vec::new(),
            news: Vec::new(),
            silent: None,
            kept: Vec::new(),
            written: Vec::new(),
            erased: None,
        }
    }

    fn of(count: u8) -> Self {
        let mut rig = Self::new(started(count, Config::new(6)));
        assert!(rig.write(at(0, 16)).is_done());
        rig
    }

    fn write_leg(&mut self, leg: u8, range: Range, data: &[u64]) -> Outcome {
        let overlaps = |it: Range| it.start < range.end && range.start < it.end;
        let mut refused = self.refused_bytes.iter();
        let mut outcome = match refused.any(|it| it.0 == leg && overlaps(it.1)) {
            true => Outcome::MediaError,
            false => Outcome::Done,
        };
        for (unit, version) in units(range).zip(data) {
            if self.refuses.contains(&(leg, unit)) {
                outcome = Outcome::MediaError;
            } else {
                self.has[usize::from(leg)].insert(unit, *version);
                self.unreadable.remove(&(leg, unit));
            }
        }
        self.written.push((leg, range));
        outcome
    }

    fn is_readable(&self, leg: u8, range: Range) -> Outcome {
        match units(range).any(|unit| self.unreadable.contains(&(leg, unit))) {
            _ if self.erased == Some(leg) => Outcome::Erased,
            true => Outcome::MediaError,
            false => Outcome::Done,
        }
    }

    fn on(&self, leg: u8, unit: u64) -> u64 {
        self.has[usize::from(leg)].get(&unit).copied().unwrap_or(0)
    }

    fn end(&mut self, output: Output) {
        let now_ns = self.now_ns;
        let (ticket, outcome) = match output {
            Output::Leg(ticket, _) if self.erased == Some(ticket.leg) => (ticket, Outcome::Erased),
            Output::Leg(ticket, Request::Write(range, _)) => {
                let version = self.versions[&ticket.io().unwrap()];
                let data = vec![version; units(range).count()];
                (ticket, self.write_leg(ticket.leg, range, &data))
            }
            Output::Read(io, range, from) => {
                let ticket = self.mirror.take(io, from.first().unwrap(), Wait::Long);
                let ticket = ticket.unwrap();
                let outcome = self.is_readable(ticket.leg, range);
                if outcome.is_done() {
                    for unit in units(range) {
                        self.found.push((unit, self.on(ticket.leg, unit)));
                    }
                    self.read_from.add(ticket.leg);
                }
                (ticket, outcome)
            }
            Output::CopyRead(ticket, buffer, range) => {
                let data = units(range).map(|unit| self.on(ticket.leg, unit)).collect();
                self.buffers[usize::from(buffer)] = data;
                (ticket, self.is_readable(ticket.leg, range))
            }
            Output::CopyWrite(ticket, buffer, range) => {
                let data = self.buffers[usize::from(buffer)].clone();
                (ticket, self.write_leg(ticket.leg, range, &data))
            }
            Output::Compare(ticket, buffer, range) => {
                let data = &self.buffers[usize::from(buffer)];
                let differs = units(range)
                    .zip(data)
                    .any(|(unit, it)| self.on(ticket.leg, unit) != *it);
                let differs = differs.then_some(range);
                return self.mirror.handle_compared(ticket, differs, now_ns);
            }
            Output::Superblock(ticket, _) | Output::Flush(ticket)
                if self.silent == Some(ticket.leg) =>
            {
                return self.kept.push(ticket);
            }
            Output::Done(io, outcome) => return self.done.push((io, outcome)),
            Output::News(news) => return self.news.push(news),
            other => {
                return super::rules::end(&mut self.mirror, other, now_ns, &mut super::rules::well);
            }
        };
        self.mirror.handle_done(ticket, outcome, now_ns);
    }

    fn run(&mut self) {
        while let Some(output) = self.mirror.poll_output(self.now_ns) {
            self.end(output);
        }
    }

    /// Time passes until nothing is due for a while.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ns += MS;
            self.mirror.handle_timeout(self.now_ns);
            self.run();
        }
    }

    fn ask(&mut self, request: Request) -> u32 {
        let io = self.mirror.submit(request, self.now_ns).unwrap();
        self.version += 1;
        self.versions.insert(io, self.version);
        self.run();
        io
    }

    fn outcome(&mut self, io: u32) -> Option<Outcome> {
        let at = self.done.iter().position(|it| it.0 == io)?;
        Some(self.done.remove(at).1)
    }

    fn request(&mut self, request: Request) -> Outcome {
        let io = self.ask(request);
        self.outcome(io).expect("it has ended")
    }

    fn write(&mut self, range: Range) -> Outcome {
        self.request(Request::Write(range, false))
    }

    /// Blocks that are read there, if they can be.
    fn read(&mut self, range: Range) -> Result<Vec<u64>, Outcome> {
        (self.found, self.read_from) = (Vec::new(), Legs::default());
        match self.request(Request::Read(range)) {
            Outcome::Done => {
                let found = core::mem::take(&mut self.found);
                assert!(found.iter().map(|it| it.0).eq(units(range)), "{found:?}");
                Ok(found.into_iter().map(|it| it.1).collect())
            }
            outcome => Err(outcome),
        }
    }

    /// A flush that was kept; superblocks that were are written.
    fn kept_flush(&mut self, work: legs::Work) -> Option<Ticket> {
        while let Some(at) = (self.kept.iter()).position(|it| it.work == legs::Work::Update) {
            let said = self.kept.remove(at);
            self.mirror.handle_done(said, Outcome::Done, self.now_ns);
            self.run();
        }
        let at = self.kept.iter().position(|it| it.work == work)?;
        Some(self.kept.remove(at))
    }

    fn in_sync(&self) -> usize {
        self.mirror.superblock().in_sync().count()
    }

    fn bad(&self, leg: u8) -> Vec<(u64, u64)> {
        let record = self.mirror.committed().bad;
        let of = record.of(leg, Unwritten);
        of.map(|it| (it.first, it.end())).collect()
    }

    /// Each leg's superblock is what the mirror goes by.
    fn is_said(&self) {
        for leg in self.mirror.legs.in_sync().iter() {
            let committed = &self.mirror.legs[leg].committed;
            let bytes = committed.encode(0, crc32_iscsi);
            let read = Superblock::parse(&bytes, 0, crc32_iscsi).unwrap();
            assert_eq!(read.bad, self.mirror.committed().bad);
        }
    }
}

/// The first block of a unit, and the one behind it.
fn blocks(rig: &Rig, unit: u64) -> (u64, u64) {
    let shift = rig.mirror.superblock().geometry.block_shift;
    ((unit * UNIT) >> shift, ((unit + 1) * UNIT) >> shift)
}

#[test]
fn leg_that_refuses_a_block_stays_and_is_not_read() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    assert_eq!(rig.write(at(BAD, 1)), Outcome::Done);
    assert_eq!((rig.in_sync(), rig.bad(1)), (2, vec![blocks(&rig, BAD)]));
    rig.is_said();
    assert!(
        rig.news.contains(&News::Unwritable(1, at(BAD, 1))),
        "{:?}",
        rig.news
    );
    // By leg 1 alone it can't be read; together they give all.
    assert_eq!(rig.read(at(0, 16)).unwrap()[BAD as usize], rig.version - 1);
    rig.mirror.leg_lost(0, rig.now_ns);
    rig.run();
    assert!(
        rig.news.contains(&News::NoCopy(0, at(BAD, 1))),
        "{:?}",
        rig.news
    );
    assert_eq!(rig.read(at(0, 16)), Err(Outcome::MediaError));
    assert_eq!(rig.read(at(0, BAD)).map(|it| it.len()), Ok(BAD as usize));
    let facts = rig.mirror.facts(1).unwrap();
    assert_eq!(facts.bad, (1, UNIT, Some(at(BAD, 1))));
}

#[test]
fn large_write_with_a_bad_block_leaves_that_alone_bad() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    assert_eq!(rig.write(at(0, 64)), Outcome::Done);
    assert!(rig.in_sync() == 2 && !rig.bad(1).is_empty());
    rig.pass(2000);
    assert_eq!(rig.bad(1), [blocks(&rig, BAD)]);
    rig.is_said();
    // A second one is tried there again, and is no other than that.
    assert_eq!(rig.write(at(0, 64)), Outcome::Done);
    rig.pass(2000);
    assert_eq!((rig.in_sync(), rig.bad(1)), (2, vec![blocks(&rig, BAD)]));
}

#[test]
fn copy_that_a_sector_refuses_leaves_that_alone_bad() {
    let mut rig = Rig::of(2);
    let sector = Range::new(BAD * UNIT + 1024, 512);
    rig.refused_bytes.push((1, sector));
    assert_eq!(rig.write(at(0, 64)), Outcome::Done);
    rig.pass(2000);
    assert_eq!(rig.in_sync(), 2);
    let facts = rig.mirror.facts(1).unwrap();
    assert_eq!(facts.bad, (1, 512, Some(sector)));
    rig.is_said();
}

#[test]
fn leg_that_is_sanitized_leaves_and_has_nothing() {
    let mut rig = Rig::of(2);
    rig.erased = Some(1);
    assert_eq!(rig.write(at(BAD, 1)), Outcome::Done);
    assert_eq!((rig.in_sync(), rig.bad(1)), (1, vec![]));
    assert!(rig.news.contains(&News::Left(1, Outcome::Erased)));
    let state = rig.mirror.superblock().state(1);
    let nothing = matches!(state, Some(EntryState::Stale(lack)) if lack.position == 0);
    assert!(nothing, "{state:?}");
    // The last one stays, and fails what it is given, also when that is over.
    rig.erased = Some(0);
    assert_eq!(rig.write(at(BAD, 1)), Outcome::Erased);
    assert_eq!(rig.in_sync(), 1);
    assert!(rig.news.contains(&News::Cut(0, 0)));
    rig.erased = None;
    rig.pass(5000);
    assert_eq!(rig.write(at(BAD, 1)), Outcome::CutShort);
    assert_eq!(rig.read(at(0, 1)), Err(Outcome::CutShort));
    assert_eq!(rig.mirror.legs[0].committed.cut_at, 1);
    // Nothing is copied from there.
    rig.mirror.leg_found(1, 0, rig.now_ns);
    rig.pass(5000);
    assert_eq!(rig.in_sync(), 1);
    assert!(rig.mirror.facts(1).unwrap().is_stuck());
    assert!(rig.mirror.accept_cut(0, rig.now_ns));
    rig.pass(1);
    assert_eq!(rig.write(at(BAD, 1)), Outcome::Done);
    rig.pass(5000);
    assert_eq!((rig.in_sync(), rig.mirror.legs[0].committed.cut_at), (2, 0));
}

/// It has nothing, and the one that returns lacks nothing that was written.
#[test]
fn last_leg_that_is_sanitized_leaves_for_another() {
    let mut rig = Rig::of(2);
    rig.pass(20_000); // intents are forgotten
    rig.mirror.leg_lost(1, rig.now_ns);
    rig.run();
    rig.erased = Some(0);
    assert_eq!(rig.read(at(0, 1)), Err(Outcome::Erased));
    (rig.erased, rig.has[0]) = (None, BTreeMap::new());
    rig.pass(5000);
    rig.mirror.leg_found(1, 0, rig.now_ns);
    rig.pass(5000);
    assert!(rig.news.contains(&News::Left(0, Outcome::CutShort)));
    let state = rig.mirror.superblock().state(0);
    let nothing = matches!(state, Some(EntryState::Stale(lack)) if lack.position == 0);
    assert!(nothing, "{state:?}");
    assert_eq!(rig.read(at(0, 16)), Ok(vec![1; 16]));
    rig.mirror.leg_found(0, 0, rig.now_ns);
    rig.pass(60_000);
    assert_eq!((rig.in_sync(), rig.on(0, 15)), (2, 1));
}

/// A flush that was under way tells nothing of what the last leg has lost meanwhile.
#[test]
fn t13_heal_flush_is_repeated_after_a_loss() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((0, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    rig.mirror.leg_lost(1, rig.now_ns);
    rig.run();
    rig.refuses.clear();
    rig.silent = Some(0);
    rig.ask(Request::Write(at(BAD, 1), false));
    let heal = rig.kept_flush(legs::Work::Heal).expect("it is flushed");
    rig.mirror.submit(Request::Flush, rig.now_ns).unwrap();
    let flush = loop {
        match rig.mirror.poll_output(rig.now_ns) {
            Some(Output::Leg(ticket, Request::Flush)) => break ticket,
            other => rig.end(other.expect("so is it by the user")),
        }
    };
    rig.mirror.gives_up_writes(0, rig.now_ns);
    rig.mirror
        .handle_done(flush, Outcome::PathError, rig.now_ns);
    rig.mirror.handle_done(heal, Outcome::Done, rig.now_ns);
    rig.run();
    let again = rig.kept_flush(legs::Work::Heal);
    assert!(again.is_some(), "{:?}", rig.kept);
    assert_eq!(rig.bad(0), [blocks(&rig, BAD)], "it may be lost");
}

#[test]
fn later_write_clears_a_bad_block_once_it_is_flushed() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    rig.refuses.clear();
    let io = rig
        .mirror
        .submit(Request::Write(at(BAD, 1), false), rig.now_ns)
        .unwrap();
    rig.version += 1;
    rig.versions.insert(io, rig.version);
    let mut flushed = false;
    while let Some(output) = rig.mirror.poll_output(rig.now_ns) {
        flushed |= matches!(output, Output::Flush(ticket) if ticket.leg == 1);
        assert!(flushed || rig.bad(1) == [blocks(&rig, BAD)]);
        rig.end(output);
    }
    assert!(flushed && rig.bad(1).is_empty());
    assert!(rig.news.contains(&News::Rewritten(1)), "{:?}", rig.news);
    rig.is_said();
    rig.mirror.leg_lost(0, rig.now_ns);
    assert_eq!(rig.read(at(BAD, 1)), Ok(vec![rig.version - 1]));
}

#[test]
fn t14_write_ends_after_the_record_of_it_is_durable() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    rig.silent = Some(1);
    let io = rig.ask(Request::Write(at(BAD, 1), false));
    assert!(rig.outcome(io).is_none() && rig.bad(1).is_empty());
    // Meanwhile leg 1 is not read there.
    assert!(rig.read(at(BAD, 1)).is_ok());
    assert_eq!(rig.read_from, Legs::one(0));
    rig.silent = None;
    for ticket in core::mem::take(&mut rig.kept) {
        rig.mirror.handle_done(ticket, Outcome::Done, rig.now_ns);
    }
    rig.run();
    assert_eq!(rig.outcome(io), Some(Outcome::Done));
    assert_eq!(rig.bad(1), [blocks(&rig, BAD)]);
}

#[test]
fn t14_write_whose_only_copy_leaves_before_that_fails() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    rig.silent = Some(1);
    let io = rig.ask(Request::Write(at(BAD, 1), false));
    rig.mirror.leg_lost(0, rig.now_ns);
    rig.silent = None;
    for ticket in core::mem::take(&mut rig.kept) {
        rig.mirror.handle_done(ticket, Outcome::Done, rig.now_ns);
    }
    rig.run();
    assert_eq!(rig.outcome(io), Some(Outcome::MediaError));
    assert_eq!(rig.in_sync(), 1);
    // Earlier data is there.
    assert_eq!(rig.read(at(BAD, 1)), Ok(vec![1]));
    assert_eq!(rig.request(Request::Flush), Outcome::Done);
    assert!(rig.bad(1).is_empty());
}

/// Whether a write that a rebuilt leg refuses, begun after so many answers of its superblocks and
/// flushes, is under way when the leg is in sync: then the other leg leaves.
fn fails_on_a_rebuilt_leg(answers: usize) -> bool {
    let mut rig = Rig::of(2);
    rig.pass(11_000);
    rig.mirror.leg_lost(1, rig.now_ns);
    rig.run();
    // It lacks region 1 alone.
    assert!(rig.write(at((1 << 20) / UNIT, 1)).is_done());
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(1, 0, now_ns);
    rig.silent = Some(1);
    rig.refuses.insert((1, BAD));
    let (mut write, mut answered) = (None, 0);
    while !rig.mirror.legs.in_sync().has(1) {
        rig.pass(1);
        let regions = rig
            .mirror
            .superblock()
            .geometry
            .regions_in(Range::new(0, 2 << 20));
        let has_all = rig.mirror.legs.rebuilt_in(regions).has(1);
        if has_all && write.is_none() && answered >= answers {
            write = Some(rig.ask(Request::Write(at(BAD, 1), false)));
        }
        if !rig.kept.is_empty() {
            let ticket = rig.kept.remove(0);
            rig.mirror.handle_done(ticket, Outcome::Done, rig.now_ns);
            rig.run();
            answered += 1;
        }
    }
    let Some(write) = write.filter(|_| rig.mirror.bad.is_bad(1, at(BAD, 1))) else {
        return false;
    };
    if rig.outcome(write).is_some() {
        return false;
    }
    rig.mirror.leg_lost(0, rig.now_ns);
    rig.silent = None;
    for ticket in core::mem::take(&mut rig.kept) {
        rig.mirror.handle_done(ticket, Outcome::Done, rig.now_ns);
    }
    rig.run();
    assert_eq!(rig.outcome(write), Some(Outcome::MediaError));
    assert_eq!(rig.read(at(BAD, 1)), Ok(vec![1]), "{answers}");
    true
}

/// The leg was rebuilt there already, and is in sync just before the other one leaves.
#[test]
fn t14_failed_write_leaves_a_rebuilt_leg_as_it_was() {
    assert!(
        (0..12)
            .filter(|answers| fails_on_a_rebuilt_leg(*answers))
            .count()
            > 0
    );
}

#[test]
fn write_that_all_legs_refuse_fails_and_all_stay() {
    let mut rig = Rig::of(2);
    rig.refuses.extend([(0, BAD), (1, BAD)]);
    let before = rig.version - 1;
    assert_eq!(rig.write(at(BAD, 1)), Outcome::MediaError);
    rig.pass(2000);
    assert_eq!(rig.in_sync(), 2);
    // Data that one of them has is what is read.
    let read = rig.read(at(BAD, 1)).unwrap();
    assert!(read == [before + 1], "{read:?}");
    rig.refuses.clear();
    assert_eq!(rig.write(at(BAD, 1)), Outcome::Done);
    rig.pass(2000);
    assert!(rig.bad(0).is_empty() && rig.bad(1).is_empty());
    assert_eq!((rig.on(0, BAD), rig.on(1, BAD)), (rig.version, rig.version));
}

#[test]
fn last_copy_comes_back_with_the_leg_that_has_it() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    let good = rig.version;
    assert_eq!(rig.mirror.last_copy_on(0), Some(at(BAD, 1)));
    assert_eq!(rig.mirror.last_copy_on(1), None);
    rig.mirror.leg_lost(0, rig.now_ns);
    rig.run();
    assert_eq!(rig.mirror.committed().bad.of(0, LastCopy).count(), 1);
    assert_eq!(rig.mirror.last_copy_on(0), Some(at(BAD, 1)));
    // Its region is written meanwhile.
    assert!(rig.write(at(BAD + 1, 1)).is_done());
    rig.written.clear();
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(0, 0, now_ns);
    rig.pass(3000);
    assert_eq!(rig.in_sync(), 2);
    let over = |it: &(u8, Range)| it.0 == 0 && units(it.1).contains(&BAD);
    assert!(!rig.written.iter().any(over), "{:?}", rig.written);
    assert_eq!(rig.mirror.committed().bad.of(0, LastCopy).count(), 0);
    assert_eq!(rig.read(at(BAD, 2)), Ok(vec![good, good + 1]));
    assert_eq!(rig.bad(1), [blocks(&rig, BAD)]);
    rig.is_said();
}

#[test]
fn last_copy_that_was_written_over_counts_no_more() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    rig.mirror.leg_lost(0, rig.now_ns);
    rig.run();
    rig.refuses.clear();
    assert_eq!(rig.write(at(BAD, 1)), Outcome::Done);
    let newer = rig.version;
    assert_eq!(rig.mirror.committed().bad.of(0, LastCopy).count(), 0);
    assert_eq!(rig.read(at(BAD, 1)), Ok(vec![newer]));
    assert_eq!(rig.request(Request::Flush), Outcome::Done);
    assert!(
        rig.bad(1).is_empty(),
        "or nothing would have it at the next start"
    );
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(0, 0, now_ns);
    rig.pass(3000);
    assert_eq!((rig.in_sync(), rig.on(0, BAD)), (2, newer));
}

#[test]
fn leg_that_is_rebuilt_from_a_bad_block_gets_it_recorded() {
    let mut rig = Rig::of(3);
    rig.refuses.insert((1, BAD));
    rig.mirror.leg_lost(2, rig.now_ns);
    rig.run();
    assert!(rig.write(at(BAD, 1)).is_done());
    rig.mirror.leg_lost(0, rig.now_ns);
    rig.run();
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(2, 0, now_ns);
    rig.pass(3000);
    assert_eq!(rig.in_sync(), 2);
    assert_eq!(
        (rig.bad(1), rig.bad(2)),
        (vec![blocks(&rig, BAD)], vec![blocks(&rig, BAD)])
    );
    assert_eq!(rig.read(at(BAD, 1)), Err(Outcome::MediaError));
    // The leg that has it gives it to those that can write it.
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(0, 0, now_ns);
    rig.pass(3000);
    assert_eq!((rig.in_sync(), rig.bad(2)), (3, vec![]));
    assert_eq!(rig.on(2, BAD), rig.on(0, BAD));
    assert_eq!(rig.bad(1), [blocks(&rig, BAD)]);
}

#[test]
fn leg_that_returns_is_in_sync_but_for_the_block() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    rig.mirror.leg_lost(1, rig.now_ns);
    rig.run();
    assert!(rig.write(at(BAD, 1)).is_done());
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(1, 0, now_ns);
    rig.pass(3000);
    assert_eq!((rig.in_sync(), rig.bad(1)), (2, vec![blocks(&rig, BAD)]));
    rig.is_said();
}

#[test]
fn leg_leaves_when_its_record_is_full() {
    let config = Config {
        bad_ranges: 3,
        ..Config::new(6)
    };
    let mut rig = Rig::new(started(2, config));
    assert!(rig.write(at(0, 16)).is_done());
    for unit in [1, 3, 5, 7] {
        rig.refuses.insert((1, unit));
    }
    for unit in [1, 3, 5] {
        assert_eq!(rig.write(at(unit, 1)), Outcome::Done);
        assert_eq!(rig.in_sync(), 2);
    }
    assert_eq!(rig.write(at(7, 1)), Outcome::Done);
    assert_eq!(
        (rig.in_sync(), rig.mirror.facts(1).unwrap().bad_full),
        (1, true)
    );
    assert_eq!(rig.mirror.facts(1).unwrap().bad.0, 3);
}

#[test]
fn check_skips_what_is_bad_and_a_repair_writes_it() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((1, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    for repair in [false, true] {
        if repair {
            rig.refuses.clear();
        }
        let now_ns = rig.now_ns;
        rig.mirror.check(repair, now_ns);
        rig.pass(3000);
        let report = rig.mirror.check_report();
        assert!(report.complete && report.differences == 0, "{report:?}");
        assert_eq!((report.skipped, report.repaired), (1, u64::from(repair)));
    }
    assert!(rig.bad(1).is_empty());
    assert_eq!(rig.on(1, BAD), rig.on(0, BAD));
}

#[test]
fn record_is_heeded_by_the_next_owner() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((0, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    let said: Vec<_> = [0, 1].map(|leg| rig.mirror.legs[leg].committed).to_vec();
    let next = started_with(said, &[], Config::new(6), Default::default(), 0);
    let mut next = Rig {
        mirror: next,
        ..rig
    };
    next.now_ns = MS;
    next.pass(2000);
    assert!(next.read(at(BAD, 1)).is_ok());
    assert_eq!(next.read_from, Legs::one(1));
    // The resync has tried it again.
    assert_eq!((next.in_sync(), next.bad(0)), (2, vec![blocks(&next, BAD)]));
}

/// A leg that lacks the newest event is rebuilt from others, and has what these have not.
#[test]
fn t14_leg_that_lags_keeps_the_last_copy() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((0, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    let (good, lags) = (rig.version, rig.mirror.legs[1].committed);
    let name = Name::new("other").unwrap();
    rig.mirror.rename(name, rig.now_ns);
    rig.run();
    let newest = rig.mirror.legs[0].committed;
    assert!(newest.event == lags.event + 1 && lags.bad == newest.bad);
    let given = vec![newest, lags];
    let next = started_with(given, &[], Config::new(6), Default::default(), 0);
    let mut next = Rig {
        mirror: next,
        ..rig
    };
    assert_eq!(next.mirror.legs.in_sync(), Legs::one(0), "leg 1 lags");
    next.mirror.lineage += 1;
    // Its region was written by the owner before.
    next.mirror.log.set_dirty(0);
    next.now_ns = MS;
    next.pass(3000);
    assert_eq!((next.in_sync(), next.bad(1)), (2, vec![]));
    assert_eq!(next.read(at(BAD, 1)), Ok(vec![good]));
    assert_eq!(next.mirror.committed().bad.of(1, LastCopy).count(), 0);
    next.is_said();
}

/// Leg 0 has a bad block, leg 1 can't read another one of the same piece, and leg 2 needs both.
#[test]
fn t05_rebuild_reads_each_block_where_it_is() {
    let mut rig = Rig::of(3);
    rig.mirror.leg_lost(2, rig.now_ns);
    rig.run();
    rig.refuses.insert((0, 0));
    assert!(rig.write(at(0, 1)).is_done());
    assert_eq!(rig.bad(0), [blocks(&rig, 0)]);
    rig.unreadable.insert((1, 8));
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(2, 0, now_ns);
    rig.pass(3000);
    let lost = |it: &News| matches!(it, News::Lost(_));
    assert!(!rig.news.iter().any(lost), "{:?}", rig.news);
    assert_eq!(rig.in_sync(), 3);
    assert_eq!((rig.on(2, 0), rig.on(2, 8)), (rig.on(1, 0), rig.on(0, 8)));
}

#[test]
fn t05_read_finds_each_block_where_it_is() {
    let mut rig = Rig::of(2);
    rig.refuses.insert((0, 0));
    assert!(rig.write(at(0, 1)).is_done());
    rig.unreadable.insert((1, 8));
    let read = rig.read(at(0, 16)).unwrap();
    assert_eq!((read[0], read[8]), (rig.on(1, 0), rig.on(0, 8)));
    // Where it is on none it ends.
    rig.unreadable.insert((1, 0));
    assert_eq!(rig.read(at(0, 16)), Err(Outcome::MediaError));
}

/// The only source is being rebuilt itself.
#[test]
fn block_that_a_spare_has_is_bad_where_it_is_refused() {
    let mut rig = Rig::of(3);
    rig.mirror.leg_lost(2, rig.now_ns);
    rig.run();
    rig.refuses.insert((0, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    // All that leg 1 has is flushed when it leaves, so it lacks region 1 alone.
    rig.pass(11_000);
    rig.mirror.leg_lost(1, rig.now_ns);
    rig.run();
    let second = (1 << 20) / UNIT;
    assert!(rig.write(at(second, 1)).is_done());
    rig.unreadable.insert((0, second));
    rig.refuses.insert((2, BAD));
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(1, 0, now_ns);
    rig.pass(1000);
    assert!(rig.mirror.spares(at(BAD, 1), Legs::default()).has(1));
    rig.written.clear();
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(2, 0, now_ns);
    rig.pass(3000);
    assert_eq!(rig.bad(2), [blocks(&rig, BAD)]);
    let over = |it: &&(u8, Range)| it.0 == 2 && units(it.1).contains(&BAD);
    let times = rig.written.iter().filter(over).count();
    // As a whole, and then in blocks of 512 B.
    assert!((1..=10).contains(&times), "{times}");
    assert_eq!(rig.mirror.facts(2).unwrap().lacks, 1);
}

/// A block that the leg that is being rebuilt can't give is copied from the one that waits.
#[test]
fn block_that_is_bad_on_a_spare_is_read_from_one_that_waits() {
    let mut rig = Rig::of(3);
    rig.refuses.insert((1, BAD));
    assert!(rig.write(at(BAD, 1)).is_done());
    assert_eq!(rig.bad(1), [blocks(&rig, BAD)]);
    rig.pass(11_000);
    rig.mirror.leg_lost(2, rig.now_ns);
    rig.run();
    rig.mirror.leg_lost(1, rig.now_ns);
    rig.run();
    // Legs 1 and 2 lack the second region alone, and only leg 1 returns.
    let second = (1 << 20) / UNIT;
    assert!(rig.write(at(second, 1)).is_done());
    rig.unreadable.insert((0, second));
    let now_ns = rig.now_ns;
    rig.mirror.leg_found(1, 0, now_ns);
    rig.mirror.spare_found(2, now_ns);
    rig.pass(1000);
    assert!(rig.mirror.legs.rebuilding().has(1) && rig.mirror.bad.is_bad(1, at(BAD, 1)));
    let spares = |range| rig.mirror.spares(range, Legs::default());
    assert!(spares(at(BAD, 1)).has(2) && !spares(at(BAD + 1, 1)).has(2));
}

/// All that is due until then; flushes of rewritten blocks, and heartbeats, are kept.
fn pass_but(rig: &mut Rig, until_ns: u64, heals: &mut Vec<Ticket>, heartbeats: &mut Vec<Output>) {
    while rig.now_ns <= until_ns {
        rig.mirror.handle_timeout(rig.now_ns);
        while let Some(output) = rig.mirror.poll_output(rig.now_ns) {
            match output {
                Output::Flush(ticket) if ticket.work == Work::Heal => heals.push(ticket),
                _ if output.ticket().is_some_and(Ticket::is_heartbeat) => heartbeats.push(output),
                other => rig.end(other),
            }
        }
        rig.now_ns += 100 * MS;
    }
}

#[test]
fn t48_heal_flush_that_was_taken_back_waits_for_the_lease() {
    for gave_up in [false, true] {
        let mut rig = Rig::new(shared(0));
        rig.now_ns = INTERVAL;
        assert!(rig.write(at(0, 16)).is_done());
        rig.refuses.insert((1, BAD));
        assert!(rig.write(at(BAD, 1)).is_done());
        rig.refuses.clear();
        rig.mirror.leg_lost(0, rig.now_ns);
        rig.run();
        // Leg 1 has rewritten it, and a flush waits until that is said.
        let (now_ns, mut heals, mut heartbeats) = (rig.now_ns, vec![], vec![]);
        let write = Request::Write(at(BAD, 1), false);
        for request in [write, Request::Flush] {
            rig.done.clear();
            let io = rig.mirror.submit(request, now_ns).unwrap();
            rig.versions.insert(io, rig.version);
            rig.now_ns = now_ns;
            pass_but(&mut rig, now_ns, &mut heals, &mut heartbeats);
        }
        assert!(rig.done.is_empty() && heals.len() == 1, "{:?}", rig.done);
        pass_but(&mut rig, 4 * INTERVAL, &mut heals, &mut heartbeats);
        assert_eq!(rig.mirror.lapsed(), Legs::one(1));
        if gave_up {
            rig.mirror.gives_up_writes(1, rig.now_ns);
        }
        rig.mirror
            .handle_done(heals[0], Outcome::PathError, rig.now_ns);
        let until_ns = rig.now_ns;
        pass_but(&mut rig, until_ns, &mut heals, &mut heartbeats);
        for heartbeat in heartbeats {
            rig.end(heartbeat);
        }
        rig.run();
        rig.pass(11_000);
        let ended: Vec<_> = rig.done.iter().map(|it| it.1).collect();
        match gave_up {
            true => assert_eq!(ended, [Outcome::PathError]),
            false => assert_eq!((ended, rig.bad(1)), (vec![Outcome::Done], vec![])),
        }
    }
}
