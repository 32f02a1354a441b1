//! What a mirror is on its legs: superblocks, the map of intents, and what several legs that are
//! brought together come to.
//!
//! * [`superblock`]: the bytes that say what a leg is; [`copies`]: the two of them on a leg
//! * [`history`]: which states came after which, so that parted halves are told from late ones
//! * [`events`]: the events in a mirror's life, as changes of its superblock
//! * [`bitmap`]: which regions may differ between legs
//! * [`machine`]: a mirror while it runs: writes, flushes, reads, legs that leave
//! * [`ownership`]: which engine owns it: one machine from the first read to the release
//! * [`layout`]: where all of it lies, and what legs of unlike sizes come to
//! * [`dispose_leg`]: what becomes of an I/O that a leg has ended
//! * [`assembly`]: which of the legs given have every acknowledged write, and what the others lack
//!
//! # Contract
//! Bytes in, facts out: nothing here reads or writes a leg. What is read from a leg is hostile
//! until it was parsed. The format is format.md; guarantees are in docs/mirrors.md.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod assembly;
pub mod bad;
pub mod bitmap;
pub mod copies;
pub mod events;
pub mod history;
mod id;
pub mod layout;
mod leg;
pub mod limits;
pub mod machine;
pub mod ownership;
pub mod superblock;
mod text;
mod wire;

/// The CRC32C (Castagnoli) of some bytes: an argument, for this crate has no library of its own.
pub type Crc32c = fn(&[u8]) -> u32;

pub use id::Id;
pub use leg::{Access, LegAttempt, LegDisposition, dispose_leg};
pub use superblock::{ParseError, Superblock};
pub use text::{BadText, Label, Name, Named, Properties, Text};
