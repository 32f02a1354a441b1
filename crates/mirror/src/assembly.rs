//! What legs that are brought together come to: which of them have every acknowledged write, what
//! the others lack, or why there is no telling.
//!
//! # Contract
//! Pure: from what the superblocks say. A leg is taken for in sync only if no acknowledged write
//! can be missing on it (T14). That rests on two things. An event happens on every leg that is in
//! sync in it, before anything depends on it; so where all legs are given that the newest state
//! calls in sync, there is no newer state elsewhere. And what is newest is not a matter of the
//! greatest number: it is the state that all others given came before ([`History`]); where there is
//! none, halves were written since they parted, and choosing one would throw writes away.
//!
//! The user may go on without legs ([`Wishes::without`]) or give one up ([`Wishes::discard`]):
//! writes that only those have are lost then, by their word and not by ours.
//!
//! After a crash a leg in sync may lack the newest event, which had not reached it; so may an older
//! copy of a leg. Nothing was acknowledged without a leg that shows the newest event, so where one
//! in sync does, those without it are behind: what may differ is copied to them, never from them
//! (T51). They are said to be stale before anything changes, so that no crash forgets it.
//!
//! # Limits
//! A leg whose blocks were put back to an older state (a snapshot) is noticed by its events, so
//! only where it had taken part in some since: in one if the newest state calls it stale, else in
//! two. It is noticed too where another leg in sync has read a newer record of it
//! ([`Superblock::confirmed`]), which takes up to two heartbeats (T50): it is rebuilt then.
//!
//! [`History`]: super::history::History
pub mod degraded;

use super::Superblock;
use super::copies::NoLeg;
use super::history::Standing;
use super::machine::planted;
use super::superblock::{EntryState, Lack};
use alloc::vec::Vec;
use canary::Bug;
use core::fmt;

/// What the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// To go on although legs are missing that may have newer writes.
    pub without: bool,
    /// To treat this one of the given legs as if it had nothing.
    pub discard: Option<usize>,
}

/// What one of the given legs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has every acknowledged write.
    InSync,
    /// It is to be rebuilt: everything from `position` on, and below it what any bitmap says.
    Behind {
        /// Byte of the mirror; its size: only what the bitmaps say.
        position: u64,
        /// Why.
        why: Why,
    },
    /// It is left out: nothing can be read of it, or what it says is of no use.
    Unusable(NoLeg),
}

/// Why a leg is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It left, or has never been in sync.
    Left,
    /// Its rebuild had not ended.
    Unfinished,
    /// It lacks the newest event, which a leg in sync has: what may differ is copied to it.
    Lags,
    /// Another leg in sync has read a newer record of it: it was put back to an older state.
    RolledBack,
    /// It was cut off while it was the last one in sync, and another one has everything since.
    Cut,
    /// It shows an older state than it once had.
    PutBack,
    /// The user gave it up.
    Discarded,
}

/// What the legs given come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// Which of them shows the newest state.
    pub newest: usize,
    /// What each of them is.
    pub roles: Vec<Role>,
    /// Those which the newest event had not reached and that take part: it is written to them
    /// before the next one begins, so that nobody is ever more than one behind.
    pub lagging: Vec<usize>,
    /// What is to be said once anything changes: the newest state, with legs that are missing or
    /// behind as stale. Its sequence is the highest of all; the event is still the newest one's.
    pub next: Superblock,
    /// Slots of legs that nobody gave.
    pub absent: Vec<u8>,
    /// It was not stopped in order, and legs in sync may differ where the bitmap says so: no such
    /// region may be read before it was made alike.
    /// Also where others are gone on without by force: until it is durable that one is alone, the
    /// next assembly may choose what another one has.
    pub unclean: bool,
    /// Features that only readers may lack: nothing may be changed.
    pub read_only: bool,
}

/// Why there is no mirror. Numbers are those of the legs given; slots, those of the mirror's legs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None of them is a leg.
    Nothing,
    /// A newer braid wrote it, so it may be the newest.
    Newer(usize, NoLeg),
    /// They are of different mirrors.
    Foreign(usize, usize),
    /// Both are the same leg: given twice, or one is a copy of the other.
    Twice(usize, usize),
    /// Both were written since they parted.
    Parted(usize, usize),
    /// It was away for so long that it can't be told whether it was written by itself meanwhile.
    TooOld(usize),
    /// It is smaller than the mirror needs, and the newest state calls it in sync.
    Small(usize),
    /// These are missing, or show an older state than they once had: they may have newer writes, or
    /// may have had them.
    Incomplete(Vec<u8>),
    /// None of those given has everything.
    NoneInSync(Vec<u8>),
}

