//! Bodies of the fuzz targets over `engine`: whole machines in a world, with one peer that lies.
//!
//! # Contract
//! A tree of its own beside the bodies over `nvme`: compiled by the fuzz targets, and by a test of
//! `engine` that replays the corpora. The world, and the honest peers in it, are those of the
//! tests of `engine`: the reactor's contract is kept strictly and memory that is being sent is
//! compared.
//!
//! Checked besides not panicking: machines come to rest, honest peers beside the lying one are
//! served in time and their bytes are right, every request ends once, all memory comes back, and a
//! machine that is told to stop stops, whatever the lying peer does.
#[path = "../../../crates/engine/tests/it/export/clients.rs"]
#[allow(dead_code, reason = "each user takes a part")]
pub mod clients;
#[path = "../../../crates/engine/tests/it/common/mod.rs"]
pub mod common;
#[allow(dead_code, reason = "seeds use it all")]
pub mod discovery;
#[allow(dead_code, reason = "seeds use it all")]
pub mod export;
#[allow(dead_code, reason = "seeds use it all")]
pub mod host;
#[allow(dead_code, reason = "seeds use it all")]
pub mod initiator;
pub mod liar;
pub mod load;
#[path = "../../../crates/engine/tests/it/export/rig.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "each user takes a part")]
pub mod rig;
#[allow(dead_code, reason = "for the test that compares them")]
pub mod seeds;
#[path = "../tape.rs"]
#[allow(dead_code, reason = "each crate's bodies use a part")]
pub mod tape;
#[allow(dead_code, reason = "seeds use it all")]
pub mod target;

/// A body.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
#[allow(dead_code, reason = "for the test that replays")]
pub const TARGETS: [(&str, Body); 4] = [
    ("engine_discovery", discovery::run),
    ("engine_export", export::run),
    ("engine_host", host::run),
    ("engine_target", target::run),
];
