//! Assembly: from the superblocks of the given legs, which of them have every acknowledged write,
//! what the others lack, or why the mirror is refused.
//!
//! # Contract
//! Pure. A leg counts as in sync only if no acknowledged write can be missing on it (T14). This
//! rests on two rules. A superblock generation (`event` is its number) is durable on every leg that
//! is in sync in it before anything depends on it: where all legs that the newest generation calls
//! in sync are given, no newer one exists elsewhere. The newest generation is not the one with the
//! greatest number, but the one that all others given precede ([`History`]). If there is none, the
//! halves have diverged, and choosing one would lose writes.
//!
//! The user may start without legs ([`Wishes::without`]) or give one up ([`Wishes::discard`]):
//! writes that only those legs have are lost then, by the user's decision.
//!
//! After a crash the newest generation may be missing on a leg in sync, which it had not reached;
//! so it may on an older copy of a leg. Nothing was acknowledged without a leg that shows it. Where
//! a leg in sync shows it, those without it are behind: regions that may differ are copied to them,
//! never from them (T51). They are marked stale before anything changes, so that it survives a
//! crash.
//!
//! # Limits
//! A leg whose blocks were rolled back (a snapshot) is detected by its generation, so only where
//! generations were committed since: one if the newest calls it stale, else two. It is also
//! detected where another leg in sync has read a newer record of it ([`Superblock::confirmed`]),
//! which takes up to two heartbeats (T50): it is rebuilt then.
//!
//! [`History`]: super::history::History
pub mod degraded;

use super::Superblock;
use super::copies::NoLeg;
use super::history::{Seen, Standing};
use super::machine::planted;
use super::superblock::{EntryState, Lack};
use alloc::vec::Vec;
use canary::Bug;
use core::fmt;

/// Losses that the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Start although legs are missing that may have newer writes.
    pub without: bool,
    /// Treat this one of the given legs as one without data.
    pub discard: Option<usize>,
}

/// Role of a given leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has every acknowledged write.
    InSync,
    /// It has to be rebuilt: everything from `position` on, and below it the regions that are set
    /// in any bitmap.
    Behind {
        /// Byte of the mirror; its size: only the bitmaps count.
        position: u64,
        /// The reason.
        why: Why,
    },
    /// It is left out: it can't be read, or its superblock can't be used.
    Unusable(NoLeg),
}

/// Why a leg is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It left, or has never been in sync.
    Left,
    /// Its rebuild had not ended.
    Unfinished,
    /// It lacks the newest generation, which a leg in sync has: regions that may differ are copied
    /// to it.
    Lags,
    /// Another leg in sync has read a newer record of it: it was rolled back.
    RolledBack,
    /// It was truncated while it was the last one in sync, and another one has everything since.
    Cut,
    /// It was rolled back, by the newest generation.
    PutBack,
    /// The user has given it up.
    Discarded,
}

/// A mirror that can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// The leg that shows the newest generation, by its number among those given.
    pub newest: usize,
    /// The role of each given leg.
    pub roles: Vec<Role>,
    /// Legs that take part and that the newest generation has not reached: it is written to them
    /// before the next one begins, so no leg is ever more than one behind.
    pub lagging: Vec<usize>,
    /// The superblock for the first change: the newest one, with legs that are missing or behind
    /// as stale. Its sequence is the highest of all; `event` is still the newest one's.
    pub next: Superblock,
    /// Slots of legs that were not given.
    pub absent: Vec<u8>,
    /// The mirror was not stopped cleanly, and legs in sync may differ where the bitmap is set: no
    /// such region may be read before it was resynced. It is set also where a user starts it
    /// without other legs: until it is durable that one leg is alone, the next assembly may choose
    /// the data of another one.
    pub unclean: bool,
    /// A newer version has set features that allow reads only: nothing may be changed.
    pub read_only: bool,
}

/// Why the mirror can't start. A `usize` is the number of a given leg, a `u8` a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None of them is a leg.
    Nothing,
    /// A newer version of braid wrote this leg, so it may be the newest.
    Newer(usize, NoLeg),
    /// The legs are of different mirrors.
    Foreign(usize, usize),
    /// Both are the same leg: given twice, or one is a copy of the other.
    Twice(usize, usize),
    /// The legs have diverged: both were written without the other.
    Parted(usize, usize),
    /// The leg was missing for so long that its history can't be compared: it may have been written
    /// without the others.
    TooOld(usize),
    /// The leg is smaller than the mirror needs, and the newest generation calls it in sync.
    Small(usize),
    /// These legs are missing, or were rolled back: they may have, or may have had, newer writes.
    Incomplete(Vec<u8>),
    /// No leg in sync is given; these are in sync.
    NoneInSync(Vec<u8>),
}

