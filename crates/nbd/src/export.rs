//! Exports: what a server offers, and what a client learns of them.
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::limits::{
    BLOCK_MAX, BLOCK_MIN_MAX, BLOCK_PREFERRED_MIN, EXPORTS_MAX, SIZE_MAX, STRING_MAX, WHY_MAX,
};
use crate::wire::transmission;

/// Sizes of requests, bytes (Block size constraints).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it; a power of two.
    pub minimum: u32,
    /// Multiples of it are served best; a power of two.
    pub preferred: u32,
    /// Longest read or write.
    pub maximum: u32,
}

impl BlockSizes {
    /// Sizes that a client may assume where the server sends none.
    pub const DEFAULT: Self = Self {
        minimum: 512,
        preferred: 4096,
        maximum: BLOCK_MAX,
    };

    /// Whether they keep to the protocol's constraints.
    pub(crate) fn are_sound(&self) -> bool {
        let least = self.minimum.max(BLOCK_PREFERRED_MIN);
        self.minimum.is_power_of_two()
            && self.minimum <= BLOCK_MIN_MAX
            && self.preferred.is_power_of_two()
            && self.preferred >= least
            && self.maximum > 0
            && (self.maximum.is_multiple_of(self.minimum) || self.maximum == u32::MAX)
    }
}

/// Commands and flags that an export supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Changes are refused with EPERM, and FUA, trim and zeroes aren't offered.
    pub read_only: bool,
    /// Flush.
    pub flush: bool,
    /// The FUA flag.
    pub fua: bool,
    /// The medium rotates.
    pub rotational: bool,
    /// Trim.
    pub trim: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// The FAST_ZERO flag; only with `write_zeroes`.
    pub fast_zero: bool,
    /// Cache.
    pub cache: bool,
    /// A flush, or a write with FUA, on one connection covers all of them.
    pub multi_conn: bool,
    /// The context `base:allocation`, and so Block Status.
    pub block_status: bool,
}

impl Features {
    /// Reads and writes only.
    pub const NONE: Self = Self {
        read_only: false,
        flush: false,
        fua: false,
        rotational: false,
        trim: false,
        write_zeroes: false,
        fast_zero: false,
        cache: false,
        multi_conn: false,
        block_status: false,
    };

    /// The features in effect: a read-only export supports no change.
    pub(crate) fn usable(mut self) -> Self {
        self.fua &= !self.read_only;
        self.trim &= !self.read_only;
        self.write_zeroes &= !self.read_only;
        self.fast_zero &= self.write_zeroes;
        self
    }

    /// Transmission flags; DF stands for structured replies.
    pub fn flags(&self, structured: bool) -> u16 {
        let this = self.usable();
        let bits = [
            (this.read_only, transmission::READ_ONLY),
            (this.flush, transmission::SEND_FLUSH),
            (this.fua, transmission::SEND_FUA),
            (this.rotational, transmission::ROTATIONAL),
            (this.trim, transmission::SEND_TRIM),
            (this.write_zeroes, transmission::SEND_WRITE_ZEROES),
            (structured, transmission::SEND_DF),
            (this.multi_conn, transmission::CAN_MULTI_CONN),
            (this.cache, transmission::SEND_CACHE),
            (this.fast_zero, transmission::SEND_FAST_ZERO),
        ];
        let on = bits.into_iter().filter(|(on, _)| *on);
        on.fold(transmission::HAS_FLAGS, |flags, (_, bit)| flags | bit)
    }

    /// From transmission flags; unknown ones are ignored. Block Status isn't among them.
    pub fn from_flags(flags: u16) -> Self {
        let has = |bit| flags & bit != 0;
        Self {
            read_only: has(transmission::READ_ONLY),
            flush: has(transmission::SEND_FLUSH),
            fua: has(transmission::SEND_FUA),
            rotational: has(transmission::ROTATIONAL),
            trim: has(transmission::SEND_TRIM),
            write_zeroes: has(transmission::SEND_WRITE_ZEROES),
            fast_zero: has(transmission::SEND_FAST_ZERO),
            cache: has(transmission::SEND_CACHE),
            multi_conn: has(transmission::CAN_MULTI_CONN),
            block_status: false,
        }
        .usable()
    }
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The driver's own name for it; comes back when a client opens it.
    pub id: u32,
    /// Name, ≤ 4096 bytes without NUL.
    pub name: String,
    /// For people, ≤ 4096 bytes without NUL; empty = none.
    pub description: String,
    /// Bytes; a multiple of the minimum block size.
    pub size: u64,
    /// Sizes of requests: the logical block, the optimal write, the longest request (≤ 32 MiB).
    pub block_sizes: BlockSizes,
    /// Commands and flags that it supports.
    pub features: Features,
}

