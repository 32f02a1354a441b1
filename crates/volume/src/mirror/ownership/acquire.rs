//! Who has a mirror: the owner's record is written to its legs before anything else is (T48).
//!
//! # Contract
//! [`Claim::poll_output`] until `None`, at first and after each other call; a read is answered by
//! [`handle_superblocks`](Claim::handle_superblocks), a write, which is durable then, by
//! [`handle_written`](Claim::handle_written). It ends with [`ClaimOutput::Owned`] (then
//! [`given`](Claim::given) says what is on the legs now) or [`ClaimOutput::Refused`]. A leg that
//! can't be written is left out, and is an error in `given`.
//!
//! Where only this host reaches the legs, whoever has them has locked them, so a record of somebody
//! else is of one that is gone. Where others do, all legs are read anew, so that nothing is written
//! over what another host has written since they were read, and a foreign owner is watched for
//! three of its beats: one whose sequence rises on any leg lives, and has the mirror. Else our
//! record is written, and has to stand on all legs after one more beat: of two that come at once,
//! at most one finds it so. After an owner that was not heard it has to stand for two and a half,
//! as that one may have read its own record just before, and may give out I/O for two beats from
//! then on (`LEASE_BEATS`). Meanwhile it is written once more, so that others see who lives. Where
//! somebody else's is found instead, all begins anew: it may be a beat of one that is gone, which
//! came late; one that lives is heard by that watch. After so often as there are tries, it has it.
//!
//! What such an owner gave its legs last may be executed until [`Terms::hold_until_ns`] (T9). Its
//! superblocks too: the record that is written the second time has a sequence that its own don't
//! reach, in both copies, so these are never chosen.
//!
//! So such a claim ([`takes_over`](Claim::takes_over)) needs nobody to wait for what that owner's
//! legs may yet execute, whether it was on another host or on this one: what of that comes over a
//! copy of the first writing is read before the second, and begins anew; what comes over one of the
//! second has the lower sequence. One that found nobody has no such step: its record has to be kept
//! back where this host's engine before may have something on its way.
//!
//! [Who only reads](Claim::to_read) writes no record, and is seen by nobody.
//!
//! Nothing on a leg is compared and written in one step, so who stands still after it has looked
//! may write over what came between. It writes one copy first, with the sequence that comes next
//! by what it saw: one that somebody has beaten since has a higher one in the other copy, which
//! holds. From the look to the end of the writing a beat may pass; else all begins anew, and what
//! has not started by then does not ([`start_before_ns`](Claim::start_before_ns), T49).
//!
//! # Limits
//! One copy more of what somebody else says at that moment may be lost so: where its event was in
//! that copy alone, that event. Legs that several hosts reach need reservations besides.
use super::super::Crc32c;
use super::super::Superblock;
use super::super::copies::{Chosen, NoLeg};
use super::super::superblock::{Owner, SUPERBLOCK_BYTES};
use crate::Outcome;
use alloc::vec::Vec;

/// Who can reach the legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only this host, where they are locked.
    Here,
    /// Others too.
    Shared,
}

/// What is to be done. Numbers are those of the legs given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutput {
    /// Read both superblocks of a leg.
    Read(usize),
    /// Write [`Claim::encode`] to this copy of a leg, durably.
    Write(usize, u8),
    /// The mirror is ours.
    Owned,
    /// It is somebody else's.
    Refused(Owner),
    /// Legs take longer to answer than an owner may take from one beat to the next.
    Slow,
    /// A leg can't be written, and is left out; no end.
    Failed(usize, Outcome),
}

impl ClaimOutput {
    /// Whether nothing comes after it.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Owned | Self::Refused(_) | Self::Slow)
    }
}

/// On which terms the mirror was got: what its machine has to heed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Others reach the legs: when our record began to be written, and when it stood. `None`: only
    /// we do.
    pub written_ns: Option<(u64, u64)>,
    /// What the owner before us gave its legs may be executed until then.
    pub hold_until_ns: u64,
    /// The bound of that, ms: till then our record says no less, since who comes after us finds
    /// nothing else.
    pub left_ms: u32,
}

