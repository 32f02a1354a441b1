//! A mirror: its format on the legs, its assembly, its owner, and its state machine.
//!
//! * [`superblock`]: a leg's superblock, in bytes; [`copies`]: the two copies of it on a leg
//! * [`history`]: the order of generations, by which diverged halves are told from stale legs
//! * [`events`]: the changes of a superblock
//! * [`bitmap`]: regions that may differ between legs
//! * [`machine`]: the mirror while it runs
//! * [`ownership`]: which engine owns the mirror, from the first read to the release
//! * [`layout`]: offsets on a leg, and the geometry for legs of unlike sizes
//! * [`dispose_leg`]: the disposition of an I/O that a leg has ended
//! * [`assembly`]: which of the given legs have every acknowledged write; data the others lack
//!
//! # Contract
//! Pure: nothing here reads or writes a leg. Bytes of a leg are hostile until they are parsed.
//! format.md has the format, docs/mirrors.md the guarantees.
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
