//! Bodies of the fuzz targets: plain functions over bytes that panic when something is wrong.
//!
//! # Contract
//! Compiled twice: by the fuzz targets, and by a test of `nvme` that replays the corpora, so that
//! neither needs the other's tool chain. They use `nvme` and nothing else.
#![forbid(unsafe_code)]

pub mod admin;
pub mod io_queue;
pub mod queue;
pub mod rings;
pub mod subsystem;
pub mod tape;
pub mod target;
pub mod wire;
pub mod wired;

/// A body.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
pub const TARGETS: [(&str, Body); 6] = [
    ("admin", admin::run),
    ("io_queue", io_queue::run),
    ("rings", rings::run),
    ("subsystem", subsystem::run),
    ("wire", wire::run),
    ("wired", wired::run),
];