/// What `given` comes to: of each leg its superblock, or why there is none.
///
/// # Errors
/// [`Refusal`]; all of them.
pub fn assemble(given: &[Result<Superblock, NoLeg>], wishes: Wishes) -> Result<Assembly, Refusal> {
    let newer = (0..).zip(given).find_map(|(at, leg)| match leg {
        Err(error @ NoLeg::Newer(_)) => Some(Refusal::Newer(at, *error)),
        _ => None,
    });
    if let Some(refusal) = newer {
        return Err(refusal);
    }
    let legs = given.iter().enumerate();
    let legs = legs.filter_map(|(at, leg)| Some((at, leg.as_ref().ok()?)));
    let legs: Vec<(usize, &Superblock)> = legs.collect();
    strangers(&legs)?;
    let (legs, worn): (Vec<_>, Vec<_>) = legs.into_iter().partition(|it| it.1.leaves_room());
    let (newest, aside) = newest(&legs, wishes)?;
    let state = legs.iter().find(|it| it.0 == newest).map(|it| it.1);
    let state = state.ok_or(Refusal::Nothing)?;
    let worn = worn.iter().map(|it| (it.0, NoLeg::Worn));
    let mut useless: Vec<_> = worn.collect();
    for &(at, leg) in &legs {
        if let Some(why) = useless_for(leg, state, aside.contains(&at), wishes) {
            useless.push((at, why.map_err(|refusal| refusal(at, newest))?));
        }
    }
    let legs: Vec<_> = legs
        .into_iter()
        .filter(|leg| useless.iter().all(|it| it.0 != leg.0))
        .collect();
    let role = |at: usize, leg: &Result<Superblock, NoLeg>| {
        let why = useless.iter().find(|it| it.0 == at);
        match (leg, why) {
            (Ok(_), Some((_, why))) => Role::Unusable(*why),
            (Ok(leg), None) if is_older_than_known(leg, &legs, state) => Role::Behind {
                position: 0,
                why: match wishes.discard == Some(at) {
                    true => Why::Discarded,
                    false => Why::RolledBack,
                },
            },
            (Ok(leg), None) => role(leg, state, wishes.discard == Some(at)),
            (Err(error), _) => Role::Unusable(*error),
        }
    };
    let roles = given.iter().enumerate().map(|(at, leg)| role(at, leg));
    let mut roles: Vec<Role> = roles.collect();
    let has_newest = |it: &(usize, &Superblock)| it.1.event == state.event;
    let is_in_sync = |at: usize| roles[at] == Role::InSync;
    let lags = !planted::has(planted::Bug::LaggingSource);
    if lags && legs.iter().any(|it| is_in_sync(it.0) && has_newest(it)) {
        // T51: they are no source of what is made alike after an unclean stop.
        for it in legs.iter().filter(|it| !has_newest(it)) {
            if roles[it.0] == Role::InSync {
                let position = match it.1.cut_at {
                    0 => state.geometry.bytes,
                    _ => 0,
                };
                let why = Why::Lags;
                roles[it.0] = Role::Behind { position, why };
            }
        }
    }
    // What it lost it may show as zeroes (T50).
    let is_in_sync = |at: usize| roles[at] == Role::InSync;
    let in_sync: Vec<_> = legs.iter().filter(|it| is_in_sync(it.0)).collect();
    if in_sync.iter().any(|it| it.1.cut_at == 0) {
        for it in in_sync.iter().filter(|it| it.1.cut_at > 0) {
            roles[it.0] = Role::Behind {
                position: 0,
                why: Why::Cut,
            };
        }
    }
    complete(&legs, newest, state, roles, wishes)
}

/// Whether another leg in sync has read a newer record of `leg` while that was in sync (T50).
fn is_older_than_known(
    leg: &Superblock,
    legs: &[(usize, &Superblock)],
    state: &Superblock,
) -> bool {
    let id = leg.leg().map(|it| it.id);
    let knows = |it: &Superblock| {
        let entry = it.legs.get(usize::from(leg.slot)).copied().flatten();
        let was_in_sync = entry.is_some_and(|entry| entry.state == EntryState::InSync);
        was_in_sync && entry.map(|entry| entry.id) == id
    };
    // A leg that is stale in the newest state says nothing that counts.
    let takes_part = |it: &Superblock| {
        let in_sync = state.state(it.slot) == Some(EntryState::InSync);
        in_sync && it.slot != leg.slot && it.event.saturating_add(1) >= state.event
    };
    let in_sync = state.state(leg.slot) == Some(EntryState::InSync);
    let mut others = legs.iter().map(|it| it.1).filter(|it| takes_part(it));
    in_sync && leg.mark > 0 && others.any(|it| knows(it) && leg.mark < it.confirmed)
}

