//! Models of both ends of NVMe/TCP and of queues in shared memory: drivers that keep the contract
//! and check that a machine does, whatever its peer says. Property tests and fuzz targets play them
//! from a tape of bytes.
pub mod admin;
pub mod io_queue;
pub mod queue;
pub mod rings;
pub mod seeds;
pub mod subsystem;
#[path = "../../../../../fuzz/src/tape.rs"]
#[allow(dead_code, reason = "each crate's models use a part")]
pub mod tape;
pub mod target;
pub mod wire;
pub mod wired;

/// Plays one input.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
#[allow(dead_code, reason = "for the test that replays")]
pub const TARGETS: [(&str, Body); 6] = [
    ("admin", admin::run),
    ("io_queue", io_queue::run),
    ("rings", rings::run),
    ("subsystem", subsystem::run),
    ("wire", wire::run),
    ("wired", wired::run),
];
