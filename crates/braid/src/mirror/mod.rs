//! `braid mirror`: mirrors without an engine, on files and block devices.
//!
//! * [`create`], [`examine`]: the verbs; [`mod@show`]: what they print
//! * [`leg`]: a leg's file; [`foreign`]: what must not be written over
mod create;
mod examine;
mod foreign;
mod leg;
mod show;

/// The verbs.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum MirrorVerb {
    Create(create::CreateArgs),
    Examine(examine::ExamineArgs),
}

/// Does what a verb asks.
///
/// # Errors
/// As the verb says.
pub fn run(verb: &MirrorVerb) -> anyhow::Result<()> {
    match verb {
        MirrorVerb::Create(args) => create::run(args),
        MirrorVerb::Examine(args) => examine::run(args),
    }
}