/// Assembles the mirror. `given`: of each leg its superblock, or why there is none.
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
    check_identities(&legs)?;
    let (legs, worn): (Vec<_>, Vec<_>) = legs.into_iter().partition(|it| it.1.leaves_room());
    let (newest, incomparable) = find_newest(&legs, wishes)?;
    let state = legs.iter().find(|it| it.0 == newest).map(|it| it.1);
    let state = state.ok_or(Refusal::Nothing)?;
    let worn = worn.iter().map(|it| (it.0, NoLeg::Worn));
    let mut useless: Vec<_> = worn.collect();
    for &(at, leg) in &legs {
        if let Some(why) = why_unusable(leg, state, incomparable.contains(&at), wishes) {
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
        // T51: after an unclean stop they are no source of a resync.
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
    // T50: the lost range of a truncated leg may read as zeroes.
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
    // Records that a stale leg has read don't count.
    let takes_part = |it: &Superblock| {
        let in_sync = state.state(it.slot) == Some(EntryState::InSync);
        in_sync && it.slot != leg.slot && it.event.saturating_add(1) >= state.event
    };
    let in_sync = state.state(leg.slot) == Some(EntryState::InSync);
    let mut others = legs.iter().map(|it| it.1).filter(|it| takes_part(it));
    in_sync && leg.mark > 0 && others.any(|it| knows(it) && leg.mark < it.confirmed)
}

/// Refuses legs of several mirrors, and a leg that is given twice.
fn check_identities(legs: &[(usize, &Superblock)]) -> Result<(), Refusal> {
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

/// Makes the refusal from the numbers of a leg and of the newest one.
type Refused = fn(usize, usize) -> Refusal;

/// Returns why `leg` can't be used beside `state`, the newest one, or why the mirror is refused for
/// it. `is_incomparable`: its history was too old to be compared with another leg's.
fn why_unusable(
    leg: &Superblock,
    state: &Superblock,
    is_incomparable: bool,
    wishes: Wishes,
) -> Option<Result<NoLeg, Refused>> {
    let entry = |of: &Superblock, slot: u8| of.legs.get(usize::from(slot)).copied().flatten();
    let known = entry(state, leg.slot);
    if known.map(|it| it.id) != leg.leg().map(|it| it.id) {
        // The leg precedes the newest generation by the lineages of that one.
        return Some(Ok(NoLeg::Removed));
    }
    if is_incomparable {
        // Its own superblock calls the newest leg in sync: it was not written without that one.
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

/// Returns the leg whose generation all others precede, and those that are too old to be compared
/// with a newer one.
fn find_newest(
    legs: &[(usize, &Superblock)],
    wishes: Wishes,
) -> Result<(usize, Vec<usize>), Refusal> {
    let mut legs = legs.iter().filter(|it| wishes.discard != Some(it.0));
    let mut best = *legs.next().ok_or(Refusal::Nothing)?;
    let mut incomparable = Vec::new();
    for &next in legs {
        match (standing(next.1, best.1), standing(best.1, next.1)) {
            // The same generation: a leg that it calls in sync is preferred.
            (Standing::Within, Standing::Within) if in_sync(best.1) => {}
            (Standing::Within, Standing::Within) => best = next,
            (Standing::Within, _) => {}
            (_, Standing::Within) => best = next,
            (Standing::TooOld, _) => incomparable.push(next.0),
            (_, Standing::TooOld) => {
                incomparable.push(best.0);
                best = next;
            }
            _ => return Err(Refusal::Parted(best.0, next.0)),
        }
    }
    Ok((best.0, incomparable))
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
        // The leg is as it was when it left, however long ago. The generation after the last one
        // that it had for certain may have reached it; a lineage has one writer, so that one
        // precedes `other` as well.
        return Standing::Within;
    }
    other.history.standing(leg.event, lineage, other.event)
}

/// Returns the role of `leg` beside `state`, the newest one.
fn role(leg: &Superblock, state: &Superblock, discarded: bool) -> Role {
    let behind = |position, why| Role::Behind { position, why };
    // A generation begins when the one before it is on all legs that take part.
    let took_part = leg.event.saturating_add(1) >= state.event;
    match state.state(leg.slot) {
        _ if discarded => behind(0, Why::Discarded),
        // T50: its lost range may read as zeroes, and the newest generation does not know of it.
        Some(EntryState::Stale(_) | EntryState::Rebuilding(_)) if leg.cut_at > 0 => {
            behind(0, Why::Cut)
        }
        Some(EntryState::InSync) if took_part => Role::InSync,
        // The generation with which its rebuild began may not have reached it.
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

/// Checks that legs with these roles are enough, and makes the superblock for the first change.
fn complete(
    legs: &[(usize, &Superblock)],
    newest: usize,
    state: &Superblock,
    roles: Vec<Role>,
    wishes: Wishes,
) -> Result<Assembly, Refusal> {
    let given = |slot: u8| legs.iter().find(|it| it.1.slot == slot);
    // Another leg in sync has all of their data.
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
    next.cut_at = 0; // of one leg alone
    for (slot, entry) in state.entries() {
        let stale = |position, seen: Seen| {
            EntryState::Stale(Lack {
                position,
                seen_event: seen.event,
                seen_lineage: seen.lineage,
            })
        };
        let ours = |event| Seen {
            event,
            lineage: state.history.lineage_of(event),
        };
        // It is not known whether the newest generation has reached it.
        let before = ours(state.event.saturating_sub(1));
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
                (_, Role::Behind { position, why }) => {
                    // One that was given up may show a lineage that is none of this mirror.
                    let is_of_ours = leg.event <= state.event && why != Why::Discarded;
                    stale(
                        position,
                        match is_of_ours {
                            true => leg.seen(),
                            false => ours(leg.event.min(state.event)),
                        },
                    )
                }
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
