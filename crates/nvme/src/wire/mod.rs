//! Structures on the wire.
//!
//! Each structure is an accessor over a byte array plus a plain parsed form; nothing is cast.
pub mod status;

pub use status::Status;
