//! All fuzz targets: plain functions over bytes that panic when something is wrong.
//!
//! # Contract
//! The models of a crate lie among its tests, where property tests use them and a test replays the
//! corpora with any compiler; those over several crates lie here, and tests of `engine`, `broker`
//! and `volume` compile them as well.
#![forbid(unsafe_code)]

pub mod broker;
pub mod engine;
pub mod mirror;
#[path = "../../crates/nbd/tests/it/model/mod.rs"]
pub mod nbd;
#[path = "../../crates/nvme/tests/it/model/mod.rs"]
pub mod nvme;
#[path = "../../crates/program/tests/it/model/mod.rs"]
pub mod program;