/// Where a mirror without beats says nothing else, ms.
const BEAT_USUAL_MS: u32 = 5000;
/// So many beats a foreign owner may miss.
pub(in crate::mirror) const BEATS_MISSED: u64 = 3;
/// An owner of legs that others reach gives out I/O for so many beats from when it began the last
/// one that ended well.
pub(in crate::mirror) const LEASE_BEATS: u64 = 2;
/// So often all begins anew.
const TRIES_MAX: u8 = 4;
/// By so much our sequences are above those of an owner that may still have some on their way.
const SEQUENCE_STEP: u64 = 1 << 20;
/// What an owner may leave behind that does not say it (T9), ms: as `leg_quiesce`.
const BOUND_USUAL_MS: u32 = 30_000;
/// Most that is believed of what an owner leaves behind, and that may be written down, ms: twice
/// the longest keep-alive time that is of any use, and the longest that a controller may quiesce
/// (65.5 s). A record that is damaged, or a mistake, must not keep a mirror from changes for days.
pub const BOUND_MAX_MS: u32 = 600_000;

/// Longest time between beats, ms: what says more is damaged or a mistake, and must not keep
/// everybody from the mirror for days.
pub const BEAT_MAX_MS: u32 = 60_000;

/// How long a beat of legs that others reach is, ns, by what their superblocks say.
pub fn beat_ns(interval_ms: u32) -> u64 {
    let ms = match interval_ms {
        0 => BEAT_USUAL_MS,
        ms => ms.min(BEAT_MAX_MS),
    };
    u64::from(ms) * 1_000_000
}

/// An owner that was there before us and did not release the mirror. Of several, the most of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// What it said that it leaves behind, as far as that is believed.
    bound_ms: u32,
    /// It gave nothing out later.
    lapsed_ns: u64,
}

impl Gone {
    fn and(self, before: Option<Self>) -> Self {
        before.map_or(self, |it| Self {
            bound_ms: self.bound_ms.max(it.bound_ms),
            lapsed_ns: self.lapsed_ns.max(it.lapsed_ns),
        })
    }

    /// Until when what it gave its legs may be executed, where we would leave so much behind.
    fn until_ns(self, ours_ms: u32) -> u64 {
        let bound_ns = u64::from(self.bound_ms.max(ours_ms)) * 1_000_000;
        self.lapsed_ns.saturating_add(bound_ns)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// What stands there now: the legs were read long ago, maybe.
    First,
    /// A foreign owner may live.
    Watch,
    /// Whether it does.
    Look,
    /// Our record goes to the copy that does not hold; then to the other.
    Write,
    WriteOther,
    /// Another may have come at the same time.
    Settle,
    /// Whether ours stands.
    Verify,
    Over,
}

/// See the module's contract.
#[derive(Debug)]
pub struct Claim {
    owner: Owner,
    given: Vec<Result<Chosen, NoLeg>>,
    reach: Reach,
    beat_ns: u64,
    step: Step,
    /// Legs below were asked in this step.
    next: usize,
    waits: usize,
    until_ns: Option<u64>,
    /// When the first leg was asked in this step.
    asked_ns: Option<u64>,
    /// When what our record rests on was asked for; when it began to be written, and stood.
    looked_ns: u64,
    /// When a foreign owner's record was there that is watched.
    seen_ns: u64,
    written_ns: (u64, u64),
    gone: Option<Gone>,
    /// Who that is, by what the legs said last.
    before: Option<Owner>,
    /// Our record is on a leg, maybe instead of the one of who is gone.
    wrote: bool,
    /// How often it has stood; how often all began anew.
    stood: u8,
    tries: u8,
    /// Some leg says that nobody has it: somebody came after us, and left.
    unowned: bool,
    /// Whose record stands where ours should.
    over: Option<Owner>,
    end: Option<ClaimOutput>,
    failed: Vec<(usize, Outcome)>,
    only_reads: bool,
}

impl Claim {
    /// Begins to make the mirror of these legs `owner`'s.
    pub fn new(owner: Owner, given: &[Result<Chosen, NoLeg>], reach: Reach) -> Self {
        let legs = || given.iter().flatten().map(|it| it.superblock);
        let beat_ns = beat_ns(legs().map(|it| it.beat_interval_ms).max().unwrap_or(0));
        Self {
            owner,
            given: given.to_vec(),
            reach,
            beat_ns,
            step: match reach {
                Reach::Here => Step::Write,
                Reach::Shared => Step::First,
            },
            next: 0,
            waits: 0,
            until_ns: None,
            asked_ns: None,
            looked_ns: 0,
            seen_ns: 0,
            written_ns: (0, 0),
            gone: None,
            before: None,
            wrote: false,
            stood: 0,
            tries: 0,
            unowned: false,
            over: None,
            end: None,
            failed: Vec::new(),
            only_reads: false,
        }
    }