/// Refuses legs of several mirrors, and one that is there twice.
fn strangers(legs: &[(usize, &Superblock)]) -> Result<(), Refusal> {
    for (nth, (b, second)) in legs.iter().enumerate() {
        for (a, first) in &legs[..nth] {
            if first.mirror != second.mirror {
                return Err(Refusal::Foreign(*a, *b));
            }
            if first.leg().map(|it| it.id) == second.leg().map(|it| it.id) {
                return Err(Refusal::Twice(*a, *b));
            }
        }
    }
    Ok(())
}

/// Of a leg, and of the newest.
type Refused = fn(usize, usize) -> Refusal;

/// Why `leg` is of no use where `state` is the newest, or why there is no telling; `aside`: it
/// was too old to be compared with another one.
fn useless_for(
    leg: &Superblock,
    state: &Superblock,
    aside: bool,
    wishes: Wishes,
) -> Option<Result<NoLeg, Refused>> {
    let entry = |of: &Superblock, slot: u8| of.legs.get(usize::from(slot)).copied().flatten();
    let known = entry(state, leg.slot);
    if known.map(|it| it.id) != leg.leg().map(|it| it.id) {
        // All that came before the newest state did so by that one's lineages.
        return Some(Ok(NoLeg::Removed));
    }
    if aside {
        // Who has never said that it goes on without the newest one was not written by itself.
        let us = state.leg().map(|it| it.id);
        let other = entry(leg, state.slot).filter(|it| Some(it.id) == us);
        let alone = other.is_none_or(|it| it.state != EntryState::InSync);
        let stale = known.is_some_and(|it| it.state != EntryState::InSync);
        return match standing(leg, state) {
            Standing::Within => None,
            Standing::TooOld if stale && !alone => Some(Ok(NoLeg::TooOld)),
            Standing::TooOld => Some(Err(|at, _| Refusal::TooOld(at))),
            Standing::Outside => Some(Err(|at, newest| Refusal::Parted(newest, at))),
        };
    }
    if leg.place.holds(&state.geometry) {
        return None;
    }
    let needed = known.is_some_and(|it| it.state == EntryState::InSync) && !wishes.without;
    Some(match needed || leg == state {
        true => Err(|at, _| Refusal::Small(at)),
        false => Ok(NoLeg::Small),
    })
}

/// The leg whose state all others came before, and those that are too old to be compared with one
/// that is newer.
fn newest(legs: &[(usize, &Superblock)], wishes: Wishes) -> Result<(usize, Vec<usize>), Refusal> {
    let mut legs = legs.iter().filter(|it| wishes.discard != Some(it.0));
    let mut best = *legs.next().ok_or(Refusal::Nothing)?;
    let mut aside = Vec::new();
    for &next in legs {
        match (standing(next.1, best.1), standing(best.1, next.1)) {
            // The same state: one that is in sync in it says so of itself.
            (Standing::Within, Standing::Within) if in_sync(best.1) => {}
            (Standing::Within, Standing::Within) => best = next,
            (Standing::Within, _) => {}
            (_, Standing::Within) => best = next,
            (Standing::TooOld, _) => aside.push(next.0),
            (_, Standing::TooOld) => {
                aside.push(best.0);
                best = next;
            }
            _ => return Err(Refusal::Parted(best.0, next.0)),
        }
    }
    Ok((best.0, aside))
}

fn in_sync(leg: &Superblock) -> bool {
    leg.leg().is_some_and(|it| it.state == EntryState::InSync)
}

/// How the state of `leg` stands to that which `other` shows.
fn standing(leg: &Superblock, other: &Superblock) -> Standing {
    let lineage = leg.history.current().id;
    if let Some(EntryState::Stale(lack) | EntryState::Rebuilding(lack)) = other.state(leg.slot)
        && lack.seen_lineage == lineage
        && leg.event <= lack.seen_event.saturating_add(1)
    {
        // As it was when it left, however long ago. Of the event after the one that it had for
        // certain nobody knew whether it had reached it; a lineage has one writer, so it is one of
        // those that came before `other` as well.
        return Standing::Within;
    }
    other.history.standing(leg.event, lineage, other.event)
}

