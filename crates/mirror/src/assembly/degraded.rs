//! Decides whether a mirror starts by itself although legs are missing that had everything.
//!
//! # Contract
//! Pure. "In sync and stopped cleanly" is not enough: a leg shows that too if another one went on
//! without it. So the host keeps a [`Record`] of the last lineage and of its own last run as owner.
//! The mirror starts by itself with legs that show the clean stop of that lineage, if one in sync
//! shows that run as its last owner; in no other case ([`Reason`]).
//!
//! The order of writes makes this safe:
//! * A lineage is recorded durably before its first generation is written to a leg. It has one
//!   writer, and no writes after its clean stop, so a leg that shows this stop has all its writes.
//! * An owner changes a mirror only after its run is on all legs with which it starts, also on
//!   those that are not in sync. So a leg that was left behind shows the run that left it, or a
//!   later one: a stop leaves the run there too.
//! * A run is recorded only once it is on all legs that were in sync at the start. So at most one
//!   host's record has the run that legs in sync show, whichever legs each host has seen. A start
//!   without some leg does not replace the record of another lineage: that of a half which a user
//!   has started without the other.
//!
//! After a kill between the owner's records and the host's record the run on the legs is not
//! recorded: the start waits.
//!
//! # Limits
//! If a user has started the missing legs alone on another host, or with another state directory,
//! this host does not know of it. Where other hosts can reach the legs, the user has to rule that
//! out ([`Permission::Shared`]).
use super::super::copies::NoLeg;
use super::super::history::Standing;
use super::super::machine::planted::{Bug, has};
use super::super::superblock::EntryState;
use super::super::{Id, Label, Superblock};
use super::{Assembly, Refusal, Role, Wishes, assemble};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The last state of a mirror that this host has begun or seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The mirror.
    pub mirror: Id,
    /// Its lineage.
    pub lineage: u64,
    /// A generation of that lineage; later ones may follow.
    pub event: u64,
    /// Slots, as bits, of the legs that were in sync in it.
    pub in_sync: u16,
    /// It is the generation of a clean stop.
    pub clean: bool,
    /// The run of this host that was the last owner; none: written by a version that did not record
    /// it, and left none on the legs either.
    pub run: Id,
}

impl Record {
    /// Whether the record of a start by itself replaces `before`; `has_all`: no leg was missing.
    pub fn replaces(&self, before: Evidence, has_all: bool) -> bool {
        let is_same = |it: Record| it.mirror == self.mirror && it.lineage == self.lineage;
        has_all || matches!(before, Evidence::Record(it) if is_same(it))
    }

    /// Makes the record of a superblock's generation.
    pub fn of(state: &Superblock) -> Self {
        Self {
            mirror: state.mirror,
            lineage: state.history.current().id,
            event: state.event,
            in_sync: state.in_sync().fold(0, |bits, slot| bits | 1 << slot),
            clean: state.clean,
            run: state.run_before(Id::default()),
        }
    }
}

/// Record of a mirror's last state on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// There is none.
    None,
    /// It is damaged, or was restored from a copy, which may be older.
    Untrusted,
    /// It is as this host has written it.
    Record(Record),
}

/// The user's setting: whether a mirror may start by itself without legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Never.
    Off,
    /// It is not set, and other hosts can reach the legs.
    Shared,
    /// Where the record shows that it is safe.
    On,
}

/// Why a mirror with missing legs does not start by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// [`Permission::Off`].
    Off,
    /// [`Permission::Shared`].
    Shared,
    /// This host has no record of the mirror.
    NoRecord,
    /// [`Evidence::Untrusted`].
    Untrusted,
    /// The record is older than the legs: another host has committed generations since.
    Older,
    /// Another run has owned a leg since, and may have gone on with the missing ones; its label, if
    /// it has not released the leg.
    Owned(Option<Box<Label>>),
    /// This host has begun a lineage that the legs don't show, in which these slots were in sync.
    Newer(Vec<u8>),
    /// The lineage is the one of the record, and was not stopped cleanly.
    Unclean,
    /// The legs of these slots are there, and can't be used: they were rolled back or truncated.
    Unusable(Vec<u8>),
    /// The mirror can't start by order of a user either.
    Refused(Refusal),
}

/// Decision about a mirror with missing legs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It starts without them.
    Start(Box<Assembly>),
    /// It starts when the legs are there, or a user orders it.
    Wait(Reason),
}

