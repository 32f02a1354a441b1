//! Whole installations of real processes: targets, an engine over them, and others' programs on
//! its exports. Paths die by `kill -9`; what the programs read and write must not notice.
mod ana;
mod clients;
mod common;
mod faults;
mod filesystem;
mod guide;
mod late_write;
mod prometheus;
