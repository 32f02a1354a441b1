//! Whether a mirror may start by itself although legs are missing that had everything.
//!
//! # Contract
//! Pure. "In sync and stopped in order" is not enough: that is what a leg shows whose partner went
//! on without it. So the host keeps which lineage it began last ([`Record`]), durably before the
//! first event of that lineage is written to a leg. A lineage has one writer, and after its clean
//! stop it has no more writes; so a leg that shows the clean stop of that very lineage has every
//! acknowledged write, whichever legs are missing. That holds while no other host is its owner:
//! one that has it may have begun a lineage since, on the others first. Nothing else starts by
//! itself ([`Reason`]).
//!
//! # Limits
//! Another host, or an engine with another state directory, that a user has forced to go on with
//! the missing legs is not known here. Where other hosts can reach the legs, the user has to rule
//! that out ([`Permission::Shared`]).
use super::super::copies::NoLeg;
use super::super::history::Standing;
use super::super::machine::planted::{Bug, has};
use super::super::superblock::LegState;
use super::super::{Id, Label, Superblock};
use super::{Assembly, Refusal, Role, Wishes, assemble};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The last state of a mirror that its host has begun or seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The mirror.
    pub mirror: Id,
    /// Its lineage.
    pub lineage: u64,
    /// An event of that lineage; later ones may follow.
    pub event: u64,
    /// Slots, as bits, of the legs that were in sync in it.
    pub in_sync: u16,
    /// It is the event of a clean stop.
    pub clean: bool,
}

impl Record {
    /// Of the state that a superblock shows.
    pub fn of(state: &Superblock) -> Self {
        Self {
            mirror: state.mirror,
            lineage: state.history.current().id,
            event: state.event,
            in_sync: state.in_sync().fold(0, |bits, slot| bits | 1 << slot),
            clean: state.clean,
        }
    }
}

/// What a host knows of the last state of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It has no record of it.
    None,
    /// Its record is damaged, or a copy that was put there and may be an older one.
    Untrusted,
    /// As it has written it.
    Record(Record),
}

/// Whether a mirror may start by itself without legs, as the user has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Never.
    Off,
    /// Not said, and other hosts can reach the legs.
    Shared,
    /// Where the record shows that it is safe.
    On,
}

/// Why a mirror with missing legs does not start by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The user does not want it.
    Off,
    /// Other hosts can reach the legs, and the user has not said that none goes on with some.
    Shared,
    /// The host has no record of the mirror.
    NoRecord,
    /// The record is damaged, or was put back.
    Untrusted,
    /// The legs have events that the host has no part in: its record is older.
    Older,
    /// Another host is the owner by a leg, or was when it ended: it may have gone on with the
    /// others.
    Owned(Box<Label>),
    /// The host has begun a lineage that the legs don't show: those of these slots were in sync in
    /// it.
    Newer(Vec<u8>),
    /// The lineage is the one of the record, and was not stopped in order.
    Unclean,
    /// Legs of these slots are there, and can't be used: they show an older state, or were cut.
    Unusable(Vec<u8>),
    /// It can't start by a user's word either.
    Refused(Refusal),
}

/// What becomes of a mirror with missing legs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It starts without them.
    Start(Box<Assembly>),
    /// It does not start before they are there, or a user says so.
    Wait(Reason),
}

/// Whether a mirror starts that [`assemble`] has refused as [`Refusal::Incomplete`] with these
/// `missing` slots, on the host `ours`. What is given was read before that became its owner.
pub fn decide(
    given: &[Result<Superblock, NoLeg>],
    missing: &[u8],
    permission: Permission,
    evidence: Evidence,
    ours: Id,
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
    let newest = given.get(assembly.newest).and_then(|it| it.as_ref().ok());
    let Some(state) = newest else {
        return Decision::Wait(Reason::Refused(Refusal::Nothing));
    };
    match doubt(state, evidence).or_else(|| owned(given, ours)) {
        None => Decision::Start(Box::new(assembly)),
        Some(reason) => Decision::Wait(reason),
    }
}

/// Why legs that show `state` may lack acknowledged writes; `None`: they have all.
fn doubt(state: &Superblock, evidence: Evidence) -> Option<Reason> {
    let record = match evidence {
        Evidence::None => return Some(Reason::NoRecord),
        Evidence::Untrusted => return Some(Reason::Untrusted),
        Evidence::Record(record) if record.mirror != state.mirror => return Some(Reason::NoRecord),
        Evidence::Record(record) => record,
    };
    let is_same = state.history.current().id == record.lineage;
    if (is_same || has(Bug::AnyLineage)) && state.event >= record.event {
        return (!state.clean && !has(Bug::StartUnclean)).then_some(Reason::Unclean);
    }
    let history = state.history;
    Some(
        match history.standing(record.event, record.lineage, state.event) {
            Standing::Within | Standing::TooOld => Reason::Older,
            Standing::Outside => Reason::Newer(slots(record.in_sync)),
        },
    )
}

/// Whether another host has not released a leg: it has written nothing else to this one yet.
fn owned(given: &[Result<Superblock, NoLeg>], ours: Id) -> Option<Reason> {
    let mut owners = given.iter().filter_map(|it| it.as_ref().ok()?.owner);
    let other = owners.find(|it| it.host != ours && !has(Bug::OwnerUnheeded))?;
    Some(Reason::Owned(Box::new(other.label)))
}

/// Those of the missing legs that are there all the same: put back to an older state, or cut. A
/// user should know of it before anything is written.
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

/// How much the missing legs had at the last stop, by which it is decided how long they are waited
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// One had everything.
    InSync,
    /// All had left, and had everything when they did.
    Gone,
    /// All were known to lack data even then: new, or their rebuild had not ended.
    Outdated,
}

/// What is known of the legs that are not among those given; `None`: none is missing, or none that
/// these know.
pub fn missing(given: &[Result<Superblock, NoLeg>]) -> Option<Missing> {
    let there = || given.iter().filter_map(|it| it.as_ref().ok());
    let newest = there().max_by_key(|it| it.event)?;
    let absent = newest
        .entries()
        .filter(|(slot, _)| there().all(|it| it.slot != *slot));
    let had = absent.map(|(_, entry)| match entry.state {
        LegState::InSync => Missing::InSync,
        LegState::Stale(lack) if lack.position >= newest.geometry.bytes => Missing::Gone,
        LegState::Stale(_) | LegState::Rebuilding(_) => Missing::Outdated,
    });
    had.min_by_key(|it| match it {
        Missing::InSync => 0,
        Missing::Gone => 1,
        Missing::Outdated => 2,
    })
}

#[cfg(test)]
mod tests;
