//! Acquiring a mirror: the owner's record is written to its legs before anything else is (T48).
//!
//! States ([`Step`]): `Reading` → `Watching` → `Rereading` → `Writing` → `WritingOther` →
//! `Settling` → `Verifying` → `Ended`; `restart` leads from each of them back to `Reading`.
//!
//! # Contract
//! [`Acquire::poll_output`] until `None`, at first and after each other call. A read is answered by
//! [`handle_superblocks`](Acquire::handle_superblocks), a write, which is durable then, by
//! [`handle_written`](Acquire::handle_written). It ends with [`AcquireOutput::Acquired`] (then
//! [`given`](Acquire::given) has the legs' superblocks), `Refused` or `Slow`. A leg that can't be
//! written is left out, and is an error in `given`.
//!
//! Where only this host reaches the legs, it has locked them, so another owner's record belongs to
//! a process that is gone. Where other hosts reach them, all legs are read again first, so that
//! nothing is written over what another host has written since. Another owner's record is watched
//! for three heartbeat intervals: if its sequence rises on any leg, that owner lives and keeps the
//! mirror. Else our record is written, and must stand on all legs after one more interval: of two
//! hosts that start at once at most one finds its own. After an owner whose heartbeats have ceased
//! it must stand for two and a half: that owner may have read its own record just before, and may
//! issue I/O for [`LEASE_INTERVALS`] from then on. Then it is written once more, so that other
//! hosts see a sequence that rises. If another record is found instead, it starts over: it may be
//! a late heartbeat of an owner that is gone; one that lives is noticed by that watch.
//!
//! The legs may execute what that owner sent them until [`Terms::hold_until_ns`] (T9), its
//! superblocks too. The record of the second write has a sequence above all of these, in both
//! copies, so none of them is ever chosen. Therefore such an acquisition
//! ([`takes_over`](Acquire::takes_over)) need not wait until old writes are over, whichever host
//! sent them: one that overwrites a copy of the first write is read before the second, and all
//! begins again; one that overwrites a copy of the second has the lower sequence. An acquisition
//! that found no owner has no such step: its record must be held back while this host's previous
//! engine may have writes in flight.
//!
//! [A read-only acquisition](Acquire::read_only) writes no record, and no other host notices it.
//!
//! No leg compares and writes in one step, so a host that is suspended after its read may overwrite
//! a later superblock of another host. One copy is written first, with the sequence after the one
//! that was read: an owner that wrote since has a higher one in the other copy, which is chosen.
//! From the read to the end of the write one interval may pass; else it starts over, and a write
//! that has not started by then does not start ([`start_before_ns`](Acquire::start_before_ns),
//! T49).
//!
//! # Limits
//! One copy more of another owner's superblock of that moment may be lost so: if its event was in
//! that copy alone, the event is lost. Legs that several hosts reach need reservations besides.
use super::super::Crc32c;
use super::super::Superblock;
use super::super::copies::{Chosen, NoLeg};
use super::super::superblock::{Owner, SUPERBLOCK_BYTES};
use super::{LEASE_INTERVALS, WATCHED_INTERVALS, heartbeat_ns};
use alloc::vec::Vec;
use block::Outcome;

/// Which hosts can reach the legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only this host, which has locked them.
    Here,
    /// Other hosts too.
    Shared,
}

/// The next thing to do. Numbers are those of the legs given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutput {
    /// Read both superblocks of a leg.
    Read(usize),
    /// Write [`Acquire::encode`] to this copy of a leg, durably.
    Write(usize, u8),
    /// The record stands on the legs: the mirror is ours.
    Acquired,
    /// This owner has it.
    Refused(Owner),
    /// Legs take longer to answer than one heartbeat interval.
    Slow,
    /// A leg can't be written, and is left out. The acquisition goes on.
    Failed(usize, Outcome),
}

impl AcquireOutput {
    /// Whether nothing comes after it.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Acquired | Self::Refused(_) | Self::Slow)
    }
}

/// Terms on which the mirror was acquired, for the machine that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Other hosts reach the legs: when our record began to be written, and when it stood. `None`:
    /// only this host does.
    pub written_ns: Option<(u64, u64)>,
    /// The legs may execute writes of the owner before us until then.
    pub hold_until_ns: u64,
    /// The bound of that, ms: until then our record has no shorter one, since it is all that the
    /// next owner finds.
    pub left_ms: u32,
}