    /// Of a mirror of which a newer version has written what this one can't write again: nothing
    /// is written; an owner that lives is looked for all the same.
    #[must_use]
    pub fn to_read(mut self) -> Self {
        self.only_reads = true;
        if self.reach == Reach::Here {
            self.end = Some(ClaimOutput::Owned);
        }
        self
    }

    /// After a claim of the same run that has not ended well: what was [`gone`](Self::gone) then.
    #[must_use]
    pub fn after(mut self, gone: Option<Gone>) -> Self {
        (self.gone, self.wrote) = (gone, gone.is_some());
        self
    }

    /// Who was there before us, where our record is all that is left of it: what the next claim of
    /// this run has to know.
    pub fn gone(&self) -> Option<Gone> {
        self.gone.filter(|_| self.wrote)
    }

    /// Whether somebody else has or had it by what legs that others reach say, so that all is
    /// written as if that one lived.
    pub fn takes_over(&self) -> bool {
        self.reach == Reach::Shared && self.gone.is_some()
    }

    /// Who has or had it, while it is looked whether that one lives; and how long that takes in
    /// all, if it does not, ns.
    pub fn watched(&self) -> Option<(Owner, u64)> {
        let whole_ns = self.beat_ns.saturating_mul(2 * BEATS_MISSED + 5) / 2;
        Some((self.before?, whole_ns)).filter(|_| self.takes_over())
    }

    /// What its machine has to heed, once the mirror is ours.
    pub fn terms(&self) -> Terms {
        let ours_ms = self.owner.bound_ms;
        Terms {
            written_ns: (self.reach == Reach::Shared && !self.only_reads)
                .then_some(self.written_ns),
            hold_until_ns: self.gone.map_or(0, |gone| gone.until_ns(ours_ms)),
            left_ms: self.gone.map_or(0, |gone| gone.bound_ms),
        }
    }

    /// What we say of ourselves: till what others have left is over, no less than they did.
    fn owner(&self, now_ns: u64) -> Owner {
        let ours_ms = self.owner.bound_ms;
        let lasts = |gone: &Gone| now_ns < gone.until_ns(ours_ms);
        let left_ms = self.gone.filter(lasts).map_or(0, |gone| gone.bound_ms);
        Owner {
            bound_ms: ours_ms.max(left_ms),
            ..self.owner
        }
    }

    /// What the legs say, as far as it is known.
    pub fn given(&self) -> &[Result<Chosen, NoLeg>] {
        &self.given
    }

    /// The bytes of a copy of a leg.
    pub fn encode(&self, leg: usize, copy: u8, crc32c: Crc32c) -> [u8; SUPERBLOCK_BYTES] {
        match self.given.get(leg) {
            Some(Ok(it)) => it.superblock.encode(copy, crc32c),
            _ => [0; SUPERBLOCK_BYTES],
        }
    }

