//! Ownership of a mirror's legs (T48): one machine from the first superblock that is read to the
//! release.
//!
//! [`State`]s, changed by `set_state` alone, which asserts each edge:
//! * `Assembling`: superblocks are read until a start can be decided (`assembling`)
//! * `Refused`: a start was refused, and is tried again later
//! * `Acquiring`: the owner's record is written and has to stand ([`Acquire`])
//! * `Owned`: heartbeats renew the leases of the legs (`lease`)
//! * `ReadOnly`: nothing is written, no record either
//! * `Releasing`: the record is about to be cleared, so no heartbeat is written any more
//! * `Abandoned`: a lease ended during a release: nothing more is written, and the record stays
//! * `Released`: the mirror has stopped
//! * `Lost`: another owner's record is on a leg
//!
//! # Contract
//! Pure: the engine reads and writes legs, and hands the object on to
//! [`Mirror::start`](super::machine::Mirror::start) once the mirror is ours. Which legs make a
//! mirror is `assembly`'s decision, and what a running mirror may issue is `machine`'s.
mod acquire;
mod assembling;
mod lease;

pub use acquire::{Acquire, AcquireOutput, BOUND_MAX_MS, Reach, Terms};
pub use assembling::{Known, LegRead, Reading};
pub(super) use lease::{Heartbeat, Leases, Renewal, Watch};

use super::copies::{Chosen, NoLeg};
use super::superblock::Owner;
use acquire::Unreleased;
use alloc::boxed::Box;
use assembling::Assembling;

/// The heartbeat interval of a mirror whose superblocks have none, ms.
const HEARTBEAT_DEFAULT_MS: u32 = 5000;
/// Longest heartbeat interval, ms. A longer one is damaged or a mistake, and must not keep all
/// hosts from the mirror for days.
pub const HEARTBEAT_MAX_MS: u32 = 60_000;
/// Heartbeat intervals for which another owner's record is watched.
const WATCHED_INTERVALS: u64 = 3;
/// Heartbeat intervals of a lease: a leg that other hosts reach gets I/O for so long from the start
/// of its last heartbeat that ended well.
const LEASE_INTERVALS: u64 = 2;

/// The heartbeat interval of legs that other hosts reach, ns, by their superblocks.
pub fn heartbeat_ns(interval_ms: u32) -> u64 {
    let ms = match interval_ms {
        0 => HEARTBEAT_DEFAULT_MS,
        ms => ms.min(HEARTBEAT_MAX_MS),
    };
    u64::from(ms) * 1_000_000
}

/// A state of the ownership: see the module.
#[derive(Debug)]
pub enum State {
    /// Superblocks are read.
    Assembling,
    /// A start was refused.
    Refused {
        /// When it is tried again, ns; `u64::MAX`: when a leg comes or the user asks for it.
        again_at_ns: u64,
        /// How many legs were known when it was decided.
        known: usize,
    },
    /// The owner's record is written.
    Acquiring(Box<Acquire>),
    /// Heartbeats are written.
    Owned,
    /// Nothing is written.
    ReadOnly,
    /// The record is about to be cleared.
    Releasing,
    /// A lease ended meanwhile.
    Abandoned,
    /// The mirror has stopped.
    Released,
    /// Another owner's record is on a leg; the owner, where it is known.
    Lost(Option<Owner>),
}

/// See the module.
#[derive(Debug)]
pub struct Ownership {
    owner: Owner,
    state: State,
    assembling: Assembling,
    /// Owners before us that our own record has replaced on a leg, in an acquisition that failed.
    unreleased: Option<Unreleased>,
    /// When the mirror became ours, ns.
    owned_ns: u64,
    pub(super) leases: Leases,
}

impl Ownership {
    /// Begins to assemble: missing legs are waited for until `assemble_wait_ns` have passed.
    pub fn new(owner: Owner, assemble_wait_ns: u64) -> Self {
        Self {
            owner,
            state: State::Assembling,
            assembling: Assembling::new(assemble_wait_ns),
            unreleased: None,
            owned_ns: 0,
            leases: Leases::default(),
        }
    }

    /// One whose record has just been written.
    #[cfg(test)]
    pub(super) fn acquired(owner: Owner) -> Self {
        let mut it = Self::new(owner, 0);
        it.acquire(owner.bound_ms, &[], Reach::Here, false);
        it
    }

    /// The state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The owner that we are, as the engine has named it.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Begins to write our record, with this bound, to the legs given.
    ///
    /// # Panics
    /// If a start was not just decided.
    pub fn acquire(
        &mut self,
        bound_ms: u32,
        given: &[Result<Chosen, NoLeg>],
        reach: Reach,
        is_read_only: bool,
    ) {
        self.owner.bound_ms = bound_ms;
        let acquire = Acquire::new(self.owner, given, reach).after(self.unreleased);
        let acquire = match is_read_only {
            true => acquire.read_only(),
            false => acquire,
        };
        self.set_state(State::Acquiring(Box::new(acquire)));
    }

