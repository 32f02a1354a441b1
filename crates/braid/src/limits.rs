//! Limits of several verbs.
pub use paths::limits::{ARENA_BYTES_MAX, CORES_MAX};
pub use terminal::limits::TEXT_BYTES_MAX;
