//! All limits of this crate.
