//! Bugs that are planted on purpose, so that one can see whether the simulator's checkers find
//! them.
//!
//! # Contract
//! Without the feature `planted` [`has`] is constantly false and costs nothing: no program that
//! is shipped has it. With it, the thread that calls `plant` has that one bug from then on, and
//! no other thread does. Each place that has a bug says so in one line and is otherwise as it
//! should be.
//!
//! # Limits
//! One bug at a time.
#![cfg_attr(not(feature = "planted"), no_std)]
#![forbid(unsafe_code)]

/// The planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// An unanswered write is repeated at once (T9).
    Unfenced,
    /// The bound of held writes is short by one keep-alive time-out (T9).
    ShortBound,
    /// Commands of the previous engine are not waited for (T9).
    IgnoredMark,
    /// A controller says that it was reset while it still executes writes (T9).
    EarlyReset,
    /// A controller does not notice that keep-alive has passed (T9).
    UnwatchedKeepAlive,
    /// No keep-alive is sent (T29).
    ForgottenKeepAlive,
    /// A write's buffer is free although the network still sends from it (T23).
    LentFree,
    /// The identifier of a command is another one's as well (T11).
    CidReuse,
    /// Both copies of a hedged read end it.
    DoubleEnd,
    /// A program is told that each path may be chosen.
    LostPathShown,
    /// I/Os that failed on a path stay in its count (T41).
    LeakedCount,
    /// After an unclean stop each I/O counts twice on its path (T41).
    CountedTwice,
    /// A target keeps the buffer of a command whose connection was gone when it ended (T41).
    LeakedBuffer,
    /// A target's buffer is free once the response is under way, sent or not (T23).
    SentFree,
    /// A waiter for a free slot is not woken.
    LostWakeUp,
    /// A successful read that brought less than was asked for is one (T16).
    ShortRead,
    /// A wrong data digest is forgotten (T17).
    ForgottenDigest,
    /// Moves of an I/O from path to path are not counted (T4).
    EndlessMoves,
    /// Changes of the ANA state of a path that is in use are not heeded (T26).
    StaleAna,
    /// A flush goes to one controller for all (T13).
    FlushOnOne,
    /// A flush is good although a controller with unflushed writes was lost (T13).
    ForgottenCache,
    /// Writes acknowledged by the previous engine are not flushed (T13).
    FlushOfOneLife,
    /// Two flushes fail for one loss (T13).
    ToldTwice,
    /// Changes of parts of one block overtake each other.
    Overtaking,
    /// The read of a read-modify-write doesn't wait for commands of the previous engine (T9).
    EdgeBeforeGate,
    /// A notice that a discovery log has changed is not heeded.
    ForgottenNotice,
    /// After a connection was lost, what a discovery log says then is not heeded.
    StaleLog,
    /// A write does not wait for an overlapping held write (T9).
    NoBehind,
    /// The time that a controller says it takes to quiesce is not heeded (T9).
    ForgottenCqt,
    /// A path that stays busy is not left for another one (T4).
    BusyStays,
    /// A session whose connection was lost ends what had ended before once more.
    EndedTwice,
    /// A target's buffer is free once its device has what is to be written (T23).
    FreedAtDevice,
    /// An export answers a flush twice.
    AnsweredTwice,
    /// A path that was restored takes no I/O again.
    StaysAside,
    /// A target answers flushes that its device was not asked for.
    UnaskedFlush,
    /// A connection that the target itself has ended stays in its port's count.
    CountedGone,
    /// An export gives a client's own memory back twice.
    FreedTwice,
    /// A controller keeps connections on which nothing was enabled for ever.
    IdleStays,
    /// `soonest` never tries a path again that was slow and has been idle (T38).
    NeverAgain,
    /// `weighted-latency` goes on with a path whose credit is spent.
    RefilledAtOnce,
    /// A mirror acknowledges a write before it is durable that a leg missed it (T14).
    AckBeforeStale,
    /// A range that a mirror could not read on a leg is rewritten without a lock (T5).
    MendWithoutLock,
    /// A mirror forgets intents although a leg is away that lacks them.
    IntentsForgotten,
    /// A mirror flushes one leg for all (T13).
    FlushOnOneLeg,
    /// An event of a mirror has the number of the one before it.
    SameEvent,
    /// A range that is copied to a rebuilding leg is not locked (T46).
    RebuildUnlocked,
    /// A leg returns while what it was given may still be executed (T9).
    BackBeforeFence,
    /// Overlapping writes reach legs in different orders (T46).
    OvertakingLegs,
    /// A mirror writes data before their intent.
    DataBeforeIntent,
    /// A range that an unclean stop left diverged is read as it is.
    UnalikeRead,
    /// A leg that is being rebuilt serves what it lacks.
    LackingRead,
    /// A leg is called in sync without a flush of what was copied to it.
    JoinedUnflushed,
    /// Where no leg in sync can read a region, one that is being rebuilt and lacks it is read.
    SpareLacks,
    /// A leg that has left, and shows an older state than it once had, is taken for what it was
    /// when it left.
    TrustedPutBack,
    /// A request taken back from a leg with an expired lease fails, and doesn't wait for it.
    TakenBackFails,
    /// Requests of a target's turn are submitted by the clock that was read at its begin (T49).
    StaleClock,
    /// A target's workers make a change without asking whether it may still start (T49).
    LateWorkers,
    /// A leg that was smaller for a moment lacks no more than the bitmap says (T50).
    ShrunkUnlike,
    /// Where the last leg in sync was cut is not heeded by the next start (T50).
    CutForgotten,
    /// Idle paths are not probed (T12).
    UnprobedIdle,
    /// Probes of a path are small, whatever was lost there.
    SmallProbes,
    /// Probes of a path are reads, though writes were lost there.
    ReadingProbes,
    /// A mirror is started although its legs are those of one of another name.
    NameUnasked,
    /// A leg is taken for the one that its place in the configuration says.
    LegByPlace,
    /// Outstanding requests of a leg have no bound (T54).
    EndlessQueue,
    /// Requests that a device took while it hung are executed whatever the clock says then (T49).
    LateHung,
    /// An engine that stood still makes changes of its legs whatever the clock says then (T49).
    LateLegs,
    /// The lock of what is copied is free while runs of data and of holes are written (T46).
    RunsUnlocked,
    /// An NVMe/TCP export flushes only what the connection of the flush has under way (T13).
    FlushOfIdleHost,
    /// An NVMe/TCP export leaves out that a write is to be durable.
    ForgottenFua,
    /// Requests of NVMe/TCP hosts that wait for a free slot are not woken.
    LostHostWakeUp,
    /// A namespace that was inaccessible once stays so for hosts.
    StaysInaccessible,
    /// The place of a host's connection is free though its commands are not over (T9).
    PlaceOfGone,
    /// An NVMe/TCP export takes writes of zeroes for hints.
    IgnoredZeroes,
    /// A namespace that a reload removed is served further.
    ServesRemoved,
    /// Connections to a port that a reload withdrew stay open.
    ServesWithdrawn,
    /// A change of a part of a block is not alone on all cores.
    EdgesOnTwoCores,
    /// A flush asks only the controllers that its own core has written to.
    FlushOfOneCore,
    /// Writes of another core that a lost controller has not flushed do not count.
    LossOfOneCore,
    /// A client is greeted before all cores have read the ends of its earlier connections.
    GreetedAtOnce,
}

