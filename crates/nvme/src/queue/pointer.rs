//! Data pointers: PRP lists and SGLs, built for a host and walked by a controller (Base 2.0, 4.1.1
//! and 4.1.2).
//!
//! # Contract
//! Building takes the pieces of a buffer as addresses that the controller knows, and memory for one
//! list. Walking reads each word of a list once, and gives pieces in order, adjoining ones merged;
//! it does not check whether they lie in registered memory.
//!
//! # Limits
//! Pages are 4096 bytes. A list that is built fits one page: [`LIST_WORDS`]. One that is walked may
//! be in several, with as many entries as the transfer has pages, and at most
//! [`SGL_DESCRIPTORS_MAX`] descriptors.
use super::Entry;
use crate::limits::SGL_DESCRIPTORS_MAX;
use crate::wire::Status;
use alloc::vec::Vec;

/// Bytes of a memory page (CC.MPS = 0).
pub const PAGE: u64 = 4096;
/// Words of the memory for one list.
pub const LIST_WORDS: usize = 512;

/// Flags of an entry, PSDT: an SGL, in the first two bits of word 0 that it has there.
const SGL_FLAG: u64 = 0b01 << 14;
const PSDT: u64 = 0b11 << 14;

/// SGL descriptor types, in the upper half of byte 15 (Base 2.0, 4.1.2).
const DATA_BLOCK: u64 = 0x0;
const SEGMENT: u64 = 0x2;
const LAST_SEGMENT: u64 = 0x3;

/// A range of memory that the controller can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Piece {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// Form of the data pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// PRPs where they can describe the pieces, else an SGL.
    #[default]
    Auto,
    /// PRPs: pieces begin and end at page boundaries, but for the first and the last.
    Prp,
    /// An SGL: any pieces.
    Sgl,
}

/// Pieces that no data pointer of this form can describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceError {
    /// PRPs: an offset inside of a page in the middle, or one that is no multiple of four bytes.
    Offset,
    /// More pieces than one list has room for.
    Count,
    /// There is no piece, or one without bytes.
    Empty,
}

impl core::fmt::Display for PieceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Offset => "PRPs can't tell pieces that don't meet at page boundaries",
            Self::Count => "more pieces than one list has room for",
            Self::Empty => "a piece without bytes",
        })
    }
}

impl core::error::Error for PieceError {}

/// Where a list is put: its address for the controller, and how its words are stored.
pub struct List<S> {
    /// Of word 0; a multiple of [`PAGE`].
    pub address: u64,
    /// Stores a word, below [`LIST_WORDS`].
    pub store: S,
}

/// Puts the data pointer of `pieces` into `entry`.
///
/// # Errors
/// [`PieceError`]; then the entry has no data pointer of use.
pub fn build(
    entry: &mut Entry,
    pieces: &[Piece],
    form: Form,
    list: List<impl FnMut(usize, u64)>,
) -> Result<(), PieceError> {
    if pieces.is_empty() || pieces.iter().any(|piece| piece.len == 0) {
        return Err(PieceError::Empty);
    }
    entry[0] &= !PSDT;
    if let ([piece], Form::Auto | Form::Prp) = (pieces, form) {
        // Most I/Os are one page, or two.
        let offset = piece.address % PAGE;
        if piece.address.is_multiple_of(4) && offset + u64::from(piece.len) <= 2 * PAGE {
            entry[3] = piece.address;
            let second = offset + u64::from(piece.len) > PAGE;
            entry[4] = if second {
                (piece.address - offset).wrapping_add(PAGE)
            } else {
                0
            };
            return Ok(());
        }
    }
    let is_prp = form == Form::Prp || (form == Form::Auto && prps(pieces).is_ok());
    if is_prp {
        build_prp(entry, pieces, list)
    } else {
        entry[0] |= SGL_FLAG;
        build_sgl(entry, pieces, list)
    }
}

/// Number of PRPs that describe the pieces.
fn prps(pieces: &[Piece]) -> Result<usize, PieceError> {
    let mut count = 0;
    let last = pieces.len() - 1;
    for (at, piece) in pieces.iter().enumerate() {
        let end = piece.address.checked_add(piece.len.into());
        let end = end.ok_or(PieceError::Offset)?;
        let begins = piece.address.is_multiple_of(if at == 0 { 4 } else { PAGE });
        let ends = at == last || end.is_multiple_of(PAGE);
        if !begins || !ends {
            return Err(PieceError::Offset);
        }
        count += (end.div_ceil(PAGE) - piece.address / PAGE) as usize;
    }
    if count > LIST_WORDS + 1 {
        return Err(PieceError::Count);
    }
    Ok(count)
}

fn build_prp(
    entry: &mut Entry,
    pieces: &[Piece],
    mut list: List<impl FnMut(usize, u64)>,
) -> Result<(), PieceError> {
    let count = prps(pieces)?;
    let pages = pieces.iter().flat_map(|piece| {
        let first = piece.address / PAGE;
        let end = (piece.address + u64::from(piece.len)).div_ceil(PAGE);
        (first..end).map(move |page| (page * PAGE).max(piece.address))
    });
    for (at, page) in pages.enumerate() {
        match at {
            0 => entry[3] = page,
            1 if count == 2 => entry[4] = page,
            _ => (list.store)(at - 1, page),
        }
    }
    if count > 2 {
        entry[4] = list.address;
    } else if count == 1 {
        entry[4] = 0;
    }
    Ok(())
}

