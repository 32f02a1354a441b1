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
//! three of its beats: one whose sequence rises lives, and has the mirror. Else our record is
//! written, and has to stand on all legs after one more beat: of two that come at once, at most
//! one finds it so.
//!
//! # Limits
//! An owner that stood still for longer than that and goes on may have I/O on its way. Legs that
//! several hosts reach need reservations besides.
use super::Crc32c;
use super::copies::{Chosen, NoLeg};
use super::superblock::{Owner, SUPERBLOCK_BYTES};
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
    /// A leg can't be written, and is left out; no end.
    Failed(usize, Outcome),
}

/// Where a mirror without beats says nothing else, ms.
const BEAT_USUAL_MS: u32 = 5000;
/// So many beats a foreign owner may miss.
const BEATS_MISSED: u64 = 3;

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
    end: Option<ClaimOutput>,
    failed: Vec<(usize, Outcome)>,
}

impl Claim {
    /// Begins to make the mirror of these legs `owner`'s.
    pub fn new(owner: Owner, given: &[Result<Chosen, NoLeg>], reach: Reach) -> Self {
        let legs = || given.iter().flatten().map(|it| it.superblock);
        let beats = legs().map(|it| it.beat_interval_ms).filter(|&ms| ms > 0);
        let beat_ns = u64::from(beats.max().unwrap_or(BEAT_USUAL_MS)) * 1_000_000;
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
            end: None,
            failed: Vec::new(),
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
            if let Some(output) = self.ask() {
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
    pub fn handle_superblocks(&mut self, leg: usize, found: Result<Chosen, NoLeg>, _now_ns: u64) {
        self.waits = self.waits.saturating_sub(1);
        let Some(Ok(before)) = self.given.get(leg).copied() else {
            return;
        };
        let foreign = |it: &Chosen| it.superblock.owner.filter(|by| by.run != self.owner.run);
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
                // Whoever wrote here after us has it, or nobody.
                if let Some(owner) = foreign(&now) {
                    self.end = Some(ClaimOutput::Refused(owner));
                }
            }
            (Err(_), _) => {
                self.given[leg] = found;
                self.failed.push((leg, Outcome::MediaError));
            }
        }
    }