impl Bug {
    /// All.
    pub const ALL: [Self; 79] = [
        Self::Unfenced,
        Self::ShortBound,
        Self::IgnoredMark,
        Self::EarlyReset,
        Self::UnwatchedKeepAlive,
        Self::ForgottenKeepAlive,
        Self::LentFree,
        Self::CidReuse,
        Self::DoubleEnd,
        Self::LeakedCount,
        Self::CountedTwice,
        Self::LeakedBuffer,
        Self::SentFree,
        Self::LostWakeUp,
        Self::ShortRead,
        Self::ForgottenDigest,
        Self::EndlessMoves,
        Self::StaleAna,
        Self::FlushOnOne,
        Self::ForgottenCache,
        Self::FlushOfOneLife,
        Self::ToldTwice,
        Self::Overtaking,
        Self::EdgeBeforeGate,
        Self::ForgottenNotice,
        Self::StaleLog,
        Self::NoBehind,
        Self::ForgottenCqt,
        Self::BusyStays,
        Self::EndedTwice,
        Self::FreedAtDevice,
        Self::AnsweredTwice,
        Self::StaysAside,
        Self::UnaskedFlush,
        Self::CountedGone,
        Self::FreedTwice,
        Self::IdleStays,
        Self::NeverAgain,
        Self::RefilledAtOnce,
        Self::AckBeforeStale,
        Self::MendWithoutLock,
        Self::IntentsForgotten,
        Self::FlushOnOneLeg,
        Self::SameEvent,
        Self::RebuildUnlocked,
        Self::BackBeforeFence,
        Self::OvertakingLegs,
        Self::DataBeforeIntent,
        Self::UnalikeRead,
        Self::LackingRead,
        Self::JoinedUnflushed,
        Self::SpareLacks,
        Self::TrustedPutBack,
        Self::TakenBackFails,
        Self::StaleClock,
        Self::LateWorkers,
        Self::ShrunkUnlike,
        Self::CutForgotten,
        Self::UnprobedIdle,
        Self::SmallProbes,
        Self::ReadingProbes,
        Self::NameUnasked,
        Self::LegByPlace,
        Self::EndlessQueue,
        Self::LateHung,
        Self::LateLegs,
        Self::RunsUnlocked,
        Self::FlushOfIdleHost,
        Self::ForgottenFua,
        Self::LostHostWakeUp,
        Self::StaysInaccessible,
        Self::PlaceOfGone,
        Self::IgnoredZeroes,
        Self::ServesRemoved,
        Self::ServesWithdrawn,
        Self::EdgesOnTwoCores,
        Self::FlushOfOneCore,
        Self::LossOfOneCore,
        Self::GreetedAtOnce,
    ];
}

/// Whether bugs can be planted at all.
pub const CAN: bool = cfg!(feature = "planted");

/// Whether this thread has this bug.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn has(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
mod planted {
    use super::Bug;
    use core::cell::Cell;

    std::thread_local! {
        static PRESENT: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this thread has this bug.
    pub fn has(bug: Bug) -> bool {
        PRESENT.get() == Some(bug)
    }

    /// This thread has this bug from now on, and no other.
    pub fn plant(bug: Option<Bug>) {
        PRESENT.set(bug);
    }
}

#[cfg(feature = "planted")]
pub use planted::{has, plant};