/// Decides about a mirror that [`assemble`] has refused as [`Refusal::Incomplete`] with these
/// `missing` slots. `run`: the caller's, which may own some legs by now.
pub fn decide(
    given: &[Result<Superblock, NoLeg>],
    missing: &[u8],
    permission: Permission,
    evidence: Evidence,
    run: Id,
) -> Decision {
    match permission {
        Permission::Off => return Decision::Wait(Reason::Off),
        Permission::Shared => return Decision::Wait(Reason::Shared),
        Permission::On => {}
    }
    let forced = Wishes {
        without: true,
        discard: None,
    };
    let assembly = match assemble(given, forced) {
        Ok(assembly) => assembly,
        Err(refusal) => return Decision::Wait(Reason::Refused(refusal)),
    };
    let unusable = unusable(given, missing, &assembly);
    if !unusable.is_empty() {
        return Decision::Wait(Reason::Unusable(unusable));
    }
    let Ok(state) = &given[assembly.newest] else {
        unreachable!("the newest leg has a superblock");
    };
    match reason_to_wait(state, given, evidence, run) {
        None => Decision::Start(Box::new(assembly)),
        Some(reason) => Decision::Wait(reason),
    }
}

/// Returns why legs that show `state` may lack acknowledged writes; `None`: they have all.
fn reason_to_wait(
    state: &Superblock,
    given: &[Result<Superblock, NoLeg>],
    evidence: Evidence,
    run: Id,
) -> Option<Reason> {
    let record = match evidence {
        Evidence::None => return Some(Reason::NoRecord),
        Evidence::Untrusted => return Some(Reason::Untrusted),
        Evidence::Record(record) if record.mirror != state.mirror => return Some(Reason::NoRecord),
        Evidence::Record(record) => record,
    };
    let is_same = state.history.current().id == record.lineage;
    if is_same && state.event >= record.event || has(Bug::AnyLineage) {
        if !state.clean && !has(Bug::StartUnclean) {
            return Some(Reason::Unclean);
        }
        let legs = || given.iter().filter_map(|it| it.as_ref().ok());
        let in_sync = || legs().filter(|it| state.state(it.slot) == Some(EntryState::InSync));
        let is_last = |it: &Superblock| it.run_before(run) == record.run;
        if has(Bug::OwnerUnheeded) || in_sync().any(is_last) {
            return None;
        }
        let owner = in_sync().find_map(|it| it.owner.filter(|it| it.run != run));
        return Some(Reason::Owned(owner.map(|it| Box::new(it.label))));
    }
    let history = state.history;
    Some(
        match history.standing(record.event, record.lineage, state.event) {
            Standing::Within | Standing::TooOld => Reason::Older,
            Standing::Outside => Reason::Newer(slots(record.in_sync)),
        },
    )
}

/// Returns missing legs that are there and can't be used: they were rolled back or truncated. The
/// user has to know of that before anything is written.
fn unusable(given: &[Result<Superblock, NoLeg>], missing: &[u8], assembly: &Assembly) -> Vec<u8> {
    let is_cut = |role: &Role| matches!(role, Role::Unusable(NoLeg::Cut(_)));
    if assembly.roles.iter().any(is_cut) {
        return missing.into();
    }
    let there = given.iter().filter_map(|it| Some(it.as_ref().ok()?.slot));
    there.filter(|slot| missing.contains(slot)).collect()
}

fn slots(bits: u16) -> Vec<u8> {
    (0..16).filter(|slot| bits >> slot & 1 == 1).collect()
}

/// How much the missing legs had at the last stop. It decides how long a start waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// One had everything.
    InSync,
    /// All had left, and had everything when they did.
    Gone,
    /// All were known to lack data even then: they were new, or being rebuilt.
    Outdated,
}

/// Returns how much the legs had that were not given; `None`: no leg is missing that those given
/// know.
pub fn missing(given: &[Result<Superblock, NoLeg>]) -> Option<Missing> {
    let there = || given.iter().filter_map(|it| it.as_ref().ok());
    let newest = there().max_by_key(|it| it.event)?;
    let absent = newest
        .entries()
        .filter(|(slot, _)| there().all(|it| it.slot != *slot));
    let had = absent.map(|(_, entry)| match entry.state {
        EntryState::InSync => Missing::InSync,
        EntryState::Stale(lack) if lack.position >= newest.geometry.bytes => Missing::Gone,
        EntryState::Stale(_) | EntryState::Rebuilding(_) => Missing::Outdated,
    });
    had.min_by_key(|it| match it {
        Missing::InSync => 0,
        Missing::Gone => 1,
        Missing::Outdated => 2,
    })
}

#[cfg(test)]
mod tests;