    /// The acquisition under way.
    pub fn acquiring(&self) -> Option<&Acquire> {
        match &self.state {
            State::Acquiring(it) => Some(it),
            _ => None,
        }
    }

    /// The acquisition under way, to be fed.
    pub fn acquiring_mut(&mut self) -> Option<&mut Acquire> {
        match &mut self.state {
            State::Acquiring(it) => Some(it),
            _ => None,
        }
    }

    /// The next step of the acquisition, if one is under way.
    pub fn poll_output(&mut self, now_ns: u64) -> Option<AcquireOutput> {
        let acquire = self.acquiring_mut()?;
        if acquire.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            acquire.handle_timeout(now_ns);
        }
        let output = acquire.poll_output(now_ns)?;
        if output.is_end() {
            // Our own record may be all that the next acquisition finds.
            self.unreleased = acquire.unreleased();
        }
        Some(output)
    }

    /// Refuses the start, which is tried again after `pause_ns`.
    ///
    /// # Panics
    /// If the mirror is ours already.
    pub fn refuse(&mut self, pause_ns: u64, now_ns: u64) {
        self.assembling.is_forced = false;
        self.set_state(State::Refused {
            again_at_ns: now_ns.saturating_add(pause_ns),
            known: self.assembling.known,
        });
    }

    /// The record stands: the mirror runs from now on.
    pub(super) fn begin(&mut self, is_read_only: bool, now_ns: u64) {
        self.owned_ns = now_ns;
        self.set_state(match is_read_only {
            true => State::ReadOnly,
            false => State::Owned,
        });
    }

    /// Raises the bound of our record. Returns whether it has become longer.
    pub(super) fn raise_bound(&mut self, bound_ms: u32) -> bool {
        let raises = bound_ms > self.owner.bound_ms;
        self.owner.bound_ms = self.owner.bound_ms.max(bound_ms);
        raises
    }

    /// Our record as of now: until what the owner before us left is over it has no shorter bound.
    pub(super) fn owner_at(&self, now_ns: u64) -> Owner {
        let passed_s = (now_ns - self.owned_ns) / 1_000_000_000;
        let left_ms = self.leases.left_ms(now_ns);
        Owner {
            heartbeat_s: self.owner.since_s + passed_s,
            bound_ms: self.owner.bound_ms.max(left_ms),
            ..self.owner
        }
    }

    /// Notes whether the latest superblock clears the record.
    pub(super) fn set_releasing(&mut self, releases: bool) {
        match (&self.state, releases) {
            (State::Owned, true) => self.set_state(State::Releasing),
            // The event that cleared it was not committed, and the next one does not.
            (State::Releasing, false) => self.set_state(State::Owned),
            (State::Owned, false) | (State::Releasing, true) => {}
            (other, _) => unreachable!("nothing is written in {other:?}"),
        }
    }

    /// A lease has ended while the record was about to be cleared: it stays, if it was not cleared
    /// by then.
    pub(super) fn abandon(&mut self) {
        if matches!(self.state, State::Owned | State::Releasing) {
            self.set_state(State::Abandoned);
        }
    }

    /// Another owner's record is on a leg. Returns whether that is new.
    pub(super) fn lose(&mut self, other: Option<Owner>) -> bool {
        let is_news = !self.is_lost();
        if is_news {
            self.set_state(State::Lost(other));
            self.leases.end();
        }
        is_news
    }

    /// The mirror has stopped.
    pub(super) fn end(&mut self) {
        // After these the last superblocks under way end the stop; the record stays.
        if !self.is_abandoned() && !self.is_lost() {
            self.set_state(State::Released);
        }
    }

    /// Whether another owner has the mirror, or has had it since the last heartbeat.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    /// Whether the record stays although the mirror stops.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self.state, State::Abandoned)
    }

    /// Whether nothing may be written any more, so that I/O fails.
    pub(super) fn is_over(&self) -> bool {
        self.is_lost() || self.is_abandoned()
    }

    /// Whether heartbeats are written.
    pub(super) fn has_heartbeats(&self) -> bool {
        matches!(self.state, State::Owned)
    }

    fn set_state(&mut self, next: State) {
        assert!(
            is_edge(&self.state, &next),
            "from {:?} to {next:?}",
            self.state
        );
        self.state = next;
    }
}

/// Whether the ownership can go from one state to the other.
fn is_edge(before: &State, next: &State) -> bool {
    use State::{Abandoned, Acquiring, Assembling, Lost, Owned};
    use State::{ReadOnly, Refused, Released, Releasing};
    match (before, next) {
        (Assembling, Acquiring(_) | Refused { .. }) => true,
        (Refused { .. }, Assembling) => true,
        // The legs, read again, may make no mirror any more.
        (Acquiring(_), Refused { .. } | Owned | ReadOnly) => true,
        (Owned, Releasing | Abandoned | Released | Lost(_)) => true,
        (ReadOnly, Released) => true,
        (Releasing, Owned | Abandoned | Released | Lost(_)) => true,
        // A heartbeat that was under way.
        (Abandoned, Lost(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