/// What `leg` is, where `state` is the newest.
fn role(leg: &Superblock, state: &Superblock, discarded: bool) -> Role {
    let behind = |position, why| Role::Behind { position, why };
    // An event begins when the one before it is on all legs that take part.
    let took_part = leg.event.saturating_add(1) >= state.event;
    match state.state(leg.slot) {
        _ if discarded => behind(0, Why::Discarded),
        // What it lost it may show as zeroes, though the newest state doesn't know of that (T50).
        Some(EntryState::Stale(_) | EntryState::Rebuilding(_)) if leg.cut_at > 0 => {
            behind(0, Why::Cut)
        }
        Some(EntryState::InSync) if took_part => Role::InSync,
        // That it is being rebuilt may have been said without having reached it.
        Some(EntryState::Rebuilding(lack)) if took_part || leg.event >= lack.seen_event => {
            behind(lack.position, Why::Unfinished)
        }
        Some(EntryState::Stale(lack))
            if leg.event >= lack.seen_event || canary::has(Bug::TrustedPutBack) =>
        {
            behind(lack.position, Why::Left)
        }
        _ => behind(0, Why::PutBack),
    }
}

/// Whether legs of these roles are enough, and what is to be said then.
fn complete(
    legs: &[(usize, &Superblock)],
    newest: usize,
    state: &Superblock,
    roles: Vec<Role>,
    wishes: Wishes,
) -> Result<Assembly, Refusal> {
    let given = |slot: u8| legs.iter().find(|it| it.1.slot == slot);
    // Another leg in sync has everything that they could have.
    let is_known_to_lack = |role: Role| match role {
        Role::Behind { why, .. } => matches!(why, Why::Lags | Why::RolledBack | Why::Cut),
        Role::InSync | Role::Unusable(_) => false,
    };
    let has_all = |slot: u8| {
        let role = given(slot).map(|it| roles[it.0]);
        role.is_some_and(|role| role == Role::InSync || is_known_to_lack(role))
    };
    let missing: Vec<u8> = state.in_sync().filter(|&slot| !has_all(slot)).collect();
    if missing.len() == state.in_sync().count() || !roles.contains(&Role::InSync) {
        return Err(Refusal::NoneInSync(missing));
    }
    if !wishes.without
        && missing
            .iter()
            .any(|&slot| !is_discarded(given(slot), wishes))
    {
        return Err(Refusal::Incomplete(missing));
    }
    let mut next = *state;
    let sequences = legs.iter().map(|it| it.1.sequence);
    next.sequence = sequences.max().unwrap_or(state.sequence);
    next.cut_at = 0; // each leg says its own
    for (slot, entry) in state.entries() {
        let stale = |position, seen_event| {
            EntryState::Stale(Lack {
                position,
                seen_event,
                seen_lineage: state.history.lineage_of(seen_event),
            })
        };
        // Nobody knows whether the newest event reached it.
        let before = state.event.saturating_sub(1);
        let now = match (entry.state, given(slot)) {
            (EntryState::InSync, None) => stale(state.geometry.bytes, before),
            (EntryState::Rebuilding(lack), None) => stale(lack.position, before),
            (was, None) => was,
            (was, Some(&(at, leg))) => match (was, roles[at]) {
                (
                    EntryState::Stale(lack),
                    Role::Behind {
                        position,
                        why: Why::Left,
                    },
                ) => EntryState::Stale(Lack { position, ..lack }),
                (_, Role::Behind { position, .. }) => stale(position, leg.event.min(state.event)),
                _ => was,
            },
        };
        next.set_state(slot, now);
    }
    let absent = state.entries().map(|it| it.0);
    let lags = |it: &&(usize, &Superblock)| {
        let takes_part = match roles[it.0] {
            Role::InSync => true,
            Role::Behind { why, .. } => why == Why::Unfinished,
            Role::Unusable(_) => false,
        };
        takes_part && it.1.event < state.event
    };
    Ok(Assembly {
        newest,
        lagging: legs.iter().filter(lags).map(|it| it.0).collect(),
        absent: absent.filter(|&slot| given(slot).is_none()).collect(),
        unclean: !state.clean && state.in_sync().count() > 1,
        read_only: state.features.read_only != 0,
        roles,
        next,
    })
}

fn is_discarded(given: Option<&(usize, &Superblock)>, wishes: Wishes) -> bool {
    given.is_some_and(|it| wishes.discard == Some(it.0))
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "it was away, or never in step",
            Self::Unfinished => "its rebuild had not ended",
            Self::Lags => "it lacks the last change of the mirror's state",
            Self::RolledBack => {
                "it was put back to an older state, by what other legs have read of it"
            }
            Self::Cut => {
                "it was smaller than its mirror needs for a while, and another leg has everything"
            }
            Self::PutBack => "it shows an older state than it once had",
            Self::Discarded => "given up by the user",
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