impl Export {
    /// Returns the first invalid field, and its valid values.
    fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_string = |s: &str| s.len() <= STRING_MAX && !s.contains('\0');
        let sizes = &self.block_sizes;
        let rules = [
            (
                is_string(&self.name),
                "name",
                "must be at most 4096 bytes without NUL",
            ),
            (
                is_string(&self.description),
                "description",
                "must be at most 4096 bytes without NUL",
            ),
            (
                sizes.are_sound(),
                "block_sizes",
                "must be powers of two: minimum up to 64 KiB, preferred not below it nor below \
                 512, maximum a multiple of the minimum",
            ),
            (
                sizes.maximum <= BLOCK_MAX,
                "block_sizes",
                "must have a maximum of at most 32 MiB",
            ),
            (
                u64::from(sizes.maximum) >= self.size.min(sizes.preferred.into()),
                "block_sizes",
                "must have a maximum not below the preferred size",
            ),
            (
                self.size <= SIZE_MAX && self.size.is_multiple_of(sizes.minimum.max(1).into()),
                "size",
                "must be a multiple of the minimum block size, below 2^63",
            ),
        ];
        let broken = rules.into_iter().find(|(holds, ..)| !holds);
        broken.map(|(_, field, why)| (field, why))
    }
}

/// An invalid export or list of exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// Index in the list.
    pub index: usize,
    /// Field.
    pub field: &'static str,
    /// Valid values.
    pub why: &'static str,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "export {}: {} {}", self.index, self.field, self.why)
    }
}

impl core::error::Error for ExportError {}

/// A checked list of exports; cheap to clone.
#[derive(Clone, Debug)]
pub struct Exports {
    list: Arc<[Export]>,
    default: Option<usize>,
    /// Reason why the list is empty.
    why: Arc<str>,
}

impl Exports {
    /// Makes a list; `default`: index of the export for clients that name none.
    ///
    /// # Errors
    /// More than 1024 exports, two of one name, an invalid field, or no such default.
    pub fn new(list: Vec<Export>, default: Option<usize>) -> Result<Self, ExportError> {
        let error = |index, field, why| Err(ExportError { index, field, why });
        if list.len() > EXPORTS_MAX {
            return error(EXPORTS_MAX, "list", "must be at most 1024 long");
        }
        for (index, export) in list.iter().enumerate() {
            if let Some((field, why)) = export.problem() {
                return error(index, field, why);
            }
            if list[..index].iter().any(|other| other.name == export.name) {
                return error(index, "name", "must not be that of an earlier export");
            }
        }
        if let Some(index) = default.filter(|&index| index >= list.len()) {
            return error(index, "default", "must be an export of the list");
        }
        Ok(Self {
            list: list.into(),
            default,
            why: Arc::default(),
        })
    }

    /// An empty list. A client that asks for an export gets the first 1024 bytes of `why`.
    pub fn none(why: &str) -> Self {
        let most = why.len().min(WHY_MAX);
        let end = (0..=most).rev().find(|&at| why.is_char_boundary(at));
        Self {
            list: Arc::default(),
            default: None,
            why: why[..end.unwrap_or(0)].into(),
        }
    }

    /// Text for a client that asks for an unknown export; mostly empty.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// All of them, in order.
    pub fn list(&self) -> &[Export] {
        &self.list
    }

    /// Index of the export with this name. The empty name is the default export's, unless an export
    /// has it (Option types, EXPORT_NAME).
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        let found = self.list.iter().position(|e| e.name.as_bytes() == name);
        found.or(self.default.filter(|_| name.is_empty()))
    }
}

#[cfg(test)]
mod tests;