/// How many times an acquisition starts over.
const TRIES_MAX: u8 = 4;
/// Distance of our sequences from those that an unreleased owner may still have in flight.
const SEQUENCE_STEP: u64 = 1 << 20;
/// Bound of an owner whose record has none (T9), ms: the default of `leg_quiesce`.
const BOUND_DEFAULT_MS: u32 = 30_000;
/// Longest bound that is believed and written, ms: twice the longest keep-alive time of any use,
/// and the longest that a controller may quiesce (65.5 s). A damaged record must not hold the
/// changes of a mirror for days.
pub const BOUND_MAX_MS: u32 = 600_000;

/// Owners before us that did not release the mirror: the maximum of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreleased {
    /// The bound in the record, as far as it is believed.
    bound_ms: u32,
    /// End of the last lease: nothing was issued later.
    lapsed_ns: u64,
}

impl Unreleased {
    fn and(self, before: Option<Self>) -> Self {
        before.map_or(self, |it| Self {
            bound_ms: self.bound_ms.max(it.bound_ms),
            lapsed_ns: self.lapsed_ns.max(it.lapsed_ns),
        })
    }

    /// End of the time in which the legs may execute what these owners sent; at least by our bound.
    fn until_ns(self, ours_ms: u32) -> u64 {
        let bound_ns = u64::from(self.bound_ms.max(ours_ms)) * 1_000_000;
        self.lapsed_ns.saturating_add(bound_ns)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// All legs are read: earlier reads may be outdated.
    Reading,
    /// Another owner's record is left alone for [`WATCHED_INTERVALS`].
    Watching,
    /// All legs are read again: has its sequence risen?
    Rereading,
    /// Our record goes to the copy that is not chosen.
    Writing,
    /// Then to the other copy.
    WritingOther,
    /// Our record has to stand: another host may acquire the mirror at the same time.
    Settling,
    /// All legs are read: does it?
    Verifying,
    /// An output that [is an end](AcquireOutput::is_end) was polled.
    Ended,
}

/// See the module's contract.
#[derive(Debug)]
pub struct Acquire {
    owner: Owner,
    given: Vec<Result<Chosen, NoLeg>>,
    reach: Reach,
    /// The heartbeat interval of these legs.
    interval_ns: u64,
    step: Step,
    /// Legs below this one were asked in this step.
    next: usize,
    in_flight: usize,
    until_ns: Option<u64>,
    /// When the first leg was asked in this step.
    asked_ns: Option<u64>,
    /// When the read began on which our record is based.
    read_ns: u64,
    /// When another owner's record was read first that is watched.
    seen_ns: u64,
    /// When our record began to be written, and stood.
    written_ns: (u64, u64),
    unreleased: Option<Unreleased>,
    /// The owner before us, by the last read.
    before: Option<Owner>,
    /// Our record is on a leg, maybe instead of that of an unreleased owner.
    has_written: bool,
    /// Our record was found standing.
    has_stood: bool,
    /// How many times it started over.
    tries: u8,
    /// A leg has no owner: another host came after us, and has released it.
    was_released: bool,
    /// The owner whose record has replaced ours.
    replaced_by: Option<Owner>,
    end: Option<AcquireOutput>,
    failed: Vec<(usize, Outcome)>,
    is_read_only: bool,
}

impl Acquire {
    /// Begins to make the mirror of these legs `owner`'s.
    pub fn new(owner: Owner, given: &[Result<Chosen, NoLeg>], reach: Reach) -> Self {
        let legs = || given.iter().flatten().map(|it| it.superblock);
        let interval_ms = legs().map(|it| it.heartbeat_interval_ms).max().unwrap_or(0);
        Self {
            owner,
            given: given.to_vec(),
            reach,
            interval_ns: heartbeat_ns(interval_ms),
            step: match reach {
                Reach::Here => Step::Writing,
                Reach::Shared => Step::Reading,
            },
            next: 0,
            in_flight: 0,
            until_ns: None,
            asked_ns: None,
            read_ns: 0,
            seen_ns: 0,
            written_ns: (0, 0),
            unreleased: None,
            before: None,
            has_written: false,
            has_stood: false,
            tries: 0,
            was_released: false,
            replaced_by: None,
            end: None,
            failed: Vec::new(),
            is_read_only: false,
        }
    }