    /// A superblock is durable on a leg, or can't be.
    pub fn handle_written(&mut self, leg: usize, outcome: Outcome, _now_ns: u64) {
        self.waits = self.waits.saturating_sub(1);
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

    /// Asks the next leg for what this step needs.
    fn ask(&mut self) -> Option<ClaimOutput> {
        while self.next < self.given.len() {
            let leg = self.next;
            let Ok(chosen) = &mut self.given[leg] else {
                self.next += 1;
                continue;
            };
            let output = match self.step {
                Step::First | Step::Look | Step::Verify => ClaimOutput::Read(leg),
                Step::Write => {
                    chosen.superblock = chosen.superblock.owned(Some(self.owner));
                    ClaimOutput::Write(leg, chosen.next_copy())
                }
                Step::WriteOther => ClaimOutput::Write(leg, chosen.next_copy()),
                Step::Watch | Step::Settle | Step::Over => return None,
            };
            self.next += 1;
            self.waits += 1;
            return Some(output);
        }
        None
    }

    /// All legs have answered in this step.
    fn go_on(&mut self, now_ns: u64) {
        match self.step {
            Step::First => {
                let mut legs = self.given.iter().flatten();
                let run = self.owner.run;
                let is_foreign = |it: Owner| it.run != run;
                match legs.any(|it| it.superblock.owner.is_some_and(is_foreign)) {
                    true => {
                        let patience_ns = self.beat_ns.saturating_mul(BEATS_MISSED);
                        self.until_ns = Some(now_ns.saturating_add(patience_ns));
                        self.enter(Step::Watch);
                    }
                    false => self.enter(Step::Write),
                }
            }
            Step::Look => self.enter(Step::Write),
            Step::Write => self.enter(Step::WriteOther),
            Step::WriteOther if self.reach == Reach::Shared => {
                self.until_ns = Some(now_ns.saturating_add(self.beat_ns));
                self.enter(Step::Settle);
            }
            Step::WriteOther | Step::Verify => self.end = Some(ClaimOutput::Owned),
            Step::Watch | Step::Settle | Step::Over => {}
        }
    }

    fn enter(&mut self, step: Step) {
        (self.step, self.next) = (step, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::assembly::tests::legs;
    use super::super::{Id, Label, Superblock};
    use super::*;

    const BEAT_NS: u64 = 5_000_000_000;

    fn owner(run: u8) -> Owner {
        Owner {
            run: Id([run; 16]),
            host: Id([run; 16]),
            label: Label::cut("somebody"),
            since_s: 0,
            beat_s: 0,
        }
    }

    /// Legs as they lie, and what several hosts do to them.
    struct Legs(Vec<Chosen>);

    impl Legs {
        fn new(by: Option<Owner>) -> Self {
            let chosen = |it: Superblock| Chosen {
                superblock: Superblock {
                    owner: by,
                    beat_interval_ms: 5000,
                    ..it
                },
                copy: 0,
                other: Ok(it.sequence),
            };
            Self(legs(2).into_iter().map(chosen).collect())
        }

        fn given(&self) -> Vec<Result<Chosen, NoLeg>> {
            self.0.iter().copied().map(Ok).collect()
        }

        /// Does what is asked until nothing is; the end, if it came. Writes to leg `fails` do.
        fn serve(&mut self, claim: &mut Claim, now_ns: u64, fails: usize) -> Option<ClaimOutput> {
            while let Some(output) = claim.poll_output(now_ns) {
                match output {
                    ClaimOutput::Read(leg) => {
                        claim.handle_superblocks(leg, Ok(self.0[leg]), now_ns);
                    }
                    ClaimOutput::Write(leg, _) if leg == fails => {
                        claim.handle_written(leg, Outcome::PathError, now_ns);
                    }
                    ClaimOutput::Write(leg, copy) => {
                        let superblock = claim.given()[leg].unwrap().superblock;
                        (self.0[leg].superblock, self.0[leg].copy) = (superblock, copy);
                        claim.handle_written(leg, Outcome::Done, now_ns);
                    }
                    ClaimOutput::Failed(leg, _) => assert_eq!(leg, fails),
                    end => return Some(end),
                }
            }
            None
        }
    }

    const NONE: usize = usize::MAX;

    #[test]
    fn t48_here_a_record_is_of_one_that_is_gone() {
        let mut legs = Legs::new(Some(owner(1)));
        let mut claim = Claim::new(owner(2), &legs.given(), Reach::Here);
        assert_eq!(legs.serve(&mut claim, 0, NONE), Some(ClaimOutput::Owned));
        assert!(claim.poll_timeout().is_none() && claim.poll_output(0).is_none());
        for (leg, given) in legs.0.iter().zip(claim.given()) {
            let given = given.unwrap();
            assert_eq!(leg.superblock.owner, Some(owner(2)));
            assert_eq!(given.superblock, leg.superblock);
            assert_eq!(given.other, Ok(given.superblock.sequence), "both copies");
        }
    }

    #[test]
    fn t48_a_foreign_owner_that_lives_has_it_and_one_that_is_silent_does_not() {
        for lives in [false, true] {
            let mut legs = Legs::new(Some(owner(1)));
            let mut claim = Claim::new(owner(2), &legs.given(), Reach::Shared);
            assert_eq!(legs.serve(&mut claim, 0, NONE), None);
            assert_eq!(claim.poll_timeout(), Some(3 * BEAT_NS));
            claim.handle_timeout(3 * BEAT_NS - 1);
            assert_eq!(legs.serve(&mut claim, 3 * BEAT_NS - 1, NONE), None);
            if lives {
                let beaten = legs.0[1].superblock.owned(Some(owner(1)));
                legs.0[1].superblock = beaten;
            }
            claim.handle_timeout(3 * BEAT_NS);
            let end = legs.serve(&mut claim, 3 * BEAT_NS, NONE);
            if lives {
                assert_eq!(end, Some(ClaimOutput::Refused(owner(1))));
                assert_eq!(legs.0[0].superblock.owner, Some(owner(1)), "untouched");
                continue;
            }
            assert_eq!((end, claim.poll_timeout()), (None, Some(4 * BEAT_NS)));
            claim.handle_timeout(4 * BEAT_NS);
            let end = legs.serve(&mut claim, 4 * BEAT_NS, NONE);
            assert_eq!(end, Some(ClaimOutput::Owned));
        }
    }

    #[test]
    fn t48_of_two_that_come_at_once_at_most_one_has_it() {
        let mut legs = Legs::new(None);
        let given = legs.given();
        let mut claims = [1, 2].map(|run| Claim::new(owner(run), &given, Reach::Shared));
        for claim in &mut claims {
            // Both find nobody.
            while let Some(ClaimOutput::Read(leg)) = claim.poll_output(0) {
                claim.handle_superblocks(leg, Ok(legs.0[leg]), 0);
                if leg == 1 {
                    break;
                }
            }
        }
        for claim in &mut claims {
            assert_eq!(legs.serve(claim, 0, NONE), None);
            assert_eq!(claim.poll_timeout(), Some(BEAT_NS), "it has written");
        }
        let ends = claims.each_mut().map(|claim| {
            claim.handle_timeout(BEAT_NS);
            legs.serve(claim, BEAT_NS, NONE)
        });
        let owned = ends.iter().filter(|end| **end == Some(ClaimOutput::Owned));
        assert_eq!(owned.count(), 1, "{ends:?}");
    }

    #[test]
    fn t48_what_another_host_has_written_since_is_not_written_over() {
        let mut legs = Legs::new(None);
        let given = legs.given();
        // It had the mirror, changed something and left in order.
        for leg in &mut legs.0 {
            let now = Superblock {
                event: leg.superblock.event + 1,
                ..leg.superblock.owned(None)
            };
            leg.superblock = now;
        }
        let newest = legs.0[0].superblock.event;
        let mut claim = Claim::new(owner(2), &given, Reach::Shared);
        assert_eq!(legs.serve(&mut claim, 0, NONE), None);
        claim.handle_timeout(BEAT_NS);
        let end = legs.serve(&mut claim, BEAT_NS, NONE);
        assert_eq!(end, Some(ClaimOutput::Owned));
        assert!(legs.0.iter().all(|leg| leg.superblock.event == newest));
        let known = claim.given().iter().flatten();
        assert!(
            known.clone().count() == 2 && known.clone().all(|it| it.superblock.event == newest)
        );
    }

    #[test]
    fn a_leg_that_cannot_be_written_is_left_out() {
        let mut legs = Legs::new(None);
        let mut claim = Claim::new(owner(2), &legs.given(), Reach::Here);
        assert_eq!(legs.serve(&mut claim, 0, 0), Some(ClaimOutput::Owned));
        assert!(claim.given()[0].is_err() && claim.given()[1].is_ok());
    }
}
