//! `braid mirror`: mirrors on files and block devices, and what can be asked of one that runs.
//!
//! * [`create`], [`examine`], [`upgrade`], [`import_clone`]: the verbs without an engine;
//!   [`mod@show`]: what they print
//! * [`mod@ask`], [`change`]: those that an engine does; [`mod@wait`]: and that take their time
//! * [`leg`]: a leg's file; [`foreign`]: what must not be written over; [`same`]: what is the same
//!   storage by two names
mod ask;
mod change;
pub mod create;
mod examine;
mod far;
mod foreign;
pub mod import_clone;
pub mod leg;
pub mod same;
mod show;
mod upgrade;
mod wait;

use crate::run::call::EngineCall;

/// The verbs.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum MirrorVerb {
    Create(create::CreateArgs),
    Examine(examine::ExamineArgs),
    Upgrade(upgrade::UpgradeArgs),
    ImportClone(import_clone::ImportCloneArgs),
    /// Start a mirror of the running engine that could not start by itself
    Assemble(ask::AssembleArgs),
    /// Compare all legs of a running mirror
    Check(ask::CheckArgs),
    /// Compare all legs of a running mirror, and make alike what differs
    Repair(ask::RepairArgs),
    /// End a check
    EndCheck(ask::MirrorArgs),
    /// Pause a check
    PauseCheck(ask::MirrorArgs),
    /// Go on with a check that was paused
    ResumeCheck(ask::MirrorArgs),
    /// Show a running mirror: its legs, how far a rebuild or a check is, its rate and time left
    Status(change::StatusArgs),
    /// Set how fast a running mirror copies in the background, or pause that
    Speed(change::SpeedArgs),
    /// Add a leg to a running mirror
    Add(change::AddArgs),
    /// Remove a leg from a running mirror; what says that it is one is overwritten
    Remove(ask::LegArgs),
    /// Put a new leg in the place of another one
    Replace(change::ReplaceArgs),
    /// Make a running mirror as large as its legs allow, after all of them became larger
    Grow(ask::MirrorArgs),
    /// Stop a running mirror in order, while the engine goes on
    Stop(change::StopArgs),
    /// Go on without a leg until it is restored
    Fail(ask::LegArgs),
    /// Have a leg return that was failed, or was missing
    Restore(ask::LegArgs),
    /// Use what the last leg in sync shows where it was cut off, and copy it to the others: what
    /// was there is lost
    AcceptLoss(ask::MirrorArgs),
}

/// Does what a verb asks.
///
/// # Errors
/// As the verb says.
pub fn run(verb: &MirrorVerb) -> anyhow::Result<()> {
    match verb {
        MirrorVerb::Create(args) => create::run(args),
        MirrorVerb::Examine(args) => examine::run(args),
        MirrorVerb::Upgrade(args) => upgrade::run(args),
        MirrorVerb::ImportClone(args) => import_clone::run(args),
        MirrorVerb::Assemble(args) => ask::assemble(args),
        MirrorVerb::Check(args) => ask::check(args),
        MirrorVerb::Repair(args) => ask::repair(args),
        MirrorVerb::EndCheck(args) => ask::mirror(EngineCall::MirrorEnd, args),
        MirrorVerb::PauseCheck(args) => ask::mirror(EngineCall::MirrorPause, args),
        MirrorVerb::ResumeCheck(args) => ask::mirror(EngineCall::MirrorResume, args),
        MirrorVerb::Status(args) => change::status(args),
        MirrorVerb::Speed(args) => change::speed(args),
        MirrorVerb::Add(args) => change::add(args),
        MirrorVerb::Remove(args) => change::remove(args),
        MirrorVerb::Replace(args) => change::replace(args),
        MirrorVerb::Grow(args) => change::grow(args),
        MirrorVerb::Stop(args) => change::stop(args),
        MirrorVerb::Fail(args) => ask::leg(EngineCall::MirrorFail, args),
        MirrorVerb::Restore(args) => ask::leg(EngineCall::MirrorRestore, args),
        MirrorVerb::AcceptLoss(args) => ask::mirror(EngineCall::MirrorAcceptLoss, args),
    }
}
