//! `braid mirror examine`: what is on legs, and what they come to together.
//!
//! # Contract
//! Only reads, beside whoever has the legs. Exit code 1 if one of them can't be read or is no leg
//! that can be used, or together they are no mirror; everything that can be shown is shown first.
use super::leg::{Access, AccessArgs, Leg};
use super::show;
use crate::cli::{Exit, Usage};
use crate::output::{self, Format};
use crate::uri::PathUri;
use mirror::Superblock;
use mirror::assembly::{Assembly, Refusal, Wishes, assemble};
use mirror::copies::{Chosen, NoLeg};
use mirror::limits::LEGS_MAX;

/// Show what is on legs of a mirror, and what they come to together
#[derive(Clone, Debug, clap::Args)]
pub struct ExamineArgs {
    /// file:/path of a file or block device, nvme-tcp://… of a namespace; several: whether they are
    /// a mirror
    #[arg(value_name = "LEG", required = true)]
    legs: Vec<PathUri>,
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
    #[command(flatten)]
    access: AccessArgs,
}

/// One leg that was looked at.
pub struct Examined {
    /// As the user wrote it.
    pub uri: String,
    /// Its size.
    pub bytes: u64,
    /// Its superblocks.
    pub found: Result<Chosen, NoLeg>,
    /// Of its bitmap: set bits and bad pages.
    pub bitmap: Option<(u64, usize)>,
}

/// A leg that can't be read.
pub struct Unread {
    /// Which one of those given.
    pub at: usize,
    /// As the user wrote it.
    pub uri: String,
    /// Why not.
    pub why: String,
}

/// All that were looked at.
pub struct Seen {
    /// Those that can be read.
    pub legs: Vec<Examined>,
    /// The others: as if they were not there.
    pub unread: Vec<Unread>,
    /// Their state together, where several were given and one can be read.
    pub together: Option<Result<Assembly, Refusal>>,
}

/// Shows them.
///
/// # Errors
/// [`Usage`]; the only one can't be read; [`Exit`] 1 as the contract says.
pub fn run(args: &ExamineArgs) -> anyhow::Result<()> {
    if args.legs.len() > LEGS_MAX {
        return Err(Usage::error(format!("{LEGS_MAX} legs at most")));
    }
    let access = Access::for_legs(&args.access, &args.legs)?;
    let (mut legs, mut unread) = (Vec::new(), Vec::new());
    for (at, uri) in args.legs.iter().enumerate() {
        match examined(uri, &access) {
            Ok(leg) => legs.push(leg),
            // Nothing else is to be shown.
            Err(error) if error.is::<Usage>() => return Err(error),
            Err(error) if args.legs.len() == 1 && args.output == Format::Text => {
                return Err(error);
            }
            Err(error) => unread.push(Unread {
                at,
                uri: uri.to_string(),
                why: format!("{error:#}"),
            }),
        }
    }
    let seen = Seen {
        together: (args.legs.len() > 1 && !legs.is_empty()).then(|| together(&legs)),
        legs,
        unread,
    };
    let told = match args.output {
        Format::Text => output::print(&show::examined(&seen)),
        Format::Json => output::print_json(&show::examined_json(&seen)),
    };
    output::unless_closed(told)?;
    let usable = seen.unread.is_empty() && seen.legs.iter().all(|leg| leg.found.is_ok());
    match usable && !matches!(seen.together, Some(Err(_))) {
        true => Ok(()),
        false => Err(Exit(1).into()),
    }
}

/// Looks at a leg.
///
/// # Errors
/// It can't be read.
pub fn examined(uri: &PathUri, access: &Access) -> anyhow::Result<Examined> {
    let leg = Leg::open(uri, access)?;
    let found = leg.read_superblock()?;
    let bitmap = match &found {
        Ok(it) => Some(leg.read_bitmap(&it.superblock)?),
        Err(_) => None,
    };
    Ok(Examined {
        uri: uri.to_string(),
        bytes: leg.size().bytes,
        found,
        bitmap: bitmap.map(|(bitmap, bad)| (bitmap.count(), bad)),
    })
}

/// Assembles them.
///
/// # Errors
/// Why they are no mirror.
pub fn together(legs: &[Examined]) -> Result<Assembly, Refusal> {
    let superblock = |leg: &Examined| leg.found.map(|it| it.superblock);
    let given: Vec<Result<Superblock, NoLeg>> = legs.iter().map(superblock).collect();
    assemble(&given, Wishes::default())
}
