//! Bodies of the fuzz targets over `nbd`: plain functions over bytes that panic when something is
//! wrong.
//!
//! # Contract
//! A tree of its own beside the bodies over `nvme`: compiled by the fuzz targets, and by a test of
//! `nbd` that replays the corpora, which then needs no other crate.
pub mod client;
pub mod server;
#[path = "../tape.rs"]
#[allow(dead_code, reason = "each crate's bodies use a part")]
pub mod tape;

/// A body.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
#[allow(dead_code, reason = "for the test that replays")]
pub const TARGETS: [(&str, Body); 2] = [("nbd_client", client::run), ("nbd_server", server::run)];

/// Operations of both: bytes arrive; zeroes arrive.
pub const FEED: u8 = 9;
/// See [`FEED`].
pub const ZEROES: u8 = 10;