    /// What is to be done next.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<ClaimOutput> {
        if let Some((leg, outcome)) = self.failed.pop() {
            return Some(ClaimOutput::Failed(leg, outcome));
        }
        loop {
            if let Some(end) = self.end.take() {
                self.step = Step::Over;
                return Some(end);
            }
            if let Some(output) = self.ask(now_ns) {
                return Some(output);
            }
            if self.waits > 0 || matches!(self.step, Step::Watch | Step::Settle | Step::Over) {
                return None;
            }
            self.go_on(now_ns);
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.until_ns
    }

    /// That time has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.until_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.until_ns = None;
            self.enter(match self.step {
                Step::Watch => Step::Look,
                Step::Settle => Step::Verify,
                other => other,
            });
        }
    }

    /// What a leg's superblocks say now.
    pub fn handle_superblocks(&mut self, leg: usize, found: Result<Chosen, NoLeg>) {
        self.waits = self.waits.saturating_sub(1);
        let Some(Ok(before)) = self.given.get(leg).copied() else {
            return;
        };
        let foreign = |it: &Chosen| self.foreign(&it.superblock);
        match (found, self.step) {
            (Ok(now), Step::Look) => {
                let lives = now.superblock.sequence > before.superblock.sequence;
                if let Some(owner) = foreign(&now).filter(|_| lives) {
                    self.end = Some(ClaimOutput::Refused(owner));
                }
                self.given[leg] = found;
            }
            (Ok(_), Step::First) => self.given[leg] = found,
            (Ok(now), _) => {
                // Whoever wrote here after us may have it, or nobody.
                self.over = foreign(&now).or(self.over);
                self.unowned |= now.superblock.owner.is_none();
            }
            (Err(_), _) => {
                self.given[leg] = found;
                self.failed.push((leg, Outcome::MediaError));
            }
        }
    }

    /// The time before which a write of our record has to start, ns; `u64::MAX`: at any time (T49).
    /// A beat after that on which it rests was read another owner may have come, and it begins
    /// anew.
    pub fn start_before_ns(&self) -> u64 {
        match self.reach {
            Reach::Here => u64::MAX,
            Reach::Shared => self.looked_ns.saturating_add(self.beat_ns),
        }
    }

    /// A superblock is durable on a leg, or can't be. One that was not written since it would have
    /// come too late is written anew, once: the leg may be as good as before.
    pub fn handle_written(&mut self, leg: usize, outcome: Outcome, now_ns: u64) {
        self.waits = self.waits.saturating_sub(1);
        if outcome == Outcome::PathError && self.is_slow(now_ns) && self.tries == 0 {
            return;
        }
        let Some(it) = self.given.get_mut(leg) else {
            return;
        };
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

    /// Somebody else, if one has it by what a leg says.
    fn foreign(&self, it: &Superblock) -> Option<Owner> {
        it.owner.filter(|by| by.run != self.owner.run)
    }

    /// Who has it by what any leg says, other than us, and was last heard then: whatever any of
    /// them leaves behind.
    fn left_by_others(&mut self, seen_ns: u64) -> Option<Gone> {
        let legs = self.given.iter().flatten();
        let others = legs.filter_map(|it| self.foreign(&it.superblock));
        let before = others.clone().next();
        let bound_ms = others.map(|it| match it.bound_ms {
            0 => BOUND_USUAL_MS,
            ms => ms.min(BOUND_MAX_MS),
        });
        let bound_ms = bound_ms.max()?;
        self.before = before;
        let lease_ns = self.beat_ns.saturating_mul(LEASE_BEATS);
        Some(Gone {
            bound_ms,
            lapsed_ns: seen_ns.saturating_add(lease_ns),
        })
    }

    /// Asks the next leg for what this step needs.
    fn ask(&mut self, now_ns: u64) -> Option<ClaimOutput> {
        let owner = self.owner(now_ns);
        while self.next < self.given.len() {
            let leg = self.next;
            let Ok(chosen) = &mut self.given[leg] else {
                self.next += 1;
                continue;
            };
            let output = match self.step {
                Step::First | Step::Look | Step::Verify => ClaimOutput::Read(leg),
                Step::Write => {
                    chosen.superblock = chosen.superblock.owned(Some(owner));
                    self.wrote = true;
                    if self.gone.is_some() && self.stood > 0 {
                        chosen.superblock.sequence += SEQUENCE_STEP;
                    }
                    ClaimOutput::Write(leg, chosen.next_copy())
                }
                Step::WriteOther => ClaimOutput::Write(leg, chosen.next_copy()),
                Step::Watch | Step::Settle | Step::Over => return None,
            };
            self.next += 1;
            self.waits += 1;
            self.asked_ns.get_or_insert(now_ns);
            return Some(output);
        }
        None
    }

    /// All legs have answered in this step.
    fn go_on(&mut self, now_ns: u64) {
        let asked_ns = self.asked_ns.unwrap_or(now_ns);
        match self.step {
            Step::First => {
                self.looked_ns = asked_ns;
                match self.left_by_others(now_ns) {
                    Some(gone) => {
                        self.seen_ns = now_ns;
                        self.gone = Some(gone.and(self.gone));
                        self.wait(now_ns, self.beat_ns.saturating_mul(BEATS_MISSED));
                        self.enter(Step::Watch);
                    }
                    None => self.write(now_ns),
                }
            }
            Step::Look => {
                self.looked_ns = asked_ns;
                self.gone = match self.left_by_others(self.seen_ns) {
                    Some(gone) => Some(gone.and(self.gone)),
                    // Who has released it has nothing on its way; but not who was there before.
                    None => self.gone.filter(|_| self.wrote),
                };
                self.write(now_ns);
            }
            Step::Write if self.is_slow(now_ns) => self.anew(),
            Step::Write => {
                self.written_ns.0 = asked_ns;
                match self.is_first() {
                    true => self.settle(now_ns),
                    false => self.enter(Step::WriteOther),
                }
            }
            Step::WriteOther if self.is_slow(now_ns) => self.anew(),
            Step::WriteOther if self.reach == Reach::Shared => {
                self.written_ns.1 = now_ns;
                self.settle(now_ns);
            }
            Step::Verify if self.unowned || self.over.is_some() => self.anew(),
            Step::Verify if self.is_first() => {
                self.stood = 1;
                self.looked_ns = asked_ns;
                self.write(now_ns);
            }
            Step::WriteOther | Step::Verify => self.end = Some(ClaimOutput::Owned),
            Step::Watch | Step::Settle | Step::Over => {}
        }
    }

    /// Whether an owner that was there before may not have seen our record yet.
    fn is_first(&self) -> bool {
        self.gone.is_some() && self.stood == 0
    }

    /// Whether another one may have come since we looked, found nobody, and seen its own record
    /// stand.
    fn is_slow(&self, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.looked_ns);
        self.reach == Reach::Shared && since_ns > self.beat_ns
    }

    /// Our record is written, where what it rests on was read just now.
    fn write(&mut self, now_ns: u64) {
        match self.is_slow(now_ns) {
            _ if self.only_reads => self.end = Some(ClaimOutput::Owned),
            true => self.anew(),
            false => self.enter(Step::Write),
        }
    }

    fn settle(&mut self, now_ns: u64) {
        let half_ns = if self.is_first() { self.beat_ns / 2 } else { 0 };
        self.wait(now_ns, self.beat_ns + half_ns);
        self.enter(Step::Settle);
    }

    /// All from the beginning: what stands there may be another's by now.
    fn anew(&mut self) {
        self.stood = 0;
        self.tries += 1;
        self.unowned = false;
        match (self.tries < TRIES_MAX, self.over.take()) {
            (true, _) => self.enter(Step::First),
            (false, Some(owner)) => self.end = Some(ClaimOutput::Refused(owner)),
            (false, None) => self.end = Some(ClaimOutput::Slow),
        }
    }

    fn wait(&mut self, now_ns: u64, wait_ns: u64) {
        self.until_ns = Some(now_ns.saturating_add(wait_ns));
    }

    fn enter(&mut self, step: Step) {
        (self.step, self.next, self.asked_ns) = (step, 0, None);
    }
}

#[cfg(test)]
mod tests;