    /// For a mirror in which a newer version has written fields that this one can't write again:
    /// nothing is written. Another owner's record is watched all the same.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        if self.reach == Reach::Here {
            self.end = Some(AcquireOutput::Acquired);
        }
        self
    }

    /// After an acquisition of the same run that has failed: its [`unreleased`](Self::unreleased).
    #[must_use]
    pub fn after(mut self, unreleased: Option<Unreleased>) -> Self {
        self.has_written = unreleased.is_some();
        self.unreleased = unreleased;
        self
    }

    /// The unreleased owners before us, if our record may be all that is left of theirs: the next
    /// acquisition of this run has to know them.
    pub fn unreleased(&self) -> Option<Unreleased> {
        self.unreleased.filter(|_| self.has_written)
    }

    /// Whether legs that other hosts reach show an unreleased owner, so that everything is written
    /// as if that one lived.
    pub fn takes_over(&self) -> bool {
        self.reach == Reach::Shared && self.unreleased.is_some()
    }

    /// The owner that is watched, and how long the acquisition takes in all if it does not live,
    /// ns.
    pub fn watched(&self) -> Option<(Owner, u64)> {
        let whole_ns = self.interval_ns.saturating_mul(2 * WATCHED_INTERVALS + 5) / 2;
        Some((self.before?, whole_ns)).filter(|_| self.takes_over())
    }

    /// The terms, once the mirror is ours.
    pub fn terms(&self) -> Terms {
        let ours_ms = self.owner.bound_ms;
        Terms {
            written_ns: (self.reach == Reach::Shared && !self.is_read_only)
                .then_some(self.written_ns),
            hold_until_ns: self.unreleased.map_or(0, |it| it.until_ns(ours_ms)),
            left_ms: self.unreleased.map_or(0, |it| it.bound_ms),
        }
    }

    /// Our record: its bound is no shorter than that of unreleased owners until theirs is over.
    fn owner(&self, now_ns: u64) -> Owner {
        let ours_ms = self.owner.bound_ms;
        let lasts = |it: &Unreleased| now_ns < it.until_ns(ours_ms);
        let left_ms = self.unreleased.filter(lasts).map_or(0, |it| it.bound_ms);
        Owner {
            bound_ms: ours_ms.max(left_ms),
            ..self.owner
        }
    }

    /// Returns the superblocks of the legs, as far as they are known.
    pub fn given(&self) -> &[Result<Chosen, NoLeg>] {
        &self.given
    }

    /// The bytes of a copy of a leg whose write was just polled.
    ///
    /// # Panics
    /// If the leg could not be read or written.
    pub fn encode(&self, leg: usize, copy: u8, crc32c: Crc32c) -> [u8; SUPERBLOCK_BYTES] {
        let Ok(it) = self.given[leg] else {
            panic!("leg {leg} is left out, and not written");
        };
        it.superblock.encode(copy, crc32c)
    }

    /// The next thing to do.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<AcquireOutput> {
        if let Some((leg, outcome)) = self.failed.pop() {
            return Some(AcquireOutput::Failed(leg, outcome));
        }
        loop {
            if let Some(end) = self.end.take() {
                self.set_step(Step::Ended);
                return Some(end);
            }
            if let Some(output) = self.ask(now_ns) {
                return Some(output);
            }
            if self.in_flight > 0 || self.is_idle() {
                return None;
            }
            self.advance(now_ns);
        }
    }

    /// Whether only time or nothing at all leads further.
    fn is_idle(&self) -> bool {
        matches!(self.step, Step::Watching | Step::Settling | Step::Ended)
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.until_ns
    }

    /// Ends a wait whose time is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.until_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return; // called early
        }
        self.until_ns = None;
        match self.step {
            Step::Watching => self.set_step(Step::Rereading),
            Step::Settling => self.set_step(Step::Verifying),
            other => unreachable!("{other:?} waits for no time"),
        }
    }

    /// A leg's superblocks were read.
    ///
    /// # Panics
    /// If no read of it is under way.
    pub fn handle_superblocks(&mut self, leg: usize, found: Result<Chosen, NoLeg>) {
        self.answered(leg);
        let Ok(before) = self.given[leg] else {
            panic!("leg {leg} is left out, and not read");
        };
        let foreign = |it: &Chosen| self.foreign(&it.superblock);
        match (found, self.step) {
            // Another leg has shown that the owner lives.
            (_, Step::Ended) => {}
            (Ok(now), Step::Rereading) => {
                let lives = now.superblock.sequence > before.superblock.sequence;
                if let Some(owner) = foreign(&now).filter(|_| lives) {
                    self.end = Some(AcquireOutput::Refused(owner));
                }
                self.given[leg] = found;
            }
            (Ok(_), Step::Reading) => self.given[leg] = found,
            (Ok(now), Step::Verifying) => {
                // Another host wrote here after us: it may have the mirror, or has released it.
                self.replaced_by = foreign(&now).or(self.replaced_by);
                self.was_released |= now.superblock.owner.is_none();
            }
            (Err(_), Step::Reading | Step::Rereading | Step::Verifying) => {
                self.given[leg] = found;
                self.failed.push((leg, Outcome::MediaError));
            }
            (_, step) => unreachable!("{step:?} reads nothing"),
        }
    }

    /// The time before which a write of our record has to start, ns; `u64::MAX`: at any time (T49).
    /// An interval after the read on which it is based another owner may have written: the
    /// acquisition starts over.
    pub fn start_before_ns(&self) -> u64 {
        match self.reach {
            Reach::Here => u64::MAX,
            Reach::Shared => self.read_ns.saturating_add(self.interval_ns),
        }
    }

    /// A superblock is durable on a leg, or could not be written. One that was dropped because it
    /// would have started too late is written again, once: the leg may be as good as before.
    ///
    /// # Panics
    /// If no write to it is under way.
    pub fn handle_written(&mut self, leg: usize, outcome: Outcome, now_ns: u64) {
        self.answered(leg);
        if outcome == Outcome::PathError && self.is_slow(now_ns) && self.tries == 0 {
            return;
        }
        let it = &mut self.given[leg];
        match it {
            Ok(chosen) if outcome.is_done() => {
                chosen.copy = chosen.next_copy();
                chosen.other = Ok(chosen.superblock.sequence);
            }
            _ => {
                *it = Err(NoLeg::Missing);
                self.failed.push((leg, outcome));
            }
        }
    }

    fn answered(&mut self, leg: usize) {
        assert!(self.in_flight > 0, "leg {leg} was asked for nothing");
        self.in_flight -= 1;
    }

    /// The owner in a superblock, if that is not us.
    fn foreign(&self, it: &Superblock) -> Option<Owner> {
        it.owner.filter(|by| by.run != self.owner.run)
    }

    /// The other owners in the records of all legs, which were last seen then.
    fn unreleased_owner(&mut self, seen_ns: u64) -> Option<Unreleased> {
        let legs = self.given.iter().flatten();
        let others = legs.filter_map(|it| self.foreign(&it.superblock));
        let before = others.clone().next();
        let bound_ms = others.map(|it| match it.bound_ms {
            0 => BOUND_DEFAULT_MS,
            ms => ms.min(BOUND_MAX_MS),
        });
        let bound_ms = bound_ms.max()?;
        self.before = before;
        let lease_ns = self.interval_ns.saturating_mul(LEASE_INTERVALS);
        Some(Unreleased {
            bound_ms,
            lapsed_ns: seen_ns.saturating_add(lease_ns),
        })
    }

    /// Reads or writes the next leg, as this step needs.
    fn ask(&mut self, now_ns: u64) -> Option<AcquireOutput> {
        if self.is_idle() {
            return None;
        }
        let owner = self.owner(now_ns);
        while self.next < self.given.len() {
            let leg = self.next;
            self.next += 1;
            let Ok(chosen) = &mut self.given[leg] else {
                continue; // it is left out
            };
            let output = match self.step {
                Step::Reading | Step::Rereading | Step::Verifying => AcquireOutput::Read(leg),
                Step::Writing => {
                    chosen.superblock = chosen.superblock.owned(Some(owner));
                    self.has_written = true;
                    if self.unreleased.is_some() && self.has_stood {
                        chosen.superblock.sequence += SEQUENCE_STEP;
                    }
                    AcquireOutput::Write(leg, chosen.next_copy())
                }
                Step::WritingOther => AcquireOutput::Write(leg, chosen.next_copy()),
                Step::Watching | Step::Settling | Step::Ended => unreachable!("it is idle"),
            };
            self.in_flight += 1;
            self.asked_ns.get_or_insert(now_ns);
            return Some(output);
        }
        None
    }

    /// All legs have answered in this step.
    fn advance(&mut self, now_ns: u64) {
        // Where no leg is left none was asked.
        let asked_ns = self.asked_ns.unwrap_or(now_ns);
        match self.step {
            Step::Reading => {
                self.read_ns = asked_ns;
                match self.unreleased_owner(now_ns) {
                    Some(it) => {
                        self.seen_ns = now_ns;
                        self.unreleased = Some(it.and(self.unreleased));
                        self.wait(now_ns, self.interval_ns.saturating_mul(WATCHED_INTERVALS));
                        self.set_step(Step::Watching);
                    }
                    None => self.write(now_ns),
                }
            }
            Step::Rereading => {
                self.read_ns = asked_ns;
                self.unreleased = match self.unreleased_owner(self.seen_ns) {
                    Some(it) => Some(it.and(self.unreleased)),
                    // An owner that has released the mirror left nothing behind, but the one before
                    // it may have.
                    None => self.unreleased.filter(|_| self.has_written),
                };
                self.write(now_ns);
            }
            Step::Writing | Step::WritingOther if self.is_slow(now_ns) => self.restart(),
            Step::Writing => {
                self.written_ns.0 = asked_ns;
                match self.is_first() {
                    true => self.settle(now_ns),
                    false => self.set_step(Step::WritingOther),
                }
            }
            Step::WritingOther if self.reach == Reach::Shared => {
                self.written_ns.1 = now_ns;
                self.settle(now_ns);
            }
            Step::Verifying if self.was_released || self.replaced_by.is_some() => self.restart(),
            Step::Verifying if self.is_first() => {
                self.has_stood = true;
                self.read_ns = asked_ns;
                self.write(now_ns);
            }
            Step::WritingOther | Step::Verifying => self.end = Some(AcquireOutput::Acquired),
            Step::Watching | Step::Settling | Step::Ended => unreachable!("it is idle"),
        }
    }

    /// Whether an unreleased owner may not have seen our record yet.
    fn is_first(&self) -> bool {
        self.unreleased.is_some() && !self.has_stood
    }

    /// Whether another host may have come since the read, found no owner, and seen its own record
    /// stand.
    fn is_slow(&self, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.read_ns);
        self.reach == Reach::Shared && since_ns > self.interval_ns
    }

    /// Begins to write our record, if the read on which it is based is not too old.
    fn write(&mut self, now_ns: u64) {
        if self.is_read_only {
            self.end = Some(AcquireOutput::Acquired);
        } else if self.is_slow(now_ns) {
            self.restart();
        } else {
            self.set_step(Step::Writing);
        }
    }

    fn settle(&mut self, now_ns: u64) {
        let half_ns = if self.is_first() {
            self.interval_ns / 2
        } else {
            0
        };
        self.wait(now_ns, self.interval_ns + half_ns);
        self.set_step(Step::Settling);
    }

    /// Starts over: the record on the legs may be another owner's by now.
    fn restart(&mut self) {
        self.has_stood = false;
        self.tries += 1;
        self.was_released = false;
        match (self.tries < TRIES_MAX, self.replaced_by.take()) {
            (true, _) => self.set_step(Step::Reading),
            (false, Some(owner)) => self.end = Some(AcquireOutput::Refused(owner)),
            (false, None) => self.end = Some(AcquireOutput::Slow),
        }
    }

    fn wait(&mut self, now_ns: u64, wait_ns: u64) {
        self.until_ns = Some(now_ns.saturating_add(wait_ns));
    }

    fn set_step(&mut self, next: Step) {
        assert!(is_edge(self.step, next), "from {:?} to {next:?}", self.step);
        (self.step, self.next, self.asked_ns) = (next, 0, None);
    }
}

/// Whether an acquisition can go from one step to the other.
fn is_edge(before: Step, next: Step) -> bool {
    use Step::{Ended, Reading, Rereading, Settling, Verifying, Watching, Writing, WritingOther};
    match next {
        Ended => before != Ended,
        // It starts over.
        Reading => matches!(
            before,
            Reading | Rereading | Writing | WritingOther | Verifying
        ),
        Watching => before == Reading,
        Rereading => before == Watching,
        // A record that had to stand is written once more.
        Writing => matches!(before, Reading | Rereading | Verifying),
        WritingOther => before == Writing,
        Settling => matches!(before, Writing | WritingOther),
        Verifying => before == Settling,
    }
}

#[cfg(test)]
mod tests;
