//! Mistakes that tests plant into the machine, to see whether their checkers find them.
//!
//! # Contract
//! This crate's tests have a switch of their own. Elsewhere they are bugs of the crate `canary`:
//! for worlds of chaos alone; without its feature [`has`] is constantly false and costs nothing.

#[cfg(test)]
pub(crate) use plant::has;
#[cfg(test)]
pub(crate) use plant::plant;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A write is acknowledged before it is durable that a leg missed it (T14).
    AckBeforeStale,
    /// A repair takes no lock (T5).
    MendWithoutLock,
    /// Dirty bits are cleared although a stale leg lacks their regions.
    IntentsForgotten,
    /// Only one leg is flushed (T13).
    FlushOnOne,
    /// An event has the number of the one before it.
    SameEvent,
    /// A rebuild takes no lock (T46).
    RebuildUnlocked,
    /// A leg returns while what it was given may still be executed (T9).
    BackBeforeFence,
    /// Overlapping writes go as they come (T46).
    Overtaking,
    /// Data are written before their dirty bits.
    DataBeforeIntent,
    /// Diverged regions are read before a resync.
    UnalikeRead,
    /// A leg that is being rebuilt serves what it lacks.
    LackingRead,
    /// A leg is called in sync without a flush of what was copied to it.
    JoinedUnflushed,
    /// A position is saved without a flush before it.
    PositionUnflushed,
    /// A larger size is committed before the bits of its new regions are on the legs.
    GrownBeforeBits,
    /// New regions are read before a resync.
    GrownUnlike,
    /// Nothing is held for what an owner has left that was there before (T9).
    ChangeBeforeBound,
    /// Nothing waits for what the last leg in sync may execute late (T9).
    ChangeInDoubt,
    /// An owner issues I/O whether or not its heartbeats end (T48).
    NoLease,
    /// A leg is read where it has bad blocks.
    BadRead,
    /// A leg with an older generation is a source of a resync (T51).
    LaggingSource,
    /// A leg that leaves does not lack what it has not flushed (T13).
    LeftWithoutUnflushed,
    /// Where no leg in sync can read a region, a leg that lacks it is read.
    SpareLacks,
    /// A leg that waits to return is read where it lacks what was changed since it left.
    WaitingLacks,
    /// A leg that was smaller for a moment lacks no more than its bitmap has (T50).
    ShrunkUnlike,
    /// Where the last leg in sync was cut is not heeded by the next start (T50).
    CutForgotten,
    /// A mirror starts by itself with legs of another lineage than its host began last (T14).
    AnyLineage,
    /// A mirror starts by itself after an unclean stop (T14).
    StartUnclean,
    /// A mirror starts by itself with a leg that another host has not released (T14).
    OwnerUnheeded,
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn has(bug: Bug) -> bool {
    canary::CAN && elsewhere(bug).is_some_and(canary::has)
}

/// Its name in fault scenarios. Hardly any leg there loses its power while all of it is copied and
/// a position has just been saved; none of them grows; late writes of an owner end, or are not
/// seen, before the next owner changes anything; and few have a last leg that executes something
/// late.
#[cfg(not(test))]
const fn elsewhere(bug: Bug) -> Option<canary::Bug> {
    Some(match bug {
        Bug::AckBeforeStale => canary::Bug::AckBeforeStale,
        Bug::MendWithoutLock => canary::Bug::MendWithoutLock,
        Bug::IntentsForgotten => canary::Bug::IntentsForgotten,
        Bug::FlushOnOne => canary::Bug::FlushOnOneLeg,
        Bug::SameEvent => canary::Bug::SameEvent,
        Bug::RebuildUnlocked => canary::Bug::RebuildUnlocked,
        Bug::BackBeforeFence => canary::Bug::BackBeforeFence,
        Bug::Overtaking => canary::Bug::OvertakingLegs,
        Bug::DataBeforeIntent => canary::Bug::DataBeforeIntent,
        Bug::UnalikeRead => canary::Bug::UnalikeRead,
        Bug::LackingRead => canary::Bug::LackingRead,
        Bug::JoinedUnflushed => canary::Bug::JoinedUnflushed,
        Bug::SpareLacks => canary::Bug::SpareLacks,
        Bug::ShrunkUnlike => canary::Bug::ShrunkUnlike,
        Bug::CutForgotten => canary::Bug::CutForgotten,
        Bug::PositionUnflushed
        | Bug::GrownBeforeBits
        | Bug::GrownUnlike
        | Bug::ChangeBeforeBound
        | Bug::ChangeInDoubt
        | Bug::NoLease
        | Bug::BadRead
        | Bug::LaggingSource
        | Bug::LeftWithoutUnflushed
        | Bug::WaitingLacks
        | Bug::AnyLineage
        | Bug::StartUnclean
        | Bug::OwnerUnheeded => return None,
    })
}

#[cfg(test)]
mod plant {
    extern crate std;
    use super::Bug;
    use core::cell::Cell;

    std::thread_local! {
        static PRESENT: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    pub fn has(bug: Bug) -> bool {
        PRESENT.get() == Some(bug)
    }

    /// This thread has this bug from now on, and no other.
    pub fn plant(bug: Option<Bug>) {
        PRESENT.set(bug);
    }
}