fn build_sgl(
    entry: &mut Entry,
    pieces: &[Piece],
    mut list: List<impl FnMut(usize, u64)>,
) -> Result<(), PieceError> {
    if let [piece] = pieces {
        (entry[3], entry[4]) = (piece.address, u64::from(piece.len) | DATA_BLOCK << 60);
        return Ok(());
    }
    if 2 * pieces.len() > LIST_WORDS {
        return Err(PieceError::Count);
    }
    for (at, piece) in pieces.iter().enumerate() {
        (list.store)(2 * at, piece.address);
        (list.store)(2 * at + 1, u64::from(piece.len) | DATA_BLOCK << 60);
    }
    let bytes = 16 * pieces.len() as u64;
    (entry[3], entry[4]) = (list.address, bytes | LAST_SEGMENT << 60);
    Ok(())
}

/// Whether the entry's data pointer is an SGL; `None`: a PSDT that is reserved or has metadata.
fn is_sgl(entry: &Entry) -> Option<bool> {
    match (entry[0] & PSDT) >> 14 {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Appends the pieces of a transfer of `len` bytes. `word` reads eight bytes of the host's memory,
/// and is asked once for each; `None`: the host has no such memory.
///
/// # Errors
/// The status to answer with.
#[inline]
pub fn walk(
    entry: &Entry,
    len: u32,
    word: impl FnMut(u64) -> Option<u64>,
    pieces: &mut Vec<Piece>,
) -> Result<(), Status> {
    match is_sgl(entry) {
        Some(false) => walk_prp(entry, len, word, pieces),
        Some(true) => walk_sgl(entry, len, word, pieces),
        None => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

#[inline]
fn push(pieces: &mut Vec<Piece>, address: u64, len: u32) {
    if let Some(last) = pieces.last_mut()
        && last.address.checked_add(last.len.into()) == Some(address)
    {
        last.len += len;
        return;
    }
    pieces.push(Piece { address, len });
}

#[inline]
fn walk_prp(
    entry: &Entry,
    len: u32,
    mut word: impl FnMut(u64) -> Option<u64>,
    pieces: &mut Vec<Piece>,
) -> Result<(), Status> {
    let (first, second) = (entry[3], entry[4]);
    if !first.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET.with_dnr());
    }
    let of_first = (PAGE - first % PAGE).min(len.into()) as u32;
    push(pieces, first, of_first);
    let mut left = len - of_first;
    if left == 0 {
        return Ok(());
    }
    if u64::from(left) <= PAGE {
        if !second.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET.with_dnr());
        }
        push(pieces, second, left);
        return Ok(());
    }
    if !second.is_multiple_of(8) {
        return Err(Status::PRP_OFFSET.with_dnr());
    }
    let mut at = second;
    while left > 0 {
        let value = word(at).ok_or(Status::DATA_TRANSFER_ERROR.with_dnr())?;
        // The last entry of a page leads to the next one, unless it is the last of all.
        let is_chain = at % PAGE == PAGE - 8 && u64::from(left) > PAGE;
        if !value.is_multiple_of(if is_chain { 8 } else { PAGE }) {
            return Err(Status::PRP_OFFSET.with_dnr());
        }
        if is_chain {
            // A chain of pages that have room for one entry each would never end.
            if value % PAGE == PAGE - 8 {
                return Err(Status::PRP_OFFSET.with_dnr());
            }
            at = value;
            continue;
        }
        let bytes = left.min(PAGE as u32);
        push(pieces, value, bytes);
        left -= bytes;
        at = at.wrapping_add(8);
    }
    Ok(())
}

fn walk_sgl(
    entry: &Entry,
    len: u32,
    mut word: impl FnMut(u64) -> Option<u64>,
    pieces: &mut Vec<Piece>,
) -> Result<(), Status> {
    let mut left = len;
    let mut seen = 0;
    let mut descriptor = (entry[3], entry[4]);
    // Descriptors after this one in the segment, and where they are.
    let (mut at, mut behind, mut is_last) = (0, 0_u64, true);
    loop {
        let (address, second) = descriptor;
        let bytes = second as u32;
        // The subtype must be 0 (an address), and reserved bits too.
        if second >> 32 & 0x0fff_ffff != 0 {
            return Err(Status::SGL_TYPE.with_dnr());
        }
        match second >> 60 {
            DATA_BLOCK => {
                if bytes > left {
                    return Err(Status::SGL_DATA_LENGTH.with_dnr());
                }
                if bytes > 0 {
                    push(pieces, address, bytes);
                }
                left -= bytes;
            }
            kind @ (SEGMENT | LAST_SEGMENT) => {
                // Only as the last of a segment that is not itself the last one.
                let first = seen == 0;
                let misplaced = behind > 0 || (is_last && !first);
                if misplaced || bytes == 0 || !bytes.is_multiple_of(16) {
                    return Err(Status::SGL_SEGMENT.with_dnr());
                }
                (at, behind, is_last) = (address, u64::from(bytes) / 16, kind == LAST_SEGMENT);
            }
            _ => return Err(Status::SGL_TYPE.with_dnr()),
        }
        seen += 1;
        if behind == 0 {
            break;
        }
        if seen > SGL_DESCRIPTORS_MAX {
            return Err(Status::SGL_COUNT.with_dnr());
        }
        let first = word(at);
        let second = at.checked_add(8).and_then(&mut word);
        let both = first.zip(second);
        descriptor = both.ok_or(Status::DATA_TRANSFER_ERROR.with_dnr())?;
        at = at.wrapping_add(16);
        behind -= 1;
    }
    match left {
        0 if is_last => Ok(()),
        0 => Err(Status::SGL_SEGMENT.with_dnr()),
        _ => Err(Status::SGL_DATA_LENGTH.with_dnr()),
    }
}
